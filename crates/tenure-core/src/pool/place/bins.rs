//! Free blocks by size: two levels, five bits in the second.
//!
//! ```text
//!  first level     one bit per power of two of the size     fl  0000100110000000
//!  second level    32 steps between two powers              sl  [.. 00000000000100000000000010000000 ..]
//!  heads           one list of blocks per step              [.. -> block -> block ..]
//! ```
//!
//! Each tag (see the parent module) has bins of its own, so that what one stream may have is found without looking at
//! what it may not have. Blocks too small to be asked for hang in one list of slivers per tag: they are found when a
//! neighbour frees or when the tag changes, never by a search.
//!
//! **Invariants**: a free block is in exactly one list of its own tag; a bit is set exactly when its list is not empty.
//!
//! **Cost**: insert and remove are constant; a search looks at two words and at most [`WALK`] blocks of a list.

use super::block::{Blocks, MIN_LARGE, NIL};

/// Bits of the second level.
const SECOND: u32 = 5;
/// The power of two of the smallest binned size.
const FIRST: u32 = MIN_LARGE.ilog2();
/// First-level classes: sizes are `u32` units.
const ROWS: usize = (32 - FIRST) as usize;
/// How many blocks of one list a search compares.
const WALK: usize = 8;

/// The free blocks of one tag.
pub(super) struct Bins {
    rows: u32,
    steps: [u32; ROWS],
    heads: [u32; ROWS << SECOND],
    slivers: u32,
    /// Units in all lists.
    pub(super) units: u64,
    /// Blocks in all lists.
    pub(super) count: u32,
}

/// The list that a block of `units` units is in.
#[inline]
fn bin(units: u32) -> (usize, usize) {
    let power = units.ilog2();
    ((power - FIRST) as usize, ((units >> (power - SECOND)) & ((1 << SECOND) - 1)) as usize)
}

impl Bins {
    pub(super) fn new() -> Self {
        Self { rows: 0, steps: [0; ROWS], heads: [NIL; ROWS << SECOND], slivers: NIL, units: 0, count: 0 }
    }

    /// Puts a free block first in its list.
    #[inline]
    pub(super) fn insert(&mut self, blocks: &mut Blocks, index: u32) {
        let units = blocks[index].units;
        let head = if units >= MIN_LARGE {
            let (row, step) = bin(units);
            self.rows |= 1 << row;
            self.steps[row] |= 1 << step;
            &mut self.heads[(row << SECOND) | step]
        } else {
            &mut self.slivers
        };
        let next = std::mem::replace(head, index);
        let block = &mut blocks[index];
        (block.a, block.b) = (NIL, next);
        blocks[next].a = index;
        self.units += u64::from(units);
        self.count += 1;
    }

    /// Takes a free block out of its list.
    #[inline]
    pub(super) fn remove(&mut self, blocks: &mut Blocks, index: u32) {
        let (units, previous, next) = (blocks[index].units, blocks[index].a, blocks[index].b);
        blocks[next].a = previous;
        if previous != NIL {
            blocks[previous].b = next;
        } else if units >= MIN_LARGE {
            let (row, step) = bin(units);
            self.heads[(row << SECOND) | step] = next;
            if next == NIL {
                self.steps[row] &= !(1 << step);
                self.rows &= !(u32::from(self.steps[row] == 0) << row);
            }
        } else {
            self.slivers = next;
        }
        self.units -= u64::from(units);
        self.count -= 1;
    }

    /// The block that fits `units` units at a multiple of `align` units best, as far as [`WALK`] blocks of a list show.
    /// The block at the end of a range is taken only where no other fits: the range then stays as short as it can.
    #[inline]
    pub(super) fn fit(&self, blocks: &Blocks, units: u32, align: u32) -> Option<u32> {
        let mut last = None;
        let (row, step) = bin(units);
        // The list of the size itself holds blocks that are too small as well; every block of a later list is large
        // enough but for the alignment.
        let mut at = if self.steps[row] & (1 << step) != 0 { Some((row, step)) } else { self.next((row, step)) };
        while let Some((row, step)) = at {
            let found = self.walk(blocks, (row << SECOND) | step, units, align, &mut last, WALK);
            if found.is_some() {
                return found;
            }
            at = self.next((row, step));
        }
        last
    }

    /// What [`Bins::fit`] misses: a block in the list of the size itself that stands behind those that it looks at. Only where a
    /// request fails otherwise.
    #[cold]
    pub(super) fn fit_far(&self, blocks: &Blocks, units: u32, align: u32) -> Option<u32> {
        let (row, step) = bin(units);
        let mut last = None;
        self.walk(blocks, (row << SECOND) | step, units, align, &mut last, usize::MAX).or(last)
    }

    /// The next list that is not empty.
    #[inline]
    fn next(&self, (row, step): (usize, usize)) -> Option<(usize, usize)> {
        let steps = self.steps[row] & u32::MAX.checked_shl(step as u32 + 1).unwrap_or(0);
        if steps != 0 {
            return Some((row, steps.trailing_zeros() as usize));
        }
        let rows = self.rows & u32::MAX.checked_shl(row as u32 + 1).unwrap_or(0);
        if rows == 0 {
            return None;
        }
        let row = rows.trailing_zeros() as usize;
        Some((row, self.steps[row].trailing_zeros() as usize))
    }

    /// The smallest block of a list that fits, the lowest among equals; `last` becomes one that ends its range.
    #[inline]
    fn walk(
        &self,
        blocks: &Blocks,
        list: usize,
        units: u32,
        align: u32,
        last: &mut Option<u32>,
        most: usize,
    ) -> Option<u32> {
        let best = self.tightest(blocks, list, units, align, most, |_| true)?;
        if !blocks.ends_range(best) {
            return Some(best);
        }
        last.get_or_insert(best);
        self.tightest(blocks, list, units, align, most, |index| !blocks.ends_range(index))
    }

    /// The smallest block of a list that fits, the lowest among equals. Of the first only `most` blocks are looked at, and of
    /// their neighbours none: each would be a line of memory more.
    #[inline(always)]
    fn tightest(
        &self,
        blocks: &Blocks,
        list: usize,
        units: u32,
        align: u32,
        most: usize,
        may: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let (mut best, mut found) = (u64::MAX, NIL);
        let mut index = self.heads[list];
        for _ in 0..most {
            if index == NIL {
                break;
            }
            let block = &blocks[index];
            let skip = block.start.wrapping_neg() & (align - 1);
            let key = u64::from(block.units) << 32 | u64::from(block.start);
            if u64::from(block.units) >= u64::from(units) + u64::from(skip) && key < best && may(index) {
                (best, found) = (key, index);
            }
            index = block.b;
        }
        (found != NIL).then_some(found)
    }

    /// Some block, or `None` when there is none; for emptying.
    pub(super) fn any(&self) -> Option<u32> {
        if self.slivers != NIL {
            return Some(self.slivers);
        }
        if self.rows == 0 {
            return None;
        }
        let row = self.rows.trailing_zeros() as usize;
        Some(self.heads[(row << SECOND) | self.steps[row].trailing_zeros() as usize])
    }

    /// The blocks of `units` units, a power of two, and more.
    pub(super) fn at_least<'a>(&'a self, blocks: &'a Blocks, units: u32) -> impl Iterator<Item = u32> + 'a {
        let first = bin(units).0 << SECOND;
        let any = self.rows >> bin(units).0 != 0;
        self.heads[first..].iter().take(if any { usize::MAX } else { 0 }).flat_map(|head| {
            std::iter::successors((*head != NIL).then_some(*head), |index| {
                Some(blocks[*index].b).filter(|next| *next != NIL)
            })
        })
    }

    /// Units of the largest block, 0 without one.
    pub(super) fn largest(&self, blocks: &Blocks) -> u32 {
        if self.rows == 0 {
            return 0;
        }
        let row = 31 - self.rows.leading_zeros() as usize;
        let step = 31 - self.steps[row].leading_zeros() as usize;
        let mut largest = 0;
        let mut index = self.heads[(row << SECOND) | step];
        while index != NIL {
            largest = largest.max(blocks[index].units);
            index = blocks[index].b;
        }
        largest
    }

    /// Every block with the size that its list says, or what is wrong.
    pub(super) fn check(&self, blocks: &Blocks) -> Result<Vec<u32>, String> {
        let mut found = Vec::new();
        let mut list = |head: u32, fits: &dyn Fn(u32) -> bool| -> Result<(), String> {
            let (mut index, mut previous) = (head, NIL);
            while index != NIL {
                let block = &blocks[index];
                if block.a != previous || !fits(block.units) {
                    return Err(format!("free block {index} is in a wrong list or linked badly"));
                }
                found.push(index);
                previous = index;
                index = block.b;
            }
            Ok(())
        };
        list(self.slivers, &|units| units < MIN_LARGE)?;
        for row in 0..ROWS {
            if (self.rows >> row & 1 == 1) != (self.steps[row] != 0) {
                return Err(format!("the bit of row {row} is wrong"));
            }
            for step in 0..1 << SECOND {
                let head = self.heads[(row << SECOND) | step];
                if (self.steps[row] >> step & 1 == 1) != (head != NIL) {
                    return Err(format!("the bit of list {row}/{step} is wrong"));
                }
                list(head, &|units| units >= MIN_LARGE && bin(units) == (row, step))?;
            }
        }
        if found.len() != self.count as usize {
            return Err(format!("{} blocks in the lists, {} counted", found.len(), self.count));
        }
        Ok(found)
    }
}
