//! What the leaves promise on whatever device the process has: `TENURE_DEVICE=cuda` runs this on a GPU, `sim` on the
//! simulated device. Nothing here asks which it is.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tenure_core::device;
use tenure_core::error::{Error, MisuseKind};
use tenure_core::resource::leaf::{AsyncOptions, AsyncPool, HandleType, shared};
use tenure_core::resource::{Request, Resource};
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_driver::sys::{
    CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
};
use tenure_driver::{Driver, RawStream};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
const S: StreamRef<'static> = StreamRef::DEFAULT;
const MIB: usize = 1 << 20;

fn alone() -> (MutexGuard<'static, ()>, &'static Driver) {
    (ONE_AT_A_TIME.lock(), device::driver().expect("a device, real or simulated"))
}

fn plain() -> [Resource; 4] {
    [shared::cuda(), shared::managed(), shared::pinned(), shared::system()].map(|r| r.expect("made"))
}

fn all() -> Vec<Resource> {
    let pool = AsyncPool::new(AsyncOptions { device: Some(0), ..AsyncOptions::default() }).expect("a pool");
    plain().into_iter().chain([Resource::new(pool).expect("made")]).collect()
}

fn object(stream: &StreamObject) -> StreamRef<'_> {
    StreamRef { raw: stream.raw(), object: Some(stream), stored: false }
}

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
fn memory_can_be_written_and_read_back() {
    let (_guard, driver) = alone();
    let stream = StreamObject::create(0, true).expect("a stream");
    let host = shared::pinned().expect("made");
    let seen = host.allocate(4096, 256, object(&stream)).expect("room");
    for resource in all() {
        let kind = resource.body().kind();
        if !resource.body().properties().device_accessible {
            continue;
        }
        for align in [256, 65536, 2 << 20] {
            let ptr = resource.allocate(4096, align, object(&stream)).expect("room");
            assert!(ptr.is_multiple_of(align as u64), "{kind} {align}");
            // SAFETY: both blocks have 4096 bytes and are used on this stream only.
            unsafe {
                driver.fill_async(ptr, 0x5a, 4096, stream.raw()).expect("queued");
                driver.copy_async(seen, ptr, 4096, stream.raw()).expect("queued");
            }
            driver.stream_synchronize(stream.raw()).expect("waited");
            // SAFETY: pinned memory of 4096 bytes; the copy is done.
            let bytes = unsafe { std::slice::from_raw_parts(seen as *const u8, 4096) };
            assert!(bytes.iter().all(|byte| *byte == 0x5a), "{kind} {align}");
            resource.deallocate(ptr, 4096, align, object(&stream)).expect("mine");
        }
    }
    host.deallocate(seen, 4096, 256, object(&stream)).expect("mine");
}

#[test]
fn frees_wait_whatever_is_left_of_the_stream() {
    static DONE: AtomicU32 = AtomicU32::new(0);
    let (_guard, driver) = alone();
    for resource in plain() {
        let kind = resource.body().kind();
        let stream = StreamObject::create(0, true).expect("a stream");
        let request = Request { bytes: MIB, align: 256, owner: resource.id(), flags: 0 };
        let unproven = Request { flags: Request::UNPROVEN, ..request };
        let other = StreamObject::create(0, true).expect("a stream");
        let stored = StreamRef { raw: stream.raw(), object: None, stored: true };
        for (request, on) in [(request, object(&stream)), (request, stored), (unproven, object(&other))] {
            let ptr = resource.body().allocate(&request, object(&stream)).expect("room");
            queue_work(driver, stream.raw(), &DONE);
            resource.body().deallocate(ptr, &request, on).expect("mine");
            assert_eq!(DONE.load(Ordering::SeqCst), 1, "{kind} freed under running work");
        }
        // The stream is destroyed while its work runs.
        let ptr = resource.body().allocate(&request, object(&stream)).expect("room");
        queue_work(driver, stream.raw(), &DONE);
        let stored = StreamRef { raw: stream.raw(), object: None, stored: true };
        drop(stream);
        resource.body().deallocate(ptr, &request, stored).expect("mine");
        assert_eq!(DONE.load(Ordering::SeqCst), 1, "{kind} freed under the work of a stream that is gone");
    }
}

#[test]
fn no_call_ends_somebodys_capture() {
    let (_guard, driver) = alone();
    device::prepare_proof(0).expect("256 bytes");
    let capturing = StreamObject::create(0, true).expect("a stream");
    let free = StreamObject::create(0, true).expect("a stream");
    let gone = StreamObject::create(0, true).expect("a stream").raw();
    let modes = [CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED];
    for resource in all() {
        let kind = resource.body().kind();
        for mode in modes {
            let mine = resource.allocate(1000, 256, object(&free)).expect("room");
            driver.stream_begin_capture(capturing.raw(), mode).expect("begun");
            let refused = [
                resource.allocate(100, 256, object(&capturing)).map(drop),
                resource.deallocate(mine, 1000, 256, object(&capturing)),
            ];
            for result in refused {
                match result {
                    Err(Error::Unsupported(text)) => assert!(text.contains("capturing"), "{text}"),
                    other => panic!("{kind}: {other:?}"),
                }
            }
            let turn = || {
                for stream in [object(&free), S, StreamRef::raw(RawStream::PER_THREAD)] {
                    let ptr = resource.allocate(4096, 256, stream).expect("room");
                    resource.deallocate(ptr, 4096, 256, stream).expect("mine");
                }
                let ptr = resource.allocate_sync(4096, 256).expect("room");
                resource.deallocate_sync(ptr, 4096, 256).expect("mine");
                if kind != "cuda_async" {
                    let ptr = resource.allocate(4096, 256, object(&free)).expect("room");
                    let stored = StreamRef { raw: gone, object: None, stored: true };
                    resource.deallocate(ptr, 4096, 256, stored).expect("mine");
                }
                let _ = resource.body().info();
                resource.body().trim(0).expect("trimmed");
                assert!(resource.allocate(1 << 50, 256, object(&free)).expect_err("too much").is_out_of_memory());
            };
            turn();
            std::thread::scope(|scope| {
                scope.spawn(turn);
            });
            resource.deallocate(mine, 1000, 256, object(&free)).expect("mine");
            let graph = driver.stream_end_capture(capturing.raw());
            let graph = graph.unwrap_or_else(|e| panic!("{kind}, mode {mode}: somebody's capture ended: {e}"));
            // SAFETY: made by this capture, used by nobody.
            unsafe { driver.graph_destroy(graph) }.expect("destroyed");
        }
    }
}

#[test]
fn figures_come_back_and_wrong_frees_are_refused() {
    let _alone = alone();
    for resource in all() {
        let kind = resource.body().kind();
        let start = resource.body().info().live_bytes;
        let ptr = resource.allocate(MIB, 256, S).expect("room");
        for (at, bytes, expected) in [
            (ptr, MIB - 1, MisuseKind::WrongSize),
            (ptr + 4096, MIB, MisuseKind::InteriorPointer),
            (ptr + (1 << 40), MIB, MisuseKind::UnknownPointer),
        ] {
            match resource.deallocate(at, bytes, 256, S) {
                Err(Error::Misuse(m)) => assert_eq!(m.kind, expected, "{kind}"),
                other => panic!("{kind}: {other:?}"),
            }
        }
        assert_eq!(resource.body().info().live_bytes, start + MIB as u64, "{kind}");
        // From a thread that has never seen the device.
        std::thread::scope(|scope| {
            scope.spawn(|| resource.deallocate(ptr, MIB, 256, S).expect("mine"));
        });
        assert_eq!(resource.body().info().live_bytes, start, "{kind}");
    }
}

#[test]
fn out_of_memory_is_told_from_other_failures() {
    let _alone = alone();
    let (_, total) = device::memory_info(0).expect("asked");
    let mut resources = all();
    for resource in [resources.remove(0), resources.pop().expect("the pool")] {
        match resource.allocate(2 * total as usize, 256, S) {
            Err(Error::OutOfMemory(e)) => {
                assert_eq!((e.requested, e.driver_total), (2 * total, total));
                assert!(e.driver_free > 0);
            }
            other => panic!("{other:?}"),
        }
        let ptr = resource.allocate(MIB, 256, S).expect("there is memory");
        resource.deallocate(ptr, MIB, 256, S).expect("mine");
    }
}

#[test]
fn the_settings_of_a_pool_are_kept_and_its_memory_comes_back() {
    let (_guard, driver) = alone();
    let default = driver.device_default_pool(0).expect("asked") as u64;
    let fds = HandleType::FileDescriptor;
    let capabilities = driver.device(0).expect("there").properties().expect("asked").capabilities;
    let exports = capabilities.pool_handle_types & fds.value() != 0;
    let options = AsyncOptions {
        device: Some(0),
        initial_pool_size: Some(64 * MIB),
        release_threshold: Some(1 << 30),
        handle_type: if exports { fds } else { HandleType::None },
        ..AsyncOptions::default()
    };
    // Other processes take and give back memory of the device meanwhile. What stays behind is missing each time.
    let comes_back = || {
        let body = AsyncPool::new(options).expect("a pool");
        assert_eq!(body.release_threshold().expect("asked"), 1 << 30);
        let resource = Resource::new(body).expect("made");
        assert_eq!(resource.body().properties().exportable, exports);
        assert_ne!(resource.body().property("pool_handle"), Some(default));
        assert!(resource.body().info().reserved_bytes >= 64 * MIB as u64);
        assert!(resource.body().trim(0).expect("trimmed") >= 64 * MIB);
        assert_eq!(resource.body().info().reserved_bytes, 0);
        let (before, _) = device::memory_info(0).expect("asked");
        let ptr = resource.allocate(256 * MIB, 256, S).expect("room");
        resource.deallocate(ptr, 256 * MIB, 256, S).expect("mine");
        drop(resource);
        driver.device(0).expect("there").wait_for_all_work().expect("waited");
        let (after, _) = device::memory_info(0).expect("asked");
        after + (8 * MIB) as u64 >= before
    };
    assert!((0..20).any(|_| comes_back()), "256 MiB of a pool that has ended are missing");

    let view = Resource::new(AsyncPool::view_of_default(0).expect("a view")).expect("made");
    assert_eq!(view.body().property("pool_handle"), Some(default));
    let ptr = view.allocate(MIB, 256, S).expect("room");
    view.deallocate(ptr, MIB, 256, S).expect("mine");
}
