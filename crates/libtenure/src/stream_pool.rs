//! Stream pools.

use tenure_abi::*;
use tenure_core::error::Result;
use tenure_core::stream_pool::StreamPool;
use tenure_core::sync::Arc;

use crate::device::ordinal;
use crate::guard::exports;
use crate::handles::{stream_out, stream_release, stream_retain, writable, write};
use crate::slab::{FEW, Slab};

static POOLS: Slab<Arc<Seated>, (), FEW> = Slab::new(9, "stream pool", |_| ());

/// A pool whose streams have their handles, of each of which it holds one reference.
struct Seated {
    pool: StreamPool,
    seats: Vec<tenure_stream_object>,
}

impl Seated {
    fn new(pool: StreamPool) -> Result<Self> {
        let mut seated = Self { pool, seats: Vec::new() };
        for object in seated.pool.streams() {
            seated.seats.push(stream_out(object.clone())?.object);
        }
        Ok(seated)
    }

    /// A reference to one of them for the client.
    fn give(&self, index: usize) -> Result<tenure_stream> {
        let object = self.seats[index];
        stream_retain(object)?;
        Ok(tenure_stream { raw: self.pool.streams()[index].raw().as_raw(), object })
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        for object in &self.seats {
            // A reference of ours, given back once.
            let _ = stream_release(*object);
        }
    }
}

fn pool(handle: tenure_stream_pool) -> Result<Arc<Seated>> {
    POOLS.peek(handle, |pool| pool.clone())
}

exports! { guard:
    fn tenure_stream_pool_create(
        device: i32, streams: usize, non_blocking: u32, out: *mut tenure_stream_pool,
    ) {
        writable(out)?;
        let seated = Seated::new(StreamPool::new(ordinal(device)?, streams, non_blocking != 0)?)?;
        write(out, POOLS.insert(Arc::new(seated))?)?;
    }

    fn tenure_stream_pool_size(given: tenure_stream_pool, out: *mut usize) {
        writable(out)?;
        write(out, pool(given)?.seats.len())?;
    }

    fn tenure_stream_pool_next(given: tenure_stream_pool, out: *mut tenure_stream) {
        writable(out)?;
        let pool = pool(given)?;
        write(out, pool.give(pool.pool.turn())?)?;
    }

    fn tenure_stream_pool_at(given: tenure_stream_pool, number: usize, out: *mut tenure_stream) {
        writable(out)?;
        let pool = pool(given)?;
        write(out, pool.give(pool.pool.index(number))?)?;
    }
}

exports! { guard_release:
    fn tenure_stream_pool_release(given: tenure_stream_pool) {
        drop(POOLS.remove(given, |_| Ok(()))?);
    }
}
