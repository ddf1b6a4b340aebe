//! Buffers as handles of the C interface, in and out: what `tenure.bindings`, `tenure/python.h` and `tenure.pxd` call.
//!
//! A handle carries its resource, stream and device, so the taker is told nothing else and nobody guesses. Handles are
//! numbers that the library checks: a wrong one is an error here, never a crash.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use tenure_abi::*;

use crate::buffer::{DeviceBuffer, create, view_of};
use crate::errors::check;
use crate::gil;
use crate::table::api;

/// For `tenure/python.h`: a `DeviceBuffer` that takes an engine's buffer over.
#[pyfunction]
fn _wrap_buffer(py: Python<'_>, handle: u64) -> PyResult<Bound<'_, DeviceBuffer>> {
    // What is no buffer is refused before anybody owns it.
    view_of(py, handle)?;
    DeviceBuffer::wrap(py, handle)
}

/// For `tenure/python.h`: the engine's buffer, borrowed while `buffer` lives and is not changed.
#[pyfunction]
fn _borrow_buffer(buffer: &Bound<'_, PyAny>) -> PyResult<u64> {
    ours(buffer)?.get().handle()
}

/// For `tenure/python.h`: the engine's buffer, which the caller owns now. The Python object is empty afterwards.
#[pyfunction]
fn _take_buffer(buffer: &Bound<'_, PyAny>) -> PyResult<u64> {
    let py = buffer.py();
    let this = ours(buffer)?.get();
    let _change = this.change(py, "taken")?;
    let view = this.view(py)?;
    let mut resource = TENURE_RESOURCE_NULL;
    // SAFETY: `resource` is valid for writing.
    check(py, unsafe { (api().buffer_resource)(this.handle()?, &mut resource) })?;
    if resource == TENURE_RESOURCE_NULL {
        // Adopted with an owner: what stays behind needs some resource, and allocates nothing.
        // SAFETY: `resource` is valid for writing.
        check(py, unsafe { (api().cuda_resource)(&mut resource) })?;
    }
    let empty = create(py, 0, view.stream, resource);
    // SAFETY: the reference is ours and is given back once.
    gil::give_back(
        || unsafe { (api().resource_try_release)(resource) },
        || unsafe { (api().resource_release)(resource) },
    );
    this.exchange(empty?)
}

fn ours<'a, 'py>(buffer: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, DeviceBuffer>> {
    buffer.cast::<DeviceBuffer>().map_err(|_| {
        let kind = buffer.get_type().name().map(|n| n.to_string()).unwrap_or_default();
        PyTypeError::new_err(format!("a tenure.DeviceBuffer is needed, not {kind}"))
    })
}

/// Adds the functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_wrap_buffer, module)?)?;
    module.add_function(wrap_pyfunction!(_borrow_buffer, module)?)?;
    module.add_function(wrap_pyfunction!(_take_buffer, module)?)
}
