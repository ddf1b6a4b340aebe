//! Asking the rest of the process for memory, and being asked, by Python functions.
//!
//! A hook belongs to the engine from `on_low_memory` until it is removed. It is entered with the interpreter's lock, which the
//! thread that allocates has given up before it could get there; once the interpreter is going it is not entered any more.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tenure_abi::*;

use crate::errors::{self, call};
use crate::table::api;
use crate::{gil, size};

/// For the engine: asks the Python function.
///
/// # Safety
/// As `tenure_low_memory_fn` says; `context` is a Python function that the registration holds.
unsafe extern "C" fn ask(context: *mut c_void, device: i32, bytes: u64, released: *mut u64) -> tenure_status {
    gil::enter(|py| {
        // SAFETY: the registration holds the object; it is only borrowed.
        let function = unsafe { Bound::<PyAny>::from_borrowed_ptr(py, context.cast()) };
        let freed = function.call1((device, bytes)).and_then(|answer| {
            if answer.is_none() {
                return Ok(0);
            }
            answer.extract::<u64>().map_err(|_| {
                PyTypeError::new_err(
                    "a low-memory callback returns how many bytes it freed (an int that is not negative) or None",
                )
            })
        });
        match freed {
            // SAFETY: valid for writing during the call.
            Ok(freed) => unsafe { released.write(freed) },
            Err(raised) => raised.write_unraisable(py, Some(&function)),
        }
    });
    TENURE_OK
}

/// For the engine: nothing calls the function any more.
///
/// # Safety
/// `context` is a Python function, and the reference that the registration holds is given up.
unsafe extern "C" fn release(context: *mut c_void) {
    // Leaked where the interpreter is going, as every Python reference of the engine is.
    gil::enter(|py| {
        // SAFETY: as the caller says.
        drop(unsafe { Bound::<PyAny>::from_owned_ptr(py, context.cast()) });
    });
}

/// A registration.
#[pyclass(frozen, module = "tenure")]
pub(crate) struct LowMemoryHook {
    /// 0 once it was removed.
    token: AtomicU64,
}

#[pymethods]
impl LowMemoryHook {
    fn remove(&self, py: Python<'_>) -> PyResult<()> {
        match self.token.swap(0, Ordering::AcqRel) {
            0 => Ok(()),
            // SAFETY: the registration is removed once.
            token => call(py, || unsafe { (api().low_memory_remove)(token) }),
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, py: Python<'_>, _args: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.remove(py)
    }
}

#[pyfunction]
#[pyo3(signature = (callback, /))]
fn on_low_memory(callback: &Bound<'_, PyAny>) -> PyResult<LowMemoryHook> {
    if !callback.is_callable() {
        let kind = callback.get_type().name()?;
        return Err(PyTypeError::new_err(format!("callback must be callable, not {kind}")));
    }
    let context = callback.clone().into_ptr();
    let owner = tenure_owner { context: context.cast(), release: Some(release) };
    let mut token = 0;
    // SAFETY: the owner keeps the function alive; the pointer is valid for writing.
    let status = errors::call(callback.py(), || unsafe { (api().low_memory_add)(Some(ask), owner, &mut token) });
    if let Err(e) = status {
        // SAFETY: the call failed, so the reference is still ours.
        unsafe { release(context.cast()) };
        return Err(e);
    }
    Ok(LowMemoryHook { token: AtomicU64::new(token) })
}

#[pyfunction]
#[pyo3(signature = (device=None, size=None), text_signature = "(device=None, size=0)")]
fn low_memory(py: Python<'_>, device: Option<i32>, size: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    let bytes = size::optional(size, "size")?.unwrap_or(0) as u64;
    let device = crate::stream::device_number(device)?;
    let mut released = 0;
    // SAFETY: the pointer is valid for writing.
    call(py, || unsafe { (api().low_memory)(device, bytes, &mut released) })?;
    Ok(released)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<LowMemoryHook>()?;
    module.add_function(wrap_pyfunction!(on_low_memory, module)?)?;
    module.add_function(wrap_pyfunction!(low_memory, module)?)?;
    Ok(())
}
