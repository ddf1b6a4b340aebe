//! The calls of pools that a program makes, and what is checked of their answers.

use std::collections::BTreeSet;

use tenure_core::error::Error;
use tenure_core::pool::{Pool, PoolOptions, Prefer};
use tenure_core::resource::{Light, Request, Resource, leaf::shared};
use tenure_core::stream::StreamRef;
use tenure_driver::sim;

use super::upstream::Liar;
use super::world::{Block, Done, World, text};
use super::*;

/// The unit in which idle memory can go elsewhere.
pub(super) const PAGE: u64 = 2 * MIB;
/// A run of small slots takes at most so much beside a live slot of it.
const RUN: u64 = MIB / 4;

impl World {
    pub(super) fn setup(&self, pool: usize) -> Setup {
        self.settings.pools[(pool + self.opened[pool] as usize) % 2]
    }

    pub(super) fn options(&self, pool: usize) -> PoolOptions {
        let setup = self.setup(pool);
        PoolOptions::new()
            .initial_bytes(setup.initial)
            .maximum_bytes(setup.maximum)
            .prefer(if setup.footprint { Prefer::Footprint } else { Prefer::Concurrency })
            .release_threshold(setup.threshold)
            .assume_no_capture(!self.settings.captures)
            .plain_chunks(setup.chunks)
    }

    /// The pool, made when it is first asked for. A device that is too full for its initial size is no reason to end.
    pub(super) fn pool(&mut self, pool: u8) -> Result<Resource, String> {
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
        let made = made.map_err(|e| format!("pool {pool} cannot be made: {e}"))?;
        if self.settings.plots {
            made.force_plots();
        }
        let resource = Resource::new(made).map_err(text)?;
        self.pools[at] = Some(resource.clone());
        Ok(resource)
    }

    pub(super) fn body(resource: &Resource) -> &Pool {
        resource.downcast::<Pool>().unwrap()
    }

    /// Makes a call of a pool with the failures that are armed. Says whether one struck.
    pub(super) fn faulted<R>(&mut self, call: impl FnOnce(&Self) -> R) -> (R, bool) {
        // One at a time: what a liar is given back because it lied is lost if that fails too.
        let armed = if self.lie == 0 { std::mem::take(&mut self.armed) } else { Vec::new() };
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
        if !struck && !armed.is_empty() {
            // It waits for a call that makes its driver call.
            self.armed = armed;
        }
        self.counts.faults += u64::from(struck);
        self.counts.lies += u64::from(lied);
        (result, struck || lied)
    }

    pub(super) fn allocate(&mut self, pool: u8, bytes: u64, align: u64, stream: u8, how: How, used: bool) -> Done {
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
        // A pool that may not ask the stream cannot know that it captures: the block is no memory of the graph.
        let asked = !(how == Stored && stream > 4);
        let capturing = self.capture.as_ref().filter(|c| c.stream == stream && asked).map(|c| c.id);
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
        if let Some(capture) = self.capture.as_mut().filter(|_| capturing.is_some()) {
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
    pub(super) fn check_new(&mut self, block: &Block) -> Done {
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
        if self.numbers.is_multiple_of(8)
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
    pub(super) fn is_full(&mut self, resource: &Resource, pool: u8, bytes: u64, align: u64) -> Done {
        self.counts.refused += 1;
        let body = Self::body(resource);
        let Some(limit) = body.options().maximum_bytes else { return Ok(()) };
        let plain = body.has_own_ranges() && align <= 256 && self.settings.device.is_none() && !self.crowded;
        // What captures hold is not seen from here.
        if !plain || limit % PAGE != 0 || self.settings.captures || self.settings.aligned || bytes > limit {
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

    pub(super) fn request(resource: &Resource, block: &Block, flags: u32) -> Request {
        Request { bytes: block.bytes as usize, align: block.align as usize, owner: resource.id(), flags }
    }

    /// Frees a block that nothing uses any more but what its stream has queued.
    pub(super) fn release(&mut self, index: usize, how: How, on: u8) -> Done {
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

    pub(super) fn misfree(&mut self, index: usize, what: u8) -> Done {
        let block = self.blocks[index];
        let Some(own) = self.pools[usize::from(block.pool)].clone() else { return Ok(()) };
        let (mut resource, mut ptr, mut bytes) = (own, block.ptr, block.bytes);
        let mut align = block.align as usize;
        match what {
            0 => bytes = bytes * 2 + 512,
            1 if bytes > 256 => ptr += 256,
            4 if ptr % PAGE != 0 => align = PAGE as usize,
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
        match resource.deallocate(ptr, bytes as usize, align, StreamRef::DEFAULT) {
            Err(Error::Misuse(_)) => Ok(()),
            other => Err(format!("a wrong free of {bytes} bytes at {ptr:#x} gave {other:?}")),
        }
    }

    /// The figures add up, and the pool's own check is content.
    pub(crate) fn check(&self, pool: u8, deep: bool) -> Done {
        let Some(resource) = &self.pools[usize::from(pool)] else { return Ok(()) };
        let body = Self::body(resource);
        // Before anything else, which would gather what threads have at hand.
        if deep && !self.crowded && self.counts.captured == 0 {
            let (mut shown, mut live) = (BTreeSet::new(), BTreeSet::new());
            resource.body().each_block(&mut |seen| {
                shown.insert((seen.block.ptr, seen.block.owner));
            });
            live.extend(self.blocks.iter().filter(|b| b.pool == pool).map(|b| (b.ptr, resource.id())));
            if shown != live {
                return Err(format!("pool {pool}: a walk shows {shown:x?}, and {live:x?} are live"));
            }
        }
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

    pub(super) fn reopen(&mut self, pool: u8) -> Done {
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

    pub(super) fn note_proofs(&mut self, pool: usize) {
        if let Some(resource) = &self.pools[pool] {
            self.counts.proofs += resource.body().info().device_proofs;
        }
    }
}
