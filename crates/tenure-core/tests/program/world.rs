//! What a program has, the ops on it, and what is checked of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::pool::{Pool, PoolOptions, Prefer};
use tenure_core::resource::{Light, Request, Resource, leaf::shared};
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_driver::{Driver, Event, RawStream, sim, sys};

use super::upstream::Liar;
use super::*;

/// The unit in which idle memory can go elsewhere.
const PAGE: u64 = 2 * MIB;
/// A run of small slots takes at most so much beside a live slot of it.
const RUN: u64 = MIB / 4;

type Done = Result<(), String>;

/// A stream as a block is bound to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At {
    stream: u8,
    /// How often the stream had been renewed; of a per-thread stream, which thread's it is.
    age: u32,
    raw: RawStream,
}

/// A live allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    id: u64,
    pool: u8,
    ptr: u64,
    bytes: u64,
    align: u64,
    at: At,
    /// What was written into it last, if anything was.
    byte: Option<u8>,
    /// Allocated while this capture was under way: memory of its graph.
    of_capture: Option<u64>,
    /// Graphs that use it.
    pins: u32,
}

#[derive(Clone)]
struct Slot {
    raw: RawStream,
    object: Option<Arc<StreamObject>>,
    age: u32,
}

struct Capture {
    id: u64,
    stream: u8,
    thread: u32,
    blocks: Vec<u64>,
    own: bool,
}

/// A graph that can be launched. The handle as a number, so that it may go from thread to thread.
struct Graph {
    exec: usize,
    blocks: Vec<u64>,
    /// Where it ran last, if memory of its own orders one launch after the other.
    last: Option<At>,
}

/// What threads that run at once have in common.
#[derive(Default)]
pub(crate) struct Common {
    /// Live ranges: start and end.
    pub(crate) used: Mutex<BTreeMap<u64, u64>>,
    /// Blocks that one thread has left for another.
    pub(crate) mail: Mutex<Vec<Block>>,
}

/// See the module.
pub(crate) struct World {
    pub(crate) settings: Settings,
    /// The acting thread, and who has each number.
    pub(crate) current: usize,
    pub(crate) threads: [u32; THREADS],
    pools: [Option<Resource>; 2],
    /// What pools stand on that may lie.
    upstreams: Vec<Resource>,
    lie: u8,
    opened: [u32; 2],
    streams: Vec<Slot>,
    blocks: Vec<Block>,
    common: Arc<Common>,
    /// Others use the pools at the same time, so that figures cannot be foretold.
    pub(crate) crowded: bool,
    capture: Option<Capture>,
    graphs: Vec<Graph>,
    armed: Vec<(&'static str, i32, u8)>,
    freed: Option<(u8, u64, u64)>,
    numbers: u64,
    byte: u8,
    before: [u64; 3],
    free_before: u64,
    pub(crate) counts: Counts,
}

fn driver() -> &'static Driver {
    tenure_core::device::driver().unwrap()
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn seen() -> [u64; 3] {
    [sim::races(), sim::mismatches(), sim::violations()]
}

fn stream(at: usize) -> Slot {
    let (raw, object) = match at {
        0 => (RawStream::NULL, None),
        1 => (RawStream::PER_THREAD, None),
        2..=4 => {
            let object = StreamObject::create(0, at < 4).unwrap();
            (object.raw(), Some(object))
        }
        _ => (driver().stream_create_on(0, at < 6).unwrap(), None),
    };
    Slot { raw, object, age: 0 }
}

fn is_blocking(stream: u8) -> bool {
    matches!(stream, 0 | 1 | 4 | 6)
}

impl World {
    /// A world without pools yet, on a machine that has nothing to do.
    pub(crate) fn new(settings: Settings) -> Self {
        sim::schedule(settings.schedule);
        sim::check_order(true);
        tenure_core::device::prepare_proof(0).unwrap();
        let (free, total) = tenure_core::device::memory_info(0).unwrap();
        if let Some(left) = settings.device {
            sim::set_memory(0, total - free + left).unwrap();
        }
        Self {
            settings,
            current: 0,
            threads: std::array::from_fn(|i| i as u32),
            pools: [None, None],
            upstreams: Vec::new(),
            lie: 0,
            opened: [0, 0],
            streams: (0..usize::from(STREAMS)).map(stream).collect(),
            blocks: Vec::new(),
            common: Arc::default(),
            crowded: false,
            capture: None,
            graphs: Vec::new(),
            armed: Vec::new(),
            freed: None,
            numbers: 0,
            byte: 0,
            before: seen(),
            free_before: free,
            counts: Counts::default(),
        }
    }

    /// Another thread's world with the same pools and streams.
    pub(crate) fn beside(&mut self, thread: usize) -> Result<Self, String> {
        self.crowded = true;
        Ok(Self {
            settings: self.settings,
            current: thread,
            threads: self.threads,
            pools: [Some(self.pool(0)?), Some(self.pool(1)?)],
            upstreams: Vec::new(),
            lie: 0,
            opened: [0, 0],
            streams: self.streams.clone(),
            blocks: Vec::new(),
            common: Arc::clone(&self.common),
            crowded: true,
            capture: None,
            graphs: Vec::new(),
            armed: Vec::new(),
            freed: None,
            numbers: (thread as u64 + 1) << 32,
            byte: 0,
            before: self.before,
            free_before: self.free_before,
            counts: Counts::default(),
        })
    }

    /// The thread that an op must run on: whose per-thread stream it uses, who began the capture that it ends.
    pub(crate) fn thread_for(&self, op: Op) -> usize {
        let wanted = match op {
            Use { block } | Move { block, .. } | Free { block, .. } | FreeShared { block, .. } => {
                self.pick(block).map(|i| self.blocks[i].at).filter(|at| at.stream == PER_THREAD).map(|at| at.age)
            }
            End => self.capture.as_ref().map(|c| c.thread),
            _ => None,
        };
        wanted.and_then(|serial| self.threads.iter().position(|t| *t == serial)).unwrap_or(self.current)
    }

    fn pick(&self, block: u16) -> Option<usize> {
        (!self.blocks.is_empty()).then(|| usize::from(block) % self.blocks.len())
    }

    // --------------------------------------------------------------------------------------------- streams and work

    fn here(&self, stream: u8) -> At {
        let slot = &self.streams[usize::from(stream)];
        let age = if stream == PER_THREAD { self.threads[self.current] } else { slot.age };
        At { stream, age, raw: slot.raw }
    }

    /// Whether work can be put there now, by this thread.
    fn alive(&self, at: At) -> bool {
        self.here(at.stream) == at
    }

    /// Whether the capture under way forbids ordinary work on a stream.
    fn frozen(&self, stream: u8) -> bool {
        self.capture.as_ref().is_some_and(|c| c.stream == stream || (stream == LEGACY && is_blocking(c.stream)))
    }

    fn object(&self, stream: u8) -> StreamRef<'_> {
        let slot = &self.streams[usize::from(stream)];
        StreamRef { raw: slot.raw, object: slot.object.as_deref(), stored: false }
    }

    fn carried(&self, stream: u8, how: How) -> StreamRef<'_> {
        match how {
            Object | Try | Unnamed | Default => self.object(stream),
            Raw | Stored => StreamRef::raw(self.streams[usize::from(stream)].raw),
        }
    }

    /// Makes `to` wait for `from`. False where that cannot be done now.
    fn order(&self, from: At, to: At) -> Result<bool, String> {
        if !self.alive(from) || !self.alive(to) || self.frozen(from.stream) || self.frozen(to.stream) {
            return Ok(false);
        }
        if from.stream != to.stream {
            let event = Event::new(driver().device(0).map_err(text)?).map_err(text)?;
            event.record(from.raw).map_err(text)?;
            to.raw.wait_event(&event).map_err(text)?;
        }
        Ok(true)
    }

    /// A kernel that reads what is in a block, and writes it anew.
    fn touch(&mut self, index: usize, raw: RawStream, write: bool) -> Done {
        let block = &mut self.blocks[index];
        let (at, len) = (block.ptr, block.bytes as usize);
        if self.capture.as_ref().is_some_and(|c| c.stream == block.at.stream) {
            // Recorded, and run as often as the graph is: which byte is there then is not followed.
            let claims = [false, true].map(|write| sim::Access::Claim { at, len, write });
            return sim::launch_for(raw.as_raw(), Duration::ZERO, &claims).map_err(|e| format!("not recorded: {e}"));
        }
        let mut accesses = Vec::with_capacity(2);
        if let Some(byte) = block.byte {
            accesses.push(match self.settings.bytes {
                true => sim::Access::Verify { at, len, byte },
                false => sim::Access::Claim { at, len, write: false },
            });
        }
        if write {
            self.byte = self.byte.wrapping_add(1);
            block.byte = Some(self.byte);
            accesses.push(match self.settings.bytes {
                true => sim::Access::Write { at, len, byte: self.byte },
                false => sim::Access::Claim { at, len, write: true },
            });
        }
        if accesses.is_empty() {
            return Ok(());
        }
        sim::launch_for(raw.as_raw(), Duration::ZERO, &accesses)
            .map_err(|e| format!("a kernel cannot be launched: {e}"))
    }

    // ------------------------------------------------------------------------------------------------------- pools

    fn setup(&self, pool: usize) -> Setup {
        self.settings.pools[(pool + self.opened[pool] as usize) % 2]
    }

    fn options(&self, pool: usize) -> PoolOptions {
        let setup = self.setup(pool);
        PoolOptions {
            initial_bytes: setup.initial,
            maximum_bytes: setup.maximum,
            prefer: if setup.footprint { Prefer::Footprint } else { Prefer::Concurrency },
            release_threshold: setup.threshold,
            assume_no_capture: !self.settings.captures,
            plain_chunks: setup.chunks,
        }
    }

    /// The pool, made when it is first asked for. A device that is too full for its initial size is no reason to end.
    fn pool(&mut self, pool: u8) -> Result<Resource, String> {
        let at = usize::from(pool);
        if let Some(resource) = &self.pools[at] {
            return Ok(resource.clone());
        }
        let mut options = self.options(at);
        let mut base = shared::cuda().map_err(text)?;
        if self.setup(at).liar {
            base = Liar::over(base);
            self.upstreams.push(base.clone());
        }
        let made = match Pool::new(base.clone(), 0, options) {
            Err(Error::OutOfMemory(_)) if self.settings.device.is_some() => {
                options.initial_bytes = 0;
                Pool::new(base, 0, options)
            }
            other => other,
        };
        let resource = Resource::new(made.map_err(|e| format!("pool {pool} cannot be made: {e}"))?).map_err(text)?;
        self.pools[at] = Some(resource.clone());
        Ok(resource)
    }

    fn body(resource: &Resource) -> &Pool {
        resource.downcast::<Pool>().unwrap()
    }

    /// Makes a call of a pool with the failures that are armed. Says whether one struck.
    fn faulted<R>(&mut self, call: impl FnOnce(&Self) -> R) -> (R, bool) {
        let armed = std::mem::take(&mut self.armed);
        for (name, code, after) in &armed {
            sim::fail_next(name, *code, u64::from(*after)).unwrap();
        }
        let lies = upstream::lies();
        upstream::behave(self.lie);
        let result = call(self);
        upstream::behave(0);
        let lied = upstream::lies() != lies;
        if lied {
            self.lie = 0;
        }
        let struck = sim::fail_clear() < armed.len();
        if !struck {
            // It waits for a call that makes its driver call.
            self.armed = armed;
        }
        self.counts.faults += u64::from(struck);
        self.counts.lies += u64::from(lied);
        (result, struck || lied)
    }

    fn allocate(&mut self, pool: u8, bytes: u64, align: u64, stream: u8, how: How, used: bool) -> Done {
        let resource = self.pool(pool)?;
        let (size, alignment) = (bytes as usize, align as usize);
        let (result, struck) = self.faulted(|world| {
            if how == Try {
                match resource.try_allocate(size, alignment, world.object(stream)) {
                    Err(Error::WouldBlock) => {}
                    other => return other,
                }
            }
            resource.allocate(size, alignment, world.carried(stream, how))
        });
        let capturing = self.capture.as_ref().filter(|c| c.stream == stream).map(|c| c.id);
        let ptr = match result {
            Ok(ptr) => ptr,
            Err(e) => {
                return match e {
                    Error::Misuse(_) | Error::WouldBlock | Error::Internal(_) | Error::BadHandle(_) => Err(text(e)),
                    _ if struck => Ok(()),
                    Error::Invalid(_) if bytes > 1 << 40 => Ok(()),
                    Error::Unsupported(t) if self.frozen(stream) && t.contains("capturing") => Ok(()),
                    Error::OutOfMemory(_) => self.is_full(&resource, pool, bytes, align),
                    e => Err(format!("refused without a reason: {e}")),
                };
            }
        };
        self.counts.served += 1;
        self.numbers += 1;
        let block = Block {
            id: self.numbers,
            pool,
            ptr,
            bytes,
            align,
            at: self.here(stream),
            byte: None,
            of_capture: capturing,
            pins: 0,
        };
        self.check_new(&block)?;
        if let Some(capture) = self.capture.as_mut().filter(|c| c.stream == stream) {
            self.counts.captured += 1;
            capture.own = true;
        }
        self.blocks.push(block);
        if used && (capturing.is_some() || !self.frozen(stream)) {
            self.touch(self.blocks.len() - 1, block.at.raw, true)?;
        }
        Ok(())
    }

    /// A new block is aligned, in memory of its pool, and disjoint from all others.
    fn check_new(&mut self, block: &Block) -> Done {
        let (start, end) = (block.ptr, block.ptr + block.bytes);
        if start == 0 || start % block.align != 0 {
            return Err(format!("{start:#x} is not aligned to {}", block.align));
        }
        let mut used = self.common.used.lock().unwrap();
        if let Some((other, until)) = used.range(..end).next_back()
            && *until > start
        {
            return Err(format!("{start:#x}..{end:#x} overlaps the live {other:#x}..{until:#x}"));
        }
        used.insert(start, end);
        drop(used);
        if self.numbers % 8 == 0
            && block.of_capture.is_none()
            && let Some(resource) = &self.pools[usize::from(block.pool)]
        {
            let ranges = Self::body(resource).ranges();
            if !ranges.iter().any(|(at, len)| *at <= start && end <= at + len) {
                return Err(format!("{start:#x}..{end:#x} is in none of the pool's ranges {ranges:x?}"));
            }
        }
        Ok(())
    }

    /// Out of memory is believed only where whole idle pages and the limit do not suffice (I13).
    fn is_full(&mut self, resource: &Resource, pool: u8, bytes: u64, align: u64) -> Done {
        self.counts.refused += 1;
        let body = Self::body(resource);
        let Some(limit) = body.options().maximum_bytes else { return Ok(()) };
        let plain = body.has_own_ranges() && align <= 256 && self.settings.device.is_none() && !self.crowded;
        // What captures hold is not seen from here.
        if !plain || limit % PAGE != 0 || self.settings.captures || bytes > limit {
            return Ok(());
        }
        let used = self.common.used.lock().unwrap();
        let (mut idle, mut mapped) = (0, 0);
        for (start, length) in body.ranges() {
            mapped += length;
            for page in (start..start + length).step_by(PAGE as usize) {
                let live = used.range(..page + PAGE + RUN).next_back().is_some_and(|(_, end)| *end + RUN > page);
                idle += if live { 0 } else { PAGE };
            }
        }
        if bytes.next_multiple_of(PAGE) <= idle + (limit - mapped) {
            return Err(format!(
                "out of memory for {bytes} bytes in pool {pool}, with {idle} bytes in idle pages and {} below the limit",
                limit - mapped
            ));
        }
        Ok(())
    }

    fn request(resource: &Resource, block: &Block, flags: u32) -> Request {
        Request { bytes: block.bytes as usize, align: block.align as usize, owner: resource.id(), flags }
    }

    /// Frees a block that nothing uses any more but what its stream has queued.
    fn release(&mut self, index: usize, how: How, on: u8) -> Done {
        let block = self.blocks[index];
        let Some(resource) = self.pools[usize::from(block.pool)].clone() else { return Err("no pool".into()) };
        let (bytes, align) = (block.bytes as usize, block.align as usize);
        let alive = self.alive(block.at);
        // Before the free: after it, somebody else may have the memory already.
        self.common.used.lock().unwrap().remove(&block.ptr);
        let (result, struck) = self.faulted(|world| {
            let unnamed = || {
                let request = Self::request(&resource, &block, Request::UNPROVEN);
                resource.body().deallocate(block.ptr, &request, world.object(on))?;
                drop(Light::from_raw(*resource));
                Ok(())
            };
            let stored = StreamRef { raw: block.at.raw, object: None, stored: true };
            match how {
                Unnamed => unnamed(),
                // The stream of another thread, or of one that has ended, has no name here.
                _ if !alive && block.at.stream == PER_THREAD => unnamed(),
                Stored => resource.deallocate(block.ptr, bytes, align, stored),
                Default => resource.deallocate(block.ptr, bytes, align, StreamRef::DEFAULT),
                _ if !alive => resource.deallocate(block.ptr, bytes, align, stored),
                Try => match resource.try_deallocate(block.ptr, bytes, align, world.object(block.at.stream)) {
                    Err(Error::WouldBlock) => {
                        resource.deallocate(block.ptr, bytes, align, world.object(block.at.stream))
                    }
                    other => other,
                },
                _ => resource.deallocate(block.ptr, bytes, align, world.carried(block.at.stream, how)),
            }
        });
        match result {
            Ok(()) => {
                self.freed = Some((block.pool, block.ptr, block.bytes));
                self.blocks.swap_remove(index);
                Ok(())
            }
            Err(Error::Misuse(m)) => Err(format!("a right free was refused: {m}")),
            // Nothing happened: the block is as it was.
            Err(_) if struck => {
                self.common.used.lock().unwrap().insert(block.ptr, block.ptr + block.bytes);
                Ok(())
            }
            Err(e) => Err(format!("a free failed without a reason: {e}")),
        }
    }

    fn misfree(&mut self, index: usize, what: u8) -> Done {
        let block = self.blocks[index];
        let Some(own) = self.pools[usize::from(block.pool)].clone() else { return Ok(()) };
        let (mut resource, mut ptr, mut bytes) = (own, block.ptr, block.bytes);
        match what {
            0 => bytes = bytes * 2 + 512,
            1 if bytes > 256 => ptr += 256,
            2 => match &self.pools[1 - usize::from(block.pool)] {
                Some(other) => resource = other.clone(),
                None => return Ok(()),
            },
            3 => {
                let Some((pool, at, length)) = self.freed else { return Ok(()) };
                let taken =
                    self.common.used.lock().unwrap().range(..at + 256).next_back().is_some_and(|(_, e)| *e > at);
                let Some(other) = self.pools[usize::from(pool)].clone() else { return Ok(()) };
                if taken {
                    return Ok(());
                }
                (resource, ptr, bytes) = (other, at, length);
            }
            _ => return Ok(()),
        }
        self.counts.misuses += 1;
        match resource.deallocate(ptr, bytes as usize, block.align as usize, StreamRef::DEFAULT) {
            Err(Error::Misuse(_)) => Ok(()),
            other => Err(format!("a wrong free of {bytes} bytes at {ptr:#x} gave {other:?}")),
        }
    }

    /// The figures add up, and the pool's own check is content.
    pub(crate) fn check(&self, pool: u8, deep: bool) -> Done {
        let Some(resource) = &self.pools[usize::from(pool)] else { return Ok(()) };
        let body = Self::body(resource);
        body.check().map_err(|e| format!("pool {pool}: {e}"))?;
        if !deep || self.crowded {
            return Ok(());
        }
        let info = resource.body().info();
        let mapped = resource.body().property("pool_size").unwrap_or_default();
        let mine = self.blocks.iter().filter(|b| b.pool == pool);
        let (count, bytes) = mine.fold((0, 0), |(n, sum), b| (n + 1, sum + b.bytes));
        let holds = info.live_count == count
            && info.live_bytes >= bytes
            && info.live_bytes + info.cached_bytes == mapped
            && mapped <= info.reserved_bytes
            && mapped <= body.options().maximum_bytes.unwrap_or(u64::MAX)
            && info.unproven_bytes <= info.cached_bytes
            && info.largest_free_bytes <= info.cached_bytes;
        if holds || self.settings.captures && self.counts.captured > 0 {
            return Ok(());
        }
        Err(format!("pool {pool}: {count} blocks of {bytes} bytes are live, {mapped} are mapped, and it says {info:?}"))
    }

    /// What the simulated device has noticed since the beginning.
    pub(crate) fn noticed(&self) -> Done {
        let [races, mismatches, violations] = seen();
        if races != self.before[0] {
            return Err(format!("memory was handed over without order: {:?}", sim::race_texts()));
        }
        if mismatches != self.before[1] {
            return Err("memory was handed over before its last use: a late read met other bytes".into());
        }
        if violations != self.before[2] {
            return Err(format!("a dead handle was used: {:?}", sim::violation_texts().last()));
        }
        Ok(())
    }

    // --------------------------------------------------------------------------------------------------------- ops

    /// One step, on this thread.
    pub(crate) fn step(&mut self, op: Op) -> Done {
        self.counts.steps += 1;
        match op {
            On { .. } | EndThread { .. } => {}
            Allocate { pool, bytes, align, stream, how } => self.allocate(pool, bytes, align, stream, how, true)?,
            Idle { pool, bytes, stream } => self.allocate(pool, bytes, 256, stream, Object, false)?,
            Use { block } => {
                if let Some(index) = self.pick(block) {
                    let at = self.blocks[index].at;
                    let ours = self.capture.as_mut().filter(|c| c.stream == at.stream);
                    if let Some(capture) = ours {
                        // Recorded: the graph has it now.
                        let id = self.blocks[index].id;
                        if self.blocks[index].of_capture.is_none() && !capture.blocks.contains(&id) {
                            capture.blocks.push(id);
                            self.blocks[index].pins += 1;
                        }
                        self.touch(index, at.raw, true)?;
                    } else if self.alive(at) && !self.frozen(at.stream) && self.blocks[index].of_capture.is_none() {
                        self.touch(index, at.raw, true)?;
                    }
                }
            }
            Move { block, to } => {
                if let Some(index) = self.pick(block) {
                    let to = self.here(to);
                    if self.blocks[index].of_capture.is_none() && self.order(self.blocks[index].at, to)? {
                        self.blocks[index].at = to;
                        if self.crowded && to.stream != PER_THREAD && block % 2 == 0 {
                            self.exchange_mail(index);
                        }
                    }
                }
            }
            Free { block, how } => {
                if let Some(index) = self.pick(block) {
                    let b = self.blocks[index];
                    if b.pins > 0 {
                        return Ok(());
                    }
                    if self.alive(b.at) && !self.frozen(b.at.stream) && b.of_capture.is_none() {
                        self.touch(index, b.at.raw, false)?;
                    }
                    self.release(index, how, LEGACY)?;
                }
            }
            FreeShared { block, by, on } => {
                if let Some(index) = self.pick(block) {
                    let (b, by) = (self.blocks[index], self.here(by));
                    if b.pins == 0 && b.of_capture.is_none() && self.order(b.at, by)? {
                        self.touch(index, b.at.raw, false)?;
                        self.touch(index, by.raw, false)?;
                        self.release(index, Unnamed, on)?;
                        // A free that failed leaves a block that two streams use.
                        if self.blocks.get(index).is_some_and(|left| left.id == b.id) {
                            self.order(by, b.at)?;
                        }
                    }
                }
            }
            Misfree { block, what } => {
                if let Some(index) = self.pick(block) {
                    self.misfree(index, what)?;
                }
            }
            Order { from, to } => {
                self.order(self.here(from), self.here(to))?;
            }
            Sync { stream } if self.capture.is_none() && !self.crowded => {
                driver().stream_synchronize(self.here(stream).raw).map_err(text)?;
            }
            SyncDevice => tenure_core::device::prove(0).map_err(text)?,
            Run { steps } => (0..steps).for_each(|_| {
                sim::step();
            }),
            Trim { pool, keep } => {
                if let Some(resource) = self.pools[usize::from(pool)].clone() {
                    let (result, struck) = self.faulted(|_| resource.body().trim(keep as usize));
                    if let Err(e) = result
                        && !struck
                    {
                        return Err(format!("a trim failed without a reason: {e}"));
                    }
                }
            }
            Renew { stream } if stream > PER_THREAD && !self.crowded => self.renew(stream)?,
            Reopen { pool } if !self.crowded => self.reopen(pool)?,
            Info { pool } => self.check(pool, true)?,
            Fail { call, code, after } if !self.crowded => {
                if self.armed.len() < 2 {
                    self.armed.push((call, code, after));
                }
            }
            Lie { manner } if !self.crowded => self.lie = manner,
            Begin { stream, mode } if self.settings.captures && self.capture.is_none() && stream > PER_THREAD => {
                let mode = [
                    sys::CU_STREAM_CAPTURE_MODE_GLOBAL,
                    sys::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                    sys::CU_STREAM_CAPTURE_MODE_RELAXED,
                ][usize::from(mode) % 3];
                driver().stream_begin_capture(self.here(stream).raw, mode).map_err(text)?;
                self.numbers += 1;
                let thread = self.threads[self.current];
                self.capture = Some(Capture { id: self.numbers, stream, thread, blocks: Vec::new(), own: false });
            }
            End => self.end_capture()?,
            Launch { graph, stream } => self.launch(graph, stream)?,
            Forget { graph } if !self.graphs.is_empty() => {
                let index = usize::from(graph) % self.graphs.len();
                self.forget(index)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Leaves a block for another thread, and takes one over that somebody left.
    fn exchange_mail(&mut self, index: usize) {
        let block = self.blocks.swap_remove(index);
        let mut mail = self.common.mail.lock().unwrap();
        let taken = mail.pop();
        mail.push(block);
        self.blocks.extend(taken);
    }

    fn renew(&mut self, at: u8) -> Done {
        if self.capture.as_ref().is_some_and(|c| c.stream == at) {
            return Ok(());
        }
        let index = usize::from(at);
        let old = self.streams[index].clone();
        self.streams[index].object = None;
        if old.object.is_some() {
            // The last reference: pools are told, and their events are recorded.
            self.faulted(|_| drop(old.object));
        } else {
            // SAFETY: the program made it, and names it no more.
            unsafe { driver().stream_destroy(old.raw) }.map_err(text)?;
        }
        self.streams[index] = Slot { age: old.age + 1, ..stream(index) };
        Ok(())
    }

    fn reopen(&mut self, pool: u8) -> Done {
        let held = |b: &Block| b.pool == pool && (b.pins > 0 || b.of_capture.is_some());
        if self.pools[usize::from(pool)].is_none() || self.blocks.iter().any(held) || self.counts.captured > 0 {
            return Ok(());
        }
        self.armed.clear();
        self.lie = 0;
        for index in (0..self.blocks.len()).rev() {
            if self.blocks[index].pool == pool {
                self.release(index, Stored, LEGACY)?;
            }
        }
        self.note_proofs(usize::from(pool));
        self.pools[usize::from(pool)] = None;
        if self.freed.is_some_and(|(of, ..)| of == pool) {
            self.freed = None;
        }
        self.opened[usize::from(pool)] += 1;
        self.noticed()
    }

    fn note_proofs(&mut self, pool: usize) {
        if let Some(resource) = &self.pools[pool] {
            self.counts.proofs += resource.body().info().device_proofs;
        }
    }

    fn end_capture(&mut self) -> Done {
        let Some(capture) = self.capture.take() else { return Ok(()) };
        let raw = self.streams[usize::from(capture.stream)].raw;
        let graph = driver().stream_end_capture(raw).map_err(|e| format!("a capture was ended by somebody: {e}"))?;
        // SAFETY: made just now, and named by nobody else.
        let exec = unsafe { driver().graph_instantiate(graph, 0) }.map_err(text)?;
        // SAFETY: as above; the executable graph lives on by itself.
        unsafe { driver().graph_destroy(graph) }.map_err(text)?;
        let last = capture.own.then(|| self.here(capture.stream));
        self.graphs.push(Graph { exec: exec as usize, blocks: capture.blocks, last });
        Ok(())
    }

    fn launch(&mut self, graph: u8, stream: u8) -> Done {
        if self.graphs.is_empty() || self.frozen(stream) || self.capture.is_some() {
            return Ok(());
        }
        let index = usize::from(graph) % self.graphs.len();
        let to = self.here(stream);
        let ids = self.graphs[index].blocks.clone();
        let users: Vec<usize> = (0..self.blocks.len()).filter(|i| ids.contains(&self.blocks[*i].id)).collect();
        let before = users.iter().map(|i| self.blocks[*i].at).chain(self.graphs[index].last);
        let before: Vec<At> = before.collect();
        if before.iter().any(|at| !self.alive(*at)) {
            // Nobody can be asked to wait for a stream that is gone.
            tenure_core::device::prove(0).map_err(text)?;
        } else {
            for at in before {
                self.order(at, to)?;
            }
        }
        // SAFETY: the executable graph is this program's and alive.
        unsafe { driver().graph_launch(self.graphs[index].exec as sys::CUgraphExec, to.raw) }.map_err(text)?;
        self.counts.graphs += 1;
        for user in users {
            self.blocks[user].at = to;
        }
        if self.graphs[index].last.is_some() {
            self.graphs[index].last = Some(to);
        }
        Ok(())
    }

    fn forget(&mut self, index: usize) -> Done {
        let graph = self.graphs.swap_remove(index);
        // SAFETY: this program's, and named no more. A launch that is under way ends first.
        unsafe { driver().graph_exec_destroy(graph.exec as sys::CUgraphExec) }.map_err(text)?;
        for block in &mut self.blocks {
            block.pins -= u32::from(graph.blocks.contains(&block.id));
        }
        Ok(())
    }

    // --------------------------------------------------------------------------------------------------------- end

    /// The last checks: everything is freed and goes back.
    pub(crate) fn finish(&mut self) -> Done {
        let at_end = |e: String| format!("at the end: {e}");
        self.armed.clear();
        self.lie = 0;
        while !self.graphs.is_empty() {
            self.forget(0).map_err(at_end)?;
        }
        while !self.blocks.is_empty() {
            self.release(self.blocks.len() - 1, Stored, LEGACY).map_err(at_end)?;
        }
        for pool in 0..2 {
            let Some(resource) = self.pools[usize::from(pool)].clone() else { continue };
            self.check(pool, true).map_err(at_end)?;
            let body = Self::body(&resource);
            let limit = body.options().maximum_bytes.filter(|limit| limit % PAGE == 0);
            if let Some(limit) = limit.filter(|_| body.has_own_ranges() && self.settings.device.is_none()) {
                // All of it in one piece: nothing is lost to holes (I13).
                self.allocate(pool, limit, 256, 2, Object, true).map_err(at_end)?;
                if self.blocks.is_empty() {
                    return Err(format!("at the end: {limit} bytes, the limit, cannot be had in one piece"));
                }
                self.release(0, Object, LEGACY).map_err(at_end)?;
            }
            let kept = body.options().release_threshold;
            resource.body().trim(0).map_err(|e| at_end(text(e)))?;
            self.check(pool, true).map_err(at_end)?;
            let info = resource.body().info();
            // A chunk goes whole or not at all.
            let stays = if body.has_own_ranges() || kept == 0 { kept } else { u64::MAX };
            if info.live_bytes != 0 || info.reserved_bytes > stays {
                return Err(format!("at the end: all is free and trimmed, and pool {pool} says {info:?}"));
            }
        }
        let upstreams = std::mem::take(&mut self.upstreams);
        self.close();
        sim::run_all();
        self.noticed().map_err(at_end)?;
        if upstreams.iter().any(|liar| Liar::left(liar) > 0) {
            return Err("at the end: an upstream has not got back all it gave".into());
        }
        drop(upstreams);
        // A failure may have taken the block that the next proof would free.
        tenure_core::device::prepare_proof(0).map_err(|e| at_end(text(e)))?;
        let free = tenure_core::device::memory_info(0).map_err(|e| at_end(text(e)))?.0;
        if free != self.free_before {
            return Err(format!("at the end: the driver has {free} bytes free and had {}", self.free_before));
        }
        Ok(())
    }

    /// Lets go of pools and streams, in this order.
    fn close(&mut self) {
        for pool in 0..2 {
            self.note_proofs(pool);
            self.pools[pool] = None;
        }
        for slot in std::mem::take(&mut self.streams) {
            if slot.object.is_none() && !slot.raw.is_special() {
                // SAFETY: the program made it, and names it no more.
                let _ = unsafe { driver().stream_destroy(slot.raw) };
            }
        }
        sim::set_memory(0, DEVICE).unwrap();
    }

    /// After a failure: everything goes, whatever it says, so that the machine can be used again.
    pub(crate) fn wreck(&mut self) {
        sim::fail_clear();
        let _ = sim::fault(0, 0);
        self.armed.clear();
        let _ = self.end_capture();
        while !self.graphs.is_empty() {
            let _ = self.forget(0);
        }
        for index in (0..self.blocks.len()).rev() {
            let _ = self.release(index, Stored, LEGACY);
        }
        self.close();
        sim::run_all();
        let _ = sim::fault(0, 0);
    }

    /// Frees what only this thread can name the stream of.
    pub(crate) fn leave(&mut self) -> Done {
        for index in (0..self.blocks.len()).rev() {
            if self.blocks[index].at.stream == PER_THREAD {
                self.release(index, Object, LEGACY)?;
            }
        }
        Ok(())
    }

    /// Takes over what another thread's world has left, at the end of it.
    pub(crate) fn inherit(&mut self, mut other: World) {
        self.blocks.append(&mut other.blocks);
        self.counts.add(other.counts);
        other.streams.clear();
    }

    /// Takes over what is still in the mail.
    pub(crate) fn collect_mail(&mut self) {
        self.blocks.append(&mut self.common.mail.lock().unwrap());
    }

    /// The thread has ended: its number is somebody else's from here on.
    pub(crate) fn end_thread(&mut self, thread: usize) {
        let next = self.threads.iter().max().map_or(0, |n| n + 1);
        self.threads[thread] = next;
    }

    /// Whether the capture under way was begun by the thread.
    pub(crate) fn captures_on(&self, thread: usize) -> bool {
        self.capture.as_ref().is_some_and(|c| c.thread == self.threads[thread])
    }
}
