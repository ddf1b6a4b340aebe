//! Serving small sizes from runs: finding a slot, making a run, taking it apart.
//!
//! See [`super::runs`] for what a run is. What is here moves runs between the lists of their tag and blocks between runs
//! and bins; it is constant but for [`Place::drain`], which is linear in the runs that were emptied since.

use super::block::{NIL, State};
use super::ledger::{self, HELD, LIVE};
use super::runs::{Run, class_of, class_units, slots_for};
use super::{Held, PROVEN, Place, UNPROVEN};

impl Place {
    /// A slot for `units` units, held, and the word that hands it out.
    #[inline]
    pub(super) fn allocate_slot(
        &mut self,
        units: u32,
        align: u32,
        tags: &[u32],
        stamp: u32,
        zone: u8,
    ) -> Option<(Held, u64)> {
        let asked = class_of(units);
        // A slot of a power of two at least as large as the alignment, in a run that starts at a multiple of it, is aligned.
        let class = class_of(if align > 1 { units.next_power_of_two().max(align) } else { units });
        let (mut run, mut tag) = self.run_with_room(class, align, tags);
        if run == NIL {
            (run, tag) = self.new_run(class, align, tags, stamp, zone)?;
        }
        if tag == PROVEN && stamp > UNPROVEN {
            self.adopt(run, stamp);
            tag = stamp;
        }
        let held = self.slot_of(run, tag, stamp, asked, zone)?;
        Some((held, ledger::word(LIVE, asked, held.unit, stamp)))
    }

    /// Takes up to `count` slots of a class for a cache of `stamp`, out of runs that are there, and gives each to `keep`;
    /// says how many.
    pub(in crate::pool) fn hold(
        &mut self,
        class: usize,
        count: u32,
        tags: &[u32],
        stamp: u32,
        mut keep: impl FnMut(Held),
    ) -> u32 {
        for taken in 0..count {
            let (run, mut tag) = self.run_with_room(class, 1, tags);
            if run == NIL {
                return taken;
            }
            if tag == PROVEN && stamp > UNPROVEN {
                self.adopt(run, stamp);
                tag = stamp;
            }
            let zone = self.blocks[self.runs[run as usize].block].zone;
            let Some(held) = self.slot_of(run, tag, stamp, class, zone) else { return taken };
            keep(held);
        }
        count
    }

    /// A run of a class with a free slot that one of `tags` may have, and that tag.
    #[inline]
    fn run_with_room(&self, class: usize, align: u32, tags: &[u32]) -> (u32, u32) {
        for candidate in tags {
            let Some(Some(entry)) = self.tags.get(*candidate as usize) else { continue };
            let mut index = entry.runs[class];
            for _ in 0..8 {
                if index == NIL {
                    break;
                }
                if align == 1 || self.blocks[self.runs[index as usize].block].start.is_multiple_of(align) {
                    return (index, *candidate);
                }
                index = self.runs[index as usize].next;
            }
        }
        (NIL, PROVEN)
    }

    /// A proven run becomes one of `stamp`.
    fn adopt(&mut self, run: u32, stamp: u32) {
        self.unlist(run);
        let entry = &mut self.runs[run as usize];
        let units = class_units(entry.class as usize);
        let free = u64::from(entry.free_count() * units);
        entry.tag = stamp;
        // Slots that others left in the new tag's order are its own again.
        let own = u64::from(entry.relabel(stamp, stamp) * units);
        self.tag(PROVEN).slot_units -= free;
        self.tag(stamp).slot_units += free;
        debug_assert!(own <= self.tag(stamp).slot_units);
        self.list(run);
    }

    /// Takes a slot out of a run of `tag` that has one: held, with the class that was asked for.
    #[inline]
    fn slot_of(&mut self, run: u32, tag: u32, stamp: u32, asked: usize, zone: u8) -> Option<Held> {
        let entry = &mut self.runs[run as usize];
        self.idle_runs -= usize::from(entry.live == 0);
        let slot = entry.take()?;
        let full = entry.free_count() == 0;
        let (block, class) = (entry.block, entry.class as usize);
        let units = class_units(class);
        let start = self.blocks[block].start + slot * units;
        let piece = self.runs[run as usize].piece(slot);
        piece.set(ledger::word(HELD, asked, start, stamp), 0);
        let held = Held { piece, unit: start, block, slot };
        if full {
            self.unlist(run);
        }
        self.tag(tag).slot_units -= u64::from(units);
        self.tag(stamp).live_slots[class] += 1;
        self.note_live(start, units, stamp, zone);
        Some(held)
    }

    /// Cuts a new run from the free blocks of `tags`.
    pub(super) fn new_run(
        &mut self,
        class: usize,
        align: u32,
        tags: &[u32],
        stamp: u32,
        zone: u8,
    ) -> Option<(u32, u32)> {
        let units = class_units(class);
        let mut slots = slots_for(class, self.tag(stamp).live_slots[class]);
        let block = loop {
            match self.carve(slots * units, align, tags, zone) {
                Some(block) => break block,
                // A long run is a wish, not a need.
                None if slots > slots_for(class, 0) => slots = (slots / 2).max(slots_for(class, 0)),
                None => return None,
            }
        };
        let tag = self.blocks[block].tag;
        let run = self.spare_runs.pop().unwrap_or_else(|| {
            self.runs.push(Run::spare());
            self.runs.len() as u32 - 1
        });
        let pieces = self.store.take(slots);
        self.runs[run as usize].start(block, class, tag, slots, pieces);
        self.idle_runs += 1;
        let (start, tag) = {
            let entry = &mut self.blocks[block];
            (entry.state, entry.a) = (State::Run, run);
            (entry.start, entry.tag)
        };
        self.ledger.make_room(block);
        self.ledger.set_slots(block, start, slots * units, class, Some(pieces));
        self.map.set(start, block);
        self.ledger.starts().set_run(start, slots * units, block);
        self.tag(tag).slot_units += u64::from(slots * units);
        self.list(run);
        Some((run, tag))
    }

    /// First in the list of its tag and class.
    pub(super) fn list(&mut self, run: u32) {
        let Run { tag, class, .. } = self.runs[run as usize];
        let head = std::mem::replace(&mut self.tag(tag).runs[class as usize], run);
        let entry = &mut self.runs[run as usize];
        (entry.prev, entry.next) = (NIL, head);
        if head != NIL {
            self.runs[head as usize].prev = run;
        }
    }

    /// Out of the list of its tag and class.
    pub(super) fn unlist(&mut self, run: u32) {
        let Run { tag, class, prev, next, .. } = self.runs[run as usize];
        if next != NIL {
            self.runs[next as usize].prev = prev;
        }
        if prev != NIL {
            self.runs[prev as usize].next = next;
        } else {
            debug_assert_eq!(self.tag(tag).runs[class as usize], run);
            self.tag(tag).runs[class as usize] = next;
        }
        let entry = &mut self.runs[run as usize];
        (entry.prev, entry.next) = (NIL, NIL);
    }

    /// Gives the block of a run without live slots back to the bins, in pieces of equal tags.
    pub(super) fn dissolve(&mut self, run: u32) {
        if self.runs[run as usize].free_count() > 0 {
            self.unlist(run);
        }
        let entry = &self.runs[run as usize];
        let index = entry.block;
        let (class, slots) = (entry.class as usize, entry.len());
        let (units, start) = (class_units(class), self.blocks[index].start);
        self.map.clear(start);
        self.ledger.starts().clear_run(start, slots * units, index);
        self.ledger.set_slots(index, start, slots * units, class, None);
        let mut index = index;
        let mut slot = 0;
        while slot < slots {
            let tag = self.runs[run as usize].tag_of(slot);
            // Nothing waits in most of them: then all slots have one tag.
            let mut end = if self.runs[run as usize].pending == 0 { slots } else { slot + 1 };
            while end < slots && self.runs[run as usize].tag_of(end) == tag {
                end += 1;
            }
            self.tag(tag).slot_units -= u64::from((end - slot) * units);
            let (start, next, zone) = (self.blocks[index].start, self.blocks[index].next, self.blocks[index].zone);
            let length = (end - slot) * units;
            let rest = if end < slots {
                let left = self.blocks[index].units - length;
                self.blocks[index].units = length;
                // Not free yet, so that the piece before does not merge with it.
                self.blocks.add(start + length, left, index, next, tag, zone, State::Run)
            } else {
                NIL
            };
            self.release(index, tag);
            index = rest;
            slot = end;
        }
        self.idle_runs -= 1;
        let pieces = self.runs[run as usize].end();
        self.store.give(pieces);
        self.spare_runs.push(run);
    }

    /// A run without a live slot is kept: [`Place::drain`] will want it.
    #[inline]
    pub(super) fn note_idle(&mut self, run: u32) {
        if !std::mem::replace(&mut self.runs[run as usize].noted, true) {
            self.maybe_idle.push(run);
        }
    }

    /// Gives back the empty runs that are kept for the next request of their class; true when there was one.
    pub fn drain(&mut self) -> bool {
        let any = self.idle_runs > 0;
        if any {
            let mut noted = std::mem::take(&mut self.maybe_idle);
            noted.sort_unstable();
            for run in noted.drain(..) {
                let entry = &mut self.runs[run as usize];
                entry.noted = false;
                if entry.block != NIL && entry.live == 0 {
                    self.dissolve(run);
                }
            }
            self.maybe_idle = noted;
        }
        any
    }
}
