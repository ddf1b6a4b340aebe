//! Threads that share one pool: what each of them pays, and how that grows.

use std::hint::black_box;

use tenure::Resource;

use super::super::bed::{Blocks, Calls, Given, Kind, Sequence, Sizes};
use super::super::plan::{Begin, Op, Plan, Target, scene};
use super::{TRY_LOCK, try_lock};

const THEME: &str = "threads";
/// How many threads there are in the rows.
pub(super) const COUNTS: [usize; 5] = [1, 2, 4, 8, 16];
/// Live blocks of each thread.
const LIVE: usize = 200;
const SIZES: Sizes = Sizes { least: 256, most: 1 << 20 };

struct State {
    pool: Resource,
    /// One for each thread, or one for all.
    streams: Vec<Given>,
}

impl State {
    fn stream(&self, lane: usize) -> &Given {
        &self.streams[lane % self.streams.len()]
    }
}

pub(super) fn rows() -> Vec<Plan> {
    let kinds: [(&str, &str, Kind, bool, Begin<State>); 4] = [
        ("own", "churn of 200 live blocks, each thread on its own stream", Kind::Own, true, churn),
        ("shared", "churn of 200 live blocks each, all threads on one stream", Kind::Own, false, churn),
        ("perthread", "churn of 200 live blocks, each thread on its default stream", Kind::PerThread, false, churn),
        ("pair", "a pair of 256 B, each thread on its own stream", Kind::Own, true, pair),
    ];
    let mut rows = Vec::new();
    for (name, what, kind, each, operation) in kinds {
        for count in COUNTS {
            let plan = Plan::new(
                THEME,
                format!("{THEME}-{name}-{count}"),
                format!("{count} threads: {what}"),
                move |bed| {
                    let streams = Given::many(kind, if each { count } else { 1 })?;
                    scene(State { pool: bed.pool()?, streams }, operation)
                },
                TRY_LOCK,
                try_lock,
            );
            let plan = plan.threads(count, format!("{THEME}-{name}")).warm(16_384).needs(count as u64 * (64 << 20));
            // What is asked is asked of streams of one's own.
            rows.push(if each { plan.target(Target::Growth(1.5)) } else { plan });
        }
    }
    rows
}

fn churn(state: &State, lane: usize) -> tenure::Result<Op<'_>> {
    let mut sequence = Sequence::new(lane);
    let mut blocks = Blocks::new(&state.pool, state.stream(lane).abi(), LIVE, || SIZES.next(&mut sequence))?;
    Ok(Box::new(move || {
        let slot = sequence.below(LIVE);
        blocks.replace(slot, SIZES.next(&mut sequence))
    }))
}

fn pair(state: &State, lane: usize) -> tenure::Result<Op<'_>> {
    let (calls, stream) = (Calls::new(&state.pool)?, state.stream(lane).abi());
    Ok(Box::new(move || {
        let ptr = calls.allocate(256, stream)?;
        calls.free(black_box(ptr), 256, stream)
    }))
}
