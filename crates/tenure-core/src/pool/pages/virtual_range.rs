//! Ranges of the pool's own: one reservation of addresses, physical handles mapped into it.
//!
//! Handles are powers of two of 2 to 32 MiB: the handle is the unit of mapping and of giving back, for good, so that a
//! small or young pool takes small ones. Large handles come first in a growth, and access is set once over all of it.
//!
//! **Rolling back**: what was created and mapped before a failure is unmapped and let go of. A mapping that cannot be
//! unmapped (two failures in a row) stays in the table as *dead*: it counts as reserved, is never handed out, and is
//! tried again whenever something is given back.

use std::ops::Range;

use tenure_driver::{AddressRange, Device, PhysicalPages, Sharing};

use super::{PAGE, Plan};
use crate::error::{Error, Result};
use crate::pool::place::{LARGE, PROVEN, Place};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The largest handle, in bytes.
const LARGEST: u64 = 32 << 20;

/// From this many bytes on, a growth asks the driver first whether it has them.
const ASK: u64 = 64 << 20;

/// One handle, mapped.
struct Mapped {
    offset: u64,
    /// What the pool may use of it; 0 for a dead one.
    usable: u64,
    pages: PhysicalPages,
}

impl Mapped {
    fn end(&self) -> u64 {
        self.offset + self.pages.bytes() as u64
    }
}

/// See the module.
pub(in crate::pool) struct VirtualRange {
    device: &'static Device,
    range: AddressRange,
    small_base: u64,
    /// By offset. Touched by whoever has the pool's turn only; the lock is never waited for.
    mapped: Mutex<Vec<Mapped>>,
    reserved: AtomicU64,
}

impl VirtualRange {
    /// Reserves addresses for twice the device's memory, and an eighth more for the small zone.
    ///
    /// # Errors
    /// What the driver says.
    pub(in crate::pool) fn new(device: &'static Device, total: u64) -> Result<Self> {
        let total = total.next_multiple_of(PAGE).clamp(64 * PAGE, 400 << 30);
        let small_base = 2 * total;
        let span = small_base + (total / 8).next_multiple_of(PAGE);
        let range = AddressRange::reserve(device, span as usize, PAGE as usize)?;
        Ok(Self { device, range, small_base, mapped: Mutex::new(Vec::new()), reserved: AtomicU64::new(0) })
    }

    /// Reserves `bytes` addresses, all of one zone.
    ///
    /// # Errors
    /// What the driver says.
    pub(in crate::pool) fn reserve(device: &'static Device, bytes: u64) -> Result<Self> {
        let bytes = bytes.next_multiple_of(PAGE);
        let range = AddressRange::reserve(device, bytes as usize, PAGE as usize)?;
        Ok(Self { device, range, small_base: bytes, mapped: Mutex::new(Vec::new()), reserved: AtomicU64::new(0) })
    }

    pub(in crate::pool) fn base(&self) -> u64 {
        self.range.base()
    }

    pub(in crate::pool) fn span(&self) -> u64 {
        self.range.bytes() as u64
    }

    pub(in crate::pool) fn small_base(&self) -> u64 {
        self.small_base
    }

    pub(in crate::pool) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    #[inline]
    pub(in crate::pool) fn offset_of(&self, ptr: u64) -> Option<u64> {
        let offset = ptr.checked_sub(self.range.base())?;
        (offset < self.range.bytes() as u64).then_some(offset)
    }

    /// Where a growth costs the fewest bytes: behind a free block that it can extend, in the gap that is tight enough.
    /// `left` bounds what may be used in bytes. `None` when nothing fits.
    pub(in crate::pool) fn plan(
        &self,
        place: &Place,
        zone: u8,
        tags: &[u32],
        need: u64,
        align: u64,
        left: u64,
    ) -> Option<Plan> {
        let zone_range: Range<u64> = if zone == LARGE { 0..self.small_base } else { self.small_base..self.span() };
        let mapped = self.mapped.lock();
        let mut best: Option<Plan> = None;
        let mut gap_start = zone_range.start;
        let mut whole = true;
        let ends = mapped
            .iter()
            .filter(|m| zone_range.contains(&m.offset))
            .map(|m| (m.offset, m.end(), m.usable == m.pages.bytes() as u64))
            .chain([(zone_range.end, zone_range.end, true)]);
        for (offset, end, full) in ends {
            if offset > gap_start {
                let (have, tag) = match place.free_before(gap_start, tags, zone) {
                    Some(found) if whole => found,
                    _ => (0, PROVEN),
                };
                let first = (gap_start - have).next_multiple_of(align);
                let missing = (first + need).saturating_sub(gap_start);
                let bytes = missing.next_multiple_of(PAGE);
                if missing > 0 && bytes <= offset - gap_start && missing <= left {
                    let plan = Plan { offset: gap_start, bytes, usable: bytes.min(left), extends: have, tag };
                    if best.is_none_or(|b| plan.bytes < b.bytes) {
                        best = Some(plan);
                    }
                }
            }
            (gap_start, whole) = (end, full);
        }
        best
    }

    /// Creates, maps and opens what the plan says.
    ///
    /// # Errors
    /// What the driver says; nothing changed.
    pub(in crate::pool) fn grow(&self, plan: Plan, limit: Option<u64>) -> Result<()> {
        // A large growth that cannot end well would take all of the device's memory for a moment.
        if plan.bytes >= ASK && (self.device.memory_info()?.free as u64) < plan.bytes {
            return Err(Error::OutOfMemory(Box::default()));
        }
        let cap = match limit {
            Some(limit) => limit / 4096,
            None => (self.reserved() + plan.bytes) / 64,
        };
        let cap = (1 << cap.clamp(PAGE, LARGEST).ilog2()).max(PAGE);
        let mut new: Vec<Mapped> = Vec::new();
        let taken = self.take(plan, cap, &mut new).and_then(|()| {
            Ok(self.range.set_access(plan.offset as usize, plan.bytes as usize, &[self.device.ordinal()])?)
        });
        if let Err(e) = taken {
            self.roll_back(new);
            return Err(e);
        }
        self.reserved.fetch_add(plan.bytes, Ordering::Relaxed);
        let mut mapped = self.mapped.lock();
        let at = mapped.partition_point(|m| m.offset < plan.offset);
        mapped.splice(at..at, new);
        Ok(())
    }

    /// Creates and maps handles of at most `cap` bytes; what is done is in `new`, also after a failure.
    fn take(&self, plan: Plan, cap: u64, new: &mut Vec<Mapped>) -> Result<()> {
        let mut done = 0;
        while done < plan.bytes {
            let bytes = (1u64 << (plan.bytes - done).ilog2()).min(cap);
            let pages = PhysicalPages::create(self.device, bytes as usize, Sharing::default())?;
            let offset = plan.offset + done;
            self.range.map(offset as usize, &pages)?;
            let usable = plan.usable.saturating_sub(done).min(bytes);
            new.push(Mapped { offset, usable, pages });
            done += bytes;
        }
        Ok(())
    }

    fn roll_back(&self, new: Vec<Mapped>) {
        for mut entry in new {
            // SAFETY: nobody has been given an address of this mapping yet.
            let unmapped = unsafe { self.range.unmap(entry.offset as usize, entry.pages.bytes()) };
            if unmapped.is_err() {
                entry.usable = 0;
                self.reserved.fetch_add(entry.pages.bytes() as u64, Ordering::Relaxed);
                let mut mapped = self.mapped.lock();
                let at = mapped.partition_point(|m| m.offset < entry.offset);
                mapped.insert(at, entry);
            }
        }
    }

    /// Lets go of everything without a driver call: the process is ending or was forked.
    pub(in crate::pool) fn forget(&self) {
        std::mem::forget(std::mem::take(&mut *self.mapped.lock()));
    }

    pub(super) fn pieces(&self) -> Vec<(u64, u64)> {
        self.mapped.lock().iter().filter(|m| m.usable > 0).map(|m| (m.offset, m.usable)).collect()
    }

    pub(super) fn give_back(&self, pieces: &[(u64, u64)]) -> (Vec<(u64, u64)>, Option<Error>) {
        let wanted: std::collections::BTreeSet<u64> = pieces.iter().map(|(offset, _)| *offset).collect();
        let mut out: Vec<Mapped> = Vec::new();
        {
            let mut mapped = self.mapped.lock();
            let mut kept = Vec::with_capacity(mapped.len());
            for entry in mapped.drain(..) {
                if entry.usable == 0 || wanted.contains(&entry.offset) { out.push(entry) } else { kept.push(entry) }
            }
            *mapped = kept;
        }
        let (mut stay, mut first_error) = (Vec::new(), None);
        let mut group: Vec<Mapped> = Vec::new();
        for entry in out {
            // Whole neighbours go in one call.
            if group.last().is_some_and(|last| last.end() != entry.offset) {
                self.unmap_group(&mut group, &mut stay, &mut first_error);
            }
            group.push(entry);
        }
        self.unmap_group(&mut group, &mut stay, &mut first_error);
        let back = stay.iter().filter(|m| m.usable > 0).map(|m| (m.offset, m.usable)).collect();
        let mut mapped = self.mapped.lock();
        mapped.append(&mut stay);
        mapped.sort_by_key(|m| m.offset);
        (back, first_error)
    }

    fn unmap_group(&self, group: &mut Vec<Mapped>, stay: &mut Vec<Mapped>, first_error: &mut Option<Error>) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { return };
        let (offset, bytes) = (first.offset, last.end() - first.offset);
        // SAFETY: the placer has let go of these pieces after a proof that nothing queued uses them.
        match unsafe { self.range.unmap(offset as usize, bytes as usize) } {
            Ok(()) => {
                self.reserved.fetch_sub(bytes, Ordering::Relaxed);
                group.clear();
            }
            Err(e) => {
                stay.append(group);
                first_error.get_or_insert(e.into());
            }
        }
    }
}

impl Drop for VirtualRange {
    fn drop(&mut self) {
        // The range may be given back only when nothing is mapped in it, and its own drop comes after this.
        let all: Vec<(u64, u64)> = self.mapped.lock().iter().map(|m| (m.offset, m.usable)).collect();
        let (_, error) = self.give_back(&all);
        if let Some(e) = error {
            log::error!("tenure: memory of a pool could not be given back when the pool ended: {e}");
        }
    }
}
