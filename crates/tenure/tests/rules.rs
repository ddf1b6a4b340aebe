//! The nine rules of the ownership model, each as a Rust user meets it.

mod common;

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use common::{alone, second_device, simulated, skip_unless, violations};
use tenure::{
    Callbacks, DEFAULT_ALIGNMENT, Device, DeviceBuffer, DeviceScalar, DeviceVec, Error, Limiting, MisuseKind, Pool,
    Properties, Request, Resource, Result, Statistics, Stream, StreamRef, block_of, current, misuse, misuse_count,
    owner_of, sim,
};

fn pool() -> Pool {
    Pool::builder(&Device::current().unwrap()).build().unwrap()
}

fn alive(id: u64) -> bool {
    Resource::from_id(id).unwrap().is_some()
}

/// A resource over another one that counts, and that can be told to fail.
#[derive(Default)]
struct Probe {
    allocated: AtomicUsize,
    freed: AtomicUsize,
    fail: Mutex<Option<Box<dyn Fn() -> Error + Send>>>,
    fail_free: bool,
    dropped: Arc<AtomicUsize>,
}

impl Probe {
    fn told(dropped: &Arc<AtomicUsize>, fail_free: bool) -> Self {
        let mut probe = Self::default();
        probe.dropped = dropped.clone();
        probe.fail_free = fail_free;
        probe
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: the memory is the plain device resource's, unchanged.
unsafe impl Callbacks for Probe {
    fn kind(&self) -> &str {
        "probe"
    }

    fn properties(&self) -> Properties {
        Properties::DEVICE
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<*mut c_void> {
        if let Some(fail) = &*self.fail.lock().unwrap() {
            return Err(fail());
        }
        self.allocated.fetch_add(1, Ordering::SeqCst);
        tenure::cuda()?.allocate_aligned(request.bytes, request.alignment, stream)
    }

    unsafe fn deallocate(&self, ptr: *mut c_void, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.freed.fetch_add(1, Ordering::SeqCst);
        // SAFETY: as the caller promises.
        unsafe { tenure::cuda()?.deallocate(ptr, request.bytes, request.alignment, stream)? };
        if self.fail_free { Err(Error::callback("the free failed on purpose")) } else { Ok(()) }
    }
}

/// A current resource that nobody must ask.
fn raising() -> Resource {
    let probe = Probe::default();
    *probe.fail.lock().unwrap() = Some(Box::new(|| Error::callback("the current resource was asked")));
    Resource::from_callbacks(probe).unwrap()
}

// ---------------------------------------------------------------------------------------------------- rule 1

#[test]
fn a_resource_lives_while_a_buffer_of_it_lives() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let pool = pool();
    let id = pool.id();
    let buffer = DeviceBuffer::new_in(1 << 20, &stream, &pool).unwrap();
    let empty = DeviceBuffer::new_in(0, &stream, &pool).unwrap();
    drop(pool);
    assert!(alive(id));
    drop(buffer);
    assert!(alive(id), "a buffer of no bytes counts as well");
    assert_eq!(empty.resource().unwrap().unwrap().id(), id);
    drop(empty);
    assert!(!alive(id));
}

#[test]
fn a_resource_lives_while_a_raw_allocation_of_it_lives() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let pool = pool();
    let id = pool.id();
    let ptr = pool.allocate(4096, &stream).unwrap();
    drop(pool);
    let owner = owner_of(ptr).unwrap().expect("the allocation keeps it");
    assert_eq!(owner.id(), id);
    // SAFETY: nothing uses the block.
    unsafe { owner.deallocate(ptr, 4096, DEFAULT_ALIGNMENT, &stream).unwrap() };
    drop(owner);
    assert!(!alive(id));
}

#[test]
fn adaptors_scopes_and_the_table_keep_a_resource() {
    let _alone = alone();
    let pool = pool();
    let id = pool.id();
    let limit = Limiting::new(&pool, 1 << 20).unwrap();
    let statistics = Statistics::new(&limit).unwrap();
    drop((pool, limit));
    let up = statistics.upstream().unwrap().unwrap();
    assert_eq!((up.kind().as_str(), up.upstream().unwrap().unwrap().id()), ("limiting", id));
    drop(up);
    let previous = current::set(&statistics).unwrap();
    let statistics_id = statistics.id();
    drop(statistics);
    assert!(alive(id) && alive(statistics_id));
    drop(current::set(&previous).unwrap());
    assert!(!alive(id) && !alive(statistics_id));
}

#[test]
fn the_last_one_out_drops_the_callbacks_once() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let dropped = Arc::new(AtomicUsize::new(0));
    let resource = Resource::from_callbacks(Probe::told(&dropped, false)).unwrap();
    let buffer = DeviceBuffer::new_in(100, &stream, &resource).unwrap();
    let copy = resource.clone();
    drop(resource);
    drop(copy);
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    thread::spawn(move || drop(buffer)).join().unwrap();
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

// ---------------------------------------------------------------------------------------------------- rule 2

#[test]
fn a_wrong_free_is_an_error_and_nothing_happens() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let (home, other) = (pool(), pool());
    // An alignment is compared with the address: behind this block it is no large one by chance.
    let _spacer = DeviceBuffer::new_in(256, &stream, &home).unwrap();
    let ptr = home.allocate(1000, &stream).unwrap();
    let (before, misused) = (home.info().unwrap(), misuse_count().unwrap());
    let inside = ptr.wrapping_byte_add(256);
    let wrong = |resource: &Resource, ptr: *mut c_void, bytes, alignment| {
        // SAFETY: nothing uses the block, and every one of these is refused.
        match unsafe { resource.deallocate(ptr, bytes, alignment, &stream) } {
            Err(Error::Ownership(error)) => error,
            other => panic!("not refused: {other:?}"),
        }
    };

    let error = wrong(&other, ptr, 1000, 256);
    assert_eq!((error.ptr, error.bytes, error.asked), (ptr.addr() as u64, 1000, other.id()));
    assert!(matches!(error.kind, Some(MisuseKind::WrongResource | MisuseKind::UnknownPointer)), "{error:?}");
    assert_eq!(wrong(&home, ptr, 100_000, 256).kind, Some(MisuseKind::WrongSize));
    assert_eq!(wrong(&home, ptr, 1000, 2 << 20).kind, Some(MisuseKind::WrongAlignment));
    let error = wrong(&home, inside, 744, 256);
    assert!(matches!(error.kind, Some(MisuseKind::InteriorPointer | MisuseKind::UnknownPointer)), "{error:?}");
    assert_eq!(home.info().unwrap(), before);
    assert!(home.owns(ptr).unwrap() && !other.owns(ptr).unwrap());

    // SAFETY: nothing uses the block.
    unsafe { home.deallocate(ptr, 1000, 256, &stream).unwrap() };
    let error = wrong(&home, ptr, 1000, 256);
    assert!(matches!(error.kind, Some(MisuseKind::DoubleFree | MisuseKind::UnknownPointer)), "{error:?}");
    assert!(!error.message.is_empty());
    assert_eq!(misuse_count().unwrap(), misused, "a free that returned its error is not counted");
}

#[test]
fn a_destructor_reports_to_the_handler() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let pool = pool();
    let lines = Arc::new(Mutex::new(Vec::new()));
    misuse::set_handler({
        let lines = lines.clone();
        move |line| lines.lock().unwrap().push(line.to_owned())
    })
    .unwrap();
    let before = misuse_count().unwrap();
    let buffer = DeviceBuffer::new_in(512, &stream, &pool).unwrap();
    // SAFETY: nothing uses the block; that the buffer still names it is what this test is about.
    unsafe { pool.deallocate(buffer.ptr(), 512, 256, &stream).unwrap() };
    drop(buffer);
    misuse::reset_handler().unwrap();
    assert_eq!(misuse_count().unwrap(), before + 1);
    let lines = lines.lock().unwrap();
    assert_eq!(lines.len(), 1, "{lines:?}");
}

// ---------------------------------------------------------------------------------------------------- rule 3

#[test]
fn a_buffer_crosses_a_border_with_its_provenance() {
    let _alone = alone();
    let device = second_device().unwrap_or(Device::current().unwrap());
    let stream = Stream::create_on(&device, true).unwrap();
    let raw_stream = stream.raw();
    let pool = Pool::builder(&device).build().unwrap();
    let handle = DeviceBuffer::new_in(300, &stream, &pool).unwrap().into_handle();
    let id = pool.id();
    drop((pool, stream));
    // SAFETY: the handle was given out one line above.
    let buffer = unsafe { DeviceBuffer::from_handle(handle) }.unwrap();
    assert_eq!(buffer.len(), 300);
    assert_eq!(buffer.device(), Some(device));
    assert_eq!(buffer.resource().unwrap().unwrap().id(), id);
    assert_eq!(buffer.stream().unwrap().raw(), raw_stream);
}

#[test]
fn adopting_names_the_resource_and_is_checked() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let (home, other) = (pool(), pool());
    let ptr = home.allocate(640, &stream).unwrap();
    // SAFETY: refused.
    let error = unsafe { DeviceBuffer::adopt(ptr, 640, 256, &stream, &other) }.unwrap_err();
    assert!(matches!(error, Error::Ownership(_)), "{error:?}");
    // SAFETY: refused.
    let error = unsafe { DeviceBuffer::adopt(ptr, 1 << 20, 256, &stream, &home) }.unwrap_err();
    assert!(matches!(error, Error::Ownership(_)), "{error:?}");
    // SAFETY: the block is home's, and nobody else frees it.
    let buffer = unsafe { DeviceBuffer::adopt(ptr, 640, 256, &stream, &home) }.unwrap();
    assert_eq!(home.info().unwrap().live_count, 1);

    let detached = buffer.detach().unwrap();
    assert_eq!((detached.ptr, detached.bytes, &detached.resource), (ptr, 640, home.resource()));
    assert_eq!(detached.stream.as_ref(), Some(&stream));
    assert_eq!(home.info().unwrap().live_count, 1, "it stays counted");
    let id = home.id();
    drop(home);
    // SAFETY: as before.
    let again = unsafe {
        DeviceBuffer::adopt(detached.ptr, detached.capacity, detached.alignment, &stream, &detached.resource)
    };
    drop(detached.resource);
    assert!(alive(id));
    drop(again.unwrap());
    assert!(!alive(id));
}

#[test]
fn foreign_memory_is_adopted_with_an_owner_or_a_function() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let mut memory = vec![7u8; 64].into_boxed_slice();
    let ptr: *mut c_void = memory.as_mut_ptr().cast();
    let owner = Arc::new(memory);
    // SAFETY: the owner keeps the memory, which nobody else uses.
    let buffer = unsafe { DeviceBuffer::adopt_with_owner(ptr, 64, None, &stream, owner.clone()) }.unwrap();
    assert_eq!((buffer.ptr(), buffer.len()), (ptr, 64));
    assert!(buffer.resource().unwrap().is_none());
    let (buffer, error) = buffer.detach().unwrap_err();
    assert!(matches!(error, Error::Unsupported(_) | Error::Invalid(_)), "{error:?}");
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(buffer);
    assert_eq!(Arc::strong_count(&owner), 1);

    let calls = Arc::new(Mutex::new(Vec::new()));
    // SAFETY: the owner above still keeps the memory.
    let buffer = unsafe {
        DeviceBuffer::adopt_with_free(ptr, 64, None, &stream, {
            let calls = calls.clone();
            move |ptr, bytes, _| calls.lock().unwrap().push((ptr.addr(), bytes))
        })
    }
    .unwrap();
    assert_eq!(Arc::strong_count(&calls), 2);
    drop(buffer);
    assert_eq!(*calls.lock().unwrap(), [(ptr.addr(), 64)]);
    assert_eq!(Arc::strong_count(&calls), 1, "the function was dropped after its call");
}

#[test]
fn owner_of_names_the_block_around_a_pointer() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let pool = pool();
    let buffer = DeviceBuffer::new_in(5000, &stream, &pool).unwrap();
    let block = block_of(buffer.ptr().wrapping_byte_add(4999)).unwrap().unwrap();
    assert_eq!((&block.resource, block.base), (pool.resource(), buffer.ptr()));
    assert!(block.bytes >= 5000);
    let ptr = buffer.ptr();
    drop(buffer);
    assert_ne!(owner_of(ptr).unwrap().as_ref(), Some(pool.resource()));
    assert_eq!(owner_of(std::ptr::without_provenance(16)).unwrap(), None);
}

// ---------------------------------------------------------------------------------------------------- rule 4

#[test]
fn the_table_gives_the_previous_and_harms_nothing() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let first = current::get().unwrap();
    assert_eq!(first, tenure::cuda().unwrap());
    let pool = pool();
    assert_eq!(current::set(&pool).unwrap(), first);
    let mut buffer = DeviceBuffer::new(3, &stream).unwrap();
    assert_eq!(current::reset().unwrap(), *pool);
    drop(pool);
    buffer.copy_from_host(b"abc", &stream).unwrap();
    let mut back = [0; 3];
    buffer.copy_to_host(&mut back, &stream).unwrap();
    assert_eq!(&back, b"abc");
    assert_eq!(current::get().unwrap(), first);
}

#[test]
fn each_device_has_its_entry() {
    let _alone = alone();
    let Some(one) = second_device() else {
        skip_unless(false, "two devices");
        return;
    };
    let zero = Device::new(0).unwrap();
    let pool = Pool::builder(&one).build().unwrap();
    let previous = current::set_for(&one, &pool).unwrap();
    assert_eq!(current::get_for(&one).unwrap(), *pool);
    assert_ne!(current::get_for(&zero).unwrap(), *pool);
    let buffer = DeviceBuffer::new(10, &Stream::create_on(&one, true).unwrap()).unwrap();
    assert_eq!(buffer.resource().unwrap().unwrap(), *pool, "the stream's device decides");
    current::set_for(&one, &previous).unwrap();
    let error = current::set_for(&zero, &pool).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "a pool of another device: {error:?}");
}

#[test]
fn scopes_end_on_every_way_out_and_in_any_order() {
    let _alone = alone();
    let (a, b) = (pool(), pool());
    let before = current::get().unwrap();
    let panicked = std::panic::catch_unwind(|| {
        let _scope = current::using(&a).unwrap();
        assert_eq!(current::get().unwrap(), *a);
        std::panic::resume_unwind(Box::new("out"));
    });
    assert!(panicked.is_err());
    assert_eq!(current::get().unwrap(), before);

    let outer = current::using(&a).unwrap();
    let inner = current::using(&b).unwrap();
    drop(outer);
    assert_eq!(current::get().unwrap(), *b);
    thread::spawn(|| assert_ne!(current::get().unwrap().kind(), "pool", "a scope is its thread's")).join().unwrap();
    drop(inner);
    assert_eq!(current::get().unwrap(), before);

    let scope = current::using(&a).unwrap();
    assert_eq!(current::set(&b).unwrap(), *a, "set inside a scope changes the scope");
    assert_eq!(current::get().unwrap(), *b);
    drop(scope);
    assert_eq!(current::get().unwrap(), before);
}

#[test]
fn listeners_hear_of_changes() {
    let _alone = alone();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = current::listen({
        let heard = heard.clone();
        move |device, resource, version| heard.lock().unwrap().push((device.ordinal(), resource.id(), version))
    })
    .unwrap();
    let pool = pool();
    let previous = current::set(&pool).unwrap();
    current::set(&previous).unwrap();
    drop(listener);
    current::set(&pool).unwrap();
    current::set(&previous).unwrap();
    let heard = heard.lock().unwrap();
    let what: Vec<_> = heard.iter().map(|&(device, id, _)| (device, id)).collect();
    assert_eq!(what, [(0, pool.id()), (0, previous.id())]);
    assert!(heard[0].2 < heard[1].2, "versions rise");
}

// ---------------------------------------------------------------------------------------------------- rule 5

#[test]
fn what_is_named_is_what_is_used() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let explicit = pool();
    let trap = raising();
    let _scope = current::using(&trap).unwrap();
    assert!(DeviceBuffer::new(10, &stream).is_err(), "the trap works");

    let on = |buffer: &DeviceBuffer| assert_eq!(buffer.resource().unwrap().unwrap(), *explicit);
    let mut buffer = DeviceBuffer::new_in(10, &stream, &explicit).unwrap();
    on(&buffer);
    buffer.resize(1 << 20, &stream).unwrap();
    on(&buffer);
    buffer.reserve(4 << 20, &stream).unwrap();
    buffer.shrink_to_fit(&stream).unwrap();
    on(&buffer);
    on(&buffer.copy_in(&stream, &explicit).unwrap());
    on(&DeviceBuffer::new_aligned_in(10, 1024, &stream, &explicit).unwrap());
    on(&DeviceBuffer::from_host_in(b"x", &stream, &explicit).unwrap());
    on(DeviceVec::<u32>::new_in(10, &stream, &explicit).unwrap().buffer());
    let mut vec = DeviceVec::from_host_in(&[1u32, 2], &stream, &explicit).unwrap();
    vec.resize(4000, &stream).unwrap();
    vec.reserve(80_000, &stream).unwrap();
    on(vec.buffer());
    on(vec.copy_in(&stream, &explicit).unwrap().buffer());
    assert_eq!(vec.to_host(&stream).unwrap()[..2], [1, 2]);
    let mut scalar = DeviceScalar::new_in(1.5f64, &stream, &explicit).unwrap();
    scalar.set(&2.5, &stream).unwrap();
    assert_eq!(scalar.get(&stream).unwrap(), 2.5);
    on(scalar.buffer());
}

// ---------------------------------------------------------------------------------------------------- rule 6

#[test]
fn a_buffer_is_freed_from_any_thread_after_its_stream_was_let_go() {
    let _alone = alone();
    let before = violations();
    let stream = Stream::create().unwrap();
    let pool = pool();
    let mut buffer = DeviceBuffer::new_in(1 << 16, &stream, &pool).unwrap();
    buffer.fill(9, &stream).unwrap();
    drop(stream);
    assert!(buffer.stream().is_some());
    thread::spawn(move || {
        if let Some(other) = second_device() {
            other.make_current().unwrap();
        }
        drop(buffer);
    })
    .join()
    .unwrap();
    assert_eq!(pool.info().unwrap().live_bytes, 0);
    assert_eq!(violations(), before);
}

/// The late write of `writer` must not land in memory that was handed on.
fn late_write_stays_away(declare: impl FnOnce(&mut DeviceBuffer, &Stream)) {
    let (home, writer) = (Stream::create().unwrap(), Stream::create().unwrap());
    const SIZE: usize = 1 << 20;
    let pool = Pool::builder(&Device::current().unwrap()).maximum_size(4 * SIZE as u64).build().unwrap();
    let mut buffer = DeviceBuffer::new_in(SIZE, &home, &pool).unwrap();
    writer.wait(&home).unwrap();
    sim::busy(&writer, 30).unwrap();
    declare(&mut buffer, &writer);
    buffer.fill(0x22, &writer).unwrap();
    drop(buffer);
    // All of the pool, so that the old block is among it.
    let mut next: Vec<_> = (0..4).map_while(|_| DeviceBuffer::new_in(SIZE, &home, &pool).ok()).collect();
    assert!(!next.is_empty());
    for buffer in &mut next {
        buffer.fill(0x11, &home).unwrap();
    }
    home.synchronize().unwrap();
    writer.synchronize().unwrap();
    for buffer in &next {
        let mut back = vec![0; SIZE];
        buffer.copy_to_host(&mut back, &home).unwrap();
        assert!(back.iter().all(|&byte| byte == 0x11), "a late write landed in memory that was handed on");
    }
}

#[test]
fn work_on_a_recorded_stream_is_waited_for() {
    let _alone = alone();
    late_write_stays_away(|buffer, writer| buffer.record_stream(writer).unwrap());
}

#[test]
fn a_changed_home_stream_is_the_one_of_the_free() {
    let _alone = alone();
    late_write_stays_away(|buffer, writer| buffer.set_stream(writer).unwrap());
}

#[test]
fn a_wrapped_stream_keeps_its_owner_until_no_buffer_names_it() {
    let _alone = alone();
    let pool = pool();
    let foreign = Stream::create().unwrap();
    let owner = Arc::new(foreign.clone());
    // SAFETY: the owner keeps the stream.
    let wrapped = unsafe { Stream::wrap(foreign.raw(), None, owner.clone()) }.unwrap();
    assert_eq!(wrapped, foreign);
    let buffer = DeviceBuffer::new_in(100, &wrapped, &pool).unwrap();
    drop(wrapped);
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(buffer);
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn a_raw_stream_is_not_touched_after_its_call() {
    let _alone = alone();
    let before = violations();
    let pool = pool();
    let stream = Stream::create().unwrap();
    // SAFETY: the stream is alive during the call.
    let buffer = DeviceBuffer::new_in(100, unsafe { StreamRef::from_raw(stream.raw()) }, &pool).unwrap();
    assert_eq!((buffer.stream(), buffer.raw_stream()), (None, stream.raw()));
    drop(stream);
    drop(buffer);
    assert_eq!(violations(), before);
    assert_eq!(pool.info().unwrap().live_bytes, 0);
}

// ---------------------------------------------------------------------------------------------------- rule 7

#[derive(Debug, PartialEq)]
struct Own(u32);

impl std::fmt::Display for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "own error {}", self.0)
    }
}

impl std::error::Error for Own {}

#[test]
fn an_error_comes_back_as_it_was_made() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let resource = Resource::from_callbacks(Probe::default()).unwrap();
    let stack = Statistics::new(&Limiting::new(&resource, 1 << 30).unwrap()).unwrap();
    let probe: &Probe = resource.callbacks().expect("the value is still there");

    *probe.fail.lock().unwrap() = Some(Box::new(|| Error::callback(Own(41))));
    let error = DeviceBuffer::new_in(100, &stream, &stack).unwrap_err();
    let Error::Callback(callback) = &error else { panic!("{error:?}") };
    let source = callback.source.as_ref().expect("the very error");
    assert_eq!(source.downcast_ref::<Own>(), Some(&Own(41)));
    assert_eq!(error.to_string(), "own error 41");

    *probe.fail.lock().unwrap() = Some(Box::new(|| Error::out_of_memory(100, "my arena")));
    let error = DeviceBuffer::new_in(100, &stream, &stack).unwrap_err();
    assert!(error.is_out_of_memory());
    assert!(error.to_string().contains("my arena"), "{error}");

    // One of tenure's own that is handed on keeps its fields.
    let small = Limiting::new(&tenure::cuda().unwrap(), 64).unwrap();
    *probe.fail.lock().unwrap() = Some(Box::new(move || small.allocate(100, &Stream::legacy_default()).unwrap_err()));
    let error = DeviceBuffer::new_in(100, &stream, &stack).unwrap_err();
    let Error::OutOfMemory(memory) = &error else { panic!("{error:?}") };
    assert_eq!((memory.requested, memory.limit), (100, 64));

    *probe.fail.lock().unwrap() = None;
    drop(DeviceBuffer::new_in(100, &stream, &stack).unwrap());
    assert_eq!(stack.counters().unwrap().total_count, 1, "what failed was not counted");
    assert_eq!(probe.freed.load(Ordering::SeqCst), 1);
}

#[test]
fn a_panic_inside_is_an_error_outside() {
    struct Panics;
    // SAFETY: it never returns memory.
    unsafe impl Callbacks for Panics {
        fn allocate(&self, _: &Request, _: StreamRef<'_>) -> Result<*mut c_void> {
            std::panic::resume_unwind(Box::new("at the worst moment"));
        }
        unsafe fn deallocate(&self, _: *mut c_void, _: &Request, _: StreamRef<'_>) -> Result<()> {
            Ok(())
        }
    }
    let _alone = alone();
    let resource = Resource::from_callbacks(Panics).unwrap();
    let error = DeviceBuffer::new_in(8, &Stream::create().unwrap(), &resource).unwrap_err();
    assert!(matches!(&error, Error::Callback(e) if e.message.contains("at the worst moment")), "{error:?}");
}

#[test]
fn a_failing_free_never_stops_the_free() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let dropped = Arc::new(AtomicUsize::new(0));
    let resource = Resource::from_callbacks(Probe::told(&dropped, true)).unwrap();
    drop(DeviceBuffer::new_in(8, &stream, &resource).unwrap());
    let probe: &Probe = resource.callbacks().unwrap();
    assert_eq!(probe.freed.load(Ordering::SeqCst), 1);
    assert_eq!(resource.info().unwrap().live_count, 0);
    drop(resource);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn callbacks_may_allocate_and_too_deep_is_an_error() {
    /// Allocates through the current resource, which may be itself.
    struct Current;
    // SAFETY: the memory is the current resource's.
    unsafe impl Callbacks for Current {
        fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<*mut c_void> {
            current::get()?.allocate_aligned(request.bytes, request.alignment, stream)
        }
        unsafe fn deallocate(&self, ptr: *mut c_void, request: &Request, stream: StreamRef<'_>) -> Result<()> {
            // SAFETY: as the caller promises.
            unsafe { current::get()?.deallocate(ptr, request.bytes, request.alignment, stream) }
        }
    }
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let resource = Resource::from_callbacks(Current).unwrap();
    drop(DeviceBuffer::new_in(8, &stream, &resource).unwrap());
    let _scope = current::using(&resource).unwrap();
    let error = DeviceBuffer::new(8, &stream).unwrap_err();
    assert!(!error.is_out_of_memory(), "{error}");
    assert_eq!(resource.info().unwrap().live_count, 0);
}

#[test]
fn another_value_is_not_mistaken_for_the_callbacks() {
    struct Other;
    // SAFETY: it never returns memory.
    unsafe impl Callbacks for Other {
        fn allocate(&self, _: &Request, _: StreamRef<'_>) -> Result<*mut c_void> {
            Err(Error::callback("no"))
        }
        unsafe fn deallocate(&self, _: *mut c_void, _: &Request, _: StreamRef<'_>) -> Result<()> {
            Ok(())
        }
    }
    let _alone = alone();
    let resource = Resource::from_callbacks(Other).unwrap();
    assert!(resource.callbacks::<Other>().is_some());
    assert!(resource.callbacks::<Probe>().is_none());
    assert!(pool().callbacks::<Probe>().is_none());
}

// ---------------------------------------------------------------------------------------------------- rule 9

#[test]
fn a_failed_growth_changes_nothing() {
    let _alone = alone();
    if skip_unless(simulated(), "the simulated device, whose calls can be made to fail") {
        return;
    }
    let stream = Stream::create().unwrap();
    let pool = pool();
    let mut buffer = DeviceBuffer::from_host_in(b"unchanged", &stream, &pool).unwrap();
    let (ptr, capacity, before) = (buffer.ptr(), buffer.capacity(), pool.info().unwrap());
    for code in [2, 999] {
        for call in ["cuMemCreate", "cuMemMap", "cuMemSetAccess"] {
            sim::fail_next(call, code, 0).unwrap();
            let result = buffer.resize(64 << 20, &stream);
            sim::fail_clear().unwrap();
            let error = result.unwrap_err();
            match code {
                2 => assert!(error.is_out_of_memory(), "{call}: {error:?}"),
                _ => assert!(matches!(&error, Error::Cuda(e) if e.code == 999 && e.call.contains(call)), "{error:?}"),
            }
            assert_eq!((buffer.ptr(), buffer.capacity(), buffer.len()), (ptr, capacity, 9));
            let after = pool.info().unwrap();
            assert_eq!((after.live_bytes, after.reserved_bytes), (before.live_bytes, before.reserved_bytes), "{call}");
        }
    }
    let mut back = [0; 9];
    buffer.copy_to_host(&mut back, &stream).unwrap();
    assert_eq!(&back, b"unchanged");
    buffer.resize(64 << 20, &stream).unwrap();
}

#[test]
fn a_limit_refuses_with_figures_and_keeps_its_counters() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let limit = Limiting::new(&pool(), 1 << 20).unwrap();
    let held = DeviceBuffer::new_in(1 << 19, &stream, &limit).unwrap();
    let before = limit.info().unwrap();
    let error = DeviceBuffer::new_in(1 << 20, &stream, &limit).unwrap_err();
    let Error::OutOfMemory(memory) = &error else { panic!("{error:?}") };
    assert_eq!((memory.requested, memory.limit), (1 << 20, 1 << 20));
    assert!(memory.resource.contains("limiting"), "{memory:?}");
    assert_eq!(limit.info().unwrap(), before);
    assert_eq!(limit.limit().unwrap(), 1 << 20);
    drop(held);
    drop(DeviceBuffer::new_in(1 << 20, &stream, &limit).unwrap());
}

#[test]
fn many_blocks_come_and_go_in_one_call() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let pool = pool();
    let sizes = [4096, 0, 100, 3 << 20];
    let mut blocks = pool.allocate_many(&sizes, &stream).unwrap();
    assert_eq!(pool.info().unwrap().live_count, 3);
    assert!(blocks[1].is_null() && !blocks[3].is_null());
    // SAFETY: nothing uses the blocks.
    unsafe {
        let short = pool.deallocate_many(&blocks, &sizes[1..], DEFAULT_ALIGNMENT, &stream);
        assert!(matches!(short, Err(Error::Invalid(_))), "{short:?}");
        assert_eq!(pool.info().unwrap().live_count, 3);
        let right = std::mem::replace(&mut blocks[2], std::ptr::without_provenance_mut(0x1000));
        let wrong = pool.deallocate_many(&blocks, &sizes, DEFAULT_ALIGNMENT, &stream).unwrap_err();
        assert!(matches!(wrong, Error::Ownership { .. }), "{wrong:?}");
        assert!(wrong.to_string().contains("block 2 of 4"), "{wrong}");
        assert_eq!(pool.info().unwrap().live_count, 1, "every other is freed");
        pool.deallocate_many(&[right], &[100], DEFAULT_ALIGNMENT, &stream).unwrap();
    }
    let limit = Limiting::new(pool.resource(), 1 << 20).unwrap();
    assert!(matches!(limit.allocate_many(&[600 << 10, 600 << 10], &stream), Err(Error::OutOfMemory { .. })));
    assert!(matches!(DeviceBuffer::many_in(&[600 << 10, 600 << 10], &stream, &limit), Err(Error::OutOfMemory { .. })));
    assert_eq!((limit.info().unwrap().live_bytes, pool.info().unwrap().live_count), (0, 0));
    drop(limit);

    let id = pool.id();
    let mut buffers = DeviceBuffer::many_in(&sizes, &stream, &pool).unwrap();
    drop(pool);
    assert_eq!(buffers.iter().map(DeviceBuffer::len).collect::<Vec<_>>(), sizes);
    buffers[3].copy_from_host(&[7; 3 << 20], &stream).unwrap();
    let last = buffers.swap_remove(1);
    drop(buffers);
    assert!(alive(id), "a buffer without bytes keeps its resource");
    drop(last);
    assert!(!alive(id));
}

#[test]
fn a_wait_by_other_means_is_noted_and_not_believed() {
    let _alone = alone();
    if skip_unless(simulated(), "the simulated device") {
        return;
    }
    let (a, b) = (Stream::create().unwrap(), Stream::create().unwrap());
    let pool = Pool::builder(&Device::current().unwrap()).maximum_size(12 << 20).build().unwrap();
    drop(DeviceBuffer::new_in(100, &b, &pool).unwrap());
    let buffer = DeviceBuffer::new_in(8 << 20, &a, &pool).unwrap();
    sim::busy(&a, 20).unwrap();
    drop(buffer);
    let proven = || pool.property("proven_bytes").unwrap();
    a.note_sync().unwrap();
    assert!(proven() < 8 << 20);
    while !a.is_done().unwrap() {
        thread::yield_now();
    }
    a.note_sync().unwrap();
    assert!(proven() >= 8 << 20);
    // Of the raw value too, which only the caller can carry.
    // SAFETY: the stream is alive.
    let raw = unsafe { StreamRef::from_raw(a.raw()) };
    raw.note_sync().unwrap();
}

#[test]
fn what_was_freed_on_a_stream_is_at_hand_for_one_that_waits_for_it() {
    let _alone = alone();
    if skip_unless(simulated(), "the simulated device") {
        return;
    }
    for by_note in [false, true] {
        let (a, b) = (Stream::create().unwrap(), Stream::create().unwrap());
        let pool = Pool::builder(&Device::current().unwrap()).build().unwrap();
        drop(DeviceBuffer::new_in(100, &b, &pool).unwrap());
        let buffer = DeviceBuffer::new_in(8 << 20, &a, &pool).unwrap();
        let ptr = buffer.ptr();
        sim::busy(&a, 20).unwrap();
        drop(buffer);
        if by_note {
            b.note_wait(&a).unwrap()
        } else {
            b.wait(&a).unwrap()
        }
        assert_eq!(DeviceBuffer::new_in(8 << 20, &b, &pool).unwrap().ptr(), ptr);
    }
}
