//! Streams: queues whose order is the driver's.
//!
//! ```text
//!   blocking stream 7      [op 4][op 5][op 6]      an operation starts when its predecessor in the stream is complete
//!   legacy stream 1        [op 2]                  and every point it depends on is: events waited for, and the implicit
//!   non-blocking stream 9  [op 1][op 2]            order between the legacy stream and the blocking ones
//! ```
//!
//! A *point* is (stream, sequence number): "this stream has completed its operation of that number". Streams are known
//! inside by a number that is never reused; the handle value that programs hold is reissued (see [`super::handle`]).
//!
//! Each stream has a *clock*: for every other stream, up to which operation everything put here from now on is ordered
//! after. Events carry the clock of the stream they were recorded on. Pools ask it before they reuse a block, and the
//! seeded scheduler checks with it that it never runs an operation too early.
//!
//! Invariants: operations of a stream complete in order; `done <= issued`; a stream is in the list of ready ones at most
//! once, and only while it does not run; a stream that was destroyed disappears when its last operation has completed.

use std::collections::{BTreeMap, VecDeque};

use crate::sync::Arc;

use super::codes::*;
use super::machine::Machine;
use super::op::{Op, Work};
use super::thread;

/// "The stream of this number has completed its operation of that number."
pub(super) type Point = (u64, u64);

/// For each stream, the last operation that is ordered before. Copied on write.
#[derive(Clone, Default)]
pub(super) struct Clock(Arc<BTreeMap<u64, u64>>);

impl Clock {
    pub(super) fn covers(&self, point: Point) -> bool {
        self.0.get(&point.0).is_some_and(|n| *n >= point.1)
    }

    pub(super) fn add(&mut self, point: Point) {
        if !self.covers(point) {
            Arc::make_mut(&mut self.0).insert(point.0, point.1);
        }
    }

    pub(super) fn join(&mut self, other: &Clock) {
        if self.0.is_empty() {
            self.0 = Arc::clone(&other.0);
        } else {
            for (s, n) in other.0.iter() {
                self.add((*s, *n));
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(Point) -> bool) {
        Arc::make_mut(&mut self.0).retain(|s, n| keep((*s, *n)));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Point> + '_ {
        self.0.iter().map(|(s, n)| (*s, *n))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Created,
    Legacy,
    PerThread,
}

/// How a stream takes part in a capture.
pub(super) struct Taking {
    pub(super) capture: u64,
    /// The nodes that the next one recorded here depends on.
    pub(super) tail: Vec<usize>,
}

pub(super) struct Stream {
    /// The device, which is also the number of its context.
    pub(super) device: usize,
    pub(super) role: Role,
    pub(super) blocking: bool,
    pub(super) destroyed: bool,
    pub(super) queue: VecDeque<Op>,
    pub(super) issued: u64,
    pub(super) done: u64,
    pub(super) running: bool,
    pub(super) listed: bool,
    pub(super) clock: Clock,
    /// Streams whose head waits for an operation of this one.
    pub(super) waiters: Vec<Point>,
    pub(super) taking: Option<Taking>,
}

impl Machine {
    /// Makes a stream of a device and returns its number.
    pub(super) fn new_stream(&mut self, device: usize, role: Role, blocking: bool) -> u64 {
        self.next_stream += 1;
        let uid = self.next_stream;
        let stream = Stream {
            device,
            role,
            blocking,
            destroyed: false,
            queue: VecDeque::new(),
            issued: 0,
            done: 0,
            running: false,
            listed: false,
            clock: Clock::default(),
            waiters: Vec::new(),
            taking: None,
        };
        self.streams.insert(uid, stream);
        let context = &mut self.devices[device];
        context.streams.insert(uid);
        if blocking && role != Role::Legacy {
            context.blocking.insert(uid);
        }
        uid
    }

    /// Forgets a destroyed stream that has nothing left to do.
    pub(super) fn drop_stream(&mut self, uid: u64) {
        if let Some(s) = self.streams.remove(&uid) {
            self.bury(s.device, s.blocking, &s.clock);
            self.devices[s.device].streams.remove(&uid);
            self.devices[s.device].blocking.remove(&uid);
            for (_, waiter) in s.waiters {
                self.pump(waiter);
            }
        }
    }

    /// The stream that a handle means for the calling thread.
    ///
    /// # Errors
    ///
    /// No current context for a special handle; the code of a fault of the stream's device; a violation for a value that
    /// is no stream.
    pub(super) fn stream_of(&mut self, handle: usize) -> Result<u64, i32> {
        let uid = match handle {
            0 | 1 => {
                let device = self.current()?;
                self.legacy(device)
            }
            2 => {
                let device = self.current()?;
                self.per_thread(device)
            }
            _ => match self.stream_handles.get(handle) {
                Some(uid) => *uid,
                None => return Err(self.bad_stream(handle)),
            },
        };
        let device = self.streams.get(&uid).map_or(0, |s| s.device);
        self.devices[device].check()?;
        Ok(uid)
    }

    pub(super) fn bad_stream(&mut self, handle: usize) -> i32 {
        let issued = self.stream_handles.was_issued(handle);
        self.bad_handle(self.stream_handles.kind(), handle, issued)
    }

    pub(super) fn legacy(&mut self, device: usize) -> u64 {
        match self.devices[device].legacy {
            Some(uid) => uid,
            None => {
                let uid = self.new_stream(device, Role::Legacy, true);
                self.devices[device].legacy = Some(uid);
                uid
            }
        }
    }

    fn per_thread(&mut self, device: usize) -> u64 {
        let key = (thread::id(), device);
        match self.per_thread.get(&key) {
            Some(uid) => *uid,
            None => {
                let uid = self.new_stream(device, Role::PerThread, true);
                self.per_thread.insert(key, uid);
                uid
            }
        }
    }

    pub(super) fn stream(&mut self, uid: u64) -> Result<&mut Stream, i32> {
        self.streams.get_mut(&uid).ok_or(INVALID_HANDLE)
    }

    /// Whether a point has been passed. Streams that are gone have passed all their points.
    pub(super) fn passed(&self, point: Point) -> bool {
        self.streams.get(&point.0).is_none_or(|s| s.done >= point.1)
    }

    /// The point at which everything that is in the stream now is complete.
    pub(super) fn tip(&self, uid: u64) -> Point {
        (uid, self.streams.get(&uid).map_or(0, |s| s.issued))
    }

    /// The points at which a stream counts as done: its own work and, for the legacy stream, that of the blocking ones.
    pub(super) fn behind(&self, uid: u64) -> Vec<Point> {
        let mut points = vec![self.tip(uid)];
        if let Some(s) = self.streams.get(&uid).filter(|s| s.role == Role::Legacy) {
            points.extend(self.devices[s.device].blocking.iter().map(|other| self.tip(*other)));
        }
        points
    }

    /// The points at which everything that is on the device now is complete.
    pub(super) fn tips(&self, device: usize) -> Vec<Point> {
        self.devices[device].streams.iter().map(|s| self.tip(*s)).filter(|p| !self.passed(*p)).collect()
    }

    /// Puts an operation at the end of a stream, after `extra` and what the implicit order demands.
    pub(super) fn enqueue(&mut self, uid: u64, work: Work, then: Vec<Work>, extra: &[Point]) -> Point {
        let mut deps: Vec<Point> = extra.iter().copied().filter(|p| !self.passed(*p)).collect();
        let mut clock = self.order(uid, &mut deps);
        // The checker wants to know what the program orders; everything else only what is still to come.
        let strict = self.checker.is_some();
        for p in extra {
            if strict || !self.passed(*p) {
                clock.add(*p);
            }
        }
        if let Some(c) = &self.checker {
            clock.join(&c.host);
        } else if clock.len() > 16 {
            clock.retain(|p| !self.passed(p));
        }
        let exec = if let Work::Graph { exec } = work { Some(exec) } else { None };
        let Some(s) = self.streams.get_mut(&uid) else {
            return (uid, 0);
        };
        s.issued += 1;
        let seq = s.issued;
        let before = clock.clone();
        clock.add((uid, seq));
        s.clock = clock;
        s.queue.push_back(Op { seq, deps, work, then, clock: before, exec });
        if s.queue.len() == 1 && !s.running {
            self.pump(uid);
        }
        (uid, seq)
    }

    /// Adds the implicit order between the legacy stream and the blocking ones to `deps`, and returns the clock of the
    /// stream with it.
    fn order(&mut self, uid: u64, deps: &mut Vec<Point>) -> Clock {
        let Some(s) = self.streams.get(&uid) else {
            return Clock::default();
        };
        let mut clock = s.clock.clone();
        let context = &self.devices[s.device];
        let strict = self.checker.is_some();
        let mut after = |other: u64| {
            let p = self.tip(other);
            let passed = self.passed(p);
            if other != uid && !passed {
                deps.push(p);
            }
            if other != uid && (strict || !passed) {
                if let Some(o) = self.streams.get(&other) {
                    clock.join(&o.clock);
                }
                clock.add(p);
            }
        };
        if s.role == Role::Legacy {
            for other in &context.blocking {
                after(*other);
            }
            if let Some(gone) = self.clock_of_gone_blocking(s.device) {
                clock.join(gone);
            }
        } else if s.blocking
            && let Some(legacy) = context.legacy
        {
            after(legacy);
        }
        clock
    }

    /// Whether what is put into the stream from now on is ordered after `point`.
    pub(super) fn ordered(&self, uid: u64, point: Point, follow_events: bool) -> bool {
        if point.0 == uid || self.passed(point) {
            return true;
        }
        let (Some(s), Some(o)) = (self.streams.get(&uid), self.streams.get(&point.0)) else {
            return true;
        };
        let implicit =
            s.device == o.device && ((s.role == Role::Legacy && o.blocking) || (o.role == Role::Legacy && s.blocking));
        implicit || (follow_events && s.clock.covers(point))
    }
}
