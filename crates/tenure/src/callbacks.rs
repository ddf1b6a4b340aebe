//! Resources written in Rust by users.

use std::ffi::c_void;

use tenure_abi::*;

use crate::error::Error;

/// Who can read our payloads: any copy of this crate, which then looks at the tag.
const PAYLOAD_KIND: u32 = u32::from_be_bytes(*b"rust");

/// The address of this is different in each copy of this crate in the process. Two copies may come from two compilers, so
/// that only the copy which made an error may read it.
static TAG: u8 = 0;

/// An error of ours on its way through the library. The first two fields are read by every copy of this crate.
#[repr(C)]
struct OwnPayload {
    tag: *const u8,
    release: unsafe extern "C" fn(*mut c_void),
    error: Error,
}

/// Frees a payload that nobody wants.
unsafe extern "C" fn release_payload(payload: *mut c_void) {
    // SAFETY: the border calls this once, with what `error_set` was given: a box of ours.
    drop(unsafe { Box::from_raw(payload.cast::<OwnPayload>()) });
}

/// Takes the Rust error out of this thread's detail, if it has one of this very copy of the crate.
pub(crate) fn take_own_payload(api: &tenure_api) -> Option<Error> {
    let mut payload = std::ptr::null_mut();
    // SAFETY: the pointer is valid for writing.
    let status = unsafe { (api.error_take_payload)(PAYLOAD_KIND, &mut payload) };
    if status != TENURE_OK || payload.is_null() {
        return None;
    }
    // SAFETY: a payload of our kind starts with the fields of `OwnPayload`, whoever made it, and is ours alone now.
    unsafe {
        let payload = payload.cast::<OwnPayload>();
        if std::ptr::eq((*payload).tag, &raw const TAG) {
            return Some(Box::from_raw(payload).error);
        }
        ((*payload).release)(payload.cast());
    }
    None
}
