//! Many blocks in one call.
//!
//! Arrays of the caller's are looked at before anything is done: null ones, and counts that no array can have, are errors.
//!
//! Unsafe in this file: the arrays, as long as the caller says, by the contract of the C ABI.

use std::ffi::c_void;

use tenure_abi::*;
use tenure_core::buffer::Buffer;
use tenure_core::error::{Error, Result};

use crate::guard::exports;
use crate::handles::{BUFFERS, address, buffer_out, carried, named, pointer, resolved, stream, write};
use crate::resource::or_default;

fn checked<T>(array: *const T, count: usize, what: &str) -> Result<()> {
    if count > isize::MAX as usize / size_of::<T>() {
        return Err(Error::invalid(format!(
            "{count} blocks are more than any array can hold: is the count an error code?"
        )));
    }
    if array.is_null() && count != 0 {
        return Err(Error::invalid(format!("{count} blocks, and the array of {what} is null: pass as many as blocks")));
    }
    Ok(())
}

/// An array of the caller's to read.
///
/// # Safety
/// It is null, or `count` elements are there for the call.
unsafe fn read<'a, T>(array: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    checked(array, count, what)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null, not too long, and by this function's contract there.
    Ok(unsafe { std::slice::from_raw_parts(array, count) })
}

/// An array of the caller's that is all `nothing` from here on. The caller need not have set it.
///
/// # Safety
/// It is null, or there is room for `count` elements for the call, and nobody else has them.
unsafe fn filled<'a, T: Copy>(array: *mut T, count: usize, nothing: T, what: &str) -> Result<&'a mut [T]> {
    checked(array, count, what)?;
    if count == 0 {
        return Ok(&mut []);
    }
    for at in 0..count {
        // SAFETY: by this function's contract; `checked` has looked at the length.
        unsafe { array.add(at).write(nothing) };
    }
    // SAFETY: as above, and every element was written.
    Ok(unsafe { std::slice::from_raw_parts_mut(array, count) })
}

exports! { guard:
    fn tenure_allocate_many(
        resource: tenure_resource, count: usize, bytes: *const usize, alignment: usize, given: tenure_stream,
        out: *mut *mut c_void,
    ) {
        // SAFETY: by the contract of the C ABI.
        let sizes = unsafe { read(bytes, count, "sizes") }?;
        // SAFETY: by the contract of the C ABI.
        let out = unsafe { filled(out, count, std::ptr::null_mut(), "results") }?;
        let mut addresses = vec![0; count];
        // SAFETY: by the contract of the C ABI.
        let stream = unsafe { carried(given) }?;
        if resource == TENURE_RESOURCE_CURRENT {
            resolved(resource, stream)?.allocate_many(sizes, or_default(alignment), stream, &mut addresses)?;
        } else {
            named(resource)?.allocate_many(sizes, or_default(alignment), stream, &mut addresses)?;
        }
        for (to, at) in out.iter_mut().zip(addresses) {
            *to = pointer(at);
        }
    }

    fn tenure_buffer_create_many(
        count: usize, bytes: *const usize, alignment: usize, given: tenure_stream, resource: tenure_resource,
        out: *mut tenure_buffer,
    ) {
        // SAFETY: by the contract of the C ABI.
        let sizes = unsafe { read(bytes, count, "sizes") }?;
        // SAFETY: by the contract of the C ABI.
        let out = unsafe { filled(out, count, 0, "results") }?;
        let home = stream(given)?;
        let resource = resolved(resource, home.as_carried())?;
        let buffers = Buffer::create_many(sizes, alignment, &home, &resource)?;
        let mut made = out.iter_mut();
        let seated = buffers.into_iter().try_for_each(|buffer| {
            let handle = buffer_out(buffer)?;
            if let Some(to) = made.next() {
                *to = handle;
            }
            Ok(())
        });
        if let Err(error) = seated {
            for buffer in out.iter_mut() {
                let handle = std::mem::take(buffer);
                if handle != 0 {
                    drop(BUFFERS.remove(handle, |buffer| buffer.close(None)));
                }
            }
            return Err(error);
        }
    }
}

exports! { guard_release:
    fn tenure_deallocate_many(
        resource: tenure_resource, count: usize, ptrs: *const *mut c_void, bytes: *const usize, alignment: usize,
        given: tenure_stream, wrong: *mut usize,
    ) {
        if !wrong.is_null() {
            write(wrong, count)?;
        }
        // SAFETY: by the contract of the C ABI.
        let ptrs = unsafe { read(ptrs, count, "pointers") }?;
        // SAFETY: by the contract of the C ABI.
        let sizes = unsafe { read(bytes, count, "sizes") }?;
        // SAFETY: by the contract of the C ABI.
        let stream = unsafe { carried(given) }?;
        let addresses: Vec<u64> = ptrs.iter().map(|ptr| address(*ptr)).collect();
        let freed = named(resource)?.deallocate_many(&addresses, sizes, or_default(alignment), stream);
        if let (Err(Error::OneOf(one)), false) = (&freed, wrong.is_null()) {
            write(wrong, one.at)?;
        }
        freed?;
    }
}
