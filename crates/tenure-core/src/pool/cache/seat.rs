//! Which desk is this thread's? Found through the thread's own storage, without a look at anything shared.
//!
//! A thread sits at one desk of each pool that it used. When it ends, its desks are marked as left; the pool empties them at
//! its next slow path or when the next desk is set up. A pool that ends marks its desks as closed, and the thread lets go of
//! those when it takes a seat anywhere.
//!
//! Unsafe in this file: the pointer to the desk used last, which the list of the same thread keeps alive. It is kept where the
//! thread has all that it reads at each call (`thread.rs`).

use std::cell::RefCell;

use super::Desk;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::thread::{self, Local};

/// The desks of one thread.
struct Seats(RefCell<Vec<Arc<Desk>>>);

impl Drop for Seats {
    fn drop(&mut self) {
        forget_last();
        for desk in self.0.get_mut().drain(..) {
            desk.left.store(true, Ordering::Release);
        }
    }
}

thread_local! {
    static SEATS: Seats = const { Seats(RefCell::new(Vec::new())) };
}

/// The desk used last may be gone soon.
fn forget_last() {
    thread::with(|here| here.desk.set((0, std::ptr::null())));
}

/// This thread's desk of the pool with this serial number, if it has one.
///
/// # Safety
/// The pool is alive for as long as the answer is used, and no seat is taken meanwhile.
#[inline(always)]
pub(super) unsafe fn desk<'a>(pool: u64, here: &Local) -> Option<&'a Desk> {
    let (serial, desk) = here.desk.get();
    if serial == pool {
        // SAFETY: the desk is among this thread's seats; it leaves them when its pool has ended and the thread takes another
        // seat, or when the thread ends, which forgets it here. Nobody else sets the pointer.
        return Some(unsafe { &*desk.cast::<Desk>() });
    }
    find(pool, here).map(|desk| {
        // SAFETY: as above.
        unsafe { &*desk }
    })
}

#[cold]
fn find(pool: u64, here: &Local) -> Option<*const Desk> {
    SEATS
        .try_with(|seats| {
            let taken = seats.0.try_borrow().ok()?;
            let desk: *const Desk = &raw const **taken.iter().find(|desk| desk.pool == pool)?;
            here.desk.set((pool, desk.cast()));
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
            forget_last();
            taken.retain(|desk| !desk.closed.load(Ordering::Relaxed));
            taken.push(desk.clone());
            true
        })
        .unwrap_or(false)
}
