//! Remapping: a request that fits by bytes fits, nobody waits for the device, and no address goes before its last use.
//!
//! Unmapping an address that queued work still uses is an illegal address on the simulated device (a fault that every later
//! call meets), a write that overtakes a read raises `sim::mismatches`, and two accesses that nothing orders `sim::races`,
//! whether or not they met.

#![allow(missing_docs)]

#[path = "pool_common.rs"]
mod common;

use std::time::Duration;

use common::*;
use tenure_core::error::Error;
use tenure_core::pool::{Pool, PoolOptions, Prefer};
use tenure_core::resource::MemoryResource;
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_driver::{RawStream, sim};

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;
const DELAY: Duration = Duration::from_millis(60);

/// Makes device 0 current, and has every access checked against what the program has ordered.
fn current() -> tenure_driver::Current {
    sim::check_order(true);
    tenure_core::device::driver().unwrap().device(0).unwrap().enter().unwrap()
}

/// What must not rise: wrong bytes that were read, accesses that nothing orders, and broken rules of the driver.
fn wrong() -> (u64, u64, u64) {
    (sim::mismatches(), sim::races(), sim::violations())
}

/// Fills the block with `byte` and reads it much later, all on `stream`.
fn use_late(raw: RawStream, ptr: u64, bytes: u64, byte: u8) {
    sim::launch(raw.as_raw(), &[], &[(ptr, bytes as usize, byte)]).unwrap();
    let verify = sim::Access::Verify { at: ptr, len: bytes as usize, byte };
    sim::launch_for(raw.as_raw(), DELAY, &[verify]).unwrap();
}

fn overwrite(raw: RawStream, ptr: u64, bytes: u64) {
    sim::launch(raw.as_raw(), &[], &[(ptr, bytes as usize, 0xee)]).unwrap();
}

/// A pool of `mib` MiB at most that has taken them all.
fn full(mib: u64) -> Pool {
    pool(PoolOptions { initial_bytes: mib * MIB, maximum_bytes: Some(mib * MIB), ..Default::default() })
}

fn past(pool: &Pool) -> u64 {
    pool.property("past_bytes").unwrap()
}

/// Four blocks of 4 MiB; the first and the third are used late on `user` and freed there. The others stay.
fn two_holes(pool: &Pool, user: StreamRef<'_>, keeper: StreamRef<'_>) -> [u64; 2] {
    let ptrs: Vec<u64> =
        (0..4).map(|i| allocate(pool, 4 * MIB, if i % 2 == 0 { user } else { keeper }).unwrap()).collect();
    for (i, byte) in [(0, 0x10), (2, 0x20)] {
        use_late(user.raw, ptrs[i], 4 * MIB, byte);
        free(pool, ptrs[i], 4 * MIB, user);
    }
    [ptrs[1], ptrs[3]]
}

#[test]
fn two_holes_of_one_stream_become_one_block_at_once() {
    let _machine = machine();
    let _current = current();
    let before = (wrong(), driver_free());
    let stream = StreamObject::create(0, true).unwrap();
    let me = object(&stream);
    for what in [me, LEGACY, StreamRef::raw(stream.raw())] {
        let pool = full(16);
        let kept = two_holes(&pool, what, what);
        let waits = sim::calls("cuStreamWaitEvent");
        let ptr = allocate(&pool, 8 * MIB, what).expect("it fits by bytes");
        assert_eq!(pool.info().device_proofs, 0, "nobody waited for the device");
        assert_eq!(sim::calls("cuStreamWaitEvent"), waits, "and no stream for another");
        assert_eq!(past(&pool), 8 * MIB, "the old addresses are in use still");
        overwrite(what.raw, ptr, 8 * MIB);
        pool.check().unwrap();
        let info = pool.info();
        assert_eq!((info.live_bytes, info.reserved_bytes, info.cached_bytes), (16 * MIB, 16 * MIB, 0));
        tenure_core::device::prove(0).unwrap();
        // They go at the next occasion, and are used again.
        free(&pool, ptr, 8 * MIB, what);
        let taken = sim::calls("cuMemCreate");
        assert_eq!(pool.trim(0).unwrap() as u64, 8 * MIB);
        assert_eq!(past(&pool), 0);
        for ptr in kept {
            free(&pool, ptr, 4 * MIB, what);
        }
        assert_eq!(sim::calls("cuMemCreate"), taken);
        assert_eq!(pool.trim(0).unwrap() as u64, 8 * MIB);
    }
    drop(stream);
    tenure_core::device::prove(0).unwrap();
    assert_eq!((wrong(), driver_free()), before);
}

#[test]
fn new_pages_fill_up_what_is_missing() {
    let _machine = machine();
    let _current = current();
    let before = (wrong(), driver_free());
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    for asker in [&a, &b] {
        // 16 MiB are mapped, half of them idle; the limit leaves 4 more.
        let pool = pool(PoolOptions { maximum_bytes: Some(20 * MIB), ..Default::default() });
        let kept = two_holes(&pool, object(&a), object(&b));
        assert_eq!(pool.info().reserved_bytes, 16 * MIB);
        let ptr = allocate(&pool, 12 * MIB, object(asker)).expect("it fits by bytes");
        overwrite(asker.raw(), ptr, 12 * MIB);
        let info = pool.info();
        assert_eq!((info.device_proofs, info.reserved_bytes, info.cached_bytes), (0, 20 * MIB, 0));
        assert_eq!(past(&pool), 8 * MIB);
        pool.check().unwrap();
        for (ptr, bytes) in [(ptr, 12 * MIB), (kept[0], 4 * MIB), (kept[1], 4 * MIB)] {
            free(&pool, ptr, bytes, object(asker));
        }
        assert_eq!(pool.trim(0).unwrap() as u64, 20 * MIB);
    }
    tenure_core::device::prove(0).unwrap();
    assert_eq!((wrong(), driver_free()), before);
}

#[test]
fn pages_of_other_streams_come_behind_a_wait() {
    let _machine = machine();
    let _current = current();
    let before = wrong();
    for non_blocking in [true, false] {
        for prefer in [Prefer::Concurrency, Prefer::Footprint] {
            let a = StreamObject::create(0, non_blocking).unwrap();
            let b = StreamObject::create(0, non_blocking).unwrap();
            let options =
                PoolOptions { initial_bytes: 16 * MIB, maximum_bytes: Some(16 * MIB), prefer, ..Default::default() };
            let pool = pool(options);
            two_holes(&pool, object(&a), object(&b));
            let ptr = allocate(&pool, 8 * MIB, object(&b)).expect("it fits by bytes");
            assert_eq!(pool.info().device_proofs, 0);
            overwrite(b.raw(), ptr, 8 * MIB);
            assert_eq!(past(&pool), 8 * MIB);
            tenure_core::device::prove(0).unwrap();
            pool.check().unwrap();
            assert_eq!(wrong(), before, "the write came after the reads");
        }
    }
}

#[test]
fn a_pool_that_ends_waits_for_old_addresses() {
    let _machine = machine();
    let _current = current();
    let before = (wrong(), driver_free());
    let stream = StreamObject::create(0, true).unwrap();
    let pool = full(16);
    let kept = two_holes(&pool, object(&stream), object(&stream));
    let ptr = allocate(&pool, 8 * MIB, object(&stream)).unwrap();
    for (ptr, bytes) in [(ptr, 8 * MIB), (kept[0], 4 * MIB), (kept[1], 4 * MIB)] {
        free(&pool, ptr, bytes, object(&stream));
    }
    assert_eq!(past(&pool), 8 * MIB);
    drop(pool);
    tenure_core::device::wait_stream_on(object(&stream), 0).expect("no address went before its last use");
    assert_eq!((wrong(), driver_free()), before);
}

#[test]
fn what_was_remapped_counts_as_used() {
    let _machine = machine();
    let _current = current();
    let before = wrong();
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    let pool = full(16);
    two_holes(&pool, object(&a), object(&a));
    // One stream only so far; what is left of the new range was never handed out *there*.
    let ptr = allocate(&pool, 5 * MIB, object(&a)).unwrap();
    let other = allocate(&pool, MIB, object(&b)).expect("behind a wait");
    overwrite(b.raw(), other, MIB);
    tenure_core::device::prove(0).unwrap();
    assert_eq!(wrong(), before, "the second stream got pages that the first still read");
    free(&pool, ptr, 5 * MIB, object(&a));
    free(&pool, other, MIB, object(&b));
}

#[test]
fn a_trim_that_waits_for_nothing_leaves_old_addresses_alone() {
    let _machine = machine();
    let _current = current();
    let before = wrong();
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    let pool = pool(PoolOptions { maximum_bytes: Some(24 * MIB), ..Default::default() });
    let idle = allocate(&pool, 4 * MIB, object(&b)).unwrap();
    allocate(&pool, 4 * MIB, object(&b)).unwrap();
    two_holes(&pool, object(&a), object(&a));
    free(&pool, idle, 4 * MIB, object(&b));
    let ptr = allocate(&pool, 8 * MIB, object(&a)).expect("it fits by bytes");
    assert_eq!((past(&pool), pool.info().unproven_bytes), (8 * MIB, 0));
    assert_eq!(pool.trim(0).unwrap() as u64, 4 * MIB);
    assert_eq!((past(&pool), pool.info().device_proofs), (8 * MIB, 0));
    overwrite(a.raw(), ptr, 8 * MIB);
    tenure_core::device::wait_stream_on(object(&a), 0).expect("no address went before its last use");
    assert_eq!(wrong(), before);
}

#[test]
fn an_older_event_of_a_stream_says_nothing_of_its_later_frees() {
    let _machine = machine();
    let _current = current();
    let before = wrong();
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    let pool = full(16);
    let ptrs: Vec<u64> =
        (0..4).map(|i| allocate(&pool, 4 * MIB, object(if i % 2 == 0 { &a } else { &b })).unwrap()).collect();
    use_late(a.raw(), ptrs[0], 4 * MIB, 0x10);
    free(&pool, ptrs[0], 4 * MIB, object(&a));
    // An event is recorded on `a`, and covers this first free.
    let small = allocate(&pool, 100, object(&b)).expect("a page of what `a` has freed");
    use_late(a.raw(), ptrs[2], 4 * MIB, 0x20);
    free(&pool, ptrs[2], 4 * MIB, object(&a));
    let ptr = allocate(&pool, 6 * MIB, object(&b)).expect("it fits by bytes");
    assert_eq!(pool.info().device_proofs, 0);
    overwrite(b.raw(), ptr, 6 * MIB);
    tenure_core::device::prove(0).unwrap();
    assert_eq!(wrong(), before, "the write came after both reads");
    free(&pool, small, 100, object(&b));
}

#[test]
fn whatever_fits_by_bytes_fits() {
    let _machine = machine();
    let _current = current();
    const PAGE: u64 = 2 * MIB;
    let before = wrong();
    let stream = StreamObject::create(0, true).unwrap();
    let me = object(&stream);
    let mut random = 12345u64;
    let mut next = move |n: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % n
    };
    for own in [true, false] {
        let pool = full(64);
        let mut held: Vec<(u64, u64, StreamRef<'_>)> = Vec::new();
        let mut live = 0;
        for step in 0..600 {
            let what = if own || step % 2 == 0 { me } else { LEGACY };
            let bytes = PAGE * (1 + next(if step % 5 == 0 { 24 } else { 3 }));
            if live + bytes <= 64 * MIB {
                let ptr = allocate(&pool, bytes, what).unwrap_or_else(|e| panic!("step {step}, {live} live: {e}"));
                sim::launch(what.raw.as_raw(), &[], &[(ptr, 4096, step as u8)]).unwrap();
                held.push((ptr, bytes, what));
                live += bytes;
            } else {
                let error = allocate(&pool, bytes, what).expect_err("beyond the limit");
                assert!(error.is_out_of_memory(), "{error}");
                for _ in 0..1 + next(6) {
                    if held.is_empty() {
                        break;
                    }
                    let (ptr, bytes, user) = held.swap_remove(next(held.len() as u64) as usize);
                    free(&pool, ptr, bytes, user);
                    live -= bytes;
                }
            }
            if step % 50 == 0 {
                pool.check().unwrap();
                let info = pool.info();
                assert_eq!((info.live_bytes, info.reserved_bytes), (live, 64 * MIB));
            }
        }
        for (ptr, bytes, user) in held {
            free(&pool, ptr, bytes, user);
        }
        tenure_core::device::prove(0).unwrap();
        assert_eq!(pool.trim(0).unwrap() as u64, 64 * MIB);
        assert_eq!((pool.info().reserved_bytes, past(&pool)), (0, 0));
    }
    assert_eq!(wrong(), before);
    tenure_core::device::wait_stream_on(object(&stream), 0).unwrap();
}

#[test]
fn a_failure_at_any_call_loses_nothing() {
    let _machine = machine();
    let _current = current();
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    let free_before = driver_free();
    let mut refused = 0;
    let calls = [
        ("cuMemMap", 4),
        ("cuMemSetAccess", 1),
        ("cuMemUnmap", 2),
        ("cuEventCreate", 2),
        ("cuEventRecord", 2),
        ("cuStreamWaitEvent", 1),
        ("cuStreamIsCapturing", 5),
    ];
    for (call, count) in calls {
        for after in 0..count {
            for code in [2, 999] {
                // Every second time some of it must be new.
                let bytes = if after % 2 == 0 { 8 * MIB } else { 10 * MIB };
                let pool = pool(PoolOptions { maximum_bytes: Some(8 * MIB + bytes), ..Default::default() });
                let kept = two_holes(&pool, object(&a), object(&b));
                sim::fail_next(call, code, after).unwrap();
                let before = pool.info();
                let answer = allocate(&pool, bytes, object(&b));
                sim::fail_clear();
                pool.check().unwrap();
                let ptr = match answer {
                    Ok(ptr) => ptr,
                    Err(e) => {
                        refused += 1;
                        assert!(e.is_out_of_memory() || matches!(e, Error::Device(_)), "{call}: {e}");
                        let after = pool.info();
                        assert_eq!(after.live_bytes, before.live_bytes);
                        assert!((before.cached_bytes..=bytes).contains(&after.cached_bytes), "new pages may stay");
                        allocate(&pool, bytes, object(&b)).unwrap_or_else(|e| panic!("{call} {after:?}: {e}"))
                    }
                };
                overwrite(b.raw(), ptr, bytes);
                for (ptr, bytes) in [(ptr, bytes), (kept[0], 4 * MIB), (kept[1], 4 * MIB)] {
                    free(&pool, ptr, bytes, object(&b));
                }
                pool.trim(0).unwrap();
                assert_eq!(pool.info().reserved_bytes, 0, "{call} {after}");
                drop(pool);
                assert_eq!(driver_free(), free_before, "{call} {after}");
            }
        }
    }
    assert!(refused > 4, "{refused}");
    tenure_core::device::wait_stream_on(object(&a), 0).unwrap();
    tenure_core::device::wait_stream_on(object(&b), 0).unwrap();
}

#[test]
fn it_can_be_turned_off() {
    let _machine = machine();
    let _current = current();
    let stream = StreamObject::create(0, true).unwrap();
    let options = PoolOptions { maximum_bytes: Some(16 * MIB), remap: false, ..Default::default() };
    let pool = pool(options);
    two_holes(&pool, object(&stream), object(&stream));
    allocate(&pool, 8 * MIB, object(&stream)).expect("pages are exchanged after a wait");
    assert_eq!((pool.info().device_proofs, past(&pool)), (1, 0));
    assert_eq!(pool.property("remap"), Some(0));
}

#[test]
fn without_it_pages_from_elsewhere_are_exchanged_for_what_a_free_block_is_short_of() {
    let _machine = machine();
    let a = StreamObject::create(0, true).unwrap();
    let a = object(&a);
    let pool = pool(PoolOptions { maximum_bytes: Some(16 * MIB), remap: false, ..Default::default() });
    let low = allocate(&pool, 6 * MIB, a).unwrap();
    let between = allocate(&pool, 2 * MIB, a).unwrap();
    let high = allocate(&pool, 8 * MIB, a).unwrap();
    assert!(low < between && between < high);
    free(&pool, low, 6 * MIB, a);
    free(&pool, high, 8 * MIB, a);
    // The last block can be extended by 4 MiB, which the first one has. To give up its own would gain nothing.
    assert_eq!(allocate(&pool, 12 * MIB, a).unwrap(), high);
    free(&pool, high, 12 * MIB, a);
    free(&pool, between, 2 * MIB, a);
    pool.check().unwrap();
}

#[test]
fn without_it_pages_in_use_are_not_taken_for_idle_ones() {
    let _machine = machine();
    let _current = current();
    let a = StreamObject::create(0, true).unwrap();
    let a = object(&a);
    let pool = pool(PoolOptions { maximum_bytes: Some(8 * MIB), remap: false, ..Default::default() });
    let all: Vec<u64> = (0..4).map(|_| allocate(&pool, 2 * MIB, a).unwrap()).collect();
    assert!(all.is_sorted());
    // The highest is in use: whoever looks from there must pass it by, and not count it.
    free(&pool, all[0], 2 * MIB, a);
    free(&pool, all[2], 2 * MIB, a);
    let large = allocate(&pool, 4 * MIB, a).expect("two idle pages are exchanged");
    for (ptr, bytes) in [(large, 4 * MIB), (all[1], 2 * MIB), (all[3], 2 * MIB)] {
        free(&pool, ptr, bytes, a);
    }
    pool.check().unwrap();
}

/// How many handles were created, and how many mapped.
fn handles() -> (u64, u64) {
    (sim::calls("cuMemCreate"), sim::calls("cuMemMap"))
}

#[test]
fn a_pool_that_could_grow_takes_what_is_idle_first() {
    let _machine = machine();
    let _current = current();
    let before = (wrong(), driver_free());
    let stream = StreamObject::create(0, true).unwrap();
    let me = object(&stream);
    // Of what is missing half is idle at least, or the pool grows by all of it.
    for (bytes, grown) in [(8, 0), (12, 4), (16, 8), (20, 20)] {
        let pool = pool(PoolOptions::default());
        let kept = two_holes(&pool, me, me);
        assert_eq!(pool.info().reserved_bytes, 16 * MIB);
        let (created, waits) = (handles().0, sim::calls("cuStreamWaitEvent"));
        let ptr = allocate(&pool, bytes * MIB, me).unwrap();
        overwrite(stream.raw(), ptr, bytes * MIB);
        assert_eq!(pool.info().reserved_bytes, (16 + grown) * MIB, "{bytes} MiB");
        assert_eq!(handles().0 - created, grown / 2, "{bytes} MiB");
        assert_eq!((sim::calls("cuStreamWaitEvent"), pool.info().device_proofs), (waits, 0), "nobody waited");
        assert_eq!(past(&pool), if grown < bytes { 8 * MIB } else { 0 });
        pool.check().unwrap();
        for (ptr, bytes) in [(ptr, bytes), (kept[0], 4), (kept[1], 4)] {
            free(&pool, ptr, bytes * MIB, me);
        }
        assert_eq!(pool.trim(0).unwrap() as u64, (16 + grown) * MIB);
    }
    tenure_core::device::wait_stream_on(me, 0).expect("no address went before its last use");
    assert_eq!((wrong(), driver_free()), before);
}

#[test]
fn other_streams_stay_independent_unless_a_small_pool_is_wanted() {
    let _machine = machine();
    let _current = current();
    let before = wrong();
    for (prefer, reserved) in [(Prefer::Concurrency, 36), (Prefer::Footprint, 24)] {
        let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
        let pool = pool(PoolOptions { prefer, ..Default::default() });
        let blocks = [&a, &b, &a, &b, &b, &b].map(|user| (allocate(&pool, 4 * MIB, object(user)).unwrap(), user));
        // A third of what is idle, and of what will be missing, is b's own.
        for (ptr, user) in [blocks[0], blocks[2], blocks[4]] {
            use_late(user.raw(), ptr, 4 * MIB, 0x10);
            free(&pool, ptr, 4 * MIB, object(user));
        }
        let waits = sim::calls("cuStreamWaitEvent");
        let ptr = allocate(&pool, 12 * MIB, object(&b)).unwrap();
        overwrite(b.raw(), ptr, 12 * MIB);
        assert_eq!(pool.info().reserved_bytes, reserved * MIB, "{prefer:?}");
        assert_eq!(sim::calls("cuStreamWaitEvent") > waits, prefer == Prefer::Footprint);
        tenure_core::device::prove(0).unwrap();
        pool.check().unwrap();
        assert_eq!(wrong(), before, "the write came after the reads");
    }
}

#[test]
fn a_pool_that_could_grow_does_when_it_may_not_remap() {
    let _machine = machine();
    let _current = current();
    let stream = StreamObject::create(0, true).unwrap();
    let pool = pool(PoolOptions { remap: false, ..Default::default() });
    two_holes(&pool, object(&stream), object(&stream));
    allocate(&pool, 8 * MIB, object(&stream)).unwrap();
    assert_eq!((pool.info().reserved_bytes, past(&pool)), (24 * MIB, 0));
}

#[test]
fn hardly_anything_idle_is_left_where_it_is() {
    let _machine = machine();
    let _current = current();
    let stream = StreamObject::create(0, true).unwrap();
    let me = object(&stream);
    // A sixty-fourth of what is reserved, or what is idle stays where it is.
    for (large, grown) in [(16, 2), (200, 4)] {
        let pool = pool(PoolOptions::default());
        let blocks = [large, 2, 2].map(|mib| allocate(&pool, mib * MIB, me).unwrap());
        free(&pool, blocks[1], 2 * MIB, me);
        let ptr = allocate(&pool, 4 * MIB, me).unwrap();
        assert_eq!(pool.info().reserved_bytes, (large + 4 + grown) * MIB);
        for (ptr, mib) in [(blocks[0], large), (blocks[2], 2), (ptr, 4)] {
            free(&pool, ptr, mib * MIB, me);
        }
    }
}

#[test]
fn small_sizes_and_large_ones_do_not_take_each_others_only_page() {
    let _machine = machine();
    let _current = current();
    let pool = pool(PoolOptions::default());
    let round = || {
        for bytes in [100, 4 * MIB, 6 * MIB] {
            let ptr = allocate(&pool, bytes, LEGACY).unwrap();
            free(&pool, ptr, bytes, LEGACY);
        }
    };
    round();
    let before = handles();
    (0..10).for_each(|_| round());
    assert_eq!(handles(), before, "after the first round all is there");
}

#[test]
fn a_swarm_of_small_blocks_leaves_its_pages_to_a_large_one() {
    let _machine = machine();
    let _current = current();
    let pool = pool(PoolOptions::default());
    let large = allocate(&pool, 4 * MIB, LEGACY).unwrap();
    let swarm: Vec<u64> = (0..4096).map(|_| allocate(&pool, 16 << 10, LEGACY).unwrap()).collect();
    let reserved = pool.info().reserved_bytes;
    swarm.into_iter().for_each(|ptr| free(&pool, ptr, 16 << 10, LEGACY));
    let ptr = allocate(&pool, 60 * MIB, LEGACY).unwrap();
    assert_eq!(pool.info().reserved_bytes, reserved);
    free(&pool, ptr, 60 * MIB, LEGACY);
    free(&pool, large, 4 * MIB, LEGACY);
    pool.check().unwrap();
}

#[test]
fn remapping_instead_of_growing_ends() {
    let _machine = machine();
    let _current = current();
    let stream = StreamObject::create(0, true).unwrap();
    let me = object(&stream);
    let pool = pool(PoolOptions::default());
    let (start, first, events) = (std::time::Instant::now(), handles(), sim::calls("cuEventCreate"));
    let mut held = std::collections::VecDeque::new();
    let mut random = 7u64;
    let mut most = 0;
    for _ in 0..4000 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let bytes = (2 + 2 * ((random >> 33) % 7)) * MIB;
        held.push_back((allocate(&pool, bytes, me).unwrap(), bytes));
        // Every other block is freed soon: holes between those that stay.
        let at = if random >> 62 & 1 == 0 { 0 } else { held.len() - 1 };
        while held.iter().map(|(_, bytes)| bytes).sum::<u64>() > 128 * MIB {
            let (ptr, bytes) = held.remove(at.min(held.len() - 1)).unwrap();
            free(&pool, ptr, bytes, me);
        }
        let created = handles().0 - first.0;
        // Each remapping has an event of its own and costs 3 at least; the last one may have been large.
        let times = sim::calls("cuEventCreate") - events;
        let may = 4 * created + start.elapsed().as_millis() as u64 / 10 + 16;
        assert!(3 * times <= may, "{times} times, with {created} handles");
        most = most.max(times);
    }
    assert!(most > 16, "it was tried: {most}");
    pool.check().unwrap();
    held.into_iter().for_each(|(ptr, bytes)| free(&pool, ptr, bytes, me));
}

#[test]
fn a_growth_comes_where_a_mapping_fails() {
    let _machine = machine();
    let _current = current();
    let before = driver_free();
    let stream = StreamObject::create(0, true).unwrap();
    let me = object(&stream);
    for call in ["cuMemMap", "cuMemSetAccess", "cuEventCreate", "cuEventRecord", "cuMemCreate"] {
        for after in 0..5 {
            for (code, bytes) in [(2, 8 * MIB), (2, 12 * MIB), (999, 12 * MIB)] {
                let pool = pool(PoolOptions::default());
                let blocks = [0; 4].map(|_| allocate(&pool, 4 * MIB, me).unwrap());
                for ptr in [blocks[0], blocks[2]] {
                    overwrite(stream.raw(), ptr, 4 * MIB);
                    free(&pool, ptr, 4 * MIB, me);
                }
                sim::fail_next(call, code, after).unwrap();
                let answer = allocate(&pool, bytes, me);
                sim::fail_clear();
                pool.check().unwrap();
                let ptr = match answer {
                    Ok(ptr) => ptr,
                    Err(e) if code == 999 => {
                        assert!(matches!(e, Error::Device(_)), "{call} {after}: {e}");
                        allocate(&pool, bytes, me).unwrap()
                    }
                    Err(e) => panic!("{call} {after}: {e}"),
                };
                overwrite(stream.raw(), ptr, bytes);
                for (ptr, bytes) in [(ptr, bytes), (blocks[1], 4 * MIB), (blocks[3], 4 * MIB)] {
                    free(&pool, ptr, bytes, me);
                }
                pool.trim(0).unwrap();
                assert_eq!(pool.info().reserved_bytes, 0, "{call} {after}");
                drop(pool);
                assert_eq!(driver_free(), before, "{call} {after}");
            }
        }
    }
    tenure_core::device::wait_stream_on(me, 0).unwrap();
}

#[test]
fn programs_that_take_turns_share_their_memory() {
    let _machine = machine();
    let _current = current();
    let pool = pool(PoolOptions::default());
    // One keeps a little of what it takes in the midst of what it gives back, the other wants all of that in one piece.
    let mut kept = Vec::new();
    for round in 0..4u64 {
        let many: Vec<u64> = (0..10)
            .map(|_| {
                let ptr = allocate(&pool, 12 * MIB, LEGACY).unwrap();
                if round == 0 {
                    kept.push(allocate(&pool, 2 * MIB, LEGACY).unwrap());
                }
                ptr
            })
            .collect();
        many.into_iter().for_each(|ptr| free(&pool, ptr, 12 * MIB, LEGACY));
        let one = allocate(&pool, 118 * MIB, LEGACY).unwrap();
        overwrite(LEGACY.raw, one, 118 * MIB);
        free(&pool, one, 118 * MIB, LEGACY);
        tenure_core::device::prove(0).unwrap();
        let info = pool.info();
        assert!(info.peak_reserved_bytes * 20 <= info.peak_live_bytes * 21, "round {round}: {info:?}");
    }
    kept.into_iter().for_each(|ptr| free(&pool, ptr, 2 * MIB, LEGACY));
    pool.check().unwrap();
    assert_eq!(pool.trim(0).unwrap() as u64, 140 * MIB);
}
