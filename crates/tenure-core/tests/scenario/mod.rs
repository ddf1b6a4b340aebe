//! Scenarios, and what must hold when a driver call fails in the middle of one.
//!
//! ```text
//!   set up -> picture -> the step, with one driver call of it failing -> picture: the same
//!                                                     |                  the step again: works
//!                                                     +-- it worked all the same: only where the list says why it may
//!   tear down -> picture: as before the scenario
//! ```
//!
//! A [`Scenario`] is data: how its [`Things`] come to be, and one public call that is the step. The picture ([`Picture`])
//! holds every figure of every live resource, the references on it, the table of current resources, the driver's free
//! memory and the handles that the driver has given out, the buffers and blocks of the scenario, the current context and
//! the capture mode of the thread, and the counts of misuse and of calls that no real driver would have survived.
//!
//! Used by the test `scenarios` (each call at each point) and by the example `soak` (at random, for as long as one likes).

#![allow(dead_code, reason = "the test and the example use different parts")]

use std::collections::BTreeMap;

use tenure_core::adaptor::{Limiting, Statistics};
use tenure_core::arena::Arena;
use tenure_core::bins::FixedSize;
use tenure_core::buffer::Buffer;
use tenure_core::error::{Error, Result};
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{Info, Resource, registry};
use tenure_core::stream::{StreamHold, StreamObject, StreamRef};
use tenure_core::{current, device, misuse};
use tenure_driver::sys::CU_STREAM_CAPTURE_MODE_GLOBAL;
use tenure_driver::{RawStream, sim};

pub(crate) mod bins;
pub(crate) mod buffers;
pub(crate) mod leaves;
pub(crate) mod pools;
pub(crate) mod storm;
pub(crate) mod table;

pub(crate) const MIB: usize = 1 << 20;
/// The memory of each of the two simulated devices.
pub(crate) const DEVICE: u64 = 512 << 20;
/// Out of memory, and an error that says nothing.
pub(crate) const CODES: [i32; 2] = [2, 999];
pub(crate) const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;

/// The simulated machine, alone.
pub(crate) fn machine() -> sim::TestLock {
    let _ = sim::configure(sim::Config { devices: 2, memory: DEVICE });
    tenure_driver::load::prefer_sim().expect("the simulated device");
    let lock = sim::test_lock();
    sim::on_violation(sim::OnViolation::Record);
    lock
}

/// All scenarios.
pub(crate) fn all() -> Vec<Scenario> {
    [leaves::all(), pools::all(), bins::all(), buffers::all(), table::all()].into_iter().flatten().collect()
}

/// What a scenario holds. Ended in the order: blocks, buffers, streams, resources.
#[derive(Default)]
pub(crate) struct Things {
    pub(crate) resources: Vec<Resource>,
    pub(crate) streams: Vec<StreamHold>,
    pub(crate) raws: Vec<RawStream>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) scopes: Vec<u64>,
    /// The table is put back at the end.
    pub(crate) touched_table: bool,
}

/// A raw allocation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Block {
    pub(crate) resource: usize,
    pub(crate) ptr: u64,
    pub(crate) bytes: usize,
    pub(crate) align: usize,
}

impl Things {
    pub(crate) fn of(resource: Resource) -> Self {
        Self { resources: vec![resource], ..Self::default() }
    }

    pub(crate) fn with_stream(mut self, device: i32) -> Result<Self> {
        self.streams.push(stream(device)?);
        Ok(self)
    }

    pub(crate) fn with_block(mut self, bytes: usize) -> Result<Self> {
        self.take(0, bytes, 256, LEGACY)?;
        Ok(self)
    }

    /// A buffer under the first resource on the first stream.
    pub(crate) fn with_buffer(mut self, bytes: usize) -> Result<Self> {
        let buffer = Buffer::create(bytes, 256, self.streams[0].clone(), self.resources[0].light())?;
        self.buffers.push(buffer);
        Ok(self)
    }

    pub(crate) fn take(&mut self, resource: usize, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<()> {
        let ptr = self.resources[resource].allocate(bytes, align, stream)?;
        self.blocks.push(Block { resource, ptr, bytes, align });
        Ok(())
    }

    /// Frees the last block.
    pub(crate) fn give(&mut self, stream: StreamRef<'_>) -> Result<()> {
        let Some(b) = self.blocks.last().copied() else { return Ok(()) };
        self.resources[b.resource].deallocate(b.ptr, b.bytes, b.align, stream)?;
        self.blocks.pop();
        Ok(())
    }

    /// Allocates on the first stream.
    pub(crate) fn take_on_stream(&mut self, bytes: usize) -> Result<()> {
        let stream = self.streams[0].clone();
        self.take(0, bytes, 256, stream.as_carried())
    }

    pub(crate) fn tear_down(mut self) -> Result<()> {
        for scope in self.scopes.drain(..).rev() {
            current::leave(scope)?;
        }
        while !self.blocks.is_empty() {
            let on = self.streams.first().cloned();
            let resource = &self.resources[self.blocks[self.blocks.len() - 1].resource];
            let same_device = on
                .as_ref()
                .is_some_and(|s| s.held().is_some_and(|o| resource.body().device().is_none_or(|d| d == o.device())));
            match on.filter(|_| same_device) {
                Some(stream) => self.give(stream.as_carried())?,
                None => self.give(LEGACY)?,
            }
        }
        for buffer in self.buffers.drain(..) {
            buffer.destroy().map_err(|(e, _)| e)?;
        }
        if std::mem::take(&mut self.touched_table) {
            for device in 0..2 {
                current::reset(device)?;
            }
        }
        self.streams.clear();
        for raw in self.raws.drain(..) {
            // SAFETY: made by the scenario; the buffers that named it are gone.
            unsafe { device::driver()?.stream_destroy(raw) }?;
        }
        for resource in &self.resources {
            // What could not be given back before goes now.
            resource.body().trim(0)?;
        }
        // What stands on others goes first.
        while self.resources.pop().is_some() {}
        Ok(())
    }
}

pub(crate) fn stream(device: i32) -> Result<StreamHold> {
    Ok(StreamHold::object(StreamObject::create(device, true)?))
}

pub(crate) fn legacy() -> StreamHold {
    StreamHold::raw(RawStream::NULL)
}

pub(crate) fn pool(options: PoolOptions) -> Result<Resource> {
    Resource::new(Pool::new(shared::cuda()?, 0, options)?)
}

pub(crate) fn pool_over(upstream: &Resource, options: PoolOptions) -> Result<Resource> {
    Resource::new(Pool::new(upstream.clone(), 0, options)?)
}

/// Long work on a stream, so that nothing behind it is done yet. A device that is lost takes none.
pub(crate) fn keep_busy(stream: &StreamHold) {
    let _ = sim::busy(stream.value().as_raw(), std::time::Duration::from_millis(3));
}

/// One scenario. `name` says what the step does.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) set_up: fn() -> Result<Things>,
    pub(crate) step: fn(&mut Things) -> Result<()>,
    pub(crate) except: &'static [Except],
}

/// What the failure of a call may do beyond an error that leaves everything as it was, and why that is right.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Except {
    /// The step succeeds without the call.
    Absorbed(&'static str, &'static str),
    /// The step may succeed without the calls that make, after a proof of a device, the small block of the next one (see
    /// [`PROOF`]): it is made when it is needed.
    Proof,
    /// The step fails, and what had been done in stores stays done: memory that a pool keeps for the next request or has
    /// given back, an event that it keeps for a stream. What is live, and whose, is as it was.
    Store(&'static str, &'static str),
    /// The driver was asked to take something back and did not: that stays with the driver.
    Kept(&'static str, &'static str),
}

pub(crate) fn scenario(
    name: &'static str,
    set_up: fn() -> Result<Things>,
    step: fn(&mut Things) -> Result<()>,
) -> Scenario {
    Scenario { name, set_up, step, except: &[] }
}

impl Scenario {
    pub(crate) fn except(self, except: &'static [Except]) -> Self {
        Self { except, ..self }
    }

    fn lists(&self, call: &str, of: impl Fn(&Except) -> Option<&'static str>) -> bool {
        self.except.iter().filter_map(of).any(|named| named == call || named == "*")
    }

    pub(crate) fn absorbs(&self, call: &str) -> bool {
        ABSORBED.contains(&call)
            || (PROOF.contains(&call) && self.except.iter().any(|e| matches!(e, Except::Proof)))
            || self.lists(call, |e| if let Except::Absorbed(c, _) = e { Some(c) } else { None })
    }

    pub(crate) fn stores(&self, call: &str) -> bool {
        self.lists(call, |e| if let Except::Store(c, _) = e { Some(c) } else { None })
    }

    pub(crate) fn keeps(&self, call: &str) -> bool {
        KEPT.contains(&call) || self.lists(call, |e| if let Except::Kept(c, _) = e { Some(c) } else { None })
    }
}

/// Calls of destructors: nobody is there who could be told. The first two put the caller's thread back as it was and are
/// made again when they fail; the others end handles, which stay the driver's when it refuses.
const ABSORBED: [&str; 6] = [
    "cuCtxPopCurrent",
    "cuThreadExchangeStreamCaptureMode",
    "cuEventDestroy",
    "cuStreamDestroy",
    "cuMemRelease",
    "cuMemAddressFree",
];
/// The calls of making a small block.
const PROOF: [&str; 6] = [
    "cuMemAlloc",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent",
    "cuDeviceGetCount",
    "cuDevicePrimaryCtxGetState",
    "cuCtxGetId",
];
const KEPT: [&str; 4] = ["cuEventDestroy", "cuStreamDestroy", "cuMemRelease", "cuMemAddressFree"];

/// Everything that must be as it was.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Picture {
    resources: BTreeMap<u64, Figures>,
    table: Vec<u64>,
    free: Vec<u64>,
    handles: BTreeMap<&'static str, i64>,
    misuse: u64,
    violations: u64,
    current: Option<i32>,
    capture_mode: u32,
    blocks: Vec<Block>,
    buffers: Vec<(u64, usize, usize, usize, u64)>,
}

#[derive(Clone, Debug, PartialEq)]
struct Figures {
    kind: String,
    anchors: i64,
    lights: i64,
    /// Some other resource takes its memory from it.
    feeds: bool,
    info: Info,
    more: [i64; 4],
}

/// What is made and what ends it. The first of each pair may have several names.
const PAIRS: [(&str, &[&str], &str); 8] = [
    ("streams", &["cuStreamCreate", "cuStreamCreateWithPriority"], "cuStreamDestroy"),
    ("events", &["cuEventCreate"], "cuEventDestroy"),
    ("blocks", &["cuMemAlloc", "cuMemAllocManaged"], "cuMemFree"),
    ("host blocks", &["cuMemHostAlloc"], "cuMemFreeHost"),
    ("queued blocks", &["cuMemAllocFromPoolAsync", "cuMemAllocAsync"], "cuMemFreeAsync"),
    ("pools", &["cuMemPoolCreate"], "cuMemPoolDestroy"),
    ("ranges", &["cuMemAddressReserve"], "cuMemAddressFree"),
    ("pages", &["cuMemCreate"], "cuMemRelease"),
];

/// Calls that failed on purpose: they made or ended nothing.
#[derive(Default)]
pub(crate) struct Failed(pub(crate) BTreeMap<String, i64>);

impl Failed {
    pub(crate) fn note(&mut self, call: &str) {
        *self.0.entry(call.to_owned()).or_default() += 1;
    }

    fn of(&self, call: &str) -> i64 {
        sim::calls(call) as i64 - self.0.get(call).copied().unwrap_or(0)
    }
}

impl Picture {
    /// Taken when nothing is queued.
    pub(crate) fn take(things: &Things, failed: &Failed) -> Self {
        for device in 0..2 {
            device::prove(device).expect("a proof while nothing fails");
        }
        let mut resources = BTreeMap::new();
        registry::for_each(|resource| {
            let (anchors, lights) = resource.references();
            let body = resource.body();
            if let Some(pool) = resource.downcast::<Pool>() {
                pool.check().expect("the pool's own invariants");
            }
            if let Some(fixed) = resource.downcast::<FixedSize>() {
                fixed.check().expect("those of the pool of blocks");
            }
            if let Some(arena) = resource.downcast::<Arena>() {
                arena.check().expect("those of the pool of the arena");
            }
            let more = if let Some(limiting) = resource.downcast::<Limiting>() {
                [limiting.allocated_bytes() as i64, limiting.available_bytes() as i64, 0, 0]
            } else if let Some(statistics) = resource.downcast::<Statistics>() {
                let c = statistics.counters();
                [c.bytes.value, c.allocations.value, c.bytes.total, c.allocations.total]
            } else {
                [0; 4]
            };
            let figures =
                Figures { kind: body.kind().to_owned(), anchors, lights, feeds: false, info: body.info(), more };
            resources.insert(resource.id(), figures);
        });
        registry::for_each(|resource| {
            let fed_by = resource.body().upstream().map(|up| up.id());
            if let Some(figures) = fed_by.and_then(|id| resources.get_mut(&id)) {
                figures.feeds = true;
            }
        });
        let driver = device::driver().expect("the driver");
        let handles = PAIRS
            .map(|(what, made, ended)| (what, made.iter().map(|call| failed.of(call)).sum::<i64>() - failed.of(ended)));
        Self {
            resources,
            table: (0..2).map(|d| current::get(d).expect("an entry").id()).collect(),
            free: (0..2).map(|d| device::memory_info(d).expect("figures").0).collect(),
            handles: handles.into_iter().collect(),
            misuse: misuse::count(),
            violations: sim::violations(),
            current: driver.current_ordinal().expect("the current device"),
            capture_mode: {
                // Asked by setting what must be there, and set back if it was another.
                let mode = driver.exchange_capture_mode(CU_STREAM_CAPTURE_MODE_GLOBAL).expect("a mode");
                driver.exchange_capture_mode(mode).expect("a mode");
                mode
            },
            blocks: things.blocks.clone(),
            buffers: things
                .buffers
                .iter()
                .map(|b| (b.ptr(), b.bytes(), b.capacity(), b.align(), b.home().value().as_raw() as u64))
                .collect(),
        }
    }

    /// Without what a wait, a proof or a retry may legitimately improve or raise: peaks, totals, how much is proven.
    pub(crate) fn settled(&self) -> Self {
        let mut it = self.clone();
        for figures in it.resources.values_mut() {
            figures.info.peak_live_bytes = 0;
            figures.info.peak_reserved_bytes = 0;
            figures.info.unproven_bytes = 0;
            figures.info.device_proofs = 0;
            figures.info.largest_free_bytes = 0;
            figures.more[2..].fill(0);
        }
        it
    }

    /// [`settled`](Self::settled), without what the driver keeps because it refused to take it back.
    pub(crate) fn without_driver(&self) -> Self {
        let mut it = self.settled();
        it.free.clear();
        it.handles.clear();
        it
    }

    /// [`settled`](Self::settled), without the count of handles, which knows nothing of calls that failed.
    pub(crate) fn without_handles(&self) -> Self {
        let mut it = self.settled();
        it.handles.clear();
        it
    }

    /// [`settled`](Self::settled), without stores: what a pool keeps or has given back, and its events.
    pub(crate) fn without_stores(&self) -> Self {
        let mut it = self.settled();
        it.free.clear();
        it.handles.retain(|what, _| !["events", "pages", "blocks", "host blocks"].contains(what));
        for figures in it.resources.values_mut() {
            figures.info.cached_bytes = 0;
            figures.info.reserved_bytes = 0;
            if figures.feeds {
                figures.info = Info::default();
            }
        }
        it
    }
}

/// Names what differs.
pub(crate) fn difference(before: &Picture, after: &Picture) -> String {
    let lines = |p: &Picture| format!("{p:#?}").lines().map(str::to_owned).collect::<Vec<_>>();
    let (old, new) = (lines(before), lines(after));
    if old.len() != new.len() {
        return format!("before {before:#?}\nafter {after:#?}");
    }
    let mut heading = String::new();
    let mut text = String::new();
    for (a, b) in old.iter().zip(&new) {
        if a.contains("kind:") {
            heading = a.trim().to_owned();
        }
        if a != b {
            text.push_str(&format!("\n    {heading} {} -> {}", a.trim(), b.trim()));
        }
    }
    text
}

/// Checks that an error is of the right kind for a call that failed with `code`.
pub(crate) fn check_kind(error: &Error, call: &str, code: i32) -> std::result::Result<(), String> {
    match (code, error) {
        (2, e) if e.is_out_of_memory() => Ok(()),
        (2, e) => Err(format!("out of memory came back as {e:?}")),
        (_, e) if e.is_out_of_memory() => Err(format!("code {code} came back as out of memory: {e}")),
        (_, Error::Device(e)) if e.code == code && e.call == call => Ok(()),
        (_, e) => Err(format!("code {code} of {call} came back as {e:?}")),
    }
}

/// What came of a step with a call that was to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The step had fewer calls this time.
    NotReached,
    /// It failed as it must.
    Failed,
    /// It worked all the same, as the list allows.
    Absorbed,
}

/// Runs one scenario with the call `call` number `index` of its step failing, and checks everything.
pub(crate) fn run_one(
    scenario: &Scenario,
    call: &str,
    index: u64,
    code: i32,
    failed: &mut Failed,
) -> std::result::Result<Outcome, String> {
    let here = |text: String| format!("{}: {call} #{index} -> {code}: {text}", scenario.name);
    let start = Picture::take(&Things::default(), failed);
    let mut things = (scenario.set_up)().map_err(|e| format!("{}: set up: {e}", scenario.name))?;
    let stepped = fail_step(scenario, &mut things, call, index, code, failed);
    // Also after a failed check, so that the next scenario finds an empty machine.
    let torn = things.tear_down();
    let outcome = stepped.map_err(here)?;
    torn.map_err(|e| here(format!("tear down: {e}")))?;
    let end = Picture::take(&Things::default(), failed);
    let (a, b) = if scenario.keeps(call) {
        (start.without_driver(), end.without_driver())
    } else {
        (start.settled(), end.settled())
    };
    if a != b {
        return Err(here(format!("at the end something is left:{}", difference(&a, &b))));
    }
    Ok(outcome)
}

/// The step with the failure, and again without.
fn fail_step(
    scenario: &Scenario,
    things: &mut Things,
    call: &str,
    index: u64,
    code: i32,
    failed: &mut Failed,
) -> std::result::Result<Outcome, String> {
    let before = Picture::take(things, failed);
    sim::fail_next(call, code, index).map_err(|e| e.to_string())?;
    let result = (scenario.step)(things);
    let reached = sim::fail_clear() == 0;
    if reached {
        failed.note(call);
    }
    let error = match result {
        Ok(()) if !reached => return Ok(Outcome::NotReached),
        Ok(()) if scenario.absorbs(call) => return Ok(Outcome::Absorbed),
        Ok(()) => return Err("the step succeeded all the same".into()),
        Err(e) if !reached => return Err(format!("the call was not made, and yet: {e}")),
        Err(e) => e,
    };
    check_kind(&error, call, code)?;
    let after = Picture::take(things, failed);
    let (a, b) = match () {
        () if scenario.stores(call) => (before.without_stores(), after.without_stores()),
        () if scenario.keeps(call) => (before.without_driver(), after.without_driver()),
        () => (before.settled(), after.settled()),
    };
    if a != b {
        return Err(format!("failed with \"{error}\" and left something:{}", difference(&a, &b)));
    }
    (scenario.step)(things).map_err(|e| format!("does not work afterwards: {e}"))?;
    Ok(Outcome::Failed)
}

/// The driver calls of a scenario's step, when all goes well.
pub(crate) fn calls_of(scenario: &Scenario) -> Result<BTreeMap<&'static str, u64>> {
    let mut things = (scenario.set_up)()?;
    for device in 0..2 {
        device::prove(device)?;
    }
    let before = sim::calls_all();
    (scenario.step)(&mut things)?;
    let after = sim::calls_all();
    things.tear_down()?;
    Ok(after
        .into_iter()
        .map(|(call, n)| (call, n - before.get(call).copied().unwrap_or(0)))
        .filter(|(_, n)| *n > 0)
        .collect())
}
