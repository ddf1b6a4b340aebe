//! `tenure.Stream`: an order of work, tenure's own or somebody else's.
//!
//! A Python stream holds one reference to an engine's stream object, and that object holds whatever keeps the driver's
//! stream alive. So a buffer keeps its stream alive without holding any Python object of ours.
//!
//! Final on purpose, and complete when `__new__` returns: there is no half-made stream.

use std::ffi::c_void;

use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyNotImplementedError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBool;
use tenure_abi::*;

use crate::errors::{self, call, check};
use crate::gil;
use crate::size;
use crate::table::api;

/// What a call carries when no stream is named.
pub(crate) const DEFAULT: tenure_stream = tenure_stream { raw: std::ptr::null_mut(), object: 0 };

/// A CUDA stream: an order of work on a device.
#[pyclass(frozen, weakref, module = "tenure")]
pub(crate) struct Stream {
    raw: usize,
    object: tenure_stream_object,
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.object != 0 {
            let object = self.object;
            // Ends the stream if this was the last reference: a driver call, or the release of a Python object.
            // SAFETY: this reference is ours and is given back once.
            gil::without_lock(|| unsafe { (api().stream_release)(object) });
        }
    }
}

impl Stream {
    /// The stream as a call carries it. Valid while `self` lives.
    #[inline]
    pub(crate) fn carried(&self) -> tenure_stream {
        tenure_stream { raw: self.raw as *mut c_void, object: self.object }
    }

    /// Takes over the reference in `stream.object`, if there is one.
    pub(crate) fn owning(stream: tenure_stream) -> Self {
        Self { raw: stream.raw as usize, object: stream.object }
    }

    /// A stream object of its own for a stream that is borrowed for now.
    ///
    /// # Errors
    /// The object has gone meanwhile.
    pub(crate) fn sharing(py: Python<'_>, stream: tenure_stream) -> PyResult<Self> {
        if stream.object != 0 {
            // SAFETY: handles are checked by the library.
            check(py, unsafe { (api().stream_retain)(stream.object) })?;
        }
        Ok(Self::owning(stream))
    }

    /// A borrowed stream as a buffer of `device` means it (-1: one of the host): a default stream is that device's, whichever is
    /// current on this thread.
    pub(crate) fn of_device(py: Python<'_>, stream: tenure_stream, device: i32) -> PyResult<Self> {
        if stream.object != 0 || stream.raw as usize > 2 || device < 0 {
            return Self::sharing(py, stream);
        }
        let mut current = 0;
        // SAFETY: `current` is valid for writing. The answer is in the thread's own state: nobody is waited for.
        check(py, unsafe { (api().device_get_current)(&mut current) })?;
        if current == device {
            return Ok(Self::owning(stream));
        }
        let mut out = DEFAULT;
        // SAFETY: `out` is valid for writing; a default stream is never destroyed.
        check(py, unsafe { (api().stream_immortal)(stream.raw, device, &mut out) })?;
        Ok(Self::owning(out))
    }

    fn create(py: Python<'_>, device: i32, non_blocking: bool) -> PyResult<Self> {
        let mut out = DEFAULT;
        // SAFETY: `out` is valid for writing.
        call(py, || unsafe { (api().stream_create)(device, u32::from(non_blocking), &mut out) })?;
        Ok(Self::owning(out))
    }

    /// Somebody else's stream, with the object that keeps it alive.
    pub(crate) fn wrap(raw: usize, device: i32, owner: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = owner.py();
        if raw <= 2 {
            return Ok(Self { raw, object: 0 });
        }
        let context = owner.clone().into_ptr().cast::<c_void>();
        let mut out = DEFAULT;
        let keep = tenure_owner { context, release: Some(errors::drop_reference) };
        // SAFETY: `out` is valid for writing; the owner is a reference that `drop_reference` takes.
        let made = call(py, || unsafe { (api().stream_wrap)(raw as *mut c_void, device, keep, &mut out) });
        if made.is_err() {
            // SAFETY: the call failed, so the reference is still ours.
            drop(unsafe { Bound::from_owned_ptr(py, context.cast()) });
        }
        made.map(|()| Self::owning(out))
    }

    /// Reads a stream out of any object that is one.
    pub(crate) fn from_any(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(stream) = object.cast::<Self>() {
            return Self::sharing(object.py(), stream.get().carried());
        }
        Self::wrap(foreign_address(object)?, -1, object)
    }
}

fn type_error(object: &Bound<'_, PyAny>) -> PyErr {
    let kind = object.get_type().name().map(|n| n.to_string()).unwrap_or_default();
    PyTypeError::new_err(format!(
        "stream must be a tenure.Stream or an object with __cuda_stream__ (such as the streams of CuPy, Numba, PyTorch and cuda.core), not {kind}; \
         wrap a bare address with tenure.Stream.from_handle(address, owner=...)"
    ))
}

/// The address of a foreign stream object: `__cuda_stream__` first, then what CuPy, Numba and PyTorch call it.
pub(crate) fn foreign_address(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    if let Some(protocol) = object.getattr_opt("__cuda_stream__")? {
        let answer = if protocol.is_callable() { protocol.call0()? } else { protocol };
        let (version, address): (usize, usize) = answer.extract().map_err(|_| {
            PyTypeError::new_err(
                "__cuda_stream__ must return two integers: the version of the protocol, and the address",
            )
        })?;
        if version != 0 {
            return Err(PyNotImplementedError::new_err(format!(
                "this tenure knows version 0 of the CUDA stream protocol, and __cuda_stream__ answers version: '{version}'; upgrade tenure"
            )));
        }
        return Ok(address);
    }
    let module: String =
        object.get_type().getattr_opt("__module__")?.and_then(|name| name.extract().ok()).unwrap_or_default();
    let named = match module.split('.').next() {
        Some("cupy") => Some("ptr"),
        Some("numba" | "numba_cuda") => Some("handle"),
        Some("torch") => Some("cuda_stream"),
        _ => None,
    };
    if let Some(name) = named
        && let Some(value) = object.getattr_opt(name)?
    {
        return size::address(&value, "the stream's address");
    }
    Err(type_error(object))
}

/// The stream of an argument: `None` is `DEFAULT_STREAM`.
pub(crate) enum StreamArgument<'py> {
    Default,
    Given(Bound<'py, Stream>),
}

impl StreamArgument<'_> {
    /// The stream as a call carries it. Valid while `self` lives.
    #[inline]
    pub(crate) fn carried(&self) -> tenure_stream {
        match self {
            Self::Default => DEFAULT,
            Self::Given(stream) => stream.get().carried(),
        }
    }
}

/// Reads a stream argument. A foreign stream is held, with its owner, by the result.
#[inline]
pub(crate) fn argument<'py>(value: Option<&Bound<'py, PyAny>>) -> PyResult<StreamArgument<'py>> {
    match value {
        None => Ok(StreamArgument::Default),
        Some(value) => match value.cast::<Stream>() {
            Ok(stream) => Ok(StreamArgument::Given(stream.clone())),
            Err(_) => Ok(StreamArgument::Given(Bound::new(value.py(), Stream::from_any(value)?)?)),
        },
    }
}

/// Reads a `CudaStreamFlags`: whether the stream shall not synchronise with the legacy default stream.
///
/// # Errors
/// `TypeError` for what is no integer, `ValueError` for another number than 0 and 1.
pub(crate) fn is_non_blocking(flags: &Bound<'_, PyAny>) -> PyResult<bool> {
    let number: Option<i64> = if flags.is_instance_of::<PyBool>() { None } else { flags.extract().ok() };
    match number {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        Some(other) => Err(PyValueError::new_err(format!(
            "flags is {other}; it must be CudaStreamFlags.SYNC_DEFAULT (0) or CudaStreamFlags.NON_BLOCKING (1)"
        ))),
        None => {
            let kind = flags.get_type().name().map(|n| n.to_string()).unwrap_or_default();
            Err(PyTypeError::new_err(format!("flags must be a tenure.CudaStreamFlags, not {kind}")))
        }
    }
}

/// A number of a device: `None` is the current one.
pub(crate) fn device_number(device: Option<i32>) -> PyResult<i32> {
    match device {
        None => Ok(-1),
        Some(number) if number >= 0 => Ok(number),
        Some(number) => {
            Err(PyValueError::new_err(format!("device is {number}; it must be 0 or more, or None for the current one")))
        }
    }
}

#[pymethods]
impl Stream {
    #[new]
    #[pyo3(signature = (obj=None, flags=None, *, device=None, non_blocking=false))]
    fn new(
        py: Python<'_>,
        obj: Option<&Bound<'_, PyAny>>,
        flags: Option<&Bound<'_, PyAny>>,
        device: Option<i32>,
        non_blocking: bool,
    ) -> PyResult<Self> {
        match obj {
            None => {
                let non_blocking = non_blocking | flags.map_or(Ok(false), is_non_blocking)?;
                Self::create(py, device_number(device)?, non_blocking)
            }
            Some(_) if flags.is_some() => Err(PyValueError::new_err(
                "flags may only be specified when obj is None: a stream that exists keeps the flags it was made with",
            )),
            Some(_) if device.is_some() || non_blocking => Err(PyValueError::new_err(
                "device and non_blocking are properties of a new stream; leave them out when a stream is given",
            )),
            Some(object) => Self::from_any(object),
        }
    }

    #[staticmethod]
    #[pyo3(signature = (handle, *, owner=None, device=None))]
    fn from_handle(
        py: Python<'_>,
        handle: &Bound<'_, PyAny>,
        owner: Option<&Bound<'_, PyAny>>,
        device: Option<i32>,
    ) -> PyResult<Self> {
        let raw = size::address(handle, "handle")?;
        let device = device_number(device)?;
        match owner {
            Some(owner) => Self::wrap(raw, device, owner),
            None if raw <= 2 => Ok(Self { raw, object: 0 }),
            None => {
                let mut out = DEFAULT;
                // SAFETY: `out` is valid for writing; that the stream lives as long as the process is the caller's word.
                call(py, || unsafe { (api().stream_immortal)(raw as *mut c_void, device, &mut out) })?;
                Ok(Self::owning(out))
            }
        }
    }

    #[getter]
    fn handle(&self) -> usize {
        self.raw
    }

    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<i32> {
        let mut out = 0;
        let stream = self.carried();
        // SAFETY: `out` is valid for writing.
        call(py, || unsafe { (api().stream_device)(stream, &mut out) })?;
        Ok(out)
    }

    fn is_default(&self) -> bool {
        self.raw <= 2
    }

    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        let stream = self.carried();
        // SAFETY: no pointer.
        call(py, || unsafe { (api().stream_synchronize)(stream) })
    }

    fn note_sync(&self, py: Python<'_>) -> PyResult<()> {
        let stream = self.carried();
        // SAFETY: no pointer.
        call(py, || unsafe { (api().note_sync)(stream) })
    }

    fn note_wait(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        let other = argument(Some(other))?;
        let (stream, other) = (self.carried(), other.carried());
        // SAFETY: no pointer.
        call(py, || unsafe { (api().note_wait)(stream, other) })
    }

    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        let stream = self.carried();
        let mut done = 0;
        // SAFETY: `done` is valid for writing.
        call(py, || unsafe { (api().stream_query)(stream, &mut done) })?;
        Ok(done != 0)
    }

    fn wait_stream(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        let other = argument(Some(other))?;
        let (stream, other) = (self.carried(), other.carried());
        // SAFETY: no pointer.
        call(py, || unsafe { (api().stream_wait_stream)(stream, other) })
    }

    fn __cuda_stream__(&self) -> (usize, usize) {
        (0, self.raw)
    }

    fn __richcmp__(&self, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let Ok(other) = other.cast::<Self>() else { return Ok(py.NotImplemented()) };
        let same = self.raw == other.get().raw;
        match op {
            CompareOp::Eq => Ok(same.into_pyobject(py)?.to_owned().into_any().unbind()),
            CompareOp::Ne => Ok((!same).into_pyobject(py)?.to_owned().into_any().unbind()),
            _ => Ok(py.NotImplemented()),
        }
    }

    fn __hash__(&self) -> u64 {
        self.raw as u64
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a stream belongs to its process and cannot be pickled"))
    }

    fn __repr__(&self) -> String {
        match self.raw {
            0 => "<tenure.Stream DEFAULT_STREAM>".into(),
            1 => "<tenure.Stream LEGACY_DEFAULT_STREAM>".into(),
            2 => "<tenure.Stream PER_THREAD_DEFAULT_STREAM>".into(),
            raw => format!("<tenure.Stream {raw:#x}>"),
        }
    }
}

/// `DEFAULT_STREAM` and its like.
fn constant(py: Python<'_>, cell: &PyOnceLock<Py<Stream>>, raw: usize) -> PyResult<Py<Stream>> {
    cell.get_or_try_init(py, || Py::new(py, Stream { raw, object: 0 })).map(|s| s.clone_ref(py))
}

/// Adds the class and its constants.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    static CONSTANTS: [PyOnceLock<Py<Stream>>; 3] = [const { PyOnceLock::new() }; 3];
    let py = module.py();
    module.add_class::<Stream>()?;
    for (raw, name) in ["DEFAULT_STREAM", "LEGACY_DEFAULT_STREAM", "PER_THREAD_DEFAULT_STREAM"].into_iter().enumerate()
    {
        module.add(name, constant(py, &CONSTANTS[raw], raw)?)?;
    }
    module.add_function(wrap_pyfunction!(_wrap_stream, module)?)?;
    module.add_function(wrap_pyfunction!(_borrow_stream, module)?)
}

/// For `tenure/python.h`: a stream that takes over the reference in `object` (0: none).
#[pyfunction]
fn _wrap_stream(py: Python<'_>, raw: usize, object: u64) -> PyResult<Py<Stream>> {
    let given = tenure_stream { raw: raw as *mut c_void, object };
    let made = Py::new(py, Stream::sharing(py, given)?)?;
    if object != 0 {
        // Only now: after a failure the reference is still the caller's.
        // SAFETY: the reference was given to this function, and the object has one of its own.
        gil::without_lock(|| unsafe { (api().stream_release)(object) });
    }
    Ok(made)
}

/// For `tenure/python.h`: the address and the object of a stream, borrowed while `stream` lives; `None` is the default one.
#[pyfunction]
#[pyo3(signature = (stream))]
fn _borrow_stream(stream: Option<&Bound<'_, PyAny>>) -> PyResult<(usize, u64)> {
    let Some(stream) = stream else { return Ok((DEFAULT.raw as usize, DEFAULT.object)) };
    let Ok(stream) = stream.cast::<Stream>() else {
        return Err(PyTypeError::new_err("this is no tenure.Stream; make one of it first: tenure.Stream(stream)"));
    };
    Ok((stream.get().raw, stream.get().object))
}
