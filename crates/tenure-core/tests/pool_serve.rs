//! The pool on the simulated device: serving, checking frees, limits, growth and its failures, giving back.

#![allow(missing_docs)]

#[path = "pool_common.rs"]
mod common;

use common::*;
use tenure_core::error::{Error, Misuse, MisuseKind};
use tenure_core::pool::PoolOptions;
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{MemoryResource, Request};
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_driver::sim;

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;

#[test]
fn a_pool_serves_and_takes_back() {
    let _machine = machine();
    let pool = pool(PoolOptions::default());
    assert!(pool.has_own_ranges());
    assert_eq!(pool.info().reserved_bytes, 0, "nothing is taken before it is asked for");
    let a = allocate(&pool, 1000, LEGACY).unwrap();
    let b = allocate(&pool, 3 * MIB, LEGACY).unwrap();
    assert_ne!(a, b);
    let info = pool.info();
    assert_eq!((info.live_count, info.live_bytes), (2, 1024 + 3 * MIB));
    assert_eq!(info.live_bytes + info.cached_bytes, info.reserved_bytes);
    assert_eq!(info.reserved_bytes, 6 * MIB, "2 MiB for the small zone, 4 MiB for the large one");
    let block = pool.find(b + 12345).unwrap();
    assert_eq!((block.ptr, block.bytes as u64, block.owner, block.device), (b, 3 * MIB, 7, 0));
    assert_eq!(pool.find(b + 3 * MIB), None);
    free(&pool, a, 1000, LEGACY);
    free(&pool, b, 3 * MIB, LEGACY);
    let again = allocate(&pool, 3 * MIB, LEGACY).unwrap();
    assert_eq!(again, b);
    free(&pool, again, 3 * MIB, LEGACY);
    assert_eq!(pool.info().live_count, 0);
    assert_eq!(pool.info().peak_live_bytes, 1024 + 3 * MIB);
    pool.check().unwrap();
}

#[test]
fn the_memory_is_real_and_the_pools_end_gives_all_back() {
    let _machine = machine();
    shared::cuda().unwrap();
    tenure_core::device::prepare_proof(0).unwrap();
    let (before, mismatches) = (driver_free(), sim::mismatches());
    let pool = pool(PoolOptions::default());
    let ptr = allocate(&pool, 5 * MIB, LEGACY).unwrap();
    assert_eq!(before - driver_free(), 6 * MIB);
    assert_eq!(shared::cuda().unwrap().body().info().reserved_bytes, 6 * MIB, "the upstream shows them too");
    let current = tenure_core::device::driver().unwrap().device(0).unwrap().enter().unwrap();
    sim::launch(LEGACY.raw.as_raw(), &[], &[(ptr, 5 << 20, 0x5a)]).unwrap();
    sim::launch_for(
        LEGACY.raw.as_raw(),
        std::time::Duration::ZERO,
        &[sim::Access::Verify { at: ptr, len: 5 << 20, byte: 0x5a }],
    )
    .unwrap();
    drop(current);
    free(&pool, ptr, 5 * MIB, LEGACY);
    drop(pool);
    assert_eq!(driver_free(), before);
    assert_eq!(sim::mismatches(), mismatches);
}

#[test]
fn the_hot_pair_makes_no_driver_call_on_a_default_stream() {
    let _machine = machine();
    let pool = pool(PoolOptions::default());
    let own = StreamObject::create(0, true).unwrap();
    for stream in [LEGACY, StreamRef::raw(tenure_driver::RawStream::PER_THREAD)] {
        for bytes in [1, 256, 5000, 64 << 10, 4 * MIB] {
            let ptr = allocate(&pool, bytes, stream).unwrap();
            free(&pool, ptr, bytes, stream);
        }
        sim::reset_calls();
        for bytes in [1, 256, 5000, 64 << 10, 4 * MIB] {
            let ptr = allocate(&pool, bytes, stream).unwrap();
            free(&pool, ptr, bytes, stream);
            let ptr = pool.try_allocate(&request(bytes), stream).unwrap();
            pool.try_deallocate(ptr, &request(bytes), stream).unwrap();
        }
        assert_eq!(sim::calls_all(), Default::default(), "{stream:?}");
    }
    let ptr = allocate(&pool, 4 * MIB, object(&own)).unwrap();
    free(&pool, ptr, 4 * MIB, object(&own));
    sim::reset_calls();
    let ptr = allocate(&pool, 4 * MIB, object(&own)).unwrap();
    free(&pool, ptr, 4 * MIB, object(&own));
    assert_eq!(sim::calls_all().into_iter().collect::<Vec<_>>(), [("cuStreamIsCapturing", 1)]);
}

fn misuse(error: Error) -> Misuse {
    match error {
        Error::Misuse(m) => m,
        other => panic!("{other} is no misuse"),
    }
}

#[test]
fn every_wrong_free_is_told_apart_and_changes_nothing() {
    let _machine = machine();
    let pool = pool(PoolOptions::default());
    // One block in a run, one whole; the checks are the same.
    for bytes in [5000, 100_000] {
        let ptr = allocate(&pool, bytes, LEGACY).unwrap();
        let before = pool.info();
        let wrong = |ptr, request: Request| misuse(pool.deallocate(ptr, &request, LEGACY).unwrap_err());
        let right = request(bytes);
        let held = pool.find(ptr).unwrap().bytes as u64;

        let m = wrong(ptr + 256, right);
        assert_eq!((m.kind, m.owner, m.owner_bytes), (MisuseKind::InteriorPointer, 7, held));
        assert_eq!(wrong(ptr + 1, right).kind, MisuseKind::InteriorPointer);
        let m = wrong(ptr, Request { owner: 8, ..right });
        assert_eq!((m.kind, m.owner, m.asked), (MisuseKind::WrongResource, 7, 8));
        let m = wrong(ptr, Request { bytes: 2 * bytes as usize, ..right });
        assert_eq!((m.kind, m.owner_bytes), (MisuseKind::WrongSize, held));
        assert_eq!(wrong(ptr, Request { bytes: 1, ..right }).kind, MisuseKind::WrongSize);
        let align = 1usize << (ptr.trailing_zeros() + 1).min(21);
        if !ptr.is_multiple_of(align as u64) {
            assert_eq!(wrong(ptr, Request { align, ..right }).kind, MisuseKind::WrongAlignment);
        }
        for unknown in [0, 256, u64::MAX - 255, ptr + (1 << 40)] {
            let m = wrong(unknown, right);
            assert_eq!((m.kind, m.owner, m.owner_bytes), (MisuseKind::UnknownPointer, 0, 0), "{unknown:#x}");
        }
        assert_eq!(pool.info(), before);
        assert!(matches!(pool.try_deallocate(ptr, &Request { owner: 8, ..right }, LEGACY), Err(Error::Misuse(_))));

        free(&pool, ptr, bytes, LEGACY);
        let after = pool.info();
        assert_eq!(wrong(ptr, right).kind, MisuseKind::DoubleFree);
        assert_eq!(pool.info(), after);
    }
    // Sizes of one class cannot be told apart, and need not be.
    let ptr = allocate(&pool, 5000, LEGACY).unwrap();
    free(&pool, ptr, 5001, LEGACY);
    pool.check().unwrap();
}

#[test]
fn alignments_up_to_two_mebibytes() {
    let _machine = machine();
    let pool = pool(PoolOptions::default());
    let mut held = Vec::new();
    for round in 0..4u64 {
        for power in 0..22 {
            let align = 1usize << power;
            for bytes in [1, 3000, 40_000, 3 << 20] {
                let request = Request { bytes: bytes + round as usize, align, owner: 7, flags: 0 };
                let ptr = pool.allocate(&request, LEGACY).unwrap();
                assert_eq!(ptr % align as u64, 0, "{request:?}");
                if bytes < 3 << 20 || round == 0 && power % 5 == 0 {
                    held.push((ptr, request));
                } else {
                    pool.deallocate(ptr, &request, LEGACY).unwrap();
                }
            }
        }
        pool.check().unwrap();
    }
    for (ptr, request) in held {
        pool.deallocate(ptr, &request, LEGACY).unwrap();
    }
    pool.trim(0).unwrap();
    assert_eq!(pool.info().reserved_bytes, 0);
}

#[test]
fn a_maximum_is_hard_and_can_be_reached() {
    let _machine = machine();
    for (initial, maximum) in [(0, 64 * MIB), (64 * MIB, 64 * MIB), (2 * MIB, 64 * MIB), (0, 5 * MIB + 256 * 3)] {
        let options = PoolOptions { initial_bytes: initial, maximum_bytes: Some(maximum), ..Default::default() };
        let pool = pool(options);
        let all = allocate(&pool, maximum, LEGACY).unwrap_or_else(|e| panic!("{initial} {maximum}: {e}"));
        let error = allocate(&pool, 1, LEGACY).unwrap_err();
        let Error::OutOfMemory(oom) = &error else { panic!("{error}") };
        assert_eq!((oom.requested, oom.live, oom.limit, oom.largest_free), (1, maximum, maximum, 0));
        assert!(oom.reserved >= maximum && oom.driver_total == DEVICE && oom.driver_free > 0, "{oom:?}");
        assert_eq!(oom.resource, "pool > cuda");
        free(&pool, all, maximum, LEGACY);
        // Small ones do not eat what the large one needs.
        let small: Vec<u64> = (0..100).map(|_| allocate(&pool, 100, LEGACY).unwrap()).collect();
        for ptr in small {
            free(&pool, ptr, 100, LEGACY);
        }
        let all = allocate(&pool, maximum, LEGACY).unwrap_or_else(|e| panic!("{initial} {maximum}, again: {e}"));
        free(&pool, all, maximum, LEGACY);
        assert!(allocate(&pool, maximum + 256, LEGACY).is_err());
        pool.check().unwrap();
    }
}

#[test]
fn the_initial_size_is_taken_at_once_or_refused() {
    let _machine = machine();
    let before = driver_free();
    let start = pool(PoolOptions { initial_bytes: 10 * MIB, ..Default::default() });
    assert_eq!(start.info().reserved_bytes, 10 * MIB);
    let a = allocate(&start, 100, LEGACY).unwrap();
    let b = allocate(&start, 6 * MIB, LEGACY).unwrap();
    assert_eq!(start.info().reserved_bytes, 10 * MIB, "the initial memory serves small and large sizes");
    free(&start, a, 100, LEGACY);
    free(&start, b, 6 * MIB, LEGACY);
    drop(start);
    let cuda = shared::cuda().unwrap();
    let make = |options| tenure_core::pool::Pool::new(cuda.clone(), 0, options);
    let error = make(PoolOptions { initial_bytes: 2 * DEVICE, ..Default::default() }).err().unwrap();
    assert!(error.is_out_of_memory(), "{error}");
    let error = make(PoolOptions { initial_bytes: 2, maximum_bytes: Some(1), ..Default::default() }).err().unwrap();
    assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains("maximum_bytes"), "{error}");
    let error =
        make(PoolOptions { initial_bytes: 4 * MIB, maximum_bytes: Some(MIB), ..Default::default() }).err().unwrap();
    assert!(error.to_string().contains("initial_bytes"), "{error}");
    let error = make(PoolOptions { initial_bytes: u64::MAX, ..Default::default() }).err().unwrap();
    assert!(error.to_string().contains("initial_bytes"), "{error}");
    assert!(matches!(tenure_core::pool::Pool::new(cuda.clone(), 9, PoolOptions::default()), Err(Error::Invalid(_))));
    assert_eq!(driver_free(), before);
}

#[test]
fn a_device_that_is_full_is_out_of_memory_with_every_figure() {
    let _machine = machine();
    let pool = pool(PoolOptions::default());
    let error = allocate(&pool, 2 * DEVICE, LEGACY).unwrap_err();
    let Error::OutOfMemory(oom) = error else { panic!("{error}") };
    assert_eq!((oom.requested, oom.driver_total, oom.live), (2 * DEVICE, DEVICE, 0));
    assert_eq!(pool.info().reserved_bytes, 0);
    // Huge sizes do not overflow anything on the way.
    for bytes in [1 << 50, (1 << 56) - 1, 1 << 56] {
        assert!(allocate(&pool, bytes, LEGACY).unwrap_err().is_out_of_memory());
    }
    pool.check().unwrap();
}

#[test]
fn idle_pages_move_to_where_they_are_needed() {
    let _machine = machine();
    let pool = pool(PoolOptions { maximum_bytes: Some(64 * MIB), ..Default::default() });
    // Eight blocks of 8 MiB fill the pool; every second one stays.
    let blocks: Vec<u64> = (0..8).map(|_| allocate(&pool, 8 * MIB, LEGACY).unwrap()).collect();
    for ptr in blocks.iter().step_by(2) {
        free(&pool, *ptr, 8 * MIB, LEGACY);
    }
    // 32 MiB are idle in four holes: no hole holds it, the bytes suffice.
    let large = allocate(&pool, 32 * MIB, LEGACY).unwrap();
    assert_eq!(pool.info().reserved_bytes, 64 * MIB);
    pool.check().unwrap();
    free(&pool, large, 32 * MIB, LEGACY);
    for ptr in blocks.iter().skip(1).step_by(2) {
        free(&pool, *ptr, 8 * MIB, LEGACY);
    }
    assert_eq!(pool.trim(0).unwrap(), 64 << 20);
}

#[test]
fn trim_gives_back_all_idle_pages_and_keeps_what_it_is_told_to() {
    let _machine = machine();
    tenure_core::device::prepare_proof(0).unwrap();
    let before = driver_free();
    let pool = pool(PoolOptions::default());
    let blocks: Vec<u64> = (0..8).map(|_| allocate(&pool, 8 * MIB, LEGACY).unwrap()).collect();
    let small = allocate(&pool, 10, LEGACY).unwrap();
    assert_eq!(pool.trim(0).unwrap(), 0, "nothing is idle");
    for ptr in &blocks[1..] {
        free(&pool, *ptr, 8 * MIB, LEGACY);
    }
    let went = pool.trim(20 << 20).unwrap() as u64;
    let info = pool.info();
    assert!((20 * MIB..22 * MIB).contains(&info.cached_bytes), "{info:?}");
    assert_eq!(info.reserved_bytes, 66 * MIB - went);
    free(&pool, blocks[0], 8 * MIB, LEGACY);
    free(&pool, small, 10, LEGACY);
    assert!(pool.trim(0).unwrap() > 0);
    assert_eq!(pool.info().reserved_bytes, 0);
    assert_eq!(pool.info().peak_reserved_bytes, 66 * MIB);
    assert_eq!(driver_free(), before);
    assert_eq!(pool.trim(0).unwrap(), 0);
    let ptr = allocate(&pool, 8 * MIB, LEGACY).unwrap();
    free(&pool, ptr, 8 * MIB, LEGACY);
    pool.check().unwrap();
}

#[test]
fn a_failure_at_any_step_of_growing_changes_nothing() {
    let _machine = machine();
    tenure_core::device::prepare_proof(0).unwrap();
    let empty = driver_free();
    for call in ["cuMemCreate", "cuMemMap", "cuMemSetAccess"] {
        for after in 0..4 {
            for code in [2, 999] {
                let pool = pool(PoolOptions::default());
                let kept = allocate(&pool, 3 * MIB, LEGACY).unwrap();
                let (before, device) = (pool.info(), driver_free());
                // 14 MiB more: handles of 2 MiB each, so that each of several calls can be the one that fails.
                sim::fail_next(call, code, after).unwrap();
                let result = allocate(&pool, 15 * MIB, LEGACY);
                if sim::fail_clear() == 1 {
                    let ptr = result.expect("the failure was not met, so that nothing failed");
                    free(&pool, ptr, 15 * MIB, LEGACY);
                    assert!(call == "cuMemSetAccess" && after > 0, "{call} is called more than {after} times");
                    pool.trim(0).unwrap();
                } else {
                    let error = result.unwrap_err();
                    assert_eq!(matches!(error, Error::OutOfMemory(_)), code == 2, "{call} {after}: {error}");
                    assert_eq!(matches!(error, Error::Device(_)), code != 2, "{call} {after}: {error}");
                    let after = pool.info();
                    assert_eq!((after.live_bytes, after.reserved_bytes), (before.live_bytes, before.reserved_bytes));
                    assert_eq!(driver_free(), device, "{call}: pages were lost");
                    let ptr = allocate(&pool, 15 * MIB, LEGACY).expect("the second time nothing fails");
                    free(&pool, ptr, 15 * MIB, LEGACY);
                }
                free(&pool, kept, 3 * MIB, LEGACY);
                pool.check().unwrap();
                drop(pool);
                assert_eq!(driver_free(), empty, "{call} {after} {code}");
            }
        }
    }
}

#[test]
fn a_failure_while_a_pool_is_made_leaves_nothing() {
    let _machine = machine();
    tenure_core::device::prepare_proof(0).unwrap();
    let cuda = shared::cuda().unwrap();
    let empty = driver_free();
    for call in ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"] {
        sim::fail_next(call, 999, 0).unwrap();
        let options = PoolOptions { initial_bytes: 10 * MIB, ..Default::default() };
        let error = tenure_core::pool::Pool::new(cuda.clone(), 0, options).err().unwrap();
        assert!(matches!(error, Error::Device(_)), "{call}: {error}");
        assert_eq!(sim::fail_clear(), 0);
        assert_eq!(driver_free(), empty, "{call}");
    }
}

#[test]
fn a_failed_trim_keeps_what_could_not_go() {
    let _machine = machine();
    let pool = pool(PoolOptions::default());
    let ptr = allocate(&pool, 20 * MIB, LEGACY).unwrap();
    free(&pool, ptr, 20 * MIB, LEGACY);
    sim::fail_next("cuMemUnmap", 999, 0).unwrap();
    assert!(matches!(pool.trim(0), Err(Error::Device(_))));
    assert_eq!(pool.info().reserved_bytes, 20 * MIB);
    pool.check().unwrap();
    // A proof that fails leaves the pool as it was, too.
    sim::fail_next("cuMemFree", 999, 0).unwrap();
    assert!(pool.trim(0).is_err());
    sim::fail_clear();
    assert_eq!(pool.trim(0).unwrap() as u64, 20 * MIB);
    pool.check().unwrap();
}

#[test]
fn rolling_back_survives_a_second_failure() {
    let _machine = machine();
    tenure_core::device::prepare_proof(0).unwrap();
    let empty = driver_free();
    let pool = pool(PoolOptions::default());
    sim::fail_next("cuMemSetAccess", 999, 0).unwrap();
    sim::fail_next("cuMemUnmap", 999, 0).unwrap();
    assert!(allocate(&pool, 6 * MIB, LEGACY).is_err());
    assert_eq!(sim::fail_clear(), 0);
    // The piece that could not be unmapped is in nobody's way.
    let ptr = allocate(&pool, 6 * MIB, LEGACY).unwrap();
    let other = allocate(&pool, 9 * MIB, LEGACY).unwrap();
    pool.check().unwrap();
    free(&pool, ptr, 6 * MIB, LEGACY);
    free(&pool, other, 9 * MIB, LEGACY);
    drop(pool);
    assert_eq!(driver_free(), empty);
}

#[test]
fn streams_of_another_device_are_refused() {
    let _machine = machine();
    let pool = pool(PoolOptions::default());
    let foreign = StreamObject::create(1, true).unwrap();
    for stream in [object(&foreign), StreamRef::raw(foreign.raw())] {
        let error = allocate(&pool, 100, stream).unwrap_err();
        assert!(matches!(&error, Error::Invalid(t) if t.contains("device 1")), "{error}");
        let ptr = allocate(&pool, 100, LEGACY).unwrap();
        let error = pool.deallocate(ptr, &request(100), stream).unwrap_err();
        assert!(matches!(&error, Error::Invalid(t) if t.contains("device 1")), "{error}");
        assert_eq!(pool.info().live_count, 1, "nothing happened");
        free(&pool, ptr, 100, LEGACY);
    }
}

#[test]
fn try_calls_never_reach_the_driver() {
    let _machine = machine();
    let pool = pool(PoolOptions::default());
    assert!(matches!(pool.try_allocate(&request(MIB), LEGACY), Err(Error::WouldBlock)), "it would have to grow");
    let ptr = allocate(&pool, MIB, LEGACY).unwrap();
    let raw = StreamObject::create(0, true).unwrap();
    assert!(matches!(pool.try_allocate(&request(100), StreamRef::raw(raw.raw())), Err(Error::WouldBlock)));
    assert!(matches!(pool.try_deallocate(ptr, &request(MIB), StreamRef::raw(raw.raw())), Err(Error::WouldBlock)));
    assert_eq!(pool.info().live_count, 1);
    pool.try_deallocate(ptr, &request(MIB), LEGACY).unwrap();
    pool.try_allocate(&request(MIB), LEGACY).unwrap();
}
