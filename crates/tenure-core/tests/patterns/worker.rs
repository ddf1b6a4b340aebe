//! One of the threads that use the pool: a random program without an end.
//!
//! A worker lives through several threads of the system, one after the other (its *lives*), so that default streams of
//! ended threads, and what their caches kept, are part of the picture.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use tenure_core::error::{Error, Result};
use tenure_core::pool::Pool;
use tenure_core::resource::{DEFAULT_ALIGNMENT, Resource};
use tenure_core::stream::StreamRef;
use tenure_driver::Device;

use crate::engine::{Engine, Range};
use crate::lane::{Block, Home, Kind, Lane, Parcel};

/// What the workers have in common.
pub(crate) struct Shared {
    pub(crate) device: &'static Device,
    pub(crate) engine: Engine,
    /// The pool.
    pub(crate) resource: Resource,
    /// Its limit in bytes.
    pub(crate) bytes: u64,
    pub(crate) threads: u64,
    /// Frees on the wrong stream without a wait: what the patterns are there to show.
    pub(crate) wrong: bool,
    pub(crate) end: Instant,
    /// Set where a worker fails.
    pub(crate) stop: AtomicBool,
    /// Owners so far.
    pub(crate) owners: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) allocations: u64,
    pub(crate) patterned: u64,
    pub(crate) kernels: u64,
    pub(crate) out_of_memory: u64,
    pub(crate) streams: u64,
    pub(crate) handed_over: u64,
}

impl Tally {
    pub(crate) fn and(self, other: &Self) -> Self {
        Self {
            allocations: self.allocations + other.allocations,
            patterned: self.patterned + other.patterned,
            kernels: self.kernels + other.kernels,
            out_of_memory: self.out_of_memory + other.out_of_memory,
            streams: self.streams + other.streams,
            handed_over: self.handed_over + other.handed_over,
        }
    }
}

/// `xorshift64*`.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % n
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

pub(crate) struct Worker<'a> {
    shared: &'a Shared,
    random: Random,
    lanes: Vec<Arc<Lane>>,
    blocks: Vec<Block>,
    live: u64,
    /// So many bytes it would have.
    appetite: u64,
    /// When something happens next that waits for the device.
    rare: Instant,
    inbox: Receiver<Parcel>,
    outboxes: Vec<Sender<Parcel>>,
    /// Everything has been given back.
    pub(crate) done: bool,
    pub(crate) tally: Tally,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(shared: &'a Shared, seed: u64, inbox: Receiver<Parcel>, outboxes: Vec<Sender<Parcel>>) -> Self {
        let random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let (lanes, blocks, tally) = (Vec::new(), Vec::new(), Tally::default());
        let rare = Instant::now();
        Self { shared, random, lanes, blocks, live: 0, appetite: 0, rare, inbox, outboxes, done: false, tally }
    }

    /// True when there is no time left, or somebody has failed.
    fn is_over(&self) -> bool {
        Instant::now() >= self.shared.end || self.shared.stop.load(Ordering::Relaxed)
    }

    /// One life, on the calling thread; the last one gives everything back.
    pub(crate) fn live(&mut self) {
        let shared = self.shared;
        let _current = shared.device.enter().expect("the device");
        let share = shared.bytes / shared.threads;
        self.appetite = share * (60 + self.random.below(55)) / 100;
        if shared.wrong {
            // Far from the limit: a page that is taken away under a kernel would end the device before anything is counted.
            self.appetite = share / 2;
        }
        if self.lanes.is_empty() {
            for i in 0..4 {
                let lane = self.fresh(i, i % 2 == 0);
                self.lanes.push(lane);
            }
            self.lanes.push(Lane::new(Kind::Legacy));
        }
        self.lanes.push(Lane::new(Kind::PerThread));
        let steps = 500 + self.random.below(20_000);
        for _ in 0..steps {
            if self.is_over() {
                break;
            }
            self.step();
        }
        if self.is_over() {
            self.finish();
        }
        // The thread's stream ends with it.
        while let Some(at) = self.blocks.iter().position(|b| matches!(&b.home, Home::Lane(l) if l.is_per_thread())) {
            self.free(at);
        }
        self.lanes.pop();
    }

    /// Takes what is on its way, then looks at everything once more and frees it.
    fn finish(&mut self) {
        self.outboxes.clear();
        while let Ok(parcel) = self.inbox.recv() {
            self.receive(parcel);
        }
        for at in 0..self.blocks.len() {
            self.verify(at, Duration::ZERO);
        }
        while !self.blocks.is_empty() {
            self.free(self.blocks.len() - 1);
        }
        self.done = true;
    }

    fn step(&mut self) {
        let count = self.blocks.len() as u64;
        let any = self.random.below(count.max(1)) as usize;
        match self.random.below(1000) {
            0..400 if self.live < self.appetite => self.allocate_some(),
            0..400 if count > 0 => self.free(any),
            400..500 if count > 0 => self.use_again(any),
            500..580 if count > 0 => self.move_on(any),
            580..640 if count > 0 => self.send(any),
            640..720 => {
                if let Ok(parcel) = self.inbox.try_recv() {
                    self.receive(parcel);
                }
            }
            720..990 if count > 0 => self.free(any),
            990..994 => self.renew(),
            _ if Instant::now() >= self.rare => self.rarely(),
            _ => {}
        }
    }

    /// What waits for the device, or wants a lot.
    fn rarely(&mut self) {
        self.rare = Instant::now() + Duration::from_millis(20 + self.random.below(200));
        let shared = self.shared;
        match self.random.below(5) {
            // Pages that are taken away under a kernel that was freed too early end the device.
            _ if shared.wrong => {}
            0 => {
                let keep = self.random.below(shared.bytes);
                shared.resource.body().trim(keep as usize).expect("a trim");
            }
            1 => {
                // More than there is in one piece, mostly: pages must be brought together for it.
                let bytes = shared.bytes / 3 + self.random.below(shared.bytes / 6);
                while self.live > shared.bytes / shared.threads / 4 && !self.blocks.is_empty() {
                    let any = self.random.below(self.blocks.len() as u64) as usize;
                    self.free(any);
                }
                self.allocate(bytes as usize & !3);
            }
            2 if !self.blocks.is_empty() => self.free_waited(),
            3 => {
                let pool = shared.resource.downcast::<Pool>().expect("a pool");
                pool.check().expect("the placer's invariants");
            }
            _ => {
                let info = shared.resource.body().info();
                assert!(info.live_bytes + info.cached_bytes <= shared.bytes, "{info:?}");
            }
        }
    }

    // ------------------------------------------------------------------------------------------------------- streams

    /// A new stream for a place among the lanes: objects and raw values in turn.
    fn fresh(&mut self, place: usize, non_blocking: bool) -> Arc<Lane> {
        self.tally.streams += 1;
        if place < 2 {
            Lane::object(self.shared.device, non_blocking)
        } else {
            Lane::raw_value(self.shared.device, non_blocking)
        }
    }

    /// A stream of this thread. The legacy one seldom: it makes all others wait.
    fn lane(&mut self) -> Arc<Lane> {
        let place = match self.random.below(32) {
            0 => 4,
            1..=5 => 5,
            other => other as usize % 4,
        };
        self.lanes[place].clone()
    }

    /// Another stream takes the place of one. The old one ends with its last block; a raw one, at times, before that.
    fn renew(&mut self) {
        let place = self.random.below(4) as usize;
        let non_blocking = !self.random.one_in(3);
        let fresh = self.fresh(place, non_blocking);
        let old = std::mem::replace(&mut self.lanes[place], fresh);
        if old.is_raw_value() && self.random.one_in(2) {
            for at in 0..self.blocks.len() {
                if matches!(&self.blocks[at].home, Home::Lane(lane) if Arc::ptr_eq(lane, &old)) {
                    // The last look is still on its way when the stream goes.
                    self.verify_late(at);
                    self.blocks[at].home = Home::Gone(old.raw());
                }
            }
        }
    }

    // ------------------------------------------------------------------------------------------------------- kernels

    /// How long a kernel waits before it looks or writes: mostly not at all, at times as long as real ones run.
    fn delay(&mut self) -> Duration {
        match self.random.below(64) {
            0 => Duration::from_micros(4000),
            1..4 => Duration::from_micros(200 + self.random.below(1000)),
            4..16 => Duration::from_micros(10 + self.random.below(200)),
            _ => Duration::ZERO,
        }
    }

    fn fill(&mut self, at: usize) {
        let delay = self.delay();
        let Block { range, home: Home::Lane(lane) } = &mut self.blocks[at] else {
            return;
        };
        range.owner = self.shared.owners.fetch_add(1, Ordering::Relaxed);
        self.shared.engine.fill(lane.raw(), *range, delay);
        self.tally.kernels += 1;
        self.tally.patterned += range.bytes as u64;
        lane.note_kernel(self.shared.device, self.shared.engine.depth());
    }

    fn verify(&mut self, at: usize, delay: Duration) {
        let Block { range, home: Home::Lane(lane) } = &self.blocks[at] else {
            return;
        };
        self.shared.engine.verify(lane.raw(), *range, delay);
        self.tally.kernels += 1;
        lane.note_kernel(self.shared.device, self.shared.engine.depth());
    }

    fn verify_late(&mut self, at: usize) {
        let delay = if self.shared.wrong { Duration::from_millis(1) } else { self.delay() };
        self.verify(at, delay);
    }

    /// Looks, and gives the block to another owner.
    fn use_again(&mut self, at: usize) {
        self.verify_late(at);
        if self.random.one_in(2) {
            self.fill(at);
        }
    }

    // -------------------------------------------------------------------------------------------------------- blocks

    /// Sizes of all magnitudes, from 256 bytes to some tens of MiB.
    fn allocate_some(&mut self) {
        let largest = (self.shared.bytes / 24).clamp(512, 48 << 20);
        let magnitude = self.random.below(u64::from(largest.ilog2()) - 7);
        let bytes = (256 << magnitude) + self.random.below(256 << magnitude);
        self.allocate(bytes.min(largest) as usize & !3);
    }

    fn allocate(&mut self, bytes: usize) {
        let lane = self.lane();
        let stream = lane.carried(self.random.one_in(4));
        let resource = &self.shared.resource;
        let answer = match self.random.below(64) {
            0 => resource.allocate_sync(bytes, DEFAULT_ALIGNMENT),
            1..8 => match resource.try_allocate(bytes, DEFAULT_ALIGNMENT, stream) {
                Err(Error::WouldBlock) => resource.allocate(bytes, DEFAULT_ALIGNMENT, stream),
                other => other,
            },
            8 => resource.allocate(bytes, 4096, stream).and_then(|at| {
                // Of another alignment, and back at once: blocks know theirs.
                resource.deallocate(at, bytes, 4096, stream)?;
                resource.allocate(bytes, DEFAULT_ALIGNMENT, stream)
            }),
            _ => resource.allocate(bytes, DEFAULT_ALIGNMENT, stream),
        };
        match answer {
            Ok(at) => {
                self.tally.allocations += 1;
                self.live += bytes as u64;
                self.blocks.push(Block { range: Range { at, bytes, owner: 0 }, home: Home::Lane(lane) });
                self.fill(self.blocks.len() - 1);
            }
            Err(Error::OutOfMemory(_)) => {
                self.tally.out_of_memory += 1;
                // Each refusal waits for the device: not again before there is room.
                self.appetite = self.appetite.min(self.live);
                for _ in 0..1 + self.random.below(4) {
                    if !self.blocks.is_empty() {
                        let any = self.random.below(self.blocks.len() as u64) as usize;
                        self.free(any);
                    }
                }
            }
            Err(e) => panic!("an allocation of {bytes} bytes: {e}"),
        }
    }

    /// The block goes on in the order of another stream, which waits for its own.
    fn move_on(&mut self, at: usize) {
        let to = self.lane();
        if let Home::Lane(lane) = &self.blocks[at].home {
            to.wait(self.shared.device, lane);
            self.blocks[at].home = Home::Lane(to);
            self.verify_late(at);
        }
    }

    fn send(&mut self, at: usize) {
        let Home::Lane(lane) = &self.blocks[at].home else {
            return;
        };
        if self.outboxes.is_empty() {
            return;
        }
        let mark = lane.mark(self.shared.device);
        let block = self.blocks.swap_remove(at);
        let to = self.random.below(self.outboxes.len() as u64) as usize;
        self.live -= block.range.bytes as u64;
        self.tally.handed_over += 1;
        if let Err(returned) = self.outboxes[to].send(Parcel { block, mark }) {
            // That worker has failed.
            self.receive(returned.0);
        }
    }

    /// A block of another thread, which goes on where it was or on a stream of this thread.
    fn receive(&mut self, parcel: Parcel) {
        let Parcel { mut block, mark } = parcel;
        let stays = matches!(&block.home, Home::Lane(lane) if !lane.is_per_thread()) && self.random.one_in(2);
        if !stays {
            let to = self.lane();
            to.raw().wait_event(&mark).expect("a wait");
            block.home = Home::Lane(to);
        }
        self.live += block.range.bytes as u64;
        self.blocks.push(block);
        if self.random.one_in(2) {
            self.verify_late(self.blocks.len() - 1);
        }
    }

    /// Frees a block in one of the ways that are allowed, mostly while kernels still use it.
    fn free(&mut self, at: usize) {
        if self.shared.wrong || !self.random.one_in(3) {
            self.verify_late(at);
        }
        let elsewhere = self.lane();
        let (how, as_value) = (self.random.below(12), self.random.one_in(4));
        let block = self.blocks.swap_remove(at);
        self.live -= block.range.bytes as u64;
        let freed = match &block.home {
            Home::Gone(raw) => self.give_back(&block, StreamRef { raw: *raw, object: None, stored: true }, false),
            Home::Lane(_) if self.shared.wrong => self.give_back(&block, elsewhere.carried(false), false),
            Home::Lane(lane) => match how {
                0..4 => {
                    elsewhere.wait(self.shared.device, lane);
                    self.give_back(&block, elsewhere.carried(as_value), false)
                }
                // As a buffer gives the value back that it has stored.
                4 => self.give_back(&block, StreamRef { stored: true, ..lane.carried(as_value) }, false),
                5 => self.give_back(&block, lane.carried(as_value), true),
                _ => self.give_back(&block, lane.carried(as_value), false),
            },
        };
        freed.unwrap_or_else(|e| panic!("a free of {:?}: {e}", block.range));
    }

    fn give_back(&self, block: &Block, stream: StreamRef<'_>, tries: bool) -> Result<()> {
        let (resource, Range { at, bytes, .. }) = (&self.shared.resource, block.range);
        if tries {
            match resource.try_deallocate(at, bytes, DEFAULT_ALIGNMENT, stream) {
                Err(Error::WouldBlock) => {}
                other => return other,
            }
        }
        resource.deallocate(at, bytes, DEFAULT_ALIGNMENT, stream)
    }

    /// Frees a block that nothing uses any more.
    fn free_waited(&mut self) {
        let at = self.random.below(self.blocks.len() as u64) as usize;
        let Home::Lane(lane) = &self.blocks[at].home else {
            return;
        };
        lane.synchronize(self.shared.device);
        let Block { range, .. } = self.blocks.swap_remove(at);
        self.live -= range.bytes as u64;
        self.shared.resource.deallocate_sync(range.at, range.bytes, DEFAULT_ALIGNMENT).expect("a free");
    }
}
