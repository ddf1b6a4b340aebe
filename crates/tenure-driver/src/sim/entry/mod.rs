//! The driver calls of the simulated device, one file a topic. They check arguments, apply the capture rules, and leave
//! the work to the modules above.
//!
//! These files are unsafe on purpose: each function is called through the table with the pointers of a C interface. What
//! they rely on is the driver's contract: an out-pointer is null (an error) or valid for one write of its type.

pub(super) mod capture;
pub(super) mod context;
pub(super) mod copy;
pub(super) mod device;
pub(super) mod event;
pub(super) mod memory;
pub(super) mod pointer;
pub(super) mod pool;
pub(super) mod sharing;
pub(super) mod stream;
pub(super) mod vmm;

use super::codes::INVALID_VALUE;

/// A place for one result.
pub(super) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    ///
    /// `at` is null or valid for writes of a `T` during the call.
    pub(super) unsafe fn new(at: *mut T) -> Result<Out<T>, i32> {
        if at.is_null() { Err(INVALID_VALUE) } else { Ok(Out(at)) }
    }

    pub(super) fn set(&self, value: T) {
        // SAFETY: promised when it was made.
        unsafe { self.0.write_unaligned(value) };
    }
}

/// The out-pointer of a call, checked for null.
macro_rules! out {
    ($at:expr) => {{
        // SAFETY: by the driver's contract an out-pointer is null or valid for the call.
        unsafe { $crate::sim::entry::Out::new($at) }?
    }};
}
pub(super) use out;

/// A structure or number that a call reads through a pointer, checked for null.
macro_rules! input {
    ($at:expr) => {{
        let at = $at;
        if at.is_null() {
            return Err($crate::sim::codes::INVALID_VALUE);
        }
        // SAFETY: by the driver's contract an in-pointer is null or valid for the call.
        unsafe { at.read_unaligned() }
    }};
}
pub(super) use input;

/// All calls under their names, for the table.
pub(super) mod functions {
    pub(in crate::sim) use super::capture::*;
    pub(in crate::sim) use super::context::*;
    pub(in crate::sim) use super::copy::*;
    pub(in crate::sim) use super::device::*;
    pub(in crate::sim) use super::event::*;
    pub(in crate::sim) use super::memory::*;
    pub(in crate::sim) use super::pointer::*;
    pub(in crate::sim) use super::pool::*;
    pub(in crate::sim) use super::sharing::*;
    pub(in crate::sim) use super::stream::*;
    pub(in crate::sim) use super::vmm::*;
}
