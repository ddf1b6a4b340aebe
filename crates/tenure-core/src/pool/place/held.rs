//! A piece in somebody's hands: see [`super::ledger`].
//!
//! Unsafe in this file: the pointer to the piece, which lives as long as its placer.

use super::ledger::{self, Piece};

/// A piece that was freed and is kept by who freed it: handed out as far as the placer is concerned.
#[derive(Clone, Copy)]
pub(in crate::pool) struct Held {
    pub(super) piece: *const Piece,
    /// Its first unit.
    pub(in crate::pool) unit: u32,
    pub(super) block: u32,
    pub(super) slot: u32,
}

// SAFETY: the piece is atomics, in an array that lives as long as the placer does.
unsafe impl Send for Held {}

impl Held {
    /// What [`find`](ledger::Ledger::find) found at `unit`: the caller's once it is claimed.
    #[inline]
    pub(in crate::pool) fn found(found: &ledger::Found<'_>, unit: u32) -> Self {
        Self { piece: found.piece, unit, block: found.block, slot: found.slot }
    }

    /// Claims it for `owner` as [`Piece::claim`] does: nobody's before, and the caller's where that is true.
    ///
    /// # Safety
    /// The placer that it came from is alive.
    #[inline(always)]
    pub(in crate::pool) unsafe fn claim(&self, live: u64, owner: u64) -> bool {
        // SAFETY: pieces live as long as their placer.
        unsafe { (*self.piece).claim(live, owner) }
    }

    /// Hands it out again for the same stream.
    ///
    /// # Safety
    /// The placer that it came from is alive.
    #[inline]
    pub(in crate::pool) unsafe fn hand_out(self, word: u64, owner: u64) {
        // SAFETY: pieces live as long as their placer.
        unsafe { (*self.piece).set(word, owner) };
    }
}
