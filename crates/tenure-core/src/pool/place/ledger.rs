//! What a free is checked against, readable without the pool's lock.
//!
//! ```text
//!   address --> granule --> block's line --> the piece, or the run's pieces      3 loads, 4 for a small size
//!
//!   word     state (2 bits) | class (6) | low 24 bits of its unit | stamp (32)
//!   owner    the resource that was asked
//!   span     first unit | number of units                                         (blocks only)
//!   slots    where the pieces of a run are, or of the last run that the block was (blocks only)
//! ```
//!
//! A *piece* is whatever can be handed out: a block or a slot. Its word says all that a free must know, so that one
//! compare-exchange both checks the free and claims the piece: of two threads that free one piece, one succeeds.
//!
//! ```text
//!            allocate                 free, by its thread's cache
//!   FREE ---------------> LIVE ----------------------------------> HELD     (no lock)
//!     ^                    ^                                        |  |
//!     |                    +--------- allocate from the cache ------+  |
//!     +----------------------------- given back (the pool's lock) ----+
//! ```
//!
//! **Invariants**
//! * Only LIVE becomes HELD without the pool's lock, and only through the compare-exchange. HELD belongs to whoever made it
//!   so. All other changes are made under the lock or by that holder.
//! * Lines and pieces never move and are never given back while the placer lives: a wrong free may look at what has become
//!   something else, but not at what is gone. The unit in the word tells it that.
//!
//! **Cost**: 32 bytes a block, 16 a slot.
//!
//! Unsafe in this file: the arrays that never move are raw memory that [`Ledger`] and [`SlotStore`] own; a line of zeros is
//! one that says nothing.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::block::NIL;
use super::nobody;
pub(in crate::pool) use super::piece::*;
use super::runs::{CLASSES, MAX_SLOTS, class_units, slot_at};
pub(super) use super::starts::{GRANULE, Starts};

const _: () = assert!(CLASSES < WHOLE && MAX_SLOTS.ilog2() <= 8 && align_of::<Piece>() == 8);

/// What is known of one block, for those who hold no lock.
#[repr(C)]
struct Line {
    word: AtomicU64,
    owner: AtomicU64,
    span: AtomicU64,
    /// Nothing but an array of the store is ever here: whoever reads it late reads pieces.
    slots: AtomicU64,
}

/// The first segment of lines has so many; each one after has twice as many.
const FIRST_SEGMENT: usize = 256;
const SEGMENTS: usize = 24;

/// Which segment, and where in it.
#[inline]
fn segment(index: u32) -> (usize, usize) {
    let n = index as usize / FIRST_SEGMENT + 1;
    let k = n.ilog2() as usize;
    (k, index as usize - ((1 << k) - 1) * FIRST_SEGMENT)
}

/// Where a piece is, found without the lock.
#[derive(Clone, Copy)]
pub(in crate::pool) struct Found<'a> {
    pub(in crate::pool) piece: &'a Piece,
    pub(in crate::pool) block: u32,
    /// Of a block that is handed out whole: [`u32::MAX`].
    pub(in crate::pool) slot: u32,
    /// Units of the piece.
    pub(in crate::pool) units: u32,
    /// By what it was found.
    pub(in crate::pool) mark: Mark,
}

/// All by which a piece was found, so that it is found again with a look at one line: as long as that says the same, a search
/// ends at the same piece.
#[derive(Clone, Copy)]
pub(in crate::pool) struct Mark {
    line: *const Line,
    word: u64,
    span: u64,
    slots: u64,
}

// SAFETY: the line is atomics, in an array that lives as long as the ledger does.
unsafe impl Send for Mark {}

impl Mark {
    /// Whether the line still says so. What it says may change at any time, as with [`Ledger::find`].
    ///
    /// # Safety
    /// The ledger is alive.
    #[inline(always)]
    pub(in crate::pool) unsafe fn stands(&self) -> bool {
        // SAFETY: lines live as long as their ledger.
        let line = unsafe { &*self.line };
        line.word.load(Ordering::Acquire) == self.word
            && line.span.load(Ordering::Relaxed) == self.span
            && line.slots.load(Ordering::Acquire) == self.slots
            && line.word.load(Ordering::Relaxed) == self.word
    }
}

/// The slot number of a whole block.
pub(in crate::pool) const NO_SLOT: u32 = u32::MAX;

/// See the module.
pub(in crate::pool) struct Ledger {
    starts: Starts,
    segments: [AtomicPtr<Line>; SEGMENTS],
}

// A line begins with what a piece is, so that a whole block's line is looked at as one.
const _: () = assert!(size_of::<Line>() == 32 && size_of::<Piece>() == 16);

impl Ledger {
    /// For `granules` granules, nothing of it in use.
    pub(super) fn new(granules: usize) -> Self {
        Self { starts: Starts::new(zeroed(granules)), segments: std::array::from_fn(|_| AtomicPtr::default()) }
    }

    // -------------------------------------------------------------------------------------------- where blocks start

    /// Which block starts in which granule.
    pub(super) fn starts(&self) -> &Starts {
        &self.starts
    }

    /// The piece of a plot that starts nearest at or before `unit`, and not before `from`: its block, first unit and units.
    pub(super) fn start_before(&self, unit: u32, from: u32) -> Option<(u32, u32, u32)> {
        for granule in (from >> GRANULE..=unit >> GRANULE).rev() {
            let index = self.starts.in_granule(granule as usize);
            if index == NIL {
                continue;
            }
            let span = self.line(index)?.span.load(Ordering::Relaxed);
            let (start, units) = ((span >> 32) as u32, span as u32);
            if start <= unit {
                return (start >= from).then_some((index, start, units));
            }
        }
        None
    }

    // -------------------------------------------------------------------------------------------------------- lines

    #[inline(always)]
    fn line(&self, index: u32) -> Option<&Line> {
        let (segment, at) = segment(index);
        let base = self.segments.get(segment)?.load(Ordering::Acquire);
        // SAFETY: a segment that is there has room for every index that `segment` sends to it, and is never given back
        // before the ledger is.
        (!base.is_null()).then(|| unsafe { &*base.add(at) })
    }

    /// Makes room for the line of a block. Under the pool's lock.
    #[cold]
    pub(super) fn make_room(&self, index: u32) {
        let (segment, _) = segment(index);
        let Some(place) = self.segments.get(segment) else { return };
        if place.load(Ordering::Relaxed).is_null() {
            place.store(zeroed_lines(FIRST_SEGMENT << segment), Ordering::Release);
        }
    }

    /// The piece of a whole block.
    #[inline]
    pub(super) fn piece(&self, index: u32) -> &Piece {
        let Some(line) = self.line(index) else { return nobody() };
        // SAFETY: a line begins with a word and an owner, which is what a piece is; both have the alignment of their words.
        unsafe { &*(&raw const *line).cast::<Piece>() }
    }

    /// A block that is handed out whole begins to be so.
    #[inline]
    pub(super) fn begin_block(&self, index: u32, start: u32, units: u32, word: u64, owner: u64) {
        let Some(line) = self.line(index) else { return };
        line.span.store(u64::from(start) << 32 | u64::from(units), Ordering::Relaxed);
        line.owner.store(owner, Ordering::Relaxed);
        line.word.store(word, Ordering::Release);
    }

    /// [`Ledger::begin_block`] of a block whose line may be the first of its segment. Under the pool's lock.
    #[inline]
    pub(super) fn begin_any(&self, index: u32, start: u32, units: u32, word: u64, owner: u64) {
        if self.line(index).is_none() {
            self.make_room(index);
        }
        self.begin_block(index, start, units, word, owner);
    }

    /// A block becomes a run with these slots, or stops being one (`slots` is `None`).
    pub(super) fn set_slots(&self, index: u32, start: u32, units: u32, class: usize, slots: Option<Slots>) {
        let Some(line) = self.line(index) else { return };
        let Some(slots) = slots else {
            line.word.store(FREE, Ordering::Release);
            return;
        };
        line.word.store(FREE, Ordering::Release);
        line.span.store(u64::from(start) << 32 | u64::from(units), Ordering::Relaxed);
        line.slots.store(slots.packed(), Ordering::Relaxed);
        line.word.store(word(RUN, class, start, 0), Ordering::Release);
    }

    // ------------------------------------------------------------------------------------------------- without a lock

    /// The piece that starts at `unit`, if one does. What it says may change at any time, unless the caller holds it.
    #[inline(always)]
    pub(in crate::pool) fn find(&self, unit: u32) -> Option<Found<'_>> {
        let granule = (unit >> GRANULE) as usize;
        let here = self.starts.reaches(granule)?;
        if here != NIL
            && let Some(found) = self.piece_in(here, unit)
        {
            return Some(found);
        }
        let before = self.starts.reaches(granule.checked_sub(1)?)?;
        if before == NIL || before == here { None } else { self.piece_in(before, unit) }
    }

    /// The piece of block `index` that starts at `unit`.
    #[inline(always)]
    fn piece_in(&self, index: u32, unit: u32) -> Option<Found<'_>> {
        let line = self.line(index)?;
        let word = line.word.load(Ordering::Acquire);
        let span = line.span.load(Ordering::Relaxed);
        let (start, units) = ((span >> 32) as u32, span as u32);
        let inside = unit.checked_sub(start).filter(|inside| *inside < units)?;
        let mark = |slots| Mark { line, word, span, slots };
        if state_of(word) != RUN {
            let mark = mark(line.slots.load(Ordering::Relaxed));
            return (inside == 0).then(|| Found { piece: self.piece(index), block: index, slot: NO_SLOT, units, mark });
        }
        let class = class_in(word);
        let slot = slot_at(inside, class)?;
        let packed = line.slots.load(Ordering::Acquire);
        let slots = Slots::unpack(packed);
        // The block may have become something else between these looks, unless a piece of it is the caller's.
        if line.word.load(Ordering::Relaxed) != word {
            return None;
        }
        let piece = slots.get(slot)?;
        Some(Found { piece, block: index, slot, units: class_units(class), mark: mark(packed) })
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        for (k, segment) in self.segments.iter().enumerate() {
            let base = segment.load(Ordering::Relaxed);
            if !base.is_null() {
                // SAFETY: made by `make_room` for this many lines, in the layout of a box of them, and given back once.
                drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(base, FIRST_SEGMENT << k)) });
            }
        }
    }
}

/// An array of zeros that the system backs only where it is written.
fn zeroed(length: usize) -> Box<[AtomicU32]> {
    let mut zeros = std::mem::ManuallyDrop::new(vec![0u32; length].into_boxed_slice());
    // SAFETY: an atomic has the size and the alignment of its integer, and the box is not used any more as what it was.
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(zeros.as_mut_ptr().cast::<AtomicU32>(), length)) }
}

/// Lines of zeros, likewise: a segment is as long as all before it, so that half of it may never be used.
fn zeroed_lines(count: usize) -> *mut Line {
    const WORDS: usize = size_of::<Line>() / size_of::<u64>();
    const _: () = assert!(align_of::<Line>() == align_of::<u64>());
    std::mem::ManuallyDrop::new(vec![0u64; count * WORDS].into_boxed_slice()).as_mut_ptr().cast()
}

// ------------------------------------------------------------------------------------------------------------- slots

/// Pieces on one cache line.
const PER_LINE: u32 = 4;

/// The pieces of a run: memory of the [`SlotStore`].
#[derive(Clone, Copy)]
pub(super) struct Slots {
    base: *const Piece,
    /// Log 2 of the number of pieces: 1 to 8, since a run has two slots at least.
    power: u32,
}

impl Slots {
    const NONE: Self = Self { base: std::ptr::null(), power: 1 };

    pub(super) fn none() -> Self {
        Self::NONE
    }

    /// Pieces are aligned to 8: the power fits below.
    fn packed(self) -> u64 {
        self.base as usize as u64 | u64::from(self.power - 1)
    }

    fn unpack(packed: u64) -> Self {
        Self { base: (packed & !7) as usize as *const Piece, power: (packed & 7) as u32 + 1 }
    }

    /// The piece of a slot. Neighbouring slots are on different cache lines, since neighbours are often different threads'.
    #[inline]
    pub(super) fn get<'a>(self, slot: u32) -> Option<&'a Piece> {
        let lines = (1u32 << self.power) / PER_LINE;
        let at = if lines < 2 { slot } else { (slot & (lines - 1)) * PER_LINE + slot / lines };
        // SAFETY: not null means an array of 2^power pieces of the store, which gives none back while the placer lives; the
        // placer outlives every reference, since they are made by its callers.
        (!self.base.is_null() && slot < 1 << self.power).then(|| unsafe { &*self.base.add(at as usize) })
    }
}

// SAFETY: what it points to is atomics.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

/// All arrays of pieces: those that are in use by runs, and by size those that are not.
pub(super) struct SlotStore {
    spare: [Vec<Slots>; MAX_SLOTS.ilog2() as usize + 1],
    all: Mutex<Vec<Box<[Piece]>>>,
}

impl SlotStore {
    pub(super) fn new() -> Self {
        Self { spare: Default::default(), all: Mutex::default() }
    }

    /// An array of at least `slots` pieces.
    pub(super) fn take(&mut self, slots: u32) -> Slots {
        let power = slots.next_power_of_two().ilog2().clamp(1, MAX_SLOTS.ilog2());
        if let Some(slots) = self.spare[power as usize].pop() {
            return slots;
        }
        let pieces: Box<[Piece]> = (0..1u32 << power).map(|_| Piece::default()).collect();
        let slots = Slots { base: pieces.as_ptr(), power };
        self.all.get_mut().push(pieces);
        slots
    }

    /// It may serve another run.
    pub(super) fn give(&mut self, slots: Slots) {
        if !slots.base.is_null() {
            self.spare[slots.power as usize].push(slots);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_a_line_of_its_own() {
        let mut next = (0, 0);
        for index in 0..100_000u32 {
            let at = segment(index);
            if at != next {
                next = (next.0 + 1, 0);
                assert_eq!(at, next, "index {index}");
            }
            assert!(at.1 < FIRST_SEGMENT << at.0);
            next.1 += 1;
        }
        let (last, at) = segment(u32::MAX >> 1);
        assert!(last < SEGMENTS && at < FIRST_SEGMENT << last);
    }

    #[test]
    fn every_slot_has_a_piece_of_its_own_and_neighbours_do_not_share_a_line() {
        let mut store = SlotStore::new();
        for count in [2, 3, 4, 5, 16, 100, 256] {
            let slots = store.take(count);
            let all: Vec<usize> = (0..count).map(|slot| &raw const *slots.get(slot).unwrap() as usize).collect();
            let mut sorted = all.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), count as usize);
            assert!(count < 16 || all.windows(2).all(|pair| pair[0].abs_diff(pair[1]) >= 64));
            assert!(slots.get(count.next_power_of_two()).is_none());
        }
    }

    #[test]
    fn a_mark_stands_as_long_as_a_search_ends_at_the_same_piece() {
        // Of two places 2^24 units apart the words of the pieces are the same.
        const FAR: u32 = 1 << 24;
        let (mut store, ledger) = (SlotStore::new(), Ledger::new((FAR as usize >> GRANULE) + 4));
        ledger.make_room(1);
        let begin = |start: u32, class, slots| {
            ledger.starts().set(start as usize >> GRANULE, 1);
            ledger.set_slots(1, start, 128, class, Some(slots));
        };
        let slots = store.take(128);
        begin(0, 0, slots);
        let mark = ledger.find(5).unwrap().mark;
        // SAFETY: the ledger is alive.
        let stands = || unsafe { mark.stands() };
        assert!(stands());
        ledger.set_slots(1, 0, 128, 0, None);
        assert!(!stands(), "the run is gone");
        begin(FAR, 0, slots);
        assert!(!stands(), "its pieces are elsewhere");
        begin(0, 1, slots);
        assert!(!stands(), "they have another size");
        begin(0, 0, store.take(128));
        assert!(!stands(), "they are others");
        begin(0, 0, slots);
        assert!(stands());
        ledger.begin_block(1, 256, 200, word(LIVE, WHOLE, 256, 4), 9);
        ledger.starts().set(2, 1);
        assert!(!stands(), "a block is there");
        let whole = ledger.find(256).unwrap().mark;
        ledger.begin_block(1, 256 + FAR, 200, word(LIVE, WHOLE, 256, 4), 9);
        // SAFETY: the ledger is alive.
        assert!(!unsafe { whole.stands() }, "the block is elsewhere");
    }

    #[test]
    fn one_of_two_claims_succeeds_and_only_with_the_right_words() {
        let piece = Piece::default();
        let live = word(LIVE, 3, 77, 4);
        piece.set(live, 9);
        assert!(!piece.claim(word(LIVE, 3, 77, 6), 9), "another stamp");
        assert!(!piece.claim(word(LIVE, 2, 77, 4), 9), "another class");
        assert!(!piece.claim(word(LIVE, 3, 78, 4), 9), "another place");
        assert!(!piece.claim(live, 8), "another owner");
        assert!(piece.claim(live, 9));
        assert!(!piece.claim(live, 9), "twice");
        assert_eq!(piece.word(), with_state(live, HELD));
    }
}
