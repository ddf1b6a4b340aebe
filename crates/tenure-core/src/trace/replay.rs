//! Replaying a log against a resource.
//!
//! ```text
//!   pass 0       observed, not timed     reserved and live over the events, the address space at the peak
//!   pass 1..N    timed, not observed     ns per event, driver calls, peaks
//!   pass N + 1   each call timed alone   p50, p99, max
//!   trials       if asked for            the smallest fixed pool (`smallest.rs`)
//!   after each   everything that the log left live is freed; the resource must then hold nothing
//! ```
//!
//! Pass 0 has a resource of its own, so that pass 1 starts cold; the later ones find the resource as the one before left
//! it. All passes run in logged order on the calling thread, whatever threads the log names: a log says in which order the
//! calls came, not how long a thread waited for another. If asked for, passes 1..N run with a thread for each thread of
//! the log instead (`threads.rs`) and time each call alone; then there is no pass N + 1.
//!
//! # Streams
//! Null and 1 are the legacy default stream, 2 is the per-thread one. Every other stream of the log becomes a stream of
//! its own, *non-blocking*: the log does not say whether a stream was ordered with the legacy stream, and without that
//! order a resource has to prove by itself that a block may move from one stream to another. A replay is therefore never
//! better than the program was.
//!
//! # What is measured
//! The calls to the resource and nothing else: the log was balanced while it was read, so that the timed loop is a walk
//! over an array, and the clock is read twice per stretch of a few thousand events. Requests that failed when the log was
//! written are tried again between two stretches, outside of the measured time; one that succeeds now is freed at once,
//! since the log knows of no free of it.

use std::time::Instant;

use tenure_driver::RawStream;

use super::field::Action;
use super::log::{Event, Log};
use super::smallest::smallest;
use super::target::Target;
use super::threads::Lanes;
use super::timing::{Clock, Percentiles};
use crate::device;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::report::{Report, map::Map, series::Series};
use crate::resource::{DEFAULT_ALIGNMENT, Resource};
use crate::stream::{StreamHold, StreamObject, StreamRef};

/// Events between two readings of the clock.
const STRETCH: usize = 4096;

/// How a log is replayed.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it is replayed against.
    pub target: Target,
    /// The resource in the user's words, for the report.
    pub resource: String,
    /// Number of timed passes, at least 1. Times are the median's, all other figures the last pass's.
    pub repeat: u32,
    /// The device; the current one when left out.
    pub device: Option<i32>,
    /// Each thread of the log is replayed on a thread of its own.
    pub threads: bool,
    /// The smallest fixed pool in which the log replays is looked for. The target must be a pool without a size.
    pub smallest: bool,
}

/// Replays of a log that progress counts for the search of the smallest pool.
const TRIALS: u64 = 24;

impl Options {
    /// How many passes over the log progress counts.
    pub(super) fn passes(&self) -> u64 {
        let singles = u64::from(!self.threads);
        1 + u64::from(self.repeat.max(1)) + singles + if self.smallest { TRIALS } else { 0 }
    }

    /// One pass against the resource that `text` names: `cuda`, `async`, `pool` or `pool:SIZE`.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming what there is.
    pub fn new(text: &str) -> Result<Self> {
        Ok(Self {
            target: Target::parse(text)?,
            resource: text.trim().to_owned(),
            repeat: 1,
            device: None,
            threads: false,
            smallest: false,
        })
    }
}

/// Replays `log`. `progress` is called now and then with the events done and the events in all; false stops the replay.
///
/// # Errors
/// A device or resource that cannot be had; a stop; a resource that holds memory after everything was freed. Events that
/// fail are no error: the report counts them. Whatever the way out, everything that the replay allocated has been freed.
pub fn replay(log: &Log, options: &Options, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Report> {
    if options.smallest && options.target != Target::Pool(None) {
        return Err(Error::invalid(format!(
            "the smallest pool is looked for among pools, so the resource is \"pool\" and not {:?}",
            options.resource
        )));
    }
    // Before the first pass, so that what cannot be done costs nothing.
    let lanes = options.threads.then(|| Lanes::new(log)).transpose()?;
    let device = match options.device {
        Some(device) => device::check(device)?,
        None => device::current()?,
    };
    let streams = streams_of(log, device)?;
    device::on(device, || {
        let streams: Vec<StreamRef<'_>> = streams.iter().map(StreamHold::as_carried).collect();
        Replay { log, options, device, streams: &streams }.run(lanes.as_ref(), progress)
    })
}

/// A stream of the device for each stream of the log.
fn streams_of(log: &Log, device: i32) -> Result<Vec<StreamHold>> {
    log.streams
        .iter()
        .map(|logged| match logged {
            0 | 1 => Ok(StreamHold::raw(RawStream::NULL)),
            2 => Ok(StreamHold::raw(RawStream::PER_THREAD)),
            _ => Ok(StreamHold::object(StreamObject::create(device, true)?)),
        })
        .collect()
}

pub(super) struct Replay<'a> {
    pub(super) log: &'a Log,
    options: &'a Options,
    pub(super) device: i32,
    pub(super) streams: &'a [StreamRef<'a>],
}

impl Replay<'_> {
    fn run(&self, lanes: Option<&Lanes>, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Report> {
        let log = self.log;
        let events = log.events.len();
        let repeat = self.options.repeat.max(1);
        let total = events as u64 * self.options.passes();
        let mut done = 0;
        let mut step = |n: usize| {
            // How long the search for the smallest pool takes is only guessed.
            done = (done + n as u64).min(total);
            if !progress(done, total) {
                return Err(Error::invalid(
                    "the replay was stopped by its caller; everything it had allocated is freed",
                ));
            }
            Ok(())
        };

        let (series, map, observed_live) = self.observe(&mut step)?;

        let resource = self.options.target.build(self.device)?;
        let clock = Clock::calibrate();
        let mut timings = Vec::new();
        let (mut last, mut threads_live) = (None, 0);
        count_driver_calls()?;
        for _ in 0..repeat {
            let before = tenure_driver::calls::snapshot();
            let (outcome, calls) = match lanes {
                Some(lanes) => {
                    let outcome = lanes.pass(self, &resource, clock, &mut step)?;
                    (outcome, difference(&before, &tenure_driver::calls::snapshot()))
                }
                None => {
                    let mut pass = Pass::new(self, &resource);
                    pass.timed(&mut step)?;
                    let calls = difference(&before, &tenure_driver::calls::snapshot());
                    (pass.finish()?, calls)
                }
            };
            threads_live = outcome.peak_live.max(threads_live);
            timings.push(outcome.nanos as f64 / events.max(1) as f64);
            last = Some((outcome, calls));
        }
        let (mut outcome, driver_calls) = last.unwrap_or_default();
        let info = resource.body().info();
        let samples = match lanes {
            Some(_) => std::mem::take(&mut outcome.samples),
            None => {
                let mut pass = Pass::new(self, &resource);
                pass.singly(clock, &mut step)?;
                pass.finish()?.samples
            }
        };
        let percentiles = Percentiles::of(samples);
        let found = match self.options.smallest {
            true => Some(smallest(self, info.peak_reserved_bytes, &mut step)?),
            false => None,
        };
        // The search took fewer replays than were counted for it.
        step(total as usize)?;
        let sorted = {
            let mut sorted = timings.clone();
            sorted.sort_by(f64::total_cmp);
            sorted
        };
        let driver = device::driver()?;
        Ok(Report {
            log: log.name.clone(),
            device: device_name(driver, self.device),
            simulated: driver.is_simulated(),
            resource: self.options.resource.clone(),
            stack: resource.stack(),
            events: log.rows,
            calls: events as u64,
            threads: log.threads,
            streams: log.streams.len() as u64,
            stream_names: log.streams.clone(),
            // Threads may run ahead of each other further than those of the program did.
            peak_live_bytes: if lanes.is_some() { threads_live } else { observed_live },
            peak_reserved_bytes: info.peak_reserved_bytes,
            ns_per_event: sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or_default(),
            ns_per_event_first: timings.first().copied().unwrap_or_default(),
            ns_per_event_min: sorted.first().copied().unwrap_or_default(),
            ns_per_event_last: timings.last().copied().unwrap_or_default(),
            repeat,
            threaded: lanes.is_some(),
            ns_per_event_p50: percentiles.p50,
            ns_per_event_p99: percentiles.p99,
            ns_per_event_max: percentiles.max,
            smallest: found,
            driver_calls,
            failed_events: outcome.failed,
            first_failure: outcome.first_failure,
            failures_in_log: log.failures,
            failures_served: outcome.served,
            unknown_frees: log.unknown_frees,
            zero_sized: log.zero_sized,
            overlapping: log.overlapping,
            size_mismatches: log.size_mismatches,
            left_live: log.left_live,
            duration_us: log.duration_us,
            series,
            map,
        })
    }

    /// After everything was freed the resource must agree that nothing is live.
    pub(super) fn nothing_left(&self, resource: &Resource) -> Result<()> {
        let info = resource.body().info();
        if info.live_bytes == 0 && info.live_count == 0 {
            return Ok(());
        }
        Err(Error::Internal(format!(
            "after a replay of {} in which everything was freed, {} still counts {} live blocks of {} bytes",
            self.log.name,
            resource.stack(),
            info.live_count,
            info.live_bytes
        )))
    }

    /// The pass that is looked at.
    fn observe(&self, step: &mut dyn FnMut(usize) -> Result<()>) -> Result<(Series, Map, u64)> {
        let log = self.log;
        let resource = self.options.target.build(self.device)?;
        let mut pass = Pass::new(self, &resource);
        let mut series = Series::new(log.events.len());
        let mut map = Map::default();
        let mut live: u64 = 0;
        let mut peak_live = 0;
        for (at, event) in log.events.iter().enumerate() {
            let was_live = pass.is_live(event);
            pass.event(at, event);
            match event.action {
                Action::Allocate if pass.is_live(event) => live = live.saturating_add(event.bytes),
                Action::Free if was_live && !pass.is_live(event) => live = live.saturating_sub(event.bytes),
                _ => {}
            }
            peak_live = peak_live.max(live);
            series.event(at, live, || {
                let info = resource.body().info();
                (info.reserved_bytes, info.peak_reserved_bytes)
            });
            if at == log.peak_event {
                // A pool tells its ranges; of any other resource the map has to guess them.
                let ranges = resource.downcast::<Pool>().map(Pool::ranges).unwrap_or_default();
                map = Map::new(at, pass.blocks(at + 1), ranges, resource.body().info().reserved_bytes);
            }
            if at % STRETCH == STRETCH - 1 {
                step(STRETCH)?;
            }
        }
        step(log.events.len() % STRETCH)?;
        pass.finish()?;
        Ok((series, map, peak_live))
    }
}

/// One walk over the events. Dropping it frees what is live.
pub(super) struct Pass<'a> {
    replay: &'a Replay<'a>,
    resource: &'a Resource,
    /// The address in each slot; 0 where nothing is live.
    slots: Vec<u64>,
    pub(super) outcome: Outcome,
    /// Events begun; those after it have not happened.
    reached: usize,
}

/// What one pass found out.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) nanos: u128,
    pub(super) failed: u64,
    /// The first call that failed, and how.
    pub(super) first_failure: Option<String>,
    first_failed: usize,
    /// All that failed, failed for want of memory.
    pub(super) out_of_memory: bool,
    pub(super) served: u64,
    /// The most that was live at once, where threads ran ahead of each other.
    pub(super) peak_live: u64,
    /// Nanoseconds of single calls, where they were timed singly.
    pub(super) samples: Vec<u64>,
}

impl Default for Outcome {
    fn default() -> Self {
        Self {
            nanos: 0,
            failed: 0,
            first_failure: None,
            first_failed: usize::MAX,
            out_of_memory: true,
            served: 0,
            peak_live: 0,
            samples: Vec::new(),
        }
    }
}

impl Outcome {
    /// Notes that call `at` failed.
    #[cold]
    pub(super) fn fail(&mut self, at: usize, action: Action, bytes: u64, error: &Error) {
        self.failed += 1;
        self.out_of_memory &= error.is_out_of_memory();
        if at < self.first_failed {
            let what = match action {
                Action::Free => "free",
                Action::Allocate | Action::Failure => "allocation",
            };
            self.first_failed = at;
            self.first_failure = Some(format!("call {at}, {what} of {bytes} bytes: {error}"));
        }
    }

    /// Takes in what another thread found out.
    pub(super) fn add(&mut self, other: Self) {
        self.nanos += other.nanos;
        self.failed += other.failed;
        self.out_of_memory &= other.out_of_memory;
        self.served += other.served;
        self.samples.extend(other.samples);
        if other.first_failed < self.first_failed {
            (self.first_failed, self.first_failure) = (other.first_failed, other.first_failure);
        }
    }
}

impl<'a> Pass<'a> {
    pub(super) fn new(replay: &'a Replay<'a>, resource: &'a Resource) -> Self {
        Self { replay, resource, slots: vec![0; replay.log.slots as usize], outcome: Outcome::default(), reached: 0 }
    }

    fn is_live(&self, event: &Event) -> bool {
        self.slots.get(event.slot as usize).is_some_and(|ptr| *ptr != 0)
    }

    /// Replays all events, with the clock running in stretches that hold allocations and frees only.
    fn timed(&mut self, step: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        let events = &self.replay.log.events;
        let mut at = 0;
        while at < events.len() {
            let end = (at + STRETCH).min(events.len());
            let stop = events[at..end].iter().position(|e| e.action == Action::Failure).map_or(end, |n| at + n);
            let start = Instant::now();
            for (n, event) in events[at..stop].iter().enumerate() {
                self.event(at + n, event);
            }
            self.outcome.nanos += start.elapsed().as_nanos();
            let mut next = stop;
            while next < end && events[next].action == Action::Failure {
                self.event(next, &events[next]);
                next += 1;
            }
            step(next - at)?;
            at = next;
        }
        Ok(())
    }

    /// Replays all events, each with the clock running for it alone.
    fn singly(&mut self, clock: Clock, step: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        let events = &self.replay.log.events;
        self.outcome.samples.reserve(events.len());
        for (at, event) in events.iter().enumerate() {
            let start = Instant::now();
            self.event(at, event);
            let ns = clock.since(start);
            if event.action != Action::Failure {
                self.outcome.samples.push(ns);
            }
            if at % STRETCH == STRETCH - 1 {
                step(STRETCH)?;
            }
        }
        step(events.len() % STRETCH)
    }

    #[inline]
    pub(super) fn event(&mut self, at: usize, event: &Event) {
        self.reached = at + 1;
        let stream = self.replay.streams[event.stream as usize];
        let bytes = event.bytes as usize;
        match event.action {
            Action::Allocate => match self.resource.allocate(bytes, DEFAULT_ALIGNMENT, stream) {
                Ok(ptr) => self.slots[event.slot as usize] = ptr,
                Err(e) => self.failed(at, event, &e),
            },
            Action::Free => {
                let ptr = self.slots[event.slot as usize];
                // What could not be allocated has no free either.
                if ptr != 0 {
                    match self.resource.deallocate(ptr, bytes, DEFAULT_ALIGNMENT, stream) {
                        Ok(()) => self.slots[event.slot as usize] = 0,
                        Err(e) => self.failed(at, event, &e),
                    }
                }
            }
            Action::Failure => {
                if let Ok(ptr) = self.resource.allocate(bytes, DEFAULT_ALIGNMENT, stream) {
                    self.outcome.served += 1;
                    if let Err(e) = self.resource.deallocate(ptr, bytes, DEFAULT_ALIGNMENT, stream) {
                        self.failed(at, event, &e);
                    }
                }
            }
        }
    }

    #[cold]
    fn failed(&mut self, at: usize, event: &Event, error: &Error) {
        self.outcome.fail(at, event.action, event.bytes, error);
    }

    /// What is live after the first `count` events: address, bytes and stream of each block, and its slot.
    fn blocks(&self, count: usize) -> Vec<LiveBlock> {
        let mut made: Vec<Option<&Event>> = vec![None; self.slots.len()];
        for event in self.replay.log.events.iter().take(count).filter(|e| e.action == Action::Allocate) {
            made[event.slot as usize] = Some(event);
        }
        made.iter()
            .zip(&self.slots)
            .enumerate()
            .filter_map(|(slot, (event, ptr))| {
                let event = (*event).filter(|_| *ptr != 0)?;
                Some(LiveBlock { ptr: *ptr, bytes: event.bytes, stream: event.stream, slot })
            })
            .collect()
    }

    /// Frees what is live; every failure is kept.
    fn release(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        for block in self.blocks(self.reached) {
            let stream = self.replay.streams[block.stream as usize];
            match self.resource.deallocate(block.ptr, block.bytes as usize, DEFAULT_ALIGNMENT, stream) {
                Ok(()) => self.slots[block.slot] = 0,
                Err(e) => outcome = Err(e),
            }
        }
        outcome
    }

    /// Ends the pass: frees what is live, and checks that the resource agrees that nothing is.
    pub(super) fn finish(mut self) -> Result<Outcome> {
        self.release()?;
        self.replay.nothing_left(self.resource)?;
        Ok(std::mem::take(&mut self.outcome))
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        // After `finish` there is nothing left; this is for a replay that was stopped.
        if let Err(e) = self.release() {
            log::warn!("tenure: a replay that was stopped could not free everything: {e}");
        }
    }
}

/// A block that a replay holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// Where it starts.
    pub ptr: u64,
    /// Bytes that were asked for.
    pub bytes: u64,
    /// Its stream, an index into [`Log::streams`].
    pub stream: u16,
    /// Its slot.
    pub slot: usize,
}

/// Makes sure that driver calls are counted, without setting back counts that somebody else reads.
fn count_driver_calls() -> Result<()> {
    let before = tenure_driver::calls::total();
    device::count()?;
    if tenure_driver::calls::total() == before {
        tenure_driver::calls::enable();
    }
    Ok(())
}

fn difference(before: &[(&'static str, u64)], after: &[(&'static str, u64)]) -> Vec<(&'static str, u64)> {
    after
        .iter()
        .map(|(name, count)| {
            let old = before.iter().find(|(n, _)| n == name).map_or(0, |(_, c)| *c);
            (*name, count.saturating_sub(old))
        })
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn device_name(driver: &tenure_driver::Driver, ordinal: i32) -> String {
    let name = driver.device_handle(ordinal).and_then(|device| driver.device_name(device)).unwrap_or_default();
    let kind = if driver.is_simulated() { "sim" } else { "cuda" };
    if name.is_empty() { format!("{kind}:{ordinal}") } else { format!("{kind}:{ordinal} ({name})") }
}
