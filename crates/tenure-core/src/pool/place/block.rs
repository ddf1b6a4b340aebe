//! What is known of each piece of the range: 32 bytes, out of band, linked by index.
//!
//! ```text
//!   range    [ live 40 KiB ][ free 3 MiB, tag 0 ][ run of 1 KiB slots ][ free, tag 4 ] |end
//!   blocks         #3  <------->  #8   <------------>   #5  <------------> #2
//! ```
//!
//! Blocks tile each mapped range without a gap (invariant I3); the links `prev` and `next` follow the addresses. A
//! sentinel of no units stands at both ends of a range, so that nothing else has to know where a range ends.

use std::ops::{Index, IndexMut};

/// No block.
pub(super) const NIL: u32 = 0;

/// The largest size, in units, that is served from a run of slots.
pub(super) const MAX_SMALL: u32 = 128;

/// The smallest block that is handed out whole, in units: longer than a granule.
pub(super) const MIN_LARGE: u32 = MAX_SMALL + 1;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// Not in use; on the list of spare entries.
    Spare,
    /// Free: in a list of its tag's bins.
    Free,
    /// Handed out.
    Live,
    /// Cut into slots; `a` is the index of the run.
    Run,
    /// The end of a range.
    Sentinel,
    /// In use by a plot, which divides it; `a` is the plot's number.
    Lent,
    /// Without a place: a plot hands out pieces under this number. `a` is the plot's.
    Line,
}

/// One piece of the range.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Block {
    /// First unit.
    pub(super) start: u32,
    /// Number of units.
    pub(super) units: u32,
    /// The block before it in the range.
    pub(super) prev: u32,
    /// The block after it in the range.
    pub(super) next: u32,
    /// Free: the previous in its list. Run: index of the run. What is known of a live block is in the ledger.
    pub(super) a: u32,
    /// Free: the next in its list.
    pub(super) b: u32,
    /// Free: who may have it. Lent: whose it is.
    pub(super) tag: u32,
    /// What it is.
    pub(super) state: State,
    /// 0 for large blocks, 1 for small ones: the halves that are kept apart.
    pub(super) zone: u8,
}

const _: () = assert!(size_of::<Block>() == 32);

impl Block {
    /// The first unit after it.
    #[inline]
    pub(super) fn end(&self) -> u32 {
        self.start + self.units
    }
}

/// All blocks of a placer. The entry of [`NIL`] is nobody's: its links may say anything, so that linking asks for no end.
pub(super) struct Blocks {
    entries: Vec<Block>,
    spare: u32,
}

const EMPTY: Block =
    Block { start: 0, units: 0, prev: NIL, next: NIL, a: 0, b: 0, tag: 0, state: State::Spare, zone: 0 };

impl Blocks {
    pub(super) fn new() -> Self {
        Self { entries: vec![EMPTY], spare: NIL }
    }

    /// A new entry between `prev` and `next`.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "one for each field that a new block differs in")]
    pub(super) fn add(
        &mut self,
        start: u32,
        units: u32,
        prev: u32,
        next: u32,
        tag: u32,
        zone: u8,
        state: State,
    ) -> u32 {
        let block = Block { start, units, prev, next, tag, state, zone, ..EMPTY };
        let index = if self.spare != NIL {
            let index = self.spare;
            self.spare = self[index].next;
            self[index] = block;
            index
        } else {
            self.grow(block)
        };
        self[prev].next = index;
        self[next].prev = index;
        index
    }

    #[cold]
    fn grow(&mut self, block: Block) -> u32 {
        self.entries.push(block);
        (self.entries.len() - 1) as u32
    }

    /// Puts an entry that has no place between `prev` and `next`.
    #[expect(clippy::too_many_arguments, reason = "as `add`")]
    pub(super) fn place(&mut self, index: u32, start: u32, units: u32, prev: u32, next: u32, zone: u8, state: State) {
        self[index] = Block { start, units, prev, next, state, zone, ..EMPTY };
        self[prev].next = index;
        self[next].prev = index;
    }

    /// Takes an entry out of the chain of addresses and back to the spare ones.
    #[inline]
    pub(super) fn remove(&mut self, index: u32) {
        let Block { prev, next, .. } = self[index];
        self[prev].next = next;
        self[next].prev = prev;
        let spare = std::mem::replace(&mut self.spare, index);
        let block = &mut self[index];
        (block.state, block.next) = (State::Spare, spare);
    }

    /// Whether a block is the last of its range.
    #[inline]
    pub(super) fn ends_range(&self, index: u32) -> bool {
        self[self[index].next].state == State::Sentinel
    }

    /// Number of entries ever made, for checks.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Index<u32> for Blocks {
    type Output = Block;
    #[inline]
    fn index(&self, index: u32) -> &Block {
        &self.entries[index as usize]
    }
}

impl IndexMut<u32> for Blocks {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Block {
        &mut self.entries[index as usize]
    }
}
