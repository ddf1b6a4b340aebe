//! Memory of graphs on the simulated device, whose rules of capture are those of the driver and whose streams run later.

#![allow(missing_docs)]

#[path = "pool_graph_common.rs"]
mod graphs;

use graphs::*;
use tenure_core::error::{Error, Misuse, MisuseKind};
use tenure_core::pool::{CaptureScope, Pool, PoolOptions, SharedArena};
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{MemoryResource, Request};
use tenure_core::stream::{StreamHold, StreamObject, StreamRef};
use tenure_driver::sys::{CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED};
use tenure_driver::{Event, RawStream, sim};

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;

fn misuse(error: Error) -> Misuse {
    match error {
        Error::Misuse(m) => m,
        other => panic!("{other} is no misuse"),
    }
}

/// Captures on `stream`: a temporary that is freed and reused, and an output that stays. Gives the output.
fn capture(pool: &Pool, stream: StreamRef<'_>, mode: u32, byte: u8) -> (Graph, u64) {
    begin(stream.raw, mode);
    let temporary = allocate(pool, MIB, stream).unwrap();
    write(stream.raw, temporary, MIB, byte);
    verify(stream.raw, temporary, MIB, byte);
    free(pool, temporary, MIB, stream);
    let again = allocate(pool, MIB, stream).unwrap();
    assert_eq!(again, temporary, "a capture reuses its own frees in the order of the stream");
    write(stream.raw, again, MIB, byte ^ 0xff);
    let output = allocate(pool, 5000, stream).unwrap();
    write(stream.raw, output, 5000, byte);
    verify(stream.raw, again, MIB, byte ^ 0xff);
    free(pool, again, MIB, stream);
    (Graph::end(stream.raw), output)
}

#[test]
fn a_graph_has_memory_of_its_own_while_it_lives() {
    let _machine = machine();
    let _current = current();
    let (mismatches, before) = (sim::mismatches(), driver_free());
    sim::check_order(true);
    for mode in MODES {
        for raw in [false, true] {
            let pool = pool(PoolOptions::default());
            let own = StreamObject::create(0, mode != CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
            let side = StreamObject::create(0, true).unwrap();
            let stream = if raw { StreamRef::raw(own.raw()) } else { object(&own) };
            let (graph, output) = capture(&pool, stream, mode, 0x31);
            assert_eq!(pool.property("graph_arenas"), Some(1));
            let held = graph_bytes(&pool);
            assert!(held >= 2 * MIB && pool.info().reserved_bytes == held, "{held}");
            assert_eq!(pool.info().live_count, 1);
            for _ in 0..3 {
                graph.launch(own.raw());
            }
            verify(own.raw(), output, 5000, 0x31);
            // Eager work and other graphs get other memory, whatever was freed.
            let (other, other_output) = capture(&pool, object(&side), mode, 0x77);
            let ranges = pool.ranges();
            let eager: Vec<u64> = (0..8).map(|_| allocate(&pool, MIB, object(&side)).unwrap()).collect();
            for ptr in eager {
                assert!(!in_graph(&pool, ptr) && !ranges.iter().any(|(at, len)| (*at..at + len).contains(&ptr)));
                write(side.raw(), ptr, MIB, 0xee);
                free(&pool, ptr, MIB, object(&side));
            }
            graph.launch(own.raw());
            other.launch(side.raw());
            verify(own.raw(), output, 5000, 0x31);
            // Freed by eager work: the graph has it all the same.
            free(&pool, output, 5000, stream);
            free(&pool, other_output, 5000, LEGACY);
            graph.launch(own.raw());
            pool.trim(0).unwrap();
            assert_eq!(pool.info().reserved_bytes, graph_bytes(&pool), "eager pages are gone");
            assert_eq!(pool.property("graph_arenas"), Some(2));
            drop(graph);
            settle();
            wait_for(&pool, 1, trimmed);
            drop(other);
            settle();
            wait_for(&pool, 0, trimmed);
            assert_eq!((pool.info().reserved_bytes, pool.info().live_count), (0, 0));
            pool.check().unwrap();
            drop(pool);
        }
    }
    assert_eq!((sim::races(), sim::race_texts()), (0, Vec::new()));
    assert_eq!(sim::mismatches(), mismatches);
    assert_eq!(driver_free(), before);
}

#[test]
fn pages_return_when_graph_runs_and_blocks_are_gone_and_not_before() {
    let _machine = machine();
    let _current = current();
    let pool = pool(PoolOptions::default());
    let a = StreamObject::create(0, true).unwrap();
    let (graph, output) = capture(&pool, object(&a), 0, 1);
    // The graph is destroyed while it runs.
    begin(a.raw(), 0);
    sim::busy(a.raw().as_raw(), std::time::Duration::from_millis(80)).unwrap();
    let slow_block = allocate(&pool, 2 * MIB, object(&a)).unwrap();
    write(a.raw(), slow_block, 2 * MIB, 3);
    free(&pool, slow_block, 2 * MIB, object(&a));
    let slow = Graph::end(a.raw());
    slow.launch(a.raw());
    drop(slow);
    assert_eq!(pool.info().live_count, 1);
    assert_eq!(pool.property("graph_arenas"), Some(2), "a run is under way");
    settle();
    // Nothing but the graph's own work was on it: no proof is needed, so that reading the figures is enough.
    wait_for(&pool, 1, |pool| assert_eq!(pool.info().live_count, 1));
    assert_eq!(pool.info().device_proofs, 0);
    // A live block keeps the arena of a graph that is gone.
    drop(graph);
    std::thread::sleep(std::time::Duration::from_millis(20));
    pool.trim(0).unwrap();
    assert_eq!(pool.property("graph_arenas"), Some(1));
    assert!(in_graph(&pool, output));
    write(a.raw(), output, 5000, 9);
    verify(a.raw(), output, 5000, 9);
    free(&pool, output, 5000, object(&a));
    pool.info();
    assert_eq!(pool.property("graph_arenas"), Some(1), "eager work may still use it, and info does not wait");
    let proofs = sim::calls("cuMemFree");
    assert!(pool.trim(0).unwrap() > 0);
    assert!(sim::calls("cuMemFree") > proofs, "a proof came first");
    assert_eq!(pool.info().reserved_bytes, 0);
}

#[test]
fn captures_that_end_without_a_graph_give_back() {
    let _machine = machine();
    let _current = current();
    let before = driver_free();
    let pool = pool(PoolOptions::default());
    let a = StreamObject::create(0, true).unwrap();
    // Invalidated.
    begin(a.raw(), 0);
    let ptr = allocate(&pool, MIB, object(&a)).unwrap();
    driver().stream_id(a.raw()).expect_err("ends the capture");
    let error = allocate(&pool, MIB, object(&a)).unwrap_err();
    assert!(matches!(&error, Error::Unsupported(t) if t.contains("capturing") && t.contains("invalid")), "{error}");
    assert!(matches!(pool.try_allocate(&request(MIB), object(&a)), Err(Error::WouldBlock)));
    free(&pool, ptr, MIB, object(&a));
    driver().stream_end_capture(a.raw()).expect_err("901");
    wait_for(&pool, 0, trimmed);
    assert_eq!(pool.info().reserved_bytes, 0);
    // Never instantiated; and a block that is freed long after.
    begin(a.raw(), 0);
    let ptr = allocate(&pool, MIB, object(&a)).unwrap();
    let graph = driver().stream_end_capture(a.raw()).unwrap();
    // SAFETY: made by this capture, used by nobody.
    unsafe { driver().graph_destroy(graph) }.unwrap();
    let eager = allocate(&pool, MIB, object(&a)).unwrap();
    assert!(in_graph(&pool, ptr) && !in_graph(&pool, eager));
    free(&pool, ptr, MIB, stored(a.raw()));
    free(&pool, eager, MIB, object(&a));
    // The stream is destroyed in the middle.
    begin(a.raw(), 0);
    let ptr = allocate(&pool, MIB, object(&a)).unwrap();
    let raw = a.raw();
    drop(a);
    free(&pool, ptr, MIB, stored(raw));
    wait_for(&pool, 0, trimmed);
    assert_eq!((pool.info().reserved_bytes, pool.info().live_count), (0, 0));
    drop(pool);
    assert_eq!(driver_free(), before);
}

#[test]
fn wrong_frees_of_a_graphs_blocks_are_told_apart() {
    let _machine = machine();
    let _current = current();
    let pool = pool(PoolOptions::default());
    let a = StreamObject::create(0, true).unwrap();
    for bytes in [5000, 300_000] {
        begin(a.raw(), 0);
        let ptr = allocate(&pool, bytes, object(&a)).unwrap();
        let right = request(bytes);
        let held = pool.find(ptr + 1).unwrap();
        assert_eq!((held.ptr, held.owner), (ptr, 7));
        for on in [object(&a), LEGACY, stored(a.raw())] {
            let wrong = |ptr, request: Request| misuse(pool.deallocate(ptr, &request, on).unwrap_err()).kind;
            assert_eq!(wrong(ptr + 256, right), MisuseKind::InteriorPointer);
            assert_eq!(wrong(ptr, Request { owner: 8, ..right }), MisuseKind::WrongResource);
            assert_eq!(wrong(ptr, Request { bytes: 2 * bytes as usize, ..right }), MisuseKind::WrongSize);
            assert_eq!(wrong(ptr + (1 << 40), right), MisuseKind::UnknownPointer);
        }
        pool.try_deallocate(ptr, &right, object(&a)).unwrap();
        for on in [object(&a), LEGACY] {
            assert_eq!(misuse(pool.deallocate(ptr, &right, on).unwrap_err()).kind, MisuseKind::DoubleFree);
        }
        drop(Graph::end(a.raw()));
        wait_for(&pool, 0, trimmed);
        assert_eq!(pool.find(ptr), None);
        assert_eq!(misuse(pool.deallocate(ptr, &right, LEGACY).unwrap_err()).kind, MisuseKind::UnknownPointer);
        pool.check().unwrap();
    }
}

#[test]
fn another_stream_of_the_capture_gets_no_block_that_is_not_ordered() {
    let _machine = machine();
    let _current = current();
    let pool = pool(PoolOptions::default());
    let device = driver().device(0).unwrap();
    let mismatches = sim::mismatches();
    for seed in 0..20 {
        let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
        begin(a.raw(), 0);
        let (fork, join) = (Event::new(device).unwrap(), Event::new(device).unwrap());
        fork.record(a.raw()).unwrap();
        b.raw().wait_event(&fork).unwrap();
        let mut blocks = Vec::new();
        for (stream, byte) in [(&a, 1), (&b, 2), (&a, 3), (&b, 4)] {
            for bytes in [MIB, 3000] {
                let ptr = allocate(&pool, bytes, object(stream)).unwrap();
                write(stream.raw(), ptr, bytes, byte);
                verify(stream.raw(), ptr, bytes, byte);
                free(&pool, ptr, bytes, if seed % 2 == 0 { object(stream) } else { stored(stream.raw()) });
                blocks.push(ptr);
            }
        }
        assert_ne!(blocks[0], blocks[2], "b must not have what a freed");
        assert_eq!((blocks[0], blocks[2]), (blocks[4], blocks[6]), "each has its own again");
        join.record(b.raw()).unwrap();
        a.raw().wait_event(&join).unwrap();
        let graph = Graph::end(a.raw());
        sim::schedule(seed);
        graph.launch(a.raw());
        sim::run_all();
        sim::schedule_workers();
    }
    wait_for(&pool, 0, trimmed);
    assert_eq!(sim::mismatches(), mismatches);
}

#[test]
fn a_second_stream_of_the_capture_gets_what_the_first_never_had() {
    let _machine = machine();
    let _current = current();
    let pool = pool(PoolOptions::default());
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    let fork = Event::new(driver().device(0).unwrap()).unwrap();
    begin(a.raw(), 0);
    fork.record(a.raw()).unwrap();
    b.raw().wait_event(&fork).unwrap();
    let one = allocate(&pool, MIB, object(&a)).unwrap();
    free(&pool, one, MIB, object(&a));
    let two = allocate(&pool, MIB, object(&b)).unwrap();
    assert_ne!(one, two);
    assert_eq!(graph_bytes(&pool), 2 * MIB);
    free(&pool, two, MIB, object(&b));
    drop(Graph::end(a.raw()));
    wait_for(&pool, 0, trimmed);
}

#[test]
fn the_legacy_stream_waits_for_nothing_while_a_blocking_stream_captures() {
    let _machine = machine();
    let _current = current();
    let full = PoolOptions { initial_bytes: 8 * MIB, maximum_bytes: Some(8 * MIB), ..Default::default() };
    let pool = pool(full);
    let (busy, capturing) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, false).unwrap());
    let warm = allocate(&pool, 100, LEGACY).unwrap();
    free(&pool, warm, 100, LEGACY);
    let ptr = allocate(&pool, 8 * MIB, object(&busy)).unwrap();
    sim::busy(busy.raw().as_raw(), std::time::Duration::from_millis(50)).unwrap();
    free(&pool, ptr, 8 * MIB, object(&busy));
    begin(capturing.raw(), CU_STREAM_CAPTURE_MODE_RELAXED);
    sim::busy(capturing.raw().as_raw(), std::time::Duration::ZERO).unwrap();
    let before = pool.info().device_proofs;
    // The ladder comes to the inserted wait, which would end the capture, and goes on to the proof.
    let all = allocate(&pool, 8 * MIB, LEGACY).unwrap();
    assert_eq!(pool.info().device_proofs, before + 1);
    free(&pool, all, 8 * MIB, LEGACY);
    drop(Graph::end(capturing.raw()));
    settle();
}

#[test]
fn graphs_that_never_run_at_once_share_an_arena() {
    let _machine = machine();
    let _current = current();
    let mismatches = sim::mismatches();
    sim::check_order(true);
    let pool = pool(PoolOptions::default());
    let (a, e) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    let arena = SharedArena::new();
    let mut graphs = Vec::new();
    let mut outputs = Vec::new();
    {
        let hold = StreamHold::object(a.clone());
        let _scope = CaptureScope::enter(hold, Some(arena.clone())).unwrap();
        for byte in 1..5 {
            let (graph, output) = capture(&pool, object(&a), 0, byte);
            graphs.push(graph);
            outputs.push(output);
            if byte == 2 {
                // Read by eager work on another stream and freed there, while that work is still queued.
                sim::busy(e.raw().as_raw(), std::time::Duration::from_millis(50)).unwrap();
                graphs[0].launch(e.raw());
                verify(e.raw(), outputs[0], 5000, 1);
                free(&pool, outputs[0], 5000, object(&e));
            }
        }
    }
    assert_eq!(pool.property("graph_arenas"), Some(1));
    assert_eq!(outputs[2], outputs[0], "what was freed serves a later capture");
    assert_eq!(pool.info().reserved_bytes, 2 * MIB, "four graphs in the memory of one");
    for graph in &graphs {
        graph.launch(a.raw());
    }
    for (byte, output) in [(2, outputs[1]), (3, outputs[2]), (4, outputs[3])] {
        verify(a.raw(), output, 5000, byte);
        free(&pool, output, 5000, object(&a));
    }
    // Outside the scope a capture has its own.
    let (alone, output) = capture(&pool, object(&a), 0, 9);
    assert_eq!(pool.property("graph_arenas"), Some(2));
    free(&pool, output, 5000, object(&a));
    drop((alone, graphs));
    settle();
    wait_for(&pool, 1, trimmed);
    std::thread::sleep(std::time::Duration::from_millis(20));
    wait_for(&pool, 1, trimmed);
    // The name kept it.
    drop(arena);
    wait_for(&pool, 0, trimmed);
    assert_eq!(pool.info().reserved_bytes, 0);
    assert_eq!((sim::races(), sim::race_texts()), (0, Vec::new()));
    assert_eq!(sim::mismatches(), mismatches);
}

#[test]
fn what_eager_work_frees_is_not_for_the_capture_that_is_under_way() {
    let _machine = machine();
    let _current = current();
    let mismatches = sim::mismatches();
    let pool = pool(PoolOptions::default());
    let (a, e) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    for raw in [false, true] {
        let arena = SharedArena::new();
        let scope = CaptureScope::enter(StreamHold::object(a.clone()), Some(arena.clone())).unwrap();
        let on = if raw { StreamRef::raw(a.raw()) } else { object(&a) };
        let (first, output) = capture(&pool, on, 0, 7);
        begin(a.raw(), 0);
        let warm = allocate(&pool, 100, on).unwrap();
        let late = sim::Access::Verify { at: output, len: 5000, byte: 7 };
        first.launch(e.raw());
        sim::launch_for(e.raw().as_raw(), std::time::Duration::from_millis(40), &[late]).unwrap();
        // Once by a stream that can be asked, once by the value of the stream that it was made on.
        free(&pool, output, 5000, if raw { stored(a.raw()) } else { object(&e) });
        let mine: Vec<u64> = (0..40).map(|_| allocate(&pool, 5000, on).unwrap()).collect();
        assert!(!mine.contains(&output), "raw: {raw}");
        for ptr in mine {
            free(&pool, ptr, 5000, on);
        }
        free(&pool, warm, 100, on);
        drop((Graph::end(a.raw()), first, scope, arena));
        // Its last use is queued still.
        std::thread::sleep(std::time::Duration::from_millis(10));
        wait_for(&pool, 0, trimmed);
    }
    settle();
    assert_eq!(sim::mismatches(), mismatches);
}

#[test]
fn what_others_may_still_use_is_not_for_the_capture_it_was_freed_in() {
    let _machine = machine();
    let _current = current();
    let pool = pool(PoolOptions::default());
    let a = StreamObject::create(0, true).unwrap();
    begin(a.raw(), 0);
    let ptr = allocate(&pool, MIB, object(&a)).unwrap();
    write(a.raw(), ptr, MIB, 5);
    // Who else uses it nobody knows: it may be a stream that is not in order with this one before the graph ends.
    pool.deallocate(ptr, &Request { flags: Request::UNPROVEN, ..request(MIB) }, object(&a)).unwrap();
    let mine: Vec<u64> = (0..8).map(|_| allocate(&pool, MIB, object(&a)).unwrap()).collect();
    assert!(!mine.contains(&ptr));
    for ptr in mine {
        free(&pool, ptr, MIB, object(&a));
    }
    drop(Graph::end(a.raw()));
    wait_for(&pool, 0, trimmed);
}

#[test]
fn what_another_capture_frees_is_not_for_the_capture_it_is_of() {
    let _machine = machine();
    let _current = current();
    let pool = pool(PoolOptions::default());
    let device = driver().device(0).unwrap();
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    let fork = Event::new(device).unwrap();
    let join = Event::new(device).unwrap();
    begin(a.raw(), CU_STREAM_CAPTURE_MODE_RELAXED);
    let ptr = allocate(&pool, MIB, object(&a)).unwrap();
    write(a.raw(), ptr, MIB, 5);
    // A graph of its own uses the block and frees it: it may run whenever the first one does.
    begin(b.raw(), CU_STREAM_CAPTURE_MODE_RELAXED);
    verify(b.raw(), ptr, MIB, 5);
    free(&pool, ptr, MIB, object(&b));
    let other = Graph::end(b.raw());
    // The same stream takes part in the first capture.
    fork.record(a.raw()).unwrap();
    b.raw().wait_event(&fork).unwrap();
    for stream in [&b, &a] {
        let mine: Vec<u64> = (0..8).map(|_| allocate(&pool, MIB, object(stream)).unwrap()).collect();
        assert!(!mine.contains(&ptr));
        for ptr in mine {
            free(&pool, ptr, MIB, object(stream));
        }
    }
    join.record(b.raw()).unwrap();
    a.raw().wait_event(&join).unwrap();
    drop((Graph::end(a.raw()), other));
    wait_for(&pool, 0, trimmed);
}

#[test]
fn pages_that_a_raw_stream_may_still_use_wait_for_a_proof() {
    let _machine = machine();
    let _current = current();
    let pool = pool(PoolOptions::default());
    let a = StreamObject::create(0, true).unwrap();
    let (graph, output) = capture(&pool, StreamRef::raw(a.raw()), 0, 7);
    graph.launch(a.raw());
    settle();
    let late = sim::Access::Verify { at: output, len: 5000, byte: 7 };
    sim::launch_for(a.raw().as_raw(), std::time::Duration::from_millis(60), &[late]).unwrap();
    free(&pool, output, 5000, stored(a.raw()));
    drop(graph);
    std::thread::sleep(std::time::Duration::from_millis(10));
    pool.info();
    assert_eq!(pool.property("graph_arenas"), Some(1), "only what waits may give it back");
    let before = sim::calls("cuMemFree");
    wait_for(&pool, 0, trimmed);
    assert!(sim::calls("cuMemFree") > before, "a proof came first");
    // A page that went too early would have been a fault.
    settle();
}

#[test]
fn a_capture_that_was_superseded_goes_on_by_itself() {
    let _machine = machine();
    let _current = current();
    let pool = pool(PoolOptions::default());
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    let arena = SharedArena::new();
    let scope =
        |s: &std::sync::Arc<StreamObject>| CaptureScope::enter(StreamHold::object(s.clone()), Some(arena.clone()));
    let scopes = (scope(&a).unwrap(), scope(&b).unwrap());
    begin(a.raw(), CU_STREAM_CAPTURE_MODE_RELAXED);
    let first = allocate(&pool, MIB, object(&a)).unwrap();
    free(&pool, first, MIB, object(&a));
    begin(b.raw(), CU_STREAM_CAPTURE_MODE_RELAXED);
    let second = allocate(&pool, MIB, object(&b)).unwrap();
    assert_eq!(second, first, "they never run at once");
    // Now a must not have it back: in one graph it would be used twice, in no order with b's frees of it.
    let third = allocate(&pool, MIB, object(&a)).unwrap();
    assert_ne!(third, first);
    assert_eq!(pool.property("graph_arenas"), Some(2));
    free(&pool, third, MIB, object(&a));
    free(&pool, second, MIB, object(&b));
    drop((Graph::end(a.raw()), Graph::end(b.raw())));
    wait_for(&pool, 1, trimmed);
    std::thread::scope(|s| {
        s.spawn(|| {
            let error = scope(&a).unwrap_err();
            assert!(error.to_string().contains("another thread"), "{error}");
        });
    });
    let error = CaptureScope::enter(StreamHold::raw(RawStream::LEGACY), None).unwrap_err();
    assert!(error.to_string().contains("legacy"), "{error}");
    drop((scopes, arena));
    wait_for(&pool, 0, trimmed);
}

#[test]
fn the_per_thread_stream_is_asked_in_a_scope_and_on_the_slow_path() {
    let _machine = machine();
    let _current = current();
    let pool = pool(PoolOptions::default());
    let mine = StreamRef::raw(RawStream::PER_THREAD);
    let warm = allocate(&pool, 4 * MIB, mine).unwrap();
    free(&pool, warm, 4 * MIB, mine);
    {
        let _scope = CaptureScope::enter(StreamHold::raw(RawStream::PER_THREAD), None).unwrap();
        let eager = allocate(&pool, 4 * MIB, mine).unwrap();
        assert_eq!(eager, warm, "no capture yet");
        free(&pool, eager, 4 * MIB, mine);
        begin(mine.raw, 0);
        assert!(matches!(pool.try_allocate(&request(MIB), mine), Err(Error::WouldBlock)));
        let ptr = allocate(&pool, 4 * MIB, mine).unwrap();
        assert!(in_graph(&pool, ptr));
        free(&pool, ptr, 4 * MIB, mine);
        drop(Graph::end(mine.raw));
    }
    // Not announced: what is at hand is served without a question; what is not is asked for.
    begin(mine.raw, 0);
    let big = allocate(&pool, 64 * MIB, mine).unwrap();
    assert!(in_graph(&pool, big));
    free(&pool, big, 64 * MIB, mine);
    drop(Graph::end(mine.raw));
    let eager = allocate(&pool, 4 * MIB, mine).unwrap();
    assert_eq!(eager, warm);
    free(&pool, eager, 4 * MIB, mine);
    wait_for(&pool, 0, trimmed);
}

#[test]
fn the_maximum_bounds_graphs_and_eager_memory_together() {
    let _machine = machine();
    let _current = current();
    let pool = pool(PoolOptions { maximum_bytes: Some(16 * MIB), ..Default::default() });
    let a = StreamObject::create(0, true).unwrap();
    let eager = allocate(&pool, 16 * MIB, LEGACY).unwrap();
    begin(a.raw(), 0);
    let error = allocate(&pool, MIB, object(&a)).unwrap_err();
    let Error::OutOfMemory(oom) = &error else { panic!("{error}") };
    assert_eq!((oom.requested, oom.limit, oom.reserved), (MIB, 16 * MIB, 16 * MIB));
    // Idle eager pages make room, in the middle of the capture.
    free(&pool, eager, 16 * MIB, LEGACY);
    let ptr = allocate(&pool, 10 * MIB, object(&a)).unwrap();
    let graph = Graph::end(a.raw());
    assert!(pool.info().reserved_bytes <= 16 * MIB);
    let error = allocate(&pool, 8 * MIB, LEGACY).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    let rest = allocate(&pool, 6 * MIB, LEGACY).unwrap();
    free(&pool, rest, 6 * MIB, LEGACY);
    free(&pool, ptr, 10 * MIB, object(&a));
    assert!(allocate(&pool, 16 * MIB, LEGACY).is_err(), "the graph has it");
    drop(graph);
    let all = (0..2000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        allocate(&pool, 16 * MIB, LEGACY).ok()
    });
    let all = all.expect("the slow path gives back what the graph had");
    free(&pool, all, 16 * MIB, LEGACY);
    assert_eq!(pool.info().peak_reserved_bytes, 16 * MIB);
    wait_for(&pool, 0, trimmed);
}

#[test]
fn a_pool_that_ends_leaves_its_graphs_what_they_need() {
    let _machine = machine();
    let _current = current();
    let (before, mismatches) = (driver_free(), sim::mismatches());
    let shown = || shared::cuda().unwrap().body().info().reserved_bytes;
    let start = shown();
    let first = pool(PoolOptions::default());
    let a = StreamObject::create(0, true).unwrap();
    let (graph, output) = capture(&first, object(&a), 0, 0x42);
    free(&first, output, 5000, object(&a));
    let held = graph_bytes(&first);
    drop(first);
    assert_eq!((before - driver_free(), shown() - start), (held, held));
    for _ in 0..3 {
        graph.launch(a.raw());
    }
    verify(a.raw(), output, 5000, 0x42);
    drop(graph);
    settle();
    // Whichever pool comes to its slow path.
    let second = pool(PoolOptions::default());
    for _ in 0..2000 {
        second.trim(0).unwrap();
        if driver_free() == before {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    drop(second);
    assert_eq!((driver_free(), shown()), (before, start));
    assert_eq!(sim::mismatches(), mismatches);
}

#[test]
fn failures_while_capturing_change_nothing() {
    let _machine = machine();
    let _current = current();
    let before = driver_free();
    let calls = [
        "cuStreamIsCapturing",
        "cuStreamGetCaptureInfo",
        "cuUserObjectCreate",
        "cuGraphRetainUserObject",
        "cuThreadExchangeStreamCaptureMode",
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
    ];
    for call in calls {
        for after in 0..3 {
            let arena = SharedArena::new();
            let pool = pool(PoolOptions::default());
            let a = StreamObject::create(0, true).unwrap();
            let scope = CaptureScope::enter(StreamHold::object(a.clone()), Some(arena.clone())).unwrap();
            begin(a.raw(), 0);
            let mut live = Vec::new();
            sim::fail_next(call, 999, after).unwrap();
            for bytes in [MIB, 100, 40 * MIB, 2 * MIB] {
                match allocate(&pool, bytes, object(&a)) {
                    Ok(ptr) => live.push((ptr, bytes)),
                    Err(e) => assert!(!matches!(e, Error::Misuse(_)), "{e}"),
                }
            }
            sim::fail_clear();
            assert_eq!(pool.info().live_count, live.len() as u64, "{call} {after}");
            pool.check().unwrap();
            let ptr = allocate(&pool, 3 * MIB, object(&a)).unwrap_or_else(|e| panic!("{call} {after}: {e}"));
            free(&pool, ptr, 3 * MIB, object(&a));
            for (ptr, bytes) in live {
                free(&pool, ptr, bytes, object(&a));
            }
            drop(Graph::end(a.raw()));
            drop((scope, arena));
            wait_for(&pool, 0, trimmed);
            pool.check().unwrap();
        }
    }
    assert_eq!(driver_free(), before);
}
