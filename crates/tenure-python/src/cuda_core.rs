//! cuda.core's allocator: the memory resource that `tenure.allocators.cuda_core.memory_resource` makes.
//!
//! ```text
//!  Device.allocate --size, stream--> allocate ---> buffer_try_create(size, stream, resource) ---> BLOCKS: address -> buffer
//!                                       |                                                           |
//!              cuda.core.Buffer <-------+ Buffer.from_handle(address, size, self, stream=stream)    |
//!  the Buffer's end --address, size, stream--> deallocate <-----------------------------------------+
//! ```
//!
//! cuda.core frees by an address, on any thread, with the stream that orders the free. The engine frees by a buffer, which
//! knows the resource that made it. So a table of the blocks lies between.
//!
//! # Invariants
//! * Nothing here names cuda.core before the first resource is made, which imports it ([`Setup`]).
//! * cuda.core's classes are used as their documentation has it: `MemoryResource` is subclassed, its two methods and four
//!   properties are overridden, `__cuda_stream__` says which stream is meant. One exception: a buffer is made by `Buffer._init`,
//!   which `Buffer.from_handle` calls, where it takes the same arguments, and by `from_handle` where not ([`maker`]).
//! * A block is freed by its buffer: into the resource that made it, whatever is current by then. What is no block of this
//!   resource, or has another size, is an error, and nothing happens.
//! * A stream other than the default ones is carried as an object that keeps cuda.core's stream alive ([`Setup::shared`]), also
//!   where the program closes its own. The last one of a thread is remembered, so that cuda.core's stream may live until its
//!   thread uses another one.
//! * `BLOCKS` is locked with the interpreter lock, and neither the engine nor Python is called meanwhile.
//!
//! # Cost
//! Beside the engine's buffer: one call into cuda.core for its buffer, one for the address of the stream at the end, and the table. No
//! frame of Python's, and no object of it but cuda.core's.

mod class;

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyTuple, PyType};
use tenure_abi::*;

use crate::buffer::{self, Owned};
use crate::by_address::ByAddress;
use crate::current;
use crate::errors::{call, check};
use crate::observe;
use crate::resource;
use crate::size;
use crate::stream::{self, DEFAULT, Stream};
use crate::table::api;
use crate::vectorcall::Vectorcall;

struct Block {
    buffer: tenure_buffer,
    bytes: usize,
    /// The address of the stream that it was allocated on.
    stream: usize,
    /// The resource, by its address: its buffers hold it.
    owner: usize,
}

/// A share of a stream's handle, on its way.
enum Share {
    Unwanted,
    Wanted,
    Here(Py<PyAny>),
}

static BLOCKS: Mutex<Option<ByAddress<Block>>> = Mutex::new(None);

fn blocks() -> MutexGuard<'static, Option<ByAddress<Block>>> {
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is needed of cuda.core, looked up once.
struct Setup {
    /// Our subclass of `cuda.core.MemoryResource`.
    class: Py<PyType>,
    /// `Buffer.from_handle`, or what that calls.
    buffer: Py<PyAny>,
    /// `("stream",)`.
    stream_name: Py<PyTuple>,
    stream_class: Py<PyAny>,
    /// `Stream.__cuda_stream__`, for an object of exactly this class.
    stream_address: Py<PyAny>,
    vectorcall: Vectorcall,
    /// cuda.core's number in reports.
    library: u32,
}

static SETUP: PyOnceLock<Setup> = PyOnceLock::new();

thread_local! {
    /// The last stream other than the default ones that this thread allocated on: the program's object and ours, which keeps
    /// it.
    static LAST: RefCell<Option<(*mut ffi::PyObject, Rc<Stream>)>> = const { RefCell::new(None) };
    /// A share of a stream's handle, where [`Setup::shared`] waits for it.
    static SHARE: RefCell<Share> = const { RefCell::new(Share::Unwanted) };
}

/// What makes a `Buffer` of an address, a size, a resource and `stream=`: `Buffer.from_handle`, which hands these on to
/// `Buffer._init`. Where that takes the same ones it is called itself, which saves an eighth of the whole.
fn maker<'py>(buffer: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let takes = |function: &Bound<'py, PyAny>| -> PyResult<bool> {
        let signature = buffer.py().import("inspect")?.getattr("signature")?.call1((function,))?;
        let names = signature.getattr("parameters")?.try_iter()?.map(|name| name?.extract());
        let names: Vec<String> = names.collect::<PyResult<_>>()?;
        Ok(names.starts_with(&["ptr", "size", "mr"].map(String::from)) && names.iter().any(|name| name == "stream"))
    };
    match buffer.getattr_opt("_init")? {
        Some(inner) if takes(&inner).unwrap_or(false) => Ok(inner),
        _ => buffer.getattr("from_handle"),
    }
}

impl Setup {
    /// Imports cuda.core.
    ///
    /// # Errors
    /// `ImportError` that names the package, or what this cuda.core lacks.
    #[inline]
    fn get(py: Python<'_>) -> PyResult<&Self> {
        SETUP.get_or_try_init(py, || {
            let need = py.import("tenure.allocators._libraries")?.getattr("need")?;
            let core = need.call1(("cuda.core",))?;
            let stream_class = core.getattr("Stream")?;
            Ok(Self {
                class: class::make(&core.getattr("MemoryResource")?)?.unbind(),
                buffer: maker(&core.getattr("Buffer")?)?.unbind(),
                stream_name: PyTuple::new(py, [intern!(py, "stream")])?.unbind(),
                stream_address: stream_class.getattr("__cuda_stream__")?.unbind(),
                stream_class: stream_class.unbind(),
                vectorcall: Vectorcall::find()?,
                library: observe::library_number(c"cuda.core"),
            })
        })
    }

    /// The address of a stream, as it is now: cuda.core raises for one that was closed.
    #[inline]
    fn address(&self, stream: &Bound<'_, PyAny>) -> PyResult<usize> {
        let py = stream.py();
        if !stream.get_type().is(&self.stream_class) {
            return stream::foreign_address(stream);
        }
        let answer = self.vectorcall.call(self.stream_address.bind(py), [stream], None)?;
        size::address(&*answer.cast::<PyTuple>()?.get_borrowed_item(1)?, "the stream's address")
    }

    /// An object of cuda.core's that keeps a stream alive for itself. What the program has does not: `close` of it may end the
    /// stream. A buffer of no bytes has a share of the handle, and at its end it hands an object with it to [`Self::deallocate`].
    ///
    /// # Errors
    /// This is no stream for a buffer of cuda.core's.
    #[cold]
    fn shared<'py>(&self, object: &Bound<'py, PyAny>, stream: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = stream.py();
        let nothing = 0_usize.into_pyobject(py)?.into_any();
        let names = self.stream_name.bind(py);
        SHARE.set(Share::Wanted);
        let buffer = self.vectorcall.call(self.buffer.bind(py), [&nothing, &nothing, object, stream], Some(names));
        let made = buffer.map(drop);
        let share = SHARE.replace(Share::Unwanted);
        made?;
        Ok(match share {
            Share::Here(share) => share.into_bound(py),
            Share::Unwanted | Share::Wanted => stream.clone(),
        })
    }

    /// A stream as a call carries it while the second is held.
    #[inline]
    fn order<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        stream: &Bound<'py, PyAny>,
    ) -> PyResult<(tenure_stream, Option<Rc<Stream>>)> {
        // The object of a stream may be closed, but never becomes another stream's; cuda.core refuses to make the buffer then.
        let same =
            LAST.with_borrow(|last| last.as_ref().filter(|(s, _)| *s == stream.as_ptr()).map(|(_, s)| s.clone()));
        if let Some(stream) = same {
            return Ok((stream.carried(), Some(stream)));
        }
        let address = self.address(stream)?;
        if address <= 2 {
            return Ok((tenure_stream { raw: address as *mut c_void, ..DEFAULT }, None));
        }
        let known = |(_, ours): &&(_, Rc<Stream>)| ours.carried().raw as usize == address;
        let known = LAST.with_borrow(|last| last.as_ref().filter(known).map(|(_, ours)| ours.clone()));
        if let Some(stream) = known {
            return Ok((stream.carried(), Some(stream)));
        }
        let owner = PyTuple::new(stream.py(), [&self.shared(object, stream)?, stream])?;
        let ours = Rc::new(Stream::wrap(address, -1, &owner)?);
        if stream.get_type().is(&self.stream_class) {
            // The old one is dropped when nothing is borrowed any more: its end may run Python code.
            let old = LAST.with_borrow_mut(|last| last.replace((stream.as_ptr(), ours.clone())));
            drop(old);
        }
        Ok((ours.carried(), Some(ours)))
    }

    /// A `Buffer` of the resource `object`, whose memory comes from `resource`.
    fn allocate<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        resource: tenure_resource,
        device: i32,
        size: &Bound<'py, PyAny>,
        stream: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = object.py();
        let bytes = size::bytes(size, "size")?;
        let (carried, _held) = self.order(object, stream)?;
        let (mut ptr, mut made) = (0, 0);
        if bytes > 0 {
            observe::follow(py)?;
            let mut resource = resource;
            let mut of_device = None;
            if resource == TENURE_RESOURCE_CURRENT {
                current::sync(py)?;
                if carried.object == 0 {
                    // A default stream is of the current device, which may be another one than this resource's.
                    resource = of_device.insert(current::of_device(py, device)?).handle();
                }
            }
            let library = observe::Library::enter(self.library);
            let created = buffer::create(py, bytes, carried, resource);
            drop(library);
            let owned = created?;
            ptr = buffer::view_of(py, owned.handle())?.ptr as usize;
            made = owned.handle();
            let block = Block { buffer: made, bytes, stream: carried.raw as usize, owner: object.as_ptr() as usize };
            blocks().get_or_insert_default().insert(ptr, block);
            std::mem::forget(owned);
        }
        let address = ptr.into_pyobject(py)?.into_any();
        // What the caller gave, unless it was text.
        let size =
            if size.is_exact_instance_of::<PyInt>() { size.clone() } else { bytes.into_pyobject(py)?.into_any() };
        let names = self.stream_name.bind(py);
        let buffer = self.vectorcall.call(self.buffer.bind(py), [&address, &size, object, stream], Some(names));
        if buffer.is_err() && made != 0 {
            // It may have been freed on the way, and its place taken by another one.
            let block = {
                let mut all = blocks();
                let all = all.get_or_insert_default();
                if all.get(&ptr).is_some_and(|block| block.buffer == made) { all.remove(&ptr) } else { None }
            };
            drop(block.map(|block| Owned::new(block.buffer)));
        }
        buffer
    }

    /// Frees a block of the resource with the address `object`.
    fn deallocate(
        &self,
        object: usize,
        ptr: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        stream: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = ptr.py();
        let (ptr, bytes) = (size::address(ptr, "ptr")?, size::bytes(size, "size")?);
        if ptr == 0 && bytes == 0 {
            SHARE.with_borrow_mut(|share| {
                if matches!(share, Share::Wanted) {
                    *share = Share::Here(stream.clone().unbind());
                }
            });
            return Ok(());
        }
        let given = self.address(stream)?;
        let mine = |block: &Block| block.owner == object && block.bytes == bytes;
        // In the order that it was allocated in, nothing more is to be said.
        let block = {
            let mut all = blocks();
            let all = all.get_or_insert_default();
            match all.entry(ptr) {
                Entry::Occupied(found) if mine(found.get()) && found.get().stream == given => Some(found.remove()),
                _ => None,
            }
        };
        if let Some(block) = block {
            drop(Owned::new(block.buffer));
            return Ok(());
        }
        let order = Stream::from_any(stream)?;
        let block = {
            let mut all = blocks();
            let all = all.get_or_insert_default();
            if all.get(&ptr).is_some_and(mine) { all.remove(&ptr) } else { None }
        };
        let Some(block) = block else {
            return Err(PyValueError::new_err(format!(
                "no block of {bytes} bytes of this resource begins at {ptr:#x}: it was freed already, or another made it"
            )));
        };
        let carried = order.carried();
        // SAFETY: the stream is held, and the buffer is ours.
        let closed = call(py, || unsafe { (api().buffer_close)(block.buffer, &carried) });
        if closed.is_err() {
            // Nothing happened: the block is as it was.
            blocks().get_or_insert_default().insert(ptr, block);
            return closed;
        }
        drop(Owned::new(block.buffer));
        Ok(())
    }
}

/// A resource of cuda.core's for a device: with `mr`, always of that resource; else of what is current there.
#[pyfunction]
fn _cuda_core_resource<'py>(py: Python<'py>, device: i32, mr: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let (mut resource, mut properties) = (TENURE_RESOURCE_CURRENT, 0);
    if !mr.is_none() {
        resource = resource::argument(mr)?;
        // SAFETY: `properties` is valid for writing; the resource is held by the argument.
        check(py, unsafe { (api().resource_properties)(resource, &mut properties) })?;
    }
    let setup = Setup::get(py)?;
    class::object(setup.class.bind(py), mr, resource, properties, device)
}

/// What reads `Device.memory_resource`: the one that is there, else the one that `fill` gives a device.
#[pyclass(frozen, module = "tenure._tenure")]
struct CudaCoreGetter {
    fill: Py<PyAny>,
}

#[pymethods]
impl CudaCoreGetter {
    #[new]
    fn new(fill: Py<PyAny>) -> Self {
        Self { fill }
    }

    fn get<'py>(&self, device: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = device.py();
        let there = device.getattr(intern!(py, "_memory_resource"))?;
        if there.is_none() { self.fill.bind(py).call1((device,)) } else { Ok(there) }
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        visit.call(&self.fill)
    }
}

/// Adds the resource.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CudaCoreGetter>()?;
    module.add_function(wrap_pyfunction!(_cuda_core_resource, module)?)
}
