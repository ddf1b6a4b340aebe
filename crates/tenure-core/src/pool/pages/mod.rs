//! *pages*: where the bytes of a pool come from, and how they go back.
//!
//! ```text
//!   offsets   0                                     small_base            span
//!   virtual   |== handle 32 ==|= 4 =|= 2 =| ......  |= 2 =| ............. |     one reservation, mapped piece by piece
//!   chunks    |== chunk ==|  gap  |=== chunk ===|  gap .................. |     taken through the upstream
//! ```
//!
//! Two kinds, one face: [`Pages`]. *Virtual* ranges are the pool's own where its upstream is the plain device resource
//! and the device can map pages; *chunks* come through any other upstream, synchronously and on no user stream, so that
//! whatever wraps it sees each of them.
//!
//! **Remapping** (`alias.rs`): idle handles of a virtual range are mapped a second time where a larger range is needed, and
//! their old addresses go when nothing queued uses them any more. A pool that could grow does so within a budget (`budget.rs`).
//!
//! **Invariants**: one growth or one return at a time (the pool's turn, see `turn.rs`), so that no lock is held over a
//! driver call; a failure at any step leaves pages, figures and device as they were.
//!
//! **Cost**: a growth is one create and one map per handle and one set-access; see `pool.md`, section 1, for what the
//! driver takes for them.

mod alias;
mod budget;
mod chunks;
mod virtual_range;

pub(super) use alias::Choice;
pub(super) use chunks::Chunks;
pub(super) use virtual_range::VirtualRange;

use super::place::Place;
use crate::error::Result;
use crate::resource::{Properties, Resource};
use crate::tools::heaps;

/// The unit of growth, in bytes.
pub(super) const PAGE: u64 = 2 << 20;

/// Where and how much to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Where the new bytes begin. Chunks find their place when their address is known.
    pub(super) offset: u64,
    /// Bytes to take.
    pub(super) bytes: u64,
    /// Bytes of them that the pool may use: fewer only where the limit is not a multiple of a page.
    pub(super) usable: u64,
    /// Bytes of the free block before `offset` that the growth extends.
    pub(super) extends: u64,
    /// The tag that the new bytes get: that of the free block that they extend.
    pub(super) tag: u32,
}

impl Plan {
    /// Bytes of the new ones that a request of `need` bytes at a multiple of `align` uses.
    pub(super) fn missing(&self, need: u64, align: u64) -> u64 {
        ((self.offset - self.extends).next_multiple_of(align) + need).saturating_sub(self.offset)
    }
}

/// A source of bytes.
pub(super) enum Pages {
    /// The pool's own ranges.
    Virtual(VirtualRange),
    /// Pieces of an upstream.
    Chunks(Chunks),
}

impl Pages {
    /// Bytes taken from the device or the upstream.
    pub(super) fn reserved(&self) -> u64 {
        match self {
            Self::Virtual(v) => v.reserved(),
            Self::Chunks(c) => c.reserved(),
        }
    }

    /// The offset of an address that lies in the reservation or in a chunk.
    #[inline]
    pub(super) fn offset_of(&self, ptr: u64) -> Option<u64> {
        match self {
            Self::Virtual(v) => v.offset_of(ptr),
            Self::Chunks(c) => c.offset_of(ptr),
        }
    }

    /// The address of an offset that is mapped.
    #[inline]
    pub(super) fn ptr_of(&self, offset: u64) -> u64 {
        match self {
            Self::Virtual(v) => v.base() + offset,
            Self::Chunks(c) => c.ptr_of(offset),
        }
    }

    /// Takes what the plan says; gives the plan back with the offset where it is now.
    ///
    /// # Errors
    /// What the driver or the upstream says; nothing changed.
    pub(super) fn grow(&self, plan: Plan, limit: Option<u64>, upstream: &Resource) -> Result<Plan> {
        let plan = match self {
            Self::Virtual(v) => v.grow(plan, limit).map(|()| plan),
            Self::Chunks(c) => c.grow(plan, upstream),
        }?;
        if heaps::wanted() && is_heap(upstream) {
            self.show(plan.offset..plan.offset + plan.bytes);
        }
        Ok(plan)
    }

    /// The pieces that could go back, as (offset, usable bytes), by offset.
    pub(super) fn pieces(&self) -> Vec<(u64, u64)> {
        match self {
            Self::Virtual(v) => v.pieces(),
            Self::Chunks(c) => c.pieces(),
        }
    }

    /// Gives back pieces (offsets and bytes as from [`Pages::pieces`]) that the placer has let go of. Whatever could not
    /// go back is in the answer, with the first error.
    pub(super) fn give_back(
        &self,
        pieces: &[(u64, u64)],
        upstream: &Resource,
    ) -> (Vec<(u64, u64)>, Option<crate::error::Error>) {
        if heaps::wanted() {
            pieces.iter().for_each(|(offset, bytes)| heaps::leaving(self.ptr_of(*offset), *bytes));
        }
        let (stay, error) = match self {
            Self::Virtual(v) => v.give_back(pieces),
            Self::Chunks(c) => c.give_back(pieces, upstream),
        };
        if heaps::wanted() && is_heap(upstream) {
            stay.iter().for_each(|(offset, bytes)| heaps::taken(self.device(), self.ptr_of(*offset), *bytes));
        }
        (stay, error)
    }

    /// The device of the pool.
    fn device(&self) -> i32 {
        match self {
            Self::Virtual(v) => v.device(),
            Self::Chunks(c) => c.device(),
        }
    }

    /// Tells a memory checker of the pieces at these offsets.
    #[cold]
    fn show(&self, offsets: std::ops::Range<u64>) {
        for (offset, bytes) in self.pieces() {
            if offsets.contains(&offset) {
                heaps::taken(self.device(), self.ptr_of(offset), bytes);
            }
        }
    }
}

/// A heap is an allocation of the device's memory: compute-sanitizer refuses managed and pinned ones.
fn is_heap(upstream: &Resource) -> bool {
    let Properties { device_accessible, managed, host_accessible, .. } = upstream.body().properties();
    device_accessible && !managed && !host_accessible
}

/// Which of the pieces are wholly free for everyone, the highest first, up to `bytes` bytes.
pub(super) fn idle(pieces: &[(u64, u64)], place: &Place, bytes: u64) -> Vec<(u64, u64)> {
    // Blocks of two zones touch without being one.
    let free = place.stretches(|tag| tag == super::place::PROVEN);
    let mut left = bytes;
    let mut found = Vec::new();
    for (offset, length) in pieces.iter().rev() {
        let at = free.partition_point(|(start, _)| start <= offset);
        let inside = at > 0 && free[at - 1].0 + free[at - 1].1 >= offset + length;
        if inside && *length <= left {
            left -= length;
            found.push((*offset, *length));
        }
    }
    found
}
