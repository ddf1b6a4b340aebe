//! A tensor of a producer's, between its capsule and the buffer that keeps it.

use std::ffi::{CStr, c_char, c_void};

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use super::{LEGACY_NAME, LEGACY_USED, MAJOR, Managed, ManagedVersioned, Tensor, VERSIONED_NAME, VERSIONED_USED};
use crate::capsule::inside;
use crate::foreign::contiguous;
use crate::gil;

/// What came out of a capsule, until the engine's buffer has it.
pub(crate) struct Taken {
    pub(super) managed: *mut c_void,
    pub(super) release: unsafe extern "C" fn(*mut c_void),
    pub(crate) tensor: Tensor,
    pub(super) flags: u64,
}

unsafe extern "C" fn release_legacy(managed: *mut c_void) {
    let managed = managed.cast::<Managed>();
    // SAFETY: the producer's tensor, whose deleter is called once, here. It needs no lock of ours.
    gil::announced(|| unsafe {
        if let Some(deleter) = (*managed).deleter {
            deleter(managed);
        }
    });
}

unsafe extern "C" fn release_versioned(managed: *mut c_void) {
    let managed = managed.cast::<ManagedVersioned>();
    // SAFETY: as in `release_legacy`.
    gil::announced(|| unsafe {
        if let Some(deleter) = (*managed).deleter {
            deleter(managed);
        }
    });
}

impl Taken {
    /// Takes the tensor out of its capsule: from here on we are the ones who call the deleter.
    pub(super) fn from(capsule: &Bound<'_, PyAny>) -> PyResult<Self> {
        if !capsule.is_instance_of::<PyCapsule>() {
            return Err(PyTypeError::new_err("__dlpack__ must return a capsule"));
        }
        let take = |name: &'static CStr, used: &'static CStr| {
            let Some(pointer) = inside(capsule, name) else { return Ok(None) };
            // SAFETY: a capsule; the name is static.
            if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr().cast::<c_char>()) } != 0 {
                return Err(PyErr::fetch(capsule.py()));
            }
            Ok(Some(pointer))
        };
        if let Some(managed) = take(VERSIONED_NAME, VERSIONED_USED)? {
            // SAFETY: a capsule of this name holds such a structure, which is ours now.
            return unsafe { Self::versioned(managed) };
        }
        if let Some(managed) = take(LEGACY_NAME, LEGACY_USED)? {
            // SAFETY: a capsule of this name holds such a structure.
            let tensor = unsafe { (*managed.cast::<Managed>()).tensor };
            return Ok(Self { managed, release: release_legacy, tensor, flags: 0 });
        }
        Err(PyValueError::new_err("the DLPack capsule was used already; each capsule is taken once"))
    }

    /// Takes a tensor over that came without a capsule, or out of one.
    ///
    /// # Errors
    /// It is of another major version; its deleter was called.
    ///
    /// # Safety
    /// A `DLManagedTensorVersioned` that is the caller's.
    pub(crate) unsafe fn versioned(managed: *mut c_void) -> PyResult<Self> {
        let versioned = managed.cast::<ManagedVersioned>();
        // SAFETY: as the caller says; of another major version only the head is known.
        let (major, minor) = unsafe { ((*versioned).major, (*versioned).minor) };
        if major != MAJOR {
            // SAFETY: the deleter lies in the head.
            unsafe { release_versioned(managed) };
            return Err(PyBufferError::new_err(format!(
                "the producer speaks DLPack {major}.{minor}, and this tenure speaks version {MAJOR}; upgrade one of them"
            )));
        }
        // SAFETY: as above, and of our version.
        let (tensor, flags) = unsafe { ((*versioned).tensor, (*versioned).flags) };
        Ok(Self { managed, release: release_versioned, tensor, flags })
    }

    /// Gives the tensor back to its producer, where no buffer has it.
    pub(crate) fn release(&self, py: Python<'_>) {
        // SAFETY: no buffer has the tensor, and the caller does not use it again.
        gil::detach(py, || unsafe { (self.release)(self.managed) });
    }

    /// Address and bytes.
    ///
    /// # Errors
    /// Strided, or larger than an address space.
    pub(super) fn memory(&self) -> PyResult<(usize, usize)> {
        let tensor = &self.tensor;
        let dims = usize::try_from(tensor.ndim)
            .map_err(|_| PyBufferError::new_err("the DLPack tensor has a negative number of dimensions"))?;
        let read = |values: *mut i64| -> Vec<i64> {
            if values.is_null() || dims == 0 {
                return Vec::new();
            }
            // SAFETY: the producer gives `ndim` values.
            unsafe { std::slice::from_raw_parts(values, dims) }.to_vec()
        };
        let too_large = || PyBufferError::new_err("the DLPack tensor is larger than an address space");
        let shape = read(tensor.shape)
            .into_iter()
            .map(|n| {
                usize::try_from(n).map_err(|_| PyBufferError::new_err("the DLPack tensor has a negative dimension"))
            })
            .collect::<PyResult<Vec<_>>>()?;
        if shape.len() != dims {
            return Err(PyBufferError::new_err("the DLPack tensor has no shape"));
        }
        let strides: Vec<isize> = read(tensor.strides).into_iter().map(|n| n as isize).collect();
        if !strides.is_empty() && !contiguous(&shape, &strides, 1) {
            return Err(PyBufferError::new_err("the DLPack tensor is not C-contiguous; copy it first"));
        }
        let bits = usize::from(tensor.dtype.bits) * usize::from(tensor.dtype.lanes);
        let count = shape.iter().try_fold(1_usize, |all, n| all.checked_mul(*n)).ok_or_else(too_large)?;
        let bytes = count.checked_mul(bits).ok_or_else(too_large)?.div_ceil(8);
        if bytes == 0 {
            return Ok((0, 0));
        }
        if tensor.data.is_null() {
            return Err(PyBufferError::new_err(format!("the DLPack tensor names address 0 for {bytes} bytes")));
        }
        let address = (tensor.data as usize).checked_add(tensor.byte_offset as usize).ok_or_else(too_large)?;
        Ok((address, bytes))
    }
}
