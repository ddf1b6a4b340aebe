//! Threads at their desks while others visit them. They are started without `thread::scope` and meet through nothing but the
//! pool, so that ThreadSanitizer can follow (`ci/tsan`).

#![allow(missing_docs)]

#[path = "pool_common.rs"]
mod common;

use std::sync::Arc;

use common::*;
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::MemoryResource;
use tenure_core::stream::StreamRef;

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;

/// Small and large blocks, so that magazines, the parked block and the placer are met.
fn churn(pool: &Pool, seed: u64, steps: usize) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed);
    let mut live = [(0, 0); 24];
    for _ in 0..steps {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let (ptr, bytes) = &mut live[(state >> 8) as usize % 24];
        if *ptr == 0 {
            *bytes = 1 + (state >> 32) % if (state >> 16).is_multiple_of(6) { 200_000 } else { 5000 };
            *ptr = allocate(pool, *bytes, LEGACY).unwrap();
        } else {
            free(pool, std::mem::take(ptr), *bytes, LEGACY);
        }
    }
    live.into_iter().filter(|(ptr, _)| *ptr != 0).for_each(|(ptr, bytes)| free(pool, ptr, bytes, LEGACY));
}

#[test]
fn desks_are_visited_while_their_threads_are_at_them() {
    let _machine = machine();
    let pool = Arc::new(pool(PoolOptions::default()));
    let threads: Vec<_> = (1..4)
        .map(|seed| {
            let pool = pool.clone();
            std::thread::spawn(move || churn(&pool, seed, 20_000))
        })
        .collect();
    // Each visit takes everything out of all of them, and counts what they have.
    while !threads.iter().all(std::thread::JoinHandle::is_finished) {
        pool.trim(0).unwrap();
        // What a thread takes in hand between the visit and the count is in the figure.
        assert!(pool.info().reserved_bytes <= DEVICE);
        // A slow machine makes a crowd of them.
        assert!(pool.property("plots") <= Some(3));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!((pool.info().live_count, pool.info().live_bytes), (0, 0));
    pool.check().unwrap();
    pool.trim(0).unwrap();
    assert_eq!(pool.info().reserved_bytes, 0);
}
