//! Scopes of a statistics adaptor, as Python's tasks have them. `tenure.statistics` is written in Python over these.
//!
//! ```text
//!  context variable: innermost scope --sync-->   the scope that this thread is in, in the engine
//!  (follows tasks, to_thread)                    (follows the thread)
//! ```
//!
//! As in [`current`](crate::current), the context variable is what counts: before each call that allocates or frees, [`sync`]
//! makes the engine say what the current context says. So tenure's own calls count right in every task. Native code that
//! allocates between two of them counts where the last one did: right in a thread, and in a task until it waits.
//!
//! # Rules
//! * A task that was started inside a scope is in it: it copied the context. A thread that was started is in none.
//! * A scope may be closed in another context than it was opened in (a generator that somebody else closes): it is skipped
//!   from then on wherever it is named.
//!
//! # Cost
//! One relaxed load while no scope of Python's is open; else a call of the context variable's `get`.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::PyErr;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tenure_abi::*;

use crate::errors::{call, check};
use crate::figures::Statistics;
use crate::gil;
use crate::resource::DeviceMemoryResource;
use crate::table::api;

/// Open scopes of Python's.
static OPEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The scope that this thread was last put into; 0 is none.
    static LAST: Cell<tenure_statistics_scope> = const { Cell::new(0) };
}

/// A measurement of what one thread or task does through a statistics adaptor.
#[pyclass(frozen, name = "_StatisticsScope", module = "tenure._tenure")]
pub(crate) struct Scope {
    /// 0 once it is closed.
    handle: AtomicU64,
    /// The id of the adaptor.
    adaptor: u64,
    /// Who opened it, to be found again.
    opener: Py<PyAny>,
    inner: Mutex<Inner>,
}

struct Inner {
    parent: Option<Py<Scope>>,
    /// What it had counted when it was closed.
    last: tenure_statistics,
}

static VARIABLE: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();

/// The context variable's bound `get` and `set`.
fn variable(py: Python<'_>) -> PyResult<&(Py<PyAny>, Py<PyAny>)> {
    VARIABLE.get_or_try_init(py, || {
        let kwargs = pyo3::types::PyDict::new(py);
        kwargs.set_item("default", py.None())?;
        let variable = py.import("contextvars")?.getattr("ContextVar")?.call(("tenure.statistics",), Some(&kwargs))?;
        Ok((variable.getattr("get")?.unbind(), variable.getattr("set")?.unbind()))
    })
}

fn empty() -> tenure_statistics {
    tenure_statistics { size: size_of::<tenure_statistics>(), ..tenure_statistics::default() }
}

impl Scope {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_open(&self) -> bool {
        self.handle.load(Ordering::Acquire) != 0
    }
}

/// The nearest open scope from `scope` outward.
fn open_from<'py>(py: Python<'py>, mut scope: Option<Bound<'py, Scope>>) -> Option<Bound<'py, Scope>> {
    while let Some(at) = scope {
        if at.get().is_open() {
            return Some(at);
        }
        scope = at.get().inner().parent.as_ref().map(|parent| parent.bind(py).clone());
    }
    None
}

/// The open scope that the current context is in.
fn innermost(py: Python<'_>) -> PyResult<Option<Bound<'_, Scope>>> {
    let value = variable(py)?.0.bind(py).call0()?;
    let scope = if value.is_none() { None } else { Some(value.cast_into::<Scope>()?) };
    Ok(open_from(py, scope))
}

/// Makes the engine's scope of this thread the one of the current context. Before every call that allocates or frees.
#[inline]
pub(crate) fn sync(py: Python<'_>) {
    if OPEN.load(Ordering::Relaxed) != 0 {
        follow_context(py);
    }
}

/// [`sync`] from where it is not known whether this thread has the interpreter.
#[inline]
pub(crate) fn sync_if_attached() {
    if OPEN.load(Ordering::Relaxed) != 0 {
        gil::if_held(follow_context);
    }
}

#[cold]
fn follow_context(py: Python<'_>) {
    // A buffer may be dropped while an exception is under way, which the call of `get` must not meet.
    let raised = PyErr::take(py);
    match innermost(py) {
        Ok(scope) => {
            let wanted = scope.map_or(0, |scope| scope.get().handle.load(Ordering::Acquire));
            let _ = LAST.try_with(|last| {
                if last.get() != wanted {
                    // SAFETY: no pointers that are not null.
                    let entered = unsafe { (api().statistics_scope_enter)(wanted, std::ptr::null_mut()) };
                    // Another thread may just have closed it.
                    last.set(if entered == TENURE_OK { wanted } else { 0 });
                }
            });
        }
        // What cannot be counted in a scope is counted outside of all.
        Err(error) => error.write_unraisable(py, None),
    }
    if let Some(raised) = raised {
        raised.restore(py);
    }
}

/// Opens a scope of a statistics adaptor in the current context.
#[pyfunction]
#[pyo3(signature = (mr, opener=None))]
fn _scope_open<'py>(
    py: Python<'py>,
    mr: &Bound<'_, DeviceMemoryResource>,
    opener: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, Scope>> {
    let resource = DeviceMemoryResource::handle(mr)?;
    let parent = innermost(py)?;
    if let Some(parent) = &parent {
        // Scopes that are closed before what they were opened in would else make an ever longer way out.
        let outer = parent.get().inner().parent.as_ref().map(|outer| outer.bind(py).clone());
        let outer = open_from(py, outer).map(Bound::unbind);
        let before = std::mem::replace(&mut parent.get().inner().parent, outer);
        drop(before);
    }
    follow_context(py);
    let (mut adaptor, mut handle) = (0, 0);
    // SAFETY: the pointers are valid for writing.
    check(py, unsafe { (api().resource_id)(resource, &mut adaptor) })?;
    // SAFETY: as above.
    call(py, || unsafe { (api().statistics_scope_open)(resource, &mut handle) })?;
    OPEN.fetch_add(1, Ordering::AcqRel);
    let _ = LAST.try_with(|last| last.set(handle));
    let inner = Mutex::new(Inner { parent: parent.map(Bound::unbind), last: empty() });
    let opener = opener.unwrap_or_else(|| py.None());
    let scope = Bound::new(py, Scope { handle: AtomicU64::new(handle), adaptor, opener, inner })?;
    variable(py)?.1.bind(py).call1((&scope,))?;
    Ok(scope)
}

/// The innermost open scope of the current context that is `mr`'s and, where an opener is named, that it opened.
#[pyfunction]
#[pyo3(signature = (mr=None, opener=None))]
fn _scope_find<'py>(
    py: Python<'py>,
    mr: Option<&Bound<'_, DeviceMemoryResource>>,
    opener: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Bound<'py, Scope>>> {
    let mut adaptor = 0;
    if let Some(mr) = mr {
        // SAFETY: the pointer is valid for writing.
        check(py, unsafe { (api().resource_id)(DeviceMemoryResource::handle(mr)?, &mut adaptor) })?;
    }
    let mut at = innermost(py)?;
    while let Some(scope) = at {
        let this = scope.get();
        let its = mr.is_none() || this.adaptor == adaptor;
        if its && opener.is_none_or(|opener| this.opener.bind(py).is(opener)) {
            return Ok(Some(scope));
        }
        let outer = this.inner().parent.as_ref().map(|outer| outer.bind(py).clone());
        at = open_from(py, outer);
    }
    Ok(None)
}

#[pymethods]
impl Scope {
    /// What it has counted.
    fn counters(&self, py: Python<'_>) -> PyResult<Statistics> {
        let mut out = empty();
        match self.handle.load(Ordering::Acquire) {
            0 => out = self.inner().last,
            // SAFETY: `out` is valid and its size is set.
            handle => call(py, || unsafe { (api().statistics_scope_get)(handle, &mut out) })?,
        }
        Ok(Statistics(out))
    }

    /// Closes it, and says what it has counted; again: only that.
    fn close(slf: &Bound<'_, Self>) -> PyResult<Statistics> {
        let (py, this) = (slf.py(), slf.get());
        let handle = this.handle.swap(0, Ordering::AcqRel);
        if handle != 0 {
            let mut out = empty();
            // SAFETY: `out` is valid and its size is set. It takes no lock that anybody holds for long.
            let closed = unsafe { (api().statistics_scope_close)(handle, &mut out) };
            OPEN.fetch_sub(1, Ordering::AcqRel);
            this.inner().last = out;
            let value = variable(py)?.0.bind(py).call0()?;
            if value.is(slf) {
                let outer = innermost(py)?.map_or_else(|| py.None(), |outer| outer.into_any().unbind());
                variable(py)?.1.bind(py).call1((outer,))?;
            }
            follow_context(py);
            if closed != TENURE_ERROR_FORKED {
                check(py, closed)?;
            }
        }
        this.counters(py)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let handle = *self.handle.get_mut();
        if handle != 0 {
            OPEN.fetch_sub(1, Ordering::AcqRel);
            // SAFETY: a null pointer is allowed; the scope is closed once.
            unsafe { (api().statistics_scope_close)(handle, std::ptr::null_mut()) };
        }
    }
}

/// Adds the class and the functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Scope>()?;
    module.add_function(wrap_pyfunction!(_scope_open, module)?)?;
    module.add_function(wrap_pyfunction!(_scope_find, module)?)
}
