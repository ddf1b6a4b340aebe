//! The count that keeps a resource alive.
//!
//! ```text
//!   word     state | anchors | lights that were moved here when a stripe was swept, or later while it was shut
//!   own      lights taken less lights dropped by the one thread that has this stripe | how many of them were moved | shut
//!   shared   the same of all threads without a stripe of their own, x 2; bit 0: shut
//!
//!   OPEN     lights live in the stripes, a thread touches its own cache line only
//!   CLOSING  the last anchor is going: each stripe is shut and its sum moved into the word
//!   CLOSED   every light goes through the word; whoever takes the word to exactly CLOSED destroys
//!   OPENING  somebody who holds an anchor lets the stripes take lights again
//! ```
//!
//! An *anchor* is a named, long-lived reference (a handle, an entry of the table, the upstream of another resource); a
//! *light* is made in bulk (an allocation, a copy of a C++ handle). While an anchor exists nothing can be destroyed, so
//! lights need no common word.
//!
//! **A stripe of one's own** takes two stores and no interlocked operation: its thread alone writes what it counts, and looks
//! afterwards whether it is shut.
//!
//! ```text
//!   its thread   count = count + 1 | shut?   no: done      yes: in its turn, what no sweep has moved goes to the word
//!   who closes   shut = true  | (a fence for everybody) | in the same turn: count - moved goes to the word, moved = count
//! ```
//!
//! Of the two stores at the first `|` one comes first for both sides (`barrier.rs`), so that not both can miss the other; where
//! both see the other, whoever comes second in the turn finds that nothing is left to move.
//!
//! # Invariants
//! * A reference that replaces another is taken before the other is dropped.
//! * After what gives a reference up (the read-modify-write, or the store in its own stripe), a thread touches nothing of the
//!   counted object unless it was told (`true`) that it is the destroyer.
//! * The count itself is never freed: a slot of the registry is reused by [`Count::revive`], which keeps what a
//!   straggler may still add and take back.
//! * The lights that have been moved to the word are at any time all lights, but for those whose taking or dropping has not
//!   returned yet: who takes one holds another meanwhile, and one that is being dropped is counted still.
//!
//! # Cost
//! A light: two stores, or, of a thread without a stripe, one read-modify-write of about 5 ns. An anchor: the same on a shared
//! word. Closing: a look at each stripe and one fence for all threads, some microseconds.
//!
//! The protocol is checked by loom (`tests/loom_count.rs`), together with the obvious schemes that are wrong.

use crate::barrier::{heavy, light, one_sided};
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicBool, AtomicI64};
use crate::sync::{spin_loop, yield_now};

const ANCHOR: i64 = 1 << 40;
const OPEN: i64 = 0;
const CLOSING: i64 = 1 << 60;
const CLOSED: i64 = 2 << 60;
const OPENING: i64 = 3 << 60;
const STATE: i64 = 3 << 60;
const SHUT: i64 = 1;

/// Lights in a word. Fewer than none where some were dropped there that a stripe has taken.
fn lights_in(word: i64) -> i64 {
    word << 24 >> 24
}

fn anchors_in(word: i64) -> i64 {
    ((word & !STATE) - lights_in(word)) >> 40
}

/// A stripe of one thread, on a cache line of its own (two lines, since the hardware fetches lines in pairs).
#[repr(align(128))]
struct Own {
    /// Written by its thread only.
    count: AtomicI64,
    /// As much of it as was moved to the word. Changed in turn.
    moved: AtomicI64,
    shut: AtomicBool,
    one_sided: bool,
}

/// A stripe of many, likewise.
#[repr(align(128))]
struct Shared(AtomicI64);

/// A count with `N` stripes that belong to one thread each and `M` that are shared. It begins closed, with no reference.
pub struct Count<const N: usize, const M: usize> {
    word: AtomicI64,
    /// Somebody moves what is in the stripes.
    busy: AtomicBool,
    own: [Own; N],
    shared: [Shared; M],
}

/// More references were given back than were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverRelease;

impl<const N: usize, const M: usize> Count<N, M> {
    /// A closed count without references.
    pub fn new() -> Self {
        let one_sided = one_sided();
        let own =
            |_| Own { count: AtomicI64::new(0), moved: AtomicI64::new(0), shut: AtomicBool::new(true), one_sided };
        Self {
            word: AtomicI64::new(CLOSED),
            busy: AtomicBool::new(false),
            own: std::array::from_fn(own),
            shared: std::array::from_fn(|_| Shared(AtomicI64::new(SHUT))),
        }
    }

    /// Makes a closed count without references open with one anchor. The caller is the only one who may do so now.
    pub fn revive(&self) {
        self.word.fetch_add(ANCHOR + (OPENING - CLOSED), AcqRel);
        self.open_stripes();
    }

    fn open_stripes(&self) {
        for own in &self.own {
            own.shut.store(false, Release);
        }
        for shared in &self.shared {
            shared.0.swap(0, AcqRel);
        }
        self.word.fetch_sub(OPENING - OPEN, AcqRel);
    }

    /// Takes a light. The caller holds some reference already. A `stripe` below `N` is the calling thread's and nobody else's;
    /// any other is shared.
    #[inline(always)]
    pub fn take_light(&self, stripe: usize) {
        self.take_lights(stripe, 1);
    }

    /// Takes `many` lights in one step. As [`take_light`](Self::take_light).
    #[inline(always)]
    pub fn take_lights(&self, stripe: usize, many: usize) {
        let many = many as i64;
        match self.own.get(stripe) {
            // What is taken is never the last: the caller holds another.
            Some(own) => _ = self.add(own, many),
            None => self.take_shared(stripe, many),
        }
    }

    #[inline(never)]
    fn take_shared(&self, stripe: usize, many: i64) {
        if self.shared[stripe % M].0.fetch_add(2 * many, Relaxed) & SHUT != 0 {
            self.word.fetch_add(many, Relaxed);
        }
    }

    /// Drops a light, on whichever stripe it was taken. `true`: the caller must destroy the counted object, and nobody else
    /// will.
    #[must_use]
    #[inline(always)]
    pub fn drop_light(&self, stripe: usize) -> bool {
        self.drop_lights(stripe, 1)
    }

    /// Drops `many` lights in one step. `true` as for [`drop_light`](Self::drop_light).
    #[must_use]
    #[inline(always)]
    pub fn drop_lights(&self, stripe: usize, many: usize) -> bool {
        let many = many as i64;
        match self.own.get(stripe) {
            Some(own) => self.add(own, -many),
            None => self.drop_shared(stripe, many),
        }
    }

    #[inline(never)]
    fn drop_shared(&self, stripe: usize, many: i64) -> bool {
        let shut = self.shared[stripe % M].0.fetch_sub(2 * many, Release) & SHUT != 0;
        // Of none nobody is the last.
        let last = shut && many != 0 && self.word.fetch_sub(many, Release) == CLOSED + many;
        self.seen_by_destroyer(last)
    }

    /// Counts in a stripe of the caller's own; `true` where that was the last light.
    #[inline(always)]
    fn add(&self, own: &Own, lights: i64) -> bool {
        // Released also when it grows: who sweeps sees one value, and with it all that the thread did before.
        own.count.store(own.count.load(Relaxed) + lights, Release);
        light(own.one_sided);
        own.shut.load(Acquire) && self.move_late(own)
    }

    /// What the caller has just counted in a stripe that is shut goes to the word, unless whoever shut it has seen it.
    #[cold]
    #[inline(never)]
    fn move_late(&self, own: &Own) -> bool {
        self.in_turn(|| {
            let change = Self::move_out(own);
            let last = change != 0 && self.word.fetch_add(change, AcqRel) + change == CLOSED;
            self.seen_by_destroyer(last)
        })
    }

    /// Takes out of a stripe what was not moved before. In turn.
    fn move_out(own: &Own) -> i64 {
        let count = own.count.load(Acquire);
        count - own.moved.swap(count, Relaxed)
    }

    /// Runs `f` while nobody else does so.
    fn in_turn<R>(&self, f: impl FnOnce() -> R) -> R {
        let mut tries = 0u32;
        while self.busy.compare_exchange(false, true, Acquire, Relaxed).is_err() {
            tries += 1;
            if !tries.is_multiple_of(64) {
                spin_loop();
            } else if tenure_driver::process::forked() {
                // Whoever has the turn is not in this child, where nothing is counted any more.
                break;
            } else {
                yield_now();
            }
        }
        let result = f();
        self.busy.store(false, Release);
        result
    }

    /// What other threads did before they gave their references up is seen by whoever destroys. A load and not a fence: every
    /// giving up is a read-modify-write of this word or was carried into it, and ThreadSanitizer follows loads only.
    fn seen_by_destroyer(&self, last: bool) -> bool {
        if last {
            self.word.load(Acquire);
        }
        last
    }

    /// Takes an anchor. The caller holds some reference already.
    pub fn take_anchor(&self) {
        self.word.fetch_add(ANCHOR, Relaxed);
    }

    /// Takes an anchor without holding any reference, unless the object is gone.
    #[must_use]
    pub fn upgrade(&self) -> bool {
        let mut word = self.word.load(Relaxed);
        while word != CLOSED {
            match self.word.compare_exchange_weak(word, word + ANCHOR, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Drops an anchor. `Ok(true)`: the caller must destroy the counted object, and nobody else will.
    ///
    /// # Errors
    /// [`OverRelease`] when there is no anchor; nothing changed.
    pub fn drop_anchor(&self) -> Result<bool, OverRelease> {
        let mut word = self.word.load(Relaxed);
        loop {
            let anchors = anchors_in(word);
            if anchors <= 0 {
                return Err(OverRelease);
            }
            let closes = word & STATE == OPEN && anchors == 1;
            let next = if closes { word + (CLOSING - OPEN) } else { word - ANCHOR };
            match self.word.compare_exchange_weak(word, next, AcqRel, Relaxed) {
                Ok(_) if closes => return Ok(self.close()),
                Ok(_) => {
                    return Ok(self.seen_by_destroyer(next == CLOSED));
                }
                Err(now) => word = now,
            }
        }
    }

    /// The caller's anchor is still counted: nothing can be destroyed before the last line.
    fn close(&self) -> bool {
        let mut lights = 0;
        for shared in &self.shared {
            // Of a value with bit 0 clear the half is exact, also when it is negative: lights may be dropped on another
            // stripe than they were taken on.
            lights += shared.0.swap(SHUT, AcqRel) / 2;
        }
        self.in_turn(|| {
            for own in &self.own {
                own.shut.store(true, Release);
            }
            if let Some(own) = self.own.first() {
                heavy(own.one_sided);
            }
            lights += self.own.iter().map(Self::move_out).sum::<i64>();
            let change = lights - ANCHOR + (CLOSED - CLOSING);
            let last = self.word.fetch_add(change, AcqRel) + change == CLOSED;
            self.seen_by_destroyer(last)
        })
    }

    /// Lets the stripes take lights again after the count was closed. The caller holds an anchor.
    pub fn reopen(&self) {
        let mut word = self.word.load(Relaxed);
        while word & STATE == CLOSED {
            match self.word.compare_exchange_weak(word, word + (OPENING - CLOSED), AcqRel, Relaxed) {
                Ok(_) => return self.open_stripes(),
                Err(now) => word = now,
            }
        }
    }

    /// References now: anchors and lights. Exact only while nobody else changes them; for tests and reports.
    pub fn snapshot(&self) -> (i64, i64) {
        let word = self.word.load(Acquire);
        let own: i64 = self.own.iter().map(|own| own.count.load(Acquire) - own.moved.load(Acquire)).sum();
        // What a shut stripe holds is counted in the word.
        let shared: i64 = self.shared.iter().map(|s| s.0.load(Acquire)).filter(|s| s & SHUT == 0).map(|s| s >> 1).sum();
        (anchors_in(word), lights_in(word) + own + shared)
    }
}

impl<const N: usize, const M: usize> Default for Count<N, M> {
    fn default() -> Self {
        Self::new()
    }
}
