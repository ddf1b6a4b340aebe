//! The class of cuda.core's resources: what the interpreter and its collector are told of it, and how its methods are called.
//!
//! Its base is cuda.core's and is not there when this is built, so it is made of a specification when cuda.core is; `unsafe`
//! is for that border.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::{PyImportError, PyTypeError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};
use tenure_abi::*;

use super::Setup;

/// What a resource has beside what cuda.core's class has. All zeros are a valid value.
#[repr(C)]
struct Fields {
    /// The Python object of the resource; `None` for what is current at each allocation.
    mr: *mut ffi::PyObject,
    /// Its handle, alive while `mr` is; `TENURE_RESOURCE_CURRENT` where there is none.
    resource: tenure_resource,
    device: c_int,
    device_accessible: c_char,
    host_accessible: c_char,
    managed: c_char,
}

/// Where the fields lie in an object; set before there is one.
static FIELDS: AtomicUsize = AtomicUsize::new(0);

/// The fields of a resource.
///
/// # Safety
/// `object` is an instance of the class of [`make`].
unsafe fn fields(object: *mut ffi::PyObject) -> *mut Fields {
    // SAFETY: as the caller says; the place is inside the object and aligned.
    unsafe { object.cast::<u8>().add(FIELDS.load(Ordering::Relaxed)).cast() }
}

const NAME: &CStr = c"tenure.allocators.cuda_core.TenureMemoryResource";

unsafe extern "C" fn traverse(object: *mut ffi::PyObject, visit: ffi::visitproc, argument: *mut c_void) -> c_int {
    // SAFETY: the collector's call, with an object of the class; an object of a heap type holds its type.
    unsafe {
        let seen = visit(ffi::Py_TYPE(object).cast(), argument);
        let mr = (*fields(object)).mr;
        if seen != 0 || mr.is_null() { seen } else { visit(mr, argument) }
    }
}

unsafe extern "C" fn clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: as above. Without its resource's object the handle is not used any more.
    unsafe {
        let fields = fields(object);
        let mr = std::mem::replace(&mut (*fields).mr, std::ptr::null_mut());
        (*fields).resource = TENURE_RESOURCE_NULL;
        ffi::Py_XDECREF(mr);
    }
    0
}

unsafe extern "C" fn end(object: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter with an object of the class whose references are gone; the type outlives its object,
    // whose reference to it is given back last.
    unsafe {
        ffi::PyObject_GC_UnTrack(object.cast());
        clear(object);
        let class = ffi::Py_TYPE(object);
        let free = ffi::PyType_GetSlot(class, ffi::Py_tp_free);
        let free: ffi::freefunc = std::mem::transmute(free);
        free(object.cast());
        ffi::Py_DECREF(class.cast());
    }
}

/// The arguments of a method: so many by place, and `stream` by its name.
///
/// # Safety
/// The arguments of a call of the interpreter's.
unsafe fn arguments<'py, const N: usize>(
    py: Python<'py>,
    names: [&str; N],
    given: *const *mut ffi::PyObject,
    count: isize,
    keywords: *mut ffi::PyObject,
) -> PyResult<([Bound<'py, PyAny>; N], Bound<'py, PyAny>)> {
    let count = usize::try_from(count).unwrap_or(0);
    // As cuda.core calls.
    // SAFETY: the names, if any, are a tuple; so many arguments are there, and are held by the caller.
    unsafe {
        if count == N
            && !keywords.is_null()
            && ffi::PyTuple_Size(keywords) == 1
            && ffi::PyTuple_GetItem(keywords, 0) == intern!(py, "stream").as_ptr()
        {
            let argument = |at: usize| Bound::from_borrowed_ptr(py, *given.add(at));
            return Ok((std::array::from_fn(argument), argument(N)));
        }
    }
    // SAFETY: as the caller says.
    unsafe { sorted_out(py, names, given, count, keywords) }
}

/// The same however they are given.
///
/// # Safety
/// As above.
#[cold]
unsafe fn sorted_out<'py, const N: usize>(
    py: Python<'py>,
    names: [&str; N],
    given: *const *mut ffi::PyObject,
    count: usize,
    keywords: *mut ffi::PyObject,
) -> PyResult<([Bound<'py, PyAny>; N], Bound<'py, PyAny>)> {
    let mut found: [Option<Bound<'py, PyAny>>; N] = [const { None }; N];
    let mut stream = None;
    if count > N {
        let message = format!("{N} arguments are given by place, not {count}; stream is given by its name: stream=...");
        return Err(PyTypeError::new_err(message));
    }
    // SAFETY: so many arguments are there, and the names are those of as many more.
    let (all, keywords) = unsafe {
        let keywords =
            Bound::from_borrowed_ptr_or_opt(py, keywords).map(|names| names.cast_into_unchecked::<PyTuple>());
        let named = keywords.as_ref().map_or(0, |names| names.len());
        (std::slice::from_raw_parts(given, if given.is_null() { 0 } else { count + named }), keywords)
    };
    // SAFETY: each is an object, and held by the caller.
    let argument = |at: usize| unsafe { Bound::from_borrowed_ptr(py, all[at]) };
    for (at, place) in found.iter_mut().enumerate().take(count) {
        *place = Some(argument(at));
    }
    for (at, name) in keywords.iter().flat_map(|names| names.iter()).enumerate() {
        let name = name.cast_into::<PyString>()?;
        let value = argument(count + at);
        if name.is(intern!(py, "stream")) || name == "stream" {
            stream = Some(value);
        } else if let Some(place) = names.iter().position(|known| name == *known)
            && found[place].is_none()
        {
            found[place] = Some(value);
        } else {
            return Err(PyTypeError::new_err(format!("there is no argument {name}, or it is given twice")));
        }
    }
    let Some(stream) = stream else {
        return Err(PyTypeError::new_err("stream is missing: give the stream that orders the call, stream=..."));
    };
    if let Some(at) = found.iter().position(Option::is_none) {
        return Err(PyTypeError::new_err(format!("{} is missing", names[at])));
    }
    // Each is there.
    Ok((found.map(|argument| argument.unwrap_or_else(|| py.None().into_bound(py))), stream))
}

/// What a method gives, as the interpreter wants it.
fn result(py: Python<'_>, done: PyResult<Bound<'_, PyAny>>) -> *mut ffi::PyObject {
    match done {
        Ok(value) => value.into_ptr(),
        Err(raised) => {
            raised.restore(py);
            std::ptr::null_mut()
        }
    }
}

unsafe extern "C" fn allocate(
    object: *mut ffi::PyObject,
    given: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter, with its lock, as a method of an object of the class.
    unsafe {
        let py = Python::assume_attached();
        let done = arguments(py, ["size"], given, count, keywords).and_then(|([size], stream)| {
            let Fields { resource, device, .. } = *fields(object);
            Setup::get(py)?.allocate(&Bound::from_borrowed_ptr(py, object), resource, device, &size, &stream)
        });
        result(py, done)
    }
}

unsafe extern "C" fn deallocate(
    object: *mut ffi::PyObject,
    given: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: as above.
    unsafe {
        let py = Python::assume_attached();
        let done = arguments(py, ["ptr", "size"], given, count, keywords)
            .and_then(|([ptr, size], stream)| Setup::get(py)?.deallocate(object as usize, &ptr, &size, &stream))
            .map(|()| py.None().into_bound(py));
        result(py, done)
    }
}

/// A method that the interpreter calls without making a tuple or a dictionary.
fn method(name: &'static CStr, function: ffi::PyCFunctionFastWithKeywords, doc: &'static CStr) -> ffi::PyMethodDef {
    ffi::PyMethodDef {
        ml_name: name.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: function },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: doc.as_ptr(),
    }
}

/// Makes the subclass of cuda.core's `MemoryResource`.
pub(super) fn make<'py>(base: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyType>> {
    let py = base.py();
    let bytes: usize = base.getattr("__basicsize__")?.extract()?;
    let flags: u64 = base.getattr("__flags__")?.extract()?;
    if flags & u64::from(u32::try_from(ffi::Py_TPFLAGS_HAVE_GC).unwrap_or(0)) != 0 {
        return Err(PyImportError::new_err(
            "this cuda.core's MemoryResource is tracked by the garbage collector, which this tenure does not know; use an older \
             cuda.core, or a newer tenure",
        ));
    }
    let at = bytes.next_multiple_of(align_of::<Fields>());
    let member = |name: &'static CStr, type_code: c_int, offset: usize, doc: &'static CStr| ffi::PyMemberDef {
        name: name.as_ptr(),
        type_code,
        offset: (at + offset).cast_signed(),
        flags: ffi::Py_READONLY,
        doc: doc.as_ptr(),
    };
    let end_of_members = ffi::PyMemberDef::default();
    // Both lists live as long as the class, which is for ever.
    let members = Box::leak(Box::new([
        member(
            c"mr",
            ffi::Py_T_OBJECT_EX,
            offset_of!(Fields, mr),
            c"The resource; None: what is current at each allocation.",
        ),
        member(c"device_id", ffi::Py_T_INT, offset_of!(Fields, device), c"The number of the device."),
        member(
            c"is_device_accessible",
            ffi::Py_T_BOOL,
            offset_of!(Fields, device_accessible),
            c"Whether the device reaches the memory.",
        ),
        member(
            c"is_host_accessible",
            ffi::Py_T_BOOL,
            offset_of!(Fields, host_accessible),
            c"Whether the host reaches the memory.",
        ),
        member(c"is_managed", ffi::Py_T_BOOL, offset_of!(Fields, managed), c"Whether the memory is managed."),
        end_of_members,
    ]));
    let methods = Box::leak(Box::new([
        method(
            c"allocate",
            allocate,
            c"allocate($self, /, size, *, stream)\n--\n\nA `Buffer` of `size` bytes, in the order of `stream`.",
        ),
        method(
            c"deallocate",
            deallocate,
            c"deallocate($self, /, ptr, size, *, stream)\n--\n\nFrees a block in the order of `stream`.",
        ),
        ffi::PyMethodDef::zeroed(),
    ]));
    let mut slots = [
        ffi::PyType_Slot { slot: ffi::Py_tp_members, pfunc: members.as_mut_ptr().cast() },
        ffi::PyType_Slot { slot: ffi::Py_tp_methods, pfunc: methods.as_mut_ptr().cast() },
        ffi::PyType_Slot { slot: ffi::Py_tp_traverse, pfunc: traverse as *mut c_void },
        ffi::PyType_Slot { slot: ffi::Py_tp_clear, pfunc: clear as *mut c_void },
        ffi::PyType_Slot { slot: ffi::Py_tp_dealloc, pfunc: end as *mut c_void },
        ffi::PyType_Slot { slot: 0, pfunc: std::ptr::null_mut() },
    ];
    let mut spec = ffi::PyType_Spec {
        name: NAME.as_ptr(),
        basicsize: c_int::try_from(at + size_of::<Fields>()).unwrap_or(0),
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_HAVE_GC | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION) as _,
        slots: slots.as_mut_ptr(),
    };
    let bases = PyTuple::new(py, [base])?;
    // SAFETY: the spec and its slots are valid during the call, and what they point to lives as long as the process.
    let class = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpecWithBases(&mut spec, bases.as_ptr()))? };
    FIELDS.store(at, Ordering::Relaxed);
    Ok(class.cast_into::<PyType>()?)
}

/// A resource of a device's, over the one that `mr` is, which has this handle and these properties.
pub(super) fn object<'py>(
    class: &Bound<'py, PyType>,
    mr: &Bound<'py, PyAny>,
    resource: tenure_resource,
    properties: u32,
    device: i32,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the class is a heap type, and its objects are valid when all fields are zeros.
    let object = unsafe { Bound::from_owned_ptr_or_err(class.py(), ffi::PyType_GenericAlloc(class.as_type_ptr(), 0))? };
    let has = |property: u32| c_char::from(properties & property != 0);
    let made = Fields {
        mr: mr.clone().into_ptr(),
        resource,
        device,
        device_accessible: 1,
        host_accessible: has(TENURE_HOST_ACCESSIBLE),
        managed: has(TENURE_MANAGED),
    };
    // SAFETY: an object of the class that nobody else has yet; the fields hold the reference to `mr` from here on.
    unsafe { fields(object.as_ptr()).write(made) };
    Ok(object)
}
