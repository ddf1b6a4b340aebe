//! A walk over the live pieces, a stretch of granules at a time.

use std::ops::Range;

use super::block::{NIL, State};
use super::ledger::{self, GRANULE, LIVE, WHOLE};
use super::runs::class_units;
use super::{Place, UNIT};

/// A live piece, as a walk shows it. Sizes and offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) struct LivePiece {
    /// From the start of the range.
    pub(in crate::pool) offset: u64,
    /// What it was asked for, rounded as every request is.
    pub(in crate::pool) bytes: u64,
    /// What it takes.
    pub(in crate::pool) held: u64,
    /// The resource that was asked.
    pub(in crate::pool) owner: u64,
    /// What it is stamped with.
    pub(in crate::pool) stamp: u32,
}

/// Bytes of a granule: what a walk counts in.
pub(in crate::pool) const GRANULE_BYTES: u64 = UNIT << GRANULE;

impl Place {
    /// Number of granules.
    pub(in crate::pool) fn granules(&self) -> usize {
        self.ledger.starts().granules()
    }

    /// Calls `see` with each live piece of the blocks that start in `granules`. What threads keep at hand is free here.
    pub(in crate::pool) fn each_live(&self, granules: Range<usize>, see: &mut dyn FnMut(LivePiece)) {
        for granule in granules.start..granules.end.min(self.granules()) {
            let index = self.ledger.starts().in_granule(granule);
            if index == NIL {
                continue;
            }
            let block = &self.blocks[index];
            let mut show = |piece: &ledger::Piece, start: u32, units: u32| {
                let word = piece.word();
                if ledger::state_of(word) != LIVE {
                    return;
                }
                let class = ledger::class_in(word);
                let asked = if class == WHOLE { units } else { class_units(class) };
                see(LivePiece {
                    offset: u64::from(start) * UNIT,
                    bytes: u64::from(asked) * UNIT,
                    held: u64::from(units) * UNIT,
                    owner: piece.owner(),
                    stamp: ledger::stamp_of(word),
                });
            };
            if block.state == State::Line {
                // A piece of a plot: its thread knows where it lies, and the ledger says so.
                let first = (granule as u32) << GRANULE;
                if let Some((line, start, units)) = self.ledger.start_before(first + (1 << GRANULE) - 1, first)
                    && line == index
                {
                    show(self.ledger.piece(line), start, units);
                }
            } else if block.state == State::Run {
                let run = &self.runs[block.a as usize];
                let units = class_units(run.class as usize);
                for slot in 0..run.len() {
                    show(run.piece(slot), block.start + slot * units, units);
                }
            } else {
                show(self.ledger.piece(index), block.start, block.units);
            }
        }
    }
}
