//! The library itself: version, errors, misuse, text, the end of the process.

use std::ffi::{CStr, CString, c_char, c_void};

use tenure_abi::*;
use tenure_core::error::{Error, Payload};
use tenure_core::sync::Arc;
use tenure_core::{misuse, resource::registry};

use crate::guard::{self, exports};
use crate::handles::{text_out, writable, write};

/// Registered right after the driver was first initialised, hence run before the driver's own exit handler.
pub(crate) fn at_driver_init() {
    extern "C" fn ending() {
        tenure_driver::process::begin_exit();
        tenure_core::pool::end_background();
        tenure_core::adaptor::logging::finish_all();
    }
    // SAFETY: registers a function without arguments. A failure (no room in the table) leaves exit as unsafe as without
    // tenure; nothing better can be done.
    unsafe { libc::atexit(ending) };
}

/// `tenure_version` of the C ABI; its text is in `tenure-abi`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tenure_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}

/// `tenure_error_get` of the C ABI; its text is in `tenure-abi`. Without a guard: it must not replace what it reads.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tenure_error_get(out: *mut tenure_error) -> tenure_status {
    if out.is_null() {
        return TENURE_ERROR_INVALID_ARGUMENT;
    }
    // SAFETY: not null; the first field is the size that the caller knows.
    let known = unsafe { out.cast::<usize>().read() };
    if known < size_of::<usize>() || known > 1 << 16 {
        return TENURE_ERROR_INVALID_ARGUMENT;
    }
    // SAFETY: a structure of integers and pointers: all zeros are a value.
    let mut detail: tenure_error = unsafe { std::mem::zeroed() };
    detail.size = known;
    let described = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| guard::describe(&mut detail)));
    if described.is_err() {
        return TENURE_ERROR_INTERNAL;
    }
    let bytes = known.min(size_of::<tenure_error>());
    // SAFETY: both are at least `bytes` long.
    unsafe { std::ptr::copy_nonoverlapping((&raw const detail).cast::<u8>(), out.cast::<u8>(), bytes) };
    TENURE_OK
}

exports! { guard:
    fn tenure_misuse_set_handler(handler: tenure_misuse_fn, owner: tenure_owner) {
        let previous = match handler {
            None => misuse::set_handler(None),
            Some(handler) => {
                let context = Context(owner.context, crate::handles::owner(owner));
                misuse::set_handler(Some(Arc::new(move |line: &str| {
                    let context = &context;
                    let line = CString::new(line.replace('\0', " ")).unwrap_or_default();
                    // SAFETY: the owner keeps the context alive, and it is held by this closure.
                    unsafe { handler(context.0, line.as_ptr()) }
                })))
            }
        };
        drop(previous);
    }

    fn tenure_describe(out: *mut tenure_text) {
        writable(out)?;
        text_out(crate::device::describe(), out)?;
    }
}

exports! { guard_release:
    fn tenure_misuse_report() {
        if guard::with_last(misuse::report).is_none() {
            misuse::report(&Error::invalid("a wrong free was reported without an error on this thread"));
        }
    }

    fn tenure_collect() {
        registry::collect();
    }

    fn tenure_interpreter_exit() {
        crate::callback::interpreter_exit();
    }

    fn tenure_text_free(given: *mut tenure_text) {
        if given.is_null() {
            return Ok(());
        }
        // SAFETY: not null, and by the contract a structure that this library filled or that is zero.
        let given = unsafe { &mut *given };
        if !given.data.is_null() {
            let bytes = std::ptr::slice_from_raw_parts_mut(given.data.cast_mut().cast::<u8>(), given.size + 1);
            // SAFETY: made by `text_out` from a box of exactly this length, and forgotten below.
            drop(unsafe { Box::from_raw(bytes) });
        }
        given.data = std::ptr::null();
        given.size = 0;
    }
}

exports! { run:
    fn tenure_error_set(
        status: tenure_status, message: *const c_char, payload_kind: u32, payload: *mut c_void,
        release: Option<unsafe extern "C" fn(*mut c_void)>,
    ) {
        // Taken over first, so that it is released whatever happens.
        let payload = (!payload.is_null()).then(|| Payload { kind: payload_kind, data: payload, release });
        let message = if message.is_null() {
            "a callback failed".into()
        } else {
            // Whatever its encoding: what a callback says of its failure is not lost.
            // SAFETY: a C string, by the contract.
            unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
        };
        guard::set_by_callback(status, message, payload)?;
    }

    fn tenure_error_take_payload(payload_kind: u32, out: *mut *mut c_void) {
        writable(out)?;
        write(out, guard::take_payload(payload_kind).unwrap_or(std::ptr::null_mut()))?;
    }

    fn tenure_misuse_count(out: *mut u64) {
        write(out, misuse::count())?;
    }
}

/// A context and what keeps it alive.
pub(crate) struct Context(
    pub(crate) *mut c_void,
    #[allow(dead_code, reason = "held for its drop")] pub(crate) Option<Payload>,
);

// SAFETY: by the contract of the C ABI contexts may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}
