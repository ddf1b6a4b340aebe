//! Memory over the events, in a bounded number of points.
//!
//! The events are cut into at most 1000 pieces. Of each piece the least and the most live bytes are kept, in the order
//! in which they came, so that no peak is lost and no valley filled; with a thousand events or fewer every event is a
//! piece. Reserved memory changes rarely and asking for it may cost something, so it is asked for once per piece: a
//! piece in which the peak rose gets the new peak.

/// Pieces at most; each has two points.
const PIECES: usize = 1000;

/// One moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Number of calls made before and with this one.
    pub event: u64,
    /// Bytes live.
    pub live: u64,
    /// Bytes held by the resource.
    pub reserved: u64,
}

/// Memory over the events.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// The moments, in order.
    pub points: Vec<Point>,
    events: usize,
    step: usize,
    low: Point,
    high: Point,
    filled: bool,
    peak_reserved: u64,
}

impl Series {
    /// An empty series for so many events.
    #[must_use]
    pub fn new(events: usize) -> Self {
        Self { events, step: events.div_ceil(PIECES).max(1), ..Self::default() }
    }

    /// Takes note of one event: its index, the bytes live after it, and a question for the bytes reserved now and at
    /// their peak.
    pub fn event(&mut self, at: usize, live: u64, reserved: impl FnOnce() -> (u64, u64)) {
        let point = Point { event: at as u64 + 1, live, reserved: 0 };
        if !self.filled {
            (self.low, self.high, self.filled) = (point, point, true);
        } else if live > self.high.live {
            self.high = point;
        } else if live < self.low.live {
            self.low = point;
        }
        if (at + 1).is_multiple_of(self.step) || at + 1 == self.events {
            let (mut held, peak) = reserved();
            if peak > self.peak_reserved {
                self.peak_reserved = peak;
                held = held.max(peak);
            }
            let (first, second) =
                if self.low.event <= self.high.event { (self.low, self.high) } else { (self.high, self.low) };
            self.points.push(Point { reserved: held, ..first });
            if second != first {
                self.points.push(Point { reserved: held, ..second });
            }
            self.filled = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_series_has_every_event() {
        let mut series = Series::new(3);
        for (at, live) in [5, 9, 2].into_iter().enumerate() {
            series.event(at, live, || (10 + at as u64, 10 + at as u64));
        }
        let expected = [(1, 5, 10), (2, 9, 11), (3, 2, 12)];
        assert_eq!(series.points.iter().map(|p| (p.event, p.live, p.reserved)).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_long_series_is_bounded_and_keeps_each_peak_and_valley() {
        let events = 1_234_567;
        let mut series = Series::new(events);
        let live = |at: usize| match at {
            777_777 => 9_000,
            888_888 => 1,
            _ => 4_000 + (at % 7) as u64,
        };
        for at in 0..events {
            // Reserved jumps up and falls back between two questions; the peak tells.
            let reserved = if at < 500_500 { (100, 100) } else { (100, 70_000) };
            series.event(at, live(at), || reserved);
        }
        assert!(series.points.len() <= 2 * PIECES, "{}", series.points.len());
        assert!(series.points.iter().any(|p| p.live == 9_000 && p.event == 777_778));
        assert!(series.points.iter().any(|p| p.live == 1 && p.event == 888_889));
        assert!(series.points.is_sorted_by_key(|p| p.event));
        assert_eq!(series.points.iter().map(|p| p.reserved).max(), Some(70_000));
        assert!(series.points.iter().filter(|p| p.reserved == 70_000).count() <= 2);
    }
}
