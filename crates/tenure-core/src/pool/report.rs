//! Figures, giving back, and the error that names them.

use super::cache::Which;
use super::order::cur;
use super::pages::idle;
use super::{Pages, Pool, State};
use crate::error::{Error, OutOfMemory, Result};
use crate::resource::Info;
use crate::resource::leaf::Cuda;
use crate::sync::atomic::Ordering;

impl Pool {
    /// The ranges of addresses (start, bytes) that have memory of this pool behind them now, by address.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let mapped: Vec<(u64, u64)> = match &self.pages {
            Pages::Virtual(_) => self.lock().place.mapped().collect(),
            // Neighbours in the placer need not be neighbours in memory.
            Pages::Chunks(_) => self.pages.pieces(),
        };
        let mut ranges: Vec<_> = mapped.into_iter().map(|(offset, bytes)| (self.pages.ptr_of(offset), bytes)).collect();
        ranges.sort_unstable();
        ranges
    }

    /// The figures now, after what the threads and the classes keep has been given back.
    pub(super) fn report(&self) -> Info {
        self.drain(Which::All);
        let reserved = self.pages.reserved();
        let mut state = self.lock();
        state.place.consolidate();
        let place = &state.place;
        let live = place.live_bytes();
        let reserved = reserved.max(place.mapped_bytes());
        Info {
            live_bytes: live,
            cached_bytes: place.mapped_bytes() - live,
            reserved_bytes: reserved,
            largest_free_bytes: place.largest_free(),
            peak_live_bytes: live.max(u64::try_from(self.cache.figures.peak()).unwrap_or(0)),
            peak_reserved_bytes: self.peak_reserved.load(Ordering::Relaxed).max(reserved),
            live_count: place.live_count(),
            // A second stream would get at once what the only one has never had.
            unproven_bytes: state.unproven() - state.sole.map_or(0, |only| place.untouched_bytes(cur(only))),
            device_proofs: self.proofs.load(Ordering::Relaxed),
        }
    }

    /// Keeps the peak of what is reserved, and shows in the plain device resource below what the pool took by itself.
    /// Called by whoever has the turn, after each change.
    pub(super) fn note_reserved(&self) {
        let now = self.pages.reserved();
        self.peak_reserved.fetch_max(now, Ordering::Relaxed);
        if let (Pages::Virtual(_), Some(cuda)) = (&self.pages, self.upstream.downcast::<Cuda>()) {
            let before = self.shown.swap(now, Ordering::Relaxed);
            cuda.note_pages_taken(now.saturating_sub(before));
            cuda.note_pages_given(before.saturating_sub(now));
        }
    }

    /// Out of memory, with every figure.
    pub(super) fn out_of_memory(&self, requested: u64) -> Error {
        let info = self.report();
        // A driver that cannot answer this either is told apart by the zeros.
        let (driver_free, driver_total) = crate::device::memory_info(self.device).unwrap_or_default();
        let mut resource = String::from("pool");
        let mut next = self.upstream.body();
        loop {
            resource.push_str(" > ");
            resource.push_str(next.kind());
            match next.upstream() {
                Some(upstream) => next = upstream.body(),
                None => break,
            }
        }
        Error::OutOfMemory(Box::new(OutOfMemory {
            requested,
            live: info.live_bytes,
            reserved: info.reserved_bytes,
            limit: self.options.maximum_bytes.unwrap_or(0),
            largest_free: info.largest_free_bytes,
            driver_free,
            driver_total,
            resource,
        }))
    }

    /// Gives back idle pages down to `keep` cached bytes; says how many bytes went to the device or the upstream.
    ///
    /// # Errors
    /// What the driver or the upstream says; what went before stays gone.
    pub(super) fn trim_to(&self, keep: u64) -> Result<u64> {
        let keep = keep.max(self.options.release_threshold);
        let cached = |state: &State| state.place.mapped_bytes() - state.place.live_bytes();
        self.drain(Which::All);
        let (spare, mapped) = {
            let state = self.lock();
            (cached(&state).saturating_sub(keep), state.place.mapped_bytes())
        };
        if spare == 0 && self.pages.reserved() <= mapped {
            return Ok(0);
        }
        let turn = self.turns.take()?;
        if spare == 0 {
            // What a growth that failed could not take back goes now.
            return self.return_pieces(&[]);
        }
        let all = self.pages.pieces();
        let pieces = self.prove_with(&turn, |state| {
            let spare = cached(state).saturating_sub(keep);
            let mut chosen = idle(&all, &state.place, spare);
            chosen.retain(|(offset, bytes)| state.place.shrink(*offset, *bytes));
            chosen
        })?;
        self.return_pieces(&pieces)
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
                state.place.extend(*offset, *bytes, super::place::PROVEN, zone);
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
            Pages::Virtual(v) if offset >= v.small_base() => super::place::SMALL,
            _ => super::place::LARGE,
        }
    }
}
