//! Memory of several processes.
//!
//! A description goes out as two arrays on the heap, which `tenure_shared_free` takes back, and comes in as two arrays of the
//! caller's. Descriptors that come in are borrowed: they are copied for the call.
//!
//! Unsafe in this file: the arrays, as long as the caller says, by the contract of the C ABI.

use std::ffi::c_void;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use tenure_abi::*;
use tenure_core::error::{Error, Result};
use tenure_core::sharing::{self, Kinds, Shared};

use crate::guard::exports;
use crate::handles::{BUFFERS, buffer_out, fill, named, stream, writable, write};

/// The bytes of a description.
///
/// # Safety
/// It is null, or as many bytes are there for the call.
unsafe fn bytes<'a>(data: *const c_void, count: usize) -> Result<&'a [u8]> {
    if data.is_null() || count == 0 || count > isize::MAX as usize {
        return Err(Error::invalid(
            "there is no description of shared memory: pass what tenure_buffer_share gave in the other process",
        ));
    }
    // SAFETY: not null, not too long, and by this function's contract there.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), count) })
}

/// Copies of the caller's descriptors.
///
/// # Safety
/// The array is null, or as many numbers are there for the call.
unsafe fn copies(fds: *const i32, count: usize) -> Result<Vec<OwnedFd>> {
    if fds.is_null() || count == 0 {
        return Ok(Vec::new());
    }
    if count > 1 << 24 {
        return Err(Error::invalid(format!("{count} descriptors are more than a process can have")));
    }
    // SAFETY: not null, not too long, and by this function's contract there.
    let numbers = unsafe { std::slice::from_raw_parts(fds, count) };
    let copy = |fd: &i32| {
        let closed = || {
            Error::invalid(format!(
                "file descriptor {fd} is closed: pass those that came with the handle, open until the import is done"
            ))
        };
        if *fd < 0 {
            return Err(closed());
        }
        // SAFETY: not -1; a number that is not open is an error of the copy.
        unsafe { BorrowedFd::borrow_raw(*fd) }.try_clone_to_owned().map_err(|_| closed())
    };
    numbers.iter().map(copy).collect()
}

/// Hands an array out; an empty one is null.
fn leak<T>(array: Vec<T>) -> (*mut T, usize) {
    let count = array.len();
    if count == 0 { (std::ptr::null_mut(), 0) } else { (Box::into_raw(array.into_boxed_slice()).cast(), count) }
}

/// Takes an array back.
///
/// # Safety
/// It is null, or [`leak`] gave it with this length.
unsafe fn take_back<T>(array: *mut T, count: usize) -> Vec<T> {
    if array.is_null() {
        return Vec::new();
    }
    // SAFETY: by this function's contract.
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(array, count)) }.into_vec()
}

exports! { guard:
    fn tenure_resource_exports(resource: tenure_resource, out: *mut u32) {
        writable(out)?;
        write(out, sharing::exports(&named(resource)?).0)?;
    }

    fn tenure_buffer_share(buffer: tenure_buffer, kinds: u32, out: *mut tenure_shared) {
        writable(out)?;
        let kinds = Kinds::from_bits(kinds)?;
        // The buffer is not taken out: others may copy it or record streams at the same time.
        let shared = BUFFERS.peek(buffer, |buffer| buffer.to_share())?.share(kinds)?;
        let bytes = shared.to_bytes();
        let fds = shared.into_fds();
        let (data, data_bytes) = leak(bytes);
        let (fds, fd_count) = leak(fds.into_iter().map(IntoRawFd::into_raw_fd).collect());
        write(out, tenure_shared { data: data.cast(), data_bytes, fds, fd_count })?;
    }

    fn tenure_shared_info(data: *const c_void, data_bytes: usize, out: *mut tenure_shared_view) {
        writable(out)?;
        // SAFETY: by the contract of the C ABI.
        let (shared, fds) = Shared::read(unsafe { bytes(data, data_bytes) }?)?;
        let info = tenure_shared_view {
            size: size_of::<tenure_shared_view>(),
            bytes: shared.bytes(),
            fd_count: fds as u64,
            kind: shared.kind().0,
            pid: shared.pid(),
            uuid: shared.uuid(),
        };
        // SAFETY: by the contract of the C ABI.
        unsafe { fill(out, info) }?;
    }

    fn tenure_buffer_import(
        data: *const c_void, data_bytes: usize, fds: *const i32, fd_count: usize, device: i32, given: tenure_stream,
        out: *mut tenure_buffer,
    ) {
        writable(out)?;
        // SAFETY: by the contract of the C ABI.
        let data = unsafe { bytes(data, data_bytes) }?;
        let (_, wanted) = Shared::read(data)?;
        if fd_count != wanted || (wanted > 0 && fds.is_null()) {
            return Err(Error::invalid(format!(
                "the handle comes with {wanted} file descriptors and {fd_count} were given: pass the bytes and all of the \
                 descriptors that belong to them, in their order"
            )));
        }
        // SAFETY: by the contract of the C ABI.
        let shared = Shared::from_bytes(data, unsafe { copies(fds, fd_count) }?)?;
        let home = stream(given)?;
        write(out, buffer_out(sharing::import(&shared, (device != -1).then_some(device), home)?)?)?;
    }
}

exports! { run:
    fn tenure_shared_free(shared: *mut tenure_shared) {
        // SAFETY: by the contract of the C ABI null, or the address of a variable.
        let Some(shared) = (unsafe { shared.as_mut() }) else { return Ok(()) };
        let none = tenure_shared { data: std::ptr::null_mut(), data_bytes: 0, fds: std::ptr::null_mut(), fd_count: 0 };
        let taken = std::mem::replace(shared, none);
        // SAFETY: `tenure_buffer_share` made both, and they were not given back before: what was is zeroed.
        drop(unsafe { take_back(taken.data.cast::<u8>(), taken.data_bytes) });
        // SAFETY: as above.
        for fd in unsafe { take_back(taken.fds, taken.fd_count) } {
            // One that the caller has taken for good is -1.
            if fd >= 0 {
                // SAFETY: `tenure_buffer_share` opened it for the caller, who gives it back now.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
}
