//! Growing, where idle pages cannot be had instead, and giving idle pages back to grow elsewhere.

use super::{Climb, Step};
use crate::error::Result;
use crate::pool::order::cur;
use crate::pool::pages::{PAGE, Pages, Plan, idle};
use crate::pool::place::{LARGE, PROVEN, Place, UNIT, zone_of};
use crate::pool::turn::Turn;
use crate::pool::{Pool, State};
use crate::resource::Request;

/// Where threads are in each other's way, a growth takes at least this share of what is reserved,
const CROWD_SHARE: u64 = 32;
/// and no more than so many bytes for it: all wait while one grows.
const CROWD_MOST: u64 = 32 << 20;

impl Pool {
    pub(super) fn grow(&self, climb: &Climb<'_>) -> Result<Step> {
        let turn = self.turns.take()?;
        if turn.waited {
            return Ok(Step::Again);
        }
        match self.remap_instead(&turn, climb)? {
            Step::Nothing(_) => self.grow_with(&turn, climb),
            step => Ok(step),
        }
    }

    /// Takes what is missing. The caller has the turn.
    fn grow_with(&self, _turn: &Turn<'_>, climb: &Climb<'_>) -> Result<Step> {
        let (request, asker) = (climb.request, climb.asker());
        if let Pages::Virtual(range) = &self.pages {
            range.recycle();
        }
        let (zone, plan) = {
            let mut state = self.lock();
            let (tags, stamp) = Self::stamp(&mut state, asker);
            if let Some(offset) = state.take_drained(request, &tags, stamp) {
                drop(state);
                return Ok(Step::Served(self.pages.ptr_of(offset)));
            }
            // The small zone has addresses for an eighth of the device only; beyond that small sizes borrow.
            let zones = [self.growth_zone(request), LARGE];
            let found = zones.into_iter().find_map(|z| Some((z, self.plan(&state, request, z, &tags, false)?)));
            match found {
                Some(found) => found,
                None => return Ok(Step::Nothing("the limit is reached")),
            }
        };
        let plan = match self.take_pages(plan, climb.crowded)? {
            Some(plan) => plan,
            None => return Ok(Step::Nothing("there was no more to be had")),
        };
        self.note_reserved();
        self.tend.grew(&self.options, plan.bytes);
        self.plots.grew();
        let mut state = self.lock();
        let (tags, stamp) = Self::stamp(&mut state, asker);
        // With one stream only, everything is of its tag, so that it merges.
        let tag = state.sole.map_or(plan.tag, cur);
        // The tag that the plan saw may have been proven meanwhile; a tag that nobody has any more must not come back.
        let tag = if tags.contains(&tag) { tag } else { PROVEN };
        state.place.extend(plan.offset, plan.usable, tag, zone);
        state.borrows = matches!(self.pages, Pages::Chunks(_));
        let mut offset = state.take_drained(request, &tags, stamp);
        if offset.is_none() && zone != zone_of(request.bytes as u64) {
            offset = state.borrow(request, &tags, stamp);
        }
        drop(state);
        Ok(offset.map_or(Step::Again, |offset| Step::Served(self.pages.ptr_of(offset))))
    }

    /// Takes what the plan says, rounded up to the unit of growth where that can be had.
    ///
    /// # Errors
    /// Any but out of memory, which is the answer `None`.
    pub(in crate::pool) fn take_pages(&self, plan: Plan, crowded: bool) -> Result<Option<Plan>> {
        for plan in [self.generous(plan, crowded), Some(plan)].into_iter().flatten() {
            match self.pages.grow(plan, self.options.maximum_bytes, &self.upstream) {
                Ok(plan) => return Ok(Some(plan)),
                Err(e) if e.is_out_of_memory() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// A plan rounded up to the unit of growth and to what a growth takes at least; `None` where that changes nothing or does
    /// not fit.
    fn generous(&self, plan: Plan, crowded: bool) -> Option<Plan> {
        let grain = if matches!(self.pages, Pages::Virtual(_)) { PAGE } else { UNIT };
        let unit = self.options.chunk_bytes.max(1);
        let crowd = if crowded { (self.pages.reserved() / CROWD_SHARE).min(CROWD_MOST) } else { 0 };
        let least = self.options.growth_bytes.max(crowd).checked_next_multiple_of(grain)?;
        let left = self.limit().saturating_sub(self.lock().place.mapped_bytes());
        let bytes = plan.bytes.max(least).checked_next_multiple_of(unit)?;
        let room = match &self.pages {
            Pages::Virtual(range) => range.room(plan.offset),
            Pages::Chunks(_) => u64::MAX,
        };
        (bytes > plan.bytes && bytes <= left && bytes <= room).then_some(Plan { bytes, usable: bytes, ..plan })
    }

    /// Where a growth for a request belongs.
    pub(in crate::pool) fn growth_zone(&self, request: &Request) -> u8 {
        match self.pages {
            Pages::Virtual(_) => zone_of(request.bytes as u64),
            // A chunk is for everything; small sizes borrow from it.
            Pages::Chunks(_) => LARGE,
        }
    }

    /// What a growth would take; with `beyond`, as if everything that is idle had gone back first.
    pub(in crate::pool) fn plan(
        &self,
        state: &State,
        request: &Request,
        zone: u8,
        tags: &[u32],
        beyond: bool,
    ) -> Option<Plan> {
        let (bytes, align) = (request.bytes as u64, request.align as u64);
        let need = Place::need(bytes, align);
        let left = self.limit().saturating_sub(state.place.mapped_bytes()) / UNIT * UNIT;
        let left = if beyond { self.limit() } else { left };
        match &self.pages {
            Pages::Virtual(v) => v.plans(&state.place, zone, tags, need, align, left).into_iter().next(),
            Pages::Chunks(_) => {
                let need = need + align - UNIT;
                let bytes = if self.options.growth_bytes == 0 { need.next_multiple_of(PAGE) } else { need }.min(left);
                (bytes >= need).then_some(Plan { offset: 0, bytes, usable: bytes, extends: 0, tag: PROVEN })
            }
        }
    }

    /// Gives back idle pages to have as many where a growth needs them.
    pub(super) fn exchange(&self, climb: &Climb<'_>) -> Result<Step> {
        let (request, asker) = (climb.request, climb.asker());
        let turn = self.turns.take()?;
        if turn.waited {
            return Ok(Step::Again);
        }
        let all = self.pages.pieces();
        {
            // Not worth a proof when all that is free would not do.
            let state = self.lock();
            let cached = state.place.mapped_bytes() - state.place.live_bytes();
            if all.is_empty() || cached < PAGE.min(all[0].1) {
                return Ok(Step::Nothing("no pages are idle"));
            }
        }
        // What the device has left counts, where the memory is the device's.
        let of_device = matches!(self.pages, Pages::Virtual(_)) || self.upstream.body().kind() == "cuda";
        let free = if of_device { crate::device::memory_info(self.device).map_or(0, |(free, _)| free) } else { 0 };
        let pieces = self.prove_with(&turn, |state| {
            let (tags, _) = Self::stamp(state, asker);
            let zone = self.growth_zone(request);
            let Some(plan) = self.plan(state, request, zone, &tags, true) else { return Vec::new() };
            let left = self.limit().saturating_sub(state.place.mapped_bytes());
            // Without a limit it was the device that had no more: what it lacks for the growth must be made room for.
            let short = if plan.usable > left { plan.usable - left } else { plan.bytes.saturating_sub(free).max(PAGE) };
            // The free block that the growth extends stays.
            let kept = plan.offset - plan.extends..plan.offset;
            let others: Vec<(u64, u64)> = all
                .iter()
                .copied()
                .filter(|(offset, bytes)| offset + bytes <= kept.start || *offset >= kept.end)
                .collect();
            let mut chosen = Vec::new();
            let mut sum = 0;
            for piece in idle(&others, &state.place, u64::MAX) {
                if sum >= short {
                    break;
                }
                sum += piece.1;
                chosen.push(piece);
            }
            if sum < short {
                return Vec::new();
            }
            chosen.retain(|(offset, bytes)| state.place.shrink(*offset, *bytes));
            chosen
        })?;
        // Also where nothing could be exchanged: what the zones had lent each other is together again by now, so that less is
        // missing than when a growth was tried before.
        self.return_pieces(&pieces)?;
        self.grow_with(&turn, climb)
    }
}
