//! A limit on the bytes that may be handed out at once.
//!
//! ```text
//!   taken <= limit          what is live, what is being allocated, and the credit that threads hold
//!   credit of a stripe      bytes taken that nobody has: served without a look at what others do
//!
//!  allocate   own credit enough? else take bytes (and some credit, while there is much left)
//!             not to be had? call all credit back, with every stripe held, and look again: now the answer is exact
//!             -> upstream; failed: the bytes become credit
//!  free       upstream -> the bytes become credit; what is more than 1 MiB of it goes back
//!
//!  at hand    own credit enough, or bytes to be taken? -> counted as live -> upstream, at hand; not there: all undone
//! ```
//!
//! # Invariants
//! * `taken` never exceeds the limit, whatever the number of threads, and covers what is live: bytes are taken before the
//!   memory is.
//! * A refusal is exact: it is decided while no thread holds credit and none can get or give any.
//! * An allocation that fails leaves what can be had as it was, and so does a free that the upstream refuses.
//!
//! # Cost
//! Two locks for an allocation and its free at hand, three for others, all of which threads do not share (see `tally`):
//! about 15 and 20 ns. Near the limit each allocation that does not fit looks at all stripes, about 0.3 us.
//!
//! # Limitation
//! Sizes are counted as they are named. A pool rounds to classes and accepts a free that names another size of the same
//! class; the difference then stays in the figures.

use std::any::Any;

use crossbeam_utils::CachePadded;

use crate::adaptor::tally::{Held, SLACK, Tally};
use crate::error::{Error, OutOfMemory, Result};
use crate::resource::{Block, Info, MemoryResource, Properties, Request, Resource};
use crate::stream::StreamRef;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::thread::{self, Local};

/// Refuses what would exceed a limit.
pub struct Limiting {
    upstream: Resource,
    limit: u64,
    /// Never above `limit`. Lowered and raised by single operations; looked at for a refusal with all stripes held.
    taken: CachePadded<AtomicU64>,
    tally: Tally,
}

impl std::fmt::Debug for Limiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Limiting({} of {} bytes)", self.allocated_bytes(), self.limit)
    }
}

impl Limiting {
    /// Hands out at most `limit` bytes of `upstream` at once.
    pub fn new(upstream: Resource, limit: u64) -> Self {
        Self { upstream, limit, taken: CachePadded::new(AtomicU64::new(0)), tally: Tally::default() }
    }

    /// The limit, in bytes.
    pub fn allocation_limit(&self) -> u64 {
        self.limit
    }

    /// Bytes handed out and not given back, with those of allocations under way.
    pub fn allocated_bytes(&self) -> u64 {
        let all = self.tally.hold_all();
        self.taken.load(Ordering::Relaxed).saturating_sub(all.credit() as u64)
    }

    /// Bytes that may still be asked for.
    pub fn available_bytes(&self) -> u64 {
        self.limit.saturating_sub(self.allocated_bytes())
    }

    /// Takes bytes of the limit, if they are there.
    fn take(&self, bytes: u64) -> bool {
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                taken.checked_add(bytes).filter(|after| *after <= self.limit)
            })
            .is_ok()
    }

    /// Gives bytes of the limit back. Saturating: see the limitation above.
    fn put_back(&self, bytes: u64) {
        let _ =
            self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| Some(taken.saturating_sub(bytes)));
    }

    /// Takes the right to allocate `bytes` out of a stripe's credit, or from what nobody has. False, with nothing changed, where
    /// others' credit would have to be looked at.
    #[inline]
    fn admit_on(&self, stripe: &Held<'_>, bytes: u64) -> bool {
        let credit = stripe.credit() as u64;
        if credit >= bytes {
            stripe.set_credit((credit - bytes) as i64);
            return true;
        }
        // A sixteenth of the limit at most is held by one stripe, so that a small limit is not scattered.
        let ahead = (SLACK as u64 / 2).min(self.limit / 16);
        for ahead in [ahead, 0] {
            if self.take(bytes - credit + ahead) {
                stripe.set_credit(ahead as i64);
                return true;
            }
        }
        false
    }

    /// Takes the right to allocate `bytes`.
    fn admit(&self, bytes: u64) -> Result<()> {
        if self.admit_on(&self.tally.hold(), bytes) {
            return Ok(());
        }
        let all = self.tally.hold_all();
        let back = all.take_credit() as u64;
        self.put_back(back);
        if self.take(bytes) {
            return Ok(());
        }
        let used = self.taken.load(Ordering::Relaxed);
        drop(all);
        Err(self.refuse(bytes, used))
    }

    /// Takes credit, lets `make` make the memory, and gives the credit back if it does not.
    fn within(&self, request: &Request, make: impl FnOnce() -> Result<u64>) -> Result<u64> {
        let bytes = request.bytes as u64;
        self.admit(bytes)?;
        match make() {
            Ok(ptr) => {
                self.tally.hold().add(bytes as i64);
                Ok(ptr)
            }
            Err(e) => {
                self.give_credit(&self.tally.hold(), bytes);
                Err(sign(e, self.kind()))
            }
        }
    }

    /// Undoes the first half of an allocation at hand.
    #[cold]
    fn came_to_nothing(&self, bytes: u64, booked: bool) {
        let stripe = self.tally.hold();
        if booked {
            stripe.unbook(bytes as i64);
        }
        self.give_credit(&stripe, bytes);
    }

    #[inline]
    fn give_credit(&self, stripe: &Held<'_>, bytes: u64) {
        let credit = stripe.credit() as u64 + bytes;
        let keep = credit.min(SLACK as u64).min(self.limit / 16);
        stripe.set_credit(keep as i64);
        if credit > keep {
            self.put_back(credit - keep);
        }
    }

    #[inline]
    fn note_freed(&self, request: &Request, here: &Local) {
        let stripe = self.tally.hold_of(here);
        stripe.retire(request.bytes as i64);
        self.give_credit(&stripe, request.bytes as u64);
    }

    #[cold]
    fn refuse(&self, requested: u64, used: u64) -> Error {
        Error::OutOfMemory(Box::new(OutOfMemory {
            requested,
            live: used,
            reserved: used,
            limit: self.limit,
            largest_free: self.limit.saturating_sub(used),
            resource: format!("{} > {}", self.kind(), self.upstream.stack()),
            ..OutOfMemory::default()
        }))
    }
}

/// Puts `kind` in front of the resource that an out-of-memory error names.
pub(crate) fn sign(error: Error, kind: &str) -> Error {
    match error {
        Error::OutOfMemory(mut e) => {
            e.resource = if e.resource.is_empty() { kind.to_owned() } else { format!("{kind} > {}", e.resource) };
            Error::OutOfMemory(e)
        }
        other => other,
    }
}

impl MemoryResource for Limiting {
    fn kind(&self) -> &'static str {
        "limiting"
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.within(request, || self.upstream.body().allocate(request, stream))
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.upstream.body().deallocate(ptr, request, stream)?;
        thread::with(|here| self.note_freed(request, here));
        Ok(())
    }

    #[inline]
    fn allocate_at_hand(
        &self,
        request: &Request,
        stream: StreamRef<'_>,
        here: &Local,
    ) -> Option<Result<u64, Box<Error>>> {
        let bytes = request.bytes as u64;
        let booked = {
            let stripe = self.tally.hold_of(here);
            if !self.admit_on(&stripe, bytes) {
                return None;
            }
            stripe.book(bytes as i64)
        };
        let answer = self.upstream.body().allocate_at_hand(request, stream, here);
        match (&answer, booked) {
            (Some(Ok(_)), true) => {}
            (Some(Ok(_)), false) => self.tally.hold_of(here).add(bytes as i64),
            (_, booked) => self.came_to_nothing(bytes, booked),
        }
        answer
    }

    #[inline]
    fn deallocate_at_hand(&self, ptr: u64, request: &Request, stream: StreamRef<'_>, here: &Local) -> bool {
        let done = self.upstream.body().deallocate_at_hand(ptr, request, stream, here);
        if done {
            self.note_freed(request, here);
        }
        done
    }

    fn try_allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.within(request, || self.upstream.body().try_allocate(request, stream))
    }

    fn try_deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.upstream.body().try_deallocate(ptr, request, stream)?;
        thread::with(|here| self.note_freed(request, here));
        Ok(())
    }

    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        self.within(request, || self.upstream.body().allocate_sync(request))
    }

    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        self.upstream.body().deallocate_sync(ptr, request)?;
        thread::with(|here| self.note_freed(request, here));
        Ok(())
    }

    fn device(&self) -> Option<i32> {
        self.upstream.body().device()
    }

    fn properties(&self) -> Properties {
        self.upstream.body().properties()
    }

    fn find(&self, ptr: u64) -> Option<Block> {
        self.upstream.body().find(ptr)
    }

    /// What is live is this layer's; what is cached and reserved is the upstream's, which others may use too.
    fn info(&self) -> Info {
        let below = self.upstream.body().info();
        let counters = self.tally.counters();
        let unsigned = |n: i64| u64::try_from(n).unwrap_or(0);
        Info {
            live_bytes: unsigned(counters.bytes.value),
            peak_live_bytes: unsigned(counters.bytes.peak),
            live_count: unsigned(counters.allocations.value),
            largest_free_bytes: below.largest_free_bytes.min(self.available_bytes()),
            ..below
        }
    }

    fn trim(&self, keep_bytes: usize) -> Result<usize> {
        self.upstream.body().trim(keep_bytes)
    }

    fn upstream(&self) -> Option<&Resource> {
        Some(&self.upstream)
    }

    fn property(&self, name: &str) -> Option<u64> {
        match name {
            "allocation_limit" => Some(self.limit),
            "allocated_bytes" => Some(self.allocated_bytes()),
            _ => None,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
