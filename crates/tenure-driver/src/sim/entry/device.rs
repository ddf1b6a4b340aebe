//! The driver itself and its devices.

#![allow(non_snake_case, reason = "the names are the driver's")]

use super::out;
use crate::sim::codes::*;
use crate::sim::machine::{enter, enter_early};
use crate::sys::*;
use crate::table::CallId;
use std::collections::HashMap;
use std::ffi::CString;

use crate::sync::Lazy;

pub(in crate::sim) unsafe extern "C" fn cuInit(flags: c_uint) -> CUresult {
    enter_early(CallId::cuInit, |m| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        m.ready = true;
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CUresult {
    enter_early(CallId::cuDriverGetVersion, |m| {
        let _ = m;
        out!(version).set(13_000);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuGetErrorName(error: CUresult, text: *mut *const c_char) -> CUresult {
    describe(CallId::cuGetErrorName, error, text, false)
}

pub(in crate::sim) unsafe extern "C" fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> CUresult {
    describe(CallId::cuGetErrorString, error, text, true)
}

/// Names are those of [`RESULTS`], with a terminating zero, made once.
fn describe(call: CallId, error: CUresult, text: *mut *const c_char, sentence: bool) -> CUresult {
    static NAMES: Lazy<HashMap<i32, [CString; 2]>> = Lazy::new(|| {
        let known = RESULTS.iter().filter_map(|(name, code)| {
            let words = name.trim_start_matches("CUDA_").trim_start_matches("ERROR_").replace('_', " ").to_lowercase();
            Some((i32::try_from(*code).ok()?, [CString::new(*name).ok()?, CString::new(words).ok()?]))
        });
        known.collect()
    });
    enter_early(call, |_| {
        let text = out!(text);
        match NAMES.get(&error) {
            Some(both) => {
                text.set(both[usize::from(sentence)].as_ptr());
                Ok(())
            }
            None => {
                text.set(std::ptr::null());
                Err(INVALID_VALUE)
            }
        }
    })
}

pub(in crate::sim) unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    enter(CallId::cuDeviceGetCount, |m| {
        out!(count).set(m.devices.len() as c_int);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult {
    enter(CallId::cuDeviceGet, |m| {
        let device = out!(device);
        m.device(ordinal)?;
        device.set(ordinal);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) -> CUresult {
    enter(CallId::cuDeviceGetName, |m| {
        m.device(device)?;
        let text = format!("tenure simulated device {device}");
        let room = usize::try_from(len).map_err(|_| INVALID_VALUE)?;
        if room == 0 || name.is_null() {
            return Err(INVALID_VALUE);
        }
        let n = text.len().min(room - 1);
        // SAFETY: by the driver's contract `name` has room for `len` characters.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, n);
            *name.add(n) = 0;
        }
        Ok(())
    })
}

/// Whether the devices say that they can map pages: `TENURE_SIM_VIRTUAL_MEMORY=0` makes them like those that cannot.
fn virtual_memory() -> bool {
    std::env::var_os("TENURE_SIM_VIRTUAL_MEMORY").is_none_or(|v| v != "0")
}

/// Whether the devices say that they can use ordinary memory of the host: `TENURE_SIM_PAGEABLE_ACCESS=1` makes them so.
pub(super) fn pageable_access() -> bool {
    std::env::var_os("TENURE_SIM_PAGEABLE_ACCESS").is_some_and(|v| v != "0")
}

pub(in crate::sim) unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: CUdevice_attribute,
    device: CUdevice,
) -> CUresult {
    enter(CallId::cuDeviceGetAttribute, |m| {
        let value = out!(value);
        m.device(device)?;
        value.set(match attribute {
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => 4,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 9,
            CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
            | CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
            | CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
            | CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
            | CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED => 1,
            CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED => c_int::from(virtual_memory()),
            CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS => c_int::from(pageable_access()),
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED => c_int::from(virtual_memory()),
            CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES => CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR as c_int,
            // No sharing with other nodes or with network cards.
            0 => return Err(INVALID_VALUE),
            _ => 0,
        });
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut CUuuid, device: CUdevice) -> CUresult {
    enter(CallId::cuDeviceGetUuid, |m| {
        let uuid = out!(uuid);
        m.device(device)?;
        let mut bytes = *b"tenure-sim-dev-0";
        bytes[15] = b'0' + device as u8;
        uuid.set(CUuuid { bytes });
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuDeviceTotalMem(bytes: *mut usize, device: CUdevice) -> CUresult {
    enter(CallId::cuDeviceTotalMem, |m| {
        let bytes = out!(bytes);
        let device = m.device(device)?;
        bytes.set(m.devices[device].total as usize);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuDeviceCanAccessPeer(
    can: *mut c_int,
    device: CUdevice,
    peer: CUdevice,
) -> CUresult {
    enter(CallId::cuDeviceCanAccessPeer, |m| {
        let can = out!(can);
        can.set(c_int::from(m.device(device)? != m.device(peer)?));
        Ok(())
    })
}
