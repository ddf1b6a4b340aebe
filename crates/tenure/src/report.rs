//! What the library says about itself and about logs, as JSON.
//!
//! Unsafe in this file: calls through the table, and the function that it calls back.

use std::ffi::{CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tenure_abi::*;

use crate::api;
use crate::error::{Error, Result, check, text};

/// The version of the library, such as `"0.1.0"`, which need not be that of this crate.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn version() -> Result<String> {
    // SAFETY: no argument; the string is never null and lives as long as the process.
    Ok(text(unsafe { (api()?.version)() }))
}

/// What is here, as JSON: version, ABI, device layer, driver version, devices and capabilities, or why there is none.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn describe() -> Result<String> {
    let api = api()?;
    take_text(api, |out| {
        // SAFETY: the pointer is valid for writing.
        unsafe { (api.describe)(out) }
    })
}

/// Closes what calls that must not wait have left to close. May wait. Programs in Rust need it only beside code of another
/// language that makes such calls.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn collect() -> Result<()> {
    let api = api()?;
    // SAFETY: no argument.
    check(api, unsafe { (api.collect)() })
}

/// Replays an allocation log in the engine. `options` is the JSON that `tenure_replay` of the C header describes; the answer
/// is JSON with the fields that `tenure replay --json` prints. `progress` is told events done and events in all, now and
/// then, and stops the replay by returning false.
///
/// # Errors
/// [`Error::Invalid`] for a log or options that cannot be read; what the driver says.
pub fn replay(options: &str, mut progress: impl FnMut(u64, u64) -> bool) -> Result<String> {
    let api = api()?;
    let options =
        CString::new(options).map_err(|_| Error::Invalid("the options of a replay hold a zero byte".into()))?;
    let mut progress: &mut dyn FnMut(u64, u64) -> bool = &mut progress;
    let context: *mut &mut dyn FnMut(u64, u64) -> bool = &mut progress;
    take_text(api, |out| {
        // SAFETY: options is a string; the context is what `step` reads and outlives the call; out is valid for writing.
        unsafe { (api.replay)(options.as_ptr(), Some(step), context.cast(), out) }
    })
}

unsafe extern "C" fn step(context: *mut c_void, done: u64, total: u64) -> i32 {
    // SAFETY: the library passes the context of the call that is in progress, on the thread that made it.
    let progress = unsafe { &mut *context.cast::<&mut dyn FnMut(u64, u64) -> bool>() };
    match catch_unwind(AssertUnwindSafe(|| progress(done, total))) {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(panic) => {
            std::mem::forget(panic);
            1
        }
    }
}

/// Receives text, copies it and gives it back.
pub(crate) fn take_text(api: &tenure_api, ask: impl FnOnce(*mut tenure_text) -> tenure_status) -> Result<String> {
    let mut out = tenure_text { data: std::ptr::null(), size: 0 };
    check(api, ask(&mut out))?;
    let copy = text(out.data);
    // SAFETY: the text is the library's and is given back once.
    unsafe { (api.text_free)(&mut out) };
    Ok(copy)
}
