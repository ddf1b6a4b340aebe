//! The table of current resources as Python sees it, and `using`.
//!
//! ```text
//!  context variable: chain of bindings   --sync-->   this thread's scopes in the engine   --read by-->  C, C++, Rust
//!  (follows tasks, to_thread)                        (follow the thread)
//! ```
//!
//! The engine keeps scopes per thread, Python keeps contexts per task. The context variable is what counts: before each
//! call that reads or writes the table, [`sync`] makes the engine's scopes of this thread say what the current context
//! says. So tenure's own calls are right in every task. Native code that runs between two of them sees what the last one
//! left; it is right inside a plain `with using(mr):` and, before Python 3.14, may see another task's scope after an
//! `await`.
//!
//! # Rules
//! * A chain is never changed, only replaced: a task that copied the context keeps its bindings when the `with` block of
//!   its maker ends.
//! * `set` inside a scope changes the innermost binding of the device, for everyone who has that binding.
//! * A scope may end in another context than it began in (a generator that another task closes): it is then marked as
//!   ended and skipped everywhere.
//!
//! # Followers
//! A library with a table of its own (RMM) follows this one by two functions: `told` hears of each change of an entry,
//! whichever language made it, and `look` is called before Python reads or sets an entry, outside of any scope of its device,
//! so that what the library was told meanwhile is known by then. Native code looks at nobody's table.
//!
//! # Cost
//! One relaxed load until the first `using` of the process, and one until something follows; afterwards a call of the context
//! variable's `get`, and the engine's scopes are rebuilt when the chain is another one than the thread's last.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tenure_abi::*;

use crate::errors::{call, check};
use crate::gil;
use crate::resource::{self, DeviceMemoryResource};
use crate::stream::device_number;
use crate::table::api;

/// Whether `using` was ever entered in this process.
static EVER: AtomicBool = AtomicBool::new(false);
/// Rises when a binding changes, so that threads which have the same chain read it again.
static GENERATION: AtomicU64 = AtomicU64::new(1);
static NEXT_CHAIN: AtomicU64 = AtomicU64::new(1);

/// A reference to a resource that is given back when dropped.
pub(crate) struct Held(tenure_resource);

impl Held {
    /// The handle. Valid while `self` lives.
    pub(crate) fn handle(&self) -> tenure_resource {
        self.0
    }

    fn retain(py: Python<'_>, resource: tenure_resource) -> PyResult<Self> {
        let mut out = TENURE_RESOURCE_NULL;
        // SAFETY: `out` is valid for writing.
        check(py, unsafe { (api().resource_retain)(resource, &mut out) })?;
        Ok(Self(out))
    }

    fn id(&self) -> u64 {
        let mut id = 0;
        // SAFETY: `id` is valid for writing. A reference that is held always has an id.
        unsafe { (api().resource_id)(self.0, &mut id) };
        id
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let handle = self.0;
        // SAFETY: this reference is ours and is given back once.
        gil::give_back(
            || unsafe { (api().resource_try_release)(handle) },
            || unsafe { (api().resource_release)(handle) },
        );
    }
}

/// What one `using` binds.
struct Binding {
    device: i32,
    resource: Mutex<Arc<Held>>,
    ended: AtomicBool,
}

impl Binding {
    fn resource(&self) -> Arc<Held> {
        self.resource.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, with: Arc<Held>) {
        let old = std::mem::replace(&mut *self.resource.lock().unwrap_or_else(PoisonError::into_inner), with);
        drop(old);
    }
}

/// The value of the context variable: bindings, outermost first.
#[pyclass(frozen, module = "tenure._tenure")]
struct Chain {
    id: u64,
    bindings: Vec<Arc<Binding>>,
}

impl Chain {
    fn new(bindings: Vec<Arc<Binding>>) -> Self {
        Self { id: NEXT_CHAIN.fetch_add(1, Ordering::Relaxed), bindings }
    }
}

/// What the engine's scopes of this thread say.
#[derive(Default)]
struct Synced {
    /// 0: no chain.
    chain: u64,
    generation: u64,
    scopes: Vec<Scope>,
}

struct Scope {
    token: tenure_scope,
    binding: Arc<Binding>,
    /// What was bound, to notice a `set` of native code's.
    put: u64,
}

impl Drop for Synced {
    fn drop(&mut self) {
        for scope in self.scopes.drain(..).rev() {
            // SAFETY: a token of ours, given back once. At the thread's end the engine may have ended it already.
            unsafe { (api().scope_exit)(scope.token) };
        }
    }
}

thread_local! {
    static SYNCED: RefCell<Synced> = RefCell::default();
}

static VARIABLE: PyOnceLock<(Py<PyAny>, Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();

/// The context variable's bound `get` and `set`.
fn variable(py: Python<'_>) -> PyResult<&(Py<PyAny>, Py<PyAny>, Py<PyAny>)> {
    VARIABLE.get_or_try_init(py, || {
        let kwargs = pyo3::types::PyDict::new(py);
        kwargs.set_item("default", py.None())?;
        let variable = py.import("contextvars")?.getattr("ContextVar")?.call(("tenure.mr.using",), Some(&kwargs))?;
        Ok((variable.getattr("get")?.unbind(), variable.getattr("set")?.unbind(), variable.unbind()))
    })
}

fn chain(py: Python<'_>) -> PyResult<Option<Bound<'_, Chain>>> {
    let value = variable(py)?.0.bind(py).call0()?;
    Ok(if value.is_none() { None } else { Some(value.cast_into::<Chain>()?) })
}

fn bindings(chain: Option<&Bound<'_, Chain>>) -> Vec<Arc<Binding>> {
    let all = chain.map_or(&[][..], |chain| &chain.get().bindings[..]);
    all.iter().filter(|b| !b.ended.load(Ordering::Acquire)).cloned().collect()
}

fn set_chain(py: Python<'_>, bindings: Vec<Arc<Binding>>) -> PyResult<()> {
    let value = if bindings.is_empty() { py.None() } else { Bound::new(py, Chain::new(bindings))?.into_any().unbind() };
    variable(py)?.1.bind(py).call1((value,))?;
    Ok(())
}

/// Makes the engine's scopes of this thread say what the current context says. Before every call that reads or writes
/// the table.
///
/// # Errors
/// The engine refuses a scope (it is ending, or this is a forked child).
#[inline]
pub(crate) fn sync(py: Python<'_>) -> PyResult<()> {
    if EVER.load(Ordering::Relaxed) { sync_scopes(py) } else { Ok(()) }
}

/// What is current on a device. After [`sync`].
///
/// # Errors
/// There is no such device, or it cannot be used.
pub(crate) fn of_device(py: Python<'_>, device: i32) -> PyResult<Held> {
    let mut out = TENURE_RESOURCE_NULL;
    let to = &raw mut out;
    // SAFETY: `out` is valid for writing.
    call(py, || unsafe { (api().current_get)(device, to) })?;
    Ok(Held(out))
}

fn sync_scopes(py: Python<'_>) -> PyResult<()> {
    let chain = chain(py)?;
    let wanted = chain.as_ref().map_or(0, |chain| chain.get().id);
    let generation = GENERATION.load(Ordering::Acquire);
    let known = SYNCED.with_borrow(|s| s.chain == wanted && (wanted == 0 || s.generation == generation));
    if known {
        return Ok(());
    }
    // Nothing of Python's runs in here and no lock is let go, so the thread's record cannot be entered twice.
    let old = SYNCED.with_borrow_mut(std::mem::take);
    leave(old);
    let mut new = Synced { chain: wanted, generation, scopes: Vec::new() };
    for binding in bindings(chain.as_ref()) {
        let resource = binding.resource();
        let mut token = 0;
        // SAFETY: `token` is valid for writing.
        match unsafe { (api().scope_enter)(binding.device, resource.0, &mut token) } {
            // Whoever allocates next is told; leaving a `with` block is no time for it.
            TENURE_ERROR_FORKED | TENURE_ERROR_EXITING => break,
            status => check(py, status)?,
        }
        new.scopes.push(Scope { token, binding, put: resource.id() });
    }
    SYNCED.with_borrow_mut(|s| *s = new);
    Ok(())
}

/// Ends scopes, innermost first, and takes along what native code bound inside them.
fn leave(mut old: Synced) {
    for scope in old.scopes.drain(..).rev() {
        let mut now = TENURE_RESOURCE_NULL;
        // SAFETY: `now` is valid for writing.
        if unsafe { (api().current_get)(scope.binding.device, &mut now) } == TENURE_OK {
            let now = Held(now);
            if now.id() != scope.put && scope.binding.resource().id() == scope.put {
                scope.binding.replace(Arc::new(now));
            }
        }
        // SAFETY: a token of ours, given back once.
        unsafe { (api().scope_exit)(scope.token) };
    }
}

/// The current device of this thread.
pub(crate) fn device(py: Python<'_>) -> PyResult<i32> {
    let mut out = 0;
    // SAFETY: `out` is valid for writing.
    call(py, || unsafe { (api().device_get_current)(&mut out) })?;
    Ok(out)
}

/// The functions of whoever follows the table, and the engine's name for their listener.
struct Follower {
    look: Py<PyAny>,
    listener: tenure_listener,
}

/// Whether there is one.
static FOLLOWED: AtomicBool = AtomicBool::new(false);
/// Held for a few instructions, never while Python code runs or the interpreter lock is let go.
static FOLLOWER: Mutex<Option<Follower>> = Mutex::new(None);

fn follower() -> std::sync::MutexGuard<'static, Option<Follower>> {
    FOLLOWER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the follower look whether its own table says something else by now. After `sync`.
fn look(py: Python<'_>, device: i32) -> PyResult<()> {
    if !FOLLOWED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let device = if device < 0 { self::device(py)? } else { device };
    // What a scope binds is current whatever any table says.
    if SYNCED.with_borrow(|s| s.scopes.iter().any(|scope| scope.binding.device == device)) {
        return Ok(());
    }
    let function = follower().as_ref().map(|follower| follower.look.clone_ref(py));
    if let Some(function) = function {
        function.bind(py).call1((device,))?;
        // It may have set an entry, in a context without scopes.
        sync(py)?;
    }
    Ok(())
}

/// The engine's listener: on any thread, without a lock of the engine's.
unsafe extern "C" fn told(context: *mut c_void, device: i32, resource: tenure_resource, _version: u64) {
    gil::enter(|py| {
        // SAFETY: the owner of the listener, which lives during the call.
        let function = unsafe { &*context.cast::<Py<PyAny>>() };
        let call = || {
            let mut own = TENURE_RESOURCE_NULL;
            // SAFETY: `own` is valid for writing, and what a listener was given names a live resource during the call.
            check(py, unsafe { (api().resource_retain)(resource, &mut own) })?;
            function.bind(py).call1((device, DeviceMemoryResource::wrap(py, own)?))
        };
        if let Err(error) = call() {
            error.write_unraisable(py, Some(function.bind(py)));
        }
    });
}

/// The owner of the listener's function.
unsafe extern "C" fn forget(context: *mut c_void) {
    gil::enter(|py| {
        // SAFETY: made by `Box::into_raw` below and given back once.
        let function = unsafe { Box::from_raw(context.cast::<Py<PyAny>>()) };
        (*function).drop_ref(py);
    });
}

/// For the plug of a library that has a table of its own: `look(device)` and `told(device, mr)`. One at a time.
#[pyfunction]
fn _follow_current(py: Python<'_>, look: Py<PyAny>, told: Py<PyAny>) -> PyResult<()> {
    let second = || PyRuntimeError::new_err("somebody follows the table of current resources already");
    if follower().is_some() {
        return Err(second());
    }
    let context = Box::into_raw(Box::new(told)).cast::<c_void>();
    let owner = tenure_owner { context, release: Some(forget) };
    let mut listener = 0;
    // SAFETY: `listener` is valid for writing; the owner is taken over by a call that succeeds.
    let made = call(py, || unsafe { (api().listener_add)(Some(self::told), owner, &mut listener) });
    if let Err(error) = made {
        // SAFETY: a call that failed left it ours.
        unsafe { forget(context) };
        return Err(error);
    }
    {
        let mut slot = follower();
        if slot.is_none() {
            *slot = Some(Follower { look, listener });
            FOLLOWED.store(true, Ordering::Release);
            return Ok(());
        }
    }
    // Another thread was faster while the interpreter lock was free.
    // SAFETY: a token of ours, given back once.
    call(py, || unsafe { (api().listener_remove)(listener) })?;
    Err(second())
}

/// Ends `_follow_current`; without one, nothing.
#[pyfunction]
fn _unfollow_current(py: Python<'_>) -> PyResult<()> {
    FOLLOWED.store(false, Ordering::Release);
    let ended = follower().take();
    let Some(ended) = ended else { return Ok(()) };
    // SAFETY: a token of ours, given back once.
    call(py, || unsafe { (api().listener_remove)(ended.listener) })
}

fn get(py: Python<'_>, device: i32) -> PyResult<Bound<'_, PyAny>> {
    sync(py)?;
    look(py, device)?;
    let mut out = TENURE_RESOURCE_NULL;
    // SAFETY: `out` is valid for writing.
    call(py, || unsafe { (api().current_get)(device, &mut out) })?;
    DeviceMemoryResource::wrap(py, out)
}

fn set<'py>(py: Python<'py>, device: i32, mr: Option<&Bound<'_, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    let handle = mr.map(resource::argument).transpose()?;
    sync(py)?;
    // So that the previous one is what really was current.
    look(py, device)?;
    // The innermost binding of the device, which is what changes inside a scope.
    let bound = if EVER.load(Ordering::Relaxed) {
        let device = if device < 0 { self::device(py)? } else { device };
        SYNCED.with_borrow(|s| s.scopes.iter().rev().find(|s| s.binding.device == device).map(|s| s.binding.clone()))
    } else {
        None
    };
    let mut previous = TENURE_RESOURCE_NULL;
    // Without the lock: listeners of the table are called, and they may be anybody's.
    call(py, || unsafe {
        // SAFETY: `previous` is valid for writing.
        match handle {
            Some(handle) => (api().current_set)(device, handle, &mut previous),
            None => (api().current_reset)(device, &mut previous),
        }
    })?;
    if let Some(binding) = bound {
        let mut now = TENURE_RESOURCE_NULL;
        // SAFETY: `now` is valid for writing.
        check(py, unsafe { (api().current_get)(binding.device, &mut now) })?;
        let now = Arc::new(Held(now));
        let id = now.id();
        binding.replace(now);
        let generation = GENERATION.fetch_add(1, Ordering::AcqRel) + 1;
        SYNCED.with_borrow_mut(|s| {
            // Another thread's change in between is read again by the next `sync`.
            if s.generation + 1 == generation {
                s.generation = generation;
            }
            for scope in s.scopes.iter_mut().filter(|s| Arc::ptr_eq(&s.binding, &binding)) {
                scope.put = id;
            }
        });
    }
    if let Some(object) = mr.and_then(|mr| mr.cast::<DeviceMemoryResource>().ok()) {
        object.get().prefer();
    }
    DeviceMemoryResource::wrap(py, previous)
}

#[pyfunction]
fn get_current_device_resource(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    get(py, -1)
}

#[pyfunction]
fn get_per_device_resource(py: Python<'_>, device: i32) -> PyResult<Bound<'_, PyAny>> {
    get(py, device_number(Some(device))?)
}

#[pyfunction]
fn set_current_device_resource<'py>(py: Python<'py>, mr: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    set(py, -1, Some(mr))
}

#[pyfunction]
fn set_per_device_resource<'py>(py: Python<'py>, device: i32, mr: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    set(py, device_number(Some(device))?, Some(mr))
}

#[pyfunction]
fn reset_current_device_resource(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    set(py, -1, None)
}

#[pyfunction]
fn reset_per_device_resource(py: Python<'_>, device: i32) -> PyResult<Bound<'_, PyAny>> {
    set(py, device_number(Some(device))?, None)
}

/// Binds the current resource of the device that is current on entry, for this context.
#[pyclass(name = "using", frozen, module = "tenure.mr")]
struct Using {
    mr: Py<PyAny>,
    entered: Mutex<Vec<Arc<Binding>>>,
}

#[pymethods]
impl Using {
    #[new]
    fn new(mr: &Bound<'_, PyAny>) -> PyResult<Self> {
        resource::argument(mr)?;
        Ok(Self { mr: mr.clone().unbind(), entered: Mutex::new(Vec::new()) })
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mr = self.mr.bind(py);
        let resource = Arc::new(Held::retain(py, resource::argument(mr)?)?);
        let binding =
            Arc::new(Binding { device: device(py)?, resource: Mutex::new(resource), ended: AtomicBool::new(false) });
        let before = bindings(chain(py)?.as_ref());
        let mut all = before.clone();
        all.push(binding.clone());
        set_chain(py, all)?;
        EVER.store(true, Ordering::Release);
        if let Err(e) = sync(py) {
            set_chain(py, before)?;
            return Err(e);
        }
        if let Ok(object) = mr.cast::<DeviceMemoryResource>() {
            object.get().prefer();
        }
        self.entered.lock().unwrap_or_else(PoisonError::into_inner).push(binding);
        Ok(self.mr.clone_ref(py))
    }

    #[pyo3(signature = (*_exc))]
    fn __exit__(&self, py: Python<'_>, _exc: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        let binding = self.entered.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(binding) = binding else {
            return Err(PyRuntimeError::new_err("using.__exit__ without __enter__: write `with tenure.mr.using(mr):`"));
        };
        let mut all = bindings(chain(py)?.as_ref());
        match all.iter().rposition(|b| Arc::ptr_eq(b, &binding)) {
            Some(at) => {
                all.remove(at);
                set_chain(py, all)?;
            }
            None => {
                binding.ended.store(true, Ordering::Release);
                GENERATION.fetch_add(1, Ordering::AcqRel);
            }
        }
        sync(py)
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        visit.call(&self.mr)
    }
}

/// Adds the functions and `using`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Using>()?;
    module.add_function(wrap_pyfunction!(_follow_current, module)?)?;
    module.add_function(wrap_pyfunction!(_unfollow_current, module)?)?;
    module.add_function(wrap_pyfunction!(get_current_device_resource, module)?)?;
    module.add_function(wrap_pyfunction!(get_per_device_resource, module)?)?;
    module.add_function(wrap_pyfunction!(set_current_device_resource, module)?)?;
    module.add_function(wrap_pyfunction!(set_per_device_resource, module)?)?;
    module.add_function(wrap_pyfunction!(reset_current_device_resource, module)?)?;
    module.add_function(wrap_pyfunction!(reset_per_device_resource, module)?)
}
