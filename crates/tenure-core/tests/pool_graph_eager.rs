//! Eager memory beside captures: what is freed into one is ordered with nothing outside it, and nothing that a pool does for
//! eager work ends one.

#![allow(missing_docs)]

#[path = "pool_graph_common.rs"]
mod graphs;

use std::time::Duration;

use graphs::*;
use tenure_core::error::Error;
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::{Batch, MemoryResource};
use tenure_core::stream::{StreamHold, StreamObject, StreamRef};
use tenure_driver::sys::CU_STREAM_CAPTURE_MODE_RELAXED;
use tenure_driver::{RawStream, sim};

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;

#[test]
fn what_is_freed_into_the_capture_of_an_unknown_stream_is_not_that_streams_afterwards() {
    let _machine = machine();
    let pool = pool(PoolOptions { maximum_bytes: Some(8 * MIB), ..Default::default() });
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    // Two streams are known, so that nothing is everyone's by itself. b is not among them.
    let other = allocate(&pool, 256, LEGACY).unwrap();
    let ptr = allocate(&pool, MIB, object(&a)).unwrap();
    let mismatches = sim::mismatches();
    write(a.raw(), ptr, MIB, 1);
    sim::busy(a.raw().as_raw(), Duration::from_millis(30)).unwrap();
    verify(a.raw(), ptr, MIB, 1);
    // The capture records nothing that waits for a: after it, b is in no order with a's late work.
    begin(b.raw(), CU_STREAM_CAPTURE_MODE_RELAXED);
    free(&pool, ptr, MIB, object(&b));
    let graph = Graph::end(b.raw());
    let next = allocate(&pool, MIB, object(&b)).unwrap();
    assert_ne!(next, ptr, "b got what a is still reading");
    write(b.raw(), next, MIB, 2);
    settle();
    assert_eq!(sim::mismatches(), mismatches);
    free(&pool, next, MIB, object(&b));
    free(&pool, other, 256, LEGACY);
    drop(graph);
    trimmed(&pool);
    assert_eq!(pool.info().reserved_bytes, 0);
}

#[test]
fn buffers_made_resized_and_dropped_in_and_after_a_capture() {
    use tenure_core::buffer::Buffer;
    let _machine = machine();
    let _current = current();
    let mismatches = sim::mismatches();
    let resource = resource_over(PoolOptions::default());
    let pool = resource.downcast::<Pool>().unwrap();
    let (a, e) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    let hold = || StreamHold::object(a.clone());
    let make = |bytes: u64, on: StreamHold| Buffer::create(bytes as usize, 0, on, resource.light()).unwrap();
    let mut before = make(MIB, hold());
    let elsewhere = make(MIB, StreamHold::object(e.clone()));
    for raw in [false, true] {
        let home = || if raw { StreamHold::raw(a.raw()) } else { hold() };
        begin(a.raw(), 0);
        let mut buffer = make(MIB, home());
        write(a.raw(), buffer.ptr(), MIB, 0x42);
        buffer.resize(3 << 20, home()).unwrap();
        verify(a.raw(), buffer.ptr(), MIB, 0x42);
        let temporary = make(4 * MIB, home());
        let was = temporary.ptr();
        drop(temporary);
        let temporary = make(4 * MIB, home());
        assert_eq!(temporary.ptr(), was, "raw: {raw}");
        drop(temporary);
        // What is read by the graph must not be freed by the move.
        let error = before.resize(2 << 20, home()).unwrap_err();
        assert!(error.to_string().contains("capturing"), "{error}");
        assert!(ops_refused(&a));
        let copy = before.copy(home(), resource.light()).unwrap();
        assert!(in_graph(pool, copy.ptr()));
        let used_elsewhere = make(MIB, home());
        let mut used_elsewhere = used_elsewhere;
        used_elsewhere.record_stream(StreamHold::object(e.clone()));
        drop(used_elsewhere);
        let graph = Graph::end(a.raw());
        graph.launch(a.raw());
        verify(a.raw(), buffer.ptr(), MIB, 0x42);
        graph.launch(a.raw());
        // After it, by eager work.
        buffer.resize(8 << 20, StreamHold::object(a.clone())).unwrap();
        assert!(!in_graph(pool, buffer.ptr()));
        verify(a.raw(), buffer.ptr(), MIB, 0x42);
        drop(graph);
        settle();
        assert_eq!(pool.property("graph_arenas"), Some(1), "the copy lives there");
        drop((buffer, copy));
        wait_for(pool, 0, trimmed);
    }
    drop((before, elsewhere));
    assert_eq!(pool.info().live_count, 0);
    pool.check().unwrap();
    assert_eq!(sim::mismatches(), mismatches);
}

/// Waiting for a capturing stream is refused and does not end its capture.
fn ops_refused(stream: &StreamObject) -> bool {
    let refused = |e: Error| matches!(&e, Error::Unsupported(t) if t.contains("capturing"));
    tenure_core::ops::synchronize(object(stream), 0).is_err_and(refused)
        && tenure_core::ops::is_idle(object(stream), 0).is_err_and(refused)
}

#[test]
fn an_eager_block_that_is_freed_into_a_capture_stays_in_its_streams_order() {
    let _machine = machine();
    let _current = current();
    let mismatches = sim::mismatches();
    let full = PoolOptions { initial_bytes: 8 * MIB, maximum_bytes: Some(8 * MIB), ..Default::default() };
    for how in 0..3 {
        let pool = pool(full);
        let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
        let warm = allocate(&pool, 100, object(&b)).unwrap();
        free(&pool, warm, 100, object(&b));
        let ptr = allocate(&pool, 8 * MIB, object(&a)).unwrap();
        write(a.raw(), ptr, 8 * MIB, 5);
        let late = sim::Access::Verify { at: ptr, len: 8 << 20, byte: 5 };
        sim::launch_for(a.raw().as_raw(), std::time::Duration::from_millis(40), &[late]).unwrap();
        begin(a.raw(), 0);
        match how {
            0 => free(&pool, ptr, 8 * MIB, object(&a)),
            1 => free(&pool, ptr, 8 * MIB, StreamRef::raw(a.raw())),
            _ => pool.try_deallocate(ptr, &request(8 * MIB), object(&a)).unwrap(),
        }
        let all = allocate(&pool, 8 * MIB, object(&b)).unwrap();
        write(b.raw(), all, 8 * MIB, 0xee);
        free(&pool, all, 8 * MIB, object(&b));
        drop(Graph::end(a.raw()));
        settle();
    }
    assert_eq!(sim::mismatches(), mismatches);
}

/// Everything that a pool does on its slow paths, on streams that do not capture.
fn turmoil(pool: &Pool, seed: u64) {
    let _current = current();
    let stream = StreamObject::create(0, seed.is_multiple_of(2)).unwrap();
    let streams = [object(&stream), LEGACY, StreamRef::raw(RawStream::PER_THREAD), StreamRef::raw(stream.raw())];
    for round in 0..12 {
        let mut live = Vec::new();
        for (i, on) in streams.iter().enumerate() {
            for bytes in [300, MIB, 7 * MIB] {
                match allocate(pool, bytes, *on) {
                    Ok(ptr) => live.push((ptr, bytes, i)),
                    Err(e) => assert!(e.is_out_of_memory(), "{e}"),
                }
            }
        }
        assert!(allocate(pool, 1 << 40, object(&stream)).is_err());
        for (ptr, bytes, i) in live {
            let other = streams[(i + round) % 3];
            let on = match (ptr / 256) % 3 {
                0 => streams[i],
                1 => other,
                _ => stored(stream.raw()),
            };
            free(pool, ptr, bytes, on);
        }
        if round % 4 == 3 {
            pool.trim(0).unwrap();
        }
        pool.info();
    }
}

#[test]
fn nothing_that_a_pool_does_ends_a_capture() {
    let _machine = machine();
    let _current = current();
    let mismatches = sim::mismatches();
    for mode in MODES {
        for blocking in [false, true] {
            // Tight, so that every step of the ladder is climbed: events, waits, proofs, exchanges, out of memory.
            let resource = resource_over(PoolOptions { maximum_bytes: Some(48 * MIB), ..Default::default() });
            let pool = resource.downcast::<Pool>().unwrap();
            let over_chunks =
                resource_over(PoolOptions { maximum_bytes: Some(32 * MIB), plain_chunks: true, ..Default::default() });
            let chunks = over_chunks.downcast::<Pool>().unwrap();
            let a = StreamObject::create(0, !blocking).unwrap();
            begin(a.raw(), mode);
            let output = allocate(pool, MIB, object(&a)).unwrap();
            write(a.raw(), output, MIB, 0x21);
            turmoil(pool, 0);
            turmoil(chunks, 1);
            std::thread::scope(|scope| {
                for seed in 0..3 {
                    scope.spawn(move || turmoil(if seed == 2 { chunks } else { pool }, seed));
                }
                for _ in 0..40 {
                    let ptr = allocate(pool, 100_000, object(&a)).unwrap();
                    write(a.raw(), ptr, 100_000, 0x99);
                    verify(a.raw(), ptr, 100_000, 0x99);
                    free(pool, ptr, 100_000, object(&a));
                }
            });
            verify(a.raw(), output, MIB, 0x21);
            let graph = Graph::end(a.raw());
            for seed in 0..3 {
                graph.launch(a.raw());
                turmoil(pool, seed);
            }
            verify(a.raw(), output, MIB, 0x21);
            free(pool, output, MIB, object(&a));
            drop(graph);
            settle();
            wait_for(pool, 0, trimmed);
            assert_eq!((pool.info().reserved_bytes, pool.info().live_count), (0, 0));
            pool.check().unwrap();
        }
    }
    assert_eq!(sim::mismatches(), mismatches);
}

#[test]
fn batches_and_notes_on_a_capturing_stream() {
    let _machine = machine();
    let _current = current();
    let before = driver_free();
    let pool = pool(PoolOptions { maximum_bytes: Some(16 * MIB), ..Default::default() });
    let inner = &pool;
    let take = |sizes: &[usize], stream: StreamRef<'_>, out: &mut [u64]| {
        pool.allocate_many(&Batch::checked(sizes, 256, 7).unwrap(), stream, out)
    };
    let give = |ptrs: &[u64], sizes: &[usize], stream: StreamRef<'_>| {
        pool.deallocate_many(ptrs, &Batch::given(sizes, 256, 7).unwrap(), stream).count
    };
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    let sizes = [1000, 0, MIB as usize];
    let (mut eager, mut captured) = ([0; 3], [0; 3]);
    take(&sizes, object(&b), &mut eager).unwrap();
    begin(a.raw(), 0);
    take(&sizes, object(&a), &mut captured).unwrap();
    assert!(in_graph(inner, captured[0]) && captured[1] == 0 && in_graph(inner, captured[2]));
    assert!(!in_graph(inner, eager[0]));
    // More than there is: what was had goes back, and the capture goes on.
    let mut out = [0; 2];
    assert!(take(&[MIB as usize, 15 << 20], object(&a), &mut out).unwrap_err().is_out_of_memory());
    assert_eq!((out, pool.info().live_count), ([0; 2], 4));
    inner.stream_synchronized(object(&a), true).unwrap();
    inner.stream_synchronized(object(&a), false).unwrap();
    // Of both kinds in one call.
    assert_eq!(give(&[captured[0], eager[0]], &[1000, 1000], object(&a)), 2);
    let graph = driver().stream_end_capture(a.raw()).expect("the capture is as it was");
    let rest = [captured[2], eager[2]];
    assert_eq!(give(&rest, &[MIB as usize; 2], object(&b)), 2);
    assert_eq!(give(&rest, &[MIB as usize; 2], object(&b)), 0);
    assert_eq!(pool.info().live_count, 0);
    // SAFETY: made by this capture, used by nobody.
    unsafe { driver().graph_destroy(graph) }.unwrap();
    wait_for(inner, 0, trimmed);
    drop(pool);
    assert_eq!(driver_free(), before);
    assert_eq!(sim::violations(), 0);
}

#[test]
fn pages_are_mapped_again_during_a_capture_where_an_event_can_say_when_they_were_last_used() {
    let _machine = machine();
    let _current = current();
    let before = (driver_free(), sim::violations(), sim::mismatches());
    let b = StreamObject::create(0, true).unwrap();
    for mode in MODES {
        // The legacy stream waits for a blocking one, so that it is capturing as well.
        for (user, grown) in [(object(&b), 4), (LEGACY, 12)] {
            let pool = pool(PoolOptions::default());
            let blocks = [0; 4].map(|_| allocate(&pool, 4 * MIB, user).unwrap());
            for ptr in [blocks[0], blocks[2]] {
                write(user.raw, ptr, 4 * MIB, 3);
                verify(user.raw, ptr, 4 * MIB, 3);
                free(&pool, ptr, 4 * MIB, user);
            }
            let a = StreamObject::create(0, false).unwrap();
            begin(a.raw(), mode);
            let ptr = allocate(&pool, 12 * MIB, user).unwrap();
            assert_eq!(pool.info().reserved_bytes, (16 + grown) * MIB, "mode {mode}");
            drop(Graph::end(a.raw()));
            write(user.raw, ptr, 12 * MIB, 4);
            verify(user.raw, ptr, 12 * MIB, 4);
            for (ptr, bytes) in [(ptr, 12), (blocks[1], 4), (blocks[3], 4)] {
                free(&pool, ptr, bytes * MIB, user);
            }
            settle();
            trimmed(&pool);
            assert_eq!(pool.info().reserved_bytes, 0);
        }
    }
    assert_eq!((driver_free(), sim::violations(), sim::mismatches()), before);
}
