//! Serving small sizes from runs: finding a slot, making a run, taking it apart.
//!
//! See [`super::runs`] for what a run is. What is here moves runs between the lists of their tag and blocks between runs
//! and bins; it is constant but for [`Place::drain`], which looks at every run.

use super::block::{NIL, State};
use super::runs::{Run, class_of, class_units, slots_for};
use super::{PROVEN, Place, UNPROVEN};

impl Place {
    #[inline]
    pub(super) fn allocate_slot(
        &mut self,
        units: u32,
        align: u32,
        tags: &[u32],
        stamp: u32,
        owner: u64,
        zone: u8,
    ) -> Option<u32> {
        let asked = class_units(class_of(units)) as u16;
        // A slot of a power of two at least as large as the alignment, in a run that starts at a multiple of it, is aligned.
        let class = class_of(if align > 1 { units.next_power_of_two().max(align) } else { units });
        let (mut run, mut tag) = (NIL, PROVEN);
        'search: for candidate in tags {
            let Some(Some(entry)) = self.tags.get(*candidate as usize) else { continue };
            let mut index = entry.runs[class];
            for _ in 0..8 {
                if index == NIL {
                    break;
                }
                if align == 1 || self.blocks[self.runs[index as usize].block].start.is_multiple_of(align) {
                    (run, tag) = (index, *candidate);
                    break 'search;
                }
                index = self.runs[index as usize].next;
            }
        }
        if run == NIL {
            (run, tag) = self.new_run(class, align, tags, stamp, zone)?;
        }
        if tag == PROVEN && stamp > UNPROVEN {
            self.unlist(run);
            let entry = &mut self.runs[run as usize];
            let free = u64::from(entry.free_count() * class_units(class));
            entry.tag = stamp;
            // Slots that others left in the new tag's order are its own again.
            let own = u64::from(entry.relabel(stamp, stamp) * class_units(class));
            self.tag(PROVEN).slot_units -= free;
            self.tag(stamp).slot_units += free;
            debug_assert!(own <= self.tag(stamp).slot_units);
            self.list(run);
            tag = stamp;
        }
        let entry = &mut self.runs[run as usize];
        let slot = entry.take(owner, stamp, asked)?;
        let full = entry.free_count() == 0;
        let slot_units = class_units(class);
        let start = self.blocks[entry.block].start + slot * slot_units;
        if full {
            self.unlist(run);
        }
        self.tag(tag).slot_units -= u64::from(slot_units);
        self.tag(stamp).live_slots[class] += 1;
        self.note_live(start, slot_units, stamp, zone);
        Some(start)
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
        self.runs[run as usize].start(block, class, tag, slots);
        let (start, tag) = {
            let entry = &mut self.blocks[block];
            (entry.state, entry.a) = (State::Run, run);
            (entry.start, entry.tag)
        };
        self.map.set(start, block);
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
        let entry = &mut self.runs[run as usize];
        let index = entry.block;
        entry.block = NIL;
        let (units, slots) = (class_units(entry.class as usize), entry.len());
        self.map.clear(self.blocks[index].start);
        let mut index = index;
        let mut slot = 0;
        while slot < slots {
            let tag = self.runs[run as usize].tag_of(slot);
            let mut end = slot + 1;
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
        self.spare_runs.push(run);
    }

    /// Gives back the empty runs that are kept for the next request of their class; true when there was one.
    pub fn drain(&mut self) -> bool {
        let mut any = false;
        for run in 1..self.runs.len() {
            let entry = &self.runs[run];
            if entry.block != NIL && entry.live == 0 {
                self.dissolve(run as u32);
                any = true;
            }
        }
        any
    }
}
