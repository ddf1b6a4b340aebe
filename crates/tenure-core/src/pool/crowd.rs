//! When threads that are in each other's way get plots, and when not.
//!
//! ```text
//!   a desk finds the lock taken again and again -> crowded -> its next large request that it cannot serve opens a plot
//!   the pool cannot grow -> all plots are given up, and none is opened for some thousand visits
//! ```
//!
//! Crowded desks have larger magazines of small sizes too, and when they are in need the pool grows every other time before
//! everybody's desk is emptied.
//!
//! A program of one thread, and one whose threads hardly meet, never sees a plot: its memory is placed as tightly as the
//! placer can. `prefer = footprint` has none at all.
//!
//! **What plots may cost**: before the pool grows, those are given up of which two thirds or more are free, and all where the
//! thread that is in need is in no crowd; before the pool fails, all of them. So a program that fits by bytes fits, and one
//! that could grow takes at most three times what is live. In practice it is the sum of what each thread needs at its
//! peak, where a shared placer needs the peak of the sum.

use super::Prefer;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Visits after a need before plots are opened again.
const SHY: u32 = 4096;

/// Whether there may be plots.
pub(super) struct Plots {
    never: bool,
    always: AtomicBool,
    shy: AtomicU32,
    /// The desks were emptied since the pool last grew.
    emptied: AtomicBool,
}

impl Plots {
    pub(super) fn new(prefer: Prefer) -> Self {
        Self {
            never: prefer == Prefer::Footprint,
            always: AtomicBool::new(false),
            shy: AtomicU32::new(0),
            emptied: AtomicBool::new(false),
        }
    }

    /// Every desk is taken for crowded. For tests.
    pub(super) fn force(&self) {
        self.always.store(true, Ordering::Relaxed);
    }

    /// See [`Plots::force`].
    pub(super) fn are_forced(&self) -> bool {
        self.always.load(Ordering::Relaxed)
    }

    /// Whether a crowded desk may have a plot now. Asked under the pool's lock.
    pub(super) fn may_open(&self) -> bool {
        let shy = self.shy.load(Ordering::Relaxed);
        if shy > 0 && !self.are_forced() {
            self.shy.store(shy - 1, Ordering::Relaxed);
            return false;
        }
        !self.never
    }

    /// Whether a crowded desk's need empties all desks before the pool grows: every other time, since all threads must fill
    /// theirs again.
    pub(super) fn may_empty(&self) -> bool {
        !self.never && !self.emptied.swap(true, Ordering::Relaxed)
    }

    /// The pool has grown.
    pub(super) fn grew(&self) {
        if self.emptied.load(Ordering::Relaxed) {
            self.emptied.store(false, Ordering::Relaxed);
        }
    }

    /// All were given up since there was no more memory.
    pub(super) fn gave_up(&self) {
        self.shy.store(SHY, Ordering::Relaxed);
    }
}
