//! Idle handles mapped a second time, where a larger range is needed.
//!
//! ```text
//!   before   | live | h1 idle | live | h2 idle | live |                       no hole is large enough
//!   alias    | live | h1 past | live | h2 past | live | ...  | h1 | h2 |      one range, at once
//!   later    | live |  (gap)  | live |  (gap)  | live | ...  | h1 | h2 |      when the event of `past` is complete
//! ```
//!
//! The device is not waited for: mapping an alias while work runs at the old address is legal, and the driver takes
//! microseconds for it. **Invariants** (I9): each handle has one usable mapping; nothing is handed out of a mapping that is
//! past; it is unmapped only when the event that covers its last use is complete, or after a proof.
//!
//! **Cost**: a map for each handle, one set-access for all; choosing is linear in the handles.

use std::collections::BTreeSet;

use super::virtual_range::{Mapped, Use, VirtualRange};
use super::{PAGE, Plan};
use crate::error::Result;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use tenure_driver::Event;

/// Mappings that a pool has at most, those that are past included. Drivers were seen to take 200 000.
const MAPPINGS: usize = 128 << 10;

/// Handles chosen for a plan.
pub(in crate::pool) struct Choice {
    /// Where they are, in the order in which they will lie.
    pub(in crate::pool) offsets: Vec<u64>,
    /// In how many stretches they lie now.
    pub(super) stretches: usize,
    /// Usable bytes of all of them.
    pub(in crate::pool) usable: u64,
    /// Bytes of new pages that are missing behind them.
    pub(in crate::pool) fresh: u64,
}

impl VirtualRange {
    /// Bytes of addresses whose handles are mapped elsewhere now, and that wait for their last use.
    pub(in crate::pool) fn past_bytes(&self) -> u64 {
        self.past.load(Ordering::Relaxed)
    }

    /// Unmaps what is past and complete, so that its addresses can be used again. The caller has the turn.
    pub(in crate::pool) fn recycle(&self) {
        if self.past_bytes() != 0 {
            self.unmap_over();
        }
    }

    /// [`VirtualRange::recycle`], also where nothing is counted as past.
    pub(in crate::pool) fn unmap_over(&self) {
        let over: BTreeSet<u64> = self.over(|event| event.query().unwrap_or(false)).into_iter().collect();
        if let (_, Some(e)) = self.unmap(&over) {
            log::debug!("tenure: an address that is not used any more stays mapped for now: {e}");
        }
    }

    /// Free addresses from `offset` on, in its zone.
    pub(in crate::pool) fn room(&self, offset: u64) -> u64 {
        let mapped = self.mapped.lock();
        let after = mapped.partition_point(|m| m.offset < offset);
        let end = if offset < self.small_base() { self.small_base() } else { self.span() };
        mapped.get(after).map_or(end, |m| m.offset.min(end)).saturating_sub(offset)
    }

    /// The usable bytes of the handles at `offsets`, with these.
    pub(in crate::pool) fn usable_of(&self, offsets: &[u64]) -> Vec<(u64, u64)> {
        let mapped = self.mapped.lock();
        let usable = |offset: &u64| {
            let at = mapped.binary_search_by_key(offset, |m| m.offset).ok()?;
            Some((*offset, mapped[at].usable()))
        };
        offsets.iter().filter_map(usable).collect()
    }

    /// Chooses handles for `missing` bytes at the place of `plan`: whole ones that lie in `free` stretches, the
    /// highest first. Where they do not suffice, up to `left` bytes of new pages; `None` where those do not either.
    pub(in crate::pool) fn choose(&self, free: &[(u64, u64)], plan: &Plan, missing: u64, left: u64) -> Option<Choice> {
        let kept = plan.offset - plan.extends..plan.offset;
        let room = self.room(plan.offset);
        let mapped = self.mapped.lock();
        // (bytes, usable, offset)
        let mut idle: Vec<(u64, u64, u64)> = Vec::new();
        for m in mapped.iter().filter(|m| m.usable() > 0) {
            let at = free.partition_point(|(start, _)| *start <= m.offset);
            let Some((start, bytes)) = free[..at].last() else { continue };
            let inside = m.offset + m.usable() <= start + bytes;
            if inside && (m.end() <= kept.start || m.offset >= kept.end) {
                idle.push((m.bytes(), m.usable(), m.offset));
            }
        }
        // What is live gathers at the low end: measured, it fits a little better than to begin with the largest stretches.
        idle.sort_by_key(|(_, _, offset)| std::cmp::Reverse(*offset));
        let mut choice = Choice { offsets: Vec::new(), stretches: 0, usable: 0, fresh: 0 };
        let mut rest = Vec::new();
        for (bytes, usable, offset) in idle {
            let open = missing.saturating_sub(choice.usable).next_multiple_of(PAGE);
            if usable == bytes && bytes <= open {
                choice.stretches += usize::from(choice.offsets.last() != Some(&(offset + bytes)));
                choice.offsets.push(offset);
                choice.usable += usable;
            } else {
                rest.push((bytes, usable, offset));
            }
        }
        let mut total = choice.usable;
        if choice.usable < missing {
            // One more that is larger than what is missing, or not usable to its end: it comes last.
            let enough = rest.into_iter().filter(|(_, usable, _)| choice.usable + usable >= missing);
            if let Some((bytes, usable, offset)) = enough.min() {
                choice.stretches += 1;
                choice.offsets.push(offset);
                choice.usable += usable;
                total += bytes;
            } else {
                choice.fresh = (missing - choice.usable).next_multiple_of(PAGE);
                total += choice.fresh;
                if choice.fresh > left || choice.offsets.is_empty() {
                    return None;
                }
            }
        }
        (total <= room && mapped.len() + choice.offsets.len() <= MAPPINGS).then_some(choice)
    }

    /// Maps the handles at `offsets` one after the other from `at` on; their old addresses are past from now on, or over
    /// when no event is given. The caller has the turn.
    ///
    /// # Errors
    /// What the driver says; nothing changed.
    pub(in crate::pool) fn alias(&self, offsets: &[u64], at: u64, last_use: Option<&Arc<Event>>) -> Result<()> {
        let handles: Vec<_> = {
            let mapped = self.mapped.lock();
            offsets
                .iter()
                .filter_map(|offset| mapped.binary_search_by_key(offset, |m| m.offset).ok())
                .map(|i| (mapped[i].pages.clone(), mapped[i].usable()))
                .collect()
        };
        let mut new: Vec<Mapped> = Vec::with_capacity(handles.len());
        let done = (|| {
            let mut next = at;
            for (pages, usable) in handles {
                self.range.map(next as usize, &pages)?;
                next += pages.bytes() as u64;
                new.push(Mapped { offset: next - pages.bytes() as u64, uses: Use::Usable(usable), pages });
            }
            self.range.set_access(at as usize, (next - at) as usize, &self.users)
        })();
        if let Err(e) = done {
            self.roll_back(new, true);
            return Err(e.into());
        }
        let mut mapped = self.mapped.lock();
        for offset in offsets {
            if let Ok(i) = mapped.binary_search_by_key(offset, |m| m.offset) {
                let entry = &mut mapped[i];
                entry.uses = match last_use {
                    Some(event) => {
                        self.past.fetch_add(entry.bytes(), Ordering::Relaxed);
                        Use::Past(event.clone())
                    }
                    None => Use::Dead,
                };
            }
        }
        let after = mapped.partition_point(|m| m.offset < at);
        mapped.splice(after..after, new);
        Ok(())
    }
}
