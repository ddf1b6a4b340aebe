//! Managed memory: `cuMemAllocManaged`. It migrates between the host and the devices as they touch it.
//!
//! Booked on the device of the stream that the allocation is given, which is where the driver prefers to keep it at
//! first. A free waits for the stream it is given: nothing that the driver documents makes its call wait.

use crate::device;
use crate::error::Result;
use crate::resource::Properties;
use crate::resource::leaf::plain::{FreeWaits, MakeError, Plain, Source};

/// The managed resource. One per process: [`shared::managed`](super::shared::managed).
pub type Managed = Plain<ManagedSource>;

/// `cuMemAllocManaged` and `cuMemFree`.
#[derive(Default)]
pub struct ManagedSource;

impl Source for ManagedSource {
    const KIND: &'static str = "managed";
    const FREE_WAITS: FreeWaits = FreeWaits::Nothing;
    const OF_HOST: bool = false;
    const NEEDS_DEVICE: bool = true;

    fn make(&self, bytes: usize, _align: usize) -> Result<u64, MakeError> {
        Ok(device::driver()?.mem_alloc_managed(bytes)?)
    }

    unsafe fn free(&self, base: u64) -> Result<()> {
        // SAFETY: by this function's contract.
        Ok(unsafe { device::driver()?.mem_free(base) }?)
    }

    fn properties(&self) -> Properties {
        Properties { device_accessible: true, host_accessible: true, managed: true, ..Properties::default() }
    }
}
