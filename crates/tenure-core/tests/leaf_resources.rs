//! The leaf resources on the simulated device: what they hand out, what they refuse, what they wait for.
//!
//! The simulated device is one per process, and some tests count its bytes: they run one at a time.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tenure_core::device;
use tenure_core::error::{Error, MisuseKind, Result};
use tenure_core::resource::leaf::{AsyncOptions, AsyncPool, Cuda, shared};
use tenure_core::resource::{Info, MAX_ALIGNMENT, Request, Resource};
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_driver::sim::{self, Config};
use tenure_driver::{Driver, RawStream};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
const S: StreamRef<'static> = StreamRef::DEFAULT;
const MIB: usize = 1 << 20;

fn alone() -> (MutexGuard<'static, ()>, &'static Driver) {
    let guard = ONE_AT_A_TIME.lock();
    // Only the first call is in time; it is the same each time.
    let _ = sim::configure(Config { devices: 2, memory: 256 << 20 });
    let driver = tenure_driver::load::prefer_sim().expect("the simulated device");
    sim::fail_clear();
    for device in 0..2 {
        // The driver ends a pool once its last frees have run: that of the test before may still hold memory.
        driver.device(device).expect("there").synchronize().expect("waited");
        device::prepare_proof(device).expect("256 bytes");
    }
    (guard, driver)
}

fn free_bytes(device: i32) -> u64 {
    device::memory_info(device).expect("asked").0
}

fn plain() -> [Resource; 4] {
    [shared::cuda(), shared::managed(), shared::pinned(), shared::system()].map(|r| r.expect("made"))
}

fn pool(device: i32) -> Resource {
    let options = AsyncOptions { device: Some(device), ..AsyncOptions::default() };
    Resource::new(AsyncPool::new(options).expect("a pool")).expect("made")
}

fn all() -> Vec<Resource> {
    plain().into_iter().chain([pool(0)]).collect()
}

fn object<'a>(stream: &'a StreamObject) -> StreamRef<'a> {
    StreamRef { raw: stream.raw(), object: Some(stream), stored: false }
}

fn stored(stream: RawStream) -> StreamRef<'static> {
    StreamRef { raw: stream, object: None, stored: true }
}

fn misuse_of(result: Result<()>) -> MisuseKind {
    match result {
        Err(Error::Misuse(misuse)) => misuse.kind,
        other => panic!("not misuse: {other:?}"),
    }
}

/// Queues work that takes a while and then says so.
fn queue_work(driver: &Driver, stream: RawStream, done: &'static AtomicU32) {
    unsafe extern "C" fn work(user: *mut c_void) {
        std::thread::sleep(Duration::from_millis(30));
        // SAFETY: `queue_work` passes a static.
        unsafe { &*user.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
    }
    done.store(0, Ordering::SeqCst);
    // SAFETY: the function does not unwind, calls no driver and gets a static.
    unsafe { driver.launch_host_function(stream, work, std::ptr::from_ref(done).cast_mut().cast()) }.expect("queued");
}

#[test]
fn each_kind_hands_out_and_takes_back() {
    let _alone = alone();
    for resource in all() {
        let kind = resource.body().kind();
        let start = resource.body().info();
        let ptr = resource.allocate(1000, 256, S).expect("room");
        assert!(ptr.is_multiple_of(256) && ptr != 0, "{kind}");
        let info = resource.body().info();
        assert_eq!(info.live_bytes, start.live_bytes + 1000, "{kind}");
        assert_eq!(info.live_count, start.live_count + 1, "{kind}");
        assert!(info.reserved_bytes >= info.live_bytes, "{kind}");
        let block = resource.block(ptr + 999).expect("owned");
        assert_eq!((block.ptr, block.bytes), (ptr, 1000));
        let on_host = matches!(kind, "pinned" | "system");
        assert_eq!(block.device, if on_host { -1 } else { 0 }, "{kind}");
        assert!(!resource.owns(ptr + 1000));
        resource.deallocate(ptr, 1000, 256, S).expect("mine");
        assert!(!resource.owns(ptr), "{kind}");
        assert_eq!(resource.body().info().live_bytes, start.live_bytes);
    }
}

#[test]
fn plain_resources_are_one_per_process_and_differ_by_kind() {
    let _alone = alone();
    for (a, b) in plain().iter().zip(&plain()) {
        assert_eq!(a, b);
    }
    let kinds = plain().map(|r| r.body().kind().to_owned());
    assert_eq!(kinds, ["cuda", "managed", "pinned", "system"]);
    let managed = plain()[1].body().properties();
    assert!(managed.managed && managed.host_accessible && managed.device_accessible && !managed.stream_ordered);
    assert!(pool(0).body().properties().stream_ordered);
}

#[test]
fn memory_lies_on_the_device_of_the_stream() {
    let (_guard, driver) = alone();
    let cuda = shared::cuda().expect("made");
    let other = StreamObject::create(1, true).expect("a stream");
    let ptr = cuda.allocate(1000, 256, object(&other)).expect("room");
    assert_eq!(cuda.block(ptr).expect("owned").device, 1);
    // Freed by a thread that has another device current and names another device's stream.
    cuda.deallocate(ptr, 1000, 256, S).expect("mine");

    let current = driver.device(1).expect("there").enter().expect("current");
    let before = free_bytes(1);
    let ptr = cuda.allocate(MIB, 256, S).expect("room");
    assert_eq!(cuda.block(ptr).expect("owned").device, 1);
    drop(current);
    cuda.deallocate(ptr, MIB, 256, S).expect("mine");
    assert_eq!(free_bytes(1), before);
}

#[test]
fn wrong_frees_are_refused_and_change_nothing() {
    let _alone = alone();
    for resource in all() {
        let other = shared::cuda().expect("made");
        let other = if resource == other { shared::managed().expect("made") } else { other };
        let ptr = resource.allocate(4096, 256, S).expect("room");
        let before = (resource.body().info(), free_bytes(0));
        assert_eq!(misuse_of(resource.deallocate(ptr, 4095, 256, S)), MisuseKind::WrongSize);
        assert_eq!(misuse_of(resource.deallocate(ptr + 256, 4096, 256, S)), MisuseKind::InteriorPointer);
        assert_eq!(misuse_of(resource.deallocate(0x40, 4096, 256, S)), MisuseKind::UnknownPointer);
        assert_eq!(misuse_of(resource.deallocate_sync(ptr, 4095, 256)), MisuseKind::WrongSize);
        // Asked of another resource, which has never seen it, or had the address before and freed it.
        let kind = misuse_of(other.deallocate(ptr, 4096, 256, S));
        assert!(matches!(kind, MisuseKind::UnknownPointer | MisuseKind::DoubleFree), "{kind:?}");
        // Asked of the right body in another's name.
        let named = Request { bytes: 4096, align: 256, owner: other.id(), flags: 0 };
        assert_eq!(misuse_of(resource.body().deallocate(ptr, &named, S)), MisuseKind::WrongResource);
        assert_eq!((resource.body().info(), free_bytes(0)), before);
        resource.deallocate(ptr, 4096, 256, S).expect("mine");
        assert_eq!(
            misuse_of(resource.body().deallocate(ptr, &Request { owner: resource.id(), ..named }, S)),
            MisuseKind::DoubleFree
        );
    }
}

#[test]
fn large_alignments_are_kept_by_every_kind() {
    let _alone = alone();
    for resource in all() {
        let start = resource.body().info().live_count;
        let before = free_bytes(0);
        for align in [1, 256, 4096, 65536, MAX_ALIGNMENT] {
            let blocks: Vec<u64> = (0..3).map(|_| resource.allocate(100, align, S).expect("room")).collect();
            for ptr in blocks {
                assert!(ptr.is_multiple_of(align as u64), "{} {align}", resource.body().kind());
                resource.deallocate(ptr, 100, align, S).expect("mine");
            }
        }
        assert_eq!(resource.body().info().live_count, start);
        if resource.body().kind() != "cuda_async" {
            assert_eq!(free_bytes(0), before);
        }
    }
}

#[test]
fn out_of_memory_says_what_is_known_and_changes_nothing() {
    let _alone = alone();
    for resource in [shared::cuda().expect("made"), pool(0)] {
        let before = (resource.body().info(), free_bytes(0));
        match resource.allocate(1 << 40, 256, S) {
            Err(Error::OutOfMemory(e)) => {
                assert_eq!(e.requested, 1 << 40);
                assert_eq!(e.driver_total, 256 << 20);
                assert!(e.driver_free > 0 && e.driver_free <= e.driver_total);
                assert_eq!(e.resource, resource.body().kind());
            }
            other => panic!("{other:?}"),
        }
        assert_eq!((resource.body().info(), free_bytes(0)), before);
        let ptr = resource.allocate(MIB, 256, S).expect("there is memory");
        resource.deallocate(ptr, MIB, 256, S).expect("mine");
    }
    let system = shared::system().expect("made");
    assert!(system.allocate(1 << 55, 256, S).expect_err("more than any machine has").is_out_of_memory());
}

#[test]
fn a_free_waits_for_the_work_of_its_stream() {
    static DONE: AtomicU32 = AtomicU32::new(0);
    let (_guard, driver) = alone();
    let stream = StreamObject::create(0, true).expect("a stream");
    for resource in plain() {
        let kind = resource.body().kind();
        // Named by its object.
        let ptr = resource.allocate(1000, 256, object(&stream)).expect("room");
        queue_work(driver, stream.raw(), &DONE);
        resource.deallocate(ptr, 1000, 256, object(&stream)).expect("mine");
        assert_eq!(DONE.load(Ordering::SeqCst), 1, "{kind} freed under running work");
        // A raw value out of a buffer: the device is waited for, the stream is not asked.
        let ptr = resource.allocate(1000, 256, object(&stream)).expect("room");
        queue_work(driver, stream.raw(), &DONE);
        resource.deallocate(ptr, 1000, 256, stored(stream.raw())).expect("mine");
        assert_eq!(DONE.load(Ordering::SeqCst), 1, "{kind} freed under running work");
        // Work of a stream that nobody can ask any more.
        let other = StreamObject::create(0, true).expect("a stream");
        let ptr = resource.allocate(1000, 256, object(&other)).expect("room");
        queue_work(driver, stream.raw(), &DONE);
        let request = Request { bytes: 1000, align: 256, owner: resource.id(), flags: Request::UNPROVEN };
        resource.body().deallocate(ptr, &request, object(&other)).expect("mine");
        assert_eq!(DONE.load(Ordering::SeqCst), 1, "{kind} freed under running work");
    }
}

#[test]
fn a_free_waits_for_a_stream_of_another_device() {
    static DONE: AtomicU32 = AtomicU32::new(0);
    let (_guard, driver) = alone();
    let here = StreamObject::create(0, true).expect("a stream");
    let there = StreamObject::create(1, true).expect("a stream");
    for resource in plain() {
        let ptr = resource.allocate(1000, 256, object(&here)).expect("room");
        queue_work(driver, there.raw(), &DONE);
        resource.deallocate(ptr, 1000, 256, object(&there)).expect("mine");
        assert_eq!(DONE.load(Ordering::SeqCst), 1, "{}", resource.body().kind());
    }
}

#[test]
fn each_thread_that_asks_for_a_proof_gets_one_that_covers_its_work() {
    static FLAGS: [AtomicU32; 6] = [const { AtomicU32::new(0) }; 6];
    let (_guard, driver) = alone();
    let before = free_bytes(0);
    let calls = sim::calls("cuMemFree");
    std::thread::scope(|scope| {
        for (t, flag) in FLAGS.iter().enumerate() {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(7 * t as u64));
                let stream = StreamObject::create(0, true).expect("a stream");
                for _ in 0..3 {
                    queue_work(driver, stream.raw(), flag);
                    device::prove(0).expect("proven");
                    assert_eq!(flag.load(Ordering::SeqCst), 1, "proven before the work was done");
                }
            });
        }
    });
    assert!(sim::calls("cuMemFree") - calls <= 18, "one free for each that asks at most");
    device::prepare_proof(0).expect("256 bytes");
    assert_eq!(free_bytes(0), before);
}

#[test]
fn a_dead_stream_out_of_a_buffer_is_never_named_to_the_driver() {
    let (_guard, _) = alone();
    for resource in plain() {
        let dead = {
            let stream = StreamObject::create(0, true).expect("a stream");
            stream.raw()
        };
        let ptr = resource.allocate(1000, 256, S).expect("room");
        resource.deallocate(ptr, 1000, 256, stored(dead)).expect("mine");
    }
    let pool = pool(0);
    let ptr = pool.allocate(1000, 256, S).expect("room");
    match pool.deallocate(ptr, 1000, 256, stored(RawStream::from_addr_for_test())) {
        Err(Error::Invalid(text)) => assert!(text.contains("stream_outlives_buffer"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert!(pool.owns(ptr), "a refused free leaves the block");
    pool.deallocate(ptr, 1000, 256, S).expect("mine");
}

trait ForTest {
    fn from_addr_for_test() -> Self;
}

impl ForTest for RawStream {
    /// A value that no stream has.
    fn from_addr_for_test() -> Self {
        // SAFETY: never given to a driver call, which is what the test shows.
        unsafe { RawStream::from_raw(0xdead_0000usize as *mut c_void) }
    }
}

#[test]
fn a_capturing_stream_is_refused_and_other_captures_live_on() {
    let (_guard, driver) = alone();
    let capturing = StreamObject::create(0, true).expect("a stream");
    let free = StreamObject::create(0, true).expect("a stream");
    for resource in all() {
        let kind = resource.body().kind();
        let mine = resource.allocate(1000, 256, object(&free)).expect("room");
        let before = resource.body().info();
        driver.stream_begin_capture(capturing.raw(), tenure_driver::sys::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("begun");
        for result in [
            resource.allocate(100, 256, object(&capturing)).map(drop),
            resource.deallocate(mine, 1000, 256, object(&capturing)),
        ] {
            match result {
                Err(Error::Unsupported(text)) => assert!(text.contains("capturing"), "{text}"),
                other => panic!("{kind}: {other:?}"),
            }
        }
        assert_eq!(resource.body().info(), before, "{kind}");
        // Everything else goes on beside the capture: on this thread and on another one.
        let turn = |stream: StreamRef<'_>| {
            let ptr = resource.allocate(4096, 256, stream).expect("room");
            resource.deallocate(ptr, 4096, 256, stream).expect("mine");
            let ptr = resource.allocate_sync(4096, 256).expect("room");
            resource.deallocate_sync(ptr, 4096, 256).expect("mine");
            let _ = resource.body().info();
            resource.body().trim(0).expect("trimmed");
        };
        turn(object(&free));
        std::thread::scope(|scope| {
            scope.spawn(|| turn(object(&free)));
        });
        resource.deallocate(mine, 1000, 256, object(&free)).expect("mine");
        let graph = driver.stream_end_capture(capturing.raw());
        let graph = graph.unwrap_or_else(|e| panic!("{kind} ended somebody's capture: {e}"));
        // SAFETY: made by this capture, used by nobody.
        unsafe { driver.graph_destroy(graph) }.expect("destroyed");
    }
}

#[test]
fn the_pool_of_the_driver_is_its_own_and_goes_with_the_resource() {
    let (_guard, driver) = alone();
    let start = free_bytes(1);
    let options = AsyncOptions { device: Some(1), initial_pool_size: Some(8 * MIB), ..AsyncOptions::default() };
    let body = AsyncPool::new(options).expect("a pool");
    assert_eq!(body.release_threshold().expect("asked"), u64::MAX);
    let resource = Resource::new(body).expect("made");
    assert_eq!(resource.body().device(), Some(1));
    assert!(free_bytes(1) <= start - 8 * MIB as u64, "the initial size is taken and kept");
    assert!(resource.body().info().reserved_bytes >= 8 * MIB as u64);
    let handle = resource.body().property("pool_handle").expect("has one");
    assert_ne!(handle, driver.device_default_pool(1).expect("asked") as u64);

    let ptr = resource.allocate(MIB, 256, S).expect("room");
    let block = resource.block(ptr).expect("owned");
    assert_eq!(block.device, 1, "default streams are those of its device");
    resource.deallocate(ptr, MIB, 256, S).expect("mine");
    let there = StreamObject::create(0, true).expect("a stream");
    match resource.allocate(MIB, 256, object(&there)) {
        Err(Error::Invalid(text)) => assert!(text.contains("device 0") && text.contains("device 1"), "{text}"),
        other => panic!("{other:?}"),
    }
    let ptr = resource.allocate_sync(MIB, 256).expect("room");
    resource.deallocate_sync(ptr, MIB, 256).expect("mine");
    driver.device(1).expect("there").synchronize().expect("waited");
    let went = resource.body().trim(0).expect("trimmed");
    assert!(went >= 8 * MIB, "{went}");
    assert_eq!(resource.body().info().reserved_bytes, 0);
    drop(resource);
    assert_eq!(free_bytes(1), start);
}

#[test]
fn a_view_works_on_somebody_elses_pool_and_leaves_it() {
    let (_guard, driver) = alone();
    let default = driver.device_default_pool(0).expect("asked") as u64;
    let view = Resource::new(AsyncPool::view_of_default(0).expect("a view")).expect("made");
    assert_eq!(view.body().kind(), "cuda_async_view");
    assert_eq!(view.body().property("pool_handle"), Some(default));
    let ptr = view.allocate(MIB, 256, S).expect("room");
    view.deallocate(ptr, MIB, 256, S).expect("mine");
    drop(view);
    // SAFETY: a default pool lives as long as the process.
    let again = unsafe { AsyncPool::view(0, default) }.expect("still there");
    assert!(!again.is_owned());
    // SAFETY: refused before anything is called with it.
    assert!(matches!(unsafe { AsyncPool::view(0, 0) }, Err(Error::Invalid(_))));
}

#[test]
fn devices_that_are_not_there_are_named() {
    let _alone = alone();
    for device in [-1, 2, i32::MAX] {
        let options = AsyncOptions { device: Some(device), ..AsyncOptions::default() };
        match AsyncPool::new(options) {
            Err(Error::Invalid(text)) => assert!(text.contains("devices 0 to 1"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    assert!(shared::cuda().expect("made").allocate(1, 3, S).is_err());
    assert!(shared::cuda().expect("made").allocate(usize::MAX, 256, S).expect_err("too much").is_out_of_memory());
}

#[test]
fn an_address_freed_behind_our_back_is_believed_to_the_driver() {
    let (_guard, driver) = alone();
    let cuda = Resource::new(Cuda::default()).expect("made");
    let ptr = cuda.allocate(1000, 256, S).expect("room");
    // SAFETY: this is the misbehaviour under test; nothing uses the block.
    unsafe { driver.device(0).expect("there").free(ptr) }.expect("freed");
    let mut others = Vec::new();
    for _ in 0..64 {
        let other = cuda.allocate(1000, 256, S).expect("room");
        others.push(other);
        if other == ptr {
            break;
        }
    }
    assert_eq!(others.last(), Some(&ptr), "the simulated device hands the address out again");
    for other in others {
        cuda.deallocate(other, 1000, 256, S).expect("mine");
    }
    assert_eq!(cuda.body().info().live_bytes, 0);
    assert_eq!(cuda.body().info().live_count, 0);
}

#[test]
fn threads_leave_books_and_device_as_they_were() {
    let _alone = alone();
    for resource in all() {
        let start = resource.body().info();
        let before = free_bytes(0);
        std::thread::scope(|scope| {
            for t in 0..4usize {
                let resource = &resource;
                scope.spawn(move || {
                    let stream = StreamObject::create(0, true).expect("a stream");
                    let mut mine = Vec::new();
                    for i in 0..60usize {
                        let bytes = 256 + (i * 977 + t * 13) % 9000;
                        mine.push((resource.allocate(bytes, 256, object(&stream)).expect("room"), bytes));
                        if i % 3 == 2 {
                            let (ptr, bytes) = mine.swap_remove(i % mine.len());
                            resource.deallocate(ptr, bytes, 256, object(&stream)).expect("mine");
                        }
                    }
                    for (ptr, bytes) in mine {
                        resource.deallocate(ptr, bytes, 256, object(&stream)).expect("mine");
                    }
                });
            }
        });
        let end = resource.body().info();
        assert_eq!((end.live_bytes, end.live_count), (start.live_bytes, start.live_count));
        if resource.body().kind() != "cuda_async" {
            assert_eq!(free_bytes(0), before);
        }
    }
}

// ------------------------------------------------------------------------------------------------------------- faults

/// Everything that a failed call must leave as it was.
fn state(resource: &Resource) -> (Info, u64, u64) {
    let mut info = resource.body().info();
    // High-water marks may move.
    info.peak_live_bytes = 0;
    info.peak_reserved_bytes = 0;
    (info, free_bytes(0), free_bytes(1))
}

/// How often each driver call is made by `run`.
fn calls_of(run: impl FnOnce()) -> Vec<(&'static str, u64)> {
    let before = sim::calls_all();
    run();
    let after = sim::calls_all();
    after
        .into_iter()
        .map(|(name, n)| (name, n - before.get(name).copied().unwrap_or(0)))
        .filter(|(_, n)| *n > 0)
        .collect()
}

/// The call cannot fail on its way out without the operation being done: it restores what was there.
fn is_restoring(name: &str) -> bool {
    matches!(name, "cuThreadExchangeStreamCaptureMode" | "cuCtxPopCurrent")
}

/// Undoes on this thread what a restoring call that was made to fail has left.
fn settle_thread(driver: &'static Driver) {
    while !driver.current_context().expect("asked").is_null() {
        driver.pop_context().expect("popped");
    }
    driver.exchange_capture_mode(tenure_driver::sys::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("set");
}

const UNKNOWN: i32 = tenure_driver::sys::CUDA_ERROR_UNKNOWN;
const NO_MEMORY: i32 = tenure_driver::sys::CUDA_ERROR_OUT_OF_MEMORY;

#[test]
fn each_driver_call_may_fail_and_nothing_changes() {
    let (_guard, driver) = alone();
    let stream = StreamObject::create(0, true).expect("a stream");
    let mut walked = 0;
    for resource in all() {
        let kind = resource.body().kind();
        for (align, flags, free_on) in [
            (256, 0, object(&stream)),
            (256, Request::UNPROVEN, object(&stream)),
            (256, 0, stored(stream.raw())),
            (65536, 0, S),
        ] {
            if kind == "cuda_async" && free_on.stored && free_on.object.is_none() && !free_on.is_live() {
                continue;
            }
            let request = Request { bytes: 5000, align, owner: resource.id(), flags };
            let allocate = || resource.body().allocate(&request, object(&stream));
            let free = |ptr| resource.body().deallocate(ptr, &request, free_on);
            // A first turn, so that what is made once is there; a second one that is counted.
            free(allocate().expect("room")).expect("mine");
            let mut ptr = 0;
            let making = calls_of(|| ptr = allocate().expect("room"));
            let freeing = calls_of(|| free(ptr).expect("mine"));

            for (name, times) in making {
                for after in 0..times {
                    for code in [UNKNOWN, NO_MEMORY] {
                        let before = state(&resource);
                        sim::fail_next(name, code, after).expect("armed");
                        let result = allocate();
                        let missed = sim::fail_clear() != 0;
                        if missed && align > 256 {
                            // The address that comes first may happen to be aligned: then less is called.
                            free(result.expect("nothing failed")).expect("mine");
                            continue;
                        }
                        assert!(!missed, "{kind}: {name} was not called");
                        settle_thread(driver);
                        walked += 1;
                        match result {
                            Ok(ptr) => {
                                let harmless = is_restoring(name) || align > 256;
                                assert!(harmless, "{kind}: {name} #{after} failed and nobody noticed");
                                free(ptr).expect("mine");
                                // What was not aligned and could not be given back at once.
                                if kind != "cuda_async" {
                                    resource.body().trim(0).expect("trimmed");
                                }
                            }
                            Err(e) => {
                                let alloc = name.contains("Alloc");
                                let expected = matches!(
                                    (&e, code),
                                    (Error::OutOfMemory(_), NO_MEMORY) | (Error::Device(_), UNKNOWN)
                                ) || (!alloc && matches!(e, Error::Device(_)));
                                assert!(expected, "{kind}: {name} with {code} gave {e:?}");
                            }
                        }
                        if kind != "cuda_async" || align == 256 {
                            assert_eq!(state(&resource), before, "{kind}: {name} #{after}");
                        }
                    }
                }
            }
            for (name, times) in freeing {
                for after in 0..times {
                    let ptr = allocate().expect("room");
                    let before = state(&resource);
                    sim::fail_next(name, UNKNOWN, after).expect("armed");
                    let result = free(ptr);
                    assert_eq!(sim::fail_clear(), 0, "{kind}: {name} was not called");
                    settle_thread(driver);
                    walked += 1;
                    // The proof's own block may be taken anew: bring it back before comparing.
                    device::prepare_proof(0).expect("256 bytes");
                    match result {
                        Ok(()) => assert!(
                            is_restoring(name) || proves(flags, free_on) && is_of_the_next_spare(name),
                            "{kind}: {name} #{after} failed and nobody noticed"
                        ),
                        Err(e) => {
                            assert!(matches!(e, Error::Device(_)), "{kind}: {name} gave {e:?}");
                            assert!(resource.owns(ptr), "{kind}: {name}: a failed free leaves the block");
                            assert_eq!(state(&resource), before, "{kind}: {name} #{after}");
                            free(ptr).expect("mine, at last");
                        }
                    }
                }
            }
        }
    }
    assert!(walked > 100, "only {walked} faults were tried");
}

/// The free runs a device proof.
fn proves(flags: u32, stream: StreamRef<'_>) -> bool {
    flags != 0 || !stream.is_live()
}

/// The last step of a proof takes the block for the next one, and may do without.
fn is_of_the_next_spare(name: &str) -> bool {
    matches!(name, "cuMemAlloc" | "cuCtxGetCurrent" | "cuCtxPushCurrent")
}

#[test]
fn making_a_pool_may_fail_at_each_call() {
    let (_guard, driver) = alone();
    let options = AsyncOptions { device: Some(0), initial_pool_size: Some(4 * MIB), ..AsyncOptions::default() };
    drop(AsyncPool::new(options).expect("a pool"));
    let mut pool = None;
    let calls = calls_of(|| pool = Some(AsyncPool::new(options).expect("a pool")));
    // It must not outlive the test: whoever is short of memory later would get that of an idle pool.
    drop(pool);
    let before = free_bytes(0);
    for (name, times) in calls {
        for after in 0..times {
            sim::fail_next(name, UNKNOWN, after).expect("armed");
            let result = AsyncPool::new(options);
            assert_eq!(sim::fail_clear(), 0, "{name} was not called");
            settle_thread(driver);
            if let Err(e) = &result {
                assert!(matches!(e, Error::Device(_)), "{name} gave {e:?}");
            } else {
                assert!(is_restoring(name), "{name} #{after} failed and nobody noticed");
            }
            drop(result);
            assert_eq!(free_bytes(0), before, "{name} #{after} leaves something behind");
        }
    }
}
