//! Sharing between processes: the two calls below `tenure.sharing`, which carries handles and their descriptors.
//!
//! Descriptors go out as numbers that the caller owns, and come in as numbers that stay the caller's.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};
use tenure_abi::*;

use crate::buffer::DeviceBuffer;
use crate::errors::{call, check};
use crate::resource;
use crate::stream;
use crate::table::api;

/// A description that is given back when dropped.
struct Shared(tenure_shared);

// SAFETY: two arrays that are read here alone.
unsafe impl Send for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: filled by the library, or zeroed.
        unsafe { (api().shared_free)(&mut self.0) };
    }
}

/// Bytes and descriptors of a buffer's memory; the descriptors are the caller's to close.
#[pyfunction]
fn _share<'py>(py: Python<'py>, buffer: &DeviceBuffer, kinds: u32) -> PyResult<(Bound<'py, PyBytes>, Vec<i32>)> {
    let none = tenure_shared { data: std::ptr::null_mut(), data_bytes: 0, fds: std::ptr::null_mut(), fd_count: 0 };
    let mut shared = Shared(none);
    let _turn = buffer.turn(py)?;
    let (handle, out) = (buffer.handle()?, &raw mut shared.0);
    // SAFETY: the pointer is valid for writing; the buffer is held by this call's argument.
    call(py, || unsafe { (api().buffer_share)(handle, kinds, out) })?;
    // SAFETY: as long as is said, and alive until `shared` is dropped.
    let data = unsafe { std::slice::from_raw_parts(shared.0.data.cast::<u8>(), shared.0.data_bytes) };
    let mut fds = Vec::with_capacity(shared.0.fd_count);
    for at in 0..shared.0.fd_count {
        // SAFETY: as above. The descriptor's owner is the caller from now on: the library shall not close it.
        unsafe { fds.push(std::mem::replace(&mut *shared.0.fds.add(at), -1)) };
    }
    Ok((PyBytes::new(py, data), fds))
}

/// A buffer of the class for memory of another process.
#[pyfunction]
#[pyo3(signature = (cls, data, fds, device=None, stream=None))]
fn _import_shared<'py>(
    cls: &Bound<'py, PyType>,
    data: &[u8],
    fds: Vec<i32>,
    device: Option<i32>,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<Bound<'py, DeviceBuffer>> {
    let py = cls.py();
    let stream = stream::argument(stream)?;
    let carried = stream.carried();
    let device = stream::device_number(device)?;
    let mut out: tenure_buffer = 0;
    let to = &raw mut out;
    let (bytes, count, numbers) = (data.as_ptr() as usize, data.len(), fds.as_ptr() as usize);
    // SAFETY: both arrays are held by this call, and as long as is said; the pointer is valid for writing.
    call(py, || unsafe {
        (api().buffer_import)(bytes as *const _, count, numbers as *const _, fds.len(), device, carried, to)
    })?;
    DeviceBuffer::wrap_as(cls, out)
}

/// What the bytes of a handle say.
#[pyfunction]
fn _shared_info<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyDict>> {
    let mut info = tenure_shared_view { size: size_of::<tenure_shared_view>(), ..Default::default() };
    // SAFETY: the bytes are alive during the call; `info` is valid and its size is set.
    check(py, unsafe { (api().shared_info)(data.as_ptr().cast(), data.len(), &mut info) })?;
    let said = PyDict::new(py);
    said.set_item("size", info.bytes)?;
    said.set_item("fds", info.fd_count)?;
    said.set_item("kind", info.kind)?;
    said.set_item("pid", info.pid)?;
    said.set_item("uuid", PyBytes::new(py, &info.uuid))?;
    Ok(said)
}

/// The kinds of handles of a resource, as bits.
#[pyfunction]
fn _exports(py: Python<'_>, mr: &Bound<'_, PyAny>) -> PyResult<u32> {
    let (handle, mut out) = (resource::argument(mr)?, 0);
    // SAFETY: the pointer is valid for writing.
    check(py, unsafe { (api().resource_exports)(handle, &mut out) })?;
    Ok(out)
}

/// Adds the functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_share, module)?)?;
    module.add_function(wrap_pyfunction!(_import_shared, module)?)?;
    module.add_function(wrap_pyfunction!(_shared_info, module)?)?;
    module.add_function(wrap_pyfunction!(_exports, module)?)
}
