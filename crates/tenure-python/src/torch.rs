//! PyTorch's allocator: the functions that `torch.cuda.memory.CUDAPluggableAllocator` is made of.
//!
//! ```text
//!  torch.empty --> CUDAPluggableAllocator --> malloc(size, device, stream) --> buffer_create --> blocks of the device:
//!  ~Tensor     --> raw_deleter            --> free(ptr, size, device, stream) <-- buffer <------ address -> buffer
//!  Tensor.record_stream                   --> record_stream(ptr, stream) --> buffer_record_stream
//! ```
//!
//! PyTorch knows an address and the engine a buffer, so a table of each device's blocks lies between; it has the figures
//! that `torch.cuda.memory_stats` asks for too. A block is freed by its buffer: into the resource that made it.
//!
//! # Invariants
//! * A failure of `malloc` is a C++ exception, since PyTorch takes a null pointer for success: `c10::OutOfMemoryError` for a
//!   lack of memory, which PyTorch's Python turns into `torch.OutOfMemoryError`, and `std::runtime_error` for anything
//!   else. Both are thrown with the functions of PyTorch's own libraries and of the C++ runtime, found by their names when
//!   the allocator is made ([`torch_cxx`]). `segment_malloc`, for `torch.cuda.MemPool`, answers null, as
//!   that wants it.
//! * No table is locked while the engine is called, and the interpreter lock is never waited for: PyTorch calls with and
//!   without it, on threads that Python does not know, under locks of its own.
//! * PyTorch's streams live as long as the process, and are taken for that; a stream that somebody else made and PyTorch
//!   was told of (`torch.cuda.ExternalStream`) is carried as a bare value, which no later call uses.
//!
//! # Cost
//! Beside the engine's buffer: one lock of the device's table, a look-up in it, and a dozen additions.

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use tenure_abi::*;

use crate::by_address::ByAddress;
use crate::gil;
use crate::resource;
use crate::table::api;
use crate::torch_cxx;

/// Devices that can be told apart; PyTorch itself has no more.
const DEVICES: usize = 64;
/// What PyTorch takes for a small block, in bytes.
const SMALL: usize = 1 << 20;

/// A figure as PyTorch keeps it.
#[derive(Clone, Copy, Default)]
struct Figure {
    current: u64,
    peak: u64,
    allocated: u64,
    freed: u64,
}

impl Figure {
    fn add(&mut self, by: u64) {
        self.current += by;
        self.allocated += by;
        self.peak = self.peak.max(self.current);
    }

    fn sub(&mut self, by: u64) {
        self.current = self.current.saturating_sub(by);
        self.freed += by;
    }
}

/// All blocks, the small ones and the large ones.
#[derive(Clone, Copy, Default)]
struct Figures {
    all: Figure,
    small: Figure,
    large: Figure,
}

impl Figures {
    fn each(&mut self, bytes: usize, f: impl Fn(&mut Figure)) {
        f(&mut self.all);
        f(if bytes <= SMALL { &mut self.small } else { &mut self.large });
    }

    fn all(&mut self) -> [&mut Figure; 3] {
        [&mut self.all, &mut self.small, &mut self.large]
    }
}

#[derive(Clone, Copy)]
struct Block {
    buffer: tenure_buffer,
    bytes: usize,
    stream: usize,
    /// Whether the figures count it: a segment of a MemPool is PyTorch's to count.
    counted: bool,
}

#[derive(Default)]
struct Device {
    blocks: ByAddress<Block>,
    bytes: Figures,
    count: Figures,
    failures: u64,
}

static TABLES: [Mutex<Option<Device>>; DEVICES] = [const { Mutex::new(None) }; DEVICES];
/// The resource; 0 is what is current at each allocation.
static RESOURCE: AtomicU64 = AtomicU64::new(0);
/// Whether the process route ever allocated: whether PyTorch uses it.
static USED: AtomicBool = AtomicBool::new(false);
/// PyTorch's streams, as objects that name them for ever.
static STREAMS: RwLock<Option<ByAddress<u64>>> = RwLock::new(None);
/// Streams that PyTorch was told of, which may end.
static EXTERNAL: Mutex<Option<HashSet<usize>>> = Mutex::new(None);

thread_local! {
    /// The last stream of this thread: its value and its object.
    static LAST: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

fn table(device: c_int) -> MutexGuard<'static, Option<Device>> {
    let at = usize::try_from(device).unwrap_or(0).min(DEVICES - 1);
    TABLES[at].lock().unwrap_or_else(PoisonError::into_inner)
}

/// The table, or `None` in a forked child for which another thread's lock will never end. Nothing is freed there anyway.
fn table_if_whole(device: c_int) -> Option<MutexGuard<'static, Option<Device>>> {
    if gil::forks() == 0 {
        return Some(table(device));
    }
    let at = usize::try_from(device).unwrap_or(0).min(DEVICES - 1);
    match TABLES[at].try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// PyTorch's stream as a call carries it.
fn carried(raw: *mut c_void, device: c_int) -> tenure_stream {
    let value = raw as usize;
    if value <= 2 {
        return tenure_stream { raw, object: 0 };
    }
    let last = LAST.try_with(Cell::get).unwrap_or_default();
    if last.0 == value {
        return tenure_stream { raw, object: last.1 };
    }
    let known = STREAMS.read().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(|s| s.get(&value).copied());
    let object = match known {
        Some(object) => object,
        None => {
            if EXTERNAL.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|e| e.contains(&value)) {
                return tenure_stream { raw, object: 0 };
            }
            let mut out = tenure_stream { raw: null_mut(), object: 0 };
            // SAFETY: `out` is valid for writing; PyTorch's streams live as long as the process.
            if gil::without_lock(|| unsafe { (api().stream_immortal)(raw, device, &mut out) }) != TENURE_OK {
                return tenure_stream { raw, object: 0 };
            }
            let mut all = STREAMS.write().unwrap_or_else(PoisonError::into_inner);
            let kept = *all.get_or_insert_default().entry(value).or_insert(out.object);
            drop(all);
            if kept != out.object {
                // Another thread was first.
                // SAFETY: this reference is ours.
                gil::without_lock(|| unsafe { (api().stream_release)(out.object) });
            }
            kept
        }
    };
    let _ = LAST.try_with(|last| last.set((value, object)));
    tenure_stream { raw, object }
}

/// Makes a buffer on `stream`, of the chosen resource.
fn create(bytes: usize, device: c_int, carried: tenure_stream) -> Result<tenure_buffer, tenure_status> {
    loop {
        let chosen = RESOURCE.load(Ordering::Acquire);
        let mut held = TENURE_RESOURCE_NULL;
        let resource = if chosen != TENURE_RESOURCE_NULL {
            chosen
        } else if carried.object != 0 || carried.raw as usize <= 2 {
            TENURE_RESOURCE_CURRENT
        } else {
            // Whose stream that is, only the driver could say; PyTorch has said it.
            // SAFETY: `held` is valid for writing.
            match gil::without_lock(|| unsafe { (api().current_get)(device, &mut held) }) {
                TENURE_OK => held,
                status => return Err(status),
            }
        };
        let mut buffer: tenure_buffer = 0;
        let to = &raw mut buffer;
        // SAFETY: `buffer` is valid for writing, and the stream is alive during the call; a resource that is gone is refused.
        let mut status = unsafe { (api().buffer_try_create)(bytes, 0, carried, resource, to) };
        if status == TENURE_OK_COLLECT {
            gil::without_lock(gil::collect);
            status = TENURE_OK;
        }
        if status == TENURE_ERROR_WOULD_BLOCK {
            // SAFETY: as above.
            status = gil::without_lock(|| unsafe { (api().buffer_create)(bytes, 0, carried, resource, to) });
        }
        if held != TENURE_RESOURCE_NULL {
            release(held);
        }
        match status {
            TENURE_OK => return Ok(buffer),
            // Another resource was chosen meanwhile.
            TENURE_ERROR_BAD_HANDLE if chosen != RESOURCE.load(Ordering::Acquire) => {}
            status => return Err(status),
        }
    }
}

/// PyTorch's number in reports.
fn torch_number() -> u32 {
    static NUMBER: OnceLock<u32> = OnceLock::new();
    *NUMBER.get_or_init(|| crate::observe::library_number(c"torch"))
}

/// Makes a block and books it: its address, or the status of the failure.
fn make(size: isize, device: c_int, stream: *mut c_void, counted: bool) -> Result<*mut c_void, tenure_status> {
    let Some(bytes) = usize::try_from(size).ok().filter(|bytes| *bytes > 0) else { return Ok(null_mut()) };
    let carried = carried(stream, device);
    let library = crate::observe::Library::enter(torch_number());
    let created = create(bytes, device, carried);
    drop(library);
    let buffer = created.inspect_err(|status| {
        if counted && *status == TENURE_ERROR_OUT_OF_MEMORY {
            table(device).get_or_insert_default().failures += 1;
        }
    })?;
    // SAFETY: all fields are integers and pointers, for which zeros are values.
    let mut view: tenure_buffer_view = unsafe { std::mem::zeroed() };
    view.size = size_of::<tenure_buffer_view>();
    // SAFETY: `view` is valid and its size is set. A buffer that was just made has a view.
    unsafe { (api().buffer_view)(buffer, &mut view) };
    let mut guard = table(device);
    let table = guard.get_or_insert_default();
    table.blocks.insert(view.ptr as usize, Block { buffer, bytes, stream: stream as usize, counted });
    if counted {
        table.bytes.each(bytes, |figure| figure.add(bytes as u64));
        table.count.each(bytes, |figure| figure.add(1));
    }
    Ok(view.ptr)
}

fn release(resource: tenure_resource) {
    // SAFETY: this reference is ours and is given back once.
    gil::give_back(
        || unsafe { (api().resource_try_release)(resource) },
        || unsafe { (api().resource_release)(resource) },
    );
}

/// PyTorch's `alloc_fn` of the process route.
unsafe extern "C-unwind" fn malloc(size: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    if !USED.load(Ordering::Relaxed) {
        USED.store(true, Ordering::Relaxed);
    }
    match make(size, device, stream, true) {
        Ok(ptr) => ptr,
        Err(status) => torch_cxx::throw(status),
    }
}

/// PyTorch's `alloc_fn` of a MemPool, for which null is a failure.
unsafe extern "C" fn segment_malloc(size: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    make(size, device, stream, false).unwrap_or(null_mut())
}

/// PyTorch's `free_fn` of both.
unsafe extern "C" fn free(ptr: *mut c_void, _size: usize, device: c_int, _stream: *mut c_void) {
    if ptr.is_null() {
        return;
    }
    let block = {
        let Some(mut guard) = table_if_whole(device) else { return };
        let Some(table) = guard.as_mut() else { return };
        let block = table.blocks.remove(&(ptr as usize));
        if let Some(block) = block.filter(|block| block.counted) {
            table.bytes.each(block.bytes, |figure| figure.sub(block.bytes as u64));
            table.count.each(block.bytes, |figure| figure.sub(1));
        }
        block
    };
    if let Some(Block { buffer, .. }) = block {
        // SAFETY: the handle was in the table, so it is ours, and it is given back once.
        gil::give_back(|| unsafe { (api().buffer_try_destroy)(buffer) }, || unsafe { (api().buffer_destroy)(buffer) });
    }
}

/// PyTorch's `record_stream_fn`, which has no device: the block is looked for on all.
unsafe extern "C" fn record_stream(ptr: *mut c_void, stream: *mut c_void) {
    for device in 0..DEVICES as c_int {
        let found =
            table(device).as_ref().and_then(|table| table.blocks.get(&(ptr as usize)).map(|block| block.buffer));
        if let Some(buffer) = found {
            let carried = carried(stream, device);
            // SAFETY: PyTorch holds the block during the call, and the stream is alive.
            gil::without_lock(|| unsafe { (api().buffer_record_stream)(buffer, carried) });
            return;
        }
    }
}

/// PyTorch's `reset_fn`, behind `torch.cuda.empty_cache`: what is cached goes back to the driver.
unsafe extern "C" fn reset() {
    gil::without_lock(|| {
        let chosen = RESOURCE.load(Ordering::Acquire);
        if chosen != TENURE_RESOURCE_NULL {
            // SAFETY: the resource is held; the count of bytes is not asked for.
            unsafe { (api().resource_trim)(chosen, 0, null_mut()) };
            return;
        }
        for device in 0..DEVICES as c_int {
            if table(device).is_none() {
                continue;
            }
            let mut current = TENURE_RESOURCE_NULL;
            // SAFETY: `current` is valid for writing.
            if unsafe { (api().current_get)(device, &mut current) } == TENURE_OK {
                // SAFETY: as above; the reference is ours, and given back.
                unsafe {
                    (api().resource_trim)(current, 0, null_mut());
                    (api().resource_release)(current);
                }
            }
        }
    });
}

// ------------------------------------------------------------------ for Python

/// Looks up what throwing needs, in the library of PyTorch's with this name (`libc10.so`), and gives the addresses of the
/// functions: `malloc`, `free`, `record_stream`, `reset`, `segment_malloc`. `out_of_memory` says whether a lack of memory is
/// an exception of PyTorch's own.
#[pyfunction]
fn _torch_prepare<'py>(py: Python<'py>, library: &str) -> PyResult<Bound<'py, PyDict>> {
    let library = CString::new(library).map_err(|_| PyValueError::new_err("a name of a library has no zero byte"))?;
    let found = torch_cxx::prepare(&library).ok_or_else(|| {
        PyValueError::new_err(
            "there is no libstdc++ in this process, without which a failure cannot be told to PyTorch: import torch first",
        )
    })?;
    let out = PyDict::new(py);
    out.set_item("malloc", malloc as *const () as usize)?;
    out.set_item("free", free as *const () as usize)?;
    out.set_item("record_stream", record_stream as *const () as usize)?;
    out.set_item("reset", reset as *const () as usize)?;
    out.set_item("segment_malloc", segment_malloc as *const () as usize)?;
    out.set_item("out_of_memory", found.out_of_memory)?;
    Ok(out)
}

/// Chooses the resource of all allocations from now on; `None` is what is current at each.
#[pyfunction]
#[pyo3(signature = (mr))]
fn _torch_resource(mr: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let mut held = TENURE_RESOURCE_NULL;
    if let Some(mr) = mr {
        let handle = resource::argument(mr)?;
        // SAFETY: `held` is valid for writing.
        crate::errors::check(mr.py(), unsafe { (api().resource_retain)(handle, &mut held) })?;
    }
    // A thread that is about to use the old one is told that it is gone, and reads again.
    let old = RESOURCE.swap(held, Ordering::AcqRel);
    if old != TENURE_RESOURCE_NULL {
        release(old);
    }
    Ok(())
}

/// Says that a stream may end before the process does.
#[pyfunction]
fn _torch_external(stream: usize) {
    EXTERNAL.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(stream);
}

/// Whether PyTorch has allocated through the process route.
#[pyfunction]
fn _torch_used() -> bool {
    USED.load(Ordering::Relaxed)
}

fn figures<'py>(py: Python<'py>, of: &Figures) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    for (name, figure) in [("all", of.all), ("small_pool", of.small), ("large_pool", of.large)] {
        let one = PyDict::new(py);
        one.set_item("current", figure.current)?;
        one.set_item("peak", figure.peak)?;
        one.set_item("allocated", figure.allocated)?;
        one.set_item("freed", figure.freed)?;
        out.set_item(name, one)?;
    }
    Ok(out)
}

/// What could be allocated at once on a device, for cuDNN's benchmark mode: the driver's free memory and what the resource
/// has cached.
pub(crate) fn largest_free(device: c_int) -> usize {
    gil::without_lock(|| {
        // SAFETY: all fields are integers and pointers, for which zeros are values.
        let (mut about, mut info): (tenure_device_info, tenure_info) = unsafe { std::mem::zeroed() };
        (about.size, info.size) = (size_of::<tenure_device_info>(), size_of::<tenure_info>());
        let mut current = TENURE_RESOURCE_NULL;
        let chosen = RESOURCE.load(Ordering::Acquire);
        // SAFETY: the structures are valid and their sizes are set; the reference to the current resource is given back.
        unsafe {
            (api().device_info)(device, &mut about);
            if chosen != TENURE_RESOURCE_NULL {
                (api().resource_info)(chosen, &mut info);
            } else if (api().current_get)(device, &mut current) == TENURE_OK {
                (api().resource_info)(current, &mut info);
                (api().resource_release)(current);
            }
        }
        usize::try_from(about.free_bytes.max(info.largest_free_bytes)).unwrap_or(usize::MAX)
    })
}

/// Answers `cacheInfo` of PyTorch's current allocator, which must be the one of [`_torch_prepare`]'s functions, from now on:
/// cuDNN's benchmark mode asks for it. False where this PyTorch has it in another way.
#[pyfunction]
fn _torch_answer_cache_info(libraries: Vec<String>) -> bool {
    let libraries: Vec<CString> = libraries.into_iter().filter_map(|name| CString::new(name).ok()).collect();
    torch_cxx::answer_cache_info(&libraries)
}

/// The figures of a device: `bytes` and `count` with PyTorch's keys, and `failures`.
#[pyfunction]
fn _torch_figures(py: Python<'_>, device: c_int) -> PyResult<Bound<'_, PyDict>> {
    let (bytes, count, failures) = {
        let guard = table(device);
        guard.as_ref().map_or_else(Default::default, |device| (device.bytes, device.count, device.failures))
    };
    let out = PyDict::new(py);
    out.set_item("bytes", figures(py, &bytes)?)?;
    out.set_item("count", figures(py, &count)?)?;
    out.set_item("failures", failures)?;
    Ok(out)
}

/// Begins the peaks (`accumulated`: the totals) of a device again.
#[pyfunction]
fn _torch_reset_figures(device: c_int, accumulated: bool) {
    if let Some(device) = table(device).as_mut() {
        for figures in [&mut device.bytes, &mut device.count] {
            for figure in figures.all() {
                if accumulated {
                    (figure.allocated, figure.freed) = (0, 0);
                } else {
                    figure.peak = figure.current;
                }
            }
        }
        if accumulated {
            device.failures = 0;
        }
    }
}

/// The live blocks of a device: address, bytes, stream.
#[pyfunction]
fn _torch_blocks(py: Python<'_>, device: c_int) -> PyResult<Bound<'_, PyList>> {
    let blocks: Vec<(usize, usize, usize)> = {
        let guard = table(device);
        let all = guard.as_ref().map(|device| device.blocks.iter());
        all.into_iter().flatten().filter(|(_, b)| b.counted).map(|(at, b)| (*at, b.bytes, b.stream)).collect()
    };
    PyList::new(py, blocks)
}

/// Adds the functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_torch_prepare, module)?)?;
    module.add_function(wrap_pyfunction!(_torch_resource, module)?)?;
    module.add_function(wrap_pyfunction!(_torch_answer_cache_info, module)?)?;
    module.add_function(wrap_pyfunction!(_torch_external, module)?)?;
    module.add_function(wrap_pyfunction!(_torch_used, module)?)?;
    module.add_function(wrap_pyfunction!(_torch_figures, module)?)?;
    module.add_function(wrap_pyfunction!(_torch_reset_figures, module)?)?;
    module.add_function(wrap_pyfunction!(_torch_blocks, module)?)
}
