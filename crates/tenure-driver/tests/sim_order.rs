//! The check of order on the simulated device: it finds each race whether or not it collided, and nothing else.

#![allow(clippy::macro_metavars_in_unsafe, reason = "the arguments of these calls contain no unsafe code")]

mod sim_support;

use std::ptr::null_mut;
use std::time::Duration;

use sim_support::*;
use tenure_driver::sim;
use tenure_driver::sys::*;
use tenure_driver::table::Table;

struct Bench {
    t: Table,
    a: CUstream,
    b: CUstream,
    e: CUevent,
    p: CUdeviceptr,
}

impl Bench {
    fn write(&self, s: CUstream) {
        sim::launch(s, &[], &[(self.p, 4096, 1)]).unwrap();
    }

    fn read(&self, s: CUstream) {
        sim::launch(s, &[(self.p + 100, 10)], &[]).unwrap();
    }

    fn link(&self, from: CUstream, to: CUstream) {
        ok!(self.t, cuEventRecord(self.e, from));
        ok!(self.t, cuStreamWaitEvent(to, self.e, 0));
    }

    /// Lets everything run without anybody learning of it.
    fn settle(&self) {
        for s in [self.a, self.b] {
            ok!(self.t, cuLaunchHostFunc(s, Some(nothing), null_mut()));
        }
        while sim::step() {}
    }
}

unsafe extern "C" fn nothing(_: *mut c_void) {}

/// Runs a program under seeds, with streams of the given flags, and returns how many races each seed found.
fn found(flags: [u32; 2], program: impl Fn(&Bench)) -> Vec<u64> {
    let (t, _lock) = setup();
    let found = (0..8)
        .map(|seed| {
            sim::schedule(seed);
            let bench = Bench { t, a: stream(&t, flags[0]), b: stream(&t, flags[1]), e: event(&t), p: alloc(&t, 8192) };
            sim::check_order(true);
            program(&bench);
            ok!(t, cuCtxSynchronize());
            let races = sim::races();
            assert_eq!(races.min(64) as usize, sim::race_texts().len());
            assert!(sim::check_order(false));
            ok!(t, cuMemFree(bench.p));
            ok!(t, cuEventDestroy(bench.e));
            ok!(t, cuStreamDestroy(bench.a));
            ok!(t, cuStreamDestroy(bench.b));
            races
        })
        .collect();
    sim::schedule_workers();
    found
}

fn clean(what: &str, flags: [u32; 2], program: impl Fn(&Bench)) {
    assert_eq!(found(flags, program), [0; 8], "{what}");
}

fn racy(what: &str, flags: [u32; 2], program: impl Fn(&Bench)) {
    assert_eq!(found(flags, program), [1; 8], "{what}: every seed finds it");
}

const FREE: [u32; 2] = [1, 1];

#[test]
fn unordered_accesses_are_found_under_every_seed() {
    racy("write, write", FREE, |x| {
        x.write(x.a);
        x.write(x.b);
    });
    racy("read, write", FREE, |x| {
        x.read(x.a);
        x.write(x.b);
    });
    racy("also when the first has completed by chance", FREE, |x| {
        x.write(x.a);
        while sim::step() {}
        x.write(x.b);
    });
    racy("the record comes too early", FREE, |x| {
        x.link(x.a, x.b);
        x.write(x.a);
        x.write(x.b);
    });
    racy("a set and a copy", FREE, |x| {
        ok!(x.t, cuMemsetD8Async(x.p, 1, 4096, x.a));
        ok!(x.t, cuMemcpyDtoDAsync(x.p + 4000, x.p + 8000, 192, x.b));
    });
    racy("two blocking streams with nothing between them", [0, 0], |x| {
        x.write(x.a);
        x.write(x.b);
    });
    racy("a non-blocking stream beside the legacy one", FREE, |x| {
        x.write(x.a);
        x.write(null_mut());
    });
}

#[test]
fn order_of_every_kind_is_accepted() {
    clean("one stream", FREE, |x| {
        x.write(x.a);
        x.read(x.a);
        x.write(x.a);
    });
    clean("two reads", FREE, |x| {
        x.read(x.a);
        x.read(x.b);
    });
    clean("other bytes", FREE, |x| {
        x.write(x.a);
        sim::launch(x.b, &[], &[(x.p + 4096, 100, 1)]).unwrap();
    });
    clean("an event, back and forth", FREE, |x| {
        x.write(x.a);
        x.link(x.a, x.b);
        x.write(x.b);
        x.link(x.b, x.a);
        x.read(x.a);
    });
    clean("the legacy stream", [0, 0], |x| {
        x.write(x.a);
        x.write(null_mut());
        x.write(x.b);
        // Through two blocking streams with the legacy one between them.
        ok!(x.t, cuEventRecord(x.e, null_mut()));
        x.write(x.a);
    });
    clean("synchronising with the stream", FREE, |x| {
        x.write(x.a);
        ok!(x.t, cuStreamSynchronize(x.a));
        x.write(x.b);
    });
    clean("synchronising with an event", FREE, |x| {
        x.write(x.a);
        ok!(x.t, cuEventRecord(x.e, x.a));
        ok!(x.t, cuEventSynchronize(x.e));
        x.write(x.b);
    });
    clean("a query that says so", FREE, |x| {
        x.write(x.a);
        ok!(x.t, cuEventRecord(x.e, x.a));
        while cu!(x.t, cuEventQuery(x.e)) != 0 {}
        x.write(x.b);
    });
    clean("a free that waits for the device", FREE, |x| {
        let spare = alloc(&x.t, 256);
        x.write(x.a);
        ok!(x.t, cuMemFree(spare));
        x.write(x.b);
    });
    clean("an event behind the whole context, with a stream that is gone", FREE, |x| {
        let gone = stream(&x.t, 1);
        x.write(gone);
        ok!(x.t, cuStreamDestroy(gone));
        while sim::step() {}
        ok!(x.t, cuCtxRecordEvent(null_mut(), x.e));
        ok!(x.t, cuStreamWaitEvent(x.b, x.e, 0));
        x.write(x.b);
    });
    clean("a host function", FREE, |x| {
        x.write(x.a);
        x.settle();
        x.write(x.b);
    });
}

#[test]
fn a_race_tells_who_met_whom() {
    let (t, _lock) = setup();
    let (a, b) = (stream(&t, 1), stream(&t, 1));
    let (mut na, mut nb) = (0, 0);
    ok!(t, cuStreamGetId(a, &mut na));
    ok!(t, cuStreamGetId(b, &mut nb));
    let p = alloc(&t, 64);
    sim::schedule(1);
    sim::check_order(true);
    ok!(t, cuMemsetD8Async(p, 1, 64, a));
    while sim::step() {}
    ok!(t, cuMemsetD8Async(p + 10, 1, 1, b));
    while sim::step() {}
    let text = sim::race_texts().concat();
    for part in [
        format!("operation 1 of stream {nb} writes 1 bytes from address {:#x}", p + 10),
        format!("operation 1 of stream {na} wrote"),
    ] {
        assert!(text.contains(&part), "{text}");
    }
    sim::check_order(false);
    ok!(t, cuMemFree(p));
    ok!(t, cuStreamDestroy(a));
    ok!(t, cuStreamDestroy(b));
}

#[test]
fn a_claim_is_an_access_that_touches_nothing() {
    let (t, _lock) = setup();
    let (a, b) = (stream(&t, 1), stream(&t, 1));
    let p = alloc(&t, 4096);
    ok!(t, cuMemsetD8(p, 7, 4096));
    ok!(t, cuCtxSynchronize());
    sim::schedule(1);
    sim::check_order(true);
    let claim =
        |s, write| sim::launch_for(s, Duration::ZERO, &[sim::Access::Claim { at: p, len: 4096, write }]).unwrap();
    claim(a, false);
    claim(b, false);
    sim::run_all();
    assert_eq!(sim::races(), 0, "two that read");
    claim(b, true);
    sim::run_all();
    assert_eq!(sim::races(), 1, "one of them wrote");
    let before = sim::mismatches();
    sim::launch_for(b, Duration::ZERO, &[sim::Access::Verify { at: p, len: 4096, byte: 7 }]).unwrap();
    sim::run_all();
    assert_eq!(sim::mismatches(), before, "nothing was written");
    sim::check_order(false);
    ok!(t, cuCtxSynchronize());
    ok!(t, cuMemFree(p));
    // What is not there cannot be claimed.
    claim(a, false);
    sim::run_all();
    assert_eq!(cu!(t, cuStreamSynchronize(a)), 700);
    sim::fault(0, 0).unwrap();
    ok!(t, cuStreamDestroy(a));
    ok!(t, cuStreamDestroy(b));
}

#[test]
fn aliases_are_one_memory() {
    const G: usize = 2 * MIB;
    let map = |t: &Table, at: u64, h: u64| {
        ok!(t, cuMemMap(at, G, 0, h, 0));
        ok!(t, cuMemSetAccess(at, G, &access(0), 1));
    };
    for ordered in [false, true] {
        let races = found(FREE, |x| {
            let t = &x.t;
            let (mut va, mut h, mut k) = (0, 0, 0);
            ok!(t, cuMemAddressReserve(&mut va, 3 * G, 0, 0, 0));
            ok!(t, cuMemCreate(&mut h, G, &prop(0), 0));
            ok!(t, cuMemCreate(&mut k, G, &prop(0), 0));
            map(t, va, h);
            map(t, va + G as u64, k);
            map(t, va + 2 * G as u64, h);
            // Across the border of the first two, then through the alias of the first.
            let border = va + G as u64 - 10;
            sim::launch(x.a, &[], &[(border, 20, 1)]).unwrap();
            if ordered {
                x.link(x.a, x.b);
            }
            sim::launch(x.b, &[], &[(border + 2 * G as u64, 10, 1)]).unwrap();
            x.settle();
            ok!(t, cuMemUnmap(va, 3 * G));
            ok!(t, cuMemRelease(h));
            ok!(t, cuMemRelease(k));
            // New pages at the old place have no past.
            ok!(t, cuMemCreate(&mut h, G, &prop(0), 0));
            map(t, va, h);
            let s = stream(t, 1);
            sim::launch(s, &[], &[(va, G, 1)]).unwrap();
            ok!(t, cuStreamSynchronize(s));
            ok!(t, cuStreamDestroy(s));
            ok!(t, cuMemUnmap(va, G));
            ok!(t, cuMemRelease(h));
            ok!(t, cuMemAddressFree(va, 3 * G));
        });
        assert_eq!(races, [u64::from(!ordered); 8], "ordered: {ordered}");
    }
}

#[test]
fn driver_pools_and_graphs_are_ordered_by_the_driver() {
    clean("a driver pool, reused by chance and by order", FREE, |x| {
        for i in 0..20 {
            let s = if i % 3 == 0 { x.a } else { x.b };
            let p = alloc_async(&x.t, 4096, s);
            sim::launch(s, &[], &[(p, 4096, 1)]).unwrap();
            ok!(x.t, cuMemFreeAsync(p, s));
            if i % 4 == 0 {
                sim::step();
            }
        }
    });
    clean("launches of one executable on two streams", FREE, |x| {
        let (mut graph, mut exec) = (null_mut(), null_mut());
        ok!(x.t, cuStreamBeginCapture(x.a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        x.write(x.a);
        ok!(x.t, cuStreamEndCapture(x.a, &mut graph));
        ok!(x.t, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        ok!(x.t, cuGraphLaunch(exec, x.a));
        ok!(x.t, cuGraphLaunch(exec, x.b));
        ok!(x.t, cuGraphDestroy(graph));
        ok!(x.t, cuGraphExecDestroy(exec));
    });
    racy("a launch and a kernel", FREE, |x| {
        let (mut graph, mut exec) = (null_mut(), null_mut());
        ok!(x.t, cuStreamBeginCapture(x.a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        x.write(x.a);
        ok!(x.t, cuStreamEndCapture(x.a, &mut graph));
        ok!(x.t, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        ok!(x.t, cuGraphLaunch(exec, x.a));
        x.write(x.b);
        ok!(x.t, cuGraphDestroy(graph));
        ok!(x.t, cuGraphExecDestroy(exec));
    });
}
