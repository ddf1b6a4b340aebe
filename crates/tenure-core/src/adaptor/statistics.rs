//! Counts what passes: bytes and allocations, now, at most, and in all.
//!
//! # Nested measurements
//! [`Statistics::push_counters`] starts a fresh pair of counters on top of the running one; [`Statistics::pop_counters`]
//! ends it, returns what it saw, and adds that to the enclosing pair as if it had been counted there all along: the
//! enclosing peak becomes the higher of its own and its value before plus the nested peak. A nested value may be
//! negative: more was freed than allocated meanwhile.
//!
//! These are everybody's. What a thread or a task does is counted by a [`Scope`] of its own (see [`scopes`](super::scopes)).
//!
//! # Cost
//! One lock for an allocation and one for a free, which threads do not share (see `tally`): about 15 ns for the pair, on
//! any number of threads. Values and totals are exact; how exact peaks are is said at
//! [`Counter::peak`](crate::adaptor::Counter::peak).

use std::any::Any;

use crate::adaptor::limiting::sign;
use crate::adaptor::scopes::{Scope, Scoped};
use crate::adaptor::tally::Counters;
use crate::error::{Error, Result};
use crate::resource::{Block, Info, MemoryResource, Properties, Request, Resource};
use crate::stream::StreamRef;
use crate::sync::{Arc, Mutex};
use crate::thread::Local;

/// Counts what passes through it.
pub struct Statistics {
    upstream: Resource,
    tally: Scoped,
    /// The counters of the enclosing measurements, the outermost first. Locked before the stripes of the tally.
    enclosing: Mutex<Vec<Counters>>,
}

impl std::fmt::Debug for Statistics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Statistics({:?})", self.counters())
    }
}

impl Statistics {
    /// Counts what passes to `upstream`.
    pub fn new(upstream: Resource) -> Self {
        Self { upstream, tally: Scoped::default(), enclosing: Mutex::new(Vec::new()) }
    }

    /// The running counters: those of the innermost measurement.
    pub fn counters(&self) -> Counters {
        self.tally.counters()
    }

    /// Opens a measurement of what the calling thread does from now on: it is in the scope until that is closed.
    pub fn open_scope(&self) -> Arc<Scope> {
        self.tally.open()
    }

    /// Starts a nested measurement at zero and returns the counters of the enclosing one.
    pub fn push_counters(&self) -> Counters {
        let mut stack = self.enclosing.lock();
        let all = self.tally.hold_all();
        let enclosing = all.counters();
        all.set_counters(&Counters::default());
        drop(all);
        stack.push(enclosing);
        enclosing
    }

    /// Ends the innermost measurement and returns what it counted, which the enclosing one then has seen too.
    ///
    /// # Errors
    /// [`Error::Invalid`] when no measurement was pushed; nothing changes.
    pub fn pop_counters(&self) -> Result<Counters> {
        let mut stack = self.enclosing.lock();
        let Some(mut enclosing) = stack.pop() else {
            return Err(Error::invalid(
                "cannot pop the last counter pair: each pop_counters needs a push_counters before it",
            ));
        };
        let all = self.tally.hold_all();
        let nested = all.counters();
        enclosing.absorb(&nested);
        all.set_counters(&enclosing);
        Ok(nested)
    }

    /// The figures over all measurements, as the outermost will have them once the nested ones are popped.
    fn overall(&self) -> Counters {
        let stack = self.enclosing.lock();
        let mut all = self.tally.counters();
        for enclosing in stack.iter().rev() {
            let mut outer = *enclosing;
            outer.absorb(&all);
            all = outer;
        }
        all
    }

    fn allocated(&self, request: &Request, made: Result<u64>) -> Result<u64> {
        let ptr = made.map_err(|e| sign(e, self.kind()))?;
        self.tally.hold().add(request.bytes as i64);
        Ok(ptr)
    }

    fn freed(&self, request: &Request, freed: Result<()>) -> Result<()> {
        freed?;
        self.tally.hold().subtract(request.bytes as i64);
        Ok(())
    }
}

impl MemoryResource for Statistics {
    fn kind(&self) -> &'static str {
        "statistics"
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.allocated(request, self.upstream.body().allocate(request, stream))
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.freed(request, self.upstream.body().deallocate(ptr, request, stream))
    }

    #[inline]
    fn allocate_at_hand(
        &self,
        request: &Request,
        stream: StreamRef<'_>,
        here: &Local,
    ) -> Option<Result<u64, Box<Error>>> {
        let answer = self.upstream.body().allocate_at_hand(request, stream, here)?;
        if answer.is_ok() {
            self.tally.hold_of(here).add(request.bytes as i64);
        }
        Some(answer)
    }

    #[inline]
    fn deallocate_at_hand(&self, ptr: u64, request: &Request, stream: StreamRef<'_>, here: &Local) -> bool {
        let done = self.upstream.body().deallocate_at_hand(ptr, request, stream, here);
        if done {
            self.tally.hold_of(here).subtract(request.bytes as i64);
        }
        done
    }

    fn try_allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.allocated(request, self.upstream.body().try_allocate(request, stream))
    }

    fn try_deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.freed(request, self.upstream.body().try_deallocate(ptr, request, stream))
    }

    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        self.allocated(request, self.upstream.body().allocate_sync(request))
    }

    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        self.freed(request, self.upstream.body().deallocate_sync(ptr, request))
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
        let all = self.overall();
        let unsigned = |n: i64| u64::try_from(n).unwrap_or(0);
        Info {
            live_bytes: unsigned(all.bytes.value),
            peak_live_bytes: unsigned(all.bytes.peak),
            live_count: unsigned(all.allocations.value),
            ..self.upstream.body().info()
        }
    }

    fn trim(&self, keep_bytes: usize) -> Result<usize> {
        self.upstream.body().trim(keep_bytes)
    }

    fn upstream(&self) -> Option<&Resource> {
        Some(&self.upstream)
    }

    fn property(&self, name: &str) -> Option<u64> {
        let counters = self.counters();
        let figure = match name {
            "current_bytes" => counters.bytes.value,
            "peak_bytes" => counters.bytes.peak,
            "total_bytes" => counters.bytes.total,
            "current_count" => counters.allocations.value,
            "peak_count" => counters.allocations.peak,
            "total_count" => counters.allocations.total,
            _ => return None,
        };
        // Two's complement: a nested measurement can stand below zero.
        Some(figure as u64)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
