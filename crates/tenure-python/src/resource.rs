//! `DeviceMemoryResource`: the Python object that stands for a resource of the engine.
//!
//! ```text
//!  Python object --handle--> engine resource <--handles-- buffers, adaptors, the table, C++, Rust
//!        ^--- weak, by id: WRAPPERS ---/
//! ```
//!
//! The object holds one reference to the resource and nothing holds the object: it may go while the resource lives. A
//! getter looks the resource's id up and gives the object that is alive, else a new one of the class that its kind says.
//!
//! # Rules
//! * An object without a resource (its `__init__` was skipped or failed) raises on every method.
//! * A Python subclass of a concrete class is fine; the engine calls the engine's resource, so that an overridden
//!   `allocate` serves Python callers of that method only. A Python subclass of the base class alone has no resource:
//!   its use as `mr=` is a `TypeError` that names `CallbackMemoryResource`.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyWeakrefMethods, PyWeakrefReference};
use pyo3::{PyTraverseError, PyVisit};
use tenure_abi::*;

use crate::errors::{self, call, check, try_call};
use crate::figures::MemoryInfo;
use crate::gil;
use crate::kinds;
use crate::observe;
use crate::scopes;
use crate::size;
use crate::stream;
use crate::table::api;

/// Something that allocates and frees memory in the order of streams: the base of all resources.
#[pyclass(subclass, frozen, weakref, module = "tenure.mr")]
#[derive(Default)]
pub(crate) struct DeviceMemoryResource {
    /// The reference that this object holds; 0 until `__init__` is through.
    handle: AtomicU64,
    id: AtomicU64,
    /// What this object is called in `WRAPPERS`.
    token: AtomicU64,
    /// The Python object of the upstream, so that `upstream_mr` gives back what the constructor got.
    upstream: Mutex<Option<Py<PyAny>>>,
}

/// One entry for each Python object of a resource; the last is the one that getters prefer.
type Wrappers = HashMap<u64, Vec<(u64, Py<PyWeakrefReference>)>>;

static WRAPPERS: Mutex<Option<Wrappers>> = Mutex::new(None);
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);

/// Held for a few instructions, never while Python code runs or the interpreter lock is let go.
fn wrappers() -> MutexGuard<'static, Option<Wrappers>> {
    WRAPPERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for DeviceMemoryResource {
    fn drop(&mut self) {
        let handle = *self.handle.get_mut();
        if handle == 0 {
            return;
        }
        let (id, token) = (*self.id.get_mut(), *self.token.get_mut());
        let gone = {
            let mut map = wrappers();
            let map = map.get_or_insert_default();
            let entry = map.get_mut(&id);
            let gone = entry.and_then(|all| {
                let at = all.iter().position(|(t, _)| *t == token)?;
                Some(all.swap_remove(at))
            });
            if map.get(&id).is_some_and(Vec::is_empty) {
                map.remove(&id);
            }
            gone
        };
        drop(gone);
        // SAFETY: this reference is ours and is given back once.
        gil::give_back(
            || unsafe { (api().resource_try_release)(handle) },
            || unsafe { (api().resource_release)(handle) },
        );
    }
}

impl DeviceMemoryResource {
    /// The reference, borrowed while the object lives; 0 when there is none.
    #[inline]
    pub(crate) fn raw(&self) -> tenure_resource {
        self.handle.load(Ordering::Acquire)
    }

    /// The reference, borrowed while the object lives.
    ///
    /// # Errors
    /// `TypeError` when there is none.
    #[inline]
    pub(crate) fn handle(slf: &Bound<'_, Self>) -> PyResult<tenure_resource> {
        match slf.get().raw() {
            TENURE_RESOURCE_NULL => Err(Self::empty(slf)),
            handle => Ok(handle),
        }
    }

    #[cold]
    fn empty(slf: &Bound<'_, Self>) -> PyErr {
        let kind = slf.get_type().name().map(|n| n.to_string()).unwrap_or_default();
        PyTypeError::new_err(format!(
            "this {kind} has no resource behind it: its __init__ was not called or failed; call super().__init__(...) of a concrete class \
             of tenure.mr, or make a resource of your own functions with tenure.mr.CallbackMemoryResource"
        ))
    }

    /// Gives the object its reference, which it takes over, and makes it known to the getters.
    ///
    /// # Errors
    /// The object has one already (`__init__` was called twice): the given one is released.
    pub(crate) fn install(slf: &Bound<'_, Self>, handle: tenure_resource, upstream: Option<Py<PyAny>>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let mut id = 0;
        // SAFETY: `id` is valid for writing.
        check(py, unsafe { (api().resource_id)(handle, &mut id) })?;
        let weak = PyWeakrefReference::new(slf.as_any())?.unbind();
        let token = NEXT_TOKEN.fetch_add(1, Ordering::Relaxed);
        if this.handle.compare_exchange(0, handle, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: the reference is ours.
            gil::give_back(
                || unsafe { (api().resource_try_release)(handle) },
                || unsafe { (api().resource_release)(handle) },
            );
            return Err(PyRuntimeError::new_err("__init__ was called a second time; a resource is made once"));
        }
        this.id.store(id, Ordering::Release);
        this.token.store(token, Ordering::Release);
        *this.upstream.lock().unwrap_or_else(PoisonError::into_inner) = upstream;
        wrappers().get_or_insert_default().entry(id).or_default().push((token, weak));
        Ok(())
    }

    /// The object for a reference, which is taken over: the one that is alive, else a new one of the right class.
    pub(crate) fn wrap<'py>(py: Python<'py>, handle: tenure_resource) -> PyResult<Bound<'py, PyAny>> {
        let mut id = 0;
        // SAFETY: `id` is valid for writing.
        check(py, unsafe { (api().resource_id)(handle, &mut id) })?;
        if let Some(object) = Self::alive(py, id) {
            // SAFETY: the reference is ours; the object has its own.
            gil::give_back(
                || unsafe { (api().resource_try_release)(handle) },
                || unsafe { (api().resource_release)(handle) },
            );
            return Ok(object);
        }
        let object = kinds::blank(py, handle)?;
        Self::install(object.cast::<Self>()?, handle, None)?;
        Ok(object)
    }

    /// The Python object that is alive for an id.
    pub(crate) fn alive(py: Python<'_>, id: u64) -> Option<Bound<'_, PyAny>> {
        let map = wrappers();
        map.as_ref()?.get(&id)?.iter().rev().find_map(|(_, weak)| weak.bind(py).upgrade())
    }

    /// Makes this object the one that getters give.
    pub(crate) fn prefer(&self) {
        let (id, token) = (self.id.load(Ordering::Acquire), self.token.load(Ordering::Acquire));
        let mut map = wrappers();
        if let Some(all) = map.get_or_insert_default().get_mut(&id)
            && let Some(at) = all.iter().position(|(t, _)| *t == token)
        {
            let entry = all.remove(at);
            all.push(entry);
        }
    }

    pub(crate) fn property(slf: &Bound<'_, Self>, name: &CStr) -> PyResult<u64> {
        let handle = Self::handle(slf)?;
        let mut out = 0;
        // SAFETY: `name` is a string and `out` is valid for writing.
        call(slf.py(), || unsafe { (api().resource_property)(handle, name.as_ptr(), &mut out) })?;
        Ok(out)
    }

    pub(crate) fn upstream_object<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let handle = Self::handle(slf)?;
        if let Some(object) = &*slf.get().upstream.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(object.bind(py).clone());
        }
        let mut out = TENURE_RESOURCE_NULL;
        // SAFETY: `out` is valid for writing.
        check(py, unsafe { (api().resource_upstream)(handle, &mut out) })?;
        if out == TENURE_RESOURCE_NULL {
            return Ok(py.None().into_bound(py));
        }
        Self::wrap(py, out)
    }
}

/// The reference behind an `mr=` argument, borrowed while the object lives.
///
/// # Errors
/// `TypeError` for anything that is no resource, or one without a resource behind it.
#[inline]
pub(crate) fn argument(mr: &Bound<'_, PyAny>) -> PyResult<tenure_resource> {
    match mr.cast::<DeviceMemoryResource>() {
        Ok(resource) => DeviceMemoryResource::handle(resource),
        Err(_) => Err(no_resource(mr, "mr")),
    }
}

/// The same for the upstream of a new resource.
pub(crate) fn upstream(upstream_mr: &Bound<'_, PyAny>) -> PyResult<tenure_resource> {
    match upstream_mr.cast::<DeviceMemoryResource>() {
        Ok(resource) => DeviceMemoryResource::handle(resource),
        Err(_) => Err(no_resource(upstream_mr, "upstream_mr")),
    }
}

#[cold]
fn no_resource(given: &Bound<'_, PyAny>, what: &str) -> PyErr {
    let kind = given.get_type().name().map(|n| n.to_string()).unwrap_or_default();
    PyTypeError::new_err(format!(
        "{what} must be a resource of tenure.mr, not {kind}; a resource of your own functions is made with tenure.mr.CallbackMemoryResource"
    ))
}

#[pymethods]
impl DeviceMemoryResource {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "()")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self::default()
    }

    #[pyo3(signature = ())]
    fn __init__(slf: &Bound<'_, Self>) -> PyResult<()> {
        let kind = slf.get_type().name().map(|n| n.to_string()).unwrap_or_default();
        Err(PyTypeError::new_err(format!(
            "{kind} makes no resource of its own: use a concrete class of tenure.mr, or CallbackMemoryResource for your own functions"
        )))
    }

    #[pyo3(signature = (nbytes, stream=None, alignment=256))]
    fn allocate(
        slf: &Bound<'_, Self>,
        nbytes: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        alignment: isize,
    ) -> PyResult<usize> {
        let handle = Self::handle(slf)?;
        let bytes = size::bytes(nbytes, "nbytes")?;
        let alignment = alignment_bytes(alignment)?;
        let stream = stream::argument(stream)?;
        observe::follow(slf.py())?;
        let carried = stream.carried();
        let mut out: *mut c_void = std::ptr::null_mut();
        let to = &raw mut out;
        try_call(
            slf.py(),
            // SAFETY: `out` is valid for writing; the handles are held by this call's arguments.
            || unsafe { (api().try_allocate)(handle, bytes, alignment, carried, to) },
            // SAFETY: as above.
            || unsafe { (api().allocate)(handle, bytes, alignment, carried, to) },
        )?;
        Ok(out as usize)
    }

    #[pyo3(signature = (ptr, nbytes, stream=None, alignment=256))]
    fn deallocate(
        slf: &Bound<'_, Self>,
        ptr: &Bound<'_, PyAny>,
        nbytes: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        alignment: isize,
    ) -> PyResult<()> {
        let handle = Self::handle(slf)?;
        let ptr = size::address(ptr, "ptr")? as *mut c_void;
        let bytes = size::bytes(nbytes, "nbytes")?;
        let alignment = alignment_bytes(alignment)?;
        let stream = stream::argument(stream)?;
        let carried = stream.carried();
        scopes::sync(slf.py());
        try_call(
            slf.py(),
            // SAFETY: the library checks pointer, size and alignment; the handles are held by this call's arguments.
            || unsafe { (api().try_deallocate)(handle, ptr, bytes, alignment, carried) },
            // SAFETY: as above.
            || unsafe { (api().deallocate)(handle, ptr, bytes, alignment, carried) },
        )
    }

    #[pyo3(signature = (sizes, stream=None, alignment=256))]
    fn allocate_many(
        slf: &Bound<'_, Self>,
        sizes: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        alignment: isize,
    ) -> PyResult<Vec<usize>> {
        let handle = Self::handle(slf)?;
        let bytes = size::many(sizes, "sizes", size::bytes)?;
        let alignment = alignment_bytes(alignment)?;
        let stream = stream::argument(stream)?;
        observe::follow(slf.py())?;
        let carried = stream.carried();
        let mut out: Vec<*mut c_void> = vec![std::ptr::null_mut(); bytes.len()];
        let to = out.as_mut_ptr();
        // SAFETY: both arrays are as long as is said; the handles are held by this call's arguments.
        call(slf.py(), || unsafe {
            (api().allocate_many)(handle, bytes.len(), bytes.as_ptr(), alignment, carried, to)
        })?;
        Ok(out.into_iter().map(|ptr| ptr as usize).collect())
    }

    #[pyo3(signature = (ptrs, sizes, stream=None, alignment=256))]
    fn deallocate_many(
        slf: &Bound<'_, Self>,
        ptrs: &Bound<'_, PyAny>,
        sizes: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        alignment: isize,
    ) -> PyResult<()> {
        let handle = Self::handle(slf)?;
        let addresses = size::many(ptrs, "ptrs", size::address)?;
        let bytes = size::many(sizes, "sizes", size::bytes)?;
        if addresses.len() != bytes.len() {
            return Err(PyValueError::new_err(format!(
                "{} addresses in ptrs and {} sizes: give one size for each block",
                addresses.len(),
                bytes.len()
            )));
        }
        let alignment = alignment_bytes(alignment)?;
        let stream = stream::argument(stream)?;
        let carried = stream.carried();
        scopes::sync(slf.py());
        let given: Vec<*mut c_void> = addresses.into_iter().map(|ptr| ptr as *mut c_void).collect();
        // SAFETY: both arrays are as long as is said, and only read; the library checks what they hold.
        call(slf.py(), || unsafe {
            let (count, none) = (bytes.len(), std::ptr::null_mut());
            (api().deallocate_many)(handle, count, given.as_ptr(), bytes.as_ptr(), alignment, carried, none)
        })
    }

    fn owns(slf: &Bound<'_, Self>, ptr: &Bound<'_, PyAny>) -> PyResult<bool> {
        let handle = Self::handle(slf)?;
        let ptr = size::address(ptr, "ptr")? as *const c_void;
        let mut out = 0;
        // SAFETY: `out` is valid for writing.
        call(slf.py(), || unsafe { (api().resource_owns)(handle, ptr, &mut out) })?;
        Ok(out != 0)
    }

    fn info(slf: &Bound<'_, Self>) -> PyResult<MemoryInfo> {
        let handle = Self::handle(slf)?;
        let mut out = tenure_info { size: size_of::<tenure_info>(), ..tenure_info::default() };
        // SAFETY: `out` is valid and its size is set.
        call(slf.py(), || unsafe { (api().resource_info)(handle, &mut out) })?;
        Ok(MemoryInfo(out))
    }

    #[pyo3(signature = (keep_bytes=None), text_signature = "($self, keep_bytes=0)")]
    fn trim(slf: &Bound<'_, Self>, keep_bytes: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
        let handle = Self::handle(slf)?;
        let keep = size::optional(keep_bytes, "keep_bytes")?.unwrap_or(0);
        let mut out = 0;
        // SAFETY: `out` is valid for writing.
        call(slf.py(), || unsafe { (api().resource_trim)(handle, keep, &mut out) })?;
        Ok(out)
    }

    fn same_as(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        let handle = Self::handle(slf)?;
        let Ok(other) = other.cast::<Self>() else { return Ok(false) };
        let other = Self::handle(other)?;
        let mut out = 0;
        // SAFETY: `out` is valid for writing.
        check(slf.py(), unsafe { (api().resource_same)(handle, other, &mut out) })?;
        Ok(out != 0)
    }

    #[getter]
    fn id(slf: &Bound<'_, Self>) -> PyResult<u64> {
        Self::handle(slf)?;
        Ok(slf.get().id.load(Ordering::Acquire))
    }

    #[getter]
    fn kind(slf: &Bound<'_, Self>) -> PyResult<String> {
        let handle = Self::handle(slf)?;
        kinds::kind(slf.py(), handle)
    }

    #[getter]
    fn device(slf: &Bound<'_, Self>) -> PyResult<Option<i32>> {
        let handle = Self::handle(slf)?;
        let mut out = -1;
        // SAFETY: `out` is valid for writing.
        check(slf.py(), unsafe { (api().resource_device)(handle, &mut out) })?;
        Ok((out >= 0).then_some(out))
    }

    #[getter]
    fn is_device_accessible(slf: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(properties(slf)? & TENURE_DEVICE_ACCESSIBLE != 0)
    }

    #[getter]
    fn is_host_accessible(slf: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(properties(slf)? & TENURE_HOST_ACCESSIBLE != 0)
    }

    #[getter]
    fn is_managed(slf: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(properties(slf)? & TENURE_MANAGED != 0)
    }

    fn __richcmp__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let equal = match other.cast::<Self>() {
            _ if slf.is(other) => true,
            Ok(other) => slf.get().raw() != 0 && same_id(slf.get(), other.get()),
            Err(_) => return Ok(py.NotImplemented()),
        };
        match op {
            CompareOp::Eq => Ok(equal.into_pyobject(py)?.to_owned().into_any().unbind()),
            CompareOp::Ne => Ok((!equal).into_pyobject(py)?.to_owned().into_any().unbind()),
            _ => Ok(py.NotImplemented()),
        }
    }

    fn __hash__(&self) -> u64 {
        self.id.load(Ordering::Acquire)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a resource belongs to its process and cannot be pickled; make one in the other process (a DeviceBuffer can be pickled)",
        ))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let name = slf.get_type().name()?;
        if slf.get().raw() == 0 {
            return Ok(format!("<{name} without a resource>"));
        }
        Ok(format!("<{name} id={} kind={}>", slf.get().id.load(Ordering::Acquire), Self::kind(slf)?))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A lock that somebody holds means that the object is in use, hence reachable.
        if let Ok(upstream) = self.upstream.try_lock()
            && let Some(object) = &*upstream
        {
            visit.call(object)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let upstream = self.upstream.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(upstream);
    }
}

fn same_id(a: &DeviceMemoryResource, b: &DeviceMemoryResource) -> bool {
    a.id.load(Ordering::Acquire) == b.id.load(Ordering::Acquire)
}

fn properties(slf: &Bound<'_, DeviceMemoryResource>) -> PyResult<u32> {
    let handle = DeviceMemoryResource::handle(slf)?;
    let mut out = 0;
    // SAFETY: `out` is valid for writing.
    check(slf.py(), unsafe { (api().resource_properties)(handle, &mut out) })?;
    Ok(out)
}

/// The table takes 0 for "256"; Python says what it means.
pub(crate) fn alignment_bytes(alignment: isize) -> PyResult<usize> {
    match usize::try_from(alignment) {
        Ok(value) if value.is_power_of_two() => Ok(value),
        _ => Err(pyo3::exceptions::PyValueError::new_err(format!(
            "alignment is {alignment}; it must be a power of two, such as 256"
        ))),
    }
}

/// Whoever was asked for the smallest live allocation around an address.
#[pyfunction]
pub(crate) fn owner_of<'py>(py: Python<'py>, ptr: &Bound<'_, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let ptr = size::address(ptr, "ptr")? as *const c_void;
    let mut out = TENURE_RESOURCE_NULL;
    let nothing = std::ptr::null_mut;
    // SAFETY: `out` is valid for writing; the others may be null.
    call(py, || unsafe { (api().owner_of)(ptr, &mut out, nothing(), std::ptr::null_mut()) })?;
    if out == TENURE_RESOURCE_NULL {
        return Ok(None);
    }
    DeviceMemoryResource::wrap(py, out).map(Some)
}

/// How many frees that could not return an error were wrong.
#[pyfunction]
pub(crate) fn misuse_count(py: Python<'_>) -> PyResult<u64> {
    let mut out = 0;
    // SAFETY: `out` is valid for writing.
    errors::check(py, unsafe { (api().misuse_count)(&mut out) })?;
    Ok(out)
}

/// For `tenure/python.h`: the object of a resource, which takes the reference over.
#[pyfunction]
pub(crate) fn _wrap_resource(py: Python<'_>, handle: u64) -> PyResult<Bound<'_, PyAny>> {
    DeviceMemoryResource::wrap(py, handle)
}

/// For `tenure/python.h`: the reference of a resource, borrowed while `mr` lives; for `None` the word for the current one.
#[pyfunction]
#[pyo3(signature = (mr))]
pub(crate) fn _borrow_resource(py: Python<'_>, mr: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    crate::buffer::resource_or_current(py, mr)
}

/// For `tenure/python.h`: a reference of one's own.
#[pyfunction]
pub(crate) fn _retain_resource(mr: &Bound<'_, PyAny>) -> PyResult<u64> {
    let handle = argument(mr)?;
    let mut out = TENURE_RESOURCE_NULL;
    // SAFETY: `out` is valid for writing.
    check(mr.py(), unsafe { (api().resource_retain)(handle, &mut out) })?;
    Ok(out)
}
