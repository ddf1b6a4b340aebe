//! Random programs on the simulated device against a model of the driver's order that shares no code with it.
//!
//! The model knows for each operation the set of operations that must be complete before it starts. Whatever ran the
//! program (workers, or a seed), what ran must be in an order that respects every set; and the check of order must agree
//! with the model on which pairs of accesses are ordered.

#![allow(clippy::macro_metavars_in_unsafe, reason = "the arguments of these calls contain no unsafe code")]

mod sim_support;

use std::collections::HashSet;
use std::ptr::null_mut;
use std::sync::Mutex;

use sim_support::*;
use tenure_driver::sim;
use tenure_driver::sys::*;
use tenure_driver::table::Table;

static LOG: Mutex<Vec<usize>> = Mutex::new(Vec::new());

unsafe extern "C" fn note(user: *mut c_void) {
    LOG.lock().unwrap().push(user as usize);
}

/// A small generator of its own: a linear congruence, high bits.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// Sets of operations, as bits; a program has fewer than 128.
type Set = u128;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Blocking,
    Free,
    Legacy,
}

struct Model {
    kinds: Vec<Kind>,
    /// Per stream: everything that is complete when its last operation is.
    tails: Vec<Set>,
    /// Per event, what was complete where it was recorded last; `None` before that.
    events: Vec<Option<Set>>,
    /// Per operation: what is complete before it starts.
    before: Vec<Set>,
    /// What the host knows to be complete.
    host: Set,
}

impl Model {
    /// What must be complete before the next operation of a stream.
    fn needs(&self, s: usize) -> Set {
        let mut set = self.tails[s] | self.host;
        for (o, kind) in self.kinds.iter().enumerate() {
            let implicit =
                matches!((self.kinds[s], kind), (Kind::Legacy, Kind::Blocking) | (Kind::Blocking, Kind::Legacy));
            if implicit {
                set |= self.tails[o];
            }
        }
        set
    }

    fn operation(&mut self, s: usize) -> usize {
        let n = self.before.len();
        let needs = self.needs(s);
        self.before.push(needs);
        self.tails[s] = needs | 1 << n;
        n
    }
}

const STREAMS: usize = 5;
const EVENTS: usize = 3;

/// Runs a random program of `len` steps. `put` submits operation `n` to a stream.
fn program(t: &Table, seed: u64, len: usize, syncs: bool, put: impl Fn(CUstream, usize, &mut Random)) -> Model {
    let mut random = Random(seed);
    let kinds = vec![Kind::Blocking, Kind::Blocking, Kind::Free, Kind::Free, Kind::Legacy];
    let mut streams: Vec<CUstream> = [0, 0, 1, 1].iter().map(|f| stream(t, *f)).collect();
    streams.push(null_mut());
    let events: Vec<CUevent> = (0..EVENTS).map(|_| event(t)).collect();
    let mut m = Model { kinds, tails: vec![0; STREAMS], events: vec![None; EVENTS], before: Vec::new(), host: 0 };
    for _ in 0..len {
        let (s, e) = (random.below(STREAMS), random.below(EVENTS));
        match random.below(12) {
            0..=5 => {
                let n = m.operation(s);
                put(streams[s], n, &mut random);
            }
            6..=7 => {
                ok!(t, cuEventRecord(events[e], streams[s]));
                // A record has a place in the stream, also in the implicit order.
                m.tails[s] = m.needs(s);
                m.events[e] = Some(m.tails[s]);
            }
            8..=9 => {
                ok!(t, cuStreamWaitEvent(streams[s], events[e], 0));
                // One that was never recorded is nothing at all.
                if let Some(set) = m.events[e] {
                    m.tails[s] = m.needs(s) | set;
                }
            }
            10 if syncs => {
                ok!(t, cuEventSynchronize(events[e]));
                m.host |= m.events[e].unwrap_or(0);
            }
            11 if syncs => {
                ok!(t, cuStreamSynchronize(streams[s]));
                m.host |= m.tails[s];
                if m.kinds[s] == Kind::Legacy {
                    m.host |= m.tails[0] | m.tails[1];
                }
            }
            // A stream is destroyed while it may be busy, and another takes its place.
            10 if s < 4 => {
                ok!(t, cuStreamDestroy(streams[s]));
                streams[s] = stream(t, u32::from(m.kinds[s] == Kind::Free));
                // What the old one still does counts for the legacy stream no more than for anybody else, except that the
                // driver drains blocking streams in order; the model asks for less than either.
                m.tails[s] = 0;
            }
            _ => {}
        }
    }
    ok!(t, cuCtxSynchronize());
    for s in &streams[..4] {
        ok!(t, cuStreamDestroy(*s));
    }
    for e in events {
        ok!(t, cuEventDestroy(e));
    }
    m
}

#[test]
fn every_order_that_runs_is_legal() {
    let (t, _lock) = setup();
    let before = sim::violations();
    let mut orders = HashSet::new();
    for seed in 0..400u64 {
        if seed % 4 == 0 {
            sim::schedule_workers();
        } else {
            sim::schedule(seed);
        }
        LOG.lock().unwrap().clear();
        let m = program(&t, seed / 8, 80, seed % 2 == 0, |s, n, random| {
            if random.below(4) == 0 {
                busy(s, 1);
            }
            ok!(t, cuLaunchHostFunc(s, Some(note), n as *mut c_void));
        });
        let order = std::mem::take(&mut *LOG.lock().unwrap());
        assert_eq!(order.len(), m.before.len(), "seed {seed}: everything ran, once");
        let mut done: Set = 0;
        for n in &order {
            assert_eq!(m.before[*n] & !done, 0, "seed {seed}: operation {n} ran too early in {order:?}");
            done |= 1 << n;
        }
        orders.insert(order);
    }
    assert!(orders.len() > 250, "{} different orders", orders.len());
    assert_eq!(sim::violations(), before);
}

#[test]
fn the_check_of_order_agrees_with_the_model() {
    let (t, _lock) = setup();
    let p = alloc(&t, 4096);
    let (mut with, mut without) = (0, 0);
    for seed in 0..300u64 {
        sim::schedule(seed);
        sim::check_order(true);
        // Each operation writes one of 12 places; two writes of one place must be ordered one way or the other.
        let places = Mutex::new(Vec::new());
        let m = program(&t, seed, 10 + seed as usize % 20, true, |s, n, random| {
            let place = random.below(12);
            let mut places = places.lock().unwrap();
            assert_eq!(places.len(), n);
            places.push(place);
            sim::launch(s, &[], &[(p + 64 * place as u64, 64, 1)]).unwrap();
        });
        let places = places.into_inner().unwrap();
        let ordered = |a: usize, b: usize| m.before[b] >> a & 1 == 1;
        let mut racy = false;
        for b in 0..places.len() {
            racy |= (0..b).any(|a| places[a] == places[b] && !ordered(a, b));
        }
        assert_eq!(sim::races() > 0, racy, "seed {seed}: {:?}", sim::race_texts());
        if racy {
            with += 1
        } else {
            without += 1
        }
        sim::check_order(false);
    }
    assert!(with > 50 && without > 50, "{with} programs with races, {without} without: not both kinds");
    ok!(t, cuMemFree(p));
}
