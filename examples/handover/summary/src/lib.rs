//! A library of somebody's, in Rust: it computes on columns that others made.
//!
//! It depends on the crate `tenure` and never on the engine; at run time it finds the one that the process has.

use std::ffi::{c_char, c_int};
use std::mem::ManuallyDrop;

use tenure::{DeviceBuffer, DeviceVec, Resource, Result, Stream, current};

/// What is known of a column.
#[repr(C)]
pub struct Summary {
    /// Number of values.
    pub rows: u64,
    /// Their sum.
    pub sum: i64,
    /// The largest.
    pub largest: i64,
}

/// Reads the column on a stream of its own, which it declares: the memory is not reused before this is done, whoever frees
/// the buffer.
fn values(column: &DeviceBuffer, stream: &Stream) -> Result<Vec<i64>> {
    if let Some(home) = column.stream() {
        stream.wait(&home)?;
    }
    column.record_stream(stream)?;
    let mut bytes = vec![0; column.len()];
    column.copy_to_host(&mut bytes, stream)?;
    Ok(bytes.as_chunks().0.iter().map(|value| i64::from_ne_bytes(*value)).collect())
}

fn summarize(column: &DeviceBuffer) -> Result<Summary> {
    let stream = Stream::create()?;
    let values = values(column, &stream)?;
    Ok(Summary {
        rows: values.len() as u64,
        sum: values.iter().sum(),
        largest: values.iter().copied().max().unwrap_or(0),
    })
}

/// The running sum of a column, as a new column under `resource` whose home is a stream of this library's own.
fn running_sum(column: &DeviceBuffer, resource: &Resource) -> Result<DeviceBuffer> {
    let stream = Stream::create()?;
    let sums: Vec<i64> = values(column, &stream)?
        .iter()
        .scan(0, |sum, value| {
            *sum += value;
            Some(*sum)
        })
        .collect();
    Ok(DeviceVec::from_host_in(&sums, &stream, resource)?.into_buffer())
}

/// Runs `body` and gives 0, or writes why not and gives 1.
fn guarded(why: *mut c_char, room: usize, body: impl FnOnce() -> Result<()>) -> c_int {
    let text = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "a panic".to_owned(),
    };
    if !why.is_null() && room != 0 {
        let bytes = &text.as_bytes()[..text.len().min(room - 1)];
        // SAFETY: the caller's array has `room` bytes, and this writes at most that many.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), why, bytes.len());
            why.add(bytes.len()).write(0);
        }
    }
    1
}

/// A buffer that stays the caller's.
///
/// # Safety
/// The handle is alive during the call.
unsafe fn borrowed(handle: u64) -> Result<ManuallyDrop<DeviceBuffer>> {
    // SAFETY: never dropped, so that the handle stays the caller's.
    unsafe { DeviceBuffer::from_handle(handle) }.map(ManuallyDrop::new)
}

/// A handle of one's own of the caller's resource.
///
/// # Safety
/// The handle is alive during the call.
unsafe fn resource(handle: u64) -> Result<Resource> {
    // SAFETY: never dropped, so that the reference stays the caller's.
    let callers = ManuallyDrop::new(unsafe { Resource::from_raw(handle) }?);
    Ok(Resource::clone(&callers))
}

/// Summarizes a column that stays the caller's.
///
/// # Safety
/// `column` is a live buffer handle, `out` valid for writing, `why` an array of `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn summary_of(column: u64, out: *mut Summary, why: *mut c_char, room: usize) -> c_int {
    guarded(why, room, || {
        // SAFETY: by this function's contract.
        unsafe { out.write(summarize(&*borrowed(column)?)?) };
        Ok(())
    })
}

/// Makes the running sum of a column under `under`. The buffer in `out` is the caller's.
///
/// # Safety
/// `column` and `under` are live handles, `out` valid for writing, `why` an array of `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn summary_running_sum(
    column: u64,
    under: u64,
    out: *mut u64,
    why: *mut c_char,
    room: usize,
) -> c_int {
    guarded(why, room, || {
        // SAFETY: by this function's contract.
        unsafe { out.write(running_sum(&*borrowed(column)?, &resource(under)?)?.into_handle()) };
        Ok(())
    })
}

/// Replaces the current resource.
///
/// # Safety
/// `new` is a live handle, `why` an array of `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn summary_set_current(new: u64, why: *mut c_char, room: usize) -> c_int {
    // SAFETY: by this function's contract.
    guarded(why, room, || current::set(&unsafe { resource(new) }?).map(drop))
}

/// The id of the current resource as Rust sees it.
///
/// # Safety
/// `out` is valid for writing, `why` an array of `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn summary_current_id(out: *mut u64, why: *mut c_char, room: usize) -> c_int {
    guarded(why, room, || {
        // SAFETY: by this function's contract.
        unsafe { out.write(current::get()?.id()) };
        Ok(())
    })
}

/// Takes a buffer over and frees it.
///
/// # Safety
/// `column` is a live handle that the caller gives up, `why` an array of `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn summary_free(column: u64, why: *mut c_char, room: usize) -> c_int {
    // SAFETY: by this function's contract.
    guarded(why, room, || unsafe { DeviceBuffer::from_handle(column) }?.close())
}
