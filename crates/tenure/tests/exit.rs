//! Rule 8: exit is safe with anything alive anywhere, and so is a fork. Each case is a process of its own.

mod common;

use std::cell::RefCell;
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use common::{assert_quiet, child, setup};
use tenure::{Callbacks, Device, DeviceBuffer, Error, Pool, Request, Resource, Result, Stream, StreamRef, current};

static BUFFER: OnceLock<Mutex<DeviceBuffer>> = OnceLock::new();

thread_local! {
    static LOCAL: RefCell<Vec<DeviceBuffer>> = const { RefCell::new(Vec::new()) };
}

fn buffer() -> DeviceBuffer {
    let pool = Pool::builder(&Device::current().unwrap()).build().unwrap();
    DeviceBuffer::new_in(1 << 16, &Stream::create().unwrap(), &pool).unwrap()
}

fn in_child(name: &str, times: usize) {
    setup();
    for _ in 0..times {
        assert_quiet(name, &child(name).output().unwrap());
    }
}

#[test]
fn exit_with_something_alive_is_silent() {
    for name in [
        "in_a_static",
        "in_a_thread_local",
        "in_a_live_thread",
        "current_and_busy",
        "in_an_atexit_hook",
        "while_pools_are_tended",
    ] {
        in_child(name, 20);
    }
}

#[test]
fn a_forked_child_gets_errors_and_the_parent_goes_on() {
    in_child("fork_after_use", 5);
    in_child("fork_while_pools_are_tended", 20);
}

/// Pools that a thread of the library grows and trims all the time.
fn tended() -> Vec<(Pool, DeviceBuffer)> {
    let stream = Stream::create().unwrap();
    (0..8)
        .map(|_| {
            let pool = Pool::builder(&Device::current().unwrap())
                .grow_ahead(true)
                .decay(Duration::from_millis(1))
                .build()
                .unwrap();
            for size in 1..8 {
                drop(DeviceBuffer::new_in(size << 21, &stream, &pool).unwrap());
            }
            let buffer = DeviceBuffer::new_in(1 << 20, &stream, &pool).unwrap();
            (pool, buffer)
        })
        .collect()
}

#[test]
#[ignore = "run in a child by exit_with_something_alive_is_silent"]
fn while_pools_are_tended() {
    setup();
    std::mem::forget(tended());
}

#[test]
#[ignore = "run in a child by a_forked_child_gets_errors_and_the_parent_goes_on"]
fn fork_while_pools_are_tended() {
    setup();
    let pools = tended();
    // SAFETY: as in `fork_after_use`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // The thread is not there, and what it held at the fork is held for ever.
        drop(pools);
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0, "the child did not end well");
    drop(pools);
    assert_eq!(tenure::misuse_count().unwrap(), 0);
}

#[test]
#[ignore = "run in a child by exit_with_something_alive_is_silent"]
fn in_a_static() {
    setup();
    assert!(BUFFER.set(Mutex::new(buffer())).is_ok());
}

#[test]
#[ignore = "run in a child by exit_with_something_alive_is_silent"]
fn in_a_thread_local() {
    setup();
    LOCAL.with_borrow_mut(|local| local.push(buffer()));
}

#[test]
#[ignore = "run in a child by exit_with_something_alive_is_silent"]
fn in_a_live_thread() {
    setup();
    let (send, receive) = std::sync::mpsc::channel();
    thread::spawn(move || {
        LOCAL.with_borrow_mut(|local| local.push(buffer()));
        let mut own = vec![buffer()];
        send.send(()).unwrap();
        // Allocates and frees until the process is gone; at the end every allocation is an error.
        loop {
            own.clear();
            let pool = own.first().and_then(|b| b.resource().ok().flatten());
            match pool.map_or_else(
                || DeviceBuffer::new(4096, &Stream::legacy_default()),
                |p| DeviceBuffer::new_in(4096, &Stream::legacy_default(), &p),
            ) {
                Ok(next) => own.push(next),
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
    });
    receive.recv().unwrap();
}

#[test]
#[ignore = "run in a child by exit_with_something_alive_is_silent"]
fn current_and_busy() {
    setup();
    let stream = Stream::create().unwrap();
    let pool = Pool::builder(&Device::current().unwrap()).build().unwrap();
    current::set(&pool).unwrap();
    tenure::sim::busy(&stream, 200).unwrap();
    std::mem::forget(DeviceBuffer::new(1 << 20, &stream).unwrap());
    assert!(BUFFER.set(Mutex::new(DeviceBuffer::new(100, &stream).unwrap())).is_ok());
}

/// Owns a buffer while the process ends, and is never dropped by force.
struct Holds(#[allow(dead_code, reason = "held for its drop")] DeviceBuffer);

// SAFETY: it never returns memory.
unsafe impl Callbacks for Holds {
    fn allocate(&self, _: &Request, _: StreamRef<'_>) -> Result<*mut std::ffi::c_void> {
        Err(Error::callback("no"))
    }
    unsafe fn deallocate(&self, _: *mut std::ffi::c_void, _: &Request, _: StreamRef<'_>) -> Result<()> {
        Ok(())
    }
}

#[test]
#[ignore = "run in a child by exit_with_something_alive_is_silent"]
fn in_an_atexit_hook() {
    extern "C" fn hook() {
        // Frees and allocates while the process ends: frees return, allocations are errors or work.
        if let Some(buffer) = BUFFER.get() {
            let stream = Stream::legacy_default();
            let _ = DeviceBuffer::new(100, &stream);
            let _ = buffer.lock().map(|mut b| b.resize(1 << 20, &stream).is_ok());
        }
        let _ = current::reset();
    }
    setup();
    // SAFETY: the function stays for the process's life. Registered before and after the first use: it runs on both sides of
    // the library's own hook.
    unsafe { libc::atexit(hook) };
    assert!(BUFFER.set(Mutex::new(buffer())).is_ok());
    // SAFETY: as above.
    unsafe { libc::atexit(hook) };
    current::set(&Resource::from_callbacks(Holds(buffer())).unwrap()).unwrap();
}

#[test]
#[ignore = "run in a child by a_forked_child_gets_errors_and_the_parent_goes_on"]
fn fork_after_use() {
    setup();
    let stream = Stream::create().unwrap();
    let mut kept = buffer();
    // SAFETY: the child only calls tenure and leaves by `_exit`; no lock of another thread matters, since the test harness
    // is waiting.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let refused = |result: Result<DeviceBuffer>| matches!(result, Err(Error::Forked(_)));
        let good = refused(DeviceBuffer::new(100, &stream))
            && matches!(kept.resize(1 << 24, &stream), Err(Error::Forked(_)))
            && matches!(stream.synchronize(), Err(Error::Forked(_)));
        drop(kept);
        // SAFETY: ends this process.
        unsafe { libc::_exit(if good { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0, "the child was not refused");
    kept.copy_from_host(b"goes on", &stream).unwrap();
    drop(kept);
    assert_eq!(tenure::misuse_count().unwrap(), 0);
}
