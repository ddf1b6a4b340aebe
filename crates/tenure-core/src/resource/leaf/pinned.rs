//! Page-locked host memory: `cuMemHostAlloc`, portable (every context sees it) and mapped (kernels can use it at the
//! same address).
//!
//! What copies between host and device want: they run asynchronously and at full speed only from such memory. It is
//! taken from what all of the machine can use, and making it costs tens of microseconds per MiB: pool it.

use std::ffi::c_void;

use tenure_driver::HostFlags;

use crate::device;
use crate::error::Result;
use crate::resource::Properties;
use crate::resource::leaf::plain::{FreeWaits, MakeError, Plain, Source};

/// The pinned resource. One per process: [`shared::pinned`](super::shared::pinned).
pub type Pinned = Plain<PinnedSource>;

/// `cuMemHostAlloc` and `cuMemFreeHost`.
#[derive(Default)]
pub struct PinnedSource;

impl Source for PinnedSource {
    const KIND: &'static str = "pinned";
    const FREE_WAITS: FreeWaits = FreeWaits::Nothing;
    const OF_HOST: bool = true;
    const NEEDS_DEVICE: bool = true;

    fn make(&self, bytes: usize, _align: usize) -> Result<u64, MakeError> {
        let flags = HostFlags { portable: true, mapped: true, write_combined: false };
        Ok(device::driver()?.host_alloc(bytes, flags)? as u64)
    }

    unsafe fn free(&self, base: u64) -> Result<()> {
        // SAFETY: by this function's contract.
        Ok(unsafe { device::driver()?.host_free(base as *mut c_void) }?)
    }

    fn properties(&self) -> Properties {
        Properties { device_accessible: true, host_accessible: true, ..Properties::default() }
    }
}
