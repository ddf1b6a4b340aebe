//! Streams: the handle that a call carries, the stream that tenure owns, and what capture asks of both.

use core::ffi::c_void;
use core::marker::PhantomData;

use crate::device::Device;
use crate::driver::{CaptureInfo, Driver};
use crate::error::DriverError;
use crate::event::Event;
use crate::sys::*;

/// A stream of the driver, by its handle: what calls carry.
///
/// `Copy`, and says nothing about who destroys the stream. Comparing and hashing compare the handle's value, which the
/// driver gives to another stream once this one is destroyed, and which for the [default streams](Self::is_special)
/// means a different stream in each context (and, per-thread, on each thread).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct RawStream(CUstream);

// SAFETY: an opaque handle that only the driver follows; the driver may be called with it from any thread.
unsafe impl Send for RawStream {}
// SAFETY: as above.
unsafe impl Sync for RawStream {}

impl RawStream {
    /// The null handle: the legacy default stream.
    pub const NULL: RawStream = RawStream(CU_STREAM_NULL);
    /// The legacy default stream, by name.
    pub const LEGACY: RawStream = RawStream(CU_STREAM_LEGACY);
    /// The default stream of the calling thread.
    pub const PER_THREAD: RawStream = RawStream(CU_STREAM_PER_THREAD);

    /// A handle that came from elsewhere.
    ///
    /// # Safety
    ///
    /// The stream is a default stream, or is alive whenever this value or a copy of it is given to a driver call. A
    /// value that may be dead may still be kept, compared and hashed.
    #[must_use]
    pub const unsafe fn from_raw(stream: *mut c_void) -> Self {
        Self(stream)
    }

    /// The driver's handle.
    #[must_use]
    pub const fn as_raw(self) -> *mut c_void {
        self.0
    }

    /// The handle's value, as a key.
    #[must_use]
    pub fn addr(self) -> usize {
        self.0.addr()
    }

    /// Whether it is one of the default streams, which always exist and which the current context gives a meaning.
    #[must_use]
    pub fn is_special(self) -> bool {
        self.addr() <= 2
    }

    /// Whether it is the legacy default stream, by either of its names.
    #[must_use]
    pub fn is_legacy(self) -> bool {
        self.addr() <= 1
    }

    /// Whether it is the default stream of the calling thread.
    #[must_use]
    pub fn is_per_thread(self) -> bool {
        self.addr() == 2
    }

    /// Makes later work of this stream wait for `event`, on the device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait_event(self, event: &Event) -> Result<(), DriverError> {
        // SAFETY: a borrowed event exists.
        unsafe { event.driver().stream_wait_event(self, event.as_raw()) }
    }
}

impl core::fmt::Debug for RawStream {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.addr() {
            0 => f.write_str("RawStream(null)"),
            1 => f.write_str("RawStream(legacy)"),
            2 => f.write_str("RawStream(per thread)"),
            value => write!(f, "RawStream({value:#x})"),
        }
    }
}

/// Whether a stream is being captured into a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureStatus {
    /// Work runs.
    None,
    /// Work is recorded into a graph.
    Active,
    /// It was being captured until a call ended that; only the end of the capture makes the stream usable.
    Invalidated,
    /// The stream is the legacy one and a stream that synchronises with it is being captured (code 906): work on the
    /// legacy stream would end that capture.
    Implicit,
}

impl CaptureStatus {
    pub(crate) fn from_code(status: CUstreamCaptureStatus) -> Self {
        match status {
            CU_STREAM_CAPTURE_STATUS_NONE => Self::None,
            CU_STREAM_CAPTURE_STATUS_ACTIVE => Self::Active,
            // A state that this library does not know is treated as the one in which nothing may be done.
            _ => Self::Invalidated,
        }
    }

    /// Whether work on the stream runs as usual.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::None
    }
}

/// A stream that tenure made; destroyed on drop, without waiting for its work.
#[derive(Debug)]
pub struct Stream {
    device: &'static Device,
    raw: RawStream,
}

impl Stream {
    /// Makes a stream on `device`. A non-blocking one does not synchronise with the legacy default stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &'static Device, non_blocking: bool) -> Result<Self, DriverError> {
        let _current = device.enter()?;
        Ok(Self { device, raw: device.driver().stream_create(non_blocking)? })
    }

    /// The handle, to name the stream in calls.
    ///
    /// # Safety
    ///
    /// No copy of it is given to a driver call once this value is dropped (the promise of [`RawStream::from_raw`]).
    #[must_use]
    pub unsafe fn raw(&self) -> RawStream {
        self.raw
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// Waits on the host for all its work, without ending a capture elsewhere.
    ///
    /// # Errors
    /// What the driver says, faults of earlier work included.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.device.driver().stream_synchronize(self.raw)
    }

    /// Makes its later work wait for `event`, on the device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait_event(&self, event: &Event) -> Result<(), DriverError> {
        self.raw.wait_event(event)
    }

    /// Whether it is being captured, and into what.
    ///
    /// # Errors
    /// What the driver says.
    pub fn capture_info(&self) -> Result<CaptureInfo, DriverError> {
        self.device.driver().stream_capture_info(self.raw)
    }

    /// Hands the stream over: the caller destroys it.
    #[must_use = "without this value nobody destroys the stream"]
    pub fn into_raw(self) -> RawStream {
        core::mem::ManuallyDrop::new(self).raw
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by `new`, owned by this value alone. A failure (a device fault, the end of the process) leaves
        // the stream to the driver.
        let _ = unsafe { self.device.driver().stream_destroy(self.raw) };
    }
}

impl Driver {
    /// Makes a stream on the device with that ordinal, whatever is current; the caller destroys it
    /// ([`stream_destroy`](Driver::stream_destroy)). [`Stream`] is the owning form.
    ///
    /// # Errors
    /// Code 101 when there is no such device; what the driver says.
    pub fn stream_create_on(&'static self, ordinal: i32, non_blocking: bool) -> Result<RawStream, DriverError> {
        Stream::new(self.device(ordinal)?, non_blocking).map(Stream::into_raw)
    }

    /// The ordinal of the device that a stream belongs to. A default stream belongs to the device of the current
    /// context, and to device 0 on a thread that has none, as in the CUDA runtime. Harmless while capturing.
    ///
    /// # Errors
    /// What the driver says.
    pub fn device_of(&'static self, stream: RawStream) -> Result<i32, DriverError> {
        if stream.is_special() {
            return self.current_ordinal_or_first();
        }
        self.ordinal_of_context(self.stream_context(stream)?)
    }
}

/// While it lives, calls of this thread do not end captures of other streams
/// (`cuThreadExchangeStreamCaptureMode`, relaxed). About 25 ns for the pair.
///
/// Stays on its thread; guards end in the reverse order in which they were made.
#[derive(Debug)]
pub struct RelaxedCapture<'d> {
    driver: &'d Driver,
    before: CUstreamCaptureMode,
    on_this_thread: PhantomData<*mut ()>,
}

impl<'d> RelaxedCapture<'d> {
    /// Relaxes the mode of this thread until the guard is dropped.
    ///
    /// # Errors
    /// What the driver says.
    #[inline]
    pub fn enter(driver: &'d Driver) -> Result<Self, DriverError> {
        let before = driver.exchange_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED)?;
        Ok(Self { driver, before, on_this_thread: PhantomData })
    }
}

impl Drop for RelaxedCapture<'_> {
    #[inline]
    fn drop(&mut self) {
        // It fails when the process ends or is a forked child; then there is no mode either. Once more for a failure that
        // passes: the mode is the caller's thread's and must not stay changed.
        if self.driver.exchange_capture_mode(self.before).is_err() {
            let _ = self.driver.exchange_capture_mode(self.before);
        }
    }
}
