//! Objects of the Python package in and out of the types of the crate `tenure`, through `tenure.bindings`.
//!
//! Unsafe in this file: taking over the handles that `tenure.bindings` gives.

use std::ptr::without_provenance_mut;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyAnyMethods;
use tenure::abi::tenure_stream;
use tenure::{DeviceBuffer, Error, Resource, Stream};

fn call<'py>(py: Python<'py>, name: &str, arguments: impl pyo3::call::PyCallArgs<'py>) -> PyResult<Bound<'py, PyAny>> {
    py.import("tenure.bindings")?.call_method1(name, arguments)
}

/// The Python exception for an error of this thread's last call: that of tenure's own functions, with its figures, or the
/// very exception that a Python callback raised.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    match call(py, "raise_for_status", (error.status(),)) {
        Err(raised) => raised,
        Ok(_) => PyRuntimeError::new_err(error.to_string()),
    }
}

/// A reference of one's own to the stream of an object; `None` is the default stream.
pub(crate) fn stream(py: Python<'_>, object: Option<&Bound<'_, PyAny>>) -> PyResult<Stream> {
    // A foreign stream is made a tenure.Stream, which holds its owner; a tenure.Stream comes back as another reference.
    let held = object.map(|stream| py.import("tenure")?.call_method1("Stream", (stream,))).transpose()?;
    let (raw, object): (usize, u64) = call(py, "borrow_stream", (held.as_ref(),))?.extract()?;
    let borrowed = tenure_stream { raw: without_provenance_mut(raw), object };
    // SAFETY: never dropped, so that the reference stays the object's; the clone has one of its own.
    let borrowed = std::mem::ManuallyDrop::new(unsafe { Stream::from_handle(borrowed) });
    Ok(Stream::clone(&borrowed))
}

/// A handle of one's own to the resource of an object; `None` for `None`, which is the current resource.
pub(crate) fn resource(py: Python<'_>, object: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Resource>> {
    let Some(mr) = object else {
        // Makes sure that this thread sees the scope that Python sees.
        call(py, "borrow_resource", (py.None(),))?;
        return Ok(None);
    };
    let handle: u64 = call(py, "retain_resource", (mr,))?.extract()?;
    // SAFETY: the reference was made for us.
    unsafe { Resource::from_raw(handle) }.map(Some).map_err(|error| raised(py, &error))
}

/// A `tenure.DeviceBuffer` that owns the buffer. No resource and no stream is named: the buffer knows them.
pub(crate) fn wrap(py: Python<'_>, buffer: DeviceBuffer) -> PyResult<Bound<'_, PyAny>> {
    let wrapped = call(py, "wrap_buffer", (buffer.as_handle(),))?;
    // The object owns it now. After a failure it is dropped, and so freed, here.
    let _ = buffer.into_handle();
    Ok(wrapped)
}

/// The buffer of a `tenure.DeviceBuffer`, which is empty afterwards.
pub(crate) fn take(object: &Bound<'_, PyAny>) -> PyResult<DeviceBuffer> {
    let py = object.py();
    let handle: u64 = call(py, "take_buffer", (object,))?.extract()?;
    // SAFETY: the buffer was given up for us.
    unsafe { DeviceBuffer::from_handle(handle) }.map_err(|error| raised(py, &error))
}
