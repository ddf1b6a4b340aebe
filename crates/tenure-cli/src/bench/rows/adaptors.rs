//! What each adaptor adds to a pair. A further adaptor is one more line in [`ADAPTORS`].

use tenure::{Aligned, FailureCallback, Limiting, Prefetch, Resource, Statistics, ThreadSafe, Tracking};

use super::super::bed::{Bed, Given, Kind};
use super::super::plan::{Plan, Scene, Target, scene};
use super::pair::{State, c};

const THEME: &str = "adaptors";

type Wrap = fn(&Resource) -> tenure::Result<Resource>;

const ADAPTORS: [(&str, Wrap); 7] = [
    ("statistics", |upstream| Ok(Statistics::new(upstream)?.into())),
    ("limiting", |upstream| Ok(Limiting::new(upstream, 1 << 30)?.into())),
    ("tracking", |upstream| Ok(Tracking::new(upstream, false)?.into())),
    ("failure_callback", |upstream| Ok(FailureCallback::new(upstream, |_bytes| Ok(false))?.into())),
    ("prefetch", |upstream| Ok(Prefetch::new(upstream)?.into())),
    ("aligned", |upstream| Ok(Aligned::new(upstream, 4096, 4096)?.into())),
    ("thread_safe", |upstream| Ok(ThreadSafe::new(upstream)?.into())),
];

pub(super) fn rows() -> Vec<Plan> {
    ADAPTORS
        .map(|(name, wrap)| {
            Plan::new(
                THEME,
                format!("{THEME}-{name}"),
                format!("allocate + deallocate of 256 B through {name} on a pool, C ABI"),
                move |bed| stage(bed, wrap),
                "the same on the pool alone",
                |bed| stage(bed, |pool| Ok(pool.clone())),
            )
            .target(Target::Above(25.0))
        })
        .into()
}

fn stage(bed: &Bed, wrap: Wrap) -> tenure::Result<Box<dyn Scene>> {
    // The adaptor keeps its upstream alive.
    scene(State { pool: wrap(&bed.pool()?)?, stream: Given::new(Kind::Own)?, bytes: 256 }, c)
}
