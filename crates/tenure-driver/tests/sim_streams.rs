//! Streams, events and their order on the simulated device.

#![allow(clippy::macro_metavars_in_unsafe, reason = "the arguments of these calls contain no unsafe code")]

mod sim_support;

use std::ptr::null_mut;
use std::sync::Mutex;

use sim_support::*;
use tenure_driver::sim::{self, OnViolation};
use tenure_driver::sys::*;

static LOG: Mutex<Vec<usize>> = Mutex::new(Vec::new());

unsafe extern "C" fn note(user: *mut c_void) {
    LOG.lock().unwrap().push(user as usize);
}

fn log(t: &tenure_driver::table::Table, s: CUstream, n: usize) {
    ok!(t, cuLaunchHostFunc(s, Some(note), n as *mut c_void));
}

fn taken() -> Vec<usize> {
    std::mem::take(&mut LOG.lock().unwrap())
}

#[test]
fn one_stream_runs_in_order_and_later() {
    let (t, _lock) = setup();
    let s = stream(&t, 1);
    busy(s, 200);
    for n in 0..10 {
        log(&t, s, n);
    }
    assert_eq!(cu!(t, cuStreamQuery(s)), CUDA_ERROR_NOT_READY);
    ok!(t, cuStreamSynchronize(s));
    assert_eq!(taken(), (0..10).collect::<Vec<_>>());
    assert_eq!(cu!(t, cuStreamQuery(s)), 0);
    ok!(t, cuStreamDestroy(s));
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let (t, _lock) = setup();
    let (a, b, free) = (stream(&t, 0), stream(&t, 0), stream(&t, 1));
    busy(a, 60);
    log(&t, a, 1);
    log(&t, null_mut(), 2);
    log(&t, b, 3);
    log(&t, free, 0);
    ok!(t, cuStreamSynchronize(b));
    assert_eq!(taken(), [0, 1, 2, 3], "the non-blocking stream did not wait");
    // The same through the per-thread stream, which is blocking.
    busy(CU_STREAM_PER_THREAD, 30);
    log(&t, CU_STREAM_PER_THREAD, 1);
    log(&t, CU_STREAM_LEGACY, 2);
    ok!(t, cuStreamSynchronize(null_mut()));
    assert_eq!(taken(), [1, 2]);
    for s in [a, b, free] {
        ok!(t, cuStreamDestroy(s));
    }
}

#[test]
fn synchronising_the_legacy_stream_covers_blocking_streams_only() {
    let (t, _lock) = setup();
    let (a, free) = (stream(&t, 0), stream(&t, 1));
    busy(a, 30);
    busy(free, 800);
    ok!(t, cuStreamSynchronize(null_mut()));
    assert_eq!((cu!(t, cuStreamQuery(a)), cu!(t, cuStreamQuery(free))), (0, CUDA_ERROR_NOT_READY));
    ok!(t, cuCtxSynchronize());
    assert_eq!(cu!(t, cuStreamQuery(free)), 0);
    ok!(t, cuStreamDestroy(a));
    ok!(t, cuStreamDestroy(free));
}

#[test]
fn per_thread_streams_differ_per_thread_and_special_ids_are_stable() {
    let (t, _lock) = setup();
    let id = |s| {
        let mut id = 0;
        ok!(t, cuStreamGetId(s, &mut id));
        id
    };
    assert_eq!(id(null_mut()), id(CU_STREAM_LEGACY));
    let mine = id(CU_STREAM_PER_THREAD);
    assert_eq!(mine, id(CU_STREAM_PER_THREAD));
    let other = std::thread::scope(|s| {
        s.spawn(|| {
            enter(&t, 0);
            id(CU_STREAM_PER_THREAD)
        })
        .join()
        .unwrap()
    });
    assert_ne!(mine, other);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut id = 0;
            assert_eq!(cu!(t, cuStreamGetId(null_mut(), &mut id)), CUDA_ERROR_INVALID_CONTEXT);
        });
    });
}

#[test]
fn events_carry_order_and_time() {
    let (t, _lock) = setup();
    let (a, b) = (stream(&t, 1), stream(&t, 1));
    let (e, f) = (event(&t), event(&t));
    assert_eq!(cu!(t, cuEventQuery(e)), 0, "never recorded counts as complete");
    ok!(t, cuEventRecord(e, a));
    busy(a, 200);
    log(&t, a, 1);
    ok!(t, cuEventRecord(f, a));
    ok!(t, cuStreamWaitEvent(b, f, 0));
    log(&t, b, 2);
    assert_eq!(cu!(t, cuEventQuery(f)), CUDA_ERROR_NOT_READY);
    let mut ms = 0.0;
    assert_eq!(cu!(t, cuEventElapsedTime(&mut ms, e, f)), CUDA_ERROR_NOT_READY);
    ok!(t, cuStreamSynchronize(b));
    assert_eq!(taken(), [1, 2]);
    ok!(t, cuEventSynchronize(f));
    ok!(t, cuEventElapsedTime(&mut ms, e, f));
    assert!((195.0..60_000.0).contains(&ms), "{ms}");
    let mut plain = null_mut();
    ok!(t, cuEventCreate(&mut plain, CU_EVENT_DISABLE_TIMING));
    ok!(t, cuEventRecord(plain, a));
    assert_eq!(cu!(t, cuEventElapsedTime(&mut ms, e, plain)), CUDA_ERROR_INVALID_HANDLE);
    for e in [e, f, plain] {
        ok!(t, cuEventDestroy(e));
    }
    ok!(t, cuStreamDestroy(a));
    ok!(t, cuStreamDestroy(b));
}

#[test]
fn an_event_outlives_its_stream_and_a_destroyed_stream_finishes() {
    let (t, _lock) = setup();
    let s = stream(&t, 1);
    let e = event(&t);
    busy(s, 200);
    log(&t, s, 7);
    ok!(t, cuEventRecord(e, s));
    ok!(t, cuStreamDestroy(s));
    assert_eq!(cu!(t, cuEventQuery(e)), CUDA_ERROR_NOT_READY);
    ok!(t, cuEventSynchronize(e));
    assert_eq!(taken(), [7]);
    ok!(t, cuEventDestroy(e));
}

#[test]
fn an_event_behind_the_whole_context_covers_destroyed_and_foreign_streams() {
    let (t, _lock) = setup();
    let e = event(&t);
    let s = stream(&t, 1);
    busy(s, 40);
    log(&t, s, 1);
    ok!(t, cuStreamDestroy(s));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            enter(&t, 0);
            busy(CU_STREAM_PER_THREAD, 60);
            log(&t, CU_STREAM_PER_THREAD, 2);
        });
    });
    ok!(t, cuCtxRecordEvent(null_mut(), e));
    let o = stream(&t, 1);
    ok!(t, cuStreamWaitEvent(o, e, 0));
    log(&t, o, 3);
    ok!(t, cuStreamSynchronize(o));
    assert_eq!(taken(), [1, 2, 3]);
    ok!(t, cuEventDestroy(e));
    ok!(t, cuStreamDestroy(o));
}

#[test]
fn host_functions_may_not_call_the_driver() {
    static CODE: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(-1);
    unsafe extern "C" fn bad(_: *mut c_void) {
        let t = sim::table();
        let mut count = 0;
        CODE.store(cu!(t, cuDeviceGetCount(&mut count)), std::sync::atomic::Ordering::SeqCst);
    }
    let (t, _lock) = setup();
    let s = stream(&t, 1);
    ok!(t, cuLaunchHostFunc(s, Some(bad), null_mut()));
    ok!(t, cuStreamSynchronize(s));
    assert_eq!(CODE.load(std::sync::atomic::Ordering::SeqCst), CUDA_ERROR_NOT_PERMITTED);
    assert_eq!(cu!(t, cuLaunchHostFunc(s, None, null_mut())), CUDA_ERROR_INVALID_VALUE);
    ok!(t, cuStreamDestroy(s));
}

#[test]
fn waits_of_a_time_do_not_keep_other_streams_waiting() {
    let (t, _lock) = setup();
    let streams: Vec<_> = (0..32).map(|_| stream(&t, 1)).collect();
    for s in &streams {
        busy(*s, 600);
    }
    let s = stream(&t, 1);
    let p = alloc(&t, 100);
    ok!(t, cuMemsetD8Async(p, 3, 100, s));
    ok!(t, cuStreamSynchronize(s));
    assert_eq!(bytes(p, 100), [3; 100]);
    assert_eq!(cu!(t, cuStreamQuery(streams[0])), CUDA_ERROR_NOT_READY);
    for s in &streams {
        ok!(t, cuStreamDestroy(*s));
    }
    ok!(t, cuMemFree(p));
    ok!(t, cuStreamDestroy(s));
}

#[test]
fn handles_are_reissued_and_dead_ones_noticed() {
    let (t, _lock) = setup();
    sim::on_violation(OnViolation::Record);
    let before = sim::violations();
    let (a, b) = (stream(&t, 1), stream(&t, 1));
    let id = |s| {
        let mut id = 0;
        ok!(t, cuStreamGetId(s, &mut id));
        id
    };
    let first = id(a);
    ok!(t, cuStreamDestroy(b));
    ok!(t, cuStreamDestroy(a));
    let c = stream(&t, 1);
    assert_eq!(c, a, "the value destroyed last is issued first");
    assert_ne!(id(c), first, "but it is another stream");
    assert_eq!(cu!(t, cuStreamSynchronize(b)), CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(cu!(t, cuStreamDestroy(0xdead_0000usize as CUstream)), CUDA_ERROR_INVALID_HANDLE);
    let e = event(&t);
    ok!(t, cuEventDestroy(e));
    assert_eq!(cu!(t, cuEventRecord(e, c)), CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(event(&t), e);
    assert_eq!(sim::violations(), before + 3);
    let texts = sim::violation_texts();
    assert!(texts[before as usize].contains("was destroyed before"), "{texts:?}");
    assert!(texts[before as usize + 1].contains("was never created"), "{texts:?}");
    // Null is an error of the ordinary kind.
    assert_eq!(cu!(t, cuEventQuery(null_mut())), CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(cu!(t, cuStreamDestroy(null_mut())), CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(cu!(t, cuStreamCreate(null_mut(), 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(sim::violations(), before + 3);
    ok!(t, cuEventDestroy(e));
    ok!(t, cuStreamDestroy(c));
}
