//! What is tried when the memory at hand does not suffice, in order of what it costs others.
//!
//! ```text
//!  1 own and proven, classes drained     lock only
//!  2 harvest       events on other streams: what has completed is proven              2 driver calls a stream
//!    drain         what other threads have at hand goes back; then 1 and 2 again       a latch a thread
//!  3 grow          pages or a chunk; one thread at a time                              60 us and more
//!  4 take a block  of another stream, behind an inserted wait                          2 driver calls
//!  5 anywhere      small sizes from the large zone and the other way round
//!  6 device proof  everything that was queued is done                                  waits
//!  7 exchange      idle pages go back, so that a growth elsewhere fits                 unmap, map
//!  8 out of memory with every figure
//! ```
//! `prefer = footprint` puts 4 before 3.
//!
//! No lock is held over a driver call: what a step is about to give away is taken out of the placer first and put back if
//! the step fails.

use tenure_driver::{CaptureStatus, Event, RawStream};

use super::cache::Which;
use super::order::{Key, PENDING, Tags, Who, cur, sealed};
use super::pages::{Pages, Plan, idle};
use super::place::{LARGE, PROVEN, Place, UNIT, UNPROVEN, zone_of};
use super::serve::Asker;
use super::turn::Turn;
use super::{PAGE, Pool, Prefer, State};
use crate::error::{Error, Result};
use crate::resource::Request;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

/// Steps that change nothing lastingly may be robbed by other threads; after so many rounds the request fails.
const ROUNDS: usize = 64;

/// So many streams that ended may have something left behind before their events are asked.
const CLOSED: usize = 32;

/// How often one request waits for the device: other threads may take what a proof gained.
const PROOFS: usize = 4;

/// What came of a step.
enum Step {
    /// The request is served.
    Served(u64),
    /// Something changed: begin again.
    Again,
    /// Nothing to be had this way.
    Nothing,
}

impl Pool {
    /// Everything after the fast path.
    #[cold]
    pub(super) fn allocate_slow(&self, request: &Request, who: &Who<'_>) -> Result<u64> {
        match self.climb(request, who) {
            Err(e) if e.is_out_of_memory() && !matches!(e, Error::OutOfMemory(_)) => {
                Err(self.out_of_memory(request.bytes as u64))
            }
            other => other,
        }
    }

    fn climb(&self, request: &Request, who: &Who<'_>) -> Result<u64> {
        if request.bytes as u64 > self.ceiling {
            // No wait and no growth can help.
            return Err(self.out_of_memory(request.bytes as u64));
        }
        let asker = self.asker(who)?;
        let asker = asker.as_ref();
        let growth_first = self.options.prefer == Prefer::Concurrency;
        let (mut harvested, mut drained, mut proofs) = (false, false, 0);
        for _ in 0..ROUNDS {
            if self.harvest_due.load(Ordering::Relaxed) && self.harvest_due.swap(false, Ordering::Relaxed) {
                harvested = true;
                self.harvest(request, who, asker)?;
            }
            if let Some(ptr) = self.at_hand(request, asker) {
                return Ok(ptr);
            }
            if !std::mem::replace(&mut harvested, true) && self.harvest(request, who, asker)? {
                continue;
            }
            if !std::mem::replace(&mut drained, true) && self.drain(Which::All) {
                harvested = false;
                continue;
            }
            let mut step = Step::Nothing;
            for grow in [growth_first, !growth_first] {
                step = if grow { self.grow(request, asker)? } else { self.take_behind_wait(request, who, asker)? };
                if !matches!(step, Step::Nothing) {
                    break;
                }
            }
            if matches!(step, Step::Nothing)
                && let Some(ptr) = self.anywhere(request, asker)
            {
                return Ok(ptr);
            }
            if matches!(step, Step::Nothing) && proofs < PROOFS {
                step = self.prove_all()?;
                proofs += 1;
            }
            if matches!(step, Step::Nothing) {
                step = self.exchange(request, asker)?;
            }
            match step {
                Step::Served(ptr) => return Ok(ptr),
                Step::Again => {}
                Step::Nothing => break,
            }
        }
        Err(self.out_of_memory(request.bytes as u64))
    }

    /// The tags and the stamp of an asker.
    fn stamp(state: &mut State, asker: Option<&Asker>) -> (Tags, u32) {
        match asker {
            Some(asker) => {
                let record = state.record_of(asker);
                (state.records.all_tags(record), cur(record))
            }
            // Nobody may ask who this is: only what is proven for everyone will do.
            None => {
                state.end_sole();
                (Tags::from_slice(&[PROVEN]), UNPROVEN)
            }
        }
    }

    fn at_hand(&self, request: &Request, asker: Option<&Asker>) -> Option<u64> {
        let mut state = self.lock();
        let (tags, stamp) = Self::stamp(&mut state, asker);
        let offset = state.take_drained(request, &tags, stamp)?;
        drop(state);
        Some(self.pages.ptr_of(offset))
    }

    fn anywhere(&self, request: &Request, asker: Option<&Asker>) -> Option<u64> {
        let mut state = self.lock();
        let (tags, stamp) = Self::stamp(&mut state, asker);
        let offset = state.take_anywhere(request, &tags, stamp)?;
        drop(state);
        Some(self.pages.ptr_of(offset))
    }

    // ------------------------------------------------------------------------------------------------------- proofs

    /// Records an event on a stream, unless it is capturing: before, or by the time the event is recorded.
    pub(super) fn checkpoint(&self, raw: RawStream) -> Result<Option<Arc<Event>>> {
        let driver = crate::device::driver()?;
        let device = driver.device(self.device)?;
        let capturing = || -> Result<bool> {
            let _current = if raw.is_special() { Some(device.enter()?) } else { None };
            Ok(driver.stream_capture_status(raw)? != CaptureStatus::None)
        };
        if capturing()? {
            return Ok(None);
        }
        let event = Event::new(device)?;
        event.record(raw)?;
        Ok(if capturing()? { None } else { Some(Arc::new(event)) })
    }

    /// Makes proven what has completed on streams that can be asked. True when something was gained.
    fn harvest(&self, request: &Request, who: &Who<'_>, asker: Option<&Asker>) -> Result<bool> {
        let mut gained = false;
        let mut work: Vec<(u32, Option<RawStream>, Option<Arc<Event>>)> = Vec::new();
        {
            let mut state = self.lock();
            if state.sole.is_some() {
                return Ok(false);
            }
            let State { place, records, .. } = &mut *state;
            let numbers: Vec<u32> = records.iter().map(|(number, _)| number).collect();
            // An event on the legacy stream is a barrier for all blocking streams: only for a stream that is not in
            // implicit order with it, and only when it has what is wanted.
            let need = Place::need(request.bytes as u64, request.align as u64);
            let outside = asker.is_some_and(|a| !a.blocking);
            for number in numbers {
                let Some(record) = records.get_mut(number) else { continue };
                if record.key == Key::Legacy && !(outside && place.tag_largest(cur(number)) >= need) {
                    continue;
                }
                let carried = who.stream.is_live() && who.key == Some(record.key);
                let event = record.sealed.clone();
                // Pinned: somebody else may be sealing it, and its event would not cover what is sealed now.
                let may = record.pins == 0 && (carried || record.touchable());
                let ask = event.is_none() && may && place.tag_block_bytes(cur(number)) > 0;
                if ask {
                    place.relabel(cur(number), sealed(number), false);
                }
                if ask || event.is_some() {
                    record.pins += 1;
                    work.push((number, ask.then_some(record.raw), event));
                }
            }
        }
        let mut failed = None;
        for (number, ask, event) in work {
            // After a failure the rest is only unpinned.
            let event = match ask {
                Some(raw) if failed.is_none() => self.checkpoint(raw).unwrap_or_else(|e| {
                    failed = Some(e);
                    None
                }),
                _ => event,
            };
            let done = match &event {
                Some(event) if failed.is_none() => event.query().unwrap_or_else(|e| {
                    failed = Some(e.into());
                    false
                }),
                _ => false,
            };
            let mut state = self.lock();
            let State { place, records, .. } = &mut *state;
            let Some(record) = records.get_mut(number) else { continue };
            record.pins -= 1;
            let ours = match (&record.sealed, &event) {
                (Some(have), Some(event)) => Arc::ptr_eq(have, event),
                (None, _) => ask.is_some(),
                (Some(_), None) => false,
            };
            let closed = record.closed;
            if ours && done {
                record.sealed = None;
                gained |= place.tag_bytes(sealed(number)) > 0;
                place.relabel(sealed(number), PROVEN, closed);
            } else if ours && event.is_some() {
                record.sealed = event;
            } else if ours && !closed {
                // Nothing covers it: it is as it was.
                place.relabel(sealed(number), cur(number), false);
            }
            if record.pins == 0 {
                self.unpinned.notify_all();
            }
            if closed {
                records.retire(place);
            }
        }
        match failed {
            Some(e) => Err(e),
            None => Ok(gained),
        }
    }

    /// Takes a block that another stream freed, and makes the asker's stream wait for that free.
    fn take_behind_wait(&self, request: &Request, who: &Who<'_>, asker: Option<&Asker>) -> Result<Step> {
        let Some(asker) = asker else { return Ok(Step::Nothing) };
        if !who.stream.is_live() {
            return Ok(Step::Nothing);
        }
        let mut state = self.lock();
        let (_, stamp) = Self::stamp(&mut state, Some(asker));
        let zone = zone_of(request.bytes as u64);
        let State { place, records, .. } = &mut *state;
        let mut found = None;
        // The legacy stream last: an event on it is a barrier for all blocking streams.
        let (legacy, others): (Vec<_>, Vec<_>) = records.iter().partition(|(_, record)| record.key == Key::Legacy);
        for (number, record) in others.into_iter().chain(legacy) {
            if cur(number) == stamp {
                continue;
            }
            let choices = [record.sealed.is_some().then(|| sealed(number)), record.touchable().then(|| cur(number))];
            for tag in choices.into_iter().flatten() {
                let align = request.align as u64;
                if let Some(offset) = place.allocate(request.bytes as u64, align, &[tag], stamp, request.owner, zone) {
                    found = Some((number, tag, offset));
                    break;
                }
            }
            if found.is_some() {
                break;
            }
        }
        let Some((number, tag, offset)) = found else { return Ok(Step::Nothing) };
        let Some(record) = records.get_mut(number) else { return Ok(Step::Nothing) };
        record.pins += 1;
        let (raw, event) = (record.raw, if tag == sealed(number) { record.sealed.clone() } else { None });
        drop(state);
        let ordered = (|| {
            let event = match event {
                Some(event) => event,
                None => match self.checkpoint(raw)? {
                    Some(event) => event,
                    None => return Ok(false),
                },
            };
            self.wait_for(who.stream.raw, &event)?;
            Ok(true)
        })();
        let mut state = self.lock();
        if let Some(record) = state.records.get_mut(number) {
            record.pins -= 1;
            if record.pins == 0 {
                self.unpinned.notify_all();
            }
        }
        if matches!(ordered, Ok(true)) {
            drop(state);
            return Ok(Step::Served(self.pages.ptr_of(offset)));
        }
        // It was never handed out: it goes back to whom it belongs. A device proof or the stream's end may have come
        // meanwhile; then nobody's order covers it any more but a proof to come.
        if let Ok(entry) = state.place.entry(offset) {
            let closed = state.records.get(number).is_none_or(|r| r.closed);
            let back = if closed || tag == sealed(number) { UNPROVEN } else { tag };
            state.place.free(&entry, back);
        }
        ordered.map(|_| Step::Nothing)
    }

    fn wait_for(&self, raw: RawStream, event: &Event) -> Result<()> {
        if raw.is_special() {
            let _current = crate::device::driver()?.device(self.device)?.enter()?;
            return Ok(raw.wait_event(event)?);
        }
        Ok(raw.wait_event(event)?)
    }

    /// Waits for the whole device and proves everything that was free before. `Nothing` when that could help nobody.
    fn prove_all(&self) -> Result<Step> {
        let turn = self.turns.take()?;
        if turn.waited {
            return Ok(Step::Again);
        }
        {
            let state = self.lock();
            // The only stream may have all of its own memory already.
            let helps = if state.sole.is_some() { state.place.tag_bytes(UNPROVEN) > 0 } else { state.unproven() > 0 };
            if !helps {
                return Ok(Step::Nothing);
            }
        }
        self.prove_with(&turn, |_| ())?;
        Ok(Step::Again)
    }

    /// Proves everything that is free now, waiting for the device if need be, and runs `then` under the lock while all of
    /// that is marked as proven. The caller has the turn.
    pub(super) fn prove_with<R>(&self, _turn: &Turn<'_>, then: impl FnOnce(&mut State) -> R) -> Result<R> {
        let events = {
            let mut state = self.lock();
            if state.unproven() == 0 {
                state.place.consolidate();
                let result = then(&mut state);
                state.resettle();
                return Ok(result);
            }
            // What is freed while the device is waited for is not covered: it gets the tags that are empty now.
            let State { place, records, .. } = &mut *state;
            let mut events = Vec::new();
            let numbers: Vec<u32> = records.iter().map(|(number, _)| number).collect();
            for number in numbers {
                place.relabel(cur(number), PENDING, true);
                place.relabel(sealed(number), PENDING, true);
                events.extend(records.get_mut(number).and_then(|r| r.sealed.take()));
            }
            place.relabel(UNPROVEN, PENDING, true);
            events
        };
        let proved = crate::device::prove(self.device);
        // Events go back to the driver here, outside the lock.
        drop(events);
        let mut state = self.lock();
        if let Err(e) = proved {
            state.place.relabel(PENDING, UNPROVEN, true);
            return Err(e);
        }
        state.place.relabel(PENDING, PROVEN, true);
        self.proofs.fetch_add(1, Ordering::Relaxed);
        state.place.consolidate();
        let result = then(&mut state);
        let State { place, records, .. } = &mut *state;
        records.retire(place);
        state.resettle();
        Ok(result)
    }

    /// A stream is about to end: an event covers what was freed on it, or nothing will.
    pub(super) fn close_stream(&self, stream: crate::stream::StreamRef<'_>) {
        let Some(Who { key: Some(key @ Key::Object(_)), .. }) = Who::known(stream) else { return };
        self.drain(Which::Stream(key));
        let mut state = self.lock();
        let Some(number) = state.records.find(key) else { return };
        if state.sole == Some(number) {
            state.end_sole();
        }
        state.records.close(number);
        while state.records.get(number).is_some_and(|r| r.pins > 0) {
            self.unpinned.wait(&mut state);
        }
        let State { place, records, .. } = &mut *state;
        place.relabel(cur(number), sealed(number), true);
        let Some(record) = records.get_mut(number) else { return };
        let old = record.sealed.take();
        if place.tag_unused(sealed(number)) {
            records.retire(place);
            drop(state);
            drop(old);
            return;
        }
        record.pins += 1;
        drop(state);
        let event = self.checkpoint(stream.raw);
        let mut state = self.lock();
        let State { place, records, .. } = &mut *state;
        if let Some(record) = records.get_mut(number) {
            record.pins -= 1;
            match event {
                Ok(Some(event)) => record.sealed = Some(event),
                _ => place.relabel(sealed(number), UNPROVEN, true),
            }
        }
        drop(state);
        drop(old);
        self.sweep_closed();
    }

    /// Streams that come and go leave records with events behind. Where they are many, those whose work is done go.
    fn sweep_closed(&self) {
        let mut asked: Vec<(u32, Arc<Event>)> = Vec::new();
        {
            let mut state = self.lock();
            let closed: Vec<u32> =
                state.records.iter().filter(|(_, r)| r.closed && r.pins == 0).map(|(number, _)| number).collect();
            if closed.len() < CLOSED {
                return;
            }
            for number in closed {
                if let Some(record) = state.records.get_mut(number)
                    && let Some(event) = record.sealed.clone()
                {
                    record.pins += 1;
                    asked.push((number, event));
                }
            }
        }
        for (number, event) in asked {
            // A failure is the next caller's to see: the stream that ends cannot be told.
            let done = event.query().unwrap_or(false);
            let mut state = self.lock();
            let State { place, records, .. } = &mut *state;
            let Some(record) = records.get_mut(number) else { continue };
            record.pins -= 1;
            if done && record.sealed.as_ref().is_some_and(|have| Arc::ptr_eq(have, &event)) {
                // Let go of by `event`, after the lock.
                record.sealed = None;
                place.relabel(sealed(number), PROVEN, true);
            }
            if record.pins == 0 {
                self.unpinned.notify_all();
            }
            records.retire(place);
            drop(state);
            drop(event);
        }
    }

    // ------------------------------------------------------------------------------------------------------- growing

    fn grow(&self, request: &Request, asker: Option<&Asker>) -> Result<Step> {
        let turn = self.turns.take()?;
        if turn.waited {
            return Ok(Step::Again);
        }
        self.grow_with(&turn, request, asker)
    }

    /// Takes what is missing. The caller has the turn.
    fn grow_with(&self, _turn: &Turn<'_>, request: &Request, asker: Option<&Asker>) -> Result<Step> {
        let (zone, plan) = {
            let mut state = self.lock();
            let (tags, stamp) = Self::stamp(&mut state, asker);
            if let Some(offset) = state.take_drained(request, &tags, stamp) {
                drop(state);
                return Ok(Step::Served(self.pages.ptr_of(offset)));
            }
            let zone = match self.pages {
                Pages::Virtual(_) => zone_of(request.bytes as u64),
                // A chunk is for everything; small sizes borrow from it.
                Pages::Chunks(_) => LARGE,
            };
            match self.plan(&state, request, zone, &tags, false) {
                Some(plan) => (zone, plan),
                None => return Ok(Step::Nothing),
            }
        };
        let plan = match self.pages.grow(plan, self.options.maximum_bytes, &self.upstream) {
            Ok(plan) => plan,
            Err(e) if e.is_out_of_memory() => return Ok(Step::Nothing),
            Err(e) => return Err(e),
        };
        self.note_reserved();
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

    /// What a growth would take; with `beyond`, as if everything that is idle had gone back first.
    fn plan(&self, state: &State, request: &Request, zone: u8, tags: &[u32], beyond: bool) -> Option<Plan> {
        let (bytes, align) = (request.bytes as u64, request.align as u64);
        let need = Place::need(bytes, align);
        let left = self.limit().saturating_sub(state.place.mapped_bytes()) / UNIT * UNIT;
        let left = if beyond { self.limit() } else { left };
        match &self.pages {
            Pages::Virtual(v) => v.plan(&state.place, zone, tags, need, align, left),
            Pages::Chunks(_) => {
                let need = need + align - UNIT;
                let bytes = need.next_multiple_of(PAGE).min(left);
                (bytes >= need).then_some(Plan { offset: 0, bytes, usable: bytes, extends: 0, tag: PROVEN })
            }
        }
    }

    /// Gives back idle pages to have as many where a growth needs them.
    fn exchange(&self, request: &Request, asker: Option<&Asker>) -> Result<Step> {
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
                return Ok(Step::Nothing);
            }
        }
        let pieces = self.prove_with(&turn, |state| {
            let (tags, _) = Self::stamp(state, asker);
            let zone = match self.pages {
                Pages::Virtual(_) => zone_of(request.bytes as u64),
                Pages::Chunks(_) => LARGE,
            };
            let Some(plan) = self.plan(state, request, zone, &tags, true) else { return Vec::new() };
            let left = self.limit().saturating_sub(state.place.mapped_bytes());
            // Without a limit it was the device that had no more: all of the growth must be made room for.
            let short = if plan.usable > left { plan.usable - left } else { plan.bytes };
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
        if pieces.is_empty() {
            return Ok(Step::Nothing);
        }
        self.return_pieces(&pieces)?;
        self.grow_with(&turn, request, asker)
    }
}
