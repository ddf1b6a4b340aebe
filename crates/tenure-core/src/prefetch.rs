//! Hints: where memory that migrates will be needed next.
//!
//! A hint is never the reason why something fails: memory that is not managed stays where it is, and so does all memory where
//! the device or the driver cannot be told. Only what the caller names wrongly (a device that is not there) is an error.
//!
//! Cost: one question about the address and, for managed memory, one call that enqueues the move.

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
    if bytes == 0 || ptr == 0 {
        return Ok(false);
    }
    Ok(tell(ptr, bytes, place, stream).unwrap_or(false))
}

fn tell(ptr: u64, bytes: usize, place: Place, stream: StreamRef<'_>) -> Result<bool> {
    let driver = device::driver()?;
    let home = driver.device(device::home_or_current(stream)?)?;
    let able = |device: &tenure_driver::Device| Ok::<_, Error>(device.properties()?.capabilities.concurrent_managed);
    if !driver.has("cuMemPrefetchAsync") || !able(home)? {
        return Ok(false);
    }
    if let Some(to) = place.device()
        && !able(driver.device(to)?)?
    {
        return Ok(false);
    }
    let _current = home.enter()?;
    let managed = driver.pointer_info(ptr)?.is_some_and(|info| info.managed);
    // A capture knows no such node, and would be lost.
    if !managed || driver.stream_capture_status(stream.raw)? != CaptureStatus::None {
        return Ok(false);
    }
    // SAFETY: the driver has just said that this is managed memory, and the caller's; it checks the range.
    unsafe { driver.mem_prefetch(ptr, bytes, place.device(), stream.raw) }?;
    Ok(true)
}
