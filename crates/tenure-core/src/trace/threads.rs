//! A log replayed with a thread for each thread that it names.
//!
//! ```text
//!   log      1 alloc P   2 alloc Q   1 free P   2 alloc P   1 free Q
//!   lane 1   alloc P -------------- free P ----------------- free Q
//!                                        \ turn 2           /
//!   lane 2              alloc Q ---------- alloc P --------- turn 1
//! ```
//!
//! Each lane makes its thread's calls in their order. Between lanes one order is kept, that of each logged address: a free
//! comes after its allocation, and an allocation that was given an address comes after the free that had made it free.
//! Every address has a *turn*, which the calls that name it wait for and pass on. Both orders are parts of the log's own,
//! so that the earliest call that has not been made can always be made: no lane waits for ever, whatever the log holds.
//!
//! A call is timed by itself, without the wait for its turn. Lanes may run ahead of each other further than the program's
//! threads did, so that more can be live at once than in the log.

use std::time::{Duration, Instant};

use crossbeam_utils::Backoff;

use super::field::Action;
use super::log::Log;
use super::replay::{Outcome, Replay};
use super::timing::Clock;
use crate::device;
use crate::error::{Error, Result};
use crate::resource::{DEFAULT_ALIGNMENT, Resource};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::mpsc;

/// The most threads that a replay starts.
pub const MAX_LANES: u64 = 512;

/// How often the calling thread looks at what the lanes have done.
const LOOK: Duration = Duration::from_millis(2);

/// One call of a lane.
struct Step {
    bytes: u64,
    /// The call's number in the log.
    at: u32,
    /// The allocation, by a number of its own.
    allocation: u32,
    pointer: u32,
    /// Which of the calls that name the pointer it is.
    turn: u32,
    stream: u16,
    action: Action,
}

/// A log, by thread.
pub(super) struct Lanes {
    lanes: Vec<Vec<Step>>,
    /// The event that made each allocation.
    made_by: Vec<u32>,
    pointers: usize,
}

impl Lanes {
    /// # Errors
    /// [`Error::Invalid`] for a log of more threads than are started.
    pub(super) fn new(log: &Log) -> Result<Self> {
        if log.threads > MAX_LANES {
            return Err(Error::invalid(format!(
                "{} names {} threads and a replay starts {MAX_LANES} at most: replay it without a thread for each",
                log.name, log.threads
            )));
        }
        if u32::try_from(log.events.len()).is_err() {
            return Err(Error::invalid(format!("{} has more than 2^32 events", log.name)));
        }
        let mut lanes: Vec<Vec<Step>> = (0..log.threads).map(|_| Vec::new()).collect();
        let mut turns = vec![0_u32; log.pointers as usize];
        let mut in_slot = vec![0_u32; log.slots as usize];
        let mut made_by = Vec::new();
        for (at, event) in log.events.iter().enumerate() {
            let (slot, pointer) = (event.slot as usize, event.pointer as usize);
            let mut step = Step {
                bytes: event.bytes,
                at: at as u32,
                allocation: 0,
                pointer: event.pointer,
                turn: 0,
                stream: event.stream,
                action: event.action,
            };
            if event.action != Action::Failure {
                if event.action == Action::Allocate {
                    in_slot[slot] = made_by.len() as u32;
                    made_by.push(at as u32);
                }
                (step.allocation, step.turn) = (in_slot[slot], turns[pointer]);
                turns[pointer] += 1;
            }
            lanes[event.thread as usize].push(step);
        }
        Ok(Self { lanes, made_by, pointers: log.pointers as usize })
    }

    /// Replays the log once. `step` is told how many calls have been made since it was last called.
    ///
    /// # Errors
    /// A thread that cannot be started; a stop; a resource that holds memory at the end. All that was allocated is freed.
    pub(super) fn pass(
        &self,
        replay: &Replay<'_>,
        resource: &Resource,
        clock: Clock,
        step: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Outcome> {
        let run = Run {
            replay,
            resource,
            clock,
            turns: (0..self.pointers).map(|_| AtomicU32::new(0)).collect(),
            places: self.made_by.iter().map(|_| AtomicU64::new(0)).collect(),
            live: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            done: AtomicU64::new(0),
            begin: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        };
        let outcome = std::thread::scope(|scope| {
            let (ended, ends) = mpsc::channel();
            let mut handles = Vec::with_capacity(self.lanes.len());
            let mut result = Ok(());
            for (index, lane) in self.lanes.iter().enumerate() {
                let end = End { run: &run, ended: ended.clone() };
                let run = &run;
                let started =
                    std::thread::Builder::new().name(format!("replay {index}")).spawn_scoped(scope, move || {
                        let end = end;
                        let outcome = run.lane(lane);
                        drop(end);
                        outcome
                    });
                match started {
                    Ok(handle) => handles.push(handle),
                    Err(e) => {
                        run.stop.store(true, Ordering::Relaxed);
                        result = Err(Error::invalid(format!(
                            "thread {} of {} cannot be started ({e}): replay the log without a thread for each",
                            index + 1,
                            self.lanes.len()
                        )));
                        break;
                    }
                }
            }
            drop(ended);
            run.begin.store(true, Ordering::Release);
            let mut told = 0;
            // Until every lane has dropped its end.
            while let Ok(()) | Err(mpsc::RecvTimeoutError::Timeout) = ends.recv_timeout(LOOK) {
                let done = run.done.load(Ordering::Relaxed);
                if result.is_ok() {
                    result = step((done - told) as usize);
                    told = done;
                }
                if result.is_err() {
                    run.stop.store(true, Ordering::Relaxed);
                }
            }
            let mut all = Outcome::default();
            for handle in handles {
                match handle.join() {
                    Ok(outcome) => all.add(outcome),
                    Err(_) => result = Err(Error::Internal("a thread of a replay panicked".into())),
                }
            }
            if result.is_ok() {
                result = step((run.done.load(Ordering::Relaxed) - told) as usize);
            }
            result.map(|()| all)
        });
        let released = self.release(&run);
        let mut outcome = outcome?;
        outcome.peak_live = run.peak.load(Ordering::Relaxed);
        released?;
        replay.nothing_left(resource)?;
        Ok(outcome)
    }

    /// Frees what is live.
    fn release(&self, run: &Run<'_>) -> Result<()> {
        let mut outcome = Ok(());
        for (place, made_by) in run.places.iter().zip(&self.made_by) {
            let ptr = place.load(Ordering::Acquire);
            if ptr == 0 {
                continue;
            }
            let event = &run.replay.log.events[*made_by as usize];
            let stream = run.replay.streams[event.stream as usize];
            outcome = outcome.and(run.resource.deallocate(ptr, event.bytes as usize, DEFAULT_ALIGNMENT, stream));
        }
        outcome
    }
}

/// What the lanes of one pass share.
struct Run<'a> {
    replay: &'a Replay<'a>,
    resource: &'a Resource,
    clock: Clock,
    /// Whose turn it is, for each pointer.
    turns: Vec<AtomicU32>,
    /// Where each allocation is; 0 where it is not.
    places: Vec<AtomicU64>,
    /// Bytes that are live, as they were asked for, and the most there were. Kept between the calls, not in their time.
    live: AtomicU64,
    peak: AtomicU64,
    done: AtomicU64,
    begin: AtomicBool,
    stop: AtomicBool,
}

/// Says that a lane has ended, however it ended.
struct End<'a> {
    run: &'a Run<'a>,
    ended: mpsc::Sender<()>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Nobody passes this lane's turns on.
            self.run.stop.store(true, Ordering::Relaxed);
        }
        // Whoever listens may be gone already; then nobody needs it.
        let _ = self.ended.send(());
    }
}

impl Run<'_> {
    fn lane(&self, steps: &[Step]) -> Outcome {
        let mut outcome = Outcome::default();
        outcome.samples.reserve(steps.len());
        if !self.wait(|| self.begin.load(Ordering::Acquire)) {
            return outcome;
        }
        // The streams' device is current, as it was in the program.
        let done = device::on(self.replay.device, || {
            for step in steps {
                let turn = &self.turns[step.pointer as usize];
                if step.action == Action::Failure {
                    self.try_again(step, &mut outcome);
                } else {
                    if !self.wait(|| turn.load(Ordering::Acquire) == step.turn) {
                        break;
                    }
                    self.call(step, &mut outcome);
                    turn.store(step.turn + 1, Ordering::Release);
                }
                self.done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        if let Err(error) = done {
            // The lane has made no call, and its turns will not come.
            self.stop.store(true, Ordering::Relaxed);
            outcome.fail(0, Action::Allocate, 0, &error);
        }
        outcome
    }

    /// Waits until something is so; false when the replay is stopped.
    fn wait(&self, is_so: impl Fn() -> bool) -> bool {
        let backoff = Backoff::new();
        while !is_so() {
            if self.stop.load(Ordering::Relaxed) {
                return false;
            }
            if backoff.is_completed() {
                std::thread::sleep(Duration::from_micros(20));
            } else {
                backoff.snooze();
            }
        }
        !self.stop.load(Ordering::Relaxed)
    }

    fn call(&self, step: &Step, outcome: &mut Outcome) {
        let (stream, bytes) = (self.replay.streams[step.stream as usize], step.bytes as usize);
        let place = &self.places[step.allocation as usize];
        let ptr = place.load(Ordering::Acquire);
        if step.action == Action::Free && ptr == 0 {
            // What could not be allocated has no free either.
            return;
        }
        if step.action == Action::Free {
            self.live.fetch_sub(step.bytes, Ordering::Relaxed);
        }
        let start = Instant::now();
        let result = match step.action {
            Action::Free => self.resource.deallocate(ptr, bytes, DEFAULT_ALIGNMENT, stream).map(|()| 0),
            Action::Allocate | Action::Failure => self.resource.allocate(bytes, DEFAULT_ALIGNMENT, stream),
        };
        let ns = self.clock.since(start);
        outcome.nanos += u128::from(ns);
        outcome.samples.push(ns);
        match result {
            Ok(ptr) => {
                place.store(ptr, Ordering::Release);
                if step.action == Action::Allocate {
                    let live = self.live.fetch_add(step.bytes, Ordering::Relaxed) + step.bytes;
                    self.peak.fetch_max(live, Ordering::Relaxed);
                }
            }
            Err(e) => outcome.fail(step.at as usize, step.action, step.bytes, &e),
        }
    }

    /// A request that had failed in the log.
    fn try_again(&self, step: &Step, outcome: &mut Outcome) {
        let (stream, bytes) = (self.replay.streams[step.stream as usize], step.bytes as usize);
        if let Ok(ptr) = self.resource.allocate(bytes, DEFAULT_ALIGNMENT, stream) {
            outcome.served += 1;
            if let Err(e) = self.resource.deallocate(ptr, bytes, DEFAULT_ALIGNMENT, stream) {
                outcome.fail(step.at as usize, step.action, step.bytes, &e);
            }
        }
    }
}
