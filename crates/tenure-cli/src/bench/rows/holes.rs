//! Does the number of free holes cost anything?

use std::hint::black_box;

use tenure::Resource;

use super::super::bed::{Blocks, Calls, Given, Kind, Sequence, Sizes};
use super::super::plan::{Op, Plan, scene};
use super::{MALLOC, malloc};

const THEME: &str = "holes";
const SIZES: Sizes = Sizes { least: 256, most: 64 << 10 };

struct State {
    pool: Resource,
    stream: Given,
    holes: usize,
}

pub(super) fn rows() -> Vec<Plan> {
    [0, 64, 1_024, 16_384, 65_536]
        .map(|holes| {
            Plan::new(
                THEME,
                format!("{THEME}-{holes}"),
                format!("a pair of 256 B to 64 KiB on a pool with {holes} free holes of such sizes"),
                move |bed| scene(State { pool: bed.pool()?, stream: Given::new(Kind::Own)?, holes }, operation),
                MALLOC,
                malloc,
            )
            .needs((holes as f64 * 8.0 * SIZES.mean()) as u64)
        })
        .into()
}

fn operation(state: &State, lane: usize) -> tenure::Result<Op<'_>> {
    let (calls, stream, mut sequence) = (Calls::new(&state.pool)?, state.stream.abi(), Sequence::new(lane));
    // Twice as many blocks as holes, of which every second one goes.
    let mut walls = Blocks::new(&state.pool, stream, state.holes * 2, || SIZES.next(&mut sequence))?;
    walls.thin()?;
    Ok(Box::new(move || {
        let _between = &walls;
        let bytes = SIZES.next(&mut sequence);
        let ptr = calls.allocate(bytes, stream)?;
        calls.free(black_box(ptr), bytes, stream)
    }))
}
