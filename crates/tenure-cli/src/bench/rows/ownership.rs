//! What an owner adds to a block.

use std::hint::black_box;

use tenure::{DEFAULT_ALIGNMENT, DeviceBuffer, Resource};

use super::super::bed::{Given, Kind};
use super::super::plan::{Begin, Op, Plan, Target, scene};
use super::pair::{State, c};
use super::threads::COUNTS;

const THEME: &str = "ownership";
const BYTES: usize = 1024;

struct Shared {
    pool: Resource,
    streams: Vec<Given>,
}

pub(super) fn rows() -> Vec<Plan> {
    let make = |count: usize, operation: Begin<Shared>| {
        move |bed: &super::Bed| scene(Shared { pool: bed.pool()?, streams: Given::many(Kind::Own, count)? }, operation)
    };
    COUNTS
        .map(|count| {
            Plan::new(
                THEME,
                format!("{THEME}-{count}"),
                format!("{count} threads: an owning buffer of 1 KiB made and dropped on the thread's own stream, Rust"),
                make(count, buffer),
                "allocate + deallocate of 1 KiB likewise, Rust",
                make(count, raw),
            )
            .threads(count, THEME)
            .target(Target::Above(20.0))
        })
        .into()
}

fn buffer(shared: &Shared, lane: usize) -> tenure::Result<Op<'_>> {
    let (pool, stream) = (&shared.pool, shared.streams[lane].stream());
    Ok(Box::new(move || {
        drop(black_box(DeviceBuffer::new_in(BYTES, stream, pool)?));
        Ok(())
    }))
}

fn raw(shared: &Shared, lane: usize) -> tenure::Result<Op<'_>> {
    let (pool, stream) = (&shared.pool, shared.streams[lane].stream());
    Ok(Box::new(move || {
        let ptr = black_box(pool.allocate(BYTES, stream)?);
        // SAFETY: nobody uses the block.
        unsafe { pool.deallocate(ptr, BYTES, DEFAULT_ALIGNMENT, stream) }
    }))
}

/// The theme `buffer`: one row, beside the C ABI.
pub(super) fn buffer_rows() -> Vec<Plan> {
    vec![Plan::new(
        "buffer",
        "buffer-rust",
        "an owning buffer of 1 KiB made and dropped, on a pool",
        |bed| scene(Shared { pool: bed.pool()?, streams: Given::many(Kind::Own, 1)? }, buffer),
        "allocate + deallocate of 1 KiB through the C ABI",
        |bed| scene(State { pool: bed.pool()?, stream: Given::new(Kind::Own)?, bytes: BYTES }, c),
    )]
}
