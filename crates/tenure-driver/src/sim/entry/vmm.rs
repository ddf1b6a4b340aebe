//! Virtual address ranges and physical pages.

#![allow(non_snake_case, reason = "the names are the driver's")]

use super::{input, out};
use crate::sim::codes::*;
use crate::sim::machine::enter;
use crate::sim::memory::LARGE;
use crate::sim::queue::Locked;
use crate::sys::*;
use crate::table::CallId;

pub(in crate::sim) unsafe extern "C" fn cuMemAddressReserve(
    address: *mut CUdeviceptr,
    bytes: usize,
    alignment: usize,
    hint: CUdeviceptr,
    flags: c_ulonglong,
) -> CUresult {
    enter(CallId::cuMemAddressReserve, |m| {
        // The hint is only a wish, here never granted.
        let _ = hint;
        let address = out!(address);
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        address.set(m.vmm.reserve(bytes as u64, alignment as u64)?);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemAddressFree(address: CUdeviceptr, bytes: usize) -> CUresult {
    enter(CallId::cuMemAddressFree, |m| m.vmm.unreserve(address, bytes as u64))
}

pub(in crate::sim) unsafe extern "C" fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    prop: *const CUmemAllocationProp,
    flags: c_ulonglong,
) -> CUresult {
    enter(CallId::cuMemCreate, |m| {
        let handle = out!(handle);
        let prop = input!(prop);
        let device = wanted(m, prop)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        m.devices[device].check()?;
        let shareable = prop.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
        handle.set(m.pages_create(device, bytes as u64, shareable)?);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    enter(CallId::cuMemRelease, |m| m.pages_release(handle))
}

pub(in crate::sim) unsafe extern "C" fn cuMemMap(
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> CUresult {
    enter(CallId::cuMemMap, |m| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        m.map(address, bytes as u64, offset as u64, handle)
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemUnmap(address: CUdeviceptr, bytes: usize) -> CUresult {
    enter(CallId::cuMemUnmap, |m| {
        m.vmm.whole(address, bytes as u64)?;
        // Whoever touches it now finishes; what comes later meets an illegal address.
        m.wait_until(|m| !m.touched_now(address, bytes))?;
        let starts = m.vmm.whole(address, bytes as u64)?;
        m.unmap(&starts)
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemSetAccess(
    address: CUdeviceptr,
    bytes: usize,
    map: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    enter(CallId::cuMemSetAccess, |m| {
        let mut wanted = Vec::new();
        for i in 0..count {
            let desc = input!(map.wrapping_add(i));
            let known = matches!(
                desc.flags,
                CU_MEM_ACCESS_FLAGS_PROT_NONE | CU_MEM_ACCESS_FLAGS_PROT_READ | CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            );
            if desc.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE || !known {
                return Err(INVALID_VALUE);
            }
            let device = m.device(desc.location.id).map_err(|_| INVALID_VALUE)?;
            wanted.push((device, desc.flags));
        }
        if wanted.is_empty() {
            return Err(INVALID_VALUE);
        }
        m.wait_until(|m| !m.touched_now(address, bytes))?;
        m.set_access(address, bytes as u64, &wanted)
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemGetAllocationGranularity(
    bytes: *mut usize,
    prop: *const CUmemAllocationProp,
    option: CUmemAllocationGranularity_flags,
) -> CUresult {
    enter(CallId::cuMemGetAllocationGranularity, |m| {
        let bytes = out!(bytes);
        wanted(m, input!(prop))?;
        if option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED {
            return Err(INVALID_VALUE);
        }
        bytes.set(LARGE as usize);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemExportToShareableHandle(
    shared: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> CUresult {
    enter(CallId::cuMemExportToShareableHandle, |m| {
        let shared = out!(shared.cast::<c_int>());
        only_descriptors(kind)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        shared.set(m.pages_export(handle)?);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    shared: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> CUresult {
    enter(CallId::cuMemImportFromShareableHandle, |m| {
        let handle = out!(handle);
        only_descriptors(kind)?;
        let fd = c_int::try_from(shared.addr()).map_err(|_| INVALID_VALUE)?;
        handle.set(m.pages_import(fd)?);
        Ok(())
    })
}

/// The device that the properties of physical memory name.
fn wanted(m: &Locked, prop: CUmemAllocationProp) -> Result<usize, i32> {
    if prop.type_ != CU_MEM_ALLOCATION_TYPE_PINNED || prop.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(INVALID_VALUE);
    }
    if prop.requestedHandleTypes & !CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 {
        return Err(NOT_SUPPORTED);
    }
    m.device(prop.location.id)
}

/// The simulated device hands descriptors out, and no fabric handles.
pub(super) fn only_descriptors(kind: CUmemAllocationHandleType) -> Result<(), i32> {
    match kind {
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => Ok(()),
        CU_MEM_HANDLE_TYPE_FABRIC => Err(NOT_SUPPORTED),
        _ => Err(INVALID_VALUE),
    }
}
