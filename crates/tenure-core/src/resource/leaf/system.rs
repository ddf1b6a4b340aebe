//! Pageable host memory, from the C library.
//!
//! Kernels can use it where the device says so (machines whose devices walk the host's page tables, and the simulated
//! device); elsewhere it is memory of the host only, and [`Properties`] say that. It is to be had on a machine without
//! any device: then nothing is waited for, since nothing can be using it.
//!
//! Unsafe here: the two calls into the C library.

use crate::device;
use crate::error::Result;
use crate::resource::Properties;
use crate::resource::leaf::plain::{FreeWaits, MakeError, Plain, Source};

/// The system resource. One per process: [`shared::system`](super::shared::system).
pub type System = Plain<SystemSource>;

/// `posix_memalign` and `free`.
#[derive(Default)]
pub struct SystemSource;

/// The least alignment asked for: what any scalar or vector of the host needs.
const LEAST: usize = 64;

impl Source for SystemSource {
    const KIND: &'static str = "system";
    const FREE_WAITS: FreeWaits = FreeWaits::Nothing;
    const OF_HOST: bool = true;
    const NEEDS_DEVICE: bool = false;

    fn make(&self, bytes: usize, align: usize) -> Result<u64, MakeError> {
        let mut ptr = std::ptr::null_mut();
        // SAFETY: `ptr` is a place for the result; the alignment is a power of two and a multiple of a pointer's size
        // (`Request` checks the first, `LEAST` gives the second).
        let code = unsafe { libc::posix_memalign(&raw mut ptr, align.max(LEAST), bytes) };
        if code != 0 || ptr.is_null() {
            return Err(MakeError::OutOfMemory);
        }
        Ok(ptr as u64)
    }

    unsafe fn free(&self, base: u64) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { libc::free(base as *mut libc::c_void) };
        Ok(())
    }

    fn properties(&self) -> Properties {
        Properties {
            device_accessible: device::reads_pageable_memory(),
            host_accessible: true,
            ..Properties::default()
        }
    }
}
