//! What is known of a piece, and who may change it: see [`super::ledger`].
//!
//! The protocol is checked by loom (`tests/loom_cache.rs`).

use crate::sync::atomic::{AtomicU64, Ordering};

/// Not handed out. Of a slot: the run's tag may have it.
pub(in crate::pool) const FREE: u64 = 0;
/// Handed out.
pub(in crate::pool) const LIVE: u64 = 1;
/// Freed, and kept by a thread's cache.
pub(in crate::pool) const HELD: u64 = 2;
/// A slot that was freed in the order of another tag; the stamp of the word is that tag.
pub(in crate::pool) const PENDING: u64 = 3;
/// A block that is cut into slots.
pub(in crate::pool) const RUN: u64 = 3;

/// The class of a block that is handed out whole for a large size.
pub(in crate::pool) const WHOLE: usize = 63;

/// The word of a piece.
#[inline]
pub(in crate::pool) fn word(state: u64, class: usize, unit: u32, stamp: u32) -> u64 {
    state | (class as u64) << 2 | u64::from(unit & 0xff_ffff) << 8 | u64::from(stamp) << 32
}

#[inline]
pub(in crate::pool) fn state_of(word: u64) -> u64 {
    word & 3
}

#[inline]
pub(in crate::pool) fn class_in(word: u64) -> usize {
    (word >> 2 & 63) as usize
}

/// Whose record the piece was booked for (or, of a pending slot, whose tag it waits for).
#[inline]
pub(in crate::pool) fn stamp_of(word: u64) -> u32 {
    (word >> 32) as u32
}

/// The word of the same piece in another state.
#[inline]
pub(in crate::pool) fn with_state(word: u64, state: u64) -> u64 {
    word & !3 | state
}

/// What is known of one piece.
#[derive(Default)]
#[repr(C)]
pub(in crate::pool) struct Piece {
    word: AtomicU64,
    owner: AtomicU64,
}

impl Piece {
    #[inline]
    pub(in crate::pool) fn word(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }

    #[inline]
    pub(in crate::pool) fn owner(&self) -> u64 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Makes the piece live, or free, or something else that is the caller's to decide.
    #[inline]
    pub(in crate::pool) fn set(&self, word: u64, owner: u64) {
        self.owner.store(owner, Ordering::Relaxed);
        self.word.store(word, Ordering::Release);
    }

    /// Takes a live piece of `owner` away from its holder: true for one of all who try.
    #[inline(always)]
    pub(in crate::pool) fn claim(&self, live: u64, owner: u64) -> bool {
        let held = with_state(live, HELD);
        if self.owner() != owner
            || self.word.compare_exchange(live, held, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return false;
        }
        if self.owner() == owner {
            return true;
        }
        // A free that came twice, between whose two looks the piece was handed to another resource: it is theirs.
        self.word.store(live, Ordering::Release);
        false
    }
}
