//! Streams: making, asking, waiting, and functions called on the host.

#![allow(non_snake_case, reason = "the names are the driver's")]

use super::out;
use crate::sim::capture::CallClass;
use crate::sim::codes::*;
use crate::sim::machine::enter;
use crate::sim::op::Work;
use crate::sim::queue::Locked;
use crate::sim::schedule::polled;
use crate::sim::stream::Role;
use crate::sys::*;
use crate::table::CallId;

pub(in crate::sim) unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> CUresult {
    enter(CallId::cuStreamCreate, |m| {
        let stream = out!(stream);
        stream.set(create(m, flags)?);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut CUstream,
    flags: c_uint,
    priority: c_int,
) -> CUresult {
    enter(CallId::cuStreamCreateWithPriority, |m| {
        // All streams of the simulated device are equal, as on a device whose range of priorities is 0 to 0.
        let _ = priority;
        let stream = out!(stream);
        stream.set(create(m, flags)?);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuStreamDestroy(stream: CUstream) -> CUresult {
    enter(CallId::cuStreamDestroy, |m| {
        let handle = stream as usize;
        if handle <= 2 {
            return Err(INVALID_HANDLE);
        }
        let uid = match m.stream_handles.remove(handle) {
            Some(uid) => uid,
            None => return Err(m.bad_stream(handle)),
        };
        m.leave_capture(uid);
        m.stream(uid)?.destroyed = true;
        m.pump(uid);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    enter(CallId::cuStreamSynchronize, |m| {
        let uid = m.stream_of(stream as usize)?;
        m.judge_stream(uid, CallClass::Identity, CallClass::LegacyUse)?;
        m.judge_unsafe()?;
        let device = m.stream(uid)?.device;
        let (points, clock) = (m.behind(uid), m.clock_behind(uid));
        m.wait_points(&points)?;
        m.learn(&clock);
        m.pools_at_sync(device);
        m.devices[device].check()
    })
}

pub(in crate::sim) unsafe extern "C" fn cuStreamQuery(stream: CUstream) -> CUresult {
    enter(CallId::cuStreamQuery, |m| {
        let uid = m.stream_of(stream as usize)?;
        m.judge_stream(uid, CallClass::Identity, CallClass::LegacyUse)?;
        m.judge_unsafe()?;
        if m.behind(uid).iter().all(|p| m.passed(*p)) {
            let clock = m.clock_behind(uid);
            m.learn(&clock);
            let device = m.stream(uid)?.device;
            return m.devices[device].check();
        }
        polled(m);
        Err(NOT_READY)
    })
}

pub(in crate::sim) unsafe extern "C" fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> CUresult {
    enter(CallId::cuStreamWaitEvent, |m| {
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        let uid = m.stream_of(stream as usize)?;
        m.event(event as usize)?;
        m.judge_stream(uid, CallClass::Question, CallClass::LegacyUse)?;
        m.wait_event(uid, event as usize)
    })
}

pub(in crate::sim) unsafe extern "C" fn cuStreamGetId(stream: CUstream, id: *mut c_ulonglong) -> CUresult {
    enter(CallId::cuStreamGetId, |m| {
        let id = out!(id);
        let uid = m.stream_of(stream as usize)?;
        m.judge_stream(uid, CallClass::Identity, CallClass::LegacyUse)?;
        id.set(uid);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext) -> CUresult {
    enter(CallId::cuStreamGetCtx, |m| {
        let context = out!(context);
        let uid = m.stream_of(stream as usize)?;
        m.judge_stream(uid, CallClass::Question, CallClass::LegacyUse)?;
        let device = m.stream(uid)?.device;
        context.set(m.devices[device].context as CUcontext);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint) -> CUresult {
    enter(CallId::cuStreamGetFlags, |m| {
        let flags = out!(flags);
        let uid = m.stream_of(stream as usize)?;
        m.judge_stream(uid, CallClass::Identity, CallClass::LegacyUse)?;
        flags.set(if m.stream(uid)?.blocking { CU_STREAM_DEFAULT } else { CU_STREAM_NON_BLOCKING });
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuLaunchHostFunc(
    stream: CUstream,
    function: CUhostFn,
    user: *mut c_void,
) -> CUresult {
    enter(CallId::cuLaunchHostFunc, |m| {
        let function = function.ok_or(INVALID_VALUE)?;
        let uid = m.stream_of(stream as usize)?;
        m.submit(uid, Work::Call(function, user as usize), Vec::new(), &[])?;
        Ok(())
    })
}

fn create(m: &mut Locked, flags: c_uint) -> Result<CUstream, i32> {
    if flags > CU_STREAM_NON_BLOCKING {
        return Err(INVALID_VALUE);
    }
    let device = m.current()?;
    let uid = m.new_stream(device, Role::Created, flags == CU_STREAM_DEFAULT);
    Ok(m.stream_handles.insert(uid) as CUstream)
}
