//! Arrow's C data interface and its device extension, both ways.
//!
//! ```text
//!  export   ArrowDeviceArray "uint8" --private_data--> Export { buffers, Arc<Owned> }     release = drop: no interpreter
//!  import   ArrowDeviceArray --moved out of its capsule--> owner of the engine's buffer   release = the producer's
//! ```
//!
//! A buffer is shown as an array of unsigned bytes without nulls, whose second buffer is the memory itself; nothing is copied.
//! An array is taken if its values are one contiguous run of fixed-width items without nulls, and stays read-only: Arrow's
//! arrays never change.
//!
//! # The order of work
//! On export the host waits for the home stream and names no event: a consumer may use the memory at once, on any stream. On
//! import an event that the producer names is waited for by a wait for its device. Who reads with a stream of its own waits
//! for that stream before it releases the array, as the interface has it.
//!
//! The structures are those of the Arrow C data interface, which is frozen.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pyo3::exceptions::{PyBufferError, PyNotImplementedError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use tenure_abi::*;

use crate::buffer::{DeviceBuffer, Owned};
use crate::buffer_export::wait_home;
use crate::capsule::inside;
use crate::dlpack::{self, CPU, CUDA, CUDA_HOST, CUDA_MANAGED};
use crate::errors::call;
use crate::foreign::foreign;
use crate::gil;
use crate::size::pointer;
use crate::stream;
use crate::table::api;

const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
const DEVICE_ARRAY: &CStr = c"arrow_device_array";

#[repr(C)]
struct Schema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut Schema,
    dictionary: *mut Schema,
    release: Option<unsafe extern "C" fn(*mut Schema)>,
    private_data: *mut c_void,
}

#[repr(C)]
struct Array {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut Array,
    dictionary: *mut Array,
    release: Option<unsafe extern "C" fn(*mut Array)>,
    private_data: *mut c_void,
}

#[repr(C)]
struct DeviceArray {
    array: Array,
    device_id: i64,
    device_type: i32,
    sync_event: *mut c_void,
    reserved: [i64; 3],
}

const _: () = assert!(size_of::<Schema>() == 72 && size_of::<Array>() == 80 && size_of::<DeviceArray>() == 128);

/// What keeps an exported array.
struct Export {
    buffers: [*const c_void; 2],
    _owned: Arc<Owned>,
}

unsafe extern "C" fn release_array(array: *mut Array) {
    // SAFETY: the interface has this called once, with an array that `array_of` filled, wherever it was moved.
    unsafe {
        drop(Box::from_raw((*array).private_data.cast::<Export>()));
        (*array).private_data = std::ptr::null_mut();
        (*array).release = None;
    }
}

unsafe extern "C" fn release_schema(schema: *mut Schema) {
    // SAFETY: called once with a schema of ours. It consists of static texts.
    unsafe { (*schema).release = None };
}

/// A capsule that still has what it was made with releases it; a consumer has moved it out and set `release` to null.
///
/// # Safety
/// Called by the interpreter, with a capsule of [`capsule`] for a `T` of this name.
unsafe extern "C" fn drop_schema(object: *mut ffi::PyObject) {
    // SAFETY: as the caller says.
    unsafe {
        let schema = ffi::PyCapsule_GetPointer(object, SCHEMA.as_ptr()).cast::<Schema>();
        if let Some(schema_release) = (*schema).release {
            schema_release(schema);
        }
        drop(Box::from_raw(schema));
    }
}

/// See [`drop_schema`].
///
/// # Safety
/// As there.
unsafe extern "C" fn drop_array(object: *mut ffi::PyObject) {
    // SAFETY: as the caller says.
    unsafe {
        let array = ffi::PyCapsule_GetPointer(object, ARRAY.as_ptr()).cast::<Array>();
        if let Some(release) = (*array).release {
            release(array);
        }
        drop(Box::from_raw(array));
    }
}

/// See [`drop_schema`].
///
/// # Safety
/// As there.
unsafe extern "C" fn drop_device_array(object: *mut ffi::PyObject) {
    // SAFETY: as the caller says.
    unsafe {
        let array = ffi::PyCapsule_GetPointer(object, DEVICE_ARRAY.as_ptr()).cast::<DeviceArray>();
        if let Some(release) = (*array).array.release {
            release(&raw mut (*array).array);
        }
        drop(Box::from_raw(array));
    }
}

fn schema(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let schema = Box::new(Schema {
        format: c"C".as_ptr(),
        name: c"".as_ptr(),
        metadata: std::ptr::null(),
        flags: 0,
        n_children: 0,
        children: std::ptr::null_mut(),
        dictionary: std::ptr::null_mut(),
        release: Some(release_schema),
        private_data: std::ptr::null_mut(),
    });
    capsule(py, schema, SCHEMA, drop_schema)
}

/// A capsule with a structure, which its destructor takes back.
fn capsule<'py, T>(
    py: Python<'py>,
    value: Box<T>,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    let value = Box::into_raw(value);
    // SAFETY: the name is static, the pointer is not null, and the destructor knows what it points to.
    let made =
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(value.cast(), name.as_ptr(), Some(destructor))) };
    if made.is_err() {
        // SAFETY: no capsule has it. Out of memory: what the structure keeps is kept for ever.
        drop(unsafe { Box::from_raw(value) });
    }
    made
}

/// The memory as an array of bytes, when the work on the home stream is done.
fn array_of(slf: &Bound<'_, DeviceBuffer>, only_host: bool) -> PyResult<(Array, i32, i32)> {
    let py = slf.py();
    let this = slf.get();
    this.not_changing()?;
    let (kind, id) = dlpack::device(slf)?;
    if only_host && kind != CPU {
        return Err(PyBufferError::new_err(
            "the host cannot read this memory: take __arrow_c_device_array__, or copy_to_host() first",
        ));
    }
    let owned = this.share()?;
    let view = this.view(py)?;
    if view.bytes != 0 {
        let _turn = this.turn(py)?;
        wait_home(py, &view)?;
    }
    this.not_changing()?;
    let export = Box::into_raw(Box::new(Export { buffers: [std::ptr::null(), view.ptr.cast_const()], _owned: owned }));
    let array = Array {
        length: view.bytes as i64,
        null_count: 0,
        offset: 0,
        n_buffers: 2,
        n_children: 0,
        // SAFETY: the box was just made.
        buffers: unsafe { (&raw mut (*export).buffers).cast() },
        children: std::ptr::null_mut(),
        dictionary: std::ptr::null_mut(),
        release: Some(release_array),
        private_data: export.cast(),
    };
    Ok((array, kind, id))
}

/// `__arrow_c_device_array__`.
pub(crate) fn export_device<'py>(
    slf: &Bound<'py, DeviceBuffer>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<Bound<'py, PyTuple>> {
    let py = slf.py();
    // The protocol: what is not known is an error, unless it is None.
    for (name, value) in kwargs.into_iter().flatten() {
        if !value.is_none() {
            return Err(PyNotImplementedError::new_err(format!(
                "__arrow_c_device_array__ does not know the argument {name}; leave it out"
            )));
        }
    }
    let schema = schema(py)?;
    let (array, kind, id) = array_of(slf, false)?;
    let array = DeviceArray {
        array,
        // For the CPU the interface says -1.
        device_id: if kind == CPU { -1 } else { i64::from(id) },
        device_type: kind,
        sync_event: std::ptr::null_mut(),
        reserved: [0; 3],
    };
    PyTuple::new(py, [schema, capsule(py, Box::new(array), DEVICE_ARRAY, drop_device_array)?])
}

/// `__arrow_c_array__`.
pub(crate) fn export_host<'py>(slf: &Bound<'py, DeviceBuffer>) -> PyResult<Bound<'py, PyTuple>> {
    let py = slf.py();
    let (array, ..) = array_of(slf, true)?;
    PyTuple::new(py, [schema(py)?, capsule(py, Box::new(array), ARRAY, drop_array)?])
}

/// The bits of one item of a format without nulls, children and offsets.
fn item_bits(format: &str) -> Option<usize> {
    let bits = match format {
        "c" | "C" => 8,
        "s" | "S" | "e" => 16,
        "i" | "I" | "f" | "tdD" | "tts" | "ttm" | "tiM" => 32,
        "l" | "L" | "g" | "tdm" | "ttu" | "ttn" | "tiD" => 64,
        "tin" => 128,
        _ if format.starts_with("ts") || format.starts_with("tD") => 64,
        _ => {
            if let Some(width) = format.strip_prefix("w:") {
                return width.parse::<usize>().ok()?.checked_mul(8);
            }
            let mut parts = format.strip_prefix("d:")?.split(',');
            return match parts.nth(2) {
                None => Some(128),
                Some(bits) => bits.parse().ok(),
            };
        }
    };
    Some(bits)
}

/// An imported array, which is released by whoever drops it.
struct Imported(DeviceArray);

impl Imported {
    fn release(&mut self) {
        if let Some(release) = self.0.array.release {
            // SAFETY: the producer's function, called once: it sets itself to null.
            unsafe { release(&raw mut self.0.array) };
        }
    }
}

/// # Safety
/// The engine calls this once, with the box of [`from_arrow`].
unsafe extern "C" fn release_imported(context: *mut c_void) {
    // SAFETY: as the caller says.
    let mut imported = unsafe { Box::from_raw(context.cast::<Imported>()) };
    gil::announced(|| imported.release());
}

/// Where the values are: address, bytes.
fn values(array: &Array, format: &str) -> PyResult<(usize, usize)> {
    let wrong = |message: String| PyBufferError::new_err(message);
    let Some(bits) = item_bits(format).filter(|_| array.dictionary.is_null() && array.n_children == 0) else {
        return Err(PyBufferError::new_err(format!(
            "an Arrow array of format {format:?} is more than one run of fixed-width values; take its parts one by one (its values, offsets, children)"
        )));
    };
    if array.n_buffers != 2 || array.buffers.is_null() {
        return Err(wrong(format!("the Arrow array has {} buffers, and its format has 2", array.n_buffers)));
    }
    // SAFETY: the producer gives `n_buffers` addresses.
    let (validity, data) = unsafe { (*array.buffers, *array.buffers.add(1)) };
    if array.null_count > 0 || (array.null_count < 0 && !validity.is_null()) {
        return Err(wrong("the Arrow array has nulls, which a buffer cannot say; fill them first".to_owned()));
    }
    let number =
        |n: i64| usize::try_from(n).map_err(|_| wrong("the Arrow array has a negative length or offset".to_owned()));
    let (length, offset) = (number(array.length)?, number(array.offset)?);
    let width = bits / 8;
    let too_large = || wrong("the Arrow array is larger than an address space".to_owned());
    let bytes = length.checked_mul(width).ok_or_else(too_large)?;
    if bytes == 0 {
        return Ok((0, 0));
    }
    if data.is_null() {
        return Err(wrong(format!("the Arrow array names address 0 for {bytes} bytes")));
    }
    let start = offset.checked_mul(width).and_then(|skip| (data as usize).checked_add(skip)).ok_or_else(too_large)?;
    Ok((start, bytes))
}

/// A pair of capsules, of which the second is of the device kind or not.
type Pair<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

fn ask<'py>(obj: &Bound<'py, PyAny>) -> PyResult<Pair<'py>> {
    for name in ["__arrow_c_device_array__", "__arrow_c_array__"] {
        if let Some(method) = obj.getattr_opt(name)? {
            return method
                .call0()?
                .extract()
                .map_err(|_| PyTypeError::new_err(format!("{name} must return a pair of capsules")));
        }
    }
    let kind = obj.get_type().name()?;
    Err(PyTypeError::new_err(format!(
        "an object with __arrow_c_device_array__ or __arrow_c_array__ is needed (an array of pyarrow or cuDF, say), not {kind}"
    )))
}

/// A buffer over the values of an Arrow array, without a copy. Its producer frees it when the buffer goes.
#[pyfunction]
#[pyo3(signature = (obj, *, stream=None))]
pub(crate) fn from_arrow<'py>(
    py: Python<'py>,
    obj: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<Bound<'py, DeviceBuffer>> {
    let stream = stream::argument(stream)?;
    let carried = stream.carried();
    let (schema, array) = ask(obj)?;
    let schema = inside::<Schema>(&schema, SCHEMA)
        .ok_or_else(|| PyTypeError::new_err("the first of an Arrow pair must be a capsule named arrow_schema"))?;
    // SAFETY: a capsule of this name holds such a structure, and is held above.
    let format = unsafe {
        if (*schema).release.is_none() || (*schema).format.is_null() {
            return Err(PyValueError::new_err("the Arrow schema was released already; each capsule is taken once"));
        }
        CStr::from_ptr((*schema).format).to_string_lossy().into_owned()
    };
    // SAFETY: capsules of these names hold such structures. They are moved out: the capsule is told so below.
    let moved = unsafe {
        if let Some(theirs) = inside::<DeviceArray>(&array, DEVICE_ARRAY) {
            let moved = std::ptr::read(theirs);
            (*theirs).array.release = None;
            moved
        } else if let Some(theirs) = inside::<Array>(&array, ARRAY) {
            let array = std::ptr::read(theirs);
            (*theirs).release = None;
            DeviceArray { array, device_id: -1, device_type: CPU, sync_event: std::ptr::null_mut(), reserved: [0; 3] }
        } else {
            return Err(PyTypeError::new_err(
                "the second of an Arrow pair must be a capsule named arrow_device_array or arrow_array",
            ));
        }
    };
    if moved.array.release.is_none() {
        return Err(PyValueError::new_err("the Arrow array was released already; each capsule is taken once"));
    }
    let mut imported = Box::new(Imported(moved));
    let placed =
        values(&imported.0.array, &format).and_then(|memory| Ok((memory, device_of(py, &imported.0, carried)?)));
    let ((address, bytes), device) = match placed {
        Ok(placed) => placed,
        Err(e) => {
            gil::detach(py, || imported.release());
            return Err(e);
        }
    };
    let owner = tenure_owner { context: Box::into_raw(imported).cast(), release: Some(release_imported) };
    let handle = foreign(py, pointer(address), bytes, device, carried, None, owner)?;
    let buffer = DeviceBuffer::wrap(py, handle)?;
    buffer.get().readonly.store(true, Ordering::Release);
    Ok(buffer)
}

/// The device in tenure's counting, once the producer's event has come.
fn device_of(py: Python<'_>, array: &DeviceArray, stream: tenure_stream) -> PyResult<i32> {
    let device = match array.device_type {
        CPU | CUDA_HOST => -1,
        CUDA => i32::try_from(array.device_id).ok().filter(|id| *id >= 0).ok_or_else(|| {
            PyBufferError::new_err(format!(
                "the Arrow array is on CUDA device {}, which does not exist",
                array.device_id
            ))
        })?,
        CUDA_MANAGED => {
            let mut device = 0;
            // SAFETY: `device` is valid for writing.
            call(py, || unsafe { (api().stream_device)(stream, &mut device) })?;
            device
        }
        kind => {
            return Err(PyBufferError::new_err(format!(
                "the Arrow array is on device type {kind}, number {}; tenure takes the CPU's (1), CUDA's (2), pinned (3) and managed (13) memory",
                array.device_id
            )));
        }
    };
    if !array.sync_event.is_null() {
        wait_event(py, array)?;
    }
    Ok(device)
}

/// The event was recorded on some stream of the device that the array names: what waits for all of them waits for it. Memory of
/// the host may name none, and then it is some device's.
fn wait_event(py: Python<'_>, array: &DeviceArray) -> PyResult<()> {
    let named = i32::try_from(array.device_id).ok().filter(|id| *id >= 0 && array.device_type != CPU);
    let devices = match named {
        Some(id) => id..id.saturating_add(1),
        None => {
            let mut count = 0;
            // SAFETY: `count` is valid for writing.
            call(py, || unsafe { (api().device_count)(&mut count) })?;
            0..count
        }
    };
    for device in devices {
        // SAFETY: no pointer.
        call(py, || unsafe { (api().device_synchronize)(device) })?;
    }
    Ok(())
}
