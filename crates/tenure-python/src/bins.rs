//! Resources that sort requests by size, and the arena, under RMM's names and signatures.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyList, PyTuple};
use tenure_abi::*;

use crate::errors::call;
use crate::kinds::{UpstreamResourceAdaptor, adaptor, make};
use crate::resource::{self, DeviceMemoryResource};
use crate::size;
use crate::stream::device_number;
use crate::table::api;

/// Blocks of one size.
#[pyclass(extends = UpstreamResourceAdaptor, subclass, frozen, module = "tenure.mr")]
pub(crate) struct FixedSizeMemoryResource;

#[pymethods]
impl FixedSizeMemoryResource {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(upstream_mr, block_size=1048576, blocks_to_preallocate=128, *, device=None)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        adaptor(Self)
    }

    #[pyo3(signature = (upstream_mr, block_size=None, blocks_to_preallocate=None, *, device=None))]
    fn __init__(
        slf: &Bound<'_, Self>,
        upstream_mr: &Bound<'_, PyAny>,
        block_size: Option<&Bound<'_, PyAny>>,
        blocks_to_preallocate: Option<&Bound<'_, PyAny>>,
        device: Option<i32>,
    ) -> PyResult<()> {
        let upstream = resource::upstream(upstream_mr)?;
        let block_size = size::optional(block_size, "block_size")?.unwrap_or(1 << 20);
        if block_size == 0 {
            return Err(PyValueError::new_err(
                "block_size is 0; give the bytes of a block (the usual size is \"1MiB\")",
            ));
        }
        let options = tenure_fixed_size_options {
            size: size_of::<tenure_fixed_size_options>(),
            block_size: block_size as u64,
            blocks_to_preallocate: blocks_to_preallocate
                .map_or(Ok(128), |blocks| count(blocks, "blocks_to_preallocate"))?,
            device: device_number(device)?,
            ..Default::default()
        };
        // SAFETY: both pointers are valid during the call.
        make(slf.as_super().as_super(), Some(upstream_mr.clone().unbind()), |out| unsafe {
            (api().fixed_size_create)(upstream, &options, out)
        })
    }

    #[getter]
    fn block_size(slf: &Bound<'_, Self>) -> PyResult<u64> {
        DeviceMemoryResource::property(slf.as_super().as_super(), c"block_size")
    }
}

/// Sends each request to the smallest bin that is large enough.
#[pyclass(extends = UpstreamResourceAdaptor, subclass, frozen, module = "tenure.mr")]
pub(crate) struct BinningMemoryResource;

#[pymethods]
impl BinningMemoryResource {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(upstream_mr, min_size_exponent=-1, max_size_exponent=-1, *, device=None)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        adaptor(Self)
    }

    #[pyo3(signature = (upstream_mr, min_size_exponent=-1, max_size_exponent=-1, *, device=None))]
    fn __init__(
        slf: &Bound<'_, Self>,
        upstream_mr: &Bound<'_, PyAny>,
        min_size_exponent: i32,
        max_size_exponent: i32,
        device: Option<i32>,
    ) -> PyResult<()> {
        let upstream = resource::upstream(upstream_mr)?;
        let options = tenure_binning_options {
            size: size_of::<tenure_binning_options>(),
            has_exponents: 1,
            min_size_exponent,
            max_size_exponent,
            device: device_number(device)?,
        };
        // SAFETY: both pointers are valid during the call.
        make(slf.as_super().as_super(), Some(upstream_mr.clone().unbind()), |out| unsafe {
            (api().binning_create)(upstream, &options, out)
        })
    }

    #[pyo3(signature = (allocation_size, bin_resource=None))]
    fn add_bin(
        slf: &Bound<'_, Self>,
        allocation_size: &Bound<'_, PyAny>,
        bin_resource: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let handle = DeviceMemoryResource::handle(slf.as_super().as_super())?;
        let size = size::bytes(allocation_size, "allocation_size")? as u64;
        let bin = bin_resource.map_or(Ok(TENURE_RESOURCE_NULL), resource::argument)?;
        // SAFETY: the references are held by this call's arguments.
        call(slf.py(), || unsafe { (api().binning_add_bin)(handle, size, bin) })
    }

    #[getter]
    fn bin_mrs<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyList>> {
        let handle = DeviceMemoryResource::handle(slf.as_super().as_super())?;
        let bins = PyList::empty(slf.py());
        loop {
            let index = bins.len() as u32;
            let mut bin = TENURE_RESOURCE_NULL;
            let out = &raw mut bin;
            // SAFETY: `out` is valid for writing, and the size may be null.
            call(slf.py(), || unsafe { (api().binning_bin)(handle, index, std::ptr::null_mut(), out) })?;
            if bin == TENURE_RESOURCE_NULL {
                return Ok(bins);
            }
            bins.append(DeviceMemoryResource::wrap(slf.py(), bin)?)?;
        }
    }
}

/// Memory of one size, taken at once, that many threads and streams share.
#[pyclass(extends = UpstreamResourceAdaptor, subclass, frozen, module = "tenure.mr")]
pub(crate) struct ArenaMemoryResource;

#[pymethods]
impl ArenaMemoryResource {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(upstream_mr, arena_size=None, dump_log_on_failure=False, *, device=None)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        adaptor(Self)
    }

    #[pyo3(signature = (upstream_mr, arena_size=None, dump_log_on_failure=false, *, device=None))]
    fn __init__(
        slf: &Bound<'_, Self>,
        upstream_mr: &Bound<'_, PyAny>,
        arena_size: Option<&Bound<'_, PyAny>>,
        dump_log_on_failure: bool,
        device: Option<i32>,
    ) -> PyResult<()> {
        let upstream = resource::upstream(upstream_mr)?;
        let size = size::optional(arena_size, "arena_size")?;
        if size == Some(0) {
            return Err(PyValueError::new_err(
                "arena_size is 0; leave it out for half of the free memory, or raise it",
            ));
        }
        let options = tenure_arena_options {
            size: size_of::<tenure_arena_options>(),
            arena_size: size.unwrap_or(0) as u64,
            device: device_number(device)?,
            dump_log_on_failure: u32::from(dump_log_on_failure),
        };
        // SAFETY: both pointers are valid during the call.
        make(slf.as_super().as_super(), Some(upstream_mr.clone().unbind()), |out| unsafe {
            (api().arena_create)(upstream, &options, out)
        })
    }

    #[getter]
    fn arena_size(slf: &Bound<'_, Self>) -> PyResult<u64> {
        DeviceMemoryResource::property(slf.as_super().as_super(), c"arena_size")
    }
}

/// Reads a number of things; `what` names the argument in errors.
///
/// # Errors
/// `TypeError` for what is no integer, `ValueError` for a negative one and for one above 2**64 - 1.
fn count(value: &Bound<'_, PyAny>, what: &str) -> PyResult<u64> {
    if let Ok(number) = value.extract::<u64>()
        && !value.is_instance_of::<PyBool>()
    {
        return Ok(number);
    }
    if value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>() {
        let shown = value.str().map(|s| s.to_string()).unwrap_or_default();
        return Err(PyValueError::new_err(format!("{what} is {shown}; it must be from 0 to 2**64 - 1")));
    }
    let kind = value.get_type().name().map(|n| n.to_string()).unwrap_or_default();
    Err(PyTypeError::new_err(format!("{what} must be a number (int), not {kind}")))
}

/// Adds the classes.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<FixedSizeMemoryResource>()?;
    module.add_class::<BinningMemoryResource>()?;
    module.add_class::<ArenaMemoryResource>()
}
