//! Pools over other upstreams: chunks, honest and hostile ones, re-entrance, threads, the end of a pool.

#![allow(missing_docs)]

#[path = "pool_common.rs"]
mod common;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use common::*;
use tenure_core::error::{Error, Result};
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{Block, Info, MemoryResource, Properties, Request, Resource};
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_core::sync::Mutex;
use tenure_driver::sim;

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;

/// How an upstream misbehaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    Honest,
    OutOfMemory,
    Broken,
    Misaligned,
    Null,
    SameTwice,
    RefusesFrees,
}

/// Hands out numbers, counts what it gave and what came back, and takes nothing back that it did not give.
struct Upstream {
    manner: Mutex<Manner>,
    next: AtomicU64,
    last: AtomicU64,
    live: Mutex<std::collections::BTreeMap<u64, usize>>,
    wrong: AtomicUsize,
}

impl Upstream {
    fn make() -> (Resource, Arc<Self>) {
        let it = Arc::new(Self {
            manner: Mutex::new(Manner::Honest),
            // Aligned to 256 and to nothing more.
            next: AtomicU64::new(0x7000_0000_0100),
            last: AtomicU64::new(0),
            live: Mutex::default(),
            wrong: AtomicUsize::new(0),
        });
        (resource(Shared(it.clone())), it)
    }

    fn bytes(&self) -> u64 {
        self.live.lock().values().map(|b| *b as u64).sum()
    }
}

struct Shared(Arc<Upstream>);

impl MemoryResource for Shared {
    fn kind(&self) -> &str {
        "hostile"
    }
    fn allocate(&self, _: &Request, _: StreamRef<'_>) -> Result<u64> {
        panic!("a pool takes its chunks on no stream")
    }
    fn deallocate(&self, _: u64, _: &Request, _: StreamRef<'_>) -> Result<()> {
        panic!("a pool gives its chunks back on no stream")
    }
    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        let it = &self.0;
        let manner = *it.manner.lock();
        match manner {
            Manner::OutOfMemory => return Err(Error::OutOfMemory(Box::default())),
            Manner::Broken => return Err(Error::Callback("no luck today".into(), None)),
            Manner::Null => return Ok(0),
            Manner::SameTwice if it.last.load(Ordering::SeqCst) != 0 => return Ok(it.last.load(Ordering::SeqCst)),
            _ => {}
        }
        let gap = (request.bytes as u64).next_multiple_of(256) + 256;
        let mut ptr = it.next.fetch_add(gap, Ordering::SeqCst);
        if manner == Manner::Misaligned {
            ptr += 8;
        }
        it.last.store(ptr, Ordering::SeqCst);
        it.live.lock().insert(ptr, request.bytes);
        Ok(ptr)
    }
    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        let it = &self.0;
        if *it.manner.lock() == Manner::RefusesFrees {
            return Err(Error::Callback("no frees today".into(), None));
        }
        if it.live.lock().remove(&ptr) != Some(request.bytes) {
            it.wrong.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }
    fn device(&self) -> Option<i32> {
        None
    }
    fn properties(&self) -> Properties {
        Properties { device_accessible: true, ..Default::default() }
    }
    fn find(&self, _: u64) -> Option<Block> {
        None
    }
    fn info(&self) -> Info {
        Info::default()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn over(upstream: &Resource, options: PoolOptions) -> Pool {
    Pool::new(upstream.clone(), 0, options).unwrap()
}

#[test]
fn chunks_serve_and_go_back_whole() {
    let _machine = machine();
    let (upstream, it) = Upstream::make();
    let pool =
        over(&upstream, PoolOptions { initial_bytes: MIB, maximum_bytes: Some(256 * MIB), ..Default::default() });
    assert!(!pool.has_own_ranges());
    assert_eq!(it.bytes(), MIB, "the initial size, exactly");
    let small = allocate(&pool, 100, LEGACY).unwrap();
    assert_eq!(it.bytes(), MIB);
    let blocks: Vec<u64> = (0..8).map(|_| allocate(&pool, 8 * MIB, LEGACY).unwrap()).collect();
    assert_eq!(it.bytes(), 65 * MIB);
    assert_eq!(pool.info().reserved_bytes, 65 * MIB);
    for align in [512, 4096, 65536, 2 << 20] {
        let request = Request { bytes: 70_000, align, owner: 7, flags: 0 };
        let ptr = pool.allocate(&request, LEGACY).unwrap();
        assert_eq!(ptr % align as u64, 0, "the chunk's own address counts, not its offset");
        pool.deallocate(ptr, &request, LEGACY).unwrap();
    }
    for ptr in blocks {
        assert_eq!(pool.find(ptr + 77).unwrap().ptr, ptr);
        free(&pool, ptr, 8 * MIB, LEGACY);
    }
    pool.check().unwrap();
    let grown = it.bytes();
    let went = pool.trim(0).unwrap() as u64;
    assert_eq!((went, it.bytes()), (grown - MIB, MIB), "the chunk with the small block stays");
    free(&pool, small, 100, LEGACY);
    assert_eq!(pool.trim(0).unwrap() as u64, MIB);
    assert_eq!((it.bytes(), it.wrong.load(Ordering::SeqCst)), (0, 0));
    let again = allocate(&pool, 64 * MIB, LEGACY).unwrap();
    free(&pool, again, 64 * MIB, LEGACY);
    drop(pool);
    assert_eq!((it.bytes(), it.wrong.load(Ordering::SeqCst)), (0, 0));
}

#[test]
fn a_limit_over_chunks_is_reached_exactly() {
    let _machine = machine();
    let (upstream, it) = Upstream::make();
    let maximum = 5 * MIB + 512;
    let pool = over(&upstream, PoolOptions { initial_bytes: MIB, maximum_bytes: Some(maximum), ..Default::default() });
    // The initial chunk is too small and in the way: it goes back for one that fits.
    let ptr = allocate(&pool, maximum, LEGACY).unwrap();
    assert_eq!(it.bytes(), maximum);
    assert!(allocate(&pool, 1, LEGACY).unwrap_err().is_out_of_memory());
    free(&pool, ptr, maximum, LEGACY);
    drop(pool);
    assert_eq!((it.bytes(), it.wrong.load(Ordering::SeqCst)), (0, 0));
}

#[test]
fn a_hostile_upstream_is_caught_and_not_believed() {
    let _machine = machine();
    for manner in [Manner::OutOfMemory, Manner::Broken, Manner::Misaligned, Manner::Null, Manner::SameTwice] {
        let (upstream, it) = Upstream::make();
        let pool = over(&upstream, PoolOptions::default());
        let held = allocate(&pool, MIB, LEGACY).unwrap();
        let before = pool.info();
        let bytes = it.bytes();
        *it.manner.lock() = manner;
        let error = allocate(&pool, 16 * MIB, LEGACY).unwrap_err();
        match manner {
            Manner::OutOfMemory => {
                let Error::OutOfMemory(oom) = error else { panic!("{error}") };
                assert_eq!((oom.requested, oom.live, oom.resource.as_str()), (16 * MIB, MIB, "pool > hostile"));
            }
            Manner::Broken => assert!(matches!(error, Error::Callback(..)), "its own error comes through: {error}"),
            _ => assert!(matches!(&error, Error::Invalid(t) if t.contains("hostile")), "{error}"),
        }
        assert_eq!(pool.info(), before, "{manner:?}");
        assert_eq!(it.bytes(), bytes, "{manner:?}: what it gave is given back, what is in use is not");
        *it.manner.lock() = Manner::Honest;
        let ptr = allocate(&pool, 16 * MIB, LEGACY).unwrap();
        free(&pool, ptr, 16 * MIB, LEGACY);
        free(&pool, held, MIB, LEGACY);
        pool.check().unwrap();
        drop(pool);
        assert_eq!((it.bytes(), it.wrong.load(Ordering::SeqCst)), (0, 0), "{manner:?}");
    }
    // Making a pool over one is an error, not a pool.
    for manner in [Manner::OutOfMemory, Manner::Broken, Manner::Misaligned, Manner::Null] {
        let (upstream, it) = Upstream::make();
        *it.manner.lock() = manner;
        let made = Pool::new(upstream, 0, PoolOptions { initial_bytes: MIB, ..Default::default() });
        assert!(made.is_err(), "{manner:?}");
        assert_eq!(it.bytes(), 0);
    }
}

#[test]
fn an_upstream_that_takes_nothing_back_keeps_its_chunks_in_use() {
    let _machine = machine();
    let (upstream, it) = Upstream::make();
    let pool = over(&upstream, PoolOptions::default());
    let ptr = allocate(&pool, 4 * MIB, LEGACY).unwrap();
    free(&pool, ptr, 4 * MIB, LEGACY);
    *it.manner.lock() = Manner::RefusesFrees;
    assert!(matches!(pool.trim(0), Err(Error::Callback(..))));
    assert_eq!(pool.info().reserved_bytes, 4 * MIB);
    assert_eq!(allocate(&pool, 4 * MIB, LEGACY).unwrap(), ptr);
    free(&pool, ptr, 4 * MIB, LEGACY);
    *it.manner.lock() = Manner::Honest;
    assert_eq!(pool.trim(0).unwrap() as u64, 4 * MIB);
}

/// Asks the pool that it feeds.
struct Circle {
    pool: Mutex<Option<std::sync::Weak<Pool>>>,
    seen: Mutex<Vec<String>>,
    next: AtomicU64,
}

struct SharedCircle(Arc<Circle>);

impl MemoryResource for SharedCircle {
    fn kind(&self) -> &str {
        "circle"
    }
    fn allocate(&self, request: &Request, _: StreamRef<'_>) -> Result<u64> {
        self.allocate_sync(request)
    }
    fn deallocate(&self, ptr: u64, request: &Request, _: StreamRef<'_>) -> Result<()> {
        self.deallocate_sync(ptr, request)
    }
    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        let pool = self.0.pool.lock().as_ref().and_then(std::sync::Weak::upgrade);
        if let Some(pool) = pool {
            // Small enough: served from what is there. Too large: refused, never waited for.
            let small = allocate(&pool, 256 << 10, LEGACY)?;
            free(&pool, small, 256 << 10, LEGACY);
            let error = allocate(&pool, 32 * MIB, LEGACY).expect_err("it cannot be served");
            self.0.seen.lock().push(error.to_string());
        }
        Ok(self.0.next.fetch_add(request.bytes as u64 + 256, Ordering::SeqCst))
    }
    fn deallocate_sync(&self, _: u64, _: &Request) -> Result<()> {
        Ok(())
    }
    fn device(&self) -> Option<i32> {
        None
    }
    fn properties(&self) -> Properties {
        Properties::default()
    }
    fn find(&self, _: u64) -> Option<Block> {
        None
    }
    fn info(&self) -> Info {
        Info::default()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn an_upstream_that_asks_its_own_pool_is_served_or_refused() {
    let _machine = machine();
    let circle =
        Arc::new(Circle { pool: Mutex::new(None), seen: Mutex::default(), next: AtomicU64::new(0x7100_0000_0000) });
    let upstream = resource(SharedCircle(circle.clone()));
    let pool = Arc::new(over(&upstream, PoolOptions { initial_bytes: 2 * MIB, ..Default::default() }));
    *circle.pool.lock() = Some(Arc::downgrade(&pool));
    let ptr = allocate(&pool, 8 * MIB, LEGACY).unwrap();
    let seen = circle.seen.lock().clone();
    assert!(seen.len() == 1 && seen[0].contains("same pool"), "{seen:?}");
    free(&pool, ptr, 8 * MIB, LEGACY);
    pool.check().unwrap();
}

#[test]
fn managed_and_pinned_memory_come_in_chunks() {
    let _machine = machine();
    for upstream in [shared::managed().unwrap(), shared::pinned().unwrap()] {
        let pool = over(&upstream, PoolOptions::default());
        assert!(!pool.has_own_ranges());
        let ptr = allocate(&pool, 3 * MIB, LEGACY).unwrap();
        let _current = tenure_core::device::driver().unwrap().device(0).unwrap().enter().unwrap();
        sim::launch(LEGACY.raw.as_raw(), &[], &[(ptr, 3 << 20, 1)]).unwrap();
        free(&pool, ptr, 3 * MIB, LEGACY);
        assert_eq!(pool.trim(0).unwrap(), 4 << 20);
        assert_eq!(pool.properties().host_accessible, upstream.body().properties().host_accessible);
    }
}

#[test]
fn threads_share_a_pool_without_sharing_memory() {
    let _machine = machine();
    let violations = sim::violations();
    for own_ranges in [true, false] {
        let options = PoolOptions { maximum_bytes: Some(48 * MIB), plain_chunks: !own_ranges, ..Default::default() };
        let pool = pool(options);
        let failures = AtomicUsize::new(0);
        let before = sim::mismatches();
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let (pool, failures) = (&pool, &failures);
                scope.spawn(move || {
                    let mut random = thread * 7919 + 1;
                    let mut next = move || {
                        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        random >> 33
                    };
                    // Each thread has one stream after the other, and the others take what they leave behind.
                    for life in 0..6u64 {
                        let byte = (thread * 6 + life) as u8;
                        let stream = StreamObject::create(0, next() % 2 == 0).unwrap();
                        let me = object(&stream);
                        let mut held: Vec<(u64, u64)> = Vec::new();
                        for step in 0..300 {
                            if next() % 2 == 0 || held.is_empty() {
                                let bytes = 1 + next() % if step % 7 == 0 { 4 << 20 } else { 32 << 10 };
                                match allocate(pool, bytes, me) {
                                    Ok(ptr) => {
                                        sim::launch(me.raw.as_raw(), &[], &[(ptr, bytes as usize, byte)]).unwrap();
                                        held.push((ptr, bytes));
                                    }
                                    Err(e) if e.is_out_of_memory() => {
                                        failures.fetch_add(1, Ordering::Relaxed);
                                        for (ptr, bytes) in held.drain(..held.len() / 2) {
                                            free(pool, ptr, bytes, me);
                                        }
                                    }
                                    Err(e) => panic!("{e}"),
                                }
                            } else {
                                let (ptr, bytes) = held.swap_remove(next() as usize % held.len());
                                let verify = sim::Access::Verify { at: ptr, len: bytes as usize, byte };
                                let late = std::time::Duration::from_micros(if step % 32 == 0 { 500 } else { 0 });
                                sim::launch_for(me.raw.as_raw(), late, &[verify]).unwrap();
                                free(pool, ptr, bytes, me);
                            }
                            if step % 200 == 199 {
                                pool.trim(4 << 20).unwrap();
                            }
                        }
                        let late = held.split_off(held.len() / 2);
                        for (ptr, bytes) in held {
                            free(pool, ptr, bytes, me);
                        }
                        pool.stream_closing(me);
                        let dead = stored(stream.raw());
                        drop(stream);
                        for (ptr, bytes) in late {
                            free(pool, ptr, bytes, dead);
                        }
                    }
                });
            }
        });
        pool.check().unwrap();
        assert_eq!(pool.info().live_count, 0);
        pool.trim(0).unwrap();
        assert_eq!(pool.info().reserved_bytes, 0);
        assert_eq!((sim::mismatches(), sim::violations()), (before, violations));
    }
}

#[test]
fn chunks_lie_on_the_pools_device_whichever_is_current() {
    let _machine = machine();
    // An adaptor over the plain resource makes memory of the device that is current.
    let counted = resource(tenure_core::adaptor::Statistics::new(shared::cuda().expect("the plain resource")));
    let options = PoolOptions { initial_bytes: MIB, ..Default::default() };
    let pool = Pool::new(counted, 1, options).expect("a pool of the other device");
    let ptr = allocate(&pool, 3 * MIB, LEGACY).expect("a second chunk");
    let cuda = shared::cuda().expect("the plain resource");
    for (start, _) in pool.ranges() {
        assert_eq!(cuda.body().find(start).map(|block| block.device), Some(1));
    }
    free(&pool, ptr, 3 * MIB, LEGACY);
}
