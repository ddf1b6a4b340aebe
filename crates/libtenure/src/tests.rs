//! The border from inside: handles under several threads, structures of a wrong size, texts of errors.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use tenure_abi::*;
use tenure_core::sync::{Mutex, MutexGuard};

use crate::buffer::*;
use crate::device::*;
use crate::library::tenure_error_get;
use crate::resource::*;
use crate::slab::Slab;

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
    static SLAB: Slab<u32, ()> = Slab::new(5, "thing", |_| ());
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
