//! What a program has, the ops on it, and what is checked of them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::resource::Resource;
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_driver::{Driver, Event, RawStream, sim, sys};

use super::calls::PAGE;
use super::upstream::Liar;
use super::*;

pub(super) type Done = Result<(), String>;

/// A stream as a block is bound to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub(super) stream: u8,
    /// How often the stream had been renewed; of a per-thread stream, which thread's it is.
    pub(super) age: u32,
    pub(super) raw: RawStream,
}

/// A live allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(super) id: u64,
    pub(super) pool: u8,
    pub(super) ptr: u64,
    pub(super) bytes: u64,
    pub(super) align: u64,
    pub(super) at: At,
    /// What was written into it last, if anything was.
    pub(super) byte: Option<u8>,
    /// Allocated while this capture was under way: memory of its graph.
    pub(super) of_capture: Option<u64>,
    /// Graphs that use it.
    pub(super) pins: u32,
}

#[derive(Clone)]
pub(super) struct Slot {
    pub(super) raw: RawStream,
    pub(super) object: Option<Arc<StreamObject>>,
    pub(super) age: u32,
    /// Of a foreign stream: the value of one that has ended, and may be nobody's.
    pub(super) retired: Option<RawStream>,
}

pub(super) struct Capture {
    pub(super) id: u64,
    pub(super) stream: u8,
    pub(super) thread: u32,
    pub(super) blocks: Vec<u64>,
    pub(super) own: bool,
}

/// A graph that can be launched. The handle as a number, so that it may go from thread to thread.
pub(super) struct Graph {
    pub(super) exec: usize,
    /// The capture that it was made in.
    pub(super) capture: u64,
    /// Blocks that it uses and that are not memory of its own: eager ones, and memory of other graphs.
    pub(super) blocks: Vec<u64>,
    /// Where it ran last, if memory of its own orders one launch after the other.
    pub(super) last: Option<At>,
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
    pub(super) pools: [Option<Resource>; 2],
    /// What pools stand on that may lie.
    pub(super) upstreams: Vec<Resource>,
    pub(super) lie: u8,
    pub(super) opened: [u32; 2],
    pub(super) streams: Vec<Slot>,
    pub(super) blocks: Vec<Block>,
    pub(super) common: Arc<Common>,
    /// Others use the pools at the same time, so that figures cannot be foretold.
    pub(crate) crowded: bool,
    pub(super) capture: Option<Capture>,
    pub(super) graphs: Vec<Graph>,
    pub(super) armed: Vec<(&'static str, i32, u8)>,
    pub(super) freed: Option<(u8, u64, u64)>,
    pub(super) numbers: u64,
    pub(super) byte: u8,
    pub(super) before: [u64; 4],
    pub(super) free_before: u64,
    pub(crate) counts: Counts,
}

pub(super) fn driver() -> &'static Driver {
    tenure_core::device::driver().unwrap()
}

pub(super) fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn seen() -> [u64; 4] {
    [sim::races(), sim::mismatches(), sim::violations(), crew::LOCKED.load(Ordering::Relaxed)]
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
    Slot { raw, object, age: 0, retired: None }
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
        // Asked once for good: not while the device is short of memory.
        driver().device(0).unwrap().properties().unwrap();
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

    pub(super) fn pick(&self, block: u16) -> Option<usize> {
        (!self.blocks.is_empty()).then(|| usize::from(block) % self.blocks.len())
    }

    // --------------------------------------------------------------------------------------------- streams and work

    pub(super) fn here(&self, stream: u8) -> At {
        let slot = &self.streams[usize::from(stream)];
        let age = if stream == PER_THREAD { self.threads[self.current] } else { slot.age };
        At { stream, age, raw: slot.raw }
    }

    /// Whether work can be put there now, by this thread.
    pub(super) fn alive(&self, at: At) -> bool {
        self.here(at.stream) == at
    }

    /// Whether the capture under way forbids ordinary work on a stream.
    pub(super) fn frozen(&self, stream: u8) -> bool {
        self.capture.as_ref().is_some_and(|c| c.stream == stream || (stream == LEGACY && is_blocking(c.stream)))
    }

    pub(super) fn object(&self, stream: u8) -> StreamRef<'_> {
        let slot = &self.streams[usize::from(stream)];
        StreamRef { raw: slot.raw, object: slot.object.as_deref(), stored: false }
    }

    pub(super) fn carried(&self, stream: u8, how: How) -> StreamRef<'_> {
        match how {
            Object | Try | Unnamed | Default => self.object(stream),
            // Out of a buffer's memory: the driver must not hear of it.
            Stored if stream > 4 => {
                let slot = &self.streams[usize::from(stream)];
                StreamRef { raw: slot.retired.unwrap_or(slot.raw), object: None, stored: true }
            }
            Raw | Stored => StreamRef::raw(self.streams[usize::from(stream)].raw),
        }
    }

    /// Makes `to` wait for `from`. False where that cannot be done now.
    pub(super) fn order(&self, from: At, to: At) -> Result<bool, String> {
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

    /// Tells the pools something of a stream.
    fn tell(
        &mut self,
        told: u8,
        say: impl Fn(&Self, &dyn tenure_core::resource::MemoryResource, bool) -> tenure_core::error::Result<()>,
    ) -> Done {
        for pool in self.pools.clone().into_iter().flatten().filter(|_| told > 0) {
            let (result, struck) = self.faulted(|world| say(world, pool.body(), told > 1));
            if let Err(e) = result
                && !(struck || self.settings.device.is_some() && e.is_out_of_memory())
            {
                return Err(format!("a pool could not be told of a wait: {e}"));
            }
        }
        Ok(())
    }

    /// A kernel that reads what is in a block, and writes it anew.
    pub(super) fn touch(&mut self, index: usize, raw: RawStream, write: bool) -> Done {
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

    /// What the simulated device has noticed since the beginning.
    pub(crate) fn noticed(&self) -> Done {
        let [races, mismatches, violations, locked] = seen();
        if races != self.before[0] {
            return Err(format!("memory was handed over without order: {:?}", sim::race_texts()));
        }
        if mismatches != self.before[1] {
            return Err("memory was handed over before its last use: a late read met other bytes".into());
        }
        if violations != self.before[2] {
            return Err(format!("a dead handle was used: {:?}", sim::violation_texts().last()));
        }
        if locked != self.before[3] {
            return Err(format!("{locked} driver calls were made under a pool's lock"));
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
                    let alive = self.alive(at);
                    let ours = self.capture.as_mut().filter(|c| alive && c.stream == at.stream);
                    if let Some(capture) = ours {
                        // Recorded: the graph has it now, and whoever owns it keeps it for as long as the graph lives. That
                        // goes for memory of another graph, too: it is kept alive by the block, not by this graph.
                        let id = self.blocks[index].id;
                        if self.blocks[index].of_capture != Some(capture.id) && !capture.blocks.contains(&id) {
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
            Order { from, to, told } => {
                if told < 3 {
                    self.order(self.here(from), self.here(to))?;
                }
                self.tell(told, |world, pool, emphasis| {
                    pool.stream_waits(world.object(to), world.object(from), emphasis)
                })?;
            }
            Sync { stream, told } if self.capture.is_none() && !self.crowded => {
                if told < 3 {
                    driver().stream_synchronize(self.here(stream).raw).map_err(text)?;
                }
                self.tell(told, |world, pool, emphasis| pool.stream_synchronized(world.object(stream), emphasis))?;
            }
            SyncDevice => self.sync_device()?,
            Run { steps } => (0..steps).for_each(|_| {
                sim::step();
            }),
            Trim { pool, keep } => {
                if let Some(resource) = self.pools[usize::from(pool)].clone() {
                    let (result, struck) = self.faulted(|_| resource.body().trim(keep as usize));
                    if let Err(e) = result
                        && !(struck || self.settings.device.is_some() && e.is_out_of_memory())
                    {
                        return Err(format!("a trim failed without a reason: {e}"));
                    }
                }
            }
            Renew { stream } if stream > PER_THREAD && !self.crowded => self.renew(stream)?,
            Reopen { pool } if !self.crowded => self.reopen(pool)?,
            Info { pool } => self.check(pool, true)?,
            Fail { call, code, after } if !self.crowded && self.armed.len() < 2 => self.armed.push((call, code, after)),
            Lie { manner } if !self.crowded && (self.setup(0).liar || !self.upstreams.is_empty()) => self.lie = manner,
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

    /// The host waits for the device, which takes 256 bytes where a failure has cost it the block that is kept for this.
    pub(super) fn sync_device(&self) -> Done {
        match tenure_core::device::prove(0) {
            Err(e) if self.settings.device.is_some() && e.is_out_of_memory() => Ok(()),
            other => other.map_err(text),
        }
    }

    /// Leaves a block for another thread, and takes one over that somebody left.
    pub(super) fn exchange_mail(&mut self, index: usize) {
        let block = self.blocks.swap_remove(index);
        let mut mail = self.common.mail.lock().unwrap();
        let taken = mail.pop();
        mail.push(block);
        self.blocks.extend(taken);
    }

    pub(super) fn renew(&mut self, at: u8) -> Done {
        if self.capture.as_ref().is_some_and(|c| c.stream == at) {
            return Ok(());
        }
        let index = usize::from(at);
        let old = self.streams[index].clone();
        self.streams[index].object = None;
        let mut new = None;
        if old.object.is_some() {
            // The last reference: pools are told, and their events are recorded.
            self.faulted(|_| drop(old.object));
        } else {
            // The value of stream 5 stays nobody's, that of stream 6 is given to the next one.
            new = (at == 5).then(|| stream(index));
            // SAFETY: the program made it, and names it no more.
            unsafe { driver().stream_destroy(old.raw) }.map_err(text)?;
        }
        let retired = new.is_some().then_some(old.raw);
        self.streams[index] = Slot { age: old.age + 1, retired, ..new.unwrap_or_else(|| stream(index)) };
        Ok(())
    }

    // --------------------------------------------------------------------------------------------------------- end

    /// The last checks: everything is freed and goes back.
    pub(crate) fn finish(&mut self) -> Done {
        let at_end = |e: String| format!("at the end: {e}");
        self.armed.clear();
        // A proof needs 256 bytes, which a full device may not have had since a failure took the block that is kept for it.
        sim::set_memory(0, DEVICE).map_err(|e| at_end(text(e)))?;
        self.lie = 0;
        while !self.graphs.is_empty() {
            self.forget(0).map_err(at_end)?;
        }
        if self.settings.captures {
            // Memory of a graph is the graph's until its last launch has ended, and so is what a growth for it that failed
            // could not take back.
            sim::run_all();
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
    pub(super) fn close(&mut self) {
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
        // What is queued may bring the device into the same error again.
        sim::run_all();
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
