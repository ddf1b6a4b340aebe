//! Calling Python with the arguments where they are: no tuple and no dictionary is made, as no interpreter makes one for a
//! call of its own.
//!
//! The function is in the stable ABI from Python 3.12 on, and Python 3.11 exports it with the same signature; so it is found
//! by its name.

use std::ffi::c_void;
use std::sync::OnceLock;

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

type Function = unsafe extern "C" fn(
    *mut ffi::PyObject,
    *const *mut ffi::PyObject,
    usize,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;

/// Says that the place before the arguments may be written to, so that a bound method puts its object there.
const PLACE_BEFORE: usize = 1 << (usize::BITS - 1);
/// The most arguments of a call.
const MOST: usize = 6;

/// The interpreter's `PyObject_Vectorcall`.
#[derive(Clone, Copy)]
pub(crate) struct Vectorcall(Function);

impl Vectorcall {
    /// # Errors
    /// `ImportError` where the interpreter has no such function: it is no CPython.
    pub(crate) fn find() -> PyResult<Self> {
        static FOUND: OnceLock<Option<Vectorcall>> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            // SAFETY: a string, and a symbol that has this signature wherever it exists.
            unsafe {
                let address = libc::dlsym(libc::RTLD_DEFAULT, c"PyObject_Vectorcall".as_ptr());
                (!address.is_null()).then(|| Self(std::mem::transmute::<*mut c_void, Function>(address)))
            }
        });
        found.ok_or_else(|| {
            PyImportError::new_err("this interpreter has no PyObject_Vectorcall; tenure needs CPython 3.11 or newer")
        })
    }

    /// Calls `callable`. The last arguments go by the `names`, if there are any.
    ///
    /// # Errors
    /// What the call raises.
    #[inline]
    pub(crate) fn call<'py, const N: usize>(
        self,
        callable: &Bound<'py, PyAny>,
        arguments: [&Bound<'py, PyAny>; N],
        names: Option<&Bound<'py, PyTuple>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        const { assert!(N <= MOST) };
        let named = names.map_or(0, |names| names.len());
        assert!(named <= N, "there are more names than arguments");
        let mut places = [std::ptr::null_mut(); MOST + 1];
        for (place, argument) in places[1..].iter_mut().zip(arguments) {
            *place = argument.as_ptr();
        }
        let names = names.map_or(std::ptr::null_mut(), |names| names.as_ptr());
        // SAFETY: the arguments are alive during the call, as many as is said, with a free place before them; the interpreter
        // lock is held.
        unsafe {
            let result = (self.0)(callable.as_ptr(), places.as_ptr().add(1), (N - named) | PLACE_BEFORE, names);
            Bound::from_owned_ptr_or_err(callable.py(), result)
        }
    }
}
