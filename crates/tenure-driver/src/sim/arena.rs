//! Free ranges of an address space or of a file: best fit with merging, metadata outside of the memory.
//!
//! Used for the plain allocations of a device, for the chunks of its pools, and for the offsets of its pages. Cost:
//! O(log n) in the number of free ranges.

use std::collections::{BTreeMap, BTreeSet};

/// The free ranges of `[base, base + len)`, in bytes.
pub(super) struct Arena {
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
}

impl Arena {
    pub(super) fn new(base: u64, len: u64) -> Arena {
        let mut arena = Arena { by_start: BTreeMap::new(), by_len: BTreeSet::new() };
        arena.add(base, len);
        arena
    }

    fn add(&mut self, start: u64, len: u64) {
        if len > 0 {
            self.by_start.insert(start, len);
            self.by_len.insert((len, start));
        }
    }

    fn drop_range(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }

    /// Takes `len` bytes at a multiple of `align` (a power of two).
    pub(super) fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        let fits = |&&(have, start): &&(u64, u64)| {
            let lost = start.next_multiple_of(align) - start;
            have >= len.saturating_add(lost)
        };
        let &(have, start) = self.by_len.range((len, 0)..).find(fits)?;
        self.drop_range(start, have);
        let at = start.next_multiple_of(align);
        self.add(start, at - start);
        self.add(at + len, start + have - at - len);
        Some(at)
    }

    /// Gives a range back and merges it with its neighbours.
    pub(super) fn give(&mut self, mut start: u64, mut len: u64) {
        if let Some((&before, &n)) = self.by_start.range(..start).next_back()
            && before + n == start
        {
            self.drop_range(before, n);
            start = before;
            len += n;
        }
        if let Some(&n) = self.by_start.get(&(start + len)) {
            self.drop_range(start + len, n);
            len += n;
        }
        self.add(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_split_align_and_merge_back() {
        let mut a = Arena::new(100, 1000);
        let x = a.take(50, 1).unwrap();
        let y = a.take(64, 64).unwrap();
        assert_eq!(y % 64, 0);
        let z = a.take(1, 1).unwrap();
        assert!(a.take(2000, 1).is_none());
        a.give(y, 64);
        a.give(x, 50);
        a.give(z, 1);
        assert_eq!(a.by_start.len(), 1);
        assert_eq!(a.take(1000, 1), Some(100));
    }
}
