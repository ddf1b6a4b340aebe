//! A lock for a few nanoseconds: one exchange and one store.
//!
//! `parking_lot`'s mutex costs two exchanges, and a pair of allocation and free passes here twice. Nothing is called or
//! waited for while it is held but a short lock of the same owner; whoever waits spins and then yields.
//! Checked by loom (`tests/loom_cache.rs`).
//!
//! Unsafe in this file: the cell that the latch guards.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{spin_loop, yield_now};

/// See the module.
#[derive(Default)]
pub(crate) struct Latch<T> {
    shut: AtomicBool,
    guarded: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time, as with any lock.
unsafe impl<T: Send> Sync for Latch<T> {}

/// The latch, held.
pub(crate) struct Hold<'a, T> {
    latch: &'a Latch<T>,
}

impl<T> Latch<T> {
    /// Holds it, if nobody else does.
    #[inline(always)]
    pub(crate) fn try_hold(&self) -> Option<Hold<'_, T>> {
        // Made only where it is ours: one that is dropped lets go.
        let open = self.shut.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        open.ok().map(|_| Hold { latch: self })
    }

    /// Holds it.
    #[inline]
    pub(crate) fn hold(&self) -> Hold<'_, T> {
        match self.try_hold() {
            Some(hold) => hold,
            None => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> Hold<'_, T> {
        let mut tries = 0u32;
        loop {
            tries += 1;
            if tries.is_multiple_of(64) {
                yield_now();
            } else {
                spin_loop();
            }
            if let Some(hold) = self.try_hold() {
                return hold;
            }
        }
    }
}

impl<T> Deref for Hold<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the latch is held.
        unsafe { &*self.latch.guarded.get() }
    }
}

impl<T> DerefMut for Hold<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the latch is held, by this hold alone.
        unsafe { &mut *self.latch.guarded.get() }
    }
}

impl<T> Drop for Hold<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.latch.shut.store(false, Ordering::Release);
    }
}
