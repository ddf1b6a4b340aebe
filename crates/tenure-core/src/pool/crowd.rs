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
//! **In need.** What neither a desk nor the placer has is found by asking the other streams what they have let go of, or by
//! growing. The first costs two driver calls for each stream, and the driver lets one thread at a time: sixteen threads that ask
//! sixteen streams each time pay more for it than for growing. So threads that come in turns ([`Plots::in_turns`]), and crowded
//! ones, ask once in a millisecond, and else the pool grows, by a share of what it has: it soon has what they need.
//!
//! A program of one thread, and one whose threads hardly meet, never sees a plot: its memory is placed as tightly as the
//! placer can. `prefer = footprint` has none at all.
//!
//! **What plots may cost**: before the pool grows, those are given up of which two thirds or more are free, and all where the
//! thread that is in need is in no crowd; before the pool fails, all of them. So a program that fits by bytes fits, and one
//! that could grow takes at most three times what is live. In practice it is the sum of what each thread needs at its
//! peak, where a shared placer needs the peak of the sum.

use std::time::{Duration, Instant};

use super::Prefer;
use super::order::identity::this_thread;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Visits after a need before plots are opened again.
const SHY: u32 = 4096;

/// So long after streams were asked what they have let go of, threads that come in turns are served by growth instead.
const ASKED: Duration = Duration::from_millis(1);

/// Needs of threads in turns, less those of one thread again, from which on threads come in turns.
const TURNS: u32 = 8;

/// Whether there may be plots.
pub(super) struct Plots {
    never: bool,
    always: AtomicBool,
    shy: AtomicU32,
    /// The desks were emptied since the pool last grew.
    emptied: AtomicBool,
    /// The thread that was in need last.
    last: AtomicU64,
    /// How often it was another one than before: see [`TURNS`].
    turns: AtomicU32,
    began: Instant,
    /// When streams were asked last, in microseconds since it began.
    asked: AtomicU64,
}

impl Plots {
    pub(super) fn new(prefer: Prefer) -> Self {
        Self {
            never: prefer == Prefer::Footprint,
            always: AtomicBool::new(false),
            shy: AtomicU32::new(0),
            emptied: AtomicBool::new(false),
            last: AtomicU64::new(0),
            turns: AtomicU32::new(0),
            began: Instant::now(),
            asked: AtomicU64::new(0),
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

    /// A thread is in need of what neither its desk nor the placer has: true where threads come so in turns, one after another.
    pub(super) fn in_turns(&self) -> bool {
        let me = this_thread();
        let turns = self.turns.load(Ordering::Relaxed);
        let turns = if self.last.swap(me, Ordering::Relaxed) == me {
            turns.saturating_sub(1)
        } else {
            (turns + 1).min(2 * TURNS)
        };
        self.turns.store(turns, Ordering::Relaxed);
        turns >= TURNS && !self.never
    }

    /// Whether threads that are in each other's way may ask other streams what they have let go of: once in a while. It is two driver
    /// calls for each stream, and the driver lets one thread at a time.
    pub(super) fn may_ask(&self) -> bool {
        let now = self.began.elapsed().as_micros() as u64;
        let due = now.saturating_sub(self.asked.load(Ordering::Relaxed)) >= ASKED.as_micros() as u64;
        if due {
            self.asked.store(now, Ordering::Relaxed);
        }
        due
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

#[cfg(test)]
mod tests {
    use super::{ASKED, Plots, Prefer, TURNS};
    use std::time::Instant;

    /// Needs of so many threads, one after another, `rounds` times each; what the last was told.
    fn needs(plots: &Plots, threads: u32, rounds: u32) -> bool {
        let mut told = false;
        for _ in 0..rounds {
            for _ in 0..threads {
                told = std::thread::scope(|scope| scope.spawn(|| plots.in_turns()).join().expect("no panic"));
            }
        }
        told
    }

    #[test]
    fn threads_in_turns_are_told_from_one_that_comes_again() {
        let plots = Plots::new(Prefer::Concurrency);
        assert!(!needs(&plots, 2, TURNS / 2 - 1));
        assert!(needs(&plots, 2, 1));
        // One thread alone is in nobody's way, whatever was before.
        assert!((0..2 * TURNS).map(|_| plots.in_turns()).any(|told| !told));
        assert!(!plots.in_turns());
        assert!(!needs(&Plots::new(Prefer::Footprint), 2, TURNS), "who wants a small pool waits");
    }

    #[test]
    fn streams_are_asked_once_in_a_while() {
        let plots = Plots::new(Prefer::Concurrency);
        let began = Instant::now();
        let asked = (0..10_000).filter(|_| plots.may_ask()).count() as u128;
        assert!(asked <= began.elapsed().as_micros() / ASKED.as_micros() + 1);
        std::thread::sleep(2 * ASKED);
        assert!(plots.may_ask());
    }
}
