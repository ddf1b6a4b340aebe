//! Random programs on the simulated device under a seeded schedule, shrunk on failure.
//!
//! Streams come and go, blocks are written, read late, handed from stream to stream behind events, and freed in every way
//! that is allowed; driver calls fail now and then; the pool is small, so that everything is used again. Under the seeded
//! schedule nothing runs before it must, in any order that is legal: memory that is handed over without a proof shows as
//! a late read of the wrong bytes (`sim::mismatches`), a call on a destroyed stream as a violation.
//!
//! `TENURE_SOAK_SEEDS=100000 cargo test --test pool_programs` runs more.

#![allow(missing_docs)]

#[path = "pool_common.rs"]
mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use tenure_core::error::Error;
use tenure_core::pool::{PoolOptions, Prefer};
use tenure_core::resource::{MemoryResource, Request};
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_driver::{Event, RawStream, sim};

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % n
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate {
        bytes: u64,
        stream: u64,
        raw: bool,
    },
    Use {
        block: u64,
    },
    /// The block goes on to another stream, which waits for its last one.
    Move {
        block: u64,
        to: u64,
    },
    /// In the order of its stream: as an object, as a carried value, as a stored value.
    Free {
        block: u64,
        how: u64,
    },
    /// Used on another stream as well, which the free does not name but admits.
    FreeUnproven {
        block: u64,
        by: u64,
        on: u64,
    },
    Run {
        steps: u64,
    },
    Trim {
        keep: u64,
    },
    /// The stream is destroyed and another one made; blocks of it can only be freed by the stored value.
    Renew {
        stream: u64,
    },
    Fail {
        call: u64,
        after: u64,
    },
    Info,
}

const CALLS: [&str; 10] = [
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWaitEvent",
    "cuMemFree",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuStreamIsCapturing",
];

fn program(seed: u64, steps: usize) -> Vec<Op> {
    let mut r = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    (0..steps)
        .map(|_| match r.below(100) {
            0..=34 => {
                let bytes = match r.below(6) {
                    0..=1 => 1 + r.below(2000),
                    2 => 1 + r.below(32 << 10),
                    3..=4 => 1 + r.below(1 << 20),
                    _ => 1 + r.below(5 << 20),
                };
                Op::Allocate { bytes, stream: r.below(6), raw: r.below(3) == 0 }
            }
            35..=44 => Op::Use { block: r.below(1 << 30) },
            45..=52 => Op::Move { block: r.below(1 << 30), to: r.below(6) },
            53..=80 => Op::Free { block: r.below(1 << 30), how: r.below(3) },
            81..=84 => Op::FreeUnproven { block: r.below(1 << 30), by: r.below(6), on: r.below(6) },
            85..=91 => Op::Run { steps: r.below(12) },
            92..=93 => Op::Trim { keep: r.below(8 << 20) },
            94..=95 => Op::Renew { stream: r.below(6) },
            96..=98 => Op::Fail { call: r.below(CALLS.len() as u64), after: r.below(3) },
            _ => Op::Info,
        })
        .collect()
}

/// A stream: 0 is the legacy one, 1 this thread's, the others are objects.
struct Streams(Vec<Option<Arc<StreamObject>>>);

impl Streams {
    fn new() -> Self {
        let make = |i: usize| (i >= 2).then(|| StreamObject::create(0, i.is_multiple_of(2)).expect("a stream"));
        Self((0..6).map(make).collect())
    }

    fn raw(&self, at: usize) -> RawStream {
        match at {
            0 => RawStream::NULL,
            1 => RawStream::PER_THREAD,
            _ => self.0[at].as_ref().map_or(RawStream::NULL, |s| s.raw()),
        }
    }

    fn carried(&self, at: usize, raw: bool) -> StreamRef<'_> {
        match &self.0[at] {
            Some(object) if !raw => object_of(object),
            _ => StreamRef::raw(self.raw(at)),
        }
    }
}

fn object_of(stream: &Arc<StreamObject>) -> StreamRef<'_> {
    object(stream)
}

struct Live {
    ptr: u64,
    bytes: u64,
    byte: u8,
    stream: usize,
    /// The stream's value when the block came to it, and how often the stream had been renewed then.
    raw: RawStream,
    age: u32,
}

fn touch(raw: RawStream, accesses: &[sim::Access]) {
    sim::launch_for(raw.as_raw(), Duration::from_millis(1), accesses).expect("a launch");
}

fn run(seed: u64, ops: &[Op]) -> Result<usize, String> {
    sim::schedule(seed);
    let (mismatches, violations) = (sim::mismatches(), sim::violations());
    let options = PoolOptions {
        initial_bytes: [0, 4 * MIB][seed as usize % 2],
        maximum_bytes: Some(12 * MIB),
        prefer: [Prefer::Concurrency, Prefer::Footprint][seed as usize / 2 % 2],
        plain_chunks: seed % 5 == 4,
        ..Default::default()
    };
    let pool = pool(options);
    let device = tenure_core::device::driver().unwrap().device(0).unwrap();
    let mut streams = Streams::new();
    let mut ages = [0u32; 6];
    let mut live: Vec<Live> = Vec::new();
    let mut byte = 0u8;
    let mut served = 0;
    for (step, op) in ops.iter().enumerate() {
        let failed = |text: String| Err::<(), String>(format!("step {step} {op:?}: {text}"));
        let fail = |text: String| failed(text).map(|()| 0);
        let at = |pick: u64| pick as usize % live.len().max(1);
        match *op {
            Op::Allocate { bytes, stream, raw } => {
                let stream = stream as usize;
                match pool.allocate(&request(bytes), streams.carried(stream, raw)) {
                    Ok(ptr) => {
                        served += 1;
                        byte = byte.wrapping_add(1);
                        let raw = streams.raw(stream);
                        touch(raw, &[sim::Access::Write { at: ptr, len: bytes as usize, byte }]);
                        live.push(Live { ptr, bytes, byte, stream, raw, age: ages[stream] });
                    }
                    Err(Error::OutOfMemory(_) | Error::Device(_)) => {}
                    Err(e) => return fail(e.to_string()),
                }
            }
            Op::Use { block } if !live.is_empty() => {
                let index = at(block);
                let b = &mut live[index];
                if b.age == ages[b.stream] {
                    byte = byte.wrapping_add(1);
                    let (at, len) = (b.ptr, b.bytes as usize);
                    touch(
                        b.raw,
                        &[sim::Access::Verify { at, len, byte: b.byte }, sim::Access::Write { at, len, byte }],
                    );
                    b.byte = byte;
                }
            }
            Op::Move { block, to } if !live.is_empty() => {
                sim::fail_clear();
                let (index, to) = (at(block), to as usize);
                let b = &mut live[index];
                if b.age == ages[b.stream] {
                    let event = Event::new(device).map_err(|e| e.to_string())?;
                    event.record(b.raw).map_err(|e| e.to_string())?;
                    streams.raw(to).wait_event(&event).map_err(|e| e.to_string())?;
                    (b.stream, b.raw, b.age) = (to, streams.raw(to), ages[to]);
                }
            }
            Op::Free { block, how } if !live.is_empty() => {
                let b = live.swap_remove(at(block));
                let alive = b.age == ages[b.stream];
                let named = match how {
                    _ if !alive => stored(b.raw),
                    0 => streams.carried(b.stream, false),
                    1 => streams.carried(b.stream, true),
                    _ => stored(b.raw),
                };
                if alive {
                    touch(b.raw, &[sim::Access::Verify { at: b.ptr, len: b.bytes as usize, byte: b.byte }]);
                }
                let freed = pool.deallocate(b.ptr, &request(b.bytes), named);
                if freed.is_err() {
                    // A question to the driver failed: nothing happened, so that it can be done again.
                    sim::fail_clear();
                    pool.deallocate(b.ptr, &request(b.bytes), named).or_else(|e| failed(e.to_string()))?;
                }
            }
            Op::FreeUnproven { block, by, on } if !live.is_empty() => {
                let b = live.swap_remove(at(block));
                if b.age == ages[b.stream] {
                    touch(b.raw, &[sim::Access::Verify { at: b.ptr, len: b.bytes as usize, byte: b.byte }]);
                    touch(streams.raw(by as usize), &[sim::Access::Read { at: b.ptr, len: b.bytes as usize }]);
                }
                let flagged = Request { flags: Request::UNPROVEN, ..request(b.bytes) };
                let named = streams.carried(on as usize, false);
                pool.deallocate(b.ptr, &flagged, named).or_else(|e| failed(e.to_string()))?;
            }
            Op::Run { steps } => (0..steps).for_each(|_| {
                sim::step();
            }),
            Op::Trim { keep } => match pool.trim(keep as usize) {
                Ok(_) | Err(Error::Device(_)) => {}
                Err(e) => return fail(e.to_string()),
            },
            Op::Renew { stream } if stream >= 2 => {
                sim::fail_clear();
                let stream = stream as usize;
                if let Some(old) = streams.0[stream].take() {
                    pool.stream_closing(object(&old));
                    drop(old);
                }
                streams.0[stream] = Some(StreamObject::create(0, stream.is_multiple_of(2)).map_err(|e| e.to_string())?);
                ages[stream] += 1;
            }
            Op::Fail { call, after } => sim::fail_next(CALLS[call as usize], 999, after).expect("a call of the table"),
            Op::Info => {
                let info = pool.info();
                if info.live_count != live.len() as u64 || info.live_bytes + info.cached_bytes > info.reserved_bytes {
                    return fail(format!("{info:?} with {} live", live.len()));
                }
            }
            _ => {}
        }
        if sim::mismatches() != mismatches {
            return fail("memory was handed over before its last use".into());
        }
        if step % 16 == 0 {
            pool.check().or_else(failed)?;
        }
    }
    sim::fail_clear();
    for b in live {
        pool.deallocate(b.ptr, &request(b.bytes), stored(b.raw)).map_err(|e| format!("at the end: {e}"))?;
    }
    pool.trim(0).map_err(|e| format!("at the end: {e}"))?;
    pool.check()?;
    let info = pool.info();
    if info.reserved_bytes != 0 || info.live_bytes != 0 {
        return Err(format!("all is free and trimmed: {info:?}"));
    }
    drop(pool);
    sim::run_all();
    if (sim::mismatches(), sim::violations()) != (mismatches, violations) {
        return Err(format!(
            "at the end: {} late reads of wrong bytes, {:?}",
            sim::mismatches() - mismatches,
            sim::violation_texts()
        ));
    }
    Ok(served)
}

fn shrink(seed: u64, mut ops: Vec<Op>) -> (Vec<Op>, String) {
    let mut error = run(seed, &ops).err().unwrap_or_default();
    let mut part = ops.len() / 2;
    while part > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut shorter = ops.clone();
            shorter.drain(at..(at + part).min(shorter.len()));
            match run(seed, &shorter) {
                Err(e) => (ops, error) = (shorter, e),
                Ok(_) => at += part,
            }
        }
        part /= 2;
    }
    (ops, error)
}

#[test]
fn random_programs_lose_no_byte() {
    let _machine = machine();
    let _current = tenure_core::device::driver().unwrap().device(0).unwrap().enter().unwrap();
    tenure_core::device::prepare_proof(0).unwrap();
    let seeds: u64 = std::env::var("TENURE_SOAK_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(90);
    let before = driver_free();
    let mut served = 0;
    for seed in 1..=seeds {
        // Short ones for the beginning of a pool's life, long ones for what wears it.
        let ops = program(seed, if seed % 3 == 0 { 400 } else { 60 });
        match run(seed, &ops) {
            Ok(n) => served += n,
            Err(_) => {
                let (small, error) = shrink(seed, ops);
                panic!("seed {seed}: {error}\n{small:#?}");
            }
        }
    }
    assert!(served as u64 > seeds * 20, "{served} allocations were served: too few to show anything");
    assert_eq!(driver_free(), before);
}
