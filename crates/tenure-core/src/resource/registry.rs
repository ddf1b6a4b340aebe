//! Where resources are kept: a slot each, found by a 64-bit id that is never given twice.
//!
//! ```text
//!   id = generation (28 bits) | index (28 bits)
//!
//!   chunk ----> slot { id of its present tenant, or 0 | count | body }
//!   (never      slot
//!    freed)     ...
//! ```
//!
//! A slot outlives its tenant, so that a released handle may be *named* at any time: its id does not match and the call
//! gets an error. What a client that releases too often does at the very moment of the last release cannot be caught;
//! everything later can.
//!
//! # Cost
//! Finding a slot: two loads and a comparison. Making and ending a resource: one lock, no allocation but the body.

use std::cell::{Cell, UnsafeCell};

use crossbeam_utils::CachePadded;

use super::callback::CallbackResource;
use super::{Block, MemoryResource, Resource};
use crate::chunks::Chunks;
use crate::count::{Count, OverRelease};
use crate::error::{Error, Result};
use crate::stream::{StreamObject, StreamRef};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::thread::{self, Local, OWNED};

/// Stripes of each count that threads without one of their own share.
const SHARED: usize = 16;
const CHUNK: usize = 32;
const CHUNKS: usize = 8192;
const INDEX_BITS: u32 = 28;
const GENERATION_MASK: u64 = (1 << 28) - 1;

/// One place for a resource.
pub(crate) struct Slot {
    id: AtomicU64,
    index: u32,
    generation: AtomicU64,
    count: Count<OWNED, SHARED>,
    body: UnsafeCell<Option<Box<dyn MemoryResource>>>,
}

// SAFETY: the body is written only while nobody holds a reference (before the count is revived, after it said that the
// caller is the destroyer) and read only by holders of a reference.
unsafe impl Sync for Slot {}

static SLOTS: Chunks<CachePadded<Slot>, CHUNK, CHUNKS> = Chunks::new();
static USED: AtomicU32 = AtomicU32::new(0);
static FREE: Mutex<Vec<u32>> = Mutex::new(Vec::new());
/// What was given up by a thread that may not wait. See [`without_waiting`].
static DEFERRED: Mutex<Vec<Deferred>> = Mutex::new(Vec::new());
static DEFERRED_ANY: AtomicBool = AtomicBool::new(false);

/// Kept for its drop.
#[allow(dead_code, reason = "held for its drop")]
enum Deferred {
    Body(Box<dyn MemoryResource>),
    Stream(StreamObject),
}

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };
}

#[inline(always)]
fn slot_at(index: u32) -> Option<&'static Slot> {
    SLOTS.get(index as usize).map(|slot| &**slot)
}

/// The slot whose present tenant has this id.
#[inline(always)]
pub(crate) fn slot_of(id: u64) -> Option<&'static Slot> {
    let slot = slot_at((id & ((1 << INDEX_BITS) - 1)) as u32)?;
    // 0 is the id of a slot without a tenant.
    (slot.id.load(Ordering::Acquire) == id && id != 0).then_some(slot)
}

/// Takes a resource in; the caller owns the one anchor.
pub(crate) fn insert(body: Box<dyn MemoryResource>) -> Result<&'static Slot> {
    let index = {
        let mut free = FREE.lock();
        match free.pop() {
            Some(index) => index,
            None => {
                let index = USED.load(Ordering::Relaxed);
                SLOTS.reach(index as usize, |index| CachePadded::new(Slot::new(index as u32))).ok_or_else(|| {
                    Error::invalid("more than 262144 resources are alive: release those that are not needed any more")
                })?;
                USED.store(index + 1, Ordering::Release);
                index
            }
        }
    };
    let slot = slot_at(index).ok_or_else(|| Error::Internal("a slot of the registry is missing".into()))?;
    // Generation 0 is never used, so that no id is 0. A slot whose generations are used up is not given out again.
    let generation = slot.generation.fetch_add(1, Ordering::Relaxed) + 1;
    // SAFETY: the slot came from the free list or is new: it has no tenant, and its count is closed.
    unsafe { *slot.body.get() = Some(body) };
    slot.count.revive();
    slot.id.store((generation << INDEX_BITS) | u64::from(index), Ordering::Release);
    Ok(slot)
}

impl Slot {
    fn new(index: u32) -> Self {
        Self {
            id: AtomicU64::new(0),
            index,
            generation: AtomicU64::new(0),
            count: Count::new(),
            body: UnsafeCell::new(None),
        }
    }

    /// The id of the tenant; 0 when there is none.
    #[inline(always)]
    pub(crate) fn id(&self) -> u64 {
        self.id.load(Ordering::Acquire)
    }

    /// The tenant. The caller holds a reference.
    #[inline(always)]
    pub(crate) fn body(&'static self) -> &'static dyn MemoryResource {
        // SAFETY: the caller's reference keeps the tenant; the 'static lifetime does not leave this crate's handles,
        // which hand it out bounded by themselves.
        match unsafe { &*self.body.get() } {
            Some(body) => &**body,
            // Only a reference to a dead tenant gets here, which no safe path makes.
            None => &Gone,
        }
    }

    #[inline(always)]
    pub(crate) fn take_light(&self, here: &Local) {
        self.count.take_light(here.stripe());
    }

    pub(crate) fn take_lights(&self, many: usize) {
        thread::with(|here| self.count.take_lights(here.stripe(), many));
    }

    #[inline(always)]
    pub(crate) fn drop_light(&'static self, here: &Local) {
        if self.count.drop_light(here.stripe()) {
            self.destroy();
        }
    }

    pub(crate) fn drop_lights(&'static self, many: usize) {
        if thread::with(|here| self.count.drop_lights(here.stripe(), many)) {
            self.destroy();
        }
    }

    pub(crate) fn take_anchor(&self) {
        self.count.take_anchor();
        // A count that was closed is only slower; whoever takes a new anchor pays once to open it again.
        self.count.reopen();
    }

    pub(crate) fn drop_anchor(&'static self) -> Result<(), OverRelease> {
        if self.count.drop_anchor()? {
            self.destroy();
        }
        Ok(())
    }

    /// Anchors and lights now; for tests and reports.
    pub(crate) fn references(&self) -> (i64, i64) {
        self.count.snapshot()
    }

    #[cold]
    fn destroy(&'static self) {
        let id = self.id();
        // A straggler that named a dead handle may see the count at its end a second time: only one may act on it.
        if id == 0 || self.id.compare_exchange(id, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        // SAFETY: the count said that no reference is left, and the exchange above chose this thread.
        let body = unsafe { (*self.body.get()).take() };
        if tenure_driver::process::unusable() {
            // Exit and fork: the driver takes everything back by itself, or it was never ours.
            std::mem::forget(body);
            return;
        }
        if id >> INDEX_BITS < GENERATION_MASK {
            FREE.lock().push(self.index);
        }
        if let Some(body) = body {
            crate::observe::resource_event(id, body.kind(), false);
            if may_wait() {
                drop(body);
            } else {
                defer(Deferred::Body(body));
            }
        }
    }
}

fn defer(what: Deferred) {
    DEFERRED.lock().push(what);
    DEFERRED_ANY.store(true, Ordering::Release);
}

/// Keeps a stream whose last reference went on a thread that may not wait.
pub(crate) fn defer_stream(stream: StreamObject) {
    defer(Deferred::Stream(stream));
}

/// False inside [`without_waiting`].
pub(crate) fn may_wait() -> bool {
    MAY_WAIT.get()
}

/// Runs `f`; a resource or a stream whose last reference goes meanwhile on this thread is not ended but kept for
/// [`collect`].
pub fn without_waiting<R>(f: impl FnOnce() -> R) -> R {
    struct Restore<'a>(&'a Cell<bool>, bool);
    impl Drop for Restore<'_> {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    // The thread's storage of a plain cell is there until its very end.
    MAY_WAIT.with(|may_wait| {
        let _restore = Restore(may_wait, may_wait.replace(false));
        f()
    })
}

/// True when [`collect`] has something to close.
pub fn has_deferred() -> bool {
    DEFERRED_ANY.load(Ordering::Acquire)
}

/// Closes what [`without_waiting`] left. May wait, call the driver and call user code.
pub fn collect() {
    if !has_deferred() || tenure_driver::process::unusable() {
        return;
    }
    let deferred = {
        let mut deferred = DEFERRED.lock();
        DEFERRED_ANY.store(false, Ordering::Release);
        std::mem::take(&mut *deferred)
    };
    drop(deferred);
}

/// A handle to the resource of this id, if it is alive.
pub fn upgrade(id: u64) -> Option<Resource> {
    let slot = slot_of(id)?;
    if !slot.count.upgrade() {
        return None;
    }
    let resource = Resource::from_anchor(slot);
    // Between finding the slot and taking the anchor the tenant may have changed.
    (slot.id() == id).then_some(resource)
}

/// Calls `f` with each resource that is alive, without any lock held.
pub fn for_each(mut f: impl FnMut(&Resource)) {
    for index in 0..USED.load(Ordering::Acquire) {
        if let Some(resource) = slot_at(index).and_then(|slot| upgrade(slot.id())) {
            f(&resource);
        }
    }
}

/// The smallest live allocation around `ptr`, and who was asked for it, if both are alive.
pub fn owner_of(ptr: u64) -> Option<(Resource, Block)> {
    let mut best: Option<Block> = None;
    for_each(|resource| {
        // A callback that hands on what its own upstream made is told apart from that by standing in front of it.
        let in_front = || resource.downcast::<CallbackResource>().is_some();
        if let Some(block) = resource.body().find(ptr)
            && best.is_none_or(|b| block.bytes < b.bytes || (block.bytes == b.bytes && in_front()))
        {
            best = Some(block);
        }
    });
    let block = best?;
    Some((upgrade(block.owner)?, block))
}

/// Tells every resource that `stream` is about to end.
pub(crate) fn stream_closing(stream: StreamRef<'_>) {
    for_each(|resource| resource.body().stream_closing(stream));
}

/// Tells every resource something. All of them hear it; the first failure is returned.
pub(crate) fn tell_each(tell: impl Fn(&dyn MemoryResource) -> Result<()>) -> Result<()> {
    let mut result = Ok(());
    for_each(|resource| {
        let told = tell(resource.body());
        if result.is_ok() {
            result = told;
        }
    });
    result
}

/// Stands in for a tenant that is gone: every request is refused.
struct Gone;

impl MemoryResource for Gone {
    fn kind(&self) -> &'static str {
        "closed"
    }
    fn allocate(&self, _: &super::Request, _: StreamRef<'_>) -> Result<u64> {
        Err(Error::BadHandle("the resource has been closed".into()))
    }
    fn deallocate(&self, _: u64, _: &super::Request, _: StreamRef<'_>) -> Result<()> {
        Err(Error::BadHandle("the resource has been closed".into()))
    }
    fn device(&self) -> Option<i32> {
        None
    }
    fn properties(&self) -> super::Properties {
        super::Properties::default()
    }
    fn find(&self, _: u64) -> Option<Block> {
        None
    }
    fn info(&self) -> super::Info {
        super::Info::default()
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
