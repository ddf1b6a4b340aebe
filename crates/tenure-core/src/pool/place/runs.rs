//! Small sizes: blocks cut into equal slots.
//!
//! ```text
//!   block  | slot 0 | slot 1 | slot 2 | slot 3 |  ...           all slots of one class, no gap, no header
//!   free     0        1        1        0                       a bitmap: these the run's tag may have
//!   slots    live     free     free     pending(tag 6)          owner, stamp and size of each, out of band
//! ```
//!
//! A run belongs to one tag. A slot that is freed in the order of another tag waits (*pending*) until that tag is
//! proven, or until the run is empty: then its block goes back to the bins in pieces, each with the tag that its slots
//! had. A proven run is adopted by whoever takes a slot from it.
//!
//! **Classes**: 256 B steps up to 4 KiB, then 8 steps per doubling up to 32 KiB: 40 of them, at most 12.5 % rounding.
//!
//! **Invariants**: a run is in the list of its (tag, class) exactly when it has a free slot; free, live and pending
//! slots add up to all; at most [`MAX_SLOTS`] slots a run.
//!
//! **Cost**: constant. 16 bytes a slot. One empty run per (tag, class) is kept, so that a pair that allocates and frees
//! one block does not cut and join each time; [`super::Place::drain`] gives those back.

use super::block::{MAX_SMALL, MIN_LARGE, NIL};
use super::ledger::{self, FREE, HELD, LIVE, PENDING, Piece, Slots};

/// Number of small classes.
pub(in crate::pool) const CLASSES: usize = 40;
/// The most slots of one run.
pub(super) const MAX_SLOTS: u32 = 256;
/// The most units of one run, where two slots fit in.
const MAX_UNITS: u32 = 1024;

/// The class of a size of 1 to [`MAX_SMALL`] units.
#[inline]
pub(super) fn class_of(units: u32) -> usize {
    debug_assert!((1..=MAX_SMALL).contains(&units));
    if units <= 16 {
        return units as usize - 1;
    }
    let power = (units - 1).ilog2();
    let step = power - 3;
    16 + (power as usize - 4) * 8 + (((units - 1) >> step) & 7) as usize
}

/// The units of a slot of a class.
#[inline]
pub(in crate::pool) fn class_units(class: usize) -> u32 {
    UNITS.get(class).map_or(0, |units| u32::from(*units))
}

/// See [`class_units`].
const UNITS: [u16; CLASSES] = {
    let mut units = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let power = 4 + (class as u16).saturating_sub(16) / 8;
        units[class] = if class < 16 { class as u16 + 1 } else { (9 + (class as u16 - 16) % 8) << (power - 3) };
        class += 1;
    }
    units
};

/// 2^32 over the units of a class, rounded up: a division of what is shorter than a run is a multiplication with it.
const RECIPROCALS: [u64; CLASSES] = {
    let mut reciprocals = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        reciprocals[class] = (1u64 << 32).div_ceil(UNITS[class] as u64);
        class += 1;
    }
    reciprocals
};

/// Which slot of a run begins `inside` units after its start; `None` when none does.
#[inline]
pub(super) fn slot_at(inside: u32, class: usize) -> Option<u32> {
    let slot = ((u64::from(inside) * RECIPROCALS.get(class)?) >> 32) as u32;
    (slot * class_units(class) == inside).then_some(slot)
}

/// How many slots a new run of a class gets when `live` slots of it are in use already: runs grow with the demand, so
/// that a class that is hardly used takes hardly more than a granule.
#[inline]
pub(super) fn slots_for(class: usize, live: u32) -> u32 {
    let units = class_units(class);
    let least = MIN_LARGE.div_ceil(units);
    (live / 4).min(MAX_UNITS / units).min(MAX_SLOTS).max(least)
}

/// One block cut into slots.
pub(super) struct Run {
    /// The block; [`NIL`] for an entry that is not in use.
    pub(super) block: u32,
    /// The class.
    pub(super) class: u8,
    /// Who may have the free slots.
    pub(super) tag: u32,
    /// Neighbours in the list of (tag, class).
    pub(super) prev: u32,
    /// See `prev`.
    pub(super) next: u32,
    /// Handed out.
    pub(super) live: u32,
    /// Freed by others.
    pub(super) pending: u32,
    /// Among those that may be without a live slot: of the entry, whatever run it is.
    pub(super) noted: bool,
    free: [u64; (MAX_SLOTS / 64) as usize],
    /// Number of slots.
    count: u32,
    slots: Slots,
}

impl Run {
    pub(super) fn spare() -> Self {
        Self {
            block: NIL,
            class: 0,
            tag: 0,
            prev: NIL,
            next: NIL,
            live: 0,
            pending: 0,
            noted: false,
            free: [0; (MAX_SLOTS / 64) as usize],
            count: 0,
            slots: Slots::none(),
        }
    }

    /// Makes the entry the run of `block`, all of its `count` slots free.
    pub(super) fn start(&mut self, block: u32, class: usize, tag: u32, count: u32, slots: Slots) {
        self.block = block;
        (self.count, self.slots) = (count, slots);
        self.class = class as u8;
        self.tag = tag;
        (self.prev, self.next, self.live, self.pending) = (NIL, NIL, 0, 0);
        for slot in 0..count {
            self.piece(slot).set(FREE, 0);
        }
        for (i, word) in self.free.iter_mut().enumerate() {
            let bits = count.saturating_sub(i as u32 * 64).min(64);
            *word = if bits == 0 { 0 } else { u64::MAX >> (64 - bits) };
        }
    }

    /// The run is over; its pieces may serve another.
    pub(super) fn end(&mut self) -> Slots {
        self.block = NIL;
        self.count = 0;
        std::mem::replace(&mut self.slots, Slots::none())
    }

    /// Number of slots.
    pub(super) fn len(&self) -> u32 {
        self.count
    }

    /// Slots that the run's tag may have.
    #[inline]
    pub(super) fn free_count(&self) -> u32 {
        self.count - self.live - self.pending
    }

    /// What is known of a slot.
    #[inline]
    pub(super) fn piece(&self, slot: u32) -> &Piece {
        // The array has room for the run's slots; what has none is nobody's.
        self.slots.get(slot).unwrap_or_else(super::nobody)
    }

    /// Takes the lowest free slot; what it becomes is the caller's to set.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u32> {
        for (i, word) in self.free.iter_mut().enumerate() {
            if *word != 0 {
                let bit = word.trailing_zeros();
                *word &= *word - 1;
                self.live += 1;
                return Some(i as u32 * 64 + bit);
            }
        }
        None
    }

    /// Frees a slot that was handed out, in the order of `tag`; true when the run's tag may have it.
    #[inline]
    pub(super) fn free(&mut self, slot: u32, tag: u32) -> bool {
        self.live -= 1;
        if tag == self.tag || tag == super::PROVEN {
            self.piece(slot).set(FREE, 0);
            self.free[slot as usize / 64] |= 1 << (slot % 64);
            true
        } else {
            self.piece(slot).set(ledger::word(PENDING, 0, 0, tag), 0);
            self.pending += 1;
            false
        }
    }

    /// The tag that a pending slot waits for.
    fn awaited(&self, slot: u32) -> Option<u32> {
        let word = self.piece(slot).word();
        (ledger::state_of(word) == PENDING).then(|| ledger::stamp_of(word))
    }

    /// Gives pending slots of tag `from` the tag `to`; says how many.
    pub(super) fn relabel(&mut self, from: u32, to: u32) -> u32 {
        if self.pending == 0 {
            return 0;
        }
        let mut count = 0;
        for slot in 0..self.count {
            if self.awaited(slot) == Some(from) {
                count += 1;
                if to == super::PROVEN || to == self.tag {
                    self.piece(slot).set(FREE, 0);
                    self.free[slot as usize / 64] |= 1 << (slot % 64);
                    self.pending -= 1;
                } else {
                    self.piece(slot).set(ledger::word(PENDING, 0, 0, to), 0);
                }
            }
        }
        count
    }

    /// The tag in whose order a slot that is not live may be had.
    pub(super) fn tag_of(&self, slot: u32) -> u32 {
        self.awaited(slot).unwrap_or(self.tag)
    }

    /// What is wrong with it, if anything is.
    pub(super) fn check(&self) -> Result<(), String> {
        let state = |slot| ledger::state_of(self.piece(slot).word());
        let live = (0..self.count).filter(|slot| matches!(state(*slot), LIVE | HELD)).count() as u32;
        let pending = (0..self.count).filter(|slot| state(*slot) == PENDING).count() as u32;
        if live != self.live || pending != self.pending {
            return Err(format!("the counts of the run at block {} are wrong", self.block));
        }
        for slot in 0..MAX_SLOTS {
            let bit = self.free[slot as usize / 64] >> (slot % 64) & 1 == 1;
            if bit != (slot < self.count && state(slot) == FREE) {
                return Err(format!("slot {slot} of the run at block {} and the bitmap disagree", self.block));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_tight_and_in_order() {
        let mut before = 0;
        for class in 0..CLASSES {
            let units = class_units(class);
            assert!(units > before);
            for asked in before + 1..=units {
                assert_eq!(class_of(asked), class, "{asked} units");
            }
            before = units;
        }
        assert_eq!(before, MAX_SMALL);
    }

    #[test]
    fn slots_are_found_without_a_division() {
        for class in 0..CLASSES {
            let units = class_units(class);
            for inside in 0..2 * MAX_UNITS {
                let slot = inside.is_multiple_of(units).then_some(inside / units);
                assert_eq!(slot_at(inside, class), slot, "{inside} units in class {class}");
            }
        }
    }

    #[test]
    fn every_run_is_longer_than_a_granule() {
        for class in 0..CLASSES {
            for live in [0, 10, 1000, 100_000] {
                let slots = slots_for(class, live);
                assert!((1..=MAX_SLOTS).contains(&slots));
                assert!(slots * class_units(class) >= MIN_LARGE);
            }
        }
    }
}
