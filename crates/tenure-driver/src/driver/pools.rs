//! Stream-ordered memory and the driver's own pools. [`crate::DriverPool`] owns a pool.

use super::{Driver, Result, call};
use crate::stream::RawStream;
use crate::sys::*;

impl Driver {
    /// Allocates from the current pool of the stream's device, in the order of the stream.
    ///
    /// # Errors
    /// [Out of memory](crate::DriverError::is_out_of_memory); what the driver says.
    pub fn mem_alloc_async(&self, bytes: usize, stream: RawStream) -> Result<CUdeviceptr> {
        let mut address = 0;
        // SAFETY: the driver writes one address; the stream is live by `RawStream`'s promise.
        unsafe { call!(self, cuMemAllocAsync(&mut address, bytes, stream.as_raw())) }?;
        Ok(address)
    }

    /// Frees stream-ordered memory, in the order of a stream.
    ///
    /// # Safety
    ///
    /// All uses of the memory come before this in that order.
    ///
    /// # Errors
    /// Code 1 for an address that is no such allocation; what the driver says.
    pub unsafe fn mem_free_async(&self, address: CUdeviceptr, stream: RawStream) -> Result<()> {
        // SAFETY: by this function's contract; the stream is live by `RawStream`'s promise.
        unsafe { call!(self, cuMemFreeAsync(address, stream.as_raw())) }
    }

    /// Allocates from a pool, in the order of a stream.
    ///
    /// # Safety
    ///
    /// The pool exists.
    ///
    /// # Errors
    /// [Out of memory](crate::DriverError::is_out_of_memory); what the driver says.
    pub unsafe fn mem_alloc_from_pool_async(
        &self,
        bytes: usize,
        pool: CUmemoryPool,
        stream: RawStream,
    ) -> Result<CUdeviceptr> {
        let mut address = 0;
        // SAFETY: the driver writes one address; the pool exists by this function's contract, the stream by
        // `RawStream`'s promise.
        unsafe { call!(self, cuMemAllocFromPoolAsync(&mut address, bytes, pool, stream.as_raw())) }?;
        Ok(address)
    }

    /// Makes a pool.
    ///
    /// # Errors
    /// What the driver says, such as code 801 for a handle type that the device cannot export.
    pub fn pool_create(&self, props: &CUmemPoolProps) -> Result<CUmemoryPool> {
        let mut pool = core::ptr::null_mut();
        // SAFETY: the driver writes one handle and reads the structure.
        unsafe { call!(self, cuMemPoolCreate(&mut pool, props)) }?;
        Ok(pool)
    }

    /// Destroys a pool; its memory goes when the last allocation has been freed.
    ///
    /// # Safety
    ///
    /// The caller made the pool, and no call names it from now on.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn pool_destroy(&self, pool: CUmemoryPool) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuMemPoolDestroy(pool)) }
    }

    /// Reads an attribute of a pool; those of less than eight bytes are widened.
    ///
    /// # Safety
    ///
    /// The pool exists, and the attribute is one of [`crate::sys`] (none of those is larger than eight bytes).
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn pool_attribute(&self, pool: CUmemoryPool, attribute: CUmemPool_attribute) -> Result<u64> {
        let mut value = 0u64;
        // SAFETY: no attribute is larger than eight bytes, and smaller ones fill the low bytes of zero on the
        // little-endian machines that CUDA runs on; the pool exists by this function's contract.
        unsafe { call!(self, cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast())) }?;
        Ok(value)
    }

    /// Sets an attribute of a pool. For the two high-water marks only 0 is allowed.
    ///
    /// # Safety
    ///
    /// The pool exists, and the attribute is one of [`crate::sys`] (none of those is larger than eight bytes).
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn pool_set_attribute(
        &self,
        pool: CUmemoryPool,
        attribute: CUmemPool_attribute,
        value: u64,
    ) -> Result<()> {
        let mut value = value;
        // SAFETY: the driver reads four or eight bytes, the low ones first (see `pool_attribute`); the pool exists by
        // this function's contract.
        unsafe { call!(self, cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast())) }
    }

    /// Gives memory of a pool that nothing uses back to the device, down to `keep` reserved bytes.
    ///
    /// # Safety
    ///
    /// The pool exists.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn pool_trim(&self, pool: CUmemoryPool, keep: usize) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuMemPoolTrimTo(pool, keep)) }
    }

    /// Says which devices may use the memory of a pool.
    ///
    /// # Safety
    ///
    /// The pool exists.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn pool_set_access(&self, pool: CUmemoryPool, map: &[CUmemAccessDesc]) -> Result<()> {
        // SAFETY: the driver reads the entries; the pool exists by this function's contract.
        unsafe { call!(self, cuMemPoolSetAccess(pool, map.as_ptr(), map.len())) }
    }

    /// The pool that came with a device. It is never destroyed.
    ///
    /// # Errors
    /// What the driver says.
    pub fn device_default_pool(&self, device: CUdevice) -> Result<CUmemoryPool> {
        let mut pool = core::ptr::null_mut();
        // SAFETY: the driver writes one handle.
        unsafe { call!(self, cuDeviceGetDefaultMemPool(&mut pool, device)) }?;
        Ok(pool)
    }

    /// The pool of managed memory that came with a device. It is never destroyed. From CUDA 13 on.
    ///
    /// # Errors
    /// What the driver says.
    pub fn device_default_managed_pool(&self, device: CUdevice) -> Result<CUmemoryPool> {
        let mut pool = core::ptr::null_mut();
        let mut location = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device };
        // SAFETY: the driver writes one handle and reads the location.
        unsafe { call!(self, cuMemGetDefaultMemPool(&mut pool, &mut location, CU_MEM_ALLOCATION_TYPE_MANAGED)) }?;
        Ok(pool)
    }

    /// The current pool of a device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn device_pool(&self, device: CUdevice) -> Result<CUmemoryPool> {
        let mut pool = core::ptr::null_mut();
        // SAFETY: the driver writes one handle.
        unsafe { call!(self, cuDeviceGetMemPool(&mut pool, device)) }?;
        Ok(pool)
    }

    /// Sets the current pool of a device.
    ///
    /// # Safety
    ///
    /// The pool exists.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn device_set_pool(&self, device: CUdevice, pool: CUmemoryPool) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuDeviceSetMemPool(device, pool)) }
    }

    /// A file descriptor by which another process opens a pool; the caller closes it.
    ///
    /// # Safety
    ///
    /// The pool exists.
    ///
    /// # Errors
    /// Code 1 for a pool that was not made for it; what the driver says.
    pub unsafe fn pool_export_fd(&self, pool: CUmemoryPool) -> Result<c_int> {
        let mut fd: c_int = -1;
        // SAFETY: for this kind of handle the driver writes one integer; the pool exists by this function's contract.
        unsafe { self.pool_export((&raw mut fd).cast(), pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) }?;
        Ok(fd)
    }

    /// A handle by which a process of another node opens a pool.
    ///
    /// # Safety
    ///
    /// The pool exists.
    ///
    /// # Errors
    /// Code 1 for a pool that was not made for it; what the driver says.
    pub unsafe fn pool_export_fabric(&self, pool: CUmemoryPool) -> Result<CUmemFabricHandle> {
        let mut fabric: CUmemFabricHandle = zeroed();
        // SAFETY: for this kind of handle the driver writes 64 bytes; the pool exists by this function's contract.
        unsafe { self.pool_export((&raw mut fabric).cast(), pool, CU_MEM_HANDLE_TYPE_FABRIC) }?;
        Ok(fabric)
    }

    /// # Safety
    ///
    /// The pool exists, and `out` has room for a handle of this kind.
    unsafe fn pool_export(&self, out: *mut c_void, pool: CUmemoryPool, kind: CUmemAllocationHandleType) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuMemPoolExportToShareableHandle(out, pool, kind, 0)) }
    }

    /// Opens a pool of another process. The descriptor stays the caller's.
    ///
    /// # Errors
    /// What the driver says.
    pub fn pool_import_fd(&self, fd: c_int) -> Result<CUmemoryPool> {
        // SAFETY: for this kind of handle the driver takes the number itself in place of an address.
        unsafe {
            self.pool_import(core::ptr::without_provenance_mut(fd as usize), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        }
    }

    /// Opens a pool of another process or node.
    ///
    /// # Errors
    /// What the driver says.
    pub fn pool_import_fabric(&self, fabric: &CUmemFabricHandle) -> Result<CUmemoryPool> {
        let mut fabric = *fabric;
        // SAFETY: for this kind of handle the driver reads 64 bytes.
        unsafe { self.pool_import((&raw mut fabric).cast(), CU_MEM_HANDLE_TYPE_FABRIC) }
    }

    /// # Safety
    ///
    /// `handle` is what the driver wants for a handle of this kind.
    unsafe fn pool_import(&self, handle: *mut c_void, kind: CUmemAllocationHandleType) -> Result<CUmemoryPool> {
        let mut pool = core::ptr::null_mut();
        // SAFETY: the driver writes one handle; the rest by this function's contract.
        unsafe { call!(self, cuMemPoolImportFromShareableHandle(&mut pool, handle, kind, 0)) }?;
        Ok(pool)
    }

    /// Where an allocation lies in its pool, for a process that has opened the pool.
    ///
    /// # Errors
    /// Code 1 for an address that is no allocation of a pool that was exported; what the driver says.
    pub fn pool_export_pointer(&self, address: CUdeviceptr) -> Result<CUmemPoolPtrExportData> {
        let mut data: CUmemPoolPtrExportData = zeroed();
        // SAFETY: the driver writes 64 bytes and checks the address.
        unsafe { call!(self, cuMemPoolExportPointer(&mut data, address)) }?;
        Ok(data)
    }

    /// Opens an allocation of a pool of another process. It is freed like one of this process, before its maker frees it.
    ///
    /// # Safety
    ///
    /// The pool was opened by [`pool_import_fd`](Self::pool_import_fd) or [`pool_import_fabric`](Self::pool_import_fabric)
    /// and exists.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn pool_import_pointer(&self, pool: CUmemoryPool, data: &CUmemPoolPtrExportData) -> Result<CUdeviceptr> {
        let (mut address, mut data) = (0, *data);
        // SAFETY: the driver writes one address and reads 64 bytes; the pool exists by this function's contract.
        unsafe { call!(self, cuMemPoolImportPointer(&mut address, pool, &mut data)) }?;
        Ok(address)
    }
}
