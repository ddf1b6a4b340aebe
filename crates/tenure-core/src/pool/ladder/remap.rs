//! Idle pages mapped side by side: a request that fits by bytes fits, and the device is not waited for. A pool that could
//! grow looks for them first, too.
//!
//! ```text
//!   lock      choose whole idle handles; they, and the free block that they will extend, leave the placer
//!   unlocked  the asking stream waits for every other stream that freed in them; an event on it covers their last uses;
//!             the handles are mapped at their new addresses
//!   lock      the new range is free memory of the asking stream: the request is served out of it
//! ```
//!
//! First with what the asking stream may have anyway, then with memory of other streams; then both again with new pages for
//! what is missing, where the limit leaves room for those.
//!
//! **Instead of growing** only where it pays: a sixty-fourth of the pool and half of what is missing is idle in whole pages
//! that the asking stream may have without a wait (`prefer = footprint`: also behind one), and the budget is not spent. Pages
//! that leave a hole leave its two ends, too short for what the hole held: to take few of them, or often, ends with more
//! memory than it saves.
//!
//! A failure at any point puts the pieces back where they were. The old addresses are unmapped when the event is complete (`pages/alias.rs`).

use tenure_driver::{Event, RawStream};

use super::{Climb, Step};
use crate::error::Result;
use crate::pool::order::{cur, sealed};
use crate::pool::pages::{Choice, PAGE, Pages, Plan, VirtualRange};
use crate::pool::place::{LARGE, PROVEN, Place, SMALL, UNPROVEN, Vacated, zone_of};
use crate::pool::turn::Turn;
use crate::pool::{Pool, Prefer, State};
use crate::sync::Arc;

/// At least this part of a pool that could grow is idle before its pages are mapped again instead.
const PART: u64 = 64;

/// So many bytes must be free in the other zone before its pages are mapped into this one instead of new ones.
const MANY: u64 = 16 * PAGE;

/// What a remapping may take.
#[derive(Clone, Copy)]
struct Terms {
    /// Memory of other streams, behind waits.
    others: bool,
    /// New pages for what is missing.
    fresh: bool,
    /// The pool could grow: only what pays.
    instead: bool,
}

/// A stream whose memory is taken, pinned so that its tags stay its own.
struct Source {
    record: u32,
    raw: RawStream,
    /// The asking stream is not in order with it anyway.
    wait: bool,
    /// Some of it is covered by no event yet.
    fresh: bool,
    /// The sealed event when its pieces were taken.
    sealed: Option<Arc<Event>>,
}

/// What was taken out of the placer.
struct Taken {
    plan: Plan,
    choice: Choice,
    zone: u8,
    pieces: Vec<Vacated>,
    sources: Vec<Source>,
    /// Everything taken is for everyone.
    proven: bool,
}

impl Pool {
    pub(super) fn remap(&self, climb: &Climb<'_>) -> Result<Step> {
        let Pages::Virtual(range) = &self.pages else { return Ok(Step::Nothing("chunks cannot be remapped")) };
        if !self.options.remap {
            return Ok(Step::Nothing("turned off"));
        }
        let turn = self.turns.take()?;
        if turn.waited {
            return Ok(Step::Again);
        }
        range.recycle();
        for fresh in [false, true] {
            for others in [false, true] {
                let step = self.remap_with(&turn, range, climb, Terms { others, fresh, instead: false })?;
                if !matches!(step, Step::Nothing(_)) {
                    return Ok(step);
                }
            }
        }
        Ok(Step::Nothing("too few whole pages are idle"))
    }

    /// Idle pages instead of new ones, where that pays. The caller has the turn.
    pub(super) fn remap_instead(&self, turn: &Turn<'_>, climb: &Climb<'_>) -> Result<Step> {
        let nothing = Ok(Step::Nothing("it does not pay"));
        let Pages::Virtual(range) = &self.pages else { return nothing };
        let small = self.options.prefer == Prefer::Footprint;
        if !self.options.remap || !range.may_remap() {
            return nothing;
        }
        {
            let mut state = self.lock();
            let (tags, stamp) = Self::stamp(&mut state, climb.asker());
            if let Some(offset) = state.take_drained(climb.request, &tags, stamp) {
                drop(state);
                return Ok(Step::Served(self.pages.ptr_of(offset)));
            }
            let room = self.limit().saturating_sub(state.place.mapped_bytes());
            // Mostly few pages are idle: to find that out costs less than to look at every block.
            let idle = [SMALL, LARGE].map(|zone| state.place.whole_pages(&tags, zone, PAGE)).iter().sum::<u64>();
            let little = !small && idle < (range.reserved() / PART).max(PAGE);
            if little || room < Place::need(climb.request.bytes as u64, climb.request.align as u64) {
                return nothing;
            }
        }
        range.recycle();
        for (others, fresh) in [(false, false), (true, false), (false, true), (true, true)] {
            if others && !small {
                continue;
            }
            match self.remap_with(turn, range, climb, Terms { others, fresh, instead: true }) {
                Ok(Step::Nothing(_)) => {}
                // What has no memory for a mapping may have some for a page.
                Err(e) if e.is_out_of_memory() => {}
                step => {
                    self.plots.grew();
                    return step;
                }
            }
        }
        nothing
    }

    fn remap_with(&self, _turn: &Turn<'_>, range: &VirtualRange, climb: &Climb<'_>, terms: Terms) -> Result<Step> {
        let Some(taken) = self.take_idle(range, climb, terms) else { return Ok(Step::Nothing("")) };
        let mut grown = 0;
        let mapped = self.order_and_map(range, climb, &taken, &mut grown);
        if terms.instead && matches!(mapped, Ok(true)) {
            range.has_remapped(&taken.choice);
        }
        let mut state = self.lock();
        let offset = match &mapped {
            Ok(true) => {
                let (tags, stamp) = Self::stamp(&mut state, climb.asker());
                let tag = if taken.proven && state.sole.is_none() { PROVEN } else { stamp };
                let start = taken.plan.offset - taken.plan.extends;
                let bytes = taken.plan.extends + taken.choice.usable + grown;
                state.place.extend(start, bytes, tag, taken.zone);
                state.place.touch(start, bytes, taken.zone);
                state.take_drained(climb.request, &tags, stamp)
            }
            _ => {
                Self::put_pages_back(&mut state, &taken);
                // New pages that came before the failure stay: they are free memory like any other.
                state.place.extend(taken.plan.offset + taken.choice.usable, grown, PROVEN, taken.zone);
                state.resettle();
                None
            }
        };
        for source in &taken.sources {
            if let Some(record) = state.records.get_mut(source.record) {
                record.pins -= 1;
            }
        }
        self.unpinned.notify_all();
        drop(state);
        match (mapped?, offset) {
            (true, Some(offset)) => Ok(Step::Served(self.pages.ptr_of(offset))),
            (true, None) => Ok(Step::Again),
            (false, _) => Ok(Step::Nothing("")),
        }
    }

    /// Chooses idle pages and takes them out of the placer, with memory of other streams or without.
    fn take_idle(&self, range: &VirtualRange, climb: &Climb<'_>, terms: Terms) -> Option<Taken> {
        let request = climb.request;
        let live = climb.who.stream.is_live();
        let mut state = self.lock();
        let (mut tags, stamp) = Self::stamp(&mut state, climb.asker());
        if !live {
            // No event can be recorded that would say when the old addresses are over.
            tags.retain(|tag| *tag == PROVEN);
        }
        state.place.consolidate();
        let own = climb.asker().map(|asker| state.record_of(asker));
        let State { place, records, .. } = &mut *state;
        let mut allowed = tags.clone();
        if terms.others {
            if own.is_none() || !live {
                return None;
            }
            for (number, record) in records.iter().filter(|(number, _)| cur(*number) != stamp) {
                allowed.extend(record.sealed.is_some().then(|| sealed(number)));
                allowed.extend(record.touchable().then(|| cur(number)));
            }
            if allowed.len() == tags.len() {
                return None;
            }
        }
        let mut free = place.stretches(|tag| allowed.contains(&tag));
        let zone = zone_of(request.bytes as u64);
        if terms.instead {
            // Else one page goes to and fro between a small size and a large one.
            let own = range.zone(zone);
            let others = free.iter().filter(|(offset, _)| !own.contains(offset)).map(|(_, bytes)| bytes).sum::<u64>();
            free.retain(|(offset, _)| others >= MANY || own.contains(offset));
        }
        let (need, align) = (Place::need(request.bytes as u64, request.align as u64), request.align as u64);
        let left = if terms.fresh { self.limit().saturating_sub(place.mapped_bytes()) } else { 0 };
        let plans = range.plans(place, zone, &tags, need, align, u64::MAX);
        let (plan, choice) = plans.into_iter().find_map(|plan| {
            let missing = plan.missing(need, align);
            let half = if terms.instead { missing.next_multiple_of(PAGE) / 2 } else { u64::MAX };
            Some((plan, range.choose(&free, &plan, missing, left.min(half))?))
        })?;
        let mut pieces = place.vacate(plan.offset - plan.extends, plan.extends);
        for (offset, usable) in range.usable_of(&choice.offsets) {
            pieces.extend(place.vacate(offset, usable));
        }
        let proven = pieces.iter().all(|piece| piece.tag == PROVEN);
        let mut sources = Vec::new();
        for number in records.numbers() {
            let has = |tag: u32| pieces.iter().any(|piece| piece.tag == tag);
            let (fresh, covered) = (has(cur(number)), has(sealed(number)));
            if (fresh || covered)
                && let Some(record) = records.get_mut(number)
            {
                record.pins += 1;
                let wait = !tags.contains(&cur(number));
                sources.push(Source { record: number, raw: record.raw, wait, fresh, sealed: record.sealed.clone() });
            }
        }
        Some(Taken { plan, choice, zone, pieces, sources, proven })
    }

    /// Orders the asking stream after every other one that freed in the pages, and maps them. False when a stream is
    /// capturing, or there are no new pages to be had, and nothing was done but for the new pages in `grown`.
    fn order_and_map(&self, range: &VirtualRange, climb: &Climb<'_>, taken: &Taken, grown: &mut u64) -> Result<bool> {
        let raw = climb.who.stream.raw;
        if taken.choice.fresh > 0 {
            let (offset, bytes) = (taken.plan.offset + taken.choice.usable, taken.choice.fresh);
            let fresh = Plan { offset, bytes, usable: bytes, extends: 0, tag: PROVEN };
            match self.pages.grow(fresh, self.options.maximum_bytes, &self.upstream) {
                Ok(_) => {
                    *grown = bytes;
                    self.note_reserved();
                }
                Err(e) if e.is_out_of_memory() => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        for source in taken.sources.iter().filter(|source| source.wait) {
            let event = match &source.sealed {
                Some(event) if !source.fresh => event.clone(),
                _ => match self.checkpoint(source.raw)? {
                    Some(event) => event,
                    None => return Ok(false),
                },
            };
            if !self.wait_for(raw, &event)? {
                return Ok(false);
            }
        }
        let last_use = if taken.proven {
            None
        } else {
            match self.checkpoint(raw)? {
                Some(event) => Some(event),
                None => return Ok(false),
            }
        };
        range.alias(&taken.choice.offsets, taken.plan.offset, last_use.as_ref())?;
        if last_use.is_none() {
            range.unmap_over();
        }
        Ok(true)
    }

    /// Puts pieces back that were taken for nothing, each with a tag that is still its own.
    fn put_pages_back(state: &mut State, taken: &Taken) {
        for piece in &taken.pieces {
            let mut tag = piece.tag;
            if tag != PROVEN {
                // Where a proof of the event came meanwhile, no event says any more when this piece's uses are over.
                let source = state.records.of_stamp(tag).and_then(|(number, record)| {
                    let source = taken.sources.iter().find(|source| source.record == number)?;
                    let same = match (&source.sealed, &record.sealed) {
                        (Some(old), Some(now)) => Arc::ptr_eq(old, now),
                        (old, now) => old.is_none() && now.is_none(),
                    };
                    (tag == cur(number) || same).then_some(source)
                });
                if source.is_none() {
                    tag = UNPROVEN;
                }
            }
            state.place.extend(piece.offset, piece.bytes, tag, piece.zone);
        }
        state.resettle();
    }
}
