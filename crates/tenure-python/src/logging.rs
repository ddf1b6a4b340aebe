//! `LoggingResourceAdaptor`. What is logged, and how, the engine knows.

use std::ffi::{CStr, CString, OsString};
use std::os::unix::ffi::OsStrExt;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use tenure_abi::*;

use crate::errors::call;
use crate::kinds::{UpstreamResourceAdaptor, adaptor, make};
use crate::resource::{self, DeviceMemoryResource};
use crate::table::api;

/// Writes a row of CSV for each allocation and free.
#[pyclass(extends = UpstreamResourceAdaptor, subclass, frozen, module = "tenure.mr")]
pub(crate) struct LoggingResourceAdaptor;

/// The name as the system takes it: a string, bytes, or a path object.
fn name(given: &Bound<'_, PyAny>) -> PyResult<CString> {
    let py = given.py();
    let os = py.import("os")?;
    let mut path = os.call_method1("fsdecode", (given,)).map_err(|_| {
        let kind = given.get_type().name().map(|n| n.to_string()).unwrap_or_default();
        PyTypeError::new_err(format!("log_file_name is a str or a path, not {kind}"))
    })?;
    if path.is_truthy()? {
        // As RMM does, hence without `..`. No name stays none.
        path = os.getattr("path")?.call_method1("abspath", (path,))?;
    }
    let path: OsString = path.extract()?;
    CString::new(path.as_bytes()).map_err(|_| PyValueError::new_err("log_file_name holds a zero byte"))
}

#[pymethods]
impl LoggingResourceAdaptor {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(upstream_mr, log_file_name=None)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        adaptor(Self)
    }

    #[pyo3(signature = (upstream_mr, log_file_name=None))]
    fn __init__(
        slf: &Bound<'_, Self>,
        upstream_mr: &Bound<'_, PyAny>,
        log_file_name: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let upstream = resource::upstream(upstream_mr)?;
        let name = log_file_name.map(name).transpose()?;
        let given = name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
        // SAFETY: the name is null or a string, and the pointer is valid for writing.
        make(slf.as_super().as_super(), Some(upstream_mr.clone().unbind()), |out| unsafe {
            (api().logging_create)(upstream, given, 1, out)
        })
    }

    fn flush(slf: &Bound<'_, Self>) -> PyResult<()> {
        let handle = DeviceMemoryResource::handle(slf.as_super().as_super())?;
        // SAFETY: no pointers.
        call(slf.py(), || unsafe { (api().logging_flush)(handle) })
    }

    fn get_file_name(slf: &Bound<'_, Self>) -> PyResult<OsString> {
        let handle = DeviceMemoryResource::handle(slf.as_super().as_super())?;
        let mut out = tenure_text { data: std::ptr::null(), size: 0 };
        // SAFETY: `out` is valid for writing.
        call(slf.py(), || unsafe { (api().logging_file_name)(handle, &mut out) })?;
        // SAFETY: text made by the library, given back once.
        unsafe {
            let text = std::ffi::OsStr::from_bytes(CStr::from_ptr(out.data).to_bytes()).to_owned();
            (api().text_free)(&mut out);
            Ok(text)
        }
    }
}
