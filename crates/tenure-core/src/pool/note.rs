//! Somebody has waited for a stream: what was freed on it may be anybody's, or that one's.
//!
//! # The host has waited
//! ```text
//!   note: desks hand in -> lock: cur(A) becomes sealed(A) -> unlock -> the driver is asked: is A idle?
//!            yes   sealed(A) becomes PROVEN
//!            no    an event is recorded and covers sealed(A): whoever looks next asks the event
//!            A captures, or an error: sealed(A) becomes cur(A) again
//! ```
//!
//! **Nobody is believed.** What is sealed was freed before the question, and all work that used it was enqueued before that
//! free; so an idle stream is a proof, whoever else enqueues work meanwhile, and a note without a wait does no harm.
//!
//! **A blocking stream** may hold memory whose last user was the legacy stream, ordered by nothing but their implicit order:
//! that it is idle itself says nothing of that user. An event on it does, as does one on the legacy stream, which is a barrier
//! for all blocking streams and is recorded only where somebody asks for just that.
//!
//! # Another stream waits
//! ```text
//!   B waits for A: desks hand in -> cur(A) becomes sealed(A), an event covers it -> B waits for that event
//!                  B's record: (A, the event)      as long as A has this event, B takes what is sealed(A) as if it were its own
//! ```
//! What B may have then, A may have as well, and others once the event is complete: so the memory keeps A's tag, and B's
//! record names the event. Nobody is believed here either: a foreign wait may have been for less than what is sealed now, so
//! the pool inserts its own.
//!
//! **Cost**: while one stream only has been seen, one lock. Else one or two questions, and an event where the stream is not
//! idle; a look at each thread's desk. A wait between streams costs nothing where nothing was freed since the last one.

use tenure_driver::{CaptureStatus, Event, RawStream};

use super::cache::Which;
use super::order::{Key, Who, cur, sealed};
use super::place::PROVEN;
use super::{Pool, State};
use crate::error::{Error, Result};
use crate::stream::StreamRef;
use crate::sync::Arc;

/// What the driver said of a stream.
enum Said {
    /// All that was enqueued on it is done.
    Idle,
    /// It is not, and this event covers it.
    Covered(Arc<Event>),
    /// Nothing can be said.
    Nothing,
}

impl Pool {
    /// The host has waited for `stream`. `thoroughly`: small pieces too, and the legacy stream.
    pub(super) fn note_stream(&self, stream: StreamRef<'_>, thoroughly: bool) -> Result<()> {
        if stream.stored || self.lock().sole.is_some() {
            return Ok(());
        }
        match self.key_of(stream)? {
            Some(key) => self.note_key(key, stream.raw, thoroughly),
            None => Ok(()),
        }
    }

    /// `waiter` has been made to wait for `other`, both carried. `thoroughly`: small pieces too.
    pub(super) fn note_stream_wait(&self, waiter: StreamRef<'_>, other: StreamRef<'_>, thoroughly: bool) -> Result<()> {
        if waiter.stored || other.stored {
            return Ok(());
        }
        let (Some(waiting), Some(waited)) = (self.key_of(waiter)?, self.key_of(other)?) else { return Ok(()) };
        if waiting == waited {
            return Ok(());
        }
        {
            let state = self.lock();
            let Some(number) = state.records.find(waited) else { return Ok(()) };
            let known = state.records.find(waiting).is_some_and(|record| state.records.has_waited(record, number));
            if known && state.place.tag_block_bytes(cur(number)) == 0 && !thoroughly {
                return Ok(());
            }
        }
        let Some(asker) = self.asker(&Who { key: Some(waiting), stream: waiter })? else { return Ok(()) };
        let mut event = None;
        self.settle_sealed(waited, thoroughly, || {
            let said = self.say(other.raw)?;
            if let Said::Covered(covers) = &said
                && self.wait_for(waiter.raw, covers)?
            {
                event = Some(covers.number());
            }
            Ok(said)
        })?;
        if let Some(event) = event {
            let mut state = self.lock();
            let record = state.record_of(&asker);
            if let Some(number) = state.records.find(waited) {
                state.records.note_wait(record, number, event);
            }
        }
        Ok(())
    }

    /// The identity of a stream that its caller carries: none where it is capturing (nothing of it has run), where nobody can
    /// say, and for the default stream of another device that is current.
    fn key_of(&self, stream: StreamRef<'_>) -> Result<Option<Key>> {
        let key = match Who::known(stream) {
            Some(who) => who.key,
            None => match Who::ask(stream, false) {
                Ok(who) => who.key,
                Err(Error::Unsupported(_)) => None,
                Err(error) => return Err(error),
            },
        };
        // Identities of other devices are not among the records.
        let elsewhere = stream.object.is_none() && stream.raw.is_special() && crate::device::current()? != self.device;
        Ok(if elsewhere { None } else { key })
    }

    /// The host has waited for the whole device: every stream that can be asked is.
    pub(super) fn note_device(&self) -> Result<()> {
        let known: Vec<(Key, RawStream)> = {
            let state = self.lock();
            if state.sole.is_some() {
                return Ok(());
            }
            state.records.iter().filter(|(_, r)| r.touchable()).map(|(_, r)| (r.key, r.raw)).collect()
        };
        let mut result = Ok(());
        for (key, raw) in known {
            let noted = self.note_key(key, raw, false);
            result = result.and(noted);
        }
        result
    }

    /// `raw` is alive: the caller carries it, or it is a record's that can be touched, which the pin keeps.
    fn note_key(&self, key: Key, raw: RawStream, thoroughly: bool) -> Result<()> {
        if key == Key::Legacy && !thoroughly {
            return Ok(());
        }
        self.settle_sealed(key, thoroughly, || self.say(raw))
    }

    /// Sets apart what was freed on a stream, asks what can be said of that, and acts on it.
    fn settle_sealed(&self, key: Key, thoroughly: bool, say: impl FnOnce() -> Result<Said>) -> Result<()> {
        self.drain(if thoroughly { Which::Freed(key) } else { Which::Waiting(key) });
        let (number, before) = {
            let mut state = self.lock();
            let Some(number) = state.records.find(key) else { return Ok(()) };
            let State { place, records, .. } = &mut *state;
            let Some(record) = records.get_mut(number) else { return Ok(()) };
            // Pinned: somebody is asking already, and what is sealed for them is theirs to settle.
            if record.closed || record.pins > 0 {
                return Ok(());
            }
            let has = |tag| if thoroughly { place.tag_bytes(tag) } else { place.tag_block_bytes(tag) } > 0;
            if !has(cur(number)) && !has(sealed(number)) {
                return Ok(());
            }
            place.relabel(cur(number), sealed(number), thoroughly);
            record.pins += 1;
            // It does not cover what is sealed now.
            (number, record.sealed.take())
        };
        let said = say();
        let mut state = self.lock();
        let State { place, records, .. } = &mut *state;
        let Some(record) = records.get_mut(number) else { return Ok(()) };
        record.pins -= 1;
        let is_free = record.pins == 0;
        // Runs may have been sealed before this.
        let slots = thoroughly || before.is_some();
        match &said {
            Ok(Said::Idle) => place.relabel(sealed(number), PROVEN, slots),
            Ok(Said::Covered(event)) => record.sealed = Some(event.clone()),
            // A stream that ends meanwhile has its own way with what is sealed.
            _ if record.closed => {}
            _ => place.relabel(sealed(number), cur(number), slots),
        }
        if is_free {
            self.unpinned.notify_all();
        }
        drop(state);
        // Events go back to the driver here, outside the lock.
        drop(before);
        said.map(|_| ())
    }

    /// Asks the driver whether all is done that was enqueued on a stream.
    fn say(&self, raw: RawStream) -> Result<Said> {
        let driver = crate::device::driver()?;
        // A blocking stream without work is idle whatever the legacy stream does, which its user may rely on: an event knows.
        if !raw.is_special()
            && driver.stream_capture_status(raw)? == CaptureStatus::None
            && driver.stream_is_non_blocking(raw)?
            && driver.stream_query(raw)?
        {
            return Ok(Said::Idle);
        }
        match self.checkpoint(raw)? {
            Some(event) if event.query()? => Ok(Said::Idle),
            Some(event) => Ok(Said::Covered(event)),
            None => Ok(Said::Nothing),
        }
    }
}
