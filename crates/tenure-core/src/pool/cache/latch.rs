//! A lock for a few nanoseconds: one exchange and one store.
//!
//! `parking_lot`'s mutex costs two exchanges, and a pair of allocation and free passes here twice. Nothing is called or
//! waited for while it is held but the pool's own short lock; whoever waits spins and then yields.
//!
//! Unsafe in this file: the cell that the latch guards.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use crate::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Default)]
pub(in crate::pool) struct Latch<T> {
    shut: AtomicBool,
    guarded: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time, as with any lock.
unsafe impl<T: Send> Sync for Latch<T> {}

/// The latch, held.
pub(in crate::pool) struct Hold<'a, T> {
    latch: &'a Latch<T>,
}

impl<T> Latch<T> {
    /// Holds it, if nobody else does.
    #[inline(always)]
    pub(in crate::pool) fn try_hold(&self) -> Option<Hold<'_, T>> {
        // Made only where it is ours: one that is dropped lets go.
        (!self.shut.swap(true, Ordering::Acquire)).then(|| Hold { latch: self })
    }

    /// Holds it.
    #[inline]
    pub(in crate::pool) fn hold(&self) -> Hold<'_, T> {
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
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            if !self.shut.load(Ordering::Relaxed)
                && let Some(hold) = self.try_hold()
            {
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

#[cfg(test)]
mod tests {
    use super::Latch;

    #[test]
    fn one_at_a_time() {
        let latch = Latch::<u64>::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *latch.hold() += 1));
            }
        });
        assert_eq!(*latch.hold(), 40_000);
        let held = latch.hold();
        assert!(latch.try_hold().is_none());
        assert!(latch.try_hold().is_none(), "the first try has let go of what it did not have");
        drop(held);
        assert!(latch.try_hold().is_some());
    }
}
