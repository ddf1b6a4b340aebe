//! The engine's buffer, as whoever keeps it has it, and how one is made.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;
use tenure_abi::*;

use crate::current;
use crate::errors::{check, try_call};
use crate::gil;
use crate::observe;
use crate::resource;
use crate::scopes;
use crate::table::api;

/// A buffer of the engine's, freed by whoever drops it last.
pub(crate) struct Owned(AtomicU64);

impl Drop for Owned {
    fn drop(&mut self) {
        let buffer = *self.0.get_mut();
        scopes::sync_if_attached();
        // SAFETY: this handle is ours and is given back once.
        gil::give_back(|| unsafe { (api().buffer_try_destroy)(buffer) }, || unsafe { (api().buffer_destroy)(buffer) });
    }
}

impl Owned {
    pub(crate) fn new(buffer: tenure_buffer) -> Self {
        Self(AtomicU64::new(buffer))
    }

    #[inline]
    pub(crate) fn handle(&self) -> tenure_buffer {
        self.0.load(Ordering::Acquire)
    }

    /// Gives the buffer away and takes `other` instead.
    pub(super) fn exchange(&self, other: Self) -> tenure_buffer {
        let buffer = self.0.swap(other.handle(), Ordering::AcqRel);
        std::mem::forget(other);
        buffer
    }
}

/// What a buffer of the engine's is now.
#[inline]
pub(crate) fn view_of(py: Python<'_>, buffer: tenure_buffer) -> PyResult<tenure_buffer_view> {
    // SAFETY: all fields are integers and pointers, for which zeros are values.
    let mut view: tenure_buffer_view = unsafe { std::mem::zeroed() };
    view.size = size_of::<tenure_buffer_view>();
    // SAFETY: `view` is valid and its size is set.
    check(py, unsafe { (api().buffer_view)(buffer, &mut view) })?;
    Ok(view)
}

/// The resource of an optional argument: without one, the current one, which the engine reads once.
#[inline]
pub(crate) fn resource_or_current(py: Python<'_>, mr: Option<&Bound<'_, PyAny>>) -> PyResult<tenure_resource> {
    observe::follow(py)?;
    match mr {
        Some(mr) => resource::argument(mr),
        None => {
            current::sync(py)?;
            Ok(TENURE_RESOURCE_CURRENT)
        }
    }
}

/// Makes a buffer of the engine's.
#[inline]
pub(crate) fn create(
    py: Python<'_>,
    bytes: usize,
    stream: tenure_stream,
    resource: tenure_resource,
) -> PyResult<Owned> {
    let mut out: tenure_buffer = 0;
    let to = &raw mut out;
    try_call(
        py,
        // SAFETY: `out` is valid for writing; the handles are held by the caller's arguments.
        || unsafe { (api().buffer_try_create)(bytes, 0, stream, resource, to) },
        // SAFETY: as above.
        || unsafe { (api().buffer_create)(bytes, 0, stream, resource, to) },
    )?;
    Ok(Owned::new(out))
}
