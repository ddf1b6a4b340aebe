//! Proofs: what has completed, on one stream or on the whole device, is for everyone.

use std::time::{Duration, Instant};

use tenure_driver::{CaptureStatus, Event, RawStream};

use super::{Climb, PROOFS, Step};
use crate::error::Result;
use crate::pool::order::{Key, PENDING, cur, sealed};
use crate::pool::place::{PROVEN, Place, UNPROVEN};
use crate::pool::turn::Turn;
use crate::pool::{Pool, State};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

/// A raw stream that nobody has named for so long may have been destroyed: nobody says so.
const AGED: Duration = Duration::from_secs(1);

/// So many raw streams at once are taken for such, whenever they were named.
const RAW_STREAMS: usize = 64;

impl Pool {
    /// Records an event on a stream, unless it is capturing: before, or by the time the event is recorded.
    pub(in crate::pool) fn checkpoint(&self, raw: RawStream) -> Result<Option<Arc<Event>>> {
        if self.is_capturing(raw)? {
            return Ok(None);
        }
        let event = Event::new(crate::device::driver()?.device(self.device)?)?;
        event.record(raw)?;
        Ok(if self.is_capturing(raw)? { None } else { Some(Arc::new(event)) })
    }

    /// Whether a stream is capturing, or, of the legacy stream, one that synchronises with it.
    pub(super) fn is_capturing(&self, raw: RawStream) -> Result<bool> {
        let driver = crate::device::driver()?;
        let _current = if raw.is_special() { Some(driver.device(self.device)?.enter()?) } else { None };
        Ok(driver.stream_capture_status(raw)? != CaptureStatus::None)
    }

    /// Makes proven what has completed on streams that can be asked.
    pub(super) fn harvest(&self, climb: &Climb<'_>) -> Result<Step> {
        let (request, who, asker) = (climb.request, climb.who, climb.asker());
        let mut gained = false;
        let mut work: Vec<(u32, Option<RawStream>, Option<Arc<Event>>)> = Vec::new();
        {
            let mut state = self.lock();
            if state.sole.is_some() {
                return Ok(Step::Nothing("there is only one stream"));
            }
            let State { place, records, .. } = &mut *state;
            let numbers: Vec<u32> = records.iter().map(|(number, _)| number).collect();
            // An event on the legacy stream is a barrier for all blocking streams: only when it has what another one wants.
            let need = Place::need(request.bytes as u64, request.align as u64);
            let outside = asker.is_some_and(|a| !a.raw.is_legacy());
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
            None if gained => Ok(Step::Again),
            None => Ok(Step::Nothing("nothing new has completed")),
        }
    }

    /// Waits for the device before the pool grows where much of its memory lies with streams that nobody can be asked about:
    /// raw values that have not been named for a while, and frees whose stream is not known. Without this a program that
    /// makes and destroys raw streams would grow for ever.
    pub(super) fn prove_aged(&self, climb: &Climb<'_>) -> Result<Step> {
        if self.wanted(climb).is_none() {
            return Ok(Step::Nothing("the pool cannot grow"));
        }
        let need = Place::need(climb.request.bytes as u64, climb.request.align as u64);
        let least = need.max(self.pages.reserved() / 4);
        let held = |state: &mut State| {
            let own = climb.asker().map(|asker| cur(state.record_of(asker)));
            let now = Instant::now();
            let State { place, records, .. } = state;
            let raw = records.iter().filter(|(_, r)| matches!(r.key, Key::Raw(_))).count();
            let mut held = place.tag_bytes(UNPROVEN);
            for number in records.numbers() {
                let Some(record) = records.get_mut(number) else { continue };
                if !matches!(record.key, Key::Raw(_)) || Some(cur(number)) == own {
                    continue;
                }
                if record.seen.replace(false) {
                    record.since = now;
                }
                if raw > RAW_STREAMS || now.duration_since(record.since) >= AGED {
                    held += place.tag_bytes(cur(number)) + place.tag_bytes(sealed(number));
                }
            }
            held
        };
        if held(&mut self.lock()) < least {
            return Ok(Step::Nothing("they hold little"));
        }
        let turn = self.turns.take()?;
        if turn.waited {
            return Ok(Step::Again);
        }
        self.prove_with(&turn, |_| ())?;
        Ok(Step::Again)
    }

    /// Waits for the whole device and proves everything that was free before. `Nothing` when that could help nobody.
    pub(super) fn prove_all(&self, climb: &mut Climb<'_>) -> Result<Step> {
        if climb.proofs == PROOFS {
            return Ok(Step::Nothing("done, and not enough"));
        }
        climb.proofs += 1;
        let turn = self.turns.take()?;
        if turn.waited {
            return Ok(Step::Again);
        }
        {
            let state = self.lock();
            // The only stream may have all of its own memory already.
            let helps = if state.sole.is_some() { state.place.tag_bytes(UNPROVEN) > 0 } else { state.unproven() > 0 };
            if !helps {
                return Ok(Step::Nothing("nothing waits for it"));
            }
        }
        self.prove_with(&turn, |_| ())?;
        Ok(Step::Again)
    }

    /// Proves everything that is free now, waiting for the device if need be, and runs `then` under the lock while all of
    /// that is marked as proven. The caller has the turn.
    pub(in crate::pool) fn prove_with<R>(&self, _turn: &Turn<'_>, then: impl FnOnce(&mut State) -> R) -> Result<R> {
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
}
