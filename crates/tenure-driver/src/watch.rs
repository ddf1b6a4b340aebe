//! Whether anybody looks on, in one word.
//!
//! ```text
//!   TOOL      a profiler or a memory checker is attached (nvtx)            set for good
//!   OBSERVER  the engine books what is handed out (its room `observe`)     set and cleared
//! ```
//!
//! The engine's shortest way asks once, [`anybody`], before it leaves everything out that somebody could look at: one
//! relaxed load, whoever may look.

// Process-wide state in a static, which loom's atomics cannot be; no model covers it.
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A tool is attached.
pub const TOOL: u8 = 1;
/// The engine books what it hands out.
pub const OBSERVER: u8 = 2;

static WATCHERS: AtomicU8 = AtomicU8::new(0);

/// Whether anybody looks on. One relaxed load.
#[inline]
#[must_use]
pub fn anybody() -> bool {
    WATCHERS.load(Ordering::Relaxed) != 0
}

/// Whether this one looks on. One relaxed load.
#[inline]
#[must_use]
pub fn is_on(who: u8) -> bool {
    WATCHERS.load(Ordering::Relaxed) & who != 0
}

static GROWN: AtomicU64 = AtomicU64::new(0);

/// The driver was asked for memory.
pub(crate) fn grew() {
    GROWN.fetch_add(1, Ordering::Relaxed);
}

/// How often the driver was asked for memory of the device other than out of its pools: where the number has changed, what the
/// device has in use may have grown.
#[must_use]
pub fn grown() -> u64 {
    GROWN.load(Ordering::Relaxed)
}

/// This one looks on from now on.
pub fn begin(who: u8) {
    WATCHERS.fetch_or(who, Ordering::AcqRel);
}

/// This one looks on no more.
pub fn end(who: u8) {
    WATCHERS.fetch_and(!who, Ordering::AcqRel);
}
