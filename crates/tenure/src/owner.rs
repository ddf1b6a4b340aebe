//! Rust values that the library keeps alive.
//!
//! A value crosses the border as a context and a function that releases it. Whether the library has released a context
//! when the call that passed it fails must not matter, so that the node around the value is counted by two: the call and
//! the library. Whoever comes last frees the node; the value itself is dropped by the release, or by the failed call if no
//! release came.
//!
//! Unsafe in this file: the conversions between a node and the pointer that the border carries.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use tenure_abi::*;

use crate::error::{Result, check};

/// The node around a value.
struct Kept<T> {
    users: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

/// What keeps `value` alive until the library releases it. To be followed by [`settle`] with the status of the call.
pub(crate) fn keep<T: Send>(value: T) -> tenure_owner {
    let node = Box::new(Kept { users: AtomicU32::new(2), value: UnsafeCell::new(Some(value)) });
    tenure_owner { context: Box::into_raw(node).cast(), release: Some(release::<T>) }
}

/// Ends the call that passed the owner; after a failed one the value is dropped.
///
/// # Safety
/// `owner` was made by [`keep`] for this type, and this is called once for it.
pub(crate) unsafe fn settle<T>(api: &tenure_api, status: tenure_status, owner: tenure_owner) -> Result<()> {
    let node = owner.context.cast::<Kept<T>>();
    let result = check(api, status);
    if result.is_ok() {
        // SAFETY: the call's own share keeps the node alive until here.
        unsafe { give_up(node) };
    } else {
        // SAFETY: after a failed call the library has no part in the node any more, whether it released its share or not.
        drop_quietly(unsafe { Box::from_raw(node) });
    }
    result
}

/// The value of a context that [`keep`] made.
///
/// # Safety
/// The library holds the context, and `T` is its type.
pub(crate) unsafe fn value<'a, T>(context: *mut c_void) -> Option<&'a T> {
    // SAFETY: while the library holds the context, nobody takes the value.
    unsafe { (*(*context.cast::<Kept<T>>()).value.get()).as_ref() }
}

/// Takes the value out of a context that [`keep`] made.
///
/// # Safety
/// The library holds the context, `T` is its type, and nobody else looks at the value now.
pub(crate) unsafe fn take<T>(context: *mut c_void) -> Option<T> {
    // SAFETY: as the caller promises.
    unsafe { (*(*context.cast::<Kept<T>>()).value.get()).take() }
}

/// Called by the library when it needs the value no more.
unsafe extern "C" fn release<T>(context: *mut c_void) {
    // SAFETY: called once, by the library, which has held the context until now.
    unsafe {
        drop_quietly(take::<T>(context));
        give_up(context.cast::<Kept<T>>());
    }
}

/// # Safety
/// The caller has a share of the node and does not touch it afterwards.
unsafe fn give_up<T>(node: *mut Kept<T>) {
    // SAFETY: as the caller promises; the last one to give up its share owns the node.
    unsafe {
        if (*node).users.fetch_sub(1, Ordering::AcqRel) == 1 {
            drop(Box::from_raw(node));
        }
    }
}

/// Drops `value`; a panic in its destructor ends here, since it must not unwind into the library.
pub(crate) fn drop_quietly<T>(value: T) {
    quietly(move || drop(value));
}

/// Runs `f`; a panic ends here, since it must not unwind into the library and there is nobody to tell.
pub(crate) fn quietly(f: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(f)) {
        // What was thrown may throw again when dropped.
        std::mem::forget(panic);
    }
}
