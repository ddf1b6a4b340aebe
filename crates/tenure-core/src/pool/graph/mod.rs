//! Memory of a graph: what is asked for on a stream that is being captured.
//!
//! ```text
//!   allocate on a capturing stream                       free of such a block, whenever and wherever
//!      | which capture? (a harmless question)               | address -> arena: checked as every free
//!      v                                                    v
//!   arena of the capture  <-- grows by virtual memory    back to that arena only
//!      ^                      (legal under capture)
//!      | holds                                           gone: no capture, no graph, no run, no name, no live block
//!   user object in the graph: when graph, executables and the last run are gone, the driver sets a flag  --> pages back
//! ```
//!
//! A graph names addresses, and runs whenever its owner likes. So what was allocated while it was captured belongs to it as
//! long as it lives: freed blocks serve the same capture again, in the order of the same stream, and nobody else. No edge and
//! no node is put into the capture, and no driver call is made that would end one.
//!
//! A memory checker is told nothing of these blocks (`tools/heaps.rs`): a graph that runs again uses what was freed while it
//! was captured, and does no wrong.
//!
//! Several graphs that never run at once may share an arena ([`SharedArena`], [`CaptureScope`]).
//!
//! **Which pools**: those with ranges of their own. Chunks come through calls that end captures: such a pool refuses.
//!
//! **Invariants**
//! * I12: memory of an arena reaches neither eager work nor another graph while a graph of its captures lives, but for graphs
//!   that share it by name. What eager work freed serves a later capture of a shared arena after a device proof only.
//! * Arenas count in what the pool has reserved, and the maximum bounds both together.
//! * The flag is all that the driver's callback touches. Pages go back on the pool's slow path, in `trim` and in `info`, with
//!   a device proof before where eager work may still use them. A pool that ends before its graphs leaves their arenas to the
//!   process, whose other pools give them back.
//! * No driver call under the lock.
//!
//! **Cost**: one more question (30 ns), one lock, one hash for an allocation while capturing; a capture's first one makes a
//! user object and maps two MiB. Eager work pays nothing but a comparison of addresses in a free.

mod arena;
mod end;
mod scope;

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use tenure_driver::{CaptureInfo, CaptureStatus, RawStream};

pub use scope::{CaptureScope, SharedArena};

use arena::{Arena, Freed};
use end::hold;
pub(super) use scope::threads_announced;

use super::order::{Key, Who};
use super::pages::{Pages, VirtualRange, idle};
use super::place::Fault;
use super::serve::named_rightly;
use super::turn::Turn;
use super::{PAGE, Pool, Which};
use crate::error::{Error, Result};
use crate::resource::{Block, Live, Request};
use crate::stream::StreamRef;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Other threads may take what a growth brought; after so many rounds the request fails.
const ROUNDS: usize = 64;

/// The arenas of a pool.
#[derive(Default)]
pub(super) struct Graphs {
    /// Taken after the pool's own lock, by who holds that, and never before it: under it only arenas are called, which know no
    /// pool.
    table: Mutex<Table>,
    /// How many there are, to be read without the lock.
    count: AtomicUsize,
}

#[derive(Default)]
struct Table {
    arenas: FxHashMap<u64, Arena>,
    /// Start of each segment: its end, its arena and its number there.
    segments: BTreeMap<u64, (u64, u64, usize)>,
    by_capture: FxHashMap<u64, u64>,
    by_name: FxHashMap<u64, u64>,
    next: u64,
}

impl Graphs {
    pub(super) fn is_locked(&self) -> bool {
        self.table.is_locked()
    }
}

impl Table {
    fn segment_at(&self, ptr: u64) -> Option<(u64, usize)> {
        let (_, (end, arena, segment)) = self.segments.range(..=ptr).next_back()?;
        (ptr < *end).then_some((*arena, *segment))
    }

    /// The arena that serves a capture now.
    fn serving(&mut self, capture: u64) -> Option<&mut Arena> {
        let arena = self.arenas.get_mut(self.by_capture.get(&capture)?)?;
        (arena.current == capture).then_some(arena)
    }

    /// Takes out the arenas that nothing needs; with `eager` false, only those that need no proof.
    fn take_over(&mut self, eager: bool) -> Vec<Arena> {
        let over: Vec<u64> =
            self.arenas.iter().filter(|(_, a)| a.is_over() && (eager || !a.eager)).map(|(id, _)| *id).collect();
        over.iter().filter_map(|id| self.remove(*id)).collect()
    }

    fn remove(&mut self, id: u64) -> Option<Arena> {
        self.segments.retain(|_, (_, arena, _)| *arena != id);
        self.by_capture.retain(|_, arena| *arena != id);
        self.by_name.retain(|_, arena| *arena != id);
        self.arenas.remove(&id)
    }
}

/// The stream as an arena tells it from others. A raw value names one stream as long as the capture runs.
fn key_of(stream: StreamRef<'_>) -> Key {
    match Who::known(stream) {
        Some(Who { key: Some(key), .. }) => key,
        _ => Key::Raw(stream.raw.addr() as u64),
    }
}

impl Pool {
    /// What the driver says of the capture of a live stream. A default stream is that of the pool's device. Harmless.
    fn capture_info(&self, raw: RawStream) -> Result<CaptureInfo> {
        let driver = crate::device::driver()?;
        let _current = if raw.is_special() { Some(driver.device(self.device)?.enter()?) } else { None };
        Ok(driver.stream_capture_info(raw)?)
    }

    /// An error when the per-thread default stream of this thread is capturing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the word "capturing"; what the driver says.
    #[cold]
    pub(super) fn refuse_capturing_thread(&self, stream: StreamRef<'_>) -> Result<()> {
        if self.options.assume_no_capture {
            return Ok(());
        }
        let _current = crate::device::driver()?.device(self.device)?.enter()?;
        super::order::identity::refuse_capturing(stream.raw)
    }

    /// Serves what was `refused` because its stream is capturing.
    ///
    /// # Errors
    /// `refused`, if that is not why; [`Error::Unsupported`] with the word "capturing" where the pool cannot make memory of
    /// a graph or the capture is broken; those of an allocation.
    #[cold]
    pub(super) fn allocate_captured(&self, request: &Request, stream: StreamRef<'_>, refused: Error) -> Result<u64> {
        if !matches!(refused, Error::Unsupported(_)) {
            return Err(refused);
        }
        if !self.has_own_ranges() {
            return Err(Error::Unsupported(
                "the stream is capturing, and a pool that takes its memory through another resource makes no memory of a \
                 graph, since the calls that it takes could end the capture: allocate before the capture begins, or use a \
                 pool over the plain device resource"
                    .to_owned(),
            ));
        }
        if stream.object.is_none() && !stream.raw.is_special() {
            let device = crate::device::driver()?.device_of(stream.raw)?;
            if device != self.device {
                return Err(self.other_device(device));
            }
        }
        let info = self.capture_info(stream.raw)?;
        if info.status != CaptureStatus::Active {
            return Err(Error::Unsupported(
                "the stream is capturing, and a call that is not allowed then has made the capture invalid, or has ended \
                 it meanwhile: end the capture and begin a new one"
                    .to_owned(),
            ));
        }
        match self.serve_capture(request, stream, &info) {
            Err(e) if e.is_out_of_memory() && !matches!(e, Error::OutOfMemory(_)) => {
                Err(self.out_of_memory(request.bytes as u64, Vec::new()))
            }
            Err(Error::OutOfMemory(e)) if e.resource.is_empty() => {
                Err(self.out_of_memory(request.bytes as u64, Vec::new()))
            }
            other => other,
        }
    }

    fn serve_capture(&self, request: &Request, stream: StreamRef<'_>, info: &CaptureInfo) -> Result<u64> {
        let (key, raw) = (key_of(stream), stream.raw);
        if request.bytes as u64 > self.ceiling {
            return Err(self.out_of_memory(request.bytes as u64, Vec::new()));
        }
        for _ in 0..ROUNDS {
            if let Some(ptr) = self.graphs.table.lock().serving(info.id).and_then(|a| a.take(request, key, raw)) {
                return Ok(ptr);
            }
            self.reap(true);
            let turn = self.turns.take()?;
            if turn.waited {
                continue;
            }
            let arena = self.arena_of(stream, info)?;
            if let Some(ptr) = self.grow_arena(&turn, arena, request, key, raw, info.id)? {
                return Ok(ptr);
            }
        }
        Err(self.out_of_memory(request.bytes as u64, Vec::new()))
    }

    /// The arena that serves a capture, made ready for it. The caller has the turn.
    fn arena_of(&self, stream: StreamRef<'_>, info: &CaptureInfo) -> Result<u64> {
        let capture = info.id;
        {
            let mut table = self.graphs.table.lock();
            if table.serving(capture).is_some()
                && let Some(id) = table.by_capture.get(&capture)
            {
                return Ok(*id);
            }
        }
        let shared = scope::shared_for(capture, stream);
        let known = {
            let table = self.graphs.table.lock();
            let named = shared.as_ref().and_then(|s| table.by_name.get(&s.id())).copied();
            // A capture that another one has taken the place of goes on in an arena of its own.
            named.map(|id| (id, table.arenas.get(&id).is_some_and(|a| a.knows(capture))))
        };
        let shared = shared.filter(|_| !known.is_some_and(|(_, knows)| knows));
        let life = hold(info)?;
        let mut table = self.graphs.table.lock();
        let id = match (known, &shared) {
            // A named arena goes with its name only, which this call holds.
            (Some((id, false)), Some(_)) if table.arenas.contains_key(&id) => id,
            _ => {
                table.next += 1;
                let id = table.next;
                table.arenas.insert(id, Arena::new(shared.as_ref().map(SharedArena::weak)));
                self.graphs.count.fetch_add(1, Ordering::Relaxed);
                if let Some(shared) = &shared {
                    table.by_name.insert(shared.id(), id);
                }
                id
            }
        };
        let Some(arena) = table.arenas.get_mut(&id) else { return Ok(id) };
        arena.add_life(capture, life);
        let prove = arena.begin();
        table.by_capture.insert(capture, id);
        drop(table);
        let proved = if prove { crate::device::prove(self.device) } else { Ok(()) };
        if let Some(arena) = self.graphs.table.lock().arenas.get_mut(&id) {
            arena.begun(capture, proved.is_ok());
        }
        proved.map(|()| id)
    }

    /// Takes what the arena lacks; `None` when it must be looked for again. The caller has the turn.
    fn grow_arena(
        &self,
        turn: &Turn<'_>,
        id: u64,
        request: &Request,
        key: Key,
        raw: RawStream,
        capture: u64,
    ) -> Result<Option<u64>> {
        let Pages::Virtual(_) = &self.pages else { return Ok(None) };
        let device = crate::device::driver()?.device(self.device)?;
        let mut made_room = false;
        loop {
            let mapped = self.lock().place.mapped_bytes();
            let left = self.limit().saturating_sub(mapped) / super::UNIT * super::UNIT;
            let (growth, span) = {
                let mut table = self.graphs.table.lock();
                let Some(arena) = table.arenas.get_mut(&id).filter(|a| a.current == capture) else { return Ok(None) };
                if let Some(ptr) = arena.take(request, key, raw) {
                    return Ok(Some(ptr));
                }
                (arena.plan(request, key, raw, left), arena.next_span(request))
            };
            let taken = match growth {
                Some(growth) => growth.pages.grow(growth.plan, self.options.maximum_bytes).map(|()| Some(growth)),
                None if left >= need_of(request) => {
                    let mut pages = VirtualRange::reserve(device, span)?;
                    if let Pages::Virtual(range) = &self.pages {
                        pages = pages.used_by(range.users().to_vec());
                    }
                    let mut table = self.graphs.table.lock();
                    let Some(arena) = table.arenas.get_mut(&id) else { return Ok(None) };
                    let segment = arena.add_segment(pages);
                    let base = arena.base_of(segment);
                    table.segments.insert(base, (base + span, id, segment));
                    continue;
                }
                None => Ok(None),
            };
            match taken {
                Ok(Some(growth)) => {
                    let mut table = self.graphs.table.lock();
                    // Its graph may have ended meanwhile and the arena with it; then the pages go with the growth.
                    let Some(arena) = table.arenas.get_mut(&id) else { return Ok(None) };
                    arena.grown(&growth);
                    drop(table);
                    self.note_reserved();
                }
                Ok(None) if made_room => return Err(self.out_of_memory(request.bytes as u64, Vec::new())),
                Err(e) if made_room || !e.is_out_of_memory() => return Err(e),
                _ => {
                    made_room = true;
                    self.make_room(turn, need_of(request).next_multiple_of(PAGE))?;
                }
            }
        }
    }

    /// Gives back idle eager pages so that a graph can have as many bytes. The caller has the turn.
    fn make_room(&self, turn: &Turn<'_>, bytes: u64) -> Result<()> {
        // What the threads have at hand keeps pages from being idle.
        self.drain(Which::All);
        let all = self.pages.pieces();
        {
            let state = self.lock();
            if all.is_empty() || state.place.mapped_bytes() == state.place.live_bytes() {
                return Ok(());
            }
        }
        let pieces = self.prove_with(turn, |state| {
            let mut chosen = Vec::new();
            let mut sum = 0;
            for piece in idle(&all, &state.place, u64::MAX) {
                if sum >= bytes {
                    break;
                }
                sum += piece.1;
                chosen.push(piece);
            }
            chosen.retain(|(offset, bytes)| state.place.shrink(*offset, *bytes));
            chosen
        })?;
        self.return_pieces(&pieces).map(drop)
    }

    // ------------------------------------------------------------------------------------------------------- frees

    /// True for an address that is not in the pool's own range: a graph's, or nobody's.
    #[inline]
    pub(super) fn is_outside(&self, ptr: u64) -> bool {
        matches!(&self.pages, Pages::Virtual(range) if range.offset_of(ptr).is_none())
    }

    /// Frees a block that is not in the pool's eager memory: a graph's, or nobody's. With `trying`, only if that needs no
    /// more than a question.
    ///
    /// # Errors
    /// Misuse: nothing happened. [`Error::WouldBlock`] when `trying`.
    #[cold]
    pub(super) fn free_captured(&self, ptr: u64, request: &Request, stream: StreamRef<'_>, trying: bool) -> Result<()> {
        let booked = {
            let table =
                if trying { self.graphs.table.try_lock().ok_or(Error::WouldBlock)? } else { self.graphs.table.lock() };
            let (arena, _, entry) = self.checked_captured(&table, ptr, request)?;
            table.arenas.get(&arena).and_then(|a| a.booked(&entry))
        };
        if trying && stream.object.is_none() && (stream.raw.is_special() || !stream.stored) {
            return Err(Error::WouldBlock);
        }
        // What else used the block cannot be asked: it may be a stream of some other graph.
        let unproven = request.flags & Request::UNPROVEN != 0;
        let asked = if unproven || !stream.is_live() { None } else { self.ask_freeing(stream.raw) };
        let key = key_of(stream);
        let mut table = self.graphs.table.lock();
        // Somebody may have freed it meanwhile: that is found here, not believed away.
        let (id, segment, entry) = self.checked_captured(&table, ptr, request)?;
        let Some(arena) = table.arenas.get_mut(&id) else { return Ok(()) };
        let freed = match asked {
            Some(info) if info.status == CaptureStatus::Active && info.id == arena.current => {
                Freed::InCapture { key, raw: stream.raw }
            }
            Some(info) if matches!(info.status, CaptureStatus::None | CaptureStatus::Implicit) => Freed::Eagerly,
            None if !unproven && stream.stored && booked.is_some_and(|(raw, _)| raw == stream.raw) => Freed::AsBooked,
            _ => Freed::Unknown,
        };
        arena.free(segment, &entry, freed);
        Ok(())
    }

    /// [`Pool::capture_info`] for a free, which goes on without the answer. A stream went with a device that was reset.
    fn ask_freeing(&self, raw: RawStream) -> Option<CaptureInfo> {
        crate::device::driver().ok()?.device(self.device).ok()?.refuse_dead().ok()?;
        self.capture_info(raw).ok()
    }

    /// Finds what a free names and checks it.
    fn checked_captured(
        &self,
        table: &Table,
        ptr: u64,
        request: &Request,
    ) -> Result<(u64, usize, super::place::Entry)> {
        let known = table.segment_at(ptr).and_then(|(id, segment)| Some((id, segment, table.arenas.get(&id)?)));
        let Some((id, segment, arena)) = known else {
            return named_rightly(Err(Fault::Unknown), ptr, request).map(|entry| (0, 0, entry));
        };
        Ok((id, segment, named_rightly(arena.entry(segment, ptr), ptr, request)?))
    }

    /// The live block of a graph that contains `ptr`, and the capture that it was made in.
    pub(super) fn find_captured(&self, ptr: u64) -> Option<(Block, u64)> {
        if self.graphs.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let table = self.graphs.table.lock();
        let (id, segment) = table.segment_at(ptr)?;
        let arena = table.arenas.get(&id)?;
        let entry = arena.around(segment, ptr).ok()?;
        let ptr = arena.base_of(segment) + entry.offset;
        let capture = arena.booked(&entry).map_or(0, |(_, capture)| capture);
        Some((Block { ptr, bytes: entry.bytes as usize, owner: entry.owner, device: self.device }, capture))
    }

    // ------------------------------------------------------------------------------------------------------- figures

    /// Usable and reserved bytes of all arenas.
    pub(super) fn graph_bytes(&self) -> (u64, u64) {
        if self.graphs.count.load(Ordering::Relaxed) == 0 {
            return (0, 0);
        }
        let table = self.graphs.table.lock();
        table.arenas.values().fold((0, 0), |(m, r), a| (m + a.mapped_bytes(), r + a.reserved()))
    }

    /// Live bytes and blocks of all arenas.
    pub(super) fn graph_live(&self) -> (u64, u64) {
        if self.graphs.count.load(Ordering::Relaxed) == 0 {
            return (0, 0);
        }
        let table = self.graphs.table.lock();
        table.arenas.values().fold((0, 0), |(bytes, count), a| (bytes + a.live_bytes(), count + a.live_count()))
    }

    /// How many arenas there are.
    pub(super) fn graph_count(&self) -> u64 {
        self.graphs.count.load(Ordering::Relaxed) as u64
    }

    /// The mapped ranges of all arenas, as addresses and bytes.
    pub(super) fn graph_ranges(&self) -> Vec<(u64, u64)> {
        self.graphs.table.lock().arenas.values().flat_map(|a| a.ranges().collect::<Vec<_>>()).collect()
    }

    /// Live blocks of the arenas, for a walk over all of the pool's.
    pub(super) fn graph_blocks(&self) -> Vec<Live> {
        let mut found = Vec::new();
        if self.graphs.count.load(Ordering::Relaxed) == 0 {
            return found;
        }
        for arena in self.graphs.table.lock().arenas.values() {
            arena.each_live(&mut |ptr, piece, raw| {
                let block = Block { ptr, bytes: piece.bytes as usize, owner: piece.owner, device: self.device };
                found.push(Live { block, held: piece.held, stream: raw.map(|raw| raw.addr() as u64) });
            });
        }
        found
    }

    /// Checks the placers of all arenas.
    pub(super) fn check_graphs(&self) -> Result<(), String> {
        self.graphs.table.lock().arenas.values().try_for_each(Arena::check)
    }
}

/// Bytes that a request takes at least.
fn need_of(request: &Request) -> u64 {
    super::Place::need(request.bytes as u64, request.align as u64)
}
