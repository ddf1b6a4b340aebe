//! The fast path and the checks: [`MemoryResource`] for [`Pool`].
//!
//! ```text
//!   allocate     who? -> desk: magazine, parked block -> lock -> record -> refill, take -> unlock          (else the ladder)
//!   deallocate   address -> ledger: checked -> desk: claimed, kept    (else lock -> entry: checked -> tag -> free -> unlock)
//! ```
//!
//! Whatever is not exactly right on the way to the desk (a wrong size, an unknown stream, a block that is not live) is left
//! to the path under the lock, which knows what is wrong and says so.
//!
//! **Cost**: no driver call for default streams; one question (is it capturing?) for objects; two for raw values that are
//! carried, none for a free whose value is the one booked with the block.

use std::any::Any;

use tenure_driver::RawStream;

use super::cache::{Drawer, Hold, Lock, Which};
use super::order::identity::{refuse_capturing, this_thread};
use super::order::{Key, Who, cur};
use super::place::ledger::{self, LIVE, WHOLE};
use super::place::{Entry, Fault, Held, PROVEN, UNIT, UNPROVEN, class_and_units, rounded_bytes};
use super::{Pool, State};
use crate::error::{Error, Misuse, MisuseKind, Result};
use crate::resource::{Block, Info, MemoryResource, Properties, Request, Resource};
use crate::stream::StreamRef;
use crate::sync::MutexGuard;
use crate::tools::heaps;

impl Pool {
    /// Who asks, with as few questions as can be.
    #[inline]
    pub(super) fn who<'a>(&self, stream: StreamRef<'a>) -> Result<Who<'a>> {
        let Some(who) = Who::known(stream) else {
            return Who::ask(stream, self.options.assume_no_capture);
        };
        self.check_object(&who)?;
        Ok(who)
    }

    /// An object must be of the pool's device and not capturing.
    #[inline]
    fn check_object(&self, who: &Who<'_>) -> Result<()> {
        if let (Some(Key::Object(_)), Some(object)) = (who.key, who.stream.object) {
            if object.device() != self.device {
                return Err(self.other_device(object.device()));
            }
            if !self.options.assume_no_capture {
                refuse_capturing(who.stream.raw)?;
            }
        }
        Ok(())
    }

    fn other_device(&self, device: i32) -> Error {
        Error::invalid(format!(
            "the stream belongs to device {device} and the pool to device {}: use a stream of the pool's device, or a pool \
             of the stream's",
            self.device
        ))
    }

    /// What a record of the asker needs to know: whether its stream is in implicit order with the legacy one. Asked of the
    /// driver once per identity, outside the lock.
    ///
    /// # Errors
    /// A stream of another device; what the driver says.
    pub(super) fn asker(&self, who: &Who<'_>) -> Result<Option<Asker>> {
        let Some(key) = who.key else { return Ok(None) };
        let raw = who.stream.raw;
        {
            let state = self.lock();
            if let Some(record) = state.records.find(key).and_then(|r| state.records.get(r)) {
                return Ok(Some(Asker { key, raw, blocking: record.blocking }));
            }
        }
        let blocking = match key {
            Key::Legacy | Key::PerThread(_) => true,
            Key::Object(_) | Key::Raw(_) => {
                let driver = crate::device::driver()?;
                if who.stream.object.is_none() {
                    let device = driver.device_of(raw)?;
                    if device != self.device {
                        return Err(self.other_device(device));
                    }
                }
                !driver.stream_is_non_blocking(raw)?
            }
        };
        Ok(Some(Asker { key, raw, blocking }))
    }

    /// Finds what a free names and checks it.
    #[inline]
    fn checked(&self, state: &State, ptr: u64, request: &Request) -> Result<Entry> {
        let misuse = |kind, owner, owner_bytes| {
            Error::Misuse(Misuse { kind, ptr, bytes: request.bytes as u64, asked: request.owner, owner, owner_bytes })
        };
        let Some(offset) = self.pages.offset_of(ptr) else { return Err(misuse(MisuseKind::UnknownPointer, 0, 0)) };
        let entry = state.place.entry(offset).map_err(|fault| match fault {
            Fault::Unknown => misuse(MisuseKind::UnknownPointer, 0, 0),
            Fault::Freed => misuse(MisuseKind::DoubleFree, 0, 0),
            Fault::Interior { owner, bytes } => misuse(MisuseKind::InteriorPointer, owner, bytes),
        })?;
        if entry.owner != request.owner {
            return Err(misuse(MisuseKind::WrongResource, entry.owner, entry.bytes));
        }
        if entry.bytes != rounded_bytes(request.bytes as u64) {
            return Err(misuse(MisuseKind::WrongSize, entry.owner, entry.bytes));
        }
        if ptr & (request.align as u64 - 1) != 0 {
            return Err(misuse(MisuseKind::WrongAlignment, entry.owner, entry.bytes));
        }
        Ok(entry)
    }

    /// The tag of a free, if no driver call is needed to know it.
    #[inline]
    fn tag_known(state: &State, entry: &Entry, request: &Request, stream: StreamRef<'_>) -> Option<u32> {
        if request.flags & Request::UNPROVEN != 0 {
            return Some(UNPROVEN);
        }
        if let Some(who) = Who::known(stream) {
            return state.records.find(who.key?).map(cur);
        }
        // A raw value: the one that the block was booked with needs no question. If the handle was given to another
        // stream meanwhile, the block goes to the old stream's record, which that one never matches.
        match state.records.of_stamp(entry.stamp) {
            Some((record, known)) if known.raw == stream.raw && !known.closed => Some(cur(record)),
            _ if stream.stored => Some(UNPROVEN),
            _ => None,
        }
    }

    /// Who frees on a stream that has no record yet; `None` where no stream can be named for it.
    fn asked(&self, stream: StreamRef<'_>) -> Result<Option<Asker>> {
        let who = match Who::known(stream) {
            Some(who) => {
                if let (Some(Key::Object(_)), Some(object)) = (who.key, stream.object) {
                    if object.device() != self.device {
                        return Err(self.other_device(object.device()));
                    }
                    // What was freed into a capture is ordered with nothing outside it.
                    if refuse_capturing(stream.raw).is_err() {
                        return Ok(None);
                    }
                }
                who
            }
            None => match Who::ask(stream, false) {
                Ok(who) => who,
                Err(Error::Unsupported(_)) => return Ok(None),
                Err(e) => return Err(e),
            },
        };
        self.asker(&who)
    }
}

/// What a request counts in the figures, in bytes: the same at its free.
#[inline]
fn counted(request: &Request) -> i64 {
    i64::from(class_and_units(request.bytes as u64).1) * UNIT as i64
}

/// What goes through the thread's own desk.
impl Pool {
    #[inline]
    fn lock_or_not(&self, lock: Lock) -> Option<MutexGuard<'_, State>> {
        if lock == Lock::Wait { Some(self.lock()) } else { self.state.try_lock() }
    }

    /// Serves a request from what the thread has, or from the placer without a driver call.
    #[inline]
    fn from_desk(&self, request: &Request, key: Key, raw: RawStream, lock: Lock) -> Option<u64> {
        let (class, units) = class_and_units(request.bytes as u64);
        let mut drawer = self.cache.drawer(lock)?;
        match self.ready(&mut drawer, request, key, class, units) {
            Some(ptr) => Some(ptr),
            None => self.from_placer(drawer, request, key, raw, lock),
        }
    }

    /// What the thread has for a stream.
    #[inline]
    fn ready(&self, drawer: &mut Drawer, request: &Request, key: Key, class: usize, units: u32) -> Option<u64> {
        let (held, stamp) = if class == WHOLE {
            drawer.unpark(key.code(), units, request.align as u64, |offset| self.pages.ptr_of(offset))?
        } else if request.align as u64 <= UNIT {
            drawer.pop(key.code(), class)?
        } else {
            return None;
        };
        // SAFETY: the placer is alive, since the pool is.
        unsafe { held.hand_out(ledger::word(LIVE, class, held.unit, stamp), request.owner) };
        drawer.count_in(&self.cache.figures, i64::from(units) * UNIT as i64);
        Some(self.pages.ptr_of(u64::from(held.unit) * UNIT))
    }

    #[cold]
    fn from_placer(
        &self,
        mut drawer: Hold<'_, Drawer>,
        request: &Request,
        key: Key,
        raw: RawStream,
        lock: Lock,
    ) -> Option<u64> {
        let mut state = self.lock_or_not(lock)?;
        // First what waits: the placer then sees all that is free.
        drawer.post(&mut state);
        let record = state.records.find(key)?;
        let opened = drawer.open(key, raw, record, &mut state);
        let tags = state.records.tags(record);
        let (class, _) = class_and_units(request.bytes as u64);
        let small = class != WHOLE && request.align as u64 <= UNIT;
        let held = if small { drawer.refill(key.code(), class, &mut state, &tags) } else { None };
        let offset = match held {
            Some((held, stamp)) => {
                // SAFETY: the placer is alive, since the pool is.
                unsafe { held.hand_out(ledger::word(LIVE, class, held.unit, stamp), request.owner) };
                u64::from(held.unit) * UNIT
            }
            None => state.take(request, &tags, cur(record))?,
        };
        drop(state);
        drawer.count_in(&self.cache.figures, counted(request));
        drop(drawer);
        if opened && lock == Lock::Wait && self.cache.is_crowded() {
            self.drain(Which::Left);
        }
        Some(self.pages.ptr_of(offset))
    }

    /// Keeps a freed piece at the thread's desk. False, with nothing changed, where that needs a question or is wrong.
    #[inline]
    fn to_desk(&self, ptr: u64, request: &Request, stream: StreamRef<'_>, lock: Lock) -> bool {
        if request.flags != 0 || ptr & (request.align as u64 - 1) != 0 || ptr % UNIT != 0 {
            return false;
        }
        let Some(offset) = self.pages.offset_of(ptr) else { return false };
        let unit = (offset / UNIT) as u32;
        let Some(found) = self.ledger.find(unit) else { return false };
        let (class, units) = class_and_units(request.bytes as u64);
        let word = found.piece.word();
        let booked = ledger::stamp_of(word);
        if word != ledger::word(LIVE, class, unit, booked) || (class == WHOLE && found.units != units) {
            return false;
        }
        let key = match Who::known(stream) {
            Some(Who { key: None, .. }) => return false,
            Some(who) => who.key.map(Key::code),
            None => None,
        };
        let Some(mut drawer) = self.cache.drawer(lock) else { return false };
        let Some(stamp) = drawer.stamp_for(key, stream.raw, booked) else { return false };
        if !found.piece.claim(word, request.owner) {
            return false;
        }
        let held = Held::claimed(&found, unit);
        drawer.count_out(&self.cache.figures, i64::from(units) * UNIT as i64);
        if stamp == booked && found.units == units {
            if class != WHOLE {
                if !drawer.push(held, class, stamp) {
                    self.spill(drawer, class, stamp, lock);
                }
                return true;
            }
            match drawer.park(held, units, stamp) {
                None => return true,
                // The one that was parked before.
                Some((held, stamp)) => drawer.send(held, stamp),
            };
        } else if drawer.send(held, stamp) {
            return true;
        }
        if let Some(mut state) = self.lock_or_not(lock) {
            drawer.post_sent(&mut state);
        }
        true
    }

    #[cold]
    fn spill(&self, mut drawer: Hold<'_, Drawer>, class: usize, stamp: u32, lock: Lock) {
        // Without the lock the magazine is over its size until the next free.
        if let Some(mut state) = self.lock_or_not(lock) {
            drawer.spill(class, stamp, &mut state);
        }
    }

    /// Frees what was checked under this lock.
    fn free_checked(&self, state: &mut State, entry: &Entry, tag: u32, ptr: u64, request: &Request) -> Result<()> {
        if state.place.free(entry, tag) {
            return Ok(());
        }
        // Another thread freed it a moment ago.
        Err(Error::Misuse(Misuse {
            kind: MisuseKind::DoubleFree,
            ptr,
            bytes: request.bytes as u64,
            asked: request.owner,
            owner: 0,
            owner_bytes: 0,
        }))
    }

    /// The next free of this thread on this stream finds a magazine.
    fn open_magazine(&self, tag: u32, stream: StreamRef<'_>, lock: Lock) {
        let Some(mut drawer) = self.cache.drawer(lock) else { return };
        let Some(mut state) = self.lock_or_not(lock) else { return };
        let Some((number, record)) = state.records.of_stamp(tag) else { return };
        let (key, raw) = (record.key, record.raw);
        // The default stream of another thread, or a value that was given to another stream, is not this one.
        if !record.closed && raw == stream.raw && !matches!(key, Key::PerThread(thread) if thread != this_thread()) {
            drawer.open(key, raw, number, &mut state);
        }
    }

    fn count_in(&self, request: &Request) {
        let bytes = counted(request);
        match self.cache.drawer(Lock::Wait) {
            Some(mut drawer) => drawer.count_in(&self.cache.figures, bytes),
            None => _ = self.cache.figures.add(0, bytes, -1),
        }
    }

    fn count_out(&self, request: &Request) {
        let bytes = counted(request);
        match self.cache.drawer(Lock::Wait) {
            Some(mut drawer) => drawer.count_out(&self.cache.figures, bytes),
            None => _ = self.cache.figures.subtract(0, bytes, 0),
        }
    }
}

/// Who asks, with all that a record of it needs.
#[derive(Clone, Copy)]
pub(super) struct Asker {
    key: Key,
    raw: RawStream,
    pub(super) blocking: bool,
}

impl State {
    /// The asker's record. Looked up again under every lock: between two of them it may have been dropped as unused.
    pub(super) fn record_of(&mut self, asker: &Asker) -> u32 {
        self.record(asker.key, asker.raw, asker.blocking)
    }
}

/// What a memory checker, if there is one, is told about (`tools/heaps.rs`).
impl Pool {
    #[inline]
    fn serve(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        let who = self.who(stream)?;
        if let Some(key) = who.key
            && let Some(ptr) = self.from_desk(request, key, stream.raw, Lock::Wait)
        {
            return Ok(ptr);
        }
        let ptr = self.allocate_slow(request, &who)?;
        self.count_in(request);
        Ok(ptr)
    }

    #[inline]
    fn take_back(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        if self.to_desk(ptr, request, stream, Lock::Wait) {
            return Ok(());
        }
        let mut state = self.lock();
        let mut entry = self.checked(&state, ptr, request)?;
        let tag = match Self::tag_known(&state, &entry, request, stream) {
            Some(tag) => tag,
            None => {
                drop(state);
                let asker = self.asked(stream)?;
                state = self.lock();
                // Somebody may have freed it meanwhile: that is found here, not believed away.
                entry = self.checked(&state, ptr, request)?;
                asker.map_or(UNPROVEN, |asker| cur(state.record_of(&asker)))
            }
        };
        self.free_checked(&mut state, &entry, tag, ptr, request)?;
        drop(state);
        self.count_out(request);
        self.open_magazine(tag, stream, Lock::Wait);
        Ok(())
    }
}

impl MemoryResource for Pool {
    fn kind(&self) -> &'static str {
        "pool"
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        heaps::served(request, self.serve(request, stream))
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        heaps::freed(ptr, || self.take_back(ptr, request, stream))
    }

    #[inline]
    fn allocate_at_hand(&self, request: &Request, stream: StreamRef<'_>) -> Option<u64> {
        let who = Who::known(stream)?;
        self.check_object(&who).ok()?;
        let (class, units) = class_and_units(request.bytes as u64);
        let mut drawer = self.cache.drawer(Lock::Try)?;
        self.ready(&mut drawer, request, who.key?, class, units)
    }

    #[inline]
    fn deallocate_at_hand(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> bool {
        self.to_desk(ptr, request, stream, Lock::Try)
    }

    fn try_allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        let who = Who::known(stream).ok_or(Error::WouldBlock)?;
        self.check_object(&who)?;
        let key = who.key.ok_or(Error::WouldBlock)?;
        if let Some(ptr) = self.from_desk(request, key, stream.raw, Lock::Try) {
            return Ok(ptr);
        }
        let mut state = self.state.try_lock().ok_or(Error::WouldBlock)?;
        let record = match (state.records.find(key), key) {
            (Some(record), _) => record,
            (None, Key::Legacy | Key::PerThread(_)) => state.record(key, stream.raw, true),
            (None, _) => return Err(Error::WouldBlock),
        };
        let tags = state.records.tags(record);
        let offset = state.take(request, &tags, cur(record)).ok_or(Error::WouldBlock)?;
        drop(state);
        self.count_in(request);
        Ok(self.pages.ptr_of(offset))
    }

    fn try_deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        if self.to_desk(ptr, request, stream, Lock::Try) {
            return Ok(());
        }
        let mut state = self.state.try_lock().ok_or(Error::WouldBlock)?;
        let entry = self.checked(&state, ptr, request)?;
        let tag = match Self::tag_known(&state, &entry, request, stream) {
            Some(tag) => tag,
            None if stream.raw.is_legacy() => cur(state.record(Key::Legacy, stream.raw, true)),
            None => return Err(Error::WouldBlock),
        };
        self.free_checked(&mut state, &entry, tag, ptr, request)?;
        drop(state);
        self.count_out(request);
        self.open_magazine(tag, stream, Lock::Try);
        Ok(())
    }

    fn device(&self) -> Option<i32> {
        Some(self.device)
    }

    fn properties(&self) -> Properties {
        Properties { stream_ordered: true, exportable: false, ..self.upstream.body().properties() }
    }

    fn find(&self, ptr: u64) -> Option<Block> {
        let offset = self.pages.offset_of(ptr)?;
        let entry = self.lock().place.around(offset).ok()?;
        Some(Block {
            ptr: self.pages.ptr_of(entry.offset),
            bytes: entry.bytes as usize,
            owner: entry.owner,
            device: self.device,
        })
    }

    fn info(&self) -> Info {
        self.report()
    }

    fn trim(&self, keep_bytes: usize) -> Result<usize> {
        self.trim_to(keep_bytes as u64).map(|bytes| bytes as usize)
    }

    fn upstream(&self) -> Option<&Resource> {
        Some(&self.upstream)
    }

    fn property(&self, name: &str) -> Option<u64> {
        match name {
            "pool_size" => Some(self.lock().place.mapped_bytes()),
            "initial_bytes" => Some(self.options.initial_bytes),
            "maximum_bytes" => self.options.maximum_bytes,
            "release_threshold" => Some(self.options.release_threshold),
            "own_ranges" => Some(u64::from(self.has_own_ranges())),
            "stream_records" => Some(self.lock().records.len() as u64),
            "proven_bytes" => Some(self.lock().place.tag_bytes(PROVEN)),
            _ => None,
        }
    }

    fn stream_closing(&self, stream: StreamRef<'_>) {
        self.close_stream(stream);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
