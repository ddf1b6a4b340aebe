//! The threads' desks: what they keep, what they give back and when, and that no free is done twice.

#![allow(missing_docs)]

#[path = "pool_common.rs"]
mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

use common::*;
use tenure_core::error::{Error, Misuse, MisuseKind};
use tenure_core::pool::{PoolOptions, Prefer};
use tenure_core::resource::MemoryResource;
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_driver::sim;

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;

/// All freed and nothing in use: the pool gives everything back.
fn is_whole(pool: &tenure_core::pool::Pool) {
    let info = pool.info();
    assert_eq!((info.live_count, info.live_bytes), (0, 0));
    pool.check().unwrap();
    pool.trim(0).unwrap();
    assert_eq!(pool.info().reserved_bytes, 0, "{:?}", pool.info());
}

#[test]
fn a_freed_piece_comes_back_to_its_thread_and_figures_are_exact() {
    let _machine = machine();
    let pool = pool(PoolOptions::default());
    for bytes in [1, 256, 1000, 32 << 10, (32 << 10) + 1, 5 * MIB] {
        let a = allocate(&pool, bytes, LEGACY).unwrap();
        free(&pool, a, bytes, LEGACY);
        assert_eq!(allocate(&pool, bytes, LEGACY).unwrap(), a, "{bytes} bytes");
        free(&pool, a, bytes, LEGACY);
        assert!(matches!(
            pool.deallocate(a, &request(bytes), LEGACY),
            Err(Error::Misuse(Misuse { kind: MisuseKind::DoubleFree, .. }))
        ));
        assert!(pool.find(a).is_none(), "what a desk keeps is nobody's");
    }
    is_whole(&pool);
    // The peak is that of what was live, not of what desks kept.
    assert_eq!(pool.info().peak_live_bytes, 5 * MIB);
}

#[test]
fn wrong_frees_of_pieces_at_hand_are_told_apart() {
    let _machine = machine();
    let pool = pool(PoolOptions::default());
    // The first starts at a multiple of every alignment.
    let keep = allocate(&pool, 1000, LEGACY).unwrap();
    let ptr = allocate(&pool, 1000, LEGACY).unwrap();
    let kind = |ptr: u64, bytes: u64, owner: u64, align: usize| {
        let request = tenure_core::resource::Request { owner, align, ..request(bytes) };
        match pool.deallocate(ptr, &request, LEGACY) {
            Err(Error::Misuse(misuse)) => misuse.kind,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(kind(ptr, 2000, 7, 256), MisuseKind::WrongSize);
    assert_eq!(kind(ptr, 64 << 20, 7, 256), MisuseKind::WrongSize);
    assert_eq!(kind(ptr, 1000, 8, 256), MisuseKind::WrongResource);
    assert_eq!(kind(ptr + 256, 1000, 7, 256), MisuseKind::InteriorPointer);
    assert_eq!(kind(ptr + 7, 1000, 7, 256), MisuseKind::InteriorPointer);
    assert_eq!(kind(0x1000, 1000, 7, 256), MisuseKind::UnknownPointer);
    assert_eq!(kind(ptr, 1000, 7, 2 << 20), MisuseKind::WrongAlignment);
    free(&pool, ptr, 1000, LEGACY);
    free(&pool, keep, 1000, LEGACY);
    is_whole(&pool);
}

#[test]
fn of_two_threads_that_free_one_block_one_succeeds() {
    let _machine = machine();
    let pool = pool(PoolOptions::default());
    for bytes in [500, 3 * MIB] {
        let blocks: Vec<u64> = (0..40).map(|_| allocate(&pool, bytes, LEGACY).unwrap()).collect();
        let (freed, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let start = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    // With a magazine of its own, so that the free is the one without the lock.
                    let own = allocate(&pool, bytes, LEGACY).unwrap();
                    free(&pool, own, bytes, LEGACY);
                    start.wait();
                    for ptr in &blocks {
                        match pool.deallocate(*ptr, &request(bytes), LEGACY) {
                            Ok(()) => freed.fetch_add(1, Ordering::Relaxed),
                            Err(Error::Misuse(Misuse { kind: MisuseKind::DoubleFree, .. })) => {
                                refused.fetch_add(1, Ordering::Relaxed)
                            }
                            Err(other) => panic!("{other:?}"),
                        };
                    }
                });
            }
        });
        assert_eq!((freed.into_inner(), refused.into_inner()), (40, 120));
    }
    is_whole(&pool);
}

#[test]
fn what_an_ended_thread_kept_is_found() {
    let _machine = machine();
    let limit = 16 * MIB;
    let pool = pool(PoolOptions { maximum_bytes: Some(limit), ..Default::default() });
    for _ in 0..100 {
        // Small pieces, a large one, and an outbox: all of it stays behind.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let own = StreamObject::create(0, false).unwrap();
                let blocks: Vec<u64> = (0..50).map(|_| allocate(&pool, 3000, LEGACY).unwrap()).collect();
                let large = allocate(&pool, 2 * MIB, LEGACY).unwrap();
                free(&pool, large, 2 * MIB, LEGACY);
                for ptr in blocks {
                    free(&pool, ptr, 3000, object(&own));
                }
                std::mem::forget(own);
            });
        });
    }
    let all = allocate(&pool, limit - 2 * MIB, LEGACY).unwrap();
    free(&pool, all, limit - 2 * MIB, LEGACY);
    is_whole(&pool);
}

#[test]
fn a_full_pool_is_served_from_the_desks_of_others() {
    let _machine = machine();
    let pool = pool(PoolOptions { maximum_bytes: Some(8 * MIB), ..Default::default() });
    let (parked, taken) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ptr = allocate(&pool, 5 * MIB, LEGACY).unwrap();
            free(&pool, ptr, 5 * MIB, LEGACY);
            parked.wait();
            taken.wait();
            // What was parked has gone; nothing is wrong with that.
            assert!(allocate(&pool, 5 * MIB, LEGACY).unwrap_err().is_out_of_memory());
        });
        parked.wait();
        let ptr = allocate(&pool, 6 * MIB, LEGACY).unwrap();
        taken.wait();
        // The other thread has failed by the time it ends.
        std::thread::sleep(std::time::Duration::from_millis(1));
        scope.spawn(|| ()).join().unwrap();
        let _ = ptr;
    });
    let info = pool.info();
    assert_eq!(info.live_count, 1);
    let block = pool.ranges()[0].0;
    free(&pool, pool.find(block).unwrap().ptr, 6 * MIB, LEGACY);
    is_whole(&pool);
}

#[test]
fn a_stream_that_ends_takes_its_magazines_along() {
    let _machine = machine();
    let pool = pool(PoolOptions::default());
    // Two streams, so that memory of one is not everyone's.
    let other = allocate(&pool, 256, LEGACY).unwrap();
    for _ in 0..200 {
        let stream = StreamObject::create(0, true).unwrap();
        let blocks: Vec<u64> = (0..10).map(|_| allocate(&pool, 700, object(&stream)).unwrap()).collect();
        for ptr in blocks {
            free(&pool, ptr, 700, object(&stream));
        }
        let large = allocate(&pool, MIB, object(&stream)).unwrap();
        free(&pool, large, MIB, object(&stream));
    }
    assert!(pool.property("stream_records").unwrap() < 80, "records of ended streams go");
    let info = pool.info();
    assert!(info.reserved_bytes <= 24 * MIB, "memory of ended streams is used again: {info:?}");
    free(&pool, other, 256, LEGACY);
    is_whole(&pool);
}

#[test]
fn a_piece_freed_on_another_stream_waits_for_that_stream() {
    let _machine = machine();
    let pool = pool(PoolOptions { maximum_bytes: Some(4 * MIB), ..Default::default() });
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    // Both have a magazine on this thread.
    for stream in [&a, &b] {
        let ptr = allocate(&pool, 4096, object(stream)).unwrap();
        free(&pool, ptr, 4096, object(stream));
    }
    let mismatches = sim::mismatches();
    for _ in 0..50 {
        let ptr = allocate(&pool, 4096, object(&a)).unwrap();
        sim::busy(b.raw().as_raw(), std::time::Duration::from_micros(200)).unwrap();
        sim::launch(b.raw().as_raw(), &[(ptr, 4096)], &[]).unwrap();
        free(&pool, ptr, 4096, object(&b));
        // Whatever a gets now, b is not reading it.
        let mut more = Vec::new();
        for _ in 0..20 {
            let next = allocate(&pool, 4096, object(&a)).unwrap();
            sim::launch(a.raw().as_raw(), &[], &[(next, 4096, 1)]).unwrap();
            more.push(next);
        }
        for next in more {
            free(&pool, next, 4096, object(&a));
        }
    }
    tenure_core::device::prove(0).unwrap();
    assert_eq!(sim::mismatches(), mismatches);
    is_whole(&pool);
}

#[test]
fn many_threads_hand_blocks_round_and_nothing_is_lost_or_shared() {
    const THREADS: usize = 6;
    let _machine = machine();
    let pool = pool(PoolOptions { maximum_bytes: Some(200 * MIB), ..Default::default() });
    let streams: Vec<_> = (0..3).map(|i| StreamObject::create(0, i != 0).unwrap()).collect();
    // Live blocks by address: two owners of one byte would be seen here.
    let live: Mutex<HashMap<u64, u64>> = Mutex::default();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pool, streams, live) = (&pool, &streams, &live);
            scope.spawn(move || {
                let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(thread as u64 + 1);
                let mut random = || {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state >> 8
                };
                for _ in 0..3000 {
                    let stream = match random() % 5 {
                        0 => LEGACY,
                        1 => StreamRef::raw(tenure_driver::RawStream::PER_THREAD),
                        n => object(&streams[n as usize - 2]),
                    };
                    if random() % 2 == 0 {
                        let bytes = 1 + random() % if random() % 8 == 0 { MIB } else { 5000 };
                        let Ok(ptr) = allocate(pool, bytes, stream) else { continue };
                        assert_eq!(live.lock().unwrap().insert(ptr, bytes), None, "{ptr:#x} was given twice");
                    } else {
                        let some = {
                            let mut live = live.lock().unwrap();
                            let key = live.keys().nth(random() as usize % 7).copied();
                            key.and_then(|ptr| live.remove_entry(&ptr))
                        };
                        if let Some((ptr, bytes)) = some {
                            free(pool, ptr, bytes, stream);
                        }
                    }
                    if random() % 500 == 0 {
                        pool.trim(0).unwrap();
                    }
                }
            });
        }
    });
    pool.check().unwrap();
    let live = live.into_inner().unwrap();
    assert_eq!(pool.info().live_count, live.len() as u64);
    for (ptr, bytes) in live {
        free(&pool, ptr, bytes, LEGACY);
    }
    is_whole(&pool);
}

#[test]
fn the_peak_is_never_too_high_over_many_threads() {
    const THREADS: u64 = 4;
    const BLOCK: u64 = 64 << 10;
    let _machine = machine();
    let pool = pool(PoolOptions::default());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 0..500 {
                    let blocks: Vec<u64> =
                        (0..1 + round % 20).map(|_| allocate(&pool, BLOCK, LEGACY).unwrap()).collect();
                    for ptr in blocks {
                        free(&pool, ptr, BLOCK, LEGACY);
                    }
                }
            });
        }
    });
    let peak = pool.info().peak_live_bytes;
    assert!(peak <= THREADS * 20 * BLOCK, "{peak}");
    assert!(peak >= 20 * BLOCK - MIB, "{peak}");
    is_whole(&pool);
}

// --------------------------------------------------------------------------------------------------------------- plots

/// A pool whose threads have plots.
fn divided(options: PoolOptions) -> tenure_core::pool::Pool {
    let pool = pool(options);
    pool.force_plots();
    pool
}

fn plots(pool: &tenure_core::pool::Pool) -> u64 {
    pool.property("plots").unwrap()
}

/// Frees one of many live blocks and allocates another, checked against a list of intervals.
fn churn(pool: &tenure_core::pool::Pool, stream: StreamRef<'_>, steps: u64) {
    let mut live: std::collections::BTreeMap<u64, u64> = std::collections::BTreeMap::new();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for step in 0..steps {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if live.len() >= 40 {
            let (&ptr, &bytes) = live.iter().nth(state as usize % live.len()).unwrap();
            live.remove(&ptr);
            free(pool, ptr, bytes, stream);
        }
        let bytes = (33 << 10) + (state >> 40) % (900 << 10);
        let ptr = allocate(pool, bytes, stream).unwrap();
        let before = live.range(..ptr + bytes).next_back();
        assert!(before.is_none_or(|(start, length)| start + length <= ptr), "step {step}");
        live.insert(ptr, bytes);
    }
    for (ptr, bytes) in live {
        free(pool, ptr, bytes, stream);
    }
}

#[test]
fn a_plot_serves_large_sizes_and_is_given_back() {
    let _machine = machine();
    let pool = divided(PoolOptions::default());
    churn(&pool, LEGACY, 2000);
    assert_eq!(plots(&pool), 1);
    let ptr = allocate(&pool, 70_000, LEGACY).unwrap();
    assert_eq!(pool.find(ptr + 65_536).unwrap().ptr, ptr);
    assert!(pool.find(ptr + 70_400).is_none_or(|block| block.ptr != ptr));
    free(&pool, ptr, 70_000, LEGACY);
    is_whole(&pool);
    assert_eq!(plots(&pool), 0);
    let frugal = divided(PoolOptions { prefer: Prefer::Footprint, ..Default::default() });
    churn(&frugal, LEGACY, 200);
    assert_eq!(plots(&frugal), 0, "who asks for a small footprint has none");
    is_whole(&frugal);
}

#[test]
fn threads_that_are_not_in_each_others_way_have_no_plots() {
    let _machine = machine();
    let pool = pool(PoolOptions::default());
    churn(&pool, LEGACY, 1000);
    std::thread::scope(|scope| {
        scope.spawn(|| churn(&pool, LEGACY, 1000)).join().unwrap();
    });
    assert_eq!(plots(&pool), 0);
    is_whole(&pool);
}

#[test]
fn wrong_frees_of_pieces_of_a_plot_are_told_apart() {
    let _machine = machine();
    let pool = divided(PoolOptions::default());
    let bytes = 100_000;
    let blocks: Vec<u64> = (0..20).map(|_| allocate(&pool, bytes, LEGACY).unwrap()).collect();
    assert_eq!(plots(&pool), 1);
    let ptr = blocks[10];
    let kind = |ptr: u64, bytes: u64, owner: u64| {
        let request = tenure_core::resource::Request { owner, ..request(bytes) };
        match pool.deallocate(ptr, &request, LEGACY) {
            Err(Error::Misuse(misuse)) => misuse.kind,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(kind(ptr, 50_000, 7), MisuseKind::WrongSize);
    assert_eq!(kind(ptr, bytes, 8), MisuseKind::WrongResource);
    assert_eq!(kind(ptr + 65_536, bytes, 7), MisuseKind::InteriorPointer);
    for ptr in &blocks {
        free(&pool, *ptr, bytes, LEGACY);
        assert_eq!(kind(*ptr, bytes, 7), MisuseKind::DoubleFree);
    }
    is_whole(&pool);
}

#[test]
fn what_a_plot_holds_is_gathered_before_a_pool_fails_and_its_pieces_stay() {
    let _machine = machine();
    let limit = 32 * MIB;
    let pool = divided(PoolOptions { maximum_bytes: Some(limit), ..Default::default() });
    let (tilled, taken) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let blocks: Vec<u64> = (0..30).map(|_| allocate(&pool, MIB, LEGACY).unwrap()).collect();
            // The last one stays; the others are the plot's.
            for ptr in &blocks[..29] {
                free(&pool, *ptr, MIB, LEGACY);
            }
            assert_eq!(plots(&pool), 1);
            tilled.wait();
            taken.wait();
            free(&pool, blocks[29], MIB, LEGACY);
        });
        tilled.wait();
        let served = allocate(&pool, limit - 3 * MIB, LEGACY);
        let left = (plots(&pool), pool.info().live_count);
        taken.wait();
        free(&pool, served.unwrap(), limit - 3 * MIB, LEGACY);
        assert_eq!(left, (0, 2));
    });
    is_whole(&pool);
}

#[test]
fn a_piece_of_a_plot_freed_on_another_stream_waits_for_that_stream() {
    let _machine = machine();
    let pool = divided(PoolOptions { maximum_bytes: Some(16 * MIB), ..Default::default() });
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    let mismatches = sim::mismatches();
    for round in 0..100 {
        let ptr = allocate(&pool, 300_000, object(&a)).unwrap();
        sim::busy(b.raw().as_raw(), std::time::Duration::from_micros(100)).unwrap();
        sim::launch(b.raw().as_raw(), &[(ptr, 300_000)], &[]).unwrap();
        // By this thread and by others, whose desks do not have the plot.
        if round % 2 == 0 {
            free(&pool, ptr, 300_000, object(&b));
        } else {
            std::thread::scope(|scope| scope.spawn(|| free(&pool, ptr, 300_000, object(&b))).join().unwrap());
        }
        let next = allocate(&pool, 300_000, object(&a)).unwrap();
        sim::launch(a.raw().as_raw(), &[], &[(next, 300_000, 1)]).unwrap();
        free(&pool, next, 300_000, object(&a));
    }
    assert_eq!(sim::mismatches(), mismatches, "a wrote what b was still reading");
    is_whole(&pool);
}

#[test]
fn pieces_of_a_plot_freed_by_other_threads_come_back_to_it() {
    let _machine = machine();
    let pool = divided(PoolOptions::default());
    let first = allocate(&pool, 200_000, LEGACY).unwrap();
    for _ in 0..200 {
        let blocks: Vec<u64> = (0..8).map(|_| allocate(&pool, 500_000, LEGACY).unwrap()).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| blocks.iter().for_each(|ptr| free(&pool, *ptr, 500_000, LEGACY))).join().unwrap();
        });
    }
    assert_eq!(plots(&pool), 1);
    assert!(pool.property("pool_size").unwrap() <= 24 * MIB, "{:?}", pool.info());
    free(&pool, first, 200_000, LEGACY);
    is_whole(&pool);
}

#[test]
fn streams_and_threads_that_end_leave_no_plot_behind() {
    let _machine = machine();
    let pool = divided(PoolOptions::default());
    let other = allocate(&pool, 256, LEGACY).unwrap();
    for _ in 0..40 {
        let stream = StreamObject::create(0, true).unwrap();
        churn(&pool, object(&stream), 50);
        std::thread::scope(|scope| scope.spawn(|| churn(&pool, object(&stream), 50)).join().unwrap());
    }
    assert!(pool.property("stream_records").unwrap() < 80, "records of ended streams go");
    pool.info();
    assert_eq!(plots(&pool), 0);
    free(&pool, other, 256, LEGACY);
    is_whole(&pool);
}
