//! Devices: which there are, which one is current, how much memory they have.
//!
//! Unsafe in this file: calls through the table.

use std::ffi::CStr;

use tenure_abi::*;

use crate::api;
use crate::error::{Error, Result, check};

/// A device by its ordinal.
///
/// # Examples
/// ```
/// use tenure::Device;
///
/// let device = Device::current()?;
/// let info = device.info()?;
/// println!("{}: {} bytes free of {}", info.name, info.free_bytes, info.total_bytes);
/// assert!(info.free_bytes <= info.total_bytes);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    ordinal: i32,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// Free bytes, as the driver says.
    pub free_bytes: u64,
    /// Total bytes.
    pub total_bytes: u64,
    /// It is the simulated device.
    pub simulated: bool,
    /// It has virtual memory management.
    pub virtual_memory: bool,
    /// It has stream-ordered memory pools.
    pub memory_pools: bool,
    /// It has managed memory.
    pub managed_memory: bool,
    /// Its kernels can use any memory of the host.
    pub pageable_access: bool,
    /// Compute capability: major, minor.
    pub compute: (i32, i32),
    /// Universally unique id.
    pub uuid: [u8; 16],
}

impl Device {
    /// The device of this ordinal.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such device; what loading the driver says at its first use.
    pub fn new(ordinal: i32) -> Result<Self> {
        let count = Self::count()?;
        if (0..count).contains(&ordinal) {
            return Ok(Self { ordinal });
        }
        let there =
            if count == 1 { "there is device 0 only".into() } else { format!("there are devices 0 to {}", count - 1) };
        Err(Error::Invalid(format!("there is no device {ordinal}: {there}")))
    }

    /// An ordinal that the library gave.
    pub(crate) const fn known(ordinal: i32) -> Self {
        Self { ordinal }
    }

    /// The number of devices. Loads the driver at first use.
    ///
    /// # Errors
    /// [`Error::NoDevice`] where there is none, with the reason.
    pub fn count() -> Result<i32> {
        let api = api()?;
        let mut count = 0;
        // SAFETY: the pointer is valid for writing.
        check(api, unsafe { (api.device_count)(&mut count) })?;
        Ok(count)
    }

    /// The device that is current on this thread; device 0 when none was made current.
    ///
    /// # Errors
    /// As [`count`](Self::count).
    pub fn current() -> Result<Self> {
        let api = api()?;
        let mut ordinal = 0;
        // SAFETY: the pointer is valid for writing.
        check(api, unsafe { (api.device_get_current)(&mut ordinal) })?;
        Ok(Self { ordinal })
    }

    /// Makes this device current on this thread.
    ///
    /// # Errors
    /// What the driver says.
    pub fn make_current(&self) -> Result<()> {
        let api = api()?;
        // SAFETY: no pointer is passed.
        check(api, unsafe { (api.device_set_current)(self.ordinal) })
    }

    /// Its number.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// What it is, and how much of its memory is free now.
    ///
    /// # Errors
    /// What the driver says.
    pub fn info(&self) -> Result<DeviceInfo> {
        let api = api()?;
        // SAFETY: the structure is made of integers, for all of which zero is a value.
        let mut info: tenure_device_info = unsafe { std::mem::zeroed() };
        info.size = size_of::<tenure_device_info>();
        // SAFETY: the pointer is valid for writing `size` bytes.
        check(api, unsafe { (api.device_info)(self.ordinal, &mut info) })?;
        // SAFETY: bytes of the same length, read as bytes.
        let name = unsafe { &*(&raw const info.name).cast::<[u8; 128]>() };
        Ok(DeviceInfo {
            name: CStr::from_bytes_until_nul(name).unwrap_or_default().to_string_lossy().into_owned(),
            free_bytes: info.free_bytes,
            total_bytes: info.total_bytes,
            simulated: info.simulated != 0,
            virtual_memory: info.virtual_memory != 0,
            memory_pools: info.memory_pools != 0,
            managed_memory: info.managed_memory != 0,
            pageable_access: info.pageable_access != 0,
            compute: (info.compute_major, info.compute_minor),
            uuid: info.uuid,
        })
    }

    /// Waits for all work of the device. A stream capture that is under way goes on.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn synchronize(&self) -> Result<()> {
        let api = api()?;
        // SAFETY: no pointer is passed.
        check(api, unsafe { (api.device_synchronize)(self.ordinal) })
    }

    /// Bytes that the driver has handed out on the device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn used_bytes(&self) -> Result<u64> {
        let api = api()?;
        let mut used = 0;
        // SAFETY: the pointer is valid for writing.
        check(api, unsafe { (api.device_used)(self.ordinal, &mut used) })?;
        Ok(used)
    }
}
