//! Brings memory that migrates to the device before it is used.
//!
//! ```text
//!  allocate   upstream -> memory that migrates? -> the driver moves it to the stream's device, in the stream's order
//!                         any other             -> nothing
//! ```
//!
//! A hint and nothing else: where the memory is not managed (and not pageable memory that the device can use), where the
//! device lacks the means, and where the driver refuses, the memory is handed out as it is. The property `"hints"` says
//! whether the driver is told anything at all over this upstream, `"told"` how often it was.
//!
//! # Cost
//! Over memory that does not migrate one call through, a few nanoseconds. Over memory that does, three to five driver calls
//! for an allocation.

use std::any::Any;

use crate::adaptor::limiting::sign;
use crate::adaptor::pass_on;
use crate::device;
use crate::error::{Error, Result};
use crate::prefetch::{self, Place};
use crate::resource::{Info, MemoryResource, Request, Resource};
use crate::stream::StreamRef;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::thread::Local;

/// Moves what passes to the device that it is for.
pub struct Prefetch {
    upstream: Resource,
    told: AtomicU64,
}

impl std::fmt::Debug for Prefetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Prefetch(told {} times)", self.told())
    }
}

impl Prefetch {
    /// Moves what `upstream` makes to the device of each request's stream.
    pub fn new(upstream: Resource) -> Self {
        Self { upstream, told: AtomicU64::new(0) }
    }

    /// How often the driver was told.
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    /// Whether memory of the upstream migrates, so that there is something to tell.
    pub fn hints(&self) -> bool {
        prefetch::concerns(self.upstream.body().properties())
    }

    fn made(&self, request: &Request, stream: Option<StreamRef<'_>>, made: Result<u64>) -> Result<u64> {
        let ptr = made.map_err(|e| sign(e, self.kind()))?;
        if self.hints() {
            self.tell(ptr, request.bytes, stream);
        }
        Ok(ptr)
    }

    #[cold]
    fn tell(&self, ptr: u64, bytes: usize, stream: Option<StreamRef<'_>>) {
        // Memory that is usable anywhere at return has no stream: the thread's own stands for one.
        let stream = stream.unwrap_or(StreamRef::raw(tenure_driver::RawStream::PER_THREAD));
        let told = device::home_or_current(stream)
            .and_then(|device| prefetch::prefetch(ptr, bytes, Place::Device(device), stream));
        if matches!(told, Ok(true)) {
            self.told.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl MemoryResource for Prefetch {
    fn kind(&self) -> &'static str {
        "prefetch"
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.made(request, Some(stream), self.upstream.body().allocate(request, stream))
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.upstream.body().deallocate(ptr, request, stream)
    }

    fn allocate_at_hand(
        &self,
        request: &Request,
        stream: StreamRef<'_>,
        here: &Local,
    ) -> Option<Result<u64, Box<Error>>> {
        if self.hints() {
            return None;
        }
        self.upstream.body().allocate_at_hand(request, stream, here)
    }

    fn deallocate_at_hand(&self, ptr: u64, request: &Request, stream: StreamRef<'_>, here: &Local) -> bool {
        self.upstream.body().deallocate_at_hand(ptr, request, stream, here)
    }

    fn try_allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        if self.hints() {
            // The driver is called.
            return Err(Error::WouldBlock);
        }
        self.upstream.body().try_allocate(request, stream).map_err(|e| sign(e, self.kind()))
    }

    fn try_deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.upstream.body().try_deallocate(ptr, request, stream)
    }

    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        self.made(request, None, self.upstream.body().allocate_sync(request))
    }

    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        self.upstream.body().deallocate_sync(ptr, request)
    }

    /// The upstream's: this layer changes none of the figures.
    fn info(&self) -> Info {
        self.upstream.body().info()
    }

    fn property(&self, name: &str) -> Option<u64> {
        match name {
            "hints" => Some(u64::from(self.hints())),
            "told" => Some(self.told()),
            _ => None,
        }
    }

    pass_on! {}
}
