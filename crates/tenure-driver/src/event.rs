//! Events: marks in the work of a stream.

use crate::device::Device;
use crate::driver::Driver;
use crate::error::DriverError;
use crate::stream::{RawStream, RelaxedCapture};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sys::*;

/// How many events this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A mark in the work of a stream, owned; destroyed on drop. Waits that are queued for it stay in order.
#[derive(Debug)]
pub struct Event {
    device: &'static Device,
    raw: CUevent,
    number: u64,
}

// SAFETY: an opaque handle that only the driver follows; the driver may be called with it from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver serialises calls on one event.
unsafe impl Sync for Event {}

impl Event {
    /// Makes an event on `device`, without timing (cheaper to record and to wait for).
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &'static Device) -> Result<Self, DriverError> {
        Self::with_flags(device, CU_EVENT_DISABLE_TIMING)
    }

    /// Makes an event that can be used with [`elapsed_ms`](Self::elapsed_ms).
    ///
    /// # Errors
    /// What the driver says.
    pub fn with_timing(device: &'static Device) -> Result<Self, DriverError> {
        Self::with_flags(device, CU_EVENT_DEFAULT)
    }

    fn with_flags(device: &'static Device, flags: u32) -> Result<Self, DriverError> {
        let _current = device.enter()?;
        let raw = device.driver().event_create(flags)?;
        Ok(Self { device, raw, number: MADE.fetch_add(1, Ordering::Relaxed) + 1 })
    }

    /// The driver's handle; alive as long as this value is.
    #[must_use]
    pub fn as_raw(&self) -> CUevent {
        self.raw
    }

    /// A number that no other event of the process has or had.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &'static Device {
        self.device
    }

    pub(crate) fn driver(&self) -> &'static Driver {
        self.device.driver()
    }

    /// Marks the present end of the work of `stream`, which is of the same device.
    ///
    /// On a capturing stream this makes the event part of the capture; ask
    /// [`Driver::stream_capture_status`] before and after.
    ///
    /// # Errors
    /// What the driver says.
    pub fn record(&self, stream: RawStream) -> Result<(), DriverError> {
        if stream.is_special() {
            // The default streams are those of the current context.
            let _current = self.device.enter()?;
            // SAFETY: this value's event exists.
            return unsafe { self.driver().event_record(self.raw, stream) };
        }
        // SAFETY: this value's event exists.
        unsafe { self.driver().event_record(self.raw, stream) }
    }

    /// Whether the marked work is done; true when nothing was ever marked. Does not end a capture.
    ///
    /// # Errors
    /// What the driver says, faults of earlier work included.
    pub fn query(&self) -> Result<bool, DriverError> {
        let _relaxed = RelaxedCapture::enter(self.driver())?;
        // SAFETY: this value's event exists.
        unsafe { self.driver().event_query(self.raw) }
    }

    /// Waits on the host for the marked work. Does not end a capture.
    ///
    /// # Errors
    /// What the driver says, faults of earlier work included.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        let _relaxed = RelaxedCapture::enter(self.driver())?;
        // SAFETY: this value's event exists.
        unsafe { self.driver().event_synchronize(self.raw) }
    }

    /// Milliseconds from this event to `end`, both made with timing.
    ///
    /// # Errors
    /// Code 400 without timing or a mark, 600 while the work is not done.
    pub fn elapsed_ms(&self, end: &Event) -> Result<f32, DriverError> {
        // SAFETY: both events exist.
        unsafe { self.driver().event_elapsed(self.raw, end.raw) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by this type, owned by this value alone. A failure leaves the event to the driver.
        let _ = unsafe { self.driver().event_destroy(self.raw) };
    }
}
