//! How often a pool that could grow may map idle pages again instead.
//!
//! ```text
//!   new handles      each allows what `TIMES` of it cost
//!   mappings again   cost what their driver calls do; in time that is forgotten, one unit in `LEAK`
//! ```
//!
//! The unit is 20 us, which the driver takes to create a handle, and to unmap one or several that touch; to set access takes
//! two or so, and to map a handle a sixteenth. So all that is mapped again takes at most `TIMES` the time that growing took, and
//! two thousandths of the time that passes. A program that would need more, in each round of a fast loop, makes the pool grow
//! until it needs it no more.

use std::time::{Duration, Instant};

/// Units for each handle that was created. The logs measured need some 3 at most (serving_kv).
const TIMES: u64 = 4;

/// One unit is forgotten in this time.
const LEAK: Duration = Duration::from_millis(10);

/// See the module.
pub(in crate::pool) struct Budget {
    created: u64,
    spent: u64,
    /// Until when what was spent has been forgotten.
    since: Instant,
}

impl Budget {
    pub(super) fn new(now: Instant) -> Self {
        Self { created: 0, spent: 0, since: now }
    }

    /// Handles were created.
    pub(super) fn created(&mut self, handles: usize) {
        self.created += handles as u64;
    }

    /// Whether handles may be mapped again.
    pub(in crate::pool) fn allows(&mut self, now: Instant) -> bool {
        let ticks = now.saturating_duration_since(self.since).as_nanos() / LEAK.as_nanos();
        if ticks >= u128::from(self.spent) {
            (self.spent, self.since) = (0, now);
        } else {
            // Less than what was spent, which is a small number.
            self.spent -= ticks as u64;
            self.since += LEAK * ticks as u32;
        }
        self.spent < TIMES * self.created
    }

    /// Handles were mapped again that had lain in so many stretches.
    pub(in crate::pool) fn spend(&mut self, handles: usize, stretches: usize) {
        self.spent += cost(handles, stretches);
    }
}

/// In units.
fn cost(handles: usize, stretches: usize) -> u64 {
    (2 + stretches + handles / 16) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_is_bounded_by_what_was_created() {
        let now = Instant::now();
        let mut budget = Budget::new(now);
        assert!(!budget.allows(now), "nothing was created yet");
        budget.created(6);
        let mut times = 0;
        while budget.allows(now) {
            budget.spend(1, 1);
            times += 1;
        }
        assert_eq!(times, 6 * TIMES / cost(1, 1));
        budget.created(1);
        assert!(budget.allows(now), "a growth adds to it");
    }

    #[test]
    fn it_is_forgotten_slowly_and_never_below_nothing() {
        let now = Instant::now();
        let mut budget = Budget::new(now);
        budget.created(1);
        // One more than there is.
        budget.spend(0, TIMES as usize - 1);
        assert!(!budget.allows(now + LEAK * 3 / 2), "one is forgotten, one too many is left");
        assert!(budget.allows(now + LEAK * 2), "and half a time was not lost");
        assert!(budget.allows(now + LEAK * 1000));
        budget.spend(0, TIMES as usize);
        assert!(!budget.allows(now + LEAK * 1000), "an idle hour is worth no more than a full budget");
    }

    #[test]
    fn what_lies_together_costs_little() {
        assert_eq!((cost(1, 1), cost(4, 4), cost(160, 1)), (3, 6, 13));
    }
}
