//! The live blocks of one resource, for a list of them.
//!
//! ```text
//!   address --the 64 KiB it lies in--> shard 0..127   { a lock, a map: address -> bytes, where it came from }
//! ```
//!
//! The neighbourhood of an address chooses its shard, not the address alone: blocks that lie side by side are handed out by
//! the same thread of a pool most of the time, so that threads rarely meet at a shard, and its memory stays in their caches.
//!
//! # Invariants
//! * A shard is locked for the length of one map operation. Nothing is called under the lock.
//! * A block is taken out *before* its memory is given back, since from then on another thread may get its address. A free
//!   that fails puts it back, unless the block has gone meanwhile by another free, or its address is in the list again.
//! * Bytes and counts of a shard move with its entries; their sums are exact while nobody allocates or frees.
//!
//! # Cost
//! Two locks and two map operations for a block's life, about 20 ns.

use crossbeam_utils::CachePadded;
use rustc_hash::FxHashMap;

use crate::stack::Stack;
use crate::sync::Mutex;

const SHARDS: usize = 128;

/// One live block.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    /// Its size in bytes, as it was asked for.
    pub(crate) bytes: usize,
    /// Where it came from, if that is asked for.
    pub(crate) stack: Option<Box<Stack>>,
}

#[derive(Default)]
struct Shard {
    live: FxHashMap<u64, Live>,
    bytes: u64,
}

impl Shard {
    fn enter(&mut self, ptr: u64, live: Live) -> Option<Live> {
        self.bytes += live.bytes as u64;
        let stale = self.live.insert(ptr, live);
        self.bytes -= stale.as_ref().map_or(0, |stale| stale.bytes as u64);
        stale
    }

    fn leave(&mut self, ptr: u64) -> Option<Live> {
        let live = self.live.remove(&ptr)?;
        self.bytes -= live.bytes as u64;
        Some(live)
    }
}

/// The blocks.
pub(crate) struct Outstanding {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
}

impl Default for Outstanding {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| CachePadded::default()).collect() }
    }
}

impl Outstanding {
    fn shard(&self, ptr: u64) -> &Mutex<Shard> {
        let hash = (ptr >> 16).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(hash >> 57) as usize]
    }

    /// Takes a block in.
    pub(crate) fn enter(&self, ptr: u64, live: Live) {
        let stale = self.shard(ptr).lock().enter(ptr, live);
        // A stack may be large: it goes when the lock is open.
        drop(stale);
    }

    /// Takes a block out, before its memory is given back.
    pub(crate) fn leave(&self, ptr: u64) -> Option<Live> {
        self.shard(ptr).lock().leave(ptr)
    }

    /// Puts a block back whose free did not happen. `is_live` says whether somebody else's has happened meanwhile.
    #[cold]
    pub(crate) fn put_back(&self, ptr: u64, live: Live, is_live: impl FnOnce() -> bool) {
        {
            let mut shard = self.shard(ptr).lock();
            if shard.live.contains_key(&ptr) {
                return;
            }
            shard.enter(ptr, live);
        }
        if !is_live() {
            drop(self.leave(ptr));
        }
    }

    /// Bytes and number of the blocks.
    pub(crate) fn figures(&self) -> (u64, u64) {
        self.shards.iter().fold((0, 0), |(bytes, count), shard| {
            let shard = shard.lock();
            (bytes + shard.bytes, count + shard.live.len() as u64)
        })
    }

    /// The blocks now, by address.
    pub(crate) fn list(&self) -> Vec<(u64, Live)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().live.iter().map(|(ptr, live)| (*ptr, live.clone())));
        }
        all.sort_unstable_by_key(|(ptr, _)| *ptr);
        all
    }
}
