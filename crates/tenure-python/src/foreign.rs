//! Memory that comes from elsewhere: `adopt` and the CUDA array interface.
//!
//! Who takes memory over must know who frees it. `adopt` takes exactly one of two answers: a tenure resource that made
//! the block, which is checked, or an owner: an object that is kept alive, or a function that frees.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use tenure_abi::*;

use crate::buffer::DeviceBuffer;
use crate::buffer_copy::wait_for;
use crate::errors::{call, drop_reference};
use crate::gil;
use crate::resource;
use crate::size::{self, pointer};
use crate::stream::{self, Stream};
use crate::table::api;

/// Takes memory over.
pub(crate) fn adopt<'py>(
    cls: &Bound<'py, PyType>,
    ptr: &Bound<'_, PyAny>,
    bytes: &Bound<'_, PyAny>,
    stream: &Bound<'_, PyAny>,
    mr: Option<&Bound<'_, PyAny>>,
    owner: Option<&Bound<'_, PyAny>>,
    device: Option<i32>,
) -> PyResult<Bound<'py, DeviceBuffer>> {
    let py = cls.py();
    let ptr = pointer(size::address(ptr, "ptr")?);
    let bytes = size::bytes(bytes, "size")?;
    let stream = stream::argument(Some(stream))?;
    let carried = stream.carried();
    let mut out: tenure_buffer = 0;
    match (mr, owner) {
        (Some(mr), None) => {
            if device.is_some() {
                return Err(PyValueError::new_err("device belongs to owner=; with mr= the resource knows the device"));
            }
            let handle = resource::argument(mr)?;
            // SAFETY: `out` is valid for writing; the library checks that the resource made the block.
            call(py, || unsafe { (api().buffer_adopt)(ptr, bytes, 0, carried, handle, &mut out) })?;
            DeviceBuffer::wrap_as(cls, out)
        }
        (None, Some(owner)) => {
            if ptr.is_null() && bytes != 0 {
                return Err(PyValueError::new_err(format!("ptr is 0 and size is {bytes}; null has no bytes")));
            }
            let device = match device {
                Some(device) if device >= -1 => device,
                Some(device) => {
                    return Err(PyValueError::new_err(format!(
                        "device is {device}; it must be 0 or more, or -1 for memory of the host"
                    )));
                }
                None => device_of(py, carried)?,
            };
            let free: tenure_free_fn = if owner.is_callable() { Some(free_by_function) } else { None };
            let handle = foreign(py, ptr, bytes, device, carried, free, keep(owner))?;
            DeviceBuffer::wrap_as(cls, handle)
        }
        (Some(_), Some(_)) => Err(PyValueError::new_err(
            "adopt takes exactly one of mr= and owner=, and got both: name the resource that made the block, or whoever else frees it",
        )),
        (None, None) => Err(PyValueError::new_err(
            "adopt takes exactly one of mr= and owner=, and got none: name the resource that made the block (never just the current one), \
             or an object that owns the memory or a function that frees it",
        )),
    }
}

fn device_of(py: Python<'_>, stream: tenure_stream) -> PyResult<i32> {
    let mut device = 0;
    // SAFETY: `device` is valid for writing.
    call(py, || unsafe { (api().stream_device)(stream, &mut device) })?;
    Ok(device)
}

/// Makes an engine's buffer of foreign memory. The owner is taken over, also when this fails.
pub(crate) fn foreign(
    py: Python<'_>,
    ptr: *mut c_void,
    bytes: usize,
    device: i32,
    stream: tenure_stream,
    free: tenure_free_fn,
    owner: tenure_owner,
) -> PyResult<tenure_buffer> {
    let mut out: tenure_buffer = 0;
    // SAFETY: `out` is valid for writing; the owner keeps the memory until its release is called.
    let made = call(py, || unsafe { (api().buffer_adopt_foreign)(ptr, bytes, device, stream, free, owner, &mut out) });
    if made.is_err()
        && let Some(release) = owner.release
    {
        // SAFETY: the call failed, so the owner is still ours, and is released once.
        gil::detach(py, || unsafe { release(owner.context) });
    }
    made.map(|()| out)
}

/// For the engine: frees by a Python function. What it raises is reported.
///
/// # Safety
/// `context` is a reference to a Python callable.
unsafe extern "C" fn free_by_function(context: *mut c_void, ptr: *mut c_void, bytes: usize, stream: tenure_stream) {
    gil::enter(|py| {
        // SAFETY: as the caller says; the owner's release gives the reference back later.
        let function = unsafe { Bound::from_borrowed_ptr(py, context.cast()) };
        let freed = Stream::sharing(py, stream).and_then(|stream| function.call1((ptr as usize, bytes, stream)));
        if let Err(raised) = freed {
            raised.write_unraisable(py, Some(&function));
        }
    });
}

/// What a CUDA array interface says, as bytes.
pub(crate) struct CudaArray {
    pub(crate) ptr: *mut c_void,
    pub(crate) bytes: usize,
    pub(crate) readonly: bool,
    /// Work of the producer's may be pending here.
    pub(crate) stream: Option<tenure_stream>,
}

fn missing(name: &str) -> PyErr {
    PyValueError::new_err(format!("__cuda_array_interface__ has no {name:?}, which the protocol requires"))
}

impl CudaArray {
    /// Reads `__cuda_array_interface__`.
    ///
    /// # Errors
    /// `TypeError` without one; `ValueError` for one that is wrong, strided, masked or of a type that is no plain bytes.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let Some(interface) = object.getattr_opt("__cuda_array_interface__")? else {
            let kind = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "an object with __cuda_array_interface__ is needed (a CuPy, Numba or PyTorch array of a device, say), not {kind}"
            )));
        };
        let interface = interface
            .cast_into::<PyDict>()
            .map_err(|_| PyTypeError::new_err("__cuda_array_interface__ must be a dict"))?;
        let present = |name: &str| PyResult::Ok(interface.get_item(name)?.filter(|value| !value.is_none()));
        let need = |name: &str| present(name)?.ok_or_else(|| missing(name));

        let shape: Vec<usize> = need("shape")?.extract().map_err(|_| {
            PyValueError::new_err("\"shape\" of __cuda_array_interface__ must be a tuple of numbers from 0")
        })?;
        let typestr: String = need("typestr")?.extract()?;
        let item = item_bytes(&typestr)?;
        let (ptr, readonly): (Bound<'_, PyAny>, bool) = need("data")?.extract().map_err(|_| {
            PyValueError::new_err("\"data\" of __cuda_array_interface__ must be a pair of address and read-only flag")
        })?;
        let bytes = shape.iter().try_fold(item, |bytes, n| bytes.checked_mul(*n)).ok_or_else(|| {
            PyValueError::new_err("the array of __cuda_array_interface__ is larger than an address space")
        })?;
        if present("mask")?.is_some() {
            return Err(PyValueError::new_err(
                "arrays with a mask are not supported; export the data without the mask",
            ));
        }
        if let Some(strides) = present("strides")? {
            let strides: Vec<isize> = strides.extract()?;
            if !contiguous(&shape, &strides, item) {
                return Err(PyValueError::new_err("the array is not C-contiguous; copy it first"));
            }
        }
        let stream = match present("stream")? {
            None => None,
            Some(value) => match size::address(&value, "\"stream\" of __cuda_array_interface__")? {
                0 => {
                    return Err(PyValueError::new_err(
                        "\"stream\" of __cuda_array_interface__ is 0, which the protocol forbids; 1 is the legacy default stream",
                    ));
                }
                raw => Some(tenure_stream { raw: pointer(raw), object: 0 }),
            },
        };
        let ptr = if bytes == 0 { 0 } else { size::address(&ptr, "the address of __cuda_array_interface__")? };
        if ptr == 0 && bytes != 0 {
            return Err(PyValueError::new_err(format!("__cuda_array_interface__ names address 0 for {bytes} bytes")));
        }
        Ok(Self { ptr: pointer(ptr), bytes, readonly, stream })
    }
}

/// The bytes of one item: the number at the end of `"<f4"`.
fn item_bytes(typestr: &str) -> PyResult<usize> {
    let wrong = || {
        PyValueError::new_err(format!(
            "\"typestr\" of __cuda_array_interface__ is {typestr:?}; it must be like \"<f4\" or \"|u1\""
        ))
    };
    let digits = typestr.get(2..).ok_or_else(wrong)?;
    let number: usize = digits.split('[').next().unwrap_or_default().parse().map_err(|_| wrong())?;
    match typestr.as_bytes()[1] {
        b'O' => Err(PyValueError::new_err("Python objects have no place in device memory")),
        b'U' => number.checked_mul(4).ok_or_else(wrong),
        _ => Ok(number),
    }
}

/// Whether strides in bytes (or, with `item` 1, in items) say C order. Dimensions of one item and empty arrays may have any.
pub(crate) fn contiguous(shape: &[usize], strides: &[isize], item: usize) -> bool {
    if shape.len() != strides.len() {
        return false;
    }
    if shape.contains(&0) {
        return true;
    }
    let mut expected = item as i128;
    for (n, stride) in shape.iter().zip(strides).rev() {
        if *n != 1 && *stride as i128 != expected {
            return false;
        }
        expected *= *n as i128;
    }
    true
}

/// A buffer over the memory of an object with `__cuda_array_interface__`, which stays alive as long as the buffer.
#[pyfunction]
#[pyo3(signature = (obj, *, stream=None))]
pub(crate) fn from_cuda_array_interface<'py>(
    py: Python<'py>,
    obj: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<Bound<'py, DeviceBuffer>> {
    let array = CudaArray::of(obj)?;
    let stream = stream::argument(stream)?;
    let carried = stream.carried();
    // The interface does not say on which device the memory is.
    let handle = foreign(py, array.ptr, array.bytes, TENURE_DEVICE_OF_MEMORY, carried, None, keep(obj))?;
    let buffer = DeviceBuffer::wrap(py, handle)?;
    if let Some(theirs) = array.stream {
        let device = buffer.get().view(py)?.device;
        let (home, theirs) = (Stream::of_device(py, carried, device)?, Stream::of_device(py, theirs, device)?);
        let (home, theirs) = (home.carried(), theirs.carried());
        // SAFETY: the protocol says that the stream lives while the object does, and `obj` is held by the caller.
        call(py, || unsafe { wait_for(home, theirs) })?;
    }
    buffer.get().readonly.store(array.readonly, Ordering::Release);
    Ok(buffer)
}

/// A reference to a Python object that an engine's owner keeps; `drop_reference` gives it back.
fn keep(object: &Bound<'_, PyAny>) -> tenure_owner {
    tenure_owner { context: object.clone().into_ptr().cast(), release: Some(drop_reference) }
}
