//! What is known about a pointer.

#![allow(non_snake_case, reason = "the names are the driver's")]

use super::out;
use crate::sim::codes::*;
use crate::sim::machine::enter;
use crate::sim::memory::Owner;
use crate::sim::queue::Locked;
use crate::sys::*;
use crate::table::CallId;

pub(in crate::sim) unsafe extern "C" fn cuPointerGetAttribute(
    data: *mut c_void,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> CUresult {
    enter(CallId::cuPointerGetAttribute, |m| {
        let what = look_up(m, address).ok_or(INVALID_VALUE)?;
        // SAFETY: by the driver's contract `data` is null or has room for the attribute's type.
        unsafe { answer(m, data, attribute, address, Some(&what)) }
    })
}

pub(in crate::sim) unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *mut CUpointer_attribute,
    data: *mut *mut c_void,
    address: CUdeviceptr,
) -> CUresult {
    enter(CallId::cuPointerGetAttributes, |m| {
        if count == 0 || attributes.is_null() || data.is_null() {
            return Err(INVALID_VALUE);
        }
        let what = look_up(m, address);
        for i in 0..count as usize {
            // SAFETY: by the driver's contract both arrays have `count` entries, and each place has room for the
            // attribute's type. An unknown pointer is no error here: the answers are zero.
            unsafe { answer(m, *data.add(i), *attributes.add(i), address, what.as_ref())? };
        }
        Ok(())
    })
}

struct What {
    at: u64,
    len: u64,
    device: usize,
    /// `None` for virtual memory.
    owner: Option<Owner>,
    id: u64,
}

fn look_up(m: &Locked, address: u64) -> Option<What> {
    if let Some((at, b)) = m.memory.find(address) {
        return Some(What { at, len: b.len, device: b.device, owner: Some(b.owner), id: b.id });
    }
    let v = m.vmm.find(address)?;
    Some(What { at: v.at, len: v.len, device: v.device, owner: None, id: v.id })
}

/// # Safety
///
/// `data` is null or has room for the type of the attribute.
unsafe fn answer(
    m: &Locked,
    data: *mut c_void,
    attribute: CUpointer_attribute,
    address: u64,
    what: Option<&What>,
) -> Result<(), i32> {
    let owner = what.and_then(|w| w.owner);
    let host = matches!(owner, Some(Owner::Pinned | Owner::Registered));
    let known = what.is_some();
    match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT => {
            // Stream-ordered and virtual memory belong to a device, not to a context.
            let context = match (what, owner) {
                (Some(w), Some(Owner::Plain | Owner::Managed | Owner::Pinned | Owner::Registered)) => {
                    m.devices[w.device].context
                }
                _ => 0,
            };
            out!(data.cast::<CUcontext>()).set(context as CUcontext);
        }
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
            let kind = match (known, host) {
                (false, _) => 0,
                (true, true) => CU_MEMORYTYPE_HOST,
                (true, false) => CU_MEMORYTYPE_DEVICE,
            };
            out!(data.cast::<CUmemorytype>()).set(kind);
        }
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => {
            out!(data.cast::<CUdeviceptr>()).set(if known { address } else { 0 });
        }
        CU_POINTER_ATTRIBUTE_HOST_POINTER => {
            let visible = host || owner.is_some_and(|owner| m.is_managed(owner));
            if known && !visible {
                return Err(INVALID_VALUE);
            }
            out!(data.cast::<u64>()).set(if visible { address } else { 0 });
        }
        CU_POINTER_ATTRIBUTE_BUFFER_ID => out!(data.cast::<u64>()).set(what.map_or(0, |w| w.id)),
        CU_POINTER_ATTRIBUTE_IS_MANAGED => {
            out!(data.cast::<u8>()).set(u8::from(owner.is_some_and(|owner| m.is_managed(owner))));
        }
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
            out!(data.cast::<c_int>()).set(what.map_or(-2, |w| w.device as c_int));
        }
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
            out!(data.cast::<u8>()).set(u8::from(owner == Some(Owner::Plain)));
        }
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => out!(data.cast::<u64>()).set(what.map_or(0, |w| w.at)),
        CU_POINTER_ATTRIBUTE_RANGE_SIZE => out!(data.cast::<usize>()).set(what.map_or(0, |w| w.len as usize)),
        CU_POINTER_ATTRIBUTE_MAPPED => out!(data.cast::<u8>()).set(u8::from(known)),
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => {
            let pool = match owner {
                Some(Owner::Pool(id)) => m.pool_handles.iter().find(|(_, p)| **p == id).map_or(0, |(h, _)| h),
                _ => 0,
            };
            out!(data.cast::<CUmemoryPool>()).set(pool as CUmemoryPool);
        }
        _ => return Err(INVALID_VALUE),
    }
    Ok(())
}
