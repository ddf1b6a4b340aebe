//! A plot: large free memory that one thread's desk divides without the pool's lock.
//!
//! ```text
//!   the placer    ... [ live ][ lent: span 1          ][ live ][ free ][ lent: span 2 ] ...          pool's lock
//!                             |                       |
//!   the plot                  [ live ][ free ][ live ][ free ]        bins of its own               desk's latch
//! ```
//!
//! For the placer a span is one block that is in use. Inside, the plot cuts and merges as the placer does, with blocks and
//! bins of its own. Every piece that is handed out has a *line* of the ledger, which the placer lent: so a free finds it, checks
//! it and claims it as it does any other, and no reader of the ledger knows that there are plots.
//!
//! **Who frees what.** The desk that has the plot takes its own pieces back here, if they were freed in the order of the plot's
//! stream. What comes another way (another thread, another stream) goes to the placer, which keeps it in the plot's inbox
//! (`lend.rs`) until the desk comes by or the plot is given up.
//!
//! **Giving up** ([`Place::take_plot`]): each piece becomes a block of the placer, under its own line, so that whoever holds it
//! notices nothing; what is free merges with what is around it.
//!
//! **Invariants**
//! * All memory of a plot has one tag, that of its stream: who frees in it and who takes from it are in one order (I2).
//! * Blocks tile each span; no two neighbours in it are free; `home` names the block of each line that is handed out, and no
//!   other line.
//! * Lines and spans come and go with the pool's lock and the latch held. Between, nobody else touches them.
//!
//! **Cost**: as the placer's own, for one tag instead of three, with no lock and no word that another thread touches. 36 bytes
//! for a block more.

use super::bins::Bins;
use super::block::{Block, Blocks, MIN_LARGE, NIL, State};
use super::ledger::{self, GRANULE, HELD, Ledger, NO_SLOT, WHOLE};
use super::{Held, LARGE};
use crate::sync::Arc;

/// See the module.
pub(in crate::pool) struct Plot {
    /// The placer's name for it.
    pub(super) number: u32,
    /// The tag of its stream.
    pub(in crate::pool) stamp: u32,
    ledger: Arc<Ledger>,
    blocks: Blocks,
    bins: Bins,
    /// First block of each span, and the placer's block for it.
    pub(super) spans: Vec<(u32, u32)>,
    /// Lines that nothing is handed out under.
    pub(super) lines: Vec<u32>,
    /// The block of each line that something is handed out under.
    home: Vec<u32>,
    units: u64,
}

impl Plot {
    pub(super) fn new(number: u32, stamp: u32, ledger: Arc<Ledger>) -> Self {
        Self {
            number,
            stamp,
            ledger,
            blocks: Blocks::new(),
            bins: Bins::new(),
            spans: Vec::new(),
            lines: Vec::new(),
            home: Vec::new(),
            units: 0,
        }
    }

    /// Units in all its spans.
    pub(in crate::pool) fn units(&self) -> u64 {
        self.units
    }

    /// Whether two thirds of it or more are not handed out.
    pub(in crate::pool) fn is_idle(&self) -> bool {
        self.bins.units * 3 >= self.units * 2
    }

    /// The placer's block `lent` is the plot's to divide.
    pub(super) fn add_span(&mut self, start: u32, units: u32, lent: u32) {
        let index = self.blocks.add(start, units, NIL, NIL, self.stamp, LARGE, State::Free);
        self.bins.insert(&mut self.blocks, index);
        self.spans.push((index, lent));
        self.units += u64::from(units);
    }

    /// Whether [`Plot::cut`] would give something.
    pub(in crate::pool) fn fits(&self, units: u32) -> bool {
        !self.lines.is_empty() && self.bins.fit(&self.blocks, units.max(MIN_LARGE), 1).is_some()
    }

    /// A piece of `units` units, held.
    #[inline]
    pub(in crate::pool) fn cut(&mut self, units: u32) -> Option<Held> {
        debug_assert!(units >= MIN_LARGE, "a piece is longer than a granule");
        let line = *self.lines.last()?;
        let index = self.bins.fit(&self.blocks, units, 1)?;
        self.lines.pop();
        self.bins.remove(&mut self.blocks, index);
        let Block { start, units: all, next, .. } = self.blocks[index];
        if all > units {
            let rest = self.blocks.add(start + units, all - units, index, next, self.stamp, LARGE, State::Free);
            self.bins.insert(&mut self.blocks, rest);
        }
        let block = &mut self.blocks[index];
        (block.units, block.state, block.a) = (units, State::Live, line);
        if self.home.len() <= line as usize {
            self.home.resize(line as usize + 1, NIL);
        }
        self.home[line as usize] = index;
        self.ledger.begin_block(line, start, units, ledger::word(HELD, WHOLE, start, self.stamp), 0);
        self.ledger.starts().set((start >> GRANULE) as usize, line);
        Some(Held { piece: self.ledger.piece(line), unit: start, block: line, slot: NO_SLOT })
    }

    /// Whether a piece is one of the plot's, as long as somebody holds it or it is live.
    #[inline]
    pub(in crate::pool) fn owns(&self, held: &Held) -> bool {
        held.slot == NO_SLOT && self.home.get(held.block as usize).is_some_and(|index| *index != NIL)
    }

    /// Takes one of its pieces back, which was claimed and freed in the order of its stream.
    #[inline]
    pub(in crate::pool) fn take_back(&mut self, held: &Held) {
        self.free_line(held.block);
    }

    /// [`Plot::take_back`] by the line.
    pub(super) fn free_line(&mut self, line: u32) {
        let Some(mut index) = self.home.get_mut(line as usize).map(|home| std::mem::replace(home, NIL)) else { return };
        debug_assert!(index != NIL && self.blocks[index].a == line, "line {line} is not handed out");
        let piece = self.ledger.piece(line);
        debug_assert_eq!(ledger::state_of(piece.word()), HELD, "line {line}");
        piece.set(ledger::FREE, 0);
        let Block { start, prev, next, .. } = self.blocks[index];
        self.ledger.starts().set((start >> GRANULE) as usize, NIL);
        self.lines.push(line);
        self.blocks[index].state = State::Free;
        if self.blocks[next].state == State::Free {
            self.bins.remove(&mut self.blocks, next);
            self.blocks[index].units += self.blocks[next].units;
            self.blocks.remove(next);
        }
        if self.blocks[prev].state == State::Free {
            self.bins.remove(&mut self.blocks, prev);
            self.blocks[prev].units += self.blocks[index].units;
            self.blocks.remove(index);
            index = prev;
        }
        self.bins.insert(&mut self.blocks, index);
    }

    /// The blocks of a span, by address: first unit, units, and the line where it is handed out.
    pub(super) fn walk(&self, first: u32) -> impl Iterator<Item = (u32, u32, Option<u32>)> + '_ {
        let mut at = first;
        std::iter::from_fn(move || {
            if at == NIL {
                return None;
            }
            let block = &self.blocks[at];
            at = block.next;
            Some((block.start, block.units, (block.state == State::Live).then_some(block.a)))
        })
    }

    /// Checks its invariants.
    ///
    /// # Errors
    /// What does not hold.
    pub(super) fn check(&self) -> Result<(), String> {
        let listed = self.bins.check(&self.blocks)?;
        let (mut free, mut live, mut units) = (0, 0, 0u64);
        for (first, _) in &self.spans {
            let (mut before, mut end) = (NIL, None);
            let mut at = *first;
            while at != NIL {
                let block = &self.blocks[at];
                if block.prev != before || end.is_some_and(|end| end != block.start) {
                    return Err(format!("block {at} of plot {} does not follow {before}", self.number));
                }
                if block.state == State::Free {
                    free += 1;
                    if before != NIL && self.blocks[before].state == State::Free {
                        return Err(format!("free blocks {before} and {at} of plot {} touch", self.number));
                    }
                } else if self.home.get(block.a as usize) == Some(&at) {
                    live += 1;
                } else {
                    return Err(format!("block {at} of plot {} is not at home under line {}", self.number, block.a));
                }
                units += u64::from(block.units);
                (before, end, at) = (at, Some(block.end()), block.next);
            }
        }
        let homes = self.home.iter().filter(|index| **index != NIL).count();
        if (listed.len(), homes, units) != (free, live, self.units) {
            return Err(format!("plot {} counts {} free, {homes} lines, {units} units", self.number, listed.len()));
        }
        Ok(())
    }
}
