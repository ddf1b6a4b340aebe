//! Memory of the system's allocator that leaves some of the device free.
//!
//! ```text
//!  allocate   the host's memory -> at home on the device, as far as its free memory goes beyond the headroom
//!                               -> the rest is at home on the host
//! ```
//!
//! Where devices can use pageable memory of the host, it migrates to the device that touches it and does not come back by
//! itself, so that a device fills up until other calls of the driver find nothing. The headroom is what is left to them: the
//! driver is told where each block is at home, by the free memory of the device at that moment.
//!
//! It is a hint: where the device cannot use pageable memory, or the driver refuses, this is memory of the host like that of
//! [`System`](super::System). The property `"hints"` says which.
//!
//! # Cost
//! That of the system resource, and two or three driver calls for an allocation where the driver is told.

use std::any::Any;

use crate::device;
use crate::error::Result;
use crate::prefetch::{Place, prefer};
use crate::resource::leaf::plain::{FreeWaits, MakeError, Plain, Source};
use crate::resource::leaf::system::SystemSource;
use crate::resource::{Block, Info, Live, MemoryResource, Properties, Request};
use crate::stream::StreamRef;

/// Where memory of the host is at home changes by whole pages of this size, in bytes.
const PAGE: u64 = 64 << 10;

/// The system's memory under another name.
#[derive(Default)]
struct SamSource(SystemSource);

impl Source for SamSource {
    const KIND: &'static str = "sam_headroom";
    const FREE_WAITS: FreeWaits = SystemSource::FREE_WAITS;
    const OF_HOST: bool = SystemSource::OF_HOST;
    const NEEDS_DEVICE: bool = SystemSource::NEEDS_DEVICE;

    fn make(&self, bytes: usize, align: usize) -> Result<u64, MakeError> {
        self.0.make(bytes, align)
    }

    unsafe fn free(&self, base: u64) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { self.0.free(base) }
    }

    fn properties(&self) -> Properties {
        self.0.properties()
    }
}

/// Memory of the host that leaves some of the device free.
pub struct SamHeadroom {
    memory: Plain<SamSource>,
    headroom: u64,
}

impl std::fmt::Debug for SamHeadroom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SamHeadroom({} bytes)", self.headroom)
    }
}

impl SamHeadroom {
    /// Leaves `headroom` bytes of each device to others.
    pub fn new(headroom: u64) -> Self {
        Self { memory: Plain::default(), headroom }
    }

    /// The bytes of the device that are left to others.
    pub fn headroom(&self) -> u64 {
        self.headroom
    }

    /// Says where the block is at home: as much of it on the device as fits beside the headroom.
    fn place(&self, ptr: u64, bytes: usize, device: Result<i32>) {
        if !device::reads_pageable_memory() {
            return;
        }
        let Ok(device) = device else { return };
        let Ok((free, _total)) = device::memory_info(device) else { return };
        let here = free.saturating_sub(self.headroom) / PAGE * PAGE;
        let here = usize::try_from(here).unwrap_or(usize::MAX).min(bytes);
        prefer(ptr, here, Place::Device(device), device);
        prefer(ptr + here as u64, bytes - here, Place::Host, device);
    }
}

impl MemoryResource for SamHeadroom {
    fn kind(&self) -> &'static str {
        SamSource::KIND
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        let ptr = self.memory.allocate(request, stream)?;
        self.place(ptr, request.bytes, device::home_or_current(stream));
        Ok(ptr)
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.memory.deallocate(ptr, request, stream)
    }

    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        let ptr = self.memory.allocate_sync(request)?;
        self.place(ptr, request.bytes, device::current());
        Ok(ptr)
    }

    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        self.memory.deallocate_sync(ptr, request)
    }

    fn device(&self) -> Option<i32> {
        self.memory.device()
    }

    fn properties(&self) -> Properties {
        self.memory.properties()
    }

    fn find(&self, ptr: u64) -> Option<Block> {
        self.memory.find(ptr)
    }

    fn each_block(&self, see: &mut dyn FnMut(Live)) {
        self.memory.each_block(see);
    }

    fn info(&self) -> Info {
        self.memory.info()
    }

    fn trim(&self, keep_bytes: usize) -> Result<usize> {
        self.memory.trim(keep_bytes)
    }

    fn property(&self, name: &str) -> Option<u64> {
        match name {
            "headroom" => Some(self.headroom),
            "hints" => Some(u64::from(device::reads_pageable_memory())),
            _ => None,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
