//! Free memory that leaves the placer whatever its tags: the pages behind it are about to be mapped elsewhere.
//!
//! ```text
//!   before   |live|free A|free proven   |live|          handles:   [ h1 ][ h2 ][ h3 ][ h4 ]
//!   vacate(h2..h3)
//!   after    |live|fr|S|  gap           |S|e|live|      pieces:    [A][ proven ]   each with its tag and zone
//! ```
//!
//! [`Place::shrink`] takes what is proven for everyone; [`Place::vacate`] takes any free memory and says which tags it
//! had, so that whoever takes it can order itself after them, or put it back as it was.
//!
//! **Cost**: linear in the blocks touched; the first is found through the granule map. [`Place::stretches`] is linear in
//! all blocks. Slow path only.

use super::block::{NIL, State};
use super::{PROVEN, Place, UNIT};

/// One piece of free memory that was taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vacated {
    /// Where it was, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// The tag it had.
    pub tag: u32,
    /// The zone it was in.
    pub zone: u8,
}

impl Place {
    /// The longest stretches, as offset and bytes by address, without a live byte and without a tag that `allowed` refuses.
    pub fn stretches(&self, allowed: impl Fn(u32) -> bool) -> Vec<(u64, u64)> {
        let mut found: Vec<(u64, u64)> = Vec::new();
        for range in &self.ranges {
            let mut open = false;
            let mut index = self.blocks[range.head].next;
            while index != range.tail {
                let block = &self.blocks[index];
                let fits = block.state == State::Free && allowed(block.tag);
                let bytes = u64::from(block.units) * UNIT;
                match found.last_mut() {
                    Some(last) if fits && open => last.1 += bytes,
                    _ if fits => found.push((u64::from(block.start) * UNIT, bytes)),
                    _ => {}
                }
                (open, index) = (fits, block.next);
            }
        }
        found
    }

    /// Bytes of the whole pages of `page` bytes, a power of two, in the free blocks of `tags` in a zone. Linear in the number of
    /// blocks of a page and more.
    pub fn whole_pages(&self, tags: &[u32], zone: u8, page: u64) -> u64 {
        let units = (page / UNIT) as u32;
        let of_block = |index: u32| {
            let block = &self.blocks[index];
            u64::from((block.end() / units).saturating_sub(block.start.div_ceil(units)))
        };
        let bins = tags.iter().filter_map(|tag| self.tag_ref(*tag)).map(|tag| &tag.bins[zone as usize]);
        bins.flat_map(|bins| bins.at_least(&self.blocks, units)).map(of_block).sum::<u64>() * page
    }

    /// Takes `bytes` bytes at `offset` out of the mapped ranges, all of them free with whatever tags; what they were comes
    /// back, by address. Where something live lies among them nothing happens and the answer is empty.
    pub fn vacate(&mut self, offset: u64, bytes: u64) -> Vec<Vacated> {
        let start = (offset / UNIT) as u32;
        let end = start + (bytes / UNIT) as u32;
        let after = self.ranges.partition_point(|r| r.start <= start);
        if after == 0 || start == end || self.ranges[after - 1].end < end {
            return Vec::new();
        }
        let range = self.ranges[after - 1];
        // The nearest live block or run before, else the range's own start.
        let mut first = match self.map.at_or_before(start) {
            Some(index) if self.blocks[index].start >= range.start && self.blocks[index].start <= start => index,
            _ => self.blocks[range.head].next,
        };
        while first != range.tail && self.blocks[first].end() <= start {
            first = self.blocks[first].next;
        }
        let mut index = first;
        while index != range.tail && self.blocks[index].start < end {
            if self.blocks[index].state != State::Free {
                return Vec::new();
            }
            index = self.blocks[index].next;
        }
        first = self.cut(first, start);
        let mut pieces = Vec::new();
        let prev = self.blocks[first].prev;
        let mut index = first;
        while index != range.tail && self.blocks[index].start < end {
            self.cut(index, end);
            let block = self.blocks[index];
            self.remove_free(index);
            pieces.push(Vacated {
                offset: u64::from(block.start) * UNIT,
                bytes: u64::from(block.units) * UNIT,
                tag: block.tag,
                zone: block.zone,
            });
            self.blocks.remove(index);
            index = block.next;
            if block.end() >= end {
                break;
            }
        }
        // `cut` may have made a new block behind the last piece.
        let next = self.blocks[prev].next;
        let zone = pieces.last().map_or(0, |p| p.zone);
        let tail = self.blocks.add(start, 0, prev, NIL, PROVEN, zone, State::Sentinel);
        let head = self.blocks.add(end, 0, NIL, next, PROVEN, zone, State::Sentinel);
        self.split_range(after - 1, (start, tail), (end, head));
        pieces
    }

    /// Cuts a free block in two at `unit`, if that lies inside it; the block that begins there, or the whole one. The two
    /// halves have one tag and touch: one of them must leave at once.
    fn cut(&mut self, index: u32, unit: u32) -> u32 {
        let block = self.blocks[index];
        if unit <= block.start || unit >= block.end() {
            return index;
        }
        self.remove_free(index);
        self.blocks[index].units = unit - block.start;
        self.insert_free(index);
        let rest = self.blocks.add(unit, block.end() - unit, index, block.next, block.tag, block.zone, State::Free);
        self.insert_free(rest);
        rest
    }

    /// Notes that pages which have been used were mapped there: nothing of it counts as never handed out.
    pub fn touch(&mut self, offset: u64, bytes: u64, zone: u8) {
        let (start, end) = ((offset / UNIT) as u32, ((offset + bytes) / UNIT) as u32);
        let touched = &mut self.touched[zone as usize];
        *touched = (touched.0.min(start), touched.1.max(end));
    }
}
