//! What must not be done: the feature `static` in a shared library. It is here to show that it is refused.

use std::ffi::c_char;

/// Writes why the table of this library cannot be used to `text` (at most `room` bytes, ended by a zero byte); returns 1 when
/// it can be used.
///
/// # Safety
/// `text` must be valid for writing `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn static_library_try(text: *mut c_char, room: usize) -> i32 {
    let Err(error) = tenure::api() else { return 1 };
    let said = error.to_string();
    let count = said.len().min(room.saturating_sub(1));
    // SAFETY: the caller promises the room.
    unsafe {
        std::ptr::copy_nonoverlapping(said.as_ptr(), text.cast(), count);
        text.add(count).write(0);
    }
    0
}
