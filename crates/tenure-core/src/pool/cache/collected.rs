//! What comes out of desks, on its way to the placer.

use super::super::State;
use super::super::order::Key;
use super::super::place::{Held, Plot};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Pieces on their way back to the placer, each with the tag that it gets.
type Returned = Vec<(Held, u32)>;

/// Which desks, and what of them.
#[derive(Clone, Copy)]
pub(in crate::pool) enum Which {
    /// All of all.
    All,
    /// All but plots.
    Pieces,
    /// Plots alone.
    Plots,
    /// Plots that little is left in.
    Idle,
    /// Of threads that have ended.
    Left,
    /// What was freed in the order of a stream that is about to end.
    Stream(Key),
    /// What was freed in the order of a stream that goes on.
    Freed(Key),
    /// What of that only waits: nothing that the thread would have at hand but one large block.
    Waiting(Key),
}

/// What came out of the desks. Must be given to the placer.
pub(in crate::pool) struct Collected {
    pub(super) pieces: Returned,
    pub(super) plots: Vec<Plot>,
    /// Records that have a magazine less.
    pub(super) magazines: Vec<u32>,
    /// Until the pieces are there no record is dropped.
    pub(super) moving: Arc<AtomicUsize>,
}

impl Collected {
    /// Gives it all to the placer. True when there was something.
    pub(in crate::pool) fn give(self, state: &mut State) -> bool {
        let any = !self.pieces.is_empty() || !self.plots.is_empty();
        // First, so that what is of a plot is the placer's when it comes.
        for plot in self.plots {
            state.give_up(plot);
        }
        let mut pieces = self.pieces;
        if !pieces.is_sorted_by_key(|(_, tag)| *tag) {
            pieces.sort_unstable_by_key(|(_, tag)| *tag);
        }
        for group in pieces.chunk_by(|a, b| a.1 == b.1) {
            state.take_back_many(group.iter().map(|(held, _)| *held), group[0].1);
        }
        for record in self.magazines {
            state.records.pin_magazine(record, -1);
        }
        self.moving.fetch_sub(1, Ordering::AcqRel);
        any
    }
}
