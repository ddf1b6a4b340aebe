//! Virtual address ranges over physical pages.
//!
//! ```text
//!   reservation  |--------------------------------------------|   addresses without access
//!   mappings         [ handle 3 ][ handle 5 ]     [ handle 3 ]     two mappings of one handle show the same bytes
//!   pages        file of the device: [ handle 3 ][ handle 5 ] ...  counted when created, until released and unmapped
//! ```
//!
//! As measured on hardware: handles are mapped whole, access is set and mappings are taken away for whole mappings,
//! several neighbours may go in one call, the granularity is 2 MiB. Access is per device; it opens the range to the host
//! as well. Each mapping that has no neighbour with adjacent pages takes one of the host's mappings, of which Linux gives
//! a process 65 530 by default: beyond that, mapping answers out of memory.

use std::collections::{BTreeMap, HashMap};

use super::arena::Arena;
use super::codes::*;
use super::machine::Machine;
use super::memory::LARGE;
use super::os::{self, Label, Pages};

/// The largest range of addresses that is given out, in bytes.
const MAX_RESERVE: u64 = 1 << 46;

struct Physical {
    device: usize,
    offset: u64,
    len: u64,
    mappings: usize,
    /// References of the program: `cuMemCreate` made one.
    held: usize,
    /// A file of its own, where another process may have the memory; else it lies in the device's.
    shared: Option<Pages>,
    /// Whether this process made it, so that it counts here.
    ours: bool,
}

/// The label of the file of one piece of physical memory.
const PIECE: u64 = 2;

struct Mapping {
    len: u64,
    handle: u64,
    id: u64,
    /// Per device: 0, 1 (read), 3 (read and write).
    access: Vec<u32>,
}

struct Disk {
    pages: Pages,
    offsets: Arena,
}

pub(super) struct Vmm {
    disks: Vec<Option<Disk>>,
    reservations: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    physical: HashMap<u64, Physical>,
    next: u64,
    ids: u64,
}

/// What is known about the mapping that an address lies in.
pub(super) struct Mapped {
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) device: usize,
    pub(super) id: u64,
}

impl Vmm {
    pub(super) fn new(devices: usize) -> Vmm {
        Vmm {
            disks: (0..devices).map(|_| None).collect(),
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            physical: HashMap::new(),
            next: 0,
            ids: 0,
        }
    }

    /// The end of the mapping that `at` lies in, if `device` may touch it.
    pub(super) fn end_of(&self, device: usize, at: u64, write: bool) -> Option<u64> {
        let (start, m) = self.mappings.range(..=at).next_back()?;
        let need = if write { 3 } else { 1 };
        (at - start < m.len && m.access[device] & need == need).then_some(start + m.len)
    }

    /// Whether an address was given out by a reservation.
    pub(super) fn reserved(&self, at: u64) -> bool {
        self.reservations.range(..=at).next_back().is_some_and(|(start, len)| at - start < *len)
    }

    pub(super) fn find(&self, at: u64) -> Option<Mapped> {
        let (start, m) = self.mappings.range(..=at).next_back()?;
        let p = self.physical.get(&m.handle)?;
        (at - start < m.len).then_some(Mapped { at: *start, len: m.len, device: p.device, id: m.id })
    }

    /// What a range of addresses is physically: (space, start, end), where space 0 is the addresses themselves and
    /// 1 + device its pages.
    pub(super) fn physical_ranges(&self, at: u64, len: u64) -> Vec<(usize, u64, u64)> {
        let (mut next, end) = (at, at + len);
        let mut ranges = Vec::new();
        while next < end {
            let mapping = self.mappings.range(..=next).next_back();
            let pages = mapping.filter(|(start, m)| next - **start < m.len);
            match pages.and_then(|(start, m)| Some((start, m, self.physical.get(&m.handle)?))) {
                Some((start, m, p)) => {
                    let stop = end.min(start + m.len);
                    let offset = p.offset + (next - start);
                    ranges.push((p.device + 1, offset, offset + (stop - next)));
                    next = stop;
                }
                None => {
                    let after = self.mappings.range(next + 1..).next();
                    let stop = after.map_or(end, |(start, _)| end.min(*start));
                    ranges.push((0, next, stop));
                    next = stop;
                }
            }
        }
        ranges
    }

    pub(super) fn reserve(&mut self, len: u64, align: u64) -> Result<u64, i32> {
        if len == 0 || !len.is_multiple_of(LARGE) || !(align == 0 || align.is_power_of_two()) {
            return Err(INVALID_VALUE);
        }
        if len > MAX_RESERVE || align > MAX_RESERVE {
            return Err(OUT_OF_MEMORY);
        }
        let at = os::reserve(len as usize, align.max(LARGE) as usize).ok_or(OUT_OF_MEMORY)? as u64;
        self.reservations.insert(at, len);
        Ok(at)
    }

    pub(super) fn unreserve(&mut self, at: u64, len: u64) -> Result<(), i32> {
        if self.reservations.get(&at) != Some(&len) || self.mappings.range(at..at + len).next().is_some() {
            return Err(INVALID_VALUE);
        }
        self.reservations.remove(&at);
        os::unmap(at as usize, len as usize);
        Ok(())
    }

    /// The mappings that make up exactly `[at, at + len)`: their starts.
    ///
    /// # Errors
    ///
    /// [`INVALID_VALUE`] where the range has a hole or cuts a mapping.
    pub(super) fn whole(&self, at: u64, len: u64) -> Result<Vec<u64>, i32> {
        let end = at.checked_add(len).filter(|_| len > 0).ok_or(INVALID_VALUE)?;
        let mut next = at;
        let mut starts = Vec::new();
        while next < end {
            let m = self.mappings.get(&next).ok_or(INVALID_VALUE)?;
            starts.push(next);
            next += m.len;
        }
        if next == end { Ok(starts) } else { Err(INVALID_VALUE) }
    }
}

impl Machine {
    /// Makes physical pages.
    pub(super) fn pages_create(&mut self, device: usize, len: u64, shareable: bool) -> Result<u64, i32> {
        if len == 0 || !len.is_multiple_of(LARGE) {
            return Err(INVALID_VALUE);
        }
        self.charge(device, len)?;
        let shared = match shareable {
            true => Pages::labelled(Label { kind: PIECE, device: device as u64, len }).map(Some).ok_or(OUT_OF_MEMORY),
            false => Ok(None),
        };
        let made = shared.and_then(|shared| self.physical(device, len, shared, true));
        if made.is_err() {
            self.refund(device, len);
        }
        made
    }

    /// Gives a handle and a place among the pages of the device, which says to the checker what is the same memory.
    fn physical(&mut self, device: usize, len: u64, shared: Option<Pages>, ours: bool) -> Result<u64, i32> {
        let total = self.devices[device].total;
        let disk = &mut self.vmm.disks[device];
        if disk.is_none() {
            // Many times the memory, so that a free stretch of the file is always found.
            let len = total.saturating_mul(64).min(1 << 50);
            *disk = Pages::open(len).map(|pages| Disk { pages, offsets: Arena::new(0, len) });
        }
        match disk.as_mut().and_then(|d| d.offsets.take(len, LARGE)) {
            Some(offset) => {
                self.renew_pages(device, offset, len);
                self.vmm.next += 1;
                let handle = self.vmm.next;
                let new = Physical { device, offset, len, mappings: 0, held: 1, shared, ours };
                self.vmm.physical.insert(handle, new);
                Ok(handle)
            }
            None => Err(OUT_OF_MEMORY),
        }
    }

    /// A descriptor by which another process opens physical memory that was made for it.
    pub(super) fn pages_export(&mut self, handle: u64) -> Result<i32, i32> {
        let p = self.vmm.physical.get(&handle).filter(|p| p.held > 0).ok_or(INVALID_VALUE)?;
        p.shared.as_ref().ok_or(INVALID_VALUE)?.descriptor().ok_or(UNKNOWN)
    }

    /// Opens physical memory of another process, or of this one: then it is the same memory once more.
    pub(super) fn pages_import(&mut self, fd: i32) -> Result<u64, i32> {
        let (pages, label) = Pages::shared(fd).filter(|(_, label)| label.kind == PIECE).ok_or(INVALID_VALUE)?;
        let device = usize::try_from(label.device).ok().filter(|d| *d < self.devices.len()).ok_or(INVALID_DEVICE)?;
        let same = pages.identity();
        let is_same = |p: &Physical| same.is_some() && p.shared.as_ref().and_then(Pages::identity) == same;
        if let Some((handle, p)) = self.vmm.physical.iter_mut().find(|(_, p)| is_same(p)) {
            p.held += 1;
            return Ok(*handle);
        }
        self.physical(device, label.len, Some(pages), false)
    }

    pub(super) fn pages_release(&mut self, handle: u64) -> Result<(), i32> {
        let p = self.vmm.physical.get_mut(&handle).filter(|p| p.held > 0).ok_or(INVALID_VALUE)?;
        p.held -= 1;
        self.pages_end(handle);
        Ok(())
    }

    /// Gives the pages back when nothing refers to them any more.
    fn pages_end(&mut self, handle: u64) {
        let Some(p) = self.vmm.physical.get(&handle) else {
            return;
        };
        if p.held > 0 || p.mappings > 0 {
            return;
        }
        let (device, offset, len, ours) = (p.device, p.offset, p.len, p.ours);
        let shared = self.vmm.physical.remove(&handle).is_some_and(|p| p.shared.is_some());
        if let Some(disk) = &mut self.vmm.disks[device] {
            // A file of its own goes with the last process that has it.
            if !shared {
                disk.pages.discard(offset, len);
            }
            disk.offsets.give(offset, len);
        }
        if ours {
            self.refund(device, len);
        }
    }

    pub(super) fn map(&mut self, at: u64, len: u64, offset: u64, handle: u64) -> Result<(), i32> {
        let devices = self.devices.len();
        let vmm = &mut self.vmm;
        let p = vmm.physical.get_mut(&handle).filter(|p| p.held > 0).ok_or(INVALID_VALUE)?;
        let end = at.checked_add(len).ok_or(INVALID_VALUE)?;
        if at.is_multiple_of(LARGE) && (offset != 0 || len < p.len) {
            // A part of a handle.
            return Err(NOT_SUPPORTED);
        }
        if len != p.len || !at.is_multiple_of(LARGE) {
            return Err(INVALID_VALUE);
        }
        let inside = vmm.reservations.range(..=at).next_back().is_some_and(|(s, n)| end <= s + n);
        if !inside {
            return Err(INVALID_VALUE);
        }
        let taken = vmm.mappings.range(..end).next_back().is_some_and(|(s, m)| s + m.len > at);
        if taken {
            return Err(INVALID_VALUE);
        }
        let (pages, from) = match &p.shared {
            Some(pages) => (pages, 0),
            None => (&vmm.disks[p.device].as_ref().ok_or(INVALID_VALUE)?.pages, p.offset),
        };
        if !pages.map_at(at as usize, len as usize, from) {
            return Err(OUT_OF_MEMORY);
        }
        p.mappings += 1;
        vmm.ids += 1;
        let mapping = Mapping { len, handle, id: vmm.ids | 1 << 48, access: vec![0; devices] };
        vmm.mappings.insert(at, mapping);
        Ok(())
    }

    /// Takes the mappings at `starts` away; nothing touches them now.
    pub(super) fn unmap(&mut self, starts: &[u64]) -> Result<(), i32> {
        for at in starts {
            let Some(len) = self.vmm.mappings.get(at).map(|m| m.len) else {
                continue;
            };
            if !os::hide(*at as usize, len as usize) {
                return Err(OUT_OF_MEMORY);
            }
            if let Some(m) = self.vmm.mappings.remove(at) {
                if let Some(p) = self.vmm.physical.get_mut(&m.handle) {
                    p.mappings -= 1;
                }
                self.pages_end(m.handle);
            }
        }
        Ok(())
    }

    /// Sets what each device may do with whole mappings: pairs of device and flags (0, 1 or 3).
    pub(super) fn set_access(&mut self, at: u64, len: u64, wanted: &[(usize, u32)]) -> Result<(), i32> {
        let starts = self.vmm.whole(at, len)?;
        for at in starts {
            let Some(m) = self.vmm.mappings.get_mut(&at) else {
                continue;
            };
            for (device, flags) in wanted {
                m.access[*device] = *flags;
            }
            let all = m.access.iter().fold(0, |a, b| a | b);
            if !os::protect(at as usize, m.len as usize, all & 1 != 0, all & 2 != 0) {
                return Err(OUT_OF_MEMORY);
            }
        }
        Ok(())
    }
}
