//! The clock by which single calls are timed, and what is made of the figures.

use std::time::Instant;

/// The clock, and what reading it costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    cost: u64,
}

impl Clock {
    /// The cost of a reading is the median of many pairs of readings with nothing between them.
    pub(super) fn calibrate() -> Self {
        let mut pairs: Vec<_> = (0..4097).map(|_| nanos(Instant::now())).collect();
        pairs.sort_unstable();
        Self { cost: pairs.get(pairs.len() / 2).copied().unwrap_or_default() }
    }

    /// Nanoseconds since `start`, without the cost of the reading.
    #[inline]
    pub(super) fn since(self, start: Instant) -> u64 {
        nanos(start).saturating_sub(self.cost)
    }
}

fn nanos(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// What half, 99 of 100 and all calls stay within, in nanoseconds; zeros when there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Percentiles {
    pub(super) p50: u64,
    pub(super) p99: u64,
    pub(super) max: u64,
}

impl Percentiles {
    pub(super) fn of(mut samples: Vec<u64>) -> Self {
        samples.sort_unstable();
        let Some(last) = samples.len().checked_sub(1) else { return Self::default() };
        // The smallest value that so many of the samples do not exceed.
        let at = |percent: usize| samples[(samples.len() * percent).div_ceil(100).saturating_sub(1).min(last)];
        Self { p50: at(50), p99: at(99), max: samples[last] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ranks() {
        assert_eq!(Percentiles::of(vec![]), Percentiles::default());
        assert_eq!(Percentiles::of(vec![7]), Percentiles { p50: 7, p99: 7, max: 7 });
        let samples = (1..=1000).rev().collect();
        assert_eq!(Percentiles::of(samples), Percentiles { p50: 500, p99: 990, max: 1000 });
    }
}
