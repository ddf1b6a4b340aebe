//! The desk's latch and the claim of a piece under loom: every interleaving of two or three threads.

#![allow(missing_docs)]

mod sync {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) mod atomic {
        pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};

        /// loom lets a compare-exchange succeed over a store that came before it, which neither the language nor a
        /// processor does. With a swap for the store the model says what they do.
        pub(crate) struct AtomicU32(loom::sync::atomic::AtomicU32);

        impl AtomicU32 {
            pub(crate) fn new(value: u32) -> Self {
                Self(loom::sync::atomic::AtomicU32::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> u32 {
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: u32, order: Ordering) {
                self.0.swap(value, order);
            }

            pub(crate) fn compare_exchange(&self, old: u32, new: u32, yes: Ordering, no: Ordering) -> Result<u32, u32> {
                self.0.compare_exchange(old, new, yes, no)
            }
        }
    }
    pub(crate) use loom::thread::yield_now;
}

/// Both sides have a fence of their own: loom has none that one side pays for all.
mod barrier {
    use loom::sync::atomic::{Ordering, fence};

    pub(crate) fn one_sided() -> bool {
        false
    }

    pub(crate) fn light(_: bool) {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy(_: bool) {
        fence(Ordering::SeqCst);
    }
}

#[path = "../src/latch.rs"]
#[allow(dead_code)]
mod latch;

#[path = "../src/threshold.rs"]
mod threshold;

/// The sources say who may see them by the name of their module, so that the models are inside it.
#[path = "../src/pool"]
mod pool {
    #[path = "place/piece.rs"]
    #[allow(dead_code)]
    pub(crate) mod piece;
    #[path = "place/starts.rs"]
    #[allow(dead_code)]
    pub(crate) mod starts;

    mod models {
        use std::sync::Arc;

        use super::piece::{FREE, HELD, LIVE, Piece, state_of, with_state, word};
        use super::starts::{GRANULE, Starts};
        use crate::latch::Latch;
        use crate::threshold::{Threshold, knock};
        use loom::cell::UnsafeCell;
        use loom::thread;

        /// What a latch guards, or what the holder of a piece may do with it: loom reports two at once.
        #[derive(Default)]
        struct Alone(UnsafeCell<u32>);

        impl Alone {
            fn add(&self) -> u32 {
                // SAFETY: loom checks that nobody else is here; that check is the test.
                self.0.with_mut(|p| unsafe {
                    *p += 1;
                    *p
                })
            }
        }

        // SAFETY: reached from several threads on purpose.
        unsafe impl Sync for Alone {}
        // SAFETY: nothing in it belongs to a thread.
        unsafe impl Send for Alone {}

        #[test]
        fn a_latch_is_held_by_one() {
            // Without waiting: whoever waits does nothing but try again, for any number of rounds.
            loom::model(|| {
                let latch = Arc::new(Latch::<Alone>::default());
                let attempt = |latch: &Latch<Alone>| latch.try_hold().map_or(0, |held| u32::from(held.add() > 0));
                let others: Vec<_> = (0..2)
                    .map(|_| {
                        let latch = latch.clone();
                        thread::spawn(move || attempt(&latch) + attempt(&latch))
                    })
                    .collect();
                let done: u32 = others.into_iter().map(|t| t.join().unwrap()).sum();
                assert!(done >= 2, "whoever is alone gets it");
                assert_eq!(latch.hold().add(), done + 1);
            });
        }

        #[test]
        fn an_owner_and_a_guest_are_never_in_together() {
            loom::model(|| {
                let lock = Arc::new(Threshold::<Alone>::default());
                let guest = {
                    let lock = lock.clone();
                    thread::spawn(move || {
                        for knocked in knock(std::iter::once(&*lock)) {
                            knocked.enter().add();
                        }
                    })
                };
                // SAFETY: this thread alone is the owner.
                let been = (0..2).filter(|_| unsafe { lock.try_hold() }.is_some_and(|held| held.add() > 0)).count();
                guest.join().unwrap();
                // SAFETY: as above.
                let last = unsafe { lock.hold() }.add();
                assert_eq!(last as usize, been + 2, "nobody has overwritten what another one did");
            });
        }

        #[test]
        fn guests_come_one_after_another() {
            loom::model(|| {
                let lock = Arc::new(Threshold::<Alone>::default());
                let visit = |lock: &Threshold<Alone>| {
                    knock(std::iter::once(lock)).into_iter().for_each(|knocked| _ = knocked.enter().add());
                };
                let other = {
                    let lock = lock.clone();
                    thread::spawn(move || visit(&lock))
                };
                visit(&lock);
                other.join().unwrap();
                // SAFETY: no other thread is the owner.
                assert_eq!(unsafe { lock.hold() }.add(), 3);
            });
        }

        #[test]
        fn who_knocks_and_goes_away_leaves_the_door_open() {
            loom::model(|| {
                let lock = Threshold::<Alone>::default();
                drop(knock(std::iter::once(&lock)));
                // SAFETY: this thread alone is the owner.
                assert!(unsafe { lock.try_hold() }.is_some());
            });
        }

        /// A piece, what is in its memory, and the stack of whoever holds it.
        struct Block {
            piece: Piece,
            memory: Alone,
        }

        #[test]
        fn of_two_frees_one_claims_and_sees_what_was_written() {
            loom::model(|| {
                let live = word(LIVE, 3, 77, 4);
                let block = Arc::new(Block { piece: Piece::default(), memory: Alone::default() });
                block.memory.add();
                block.piece.set(live, 9);
                let free = move |block: &Block| {
                    let claimed = block.piece.claim(live, 9);
                    if claimed {
                        block.memory.add();
                    }
                    claimed
                };
                let other = {
                    let block = block.clone();
                    thread::spawn(move || free(&block))
                };
                let here = free(&block);
                assert_ne!(here, other.join().unwrap(), "one of two frees is right");
                assert_eq!(state_of(block.piece.word()), HELD);
            });
        }

        #[test]
        fn a_piece_goes_round_and_a_late_second_free_takes_nothing_from_others() {
            loom::model(|| {
                let live = word(LIVE, 3, 77, 4);
                let block = Arc::new(Block { piece: Piece::default(), memory: Alone::default() });
                block.piece.set(live, 9);
                // Freed rightly, and handed out to another resource; meanwhile somebody frees the old block once more.
                let wrong = {
                    let block = block.clone();
                    thread::spawn(move || block.piece.claim(live, 9))
                };
                let right = block.piece.claim(live, 9);
                if right {
                    block.memory.add();
                    block.piece.set(with_state(live, LIVE), 10);
                    // The new owner's free finds its block, unless the wrong one is looking at this very moment.
                    let mut freed = block.piece.claim(live, 10);
                    let taken = wrong.join().unwrap();
                    assert!(!taken, "the wrong free took the block of another resource");
                    if !freed {
                        freed = block.piece.claim(live, 10);
                    }
                    assert!(freed, "the block was lost");
                    block.memory.add();
                    block.piece.set(with_state(live, FREE), 0);
                } else {
                    assert!(wrong.join().unwrap());
                }
            });
        }

        #[test]
        fn a_plots_piece_keeps_its_start_whatever_becomes_of_the_run_beside_it() {
            // A run of one granule and a half; a plot's piece begins in the other half of the last one.
            const RUN: u32 = 7;
            const PIECE: u32 = 9;
            let units = (1 << GRANULE) + 64;
            loom::model(move || {
                let zeros = (0..3).map(|_| crate::sync::atomic::AtomicU32::new(0)).collect();
                let starts = Arc::new(Starts::new(zeros));
                // The placer has its lock, the plot its latch: they meet nowhere but here.
                let placer = {
                    let starts = starts.clone();
                    thread::spawn(move || {
                        starts.set(0, RUN);
                        starts.set_run(0, units, RUN);
                        starts.clear_run(0, units, RUN);
                        starts.set(0, 0);
                        starts.set(0, RUN + 1);
                        starts.set_run(0, units, RUN + 1);
                    })
                };
                starts.set(1, PIECE);
                assert_eq!(starts.in_granule(1), PIECE, "a live piece is found");
                starts.set(1, 0);
                starts.set(1, PIECE);
                placer.join().unwrap();
                assert_eq!(starts.in_granule(1), PIECE, "a live piece is found");
                assert_eq!(starts.reaches(0), Some(RUN + 1));
                assert_eq!(starts.reaches(3), None);
            });
        }

        /// What a desk and the placer do with one piece of a plot.
        struct Shared {
            piece: Piece,
            /// The plot's blocks, or what the placer made of them: reached by whoever has the plot.
            ground: Alone,
            /// The plot is at the desk.
            at_desk: Latch<bool>,
            /// The placer's inbox, under the pool's lock. `None`: the piece is the placer's own.
            inbox: Latch<Option<u32>>,
        }

        #[test]
        fn a_piece_that_is_freed_while_its_plot_is_given_up_is_freed_once() {
            loom::model(|| {
                let live = word(LIVE, 63, 200, 4);
                let shared = Arc::new(Shared {
                    piece: Piece::default(),
                    ground: Alone::default(),
                    at_desk: Latch::default(),
                    inbox: Latch::default(),
                });
                shared.piece.set(live, 9);
                *shared.at_desk.hold() = true;
                *shared.inbox.hold() = Some(0);
                // The desk's own thread frees: into the plot where it still has it, else through the placer.
                let owner = {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        let Some(at_desk) = shared.at_desk.try_hold() else { return false };
                        if !shared.piece.claim(live, 9) {
                            return false;
                        }
                        if *at_desk {
                            shared.ground.add();
                            shared.piece.set(FREE, 0);
                            return true;
                        }
                        drop(at_desk);
                        if let Some(mut inbox) = shared.inbox.try_hold() {
                            match &mut *inbox {
                                Some(waiting) => *waiting += 1,
                                None => {
                                    shared.ground.add();
                                    shared.piece.set(FREE, 0);
                                }
                            }
                        } else {
                            // What waits at a desk is given later; here, put back.
                            shared.piece.set(live, 9);
                            return false;
                        }
                        true
                    })
                };
                // Somebody gathers: the plot out of the desk under the latch, then into the placer under the lock.
                let taken =
                    shared.at_desk.try_hold().is_some_and(|mut at_desk| std::mem::replace(&mut *at_desk, false));
                if taken && let Some(mut inbox) = shared.inbox.try_hold() {
                    shared.ground.add();
                    if inbox.take() == Some(1) {
                        shared.piece.set(FREE, 0);
                    }
                }
                let freed = owner.join().unwrap();
                let state = state_of(shared.piece.word());
                let waits = shared.inbox.hold().is_some_and(|waiting| waiting == 1);
                assert_eq!(freed, state == FREE || waits && state == HELD, "freed: {freed}, {state}");
            });
        }
    }
}
