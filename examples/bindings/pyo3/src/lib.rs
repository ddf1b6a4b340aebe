//! PyO3: Rust functions over the crate `tenure`. The module has no engine of its own: it uses the one of the process, with
//! the same table of current resources.
//!
//! What a binding needs beside PyO3 is in [`cross`]: four conversions that you can take along as they are.

mod cross;

use pyo3::prelude::*;
use tenure::{DeviceBuffer, Resource, Result, StreamRef};

/// `n` bytes under `mr` (`None`: the current resource), each 42, ready in the order of `stream`.
fn column(n: usize, stream: StreamRef<'_>, mr: Option<&Resource>) -> Result<DeviceBuffer> {
    let mut made = match mr {
        Some(mr) => DeviceBuffer::new_in(n, stream, mr)?,
        None => DeviceBuffer::new(n, stream)?,
    };
    made.fill(42, stream)?;
    Ok(made)
}

#[pyfunction]
#[pyo3(signature = (n, stream=None, mr=None))]
fn make_column<'py>(
    py: Python<'py>,
    n: usize,
    stream: Option<Bound<'py, PyAny>>,
    mr: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let stream = cross::stream(py, stream.as_ref())?;
    let mr = cross::resource(py, mr.as_ref())?;
    let made = py.detach(|| column(n, stream.as_ref(), mr.as_ref()));
    cross::wrap(py, made.map_err(|error| cross::raised(py, &error))?)
}

#[pyfunction]
fn free_column(py: Python<'_>, column: &Bound<'_, PyAny>) -> PyResult<()> {
    let column = cross::take(column)?;
    py.detach(|| column.close()).map_err(|error| cross::raised(py, &error))
}

#[pymodule]
fn column_pyo3(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(make_column, module)?)?;
    module.add_function(wrap_pyfunction!(free_column, module)?)
}
