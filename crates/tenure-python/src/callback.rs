//! `CallbackMemoryResource`: a resource made of two Python functions, which it owns.
//!
//! ```text
//!  Python object --handle--> engine resource --context--> Callables { allocate, deallocate }
//! ```
//!
//! The callables belong to the engine's resource, not to the Python object: they are there as long as a buffer, an
//! adaptor, the table or C++ needs them, whatever became of the object.
//!
//! # Rules
//! * An exception of `allocate` comes back to the caller as the same object, through whatever lies between.
//! * An exception of `deallocate` goes to `sys.unraisablehook`; the block counts as freed.
//! * Once the interpreter is going neither is entered: an allocation is an error, a free does nothing.
//!
//! # Cycles
//! See [`crate::keeper`], which owns the callables: `self.mr = CallbackMemoryResource(self.allocate, self.free)`
//! is a cycle through the engine, and so is `self.buffer = DeviceBuffer(size=n, mr=self.mr)`.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use tenure_abi::*;

use crate::errors::raise_through;
use crate::gil;
use crate::keeper::{self, Callables, Held, Keeper};
use crate::resource::DeviceMemoryResource;
use crate::stream::Stream;
use crate::table::api;

/// What the engine's resource owns.
pub(crate) struct Context {
    pub(crate) keeper: Py<Keeper>,
    pub(crate) in_flight: AtomicUsize,
}

impl Context {
    /// The callables, for one call.
    fn held(&self, py: Python<'_>) -> Option<Callables> {
        self.keeper.get().callables(py)
    }
}

pub(crate) struct InFlight<'a>(&'a AtomicUsize);

impl<'a> InFlight<'a> {
    pub(crate) fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// For the engine: allocates by the Python function.
///
/// # Safety
/// As `tenure_resource_vtable` says; `context` is a `Context`.
unsafe extern "C" fn allocate(
    context: *mut c_void,
    request: *const tenure_request,
    stream: tenure_stream,
    out: *mut *mut c_void,
) -> tenure_status {
    // SAFETY: the engine passes the context of a resource that lives, and a request that is valid during the call.
    let (context, bytes) = unsafe { (&*context.cast::<Context>(), (*request).bytes) };
    let _in_flight = InFlight::new(&context.in_flight);
    let status = gil::enter(|py| match call_allocate(py, context, bytes, stream) {
        Ok(ptr) => {
            // SAFETY: `out` is valid for writing during the call.
            unsafe { *out = ptr as *mut c_void };
            TENURE_OK
        }
        Err(raised) => raise_through(py, raised),
    });
    status.unwrap_or_else(exiting)
}

fn call_allocate(py: Python<'_>, context: &Context, bytes: usize, stream: tenure_stream) -> PyResult<usize> {
    let callables = context.held(py).ok_or_else(collected)?;
    let stream = Stream::sharing(py, stream)?;
    let answer = callables.allocate.bind(py).call1((bytes, stream))?;
    let ptr: usize = if answer.is_instance_of::<PyInt>() {
        answer.extract().map_err(|_| PyValueError::new_err("allocate_func returned an integer that is no address"))?
    } else {
        let kind = answer.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "allocate_func must return the address of {bytes} bytes (int), not {kind}"
        )));
    };
    if ptr == 0 {
        return Err(PyValueError::new_err(format!(
            "allocate_func returned 0 for {bytes} bytes; raise MemoryError when there is no memory"
        )));
    }
    Ok(ptr)
}

/// For the engine: frees by the Python function. Never fails: what it raises is reported.
///
/// # Safety
/// As `tenure_resource_vtable` says; `context` is a `Context`.
unsafe extern "C" fn deallocate(
    context: *mut c_void,
    ptr: *mut c_void,
    request: *const tenure_request,
    stream: tenure_stream,
) -> tenure_status {
    // SAFETY: as in `allocate`.
    let (context, bytes) = unsafe { (&*context.cast::<Context>(), (*request).bytes) };
    let _in_flight = InFlight::new(&context.in_flight);
    gil::enter(|py| {
        let Some(callables) = context.held(py) else { return };
        let function = callables.deallocate.bind(py);
        let freed = Stream::sharing(py, stream).and_then(|stream| function.call1((ptr as usize, bytes, stream)));
        if let Err(raised) = freed {
            raised.write_unraisable(py, Some(function));
        }
    });
    // After the interpreter there is nobody to free: the memory goes with the process.
    TENURE_OK
}

/// For the engine: nothing of the resource is alive any more.
///
/// # Safety
/// `context` is a `Context` that nobody uses any more.
unsafe extern "C" fn drop_context(context: *mut c_void) {
    // SAFETY: as the caller says; it was made by `Box::into_raw`.
    let context = unsafe { Box::from_raw(context.cast::<Context>()) };
    let mut kept = Some(context);
    // Leaked where the interpreter is going, as every Python reference of the engine is.
    if gil::enter(|_| drop(kept.take().inspect(|context| context.keeper.get().ended()))).is_none() {
        std::mem::forget(kept);
    }
}

fn exiting() -> tenure_status {
    let message = c"the Python interpreter is ending: allocate_func is not called any more";
    // SAFETY: the message is a string, and there is no payload.
    unsafe { (api().error_set)(TENURE_ERROR_EXITING, message.as_ptr(), 0, std::ptr::null_mut(), None) };
    TENURE_ERROR_EXITING
}

fn collected() -> PyErr {
    PyRuntimeError::new_err("the functions of this resource were collected as garbage; please report it")
}

/// The context of a resource that was made here, borrowed while the caller's reference lives.
fn context_of<'a>(handle: tenure_resource) -> Option<&'a Context> {
    if handle == TENURE_RESOURCE_NULL {
        return None;
    }
    let mut out = std::ptr::null_mut();
    // SAFETY: `out` is valid for writing. A context is given only for our own `drop_context`, so it is a `Context`.
    let status = unsafe { (api().callback_context)(handle, Some(drop_context), &mut out) };
    // SAFETY: as above; it lives while the resource does.
    if status == TENURE_OK && !out.is_null() { Some(unsafe { &*out.cast::<Context>() }) } else { None }
}

/// Whether a resource was made by `CallbackMemoryResource`.
pub(crate) fn is_ours(handle: tenure_resource) -> bool {
    context_of(handle).is_some()
}

/// A resource made of two Python functions.
#[pyclass(extends = DeviceMemoryResource, subclass, frozen, module = "tenure.mr")]
#[derive(Default)]
pub(crate) struct CallbackMemoryResource {
    /// The part for the garbage collector; the base has the reference.
    held: OnceLock<Held>,
}

impl CallbackMemoryResource {
    /// The object's part for a resource that exists already.
    pub(crate) fn of(py: Python<'_>, handle: tenure_resource) -> Self {
        let this = Self::default();
        if let Some(context) = context_of(handle) {
            // A cell that was made a line ago is empty.
            let _ = this.held.set(Held::new(context.keeper.clone_ref(py), handle));
        }
        this
    }
}

/// Whether the Python object's own reference is all that the engine counts on a resource. Where the engine does not tell,
/// the answer is no: nothing is collected, nothing is harmed.
pub(crate) fn is_ours_alone(handle: tenure_resource) -> bool {
    keeper::references(handle).is_some_and(|(anchors, lights)| anchors + lights == 1)
}

/// For tests: what the engine counts.
#[pyfunction]
pub(crate) fn _references(mr: &Bound<'_, PyAny>) -> PyResult<Option<(u64, u64)>> {
    Ok(keeper::references(crate::resource::argument(mr)?))
}

#[pymethods]
impl CallbackMemoryResource {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(allocate_func, deallocate_func, *, device_accessible=True, host_accessible=False)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        PyClassInitializer::from(DeviceMemoryResource::default()).add_subclass(Self::default())
    }

    #[pyo3(signature = (allocate_func, deallocate_func, *, device_accessible=true, host_accessible=false))]
    fn __init__(
        slf: &Bound<'_, Self>,
        allocate_func: &Bound<'_, PyAny>,
        deallocate_func: &Bound<'_, PyAny>,
        device_accessible: bool,
        host_accessible: bool,
    ) -> PyResult<()> {
        for (function, name) in [(allocate_func, "allocate_func"), (deallocate_func, "deallocate_func")] {
            if !function.is_callable() {
                let kind = function.get_type().name()?;
                return Err(PyTypeError::new_err(format!("{name} must be callable, not {kind}")));
            }
        }
        let py = slf.py();
        let callables =
            Callables { allocate: allocate_func.clone().unbind(), deallocate: deallocate_func.clone().unbind() };
        let keeper = Py::new(py, Keeper::new(callables))?;
        let context = Box::into_raw(Box::new(Context { keeper: keeper.clone_ref(py), in_flight: AtomicUsize::new(0) }));
        // Not TENURE_INTERPRETED: the functions above see for themselves that the interpreter is going, and then a free
        // is nothing to report.
        let mut properties = TENURE_STREAM_ORDERED;
        if device_accessible {
            properties |= TENURE_DEVICE_ACCESSIBLE;
        }
        if host_accessible {
            properties |= TENURE_HOST_ACCESSIBLE;
        }
        let vtable = tenure_resource_vtable {
            size: size_of::<tenure_resource_vtable>(),
            kind: c"callback".as_ptr(),
            properties,
            device: -1,
            allocate: Some(allocate),
            deallocate: Some(deallocate),
            trim: None,
            drop: Some(drop_context),
        };
        let mut made = TENURE_RESOURCE_NULL;
        // SAFETY: the table is copied; the context belongs to the resource from the successful call on.
        let status =
            crate::errors::call(slf.py(), || unsafe { (api().callback_create)(&vtable, context.cast(), &mut made) });
        if let Err(e) = status {
            // SAFETY: the call failed, so the context is still ours.
            unsafe { drop_context(context.cast()) };
            return Err(e);
        }
        keeper.get().began(made, context);
        let held = Held::new(keeper, made);
        DeviceMemoryResource::install(slf.as_super(), made, None)?;
        // `install` refuses a second `__init__`.
        let _ = slf.get().held.set(held);
        Ok(())
    }

    #[getter]
    fn allocate_func(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let handle = DeviceMemoryResource::handle(slf.as_super())?;
        let callables = context_of(handle).and_then(|c| c.held(slf.py())).ok_or_else(collected)?;
        Ok(callables.allocate)
    }

    #[getter]
    fn deallocate_func(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let handle = DeviceMemoryResource::handle(slf.as_super())?;
        let callables = context_of(handle).and_then(|c| c.held(slf.py())).ok_or_else(collected)?;
        Ok(callables.deallocate)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.held.get().map_or(Ok(()), |held| held.traverse(&visit))
    }
}
