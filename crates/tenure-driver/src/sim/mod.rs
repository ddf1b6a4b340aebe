//! The simulated device: a machine with GPUs whose memory is host memory.
//! (docs to be written)

mod api;
mod arena;
mod capture;
mod codes;
mod entry;
mod event;
mod fault;
mod graph;
mod handle;
mod machine;
mod memory;
mod op;
mod os;
mod pool;
mod queue;
mod schedule;
mod size;
mod stream;
mod thread;
mod vmm;

pub use api::{
    Access, SimError, TestLock, busy, fault, launch, launch_for, mismatches, on_violation, table,
    test_lock, violation_texts, violations,
};
pub use capture::{CAPTURE_RULES, CallClass, CaptureRule, Outcome, Situation, capture_outcome};
pub use fault::{calls, calls_all, fail_clear, fail_next, reset_calls};
pub use machine::{Config, OnViolation, config, configure, set_memory};
pub use schedule::{run_all, schedule, schedule_workers, step};
