//! Captures, graphs, and the objects that live as long as a graph.

use super::{Driver, Result, call};
use crate::stream::{CaptureStatus, RawStream};
use crate::sys::*;

/// What the driver says of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaptureInfo {
    /// Whether the stream is being captured. The fields below are 0 and null when it is not.
    pub status: CaptureStatus,
    /// A number of the capture that no other capture of the process gets.
    pub id: u64,
    /// The graph that is being made; valid while the capture runs.
    pub graph: CUgraph,
}

impl Driver {
    /// Whether a stream is being captured, and into what.
    ///
    /// # Errors
    /// What the driver says, but for code 906, which is [`CaptureStatus::Implicit`].
    pub fn stream_capture_info(&self, stream: RawStream) -> Result<CaptureInfo> {
        let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
        let mut id = 0;
        let mut graph = core::ptr::null_mut();
        let none = CaptureInfo { status: CaptureStatus::None, id: 0, graph: core::ptr::null_mut() };
        // SAFETY: the driver writes an integer, an integer and a handle; what is null is not written. The stream is live
        // by `RawStream`'s promise.
        let result = unsafe {
            call!(
                self,
                cuStreamGetCaptureInfo(
                    stream.as_raw(),
                    &mut status,
                    &mut id,
                    &mut graph,
                    core::ptr::null_mut(),
                    core::ptr::null_mut()
                )
            )
        };
        match result {
            Ok(()) => match CaptureStatus::from_code(status) {
                CaptureStatus::Active => Ok(CaptureInfo { status: CaptureStatus::Active, id, graph }),
                status => Ok(CaptureInfo { status, ..none }),
            },
            Err(error) if error.code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => {
                Ok(CaptureInfo { status: CaptureStatus::Implicit, ..none })
            }
            Err(error) => Err(error),
        }
    }

    /// Begins the capture of a stream (`CU_STREAM_CAPTURE_MODE_*`).
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream_begin_capture(&self, stream: RawStream, mode: CUstreamCaptureMode) -> Result<()> {
        // SAFETY: the stream is live by `RawStream`'s promise.
        unsafe { call!(self, cuStreamBeginCapture(stream.as_raw(), mode)) }
    }

    /// Ends the capture of a stream; the caller owns the graph. Null when the capture had been ended by a call that is
    /// not legal in it and the driver reports no error.
    ///
    /// # Errors
    /// What the driver says, such as code 901 after such a call.
    pub fn stream_end_capture(&self, stream: RawStream) -> Result<CUgraph> {
        let mut graph = core::ptr::null_mut();
        // SAFETY: the driver writes one handle; the stream is live by `RawStream`'s promise.
        unsafe { call!(self, cuStreamEndCapture(stream.as_raw(), &mut graph)) }?;
        Ok(graph)
    }

    /// Makes an executable of a graph; the caller owns it.
    ///
    /// # Safety
    ///
    /// The graph exists.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn graph_instantiate(&self, graph: CUgraph, flags: u64) -> Result<CUgraphExec> {
        let mut exec = core::ptr::null_mut();
        // SAFETY: the driver writes one handle; the graph exists by this function's contract.
        unsafe { call!(self, cuGraphInstantiateWithFlags(&mut exec, graph, flags)) }?;
        Ok(exec)
    }

    /// Runs an executable graph in the order of a stream.
    ///
    /// # Safety
    ///
    /// The executable exists, and the memory that its nodes name is valid until the run is over.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn graph_launch(&self, exec: CUgraphExec, stream: RawStream) -> Result<()> {
        // SAFETY: by this function's contract; the stream is live by `RawStream`'s promise.
        unsafe { call!(self, cuGraphLaunch(exec, stream.as_raw())) }
    }

    /// Destroys a graph.
    ///
    /// # Safety
    ///
    /// The caller owns the graph, and no call names it from now on.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn graph_destroy(&self, graph: CUgraph) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuGraphDestroy(graph)) }
    }

    /// Destroys an executable graph. A run that is under way ends first.
    ///
    /// # Safety
    ///
    /// The caller owns the executable, and no call names it from now on.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn graph_exec_destroy(&self, exec: CUgraphExec) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self, cuGraphExecDestroy(exec)) }
    }

    /// Has `function(user)` called once when a graph, all its executables and the last run of them are gone.
    ///
    /// The graph is the only holder: if the call fails, `function` is *not* called and `user` stays the caller's.
    ///
    /// # Safety
    ///
    /// The graph exists. `function` may be called with `user` once, from any thread, at any later time; it does not
    /// unwind and makes no driver call.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn graph_on_destroy(
        &self,
        graph: CUgraph,
        function: unsafe extern "C" fn(*mut c_void),
        user: *mut c_void,
    ) -> Result<()> {
        /// What the driver holds.
        struct Held {
            function: unsafe extern "C" fn(*mut c_void),
            user: *mut c_void,
        }
        unsafe extern "C" fn run(held: *mut c_void) {
            // SAFETY: the driver calls this once with the address of the box leaked below.
            let held = unsafe { Box::from_raw(held.cast::<Held>()) };
            // SAFETY: by the contract of `graph_on_destroy`.
            unsafe { (held.function)(held.user) };
        }
        unsafe extern "C" fn nothing(_: *mut c_void) {}
        let held = Box::into_raw(Box::new(Held { function, user }));
        let mut object = core::ptr::null_mut();
        // SAFETY: the driver writes one handle and keeps `run` and its argument, which stay valid until it is called.
        let made = unsafe {
            call!(self, cuUserObjectCreate(&mut object, held.cast(), Some(run), 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC))
        };
        if let Err(error) = made {
            // SAFETY: the driver has not taken the box.
            drop(unsafe { Box::from_raw(held) });
            return Err(error);
        }
        // SAFETY: graph and object exist; the one reference moves to the graph.
        let given = unsafe { call!(self, cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE)) };
        if let Err(error) = given {
            // SAFETY: the only reference is still ours, so that the box exists and nobody else reads it yet.
            unsafe { (*held).function = nothing };
            // SAFETY: gives our reference up; `run` frees the box.
            let _ = unsafe { call!(self, cuUserObjectRelease(object, 1)) };
            return Err(error);
        }
        Ok(())
    }
}
