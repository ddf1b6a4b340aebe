//! Captures, graphs and user objects.

#![allow(non_snake_case, reason = "the names are the driver's")]

use super::{input, out};
use crate::sim::capture::CallClass;
use crate::sim::codes::*;
use crate::sim::machine::enter;
use crate::sim::queue::Locked;
use crate::sim::thread;
use crate::sys::*;
use crate::table::CallId;

pub(in crate::sim) unsafe extern "C" fn cuStreamIsCapturing(
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
) -> CUresult {
    enter(CallId::cuStreamIsCapturing, |m| {
        let status = out!(status);
        let uid = m.stream_of(stream as usize)?;
        m.judge_stream(uid, CallClass::Question, CallClass::LegacyQuestion)?;
        status.set(status_of(m, uid));
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuStreamGetCaptureInfo(
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
    id: *mut cuuint64_t,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    count: *mut usize,
) -> CUresult {
    enter(CallId::cuStreamGetCaptureInfo, |m| {
        let status = out!(status);
        let uid = m.stream_of(stream as usize)?;
        m.judge_stream(uid, CallClass::Question, CallClass::LegacyQuestion)?;
        status.set(status_of(m, uid));
        let Some(c) = m.capture_of(uid).filter(|c| !c.dead) else {
            return Ok(());
        };
        let (number, made) = (c.id, c.graph);
        if !id.is_null() {
            out!(id).set(number);
        }
        if !graph.is_null() {
            out!(graph).set(made as CUgraph);
        }
        let tail = m.stream(uid)?.taking.as_ref().map(|t| t.tail.clone()).unwrap_or_default();
        if !count.is_null() {
            out!(count).set(tail.len());
        }
        if let Some(c) = m.captures.get_mut(&number) {
            // Nodes have numbers here, not addresses; what is given out tells them apart.
            c.told = tail.iter().map(|n| made + n + 1).collect();
            if !dependencies.is_null() {
                out!(dependencies).set(c.told.as_ptr().cast());
            }
        }
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuStreamBeginCapture(stream: CUstream, mode: CUstreamCaptureMode) -> CUresult {
    enter(CallId::cuStreamBeginCapture, |m| {
        let uid = m.stream_of(stream as usize)?;
        m.begin_capture(uid, mode)
    })
}

pub(in crate::sim) unsafe extern "C" fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CUresult {
    enter(CallId::cuStreamEndCapture, |m| {
        let uid = m.stream_of(stream as usize)?;
        if m.capture_of(uid).is_none() {
            return Err(ILLEGAL_STATE);
        }
        if graph.is_null() {
            // The capture ends all the same; nobody can have its graph.
            let made = m.end_capture(uid)?;
            return m.graph_destroy(made);
        }
        let graph = out!(graph);
        graph.set(std::ptr::null_mut());
        graph.set(m.end_capture(uid)? as CUgraph);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) -> CUresult {
    enter(CallId::cuThreadExchangeStreamCaptureMode, |m| {
        let _ = m;
        let new = input!(mode);
        if new > CU_STREAM_CAPTURE_MODE_RELAXED {
            return Err(INVALID_VALUE);
        }
        out!(mode).set(thread::exchange_mode(new));
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuGraphInstantiateWithFlags(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: c_ulonglong,
) -> CUresult {
    enter(CallId::cuGraphInstantiateWithFlags, |m| {
        let exec = out!(exec);
        if flags != 0 {
            return Err(NOT_SUPPORTED);
        }
        exec.set(m.instantiate(graph as usize)? as CUgraphExec);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> CUresult {
    enter(CallId::cuGraphLaunch, |m| {
        let uid = m.stream_of(stream as usize)?;
        m.launch(exec as usize, uid)
    })
}

pub(in crate::sim) unsafe extern "C" fn cuGraphDestroy(graph: CUgraph) -> CUresult {
    enter(CallId::cuGraphDestroy, |m| m.graph_destroy(graph as usize))
}

pub(in crate::sim) unsafe extern "C" fn cuGraphExecDestroy(exec: CUgraphExec) -> CUresult {
    enter(CallId::cuGraphExecDestroy, |m| m.exec_destroy(exec as usize))
}

pub(in crate::sim) unsafe extern "C" fn cuUserObjectCreate(
    object: *mut CUuserObject,
    user: *mut c_void,
    destroy: CUhostFn,
    references: c_uint,
    flags: c_uint,
) -> CUresult {
    enter(CallId::cuUserObjectCreate, |m| {
        let object = out!(object);
        let destroy = destroy.ok_or(INVALID_VALUE)?;
        if references == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC {
            return Err(INVALID_VALUE);
        }
        object.set(m.object_create(destroy, user as usize, references) as CUuserObject);
        Ok(())
    })
}

pub(in crate::sim) unsafe extern "C" fn cuUserObjectRelease(object: CUuserObject, references: c_uint) -> CUresult {
    enter(CallId::cuUserObjectRelease, |m| m.object_release_checked(object as usize, references))
}

pub(in crate::sim) unsafe extern "C" fn cuGraphRetainUserObject(
    graph: CUgraph,
    object: CUuserObject,
    references: c_uint,
    flags: c_uint,
) -> CUresult {
    enter(CallId::cuGraphRetainUserObject, |m| {
        if flags > CU_GRAPH_USER_OBJECT_MOVE {
            return Err(INVALID_VALUE);
        }
        m.graph_retain(graph as usize, object as usize, references, flags == CU_GRAPH_USER_OBJECT_MOVE)
    })
}

fn status_of(m: &Locked, uid: u64) -> CUstreamCaptureStatus {
    match m.capture_of(uid) {
        None => CU_STREAM_CAPTURE_STATUS_NONE,
        Some(c) if c.dead => CU_STREAM_CAPTURE_STATUS_INVALIDATED,
        Some(_) => CU_STREAM_CAPTURE_STATUS_ACTIVE,
    }
}
