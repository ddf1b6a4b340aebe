//! What is free: taken out of its list and cut to size, and put back joined with what it touches.
//!
//! ```text
//!   carve     | live | free A        | live |   ->   | live | taken | free A | live |
//!   release   | free A | taken | free B |       ->   | free A          | free B |          freed in A's order
//! ```
//!
//! **Cost**: constant. These two are most of what a large block costs, so that each looks its tag up once and touches no line
//! of memory twice: the block, its neighbours, and theirs in the lists.

use super::block::{Block, State};
use super::{Place, SMALL, known};

impl Place {
    /// Takes `units` units at a multiple of `align`, which is a power of two, out of the free blocks of `tags` in `zone`: out of
    /// its list, live as far as anybody sees. The tightest block wins; among equals the tag that comes first, then the lowest address.
    pub(super) fn carve(&mut self, units: u32, align: u32, tags: &[u32], zone: u8) -> Option<u32> {
        let mut best: Option<(u32, u32)> = None;
        for tag in tags {
            let Some(Some(entry)) = self.tags.get(*tag as usize) else { continue };
            let bins = &entry.bins[zone as usize];
            if bins.units < u64::from(units) {
                continue;
            }
            let Some(index) = bins.fit(&self.blocks, units, align) else { continue };
            let size = self.blocks[index].units;
            if best.is_none_or(|(least, _)| size < least) {
                best = Some((size, index));
            }
        }
        let index = match best {
            Some((_, index)) => index,
            None => self.far(units, align, tags, zone)?,
        };
        let Block { start, units: all, prev, next, tag, .. } = self.blocks[index];
        let Self { tags, blocks, below, .. } = self;
        let bins = &mut known(tags, tag).bins[zone as usize];
        bins.remove(blocks, index);
        let end = start + all;
        // What the small zone borrows comes from the high end downward; so do its runs, and what is left of one loan
        // touches the next.
        let downward = zone == SMALL && start < self.small_base;
        let first = if downward { (end - units) & !(align - 1) } else { (start + (align - 1)) & !(align - 1) };
        if first > start {
            // The front goes back; its neighbour before is live or has another tag, so it merges with nothing.
            let front = blocks.add(start, first - start, prev, index, tag, zone, State::Free);
            bins.insert(blocks, front);
        }
        if end > first + units {
            let back = blocks.add(first + units, end - first - units, index, next, tag, zone, State::Free);
            bins.insert(blocks, back);
            let below = &mut below[zone as usize];
            *below = (*below).max(first + units + 1);
        }
        let block = &mut blocks[index];
        (block.start, block.units, block.state) = (first, units, State::Live);
        Some(index)
    }

    /// What a search of the first blocks of each list misses.
    #[cold]
    fn far(&self, units: u32, align: u32, tags: &[u32], zone: u8) -> Option<u32> {
        let bins = |tag: &u32| self.tag_ref(*tag).map(|entry| &entry.bins[zone as usize]);
        tags.iter().filter_map(bins).find_map(|bins| bins.fit_far(&self.blocks, units, align))
    }

    /// Puts a free block into its list.
    pub(super) fn insert_free(&mut self, index: u32) {
        let Block { start, tag, zone, .. } = self.blocks[index];
        known(&mut self.tags, tag).bins[zone as usize].insert(&mut self.blocks, index);
        let below = &mut self.below[zone as usize];
        *below = (*below).max(start + 1);
    }

    /// Takes a free block out of its list.
    pub(super) fn remove_free(&mut self, index: u32) {
        let Block { tag, zone, .. } = self.blocks[index];
        known(&mut self.tags, tag).bins[zone as usize].remove(&mut self.blocks, index);
    }

    /// Makes a block free with `tag`, merged with its neighbours of the same tag.
    pub(super) fn release(&mut self, mut index: u32, tag: u32) -> u32 {
        let Self { tags, blocks, below, .. } = self;
        let Block { start, mut units, prev, next, zone, .. } = blocks[index];
        let below = &mut below[zone as usize];
        *below = (*below).max(start + 1);
        let bins = &mut known(tags, tag).bins[zone as usize];
        let merges = |b: &Block| b.state == State::Free && b.tag == tag && b.zone == zone;
        if merges(&blocks[next]) {
            bins.remove(blocks, next);
            units += blocks[next].units;
            blocks.remove(next);
        }
        if merges(&blocks[prev]) {
            bins.remove(blocks, prev);
            units += blocks[prev].units;
            blocks.remove(index);
            index = prev;
        }
        let block = &mut blocks[index];
        (block.units, block.state, block.tag) = (units, State::Free, tag);
        bins.insert(blocks, index);
        index
    }
}
