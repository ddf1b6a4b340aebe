//! The machine: devices with their contexts, everything that lives on them, and the one lock over it.
//!
//! One mutex guards all state. It is held for table look-ups and list operations only; bytes are touched, host functions
//! called and time spent without it. The machine is made at first use and lives until the process ends.

use std::collections::{BTreeSet, HashMap};
use std::io::Write as _;

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Lazy, Mutex};
use crate::table::CallId;

use super::capture::Capture;
use super::checker::Checker;
use super::codes::*;
use super::event::Event;
use super::graph::{Exec, Graph, UserObject};
use super::handle::{Kind, Slots};
use super::memory::Memory;
use super::pool::Pool;
use super::queue::{Locked, Queue};
use super::sharing::OpenBlocks;
use super::stream::Stream;
use super::vmm::Vmm;
use super::{SimError, fault, os, size, thread};

/// How the simulated machine is built. Set before first use with [`configure`], or by the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Number of devices, 1 to 16.
    pub devices: usize,
    /// Memory of each device in bytes; rounded up to 2 MiB.
    pub memory: u64,
}

/// The most devices a simulated machine may have.
const MAX_DEVICES: usize = 16;

impl Default for Config {
    /// What the environment says (`TENURE_SIM_DEVICES`, `TENURE_SIM_MEMORY` per device, as in `"1GiB"`), and where it
    /// says nothing: two devices that have a quarter of the machine's memory together.
    fn default() -> Config {
        let var = |name| std::env::var(name).ok();
        Config::from_texts(var("TENURE_SIM_DEVICES").as_deref(), var("TENURE_SIM_MEMORY").as_deref())
    }
}

impl Config {
    /// [`Config::default`] with the texts given. A text that is no number or size is reported on stderr and not used.
    fn from_texts(devices: Option<&str>, memory: Option<&str>) -> Config {
        let devices = match devices.map(|t| (t, t.trim().parse::<usize>())) {
            None => 2,
            Some((_, Ok(n))) if (1..=MAX_DEVICES).contains(&n) => n,
            Some((text, _)) => {
                say_once(&format!("TENURE_SIM_DEVICES={text} is not a number from 1 to {MAX_DEVICES}; using 2."));
                2
            }
        };
        let share = os::physical() / 4 / devices as u64;
        let memory = match memory.map(|t| (t, size::parse(t))) {
            None => share,
            Some((_, Some(n))) if n > 0 => n,
            Some((text, _)) => {
                say_once(&format!("TENURE_SIM_MEMORY={text} is not a size such as 512MiB; using {share} bytes."));
                share
            }
        };
        Config { devices, memory }
    }

    fn checked(mut self) -> Result<Config, SimError> {
        if self.devices == 0 || self.devices > MAX_DEVICES || self.memory == 0 || self.memory > 1 << 44 {
            return Err(SimError::BadConfig { devices: self.devices, memory: self.memory });
        }
        self.memory = self.memory.next_multiple_of(2 << 20);
        Ok(self)
    }
}

static CONFIG: Mutex<Option<Config>> = Mutex::new(None);
static STARTED: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);

/// Builds the machine as `config` says, instead of as the environment says. Only before its first use.
///
/// # Errors
///
/// [`SimError::AlreadyInUse`] after the first driver call; [`SimError::BadConfig`] for no or more than 16 devices, and for
/// no or more than 16 TiB of memory.
pub fn configure(config: Config) -> Result<(), SimError> {
    let config = config.checked()?;
    let mut slot = CONFIG.lock();
    if STARTED.load(Ordering::Acquire) {
        return Err(SimError::AlreadyInUse);
    }
    *slot = Some(config);
    Ok(())
}

/// How the machine is built, or would be built if it were used now.
#[must_use]
pub fn config() -> Config {
    if STARTED.load(Ordering::Acquire)
        && let Some(m) = Locked::unless_forked()
    {
        return m.config;
    }
    let slot = CONFIG.lock();
    slot.unwrap_or_default()
}

/// Changes how much memory a device has while the machine runs, as if another process took some or gave it back.
///
/// # Errors
///
/// [`SimError::UnknownDevice`]; [`SimError::BadMemory`] for less than is in use, and for more than the machine was built
/// with.
pub fn set_memory(device: i32, bytes: u64) -> Result<(), SimError> {
    let mut m = Locked::unless_forked().ok_or(SimError::Driver { code: NOT_INITIALIZED })?;
    let (built, count) = (m.config.memory, m.devices.len());
    let at = m.device(device).map_err(|_| SimError::UnknownDevice { device, count })?;
    let d = &mut m.devices[at];
    if bytes < d.used || bytes > built {
        let used = d.used;
        return Err(SimError::BadMemory { bytes, used, built });
    }
    d.total = bytes;
    Ok(())
}

/// What a call to a destroyed or invented handle does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnViolation {
    /// Says what was called with what, and ends the process: the real driver would follow a dangling pointer.
    Abort,
    /// Notes it (see [`violations`](super::violations)); the call answers with an error code.
    Record,
}

/// One device and its (primary) context.
pub(super) struct Device {
    pub(super) context: usize,
    pub(super) retained: u32,
    pub(super) flags: u32,
    /// 0, or the code that every call of the context answers from now on.
    pub(super) fault: i32,
    pub(super) legacy: Option<u64>,
    pub(super) streams: BTreeSet<u64>,
    pub(super) blocking: BTreeSet<u64>,
    /// Bytes of memory and how many are taken.
    pub(super) total: u64,
    pub(super) used: u64,
    pub(super) default_pool: usize,
    pub(super) current_pool: usize,
}

impl Device {
    /// The code of a fault that the device has met.
    pub(super) fn check(&self) -> Result<(), i32> {
        if self.fault == 0 { Ok(()) } else { Err(self.fault) }
    }
}

/// Everything, under one lock.
pub(super) struct Machine {
    pub(super) config: Config,
    pub(super) ready: bool,
    pub(super) devices: Vec<Device>,
    /// Contexts by handle: the number of the device.
    pub(super) contexts: Slots<usize>,
    pub(super) streams: HashMap<u64, Stream>,
    pub(super) stream_handles: Slots<u64>,
    pub(super) next_stream: u64,
    pub(super) per_thread: HashMap<(u64, usize), u64>,
    pub(super) events: Slots<Event>,
    pub(super) issues: u64,
    pub(super) memory: Memory,
    pub(super) pools: HashMap<u64, Pool>,
    pub(super) pool_handles: Slots<u64>,
    pub(super) next_pool: u64,
    pub(super) vmm: Vmm,
    pub(super) opened: OpenBlocks,
    pub(super) captures: HashMap<u64, Capture>,
    pub(super) next_capture: u64,
    pub(super) graphs: Slots<Graph>,
    pub(super) exec_handles: Slots<u64>,
    pub(super) execs: HashMap<u64, Exec>,
    pub(super) next_exec: u64,
    pub(super) objects: Slots<UserObject>,
    pub(super) queue: Queue,
    /// The check of order, while it is on.
    pub(super) checker: Option<Checker>,
    pub(super) on_violation: OnViolation,
    pub(super) violations: Vec<String>,
}

/// The machine and what threads wait on.
pub(super) struct Sim {
    pub(super) machine: Mutex<Machine>,
    /// Something is ready to run.
    pub(super) work: Condvar,
    /// Something has completed.
    pub(super) done: Condvar,
    /// A host function is to be called.
    pub(super) callbacks: Condvar,
}

static SIM: Lazy<Sim> = Lazy::new(|| {
    let config = {
        let slot = CONFIG.lock();
        STARTED.store(true, Ordering::Release);
        slot.unwrap_or_default()
    };
    // SAFETY: the handler only stores to an atomic, which is allowed in a child between fork and exec.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    let config = config.checked().unwrap_or(Config { devices: 1, memory: 1 << 30 });
    Sim {
        machine: Mutex::new(Machine::new(config)),
        work: Condvar::new(),
        done: Condvar::new(),
        callbacks: Condvar::new(),
    }
});

extern "C" fn forked() {
    FORKED.store(true, Ordering::Release);
}

/// The machine of this process.
pub(super) fn sim() -> &'static Sim {
    &SIM
}

/// [`say`] for settings, which are read more than once.
fn say_once(text: &str) {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut said = SAID.lock();
    if !said.iter().any(|t| t == text) {
        say(text);
        said.push(text.to_owned());
    }
}

/// Writes one line to stderr; where that fails there is nobody to tell.
pub(super) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "tenure: {text}");
}

impl Machine {
    fn new(config: Config) -> Machine {
        let mut contexts = Slots::new(Kind::Context);
        let mut pools = HashMap::new();
        let mut pool_handles = Slots::new(Kind::Pool);
        let devices = (0..config.devices)
            .map(|ordinal| {
                pools.insert(ordinal as u64, Pool::new(ordinal, true, 0));
                let pool = pool_handles.insert(ordinal as u64);
                Device {
                    context: contexts.insert(ordinal),
                    retained: 0,
                    flags: 0,
                    fault: 0,
                    legacy: None,
                    streams: BTreeSet::new(),
                    blocking: BTreeSet::new(),
                    total: config.memory,
                    used: 0,
                    default_pool: pool,
                    current_pool: pool,
                }
            })
            .collect();
        Machine {
            config,
            ready: false,
            devices,
            contexts,
            streams: HashMap::new(),
            stream_handles: Slots::new(Kind::Stream),
            next_stream: 0,
            per_thread: HashMap::new(),
            events: Slots::new(Kind::Event),
            issues: 0,
            memory: Memory::new(config.devices),
            pools,
            pool_handles,
            next_pool: config.devices as u64,
            vmm: Vmm::new(config.devices),
            opened: OpenBlocks::default(),
            captures: HashMap::new(),
            next_capture: 0,
            graphs: Slots::new(Kind::Graph),
            exec_handles: Slots::new(Kind::Exec),
            execs: HashMap::new(),
            next_exec: 0,
            objects: Slots::new(Kind::UserObject),
            queue: Queue::default(),
            checker: None,
            on_violation: OnViolation::Abort,
            violations: Vec::new(),
        }
    }

    /// The device of the calling thread's current context.
    ///
    /// # Errors
    ///
    /// [`INVALID_CONTEXT`] when there is none; the code of a fault of the device.
    pub(super) fn current(&mut self) -> Result<usize, i32> {
        match thread::current() {
            0 => Err(INVALID_CONTEXT),
            handle => {
                let device = self.context(handle)?;
                self.devices[device].check()?;
                Ok(device)
            }
        }
    }

    /// The device of a context handle.
    pub(super) fn context(&mut self, handle: usize) -> Result<usize, i32> {
        match self.contexts.get(handle) {
            Some(device) if self.devices[*device].retained > 0 => Ok(*device),
            Some(_) => Err(INVALID_CONTEXT),
            None => Err(self.bad_handle(Kind::Context, handle, false)),
        }
    }

    /// The device of an ordinal.
    pub(super) fn device(&self, ordinal: i32) -> Result<usize, i32> {
        usize::try_from(ordinal).ok().filter(|d| *d < self.devices.len()).ok_or(INVALID_DEVICE)
    }

    /// Takes `len` bytes of a device's memory into account.
    pub(super) fn charge(&mut self, device: usize, len: u64) -> Result<(), i32> {
        let d = &mut self.devices[device];
        if len > d.total - d.used {
            return Err(OUT_OF_MEMORY);
        }
        d.used += len;
        Ok(())
    }

    pub(super) fn refund(&mut self, device: usize, len: u64) {
        let d = &mut self.devices[device];
        d.used = d.used.saturating_sub(len);
    }

    /// A handle value that nothing stands behind. Returns the code for the call.
    pub(super) fn bad_handle(&mut self, kind: Kind, handle: usize, issued: bool) -> i32 {
        let why = if issued { "was destroyed before" } else { "was never created" };
        self.violate(format!(
            "a driver call was given the {} {handle:#x}, which {why}; a real driver would follow a dangling pointer here",
            kind.name()
        ));
        INVALID_HANDLE
    }

    /// Notes a use that no real device survives, and ends the process unless told to go on.
    pub(super) fn violate(&mut self, text: String) {
        if self.on_violation == OnViolation::Abort {
            say(&format!(
                "the simulated device ends the process: {text}. (`sim::on_violation` can record it instead.)"
            ));
            std::process::abort();
        }
        self.violations.push(text);
    }
}

/// The start of every driver call: counts it, lets a planned fault strike, refuses what no call may do, and runs the
/// body under the lock.
pub(super) fn enter(call: CallId, body: impl FnOnce(&mut Locked) -> Result<(), i32>) -> i32 {
    enter_early(call, |m| if m.ready { body(m) } else { Err(NOT_INITIALIZED) })
}

/// [`enter`] for the calls that work before `cuInit`.
pub(super) fn enter_early(call: CallId, body: impl FnOnce(&mut Locked) -> Result<(), i32>) -> i32 {
    if let Some(code) = refused(call) {
        return code;
    }
    let mut m = Locked::new();
    match body(&mut m) {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}

/// Counts a call and says why it must not go on, if so.
pub(super) fn refused(call: CallId) -> Option<i32> {
    let planned = fault::enter(call);
    if thread::in_callback() {
        return Some(NOT_PERMITTED);
    }
    if FORKED.load(Ordering::Acquire) {
        // The workers did not come along, and the lock may have been held: as with CUDA, a child starts afresh or not at
        // all.
        return Some(NOT_INITIALIZED);
    }
    planned
}

/// Whether this process is a child that was forked after first use.
pub(super) fn is_forked_child() -> bool {
    FORKED.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_read_with_care() {
        let c = Config::from_texts(Some("3"), Some("1GiB"));
        assert_eq!(c, Config { devices: 3, memory: 1 << 30 });
        let c = Config::from_texts(Some("none"), Some("lots"));
        assert_eq!((c.devices, c.memory), (2, os::physical() / 8));
        assert!(Config { devices: 0, memory: 1 }.checked().is_err());
        assert!(Config { devices: 1, memory: u64::MAX }.checked().is_err());
        assert_eq!(Config { devices: 1, memory: 1 }.checked().unwrap().memory, 2 << 20);
    }
}
