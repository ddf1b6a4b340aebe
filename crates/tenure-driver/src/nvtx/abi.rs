//! The C types between a program and a tool of NVTX version 3, as far as they are used here.
//!
//! The names in comments are those of NVIDIA's headers, against which `tests/nvtx_headers.rs` holds sizes, offsets and
//! numbers.

use core::ffi::{c_char, c_int, c_void};

/// `NVTX_VERSION`.
pub const VERSION: u16 = 3;

/// `NVTX_ETID_CALLBACKS`: the export table that gives tables of functions.
pub const EXPORT_CALLBACKS: u32 = 1;
/// `NVTX_ETID_VERSIONINFO`.
pub const EXPORT_VERSION_INFO: u32 = 3;

/// Number of callback modules, the invalid one included (`NVTX_CB_MODULE_SIZE`).
pub const MODULES: usize = 7;
/// Functions of each module, the invalid one included (`NVTX_CBID_*_SIZE`): none, core, CUDA, OpenCL, CUDA runtime, core 2,
/// synchronisation.
pub const MODULE_SIZES: [usize; MODULES] = [0, 16, 9, 15, 7, 16, 7];
/// The most that a module has.
pub const LARGEST_MODULE: usize = 16;

/// `NVTX_CB_MODULE_CORE2`.
pub const MODULE_CORE2: usize = 5;
/// `NVTX_CBID_CORE2_DomainRangePushEx`.
pub const DOMAIN_RANGE_PUSH_EX: usize = 4;
/// `NVTX_CBID_CORE2_DomainRangePop`.
pub const DOMAIN_RANGE_POP: usize = 5;
/// `NVTX_CBID_CORE2_DomainRegisterStringA`.
pub const DOMAIN_REGISTER_STRING_A: usize = 10;
/// `NVTX_CBID_CORE2_DomainCreateA`.
pub const DOMAIN_CREATE_A: usize = 12;

/// `NVTX_PAYLOAD_TYPE_UNSIGNED_INT64`.
pub const PAYLOAD_UNSIGNED_INT64: i32 = 1;
/// `NVTX_MESSAGE_TYPE_ASCII`.
pub const MESSAGE_ASCII: i32 = 1;
/// `NVTX_MESSAGE_TYPE_REGISTERED`.
pub const MESSAGE_REGISTERED: i32 = 3;

/// `NvtxGetExportTableFunc_t`.
pub type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;
/// `NvtxInitializeInjectionNvtxFunc_t`: the tool's entry `InitializeInjectionNvtx2`; 0 is "no".
pub type InitializeInjection = unsafe extern "C" fn(GetExportTable) -> c_int;
/// `nvtxDomainCreateA_impl_fntype`.
pub type DomainCreateA = unsafe extern "C" fn(*const c_char) -> *mut c_void;
/// `nvtxDomainRegisterStringA_impl_fntype`.
pub type DomainRegisterStringA = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
/// `nvtxDomainRangePushEx_impl_fntype`.
pub type DomainRangePushEx = unsafe extern "C" fn(*mut c_void, *const EventAttributes) -> c_int;
/// `nvtxDomainRangePop_impl_fntype`.
pub type DomainRangePop = unsafe extern "C" fn(*mut c_void) -> c_int;

/// `NvtxExportTableCallbacks`.
#[derive(Debug)]
#[repr(C)]
pub struct Callbacks {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// Gives the table of a module and the number of its entries; 0 is "there is no such module".
    pub get_module_function_table: unsafe extern "C" fn(c_int, *mut *mut c_void, *mut u32) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[derive(Debug)]
#[repr(C)]
pub struct VersionInfo {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// [`VERSION`].
    pub version: u32,
    /// For alignment.
    pub reserved0: u32,
    /// By which a tool says its own version.
    pub set_injection_nvtx_version: unsafe extern "C" fn(u32),
}

/// `nvtxEventAttributes_t`.
#[derive(Debug)]
#[repr(C)]
pub struct EventAttributes {
    /// [`VERSION`].
    pub version: u16,
    /// Bytes of this structure.
    pub size: u16,
    /// 0 for none.
    pub category: u32,
    /// 0 for none.
    pub color_type: i32,
    /// Meaningless without a type.
    pub color: u32,
    /// One of `PAYLOAD_*`.
    pub payload_type: i32,
    /// 0.
    pub reserved0: i32,
    /// A number that the tool shows.
    pub payload: u64,
    /// One of `MESSAGE_*`.
    pub message_type: i32,
    /// Text, or a handle of a registered one.
    pub message: *const c_void,
}

// ------------------------------------------------------------------------------------------------ the memory extension

/// `NVTX_EXT_MODULEID_MEM`.
pub const EXTENSION_MEMORY: u16 = 1;
/// `NVTX_EXT_COMPATID_MEM`: in each structure of the extension.
pub const MEMORY_COMPATIBILITY: u16 = 0x0102;
/// The only segment of the module.
pub const MEMORY_SEGMENT: usize = 1;
/// `NVTX_EXT_MEM_SLOT_COUNT`.
pub const MEMORY_SLOTS: usize = 63;

/// `NVTX3EXT_CBID_nvtxMemHeapRegister`.
pub const HEAP_REGISTER: usize = 0;
/// `NVTX3EXT_CBID_nvtxMemHeapUnregister`.
pub const HEAP_UNREGISTER: usize = 1;
/// `NVTX3EXT_CBID_nvtxMemRegionsRegister`.
pub const REGIONS_REGISTER: usize = 3;
/// `NVTX3EXT_CBID_nvtxMemRegionsUnregister`.
pub const REGIONS_UNREGISTER: usize = 5;

/// `NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR`: nothing in the heap may be touched but its regions.
pub const HEAP_SUB_ALLOCATOR: u32 = 1;
/// `NVTX_MEM_TYPE_VIRTUAL_ADDRESS`: described by a [`VirtualRange`].
pub const TYPE_VIRTUAL_ADDRESS: u32 = 1;
/// `NVTX_MEM_REGION_REF_TYPE_POINTER`.
pub const REFERENCE_POINTER: u32 = 1;

/// `NvtxExtInitializeInjectionFunc_t`: the tool's entry `InitializeInjectionNvtxExtension`; 0 is "no".
pub type InitializeExtension = unsafe extern "C" fn(*mut ModuleInfo) -> c_int;
/// `nvtxMemHeapRegister`.
pub type HeapRegister = unsafe extern "C" fn(*mut c_void, *const HeapDescription) -> *mut c_void;
/// `nvtxMemHeapUnregister`.
pub type HeapUnregister = unsafe extern "C" fn(*mut c_void, *mut c_void);
/// `nvtxMemRegionsRegister`.
pub type RegionsRegister = unsafe extern "C" fn(*mut c_void, *const RegionsRegisterBatch);
/// `nvtxMemRegionsUnregister`.
pub type RegionsUnregister = unsafe extern "C" fn(*mut c_void, *const RegionsUnregisterBatch);

/// `nvtxExtModuleSegment_t`.
#[derive(Debug)]
#[repr(C)]
pub struct ModuleSegment {
    /// [`MEMORY_SEGMENT`].
    pub segment_id: usize,
    /// Number of slots.
    pub slot_count: usize,
    /// 0: fresh, 1: switched off, else the tool's function.
    pub function_slots: *mut isize,
}

/// `nvtxExtModuleInfo_t`.
#[derive(Debug)]
#[repr(C)]
pub struct ModuleInfo {
    /// [`VERSION`].
    pub nvtx_version: u16,
    /// Bytes of this structure.
    pub struct_size: u16,
    /// [`EXTENSION_MEMORY`].
    pub module_id: u16,
    /// [`MEMORY_COMPATIBILITY`].
    pub compatibility_id: u16,
    /// Number of segments.
    pub segments_count: usize,
    /// The segments.
    pub segments: *mut ModuleSegment,
    /// Null: none is needed.
    pub get_export_function: *const c_void,
    /// Null.
    pub extension_info: *const c_void,
}

/// `nvtxMemVirtualRangeDesc_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct VirtualRange {
    /// Bytes.
    pub size: usize,
    /// An address on a device.
    pub ptr: *const c_void,
}

/// `nvtxMemHeapDesc_t`.
#[derive(Debug)]
#[repr(C)]
pub struct HeapDescription {
    /// [`MEMORY_COMPATIBILITY`].
    pub compatibility_id: u16,
    /// Bytes of this structure.
    pub struct_size: u16,
    /// 0.
    pub reserved0: u32,
    /// [`HEAP_SUB_ALLOCATOR`].
    pub usage: u32,
    /// [`TYPE_VIRTUAL_ADDRESS`].
    pub type_: u32,
    /// Bytes of what the next field points to.
    pub type_specific_size: usize,
    /// A [`VirtualRange`].
    pub type_specific: *const c_void,
    /// 0 for none.
    pub category: u32,
    /// 0 for none.
    pub message_type: u32,
    /// Null without a type.
    pub message: *const c_void,
}

/// `nvtxMemRegionsRegisterBatch_t`.
#[derive(Debug)]
#[repr(C)]
pub struct RegionsRegisterBatch {
    /// [`MEMORY_COMPATIBILITY`].
    pub compatibility_id: u16,
    /// Bytes of this structure.
    pub struct_size: u16,
    /// [`TYPE_VIRTUAL_ADDRESS`].
    pub region_type: u32,
    /// The heap that they lie in.
    pub heap: *mut c_void,
    /// Number of regions.
    pub region_count: usize,
    /// Bytes of each element.
    pub element_size: usize,
    /// [`VirtualRange`]s.
    pub elements: *const c_void,
    /// Null: regions of addresses are named by their address.
    pub handles: *mut *mut c_void,
}

/// `nvtxMemRegionsUnregisterBatch_t`.
#[derive(Debug)]
#[repr(C)]
pub struct RegionsUnregisterBatch {
    /// [`MEMORY_COMPATIBILITY`].
    pub compatibility_id: u16,
    /// Bytes of this structure.
    pub struct_size: u16,
    /// [`REFERENCE_POINTER`].
    pub reference_type: u32,
    /// Number of references.
    pub count: usize,
    /// Bytes of each element.
    pub element_size: usize,
    /// Addresses.
    pub elements: *const *const c_void,
}
