//! One place of a slab: a tenant, and one word that says who may touch it.
//!
//! ```text
//!                     view, peek, end_if              with, remove
//!   VACANT --settle--> HERE <----hold----> HELD --take--> OUT <--view--> SEEN
//!     ^                                      |              |
//!     +----------------- end ----------------+-------------+
//!
//!   word = generation | state     a handle of another generation changes nothing and touches nothing else
//! ```
//!
//! *Held* is for nanoseconds: the holder calls nobody, and who finds it so waits. *Out* is for as long as the engine works on
//! the tenant: a second call on it is an error, and what may be asked meanwhile is answered from a copy, the view, that was
//! made when it went out. A tenant stays where it is all the time; "out" is a word only.
//!
//! # Invariants
//! * The tenant is reached by whoever settled it, holds it or has it out: one thread at a time.
//! * A generation settles once, and no handle of it is right after its end.
//!
//! # Cost
//! One compare-exchange to hold and a store to let go; settling is a store.
//!
//! Checked by loom (`tests/loom_place.rs`).
//!
//! Unsafe in this file: the cells that the word guards.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{spin_loop, yield_now};

const VACANT: u64 = 0;
const HERE: u64 = 1;
const HELD: u64 = 2;
const OUT: u64 = 3;
const SEEN: u64 = 4;
const STATE: u64 = 7;
const SHIFT: u32 = 3;

/// See the module.
pub(crate) struct Place<T, V> {
    word: AtomicU64,
    tenant: UnsafeCell<MaybeUninit<T>>,
    view: UnsafeCell<MaybeUninit<V>>,
}

// SAFETY: tenant and view are reached by one thread at a time, as the word says.
unsafe impl<T: Send, V: Send> Sync for Place<T, V> {}

/// Why a place was not had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The handle is dead, or never was.
    Bad,
    /// An operation has the tenant out.
    Busy,
    /// Whoever holds it will never let go.
    Lost,
}

/// The tenant, held for a moment.
pub(crate) struct Held<'a, T, V> {
    place: &'a Place<T, V>,
    generation: u64,
}

/// The tenant, out for an operation.
pub(crate) struct Taken<'a, T, V> {
    place: &'a Place<T, V>,
    generation: u64,
}

impl<T, V> Default for Place<T, V> {
    fn default() -> Self {
        Self {
            word: AtomicU64::new(VACANT),
            tenant: UnsafeCell::new(MaybeUninit::uninit()),
            view: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
}

impl<T, V> Place<T, V> {
    /// The generation of the last tenant.
    pub(crate) fn generation(&self) -> u64 {
        self.word.load(Relaxed) >> SHIFT
    }

    /// Lets a tenant in, made where it will be, under a generation that none had.
    ///
    /// # Safety
    /// The place is vacant, and the caller is the only one who may settle anybody here.
    #[inline(always)]
    pub(crate) unsafe fn settle(&self, generation: u64, make: impl FnOnce() -> T) {
        // SAFETY: nobody reaches the cell of a vacant place, and nobody else settles here.
        unsafe { (*self.tenant.get()).write(make()) };
        self.word.store(generation << SHIFT | HERE, Release);
    }

    /// Goes from HERE to HELD, or from OUT to SEEN where `seen`; gives the state that it left.
    #[inline]
    fn enter(&self, generation: u64, seen: bool, is_lost: fn() -> bool) -> Result<u64, Refusal> {
        let mut tries = 0u32;
        loop {
            let word = self.word.load(Relaxed);
            if word >> SHIFT != generation {
                return Err(Refusal::Bad);
            }
            let to = match word & STATE {
                HERE => HELD,
                OUT if seen => SEEN,
                HELD => word & STATE,
                SEEN if seen => word & STATE,
                OUT | SEEN => return Err(Refusal::Busy),
                _ => return Err(Refusal::Bad),
            };
            let mine = to != word & STATE
                && self.word.compare_exchange(word, generation << SHIFT | to, Acquire, Relaxed).is_ok();
            if mine {
                return Ok(word & STATE);
            }
            tries += 1;
            if !tries.is_multiple_of(64) {
                spin_loop();
            } else if is_lost() {
                return Err(Refusal::Lost);
            } else {
                yield_now();
            }
        }
    }

    /// Holds the tenant. `is_lost` says, after some waiting, that whoever holds it is no more.
    #[inline]
    pub(crate) fn hold(&self, generation: u64, is_lost: fn() -> bool) -> Result<Held<'_, T, V>, Refusal> {
        self.enter(generation, false, is_lost)?;
        Ok(Held { place: self, generation })
    }

    /// What may be asked of the tenant at any time: `view` of it, or the copy that was made when it went out.
    #[inline]
    pub(crate) fn view(&self, generation: u64, view: impl Fn(&T) -> V, is_lost: fn() -> bool) -> Result<V, Refusal>
    where
        V: Copy,
    {
        if self.enter(generation, true, is_lost)? == HERE {
            return Ok(view(&Held { place: self, generation }));
        }
        // SAFETY: it was written before the tenant went out, and is not written while somebody sees it.
        let seen = unsafe { (*self.view.get()).assume_init() };
        self.word.store(generation << SHIFT | OUT, Release);
        Ok(seen)
    }

    /// From OUT to another state, once nobody sees it.
    fn back(&self, generation: u64, state: u64) {
        let (from, to) = (generation << SHIFT | OUT, generation << SHIFT | state);
        while self.word.compare_exchange_weak(from, to, Release, Relaxed).is_err() {
            // For as long as a view is copied.
            yield_now();
        }
    }
}

impl<'a, T, V> Held<'a, T, V> {
    /// Takes the tenant out for an operation.
    pub(crate) fn take(self, view: impl Fn(&T) -> V) -> Taken<'a, T, V> {
        let (place, generation) = (self.place, self.generation);
        let seen = view(&self);
        std::mem::forget(self);
        // SAFETY: the tenant is held, so that nobody looks at the view.
        unsafe { (*place.view.get()).write(seen) };
        place.word.store(generation << SHIFT | OUT, Release);
        Taken { place, generation }
    }

    /// Ends the tenancy: from here on the handle is dead. The tenant is forgotten and not dropped: the caller has taken out of
    /// it what must be.
    #[inline(always)]
    pub(crate) fn end(self) {
        let (place, generation) = (self.place, self.generation);
        std::mem::forget(self);
        place.word.store(generation << SHIFT | VACANT, Release);
    }
}

impl<T, V> Deref for Held<'_, T, V> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: it is held.
        unsafe { (*self.place.tenant.get()).assume_init_ref() }
    }
}

impl<T, V> DerefMut for Held<'_, T, V> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: it is held, by this hold alone.
        unsafe { (*self.place.tenant.get()).assume_init_mut() }
    }
}

impl<T, V> Drop for Held<'_, T, V> {
    #[inline]
    fn drop(&mut self) {
        self.place.word.store(self.generation << SHIFT | HERE, Release);
    }
}

impl<T, V> Taken<'_, T, V> {
    /// Ends the tenancy and gives the tenant out.
    ///
    /// # Safety
    /// Nobody settles anybody here before this call has returned.
    pub(crate) unsafe fn end(self) -> T {
        let (place, generation) = (self.place, self.generation);
        std::mem::forget(self);
        place.back(generation, VACANT);
        // SAFETY: the handle is dead and nobody settles here: the tenant is this thread's.
        unsafe { (*place.tenant.get()).assume_init_read() }
    }
}

impl<T, V> Deref for Taken<'_, T, V> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: it is out, for this operation alone.
        unsafe { (*self.place.tenant.get()).assume_init_ref() }
    }
}

impl<T, V> DerefMut for Taken<'_, T, V> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { (*self.place.tenant.get()).assume_init_mut() }
    }
}

impl<T, V> Drop for Taken<'_, T, V> {
    fn drop(&mut self) {
        // The view is made anew when it is next needed.
        self.place.back(self.generation, HERE);
    }
}
