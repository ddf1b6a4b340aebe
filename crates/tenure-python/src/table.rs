//! The table of functions, found once at import.

use std::sync::OnceLock;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use tenure_abi::tenure_api;

static TABLE: OnceLock<&'static tenure_api> = OnceLock::new();

/// Finds libtenure and keeps its table. Makes no call through it.
///
/// # Errors
/// `ImportError` with the places that were looked at and what to do.
pub(crate) fn open() -> PyResult<&'static tenure_api> {
    let table = tenure::api().map_err(|e| PyImportError::new_err(format!("tenure cannot be imported: {e}")))?;
    Ok(TABLE.get_or_init(|| table))
}

/// The table. It is there from the import on, and nothing of this module exists before.
#[inline]
pub(crate) fn api() -> &'static tenure_api {
    match TABLE.get() {
        Some(table) => table,
        None => unreachable!("the module's initialisation opens the library before anything else"),
    }
}
