//! Resources of user functions: from the C vtable to the engine's trait.

use std::ffi::{CStr, c_void};

use tenure_abi::*;
use tenure_core::error::{Error, Result};
use tenure_core::resource::callback::Callbacks;
use tenure_core::stream::StreamRef;
use tenure_core::sync::Arc;
use tenure_core::sync::atomic::{AtomicBool, Ordering};

use crate::guard;
use crate::handles::{address, pointer};

static INTERPRETER_GONE: AtomicBool = AtomicBool::new(false);

/// From now on no user function of an interpreted language is entered, and none of its owners released.
pub(crate) fn interpreter_exit() {
    INTERPRETER_GONE.store(true, Ordering::Release);
    tenure_core::adaptor::thread_safe::interpreter_exit();
}

/// The functions and their context.
pub(crate) struct Functions {
    kind: String,
    table: tenure_resource_vtable,
    context: *mut c_void,
    /// Until it is set the context is still the caller's: the call that makes the resource may fail.
    taken: Arc<AtomicBool>,
}

// SAFETY: by the contract of the C ABI the functions may be called with this context on any thread.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

impl Functions {
    pub(crate) fn new(mut table: tenure_resource_vtable, context: *mut c_void, taken: Arc<AtomicBool>) -> Self {
        let kind = if table.kind.is_null() {
            "callback".into()
        } else {
            // SAFETY: a C string, by the contract.
            unsafe { CStr::from_ptr(table.kind) }.to_string_lossy().into_owned()
        };
        // Copied: the caller's string may go.
        table.kind = std::ptr::null();
        Self { kind, table, context, taken }
    }

    fn enter(&self) -> Result<()> {
        if INTERPRETER_GONE.load(Ordering::Acquire) && self.interpreted() {
            return Err(Error::Exiting);
        }
        Ok(())
    }

    fn interpreted(&self) -> bool {
        self.table.properties & TENURE_INTERPRETED != 0
    }
}

fn request_out(bytes: usize, alignment: usize) -> tenure_request {
    tenure_request { size: size_of::<tenure_request>(), bytes, alignment, owner: 0, flags: 0 }
}

fn stream_out(stream: StreamRef<'_>) -> tenure_stream {
    tenure_stream { raw: stream.raw.as_raw(), object: stream.object.map_or(0, |object| object.handle()) }
}

/// The error of a function that answered `status`: what it told by `tenure_error_set`, or the bare status.
pub(crate) fn failed(status: tenure_status, what: &str) -> Error {
    match guard::take() {
        // A status that has no form of its own here (a CUDA error that the callback made up) was kept as a callback's.
        Some(error) if guard::status_of(&error) == status || matches!(error, Error::Callback(..)) => error,
        _ if status == TENURE_ERROR_OUT_OF_MEMORY => Error::OutOfMemory(Box::default()),
        _ => Error::Callback(format!("the {what} function of a user failed with status {status}"), None),
    }
}

impl Callbacks for Functions {
    fn kind(&self) -> &str {
        &self.kind
    }

    fn allocate(&self, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<u64> {
        self.enter()?;
        let allocate = self.table.allocate.ok_or_else(|| Error::invalid("the resource has no allocate function"))?;
        let mut out = std::ptr::null_mut();
        drop(guard::take());
        // SAFETY: by the contract of the C ABI; the request lives during the call.
        let status = unsafe { allocate(self.context, &request_out(bytes, align), stream_out(stream), &mut out) };
        if status != TENURE_OK {
            return Err(failed(status, "allocate"));
        }
        Ok(address(out))
    }

    fn deallocate(&self, ptr: u64, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<()> {
        self.enter()?;
        let deallocate =
            self.table.deallocate.ok_or_else(|| Error::invalid("the resource has no deallocate function"))?;
        drop(guard::take());
        // SAFETY: by the contract of the C ABI; the request lives during the call.
        let status = unsafe { deallocate(self.context, pointer(ptr), &request_out(bytes, align), stream_out(stream)) };
        if status != TENURE_OK {
            return Err(failed(status, "deallocate"));
        }
        Ok(())
    }

    fn trim(&self, keep_bytes: usize) -> Result<usize> {
        self.enter()?;
        let Some(trim) = self.table.trim else { return Ok(0) };
        let mut released = 0;
        drop(guard::take());
        // SAFETY: by the contract of the C ABI.
        let status = unsafe { trim(self.context, keep_bytes, &mut released) };
        if status != TENURE_OK {
            return Err(failed(status, "trim"));
        }
        Ok(released)
    }

    fn context(&self) -> *mut c_void {
        self.context
    }

    fn face(&self) -> u64 {
        face_of(self.table.drop)
    }
}

/// Which face made a context: told by its `drop` function, which is one per face and kind.
pub(crate) fn face_of(drop: Option<unsafe extern "C" fn(*mut c_void)>) -> u64 {
    drop.map_or(0, |f| f as usize as u64)
}

impl Drop for Functions {
    fn drop(&mut self) {
        let taken = self.taken.load(Ordering::Acquire);
        if !taken || tenure_driver::process::unusable() || self.enter().is_err() {
            return;
        }
        if let Some(drop) = self.table.drop {
            // SAFETY: called once, with the context that belongs to this resource.
            unsafe { drop(self.context) }
        }
    }
}
