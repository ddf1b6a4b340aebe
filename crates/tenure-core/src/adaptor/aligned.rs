//! Asks for a larger alignment than the caller does.
//!
//! ```text
//!  allocate   bytes >= threshold? -> the larger of the caller's alignment and this one -> upstream
//!             smaller             -> as the caller asked
//!  free       the same rule, from the same bytes: the upstream gets the request that it served
//! ```
//!
//! The upstream aligns: every resource of tenure's can, up to a page of the device, and one of user functions is told the
//! alignment and held to it. So nothing is asked for beyond the bytes, and no map of addresses is kept.
//!
//! # Cost
//! One comparison. What is aligned to more than 256 bytes takes the whole way through a pool, not the short one.

use std::any::Any;

use crate::adaptor::limiting::sign;
use crate::adaptor::pass_on;
use crate::error::{Error, Result};
use crate::resource::{DEFAULT_ALIGNMENT, Info, MAX_ALIGNMENT, MemoryResource, Request, Resource};
use crate::stream::StreamRef;
use crate::thread::Local;

/// Raises the alignment of what is large enough.
pub struct Aligned {
    upstream: Resource,
    alignment: usize,
    threshold: usize,
}

impl std::fmt::Debug for Aligned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Aligned({} from {} bytes on)", self.alignment, self.threshold)
    }
}

impl Aligned {
    /// Aligns blocks of `threshold` bytes and more to `alignment`, which is raised to 256 where it is less.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an alignment that is no power of two, or larger than [`MAX_ALIGNMENT`].
    pub fn new(upstream: Resource, alignment: usize, threshold: usize) -> Result<Self> {
        if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
            return Err(Error::invalid(format!(
                "alignment is {alignment}: it must be a power of two up to {MAX_ALIGNMENT}, such as 4096"
            )));
        }
        Ok(Self { upstream, alignment: alignment.max(DEFAULT_ALIGNMENT), threshold })
    }

    /// The alignment, in bytes.
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    /// What is smaller than this is not aligned any further, in bytes.
    pub fn alignment_threshold(&self) -> usize {
        self.threshold
    }

    #[inline]
    fn raised(&self, request: &Request) -> Request {
        let wanted = if request.bytes >= self.threshold { self.alignment } else { 0 };
        Request { align: request.align.max(wanted), ..*request }
    }

    /// The request, if it is one for the short way still.
    #[inline]
    fn plain(&self, request: &Request) -> Option<Request> {
        Some(self.raised(request)).filter(|raised| raised.align == request.align)
    }

    fn signed<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|e| sign(e, self.kind()))
    }
}

impl MemoryResource for Aligned {
    fn kind(&self) -> &'static str {
        "aligned"
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.signed(self.upstream.body().allocate(&self.raised(request), stream))
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.upstream.body().deallocate(ptr, &self.raised(request), stream)
    }

    fn allocate_at_hand(
        &self,
        request: &Request,
        stream: StreamRef<'_>,
        here: &Local,
    ) -> Option<Result<u64, Box<Error>>> {
        self.upstream.body().allocate_at_hand(&self.plain(request)?, stream, here)
    }

    fn deallocate_at_hand(&self, ptr: u64, request: &Request, stream: StreamRef<'_>, here: &Local) -> bool {
        self.plain(request).is_some_and(|plain| self.upstream.body().deallocate_at_hand(ptr, &plain, stream, here))
    }

    fn try_allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.signed(self.upstream.body().try_allocate(&self.raised(request), stream))
    }

    fn try_deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.upstream.body().try_deallocate(ptr, &self.raised(request), stream)
    }

    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        self.signed(self.upstream.body().allocate_sync(&self.raised(request)))
    }

    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        self.upstream.body().deallocate_sync(ptr, &self.raised(request))
    }

    /// The upstream's: this layer changes none of the figures.
    fn info(&self) -> Info {
        self.upstream.body().info()
    }

    fn property(&self, name: &str) -> Option<u64> {
        match name {
            "alignment" => Some(self.alignment as u64),
            "alignment_threshold" => Some(self.threshold as u64),
            _ => None,
        }
    }

    pass_on! {}
}
