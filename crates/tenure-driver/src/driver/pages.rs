//! Virtual ranges and physical pages. [`crate::AddressRange`] and [`crate::PhysicalPages`] own them.
//!
//! All of these are legal while any stream is being captured, and none waits for the device.

use super::{Driver, Result, call};
use crate::sys::*;

impl Driver {
    /// Reserves addresses without memory. `alignment` 0 means the driver's own.
    ///
    /// # Errors
    /// What the driver says.
    pub fn address_reserve(&self, bytes: usize, alignment: usize) -> Result<CUdeviceptr> {
        let mut address = 0;
        // SAFETY: the driver writes one address; no fixed address is asked for.
        unsafe { call!(self, cuMemAddressReserve(&mut address, bytes, alignment, 0, 0)) }?;
        Ok(address)
    }

    /// Gives reserved addresses back, exactly as they were reserved.
    ///
    /// # Safety
    ///
    /// Nobody uses the range from now on.
    ///
    /// # Errors
    /// Code 1 when something is mapped there; what the driver says.
    pub unsafe fn address_free(&self, address: CUdeviceptr, bytes: usize) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuMemAddressFree(address, bytes)) }
    }

    /// Makes physical memory, a multiple of the [granularity](Self::allocation_granularity).
    ///
    /// # Errors
    /// [Out of memory](crate::DriverError::is_out_of_memory); what the driver says.
    pub fn pages_create(&self, bytes: usize, prop: &CUmemAllocationProp) -> Result<CUmemGenericAllocationHandle> {
        let mut handle = 0;
        // SAFETY: the driver writes one handle and reads the structure.
        unsafe { call!(self, cuMemCreate(&mut handle, bytes, prop, 0)) }?;
        crate::watch::grew();
        Ok(handle)
    }

    /// Lets go of physical memory; the device gets it back when nothing maps it any more.
    ///
    /// # Safety
    ///
    /// The caller owns the handle, and no call names it from now on.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn pages_release(&self, handle: CUmemGenericAllocationHandle) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuMemRelease(handle)) }
    }

    /// Maps physical memory, whole, at a reserved address. Usable after [`address_set_access`](Self::address_set_access).
    ///
    /// # Safety
    ///
    /// The caller owns the range and the handle.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn address_map(
        &self,
        address: CUdeviceptr,
        bytes: usize,
        handle: CUmemGenericAllocationHandle,
    ) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuMemMap(address, bytes, 0, handle, 0)) }
    }

    /// Unmaps whole mappings; several neighbours may go in one call. Does not wait for the device.
    ///
    /// # Safety
    ///
    /// The caller owns the range, and neither host nor device uses it from now on.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn address_unmap(&self, address: CUdeviceptr, bytes: usize) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuMemUnmap(address, bytes)) }
    }

    /// Says which devices may use mapped addresses.
    ///
    /// # Safety
    ///
    /// The caller owns the range.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn address_set_access(&self, address: CUdeviceptr, bytes: usize, map: &[CUmemAccessDesc]) -> Result<()> {
        // SAFETY: the driver reads the entries; the rest is this function's contract.
        unsafe { call!(self, cuMemSetAccess(address, bytes, map.as_ptr(), map.len())) }
    }

    /// The unit, in bytes, of which sizes of physical memory and of mappings are multiples.
    ///
    /// # Errors
    /// What the driver says.
    pub fn allocation_granularity(&self, prop: &CUmemAllocationProp, recommended: bool) -> Result<usize> {
        let option = if recommended { CU_MEM_ALLOC_GRANULARITY_RECOMMENDED } else { CU_MEM_ALLOC_GRANULARITY_MINIMUM };
        let mut bytes = 0;
        // SAFETY: the driver writes one size and reads the structure.
        unsafe { call!(self, cuMemGetAllocationGranularity(&mut bytes, prop, option)) }?;
        Ok(bytes)
    }

    /// A file descriptor by which another process opens physical memory; the caller closes it.
    ///
    /// # Safety
    ///
    /// The handle exists.
    ///
    /// # Errors
    /// Code 1 for memory that was not made for it; what the driver says.
    pub unsafe fn pages_export_fd(&self, handle: CUmemGenericAllocationHandle) -> Result<c_int> {
        let mut fd: c_int = -1;
        // SAFETY: for this kind of handle the driver writes one integer; the handle exists by this function's contract.
        unsafe {
            call!(
                self,
                cuMemExportToShareableHandle((&raw mut fd).cast(), handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
            )
        }?;
        Ok(fd)
    }

    /// A handle by which a process of another node opens physical memory.
    ///
    /// # Safety
    ///
    /// The handle exists.
    ///
    /// # Errors
    /// Code 1 for memory that was not made for it; what the driver says.
    pub unsafe fn pages_export_fabric(&self, handle: CUmemGenericAllocationHandle) -> Result<CUmemFabricHandle> {
        let mut fabric: CUmemFabricHandle = zeroed();
        // SAFETY: for this kind of handle the driver writes 64 bytes; the handle exists by this function's contract.
        unsafe {
            call!(self, cuMemExportToShareableHandle((&raw mut fabric).cast(), handle, CU_MEM_HANDLE_TYPE_FABRIC, 0))
        }?;
        Ok(fabric)
    }

    /// Opens physical memory of another process. The descriptor stays the caller's.
    ///
    /// # Errors
    /// What the driver says.
    pub fn pages_import_fd(&self, fd: c_int) -> Result<CUmemGenericAllocationHandle> {
        let mut handle = 0;
        // SAFETY: for this kind of handle the driver takes the number itself in place of an address.
        unsafe {
            call!(
                self,
                cuMemImportFromShareableHandle(
                    &mut handle,
                    core::ptr::without_provenance_mut(fd as usize),
                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                )
            )
        }?;
        Ok(handle)
    }

    /// Opens physical memory of another process or node.
    ///
    /// # Errors
    /// What the driver says.
    pub fn pages_import_fabric(&self, fabric: &CUmemFabricHandle) -> Result<CUmemGenericAllocationHandle> {
        let (mut handle, mut fabric) = (0, *fabric);
        // SAFETY: for this kind of handle the driver reads 64 bytes.
        unsafe {
            call!(
                self,
                cuMemImportFromShareableHandle(&mut handle, (&raw mut fabric).cast(), CU_MEM_HANDLE_TYPE_FABRIC)
            )
        }?;
        Ok(handle)
    }
}
