//! Eager memory that meets a capture: what was freed into one is ordered with nothing outside it.

#![allow(missing_docs)]

#[path = "pool_graph_common.rs"]
mod graphs;

use std::time::Duration;

use graphs::*;
use tenure_core::pool::PoolOptions;
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_driver::sim;
use tenure_driver::sys::CU_STREAM_CAPTURE_MODE_RELAXED;

#[test]
fn what_is_freed_into_the_capture_of_an_unknown_stream_is_not_that_streams_afterwards() {
    let _machine = machine();
    let pool = pool(PoolOptions { maximum_bytes: Some(8 * MIB), ..Default::default() });
    let (a, b) = (StreamObject::create(0, true).unwrap(), StreamObject::create(0, true).unwrap());
    // Two streams are known, so that nothing is everyone's by itself. b is not among them.
    let other = allocate(&pool, 256, StreamRef::DEFAULT).unwrap();
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
    free(&pool, other, 256, StreamRef::DEFAULT);
    drop(graph);
    trimmed(&pool);
    assert_eq!(tenure_core::resource::MemoryResource::info(&pool).reserved_bytes, 0);
}
