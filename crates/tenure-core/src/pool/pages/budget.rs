//! How often a pool that could grow may map idle pages again instead.
//!
//! ```text
//!   new handles      raise what may be spent: `TIMES` mappings each
//!   mappings again   are spent; in time they are forgotten, one in `LEAK`
//! ```
//!
//! To map a handle again costs about what it costs to create one, and saves the memory of it. So all that is mapped again
//! takes at most `TIMES` the time that growing took, and a thousandth or two of all time after that. A program that would need
//! more, each round of a fast loop, makes the pool grow until it needs it no more.

use std::time::{Duration, Instant};

/// Mappings for each handle that was created. The logs measured need 0 to 3.3.
const TIMES: u64 = 4;

/// One mapping, which takes some 20 us, is forgotten in this time.
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

    /// Handles were mapped again.
    pub(in crate::pool) fn spend(&mut self, handles: usize) {
        self.spent += handles as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_is_bounded_by_what_was_created() {
        let now = Instant::now();
        let mut budget = Budget::new(now);
        assert!(!budget.allows(now), "nothing was created yet");
        budget.created(2);
        for _ in 0..2 * TIMES {
            assert!(budget.allows(now));
            budget.spend(1);
        }
        assert!(!budget.allows(now));
        budget.created(1);
        assert!(budget.allows(now), "a growth adds to it");
    }

    #[test]
    fn it_is_forgotten_slowly_and_never_below_nothing() {
        let now = Instant::now();
        let mut budget = Budget::new(now);
        budget.created(1);
        budget.spend(TIMES as usize + 1);
        assert!(!budget.allows(now + LEAK * 3 / 2), "one is forgotten, one too many is left");
        assert!(budget.allows(now + LEAK * 2), "and half a time was not lost");
        assert!(budget.allows(now + LEAK * 1000));
        budget.spend(TIMES as usize);
        assert!(!budget.allows(now + LEAK * 1000), "an idle hour is worth no more than a full budget");
    }
}
