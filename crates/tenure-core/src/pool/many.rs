//! Many blocks in one call: what is asked, latched and locked once for all of them.
//!
//! ```text
//!   allocate_many    who? -> [ latch: at hand -> lock: refill, take -> unlock ] -> the ladder for each that is missing
//!   deallocate_many       -> [ latch: claimed and kept; lock where it is full ] -> lock -> the rest: checked, freed
//! ```
//!
//! **Invariants**: an allocation that fails gives back what it had: live bytes and blocks are as they were, and what the pool
//! grew by stays cached. A free that is wrong changes nothing, and no other waits for it.
//!
//! **Cost**: one question whether the stream is capturing; one latch and at most one lock for [`AT_ONCE`] blocks, so that a
//! long batch lets others in between. A free on a stream that has no record asks once for the whole batch.

use super::at_hand::{Kept, counted};
use super::cache::{Lock, Which};
use super::order::{Key, cur};
use super::place::UNPROVEN;
use super::{Pool, State};
use crate::error::Result;
use crate::resource::batch::give_back;
use crate::resource::{Batch, Freed, Request};
use crate::stream::StreamRef;
use crate::sync::MutexGuard;

/// Blocks for which a latch or the lock is held at a time.
const AT_ONCE: usize = 512;

/// Where the parts of a batch begin and end.
fn parts(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).step_by(AT_ONCE).map(move |from| (from, (from + AT_ONCE).min(count)))
}

impl Pool {
    /// Serves a batch, or nothing of it. `out` is all 0 before.
    pub(super) fn serve_many(&self, batch: &Batch<'_>, stream: StreamRef<'_>, out: &mut [u64]) -> Result<()> {
        if batch.total() > self.ceiling {
            // No wait and no growth can help.
            return Err(self.out_of_memory(batch.total(), Vec::new()));
        }
        let Ok(who) = self.who(stream) else {
            // Memory of a graph, or an error that the first of them will meet again.
            return self.serve_each(batch, stream, out);
        };
        if let Some(key) = who.key {
            for (from, to) in parts(batch.len()) {
                self.take_part_at_hand(&batch.part(from, to), key, stream, &mut out[from..to]);
            }
        }
        for (at, request) in batch.requests() {
            if out[at] != 0 {
                continue;
            }
            // Whether the per-thread stream captures is asked on the way to the ladder.
            let served = if stream.raw.is_per_thread() {
                self.serve(&request, stream)
            } else {
                self.allocate_slow(&request, &who).inspect(|_| self.count_in(&request))
            };
            match served {
                Ok(ptr) => out[at] = ptr,
                Err(error) => {
                    // Nothing has used them, and their stream is known: no question is asked.
                    give_back(batch, out, |ptr, request| self.take_back(ptr, request, stream));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    #[cold]
    fn serve_each(&self, batch: &Batch<'_>, stream: StreamRef<'_>, out: &mut [u64]) -> Result<()> {
        for (at, request) in batch.requests() {
            match self.serve(&request, stream) {
                Ok(ptr) => out[at] = ptr,
                Err(error) => {
                    give_back(batch, out, |ptr, request| self.take_back(ptr, request, stream));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Serves what needs no driver call.
    fn take_part_at_hand(&self, part: &Batch<'_>, key: Key, stream: StreamRef<'_>, out: &mut [u64]) {
        let Some(mut drawer) = self.cache.drawer(Lock::Wait) else { return };
        let mut is_short = false;
        for (at, request) in part.requests() {
            match self.ready(&mut drawer, &request, key) {
                Some(ready) => out[at] = self.hand_out(&ready, &request),
                None => is_short = true,
            }
        }
        if !is_short {
            return;
        }
        let mut state = self.lock();
        // First what waits: the placer then sees all that is free.
        drawer.post(&mut state);
        let Some(record) = state.records.find(key) else { return };
        let opened = drawer.open(key, stream.raw, record, &mut state);
        let tags = state.records.tags(record);
        for (at, request) in part.requests() {
            if out[at] != 0 {
                continue;
            }
            // A refill for one of a class has brought some for the next.
            if let Some(ready) = self.ready(&mut drawer, &request, key) {
                out[at] = self.hand_out(&ready, &request);
            } else if let Some(ptr) = self.take_or_refill(&mut drawer, &mut state, &request, key, record, &tags) {
                drawer.count_in(&self.cache.figures, counted(&request));
                out[at] = ptr;
            }
        }
        drop(state);
        drop(drawer);
        if opened && self.cache.is_crowded() {
            self.drain(Which::Left);
        }
    }

    /// Frees what of a batch can be freed.
    pub(super) fn take_back_many(&self, ptrs: &[u64], batch: &Batch<'_>, stream: StreamRef<'_>) -> Freed {
        let mut freed = Freed::default();
        for (from, to) in parts(batch.len()) {
            freed.add(from, self.take_back_part(&ptrs[from..to], &batch.part(from, to), stream));
        }
        freed
    }

    fn take_back_part(&self, ptrs: &[u64], part: &Batch<'_>, stream: StreamRef<'_>) -> Freed {
        let mut freed = Freed::default();
        let mut left = Vec::new();
        {
            let mut drawer = self.cache.drawer(Lock::Wait);
            let code = Self::code_of(stream);
            let mut state: Option<MutexGuard<'_, State>> = None;
            for (at, ptr) in ptrs.iter().enumerate() {
                let request = match part.named(at, *ptr) {
                    Ok(Some(request)) => request,
                    Ok(None) => continue,
                    Err(error) => {
                        freed.note(at, Err(error));
                        continue;
                    }
                };
                let kept = match (&mut drawer, code) {
                    (Some(drawer), Some(code)) => self
                        .claimable(drawer, *ptr, &request)
                        .and_then(|block| self.keep(drawer, &block, request.owner, code, stream.raw)),
                    _ => None,
                };
                match (kept, &mut drawer) {
                    (Some(kept), Some(drawer)) => {
                        // Held from here on: the next ones will not find room either.
                        match kept {
                            Kept::Well => {}
                            Kept::Better => state = state.or_else(|| self.state.try_lock()),
                            Kept::Full(..) | Kept::Waiting => state = state.or_else(|| Some(self.lock())),
                        }
                        if let Some(state) = &mut state {
                            kept.relieve(drawer, state);
                        }
                        freed.count += 1;
                    }
                    _ => left.push((at, request)),
                }
            }
        }
        if !left.is_empty() {
            self.take_back_left(ptrs, left, stream, &mut freed);
        }
        freed
    }

    /// Frees what no desk would keep, under one lock, and one more where the driver must be asked who frees.
    fn take_back_left(&self, ptrs: &[u64], mut left: Vec<(usize, Request)>, stream: StreamRef<'_>, freed: &mut Freed) {
        let (mut bytes, mut known, mut unknown) = (0, None, Vec::new());
        left.retain(|(at, request)| {
            let is_outside = self.is_outside(ptrs[*at]);
            if is_outside {
                freed.note(*at, self.free_captured(ptrs[*at], request, stream, false));
            }
            !is_outside
        });
        let mut state = self.lock();
        for (at, request) in left {
            let ptr = ptrs[at];
            let result = self.checked(&state, ptr, &request).and_then(|entry| {
                let Some(tag) = Self::tag_known(&state, &entry, &request, stream) else { return Ok(false) };
                self.free_checked(&mut state, &entry, tag, ptr, &request)?;
                known = Some(tag);
                Ok(true)
            });
            match result {
                Ok(true) => {
                    bytes += counted(&request);
                    freed.note(at, Ok(()));
                }
                Ok(false) => unknown.push((at, request)),
                Err(error) => freed.note(at, Err(error)),
            }
        }
        drop(state);
        if let Some((first, _)) = unknown.first() {
            match self.asked(stream) {
                Ok(asker) => {
                    let mut state = self.lock();
                    let tag = asker.map_or(UNPROVEN, |asker| cur(state.record_of(&asker)));
                    for (at, request) in unknown {
                        let ptr = ptrs[at];
                        // Somebody may have freed it meanwhile: that is found here, not believed away.
                        let result = self
                            .checked(&state, ptr, &request)
                            .and_then(|entry| self.free_checked(&mut state, &entry, tag, ptr, &request));
                        if result.is_ok() {
                            bytes += counted(&request);
                            known = Some(tag);
                        }
                        freed.note(at, result);
                    }
                }
                // The same for all of them.
                Err(error) => freed.note(*first, Err(error)),
            }
        }
        self.count_out_bytes(bytes);
        if let Some(tag) = known {
            self.open_magazine(tag, stream, Lock::Wait);
        }
    }
}
