//! Rust objects that the library keeps alive.
//!
//! Unsafe in this file: the two conversions between a box and the pointer that the border carries.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tenure_abi::*;

use crate::error::{Result, check};

/// What keeps `owner` alive until the library releases it.
pub(crate) fn keep(owner: impl Any + Send) -> tenure_owner {
    let boxed: Box<Box<dyn Any + Send>> = Box::new(Box::new(owner));
    tenure_owner { context: Box::into_raw(boxed).cast(), release: Some(release) }
}

/// Drops an object that [`keep`] made.
unsafe extern "C" fn release(context: *mut c_void) {
    // SAFETY: the library calls this once, with the context that `keep` made.
    let owner = unsafe { Box::from_raw(context.cast::<Box<dyn Any + Send>>()) };
    drop_quietly(owner);
}

/// Drops `value`; a panic in its destructor ends here, since it must not unwind into the library.
pub(crate) fn drop_quietly<T>(value: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(move || drop(value))) {
        // What was thrown may throw again when dropped.
        std::mem::forget(panic);
    }
}

/// The library takes an owner only from a successful call on; after a failed one it is dropped here.
pub(crate) fn give_back_on_failure(api: &tenure_api, status: tenure_status, owner: tenure_owner) -> Result<()> {
    let result = check(api, status);
    if result.is_err()
        && let Some(release) = owner.release
    {
        // SAFETY: the library did not take the owner, so that this is the only release.
        unsafe { release(owner.context) };
    }
    result
}
