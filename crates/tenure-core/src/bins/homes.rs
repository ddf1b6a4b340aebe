//! Where each live block of a binning resource is at home.
//!
//! ```text
//!   address --hash--> shard 0..31  { start -> Home { size, owner, member },  ring: the last 32 starts that were freed }
//! ```
//!
//! The size alone does not say who made a block: bins may have been added since. Nor can the members be asked, since an
//! adaptor gives back whatever its upstream takes. So it is written down.
//!
//! # Invariants
//! * A shard is locked for the length of one map operation. Nothing is called under the lock.
//! * An entry leaves the table *before* its block is freed: from that moment another thread may have the address. A free
//!   that fails puts its entry back.
//!
//! # Cost
//! One lock and one hash for an allocation and for a free each. 40 bytes a live block.

use crossbeam_utils::CachePadded;
use rustc_hash::FxHashMap;

use crate::error::{Misuse, MisuseKind};
use crate::resource::Request;
use crate::resource::book::FreedRing;
use crate::sync::Mutex;

const SHARDS: usize = 32;
const RING: usize = 32;

/// What is known of a live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Home {
    /// What was asked for, in bytes.
    pub(super) bytes: u64,
    /// The resource that was asked.
    pub(super) owner: u64,
    /// Who made it.
    pub(super) member: u32,
}

#[derive(Default)]
struct Shard {
    live: FxHashMap<u64, Home>,
    freed: FreedRing<RING>,
}

/// Start of a block -> its home.
pub(super) struct Homes {
    shards: [CachePadded<Mutex<Shard>>; SHARDS],
}

impl Homes {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| CachePadded::default()) }
    }

    fn shard(&self, ptr: u64) -> &Mutex<Shard> {
        // Fibonacci hashing: block addresses share their low bits and, within a chunk, their high ones.
        &self.shards[(ptr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59) as usize]
    }

    /// Enters a block that was just made, or one whose free did not happen. Gives the entry that stood there: then its
    /// block was given back behind this resource's back, and the maker of the memory, who hands it out again, is right.
    pub(super) fn enter(&self, ptr: u64, home: Home) -> Option<Home> {
        self.shard(ptr).lock().live.insert(ptr, home)
    }

    /// The home of the live block that starts at `ptr`.
    pub(super) fn of(&self, ptr: u64) -> Option<Home> {
        self.shard(ptr).lock().live.get(&ptr).copied()
    }

    /// Compares a free with the entry and takes it out.
    ///
    /// # Errors
    /// What is wrong about it, in this order: no block starts there, another owner, another size, an alignment that the
    /// address does not have. Nothing changed.
    pub(super) fn take(&self, ptr: u64, request: &Request) -> Result<Home, Misuse> {
        let bytes = request.bytes as u64;
        let wrong = |kind, owner, owner_bytes| Misuse { kind, ptr, bytes, asked: request.owner, owner, owner_bytes };
        let mut shard = self.shard(ptr).lock();
        let Some(home) = shard.live.get(&ptr).copied() else {
            let freed = shard.freed.has(ptr);
            return Err(wrong(if freed { MisuseKind::DoubleFree } else { MisuseKind::UnknownPointer }, 0, 0));
        };
        let kind = if home.owner != request.owner {
            MisuseKind::WrongResource
        } else if home.bytes != bytes {
            MisuseKind::WrongSize
        } else if !ptr.is_multiple_of(request.align.max(1) as u64) {
            MisuseKind::WrongAlignment
        } else {
            shard.live.remove(&ptr);
            shard.freed.note(ptr);
            return Ok(home);
        };
        Err(wrong(kind, home.owner, home.bytes))
    }
}
