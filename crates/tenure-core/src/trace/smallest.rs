//! The smallest fixed pool in which a log replays without a failure.
//!
//! Sizes are tried in steps of 256 KiB, between the log's live bytes, below which nothing can fit, and what a growing pool
//! took. Whether a log fits is not a smooth matter: a larger pool may place a block where it later is in the way. So the
//! bisection's answer is looked at from both sides: the sizes up to 2 MiB below it must all fail, or the search goes on
//! below, and those up to 2 MiB above it must all fit, or the answer is marked as the end of no clean edge.
//!
//! A trial ends at its first failure. The whole search takes some thirty replays, of which half end early.

use super::field::Action;
use super::replay::{Pass, Replay};
use super::size::Size;
use super::target::Target;
use crate::error::{Error, Result};

/// Sizes that are tried are multiples of this, in bytes.
pub const GRAIN: u64 = 256 << 10;

/// How many sizes beside the answer are tried on each side.
const BESIDE: u64 = 8;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Smallest {
    /// The size, in bytes; `None` when there is none, and then [`Smallest::why`] says why.
    pub bytes: Option<u64>,
    /// Sizes that were tried.
    pub trials: u64,
    /// No size that was tried above the answer failed.
    pub monotonic: bool,
    /// Why there is no answer.
    pub why: Option<String>,
}

/// Looks for it. `grown` is what a growing pool took, in bytes; `step` is told the calls that were made, as far as they were
/// expected.
///
/// # Errors
/// What making a pool or giving memory back says, except out of memory, which is an answer; a stop.
pub(super) fn smallest(replay: &Replay<'_>, grown: u64, step: &mut dyn FnMut(usize) -> Result<()>) -> Result<Smallest> {
    let peak = replay.log.peak_live_bytes;
    let total = crate::device::memory_info(replay.device)?.1;
    let mut search = Search { replay, step, failure: None, trials: 0, monotonic: true };
    let none = |trials, why: String| Ok(Smallest { trials, why: Some(why), ..Smallest::default() });
    if peak == 0 {
        return none(0, "the log allocates nothing".into());
    }
    // In grains from here on. `low` cannot fit.
    let (mut low, most) = ((peak - 1) / GRAIN, total / GRAIN);
    let mut high = grown.div_ceil(GRAIN).max(low + 1);
    let mut stride = BESIDE;
    while !search.fits(high)? {
        if high >= most {
            let why = search.failure.take().unwrap_or_default();
            return none(search.trials, format!("it does not fit into the device: {why}"));
        }
        low = high;
        high = (high + stride).min(most);
        stride = stride.saturating_mul(2);
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if search.fits(middle)? { high = middle } else { low = middle }
    }
    // From below: the nearest size that fits after all is the new answer.
    let floor = (peak - 1) / GRAIN;
    while let Some(lower) = search.first_below(high, floor)? {
        search.monotonic = false;
        high = lower;
    }
    for above in high + 1..=(high + BESIDE).min(most) {
        if !search.fits(above)? {
            search.monotonic = false;
        }
    }
    Ok(Smallest { bytes: Some(high * GRAIN), trials: search.trials, monotonic: search.monotonic, why: None })
}

struct Search<'a, 'b> {
    replay: &'a Replay<'a>,
    step: &'b mut dyn FnMut(usize) -> Result<()>,
    /// The last failure, in words.
    failure: Option<String>,
    trials: u64,
    monotonic: bool,
}

impl Search<'_, '_> {
    /// The size nearest below that fits, of those that are looked at.
    fn first_below(&mut self, high: u64, floor: u64) -> Result<Option<u64>> {
        for size in (high.saturating_sub(BESIDE).max(floor + 1)..high).rev() {
            if self.fits(size)? {
                return Ok(Some(size));
            }
        }
        Ok(None)
    }

    /// Whether the log runs in a pool of so many grains.
    fn fits(&mut self, grains: u64) -> Result<bool> {
        self.trials += 1;
        let size = Size::Bytes(grains * GRAIN);
        let resource = match Target::Pool(Some(size)).build(self.replay.device) {
            Ok(resource) => resource,
            Err(error) if error.is_out_of_memory() => {
                self.failure = Some(error.to_string());
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let mut pass = Pass::new(self.replay, &resource);
        let events = &self.replay.log.events;
        for (at, event) in events.iter().enumerate() {
            // What had failed in the log may fail.
            if event.action != Action::Failure {
                pass.event(at, event);
            }
            if pass.outcome.failed != 0 {
                break;
            }
        }
        (self.step)(events.len())?;
        let outcome = pass.finish()?;
        self.failure = outcome.first_failure.or(self.failure.take());
        match outcome.failed {
            0 => Ok(true),
            _ if outcome.out_of_memory => Ok(false),
            _ => Err(Error::invalid(format!(
                "the smallest pool cannot be found, since a call failed for another reason than memory: {}",
                self.failure.take().unwrap_or_default()
            ))),
        }
    }
}
