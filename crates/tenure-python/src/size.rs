//! Sizes as Python gives them: an integer of bytes, or text such as `"1GiB"` or `"80%"`.
//!
//! `"80%"` is a share of the memory that is free on the current device when the size is read, rounded down to 256 bytes.
//! `K`, `M`, `G`, `T`, `P` count in thousands and `Ki`, `Mi`, ... in 1024; the final `B` may be left out, case does not
//! matter.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyInt, PyString};
use tenure_abi::*;

use crate::errors;
use crate::table::api;

/// Reads a size in bytes; `what` names the argument in errors.
///
/// # Errors
/// `ValueError` for a negative or too large number and for text that is no size; `TypeError` for anything else.
#[inline]
pub(crate) fn bytes(value: &Bound<'_, PyAny>, what: &str) -> PyResult<usize> {
    match plain(value) {
        Some(size) => Ok(size),
        None => slow(value, what),
    }
}

/// The number that a plain integer is, if it is one of those that fit.
#[inline]
pub(crate) fn plain(value: &Bound<'_, PyAny>) -> Option<usize> {
    if !value.is_exact_instance_of::<PyInt>() {
        return None;
    }
    // SAFETY: an integer.
    let number = unsafe { ffi::PyLong_AsSize_t(value.as_ptr()) };
    if number != usize::MAX {
        return Some(number);
    }
    // The largest number, or a failure, whose exception nobody wants.
    drop(PyErr::take(value.py()));
    value.extract().ok()
}

/// Reads one of many after the other with `read`, which is [`bytes`] or [`address`]; `what` names the argument.
///
/// # Errors
/// `TypeError` for what has no elements, and for text, whose elements are letters; those of `read`, which name the place.
pub(crate) fn many(
    values: &Bound<'_, PyAny>,
    what: &str,
    read: impl Fn(&Bound<'_, PyAny>, &str) -> PyResult<usize>,
) -> PyResult<Vec<usize>> {
    let is_text = values.is_instance_of::<PyString>() || values.is_instance_of::<PyBytes>();
    let elements = if is_text { None } else { values.try_iter().ok() };
    let Some(elements) = elements else {
        let kind = values.get_type().name().map(|n| n.to_string()).unwrap_or_default();
        return Err(PyTypeError::new_err(format!("{what} must be a list or another iterable of numbers, not {kind}")));
    };
    elements.enumerate().map(|(at, value)| read(&value?, &format!("{what}[{at}]"))).collect()
}

/// `None` stays `None`.
pub(crate) fn optional(value: Option<&Bound<'_, PyAny>>, what: &str) -> PyResult<Option<usize>> {
    value.map(|value| bytes(value, what)).transpose()
}

#[cold]
fn slow(value: &Bound<'_, PyAny>, what: &str) -> PyResult<usize> {
    if let Ok(text) = value.cast::<PyString>() {
        return parse(value.py(), &text.to_cow()?, what);
    }
    if value.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err(format!(
            "{what} must be a number of bytes or text such as \"1GiB\", not a bool"
        )));
    }
    let index = value.call_method0("__index__").map_err(|e| {
        if !e.is_instance_of::<pyo3::exceptions::PyAttributeError>(value.py()) {
            return e;
        }
        let kind = value.get_type().name().map(|n| n.to_string()).unwrap_or_default();
        PyTypeError::new_err(format!(
            "{what} must be a number of bytes (int) or text such as \"1GiB\" or \"80%\", not {kind}"
        ))
    })?;
    index.extract::<usize>().map_err(|_| {
        let shown = index.str().map(|s| s.to_string()).unwrap_or_default();
        if index.lt(0).unwrap_or(false) {
            PyValueError::new_err(format!("{what} is {shown} bytes; it must not be negative"))
        } else {
            PyValueError::new_err(format!(
                "{what} is {shown} bytes, which no address space holds; it must be below 2**64"
            ))
        }
    })
}

fn parse(py: Python<'_>, text: &str, what: &str) -> PyResult<usize> {
    let wrong = || {
        PyValueError::new_err(format!(
            "{what} is {text:?}, which is no size; write a number of bytes, or one with a unit such as \"256MiB\", \"1.5GB\" or \"80%\""
        ))
    };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let number = number.replace('_', "");
    let unit = unit.trim();
    if !number.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(wrong());
    }
    if unit == "%" {
        let share: f64 = number.parse().map_err(|_| wrong())?;
        if share > 100.0 {
            return Err(PyValueError::new_err(format!(
                "{what} is {text:?}; a share of the free memory is at most \"100%\""
            )));
        }
        let free = free_bytes(py)?;
        return Ok((free as f64 * (share / 100.0)) as usize & !255);
    }
    let factor = factor(unit).ok_or_else(wrong)?;
    let too_large =
        || PyValueError::new_err(format!("{what} is {text:?}, which no address space holds; it must be below 2**64"));
    if let Ok(whole) = number.parse::<u128>() {
        return whole.checked_mul(factor).and_then(|n| usize::try_from(n).ok()).ok_or_else(too_large);
    }
    if number.contains('.') {
        let product = number.parse::<f64>().map_err(|_| wrong())? * factor as f64;
        // The first number that a usize does not hold, exactly representable.
        return if product < 18_446_744_073_709_551_616.0 { Ok(product as usize) } else { Err(too_large()) };
    }
    // Digits only, and more of them than a u128 holds.
    Err(too_large())
}

fn factor(unit: &str) -> Option<u128> {
    let lower = unit.to_ascii_lowercase();
    let unit = lower.strip_suffix('b').unwrap_or(&lower);
    let (letter, base) = match unit.strip_suffix('i') {
        Some(letter) if !letter.is_empty() => (letter, 1024_u128),
        _ => (unit, 1000),
    };
    let power = match letter {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        "e" => 6,
        _ => return None,
    };
    Some(base.pow(power))
}

/// Reads a number of things, not of bytes: text is no number here.
///
/// # Errors
/// `TypeError` for what is no integer; `ValueError` for a negative or too large one.
pub(crate) fn count(value: &Bound<'_, PyAny>, what: &str) -> PyResult<usize> {
    if value.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!("{what} must be a number (int), not str")));
    }
    bytes(value, what)
}

/// Free bytes of the current device.
pub(crate) fn free_bytes(py: Python<'_>) -> PyResult<u64> {
    // SAFETY: all fields are integers, for which zeros are values.
    let mut info: tenure_device_info = unsafe { std::mem::zeroed() };
    info.size = size_of::<tenure_device_info>();
    // SAFETY: `info` is valid and its size is set.
    errors::call(py, || unsafe { (api().device_info)(-1, &mut info) })?;
    Ok(info.free_bytes)
}

/// Reads an address: an integer that is not negative, or something that can be made one (ctypes, cuda.bindings).
pub(crate) fn address(value: &Bound<'_, PyAny>, what: &str) -> PyResult<usize> {
    if let Some(address) = plain(value) {
        return Ok(address);
    }
    if let Ok(address) = value.extract::<usize>() {
        return Ok(address);
    }
    if value.is_instance_of::<PyInt>() {
        let shown = value.str().map(|s| s.to_string()).unwrap_or_default();
        return Err(PyValueError::new_err(format!(
            "{what} is {shown}, which is no address; it must be from 0 to 2**64 - 1"
        )));
    }
    if value.is_none() || value.is_instance_of::<PyString>() || value.is_instance_of::<pyo3::types::PyFloat>() {
        let kind = value.get_type().name().map(|n| n.to_string()).unwrap_or_default();
        return Err(PyTypeError::new_err(format!("{what} must be an address (int), not {kind}")));
    }
    // ctypes.c_void_p keeps its integer in `value`; None there is null.
    if let Ok(inner) = value.getattr("value") {
        return if inner.is_none() { Ok(0) } else { address(&inner, what) };
    }
    let kind = value.get_type().name().map(|n| n.to_string()).unwrap_or_default();
    value
        .call_method0("__int__")
        .and_then(|n| n.extract::<usize>())
        .map_err(|_| PyTypeError::new_err(format!("{what} must be an address (int), not {kind}")))
}

/// The pointer that an address is.
pub(crate) fn pointer(address: usize) -> *mut std::ffi::c_void {
    address as *mut std::ffi::c_void
}
