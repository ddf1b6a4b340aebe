//! DLPack's C exchange API: the same exchange as `dlpack.rs`, without a call through Python's attributes and capsules.
//!
//! ```text
//!  type(DeviceBuffer).__dlpack_c_exchange_api__ --capsule--> TABLE { from object, to object, view, allocate, work stream }
//!
//!  from_dlpack(obj):  type(obj) has such a table of version 1  --> its function, then its work stream before ours
//!                     else                                     --> obj.__dlpack__(...)
//! ```
//!
//! # The order of work
//! The protocol leaves order to the consumer: it asks for the current work stream of the producer and works there. tenure has
//! no current stream, so it names the legacy default one, makes that wait for the buffer's home stream (the host does not
//! wait) and records it as a user of the memory. Memory for the CPU is handed out after a wait for the home stream.
//!
//! # Rules
//! * The functions that take or make Python objects are called with the interpreter lock, as the protocol has it. The
//!   allocator may be called without it, on any thread.
//! * A tensor given to `to_py_object` is taken over whatever the result.
//! * No panic leaves a function: everything in it returns errors.
//!
//! # Cost
//! `view_of_object` makes nothing: its shape lies in the buffer's Python object.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::atomic::Ordering;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use tenure_abi::*;

use crate::buffer::{DeviceBuffer, Owned};
use crate::buffer_copy::wait_for;
use crate::capsule::inside;
use crate::current;
use crate::dlpack::{self, CPU, CUDA, DataType, Device, MAJOR, MINOR, ManagedVersioned, Taken, Tensor};
use crate::errors::{call, message};
use crate::gil;
use crate::stream::{self, Stream};
use crate::table::api;

const NAME: &std::ffi::CStr = c"dlpack_exchange_api";
const ATTRIBUTE: &str = "__dlpack_c_exchange_api__";

type SetError = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char);
type Allocate = unsafe extern "C" fn(*mut Tensor, *mut *mut ManagedVersioned, *mut c_void, Option<SetError>) -> c_int;
type FromObject = unsafe extern "C" fn(*mut c_void, *mut *mut ManagedVersioned) -> c_int;
type ToObject = unsafe extern "C" fn(*mut ManagedVersioned, *mut *mut c_void) -> c_int;
type ViewOfObject = unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int;
type WorkStream = unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int;

#[repr(C)]
struct Header {
    major: u32,
    minor: u32,
    previous: *const Header,
}

#[repr(C)]
struct Table {
    header: Header,
    allocate: Option<Allocate>,
    from_object: Option<FromObject>,
    to_object: Option<ToObject>,
    view_of_object: Option<ViewOfObject>,
    work_stream: Option<WorkStream>,
}

const _: () = assert!(size_of::<Header>() == 16 && size_of::<Table>() == 56);

// SAFETY: constants; the null pointer is never followed.
unsafe impl Sync for Table {}

static TABLE: Table = Table {
    header: Header { major: MAJOR, minor: MINOR, previous: std::ptr::null() },
    allocate: Some(allocate),
    from_object: Some(from_object),
    to_object: Some(to_object),
    view_of_object: Some(view_of_object),
    work_stream: Some(work_stream),
};

/// The stride of what has one dimension.
static ONE: i64 = 1;

/// Puts the table on the class.
pub(crate) fn register(class: &Bound<'_, pyo3::types::PyType>) -> PyResult<()> {
    // SAFETY: the table is static, and the capsule has no destructor.
    let capsule = unsafe {
        let object = ffi::PyCapsule_New((&raw const TABLE).cast_mut().cast(), NAME.as_ptr(), None);
        Bound::from_owned_ptr_or_err(class.py(), object)?
    };
    class.setattr(ATTRIBUTE, capsule)
}

/// Runs a function of the table that may raise, with the interpreter lock, which the caller has.
fn answered(f: impl FnOnce(Python<'_>) -> PyResult<()>) -> c_int {
    // SAFETY: the caller has the lock, so this only counts; Python::attach then finds the lock held.
    let state = unsafe { ffi::PyGILState_Ensure() };
    let answer = Python::attach(|py| match f(py) {
        Ok(()) => 0,
        Err(raised) => {
            raised.restore(py);
            -1
        }
    });
    // SAFETY: the pair of the call above.
    unsafe { ffi::PyGILState_Release(state) };
    answer
}

/// # Safety
/// `object` is null or a Python object that the caller holds.
unsafe fn buffer_of<'py>(py: Python<'py>, object: *mut c_void) -> PyResult<Bound<'py, DeviceBuffer>> {
    // SAFETY: as the caller says.
    let object = unsafe { Bound::from_borrowed_ptr_or_opt(py, object.cast()) };
    object.and_then(|object| object.cast_into::<DeviceBuffer>().ok()).ok_or_else(|| {
        PyTypeError::new_err(
            "the exchange functions of tenure.DeviceBuffer take a DeviceBuffer; ask the object's own type",
        )
    })
}

fn no_room() -> PyErr {
    PyTypeError::new_err("a DLPack exchange function was given a null pointer for its result")
}

/// An object as a tensor that keeps its memory.
unsafe extern "C" fn from_object(object: *mut c_void, out: *mut *mut ManagedVersioned) -> c_int {
    answered(|py| {
        if out.is_null() {
            return Err(no_room());
        }
        // SAFETY: the protocol says that the object is alive during the call.
        let buffer = unsafe { buffer_of(py, object)? };
        let made = dlpack::versioned_for_c(&buffer)?;
        // SAFETY: not null, and valid as the protocol says.
        unsafe { *out = made };
        Ok(())
    })
}

/// An object as a tensor for the time of a call.
unsafe extern "C" fn view_of_object(object: *mut c_void, out: *mut Tensor) -> c_int {
    answered(|py| {
        if out.is_null() {
            return Err(no_room());
        }
        // SAFETY: the protocol says that the object is alive during the call.
        let buffer = unsafe { buffer_of(py, object)? };
        let (view, device) = dlpack::ready_for_c(&buffer)?;
        let extent = &buffer.get().extent;
        extent.store(view.bytes as i64, Ordering::Release);
        let tensor = Tensor {
            data: view.ptr,
            device,
            ndim: 1,
            dtype: DataType::BYTES,
            shape: extent.as_ptr(),
            strides: (&raw const ONE).cast_mut(),
            byte_offset: 0,
        };
        // SAFETY: not null, and valid as the protocol says.
        unsafe { out.write(tensor) };
        Ok(())
    })
}

/// A tensor as a `DeviceBuffer`, which takes it over.
unsafe extern "C" fn to_object(managed: *mut ManagedVersioned, out: *mut *mut c_void) -> c_int {
    answered(|py| {
        if managed.is_null() {
            return Err(PyTypeError::new_err("a DLPack exchange function was given a null pointer for its tensor"));
        }
        // SAFETY: the protocol gives us the tensor, whatever becomes of this call.
        let taken = unsafe { Taken::versioned(managed.cast())? };
        if out.is_null() {
            taken.release(py);
            return Err(no_room());
        }
        let buffer = dlpack::buffer_of(py, taken, stream::DEFAULT)?;
        // SAFETY: not null, and valid as the protocol says.
        unsafe { *out = buffer.into_any().into_ptr().cast() };
        Ok(())
    })
}

/// The stream on which a consumer's work is ordered behind what [`from_object`] handed out.
unsafe extern "C" fn work_stream(kind: i32, id: i32, out: *mut *mut c_void) -> c_int {
    answered(|_py| {
        if out.is_null() {
            return Err(no_room());
        }
        if kind == CUDA && id < 0 {
            return Err(PyBufferError::new_err(format!("CUDA device {id} does not exist; devices count from 0")));
        }
        // SAFETY: not null, and valid as the protocol says. Null is the legacy default stream, and "none" for the CPU.
        unsafe { *out = std::ptr::null_mut() };
        Ok(())
    })
}

/// What [`allocate`] gives out: `managed` first, so that both have one address.
#[repr(C)]
struct Made {
    managed: ManagedVersioned,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    /// Freed without the interpreter: see `Owned`.
    _owned: Owned,
}

unsafe extern "C" fn delete_made(managed: *mut ManagedVersioned) {
    // SAFETY: the consumer calls this once, with what `allocate` made.
    drop(unsafe { Box::from_raw(managed.cast::<Made>()) });
}

/// Makes a tensor in memory of the device's current resource. Called with the interpreter lock or without.
unsafe extern "C" fn allocate(
    prototype: *mut Tensor,
    out: *mut *mut ManagedVersioned,
    context: *mut c_void,
    set_error: Option<SetError>,
) -> c_int {
    let made = if prototype.is_null() || out.is_null() {
        Err(("TypeError", "the allocator of DLPack's exchange API was given a null pointer".to_owned()))
    } else {
        // SAFETY: not null, and valid as the protocol says.
        unsafe { make(&*prototype) }
    };
    match made {
        Ok(made) => {
            let made = Box::into_raw(Box::new(made));
            // SAFETY: the box is ours until the consumer has it; `out` was looked at above.
            unsafe {
                (*made).managed.manager_ctx = made.cast();
                (*made).managed.tensor.shape = (*made).shape.as_mut_ptr();
                (*made).managed.tensor.strides = (*made).strides.as_mut_ptr();
                *out = made.cast();
            }
            0
        }
        Err((kind, message)) => {
            let kind = CString::new(kind).unwrap_or_default();
            let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
            if let Some(set_error) = set_error {
                // SAFETY: the caller's function, with its own context, and two texts that live during the call.
                unsafe { set_error(context, kind.as_ptr(), message.as_ptr()) };
            }
            -1
        }
    }
}

type Refusal = (&'static str, String);

fn refused(status: tenure_status) -> Refusal {
    let message = message(status);
    (if status == TENURE_ERROR_OUT_OF_MEMORY { "MemoryError" } else { "RuntimeError" }, message)
}

/// # Safety
/// The prototype's shape is valid as its `ndim` says.
unsafe fn make(prototype: &Tensor) -> Result<Made, Refusal> {
    let wrong = |message: &str| ("BufferError", message.to_owned());
    let dims =
        usize::try_from(prototype.ndim).map_err(|_| wrong("the prototype has a negative number of dimensions"))?;
    if dims != 0 && prototype.shape.is_null() {
        return Err(wrong("the prototype has no shape"));
    }
    let shape: Box<[i64]> = if dims == 0 {
        Box::default()
    } else {
        // SAFETY: as the caller says.
        unsafe { std::slice::from_raw_parts(prototype.shape, dims) }.into()
    };
    let too_large = || wrong("the prototype is larger than an address space");
    let bits = usize::from(prototype.dtype.bits) * usize::from(prototype.dtype.lanes);
    let mut count = 1_usize;
    let mut strides = vec![1_i64; dims].into_boxed_slice();
    for (n, stride) in shape.iter().zip(strides.iter_mut()).rev() {
        *stride = i64::try_from(count).map_err(|_| too_large())?;
        let n = usize::try_from(*n).map_err(|_| wrong("the prototype has a negative dimension"))?;
        count = count.checked_mul(n).ok_or_else(too_large)?;
    }
    let bytes = count.checked_mul(bits).filter(|bits| *bits < isize::MAX as usize).ok_or_else(too_large)?.div_ceil(8);
    // Inside `using(...)` the engine is told by whoever holds the lock which scope this thread is in.
    let mut scope = Ok(());
    gil::if_held(|py| scope = current::sync(py).map_err(|e| ("RuntimeError", e.to_string())));
    scope?;
    let owned = gil::without_lock(|| in_memory_of(prototype.device, bytes))?;
    let data = {
        // SAFETY: all fields are integers and pointers, for which zeros are values.
        let mut view: tenure_buffer_view = unsafe { std::mem::zeroed() };
        view.size = size_of::<tenure_buffer_view>();
        // SAFETY: `view` is valid and its size is set; the buffer is ours.
        match unsafe { (api().buffer_view)(owned.handle(), &mut view) } {
            TENURE_OK => view.ptr,
            status => return Err(refused(status)),
        }
    };
    let tensor = Tensor {
        data,
        device: prototype.device,
        ndim: prototype.ndim,
        dtype: prototype.dtype,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = ManagedVersioned {
        major: MAJOR,
        minor: MINOR,
        manager_ctx: std::ptr::null_mut(),
        deleter: Some(delete_made),
        flags: 0,
        tensor,
    };
    Ok(Made { managed, shape, strides, _owned: owned })
}

/// A buffer of the engine's on a device of DLPack's: of the current resource there, or of the system's memory. Any thread.
fn in_memory_of(device: Device, bytes: usize) -> Result<Owned, Refusal> {
    let done = |status| if status == TENURE_OK { Ok(()) } else { Err(refused(status)) };
    let mut out: tenure_buffer = 0;
    let mut simulated = 0;
    // SAFETY: `simulated` is valid for writing.
    done(unsafe { (api().sim_active)(&mut simulated) })?;
    match device {
        Device { kind: CPU, .. } if simulated == 0 => {
            let mut system = TENURE_RESOURCE_NULL;
            // SAFETY: both are valid for writing; the reference is ours and given back once.
            unsafe {
                done((api().system_resource)(&mut system))?;
                let made = (api().buffer_create)(bytes, 0, stream::DEFAULT, system, &mut out);
                let made = done(made);
                (api().resource_release)(system);
                made?;
            }
        }
        Device { kind: CPU, .. } => {
            // Memory of the simulated device is the CPU's.
            // SAFETY: `out` is valid for writing.
            done(unsafe { (api().buffer_create)(bytes, 0, stream::DEFAULT, TENURE_RESOURCE_CURRENT, &mut out) })?;
        }
        Device { kind: CUDA, id } if simulated == 0 => {
            let mut before = 0;
            // SAFETY: both are valid for writing; the device is put back as it was.
            unsafe {
                done((api().device_get_current)(&mut before))?;
                done((api().device_set_current)(id))?;
                let made = (api().buffer_create)(bytes, 0, stream::DEFAULT, TENURE_RESOURCE_CURRENT, &mut out);
                let made = done(made);
                (api().device_set_current)(before);
                made?;
            }
        }
        Device { kind, id } => {
            return Err((
                "BufferError",
                format!(
                    "tenure cannot make a tensor on DLPack device ({kind}, {id}); it has the CPU's (1) and CUDA's (2)"
                ),
            ));
        }
    }
    Ok(Owned::new(out))
}

/// Makes the home stream of memory of `device` wait for the producer's; default streams are that device's.
fn in_order(py: Python<'_>, home: tenure_stream, theirs: tenure_stream, device: i32) -> PyResult<()> {
    let (home, theirs) = (Stream::of_device(py, home, device)?, Stream::of_device(py, theirs, device)?);
    let (home, theirs) = (home.carried(), theirs.carried());
    // SAFETY: the producer's current stream is alive during this call, and ours is held by the caller.
    call(py, || unsafe { wait_for(home, theirs) })
}

/// Asks an object through the table of its type, where that has one of our version. `None`: it has none.
pub(crate) fn ask(obj: &Bound<'_, PyAny>, stream: tenure_stream) -> PyResult<Option<Taken>> {
    let py = obj.py();
    let Some(capsule) = obj.get_type().getattr_opt(ATTRIBUTE)? else { return Ok(None) };
    let Some(table) = inside::<Header>(&capsule, NAME) else { return Ok(None) };
    // PyTorch's table gives a tensor whose gradient is wanted, behind the back of autograd; its `__dlpack__` refuses it.
    if let Some(wanted) = obj.getattr_opt("requires_grad")?
        && wanted.is_truthy()?
    {
        return Ok(None);
    }
    let mut table = table.cast_const();
    // SAFETY: the protocol says that the tables live as long as the process, and that the header stays as it is.
    unsafe {
        while !table.is_null() && (*table).major != MAJOR {
            table = (*table).previous;
        }
    }
    if table.is_null() {
        return Ok(None);
    }
    // SAFETY: a table of our version.
    let table = unsafe { &*table.cast::<Table>() };
    let (Some(from_object), Some(work_stream)) = (table.from_object, table.work_stream) else { return Ok(None) };
    let mut managed: *mut ManagedVersioned = std::ptr::null_mut();
    // SAFETY: with the interpreter lock, an object of the type that the table was found on, and room for the result.
    if unsafe { from_object(obj.as_ptr().cast(), &mut managed) } != 0 {
        return Err(PyErr::fetch(py));
    }
    if managed.is_null() {
        return Err(PyBufferError::new_err("the producer's DLPack exchange function gave no tensor and no error"));
    }
    // SAFETY: the tensor is ours from here on.
    let taken = unsafe { Taken::versioned(managed.cast())? };
    let device = taken.tensor.device;
    if device.kind == CUDA {
        let mut theirs = std::ptr::null_mut();
        // SAFETY: with the interpreter lock, and room for the result.
        let ordered = if unsafe { work_stream(device.kind, device.id, &mut theirs) } != 0 {
            Err(PyErr::fetch(py))
        } else {
            let theirs = tenure_stream { raw: theirs, object: 0 };
            in_order(py, stream, theirs, device.id)
        };
        if let Err(e) = ordered {
            taken.release(py);
            return Err(e);
        }
    }
    Ok(Some(taken))
}
