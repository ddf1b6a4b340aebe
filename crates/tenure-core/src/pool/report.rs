//! Figures, and the error that names them.

use super::cache::Which;
use super::order::{Key, cur, sealed};
use super::place::UNPROVEN;
use super::{Pages, Pool};
use crate::error::{Error, OutOfMemory, Pending, Tried};
use crate::resource::Info;
use crate::resource::leaf::Cuda;
use crate::sync::atomic::Ordering;

/// So many streams are named in an out-of-memory error, those that hold most; the others are counted.
const NAMED: usize = 4;

impl Pool {
    /// The ranges of addresses (start, bytes) that have memory of this pool behind them now, by address.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let mapped: Vec<(u64, u64)> = match &self.pages {
            Pages::Virtual(_) => self.lock().place.mapped().collect(),
            // Neighbours in the placer need not be neighbours in memory.
            Pages::Chunks(_) => self.pages.pieces(),
        };
        let mut ranges: Vec<_> = mapped.into_iter().map(|(offset, bytes)| (self.pages.ptr_of(offset), bytes)).collect();
        ranges.extend(self.graph_ranges());
        ranges.sort_unstable();
        ranges
    }

    /// The figures now, after what the threads and the classes keep has been given back.
    pub(super) fn report(&self) -> Info {
        self.drain(Which::All);
        self.reap(false);
        let (graph_mapped, graph_reserved) = self.graph_bytes();
        let (graph_live, graph_count) = self.graph_live();
        let reserved = self.pages.reserved();
        let mut state = self.lock();
        state.place.consolidate();
        let place = &state.place;
        let live = place.live_bytes() + graph_live;
        let mapped = place.mapped_bytes() + graph_mapped;
        let reserved = reserved.max(place.mapped_bytes()) + graph_reserved;
        Info {
            live_bytes: live,
            cached_bytes: mapped - live,
            reserved_bytes: reserved,
            largest_free_bytes: place.largest_free(),
            peak_live_bytes: live.max(u64::try_from(self.cache.figures.peak()).unwrap_or(0)),
            peak_reserved_bytes: self.peak_reserved.load(Ordering::Relaxed).max(reserved),
            live_count: place.live_count() + graph_count,
            // A second stream would get at once what the only one has never had.
            unproven_bytes: state.unproven() - state.sole.map_or(0, |only| place.untouched_bytes(cur(only))),
            device_proofs: self.proofs.load(Ordering::Relaxed),
            own_ranges: self.has_own_ranges(),
        }
    }

    /// Bytes of addresses whose pages are mapped elsewhere now, and that wait for their last use.
    pub(super) fn past_bytes(&self) -> u64 {
        match &self.pages {
            Pages::Virtual(range) => range.past_bytes(),
            Pages::Chunks(_) => 0,
        }
    }

    /// Keeps the peak of what is reserved, and shows in the plain device resource below what the pool took by itself.
    /// Called by whoever has the turn, after each change.
    pub(super) fn note_reserved(&self) {
        loop {
            let now = self.pages.reserved() + self.graph_bytes().1;
            self.peak_reserved.fetch_max(now, Ordering::Relaxed);
            if let (Pages::Virtual(_), Some(cuda)) = (&self.pages, self.upstream.downcast::<Cuda>()) {
                let before = self.shown.swap(now, Ordering::Relaxed);
                cuda.note_pages_taken(now.saturating_sub(before));
                cuda.note_pages_given(before.saturating_sub(now));
            }
            // What graphs left goes back without the turn: whoever is last shows what is there.
            if now == self.pages.reserved() + self.graph_bytes().1 {
                break;
            }
        }
    }

    /// What free memory waits for: the streams that hold most of it, and what no stream can be named for.
    fn pending(&self) -> Vec<Pending> {
        let state = self.lock();
        let mut pending = Vec::new();
        for (number, record) in state.records.iter() {
            let bytes = state.place.tag_bytes(cur(number)) + state.place.tag_bytes(sealed(number));
            if bytes == 0 {
                continue;
            }
            let stream = match record.key {
                Key::Legacy => "the legacy stream".to_owned(),
                Key::PerThread(thread) => format!("the per-thread stream of thread {thread}"),
                Key::Object(_) => format!("stream {:#x}", record.raw.as_raw() as usize),
                Key::Raw(id) => format!("stream {:#x} (raw, id {id})", record.raw.as_raw() as usize),
            };
            let ended = if record.closed { ", ended" } else { "" };
            pending.push(Pending { stream: format!("{stream}{ended}"), bytes });
        }
        let unnamed = state.place.tag_bytes(UNPROVEN);
        if unnamed > 0 {
            pending.push(Pending { stream: "streams that nobody can name".to_owned(), bytes: unnamed });
        }
        drop(state);
        pending.sort_by_key(|p| std::cmp::Reverse(p.bytes));
        if pending.len() > NAMED {
            let others = pending.split_off(NAMED);
            let bytes = others.iter().map(|p| p.bytes).sum();
            pending.push(Pending { stream: format!("{} others", others.len()), bytes });
        }
        pending
    }

    /// Out of memory, with every figure and what came of each step.
    pub(super) fn out_of_memory(&self, requested: u64, tried: Vec<Tried>) -> Error {
        // The figures first, for which the desks are emptied: what threads had at hand is some stream's too.
        let info = self.report();
        let pending = self.pending();
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
            cached: info.cached_bytes,
            unproven: info.unproven_bytes,
            pending,
            tried,
            ..OutOfMemory::default()
        }))
    }
}
