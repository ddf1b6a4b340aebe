//! Stream order on the simulated device, whose streams really run later: whoever gets memory too early loses data here.
//!
//! The pattern: stream A is kept busy, then reads a block (a *verify* of the bytes it wrote), and the block is freed on A
//! while that read is still queued. Whoever gets those bytes on another stream writes other bytes into them. Without a
//! proof in between, the read of A meets the wrong bytes and `sim::mismatches` rises.

#![allow(missing_docs)]

#[path = "pool_common.rs"]
mod common;

use std::time::Duration;

use common::*;
use tenure_core::error::Error;
use tenure_core::pool::{Pool, PoolOptions, Prefer};
use tenure_core::resource::{MemoryResource, Request};
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_driver::{RawStream, sim};

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;
const DELAY: Duration = Duration::from_millis(60);

/// Makes device 0 current on this thread, as a program that launches kernels does.
fn current() -> tenure_driver::Current {
    tenure_core::device::driver().unwrap().device(0).unwrap().enter().unwrap()
}

/// Fills the block with `byte` and reads it much later, all on `stream`.
fn use_late(raw: RawStream, ptr: u64, bytes: u64, byte: u8) {
    sim::launch(raw.as_raw(), &[], &[(ptr, bytes as usize, byte)]).unwrap();
    let verify = sim::Access::Verify { at: ptr, len: bytes as usize, byte };
    sim::launch_for(raw.as_raw(), DELAY, &[verify]).unwrap();
}

/// Overwrites the block as soon as `stream` gets to it.
fn overwrite(raw: RawStream, ptr: u64, bytes: u64) {
    sim::launch(raw.as_raw(), &[], &[(ptr, bytes as usize, 0xee)]).unwrap();
}

fn settle() {
    tenure_core::device::prove(0).unwrap();
}

fn full_pool(prefer: Prefer) -> Pool {
    pool(PoolOptions { initial_bytes: 8 * MIB, maximum_bytes: Some(8 * MIB), prefer, ..Default::default() })
}

/// Everything of the pool is freed on `a` while `a` still reads it; then `b` asks for all of it.
fn hand_over(pool: &Pool, a: StreamRef<'_>, b: StreamRef<'_>, freed_as: StreamRef<'_>) -> Result<u64, Error> {
    let before = sim::mismatches();
    // Both streams are known before, so that nothing is left over for the newcomer.
    let one = allocate(pool, 8 * MIB, a).unwrap();
    use_late(a.raw, one, 8 * MIB, 0x11);
    free(pool, one, 8 * MIB, freed_as);
    let other = allocate(pool, 8 * MIB, b)?;
    overwrite(b.raw, other, 8 * MIB);
    free(pool, other, 8 * MIB, b);
    settle();
    assert_eq!(sim::mismatches(), before, "memory was handed over before its last use");
    pool.check().unwrap();
    Ok(other)
}

#[test]
fn another_streams_memory_comes_behind_a_wait_or_a_proof() {
    let _machine = machine();
    let _current = current();
    for prefer in [Prefer::Concurrency, Prefer::Footprint] {
        for (non_blocking_a, non_blocking_b) in [(true, true), (true, false), (false, true), (false, false)] {
            let a = StreamObject::create(0, non_blocking_a).unwrap();
            let b = StreamObject::create(0, non_blocking_b).unwrap();
            // Objects on both sides: an inserted wait, no wait of the host.
            let objects = full_pool(prefer);
            hand_over(&objects, object(&a), object(&b), object(&a)).unwrap();
            assert_eq!(objects.info().device_proofs, 0, "an event does");
            // A raw value cannot be asked later: the device is waited for.
            let raw = full_pool(prefer);
            hand_over(&raw, StreamRef::raw(a.raw()), object(&b), stored(a.raw())).unwrap();
            assert_eq!(raw.info().device_proofs, 1);
            // Legacy and blocking streams are in implicit order, others are not.
            for pair in [(LEGACY, object(&b)), (object(&a), LEGACY)] {
                let mixed = full_pool(prefer);
                hand_over(&mixed, pair.0, pair.1, pair.0).unwrap();
            }
        }
    }
}

#[test]
fn implicit_order_costs_no_wait() {
    let _machine = machine();
    let _current = current();
    let before = sim::mismatches();
    let blocking = StreamObject::create(0, false).unwrap();
    for (a, b) in [(LEGACY, object(&blocking)), (object(&blocking), LEGACY)] {
        let pool = full_pool(Prefer::Concurrency);
        let first = allocate(&pool, 8 * MIB, a).unwrap();
        use_late(a.raw, first, 8 * MIB, 0x22);
        free(&pool, first, 8 * MIB, a);
        sim::reset_calls();
        let second = allocate(&pool, 8 * MIB, b).unwrap();
        assert_eq!(first, second);
        let (records, waits) = (sim::calls("cuEventRecord"), sim::calls("cuStreamWaitEvent"));
        overwrite(b.raw, second, 8 * MIB);
        free(&pool, second, 8 * MIB, b);
        settle();
        // The legacy stream must have something between the block's former owner and its next one; nobody waits.
        assert_eq!((records, waits), (1, 0));
    }
    assert_eq!(sim::mismatches(), before);
}

#[test]
fn a_free_flagged_unproven_waits_for_the_device() {
    let _machine = machine();
    let _current = current();
    let before = sim::mismatches();
    let pool = full_pool(Prefer::Concurrency);
    let a = StreamObject::create(0, true).unwrap();
    let ptr = allocate(&pool, 8 * MIB, LEGACY).unwrap();
    // `a` uses it, and the free on the legacy stream says nothing of that.
    use_late(a.raw(), ptr, 8 * MIB, 0x33);
    let flagged = Request { flags: Request::UNPROVEN, ..request(8 * MIB) };
    pool.deallocate(ptr, &flagged, LEGACY).unwrap();
    assert_eq!(pool.info().unproven_bytes, 8 * MIB);
    assert!(matches!(pool.try_allocate(&request(MIB), LEGACY), Err(Error::WouldBlock)));
    let again = allocate(&pool, 8 * MIB, LEGACY).unwrap();
    overwrite(RawStream::NULL, again, 8 * MIB);
    settle();
    assert_eq!(sim::mismatches(), before);
    assert_eq!(pool.info().device_proofs, 1);
    free(&pool, again, 8 * MIB, LEGACY);
}

#[test]
fn a_free_in_the_order_of_a_stream_that_the_pool_does_not_know() {
    let _machine = machine();
    let _current = current();
    // The block is the legacy stream's; `user` uses it late and is named by the free: alive, or out of a buffer's memory.
    for carried in [true, false] {
        let before = sim::mismatches();
        let (user, other) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
        let pool = full_pool(Prefer::Concurrency);
        let warm = allocate(&pool, MIB, object(&other)).unwrap();
        free(&pool, warm, MIB, object(&other));
        let ptr = allocate(&pool, 8 * MIB, LEGACY).unwrap();
        use_late(user.raw(), ptr, 8 * MIB, 0x77);
        let named = if carried { StreamRef::raw(user.raw()) } else { stored(user.raw()) };
        free(&pool, ptr, 8 * MIB, named);
        for stream in [object(&other), LEGACY] {
            assert!(matches!(pool.try_allocate(&request(MIB), stream), Err(Error::WouldBlock)), "{carried}");
        }
        let again = allocate(&pool, 8 * MIB, object(&other)).unwrap();
        overwrite(other.raw(), again, 8 * MIB);
        settle();
        assert_eq!(sim::mismatches(), before, "carried: {carried}");
        assert_eq!(pool.info().device_proofs, 1);
        free(&pool, again, 8 * MIB, object(&other));
    }
}

#[test]
fn a_second_stream_gets_what_the_first_never_had() {
    let _machine = machine();
    let _current = current();
    let before = sim::mismatches();
    let pool = full_pool(Prefer::Concurrency);
    let other = StreamObject::create(0, true).unwrap();
    let ptr = allocate(&pool, 4 * MIB, LEGACY).unwrap();
    use_late(RawStream::NULL, ptr, 4 * MIB, 0x88);
    free(&pool, ptr, 4 * MIB, LEGACY);
    sim::reset_calls();
    let fresh = allocate(&pool, 4 * MIB, object(&other)).unwrap();
    assert_ne!(fresh, ptr);
    assert_eq!(sim::calls("cuEventRecord"), 0, "nobody ever had it");
    overwrite(other.raw(), fresh, 4 * MIB);
    free(&pool, fresh, 4 * MIB, object(&other));
    assert!(matches!(pool.try_allocate(&request(8 * MIB), object(&other)), Err(Error::WouldBlock)));
    let all = allocate(&pool, 8 * MIB, object(&other)).unwrap();
    overwrite(other.raw(), all, 8 * MIB);
    settle();
    assert_eq!(sim::mismatches(), before);
    free(&pool, all, 8 * MIB, object(&other));
}

#[test]
fn a_proof_that_fails_proves_nothing() {
    let _machine = machine();
    let _current = current();
    let before = sim::mismatches();
    let (pool, user) = (full_pool(Prefer::Concurrency), StreamObject::create(0, true).unwrap());
    let ptr = allocate(&pool, 8 * MIB, LEGACY).unwrap();
    use_late(user.raw(), ptr, 8 * MIB, 0x99);
    free(&pool, ptr, 8 * MIB, stored(user.raw()));
    sim::fail_next("cuMemFree", 999, 0).unwrap();
    let error = allocate(&pool, 8 * MIB, LEGACY).unwrap_err();
    assert!(matches!(error, Error::Device(_)), "{error}");
    assert_eq!(sim::fail_clear(), 0);
    assert!(matches!(pool.try_allocate(&request(8 * MIB), LEGACY), Err(Error::WouldBlock)));
    assert_eq!(pool.info().unproven_bytes, 8 * MIB);
    let again = allocate(&pool, 8 * MIB, LEGACY).unwrap();
    overwrite(RawStream::NULL, again, 8 * MIB);
    settle();
    assert_eq!(sim::mismatches(), before);
    free(&pool, again, 8 * MIB, LEGACY);
}

#[test]
fn a_pool_that_ends_waits_for_what_still_uses_it() {
    let _machine = machine();
    let _current = current();
    for chunks in [false, true] {
        let before = sim::mismatches();
        let options = PoolOptions { initial_bytes: 8 * MIB, plain_chunks: chunks, ..Default::default() };
        let (pool, user) = (pool(options), StreamObject::create(0, true).unwrap());
        let ptr = allocate(&pool, 8 * MIB, object(&user)).unwrap();
        use_late(user.raw(), ptr, 8 * MIB, 0xaa);
        free(&pool, ptr, 8 * MIB, object(&user));
        drop(pool);
        // An access to pages that are gone is a fault of the device, as on a real one.
        settle();
        assert_eq!(sim::mismatches(), before);
    }
}

#[test]
fn a_small_piece_that_was_given_back_counts_as_had() {
    let _machine = machine();
    let _current = current();
    let before = sim::mismatches();
    let pool = full_pool(Prefer::Concurrency);
    let other = StreamObject::create(0, true).unwrap();
    let ptr = allocate(&pool, 1000, LEGACY).unwrap();
    use_late(RawStream::NULL, ptr, 1000, 0xbb);
    free(&pool, ptr, 1000, LEGACY);
    // Asking for the figures gives back what the small zone had borrowed.
    assert!(pool.info().unproven_bytes < 8 * MIB);
    let fresh = allocate(&pool, 7 * MIB, object(&other)).unwrap();
    overwrite(other.raw(), fresh, 7 * MIB);
    free(&pool, fresh, 7 * MIB, object(&other));
    let all = allocate(&pool, 8 * MIB, object(&other)).unwrap();
    overwrite(other.raw(), all, 8 * MIB);
    settle();
    assert_eq!(sim::mismatches(), before);
    free(&pool, all, 8 * MIB, object(&other));
}

#[test]
fn small_slots_wait_like_large_blocks() {
    let _machine = machine();
    let _current = current();
    let before = sim::mismatches();
    let pool = pool(PoolOptions { initial_bytes: 2 * MIB, maximum_bytes: Some(2 * MIB), ..Default::default() });
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    let mut blocks = Vec::new();
    while let Ok(ptr) = pool.allocate(&request(4096), object(&a)) {
        blocks.push(ptr);
    }
    assert!(blocks.len() >= 503, "{} of 512", blocks.len());
    for (i, ptr) in blocks.iter().enumerate() {
        let verify = sim::Access::Verify { at: *ptr, len: 4096, byte: i as u8 };
        sim::launch(a.raw().as_raw(), &[], &[(*ptr, 4096, i as u8)]).unwrap();
        sim::launch_for(a.raw().as_raw(), if i == 0 { DELAY } else { Duration::ZERO }, &[verify]).unwrap();
    }
    // Some are freed on the other stream, which has waited for nothing: the free itself says so.
    for (i, ptr) in blocks.iter().enumerate() {
        if i % 2 == 0 {
            free(&pool, *ptr, 4096, object(&a));
        } else {
            pool.deallocate(*ptr, &Request { flags: Request::UNPROVEN, ..request(4096) }, object(&b)).unwrap();
        }
    }
    pool.check().unwrap();
    let mut second = Vec::new();
    while let Ok(ptr) = pool.allocate(&request(4096), object(&b)) {
        overwrite(b.raw(), ptr, 4096);
        second.push(ptr);
    }
    settle();
    assert_eq!(sim::mismatches(), before);
    assert!(second.len() >= blocks.len(), "all of it can be had again: {} of {}", second.len(), blocks.len());
    for ptr in second {
        free(&pool, ptr, 4096, object(&b));
    }
    pool.trim(0).unwrap();
    assert_eq!(pool.info().reserved_bytes, 0);
}

#[test]
fn a_stream_that_ends_leaves_its_proof() {
    let _machine = machine();
    let _current = current();
    let before = sim::mismatches();
    let pool = tenure_core::resource::Resource::new(full_pool(Prefer::Concurrency)).unwrap();
    let a = StreamObject::create(0, true).unwrap();
    let b = StreamObject::create(0, true).unwrap();
    let ptr = pool.allocate(8 << 20, 256, object(&a)).unwrap();
    use_late(a.raw(), ptr, 8 * MIB, 0x44);
    pool.deallocate(ptr, 8 << 20, 256, object(&a)).unwrap();
    let dead = a.raw();
    drop(a);
    // The driver gives the handle to the next stream: it is another stream all the same.
    let reissued = StreamObject::create(0, true).unwrap();
    if reissued.raw() == dead {
        assert!(matches!(pool.try_allocate(8 << 20, 256, object(&reissued)), Err(Error::WouldBlock)));
    }
    let again = pool.allocate(8 << 20, 256, object(&b)).unwrap();
    overwrite(b.raw(), again, 8 * MIB);
    settle();
    assert_eq!((sim::mismatches(), sim::violations()), (before, 0));
    assert_eq!(pool.body().info().device_proofs, 0, "the event recorded at the end does");
    pool.deallocate(again, 8 << 20, 256, object(&b)).unwrap();
}

#[test]
fn a_reissued_handle_matches_nothing_old() {
    let _machine = machine();
    let _current = current();
    let before = sim::mismatches();
    let driver = tenure_core::device::driver().unwrap();
    let pool = full_pool(Prefer::Concurrency);
    let first = driver.stream_create_on(0, true).unwrap();
    let ptr = allocate(&pool, 8 * MIB, StreamRef::raw(first)).unwrap();
    use_late(first, ptr, 8 * MIB, 0x55);
    // SAFETY: made above; only compared from here on.
    unsafe { driver.stream_destroy(first) }.unwrap();
    let second = driver.stream_create_on(0, true).unwrap();
    assert_eq!(first, second, "the simulated device reissues handles, as the real driver does");
    // Freed with the stored value, which names the new stream by accident.
    pool.deallocate(ptr, &request(8 * MIB), stored(first)).unwrap();
    assert!(matches!(pool.try_allocate(&request(MIB), LEGACY), Err(Error::WouldBlock)));
    let again = allocate(&pool, 8 * MIB, StreamRef::raw(second)).unwrap();
    overwrite(second, again, 8 * MIB);
    settle();
    assert_eq!((sim::mismatches(), sim::violations()), (before, 0));
    assert_eq!(pool.info().device_proofs, 1);
    free(&pool, again, 8 * MIB, StreamRef::raw(second));
    // SAFETY: as above.
    unsafe { driver.stream_destroy(second) }.unwrap();
}

#[test]
fn what_has_completed_is_everyones_before_the_pool_grows() {
    let _machine = machine();
    let _current = current();
    let pool = pool(PoolOptions::default());
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    let ptr = allocate(&pool, 8 * MIB, object(&a)).unwrap();
    free(&pool, ptr, 8 * MIB, object(&a));
    assert_eq!(allocate(&pool, 8 * MIB, object(&b)).unwrap(), ptr, "a is idle");
    assert_eq!(pool.info().reserved_bytes, 8 * MIB);
    free(&pool, ptr, 8 * MIB, object(&b));
    // A stream that is at work is not waited for: the pool grows.
    sim::busy(b.raw().as_raw(), DELAY).unwrap();
    let other = allocate(&pool, 8 * MIB, object(&a)).unwrap();
    assert_ne!(other, ptr);
    assert_eq!(pool.info().device_proofs, 0);
    free(&pool, other, 8 * MIB, object(&a));
    settle();
}

#[test]
fn a_pool_over_chunks_refuses_a_capturing_stream_and_its_capture_goes_on() {
    let _machine = machine();
    let _current = current();
    let driver = tenure_core::device::driver().unwrap();
    // Chunks come through calls that would end the capture.
    let eight = PoolOptions { initial_bytes: 8 * MIB, maximum_bytes: Some(8 * MIB), ..Default::default() };
    let pool = pool(PoolOptions { plain_chunks: true, ..eight });
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    let ptr = allocate(&pool, 4 * MIB, object(&a)).unwrap();
    let other = allocate(&pool, 4 * MIB, object(&b)).unwrap();
    free(&pool, other, 4 * MIB, object(&b));
    driver.stream_begin_capture(a.raw(), tenure_driver::sys::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    for stream in [object(&a), StreamRef::raw(a.raw())] {
        let error = allocate(&pool, 100, stream).unwrap_err();
        assert!(matches!(&error, Error::Unsupported(t) if t.contains("capturing")), "{error}");
    }
    // Frees into the capture and the ladder of another stream leave it alone.
    free(&pool, ptr, 4 * MIB, object(&a));
    let all = allocate(&pool, 8 * MIB, object(&b)).unwrap();
    assert_eq!(driver.stream_capture_status(a.raw()).unwrap(), tenure_driver::CaptureStatus::Active);
    driver.stream_end_capture(a.raw()).unwrap();
    free(&pool, all, 8 * MIB, object(&b));
}

#[test]
fn a_failing_driver_call_of_the_ladder_changes_nothing() {
    let _machine = machine();
    let _current = current();
    for call in
        ["cuEventCreate", "cuEventRecord", "cuEventQuery", "cuStreamWaitEvent", "cuMemFree", "cuStreamIsCapturing"]
    {
        for after in 0..5 {
            let pool = full_pool(Prefer::Concurrency);
            let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
            let warm = allocate(&pool, MIB, object(&b)).unwrap();
            free(&pool, warm, MIB, object(&b));
            let before = sim::mismatches();
            let ptr = allocate(&pool, 8 * MIB, object(&a)).unwrap();
            use_late(a.raw(), ptr, 8 * MIB, 0x66);
            free(&pool, ptr, 8 * MIB, object(&a));
            sim::fail_next(call, 999, after).unwrap();
            let result = allocate(&pool, 8 * MIB, object(&b));
            let struck = sim::fail_clear() == 0;
            assert_eq!(result.is_err(), struck, "{call} {after}");
            pool.check().unwrap();
            if let Err(e) = &result {
                assert!(matches!(e, Error::Device(_)), "{call} {after}: {e}");
                assert_eq!(pool.info().live_count, 0, "{call} {after}");
            }
            let again =
                result.or_else(|_| allocate(&pool, 8 * MIB, object(&b))).expect("the second time nothing fails");
            overwrite(b.raw(), again, 8 * MIB);
            settle();
            assert_eq!(sim::mismatches(), before, "{call} {after}: a failed step let the block through");
            free(&pool, again, 8 * MIB, object(&b));
        }
    }
}

#[test]
fn unused_records_of_many_short_streams_go() {
    let _machine = machine();
    let _current = current();
    let pool = full_pool(Prefer::Concurrency);
    for _ in 0..1000 {
        let stream = StreamObject::create(0, true).unwrap();
        let ptr = allocate(&pool, MIB, object(&stream)).unwrap();
        free(&pool, ptr, MIB, object(&stream));
        pool.stream_closing(object(&stream));
    }
    pool.check().unwrap();
    assert_eq!(pool.info().reserved_bytes, 8 * MIB);
    assert!(pool.property("stream_records").unwrap() <= 65, "{:?}", pool.property("stream_records"));
}

#[test]
fn streams_that_come_and_go_leave_little_behind() {
    let _machine = machine();
    let pool = tenure_core::resource::Resource::new(pool(PoolOptions::default())).unwrap();
    let records = || pool.body().property("stream_records").unwrap();
    // A second stream that stays, so that tags matter at all.
    let ptr = pool.allocate(1 << 20, 256, LEGACY).unwrap();
    pool.deallocate(ptr, 1 << 20, 256, LEGACY).unwrap();
    for _ in 0..500 {
        let stream = StreamObject::create(0, true).unwrap();
        let carried = StreamRef { raw: stream.raw(), object: Some(&stream), stored: false };
        let ptr = pool.allocate(4096, 256, carried).unwrap();
        pool.deallocate(ptr, 4096, 256, carried).unwrap();
    }
    assert!(records() <= 40, "{} records for 500 streams that are gone", records());
}
