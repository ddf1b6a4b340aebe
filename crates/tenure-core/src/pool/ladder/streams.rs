//! What is done when a stream ends: an event covers what was freed on it, or nothing will.

use tenure_driver::Event;

use crate::pool::cache::Which;
use crate::pool::order::{Key, Who, cur, sealed};
use crate::pool::place::{PROVEN, UNPROVEN};
use crate::pool::{Pool, State};
use crate::sync::Arc;

/// So many streams that ended may have something left behind before their events are asked.
const CLOSED: usize = 32;

impl Pool {
    /// A stream is about to end: an event covers what was freed on it, or nothing will.
    pub(in crate::pool) fn close_stream(&self, stream: crate::stream::StreamRef<'_>) {
        let Some(Who { key: Some(key @ Key::Object(_)), .. }) = Who::known(stream) else { return };
        self.drain(Which::Stream(key));
        let mut state = self.lock();
        let Some(number) = state.records.find(key) else { return };
        if state.sole == Some(number) {
            state.end_sole();
        }
        state.records.close(number);
        // Whoever lets go of it last may drop it, and another stream may have its number by the time this thread wakes.
        let is_ours = |state: &State| state.records.get(number).is_some_and(|r| r.closed && r.key == key);
        while is_ours(&state) && state.records.get(number).is_some_and(|r| r.pins > 0) {
            self.unpinned.wait(&mut state);
        }
        if !is_ours(&state) {
            return;
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
}
