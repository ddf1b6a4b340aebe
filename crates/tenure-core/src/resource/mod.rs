//! Resources: who makes memory, who frees it, and who keeps whom alive.
//!
//! [`MemoryResource`] is what a maker of memory does; [`Resource`] is the counted handle that everybody holds. Layers
//! (adaptors, pools) call the trait of their upstream and hold an anchor on it; only the public entry
//! ([`Named::allocate`]) counts, once per allocation, on the resource that the caller named.

use std::any::Any;

use crate::error::{Error, Result};
use crate::stream::StreamRef;
use crate::thread::Local;

pub mod batch;
pub mod book;
pub mod callback;
pub mod handle;
pub mod leaf;
pub mod registry;

pub use batch::{Batch, Freed};
pub use handle::{Light, Named, Resource};

/// The alignment that an allocation has when none is asked for, in bytes.
pub const DEFAULT_ALIGNMENT: usize = 256;

/// The largest alignment that may be asked for, in bytes: one page of device memory.
pub const MAX_ALIGNMENT: usize = 2 << 20;

/// The largest size that may be asked for, in bytes. Anything above is an error before any arithmetic.
pub const MAX_BYTES: usize = 1 << 56;

/// One request, as it goes down the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes wanted; never 0 (a request of no bytes does not reach a resource).
    pub bytes: usize,
    /// A power of two, at most [`MAX_ALIGNMENT`].
    pub align: usize,
    /// The id of the resource that the *caller* named. It is booked with the block by the layer that books.
    pub owner: u64,
    /// [`Request::UNPROVEN`], [`Request::ALONE`].
    pub flags: u32,
}

impl Request {
    /// On a free: some stream that used the block can no longer be asked. The block may reach other work only after
    /// everything on its device has completed.
    pub const UNPROVEN: u32 = 1;

    /// On an allocation: who asks has ways of its own to find memory, so that out of memory is answered at once, without asking
    /// other pools and libraries to give some back.
    pub const ALONE: u32 = 2;

    /// Checks size and alignment.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming what is wrong. A size above [`MAX_BYTES`] is out of memory, since it is a plausible
    /// request that no machine can serve.
    pub fn checked(bytes: usize, align: usize, owner: u64) -> Result<Self> {
        if !align.is_power_of_two() || align > MAX_ALIGNMENT {
            return Err(Error::invalid(format!(
                "alignment {align} is not usable: give a power of two up to {MAX_ALIGNMENT}"
            )));
        }
        if bytes > MAX_BYTES {
            // The figures are for whoever has the resource: `observe::beyond`.
            return Err(Error::OutOfMemory(Box::new(crate::error::OutOfMemory {
                requested: bytes as u64,
                ..Default::default()
            })));
        }
        Ok(Self { bytes, align, owner, flags: 0 })
    }
}

/// What memory of a resource can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// Kernels can use it.
    pub device_accessible: bool,
    /// The host can dereference it.
    pub host_accessible: bool,
    /// It migrates on demand.
    pub managed: bool,
    /// Allocation and free are ordered with the stream (nothing waits).
    pub stream_ordered: bool,
    /// It can be given to another process.
    pub exportable: bool,
}

/// One live block, as a resource knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Where it starts.
    pub ptr: u64,
    /// Its size in bytes as far as it is known: what was asked for, or that rounded to the block's class.
    pub bytes: usize,
    /// The id of the resource that was asked for it.
    pub owner: u64,
    /// The device it lies on; -1 for memory of the host.
    pub device: i32,
}

/// One live block, as the resource that booked it shows it in a walk over all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// The block.
    pub block: Block,
    /// Bytes that it takes where it lies: its size and what rounding and alignment add.
    pub held: u64,
    /// The driver's value of the stream that it was asked for on; `None` where that is not booked.
    pub stream: Option<u64>,
}

/// The figures of a resource, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Handed out and not given back.
    pub live_bytes: u64,
    /// Held ready for the next request.
    pub cached_bytes: u64,
    /// Taken from the device or the upstream: live, cached and what lies between.
    pub reserved_bytes: u64,
    /// The largest single request that could be served from what is cached.
    pub largest_free_bytes: u64,
    /// The highest `live_bytes` so far.
    pub peak_live_bytes: u64,
    /// The highest `reserved_bytes` so far.
    pub peak_reserved_bytes: u64,
    /// Number of blocks handed out and not given back.
    pub live_count: u64,
    /// Free bytes that other streams may not have before the device is waited for.
    pub unproven_bytes: u64,
    /// How often the whole device was waited for.
    pub device_proofs: u64,
    /// The memory lies in address ranges that the resource maps itself. False where it comes in pieces from the device or an
    /// upstream, as a pool's does where the device has no virtual memory management.
    pub own_ranges: bool,
}

/// Something that allocates and frees memory in stream order.
///
/// The methods are called by [`Resource`] and by the layers above; callers have checked the request. An error from
/// [`deallocate`](Self::deallocate) means that nothing happened.
///
/// # Rules for implementers
/// * No lock is held while the driver or user code is called.
/// * A failed call leaves every figure and table as it was.
/// * `deallocate` checks pointer, size, alignment and owner against what was booked, in constant time, or passes the
///   request on to the layer that does.
pub trait MemoryResource: Send + Sync + 'static {
    /// A short name in the field's words: `"pool"`, `"cuda"`, `"statistics"`.
    fn kind(&self) -> &str;

    /// Allocates `request.bytes` bytes, usable in the order of `stream`.
    ///
    /// # Errors
    /// Out of memory, device faults, refusals.
    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64>;

    /// Frees a block in the order of `stream`.
    ///
    /// # Errors
    /// Misuse (nothing happened), device faults.
    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()>;

    /// Allocates all blocks of a batch, or none; `out` is as long as the batch. Blocks without bytes get 0.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate): what was had is given back, and `out` is all 0.
    fn allocate_many(&self, batch: &Batch<'_>, stream: StreamRef<'_>, out: &mut [u64]) -> Result<()> {
        batch::allocate_each(self, batch, stream, out)
    }

    /// Frees each block of a batch that can be freed; `ptrs` is as long as the batch.
    fn deallocate_many(&self, ptrs: &[u64], batch: &Batch<'_>, stream: StreamRef<'_>) -> Freed {
        batch::deallocate_each(self, ptrs, batch, stream)
    }

    /// [`allocate`](Self::allocate) of what the calling thread has ready, with no lock that others use: a shorter way to the
    /// same end. `here` is the calling thread's. `None`, with nothing changed: take the whole way.
    ///
    /// # Errors
    /// What the driver says to the question whether the stream is capturing.
    fn allocate_at_hand(
        &self,
        _request: &Request,
        _stream: StreamRef<'_>,
        _here: &Local,
    ) -> Option<Result<u64, Box<Error>>> {
        None
    }

    /// [`deallocate`](Self::deallocate) into what the calling thread keeps ready. False, with nothing changed: take the whole
    /// way, which says what is wrong if anything is.
    fn deallocate_at_hand(&self, _ptr: u64, _request: &Request, _stream: StreamRef<'_>, _here: &Local) -> bool {
        false
    }

    /// [`allocate`](Self::allocate) that neither waits nor calls the driver or user code.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with nothing changed, when it would have to.
    fn try_allocate(&self, _request: &Request, _stream: StreamRef<'_>) -> Result<u64> {
        Err(Error::WouldBlock)
    }

    /// [`deallocate`](Self::deallocate) that neither waits nor calls the driver or user code.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with nothing changed, when it would have to.
    fn try_deallocate(&self, _ptr: u64, _request: &Request, _stream: StreamRef<'_>) -> Result<()> {
        Err(Error::WouldBlock)
    }

    /// Allocates memory that is usable on any stream, and from the host where it can be, at return.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        crate::device::allocate_then_wait(self, request)
    }

    /// Frees memory that nothing uses any more: the caller has waited.
    ///
    /// # Errors
    /// As [`deallocate`](Self::deallocate).
    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        crate::device::deallocate_waited(self, ptr, request)
    }

    /// The device that the memory lies on; `None` when that follows from the stream of each request.
    fn device(&self) -> Option<i32>;

    /// What the memory can do.
    fn properties(&self) -> Properties;

    /// True when a free must name a stream that is alive: such a resource serves no buffer whose stream is a raw value.
    fn needs_live_stream(&self) -> bool {
        self.upstream().is_some_and(|upstream| upstream.body().needs_live_stream())
    }

    /// The live block of this resource that contains `ptr`; the smallest, where blocks of an upstream contain others.
    fn find(&self, ptr: u64) -> Option<Block>;

    /// Calls `see` with each live block that this very layer booked, without a lock held: not with those of its upstream,
    /// which shows them itself. What comes and goes meanwhile may be seen or not; what lives throughout is seen once.
    ///
    /// Cost: O(blocks), in pieces, so that nobody waits for long.
    fn each_block(&self, _see: &mut dyn FnMut(Live)) {}

    /// The ranges of addresses (start, bytes) out of which this very layer serves requests, by address. Empty where each
    /// block is taken from the device or the upstream by itself.
    fn held_ranges(&self) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// The capture in which the live block around `ptr` was made, for memory of a graph; `None` for every other.
    fn capture_of(&self, ptr: u64) -> Option<u64> {
        self.upstream()?.body().capture_of(ptr)
    }

    /// The kinds of handles by which another process can be given this memory, as [`Kinds`](crate::sharing::Kinds) has them.
    fn exports(&self) -> u32 {
        self.upstream().map_or(0, |upstream| upstream.body().exports())
    }

    /// What leads another process to the `bytes` live bytes at `ptr`; `None` where this layer and those below have no such
    /// way of their own.
    ///
    /// # Errors
    /// Memory that is this resource's and cannot be had so; what the driver says.
    fn share(&self, ptr: u64, bytes: usize, wanted: crate::sharing::Kinds) -> Result<Option<crate::sharing::Parts>> {
        self.upstream().map_or(Ok(None), |upstream| upstream.body().share(ptr, bytes, wanted))
    }

    /// The figures now. May drain caches, so that the largest free block can be had.
    fn info(&self) -> Info;

    /// [`Info::reserved_bytes`] alone, for who looks often: nothing is drained for it.
    fn reserved_bytes(&self) -> u64 {
        self.info().reserved_bytes
    }

    /// Gives back to the device or the upstream what is cached, down to `keep_bytes`; says how many bytes went.
    ///
    /// # Errors
    /// Device faults; what was given back before stays given back.
    fn trim(&self, _keep_bytes: usize) -> Result<usize> {
        Ok(0)
    }

    /// What this resource takes its memory from.
    fn upstream(&self) -> Option<&Resource> {
        None
    }

    /// A named figure or setting of the concrete type: `"allocation_limit"`, `"pool_handle"`.
    fn property(&self, _name: &str) -> Option<u64> {
        None
    }

    /// The host has waited for `stream`, as somebody says who carries it: what was freed on it may be anybody's now.
    /// `thoroughly`: they say so for the sake of that; else it is a by-product of a wait, and must cost next to nothing.
    ///
    /// # Errors
    /// What the driver says.
    fn stream_synchronized(&self, _stream: StreamRef<'_>, _thoroughly: bool) -> Result<()> {
        Ok(())
    }

    /// `waiter` waits for the work of `other`, as somebody says who carries both: what was freed on `other` may be used in the
    /// order of `waiter` now. `thoroughly`: as in [`stream_synchronized`](Self::stream_synchronized).
    ///
    /// # Errors
    /// What the driver says.
    fn stream_waits(&self, _waiter: StreamRef<'_>, _other: StreamRef<'_>, _thoroughly: bool) -> Result<()> {
        Ok(())
    }

    /// The host has waited for all of `device`.
    ///
    /// # Errors
    /// What the driver says.
    fn device_synchronized(&self, _device: i32) -> Result<()> {
        Ok(())
    }

    /// `stream` is about to end: whatever proof will be needed of it must be recorded now.
    fn stream_closing(&self, _stream: StreamRef<'_>) {}

    /// For a downcast to the concrete type.
    fn as_any(&self) -> &dyn Any;
}
