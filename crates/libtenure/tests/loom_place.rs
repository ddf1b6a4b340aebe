//! A place of a slab under loom: every interleaving of two or three threads.

#![allow(missing_docs)]

mod sync {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic;
    pub(crate) use loom::thread::yield_now;
}

#[path = "../src/place.rs"]
#[allow(dead_code)]
mod place;

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;
use place::{Place, Refusal};

/// A tenant: loom reports two threads that are at it at once, and one that is at it after its end.
struct Tenant(UnsafeCell<u32>);

// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Tenant {}

impl Tenant {
    fn add(&self) -> u32 {
        // SAFETY: loom checks that nobody else is here; that check is the test.
        self.0.with_mut(|p| unsafe {
            *p += 1;
            *p
        })
    }

    fn get(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|p| unsafe { *p })
    }
}

type Seat = Place<Tenant, u32>;

fn never() -> bool {
    false
}

fn seated() -> Arc<Seat> {
    let seat = Arc::new(Seat::default());
    // SAFETY: nobody else has it yet.
    unsafe { seat.settle(1, || Tenant(UnsafeCell::new(0))) };
    seat
}

/// Works on the tenant; says whether it was had.
fn operate(seat: &Seat, generation: u64) -> Result<(), Refusal> {
    let taken = seat.hold(generation, never)?.take(Tenant::get);
    taken.add();
    Ok(())
}

fn end(seat: &Seat, generation: u64) -> Result<(), Refusal> {
    let held = seat.hold(generation, never)?;
    held.end();
    Ok(())
}

#[test]
fn who_works_on_a_tenant_is_alone_and_a_view_is_never_torn() {
    loom::model(|| {
        let seat = seated();
        let other = {
            let seat = seat.clone();
            thread::spawn(move || operate(&seat, 1))
        };
        // A view is answered at any time: of before, during or after.
        let seen = seat.view(1, Tenant::get, never).expect("it is there");
        assert!(seen <= 1);
        let mine = operate(&seat, 1);
        let theirs = other.join().unwrap();
        assert!(mine.is_ok() || mine == Err(Refusal::Busy));
        let done = u32::from(mine.is_ok()) + u32::from(theirs.is_ok());
        assert!(done >= 1, "one of two gets it");
        assert_eq!(seat.view(1, Tenant::get, never), Ok(done));
    });
}

#[test]
fn of_two_ends_one_is_right_and_a_view_meanwhile_is_of_the_tenant_or_refused() {
    loom::model(|| {
        let seat = seated();
        // Two threads: of three, two would wait for each other's turn for any number of rounds.
        let other = {
            let seat = seat.clone();
            thread::spawn(move || end(&seat, 1))
        };
        match seat.view(1, Tenant::get, never) {
            Ok(seen) => assert_eq!(seen, 0),
            Err(refusal) => assert_eq!(refusal, Refusal::Bad),
        }
        let ends = [end(&seat, 1), other.join().unwrap()];
        assert_eq!(ends.iter().filter(|end| end.is_ok()).count(), 1, "{ends:?}");
        assert_eq!(seat.view(1, Tenant::get, never), Err(Refusal::Bad));
    });
}

#[test]
fn a_dead_handle_touches_nothing_of_the_next_tenant() {
    loom::model(|| {
        let seat = seated();
        let straggler = {
            let seat = seat.clone();
            thread::spawn(move || (operate(&seat, 1), end(&seat, 1)))
        };
        if end(&seat, 1).is_ok() {
            // SAFETY: the place was vacated by this thread, which is the only one that settles.
            unsafe { seat.settle(2, || Tenant(UnsafeCell::new(10))) };
            assert_eq!(seat.view(2, Tenant::get, never), Ok(10));
            operate(&seat, 2).expect("nobody else has a right handle");
            let (_, late) = straggler.join().unwrap();
            assert!(late.is_err());
            assert_eq!(seat.view(2, Tenant::get, never), Ok(11));
        } else {
            let (_, ended) = straggler.join().unwrap();
            // It was out with the other thread, or ended by it.
            assert!(ended.is_ok());
        }
    });
}

#[test]
fn a_tenant_that_leaves_an_operation_waits_for_who_copies_its_view() {
    loom::model(|| {
        let seat = seated();
        let viewer = {
            let seat = seat.clone();
            thread::spawn(move || seat.view(1, Tenant::get, never))
        };
        let taken = seat.hold(1, never).expect("nobody takes it out").take(Tenant::get);
        taken.add();
        // SAFETY: nobody settles afterwards.
        let tenant = unsafe { taken.end() };
        assert_eq!(tenant.get(), 1);
        match viewer.join().unwrap() {
            // Before, or the copy that was made when it went out.
            Ok(seen) => assert_eq!(seen, 0),
            Err(refusal) => assert_eq!(refusal, Refusal::Bad),
        }
    });
}
