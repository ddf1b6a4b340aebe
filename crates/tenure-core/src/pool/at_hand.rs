//! The short way: allocations and frees through the thread's own desk (see `cache/`).
//!
//! ```text
//!   allocate     desk: magazine, parked block -> handed out           else lock -> record -> refill, or take -> unlock
//!   deallocate   address -> ledger: live, of this size, at this place -> desk: claimed -> magazine, outbox, parked
//! ```
//!
//! Whatever is not exactly right on the way (a wrong size, an unknown stream, a block that is not live) is left to the path
//! under the lock, which knows what is wrong and says so.
//!
//! **Cost**: one latch, and for a free one compare-exchange. Nothing here calls the driver.
//!
//! Unsafe in this file: claiming and handing out pieces, which need a placer that is alive.

use tenure_driver::RawStream;

use super::cache::{Drawer, Hold, Lock, Which};
use super::order::identity::this_thread;
use super::order::{Key, Who, cur};
use super::place::ledger::{self, LIVE, Mark, WHOLE};
use super::place::{Held, LARGE, UNIT, class_and_units};
use super::{Pool, State};
use crate::error::Error;
use crate::resource::Request;
use crate::stream::StreamRef;
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;
use crate::thread::Local;

/// What a request counts in the figures, in bytes: the same at its free.
#[inline]
pub(super) fn counted(request: &Request) -> i64 {
    i64::from(class_and_units(request.bytes as u64).1) * UNIT as i64
}

/// A piece on its way to a request: held, and nobody else's.
#[derive(Clone, Copy)]
pub(super) struct Ready {
    held: Held,
    class: usize,
    stamp: u32,
}

/// A live block that a free names rightly, as far as can be seen without its owner.
#[derive(Clone, Copy)]
pub(super) struct Claimable {
    held: Held,
    /// What its piece says while it is live.
    word: u64,
    units: u32,
    /// It takes no more than that.
    exact: bool,
    mark: Mark,
}

/// The block that was searched for last, and the free that named it. A loop that allocates and frees meets it again and again,
/// and need not search for it each time.
pub(super) struct Recent {
    ptr: u64,
    bytes: usize,
    block: Claimable,
}

/// What became of a drawer that a piece was put in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// There is room.
    Well,
    /// The stack of this class and stamp is full.
    Full(usize, u32),
    /// Something had better be given back, where nobody else is at the placer.
    Better,
    /// Something waits to be given back.
    Waiting,
}

impl Kept {
    /// Gives the placer what is too much.
    pub(super) fn relieve(self, drawer: &mut Drawer, state: &mut State) {
        match self {
            Self::Well => {}
            Self::Full(class, stamp) => drawer.spill(class, stamp, state),
            Self::Better | Self::Waiting => drawer.post_sent(state),
        }
    }
}

impl Pool {
    #[inline]
    fn lock_or_not(&self, lock: Lock) -> Option<MutexGuard<'_, State>> {
        if lock == Lock::Wait { Some(self.lock()) } else { self.state.try_lock() }
    }

    /// Serves a request from what the thread has, or from the placer without a driver call.
    #[inline]
    pub(super) fn take_at_hand(
        &self,
        request: &Request,
        key: Key,
        raw: RawStream,
        here: &Local,
        lock: Lock,
    ) -> Option<u64> {
        let mut drawer = self.cache.drawer_of(here, lock)?;
        match self.ready(&mut drawer, request, key) {
            Some(ready) => {
                drop(drawer);
                Some(self.hand_out(&ready, request))
            }
            None => self.refill(drawer, request, key, raw, lock),
        }
    }

    /// Which stream a raw value is, where the thread has what is wanted of a stream that had this value. `None`: take the whole
    /// way.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn ask_for_ready<'a>(
        &self,
        request: &Request,
        stream: StreamRef<'a>,
    ) -> Option<Result<Who<'a>, Box<Error>>> {
        let (class, units) = class_and_units(request.bytes as u64);
        if stream.stored || !self.cache.drawer(Lock::Try)?.may_have(stream.raw, class, units) {
            return None;
        }
        match Who::ask(stream, self.options.assume_no_capture) {
            Ok(who) => Some(Ok(who)),
            Err(e @ Error::Device(_)) => Some(Err(Box::new(e))),
            // A capturing stream takes the whole way.
            Err(_) => None,
        }
    }

    /// What a drawer has for a request, taken out of it and counted.
    #[inline]
    pub(super) fn ready(&self, drawer: &mut Drawer, request: &Request, key: Key) -> Option<Ready> {
        let (class, units) = class_and_units(request.bytes as u64);
        let (held, stamp) = if class == WHOLE {
            match drawer.unpark(key.code(), units, request.align as u64, |offset| self.pages.ptr_of(offset)) {
                Some(parked) => parked,
                None if request.align as u64 <= UNIT => drawer.cut(key.code(), units)?,
                None => return None,
            }
        } else if request.align as u64 <= UNIT {
            drawer.pop(key.code(), class)?
        } else {
            return None;
        };
        drawer.count_in(&self.cache.figures, i64::from(units) * UNIT as i64);
        Some(Ready { held, class, stamp })
    }

    /// It is the request's now.
    #[inline]
    pub(super) fn hand_out(&self, ready: &Ready, request: &Request) -> u64 {
        let Ready { held, class, stamp } = *ready;
        // SAFETY: the placer is alive, since the pool is.
        unsafe { held.hand_out(ledger::word(LIVE, class, held.unit, stamp), request.owner) };
        self.pages.ptr_of(u64::from(held.unit) * UNIT)
    }

    #[inline(never)]
    fn refill(
        &self,
        mut drawer: Hold<'_, Drawer>,
        request: &Request,
        key: Key,
        raw: RawStream,
        lock: Lock,
    ) -> Option<u64> {
        let taken = self.state.try_lock();
        drawer.met(taken.is_none(), self.plots.are_forced());
        let mut state = match taken {
            Some(state) => state,
            None if lock == Lock::Wait => self.lock_contended(),
            None => return None,
        };
        // First what waits: the placer then sees all that is free.
        drawer.post(&mut state);
        // A record with a magazine here is the identity's for as long as that is open: no need to look for it.
        let (record, opened) = match drawer.record_of(key.code()).filter(|record| state.records.is_open(*record)) {
            Some(record) => (record, false),
            None => {
                let record = state.records.find(key)?;
                (record, drawer.open(key, raw, record, &mut state))
            }
        };
        let (few, all);
        let tags: &[u32] = if let Some(tags) = state.records.few_tags(record) {
            few = tags;
            &few
        } else {
            all = state.records.tags(record);
            &all
        };
        let ptr = self.take_or_refill(&mut drawer, &mut state, request, key, record, tags)?;
        drop(state);
        drawer.count_in(&self.cache.figures, counted(request));
        drop(drawer);
        if opened && lock == Lock::Wait && self.cache.is_crowded() {
            self.drain(Which::Left);
        }
        Some(ptr)
    }

    /// Takes what the placer has for a request, and for a small one more of its class for the drawer. The caller counts.
    pub(super) fn take_or_refill(
        &self,
        drawer: &mut Drawer,
        state: &mut State,
        request: &Request,
        key: Key,
        record: u32,
        tags: &[u32],
    ) -> Option<u64> {
        let (class, units) = class_and_units(request.bytes as u64);
        let plain = request.align as u64 <= UNIT;
        if class != WHOLE {
            if plain && let Some((held, stamp)) = drawer.refill(key.code(), class, state, tags) {
                return Some(self.hand_out(&Ready { held, class, stamp }, request));
            }
            return Some(self.pages.ptr_of(state.take(request, tags, cur(record))?));
        }
        if plain
            && drawer.is_crowded()
            && self.plots.may_open()
            && let Some((held, stamp)) = drawer.till(key.code(), units, state, tags)
        {
            return Some(self.hand_out(&Ready { held, class, stamp }, request));
        }
        // Due already: a request that was sent on comes by once more on its way to the ladder.
        if self.harvest_due.load(Ordering::Relaxed) || state.is_loose(request, tags) {
            self.harvest_due.store(true, Ordering::Relaxed);
            return None;
        }
        let align = (request.align as u64 / UNIT).max(1) as u32;
        let unit = state.place.take_whole(units, align, tags, (WHOLE, cur(record)), request.owner, LARGE)?;
        Some(self.pages.ptr_of(u64::from(unit) * UNIT))
    }

    /// The live block of exactly these bytes at `ptr`; `None` where anything about the free must be looked at.
    #[inline(always)]
    pub(super) fn claimable(&self, drawer: &mut Drawer, ptr: u64, request: &Request) -> Option<Claimable> {
        if request.flags != 0 || ptr & (request.align as u64 - 1) != 0 {
            return None;
        }
        let known = |recent: &&Recent| {
            // SAFETY: the ledger is alive, since the pool is.
            let stands = || unsafe { recent.block.mark.stands() };
            recent.ptr == ptr && recent.bytes == request.bytes && stands()
        };
        if let Some(recent) = drawer.recent.as_ref().filter(known) {
            return Some(recent.block);
        }
        let block = self.search(ptr, request)?;
        drawer.recent = Some(Recent { ptr, bytes: request.bytes, block });
        Some(block)
    }

    #[inline(never)]
    fn search(&self, ptr: u64, request: &Request) -> Option<Claimable> {
        if !ptr.is_multiple_of(UNIT) {
            return None;
        }
        let offset = self.pages.offset_of(ptr)?;
        let unit = (offset / UNIT) as u32;
        let found = self.ledger.find(unit)?;
        let (class, units) = class_and_units(request.bytes as u64);
        let word = found.piece.word();
        let right = word == ledger::word(LIVE, class, unit, ledger::stamp_of(word));
        (right && (class != WHOLE || found.units == units)).then(|| Claimable {
            held: Held::found(&found, unit),
            word,
            units,
            exact: found.units == units,
            mark: found.mark,
        })
    }

    /// The identity that a desk may know the stream of a free by: `Some(None)` where it is known by its value only, `None`
    /// where nobody can say which stream it is.
    #[inline]
    pub(super) fn code_of(stream: StreamRef<'_>) -> Option<Option<u64>> {
        match Who::known(stream) {
            Some(who) => who.key.map(|key| Some(key.code())),
            None => Some(None),
        }
    }

    /// Keeps a freed piece at the thread's desk. False, with nothing changed, where that needs a question or is wrong.
    #[inline]
    pub(super) fn keep_at_hand(
        &self,
        ptr: u64,
        request: &Request,
        stream: StreamRef<'_>,
        here: &Local,
        lock: Lock,
    ) -> bool {
        let Some(code) = Self::code_of(stream) else { return false };
        let Some(mut drawer) = self.cache.drawer_of(here, lock) else { return false };
        let Some(block) = self.claimable(&mut drawer, ptr, request) else { return false };
        let Some(kept) = self.keep(&mut drawer, &block, request.owner, code, stream.raw) else { return false };
        if kept != Kept::Well {
            self.relieve(drawer, kept, lock);
        }
        true
    }

    /// Claims the block and puts it in the drawer; `None`, with nothing changed, where it does not belong there.
    #[inline]
    pub(super) fn keep(
        &self,
        drawer: &mut Drawer,
        block: &Claimable,
        owner: u64,
        code: Option<u64>,
        raw: RawStream,
    ) -> Option<Kept> {
        let Claimable { held, word, units, exact, .. } = *block;
        let (class, booked) = (ledger::class_in(word), ledger::stamp_of(word));
        let stamp = drawer.stamp_for(code, raw, booked)?;
        // SAFETY: the placer is alive, since the pool is.
        if !unsafe { held.claim(word, owner) } {
            return None;
        }
        drawer.count_out(&self.cache.figures, i64::from(units) * UNIT as i64);
        if stamp == booked && exact {
            if class != WHOLE {
                return Some(if drawer.push(held, class, stamp) { Kept::Well } else { Kept::Full(class, stamp) });
            }
            // The one that was parked before.
            return Some(match drawer.park(held, units, stamp) {
                None => Kept::Well,
                // The next visit takes it along; only where none comes it is worth one.
                Some((before, stamp)) if drawer.send(before, stamp) => {
                    if drawer.may_wait() {
                        Kept::Well
                    } else {
                        Kept::Better
                    }
                }
                Some(_) => Kept::Waiting,
            });
        }
        Some(if drawer.send(held, stamp) { Kept::Well } else { Kept::Waiting })
    }

    /// Gives the placer what is too much at a desk.
    #[inline]
    fn relieve(&self, mut drawer: Hold<'_, Drawer>, kept: Kept, lock: Lock) {
        // Without the lock the drawer is over its size until the next free.
        if let Some(mut state) = self.lock_or_not(if kept == Kept::Better { Lock::Try } else { lock }) {
            kept.relieve(&mut drawer, &mut state);
        }
    }

    /// The next free of this thread on this stream finds a magazine.
    pub(super) fn open_magazine(&self, tag: u32, stream: StreamRef<'_>, lock: Lock) {
        let Some(mut drawer) = self.cache.drawer(lock) else { return };
        let Some(mut state) = self.lock_or_not(lock) else { return };
        let Some((number, record)) = state.records.of_stamp(tag) else { return };
        let (key, raw) = (record.key, record.raw);
        // The default stream of another thread, or a value that was given to another stream, is not this one.
        if !record.closed && raw == stream.raw && !matches!(key, Key::PerThread(thread) if thread != this_thread()) {
            drawer.open(key, raw, number, &mut state);
        }
    }

    pub(super) fn count_in(&self, request: &Request) {
        let bytes = counted(request);
        match self.cache.drawer(Lock::Wait) {
            Some(mut drawer) => drawer.count_in(&self.cache.figures, bytes),
            None => _ = self.cache.figures.add(0, bytes, -1),
        }
    }

    pub(super) fn count_out(&self, request: &Request) {
        self.count_out_bytes(counted(request));
    }

    pub(super) fn count_out_bytes(&self, bytes: i64) {
        if bytes == 0 {
            return;
        }
        match self.cache.drawer(Lock::Wait) {
            Some(mut drawer) => drawer.count_out(&self.cache.figures, bytes),
            None => _ = self.cache.figures.subtract(0, bytes, 0),
        }
    }
}
