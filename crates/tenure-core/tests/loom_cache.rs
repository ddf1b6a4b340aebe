//! The desk's latch and the claim of a piece under loom: every interleaving of two or three threads.

#![allow(missing_docs)]

mod sync {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic;
    pub(crate) use loom::thread::yield_now;
}

#[path = "../src/latch.rs"]
#[allow(dead_code)]
mod latch;

/// The sources say who may see them by the name of their module, so that the models are inside it.
#[path = "../src/pool"]
mod pool {
    #[path = "place/piece.rs"]
    #[allow(dead_code)]
    pub(crate) mod piece;

    mod models {
        use std::sync::Arc;

        use super::piece::{FREE, HELD, LIVE, Piece, state_of, with_state, word};
        use crate::latch::Latch;
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
    }
}
