//! Work on streams: order, copies, waiting.
//!
//! A default stream is that of `default`, the device of the memory it is about, and not of whatever happens to be current on
//! the calling thread (`ownership.md`, rule 6). -1 stands for the current device, for calls that are about no memory.

use tenure_driver::sys::{CU_MEMORYTYPE_DEVICE, CUDA_ERROR_INVALID_VALUE};
use tenure_driver::{Current, Device, Event};

use crate::device;
use crate::error::{Error, Result};
use crate::resource::registry;
use crate::stream::StreamRef;
use crate::sync::{Lazy, Mutex};

fn device_of(stream: StreamRef<'_>, default: i32) -> Result<&'static Device> {
    let ordinal = match device::home_of(stream, default)? {
        Some(ordinal) => ordinal,
        None => device::current()?,
    };
    Ok(device::driver()?.device(ordinal)?)
}

/// The device of `stream`, current until the guard goes. An error once somebody has reset it: its streams are gone then.
fn enter(stream: StreamRef<'_>, default: i32) -> Result<(&'static Device, Current)> {
    let device = device_of(stream, default)?;
    device.refuse_dead()?;
    Ok((device, device.enter()?))
}

/// Most events kept for each device.
const EVENTS: usize = 64;

/// Events that nobody uses: making one and ending it costs more than recording it and waiting for it. An event may be
/// recorded again as soon as the wait for it is enqueued.
static SPARE_EVENTS: Lazy<Vec<Mutex<Vec<Event>>>> =
    Lazy::new(|| (0..crate::current::MAX_DEVICES).map(|_| Mutex::new(Vec::new())).collect());

/// Makes later work of `stream` wait for the work enqueued on `other` so far. Both are live; a default stream is that of
/// `default`. The host does not wait.
///
/// # Errors
/// What the driver says.
pub fn order_after(stream: StreamRef<'_>, other: StreamRef<'_>, default: i32) -> Result<()> {
    let (waiter, recorder) = (device_of(stream, default)?, device_of(other, default)?);
    if stream.raw == other.raw && waiter.ordinal() == recorder.ordinal() {
        return Ok(());
    }
    recorder.refuse_dead()?;
    if waiter.ordinal() != recorder.ordinal() {
        waiter.refuse_dead()?;
    }
    let shelf = SPARE_EVENTS.get(recorder.ordinal() as usize);
    // In a statement of its own: no driver call is made, and no event ended, under the lock.
    let spare = shelf.and_then(|shelf| shelf.lock().pop());
    // Events belong to the context of the stream that records them; any stream may wait for them.
    let event = match spare {
        Some(event) => event,
        None => Event::new(recorder)?,
    };
    let ordered = event.record(other.raw).and_then(|()| {
        let _current = waiter.enter()?;
        stream.raw.wait_event(&event)
    });
    if let Some(shelf) = shelf {
        let mut shelf = shelf.lock();
        if shelf.len() < EVENTS {
            shelf.push(event);
        }
    }
    Ok(ordered?)
}

/// [`order_after`], unless one of the two is capturing: that would end its capture, or make the other a part of it. Says
/// whether the order stands.
///
/// # Errors
/// What the driver says.
pub fn order_unless_capturing(stream: StreamRef<'_>, other: StreamRef<'_>, default: i32) -> Result<bool> {
    for asked in [stream, other] {
        if device::is_capturing(asked, device_of(asked, default)?)? {
            return Ok(false);
        }
    }
    order_after(stream, other, default).map(|()| true)
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
    let (device, _current) = enter(stream, default)?;
    // SAFETY: by this function's contract.
    match unsafe { device.driver().copy_async(to, from, bytes, stream.raw) } {
        Err(error) if error.code == CUDA_ERROR_INVALID_VALUE => {
            let Some((to_device, from_device)) = devices_of(to, from)? else { return Err(error.into()) };
            // Memory of pools and of mapped ranges is accessible to its own device alone; then the driver wants to be told
            // whose each side is.
            let (to_context, from_context) = (to_device.context()?, from_device.context()?);
            // SAFETY: by this function's contract; primary contexts are never given back.
            Ok(unsafe { device.driver().copy_peer_async((to, to_context), (from, from_context), bytes, stream.raw) }?)
        }
        other => Ok(other?),
    }
}

/// The device whose memory an address is; `None` for managed memory, memory of the host and what the driver does not know.
///
/// # Errors
/// What the driver says.
pub fn owner_device(address: u64) -> Result<Option<i32>> {
    Ok(device::driver()?
        .pointer_info(address)?
        .filter(|info| info.memory_type == CU_MEMORYTYPE_DEVICE && !info.managed)
        .map(|info| info.device))
}

/// The devices of two addresses, if they are memory of two different devices.
fn devices_of(to: u64, from: u64) -> Result<Option<(&'static Device, &'static Device)>> {
    let driver = device::driver()?;
    match (owner_device(to)?, owner_device(from)?) {
        (Some(to), Some(from)) if to != from => Ok(Some((driver.device(to)?, driver.device(from)?))),
        _ => Ok(None),
    }
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
    let (device, _current) = enter(stream, default)?;
    // SAFETY: by this function's contract.
    Ok(unsafe { device.driver().fill_async(to, value, bytes, stream.raw) }?)
}

/// Waits until the work enqueued on `stream` so far is done.
///
/// # Errors
/// What the driver says, faults of that work included.
pub fn synchronize(stream: StreamRef<'_>, default: i32) -> Result<()> {
    let (device, _current) = enter(stream, default)?;
    refuse_waiting_for_capture(stream, device)?;
    Ok(device.driver().stream_synchronize(stream.raw)?)
}

/// Tells every pool that the host has waited for `stream`: what was freed on it before may be anybody's now. Nothing is
/// believed: each asks the driver whether the stream is idle.
///
/// # Errors
/// What the driver says.
pub fn note_sync(stream: StreamRef<'_>) -> Result<()> {
    device::alive()?;
    registry::tell_each(|resource| resource.stream_synchronized(stream, true))
}

/// [`note_sync`] after a wait of tenure's own, which has happened whatever comes of this.
pub fn noted(stream: StreamRef<'_>) {
    if let Err(error) = registry::tell_each(|resource| resource.stream_synchronized(stream, false)) {
        log::debug!("tenure: after a wait for a stream: {error}");
    }
}

/// [`noted`] after a wait for a whole device: of every stream that can be asked.
pub fn noted_device(device: i32) {
    if let Err(error) = registry::tell_each(|resource| resource.device_synchronized(device)) {
        log::debug!("tenure: after a wait for device {device}: {error}");
    }
}

/// Tells every pool that `stream` waits for the work of `other`: what was freed on `other` before is then as good as freed on
/// `stream`. Nothing is believed: a pool that holds such memory inserts a wait of its own.
///
/// # Errors
/// What the driver says.
pub fn note_wait(stream: StreamRef<'_>, other: StreamRef<'_>) -> Result<()> {
    device::alive()?;
    registry::tell_each(|resource| resource.stream_waits(stream, other, true))
}

/// [`note_wait`] after a wait of tenure's own, which stands whatever comes of this.
pub fn noted_wait(stream: StreamRef<'_>, other: StreamRef<'_>) {
    if let Err(error) = registry::tell_each(|resource| resource.stream_waits(stream, other, false)) {
        log::debug!("tenure: after a wait between streams: {error}");
    }
}

/// True when all work enqueued on `stream` so far is done.
///
/// # Errors
/// What the driver says, faults of that work included.
pub fn is_idle(stream: StreamRef<'_>, default: i32) -> Result<bool> {
    let (device, _current) = enter(stream, default)?;
    refuse_waiting_for_capture(stream, device)?;
    Ok(device.driver().stream_query(stream.raw)?)
}

/// Work that is being captured does not run: whoever waits for it ends the capture.
fn refuse_waiting_for_capture(stream: StreamRef<'_>, device: &Device) -> Result<()> {
    if device::is_capturing(stream, device)? {
        return Err(Error::Unsupported(
            "the stream is capturing, or, of the legacy stream, one that synchronises with it: to wait for it would end the \
             capture; end it first, and wait for the launch of its graph"
                .into(),
        ));
    }
    Ok(())
}

/// Waits until all work of a device (-1: of the current one) is done, also of streams that nobody can name any more.
///
/// # Errors
/// What the driver says.
pub fn wait_device(device: i32) -> Result<()> {
    device::prove(if device < 0 { device::current()? } else { device })
}
