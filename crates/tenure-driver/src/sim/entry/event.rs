//! Events.

#![allow(non_snake_case, reason = "the names are the driver's")]

use super::out;
use crate::sim::capture::CallClass;
use crate::sim::codes::*;
use crate::sim::event::{Event, Recorded};
use crate::sim::machine::enter;
use crate::sim::schedule::polled;
use crate::sim::stream::Clock;
use crate::sys::*;
use crate::table::CallId;

pub(in crate::sim) unsafe extern "C" fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CUresult {
    enter(CallId::cuEventCreate, |m| {
        let event = out!(event);
        if flags > 7 {
            return Err(INVALID_VALUE);
        }
        if flags & CU_EVENT_INTERPROCESS != 0 {
            return Err(NOT_SUPPORTED);
        }
        let device = m.current()?;
        let new = Event {
            device,
            timing: flags & CU_EVENT_DISABLE_TIMING == 0,
            recorded: Recorded::Never,
            clock: Clock::default(),
            issue: 0,
            time: None,
        };
        event.set(m.events.insert(new) as CUevent);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuEventDestroy(event: CUevent) -> CUresult {
    enter(CallId::cuEventDestroy, |m| {
        m.event(event as usize)?;
        m.events.remove(event as usize);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    enter(CallId::cuEventRecord, |m| {
        m.event(event as usize)?;
        let uid = m.stream_of(stream as usize)?;
        m.judge_stream(uid, CallClass::Question, CallClass::LegacyUse)?;
        m.record(event as usize, uid)
    })
}

pub(in crate::sim) unsafe extern "C" fn cuEventQuery(event: CUevent) -> CUresult {
    enter(CallId::cuEventQuery, |m| {
        let device = m.event(event as usize)?.device;
        m.devices[device].check()?;
        let points = m.event_points(event as usize)?;
        m.judge_unsafe()?;
        if points.iter().all(|p| m.passed(*p)) {
            let clock = m.event(event as usize)?.clock.clone();
            m.learn(&clock);
            return Ok(());
        }
        polled(m);
        Err(NOT_READY)
    })
}

pub(in crate::sim) unsafe extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    enter(CallId::cuEventSynchronize, |m| {
        let device = m.event(event as usize)?.device;
        m.devices[device].check()?;
        let points = m.event_points(event as usize)?;
        m.judge_unsafe()?;
        let clock = m.event(event as usize)?.clock.clone();
        m.wait_points(&points)?;
        m.learn(&clock);
        m.pools_at_sync(device);
        m.devices[device].check()
    })
}

pub(in crate::sim) unsafe extern "C" fn cuEventElapsedTime(
    milliseconds: *mut f32,
    start: CUevent,
    end: CUevent,
) -> CUresult {
    enter(CallId::cuEventElapsedTime, |m| {
        let milliseconds = out!(milliseconds);
        let mut times = [None; 2];
        for (event, time) in [start, end].into_iter().zip(&mut times) {
            let e = m.event(event as usize)?;
            if !e.timing || matches!(e.recorded, Recorded::Never) {
                return Err(INVALID_HANDLE);
            }
            let points = m.event_points(event as usize)?;
            if !points.iter().all(|p| m.passed(*p)) {
                return Err(NOT_READY);
            }
            // One behind a whole context has no operation that stamps it.
            m.stamp_if_passed(event as usize);
            *time = m.event(event as usize)?.time;
        }
        let [Some(from), Some(to)] = times else {
            return Err(NOT_READY);
        };
        let seconds = match to.checked_duration_since(from) {
            Some(later) => later.as_secs_f32(),
            None => -from.duration_since(to).as_secs_f32(),
        };
        milliseconds.set(seconds * 1000.0);
        Ok(())
    })
}
