//! What each adaptor adds to a pair. A further adaptor is one more line in [`ADAPTORS`].

use tenure::{Aligned, FailureCallback, Limiting, Logging, Prefetch, Resource, Statistics, ThreadSafe, Tracking};

use super::super::bed::{Bed, Given, Kind};
use super::super::plan::{Plan, Scene, Target, scene};
use super::pair::{State, c};

const THEME: &str = "adaptors";

type Wrap = fn(&Resource) -> tenure::Result<Resource>;

/// Its name, how it is made, and the nanoseconds that it may add.
const ADAPTORS: [(&str, Wrap, f64); 8] = [
    ("statistics", |upstream| Ok(Statistics::new(upstream)?.into()), 25.0),
    ("limiting", |upstream| Ok(Limiting::new(upstream, 1 << 30)?.into()), 25.0),
    // Two rows of text, each of which is in the file before the call returns.
    ("logging", |upstream| Ok(Logging::new(upstream, log_file())?.into()), 200.0),
    ("tracking", |upstream| Ok(Tracking::new(upstream, false)?.into()), 25.0),
    ("failure_callback", |upstream| Ok(FailureCallback::new(upstream, |_bytes| Ok(false))?.into()), 25.0),
    ("prefetch", |upstream| Ok(Prefetch::new(upstream)?.into()), 25.0),
    ("aligned", |upstream| Ok(Aligned::new(upstream, 4096, 4096)?.into()), 25.0),
    ("thread_safe", |upstream| Ok(ThreadSafe::new(upstream)?.into()), 25.0),
];

/// A file of this process's own. It is left behind where the system keeps what is temporary.
fn log_file() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("tenure-bench-{}.csv", std::process::id()))
}

pub(super) fn rows() -> Vec<Plan> {
    ADAPTORS
        .map(|(name, wrap, above)| {
            Plan::new(
                THEME,
                format!("{THEME}-{name}"),
                format!("allocate + deallocate of 256 B through {name} on a pool, C ABI"),
                move |bed| stage(bed, wrap),
                "the same on the pool alone",
                |bed| stage(bed, |pool| Ok(pool.clone())),
            )
            .target(Target::Above(above))
        })
        .into()
}

fn stage(bed: &Bed, wrap: Wrap) -> tenure::Result<Box<dyn Scene>> {
    // The adaptor keeps its upstream alive.
    scene(State { pool: wrap(&bed.pool()?)?, stream: Given::new(Kind::Own)?, bytes: 256 }, c)
}
