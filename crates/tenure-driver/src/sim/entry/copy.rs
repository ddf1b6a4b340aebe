//! Copies and sets of real bytes.

#![allow(non_snake_case, reason = "the names are the driver's")]

use crate::sim::codes::*;
use crate::sim::machine::enter;
use crate::sim::memory::Side;
use crate::sim::op::{Action, Work, stage};
use crate::sim::queue::Locked;
use crate::sync::Arc;
use crate::sys::*;
use crate::table::CallId;

pub(in crate::sim) unsafe extern "C" fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> CUresult {
    enter(CallId::cuMemcpy, |m| {
        // SAFETY: by the driver's contract a host side is valid for the call.
        unsafe { copy(m, 0, dst, src, bytes, Wait::UnlessDevice) }
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemcpyAsync(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    enter(CallId::cuMemcpyAsync, |m| {
        // SAFETY: by the driver's contract a host side is valid until the copy has completed.
        unsafe { copy(m, stream as usize, dst, src, bytes, Wait::ForPageable) }
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemcpyPeerAsync(
    dst: CUdeviceptr,
    dst_context: CUcontext,
    src: CUdeviceptr,
    src_context: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    enter(CallId::cuMemcpyPeerAsync, |m| {
        let uid = m.stream_of(stream as usize)?;
        let (to, from) = (m.context(dst_context as usize)?, m.context(src_context as usize)?);
        if bytes == 0 {
            return Ok(());
        }
        if m.side(to, dst, bytes, true) != Side::Known || m.side(from, src, bytes, false) != Side::Known {
            return Err(INVALID_VALUE);
        }
        let action = Action::Copy { dst, src, len: bytes, host_dst: false, host_src: false };
        m.submit(uid, Work::Across { to, from, action }, Vec::new(), &[]).map(drop)
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemcpyDtoHAsync(
    dst: *mut c_void,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    enter(CallId::cuMemcpyDtoHAsync, |m| {
        let uid = m.stream_of(stream as usize)?;
        let device = m.stream(uid)?.device;
        if bytes > 0 && m.side(device, src, bytes, false) != Side::Known {
            return Err(INVALID_VALUE);
        }
        // SAFETY: by the driver's contract the host side is valid until the copy has completed.
        unsafe { copy(m, stream as usize, dst as u64, src, bytes, Wait::ForPageable) }
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemcpyHtoDAsync(
    dst: CUdeviceptr,
    src: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    enter(CallId::cuMemcpyHtoDAsync, |m| {
        let uid = m.stream_of(stream as usize)?;
        let device = m.stream(uid)?.device;
        if bytes > 0 && m.side(device, dst, bytes, true) != Side::Known {
            return Err(INVALID_VALUE);
        }
        // SAFETY: by the driver's contract the host side is valid until the copy has completed.
        unsafe { copy(m, stream as usize, dst, src as u64, bytes, Wait::ForPageable) }
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemcpyDtoDAsync(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    enter(CallId::cuMemcpyDtoDAsync, |m| {
        let uid = m.stream_of(stream as usize)?;
        let device = m.stream(uid)?.device;
        let known = m.side(device, dst, bytes, true) == Side::Known && m.side(device, src, bytes, false) == Side::Known;
        if bytes > 0 && !known {
            return Err(INVALID_VALUE);
        }
        // SAFETY: both sides are memory of the device.
        unsafe { copy(m, stream as usize, dst, src, bytes, Wait::ForPageable) }
    })
}

pub(in crate::sim) unsafe extern "C" fn cuMemsetD8(dst: CUdeviceptr, value: c_uchar, count: usize) -> CUresult {
    enter(CallId::cuMemsetD8, |m| fill(m, 0, dst, value, count))
}

pub(in crate::sim) unsafe extern "C" fn cuMemsetD8Async(
    dst: CUdeviceptr,
    value: c_uchar,
    count: usize,
    stream: CUstream,
) -> CUresult {
    enter(CallId::cuMemsetD8Async, |m| fill(m, stream as usize, dst, value, count))
}

/// Copies from ordinary host memory up to this size are kept at the call and made later, as the driver does it.
const STAGED: usize = 64 << 10;

/// When the host waits for a copy.
#[derive(PartialEq, Eq)]
enum Wait {
    /// Unless both sides are memory of the device.
    UnlessDevice,
    /// When a side is ordinary host memory and cannot be kept.
    ForPageable,
}

/// # Safety
///
/// A side that is host memory is valid for `bytes` until the copy has completed, or during the call where it waits.
unsafe fn copy(m: &mut Locked, stream: usize, dst: u64, src: u64, bytes: usize, wait: Wait) -> Result<(), i32> {
    let uid = m.stream_of(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let device = m.stream(uid)?.device;
    let (to, from) = (m.side(device, dst, bytes, true), m.side(device, src, bytes, false));
    if dst == 0 || src == 0 || to == Side::Dead || from == Side::Dead {
        return Err(INVALID_VALUE);
    }
    let capturing = m.capture_of(uid).is_some();
    let (host_dst, host_src) = (to == Side::Host, from == Side::Host);
    let staged = host_src && !host_dst && bytes <= STAGED && !capturing;
    let action = if staged {
        // SAFETY: promised by the caller.
        let bytes = unsafe { stage(src as usize as *const u8, bytes) };
        Action::Staged { dst, bytes }
    } else {
        Action::Copy { dst, src, len: bytes, host_dst, host_src }
    };
    let work = Work::Touch { device, actions: Arc::from([action]) };
    let Some(point) = m.submit(uid, work, Vec::new(), &[])? else {
        return Ok(());
    };
    let wait = match wait {
        Wait::UnlessDevice => m.is_host(dst) || m.is_host(src),
        Wait::ForPageable => host_dst || (host_src && !staged),
    };
    if wait {
        let clock = m.stream(uid)?.clock.clone();
        m.wait_points(&[point])?;
        m.learn(&clock);
        m.devices[device].check()?;
    }
    Ok(())
}

fn fill(m: &mut Locked, stream: usize, dst: u64, value: u8, len: usize) -> Result<(), i32> {
    let uid = m.stream_of(stream)?;
    if len == 0 {
        return Ok(());
    }
    let device = m.stream(uid)?.device;
    if m.side(device, dst, len, true) != Side::Known {
        return Err(INVALID_VALUE);
    }
    let work = Work::Touch { device, actions: Arc::from([Action::Fill { dst, value, len }]) };
    m.submit(uid, work, Vec::new(), &[])?;
    Ok(())
}
