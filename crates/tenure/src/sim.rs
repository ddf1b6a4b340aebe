//! The simulated device: faults on demand, streams that are kept busy, rules that are watched.
//!
//! It is chosen with `TENURE_DEVICE=sim` before the first use of a device.
//!
//! Unsafe in this file: calls through the table.

use std::ffi::CString;

use crate::api;
use crate::error::{Error, Result, check};
use crate::stream::StreamRef;

/// True when the device layer of this process is the simulated one. Loads the driver at first use.
///
/// # Errors
/// What loading the driver says.
pub fn is_active() -> Result<bool> {
    let api = api()?;
    let mut active = 0;
    // SAFETY: the pointer is valid for writing.
    check(api, unsafe { (api.sim_active)(&mut active) })?;
    Ok(active != 0)
}

/// Sets the simulated device up before its first use: the number of devices and the bytes of each; 0 leaves a setting as it
/// is.
///
/// # Errors
/// [`Error::Invalid`] for numbers that cannot be, or after the first use.
pub fn configure(devices: i32, memory_bytes: u64) -> Result<()> {
    let api = api()?;
    // SAFETY: no pointer is passed.
    check(api, unsafe { (api.sim_configure)(devices, memory_bytes) })
}

/// Changes the memory of a simulated device while it runs: bytes free plus bytes used.
///
/// # Errors
/// [`Error::Unsupported`] on other devices.
pub fn set_memory(device: i32, memory_bytes: u64) -> Result<()> {
    let api = api()?;
    // SAFETY: no pointer is passed.
    check(api, unsafe { (api.sim_set_memory)(device, memory_bytes) })
}

/// Keeps a stream busy for some milliseconds: what is enqueued after it really runs later. On CUDA too.
///
/// # Errors
/// What the driver says.
pub fn busy<'a>(stream: impl Into<StreamRef<'a>>, milliseconds: u32) -> Result<()> {
    let api = api()?;
    // SAFETY: the stream is alive during the call.
    check(api, unsafe { (api.sim_busy)(stream.into().raw, milliseconds) })
}

/// Makes a later driver call of this name (such as `"cuMemCreate"`) fail with `code`: the next one after `after` that
/// succeed.
///
/// # Errors
/// [`Error::Unsupported`] on other devices; [`Error::Invalid`] for a name that is no call.
pub fn fail_next(call: &str, code: i32, after: u64) -> Result<()> {
    let api = api()?;
    let call = name(call)?;
    // SAFETY: the name is a string.
    check(api, unsafe { (api.sim_fail_next)(call.as_ptr(), code, after) })
}

/// Takes back every failure that has not happened yet.
///
/// # Errors
/// [`Error::Unsupported`] on other devices.
pub fn fail_clear() -> Result<()> {
    let api = api()?;
    // SAFETY: no pointer is passed.
    check(api, unsafe { (api.sim_fail_clear)() })
}

/// How many calls broke the rules of the driver (named a destroyed handle, say).
///
/// # Errors
/// [`Error::Unsupported`] on other devices.
pub fn violations() -> Result<u64> {
    let api = api()?;
    let mut count = 0;
    // SAFETY: the pointer is valid for writing.
    check(api, unsafe { (api.sim_violations)(&mut count) })?;
    Ok(count)
}

/// How many driver calls of this name were made; `None`: of all names. On CUDA, since this was first asked.
///
/// # Errors
/// [`Error::Invalid`] for a name that is no call.
pub fn driver_calls(call: Option<&str>) -> Result<u64> {
    let api = api()?;
    let call = call.map(name).transpose()?;
    let mut count = 0;
    // SAFETY: the name is a string or null; the pointer is valid for writing.
    check(api, unsafe { (api.driver_calls)(call.as_ref().map_or(std::ptr::null(), |c| c.as_ptr()), &mut count) })?;
    Ok(count)
}

fn name(call: &str) -> Result<CString> {
    CString::new(call)
        .map_err(|_| Error::Invalid(format!("{call:?} is not the name of a driver call: it holds a zero byte")))
}

/// Which calls of whom end a capture: the driver's modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CaptureMode {
    /// Unsafe calls of any thread.
    #[default]
    Global,
    /// Unsafe calls of the thread that began it.
    ThreadLocal,
    /// None of them.
    Relaxed,
}

/// A small graph for tests, on CUDA too.
#[derive(Debug)]
pub struct Graph {
    graph: tenure_abi::tenure_graph,
}

impl Graph {
    /// Begins the capture of a stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn begin<'a>(stream: impl Into<StreamRef<'a>>, mode: CaptureMode) -> Result<()> {
        let api = api()?;
        // SAFETY: the stream is alive during the call.
        check(api, unsafe { (api.sim_capture_begin)(stream.into().raw, mode as u32) })
    }

    /// Ends the capture of a stream and makes its graph ready to run.
    ///
    /// # Errors
    /// What the driver says, such as code 901 after a call that has ended the capture.
    pub fn end<'a>(stream: impl Into<StreamRef<'a>>) -> Result<Self> {
        let api = api()?;
        let mut graph = 0;
        // SAFETY: the stream is alive during the call; the pointer is valid for writing.
        check(api, unsafe { (api.sim_capture_end)(stream.into().raw, &mut graph) })?;
        Ok(Self { graph })
    }

    /// Runs it in the order of a stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn launch<'a>(&self, stream: impl Into<StreamRef<'a>>) -> Result<()> {
        let api = api()?;
        // SAFETY: the stream is alive during the call, and the graph as long as this value.
        check(api, unsafe { (api.sim_graph_launch)(self.graph, stream.into().raw) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(api) = api() {
            // SAFETY: it is ended once.
            unsafe { (api.sim_graph_destroy)(self.graph) };
        }
    }
}
