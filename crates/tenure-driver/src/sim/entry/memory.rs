//! Plain, managed and host memory.

#![allow(non_snake_case, reason = "the names are the driver's")]

use super::device::pageable_access;
use super::out;
use crate::sim::codes::*;
use crate::sim::machine::enter;
use crate::sim::memory::{Block, Owner};
use crate::sim::op::Work;
use crate::sim::queue::Locked;
use crate::sys::*;
use crate::table::CallId;

pub(in crate::sim) unsafe extern "C" fn cuMemAlloc(address: *mut CUdeviceptr, bytes: usize) -> CUresult {
    enter(CallId::cuMemAlloc, |m| {
        let address = out!(address);
        let device = m.current()?;
        m.judge_unsafe()?;
        address.set(m.alloc_plain(device, bytes as u64)?);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemFree(address: CUdeviceptr) -> CUresult {
    enter(CallId::cuMemFree, |m| {
        // Needs no current context: the block has a device.
        m.judge_unsafe()?;
        if address == 0 {
            return Ok(());
        }
        let block = m.leave(address, |b| !matches!(b.owner, Owner::Pinned | Owner::Registered | Owner::Opened(0)))?;
        let device = block.device;
        m.drain(if block.owner == Owner::Managed { None } else { Some(device) });
        match block.owner {
            Owner::Pool(id) => m.pool_free(id, address, Vec::new()),
            Owner::Managed => m.free_host(address),
            Owner::Opened(_) => m.close_opened(address),
            Owner::Graph(_) => {
                m.memory.blocks.remove(&address);
            }
            _ => m.free_plain(address),
        }
        m.pools_at_sync(device);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemGetInfo(free: *mut usize, total: *mut usize) -> CUresult {
    enter(CallId::cuMemGetInfo, |m| {
        let device = m.current()?;
        let (size, used) = (m.devices[device].total, m.devices[device].used);
        if !free.is_null() {
            out!(free).set((size - used) as usize);
        }
        if !total.is_null() {
            out!(total).set(size as usize);
        }
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemGetAddressRange(
    base: *mut CUdeviceptr,
    size: *mut usize,
    address: CUdeviceptr,
) -> CUresult {
    enter(CallId::cuMemGetAddressRange, |m| {
        m.current()?;
        let (at, len) = match (m.memory.find(address), m.vmm.find(address)) {
            (Some((at, b)), _) if b.owner != Owner::Registered => (at, b.len),
            (_, Some(v)) => (v.at, v.len),
            _ => return Err(NOT_FOUND),
        };
        if !base.is_null() {
            out!(base).set(at);
        }
        if !size.is_null() {
            out!(size).set(len as usize);
        }
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemAllocManaged(
    address: *mut CUdeviceptr,
    bytes: usize,
    flags: c_uint,
) -> CUresult {
    enter(CallId::cuMemAllocManaged, |m| {
        let address = out!(address);
        let device = m.current()?;
        if flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST {
            return Err(INVALID_VALUE);
        }
        m.judge_unsafe()?;
        address.set(m.alloc_host(device, bytes as u64, Owner::Managed)?);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemPrefetchAsync(
    address: CUdeviceptr,
    bytes: usize,
    location: CUmemLocation,
    flags: c_uint,
    stream: CUstream,
) -> CUresult {
    enter(CallId::cuMemPrefetchAsync, |m| {
        let uid = m.stream_of(stream as usize)?;
        if location.type_ == CU_MEM_LOCATION_TYPE_DEVICE {
            m.device(location.id)?;
        } else if location.type_ != CU_MEM_LOCATION_TYPE_HOST {
            return Err(INVALID_VALUE);
        }
        if flags != 0 || !migrates(m, address, bytes) {
            return Err(INVALID_VALUE);
        }
        m.submit(uid, Work::Marker, Vec::new(), &[])?;
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemAdvise(
    address: CUdeviceptr,
    bytes: usize,
    advice: CUmem_advise,
    location: CUmemLocation,
) -> CUresult {
    enter(CallId::cuMemAdvise, |m| {
        m.current()?;
        if location.type_ == CU_MEM_LOCATION_TYPE_DEVICE {
            m.device(location.id)?;
        } else if location.type_ != CU_MEM_LOCATION_TYPE_HOST {
            return Err(INVALID_VALUE);
        }
        // Where memory is at home makes no difference here: it is all the host's.
        if advice == 0 || advice > 6 || !migrates(m, address, bytes) {
            return Err(INVALID_VALUE);
        }
        Ok(())
    })
}

/// Whether a range is memory that migrates: managed, or ordinary memory of the host where the devices can use that.
fn migrates(m: &Locked, address: u64, bytes: usize) -> bool {
    bytes != 0
        && match m.memory.find(address) {
            Some((at, b)) => m.is_managed(b.owner) && bytes as u64 <= b.len - (address - at),
            None => pageable_access() && m.is_host(address),
        }
}

pub(in crate::sim) unsafe extern "C" fn cuMemHostAlloc(
    address: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> CUresult {
    enter(CallId::cuMemHostAlloc, |m| {
        let address = out!(address);
        let device = m.current()?;
        if flags > 7 {
            return Err(INVALID_VALUE);
        }
        m.judge_unsafe()?;
        // No bytes are no memory and no error, as the driver does it.
        let at = if bytes == 0 { 0 } else { m.alloc_host(device, bytes as u64, Owner::Pinned)? };
        address.set(at as usize as *mut c_void);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemFreeHost(address: *mut c_void) -> CUresult {
    enter(CallId::cuMemFreeHost, |m| {
        m.current()?;
        m.judge_unsafe()?;
        if address.is_null() {
            return Ok(());
        }
        m.leave(address as u64, |b| b.owner == Owner::Pinned)?;
        m.drain(None);
        m.free_host(address as u64);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemHostRegister(
    address: *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> CUresult {
    enter(CallId::cuMemHostRegister, |m| {
        let device = m.current()?;
        let at = address as u64;
        if address.is_null() || bytes == 0 || flags > 15 || at.checked_add(bytes as u64).is_none() {
            return Err(INVALID_VALUE);
        }
        m.judge_unsafe()?;
        let end = at + bytes as u64;
        let before = m.memory.blocks.range(..end).next_back();
        match before.filter(|(start, b)| *start + b.taken > at) {
            Some((_, b)) if b.owner == Owner::Registered => return Err(HOST_MEMORY_ALREADY_REGISTERED),
            Some(_) => return Err(INVALID_VALUE),
            None => {}
        }
        m.memory.add(at, bytes as u64, bytes as u64, device, Owner::Registered);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemHostUnregister(address: *mut c_void) -> CUresult {
    enter(CallId::cuMemHostUnregister, |m| {
        m.current()?;
        if address.is_null() {
            return Err(INVALID_VALUE);
        }
        m.judge_unsafe()?;
        m.leave(address as u64, |b| b.owner == Owner::Registered).map_err(|_| HOST_MEMORY_NOT_REGISTERED)?;
        m.drain(None);
        m.free_host(address as u64);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemHostGetDevicePointer(
    device_address: *mut CUdeviceptr,
    address: *mut c_void,
    flags: c_uint,
) -> CUresult {
    enter(CallId::cuMemHostGetDevicePointer, |m| {
        let device_address = out!(device_address);
        m.current()?;
        let host = |b: &Block| matches!(b.owner, Owner::Pinned | Owner::Registered);
        if flags != 0 || !m.memory.find(address as u64).is_some_and(|(_, b)| host(b)) {
            return Err(INVALID_VALUE);
        }
        device_address.set(address as u64);
        Ok(())
    })
}
