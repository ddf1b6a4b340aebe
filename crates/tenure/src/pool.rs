//! The resources that tenure brings along.
//!
//! The plain ones ([`cuda`], [`managed`], [`pinned`], [`system`]) exist once per process and are equal to each other. The
//! others have state and belong to one device: [`Pool`], [`AsyncPool`], and the adaptors [`Limiting`] and [`Statistics`];
//! those that sort requests by size are in `bins`.
//! Each of them is a [`Resource`] (by `Deref`) with a few accessors of its own, and any resource can be asked whether it is
//! one (`Pool::try_from(resource)`), whichever language made it.
//!
//! Unsafe in this file: calls through the table.

use std::ops::Deref;

use tenure_abi::*;

use crate::api;
use crate::device::Device;
use crate::error::{Error, Result, check};
use crate::resource::Resource;

/// The plain device resource: one driver call for each allocation, on the device of the stream of each call.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn cuda() -> Result<Resource> {
    // SAFETY: the pointer is valid for writing.
    Resource::made(|api, out| unsafe { (api.cuda_resource)(out) })
}

/// Managed memory.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn managed() -> Result<Resource> {
    // SAFETY: the pointer is valid for writing.
    Resource::made(|api, out| unsafe { (api.managed_resource)(out) })
}

/// Pinned memory of the host.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn pinned() -> Result<Resource> {
    // SAFETY: the pointer is valid for writing.
    Resource::made(|api, out| unsafe { (api.pinned_resource)(out) })
}

/// Memory of the system's allocator.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn system() -> Result<Resource> {
    // SAFETY: the pointer is valid for writing.
    Resource::made(|api, out| unsafe { (api.system_resource)(out) })
}

/// Declares a resource of one kind: a newtype that derefs to [`Resource`] and that can be asked for. Where it is used, its
/// words are in scope: `Deref`, and the crate's `Error`, `Resource` and `Result`.
macro_rules! kind {
    ($(#[$doc:meta])* $name:ident, $($kind:literal)|+) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct $name(Resource);

        impl $name {
            /// The resource itself.
            pub fn resource(&self) -> &Resource {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = Resource;

            fn deref(&self) -> &Resource {
                &self.0
            }
        }

        impl From<$name> for Resource {
            fn from(value: $name) -> Self {
                value.0
            }
        }

        impl TryFrom<Resource> for $name {
            type Error = Error;

            /// # Errors
            /// [`Error::Invalid`] when it is a resource of another kind.
            fn try_from(resource: Resource) -> Result<Self> {
                let kind = resource.kind();
                if matches!(kind.as_str(), $($kind)|+) {
                    return Ok(Self(resource));
                }
                Err(Error::Invalid(format!(concat!("this is a {:?} resource and not a ", stringify!($name)), kind)))
            }
        }
    };
}

pub(crate) use kind;

kind! {
    /// A pool: takes memory in large pieces and hands it out without asking the driver.
    ///
    /// # Examples
    /// ```
    /// use tenure::{Device, DeviceBuffer, Pool, Stream};
    ///
    /// let (device, stream) = (Device::current()?, Stream::create()?);
    /// let pool = Pool::builder(&device).initial_size(1 << 20).maximum_size(64 << 20).build()?;
    /// let buffer = DeviceBuffer::new_in(1000, &stream, &pool)?;
    /// assert_eq!(pool.info()?.live_count, 1);
    /// # drop(buffer);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    Pool, "pool"
}

kind! {
    /// A stream-ordered resource over a pool of the driver's.
    AsyncPool, "cuda_async" | "cuda_async_view" | "cuda_async_managed"
}

kind! {
    /// Refuses what would take more than a limit from its upstream at once.
    Limiting, "limiting"
}

kind! {
    /// Counts what goes through.
    Statistics, "statistics"
}

/// How a [`Pool`] is made. All sizes are bytes.
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing until build is called"]
pub struct PoolBuilder {
    upstream: Option<Resource>,
    options: tenure_pool_options,
}

impl Pool {
    /// Whether it maps address ranges of its own. If not (the device cannot, or the upstream is not the plain resource), it
    /// takes chunks through its upstream.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn own_ranges(&self) -> Result<bool> {
        Ok(self.property("own_ranges")? != 0)
    }

    /// A pool on `device`, over the plain device resource unless another upstream is given.
    pub fn builder(device: &Device) -> PoolBuilder {
        PoolBuilder {
            upstream: None,
            options: tenure_pool_options {
                size: size_of::<tenure_pool_options>(),
                device: device.ordinal(),
                ..Default::default()
            },
        }
    }

    /// Bytes of the pool that belong to captured graphs.
    ///
    /// # Errors
    /// What the library says of the handle.
    pub fn graph_bytes(&self) -> Result<u64> {
        self.property("graph_bytes")
    }
}

impl PoolBuilder {
    /// What the pool takes its memory from; it is kept alive by the pool.
    pub fn upstream(mut self, upstream: &Resource) -> Self {
        self.upstream = Some(upstream.clone());
        self
    }

    /// Bytes taken at construction, at once or an error. Without it, nothing: the pool grows by need.
    pub fn initial_size(mut self, bytes: u64) -> Self {
        self.options.initial_bytes = bytes;
        self
    }

    /// A hard limit, in bytes, that can be reached. Without it, what the device has.
    pub fn maximum_size(mut self, bytes: u64) -> Self {
        self.options.maximum_bytes = bytes;
        self
    }

    /// Idle bytes that [`Resource::trim`] keeps at least. Without it, none.
    pub fn release_threshold(mut self, bytes: u64) -> Self {
        self.options.release_threshold = bytes;
        self
    }

    /// Takes plain chunks from the upstream even where the pool could map address ranges of its own.
    pub fn plain_chunks(mut self, yes: bool) -> Self {
        self.options.plain_chunks = u32::from(yes);
        self
    }

    /// Promises that no stream which is passed to the pool is ever capturing a graph: one driver call less for each
    /// allocation.
    ///
    /// # Safety
    /// It must be so: memory of a capture would be handed to other work while the graph still uses it.
    pub unsafe fn assume_no_capture(mut self) -> Self {
        self.options.assume_no_capture = 1;
        self
    }

    /// Rather make one stream wait for another than grow.
    pub fn prefer_footprint(mut self, yes: bool) -> Self {
        self.options.prefer_footprint = u32::from(yes);
        self
    }

    /// Whether idle pages may be mapped a second time, side by side, where a larger range is needed: they may unless this
    /// says no. For users whose network cards keep what they know of an address.
    pub fn remap(mut self, yes: bool) -> Self {
        self.options.no_remap = u32::from(!yes);
        self
    }

    /// Whether a thread of the library grows the pool after it had to grow, so that nobody waits for the next growth.
    pub fn grow_ahead(mut self, yes: bool) -> Self {
        self.options.grow_ahead = u32::from(yes);
        self
    }

    /// Gives pages back by themselves that have been idle for so long, in whole milliseconds. Without it, or with no time,
    /// never.
    pub fn decay(mut self, after: std::time::Duration) -> Self {
        self.options.decay_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// The unit of growth, and the largest piece that is mapped or given back as a whole: a power of two of 2 MiB to 1 GiB.
    /// Without it, what suits the size of the pool.
    pub fn chunk_size(mut self, bytes: u64) -> Self {
        self.options.chunk_bytes = bytes;
        self
    }

    /// How other processes can be given the memory ([`DeviceBuffer::share`](crate::DeviceBuffer::share)). With
    /// [`plain_chunks`](Self::plain_chunks) memory goes by legacy handles instead, and nothing is to be chosen.
    pub fn exportable(mut self, as_handle: HandleType) -> Self {
        self.options.export_handle_type = as_handle.bits();
        self
    }

    /// Lets kernels and copies of another device use the memory, for which the driver's switch for all memory
    /// (`cudaDeviceEnablePeerAccess`) says nothing. May be called for several.
    pub fn peer(mut self, device: &Device) -> Self {
        // A pool of 64 devices and more would want another kind of list; no machine has them.
        self.options.peers |= u32::try_from(device.ordinal()).ok().and_then(|at| 1u64.checked_shl(at)).unwrap_or(0);
        self
    }

    /// Whether network cards can be given the memory (GPUDirect RDMA).
    pub fn rdma(mut self, yes: bool) -> Self {
        self.options.rdma = u32::from(yes);
        self
    }

    /// Makes the pool.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a handle type, a peer or network cards that the device does not have; [`Error::Invalid`] for sizes that contradict each
    /// other, out of memory for the initial size.
    pub fn build(self) -> Result<Pool> {
        let upstream = match self.upstream {
            Some(upstream) => upstream,
            None => cuda()?,
        };
        // SAFETY: the options are alive during the call; the pointer is valid for writing.
        Resource::made(|api, out| unsafe { (api.pool_create)(upstream.as_raw(), &self.options, out) }).map(Pool)
    }
}

/// Which handles a [`Pool`] or an [`AsyncPool`] can give to another process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandleType {
    /// None.
    #[default]
    None,
    /// A file descriptor.
    FileDescriptor,
    /// A fabric handle.
    Fabric,
    /// Either.
    FileDescriptorOrFabric,
}

impl HandleType {
    fn bits(self) -> u32 {
        match self {
            Self::None => 0,
            Self::FileDescriptor => TENURE_HANDLE_FD,
            Self::Fabric => TENURE_HANDLE_FABRIC,
            Self::FileDescriptorOrFabric => TENURE_HANDLE_FD | TENURE_HANDLE_FABRIC,
        }
    }
}

/// How an [`AsyncPool`] is made. All sizes are bytes.
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing until build is called"]
pub struct AsyncPoolBuilder {
    options: tenure_async_options,
}

impl AsyncPool {
    /// A pool of the driver's on `device`.
    pub fn builder(device: &Device) -> AsyncPoolBuilder {
        AsyncPoolBuilder {
            options: tenure_async_options {
                size: size_of::<tenure_async_options>(),
                device: device.ordinal(),
                ..Default::default()
            },
        }
    }

    /// A resource over somebody else's pool (`CUmemoryPool`) on `device`.
    ///
    /// # Safety
    /// `pool` must be a memory pool of the driver's, and must outlive the resource.
    ///
    /// # Errors
    /// What the driver says of the value.
    pub unsafe fn view(pool: *mut std::ffi::c_void, device: &Device) -> Result<Self> {
        // SAFETY: the caller promises the pool; the pointer is valid for writing.
        Resource::made(|api, out| unsafe { (api.async_view_create)(pool, device.ordinal(), out) }).map(Self)
    }
}

impl AsyncPool {
    /// Managed memory, from the default pool of managed memory of `device`, which keeps what is free from now on.
    ///
    /// # Errors
    /// [`Error::Unsupported`] before CUDA 13 and on devices that do not use managed memory together with the host.
    pub fn managed(device: &Device) -> Result<Self> {
        // SAFETY: the pointer is valid for writing.
        Resource::made(|api, out| unsafe { (api.async_managed_create)(device.ordinal(), out) }).map(Self)
    }

    /// The driver's pool (`CUmemoryPool`).
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn pool_handle(&self) -> Result<*mut std::ffi::c_void> {
        Ok(self.property("pool_handle")? as *mut std::ffi::c_void)
    }
}

impl AsyncPoolBuilder {
    /// Bytes taken at construction. Without it, nothing.
    pub fn initial_size(mut self, bytes: u64) -> Self {
        self.options.initial_bytes = bytes;
        self
    }

    /// Bytes that the driver keeps at a synchronisation. Without it, everything.
    pub fn release_threshold(mut self, bytes: u64) -> Self {
        self.options.release_threshold = bytes;
        self.options.has_release_threshold = 1;
        self
    }

    /// Makes memory that can be given to another process.
    pub fn exportable(mut self, as_handle: HandleType) -> Self {
        self.options.handle_type = as_handle.bits();
        self
    }

    /// States that streams which are given as raw values outlive every buffer that names them. Without it such buffers are
    /// refused, since the free must name their stream.
    ///
    /// # Safety
    /// It must be so: a free on a stream that is gone is undefined behaviour of the driver.
    pub unsafe fn stream_outlives_buffer(mut self) -> Self {
        self.options.stream_outlives_buffer = 1;
        self
    }

    /// Makes the resource.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on a device without memory pools; what the driver says.
    pub fn build(self) -> Result<AsyncPool> {
        // SAFETY: the options are alive during the call; the pointer is valid for writing.
        Resource::made(|api, out| unsafe { (api.async_resource_create)(&self.options, out) }).map(AsyncPool)
    }
}

impl Limiting {
    /// Refuses what would take more than `limit` bytes from `upstream` at once.
    ///
    /// # Errors
    /// [`Error::Load`] without a library.
    pub fn new(upstream: &Resource, limit: u64) -> Result<Self> {
        // SAFETY: the pointer is valid for writing.
        Resource::made(|api, out| unsafe { (api.limiting_create)(upstream.as_raw(), limit, out) }).map(Self)
    }

    /// The limit in bytes.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn limit(&self) -> Result<u64> {
        self.property("allocation_limit")
    }
}

/// Counters of a [`Statistics`] adaptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Bytes alive. Negative where more was freed than allocated since the counters began.
    pub current_bytes: i64,
    /// Blocks alive.
    pub current_count: i64,
    /// The highest `current_bytes`.
    pub peak_bytes: i64,
    /// The highest `current_count`.
    pub peak_count: i64,
    /// All bytes ever allocated.
    pub total_bytes: i64,
    /// All blocks ever allocated.
    pub total_count: i64,
}

impl Statistics {
    /// Counts what goes through to `upstream`.
    ///
    /// # Errors
    /// [`Error::Load`] without a library.
    pub fn new(upstream: &Resource) -> Result<Self> {
        // SAFETY: the pointer is valid for writing.
        Resource::made(|api, out| unsafe { (api.statistics_create)(upstream.as_raw(), out) }).map(Self)
    }

    /// The counters now.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn counters(&self) -> Result<Counters> {
        self.ask(|api| api.statistics_get)
    }

    /// Starts a nested set of counters; returns the enclosing ones as they are.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn push(&self) -> Result<Counters> {
        self.ask(|api| api.statistics_push)
    }

    /// Ends the nested set and returns it; the enclosing counters take it in.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no nested set.
    pub fn pop(&self) -> Result<Counters> {
        self.ask(|api| api.statistics_pop)
    }
}

type CountersFn = unsafe extern "C" fn(tenure_resource, *mut tenure_statistics) -> tenure_status;

impl Statistics {
    fn ask(&self, which: impl FnOnce(&tenure_api) -> CountersFn) -> Result<Counters> {
        let api = api()?;
        let mut out = tenure_statistics { size: size_of::<tenure_statistics>(), ..Default::default() };
        // SAFETY: the pointer is valid for writing `size` bytes.
        check(api, unsafe { which(api)(self.as_raw(), &mut out) })?;
        Ok(out.into())
    }
}

impl From<tenure_statistics> for Counters {
    fn from(raw: tenure_statistics) -> Self {
        Self {
            current_bytes: raw.current_bytes,
            current_count: raw.current_count,
            peak_bytes: raw.peak_bytes,
            peak_count: raw.peak_count,
            total_bytes: raw.total_bytes,
            total_count: raw.total_count,
        }
    }
}
