//! The concrete classes of `tenure.mr`, under RMM's names and signatures.
//!
//! Each class is a constructor and a few typed accessors over `DeviceMemoryResource`; what a resource *is*, the engine
//! knows. [`blank`] maps the engine's word for a kind to the class.
//!
//! All work is done in `__init__`, `__new__` takes anything: so a Python subclass may have a constructor of its own and
//! call `super().__init__` when it likes, and until then the object raises on every method.

use std::ffi::{CStr, c_void};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use tenure_abi::*;

use crate::adaptors;
use crate::bins::{self, ArenaMemoryResource, BinningMemoryResource, FixedSizeMemoryResource};
use crate::callback::{self, CallbackMemoryResource};
use crate::errors::{call, check};
use crate::figures::Statistics;
use crate::logging::LoggingResourceAdaptor;
use crate::resource::{self, DeviceMemoryResource};
use crate::size;
use crate::stream::device_number;
use crate::table::api;

/// The engine's word for what a resource is.
pub(crate) fn kind(py: Python<'_>, handle: tenure_resource) -> PyResult<String> {
    let mut out = std::ptr::null();
    // SAFETY: `out` is valid for writing.
    check(py, unsafe { (api().resource_kind)(handle, &mut out) })?;
    // SAFETY: a string that is valid while the resource lives, and the caller has a reference.
    Ok(unsafe { CStr::from_ptr(out) }.to_string_lossy().into_owned())
}

/// An object without a resource yet, of the class that fits the resource behind `handle`.
pub(crate) fn blank<'py>(py: Python<'py>, handle: tenure_resource) -> PyResult<Bound<'py, PyAny>> {
    let base = || PyClassInitializer::from(DeviceMemoryResource::default());
    let adaptor = || base().add_subclass(UpstreamResourceAdaptor);
    Ok(match kind(py, handle)?.as_str() {
        "cuda" => Bound::new(py, base().add_subclass(CudaMemoryResource))?.into_any(),
        "managed" => Bound::new(py, base().add_subclass(ManagedMemoryResource))?.into_any(),
        "pinned" => Bound::new(py, base().add_subclass(PinnedHostMemoryResource))?.into_any(),
        "system" => Bound::new(py, base().add_subclass(SystemMemoryResource))?.into_any(),
        "cuda_async" => Bound::new(py, base().add_subclass(CudaAsyncMemoryResource))?.into_any(),
        "cuda_async_view" => Bound::new(py, base().add_subclass(CudaAsyncViewMemoryResource))?.into_any(),
        "pool" => Bound::new(py, adaptor().add_subclass(PoolMemoryResource))?.into_any(),
        "fixed_size" => Bound::new(py, adaptor().add_subclass(FixedSizeMemoryResource))?.into_any(),
        "binning" => Bound::new(py, adaptor().add_subclass(BinningMemoryResource))?.into_any(),
        "arena" => Bound::new(py, adaptor().add_subclass(ArenaMemoryResource))?.into_any(),
        "limiting" => Bound::new(py, adaptor().add_subclass(LimitingResourceAdaptor))?.into_any(),
        "logging" => Bound::new(py, adaptor().add_subclass(LoggingResourceAdaptor))?.into_any(),
        "statistics" => Bound::new(py, adaptor().add_subclass(StatisticsResourceAdaptor))?.into_any(),
        _ if callback::is_ours(handle) => {
            Bound::new(py, base().add_subclass(CallbackMemoryResource::of(py, handle)))?.into_any()
        }
        kind => match adaptors::blank(py, kind, handle)? {
            Some(object) => object,
            None => Bound::new(py, base())?.into_any(),
        },
    })
}

/// Makes a resource without the interpreter lock and gives it to the object.
pub(crate) fn make(
    slf: &Bound<'_, DeviceMemoryResource>,
    upstream: Option<Py<PyAny>>,
    create: impl FnOnce(*mut tenure_resource) -> tenure_status,
) -> PyResult<()> {
    let mut out = TENURE_RESOURCE_NULL;
    call(slf.py(), || create(&raw mut out))?;
    DeviceMemoryResource::install(slf, out, upstream)
}

/// A resource without parameters: one per process, hence one Python object at a time, which the constructor gives back.
/// Final, because a subclass would need an object of its own.
macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident by $create:ident;)*) => {$(
        $(#[$doc])*
        #[pyclass(extends = DeviceMemoryResource, frozen, module = "tenure.mr")]
        pub(crate) struct $name;

        #[pymethods]
        impl $name {
            #[new]
            #[pyo3(signature = ())]
            fn the_one(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
                let mut handle = TENURE_RESOURCE_NULL;
                // SAFETY: `handle` is valid for writing. The process's one resource: no driver call.
                check(py, unsafe { (api().$create)(&mut handle) })?;
                DeviceMemoryResource::wrap(py, handle)
            }

            /// Everything is done by then; the base's would refuse.
            #[pyo3(signature = ())]
            fn __init__(&self) {}
        }
    )*};
}

plain! {
    /// Plain device memory (`cuMemAlloc`), on the device of the stream of each call.
    CudaMemoryResource by cuda_resource;
    /// Managed memory, which migrates between host and devices.
    ManagedMemoryResource by managed_resource;
    /// Page-locked host memory.
    PinnedHostMemoryResource by pinned_resource;
    /// Memory of the system's allocator.
    SystemMemoryResource by system_resource;
}

/// Stream-ordered memory from a driver pool of its own.
#[pyclass(extends = DeviceMemoryResource, subclass, frozen, module = "tenure.mr")]
pub(crate) struct CudaAsyncMemoryResource;

#[pymethods]
impl CudaAsyncMemoryResource {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(initial_pool_size=None, release_threshold=None, enable_ipc=False, enable_fabric=False, *, device=None, stream_outlives_buffer=False)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        PyClassInitializer::from(DeviceMemoryResource::default()).add_subclass(Self)
    }

    #[pyo3(signature = (initial_pool_size=None, release_threshold=None, enable_ipc=false, enable_fabric=false, *, device=None, stream_outlives_buffer=false))]
    fn __init__(
        slf: &Bound<'_, Self>,
        initial_pool_size: Option<&Bound<'_, PyAny>>,
        release_threshold: Option<&Bound<'_, PyAny>>,
        enable_ipc: bool,
        enable_fabric: bool,
        device: Option<i32>,
        stream_outlives_buffer: bool,
    ) -> PyResult<()> {
        let threshold = size::optional(release_threshold, "release_threshold")?;
        let options = tenure_async_options {
            size: size_of::<tenure_async_options>(),
            initial_bytes: size::optional(initial_pool_size, "initial_pool_size")?.unwrap_or(0) as u64,
            release_threshold: threshold.unwrap_or(0) as u64,
            has_release_threshold: u32::from(threshold.is_some()),
            device: device_number(device)?,
            handle_type: u32::from(enable_ipc) | if enable_fabric { 8 } else { 0 },
            stream_outlives_buffer: u32::from(stream_outlives_buffer),
        };
        // SAFETY: both pointers are valid during the call.
        make(slf.as_super(), None, |out| unsafe { (api().async_resource_create)(&options, out) })
    }

    fn pool_handle(slf: &Bound<'_, Self>) -> PyResult<u64> {
        DeviceMemoryResource::property(slf.as_super(), c"pool_handle")
    }

    /// How other processes can be given the memory.
    #[getter]
    fn export_handle_type(slf: &Bound<'_, Self>) -> PyResult<Option<&'static str>> {
        handle_type_name(DeviceMemoryResource::property(slf.as_super(), c"handle_type")?)
    }
}

/// Stream-ordered memory from somebody else's driver pool.
#[pyclass(extends = DeviceMemoryResource, subclass, frozen, module = "tenure.mr")]
pub(crate) struct CudaAsyncViewMemoryResource;

#[pymethods]
impl CudaAsyncViewMemoryResource {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(pool_handle, *, device=None)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        PyClassInitializer::from(DeviceMemoryResource::default()).add_subclass(Self)
    }

    #[pyo3(signature = (pool_handle, *, device=None))]
    fn __init__(slf: &Bound<'_, Self>, pool_handle: &Bound<'_, PyAny>, device: Option<i32>) -> PyResult<()> {
        let pool = size::address(pool_handle, "pool_handle")? as *mut c_void;
        let device = device_number(device)?;
        // SAFETY: the pointer is valid for writing; that the pool is one and outlives the resource is the caller's word.
        make(slf.as_super(), None, |out| unsafe { (api().async_view_create)(pool, device, out) })
    }

    fn pool_handle(slf: &Bound<'_, Self>) -> PyResult<u64> {
        DeviceMemoryResource::property(slf.as_super(), c"pool_handle")
    }
}

/// A resource that takes its memory from another one: the base of pools and adaptors.
#[pyclass(extends = DeviceMemoryResource, subclass, frozen, module = "tenure.mr")]
pub(crate) struct UpstreamResourceAdaptor;

#[pymethods]
impl UpstreamResourceAdaptor {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(upstream_mr)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        PyClassInitializer::from(DeviceMemoryResource::default()).add_subclass(Self)
    }

    #[pyo3(signature = (upstream_mr))]
    fn __init__(slf: &Bound<'_, Self>, upstream_mr: &Bound<'_, PyAny>) -> PyResult<()> {
        resource::upstream(upstream_mr)?;
        let name = slf.get_type().name().map(|n| n.to_string()).unwrap_or_default();
        Err(PyTypeError::new_err(format!(
            "{name} makes no resource of its own: use a concrete class of tenure.mr, or CallbackMemoryResource for your own functions"
        )))
    }

    #[getter]
    fn upstream_mr<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        DeviceMemoryResource::upstream_object(slf.as_super())
    }

    fn get_upstream<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        DeviceMemoryResource::upstream_object(slf.as_super())
    }
}

pub(crate) fn adaptor<T>(class: T) -> PyClassInitializer<T>
where
    T: pyo3::PyClass<BaseType = UpstreamResourceAdaptor>,
{
    PyClassInitializer::from(DeviceMemoryResource::default()).add_subclass(UpstreamResourceAdaptor).add_subclass(class)
}

/// The bits of a handle type by its name.
fn handle_type(name: Option<&str>) -> PyResult<u32> {
    Ok(match name {
        None => 0,
        Some("fd") => TENURE_HANDLE_FD,
        Some("fabric") => TENURE_HANDLE_FABRIC,
        Some("fd+fabric") => TENURE_HANDLE_FD | TENURE_HANDLE_FABRIC,
        Some(other) => {
            return Err(PyValueError::new_err(format!(
                "export_handle_type is {other:?}: it must be \"fd\" (file descriptor), \"fabric\" or \"fd+fabric\", or None; legacy handles need pages=\"driver\""
            )));
        }
    })
}

/// The name of a handle type.
fn handle_type_name(bits: u64) -> PyResult<Option<&'static str>> {
    Ok(match bits {
        1 => Some("fd"),
        8 => Some("fabric"),
        9 => Some("fd+fabric"),
        _ => None,
    })
}

/// A time in milliseconds.
fn milliseconds(value: &Bound<'_, PyAny>, what: &str) -> PyResult<u64> {
    value.extract().map_err(|e: PyErr| {
        let shown = value.repr().map(|shown| shown.to_string()).unwrap_or_default();
        let message = format!("{what} is {shown}: give a whole number of milliseconds, from 0 to 2**64 - 1");
        if e.is_instance_of::<PyTypeError>(value.py()) {
            PyTypeError::new_err(message)
        } else {
            PyValueError::new_err(message)
        }
    })
}

/// A bit for each device of a list.
fn devices(ordinals: &[i64]) -> PyResult<u64> {
    ordinals.iter().try_fold(0, |bits, ordinal| match ordinal {
        0..64 => Ok(bits | 1 << ordinal),
        _ => Err(PyValueError::new_err(format!("peers holds {ordinal}: name devices, from 0 on"))),
    })
}

/// The engine names a setting as C does; here the caller's own name stands for it.
fn in_words_of_python(said: String) -> PyErr {
    let names =
        [("initial_bytes", "initial_pool_size"), ("maximum_bytes", "maximum_pool_size"), ("chunk_bytes", "chunk_size")];
    let message = names.iter().fold(said, |text, (c, python)| text.replace(c, python));
    PyValueError::new_err(message)
}

/// A pool: one reservation that grows by need, from which requests are served without calling the upstream.
#[pyclass(extends = UpstreamResourceAdaptor, subclass, frozen, module = "tenure.mr")]
pub(crate) struct PoolMemoryResource;

#[pymethods]
impl PoolMemoryResource {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(upstream_mr, initial_pool_size=None, maximum_pool_size=None, *, release_threshold=None, prefer=\"concurrency\", device=None, remap=True, decay_ms=0, chunk_size=None, grow_ahead=False, export_handle_type=None, pages=None, peers=(), rdma=False)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        adaptor(Self)
    }

    #[pyo3(signature = (upstream_mr, initial_pool_size=None, maximum_pool_size=None, *, release_threshold=None, prefer="concurrency", device=None, remap=true, decay_ms=None, chunk_size=None, grow_ahead=false, export_handle_type=None, pages=None, peers=None, rdma=false))]
    #[expect(clippy::too_many_arguments, reason = "one for each keyword")]
    fn __init__(
        slf: &Bound<'_, Self>,
        upstream_mr: &Bound<'_, PyAny>,
        initial_pool_size: Option<&Bound<'_, PyAny>>,
        maximum_pool_size: Option<&Bound<'_, PyAny>>,
        release_threshold: Option<&Bound<'_, PyAny>>,
        prefer: &str,
        device: Option<i32>,
        remap: bool,
        decay_ms: Option<&Bound<'_, PyAny>>,
        chunk_size: Option<&Bound<'_, PyAny>>,
        grow_ahead: bool,
        export_handle_type: Option<&str>,
        pages: Option<&str>,
        peers: Option<Vec<i64>>,
        rdma: bool,
    ) -> PyResult<()> {
        let upstream = resource::upstream(upstream_mr)?;
        let maximum = size::optional(maximum_pool_size, "maximum_pool_size")?;
        if maximum == Some(0) {
            return Err(PyValueError::new_err(
                "maximum_pool_size is 0; leave it out for a pool without a limit of its own",
            ));
        }
        if let Some(few @ 1..256) = maximum {
            return Err(PyValueError::new_err(format!(
                "maximum_pool_size is {few} bytes, and a pool needs at least 256; leave it out for a pool without a limit of its own"
            )));
        }
        let initial = size::optional(initial_pool_size, "initial_pool_size")?;
        if let (Some(first), Some(most)) = (initial, maximum)
            && first > most
        {
            let said = |size: Option<&Bound<'_, PyAny>>| size.and_then(|size| size.repr().ok()).map(|s| s.to_string());
            return Err(PyValueError::new_err(format!(
                "initial_pool_size is {} ({first} bytes), which is above maximum_pool_size, {} ({most} bytes): lower the one or raise the other",
                said(initial_pool_size).unwrap_or_default(),
                said(maximum_pool_size).unwrap_or_default(),
            )));
        }
        let options = tenure_pool_options {
            size: size_of::<tenure_pool_options>(),
            initial_bytes: initial.unwrap_or(0) as u64,
            maximum_bytes: maximum.unwrap_or(0) as u64,
            release_threshold: size::optional(release_threshold, "release_threshold")?.unwrap_or(0) as u64,
            device: device_number(device)?,
            prefer_footprint: match prefer {
                "concurrency" => 0,
                "footprint" => 1,
                other => {
                    return Err(PyValueError::new_err(format!(
                        "prefer is {other:?}: it must be \"concurrency\" (grow first, the default) or \"footprint\" (wait for another stream's memory first)"
                    )));
                }
            },
            no_remap: u32::from(!remap),
            grow_ahead: u32::from(grow_ahead),
            decay_ms: decay_ms.map_or(Ok(0), |value| milliseconds(value, "decay_ms"))?,
            chunk_bytes: size::optional(chunk_size, "chunk_size")?.unwrap_or(0) as u64,
            peers: devices(&peers.unwrap_or_default())?,
            rdma: u32::from(rdma),
            export_handle_type: handle_type(export_handle_type)?,
            plain_chunks: match pages {
                None | Some("own") => 0,
                Some("driver") => 1,
                Some(other) => {
                    return Err(PyValueError::new_err(format!(
                        "pages is {other:?}: it must be \"own\" (pages that the pool maps, the default) or \"driver\" (plain allocations of the upstream)"
                    )));
                }
            },
            ..Default::default()
        };
        let mut refused = false;
        make(slf.as_super().as_super(), Some(upstream_mr.clone().unbind()), |out| {
            // SAFETY: both pointers are valid during the call.
            let status = unsafe { (api().pool_create)(upstream, &options, out) };
            refused = status == TENURE_ERROR_INVALID_ARGUMENT;
            status
        })
        // What an upstream raised has a status of its own, and stays the object it is.
        .map_err(|e| if refused { in_words_of_python(e.value(slf.py()).to_string()) } else { e })
    }

    fn pool_size(slf: &Bound<'_, Self>) -> PyResult<u64> {
        DeviceMemoryResource::property(slf.as_super().as_super(), c"pool_size")
    }

    #[getter]
    fn own_ranges(slf: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(DeviceMemoryResource::property(slf.as_super().as_super(), c"own_ranges")? != 0)
    }

    /// How other processes can be given the memory.
    #[getter]
    fn export_handle_type(slf: &Bound<'_, Self>) -> PyResult<Option<&'static str>> {
        handle_type_name(DeviceMemoryResource::property(slf.as_super().as_super(), c"export_handle_type")?)
    }

    /// Bytes of them that belong to captured graphs.
    fn graph_bytes(slf: &Bound<'_, Self>) -> PyResult<u64> {
        DeviceMemoryResource::property(slf.as_super().as_super(), c"graph_bytes")
    }
}

/// Refuses what would take more than a number of bytes from its upstream at once.
#[pyclass(extends = UpstreamResourceAdaptor, subclass, frozen, module = "tenure.mr")]
pub(crate) struct LimitingResourceAdaptor;

#[pymethods]
impl LimitingResourceAdaptor {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(upstream_mr, allocation_limit)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        adaptor(Self)
    }

    #[pyo3(signature = (upstream_mr, allocation_limit))]
    fn __init__(
        slf: &Bound<'_, Self>,
        upstream_mr: &Bound<'_, PyAny>,
        allocation_limit: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let upstream = resource::upstream(upstream_mr)?;
        let limit = size::bytes(allocation_limit, "allocation_limit")? as u64;
        // SAFETY: the pointer is valid for writing.
        make(slf.as_super().as_super(), Some(upstream_mr.clone().unbind()), |out| unsafe {
            (api().limiting_create)(upstream, limit, out)
        })
    }

    fn get_allocated_bytes(slf: &Bound<'_, Self>) -> PyResult<u64> {
        DeviceMemoryResource::property(slf.as_super().as_super(), c"allocated_bytes")
    }

    fn get_allocation_limit(slf: &Bound<'_, Self>) -> PyResult<u64> {
        DeviceMemoryResource::property(slf.as_super().as_super(), c"allocation_limit")
    }
}

/// Counts what goes through.
#[pyclass(extends = UpstreamResourceAdaptor, subclass, frozen, module = "tenure.mr")]
pub(crate) struct StatisticsResourceAdaptor;

type StatisticsCall = unsafe extern "C" fn(tenure_resource, *mut tenure_statistics) -> tenure_status;

impl StatisticsResourceAdaptor {
    fn counters(slf: &Bound<'_, Self>, ask: StatisticsCall) -> PyResult<Statistics> {
        let handle = DeviceMemoryResource::handle(slf.as_super().as_super())?;
        let mut out = tenure_statistics { size: size_of::<tenure_statistics>(), ..tenure_statistics::default() };
        // SAFETY: `out` is valid and its size is set.
        call(slf.py(), || unsafe { ask(handle, &mut out) })?;
        Ok(Statistics(out))
    }
}

#[pymethods]
impl StatisticsResourceAdaptor {
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
            (api().statistics_create)(upstream, out)
        })
    }

    #[getter]
    fn allocation_counts(slf: &Bound<'_, Self>) -> PyResult<Statistics> {
        Self::counters(slf, api().statistics_get)
    }

    fn push_counters(slf: &Bound<'_, Self>) -> PyResult<Statistics> {
        Self::counters(slf, api().statistics_push)
    }

    fn pop_counters(slf: &Bound<'_, Self>) -> PyResult<Statistics> {
        Self::counters(slf, api().statistics_pop).map_err(|e| {
            // RMM's class for it is an IndexError, and a wrong call is a ValueError here: it is both.
            if !e.is_instance_of::<PyValueError>(slf.py()) {
                return e;
            }
            let text = e.value(slf.py()).to_string();
            let made = slf.py().import("tenure._errors").and_then(|m| m.getattr("NothingPushedError")?.call1((text,)));
            made.map_or(e, PyErr::from_value)
        })
    }
}

/// Adds the classes.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<DeviceMemoryResource>()?;
    module.add_class::<UpstreamResourceAdaptor>()?;
    module.add_class::<CudaMemoryResource>()?;
    module.add_class::<ManagedMemoryResource>()?;
    module.add_class::<PinnedHostMemoryResource>()?;
    module.add_class::<SystemMemoryResource>()?;
    module.add_class::<CudaAsyncMemoryResource>()?;
    module.add_class::<CudaAsyncViewMemoryResource>()?;
    module.add_class::<PoolMemoryResource>()?;
    bins::register(module)?;
    module.add_class::<LimitingResourceAdaptor>()?;
    module.add_class::<StatisticsResourceAdaptor>()?;
    adaptors::register(module)?;
    module.add_class::<LoggingResourceAdaptor>()?;
    module.add_class::<CallbackMemoryResource>()
}
