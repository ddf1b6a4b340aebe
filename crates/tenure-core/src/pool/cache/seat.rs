//! Which desk is this thread's? Found through the thread's own storage, without a look at anything shared.
//!
//! A thread sits at one desk of each pool that it used. When it ends, its desks are marked as left; the pool empties them at
//! its next slow path or when the next desk is set up. A pool that ends marks its desks as closed, and the thread lets go of
//! those when it takes a seat anywhere.
//!
//! Unsafe in this file: the pointer to the desk used last, which the list of the same thread keeps alive.

use std::cell::{Cell, RefCell};

use super::Desk;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

struct Seats {
    /// The desk used last, by the serial number of its pool. In `taken` as well.
    last: Cell<(u64, *const Desk)>,
    taken: RefCell<Vec<Arc<Desk>>>,
}

impl Drop for Seats {
    fn drop(&mut self) {
        self.last.set((0, std::ptr::null()));
        for desk in self.taken.get_mut().drain(..) {
            desk.left.store(true, Ordering::Release);
        }
    }
}

thread_local! {
    static SEATS: Seats = const { Seats { last: Cell::new((0, std::ptr::null())), taken: RefCell::new(Vec::new()) } };
}

/// Calls `f` with this thread's desk of the pool with this serial number, if it has one.
#[inline]
pub(super) fn at_desk<R>(pool: u64, f: impl FnOnce(&Desk) -> R) -> Option<R> {
    SEATS
        .try_with(|seats| {
            let (serial, desk) = seats.last.get();
            if serial == pool {
                // SAFETY: the desk is in `taken`, from which this thread alone takes desks away, and not meanwhile: `f` calls
                // nothing that takes a seat.
                return Some(f(unsafe { &*desk }));
            }
            let desk = {
                let taken = seats.taken.try_borrow().ok()?;
                taken.iter().find(|desk| desk.pool == pool)?.clone()
            };
            seats.last.set((pool, &raw const *desk));
            Some(f(&desk))
        })
        .ok()
        .flatten()
}

/// Sits down at a desk. False where the thread's storage is gone: then it stays without.
pub(super) fn sit(desk: &Arc<Desk>) -> bool {
    SEATS
        .try_with(|seats| {
            let Ok(mut taken) = seats.taken.try_borrow_mut() else { return false };
            seats.last.set((0, std::ptr::null()));
            taken.retain(|desk| !desk.closed.load(Ordering::Relaxed));
            taken.push(desk.clone());
            true
        })
        .unwrap_or(false)
}
