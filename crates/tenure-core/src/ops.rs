//! Work on streams: order, copies, waiting.
//!
//! A default stream is that of `device`, the device of the memory it is about, and not of whatever happens to be current on
//! the calling thread (`ownership.md`, rule 6).

use tenure_driver::{Device, Event};

use crate::device;
use crate::error::Result;
use crate::stream::StreamRef;

fn device_of(stream: StreamRef<'_>, default: i32) -> Result<&'static Device> {
    let ordinal = match device::home_of(stream, default)? {
        Some(ordinal) => ordinal,
        None => device::current()?,
    };
    Ok(device::driver()?.device(ordinal)?)
}

/// Makes later work of `stream` wait for the work enqueued on `other` so far. Both are live; a default stream is that of
/// `default`. The host does not wait.
///
/// # Errors
/// What the driver says.
pub fn order_after(stream: StreamRef<'_>, other: StreamRef<'_>, default: i32) -> Result<()> {
    if stream.raw == other.raw && device_of(stream, default)?.ordinal() == device_of(other, default)?.ordinal() {
        return Ok(());
    }
    // Events belong to the context of the stream that records them; any stream may wait for them.
    let event = Event::new(device_of(other, default)?)?;
    event.record(other.raw)?;
    let waiter = device_of(stream, default)?;
    let _current = waiter.enter()?;
    Ok(stream.raw.wait_event(&event)?)
}

/// Copies `bytes` bytes between any two kinds of memory, in the order of `stream`.
///
/// # Errors
/// What the driver says.
///
/// # Safety
/// Both ranges are memory that the driver knows or that the host owns, alive until the copy is done.
pub unsafe fn copy_async(to: u64, from: u64, bytes: usize, stream: StreamRef<'_>, default: i32) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let device = device_of(stream, default)?;
    let _current = device.enter()?;
    // SAFETY: by this function's contract.
    Ok(unsafe { device.driver().copy_async(to, from, bytes, stream.raw) }?)
}

/// Sets `bytes` bytes to `value`, in the order of `stream`.
///
/// # Errors
/// What the driver says.
///
/// # Safety
/// The range is memory that the driver knows, alive until the work is done.
pub unsafe fn fill_async(to: u64, value: u8, bytes: usize, stream: StreamRef<'_>, default: i32) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let device = device_of(stream, default)?;
    let _current = device.enter()?;
    // SAFETY: by this function's contract.
    Ok(unsafe { device.driver().fill_async(to, value, bytes, stream.raw) }?)
}

/// Waits until the work enqueued on `stream` so far is done.
///
/// # Errors
/// What the driver says, faults of that work included.
pub fn synchronize(stream: StreamRef<'_>, default: i32) -> Result<()> {
    let device = device_of(stream, default)?;
    let _current = device.enter()?;
    Ok(device.driver().stream_synchronize(stream.raw)?)
}

/// True when all work enqueued on `stream` so far is done.
///
/// # Errors
/// What the driver says, faults of that work included.
pub fn is_idle(stream: StreamRef<'_>, default: i32) -> Result<bool> {
    let device = device_of(stream, default)?;
    let _current = device.enter()?;
    Ok(device.driver().stream_query(stream.raw)?)
}

/// Waits until all work of a device (-1: of the current one) is done, also of streams that nobody can name any more.
///
/// # Errors
/// What the driver says.
pub fn wait_device(device: i32) -> Result<()> {
    device::prove(if device < 0 { device::current()? } else { device })
}
