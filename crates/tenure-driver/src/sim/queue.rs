//! How operations come to run: the list of ready streams, the workers that take from it, and waiting.
//!
//! ```text
//!   enqueue --> pump: head may start? --no--> listed as a waiter of the stream it depends on
//!                  | yes                                    ^
//!                  v                                        | completes
//!            ready streams --> worker: run -----------------+--> condvar `done`: who waits looks again
//!                  |             | wait of a time: to the timers, the worker goes on
//!                  |             | host function: to the one thread that calls them, as the driver does it
//!                  +--> under a seeded schedule: whoever waits, or `step`, runs a random one
//! ```
//!
//! Operations that touch no bytes and take no time complete under the lock as soon as their turn comes. Everything else
//! runs without the lock. Workers are started when there is something to run; they are never joined: the process may
//! exit at any moment, and what they touch (mappings of this module) is never taken away by exit.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::sync::MutexGuard;

use super::codes::*;
use super::machine::{Machine, is_forked_child, sim};
use super::op::{Action, HostFn, Op, Work, perform};
use super::schedule::Schedule;
use super::stream::Point;
use super::thread;
use crate::sync::Arc;

/// Threads that run operations. Waits of a time and host functions do not occupy one.
const WORKERS: usize = 4;

/// A call to the host that the device owes.
pub(super) struct Callback {
    pub(super) function: HostFn,
    pub(super) data: usize,
    /// The operation that goes on afterwards, and its stream.
    pub(super) then: Option<(u64, Op)>,
}

/// What is ready, what is under way, and who may run it.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) ready: VecDeque<u64>,
    pub(super) timers: BTreeMap<(Instant, u64), (u64, Op)>,
    pub(super) callbacks: VecDeque<Callback>,
    pub(super) schedule: Option<Schedule>,
    /// Ranges that running operations touch now: a number, address, length.
    pub(super) inflight: Vec<(u64, u64, usize)>,
    pub(super) running: usize,
    workers: usize,
    idle: usize,
    caller: bool,
    stranded: bool,
    waiting: usize,
    ticks: u64,
}

impl Queue {
    /// Whether whoever waits must run operations itself: under a seeded schedule, or where no thread could be started.
    pub(super) fn self_run(&self) -> bool {
        self.schedule.is_some() || self.stranded
    }
}

enum Step {
    Finished,
    Sleep(Duration),
    Call(HostFn, usize),
    Touch(Arc<[Action]>),
}

impl Machine {
    /// Looks at the head of a stream, and of each stream that this sets free: completes it, lists it as ready, or lists
    /// the stream as a waiter.
    pub(super) fn pump(&mut self, first: u64) {
        let mut todo = vec![first];
        while let Some(uid) = todo.pop() {
            while let Some(s) = self.streams.get(&uid) {
                if s.running || s.listed {
                    break;
                }
                let Some(head) = s.queue.front() else {
                    if s.destroyed {
                        self.drop_stream(uid);
                    }
                    break;
                };
                let unmet = head.deps.iter().copied().find(|p| !self.passed(*p));
                if let Some((other, seq)) = unmet {
                    if let Some(o) = self.streams.get_mut(&other) {
                        o.waiters.push((seq, uid));
                    }
                    break;
                }
                let instant = head.work.is_instant() && head.then.is_empty() && self.queue.schedule.is_none();
                let Some(s) = self.streams.get_mut(&uid) else {
                    break;
                };
                if instant {
                    if let Some(op) = s.queue.pop_front() {
                        self.instant(&op.work);
                        self.advance(uid, op.seq, &mut todo);
                    }
                } else {
                    s.listed = true;
                    self.queue.ready.push_back(uid);
                    self.call_worker();
                    break;
                }
            }
        }
    }

    fn instant(&mut self, work: &Work) {
        match *work {
            Work::Record { event, issue } => self.stamp(event, issue),
            Work::Free { at } => self.free_plain(at),
            _ => {}
        }
    }

    /// Marks operation `seq` of a stream complete and collects the streams that may go on.
    fn advance(&mut self, uid: u64, seq: u64, todo: &mut Vec<u64>) {
        if let Some(s) = self.streams.get_mut(&uid) {
            s.done = seq;
            s.waiters.retain(|(n, waiter)| {
                let free = *n <= seq;
                if free {
                    todo.push(*waiter);
                }
                !free
            });
        }
        self.note_done();
    }

    /// Wakes those who wait for something to complete.
    pub(super) fn note_done(&mut self) {
        if self.queue.waiting > 0 {
            sim().done.notify_all();
        }
    }

    fn call_worker(&mut self) {
        if self.queue.self_run() {
            self.note_done();
            return;
        }
        if self.queue.idle == 0 && self.queue.workers < WORKERS {
            let name = format!("tenure-sim-{}", self.queue.workers);
            if std::thread::Builder::new().name(name).spawn(worker).is_ok() {
                self.queue.workers += 1;
            } else if self.queue.workers == 0 {
                self.queue.stranded = true;
                self.note_done();
            }
        }
        sim().work.notify_one();
    }

    /// Wakes workers for everything that is ready, after a seeded schedule has ended.
    pub(super) fn call_workers(&mut self) {
        for _ in 0..self.queue.ready.len().min(WORKERS) {
            self.call_worker();
        }
        self.note_done();
    }

    /// Has the device call a function on the host.
    pub(super) fn owe(&mut self, callback: Callback) {
        self.queue.callbacks.push_back(callback);
        if self.queue.self_run() {
            self.note_done();
            return;
        }
        if !self.queue.caller {
            let started = std::thread::Builder::new().name("tenure-sim-host".to_owned()).spawn(caller);
            self.queue.caller = started.is_ok();
            self.queue.stranded |= !self.queue.caller;
        }
        sim().callbacks.notify_one();
    }

    /// Takes the next stream that may run: the first, or a random one under a seeded schedule.
    fn take_ready(&mut self) -> Option<(u64, Op)> {
        let uid = match &mut self.queue.schedule {
            Some(schedule) => {
                let at = schedule.pick(self.queue.ready.len())?;
                self.queue.ready.swap_remove_back(at)?
            }
            None => self.queue.ready.pop_front()?,
        };
        let s = self.streams.get_mut(&uid)?;
        s.listed = false;
        let op = s.queue.pop_front()?;
        s.running = true;
        self.queue.running += 1;
        self.start(uid, op)
    }

    fn start(&mut self, uid: u64, mut op: Op) -> Option<(u64, Op)> {
        if self.queue.schedule.is_some() {
            let early = op.clock.iter().find(|p| p.0 != uid && !self.passed(*p));
            if let Some(p) = early {
                self.violate(format!(
                    "operation {} of stream {uid} started before operation {} of stream {}; this is a fault of the \
                     simulated device itself, please report it",
                    op.seq, p.1, p.0
                ));
            }
        }
        if let Work::Graph { exec } = op.work {
            op.work = Work::Marker;
            op.then = self.expand(exec);
        }
        Some((uid, op))
    }

    fn next_step(&mut self, uid: u64, op: &mut Op) -> Step {
        loop {
            let work = match std::mem::replace(&mut op.work, Work::End) {
                Work::End => match op.then.pop() {
                    Some(work) => work,
                    None => return Step::Finished,
                },
                work => work,
            };
            let device = self.streams.get(&uid).map_or(0, |s| s.device);
            if self.devices[device].check().is_err() {
                // A device in a fault runs nothing any more; the queues drain.
                op.then.clear();
                return Step::Finished;
            }
            match work {
                Work::Call(f, data) => {
                    // The function may tell the host that everything before it is complete.
                    if self.checker.is_some() {
                        let mut clock = op.clock.clone();
                        clock.add((uid, op.seq));
                        self.learn(&clock);
                    }
                    return Step::Call(f, data);
                }
                Work::Wait(t) => return Step::Sleep(t),
                Work::Touch { device, actions } => {
                    if self.may_touch(device, &actions) {
                        return Step::Touch(actions);
                    }
                    self.devices[device].fault = ILLEGAL_ADDRESS;
                }
                Work::Across { to, from, action } => {
                    let allowed = action
                        .ranges()
                        .into_iter()
                        .flatten()
                        .all(|(at, len, write)| self.reachable(if write { to } else { from }, at, len, write));
                    if allowed {
                        return Step::Touch(Arc::from([action]));
                    }
                    self.devices[to].fault = ILLEGAL_ADDRESS;
                }
                other => self.instant(&other),
            }
        }
    }

    fn finish(&mut self, uid: u64, op: Op) {
        self.queue.running -= 1;
        if let Some(exec) = op.exec {
            let mut clock = op.clock.clone();
            clock.add((uid, op.seq));
            self.launch_ended(exec, &clock);
        }
        if let Some(s) = self.streams.get_mut(&uid) {
            s.running = false;
        }
        let mut todo = Vec::new();
        self.advance(uid, op.seq, &mut todo);
        for other in todo {
            self.pump(other);
        }
        self.pump(uid);
    }

    fn due(&mut self) -> Option<(u64, Op)> {
        let first = self.queue.timers.first_entry()?;
        (first.key().0 <= Instant::now()).then(|| first.remove())
    }

    /// Whether a running operation touches part of the range now.
    pub(super) fn touched_now(&self, at: u64, len: usize) -> bool {
        let end = at.saturating_add(len as u64);
        self.queue.inflight.iter().any(|(_, a, n)| *a < end && at < a.saturating_add(*n as u64))
    }
}

/// The machine, locked, with the means to let go of it.
pub(super) struct Locked {
    pub(super) guard: MutexGuard<'static, Machine>,
}

impl std::ops::Deref for Locked {
    type Target = Machine;
    fn deref(&self) -> &Machine {
        &self.guard
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Machine {
        &mut self.guard
    }
}

impl Locked {
    pub(super) fn new() -> Locked {
        Locked { guard: sim().machine.lock() }
    }

    /// [`Locked::new`] for functions that a forked child may call, in which the lock may be held by a thread that did not
    /// come along: `None` there.
    pub(super) fn unless_forked() -> Option<Locked> {
        (!is_forked_child()).then(Locked::new)
    }

    /// Runs `f` without the lock.
    pub(super) fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        MutexGuard::unlocked(&mut self.guard, f)
    }

    /// Runs an operation until it has completed, sleeps, or has gone to the thread that calls the host.
    fn run(&mut self, uid: u64, mut op: Op) {
        loop {
            match self.next_step(uid, &mut op) {
                Step::Finished => return self.finish(uid, op),
                // Under a seeded schedule time stands still: only the order counts.
                Step::Sleep(_) if self.queue.schedule.is_some() => {}
                Step::Sleep(t) if self.queue.stranded => self.unlocked(|| std::thread::sleep(t)),
                Step::Sleep(t) => {
                    self.queue.ticks += 1;
                    // A time that the clock cannot hold is as good as a year.
                    let now = Instant::now();
                    let at = now.checked_add(t).unwrap_or(now + Duration::from_secs(31_536_000));
                    let key = (at, self.queue.ticks);
                    self.queue.timers.insert(key, (uid, op));
                    sim().work.notify_one();
                    return;
                }
                Step::Call(function, data) if self.queue.self_run() => {
                    // SAFETY: the caller of `cuLaunchHostFunc` promised a function that may be called with this value.
                    self.unlocked(|| thread::as_callback(|| unsafe { function(data as *mut _) }));
                }
                Step::Call(function, data) => {
                    return self.owe(Callback { function, data, then: Some((uid, op)) });
                }
                Step::Touch(actions) => {
                    self.check_order((uid, op.seq), &op.clock, &actions);
                    self.queue.ticks += 1;
                    let tick = self.queue.ticks;
                    for action in actions.iter() {
                        for (at, len, _) in action.ranges().into_iter().flatten() {
                            self.queue.inflight.push((tick, at, len));
                        }
                    }
                    self.unlocked(|| perform(&actions));
                    self.queue.inflight.retain(|(t, ..)| *t != tick);
                    self.note_done();
                }
            }
        }
    }

    /// Runs one ready operation or owed call in this thread. Returns whether there was one.
    pub(super) fn run_one(&mut self) -> bool {
        if let Some(c) = self.queue.callbacks.pop_front() {
            self.call(c);
            return true;
        }
        match self.take_ready() {
            Some((uid, op)) => {
                self.run(uid, op);
                true
            }
            None => false,
        }
    }

    fn call(&mut self, c: Callback) {
        // SAFETY: who registered the function promised that it may be called with this value.
        self.unlocked(|| thread::as_callback(|| unsafe { (c.function)(c.data as *mut _) }));
        if let Some((uid, op)) = c.then {
            self.run(uid, op);
        }
        self.note_done();
    }

    /// Waits until `met`. Runs operations itself where nobody else does.
    ///
    /// # Errors
    ///
    /// [`UNKNOWN`] when nothing is left that could make it true.
    pub(super) fn wait_until(&mut self, mut met: impl FnMut(&Machine) -> bool) -> Result<(), i32> {
        while !met(&self.guard) {
            // Who waits helps: a small copy is made sooner than a worker wakes up.
            if !self.queue.self_run()
                && let Some((uid, op)) = self.take_ready()
            {
                self.run(uid, op);
                continue;
            }
            if self.queue.self_run() {
                if self.run_one() {
                    continue;
                }
                if self.queue.running == 0 {
                    return Err(UNKNOWN);
                }
            }
            self.queue.waiting += 1;
            sim().done.wait(&mut self.guard);
            self.queue.waiting -= 1;
        }
        Ok(())
    }

    /// Waits until no operation is running, without starting any.
    pub(super) fn settle(&mut self) {
        while self.queue.running > 0 {
            self.queue.waiting += 1;
            sim().done.wait(&mut self.guard);
            self.queue.waiting -= 1;
        }
    }

    /// Waits until all points are passed.
    pub(super) fn wait_points(&mut self, points: &[Point]) -> Result<(), i32> {
        self.wait_until(|m| points.iter().all(|p| m.passed(*p)))
    }
}

fn worker() {
    let mut m = Locked::new();
    loop {
        if let Some((uid, op)) = m.due() {
            m.run(uid, op);
            continue;
        }
        if !m.queue.self_run()
            && let Some((uid, op)) = m.take_ready()
        {
            m.run(uid, op);
            continue;
        }
        m.queue.idle += 1;
        match m.queue.timers.first_key_value().map(|(key, _)| key.0) {
            Some(at) => {
                sim().work.wait_until(&mut m.guard, at);
            }
            None => sim().work.wait(&mut m.guard),
        }
        m.queue.idle -= 1;
    }
}

fn caller() {
    let mut m = Locked::new();
    loop {
        match m.queue.callbacks.pop_front() {
            Some(c) => m.call(c),
            None => sim().callbacks.wait(&mut m.guard),
        }
    }
}
