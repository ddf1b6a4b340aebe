//! The border from inside: handles under several threads, structures of a wrong size, texts of errors.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use tenure_abi::*;
use tenure_core::sync::{Mutex, MutexGuard};

use crate::buffer::*;
use crate::device::*;
use crate::library::tenure_error_get;
use crate::resource::*;
use crate::sharing::*;
use crate::slab::{FEW, Slab};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    let guard = ONE_AT_A_TIME.lock();
    tenure_driver::load::prefer_sim().expect("the simulated device");
    guard
}

const DEFAULT: tenure_stream = tenure_stream { raw: null_mut(), object: 0 };

fn ok(status: tenure_status) {
    assert_eq!(status, TENURE_OK, "{}", message());
}

fn last() -> tenure_error {
    // SAFETY: integers and pointers.
    let mut error: tenure_error = unsafe { std::mem::zeroed() };
    error.size = size_of::<tenure_error>();
    // SAFETY: a structure of this size.
    assert_eq!(unsafe { tenure_error_get(&mut error) }, TENURE_OK);
    error
}

fn message() -> String {
    // SAFETY: valid until the next failing call of this thread.
    unsafe { CStr::from_ptr(last().message) }.to_string_lossy().into_owned()
}

fn cuda() -> tenure_resource {
    let mut resource = 0;
    // SAFETY: an out-pointer.
    ok(unsafe { tenure_cuda_resource(&mut resource) });
    resource
}

fn buffer(bytes: usize) -> tenure_buffer {
    let mut out = 0;
    // SAFETY: an out-pointer.
    ok(unsafe { tenure_buffer_create(bytes, 0, DEFAULT, cuda(), &mut out) });
    out
}

#[test]
fn places_go_round_between_a_thread_that_makes_and_one_that_ends() {
    static SLAB: Slab<u32, (), FEW> = Slab::new(5, "thing", |_| ());
    let (send, receive) = std::sync::mpsc::sync_channel::<u64>(8);
    let ender = std::thread::spawn(move || {
        for handle in receive {
            SLAB.remove(handle, |_| Ok(())).unwrap();
        }
    });
    for i in 0..20_000 {
        send.send(SLAB.insert(i).unwrap()).unwrap();
    }
    drop(send);
    ender.join().unwrap();
    assert!(SLAB.places() < 1000, "{} places for 10 things at a time", SLAB.places());
}

#[test]
fn several_threads_record_and_copy_one_buffer() {
    let _guard = alone();
    let shared = buffer(4096);
    let mut streams = Vec::new();
    for _ in 0..4 {
        let mut stream = DEFAULT;
        // SAFETY: an out-pointer.
        ok(unsafe { tenure_stream_create(0, 1, &mut stream) });
        streams.push((stream.raw as usize, stream.object));
    }
    std::thread::scope(|scope| {
        for &(raw, object) in &streams {
            scope.spawn(move || {
                let stream = tenure_stream { raw: raw as *mut c_void, object };
                for _ in 0..200 {
                    let mut copy = 0;
                    // SAFETY: live handles and out-pointers.
                    unsafe {
                        ok(tenure_buffer_record_stream(shared, stream));
                        ok(tenure_buffer_copy(shared, stream, TENURE_RESOURCE_CURRENT, &mut copy));
                        ok(tenure_buffer_destroy(copy));
                    }
                }
            });
        }
    });
    // SAFETY: live handles.
    unsafe {
        ok(tenure_buffer_destroy(shared));
        for (_, object) in streams {
            ok(tenure_stream_release(object));
        }
    }
}

#[test]
fn a_structure_of_a_wrong_size_loses_nothing() {
    let _guard = alone();
    let given = buffer(1000);
    // SAFETY: integers and pointers.
    let mut detached: tenure_detached = unsafe { std::mem::zeroed() };
    for size in [0, size_of::<usize>(), size_of::<tenure_detached>() - 8, 1 << 20] {
        detached.size = size;
        // SAFETY: a structure at least as large as is believed.
        assert_eq!(unsafe { tenure_buffer_detach(given, &mut detached) }, TENURE_ERROR_INVALID_ARGUMENT);
    }
    let mut view = tenure_buffer_view { size: size_of::<tenure_buffer_view>(), ..unsafe_zeroed() };
    // SAFETY: a structure of this size.
    ok(unsafe { tenure_buffer_view(given, &mut view) });
    assert!(!view.ptr.is_null() && view.bytes == 1000, "the buffer lost its block");
    // SAFETY: a live handle.
    ok(unsafe { tenure_buffer_destroy(given) });
}

fn unsafe_zeroed() -> tenure_buffer_view {
    // SAFETY: integers and pointers.
    unsafe { std::mem::zeroed() }
}

#[test]
fn driver_calls_add_up() {
    let _guard = alone();
    let count = || {
        let mut out = 0;
        // SAFETY: an out-pointer; null stands for all names.
        ok(unsafe { crate::sim::tenure_driver_calls(std::ptr::null(), &mut out) });
        out
    };
    let before = count();
    // SAFETY: a live handle.
    ok(unsafe { tenure_buffer_destroy(buffer(1000)) });
    let after = count();
    assert!(after > before && count() >= after, "{before}, {after}");
}

#[test]
fn texts_of_an_error_stay_until_the_next() {
    let _guard = alone();
    // SAFETY: null is an error here.
    assert_ne!(unsafe { tenure_resource_release(TENURE_RESOURCE_NULL) }, TENURE_OK);
    let (first, second) = (last(), last());
    assert_eq!(first.message, second.message, "the text that the client reads was freed by a second question");
    assert!(message().contains("null"));
    // SAFETY: a null handle.
    assert_ne!(unsafe { tenure_buffer_destroy(0) }, TENURE_OK);
    assert!(message().contains("buffer handle"), "{}", message());
}

#[test]
fn a_try_call_leaves_the_end_of_a_stream_to_collect() {
    let _guard = alone();
    let mut stream = DEFAULT;
    let mut held = 0;
    // SAFETY: out-pointers and live handles.
    unsafe {
        ok(tenure_stream_create(0, 1, &mut stream));
        ok(tenure_buffer_create(0, 0, stream, cuda(), &mut held));
        ok(tenure_stream_release(stream.object));
        let before = tenure_driver::sim::calls("cuStreamDestroy");
        assert_eq!(tenure_buffer_try_destroy(held), TENURE_OK_COLLECT);
        assert_eq!(tenure_driver::sim::calls("cuStreamDestroy"), before);
        ok(crate::library::tenure_collect());
        assert_eq!(tenure_driver::sim::calls("cuStreamDestroy"), before + 1);
    }
}

fn pool() -> tenure_resource {
    let mut out = 0;
    // SAFETY: a live reference, the defaults, an out-pointer.
    ok(unsafe { tenure_pool_create(cuda(), std::ptr::null(), &mut out) });
    out
}

fn made(bytes: usize, stream: tenure_stream, resource: tenure_resource) -> tenure_buffer {
    let mut out = 0;
    // SAFETY: an out-pointer; the stream is alive.
    ok(unsafe { tenure_buffer_create(bytes, 0, stream, resource, &mut out) });
    out
}

fn seen(buffer: tenure_buffer) -> tenure_buffer_view {
    let mut view = tenure_buffer_view { size: size_of::<tenure_buffer_view>(), ..unsafe_zeroed() };
    // SAFETY: a structure of this size.
    ok(unsafe { tenure_buffer_view(buffer, &mut view) });
    view
}

#[test]
fn of_two_threads_that_end_one_buffer_one_is_right() {
    let _guard = alone();
    let pool = pool();
    let barrier = std::sync::Barrier::new(2);
    let handle = tenure_core::sync::atomic::AtomicU64::new(0);
    let right = tenure_core::sync::atomic::AtomicU64::new(0);
    let turn = |first: bool| {
        for _ in 0..2000 {
            if first {
                handle.store(made(512, DEFAULT, pool), std::sync::atomic::Ordering::SeqCst);
            }
            barrier.wait();
            // SAFETY: any value is checked.
            let status = unsafe { tenure_buffer_destroy(handle.load(std::sync::atomic::Ordering::SeqCst)) };
            match status {
                TENURE_OK => _ = right.fetch_add(1, std::sync::atomic::Ordering::SeqCst),
                TENURE_ERROR_BAD_HANDLE => {}
                // One is at it, the long way.
                TENURE_ERROR_INVALID_ARGUMENT => assert!(message().contains("another call"), "{}", message()),
                other => panic!("{other}: {}", message()),
            }
            barrier.wait();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| turn(true));
        scope.spawn(|| turn(false));
    });
    assert_eq!(right.into_inner(), 2000);
    // SAFETY: a live reference.
    ok(unsafe { tenure_resource_release(pool) });
}

#[test]
fn buffers_of_many_threads_are_counted_wherever_they_end() {
    let _guard = alone();
    let pool = pool();
    let (mut statistics, mut limiting) = (0, 0);
    // SAFETY: live references and out-pointers.
    unsafe {
        ok(tenure_limiting_create(pool, 8 << 20, &mut limiting));
        ok(tenure_statistics_create(limiting, &mut statistics));
    }
    let total: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4_usize)
            .map(|t| {
                let (send, receive) = std::sync::mpsc::sync_channel::<tenure_buffer>(16);
                scope.spawn(move || {
                    for buffer in receive {
                        // SAFETY: a live handle, ended once.
                        ok(unsafe { tenure_buffer_destroy(buffer) });
                    }
                });
                scope.spawn(move || {
                    let mut total = 0;
                    for i in 0..1500_usize {
                        let bytes = 1 + (i * 7919 + t * 104_729) % 3000;
                        let buffer = made(bytes, DEFAULT, statistics);
                        let view = seen(buffer);
                        assert_eq!((view.bytes, view.resource_id), (bytes, statistics & !(1 << 63)));
                        total += bytes;
                        if i % 3 == 0 {
                            send.send(buffer).expect("it listens");
                        } else {
                            // SAFETY: a live handle, ended once.
                            ok(unsafe { tenure_buffer_destroy(buffer) });
                        }
                    }
                    total
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic")).sum()
    });
    // SAFETY: integers.
    let mut counted: tenure_statistics = unsafe { std::mem::zeroed() };
    counted.size = size_of::<tenure_statistics>();
    // SAFETY: a structure of this size.
    ok(unsafe { tenure_statistics_get(statistics, &mut counted) });
    assert_eq!((counted.current_bytes, counted.current_count), (0, 0));
    assert_eq!((counted.total_bytes, counted.total_count), (total as i64, 4 * 1500));
    // The limit is whole again, and its adaptors go with the last reference.
    // SAFETY: live handles, given back once.
    unsafe {
        ok(tenure_buffer_destroy(made(8 << 20, DEFAULT, limiting)));
        for resource in [statistics, limiting, pool] {
            ok(tenure_resource_release(resource));
        }
        for resource in [statistics, limiting, pool] {
            let mut device = 0;
            assert_eq!(tenure_resource_device(resource, &mut device), TENURE_ERROR_BAD_HANDLE, "something keeps it");
        }
    }
}

#[test]
fn a_buffer_made_at_hand_keeps_its_stream_and_its_resource() {
    let _guard = alone();
    let pool = pool();
    let mut stream = DEFAULT;
    // SAFETY: an out-pointer.
    ok(unsafe { tenure_stream_create(0, 1, &mut stream) });
    // The second is made of what the first left at the thread's desk.
    // SAFETY: a live handle.
    ok(unsafe { tenure_buffer_destroy(made(700, stream, pool)) });
    let kept = made(700, stream, pool);
    let before = tenure_driver::sim::calls("cuStreamDestroy");
    // SAFETY: live references, given back once.
    unsafe {
        ok(tenure_stream_release(stream.object));
        ok(tenure_resource_release(pool));
    }
    assert_eq!(tenure_driver::sim::calls("cuStreamDestroy"), before, "the buffer's stream ended");
    let view = seen(kept);
    assert_eq!((view.stream.raw, view.stream.object), (stream.raw, stream.object));
    assert_eq!((view.bytes, view.device, view.resource_id), (700, 0, pool));
    // SAFETY: a live handle.
    ok(unsafe { tenure_buffer_destroy(kept) });
    assert_eq!(tenure_driver::sim::calls("cuStreamDestroy"), before + 1);
    let mut device = 0;
    // SAFETY: any value is checked.
    assert_eq!(unsafe { tenure_resource_device(pool, &mut device) }, TENURE_ERROR_BAD_HANDLE);
    // SAFETY: any value is checked.
    assert_eq!(unsafe { tenure_buffer_destroy(kept) }, TENURE_ERROR_BAD_HANDLE);
}

#[test]
fn a_buffer_whose_block_was_freed_behind_it_says_so_and_ends() {
    let _guard = alone();
    let pool = pool();
    let mut statistics = 0;
    // SAFETY: a live reference and an out-pointer.
    ok(unsafe { tenure_statistics_create(pool, &mut statistics) });
    // SAFETY: live handles.
    unsafe {
        ok(tenure_buffer_destroy(made(700, DEFAULT, statistics)));
        let robbed = made(700, DEFAULT, statistics);
        let ptr = seen(robbed).ptr;
        // In the name of another resource it is refused, and the owner is named.
        assert_eq!(tenure_deallocate(pool, ptr, 700, 0, DEFAULT), TENURE_ERROR_OWNERSHIP);
        assert_eq!((last().owner, last().asked), (statistics, pool));
        ok(tenure_deallocate(statistics, ptr, 700, 0, DEFAULT));
        assert_eq!(tenure_buffer_destroy(robbed), TENURE_ERROR_OWNERSHIP);
        assert_eq!(last().misuse_kind, 6, "a double free: {}", message());
        assert_eq!(tenure_buffer_destroy(robbed), TENURE_ERROR_BAD_HANDLE);
    }
}

/// Memory that goes by bytes alone comes with no descriptor: one that is given belongs to something else.
#[test]
fn a_handle_is_opened_with_its_own_descriptors_alone() {
    let _guard = alone();
    let buffer = buffer(4096);
    let mut shared = tenure_shared { data: null_mut(), data_bytes: 0, fds: null_mut(), fd_count: 0 };
    // SAFETY: an out-pointer.
    ok(unsafe { tenure_buffer_share(buffer, TENURE_HANDLE_LEGACY, &mut shared) });
    assert_eq!((shared.fd_count, shared.fds.is_null()), (0, true));
    let mut out = 0;
    let mut import = |fds: &[i32]| {
        // SAFETY: arrays of these lengths, and an out-pointer.
        unsafe { tenure_buffer_import(shared.data, shared.data_bytes, fds.as_ptr(), fds.len(), -1, DEFAULT, &mut out) }
    };
    assert_eq!(import(&[0]), TENURE_ERROR_INVALID_ARGUMENT);
    assert!(message().contains("comes with 0 file descriptors and 1 were given"), "{}", message());
    assert_eq!(import(&[]), TENURE_ERROR_UNSUPPORTED, "of this very process: {}", message());
    // SAFETY: made above.
    ok(unsafe { tenure_shared_free(&mut shared) });
    // SAFETY: made above.
    ok(unsafe { tenure_buffer_destroy(buffer) });
}
