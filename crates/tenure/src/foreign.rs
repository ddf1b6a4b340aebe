//! Free functions of memory that no resource of tenure's made.
//!
//! The library calls the function and then releases the owner; the closure lives in the owner, so that it is dropped also
//! where it is never called.
//!
//! Unsafe in this file: the functions that the library calls back.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tenure_abi::*;

use crate::owner::drop_quietly;
use crate::stream::StreamRef;

type Free = Box<dyn FnOnce(*mut c_void, usize, StreamRef<'_>) + Send>;

/// The owner that keeps `free` until it is called or released.
pub(crate) fn keep(free: impl FnOnce(*mut c_void, usize, StreamRef<'_>) + Send + 'static) -> tenure_owner {
    let boxed: Box<Option<Free>> = Box::new(Some(Box::new(free)));
    tenure_owner { context: Box::into_raw(boxed).cast(), release: Some(release) }
}

/// Calls the closure.
pub(crate) unsafe extern "C" fn call(context: *mut c_void, ptr: *mut c_void, bytes: usize, stream: tenure_stream) {
    // SAFETY: the library calls this once, before the release, with the context that `keep` made.
    let free = unsafe { (*context.cast::<Option<Free>>()).take() };
    let Some(free) = free else { return };
    // SAFETY: the library names a stream that is alive during the call.
    let stream = unsafe { StreamRef::from_abi(stream) };
    // A panic must not unwind into the library; there is nobody to tell.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| free(ptr, bytes, stream))) {
        std::mem::forget(panic);
    }
}

unsafe extern "C" fn release(context: *mut c_void) {
    // SAFETY: called once, last, with what `keep` made.
    drop_quietly(unsafe { Box::from_raw(context.cast::<Option<Free>>()) });
}
