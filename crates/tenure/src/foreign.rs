//! Free functions of memory that no resource of tenure's made.
//!
//! The library calls the function and then releases the owner; the closure lives in the owner, so that it is dropped also
//! where it is never called.
//!
//! Unsafe in this file: the function that the library calls back.

use std::ffi::c_void;

use tenure_abi::*;

use crate::owner::{self, quietly};
use crate::stream::StreamRef;

/// A free function.
pub(crate) type Free = Box<dyn FnOnce(*mut c_void, usize, StreamRef<'_>) + Send>;

/// Calls the closure.
pub(crate) unsafe extern "C" fn call(context: *mut c_void, ptr: *mut c_void, bytes: usize, stream: tenure_stream) {
    // SAFETY: the library calls this once, before the release, with the context that was kept for it.
    let free = unsafe { owner::take::<Free>(context) };
    let Some(free) = free else { return };
    // SAFETY: the library names a stream that is alive during the call.
    let stream = unsafe { StreamRef::from_abi(stream) };
    quietly(|| free(ptr, bytes, stream));
}
