//! Operations: what waits in the queue of a stream, and the bytes that it touches when it runs.
//!
//! This file is unsafe on purpose: [`perform`] is where the simulated device reads and writes memory.

use std::ffi::c_void;
use std::time::Duration;

use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};

use super::stream::{Clock, Point};

/// A function that the device calls on the host.
pub(super) type HostFn = unsafe extern "C" fn(*mut c_void);

/// What an operation does when its turn has come.
#[derive(Clone)]
pub(super) enum Work {
    /// Nothing left to do.
    End,
    /// Only a place in the order.
    Marker,
    /// Stamps an event with the time.
    Record { event: usize, issue: u64 },
    /// Calls a function on the host.
    Call(HostFn, usize),
    /// Keeps the stream busy.
    Wait(Duration),
    /// Reads and writes bytes. `device` must have access to them.
    Touch { device: usize, actions: Arc<[Action]> },
    /// Copies from one device to another, each of which has access to its own side.
    Across { to: usize, from: usize, action: Action },
    /// Gives a plain block back.
    Free { at: u64 },
    /// Runs the recorded operations of an executable graph, expanded when it starts.
    Graph { exec: u64 },
}

impl Work {
    /// Whether it takes no time, so that it may be done under the lock.
    pub(super) fn is_instant(&self) -> bool {
        matches!(self, Work::End | Work::Marker | Work::Record { .. } | Work::Free { .. })
    }
}

/// One operation of a stream.
pub(super) struct Op {
    pub(super) seq: u64,
    /// What must be complete before it starts, other than its predecessors in the stream.
    pub(super) deps: Vec<Point>,
    pub(super) work: Work,
    /// What follows, last first.
    pub(super) then: Vec<Work>,
    /// Everything that is ordered before it, for checks.
    pub(super) clock: Clock,
    /// The executable graph that this operation runs, if it is a launch.
    pub(super) exec: Option<u64>,
}

/// One access to bytes.
#[derive(Clone)]
pub(super) enum Action {
    /// `len` bytes from `src` to `dst`. The flags say which side is ordinary host memory.
    Copy {
        dst: u64,
        src: u64,
        len: usize,
        host_dst: bool,
        host_src: bool,
    },
    /// Bytes kept since the call, for copies from ordinary host memory.
    Staged {
        dst: u64,
        bytes: Arc<[u8]>,
    },
    Fill {
        dst: u64,
        value: u8,
        len: usize,
    },
    Read {
        src: u64,
        len: usize,
    },
    /// Counts a mismatch unless every byte is `value`.
    Verify {
        src: u64,
        value: u8,
        len: usize,
    },
    /// Uses the range, for the checks, and touches no byte.
    Claim {
        at: u64,
        len: usize,
        write: bool,
    },
}

impl Action {
    /// The ranges that it touches and that the device must have: address, length, written or not.
    pub(super) fn ranges(&self) -> [Option<(u64, usize, bool)>; 2] {
        match *self {
            Action::Copy { dst, src, len, host_dst, host_src } => {
                [(!host_dst).then_some((dst, len, true)), (!host_src).then_some((src, len, false))]
            }
            Action::Staged { dst, ref bytes } => [Some((dst, bytes.len(), true)), None],
            Action::Fill { dst, len, .. } => [Some((dst, len, true)), None],
            Action::Read { src, len } | Action::Verify { src, len, .. } => [Some((src, len, false)), None],
            Action::Claim { at, len, write } => [Some((at, len, write)), None],
        }
    }
}

static MISMATCHES: AtomicU64 = AtomicU64::new(0);

/// How many verifying accesses found other bytes than they expected.
pub(super) fn mismatches() -> u64 {
    MISMATCHES.load(Ordering::Relaxed)
}

/// Touches the bytes. The caller has checked every range against the tables and holds them mapped until it returns.
pub(super) fn perform(actions: &[Action]) {
    for action in actions {
        // SAFETY: device ranges were checked under the lock and are noted as in flight, which keeps them mapped; host
        // ranges are the caller's of the copy, who promised with the call that they are valid until it has completed.
        unsafe {
            match *action {
                Action::Copy { dst, src, len, .. } => {
                    std::ptr::copy(src as usize as *const u8, dst as usize as *mut u8, len);
                }
                Action::Staged { dst, ref bytes } => {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), dst as usize as *mut u8, bytes.len());
                }
                Action::Fill { dst, value, len } => std::ptr::write_bytes(dst as usize as *mut u8, value, len),
                Action::Read { src, len } => {
                    let mut sum = 0u8;
                    for i in (0..len).step_by(64) {
                        sum ^= std::ptr::read_volatile((src as usize as *const u8).add(i));
                    }
                    std::hint::black_box(sum);
                }
                Action::Verify { src, value, len } => {
                    let bytes = std::slice::from_raw_parts(src as usize as *const u8, len);
                    if bytes.iter().any(|b| *b != value) {
                        MISMATCHES.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Action::Claim { .. } => {}
            }
        }
    }
}

/// Copies bytes out of ordinary host memory at the time of a call.
///
/// # Safety
///
/// `src` is valid for reads of `len` bytes.
pub(super) unsafe fn stage(src: *const u8, len: usize) -> Arc<[u8]> {
    // SAFETY: promised by the caller.
    Arc::from(unsafe { std::slice::from_raw_parts(src, len) })
}
