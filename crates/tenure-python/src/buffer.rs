//! `tenure.DeviceBuffer`: memory with an owner.
//!
//! ```text
//!  DeviceBuffer ---handle---> the engine's buffer (allocation, resource, home stream, device)
//!
//!  once exported:  DeviceBuffer --Arc--> Owned --handle--> the engine's buffer
//!                  DLPack capsule --Arc----^
//! ```
//!
//! The engine's buffer knows its resource and its stream; no Python object is needed to free it. So the last owner may be
//! a capsule's deleter on a thread that has never seen Python, after the interpreter's end.
//!
//! # Rules
//! * While memory is exported (buffer protocol, DLPack, Arrow) what would move or free it is a `BufferError`.
//! * While one thread changes a buffer, another one's change or export is a `BufferError`, not a race.
//! * The methods that copy between host and device return when the copy is done.
//! * `stream=None` is the home stream, except in constructors, where it is `DEFAULT_STREAM`.

mod owned;
mod turn;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicIsize, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple, PyType};
use pyo3::{PyTraverseError, PyTypeInfo, PyVisit, ffi};
use tenure_abi::*;

pub(crate) use self::owned::{Owned, create, resource_or_current, view_of};
use crate::adaptors;
use crate::arrow;
use crate::buffer_copy;
use crate::buffer_export;
use crate::dlpack;
use crate::dlpack_api;
use crate::errors::{call, check};
use crate::foreign;
use crate::keeper::Held;
use crate::resource::DeviceMemoryResource;
use crate::size;
use crate::stream::{self, Stream};
use crate::table::api;

/// Memory that a resource made, with what is needed to free it.
#[pyclass(subclass, frozen, weakref, module = "tenure")]
#[derive(Default)]
pub(crate) struct DeviceBuffer {
    /// The engine's buffer; 0 until `__init__` is through. Ours to give back unless it is shared.
    buffer: AtomicU64,
    /// From the first export through DLPack or Arrow on: the same buffer, freed by the last who has it.
    shared: OnceLock<Arc<Owned>>,
    /// What the garbage collector is shown, for a buffer of a callback resource. Dropped after the buffer.
    held: OnceLock<Held>,
    /// Buffer-protocol exports; -1 while a thread changes the buffer.
    exports: AtomicIsize,
    turn: Mutex<()>,
    /// The thread whose turn it is, to tell waiting from waiting for oneself.
    holder: AtomicUsize,
    /// In which process it took its turn: in a forked child nobody will end another thread's.
    forks: AtomicUsize,
    /// The memory was taken over from somebody who forbids writing.
    pub(crate) readonly: AtomicBool,
    /// The size as DLPack's C exchange API shows it, by address.
    pub(crate) extent: AtomicI64,
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let buffer = *self.buffer.get_mut();
        if buffer != 0 && self.shared.get().is_none() {
            drop(Owned::new(buffer));
        }
    }
}

impl DeviceBuffer {
    /// A Python object of the class itself for a buffer, which is taken over.
    pub(crate) fn wrap(py: Python<'_>, buffer: tenure_buffer) -> PyResult<Bound<'_, Self>> {
        let this = Self::default();
        this.buffer.store(buffer, Ordering::Release);
        this.note_keeper(py, buffer);
        Bound::new(py, this)
    }

    /// The same for any subclass, made without its `__init__`.
    pub(crate) fn wrap_as<'py>(cls: &Bound<'py, PyType>, buffer: tenure_buffer) -> PyResult<Bound<'py, Self>> {
        let py = cls.py();
        if cls.is(Self::type_object(py)) {
            return Self::wrap(py, buffer);
        }
        let owned = Owned::new(buffer);
        let object = cls.call_method1("__new__", (cls,))?.cast_into::<Self>()?;
        object.get().install(py, owned)?;
        Ok(object)
    }

    /// Takes part in what the garbage collector sees of a callback resource.
    #[inline]
    fn note_keeper(&self, py: Python<'_>, buffer: tenure_buffer) {
        if let Some(held) = Held::of_buffer(py, buffer) {
            let _ = self.held.set(held);
        }
    }

    fn install(&self, py: Python<'_>, owned: Owned) -> PyResult<()> {
        let buffer = owned.handle();
        if self.buffer.compare_exchange(0, buffer, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(PyRuntimeError::new_err("__init__ was called a second time; a buffer is made once"));
        }
        std::mem::forget(owned);
        self.note_keeper(py, buffer);
        Ok(())
    }

    /// The engine's buffer.
    ///
    /// # Errors
    /// `__init__` was skipped or failed.
    #[inline]
    pub(crate) fn handle(&self) -> PyResult<tenure_buffer> {
        match self.buffer.load(Ordering::Acquire) {
            0 => Err(Self::never_made()),
            buffer => Ok(buffer),
        }
    }

    #[cold]
    fn never_made() -> PyErr {
        PyTypeError::new_err(
            "this DeviceBuffer was never made: its __init__ was not called or failed; call super().__init__(...)",
        )
    }

    /// The engine's buffer for one more who keeps it. With the interpreter lock, and not during a change.
    ///
    /// # Errors
    /// `__init__` was skipped or failed.
    pub(crate) fn share(&self) -> PyResult<Arc<Owned>> {
        let buffer = self.handle()?;
        Ok(self.shared.get_or_init(|| Arc::new(Owned::new(buffer))).clone())
    }

    /// Gives the buffer away and takes `other` instead. During a change.
    ///
    /// # Errors
    /// `__init__` was skipped or failed; `other` is freed.
    pub(crate) fn exchange(&self, other: Owned) -> PyResult<tenure_buffer> {
        let before = self.handle()?;
        self.buffer.store(other.handle(), Ordering::Release);
        match self.shared.get() {
            Some(shared) => _ = shared.exchange(other),
            None => std::mem::forget(other),
        }
        Ok(before)
    }

    /// What the buffer is now.
    #[inline]
    pub(crate) fn view(&self, py: Python<'_>) -> PyResult<tenure_buffer_view> {
        view_of(py, self.handle()?)
    }

    /// The stream of an argument, `None` being the home stream, borrowed while `argument` and the buffer live.
    pub(crate) fn stream_or_home(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Option<Stream>, tenure_stream)> {
        match stream {
            None => {
                let home = Stream::sharing(py, self.view(py)?.stream)?;
                let carried = home.carried();
                Ok((Some(home), carried))
            }
            Some(given) => {
                let held = Stream::from_any(given)?;
                let carried = held.carried();
                Ok((Some(held), carried))
            }
        }
    }
}

#[pymethods]
impl DeviceBuffer {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(*, ptr=0, size=0, stream=None, mr=None)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self::default()
    }

    #[pyo3(signature = (*, ptr=None, size=None, stream=None, mr=None))]
    fn __init__(
        &self,
        py: Python<'_>,
        ptr: Option<&Bound<'_, PyAny>>,
        size: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
        mr: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let ptr = ptr.map_or(Ok(0), |ptr| size::address(ptr, "ptr"))?;
        let bytes = size.map_or(Ok(0), |size| size::bytes(size, "size"))?;
        let stream = stream::argument(stream)?;
        let resource = resource_or_current(py, mr)?;
        let owned = create(py, bytes, stream.carried(), resource)?;
        if ptr != 0 && bytes != 0 {
            buffer_copy::fill_from(py, &owned, ptr, bytes, stream.carried())?;
        }
        self.install(py, owned)
    }

    #[staticmethod]
    #[pyo3(signature = (b, stream=None, mr=None))]
    fn to_device<'py>(
        py: Python<'py>,
        b: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        mr: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        buffer_copy::to_device(&Self::type_object(py), b, stream, mr)
    }

    #[classmethod]
    #[pyo3(signature = (sizes, stream=None, mr=None))]
    fn many<'py>(
        cls: &Bound<'py, PyType>,
        sizes: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        mr: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Bound<'py, Self>>> {
        let py = cls.py();
        let bytes = size::many(sizes, "sizes", size::bytes)?;
        let stream = stream::argument(stream)?;
        let carried = stream.carried();
        let resource = resource_or_current(py, mr)?;
        let mut handles: Vec<tenure_buffer> = vec![0; bytes.len()];
        let out = handles.as_mut_ptr();
        // SAFETY: both arrays are as long as is said; the handles are held by this call's arguments.
        call(py, || unsafe { (api().buffer_create_many)(bytes.len(), bytes.as_ptr(), 0, carried, resource, out) })?;
        let mut handles = handles.into_iter();
        let made: PyResult<Vec<_>> = handles.by_ref().map(|handle| Self::wrap_as(cls, handle)).collect();
        // Where a class of the caller's failed, the rest is freed too.
        handles.map(Owned::new).for_each(drop);
        made
    }

    #[classmethod]
    #[pyo3(signature = (ptr, size, *, stream, mr=None, owner=None, device=None))]
    fn adopt<'py>(
        cls: &Bound<'py, PyType>,
        ptr: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        stream: &Bound<'_, PyAny>,
        mr: Option<&Bound<'_, PyAny>>,
        owner: Option<&Bound<'_, PyAny>>,
        device: Option<i32>,
    ) -> PyResult<Bound<'py, Self>> {
        foreign::adopt(cls, ptr, size, stream, mr, owner, device)
    }

    #[getter]
    fn ptr(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.view(py)?.ptr as usize)
    }

    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.view(py)?.bytes)
    }

    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.view(py)?.bytes)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.view(py)?.bytes)
    }

    // Without this an empty buffer would be false because of `__len__`.
    fn __bool__(&self) -> PyResult<bool> {
        self.handle()?;
        Ok(true)
    }

    fn capacity(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.view(py)?.capacity)
    }

    #[getter]
    fn mr<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let buffer = self.handle()?;
        let view = self.view(py)?;
        if view.resource_id != 0
            && let Some(object) = DeviceMemoryResource::alive(py, view.resource_id)
        {
            return Ok(Some(object));
        }
        let mut out = TENURE_RESOURCE_NULL;
        {
            let _turn = self.turn(py)?;
            // SAFETY: `out` is valid for writing.
            check(py, unsafe { (api().buffer_resource)(buffer, &mut out) })?;
        }
        if out == TENURE_RESOURCE_NULL {
            return Ok(None);
        }
        DeviceMemoryResource::wrap(py, out).map(Some)
    }

    #[getter]
    fn stream(&self, py: Python<'_>) -> PyResult<Stream> {
        Stream::sharing(py, self.view(py)?.stream)
    }

    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<Option<i32>> {
        let device = self.view(py)?.device;
        Ok((device >= 0).then_some(device))
    }

    #[pyo3(signature = (new_size, stream=None))]
    fn resize(&self, py: Python<'_>, new_size: &Bound<'_, PyAny>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let bytes = size::bytes(new_size, "new_size")?;
        self.resized(py, "resized", bytes, stream, api().buffer_resize)
    }

    #[pyo3(signature = (new_capacity, stream=None))]
    fn reserve(
        &self,
        py: Python<'_>,
        new_capacity: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let bytes = size::bytes(new_capacity, "new_capacity")?;
        self.resized(py, "grown", bytes, stream, api().buffer_reserve)
    }

    #[pyo3(signature = (stream=None))]
    fn shrink_to_fit(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.writable()?;
        let _change = self.change(py, "shrunk")?;
        let (_held, carried) = self.stream_or_home(py, stream)?;
        let buffer = self.handle()?;
        // SAFETY: the handles are held by this object and by `_held`.
        call(py, || unsafe { (api().buffer_shrink_to_fit)(buffer, carried) })
    }

    #[pyo3(signature = (stream=None, mr=None))]
    fn copy<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'_, PyAny>>,
        mr: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let py = slf.py();
        let this = slf.get();
        let (_held, carried) = this.stream_or_home(py, stream)?;
        // The buffer's own resource, unless another one is named; what was adopted with an owner has none.
        let own = match mr {
            None => this.mr(py)?,
            Some(_) => None,
        };
        let resource = resource_or_current(py, mr.or(own.as_ref()))?;
        Self::wrap_as(&slf.get_type(), buffer_copy::duplicate(py, this, carried, resource)?)
    }

    fn __copy__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        Self::copy(slf, None, None)
    }

    fn __deepcopy__<'py>(slf: &Bound<'py, Self>, _memo: &Bound<'_, PyAny>) -> PyResult<Bound<'py, Self>> {
        Self::copy(slf, None, None)
    }

    #[pyo3(signature = (ary=None, stream=None))]
    fn copy_to_host<'py>(
        slf: &Bound<'py, Self>,
        ary: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        buffer_copy::copy_to_host(slf, ary, stream)
    }

    #[pyo3(signature = (ary, stream=None))]
    fn copy_from_host(
        slf: &Bound<'_, Self>,
        ary: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        buffer_copy::copy_from_host(slf, ary, stream)
    }

    #[pyo3(signature = (cuda_ary, stream=None))]
    fn copy_from_device(
        slf: &Bound<'_, Self>,
        cuda_ary: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        buffer_copy::copy_from_device(slf, cuda_ary, stream)
    }

    #[pyo3(signature = (stream=None))]
    fn tobytes<'py>(slf: &Bound<'py, Self>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Bound<'py, PyBytes>> {
        buffer_copy::tobytes(slf, stream)
    }

    fn record_stream(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let stream = stream::argument(Some(stream))?;
        let _turn = self.turn(py)?;
        let (buffer, carried) = (self.handle()?, stream.carried());
        // SAFETY: the handles are held by this object and by `stream`.
        call(py, || unsafe { (api().buffer_record_stream)(buffer, carried) })
    }

    #[pyo3(signature = (device=None, stream=None))]
    fn prefetch(&self, py: Python<'_>, device: Option<i32>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let stream = stream.map(|stream| stream::argument(Some(stream))).transpose()?;
        let _turn = self.turn(py)?;
        let (buffer, carried) = (self.handle()?, stream.as_ref().map(|stream| stream.carried()));
        adaptors::prefetch(py, buffer, device, carried)
    }

    fn set_stream(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let stream = stream::argument(Some(stream))?;
        let _turn = self.turn(py)?;
        let (buffer, carried) = (self.handle()?, stream.carried());
        // SAFETY: the handles are held by this object and by `stream`.
        call(py, || unsafe { (api().buffer_set_stream)(buffer, carried) })
    }

    #[pyo3(signature = (stream=None))]
    fn close(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let _change = self.change(py, "closed")?;
        let buffer = self.handle()?;
        let held = stream.map(|stream| stream::argument(Some(stream))).transpose()?;
        let carried = held.as_ref().map(|stream| stream.carried());
        let stream = carried.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `stream` is null or valid during the call; the handles are held by this object and by `held`.
        call(py, || unsafe { (api().buffer_close)(buffer, stream) })
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().handle()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exc))]
    fn __exit__(&self, py: Python<'_>, _exc: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py, None)
    }

    fn detach<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let _change = self.change(py, "detached")?;
        let buffer = self.handle()?;
        // SAFETY: all fields are integers and pointers, for which zeros are values.
        let mut out: tenure_detached = unsafe { std::mem::zeroed() };
        out.size = size_of::<tenure_detached>();
        // SAFETY: `out` is valid and its size is set.
        check(py, unsafe { (api().buffer_detach)(buffer, &mut out) })?;
        // Both take over the references that came out, whatever fails.
        let stream = Stream::owning(out.stream);
        let mr = DeviceMemoryResource::wrap(py, out.resource)?;
        (out.ptr as usize, out.capacity, mr, stream).into_pyobject(py)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        buffer_export::cuda_array_interface(slf)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        dlpack::export(slf, stream, max_version, dl_device, copy)
    }

    #[pyo3(signature = (kind=None))]
    fn export_handle<'py>(slf: &Bound<'py, Self>, kind: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tenure.sharing")?.getattr("SharedHandle")?.call1((slf, kind))
    }

    #[classmethod]
    #[pyo3(signature = (handle, stream=None, *, device=None))]
    fn from_handle<'py>(
        cls: &Bound<'py, PyType>,
        handle: &Bound<'py, PyAny>,
        stream: Option<&Bound<'py, PyAny>>,
        device: Option<i32>,
    ) -> PyResult<Bound<'py, PyAny>> {
        handle.call_method1("_open", (cls, stream, device))
    }

    #[pyo3(signature = (requested_schema=None, **kwargs))]
    fn __arrow_c_device_array__<'py>(
        slf: &Bound<'py, Self>,
        requested_schema: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let _ = requested_schema;
        arrow::export_device(slf, kwargs)
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        slf: &Bound<'py, Self>,
        requested_schema: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let _ = requested_schema;
        arrow::export_host(slf)
    }

    fn __dlpack_device__(slf: &Bound<'_, Self>) -> PyResult<(i32, i32)> {
        dlpack::device(slf)
    }

    /// # Safety
    /// Called by the interpreter, with a `Py_buffer` that is valid for writing.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: std::ffi::c_int) -> PyResult<()> {
        // SAFETY: as above.
        unsafe { buffer_export::get_buffer(slf, view, flags) }
    }

    /// # Safety
    /// Called by the interpreter, with a `Py_buffer` that `__getbuffer__` filled.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: as above.
        unsafe { buffer_export::release_buffer(self, view) };
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Memory that is exported has owners whom the collector cannot see.
        if self.is_exported() {
            return Ok(());
        }
        self.held.get().map_or(Ok(()), |held| held.traverse(&visit))
    }

    /// Called by the garbage collector alone, and becomes `__del__` (see `register`).
    fn _finish(&self, py: Python<'_>) {
        if let Some(held) = self.held.get() {
            held.finish(|| self.close(py, None));
        }
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        Self::__reduce_ex__(slf, 4)
    }

    /// From protocol 5 on the bytes may travel beside the pickle.
    fn __reduce_ex__<'py>(slf: &Bound<'py, Self>, protocol: i32) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let py = slf.py();
        let rebuild = py.import("tenure._tenure")?.getattr("_rebuild")?;
        let mut bytes = buffer_copy::tobytes(slf, None)?.into_any();
        if protocol >= 5 {
            bytes = py.import("pickle")?.getattr("PickleBuffer")?.call1((bytes,))?;
        }
        Ok((rebuild, (slf.get_type(), bytes).into_pyobject(py)?))
    }

    fn __sizeof__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.view(py)?.bytes)
    }

    fn __bytes__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyBytes>> {
        buffer_copy::tobytes(slf, None)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let name = slf.get_type().name()?;
        if slf.get().handle().is_err() {
            return Ok(format!("<{name} that was never made>"));
        }
        let view = slf.get().view(slf.py())?;
        Ok(format!("<{name} of {} bytes at {:#x}>", view.bytes, view.ptr as usize))
    }
}

/// For pickle: a buffer with these bytes, under the scoped or the current resource.
#[pyfunction]
fn _rebuild<'py>(cls: &Bound<'py, PyType>, bytes: &Bound<'_, PyAny>) -> PyResult<Bound<'py, DeviceBuffer>> {
    buffer_copy::to_device(cls, bytes, None, None)
}

/// Adds the class and its functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<DeviceBuffer>()?;
    // PyO3 has no finalizers, and its deallocation calls none: this one is called for garbage in cycles, and by classes that
    // are derived in Python before they let go of the buffer anyway.
    let class = module.py().get_type::<DeviceBuffer>();
    class.setattr("__del__", class.getattr("_finish")?)?;
    class.delattr("_finish")?;
    dlpack_api::register(&class)?;
    module.add_function(wrap_pyfunction!(_rebuild, module)?)
}
