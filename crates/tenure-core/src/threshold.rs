//! A lock of one thread, which others come to hardly ever: the owner pays two stores and no interlocked operation.
//!
//! ```text
//!   owner   inside = true  | wanted?  no: it is in           ...   inside = false
//!                            yes: inside = false, and again when nobody wants it
//!   guest   wanted = true  | (a fence for everybody) | until not inside: it is in   ...   wanted = false
//! ```
//!
//! **Invariant**: of the two stores at `|` one comes first for both sides, by [`light`] and [`heavy`]: so not both can miss the
//! other. Guests exclude each other by the exchange that makes `wanted` true.
//!
//! The owner gives way to a guest, so that a guest waits for one stay of the owner at most. Many locks are visited with one fence:
//! [`knock`] on all, then [`Knocked::enter`] one by one.
//!
//! **Cost**: owner, about 2 ns; a round of guests, one [`heavy`]. A common latch costs each pair of allocation and free two
//! exchanges, some 12 ns of 85.
//!
//! Checked by loom (`tests/loom_cache.rs`).
//!
//! Unsafe in this file: the cell that the lock guards.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use crate::barrier::{heavy, light, one_sided};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{spin_loop, yield_now};

/// See the module.
pub(crate) struct Threshold<T> {
    inside: AtomicBool,
    wanted: AtomicBool,
    one_sided: bool,
    guarded: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time, as with any lock.
unsafe impl<T: Send> Sync for Threshold<T> {}

impl<T: Default> Default for Threshold<T> {
    fn default() -> Self {
        Self {
            inside: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            one_sided: one_sided(),
            guarded: UnsafeCell::default(),
        }
    }
}

/// What the lock guards, held by the owner or by a guest.
pub(crate) struct Hold<'a, T> {
    /// What says that somebody is in.
    sign: &'a AtomicBool,
    guarded: &'a UnsafeCell<T>,
}

/// A guest who has been heard by an owner that may be inside still.
pub(crate) struct Knocked<'a, T> {
    at: &'a Threshold<T>,
}

impl<T> Threshold<T> {
    /// The owner goes in, if nobody else is.
    ///
    /// # Safety
    /// The calling thread is the only one that ever calls this or [`hold`](Self::hold) of this lock.
    #[inline(always)]
    pub(crate) unsafe fn try_hold(&self) -> Option<Hold<'_, T>> {
        if self.inside.load(Ordering::Relaxed) {
            return None;
        }
        self.inside.store(true, Ordering::Relaxed);
        light(self.one_sided);
        if self.wanted.load(Ordering::Acquire) {
            self.inside.store(false, Ordering::Release);
            return None;
        }
        Some(Hold { sign: &self.inside, guarded: &self.guarded })
    }

    /// The owner goes in.
    ///
    /// # Safety
    /// As for [`try_hold`](Self::try_hold).
    #[inline]
    pub(crate) unsafe fn hold(&self) -> Hold<'_, T> {
        // SAFETY: the caller's.
        match unsafe { self.try_hold() } {
            Some(hold) => hold,
            // SAFETY: the caller's.
            None => patiently(|| unsafe { self.try_hold() }),
        }
    }

    /// Lets the owner know; waits for other guests.
    fn announce(&self) -> Knocked<'_, T> {
        patiently(|| {
            let first = self.wanted.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
            first.ok().map(|_| Knocked { at: self })
        })
    }
}

/// Tries until it succeeds.
#[cold]
fn patiently<R>(mut attempt: impl FnMut() -> Option<R>) -> R {
    let mut tries = 0u32;
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        tries += 1;
        if tries.is_multiple_of(64) {
            yield_now();
        } else {
            spin_loop();
        }
    }
}

/// Knocks at all of them. Two who knock at several must not do so at once, each having some.
pub(crate) fn knock<'a, T: 'a>(all: impl Iterator<Item = &'a Threshold<T>>) -> Vec<Knocked<'a, T>> {
    let knocked: Vec<_> = all.map(Threshold::announce).collect();
    if let Some(first) = knocked.first() {
        heavy(first.at.one_sided);
    }
    knocked
}

impl<'a, T> Knocked<'a, T> {
    /// Goes in when the owner is out.
    pub(crate) fn enter(self) -> Hold<'a, T> {
        let at = self.at;
        patiently(|| (!at.inside.load(Ordering::Acquire)).then_some(()));
        std::mem::forget(self);
        Hold { sign: &at.wanted, guarded: &at.guarded }
    }
}

impl<T> Drop for Knocked<'_, T> {
    fn drop(&mut self) {
        self.at.wanted.store(false, Ordering::Release);
    }
}

impl<T> Deref for Hold<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.guarded.get() }
    }
}

impl<T> DerefMut for Hold<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, by this hold alone.
        unsafe { &mut *self.guarded.get() }
    }
}

impl<T> Drop for Hold<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.sign.store(false, Ordering::Release);
    }
}
