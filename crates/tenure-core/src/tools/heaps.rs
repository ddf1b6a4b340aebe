//! Pools as a memory checker sees them: heaps, and the regions in them that may be touched.
//!
//! ```text
//!   addresses   ...|======= heap ======|.....|== heap ==|== heap ==|...      a piece of a pool each, as it came
//!                     [block]  [block]           [   block   ]               regions: [   ]   and   [.. | ..]
//! ```
//!
//! A block that lies across the border of two heaps is a region in each. A pool over a pool adds no heap: its blocks are
//! regions of the heap below, where the piece itself is a region no more. Regions have the size that was *asked for*, so
//! that a kernel that runs into the rounding is found too.
//!
//! **Invariants**: a region goes before its memory can be given to anybody else, and comes after it was; a heap comes after
//! its memory was taken and goes before it is given back. A free that is refused changes nothing. The tool is called with
//! no lock held; its answers are used by whoever owns the block or the piece at that moment, and by nobody else.
//!
//! **Cost**: with a tool that checks memory, a lock for the process and two searches a call. Without one, one relaxed load.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use tenure_driver::nvtx::memory::{self, Heap};

use crate::error::Result;
use crate::resource::Request;
use crate::sync::Mutex;

/// Addresses are the process's, so that one table serves all pools of all devices.
struct Table {
    /// By base: the end, and the tool's handle.
    heaps: BTreeMap<u64, (u64, Known)>,
    /// Sizes of the blocks that are registered, by address.
    blocks: BTreeMap<u64, u64>,
}

/// A heap and the device that it lies on.
#[derive(Clone, Copy)]
struct Known {
    heap: Heap,
    device: i32,
}

impl Known {
    /// Tells the tool something, with the heap's device current: compute-sanitizer refuses a thread that has none ("not
    /// ready"), which is how a program begins whose first call is an allocation.
    fn tell(self, what: impl FnOnce(Heap)) {
        let _current = entered(self.device);
        what(self.heap);
    }
}

/// A device that cannot be made current leaves the tool with what it has.
fn entered(device: i32) -> Option<tenure_driver::device::Current> {
    crate::device::driver().ok()?.device(device).ok()?.enter().ok()
}

static TABLE: Mutex<Table> = Mutex::new(Table { heaps: BTreeMap::new(), blocks: BTreeMap::new() });

/// A part of a block in a heap.
type Part = (Known, u64, u64);

impl Table {
    /// The parts of a block, one per heap.
    fn parts(&self, ptr: u64, bytes: u64) -> SmallVec<[Part; 4]> {
        let end = ptr.saturating_add(bytes);
        let first = self.heaps.range(..=ptr).next_back().map_or(ptr, |(base, _)| *base);
        self.heaps
            .range(first..end)
            .map(|(base, (heap_end, heap))| (*heap, (*base).max(ptr), (*heap_end).min(end)))
            .filter(|(_, from, to)| from < to)
            .map(|(heap, from, to)| (heap, from, to - from))
            .collect()
    }
}

/// Whether a tool checks memory. One relaxed load.
#[inline]
pub fn wanted() -> bool {
    memory::attached()
}

/// A pool has taken `bytes` bytes of `device` at `base`, of which nothing may be touched: a heap. Memory that comes from another pool
/// lies in that one's heap already, and is a block there no more.
pub fn taken(device: i32, base: u64, bytes: u64) {
    if bytes == 0 {
        return;
    }
    if !TABLE.lock().parts(base, bytes).is_empty() {
        unregister(base);
        return;
    }
    let heap = {
        let _current = entered(device);
        Heap::new(base, bytes)
    };
    if let Some(heap) = heap {
        TABLE.lock().heaps.insert(base, (base.saturating_add(bytes), Known { heap, device }));
    }
}

/// A pool is about to give back the `bytes` bytes that it took at `base`.
pub fn leaving(base: u64, bytes: u64) {
    // Blocks are left where a pool ends with live ones.
    let (heap, left): (_, SmallVec<[u64; 8]>) = {
        let mut table = TABLE.lock();
        let left = table.blocks.range(base..base.saturating_add(bytes)).map(|(ptr, _)| *ptr).collect();
        (table.heaps.remove(&base), left)
    };
    if let Some((_, heap)) = heap {
        heap.tell(Heap::close);
    }
    for ptr in left {
        unregister(ptr);
    }
}

/// Passes on what a pool answered to `request`; a block that it gave may be touched from now on.
///
/// # Errors
/// The pool's.
#[inline]
pub fn served(request: &Request, answer: Result<u64>) -> Result<u64> {
    if wanted()
        && let Ok(ptr) = answer
    {
        register(ptr, request.bytes as u64);
    }
    answer
}

#[cold]
fn register(ptr: u64, bytes: u64) {
    let parts = {
        let mut table = TABLE.lock();
        let parts = table.parts(ptr, bytes);
        if !parts.is_empty() {
            table.blocks.insert(ptr, bytes);
        }
        parts
    };
    for (heap, from, bytes) in parts {
        heap.tell(|heap| heap.register(from, bytes));
    }
}

/// Runs a pool's `free` of the block at `ptr`, which may not be touched from now on; where the pool refuses, it may again.
///
/// # Errors
/// The pool's.
#[inline]
pub fn freed(ptr: u64, free: impl FnOnce() -> Result<()>) -> Result<()> {
    if !wanted() {
        return free();
    }
    let bytes = unregister(ptr);
    let answer = free();
    if answer.is_err()
        && let Some(bytes) = bytes
    {
        register(ptr, bytes);
    }
    answer
}

#[cold]
fn unregister(ptr: u64) -> Option<u64> {
    let (bytes, parts) = {
        let mut table = TABLE.lock();
        let bytes = table.blocks.remove(&ptr)?;
        (bytes, table.parts(ptr, bytes))
    };
    for (heap, from, _) in parts {
        heap.tell(|heap| heap.unregister(from));
    }
    Some(bytes)
}

/// Heaps and blocks that a tool knows of now; for tests.
#[doc(hidden)]
pub fn count() -> (usize, usize) {
    let table = TABLE.lock();
    (table.heaps.len(), table.blocks.len())
}
