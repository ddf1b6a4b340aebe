//! Looking inside: `tag`, `observe`, the accounts, the snapshot, and the stacks of Python.
//!
//! ```text
//!  context variable: chain of tags   --sync-->   this thread's tag in the engine   --counted by-->   every allocation
//!  (follows tasks, to_thread)                    (follows the thread)
//! ```
//!
//! The engine keeps tags per thread, Python keeps contexts per task. As with `using` (`current.rs`) the context variable is
//! what counts, and before each call that allocates [`sync`] makes the thread's tag what the context says. Native code that
//! runs between two such calls sees what the last one left.
//!
//! # Rules
//! * A chain is never changed, only replaced: a task that copied the context keeps its tag when the `with` block of its maker
//!   ends. One that ends in another context than it began in is marked as ended and skipped everywhere.
//! * The stack is told under the interpreter's lock, on the thread that allocates; nothing of it is kept but text.
//!
//! # Cost
//! One relaxed load until the first tag of the process; afterwards a call of the context variable's `get`. A stack costs some
//! 300 ns a frame.

use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use tenure_abi::*;

use crate::errors::{call, check, text};
use crate::scopes;
use crate::table::api;

/// Whether a tag was ever opened in this process.
static EVER: AtomicBool = AtomicBool::new(false);
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The value of the context variable: the innermost tag, and through it those around it.
#[pyclass(frozen, module = "tenure._tenure")]
struct Link {
    id: u64,
    name: CString,
    outer: Option<Py<Self>>,
    ended: AtomicBool,
}

/// What the engine was told on this thread.
#[derive(Clone, Copy, Default)]
struct Synced {
    /// The link's number; 0: none.
    link: u64,
    token: tenure_tag,
}

thread_local! {
    static SYNCED: Cell<Synced> = const { Cell::new(Synced { link: 0, token: 0 }) };
}

static VARIABLE: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();

/// The context variable's bound `get` and `set`.
fn variable(py: Python<'_>) -> PyResult<&(Py<PyAny>, Py<PyAny>)> {
    VARIABLE.get_or_try_init(py, || {
        let kwargs = PyDict::new(py);
        kwargs.set_item("default", py.None())?;
        let variable = py.import("contextvars")?.getattr("ContextVar")?.call(("tenure.tag",), Some(&kwargs))?;
        Ok((variable.getattr("get")?.unbind(), variable.getattr("set")?.unbind()))
    })
}

/// The innermost tag of the context that has not ended.
fn innermost(py: Python<'_>) -> PyResult<Option<Bound<'_, Link>>> {
    let value = variable(py)?.0.bind(py).call0()?;
    let mut link = if value.is_none() { None } else { Some(value.cast_into::<Link>()?) };
    while let Some(ended) = link.take_if(|link| link.get().ended.load(Ordering::Acquire)) {
        link = ended.get().outer.as_ref().map(|outer| outer.bind(py).clone());
    }
    Ok(link)
}

fn set(py: Python<'_>, link: Option<Bound<'_, Link>>) -> PyResult<()> {
    variable(py)?.1.bind(py).call1((link,))?;
    Ok(())
}

/// For each call that allocates: the tag and the scopes of statistics of the context that runs are this thread's.
#[inline]
pub(crate) fn follow(py: Python<'_>) -> PyResult<()> {
    sync(py)?;
    scopes::sync(py);
    Ok(())
}

/// Makes this thread's tag in the engine what the current context says. Before every call that allocates.
///
/// # Errors
/// The engine refuses the tag.
#[inline]
pub(crate) fn sync(py: Python<'_>) -> PyResult<()> {
    if EVER.load(Ordering::Relaxed) { sync_tag(py) } else { Ok(()) }
}

fn sync_tag(py: Python<'_>) -> PyResult<()> {
    let link = innermost(py)?;
    let wanted = link.as_ref().map_or(0, |link| link.get().id);
    let synced = SYNCED.get();
    if synced.link == wanted {
        return Ok(());
    }
    // SAFETY: a token of this thread's, given back once; 0 is none.
    unsafe { (api().tag_pop)(synced.token) };
    SYNCED.set(Synced::default());
    let mut token = 0;
    if let Some(link) = link {
        // SAFETY: a C string; the pointer is valid for writing.
        check(py, unsafe { (api().tag_push)(link.get().name.as_ptr(), &mut token) })?;
    }
    SYNCED.set(Synced { link: wanted, token });
    Ok(())
}

/// Counts what this context allocates under a name.
#[pyclass(name = "tag", frozen, module = "tenure")]
struct Tag {
    name: CString,
    entered: Mutex<Vec<Py<Link>>>,
}

#[pymethods]
impl Tag {
    #[new]
    #[pyo3(signature = (name, /))]
    fn new(name: &str) -> PyResult<Self> {
        if name.is_empty() || name.len() > 256 {
            return Err(PyValueError::new_err(format!(
                "a tag is a name of 1 to 256 bytes, and this one has {}: give a short name for what the code does",
                name.len()
            )));
        }
        let name = CString::new(name).map_err(|_| PyValueError::new_err("a tag cannot have a zero byte"))?;
        Ok(Self { name, entered: Mutex::new(Vec::new()) })
    }

    #[getter]
    fn name(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let (py, this) = (slf.py(), slf.get());
        let outer = innermost(py)?;
        let link = Link {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name: this.name.clone(),
            outer: outer.clone().map(Bound::unbind),
            ended: AtomicBool::new(false),
        };
        let link = Bound::new(py, link)?;
        set(py, Some(link.clone()))?;
        EVER.store(true, Ordering::Release);
        if let Err(e) = sync(py) {
            set(py, outer)?;
            return Err(e);
        }
        this.entered.lock().unwrap_or_else(PoisonError::into_inner).push(link.unbind());
        Ok(slf)
    }

    #[pyo3(signature = (*_exc))]
    fn __exit__(&self, py: Python<'_>, _exc: &Bound<'_, PyTuple>) -> PyResult<()> {
        let link = self.entered.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(link) = link else {
            return Err(PyRuntimeError::new_err("tag.__exit__ without __enter__: write `with tenure.tag(name):`"));
        };
        match innermost(py)? {
            Some(now) if now.is(link.bind(py)) => {
                set(py, link.get().outer.as_ref().map(|outer| outer.bind(py).clone()))?;
            }
            // Not the innermost, or ended in another context: skipped wherever it is found.
            _ => link.get().ended.store(true, Ordering::Release),
        }
        sync(py)
    }

    fn __repr__(&self) -> String {
        format!("tag({:?})", self.name())
    }
}

// ------------------------------------------------------------------------------------------------------ what is asked

#[pyfunction]
#[pyo3(signature = (enabled=true, /))]
fn observe(py: Python<'_>, enabled: bool) -> PyResult<()> {
    // SAFETY: takes an integer.
    call(py, || unsafe { (api().observe)(u32::from(enabled)) })
}

#[pyfunction]
fn _record_history(py: Python<'_>, enabled: bool, stacks: bool, max_entries: usize) -> PyResult<()> {
    // SAFETY: takes integers.
    call(py, || unsafe { (api().history_record)(u32::from(enabled), u32::from(stacks), max_entries) })
}

#[pyfunction]
fn _memory_snapshot(py: Python<'_>) -> PyResult<String> {
    let mut out = tenure_text { data: std::ptr::null(), size: 0 };
    let to = &raw mut out;
    // SAFETY: `out` is valid for writing.
    call(py, || unsafe { (api().memory_snapshot)(to) })?;
    // SAFETY: the library filled it; so many bytes of UTF-8.
    let told = unsafe { std::slice::from_raw_parts(out.data.cast::<u8>(), out.size) };
    let told = String::from_utf8_lossy(told).into_owned();
    // SAFETY: given back once.
    unsafe { (api().text_free)(to) };
    Ok(told)
}

// ------------------------------------------------------------------------------------------------------------ reports

/// What is allocated while this lives is a library's.
pub(crate) struct Library(u32);

impl Library {
    #[inline]
    pub(crate) fn enter(number: u32) -> Self {
        let mut previous = 0;
        // SAFETY: `previous` is valid for writing; a number that nobody has is the program's.
        unsafe { (api().library_set)(number, &mut previous) };
        Self(previous)
    }
}

impl Drop for Library {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a null pointer is allowed.
        unsafe { (api().library_set)(self.0, std::ptr::null_mut()) };
    }
}

/// The number of a library by its name; 0, the program's own, where it cannot be had.
pub(crate) fn library_number(name: &std::ffi::CStr) -> u32 {
    let mut number = 0;
    // SAFETY: a C string; `number` is valid for writing.
    unsafe { (api().library_number)(name.as_ptr(), &mut number) };
    number
}

/// Makes a buffer in the name of a library.
#[pyfunction]
fn _library_buffer<'py>(
    py: Python<'py>,
    library: &str,
    size: &Bound<'py, PyAny>,
    stream: &Bound<'py, PyAny>,
    mr: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let name = CString::new(library).map_err(|_| PyValueError::new_err("a name of a library has no zero byte"))?;
    let keywords = PyDict::new(py);
    keywords.set_item("size", size)?;
    keywords.set_item("stream", stream)?;
    keywords.set_item("mr", mr)?;
    let class = py.get_type::<crate::buffer::DeviceBuffer>();
    let _library = Library::enter(library_number(&name));
    class.call((), Some(&keywords))
}

#[pyfunction]
fn _report_begin(py: Python<'_>, on: bool, stacks: bool) -> PyResult<()> {
    // SAFETY: takes integers.
    call(py, || unsafe { (api().report_begin)(u32::from(on), u32::from(stacks)) })
}

#[pyfunction]
fn _report(py: Python<'_>) -> PyResult<String> {
    let mut out = tenure_text { data: std::ptr::null(), size: 0 };
    let to = &raw mut out;
    // SAFETY: `out` is valid for writing.
    call(py, || unsafe { (api().report)(to) })?;
    // SAFETY: the library filled it; so many bytes of UTF-8.
    let told = unsafe { std::slice::from_raw_parts(out.data.cast::<u8>(), out.size) };
    let told = String::from_utf8_lossy(told).into_owned();
    // SAFETY: given back once.
    unsafe { (api().text_free)(to) };
    Ok(told)
}

type Row = (String, u64, u64, u64, u64, u64, u64, u64);

unsafe extern "C" fn visit(context: *mut c_void, account: *const tenure_account) -> i32 {
    // SAFETY: the context is the list of `_usage` below, and the account is valid during the call.
    let (list, account) = unsafe { (&mut *context.cast::<Vec<Row>>(), &*account) };
    list.push((
        text(account.name),
        account.id,
        account.live_bytes,
        account.live_count,
        account.peak_bytes,
        account.peak_count,
        account.total_bytes,
        account.total_count,
    ));
    0
}

#[pyfunction]
fn _usage(py: Python<'_>, by: u32) -> PyResult<Vec<Row>> {
    let mut list: Vec<Row> = Vec::new();
    let context = (&raw mut list).cast();
    // SAFETY: the function is called during this call only, with this list.
    call(py, || unsafe { (api().usage)(by, Some(visit), context) })?;
    Ok(list)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Tag>()?;
    module.add_function(wrap_pyfunction!(observe, module)?)?;
    module.add_function(wrap_pyfunction!(_record_history, module)?)?;
    module.add_function(wrap_pyfunction!(_memory_snapshot, module)?)?;
    module.add_function(wrap_pyfunction!(_usage, module)?)?;
    module.add_function(wrap_pyfunction!(_library_buffer, module)?)?;
    module.add_function(wrap_pyfunction!(_report_begin, module)?)?;
    module.add_function(wrap_pyfunction!(_report, module)?)?;
    Ok(())
}
