//! Ranges of the pool's own: one reservation of addresses, physical handles mapped into it.
//!
//! Handles are powers of two of 2 to 32 MiB: the handle is the unit of mapping and of giving back, for good, so that a
//! small or young pool takes small ones. Large handles come first in a growth, and access is set once over all of it.
//!
//! **Rolling back**: what was created and mapped before a failure is unmapped and let go of. A mapping that cannot be
//! unmapped (two failures in a row) stays in the table as *dead*: it counts as reserved, is never handed out, and is
//! tried again whenever something is given back.
//!
//! **Aliases** (`alias.rs`): a handle whose memory is idle is mapped a second time where a larger range is needed. The old
//! mapping is *past*: nothing is handed out of it, and it goes when the event that covers its last use is complete. The
//! handle is counted once, and goes back to the device with the last of its mappings.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use tenure_driver::{AddressRange, Device, Event, PhysicalPages, Sharing};

use super::budget::Budget;
use super::{Choice, PAGE, Plan};
use crate::error::{Error, Result};
use crate::pool::place::{LARGE, PROVEN, Place};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex};

/// The largest handle, in bytes, where nothing else is asked for.
const LARGEST: u64 = 32 << 20;

/// A handle has at most this part of what a growing pool has: it moves as a whole, so that what is idle in a part of it is not
/// to be had.
const PART: u64 = 256;

/// How many plans are weighed at most.
const PLANS: usize = 64;

/// From this many bytes on, a growth asks the driver first whether it has them.
const ASK: u64 = 64 << 20;

/// What a mapping is for.
#[derive(Clone)]
pub(super) enum Use {
    /// The placer hands it out: so many bytes of it.
    Usable(u64),
    /// Nobody uses it; it could not be unmapped, or nobody has tried yet.
    Dead,
    /// Its handle is mapped elsewhere now. What uses this address is complete when the event is.
    Past(Arc<Event>),
}

/// One handle, mapped.
pub(super) struct Mapped {
    pub(super) offset: u64,
    pub(super) uses: Use,
    pub(super) pages: Arc<PhysicalPages>,
}

impl Mapped {
    pub(super) fn bytes(&self) -> u64 {
        self.pages.bytes() as u64
    }

    pub(super) fn end(&self) -> u64 {
        self.offset + self.bytes()
    }

    /// What the pool may use of it.
    pub(super) fn usable(&self) -> u64 {
        match self.uses {
            Use::Usable(bytes) => bytes,
            _ => 0,
        }
    }
}

/// See the module.
pub(in crate::pool) struct VirtualRange {
    pub(super) device: &'static Device,
    pub(super) range: AddressRange,
    small_base: u64,
    /// The largest handle, in bytes.
    largest: u64,
    /// By offset. Changed by whoever has the pool's turn only, so that the lock is never waited for long.
    pub(super) mapped: Mutex<Vec<Mapped>>,
    /// How its pages can be handed to other processes.
    sharing: Sharing,
    /// The devices that may use what is mapped.
    pub(super) users: Vec<i32>,
    reserved: AtomicU64,
    /// Bytes of addresses that are past.
    pub(super) past: AtomicU64,
    /// How often its handles may be mapped again while it could grow. The turn's holder asks.
    budget: Mutex<Budget>,
}

impl VirtualRange {
    /// Reserves addresses for twice the device's memory, and an eighth more for the small zone. Handles have at most
    /// `largest` bytes, a power of two; 0 for what suits.
    ///
    /// # Errors
    /// What the driver says.
    pub(in crate::pool) fn new(device: &'static Device, total: u64, largest: u64) -> Result<Self> {
        let total = total.next_multiple_of(PAGE).clamp(64 * PAGE, 400 << 30);
        let small_base = 2 * total;
        let span = small_base + (total / 8).next_multiple_of(PAGE);
        Self::with_addresses(device, span, small_base, largest)
    }

    fn with_addresses(device: &'static Device, span: u64, small_base: u64, largest: u64) -> Result<Self> {
        Ok(Self {
            device,
            range: AddressRange::reserve(device, span as usize, PAGE as usize)?,
            small_base,
            largest,
            mapped: Mutex::new(Vec::new()),
            sharing: Sharing::default(),
            users: vec![device.ordinal()],
            reserved: AtomicU64::new(0),
            past: AtomicU64::new(0),
            budget: Mutex::new(Budget::new(Instant::now())),
        })
    }

    /// Reserves `bytes` addresses, all of one zone.
    ///
    /// # Errors
    /// What the driver says.
    pub(in crate::pool) fn reserve(device: &'static Device, bytes: u64) -> Result<Self> {
        let bytes = bytes.next_multiple_of(PAGE);
        Self::with_addresses(device, bytes, bytes, 0)
    }

    /// Its pages can be handed to other processes so.
    pub(in crate::pool) fn shareable(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
        self
    }

    /// These devices may use what is mapped.
    pub(in crate::pool) fn used_by(mut self, users: Vec<i32>) -> Self {
        self.users = users;
        self
    }

    /// The devices that may use what is mapped.
    pub(in crate::pool) fn users(&self) -> &[i32] {
        &self.users
    }

    /// The handles under the `bytes` live bytes at `offset`, by offset, with the bytes of the first that lie before it. A
    /// live block's handles stay where they are, so that these may be used without the turn.
    pub(in crate::pool) fn under(&self, offset: u64, bytes: u64) -> (u64, Vec<Arc<PhysicalPages>>) {
        let mapped = self.mapped.lock();
        let inside = mapped.iter().filter(|m| m.usable() > 0 && m.offset < offset + bytes && m.end() > offset);
        let mut found = inside.peekable();
        let before = found.peek().map_or(0, |first| offset.saturating_sub(first.offset));
        (before, found.map(|m| m.pages.clone()).collect())
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

    pub(super) fn device(&self) -> i32 {
        self.device.ordinal()
    }

    /// Whether handles may be mapped again while the pool could grow.
    pub(in crate::pool) fn may_remap(&self) -> bool {
        self.budget.lock().allows(Instant::now())
    }

    /// These were.
    pub(in crate::pool) fn has_remapped(&self, choice: &Choice) {
        self.budget.lock().spend(choice.offsets.len(), choice.stretches);
    }

    pub(in crate::pool) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    #[inline]
    pub(in crate::pool) fn offset_of(&self, ptr: u64) -> Option<u64> {
        let offset = ptr.checked_sub(self.range.base())?;
        (offset < self.range.bytes() as u64).then_some(offset)
    }

    /// The addresses of a zone.
    pub(in crate::pool) fn zone(&self, zone: u8) -> Range<u64> {
        if zone == LARGE { 0..self.small_base } else { self.small_base..self.span() }
    }

    /// Where a growth could go, what costs the fewest bytes first: behind a free block that it can extend, in the gap that
    /// is tight enough. `left` bounds what may be used in bytes.
    pub(in crate::pool) fn plans(
        &self,
        place: &Place,
        zone: u8,
        tags: &[u32],
        need: u64,
        align: u64,
        left: u64,
    ) -> Vec<Plan> {
        let zone_range = self.zone(zone);
        let mapped = self.mapped.lock();
        let mut plans: Vec<Plan> = Vec::new();
        let mut gap_start = zone_range.start;
        let mut whole = true;
        let ends = mapped
            .iter()
            .filter(|m| zone_range.contains(&m.offset))
            .map(|m| (m.offset, m.end(), m.usable() == m.bytes()))
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
                    plans.push(Plan { offset: gap_start, bytes, usable: bytes.min(left), extends: have, tag });
                }
            }
            (gap_start, whole) = (end, full);
        }
        // Stable: the lowest among equals.
        plans.sort_by_key(|plan| plan.bytes);
        plans.truncate(PLANS);
        plans
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
        let cap = match (self.largest, limit) {
            (0, Some(limit)) => limit / 4096,
            (0, None) => (self.reserved() + plan.bytes) / PART,
            (largest, _) => largest,
        };
        let most = if self.largest == 0 { LARGEST } else { self.largest };
        let cap = (1 << cap.clamp(PAGE, most).ilog2()).max(PAGE);
        let mut new: Vec<Mapped> = Vec::new();
        let taken = self
            .take(plan, cap, &mut new)
            .and_then(|()| Ok(self.range.set_access(plan.offset as usize, plan.bytes as usize, &self.users)?));
        if let Err(e) = taken {
            self.roll_back(new, false);
            return Err(e);
        }
        self.reserved.fetch_add(plan.bytes, Ordering::Relaxed);
        self.budget.lock().created(new.len());
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
            let pages = PhysicalPages::create(self.device, bytes as usize, self.sharing)?;
            let offset = plan.offset + done;
            self.range.map(offset as usize, &pages)?;
            let usable = plan.usable.saturating_sub(done).min(bytes);
            new.push(Mapped { offset, uses: Use::Usable(usable), pages: Arc::new(pages) });
            done += bytes;
        }
        Ok(())
    }

    /// Takes away what was mapped for a growth that failed; `counted` says whether its handles are counted as reserved.
    pub(super) fn roll_back(&self, new: Vec<Mapped>, counted: bool) {
        for mut entry in new {
            // SAFETY: nobody has been given an address of this mapping yet.
            let unmapped = unsafe { self.range.unmap(entry.offset as usize, entry.pages.bytes()) };
            if unmapped.is_err() {
                entry.uses = Use::Dead;
                if !counted {
                    self.reserved.fetch_add(entry.bytes(), Ordering::Relaxed);
                }
                let mut mapped = self.mapped.lock();
                let at = mapped.partition_point(|m| m.offset < entry.offset);
                mapped.insert(at, entry);
            }
        }
    }

    /// Unmaps everything; nothing queued uses any of it, and there is nobody else who would. What could not go is as it was,
    /// and may be tried again.
    ///
    /// # Errors
    /// What the driver says.
    pub(in crate::pool) fn clear(&self) -> Result<()> {
        let pieces = self.pieces().into_iter().map(|(offset, _)| offset);
        let wanted = pieces.chain(self.over(|event| event.query().unwrap_or(false))).collect();
        self.unmap(&wanted).1.map_or(Ok(()), Err)
    }

    /// Lets go of everything without a driver call: the process is ending or was forked.
    pub(in crate::pool) fn forget(&self) {
        std::mem::forget(std::mem::take(&mut *self.mapped.lock()));
    }

    pub(super) fn pieces(&self) -> Vec<(u64, u64)> {
        self.mapped.lock().iter().filter(|m| m.usable() > 0).map(|m| (m.offset, m.usable())).collect()
    }

    pub(super) fn give_back(&self, pieces: &[(u64, u64)]) -> (Vec<(u64, u64)>, Option<Error>) {
        let mut wanted: BTreeSet<u64> = pieces.iter().map(|(offset, _)| *offset).collect();
        wanted.extend(self.over(|event| event.query().unwrap_or(false)));
        self.unmap(&wanted)
    }

    /// Where mappings lie that nothing hands out and nothing queued uses, as far as `complete` says of their events.
    pub(super) fn over(&self, complete: impl Fn(&Event) -> bool) -> Vec<u64> {
        // No lock is held while the driver is asked.
        let asked: Vec<(u64, Use)> = {
            let mapped = self.mapped.lock();
            mapped.iter().filter(|m| m.usable() == 0).map(|m| (m.offset, m.uses.clone())).collect()
        };
        let mut known: Option<(*const Event, bool)> = None;
        let mut over = Vec::new();
        for (offset, uses) in asked {
            let done = match &uses {
                Use::Usable(_) => false,
                Use::Dead => true,
                // Neighbours mostly share an event.
                Use::Past(event) => match known {
                    Some((same, done)) if same == Arc::as_ptr(event) => done,
                    _ => {
                        let done = complete(event);
                        known = Some((Arc::as_ptr(event), done));
                        done
                    }
                },
            };
            if done {
                over.push(offset);
            }
        }
        over
    }

    /// Unmaps what lies at `offsets`, which nothing queued uses. Usable pieces that could not go are in the answer, with the
    /// first error. The caller has the turn, or the only reference.
    pub(super) fn unmap(&self, offsets: &BTreeSet<u64>) -> (Vec<(u64, u64)>, Option<Error>) {
        let mut out: Vec<Mapped> = Vec::new();
        {
            let mut mapped = self.mapped.lock();
            let mut kept = Vec::with_capacity(mapped.len());
            for entry in mapped.drain(..) {
                if offsets.contains(&entry.offset) { out.push(entry) } else { kept.push(entry) }
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
        let back = stay.iter().filter(|m| m.usable() > 0).map(|m| (m.offset, m.usable())).collect();
        let mut mapped = self.mapped.lock();
        mapped.append(&mut stay);
        mapped.sort_by_key(|m| m.offset);
        (back, first_error)
    }

    fn unmap_group(&self, group: &mut Vec<Mapped>, stay: &mut Vec<Mapped>, first_error: &mut Option<Error>) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { return };
        let (offset, bytes) = (first.offset, last.end() - first.offset);
        // SAFETY: the placer has let go of these pieces, and an event or a proof says that nothing queued uses them.
        match unsafe { self.range.unmap(offset as usize, bytes as usize) } {
            Ok(()) => {
                for entry in group.drain(..) {
                    if matches!(entry.uses, Use::Past(_)) {
                        self.past.fetch_sub(entry.bytes(), Ordering::Relaxed);
                    }
                    // The device has it back with the last of its mappings; only the turn's holder clones or drops it.
                    if Arc::strong_count(&entry.pages) == 1 {
                        self.reserved.fetch_sub(entry.bytes(), Ordering::Relaxed);
                    }
                }
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
        // The range may be given back only when nothing is mapped in it, and its own drop comes after this. The pool has
        // waited for everything; an event that cannot be asked any more is waited for, or is of a device that is lost.
        let past = self.over(|event| {
            event.query().unwrap_or(false)
                || match event.synchronize() {
                    Ok(()) => true,
                    Err(e) => e.is_sticky() || e.is_context_gone(),
                }
        });
        let wanted: BTreeSet<u64> =
            past.into_iter().chain(self.pieces().into_iter().map(|(offset, _)| offset)).collect();
        let (_, mut error) = self.unmap(&wanted);
        if error.is_some() {
            error = self.unmap(&wanted).1;
        }
        if let Some(e) = error {
            log::error!("tenure: memory of a pool could not be given back when the pool ended: {e}");
        }
    }
}
