//! A random one of many live blocks freed and another allocated; and what a live block costs the host.
//!
//! Unsafe in this file: frees of blocks that nobody uses, and one call of the C library.

use std::ffi::c_void;
use std::hint::black_box;

use tenure::{DEFAULT_ALIGNMENT, Resource, Stream};

use super::super::bed::{Bed, Blocks, Given, Kind, Sequence, Sizes};
use super::super::plan::{Begin, Op, Plan, Scene, Target, scene};

const THEME: &str = "churn";
/// The largest block.
const MOST: usize = 4 << 20;
/// Live blocks whose cost in the host's memory is measured: with fewer, a page more or less would be the figure.
const MEASURABLE: usize = 10_000;

struct State {
    pool: Resource,
    stream: Given,
    live: usize,
    sizes: Sizes,
}

pub(super) fn rows() -> Vec<Plan> {
    let mut rows = Vec::new();
    for live in [100, 1_000, 10_000, 100_000] {
        for (face, through, operation) in [("c", "the C ABI", c as Begin<State>), ("rust", "the crate tenure", rust)] {
            let plan = Plan::new(
                THEME,
                format!("{THEME}-{face}-{live}"),
                format!("one of {live} live blocks of 256 B to 4 MiB freed and another allocated, through {through}"),
                move |bed| stage(bed, live, operation),
                "malloc + free likewise, with as many live blocks of a 256th of the size",
                move |bed| malloc(bed, live),
            );
            let mut plan = plan.target(Target::Nanoseconds(150.0)).warm(2048.max(live / 4));
            plan.host_bytes = match live {
                10_000 => Some(|bed| host_bytes(bed, 10_000)),
                100_000 => Some(|bed| host_bytes(bed, 100_000)),
                _ => None,
            };
            debug_assert!(plan.host_bytes.is_none() || live >= MEASURABLE);
            rows.push(plan);
        }
    }
    rows
}

fn stage(bed: &Bed, live: usize, operation: Begin<State>) -> tenure::Result<Box<dyn Scene>> {
    let state = State { pool: bed.pool()?, stream: Given::new(Kind::Own)?, live, sizes: bed.sizes(live, MOST) };
    scene(state, operation)
}

fn c(state: &State, lane: usize) -> tenure::Result<Op<'_>> {
    let (mut sequence, sizes) = (Sequence::new(lane), state.sizes);
    let mut blocks = Blocks::new(&state.pool, state.stream.abi(), state.live, || sizes.next(&mut sequence))?;
    Ok(Box::new(move || {
        let slot = sequence.below(blocks.len());
        blocks.replace(slot, sizes.next(&mut sequence))
    }))
}

/// Blocks of a pool, which are freed at the end. Through the crate.
struct Owned<'a> {
    pool: &'a Resource,
    stream: &'a Stream,
    blocks: Vec<(*mut c_void, usize)>,
}

impl Owned<'_> {
    #[inline]
    fn free(&self, slot: usize) -> tenure::Result<()> {
        let (ptr, bytes) = self.blocks[slot];
        // SAFETY: nobody uses the block.
        unsafe { self.pool.deallocate(ptr, bytes, DEFAULT_ALIGNMENT, self.stream) }
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        for slot in 0..self.blocks.len() {
            // A failure was reported by the operation before; there is nothing to add.
            let _ = self.free(slot);
        }
    }
}

fn rust(state: &State, lane: usize) -> tenure::Result<Op<'_>> {
    let (mut sequence, sizes) = (Sequence::new(lane), state.sizes);
    let mut all = Owned { pool: &state.pool, stream: state.stream.stream(), blocks: Vec::with_capacity(state.live) };
    for _ in 0..state.live {
        let bytes = sizes.next(&mut sequence);
        all.blocks.push((all.pool.allocate(bytes, all.stream)?, bytes));
    }
    Ok(Box::new(move || {
        let (slot, bytes) = (sequence.below(all.blocks.len()), sizes.next(&mut sequence));
        all.free(slot)?;
        all.blocks[slot] = (std::ptr::null_mut(), 0);
        all.blocks[slot] = (all.pool.allocate(bytes, all.stream)?, bytes);
        Ok(())
    }))
}

fn malloc(bed: &Bed, live: usize) -> tenure::Result<Box<dyn Scene>> {
    scene((live, bed.sizes(live, MOST)), |&(live, sizes), lane| -> tenure::Result<Op<'_>> {
        let mut sequence = Sequence::new(lane);
        let mut blocks: Vec<Vec<u8>> = (0..live).map(|_| Vec::with_capacity(sizes.next(&mut sequence) >> 8)).collect();
        Ok(Box::new(move || {
            let (slot, bytes) = (sequence.below(live), sizes.next(&mut sequence) >> 8);
            blocks[slot] = Vec::new();
            blocks[slot] = black_box(Vec::with_capacity(bytes));
            Ok(())
        }))
    })
}

/// Bytes of the host's memory for each of `live` blocks: how much more of the process is resident with a new pool that
/// holds them than before, without what the C library merely keeps and without this function's own list. What the driver
/// keeps for the memory is in it.
fn host_bytes(bed: &Bed, live: usize) -> tenure::Result<f64> {
    let stream = Given::new(Kind::Own)?;
    let (mut sequence, sizes) = (Sequence::new(0), bed.sizes(live, MOST));
    // The list is resident before: it is written to, and empty again when the blocks come.
    let mut list: Vec<(*mut c_void, usize)> = vec![(std::ptr::without_provenance_mut(1), 1); live];
    black_box(&mut list).clear();
    let before = resident();
    let pool = bed.pool()?;
    let all = Blocks::within(list, &pool, stream.abi(), live, || sizes.next(&mut sequence))?;
    let after = resident();
    drop(all);
    Ok(match (before, after) {
        (Some(before), Some(after)) => after.saturating_sub(before) as f64 / live as f64,
        _ => f64::NAN,
    })
}

/// Bytes of the process that are resident, and not only because the C library has not given them back.
fn resident() -> Option<usize> {
    // SAFETY: no argument that could be wrong.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?.split_whitespace().nth(1)?.parse::<usize>().ok()?;
    // SAFETY: no argument that could be wrong.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    Some(pages * page)
}
