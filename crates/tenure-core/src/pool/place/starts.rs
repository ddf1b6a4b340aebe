//! Which block starts in which granule of the range, for those who hold no lock.
//!
//! ```text
//!   range     |---- granule 0 ----|---- granule 1 ----|---- granule 2 ----|      32 KiB each
//!   blocks      [== block 7 ====][===== run 9 ====================][= 4 ==
//!   starts    [7,                  9,                  4               ]
//!   without 4                                          9 | GOES_ON
//! ```
//!
//! What is handed out is longer than a granule, so that at most one block starts in each. A run is named in the granules
//! that it goes on through as well, unless another block starts there: a slot is then found through the granule before.
//!
//! **Who writes**: a block's start, who handed it out: the placer under the pool's lock, or a plot under its desk's latch.
//! That a run goes on, the placer; since a plot may begin in a run's last granule at that moment, this is written only over
//! what it was seen to be. Checked by loom (`tests/loom_cache.rs`).
//!
//! **Invariant**: a live block's start is named in its granule, whatever becomes of the runs beside it.

use crate::sync::atomic::{AtomicU32, Ordering};

/// No block.
const NIL: u32 = 0;
/// Of an entry: no block starts here, the run that began before goes on.
const GOES_ON: u32 = 1 << 31;

/// Units in a granule, as a power of two.
pub(super) const GRANULE: u32 = 7;

/// See the module.
pub(super) struct Starts(Box<[AtomicU32]>);

impl Starts {
    /// With as many granules as there are zeros.
    pub(super) fn new(zeros: Box<[AtomicU32]>) -> Self {
        Self(zeros)
    }

    /// Number of granules.
    pub(super) fn granules(&self) -> usize {
        self.0.len()
    }

    /// The block that starts in a granule; [`NIL`] when none does.
    #[inline]
    pub(super) fn in_granule(&self, granule: usize) -> u32 {
        let start = self.0[granule].load(Ordering::Acquire);
        if start & GOES_ON == 0 { start } else { NIL }
    }

    /// The block that starts in a granule, or the run that goes on in it; `None` beyond the last granule.
    #[inline(always)]
    pub(super) fn reaches(&self, granule: usize) -> Option<u32> {
        Some(self.0.get(granule)?.load(Ordering::Acquire) & !GOES_ON)
    }

    /// A block starts in a granule, or, with [`NIL`], does so no more.
    #[inline]
    pub(super) fn set(&self, granule: usize, block: u32) {
        self.0[granule].store(block, Ordering::Release);
    }

    /// Names the run that began before in the granules that it goes on through.
    pub(super) fn set_run(&self, unit: u32, units: u32, block: u32) {
        for granule in (unit >> GRANULE) + 1..=(unit + units - 1) >> GRANULE {
            let entry = &self.0[granule as usize];
            let now = entry.load(Ordering::Relaxed);
            if now == NIL || now & GOES_ON != 0 {
                // Where it has changed a block starts here now, which goes before.
                let _ = entry.compare_exchange(now, block | GOES_ON, Ordering::Release, Ordering::Relaxed);
            }
        }
    }

    /// The run is no more.
    pub(super) fn clear_run(&self, unit: u32, units: u32, block: u32) {
        for granule in (unit >> GRANULE) + 1..=(unit + units - 1) >> GRANULE {
            let entry = &self.0[granule as usize];
            let _ = entry.compare_exchange(block | GOES_ON, NIL, Ordering::Release, Ordering::Relaxed);
        }
    }
}
