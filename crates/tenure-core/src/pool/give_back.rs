//! Giving back: what is idle goes to the device or the upstream, because somebody asks for it or because it has been idle
//! for long.
//!
//! ```text
//!   trim(keep)       max(keep, release_threshold) idle bytes stay                              the user
//!   decay            what has been wholly idle for decay_ms goes, down to the threshold        slow path, the thread
//!   yield_up(want)   no threshold: somebody is about to fail; never waits for the pool's turn  siblings, low_memory
//! ```
//!
//! Pieces go whole, the highest first. What is free but not proven for everyone is proven first by waiting for the device,
//! unless no piece would come free by that.
//!
//! **Invariants**: a piece leaves the placer before the driver is asked to take it, and comes back to it when the driver
//! refuses; the caller has the turn.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::cache::Which;
use super::pages::idle;
use super::place::{LARGE, PROVEN, SMALL};
use super::turn::Turn;
use super::{Pages, Pool, State};
use crate::error::Result;
use crate::sync::Mutex;

/// How often in a decay the idle pieces are looked through.
const LOOKS: u32 = 4;

/// Since when pieces have been wholly idle.
#[derive(Default)]
pub(super) struct Idle {
    seen: Mutex<(Option<Instant>, HashMap<u64, Instant>)>,
}

impl State {
    /// Free bytes.
    fn cached(&self) -> u64 {
        self.place.mapped_bytes() - self.place.live_bytes()
    }
}

impl Pool {
    /// Gives back idle pages down to `keep` cached bytes; says how many bytes went to the device or the upstream.
    ///
    /// # Errors
    /// What the driver or the upstream says; what went before stays gone.
    pub(super) fn trim_to(&self, keep: u64) -> Result<u64> {
        let reaped = self.reap(true);
        let keep = keep.max(self.options.release_threshold);
        self.drain(Which::All);
        let (spare, mapped) = {
            let state = self.lock();
            (state.cached().saturating_sub(keep), state.place.mapped_bytes())
        };
        if spare == 0 && self.pages.reserved() <= mapped {
            return Ok(reaped);
        }
        let turn = self.turns.take()?;
        if spare == 0 {
            // What a growth that failed could not take back goes now.
            return Ok(reaped + self.return_pieces(&[])?);
        }
        Ok(reaped + self.give_idle(&turn, keep, u64::MAX, |_| true)?)
    }

    /// Gives back at least `want` bytes, if so many are idle, for somebody who is about to fail. Nothing when a thread
    /// grows the pool or gives back already: waiting for it could wait for ever.
    ///
    /// # Errors
    /// As [`Pool::trim_to`].
    pub(super) fn yield_up(&self, want: u64) -> Result<u64> {
        self.drain(Which::All);
        match self.turns.try_take() {
            Some(turn) => self.give_idle(&turn, 0, want, |_| true),
            None => Ok(0),
        }
    }

    /// Gives back pieces that are wholly idle, that `which` agrees to by their offset, until `keep` cached bytes are left or
    /// `want` bytes have gone.
    fn give_idle(&self, turn: &Turn<'_>, keep: u64, want: u64, which: impl Fn(u64) -> bool) -> Result<u64> {
        if let Pages::Virtual(range) = &self.pages {
            range.recycle();
        }
        let mut all = self.pages.pieces();
        all.retain(|(offset, _)| which(*offset));
        {
            // Not worth a proof when no piece is free in whole.
            let mut state = self.lock();
            state.place.consolidate();
            let free = state.place.stretches(|_| true);
            all.retain(|piece| within(&free, *piece));
            if all.is_empty() || state.cached() <= keep {
                return Ok(0);
            }
        }
        let pieces = self.prove_with(turn, |state| {
            let spare = state.cached().saturating_sub(keep);
            let mut chosen = idle(&all, &state.place, spare);
            let mut sum = 0;
            chosen.retain(|(_, bytes)| {
                let more = sum < want;
                sum += if more { *bytes } else { 0 };
                more
            });
            chosen.retain(|(offset, bytes)| state.place.shrink(*offset, *bytes));
            chosen
        })?;
        self.return_pieces(&pieces)
    }

    /// Gives back what has been idle for as long as the options say. Looked at a few times in that span at most. Errors are
    /// noted only: nobody asked for it.
    pub(super) fn decay(&self) {
        if self.options.decay_ms == 0 || tenure_driver::process::unusable() {
            return;
        }
        let span = Duration::from_millis(self.options.decay_ms);
        let now = Instant::now();
        let due = {
            let mut seen = self.tend.idle.seen.lock();
            let (last, since) = &mut *seen;
            if last.is_some_and(|last| now.duration_since(last) < span / LOOKS) {
                return;
            }
            *last = Some(now);
            self.drain(Which::All);
            let pieces = self.pages.pieces();
            let free = {
                let mut state = self.lock();
                state.place.consolidate();
                state.place.stretches(|_| true)
            };
            let before = std::mem::take(since);
            for piece in pieces.into_iter().filter(|piece| within(&free, *piece)) {
                since.insert(piece.0, before.get(&piece.0).copied().unwrap_or(now));
            }
            let mut due: Vec<u64> = Vec::new();
            for (offset, idle_since) in since.iter() {
                if now.duration_since(*idle_since) >= span {
                    due.push(*offset);
                }
            }
            due
        };
        if due.is_empty() {
            return;
        }
        let due: std::collections::BTreeSet<u64> = due.into_iter().collect();
        let Some(turn) = self.turns.try_take() else { return };
        match self.give_idle(&turn, self.options.release_threshold, u64::MAX, |offset| due.contains(&offset)) {
            Ok(0) => {}
            Ok(bytes) => log::debug!("tenure: a pool gave {bytes} bytes back that had been idle for long"),
            Err(e) => log::warn!("tenure: a pool could not give idle memory back: {e}"),
        }
    }

    /// Gives pieces back that the placer has let go of. The caller has the turn. Says how many bytes went.
    ///
    /// # Errors
    /// The first that was met; what could not go is the pool's again.
    pub(super) fn return_pieces(&self, pieces: &[(u64, u64)]) -> Result<u64> {
        let before = self.pages.reserved();
        let (stay, error) = self.pages.give_back(pieces, &self.upstream);
        let went = before.saturating_sub(self.pages.reserved());
        self.note_reserved();
        if !stay.is_empty() {
            let mut state = self.lock();
            for (offset, bytes) in &stay {
                let zone = self.zone_at(*offset);
                state.place.extend(*offset, *bytes, PROVEN, zone);
            }
            state.resettle();
        }
        match error {
            Some(e) if went == 0 || !stay.is_empty() => Err(e),
            _ => Ok(went),
        }
    }

    /// The zone that an offset belongs to for good.
    fn zone_at(&self, offset: u64) -> u8 {
        match &self.pages {
            Pages::Virtual(v) if offset >= v.small_base() => SMALL,
            _ => LARGE,
        }
    }
}

/// True when a piece lies in one of the stretches, which are sorted.
fn within(free: &[(u64, u64)], (offset, bytes): (u64, u64)) -> bool {
    let at = free.partition_point(|(start, _)| *start <= offset);
    free[..at].last().is_some_and(|(start, length)| offset + bytes <= start + length)
}
