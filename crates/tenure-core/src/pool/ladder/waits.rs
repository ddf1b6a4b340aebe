//! Another stream's memory, behind a wait that is inserted into the asking stream. Of what is sealed the wait is remembered
//! with the stream: the next block of that event needs none.

use tenure_driver::{Event, RawStream};

use super::{Climb, Step};
use crate::error::Result;
use crate::pool::order::{Key, cur, sealed};
use crate::pool::place::{UNPROVEN, zone_of};
use crate::pool::{Pool, State};

impl Pool {
    /// Takes a block that another stream freed, and makes the asker's stream wait for that free.
    pub(super) fn take_behind_wait(&self, climb: &Climb<'_>) -> Result<Step> {
        let (request, who) = (climb.request, climb.who);
        let Some(asker) = climb.asker() else { return Ok(Step::Nothing("nobody can say which stream asks")) };
        if !who.stream.is_live() {
            return Ok(Step::Nothing("the stream may have ended"));
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
        let Some((number, tag, offset)) = found else { return Ok(Step::Nothing("no stream has such a block")) };
        let Some(record) = records.get_mut(number) else { return Ok(Step::Nothing("the stream has ended")) };
        record.pins += 1;
        let (raw, event) = (record.raw, if tag == sealed(number) { record.sealed.clone() } else { None });
        drop(state);
        let covered = event.as_ref().map(|event| event.number());
        let ordered = (|| {
            let event = match event {
                Some(event) => event,
                None => match self.checkpoint(raw)? {
                    Some(event) => event,
                    None => return Ok(false),
                },
            };
            self.wait_for(who.stream.raw, &event)
        })();
        let mut state = self.lock();
        if let (Ok(true), Some(event)) = (&ordered, covered) {
            let waiter = state.record_of(asker);
            state.records.note_wait(waiter, number, event);
        }
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
        ordered.map(|_| Step::Nothing("the other stream is capturing"))
    }

    /// Makes a stream wait. False where that would end a capture: the legacy stream is in one while any blocking stream is.
    pub(in crate::pool) fn wait_for(&self, raw: RawStream, event: &Event) -> Result<bool> {
        if self.is_capturing(raw)? {
            return Ok(false);
        }
        let _current =
            if raw.is_special() { Some(crate::device::driver()?.device(self.device)?.enter()?) } else { None };
        raw.wait_event(event)?;
        Ok(true)
    }
}
