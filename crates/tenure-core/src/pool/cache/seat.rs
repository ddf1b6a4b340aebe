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

/// The desks of one thread.
struct Seats(RefCell<Vec<Arc<Desk>>>);

impl Drop for Seats {
    fn drop(&mut self) {
        LAST.set((0, std::ptr::null()));
        for desk in self.0.get_mut().drain(..) {
            desk.left.store(true, Ordering::Release);
        }
    }
}

thread_local! {
    static SEATS: Seats = const { Seats(RefCell::new(Vec::new())) };
    /// The desk used last, by the serial number of its pool; it is among the thread's seats. On its own, since what needs no
    /// clean-up is read without asking whether the thread is ending.
    static LAST: Cell<(u64, *const Desk)> = const { Cell::new((0, std::ptr::null())) };
}

/// This thread's desk of the pool with this serial number, if it has one.
///
/// # Safety
/// The pool is alive for as long as the answer is used, and no seat is taken meanwhile.
#[inline]
pub(super) unsafe fn desk<'a>(pool: u64) -> Option<&'a Desk> {
    let (serial, desk) = LAST.get();
    if serial == pool {
        // SAFETY: the desk is among this thread's seats; it leaves them when its pool has ended and the thread takes another
        // seat, or when the thread ends, which forgets it here.
        return Some(unsafe { &*desk });
    }
    find(pool).map(|desk| {
        // SAFETY: as above.
        unsafe { &*desk }
    })
}

#[cold]
fn find(pool: u64) -> Option<*const Desk> {
    SEATS
        .try_with(|seats| {
            let taken = seats.0.try_borrow().ok()?;
            let desk: *const Desk = &raw const **taken.iter().find(|desk| desk.pool == pool)?;
            LAST.set((pool, desk));
            Some(desk)
        })
        .ok()
        .flatten()
}

/// Sits down at a desk. False where the thread's storage is gone: then it stays without.
pub(super) fn sit(desk: &Arc<Desk>) -> bool {
    SEATS
        .try_with(|seats| {
            let Ok(mut taken) = seats.0.try_borrow_mut() else { return false };
            LAST.set((0, std::ptr::null()));
            taken.retain(|desk| !desk.closed.load(Ordering::Relaxed));
            taken.push(desk.clone());
            true
        })
        .unwrap_or(false)
}
