//! DLPack, both ways and in both kinds of capsule.
//!
//! ```text
//!  export   capsule --manager_ctx--> Export { tensor, shape, Arc<Owned> }      deleter = drop: no lock, no interpreter
//!  import   capsule --taken over--> tensor --owner--> the engine's buffer      release = the producer's deleter
//! ```
//!
//! # Which device
//! Memory that the host can read, and all memory of the simulated device, is exported as the CPU's, after a wait for the
//! home stream: a consumer on the CPU has no stream to wait on. Memory of a CUDA device is exported as such: the
//! consumer's stream is made to wait for the home stream, without the host waiting, and is recorded as a user of the
//! memory, so that it is not reused before the consumer's work is done.
//!
//! The layout of the structures is that of DLPack 1.x (`dlpack.h`), which is stable within the major version.

mod taken;

use std::ffi::{CStr, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use tenure_abi::*;

pub(crate) use self::taken::Taken;
use crate::buffer::{self, DeviceBuffer, Owned, view_of};
use crate::buffer_copy::{duplicate, wait_for};
use crate::buffer_export::{may_be_dead, wait_home};
use crate::dlpack_api;
use crate::errors::{call, check};
use crate::foreign::foreign;
use crate::gil;
use crate::size::pointer;
use crate::stream::{self, Stream};
use crate::table::api;

pub(crate) const CPU: i32 = 1;
pub(crate) const CUDA: i32 = 2;
pub(crate) const CUDA_HOST: i32 = 3;
pub(crate) const CUDA_MANAGED: i32 = 13;

const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

/// The newest version that this file writes and reads.
pub(crate) const MAJOR: u32 = 1;
pub(crate) const MINOR: u32 = 3;

const LEGACY_NAME: &CStr = c"dltensor";
const LEGACY_USED: &CStr = c"used_dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Device {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DataType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Tensor {
    pub(crate) data: *mut c_void,
    pub(crate) device: Device,
    pub(crate) ndim: i32,
    pub(crate) dtype: DataType,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
pub(crate) struct ManagedVersioned {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) manager_ctx: *mut c_void,
    pub(crate) deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    pub(crate) flags: u64,
    pub(crate) tensor: Tensor,
}

impl DataType {
    /// Unsigned bytes.
    pub(crate) const BYTES: Self = Self { code: 1, bits: 8, lanes: 1 };
}

const _: () = assert!(size_of::<Tensor>() == 48);
const _: () = assert!(size_of::<Managed>() == 64);
const _: () = assert!(size_of::<ManagedVersioned>() == 80);

/// What a capsule of ours points to: `managed` first, so that both have one address.
#[repr(C)]
struct Export<M> {
    managed: M,
    shape: [i64; 1],
    strides: [i64; 1],
    /// Keeps the memory. Dropped without the interpreter: see `Owned`.
    _owned: Arc<Owned>,
}

unsafe extern "C" fn delete_legacy(managed: *mut Managed) {
    // SAFETY: the consumer calls this once, with what `capsule` made.
    drop(unsafe { Box::from_raw(managed.cast::<Export<Managed>>()) });
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as in `delete_legacy`.
    drop(unsafe { Box::from_raw(managed.cast::<Export<ManagedVersioned>>()) });
}

/// A capsule that nobody took (its name is the old one) frees what it holds.
unsafe extern "C" fn capsule_destructor(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter with a capsule made below; an unused one holds what its name says.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED_NAME.as_ptr()) != 0 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED_NAME.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, LEGACY_NAME.as_ptr()) != 0 {
            delete_legacy(ffi::PyCapsule_GetPointer(capsule, LEGACY_NAME.as_ptr()).cast());
        }
    }
}

/// Whether the device layer is the simulated one. Known once a buffer exists.
fn simulated(py: Python<'_>) -> PyResult<bool> {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let mut out = 0;
    // SAFETY: `out` is valid for writing.
    call(py, || unsafe { (api().sim_active)(&mut out) })?;
    Ok(*KNOWN.get_or_init(|| out != 0))
}

fn device_of(py: Python<'_>, view: &tenure_buffer_view) -> PyResult<(i32, i32)> {
    if view.device < 0 || view.properties & TENURE_HOST_ACCESSIBLE != 0 || simulated(py)? {
        return Ok((CPU, 0));
    }
    Ok((CUDA, view.device))
}

/// `__dlpack_device__`.
pub(crate) fn device(slf: &Bound<'_, DeviceBuffer>) -> PyResult<(i32, i32)> {
    device_of(slf.py(), &slf.get().view(slf.py())?)
}

/// Whether memory that is the CPU's by default may be exported as this device's all the same.
fn also(view: &tenure_buffer_view, wanted: (i32, i32), simulated: bool) -> bool {
    if simulated || view.properties & TENURE_DEVICE_ACCESSIBLE == 0 {
        return false;
    }
    match wanted {
        (CUDA_MANAGED, 0) => view.properties & TENURE_MANAGED != 0,
        (CUDA_HOST, 0) => view.properties & (TENURE_MANAGED | TENURE_HOST_ACCESSIBLE) == TENURE_HOST_ACCESSIBLE,
        (CUDA, id) => view.device >= 0 && id == view.device,
        _ => false,
    }
}

/// The consumer's stream, as `__dlpack__(stream=)` names it. `None`: it wants no synchronisation.
fn consumer(stream: Option<&Bound<'_, PyAny>>) -> PyResult<Option<tenure_stream>> {
    let Some(stream) = stream else { return Ok(Some(stream::DEFAULT)) };
    let number: i64 = match stream.extract::<i64>() {
        Ok(number) => number,
        Err(_) => {
            let given = stream::argument(Some(stream))?;
            given.carried().raw as i64
        }
    };
    match number {
        -1 => Ok(None),
        0 => Err(PyValueError::new_err(
            "stream=0 is not allowed by DLPack; 1 is the legacy default stream, 2 the per-thread one",
        )),
        number if number < 0 => {
            Err(PyValueError::new_err(format!("stream={number} is no stream; DLPack knows -1, 1, 2 and addresses")))
        }
        1 => Ok(Some(stream::DEFAULT)),
        number => Ok(Some(tenure_stream { raw: pointer(number as usize), object: 0 })),
    }
}

/// `__dlpack__`.
pub(crate) fn export<'py>(
    slf: &Bound<'py, DeviceBuffer>,
    stream: Option<&Bound<'_, PyAny>>,
    max_version: Option<(u32, u32)>,
    dl_device: Option<(i32, i32)>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = slf.py();
    let this = slf.get();
    this.not_changing()?;
    let view = this.view(py)?;
    let home = device_of(py, &view)?;
    let target = dl_device.unwrap_or(home);
    let to_host = target == (CPU, 0) && home.0 == CUDA;
    if target != home && !to_host && !also(&view, target, simulated(py)?) {
        return Err(PyBufferError::new_err(format!(
            "the buffer is on DLPack device {home:?} and cannot be exported to {target:?}; copy it with tenure first"
        )));
    }
    if to_host && copy == Some(false) {
        return Err(PyBufferError::new_err(
            "memory of a CUDA device reaches the CPU only as a copy; leave copy=False out",
        ));
    }
    let versioned = max_version.is_some_and(|(major, _)| major >= 1);
    let readonly = this.readonly.load(Ordering::Acquire);
    let copied = to_host || copy == Some(true);
    if readonly && !copied && !versioned {
        return Err(PyBufferError::new_err(
            "the memory is read-only, which DLPack below version 1 cannot say; ask for a copy",
        ));
    }
    // For the CPU the host waits; for a device, the consumer's stream does.
    let theirs = if target.0 == CPU {
        if stream.is_some_and(|s| !s.eq(-1).unwrap_or(false)) {
            consumer(stream)?;
        }
        None
    } else {
        consumer(stream)?
    };

    let owned = if copied {
        let handle = if to_host { host_copy(py, this, &view)? } else { own_copy(py, this, &view)? };
        Arc::new(Owned::new(handle))
    } else {
        this.share()?
    };
    let exported = view_of(py, owned.handle())?;
    if exported.bytes != 0 {
        let _turn = this.turn(py)?;
        hand_over(py, owned.handle(), &exported, target.0 == CPU, theirs)?;
    }
    // While the capsule was prepared the lock may have been free; whoever began a change in between has seen the count.
    this.not_changing()?;

    let mut flags = 0;
    if readonly && !copied {
        flags |= READ_ONLY;
    }
    if copied {
        flags |= IS_COPIED;
    }
    let tensor = Tensor {
        data: exported.ptr,
        device: Device { kind: target.0, id: target.1 },
        ndim: 1,
        dtype: DataType::BYTES,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let shape = [exported.bytes as i64];
    if versioned {
        let minor = max_version.map_or(0, |(major, minor)| if major > MAJOR { MINOR } else { minor.min(MINOR) });
        let export = tensor_of(minor, flags, tensor, exported.bytes, owned);
        capsule(py, export.cast(), VERSIONED_NAME)
    } else {
        let managed = Managed { tensor, manager_ctx: std::ptr::null_mut(), deleter: Some(delete_legacy) };
        let export = Box::into_raw(Box::new(Export { managed, shape, strides: [1], _owned: owned }));
        // SAFETY: the box is ours until the capsule has it.
        unsafe {
            (*export).managed.manager_ctx = export.cast();
            (*export).managed.tensor.shape = (&raw mut (*export).shape).cast();
            (*export).managed.tensor.strides = (&raw mut (*export).strides).cast();
        }
        capsule(py, export.cast(), LEGACY_NAME)
    }
}

/// A tensor of the versioned kind over bytes that `owned` keeps.
fn tensor_of(minor: u32, flags: u64, tensor: Tensor, bytes: usize, owned: Arc<Owned>) -> *mut ManagedVersioned {
    let managed = ManagedVersioned {
        major: MAJOR,
        minor,
        manager_ctx: std::ptr::null_mut(),
        deleter: Some(delete_versioned),
        flags,
        tensor,
    };
    let export = Box::into_raw(Box::new(Export { managed, shape: [bytes as i64], strides: [1], _owned: owned }));
    // SAFETY: the box is ours until somebody takes the tensor.
    unsafe {
        (*export).managed.manager_ctx = export.cast();
        (*export).managed.tensor.shape = (&raw mut (*export).shape).cast();
        (*export).managed.tensor.strides = (&raw mut (*export).strides).cast();
    }
    export.cast()
}

/// What the C exchange API needs to know of a buffer, whose work so far comes before that of the default stream.
pub(crate) fn ready_for_c(slf: &Bound<'_, DeviceBuffer>) -> PyResult<(tenure_buffer_view, Device)> {
    let py = slf.py();
    let this = slf.get();
    this.not_changing()?;
    let view = this.view(py)?;
    let (kind, id) = device_of(py, &view)?;
    if view.bytes != 0 {
        let _turn = this.turn(py)?;
        hand_over(py, this.handle()?, &view, kind == CPU, Some(stream::DEFAULT))?;
    }
    this.not_changing()?;
    Ok((view, Device { kind, id }))
}

/// A tensor for the C exchange API, which keeps the memory.
pub(crate) fn versioned_for_c(slf: &Bound<'_, DeviceBuffer>) -> PyResult<*mut ManagedVersioned> {
    let owned = slf.get().share()?;
    let (view, device) = ready_for_c(slf)?;
    let flags = if slf.get().readonly.load(Ordering::Acquire) { READ_ONLY } else { 0 };
    let tensor = Tensor {
        data: view.ptr,
        device,
        ndim: 1,
        dtype: DataType::BYTES,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    Ok(tensor_of(MINOR, flags, tensor, view.bytes, owned))
}

fn capsule<'py>(py: Python<'py>, pointer: *mut c_void, name: &'static CStr) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the name is static, the pointer is not null, and the destructor knows what it points to.
    let made = unsafe {
        let object = ffi::PyCapsule_New(pointer, name.as_ptr(), Some(capsule_destructor));
        Bound::from_owned_ptr_or_err(py, object)
    };
    if made.is_err() {
        // SAFETY: no capsule has it.
        unsafe { if name == VERSIONED_NAME { delete_versioned(pointer.cast()) } else { delete_legacy(pointer.cast()) } }
    }
    made
}

/// Orders the consumer's work behind ours, and our free behind the consumer's work.
fn hand_over(
    py: Python<'_>,
    handle: tenure_buffer,
    view: &tenure_buffer_view,
    to_cpu: bool,
    theirs: Option<tenure_stream>,
) -> PyResult<()> {
    if to_cpu {
        return wait_home(py, view);
    }
    let Some(theirs) = theirs else { return Ok(()) };
    if may_be_dead(view.stream) {
        wait_home(py, view)?;
    }
    // A consumer's default stream is that of the memory's device too.
    let (home, theirs) =
        (Stream::of_device(py, view.stream, view.device)?, Stream::of_device(py, theirs, view.device)?);
    let (home, theirs, dead) = (home.carried(), theirs.carried(), may_be_dead(view.stream));
    call(py, || {
        // SAFETY: the protocol says that the consumer's stream is alive during this call; the buffer is held.
        unsafe {
            let status = if dead { TENURE_OK } else { wait_for(theirs, home) };
            if status == TENURE_OK { (api().buffer_record_stream)(handle, theirs) } else { status }
        }
    })
}

/// A copy under the buffer's own resource; the current one where it has none.
fn own_copy(py: Python<'_>, this: &DeviceBuffer, view: &tenure_buffer_view) -> PyResult<tenure_buffer> {
    let mut resource = TENURE_RESOURCE_NULL;
    {
        let _turn = this.turn(py)?;
        // SAFETY: `resource` is valid for writing.
        check(py, unsafe { (api().buffer_resource)(this.handle()?, &mut resource) })?;
    }
    let home = Stream::sharing(py, view.stream)?;
    if resource == TENURE_RESOURCE_NULL {
        let current = buffer::resource_or_current(py, None)?;
        return duplicate(py, this, home.carried(), current);
    }
    let copy = duplicate(py, this, home.carried(), resource);
    // SAFETY: the reference is ours and is given back once.
    gil::give_back(
        || unsafe { (api().resource_try_release)(resource) },
        || unsafe { (api().resource_release)(resource) },
    );
    copy
}

/// A copy in memory of the system's.
fn host_copy(py: Python<'_>, this: &DeviceBuffer, view: &tenure_buffer_view) -> PyResult<tenure_buffer> {
    let mut system = TENURE_RESOURCE_NULL;
    // SAFETY: `system` is valid for writing. The process's one resource is never closed, so the reference may go early.
    check(py, unsafe { (api().system_resource)(&mut system) })?;
    let home = Stream::sharing(py, view.stream)?;
    let copy = duplicate(py, this, home.carried(), system);
    // SAFETY: the reference is ours and is given back once.
    gil::give_back(|| unsafe { (api().resource_try_release)(system) }, || unsafe { (api().resource_release)(system) });
    copy
}

/// A buffer over the memory of an object with `__dlpack__`. Its producer frees it when the buffer goes.
#[pyfunction]
#[pyo3(signature = (obj, *, stream=None))]
pub(crate) fn from_dlpack<'py>(
    py: Python<'py>,
    obj: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<Bound<'py, DeviceBuffer>> {
    let stream = stream::argument(stream)?;
    let carried = stream.carried();
    let taken = if obj.is_instance_of::<PyCapsule>() {
        Taken::from(obj)?
    } else if let Some(taken) = dlpack_api::ask(obj, carried)? {
        taken
    } else {
        Taken::from(&ask(obj, carried)?)?
    };
    buffer_of(py, taken, carried)
}

/// A buffer over a tensor, which is taken over whatever the result.
pub(crate) fn buffer_of(py: Python<'_>, taken: Taken, carried: tenure_stream) -> PyResult<Bound<'_, DeviceBuffer>> {
    let owner = tenure_owner { context: taken.managed, release: Some(taken.release) };
    let placed = taken.memory().and_then(|memory| {
        let device = match taken.tensor.device {
            Device { kind: CPU | CUDA_HOST, .. } => -1,
            Device { kind: CUDA, id } => id,
            Device { kind: CUDA_MANAGED, .. } => {
                let mut device = 0;
                // SAFETY: `device` is valid for writing.
                call(py, || unsafe { (api().stream_device)(carried, &mut device) })?;
                device
            }
            Device { kind, id } => {
                return Err(PyBufferError::new_err(format!(
                    "the DLPack tensor is on device type {kind}, number {id}; tenure takes the CPU's (1), CUDA's (2), pinned (3) and managed (13) memory"
                )));
            }
        };
        Ok((memory, device))
    });
    let ((address, bytes), device) = match placed {
        Ok(placed) => placed,
        Err(e) => {
            taken.release(py);
            return Err(e);
        }
    };
    let handle = foreign(py, pointer(address), bytes, device, carried, None, owner)?;
    let buffer = DeviceBuffer::wrap(py, handle)?;
    buffer.get().readonly.store(taken.flags & READ_ONLY != 0, Ordering::Release);
    Ok(buffer)
}

/// Calls `__dlpack__`, first as version 1 has it, then as the versions before had.
fn ask<'py>(obj: &Bound<'py, PyAny>, stream: tenure_stream) -> PyResult<Bound<'py, PyAny>> {
    let py = obj.py();
    let Some(producer) = obj.getattr_opt("__dlpack__")? else {
        let kind = obj.get_type().name()?;
        return Err(PyTypeError::new_err(format!("an object with __dlpack__ is needed, not {kind}")));
    };
    let kwargs = PyDict::new(py);
    let (kind, _): (i32, i32) = obj.call_method0("__dlpack_device__")?.extract()?;
    if kind == CUDA || kind == CUDA_MANAGED {
        kwargs.set_item("stream", (stream.raw as usize).max(1))?;
    }
    kwargs.set_item("max_version", (MAJOR, MINOR))?;
    match producer.call((), Some(&kwargs)) {
        Err(e) if e.is_instance_of::<PyTypeError>(py) => {
            kwargs.del_item("max_version")?;
            producer.call((), Some(&kwargs))
        }
        answer => answer,
    }
}
