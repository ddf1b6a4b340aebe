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

/// Number of small classes.
pub(super) const CLASSES: usize = 40;
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
pub(super) fn class_units(class: usize) -> u32 {
    if class < 16 {
        return class as u32 + 1;
    }
    let power = 4 + (class as u32 - 16) / 8;
    (9 + (class as u32 - 16) % 8) << (power - 3)
}

/// How many slots a new run of a class gets when `live` slots of it are in use already: runs grow with the demand, so
/// that a class that is hardly used takes hardly more than a granule.
#[inline]
pub(super) fn slots_for(class: usize, live: u32) -> u32 {
    let units = class_units(class);
    let least = MIN_LARGE.div_ceil(units);
    (live / 4).min(MAX_UNITS / units).min(MAX_SLOTS).max(least)
}

/// What a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Slot {
    /// The run's tag may have it.
    Free,
    /// Handed out.
    Live,
    /// Freed in the order of another tag.
    Pending,
}

/// What is known of one slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotEntry {
    /// Live: who was asked for it.
    pub(super) owner: u64,
    /// Live: the stamp. Pending: the tag.
    pub(super) tag: u32,
    /// Live: the class size that was asked for, in units (less than the slot where the alignment asked for more).
    pub(super) asked: u16,
    /// What it is.
    pub(super) state: Slot,
}

const _: () = assert!(size_of::<SlotEntry>() == 16);

const FREE: SlotEntry = SlotEntry { owner: 0, tag: 0, asked: 0, state: Slot::Free };

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
    free: [u64; (MAX_SLOTS / 64) as usize],
    slots: Vec<SlotEntry>,
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
            free: [0; (MAX_SLOTS / 64) as usize],
            slots: Vec::new(),
        }
    }

    /// Makes the entry the run of `block`, all slots free. The slot table's memory is kept from run to run.
    pub(super) fn start(&mut self, block: u32, class: usize, tag: u32, slots: u32) {
        self.block = block;
        self.class = class as u8;
        self.tag = tag;
        (self.prev, self.next, self.live, self.pending) = (NIL, NIL, 0, 0);
        self.slots.clear();
        self.slots.resize(slots as usize, FREE);
        for (i, word) in self.free.iter_mut().enumerate() {
            let bits = slots.saturating_sub(i as u32 * 64).min(64);
            *word = if bits == 0 { 0 } else { u64::MAX >> (64 - bits) };
        }
    }

    /// Number of slots.
    pub(super) fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Slots that the run's tag may have.
    #[inline]
    pub(super) fn free_count(&self) -> u32 {
        self.len() - self.live - self.pending
    }

    /// The slot's entry.
    #[inline]
    pub(super) fn slot(&self, slot: u32) -> &SlotEntry {
        &self.slots[slot as usize]
    }

    /// Hands out the lowest free slot.
    #[inline]
    pub(super) fn take(&mut self, owner: u64, stamp: u32, asked: u16) -> Option<u32> {
        for (i, word) in self.free.iter_mut().enumerate() {
            if *word != 0 {
                let bit = word.trailing_zeros();
                *word &= *word - 1;
                let slot = i as u32 * 64 + bit;
                self.slots[slot as usize] = SlotEntry { owner, tag: stamp, asked, state: Slot::Live };
                self.live += 1;
                return Some(slot);
            }
        }
        None
    }

    /// Frees a live slot in the order of `tag`; true when the run's tag may have it.
    #[inline]
    pub(super) fn free(&mut self, slot: u32, tag: u32) -> bool {
        let entry = &mut self.slots[slot as usize];
        self.live -= 1;
        if tag == self.tag || tag == super::PROVEN {
            *entry = FREE;
            self.free[slot as usize / 64] |= 1 << (slot % 64);
            true
        } else {
            *entry = SlotEntry { tag, state: Slot::Pending, ..FREE };
            self.pending += 1;
            false
        }
    }

    /// Gives pending slots of tag `from` the tag `to`; says how many.
    pub(super) fn relabel(&mut self, from: u32, to: u32) -> u32 {
        if self.pending == 0 {
            return 0;
        }
        let mut count = 0;
        for (i, entry) in self.slots.iter_mut().enumerate() {
            if entry.state == Slot::Pending && entry.tag == from {
                count += 1;
                if to == super::PROVEN || to == self.tag {
                    *entry = FREE;
                    self.free[i / 64] |= 1 << (i % 64);
                    self.pending -= 1;
                } else {
                    entry.tag = to;
                }
            }
        }
        count
    }

    /// The tag in whose order a slot that is not live may be had.
    pub(super) fn tag_of(&self, slot: u32) -> u32 {
        let entry = self.slot(slot);
        if entry.state == Slot::Pending { entry.tag } else { self.tag }
    }

    /// What is wrong with it, if anything is.
    pub(super) fn check(&self) -> Result<(), String> {
        let count = |state| self.slots.iter().filter(|s| s.state == state).count() as u32;
        if count(Slot::Live) != self.live || count(Slot::Pending) != self.pending {
            return Err(format!("the counts of the run at block {} are wrong", self.block));
        }
        for i in 0..MAX_SLOTS {
            let bit = self.free[i as usize / 64] >> (i % 64) & 1 == 1;
            let free = self.slots.get(i as usize).is_some_and(|s| s.state == Slot::Free);
            if bit != free {
                return Err(format!("slot {i} of the run at block {} and the bitmap disagree", self.block));
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
