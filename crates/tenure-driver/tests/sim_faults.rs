//! Faults on demand, counts of calls, and the seeded scheduler.

#![allow(clippy::macro_metavars_in_unsafe, reason = "the arguments of these calls contain no unsafe code")]

mod sim_support;

use std::collections::HashSet;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sim_support::*;
use tenure_driver::sim::{self, Config, SimError};
use tenure_driver::sys::*;
use tenure_driver::table::{CALLS, Table};

#[test]
fn any_call_can_be_made_to_fail_once() {
    let (t, _lock) = setup();
    let mut p = 5;
    let free = free_bytes(&t);
    sim::fail_next("cuMemAlloc", 999, 0).unwrap();
    assert_eq!(cu!(t, cuMemAlloc(&mut p, 64)), 999);
    assert_eq!((p, free_bytes(&t)), (5, free), "and does nothing");
    ok!(t, cuMemAlloc(&mut p, 64));
    ok!(t, cuMemFree(p));
    // The third from now, and two plans at once.
    sim::fail_next("cuMemAlloc", 2, 2).unwrap();
    sim::fail_next("cuMemAlloc", 46, 3).unwrap();
    let codes: Vec<_> = (0..5).map(|_| cu!(t, cuMemAlloc(&mut p, 64))).collect();
    assert_eq!(codes, [0, 0, 2, 46, 0]);
    sim::fail_next("cuMemFree", 1, 100).unwrap();
    assert_eq!(sim::fail_clear(), 1);
    let unknown = SimError::UnknownCall { call: "cudaMalloc".to_owned() };
    assert_eq!(sim::fail_next("cudaMalloc", 2, 0), Err(unknown));
    assert_eq!(sim::fail_next("cuMemAlloc", 0, 0), Err(SimError::NotAFailure));
    for call in CALLS {
        sim::fail_next(call.name, 2, 0).unwrap();
    }
    assert_eq!(cu!(t, cuCtxSynchronize()), 2);
    assert_eq!(cu!(t, cuInit(0)), 2);
    assert_eq!(cu!(t, cuMemAddressFree(0, 0)), 2);
    assert_eq!(sim::fail_clear(), CALLS.len() - 3);
    ok!(t, cuCtxSynchronize());
}

#[test]
fn calls_are_counted_by_name() {
    let (t, _lock) = setup();
    sim::reset_calls();
    assert_eq!(sim::calls_all().len(), 0);
    for _ in 0..3 {
        let p = alloc(&t, 64);
        ok!(t, cuMemFree(p));
    }
    let _ = cu!(t, cuMemFree(1));
    assert_eq!((sim::calls("cuMemAlloc"), sim::calls("cuMemFree"), sim::calls("cuMemCreate")), (3, 4, 0));
    assert_eq!(sim::calls("cudaMalloc"), 0);
    assert_eq!(sim::calls_all().into_iter().collect::<Vec<_>>(), [("cuMemAlloc", 3), ("cuMemFree", 4)]);
}

#[test]
fn the_machine_is_built_once() {
    let (t, _lock) = setup();
    let _ = t;
    let error = sim::configure(Config { devices: 1, memory: 1 << 30 }).unwrap_err();
    assert_eq!(error, SimError::AlreadyInUse);
    assert!(error.to_string().contains("TENURE_SIM_MEMORY"));
    assert_eq!(sim::config(), Config { devices: 2, memory: MEMORY });
    assert!(matches!(sim::configure(Config { devices: 99, memory: 1 }), Err(SimError::BadConfig { .. })));
}

static LOG: Mutex<Vec<usize>> = Mutex::new(Vec::new());

unsafe extern "C" fn note(user: *mut c_void) {
    LOG.lock().unwrap().push(user as usize);
}

/// Three streams of four numbered operations; stream 2 waits before its third for the second of stream 1, and the
/// legacy stream has one in the middle of the blocking stream 0.
fn program(t: &Table) -> (Vec<CUstream>, Vec<CUevent>) {
    let streams = vec![stream(t, 0), stream(t, 1), stream(t, 1)];
    let e = event(t);
    let put = |s: CUstream, n: usize| ok!(t, cuLaunchHostFunc(s, Some(note), n as *mut c_void));
    for i in 0..4 {
        for (n, s) in streams.iter().enumerate() {
            if n == 2 && i == 2 {
                ok!(t, cuStreamWaitEvent(*s, e, 0));
            }
            put(*s, n * 10 + i);
            if n == 1 && i == 1 {
                ok!(t, cuEventRecord(e, *s));
            }
        }
        if i == 1 {
            put(null_mut(), 90);
        }
    }
    (streams, vec![e])
}

fn legal(order: &[usize]) -> bool {
    let at = |n: usize| order.iter().position(|m| *m == n).unwrap();
    let ascending = (0..3).all(|s| (0..3).all(|i| at(s * 10 + i) < at(s * 10 + i + 1)));
    order.len() == 13 && ascending && at(11) < at(22) && at(1) < at(90) && at(90) < at(2)
}

fn run(t: &Table, seed: u64, finish: impl FnOnce(&[CUstream])) -> Vec<usize> {
    sim::schedule(seed);
    let (streams, events) = program(t);
    assert_eq!(LOG.lock().unwrap().len(), 0, "nothing runs by itself");
    finish(&streams);
    let order = std::mem::take(&mut *LOG.lock().unwrap());
    ok!(t, cuCtxSynchronize());
    for s in streams {
        ok!(t, cuStreamDestroy(s));
    }
    for e in events {
        ok!(t, cuEventDestroy(e));
    }
    order
}

#[test]
fn seeds_give_many_orders_all_of_them_legal_and_repeatable() {
    let (t, _lock) = setup();
    let before = sim::violations();
    let mut seen = HashSet::new();
    for seed in 0..300 {
        let order = run(&t, seed, |_| {
            sim::run_all();
        });
        assert!(legal(&order), "seed {seed}: {order:?}");
        let again = run(&t, seed, |_| {
            ok!(t, cuCtxSynchronize());
        });
        assert_eq!(order, again, "seed {seed}: the same, run by who waits");
        seen.insert(order);
    }
    assert!(seen.len() > 200, "only {} different orders of 300", seen.len());
    assert!(seen.iter().any(|o| o[0] / 10 == 2) && seen.iter().any(|o| o[0] / 10 == 1));
    assert_eq!(sim::violations(), before);
}

#[test]
fn steps_are_single_and_waits_run_no_more_than_needed() {
    let (t, _lock) = setup();
    let order = run(&t, 7, |streams| {
        let mut steps = 0;
        while sim::step() {
            steps += 1;
        }
        // 13 functions, a record and a wait.
        assert_eq!(steps, 15);
        assert_eq!(cu!(t, cuStreamQuery(streams[0])), 0);
    });
    assert!(legal(&order));
    // A program that polls gets there.
    run(&t, 8, |streams| while cu!(t, cuStreamQuery(streams[2])) != 0 {});
    // Time stands still.
    let s = stream(&t, 1);
    let started = Instant::now();
    sim::busy(s, Duration::from_secs(1000)).unwrap();
    ok!(t, cuStreamSynchronize(s));
    assert!(started.elapsed() < Duration::from_secs(500));
    // Back to the workers, with something in the queue.
    let p = alloc(&t, 64);
    ok!(t, cuMemsetD8Async(p, 4, 64, s));
    assert_ne!(bytes(p, 64), [4; 64]);
    sim::schedule_workers();
    ok!(t, cuStreamSynchronize(s));
    assert_eq!(bytes(p, 64), [4; 64]);
    ok!(t, cuMemFree(p));
    ok!(t, cuStreamDestroy(s));
}

#[test]
fn a_missing_wait_shows_under_some_seed() {
    let (t, _lock) = setup();
    let (a, b) = (stream(&t, 1), stream(&t, 1));
    let p = alloc(&t, 64);
    let mut outcomes = HashSet::new();
    for seed in 0..20 {
        sim::schedule(seed);
        ok!(t, cuMemsetD8Async(p, 1, 64, a));
        ok!(t, cuMemsetD8Async(p, 2, 64, b));
        ok!(t, cuCtxSynchronize());
        outcomes.insert(bytes(p, 1)[0]);
    }
    assert_eq!(outcomes, HashSet::from([1, 2]));
    ok!(t, cuMemFree(p));
    ok!(t, cuStreamDestroy(a));
    ok!(t, cuStreamDestroy(b));
}

#[test]
fn graphs_run_their_branches_in_any_order() {
    let (t, _lock) = setup();
    let (s, o) = (stream(&t, 1), stream(&t, 1));
    let (fork, join) = (event(&t), event(&t));
    let put = |s: CUstream, n: usize| ok!(t, cuLaunchHostFunc(s, Some(note), n as *mut c_void));
    ok!(t, cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    put(s, 0);
    ok!(t, cuEventRecord(fork, s));
    ok!(t, cuStreamWaitEvent(o, fork, 0));
    put(s, 1);
    put(o, 2);
    ok!(t, cuEventRecord(join, o));
    ok!(t, cuStreamWaitEvent(s, join, 0));
    put(s, 3);
    let (mut graph, mut exec) = (null_mut(), null_mut());
    ok!(t, cuStreamEndCapture(s, &mut graph));
    ok!(t, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    let mut seen = HashSet::new();
    for seed in 0..20 {
        sim::schedule(seed);
        ok!(t, cuGraphLaunch(exec, s));
        ok!(t, cuStreamSynchronize(s));
        seen.insert(std::mem::take(&mut *LOG.lock().unwrap()));
    }
    assert_eq!(seen, HashSet::from([vec![0, 1, 2, 3], vec![0, 2, 1, 3]]));
    ok!(t, cuGraphDestroy(graph));
    ok!(t, cuGraphExecDestroy(exec));
    for e in [fork, join] {
        ok!(t, cuEventDestroy(e));
    }
    ok!(t, cuStreamDestroy(s));
    ok!(t, cuStreamDestroy(o));
}
