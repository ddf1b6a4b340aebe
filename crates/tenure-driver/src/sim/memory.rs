//! Memory that is not virtual: plain device memory, managed memory, pinned host memory; and what is known about pointers.
//!
//! Each device has one address range, many times its memory, that the system backs page by page when touched; an arena
//! places plain allocations and the chunks of pools in it. Device pointers are therefore ordinary addresses, and the host
//! may look at them: the simulated device is host accessible, and says so in no driver attribute.
//!
//! Invariants: live blocks are disjoint; `Device::used` is the sum of plain blocks, pool chunks, memory of graphs and
//! pages; a block leaves the table when nothing on the device can touch it any more.

use std::collections::BTreeMap;

use super::arena::Arena;
use super::codes::*;
use super::machine::Machine;
use super::op::Action;
use super::os::{self, Label, Pages};
use super::queue::Locked;

/// Plain allocations are placed at multiples of this, and take multiples of it.
pub(super) const GRAIN: u64 = 512;
/// The page size of the device.
pub(super) const LARGE: u64 = 2 << 20;
/// The label of the file that backs all memory of a device.
pub(super) const WHOLE: u64 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// `cuMemAlloc`.
    Plain,
    /// Stream-ordered, of the pool with this number.
    Pool(u64),
    /// Allocated while captured, of the graph arena with this number.
    Graph(u64),
    Managed,
    /// `cuMemHostAlloc`.
    Pinned,
    /// `cuMemHostRegister`: the caller's memory.
    Registered,
    /// Memory of another process: 0 for a legacy handle, else of the opened pool with this number.
    Opened(u64),
}

/// One live allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Bytes asked for.
    pub(super) len: u64,
    /// Bytes taken.
    pub(super) taken: u64,
    pub(super) device: usize,
    pub(super) owner: Owner,
    /// A call is waiting to free it.
    pub(super) leaving: bool,
    /// A number that no other allocation has.
    pub(super) id: u64,
}

/// What an address range is to a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// Memory that the device can touch.
    Known,
    /// Ordinary host memory.
    Host,
    /// An address of a device with nothing live there.
    Dead,
}

struct Space {
    base: u64,
    len: u64,
    arena: Arena,
    /// What backs it, for other processes; `None` where the system gives no such file, and memory is this process's alone.
    pages: Option<Pages>,
}

pub(super) struct Memory {
    spaces: Vec<Option<Space>>,
    pub(super) blocks: BTreeMap<u64, Block>,
    /// Chunks of pools and graphs: start, then length and device.
    segments: BTreeMap<u64, (u64, usize)>,
    host_used: u64,
    ids: u64,
}

impl Memory {
    pub(super) fn new(devices: usize) -> Memory {
        Memory {
            spaces: (0..devices).map(|_| None).collect(),
            blocks: BTreeMap::new(),
            segments: BTreeMap::new(),
            host_used: 0,
            ids: 0,
        }
    }

    pub(super) fn add(&mut self, at: u64, len: u64, taken: u64, device: usize, owner: Owner) {
        self.ids += 1;
        self.blocks.insert(at, Block { len, taken, device, owner, leaving: false, id: self.ids });
    }

    /// The block that `at` lies in.
    pub(super) fn find(&self, at: u64) -> Option<(u64, &Block)> {
        let (start, block) = self.blocks.range(..=at).next_back()?;
        (at - start < block.len).then_some((*start, block))
    }

    /// The end of the memory that starts at or before `at` and that devices can touch, if any.
    fn end_of(&self, at: u64) -> Option<u64> {
        if let Some((start, block)) = self.blocks.range(..=at).next_back()
            && at - start < block.taken
            && !matches!(block.owner, Owner::Pool(_) | Owner::Graph(_))
        {
            return Some(start + block.taken);
        }
        let (start, (len, _)) = self.segments.range(..=at).next_back()?;
        (at - start < *len).then_some(start + len)
    }

    fn in_space(&self, at: u64) -> bool {
        self.spaces.iter().flatten().any(|s| at >= s.base && at - s.base < s.len)
    }
}

impl Machine {
    /// Takes addresses and memory of a device, zeroed if never used.
    pub(super) fn take(&mut self, device: usize, len: u64, align: u64) -> Result<u64, i32> {
        self.charge(device, len)?;
        match self.place(device, len, align) {
            Some(at) => {
                self.renew(at, len);
                Ok(at)
            }
            None => {
                self.refund(device, len);
                Err(OUT_OF_MEMORY)
            }
        }
    }

    fn place(&mut self, device: usize, len: u64, align: u64) -> Option<u64> {
        self.space(device)?.arena.take(len, align)
    }

    /// The addresses of a device, made at the first use.
    fn space(&mut self, device: usize) -> Option<&mut Space> {
        let total = self.devices[device].total;
        let slot = &mut self.memory.spaces[device];
        if slot.is_none() {
            *slot = [16, 4, 1].iter().find_map(|times| {
                // The file has whole pages.
                let len = total.checked_mul(*times)?.checked_next_multiple_of(LARGE)?;
                let room = usize::try_from(len).ok()?;
                let base = os::reserve(room, LARGE as usize)?;
                let pages = Pages::labelled(Label { kind: WHOLE, device: device as u64, len });
                let pages = pages.filter(|pages| pages.map_at(base, room, 0));
                os::protect(base, room, true, true).then(|| Space {
                    base: base as u64,
                    len,
                    arena: Arena::new(base as u64, len),
                    pages,
                })
            });
        }
        slot.as_mut()
    }

    /// What backs the memory of a device, and where an address of it lies in there: `None` where other processes cannot
    /// have it.
    pub(super) fn backing(&mut self, device: usize, at: u64) -> Option<(&Pages, u64)> {
        let space = self.space(device)?;
        let offset = at.checked_sub(space.base).filter(|offset| *offset < space.len)?;
        Some((space.pages.as_ref()?, offset))
    }

    /// [`Machine::backing`] of all memory of a device.
    pub(super) fn backing_of_all(&mut self, device: usize) -> Option<&Pages> {
        self.space(device)?.pages.as_ref()
    }

    /// Gives back what [`Machine::take`] took.
    pub(super) fn give(&mut self, device: usize, at: u64, len: u64) {
        if let Some(space) = &mut self.memory.spaces[device] {
            space.arena.give(at, len);
            if len >= 64 << 10 {
                match &space.pages {
                    Some(pages) => pages.discard(at - space.base, len),
                    None => os::discard(at as usize, len as usize),
                }
            }
        }
        self.refund(device, len);
    }

    pub(super) fn take_segment(&mut self, device: usize, len: u64) -> Result<u64, i32> {
        let at = self.take(device, len, LARGE)?;
        self.memory.segments.insert(at, (len, device));
        Ok(at)
    }

    pub(super) fn give_segment(&mut self, at: u64) {
        if let Some((len, device)) = self.memory.segments.remove(&at) {
            self.give(device, at, len);
        }
    }

    pub(super) fn alloc_plain(&mut self, device: usize, len: u64) -> Result<u64, i32> {
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let taken = len.checked_next_multiple_of(GRAIN).ok_or(OUT_OF_MEMORY)?;
        let at = self.take(device, taken, if taken >= LARGE { LARGE } else { GRAIN })?;
        self.memory.add(at, len, taken, device, Owner::Plain);
        Ok(at)
    }

    /// Ends a plain block whose last use is over.
    pub(super) fn free_plain(&mut self, at: u64) {
        if let Some(b) = self.memory.blocks.remove(&at) {
            self.give(b.device, at, b.taken);
        }
    }

    /// Maps host memory that devices can touch: managed or pinned.
    pub(super) fn alloc_host(&mut self, device: usize, len: u64, owner: Owner) -> Result<u64, i32> {
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let taken = len.checked_next_multiple_of(os::page() as u64).ok_or(OUT_OF_MEMORY)?;
        if taken > os::physical().saturating_sub(self.memory.host_used) {
            return Err(OUT_OF_MEMORY);
        }
        let at = os::map(usize::try_from(taken).map_err(|_| OUT_OF_MEMORY)?).ok_or(OUT_OF_MEMORY)? as u64;
        self.memory.host_used += taken;
        self.renew(at, taken);
        self.memory.add(at, len, taken, device, owner);
        Ok(at)
    }

    /// Ends a managed or pinned block whose last use is over.
    pub(super) fn free_host(&mut self, at: u64) {
        if let Some(b) = self.memory.blocks.remove(&at)
            && b.owner != Owner::Registered
        {
            os::unmap(at as usize, b.taken as usize);
            self.memory.host_used -= b.taken;
        }
    }

    /// Marks the block that starts at `at` as leaving, so that a second free of it fails.
    ///
    /// # Errors
    ///
    /// [`INVALID_VALUE`] when no live block starts there or `fits` refuses it.
    pub(super) fn leave(&mut self, at: u64, fits: impl FnOnce(&Block) -> bool) -> Result<Block, i32> {
        match self.memory.blocks.get_mut(&at) {
            Some(b) if !b.leaving && fits(b) => {
                b.leaving = true;
                Ok(*b)
            }
            _ => Err(INVALID_VALUE),
        }
    }

    /// Whether a device can touch the whole range.
    pub(super) fn reachable(&self, device: usize, at: u64, len: usize, write: bool) -> bool {
        let Some(end) = at.checked_add(len as u64) else {
            return false;
        };
        let mut at = at;
        while at < end {
            match self.memory.end_of(at).or_else(|| self.vmm.end_of(device, at, write)) {
                Some(next) => at = next,
                None => return false,
            }
        }
        true
    }

    /// Whether a device may do all of this now.
    pub(super) fn may_touch(&self, device: usize, actions: &[Action]) -> bool {
        let mut ranges = actions.iter().flat_map(Action::ranges).flatten();
        ranges.all(|(at, len, write)| self.reachable(device, at, len, write))
    }

    /// What a range is to a copy on `device`.
    pub(super) fn side(&self, device: usize, at: u64, len: usize, write: bool) -> Side {
        if self.reachable(device, at, len, write) {
            Side::Known
        } else if self.memory.in_space(at) || self.vmm.reserved(at) {
            Side::Dead
        } else {
            Side::Host
        }
    }
}

impl Machine {
    /// Whether an address is memory of the host: ordinary, pinned or registered.
    pub(super) fn is_host(&self, at: u64) -> bool {
        match self.memory.find(at) {
            Some((_, b)) => matches!(b.owner, Owner::Pinned | Owner::Registered),
            None => self.vmm.find(at).is_none(),
        }
    }
}

impl Locked {
    /// Waits for everything that is on a device now, or on all.
    pub(super) fn drain(&mut self, device: Option<usize>) {
        let devices = device.map_or(0..self.devices.len(), |d| d..d + 1);
        let tips: Vec<_> = devices.clone().flat_map(|d| self.tips(d)).collect();
        let clocks: Vec<_> = devices.map(|d| self.clock_of_device(d)).collect();
        // Nothing is left to run when this fails, so nothing touches the memory.
        self.wait_points(&tips).ok();
        for clock in &clocks {
            self.learn(clock);
        }
    }
}
