//! Bytes into and out of a buffer.
//!
//! Host memory is anybody's and may go when the call returns, so each of these waits for its copy, without the
//! interpreter lock. Copies between buffers of a device do not wait.

use std::ffi::c_void;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};
use tenure_abi::*;

use crate::buffer::{self, DeviceBuffer, Owned, resource_or_current, view_of};
use crate::buffer_export::{may_be_dead, wait_home};
use crate::errors::call;
use crate::foreign::CudaArray;
use crate::size::pointer;
use crate::stream::{self, Stream};
use crate::table::api;

/// A use of the memory by a call: until it is dropped nobody moves or frees it.
struct Use<'a>(&'a DeviceBuffer);

impl<'a> Use<'a> {
    fn begin(buffer: &'a DeviceBuffer) -> PyResult<Self> {
        buffer.begin_export()?;
        Ok(Self(buffer))
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.0.end_export();
    }
}

/// Copies and waits for the copy. A default stream is that of `device`, whose memory it is about (-1: the current one).
///
/// # Safety
/// Both ranges are valid for `bytes` bytes during the call.
pub(crate) unsafe fn copy_and_wait(
    py: Python<'_>,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    stream: tenure_stream,
    device: i32,
) -> PyResult<()> {
    if bytes == 0 {
        return Ok(());
    }
    let held = Stream::of_device(py, stream, device)?;
    let stream = held.carried();
    call(py, || {
        // SAFETY: as the caller says; the wait makes sure that the copy is over at return.
        unsafe {
            let mut status = refuse_capturing(stream);
            if status == TENURE_OK {
                status = (api().copy_async)(to, from, bytes, stream);
            }
            if status == TENURE_OK { (api().stream_synchronize)(stream) } else { status }
        }
    })
}

/// Before a copy that will be waited for: on a capturing stream it would become a part of the graph, and the graph would
/// use memory that is gone by the time it runs. Asking whether the stream is idle says so and leaves the capture alone.
///
/// # Safety
/// The stream is alive during the call.
unsafe fn refuse_capturing(stream: tenure_stream) -> tenure_status {
    let mut idle = 0;
    // SAFETY: as the caller says; `idle` is valid for writing.
    unsafe { (api().stream_query)(stream, &mut idle) }
}

/// Fills a new buffer from an address of any kind of memory.
pub(crate) fn fill_from(
    py: Python<'_>,
    owned: &Owned,
    from: usize,
    bytes: usize,
    stream: tenure_stream,
) -> PyResult<()> {
    let to = view_of(py, owned.handle())?;
    // SAFETY: the new buffer has `bytes` bytes; that `from` has them is what the caller of `DeviceBuffer(ptr=)` states.
    unsafe { copy_and_wait(py, to.ptr, pointer(from), bytes, stream, to.device) }
}

/// Host memory of any object with the buffer protocol.
pub(crate) fn host_bytes(object: &Bound<'_, PyAny>, what: &str) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(object).map_err(|e| {
        if e.is_instance_of::<PyBufferError>(object.py()) {
            return e;
        }
        let kind = object.get_type().name().map(|n| n.to_string()).unwrap_or_default();
        PyTypeError::new_err(format!("{what} must be bytes or another object with the buffer protocol, not {kind}"))
    })?;
    if !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err(format!(
            "{what} must be contiguous; copy it first (numpy.ascontiguousarray)"
        )));
    }
    Ok(buffer)
}

/// A new buffer with the bytes of a host object.
pub(crate) fn to_device<'py>(
    cls: &Bound<'py, PyType>,
    host: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
    mr: Option<&Bound<'_, PyAny>>,
) -> PyResult<Bound<'py, DeviceBuffer>> {
    let py = cls.py();
    let stream = stream::argument(stream)?;
    let resource = resource_or_current(py, mr)?;
    let host = host_bytes(host, "b")?;
    let bytes = host.len_bytes();
    let owned = buffer::create(py, bytes, stream.carried(), resource)?;
    let to = view_of(py, owned.handle())?;
    // SAFETY: the new buffer and the host buffer, which is held, have `bytes` bytes.
    unsafe { copy_and_wait(py, to.ptr, host.buf_ptr(), bytes, stream.carried(), to.device) }?;
    let handle = owned.handle();
    std::mem::forget(owned);
    DeviceBuffer::wrap_as(cls, handle)
}

/// A copy of a buffer, as a buffer of the engine's that the caller owns.
pub(crate) fn duplicate(
    py: Python<'_>,
    this: &DeviceBuffer,
    stream: tenure_stream,
    resource: tenure_resource,
) -> PyResult<tenure_buffer> {
    let _use = Use::begin(this)?;
    let _turn = this.turn(py)?;
    let source = this.handle()?;
    let mut out: tenure_buffer = 0;
    // SAFETY: `out` is valid for writing; the handles are held by the caller.
    call(py, || unsafe { (api().buffer_copy)(source, stream, resource, &mut out) })?;
    Ok(out)
}

/// Into a writable host object, or into a new NumPy array of bytes.
pub(crate) fn copy_to_host<'py>(
    slf: &Bound<'py, DeviceBuffer>,
    ary: Option<&Bound<'py, PyAny>>,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = slf.py();
    let this = slf.get();
    let _use = Use::begin(this)?;
    let view = this.view(py)?;
    let ary = match ary {
        Some(ary) => ary.clone(),
        None => {
            let kwargs = PyDict::new(py);
            kwargs.set_item("dtype", "u1")?;
            py.import("numpy")?.getattr("empty")?.call((view.bytes,), Some(&kwargs))?
        }
    };
    let host = host_bytes(&ary, "ary")?;
    if host.readonly() {
        return Err(PyValueError::new_err("ary is read-only; copy into a writable array, or use tobytes()"));
    }
    fits(host.len_bytes(), view.bytes, "the buffer")?;
    let (_held, carried) = this.stream_or_home(py, stream)?;
    // SAFETY: the buffer is in use by this call and the host buffer is held and large enough.
    unsafe { copy_and_wait(py, host.buf_ptr(), view.ptr, view.bytes, carried, view.device) }?;
    drop(host);
    Ok(ary)
}

/// From a host object, into the first bytes.
pub(crate) fn copy_from_host(
    slf: &Bound<'_, DeviceBuffer>,
    ary: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let py = slf.py();
    let this = slf.get();
    this.writable()?;
    let _use = Use::begin(this)?;
    let view = this.view(py)?;
    let host = host_bytes(ary, "ary")?;
    fits(view.bytes, host.len_bytes(), "ary")?;
    let (_held, carried) = this.stream_or_home(py, stream)?;
    // SAFETY: the buffer is in use by this call and large enough, and the host buffer is held.
    unsafe { copy_and_wait(py, view.ptr, host.buf_ptr(), host.len_bytes(), carried, view.device) }
}

/// From device memory that somebody else owns, into the first bytes.
pub(crate) fn copy_from_device(
    slf: &Bound<'_, DeviceBuffer>,
    source: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let py = slf.py();
    let this = slf.get();
    this.writable()?;
    let _use = Use::begin(this)?;
    let view = this.view(py)?;
    let (_held, carried) = this.stream_or_home(py, stream)?;
    let located = Stream::of_device(py, carried, view.device)?;
    let carried = located.carried();
    // One of our own: the engine keeps its memory until the copy is done.
    if let Ok(other) = source.cast::<DeviceBuffer>() {
        let other = other.get();
        let _other_use = Use::begin(other)?;
        let _turn = other.turn(py)?;
        let from = other.view(py)?;
        fits(view.bytes, from.bytes, "the source")?;
        let dead = may_be_dead(from.stream);
        if dead {
            wait_home(py, &from)?;
        }
        let (other_buffer, home) = (other.handle()?, Stream::of_device(py, from.stream, from.device)?);
        let home = home.carried();
        return call(py, || {
            // SAFETY: both buffers are in use by this call; the source's memory waits for the copy by `record_stream`.
            unsafe {
                let status = if dead { TENURE_OK } else { wait_for(carried, home) };
                if status != TENURE_OK || from.bytes == 0 {
                    return status;
                }
                match (api().copy_async)(view.ptr, from.ptr, from.bytes, carried) {
                    TENURE_OK => (api().buffer_record_stream)(other_buffer, carried),
                    failed => failed,
                }
            }
        });
    }
    let array = CudaArray::of(source)?;
    fits(view.bytes, array.bytes, "the source")?;
    if array.bytes == 0 {
        return Ok(());
    }
    call(py, || {
        // SAFETY: the buffer is in use by this call; that the source has its bytes is what its interface states. Its owner
        // may free it once this call has returned, so the copy is waited for, which also covers a source without a stream.
        unsafe {
            let mut status = refuse_capturing(carried);
            // A default stream of theirs is the current device's, or that of ours, on which the copy is made anyway.
            if status == TENURE_OK {
                status = array.stream.map_or(TENURE_OK, |theirs| wait_for(carried, theirs));
            }
            if status == TENURE_OK {
                status = (api().copy_async)(view.ptr, array.ptr, array.bytes, carried);
            }
            if status == TENURE_OK { (api().stream_synchronize)(carried) } else { status }
        }
    })
}

/// Makes `stream` wait for `other`, if they are two.
///
/// # Safety
/// Both are alive during the call.
pub(crate) unsafe fn wait_for(stream: tenure_stream, other: tenure_stream) -> tenure_status {
    let same = stream.raw == other.raw || (stream.raw as usize <= 1 && other.raw as usize <= 1);
    // Default streams of two devices have one value; where a device is named, the engine tells them apart.
    let same = same && stream.object == other.object;
    // SAFETY: as the caller says.
    if same { TENURE_OK } else { unsafe { (api().stream_wait_stream)(stream, other) } }
}

/// The bytes.
pub(crate) fn tobytes<'py>(
    slf: &Bound<'py, DeviceBuffer>,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let py = slf.py();
    let this = slf.get();
    let _use = Use::begin(this)?;
    let view = this.view(py)?;
    let length = ffi::Py_ssize_t::try_from(view.bytes)
        .map_err(|_| PyValueError::new_err("the buffer is larger than a bytes object can be"))?;
    // SAFETY: null makes a new object with room for `length` bytes, which nobody else has seen; all are written below.
    let bytes = unsafe {
        let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), length);
        Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>()
    };
    let (_held, carried) = this.stream_or_home(py, stream)?;
    // SAFETY: the object is still only ours.
    let to = unsafe { ffi::PyBytes_AsString(bytes.as_ptr()) };
    // SAFETY: the buffer is in use by this call, and the new object has as many bytes.
    unsafe { copy_and_wait(py, to.cast(), view.ptr, view.bytes, carried, view.device) }?;
    Ok(bytes)
}

/// # Errors
/// `ValueError`, with the sizes.
fn fits(have: usize, need: usize, what: &str) -> PyResult<()> {
    if need <= have {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{what} has {need} bytes and there is room for {have}; resize the buffer first or copy a part"
    )))
}
