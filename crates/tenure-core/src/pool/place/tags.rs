//! Who may have what is free: tags that change all at once, and the two zones' loans.
//!
//! Relabelling is how a proof arrives ([`PROVEN`]) and how one is asked for (what is freed later must not be covered). All
//! of it is linear in the pieces that carry the tag, or in the blocks, and runs on the slow path only.

use super::bins::Bins;
use super::block::{self, NIL, State};
use super::ranges::Range;
use super::runs::class_units;
use super::{LARGE, PROVEN, Place, SMALL, UNIT};

impl Place {
    /// Lends `bytes` bytes from the high end of the highest free block of `tags` to the small zone. Small pieces then
    /// gather at one end of the range instead of standing in its middle.
    pub fn feed(&mut self, bytes: u64, tags: &[u32]) -> bool {
        let units = (bytes / UNIT) as u32;
        let is_free = |b: &block::Block| b.state == State::Free && b.zone == LARGE;
        // From the highest free block downward; what lies above is the small zone's, and may be many blocks.
        let (mut best, mut highest) = (None, 0);
        'ranges: for range in self.ranges.iter().rev().filter(|range| range.start < self.below[LARGE as usize]) {
            let mut index = self.last_before(range, self.below[LARGE as usize]);
            while index != range.head {
                let block = &self.blocks[index];
                if is_free(block) {
                    highest = highest.max(block.start + 1);
                    if tags.contains(&block.tag) && block.units >= units {
                        best = Some(index);
                        break 'ranges;
                    }
                }
                index = block.prev;
            }
        }
        self.below[LARGE as usize] = highest;
        let Some(index) = best else { return false };
        self.remove_free(index);
        let (tag, end, next) = (self.blocks[index].tag, self.blocks[index].end(), self.blocks[index].next);
        if self.blocks[index].units > units {
            self.blocks[index].units -= units;
            self.insert_free(index);
            let piece = self.blocks.add(end - units, units, index, next, tag, SMALL, State::Run);
            self.release(piece, tag);
        } else {
            self.blocks[index].zone = SMALL;
            self.release(index, tag);
        }
        true
    }

    /// The last block of a range that starts below a unit; its head where there is none.
    fn last_before(&self, range: &Range, unit: u32) -> u32 {
        if range.end <= unit {
            return self.blocks[range.tail].prev;
        }
        // The nearest that is in use, and what is free behind it.
        let mut index = match self.map.at_or_before(unit) {
            Some(index) if self.blocks[index].start >= range.start => index,
            _ => range.head,
        };
        while index != range.head && self.blocks[index].start >= unit {
            index = self.blocks[index].prev;
        }
        while self.blocks[self.blocks[index].next].start < unit {
            index = self.blocks[index].next;
        }
        index
    }

    /// [`Place::drain`], and free memory that the small zone borrowed goes back to the large one where no small piece
    /// stands beside it any more. Linear in the number of blocks.
    pub fn consolidate(&mut self) {
        self.drain();
        for at in 0..self.ranges.len() {
            let range = self.ranges[at];
            if range.start >= self.small_base {
                break;
            }
            let mut index = self.blocks[range.head].next;
            while index != range.tail {
                let block = self.blocks[index];
                index = block.next;
                if block.state != State::Free || block.zone != SMALL {
                    continue;
                }
                let small = |i: u32| {
                    let b = &self.blocks[i];
                    b.zone == SMALL && matches!(b.state, State::Live | State::Run)
                };
                if !small(block.prev) && !small(block.next) {
                    let this = self.blocks[block.next].prev;
                    self.remove_free(this);
                    self.blocks[this].zone = LARGE;
                    let merged = self.release(this, block.tag);
                    index = self.blocks[merged].next;
                }
            }
        }
    }

    /// The part of `start..end` that was never handed out, in units: above what the large zone has used, and below what
    /// the small one has, which borrows from the high end and gives its loans back.
    fn untouched(&self, start: u32, end: u32) -> Option<(u32, u32)> {
        let [(_, large_end), (small_start, small_end)] = self.touched;
        let from = start.max(large_end);
        let to = if from < small_end { end.min(small_start) } else { end };
        (from < to).then_some((from, to))
    }

    /// Free bytes of the large zone that carry `tag` and were never handed out.
    pub fn untouched_bytes(&self, tag: u32) -> u64 {
        let mut units = 0;
        for (offset, bytes) in self.free_blocks(tag) {
            let (start, end) = ((offset / UNIT) as u32, ((offset + bytes) / UNIT) as u32);
            if start < self.small_base {
                units += self.untouched(start, end).map_or(0, |(from, to)| u64::from(to - from));
            }
        }
        units * UNIT
    }

    /// Gives [`PROVEN`] to the part of the large zone's `tag` blocks that was never handed out.
    pub fn prove_untouched(&mut self, tag: u32) {
        for (offset, bytes) in self.free_blocks(tag) {
            let (start, end) = ((offset / UNIT) as u32, ((offset + bytes) / UNIT) as u32);
            let Some((from, to)) = self.untouched(start, end) else { continue };
            let Some(index) = self.free_block_at(start) else { continue };
            if self.blocks[index].zone != LARGE {
                continue;
            }
            self.remove_free(index);
            let mut piece = index;
            if from > start {
                let next = self.blocks[index].next;
                self.blocks[index].units = from - start;
                self.insert_free(index);
                piece = self.blocks.add(from, end - from, index, next, tag, LARGE, State::Run);
            }
            if to < end {
                let next = self.blocks[piece].next;
                self.blocks[piece].units = to - from;
                let rest = self.blocks.add(to, end - to, piece, next, tag, LARGE, State::Free);
                self.insert_free(rest);
            }
            self.release(piece, PROVEN);
        }
    }

    /// Gives what is free with tag `from` the tag `to`: blocks and, with `slots`, the free and pending slots of runs.
    /// Used when a proof arrives (`to` = [`PROVEN`]) and when one is asked for (what is freed later is not covered).
    pub fn relabel(&mut self, from: u32, to: u32, slots: bool) {
        if from == to {
            return;
        }
        while let Some(index) = self.tag_ref(from).and_then(|t| t.bins.iter().find_map(Bins::any)) {
            self.remove_free(index);
            self.release(index, to);
        }
        self.relabel_inboxes(from, to);
        if !slots {
            return;
        }
        for run in 1..self.runs.len() as u32 {
            let entry = &mut self.runs[run as usize];
            if entry.block == NIL {
                continue;
            }
            let units = u64::from(class_units(entry.class as usize));
            let listed = entry.free_count() > 0;
            if entry.tag == from {
                if listed {
                    self.unlist(run);
                }
                let entry = &mut self.runs[run as usize];
                let free = u64::from(entry.free_count()) * units;
                entry.tag = to;
                entry.relabel(to, to);
                self.tag(from).slot_units -= free;
                self.tag(to).slot_units += free;
                if self.runs[run as usize].free_count() > 0 {
                    self.list(run);
                }
            } else {
                let own = entry.tag;
                let count = u64::from(entry.relabel(from, to));
                if count > 0 {
                    let gets = if to == PROVEN { own } else { to };
                    self.tag(from).slot_units -= count * units;
                    self.tag(gets).slot_units += count * units;
                    if !listed && self.runs[run as usize].free_count() > 0 {
                        self.list(run);
                    }
                }
            }
        }
    }
}
