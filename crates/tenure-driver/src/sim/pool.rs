//! The driver's own memory pools: stream-ordered allocation.
//!
//! A free block remembers the points after which it may be used. An allocation on stream B takes the smallest free block
//! that is large enough and *ordered* for B, in this sequence:
//!
//! 1. freed on B itself, or on a stream that B is ordered after through events (`REUSE_FOLLOW_EVENT_DEPENDENCIES`) or
//!    through the legacy stream, or whose free has completed (`REUSE_ALLOW_OPPORTUNISTIC`);
//! 2. the same after neighbours that are free for everybody were merged;
//! 3. new memory of the device, in chunks of 32 MiB where there is room, else of 2 MiB;
//! 4. any block, with a wait put into B (`REUSE_ALLOW_INTERNAL_DEPENDENCIES`).
//!
//! Chunks go back to the device at synchronisations while more than the release threshold is reserved, and by trimming.
//! Cost: O(log n) for a free and for an allocation that the first block fits; O(n) where memory is merged before growth.

use std::collections::{BTreeMap, BTreeSet};

use super::codes::*;
use super::machine::Machine;
use super::memory::{GRAIN, LARGE, Owner};
use super::op::Work;
use super::os::Pages;
use super::stream::Point;

const CHUNK: u64 = 32 << 20;
/// How many blocks of sufficient size are looked at before more is done.
const LOOK: usize = 64;

struct Free {
    len: u64,
    after: Vec<Point>,
}

pub(super) struct Pool {
    pub(super) device: usize,
    pub(super) is_default: bool,
    /// Its memory is managed.
    pub(super) managed: bool,
    pub(super) destroyed: bool,
    /// Other processes may open it.
    pub(super) shareable: bool,
    /// Opened from another process: what backs the memory of its device there.
    pub(super) opened: Option<Pages>,
    /// Most bytes that it may reserve; 0 for no limit of its own.
    pub(super) max: u64,
    pub(super) threshold: u64,
    pub(super) follow_events: bool,
    pub(super) opportunistic: bool,
    pub(super) internal: bool,
    pub(super) reserved: u64,
    pub(super) reserved_high: u64,
    pub(super) used: u64,
    pub(super) used_high: u64,
    chunks: BTreeMap<u64, u64>,
    free: BTreeMap<u64, Free>,
    by_len: BTreeSet<(u64, u64)>,
}

impl Pool {
    pub(super) fn new(device: usize, is_default: bool, max: u64) -> Pool {
        Pool {
            device,
            is_default,
            managed: false,
            destroyed: false,
            shareable: false,
            opened: None,
            max,
            threshold: 0,
            follow_events: true,
            opportunistic: true,
            internal: true,
            reserved: 0,
            reserved_high: 0,
            used: 0,
            used_high: 0,
            chunks: BTreeMap::new(),
            free: BTreeMap::new(),
            by_len: BTreeSet::new(),
        }
    }

    fn add_free(&mut self, at: u64, len: u64, after: Vec<Point>) {
        self.free.insert(at, Free { len, after });
        self.by_len.insert((len, at));
    }

    fn remove_free(&mut self, at: u64) -> Option<Free> {
        let free = self.free.remove(&at)?;
        self.by_len.remove(&(free.len, at));
        Some(free)
    }

    /// Adds a free block and merges it with neighbours that may be used after the same points.
    fn give(&mut self, mut at: u64, mut len: u64, after: Vec<Point>) {
        let same = |f: &Free| {
            f.after.len() == after.len() && f.after.iter().all(|p| after.iter().any(|q| q.0 == p.0 && p.1 <= q.1))
        };
        if let Some((&before, f)) = self.free.range(..at).next_back()
            && before + f.len == at
            && !self.chunks.contains_key(&at)
            && same(f)
            && let Some(f) = self.remove_free(before)
        {
            at = before;
            len += f.len;
        }
        let next = at + len;
        if !self.chunks.contains_key(&next)
            && self.free.get(&next).is_some_and(same)
            && let Some(f) = self.remove_free(next)
        {
            len += f.len;
        }
        self.add_free(at, len, after);
    }

    /// Takes `len` bytes of the free block at `at`; the rest stays free.
    fn cut(&mut self, at: u64, len: u64) -> Vec<Point> {
        let Some(f) = self.remove_free(at) else {
            return Vec::new();
        };
        if f.len > len {
            self.add_free(at + len, f.len - len, f.after.clone());
        }
        f.after
    }
}

impl Machine {
    /// The number of the pool behind a handle.
    pub(super) fn pool_of(&mut self, handle: usize) -> Result<u64, i32> {
        if handle == 0 {
            return Err(INVALID_VALUE);
        }
        match self.pool_handles.get(handle) {
            Some(id) => Ok(*id),
            None => {
                let issued = self.pool_handles.was_issued(handle);
                Err(self.bad_handle(self.pool_handles.kind(), handle, issued))
            }
        }
    }

    /// The handle of a device's pool of managed memory, which is made when it is first asked for.
    pub(super) fn managed_pool(&mut self, device: usize) -> usize {
        let known = self.pools.iter().find(|(_, pool)| pool.device == device && pool.managed).map(|(id, _)| *id);
        if let Some(id) = known
            && let Some((handle, _)) = self.pool_handles.iter().find(|(_, of)| **of == id)
        {
            return handle;
        }
        self.next_pool += 1;
        let id = self.next_pool;
        self.pools.insert(id, Pool { managed: true, ..Pool::new(device, true, 0) });
        self.pool_handles.insert(id)
    }

    /// Whether a block is managed memory, of a pool or by itself.
    pub(super) fn is_managed(&self, owner: Owner) -> bool {
        match owner {
            Owner::Managed => true,
            Owner::Pool(id) => self.pools.get(&id).is_some_and(|pool| pool.managed),
            _ => false,
        }
    }

    pub(super) fn pool(&mut self, id: u64) -> Result<&mut Pool, i32> {
        self.pools.get_mut(&id).ok_or(INVALID_VALUE)
    }

    /// Allocates in the order of a stream.
    pub(super) fn pool_alloc(&mut self, id: u64, bytes: u64, uid: u64) -> Result<u64, i32> {
        if bytes == 0 {
            // No memory and no error, as the driver does it; freeing address 0 is allowed.
            return Ok(0);
        }
        if self.pool(id)?.opened.is_some() {
            // Memory of an opened pool is made by the process that made the pool.
            return Err(INVALID_VALUE);
        }
        let len = bytes.checked_next_multiple_of(GRAIN).ok_or(OUT_OF_MEMORY)?;
        let mut at = self.ordered_block(id, len, uid);
        if at.is_none() {
            self.pool_merge(id, false);
            at = self.ordered_block(id, len, uid);
        }
        if at.is_none() {
            at = self.pool_grow(id, len);
        }
        let at = match at {
            Some(at) => {
                self.pool(id)?.cut(at, len);
                at
            }
            None => {
                let pool = self.pool(id)?;
                let found = if pool.internal { pool.by_len.range((len, 0)..).next().copied() } else { None };
                let (_, at) = found.ok_or(OUT_OF_MEMORY)?;
                let after = pool.cut(at, len);
                self.enqueue(uid, Work::Marker, Vec::new(), &after);
                at
            }
        };
        let pool = self.pool(id)?;
        pool.used += len;
        pool.used_high = pool.used_high.max(pool.used);
        let device = pool.device;
        self.renew(at, len);
        self.memory.add(at, bytes, len, device, Owner::Pool(id));
        Ok(at)
    }

    fn ordered_block(&self, id: u64, len: u64, uid: u64) -> Option<u64> {
        let pool = self.pools.get(&id)?;
        let fits = |at: &u64| {
            let free = pool.free.get(at);
            free.is_some_and(|f| {
                f.after.iter().all(|p| {
                    (pool.opportunistic || p.0 == uid || !self.passed(*p)) && self.ordered(uid, *p, pool.follow_events)
                })
            })
        };
        pool.by_len.range((len, 0)..).take(LOOK).map(|(_, at)| *at).find(fits)
    }

    /// Forgets points that are passed (known to the program, or `REUSE_ALLOW_OPPORTUNISTIC`) and merges neighbours that are
    /// free for everybody.
    fn pool_merge(&mut self, id: u64, at_sync: bool) {
        let Some(mut pool) = self.pools.remove(&id) else {
            return;
        };
        for f in pool.free.values_mut() {
            f.after.retain(|p| !self.passed(*p) || !(pool.opportunistic || at_sync));
        }
        let clean: Vec<u64> = pool.free.iter().filter(|(_, f)| f.after.is_empty()).map(|(at, _)| *at).collect();
        for at in clean {
            if let Some(f) = pool.remove_free(at) {
                pool.give(at, f.len, f.after);
            }
        }
        self.pools.insert(id, pool);
    }

    fn pool_grow(&mut self, id: u64, len: u64) -> Option<u64> {
        let exact = len.checked_next_multiple_of(LARGE)?;
        let roomy = len.checked_next_multiple_of(CHUNK)?;
        for attempt in 0..3 {
            if attempt == 2 {
                self.pool_trim(id, 0);
            }
            let want = if attempt == 0 { roomy } else { exact };
            let pool = self.pools.get(&id)?;
            if pool.max != 0 && pool.reserved.checked_add(want)? > pool.max {
                continue;
            }
            if let Ok(at) = self.take_segment(pool.device, want) {
                let pool = self.pools.get_mut(&id)?;
                pool.reserved += want;
                pool.reserved_high = pool.reserved_high.max(pool.reserved);
                pool.chunks.insert(at, want);
                pool.add_free(at, want, Vec::new());
                return Some(at);
            }
        }
        None
    }

    /// Frees in the order of a stream: the block may be used after `after`.
    pub(super) fn pool_free(&mut self, id: u64, at: u64, after: Vec<Point>) {
        let Some(block) = self.memory.blocks.remove(&at) else {
            return;
        };
        let after = after.into_iter().filter(|p| !self.passed(*p)).collect();
        if let Some(pool) = self.pools.get_mut(&id) {
            pool.used -= block.taken;
            pool.give(at, block.taken, after);
            if pool.destroyed && pool.used == 0 {
                self.pool_trim(id, 0);
            }
        }
    }

    /// Gives chunks back that are wholly free for everybody, while more than `keep` bytes stay reserved.
    pub(super) fn pool_trim(&mut self, id: u64, keep: u64) {
        if self.pools.get(&id).is_none_or(|p| p.reserved <= keep) {
            return;
        }
        self.pool_merge(id, true);
        let Some(pool) = self.pools.get_mut(&id) else {
            return;
        };
        let mut gone = Vec::new();
        let chunks: Vec<(u64, u64)> = pool.chunks.iter().map(|(at, len)| (*at, *len)).collect();
        for (at, len) in chunks {
            let idle = pool.free.get(&at).is_some_and(|f| f.len == len && f.after.is_empty());
            if idle && pool.reserved - len >= keep {
                pool.remove_free(at);
                pool.chunks.remove(&at);
                pool.reserved -= len;
                gone.push(at);
            }
        }
        if pool.destroyed && pool.chunks.is_empty() {
            self.pools.remove(&id);
        }
        for at in gone {
            self.give_segment(at);
        }
    }

    /// What pools do when the host has synchronised with a device: give back what is above their thresholds.
    pub(super) fn pools_at_sync(&mut self, device: usize) {
        let over = |p: &Pool| p.device == device && (p.reserved > p.threshold || p.destroyed);
        let ids: Vec<u64> = self.pools.iter().filter(|(_, p)| over(p)).map(|(id, _)| *id).collect();
        let strict = |p: &Pool| p.device == device && !p.opportunistic;
        let synced: Vec<u64> = self.pools.iter().filter(|(_, p)| strict(p)).map(|(id, _)| *id).collect();
        for id in synced {
            self.pool_merge(id, true);
        }
        for id in ids {
            let keep = self.pools.get(&id).map_or(0, |p| if p.destroyed { 0 } else { p.threshold });
            self.pool_trim(id, keep);
        }
    }
}
