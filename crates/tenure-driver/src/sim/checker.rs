//! The check of order: every two accesses to a byte, one of them a write, must be ordered *by the program*.
//!
//! A schedule shows a race only when it happens to collide. The checker finds it whether or not it collided: it keeps, for
//! each range of *physical* memory, the operation that wrote last and those that have read since, and compares them with
//! the clock of each operation that touches the range (vector clocks, as in FastTrack, Flanagan and Freund 2009).
//!
//! What orders operation A before operation B:
//!
//! * both are in one stream, A first; an event recorded behind A and waited for before B; the implicit order of the legacy
//!   stream; chains of these;
//! * the host has *learned* that A is complete before it submits B: it synchronised with the stream, an event or the
//!   device, a query answered "complete", a host function behind A ran, a user object of A's graph was destroyed. What one
//!   thread of the host has learned counts for all of them, since the checker does not see how they talk to each other.
//!
//! That A happens to have completed is no order. Aliases are one memory: ranges are translated to pages first. Memory that
//! the device hands out anew (a plain block, a block of a driver pool, pages) starts without a past.
//!
//! Limits: accesses by the host itself are not seen; the nodes of one graph launch count as one operation.
//!
//! Cost: O(log n + ranges touched) an access, and clocks that grow with the number of streams; off unless asked for.

use std::collections::BTreeMap;

use super::machine::Machine;
use super::op::Action;
use super::stream::{Clock, Point};

/// Races beyond this number are only counted.
const TOLD: usize = 64;

#[derive(Clone, Default)]
struct Cell {
    end: u64,
    write: Option<Point>,
    reads: Vec<Point>,
}

/// The past of all memory, and what the host knows.
#[derive(Default)]
pub(super) struct Checker {
    /// By space (0: addresses, else 1 + device: its pages) and start.
    cells: BTreeMap<(usize, u64), Cell>,
    /// What the host has learned to be complete.
    pub(super) host: Clock,
    /// Per device, the clocks of streams that are gone, and of the blocking ones among them.
    gone: BTreeMap<usize, [Clock; 2]>,
    races: Vec<String>,
    count: u64,
}

impl Checker {
    /// Makes cell borders at `at` and, for the parts of `[at, end)` without a cell, empty cells.
    fn carve(&mut self, space: usize, at: u64, end: u64) {
        for border in [at, end] {
            let before = self.cells.range((space, 0)..(space, border)).next_back();
            if let Some((&key, cell)) = before
                && cell.end > border
            {
                let rest = cell.clone();
                self.cells.entry(key).and_modify(|c| c.end = border);
                self.cells.insert((space, border), rest);
            }
        }
        let mut next = at;
        let mut holes = Vec::new();
        for ((_, start), cell) in self.cells.range((space, at)..(space, end)) {
            if *start > next {
                holes.push((next, *start));
            }
            next = cell.end;
        }
        if next < end {
            holes.push((next, end));
        }
        for (start, end) in holes {
            let empty = Cell { end, ..Cell::default() };
            self.cells.insert((space, start), empty);
        }
    }

    fn forget(&mut self, space: usize, at: u64, len: u64) {
        self.carve(space, at, at + len);
        let keys: Vec<_> = self.cells.range((space, at)..(space, at + len)).map(|(k, _)| *k).collect();
        for key in keys {
            self.cells.remove(&key);
        }
    }

    fn touch(&mut self, space: usize, at: u64, end: u64, write: bool, me: Point, clock: &Clock) {
        self.carve(space, at, end);
        let before = |p: Point| p.0 == me.0 || clock.covers(p);
        let mut found = None;
        for cell in self.cells.range((space, at)..(space, end)).map(|(_, c)| c) {
            if let Some(w) = cell.write.filter(|w| !before(*w)) {
                found = found.or(Some((w, "wrote")));
            }
            if write && let Some(r) = cell.reads.iter().find(|r| !before(**r)) {
                found = found.or(Some((*r, "read")));
            }
        }
        if write {
            let keys: Vec<_> = self.cells.range((space, at)..(space, end)).map(|(k, _)| *k).collect();
            for key in keys {
                self.cells.remove(&key);
            }
            self.cells.insert((space, at), Cell { end, write: Some(me), reads: Vec::new() });
        } else {
            for (_, cell) in self.cells.range_mut((space, at)..(space, end)) {
                cell.reads.retain(|r| r.0 != me.0);
                cell.reads.push(me);
            }
        }
        if let Some((other, verb)) = found {
            self.count += 1;
            if self.races.len() < TOLD {
                let place = if space == 0 { "address" } else { "page offset" };
                let access = if write { "writes" } else { "reads" };
                self.races.push(format!(
                    "operation {} of stream {} {access} {} bytes from {place} {at:#x} that operation {} of stream {} \
                     {verb}, and nothing that the program did orders the two",
                    me.1,
                    me.0,
                    end - at,
                    other.1,
                    other.0
                ));
            }
        }
    }
}

impl Machine {
    /// The host learns that everything in `clock` is complete.
    pub(super) fn learn(&mut self, clock: &Clock) {
        if let Some(c) = &mut self.checker {
            c.host.join(clock);
        }
    }

    /// What the host learns when it has synchronised with a stream.
    pub(super) fn clock_behind(&self, uid: u64) -> Clock {
        let mut clock = Clock::default();
        if self.checker.is_some() {
            for (other, _) in self.behind(uid) {
                if let Some(s) = self.streams.get(&other) {
                    clock.join(&s.clock);
                }
            }
        }
        clock
    }

    /// What the host learns when it has synchronised with a device.
    pub(super) fn clock_of_device(&self, device: usize) -> Clock {
        let mut clock = Clock::default();
        if let Some(c) = &self.checker {
            for s in self.devices[device].streams.iter().filter_map(|s| self.streams.get(s)) {
                clock.join(&s.clock);
            }
            if let Some([all, _]) = c.gone.get(&device) {
                clock.join(all);
            }
        }
        clock
    }

    /// What an operation of the legacy stream is ordered after, beside the streams that are still there.
    pub(super) fn clock_of_gone_blocking(&self, device: usize) -> Option<&Clock> {
        self.checker.as_ref()?.gone.get(&device).map(|[_, blocking]| blocking)
    }

    /// Keeps the clock of a stream that disappears.
    pub(super) fn bury(&mut self, device: usize, blocking: bool, clock: &Clock) {
        if let Some(c) = &mut self.checker {
            let [all, blockers] = c.gone.entry(device).or_default();
            all.join(clock);
            if blocking {
                blockers.join(clock);
            }
        }
    }

    /// Memory is handed out anew: it has no past.
    pub(super) fn renew(&mut self, at: u64, len: u64) {
        if let Some(c) = &mut self.checker {
            c.forget(0, at, len);
        }
    }

    pub(super) fn renew_pages(&mut self, device: usize, offset: u64, len: u64) {
        if let Some(c) = &mut self.checker {
            c.forget(device + 1, offset, len);
        }
    }

    /// Checks the accesses that an operation makes now.
    pub(super) fn check_order(&mut self, me: Point, clock: &Clock, actions: &[Action]) {
        let Some(mut checker) = self.checker.take() else {
            return;
        };
        for (at, len, write) in actions.iter().flat_map(Action::ranges).flatten() {
            for (space, start, end) in self.vmm.physical_ranges(at, len as u64) {
                checker.touch(space, start, end, write, me, clock);
            }
        }
        self.checker = Some(checker);
    }

    pub(super) fn races(&self) -> (u64, Vec<String>) {
        self.checker.as_ref().map_or((0, Vec::new()), |c| (c.count, c.races.clone()))
    }
}
