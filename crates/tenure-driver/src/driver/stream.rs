//! Streams, events and host functions.

use super::{Driver, Result, call};
use crate::error::DriverError;
use crate::stream::{CaptureStatus, RawStream};
use crate::sys::*;

/// Codes "done" and "not yet" as a truth value.
fn done(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.code == CUDA_ERROR_NOT_READY => Ok(false),
        Err(error) => Err(error),
    }
}

impl Driver {
    /// Makes a stream in the current context. [`crate::Stream`] owns one and knows its device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream_create(&self, non_blocking: bool) -> Result<RawStream> {
        let flags = if non_blocking { CU_STREAM_NON_BLOCKING } else { CU_STREAM_DEFAULT };
        let mut stream = core::ptr::null_mut();
        // SAFETY: the driver writes one handle.
        unsafe { call!(self, cuStreamCreate(&mut stream, flags)) }?;
        // SAFETY: made just now; only `stream_destroy`, which is unsafe, ends it.
        Ok(unsafe { RawStream::from_raw(stream) })
    }

    /// Makes a stream in the current context with a priority (lower numbers go first; the driver clamps them).
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream_create_with_priority(&self, non_blocking: bool, priority: i32) -> Result<RawStream> {
        let flags = if non_blocking { CU_STREAM_NON_BLOCKING } else { CU_STREAM_DEFAULT };
        let mut stream = core::ptr::null_mut();
        // SAFETY: the driver writes one handle.
        unsafe { call!(self, cuStreamCreateWithPriority(&mut stream, flags, priority)) }?;
        // SAFETY: made just now; only `stream_destroy`, which is unsafe, ends it.
        Ok(unsafe { RawStream::from_raw(stream) })
    }

    /// Destroys a stream. Work that is queued on it still runs.
    ///
    /// # Safety
    ///
    /// The caller made the stream, and no call names it from now on.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn stream_destroy(&self, stream: RawStream) -> Result<()> {
        // SAFETY: live until here by `RawStream`'s promise.
        unsafe { call!(self, cuStreamDestroy(stream.as_raw())) }
    }

    /// Waits on the host for all work of a stream.
    ///
    /// # Errors
    /// What the driver says, faults of earlier work included.
    pub fn stream_synchronize(&self, stream: RawStream) -> Result<()> {
        // Otherwise the wait ends a capture that goes on in global mode, on whatever thread.
        let _relaxed = crate::RelaxedCapture::enter(self)?;
        // SAFETY: live by `RawStream`'s promise.
        unsafe { call!(self, cuStreamSynchronize(stream.as_raw())) }
    }

    /// Whether all work of a stream is done.
    ///
    /// # Errors
    /// What the driver says, faults of earlier work included.
    pub fn stream_query(&self, stream: RawStream) -> Result<bool> {
        // Otherwise the question ends a capture that goes on in global mode, on whatever thread.
        let _relaxed = crate::RelaxedCapture::enter(self)?;
        // SAFETY: live by `RawStream`'s promise.
        done(unsafe { call!(self, cuStreamQuery(stream.as_raw())) })
    }

    /// Makes later work of a stream wait for an event, on the device.
    ///
    /// # Safety
    ///
    /// The event exists. [`RawStream::wait_event`] is the safe form.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn stream_wait_event(&self, stream: RawStream, event: CUevent) -> Result<()> {
        // SAFETY: the stream is live by `RawStream`'s promise, the event by this function's contract.
        unsafe { call!(self, cuStreamWaitEvent(stream.as_raw(), event, CU_EVENT_WAIT_DEFAULT)) }
    }

    /// A number of the stream that no other stream of the process gets. Ends the capture of a capturing stream: ask
    /// [`stream_capture_status`](Self::stream_capture_status) first.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream_id(&self, stream: RawStream) -> Result<u64> {
        let mut id = 0;
        // SAFETY: the driver writes one integer; the stream is live by `RawStream`'s promise.
        unsafe { call!(self, cuStreamGetId(stream.as_raw(), &mut id)) }?;
        Ok(id)
    }

    /// The context of a stream; for the default streams, the current one.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream_context(&self, stream: RawStream) -> Result<CUcontext> {
        let mut context = core::ptr::null_mut();
        // SAFETY: the driver writes one handle; the stream is live by `RawStream`'s promise.
        unsafe { call!(self, cuStreamGetCtx(stream.as_raw(), &mut context)) }?;
        Ok(context)
    }

    /// Whether the stream does not synchronise with the legacy stream. Ends the capture of a capturing stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream_is_non_blocking(&self, stream: RawStream) -> Result<bool> {
        let mut flags = 0;
        // SAFETY: the driver writes one integer; the stream is live by `RawStream`'s promise.
        unsafe { call!(self, cuStreamGetFlags(stream.as_raw(), &mut flags)) }?;
        Ok(flags & CU_STREAM_NON_BLOCKING != 0)
    }

    /// Whether a stream is being captured. Harmless on every stream, at any time.
    ///
    /// # Errors
    /// What the driver says, but for code 906, which is [`CaptureStatus::Implicit`].
    #[inline]
    pub fn stream_capture_status(&self, stream: RawStream) -> Result<CaptureStatus> {
        let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the driver writes one integer; the stream is live by `RawStream`'s promise.
        match unsafe { call!(self, cuStreamIsCapturing(stream.as_raw(), &mut status)) } {
            Ok(()) => Ok(CaptureStatus::from_code(status)),
            Err(error) if error.code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Ok(CaptureStatus::Implicit),
            Err(error) => Err(error),
        }
    }

    /// Sets the capture mode of this thread; returns the one it had. [`crate::RelaxedCapture`] undoes it.
    ///
    /// # Errors
    /// What the driver says.
    #[inline]
    pub fn exchange_capture_mode(&self, mode: CUstreamCaptureMode) -> Result<CUstreamCaptureMode> {
        let mut mode = mode;
        // SAFETY: the driver reads and writes one integer.
        unsafe { call!(self, cuThreadExchangeStreamCaptureMode(&mut mode)) }?;
        Ok(mode)
    }

    /// Has the driver call `function(user)` on the host when all earlier work of the stream is done.
    ///
    /// # Safety
    ///
    /// `function` may be called with `user` once, from any thread, at any later time; it does not unwind and makes no
    /// driver call.
    ///
    /// # Errors
    /// What the driver says; the function is not called then.
    pub unsafe fn launch_host_function(
        &self,
        stream: RawStream,
        function: unsafe extern "C" fn(*mut c_void),
        user: *mut c_void,
    ) -> Result<()> {
        // SAFETY: the stream is live by `RawStream`'s promise, the rest is this function's contract.
        unsafe { call!(self, cuLaunchHostFunc(stream.as_raw(), Some(function), user)) }
    }

    /// Makes an event in the current context. [`crate::Event`] owns one.
    ///
    /// # Errors
    /// What the driver says.
    pub fn event_create(&self, flags: u32) -> Result<CUevent> {
        let mut event = core::ptr::null_mut();
        // SAFETY: the driver writes one handle.
        unsafe { call!(self, cuEventCreate(&mut event, flags)) }?;
        Ok(event)
    }

    /// Destroys an event. Waits that were queued for it stay in order.
    ///
    /// # Safety
    ///
    /// The caller made the event, and no call names it from now on.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn event_destroy(&self, event: CUevent) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuEventDestroy(event)) }
    }

    /// Marks the present end of a stream's work with an event.
    ///
    /// # Safety
    ///
    /// The event exists.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn event_record(&self, event: CUevent, stream: RawStream) -> Result<()> {
        // SAFETY: the stream is live by `RawStream`'s promise, the event by this function's contract.
        unsafe { call!(self, cuEventRecord(event, stream.as_raw())) }
    }

    /// Whether the work that an event marks is done; true for one that was never recorded.
    ///
    /// # Safety
    ///
    /// The event exists.
    ///
    /// # Errors
    /// What the driver says, faults of earlier work included.
    pub unsafe fn event_query(&self, event: CUevent) -> Result<bool> {
        // SAFETY: by this function's contract.
        done(unsafe { call!(self, cuEventQuery(event)) })
    }

    /// Waits on the host for the work that an event marks.
    ///
    /// # Safety
    ///
    /// The event exists.
    ///
    /// # Errors
    /// What the driver says, faults of earlier work included.
    pub unsafe fn event_synchronize(&self, event: CUevent) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuEventSynchronize(event)) }
    }

    /// Milliseconds between two events.
    ///
    /// # Safety
    ///
    /// Both events exist.
    ///
    /// # Errors
    /// Code 400 for events without timing or never recorded, 600 for unfinished ones.
    pub unsafe fn event_elapsed(&self, start: CUevent, end: CUevent) -> Result<f32> {
        let mut milliseconds = 0.0;
        // SAFETY: the driver writes one number; the events exist by this function's contract.
        unsafe { call!(self, cuEventElapsedTime(&mut milliseconds, start, end)) }?;
        Ok(milliseconds)
    }

    /// Marks the end of the work of all streams of a context with an event (drivers from CUDA 12.5). Ends captures.
    ///
    /// # Safety
    ///
    /// Context and event exist.
    ///
    /// # Errors
    /// [absent](DriverError::is_absent) on older drivers; what the driver says.
    pub unsafe fn context_record_event(
        &self,
        context: CUcontext,
        event: CUevent,
    ) -> core::result::Result<(), DriverError> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuCtxRecordEvent(context, event)) }
    }
}
