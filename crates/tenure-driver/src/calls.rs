//! A count of driver calls by name, for tests and benchmarks. Off by default; a call then pays one relaxed load for it.

// Counters in statics, which loom's atomics cannot be; nothing is decided by them.
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::table::{CALL_COUNT, CALLS, CallId};

static ENABLED: AtomicBool = AtomicBool::new(false);
static COUNTS: [AtomicU64; CALL_COUNT] = [const { AtomicU64::new(0) }; CALL_COUNT];

/// Starts counting, from zero, for the whole process.
pub fn enable() {
    for count in &COUNTS {
        count.store(0, Ordering::Relaxed);
    }
    ENABLED.store(true, Ordering::Relaxed);
}

/// Stops counting. The counts stay readable.
pub fn disable() {
    ENABLED.store(false, Ordering::Relaxed);
}

/// Number of calls of each name that was called since [`enable`], in the order of the table.
#[must_use]
pub fn snapshot() -> Vec<(&'static str, u64)> {
    CALLS
        .iter()
        .zip(&COUNTS)
        .map(|(call, count)| (call.name, count.load(Ordering::Relaxed)))
        .filter(|&(_, count)| count > 0)
        .collect()
}

/// Number of all driver calls since [`enable`].
#[must_use]
pub fn total() -> u64 {
    COUNTS.iter().map(|count| count.load(Ordering::Relaxed)).sum()
}

#[inline]
pub(crate) fn note(call: CallId) {
    if ENABLED.load(Ordering::Relaxed) {
        COUNTS[call as usize].fetch_add(1, Ordering::Relaxed);
    }
}
