//! The memory extension of NVTX: a checker is told which parts of a pool may be touched.
//!
//! ```text
//!   Heap::new(base, bytes)          nothing of it may be touched
//!     register(ptr, bytes)          this part may
//!     unregister(ptr)               not any more
//!   close()                         as if it had never been a heap
//! ```
//!
//! compute-sanitizer reports each access of a kernel to a heap outside its regions. It takes heaps that are whole
//! allocations of `cuMemAlloc` or `cudaMalloc`, and wants CUDA to be running before it is told of the first: [`look`] is
//! called when a context is there.

use core::ffi::c_void;

use super::abi;
use super::attach::{self, ATTACHED, Once};
use core::sync::atomic::{AtomicIsize, Ordering};

const OFF: u8 = 1;

static STATE: Once = Once::new();

/// Filled by the tool: 0 or 1 is "no function".
static SLOTS: [AtomicIsize; abi::MEMORY_SLOTS] = [const { AtomicIsize::new(0) }; abi::MEMORY_SLOTS];

/// Whether a tool wants to know of memory. One relaxed load; before the first [`look`] the answer is no.
#[inline]
#[must_use]
pub fn attached() -> bool {
    STATE.found()
}

/// Whether there is a tool that could want to know of memory. Calls [`look`](super::look), and so does not ask it.
#[must_use]
pub fn possible() -> bool {
    attach::extension().is_some()
}

/// Asks the attached tool, if there is one and nobody has asked yet, whether it wants to know of memory. The caller has a
/// context of the driver.
pub fn look() -> bool {
    STATE.get(initialise) == ATTACHED
}

fn initialise() -> u8 {
    let Some(entry) = attach::extension() else { return OFF };
    let mut segment = abi::ModuleSegment {
        segment_id: abi::MEMORY_SEGMENT,
        slot_count: abi::MEMORY_SLOTS,
        function_slots: (&raw const SLOTS).cast_mut().cast(),
    };
    let mut module = abi::ModuleInfo {
        nvtx_version: abi::VERSION,
        struct_size: size_of::<abi::ModuleInfo>() as u16,
        module_id: abi::EXTENSION_MEMORY,
        compatibility_id: abi::MEMORY_COMPATIBILITY,
        segments_count: 1,
        segments: &mut segment,
        get_export_function: core::ptr::null(),
        extension_info: core::ptr::null(),
    };
    // SAFETY: the tool writes function pointers to the slots, which live for good and are read as atomics afterwards.
    let wanted = unsafe { entry(&mut module) } != 0;
    let needed = [abi::HEAP_REGISTER, abi::REGIONS_REGISTER, abi::REGIONS_UNREGISTER];
    // A tool that has the entry for other extensions fills none of these.
    if !wanted || needed.iter().any(|&function| slot(function).is_none()) {
        return OFF;
    }
    attach::taken();
    ATTACHED
}

fn slot(function: usize) -> Option<isize> {
    let address = SLOTS[function].load(Ordering::Relaxed);
    (address != 0 && address != 1).then_some(address)
}

/// The tool's function of this number, of the type that is asked for.
macro_rules! function {
    ($number:expr, $type:ty) => {
        if attached() && !crate::process::unusable() {
            // The tool's stores came before the state's.
            core::sync::atomic::fence(Ordering::Acquire);
            // SAFETY: a slot of this number holds what the tool put there for the function of this type.
            slot($number).map(|address| unsafe { core::mem::transmute::<isize, $type>(address) })
        } else {
            None
        }
    };
}

/// Memory of which only registered parts may be touched: the tool's handle of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heap(usize);

impl Heap {
    /// Tells the tool of `bytes` bytes at `base`, none of which may be touched. `None` where no tool is attached or the
    /// tool did not take it.
    #[must_use]
    pub fn new(base: u64, bytes: u64) -> Option<Self> {
        let register = function!(abi::HEAP_REGISTER, abi::HeapRegister)?;
        let range = abi::VirtualRange { size: bytes as usize, ptr: base as *const c_void };
        let description = abi::HeapDescription {
            compatibility_id: abi::MEMORY_COMPATIBILITY,
            struct_size: size_of::<abi::HeapDescription>() as u16,
            reserved0: 0,
            usage: abi::HEAP_SUB_ALLOCATOR,
            type_: abi::TYPE_VIRTUAL_ADDRESS,
            type_specific_size: size_of::<abi::VirtualRange>(),
            type_specific: (&raw const range).cast(),
            category: 0,
            message_type: 0,
            message: core::ptr::null(),
        };
        // SAFETY: both structures live until the call returns.
        let heap = unsafe { register(attach::domain(), &description) } as usize;
        // Null would name all memory of the process, and -1 is "no tool".
        (heap != 0 && heap != usize::MAX).then_some(Self(heap))
    }

    /// `bytes` bytes at `ptr` may be touched.
    pub fn register(self, ptr: u64, bytes: u64) {
        let Some(register) = function!(abi::REGIONS_REGISTER, abi::RegionsRegister) else { return };
        let region = abi::VirtualRange { size: bytes as usize, ptr: ptr as *const c_void };
        let batch = abi::RegionsRegisterBatch {
            compatibility_id: abi::MEMORY_COMPATIBILITY,
            struct_size: size_of::<abi::RegionsRegisterBatch>() as u16,
            region_type: abi::TYPE_VIRTUAL_ADDRESS,
            heap: self.0 as *mut c_void,
            region_count: 1,
            element_size: size_of::<abi::VirtualRange>(),
            elements: (&raw const region).cast(),
            handles: core::ptr::null_mut(),
        };
        // SAFETY: both structures live until the call returns.
        unsafe { register(attach::domain(), &batch) };
    }

    /// The part at `ptr` may not be touched any more.
    pub fn unregister(self, ptr: u64) {
        let Some(unregister) = function!(abi::REGIONS_UNREGISTER, abi::RegionsUnregister) else { return };
        let region = ptr as *const c_void;
        let batch = abi::RegionsUnregisterBatch {
            compatibility_id: abi::MEMORY_COMPATIBILITY,
            struct_size: size_of::<abi::RegionsUnregisterBatch>() as u16,
            reference_type: abi::REFERENCE_POINTER,
            count: 1,
            element_size: size_of::<*const c_void>(),
            elements: &raw const region,
        };
        // SAFETY: both live until the call returns.
        unsafe { unregister(attach::domain(), &batch) };
    }

    /// The memory is a heap no more, and its parts are parts no more.
    pub fn close(self) {
        let Some(unregister) = function!(abi::HEAP_UNREGISTER, abi::HeapUnregister) else { return };
        // SAFETY: the handle is the tool's own answer.
        unsafe { unregister(attach::domain(), self.0 as *mut c_void) };
    }
}
