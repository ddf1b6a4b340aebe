//! The fast path and the checks: [`MemoryResource`] for [`Pool`].
//!
//! ```text
//!   allocate     who? -> at hand?  (at_hand.rs)  -> the ladder
//!   deallocate   at hand?          (at_hand.rs)  -> lock -> entry: checked -> tag -> free -> unlock
//! ```
//!
//! **Cost**: no driver call for default streams; one question (is it capturing?) for objects; two for raw values that are
//! carried, none for a free whose value is the one booked with the block.

use std::any::Any;

use tenure_driver::RawStream;

use super::cache::Lock;
use super::graph::threads_announced;
use super::order::identity::refuse_capturing;
use super::order::{Key, Who, cur};
use super::place::{Entry, Fault, PROVEN, UNPROVEN, rounded_bytes};
use super::{Pool, State};
use crate::error::{Error, Misuse, MisuseKind, Result};
use crate::resource::batch::deallocate_each;
use crate::resource::{Batch, Block, Freed, Info, Live, MemoryResource, Properties, Request, Resource};
use crate::sharing::{Kinds, Parts};
use crate::stream::StreamRef;
use crate::thread::{self, Local};
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
        } else if who.stream.raw.is_per_thread() && threads_announced() {
            self.refuse_capturing_thread(who.stream)?;
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn properties_over_upstream(&self) -> Properties {
        Properties { stream_ordered: true, ..self.upstream.body().properties() }
    }

    pub(super) fn other_device(&self, device: i32) -> Error {
        Error::invalid(format!(
            "the stream belongs to device {device} and the pool to device {}: use a stream of the pool's device, or a pool \
             of the stream's",
            self.device
        ))
    }

    /// Who asks, as far as a record of it can be made. Whose device a raw value belongs to is asked once per identity,
    /// outside the lock.
    ///
    /// # Errors
    /// A stream of another device; what the driver says.
    pub(super) fn asker(&self, who: &Who<'_>) -> Result<Option<Asker>> {
        let Some(key) = who.key else { return Ok(None) };
        let raw = who.stream.raw;
        if matches!(key, Key::Raw(_)) && self.lock().records.find(key).is_none() {
            let device = crate::device::driver()?.device_of(raw)?;
            if device != self.device {
                return Err(self.other_device(device));
            }
        }
        Ok(Some(Asker { key, raw }))
    }

    /// Finds what a free names and checks it.
    #[inline]
    pub(super) fn checked(&self, state: &State, ptr: u64, request: &Request) -> Result<Entry> {
        // A graph's blocks have been looked for before.
        let found = self.pages.offset_of(ptr).ok_or(Fault::Unknown).and_then(|offset| state.place.entry(offset));
        named_rightly(found, ptr, request)
    }

    /// The tag of a free, if no driver call is needed to know it.
    #[inline]
    pub(super) fn tag_known(state: &State, entry: &Entry, request: &Request, stream: StreamRef<'_>) -> Option<u32> {
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

    /// Frees what was checked under this lock.
    pub(super) fn free_checked(
        &self,
        state: &mut State,
        entry: &Entry,
        tag: u32,
        ptr: u64,
        request: &Request,
    ) -> Result<()> {
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

    /// Who frees on a stream that has no record yet; `None` where no stream can be named for it.
    pub(super) fn asked(&self, stream: StreamRef<'_>) -> Result<Option<Asker>> {
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

/// Who asks, with all that a record of it needs.
#[derive(Clone, Copy)]
pub(super) struct Asker {
    key: Key,
    pub(super) raw: RawStream,
}

/// The block that a free found, where pointer, owner, size and alignment are those of its allocation.
///
/// # Errors
/// [`Error::Misuse`] that says which of them is not.
#[inline]
pub(super) fn named_rightly(found: Result<Entry, Fault>, ptr: u64, request: &Request) -> Result<Entry> {
    let misuse = |kind, owner, owner_bytes| {
        Error::Misuse(Misuse { kind, ptr, bytes: request.bytes as u64, asked: request.owner, owner, owner_bytes })
    };
    let entry = found.map_err(|fault| match fault {
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

impl State {
    /// The asker's record. Looked up again under every lock: between two of them it may have been dropped as unused.
    pub(super) fn record_of(&mut self, asker: &Asker) -> u32 {
        self.record(asker.key, asker.raw)
    }
}

/// What a memory checker, if there is one, is told about (`tools/heaps.rs`).
impl Pool {
    #[inline]
    pub(super) fn serve(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        let who = match self.who(stream) {
            Ok(who) => who,
            Err(refused) => return self.allocate_captured(request, stream, refused),
        };
        if let Some(key) = who.key
            && let Some(ptr) = thread::with(|here| self.take_at_hand(request, key, stream.raw, here, Lock::Wait))
        {
            return Ok(ptr);
        }
        // The per-thread stream is asked here only: the question is dear there.
        if stream.raw.is_per_thread()
            && let Err(refused) = self.refuse_capturing_thread(stream)
        {
            return self.allocate_captured(request, stream, refused);
        }
        let ptr = self.allocate_slow(request, &who)?;
        self.count_in(request);
        Ok(ptr)
    }

    #[inline]
    pub(super) fn take_back(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        if thread::with(|here| self.keep_at_hand(ptr, request, stream, here, Lock::Wait)) {
            return Ok(());
        }
        if self.is_outside(ptr) {
            return self.free_captured(ptr, request, stream, false);
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

    fn allocate_many(&self, batch: &Batch<'_>, stream: StreamRef<'_>, out: &mut [u64]) -> Result<()> {
        self.serve_many(batch, stream, out)?;
        if heaps::wanted() {
            for (at, request) in batch.requests() {
                heaps::served(&request, Ok(out[at]))?;
            }
        }
        Ok(())
    }

    fn deallocate_many(&self, ptrs: &[u64], batch: &Batch<'_>, stream: StreamRef<'_>) -> Freed {
        if heaps::wanted() {
            // Each is taken from the tool before it is anybody else's.
            return deallocate_each(self, ptrs, batch, stream);
        }
        self.take_back_many(ptrs, batch, stream)
    }

    #[inline]
    fn allocate_at_hand(
        &self,
        request: &Request,
        stream: StreamRef<'_>,
        here: &Local,
    ) -> Option<Result<u64, Box<Error>>> {
        let who = match Who::known(stream) {
            Some(who) => who,
            None => match self.ask_for_ready(request, stream)? {
                Ok(who) => who,
                Err(e) => return Some(Err(e)),
            },
        };
        if stream.raw.is_per_thread() && threads_announced() {
            return None;
        }
        let key = who.key?;
        // Asked before the desk is touched: no lock is held over it, and nothing is to be put back.
        if stream.object.is_some()
            && let Err(e) = self.check_object(&who)
        {
            // A stream that is capturing, or of another device, takes the whole way.
            return if matches!(e, Error::Device(_)) { Some(Err(Box::new(e))) } else { None };
        }
        self.take_at_hand(request, key, stream.raw, here, Lock::Try).map(Ok)
    }

    #[inline]
    fn deallocate_at_hand(&self, ptr: u64, request: &Request, stream: StreamRef<'_>, here: &Local) -> bool {
        self.keep_at_hand(ptr, request, stream, here, Lock::Try)
    }

    fn try_allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        let who = Who::known(stream).ok_or(Error::WouldBlock)?;
        // A capturing stream is the plain call's to serve.
        self.check_object(&who).map_err(|e| if matches!(e, Error::Unsupported(_)) { Error::WouldBlock } else { e })?;
        let key = who.key.ok_or(Error::WouldBlock)?;
        if let Some(ptr) = thread::with(|here| self.take_at_hand(request, key, stream.raw, here, Lock::Try)) {
            return Ok(ptr);
        }
        let mut state = self.state.try_lock().ok_or(Error::WouldBlock)?;
        let record = match (state.records.find(key), key) {
            (Some(record), _) => record,
            (None, Key::Legacy | Key::PerThread(_)) => state.record(key, stream.raw),
            (None, _) => return Err(Error::WouldBlock),
        };
        let tags = state.records.tags(record);
        let offset = state.take(request, &tags, cur(record)).ok_or(Error::WouldBlock)?;
        drop(state);
        self.count_in(request);
        Ok(self.pages.ptr_of(offset))
    }

    fn try_deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        if thread::with(|here| self.keep_at_hand(ptr, request, stream, here, Lock::Try)) {
            return Ok(());
        }
        if self.is_outside(ptr) {
            return self.free_captured(ptr, request, stream, true);
        }
        let mut state = self.state.try_lock().ok_or(Error::WouldBlock)?;
        let entry = self.checked(&state, ptr, request)?;
        let tag = match Self::tag_known(&state, &entry, request, stream) {
            Some(tag) => tag,
            None if stream.raw.is_legacy() => cur(state.record(Key::Legacy, stream.raw)),
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
        if self.has_own_ranges() { self.own_properties } else { self.properties_over_upstream() }
    }

    fn exports(&self) -> u32 {
        self.exported_kinds().0
    }

    fn share(&self, ptr: u64, bytes: usize, wanted: Kinds) -> Result<Option<Parts>> {
        self.parts(ptr, bytes, wanted)
    }

    fn find(&self, ptr: u64) -> Option<Block> {
        if self.is_outside(ptr) {
            return self.find_captured(ptr).map(|(block, _)| block);
        }
        let offset = self.pages.offset_of(ptr)?;
        let entry = self.lock().place.around(offset).ok()?;
        Some(Block {
            ptr: self.pages.ptr_of(entry.offset),
            bytes: entry.bytes as usize,
            owner: entry.owner,
            device: self.device,
        })
    }

    fn each_block(&self, see: &mut dyn FnMut(Live)) {
        self.look(see);
    }

    fn held_ranges(&self) -> Vec<(u64, u64)> {
        self.ranges()
    }

    fn capture_of(&self, ptr: u64) -> Option<u64> {
        self.find_captured(ptr).map(|(_, capture)| capture)
    }

    fn info(&self) -> Info {
        self.report()
    }

    fn reserved_bytes(&self) -> u64 {
        let mapped = self.lock().place.mapped_bytes();
        self.pages.reserved().max(mapped) + self.graph_bytes().1
    }

    fn trim(&self, keep_bytes: usize) -> Result<usize> {
        self.trim_to(keep_bytes as u64).map(|bytes| bytes as usize)
    }

    fn upstream(&self) -> Option<&Resource> {
        Some(&self.upstream)
    }

    fn property(&self, name: &str) -> Option<u64> {
        match name {
            "pool_size" => Some(self.lock().place.mapped_bytes() + self.graph_bytes().0),
            "graph_bytes" => Some(self.graph_bytes().0),
            "graph_arenas" => Some(self.graph_count()),
            "initial_bytes" => Some(self.options.initial_bytes),
            "maximum_bytes" => self.options.maximum_bytes,
            "release_threshold" => Some(self.options.release_threshold),
            "remap" => Some(u64::from(self.options.remap)),
            "decay_ms" => Some(self.options.decay_ms),
            "chunk_bytes" => Some(self.options.chunk_bytes),
            "export_handle_type" => Some(u64::from(self.options.export_handle_type.value())),
            "grow_ahead" => Some(u64::from(self.options.grow_ahead)),
            "peers" => Some(self.options.peers),
            "rdma" => Some(u64::from(self.options.rdma)),
            "past_bytes" => Some(self.past_bytes()),
            "own_ranges" => Some(u64::from(self.has_own_ranges())),
            "stream_records" => Some(self.lock().records.len() as u64),
            "plots" => Some(self.cache.plots().0),
            "proven_bytes" => Some(self.lock().place.tag_bytes(PROVEN)),
            _ => None,
        }
    }

    fn stream_synchronized(&self, stream: StreamRef<'_>, thoroughly: bool) -> Result<()> {
        self.note_stream(stream, thoroughly)
    }

    fn stream_waits(&self, waiter: StreamRef<'_>, other: StreamRef<'_>, thoroughly: bool) -> Result<()> {
        self.note_stream_wait(waiter, other, thoroughly)
    }

    fn device_synchronized(&self, device: i32) -> Result<()> {
        if device == self.device { self.note_device() } else { Ok(()) }
    }

    fn stream_closing(&self, stream: StreamRef<'_>) {
        self.close_stream(stream);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
