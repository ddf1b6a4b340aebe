//! Memory of graphs: an arena for each capture, one that several share, and what a scope announces.

mod common;

use std::time::{Duration, Instant};

use common::alone;
use tenure::sim::{CaptureMode, Graph};
use tenure::{CaptureScope, Device, DeviceBuffer, Error, Pool, SharedArena, Stream, StreamRef, cuda};

const BYTES: usize = 1 << 20;

fn pool() -> Pool {
    Pool::builder(&Device::current().unwrap()).build().unwrap()
}

/// The graph of a capture in which a buffer comes and goes.
fn captured(stream: StreamRef<'_>, pool: &Pool, mode: CaptureMode) -> Graph {
    Graph::begin(stream, mode).unwrap();
    drop(DeviceBuffer::new_in(BYTES, stream, pool).unwrap());
    Graph::end(stream).unwrap()
}

/// What graphs had goes back once they are gone, of which the driver tells on a thread of its own.
fn empties(pool: &Pool) -> bool {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        pool.trim(0).unwrap();
        if pool.graph_bytes().unwrap() == 0 && pool.info().unwrap().reserved_bytes == 0 {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_graph_has_its_memory_as_long_as_it_lives() {
    let _alone = alone();
    let (pool, stream) = (pool(), Stream::create().unwrap());
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        let graphs = [(); 3].map(|()| captured(stream.as_ref(), &pool, mode));
        assert!(pool.graph_bytes().unwrap() >= 3 * BYTES as u64, "each has its own");
        pool.trim(0).unwrap();
        assert!(pool.graph_bytes().unwrap() >= 3 * BYTES as u64, "{mode:?}: they may run again");
        for graph in &graphs {
            graph.launch(&stream).unwrap();
        }
        stream.synchronize().unwrap();
        drop(graphs);
        assert!(empties(&pool), "{mode:?}");
    }
}

#[test]
fn graphs_that_never_run_at_once_share_an_arena() {
    let _alone = alone();
    let (pool, stream) = (pool(), Stream::create().unwrap());
    let arena = SharedArena::new().unwrap();
    let mut graphs = Vec::new();
    let mut first = 0;
    for _ in 0..4 {
        let _scope = CaptureScope::enter(&stream, Some(&arena)).unwrap();
        graphs.push(captured(stream.as_ref(), &pool, CaptureMode::Global));
        first = if first == 0 { pool.graph_bytes().unwrap() } else { first };
    }
    assert_eq!(pool.graph_bytes().unwrap(), first, "what one freed serves the next");
    for graph in &graphs {
        graph.launch(&stream).unwrap();
    }
    stream.synchronize().unwrap();
    // The name is not needed any more; the graphs are.
    drop(arena);
    graphs.truncate(1);
    pool.trim(0).unwrap();
    assert_eq!(pool.graph_bytes().unwrap(), first);
    drop(graphs);
    assert!(empties(&pool));
}

#[test]
fn a_scope_announces_the_per_thread_stream() {
    let _alone = alone();
    let (pool, stream) = (pool(), Stream::per_thread_default());
    // So that the pool has memory at hand, for which the stream would not be asked.
    drop(DeviceBuffer::new_in(BYTES, &stream, &pool).unwrap());
    let scope = CaptureScope::enter(&stream, None).unwrap();
    let graph = captured(stream.as_ref(), &pool, CaptureMode::Global);
    drop(scope);
    assert!(pool.graph_bytes().unwrap() >= BYTES as u64);
    drop(graph);
    assert!(empties(&pool));
}

#[test]
fn what_cannot_be_is_refused_and_the_capture_goes_on() {
    let _alone = alone();
    let (pool, stream) = (pool(), Stream::create().unwrap());
    let arena = SharedArena::new().unwrap();
    assert!(matches!(CaptureScope::enter(&Stream::legacy_default(), None), Err(Error::Invalid(_))));
    let open = CaptureScope::enter(&stream, Some(&arena)).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let other = Stream::create().unwrap();
            CaptureScope::enter(&other, Some(&arena)).map(drop)
        });
        assert!(matches!(other.join().unwrap(), Err(Error::Invalid(_))), "it is open on another thread");
    });
    drop(open);
    Graph::begin(&stream, CaptureMode::Global).unwrap();
    match DeviceBuffer::new_in(BYTES, &stream, &cuda().unwrap()) {
        Err(Error::Unsupported(text)) => assert!(text.contains("capturing"), "{text}"),
        other => panic!("{other:?}"),
    }
    drop(DeviceBuffer::new_in(BYTES, &stream, &pool).unwrap());
    drop(Graph::end(&stream).expect("the capture is as it was"));
    assert!(empties(&pool));
}
