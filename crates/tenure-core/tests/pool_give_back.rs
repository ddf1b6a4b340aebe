//! Giving back and being asked to: trimming, decay, siblings, other libraries; the unit of growth, growing ahead, and raw
//! streams that end without a word.

#![allow(missing_docs)]

#[path = "pool_common.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::*;
use tenure_core::error::{Error, OutOfMemory};
use tenure_core::low_memory;
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::leaf::{AsyncOptions, AsyncPool, shared};
use tenure_core::resource::{MemoryResource, Resource};
use tenure_core::stream::{StreamObject, StreamRef};

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;

/// A pool that others can find.
fn shared_pool(options: PoolOptions) -> Resource {
    resource(pool(options))
}

fn body(resource: &Resource) -> &Pool {
    resource.downcast::<Pool>().expect("a pool")
}

fn oom(error: Error) -> Box<OutOfMemory> {
    match error {
        Error::OutOfMemory(oom) => oom,
        other => panic!("{other}"),
    }
}

/// Free bytes of the device, with the thread that tends pools done with those of the test before: a proof of it has a small
/// block less for a moment.
fn quiet_free() -> u64 {
    tenure_core::pool::end_background();
    driver_free()
}

/// Waits until `done`, for ten seconds at most.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn trim_keeps_the_larger_of_what_is_asked_and_the_threshold() {
    let _machine = machine();
    for plain_chunks in [false, true] {
        let options = PoolOptions { release_threshold: 8 * MIB, plain_chunks, ..Default::default() };
        let pool = pool(options);
        let ptrs: Vec<u64> = (0..8).map(|_| allocate(&pool, 4 * MIB, LEGACY).unwrap()).collect();
        assert_eq!(pool.trim(0).unwrap(), 0, "nothing is idle");
        for ptr in &ptrs[..7] {
            free(&pool, *ptr, 4 * MIB, LEGACY);
        }
        assert_eq!(pool.trim(20 << 20).unwrap(), 8 << 20);
        assert_eq!(pool.trim(20 << 20).unwrap(), 0, "as much as was asked for stays");
        assert_eq!(pool.trim(0).unwrap(), 12 << 20);
        assert_eq!(pool.info().cached_bytes, 8 * MIB, "the threshold stays");
        free(&pool, ptrs[7], 4 * MIB, LEGACY);
    }
}

#[test]
fn nothing_decays_before_its_time() {
    let _machine = machine();
    let span = Duration::from_millis(400);
    let pool = shared_pool(PoolOptions { decay_ms: span.as_millis() as u64, ..Default::default() });
    let ptr = allocate(body(&pool), 32 * MIB, LEGACY).unwrap();
    std::thread::sleep(span);
    let freed = Instant::now();
    free(body(&pool), ptr, 32 * MIB, LEGACY);
    until("what is idle goes by itself", || body(&pool).info().reserved_bytes == 0);
    assert!(freed.elapsed() >= span, "{:?}", freed.elapsed());
}

#[test]
fn idle_pages_decay() {
    let _machine = machine();
    let before = quiet_free();
    let pool = shared_pool(PoolOptions { decay_ms: 40, release_threshold: 4 * MIB, ..Default::default() });
    let ptr = allocate(body(&pool), 32 * MIB, LEGACY).unwrap();
    let kept = allocate(body(&pool), 4 * MIB, LEGACY).unwrap();
    std::thread::sleep(Duration::from_millis(120));
    assert_eq!(body(&pool).info().reserved_bytes, 36 * MIB, "what is in use stays");
    free(body(&pool), ptr, 32 * MIB, LEGACY);
    until("what is idle goes by itself", || body(&pool).info().reserved_bytes == 8 * MIB);
    free(body(&pool), kept, 4 * MIB, LEGACY);
    drop(pool);
    until("and the rest with the pool", || driver_free() == before);
    // A pool that nobody can find does it when it is short of memory.
    let alone = common::pool(PoolOptions { decay_ms: 20, ..Default::default() });
    let ptr = allocate(&alone, 32 * MIB, LEGACY).unwrap();
    free(&alone, ptr, 32 * MIB, LEGACY);
    for round in 0..3 {
        allocate(&alone, (33 + round) * MIB, LEGACY).unwrap();
        std::thread::sleep(Duration::from_millis(30));
    }
    assert!(alone.info().cached_bytes < 32 * MIB, "{:?}", alone.info());
}

#[test]
fn siblings_give_back_before_a_pool_fails() {
    let _machine = machine();
    let options = PoolOptions { release_threshold: 64 * MIB, ..Default::default() };
    let (a, b) = (shared_pool(options), shared_pool(options));
    let ptr = allocate(body(&a), 200 * MIB, LEGACY).unwrap();
    let refused = oom(allocate(body(&b), 100 * MIB, LEGACY).unwrap_err());
    assert_eq!(tried(&refused, "other pools"), "nothing was idle there");
    free(body(&a), ptr, 200 * MIB, LEGACY);
    let other = allocate(body(&b), 100 * MIB, LEGACY).expect("the sibling gives back, whatever its threshold");
    assert!(body(&a).info().reserved_bytes > 0, "and no more than is needed");
    free(body(&b), other, 100 * MIB, LEGACY);
    // A limit of its own is nobody else's to lift.
    let small = shared_pool(PoolOptions { maximum_bytes: Some(4 * MIB), ..Default::default() });
    let refused =
        oom(allocate(body(&small), 4 * MIB, LEGACY).and_then(|_| allocate(body(&small), MIB, LEGACY)).unwrap_err());
    assert_eq!(tried(&refused, "other pools"), "the pool's own limit is reached");
}

/// What came of one step.
fn tried<'a>(oom: &'a OutOfMemory, step: &str) -> &'a str {
    oom.tried.iter().find(|t| t.step == step).map(|t| t.outcome).unwrap_or_else(|| panic!("{step}: {oom}"))
}

#[test]
fn pools_that_fail_at_once_ask_each_other_and_never_wait_for_each_other() {
    let _machine = machine();
    let pools: Vec<Resource> = (0..4).map(|_| shared_pool(PoolOptions::default())).collect();
    let served = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (pools, served) = (&pools, &served);
            scope.spawn(move || {
                for round in 0..60u64 {
                    let pool = body(&pools[(thread + round as usize) % 4]);
                    let bytes = (50 + 10 * (round % 5)) * MIB;
                    match allocate(pool, bytes, LEGACY) {
                        Ok(ptr) => {
                            served.fetch_add(1, Ordering::Relaxed);
                            free(pool, ptr, bytes, LEGACY);
                        }
                        Err(e) => assert!(e.is_out_of_memory(), "{e}"),
                    }
                }
            });
        }
    });
    assert!(served.load(Ordering::Relaxed) > 60, "{served:?}");
    for pool in &pools {
        body(pool).check().unwrap();
    }
}

#[test]
fn other_libraries_are_asked_and_ask() {
    let _machine = machine();
    let cuda = shared::cuda().unwrap();
    // Another library keeps what it has freed.
    let hoard = Arc::new(tenure_core::sync::Mutex::new(vec![cuda.allocate(150 << 20, 256, LEGACY).unwrap()]));
    let asked = Arc::new(AtomicU64::new(0));
    let pool = shared_pool(PoolOptions::default());
    let token = {
        let (hoard, asked, cuda, pool) = (hoard.clone(), asked.clone(), cuda.clone(), pool.clone());
        low_memory::register(Arc::new(move |device, bytes| {
            assert_eq!(device, 0);
            asked.fetch_add(1, Ordering::SeqCst);
            // It may allocate, also from the pool that asks; what fails in here asks nobody.
            assert!(allocate(body(&pool), 220 * MIB, LEGACY).unwrap_err().is_out_of_memory());
            let Some(ptr) = hoard.lock().pop() else { return Ok(0) };
            cuda.deallocate(ptr, 150 << 20, 256, LEGACY)?;
            assert!(bytes >= 160 * MIB, "{bytes}");
            Ok(150 * MIB)
        }))
    };
    let failing = low_memory::register(Arc::new(|_, _| Err(Error::Callback("no".into(), None))));
    let ptr = allocate(body(&pool), 160 * MIB, LEGACY).expect("the other library gives back");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let refused = oom(allocate(body(&pool), 160 * MIB, LEGACY).unwrap_err());
    assert_eq!(tried(&refused, "other libraries"), "nothing came of it");
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    low_memory::unregister(token).unwrap();
    low_memory::unregister(failing).unwrap();
    assert!(matches!(low_memory::unregister(token), Err(Error::BadHandle(_))));
    assert!(allocate(body(&pool), 160 * MIB, LEGACY).is_err());
    assert_eq!(asked.load(Ordering::SeqCst), 2, "nobody asks who has unregistered");
    // One that lies is asked a few times, not for ever; and may end itself.
    let lies = Arc::new(AtomicU64::new(0));
    let (count, own) = (lies.clone(), Arc::new(AtomicU64::new(0)));
    let mine = own.clone();
    let token = low_memory::register(Arc::new(move |_, bytes| {
        if count.fetch_add(1, Ordering::SeqCst) == 5 {
            low_memory::unregister(mine.load(Ordering::SeqCst))?;
        }
        Ok(bytes)
    }));
    own.store(token, Ordering::SeqCst);
    assert!(allocate(body(&pool), 160 * MIB, LEGACY).unwrap_err().is_out_of_memory());
    assert!((2..=6).contains(&lies.load(Ordering::SeqCst)), "{lies:?}");
    // And the other way round.
    assert_eq!(low_memory::give_back(0, 0).unwrap(), 0);
    free(body(&pool), ptr, 160 * MIB, LEGACY);
    let some = low_memory::give_back(0, 10 * MIB).unwrap();
    assert!((10 * MIB..64 * MIB).contains(&some), "{some}");
    assert_eq!(low_memory::give_back(-1, 0).unwrap(), 160 * MIB - some);
    assert!(matches!(low_memory::give_back(9, 0), Err(Error::Invalid(_))));
}

#[test]
fn resources_without_memory_of_their_own_ask_too() {
    let _machine = machine();
    let bytes = 200 << 20;
    let own = |options| resource(AsyncPool::new(options).unwrap());
    for (name, asker) in [("cuda", shared::cuda().unwrap()), ("async", own(AsyncOptions::default()))] {
        let idle = shared_pool(PoolOptions { release_threshold: 200 * MIB, ..Default::default() });
        let ptr = allocate(body(&idle), 200 * MIB, LEGACY).unwrap();
        let refused = oom(asker.allocate(bytes, 256, LEGACY).unwrap_err());
        assert_eq!(tried(&refused, "other pools"), "nothing was idle there", "{name}");
        assert_eq!(tried(&refused, "other libraries"), "nothing came of it", "{name}");
        free(body(&idle), ptr, 200 * MIB, LEGACY);
        let block = asker.allocate(bytes, 256, LEGACY).unwrap_or_else(|e| panic!("{name}: {e}"));
        asker.deallocate(block, bytes, 256, LEGACY).unwrap();
        asker.trim(0).unwrap();
        // Another library's.
        let hoard = Arc::new(AtomicU64::new(shared::cuda().unwrap().allocate(bytes, 256, LEGACY).unwrap()));
        let token = {
            let hoard = hoard.clone();
            low_memory::register(Arc::new(move |_, wanted| {
                assert_eq!(wanted, bytes as u64);
                match hoard.swap(0, Ordering::SeqCst) {
                    0 => Ok(0),
                    ptr => shared::cuda()?.deallocate(ptr, bytes, 256, LEGACY).map(|()| wanted),
                }
            }))
        };
        let block = asker.allocate(bytes, 256, LEGACY).unwrap_or_else(|e| panic!("{name}: {e}"));
        low_memory::unregister(token).unwrap();
        asker.deallocate(block, bytes, 256, LEGACY).unwrap();
        asker.trim(0).unwrap();
    }
}

#[test]
fn a_pool_over_chunks_asks_others_when_it_is_their_turn() {
    let _machine = machine();
    let asked = Arc::new(AtomicU64::new(0));
    let count = asked.clone();
    let pool = shared_pool(PoolOptions { plain_chunks: true, ..Default::default() });
    // Too small for what is asked, but idle: the pool has it exchanged before anybody else is asked.
    let ptr = allocate(body(&pool), 150 * MIB, LEGACY).unwrap();
    free(body(&pool), ptr, 150 * MIB, LEGACY);
    let token = low_memory::register(Arc::new(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(0)
    }));
    let ptr = allocate(body(&pool), 200 * MIB, LEGACY).expect("its own idle memory goes first");
    low_memory::unregister(token).unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    free(body(&pool), ptr, 200 * MIB, LEGACY);
}

#[test]
fn a_hook_that_frees_into_the_very_pool_helps_it() {
    let _machine = machine();
    let pool = shared_pool(PoolOptions { maximum_bytes: Some(16 * MIB), ..Default::default() });
    let held = Arc::new(AtomicU64::new(allocate(body(&pool), 16 * MIB, LEGACY).unwrap()));
    let token = {
        let (pool, held) = (pool.clone(), held.clone());
        low_memory::register(Arc::new(move |_, _| match held.swap(0, Ordering::SeqCst) {
            0 => Ok(0),
            ptr => {
                free(body(&pool), ptr, 16 * MIB, LEGACY);
                Ok(16 * MIB)
            }
        }))
    };
    let ptr = allocate(body(&pool), 9 * MIB, LEGACY).expect("what the hook freed is there");
    low_memory::unregister(token).unwrap();
    free(body(&pool), ptr, 9 * MIB, LEGACY);
}

#[test]
fn the_memory_of_raw_streams_that_come_and_go_is_used_again() {
    let _machine = machine();
    let driver = tenure_core::device::driver().unwrap();
    let pool = pool(PoolOptions::default());
    for round in 0..300 {
        let raw = driver.stream_create_on(0, true).unwrap();
        let ptr = allocate(&pool, 2 * MIB, StreamRef::raw(raw)).unwrap_or_else(|e| panic!("{round}: {e}"));
        free(&pool, ptr, 2 * MIB, stored(raw));
        // SAFETY: made above; nobody names it any more.
        unsafe { driver.stream_destroy(raw) }.unwrap();
    }
    let info = pool.info();
    assert!(info.reserved_bytes <= 160 * MIB, "{info:?}");
    assert!((1..20).contains(&info.device_proofs), "{info:?}");
    // A few streams at a time: what has not been seen for a while.
    let slow = common::pool(PoolOptions::default());
    let one = |mib: u64| {
        let raw = driver.stream_create_on(0, true).unwrap();
        let ptr = allocate(&slow, mib * MIB, StreamRef::raw(raw)).unwrap();
        free(&slow, ptr, mib * MIB, stored(raw));
        // SAFETY: made above; nobody names it any more.
        unsafe { driver.stream_destroy(raw) }.unwrap();
    };
    one(8);
    one(8);
    assert_eq!((slow.info().device_proofs, slow.info().reserved_bytes), (0, 16 * MIB), "they may be alive");
    std::thread::sleep(Duration::from_millis(1100));
    one(8);
    assert_eq!(
        (slow.info().device_proofs, slow.info().reserved_bytes),
        (1, 16 * MIB),
        "they are not waited for longer"
    );
}

#[test]
fn out_of_memory_says_what_there_is_and_what_was_tried() {
    let _machine = machine();
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    let pool = pool(PoolOptions { maximum_bytes: Some(32 * MIB), ..Default::default() });
    let first = allocate(&pool, 10 * MIB, object(&a)).unwrap();
    let kept = allocate(&pool, 12 * MIB, object(&b)).unwrap();
    let last = allocate(&pool, 10 * MIB, object(&a)).unwrap();
    free(&pool, first, 10 * MIB, object(&a));
    free(&pool, last, 10 * MIB, stored(a.raw()));
    let refused = oom(allocate(&pool, 30 * MIB, object(&b)).unwrap_err());
    assert_eq!((refused.requested, refused.live, refused.cached), (30 * MIB, 12 * MIB, 20 * MIB));
    assert_eq!((refused.reserved, refused.limit, refused.largest_free), (32 * MIB, 32 * MIB, 10 * MIB));
    assert_eq!(refused.driver_total, DEVICE);
    assert_eq!(tried(&refused, "growing"), "the limit is reached");
    assert_eq!(tried(&refused, "remapping idle pages"), "too few whole pages are idle");
    let steps: Vec<_> = refused.tried.iter().map(|t| t.step).collect();
    assert!(steps.len() >= 10 && steps[0] == "own memory", "{steps:?}");
    let text = refused.to_string();
    for part in ["30.00 MiB requested from pool > cuda", "cached 20.00 MiB", "tried: own memory", "limit 32.00 MiB"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains('\n'));
    free(&pool, kept, 12 * MIB, object(&b));
    // A request that nothing can serve is refused at once, and says which streams hold what.
    let ptr = allocate(&pool, 10 * MIB, object(&a)).unwrap();
    free(&pool, ptr, 10 * MIB, object(&a));
    let refused = oom(allocate(&pool, 33 * MIB, object(&b)).unwrap_err());
    assert!(refused.tried.is_empty());
    assert!(refused.pending.iter().any(|p| p.bytes >= 10 * MIB && p.stream.starts_with("stream 0x")), "{refused}");
    assert!(refused.to_string().ends_with("nothing was tried, since the request is above the limit"), "{refused}");
    // All of it is told, whatever the number of streams: those that hold most by their names.
    let streams: Vec<_> = (0..7).map(|_| StreamObject::create(0, true).unwrap()).collect();
    let held: Vec<_> = streams.iter().map(|s| allocate(&pool, 4 * MIB, object(s)).unwrap()).collect();
    for (stream, ptr) in streams.iter().zip(held) {
        free(&pool, ptr, 4 * MIB, object(stream));
    }
    let refused = oom(allocate(&pool, 33 * MIB, object(&b)).unwrap_err());
    assert_eq!(refused.pending.len(), 5, "{refused}");
    assert!(refused.pending[4].stream.ends_with(" others"), "{refused}");
    assert!(refused.pending.iter().map(|p| p.bytes).sum::<u64>() >= 28 * MIB, "{refused}");
}

#[test]
fn the_unit_of_growth_is_obeyed_and_the_limit_is_reached() {
    let _machine = machine();
    for plain_chunks in [false, true] {
        let options =
            PoolOptions { chunk_bytes: 32 * MIB, maximum_bytes: Some(80 * MIB), plain_chunks, ..Default::default() };
        let pool = pool(options);
        let mut held = vec![allocate(&pool, MIB, LEGACY).unwrap()];
        assert_eq!(pool.info().reserved_bytes, 32 * MIB);
        held.extend((0..79).map(|i| allocate(&pool, MIB, LEGACY).unwrap_or_else(|e| panic!("{i}: {e}"))));
        assert_eq!(pool.info().reserved_bytes, 80 * MIB, "the rest that is less than a unit is taken as well");
        assert!(allocate(&pool, MIB, LEGACY).unwrap_err().is_out_of_memory());
        for ptr in held {
            free(&pool, ptr, MIB, LEGACY);
        }
        assert_eq!(pool.trim(0).unwrap() as u64, 80 * MIB);
    }
    // Handles of the unit: fewer than of the usual size.
    tenure_driver::sim::reset_calls();
    let pool = pool(PoolOptions { chunk_bytes: 64 * MIB, ..Default::default() });
    let ptr = allocate(&pool, 128 * MIB, LEGACY).unwrap();
    assert_eq!(tenure_driver::sim::calls("cuMemCreate"), 2);
    free(&pool, ptr, 128 * MIB, LEGACY);
}

#[test]
fn settings_are_checked_by_name() {
    let _machine = machine();
    let refused = |options: PoolOptions| match Pool::new(shared::cuda().unwrap(), 0, options) {
        Err(Error::Invalid(text)) => text,
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("{options:?} is accepted"),
    };
    for chunk_bytes in [1, 3 * MIB, MIB, 2 << 30, u64::MAX] {
        assert!(refused(PoolOptions { chunk_bytes, ..Default::default() }).contains("chunk_bytes"));
    }
    let both = PoolOptions { chunk_bytes: 8 * MIB, maximum_bytes: Some(4 * MIB), ..Default::default() };
    assert!(refused(both).contains("chunk_bytes"));
    let above = PoolOptions { initial_bytes: 8 * MIB, maximum_bytes: Some(4 * MIB), ..Default::default() };
    assert!(refused(above).contains("initial_bytes"));
    for huge in [u64::MAX, u64::MAX - 255, 1 << 63] {
        assert!(refused(PoolOptions { initial_bytes: huge, ..Default::default() }).contains("initial_bytes"));
        assert!(refused(PoolOptions { maximum_bytes: Some(huge), ..Default::default() }).contains("maximum_bytes"));
        assert!(refused(PoolOptions { release_threshold: huge, ..Default::default() }).contains("release_threshold"));
        let pool = pool(PoolOptions { decay_ms: huge, ..Default::default() });
        assert!(allocate(&pool, huge, LEGACY).unwrap_err().is_out_of_memory());
    }
}

#[test]
fn a_pool_grows_ahead() {
    let _machine = machine();
    let before = quiet_free();
    let pool = shared_pool(PoolOptions { grow_ahead: true, maximum_bytes: Some(40 * MIB), ..Default::default() });
    let first = allocate(body(&pool), 16 * MIB, LEGACY).unwrap();
    until("the next growth is made ahead", || body(&pool).info().reserved_bytes == 32 * MIB);
    tenure_driver::sim::reset_calls();
    let second = allocate(body(&pool), 16 * MIB, LEGACY).unwrap();
    assert_eq!(tenure_driver::sim::calls("cuMemCreate"), 0);
    let third = allocate(body(&pool), 8 * MIB, LEGACY).expect("growing ahead leaves the limit to be reached");
    body(&pool).check().unwrap();
    for (ptr, bytes) in [(first, 16), (second, 16), (third, 8)] {
        free(body(&pool), ptr, bytes * MIB, LEGACY);
    }
    drop(pool);
    until("it ends with its owner", || driver_free() == before);
    // Pools that come and go at once, with growth under way.
    for _ in 0..50 {
        let pool = shared_pool(PoolOptions { grow_ahead: true, decay_ms: 1, ..Default::default() });
        let ptr = allocate(body(&pool), 2 * MIB, LEGACY).unwrap();
        free(body(&pool), ptr, 2 * MIB, LEGACY);
    }
    until("nothing is left", || driver_free() == before);
}
