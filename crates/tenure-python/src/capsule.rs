//! What lies in a capsule of somebody else's.

use std::ffi::CStr;

use pyo3::ffi;
use pyo3::prelude::*;

/// What a capsule of this name points to; `None` for one of another name, and for what is no capsule.
pub(crate) fn inside<T>(object: &Bound<'_, PyAny>, name: &'static CStr) -> Option<*mut T> {
    // SAFETY: any object may be asked; the name is static.
    unsafe {
        (ffi::PyCapsule_IsValid(object.as_ptr(), name.as_ptr()) != 0)
            .then(|| ffi::PyCapsule_GetPointer(object.as_ptr(), name.as_ptr()).cast())
    }
}
