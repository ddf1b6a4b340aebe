//! Blocks that are allocated on one stream and freed on another: the producer and the consumer.
//!
//! No work is queued, so that no wait between the streams is owed before the free; what is measured is what the pool does
//! to move memory between them.

use std::hint::black_box;

use tenure::Resource;

use super::super::bed::{Calls, Given, Kind};
use super::super::plan::{Op, Plan, scene};

const THEME: &str = "handover";
const BYTES: usize = 64 << 10;

struct State {
    pool: Resource,
    streams: Vec<Given>,
    /// How far on the stream of the free is.
    step: usize,
}

pub(super) fn rows() -> Vec<Plan> {
    let make = |count: usize, step: usize| {
        move |bed: &super::Bed| {
            scene(State { pool: bed.pool()?, streams: Given::many(Kind::Own, count)?, step }, operation)
        }
    };
    [2, 4, 8, 16]
        .map(|count| {
            Plan::new(
                THEME,
                format!("{THEME}-{count}"),
                format!("a pair of 64 KiB allocated on one of {count} streams and freed on the next one, in turn"),
                make(count, 1),
                "the same, freed on the stream of its allocation",
                make(count, 0),
            )
            .warm(2048)
        })
        .into()
}

fn operation(state: &State, _: usize) -> tenure::Result<Op<'_>> {
    let calls = Calls::new(&state.pool)?;
    let streams: Vec<_> = state.streams.iter().map(Given::abi).collect();
    let mut at = 0;
    let step = state.step;
    Ok(Box::new(move || {
        let ptr = calls.allocate(BYTES, streams[at % streams.len()])?;
        calls.free(black_box(ptr), BYTES, streams[(at + step) % streams.len()])?;
        at += 1;
        Ok(())
    }))
}
