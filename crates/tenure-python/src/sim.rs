//! `tenure.sim`: the simulated device and its levers, and the few questions about devices.

use std::ffi::{CStr, CString, c_char};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt};
use tenure_abi::*;

use crate::errors::{call, check};
use crate::size;
use crate::stream;
use crate::table::api;

#[pyfunction]
#[pyo3(signature = (devices=None, memory=None))]
fn sim_configure(py: Python<'_>, devices: Option<i32>, memory: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    if let Some(devices) = devices
        && devices < 1
    {
        return Err(PyValueError::new_err(format!("devices is {devices}; it must be 1 or more")));
    }
    let memory = size::optional(memory, "memory")?;
    if memory == Some(0) {
        return Err(PyValueError::new_err("memory is 0; a device needs some"));
    }
    // SAFETY: no pointer.
    call(py, || unsafe { (api().sim_configure)(devices.unwrap_or(0), memory.unwrap_or(0) as u64) })
}

#[pyfunction]
fn sim_active(py: Python<'_>) -> PyResult<bool> {
    let mut out = 0;
    // SAFETY: `out` is valid for writing.
    call(py, || unsafe { (api().sim_active)(&mut out) })?;
    Ok(out != 0)
}

#[pyfunction]
fn sim_busy(py: Python<'_>, stream: &Bound<'_, PyAny>, ms: f64) -> PyResult<()> {
    if !(0.0..=f64::from(u32::MAX)).contains(&ms) {
        return Err(PyValueError::new_err(format!(
            "ms is {ms}; it must be a number of milliseconds from 0 to 2**32 - 1"
        )));
    }
    let stream = stream::argument(Some(stream))?;
    let carried = stream.carried();
    let ms = ms.ceil() as u32;
    // SAFETY: the stream is held.
    call(py, || unsafe { (api().sim_busy)(carried, ms) })
}

#[pyfunction]
#[pyo3(signature = (call, code, after=0))]
fn sim_fail_next(py: Python<'_>, call: &str, code: &Bound<'_, PyAny>, after: u64) -> PyResult<()> {
    let name = c_string(call)?;
    if !code.is_instance_of::<PyInt>() && code.getattr_opt("__index__")?.is_none() {
        return Err(PyTypeError::new_err("code must be the driver's number, such as 2 for CUDA_ERROR_OUT_OF_MEMORY"));
    }
    let code: i32 = code.extract()?;
    // SAFETY: `name` is a string.
    check(py, unsafe { (api().sim_fail_next)(name.as_ptr(), code, after) })
}

#[pyfunction]
fn sim_fail_clear(py: Python<'_>) -> PyResult<()> {
    // SAFETY: no argument.
    check(py, unsafe { (api().sim_fail_clear)() })
}

#[pyfunction]
fn sim_violations(py: Python<'_>) -> PyResult<u64> {
    let mut out = 0;
    // SAFETY: `out` is valid for writing.
    call(py, || unsafe { (api().sim_violations)(&mut out) })?;
    Ok(out)
}

#[pyfunction]
fn sim_set_memory(py: Python<'_>, device: i32, memory: &Bound<'_, PyAny>) -> PyResult<()> {
    let device = stream::device_number(Some(device))?;
    let memory = size::bytes(memory, "memory")? as u64;
    // SAFETY: no pointer.
    call(py, || unsafe { (api().sim_set_memory)(device, memory) })
}

#[pyfunction]
#[pyo3(signature = (call=None))]
fn driver_calls(py: Python<'_>, call: Option<&str>) -> PyResult<u64> {
    let name = call.map(c_string).transpose()?;
    let name = name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
    let mut out = 0;
    // SAFETY: `name` is null or a string, `out` is valid for writing.
    check(py, unsafe { (api().driver_calls)(name, &mut out) })?;
    Ok(out)
}

#[pyfunction]
#[pyo3(signature = (device=0))]
fn device_used(py: Python<'_>, device: i32) -> PyResult<u64> {
    let device = stream::device_number(Some(device))?;
    let mut out = 0;
    // SAFETY: `out` is valid for writing.
    call(py, || unsafe { (api().device_used)(device, &mut out) })?;
    Ok(out)
}

fn c_string(text: &str) -> PyResult<CString> {
    CString::new(text).map_err(|_| PyValueError::new_err(format!("{text:?} holds a zero byte")))
}

#[pyfunction]
fn device_count(py: Python<'_>) -> PyResult<i32> {
    let mut out = 0;
    // SAFETY: `out` is valid for writing.
    call(py, || unsafe { (api().device_count)(&mut out) })?;
    Ok(out)
}

#[pyfunction]
fn get_current_device(py: Python<'_>) -> PyResult<i32> {
    crate::current::device(py)
}

#[pyfunction]
fn set_current_device(py: Python<'_>, device: i32) -> PyResult<()> {
    let device = stream::device_number(Some(device))?;
    // SAFETY: no pointer.
    call(py, || unsafe { (api().device_set_current)(device) })
}

#[pyfunction]
#[pyo3(signature = (device=None))]
fn synchronize(py: Python<'_>, device: Option<i32>) -> PyResult<()> {
    let device = stream::device_number(device)?;
    // SAFETY: no pointer.
    call(py, || unsafe { (api().device_synchronize)(device) })
}

#[pyfunction]
#[pyo3(signature = (device=None))]
fn device_info(py: Python<'_>, device: Option<i32>) -> PyResult<Bound<'_, PyDict>> {
    let device = stream::device_number(device)?;
    // SAFETY: all fields are integers, for which zeros are values.
    let mut info: tenure_device_info = unsafe { std::mem::zeroed() };
    info.size = size_of::<tenure_device_info>();
    // SAFETY: `info` is valid and its size is set.
    call(py, || unsafe { (api().device_info)(device, &mut info) })?;
    let fields = PyDict::new(py);
    fields.set_item("name", text_in(&info.name))?;
    fields.set_item("free_bytes", info.free_bytes)?;
    fields.set_item("total_bytes", info.total_bytes)?;
    fields.set_item("simulated", info.simulated != 0)?;
    fields.set_item("virtual_memory", info.virtual_memory != 0)?;
    fields.set_item("memory_pools", info.memory_pools != 0)?;
    fields.set_item("managed_memory", info.managed_memory != 0)?;
    fields.set_item("pageable_access", info.pageable_access != 0)?;
    fields.set_item("compute_capability", (info.compute_major, info.compute_minor))?;
    Ok(fields)
}

fn text_in(name: &[c_char]) -> String {
    // SAFETY: c_char and u8 have one layout, and the length is the array's.
    let bytes = unsafe { std::slice::from_raw_parts(name.as_ptr().cast::<u8>(), name.len()) };
    CStr::from_bytes_until_nul(bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The version of libtenure.
#[pyfunction]
pub(crate) fn library_version() -> String {
    // SAFETY: a string that lives as long as the process, never null.
    unsafe { CStr::from_ptr((api().version)()) }.to_string_lossy().into_owned()
}

/// What is here, as JSON.
#[pyfunction]
fn describe(py: Python<'_>) -> PyResult<String> {
    let mut out = tenure_text { data: std::ptr::null(), size: 0 };
    // SAFETY: `out` is valid for writing.
    call(py, || unsafe { (api().describe)(&mut out) })?;
    // SAFETY: text made by the library, given back once.
    unsafe {
        let text = CStr::from_ptr(out.data).to_string_lossy().into_owned();
        (api().text_free)(&mut out);
        Ok(text)
    }
}

/// Adds the functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(sim_configure, module)?)?;
    module.add_function(wrap_pyfunction!(sim_active, module)?)?;
    module.add_function(wrap_pyfunction!(sim_busy, module)?)?;
    module.add_function(wrap_pyfunction!(sim_fail_next, module)?)?;
    module.add_function(wrap_pyfunction!(sim_fail_clear, module)?)?;
    module.add_function(wrap_pyfunction!(sim_violations, module)?)?;
    module.add_function(wrap_pyfunction!(sim_set_memory, module)?)?;
    module.add_function(wrap_pyfunction!(driver_calls, module)?)?;
    module.add_function(wrap_pyfunction!(device_used, module)?)?;
    module.add_function(wrap_pyfunction!(device_count, module)?)?;
    module.add_function(wrap_pyfunction!(get_current_device, module)?)?;
    module.add_function(wrap_pyfunction!(set_current_device, module)?)?;
    module.add_function(wrap_pyfunction!(synchronize, module)?)?;
    module.add_function(wrap_pyfunction!(device_info, module)?)?;
    module.add_function(wrap_pyfunction!(library_version, module)?)?;
    module.add_function(wrap_pyfunction!(describe, module)?)
}
