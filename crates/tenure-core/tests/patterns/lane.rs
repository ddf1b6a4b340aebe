//! The streams of a worker, and the blocks in their order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure_core::stream::{StreamObject, StreamRef};
use tenure_driver::{Device, Event, RawStream, Stream};

use crate::engine::Range;

/// A stream in one of the forms in which streams reach tenure.
pub(crate) enum Kind {
    Legacy,
    /// The default stream of the thread that made the lane; no other may name it.
    PerThread,
    Object(Arc<StreamObject>),
    /// A stream of which tenure knows a value only, and never hears that it ends.
    Raw(Stream),
}

/// A stream that lives while a block or a worker names it.
pub(crate) struct Lane {
    pub(crate) kind: Kind,
    /// Kernels launched since somebody waited for it.
    pending: AtomicU32,
}

impl Lane {
    pub(crate) fn new(kind: Kind) -> Arc<Self> {
        Arc::new(Self { kind, pending: AtomicU32::new(0) })
    }

    pub(crate) fn object(device: &'static Device, non_blocking: bool) -> Arc<Self> {
        Self::new(Kind::Object(StreamObject::create(device.ordinal(), non_blocking).expect("a stream")))
    }

    pub(crate) fn raw_value(device: &'static Device, non_blocking: bool) -> Arc<Self> {
        Self::new(Kind::Raw(Stream::new(device, non_blocking).expect("a stream")))
    }

    pub(crate) fn raw(&self) -> RawStream {
        match &self.kind {
            Kind::Legacy => RawStream::LEGACY,
            Kind::PerThread => RawStream::PER_THREAD,
            Kind::Object(object) => object.raw(),
            // SAFETY: whoever names the lane holds it; what is kept beyond it is only given to tenure as a stored value.
            Kind::Raw(stream) => unsafe { stream.raw() },
        }
    }

    /// As an argument: an object, or by its value alone.
    pub(crate) fn carried(&self, as_value: bool) -> StreamRef<'_> {
        match &self.kind {
            Kind::Object(object) if !as_value => StreamRef { raw: object.raw(), object: Some(object), stored: false },
            _ => StreamRef::raw(self.raw()),
        }
    }

    pub(crate) fn is_per_thread(&self) -> bool {
        matches!(self.kind, Kind::PerThread)
    }

    pub(crate) fn is_raw_value(&self) -> bool {
        matches!(self.kind, Kind::Raw(_))
    }

    /// Notes a kernel; waits for the stream where `depth` are on their way.
    pub(crate) fn note_kernel(&self, device: &'static Device, depth: u32) {
        if self.pending.fetch_add(1, Ordering::Relaxed) >= depth {
            self.synchronize(device);
        }
    }

    pub(crate) fn synchronize(&self, device: &'static Device) {
        device.driver().stream_synchronize(self.raw()).expect("the work of a stream");
        self.pending.store(0, Ordering::Relaxed);
    }

    /// Makes later work here wait for what `other` has now.
    pub(crate) fn wait(&self, device: &'static Device, other: &Lane) {
        self.raw().wait_event(&other.mark(device)).expect("a wait");
    }

    /// An event behind what the stream has now.
    pub(crate) fn mark(&self, device: &'static Device) -> Event {
        let event = Event::new(device).expect("an event");
        event.record(self.raw()).expect("a record");
        event
    }
}

/// In whose order a block is.
#[derive(Clone)]
pub(crate) enum Home {
    Lane(Arc<Lane>),
    /// A raw stream that may have been destroyed: its value as a buffer would have stored it.
    Gone(RawStream),
}

/// A live block, full of its owner's pattern.
pub(crate) struct Block {
    pub(crate) range: Range,
    pub(crate) home: Home,
}

/// A block on its way to another thread, with the mark behind its last use.
pub(crate) struct Parcel {
    pub(crate) block: Block,
    pub(crate) mark: Event,
}
