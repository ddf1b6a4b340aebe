//! One conversion from the engine's errors to Python's exceptions.
//!
//! The classes live in `tenure/_errors.py`: exceptions with fields are easier to read, to pickle and to document there.
//! An exception that a Python callback raised crosses the engine as a *payload* and comes out as the same object.

use std::ffi::{CStr, CString, c_char, c_void};

use pyo3::exceptions::{PyBaseException, PyNotImplementedError, PyRuntimeError, PySystemError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use tenure_abi::*;

use crate::gil;
use crate::table::api;

/// Who can read our payloads: this module. Another interpreter's module in the process would use its own number.
const PAYLOAD_KIND: u32 = u32::from_be_bytes(*b"pyth");

static OUT_OF_MEMORY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static OWNERSHIP: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static CUDA: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// `Ok` for `TENURE_OK`, else the exception for the error of this thread.
#[inline]
pub(crate) fn check(py: Python<'_>, status: tenure_status) -> PyResult<()> {
    if status == TENURE_OK { Ok(()) } else { Err(error(py, status)) }
}

/// Makes a call that may wait, without the interpreter lock.
pub(crate) fn call(py: Python<'_>, f: impl FnOnce() -> tenure_status) -> PyResult<()> {
    let status = gil::detach(py, f);
    check(py, status)
}

/// `_try_` with the lock held, and the plain call without it where the first would wait.
#[inline]
pub(crate) fn try_call(
    py: Python<'_>,
    try_it: impl FnOnce() -> tenure_status,
    plain: impl FnOnce() -> tenure_status,
) -> PyResult<()> {
    match try_it() {
        TENURE_OK => Ok(()),
        TENURE_OK_COLLECT => {
            gil::detach(py, gil::collect);
            Ok(())
        }
        TENURE_ERROR_WOULD_BLOCK => call(py, plain),
        status => Err(error(py, status)),
    }
}

pub(crate) fn text(data: *const c_char) -> String {
    if data.is_null() {
        return String::new();
    }
    // SAFETY: the strings of `tenure_error` end with a zero byte and live until this thread's next failing call.
    unsafe { CStr::from_ptr(data) }.to_string_lossy().into_owned()
}

/// The text of the last failing call on this thread, which answered `status`; for those who may not touch Python.
pub(crate) fn message(status: tenure_status) -> String {
    if status == TENURE_ERROR_OUT_OF_MEMORY {
        // SAFETY: takes no argument.
        unsafe { (api().error_explain)() };
    }
    let mut detail = blank();
    // SAFETY: `detail` is valid and its size is set.
    if unsafe { (api().error_get)(&mut detail) } != TENURE_OK || detail.status != status {
        return format!("tenure failed with status {status}");
    }
    text(detail.message)
}

fn blank() -> tenure_error {
    // SAFETY: all fields are integers and pointers, for which zeros are values.
    let mut detail: tenure_error = unsafe { std::mem::zeroed() };
    detail.size = size_of::<tenure_error>();
    detail
}

/// The exception for the last failing call on this thread, which answered `status`.
#[cold]
pub(crate) fn error(py: Python<'_>, status: tenure_status) -> PyErr {
    if status == TENURE_ERROR_OUT_OF_MEMORY {
        // What a `_try_` call failed with is explained now: it may wait.
        // SAFETY: takes no argument.
        gil::detach(py, || unsafe { (api().error_explain)() });
    }
    let mut detail = blank();
    // SAFETY: `detail` is valid and its size is set.
    // A detail of another status belongs to another call.
    if unsafe { (api().error_get)(&mut detail) } != TENURE_OK || detail.status != status {
        detail = blank();
    }
    if detail.payload_kind == PAYLOAD_KIND
        && let Some(raised) = take_payload(py)
    {
        return raised;
    }
    let mut message = text(detail.message);
    if message.is_empty() {
        message = format!("tenure failed with status {status} and no text; please report it");
    }
    match status {
        TENURE_ERROR_OUT_OF_MEMORY => {
            let notes = text(detail.notes);
            let raised = build(py, &OUT_OF_MEMORY, "OutOfMemoryError", message, |fields| {
                fields.set_item("requested", detail.requested)?;
                fields.set_item("live", detail.live)?;
                fields.set_item("reserved", detail.reserved)?;
                fields.set_item("limit", detail.limit)?;
                fields.set_item("largest_free", detail.largest_free)?;
                fields.set_item("driver_free", detail.driver_free)?;
                fields.set_item("driver_total", detail.driver_total)?;
                fields.set_item("resource", text(detail.resource))?;
                fields.set_item("cached", detail.cached)?;
                fields.set_item("unproven", detail.unproven)?;
                fields.set_item("pending", text(detail.pending))?;
                fields.set_item("tried", text(detail.tried))
            });
            for note in notes.lines() {
                // An exception is worth more than its notes.
                let _ = raised.value(py).call_method1("add_note", (note,));
            }
            raised
        }
        TENURE_ERROR_OWNERSHIP => build(py, &OWNERSHIP, "OwnershipError", message, |fields| {
            fields.set_item("kind", misuse_name(detail.misuse_kind))?;
            fields.set_item("ptr", detail.ptr)?;
            fields.set_item("size", detail.bytes)?;
            fields.set_item("asked", detail.asked)?;
            fields.set_item("owner", detail.owner)?;
            fields.set_item("owner_size", detail.owner_bytes)
        }),
        TENURE_ERROR_CUDA | TENURE_ERROR_NO_DEVICE => build(py, &CUDA, "CudaError", message, |fields| {
            fields.set_item("code", detail.cuda_code)?;
            fields.set_item("name", text(detail.cuda_name))?;
            fields.set_item("call", text(detail.cuda_call))
        }),
        TENURE_ERROR_INVALID_ARGUMENT | TENURE_ERROR_BAD_HANDLE => PyValueError::new_err(message),
        TENURE_ERROR_UNSUPPORTED => PyNotImplementedError::new_err(message),
        TENURE_ERROR_INTERNAL => PySystemError::new_err(message),
        _ => PyRuntimeError::new_err(message),
    }
}

/// For `tenure/python.h`: raises the exception for the last failing call on this thread, which answered `status`.
#[pyfunction]
pub(crate) fn _raise_for_status(py: Python<'_>, status: tenure_status) -> PyResult<()> {
    if status == TENURE_OK_COLLECT {
        return call(py, gil::collect);
    }
    check(py, status)
}

fn misuse_name(kind: u32) -> &'static str {
    match kind {
        1 => "unknown pointer",
        2 => "interior pointer",
        3 => "wrong resource",
        4 => "wrong size",
        5 => "wrong alignment",
        6 => "double free",
        _ => "",
    }
}

fn build(
    py: Python<'_>,
    class: &PyOnceLock<Py<PyType>>,
    name: &str,
    message: String,
    fill: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<()>,
) -> PyErr {
    let made = (|| {
        let fields = PyDict::new(py);
        fill(&fields)?;
        class.import(py, "tenure._errors", name)?.call((message,), Some(&fields))
    })();
    match made {
        Ok(value) => PyErr::from_value(value),
        Err(e) => e,
    }
}

fn take_payload(py: Python<'_>) -> Option<PyErr> {
    let mut payload = std::ptr::null_mut();
    // SAFETY: the pointer is valid for writing.
    if unsafe { (api().error_take_payload)(PAYLOAD_KIND, &mut payload) } != TENURE_OK || payload.is_null() {
        return None;
    }
    // SAFETY: a payload of our kind is an owned reference to an exception, made by `raise_through`, and ours now.
    let value = unsafe { Bound::from_owned_ptr(py, payload.cast()) };
    Some(PyErr::from_value(value))
}

/// Drops a Python reference for the engine, on any thread. Leaks it once the interpreter is going.
///
/// # Safety
/// `context` is an owned reference to a Python object.
pub(crate) unsafe extern "C" fn drop_reference(context: *mut c_void) {
    gil::enter(|py| {
        // SAFETY: as the caller says.
        drop(unsafe { Bound::from_owned_ptr(py, context.cast()) });
    });
}

/// In a callback: gives the exception to the engine, and says what the callback should return.
///
/// A `MemoryError` is out of memory to everything between here and the caller, who still gets the object that was raised.
pub(crate) fn raise_through(py: Python<'_>, raised: PyErr) -> tenure_status {
    let status = if raised.is_instance_of::<pyo3::exceptions::PyMemoryError>(py) {
        TENURE_ERROR_OUT_OF_MEMORY
    } else {
        TENURE_ERROR_CALLBACK
    };
    let message = CString::new(raised.to_string().replace('\0', " ")).unwrap_or_default();
    let value: Py<PyBaseException> = raised.into_value(py);
    // SAFETY: the message is a string; the payload is an owned reference that `drop_reference` or `take_payload` takes.
    unsafe {
        (api().error_set)(status, message.as_ptr(), PAYLOAD_KIND, value.into_ptr().cast(), Some(drop_reference));
    }
    status
}
