//! What a device is and can do, asked of the driver once.

use crate::driver::Driver;
use crate::error::DriverError;
use crate::sys::*;

type Result<T> = core::result::Result<T, DriverError>;

/// What a device can do. Whatever stands above asks this, never for the kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Virtual ranges and physical pages (`cuMemCreate`, `cuMemMap`).
    pub virtual_memory: bool,
    /// Stream-ordered allocation and pools (`cuMemAllocAsync`).
    pub pools: bool,
    /// Managed memory (`cuMemAllocManaged`).
    pub managed: bool,
    /// Host and device may use managed memory at the same time.
    pub concurrent_managed: bool,
    /// The device may use pageable host memory.
    pub pageable_access: bool,
    /// Host memory can be registered.
    pub host_register: bool,
    /// Physical pages can be shared by file descriptor.
    pub page_fds: bool,
    /// Physical pages can be shared by fabric handle.
    pub page_fabric: bool,
    /// Handle types by which pools can be shared, bits of `CU_MEM_HANDLE_TYPE_*`.
    pub pool_handle_types: u32,
    /// Physical pages can be made reachable for network cards.
    pub rdma_pages: bool,
    /// Host and device share one address space.
    pub unified_addressing: bool,
    /// The device shares the host's memory.
    pub integrated: bool,
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// Its name.
    pub name: String,
    /// Its universally unique id.
    pub uuid: [u8; 16],
    /// All its memory, in bytes.
    pub total_memory: usize,
    /// Compute capability: major, minor.
    pub compute_capability: (i32, i32),
    /// Number of its multiprocessors.
    pub multiprocessors: i32,
    /// What it can do.
    pub capabilities: Capabilities,
}

impl Properties {
    /// The id in the form of `nvidia-smi`: `GPU-8-4-4-4-12`.
    #[must_use]
    pub fn uuid_text(&self) -> String {
        use core::fmt::Write as _;
        let mut text = String::from("GPU-");
        for (index, byte) in self.uuid.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// Asks the driver.
    pub(crate) fn of(driver: &Driver, handle: CUdevice) -> Result<Self> {
        // An attribute that an older driver does not know is something that it cannot do.
        let number = |attribute| match driver.device_attribute(attribute, handle) {
            Err(error) if error.code == CUDA_ERROR_INVALID_VALUE => Ok(0),
            other => other,
        };
        let flag = |attribute| number(attribute).map(|value| value != 0);
        let capabilities = Capabilities {
            virtual_memory: flag(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?
                && driver.has("cuMemCreate")
                && driver.has("cuMemMap"),
            pools: flag(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? && driver.has("cuMemAllocFromPoolAsync"),
            managed: flag(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)? && driver.has("cuMemAllocManaged"),
            concurrent_managed: flag(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)?,
            pageable_access: flag(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)?,
            host_register: flag(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED)?,
            page_fds: flag(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?,
            page_fabric: flag(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)?,
            pool_handle_types: u32::try_from(number(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES)?).unwrap_or(0),
            rdma_pages: flag(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?,
            unified_addressing: flag(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)?,
            integrated: flag(CU_DEVICE_ATTRIBUTE_INTEGRATED)?,
        };
        Ok(Self {
            name: driver.device_name(handle)?,
            uuid: driver.device_uuid(handle)?,
            total_memory: driver.device_total_memory(handle)?,
            compute_capability: (
                number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: number(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            capabilities,
        })
    }
}
