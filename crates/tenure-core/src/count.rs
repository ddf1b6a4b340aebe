//! The count that keeps a resource alive.
//!
//! ```text
//!   word     state | anchors | lights that were taken or swept while a stripe was shut
//!   stripe   lights taken and dropped by the threads that use this stripe, x 2; bit 0: shut
//!
//!   OPEN     lights live in the stripes, a thread touches its own cache line only
//!   CLOSING  the last anchor is going: each stripe is shut and its sum moved into the word
//!   CLOSED   every light goes through the word; whoever takes the word to exactly CLOSED destroys
//!   OPENING  somebody who holds an anchor lets the stripes take lights again
//! ```
//!
//! An *anchor* is a named, long-lived reference (a handle, an entry of the table, the upstream of another resource); a
//! *light* is made in bulk (an allocation, a copy of a C++ handle). While an anchor exists nothing can be destroyed, so
//! lights need no common word: one read-modify-write on a line that only this thread's stripe uses.
//!
//! # Invariants
//! * A reference that replaces another is taken before the other is dropped.
//! * After the read-modify-write that gives a reference up, a thread touches nothing of the counted object unless it was
//!   told (`true`) that it is the destroyer.
//! * The count itself is never freed: a slot of the registry is reused by [`Count::revive`], which keeps what a
//!   straggler may still add and take back.
//!
//! # Cost
//! A light: one read-modify-write, about 5 ns, flat over threads. An anchor: the same on a shared word. Closing: one
//! swap per stripe.
//!
//! The protocol is checked by loom (`tests/loom_count.rs`), together with the obvious scheme that is wrong.

use crate::sync::atomic::AtomicI64;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

const ANCHOR: i64 = 1 << 40;
const OPEN: i64 = 0;
const CLOSING: i64 = 1 << 60;
const CLOSED: i64 = 2 << 60;
const OPENING: i64 = 3 << 60;
const STATE: i64 = 3 << 60;
const SHUT: i64 = 1;

/// One stripe on a cache line of its own (two lines, since the hardware fetches lines in pairs).
#[repr(align(128))]
struct Stripe(AtomicI64);

/// A count with `N` stripes. It begins closed, with no reference.
pub struct Count<const N: usize> {
    word: AtomicI64,
    stripes: [Stripe; N],
}

/// More references were given back than were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverRelease;

impl<const N: usize> Count<N> {
    /// A closed count without references.
    pub fn new() -> Self {
        Self { word: AtomicI64::new(CLOSED), stripes: std::array::from_fn(|_| Stripe(AtomicI64::new(SHUT))) }
    }

    /// Makes a closed count without references open with one anchor. The caller is the only one who may do so now.
    pub fn revive(&self) {
        self.word.fetch_add(ANCHOR + (OPENING - CLOSED), AcqRel);
        self.open_stripes();
    }

    fn open_stripes(&self) {
        for stripe in &self.stripes {
            stripe.0.swap(0, AcqRel);
        }
        self.word.fetch_sub(OPENING - OPEN, AcqRel);
    }

    /// Takes a light. The caller holds some reference already.
    #[inline]
    pub fn take_light(&self, stripe: usize) {
        if self.stripes[stripe % N].0.fetch_add(2, Relaxed) & SHUT != 0 {
            self.word.fetch_add(1, Relaxed);
        }
    }

    /// Takes `many` lights in one step. The caller holds some reference already.
    pub fn take_lights(&self, stripe: usize, many: usize) {
        let many = many as i64;
        if many != 0 && self.stripes[stripe % N].0.fetch_add(2 * many, Relaxed) & SHUT != 0 {
            self.word.fetch_add(many, Relaxed);
        }
    }

    /// Drops a light. `true`: the caller must destroy the counted object, and nobody else will.
    #[must_use]
    #[inline]
    pub fn drop_light(&self, stripe: usize) -> bool {
        self.drop_lights(stripe, 1)
    }

    /// Drops `many` lights in one step. `true` as for [`drop_light`](Self::drop_light).
    #[must_use]
    #[inline]
    pub fn drop_lights(&self, stripe: usize, many: usize) -> bool {
        let many = many as i64;
        if many == 0 {
            return false;
        }
        let shut = self.stripes[stripe % N].0.fetch_sub(2 * many, Release) & SHUT != 0;
        let last = shut && self.word.fetch_sub(many, Release) == CLOSED + many;
        self.seen_by_destroyer(last)
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
            let anchors = (word & !STATE) >> 40;
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
        for stripe in &self.stripes {
            // Of a value with bit 0 clear the half is exact, also when it is negative: lights may be dropped on another
            // stripe than they were taken on.
            lights += stripe.0.swap(SHUT, AcqRel) / 2;
        }
        let change = lights - ANCHOR + (CLOSED - CLOSING);
        let last = self.word.fetch_add(change, AcqRel) + change == CLOSED;
        self.seen_by_destroyer(last)
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
        let striped: i64 = self.stripes.iter().map(|s| s.0.load(Acquire) >> 1).sum();
        let low = word & (ANCHOR - 1);
        let shut = word & STATE == CLOSED;
        ((word & !STATE) >> 40, if shut { low } else { low + striped })
    }
}

impl<const N: usize> Default for Count<N> {
    fn default() -> Self {
        Self::new()
    }
}
