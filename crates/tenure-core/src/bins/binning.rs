//! Bins: each size has the resource that is good at it.
//!
//! ```text
//!  allocate n    the smallest bin with allocation_size >= n; the upstream where there is none    -> its home is noted
//!  free          home: a bin or the upstream, whatever bins there are by now
//! ```
//!
//! # Invariants
//! * Bins are added and never removed, and a bin's resource never changes. A bin that is added for a size that has one takes
//!   its requests from then on; the older one is the home of its blocks as before, and serves no more.
//! * A free goes to the resource that made the block.
//! * No bin's resource has this one below it.
//!
//! # Cost
//! A look at each bin's size (a few words that are never written), two locks that threads hardly share for an allocation
//! and for a free each (its home, see `homes`, and the figures, see `tally`), and what the bin costs.

use std::any::Any;

use super::FixedSize;
use super::homes::{Home, Homes};
use crate::adaptor::limiting::sign;
use crate::adaptor::tally::Tally;
use crate::error::{Error, Misuse, MisuseKind, Result};
use crate::resource::{Block, DEFAULT_ALIGNMENT, Info, MAX_BYTES, MemoryResource, Properties, Request, Resource};
use crate::stream::StreamRef;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, OnceCell};
use crate::thread::Local;

/// The most bins of one resource.
pub const MAX_BINS: usize = 128;

/// How many blocks a bin that is made here takes at a time, and how many bytes at most.
const BLOCKS: u64 = 128;
const CHUNK: u64 = 32 << 20;

/// The member that is no bin.
const UPSTREAM: u32 = u32::MAX;

/// Held while a bin is entered, whichever resource it is for: two resources must not become bins of each other at once.
static ENTERING: Mutex<()> = Mutex::new(());

/// The bins that a [`Binning`] is made with: one of 2^n bytes for each n from `min_size_exponent` to `max_size_exponent`.
/// Both -1 (the default): none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BinningOptions {
    /// The exponent of the smallest bin.
    pub min_size_exponent: i32,
    /// The exponent of the largest bin.
    pub max_size_exponent: i32,
}

impl Default for BinningOptions {
    fn default() -> Self {
        Self { min_size_exponent: -1, max_size_exponent: -1 }
    }
}

impl BinningOptions {
    /// The exponents, if there are any.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the setting, its value and what it must be.
    fn exponents(self) -> Result<std::ops::RangeInclusive<i32>> {
        let (min, max) = (self.min_size_exponent, self.max_size_exponent);
        if (min, max) == (-1, -1) {
            #[expect(clippy::reversed_empty_ranges, reason = "no bins")]
            return Ok(0..=-1);
        }
        let most = MAX_BYTES.ilog2() as i32;
        for (name, value) in [("min_size_exponent", min), ("max_size_exponent", max)] {
            if !(0..=most).contains(&value) {
                return Err(Error::invalid(format!(
                    "{name} is {value}: the bins have 2^n bytes, with n from 0 to {most}; give both exponents, or -1 for \
                     both to add the bins one by one"
                )));
            }
        }
        if min > max {
            return Err(Error::invalid(format!(
                "min_size_exponent ({min}) is above max_size_exponent ({max}): lower the one or raise the other"
            )));
        }
        Ok(min..=max)
    }
}

/// One bin.
struct Bin {
    allocation_size: u64,
    resource: Resource,
}

/// Sends each request to the bin of its size. See the [module](self).
pub struct Binning {
    upstream: Resource,
    device: i32,
    /// In the order in which they were added. Entered under [`ENTERING`], read without a lock.
    bins: Box<[OnceCell<Bin>]>,
    used: AtomicUsize,
    homes: Homes,
    tally: Tally,
    /// What is live of the upstream without a bin between.
    direct: Tally,
}

impl std::fmt::Debug for Binning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sizes: Vec<u64> = self.sorted().iter().map(|bin| bin.allocation_size).collect();
        write!(f, "Binning({sizes:?})")
    }
}

impl Binning {
    /// Makes a resource over `upstream`, whose own bins lie on `device`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for exponents that make no sense or an upstream of another device; what the driver says.
    pub fn new(upstream: Resource, device: i32, options: BinningOptions) -> Result<Self> {
        let exponents = options.exponents()?;
        let device = crate::device::check(device)?;
        if let Some(other) = upstream.body().device()
            && other >= 0
            && other != device
        {
            return Err(Error::invalid(format!(
                "the upstream's memory is on device {other}, and the bins were asked for on device {device}: give an \
                 upstream of that device"
            )));
        }
        let binning = Self {
            upstream,
            device,
            bins: (0..MAX_BINS).map(|_| OnceCell::new()).collect(),
            used: AtomicUsize::new(0),
            homes: Homes::new(),
            tally: Tally::default(),
            direct: Tally::default(),
        };
        for exponent in exponents {
            binning.add_bin(1 << exponent, None)?;
        }
        Ok(binning)
    }

    /// Adds a bin for requests of at most `allocation_size` bytes (rounded up to a multiple of 256) that no smaller bin
    /// takes. Without a `resource` it is a [`FixedSize`] with blocks of that size over the upstream, which takes nothing
    /// before its first use and then 128 blocks, or 32 MiB, at a time. May be called at any time, from any thread.
    ///
    /// A size that has a bin already keeps it: to ask for it again without a resource does nothing. With one, the new bin
    /// serves the size from now on, and blocks of the old one go home to the old one.
    ///
    /// # Errors
    /// [`Error::Invalid`]: a size of 0 or one that no machine has; a resource whose blocks are smaller than
    /// the size, that lies on another device, or that takes its memory from this one; more than [`MAX_BINS`] bins, replaced
    /// ones included. Nothing was added then.
    pub fn add_bin(&self, allocation_size: u64, resource: Option<Resource>) -> Result<()> {
        if allocation_size == 0 || allocation_size > MAX_BYTES as u64 {
            return Err(Error::invalid(format!(
                "allocation_size is {allocation_size}: a bin serves requests of up to so many bytes; give 1 to {MAX_BYTES}"
            )));
        }
        let allocation_size = allocation_size.next_multiple_of(DEFAULT_ALIGNMENT as u64);
        let given = resource.is_some();
        let resource = match resource {
            Some(resource) => resource,
            None if self.has(allocation_size) => return Ok(()),
            None => {
                let chunk = allocation_size.saturating_mul(BLOCKS).min(CHUNK) / allocation_size * allocation_size;
                let made = FixedSize::growing(self.upstream.clone(), self.device, allocation_size, chunk)?;
                Resource::new(made)?
            }
        };
        if given {
            self.fitting(allocation_size, &resource)?;
        }
        let bin = Bin { allocation_size, resource };
        let refused = {
            let _entering = ENTERING.lock();
            self.enter(bin, given)
        };
        // A resource that was not taken may end here, outside the lock.
        refused.map_or(Ok(()), |(error, _bin)| error.map_or(Ok(()), Err))
    }

    /// Puts a bin in, under the lock; or gives it back, with the error unless somebody else has just made the same.
    fn enter(&self, bin: Bin, given: bool) -> Option<(Option<Error>, Bin)> {
        let size = bin.allocation_size;
        let same = |there: &Bin| there.allocation_size == size && there.resource == bin.resource;
        if (!given && self.has(size)) || self.sorted().into_iter().any(same) {
            return Some((None, bin));
        }
        if given && self.is_below(&bin.resource) {
            let error = Error::invalid(format!(
                "the {} resource takes its memory from this binning resource, of which it would be a bin: give one that \
                 stands on something else",
                bin.resource.body().kind()
            ));
            return Some((Some(error), bin));
        }
        let used = self.used.load(Ordering::Relaxed);
        let Some(cell) = self.bins.get(used) else {
            let error = Error::invalid(format!(
                "this binning resource has had {MAX_BINS} bins, which is all it can have: make another one"
            ));
            return Some((Some(error), bin));
        };
        if let Err(bin) = cell.set(bin) {
            return Some((Some(Error::Internal("a bin was entered twice".into())), bin));
        }
        self.used.store(used + 1, Ordering::Release);
        None
    }

    /// Whether a resource that somebody gives can serve a bin of this size here.
    fn fitting(&self, allocation_size: u64, resource: &Resource) -> Result<()> {
        if let Some(fixed) = resource.downcast::<FixedSize>()
            && fixed.block_size() < allocation_size
        {
            return Err(Error::invalid(format!(
                "the bin is for requests of up to {allocation_size} bytes, and the blocks of its fixed-size resource have \
                 {}: add it for that size, or give one with larger blocks",
                fixed.block_size()
            )));
        }
        match resource.body().device() {
            Some(other) if other >= 0 && other != self.device => Err(Error::invalid(format!(
                "the bin's memory is on device {other}, and this binning resource on device {}: give a resource of that \
                 device",
                self.device
            ))),
            _ => Ok(()),
        }
    }

    /// True when `resource` stands on this one, however far down.
    fn is_below(&self, resource: &Resource) -> bool {
        if let Some(binning) = resource.downcast::<Self>()
            && (std::ptr::eq(binning, self) || binning.bins().any(|bin| self.is_below(&bin.resource)))
        {
            return true;
        }
        resource.body().upstream().is_some_and(|upstream| self.is_below(upstream))
    }

    fn bins(&self) -> impl Iterator<Item = &Bin> {
        self.bins[..self.used.load(Ordering::Acquire)].iter().filter_map(OnceCell::get)
    }

    /// The bins that serve, by size: of each size the newest.
    fn sorted(&self) -> Vec<&Bin> {
        let mut bins: Vec<&Bin> = self.bins().collect();
        bins.reverse();
        // Stable, so that of one size the newest stays first, which is the one that is kept.
        bins.sort_by_key(|bin| bin.allocation_size);
        bins.dedup_by_key(|bin| bin.allocation_size);
        bins
    }

    fn has(&self, allocation_size: u64) -> bool {
        self.bins().any(|bin| bin.allocation_size == allocation_size)
    }

    /// The bins, the smallest first: the size up to which each serves, in bytes, and its resource.
    pub fn list(&self) -> Vec<(u64, Resource)> {
        self.sorted().iter().map(|bin| (bin.allocation_size, bin.resource.clone())).collect()
    }

    /// Bytes up to which bins serve; larger requests go to the upstream. 0 without bins.
    pub fn largest_bin(&self) -> u64 {
        self.bins().map(|bin| bin.allocation_size).max().unwrap_or(0)
    }

    /// Who serves a request of so many bytes now: the newest of the smallest bins that are large enough.
    #[inline]
    fn member_for(&self, bytes: usize) -> u32 {
        let fitting = self.bins().enumerate().filter(|(_, bin)| bin.allocation_size >= bytes as u64);
        let best =
            fitting.reduce(|best, next| if next.1.allocation_size <= best.1.allocation_size { next } else { best });
        best.map_or(UPSTREAM, |(index, _)| index as u32)
    }

    /// The resource of a bin, by its place in the order of adding.
    #[inline]
    fn member(&self, index: u32) -> &Resource {
        self.bins.get(index as usize).and_then(OnceCell::get).map_or(&self.upstream, |bin| &bin.resource)
    }

    /// The members, each once, the upstream last.
    fn members(&self) -> Vec<&Resource> {
        let mut members: Vec<&Resource> = Vec::new();
        // Those that were replaced too: their blocks may be alive.
        let mut bins: Vec<&Bin> = self.bins().collect();
        bins.sort_unstable_by_key(|bin| bin.allocation_size);
        for resource in bins.into_iter().map(|bin| &bin.resource).chain([&self.upstream]) {
            if !members.contains(&resource) {
                members.push(resource);
            }
        }
        members
    }

    /// The bins' resources that are not the upstream, each once.
    fn stores(&self) -> Vec<&Resource> {
        let mut members = self.members();
        members.retain(|member| **member != self.upstream);
        members
    }

    /// Lets the member for the size make a block, and notes where it is at home.
    fn make(&self, request: &Request, make: impl FnOnce(&dyn MemoryResource) -> Result<u64>) -> Result<u64> {
        let member = self.member_for(request.bytes);
        let ptr = make(self.member(member).body()).map_err(|e| sign(e, self.kind()))?;
        self.note(ptr, request, member);
        Ok(ptr)
    }

    /// Notes where a block that was just made is at home, and counts it.
    fn note(&self, ptr: u64, request: &Request, member: u32) {
        let home = Home { bytes: request.bytes as u64, owner: request.owner, member };
        if let Some(gone) = self.homes.enter(ptr, home) {
            self.count_out(&gone);
        }
        self.tally.hold().add(home.bytes as i64);
        if member == UPSTREAM {
            self.direct.hold().add(home.bytes as i64);
        }
    }

    fn count_out(&self, home: &Home) {
        self.tally.hold().subtract(home.bytes as i64);
        if home.member == UPSTREAM {
            self.direct.hold().subtract(home.bytes as i64);
        }
    }

    /// Asks a member for memory of this resource's device, where the member would take that of the stream or of the thread.
    fn ask<R>(
        &self,
        member: &dyn MemoryResource,
        stream: StreamRef<'_>,
        ask: impl FnOnce(&dyn MemoryResource) -> Result<R>,
    ) -> Result<R> {
        if member.device().is_some() {
            return ask(member);
        }
        if let Some(home) = crate::device::home_of(stream, self.device)?
            && home != self.device
        {
            return Err(Error::invalid(format!(
                "the stream belongs to device {home} and the binning resource to device {}: use a stream of the \
                 resource's device, or a resource of the stream's",
                self.device
            )));
        }
        let _current = crate::device::current_for(member, self.device)?;
        ask(member)
    }

    /// Lets the member that made the block free it.
    fn free(&self, ptr: u64, request: &Request, free: impl FnOnce(&dyn MemoryResource) -> Result<()>) -> Result<()> {
        let home = self.homes.take(ptr, request).map_err(|misuse| Error::Misuse(self.explain(misuse)))?;
        if let Err(e) = free(self.member(home.member).body()) {
            self.homes.enter(ptr, home);
            return Err(e);
        }
        self.count_out(&home);
        Ok(())
    }

    /// "Unknown" and "freed already" said more exactly, where a member knows the block around the pointer.
    #[cold]
    fn explain(&self, misuse: Misuse) -> Misuse {
        if !matches!(misuse.kind, MisuseKind::UnknownPointer | MisuseKind::DoubleFree) {
            return misuse;
        }
        let Some(block) = self.find(misuse.ptr) else { return misuse };
        let kind = match (block.ptr == misuse.ptr, block.owner == misuse.asked) {
            (false, true) => MisuseKind::InteriorPointer,
            // Somebody else's block of a member, or a chunk that a bin has of the upstream.
            (true, false) if misuse.kind == MisuseKind::UnknownPointer => MisuseKind::WrongResource,
            // One of ours, which was not there a moment ago; or the inside of somebody else's.
            _ => return misuse,
        };
        Misuse { kind, owner: block.owner, owner_bytes: block.bytes as u64, ..misuse }
    }
}

impl MemoryResource for Binning {
    fn kind(&self) -> &'static str {
        "binning"
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.make(request, |member| self.ask(member, stream, |member| member.allocate(request, stream)))
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.free(ptr, request, |member| member.deallocate(ptr, request, stream))
    }

    fn allocate_at_hand(
        &self,
        request: &Request,
        stream: StreamRef<'_>,
        here: &Local,
    ) -> Option<Result<u64, Box<Error>>> {
        let member = self.member_for(request.bytes);
        let made = self.member(member).body().allocate_at_hand(request, stream, here)?;
        Some(made.map_err(|e| Box::new(sign(*e, self.kind()))).inspect(|ptr| self.note(*ptr, request, member)))
    }

    fn deallocate_at_hand(&self, ptr: u64, request: &Request, stream: StreamRef<'_>, here: &Local) -> bool {
        let Ok(home) = self.homes.take(ptr, request) else { return false };
        if !self.member(home.member).body().deallocate_at_hand(ptr, request, stream, here) {
            self.homes.enter(ptr, home);
            return false;
        }
        self.count_out(&home);
        true
    }

    fn try_allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.make(request, |member| match member.device() {
            Some(_) => member.try_allocate(request, stream),
            // Whose memory it would be is a question for the driver.
            None => Err(Error::WouldBlock),
        })
    }

    fn try_deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.free(ptr, request, |member| member.try_deallocate(ptr, request, stream))
    }

    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        self.make(request, |member| {
            let _current = crate::device::current_for(member, self.device)?;
            member.allocate_sync(request)
        })
    }

    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        self.free(ptr, request, |member| member.deallocate_sync(ptr, request))
    }

    fn device(&self) -> Option<i32> {
        Some(self.device)
    }

    /// What all of the members can do.
    fn properties(&self) -> Properties {
        let all = self.members().into_iter().map(|member| member.body().properties());
        all.reduce(|a, b| Properties {
            device_accessible: a.device_accessible && b.device_accessible,
            host_accessible: a.host_accessible && b.host_accessible,
            managed: a.managed && b.managed,
            stream_ordered: a.stream_ordered && b.stream_ordered,
            exportable: a.exportable && b.exportable,
        })
        .unwrap_or_default()
    }

    fn needs_live_stream(&self) -> bool {
        self.members().into_iter().any(|member| member.body().needs_live_stream())
    }

    fn capture_of(&self, ptr: u64) -> Option<u64> {
        self.members().into_iter().find_map(|member| member.body().capture_of(ptr))
    }

    /// What all of the members can do.
    fn exports(&self) -> u32 {
        self.members().into_iter().map(|member| member.body().exports()).reduce(|a, b| a & b).unwrap_or(0)
    }

    fn share(&self, ptr: u64, bytes: usize, wanted: crate::sharing::Kinds) -> Result<Option<crate::sharing::Parts>> {
        match self.members().into_iter().find(|member| member.body().find(ptr).is_some()) {
            Some(member) => member.body().share(ptr, bytes, wanted),
            None => Ok(None),
        }
    }

    fn find(&self, ptr: u64) -> Option<Block> {
        let found = self.members().into_iter().filter_map(|member| member.body().find(ptr));
        let block = found.min_by_key(|block| block.bytes)?;
        // Members may know the size of their class only.
        let bytes = self.homes.of(block.ptr).filter(|home| home.owner == block.owner);
        Some(Block { bytes: bytes.map_or(block.bytes, |home| home.bytes as usize), ..block })
    }

    /// What is live is this layer's, in bytes as they were asked for. What is cached is the bins', each resource counted once
    /// with all that it serves; what is reserved, theirs and what larger requests have of the upstream. Both peaks of what is
    /// reserved are added up: they need not have been at one time.
    fn info(&self) -> Info {
        let counters = self.tally.counters();
        let unsigned = |n: i64| u64::try_from(n).unwrap_or(0);
        let (live_bytes, peak_live_bytes) = (unsigned(counters.bytes.value), unsigned(counters.bytes.peak));
        let mut info = Info {
            live_bytes,
            peak_live_bytes,
            live_count: unsigned(counters.allocations.value),
            largest_free_bytes: self.upstream.body().info().largest_free_bytes,
            ..Info::default()
        };
        for store in self.stores() {
            let below = store.body().info();
            info.largest_free_bytes = info.largest_free_bytes.max(below.largest_free_bytes);
            info.cached_bytes += below.cached_bytes;
            info.reserved_bytes += below.reserved_bytes;
            info.peak_reserved_bytes += below.peak_reserved_bytes;
            info.unproven_bytes += below.unproven_bytes;
            info.device_proofs += below.device_proofs;
        }
        let direct = self.direct.counters().bytes;
        info.reserved_bytes += unsigned(direct.value);
        info.peak_reserved_bytes += unsigned(direct.peak);
        info
    }

    fn reserved_bytes(&self) -> u64 {
        let direct = u64::try_from(self.direct.counters().bytes.value).unwrap_or(0);
        self.stores().iter().map(|store| store.body().reserved_bytes()).sum::<u64>() + direct
    }

    /// Trims the bins, the largest first, until all of them together keep no more than `keep_bytes`; what they give back
    /// goes to their upstreams.
    fn trim(&self, keep_bytes: usize) -> Result<usize> {
        let stores = self.stores();
        let mut cached: u64 = stores.iter().map(|store| store.body().info().cached_bytes).sum();
        let mut went = 0;
        for store in stores.into_iter().rev() {
            let Some(over) = cached.checked_sub(keep_bytes as u64).filter(|over| *over > 0) else { break };
            let own = store.body().info().cached_bytes;
            went += store.body().trim(own.saturating_sub(over) as usize)?;
            cached = cached.saturating_sub(own) + store.body().info().cached_bytes;
        }
        Ok(went)
    }

    fn upstream(&self) -> Option<&Resource> {
        Some(&self.upstream)
    }

    fn property(&self, name: &str) -> Option<u64> {
        match name {
            "bin_count" => Some(self.bins().count() as u64),
            "largest_bin" => Some(self.largest_bin()),
            _ => None,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
