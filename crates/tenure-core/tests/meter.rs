//! The meter looks at what it measures, and leaves it as it is.

#![allow(missing_docs)]

#[path = "pool_common.rs"]
mod common;

use common::*;
use serde_json::Value;
use tenure_core::arena::{Arena, ArenaOptions};
use tenure_core::bins::{Binning, BinningOptions, FixedSize, FixedSizeOptions};
use tenure_core::observe::meter;
use tenure_core::pool::PoolOptions;
use tenure_core::resource::leaf::shared;
use tenure_core::stream::StreamRef;

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;

fn counted() -> Value {
    serde_json::from_str(&meter::text()).expect("JSON")
}

#[test]
fn what_threads_have_at_hand_stays_theirs() {
    let _machine = machine();
    let own = pool(PoolOptions::default());
    own.force_plots();
    let pool = resource(own);
    for round in 0..300_usize {
        let bytes = (100 << 10) + 4096 * (round % 50);
        let blocks: Vec<u64> = (0..20).map(|_| pool.allocate(bytes, 256, LEGACY).unwrap()).collect();
        for ptr in blocks {
            pool.deallocate(ptr, bytes, 256, LEGACY).unwrap();
        }
    }
    let first = pool.allocate(MIB as usize, 256, LEGACY).unwrap();
    let plots = || pool.body().property("plots");
    assert_eq!(plots(), Some(1));
    meter::begin(false);
    // The driver is asked for more, so that the meter looks.
    let cuda = shared::cuda().unwrap();
    let other = cuda.allocate(4096, 256, LEGACY).unwrap();
    let seen = plots();
    cuda.deallocate(other, 4096, 256, LEGACY).unwrap();
    meter::end();
    assert_eq!(seen, Some(1), "the meter took a thread's plot away");
    assert!(counted()["peak_reserved_bytes"].as_u64() >= Some(MIB));
    pool.deallocate(first, MIB as usize, 256, LEGACY).unwrap();
}

#[test]
fn reserved_bytes_are_those_of_the_figures() {
    let _machine = machine();
    let cuda = || shared::cuda().unwrap();
    let all = [
        resource(pool(PoolOptions::default())),
        resource(pool(PoolOptions { plain_chunks: true, ..PoolOptions::default() })),
        resource(
            Arena::new(cuda(), 0, ArenaOptions { arena_size: Some(64 * MIB), ..ArenaOptions::default() }).unwrap(),
        ),
        resource(FixedSize::new(cuda(), 0, FixedSizeOptions::default()).unwrap()),
        resource(Binning::new(cuda(), 0, BinningOptions::default()).unwrap()),
        cuda(),
    ];
    for resource in all {
        let ptr = resource.allocate(4096, 256, LEGACY).unwrap();
        let reserved = resource.body().reserved_bytes();
        assert_eq!(reserved, resource.body().info().reserved_bytes, "{}", resource.body().kind());
        assert!(reserved >= 4096);
        resource.deallocate(ptr, 4096, 256, LEGACY).unwrap();
    }
}

/// What was told of the end stays: a block that comes meanwhile is not of the run.
#[test]
fn nothing_is_counted_after_the_end() {
    let _machine = machine();
    let pool = resource(pool(PoolOptions::default()));
    meter::begin(false);
    // Somebody else keeps the book.
    tenure_core::observe::history::record(true, false, 16).unwrap();
    let ptr = pool.allocate(4096, 256, LEGACY).unwrap();
    meter::end();
    let ended = counted();
    let later = pool.allocate(8192, 256, LEGACY).unwrap();
    pool.deallocate(later, 8192, 256, LEGACY).unwrap();
    pool.deallocate(ptr, 4096, 256, LEGACY).unwrap();
    tenure_core::observe::history::record(false, false, 16).unwrap();
    let now = counted();
    for figure in ["live_bytes", "live_count", "peak_live_bytes", "allocate_calls", "holders", "left"] {
        assert_eq!(ended[figure], now[figure], "{figure}");
    }
    assert_eq!(now["live_bytes"].as_u64(), Some(4096));
}
