//! Adaptors beyond limiting and statistics, under RMM's names and signatures.
//!
//! `FailureCallbackResourceAdaptor` owns its callable as `CallbackMemoryResource` owns its two (see `callback`): the engine's
//! resource has it, an exception of it reaches whoever asked for memory as the same object, nothing is entered once the
//! interpreter is going, and a cycle through it is collected while the Python object is all that names the resource.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use tenure_abi::*;

use crate::callback::{InFlight, is_ours_alone};
use crate::errors::{self, raise_through};
use crate::gil;
use crate::kinds::{UpstreamResourceAdaptor, adaptor, make};
use crate::resource::{self, DeviceMemoryResource};
use crate::size;
use crate::stream::device_number;
use crate::table::api;

/// Keeps a list of what is out.
#[pyclass(extends = UpstreamResourceAdaptor, subclass, frozen, module = "tenure.mr")]
pub(crate) struct TrackingResourceAdaptor;

#[pymethods]
impl TrackingResourceAdaptor {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(upstream_mr, capture_stacks=False)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        adaptor(Self)
    }

    #[pyo3(signature = (upstream_mr, capture_stacks=false))]
    fn __init__(slf: &Bound<'_, Self>, upstream_mr: &Bound<'_, PyAny>, capture_stacks: bool) -> PyResult<()> {
        let upstream = resource::upstream(upstream_mr)?;
        let stacks = u32::from(capture_stacks);
        // SAFETY: the pointer is valid for writing.
        make(slf.as_super().as_super(), Some(upstream_mr.clone().unbind()), |out| unsafe {
            (api().tracking_create)(upstream, stacks, out)
        })
    }

    #[getter]
    fn capture_stacks(slf: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(DeviceMemoryResource::property(slf.as_super().as_super(), c"capture_stacks")? != 0)
    }

    fn get_allocated_bytes(slf: &Bound<'_, Self>) -> PyResult<u64> {
        DeviceMemoryResource::property(slf.as_super().as_super(), c"allocated_bytes")
    }

    fn get_outstanding_allocations<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyList>> {
        let handle = DeviceMemoryResource::handle(slf.as_super().as_super())?;
        let mut blocks: Vec<(usize, usize, String)> = Vec::new();
        let to = (&raw mut blocks).cast::<c_void>();
        // SAFETY: `take` gets the vector, which lives during the call.
        errors::call(slf.py(), || unsafe { (api().tracking_list)(handle, Some(take), to) })?;
        PyList::new(slf.py(), blocks)
    }

    fn get_outstanding_allocations_str(slf: &Bound<'_, Self>) -> PyResult<String> {
        let handle = DeviceMemoryResource::handle(slf.as_super().as_super())?;
        let mut text = tenure_text { data: std::ptr::null(), size: 0 };
        // SAFETY: the pointer is valid for writing.
        errors::call(slf.py(), || unsafe { (api().tracking_text)(handle, &mut text) })?;
        // SAFETY: the library's text, which ends with a zero byte.
        let copy = unsafe { CStr::from_ptr(text.data) }.to_string_lossy().into_owned();
        // SAFETY: given back once.
        errors::check(slf.py(), unsafe { (api().text_free)(&mut text) })?;
        Ok(copy)
    }

    fn log_outstanding_allocations(slf: &Bound<'_, Self>) -> PyResult<()> {
        let logger = slf.py().import("logging")?.call_method1("getLogger", ("tenure",))?;
        if !logger.call_method1("isEnabledFor", (10,))?.extract::<bool>()? {
            return Ok(());
        }
        let text = Self::get_outstanding_allocations_str(slf)?;
        let text = if text.is_empty() { "none" } else { text.trim_end() };
        logger.call_method1("debug", ("Outstanding allocations: %s", text))?;
        Ok(())
    }
}

/// For the engine: one block of a list.
///
/// # Safety
/// `blocks` is the vector of `get_outstanding_allocations`.
unsafe extern "C" fn take(blocks: *mut c_void, block: *const tenure_tracked) -> i32 {
    // SAFETY: as the caller says; the block and its text are valid during the call.
    let (blocks, block) = unsafe { (&mut *blocks.cast::<Vec<(usize, usize, String)>>(), &*block) };
    // SAFETY: as above.
    let stack = unsafe { CStr::from_ptr(block.stack) }.to_string_lossy().into_owned();
    blocks.push((block.ptr as usize, block.bytes, stack));
    0
}

/// What the engine's resource owns.
struct Context {
    /// Taken out only by the garbage collector, when nobody can call any more.
    callable: Mutex<Option<Py<PyAny>>>,
    in_flight: AtomicUsize,
}

impl Context {
    /// The callable, for one call.
    fn held(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let held = self.callable.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map(|callable| callable.clone_ref(py))
    }
}

/// For the engine: asks the Python function.
///
/// # Safety
/// As `tenure_failure_fn` says; `context` is a `Context`.
unsafe extern "C" fn asked(context: *mut c_void, bytes: usize, again: *mut u32) -> tenure_status {
    // SAFETY: the engine passes the context of a resource that lives.
    let context = unsafe { &*context.cast::<Context>() };
    let _in_flight = InFlight::new(&context.in_flight);
    let status = gil::enter(|py| {
        let answer = match context.held(py) {
            Some(callable) => callable.bind(py).call1((bytes,)).and_then(|answer| answer.is_truthy()),
            None => Err(collected()),
        };
        match answer {
            Ok(answer) => {
                // SAFETY: `again` is valid for writing during the call.
                unsafe { *again = u32::from(answer) };
                TENURE_OK
            }
            Err(raised) => raise_through(py, raised),
        }
    });
    // Once the interpreter is going there is nobody to ask: the request fails as it did.
    status.unwrap_or(TENURE_OK)
}

/// For the engine: nothing of the resource is alive any more.
///
/// # Safety
/// `context` is a `Context` that nobody uses any more.
unsafe extern "C" fn drop_context(context: *mut c_void) {
    // SAFETY: as the caller says; it was made by `Box::into_raw`.
    let context = unsafe { Box::from_raw(context.cast::<Context>()) };
    let callable = context.callable.lock().unwrap_or_else(PoisonError::into_inner).take();
    if callable.is_some() {
        // Leaked where the interpreter is going, as every Python reference of the engine is.
        let mut kept = callable;
        if gil::enter(|_| drop(kept.take())).is_none() {
            std::mem::forget(kept);
        }
    }
}

fn collected() -> PyErr {
    PyRuntimeError::new_err("the callback of this resource was collected as garbage; please report it")
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

/// Asks a callable before a request fails for want of memory.
#[pyclass(extends = UpstreamResourceAdaptor, subclass, frozen, module = "tenure.mr")]
#[derive(Default)]
pub(crate) struct FailureCallbackResourceAdaptor {
    /// The base's reference once more, for the garbage collector, which sees only this part of the object.
    handle: AtomicU64,
}

impl FailureCallbackResourceAdaptor {
    /// The object's part for a resource that exists already.
    pub(crate) fn of(handle: tenure_resource) -> Self {
        Self { handle: AtomicU64::new(handle) }
    }

    /// The context, if the garbage collector may look into it now.
    fn collectable(&self) -> Option<&Context> {
        let handle = self.handle.load(Ordering::Acquire);
        let context = context_of(handle)?;
        (context.in_flight.load(Ordering::Acquire) == 0 && is_ours_alone(handle)).then_some(context)
    }
}

#[pymethods]
impl FailureCallbackResourceAdaptor {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(upstream_mr, callback)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        adaptor(Self::default())
    }

    #[pyo3(signature = (upstream_mr, callback))]
    fn __init__(slf: &Bound<'_, Self>, upstream_mr: &Bound<'_, PyAny>, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        let upstream = resource::upstream(upstream_mr)?;
        if !callback.is_callable() {
            let kind = callback.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "callback must be callable, a function that gets the bytes that are wanted and returns whether to try \
                 again, not {kind}"
            )));
        }
        let callable = Mutex::new(Some(callback.clone().unbind()));
        let context = Box::into_raw(Box::new(Context { callable, in_flight: AtomicUsize::new(0) }));
        let owner = tenure_owner { context: context.cast(), release: Some(drop_context) };
        let mut handle = TENURE_RESOURCE_NULL;
        // SAFETY: the context belongs to the resource from the successful call on.
        let made = errors::call(slf.py(), || unsafe {
            (api().failure_callback_create)(upstream, Some(asked), owner, &mut handle)
        });
        if let Err(e) = made {
            // SAFETY: the call failed, so the context is still ours.
            unsafe { drop_context(context.cast()) };
            return Err(e);
        }
        DeviceMemoryResource::install(slf.as_super().as_super(), handle, Some(upstream_mr.clone().unbind()))?;
        slf.get().handle.store(handle, Ordering::Release);
        Ok(())
    }

    #[getter]
    fn callback(slf: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
        let handle = DeviceMemoryResource::handle(slf.as_super().as_super())?;
        // Made by another language: nothing that Python could call.
        let Some(context) = context_of(handle) else { return Ok(None) };
        context.held(slf.py()).map(Some).ok_or_else(collected)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(context) = self.collectable()
            && let Ok(callable) = context.callable.try_lock()
            && let Some(callable) = &*callable
        {
            visit.call(callable)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let taken = self
            .collectable()
            .and_then(|context| context.callable.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(taken);
    }
}

/// Moves memory that migrates to the device that it is for.
#[pyclass(extends = UpstreamResourceAdaptor, subclass, frozen, module = "tenure.mr")]
pub(crate) struct PrefetchResourceAdaptor;

#[pymethods]
impl PrefetchResourceAdaptor {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(upstream_mr)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        adaptor(Self)
    }

    #[pyo3(signature = (upstream_mr))]
    fn __init__(slf: &Bound<'_, Self>, upstream_mr: &Bound<'_, PyAny>) -> PyResult<()> {
        let upstream = resource::upstream(upstream_mr)?;
        // SAFETY: the pointer is valid for writing.
        make(slf.as_super().as_super(), Some(upstream_mr.clone().unbind()), |out| unsafe {
            (api().prefetch_create)(upstream, out)
        })
    }

    #[getter]
    fn hints(slf: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(DeviceMemoryResource::property(slf.as_super().as_super(), c"hints")? != 0)
    }

    #[getter]
    fn told(slf: &Bound<'_, Self>) -> PyResult<u64> {
        DeviceMemoryResource::property(slf.as_super().as_super(), c"told")
    }
}

/// `DeviceBuffer.prefetch`: -1 is the host, as in CUDA's runtime.
pub(crate) fn prefetch(
    py: Python<'_>,
    buffer: tenure_buffer,
    device: Option<i32>,
    stream: Option<tenure_stream>,
) -> PyResult<bool> {
    let device = match device {
        Some(-1) => TENURE_HOST,
        other => device_number(other)?,
    };
    let stream = stream.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let mut told = 0;
    let out = &raw mut told;
    // SAFETY: the handles are held by the caller's arguments; the pointers are valid during the call, or null for the home.
    errors::call(py, || unsafe { (api().buffer_prefetch)(buffer, device, stream, out) })?;
    Ok(told != 0)
}

/// Raises the alignment of what is large enough.
#[pyclass(extends = UpstreamResourceAdaptor, subclass, frozen, module = "tenure.mr")]
pub(crate) struct AlignedResourceAdaptor;

#[pymethods]
impl AlignedResourceAdaptor {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(upstream_mr, alignment=256, alignment_threshold=0)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        adaptor(Self)
    }

    #[pyo3(signature = (upstream_mr, alignment=None, alignment_threshold=None))]
    fn __init__(
        slf: &Bound<'_, Self>,
        upstream_mr: &Bound<'_, PyAny>,
        alignment: Option<&Bound<'_, PyAny>>,
        alignment_threshold: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let upstream = resource::upstream(upstream_mr)?;
        let alignment = size::optional(alignment, "alignment")?.unwrap_or(256);
        let threshold = size::optional(alignment_threshold, "alignment_threshold")?.unwrap_or(0);
        // SAFETY: the pointer is valid for writing.
        make(slf.as_super().as_super(), Some(upstream_mr.clone().unbind()), |out| unsafe {
            (api().aligned_create)(upstream, alignment, threshold, out)
        })
    }

    #[getter]
    fn alignment(slf: &Bound<'_, Self>) -> PyResult<u64> {
        DeviceMemoryResource::property(slf.as_super().as_super(), c"alignment")
    }

    #[getter]
    fn alignment_threshold(slf: &Bound<'_, Self>) -> PyResult<u64> {
        DeviceMemoryResource::property(slf.as_super().as_super(), c"alignment_threshold")
    }
}

/// One call at a time.
#[pyclass(extends = UpstreamResourceAdaptor, subclass, frozen, module = "tenure.mr")]
pub(crate) struct ThreadSafeResourceAdaptor;

#[pymethods]
impl ThreadSafeResourceAdaptor {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(upstream_mr)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        adaptor(Self)
    }

    #[pyo3(signature = (upstream_mr))]
    fn __init__(slf: &Bound<'_, Self>, upstream_mr: &Bound<'_, PyAny>) -> PyResult<()> {
        let upstream = resource::upstream(upstream_mr)?;
        // SAFETY: the pointer is valid for writing.
        make(slf.as_super().as_super(), Some(upstream_mr.clone().unbind()), |out| unsafe {
            (api().thread_safe_create)(upstream, out)
        })
    }
}

/// Memory of the system's allocator that leaves some of the device free.
#[pyclass(extends = DeviceMemoryResource, subclass, frozen, module = "tenure.mr")]
pub(crate) struct SamHeadroomMemoryResource;

#[pymethods]
impl SamHeadroomMemoryResource {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(headroom)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        PyClassInitializer::from(DeviceMemoryResource::default()).add_subclass(Self)
    }

    #[pyo3(signature = (headroom))]
    fn __init__(slf: &Bound<'_, Self>, headroom: &Bound<'_, PyAny>) -> PyResult<()> {
        let headroom = size::bytes(headroom, "headroom")? as u64;
        // SAFETY: the pointer is valid for writing.
        make(slf.as_super(), None, |out| unsafe { (api().sam_headroom_create)(headroom, out) })
    }

    #[getter]
    fn headroom(slf: &Bound<'_, Self>) -> PyResult<u64> {
        DeviceMemoryResource::property(slf.as_super(), c"headroom")
    }

    #[getter]
    fn hints(slf: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(DeviceMemoryResource::property(slf.as_super(), c"hints")? != 0)
    }
}

/// Stream-ordered managed memory from a device's own pool of it.
#[pyclass(extends = DeviceMemoryResource, subclass, frozen, module = "tenure.mr")]
pub(crate) struct CudaAsyncManagedMemoryResource;

#[pymethods]
impl CudaAsyncManagedMemoryResource {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(*, device=None)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        PyClassInitializer::from(DeviceMemoryResource::default()).add_subclass(Self)
    }

    #[pyo3(signature = (*, device=None))]
    fn __init__(slf: &Bound<'_, Self>, device: Option<i32>) -> PyResult<()> {
        let device = device_number(device)?;
        // SAFETY: the pointer is valid for writing.
        make(slf.as_super(), None, |out| unsafe { (api().async_managed_create)(device, out) })
    }

    fn pool_handle(slf: &Bound<'_, Self>) -> PyResult<u64> {
        DeviceMemoryResource::property(slf.as_super(), c"pool_handle")
    }
}

/// An object without a resource yet, of the class of this file that fits a kind.
pub(crate) fn blank<'py>(py: Python<'py>, kind: &str, handle: tenure_resource) -> PyResult<Option<Bound<'py, PyAny>>> {
    let base = || PyClassInitializer::from(DeviceMemoryResource::default());
    Ok(Some(match kind {
        "tracking" => Bound::new(py, adaptor(TrackingResourceAdaptor))?.into_any(),
        "failure_callback" => Bound::new(py, adaptor(FailureCallbackResourceAdaptor::of(handle)))?.into_any(),
        "prefetch" => Bound::new(py, adaptor(PrefetchResourceAdaptor))?.into_any(),
        "aligned" => Bound::new(py, adaptor(AlignedResourceAdaptor))?.into_any(),
        "thread_safe" => Bound::new(py, adaptor(ThreadSafeResourceAdaptor))?.into_any(),
        "sam_headroom" => Bound::new(py, base().add_subclass(SamHeadroomMemoryResource))?.into_any(),
        "cuda_async_managed" => Bound::new(py, base().add_subclass(CudaAsyncManagedMemoryResource))?.into_any(),
        _ => return Ok(None),
    }))
}

/// Adds the classes.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<TrackingResourceAdaptor>()?;
    module.add_class::<FailureCallbackResourceAdaptor>()?;
    module.add_class::<PrefetchResourceAdaptor>()?;
    module.add_class::<AlignedResourceAdaptor>()?;
    module.add_class::<ThreadSafeResourceAdaptor>()?;
    module.add_class::<SamHeadroomMemoryResource>()?;
    module.add_class::<CudaAsyncManagedMemoryResource>()
}
