//! A buffer as others see it: `__cuda_array_interface__` and the buffer protocol. DLPack has a file of its own.

use std::ffi::{c_int, c_void};

use pyo3::exceptions::{PyAttributeError, PyBufferError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tenure_abi::*;

use crate::buffer::DeviceBuffer;
use crate::errors::call;
use crate::stream::Stream;
use crate::table::api;

/// A home stream that nothing keeps alive: it may be gone, and no call may name it.
pub(crate) fn may_be_dead(stream: tenure_stream) -> bool {
    stream.object == 0 && stream.raw as usize > 2
}

/// Waits for the work on the home stream: what the host may read afterwards is what that work wrote.
pub(crate) fn wait_home(py: Python<'_>, view: &tenure_buffer_view) -> PyResult<()> {
    let device = view.device;
    if may_be_dead(view.stream) {
        // SAFETY: no pointer.
        return call(py, || unsafe { (api().device_synchronize)(device) });
    }
    let home = Stream::of_device(py, view.stream, device)?;
    let carried = home.carried();
    // SAFETY: `home` keeps the stream.
    call(py, || unsafe { (api().stream_synchronize)(carried) })
}

/// Version 3 of the interface.
pub(crate) fn cuda_array_interface<'py>(slf: &Bound<'py, DeviceBuffer>) -> PyResult<Bound<'py, PyDict>> {
    let py = slf.py();
    let this = slf.get();
    this.not_changing()?;
    let view = this.view(py)?;
    if view.properties & TENURE_DEVICE_ACCESSIBLE == 0 && view.bytes != 0 {
        return Err(PyAttributeError::new_err(
            "__cuda_array_interface__: this memory cannot be used by a device; use the buffer protocol (memoryview) or DLPack",
        ));
    }
    let interface = PyDict::new(py);
    let readonly = this.readonly.load(std::sync::atomic::Ordering::Acquire);
    interface.set_item("data", (view.ptr as usize, readonly))?;
    interface.set_item("shape", (view.bytes,))?;
    interface.set_item("strides", py.None())?;
    interface.set_item("typestr", "|u1")?;
    interface.set_item("version", 3)?;
    if view.bytes == 0 || may_be_dead(view.stream) {
        if view.bytes != 0 {
            wait_home(py, &view)?;
        }
        interface.set_item("stream", py.None())?;
    } else {
        // The protocol forbids 0: its name for the legacy default stream is 1.
        interface.set_item("stream", (view.stream.raw as usize).max(1))?;
    }
    Ok(interface)
}

/// What a `Py_buffer` of ours points to.
struct Shape {
    shape: ffi::Py_ssize_t,
    stride: ffi::Py_ssize_t,
}

/// Where a view of no bytes points to.
static NO_BYTES: u8 = 0;

/// Fills a `Py_buffer`: host-accessible memory, after a wait for the home stream.
///
/// # Safety
/// `view` is valid for writing, or null.
pub(crate) unsafe fn get_buffer(slf: Bound<'_, DeviceBuffer>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("no Py_buffer was given"));
    }
    // SAFETY: as the caller says. The protocol wants this null on every failure.
    unsafe { (*view).obj = std::ptr::null_mut() };
    let py = slf.py();
    let this = slf.get();
    let now = this.view(py)?;
    if now.properties & TENURE_HOST_ACCESSIBLE == 0 && now.bytes != 0 {
        return Err(PyBufferError::new_err(
            "the host cannot read this memory in place; use copy_to_host() or tobytes(), or allocate it from a PinnedHostMemoryResource or ManagedMemoryResource",
        ));
    }
    let readonly = this.readonly.load(std::sync::atomic::Ordering::Acquire);
    if readonly && flags & ffi::PyBUF_WRITABLE != 0 {
        this.writable()?;
    }
    this.begin_export()?;
    // Read again: nobody moves the memory from here on.
    let filled = this.view(py).and_then(|now| {
        if now.bytes != 0 {
            wait_home(py, &now)?;
        }
        Ok(now)
    });
    let now = match filled {
        Ok(now) => now,
        Err(e) => {
            this.end_export();
            return Err(e);
        }
    };
    let length = now.bytes as ffi::Py_ssize_t;
    let shape = Box::into_raw(Box::new(Shape { shape: length, stride: 1 }));
    let wants = |flag: c_int| flags & flag == flag;
    // SAFETY: `view` is valid for writing, and `shape` lives until the view is released.
    unsafe {
        (*view).buf = if now.ptr.is_null() { (&raw const NO_BYTES).cast_mut().cast() } else { now.ptr };
        (*view).len = length;
        (*view).readonly = c_int::from(readonly);
        (*view).itemsize = 1;
        (*view).format = if wants(ffi::PyBUF_FORMAT) { c"B".as_ptr().cast_mut() } else { std::ptr::null_mut() };
        (*view).ndim = 1;
        (*view).shape = if wants(ffi::PyBUF_ND) { &raw mut (*shape).shape } else { std::ptr::null_mut() };
        (*view).strides = if wants(ffi::PyBUF_STRIDES) { &raw mut (*shape).stride } else { std::ptr::null_mut() };
        (*view).suboffsets = std::ptr::null_mut();
        (*view).internal = shape.cast::<c_void>();
        (*view).obj = slf.into_any().into_ptr();
    }
    Ok(())
}

/// Ends an export.
///
/// # Safety
/// `view` was filled by [`get_buffer`] for this very buffer.
pub(crate) unsafe fn release_buffer(this: &DeviceBuffer, view: *mut ffi::Py_buffer) {
    // SAFETY: as the caller says: `internal` is the box made there.
    drop(unsafe { Box::from_raw((*view).internal.cast::<Shape>()) });
    this.end_export();
}
