//! Plain device memory: `cuMemAlloc` and `cuMemFree`.
//!
//! The slow, simple resource that everything else starts from: 79 us for an allocation and a free of 4 KiB, 1 ms for
//! 1 GiB, and each free waits for everything on the device. It lies on the device of the stream that the allocation is
//! given; for a default stream that is the current device. Memory is usable on every stream at once.

use crate::device;
use crate::error::Result;
use crate::resource::Properties;
use crate::resource::leaf::plain::{FreeWaits, MakeError, Plain, Source};

/// The plain device resource. One per process: [`shared::cuda`](super::shared::cuda).
pub type Cuda = Plain<CudaSource>;

/// `cuMemAlloc` and `cuMemFree`.
#[derive(Default)]
pub struct CudaSource;

impl Source for CudaSource {
    const KIND: &'static str = "cuda";
    // Measured (kernels on a non-blocking stream, on one destroyed while busy, on an ended thread's default stream):
    // the driver's free returns after all of them.
    const FREE_WAITS: FreeWaits = FreeWaits::Device;
    const OF_HOST: bool = false;
    const NEEDS_DEVICE: bool = true;

    fn make(&self, bytes: usize, _align: usize) -> Result<u64, MakeError> {
        Ok(device::driver()?.mem_alloc(bytes)?)
    }

    unsafe fn free(&self, base: u64) -> Result<()> {
        // SAFETY: by this function's contract.
        Ok(unsafe { device::driver()?.mem_free(base) }?)
    }

    fn properties(&self) -> Properties {
        Properties { device_accessible: true, exportable: true, ..Properties::default() }
    }
}
