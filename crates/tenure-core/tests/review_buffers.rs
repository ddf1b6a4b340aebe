//! Buffers where devices, threads and streams do not line up: another device is current, the per-thread default stream is
//! another thread's, a stream is capturing, a device is lost.

#![allow(missing_docs)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tenure_core::buffer::{Buffer, Foreign};
use tenure_core::error::{Error, MisuseKind, Payload};
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::leaf::{AsyncOptions, AsyncPool, shared};
use tenure_core::resource::{Properties, Resource, registry};
use tenure_core::stream::{StreamHold, StreamObject};
use tenure_core::{device, misuse, ops};
use tenure_driver::sim::{self, Config};
use tenure_driver::sys::CU_STREAM_CAPTURE_MODE_GLOBAL;
use tenure_driver::{CaptureStatus, Driver, RawStream};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
const MIB: usize = 1 << 20;

fn alone() -> (MutexGuard<'static, ()>, &'static Driver) {
    let guard = ONE_AT_A_TIME.lock();
    let _ = sim::configure(Config { devices: 4, memory: 64 << 20 });
    let driver = tenure_driver::load::prefer_sim().expect("the simulated device");
    // Each test starts on device 0.
    current(driver, 0);
    (guard, driver)
}

fn current(driver: &'static Driver, device: i32) {
    let context = driver.device(device).unwrap().context().unwrap();
    // SAFETY: a primary context that is kept.
    unsafe { driver.set_current_context(context) }.unwrap();
}

fn pool(device: i32) -> Resource {
    // Chunks of plain memory, which the other devices can copy from.
    let options = PoolOptions { plain_chunks: true, ..PoolOptions::default() };
    Resource::new(Pool::new(shared::cuda().unwrap(), device, options).unwrap()).unwrap()
}

/// Memory of the host that every device can write; lost at the end.
fn host() -> u64 {
    shared::pinned().unwrap().allocate(4096, 256, default().as_carried()).unwrap()
}

fn object(device: i32) -> StreamHold {
    StreamHold::object(StreamObject::create(device, true).unwrap())
}

fn default() -> StreamHold {
    StreamHold::raw(RawStream::NULL)
}

/// Keeps a stream busy, and then writes `value` to `count` bytes at `ptr`.
fn late_fill(stream: &StreamHold, device: i32, ptr: u64, value: u8, count: usize) {
    let driver = device::driver().unwrap();
    let _current = driver.device(device).unwrap().enter().unwrap();
    sim::busy(stream.value().as_raw(), Duration::from_millis(60)).unwrap();
    // SAFETY: the callers keep the block until the work is done.
    unsafe { driver.fill_async(ptr, value, count, stream.value()) }.unwrap();
}

fn byte(ptr: u64) -> u8 {
    // SAFETY: memory of the simulated device is the host's, and the callers' blocks are live.
    unsafe { std::ptr::read_volatile(ptr as *const u8) }
}

#[test]
fn the_default_stream_of_another_thread_is_not_this_threads() {
    let (_guard, _) = alone();
    let pool = pool(0);
    let per_thread = || StreamHold::raw(RawStream::PER_THREAD);
    let made = Buffer::create(MIB, 256, per_thread(), pool.light()).unwrap();
    let ptr = made.ptr();
    late_fill(&per_thread(), 0, ptr, 1, MIB);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(made);
            let next = Buffer::create(MIB, 256, per_thread(), pool.light()).unwrap();
            // SAFETY: this buffer's memory.
            unsafe { ops::fill_async(next.ptr(), 2, MIB, per_thread().as_carried(), 0) }.unwrap();
            ops::synchronize(per_thread().as_carried(), 0).unwrap();
            ops::wait_device(0).unwrap();
            assert_eq!(byte(next.ptr()), 2, "the first owner's work came after the second owner's");
        });
    });
    // The same of a stream that was recorded, for a resource that needs to name a living one.
    let own =
        Resource::new(AsyncPool::new(AsyncOptions { device: Some(0), ..AsyncOptions::default() }).unwrap()).unwrap();
    let wrong = misuse::count();
    let mut made = Buffer::create(MIB, 256, object(0), own.light()).unwrap();
    made.record_stream(per_thread());
    let home = Buffer::create(MIB, 256, per_thread(), own.light()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || drop((made, home)));
    });
    assert_eq!((misuse::count(), own.body().info().live_count), (wrong, 0));
}

#[test]
fn host_memory_is_freed_in_the_order_of_the_device_that_was_current() {
    let (_guard, driver) = alone();
    current(driver, 1);
    let mut buffer = Buffer::create(4096, 256, default(), shared::system().unwrap().light()).unwrap();
    let host = host();
    let used = object(1);
    late_fill(&used, 1, host, 9, 4096);
    buffer.record_stream(used);
    current(driver, 0);
    drop(buffer);
    assert_eq!(byte(host), 9, "the free did not wait for the recorded stream");
}

#[test]
fn a_copy_to_another_device_comes_after_the_originals_default_stream() {
    let (_guard, _) = alone();
    let mut original = Buffer::create(4096, 256, default(), pool(0).light()).unwrap();
    late_fill(&default(), 0, original.ptr(), 7, 4096);
    let copy = original.copy(default(), pool(1).light()).unwrap();
    assert_eq!(copy.device(), 1);
    ops::synchronize(default().as_carried(), 1).unwrap();
    assert_eq!(byte(copy.ptr()), 7, "the copy ran before the work that it follows");
}

#[test]
fn the_original_outlives_a_copy_on_another_devices_default_stream() {
    let (_guard, driver) = alone();
    let (from, to) = (pool(0), pool(1));
    let mut original = Buffer::create(4096, 256, default(), from.light()).unwrap();
    late_fill(&default(), 0, original.ptr(), 7, 4096);
    ops::synchronize(default().as_carried(), 0).unwrap();
    {
        let _current = driver.device(1).unwrap().enter().unwrap();
        sim::busy(std::ptr::null_mut(), Duration::from_millis(60)).unwrap();
    }
    let copy = original.copy(default(), to.light()).unwrap();
    drop(original);
    let next = Buffer::create(4096, 256, default(), from.light()).unwrap();
    // SAFETY: this buffer's memory.
    unsafe { ops::fill_async(next.ptr(), 8, 4096, default().as_carried(), 0) }.unwrap();
    ops::wait_device(0).unwrap();
    ops::wait_device(1).unwrap();
    assert_eq!(byte(copy.ptr()), 7, "the copy read the next owner's bytes");
}

#[test]
fn a_buffer_stays_on_its_device_when_it_grows() {
    let (_guard, driver) = alone();
    current(driver, 1);
    let mut buffer = Buffer::create(4096, 256, default(), shared::cuda().unwrap().light()).unwrap();
    current(driver, 0);
    buffer.resize(100_000, default()).unwrap();
    let block = shared::cuda().unwrap().block(buffer.ptr()).unwrap();
    assert_eq!((buffer.device(), block.device), (1, 1));
    // On a stream of another device it moves there, and says so.
    buffer.resize(200_000, object(2)).unwrap();
    let block = shared::cuda().unwrap().block(buffer.ptr()).unwrap();
    assert_eq!((buffer.device(), block.device), (2, 2));
}

#[test]
fn a_default_stream_may_be_that_of_the_current_device() {
    let (_guard, driver) = alone();
    let pool = pool(0);
    let home = object(0);
    let mut buffer = Buffer::create(4096, 256, home.clone(), pool.light()).unwrap();
    let ptr = buffer.ptr();
    let host = host();
    // Work on the default stream of device 1, which is current when the use is declared.
    current(driver, 1);
    late_fill(&default(), 1, host, 3, 4096);
    buffer.record_stream(default());
    buffer.record_stream(default());
    current(driver, 0);
    drop(buffer);
    let next = Buffer::create(4096, 256, home.clone(), pool.light()).unwrap();
    assert_eq!(next.ptr(), ptr, "the block is ordered, not lost");
    ops::synchronize(home.as_carried(), 0).unwrap();
    assert_eq!(byte(host), 3, "the home did not wait for device 1");
}

#[test]
fn what_could_not_be_freed_is_not_adopted() {
    let (_guard, _) = alone();
    let own =
        Resource::new(AsyncPool::new(AsyncOptions { device: Some(0), ..AsyncOptions::default() }).unwrap()).unwrap();
    let stream = object(0);
    let ptr = own.allocate(1000, 256, stream.as_carried()).unwrap();
    // A raw value that may be dead when the buffer goes; a stream of another device; a size; an alignment.
    let raw = StreamHold::raw(stream.value());
    assert!(matches!(Buffer::adopt(ptr, 1000, 256, raw, own.light()), Err(Error::Invalid(_))));
    assert!(matches!(Buffer::adopt(ptr, 1000, 256, object(1), own.light()), Err(Error::Invalid(_))));
    let kind = |made: Result<Buffer, Error>| match made.err() {
        Some(Error::Misuse(misuse)) => misuse.kind,
        other => panic!("{other:?}"),
    };
    assert_eq!(kind(Buffer::adopt(ptr, 999, 256, stream.clone(), own.light())), MisuseKind::WrongSize);
    let large = (ptr & ptr.wrapping_neg()) as usize * 2;
    if large <= tenure_core::resource::MAX_ALIGNMENT {
        assert_eq!(kind(Buffer::adopt(ptr, 1000, large, stream.clone(), own.light())), MisuseKind::WrongAlignment);
    }
    let (wrong, references) = (misuse::count(), own.references());
    drop(Buffer::adopt(ptr, 1000, 256, stream.clone(), own.light()).unwrap());
    assert_eq!((misuse::count(), own.body().info().live_count), (wrong, 0));
    assert_eq!(own.references(), (references.0, references.1 - 1));
    // A pool takes sizes that it cannot tell apart.
    let pool = pool(0);
    let ptr = pool.allocate(1000, 256, stream.as_carried()).unwrap();
    assert_eq!(kind(Buffer::adopt(ptr, 1, 256, stream.clone(), pool.light())), MisuseKind::WrongSize);
    drop(Buffer::adopt(ptr, 1024, 256, stream, pool.light()).unwrap());
    assert_eq!((misuse::count(), pool.body().info().live_count), (wrong, 0));
}

#[test]
fn a_buffer_can_be_closed_with_a_raw_stream_that_the_caller_names() {
    let (_guard, _) = alone();
    let own =
        Resource::new(AsyncPool::new(AsyncOptions { device: Some(0), ..AsyncOptions::default() }).unwrap()).unwrap();
    let stream = object(0);
    let mut buffer = Buffer::create(1000, 256, stream.clone(), own.light()).unwrap();
    buffer.close(Some(StreamHold::raw(stream.value()))).unwrap();
    assert_eq!(own.body().info().live_count, 0);
}

#[test]
fn foreign_memory_goes_after_its_recorded_streams() {
    let (_guard, _) = alone();
    static FREED: AtomicUsize = AtomicUsize::new(usize::MAX);
    for with_free in [true, false] {
        let ptr = host();
        FREED.store(usize::MAX, Ordering::SeqCst);
        unsafe extern "C" fn released(data: *mut std::ffi::c_void) {
            FREED.store(byte(data as u64).into(), Ordering::SeqCst);
        }
        let foreign = Foreign {
            free: with_free.then(|| -> tenure_core::buffer::ForeignFree {
                Box::new(|ptr, _, stream| {
                    ops::synchronize(stream, 0).unwrap();
                    FREED.store(byte(ptr).into(), Ordering::SeqCst);
                })
            }),
            owner: (!with_free).then(|| Payload { kind: 0, data: ptr as *mut _, release: Some(released) }),
        };
        let properties = Properties { device_accessible: true, ..Properties::default() };
        let mut buffer = Buffer::adopt_foreign(ptr, 4096, 0, object(0), properties, foreign).unwrap();
        let used = object(0);
        late_fill(&used, 0, ptr, 5, 4096);
        buffer.record_stream(used.clone());
        drop(buffer);
        assert_eq!(
            FREED.load(Ordering::SeqCst),
            5,
            "freed (with a function: {with_free}) before the recorded work was done"
        );
    }
}

#[test]
fn a_lost_device_takes_no_free_along() {
    let (_guard, _) = alone();
    let (pool, home, used) = (pool(1), object(1), object(1));
    let wrong = misuse::count();
    let mut buffer = Buffer::create(4096, 256, home, pool.light()).unwrap();
    buffer.record_stream(used);
    sim::fault(1, 700).unwrap();
    drop(buffer);
    let live = pool.body().info().live_count;
    sim::fault(1, 0).unwrap();
    assert_eq!((misuse::count(), live), (wrong, 0));
}

#[test]
fn a_capture_is_neither_ended_nor_joined_by_a_free() {
    let (_guard, driver) = alone();
    let pool = pool(0);
    let (home, used) = (object(0), object(0));
    let mut buffer = Buffer::create(4096, 256, home.clone(), pool.light()).unwrap();
    buffer.record_stream(used.clone());
    let mut other = Buffer::create(4096, 256, used.clone(), pool.light()).unwrap();
    other.record_stream(home.clone());
    let mut third = Buffer::create(4096, 256, home.clone(), pool.light()).unwrap();
    driver.stream_begin_capture(used.value(), CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let status = |stream: &StreamHold| driver.stream_capture_status(stream.value()).unwrap();
    drop(buffer);
    drop(other);
    // Nor by work that would have to be ordered with it.
    assert!(third.resize(100_000, used.clone()).is_err());
    assert!(third.copy(used.clone(), pool.light()).is_err());
    assert_eq!((status(&home), status(&used)), (CaptureStatus::None, CaptureStatus::Active));
    let graph = driver.stream_end_capture(used.value()).unwrap();
    // SAFETY: ended just now, and nobody else has it.
    unsafe { driver.graph_destroy(graph) }.unwrap();
    assert_eq!(pool.body().info().live_count, 1);
    drop(third);
    let violations = sim::violation_texts();
    assert!(violations.is_empty(), "{violations:?}");
}

#[test]
fn a_stream_that_went_with_its_context_is_not_destroyed() {
    let (_guard, driver) = alone();
    let stream = StreamObject::create(3, true).unwrap();
    let handle = driver.device(3).unwrap().handle();
    // SAFETY: what cudaDeviceReset amounts to; this is the misbehaviour under test.
    unsafe { driver.primary_context_release(handle) }.unwrap();
    let before = sim::calls("cuStreamDestroy");
    drop(stream);
    assert_eq!(sim::calls("cuStreamDestroy"), before);
}

#[test]
fn a_thread_that_may_not_wait_ends_no_stream() {
    let (_guard, _) = alone();
    let buffer = Buffer::create(0, 256, object(0), pool(0).light()).unwrap();
    let before = sim::calls("cuStreamDestroy");
    let calls = sim::calls_all().values().sum::<u64>();
    registry::without_waiting(|| drop(buffer));
    assert_eq!(sim::calls_all().values().sum::<u64>(), calls, "a driver call was made");
    assert!(registry::has_deferred());
    registry::collect();
    assert_eq!(sim::calls("cuStreamDestroy"), before + 1);
}

#[test]
fn an_order_between_streams_makes_no_event_anew() {
    let (_guard, _) = alone();
    let (a, b) = (object(0), object(0));
    ops::order_after(a.as_carried(), b.as_carried(), 0).unwrap();
    let before = sim::calls("cuEventCreate");
    for _ in 0..10 {
        ops::order_after(a.as_carried(), b.as_carried(), 0).unwrap();
    }
    assert_eq!(sim::calls("cuEventCreate"), before);
}

#[test]
fn a_copy_between_pools_of_two_devices() {
    let _lock = sim::test_lock();
    let _driver = tenure_driver::load::prefer_sim().unwrap();
    let pool_of = |device| {
        let pool = tenure_core::pool::Pool::new(shared::cuda().unwrap(), device, Default::default()).unwrap();
        Resource::new(pool).unwrap()
    };
    let (here, there) = (pool_of(0), pool_of(1));
    let home = |device| StreamHold::object(StreamObject::create(device, true).unwrap());
    let (near, far) = (home(0), home(1));
    let mut original = Buffer::create(1 << 20, 256, near.clone(), here.light()).unwrap();
    let mut host = vec![0u8; 1 << 20];
    // SAFETY: the blocks and the vector live past the waits.
    unsafe { tenure_core::ops::fill_async(original.ptr(), 0x5a, 1 << 20, near.as_carried(), 0).unwrap() };
    let copy = original.copy(far.clone(), there.light()).unwrap();
    assert_eq!(copy.device(), 1);
    // SAFETY: as above.
    unsafe {
        tenure_core::ops::copy_async(host.as_mut_ptr() as u64, copy.ptr(), 1 << 20, far.as_carried(), 1).unwrap();
    }
    tenure_core::ops::synchronize(far.as_carried(), 1).unwrap();
    assert!(host.iter().all(|byte| *byte == 0x5a));
}
