//! Many threads and streams in one tight pool, with a pattern in each block by which its owner knows it.
//!
//! ```text
//!   worker --- allocate ---> fill (owner) ... verify (owner), late ---> free: on its stream, on one that waits, by a stored value
//!      |                           \
//!      +--- sends blocks to other workers, makes and ends streams and threads, trims, asks for a third of the pool at once
//! ```
//!
//! Kernels write and look in the order of the streams, some of them late, and nobody waits for them: memory that the pool
//! hands to its next owner before the last kernel of the former one has run shows as a wrong word. The pool is as small as
//! what the workers would like to have, so that it takes from other streams, waits for the device, exchanges pages and
//! refuses.
//!
//! On the simulated device the order of all accesses is checked as well (`sim::check_order`): there also a race that did not
//! collide is found. With a GPU: `TENURE_DEVICE=cuda`.
//!
//! | variable | what | without it |
//! |---|---|---|
//! | `PATTERN_SECONDS` | how long | 2 |
//! | `PATTERN_THREADS` | workers | 4 |
//! | `PATTERN_BYTES` | the limit of the pool | 1 GiB; 32 MiB on the simulated device |
//! | `PATTERN_SEED` | where the random programs start | another one each time |
//! | `PATTERN_BREAK` | `1`: frees on the wrong stream, which must be seen | |

#![allow(missing_docs)]
#![allow(clippy::print_stdout, reason = "the line of figures is the outcome")]

#[path = "patterns/engine.rs"]
mod engine;
#[path = "patterns/lane.rs"]
mod lane;
#[path = "patterns/worker.rs"]
mod worker;

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use engine::Engine;
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{MemoryResource, Resource};
use tenure_driver::{Device, Driver, calls, load, sim};
use worker::{Shared, Tally, Worker};

fn number(name: &str) -> Option<f64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}: give a number")))
}

struct Settings {
    seconds: f64,
    threads: u64,
    bytes: u64,
    seed: u64,
    wrong: bool,
}

impl Settings {
    fn read(simulated: bool) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |t| t.as_millis() as u64);
        Self {
            seconds: number("PATTERN_SECONDS").unwrap_or(2.0),
            threads: number("PATTERN_THREADS").map_or(4, |n| n as u64).max(1),
            bytes: number("PATTERN_BYTES").map_or(if simulated { 32 << 20 } else { 1 << 30 }, |n| n as u64),
            seed: number("PATTERN_SEED").map_or(now % 1_000_000, |n| n as u64),
            wrong: number("PATTERN_BREAK") == Some(1.0),
        }
    }
}

/// The first device of what `TENURE_DEVICE` names; the simulated one where it names nothing.
fn device() -> &'static Device {
    let bytes = number("PATTERN_BYTES").unwrap_or_default() as u64;
    let _ = sim::configure(sim::Config { devices: 1, memory: (bytes + (64 << 20)).max(256 << 20) });
    let driver = match std::env::var_os(load::VARIABLE) {
        Some(_) => Driver::get(),
        None => load::prefer_sim(),
    };
    driver.unwrap_or_else(|error| panic!("{error}")).device(0).expect("a device")
}

/// Stops everybody when a worker fails.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Lets the workers work; gives what they did, all together. `None` where one of them failed.
fn work(shared: &Shared, seed: u64) -> Option<Tally> {
    let (outboxes, inboxes): (Vec<_>, Vec<_>) = (0..shared.threads).map(|_| mpsc::channel()).unzip();
    let workers: Vec<Worker<'_>> = inboxes
        .into_iter()
        .enumerate()
        .map(|(me, inbox)| {
            let others = outboxes.iter().enumerate().filter(|(i, _)| *i != me).map(|(_, outbox)| outbox.clone());
            Worker::new(shared, seed + me as u64, inbox, others.collect())
        })
        .collect();
    drop(outboxes);
    std::thread::scope(|scope| {
        let running: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                scope.spawn(move || {
                    let _alarm = Alarm(&shared.stop);
                    while !worker.done {
                        if let Err(panic) = std::thread::scope(|life| life.spawn(|| worker.live()).join()) {
                            std::panic::resume_unwind(panic);
                        }
                    }
                    worker.tally
                })
            })
            .collect();
        // All of them, also after one that failed.
        running.into_iter().map(|worker| worker.join().ok()).collect::<Vec<_>>()
    })
    .into_iter()
    .collect::<Option<Vec<_>>>()
    .map(|tallies| tallies.iter().fold(Tally::default(), |sum, t| sum.and(t)))
}

#[test]
fn every_block_keeps_its_owners_pattern() {
    let device = device();
    let simulated = device.driver().is_simulated();
    let settings = Settings::read(simulated);
    let _current = device.enter().expect("the device");
    if simulated {
        sim::check_order(true);
    }
    calls::enable();
    let options = PoolOptions { maximum_bytes: Some(settings.bytes), ..Default::default() };
    let pool = Pool::new(shared::cuda().expect("the plain resource"), device.ordinal(), options).expect("a pool");
    let start = Instant::now();
    let shared = Shared {
        device,
        engine: Engine::new(device),
        resource: Resource::new(pool).expect("a resource"),
        bytes: settings.bytes,
        threads: settings.threads,
        wrong: settings.wrong,
        end: Instant::now() + Duration::from_secs_f64(settings.seconds),
        stop: AtomicBool::new(false),
        owners: AtomicU64::new(0),
    };
    let tally = work(&shared, settings.seed);
    device.synchronize().expect("all work runs to its end");

    let (mismatches, first) = shared.engine.mismatches();
    let races = if simulated { sim::races() } else { 0 };
    let info = shared.resource.body().info();
    let unmapped = calls::snapshot().iter().find(|(name, _)| *name == "cuMemUnmap").map_or(0, |(_, count)| *count);
    let done = tally.unwrap_or_default();
    println!(
        "patterns: {:.1} s, {} threads, {} streams, {} allocations, {:.1} GiB patterned, {} kernels, {} handed over, {} out \
         of memory, {} device proofs, {unmapped} unmaps, {mismatches} mismatches{} (pool of {} MiB, seed {})",
        start.elapsed().as_secs_f64(),
        settings.threads,
        done.streams,
        done.allocations,
        done.patterned as f64 / f64::from(1 << 30),
        done.kernels,
        done.handed_over,
        done.out_of_memory,
        info.device_proofs,
        if simulated { format!(", {races} races") } else { String::new() },
        settings.bytes >> 20,
        settings.seed,
    );
    assert!(mismatches == 0 && races == 0, "memory had two owners at once: {first}");
    assert!(tally.is_some(), "a worker failed; its message is above");
    assert!(done.allocations > 0 && done.kernels > done.allocations, "nothing was looked at");

    // All is freed: the pool is whole and can give everything back.
    assert_eq!((info.live_count, info.live_bytes), (0, 0), "{info:?}");
    let pool = shared.resource.downcast::<Pool>().expect("a pool");
    pool.check().expect("the placer's invariants");
    let went = pool.trim(0).expect("a trim");
    let left = pool.info();
    if left.reserved_bytes != 0 {
        // What a second trim finds tells what the first one left: pages, or old addresses of pages.
        let (size, past) = (pool.property("pool_size"), pool.property("past_bytes"));
        let ranges = pool.ranges();
        let again = pool.trim(0);
        panic!(
            "a trim gave {went} bytes back and left {left:?}, {size:?} mapped in {ranges:x?}, {past:?} at old addresses; \
             another one gave {again:?} and left {:?}",
            pool.info()
        );
    }
}

/// The test above can fail: with frees on the wrong stream it does, and says why.
#[test]
fn a_free_in_the_wrong_order_is_seen() {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "every_block_keeps_its_owners_pattern", "--nocapture", "--test-threads=1"])
        .envs([("PATTERN_BREAK", "1"), ("PATTERN_SECONDS", "1"), ("PATTERN_THREADS", "4")])
        .output()
        .expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    // On a GPU a kernel may meet an address that was unmapped too soon, and the device is lost before there are figures.
    if !output.status.success() && errors.contains("CUDA_ERROR_ILLEGAL_ADDRESS") {
        return;
    }
    let line = text
        .lines()
        .find_map(|line| line.split_once(" unmaps, "))
        .unwrap_or_else(|| panic!("no figures: {text}\n{errors}"));
    let mismatches: u64 = line.1.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    assert!(!output.status.success() && mismatches > 0, "{text}");
}
