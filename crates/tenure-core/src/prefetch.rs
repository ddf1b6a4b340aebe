//! Moving managed memory to where it will be used, ahead of its use.
//!
//! A hint: memory that is not managed stays where it is, and so does all memory where the device cannot be told (no
//! concurrent access to managed memory, or a driver without the call). Only a fault is an error.
//!
//! Cost: one question about the address and, for managed memory, one call that enqueues the move.

use crate::device;
use crate::error::Result;
use crate::stream::StreamRef;

/// Moves managed memory to a device, or to the host (`None`), in the order of `stream`; a default stream is that of
/// `default`. Says whether a move was enqueued.
///
/// # Errors
/// What the driver says of the stream or the device.
///
/// # Safety
/// The range is alive until the work enqueued on `stream` so far is done.
pub unsafe fn prefetch(
    address: u64,
    bytes: usize,
    to: Option<i32>,
    stream: StreamRef<'_>,
    default: i32,
) -> Result<bool> {
    let to = to.map(device::check).transpose()?;
    if bytes == 0 {
        return Ok(false);
    }
    let driver = device::driver()?;
    if !driver.pointer_info(address)?.is_some_and(|info| info.managed) {
        return Ok(false);
    }
    let home = match device::home_of(stream, default)? {
        Some(ordinal) => ordinal,
        None => device::current()?,
    };
    let device = driver.device(home)?;
    let able = |device: &tenure_driver::Device| -> Result<bool> {
        Ok(device.properties()?.capabilities.concurrent_managed && driver.has("cuMemPrefetchAsync"))
    };
    if !able(device)? || !to.map_or(Ok(true), |to| able(driver.device(to)?))? {
        return Ok(false);
    }
    let _current = device.enter()?;
    // SAFETY: by this function's contract; the memory is managed.
    unsafe { driver.mem_prefetch(address, bytes, to, stream.raw) }?;
    Ok(true)
}
