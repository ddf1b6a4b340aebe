//! CuPy's allocator: `cupy.cuda.set_allocator(tenure.allocators.cupy.tenure_cupy_allocator)`.
//!
//! ```text
//!  cupy.empty --size--> tenure_cupy_allocator ---> buffer_try_create(size, current CuPy stream, resource)
//!                              |
//!   cupy.cuda.MemoryPointer <--+--> Memory: a subclass of CuPy's BaseMemory { ptr, size, device_id | the engine's buffer }
//! ```
//!
//! One object of Python's owns the block and is CuPy's memory object at the same time, and its end is the block's: in the
//! order of the stream that was current when it was made, into the resource that made it, whatever is current by then.
//!
//! # Invariants
//! * Nothing here names CuPy before the first allocation, which imports it ([`Setup`]).
//! * CuPy's classes are used as their documentation has it: `BaseMemory` is subclassed, its attributes `ptr`, `size` and
//!   `device_id` are public, `MemoryPointer(mem, 0)` makes a pointer with `mem`, its address and its device. Where these
//!   attributes lie in the objects is looked for with two sets of values when the class is made; where they are not found,
//!   they are set by name, and the pointer is made by that call.
//! * A stream other than the default ones is carried as an object that keeps CuPy's stream alive. The last one of a thread
//!   is remembered, so that CuPy's stream may live until its thread uses another one.
//!
//! # Cost
//! Beside the engine's buffer: one call into CuPy for the number of the current stream, two objects of Python's. No call of
//! the driver is made for a block that the resource has at hand; where the process sees several devices and what is current is
//! asked for, one (`cuCtxGetCurrent`).
//!
//! CuPy asks the CUDA runtime for the current device at each allocation. On a thread without a current context the runtime has
//! to find that out each time, with calls of the driver that fail. CuPy's own pool never sees that, since its `cudaMalloc`
//! makes the primary context current; tenure leaves a thread's context as it found it, so the first allocation of each thread
//! does here what `cudaMalloc` would have done ([`Setup::settle`]).

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_int, c_void};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::{PyImportError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyCapsule, PyCapsuleMethods, PyDict, PyTuple, PyType};
use tenure_abi::*;

use crate::buffer::{self, DeviceBuffer, Owned};
use crate::current;
use crate::errors::check;
use crate::gil;
use crate::observe;
use crate::resource::{self, DeviceMemoryResource};
use crate::stream::{self, DEFAULT, Stream};
use crate::table::api;

/// CuPy's function that gives the number of the calling thread's current stream, and raises for -1.
type CurrentStream = unsafe extern "C" fn() -> isize;

/// Where CuPy's attributes lie in a memory object.
#[derive(Clone, Copy)]
struct Places {
    ptr: usize,
    size: usize,
    device: usize,
}

/// Where they lie in a `MemoryPointer`, and what makes one.
struct PointerPlaces {
    memory: usize,
    ptr: usize,
    device: usize,
    new: ffi::newfunc,
    /// No arguments.
    none: Py<PyTuple>,
}

impl PointerPlaces {
    /// A pointer to nothing.
    fn fresh<'py>(&self, class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the class's own function, called as `__new__` without arguments.
        unsafe {
            let object = (self.new)(class.as_type_ptr(), self.none.as_ptr(), std::ptr::null_mut());
            Bound::from_owned_ptr_or_err(class.py(), object)
        }
    }
}

/// What is needed of CuPy, looked up once.
struct Setup {
    /// Our subclass of `cupy.cuda.memory.BaseMemory`.
    memory: Py<PyType>,
    /// Where the buffer's handle lies in it.
    handle: usize,
    places: Option<Places>,
    pointer: Py<PyType>,
    pointer_places: Option<PointerPlaces>,
    stream: CurrentStream,
    stream_object: Py<PyAny>,
    /// `cupy.cuda.Stream`, whose objects end their stream with themselves.
    stream_class: Py<PyAny>,
    out_of_memory: Py<PyAny>,
    /// CuPy's number in reports.
    library: u32,
    /// Memory is the simulated device's, of which CuPy knows no stream: the default one is meant.
    simulated: bool,
}

static SETUP: PyOnceLock<Setup> = PyOnceLock::new();
/// Where the buffer's handle lies in a memory object; set before there is one.
static HANDLE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The last stream of CuPy's own that this thread allocated on.
    static LAST: RefCell<Option<Rc<Stream>>> = const { RefCell::new(None) };
    /// Whether this thread has a context that is current, as far as it was looked at.
    static SETTLED: Cell<bool> = const { Cell::new(false) };
}

/// The handle's place in a memory object.
///
/// # Safety
/// `object` is an instance of the class of [`memory_class`], whose handle lies at `at`.
unsafe fn handle_of(object: *mut ffi::PyObject, at: usize) -> *mut tenure_buffer {
    // SAFETY: as the caller says; the place is inside the object and aligned for the handle.
    unsafe { object.cast::<u8>().add(at).cast() }
}

/// Ends a memory object, and its block.
///
/// # Safety
/// Called by the interpreter with an object of the class whose references are gone.
unsafe extern "C" fn end(object: *mut ffi::PyObject) {
    // SAFETY: as above; the type outlives its object, whose reference to it is given back last.
    unsafe {
        let class = ffi::Py_TYPE(object);
        let buffer = handle_of(object, HANDLE.load(Ordering::Relaxed)).read();
        if buffer != 0 {
            drop(Owned::new(buffer));
        }
        let free = ffi::PyType_GetSlot(class, ffi::Py_tp_free);
        let free: ffi::freefunc = std::mem::transmute(free);
        free(object.cast());
        ffi::Py_DECREF(class.cast());
    }
}

const NAME: &CStr = c"tenure.allocators.cupy.Memory";

/// Makes the subclass of CuPy's `BaseMemory`: what it has, and a buffer of the engine's.
fn memory_class<'py>(base: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyType>, usize)> {
    let py = base.py();
    let bytes: usize = base.getattr("__basicsize__")?.extract()?;
    let flags: u64 = base.getattr("__flags__")?.extract()?;
    if flags & u64::from(u32::try_from(ffi::Py_TPFLAGS_HAVE_GC).unwrap_or(0)) != 0 {
        return Err(PyImportError::new_err(
            "this CuPy's BaseMemory is tracked by the garbage collector, which this tenure does not know; use an older CuPy, \
             or a newer tenure",
        ));
    }
    let handle = bytes.next_multiple_of(align_of::<tenure_buffer>());
    let mut slots = [
        ffi::PyType_Slot { slot: ffi::Py_tp_dealloc, pfunc: end as *mut c_void },
        ffi::PyType_Slot { slot: 0, pfunc: std::ptr::null_mut() },
    ];
    let mut spec = ffi::PyType_Spec {
        name: NAME.as_ptr(),
        basicsize: c_int::try_from(handle + size_of::<tenure_buffer>()).unwrap_or(0),
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION) as _,
        slots: slots.as_mut_ptr(),
    };
    let bases = PyTuple::new(py, [base])?;
    // SAFETY: the spec and its slots are valid during the call, and the name lives as long as the process.
    let class = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpecWithBases(&mut spec, bases.as_ptr()))? };
    HANDLE.store(handle, Ordering::Relaxed);
    let owner = py.import("builtins")?.getattr("property")?.call1((wrap_pyfunction!(_cupy_owner, py)?,))?;
    class.setattr("_owner", owner)?;
    Ok((class.cast_into::<PyType>()?, handle))
}

/// A memory object without a block.
fn blank<'py>(py: Python<'py>, class: &Py<PyType>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the class is a heap type without the garbage collector's header, and its objects are valid when all zeros.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_GenericAlloc(class.as_ptr().cast(), 0)) }
}

/// An object, as it is searched for values that it was given.
struct Searched<'a, 'py> {
    object: &'a Bound<'py, PyAny>,
    bytes: usize,
}

impl Searched<'_, '_> {
    fn word(&self, at: usize) -> usize {
        // SAFETY: inside the object, and aligned.
        unsafe { self.object.as_ptr().cast::<u8>().add(at).cast::<usize>().read() }
    }

    fn half(&self, at: usize) -> i32 {
        // SAFETY: as above.
        unsafe { self.object.as_ptr().cast::<u8>().add(at).cast::<i32>().read() }
    }

    /// The only place, behind the head that is the interpreter's, that `is` so.
    fn only(&self, step: usize, is: impl Fn(usize) -> bool) -> Option<usize> {
        let mut all =
            (size_of::<ffi::PyObject>()..self.bytes).step_by(step).filter(|at| at + step <= self.bytes && is(*at));
        all.next().filter(|_| all.next().is_none())
    }

    fn only_word(&self, value: usize) -> Option<usize> {
        self.only(size_of::<usize>(), |at| self.word(at) == value)
    }

    fn only_half(&self, value: i32) -> Option<usize> {
        self.only(size_of::<i32>(), |at| self.half(at) == value)
    }
}

/// Two sets of values that nothing else has: address, size, device.
const SOUGHT: [(usize, usize, i32); 2] =
    [(0x1122_3344_5566_7788, 0x0102_0304_0506_0708, 0x5a5b_5c5d), (0x7fff_0123_4567_8900, 3, 0)];

/// A memory object with such values.
fn example<'py>(py: Python<'py>, class: &Py<PyType>, values: (usize, usize, i32)) -> PyResult<Bound<'py, PyAny>> {
    let object = blank(py, class)?;
    object.setattr("ptr", values.0)?;
    object.setattr("size", values.1)?;
    object.setattr("device_id", values.2)?;
    Ok(object)
}

/// Looks for the places of CuPy's attributes: where two sets of values are found, each at one place, these are they.
fn places(py: Python<'_>, class: &Py<PyType>, bytes: usize) -> PyResult<Option<Places>> {
    let [(ptr, size, device), again] = SOUGHT;
    let object = example(py, class, SOUGHT[0])?;
    let first = Searched { object: &object, bytes };
    let (Some(ptr), Some(size), Some(device)) = (first.only_word(ptr), first.only_word(size), first.only_half(device))
    else {
        return Ok(None);
    };
    let object = example(py, class, again)?;
    let second = Searched { object: &object, bytes };
    let same = second.word(ptr) == again.0 && second.word(size) == again.1 && second.half(device) == again.2;
    Ok(same.then_some(Places { ptr, size, device }))
}

/// The same for `MemoryPointer`, which has the memory object itself, the address and the device; made without its `__init__`
/// it has `None` in the first one's place.
fn pointer_places(pointer: &Bound<'_, PyType>, memory: &Py<PyType>) -> PyResult<Option<PointerPlaces>> {
    let py = pointer.py();
    let bytes: usize = pointer.getattr("__basicsize__")?.extract()?;
    let mut found = None;
    for values in SOUGHT {
        let memory = example(py, memory, values)?;
        let object = pointer.call1((&memory, 0))?;
        let searched = Searched { object: &object, bytes };
        match found {
            None => {
                let here = (
                    searched.only_word(memory.as_ptr() as usize),
                    searched.only_word(values.0),
                    searched.only_half(values.2),
                );
                let (Some(memory), Some(ptr), Some(device)) = here else { return Ok(None) };
                found = Some((memory, ptr, device));
            }
            Some((at, ptr, device)) => {
                if searched.word(at) != memory.as_ptr() as usize
                    || searched.word(ptr) != values.0
                    || searched.half(device) != values.2
                {
                    return Ok(None);
                }
            }
        }
    }
    let Some((memory, ptr, device)) = found else { return Ok(None) };
    // SAFETY: a slot of a class, which is a function of this signature.
    let new: Option<ffi::newfunc> =
        unsafe { std::mem::transmute(ffi::PyType_GetSlot(pointer.as_type_ptr(), ffi::Py_tp_new)) };
    let Some(new) = new else { return Ok(None) };
    let places = PointerPlaces { memory, ptr, device, new, none: PyTuple::empty(py).unbind() };
    let fresh = places.fresh(pointer)?;
    let empty = Searched { object: &fresh, bytes };
    Ok((empty.word(memory) == py.None().as_ptr() as usize).then_some(places))
}

impl Setup {
    /// Imports CuPy.
    ///
    /// # Errors
    /// `ImportError` that names the package, or what this CuPy lacks.
    fn get(py: Python<'_>) -> PyResult<&Self> {
        SETUP.get_or_try_init(py, || {
            let cupy = py.import("tenure.allocators._libraries")?.getattr("cupy")?.call0()?;
            let memory = py.import("cupy.cuda.memory")?;
            let streams = py.import("cupy.cuda.stream")?;
            let (class, handle) = memory_class(&memory.getattr("BaseMemory")?)?;
            let class = class.unbind();
            let functions = streams.getattr("__pyx_capi__")?.get_item("get_current_stream_ptr")?;
            let capsule = functions.cast_into::<PyCapsule>()?;
            let address = capsule.pointer_checked(Some(c"intptr_t (void)"))?;
            let mut simulated = 0;
            // SAFETY: `simulated` is valid for writing.
            check(py, unsafe { (api().sim_active)(&mut simulated) })?;
            let pointer = memory.getattr("MemoryPointer")?.cast_into::<PyType>()?;
            Ok(Self {
                library: observe::library_number(c"cupy"),
                simulated: simulated != 0,
                places: places(py, &class, handle)?,
                pointer_places: pointer_places(&pointer, &class)?,
                memory: class,
                handle,
                pointer: pointer.unbind(),
                // SAFETY: the capsule's name is the signature of its function.
                stream: unsafe { std::mem::transmute::<*mut c_void, CurrentStream>(address.as_ptr()) },
                stream_object: streams.getattr("get_current_stream")?.unbind(),
                stream_class: cupy.getattr("cuda")?.getattr("Stream")?.unbind(),
                out_of_memory: memory.getattr("OutOfMemoryError")?.unbind(),
            })
        })
    }

    /// The current stream of the calling thread, as a call carries it while the second is held.
    fn current_stream(&self, py: Python<'_>) -> PyResult<(tenure_stream, Option<Rc<Stream>>)> {
        if self.simulated {
            return Ok((DEFAULT, None));
        }
        // SAFETY: this thread has the interpreter lock, which the function needs.
        let number = unsafe { (self.stream)() };
        if number == -1
            && let Some(raised) = PyErr::take(py)
        {
            return Err(raised);
        }
        if (0..=2).contains(&number) {
            return Ok((tenure_stream { raw: number as *mut c_void, ..DEFAULT }, None));
        }
        let known = LAST.with_borrow(|last| last.as_ref().filter(|s| s.carried().raw as isize == number).cloned());
        if let Some(stream) = known {
            return Ok((stream.carried(), Some(stream)));
        }
        let object = self.stream_object.bind(py).call0()?;
        let stream = Rc::new(Stream::from_any(&object)?);
        // Somebody else's stream may end while its wrapper lives: that one is asked for each time.
        let own = object.get_type().is(&self.stream_class)
            && object.getattr_opt("_foreign_stream_ref")?.is_none_or(|foreign| foreign.is_none());
        if own {
            // The old one is dropped when nothing is borrowed any more: its end may run Python code.
            let old = LAST.with_borrow_mut(|last| last.replace(stream.clone()));
            drop(old);
        }
        Ok((stream.carried(), Some(stream)))
    }

    /// Makes the primary context of the current device current on a thread that has none, as the CUDA runtime does when it
    /// allocates. Once for each thread.
    #[cold]
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        let backend = py.import("cupy_backends.cuda.api.driver")?;
        let none = backend.getattr("ctxGetCurrent")?.call0()?.extract::<isize>()? == 0;
        if none {
            let runtime = py.import("cupy_backends.cuda.api.runtime")?;
            runtime.getattr("setDevice")?.call1((runtime.getattr("getDevice")?.call0()?,))?;
        }
        SETTLED.set(true);
        Ok(())
    }

    /// Allocates on the current stream and gives a `MemoryPointer`.
    fn allocate<'py>(&self, py: Python<'py>, size: usize, resource: tenure_resource) -> PyResult<Bound<'py, PyAny>> {
        observe::follow(py)?;
        if !self.simulated && !SETTLED.get() {
            self.settle(py)?;
        }
        let (carried, _held) = self.current_stream(py)?;
        let memory = blank(py, &self.memory)?;
        let (mut ptr, mut device) = (0, -1);
        if size > 0 {
            let library = observe::Library::enter(self.library);
            let created = buffer::create(py, size, carried, resource);
            drop(library);
            let owned = created.map_err(|raised| self.translated(py, size, raised))?;
            let view = buffer::view_of(py, owned.handle())?;
            (ptr, device) = (view.ptr as usize, view.device);
            // SAFETY: the object is of the class, and nobody else has it yet. It owns the buffer from here on.
            unsafe { handle_of(memory.as_ptr(), self.handle).write(owned.handle()) };
            std::mem::forget(owned);
        }
        if device < 0 {
            // Memory of the host, or none: CuPy wants a device all the same.
            device = current::device(py)?;
        }
        match self.places {
            Some(at) => {
                let start = memory.as_ptr().cast::<u8>();
                // SAFETY: the places were found in an object of this class.
                unsafe {
                    start.add(at.ptr).cast::<usize>().write(ptr);
                    start.add(at.size).cast::<usize>().write(size);
                    start.add(at.device).cast::<i32>().write(device);
                }
            }
            None => {
                memory.setattr("ptr", ptr)?;
                memory.setattr("size", size)?;
                memory.setattr("device_id", device)?;
            }
        }
        let pointer = self.pointer.bind(py);
        let Some(at) = &self.pointer_places else { return pointer.call1((memory, 0)) };
        let pointer = at.fresh(pointer)?;
        let start = pointer.as_ptr().cast::<u8>();
        // SAFETY: the places were found in an object of this class, which holds a reference to what is in the first one.
        unsafe {
            start.add(at.ptr).cast::<usize>().write(ptr);
            start.add(at.device).cast::<i32>().write(device);
            let before = start.add(at.memory).cast::<*mut ffi::PyObject>().replace(memory.into_ptr());
            ffi::Py_XDECREF(before);
        }
        Ok(pointer)
    }

    /// CuPy's own exception for a lack of memory, with ours as its cause; anything else as it is.
    #[cold]
    fn translated(&self, py: Python<'_>, size: usize, raised: PyErr) -> PyErr {
        let build = || -> PyResult<Option<PyErr>> {
            let ours = py.import("tenure._errors")?.getattr("OutOfMemoryError")?;
            let value = raised.value(py);
            if !value.is_instance(&ours)? {
                return Ok(None);
            }
            let (live, limit) = (value.getattr("live")?, value.getattr("limit")?);
            let theirs = PyErr::from_value(self.out_of_memory.bind(py).call1((size, live, limit))?);
            theirs.set_cause(py, Some(raised.clone_ref(py)));
            Ok(Some(theirs))
        };
        match build() {
            Ok(None) => raised,
            Ok(Some(theirs)) => theirs,
            Err(other) => other,
        }
    }
}

fn bytes(size: &Bound<'_, PyAny>) -> PyResult<usize> {
    let size: isize = size.extract()?;
    usize::try_from(size).map_err(|_| PyValueError::new_err(format!("size is {size}; it must be 0 or more")))
}

/// The allocator of CuPy's that reads the table of current resources once for each allocation.
#[pyfunction]
fn tenure_cupy_allocator<'py>(py: Python<'py>, nbytes: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let size = bytes(nbytes)?;
    let setup = Setup::get(py)?;
    current::sync(py)?;
    setup.allocate(py, size, TENURE_RESOURCE_CURRENT)
}

/// The allocator of CuPy's that always uses one resource.
#[pyclass(frozen, module = "tenure._tenure")]
struct CupyAllocator {
    #[pyo3(get)]
    mr: Py<PyAny>,
}

#[pymethods]
impl CupyAllocator {
    #[new]
    fn new(mr: &Bound<'_, PyAny>) -> PyResult<Self> {
        resource::argument(mr)?;
        Ok(Self { mr: mr.clone().unbind() })
    }

    fn malloc<'py>(&self, py: Python<'py>, size: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let size = bytes(size)?;
        Setup::get(py)?.allocate(py, size, resource::argument(self.mr.bind(py))?)
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        visit.call(&self.mr)
    }
}

/// The buffer of a memory object that tenure made; 0 where it has no bytes.
fn buffer_of(memory: &Bound<'_, PyAny>) -> PyResult<tenure_buffer> {
    let setup = Setup::get(memory.py())?;
    if !memory.get_type().is(&setup.memory) {
        let kind = memory.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "this is no memory of tenure's but a {kind}: it was allocated before tenure's allocator was set, or by another one"
        )));
    }
    // SAFETY: an object of the class.
    Ok(unsafe { handle_of(memory.as_ptr(), setup.handle).read() })
}

/// The block as a buffer of tenure's, which keeps the memory object: what RMM's users find under this name.
#[pyfunction]
fn _cupy_owner<'py>(py: Python<'py>, memory: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let buffer = buffer_of(memory)?;
    let class = py.get_type::<DeviceBuffer>();
    if buffer == 0 {
        return class.call((), Some(&[("size", 0)].into_py_dict(py)?));
    }
    let view = buffer::view_of(py, buffer)?;
    let named = PyDict::new(py);
    named.set_item("stream", Stream::sharing(py, view.stream)?)?;
    named.set_item("owner", memory)?;
    named.set_item("device", view.device)?;
    class.call_method("adopt", (memory.getattr("ptr")?, memory.getattr("size")?), Some(&named))
}

/// The resource that made a memory object's block; `None` where it has no bytes.
#[pyfunction]
fn _cupy_mr<'py>(py: Python<'py>, memory: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let buffer = buffer_of(memory)?;
    if buffer == 0 {
        return Ok(None);
    }
    let mut out = TENURE_RESOURCE_NULL;
    // SAFETY: `out` is valid for writing; the object holds the buffer.
    check(py, unsafe { (api().buffer_resource)(buffer, &mut out) })?;
    DeviceMemoryResource::wrap(py, out).map(Some)
}

/// Notes that work on `stream` uses the block: it is not given to anybody before that work is over.
#[pyfunction]
fn _cupy_record_stream(py: Python<'_>, memory: &Bound<'_, PyAny>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
    let buffer = buffer_of(memory)?;
    let stream = stream::argument(Some(stream))?;
    if buffer == 0 {
        return Ok(());
    }
    let carried = stream.carried();
    // SAFETY: the handles are held by the arguments.
    let status = gil::detach(py, || unsafe { (api().buffer_record_stream)(buffer, carried) });
    check(py, status)
}

/// Whether the attributes of CuPy's memory objects and pointers are written in place (they are, with the CuPy of this tenure's time).
#[pyfunction]
fn _cupy_in_place(py: Python<'_>) -> PyResult<bool> {
    let setup = Setup::get(py)?;
    Ok(setup.places.is_some() && setup.pointer_places.is_some())
}

/// Adds the allocators.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CupyAllocator>()?;
    module.add_function(wrap_pyfunction!(tenure_cupy_allocator, module)?)?;
    module.add_function(wrap_pyfunction!(_cupy_owner, module)?)?;
    module.add_function(wrap_pyfunction!(_cupy_mr, module)?)?;
    module.add_function(wrap_pyfunction!(_cupy_record_stream, module)?)?;
    module.add_function(wrap_pyfunction!(_cupy_in_place, module)?)
}
