//! Random programs for the pool on the simulated device, checked step by step and shrunk on failure.
//!
//! ```text
//!   seed --> generate: Program { settings, ops }
//!                |
//!                v                one op at a time, on the thread that acts
//!   crew: thread 0, 1, 2  <------ run ------> world: what the program may know (its blocks, streams, graphs)
//!                |                              |
//!                |                              +--> the pools, through their public face
//!                v                              +--> checks after each step
//!   a failure --> shrink --> the shortest list that still fails, as text that is pasted into a test
//! ```
//!
//! **The programs are correct.** Each access of a block is ordered after the one before it, by its stream, by an event or
//! by a wait of the host, and after its free there is none. So whatever the check of order finds (`sim::check_order`) is
//! the pool's fault: it compares each access to a *physical* byte with the ones before it, also those of the former owners
//! of that byte, and wants the program to order the two, whether or not this run made them collide.
//!
//! **What is checked.** After each step: no unordered access, no verified byte wrong, no call on a dead handle, no access
//! to what is not mapped (I2, I9); an allocation is aligned, inside the pool's ranges and disjoint from every other (I1);
//! a refusal has a reason: a fault that struck, a capture, or memory that really does not suffice (I13); a refused call
//! changed nothing (I10); a capture ends well (I14); no driver call was made under a pool's lock (I8). Every few steps, and
//! at the end: `Pool::check` (I3, I4), live + cached = mapped (I5). At the end: all is free and trimmed, nothing is reserved,
//! and the driver has back what it gave (I6).
//!
//! **Threads** take turns: an op runs on one of three real threads (per-thread streams and caches are real ones) while
//! the others wait, so that a program gives the same result each time and can be shrunk. [`threads`] runs them truly at
//! once, which finds what turns hide and cannot be shrunk.
//!
//! **Why not a library.** `proptest`, which the project uses elsewhere, shrinks one vector of values by its own plan and
//! prints values; here the order of shrinking (whole halves first, then single ops, then settings and arguments) and
//! the text matter, and 10^6 programs want a generator that costs nothing. It is 150 lines.
//!
//! **Cost**: about 1 ms a program in a release build, of which the check of order is a third. Pretended kernels touch no
//! byte (`sim::Access::Claim`); one program in 32 writes and verifies real ones, which also checks the checker.

#![allow(dead_code, clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "tests")]

mod calls;
pub(crate) mod crew;
pub(crate) mod generate;
mod graphs;
pub(crate) mod shrink;
pub(crate) mod threads;
pub(crate) mod upstream;
pub(crate) mod world;

pub(crate) use How::*;
pub(crate) use Op::*;

pub(crate) const MIB: u64 = 1 << 20;
/// Memory of the simulated device.
pub(crate) const DEVICE: u64 = 1024 * MIB;
/// Threads that take turns. Number 0 is the one that runs the program.
pub(crate) const THREADS: usize = 3;

/// The streams of a program. The legacy stream and this thread's are always there.
pub(crate) const LEGACY: u8 = 0;
pub(crate) const PER_THREAD: u8 = 1;
/// 2 and 3 are non-blocking objects, 4 is a blocking one, 5 and 6 are foreign values: non-blocking and blocking.
pub(crate) const STREAMS: u8 = 7;

/// How a call carries its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// As an object, where the stream has one.
    Object,
    /// As a raw value that is alive.
    Raw,
    /// As a value out of a buffer's memory, which may be dead.
    Stored,
    /// Through the entry that never waits, and plainly where that would have to.
    Try,
    /// Not at all: the free says that nothing is known of the order.
    Unnamed,
    /// The free names the legacy stream, whatever blocking stream the block was used on.
    Default,
}

/// One step. `block` and `graph` pick from what there is, modulo its number; an op that cannot be done is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// This thread acts from here on.
    On { thread: u8 },
    /// The thread ends; another one takes its number.
    EndThread { thread: u8 },
    /// Allocates, and writes on the stream.
    Allocate { pool: u8, bytes: u64, align: u64, stream: u8, how: How },
    /// Allocates, and leaves it unused.
    Idle { pool: u8, bytes: u64, stream: u8 },
    /// Reads and writes on the block's stream.
    Use { block: u16 },
    /// The block goes on to another stream, which waits for its last one.
    Move { block: u16, to: u8 },
    /// Reads a last time and frees in the order of the block's stream.
    Free { block: u16, how: How },
    /// Read on another stream too, which the free does not name but admits.
    FreeShared { block: u16, by: u8, on: u8 },
    /// A wrong free: 0 size, 1 inside, 2 other pool, 3 twice, 4 alignment.
    Misfree { block: u16, what: u8 },
    /// Another stream waits for this one. The pools are told: 0 nothing, 1 in passing, 2 with emphasis, 3 although it is not true.
    Order { from: u8, to: u8, told: u8 },
    /// The host waits for a stream; `told` as above.
    Sync { stream: u8, told: u8 },
    /// The host waits for the device.
    SyncDevice,
    /// The device runs so many operations, any that may run.
    Run { steps: u8 },
    /// Gives idle memory back.
    Trim { pool: u8, keep: u64 },
    /// The stream is destroyed and another one made.
    Renew { stream: u8 },
    /// The pool ends with work under way, and another one is made.
    Reopen { pool: u8 },
    /// Asks for the figures.
    Info { pool: u8 },
    /// A driver call fails: in a call of a pool, the one after `after` others of its name, as soon as a call makes so many.
    Fail { call: &'static str, code: i32, after: u8 },
    /// The upstream of pools that have one lies at its next call: see `upstream.rs`.
    Lie { manner: u8 },
    /// Begins a capture: mode 0 global, 1 thread-local, 2 relaxed.
    Begin { stream: u8, mode: u8 },
    /// Ends it and makes an executable graph.
    End,
    /// Runs a graph.
    Launch { graph: u8, stream: u8 },
    /// Destroys a graph.
    Forget { graph: u8 },
}

/// How a pool of a program is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) initial: u64,
    pub(crate) maximum: Option<u64>,
    pub(crate) footprint: bool,
    pub(crate) chunks: bool,
    /// The pool is over an upstream that may lie.
    pub(crate) liar: bool,
    pub(crate) threshold: u64,
}

/// What a program is run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Of the device's schedule.
    pub(crate) schedule: u64,
    pub(crate) pools: [Setup; 2],
    /// Kernels touch real bytes.
    pub(crate) bytes: bool,
    /// There are captures; without them the pools are told so.
    pub(crate) captures: bool,
    /// Small sizes may have large alignments. What they borrow keeps pages from being exchanged, so that out of memory is
    /// believed.
    pub(crate) aligned: bool,
    /// The device has only so much memory left.
    pub(crate) device: Option<u64>,
    /// Threads get plots, as if they were always in each other's way.
    pub(crate) plots: bool,
}

/// A program.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) settings: Settings,
    pub(crate) ops: Vec<Op>,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) programs: u64,
    pub(crate) steps: u64,
    pub(crate) served: u64,
    pub(crate) refused: u64,
    pub(crate) faults: u64,
    pub(crate) graphs: u64,
    pub(crate) captured: u64,
    pub(crate) misuses: u64,
    pub(crate) proofs: u64,
    pub(crate) lies: u64,
}

impl Counts {
    /// Names and numbers, in an order that does not change.
    pub(crate) fn all(&mut self) -> [(&'static str, &mut u64); 10] {
        [
            ("programs", &mut self.programs),
            ("steps", &mut self.steps),
            ("allocations served", &mut self.served),
            ("out of memory", &mut self.refused),
            ("faults struck", &mut self.faults),
            ("graphs launched", &mut self.graphs),
            ("allocations in captures", &mut self.captured),
            ("wrong frees refused", &mut self.misuses),
            ("device proofs", &mut self.proofs),
            ("lies of an upstream", &mut self.lies),
        ]
    }

    pub(crate) fn add(&mut self, mut other: Counts) {
        for ((_, mine), (_, theirs)) in self.all().into_iter().zip(other.all()) {
            *mine += *theirs;
        }
    }
}

/// The program as text of the language, for a test of its own.
pub(crate) fn text(program: &Program) -> String {
    let mut text = format!("let settings = {:?};\n    let ops = vec![\n", program.settings);
    for op in &program.ops {
        text.push_str(&format!("        {op:?},\n"));
    }
    text.push_str("    ];\n    holds(&Program { settings, ops });");
    text
}
