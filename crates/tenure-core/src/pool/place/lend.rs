//! The placer's side of plots: what is lent, what came back by another way, and how it becomes the placer's again.
//!
//! ```text
//!   lend      a free block ----------> in use, `lent` in the chain; a span of the plot       lines: entries without a place
//!   give      a piece of a plot -----> its inbox, with the tag that it was freed with
//!   take_plot pieces and free parts -> blocks between the neighbours of the span; then the inbox, each with its tag
//! ```
//!
//! A span counts as one live block stamped with the plot's stream, and so does each piece in an inbox with its tag: so
//! that neither record is dropped. Pieces of plots are in the ledger but not in the granule map; whoever looks for one by an
//! address inside it goes through the granules of the span.

use std::collections::BTreeMap;

use super::block::{Block, NIL, State};
use super::ledger::{self, LIVE, NO_SLOT};
use super::plot::Plot;
use super::{Entry, LARGE, Place, UNIT};

/// Lines that a plot gets at a time.
const LINES: usize = 64;

/// What is lent.
#[derive(Default)]
pub(super) struct Lent {
    /// What came back to each plot by another way: line and tag. `None` for numbers not in use.
    inboxes: Vec<Option<Vec<(u32, u32)>>>,
    /// End of each span by its first unit.
    spans: BTreeMap<u32, u32>,
}

impl Lent {
    /// The first unit of the span that a unit lies in.
    #[inline]
    pub(super) fn span_of(&self, unit: u32) -> Option<u32> {
        if self.spans.is_empty() {
            return None;
        }
        let (start, end) = self.spans.range(..=unit).next_back()?;
        (unit < *end).then_some(*start)
    }

    /// All that is in inboxes: line and tag.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.inboxes.iter().flatten().flatten().copied()
    }

    /// Number of spans and their units, for checks.
    pub(super) fn totals(&self) -> (usize, u64) {
        (self.spans.len(), self.spans.iter().map(|(start, end)| u64::from(end - start)).sum())
    }
}

impl Place {
    /// A plot without memory for the stream of a tag.
    pub(in crate::pool) fn open_plot(&mut self, stamp: u32) -> Plot {
        let inboxes = &mut self.lent.inboxes;
        let number = inboxes.iter().position(Option::is_none).unwrap_or(inboxes.len());
        if number == inboxes.len() {
            inboxes.push(None);
        }
        inboxes[number] = Some(Vec::new());
        Plot::new(number as u32, stamp, self.ledger.clone())
    }

    /// Lends memory of `tags` to a plot: `wish` units in one piece or, where no free block is so long, the longest that has
    /// `least`. False when there is none.
    pub(in crate::pool) fn lend(&mut self, plot: &mut Plot, least: u32, wish: u32, tags: &[u32]) -> bool {
        let zone = LARGE;
        let longest = |tag: &u32| self.tag_ref(*tag).map_or(0, |t| t.bins[zone as usize].largest(&self.blocks));
        let units = wish.min(tags.iter().map(longest).max().unwrap_or(0));
        if units < least {
            return false;
        }
        let Some(index) = self.carve(units, 1, tags, zone) else { return false };
        let block = &mut self.blocks[index];
        (block.state, block.a, block.tag) = (State::Lent, plot.number, plot.stamp);
        let (start, units) = (block.start, block.units);
        self.note_live(start, units, plot.stamp, zone);
        self.lent.spans.insert(start, start + units);
        plot.add_span(start, units, index);
        true
    }

    /// Lends lines to a plot that has none.
    pub(in crate::pool) fn lend_lines(&mut self, plot: &mut Plot) {
        if !plot.lines.is_empty() {
            return;
        }
        for _ in 0..LINES {
            let line = self.blocks.add(0, 0, NIL, NIL, plot.stamp, LARGE, State::Line);
            self.blocks[line].a = plot.number;
            self.ledger.make_room(line);
            plot.lines.push(line);
        }
    }

    /// A piece of a plot was freed in the order of `tag`, by somebody who does not have the plot.
    pub(super) fn receive(&mut self, line: u32, tag: u32) {
        let number = self.blocks[line].a as usize;
        if let Some(Some(inbox)) = self.lent.inboxes.get_mut(number) {
            inbox.push((line, tag));
            self.tag(tag).live += 1;
        }
    }

    /// Gives a plot what came back to it in its own stream's order; says how many pieces wait for others.
    pub(in crate::pool) fn deliver(&mut self, plot: &mut Plot) -> usize {
        let Some(Some(inbox)) = self.lent.inboxes.get_mut(plot.number as usize) else { return 0 };
        let mut own = 0;
        inbox.retain(|(line, tag)| {
            let others = *tag != plot.stamp;
            if !others {
                plot.free_line(*line);
                own += 1;
            }
            others
        });
        let left = inbox.len();
        self.tag(plot.stamp).live -= own;
        left
    }

    /// A plot is given up: what is free in it gets `tag`, and what waited in its inbox is freed with its own.
    pub(in crate::pool) fn take_plot(&mut self, plot: Plot, tag: u32) {
        debug_assert_eq!(plot.check(), Ok(()));
        for (first, lent) in &plot.spans {
            let Block { start, units, prev, next, .. } = self.blocks[*lent];
            self.note_dead(units, plot.stamp);
            self.lent.spans.remove(&start);
            self.blocks.remove(*lent);
            let (mut before, mut free) = (prev, Vec::new());
            for (start, units, line) in plot.walk(*first) {
                before = match line {
                    Some(line) => {
                        self.blocks.place(line, start, units, before, next, LARGE, State::Live);
                        self.map.set(start, line);
                        self.note_live(start, units, plot.stamp, LARGE);
                        line
                    }
                    None => {
                        // Not free before all of the span is there: nothing may merge across what is missing.
                        let index = self.blocks.add(start, units, before, next, tag, LARGE, State::Run);
                        free.push(index);
                        index
                    }
                };
            }
            for index in free {
                self.release(index, tag);
            }
        }
        for line in &plot.lines {
            self.blocks.remove(*line);
        }
        let inbox = self.lent.inboxes.get_mut(plot.number as usize).and_then(Option::take);
        for (line, tag) in inbox.unwrap_or_default() {
            self.tag(tag).live -= 1;
            self.give(line, NO_SLOT, tag);
        }
    }

    /// The live piece of a plot around `unit`, in the span that begins at `span`.
    #[cold]
    pub(super) fn in_plot(&self, unit: u32, span: u32) -> Option<Entry> {
        let (block, start, units) = self.ledger.start_before(unit, span)?;
        let piece = self.ledger.piece(block);
        let (word, owner) = (piece.word(), piece.owner());
        if ledger::state_of(word) != LIVE || unit - start >= units {
            return None;
        }
        let bytes = u64::from(units) * UNIT;
        let (offset, stamp) = (u64::from(start) * UNIT, ledger::stamp_of(word));
        Some(Entry { block, slot: NO_SLOT, word, offset, bytes, held: bytes, owner, stamp })
    }

    /// What waits in inboxes changes its tag.
    pub(super) fn relabel_inboxes(&mut self, from: u32, to: u32) {
        let mut count = 0;
        for (_, tag) in self.lent.inboxes.iter_mut().flatten().flatten() {
            if *tag == from {
                *tag = to;
                count += 1;
            }
        }
        if count > 0 {
            self.tag(from).live -= count;
            self.tag(to).live += count;
        }
    }
}
