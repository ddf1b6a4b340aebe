//! Devices and contexts.

use super::{Driver, Result, call};
use crate::sys::*;

impl Driver {
    /// Number of devices that this process sees.
    ///
    /// # Errors
    /// What the driver says.
    pub fn device_count(&self) -> Result<i32> {
        let mut count = 0;
        // SAFETY: the driver writes one integer.
        unsafe { call!(self, cuDeviceGetCount(&mut count)) }?;
        Ok(count)
    }

    /// The driver's number of the device with that ordinal.
    ///
    /// # Errors
    /// Code 101 when there is no such device.
    pub fn device_handle(&self, ordinal: i32) -> Result<CUdevice> {
        let mut device = 0;
        // SAFETY: the driver writes one integer and checks the ordinal.
        unsafe { call!(self, cuDeviceGet(&mut device, ordinal)) }?;
        Ok(device)
    }

    /// The name of a device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn device_name(&self, device: CUdevice) -> Result<String> {
        let mut name = [0u8; 256];
        // SAFETY: the driver writes at most the length that is passed, with a final zero.
        unsafe { call!(self, cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, device)) }?;
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        Ok(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    /// The value of an attribute; see the constants `CU_DEVICE_ATTRIBUTE_*`.
    ///
    /// # Errors
    /// Code 1 for an attribute that the driver does not know.
    pub fn device_attribute(&self, attribute: CUdevice_attribute, device: CUdevice) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the driver writes one integer and checks the other arguments.
        unsafe { call!(self, cuDeviceGetAttribute(&mut value, attribute, device)) }?;
        Ok(value)
    }

    /// The universally unique id of a device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn device_uuid(&self, device: CUdevice) -> Result<[u8; 16]> {
        let mut uuid: CUuuid = zeroed();
        // SAFETY: the driver writes 16 bytes.
        unsafe { call!(self, cuDeviceGetUuid(&mut uuid, device)) }?;
        Ok(uuid.bytes)
    }

    /// All memory of a device, in bytes.
    ///
    /// # Errors
    /// What the driver says.
    pub fn device_total_memory(&self, device: CUdevice) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: the driver writes one size.
        unsafe { call!(self, cuDeviceTotalMem(&mut bytes, device)) }?;
        Ok(bytes)
    }

    /// Whether `device` can reach the memory of `peer`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn can_access_peer(&self, device: CUdevice, peer: CUdevice) -> Result<bool> {
        let mut can = 0;
        // SAFETY: the driver writes one integer.
        unsafe { call!(self, cuDeviceCanAccessPeer(&mut can, device, peer)) }?;
        Ok(can != 0)
    }

    /// Makes the primary context of a device if need be and takes a reference to it.
    ///
    /// # Errors
    /// What the driver says; making a context takes device memory.
    pub fn primary_context_retain(&self, device: CUdevice) -> Result<CUcontext> {
        let mut context = core::ptr::null_mut();
        // SAFETY: the driver writes one handle.
        unsafe { call!(self, cuDevicePrimaryCtxRetain(&mut context, device)) }?;
        Ok(context)
    }

    /// Gives one reference to the primary context back.
    ///
    /// # Safety
    ///
    /// The reference was taken by [`primary_context_retain`](Self::primary_context_retain) and nothing relies on it.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn primary_context_release(&self, device: CUdevice) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuDevicePrimaryCtxRelease(device)) }
    }

    /// Flags of the primary context of a device, and whether it exists. Makes none.
    ///
    /// # Errors
    /// What the driver says.
    pub fn primary_context_state(&self, device: CUdevice) -> Result<(u32, bool)> {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the driver writes two integers.
        unsafe { call!(self, cuDevicePrimaryCtxGetState(device, &mut flags, &mut active)) }?;
        Ok((flags, active != 0))
    }

    /// Sets the flags of the primary context of a device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn primary_context_set_flags(&self, device: CUdevice, flags: u32) -> Result<()> {
        // SAFETY: numbers only.
        unsafe { call!(self, cuDevicePrimaryCtxSetFlags(device, flags)) }
    }

    /// The context that is current on this thread; null if none is.
    ///
    /// # Errors
    /// What the driver says.
    #[inline]
    pub fn current_context(&self) -> Result<CUcontext> {
        let mut context = core::ptr::null_mut();
        // SAFETY: the driver writes one handle.
        unsafe { call!(self, cuCtxGetCurrent(&mut context)) }?;
        Ok(context)
    }

    /// Makes a context current on this thread; null for none.
    ///
    /// # Safety
    ///
    /// The context is null or exists.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn set_current_context(&self, context: CUcontext) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuCtxSetCurrent(context)) }
    }

    /// Makes a context current on this thread until [`pop_context`](Self::pop_context).
    ///
    /// # Safety
    ///
    /// The context exists.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn push_context(&self, context: CUcontext) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuCtxPushCurrent(context)) }
    }

    /// Makes the context that was current before the last push current again; returns the one that was.
    ///
    /// # Errors
    /// What the driver says.
    pub fn pop_context(&self) -> Result<CUcontext> {
        let mut context = core::ptr::null_mut();
        // SAFETY: the driver writes one handle.
        unsafe { call!(self, cuCtxPopCurrent(&mut context)) }?;
        Ok(context)
    }

    /// The device of the context that is current on this thread.
    ///
    /// # Errors
    /// Code 201 when none is.
    pub fn current_context_device(&self) -> Result<CUdevice> {
        let mut device = 0;
        // SAFETY: the driver writes one integer.
        unsafe { call!(self, cuCtxGetDevice(&mut device)) }?;
        Ok(device)
    }

    /// Waits for all work of the current context. Ends any stream capture in it, also of other threads.
    ///
    /// # Errors
    /// What the driver says, faults of earlier work included.
    pub fn synchronize_context(&self) -> Result<()> {
        // SAFETY: no arguments.
        unsafe { call!(self, cuCtxSynchronize()) }
    }

    /// A number of the context that no other context of the process gets. Null: the current one.
    ///
    /// # Safety
    ///
    /// The context is null or exists.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn context_id(&self, context: CUcontext) -> Result<u64> {
        let mut id = 0;
        // SAFETY: the driver writes one integer; the context is live by this function's contract.
        unsafe { call!(self, cuCtxGetId(context, &mut id)) }?;
        Ok(id)
    }
}
