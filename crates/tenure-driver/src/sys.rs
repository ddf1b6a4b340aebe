//! The driver's types and constants, as C has them.
//!
//! Names are the driver's own, so that a reader of `cuda.h` finds them and the header check (`ci/check-cuda-headers`) can
//! compare each size, offset and value with NVIDIA's headers. Three habits make this file safe to use with drivers that
//! are newer than it:
//!
//! * an enumeration is a plain integer: a value that we do not know is a value, not undefined behaviour;
//! * handles are opaque pointers that only the driver follows;
//! * a structure is filled from [`zeroed`] and then field by field, so that a field added later by the driver is zero.
//!
//! Nothing here calls anything.

#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(
    missing_docs,
    reason = "the names and the meaning are those of cuda.h, which documents them; repeating it would only age"
)]

pub use core::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

// ---------------------------------------------------------------------------------------------------- integers, handles

/// What every call returns: 0, or a code. A plain integer, since a newer driver may return codes that this file lacks.
pub type CUresult = i32;
/// A device, as the driver numbers it (in practice its ordinal).
pub type CUdevice = c_int;
/// An address in the unified address space of host and devices.
pub type CUdeviceptr = u64;
pub type cuuint64_t = u64;
pub type CUcontext = *mut c_void;
pub type CUstream = *mut c_void;
pub type CUevent = *mut c_void;
pub type CUgraph = *mut c_void;
pub type CUgraphNode = *mut c_void;
pub type CUgraphExec = *mut c_void;
pub type CUuserObject = *mut c_void;
pub type CUmemoryPool = *mut c_void;
/// A block of physical memory made by `cuMemCreate`.
pub type CUmemGenericAllocationHandle = u64;
/// A function that the driver calls on the host. It must not call the driver and must not unwind.
pub type CUhostFn = Option<unsafe extern "C" fn(user: *mut c_void)>;

// Enumerations: unsigned, as C compilers choose for enumerations without negative values.
pub type CUdevice_attribute = c_uint;
pub type CUstreamCaptureStatus = c_uint;
pub type CUstreamCaptureMode = c_uint;
pub type CUmemPool_attribute = c_uint;
pub type CUmemAllocationType = c_uint;
pub type CUmem_advise = c_uint;
pub type CUmemAllocationHandleType = c_uint;
pub type CUmemLocationType = c_uint;
pub type CUmemAccess_flags = c_uint;
pub type CUmemAllocationGranularity_flags = c_uint;
pub type CUpointer_attribute = c_uint;
pub type CUmemorytype = c_uint;
pub type CUdriverProcAddressQueryResult = c_uint;

/// The null handle: the legacy default stream in programs built the usual way.
pub const CU_STREAM_NULL: CUstream = core::ptr::null_mut();
/// The legacy default stream, by name.
pub const CU_STREAM_LEGACY: CUstream = core::ptr::without_provenance_mut(1);
/// The default stream of the calling thread.
pub const CU_STREAM_PER_THREAD: CUstream = core::ptr::without_provenance_mut(2);

// ----------------------------------------------------------------------------------------------------------- structures

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUuuid {
    pub bytes: [u8; 16],
}

/// Where memory is. `id` is a device ordinal when `type_` is [`CU_MEM_LOCATION_TYPE_DEVICE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUmemLocation {
    pub type_: CUmemLocationType,
    pub id: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAllocationProp_allocFlags {
    pub compressionType: c_uchar,
    pub gpuDirectRDMACapable: c_uchar,
    pub usage: c_ushort,
    pub reserved: [c_uchar; 4],
}

/// What a block of physical memory is to be.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAllocationProp {
    pub type_: CUmemAllocationType,
    pub requestedHandleTypes: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32HandleMetaData: *mut c_void,
    pub allocFlags: CUmemAllocationProp_allocFlags,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUmemAccessDesc {
    pub location: CUmemLocation,
    pub flags: CUmemAccess_flags,
}

/// What a pool of the driver is to be. `maxSize` is in bytes, 0 for the driver's choice.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemPoolProps {
    pub allocType: CUmemAllocationType,
    pub handleTypes: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32SecurityAttributes: *mut c_void,
    pub maxSize: usize,
    /// Newer headers name the first three bytes of this; zero means "as before".
    pub reserved: [c_uchar; 56],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUipcMemHandle {
    pub reserved: [u8; CU_IPC_HANDLE_SIZE],
}

/// Where a block lies in a pool that another process has opened.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemPoolPtrExportData {
    pub reserved: [u8; 64],
}

/// A handle that leads to physical memory on every node of one NVLink domain.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemFabricHandle {
    pub data: [u8; 64],
}

/// Structures of this file, which may all be zero.
///
/// # Safety
///
/// All-zero bytes must be a valid value of the type.
pub unsafe trait Zeroable: Sized {}
// SAFETY: integers, arrays of integers and raw pointers only; zero is valid for each of them.
unsafe impl Zeroable for CUuuid {}
// SAFETY: as above.
unsafe impl Zeroable for CUmemLocation {}
// SAFETY: as above.
unsafe impl Zeroable for CUmemAllocationProp {}
// SAFETY: as above.
unsafe impl Zeroable for CUmemAccessDesc {}
// SAFETY: as above.
unsafe impl Zeroable for CUmemPoolProps {}
// SAFETY: as above.
unsafe impl Zeroable for CUipcMemHandle {}
// SAFETY: as above.
unsafe impl Zeroable for CUmemPoolPtrExportData {}
// SAFETY: as above.
unsafe impl Zeroable for CUmemFabricHandle {}

/// A structure with every byte zero, as the driver wants what is not set.
#[must_use]
pub fn zeroed<T: Zeroable>() -> T {
    // SAFETY: `Zeroable` promises that zero is a valid value.
    unsafe { core::mem::zeroed() }
}

// ------------------------------------------------------------------------------------------------------------ constants

/// Defines constants, and `$list` with their names and values for the header check.
macro_rules! constants {
    ($list:ident: $($name:ident: $ty:ty = $value:expr;)*) => {
        $(pub const $name: $ty = $value;)*
        /// Name and value of each constant above, for the header check.
        pub const $list: &[(&str, i64)] = &[$((stringify!($name), $name as i64)),*];
    };
}

constants! { RESULTS:
    CUDA_SUCCESS: CUresult = 0;
    CUDA_ERROR_INVALID_VALUE: CUresult = 1;
    CUDA_ERROR_OUT_OF_MEMORY: CUresult = 2;
    CUDA_ERROR_NOT_INITIALIZED: CUresult = 3;
    CUDA_ERROR_DEINITIALIZED: CUresult = 4;
    CUDA_ERROR_PROFILER_DISABLED: CUresult = 5;
    CUDA_ERROR_STUB_LIBRARY: CUresult = 34;
    CUDA_ERROR_DEVICE_UNAVAILABLE: CUresult = 46;
    CUDA_ERROR_NO_DEVICE: CUresult = 100;
    CUDA_ERROR_INVALID_DEVICE: CUresult = 101;
    CUDA_ERROR_DEVICE_NOT_LICENSED: CUresult = 102;
    CUDA_ERROR_INVALID_IMAGE: CUresult = 200;
    CUDA_ERROR_INVALID_CONTEXT: CUresult = 201;
    CUDA_ERROR_MAP_FAILED: CUresult = 205;
    CUDA_ERROR_UNMAP_FAILED: CUresult = 206;
    CUDA_ERROR_ALREADY_MAPPED: CUresult = 208;
    CUDA_ERROR_NO_BINARY_FOR_GPU: CUresult = 209;
    CUDA_ERROR_ALREADY_ACQUIRED: CUresult = 210;
    CUDA_ERROR_NOT_MAPPED: CUresult = 211;
    CUDA_ERROR_ECC_UNCORRECTABLE: CUresult = 214;
    CUDA_ERROR_UNSUPPORTED_LIMIT: CUresult = 215;
    CUDA_ERROR_CONTEXT_ALREADY_IN_USE: CUresult = 216;
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED: CUresult = 217;
    CUDA_ERROR_INVALID_PTX: CUresult = 218;
    CUDA_ERROR_NVLINK_UNCORRECTABLE: CUresult = 220;
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION: CUresult = 222;
    CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY: CUresult = 224;
    CUDA_ERROR_INVALID_SOURCE: CUresult = 300;
    CUDA_ERROR_FILE_NOT_FOUND: CUresult = 301;
    CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND: CUresult = 302;
    CUDA_ERROR_SHARED_OBJECT_INIT_FAILED: CUresult = 303;
    CUDA_ERROR_OPERATING_SYSTEM: CUresult = 304;
    CUDA_ERROR_INVALID_HANDLE: CUresult = 400;
    CUDA_ERROR_ILLEGAL_STATE: CUresult = 401;
    CUDA_ERROR_NOT_FOUND: CUresult = 500;
    CUDA_ERROR_NOT_READY: CUresult = 600;
    CUDA_ERROR_ILLEGAL_ADDRESS: CUresult = 700;
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: CUresult = 701;
    CUDA_ERROR_LAUNCH_TIMEOUT: CUresult = 702;
    CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING: CUresult = 703;
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED: CUresult = 704;
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED: CUresult = 705;
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE: CUresult = 708;
    CUDA_ERROR_CONTEXT_IS_DESTROYED: CUresult = 709;
    CUDA_ERROR_ASSERT: CUresult = 710;
    CUDA_ERROR_TOO_MANY_PEERS: CUresult = 711;
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED: CUresult = 712;
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED: CUresult = 713;
    CUDA_ERROR_HARDWARE_STACK_ERROR: CUresult = 714;
    CUDA_ERROR_ILLEGAL_INSTRUCTION: CUresult = 715;
    CUDA_ERROR_MISALIGNED_ADDRESS: CUresult = 716;
    CUDA_ERROR_INVALID_ADDRESS_SPACE: CUresult = 717;
    CUDA_ERROR_INVALID_PC: CUresult = 718;
    CUDA_ERROR_LAUNCH_FAILED: CUresult = 719;
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: CUresult = 720;
    CUDA_ERROR_NOT_PERMITTED: CUresult = 800;
    CUDA_ERROR_NOT_SUPPORTED: CUresult = 801;
    CUDA_ERROR_SYSTEM_NOT_READY: CUresult = 802;
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: CUresult = 803;
    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: CUresult = 804;
    CUDA_ERROR_MPS_CONNECTION_FAILED: CUresult = 805;
    CUDA_ERROR_MPS_RPC_FAILURE: CUresult = 806;
    CUDA_ERROR_MPS_SERVER_NOT_READY: CUresult = 807;
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED: CUresult = 808;
    CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED: CUresult = 809;
    CUDA_ERROR_MPS_CLIENT_TERMINATED: CUresult = 810;
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: CUresult = 900;
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: CUresult = 901;
    CUDA_ERROR_STREAM_CAPTURE_MERGE: CUresult = 902;
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED: CUresult = 903;
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED: CUresult = 904;
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION: CUresult = 905;
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: CUresult = 906;
    CUDA_ERROR_CAPTURED_EVENT: CUresult = 907;
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD: CUresult = 908;
    CUDA_ERROR_TIMEOUT: CUresult = 909;
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE: CUresult = 910;
    CUDA_ERROR_EXTERNAL_DEVICE: CUresult = 911;
    CUDA_ERROR_UNKNOWN: CUresult = 999;
}

constants! { CONSTANTS:
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: CUdevice_attribute = 16;
    CU_DEVICE_ATTRIBUTE_INTEGRATED: CUdevice_attribute = 18;
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: CUdevice_attribute = 41;
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: CUdevice_attribute = 75;
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: CUdevice_attribute = 76;
    CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: CUdevice_attribute = 83;
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS: CUdevice_attribute = 88;
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS: CUdevice_attribute = 89;
    CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: CUdevice_attribute = 99;
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES: CUdevice_attribute = 100;
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: CUdevice_attribute = 102;
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: CUdevice_attribute = 103;
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: CUdevice_attribute = 110;
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: CUdevice_attribute = 115;
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED: CUdevice_attribute = 116;
    CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES: CUdevice_attribute = 119;
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED: CUdevice_attribute = 128;

    CU_CTX_SCHED_BLOCKING_SYNC: c_uint = 4;

    CU_STREAM_DEFAULT: c_uint = 0;
    CU_STREAM_NON_BLOCKING: c_uint = 1;
    CU_STREAM_CAPTURE_STATUS_NONE: CUstreamCaptureStatus = 0;
    CU_STREAM_CAPTURE_STATUS_ACTIVE: CUstreamCaptureStatus = 1;
    CU_STREAM_CAPTURE_STATUS_INVALIDATED: CUstreamCaptureStatus = 2;
    CU_STREAM_CAPTURE_MODE_GLOBAL: CUstreamCaptureMode = 0;
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: CUstreamCaptureMode = 1;
    CU_STREAM_CAPTURE_MODE_RELAXED: CUstreamCaptureMode = 2;

    CU_EVENT_DEFAULT: c_uint = 0;
    CU_EVENT_BLOCKING_SYNC: c_uint = 1;
    CU_EVENT_DISABLE_TIMING: c_uint = 2;
    CU_EVENT_INTERPROCESS: c_uint = 4;
    CU_EVENT_WAIT_DEFAULT: c_uint = 0;

    CU_MEM_ATTACH_GLOBAL: c_uint = 1;
    CU_MEM_ATTACH_HOST: c_uint = 2;
    CU_MEMHOSTALLOC_PORTABLE: c_uint = 1;
    CU_MEMHOSTALLOC_DEVICEMAP: c_uint = 2;
    CU_MEMHOSTALLOC_WRITECOMBINED: c_uint = 4;
    CU_MEMHOSTREGISTER_PORTABLE: c_uint = 1;
    CU_MEMHOSTREGISTER_DEVICEMAP: c_uint = 2;
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
    CU_IPC_HANDLE_SIZE: usize = 64;

    CU_MEM_LOCATION_TYPE_INVALID: CUmemLocationType = 0;
    CU_MEM_LOCATION_TYPE_DEVICE: CUmemLocationType = 1;
    CU_MEM_LOCATION_TYPE_HOST: CUmemLocationType = 2;
    CU_MEM_LOCATION_TYPE_HOST_NUMA: CUmemLocationType = 3;
    CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: CUmemLocationType = 4;
    CU_MEM_ALLOCATION_TYPE_INVALID: CUmemAllocationType = 0;
    CU_MEM_ALLOCATION_TYPE_PINNED: CUmemAllocationType = 1;
    CU_MEM_ALLOCATION_TYPE_MANAGED: CUmemAllocationType = 2;
    CU_MEM_ADVISE_SET_PREFERRED_LOCATION: CUmem_advise = 3;
    CU_MEM_HANDLE_TYPE_NONE: CUmemAllocationHandleType = 0;
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: CUmemAllocationHandleType = 1;
    CU_MEM_HANDLE_TYPE_FABRIC: CUmemAllocationHandleType = 8;
    CU_MEM_ACCESS_FLAGS_PROT_NONE: CUmemAccess_flags = 0;
    CU_MEM_ACCESS_FLAGS_PROT_READ: CUmemAccess_flags = 1;
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE: CUmemAccess_flags = 3;
    CU_MEM_ALLOC_GRANULARITY_MINIMUM: CUmemAllocationGranularity_flags = 0;
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED: CUmemAllocationGranularity_flags = 1;

    CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: CUmemPool_attribute = 1;
    CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: CUmemPool_attribute = 2;
    CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: CUmemPool_attribute = 3;
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: CUmemPool_attribute = 4;
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: CUmemPool_attribute = 5;
    CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: CUmemPool_attribute = 6;
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT: CUmemPool_attribute = 7;
    CU_MEMPOOL_ATTR_USED_MEM_HIGH: CUmemPool_attribute = 8;

    CU_POINTER_ATTRIBUTE_CONTEXT: CUpointer_attribute = 1;
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE: CUpointer_attribute = 2;
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER: CUpointer_attribute = 3;
    CU_POINTER_ATTRIBUTE_HOST_POINTER: CUpointer_attribute = 4;
    CU_POINTER_ATTRIBUTE_BUFFER_ID: CUpointer_attribute = 7;
    CU_POINTER_ATTRIBUTE_IS_MANAGED: CUpointer_attribute = 8;
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: CUpointer_attribute = 9;
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: CUpointer_attribute = 10;
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: CUpointer_attribute = 11;
    CU_POINTER_ATTRIBUTE_RANGE_SIZE: CUpointer_attribute = 12;
    CU_POINTER_ATTRIBUTE_MAPPED: CUpointer_attribute = 13;
    CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: CUpointer_attribute = 17;
    CU_MEMORYTYPE_HOST: CUmemorytype = 1;
    CU_MEMORYTYPE_DEVICE: CUmemorytype = 2;
    CU_MEMORYTYPE_UNIFIED: CUmemorytype = 4;

    CU_USER_OBJECT_NO_DESTRUCTOR_SYNC: c_uint = 1;
    CU_GRAPH_USER_OBJECT_MOVE: c_uint = 1;

    CU_GET_PROC_ADDRESS_LEGACY_STREAM: cuuint64_t = 1;
    CU_GET_PROC_ADDRESS_SUCCESS: CUdriverProcAddressQueryResult = 0;
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND: CUdriverProcAddressQueryResult = 1;
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT: CUdriverProcAddressQueryResult = 2;
}
