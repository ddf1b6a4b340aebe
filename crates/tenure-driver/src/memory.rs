//! Memory with an owner: virtual ranges, physical pages, pools of the driver.

use crate::device::Device;
use crate::error::DriverError;
use crate::stream::{RawStream, RelaxedCapture};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sys::*;

type Result<T> = core::result::Result<T, DriverError>;

/// How physical pages or a pool can be shared with other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sharing {
    /// By file descriptor.
    pub fd: bool,
    /// By fabric handle, between nodes of one NVLink domain.
    pub fabric: bool,
    /// Reachable for network cards (pages only).
    pub rdma: bool,
}

impl Sharing {
    fn handle_types(self) -> CUmemAllocationHandleType {
        let fd = if self.fd { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR } else { CU_MEM_HANDLE_TYPE_NONE };
        if self.fabric { fd | CU_MEM_HANDLE_TYPE_FABRIC } else { fd }
    }

    fn prop(self, device: &Device) -> CUmemAllocationProp {
        let mut prop: CUmemAllocationProp = zeroed();
        prop.type_ = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.requestedHandleTypes = self.handle_types();
        prop.location = location(device.ordinal());
        prop.allocFlags.gpuDirectRDMACapable = u8::from(self.rdma);
        prop
    }
}

fn location(ordinal: i32) -> CUmemLocation {
    CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal }
}

fn readable_and_writable(ordinals: &[i32]) -> Vec<CUmemAccessDesc> {
    ordinals
        .iter()
        .map(|&ordinal| CUmemAccessDesc { location: location(ordinal), flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE })
        .collect()
}

/// A range of addresses without memory of its own; given back on drop.
///
/// ```text
///   AddressRange   |  0 ..........  4 MiB ......................  end
///   PhysicalPages      [A 2 MiB][B 2 MiB][A again, an alias]            map, set_access, unmap: whole mappings only
/// ```
///
/// It owns its addresses and does not track what is mapped: a range that is dropped with something mapped stays reserved
/// for the life of the process (the driver refuses to free it), which loses addresses and, while they are mapped, pages.
#[derive(Debug)]
pub struct AddressRange {
    device: &'static Device,
    base: CUdeviceptr,
    bytes: usize,
}

impl AddressRange {
    /// Reserves `bytes` addresses, a multiple of the [granularity](PhysicalPages::granularity), for memory of `device`.
    /// `alignment` is a power of two or 0 for the driver's own.
    ///
    /// # Errors
    /// What the driver says.
    pub fn reserve(device: &'static Device, bytes: usize, alignment: usize) -> Result<Self> {
        let _current = device.enter()?;
        let base = device.driver().address_reserve(bytes, alignment)?;
        Ok(Self { device, base, bytes })
    }

    /// Its first address.
    #[must_use]
    pub fn base(&self) -> CUdeviceptr {
        self.base
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// The address at an offset, if `bytes` bytes fit there.
    fn at(&self, call: &'static str, offset: usize, bytes: usize) -> Result<CUdeviceptr> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes && bytes > 0 => Ok(self.base + offset as u64),
            _ => Err(DriverError::new(call, CUDA_ERROR_INVALID_VALUE)),
        }
    }

    /// Maps pages, whole, at an offset in bytes. They may be mapped elsewhere too: both places show the same bytes.
    ///
    /// # Errors
    /// Code 1 when they do not fit; what the driver says.
    pub fn map(&self, offset: usize, pages: &PhysicalPages) -> Result<()> {
        let address = self.at("cuMemMap", offset, pages.bytes)?;
        let _current = self.device.enter()?;
        // SAFETY: inside the range, which this value owns; borrowed pages exist.
        unsafe { self.device.driver().address_map(address, pages.bytes, pages.handle) }
    }

    /// Lets devices read and write what is mapped from `offset` on, `bytes` bytes, whole mappings.
    ///
    /// # Errors
    /// Code 1 outside the range; what the driver says.
    pub fn set_access(&self, offset: usize, bytes: usize, ordinals: &[i32]) -> Result<()> {
        let address = self.at("cuMemSetAccess", offset, bytes)?;
        let _current = self.device.enter()?;
        // SAFETY: inside the range, which this value owns.
        unsafe { self.device.driver().address_set_access(address, bytes, &readable_and_writable(ordinals)) }
    }

    /// Unmaps whole mappings, several neighbours in one call. Does not wait for the device.
    ///
    /// # Safety
    ///
    /// Neither the host nor work that is queued on the device uses the addresses from now on.
    ///
    /// # Errors
    /// Code 1 outside the range; what the driver says.
    pub unsafe fn unmap(&self, offset: usize, bytes: usize) -> Result<()> {
        let address = self.at("cuMemUnmap", offset, bytes)?;
        let _current = self.device.enter()?;
        // SAFETY: inside the range, which this value owns; unused by this function's contract.
        unsafe { self.device.driver().address_unmap(address, bytes) }
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        // SAFETY: reserved by this value alone. The driver refuses while anything is mapped, so that addresses in use
        // are not given to somebody else.
        let _ = unsafe { self.device.driver().address_free(self.base, self.bytes) };
    }
}

/// Physical memory of a device, a unit of mapping; let go of on drop (the device gets it back when nothing maps it).
#[derive(Debug)]
pub struct PhysicalPages {
    device: &'static Device,
    handle: CUmemGenericAllocationHandle,
    bytes: usize,
    serial: u64,
}

/// The number of the next pages: no two of a process ever have one, unlike the driver's handles.
static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);

impl PhysicalPages {
    fn owned(device: &'static Device, handle: CUmemGenericAllocationHandle, bytes: usize) -> Self {
        Self { device, handle, bytes, serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed) }
    }

    /// The unit, in bytes, of which sizes of pages and of mappings are multiples.
    ///
    /// # Errors
    /// What the driver says.
    pub fn granularity(device: &'static Device, sharing: Sharing) -> Result<usize> {
        let _current = device.enter()?;
        device.driver().allocation_granularity(&sharing.prop(device), false)
    }

    /// Takes `bytes` of the device's memory, a multiple of the [granularity](Self::granularity).
    ///
    /// # Errors
    /// [Out of memory](DriverError::is_out_of_memory); what the driver says.
    pub fn create(device: &'static Device, bytes: usize, sharing: Sharing) -> Result<Self> {
        let _current = device.enter()?;
        let handle = device.driver().pages_create(bytes, &sharing.prop(device))?;
        Ok(Self::owned(device, handle, bytes))
    }

    /// Opens `bytes` of memory that another process shares.
    ///
    /// # Errors
    /// What the driver says.
    pub fn import_fd(device: &'static Device, fd: c_int, bytes: usize) -> Result<Self> {
        let _current = device.enter()?;
        let handle = device.driver().pages_import_fd(fd)?;
        Ok(Self::owned(device, handle, bytes))
    }

    /// Opens `bytes` of memory that another process or node shares.
    ///
    /// # Errors
    /// What the driver says.
    pub fn import_fabric(device: &'static Device, fabric: &CUmemFabricHandle, bytes: usize) -> Result<Self> {
        let _current = device.enter()?;
        let handle = device.driver().pages_import_fabric(fabric)?;
        Ok(Self::owned(device, handle, bytes))
    }

    /// A file descriptor by which another process opens them; the caller closes it.
    ///
    /// # Errors
    /// Code 1 when they were not made for it; what the driver says.
    pub fn export_fd(&self) -> Result<c_int> {
        let _current = self.device.enter()?;
        // SAFETY: this value's handle exists.
        unsafe { self.device.driver().pages_export_fd(self.handle) }
    }

    /// A handle by which a process of another node opens them.
    ///
    /// # Errors
    /// Code 1 when they were not made for it; what the driver says.
    pub fn export_fabric(&self) -> Result<CUmemFabricHandle> {
        let _current = self.device.enter()?;
        // SAFETY: this value's handle exists.
        unsafe { self.device.driver().pages_export_fabric(self.handle) }
    }

    /// A number that no other pages of this process ever have.
    #[must_use]
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Their length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Their device.
    #[must_use]
    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// The driver's handle; alive as long as this value is.
    #[must_use]
    pub fn as_raw(&self) -> CUmemGenericAllocationHandle {
        self.handle
    }
}

impl Drop for PhysicalPages {
    fn drop(&mut self) {
        // SAFETY: owned by this value alone; mappings keep the memory by themselves.
        let _ = unsafe { self.device.driver().pages_release(self.handle) };
    }
}

/// A pool of the driver: owned and destroyed on drop, or somebody else's ([`current`](Self::current),
/// [`default_of`](Self::default_of), [`borrowed`](Self::borrowed)).
#[derive(Debug)]
pub struct DriverPool {
    device: &'static Device,
    raw: CUmemoryPool,
    owned: bool,
}

// SAFETY: an opaque handle that only the driver follows; the driver may be called with it from any thread.
unsafe impl Send for DriverPool {}
// SAFETY: as above.
unsafe impl Sync for DriverPool {}

impl DriverPool {
    /// Makes a pool. `maximum` is in bytes, 0 for the driver's choice.
    ///
    /// # Errors
    /// Code 801 when the device cannot share it so; what the driver says.
    pub fn create(device: &'static Device, maximum: usize, sharing: Sharing) -> Result<Self> {
        let mut props: CUmemPoolProps = zeroed();
        props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        props.handleTypes = sharing.handle_types();
        props.location = location(device.ordinal());
        props.maxSize = maximum;
        let _current = device.enter()?;
        // Outside of it the call ends captures (measured, like the setting of an attribute).
        let _relaxed = RelaxedCapture::enter(device.driver())?;
        let raw = device.driver().pool_create(&props)?;
        Ok(Self { device, raw, owned: true })
    }

    /// The pool that came with the device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn default_of(device: &'static Device) -> Result<Self> {
        let _current = device.enter()?;
        let raw = device.driver().device_default_pool(device.handle())?;
        Ok(Self { device, raw, owned: false })
    }

    /// The pool that is the device's current one now. Whoever set it keeps it alive.
    ///
    /// # Errors
    /// What the driver says.
    pub fn current(device: &'static Device) -> Result<Self> {
        let _current = device.enter()?;
        let raw = device.driver().device_pool(device.handle())?;
        Ok(Self { device, raw, owned: false })
    }

    /// A view of somebody else's pool.
    ///
    /// # Safety
    ///
    /// The pool is of that device and outlives this value.
    #[must_use]
    pub unsafe fn borrowed(device: &'static Device, pool: CUmemoryPool) -> Self {
        Self { device, raw: pool, owned: false }
    }

    /// The driver's handle; alive as long as this value is.
    #[must_use]
    pub fn as_raw(&self) -> CUmemoryPool {
        self.raw
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// Whether it is destroyed with this value.
    #[must_use]
    pub fn is_owned(&self) -> bool {
        self.owned
    }

    /// Allocates in the order of `stream`, which is of the pool's device. Does not end a capture of another stream; on a
    /// capturing stream the allocation becomes a node of the graph.
    ///
    /// # Errors
    /// [Out of memory](DriverError::is_out_of_memory); what the driver says.
    pub fn alloc(&self, bytes: usize, stream: RawStream) -> Result<CUdeviceptr> {
        let driver = self.device.driver();
        let _current = self.device.enter()?;
        let _relaxed = RelaxedCapture::enter(driver)?;
        // SAFETY: this value's pool exists.
        unsafe { driver.mem_alloc_from_pool_async(bytes, self.raw, stream) }
    }

    /// Frees in the order of `stream`.
    ///
    /// # Safety
    ///
    /// All uses of the memory come before this in that order.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn free(&self, address: CUdeviceptr, stream: RawStream) -> Result<()> {
        let driver = self.device.driver();
        let _current = self.device.enter()?;
        let _relaxed = RelaxedCapture::enter(driver)?;
        // SAFETY: by this function's contract.
        unsafe { driver.mem_free_async(address, stream) }
    }

    /// Reads an attribute (`CU_MEMPOOL_ATTR_*` of [`crate::sys`]; sizes in bytes).
    ///
    /// # Errors
    /// Code 1 for an attribute that this library does not know; what the driver says.
    pub fn attribute(&self, attribute: CUmemPool_attribute) -> Result<u64> {
        known_attribute("cuMemPoolGetAttribute", attribute)?;
        // SAFETY: this value's pool exists.
        unsafe { self.device.driver().pool_attribute(self.raw, attribute) }
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// What the driver says.
    pub fn set_attribute(&self, attribute: CUmemPool_attribute, value: u64) -> Result<()> {
        known_attribute("cuMemPoolSetAttribute", attribute)?;
        let _relaxed = RelaxedCapture::enter(self.device.driver())?;
        // SAFETY: this value's pool exists.
        unsafe { self.device.driver().pool_set_attribute(self.raw, attribute, value) }
    }

    /// How many unused bytes the pool keeps when the device or a stream is waited for.
    ///
    /// # Errors
    /// What the driver says.
    pub fn set_release_threshold(&self, bytes: u64) -> Result<()> {
        self.set_attribute(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes)
    }

    /// Gives unused memory back to the device, down to `keep` reserved bytes. Does not end a capture.
    ///
    /// # Errors
    /// What the driver says.
    pub fn trim(&self, keep: usize) -> Result<()> {
        let driver = self.device.driver();
        let _relaxed = RelaxedCapture::enter(driver)?;
        // SAFETY: this value's pool exists.
        unsafe { driver.pool_trim(self.raw, keep) }
    }

    /// Lets other devices use its memory.
    ///
    /// # Errors
    /// What the driver says.
    pub fn set_access(&self, ordinals: &[i32]) -> Result<()> {
        // SAFETY: this value's pool exists.
        unsafe { self.device.driver().pool_set_access(self.raw, &readable_and_writable(ordinals)) }
    }

    /// A file descriptor by which another process opens the pool; the caller closes it.
    ///
    /// # Errors
    /// Code 1 when it was not made for it; what the driver says.
    pub fn export_fd(&self) -> Result<c_int> {
        // SAFETY: this value's pool exists.
        unsafe { self.device.driver().pool_export_fd(self.raw) }
    }
}

/// Refuses what may be larger than the eight bytes that all known attributes fit in.
fn known_attribute(call: &'static str, attribute: CUmemPool_attribute) -> Result<()> {
    if (CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES..=CU_MEMPOOL_ATTR_USED_MEM_HIGH).contains(&attribute) {
        Ok(())
    } else {
        Err(DriverError::new(call, CUDA_ERROR_INVALID_VALUE))
    }
}

impl Drop for DriverPool {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: made by `create`, owned by this value alone.
            let _ = unsafe { self.device.driver().pool_destroy(self.raw) };
        }
    }
}
