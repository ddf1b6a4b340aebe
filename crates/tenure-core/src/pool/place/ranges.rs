//! Which parts of the range are mapped: they come with growth and go with trimming.
//!
//! ```text
//!   offsets   0 .......... 64 MiB          128 MiB ....... 130 MiB
//!             |S|free|live|free|S|  (gap)  |S|live|free|S|            S: sentinel
//! ```
//!
//! **Invariants**: ranges are sorted, disjoint and never touch (those that would are one); between the sentinels of a
//! range its blocks tile it.
//!
//! **Cost**: linear in the number of ranges, which is the number of chunks or of holes left by trimming. Only growing,
//! trimming and reporting come here.

use super::block::{MAX_SMALL, MIN_LARGE, NIL, State};
use super::{PROVEN, Place, UNIT, class_of, class_units, rounded, slots_for};

/// One mapped range, in units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) head: u32,
    pub(super) tail: u32,
}

impl Place {
    /// True when `unit` lies in a mapped range.
    pub(super) fn is_mapped(&self, unit: u32) -> bool {
        let after = self.ranges.partition_point(|r| r.start <= unit);
        after > 0 && unit < self.ranges[after - 1].end
    }

    /// The mapped ranges: offset and bytes.
    pub fn mapped(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|r| (u64::from(r.start) * UNIT, u64::from(r.end - r.start) * UNIT))
    }

    /// Adds `bytes` bytes at `offset` (multiples of [`UNIT`], not mapped yet) as free memory that carries `tag`.
    pub fn extend(&mut self, offset: u64, bytes: u64, tag: u32, zone: u8) {
        let start = (offset / UNIT) as u32;
        let units = (bytes / UNIT) as u32;
        if units == 0 {
            return;
        }
        let end = start + units;
        let mut at = self.ranges.partition_point(|r| r.start < start);
        self.mapped_units += u64::from(units);
        let index = if at > 0 && self.ranges[at - 1].end == start {
            at -= 1;
            let tail = self.ranges[at].tail;
            let prev = self.blocks[tail].prev;
            let index = self.blocks.add(start, units, prev, tail, tag, zone, State::Run);
            self.blocks[tail].start = end;
            self.ranges[at].end = end;
            index
        } else {
            let head = self.blocks.add(start, 0, NIL, NIL, PROVEN, zone, State::Sentinel);
            let tail = self.blocks.add(end, 0, head, NIL, PROVEN, zone, State::Sentinel);
            self.ranges.insert(at, Range { start, end, head, tail });
            self.blocks.add(start, units, head, tail, tag, zone, State::Run)
        };
        if self.ranges.get(at + 1).is_some_and(|r| r.start == end) {
            let right = self.ranges.remove(at + 1);
            let left = &mut self.ranges[at];
            let (tail, first) = (left.tail, self.blocks[right.head].next);
            left.end = right.end;
            left.tail = right.tail;
            let last = self.blocks[tail].prev;
            self.blocks[last].next = first;
            self.blocks[first].prev = last;
            (self.blocks[tail].prev, self.blocks[tail].next) = (NIL, NIL);
            (self.blocks[right.head].prev, self.blocks[right.head].next) = (NIL, NIL);
            self.blocks.remove(tail);
            self.blocks.remove(right.head);
        }
        self.release(index, tag);
    }

    /// Takes `bytes` bytes at `offset` out of the mapped ranges. They must lie in free blocks that carry [`PROVEN`], in one or,
    /// where zones have borrowed of each other, in several; otherwise nothing happens and the answer is false.
    pub fn shrink(&mut self, offset: u64, bytes: u64) -> bool {
        let start = (offset / UNIT) as u32;
        let end = start + (bytes / UNIT) as u32;
        let after = self.ranges.partition_point(|r| r.start <= start);
        if after == 0 || start == end || self.ranges[after - 1].end < end {
            return false;
        }
        let range = self.ranges[after - 1];
        let mut index = self.blocks[range.head].next;
        while index != range.tail && self.blocks[index].end() <= start {
            index = self.blocks[index].next;
        }
        let block = self.blocks[index];
        if block.state != State::Free || block.tag != PROVEN || block.start > start {
            return false;
        }
        if block.end() < end {
            return self.shrink_several(index, offset, bytes);
        }
        self.remove_free(index);
        let (prev, next, zone) = (block.prev, block.next, block.zone);
        self.blocks.remove(index);
        // Two sentinels where the hole opens, then the pieces that stay.
        let tail = self.blocks.add(start, 0, prev, NIL, PROVEN, zone, State::Sentinel);
        let head = self.blocks.add(end, 0, NIL, next, PROVEN, zone, State::Sentinel);
        if start > block.start {
            let front = self.blocks.add(block.start, start - block.start, prev, tail, PROVEN, zone, State::Free);
            self.insert_free(front);
        }
        if block.end() > end {
            let back = self.blocks.add(end, block.end() - end, head, next, PROVEN, zone, State::Free);
            self.insert_free(back);
        }
        self.split_range(after - 1, (start, tail), (end, head));
        true
    }

    /// [`Place::shrink`] of more than one block, the first of which is `index`.
    #[cold]
    fn shrink_several(&mut self, mut index: u32, offset: u64, bytes: u64) -> bool {
        let end = ((offset + bytes) / UNIT) as u32;
        loop {
            let block = self.blocks[index];
            if block.state != State::Free || block.tag != PROVEN {
                return false;
            }
            if block.end() >= end {
                return !self.vacate(offset, bytes).is_empty();
            }
            index = block.next;
        }
    }

    /// A hole opens in a range: what is before it ends at `start` with the sentinel `tail`, what is behind it begins at `end`
    /// with the sentinel `head`. A part without a unit goes.
    pub(super) fn split_range(&mut self, at: usize, (start, tail): (u32, u32), (end, head): (u32, u32)) {
        self.mapped_units -= u64::from(end - start);
        let range = self.ranges.remove(at);
        let left = Range { start: range.start, end: start, head: range.head, tail };
        let right = Range { start: end, end: range.end, head, tail: range.tail };
        for part in [right, left] {
            if part.start < part.end {
                self.ranges.insert(at, part);
            } else {
                self.blocks.remove(part.head);
                self.blocks.remove(part.tail);
            }
        }
    }

    /// Free bytes that end exactly at `offset` and carry one of `tags`, and that tag.
    pub fn free_before(&self, offset: u64, tags: &[u32], zone: u8) -> Option<(u64, u32)> {
        let unit = (offset / UNIT) as u32;
        let range = self.ranges.iter().find(|r| r.end == unit)?;
        let block = &self.blocks[self.blocks[range.tail].prev];
        (block.state == State::Free && block.zone == zone && tags.contains(&block.tag))
            .then(|| (u64::from(block.units) * UNIT, block.tag))
    }

    /// What a contiguous free range must have to serve a request, in bytes, its start being aligned: a large block's
    /// size, or the shortest run of a small one's class.
    pub fn need(bytes: u64, align: u64) -> u64 {
        let units = bytes.div_ceil(UNIT);
        let align = align / UNIT;
        if units > u64::from(MAX_SMALL) || align > u64::from(MAX_SMALL) {
            return units.max(u64::from(MIN_LARGE)) * UNIT;
        }
        let units = rounded(bytes);
        let class = class_of(if align > 1 { units.next_power_of_two().max(align as u32) } else { units });
        u64::from(slots_for(class, 0) * class_units(class)) * UNIT
    }

    /// The free blocks that carry `tag`, as offset and bytes, by address.
    pub fn free_blocks(&self, tag: u32) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        for range in &self.ranges {
            let mut index = self.blocks[range.head].next;
            while index != range.tail {
                let block = &self.blocks[index];
                if block.state == State::Free && block.tag == tag {
                    found.push((u64::from(block.start) * UNIT, u64::from(block.units) * UNIT));
                }
                index = block.next;
            }
        }
        found
    }

    /// The free block that starts at `unit`.
    pub(super) fn free_block_at(&self, unit: u32) -> Option<u32> {
        let range = self.ranges[..self.ranges.partition_point(|r| r.start <= unit)].last()?;
        let mut index = self.blocks[range.head].next;
        while index != range.tail {
            let block = &self.blocks[index];
            if block.start == unit {
                return (block.state == State::Free).then_some(index);
            }
            index = block.next;
        }
        None
    }

    /// The longest stretch without a live byte, in bytes, whatever its tags: what could be had after a proof of the
    /// whole device.
    pub fn largest_free(&self) -> u64 {
        let mut largest = 0u64;
        for range in &self.ranges {
            let mut sum = 0u64;
            let mut index = self.blocks[range.head].next;
            while index != range.tail {
                let block = &self.blocks[index];
                sum = if block.state == State::Free { sum + u64::from(block.units) } else { 0 };
                largest = largest.max(sum);
                index = block.next;
            }
        }
        largest * UNIT
    }
}
