//! The arena: all of its memory taken at once, and never more.
//!
//! ```text
//!   upstream --> arena_size bytes, when it is made --> pool that cannot grow --> requests, in stream order
//!                                                           |
//!                             out of memory: the error, and the dump in a file, where that is wanted
//! ```
//!
//! RMM's users know an arena as the resource of a fixed size that many threads and streams share without getting in each
//! other's way: it cuts its memory into superblocks, which the arenas of single threads and streams hold. Here the
//! [pool](crate::pool) does that job, with one difference: what a thread or a stream has freed can be had by every other
//! one in stream order, without a wait of the host. So the arena is a pool whose initial and maximum sizes are the arena's.
//!
//! # Invariants
//! * After it was made, the arena asks its upstream for nothing and gives nothing back to it before
//!   [`trim`](MemoryResource::trim) or its end. What was trimmed can be taken again.
//! * The dump is written after the request has failed, without a lock held; a file that cannot be written changes nothing.
//!
//! # Cost
//! That of the pool.

use std::any::Any;
use std::fmt::Write as _;
use std::path::PathBuf;

use crate::bins::rename;
use crate::error::{Error, OutOfMemory, Result, human};
use crate::pool::{Pool, PoolOptions};
use crate::resource::{Block, DEFAULT_ALIGNMENT, Info, Live, MemoryResource, Properties, Request, Resource};
use crate::stream::StreamRef;
use crate::thread::Local;

/// The file that a dump goes to, in the directory that is current at the failure.
pub const DUMP_FILE: &str = "tenure_arena_memory_dump.log";

/// The smallest arena, in bytes (RMM's superblock): a smaller number is one of another unit.
const LEAST: u64 = 1 << 20;

/// The settings of an [`Arena`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArenaOptions {
    /// The bytes of the arena, all taken when it is made, or making it fails. `None`: half of what is free on the device
    /// then.
    pub arena_size: Option<u64>,
    /// Where each request that cannot be served leaves the state of the arena: appended to this file.
    pub dump_log: Option<PathBuf>,
}

/// A resource of a fixed size. See the [module](self).
pub struct Arena {
    pool: Pool,
    dump_log: Option<PathBuf>,
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena({} bytes)", self.arena_size())
    }
}

impl Arena {
    /// Makes an arena of memory of `device` over `upstream`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size that makes no sense or an upstream of another device; out of memory when the arena
    /// cannot be had; what the driver or the upstream says. Nothing is kept then.
    pub fn new(upstream: Resource, device: i32, options: ArenaOptions) -> Result<Self> {
        let device = crate::device::check(device)?;
        let unit = DEFAULT_ALIGNMENT as u64;
        let arena_size = match options.arena_size {
            Some(bytes) if bytes < LEAST => {
                return Err(Error::invalid(format!(
                    "arena_size is {bytes}: an arena has at least {LEAST} bytes ({}); leave it out for half of the free memory",
                    human(LEAST)
                )));
            }
            Some(bytes) if bytes > crate::resource::MAX_BYTES as u64 => {
                return Err(Error::invalid(format!(
                    "arena_size is {bytes}: no machine has that much; leave it out for half of the free memory"
                )));
            }
            // Down, as RMM does: what was named is never exceeded.
            Some(bytes) => bytes / unit * unit,
            None => (crate::device::memory_info(device)?.0 / 2 / unit * unit).max(LEAST),
        };
        let pool = PoolOptions { initial_bytes: arena_size, maximum_bytes: Some(arena_size), ..PoolOptions::default() };
        let pool = Pool::new(upstream, device, pool).map_err(|e| rename(e, "arena"))?;
        Ok(Self { pool, dump_log: options.dump_log })
    }

    /// The size of the arena, in bytes.
    pub fn arena_size(&self) -> u64 {
        self.pool.options().initial_bytes
    }

    /// True when a request that fails leaves the state of the arena in a file.
    pub fn dumps_log_on_failure(&self) -> bool {
        self.dump_log.is_some()
    }

    /// Checks the invariants of the pool inside.
    ///
    /// # Errors
    /// What does not hold.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), String> {
        self.pool.check()
    }

    /// The state of the arena, for people.
    pub fn dump(&self) -> String {
        let info = self.pool.info();
        let mut text = String::new();
        let mut line = |name: &str, bytes: u64| {
            // Writing into a string does not fail.
            let _ = writeln!(text, "  {name:<20} {bytes:>16} B  ({})", human(bytes));
        };
        line("arena size", self.arena_size());
        line("reserved", info.reserved_bytes);
        line("live", info.live_bytes);
        line("highest live", info.peak_live_bytes);
        line("free", info.cached_bytes);
        line("largest free block", info.largest_free_bytes);
        line("unproven", info.unproven_bytes);
        let streams = self.pool.property("stream_records").unwrap_or(0);
        let _ = writeln!(text, "  {:<20} {:>16}", "live blocks", info.live_count);
        let _ = writeln!(text, "  {:<20} {streams:>16}", "streams known");
        let _ = writeln!(text, "  {:<20} {:>16}", "device proofs", info.device_proofs);
        let _ = writeln!(text, "  ranges of addresses:");
        for (start, bytes) in self.pool.ranges() {
            let _ = writeln!(text, "    {start:#018x}  {bytes:>16} B  ({})", human(bytes));
        }
        text
    }

    /// Says whose error it is, and leaves the state in the file, where that is wanted.
    fn failed(&self, error: Error) -> Error {
        let error = rename(error, self.kind());
        if let (Error::OutOfMemory(oom), Some(path)) = (&error, &self.dump_log)
            && let Err(e) = self.write_dump(oom, path)
        {
            log::warn!("tenure: the state of an arena could not be written to {}: {e}", path.display());
        }
        error
    }

    fn write_dump(&self, error: &OutOfMemory, path: &std::path::Path) -> std::io::Result<()> {
        use std::io::Write as _;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let text = format!(
            "at {}.{:03} s since 1970, process {}, {:?}: {error}\n{}\n",
            now.as_secs(),
            now.subsec_millis(),
            std::process::id(),
            std::thread::current().id(),
            self.dump()
        );
        // One write to a file that is open for appending: the dumps of several threads do not mix.
        std::fs::OpenOptions::new().create(true).append(true).open(path)?.write_all(text.as_bytes())
    }
}

impl MemoryResource for Arena {
    fn kind(&self) -> &'static str {
        "arena"
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.pool.allocate(request, stream).map_err(|e| self.failed(e))
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.pool.deallocate(ptr, request, stream)
    }

    fn allocate_at_hand(
        &self,
        request: &Request,
        stream: StreamRef<'_>,
        here: &Local,
    ) -> Option<Result<u64, Box<Error>>> {
        self.pool.allocate_at_hand(request, stream, here)
    }

    fn deallocate_at_hand(&self, ptr: u64, request: &Request, stream: StreamRef<'_>, here: &Local) -> bool {
        self.pool.deallocate_at_hand(ptr, request, stream, here)
    }

    fn try_allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        // Nothing is written here: a request that fails in earnest comes again through `allocate`.
        self.pool.try_allocate(request, stream)
    }

    fn try_deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.pool.try_deallocate(ptr, request, stream)
    }

    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        self.pool.allocate_sync(request).map_err(|e| self.failed(e))
    }

    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        self.pool.deallocate_sync(ptr, request)
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
        self.pool.find(ptr)
    }

    fn each_block(&self, see: &mut dyn FnMut(Live)) {
        self.pool.each_block(see);
    }

    fn held_ranges(&self) -> Vec<(u64, u64)> {
        self.pool.held_ranges()
    }

    fn info(&self) -> Info {
        self.pool.info()
    }

    fn reserved_bytes(&self) -> u64 {
        self.pool.reserved_bytes()
    }

    fn trim(&self, keep_bytes: usize) -> Result<usize> {
        self.pool.trim(keep_bytes)
    }

    fn upstream(&self) -> Option<&Resource> {
        self.pool.upstream()
    }

    fn property(&self, name: &str) -> Option<u64> {
        match name {
            "arena_size" => Some(self.arena_size()),
            "dump_log_on_failure" => Some(u64::from(self.dumps_log_on_failure())),
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
