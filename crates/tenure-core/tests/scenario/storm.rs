//! Several threads at once, and a driver that fails now and then.
//!
//! ```text
//!   thread k   make, grow, copy, use elsewhere, close ... on its own and on everybody's streams, from shared resources
//!   weather    arms one failure of a random call after another
//!   at the end everything has been given back: the machine is as it was
//! ```
//!
//! Unlike in a scenario nobody knows which thread a failure hits, so that only this is checked of each error: it names a
//! failure that was armed, or is out of memory where that was armed or the pool's limit may have been met. What is checked
//! exactly is the end.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tenure_core::buffer::Buffer;
use tenure_core::error::{Error, Result};
use tenure_core::misuse;
use tenure_core::pool::{PoolOptions, Prefer};
use tenure_core::resource::Resource;
use tenure_core::resource::leaf::{AsyncOptions, AsyncPool, shared};
use tenure_core::stream::StreamHold;
use tenure_driver::sim;

use super::{Failed, MIB, Picture, Things, difference, pool, stream};

const THREADS: u64 = 4;
const STEPS: u64 = 150;

/// Calls of which one fails at a time.
const CALLS: [&str; 16] = [
    "cuMemAlloc",
    "cuMemFree",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuMemHostAlloc",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuMemcpyAsync",
    "cuCtxPushCurrent",
];

/// xorshift64*.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }
}

/// What a storm has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) steps: u64,
    pub(crate) refused: u64,
    pub(crate) armed: u64,
}

/// One storm.
pub(crate) fn storm(seed: u64) -> std::result::Result<Seen, String> {
    let say = |what: &str, e: &Error| format!("storm {seed}: {what}: {e}");
    // The process's own resources are made at their first use, and stay.
    for made in [shared::cuda(), shared::pinned()] {
        drop(made.map_err(|e| say("set up", &e))?);
    }
    let start = Picture::take(&Things::default(), &Failed::default());
    let reported = misuse::count();
    let make = || -> Result<(Vec<Resource>, Vec<StreamHold>)> {
        let options = PoolOptions { maximum_bytes: Some(48 << 20), ..PoolOptions::default() };
        let resources = vec![
            pool(options)?,
            pool(PoolOptions { prefer: Prefer::Footprint, ..options })?,
            pool(PoolOptions { plain_chunks: true, ..options })?,
            Resource::new(AsyncPool::new(AsyncOptions { device: Some(0), ..AsyncOptions::default() })?)?,
            shared::cuda()?,
            shared::pinned()?,
        ];
        Ok((resources, (0..3).map(|_| stream(0)).collect::<Result<_>>()?))
    };
    let (resources, streams) = make().map_err(|e| say("set up", &e))?;
    // Counted, and said by nobody: two failures in a row are part of the weather.
    let handler = misuse::set_handler(Some(std::sync::Arc::new(|_: &str| ())));
    let (wrong, over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let (steps, refused, armed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (resources, streams, wrong, steps, refused) = (&resources, &streams, &wrong, &steps, &refused);
                scope.spawn(move || {
                    let mut random = Random::new(seed * THREADS + thread + 1);
                    let mut held: Vec<Buffer> = Vec::new();
                    for _ in 0..STEPS {
                        steps.fetch_add(1, Ordering::Relaxed);
                        if let Err(e) = step(&mut random, resources, streams, &mut held) {
                            refused.fetch_add(1, Ordering::Relaxed);
                            let known = match &e {
                                Error::OutOfMemory(_) => true,
                                Error::Device(e) => CALLS.contains(&e.call) && matches!(e.code, 2 | 999),
                                _ => false,
                            };
                            if !known {
                                wrong.lock().expect("unpoisoned").push(format!("{e:?}"));
                            }
                        }
                    }
                    for mut buffer in held {
                        // A failure that passes: the buffer keeps its memory and is asked again.
                        while buffer.close(None).is_err() {}
                    }
                })
            })
            .collect();
        // The weather: one failure at a time, so that what undoes another is not hit as well.
        let mut random = Random::new(seed);
        let stop = &over;
        let weather = scope.spawn({
            let armed = &armed;
            move || {
                while !stop.load(Ordering::Acquire) {
                    sim::fail_clear();
                    let code = if random.below(2) == 0 { 2 } else { 999 };
                    let call = CALLS[random.below(CALLS.len())];
                    if sim::fail_next(call, code, random.below(8) as u64).is_ok() {
                        armed.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::sleep(std::time::Duration::from_micros(30));
                }
            }
        });
        for worker in workers {
            if worker.join().is_err() {
                wrong.lock().expect("unpoisoned").push("a thread panicked".into());
            }
        }
        over.store(true, Ordering::Release);
        let _ = weather.join();
    });
    sim::fail_clear();
    drop(misuse::set_handler(handler));
    let wrong = wrong.into_inner().unwrap_or_default();
    if !wrong.is_empty() {
        return Err(format!("storm {seed}: errors of no failure that was armed: {}", wrong.join("; ")));
    }
    for resource in &resources {
        resource.body().trim(0).map_err(|e| say("trim", &e))?;
    }
    drop(streams);
    drop(resources);
    // A block whose undoing failed too is reported, and stays live: then the figures cannot be what they were.
    if misuse::count() == reported {
        let end = Picture::take(&Things::default(), &Failed::default());
        let (a, b) = (start.without_handles(), end.without_handles());
        if a != b {
            return Err(format!("storm {seed}: something is left:{}", difference(&a, &b)));
        }
    }
    let of = |n: AtomicU64| n.into_inner();
    Ok(Seen { steps: of(steps), refused: of(refused), armed: of(armed) })
}

fn step(random: &mut Random, resources: &[Resource], streams: &[StreamHold], held: &mut Vec<Buffer>) -> Result<()> {
    let home = streams[random.below(streams.len())].clone();
    let bytes = if random.below(4) == 0 { random.below(3 * MIB) } else { random.below(20_000) } + 1;
    let at = random.below(held.len().max(1));
    match random.below(8) {
        0..=2 => {
            let resource = &resources[random.below(resources.len())];
            held.push(Buffer::create(bytes, 256, home, resource.light())?);
        }
        _ if held.is_empty() => {}
        3 => held[at].resize(bytes, home)?,
        4 => {
            let resource = resources[random.below(resources.len())].light();
            let copy = held[at].copy(home, resource)?;
            held.push(copy);
        }
        5 => held[at].record_stream(home),
        6 => held[at].shrink_to_fit(home)?,
        _ => {
            held[at].close(None)?;
            held.swap_remove(at);
        }
    }
    if held.len() > 12 {
        held[0].close(None)?;
        held.swap_remove(0);
    }
    Ok(())
}
