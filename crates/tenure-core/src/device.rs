//! The device layer as the engine uses it: the process's driver, whose turn it is on which device, and waiting.
//!
//! ```text
//!  home_of / home_or_current    which device does this stream belong to?     (a question, harmless under capture)
//!  refuse_capturing                 is it capturing?                             (a question, harmless under capture)
//!  on(device, ...)                  the device is current, the thread's capture mode relaxed, both restored after
//!  wait_stream_on, prove            nothing queued on the stream / the device uses the memory any more
//! ```
//!
//! # Captures
//! A call of ours never ends a capture of somebody else (`pool.md`, section 4). The first driver call on a stream that a
//! caller carries asks whether it is capturing; what is not a question runs inside [`on`], under the relaxed capture
//! mode. `cuCtxSynchronize`, which ends captures even there, is used only where nothing else is left ([`prove_at_last`]):
//! [`prove`] waits for a device by the free of a small plain block, which the driver makes wait for everything on it.

use tenure_driver::process::{self, Unusable};
use tenure_driver::{CaptureStatus, Current, Device, Driver, Event, LoadError, RawStream, RelaxedCapture};

use crate::error::{Error, OutOfMemory, Result};
use crate::resource::{Info, MemoryResource, Request};
use crate::stream::StreamRef;
use crate::sync::OnceCell;

/// Whether memory may be made and used in this process at all.
///
/// # Errors
/// [`Error::Forked`], [`Error::Exiting`].
pub fn alive() -> Result<()> {
    match process::check() {
        Ok(()) => Ok(()),
        Err(Unusable::Forked) => Err(Error::Forked),
        Err(Unusable::Exiting) => Err(Error::Exiting),
    }
}

/// The driver of the process, loaded and initialised at the first call.
///
/// # Errors
/// [`Error::NoDevice`] with the cause and the way out; [`Error::Forked`], [`Error::Exiting`].
pub fn driver() -> Result<&'static Driver> {
    Driver::get().map_err(|e| match e {
        LoadError::Forked => Error::Forked,
        LoadError::Exiting => Error::Exiting,
        other => Error::NoDevice(other.to_string()),
    })
}

/// Number of devices.
///
/// # Errors
/// What the driver says.
pub fn count() -> Result<i32> {
    Ok(driver()?.device_count()?)
}

/// The device that is current on this thread; device 0 where none is.
///
/// # Errors
/// What the driver says.
pub fn current() -> Result<i32> {
    Ok(driver()?.current_ordinal_or_first()?)
}

/// Gives the ordinal back if such a device is there.
///
/// # Errors
/// [`Error::Invalid`] naming the devices there are.
pub fn check(ordinal: i32) -> Result<i32> {
    let count = count()?;
    if (0..count).contains(&ordinal) {
        return Ok(ordinal);
    }
    Err(Error::invalid(match count {
        0 => format!("there is no device {ordinal}: this process sees no device at all"),
        1 => format!("there is no device {ordinal}: this process sees device 0 only"),
        n => format!("there is no device {ordinal}: this process sees devices 0 to {}", n - 1),
    }))
}

/// Free and total bytes of a device, as the driver says.
///
/// # Errors
/// What the driver says.
pub fn memory_info(device: i32) -> Result<(u64, u64)> {
    on(device, || {
        let info = driver()?.mem_info()?;
        Ok((info.free as u64, info.total as u64))
    })
}

/// Runs `f` with `device` current and the thread's capture mode relaxed; both are as before afterwards.
///
/// # Errors
/// Those of `f`; what the driver says when the device cannot be made current, and code 709 when somebody has reset it
/// since its first use: then `f` did not run.
pub fn on<R>(device: i32, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let driver = driver()?;
    let device = driver.device(device)?;
    device.refuse_dead()?;
    let _current = device.enter()?;
    let _relaxed = RelaxedCapture::enter(driver)?;
    f()
}

/// Makes `device` current, until the guard goes, for a call of a resource that has no device of its own and would take memory
/// of the one that is current. A resource with one needs nothing.
///
/// # Errors
/// What the driver says.
pub(crate) fn current_for(resource: &dyn MemoryResource, device: i32) -> Result<Option<Current>> {
    match resource.device() {
        Some(own) if own >= 0 => Ok(None),
        _ => Ok(Some(driver()?.device(device)?.enter()?)),
    }
}

/// [`on`] for a request that names `stream`, which belongs to `device` and must not be capturing: each question is asked
/// once.
///
/// # Errors
/// Those of [`on`], and of [`refuse_capturing`]: then `f` did not run.
pub fn on_stream<R>(stream: StreamRef<'_>, device: i32, kind: &str, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let driver = driver()?;
    let device = driver.device(device)?;
    device.refuse_dead()?;
    let _current = device.enter()?;
    if stream.is_live() && driver.stream_capture_status(stream.raw)? != CaptureStatus::None {
        return Err(capturing_error(kind));
    }
    let _relaxed = RelaxedCapture::enter(driver)?;
    f()
}

/// The device that a stream belongs to, where `default` is the device whose default streams are meant. `None` for a
/// stored raw value, which nobody may ask.
///
/// # Errors
/// What the driver says of the handle.
pub fn home_of(stream: StreamRef<'_>, default: i32) -> Result<Option<i32>> {
    if stream.object.is_none() && stream.raw.is_special() {
        return Ok((default >= 0).then_some(default));
    }
    stream.device()
}

/// The device that a call means by its stream, for an allocation, say: the stream's own; the current one for default
/// streams and for a value that nobody may ask.
///
/// # Errors
/// What the driver says.
pub fn home_or_current(stream: StreamRef<'_>) -> Result<i32> {
    if stream.object.is_none() && stream.raw.is_special() {
        return current();
    }
    match stream.device()? {
        Some(device) => Ok(device),
        None => current(),
    }
}

/// Refuses a stream that is capturing, in the name of a resource of this `kind` on `device`. A stored raw value is let
/// pass unasked.
///
/// # Errors
/// [`Error::Unsupported`] with the word "capturing"; what the driver says of the handle.
pub fn refuse_capturing(stream: StreamRef<'_>, device: i32, kind: &str) -> Result<()> {
    if !stream.is_live() {
        return Ok(());
    }
    if is_capturing(stream, driver()?.device(device)?)? {
        return Err(capturing_error(kind));
    }
    Ok(())
}

/// Whether a live stream is capturing, or, of the legacy stream, a stream that synchronises with it. A capture that was
/// invalidated goes on until somebody ends it. A default stream is that of `device`; any other says by itself whose it is.
///
/// # Errors
/// What the driver says of the handle.
pub(crate) fn is_capturing(stream: StreamRef<'_>, device: &Device) -> Result<bool> {
    let _current = if stream.raw.is_special() {
        device.refuse_dead()?;
        Some(device.enter()?)
    } else {
        None
    };
    Ok(device.driver().stream_capture_status(stream.raw)? != CaptureStatus::None)
}

/// The capture that a live stream takes part in: its number, or 0 where it cannot be told (the capture is invalid, or is
/// that of a stream that synchronises with the legacy one). `None` when there is none, or nobody may ask.
///
/// # Errors
/// What the driver says of the handle.
pub(crate) fn capture_of(stream: StreamRef<'_>, default: i32) -> Result<Option<u64>> {
    if !stream.is_live() {
        return Ok(None);
    }
    let driver = driver()?;
    let _current = match stream.raw.is_special() && default >= 0 {
        true => Some(driver.device(default)?.enter()?),
        false => None,
    };
    let info = driver.stream_capture_info(stream.raw)?;
    Ok((info.status != CaptureStatus::None).then_some(info.id))
}

fn capturing_error(kind: &str) -> Error {
    Error::Unsupported(format!(
        "the stream is capturing, and memory of a {kind} resource is neither made nor freed inside a graph: do so \
         before or after the capture, or use a pool"
    ))
}

/// Waits for everything queued on a live stream of `device`.
///
/// # Errors
/// What the driver says, which may be the fault of earlier work.
pub fn wait_stream_on(stream: StreamRef<'_>, device: i32) -> Result<()> {
    on(device, || Ok(driver()?.stream_synchronize(stream.raw)?))
}

/// Waits for everything that a stream of `device` may have queued: for the stream if it is live, else for the device.
///
/// # Errors
/// A capturing stream; what the driver says.
pub fn wait_stream_ref(stream: StreamRef<'_>, device: i32) -> Result<()> {
    match home_of(stream, device)? {
        Some(home) => {
            refuse_capturing(stream, home, "waited-for")?;
            wait_stream_on(stream, home)
        }
        None => prove(device),
    }
}

/// Takes the small block now whose free will be a proof later, so that [`prove`] works when the device is full.
///
/// # Errors
/// What the driver says.
pub fn prepare_proof(device: i32) -> Result<()> {
    Ok(driver()?.device(check(device)?)?.prepare_wait()?)
}

/// Waits until everything that was queued on `device` before this call has run, on whatever stream, also on streams
/// that have been destroyed meanwhile. Ends no capture; other threads' event records wait meanwhile. Threads that ask
/// while one proof runs share the next ([`Device::wait_for_all_work`]).
///
/// # Errors
/// What the driver says; nothing is proven then, and nothing is lost. Out of memory only where [`prepare_proof`] was
/// not called and 256 bytes are not to be had.
pub fn prove(device: i32) -> Result<()> {
    Ok(driver()?.device(check(device)?)?.wait_for_all_work()?)
}

/// [`prove`] for those who cannot come back later. A failure that passes is tried once more; where the device has not even
/// the 256 bytes for a proof, it is waited for in the way that ends captures, which is better than memory that goes while it
/// is in use.
///
/// # Errors
/// What the driver says: then nothing is proven.
pub fn prove_at_last(device: i32) -> Result<()> {
    let is_lost = |e: &Error| matches!(e, Error::Device(e) if e.is_sticky() || e.is_context_gone());
    for _ in 0..2 {
        match prove(device) {
            Err(e) if !is_lost(&e) => {}
            settled => return settled,
        }
    }
    Ok(driver()?.device(check(device)?)?.synchronize()?)
}

/// For frees: a device that is lost for good has nothing left to wait for.
///
/// # Errors
/// Every other failure, as it was.
pub fn settled(waited: Result<()>) -> Result<()> {
    match waited {
        Err(Error::Device(e)) if e.is_sticky() || e.is_context_gone() => Ok(()),
        other => other,
    }
}

/// An out-of-memory error with what is known: the request, the figures of the resource, and, for a `device` that is not
/// -1, its free and total bytes.
pub fn out_of_memory(request: &Request, kind: &str, info: &Info, device: i32) -> Error {
    let (driver_free, driver_total) = if device < 0 { (0, 0) } else { memory_info(device).unwrap_or_default() };
    Error::OutOfMemory(Box::new(OutOfMemory {
        requested: request.bytes as u64,
        live: info.live_bytes,
        reserved: info.reserved_bytes,
        limit: 0,
        largest_free: info.largest_free_bytes,
        driver_free,
        driver_total,
        resource: kind.to_owned(),
        cached: info.cached_bytes,
        unproven: info.unproven_bytes,
        ..OutOfMemory::default()
    }))
}

/// Fails where the device has no pools of the driver.
///
/// # Errors
/// [`Error::Unsupported`] naming what to use instead.
pub fn require_pools(device: i32, kind: &str) -> Result<()> {
    if driver()?.device(device)?.properties()?.capabilities.pools {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "device {device} has no memory pools of the driver, which a {kind} resource needs: use tenure's pool"
    )))
}

/// Whether the devices read and write pageable host memory. False where there is no device. Asked once, of all
/// devices: host memory does not know which of them will use it.
pub fn reads_pageable_memory() -> bool {
    static ANSWER: OnceCell<bool> = OnceCell::new();
    let ask = || -> Result<bool> {
        let driver = driver()?;
        let count = driver.device_count()?;
        for device in 0..count {
            if !driver.device(device)?.properties()?.capabilities.pageable_access {
                return Ok(false);
            }
        }
        Ok(count > 0)
    };
    // A question that failed is asked again.
    ANSWER.get_or_try_init(ask).copied().unwrap_or(false)
}

/// Allocates on the thread's default stream and waits for it: what
/// [`MemoryResource::allocate_sync`] does where a resource has nothing better.
///
/// # Errors
/// Those of the allocation and of the wait; the block is given back then.
pub fn allocate_then_wait<R: MemoryResource + ?Sized>(resource: &R, request: &Request) -> Result<u64> {
    let stream = StreamRef::raw(RawStream::PER_THREAD);
    let ptr = resource.allocate(request, stream)?;
    let waited = match resource.device().filter(|device| *device >= 0).map_or_else(current, Ok) {
        Ok(device) => {
            // What the memory is ordered after may be implicit, and implicit order comes with work only: a stream that has
            // had none since is done at once. So something to wait for is put there.
            let marked = on(device, || Ok(Event::new(driver()?.device(device)?)?.record(stream.raw)?));
            marked.and_then(|()| wait_stream_on(stream, device))
        }
        // Host memory where no device is: nothing to wait for.
        Err(Error::NoDevice(_)) => Ok(()),
        Err(e) => Err(e),
    };
    if let Err(e) = waited {
        if let Err(lost) = resource.deallocate(ptr, request, stream) {
            log::error!("tenure: a block of {} bytes at {ptr:#x} is lost: {lost}", request.bytes);
        }
        return Err(e);
    }
    Ok(ptr)
}

/// Frees on the thread's default stream what nothing uses any more: what
/// [`MemoryResource::deallocate_sync`] does where a resource has nothing better.
///
/// # Errors
/// Those of the free.
pub fn deallocate_waited<R: MemoryResource + ?Sized>(resource: &R, ptr: u64, request: &Request) -> Result<()> {
    resource.deallocate(ptr, request, StreamRef::raw(RawStream::PER_THREAD))
}
