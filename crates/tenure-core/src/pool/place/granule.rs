//! From an address to the block that starts at or before it, without hashing.
//!
//! ```text
//!  range    |---- granule 0 ----|---- granule 1 ----|---- granule 2 ----|      32 KiB each
//!  blocks      [== block 7 ==================][== run 9 ============]
//!  starts   [7,                  9,                  0]                          u32, 0 = none starts here
//!  set      [1,                  1,                  0]                          one bit a granule, 64-ary tree above
//! ```
//!
//! Everything that is handed out from the range (blocks above 32 KiB, runs of small slots) is longer than one granule,
//! so that at most one of them starts in each. The nearest start at or before an address is found through the tree of
//! bits: one word in nearly every case, one word per level (at most [`LEVELS`]) in the worst.
//!
//! The starts themselves are the [`Ledger`]'s, since a free reads them without the lock.
//!
//! **Invariant**: bit `g` of level 0 is set exactly when `starts[g]` names a block; bit `i` of level `l + 1` is set exactly
//! when word `i` of level `l` is not 0.
//!
//! **Cost**: 4 bytes and 1 bit per 32 KiB of *touched* range: the arrays are zeroed allocations of the full size, which
//! the system backs only where they are written.

use super::block::NIL;
use super::ledger::{GRANULE as SHIFT, Ledger};
use crate::sync::Arc;

/// Levels of the bit tree: 64^6 granules are more than any range has.
const LEVELS: usize = 6;

/// Which block starts where.
pub(super) struct GranuleMap {
    ledger: Arc<Ledger>,
    levels: Vec<Vec<u64>>,
}

impl GranuleMap {
    /// A map over the granules of a ledger.
    pub(super) fn new(ledger: Arc<Ledger>) -> Self {
        let granules = ledger.starts().granules();
        let mut levels = Vec::new();
        let mut bits = granules;
        for _ in 0..LEVELS {
            bits = bits.div_ceil(64);
            levels.push(vec![0u64; bits]);
            if bits == 1 {
                break;
            }
        }
        Self { ledger, levels }
    }

    /// Notes that `block` starts at `unit`.
    #[inline]
    pub(super) fn set(&mut self, unit: u32, block: u32) {
        let granule = (unit >> SHIFT) as usize;
        let before = self.ledger.starts().in_granule(granule);
        // What was a plot's is named there already.
        debug_assert!(before == NIL || before == block, "two starts in one granule");
        self.ledger.starts().set(granule, block);
        let mut index = granule;
        for level in &mut self.levels {
            let word = &mut level[index >> 6];
            let was = *word;
            *word |= 1 << (index & 63);
            if was != 0 {
                break;
            }
            index >>= 6;
        }
    }

    /// Forgets the start at `unit`.
    #[inline]
    pub(super) fn clear(&mut self, unit: u32) {
        let granule = (unit >> SHIFT) as usize;
        debug_assert_ne!(self.ledger.starts().in_granule(granule), NIL, "no start in this granule");
        self.ledger.starts().set(granule, NIL);
        let mut index = granule;
        for level in &mut self.levels {
            let word = &mut level[index >> 6];
            *word &= !(1 << (index & 63));
            if *word != 0 {
                break;
            }
            index >>= 6;
        }
    }

    /// The start in the granule of `unit`, wherever in it, or the nearest one in a granule before.
    #[inline]
    pub(super) fn at_or_before(&self, unit: u32) -> Option<u32> {
        self.find((unit >> SHIFT) as usize)
    }

    /// The nearest start in a granule before that of `unit`.
    #[inline]
    pub(super) fn before(&self, unit: u32) -> Option<u32> {
        self.find(((unit >> SHIFT) as usize).checked_sub(1)?)
    }

    fn find(&self, granule: usize) -> Option<u32> {
        if granule >= self.ledger.starts().granules() {
            return None;
        }
        let mut index = granule;
        let mut inclusive = true;
        for (depth, level) in self.levels.iter().enumerate() {
            let below = if inclusive { u64::MAX >> (63 - (index & 63)) } else { (1u64 << (index & 63)) - 1 };
            let word = level[index >> 6] & below;
            if word != 0 {
                let mut found = (index & !63) + 63 - word.leading_zeros() as usize;
                for lower in self.levels[..depth].iter().rev() {
                    found = (found << 6) + 63 - lower[found].leading_zeros() as usize;
                }
                return Some(self.ledger.starts().in_granule(found));
            }
            index >>= 6;
            inclusive = false;
        }
        None
    }

    /// Every start, for checks.
    pub(super) fn all(&self) -> Vec<u32> {
        // From the top down: the lowest level of a pool over chunks alone has half a million words.
        let mut found: Vec<usize> = self.levels.last().map_or(Vec::new(), |top| (0..top.len()).collect());
        for level in self.levels.iter().rev() {
            let set =
                |word: usize| (0..64).filter(move |bit| level[word] >> bit & 1 == 1).map(move |bit| (word << 6) + bit);
            found = found.into_iter().flat_map(set).collect();
        }
        found.into_iter().map(|granule| self.ledger.starts().in_granule(granule)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Arc, GranuleMap, Ledger};

    #[test]
    fn the_nearest_start_is_found_over_any_distance() {
        let mut map = GranuleMap::new(Arc::new(Ledger::new(1 << 23 | 1)));
        let units = [0u32, 128, 129 * 128 + 7, 70_000 * 128, 5_000_000 * 128 + 127];
        for (i, unit) in units.iter().enumerate() {
            map.set(*unit, i as u32 + 1);
        }
        assert_eq!(map.at_or_before(0), Some(1));
        assert_eq!(map.before(0), None);
        assert_eq!(map.before(128), Some(1));
        assert_eq!(map.at_or_before(128 * 128), Some(2));
        assert_eq!(map.at_or_before(69_999 * 128), Some(3));
        assert_eq!(map.at_or_before(4_999_999 * 128), Some(4));
        assert_eq!(map.at_or_before((1 << 30) - 1), Some(5));
        assert_eq!(map.all(), [1, 2, 3, 4, 5]);
        for unit in units {
            map.clear(unit);
        }
        assert_eq!(map.at_or_before((1 << 30) - 1), None);
        assert_eq!(map.all(), Vec::<u32>::new());
    }
}
