//! Counting without a cache line that all threads fight for.
//!
//! ```text
//!   top       bytes, count, their peaks          written once per MiB that a thread moves
//!   stripe k  bytes, count >= 0 | totals | credit     a lock and a cache line each; a thread uses its own k
//!
//!   what is live = top + the sum of the stripes
//! ```
//!
//! # Invariants
//! * No stripe is negative: a free that finds too little there draws from the top first. So the top, and the top with a
//!   single stripe, never exceed what is live: a peak taken from them is never too high.
//! * No stripe holds more than [`SLACK`] bytes and [`COUNT_SLACK`] blocks after a call. So the peak is too low by at most
//!   that for each *other* thread, and exact while one thread does all.
//! * Whoever holds all stripes sees, and may set, exact figures.
//! * A block may be [booked](Held::book) before its memory is there, so that one lock serves for both. It is in the figures
//!   then, but not in the peak, which sees it at the [free](Held::retire) of this or any later block of the stripe: figures
//!   only fall at a free, so that no peak is missed, and what was booked in vain never was one.
//!
//! # Cost
//! A call takes one lock that is nobody else's: an exchange and a store, about 7 ns. A reader takes all of them.

use crossbeam_utils::CachePadded;

use crate::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use crate::thread::{self, Local};

/// Stripes; threads beyond them share.
const STRIPES: usize = 32;
/// Bytes that a stripe may hold back from the top.
pub(super) const SLACK: i64 = 1 << 20;
/// Blocks that a stripe may hold back from the top.
const COUNT_SLACK: i64 = 1024;

/// One figure over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Now. Negative in a nested measurement that saw more freed than allocated.
    pub value: i64,
    /// The highest value; never below 0. Exact while one thread uses the resource; otherwise too low by at most 1 MiB
    /// (1024 allocations) for each other thread, never too high.
    pub peak: i64,
    /// The sum of everything added.
    pub total: i64,
}

impl Counter {
    fn absorb(&mut self, nested: &Self) {
        self.peak = self.peak.max(self.value.saturating_add(nested.peak));
        self.value = self.value.saturating_add(nested.value);
        self.total = self.total.saturating_add(nested.total);
    }

    fn add(&mut self, n: i64) {
        self.value = self.value.saturating_add(n);
        self.peak = self.peak.max(self.value);
        self.total = self.total.saturating_add(n);
    }
}

/// Bytes and allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes, as they were asked for.
    pub bytes: Counter,
    /// Number of allocations.
    pub allocations: Counter,
}

impl Counters {
    /// Adds what a nested measurement saw, as if it had been counted here all along.
    pub(super) fn absorb(&mut self, nested: &Self) {
        self.bytes.absorb(&nested.bytes);
        self.allocations.absorb(&nested.allocations);
    }

    /// A block of `bytes` has come to life.
    pub(super) fn add(&mut self, bytes: i64) {
        self.bytes.add(bytes);
        self.allocations.add(1);
    }

    /// A block of `bytes` is gone.
    pub(super) fn subtract(&mut self, bytes: i64) {
        self.bytes.value = self.bytes.value.saturating_sub(bytes);
        self.allocations.value = self.allocations.value.saturating_sub(1);
    }
}

/// The shared part of one figure.
#[derive(Default)]
pub(crate) struct Shared {
    value: AtomicI64,
    peak: AtomicI64,
    /// Totals of before the stripes were last emptied. Changed by whoever holds all stripes.
    total: AtomicI64,
}

impl Shared {
    /// The stripe goes from `held` to `held + n`; gives what it then holds.
    #[inline(always)]
    pub(crate) fn add(&self, held: i64, n: i64, slack: i64) -> i64 {
        let held = held + n;
        self.notice(held);
        if held <= slack {
            return held;
        }
        self.value.fetch_add(held, Ordering::Relaxed);
        0
    }

    /// The peak hears of what a stripe with `held` makes of the figure.
    #[inline(always)]
    fn notice(&self, held: i64) {
        let now = self.value.load(Ordering::Relaxed) + held;
        if now > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// The stripe goes from `held` to `held - n`; gives what it then holds.
    #[inline(always)]
    pub(crate) fn subtract(&self, held: i64, n: i64, slack: i64) -> i64 {
        let held = held - n;
        if held >= 0 {
            return held;
        }
        let keep = slack / 2;
        self.value.fetch_sub(keep - held, Ordering::Relaxed);
        keep
    }

    /// The highest value that is known of.
    pub(crate) fn peak(&self) -> i64 {
        self.peak.load(Ordering::Relaxed)
    }

    fn figure(&self, held: i64, total: i64) -> Counter {
        let value = self.value.load(Ordering::Relaxed) + held;
        Counter {
            value,
            peak: self.peak.load(Ordering::Relaxed).max(value),
            total: self.total.load(Ordering::Relaxed) + total,
        }
    }

    fn set(&self, counter: &Counter) {
        self.value.store(counter.value, Ordering::Relaxed);
        self.peak.store(counter.peak, Ordering::Relaxed);
        self.total.store(counter.total, Ordering::Relaxed);
    }
}

/// A lock and what it guards. The guarded fields are atomics only so that no unsafe code is needed: whoever holds the
/// lock loads and stores them as plain words.
#[derive(Default)]
struct Stripe {
    locked: AtomicBool,
    bytes: AtomicI64,
    count: AtomicI64,
    total_bytes: AtomicI64,
    total_count: AtomicI64,
    credit: AtomicI64,
}

impl Stripe {
    #[inline(always)]
    fn hold(&self) {
        if self.locked.swap(true, Ordering::Acquire) {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        let mut tries = 0u32;
        while self.locked.swap(true, Ordering::Acquire) {
            tries += 1;
            // Another thread of the same stripe, or a reader: both are done in nanoseconds unless they lost their CPU.
            if tries.is_multiple_of(64) {
                if tenure_driver::process::forked() {
                    // Whoever held it is not in this child. Nothing is counted here any more.
                    return;
                }
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    #[inline(always)]
    fn let_go(&self) {
        self.locked.store(false, Ordering::Release);
    }
}

#[inline(always)]
fn get(cell: &AtomicI64) -> i64 {
    cell.load(Ordering::Relaxed)
}

#[inline(always)]
fn set(cell: &AtomicI64, value: i64) {
    cell.store(value, Ordering::Relaxed);
}

/// Figures of what is live, and credit, in stripes.
pub(crate) struct Tally {
    bytes: CachePadded<Shared>,
    count: CachePadded<Shared>,
    stripes: [CachePadded<Stripe>; STRIPES],
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            bytes: CachePadded::default(),
            count: CachePadded::default(),
            stripes: std::array::from_fn(|_| CachePadded::default()),
        }
    }
}

/// The stripe of this thread, held.
pub(crate) struct Held<'a> {
    tally: &'a Tally,
    stripe: &'a Stripe,
}

impl Tally {
    /// Holds the stripe of this thread. Nothing else may be held, called or waited for meanwhile.
    #[inline]
    pub(crate) fn hold(&self) -> Held<'_> {
        thread::with(|here| self.hold_of(here))
    }

    /// [`hold`](Self::hold) for a caller who has looked what is this thread's.
    #[inline(always)]
    pub(crate) fn hold_of(&self, here: &Local) -> Held<'_> {
        let stripe = &self.stripes[here.number() % STRIPES];
        stripe.hold();
        Held { tally: self, stripe }
    }

    /// Holds all stripes, in their order.
    pub(super) fn hold_all(&self) -> All<'_> {
        for stripe in &self.stripes {
            stripe.hold();
        }
        All { tally: self }
    }

    /// Begins anew.
    pub(crate) fn clear(&self) {
        self.hold_all().set_counters(&Counters::default());
    }

    /// The figures now.
    pub(crate) fn counters(&self) -> Counters {
        self.hold_all().counters()
    }
}

impl Held<'_> {
    /// A block of `bytes` has come to life.
    #[inline]
    pub(crate) fn add(&self, bytes: i64) {
        let (tally, stripe) = (self.tally, self.stripe);
        set(&stripe.bytes, tally.bytes.add(get(&stripe.bytes), bytes, SLACK));
        set(&stripe.count, tally.count.add(get(&stripe.count), 1, COUNT_SLACK));
        set(&stripe.total_bytes, get(&stripe.total_bytes).saturating_add(bytes));
        set(&stripe.total_count, get(&stripe.total_count) + 1);
    }

    /// A block of `bytes` is about to be made: from now on it counts as live, and at its free towards the peak. False, with
    /// nothing changed, where the stripe would have to tell the top of it.
    #[inline]
    pub(super) fn book(&self, bytes: i64) -> bool {
        let stripe = self.stripe;
        let (held, count) = (get(&stripe.bytes) + bytes, get(&stripe.count) + 1);
        if held > SLACK || count > COUNT_SLACK {
            return false;
        }
        set(&stripe.bytes, held);
        set(&stripe.count, count);
        set(&stripe.total_bytes, get(&stripe.total_bytes).saturating_add(bytes));
        set(&stripe.total_count, get(&stripe.total_count) + 1);
        true
    }

    /// What was booked came to nothing, and never was.
    pub(super) fn unbook(&self, bytes: i64) {
        self.subtract(bytes);
        set(&self.stripe.total_bytes, get(&self.stripe.total_bytes).saturating_sub(bytes));
        set(&self.stripe.total_count, get(&self.stripe.total_count) - 1);
    }

    /// A block of `bytes` is gone, and it or others were booked.
    #[inline]
    pub(super) fn retire(&self, bytes: i64) {
        self.tally.bytes.notice(get(&self.stripe.bytes));
        self.tally.count.notice(get(&self.stripe.count));
        self.subtract(bytes);
    }

    /// A block of `bytes` is gone.
    #[inline]
    pub(crate) fn subtract(&self, bytes: i64) {
        let (tally, stripe) = (self.tally, self.stripe);
        set(&stripe.bytes, tally.bytes.subtract(get(&stripe.bytes), bytes, SLACK));
        set(&stripe.count, tally.count.subtract(get(&stripe.count), 1, COUNT_SLACK));
    }

    /// Bytes of credit that this stripe has.
    #[inline(always)]
    pub(super) fn credit(&self) -> i64 {
        get(&self.stripe.credit)
    }

    /// Sets them.
    #[inline(always)]
    pub(super) fn set_credit(&self, credit: i64) {
        set(&self.stripe.credit, credit);
    }
}

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.stripe.let_go();
    }
}

/// All stripes, held.
pub(super) struct All<'a> {
    tally: &'a Tally,
}

impl All<'_> {
    fn sum(&self, field: impl Fn(&Stripe) -> &AtomicI64) -> i64 {
        self.tally.stripes.iter().map(|stripe| get(field(stripe))).sum()
    }

    /// The figures, exact at this moment (peaks as said at [`Counter::peak`]).
    pub(crate) fn counters(&self) -> Counters {
        Counters {
            bytes: self.tally.bytes.figure(self.sum(|s| &s.bytes), self.sum(|s| &s.total_bytes)),
            allocations: self.tally.count.figure(self.sum(|s| &s.count), self.sum(|s| &s.total_count)),
        }
    }

    /// Puts other figures in their place.
    pub(super) fn set_counters(&self, counters: &Counters) {
        for stripe in &self.tally.stripes {
            for cell in [&stripe.bytes, &stripe.count, &stripe.total_bytes, &stripe.total_count] {
                set(cell, 0);
            }
        }
        self.tally.bytes.set(&counters.bytes);
        self.tally.count.set(&counters.allocations);
    }

    /// The credit of all stripes, in bytes.
    pub(super) fn credit(&self) -> i64 {
        self.sum(|s| &s.credit)
    }

    /// Takes all credit back, and says how many bytes that were.
    pub(super) fn take_credit(&self) -> i64 {
        let credit = self.credit();
        for stripe in &self.tally.stripes {
            set(&stripe.credit, 0);
        }
        credit
    }
}

impl Drop for All<'_> {
    fn drop(&mut self) {
        for stripe in &self.tally.stripes {
            stripe.let_go();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_counts_exactly() {
        let tally = Tally::default();
        let (mut live, mut peak, mut total) = (0i64, 0, 0);
        let mut blocks = Vec::new();
        let mut state = 12345u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let random = state >> 33;
            if random % 5 < 3 || blocks.is_empty() {
                let bytes = if random.is_multiple_of(97) { 3 << 20 } else { random as i64 % 70_000 + 1 };
                tally.hold().add(bytes);
                blocks.push(bytes);
                live += bytes;
                total += bytes;
                peak = peak.max(live);
            } else {
                let bytes = blocks.swap_remove(random as usize % blocks.len());
                tally.hold().subtract(bytes);
                live -= bytes;
            }
            if random.is_multiple_of(64) {
                let now = tally.counters();
                assert_eq!((now.bytes.value, now.bytes.peak, now.bytes.total), (live, peak, total));
                assert_eq!(now.allocations.value, blocks.len() as i64);
            }
        }
    }

    #[test]
    fn what_is_booked_counts_when_it_goes_and_never_where_it_came_to_nothing() {
        let tally = Tally::default();
        tally.hold().add(100);
        assert!(tally.hold().book(1000));
        assert_eq!(tally.counters().bytes, Counter { value: 1100, peak: 1100, total: 1100 });
        tally.hold().unbook(1000);
        assert_eq!(tally.counters().bytes, Counter { value: 100, peak: 100, total: 100 });
        assert_eq!(tally.counters().allocations, Counter { value: 1, peak: 1, total: 1 });
        assert!(tally.hold().book(50));
        tally.hold().retire(100);
        tally.hold().retire(50);
        assert_eq!(tally.counters().bytes, Counter { value: 0, peak: 150, total: 150 });
        assert_eq!(tally.counters().allocations, Counter { value: 0, peak: 2, total: 2 });
        // More than a stripe may hold back is not booked.
        assert!(!tally.hold().book(SLACK + 1));
        assert_eq!(tally.counters().bytes, Counter { value: 0, peak: 150, total: 150 });
    }

    #[test]
    fn peaks_of_many_threads_are_never_high_and_hardly_low() {
        const THREADS: usize = 4;
        let tally = Tally::default();
        let truth = crate::sync::Mutex::new((0i64, 0i64));
        std::thread::scope(|scope| {
            for t in 0..THREADS {
                let (tally, truth) = (&tally, &truth);
                scope.spawn(move || {
                    for round in 0..200usize {
                        let bytes = 40_000 + (t * 7919 + round * 104_729) as i64 % 400_000;
                        for _ in 0..10 {
                            // The truth rises before the tally and falls after it.
                            let mut real = truth.lock();
                            real.0 += bytes;
                            real.1 = real.1.max(real.0);
                            drop(real);
                            tally.hold().add(bytes);
                        }
                        for _ in 0..10 {
                            tally.hold().subtract(bytes);
                            truth.lock().0 -= bytes;
                        }
                    }
                });
            }
        });
        let now = tally.counters();
        assert_eq!((now.bytes.value, now.allocations.value), (0, 0));
        assert_eq!(now.allocations.total, (THREADS * 2000) as i64);
        let real = truth.lock().1;
        assert!(now.bytes.peak <= real, "{} is more than there ever was: {real}", now.bytes.peak);
        assert!(now.bytes.peak > 0);
    }
}
