//! Memory of a pool on other devices: all that is ever mapped is open to those that the pool was made for, and whoever cannot
//! be one is refused by name.
//!
//! A device that touches what it may not is answered 700 from there on, as on a GPU.

#![allow(missing_docs)]

#[path = "pool_common.rs"]
mod common;

use common::*;
use tenure_core::error::Error;
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{MemoryResource, Resource};
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_driver::{sim, sys};

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;

/// Device 1 writes and reads a block.
fn touch(other: &StreamObject, ptr: u64, bytes: u64) {
    let bytes = bytes as usize;
    let driver = tenure_core::device::driver().unwrap();
    sim::launch(other.raw().as_raw(), &[], &[(ptr, bytes, 0x5a)]).unwrap();
    let verify = sim::Access::Verify { at: ptr, len: bytes, byte: 0x5a };
    sim::launch_for(other.raw().as_raw(), std::time::Duration::ZERO, &[verify]).unwrap();
    driver.stream_synchronize(other.raw()).expect("device 1 may use the memory");
}

#[test]
fn a_peer_reaches_what_is_grown_what_is_remapped_and_what_graphs_have() {
    let _machine = machine();
    let driver = tenure_core::device::driver().unwrap();
    let _current = driver.device(0).unwrap().enter().unwrap();
    let before = sim::mismatches();
    let other = StreamObject::create(1, true).unwrap();
    let pool = pool(PoolOptions { maximum_bytes: Some(16 * MIB), peers: 0b11, ..Default::default() });
    let blocks = [(); 4].map(|()| allocate(&pool, 4 * MIB, LEGACY).unwrap());
    blocks.iter().for_each(|ptr| touch(&other, *ptr, 4 * MIB));

    free(&pool, blocks[0], 4 * MIB, LEGACY);
    free(&pool, blocks[2], 4 * MIB, LEGACY);
    let wide = allocate(&pool, 8 * MIB, LEGACY).unwrap();
    assert!(!blocks.contains(&wide), "the two holes are side by side now");
    touch(&other, wide, 8 * MIB);
    for (ptr, bytes) in [(wide, 8 * MIB), (blocks[1], 4 * MIB), (blocks[3], 4 * MIB)] {
        free(&pool, ptr, bytes, LEGACY);
    }
    pool.trim(0).unwrap();

    let stream = StreamObject::create(0, true).unwrap();
    driver.stream_begin_capture(stream.raw(), sys::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let of_graph = allocate(&pool, MIB, object(&stream)).unwrap();
    let graph = driver.stream_end_capture(stream.raw()).unwrap();
    touch(&other, of_graph, MIB);
    free(&pool, of_graph, MIB, LEGACY);
    // SAFETY: made by this capture, used by nobody.
    unsafe { driver.graph_destroy(graph) }.unwrap();
    assert_eq!(sim::mismatches(), before);
}

fn refused(upstream: Resource, options: PoolOptions) -> String {
    match Pool::new(upstream, 0, options) {
        Err(Error::Unsupported(text) | Error::Invalid(text)) => text,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was made"),
    }
}

#[test]
fn who_cannot_be_a_peer_is_refused_by_name() {
    let _machine = machine();
    let before = driver_free();
    let cuda = || shared::cuda().unwrap();
    let nobody = refused(cuda(), PoolOptions { peers: 1 << 40, ..Default::default() });
    assert!(nobody.contains("no device 40"), "{nobody}");
    for chunks in [
        refused(cuda(), PoolOptions { peers: 0b10, plain_chunks: true, ..Default::default() }),
        refused(shared::managed().unwrap(), PoolOptions { peers: 0b10, ..Default::default() }),
    ] {
        assert!(chunks.contains("peers") && chunks.contains("PeerAccess"), "{chunks}");
    }
    // The simulated device has no network cards.
    for plain_chunks in [false, true] {
        let cards = refused(cuda(), PoolOptions { rdma: true, plain_chunks, ..Default::default() });
        assert!(cards.starts_with("rdma"), "{cards}");
    }
    assert_eq!(driver_free(), before);
    // Its own device is no peer, and no reason to refuse either.
    drop(pool(PoolOptions { peers: 0b01, plain_chunks: true, ..Default::default() }));
}
