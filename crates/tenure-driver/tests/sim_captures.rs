//! Captures, graphs and user objects on the simulated device.

#![allow(clippy::macro_metavars_in_unsafe, reason = "the arguments of these calls contain no unsafe code")]

mod sim_support;

use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sim_support::*;
use tenure_driver::sim::{self, CAPTURE_RULES, CallClass, Outcome, Situation};
use tenure_driver::sys::*;
use tenure_driver::table::{CALLS, Table};

const G: usize = 2 * MIB;

/// What a call is given.
struct Scene {
    t: Table,
    capturing: CUstream,
    other: CUstream,
    eager: CUevent,
    spare: CUevent,
    captured: CUevent,
    plain: CUdeviceptr,
    pooled: CUdeviceptr,
    pinned: *mut c_void,
}

// SAFETY: handles of the simulated device may be used from any thread.
unsafe impl Sync for Scene {}

type Act = fn(&Scene) -> CUresult;

const ALL: [Situation; 4] =
    [Situation::CapturingThread, Situation::OtherThreadGlobal, Situation::OtherThreadLocal, Situation::Relaxed];

/// A capture begun in this thread, a call made in a situation, and how both end: (the call, the end of the capture).
fn play(t: &Table, flags: u32, situation: Situation, act: Act) -> (CUresult, CUresult) {
    let s = stream(t, flags);
    let mut scene = Scene {
        t: *t,
        capturing: s,
        other: stream(t, 1),
        eager: event(t),
        spare: event(t),
        captured: event(t),
        plain: alloc(t, 256),
        pooled: 0,
        pinned: null_mut(),
    };
    scene.pooled = alloc_async(t, 256, scene.other);
    ok!(t, cuMemHostAlloc(&mut scene.pinned, 64, 0));
    ok!(t, cuEventRecord(scene.eager, scene.other));
    ok!(t, cuCtxSynchronize());
    let mode = match situation {
        Situation::CapturingThread | Situation::OtherThreadGlobal => CU_STREAM_CAPTURE_MODE_GLOBAL,
        Situation::OtherThreadLocal => CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        Situation::Relaxed => CU_STREAM_CAPTURE_MODE_RELAXED,
    };
    ok!(t, cuStreamBeginCapture(s, mode));
    busy(s, 0);
    ok!(t, cuEventRecord(scene.captured, s));
    let code = match situation {
        Situation::CapturingThread | Situation::Relaxed => act(&scene),
        _ => std::thread::scope(|scope| {
            let scene = &scene;
            let other = scope.spawn(move || {
                enter(&scene.t, 0);
                act(scene)
            });
            other.join().unwrap()
        }),
    };
    let mut graph = null_mut();
    let end = cu!(t, cuStreamEndCapture(s, &mut graph));
    assert_eq!(graph.is_null(), end != 0);
    if end == 0 {
        ok!(t, cuGraphDestroy(graph));
    }
    // What the call has not freed.
    cu!(t, cuMemFree(scene.plain));
    cu!(t, cuMemFree(scene.pooled));
    cu!(t, cuMemFreeHost(scene.pinned));
    for e in [scene.eager, scene.spare, scene.captured] {
        ok!(t, cuEventDestroy(e));
    }
    ok!(t, cuStreamDestroy(s));
    ok!(t, cuStreamDestroy(scene.other));
    (code, end)
}

fn works(name: &str, act: Act, situations: &[Situation]) {
    let (t, _lock) = setup();
    for flags in [0, 1] {
        for situation in situations {
            assert_eq!(play(&t, flags, *situation, act), (0, 0), "{name} with {situation:?}, flags {flags}");
        }
    }
}

fn kills(name: &str, act: Act, code: CUresult, flags: &[u32], situations: &[Situation]) {
    let (t, _lock) = setup();
    for flags in flags {
        for situation in situations {
            let want = (code, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
            assert_eq!(play(&t, *flags, *situation, act), want, "{name} with {situation:?}, flags {flags}");
        }
    }
}

const UNSUPPORTED: CUresult = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

#[test]
fn questions_about_the_capturing_stream_are_harmless() {
    works(
        "IsCapturing",
        |c| {
            let mut status = 9;
            let code = cu!(c.t, cuStreamIsCapturing(c.capturing, &mut status));
            assert_eq!(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
            code
        },
        &ALL,
    );
    works(
        "GetCaptureInfo",
        |c| {
            let (mut status, mut id, mut graph, mut deps, mut n) = (9, 0, null_mut(), std::ptr::null(), 9);
            let code =
                cu!(c.t, cuStreamGetCaptureInfo(c.capturing, &mut status, &mut id, &mut graph, &mut deps, &mut n));
            assert!(id > 0 && !graph.is_null() && n == 1 && !deps.is_null());
            code
        },
        &ALL,
    );
    works(
        "GetCtx",
        |c| {
            let mut context = null_mut();
            cu!(c.t, cuStreamGetCtx(c.capturing, &mut context))
        },
        &ALL,
    );
}

#[test]
fn identity_of_the_capturing_stream_kills() {
    kills(
        "GetId",
        |c| {
            let mut id = 0;
            cu!(c.t, cuStreamGetId(c.capturing, &mut id))
        },
        UNSUPPORTED,
        &[0, 1],
        &ALL,
    );
    kills(
        "GetFlags",
        |c| {
            let mut flags = 0;
            cu!(c.t, cuStreamGetFlags(c.capturing, &mut flags))
        },
        UNSUPPORTED,
        &[0, 1],
        &ALL,
    );
    kills("Synchronize", |c| cu!(c.t, cuStreamSynchronize(c.capturing)), UNSUPPORTED, &[0, 1], &ALL);
}

#[test]
fn calls_for_the_whole_context_kill() {
    kills("CtxSynchronize", |c| cu!(c.t, cuCtxSynchronize()), UNSUPPORTED, &[0, 1], &ALL);
    kills("CtxRecordEvent", |c| cu!(c.t, cuCtxRecordEvent(null_mut(), c.spare)), UNSUPPORTED, &[0, 1], &ALL);
}

#[test]
fn unsafe_calls_kill_captures_that_forbid_them() {
    let rows: &[(&str, Act)] = &[
        ("EventQuery", |c| cu!(c.t, cuEventQuery(c.eager))),
        ("EventSynchronize", |c| cu!(c.t, cuEventSynchronize(c.eager))),
        ("StreamQuery", |c| cu!(c.t, cuStreamQuery(c.other))),
        ("StreamSynchronize", |c| cu!(c.t, cuStreamSynchronize(c.other))),
        ("MemAlloc", |c| {
            let mut p = 0;
            let code = cu!(c.t, cuMemAlloc(&mut p, 64));
            if code == 0 { cu!(c.t, cuMemFree(p)) } else { code }
        }),
        ("MemFree", |c| cu!(c.t, cuMemFree(c.plain))),
        ("MemAllocAsync", |c| {
            let mut p = 0;
            let code = cu!(c.t, cuMemAllocAsync(&mut p, 64, c.other));
            if code == 0 { cu!(c.t, cuMemFreeAsync(p, c.other)) } else { code }
        }),
        ("MemFreeAsync", |c| cu!(c.t, cuMemFreeAsync(c.pooled, c.other))),
        ("MemHostAlloc", |c| {
            let mut p = null_mut();
            let code = cu!(c.t, cuMemHostAlloc(&mut p, 64, 0));
            if code == 0 { cu!(c.t, cuMemFreeHost(p)) } else { code }
        }),
        ("MemFreeHost", |c| cu!(c.t, cuMemFreeHost(c.pinned))),
        ("MemPoolTrimTo", |c| {
            let mut p = null_mut();
            ok!(c.t, cuDeviceGetDefaultMemPool(&mut p, 0));
            cu!(c.t, cuMemPoolTrimTo(p, 0))
        }),
    ];
    for (name, act) in rows {
        let strict = [Situation::CapturingThread, Situation::OtherThreadGlobal];
        kills(name, *act, UNSUPPORTED, &[0, 1], &strict);
        works(name, *act, &[Situation::OtherThreadLocal, Situation::Relaxed]);
    }
}

#[test]
fn inside_the_relaxed_exchange_unsafe_calls_work() {
    works(
        "MemFree, relaxed by the caller",
        |c| {
            let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
            ok!(c.t, cuThreadExchangeStreamCaptureMode(&mut mode));
            assert_eq!(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
            let code = cu!(c.t, cuMemFree(c.plain));
            ok!(c.t, cuThreadExchangeStreamCaptureMode(&mut mode));
            assert_eq!(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
            code
        },
        &ALL,
    );
    kills(
        "CtxSynchronize, relaxed by the caller",
        |c| {
            let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
            ok!(c.t, cuThreadExchangeStreamCaptureMode(&mut mode));
            let code = cu!(c.t, cuCtxSynchronize());
            ok!(c.t, cuThreadExchangeStreamCaptureMode(&mut mode));
            code
        },
        UNSUPPORTED,
        &[0, 1],
        &ALL,
    );
}

#[test]
fn work_elsewhere_and_virtual_memory_are_free() {
    let rows: &[(&str, Act)] = &[
        ("EventRecord", |c| cu!(c.t, cuEventRecord(c.spare, c.other))),
        ("StreamWaitEvent", |c| cu!(c.t, cuStreamWaitEvent(c.other, c.eager, 0))),
        ("EventCreate and Destroy", |c| {
            let mut e = null_mut();
            ok!(c.t, cuEventCreate(&mut e, 2));
            cu!(c.t, cuEventDestroy(e))
        }),
        ("StreamCreate and Destroy", |c| {
            let mut s = null_mut();
            ok!(c.t, cuStreamCreate(&mut s, 1));
            cu!(c.t, cuStreamDestroy(s))
        }),
        ("MemGetInfo", |c| {
            let (mut a, mut b) = (0, 0);
            cu!(c.t, cuMemGetInfo(&mut a, &mut b))
        }),
        ("PointerGetAttribute", |c| {
            let mut n = 0;
            cu!(c.t, cuPointerGetAttribute((&raw mut n).cast(), CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, c.plain))
        }),
        ("virtual memory", |c| {
            let (mut va, mut h) = (0, 0);
            ok!(c.t, cuMemAddressReserve(&mut va, G, 0, 0, 0));
            ok!(c.t, cuMemCreate(&mut h, G, &prop(0), 0));
            ok!(c.t, cuMemMap(va, G, 0, h, 0));
            ok!(c.t, cuMemSetAccess(va, G, &access(0), 1));
            ok!(c.t, cuMemUnmap(va, G));
            ok!(c.t, cuMemRelease(h));
            cu!(c.t, cuMemAddressFree(va, G))
        }),
    ];
    for (name, act) in rows {
        works(name, *act, &ALL);
    }
}

#[test]
fn eager_events_captured_events_and_the_legacy_stream_kill() {
    kills(
        "wait for an eager event",
        |c| cu!(c.t, cuStreamWaitEvent(c.capturing, c.eager, 0)),
        CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
        &[0, 1],
        &ALL,
    );
    kills(
        "query of a captured event",
        |c| cu!(c.t, cuEventQuery(c.captured)),
        CUDA_ERROR_CAPTURED_EVENT,
        &[0, 1],
        &ALL,
    );
    // The legacy stream: only while a blocking stream captures.
    let id: Act = |c| {
        let mut id = 0;
        cu!(c.t, cuStreamGetId(null_mut(), &mut id))
    };
    let record: Act = |c| cu!(c.t, cuEventRecord(c.spare, null_mut()));
    kills("GetId(legacy)", id, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, &[0], &ALL);
    kills("EventRecord(legacy)", record, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, &[0], &ALL);
    let (t, _lock) = setup();
    for situation in ALL {
        assert_eq!(play(&t, 1, situation, id), (0, 0));
        assert_eq!(play(&t, 1, situation, record), (0, 0));
        let ask: Act = |c| {
            let mut status = 9;
            cu!(c.t, cuStreamIsCapturing(null_mut(), &mut status))
        };
        let want = (CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 0);
        assert_eq!(play(&t, 0, situation, ask), want, "refused, and the capture goes on");
        assert_eq!(play(&t, 1, situation, ask), (0, 0));
    }
}

#[test]
fn the_rules_as_data_are_whole() {
    for rule in CAPTURE_RULES {
        for call in rule.calls {
            assert!(CALLS.iter().any(|c| c.name == *call), "{call} is no call of the table");
        }
        for situation in ALL {
            assert_eq!(sim::capture_outcome(rule.class, situation), rule.outcomes[situation as usize]);
        }
    }
    let relaxed = |class| sim::capture_outcome(class, Situation::Relaxed);
    assert_eq!(relaxed(CallClass::Unsafe), Outcome::Works);
    assert_eq!(relaxed(CallClass::Context), Outcome::Kills(UNSUPPORTED));
}

#[test]
fn an_outside_stream_is_pulled_in_silently_and_must_join() {
    let (t, _lock) = setup();
    let (s, o) = (stream(&t, 1), stream(&t, 1));
    let (fork, join) = (event(&t), event(&t));
    let p = alloc(&t, 4096);
    ok!(t, cuMemsetD8(p, 0, 4096));
    ok!(t, cuCtxSynchronize());
    let status = |s| {
        let mut status = 9;
        ok!(t, cuStreamIsCapturing(s, &mut status));
        status
    };
    let mut graph = null_mut();
    // Joined: the graph has the work of both.
    ok!(t, cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    ok!(t, cuMemsetD8Async(p, 1, 4096, s));
    ok!(t, cuEventRecord(fork, s));
    ok!(t, cuStreamWaitEvent(o, fork, 0));
    assert_eq!(status(o), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ok!(t, cuMemsetD8Async(p, 2, 100, o));
    ok!(t, cuEventRecord(join, o));
    ok!(t, cuStreamWaitEvent(s, join, 0));
    ok!(t, cuStreamEndCapture(s, &mut graph));
    assert_eq!((status(s), status(o)), (0, 0));
    ok!(t, cuStreamSynchronize(s));
    assert_eq!(bytes(p, 1), [0], "nothing has run");
    let mut exec = null_mut();
    ok!(t, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    ok!(t, cuGraphDestroy(graph));
    for _ in 0..3 {
        ok!(t, cuMemsetD8Async(p, 0, 4096, s));
        ok!(t, cuGraphLaunch(exec, s));
        ok!(t, cuStreamSynchronize(s));
        assert_eq!((bytes(p, 1), bytes(p + 100, 1)), (vec![2], vec![1]));
    }
    ok!(t, cuGraphExecDestroy(exec));
    // Not joined.
    ok!(t, cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    ok!(t, cuEventRecord(fork, s));
    ok!(t, cuStreamWaitEvent(o, fork, 0));
    ok!(t, cuMemsetD8Async(p, 2, 100, o));
    assert_eq!(cu!(t, cuStreamEndCapture(s, &mut graph)), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    assert_eq!((status(s), status(o)), (0, 0));
    // Ended on the wrong stream.
    ok!(t, cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    ok!(t, cuEventRecord(fork, s));
    ok!(t, cuStreamWaitEvent(o, fork, 0));
    assert_eq!(cu!(t, cuStreamEndCapture(o, &mut graph)), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    assert_eq!(cu!(t, cuStreamEndCapture(s, &mut graph)), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    // The wrong thread.
    ok!(t, cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    let handle = s as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut graph = null_mut();
            let code = cu!(t, cuStreamEndCapture(handle as CUstream, &mut graph));
            assert_eq!(code, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        });
    });
    assert_eq!(cu!(t, cuStreamEndCapture(s, &mut graph)), CUDA_ERROR_ILLEGAL_STATE, "that ended it");
    // Streams that cannot capture, and one that does already.
    let code = cu!(t, cuStreamBeginCapture(null_mut(), CU_STREAM_CAPTURE_MODE_GLOBAL));
    assert_eq!(code, UNSUPPORTED);
    assert_eq!(cu!(t, cuStreamEndCapture(s, &mut graph)), CUDA_ERROR_ILLEGAL_STATE);
    assert_eq!(cu!(t, cuStreamBeginCapture(s, 7)), CUDA_ERROR_INVALID_VALUE);
    ok!(t, cuMemFree(p));
    for e in [fork, join] {
        ok!(t, cuEventDestroy(e));
    }
    ok!(t, cuStreamDestroy(s));
    ok!(t, cuStreamDestroy(o));
}

static GONE: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn gone(_: *mut c_void) {
    GONE.fetch_add(1, Ordering::SeqCst);
}

fn await_gone(n: usize) -> bool {
    let until = Instant::now() + Duration::from_secs(20);
    while GONE.load(Ordering::SeqCst) < n && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    GONE.load(Ordering::SeqCst) == n
}

#[test]
fn user_objects_live_as_long_as_graph_executables_and_launches() {
    let (t, _lock) = setup();
    let s = stream(&t, 1);
    GONE.store(0, Ordering::SeqCst);
    ok!(t, cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    busy(s, 300);
    let (mut status, mut id, mut graph) = (0, 0, null_mut());
    ok!(t, cuStreamGetCaptureInfo(s, &mut status, &mut id, &mut graph, null_mut(), null_mut()));
    let mut object = null_mut();
    ok!(t, cuUserObjectCreate(&mut object, null_mut(), Some(gone), 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ok!(t, cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    let mut made = null_mut();
    ok!(t, cuStreamEndCapture(s, &mut made));
    assert_eq!(made, graph);
    let mut exec = null_mut();
    ok!(t, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    ok!(t, cuGraphDestroy(graph));
    assert_eq!(GONE.load(Ordering::SeqCst), 0, "the executable lives");
    ok!(t, cuGraphLaunch(exec, s));
    ok!(t, cuGraphExecDestroy(exec));
    assert_eq!(GONE.load(Ordering::SeqCst), 0, "a launch is running");
    ok!(t, cuStreamSynchronize(s));
    assert!(await_gone(1));
    // Without a graph.
    ok!(t, cuUserObjectCreate(&mut object, null_mut(), Some(gone), 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ok!(t, cuUserObjectRelease(object, 1));
    assert_eq!(cu!(t, cuUserObjectRelease(object, 2)), CUDA_ERROR_INVALID_VALUE);
    ok!(t, cuUserObjectRelease(object, 1));
    assert!(await_gone(2));
    // With a capture that dies.
    ok!(t, cuUserObjectCreate(&mut object, null_mut(), Some(gone), 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ok!(t, cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    ok!(t, cuStreamGetCaptureInfo(s, &mut status, &mut id, &mut graph, null_mut(), null_mut()));
    ok!(t, cuGraphRetainUserObject(graph, object, 1, 0));
    ok!(t, cuUserObjectRelease(object, 1));
    assert_eq!(cu!(t, cuCtxSynchronize()), UNSUPPORTED);
    assert_eq!(cu!(t, cuMemsetD8Async(alloc_relaxed(&t), 1, 1, s)), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ok!(t, cuStreamIsCapturing(s, &mut status));
    assert_eq!(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    assert_eq!(GONE.load(Ordering::SeqCst), 2);
    assert_eq!(cu!(t, cuStreamEndCapture(s, &mut graph)), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert!(await_gone(3));
    ok!(t, cuStreamDestroy(s));
}

fn alloc_relaxed(t: &Table) -> CUdeviceptr {
    let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    ok!(t, cuThreadExchangeStreamCaptureMode(&mut mode));
    let p = alloc(t, 1);
    ok!(t, cuThreadExchangeStreamCaptureMode(&mut mode));
    p
}

#[test]
fn memory_of_a_graph_lives_with_it() {
    let (t, _lock) = setup();
    let s = stream(&t, 1);
    let free = free_bytes(&t);
    let pooled = alloc_async(&t, 64, s);
    ok!(t, cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    let p = alloc_async(&t, MIB, s);
    ok!(t, cuMemsetD8Async(p, 5, MIB, s));
    assert_eq!(cu!(t, cuMemFreeAsync(pooled, s)), CUDA_ERROR_INVALID_VALUE, "memory from outside has no node");
    ok!(t, cuMemFreeAsync(p, s));
    assert_eq!(cu!(t, cuMemFreeAsync(p, s)), CUDA_ERROR_INVALID_VALUE);
    let mut graph = null_mut();
    ok!(t, cuStreamEndCapture(s, &mut graph));
    let mut exec = null_mut();
    ok!(t, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    ok!(t, cuGraphDestroy(graph));
    ok!(t, cuGraphLaunch(exec, s));
    ok!(t, cuStreamSynchronize(s));
    assert_eq!(bytes(p, 10), [5; 10]);
    ok!(t, cuGraphExecDestroy(exec));
    ok!(t, cuMemFreeAsync(pooled, s));
    ok!(t, cuStreamSynchronize(s));
    assert_eq!(free_bytes(&t), free);
    ok!(t, cuStreamDestroy(s));
}

#[test]
fn destroying_streams_that_capture() {
    let (t, _lock) = setup();
    let (s, o) = (stream(&t, 1), stream(&t, 1));
    let e = event(&t);
    ok!(t, cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ok!(t, cuEventRecord(e, s));
    ok!(t, cuStreamWaitEvent(o, e, 0));
    ok!(t, cuStreamDestroy(s));
    let mut status = 9;
    ok!(t, cuStreamIsCapturing(o, &mut status));
    assert_eq!(status, CU_STREAM_CAPTURE_STATUS_NONE);
    // Nothing is refused any more.
    let p = alloc(&t, 64);
    ok!(t, cuCtxSynchronize());
    // A stream that was pulled in goes: what it recorded must be joined like that of any other.
    let s = stream(&t, 1);
    for work in [false, true] {
        let o = stream(&t, 1);
        ok!(t, cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        ok!(t, cuEventRecord(e, s));
        ok!(t, cuStreamWaitEvent(o, e, 0));
        if work {
            ok!(t, cuMemsetD8Async(p, 1, 1, o));
        }
        ok!(t, cuStreamDestroy(o));
        let mut graph = null_mut();
        let code = cu!(t, cuStreamEndCapture(s, &mut graph));
        assert_eq!(code, if work { CUDA_ERROR_STREAM_CAPTURE_UNJOINED } else { 0 });
        if code == 0 {
            ok!(t, cuGraphDestroy(graph));
        }
    }
    ok!(t, cuStreamDestroy(o));
    ok!(t, cuCtxSynchronize());
    ok!(t, cuMemFree(p));
    ok!(t, cuEventDestroy(e));
    ok!(t, cuStreamDestroy(s));
}
