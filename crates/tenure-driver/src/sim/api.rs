//! What only a simulated device can do, for tests and users.

use std::time::Duration;

use crate::sync::{Arc, Mutex, MutexGuard};
use crate::sys::CUstream;
use crate::table::Table;
use crate::{__fill_table, fill_table};

use super::codes::*;
use super::entry::functions;
use super::machine::OnViolation;
use super::op::{Action, Work};
use super::queue::Locked;

/// Why a request to the simulated device was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// The machine has been built already.
    #[error(
        "the simulated device is in use already; configure it before the first driver call, or set TENURE_SIM_DEVICES \
         and TENURE_SIM_MEMORY in the environment"
    )]
    AlreadyInUse,
    /// A machine that cannot be built.
    #[error(
        "a simulated machine with {devices} devices of {memory} bytes cannot be built; choose 1 to 16 devices and \
         between 2 MiB and 16 TiB"
    )]
    BadConfig {
        /// Devices asked for.
        devices: usize,
        /// Memory of each, in bytes.
        memory: u64,
    },
    /// An amount of memory that a running device cannot be given.
    #[error(
        "the device cannot have {bytes} bytes: {used} are in use and it was built with {built}; choose a number between \
         the two, or build a larger machine"
    )]
    BadMemory {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes in use.
        used: u64,
        /// Bytes that the machine was built with, per device.
        built: u64,
    },
    /// A call that the table does not have.
    #[error(
        "there is no driver call named {call:?}; use a name of the table such as \"cuMemAlloc\" or \"cuMemCreate\""
    )]
    UnknownCall {
        /// The name given.
        call: String,
    },
    /// A failure with the code of success.
    #[error("code 0 is success; give the code that the call should fail with, such as 2 for out of memory")]
    NotAFailure,
    /// A device that the machine does not have.
    #[error("there is no simulated device {device}; the machine has {count}")]
    UnknownDevice {
        /// The ordinal given.
        device: i32,
        /// Devices of the machine.
        count: usize,
    },
    /// The driver would have answered this code.
    #[error("the simulated device answered code {code}")]
    Driver {
        /// The driver's result code.
        code: i32,
    },
}

impl SimError {
    fn driver(code: i32) -> SimError {
        SimError::Driver { code }
    }
}

/// The table of driver calls, filled by the simulated device. Every call is there.
#[must_use]
pub fn table() -> Table {
    fill_table!(functions)
}

fn on_stream<R>(stream: CUstream, f: impl FnOnce(&mut Locked, u64, usize) -> Result<R, i32>) -> Result<R, SimError> {
    let mut m = Locked::unless_forked().ok_or(SimError::driver(NOT_INITIALIZED))?;
    let uid = m.stream_of(stream as usize).map_err(SimError::driver)?;
    let device = m.stream(uid).map_err(SimError::driver)?.device;
    f(&mut m, uid, device).map_err(SimError::driver)
}

/// Puts an operation into a stream that does nothing for a while, as a long kernel would. Under a seeded schedule it
/// takes no time, but has its place in the order.
///
/// # Errors
///
/// [`SimError::Driver`] with the code that a launch would answer: no current context for a special handle (201), a
/// fault of the device, a capture that is dead (901).
pub fn busy(stream: CUstream, time: Duration) -> Result<(), SimError> {
    on_stream(stream, |m, uid, _| m.submit(uid, Work::Wait(time), Vec::new(), &[]).map(drop))
}

/// An access of a pretended kernel to memory of the device. Addresses and lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads the range.
    Read {
        /// Address.
        at: u64,
        /// Bytes.
        len: usize,
    },
    /// Fills the range.
    Write {
        /// Address.
        at: u64,
        /// Bytes.
        len: usize,
        /// With what.
        byte: u8,
    },
    /// Reads the range and counts a mismatch (see [`mismatches`]) unless all of it is `byte`.
    Verify {
        /// Address.
        at: u64,
        /// Bytes.
        len: usize,
        /// What every byte must be.
        byte: u8,
    },
    /// Reads or writes the range as far as the checks go ([`check_order`], and whether the device has the memory), and
    /// touches no byte of it: for very many programs in little time.
    Claim {
        /// Address.
        at: u64,
        /// Bytes.
        len: usize,
        /// Written, not only read.
        write: bool,
    },
}

/// Launches a pretended kernel: when its turn comes it reads the ranges `reads` (address, bytes) and fills the ranges
/// `writes` (address, bytes, with what). A range that is not memory of the device then is an illegal address: the device
/// answers 700 from there on, as a real one would.
///
/// # Errors
///
/// As [`busy`].
pub fn launch(stream: CUstream, reads: &[(u64, usize)], writes: &[(u64, usize, u8)]) -> Result<(), SimError> {
    let reads = reads.iter().map(|(at, len)| Access::Read { at: *at, len: *len });
    let writes = writes.iter().map(|(at, len, byte)| Access::Write { at: *at, len: *len, byte: *byte });
    launch_for(stream, Duration::ZERO, &reads.chain(writes).collect::<Vec<_>>())
}

/// [`launch`] of any accesses, made in their order after `time` has passed.
///
/// # Errors
///
/// As [`busy`].
pub fn launch_for(stream: CUstream, time: Duration, accesses: &[Access]) -> Result<(), SimError> {
    let action = |a: &Access| match *a {
        Access::Read { at, len } => Action::Read { src: at, len },
        Access::Write { at, len, byte } => Action::Fill { dst: at, value: byte, len },
        Access::Verify { at, len, byte } => Action::Verify { src: at, value: byte, len },
        Access::Claim { at, len, write } => Action::Claim { at, len, write },
    };
    let actions: Arc<[Action]> = accesses.iter().map(action).collect();
    on_stream(stream, |m, uid, device| {
        let touch = Work::Touch { device, actions };
        let (work, then) = if time.is_zero() { (touch, Vec::new()) } else { (Work::Wait(time), vec![touch]) };
        m.submit(uid, work, then, &[]).map(drop)
    })
}

/// How many verifying accesses have found other bytes than they expected.
#[must_use]
pub fn mismatches() -> u64 {
    super::op::mismatches()
}

/// Puts a device into a fault, as a kernel that reads a wild address does: every later call that concerns its context
/// answers `code` (700 and 719 are usual), and what is queued does nothing any more. Code 0 heals it.
///
/// # Errors
///
/// [`SimError::UnknownDevice`].
pub fn fault(device: i32, code: i32) -> Result<(), SimError> {
    let mut m = Locked::unless_forked().ok_or(SimError::driver(NOT_INITIALIZED))?;
    let count = m.devices.len();
    let device = m.device(device).map_err(|_| SimError::UnknownDevice { device, count })?;
    m.devices[device].fault = code;
    m.note_done();
    Ok(())
}

/// Chooses what a call with a destroyed or invented handle does, and returns the former choice.
pub fn on_violation(choice: OnViolation) -> OnViolation {
    match Locked::unless_forked() {
        Some(mut m) => std::mem::replace(&mut m.on_violation, choice),
        None => choice,
    }
}

/// How many violations were recorded.
#[must_use]
pub fn violations() -> u64 {
    Locked::unless_forked().map_or(0, |m| m.violations.len() as u64)
}

/// The violations recorded so far, as sentences.
#[must_use]
pub fn violation_texts() -> Vec<String> {
    Locked::unless_forked().map_or_else(Vec::new, |m| m.violations.clone())
}

/// Switches the check of order on or off, and returns whether it was on. It starts with no past, so switch it on while
/// nothing is queued. While it is on, each access of a copy, a set or a pretended kernel is compared with the accesses
/// before it: a read and a write, or two writes, of the same physical bytes that nothing in the *program* orders are a
/// race, also when this run happened to make them one after the other.
pub fn check_order(on: bool) -> bool {
    let Some(mut m) = Locked::unless_forked() else {
        return false;
    };
    let before = m.checker.take().is_some();
    m.checker = on.then(Default::default);
    if m.streams.values().all(|s| s.done == s.issued) {
        // Nothing is to come of what the clocks name. Those of streams that never end would grow with every other stream.
        m.streams.values_mut().for_each(|s| s.clock = Default::default());
    }
    before
}

/// How many races the check of order has found since it was switched on.
#[must_use]
pub fn races() -> u64 {
    Locked::unless_forked().map_or(0, |m| m.races().0)
}

/// The first 64 races found, as sentences.
#[must_use]
pub fn race_texts() -> Vec<String> {
    Locked::unless_forked().map_or_else(Vec::new, |m| m.races().1)
}

static TEST: Mutex<()> = Mutex::new(());

/// Keeps other tests of the process away while it lives; see [`test_lock`].
#[must_use = "the lock is held for as long as this value lives"]
pub struct TestLock {
    _guard: MutexGuard<'static, ()>,
}

impl Drop for TestLock {
    fn drop(&mut self) {
        super::fail_clear();
        super::schedule_workers();
        check_order(false);
        on_violation(OnViolation::Abort);
    }
}

/// Waits for the other tests of this process that change the whole machine (faults, schedules, counts) and keeps them
/// away until dropped. Dropping puts back: workers, no planned failures, violations abort.
pub fn test_lock() -> TestLock {
    TestLock { _guard: TEST.lock() }
}
