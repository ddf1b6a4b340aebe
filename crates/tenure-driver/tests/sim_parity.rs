//! What calls answer, on the simulated device and as recorded on a real one.
//!
//! Each probe makes a few calls and notes their codes. [`RECORDED`] holds what an NVIDIA H200 with driver 580 answered;
//! the simulated device must answer the same, up to the differences that are listed with their reasons. With
//! `TENURE_PARITY=cuda` the probes run on the CUDA driver instead and print a new record; `TENURE_PARITY_GROUP` picks one
//! of the groups (`arguments`, `pages`, `ends`, `wild`, `destroyed`, `capture`), since a driver may crash in one of them.

#![allow(clippy::macro_metavars_in_unsafe, reason = "the arguments of these calls contain no unsafe code")]

mod sim_parity_record;
mod sim_support;

use std::ptr::null_mut;

use sim_parity_record::{DIFFERENT, RECORDED};
use sim_support::*;
use tenure_driver::sys::*;
use tenure_driver::table::Table;

const G: usize = 2 * MIB;

/// The table of the CUDA driver.
fn cuda() -> Table {
    type Find = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_uint) -> CUresult;
    // SAFETY: the driver library may be loaded; the function has this type since CUDA 12, and what it returns for a name
    // and a version has the parameters of that version.
    unsafe {
        let library = Box::leak(Box::new(libloading::Library::new("libcuda.so.1").expect("a CUDA driver")));
        let find: libloading::Symbol<'static, Find> = library.get(b"cuGetProcAddress_v2\0").expect("CUDA 12");
        Table::resolve(|name, version| {
            let name = std::ffi::CString::new(name).unwrap();
            let (mut address, mut status) = (null_mut(), 0);
            find(name.as_ptr(), &mut address, version, 1, &mut status);
            address
        })
    }
}

/// The codes of one probe.
type Codes = Vec<CUresult>;

struct Probe {
    name: String,
    codes: Codes,
}

type Named = (&'static str, Codes);
/// A list of probes, made together.
type Group = fn(&Table) -> Vec<Named>;

fn recording() -> bool {
    std::env::var("TENURE_PARITY").is_ok_and(|v| v == "cuda")
}

/// While recording, tells at once, since a real driver may crash at the next call.
#[allow(clippy::print_stdout, reason = "the record is what this program prints")]
fn print(name: &str, codes: &Codes) {
    if recording() {
        println!("    ({name:?}, &{codes:?}),");
    }
}

fn first(list: Vec<Named>) -> Vec<Named> {
    list.iter().for_each(|(name, codes)| print(name, codes));
    list
}

fn show(all: &mut Vec<Named>, named: Named) {
    print(named.0, &named.1);
    all.push(named);
}

fn ended(t: &Table, s: CUstream) -> CUresult {
    let mut g = null_mut();
    let code = cu!(t, cuStreamEndCapture(s, &mut g));
    if !g.is_null() {
        ok!(t, cuGraphDestroy(g));
    }
    code
}

fn relaxed<R>(t: &Table, f: impl FnOnce() -> R) -> R {
    let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    ok!(t, cuThreadExchangeStreamCaptureMode(&mut mode));
    let r = f();
    ok!(t, cuThreadExchangeStreamCaptureMode(&mut mode));
    r
}

struct Scene<'a> {
    t: &'a Table,
    capturing: CUstream,
    other: CUstream,
    eager: CUevent,
    spare: CUevent,
    captured: CUevent,
    plain: CUdeviceptr,
    pooled: CUdeviceptr,
    pinned: *mut c_void,
    pageable: [u8; 64],
}

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Sync for Scene<'_> {}

type Act = fn(&Scene<'_>) -> CUresult;

unsafe extern "C" fn nothing(_: *mut c_void) {}

/// Calls made while a stream captures.
const ACTS: &[(&str, Act)] = &[
    ("EventQuery(eager)", |c| cu!(c.t, cuEventQuery(c.eager))),
    ("EventSynchronize(eager)", |c| cu!(c.t, cuEventSynchronize(c.eager))),
    ("EventQuery(captured)", |c| cu!(c.t, cuEventQuery(c.captured))),
    ("EventSynchronize(captured)", |c| cu!(c.t, cuEventSynchronize(c.captured))),
    ("EventRecord(other)", |c| cu!(c.t, cuEventRecord(c.spare, c.other))),
    ("EventRecord(legacy)", |c| cu!(c.t, cuEventRecord(c.spare, null_mut()))),
    ("WaitEvent(other, eager)", |c| cu!(c.t, cuStreamWaitEvent(c.other, c.eager, 0))),
    ("WaitEvent(capturing, eager)", |c| cu!(c.t, cuStreamWaitEvent(c.capturing, c.eager, 0))),
    ("WaitEvent(legacy, eager)", |c| cu!(c.t, cuStreamWaitEvent(null_mut(), c.eager, 0))),
    ("StreamQuery(other)", |c| cu!(c.t, cuStreamQuery(c.other))),
    ("StreamSynchronize(other)", |c| cu!(c.t, cuStreamSynchronize(c.other))),
    ("StreamQuery(capturing)", |c| cu!(c.t, cuStreamQuery(c.capturing))),
    ("StreamSynchronize(capturing)", |c| cu!(c.t, cuStreamSynchronize(c.capturing))),
    ("StreamSynchronize(legacy)", |c| cu!(c.t, cuStreamSynchronize(null_mut()))),
    ("CtxSynchronize", |c| cu!(c.t, cuCtxSynchronize())),
    ("CtxRecordEvent", |c| {
        let mut context = null_mut();
        ok!(c.t, cuCtxGetCurrent(&mut context));
        cu!(c.t, cuCtxRecordEvent(context, c.spare))
    }),
    ("StreamGetId(capturing)", |c| {
        let mut n = 0;
        cu!(c.t, cuStreamGetId(c.capturing, &mut n))
    }),
    ("StreamGetId(other)", |c| {
        let mut n = 0;
        cu!(c.t, cuStreamGetId(c.other, &mut n))
    }),
    ("StreamGetId(legacy)", |c| {
        let mut n = 0;
        cu!(c.t, cuStreamGetId(null_mut(), &mut n))
    }),
    ("StreamGetFlags(capturing)", |c| {
        let mut n = 0;
        cu!(c.t, cuStreamGetFlags(c.capturing, &mut n))
    }),
    ("StreamGetFlags(legacy)", |c| {
        let mut n = 0;
        cu!(c.t, cuStreamGetFlags(null_mut(), &mut n))
    }),
    ("StreamGetCtx(capturing)", |c| {
        let mut n = null_mut();
        cu!(c.t, cuStreamGetCtx(c.capturing, &mut n))
    }),
    ("StreamGetCtx(legacy)", |c| {
        let mut n = null_mut();
        cu!(c.t, cuStreamGetCtx(null_mut(), &mut n))
    }),
    ("IsCapturing(legacy)", |c| {
        let mut n = 0;
        cu!(c.t, cuStreamIsCapturing(null_mut(), &mut n))
    }),
    ("GetCaptureInfo(legacy)", |c| {
        let mut n = 0;
        cu!(c.t, cuStreamGetCaptureInfo(null_mut(), &mut n, null_mut(), null_mut(), null_mut(), null_mut()))
    }),
    ("MemAlloc", |c| {
        let mut p = 0;
        let code = cu!(c.t, cuMemAlloc(&mut p, 64));
        if code == 0 { relaxed(c.t, || cu!(c.t, cuMemFree(p))) } else { code }
    }),
    ("MemFree", |c| cu!(c.t, cuMemFree(c.plain))),
    ("MemAllocManaged", |c| {
        let mut p = 0;
        let code = cu!(c.t, cuMemAllocManaged(&mut p, 64, 1));
        if code == 0 { relaxed(c.t, || cu!(c.t, cuMemFree(p))) } else { code }
    }),
    ("MemAllocAsync(other)", |c| {
        let mut p = 0;
        let code = cu!(c.t, cuMemAllocAsync(&mut p, 64, c.other));
        if code == 0 { relaxed(c.t, || cu!(c.t, cuMemFreeAsync(p, c.other))) } else { code }
    }),
    ("MemFreeAsync(other)", |c| cu!(c.t, cuMemFreeAsync(c.pooled, c.other))),
    ("MemFreeAsync(capturing, outside)", |c| cu!(c.t, cuMemFreeAsync(c.pooled, c.capturing))),
    ("MemHostAlloc", |c| {
        let mut p = null_mut();
        let code = cu!(c.t, cuMemHostAlloc(&mut p, 64, 0));
        if code == 0 { relaxed(c.t, || cu!(c.t, cuMemFreeHost(p))) } else { code }
    }),
    ("MemFreeHost", |c| cu!(c.t, cuMemFreeHost(c.pinned))),
    ("MemPoolTrimTo", |c| {
        let mut p = null_mut();
        ok!(c.t, cuDeviceGetDefaultMemPool(&mut p, 0));
        cu!(c.t, cuMemPoolTrimTo(p, 0))
    }),
    ("MemGetInfo", |c| {
        let (mut a, mut b) = (0, 0);
        cu!(c.t, cuMemGetInfo(&mut a, &mut b))
    }),
    ("Memcpy", |c| cu!(c.t, cuMemcpy(c.plain, c.pageable.as_ptr() as u64, 64))),
    ("Memcpy to the host", |c| cu!(c.t, cuMemcpy(c.pageable.as_ptr() as u64, c.plain, 64))),
    ("MemcpyDtoHAsync(other, pageable)", |c| {
        cu!(c.t, cuMemcpyDtoHAsync(c.pageable.as_ptr() as *mut c_void, c.plain, 64, c.other))
    }),
    ("LaunchHostFunc(other)", |c| cu!(c.t, cuLaunchHostFunc(c.other, Some(nothing), null_mut()))),
    ("LaunchHostFunc(legacy)", |c| cu!(c.t, cuLaunchHostFunc(null_mut(), Some(nothing), null_mut()))),
    ("StreamQuery(legacy)", |c| cu!(c.t, cuStreamQuery(null_mut()))),
    ("MemHostRegister", |c| {
        let p = c.pageable.as_ptr() as *mut c_void;
        let code = cu!(c.t, cuMemHostRegister(p, 64, 0));
        if code == 0 { relaxed(c.t, || cu!(c.t, cuMemHostUnregister(p))) } else { code }
    }),
    ("MemPoolCreate", |c| {
        let mut props: CUmemPoolProps = zeroed();
        props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        props.location = location(0);
        let mut p = null_mut();
        let code = cu!(c.t, cuMemPoolCreate(&mut p, &props));
        if code == 0 { relaxed(c.t, || cu!(c.t, cuMemPoolDestroy(p))) } else { code }
    }),
    ("MemPoolSetAttribute", |c| {
        let (mut p, mut zero) = (null_mut(), 0u64);
        ok!(c.t, cuDeviceGetDefaultMemPool(&mut p, 0));
        cu!(c.t, cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut zero).cast()))
    }),
    ("PointerGetAttribute", |c| {
        let mut n = 0;
        cu!(c.t, cuPointerGetAttribute((&raw mut n).cast(), CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, c.plain))
    }),
    ("pages", |c| {
        let (mut va, mut h) = (0, 0);
        ok!(c.t, cuMemAddressReserve(&mut va, G, 0, 0, 0));
        ok!(c.t, cuMemCreate(&mut h, G, &prop(0), 0));
        ok!(c.t, cuMemMap(va, G, 0, h, 0));
        ok!(c.t, cuMemSetAccess(va, G, &access(0), 1));
        ok!(c.t, cuMemUnmap(va, G));
        ok!(c.t, cuMemRelease(h));
        cu!(c.t, cuMemAddressFree(va, G))
    }),
    ("MemsetD8", |c| cu!(c.t, cuMemsetD8(c.plain, 1, 64))),
    ("MemcpyHtoDAsync(other, pageable)", |c| {
        cu!(c.t, cuMemcpyHtoDAsync(c.plain, c.pageable.as_ptr().cast(), 64, c.other))
    }),
    ("MemsetD8Async(other)", |c| cu!(c.t, cuMemsetD8Async(c.plain, 1, 64, c.other))),
    ("MemsetD8Async(legacy)", |c| cu!(c.t, cuMemsetD8Async(c.plain, 1, 64, null_mut()))),
    ("StreamDestroy(capturing)", |c| {
        let mut s = null_mut();
        ok!(c.t, cuStreamCreate(&mut s, 1));
        ok!(c.t, cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        cu!(c.t, cuStreamDestroy(s))
    }),
];

fn captures(t: &Table, probes: &mut Vec<Probe>) {
    for (name, act) in ACTS {
        let mut codes = Codes::new();
        for flags in [0, 1] {
            for (mode, other) in [(0, false), (0, true), (1, true), (2, false)] {
                let mut scene = Scene {
                    t,
                    capturing: stream(t, flags),
                    other: stream(t, 1),
                    eager: event(t),
                    spare: event(t),
                    captured: event(t),
                    plain: alloc(t, 256),
                    pooled: 0,
                    pinned: null_mut(),
                    pageable: [1; 64],
                };
                scene.pooled = alloc_async(t, 256, scene.other);
                ok!(t, cuMemHostAlloc(&mut scene.pinned, 64, 0));
                ok!(t, cuEventRecord(scene.eager, scene.other));
                ok!(t, cuCtxSynchronize());
                ok!(t, cuStreamBeginCapture(scene.capturing, mode));
                ok!(t, cuMemsetD8Async(scene.plain, 1, 1, scene.capturing));
                ok!(t, cuEventRecord(scene.captured, scene.capturing));
                codes.push(if other {
                    std::thread::scope(|scope| {
                        let scene = &scene;
                        let call = scope.spawn(move || {
                            enter(scene.t, 0);
                            act(scene)
                        });
                        call.join().unwrap()
                    })
                } else {
                    act(&scene)
                });
                codes.push(ended(t, scene.capturing));
                cu!(t, cuMemFree(scene.plain));
                cu!(t, cuMemFree(scene.pooled));
                cu!(t, cuMemFreeHost(scene.pinned));
                for e in [scene.eager, scene.spare, scene.captured] {
                    ok!(t, cuEventDestroy(e));
                }
                ok!(t, cuStreamDestroy(scene.capturing));
                ok!(t, cuStreamDestroy(scene.other));
            }
        }
        print(name, &codes);
        probes.push(Probe { name: format!("capture {name}"), codes });
    }
}

/// Sequences of calls around the ends of captures.
fn ends(t: &Table) -> Vec<Named> {
    let (s, o, e, f) = (stream(t, 1), stream(t, 1), event(t), event(t));
    let p = alloc(t, 4096);
    let mut g = null_mut();
    let set = |s| cu!(t, cuMemsetD8Async(p, 1, 16, s));
    let mut all = first(vec![
        ("begin on legacy", vec![cu!(t, cuStreamBeginCapture(null_mut(), 0))]),
        ("begin with a bad mode", vec![cu!(t, cuStreamBeginCapture(s, 7))]),
        ("end without begin", vec![cu!(t, cuStreamEndCapture(s, &mut g))]),
        ("begin twice", vec![cu!(t, cuStreamBeginCapture(s, 1)), cu!(t, cuStreamBeginCapture(s, 1)), ended(t, s)]),
    ]);
    let mut codes = vec![cu!(t, cuStreamBeginCapture(s, 1)), cu!(t, cuEventRecord(e, s))];
    codes.extend([cu!(t, cuStreamWaitEvent(o, e, 0)), set(o), cu!(t, cuStreamEndCapture(o, &mut g)), ended(t, s)]);
    codes.extend([cu!(t, cuStreamQuery(o)), cu!(t, cuStreamQuery(s))]);
    show(&mut all, ("unmatched, unjoined", codes));
    let mut codes = vec![cu!(t, cuStreamBeginCapture(s, 1)), cu!(t, cuEventRecord(e, s))];
    codes.extend([cu!(t, cuStreamWaitEvent(o, e, 0)), ended(t, s), cu!(t, cuStreamQuery(o))]);
    show(&mut all, ("pulled in without work", codes));
    let mut codes = vec![cu!(t, cuStreamBeginCapture(s, 1)), cu!(t, cuEventRecord(e, s)), ended(t, s)];
    codes.extend([cu!(t, cuEventQuery(e)), cu!(t, cuEventSynchronize(e)), cu!(t, cuStreamWaitEvent(o, e, 0))]);
    codes.extend([cu!(t, cuEventRecord(e, o)), cu!(t, cuStreamSynchronize(o)), cu!(t, cuEventQuery(e))]);
    show(&mut all, ("event of an ended capture", codes));
    let mut codes = vec![cu!(t, cuStreamBeginCapture(s, 1)), cu!(t, cuEventRecord(e, s))];
    codes.extend([cu!(t, cuStreamWaitEvent(null_mut(), e, 0)), ended(t, s)]);
    show(&mut all, ("legacy pulled in", codes));
    let mut codes = vec![cu!(t, cuStreamBeginCapture(s, 1)), cu!(t, cuEventRecord(e, s))];
    codes.extend([cu!(t, cuStreamWaitEvent(o, e, 0)), set(o), ended(t, s), cu!(t, cuStreamQuery(o))]);
    show(&mut all, ("unjoined", codes));
    let mut codes = vec![cu!(t, cuStreamBeginCapture(s, 1)), cu!(t, cuStreamEndCapture(s, null_mut()))];
    codes.extend([ended(t, s)]);
    show(&mut all, ("end without a place for the graph", codes));
    let mut q = 0;
    let codes = vec![cu!(t, cuMemAllocAsync(&mut q, 0, s)), i32::from(q == 0), cu!(t, cuMemFreeAsync(q, s))];
    show(&mut all, ("no bytes in stream order", codes));
    let mut q = null_mut();
    let codes = vec![cu!(t, cuMemHostAlloc(&mut q, 0, 0)), i32::from(q.is_null())];
    show(&mut all, ("no bytes of host memory", codes));
    let mut codes = vec![cu!(t, cuStreamBeginCapture(s, 1)), cu!(t, cuStreamBeginCapture(o, 1))];
    codes.extend([cu!(t, cuEventRecord(e, s)), cu!(t, cuStreamWaitEvent(o, e, 0)), ended(t, s), ended(t, o)]);
    show(&mut all, ("two captures merge", codes));
    let mut codes = vec![cu!(t, cuStreamBeginCapture(s, 1)), cu!(t, cuCtxSynchronize()), set(s)];
    let mut status = 9;
    codes.extend([cu!(t, cuStreamIsCapturing(s, &mut status)), status as i32, cu!(t, cuEventRecord(f, s))]);
    codes.extend([cu!(t, cuEventQuery(f)), ended(t, s), set(s), cu!(t, cuStreamSynchronize(s))]);
    show(&mut all, ("a dead capture", codes));
    ok!(t, cuStreamBeginCapture(s, 0));
    let handle = s as usize;
    let wrong = std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            enter(t, 0);
            ended(t, handle as CUstream)
        });
        other.join().unwrap()
    });
    show(&mut all, ("end in another thread", vec![wrong, ended(t, s)]));
    let mut q = 0;
    let mut codes = vec![cu!(t, cuStreamBeginCapture(s, 1)), cu!(t, cuMemAllocAsync(&mut q, 64, s))];
    codes.extend([cu!(t, cuMemFreeAsync(q, s)), cu!(t, cuMemFreeAsync(q, s)), ended(t, s)]);
    show(&mut all, ("memory of a graph freed twice", codes));
    show(
        &mut all,
        (
            "graph arguments",
            vec![
                cu!(t, cuGraphDestroy(null_mut())),
                cu!(t, cuGraphExecDestroy(null_mut())),
                cu!(t, cuGraphInstantiateWithFlags(&mut g, null_mut(), 0)),
                cu!(t, cuGraphLaunch(null_mut(), s)),
                cu!(t, cuUserObjectCreate(&mut g, null_mut(), None, 1, 1)),
                cu!(t, cuStreamIsCapturing(s, null_mut())),
                cu!(t, cuStreamEndCapture(s, null_mut())),
            ],
        ),
    );
    for e in [e, f] {
        ok!(t, cuEventDestroy(e));
    }
    ok!(t, cuStreamDestroy(s));
    ok!(t, cuStreamDestroy(o));
    ok!(t, cuMemFree(p));
    all
}

/// Bad arguments to memory, streams and events.
fn arguments(t: &Table) -> Vec<Named> {
    let (s, e) = (stream(t, 1), event(t));
    let (mut p, mut q, mut h, mut n, mut m) = (alloc(t, 4096), 0, null_mut(), 0usize, 0usize);
    let mut ms = 0f32;
    let mut all = first(vec![
        (
            "alloc",
            vec![cu!(t, cuMemAlloc(&mut q, 0)), cu!(t, cuMemAlloc(null_mut(), 1)), cu!(t, cuMemAlloc(&mut q, 1 << 60))],
        ),
        (
            "free",
            vec![
                cu!(t, cuMemFree(0)),
                cu!(t, cuMemFree(p + 512)),
                cu!(t, cuMemFree(0x1234)),
                cu!(t, cuMemFree(p)),
                cu!(t, cuMemFree(p)),
            ],
        ),
        (
            "streams",
            vec![
                cu!(t, cuStreamCreate(&mut h, 7)),
                cu!(t, cuStreamCreate(null_mut(), 0)),
                cu!(t, cuStreamDestroy(null_mut())),
                cu!(t, cuStreamGetId(s, null_mut())),
            ],
        ),
        (
            "events",
            vec![
                cu!(t, cuEventCreate(&mut h, 64)),
                cu!(t, cuEventCreate(null_mut(), 0)),
                cu!(t, cuEventDestroy(null_mut())),
                cu!(t, cuEventRecord(null_mut(), s)),
                cu!(t, cuEventQuery(null_mut())),
                cu!(t, cuStreamWaitEvent(s, null_mut(), 0)),
                cu!(t, cuStreamWaitEvent(s, e, 8)),
                cu!(t, cuEventQuery(e)),
                cu!(t, cuEventElapsedTime(&mut ms, e, e)),
                cu!(t, cuLaunchHostFunc(s, None, null_mut())),
            ],
        ),
        (
            "async alloc",
            vec![
                cu!(t, cuMemAllocAsync(&mut q, 0, s)),
                cu!(t, cuMemAllocAsync(null_mut(), 1, s)),
                cu!(t, cuMemAllocAsync(&mut q, 1 << 60, s)),
                cu!(t, cuMemAllocAsync(&mut q, 64, s)),
                cu!(t, cuMemFreeAsync(q + 1, s)),
                cu!(t, cuMemFreeAsync(q, s)),
                cu!(t, cuMemFreeAsync(q, s)),
                cu!(t, cuMemFreeAsync(0, s)),
                cu!(t, cuMemFreeAsync(0x1234, s)),
            ],
        ),
    ]);
    p = alloc(t, 4096);
    show(
        &mut all,
        (
            "a plain block freed in stream order",
            vec![cu!(t, cuMemFreeAsync(p, s)), cu!(t, cuStreamSynchronize(s)), cu!(t, cuMemFree(p))],
        ),
    );
    p = alloc(t, 4096);
    let mut host = [0u8; 64];
    show(
        &mut all,
        (
            "copies",
            vec![
                cu!(t, cuMemcpyAsync(p, 0, 16, s)),
                cu!(t, cuMemcpyDtoDAsync(p, 0x1234, 16, s)),
                cu!(t, cuMemcpyHtoDAsync(0x1234, host.as_ptr().cast(), 16, s)),
                cu!(t, cuMemcpyDtoHAsync(host.as_mut_ptr().cast(), host.as_ptr() as u64, 16, s)),
                cu!(t, cuMemcpyDtoDAsync(p, p, 0, s)),
                cu!(t, cuMemsetD8Async(0x1234, 0, 16, s)),
                cu!(t, cuMemsetD8Async(p, 0, 0, s)),
                cu!(t, cuStreamSynchronize(s)),
            ],
        ),
    );
    let mut bytes = [0u64; 2];
    let d = bytes.as_mut_ptr().cast::<c_void>();
    let ask = |what, p| cu!(t, cuPointerGetAttribute(d, what, p));
    let pageable = host.as_ptr() as u64;
    show(
        &mut all,
        (
            "attributes of a plain block",
            (1..=17).filter(|a| ![5, 6, 14, 15, 16].contains(a)).map(|a| ask(a, p)).collect(),
        ),
    );
    show(
        &mut all,
        (
            "attributes of ordinary memory",
            (1..=17).filter(|a| ![5, 6, 14, 15, 16].contains(a)).map(|a| ask(a, pageable)).collect(),
        ),
    );
    show(&mut all, ("attributes of nothing", vec![ask(2, 0), ask(2, 0x1234), ask(99, p)]));
    show(
        &mut all,
        (
            "address range",
            vec![
                cu!(t, cuMemGetAddressRange(&mut q, &mut n, p + 5)),
                cu!(t, cuMemGetAddressRange(&mut q, &mut n, 0x1234)),
                cu!(t, cuMemGetAddressRange(null_mut(), null_mut(), p)),
                cu!(t, cuMemGetInfo(null_mut(), &mut n)),
            ],
        ),
    );
    let mut pinned = null_mut();
    let mut page = vec![0u8; 16384];
    let own: *mut c_void = ((page.as_mut_ptr() as usize + 4095) & !4095) as *mut c_void;
    show(
        &mut all,
        (
            "host memory",
            vec![
                cu!(t, cuMemHostAlloc(&mut pinned, 0, 0)),
                cu!(t, cuMemHostAlloc(&mut pinned, 64, 64)),
                cu!(t, cuMemHostAlloc(&mut pinned, 64, 0)),
                cu!(t, cuMemFree(pinned as u64)),
                cu!(t, cuMemHostGetDevicePointer(&mut q, pinned, 0)),
                cu!(t, cuMemHostGetDevicePointer(&mut q, own, 0)),
                cu!(t, cuMemHostRegister(pinned, 64, 0)),
                cu!(t, cuMemFreeHost(pinned)),
                cu!(t, cuMemFreeHost(pinned)),
                cu!(t, cuMemFreeHost(null_mut())),
                cu!(t, cuMemHostRegister(own, 4096, 0)),
                cu!(t, cuMemHostRegister(own, 4096, 0)),
                cu!(t, cuMemHostUnregister(own)),
                cu!(t, cuMemHostUnregister(own)),
                cu!(t, cuMemHostRegister(own, 0, 0)),
                cu!(t, cuMemHostRegister(null_mut(), 64, 0)),
            ],
        ),
    );
    show(
        &mut all,
        (
            "managed memory",
            vec![
                cu!(t, cuMemAllocManaged(&mut q, 64, 0)),
                cu!(t, cuMemAllocManaged(&mut q, 0, 1)),
                cu!(t, cuMemAllocManaged(&mut q, 4096, 1)),
                ask(8, q),
                cu!(t, cuMemPrefetchAsync(q, 4096, location(0), 0, s)),
                cu!(t, cuMemPrefetchAsync(q, 0, location(0), 0, s)),
                cu!(t, cuMemPrefetchAsync(q, 8192, location(0), 0, s)),
                cu!(t, cuMemPrefetchAsync(p, 4096, location(0), 0, s)),
                cu!(t, cuMemFree(q)),
                cu!(t, cuMemFree(q)),
            ],
        ),
    );
    let (mut pool, mut zero, mut one) = (null_mut(), 0u64, 1u64);
    let mut props: CUmemPoolProps = zeroed();
    let none = cu!(t, cuMemPoolCreate(&mut pool, &props));
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = location(99);
    let far = cu!(t, cuMemPoolCreate(&mut pool, &props));
    props.location = location(0);
    let mut default = null_mut();
    ok!(t, cuDeviceGetDefaultMemPool(&mut default, 0));
    show(
        &mut all,
        (
            "pools",
            vec![
                none,
                far,
                cu!(t, cuMemPoolCreate(&mut pool, &props)),
                cu!(t, cuMemPoolDestroy(default)),
                cu!(t, cuMemPoolDestroy(null_mut())),
                cu!(t, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, (&raw mut one).cast())),
                cu!(t, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, (&raw mut zero).cast())),
                cu!(t, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, (&raw mut zero).cast())),
                cu!(t, cuMemPoolGetAttribute(pool, 99, (&raw mut zero).cast())),
                cu!(t, cuMemPoolGetAttribute(pool, 1, null_mut())),
                cu!(t, cuMemPoolTrimTo(null_mut(), 0)),
                cu!(t, cuMemAllocFromPoolAsync(&mut q, 64, null_mut(), s)),
                cu!(t, cuMemPoolDestroy(pool)),
            ],
        ),
    );
    let context = {
        let mut c = null_mut();
        ok!(t, cuCtxGetCurrent(&mut c));
        c
    };
    ok!(t, cuCtxSetCurrent(null_mut()));
    show(
        &mut all,
        (
            "no context",
            vec![
                cu!(t, cuMemAlloc(&mut q, 64)),
                cu!(t, cuMemFree(p)),
                cu!(t, cuMemGetInfo(&mut n, &mut m)),
                cu!(t, cuStreamCreate(&mut h, 0)),
                cu!(t, cuEventCreate(&mut h, 0)),
                cu!(t, cuStreamSynchronize(null_mut())),
                cu!(t, cuStreamQuery(s)),
                cu!(t, cuStreamGetId(null_mut(), &mut one)),
                cu!(t, cuEventQuery(e)),
                cu!(t, cuEventRecord(e, s)),
                cu!(t, cuMemsetD8Async(p, 0, 16, s)),
                cu!(t, cuPointerGetAttribute(d, 2, p)),
                cu!(t, cuMemAllocAsync(&mut q, 64, s)),
                cu!(t, cuMemHostAlloc(&mut pinned, 64, 0)),
                cu!(t, cuCtxSynchronize()),
                cu!(t, cuMemAddressReserve(&mut q, G, 0, 0, 0)),
                cu!(t, cuMemPoolTrimTo(default, 0)),
                cu!(t, cuCtxPopCurrent(&mut h)),
                cu!(t, cuCtxPushCurrent(null_mut())),
                cu!(t, cuCtxGetDevice((&raw mut zero).cast())),
            ],
        ),
    );
    ok!(t, cuCtxSetCurrent(context));
    ok!(t, cuEventDestroy(e));
    ok!(t, cuStreamDestroy(s));
    all
}

/// Virtual memory.
fn pages(t: &Table) -> Vec<Named> {
    let (mut va, mut a, mut b, mut x) = (0, 0, 0, 0);
    let mut all = first(vec![
        (
            "reserve",
            vec![
                cu!(t, cuMemAddressReserve(&mut x, 0, 0, 0, 0)),
                cu!(t, cuMemAddressReserve(&mut x, G + 1, 0, 0, 0)),
                cu!(t, cuMemAddressReserve(&mut x, G, 3, 0, 0)),
                cu!(t, cuMemAddressReserve(null_mut(), G, 0, 0, 0)),
                cu!(t, cuMemAddressReserve(&mut x, 1 << 60, 0, 0, 0)),
                cu!(t, cuMemAddressReserve(&mut va, 16 * G, 0, 0, 0)),
            ],
        ),
        (
            "create",
            vec![
                cu!(t, cuMemCreate(&mut x, 0, &prop(0), 0)),
                cu!(t, cuMemCreate(&mut x, 4096, &prop(0), 0)),
                cu!(t, cuMemCreate(&mut x, G, std::ptr::null(), 0)),
                cu!(t, cuMemCreate(&mut x, G, &prop(99), 0)),
                cu!(t, cuMemCreate(&mut x, G, &zeroed(), 0)),
                cu!(t, cuMemCreate(null_mut(), G, &prop(0), 0)),
                cu!(t, cuMemCreate(&mut x, 1 << 50, &prop(0), 0)),
                cu!(t, cuMemCreate(&mut a, 2 * G, &prop(0), 0)),
                cu!(t, cuMemCreate(&mut b, G, &prop(0), 0)),
            ],
        ),
    ]);
    let at = |n: usize| va + (n * G) as u64;
    let map = |at, n: usize, off: usize, h| cu!(t, cuMemMap(at, n * G, off * G, h, 0));
    show(
        &mut all,
        (
            "map",
            vec![
                map(at(0), 1, 1, a),
                map(at(0), 1, 0, a),
                map(at(0) + 4096, 2, 0, a),
                map(0x1_0000_0000, 2, 0, a),
                map(at(0), 2, 0, 0),
                map(at(0), 2, 0, a),
                map(at(1), 1, 0, b),
                map(at(0), 2, 0, a),
                map(at(2), 1, 0, b),
                map(at(8), 2, 0, a),
            ],
        ),
    );
    let give = |at, n: usize| cu!(t, cuMemSetAccess(at, n * G, &access(0), 1));
    show(
        &mut all,
        (
            "access",
            vec![
                give(at(1), 1),
                give(at(3), 1),
                give(at(0), 4),
                give(at(0), 0),
                cu!(t, cuMemSetAccess(at(0), 3 * G, std::ptr::null(), 1)),
                cu!(t, cuMemSetAccess(at(0), 3 * G, &access(0), 0)),
                cu!(t, cuMemSetAccess(at(0), 3 * G, &access(99), 1)),
                give(at(0), 3),
                cu!(t, cuMemsetD8(at(0), 1, 3 * G)),
                cu!(t, cuCtxSynchronize()),
            ],
        ),
    );
    let (mut base, mut n) = (0, 0);
    let mut bytes = [0u64; 2];
    let d = bytes.as_mut_ptr().cast::<c_void>();
    let mut codes: Codes =
        [1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 17].iter().map(|a| cu!(t, cuPointerGetAttribute(d, *a, at(1)))).collect();
    codes.extend([cu!(t, cuMemGetAddressRange(&mut base, &mut n, at(2))), i32::from(base == at(0)), (n / G) as i32]);
    codes.extend([cu!(t, cuPointerGetAttribute(d, 2, at(5))), cu!(t, cuMemFree(at(0)))]);
    show(&mut all, ("attributes of a range", codes));
    let unmap = |at, n: usize| cu!(t, cuMemUnmap(at, n * G));
    show(&mut all, ("unmap a part", vec![unmap(at(1), 1)]));
    show(&mut all, ("unmap with a hole", vec![unmap(at(0), 4)]));
    show(&mut all, ("unmap a hole", vec![unmap(at(4), 1)]));
    show(&mut all, ("free addresses in use", vec![cu!(t, cuMemAddressFree(va, 16 * G))]));
    show(&mut all, ("release a mapped handle", vec![cu!(t, cuMemRelease(b)), unmap(at(2), 1)]));
    show(&mut all, ("unmap the rest", vec![unmap(at(0), 2), unmap(at(8), 2), cu!(t, cuMemRelease(a))]));
    show(&mut all, ("free a part", vec![cu!(t, cuMemAddressFree(va, G)), cu!(t, cuMemAddressFree(va + G as u64, G))]));
    show(&mut all, ("free addresses", vec![cu!(t, cuMemAddressFree(va, 16 * G))]));
    show(&mut all, ("unmap what is not mapped", vec![unmap(at(0), 2)]));
    show(&mut all, ("unmap nothing", vec![unmap(at(0), 0)]));
    show(&mut all, ("free addresses twice", vec![cu!(t, cuMemAddressFree(va, 16 * G))]));
    show(&mut all, ("release nothing", vec![cu!(t, cuMemRelease(0))]));
    // Last, since a driver may follow a dangling pointer here.
    show(&mut all, ("release twice", vec![cu!(t, cuMemRelease(a))]));
    all
}

/// Streams destroyed while they capture.
fn destroyed(t: &Table) -> Vec<Named> {
    let (s, o, e, f) = (stream(t, 1), stream(t, 1), event(t), event(t));
    let mut all = Vec::new();
    let third = stream(t, 1);
    let mut codes = vec![cu!(t, cuStreamBeginCapture(s, 1)), cu!(t, cuEventRecord(e, s))];
    codes.extend([cu!(t, cuStreamWaitEvent(third, e, 0)), cu!(t, cuStreamDestroy(third)), ended(t, s)]);
    show(&mut all, ("a stream that was pulled in is destroyed", codes));
    let third = stream(t, 1);
    let mut codes = vec![cu!(t, cuStreamBeginCapture(third, 0)), cu!(t, cuEventRecord(e, third))];
    codes.extend([cu!(t, cuStreamWaitEvent(o, e, 0)), cu!(t, cuStreamDestroy(third))]);
    let mut status = 9;
    codes.extend([cu!(t, cuStreamIsCapturing(o, &mut status)), status as i32, cu!(t, cuEventQuery(f))]);
    show(&mut all, ("the origin is destroyed", codes));
    all
}

/// Ranges that are too long, or without access: what the driver sees at the call.
fn wild(t: &Table) -> Vec<Named> {
    let p = alloc(t, 4096);
    let (mut va, mut a) = (0, 0);
    ok!(t, cuMemAddressReserve(&mut va, 4 * G, 0, 0, 0));
    ok!(t, cuMemCreate(&mut a, G, &prop(0), 0));
    ok!(t, cuMemMap(va, G, 0, a, 0));
    let mut all = first(vec![
        ("no access", vec![cu!(t, cuMemsetD8Async(va, 1, 1, null_mut()))]),
        ("beyond a plain block", vec![cu!(t, cuMemsetD8Async(p, 1, 64 << 20, null_mut()))]),
    ]);
    ok!(t, cuMemSetAccess(va, G, &access(0), 1));
    show(&mut all, ("beyond a mapping", vec![cu!(t, cuMemsetD8Async(va, 1, G + 1, null_mut()))]));
    show(&mut all, ("afterwards", vec![cu!(t, cuCtxSynchronize())]));
    ok!(t, cuMemUnmap(va, G));
    ok!(t, cuMemRelease(a));
    ok!(t, cuMemAddressFree(va, 4 * G));
    ok!(t, cuMemFree(p));
    all
}

fn probe(t: &Table, only: Option<&str>) -> Vec<Probe> {
    let mut probes = Vec::new();
    let groups: [(&str, Group); 5] =
        [("arguments", arguments), ("pages", pages), ("ends", ends), ("wild", wild), ("destroyed", destroyed)];
    for (group, run) in groups {
        if only.is_none_or(|o| o == group) {
            let probe = |(name, codes)| Probe { name: format!("{group} {name}"), codes };
            probes.extend(run(t).into_iter().map(probe));
        }
    }
    if only.is_none_or(|o| o == "capture") {
        captures(t, &mut probes);
    }
    probes
}

#[test]
fn calls_answer_what_a_real_device_answered() {
    if recording() {
        let t = cuda();
        ok!(t, cuInit(0));
        enter(&t, 0);
        let only = std::env::var("TENURE_PARITY_GROUP").ok();
        probe(&t, only.as_deref());
        return;
    }
    let (t, _lock) = setup();
    let mut wrong = Vec::new();
    let probes = probe(&t, None);
    for p in &probes {
        let different = DIFFERENT.iter().find(|(name, ..)| *name == p.name).map(|(_, codes, _)| *codes);
        let recorded = RECORDED.iter().find(|(name, _)| *name == p.name).map(|(_, codes)| *codes);
        if different.or(recorded) != Some(p.codes.as_slice()) {
            wrong.push(format!("{}: simulated {:?}, recorded {:?}", p.name, p.codes, recorded));
        }
    }
    assert!(wrong.is_empty(), "{} probes differ:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(probes.len(), RECORDED.len(), "every recorded probe is made");
}
