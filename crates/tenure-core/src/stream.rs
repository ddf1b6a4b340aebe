//! Streams as the engine sees them.
//!
//! A stream reaches tenure in one of three forms (`ownership.md`, rule 6):
//!
//! * an **object**: [`StreamObject`], tenure's own or a foreign stream whose owner is held; alive while anything names it;
//! * **immortal**: the default streams, and foreign streams that their library never destroys;
//! * a **raw value**: alive during the call that carries it, and never touched afterwards, since one driver call on a
//!   destroyed stream is a segmentation fault.
//!
//! [`StreamRef`] is what a call carries, [`StreamHold`] what a buffer keeps.

use tenure_driver::RawStream;

use crate::error::{Payload, Result};
use crate::resource::registry;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, OnceCell};

/// Who ends the driver's stream.
#[derive(Debug)]
enum Keeper {
    /// tenure made it and destroys it.
    Own,
    /// Somebody else's; the payload keeps it alive and is dropped last.
    Foreign(#[allow(dead_code, reason = "held for its drop")] Option<Payload>),
    /// Never destroyed by its library.
    Immortal,
    /// Another object took over what there is to do at the end.
    MovedOn,
}

/// A stream that lives while something names it.
#[derive(Debug)]
pub struct StreamObject {
    raw: RawStream,
    device: i32,
    id: u64,
    keeper: Keeper,
    /// The face's own handle of this stream, and who is told when the stream ends.
    seat: OnceCell<(u64, fn(u64))>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl StreamObject {
    /// Makes a stream on `device`; `non_blocking` streams do not synchronise with the legacy default stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn create(device: i32, non_blocking: bool) -> Result<Arc<Self>> {
        let raw = crate::device::driver()?.stream_create_on(crate::device::check(device)?, non_blocking)?;
        Ok(Self::new(raw, device, Keeper::Own))
    }

    fn new(raw: RawStream, device: i32, keeper: Keeper) -> Arc<Self> {
        Arc::new(Self { raw, device, id: NEXT_ID.fetch_add(1, Ordering::Relaxed), keeper, seat: OnceCell::new() })
    }

    /// Gives the stream the face's own handle, once; `ended(handle)` is called when the stream ends.
    pub fn seat(&self, handle: u64, ended: fn(u64)) {
        let _ = self.seat.set((handle, ended));
    }

    /// The face's own handle; 0 when it has none.
    #[inline]
    pub fn handle(&self) -> u64 {
        self.seat.get().map_or(0, |(handle, _)| *handle)
    }

    /// Takes note of a foreign stream that `owner` keeps alive; `owner` is dropped when nothing names the stream.
    pub fn foreign(raw: RawStream, device: i32, owner: Option<Payload>) -> Arc<Self> {
        Self::new(raw, device, Keeper::Foreign(owner))
    }

    /// Takes note of a foreign stream that is never destroyed while the process lives.
    pub fn immortal(raw: RawStream, device: i32) -> Arc<Self> {
        Self::new(raw, device, Keeper::Immortal)
    }

    /// The driver's value.
    pub fn raw(&self) -> RawStream {
        self.raw
    }

    /// The ordinal of its device.
    pub fn device(&self) -> i32 {
        self.device
    }

    /// A number that no other stream object of the process ever has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// True when tenure made the stream and will destroy it.
    pub fn is_own(&self) -> bool {
        matches!(self.keeper, Keeper::Own)
    }

    /// False when somebody has reset its device: the stream went with the context, and no driver call may name it.
    fn is_there(&self) -> bool {
        crate::device::driver().and_then(|driver| Ok(driver.device(self.device)?.context_is_alive()?)).unwrap_or(false)
    }
}

impl Drop for StreamObject {
    fn drop(&mut self) {
        if let Some((handle, ended)) = self.seat.get() {
            ended(*handle);
        }
        let keeper = std::mem::replace(&mut self.keeper, Keeper::MovedOn);
        if tenure_driver::process::unusable() {
            // Exit and fork: no driver call, and nothing of another language is entered.
            std::mem::forget(keeper);
            return;
        }
        // A default stream has no end. Of another one this is the last call that can carry it.
        let ends = !self.raw.is_special() && !matches!(keeper, Keeper::MovedOn);
        if !registry::may_wait() && (ends || matches!(keeper, Keeper::Foreign(Some(_)))) {
            let seat = OnceCell::new();
            registry::defer_stream(Self { raw: self.raw, device: self.device, id: self.id, keeper, seat });
            return;
        }
        if ends && self.is_there() {
            // Pools that hold blocks freed on it record their proof now.
            registry::stream_closing(StreamRef { raw: self.raw, object: Some(self), stored: false });
            if matches!(keeper, Keeper::Own)
                && let Ok(driver) = crate::device::driver()
            {
                // A failure (a device fault, say) leaves a stream to the driver's own clean-up; nothing can be done.
                // SAFETY: tenure made the stream, this object is its only owner, and nothing names it any more.
                let _ = unsafe { driver.stream_destroy(self.raw) };
            }
        }
        // Last of all the foreign owner.
        drop(keeper);
    }
}

/// A number that no other thread of the process ever has.
#[inline]
pub(crate) fn this_thread() -> u64 {
    crate::thread::number() as u64
}

/// A stream as one call carries it.
#[derive(Clone, Copy, Debug)]
pub struct StreamRef<'a> {
    /// The driver's value.
    pub raw: RawStream,
    /// The object that keeps it alive, if it came as one.
    pub object: Option<&'a StreamObject>,
    /// True when a raw value comes from a buffer's memory and not from the caller: it may be dead, so that no driver
    /// call may name it.
    pub stored: bool,
}

impl StreamRef<'static> {
    /// The legacy default stream of the device that is current.
    pub const DEFAULT: Self = Self { raw: RawStream::NULL, object: None, stored: false };

    /// A raw value that is alive during this call.
    pub fn raw(raw: RawStream) -> Self {
        Self { raw, object: None, stored: false }
    }
}

impl StreamRef<'_> {
    /// True when a driver call may name the stream: it is special (never dies), held by an object, or carried by the
    /// caller of this very call.
    pub fn is_live(&self) -> bool {
        self.object.is_some() || self.raw.is_special() || !self.stored
    }

    /// True when it will still be alive after this call: special, or held by an object that the holder keeps.
    pub fn outlives_call(&self) -> bool {
        self.object.is_some() || self.raw.is_special()
    }

    /// The device that the stream belongs to: the object's, or what the driver says (the current one for the default
    /// streams). `None` for a stored raw value, which nobody may ask.
    ///
    /// # Errors
    /// What the driver says of the handle.
    pub fn device(&self) -> Result<Option<i32>> {
        if let Some(object) = self.object {
            return Ok(Some(object.device()));
        }
        if !self.is_live() {
            return Ok(None);
        }
        Ok(Some(crate::device::driver()?.device_of(self.raw)?))
    }
}

/// A stream as a buffer keeps it.
#[derive(Clone, Debug)]
pub struct StreamHold {
    raw: RawStream,
    object: Option<Arc<StreamObject>>,
    /// Whose it is, of the per-thread default stream: a number of the thread that named it; else 0.
    thread: u64,
    /// The device of a raw value, where it was asked for while the value was carried; else -1.
    device: i32,
}

impl StreamHold {
    /// Keeps a stream: its object where it has one, else a raw value.
    #[inline(always)]
    pub fn new(raw: RawStream, object: Option<Arc<StreamObject>>) -> Self {
        Self { raw, object, thread: if raw.is_per_thread() { this_thread() } else { 0 }, device: -1 }
    }

    /// Keeps an object.
    #[inline(always)]
    pub fn object(object: Arc<StreamObject>) -> Self {
        Self::new(object.raw(), Some(object))
    }

    /// Keeps a raw value: nothing keeps the stream alive.
    #[inline(always)]
    pub fn raw(raw: RawStream) -> Self {
        Self::new(raw, None)
    }

    /// Notes the device of a raw value that the caller has just named: later nobody may ask it.
    pub(crate) fn located(mut self) -> Self {
        if self.object.is_none()
            && !self.raw.is_special()
            && let Ok(Some(device)) = self.as_carried().device()
        {
            self.device = device;
        }
        self
    }

    /// Takes out the object, for a hold that is about to end.
    #[inline(always)]
    pub(crate) fn let_go(&mut self) -> Option<Arc<StreamObject>> {
        self.object.take()
    }

    /// The device, as far as it is known: not of a default stream that came without an object.
    pub fn device(&self) -> Option<i32> {
        match &self.object {
            Some(object) => Some(object.device()),
            None => (self.device >= 0).then_some(self.device),
        }
    }

    /// As an argument, marked as stored: nobody may take a raw value for alive.
    #[inline]
    pub fn as_stored(&self) -> StreamRef<'_> {
        StreamRef { raw: self.raw, object: self.object.as_deref(), stored: true }
    }

    /// As an argument of a call whose caller has just named the stream.
    #[inline]
    pub fn as_carried(&self) -> StreamRef<'_> {
        StreamRef { raw: self.raw, object: self.object.as_deref(), stored: false }
    }

    /// True when a driver call of this thread, long after the stream was named, can name it: it is alive for certain, and
    /// not the default stream of another thread, whose value here means this thread's.
    pub fn can_be_named(&self) -> bool {
        self.is_of_this_thread() && self.as_stored().is_live()
    }

    /// False for the default stream of another thread.
    #[inline]
    pub fn is_of_this_thread(&self) -> bool {
        self.thread == 0 || self.thread == this_thread()
    }

    /// True when both name one stream.
    pub fn is_same(&self, other: &Self) -> bool {
        let id = |hold: &Self| hold.object.as_ref().map(|object| object.id());
        self.raw == other.raw
            && self.thread == other.thread
            && if self.raw.is_special() { self.device() == other.device() } else { id(self) == id(other) }
    }

    /// The driver's value.
    pub fn value(&self) -> RawStream {
        self.raw
    }

    /// The object, if one keeps it alive.
    pub fn held(&self) -> Option<&Arc<StreamObject>> {
        self.object.as_ref()
    }
}
