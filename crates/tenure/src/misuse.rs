//! Frees that could not return an error and were wrong.
//!
//! A destructor has nobody to tell. When the memory it would free does not belong where it was named, the block stays
//! live, [`count`] rises and the handler of the process is called: by default one line on stderr.
//!
//! Unsafe in this file: calls through the table, and the function that it calls back.

use std::ffi::{CStr, c_char, c_void};

use tenure_abi::*;

use crate::api;
use crate::error::{Result, check};
use crate::owner::{self, quietly};

type Handler = Box<dyn Fn(&str) + Send + Sync>;

/// How many such frees there were. A test suite asserts that it is 0.
///
/// # Errors
/// [`Error::Load`](crate::Error::Load) without a library.
///
/// # Examples
/// ```
/// assert_eq!(tenure::misuse::count()?, 0);
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn count() -> Result<u64> {
    let api = api()?;
    let mut count = 0;
    // SAFETY: the pointer is valid for writing.
    check(api, unsafe { (api.misuse_count)(&mut count) })?;
    Ok(count)
}

/// Installs `handler` for the process instead of the line on stderr. It is called on any thread, with one line of text.
///
/// # Errors
/// [`Error::Load`](crate::Error::Load) without a library.
pub fn set_handler(handler: impl Fn(&str) + Send + Sync + 'static) -> Result<()> {
    let api = api()?;
    let handler: Handler = Box::new(handler);
    let owner = owner::keep(handler);
    // SAFETY: the owner keeps what the handler reads alive.
    let status = unsafe { (api.misuse_set_handler)(Some(call), owner) };
    // SAFETY: kept for this call, of this type.
    unsafe { owner::settle::<Handler>(api, status, owner) }
}

/// Brings the line on stderr back.
///
/// # Errors
/// [`Error::Load`](crate::Error::Load) without a library.
pub fn reset_handler() -> Result<()> {
    let api = api()?;
    let nobody = tenure_owner { context: std::ptr::null_mut(), release: None };
    // SAFETY: a null handler needs no owner.
    check(api, unsafe { (api.misuse_set_handler)(None, nobody) })
}

unsafe extern "C" fn call(context: *mut c_void, message: *const c_char) {
    if context.is_null() || message.is_null() {
        return;
    }
    // SAFETY: the library passes the context that `set_handler` made, which its owner keeps alive, and a string.
    let (handler, message) = unsafe { (owner::value::<Handler>(context), CStr::from_ptr(message)) };
    let Some(handler) = handler else { return };
    quietly(|| handler(&message.to_string_lossy()));
}

/// For destructors: reports a free that was refused because the memory was not theirs. Other failures (a forked child, the
/// end of the process, a fault of the device) are not misuse, and a destructor cannot mend them.
#[inline]
pub(crate) fn report_if_misuse(api: &tenure_api, status: tenure_status) {
    if status == TENURE_ERROR_OWNERSHIP || status == TENURE_ERROR_BAD_HANDLE {
        // SAFETY: it reads this thread's last error.
        unsafe { (api.misuse_report)() };
    }
}
