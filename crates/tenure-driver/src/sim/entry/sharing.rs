//! Memory of other processes: legacy handles, and pools that another process has opened. Physical pages are in `vmm.rs`.

#![allow(non_snake_case, reason = "the names are the driver's")]

use super::vmm::only_descriptors;
use super::{input, out};
use crate::sim::codes::*;
use crate::sim::machine::enter;
use crate::sim::memory::{Owner, WHOLE};
use crate::sim::os::Pages;
use crate::sim::pool::Pool;
use crate::sim::sharing::Ticket;
use crate::sys::*;
use crate::table::CallId;

pub(in crate::sim) unsafe extern "C" fn cuIpcGetMemHandle(
    handle: *mut CUipcMemHandle,
    address: CUdeviceptr,
) -> CUresult {
    enter(CallId::cuIpcGetMemHandle, |m| {
        let handle = out!(handle);
        m.current()?;
        let (at, block) = m.memory.find(address).filter(|(_, b)| b.owner == Owner::Plain).ok_or(INVALID_VALUE)?;
        let (device, len) = (block.device, block.len);
        handle.set(CUipcMemHandle { reserved: m.ticket(device, at, len)?.bytes() });
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuIpcOpenMemHandle(
    address: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: c_uint,
) -> CUresult {
    enter(CallId::cuIpcOpenMemHandle, |m| {
        let address = out!(address);
        m.current()?;
        if flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS {
            return Err(INVALID_VALUE);
        }
        let ticket = Ticket::read(&handle.reserved).ok_or(INVALID_VALUE)?;
        if ticket.pid == std::process::id() {
            // As the driver has it: a process does not open its own memory.
            return Err(INVALID_CONTEXT);
        }
        if let Some(at) = m.open_again(&ticket) {
            address.set(at);
            return Ok(());
        }
        let (pages, label) = Pages::of_process(ticket.pid, ticket.fd).ok_or(INVALID_HANDLE)?;
        if label.kind != WHOLE || label.device != ticket.device {
            return Err(INVALID_HANDLE);
        }
        address.set(m.open(&pages, ticket, 0)?);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuIpcCloseMemHandle(address: CUdeviceptr) -> CUresult {
    enter(CallId::cuIpcCloseMemHandle, |m| {
        m.current()?;
        let opened = m.memory.find(address).is_some_and(|(at, b)| at == address && b.owner == Owner::Opened(0));
        if !opened {
            return Err(INVALID_VALUE);
        }
        m.drain(None);
        m.close_opened(address);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemPoolExportToShareableHandle(
    handle: *mut c_void,
    pool: CUmemoryPool,
    kind: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> CUresult {
    enter(CallId::cuMemPoolExportToShareableHandle, |m| {
        let handle = out!(handle.cast::<c_int>());
        only_descriptors(kind)?;
        let id = m.pool_of(pool as usize)?;
        let p = m.pool(id)?;
        let device = p.device;
        if !p.shareable || flags != 0 {
            return Err(INVALID_VALUE);
        }
        handle.set(m.backing_of_all(device).ok_or(NOT_SUPPORTED)?.descriptor().ok_or(UNKNOWN)?);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemPoolImportFromShareableHandle(
    pool: *mut CUmemoryPool,
    handle: *mut c_void,
    kind: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> CUresult {
    enter(CallId::cuMemPoolImportFromShareableHandle, |m| {
        let pool = out!(pool);
        only_descriptors(kind)?;
        let fd = c_int::try_from(handle.addr()).map_err(|_| INVALID_VALUE)?;
        let (pages, label) = Pages::shared(fd).filter(|(_, label)| label.kind == WHOLE).ok_or(INVALID_VALUE)?;
        let device = usize::try_from(label.device).ok().filter(|d| *d < m.devices.len()).ok_or(INVALID_DEVICE)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        m.next_pool += 1;
        let id = m.next_pool;
        let mut made = Pool::new(device, false, 0);
        made.opened = Some(pages);
        m.pools.insert(id, made);
        pool.set(m.pool_handles.insert(id) as CUmemoryPool);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemPoolExportPointer(
    data: *mut CUmemPoolPtrExportData,
    address: CUdeviceptr,
) -> CUresult {
    enter(CallId::cuMemPoolExportPointer, |m| {
        let data = out!(data);
        let (at, block) = m.memory.find(address).ok_or(INVALID_VALUE)?;
        let (device, len, owner) = (block.device, block.len, block.owner);
        match owner {
            Owner::Pool(id) if at == address && m.pool(id)?.shareable => {}
            _ => return Err(INVALID_VALUE),
        }
        data.set(CUmemPoolPtrExportData { reserved: m.ticket(device, at, len)?.bytes() });
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemPoolImportPointer(
    address: *mut CUdeviceptr,
    pool: CUmemoryPool,
    data: *mut CUmemPoolPtrExportData,
) -> CUresult {
    enter(CallId::cuMemPoolImportPointer, |m| {
        let address = out!(address);
        let ticket = Ticket::read(&input!(data.cast_const()).reserved).ok_or(INVALID_VALUE)?;
        let id = m.pool_of(pool as usize)?;
        if m.pool(id)?.device as u64 != ticket.device {
            return Err(INVALID_VALUE);
        }
        // Taken out, so that the machine is free while it is mapped.
        let pages = m.pool(id)?.opened.take().ok_or(INVALID_VALUE)?;
        let opened = m.open(&pages, ticket, id);
        m.pool(id)?.opened = Some(pages);
        address.set(opened?);
        Ok(())
    })
}
