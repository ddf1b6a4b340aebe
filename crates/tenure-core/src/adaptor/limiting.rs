//! A limit on the bytes that may be handed out at once.
//!
//! ```text
//!  allocate   used + bytes <= limit? (one compare-and-swap, so that threads cannot pass together) -> upstream
//!                                                                             failed: the credit goes back
//!  free       upstream -> used - bytes
//! ```
//!
//! # Invariants
//! * `used` never exceeds the limit, whatever the number of threads: the credit is taken before the memory.
//! * `used` counts what is live plus what is being allocated at this moment; an allocation that fails leaves it as it
//!   was, and so does a free that the upstream refuses.
//!
//! # Limitation
//! Sizes are counted as they are named. A pool rounds to classes and accepts a free that names another size of the same
//! class; the difference then stays in `used` (never below zero).

use std::any::Any;

use crate::error::{Error, OutOfMemory, Result};
use crate::resource::{Block, Info, MemoryResource, Properties, Request, Resource};
use crate::stream::StreamRef;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Refuses what would exceed a limit.
pub struct Limiting {
    upstream: Resource,
    limit: u64,
    used: AtomicU64,
    peak: AtomicU64,
    count: AtomicU64,
}

impl std::fmt::Debug for Limiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Limiting({} of {} bytes)", self.allocated_bytes(), self.limit)
    }
}

impl Limiting {
    /// Hands out at most `limit` bytes of `upstream` at once.
    pub fn new(upstream: Resource, limit: u64) -> Self {
        Self { upstream, limit, used: AtomicU64::new(0), peak: AtomicU64::new(0), count: AtomicU64::new(0) }
    }

    /// The limit, in bytes.
    pub fn allocation_limit(&self) -> u64 {
        self.limit
    }

    /// Bytes handed out and not given back, with those of allocations under way.
    pub fn allocated_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that may still be asked for.
    pub fn available_bytes(&self) -> u64 {
        self.limit.saturating_sub(self.allocated_bytes())
    }

    /// Takes credit, lets `make` make the memory, and gives the credit back if it does not.
    fn within(&self, request: &Request, make: impl FnOnce() -> Result<u64>) -> Result<u64> {
        let bytes = request.bytes as u64;
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|after| *after <= self.limit)
        });
        let used = match taken {
            Ok(before) => before + bytes,
            Err(used) => return Err(self.refuse(bytes, used)),
        };
        match make() {
            Ok(ptr) => {
                self.count.fetch_add(1, Ordering::Relaxed);
                self.peak.fetch_max(used, Ordering::Relaxed);
                Ok(ptr)
            }
            Err(e) => {
                self.give_credit(bytes);
                Err(self.sign(e))
            }
        }
    }

    fn give_credit(&self, bytes: u64) {
        // Saturating: see the limitation above.
        let _ = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used.saturating_sub(bytes)));
    }

    fn note_freed(&self, request: &Request) {
        let _ = self
            .count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| Some(count.saturating_sub(1)));
        self.give_credit(request.bytes as u64);
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

    /// Names this layer in an upstream's out-of-memory error.
    fn sign(&self, error: Error) -> Error {
        sign(error, self.kind())
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
        self.note_freed(request);
        Ok(())
    }

    fn try_allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.within(request, || self.upstream.body().try_allocate(request, stream))
    }

    fn try_deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.upstream.body().try_deallocate(ptr, request, stream)?;
        self.note_freed(request);
        Ok(())
    }

    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        self.within(request, || self.upstream.body().allocate_sync(request))
    }

    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        self.upstream.body().deallocate_sync(ptr, request)?;
        self.note_freed(request);
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
        Info {
            live_bytes: self.allocated_bytes(),
            peak_live_bytes: self.peak.load(Ordering::Relaxed),
            live_count: self.count.load(Ordering::Relaxed),
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
