//! Random programs on the simulated device, with fixed seeds: what they are and what is checked is in `program/mod.rs`.
//!
//! A failure prints the shortest program that still fails, as text for a test of its own; those that were found are below.
//! `make soak` runs as many as one has time for.

#![allow(missing_docs)]

mod program;

use program::crew::{Crew, enter};
use program::shrink::{shrink, sticky};
use program::*;
use tenure_driver::sim;

/// The simulated device with much memory, and no other test of the process beside this one.
fn machine() -> sim::TestLock {
    let _ = sim::configure(sim::Config { devices: 2, memory: DEVICE });
    tenure_driver::load::prefer_sim().expect("the simulated device");
    let lock = sim::test_lock();
    sim::on_violation(sim::OnViolation::Record);
    lock
}

/// Runs one program: what a failure prints is a call of this.
fn holds(program: &Program) {
    let _machine = machine();
    let _current = enter();
    Crew::default().run(program).unwrap();
}

/// Runs the programs of the seeds; the first that fails is shrunk and told.
#[track_caller]
fn all_hold(seeds: std::ops::Range<u64>) -> Counts {
    let mut counts = Counts::default();
    let mut crew = Crew::default();
    for seed in seeds {
        let program = generate::program(seed);
        match crew.run(&program) {
            Ok(done) => counts.add(done),
            // A mutant need not be told in short.
            Err(error) if std::env::var_os("TENURE_SHRINK").is_some_and(|v| v == "0") => panic!("seed {seed}: {error}"),
            // The device does not come back from this: each candidate needs a process of its own.
            Err(error) if sticky(&error).is_some() => panic!(
                "seed {seed}: {error}\nfor a short program: cargo run --release -p tenure-core --example programs -- --seed \
                 {seed} --programs 1"
            ),
            Err(whole) => {
                let (small, error) = shrink(program, &mut |candidate, _| crew.run(candidate).err());
                panic!("seed {seed}: {whole}\nshrunk: {error}\n    {}", text(&small));
            }
        }
    }
    counts
}

#[test]
#[allow(clippy::print_stdout, reason = "what was done is told with a failure")]
fn random_programs_hold() {
    let _machine = machine();
    let _current = enter();
    let mut counts = all_hold(0..2000);
    println!("{counts:?}");
    // Too few of anything, and the seeds show nothing.
    let served = counts.served;
    assert!(served > 20_000, "{served} allocations were served");
    for (name, number) in counts.all() {
        assert!(*number > 40 || name == "allocations in captures", "{name}: only {number}");
    }
}

#[test]
fn threads_at_once_hold() {
    let _machine = machine();
    let _current = enter();
    for seed in 0..60 {
        threads::run(seed, 2 + seed as usize % 2).unwrap();
    }
}

// ------------------------------------------------------------------------------------- found, shrunk, and kept

const PLAIN: Setup = Setup { initial: 0, maximum: None, footprint: false, chunks: false, liar: false, threshold: 0 };
const SETTINGS: Settings = Settings {
    schedule: 0,
    pools: [PLAIN, PLAIN],
    bytes: false,
    captures: false,
    aligned: false,
    device: None,
    plots: false,
};

#[test]
fn a_wait_of_the_legacy_stream_ends_no_capture_of_a_blocking_one() {
    let small = Setup { maximum: Some(2 * MIB), footprint: true, ..PLAIN };
    let settings = Settings { pools: [small, PLAIN], captures: true, ..SETTINGS };
    let ops = vec![
        Allocate { pool: 0, bytes: 2 * MIB, align: 256, stream: 2, how: Object },
        Free { block: 0, how: Object },
        Begin { stream: 6, mode: 2 },
        Allocate { pool: 0, bytes: MIB, align: 256, stream: LEGACY, how: Object },
        End,
    ];
    holds(&Program { settings, ops });
}

#[test]
fn what_a_small_piece_had_borrowed_is_no_obstacle_to_all_of_the_limit() {
    let start = Setup { initial: 2 * MIB, maximum: Some(12 * MIB), ..PLAIN };
    let settings = Settings { pools: [start, PLAIN], ..SETTINGS };
    let ops = vec![
        Allocate { pool: 0, bytes: 256, align: 256, stream: 6, how: Object },
        Free { block: 0, how: Object },
        Allocate { pool: 0, bytes: 12 * MIB, align: 256, stream: 6, how: Object },
    ];
    holds(&Program { settings, ops });
}

#[test]
fn the_legacy_stream_hands_on_what_it_never_used_in_order() {
    let four = Setup { maximum: Some(4 * MIB), ..PLAIN };
    let settings = Settings { pools: [four, PLAIN], ..SETTINGS };
    let ops = vec![
        Allocate { pool: 0, bytes: 4 * MIB, align: 256, stream: 6, how: Object },
        Free { block: 0, how: Object },
        Idle { pool: 0, bytes: 4 * MIB, stream: LEGACY },
        Free { block: 0, how: Object },
        Allocate { pool: 0, bytes: 4 * MIB, align: 256, stream: PER_THREAD, how: Object },
    ];
    holds(&Program { settings, ops });
}

#[test]
fn a_trim_gives_back_what_a_failed_growth_could_not() {
    let settings = Settings { device: Some(2 * MIB), ..SETTINGS };
    // The second page is not to be had, and the driver does not take the first one back either.
    let ops = vec![
        Fail { call: "cuMemUnmap", code: 999, after: 0 },
        Allocate { pool: 0, bytes: 4 * MIB, align: 256, stream: 6, how: Object },
    ];
    holds(&Program { settings, ops });
}

#[test]
fn of_many_streams_that_ended_only_what_is_done_is_let_go() {
    let settings = Settings { pools: [Setup { maximum: Some(8 * MIB), ..PLAIN }, PLAIN], ..SETTINGS };
    let mut ops = vec![Idle { pool: 0, bytes: 256, stream: LEGACY }];
    for _ in 0..48 {
        ops.push(Allocate { pool: 0, bytes: 64 << 10, align: 256, stream: 2, how: Object });
        ops.push(Free { block: 1, how: Object });
        // So many that the pool asks their events, none of which is complete.
        ops.push(Renew { stream: 2 });
    }
    ops.extend([Allocate { pool: 0, bytes: 64 << 10, align: 256, stream: 3, how: Object }; 120]);
    holds(&Program { settings, ops });
}

#[test]
fn a_record_is_not_given_to_another_stream_while_a_thread_has_a_magazine_for_it() {
    let settings = Settings { pools: [Setup { maximum: Some(8 * MIB), ..PLAIN }, PLAIN], ..SETTINGS };
    let once =
        |stream| [Allocate { pool: 0, bytes: 4096, align: 256, stream, how: Object }, Free { block: 0, how: Object }];
    let mut ops = Vec::new();
    ops.extend(once(LEGACY));
    ops.extend(once(3));
    // Nothing is left of stream 3 but an empty magazine; so many others come and go that records are looked through.
    for _ in 0..80 {
        ops.extend(once(5));
        ops.extend([Trim { pool: 0, keep: 0 }, Renew { stream: 5 }]);
    }
    // One of those that come now would get the number that stream 3 had.
    for _ in 0..80 {
        ops.push(Renew { stream: 5 });
        ops.extend(once(5));
        ops.extend(once(3));
        ops.extend(once(5));
    }
    holds(&Program { settings, ops });
}

/// A small size with a large alignment borrows megabytes. What is left of the loan is free and of another zone than its
/// neighbour, so that a page on the border of the two is wholly free in two blocks, which do not merge.
#[test]
fn a_page_that_is_free_in_two_zones_can_be_exchanged() {
    let settings =
        Settings { pools: [Setup { initial: 2 * MIB, maximum: Some(12 * MIB), ..PLAIN }, PLAIN], ..SETTINGS };
    let get = |bytes, stream| Allocate { pool: 0, bytes, align: 256, stream, how: Object };
    let put = |block| Free { block, how: Object };
    let ops = vec![
        get(40960, 0),
        get(256, 2),
        get(256, 5),
        get(256, 5),
        get(253, 0),
        put(0),
        put(0),
        get(256, 4),
        get(256, 2),
        put(0),
        put(0),
        put(0),
        Trim { pool: 0, keep: 0 },
        get(256, 0),
        get(MIB, 5),
        get(932, 3),
        get(256, 1),
        get(10 * MIB, 5),
        put(0),
        put(0),
        put(1),
        get(256, 2),
        put(1),
        put(2),
        Idle { pool: 0, bytes: 2 * MIB, stream: 2 },
        put(0),
        get(MIB, 1),
        get(256, 2),
        get(1342, 5),
        Allocate { pool: 0, bytes: 16384, align: 2 * MIB, stream: 0, how: Object },
        Free { block: 51120, how: Unnamed },
        Trim { pool: 0, keep: 0 },
        get(3_167_519, 1),
    ];
    holds(&Program { settings, ops });
}

/// A block is used on one blocking stream, freed on the legacy stream, to which the program gives nothing to do, and
/// taken by another blocking stream. The implicit order is one of *work*: the second stream waits for the last work of the
/// legacy stream, not for what the first one did after that; so the pool records an event there.
#[test]
fn a_free_on_the_legacy_stream_covers_what_blocking_streams_did() {
    let four = Setup { maximum: Some(4 * MIB), ..PLAIN };
    let settings = Settings { pools: [four, PLAIN], ..SETTINGS };
    let ops = vec![
        Idle { pool: 0, bytes: 256, stream: LEGACY },
        Allocate { pool: 0, bytes: 2 * MIB, align: 256, stream: 6, how: Object },
        Free { block: 1, how: Default },
        Allocate { pool: 0, bytes: 2 * MIB, align: 256, stream: 4, how: Object },
    ];
    holds(&Program { settings, ops });
}

/// Memory of one graph, used by another one: its owner keeps the block for as long as the other one lives, and no longer.
#[test]
fn a_graph_may_use_memory_of_another_graph_that_is_kept() {
    let settings = Settings { captures: true, ..SETTINGS };
    let get = |stream| Allocate { pool: 0, bytes: 666, align: 256, stream, how: Object };
    let ops = vec![
        Begin { stream: 2, mode: 2 },
        get(2),
        End,
        Launch { graph: 0, stream: 2 },
        Begin { stream: 2, mode: 2 },
        Use { block: 0 },
        End,
        // The runs of both are ordered with each other, whichever streams they are on.
        Launch { graph: 1, stream: 3 },
        Launch { graph: 0, stream: 2 },
        // The first graph ends; its memory stays for the second one.
        Forget { graph: 0 },
        Launch { graph: 0, stream: 3 },
        Free { block: 0, how: Object },
        Trim { pool: 0, keep: 0 },
        Launch { graph: 0, stream: 3 },
        SyncDevice,
        Forget { graph: 0 },
        Free { block: 0, how: Object },
        Trim { pool: 0, keep: 0 },
        SyncDevice,
    ];
    holds(&Program { settings, ops });
}

/// The driver refuses twice to take pages of a graph back that is gone: they go later.
#[test]
fn pages_of_a_graph_that_the_driver_does_not_take_go_later() {
    let settings = Settings { pools: [Setup { maximum: Some(8 * MIB), ..PLAIN }, PLAIN], captures: true, ..SETTINGS };
    let get = |bytes, stream| Allocate { pool: 0, bytes, align: 256, stream, how: Object };
    let refuse = Fail { call: "cuMemUnmap", code: 999, after: 0 };
    let ops = vec![
        Begin { stream: 2, mode: 1 },
        get(256, 2),
        refuse,
        Free { block: 0, how: Object },
        get(MIB, 3),
        Free { block: 0, how: Unnamed },
        refuse,
        End,
        Forget { graph: 0 },
        get(256, 3),
        get(256, 2),
    ];
    holds(&Program { settings, ops });
}

/// A growth for a graph fails half way, and the driver does not take the first page back: it goes with the graph.
#[test]
fn what_a_failed_growth_for_a_graph_could_not_give_back_goes_with_the_graph() {
    let settings = Settings { captures: true, device: Some(2 * MIB), ..SETTINGS };
    let ops = vec![
        Fail { call: "cuMemUnmap", code: 999, after: 0 },
        Begin { stream: 2, mode: 1 },
        Allocate { pool: 0, bytes: 3 * MIB, align: 256, stream: 2, how: Object },
    ];
    holds(&Program { settings, ops });
}

/// The pool that ends here has memory in use on the device, which has not even the bytes of a proof left.
#[test]
fn a_pool_ends_on_a_full_device_that_has_lost_the_block_for_its_proof() {
    let two = Setup { maximum: Some(8 * MIB), ..PLAIN };
    let settings =
        Settings { pools: [two, Setup { footprint: true, liar: true, ..two }], device: Some(6 * MIB), ..SETTINGS };
    let ops = vec![
        Allocate { pool: 1, bytes: 256, align: 256, stream: 0, how: Object },
        Allocate { pool: 0, bytes: 256, align: 256, stream: 6, how: Object },
        Fail { call: "cuMemAlloc", code: 901, after: 0 },
        Allocate { pool: 0, bytes: 40960, align: 256, stream: 5, how: Object },
        Reopen { pool: 0 },
    ];
    holds(&Program { settings, ops });
    let settings = Settings { pools: [Setup { liar: true, ..two }, PLAIN], device: Some(10 * MIB), ..SETTINGS };
    let ops = vec![
        Fail { call: "cuThreadExchangeStreamCaptureMode", code: 801, after: 2 },
        Allocate { pool: 0, bytes: 256, align: 256, stream: 0, how: Object },
        FreeShared { block: 0, by: 3, on: 0 },
        Allocate { pool: 1, bytes: 256, align: 256, stream: 2, how: Object },
        Free { block: 0, how: Unnamed },
        Allocate { pool: 1, bytes: 8 * MIB, align: 256, stream: 2, how: Object },
        Reopen { pool: 1 },
    ];
    holds(&Program { settings, ops });
}
