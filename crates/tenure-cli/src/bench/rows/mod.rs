//! The rows, by theme. A new row is one more [`Plan`] in the list of its theme; a new theme one more line in [`THEMES`].

use std::alloc::{Layout, alloc, dealloc};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use super::bed::Bed;
use super::plan::{Op, Plan, Scene, scene};

mod adaptors;
mod burst;
mod churn;
mod current;
mod handover;
mod holes;
mod ownership;
mod pair;
mod phase;
mod random;
mod threads;

/// A theme: its name, what its rows do, and what they are.
pub(crate) struct Theme {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    rows: fn() -> Vec<Plan>,
}

/// All themes, in the order of the report.
pub(crate) const THEMES: [Theme; 12] = [
    Theme {
        name: "pair",
        what: "a block allocated and freed at once on a pool, by kind of stream and size; C ABI unless the name says try (the \
               entries that never wait) or rust (the crate)",
        rows: pair::rows,
    },
    Theme {
        name: "churn",
        what: "a random one of N live blocks freed and another allocated (256 B to 4 MiB, or less where the device is small)",
        rows: churn::rows,
    },
    Theme {
        name: "holes",
        what: "a pair of 256 B to 64 KiB on a pool with N free holes of such sizes",
        rows: holes::rows,
    },
    Theme {
        name: "threads",
        what: "each of N threads on one pool; own, shared, perthread: churn of 200 live blocks of 256 B to 1 MiB on its own \
               stream, on one stream of all, on the default stream of the thread; pair: a pair of 256 B on its own stream",
        rows: threads::rows,
    },
    Theme {
        name: "handover",
        what: "a pair that is allocated on one of N streams and freed on the next one, in turn",
        rows: handover::rows,
    },
    Theme {
        name: "burst",
        what: "10 000 small buffers allocated, then freed, by a call for each or one for all; for each buffer",
        rows: burst::rows,
    },
    Theme {
        name: "phase",
        what: "the allocation of 60 % of a fixed pool after a swarm of small blocks has come and gone in it",
        rows: phase::rows,
    },
    Theme {
        name: "random_allocations",
        what: "RMM's benchmark of that name (allocations, largest size): for each step, an allocation or a free",
        rows: random::rows,
    },
    Theme { name: "adaptors", what: "a pair of 256 B through an adaptor on a pool", rows: adaptors::rows },
    Theme {
        name: "ownership",
        what: "an owning buffer of 1 KiB made and dropped, by N threads on streams of their own",
        rows: ownership::rows,
    },
    Theme { name: "current", what: "the current resource read and its reference given back", rows: current::rows },
    Theme {
        name: "buffer",
        what: "an owning buffer of 1 KiB made and dropped, beside the C ABI",
        rows: ownership::buffer_rows,
    },
];

/// The plans of all themes.
pub(crate) fn all() -> Vec<Plan> {
    THEMES.iter().flat_map(|theme| (theme.rows)()).collect()
}

/// The reference of most rows: the system's allocator with one small block.
const MALLOC: &str = "malloc + free of 256 B";

fn malloc(_: &Bed) -> tenure::Result<Box<dyn Scene>> {
    scene((), |(), _| {
        Ok(Box::new(|| {
            // SAFETY: the layout is not empty; the block is freed with the same layout.
            unsafe {
                let layout = Layout::from_size_align_unchecked(black_box(256), 16);
                dealloc(black_box(alloc(layout)), layout);
            }
            Ok(())
        }))
    })
}

/// The reference of rows over threads: what the machine itself does to private work when more threads run.
const TRY_LOCK: &str = "a try-lock of the thread's own taken and released, twice";

/// A word on a cache line of its own (two, since some machines fetch lines in pairs).
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicBool);

fn try_lock(_: &Bed) -> tenure::Result<Box<dyn Scene>> {
    scene((), |(), _| -> tenure::Result<Op<'_>> {
        let line = Box::new(Line::default());
        Ok(Box::new(move || {
            for _ in 0..2 {
                // An allocation and a free take their lock once each.
                let taken = black_box(&line).0.swap(true, Ordering::Acquire);
                debug_assert!(!taken, "nobody else has it");
                line.0.store(false, Ordering::Release);
            }
            Ok(())
        }))
    })
}
