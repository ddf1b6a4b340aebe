//! `tenure.SharedArena`, `tenure.capture_scope`, and the graphs of `tenure.sim`.
//!
//! A scope belongs to the thread that entered it where it names no stream; a pool's question "who shares this capture?" is
//! answered in the engine, so that no Python runs while a stream is capturing.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tenure_abi::*;

use crate::errors::{call, check};
use crate::gil;
use crate::stream::{self, Stream};
use crate::table::api;

/// A name for memory that several graphs share which never run at the same time.
#[pyclass(frozen, weakref, module = "tenure")]
pub(crate) struct SharedArena {
    handle: tenure_shared_arena,
}

#[pymethods]
impl SharedArena {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let mut handle = 0;
        // SAFETY: `handle` is valid for writing.
        check(py, unsafe { (api().shared_arena_create)(&mut handle) })?;
        Ok(Self { handle })
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a shared arena belongs to its process and cannot be pickled"))
    }

    fn __repr__(&self) -> String {
        format!("<tenure.SharedArena {:#x}>", self.handle)
    }
}

impl Drop for SharedArena {
    fn drop(&mut self) {
        // SAFETY: this name is ours and is given back once.
        unsafe { (api().shared_arena_release)(self.handle) };
    }
}

/// A scope around captures of a stream.
#[pyclass(name = "capture_scope", frozen, module = "tenure")]
pub(crate) struct CaptureScope {
    /// `None`: the default stream of the thread that enters.
    stream: Option<Py<Stream>>,
    shared: Option<Py<SharedArena>>,
    entered: Mutex<Vec<tenure_capture_scope>>,
}

#[pymethods]
impl CaptureScope {
    #[new]
    #[pyo3(signature = (stream=None, shared=None))]
    fn new(stream: Option<&Bound<'_, PyAny>>, shared: Option<Bound<'_, PyAny>>) -> PyResult<Self> {
        let stream = match stream {
            None => None,
            Some(given) => match stream::argument(Some(given))? {
                stream::StreamArgument::Given(stream) => Some(stream.unbind()),
                stream::StreamArgument::Default => None,
            },
        };
        let shared = match shared {
            None => None,
            Some(given) => Some(
                given
                    .cast_into::<SharedArena>()
                    .map_err(|_| PyTypeError::new_err("shared must be a tenure.SharedArena or None"))?
                    .unbind(),
            ),
        };
        Ok(Self { stream, shared, entered: Mutex::new(Vec::new()) })
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<Option<Py<SharedArena>>> {
        let per_thread = tenure_stream { raw: 2 as *mut c_void, object: 0 };
        let stream = self.stream.as_ref().map_or(per_thread, |stream| stream.get().carried());
        let arena = self.shared.as_ref().map_or(0, |shared| shared.get().handle);
        let mut scope = 0;
        // SAFETY: `scope` is valid for writing; this object holds the stream.
        check(py, unsafe { (api().capture_scope_enter)(stream, arena, &mut scope) })?;
        self.entered.lock().unwrap_or_else(PoisonError::into_inner).push(scope);
        Ok(self.shared.as_ref().map(|shared| shared.clone_ref(py)))
    }

    #[pyo3(signature = (*_exc))]
    fn __exit__(&self, py: Python<'_>, _exc: &Bound<'_, PyTuple>) -> PyResult<()> {
        let scope = self.entered.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(scope) = scope else {
            return Err(PyRuntimeError::new_err(
                "capture_scope.__exit__ without __enter__: write `with tenure.capture_scope(...):`",
            ));
        };
        // The stream may end with it, which may enter Python.
        // SAFETY: no pointer; this scope is ours and is left once.
        call(py, || unsafe { (api().capture_scope_exit)(scope) })
    }
}

impl Drop for CaptureScope {
    fn drop(&mut self) {
        let entered = std::mem::take(self.entered.get_mut().unwrap_or_else(PoisonError::into_inner));
        for scope in entered {
            // SAFETY: as in `__exit__`.
            gil::without_lock(|| unsafe { (api().capture_scope_exit)(scope) });
        }
    }
}

/// A graph of `tenure.sim.capture_end`.
#[pyclass(frozen, module = "tenure.sim")]
pub(crate) struct Graph {
    handle: Mutex<tenure_graph>,
}

impl Graph {
    fn take(&self) -> tenure_graph {
        std::mem::take(&mut self.handle.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl Graph {
    #[pyo3(signature = (stream))]
    fn launch(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let stream = stream::argument(Some(stream))?;
        let carried = stream.carried();
        let handle = *self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        if handle == 0 {
            return Err(PyRuntimeError::new_err("this graph is closed; capture another one"));
        }
        // SAFETY: handles are checked by the library.
        call(py, || unsafe { (api().sim_graph_launch)(handle, carried) })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match self.take() {
            0 => Ok(()),
            // SAFETY: this graph is ours and is ended once.
            handle => call(py, || unsafe { (api().sim_graph_destroy)(handle) }),
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let handle = self.take();
        if handle != 0 {
            // SAFETY: as in `close`.
            gil::without_lock(|| unsafe { (api().sim_graph_destroy)(handle) });
        }
    }
}

#[pyfunction]
#[pyo3(signature = (stream, mode="global"))]
fn sim_capture_begin(py: Python<'_>, stream: &Bound<'_, PyAny>, mode: &str) -> PyResult<()> {
    let mode = match mode {
        "global" => 0,
        "thread_local" => 1,
        "relaxed" => 2,
        other => {
            return Err(PyValueError::new_err(format!(
                "mode is {other:?}; it must be \"global\", \"thread_local\" or \"relaxed\""
            )));
        }
    };
    let stream = stream::argument(Some(stream))?;
    let carried = stream.carried();
    // SAFETY: the stream is held.
    call(py, || unsafe { (api().sim_capture_begin)(carried, mode) })
}

#[pyfunction]
fn sim_capture_end(py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<Graph> {
    let stream = stream::argument(Some(stream))?;
    let carried = stream.carried();
    let mut handle = 0;
    // SAFETY: the stream is held; `handle` is valid for writing.
    call(py, || unsafe { (api().sim_capture_end)(carried, &mut handle) })?;
    Ok(Graph { handle: Mutex::new(handle) })
}

/// Adds the classes and functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SharedArena>()?;
    module.add_class::<CaptureScope>()?;
    module.add("_Graph", module.py().get_type::<Graph>())?;
    module.add_function(wrap_pyfunction!(sim_capture_begin, module)?)?;
    module.add_function(wrap_pyfunction!(sim_capture_end, module)?)
}
