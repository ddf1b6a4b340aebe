//! Many blocks in one call: all or none, each free by itself, what is asked once, and nothing lost when the driver fails.

#![allow(missing_docs)]

#[path = "pool_common.rs"]
mod common;

use std::sync::Barrier;

use common::*;
use tenure_core::adaptor::{Limiting, Statistics};
use tenure_core::buffer::Buffer;
use tenure_core::error::{Error, Misuse, MisuseKind};
use tenure_core::pool::PoolOptions;
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{Named, Resource};
use tenure_core::stream::{StreamHold, StreamObject, StreamRef};
use tenure_driver::{RawStream, sim};

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;
/// Small and large, twice the same, one without bytes.
const SIZES: [usize; 9] = [256, 1000, 0, 256, 40_000, 3 << 20, 40_000, 1, 3 << 20];

fn made(options: PoolOptions) -> Resource {
    resource(pool(options))
}

fn take(named: &Named, sizes: &[usize], stream: StreamRef<'_>) -> Vec<u64> {
    let mut out = vec![77; sizes.len()];
    named.allocate_many(sizes, 256, stream, &mut out).expect("a batch");
    out
}

/// Live bytes, live blocks, and what keeps the resource.
fn live(named: &Named) -> (u64, u64, (i64, i64)) {
    let info = named.body().info();
    (info.live_bytes, info.live_count, named.references())
}

/// Driver calls of all kinds.
fn all_calls() -> u64 {
    sim::calls_all().into_values().sum()
}

fn check(named: &Named) {
    named.downcast::<tenure_core::pool::Pool>().unwrap().check().unwrap();
}

#[test]
fn blocks_of_a_batch_are_like_any_other() {
    let _machine = machine();
    let stream = StreamObject::create(0, true).unwrap();
    for stream in [LEGACY, object(&stream), StreamRef::raw(stream.raw())] {
        let pool = made(PoolOptions::default());
        for round in 0..3 {
            let ptrs = take(&pool, &SIZES, stream);
            for (at, (ptr, bytes)) in ptrs.iter().zip(SIZES).enumerate() {
                assert_eq!(*ptr == 0, bytes == 0, "{at}");
                assert_eq!(ptr % 256, 0);
                for (other, size) in ptrs.iter().zip(SIZES).skip(at + 1) {
                    assert!(bytes == 0 || size == 0 || ptr + bytes as u64 <= *other || other + size as u64 <= *ptr);
                }
            }
            assert_eq!(live(&pool).1, 8);
            assert_eq!(pool.references(), (1, 8));
            if round == 1 {
                // One by one.
                for (ptr, bytes) in ptrs.iter().zip(SIZES) {
                    pool.deallocate(*ptr, bytes, 256, stream).unwrap();
                }
            } else {
                pool.deallocate_many(&ptrs, &SIZES, 256, stream).unwrap();
            }
            assert_eq!(live(&pool), (0, 0, (1, 0)));
            check(&pool);
        }
        pool.body().trim(0).unwrap();
        assert_eq!(pool.body().info().reserved_bytes, 0);
    }
    assert_eq!(sim::violations(), 0);
}

#[test]
fn more_blocks_than_fit_under_one_lock() {
    let _machine = machine();
    let pool = made(PoolOptions::default());
    let sizes: Vec<usize> = (0..5000).map(|i| i * 37 % 5000).collect();
    let with_bytes = sizes.iter().filter(|bytes| **bytes != 0).count() as u64;
    for _ in 0..2 {
        let mut ptrs = take(&pool, &sizes, LEGACY);
        assert_eq!(live(&pool).1, with_bytes);
        pool.deallocate_many(&ptrs, &sizes, 256, LEGACY).unwrap();
        assert_eq!(live(&pool).1, 0);
        ptrs.retain(|ptr| *ptr != 0);
        ptrs.sort_unstable();
        ptrs.dedup();
        assert_eq!(ptrs.len() as u64, with_bytes, "one address was given twice");
        check(&pool);
    }
}

#[test]
fn what_is_asked_is_asked_once() {
    let _machine = machine();
    let stream = StreamObject::create(0, true).unwrap();
    let pool = made(PoolOptions::default());
    // Twice: the desk must have what it takes.
    for _ in 0..2 {
        let ptrs = take(&pool, &SIZES, object(&stream));
        pool.deallocate_many(&ptrs, &SIZES, 256, object(&stream)).unwrap();
    }
    let before = all_calls();
    let ptrs = take(&pool, &SIZES, object(&stream));
    assert_eq!(all_calls() - before, 1, "is it capturing, once for the batch");
    pool.deallocate_many(&ptrs, &SIZES, 256, object(&stream)).unwrap();
    assert_eq!(all_calls() - before, 1, "a free asks nothing");

    // A raw value that the blocks were not booked with: two questions for all of them.
    let other = StreamObject::create(0, true).unwrap();
    let ptrs = take(&pool, &SIZES, object(&stream));
    let before = sim::calls("cuStreamGetId");
    pool.deallocate_many(&ptrs, &SIZES, 256, StreamRef::raw(other.raw())).unwrap();
    assert_eq!(sim::calls("cuStreamGetId") - before, 1);
    assert_eq!(live(&pool).1, 0);
}

#[test]
fn a_wrong_block_is_named_and_every_other_is_freed() {
    let _machine = machine();
    let stream = StreamObject::create(0, true).unwrap();
    for stream in [LEGACY, object(&stream), StreamRef::raw(stream.raw())] {
        let pool = made(PoolOptions::default());
        let right = take(&pool, &SIZES, stream);
        // Of another resource, inside a block, twice, without a size, of another size, of no size at all.
        let foreign = pool.body().allocate(&request(256), stream).unwrap();
        let cases: [(usize, u64, usize, MisuseKind); 6] = [
            (0, foreign, 256, MisuseKind::WrongResource),
            (1, right[1] + 256, 1000, MisuseKind::InteriorPointer),
            (4, right[0], 256, MisuseKind::DoubleFree),
            (5, right[5], 0, MisuseKind::WrongSize),
            (6, right[6], 80_000, MisuseKind::WrongSize),
            (8, 0, 3 << 20, MisuseKind::UnknownPointer),
        ];
        let mut kept = right.clone();
        for (at, ptr, bytes, kind) in cases {
            let (mut ptrs, mut sizes) = (kept.clone(), SIZES);
            (ptrs[at], sizes[at]) = (ptr, bytes);
            let before = live(&pool).1;
            match pool.deallocate_many(&ptrs, &sizes, 256, stream) {
                Err(Error::OneOf(one)) => {
                    assert_eq!((one.at, one.count, one.freed), (at, 9, 7), "{one:?}");
                    assert!(matches!(one.error, Error::Misuse(Misuse { kind: found, .. }) if found == kind), "{one:?}");
                    let text = Error::OneOf(one).to_string();
                    assert!(text.starts_with(&format!("block {at} of 9")), "{text}");
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(live(&pool).1, before - 7);
            // The one that was meant is still there.
            pool.deallocate(kept[at], SIZES[at], 256, stream).unwrap();
            kept = take(&pool, &SIZES, stream);
            check(&pool);
        }
        pool.deallocate_many(&kept, &SIZES, 256, stream).unwrap();
        // All wrong: the first is named.
        match pool.deallocate_many(&kept, &SIZES, 256, stream) {
            Err(Error::OneOf(one)) => assert_eq!((one.at, one.freed), (0, 0)),
            other => panic!("{other:?}"),
        }
        pool.body().deallocate(foreign, &request(256), stream).unwrap();
        assert_eq!(live(&pool), (0, 0, (1, 0)));
    }
}

#[test]
fn arguments_that_make_no_sense_change_nothing() {
    let _machine = machine();
    let pool = made(PoolOptions::default());
    let ptrs = take(&pool, &SIZES, LEGACY);
    let before = live(&pool);
    let mut out = [5; 2];
    let invalid = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
    invalid(pool.allocate_many(&[1, 2, 3], 256, LEGACY, &mut out));
    assert_eq!(out, [0, 0]);
    invalid(pool.allocate_many(&[1, 2], 3, LEGACY, &mut out));
    invalid(pool.deallocate_many(&ptrs, &SIZES[1..], 256, LEGACY));
    invalid(pool.deallocate_many(&ptrs, &SIZES, 0, LEGACY));
    for size in [usize::MAX, (1 << 56) + 1, 1 << 55] {
        // Two of them overflow, or are more than any device has: refused before anything is asked for.
        let error = pool.allocate_many(&[size, size], 256, LEGACY, &mut out).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
    }
    pool.allocate_many(&[], 256, LEGACY, &mut []).unwrap();
    pool.allocate_many(&[0, 0], 256, LEGACY, &mut out).unwrap();
    pool.deallocate_many(&[], &[], 256, LEGACY).unwrap();
    assert_eq!(live(&pool), before);
    pool.deallocate_many(&ptrs, &SIZES, 256, LEGACY).unwrap();
}

#[test]
fn out_of_memory_in_the_middle_gives_everything_back() {
    let _machine = machine();
    let limit = 16 * MIB;
    let stacks = [
        made(PoolOptions { maximum_bytes: Some(limit), ..Default::default() }),
        made(PoolOptions { maximum_bytes: Some(limit), plain_chunks: true, ..Default::default() }),
        resource(Limiting::new(made(PoolOptions::default()), limit)),
        resource(Statistics::new(resource(Limiting::new(shared::cuda().unwrap(), limit)))),
    ];
    for stack in stacks {
        let held = stack.allocate(5 << 20, 256, LEGACY).unwrap();
        let before = live(&stack);
        let sizes = [1000, 4 << 20, 0, 4 << 20, 500, 4 << 20, 70];
        let mut out = [9; 7];
        let error = stack.allocate_many(&sizes, 256, LEGACY, &mut out).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
        assert_eq!(out, [0; 7]);
        assert_eq!(live(&stack), before, "{stack:?}");
        // What fits is served right after.
        let ptrs = take(&stack, &sizes[..5], LEGACY);
        stack.deallocate_many(&ptrs, &sizes[..5], 256, LEGACY).unwrap();
        stack.deallocate(held, 5 << 20, 256, LEGACY).unwrap();
        assert_eq!(live(&stack), (0, 0, (1, 0)));
    }
}

#[test]
fn whatever_driver_call_fails_nothing_is_lost() {
    let _machine = machine();
    let calls = [
        "cuStreamIsCapturing",
        "cuStreamGetId",
        "cuStreamGetFlags",
        "cuStreamGetCtx",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
        "cuStreamWaitEvent",
        "cuMemFree",
    ];
    let streams = [StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap()];
    let mut failures = 0;
    for raw in [false, true] {
        for call in calls {
            for after in 0..40 {
                let stream = |i: usize| match raw {
                    true => StreamRef::raw(streams[i].raw()),
                    false => object(&streams[i]),
                };
                let pool = made(PoolOptions { maximum_bytes: Some(32 * MIB), ..Default::default() });
                // Another stream has memory that the batch needs.
                let other = pool.allocate(12 << 20, 256, stream(0)).unwrap();
                pool.deallocate(other, 12 << 20, 256, stream(0)).unwrap();
                let held = pool.allocate(1000, 256, stream(1)).unwrap();
                let before = live(&pool);
                sim::fail_next(call, 999, after).unwrap();
                let sizes = [1000, 6 << 20, 256, 9 << 20, 40_000, 9 << 20, 700];
                let mut out = [1; 7];
                let result = pool.allocate_many(&sizes, 256, stream(1), &mut out);
                let reached = sim::fail_clear() == 0;
                match result {
                    Ok(()) => pool.deallocate_many(&out, &sizes, 256, stream(1)).unwrap(),
                    Err(_) => {
                        assert!(reached);
                        failures += 1;
                        assert_eq!(out, [0; 7]);
                    }
                }
                assert_eq!(live(&pool), before, "{call} after {after}");
                let info = pool.body().info();
                assert_eq!(info.live_bytes + info.cached_bytes, info.reserved_bytes, "{call} after {after}");
                check(&pool);
                pool.deallocate(held, 1000, 256, stream(1)).unwrap();
                // Frees, with a question failing in the middle: what was freed is counted, the rest is still there.
                let ptrs = take(&pool, &SIZES, stream(1));
                sim::fail_next(call, 999, after).unwrap();
                let result = pool.deallocate_many(&ptrs, &SIZES, 256, stream(0));
                sim::fail_clear();
                if let Err(Error::OneOf(one)) = result {
                    failures += 1;
                    assert_eq!(live(&pool).1, 8 - one.freed as u64);
                    for (ptr, bytes) in ptrs.iter().zip(SIZES) {
                        if *ptr != 0 && pool.owns(*ptr) {
                            pool.deallocate(*ptr, bytes, 256, stream(1)).unwrap();
                        }
                    }
                }
                assert_eq!(live(&pool), (0, 0, (1, 0)), "{call} after {after}");
                if !reached {
                    break;
                }
            }
        }
    }
    assert!(failures > 20, "{failures}: nothing was made to fail");
    assert_eq!(sim::violations(), 0);
}

#[test]
fn peaks_are_those_of_what_was_live() {
    let _machine = machine();
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    let pool = made(PoolOptions::default());
    // Grown, at hand, refilled; freed into the desk, and on a stream that the desk does not know.
    for freed_on in [object(&a), object(&b), StreamRef::raw(b.raw()), object(&a)] {
        let ptrs = take(&pool, &SIZES, object(&a));
        let info = pool.body().info();
        assert_eq!(info.peak_live_bytes, info.live_bytes);
        pool.deallocate_many(&ptrs, &SIZES, 256, freed_on).unwrap();
    }
    // More than before, from what is there: no growth counts these. Nobody looks while they are live.
    let sizes = [[256; 40], [700; 40]].concat();
    let ptrs = take(&pool, &sizes, object(&a));
    pool.deallocate_many(&ptrs, &sizes, 256, object(&a)).unwrap();
    let ptrs = [take(&pool, &SIZES, object(&a)), take(&pool, &sizes, object(&a))].concat();
    pool.deallocate_many(&ptrs, &[&SIZES[..], &sizes].concat(), 256, object(&b)).unwrap();
    let other = made(PoolOptions::default());
    let ptrs = [take(&other, &SIZES, object(&a)), take(&other, &sizes, object(&a))].concat();
    assert_eq!(pool.body().info().peak_live_bytes, other.body().info().live_bytes);
    other.deallocate_many(&ptrs, &[&SIZES[..], &sizes].concat(), 256, object(&a)).unwrap();
}

#[test]
fn adaptors_count_each_block() {
    let _machine = machine();
    let statistics = resource(Statistics::new(made(PoolOptions::default())));
    let ptrs = take(&statistics, &SIZES, LEGACY);
    let counters = statistics.downcast::<Statistics>().unwrap().counters();
    assert_eq!(counters.bytes.value, SIZES.iter().sum::<usize>() as i64);
    assert_eq!((counters.allocations.value, counters.allocations.total), (8, 8));
    let mut wrong = ptrs.clone();
    wrong[3] = 0x1000;
    assert!(statistics.deallocate_many(&wrong, &SIZES, 256, LEGACY).is_err());
    let counters = statistics.downcast::<Statistics>().unwrap().counters();
    assert_eq!((counters.bytes.value, counters.allocations.value), (256, 1));
    statistics.deallocate(ptrs[3], 256, 256, LEGACY).unwrap();
}

#[test]
fn the_last_blocks_of_a_batch_close_the_resource() {
    let _machine = machine();
    let before = driver_free();
    let pool = made(PoolOptions::default());
    let ptrs = take(&pool, &SIZES, LEGACY);
    let kept = pool.light();
    drop(pool);
    assert_eq!(kept.references(), (0, 9));
    let named: Named = *kept;
    named.deallocate_many(&ptrs, &SIZES, 256, LEGACY).unwrap();
    assert!(driver_free() < before);
    drop(kept);
    assert_eq!(driver_free(), before);
}

#[test]
fn a_capturing_stream_and_another_device_are_refused() {
    let _machine = machine();
    let pool = made(PoolOptions::default());
    let far = StreamObject::create(1, true).unwrap();
    let mut out = [3; 2];
    assert!(matches!(pool.allocate_many(&[1, 2], 256, object(&far), &mut out), Err(Error::Invalid(_))));
    assert_eq!((out, live(&pool)), ([0; 2], (0, 0, (1, 0))));
    // A free on a stream of another device: nothing is freed, and the first is named.
    let ptrs = take(&pool, &[100, 200], LEGACY);
    match pool.deallocate_many(&ptrs, &[100, 200], 256, object(&far)) {
        Err(Error::OneOf(one)) => assert_eq!((one.at, one.freed), (0, 0)),
        other => panic!("{other:?}"),
    }
    assert_eq!(live(&pool).1, 2);
    pool.deallocate_many(&ptrs, &[100, 200], 256, LEGACY).unwrap();
}

#[test]
fn threads_share_a_pool_in_batches() {
    let _machine = machine();
    let pool = made(PoolOptions { maximum_bytes: Some(128 * MIB), ..Default::default() });
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (pool, barrier) = (&pool, &barrier);
            scope.spawn(move || {
                let stream = StreamObject::create(0, true).unwrap();
                barrier.wait();
                for round in 0..60 {
                    let sizes: Vec<usize> =
                        (0..40).map(|i| [64, 700, 5000, 0, 50_000][(i + round + thread) % 5] * (i % 3 + 1)).collect();
                    let ptrs = take(pool, &sizes, object(&stream));
                    pool.deallocate_many(&ptrs, &sizes, 256, object(&stream)).unwrap();
                }
            });
        }
    });
    assert_eq!(live(&pool), (0, 0, (1, 0)));
    check(&pool);
    assert_eq!(sim::violations(), 0);
}

#[test]
fn many_buffers_live_and_go_by_themselves() {
    let _machine = machine();
    let pool = made(PoolOptions { maximum_bytes: Some(16 * MIB), ..Default::default() });
    let home = StreamHold::raw(RawStream::NULL);
    let mut buffers = Buffer::create_many(&SIZES, 0, &home, &pool.light()).unwrap();
    assert_eq!(buffers.len(), 9);
    for (buffer, bytes) in buffers.iter().zip(SIZES) {
        assert_eq!((buffer.bytes(), buffer.ptr() == 0, buffer.device()), (bytes, bytes == 0, 0));
    }
    // One without bytes keeps the resource too.
    assert_eq!(pool.references(), (1, 9));
    drop(buffers.swap_remove(2));
    assert_eq!((live(&pool).1, pool.references()), (8, (1, 8)));
    let error = Buffer::create_many(&[1000, 12 << 20], 0, &home, &pool.light()).err().unwrap();
    assert!(error.is_out_of_memory());
    assert_eq!((live(&pool).1, pool.references()), (8, (1, 8)));
    drop(buffers);
    assert_eq!(live(&pool), (0, 0, (1, 0)));
}
