//! The host has waited for a stream: what was freed on it serves others at once, and where it has not, nothing is believed.

#![allow(missing_docs)]

#[path = "pool_common.rs"]
mod common;

use std::time::Duration;

use common::*;
use tenure_core::ops;
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::{MemoryResource, Resource};
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_driver::sim;

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;
const BIG: u64 = 8 * MIB;
const DELAY: Duration = Duration::from_millis(15);

fn current() -> tenure_driver::Current {
    tenure_core::device::driver().unwrap().device(0).unwrap().enter().unwrap()
}

/// A pool in which two blocks of [`BIG`] have no room, known to both streams.
fn tight(a: StreamRef<'_>, b: StreamRef<'_>) -> Pool {
    let pool = pool(PoolOptions { maximum_bytes: Some(12 * MIB), ..Default::default() });
    for stream in [a, b] {
        let ptr = allocate(&pool, 1000, stream).unwrap();
        free(&pool, ptr, 1000, stream);
    }
    pool
}

/// A block that was filled on `a`, is read there much later, and freed.
fn use_late(pool: &Pool, a: StreamRef<'_>) -> u64 {
    let ptr = allocate(pool, BIG, a).unwrap();
    sim::launch(a.raw.as_raw(), &[], &[(ptr, BIG as usize, 0x11)]).unwrap();
    let verify = sim::Access::Verify { at: ptr, len: BIG as usize, byte: 0x11 };
    sim::launch_for(a.raw.as_raw(), DELAY, &[verify]).unwrap();
    free(pool, ptr, BIG, a);
    ptr
}

/// `b` takes the block and overwrites it.
fn take(pool: &Pool, b: StreamRef<'_>) -> u64 {
    let ptr = allocate(pool, BIG, b).unwrap();
    sim::launch(b.raw.as_raw(), &[], &[(ptr, BIG as usize, 0xee)]).unwrap();
    free(pool, ptr, BIG, b);
    ptr
}

fn order_calls() -> u64 {
    ["cuEventRecord", "cuEventQuery", "cuStreamWaitEvent", "cuMemFree", "cuMemCreate"].map(sim::calls).into_iter().sum()
}

#[test]
fn after_a_wait_the_memory_is_anybodys() {
    let _machine = machine();
    let _current = current();
    let wrong = sim::mismatches();
    for raw in [false, true] {
        for thoroughly in [false, true] {
            let a = StreamObject::create(0, true).unwrap();
            let b = StreamObject::create(0, true).unwrap();
            let (a, b) = if raw { (StreamRef::raw(a.raw()), object(&b)) } else { (object(&a), object(&b)) };
            let pool = tight(a, b);
            let ptr = use_late(&pool, a);
            ops::synchronize(a, -1).unwrap();
            pool.stream_synchronized(a, thoroughly).unwrap();
            assert!(pool.property("proven_bytes").unwrap() >= BIG);
            let before = order_calls();
            assert_eq!(take(&pool, b), ptr, "{raw} {thoroughly}");
            assert_eq!(order_calls(), before, "it was proven: nothing is asked, nothing waits");
            assert_eq!(pool.info().device_proofs, 0);
            pool.check().unwrap();
            tenure_core::device::prove(0).unwrap();
        }
    }
    assert_eq!(sim::mismatches(), wrong);
    assert_eq!(sim::violations(), 0);
}

#[test]
fn a_note_without_a_wait_is_not_believed() {
    let _machine = machine();
    let _current = current();
    let wrong = sim::mismatches();
    for non_blocking in [true, false] {
        for raw in [false, true] {
            let a = StreamObject::create(0, non_blocking).unwrap();
            let b = StreamObject::create(0, true).unwrap();
            let (a, b) = if raw { (StreamRef::raw(a.raw()), object(&b)) } else { (object(&a), object(&b)) };
            let pool = tight(a, b);
            let ptr = use_late(&pool, a);
            pool.stream_synchronized(a, true).unwrap();
            assert!(pool.property("proven_bytes").unwrap() < BIG);
            // It is covered by an event now, a raw value's too: no wait for the device.
            assert_eq!(take(&pool, b), ptr);
            assert_eq!(pool.info().device_proofs, 0, "{non_blocking} {raw}");
            tenure_core::device::prove(0).unwrap();
            pool.check().unwrap();
        }
    }
    assert_eq!(sim::mismatches(), wrong, "memory was handed over before its last use");
}

#[test]
fn an_idle_blocking_stream_says_nothing_of_the_legacy_one() {
    let _machine = machine();
    let _current = current();
    let wrong = sim::mismatches();
    let a = StreamObject::create(0, false).unwrap();
    let b = StreamObject::create(0, true).unwrap();
    let pool = tight(object(&a), object(&b));
    // Used on the legacy stream, freed on a blocking one, which is in implicit order with it and has no work of its own.
    let ptr = allocate(&pool, BIG, LEGACY).unwrap();
    sim::launch(LEGACY.raw.as_raw(), &[], &[(ptr, BIG as usize, 0x11)]).unwrap();
    let verify = sim::Access::Verify { at: ptr, len: BIG as usize, byte: 0x11 };
    sim::launch_for(LEGACY.raw.as_raw(), DELAY, &[verify]).unwrap();
    free(&pool, ptr, BIG, object(&a));
    pool.stream_synchronized(object(&a), true).unwrap();
    assert_eq!(take(&pool, object(&b)), ptr);
    tenure_core::device::prove(0).unwrap();
    assert_eq!(sim::mismatches(), wrong, "the legacy stream was still at it");
}

#[test]
fn what_is_freed_and_used_again_meanwhile_is_not_covered() {
    let _machine = machine();
    let _current = current();
    let wrong = sim::mismatches();
    let a = StreamObject::create(0, true).unwrap();
    let b = StreamObject::create(0, true).unwrap();
    let (a, b) = (object(&a), object(&b));
    let pool = tight(a, b);
    use_late(&pool, a);
    ops::synchronize(a, -1).unwrap();
    // After the wait and before the note.
    let ptr = use_late(&pool, a);
    pool.stream_synchronized(a, true).unwrap();
    assert_eq!(take(&pool, b), ptr);
    tenure_core::device::prove(0).unwrap();
    assert_eq!(sim::mismatches(), wrong);
}

#[test]
fn small_pieces_of_every_thread_are_noted_thoroughly() {
    let _machine = machine();
    let _current = current();
    let a = StreamObject::create(0, true).unwrap();
    let b = StreamObject::create(0, true).unwrap();
    let (a, b) = (object(&a), object(&b));
    let pool = tight(a, b);
    let all_live = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let ptrs: Vec<_> = (0..20).map(|_| allocate(&pool, 5000, a).unwrap()).collect();
                all_live.wait();
                ptrs.iter().for_each(|ptr| free(&pool, *ptr, 5000, a));
            });
        }
    });
    let unproven = pool.info().unproven_bytes;
    assert!(unproven >= 60 * 5000, "{unproven}");
    ops::synchronize(a, -1).unwrap();
    pool.stream_synchronized(a, false).unwrap();
    pool.stream_synchronized(a, true).unwrap();
    assert!(pool.info().unproven_bytes <= unproven - 60 * 5000, "{:?}", pool.info());
    // The stream has it all the same, and so have the desks.
    let ptrs: Vec<_> = (0..60).map(|_| allocate(&pool, 5000, a).unwrap()).collect();
    ptrs.iter().for_each(|ptr| free(&pool, *ptr, 5000, a));
    pool.check().unwrap();
    pool.trim(0).unwrap();
    assert_eq!(pool.info().reserved_bytes, 0);
}

#[test]
fn whatever_fails_all_stays_as_it_was() {
    let _machine = machine();
    let _current = current();
    let wrong = sim::mismatches();
    let mut failures = 0;
    for call in
        ["cuStreamIsCapturing", "cuStreamGetId", "cuStreamQuery", "cuEventCreate", "cuEventRecord", "cuEventQuery"]
    {
        for after in 0..3 {
            for raw in [false, true] {
                for non_blocking in [false, true] {
                    let a = StreamObject::create(0, non_blocking).unwrap();
                    let b = StreamObject::create(0, true).unwrap();
                    let (a, b) = if raw { (StreamRef::raw(a.raw()), object(&b)) } else { (object(&a), object(&b)) };
                    let pool = tight(a, b);
                    let ptr = use_late(&pool, a);
                    let before = pool.info();
                    sim::fail_next(call, 999, after).unwrap();
                    let result = pool.stream_synchronized(a, true);
                    sim::fail_clear();
                    failures += u32::from(result.is_err());
                    assert_eq!(pool.info(), before, "{call} {after}");
                    assert_eq!(take(&pool, b), ptr);
                    // An object can be asked later: nothing was hidden from that.
                    assert!(raw || pool.info().device_proofs == 0, "{call} {after}");
                    tenure_core::device::prove(0).unwrap();
                    pool.check().unwrap();
                }
            }
        }
    }
    assert!(failures > 10, "{failures}");
    assert_eq!(sim::mismatches(), wrong);
}

#[test]
fn streams_of_other_devices_and_one_stream_alone_cost_nothing() {
    let _machine = machine();
    let _current = current();
    let pool = resource(pool(PoolOptions::default()));
    let a = StreamObject::create(0, true).unwrap();
    let ptr = pool.allocate(BIG as usize, 256, object(&a)).unwrap();
    pool.deallocate(ptr, BIG as usize, 256, object(&a)).unwrap();
    let calls = || sim::calls_all().into_values().sum::<u64>();
    let before = calls();
    ops::note_sync(object(&a)).unwrap();
    assert_eq!(calls(), before);
    let far = StreamObject::create(1, true).unwrap();
    let ptr = pool.allocate(100, 256, LEGACY).unwrap();
    pool.deallocate(ptr, 100, 256, LEGACY).unwrap();
    let before = calls();
    ops::note_sync(object(&far)).unwrap();
    assert_eq!(calls(), before);
}

#[test]
fn a_wait_for_the_device_is_one_for_each_stream() {
    let _machine = machine();
    let _current = current();
    let wrong = sim::mismatches();
    let a = StreamObject::create(0, true).unwrap();
    let b = StreamObject::create(0, true).unwrap();
    let (a, b) = (object(&a), object(&b));
    let pool: Resource = resource(tight(a, b));
    let inner = pool.downcast::<Pool>().unwrap();
    let ptr = use_late(inner, a);
    // Not waited for: nothing is proven.
    ops::noted_device(0);
    assert!(inner.property("proven_bytes").unwrap() < BIG);
    tenure_core::device::driver().unwrap().device(0).unwrap().synchronize().unwrap();
    ops::noted_device(1);
    assert!(inner.property("proven_bytes").unwrap() < BIG);
    ops::noted_device(0);
    assert!(inner.property("proven_bytes").unwrap() >= BIG);
    assert_eq!(take(inner, b), ptr);
    assert_eq!(inner.info().device_proofs, 0);
    tenure_core::device::prove(0).unwrap();
    assert_eq!(sim::mismatches(), wrong);
}

/// A pool with room to grow, known to three streams, and what it makes of a wait of `b` for `a`.
fn roomy(streams: [StreamRef<'_>; 3]) -> Pool {
    let pool = pool(PoolOptions { maximum_bytes: Some(256 * MIB), ..Default::default() });
    for stream in streams {
        let ptr = allocate(&pool, 1000, stream).unwrap();
        free(&pool, ptr, 1000, stream);
    }
    pool
}

#[test]
fn what_a_stream_has_waited_for_is_at_hand() {
    let _machine = machine();
    let _current = current();
    let wrong = sim::mismatches();
    for raw in [false, true] {
        for thoroughly in [false, true] {
            let made = [0; 3].map(|_| StreamObject::create(0, true).unwrap());
            let [a, b, c] = [0, 1, 2].map(|i| object(&made[i]));
            let (a, b) = if raw { (StreamRef::raw(a.raw), StreamRef::raw(b.raw)) } else { (a, b) };
            let pool = roomy([a, b, c]);
            let live: Vec<u64> = (0..4).map(|_| allocate(&pool, BIG, a).unwrap()).collect();
            for ptr in &live {
                sim::launch(a.raw.as_raw(), &[], &[(*ptr, BIG as usize, 0x11)]).unwrap();
                let verify = sim::Access::Verify { at: *ptr, len: BIG as usize, byte: 0x11 };
                sim::launch_for(a.raw.as_raw(), DELAY, &[verify]).unwrap();
                free(&pool, *ptr, BIG, a);
            }
            let reserved = pool.info().reserved_bytes;
            ops::order_after(b, a, -1).unwrap();
            pool.stream_waits(b, a, thoroughly).unwrap();
            let before = order_calls();
            // The third stream has waited for nobody.
            let theirs = allocate(&pool, BIG, c).unwrap();
            assert!(!live.contains(&theirs), "{raw} {thoroughly}");
            let reserved_then = pool.info().reserved_bytes;
            assert!(reserved_then > reserved);
            let asked = order_calls();
            let taken: Vec<u64> = (0..4).map(|_| allocate(&pool, BIG, b).unwrap()).collect();
            assert_eq!(order_calls(), asked, "no question and no wait; the other stream took {}", asked - before);
            assert!(taken.iter().all(|ptr| live.contains(ptr)), "{raw} {thoroughly}");
            assert_eq!(pool.info().reserved_bytes, reserved_then, "the pool did not grow");
            for ptr in &taken {
                sim::launch(b.raw.as_raw(), &[], &[(*ptr, BIG as usize, 0xee)]).unwrap();
                free(&pool, *ptr, BIG, b);
            }
            free(&pool, theirs, BIG, c);
            tenure_core::device::prove(0).unwrap();
            pool.check().unwrap();
        }
    }
    assert_eq!(sim::mismatches(), wrong, "memory was handed over before its last use");
    assert_eq!(sim::violations(), 0);
}

#[test]
fn a_wait_covers_what_was_freed_before_it_only() {
    let _machine = machine();
    let _current = current();
    let wrong = sim::mismatches();
    let made = [0; 3].map(|_| StreamObject::create(0, true).unwrap());
    let [a, b, c] = [0, 1, 2].map(|i| object(&made[i]));
    let pool = roomy([a, b, c]);
    let first = use_late(&pool, a);
    ops::order_after(b, a, -1).unwrap();
    pool.stream_waits(b, a, false).unwrap();
    // Freed since, and, once another stream asks, under an event of its own that the wait was not for.
    let kept = allocate(&pool, BIG, a).unwrap();
    let second = use_late(&pool, a);
    assert_eq!(kept, first);
    let others = [0; 2].map(|_| {
        let ptr = allocate(&pool, BIG, b).unwrap();
        // The second time, it is sealed.
        pool.stream_synchronized(a, true).unwrap();
        ptr
    });
    assert!(!others.contains(&second));
    let waits = sim::calls("cuStreamWaitEvent");
    pool.stream_waits(b, a, false).unwrap();
    assert_eq!(sim::calls("cuStreamWaitEvent"), waits + 1);
    pool.stream_waits(b, a, false).unwrap();
    assert_eq!(sim::calls("cuStreamWaitEvent"), waits + 1, "nothing was freed since");
    assert_eq!(take(&pool, b), second);
    free(&pool, kept, BIG, a);
    others.into_iter().for_each(|ptr| free(&pool, ptr, BIG, b));
    tenure_core::device::prove(0).unwrap();
    pool.check().unwrap();
    assert_eq!(sim::mismatches(), wrong, "memory was handed over before its last use");
}

#[test]
fn a_wait_that_nobody_made_is_not_believed() {
    let _machine = machine();
    let _current = current();
    let wrong = sim::mismatches();
    let made = [0; 3].map(|_| StreamObject::create(0, true).unwrap());
    let [a, b, c] = [0, 1, 2].map(|i| object(&made[i]));
    let pool: Resource = resource(roomy([a, b, c]));
    let inner = pool.downcast::<Pool>().unwrap();
    let ptr = use_late(inner, a);
    ops::note_wait(b, a).unwrap();
    assert_eq!(take(inner, b), ptr);
    tenure_core::device::prove(0).unwrap();
    assert_eq!(sim::mismatches(), wrong, "memory was handed over before its last use");
}

#[test]
fn a_wait_of_the_ladder_is_remembered() {
    let _machine = machine();
    let _current = current();
    let wrong = sim::mismatches();
    let a = StreamObject::create(0, true).unwrap();
    let b = StreamObject::create(0, true).unwrap();
    let (a, b) = (object(&a), object(&b));
    let pool = pool(PoolOptions { maximum_bytes: Some(18 * MIB), ..Default::default() });
    for stream in [a, b] {
        let ptr = allocate(&pool, 1000, stream).unwrap();
        free(&pool, ptr, 1000, stream);
    }
    let kept = allocate(&pool, BIG, a).unwrap();
    let freed = [use_late(&pool, a), kept];
    free(&pool, kept, BIG, a);
    // An event covers what is sealed; the first block is taken behind a wait for it.
    pool.stream_synchronized(a, true).unwrap();
    let first = allocate(&pool, 4 * MIB, b).unwrap();
    let waits = sim::calls("cuStreamWaitEvent");
    let second = allocate(&pool, 4 * MIB, b).unwrap();
    assert_eq!(sim::calls("cuStreamWaitEvent"), waits, "of one event, one wait");
    assert!(freed.iter().any(|ptr| (*ptr..*ptr + BIG).contains(&first)));
    for ptr in [first, second] {
        sim::launch(b.raw.as_raw(), &[], &[(ptr, 4 * MIB as usize, 0xee)]).unwrap();
        free(&pool, ptr, 4 * MIB, b);
    }
    tenure_core::device::prove(0).unwrap();
    pool.check().unwrap();
    assert_eq!(sim::mismatches(), wrong, "memory was handed over before its last use");
}

#[test]
fn notes_race_with_frees_and_the_end_of_streams() {
    let _machine = machine();
    let wrong = sim::mismatches();
    // Among the resources of the process, so that it hears of the ends of streams.
    let kept = resource(pool(PoolOptions { maximum_bytes: Some(64 * MIB), ..Default::default() }));
    let pool = kept.downcast::<Pool>().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            scope.spawn(move || {
                let _current = current();
                for round in 0..20u64 {
                    let stream = StreamObject::create(0, thread % 2 == 0).unwrap();
                    let stream = object(&stream);
                    for bytes in [300, MIB * (1 + round % 3), 40_000] {
                        let ptr = allocate(pool, bytes, stream).unwrap();
                        sim::launch(stream.raw.as_raw(), &[], &[(ptr, bytes as usize, thread)]).unwrap();
                        let verify = sim::Access::Verify { at: ptr, len: bytes as usize, byte: thread };
                        sim::launch_for(stream.raw.as_raw(), Duration::from_micros(200), &[verify]).unwrap();
                        free(pool, ptr, bytes, stream);
                        pool.stream_synchronized(stream, round % 2 == 0).unwrap();
                        if round % 3 == 0 {
                            pool.stream_waits(stream, LEGACY, false).unwrap();
                            pool.stream_waits(LEGACY, stream, true).unwrap();
                        }
                        if round % 5 == 0 {
                            pool.device_synchronized(0).unwrap();
                        }
                    }
                }
            });
        }
    });
    tenure_core::device::prove(0).unwrap();
    assert_eq!(sim::mismatches(), wrong, "memory was handed over before its last use");
    assert_eq!(sim::violations(), 0);
    pool.check().unwrap();
    assert_eq!(pool.info().live_count, 0);
    pool.trim(0).unwrap();
    assert_eq!(pool.info().reserved_bytes, 0);
}
