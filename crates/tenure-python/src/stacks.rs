//! The Python frames of a stack, for the engine: `tenure_stack_set_source`.
//!
//! A thread that Python has never seen has no frames and is not made known to it. Any other takes the interpreter lock for
//! the walk, so that the engine calls this only from functions that may wait.
//!
//! Unsafe here: the frame of this thread, and the text that the engine gives room for.

use std::ffi::{c_char, c_void};
use std::fmt::Write as _;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::{ffi, types::PyAnyMethods};
use tenure_abi::*;

use crate::errors;
use crate::gil;
use crate::table::api;

/// Frames beyond this many are left out.
const MOST: usize = 100;

/// For the engine: the frames of this thread as text.
///
/// # Safety
/// As `tenure_stack_fn` says.
unsafe extern "C" fn frames(_context: *mut c_void, out: *mut c_char, capacity: usize) -> usize {
    // SAFETY: may be called on any thread at any time.
    if unsafe { ffi::Py_IsInitialized() == 0 || ffi::PyGILState_GetThisThreadState().is_null() } {
        return 0;
    }
    // A frame that cannot be read ends the list.
    let text = gil::enter(|py| {
        let mut text = String::new();
        let _end = walk(py, &mut text);
        text
    });
    let text = text.unwrap_or_default();
    // Whole lines only.
    let mut bytes = text.len().min(capacity);
    if bytes < text.len() {
        bytes = text.as_bytes()[..bytes].iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    }
    // SAFETY: there is room for `capacity` bytes.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast::<u8>(), bytes) };
    bytes
}

/// The folder of the package, with a separator at the end: its own frames are nobody's line.
static PACKAGE: PyOnceLock<String> = PyOnceLock::new();

fn package(py: Python<'_>) -> PyResult<&str> {
    let folder = PACKAGE.get_or_try_init(py, || {
        let file: String = py.import("tenure")?.getattr("__file__")?.extract()?;
        let end = file.rfind(['/', '\\']).map_or(0, |at| at + 1);
        Ok::<String, PyErr>(file[..end].to_owned())
    })?;
    Ok(folder)
}

fn walk(py: Python<'_>, text: &mut String) -> PyResult<()> {
    let own = package(py)?;
    // SAFETY: this thread has the interpreter lock; the frame is borrowed from it, or null.
    let top = unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast()) };
    let mut next = top;
    let mut count = 0;
    while let Some(frame) = next
        && count < MOST
    {
        let code = frame.getattr(intern!(py, "f_code"))?;
        let file: String = code.getattr(intern!(py, "co_filename"))?.extract()?;
        if count > 0 || own.is_empty() || !file.starts_with(own) {
            let name: String = code.getattr(intern!(py, "co_qualname"))?.extract()?;
            let line = frame.getattr(intern!(py, "f_lineno"))?.extract::<Option<u32>>()?.unwrap_or(0);
            // Writing into a string does not fail.
            let _ = writeln!(text, "{}:{line} {}", file.replace('\n', " "), name.replace('\n', " "));
            count += 1;
        }
        let back = frame.getattr(intern!(py, "f_back"))?;
        next = (!back.is_none()).then_some(back);
    }
    Ok(())
}

/// Tells the engine whom to ask. At import: no driver call.
pub(crate) fn register(py: Python<'_>) -> PyResult<()> {
    let nobody = tenure_owner { context: std::ptr::null_mut(), release: None };
    // SAFETY: the function lives as long as the module, which is never unloaded.
    errors::check(py, unsafe { (api().stack_set_source)(Some(frames), nobody) })
}
