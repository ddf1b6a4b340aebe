//! Resources that sort requests by size ([`FixedSize`], [`Binning`]), and the [`Arena`].
//!
//! Unsafe in this file: calls through the table.

use std::ops::Deref;

use tenure_abi::*;

use crate::api;
use crate::device::Device;
use crate::error::{Error, Result, check};
use crate::pool::{cuda, kind};
use crate::resource::Resource;

kind! {
    /// Blocks of one size. A request that is larger than a block is [`Error::Invalid`].
    ///
    /// # Examples
    /// ```
    /// use tenure::{Device, DeviceBuffer, FixedSize, Stream};
    ///
    /// let (device, stream) = (Device::current()?, Stream::create()?);
    /// let blocks = FixedSize::builder(&device).block_size(64 << 10).blocks_to_preallocate(16).build()?;
    /// let buffer = DeviceBuffer::new_in(1000, &stream, &blocks)?;
    /// assert_eq!(blocks.info()?.live_bytes, 64 << 10);
    /// assert!(DeviceBuffer::new_in((64 << 10) + 1, &stream, &blocks).is_err());
    /// # drop(buffer);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    FixedSize, "fixed_size"
}

kind! {
    /// Sends each request to the smallest bin that is large enough, and what no bin takes to its upstream.
    ///
    /// # Examples
    /// ```
    /// use tenure::{Binning, Device, DeviceBuffer, Stream};
    ///
    /// let (device, stream) = (Device::current()?, Stream::create()?);
    /// let bins = Binning::builder(&device).exponents(18, 20).build()?;
    /// let buffer = DeviceBuffer::new_in(300_000, &stream, &bins)?;
    /// bins.add_bin(4 << 20, None)?;
    /// let sizes: Vec<u64> = bins.bins()?.into_iter().map(|(size, _)| size).collect();
    /// assert_eq!(sizes, [256 << 10, 512 << 10, 1 << 20, 4 << 20]);
    /// # drop(buffer);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    Binning, "binning"
}

kind! {
    /// Memory of one size, taken at once, that many threads and streams share.
    ///
    /// # Examples
    /// ```
    /// use tenure::{Arena, Device, DeviceBuffer, Error, Stream};
    ///
    /// let (device, stream) = (Device::current()?, Stream::create()?);
    /// let arena = Arena::builder(&device).arena_size(8 << 20).build()?;
    /// let buffer = DeviceBuffer::new_in(8 << 20, &stream, &arena)?;
    /// assert!(matches!(DeviceBuffer::new_in(1, &stream, &arena), Err(Error::OutOfMemory(_))));
    /// # drop(buffer);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    Arena, "arena"
}

/// How a [`FixedSize`] is made. All sizes are bytes.
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing until build is called"]
pub struct FixedSizeBuilder {
    upstream: Option<Resource>,
    options: tenure_fixed_size_options,
}

impl FixedSize {
    /// 128 blocks of 1 MiB on `device`, over the plain device resource, unless something else is said.
    pub fn builder(device: &Device) -> FixedSizeBuilder {
        FixedSizeBuilder {
            upstream: None,
            options: tenure_fixed_size_options {
                size: size_of::<tenure_fixed_size_options>(),
                block_size: 1 << 20,
                blocks_to_preallocate: 128,
                device: device.ordinal(),
                ..Default::default()
            },
        }
    }

    /// The size of every block, in bytes.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn block_size(&self) -> Result<u64> {
        self.property("block_size")
    }
}

impl FixedSizeBuilder {
    /// What the blocks are taken from; it is kept alive by the resource.
    pub fn upstream(mut self, upstream: &Resource) -> Self {
        self.upstream = Some(upstream.clone());
        self
    }

    /// Bytes of each block, rounded up to a multiple of 256.
    pub fn block_size(mut self, bytes: u64) -> Self {
        self.options.block_size = bytes;
        self
    }

    /// How many blocks are taken at construction, at once or an error, and as many at a time later. 0: none at first, and
    /// one after the other.
    pub fn blocks_to_preallocate(mut self, blocks: u64) -> Self {
        self.options.blocks_to_preallocate = blocks;
        self
    }

    /// Makes the resource.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size that makes no sense, out of memory for the first blocks.
    pub fn build(self) -> Result<FixedSize> {
        if self.options.block_size == 0 {
            // In the C structure a zero stands for the default.
            return Err(Error::Invalid(
                "block_size is 0: give the bytes of a block; the usual size is 1048576".to_owned(),
            ));
        }
        let upstream = or_cuda(self.upstream)?;
        // SAFETY: the options are alive during the call; the pointer is valid for writing.
        Resource::made(|api, out| unsafe { (api.fixed_size_create)(upstream.as_raw(), &self.options, out) })?.try_into()
    }
}

/// How a [`Binning`] is made.
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing until build is called"]
pub struct BinningBuilder {
    upstream: Option<Resource>,
    options: tenure_binning_options,
}

impl Binning {
    /// Without bins at first, on `device`, over the plain device resource, unless something else is said.
    pub fn builder(device: &Device) -> BinningBuilder {
        BinningBuilder {
            upstream: None,
            options: tenure_binning_options {
                size: size_of::<tenure_binning_options>(),
                device: device.ordinal(),
                ..Default::default()
            },
        }
    }

    /// Adds a bin for requests of up to `allocation_size` bytes (rounded up to a multiple of 256), at any time. Without a
    /// resource it is a [`FixedSize`] with blocks of that size over the upstream, which takes nothing before its first
    /// use. A size that has a bin keeps it where no resource is given; with one, the new bin serves the size from now on.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size that makes no sense, and a resource that cannot serve as one: its
    /// blocks are too small, it is on another device, or it takes its memory from this one.
    pub fn add_bin(&self, allocation_size: u64, resource: Option<&Resource>) -> Result<()> {
        let api = api()?;
        let bin = resource.map_or(TENURE_RESOURCE_NULL, Resource::as_raw);
        // SAFETY: both are references that are alive during the call.
        check(api, unsafe { (api.binning_add_bin)(self.as_raw(), allocation_size, bin) })
    }

    /// The bins, the smallest first: the size up to which each serves, in bytes, and its resource.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn bins(&self) -> Result<Vec<(u64, Resource)>> {
        let api = api()?;
        let mut bins = Vec::new();
        loop {
            let (mut size, mut handle) = (0, TENURE_RESOURCE_NULL);
            // SAFETY: the reference is alive during the call; the pointers are valid for writing.
            check(api, unsafe { (api.binning_bin)(self.as_raw(), bins.len() as u32, &mut size, &mut handle) })?;
            let Some(bin) = Resource::owned_or_none(api, handle) else { return Ok(bins) };
            bins.push((size, bin));
        }
    }
}

impl BinningBuilder {
    /// What the bins, and requests that no bin takes, get their memory from; it is kept alive by the resource.
    pub fn upstream(mut self, upstream: &Resource) -> Self {
        self.upstream = Some(upstream.clone());
        self
    }

    /// A bin of 2^n bytes for each n from `min` to `max`.
    pub fn exponents(mut self, min: i32, max: i32) -> Self {
        self.options.has_exponents = 1;
        (self.options.min_size_exponent, self.options.max_size_exponent) = (min, max);
        self
    }

    /// Makes the resource.
    ///
    /// # Errors
    /// [`Error::Invalid`] for exponents that make no sense.
    pub fn build(self) -> Result<Binning> {
        let upstream = or_cuda(self.upstream)?;
        // SAFETY: the options are alive during the call; the pointer is valid for writing.
        Resource::made(|api, out| unsafe { (api.binning_create)(upstream.as_raw(), &self.options, out) })?.try_into()
    }
}

/// How an [`Arena`] is made.
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing until build is called"]
pub struct ArenaBuilder {
    upstream: Option<Resource>,
    options: tenure_arena_options,
    no_size: bool,
}

impl Arena {
    /// Half of what is free on `device`, over the plain device resource, unless something else is said.
    pub fn builder(device: &Device) -> ArenaBuilder {
        ArenaBuilder {
            upstream: None,
            options: tenure_arena_options {
                size: size_of::<tenure_arena_options>(),
                device: device.ordinal(),
                ..Default::default()
            },
            no_size: false,
        }
    }

    /// The size of the arena, in bytes.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn arena_size(&self) -> Result<u64> {
        self.property("arena_size")
    }
}

impl ArenaBuilder {
    /// What the arena is taken from; it is kept alive by the arena.
    pub fn upstream(mut self, upstream: &Resource) -> Self {
        self.upstream = Some(upstream.clone());
        self
    }

    /// Bytes of the arena, taken at construction, at once or an error.
    pub fn arena_size(mut self, bytes: u64) -> Self {
        self.options.arena_size = bytes;
        self.no_size = bytes == 0;
        self
    }

    /// Leaves the state of the arena in `tenure_arena_memory_dump.log` in the working directory whenever a request cannot
    /// be served.
    pub fn dump_log_on_failure(mut self, yes: bool) -> Self {
        self.options.dump_log_on_failure = u32::from(yes);
        self
    }

    /// Makes the arena.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size that makes no sense, out of memory.
    pub fn build(self) -> Result<Arena> {
        if self.no_size {
            // In the C structure a zero stands for the default.
            return Err(Error::Invalid(
                "arena_size is 0: leave it out for half of the free memory, or raise it".to_owned(),
            ));
        }
        let upstream = or_cuda(self.upstream)?;
        // SAFETY: the options are alive during the call; the pointer is valid for writing.
        Resource::made(|api, out| unsafe { (api.arena_create)(upstream.as_raw(), &self.options, out) })?.try_into()
    }
}

fn or_cuda(upstream: Option<Resource>) -> Result<Resource> {
    upstream.map_or_else(cuda, Ok)
}
