//! *place*: which bytes of a range are handed out, and who may have the others. No device, no locks, no time.
//!
//! ```text
//!        allocate(bytes, align, tags)                    free(entry, tag)
//!           | <= 32 KiB           | more                    |
//!         runs (slots, bitmap)   bins (two-level fit)     granule map: address -> block, checked
//!              \________________/                           |
//!                    blocks, 32 bytes each, tiling the mapped ranges; equal tags that touch are one block
//!                    ledger: what a free is checked against, also without the pool's lock
//!                    lend -> plot: large free memory that a thread divides for itself, one block in use as far as is seen here
//! ```
//!
//! Positions are offsets in a range of at most 2^32 units of [`UNIT`] bytes; the layer above turns them into addresses.
//!
//! **Tags.** A free block carries a tag that says who may have it: [`PROVEN`] is for everyone; any other tag means *in
//! the order of the stream record that has it*, and only who names it in `tags` gets it. Blocks merge with equal tags
//! only: what joined could not be told apart. [`Place::relabel`] changes a whole tag at once (a proof arrived) and merges.
//!
//! **Stamps.** A live block is booked with its owner (the resource that was asked) and the stamp of who asked (the tag
//! of the stream's record). A tag is in use while something free has it or something live is stamped with it.
//!
//! **Invariants** ([`Place::check`]): I1 live pieces are disjoint, inside mapped ranges, aligned. I3 blocks tile every
//! range; the granule map names every live block and run, and nothing else. I4 no two neighbours that are free have
//! equal tags; every free block is in one list of its tag; bitmaps agree.
//!
//! **Cost**: allocate and free are constant (8 blocks of one list are compared at most, one bitmap of four words is
//! read); relabelling is linear in the pieces of the tag; 64 bytes a block, 16 a slot.

mod bins;
mod block;
mod check;
mod free;
mod granule;
mod held;
pub(in crate::pool) mod ledger;
mod lend;
mod look;
mod piece;
mod plot;
#[cfg(test)]
mod plot_tests;
mod ranges;
mod runs;
mod small;
mod starts;
mod tags;
mod vacate;

use bins::Bins;
use block::{Blocks, MAX_SMALL, MIN_LARGE, NIL, State};
use granule::GranuleMap;
use ledger::{GRANULE, LIVE, Ledger, NO_SLOT, Piece, SlotStore, WHOLE};
use lend::Lent;
pub(in crate::pool) use look::{GRANULE_BYTES, LivePiece};
use ranges::Range;
use runs::{Run, class_of, slots_for};
pub use vacate::Vacated;

use crate::sync::{Arc, Lazy};

pub(in crate::pool) use held::Held;
pub(in crate::pool) use plot::Plot;
pub(in crate::pool) use runs::CLASSES;
pub(in crate::pool) use runs::class_units;

/// Bytes in a unit: what everything is rounded to.
pub const UNIT: u64 = 256;

/// The tag of what everyone may have.
pub const PROVEN: u32 = 0;

/// The tag of what nobody may have before the whole device has been waited for. As a stamp: asked for by nobody known.
pub const UNPROVEN: u32 = 1;

/// Why an address and a size do not name a live block. Bytes and owners are what is booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing was ever handed out there.
    Unknown,
    /// It was handed out and is free again.
    Freed,
    /// Inside a live block.
    Interior {
        /// Its owner.
        owner: u64,
        /// Its size.
        bytes: u64,
    },
}

/// A live block, found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    block: u32,
    slot: u32,
    word: u64,
    /// Where it starts, in bytes from the start of the range.
    pub offset: u64,
    /// What it was asked for, rounded as every request is.
    pub bytes: u64,
    /// What it takes; more than `bytes` where a large alignment was asked for.
    pub held: u64,
    /// The resource that was asked.
    pub owner: u64,
    /// What it was stamped with.
    pub stamp: u32,
}

/// What the placer knows of one tag.
struct Tag {
    /// Free blocks, by zone.
    bins: [Bins; 2],
    /// Runs with a free slot, by class.
    runs: [u32; CLASSES],
    /// Units in free and pending slots.
    slot_units: u64,
    /// Live pieces stamped with it.
    live: u64,
    /// Live slots by class, for the size of the next run.
    live_slots: [u32; CLASSES],
}

impl Tag {
    fn block_units(&self) -> u64 {
        self.bins.iter().map(|b| b.units).sum()
    }
}

/// The placer.
pub struct Place {
    blocks: Blocks,
    map: GranuleMap,
    ledger: Arc<Ledger>,
    store: SlotStore,
    tags: Vec<Option<Box<Tag>>>,
    runs: Vec<Run>,
    /// Runs without a live slot.
    idle_runs: usize,
    /// Those, and some that have one again or are no more: each once ([`Run::noted`]).
    maybe_idle: Vec<u32>,
    spare_runs: Vec<u32>,
    ranges: Vec<Range>,
    lent: Lent,
    /// By zone: the lowest and the first above the highest unit that was ever handed out.
    touched: [(u32, u32); 2],
    live_units: u64,
    peak_units: u64,
    live_count: u64,
    mapped_units: u64,
    /// Offsets from here on belong to the small zone for good; below, the small zone only borrows.
    small_base: u32,
    /// By zone: no free block starts here or above. Where the small zone looks for what it may borrow ([`Place::feed`]).
    below: [u32; 2],
}

/// The zone of large blocks.
pub const LARGE: u8 = 0;
/// The zone of small ones: kept apart, so that a long-lived small block does not stand in the middle of a large hole.
pub const SMALL: u8 = 1;

/// A piece that stands for none. Only a mistake of the placer could look for it, and nothing is handed out by it.
fn nobody() -> &'static Piece {
    static NOBODY: Lazy<Piece> = Lazy::new(Piece::default);
    &NOBODY
}

/// The zone that a request belongs to: what is served from runs is small.
#[inline]
pub fn zone_of(bytes: u64) -> u8 {
    if bytes <= MAX_SMALL as u64 * UNIT { SMALL } else { LARGE }
}

/// A request's size as it is booked, in units: small sizes are rounded to their class.
#[inline]
fn rounded(bytes: u64) -> u32 {
    let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
    if units <= MAX_SMALL { class_units(class_of(units.max(1))) } else { units }
}

/// What a free of so many bytes finds booked: a class, or [`WHOLE`] and the units of the block.
#[inline]
pub(in crate::pool) fn class_and_units(bytes: u64) -> (usize, u32) {
    let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
    if units > MAX_SMALL {
        return (WHOLE, units);
    }
    let class = class_of(units.max(1));
    (class, class_units(class))
}

/// A request's size as it is booked, in bytes. Equal results mean that two sizes cannot be told apart.
#[inline]
pub fn rounded_bytes(bytes: u64) -> u64 {
    u64::from(rounded(bytes)) * UNIT
}

impl Place {
    /// A placer for a range of `span` bytes, nothing of it mapped yet. At most 2^32 - 1 units are used. What is mapped at
    /// `small_base` and above stays in the small zone.
    pub fn new(span: u64, small_base: u64) -> Self {
        let units = (span / UNIT).min(u64::from(u32::MAX));
        let ledger = Arc::new(Ledger::new((units >> GRANULE) as usize + 1));
        Self {
            blocks: Blocks::new(),
            map: GranuleMap::new(ledger.clone()),
            ledger,
            store: SlotStore::new(),
            tags: Vec::new(),
            runs: vec![Run::spare()],
            idle_runs: 0,
            maybe_idle: Vec::new(),
            spare_runs: Vec::new(),
            ranges: Vec::new(),
            lent: Lent::default(),
            touched: [(u32::MAX, 0); 2],
            live_units: 0,
            peak_units: 0,
            live_count: 0,
            mapped_units: 0,
            small_base: (small_base / UNIT).min(u64::from(u32::MAX)) as u32,
            below: [0; 2],
        }
    }

    /// What is readable without the lock.
    pub(in crate::pool) fn ledger(&self) -> Arc<Ledger> {
        self.ledger.clone()
    }

    /// Bytes handed out, as rounded.
    pub fn live_bytes(&self) -> u64 {
        self.live_units * UNIT
    }

    /// The most bytes that were handed out at once.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_units * UNIT
    }

    /// Pieces handed out.
    pub fn live_count(&self) -> u64 {
        self.live_count
    }

    /// Bytes in mapped ranges.
    pub fn mapped_bytes(&self) -> u64 {
        self.mapped_units * UNIT
    }

    /// Free bytes that carry `tag`, in blocks and in slots.
    pub fn tag_bytes(&self, tag: u32) -> u64 {
        self.tag_ref(tag).map_or(0, |t| (t.block_units() + t.slot_units) * UNIT)
    }

    /// Free bytes that carry `tag`, in whole blocks only.
    pub fn tag_block_bytes(&self, tag: u32) -> u64 {
        self.tag_ref(tag).map_or(0, |t| t.block_units() * UNIT)
    }

    /// The largest free block that carries `tag`, in bytes.
    pub fn tag_largest(&self, tag: u32) -> u64 {
        self.tag_ref(tag)
            .map_or(0, |t| u64::from(t.bins.iter().map(|b| b.largest(&self.blocks)).max().unwrap_or(0)) * UNIT)
    }

    /// True when nothing free carries the tag and nothing live is stamped with it.
    pub fn tag_unused(&self, tag: u32) -> bool {
        self.tag_ref(tag).is_none_or(|t| t.live == 0 && t.block_units() == 0 && t.slot_units == 0)
            && !self.runs.iter().any(|r| r.block != NIL && r.tag == tag)
    }

    fn tag_ref(&self, tag: u32) -> Option<&Tag> {
        self.tags.get(tag as usize)?.as_deref()
    }

    #[inline]
    fn tag(&mut self, tag: u32) -> &mut Tag {
        known(&mut self.tags, tag)
    }

    /// Finds memory among the free blocks that carry one of `tags`, in that order of preference, and books it. `stamp`
    /// is the tag of who asks; it must be one of `tags` for small sizes to be reused by the next request.
    #[inline]
    pub fn allocate(&mut self, bytes: u64, align: u64, tags: &[u32], stamp: u32, owner: u64, zone: u8) -> Option<u64> {
        let units = bytes.div_ceil(UNIT);
        let align = (align / UNIT).max(1) as u32;
        let offset = if units <= u64::from(MAX_SMALL) && align <= MAX_SMALL {
            let (held, word) = self.allocate_slot((units as u32).max(1), align, tags, stamp, zone)?;
            // SAFETY: the piece is this placer's.
            unsafe { held.hand_out(word, owner) };
            held.unit
        } else {
            let units = u32::try_from(units).ok()?;
            let class = if units <= MAX_SMALL { class_of(units.max(1)) } else { WHOLE };
            self.take_whole(units.max(MIN_LARGE), align, tags, (class, stamp), owner, zone)?
        };
        Some(u64::from(offset) * UNIT)
    }

    /// [`Place::allocate`] of a block of its own, in units; the first one of it. What it is booked as: its class and the stamp.
    #[inline]
    pub(in crate::pool) fn take_whole(
        &mut self,
        units: u32,
        align: u32,
        tags: &[u32],
        (class, stamp): (usize, u32),
        owner: u64,
        zone: u8,
    ) -> Option<u32> {
        let index = self.carve(units, align, tags, zone)?;
        let start = self.blocks[index].start;
        self.ledger.begin_any(index, start, units, ledger::word(LIVE, class, start, stamp), owner);
        self.map.set(start, index);
        self.note_live(start, units, stamp, zone);
        Some(start)
    }

    #[inline]
    fn note_live(&mut self, start: u32, units: u32, stamp: u32, zone: u8) {
        let touched = &mut self.touched[zone as usize];
        *touched = (touched.0.min(start), touched.1.max(start + units));
        self.live_units += u64::from(units);
        self.peak_units = self.peak_units.max(self.live_units);
        self.live_count += 1;
        self.tag(stamp).live += 1;
    }

    #[inline]
    fn note_dead(&mut self, units: u32, stamp: u32) {
        self.live_units -= u64::from(units);
        self.live_count -= 1;
        self.tag(stamp).live -= 1;
    }

    /// How many bytes the tightest free block of `tags` that serves a large request would have left.
    pub(in crate::pool) fn slack(&self, bytes: u64, align: u64, tags: &[u32]) -> Option<u64> {
        let (units, align) = (u32::try_from(bytes.div_ceil(UNIT)).ok()?, (align / UNIT).max(1) as u32);
        let fits =
            tags.iter().filter_map(|tag| self.tag_ref(*tag)?.bins[LARGE as usize].fit(&self.blocks, units, align));
        fits.map(|index| u64::from(self.blocks[index].units - units) * UNIT).min()
    }

    /// The live block that starts at `offset`.
    ///
    /// # Errors
    /// Why there is none.
    #[inline]
    pub fn entry(&self, offset: u64) -> Result<Entry, Fault> {
        let entry = self.around(offset)?;
        if entry.offset == offset { Ok(entry) } else { Err(Fault::Interior { owner: entry.owner, bytes: entry.bytes }) }
    }

    /// The live block that contains `offset`.
    ///
    /// # Errors
    /// Why there is none.
    #[inline]
    pub fn around(&self, offset: u64) -> Result<Entry, Fault> {
        let unit = u32::try_from(offset / UNIT).map_err(|_| Fault::Unknown)?;
        let freed = || {
            let touched = self.touched.iter().any(|(low, end)| (*low..*end).contains(&unit));
            if touched && self.is_mapped(unit) { Fault::Freed } else { Fault::Unknown }
        };
        if let Some(span) = self.lent.span_of(unit) {
            return self.in_plot(unit, span).ok_or_else(freed);
        }
        let mut index = self.map.at_or_before(unit).ok_or_else(freed)?;
        if self.blocks[index].start > unit {
            index = self.map.before(unit).ok_or_else(freed)?;
        }
        let block = &self.blocks[index];
        if unit >= block.end() {
            return Err(freed());
        }
        let (piece, slot, start, units) = if block.state == State::Run {
            let run = &self.runs[block.a as usize];
            let units = class_units(run.class as usize);
            let slot = (unit - block.start) / units;
            (run.piece(slot), slot, block.start + slot * units, units)
        } else {
            (self.ledger.piece(index), NO_SLOT, block.start, block.units)
        };
        let (word, owner) = (piece.word(), piece.owner());
        if ledger::state_of(word) != LIVE {
            return Err(freed());
        }
        let class = ledger::class_in(word);
        let asked = if class == WHOLE { units } else { class_units(class) };
        Ok(Entry {
            block: index,
            slot,
            word,
            offset: u64::from(start) * UNIT,
            bytes: u64::from(asked) * UNIT,
            held: u64::from(units) * UNIT,
            owner,
            stamp: ledger::stamp_of(word),
        })
    }

    /// Frees what [`Place::entry`] found, in the order of `tag`. False when somebody else freed it since, without the lock.
    #[inline]
    pub fn free(&mut self, entry: &Entry, tag: u32) -> bool {
        if !self.piece_of(entry.block, entry.slot).claim(entry.word, entry.owner) {
            return false;
        }
        self.give(entry.block, entry.slot, tag);
        true
    }

    #[inline]
    fn piece_of(&self, block: u32, slot: u32) -> &Piece {
        if slot == NO_SLOT {
            return self.ledger.piece(block);
        }
        self.runs[self.blocks[block].a as usize].piece(slot)
    }

    /// Takes back what was claimed or taken by [`Place::hold`], in the order of `tag`.
    #[inline]
    pub(in crate::pool) fn give_back(&mut self, held: Held, tag: u32) {
        self.give(held.block, held.slot, tag);
    }

    /// Frees a piece that is its holder's.
    #[inline]
    fn give(&mut self, index: u32, slot: u32, tag: u32) {
        let block = &self.blocks[index];
        if slot == NO_SLOT {
            if block.state == State::Line {
                self.receive(index, tag);
                return;
            }
            let (start, units) = (block.start, block.units);
            let piece = self.ledger.piece(index);
            let word = piece.word();
            debug_assert_eq!(ledger::state_of(word), ledger::HELD, "block {index}");
            piece.set(ledger::FREE, 0);
            self.map.clear(start);
            self.note_dead(units, ledger::stamp_of(word));
            self.release(index, tag);
            return;
        }
        let word = self.piece_of(index, slot).word();
        debug_assert_eq!(ledger::state_of(word), ledger::HELD, "block {index}, slot {slot}");
        let run = block.a;
        let slots = [slot];
        self.give_slots(run, &slots, |slot| *slot, ledger::stamp_of(word), tag);
    }

    /// Takes back pieces that are their holders', in the order of `tag`. The slots of a run are looked at together.
    pub(in crate::pool) fn give_back_many(&mut self, pieces: impl Iterator<Item = Held>, tag: u32) {
        let pieces = pieces.map(|held| u64::from(held.block) << 32 | u64::from(held.slot)).collect();
        let pieces = side_by_side(pieces, |piece| (piece >> 32) as usize);
        let (block, slot) = (|piece: u64| (piece >> 32) as u32, |piece: u64| piece as u32);
        for group in pieces.chunk_by(|a, b| block(*a) == block(*b)) {
            let index = block(group[0]);
            let stamp_of = |piece: &u64| ledger::stamp_of(self.piece_of(index, slot(*piece)).word());
            let stamp = stamp_of(&group[0]);
            if slot(group[0]) == NO_SLOT || !group.iter().all(|piece| stamp_of(piece) == stamp) {
                for piece in group {
                    self.give(index, slot(*piece), tag);
                }
            } else {
                self.give_slots(self.blocks[index].a, group, |piece| slot(*piece), stamp, tag);
            }
        }
    }

    /// Frees slots of one run that were booked with one stamp.
    #[inline]
    fn give_slots<T>(&mut self, run: u32, slots: &[T], slot_of: impl Fn(&T) -> u32, stamp: u32, tag: u32) {
        let state = &mut self.runs[run as usize];
        let class = state.class as usize;
        let count = slots.len() as u32;
        let units = class_units(class);
        let was_full = state.free_count() == 0;
        let mut own = false;
        for slot in slots {
            // All of them or none, since it is the tags that decide.
            own = state.free(slot_of(slot), tag);
        }
        let (run_tag, empty) = (state.tag, state.live == 0);
        self.live_units -= u64::from(count * units);
        self.live_count -= u64::from(count);
        let booked = self.tag(stamp);
        booked.live -= u64::from(count);
        booked.live_slots[class] -= count;
        self.tag(if own { run_tag } else { tag }).slot_units += u64::from(count * units);
        self.idle_runs += usize::from(empty);
        if own && was_full {
            self.list(run);
        }
        if empty {
            let entry = &self.runs[run as usize];
            let alone = entry.prev == NIL && entry.next == NIL;
            if entry.pending > 0 || !alone {
                self.dissolve(run);
            } else {
                self.note_idle(run);
            }
        }
    }
}

/// The pieces of one run side by side: by the low bits of its block. Where two runs agree in these their pieces may alternate,
/// which costs a little; to sort them would cost ten times as much as this.
fn side_by_side(mut pieces: Vec<u64>, block: impl Fn(u64) -> usize) -> Vec<u64> {
    const BUCKETS: usize = 256;
    if pieces.len() < BUCKETS / 8 {
        pieces.sort_unstable();
        return pieces;
    }
    let mut at = [0usize; BUCKETS];
    for piece in &pieces {
        at[block(*piece) % BUCKETS] += 1;
    }
    let mut before = 0;
    for bucket in &mut at {
        before += std::mem::replace(bucket, before);
    }
    let mut sorted = vec![0; pieces.len()];
    for piece in &pieces {
        let next = &mut at[block(*piece) % BUCKETS];
        sorted[*next] = *piece;
        *next += 1;
    }
    sorted
}

/// What is known of a tag, from now on.
#[inline]
fn known(tags: &mut Vec<Option<Box<Tag>>>, tag: u32) -> &mut Tag {
    let index = tag as usize;
    if index >= tags.len() {
        tags.resize_with(index + 1, || None);
    }
    tags[index].get_or_insert_with(new_tag)
}

#[cold]
#[inline(never)]
fn new_tag() -> Box<Tag> {
    Box::new(Tag {
        bins: [Bins::new(), Bins::new()],
        runs: [NIL; CLASSES],
        slot_units: 0,
        live: 0,
        live_slots: [0; CLASSES],
    })
}
