//! Random allocations as RMM's benchmark of that name defines them, in code of our own.
//!
//! Of N allocations and M MiB: 2 N steps. A step draws a size, evenly from 1 byte to M MiB. Where something is live it
//! draws a chance, and 73 of 100 times it allocates, if fewer than N were allocated and the live bytes stay below 16 000
//! MiB; where nothing is live it allocates. Otherwise, or when the allocation fails, it frees a random live block. Each run
//! has the same sequence. Source of the definition: `random_allocations.cpp` in RMM's benchmarks.

use std::ffi::c_void;

use tenure::abi::tenure_stream;
use tenure::{AsyncPool, Error, Resource};

use super::super::bed::{Calls, Given, Kind, Sequence};
use super::super::plan::{Op, Plan, scene};

const THEME: &str = "random_allocations";
const MIB: usize = 1 << 20;
/// Live bytes stay below this, or below what the device has room for.
const USAGE: u64 = 16_000 * MIB as u64;
/// Of 100 steps.
const ALLOCATES: usize = 73;

struct State {
    resource: Resource,
    stream: Given,
    allocations: usize,
    largest: usize,
    usage: usize,
}

pub(super) fn rows() -> Vec<Plan> {
    let sizes = [1, 4, 64, 256, 1024, 4096].map(|mib| (1000, mib));
    let counts = [10_000, 100_000].map(|count| (count, 4));
    let make = |allocations: usize, mib: usize, pool: bool| {
        move |bed: &super::Bed| {
            let resource = match pool {
                true => bed.pool()?,
                // Where the driver has no pools, plain memory is what is left to compare with.
                false => match AsyncPool::builder(&bed.device).build() {
                    Err(Error::Unsupported(_)) => tenure::cuda()?,
                    made => made?.into(),
                },
            };
            let usage = USAGE.min(bed.room / 2) as usize;
            scene(State { resource, stream: Given::new(Kind::Own)?, allocations, largest: mib * MIB, usage }, steps)
        }
    };
    sizes
        .into_iter()
        .chain(counts)
        .map(|(allocations, mib)| {
            Plan::new(
                THEME,
                format!("{THEME}-{allocations}-{mib}MiB"),
                format!("one step of {allocations} random allocations of up to {mib} MiB"),
                make(allocations, mib, true),
                "the same on a pool of the driver's (cuMemAllocAsync)",
                make(allocations, mib, false),
            )
            .warm((allocations * 2).min(20_000))
            .needs((mib * MIB) as u64 * 4)
        })
        .collect()
}

/// One run, which begins again when it is over. Dropping it frees what is live.
struct Run {
    calls: Calls,
    stream: tenure_stream,
    live: Vec<(*mut c_void, usize)>,
    live_bytes: usize,
    allocated: usize,
    step: usize,
    sequence: Sequence,
}

impl Run {
    fn free(&mut self, at: usize) -> tenure::Result<()> {
        let (ptr, bytes) = self.live.swap_remove(at);
        self.live_bytes -= bytes;
        self.calls.free(ptr, bytes, self.stream)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        while !self.live.is_empty() {
            // A failure was reported by the operation before; there is nothing to add.
            let _ = self.free(self.live.len() - 1);
        }
    }
}

fn steps(state: &State, _: usize) -> tenure::Result<Op<'_>> {
    let mut run = Run {
        calls: Calls::new(&state.resource)?,
        stream: state.stream.abi(),
        live: Vec::with_capacity(state.allocations),
        live_bytes: 0,
        allocated: 0,
        step: 0,
        sequence: Sequence::new(0),
    };
    Ok(Box::new(move || {
        if run.step == state.allocations * 2 {
            while !run.live.is_empty() {
                run.free(run.live.len() - 1)?;
            }
            (run.step, run.allocated, run.sequence) = (0, 0, Sequence::new(0));
        }
        run.step += 1;
        let bytes = 1 + run.sequence.below(state.largest);
        let allocates = run.live.is_empty()
            || (run.sequence.below(100) < ALLOCATES
                && run.allocated < state.allocations
                && run.live_bytes + bytes < state.usage);
        if allocates {
            match run.calls.allocate(bytes, run.stream) {
                Ok(ptr) => {
                    run.live.push((ptr, bytes));
                    run.allocated += 1;
                    run.live_bytes += bytes;
                    return Ok(());
                }
                Err(Error::OutOfMemory(_)) => {}
                Err(error) => return Err(error),
            }
        }
        if run.live.is_empty() {
            return Ok(());
        }
        let at = run.sequence.below(run.live.len());
        run.free(at)
    }))
}
