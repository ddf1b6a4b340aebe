//! The address space at one moment: blocks, and the holes between them.
//!
//! ```text
//!   segment 0   |####|..|######|#|......|###|        # block    . hole
//!   segment 1   |##########|....|
//! ```
//!
//! A *segment* is a stretch of addresses that belongs together. A resource that knows its ranges says what they are;
//! for any other they are guessed: the widest gaps are taken for foreign, until what is left is no longer than what the
//! resource holds, and at most eleven of them. Gaps below 512 bytes are the rounding of sizes and not counted as
//! holes. Where many small blocks of a stream lie close together they are joined, so that a map stays small; where that
//! is not enough, blocks of several streams are joined too and count as [`MIXED`].

use crate::trace::LiveBlock;

/// Gaps below this are rounding.
const ROUNDING: u64 = 512;
/// Segments at most, where they are guessed.
const SEGMENTS: usize = 12;
/// Gaps below this, in bytes, are never taken for foreign: a driver hands out memory in pages of this size.
const CUT: u64 = 2 << 20;
/// Blocks at most.
const BLOCKS: usize = 6000;

/// In place of a stream: joined blocks of several streams.
pub const MIXED: u16 = u16::MAX;

/// A stretch of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its first address.
    pub start: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// A block, or several that were joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its segment, an index into [`Map::segments`].
    pub segment: usize,
    /// Bytes from the start of the segment.
    pub offset: u64,
    /// Its length in bytes, the rounding between joined blocks included.
    pub bytes: u64,
    /// Its stream, an index into the streams of the log, or [`MIXED`].
    pub stream: u16,
    /// Number of blocks that were joined.
    pub count: u32,
}

/// The holes of a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holes {
    /// How many.
    pub count: u64,
    /// Their bytes together.
    pub bytes: u64,
    /// The bytes of the largest.
    pub largest: u64,
}

/// The address space at one moment.
#[derive(Clone, Debug, Default)]
pub struct Map {
    /// The index of the call after which it was so.
    pub event: usize,
    /// The segments, by address.
    pub segments: Vec<Segment>,
    /// The blocks, by address.
    pub blocks: Vec<Block>,
    /// The holes between the blocks, before any were joined.
    pub holes: Holes,
    /// Number of blocks before any were joined.
    pub live_count: u64,
    /// Bytes live, as they were asked for.
    pub live_bytes: u64,
    /// Bytes that the resource held.
    pub reserved_bytes: u64,
    /// True when the resource said what its ranges are.
    pub exact: bool,
}

impl Map {
    /// Draws up the map of `blocks` after the call `event`. `ranges` are the ranges of addresses (start, bytes) with
    /// memory behind them; empty when the resource does not know.
    #[must_use]
    pub fn new(event: usize, mut blocks: Vec<LiveBlock>, mut ranges: Vec<(u64, u64)>, reserved_bytes: u64) -> Self {
        blocks.sort_unstable_by_key(|b| b.ptr);
        ranges.sort_unstable();
        let mut map = Self {
            event,
            live_count: blocks.len() as u64,
            live_bytes: blocks.iter().fold(0, |n, b| n.saturating_add(b.bytes)),
            reserved_bytes,
            exact: covers(&ranges, &blocks),
            ..Self::default()
        };
        map.segments = if map.exact { joined(&ranges) } else { guessed(&blocks, reserved_bytes) };
        map.count_holes(&blocks);
        map.place(&blocks);
        map
    }

    /// The segment that holds `ptr`.
    fn segment_of(&self, ptr: u64) -> usize {
        self.segments.partition_point(|s| s.start <= ptr).saturating_sub(1)
    }

    fn count_holes(&mut self, blocks: &[LiveBlock]) {
        let mut holes = Holes::default();
        let mut hole = |bytes: u64| {
            if bytes >= ROUNDING {
                holes.count += 1;
                holes.bytes += bytes;
                holes.largest = holes.largest.max(bytes);
            }
        };
        let mut rest = blocks;
        for segment in &self.segments {
            let end = segment.start.saturating_add(segment.bytes);
            let here = rest.partition_point(|b| b.ptr < end);
            let mut at = segment.start;
            for block in &rest[..here] {
                hole(block.ptr.saturating_sub(at));
                at = at.max(block.ptr.saturating_add(block.bytes));
            }
            hole(end.saturating_sub(at));
            rest = &rest[here..];
        }
        self.holes = holes;
    }

    fn place(&mut self, blocks: &[LiveBlock]) {
        let span: u64 = self.segments.iter().fold(0, |n, s| n.saturating_add(s.bytes));
        // First nothing is joined; then what a reader could not tell apart anyway; then coarser.
        let mut gap = 0;
        let mut mix = false;
        loop {
            let mut placed: Vec<Block> = Vec::with_capacity(blocks.len().min(BLOCKS));
            for block in blocks {
                let segment = self.segment_of(block.ptr);
                let offset = block.ptr.saturating_sub(self.segments.get(segment).map_or(0, |s| s.start));
                if gap != 0
                    && let Some(last) = placed.last_mut()
                    && last.segment == segment
                    && (mix || last.stream == block.stream)
                    && offset.saturating_sub(last.offset + last.bytes) < gap
                {
                    last.bytes = (offset + block.bytes).saturating_sub(last.offset);
                    last.count += 1;
                    if last.stream != block.stream {
                        last.stream = MIXED;
                    }
                } else {
                    placed.push(Block { segment, offset, bytes: block.bytes, stream: block.stream, count: 1 });
                }
            }
            if placed.len() <= BLOCKS || mix {
                self.blocks = placed;
                return;
            }
            // With gaps of a thousandth closed, and streams mixed, at most some thousand blocks are left.
            let coarsest = span / 1000 + ROUNDING;
            mix = gap >= coarsest;
            gap = if gap == 0 { ROUNDING } else { (gap * 4).min(coarsest) };
        }
    }
}

/// True when there are ranges and every block lies in one.
fn covers(ranges: &[(u64, u64)], blocks: &[LiveBlock]) -> bool {
    !ranges.is_empty()
        && blocks.iter().all(|block| {
            let at = ranges.partition_point(|(start, _)| *start <= block.ptr);
            at > 0 && block.ptr - ranges[at - 1].0 < ranges[at - 1].1
        })
}

/// Ranges that touch become one segment.
fn joined(ranges: &[(u64, u64)]) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for (start, bytes) in ranges {
        match segments.last_mut() {
            Some(last) if last.start.saturating_add(last.bytes) == *start => last.bytes += bytes,
            _ => segments.push(Segment { start: *start, bytes: *bytes }),
        }
    }
    segments
}

/// Segments of blocks whose resource does not know its ranges: cut at the widest gaps until what is left is no longer
/// than what the resource holds.
fn guessed(blocks: &[LiveBlock], reserved_bytes: u64) -> Vec<Segment> {
    let (Some(first), Some(end)) = (blocks.first(), blocks.iter().map(|b| b.ptr.saturating_add(b.bytes)).max()) else {
        return Vec::new();
    };
    // Gaps by width: bytes, and the index of the block behind.
    let mut gaps: Vec<(u64, usize)> = Vec::new();
    let mut at = first.ptr;
    for (n, block) in blocks.iter().enumerate() {
        let gap = block.ptr.saturating_sub(at);
        if gap >= CUT {
            gaps.push((gap, n));
        }
        at = at.max(block.ptr.saturating_add(block.bytes));
    }
    gaps.sort_unstable_by_key(|(gap, n)| (std::cmp::Reverse(*gap), *n));
    let mut span = end - first.ptr;
    let mut cuts = Vec::new();
    for (gap, n) in gaps.into_iter().take(SEGMENTS - 1) {
        if span <= reserved_bytes {
            break;
        }
        span -= gap;
        cuts.push(n);
    }
    cuts.sort_unstable();
    cuts.push(blocks.len());
    let mut from = 0;
    cuts.into_iter()
        .map(|to| {
            let start = blocks[from].ptr;
            let end = blocks[from..to].iter().map(|b| b.ptr.saturating_add(b.bytes)).max().unwrap_or(start);
            from = to;
            Segment { start, bytes: end - start }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(ptr: u64, bytes: u64, stream: u16) -> LiveBlock {
        LiveBlock { ptr, bytes, stream, slot: 0 }
    }

    #[test]
    fn holes_are_the_gaps_that_are_more_than_rounding() {
        let blocks = vec![block(4096, 1000, 0), block(0, 1024, 0), block(5120, 100, 1), block(1024, 100, 0)];
        let map = Map::new(7, blocks, vec![], 1 << 20);
        assert_eq!(map.segments, [Segment { start: 0, bytes: 5220 }]);
        assert_eq!(map.holes, Holes { count: 1, bytes: 4096 - 1124, largest: 4096 - 1124 });
        assert_eq!((map.live_count, map.live_bytes, map.event, map.exact), (4, 2224, 7, false));
        assert_eq!(map.blocks.iter().map(|b| b.offset).collect::<Vec<_>>(), [0, 1024, 4096, 5120]);
    }

    #[test]
    fn ranges_count_the_holes_at_their_ends() {
        let map = Map::new(
            0,
            vec![block(0x1000, 0x1000, 0), block(0x9000, 0x1000, 0)],
            vec![(0x8000, 0x4000), (0, 0x2000), (0x2000, 0x2000)],
            0,
        );
        assert!(map.exact);
        assert_eq!(map.segments, [Segment { start: 0, bytes: 0x4000 }, Segment { start: 0x8000, bytes: 0x4000 }]);
        assert_eq!(map.holes, Holes { count: 4, bytes: 0x1000 + 0x2000 + 0x1000 + 0x2000, largest: 0x2000 });
        assert_eq!(map.blocks[1], Block { segment: 1, offset: 0x1000, bytes: 0x1000, stream: 0, count: 1 });
    }

    #[test]
    fn ranges_that_miss_a_block_are_not_believed() {
        assert!(!Map::new(0, vec![block(0x9000, 1, 0)], vec![(0, 0x1000)], 0).exact);
    }

    #[test]
    fn far_blocks_are_in_segments_of_their_own_and_there_are_never_many() {
        let two = Map::new(0, vec![block(0, 10, 0), block(1 << 40, 10, 0)], vec![], 0);
        assert_eq!(two.segments.len(), 2);
        assert_eq!(two.holes, Holes::default());
        let many: Vec<_> = (0..100).map(|n| block(n << 30, 10, 0)).collect();
        let many = Map::new(0, many, vec![], 0);
        assert_eq!(many.segments.len(), SEGMENTS);
        assert_eq!(many.blocks.len(), 100);
        assert!(many.blocks.iter().all(|b| b.offset + b.bytes <= many.segments[b.segment].bytes));
    }

    #[test]
    fn a_wide_hole_that_the_resource_holds_is_no_border() {
        let blocks = || vec![block(0, 1 << 20, 0), block(1 << 30, 1 << 20, 0)];
        let held = Map::new(0, blocks(), vec![], 2 << 30);
        assert_eq!(held.segments.len(), 1);
        assert_eq!(held.holes.largest, (1 << 30) - (1 << 20));
        let foreign = Map::new(0, blocks(), vec![], 2 << 20);
        assert_eq!((foreign.segments.len(), foreign.holes.count), (2, 0));
    }

    #[test]
    fn many_blocks_are_joined_and_keep_their_number_and_streams() {
        let blocks: Vec<_> = (0..100_000).map(|n| block(n * 512, 300, u16::from(n >= 50_000))).collect();
        let map = Map::new(0, blocks, vec![], 0);
        assert!(map.blocks.len() <= BLOCKS, "{}", map.blocks.len());
        assert_eq!(map.blocks.iter().map(|b| u64::from(b.count)).sum::<u64>(), 100_000);
        assert_eq!(map.blocks.iter().filter(|b| b.stream == 1).map(|b| u64::from(b.count)).sum::<u64>(), 50_000);
        let last = map.blocks.last().unwrap();
        assert_eq!(last.offset + last.bytes, 99_999 * 512 + 300);
    }

    #[test]
    fn streams_that_take_turns_are_mixed_before_a_map_grows() {
        let blocks: Vec<_> = (0..50_000).map(|n| block(n * 4096, 4096, (n % 2) as u16)).collect();
        let map = Map::new(0, blocks, vec![], 0);
        assert!(map.blocks.len() <= BLOCKS, "{}", map.blocks.len());
        assert_eq!(map.blocks[0].stream, MIXED);
        assert_eq!(map.blocks.iter().map(|b| u64::from(b.count)).sum::<u64>(), 50_000);
    }

    #[test]
    fn nothing_live_is_an_empty_map() {
        let map = Map::new(0, vec![], vec![], 0);
        assert!(map.segments.is_empty() && map.blocks.is_empty());
        let ranges = Map::new(0, vec![], vec![(0, 4096)], 4096);
        assert_eq!(ranges.holes, Holes { count: 1, bytes: 4096, largest: 4096 });
    }
}
