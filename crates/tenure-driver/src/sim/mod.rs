//! The simulated device: a machine with GPUs, made of host memory and threads, behind the same table of driver calls.
//!
//! It is there for people without a GPU, and for tests that no GPU could serve. [`table`] gives the calls; whoever has
//! the table need not know what is behind it.
//!
//! ```text
//!   the table                entry/*     one function a driver call: arguments, capture rules, then the work
//!                               |
//!   machine  one lock over: devices and their contexts, handles, violations
//!      |
//!      +-- stream   queues, points, clocks: the driver's order      +-- memory   plain, managed, pinned; what a pointer is
//!      +-- event    a point of a stream, carried to others          +-- pool     stream-ordered allocation, reuse in order
//!      +-- capture  what is recorded, which calls end a capture     +-- vmm      address ranges over shared pages
//!      +-- graph    launches, user objects, memory of graphs        +-- arena    free ranges
//!      |
//!   queue     workers run what is ready, without the lock           os: mappings and pages of the system
//!   schedule  or nobody does, until somebody steps or waits
//!   fault, api, checker   what only a simulated device can do
//! ```
//!
//! # What it does as the driver does it
//!
//! * Work put into a stream runs later, on other threads, on real bytes. Streams are in order; the legacy stream and the
//!   blocking streams of its context wait for each other; the per-thread stream is one per thread; events carry order.
//! * Memory is limited and counted. Stream-ordered memory is reused on another stream only where an event, the legacy
//!   stream, completion or an inserted wait orders it. Two mappings of a page show the same bytes.
//! * A plain free waits for the device. A copy from or to ordinary host memory is complete at return (small copies to the
//!   device are kept and made later).
//! * While a stream captures, calls work, are refused, or end the capture as [`CAPTURE_RULES`] says, which was measured.
//!   More generally, about 1 100 codes were recorded on an H200 and are compared with its own by
//!   `tests/sim_parity.rs`; where it is stricter on purpose, the reason is given there.
//! * The value of a destroyed handle is given to the next stream or event. A call with a value that is nothing at the
//!   moment would be a segmentation fault or worse; here it is a *violation*: the process ends with a sentence, or goes on
//!   and counts (see [`on_violation`]).
//! * A kernel that touches what is not there puts its device into a fault (700), for good.
//! * A forked child of a process that has used it is refused with 3, as by CUDA. A process may exit at any time.
//!
//! # What only it can do
//!
//! * [`fail_next`]: make any future call fail with any code. [`calls`]: how often each call was made.
//! * [`busy`], [`launch`], [`launch_for`]: long and touching "kernels". [`fault()`]: a broken device. [`set_memory`]: a
//!   device that shrinks.
//! * [`schedule()`]: run the queues in any legal order, chosen by a seed, step by step; [`schedule_workers`] ends it.
//! * [`check_order`]: find every pair of accesses to a physical byte that the program does not order, whether or not it
//!   collided in this run.
//!
//! # Limits
//!
//! Contexts are the primary ones. Nothing is shared with other processes (`NOT_SUPPORTED`). Every device reaches plain and
//! pooled memory of every other; virtual ranges have access per device. Graphs come from captures and their launches run
//! the nodes one by one. Priorities of streams are ignored. Device memory can be read by the host, which no program should
//! rely on. Each mapping of pages costs one of the mappings that the system gives a process (65 530 by default on Linux). The
//! per-thread stream of a thread that has ended stays known until the process ends.
//!
//! # Cost
//!
//! One lock is taken per call. A stream-ordered allocation with its free takes about 0.6 us, an event record 0.3 us, a
//! small copy 1 us to submit and some microseconds to complete (one x86-64 core at 3 GHz).

mod api;
mod arena;
mod capture;
mod checker;
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
mod sharing;
mod size;
mod stream;
mod thread;
mod vmm;

pub use api::{
    Access, SimError, TestLock, busy, check_order, fault, launch, launch_for, mismatches, on_violation, race_texts,
    races, table, test_lock, violation_texts, violations,
};
pub use capture::{CAPTURE_RULES, CallClass, CaptureRule, Outcome, Situation, capture_outcome};
pub use fault::{calls, calls_all, fail_clear, fail_next, reset_calls, watch_calls};
pub use machine::{Config, OnViolation, config, configure, set_memory};
pub use schedule::{run_all, schedule, schedule_workers, step};
