//! Streams: in whose order memory is used and freed.
//!
//! ```text
//!   Stream            an object: tenure's own, or somebody else's with its owner held; or a default stream
//!     |  &stream
//!     v
//!   StreamRef<'a>     what a call carries; also a raw value that is alive for 'a
//! ```
//!
//! A buffer keeps the object of its home stream alive. A raw value is another matter: nobody can tell when it dies, so the
//! library names it in driver calls only during the call that carries it ([`StreamRef::from_raw`]).
//!
//! Unsafe in this file: calls through the table, and the promises of whoever brings a raw value.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

use tenure_abi::*;

use crate::device::Device;
use crate::error::{Result, check};
use crate::{api, load, owner};

/// A stream that lives while something names it, or a default stream.
///
/// Cloning gives another reference to the same stream. Dropping the last reference, those that buffers hold included,
/// ends the stream: one of tenure's own is destroyed, the owner of a wrapped one is dropped.
///
/// # Examples
/// ```
/// use tenure::{DeviceBuffer, Stream};
///
/// let stream = Stream::create()?;
/// let buffer = DeviceBuffer::new(1 << 20, &stream)?;
/// drop(stream); // the buffer keeps it: it will be freed in its order
/// drop(buffer);
/// # Ok::<(), tenure::Error>(())
/// ```
pub struct Stream {
    pub(crate) raw: tenure_stream,
}

// SAFETY: the value is only handed to the library, whose functions may be called on any thread.
unsafe impl Send for Stream {}
// SAFETY: as above; nothing is changed through a shared reference on this side.
unsafe impl Sync for Stream {}

/// The legacy default stream as the driver writes it.
const LEGACY: *mut c_void = std::ptr::without_provenance_mut(1);
/// The per-thread default stream as the driver writes it.
const PER_THREAD: *mut c_void = std::ptr::without_provenance_mut(2);

impl Stream {
    /// A new stream on the current device, which does not synchronise with the legacy default stream.
    ///
    /// # Errors
    /// What the driver says; [`Error::Load`](crate::Error::Load) without a library.
    pub fn create() -> Result<Self> {
        Self::make(-1, true)
    }

    /// A new stream on `device`. A stream that is not `non_blocking` waits for the legacy default stream and is waited for
    /// by it.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_on(device: &Device, non_blocking: bool) -> Result<Self> {
        Self::make(device.ordinal(), non_blocking)
    }

    fn make(device: i32, non_blocking: bool) -> Result<Self> {
        let api = api()?;
        let mut raw = tenure_stream { raw: std::ptr::null_mut(), object: 0 };
        // SAFETY: the pointer is valid for writing.
        check(api, unsafe { (api.stream_create)(device, u32::from(non_blocking), &mut raw) })?;
        Ok(Self { raw })
    }

    /// The legacy default stream (of whichever device is current at each use).
    pub const fn legacy_default() -> Self {
        Self { raw: tenure_stream { raw: LEGACY, object: 0 } }
    }

    /// The default stream of the calling thread (of whichever device is current at each use).
    pub const fn per_thread_default() -> Self {
        Self { raw: tenure_stream { raw: PER_THREAD, object: 0 } }
    }

    /// Somebody else's stream (`cudaStream_t`, `CUstream`), kept alive by `owner`, which is dropped when nothing names the
    /// stream any more, on any thread. `device` `None`: the driver is asked.
    ///
    /// # Safety
    /// `raw` must be a stream of `device`, and must stay one until `owner` is dropped.
    ///
    /// # Errors
    /// What the driver says of the value; `owner` is dropped then.
    pub unsafe fn wrap<T: Any + Send>(raw: *mut c_void, device: Option<&Device>, owner: T) -> Result<Self> {
        let api = api()?;
        let owner = owner::keep(owner);
        let mut out = tenure_stream { raw: std::ptr::null_mut(), object: 0 };
        // SAFETY: the caller promises the stream; the pointer is valid for writing.
        let status = unsafe { (api.stream_wrap)(raw, device.map_or(-1, Device::ordinal), owner, &mut out) };
        // SAFETY: kept for this call, of this type.
        unsafe { owner::settle::<T>(api, status, owner)? };
        Ok(Self { raw: out })
    }

    /// Somebody else's stream that its library never destroys.
    ///
    /// # Safety
    /// `raw` must be a stream of `device`, and must stay one until the process ends.
    ///
    /// # Errors
    /// What the driver says of the value.
    pub unsafe fn immortal(raw: *mut c_void, device: Option<&Device>) -> Result<Self> {
        let api = api()?;
        let mut out = tenure_stream { raw: std::ptr::null_mut(), object: 0 };
        // SAFETY: the caller promises the stream; the pointer is valid for writing.
        check(api, unsafe { (api.stream_immortal)(raw, device.map_or(-1, Device::ordinal), &mut out) })?;
        Ok(Self { raw: out })
    }

    /// Takes over a stream of the C ABI. The counterpart of [`into_handle`](Self::into_handle), for crossing a language border.
    ///
    /// # Safety
    /// `stream.object` must be a reference that the caller owns, which is given back when the result is dropped; or 0, and
    /// then `stream.raw` a default stream.
    pub const unsafe fn from_handle(stream: tenure_stream) -> Self {
        Self { raw: stream }
    }

    /// Gives the stream of the C ABI out; whoever receives it gives `object`, where it is not 0, back with
    /// `tenure_stream_release`.
    pub fn into_handle(self) -> tenure_stream {
        std::mem::ManuallyDrop::new(self).raw
    }

    /// As an argument. Functions that take a stream take a `&Stream` as well.
    pub fn as_ref(&self) -> StreamRef<'_> {
        StreamRef { raw: self.raw, life: PhantomData }
    }

    /// The driver's value (`cudaStream_t`, `CUstream`), for kernel launches. Alive while this reference, or a buffer on it,
    /// is.
    pub fn raw(&self) -> *mut c_void {
        self.raw.raw
    }

    /// Waits until the work enqueued so far is done.
    ///
    /// # Errors
    /// A fault of the device, which is then the fault of some earlier work.
    pub fn synchronize(&self) -> Result<()> {
        self.as_ref().synchronize()
    }

    /// As [`StreamRef::note_sync`].
    ///
    /// # Errors
    /// As there.
    pub fn note_sync(&self) -> Result<()> {
        self.as_ref().note_sync()
    }

    /// As [`StreamRef::note_wait`].
    ///
    /// # Errors
    /// As there.
    pub fn note_wait<'a>(&self, other: impl Into<StreamRef<'a>>) -> Result<()> {
        self.as_ref().note_wait(other)
    }

    /// True when all work enqueued so far is done.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize).
    pub fn is_done(&self) -> Result<bool> {
        self.as_ref().is_done()
    }

    /// Makes later work of this stream wait for the work enqueued on `other` so far. The host does not wait.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait<'a>(&self, other: impl Into<StreamRef<'a>>) -> Result<()> {
        self.as_ref().wait(other)
    }

    /// The device of the stream; of a default stream, the current one.
    ///
    /// # Errors
    /// What the driver says.
    pub fn device(&self) -> Result<Device> {
        self.as_ref().device()
    }
}

impl Clone for Stream {
    fn clone(&self) -> Self {
        let mut raw = self.raw;
        if raw.object != 0
            && let Some(api) = load::loaded()
        {
            // SAFETY: this reference keeps the object alive during the call.
            if unsafe { (api.stream_retain)(raw.object) } != TENURE_OK {
                // In a forked child there is nothing to keep; a default stream is what every call can refuse.
                raw = Self::legacy_default().raw;
            }
        }
        Self { raw }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.raw.object != 0
            && let Some(api) = load::loaded()
        {
            // SAFETY: this reference is given back once. A failure (a forked child) leaves the stream to the driver.
            unsafe { (api.stream_release)(self.raw.object) };
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.as_ref() == other.as_ref()
    }
}

impl Eq for Stream {}

/// A stream as one call carries it: a borrowed [`Stream`], or a raw value that is alive for `'a`.
#[derive(Clone, Copy)]
pub struct StreamRef<'a> {
    pub(crate) raw: tenure_stream,
    life: PhantomData<&'a Stream>,
}

impl<'a> StreamRef<'a> {
    /// A raw value (`cudaStream_t`, `CUstream`) without an owner.
    ///
    /// A buffer that is made with it does not keep it alive, and its free makes no driver call on it: its memory is handed
    /// to other streams only after a later call that carries the stream, or after the device was waited for. Prefer
    /// [`Stream::wrap`] where an owner is at hand.
    ///
    /// # Safety
    /// `raw` must be a live stream, or a default stream, during `'a`.
    pub const unsafe fn from_raw(raw: *mut c_void) -> Self {
        Self { raw: tenure_stream { raw, object: 0 }, life: PhantomData }
    }

    /// A stream of the C ABI, whose object (if it has one) stays its owner's. What is made with it keeps the object alive.
    ///
    /// # Safety
    /// What `raw` names must be alive during `'a`.
    pub const unsafe fn from_abi(raw: tenure_stream) -> Self {
        Self { raw, life: PhantomData }
    }

    /// The driver's value.
    pub fn raw(self) -> *mut c_void {
        self.raw.raw
    }

    /// A reference that keeps the stream alive; `None` for a raw value, which nothing keeps alive.
    pub fn to_stream(self) -> Option<Stream> {
        if !self.is_kept() {
            return None;
        }
        // Not to be dropped: it borrows the reference of whoever made this argument.
        let borrowed = std::mem::ManuallyDrop::new(Stream { raw: self.raw });
        Some(Stream::clone(&borrowed))
    }

    /// True when an object keeps it alive, or when it never dies.
    pub(crate) fn is_kept(self) -> bool {
        self.raw.object != 0 || self.raw.raw.addr() <= PER_THREAD.addr()
    }

    /// As [`Stream::synchronize`].
    ///
    /// # Errors
    /// As there.
    pub fn synchronize(self) -> Result<()> {
        let api = api()?;
        // SAFETY: the stream is alive during 'a.
        check(api, unsafe { (api.stream_synchronize)(self.raw) })
    }

    /// Before a copy that will be waited for: on a capturing stream it would become a part of the graph, and the graph
    /// would use memory that is gone by the time it runs. Asking whether the stream is idle says so and leaves the capture
    /// alone.
    pub(crate) fn refuse_capturing(self) -> Result<()> {
        self.is_done().map(drop)
    }

    /// Says that the host has waited for this stream by other means than [`synchronize`](Self::synchronize): what was freed
    /// on it before this call may then serve every stream without a wait. Nothing is believed: the driver is asked whether
    /// the stream is idle, and where it is not, all stays as it was.
    ///
    /// # Errors
    /// A fault of the device; [`Error::Load`](crate::Error::Load) without a library.
    pub fn note_sync(self) -> Result<()> {
        let api = api()?;
        // SAFETY: the stream is alive during 'a.
        check(api, unsafe { (api.note_sync)(self.raw) })
    }

    /// Says that this stream has been made to wait for `other` by other means than [`wait`](Self::wait): what was freed on
    /// `other` before this call may then be used in the order of this stream, without a wait for each block. Nothing is
    /// believed: a pool that holds such memory inserts a wait of its own, once.
    ///
    /// # Errors
    /// A fault of the device; [`Error::Load`](crate::Error::Load) without a library.
    pub fn note_wait<'b>(self, other: impl Into<StreamRef<'b>>) -> Result<()> {
        let api = api()?;
        // SAFETY: both streams are alive during the call.
        check(api, unsafe { (api.note_wait)(self.raw, other.into().raw) })
    }

    /// As [`Stream::is_done`].
    ///
    /// # Errors
    /// As there.
    pub fn is_done(self) -> Result<bool> {
        let api = api()?;
        let mut done = 0;
        // SAFETY: the stream is alive during 'a; the pointer is valid for writing.
        check(api, unsafe { (api.stream_query)(self.raw, &mut done) })?;
        Ok(done != 0)
    }

    /// As [`Stream::wait`].
    ///
    /// # Errors
    /// As there.
    pub fn wait<'b>(self, other: impl Into<StreamRef<'b>>) -> Result<()> {
        let api = api()?;
        // SAFETY: both streams are alive during the call.
        check(api, unsafe { (api.stream_wait_stream)(self.raw, other.into().raw) })
    }

    /// As [`Stream::device`].
    ///
    /// # Errors
    /// As there.
    pub fn device(self) -> Result<Device> {
        let api = api()?;
        let mut device = 0;
        // SAFETY: the stream is alive during 'a; the pointer is valid for writing.
        check(api, unsafe { (api.stream_device)(self.raw, &mut device) })?;
        Ok(Device::known(device))
    }
}

impl PartialEq for StreamRef<'_> {
    /// Two references are equal when they name the same stream of the driver; the legacy default stream has two values.
    fn eq(&self, other: &Self) -> bool {
        let value = |stream: &Self| stream.raw.raw.addr().max(LEGACY.addr());
        value(self) == value(other)
    }
}

impl Eq for StreamRef<'_> {}

impl fmt::Debug for StreamRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.raw.raw.addr() {
            0 | 1 => f.write_str("Stream(legacy default)"),
            2 => f.write_str("Stream(per-thread default)"),
            raw if self.raw.object == 0 => write!(f, "Stream({raw:#x}, raw)"),
            raw => write!(f, "Stream({raw:#x})"),
        }
    }
}

impl<'a> From<&'a Stream> for StreamRef<'a> {
    fn from(stream: &'a Stream) -> Self {
        stream.as_ref()
    }
}

// SAFETY: the value is only handed to the library, whose functions may be called on any thread, and is alive for 'a.
unsafe impl Send for StreamRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for StreamRef<'_> {}
