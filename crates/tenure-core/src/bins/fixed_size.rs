//! Blocks of one size.
//!
//! ```text
//!   request of n <= block_size bytes --> a block of the pool inside, always of block_size bytes
//!   upstream --> chunk of blocks_to_preallocate blocks --> pool: blocks that are all alike never split for good
//! ```
//!
//! # Invariants
//! * Every live block of the pool inside has `block_size` bytes, so that whatever is free fits every request.
//! * A free that is not exactly that of a live block (address, owner, size to the byte, alignment) changes nothing.
//!
//! # Cost
//! That of the pool, and a lock of a thirty-second of the blocks for an allocation and for a free (see `sizes`).
//!
//! # Limitation
//! A request that wants a larger alignment than 256 bytes gets a block at such an address. What lies in front of it is free,
//! and of no use until its neighbours are free too.

use std::any::Any;

use super::sizes::Sizes;
use crate::error::{Error, Misuse, MisuseKind, Result, human};
use crate::pool::place::{SMALL, rounded_bytes, zone_of};
use crate::pool::{Pool, PoolOptions, Prefer};
use crate::resource::{Block, DEFAULT_ALIGNMENT, Info, Live, MAX_BYTES, MemoryResource, Properties, Request, Resource};
use crate::stream::StreamRef;
use crate::thread::Local;

/// No shortest run of the pool is longer, in bytes.
const RUN: u64 = 64 << 10;

/// The settings of a [`FixedSize`]. The defaults are RMM's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedSizeOptions {
    /// The size of every block, in bytes; rounded up to a multiple of 256.
    pub block_size: u64,
    /// How many blocks are taken when the resource is made, at once, or making it fails; and how many at a time later,
    /// where they are to be had. 0: none at the start, and one after the other. Blocks of 32 KiB and less lie in runs: what
    /// is taken for them is up to 64 KiB more.
    pub blocks_to_preallocate: u64,
}

impl Default for FixedSizeOptions {
    fn default() -> Self {
        Self { block_size: 1 << 20, blocks_to_preallocate: 128 }
    }
}

impl FixedSizeOptions {
    /// The options with the size rounded, and the bytes of a chunk.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the setting, its value and what it must be.
    fn checked(self) -> Result<(Self, u64)> {
        let most = MAX_BYTES as u64;
        let Self { block_size, blocks_to_preallocate: blocks } = self;
        if block_size == 0 || block_size > most {
            return Err(Error::invalid(format!(
                "block_size is {block_size}: give the bytes of a block, from 1 to {most}; the usual size is 1048576"
            )));
        }
        let block_size = block_size.next_multiple_of(DEFAULT_ALIGNMENT as u64);
        let Some(chunk) = block_size.checked_mul(blocks).filter(|chunk| *chunk <= most) else {
            return Err(Error::invalid(format!(
                "blocks_to_preallocate is {blocks}, and so many blocks of {block_size} bytes are more than any machine \
                 has: give at most {}",
                most / block_size
            )));
        };
        Ok((Self { block_size, ..self }, chunk_bytes(block_size, blocks).unwrap_or(chunk)))
    }
}

/// What holds so many blocks of the pool: sizes that the pool serves from runs are rounded to their class, and what is left
/// behind the last run of a chunk may be too short for another one.
fn chunk_bytes(block_size: u64, blocks: u64) -> Option<u64> {
    if zone_of(block_size) != SMALL || blocks == 0 {
        return None;
    }
    blocks.checked_mul(rounded_bytes(block_size))?.checked_add(RUN)
}

/// A resource whose blocks all have one size. See the [module](self).
pub struct FixedSize {
    pool: Pool,
    sizes: Sizes,
    options: FixedSizeOptions,
}

impl std::fmt::Debug for FixedSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FixedSize({} bytes)", self.options.block_size)
    }
}

impl FixedSize {
    /// Makes a resource of blocks on `device` over `upstream`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for settings that make no sense or an upstream of another device; out of memory when the first
    /// blocks cannot be had; what the driver or the upstream says. Nothing is kept then.
    pub fn new(upstream: Resource, device: i32, options: FixedSizeOptions) -> Result<Self> {
        let (options, chunk) = options.checked()?;
        Self::with_chunks(upstream, device, options, chunk, chunk)
    }

    /// A resource that begins empty and takes `chunk` bytes at a time.
    pub(super) fn growing(upstream: Resource, device: i32, block_size: u64, chunk: u64) -> Result<Self> {
        let (options, _) = FixedSizeOptions { block_size, blocks_to_preallocate: 0 }.checked()?;
        Self::with_chunks(upstream, device, options, 0, chunk)
    }

    fn with_chunks(
        upstream: Resource,
        device: i32,
        options: FixedSizeOptions,
        initial_bytes: u64,
        growth_bytes: u64,
    ) -> Result<Self> {
        // A growth is coarse, so that what other streams have left comes first.
        let pool = PoolOptions { initial_bytes, growth_bytes, prefer: Prefer::Footprint, ..PoolOptions::default() };
        let pool = Pool::new(upstream, device, pool).map_err(|e| rename(e, "fixed_size"))?;
        Ok(Self { pool, sizes: Sizes::new(), options })
    }

    /// The size of every block, in bytes.
    pub fn block_size(&self) -> u64 {
        self.options.block_size
    }

    /// The settings, as they were rounded.
    pub fn options(&self) -> &FixedSizeOptions {
        &self.options
    }

    /// Checks the invariants of the pool inside.
    ///
    /// # Errors
    /// What does not hold.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), String> {
        self.pool.check()
    }

    /// The request for a whole block.
    fn whole(&self, request: &Request) -> Request {
        Request { bytes: self.options.block_size as usize, ..*request }
    }

    /// Lets `make` make a block, and notes what it was asked for.
    fn block(&self, request: &Request, make: impl FnOnce(&Request) -> Result<u64>) -> Result<u64> {
        let block_size = self.options.block_size;
        if request.bytes as u64 > block_size {
            return Err(Error::invalid(format!(
                "{} bytes do not fit into a block of this fixed-size resource, whose block_size is {block_size} ({}): ask \
                 for at most that, make it with larger blocks, or put it as a bin into a binning resource, which sends \
                 larger requests to its upstream",
                request.bytes,
                human(block_size)
            )));
        }
        let ptr = make(&self.whole(request)).map_err(|e| rename(e, self.kind()))?;
        self.sizes.note(ptr, request.bytes as u64);
        Ok(ptr)
    }

    /// Looks at the size of a free; everything else is the pool's to check.
    fn refuse_size(&self, ptr: u64, request: &Request) -> Result<()> {
        let noted = self.sizes.of(ptr);
        if noted == Some(request.bytes as u64) {
            return Ok(());
        }
        let misuse = |kind, owner, owner_bytes| {
            Error::Misuse(Misuse { kind, ptr, bytes: request.bytes as u64, asked: request.owner, owner, owner_bytes })
        };
        // The order of what is said is the same everywhere: no block, another owner, another size.
        match self.pool.find(ptr) {
            Some(block) if block.ptr == ptr && block.owner == request.owner => {
                Err(misuse(MisuseKind::WrongSize, block.owner, noted.unwrap_or(block.bytes as u64)))
            }
            Some(block) if block.ptr == ptr => {
                Err(misuse(MisuseKind::WrongResource, block.owner, noted.unwrap_or(block.bytes as u64)))
            }
            Some(block) => Err(misuse(
                MisuseKind::InteriorPointer,
                block.owner,
                self.sizes.of(block.ptr).unwrap_or(block.bytes as u64),
            )),
            None if noted.is_some() => Err(misuse(MisuseKind::DoubleFree, 0, 0)),
            None => Err(misuse(MisuseKind::UnknownPointer, 0, 0)),
        }
    }

    /// Shows the sizes that were asked for in an error of the pool, which knows whole blocks.
    fn explained(&self, error: Error) -> Error {
        match error {
            Error::Misuse(misuse) if misuse.owner_bytes != 0 => {
                let start = self.pool.find(misuse.ptr).map_or(misuse.ptr, |block| block.ptr);
                let owner_bytes = self.sizes.of(start).unwrap_or(misuse.owner_bytes);
                Error::Misuse(Misuse { owner_bytes, ..misuse })
            }
            other => other,
        }
    }

    fn free(&self, ptr: u64, request: &Request, free: impl FnOnce(&Request) -> Result<()>) -> Result<()> {
        self.refuse_size(ptr, request)?;
        free(&self.whole(request)).map_err(|e| self.explained(e))
    }
}

/// Says `kind` where an out-of-memory error of the pool inside says `pool`.
pub(crate) fn rename(error: Error, kind: &str) -> Error {
    match error {
        Error::OutOfMemory(mut e) => {
            if let Some(below) = e.resource.strip_prefix("pool") {
                e.resource = format!("{kind}{below}");
            }
            Error::OutOfMemory(e)
        }
        other => other,
    }
}

impl MemoryResource for FixedSize {
    fn kind(&self) -> &'static str {
        "fixed_size"
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.block(request, |whole| self.pool.allocate(whole, stream))
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.free(ptr, request, |whole| self.pool.deallocate(ptr, whole, stream))
    }

    fn allocate_at_hand(
        &self,
        request: &Request,
        stream: StreamRef<'_>,
        here: &Local,
    ) -> Option<Result<u64, Box<Error>>> {
        if request.bytes as u64 > self.options.block_size {
            return None;
        }
        let made = self.pool.allocate_at_hand(&self.whole(request), stream, here)?;
        Some(made.inspect(|ptr| self.sizes.note(*ptr, request.bytes as u64)))
    }

    fn deallocate_at_hand(&self, ptr: u64, request: &Request, stream: StreamRef<'_>, here: &Local) -> bool {
        self.sizes.of(ptr) == Some(request.bytes as u64)
            && self.pool.deallocate_at_hand(ptr, &self.whole(request), stream, here)
    }

    fn try_allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.block(request, |whole| self.pool.try_allocate(whole, stream))
    }

    fn try_deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.free(ptr, request, |whole| self.pool.try_deallocate(ptr, whole, stream))
    }

    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        self.block(request, |whole| self.pool.allocate_sync(whole))
    }

    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        self.free(ptr, request, |whole| self.pool.deallocate_sync(ptr, whole))
    }

    fn device(&self) -> Option<i32> {
        self.pool.device()
    }

    fn properties(&self) -> Properties {
        self.pool.properties()
    }

    fn needs_live_stream(&self) -> bool {
        self.pool.needs_live_stream()
    }

    fn exports(&self) -> u32 {
        self.pool.exports()
    }

    fn share(&self, ptr: u64, bytes: usize, wanted: crate::sharing::Kinds) -> Result<Option<crate::sharing::Parts>> {
        self.pool.share(ptr, bytes, wanted)
    }

    fn capture_of(&self, ptr: u64) -> Option<u64> {
        self.pool.capture_of(ptr)
    }

    fn find(&self, ptr: u64) -> Option<Block> {
        let block = self.pool.find(ptr)?;
        let bytes = self.sizes.of(block.ptr).map_or(block.bytes, |bytes| bytes as usize);
        Some(Block { bytes, ..block })
    }

    fn each_block(&self, see: &mut dyn FnMut(Live)) {
        self.pool.each_block(&mut |live| {
            let bytes = self.sizes.of(live.block.ptr).map_or(live.block.bytes, |bytes| bytes as usize);
            see(Live { block: Block { bytes, ..live.block }, ..live });
        });
    }

    fn held_ranges(&self) -> Vec<(u64, u64)> {
        self.pool.held_ranges()
    }

    /// In whole blocks: what is live is what other requests cannot have.
    fn info(&self) -> Info {
        let info = self.pool.info();
        let fits = info.largest_free_bytes >= self.options.block_size;
        Info { largest_free_bytes: if fits { self.options.block_size } else { 0 }, ..info }
    }

    fn reserved_bytes(&self) -> u64 {
        self.pool.reserved_bytes()
    }

    fn trim(&self, keep_bytes: usize) -> Result<usize> {
        let went = self.pool.trim(keep_bytes);
        // Addresses that went back may never come again.
        self.sizes.retain(|ptr| self.pool.find(ptr).is_some());
        went
    }

    fn upstream(&self) -> Option<&Resource> {
        self.pool.upstream()
    }

    fn property(&self, name: &str) -> Option<u64> {
        match name {
            "block_size" => Some(self.options.block_size),
            "blocks_to_preallocate" => Some(self.options.blocks_to_preallocate),
            "maximum_bytes" => None,
            _ => self.pool.property(name),
        }
    }

    fn stream_closing(&self, stream: StreamRef<'_>) {
        self.pool.stream_closing(stream);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
