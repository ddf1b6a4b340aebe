//! Hints: where memory that migrates will be needed next, and where it is at home.
//!
//! ```text
//!   what the driver calls managed                     on devices that use it together with the host
//!   ordinary memory of the host                       on devices that can use that
//!   everything else, and where the device lacks it    nothing is done: told = false
//! ```
//!
//! # Rules
//! * A hint is never the reason why something fails. What the device or the driver lacks, and what it refuses, is "not told".
//!   Only what the caller names wrongly (a device that is not there) is an error.
//! * Nothing is put into a stream that is capturing: the driver knows no such node, and the capture would be lost.
//! * A stored raw value names no stream that may be touched: not told.

use tenure_driver::CaptureStatus;

use crate::device;
use crate::error::{Error, Result};
use crate::stream::StreamRef;

/// Where memory shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the memory of this device.
    Device(i32),
    /// In the memory of the host.
    Host,
}

impl Place {
    fn device(self) -> Option<i32> {
        match self {
            Self::Device(device) => Some(device),
            Self::Host => None,
        }
    }
}

/// Asks the driver to move `bytes` bytes from `ptr` on to `place`, in the order of `stream`. True when it was told to.
///
/// # Errors
/// [`Error::Invalid`] for a device that is not there.
pub fn prefetch(ptr: u64, bytes: usize, place: Place, stream: StreamRef<'_>) -> Result<bool> {
    if let Some(device) = place.device() {
        match device::check(device) {
            Err(Error::NoDevice(_)) => return Ok(false),
            checked => checked?,
        };
    }
    if bytes == 0 || ptr == 0 || !stream.is_live() {
        return Ok(false);
    }
    Ok(told(tell(ptr, bytes, place, stream)))
}

/// Whether devices can be told about memory of these properties: managed, or pageable memory of the host where the devices can
/// use that.
pub(crate) fn concerns(properties: crate::resource::Properties) -> bool {
    properties.managed
        || (properties.host_accessible && properties.device_accessible && device::reads_pageable_memory())
}

fn tell(ptr: u64, bytes: usize, place: Place, stream: StreamRef<'_>) -> Result<bool> {
    let home = device::home_or_current(stream)?;
    if !migrates(ptr, home)? || !place.device().map_or(Ok(true), |device| migrates(ptr, device))? {
        return Ok(false);
    }
    device::on(home, || {
        let driver = device::driver()?;
        if driver.stream_capture_status(stream.raw)? != CaptureStatus::None {
            return Ok(false);
        }
        // SAFETY: the driver has just said that this is memory that migrates, and the caller's; it checks the range.
        unsafe { driver.mem_prefetch(ptr, bytes, place.device(), stream.raw) }?;
        Ok(true)
    })
}

/// Tells the driver where memory of the host is at home. True when it was told.
pub(crate) fn prefer(ptr: u64, bytes: usize, place: Place, current: i32) -> bool {
    if bytes == 0 {
        return false;
    }
    told(device::on(current, || {
        // SAFETY: the caller has made this memory just now.
        unsafe { device::driver()?.mem_prefer(ptr, bytes, place.device()) }?;
        Ok(true)
    }))
}

/// Whether the driver moves this memory between the host and a device.
fn migrates(ptr: u64, device: i32) -> Result<bool> {
    let driver = device::driver()?;
    let capabilities = driver.device(device)?.properties()?.capabilities;
    if !driver.has("cuMemPrefetchAsync") {
        return Ok(false);
    }
    Ok(match device::on(device, || Ok(driver.pointer_info(ptr)?))? {
        Some(info) => info.managed && capabilities.concurrent_managed,
        None => capabilities.pageable_access,
    })
}

fn told(answer: Result<bool>) -> bool {
    answer.unwrap_or_else(|e| {
        log::debug!("tenure: a hint was not given: {e}");
        false
    })
}
