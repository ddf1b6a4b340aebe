//! Contexts: one a device, its primary one, and the stack of current ones of each thread.

#![allow(non_snake_case, reason = "the names are the driver's")]

use super::out;
use crate::sim::capture::CallClass;
use crate::sim::codes::*;
use crate::sim::machine::enter;
use crate::sim::thread;
use crate::sys::*;
use crate::table::CallId;

pub(in crate::sim) unsafe extern "C" fn cuDevicePrimaryCtxRetain(
    context: *mut CUcontext,
    device: CUdevice,
) -> CUresult {
    enter(CallId::cuDevicePrimaryCtxRetain, |m| {
        let context = out!(context);
        let device = m.device(device)?;
        let d = &mut m.devices[device];
        d.retained += 1;
        context.set(d.context as CUcontext);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuDevicePrimaryCtxRelease(device: CUdevice) -> CUresult {
    enter(CallId::cuDevicePrimaryCtxRelease, |m| {
        let device = m.device(device)?;
        if m.devices[device].retained == 0 {
            return Err(INVALID_CONTEXT);
        }
        m.devices[device].retained -= 1;
        if m.devices[device].retained == 0 {
            // The last release ends what is queued; a fault ends with the context.
            let tips = m.tips(device);
            let clock = m.clock_of_device(device);
            m.wait_points(&tips)?;
            m.learn(&clock);
            m.devices[device].fault = 0;
        }
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: CUdevice,
    flags: *mut c_uint,
    active: *mut c_int,
) -> CUresult {
    enter(CallId::cuDevicePrimaryCtxGetState, |m| {
        let (flags, active) = (out!(flags), out!(active));
        let device = m.device(device)?;
        flags.set(m.devices[device].flags);
        active.set(c_int::from(m.devices[device].retained > 0));
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuDevicePrimaryCtxSetFlags(device: CUdevice, flags: c_uint) -> CUresult {
    enter(CallId::cuDevicePrimaryCtxSetFlags, |m| {
        let device = m.device(device)?;
        m.devices[device].flags = flags;
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuCtxGetCurrent(context: *mut CUcontext) -> CUresult {
    enter(CallId::cuCtxGetCurrent, |m| {
        let _ = m;
        out!(context).set(thread::current() as CUcontext);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    enter(CallId::cuCtxSetCurrent, |m| {
        if !context.is_null() {
            m.context(context as usize)?;
        }
        thread::set_current(context as usize);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuCtxPushCurrent(context: CUcontext) -> CUresult {
    enter(CallId::cuCtxPushCurrent, |m| {
        if context.is_null() {
            return Err(INVALID_VALUE);
        }
        m.context(context as usize)?;
        thread::push(context as usize)
    })
}

pub(in crate::sim) unsafe extern "C" fn cuCtxPopCurrent(context: *mut CUcontext) -> CUresult {
    enter(CallId::cuCtxPopCurrent, |m| {
        let _ = m;
        let popped = thread::pop()?;
        if !context.is_null() {
            out!(context).set(popped as CUcontext);
        }
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuCtxGetDevice(device: *mut CUdevice) -> CUresult {
    enter(CallId::cuCtxGetDevice, |m| {
        let device = out!(device);
        device.set(m.current()? as CUdevice);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuCtxSynchronize() -> CUresult {
    enter(CallId::cuCtxSynchronize, |m| {
        let device = m.current()?;
        m.judge(CallClass::Context, |c| c.device == device)?;
        let tips = m.tips(device);
        let clock = m.clock_of_device(device);
        m.wait_points(&tips)?;
        m.learn(&clock);
        m.pools_at_sync(device);
        m.devices[device].check()
    })
}

pub(in crate::sim) unsafe extern "C" fn cuCtxGetId(context: CUcontext, id: *mut c_ulonglong) -> CUresult {
    enter(CallId::cuCtxGetId, |m| {
        let id = out!(id);
        let device = if context.is_null() { m.current()? } else { m.context(context as usize)? };
        id.set(device as c_ulonglong + 1);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuCtxRecordEvent(context: CUcontext, event: CUevent) -> CUresult {
    enter(CallId::cuCtxRecordEvent, |m| {
        let device = if context.is_null() { m.current()? } else { m.context(context as usize)? };
        m.devices[device].check()?;
        m.event(event as usize)?;
        m.judge(CallClass::Context, |c| c.device == device)?;
        m.record_all(event as usize, device)
    })
}
