//! Events: a point of a stream that others can wait for.
//!
//! An event refers to its latest record only. It carries the clock of the stream at that moment, which is how order
//! travels from stream to stream. An event that was never recorded counts as complete, as with the driver.

use std::time::Instant;

use super::capture::CallClass;
use super::codes::*;
use super::machine::Machine;
use super::op::Work;
use super::stream::{Clock, Point};

/// What the latest record of an event means.
#[derive(Clone)]
pub(super) enum Recorded {
    Never,
    At(Vec<Point>),
    /// Recorded in a capture: a place in its graph.
    Captured {
        capture: u64,
        nodes: Vec<usize>,
    },
}

pub(super) struct Event {
    pub(super) device: usize,
    pub(super) timing: bool,
    pub(super) recorded: Recorded,
    pub(super) clock: Clock,
    /// The number of the latest record.
    pub(super) issue: u64,
    /// When the latest record was reached, once it is.
    pub(super) time: Option<Instant>,
}

impl Machine {
    /// The event behind a handle.
    pub(super) fn event(&mut self, handle: usize) -> Result<&mut Event, i32> {
        if handle == 0 {
            return Err(INVALID_HANDLE);
        }
        if self.events.get(handle).is_none() {
            let issued = self.events.was_issued(handle);
            return Err(self.bad_handle(self.events.kind(), handle, issued));
        }
        self.events.get_mut(handle).ok_or(INVALID_HANDLE)
    }

    /// Notes the time of a record that has been reached.
    pub(super) fn stamp(&mut self, event: usize, issue: u64) {
        if let Some(e) = self.events.get_mut(event).filter(|e| e.issue == issue) {
            e.time = Some(Instant::now());
        }
    }

    pub(super) fn record(&mut self, event: usize, uid: u64) -> Result<(), i32> {
        let device = self.stream(uid)?.device;
        if self.event(event)?.device != device {
            return Err(INVALID_HANDLE);
        }
        self.issues += 1;
        let issue = self.issues;
        let (recorded, clock) = match self.submit(uid, Work::Record { event, issue }, Vec::new(), &[])? {
            Some(point) => (Recorded::At(vec![point]), self.stream(uid)?.clock.clone()),
            None => {
                let taking = self.stream(uid)?.taking.as_ref().ok_or(UNKNOWN)?;
                (Recorded::Captured { capture: taking.capture, nodes: taking.tail.clone() }, Clock::default())
            }
        };
        let e = self.event(event)?;
        (e.recorded, e.clock, e.issue, e.time) = (recorded, clock, issue, None);
        // An instant record was reached before its number was known here.
        self.stamp_if_passed(event);
        Ok(())
    }

    pub(super) fn stamp_if_passed(&mut self, event: usize) {
        let Some(e) = self.events.get(event) else {
            return;
        };
        if let (Recorded::At(points), None) = (&e.recorded, e.time)
            && points.iter().all(|p| self.passed(*p))
        {
            let issue = e.issue;
            self.stamp(event, issue);
        }
    }

    /// Records an event behind everything that is on a device now.
    pub(super) fn record_all(&mut self, event: usize, device: usize) -> Result<(), i32> {
        if self.event(event)?.device != device {
            return Err(INVALID_HANDLE);
        }
        let points = self.tips(device);
        let mut clock = self.clock_of_device(device);
        for p in &points {
            if let Some(s) = self.streams.get(&p.0) {
                clock.join(&s.clock);
            }
            clock.add(*p);
        }
        self.issues += 1;
        let issue = self.issues;
        let e = self.event(event)?;
        (e.recorded, e.clock, e.issue, e.time) = (Recorded::At(points), clock, issue, None);
        self.stamp_if_passed(event);
        Ok(())
    }

    /// The points at which the latest record is reached.
    ///
    /// # Errors
    ///
    /// [`CAPTURED_EVENT`] for a record in a capture, which ends that capture; [`INVALID_VALUE`] when it is over.
    pub(super) fn event_points(&mut self, event: usize) -> Result<Vec<Point>, i32> {
        match self.event(event)?.recorded.clone() {
            Recorded::Never => Ok(Vec::new()),
            Recorded::At(points) => Ok(points),
            Recorded::Captured { capture, .. } => {
                self.judge(CallClass::CapturedEvent, |c| c.id == capture)?;
                // The capture is over.
                Err(INVALID_VALUE)
            }
        }
    }

    /// Puts a wait for an event into a stream.
    pub(super) fn wait_event(&mut self, uid: u64, event: usize) -> Result<(), i32> {
        let e = self.event(event)?;
        let (recorded, clock) = (e.recorded.clone(), e.clock.clone());
        let taking = self.stream(uid)?.taking.as_ref().map(|t| t.capture);
        match (recorded, taking) {
            (Recorded::Captured { capture, nodes }, _) => self.join_capture(uid, capture, &nodes),
            (_, Some(capture)) => {
                self.judge(CallClass::Isolation, |c| c.id == capture)?;
                Err(CAPTURE_ISOLATION)
            }
            (Recorded::Never, None) => Ok(()),
            (Recorded::At(points), None) => {
                let s = self.stream(uid)?;
                // Even a wait for what is complete has its place in the implicit order.
                let implicit = s.blocking;
                s.clock.join(&clock);
                if implicit || points.iter().any(|p| !self.passed(*p)) {
                    self.submit(uid, Work::Marker, Vec::new(), &points)?;
                }
                Ok(())
            }
        }
    }
}
