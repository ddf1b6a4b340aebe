//! What a pool promises to graphs, on whatever device the process has: `TENURE_DEVICE=cuda` runs this on a GPU, `sim` on the
//! simulated device. Nothing here asks which it is.

#![allow(missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tenure_core::device;
use tenure_core::error::Error;
use tenure_core::pool::{CaptureScope, Pool, PoolOptions, SharedArena};
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{MemoryResource, Request, Resource};
use tenure_core::stream::{StreamHold, StreamObject, StreamRef};
use tenure_driver::sys::{CUgraph, CUgraphExec};
use tenure_driver::{CaptureStatus, Driver, Event, RawStream};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;
const MIB: usize = 1 << 20;
/// Global, thread-local, relaxed.
const MODES: [u32; 3] = [0, 1, 2];

fn alone() -> (MutexGuard<'static, ()>, &'static Driver, tenure_driver::Current) {
    let guard = ONE_AT_A_TIME.lock();
    let driver = device::driver().expect("a device, real or simulated");
    device::prepare_proof(0).expect("256 bytes");
    (guard, driver, driver.device(0).expect("there").enter().expect("entered"))
}

/// A pool that is told of the streams that end, as every pool in a program is.
fn pool(options: PoolOptions) -> Resource {
    let pool = Pool::new(shared::cuda().expect("made"), 0, options).expect("a pool");
    Resource::new(pool).expect("a resource")
}

fn body(resource: &Resource) -> &Pool {
    resource.downcast().expect("a pool")
}

fn request(bytes: usize) -> Request {
    Request { bytes, align: 256, owner: 7, flags: 0 }
}

fn object(stream: &StreamObject) -> StreamRef<'_> {
    StreamRef { raw: stream.raw(), object: Some(stream), stored: false }
}

fn fill(driver: &Driver, ptr: u64, byte: u8, bytes: usize, stream: RawStream) {
    // SAFETY: the tests pass live memory of the pool.
    unsafe { driver.fill_async(ptr, byte, bytes, stream) }.expect("queued");
}

fn copy(driver: &Driver, to: u64, from: u64, bytes: usize, stream: RawStream) {
    // SAFETY: as above.
    unsafe { driver.copy_async(to, from, bytes, stream) }.expect("queued");
}

struct Graph {
    driver: &'static Driver,
    graph: CUgraph,
    exec: CUgraphExec,
}

impl Graph {
    fn end(driver: &'static Driver, stream: RawStream) -> Self {
        let graph = driver.stream_end_capture(stream).expect("nobody has ended the capture");
        // SAFETY: made just now.
        let exec = unsafe { driver.graph_instantiate(graph, 0) }.expect("instantiated");
        Self { driver, graph, exec }
    }

    fn launch(&self, stream: RawStream) {
        // SAFETY: it exists, and its memory lives as long as it does.
        unsafe { self.driver.graph_launch(self.exec, stream) }.expect("launched");
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: both are this value's.
        unsafe {
            self.driver.graph_exec_destroy(self.exec).expect("destroyed");
            self.driver.graph_destroy(self.graph).expect("destroyed");
        }
    }
}

/// What the device has there now, after everything on `stream`.
fn bytes_of(driver: &Driver, ptr: u64, bytes: usize, stream: RawStream) -> Vec<u8> {
    let host = shared::pinned().expect("made");
    let at = host.allocate(bytes, 256, LEGACY).expect("room");
    copy(driver, at, ptr, bytes, stream);
    device::wait_stream_on(StreamRef::raw(stream), 0).expect("waited");
    // SAFETY: pinned memory of that many bytes; the copy is done.
    let seen = unsafe { std::slice::from_raw_parts(at as *const u8, bytes) }.to_vec();
    host.deallocate(at, bytes, 256, LEGACY).expect("mine");
    seen
}

fn assert_all(driver: &Driver, ptr: u64, bytes: usize, stream: RawStream, byte: u8) {
    let seen = bytes_of(driver, ptr, bytes, stream);
    let wrong = seen.iter().filter(|b| **b != byte).count();
    assert_eq!(wrong, 0, "{wrong} of {bytes} bytes are not {byte:#x}; the first is {:#x}", seen[0]);
}

/// Temporaries that are filled, copied, freed and reused; the output is all `byte` after each run.
fn record(driver: &'static Driver, pool: &Pool, on: StreamRef<'_>, mode: u32, byte: u8) -> (Graph, u64) {
    let (size, raw) = (2 * MIB, on.raw);
    driver.stream_begin_capture(raw, mode).expect("begun");
    let output = pool.allocate(&request(size), on).expect("room");
    let first = pool.allocate(&request(size), on).expect("room");
    fill(driver, first, byte, size, raw);
    let second = pool.allocate(&request(size), on).expect("room");
    copy(driver, second, first, size, raw);
    pool.deallocate(first, &request(size), on).expect("mine");
    let third = pool.allocate(&request(size), on).expect("room");
    assert_eq!(third, first, "the capture reuses its own");
    fill(driver, third, !byte, size, raw);
    copy(driver, output, second, size, raw);
    pool.deallocate(second, &request(size), on).expect("mine");
    pool.deallocate(third, &request(size), on).expect("mine");
    assert_eq!(driver.stream_capture_status(raw).expect("asked"), CaptureStatus::Active);
    (Graph::end(driver, raw), output)
}

/// Waits until the driver has told that graphs are gone.
fn emptied(pool: &Pool) {
    for _ in 0..5000 {
        pool.trim(0).expect("trimmed");
        if pool.property("graph_arenas") == Some(0) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("{:?} arenas are left", pool.property("graph_arenas"));
}

/// Climbs every step of the ladder, on streams of its own and on the default ones, until told to stop.
fn turmoil(driver: &'static Driver, pool: &Pool, stop: &AtomicBool, byte: u8) {
    let _current = driver.device(0).expect("there").enter().expect("entered");
    let own = StreamObject::create(0, byte.is_multiple_of(2)).expect("a stream");
    let stored = StreamRef { raw: own.raw(), object: None, stored: true };
    let per_thread = StreamRef::raw(RawStream::PER_THREAD);
    let mut round = 0usize;
    while !stop.load(Ordering::Relaxed) || round < 8 {
        let mut live = Vec::new();
        for (i, on) in [object(&own), per_thread, StreamRef::raw(own.raw())].into_iter().enumerate() {
            let bytes = [3000, MIB, 5 * MIB][(round + i) % 3];
            match pool.allocate(&request(bytes), on) {
                Ok(ptr) => {
                    fill(driver, ptr, byte, bytes, on.raw);
                    live.push((ptr, bytes, on));
                }
                Err(e) => assert!(e.is_out_of_memory(), "{e}"),
            }
        }
        // No stream is asked in vain for what cannot be had.
        assert!(pool.allocate(&request(1 << 50), object(&own)).is_err());
        for (i, (ptr, bytes, on)) in live.into_iter().enumerate() {
            let on = if on.raw == own.raw() && (round + i).is_multiple_of(3) { stored } else { on };
            pool.deallocate(ptr, &request(bytes), on).expect("mine");
        }
        if round % 8 == 7 {
            pool.trim(0).expect("trimmed");
            pool.info();
        }
        round += 1;
    }
}

#[test]
fn graphs_compute_the_same_whatever_others_do_with_the_pool() {
    let (_guard, driver, _current) = alone();
    for mode in MODES {
        let resource = pool(PoolOptions { maximum_bytes: Some(96 << 20), ..Default::default() });
        let pool = body(&resource);
        let own = StreamObject::create(0, true).expect("a stream");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for byte in [0xe0, 0xe1, 0xe2] {
                let stop = &stop;
                scope.spawn(move || turmoil(driver, pool, stop, byte));
            }
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let (one, first) = record(driver, pool, object(&own), mode, 0x11);
                let (two, second) = record(driver, pool, StreamRef::raw(own.raw()), mode, 0x22);
                for _ in 0..5 {
                    one.launch(own.raw());
                    two.launch(own.raw());
                    assert_all(driver, first, 2 * MIB, own.raw(), 0x11);
                    assert_all(driver, second, 2 * MIB, own.raw(), 0x22);
                }
                pool.deallocate(first, &request(2 * MIB), LEGACY).expect("mine");
                one.launch(own.raw());
                assert_all(driver, second, 2 * MIB, own.raw(), 0x22);
                drop((one, two));
                // A live block outlives its graph.
                std::thread::sleep(std::time::Duration::from_millis(20));
                assert_all(driver, second, 2 * MIB, own.raw(), 0x22);
                pool.deallocate(second, &request(2 * MIB), object(&own)).expect("mine");
            }));
            stop.store(true, Ordering::Relaxed);
            if let Err(panic) = done {
                std::panic::resume_unwind(panic);
            }
        });
        emptied(pool);
        assert_eq!(pool.info().live_count, 0);
        pool.check().expect("whole");
    }
}

#[test]
fn a_capture_of_two_streams_keeps_their_memory_apart() {
    let (_guard, driver, _current) = alone();
    let device = driver.device(0).expect("there");
    let resource = pool(PoolOptions::default());
    let pool = body(&resource);
    let (a, b) = (StreamObject::create(0, true).expect("a stream"), StreamObject::create(0, true).expect("a stream"));
    let (fork, join) = (Event::new(device).expect("an event"), Event::new(device).expect("an event"));
    driver.stream_begin_capture(a.raw(), 0).expect("begun");
    fork.record(a.raw()).expect("recorded");
    b.raw().wait_event(&fork).expect("waits");
    let outputs: Vec<u64> = (0..2).map(|_| pool.allocate(&request(8 * MIB), object(&a)).expect("room")).collect();
    for round in 0..4 {
        for (stream, output, byte) in [(&a, outputs[0], 0x31), (&b, outputs[1], 0x32)] {
            let ptr = pool.allocate(&request(8 * MIB), object(stream)).expect("room");
            fill(driver, ptr, byte + 2 * round, 8 * MIB, stream.raw());
            copy(driver, output, ptr, 8 * MIB, stream.raw());
            pool.deallocate(ptr, &request(8 * MIB), object(stream)).expect("mine");
        }
    }
    join.record(b.raw()).expect("recorded");
    a.raw().wait_event(&join).expect("waits");
    let graph = Graph::end(driver, a.raw());
    for _ in 0..10 {
        graph.launch(a.raw());
        assert_all(driver, outputs[0], 8 * MIB, a.raw(), 0x37);
        assert_all(driver, outputs[1], 8 * MIB, a.raw(), 0x38);
    }
    drop(graph);
    for output in outputs {
        pool.deallocate(output, &request(8 * MIB), object(&a)).expect("mine");
    }
    emptied(pool);
}

#[test]
fn graphs_that_follow_each_other_share_an_arena() {
    let (_guard, driver, _current) = alone();
    let resource = pool(PoolOptions::default());
    let pool = body(&resource);
    let own = StreamObject::create(0, true).expect("a stream");
    let arena = SharedArena::new();
    let mut graphs = Vec::new();
    let mut first = 0;
    for byte in 1..6 {
        let _scope = CaptureScope::enter(StreamHold::object(Arc::clone(&own)), Some(arena.clone())).expect("a scope");
        graphs.push((record(driver, pool, object(&own), 0, byte), byte));
        if first == 0 {
            first = pool.property("graph_bytes").expect("known");
        }
    }
    assert_eq!(pool.property("graph_arenas"), Some(1));
    let all = pool.property("graph_bytes").expect("known");
    assert!(all <= first + (4 * 2 * MIB) as u64, "{first} for one, {all} for five: only the outputs are new");
    for _ in 0..3 {
        for ((graph, output), byte) in &graphs {
            graph.launch(own.raw());
            assert_all(driver, *output, 2 * MIB, own.raw(), *byte);
        }
    }
    for ((graph, output), _) in graphs {
        pool.deallocate(output, &request(2 * MIB), object(&own)).expect("mine");
        drop(graph);
    }
    drop(arena);
    emptied(pool);
}

#[test]
fn a_destroyed_graph_keeps_its_memory_until_its_run_is_over() {
    use std::ffi::c_void;
    unsafe extern "C" fn sleep(_: *mut c_void) {
        std::thread::sleep(std::time::Duration::from_millis(60));
    }
    let (_guard, driver, _current) = alone();
    let resource = pool(PoolOptions::default());
    let pool = body(&resource);
    let own = StreamObject::create(0, true).expect("a stream");
    driver.stream_begin_capture(own.raw(), 0).expect("begun");
    // SAFETY: the function does nothing but sleep.
    unsafe { driver.launch_host_function(own.raw(), sleep, std::ptr::null_mut()) }.expect("queued");
    let ptr = pool.allocate(&request(4 * MIB), object(&own)).expect("room");
    fill(driver, ptr, 0x77, 4 * MIB, own.raw());
    pool.deallocate(ptr, &request(4 * MIB), object(&own)).expect("mine");
    let graph = Graph::end(driver, own.raw());
    graph.launch(own.raw());
    drop(graph);
    pool.trim(0).expect("trimmed");
    // An unmapped page under the run would be a fault of the device, which every later call answers.
    device::wait_stream_on(object(&own), 0).expect("no fault");
    emptied(pool);
}

#[test]
fn the_per_thread_stream_and_a_broken_capture() {
    let (_guard, driver, _current) = alone();
    let resource = pool(PoolOptions { initial_bytes: 16 << 20, ..Default::default() });
    let pool = body(&resource);
    let mine = StreamRef::raw(RawStream::PER_THREAD);
    let warm = pool.allocate(&request(2 * MIB), mine).expect("room");
    pool.deallocate(warm, &request(2 * MIB), mine).expect("mine");
    {
        let _scope = CaptureScope::enter(StreamHold::raw(mine.raw), None).expect("a scope");
        let (graph, output) = record(driver, pool, mine, 1, 0x55);
        assert!(pool.capture_of(output).is_some());
        graph.launch(mine.raw);
        assert_all(driver, output, 2 * MIB, mine.raw, 0x55);
        pool.deallocate(output, &request(2 * MIB), mine).expect("mine");
    }
    emptied(pool);
    // Somebody's call has ended the capture.
    let own = StreamObject::create(0, true).expect("a stream");
    driver.stream_begin_capture(own.raw(), 0).expect("begun");
    let ptr = pool.allocate(&request(MIB), object(&own)).expect("room");
    driver.stream_id(own.raw()).expect_err("the id of a capturing stream");
    match pool.allocate(&request(MIB), object(&own)) {
        Err(Error::Unsupported(text)) => assert!(text.contains("capturing"), "{text}"),
        other => panic!("{other:?}"),
    }
    pool.deallocate(ptr, &request(MIB), object(&own)).expect("mine");
    driver.stream_end_capture(own.raw()).expect_err("901");
    emptied(pool);
}
