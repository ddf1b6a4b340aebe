//! Memory: plain, managed, host; copies and sets; questions about addresses; memory of other processes.

use super::{Driver, Result, call};
use crate::error::DriverError;
use crate::stream::RawStream;
use crate::sys::*;

/// Free and total memory of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that nobody has, as far as the driver knows.
    pub free: usize,
    /// All bytes of the device.
    pub total: usize,
}

/// How pinned host memory is to be made or registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostFlags {
    /// Pinned for all contexts of the process.
    pub portable: bool,
    /// Mapped into the device's address space (with unified addressing it is in any case).
    pub mapped: bool,
    /// Faster to write for the host, very slow to read (allocation only).
    pub write_combined: bool,
}

impl Default for HostFlags {
    fn default() -> Self {
        Self { portable: true, mapped: false, write_combined: false }
    }
}

/// What the driver knows of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PointerInfo {
    /// 1 host, 2 device, 4 unified (`CU_MEMORYTYPE_*`).
    pub memory_type: u32,
    /// Whether it is managed memory.
    pub managed: bool,
    /// Ordinal of the device that it was made on.
    pub device: i32,
    /// First address of its allocation.
    pub base: CUdeviceptr,
    /// Bytes of its allocation.
    pub bytes: usize,
}

/// A device, or the host.
fn place(device: Option<i32>) -> CUmemLocation {
    match device {
        Some(id) => CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id },
        None => CUmemLocation { type_: CU_MEM_LOCATION_TYPE_HOST, id: 0 },
    }
}

impl Driver {
    /// Allocates memory of the current device. Returns when the memory is usable on any stream.
    ///
    /// # Errors
    /// [Out of memory](crate::DriverError::is_out_of_memory); what the driver says.
    pub fn mem_alloc(&self, bytes: usize) -> Result<CUdeviceptr> {
        let mut address = 0;
        // SAFETY: the driver writes one address.
        unsafe { call!(self, cuMemAlloc(&mut address, bytes)) }?;
        crate::watch::grew();
        Ok(address)
    }

    /// Frees memory of [`mem_alloc`](Self::mem_alloc) or [`mem_alloc_managed`](Self::mem_alloc_managed). Waits for the
    /// whole device.
    ///
    /// # Safety
    ///
    /// Nobody uses the memory from now on.
    ///
    /// # Errors
    /// Code 1 for an address that is no such allocation; what the driver says.
    pub unsafe fn mem_free(&self, address: CUdeviceptr) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuMemFree(address)) }
    }

    /// Free and total memory of the current device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn mem_info(&self) -> Result<MemoryInfo> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes two sizes.
        unsafe { call!(self, cuMemGetInfo(&mut free, &mut total)) }?;
        Ok(MemoryInfo { free, total })
    }

    /// First address and bytes of the allocation around an address.
    ///
    /// # Errors
    /// Code 500 for an address that the driver does not know.
    pub fn address_range(&self, address: CUdeviceptr) -> Result<(CUdeviceptr, usize)> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: the driver writes an address and a size and checks the address that is passed.
        unsafe { call!(self, cuMemGetAddressRange(&mut base, &mut bytes, address)) }?;
        Ok((base, bytes))
    }

    /// Allocates managed memory, attached to all streams.
    ///
    /// # Errors
    /// [Out of memory](crate::DriverError::is_out_of_memory); what the driver says.
    pub fn mem_alloc_managed(&self, bytes: usize) -> Result<CUdeviceptr> {
        let mut address = 0;
        // SAFETY: the driver writes one address.
        unsafe { call!(self, cuMemAllocManaged(&mut address, bytes, CU_MEM_ATTACH_GLOBAL)) }?;
        Ok(address)
    }

    /// Moves managed memory, or ordinary memory of the host where devices can use it, to a device, or to the host (`None`), in
    /// the order of a stream.
    ///
    /// # Safety
    ///
    /// The range is memory of that kind, and lives until the move is done.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn mem_prefetch(
        &self,
        address: CUdeviceptr,
        bytes: usize,
        device: Option<i32>,
        stream: RawStream,
    ) -> Result<()> {
        // SAFETY: by this function's contract; the stream is live by `RawStream`'s promise.
        unsafe { call!(self, cuMemPrefetchAsync(address, bytes, place(device), 0, stream.as_raw())) }
    }

    /// Says where memory that migrates is at home: on a device, or on the host (`None`).
    ///
    /// # Safety
    ///
    /// The range is managed memory, or ordinary memory of the host where devices can use it, and is alive.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn mem_prefer(&self, address: CUdeviceptr, bytes: usize, device: Option<i32>) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuMemAdvise(address, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place(device))) }
    }

    /// Allocates pinned host memory, aligned to a page.
    ///
    /// # Errors
    /// [Out of memory](crate::DriverError::is_out_of_memory); what the driver says.
    pub fn host_alloc(&self, bytes: usize, flags: HostFlags) -> Result<*mut c_void> {
        let bits = (u32::from(flags.portable) * CU_MEMHOSTALLOC_PORTABLE)
            | (u32::from(flags.mapped) * CU_MEMHOSTALLOC_DEVICEMAP)
            | (u32::from(flags.write_combined) * CU_MEMHOSTALLOC_WRITECOMBINED);
        let mut address = core::ptr::null_mut();
        // SAFETY: the driver writes one address.
        unsafe { call!(self, cuMemHostAlloc(&mut address, bytes, bits)) }?;
        Ok(address)
    }

    /// Frees memory of [`host_alloc`](Self::host_alloc).
    ///
    /// # Safety
    ///
    /// The address came from there, and nobody, the device included, uses the memory from now on.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn host_free(&self, address: *mut c_void) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuMemFreeHost(address)) }
    }

    /// Pins host memory that exists.
    ///
    /// # Safety
    ///
    /// The range is host memory of this process that lives until [`host_unregister`](Self::host_unregister).
    ///
    /// # Errors
    /// Code 712 when it is pinned already; what the driver says.
    pub unsafe fn host_register(&self, address: *mut c_void, bytes: usize, flags: HostFlags) -> Result<()> {
        let bits = (u32::from(flags.portable) * CU_MEMHOSTREGISTER_PORTABLE)
            | (u32::from(flags.mapped) * CU_MEMHOSTREGISTER_DEVICEMAP);
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuMemHostRegister(address, bytes, bits)) }
    }

    /// Undoes [`host_register`](Self::host_register).
    ///
    /// # Safety
    ///
    /// The device does not use the memory from now on.
    ///
    /// # Errors
    /// Code 713 when it is not pinned; what the driver says.
    pub unsafe fn host_unregister(&self, address: *mut c_void) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuMemHostUnregister(address)) }
    }

    /// The device's address of pinned host memory.
    ///
    /// # Safety
    ///
    /// The address is pinned host memory.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn host_device_pointer(&self, address: *mut c_void) -> Result<CUdeviceptr> {
        let mut device_address = 0;
        // SAFETY: the driver writes one address; the rest is this function's contract.
        unsafe { call!(self, cuMemHostGetDevicePointer(&mut device_address, address, 0)) }?;
        Ok(device_address)
    }

    /// Copies between any two places that the driver knows, and waits for it.
    ///
    /// # Safety
    ///
    /// Both ranges are valid, and nobody writes to them meanwhile.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn copy(&self, dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuMemcpy(dst, src, bytes)) }
    }

    /// Copies between any two places that the driver knows, in the order of a stream.
    ///
    /// # Safety
    ///
    /// Both ranges are valid until the copy is done, and nobody writes to them meanwhile except in order.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn copy_async(&self, dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: RawStream) -> Result<()> {
        // SAFETY: by this function's contract; the stream is live by `RawStream`'s promise.
        unsafe { call!(self, cuMemcpyAsync(dst, src, bytes, stream.as_raw())) }
    }

    /// Copies between the memory of two devices, in the order of a stream, also where neither has access to the memory of the
    /// other: [`copy_async`](Self::copy_async) refuses that for mapped ranges and pools.
    ///
    /// # Safety
    ///
    /// As for [`copy_async`](Self::copy_async); both contexts exist and are those of the devices.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn copy_peer_async(
        &self,
        (dst, dst_context): (CUdeviceptr, CUcontext),
        (src, src_context): (CUdeviceptr, CUcontext),
        bytes: usize,
        stream: RawStream,
    ) -> Result<()> {
        // SAFETY: by this function's contract; the stream is live by `RawStream`'s promise.
        unsafe { call!(self, cuMemcpyPeerAsync(dst, dst_context, src, src_context, bytes, stream.as_raw())) }
    }

    /// Copies from the device to the host, in the order of a stream. From or to pageable memory, the call may wait.
    ///
    /// # Safety
    ///
    /// As [`copy_async`](Self::copy_async); `dst` is host memory.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn copy_to_host_async(
        &self,
        dst: *mut c_void,
        src: CUdeviceptr,
        bytes: usize,
        stream: RawStream,
    ) -> Result<()> {
        // SAFETY: by this function's contract; the stream is live by `RawStream`'s promise.
        unsafe { call!(self, cuMemcpyDtoHAsync(dst, src, bytes, stream.as_raw())) }
    }

    /// Copies from the host to the device, in the order of a stream. From pageable memory, the source may be reused when
    /// the call returns.
    ///
    /// # Safety
    ///
    /// As [`copy_async`](Self::copy_async); `src` is host memory.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn copy_from_host_async(
        &self,
        dst: CUdeviceptr,
        src: *const c_void,
        bytes: usize,
        stream: RawStream,
    ) -> Result<()> {
        // SAFETY: by this function's contract; the stream is live by `RawStream`'s promise.
        unsafe { call!(self, cuMemcpyHtoDAsync(dst, src, bytes, stream.as_raw())) }
    }

    /// Copies from device to device, in the order of a stream.
    ///
    /// # Safety
    ///
    /// As [`copy_async`](Self::copy_async).
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn copy_on_device_async(
        &self,
        dst: CUdeviceptr,
        src: CUdeviceptr,
        bytes: usize,
        stream: RawStream,
    ) -> Result<()> {
        // SAFETY: by this function's contract; the stream is live by `RawStream`'s promise.
        unsafe { call!(self, cuMemcpyDtoDAsync(dst, src, bytes, stream.as_raw())) }
    }

    /// Sets `count` bytes.
    ///
    /// # Safety
    ///
    /// The range is valid, and nobody else uses it meanwhile.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn fill(&self, dst: CUdeviceptr, value: u8, count: usize) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuMemsetD8(dst, value, count)) }
    }

    /// Sets `count` bytes in the order of a stream.
    ///
    /// # Safety
    ///
    /// The range is valid until the set is done, and nobody uses it meanwhile except in order.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn fill_async(&self, dst: CUdeviceptr, value: u8, count: usize, stream: RawStream) -> Result<()> {
        // SAFETY: by this function's contract; the stream is live by `RawStream`'s promise.
        unsafe { call!(self, cuMemsetD8Async(dst, value, count, stream.as_raw())) }
    }

    /// What the driver knows of an address; `None` for one that it does not know.
    ///
    /// # Errors
    /// What the driver says.
    pub fn pointer_info(&self, address: CUdeviceptr) -> Result<Option<PointerInfo>> {
        let mut memory_type: CUmemorytype = 0;
        let mut managed: c_uint = 0;
        let mut device: c_int = -1;
        let mut base: CUdeviceptr = 0;
        let mut bytes: usize = 0;
        let mut attributes = [
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            CU_POINTER_ATTRIBUTE_IS_MANAGED,
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        ];
        let mut places: [*mut c_void; 5] = [
            (&raw mut memory_type).cast(),
            (&raw mut managed).cast(),
            (&raw mut device).cast(),
            (&raw mut base).cast(),
            (&raw mut bytes).cast(),
        ];
        // SAFETY: five attributes and five places of the types that the driver writes for them (int, or for `managed` a
        // truth value of at most four bytes); the driver checks the address.
        unsafe {
            call!(
                self,
                cuPointerGetAttributes(
                    attributes.len() as c_uint,
                    attributes.as_mut_ptr(),
                    places.as_mut_ptr(),
                    address
                )
            )
        }?;
        if memory_type == 0 {
            return Ok(None);
        }
        Ok(Some(PointerInfo { memory_type, managed: managed != 0, device, base, bytes }))
    }

    /// One attribute of an address, as an integer of up to eight bytes (`CU_POINTER_ATTRIBUTE_*` of [`crate::sys`]).
    ///
    /// # Errors
    /// Code 1 for an address that the driver does not know, and for an attribute that this library does not know.
    pub fn pointer_attribute(&self, attribute: CUpointer_attribute, address: CUdeviceptr) -> Result<u64> {
        if !(CU_POINTER_ATTRIBUTE_CONTEXT..=CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE).contains(&attribute) {
            // It might be larger than the place below.
            return Err(DriverError::new("cuPointerGetAttribute", CUDA_ERROR_INVALID_VALUE));
        }
        // Twice eight bytes: one of them, the tokens of peer-to-peer kernels, is as large.
        let mut value = [0u64; 2];
        // SAFETY: none of these attributes is larger than 16 bytes; the driver checks the address.
        unsafe { call!(self, cuPointerGetAttribute(value.as_mut_ptr().cast(), attribute, address)) }?;
        Ok(value[0])
    }

    /// A handle by which another process opens an allocation of [`mem_alloc`](Self::mem_alloc).
    ///
    /// # Errors
    /// Code 1 for memory that cannot be shared so (virtual ranges, pools, managed); what the driver says.
    pub fn ipc_handle(&self, address: CUdeviceptr) -> Result<CUipcMemHandle> {
        let mut handle: CUipcMemHandle = zeroed();
        // SAFETY: the driver writes 64 bytes and checks the address.
        unsafe { call!(self, cuIpcGetMemHandle(&mut handle, address)) }?;
        Ok(handle)
    }

    /// Opens memory of another process in the current context.
    ///
    /// # Errors
    /// What the driver says; a handle of this same process is refused.
    pub fn ipc_open(&self, handle: CUipcMemHandle) -> Result<CUdeviceptr> {
        let mut address = 0;
        // SAFETY: the driver writes one address and checks the handle.
        unsafe { call!(self, cuIpcOpenMemHandle(&mut address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)) }?;
        Ok(address)
    }

    /// Closes memory of another process.
    ///
    /// # Safety
    ///
    /// The address came from [`ipc_open`](Self::ipc_open), and nobody here uses the memory from now on.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn ipc_close(&self, address: CUdeviceptr) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuIpcCloseMemHandle(address)) }
    }
}
