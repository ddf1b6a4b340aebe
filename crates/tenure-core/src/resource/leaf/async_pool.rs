//! Stream-ordered memory from a pool of the driver: `cuMemAllocFromPoolAsync` and `cuMemFreeAsync`.
//!
//! [`AsyncPool::new`] makes a pool of its own, so that nobody else's settings are touched, and keeps what it was given
//! (release threshold at the maximum) unless asked. [`AsyncPool::view`] works on a pool that somebody else owns.
//!
//! # Streams
//! The resource belongs to one device and refuses streams of another. The default streams are those of *its* device,
//! whichever is current. A free enters the stream's queue, so it must name a stream that is alive: a raw value out of a
//! buffer's memory is refused, since a call on a destroyed stream is a segmentation fault.
//!
//! # At the end
//! A pool of its own goes back to the driver with the last reference. The driver keeps what is still in use by queued
//! frees until they have run.

use std::any::Any;
use std::os::fd::{FromRawFd, OwnedFd};

use tenure_driver::RawStream;
use tenure_driver::sys::{
    CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, CUDA_ERROR_NOT_SUPPORTED, CUmemLocation,
    CUmemPoolProps, CUmemoryPool, zeroed,
};

use crate::device;
use crate::error::{Error, Result};
use crate::low_memory::Room;
use crate::resource::book::{Book, Booked};
use crate::resource::{Block, Info, Live, MemoryResource, Properties, Request};
use crate::sharing::{Handle, Kinds, Parts, Piece};
use crate::stream::StreamRef;
use crate::sync::atomic::{AtomicU64, Ordering};

/// How the memory of a pool can be given to another process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HandleType {
    /// It cannot.
    #[default]
    None,
    /// As a POSIX file descriptor.
    FileDescriptor,
    /// As a fabric handle, between nodes that share one NVLink domain.
    Fabric,
    /// As either.
    FileDescriptorOrFabric,
}

impl HandleType {
    /// The driver's value (`CUmemAllocationHandleType`).
    pub fn value(self) -> u32 {
        match self {
            Self::None => 0,
            Self::FileDescriptor => 1,
            Self::Fabric => 8,
            Self::FileDescriptorOrFabric => 9,
        }
    }
}

/// How to make an [`AsyncPool`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AsyncOptions {
    /// The device; the current one when left out.
    pub device: Option<i32>,
    /// Bytes that the pool takes at once; none when left out.
    pub initial_pool_size: Option<usize>,
    /// Free bytes above this go back to the device when a stream is waited for; everything is kept when left out.
    pub release_threshold: Option<u64>,
    /// How the memory can be given to another process.
    pub handle_type: HandleType,
    /// The caller states that streams which it gives as raw values outlive every buffer that names them.
    pub stream_outlives_buffer: bool,
}

/// A resource over a pool of the driver.
#[derive(Debug)]
pub struct AsyncPool {
    /// `CUmemoryPool`, as a number.
    pool: u64,
    owned: bool,
    /// Its memory is managed.
    managed: bool,
    device: i32,
    handle_type: HandleType,
    stream_outlives_buffer: bool,
    /// A number that no other pool of the process ever has.
    serial: u64,
    book: Book,
}

static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);

impl AsyncPool {
    /// Makes a pool of the driver for this resource alone.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device has no pools or cannot export memory as asked; an unknown device;
    /// [`Error::OutOfMemory`] when `initial_pool_size` is not to be had. Nothing is left behind.
    pub fn new(options: AsyncOptions) -> Result<Self> {
        let device = match options.device {
            Some(device) => device::check(device)?,
            None => device::current()?,
        };
        device::require_pools(device, "cuda_async")?;
        let exportable = device::driver()?.device(device)?.properties()?.capabilities.pool_handle_types;
        if exportable & options.handle_type.value() != options.handle_type.value() {
            return Err(Error::Unsupported(format!(
                "device {device} makes no pool whose memory can be exported as {:?}; choose another handle type or none: Requested IPC memory handle type not supported",
                options.handle_type
            )));
        }
        let pool = device::on(device, || {
            let mut props: CUmemPoolProps = zeroed();
            props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
            props.handleTypes = options.handle_type.value();
            props.location = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device };
            Ok(device::driver()?.pool_create(&props)? as u64)
        })?;
        // From here on `made` gives the pool back on every way out.
        let made = Self {
            pool,
            owned: true,
            managed: false,
            device,
            handle_type: options.handle_type,
            stream_outlives_buffer: options.stream_outlives_buffer,
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
            book: Book::new(),
        };
        made.set_release_threshold(options.release_threshold.unwrap_or(u64::MAX))?;
        if let Some(bytes) = options.initial_pool_size.filter(|bytes| *bytes > 0) {
            made.fill(bytes)?;
        }
        Ok(made)
    }

    /// Works on a pool that somebody else owns: `pool` is its `CUmemoryPool`.
    ///
    /// # Safety
    /// The pool exists, on this device, until this resource is dropped.
    ///
    /// # Errors
    /// A null handle; an unknown device; what the driver says when it is asked about the pool.
    pub unsafe fn view(device: i32, pool: u64) -> Result<Self> {
        if pool == 0 {
            return Err(Error::invalid("the pool handle is null: pass a CUmemoryPool that is alive"));
        }
        let device = device::check(device)?;
        device::require_pools(device, "cuda_async_view")?;
        let view = Self {
            pool,
            owned: false,
            managed: false,
            device,
            handle_type: HandleType::None,
            stream_outlives_buffer: false,
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
            book: Book::new(),
        };
        view.attribute(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)?;
        Ok(view)
    }

    /// A view of the device's default pool, the one that `cudaMallocAsync` uses.
    ///
    /// # Errors
    /// As [`view`](Self::view).
    pub fn view_of_default(device: i32) -> Result<Self> {
        let device = device::check(device)?;
        device::require_pools(device, "cuda_async_view")?;
        let pool = device::on(device, || Ok(device::driver()?.device_default_pool(device)? as u64))?;
        // SAFETY: a device's default pool is never destroyed.
        unsafe { Self::view(device, pool) }
    }

    /// A view of the device's default pool of managed memory. What it has free stays in it at synchronisations from now on,
    /// for everybody who uses that pool.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the driver (before CUDA 13) or the device (without concurrent access to managed memory)
    /// has no such pool; otherwise as [`view`](Self::view).
    pub fn managed_of_default(device: i32) -> Result<Self> {
        let device = device::check(device)?;
        device::require_pools(device, "cuda_async_managed")?;
        let lacking = |why: &str| {
            Err(Error::Unsupported(format!(
                "device {device} has no pool of managed memory: {why}; use managed memory under tenure's pool"
            )))
        };
        let driver = device::driver()?;
        if !driver.has("cuMemGetDefaultMemPool") {
            return lacking("the driver is older than CUDA 13");
        }
        if !driver.device(device)?.properties()?.capabilities.concurrent_managed {
            return lacking("host and device cannot use managed memory at the same time here");
        }
        let pool = match device::on(device, || Ok(driver.device_default_managed_pool(device)? as u64)) {
            Err(Error::Device(e)) if e.code == CUDA_ERROR_NOT_SUPPORTED => return lacking("the driver says so"),
            pool => pool?,
        };
        // SAFETY: a device's default pool is never destroyed.
        let mut view = unsafe { Self::view(device, pool) }?;
        view.managed = true;
        view.set_release_threshold(u64::MAX)?;
        Ok(view)
    }

    fn raw(&self) -> CUmemoryPool {
        self.pool as CUmemoryPool
    }

    /// The driver's handle of the pool (`CUmemoryPool`).
    pub fn pool_handle(&self) -> u64 {
        self.pool
    }

    /// True when the pool goes with this resource.
    pub fn is_owned(&self) -> bool {
        self.owned
    }

    /// How the memory can be given to another process; `None` also for views, which do not know.
    pub fn handle_type(&self) -> HandleType {
        self.handle_type
    }

    /// The release threshold now, in bytes.
    ///
    /// # Errors
    /// What the driver says.
    pub fn release_threshold(&self) -> Result<u64> {
        self.attribute(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
    }

    /// Sets the release threshold, in bytes.
    ///
    /// # Errors
    /// What the driver says.
    pub fn set_release_threshold(&self, bytes: u64) -> Result<()> {
        device::on(self.device, || {
            // SAFETY: the pool exists while this resource does.
            Ok(unsafe { device::driver()?.pool_set_attribute(self.raw(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes) }?)
        })
    }

    fn attribute(&self, attribute: u32) -> Result<u64> {
        // SAFETY: the pool exists while this resource does.
        device::on(self.device, || Ok(unsafe { device::driver()?.pool_attribute(self.raw(), attribute) }?))
    }

    /// Makes the pool take `bytes` from the device, by an allocation that is freed again, on a stream of its own.
    fn fill(&self, bytes: usize) -> Result<()> {
        let request = Request::checked(bytes, crate::resource::DEFAULT_ALIGNMENT, 0)?;
        device::on(self.device, || {
            let driver = device::driver()?;
            let stream = driver.stream_create_on(self.device, true)?;
            // SAFETY: the pool exists while this resource does.
            let filled = unsafe { driver.mem_alloc_from_pool_async(bytes, self.raw(), stream) }.and_then(|ptr| {
                // SAFETY: made just now and unused. The second call is made only when the first did nothing.
                let free = || unsafe { driver.mem_free_async(ptr, stream) };
                // Once more: a block that stays in use keeps the memory of a pool that is given up.
                if let Err(e) = free() {
                    let _ = free();
                    return Err(e);
                }
                driver.stream_synchronize(stream)
            });
            // SAFETY: made above and known to nobody else.
            let ended = unsafe { driver.stream_destroy(stream) };
            match filled {
                Err(e) if e.is_out_of_memory() => {
                    Err(device::out_of_memory(&request, self.kind(), &Info::default(), self.device))
                }
                Err(e) => Err(e.into()),
                Ok(()) => Ok(ended?),
            }
        })
    }

    /// Refuses what cannot be put into a stream's queue.
    fn admit<'a>(&self, stream: StreamRef<'a>, verb: &str) -> Result<StreamRef<'a>> {
        if !stream.is_live() && !self.stream_outlives_buffer {
            return Err(Error::invalid(format!(
                "{} memory is {verb} in a stream's queue, and the stream of this buffer is a raw value that may be \
                 dead: pass a stream object, close the buffer with a live stream, or state stream_outlives_buffer",
                self.kind()
            )));
        }
        // Stated to be alive, if it was stored.
        let stream = StreamRef { stored: false, ..stream };
        match device::home_of(stream, self.device)? {
            Some(home) if home != self.device => Err(Error::invalid(format!(
                "the stream belongs to device {home} and this {} resource to device {}: use a stream of device {}",
                self.kind(),
                self.device,
                self.device
            ))),
            _ => Ok(stream),
        }
    }

    fn free(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        let booked = self.book.take(ptr, request).map_err(Error::Misuse)?;
        let freed = device::on_stream(stream, self.device, self.kind(), || {
            // SAFETY: the book had this block and has given it to this call alone; its users come before, in this order.
            Ok(unsafe { device::driver()?.mem_free_async(booked.base, stream.raw) }?)
        });
        // A device that is lost for good has lost its memory as a whole: the block is as gone as it can be.
        match device::settled(freed) {
            Err(e) => {
                self.book.put_back(ptr, booked);
                Err(e)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Takes memory, with room to align where the driver does not align enough. Returns address and driver's address.
    fn make(&self, request: &Request, raw: RawStream) -> Result<(u64, u64)> {
        let driver = device::driver()?;
        let align = request.align as u64;
        // SAFETY: the pool exists while this resource does.
        let make = |bytes| unsafe { driver.mem_alloc_from_pool_async(bytes, self.raw(), raw) };
        let base = make(request.bytes)?;
        if base.is_multiple_of(align) {
            return Ok((base, base));
        }
        // SAFETY: made above, and nobody has seen it.
        if let Err(e) = unsafe { driver.mem_free_async(base, raw) } {
            log::warn!("tenure: {} bytes of the pool {:#x} stay in use until it ends: {e}", request.bytes, self.pool);
        }
        let base = make(request.bytes + request.align)?;
        Ok((base.next_multiple_of(align), base))
    }
}

impl Drop for AsyncPool {
    fn drop(&mut self) {
        if !self.owned || tenure_driver::process::unusable() {
            return;
        }
        // SAFETY: made by this resource, whose last call this is. Every block holds a reference to the resource, so that
        // all have been freed; what the frees have queued is the driver's to wait for.
        let ended = device::on(self.device, || Ok(unsafe { device::driver()?.pool_destroy(self.raw()) }?));
        if let Err(e) = ended {
            log::warn!("tenure: the driver keeps the pool {:#x} of a dropped resource: {e}", self.pool);
        }
    }
}

impl MemoryResource for AsyncPool {
    fn kind(&self) -> &'static str {
        match (self.owned, self.managed) {
            (true, _) => "cuda_async",
            (false, false) => "cuda_async_view",
            (false, true) => "cuda_async_managed",
        }
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        let stream = self.admit(stream, "allocated")?;
        let attempt = || device::on_stream(stream, self.device, self.kind(), || self.make(request, stream.raw));
        let mut room = Room::new(self, request, self.device);
        let mut made = attempt();
        while made.as_ref().is_err_and(Error::is_out_of_memory) && room.make() {
            made = attempt();
        }
        let (ptr, base) = made.map_err(|e| {
            if e.is_out_of_memory() {
                room.explain(device::out_of_memory(request, self.kind(), &self.info(), self.device))
            } else {
                e
            }
        })?;
        if let Some(stale) = self.book.insert(ptr, Booked::new(request, self.device, self.device, base).on(stream)) {
            log::warn!(
                "tenure: {} block {ptr:#x} ({} bytes) was freed behind tenure's back, since the driver hands its \
                 address out again; free it through the resource that made it",
                self.kind(),
                stale.bytes
            );
        }
        Ok(ptr)
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        if tenure_driver::process::unusable() {
            return Ok(());
        }
        self.book.check(ptr, request).map_err(Error::Misuse)?;
        let named = match self.admit(stream, "freed") {
            // Nothing will name it: the device is lost.
            Err(Error::Device(e)) if e.is_sticky() || e.is_context_gone() => stream,
            named => named?,
        };
        if request.flags & Request::UNPROVEN != 0 {
            device::settled(device::prove(self.device))?;
        }
        self.free(ptr, request, named)
    }

    fn device(&self) -> Option<i32> {
        Some(self.device)
    }

    fn needs_live_stream(&self) -> bool {
        !self.stream_outlives_buffer
    }

    fn properties(&self) -> Properties {
        Properties {
            device_accessible: true,
            host_accessible: self.managed,
            managed: self.managed,
            stream_ordered: true,
            exportable: self.handle_type != HandleType::None,
        }
    }

    fn exports(&self) -> u32 {
        self.handle_type.value()
    }

    fn share(&self, ptr: u64, _bytes: usize, wanted: Kinds) -> Result<Option<Parts>> {
        if self.book.find(ptr).is_none() {
            return Ok(None);
        }
        let Some(kind) = Kinds(self.handle_type.value()).and(wanted).first() else { return Ok(None) };
        let (base, bytes, pointer, handle) = device::on(self.device, || {
            let driver = device::driver()?;
            let (base, bytes) = driver.address_range(ptr)?;
            let handle = if kind == Kinds::FD {
                // SAFETY: the pool exists while this resource does; the descriptor is new and nobody else's.
                Handle::Fd(unsafe { OwnedFd::from_raw_fd(driver.pool_export_fd(self.raw())?) })
            } else {
                // SAFETY: as above.
                Handle::Fabric(unsafe { driver.pool_export_fabric(self.raw()) }?.data)
            };
            Ok((base, bytes, driver.pool_export_pointer(base)?.reserved, handle))
        })?;
        let piece = Piece { bytes: bytes as u64, serial: self.serial, handle };
        Ok(Some(Parts { offset: ptr - base, pieces: vec![piece], pointer: Some(pointer) }))
    }

    fn find(&self, ptr: u64) -> Option<Block> {
        self.book.find(ptr)
    }

    fn each_block(&self, see: &mut dyn FnMut(Live)) {
        self.book.each_block(see);
    }

    /// Live figures are the book's. What is reserved is the driver's word (for a view that includes what others took
    /// from the pool); where the driver does not answer it is what is live.
    fn info(&self) -> Info {
        let mut info = self.book.info();
        if tenure_driver::process::unusable() {
            return info;
        }
        if let Ok(reserved) = self.attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) {
            info.reserved_bytes = reserved.max(info.live_bytes);
            info.cached_bytes = reserved.saturating_sub(info.live_bytes);
        }
        if let Ok(high) = self.attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) {
            info.peak_reserved_bytes = high.max(info.peak_reserved_bytes);
        }
        info
    }

    fn trim(&self, keep_bytes: usize) -> Result<usize> {
        let before = self.attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        // SAFETY: the pool exists while this resource does.
        device::on(self.device, || Ok(unsafe { device::driver()?.pool_trim(self.raw(), keep_bytes) }?))?;
        let after = self.attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        Ok(before.saturating_sub(after) as usize)
    }

    fn property(&self, name: &str) -> Option<u64> {
        match name {
            "pool_handle" => Some(self.pool),
            "release_threshold" => self.release_threshold().ok(),
            "handle_type" => Some(u64::from(self.handle_type.value())),
            _ => None,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
