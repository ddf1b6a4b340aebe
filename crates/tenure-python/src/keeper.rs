//! What the garbage collector is shown of callback resources: the owner of the callables.
//!
//! ```text
//!                 engine resource --context-->+
//!                    ^         ^              | (hidden)
//!           anchor   |  lights |              v
//!  CallbackMemoryResource   DeviceBuffers   Keeper --> allocate, deallocate --> ... --> the two on the left
//!                    |              |         ^
//!                    +--------------+---------+  (seen)
//! ```
//!
//! A [`Keeper`] is a Python object that owns the two callables. The engine's resource holds it, which the collector cannot
//! see, and every Python object that holds the resource holds it too, which the collector sees ([`Held`]). As long as
//! the engine counts as many references as there are such objects, nothing but Python can reach the resource, and then
//! the hidden reference is shown as one of the keeper to itself: so a cycle through the engine is found when all of it
//! is garbage. Where the table, an adaptor, a bare block, a DLPack consumer or another language holds the resource, or a
//! call is in flight, the hidden reference stays hidden and nothing is collected.
//!
//! # Rules
//! * A buffer in such garbage frees its block in its finalizer, before the collector takes anything apart: the callables
//!   are whole when they are called. A buffer that cannot pins the keeper, and all of it stays. One whose memory is
//!   exported hides its reference to the keeper, so that all of it stays until the export has ended.
//! * All of this runs with the interpreter lock; nothing here calls Python while the collector runs.
//!
//! # Cost
//! A process without callback resources pays a relaxed load for each buffer. With them, each buffer's resource is looked up
//! in a small map.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use tenure_abi::*;

use crate::callback::Context;
use crate::gil;
use crate::table::api;

/// How many callback resources are alive.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// The keepers of the resources that are alive, by the resource's id. Not a reference: an entry goes before its context.
static KEEPERS: Mutex<Option<HashMap<u64, AtomicPtr<Context>>>> = Mutex::new(None);

fn keepers() -> MutexGuard<'static, Option<HashMap<u64, AtomicPtr<Context>>>> {
    KEEPERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The two functions.
pub(crate) struct Callables {
    pub(crate) allocate: Py<PyAny>,
    pub(crate) deallocate: Py<PyAny>,
}

/// Owns the callables of one resource. See the [module](self).
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Keeper {
    /// Taken out only by the garbage collector, when nobody can call any more.
    callables: Mutex<Option<Callables>>,
    /// The Python objects that hold one reference to the resource each.
    holders: AtomicUsize,
    /// A reference of the keeper's own while there are holders, to ask the engine what it counts.
    reference: AtomicU64,
    /// The resource's context, null once the resource has ended.
    context: AtomicPtr<Context>,
    id: AtomicU64,
    pinned: AtomicBool,
}

impl Keeper {
    pub(crate) fn new(callables: Callables) -> Self {
        Self {
            callables: Mutex::new(Some(callables)),
            holders: AtomicUsize::new(0),
            reference: AtomicU64::new(0),
            context: AtomicPtr::new(std::ptr::null_mut()),
            id: AtomicU64::new(0),
            pinned: AtomicBool::new(false),
        }
    }

    /// The callables, for one call; `None` once they were collected.
    pub(crate) fn callables(&self, py: Python<'_>) -> Option<Callables> {
        let held = self.callables.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map(|c| Callables { allocate: c.allocate.clone_ref(py), deallocate: c.deallocate.clone_ref(py) })
    }

    /// The resource is there.
    pub(crate) fn began(&self, resource: tenure_resource, context: *mut Context) {
        let mut id = 0;
        // SAFETY: `id` is valid for writing. A reference that was made a line ago has an id.
        unsafe { (api().resource_id)(resource, &mut id) };
        self.id.store(id, Ordering::Release);
        self.context.store(context, Ordering::Release);
        keepers().get_or_insert_default().insert(id, AtomicPtr::new(context));
        LIVE.fetch_add(1, Ordering::AcqRel);
    }

    /// The resource has ended, and its context is about to.
    pub(crate) fn ended(&self) {
        if !self.context.swap(std::ptr::null_mut(), Ordering::AcqRel).is_null() {
            keepers().get_or_insert_default().remove(&self.id.load(Ordering::Acquire));
            LIVE.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Nothing of this resource is ever collected as garbage again.
    fn pin(&self) {
        self.pinned.store(true, Ordering::Release);
    }

    /// The context, where nothing but the holders can reach the resource now.
    fn alone(&self) -> Option<&Context> {
        let (context, reference) = (self.context.load(Ordering::Acquire), self.reference.load(Ordering::Acquire));
        if context.is_null() || reference == 0 || self.pinned.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the context lives until `ended`, which needs the interpreter lock as this does.
        let context = unsafe { &*context };
        let (anchors, lights) = references(reference)?;
        let ours = self.holders.load(Ordering::Acquire) as u64 + 1;
        (anchors + lights == ours && context.in_flight.load(Ordering::Acquire) == 0).then_some(context)
    }
}

#[pymethods]
impl Keeper {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Ok(callables) = self.callables.try_lock()
            && let Some(callables) = &*callables
        {
            visit.call(&callables.allocate)?;
            visit.call(&callables.deallocate)?;
        }
        // The engine's reference, which is one to this very object.
        self.alone().map_or(Ok(()), |context| visit.call(&context.keeper))
    }

    fn __clear__(&self) {
        let taken = self.callables.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(taken);
    }
}

/// A Python object's part in a keeper: it holds one reference to the resource, and lets go of the keeper when dropped.
pub(crate) struct Held {
    keeper: Py<Keeper>,
    /// The collector has asked the object to finish.
    finished: AtomicBool,
}

impl Held {
    /// For an object that holds a reference to the resource behind `resource`.
    pub(crate) fn new(keeper: Py<Keeper>, resource: tenure_resource) -> Self {
        let this = keeper.get();
        if this.holders.fetch_add(1, Ordering::AcqRel) == 0 {
            let mut own = TENURE_RESOURCE_NULL;
            // SAFETY: `own` is valid for writing. Where it fails nothing is collected, and nothing is harmed.
            if unsafe { (api().resource_retain_light)(resource, &mut own) } == TENURE_OK {
                this.reference.store(own, Ordering::Release);
            }
        }
        Self { keeper, finished: AtomicBool::new(false) }
    }

    /// The part of a buffer of the engine's whose resource has this id, if that is a callback resource.
    #[inline]
    pub(crate) fn of_buffer(py: Python<'_>, buffer: tenure_buffer) -> Option<Self> {
        if LIVE.load(Ordering::Relaxed) == 0 { None } else { Self::look_up(py, buffer) }
    }

    #[cold]
    fn look_up(py: Python<'_>, buffer: tenure_buffer) -> Option<Self> {
        let id = crate::buffer::view_of(py, buffer).ok()?.resource_id;
        let keeper = {
            let map = keepers();
            let context = map.as_ref()?.get(&id)?.load(Ordering::Acquire);
            // SAFETY: an entry goes before its context, and that needs the interpreter lock as this does.
            unsafe { &*context }.keeper.clone_ref(py)
        };
        let mut resource = TENURE_RESOURCE_NULL;
        // SAFETY: `resource` is valid for writing.
        if unsafe { (api().buffer_resource)(buffer, &mut resource) } != TENURE_OK {
            return None;
        }
        let held = Self::new(keeper, resource);
        // SAFETY: this reference is ours and is given back once.
        gil::give_back(
            || unsafe { (api().resource_try_release)(resource) },
            || unsafe { (api().resource_release)(resource) },
        );
        Some(held)
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.keeper)
    }

    /// The collector is about to take the object apart; `close` frees what it has.
    pub(crate) fn finish(&self, close: impl FnOnce() -> PyResult<()>) {
        self.finished.store(true, Ordering::Release);
        if close().is_err() {
            self.keeper.get().pin();
        }
    }

    /// The object gets memory again. After `finish` it was saved by somebody's finalizer, and is not asked another time.
    pub(crate) fn used(&self) {
        if self.finished.load(Ordering::Acquire) {
            self.keeper.get().pin();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let this = self.keeper.get();
        if this.holders.fetch_sub(1, Ordering::AcqRel) == 1 {
            let own = this.reference.swap(0, Ordering::AcqRel);
            if own != 0 {
                // SAFETY: this reference is the keeper's and is given back once.
                gil::give_back(
                    || unsafe { (api().resource_try_release)(own) },
                    || unsafe { (api().resource_release)(own) },
                );
            }
        }
    }
}

/// The references that the engine counts on a resource: anchors and lights. `None` where it does not tell.
pub(crate) fn references(handle: tenure_resource) -> Option<(u64, u64)> {
    let read = |name: &std::ffi::CStr| {
        let mut out = 0;
        // SAFETY: `name` is a string and `out` is valid for writing.
        let status = unsafe { (api().resource_property)(handle, name.as_ptr(), &mut out) };
        (status == TENURE_OK).then_some(out)
    };
    Some((read(c"anchors")?, read(c"lights")?))
}
