//! Copies between bare addresses and host memory, and the other functions that RMM keeps beside its buffer.
//!
//! Nobody owns what a bare address names, so nothing is checked beyond the host's side. Copies from and to the host are
//! waited for, without the interpreter lock: the host object is anybody's and may go when the call returns. A copy between
//! two addresses of the device does not wait.

use pyo3::PyTypeInfo;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::DeviceBuffer;
use crate::buffer_copy;
use crate::errors::call;
use crate::size::{self, pointer};
use crate::stream;
use crate::table::api;

#[pyfunction]
#[pyo3(signature = (b, stream=None, mr=None))]
fn to_device<'py>(
    py: Python<'py>,
    b: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
    mr: Option<&Bound<'_, PyAny>>,
) -> PyResult<Bound<'py, DeviceBuffer>> {
    buffer_copy::to_device(&DeviceBuffer::type_object(py), b, stream, mr)
}

#[pyfunction]
#[pyo3(signature = (db, hb, stream=None))]
fn copy_ptr_to_host(
    py: Python<'_>,
    db: &Bound<'_, PyAny>,
    hb: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let from = size::address(db, "db")?;
    let host = buffer_copy::host_bytes(hb, "hb")?;
    if host.readonly() {
        return Err(PyValueError::new_err("hb is read-only; copy into a writable object"));
    }
    let stream = stream::argument(stream)?;
    let (to, bytes) = (host.buf_ptr(), host.len_bytes());
    // SAFETY: the host object is held; that the address has as many bytes is what the caller states.
    unsafe { buffer_copy::copy_and_wait(py, to, pointer(from), bytes, stream.carried(), -1) }
}

#[pyfunction]
#[pyo3(signature = (hb, db, stream=None))]
fn copy_host_to_ptr(
    py: Python<'_>,
    hb: &Bound<'_, PyAny>,
    db: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let to = size::address(db, "db")?;
    let host = buffer_copy::host_bytes(hb, "hb")?;
    let stream = stream::argument(stream)?;
    let (from, bytes) = (host.buf_ptr(), host.len_bytes());
    // SAFETY: as above.
    unsafe { buffer_copy::copy_and_wait(py, pointer(to), from, bytes, stream.carried(), -1) }
}

#[pyfunction]
#[pyo3(signature = (d_src, d_dst, count, stream=None))]
fn copy_device_to_ptr(
    py: Python<'_>,
    d_src: &Bound<'_, PyAny>,
    d_dst: &Bound<'_, PyAny>,
    count: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let (from, to) = (size::address(d_src, "d_src")?, size::address(d_dst, "d_dst")?);
    let bytes = size::bytes(count, "count")?;
    let stream = stream::argument(stream)?;
    let carried = stream.carried();
    // SAFETY: that both addresses have as many bytes until the copy is done is what the caller states.
    call(py, || unsafe { (api().copy_async)(pointer(to), pointer(from), bytes, carried) })
}

#[pyfunction]
fn parse_bytes(s: &Bound<'_, PyAny>) -> PyResult<usize> {
    size::bytes(s, "s")
}

/// Adds the functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(to_device, module)?)?;
    module.add_function(wrap_pyfunction!(copy_ptr_to_host, module)?)?;
    module.add_function(wrap_pyfunction!(copy_host_to_ptr, module)?)?;
    module.add_function(wrap_pyfunction!(copy_device_to_ptr, module)?)?;
    module.add_function(wrap_pyfunction!(parse_bytes, module)?)
}
