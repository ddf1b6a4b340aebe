//! The owning types, on the simulated device; on whatever `TENURE_DEVICE` names where it is set (a GPU, say).

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_driver::sys::*;
use tenure_driver::{
    AddressRange, CaptureStatus, Device, Driver, DriverPool, Event, HostFlags, PhysicalPages, RawStream,
    RelaxedCapture, Sharing, Stream, current_device, load, with_context,
};

fn driver() -> &'static Driver {
    match std::env::var_os(load::VARIABLE) {
        Some(_) => Driver::get(),
        None => load::prefer_sim(),
    }
    .unwrap_or_else(|error| panic!("{error}"))
}

fn device() -> &'static Device {
    driver().device(0).unwrap()
}

fn raw(stream: &Stream) -> RawStream {
    // SAFETY: no test uses the handle after the stream.
    unsafe { stream.raw() }
}

fn wait(stream: RawStream) {
    let _relaxed = RelaxedCapture::enter(driver()).unwrap();
    driver().stream_synchronize(stream).unwrap();
}

/// Writes `bytes` to `address` and reads `bytes.len()` back from `from`, in the order of a stream.
fn through(address: CUdeviceptr, from: CUdeviceptr, bytes: &[u8]) -> Vec<u8> {
    let stream = Stream::new(device(), true).unwrap();
    let mut back = vec![0u8; bytes.len()];
    let _current = device().enter().unwrap();
    // SAFETY: the callers own device memory of that length at both addresses; the vectors live until the wait.
    unsafe {
        driver().copy_from_host_async(address, bytes.as_ptr().cast(), bytes.len(), raw(&stream)).unwrap();
        driver().copy_to_host_async(back.as_mut_ptr().cast(), from, back.len(), raw(&stream)).unwrap();
    }
    stream.synchronize().unwrap();
    back
}

#[test]
fn devices_say_what_they_are() {
    let count = driver().device_count().unwrap();
    assert!(count >= 1 && Device::count().unwrap() == count);
    for ordinal in 0..count {
        let device = Device::get(ordinal).unwrap();
        let properties = device.properties().unwrap();
        println!("{ordinal}: {properties:?}");
        assert!(!properties.name.is_empty() && properties.total_memory > 0 && device.ordinal() == ordinal);
        assert_eq!(properties.uuid_text().len(), "GPU-".len() + 36);
        assert!(std::ptr::eq(device, driver().device(ordinal).unwrap()), "one value per device");
        let info = device.memory_info().unwrap();
        assert!(info.free <= info.total && info.total <= properties.total_memory);
    }
    for ordinal in [-1, count, i32::MAX, i32::MIN] {
        let error = driver().device(ordinal).unwrap_err();
        assert_eq!((error.call, error.code), ("cuDeviceGet", CUDA_ERROR_INVALID_DEVICE));
    }
}

#[test]
fn contexts_are_switched_and_switched_back() {
    let count = driver().device_count().unwrap();
    let other = driver().device(count - 1).unwrap();
    std::thread::spawn(move || {
        assert_eq!(current_device().unwrap(), None, "a new thread has none");
        assert_eq!(driver().device_of(RawStream::NULL).unwrap(), 0, "as in the runtime");
        let inner = with_context(device(), || {
            assert_eq!(current_device().unwrap(), Some(0));
            let inner = other.with_context(|| current_device().unwrap()).unwrap();
            assert_eq!(current_device().unwrap(), Some(0));
            inner
        });
        assert_eq!(inner.unwrap(), Some(count - 1));
        let unwound = std::panic::catch_unwind(|| device().with_context(|| panic!("on purpose")));
        assert!(unwound.is_err());
        assert_eq!(current_device().unwrap(), None);
        // Nothing that switches inside leaves a trace.
        device().memory_info().unwrap();
        drop(Stream::new(other, true).unwrap());
        assert_eq!(current_device().unwrap(), None);
    })
    .join()
    .unwrap();
    assert!(device().context_is_alive().unwrap());
}

#[test]
fn streams_know_their_device_and_state() {
    let count = driver().device_count().unwrap();
    for ordinal in 0..count {
        let device = driver().device(ordinal).unwrap();
        let stream = Stream::new(device, true).unwrap();
        let blocking = Stream::new(device, false).unwrap();
        assert_eq!(driver().device_of(raw(&stream)).unwrap(), ordinal);
        assert_eq!(driver().stream_capture_status(raw(&stream)).unwrap(), CaptureStatus::None);
        assert!(driver().stream_is_non_blocking(raw(&stream)).unwrap());
        assert!(!driver().stream_is_non_blocking(raw(&blocking)).unwrap());
        assert_ne!(driver().stream_id(raw(&stream)).unwrap(), driver().stream_id(raw(&blocking)).unwrap());
        assert!(driver().stream_query(raw(&stream)).unwrap());
        assert!(!raw(&stream).is_special());
        let handed_over = driver().stream_create_on(ordinal, true).unwrap();
        assert_eq!(driver().device_of(handed_over).unwrap(), ordinal);
        // SAFETY: made just above, not used again.
        unsafe { driver().stream_destroy(handed_over) }.unwrap();
    }
    assert!(driver().stream_create_on(count, true).is_err());
    for special in [RawStream::NULL, RawStream::LEGACY, RawStream::PER_THREAD] {
        assert!(special.is_special());
    }
    assert!(RawStream::LEGACY.is_legacy() && RawStream::NULL.is_legacy() && !RawStream::PER_THREAD.is_legacy());
}

unsafe extern "C" fn later(flag: *mut c_void) {
    std::thread::sleep(Duration::from_millis(30));
    // SAFETY: the tests pass an AtomicU32 that outlives the work.
    unsafe { &*flag.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

fn busy(stream: RawStream, flag: &'static AtomicU32) {
    // SAFETY: `later` may be called with a static at any time.
    unsafe { driver().launch_host_function(stream, later, (&raw const *flag).cast_mut().cast()) }.unwrap();
}

#[test]
fn events_mark_work() {
    static DONE: AtomicU32 = AtomicU32::new(0);
    let (a, b) = (Stream::new(device(), true).unwrap(), Stream::new(device(), true).unwrap());
    let event = Event::new(device()).unwrap();
    assert!(event.query().unwrap(), "nothing was marked");
    busy(raw(&a), &DONE);
    event.record(raw(&a)).unwrap();
    b.wait_event(&event).unwrap();
    b.synchronize().unwrap();
    assert_eq!(DONE.load(Ordering::SeqCst), 1, "b waited for a");
    assert!(event.query().unwrap());
    event.synchronize().unwrap();
    let (start, end) = (Event::with_timing(device()).unwrap(), Event::with_timing(device()).unwrap());
    start.record(raw(&a)).unwrap();
    busy(raw(&a), &DONE);
    end.record(raw(&a)).unwrap();
    end.synchronize().unwrap();
    assert!(start.elapsed_ms(&end).unwrap() >= 0.0);
}

#[test]
fn plain_memory_and_copies() {
    let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
    let a = device().alloc(bytes.len()).unwrap();
    let b = device().alloc(bytes.len()).unwrap();
    assert_ne!(a, b);
    assert_eq!(through(a, a, &bytes), bytes);
    let stream = Stream::new(device(), true).unwrap();
    // SAFETY: both blocks are ours and of that length.
    unsafe {
        driver().fill_async(b, 0xAB, bytes.len(), raw(&stream)).unwrap();
        driver().copy_on_device_async(b, a, 50_000, raw(&stream)).unwrap();
    }
    stream.synchronize().unwrap();
    let mut back = vec![0u8; bytes.len()];
    // SAFETY: as above.
    unsafe { driver().copy_to_host_async(back.as_mut_ptr().cast(), b, back.len(), raw(&stream)) }.unwrap();
    stream.synchronize().unwrap();
    assert_eq!(back[..50_000], bytes[..50_000]);
    assert!(back[50_000..].iter().all(|&byte| byte == 0xAB));

    let info = driver().pointer_info(a + 17).unwrap().unwrap();
    assert_eq!((info.memory_type, info.managed, info.device), (CU_MEMORYTYPE_DEVICE, false, 0));
    assert_eq!((info.base, info.bytes), (a, bytes.len()));
    let range = device().with_context(|| driver().address_range(a + 17)).unwrap().unwrap();
    assert_eq!(range.0, a);
    let local = 0u8;
    assert_eq!(driver().pointer_info((&raw const local).addr() as u64).unwrap(), None);
    for block in [a, b] {
        // SAFETY: all work is done.
        unsafe { device().free(block) }.unwrap();
    }
    // SAFETY: the driver never had a block there, whatever other tests do meanwhile.
    let error = unsafe { device().free(0x1000) }.unwrap_err();
    assert_eq!((error.call, error.code), ("cuMemFree", CUDA_ERROR_INVALID_VALUE));
}

#[test]
fn too_much_is_out_of_memory() {
    let error = device().alloc(1 << 50).unwrap_err();
    assert!(error.is_out_of_memory() && !error.is_sticky(), "{error}");
    assert_eq!(error.name(), "CUDA_ERROR_OUT_OF_MEMORY");
    let small = device().alloc(4096).unwrap();
    // SAFETY: never used.
    unsafe { device().free(small) }.unwrap();
}

#[test]
fn host_and_managed_memory() {
    let address = device().host_alloc(8192, HostFlags::default()).unwrap();
    // SAFETY: 8192 bytes of host memory, ours.
    unsafe { address.cast::<u8>().write_bytes(0x5A, 8192) };
    let block = device().alloc(8192).unwrap();
    let stream = Stream::new(device(), true).unwrap();
    let mut back = vec![0u8; 8192];
    // SAFETY: all three are of that length and live until the wait.
    unsafe {
        driver().copy_async(block, address.addr() as u64, 8192, raw(&stream)).unwrap();
        driver().copy_to_host_async(back.as_mut_ptr().cast(), block, 8192, raw(&stream)).unwrap();
    }
    stream.synchronize().unwrap();
    assert!(back.iter().all(|&byte| byte == 0x5A));
    // SAFETY: all work is done.
    unsafe {
        device().host_free(address).unwrap();
        device().free(block).unwrap();
    }
    if device().properties().unwrap().capabilities.managed {
        let managed = device().alloc_managed(4096).unwrap();
        assert!(driver().pointer_info(managed).unwrap().unwrap().managed);
        // SAFETY: never used.
        unsafe { device().free(managed) }.unwrap();
    }
}

#[test]
fn one_page_shows_the_same_bytes_at_two_addresses() {
    let sharing = Sharing::default();
    if !device().properties().unwrap().capabilities.virtual_memory {
        println!("skipped: the device has no virtual ranges");
        return;
    }
    let unit = PhysicalPages::granularity(device(), sharing).unwrap();
    let range = AddressRange::reserve(device(), 4 * unit, 0).unwrap();
    let pages = PhysicalPages::create(device(), unit, sharing).unwrap();
    assert_eq!((range.bytes(), pages.bytes()), (4 * unit, unit));
    range.map(0, &pages).unwrap();
    range.map(2 * unit, &pages).unwrap();
    range.set_access(0, unit, &[0]).unwrap();
    range.set_access(2 * unit, unit, &[0]).unwrap();
    // The mappings keep the memory.
    drop(pages);
    let bytes: Vec<u8> = (0..5000u32).map(|i| (i % 251) as u8).collect();
    assert_eq!(through(range.base() + 100, range.base() + 2 * unit as u64 + 100, &bytes), bytes);

    let second = PhysicalPages::create(device(), unit, sharing).unwrap();
    for (offset, code) in [(4 * unit, 1), (4 * unit - 1, 1), (usize::MAX, 1)] {
        assert_eq!(range.map(offset, &second).unwrap_err().code, code, "outside the range");
    }
    assert!(range.map(0, &second).is_err(), "something is mapped there");
    assert_eq!(range.set_access(0, 0, &[0]).unwrap_err().code, 1);
    // SAFETY: all work is done.
    unsafe {
        range.unmap(0, unit).unwrap();
        range.unmap(2 * unit, unit).unwrap();
        assert_eq!(range.unmap(3 * unit, 2 * unit).unwrap_err().code, 1);
    }
}

#[test]
fn pages_are_shared_by_file_descriptor() {
    let capabilities = device().properties().unwrap().capabilities;
    if !(capabilities.virtual_memory && capabilities.page_fds) {
        println!("skipped: the device cannot share pages by file descriptor");
        return;
    }
    let sharing = Sharing { fd: true, ..Sharing::default() };
    let unit = PhysicalPages::granularity(device(), sharing).unwrap();
    let pages = PhysicalPages::create(device(), unit, sharing).unwrap();
    let fd = pages.export_fd().unwrap();
    assert!(fd >= 0);
    let same = PhysicalPages::import_fd(device(), fd, unit).unwrap();
    // SAFETY: ours, from the export.
    assert_eq!(unsafe { libc::close(fd) }, 0);
    let range = AddressRange::reserve(device(), 2 * unit, 0).unwrap();
    range.map(0, &pages).unwrap();
    range.map(unit, &same).unwrap();
    range.set_access(0, 2 * unit, &[0]).unwrap();
    assert_eq!(through(range.base(), range.base() + unit as u64, b"the same bytes"), b"the same bytes");
    // SAFETY: all work is done.
    unsafe { range.unmap(0, 2 * unit) }.unwrap();
}

#[test]
fn pools_allocate_in_order() {
    if !device().properties().unwrap().capabilities.pools {
        println!("skipped: the device has no pools");
        return;
    }
    let pool = DriverPool::create(device(), 0, Sharing::default()).unwrap();
    pool.set_release_threshold(u64::MAX).unwrap();
    assert_eq!(pool.attribute(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD).unwrap(), u64::MAX);
    let stream = Stream::new(device(), true).unwrap();
    let block = pool.alloc(1 << 20, raw(&stream)).unwrap();
    assert!(pool.attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT).unwrap() >= 1 << 20);
    // SAFETY: the last use in the order of the stream.
    unsafe {
        driver().fill_async(block, 1, 1 << 20, raw(&stream)).unwrap();
        pool.free(block, raw(&stream)).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(pool.attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT).unwrap(), 0);
    assert!(pool.attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT).unwrap() >= 1 << 20);
    pool.trim(0).unwrap();
    assert_eq!(pool.attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT).unwrap(), 0);
    for unknown in [0, 9, u32::MAX] {
        assert_eq!(pool.attribute(unknown).unwrap_err().code, CUDA_ERROR_INVALID_VALUE);
    }
    assert!(pool.is_owned());
    let default = DriverPool::default_of(device()).unwrap();
    assert!(!default.is_owned() && default.as_raw() != pool.as_raw());
    assert!(pool.alloc(1 << 50, raw(&stream)).unwrap_err().is_out_of_memory());
}

#[test]
fn relaxed_mode_is_undone() {
    let exchange = |mode| driver().exchange_capture_mode(mode).unwrap();
    assert_eq!(exchange(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CU_STREAM_CAPTURE_MODE_GLOBAL);
    {
        let _outer = RelaxedCapture::enter(driver()).unwrap();
        let _inner = RelaxedCapture::enter(driver()).unwrap();
        assert_eq!(exchange(CU_STREAM_CAPTURE_MODE_RELAXED), CU_STREAM_CAPTURE_MODE_RELAXED);
    }
    assert_eq!(exchange(CU_STREAM_CAPTURE_MODE_GLOBAL), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

#[test]
fn the_device_proof_waits_and_leaves_captures_alone() {
    static DONE: AtomicU32 = AtomicU32::new(0);
    let device = device();
    device.prepare_wait().unwrap();
    device.prepare_wait().unwrap();
    let capturing = Stream::new(device, true).unwrap();
    // Of this thread, whose every call counts; a global one would also see the other tests.
    driver().stream_begin_capture(raw(&capturing), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    assert_eq!(driver().stream_capture_status(raw(&capturing)).unwrap(), CaptureStatus::Active);
    let stream = Stream::new(device, true).unwrap();
    {
        let _relaxed = RelaxedCapture::enter(driver()).unwrap();
        busy(raw(&stream), &DONE);
    }
    device.wait_for_all_work().unwrap();
    assert_eq!(DONE.load(Ordering::SeqCst), 1);
    // Nor do the other calls that make memory, and the questions.
    let block = device.alloc(4096).unwrap();
    device.memory_info().unwrap();
    // SAFETY: never used.
    unsafe { device.free(block) }.unwrap();
    wait(raw(&stream));
    let info = capturing.capture_info().unwrap();
    assert_eq!(info.status, CaptureStatus::Active, "the capture goes on");
    assert!(info.id != 0 && !info.graph.is_null());
    let graph = driver().stream_end_capture(raw(&capturing)).unwrap();
    assert!(!graph.is_null());
    assert!(capturing.capture_info().unwrap().graph.is_null());
    // SAFETY: from the end of the capture, not used again.
    unsafe { driver().graph_destroy(graph) }.unwrap();
}

#[test]
fn a_graph_tells_when_it_is_gone() {
    static GONE: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn gone(flag: *mut c_void) {
        // SAFETY: the static above.
        unsafe { &*flag.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
    }
    // User objects and graphs are the current context's.
    let _current = device().enter().unwrap();
    let stream = Stream::new(device(), true).unwrap();
    driver().stream_begin_capture(raw(&stream), CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    let graph = stream.capture_info().unwrap().graph;
    // SAFETY: the graph is being captured; the function may be called at any time.
    unsafe { driver().graph_on_destroy(graph, gone, (&raw const GONE).cast_mut().cast()) }.unwrap();
    let graph = driver().stream_end_capture(raw(&stream)).unwrap();
    // SAFETY: the graph exists; the executable and the graph are used in order and destroyed once.
    unsafe {
        let exec = driver().graph_instantiate(graph, 0).unwrap();
        driver().graph_launch(exec, raw(&stream)).unwrap();
        stream.synchronize().unwrap();
        driver().graph_destroy(graph).unwrap();
        assert_eq!(GONE.load(Ordering::SeqCst), 0, "the executable is left");
        driver().graph_exec_destroy(exec).unwrap();
    }
    // The driver may call it a little later.
    for _ in 0..2000 {
        if GONE.load(Ordering::SeqCst) == 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(GONE.load(Ordering::SeqCst), 1);
}

#[test]
fn threads_find_one_context() {
    let contexts: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let device = Device::get(0).unwrap();
                    for _ in 0..20 {
                        let block = device.alloc(1 << 12).unwrap();
                        // SAFETY: never used.
                        unsafe { device.free(block) }.unwrap();
                    }
                    device.context().unwrap().addr()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(contexts.iter().all(|&context| context == contexts[0] && context != 0));
}

/// What the checks before a driver call cost; printed, not judged.
#[test]
#[ignore = "a measurement: run it in release mode by hand"]
fn cost_of_the_checks() {
    let time = |name: &str, f: &dyn Fn()| {
        const ROUNDS: u32 = 10_000_000;
        let start = std::time::Instant::now();
        for _ in 0..ROUNDS {
            f();
        }
        println!("{name}: {:.2} ns", start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS));
    };
    let driver = driver();
    time("an empty call", &|| {
        std::hint::black_box(0);
    });
    time("process::check", &|| {
        let _ = std::hint::black_box(tenure_driver::process::check());
    });
    time("Driver::get", &|| {
        let _ = std::hint::black_box(Driver::get());
    });
    time("current_context", &|| {
        let _ = std::hint::black_box(driver.current_context());
    });
    time("stream_capture_status(per thread)", &|| {
        let _ = std::hint::black_box(driver.stream_capture_status(RawStream::PER_THREAD));
    });
}
