//! A program that changes its ways: many small blocks, then a very large one.

use std::time::Instant;

use tenure::{Pool, Resource};

use super::super::bed::{Bed, Blocks, Calls, Given, Kind, Sequence, Sizes};
use super::super::plan::{Op, Part, Plan, scene};

const THEME: &str = "phase";
/// The size of the pool: fixed, so that the large block must come out of what the small ones had.
const POOL: u64 = 64 << 20;
/// 60 % of it.
const LARGE: usize = (POOL / 10 * 6) as usize;
/// The small blocks fill 80 % of it.
const SWARM: u64 = POOL / 10 * 8;
const SIZES: Sizes = Sizes { least: 256, most: 64 << 10 };

struct State {
    pool: Resource,
    swarm: Option<Given>,
    large: Given,
}

pub(super) fn rows() -> Vec<Plan> {
    [("same", "the same stream"), ("other", "another stream")]
        .map(|(name, stream)| {
            let other = name == "other";
            let plan = Plan::new(
                THEME,
                format!("{THEME}-{name}"),
                format!("60 % of a pool of 64 MiB allocated on {stream} after small blocks had filled 80 % of it"),
                move |bed| {
                    let large = Given::new(Kind::Own)?;
                    let swarm = if other { Given::new(Kind::Own)? } else { large.clone() };
                    scene(State { pool: pool(bed)?, swarm: Some(swarm), large }, operation)
                },
                "the same allocation in a pool that has served nothing else",
                |bed| scene(State { pool: pool(bed)?, swarm: None, large: Given::new(Kind::Own)? }, operation),
            )
            .warm(1)
            .needs(POOL * 3);
            Plan { counted: false, ..plan }
        })
        .into()
}

fn pool(bed: &Bed) -> tenure::Result<Resource> {
    Ok(Pool::builder(&bed.device).initial_size(POOL).maximum_size(POOL).build()?.into())
}

fn operation(state: &State, lane: usize) -> tenure::Result<Op<'_>> {
    let (calls, large) = (Calls::new(&state.pool)?, state.large.abi());
    let mut sequence = Sequence::new(lane);
    Ok(Box::new(Part(move || {
        if let Some(stream) = &state.swarm {
            let count = (SWARM as f64 / SIZES.mean()) as usize;
            drop(Blocks::new(&state.pool, stream.abi(), count, || SIZES.next(&mut sequence))?);
        }
        let start = Instant::now();
        let ptr = calls.allocate(LARGE, large)?;
        let ns = start.elapsed().as_nanos() as f64;
        calls.free(ptr, LARGE, large)?;
        Ok(ns)
    })))
}
