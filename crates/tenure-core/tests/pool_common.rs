//! What the pool's tests share. Not a test by itself.

#![allow(missing_docs, dead_code)]

use tenure_core::error::Result;
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{MemoryResource, Request, Resource};
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_driver::{RawStream, sim};

pub(crate) const MIB: u64 = 1 << 20;
/// The memory of each simulated device here.
pub(crate) const DEVICE: u64 = 256 * MIB;

/// The simulated device, and no other test of the process beside this one: calls are counted and made to fail.
pub(crate) fn machine() -> sim::TestLock {
    let _ = sim::configure(sim::Config { devices: 2, memory: DEVICE });
    tenure_driver::load::prefer_sim().expect("the simulated device");
    let lock = sim::test_lock();
    // The small block whose free is a proof is the device's for good: not part of what a test compares. Under the lock: two
    // that make it at once have two for a moment.
    tenure_core::device::prepare_proof(0).expect("256 bytes");
    lock
}

pub(crate) fn pool(options: PoolOptions) -> Pool {
    Pool::new(shared::cuda().expect("the plain resource"), 0, options).expect("a pool")
}

pub(crate) fn request(bytes: u64) -> Request {
    Request { bytes: bytes as usize, align: 256, owner: 7, flags: 0 }
}

pub(crate) fn allocate(pool: &Pool, bytes: u64, stream: StreamRef<'_>) -> Result<u64> {
    pool.allocate(&request(bytes), stream)
}

pub(crate) fn free(pool: &Pool, ptr: u64, bytes: u64, stream: StreamRef<'_>) {
    pool.deallocate(ptr, &request(bytes), stream).expect("a free");
}

pub(crate) fn object(stream: &StreamObject) -> StreamRef<'_> {
    StreamRef { raw: stream.raw(), object: Some(stream), stored: false }
}

/// A raw value out of a buffer's memory.
pub(crate) fn stored(raw: RawStream) -> StreamRef<'static> {
    StreamRef { raw, object: None, stored: true }
}

/// Free bytes of device 0 as the driver says.
pub(crate) fn driver_free() -> u64 {
    tenure_core::device::memory_info(0).expect("the driver's figures").0
}

pub(crate) fn resource(body: impl MemoryResource) -> Resource {
    Resource::new(body).expect("a resource")
}
