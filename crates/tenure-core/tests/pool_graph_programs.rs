//! Random programs of captures under the check of order: captures of one or two streams, graphs that run and end, eager work.
//!
//! `TENURE_GRAPH_PROGRAMS` says how many; a failure names its seed.

#![allow(missing_docs)]

#[path = "pool_graph_common.rs"]
mod graphs;

use graphs::*;
use tenure_core::pool::{CaptureScope, Pool, PoolOptions, SharedArena};
use tenure_core::resource::MemoryResource;
use tenure_core::stream::{StreamHold, StreamObject, StreamRef};
use tenure_driver::{Event, sim};

/// A small generator (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// A block with the byte that it must have.
#[derive(Clone, Copy)]
struct Held {
    ptr: u64,
    bytes: u64,
    byte: u8,
}

/// One random program: captures of one or two streams, graphs that run and end, eager work, trims. Its graphs run on one
/// stream, so that they may share an arena.
fn program(seed: u64) {
    let mut dice = Dice(seed);
    let shared = dice.roll(2) == 0;
    let maximum = (dice.roll(2) == 0).then_some(128 * MIB);
    let resource = resource_over(PoolOptions { maximum_bytes: maximum, ..Default::default() });
    let pool = resource.downcast::<Pool>().unwrap();
    let [a, b, runs, eager] = [0, 1, 2, 3].map(|_| StreamObject::create(0, dice.roll(2) == 0).unwrap());
    let device = driver().device(0).unwrap();
    let arena = SharedArena::new();
    let scope = CaptureScope::enter(StreamHold::object(a.clone()), shared.then(|| arena.clone())).unwrap();
    let mut graphs: Vec<(Graph, Vec<Held>)> = Vec::new();
    let mut retired: Vec<Graph> = Vec::new();
    let mut loose: Vec<Held> = Vec::new();
    let mut byte = 0u8;
    let sizes = [200, 5000, 70_000, MIB, 3 * MIB];
    for _ in 0..12 {
        match dice.roll(6) {
            0 | 1 => {
                begin(a.raw(), MODES[dice.roll(3) as usize]);
                let forked = dice.roll(2) == 0;
                if forked {
                    let fork = Event::new(device).unwrap();
                    fork.record(a.raw()).unwrap();
                    b.raw().wait_event(&fork).unwrap();
                }
                let streams = if forked { vec![&a, &b] } else { vec![&a] };
                // Each stream has blocks of its own, so that the program orders all its accesses.
                let mut live: Vec<Vec<Held>> = vec![Vec::new(); streams.len()];
                let mut outputs = Vec::new();
                for _ in 0..dice.roll(25) {
                    let at = dice.roll(streams.len() as u64) as usize;
                    let on = if dice.roll(3) == 0 { StreamRef::raw(streams[at].raw()) } else { object(streams[at]) };
                    match dice.roll(4) {
                        0 | 1 => {
                            byte = byte.wrapping_add(1).max(1);
                            let held = Held { ptr: 0, bytes: sizes[dice.roll(5) as usize], byte };
                            match allocate(pool, held.bytes, on) {
                                Ok(ptr) => {
                                    write(on.raw, ptr, held.bytes, byte);
                                    live[at].push(Held { ptr, ..held });
                                }
                                Err(e) => assert!(e.is_out_of_memory(), "{e}"),
                            }
                        }
                        2 => {
                            for held in &live[at] {
                                verify(on.raw, held.ptr, held.bytes, held.byte);
                            }
                        }
                        _ => {
                            if let Some(held) = live[at].pop() {
                                verify(on.raw, held.ptr, held.bytes, held.byte);
                                free(pool, held.ptr, held.bytes, if dice.roll(3) == 0 { stored(on.raw) } else { on });
                            }
                        }
                    }
                }
                outputs.extend(live.into_iter().flatten());
                if forked {
                    let join = Event::new(device).unwrap();
                    join.record(b.raw()).unwrap();
                    a.raw().wait_event(&join).unwrap();
                }
                let graph = Graph::end(a.raw());
                if dice.roll(5) == 0 {
                    // Thrown away: what it allocated is memory like any other.
                    loose.extend(outputs);
                } else {
                    graphs.push((graph, outputs));
                }
            }
            2 | 3 => {
                for (graph, outputs) in &graphs {
                    graph.launch(runs.raw());
                    for held in outputs {
                        verify(runs.raw(), held.ptr, held.bytes, held.byte);
                    }
                }
            }
            4 => {
                if !graphs.is_empty() {
                    let at = dice.roll(graphs.len() as u64) as usize;
                    if dice.roll(2) == 0 {
                        // Runs never again. Another stream reads what it made, and nothing waits for that stream.
                        let (graph, outputs) = graphs.swap_remove(at);
                        let reader = if dice.roll(2) == 0 { &eager } else { &a };
                        let done = Event::new(device).unwrap();
                        graph.launch(runs.raw());
                        done.record(runs.raw()).unwrap();
                        reader.raw().wait_event(&done).unwrap();
                        sim::busy(reader.raw().as_raw(), std::time::Duration::from_millis(3)).unwrap();
                        for held in outputs {
                            verify(reader.raw(), held.ptr, held.bytes, held.byte);
                            let on = if dice.roll(2) == 0 { stored(reader.raw()) } else { object(reader) };
                            free(pool, held.ptr, held.bytes, on);
                        }
                        if dice.roll(2) == 0 {
                            retired.push(graph);
                        }
                    } else if dice.roll(2) == 0 {
                        let (graph, outputs) = graphs.swap_remove(at);
                        drop(graph);
                        loose.extend(outputs);
                    } else if let Some(held) = graphs[at].1.pop() {
                        // Read by eager work, in the order of the runs, and freed there.
                        free(pool, held.ptr, held.bytes, object(&runs));
                    }
                }
                for held in loose.drain(..) {
                    write(runs.raw(), held.ptr, held.bytes, 0xfe);
                    free(pool, held.ptr, held.bytes, object(&runs));
                }
            }
            _ => {
                let mine: Vec<(u64, u64)> = sizes
                    .iter()
                    .filter_map(|bytes| Some((allocate(pool, *bytes, object(&eager)).ok()?, *bytes)))
                    .collect();
                for (ptr, bytes) in &mine {
                    assert!(!in_graph(pool, *ptr));
                    write(eager.raw(), *ptr, *bytes, 0xee);
                }
                for (ptr, bytes) in mine {
                    free(pool, ptr, bytes, object(&eager));
                }
                if dice.roll(2) == 0 {
                    pool.trim(0).unwrap();
                }
            }
        }
        pool.check().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    for (graph, outputs) in graphs {
        drop(graph);
        loose.extend(outputs);
    }
    drop(retired);
    for held in loose {
        free(pool, held.ptr, held.bytes, object(&runs));
    }
    assert_eq!(pool.info().live_count, 0, "seed {seed}");
    settle();
    // What the driver owes under a schedule runs as a step.
    sim::run_all();
    sim::schedule_workers();
    drop((scope, arena));
    wait_for(pool, 0, trimmed);
    assert_eq!(pool.info().reserved_bytes, 0, "seed {seed}");
}

#[test]
fn random_programs_of_captures_have_no_race() {
    let _machine = machine();
    let _current = current();
    let programs: u64 = std::env::var("TENURE_GRAPH_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(100);
    let mismatches = sim::mismatches();
    for seed in 0..programs {
        settle();
        sim::check_order(true);
        if !seed.is_multiple_of(3) {
            sim::schedule(seed);
        }
        program(seed);
        assert_eq!((sim::races(), sim::race_texts()), (0, Vec::new()), "seed {seed}");
        assert_eq!(sim::mismatches(), mismatches, "seed {seed}");
        sim::check_order(false);
    }
}
