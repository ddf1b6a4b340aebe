//! The seeded scheduler: queue heads run in any legal order, one at a time, chosen by a seed.
//!
//! On a real device the order in which independent streams advance is up to the hardware, and a test sees one order out
//! of very many. Under [`schedule`] no worker runs anything: each [`step`] picks one of the operations that *may* run
//! now, with a generator that starts from the seed, and runs it in the calling thread. The same seed and the same calls
//! give the same order. Whoever synchronises runs as many steps as it takes, so ordinary programs work unchanged; a
//! program that polls gets one step for every 16 answers of "not ready", the first 15 after [`schedule`] being free. Waits of a time take none.

use crate::sync::atomic::{AtomicU64, Ordering};

use super::machine::Machine;
use super::queue::Locked;

/// The generator of one schedule (`xorshift64*`, Marsaglia 2003, Vigna 2014).
pub(super) struct Schedule {
    state: u64,
}

impl Schedule {
    fn new(seed: u64) -> Schedule {
        // Any state but zero will do; the constant keeps small seeds apart.
        Schedule { state: seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// One of `n` choices, `None` for none.
    pub(super) fn pick(&mut self, n: usize) -> Option<usize> {
        (n > 0).then(|| (self.next() >> 33) as usize % n)
    }
}

impl Machine {
    /// One of `n` choices: random under a seeded schedule, otherwise the first.
    pub(super) fn choose(&mut self, n: usize) -> usize {
        self.queue.schedule.as_mut().and_then(|s| s.pick(n)).unwrap_or(0)
    }
}

/// Stops the workers and runs operations only on demand, in a random legal order given by `seed`. Returns when nothing
/// is running any more.
pub fn schedule(seed: u64) {
    let Some(mut m) = Locked::unless_forked() else {
        return;
    };
    m.queue.schedule = Some(Schedule::new(seed));
    m.settle();
    POLLS.store(0, Ordering::Relaxed);
    // Whoever waits runs operations itself from now on.
    m.note_done();
}

/// Lets the workers run again. What is queued goes on at once.
pub fn schedule_workers() {
    let Some(mut m) = Locked::unless_forked() else {
        return;
    };
    m.queue.schedule = None;
    m.call_workers();
}

/// Runs one operation that may run now. Returns `false` when there is none.
pub fn step() -> bool {
    Locked::unless_forked().is_some_and(|mut m| m.run_one())
}

/// Runs operations until none is left that may run, and returns how many.
pub fn run_all() -> usize {
    let Some(mut m) = Locked::unless_forked() else {
        return 0;
    };
    let mut n = 0;
    while m.run_one() {
        n += 1;
    }
    n
}

static POLLS: AtomicU64 = AtomicU64::new(0);

/// Called for each query that answers "not ready".
pub(super) fn polled(m: &mut Locked) {
    if m.queue.self_run() && POLLS.fetch_add(1, Ordering::Relaxed) % 16 == 15 {
        m.run_one();
    }
}
