//! Stream-ordered memory and the pools behind it.

#![allow(non_snake_case, reason = "the names are the driver's")]

use super::{input, out};
use crate::sim::capture::CallClass;
use crate::sim::codes::*;
use crate::sim::machine::enter;
use crate::sim::memory::{Block, Owner};
use crate::sim::op::Work;
use crate::sim::pool::Pool;
use crate::sim::queue::Locked;
use crate::sys::*;
use crate::table::CallId;

pub(in crate::sim) unsafe extern "C" fn cuMemAllocAsync(
    address: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    enter(CallId::cuMemAllocAsync, |m| {
        let address = out!(address);
        let uid = m.stream_of(stream as usize)?;
        let device = m.stream(uid)?.device;
        let handle = m.devices[device].current_pool;
        let id = m.pool_of(handle)?;
        address.set(allocate(m, id, bytes, uid)?);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemAllocFromPoolAsync(
    address: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CUresult {
    enter(CallId::cuMemAllocFromPoolAsync, |m| {
        let address = out!(address);
        let uid = m.stream_of(stream as usize)?;
        let id = m.pool_of(pool as usize)?;
        address.set(allocate(m, id, bytes, uid)?);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> CUresult {
    enter(CallId::cuMemFreeAsync, |m| {
        let uid = m.stream_of(stream as usize)?;
        if address == 0 {
            return Ok(());
        }
        let capturing = m.capture_of(uid).is_some();
        if !capturing {
            m.judge_stream(uid, CallClass::Question, CallClass::LegacyUse)?;
            m.judge_unsafe()?;
        }
        let fits = |b: &Block| match b.owner {
            Owner::Graph(_) => true,
            Owner::Pool(_) | Owner::Plain => !capturing,
            Owner::Opened(pool) => pool != 0 && !capturing,
            _ => false,
        };
        let block = m.leave(address, fits)?;
        match block.owner {
            Owner::Pool(id) => {
                let point = m.enqueue(uid, Work::Marker, Vec::new(), &[]);
                m.pool_free(id, address, vec![point]);
            }
            Owner::Opened(_) => {
                // The mapping goes when its last use is over; the driver need not wait for that, and here it does.
                let point = m.enqueue(uid, Work::Marker, Vec::new(), &[]);
                m.wait_points(&[point]).ok();
                m.close_opened(address);
            }
            Owner::Plain => {
                m.enqueue(uid, Work::Free { at: address }, Vec::new(), &[]);
            }
            _ => {
                if let Err(code) = m.submit(uid, Work::Marker, Vec::new(), &[]) {
                    if let Some(b) = m.memory.blocks.get_mut(&address) {
                        b.leaving = false;
                    }
                    return Err(code);
                }
                m.memory.blocks.remove(&address);
            }
        }
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemPoolCreate(
    pool: *mut CUmemoryPool,
    props: *const CUmemPoolProps,
) -> CUresult {
    enter(CallId::cuMemPoolCreate, |m| {
        let pool = out!(pool);
        let props = input!(props);
        if props.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || props.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(INVALID_VALUE);
        }
        let device = m.device(props.location.id).map_err(|_| INVALID_VALUE)?;
        if props.handleTypes & !CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 {
            return Err(NOT_SUPPORTED);
        }
        m.judge_unsafe()?;
        m.next_pool += 1;
        let id = m.next_pool;
        let shareable = props.handleTypes != CU_MEM_HANDLE_TYPE_NONE;
        let mut made = Pool::new(device, false, props.maxSize as u64);
        made.shareable = shareable;
        m.pools.insert(id, made);
        pool.set(m.pool_handles.insert(id) as CUmemoryPool);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult {
    enter(CallId::cuMemPoolDestroy, |m| {
        let id = m.pool_of(pool as usize)?;
        if m.pool(id)?.is_default {
            return Err(INVALID_VALUE);
        }
        m.pool_handles.remove(pool as usize);
        for d in &mut m.devices {
            if d.current_pool == pool as usize {
                d.current_pool = d.default_pool;
            }
        }
        m.pool(id)?.destroyed = true;
        m.pool_trim(id, 0);
        if m.pools.get(&id).is_some_and(|p| p.reserved == 0) {
            m.pools.remove(&id);
        }
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    enter(CallId::cuMemPoolSetAttribute, |m| {
        let id = m.pool_of(pool as usize)?;
        m.judge_unsafe()?;
        let flag = |v: c_int| v != 0;
        match attribute {
            CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => {
                m.pool(id)?.follow_events = flag(input!(value.cast::<c_int>()));
            }
            CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => {
                m.pool(id)?.opportunistic = flag(input!(value.cast::<c_int>()));
            }
            CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                m.pool(id)?.internal = flag(input!(value.cast::<c_int>()));
            }
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => m.pool(id)?.threshold = input!(value.cast::<u64>()),
            // The two high marks can only be reset.
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH if input!(value.cast::<u64>()) == 0 => {
                let p = m.pool(id)?;
                p.reserved_high = p.reserved;
            }
            CU_MEMPOOL_ATTR_USED_MEM_HIGH if input!(value.cast::<u64>()) == 0 => {
                let p = m.pool(id)?;
                p.used_high = p.used;
            }
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    enter(CallId::cuMemPoolGetAttribute, |m| {
        let id = m.pool_of(pool as usize)?;
        let p = m.pool(id)?;
        let number = match attribute {
            CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => Err(p.follow_events),
            CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => Err(p.opportunistic),
            CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => Err(p.internal),
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => Ok(p.threshold),
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => Ok(p.reserved),
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => Ok(p.reserved_high),
            CU_MEMPOOL_ATTR_USED_MEM_CURRENT => Ok(p.used),
            CU_MEMPOOL_ATTR_USED_MEM_HIGH => Ok(p.used_high),
            _ => return Err(INVALID_VALUE),
        };
        match number {
            Ok(bytes) => out!(value.cast::<u64>()).set(bytes),
            Err(flag) => out!(value.cast::<c_int>()).set(c_int::from(flag)),
        }
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> CUresult {
    enter(CallId::cuMemPoolTrimTo, |m| {
        let id = m.pool_of(pool as usize)?;
        m.judge_unsafe()?;
        m.pool_trim(id, keep as u64);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemPoolSetAccess(
    pool: CUmemoryPool,
    map: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    enter(CallId::cuMemPoolSetAccess, |m| {
        // Every simulated device reaches the memory of every other, so this only checks.
        let id = m.pool_of(pool as usize)?;
        let own = m.pool(id)?.device;
        for i in 0..count {
            let desc = input!(map.wrapping_add(i));
            if desc.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
                return Err(INVALID_VALUE);
            }
            let device = m.device(desc.location.id)?;
            if device == own && desc.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE {
                return Err(INVALID_VALUE);
            }
        }
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuDeviceGetDefaultMemPool(
    pool: *mut CUmemoryPool,
    device: CUdevice,
) -> CUresult {
    enter(CallId::cuDeviceGetDefaultMemPool, |m| {
        let pool = out!(pool);
        let device = m.device(device)?;
        pool.set(m.devices[device].default_pool as CUmemoryPool);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemGetDefaultMemPool(
    pool: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
) -> CUresult {
    enter(CallId::cuMemGetDefaultMemPool, |m| {
        let pool = out!(pool);
        let location = input!(location);
        if location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(INVALID_VALUE);
        }
        let device = m.device(location.id)?;
        let handle = match kind {
            CU_MEM_ALLOCATION_TYPE_PINNED => m.devices[device].default_pool,
            CU_MEM_ALLOCATION_TYPE_MANAGED => m.managed_pool(device),
            _ => return Err(INVALID_VALUE),
        };
        pool.set(handle as CUmemoryPool);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice) -> CUresult {
    enter(CallId::cuDeviceGetMemPool, |m| {
        let pool = out!(pool);
        let device = m.device(device)?;
        pool.set(m.devices[device].current_pool as CUmemoryPool);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) -> CUresult {
    enter(CallId::cuDeviceSetMemPool, |m| {
        let device = m.device(device)?;
        let id = m.pool_of(pool as usize)?;
        if m.pool(id)?.device != device {
            return Err(INVALID_VALUE);
        }
        m.devices[device].current_pool = pool as usize;
        Ok(())
    })
}

/// Stream-ordered allocation: from a pool, or, on a capturing stream, memory of the graph.
fn allocate(m: &mut Locked, pool: u64, bytes: usize, uid: u64) -> Result<u64, i32> {
    if m.capture_of(uid).is_some() {
        return m.graph_alloc(uid, bytes as u64);
    }
    m.judge_stream(uid, CallClass::Question, CallClass::LegacyUse)?;
    m.judge_unsafe()?;
    m.pool_alloc(pool, bytes as u64, uid)
}
