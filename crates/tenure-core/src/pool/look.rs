//! A walk over the live blocks of a pool.
//!
//! The lock is held for a stretch of addresses at a time and let go in between, so that a pool of any size holds nobody up
//! for more than some microseconds. So the walk is no picture of one moment: a block that comes or goes meanwhile may be
//! in it or not. One that lives throughout is in it once, since blocks do not move.
//!
//! **Cost**: a load for each 32 KiB that are mapped, and 40 bytes for each live block of a stretch.

use super::Pool;
use super::place::{GRANULE_BYTES, LivePiece};
use crate::resource::{Block, Live};

/// So many granules are looked at under the lock at once: 16 MiB of addresses, at most 65536 slots.
const STRETCH: usize = 512;

impl Pool {
    /// Calls `see` with each live block, without a lock held.
    pub(super) fn look(&self, see: &mut dyn FnMut(Live)) {
        let mapped: Vec<(u64, u64)> = self.lock().place.mapped().collect();
        let mut pieces: Vec<(LivePiece, Option<u64>)> = Vec::new();
        let mut next = 0;
        for (offset, bytes) in mapped {
            // Two ranges may touch in one granule, which is looked at once.
            let end = (offset + bytes).div_ceil(GRANULE_BYTES) as usize;
            next = ((offset / GRANULE_BYTES) as usize).max(next);
            while next < end {
                let to = (next + STRETCH).min(end);
                {
                    let state = self.lock();
                    state.place.each_live(next..to, &mut |piece| {
                        let record = state.records.of_stamp(piece.stamp);
                        pieces.push((piece, record.map(|(_, record)| record.raw.addr() as u64)));
                    });
                }
                for (piece, stream) in pieces.drain(..) {
                    let ptr = self.pages.ptr_of(piece.offset);
                    let block = Block { ptr, bytes: piece.bytes as usize, owner: piece.owner, device: self.device };
                    see(Live { block, held: piece.held, stream });
                }
                next = to;
            }
        }
        self.graph_blocks().into_iter().for_each(see);
    }
}
