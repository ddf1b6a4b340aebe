//! What profilers and memory checkers are told: the hooks that the engine calls.
//!
//! ```text
//!   Resource::new                   look()                        is a tool attached? once
//!   Named, Buffer: allocate, free   range(name, bytes)            one range per call from outside
//!   Named: what is at hand          watched()                     not while anybody looks on, who would hear nothing
//!   Named, Buffer: the try_ calls   may_not_wait()                refuse while a tool is attached: it would be called
//!   Pool: pages taken, given back   heaps::taken, heaps::leaving  ->  a heap per piece
//!   Pool: blocks                    heaps::served, heaps::freed   ->  a region per block (and per piece that it lies in)
//! ```
//!
//! **Cost**: without a tool each hook is one relaxed load and a branch; nothing is loaded and nothing kept. With one, `try_`
//! calls refuse, so that each call takes the way that may wait, and the blocks of pools are booked here once more.
//!
//! What a tool is and how it is found: [`tenure_driver::nvtx`]. For users: `docs/tools.md`.

pub mod heaps;

use tenure_driver::nvtx;

pub use tenure_driver::nvtx::{Name, Range, attached, look, range};

use crate::error::{Error, Result};

/// Whether a tool is attached or the engine books what it hands out (`observe`): then nothing goes the shortest way. One
/// relaxed load for both.
#[inline]
pub fn watched() -> bool {
    tenure_driver::watch::anybody()
}

/// For calls that promise to wait for nobody and to call nobody: a tool is somebody, and so is who tells of stacks.
///
/// # Errors
/// [`Error::WouldBlock`] while a tool is attached, or stacks are wanted.
#[inline]
pub fn may_not_wait() -> Result<()> {
    if watched() && (nvtx::attached() || crate::observe::asks_for_stacks()) { Err(Error::WouldBlock) } else { Ok(()) }
}

/// Whether a tool checks memory, so that a pool takes plain pieces of memory. A heap is, by the checker's manual, an
/// allocation of `cudaMalloc` or `cuMemAlloc`; of a mapped range, compute-sanitizer takes each physical handle for an
/// allocation of its own and reports what lies across their border (pytorch#196209). Asks the tool at the first call, with
/// `device` current.
///
/// # Errors
/// What the driver says.
pub fn memory_checked(device: i32) -> Result<bool> {
    if !nvtx::memory::possible() {
        return Ok(false);
    }
    let _current = crate::device::driver()?.device(device)?.enter()?;
    Ok(nvtx::memory::look())
}
