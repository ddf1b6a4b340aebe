//! What each block of a fixed-size resource was asked for.
//!
//! ```text
//!   address --hash--> shard 0..31  { start -> bytes }
//! ```
//!
//! The pool below knows which blocks are live and whose they are; all of them have one size there. This table adds the
//! size that the caller named, so that a free with another one is found.
//!
//! # Invariants
//! * The entry of a live block is right: it is written after the pool has given the block and before the caller has it.
//! * The entry of a free block says nothing. It stays, and the next use of the block overwrites it: so a free needs no
//!   write, and nothing can come between the pool's free and the removal of an entry.
//! * A shard is locked for the length of one map operation; [`Sizes::retain`] calls the pool's `find` under it.
//!
//! # Cost
//! One lock and one hash for an allocation and for a free each. 16 bytes a block that was ever handed out.

use crossbeam_utils::CachePadded;
use rustc_hash::FxHashMap;

use crate::sync::Mutex;

const SHARDS: usize = 32;

/// Start of a block -> bytes that were asked for.
pub(super) struct Sizes {
    shards: [CachePadded<Mutex<FxHashMap<u64, u64>>>; SHARDS],
}

impl Sizes {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| CachePadded::default()) }
    }

    fn shard(&self, ptr: u64) -> &Mutex<FxHashMap<u64, u64>> {
        // Fibonacci hashing: block addresses share their low bits and, within a chunk, their high ones.
        &self.shards[(ptr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59) as usize]
    }

    /// Notes what a block that was just made was asked for.
    pub(super) fn note(&self, ptr: u64, bytes: u64) {
        self.shard(ptr).lock().insert(ptr, bytes);
    }

    /// What a live block was asked for. Of a free one the answer means nothing.
    pub(super) fn of(&self, ptr: u64) -> Option<u64> {
        self.shard(ptr).lock().get(&ptr).copied()
    }

    /// Forgets the blocks that `live` does not know.
    pub(super) fn retain(&self, live: impl Fn(u64) -> bool) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.retain(|ptr, _| live(*ptr));
            shard.shrink_to_fit();
        }
    }
}
