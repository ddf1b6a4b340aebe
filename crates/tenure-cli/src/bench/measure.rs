//! How a row is timed.
//!
//! ```text
//!   lane 0   warm | pilot | round  reference | round  reference | ... | single single single ...
//!   lane 1   warm | pilot | round  reference | round  reference | ... | single single single ...
//!                 ^       ^ all lanes meet before each round
//! ```
//!
//! A *round* is a block of operations between two readings of the clock; rounds alternate with those of the reference, so
//! that both see the same machine. The figure of a row is the median of its rounds, the mean is over all of them. *Single*
//! operations are timed by themselves for the percentiles; what the clock costs is measured before and taken off, and what
//! is left below it is 0. On a machine with fewer cores than lanes a lane's time holds the waiting for a core.
//!
//! An operation that fails ends its row with the error. Its lane still goes to every meeting, so that no other one waits
//! for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::Instant;

use super::bed::Bed;
use super::plan::{Op, Plan, Scene};

/// How long a row may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    /// Operations in a round, at most.
    operations: usize,
    /// Nanoseconds of a round, about.
    round_ns: f64,
    /// Single operations of a lane, at most.
    singles: usize,
    /// Nanoseconds of all singles, about.
    singles_ns: f64,
}

impl Effort {
    pub(crate) const FULL: Self =
        Self { rounds: 31, operations: 4096, round_ns: 4e6, singles: 20_000, singles_ns: 60e6 };
    pub(crate) const QUICK: Self = Self { rounds: 5, operations: 512, round_ns: 5e5, singles: 1000, singles_ns: 2e6 };
}

/// The clock, and what reading it costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) cost_ns: f64,
}

impl Clock {
    /// The cost of a reading: the median of many pairs of readings with nothing between them.
    pub(crate) fn calibrate() -> Self {
        let pairs = (0..10_001).map(|_| {
            let start = Instant::now();
            start.elapsed().as_nanos() as f64
        });
        Self { cost_ns: median(pairs.collect()) }
    }

    /// Nanoseconds of one operation.
    fn single(self, operation: &mut Op<'_>) -> tenure::Result<f64> {
        if let Some(part) = operation.part() {
            return part;
        }
        let start = Instant::now();
        operation.repeat(1)?;
        Ok((start.elapsed().as_nanos() as f64 - self.cost_ns).max(0.0))
    }
}

/// What was measured, in nanoseconds for one unit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    /// The median round; of several lanes, their mean.
    pub(crate) ns: f64,
    /// The mean of all rounds.
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
    /// The median round of the slowest lane.
    pub(crate) worst: f64,
    pub(crate) reference: f64,
    pub(crate) reference_worst: f64,
}

/// What one lane has measured, in nanoseconds for one operation.
#[derive(Debug, Default)]
struct Timings {
    rounds: Vec<f64>,
    reference: Vec<f64>,
    singles: Vec<f64>,
}

/// Times a row.
pub(crate) fn measure(plan: &Plan, bed: &Bed, effort: &Effort, clock: Clock) -> tenure::Result<Figures> {
    let (measured, compared) = ((plan.measured)(bed)?, (plan.compared)(bed)?);
    let (meeting, warm) = (Meeting::new(plan.threads), plan.warm);
    let lanes = lanes(plan.threads, |index| {
        let mut lane = Lane::new(&*measured, index);
        let mut other = Lane::new(&*compared, index);
        let count = lane.prepare(warm, &meeting, effort);
        let other_count = other.prepare(warm, &meeting, effort);
        let mut timings = Timings::default();
        for _ in 0..effort.rounds {
            meeting.wait();
            timings.rounds.extend(lane.round(count));
            meeting.wait();
            timings.reference.extend(other.round(other_count));
        }
        meeting.wait();
        let slowest = meeting.slowest_of(timings.rounds.iter().copied().fold(1.0, f64::max));
        let singles = (effort.singles_ns / slowest).clamp(8.0, effort.singles as f64) as usize;
        timings.singles = lane.singles(singles, clock);
        lane.end()?;
        other.end()?;
        Ok(timings)
    })?;

    let units = plan.units as f64;
    let mut singles: Vec<f64> = lanes.iter().flat_map(|lane| lane.singles.iter().copied()).collect();
    singles.sort_by(f64::total_cmp);
    let share = |part: f64| singles.get(((singles.len() as f64 * part) as usize).min(singles.len().saturating_sub(1)));
    let at = |part: f64| share(part).map_or(f64::NAN, |ns| ns / units);
    let medians: Vec<f64> = lanes.iter().map(|lane| median(lane.rounds.clone()) / units).collect();
    let reference: Vec<f64> = lanes.iter().map(|lane| median(lane.reference.clone()) / units).collect();
    let all: Vec<f64> = lanes.iter().flat_map(|lane| lane.rounds.iter().map(|ns| ns / units)).collect();
    Ok(Figures {
        ns: mean(&medians),
        mean: mean(&all),
        p50: at(0.5),
        p99: at(0.99),
        max: at(1.0),
        worst: medians.iter().copied().fold(0.0, f64::max),
        reference: mean(&reference),
        reference_worst: reference.iter().copied().fold(0.0, f64::max),
    })
}

/// Driver calls for one unit, counted over some operations after the warm-up; `None` where they say nothing.
pub(crate) fn driver_calls(plan: &Plan, bed: &Bed) -> tenure::Result<Option<f64>> {
    if !plan.counted {
        return Ok(None);
    }
    let measured = (plan.measured)(bed)?;
    let (meeting, warm) = (Meeting::new(plan.threads), plan.warm.max(1));
    let count = if plan.units > 1 { 4 } else { 256 };
    let counted = lanes(plan.threads, |index| {
        let mut lane = Lane::new(&*measured, index);
        lane.repeat(warm);
        meeting.wait();
        let before = tenure::sim::driver_calls(None);
        meeting.wait();
        lane.repeat(count);
        meeting.wait();
        let after = tenure::sim::driver_calls(None);
        // Nobody ends before everybody has read: what a lane gives back at its end is no operation.
        meeting.wait();
        lane.end()?;
        Ok(after?.saturating_sub(before?))
    })?;
    // Every lane has read the same counter, at about the same time.
    let calls = counted.into_iter().min().unwrap_or_default();
    Ok(Some(calls as f64 / (count * plan.threads * plan.units) as f64))
}

/// Runs a function on so many threads, one of them this one where it is alone.
fn lanes<R: Send>(count: usize, lane: impl Fn(usize) -> tenure::Result<R> + Sync) -> tenure::Result<Vec<R>> {
    if count == 1 {
        return Ok(vec![lane(0)?]);
    }
    std::thread::scope(|scope| {
        // Lanes wait for each other, so none may begin before all are there.
        let mut begin = Vec::with_capacity(count);
        let mut handles = Vec::with_capacity(count);
        for index in 0..count {
            let (go, ready) = mpsc::channel::<()>();
            let lane = &lane;
            let handle = std::thread::Builder::new()
                .name(format!("lane {index}"))
                .spawn_scoped(scope, move || ready.recv().ok().map(|()| lane(index)))
                .map_err(|e| {
                    tenure::Error::Invalid(format!(
                        "thread {index} of {count} cannot be started: {e}; select rows of fewer threads"
                    ))
                })?;
            begin.push(go);
            handles.push(handle);
        }
        for go in &begin {
            // A lane ends before this only when it cannot begin.
            let _ = go.send(());
        }
        let mut all = Vec::with_capacity(count);
        for handle in handles {
            match handle.join() {
                Ok(Some(result)) => all.push(result?),
                Ok(None) => {}
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(all)
    })
}

/// Where lanes wait for each other.
struct Meeting {
    barrier: Barrier,
    slowest: AtomicU64,
}

impl Meeting {
    fn new(lanes: usize) -> Self {
        Self { barrier: Barrier::new(lanes), slowest: AtomicU64::new(0) }
    }

    fn wait(&self) {
        self.barrier.wait();
    }

    /// The largest of what all lanes give; everybody gets the same.
    fn slowest_of(&self, ns: f64) -> f64 {
        self.slowest.fetch_max(ns as u64, Ordering::Relaxed);
        self.wait();
        let slowest = self.slowest.load(Ordering::Relaxed).max(1) as f64;
        self.wait();
        self.slowest.store(0, Ordering::Relaxed);
        self.wait();
        slowest
    }
}

/// An operation that has not failed yet.
struct Lane<'a> {
    operation: tenure::Result<Op<'a>>,
}

impl<'a> Lane<'a> {
    fn new(scene: &'a dyn Scene, index: usize) -> Self {
        Self { operation: scene.operation(index) }
    }

    /// Does something with the operation, unless it has failed before.
    fn with<R>(&mut self, f: impl FnOnce(&mut Op<'a>) -> tenure::Result<R>) -> Option<R> {
        let result = f(self.operation.as_mut().ok()?);
        result.map_err(|error| self.operation = Err(error)).ok()
    }

    fn repeat(&mut self, count: usize) {
        self.with(|operation| operation.repeat(count));
    }

    /// Warms up and says how many operations a round has.
    fn prepare(&mut self, warm: usize, meeting: &Meeting, effort: &Effort) -> usize {
        self.repeat(warm);
        meeting.wait();
        const PILOT: usize = 4;
        let ns = self.round(PILOT).unwrap_or(1.0);
        let slowest = meeting.slowest_of(ns);
        (effort.round_ns / slowest).clamp(1.0, effort.operations as f64) as usize
    }

    /// Nanoseconds of one operation, over so many.
    fn round(&mut self, count: usize) -> Option<f64> {
        self.with(|operation| {
            if let Some(part) = operation.part() {
                let mut sum = part?;
                for _ in 1..count {
                    sum += operation.part().transpose()?.unwrap_or_default();
                }
                return Ok(sum / count as f64);
            }
            let start = Instant::now();
            operation.repeat(count)?;
            Ok(start.elapsed().as_nanos() as f64 / count as f64)
        })
    }

    fn singles(&mut self, count: usize, clock: Clock) -> Vec<f64> {
        self.with(|operation| (0..count).map(|_| clock.single(operation)).collect()).unwrap_or_default()
    }

    fn end(self) -> tenure::Result<()> {
        self.operation.map(drop)
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
