//! What a thread has of its own, in one place: its number, its stripe of the counts, the desk that it used last, and where
//! the face that it is called through has more.
//!
//! Threads count up in the order in which they first ask. Numbers never come back; stripes do: there are [`OWNED`], each of
//! one living thread at a time, and a thread that found none free shares one with others (see `count.rs`).
//!
//! In a shared library each look at a thread's own storage is a call, whatever is behind it. So whoever needs several of
//! these looks once ([`with`]) and passes on what it got.
//!
//! **Cost**: one look, which works until the thread's very end.
//!
//! Unsafe in this file: the way from the look to what is done with it, so that the compiler makes one function of both.

use std::cell::Cell;

// Never modelled: a model gives its threads their stripes itself.
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Stripes that belong to one thread at a time; those above are shared.
pub(crate) const OWNED: usize = 48;
const _: () = assert!(OWNED < u64::BITS as usize);

/// See the module.
pub struct Local {
    /// 0 until it is asked for.
    number: Cell<usize>,
    /// [`NO_STRIPE`] until it is asked for.
    stripe: Cell<usize>,
    /// The serial number of a pool, and where this thread's desk of it is: `pool/cache/seat.rs`.
    pub(crate) desk: Cell<(u64, *const ())>,
    /// For the face that calls the engine: where its own storage of this thread is, null at first. There is one face in a
    /// library.
    pub face: Cell<*const ()>,
}

const NO_STRIPE: usize = usize::MAX;

thread_local! {
    // Without a destructor: read without asking whether the thread is ending.
    static LOCAL: Local = const {
        Local {
            number: Cell::new(0),
            stripe: Cell::new(NO_STRIPE),
            desk: Cell::new((0, std::ptr::null())),
            face: Cell::new(std::ptr::null()),
        }
    };
    static STRIPE: Stripe = const { Stripe(Cell::new(NO_STRIPE)) };
}

/// A bit for each stripe that some thread has.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The stripe that a thread has, until it ends.
struct Stripe(Cell<usize>);

impl Drop for Stripe {
    fn drop(&mut self) {
        let stripe = self.0.get();
        if stripe < OWNED {
            // What the thread still does from here on it does as one of many.
            with(|here| here.stripe.set(OWNED + here.number()));
            // Whoever has it next sees what was counted there.
            TAKEN.fetch_and(!(1 << stripe), Ordering::Release);
        }
    }
}

/// Runs `f` with what this thread has.
#[inline(always)]
pub fn with<R>(f: impl FnOnce(&Local) -> R) -> R {
    let here = LOCAL.with(std::ptr::from_ref);
    // SAFETY: it has no destructor and is there until the thread's end; `f` runs on this thread, and cannot keep it.
    f(unsafe { &*here })
}

/// The number of this thread, from 1; no other thread of the process ever has it.
#[inline]
pub fn number() -> usize {
    with(Local::number)
}

impl Local {
    /// See [`number`].
    #[inline(always)]
    pub fn number(&self) -> usize {
        match self.number.get() {
            0 => self.take_number(),
            number => number,
        }
    }

    #[cold]
    #[inline(never)]
    fn take_number(&self) -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.number.set(number);
        number
    }

    /// The stripe that this thread counts in: below [`OWNED`] it is this thread's alone.
    #[inline(always)]
    pub(crate) fn stripe(&self) -> usize {
        match self.stripe.get() {
            NO_STRIPE => self.take_stripe(),
            stripe => stripe,
        }
    }

    #[cold]
    #[inline(never)]
    fn take_stripe(&self) -> usize {
        // A thread that is ending has nobody who would give it back.
        let own = STRIPE.try_with(|stripe| {
            let own = free_stripe()?;
            stripe.0.set(own);
            Some(own)
        });
        let stripe = own.ok().flatten().unwrap_or(OWNED + self.number());
        self.stripe.set(stripe);
        stripe
    }
}

fn free_stripe() -> Option<usize> {
    let lowest = |taken: u64| Some(taken.trailing_ones() as usize).filter(|stripe| *stripe < OWNED);
    let take = |taken| lowest(taken).map(|stripe| taken | 1 << stripe);
    TAKEN.fetch_update(Ordering::Acquire, Ordering::Relaxed, take).ok().and_then(lowest)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::sync::{Mutex, yield_now};

    #[test]
    fn of_all_who_live_no_two_have_one_stripe_and_who_ends_leaves_it() {
        for _ in 0..3 {
            let seen = Mutex::new(Vec::new());
            std::thread::scope(|scope| {
                for _ in 0..OWNED + 8 {
                    scope.spawn(|| {
                        seen.lock().push(with(Local::stripe));
                        // All live at once.
                        while seen.lock().len() < OWNED + 8 {
                            yield_now();
                        }
                    });
                }
            });
            let seen = seen.into_inner();
            let owned: Vec<_> = seen.iter().filter(|stripe| **stripe < OWNED).collect();
            assert_eq!(owned.len(), owned.iter().collect::<HashSet<_>>().len());
            // Other tests of this process have some.
            assert!(!owned.is_empty() && owned.len() < seen.len(), "{} of {}", owned.len(), seen.len());
        }
    }

    #[test]
    fn a_thread_that_is_ending_counts_as_one_of_many() {
        struct Late;
        impl Drop for Late {
            fn drop(&mut self) {
                LATE.fetch_max(with(Local::stripe), Ordering::SeqCst);
            }
        }
        static LATE: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static KEPT: Cell<Option<Late>> = const { Cell::new(None) });
        std::thread::spawn(|| {
            // Destructors run in the order in which they were registered, or the other way round: it is there before and after.
            KEPT.set(Some(Late));
            with(Local::stripe);
        })
        .join()
        .unwrap();
        std::thread::spawn(|| {
            with(Local::stripe);
            KEPT.set(Some(Late));
        })
        .join()
        .unwrap();
        assert!(LATE.load(Ordering::SeqCst) >= OWNED);
    }
}
