//! NVTX: what profilers and memory checkers are told, when one is attached.
//!
//! ```text
//!   NVTX_INJECTION64_PATH ---> the tool's library          looked at once, by look(); not set: nothing is loaded, ever
//!                                |  InitializeInjectionNvtx2          ranges: push, pop          (Nsight Systems, ...)
//!                                |  InitializeInjectionNvtxExtension  memory: heaps and regions  (compute-sanitizer)
//!                                v
//!   attach.rs   tables of slots, which the tool fills      abi.rs   the C types of both
//!      ^                                  ^
//!   range(name, bytes) -> pushed until     memory::Heap: a pool's memory, in which only
//!   it is dropped                          registered regions may be touched
//! ```
//!
//! # Invariants
//! * The variable is read once. Without it, in a program with raised privileges, in a forked child and while the process
//!   ends, no library is opened and no tool is called.
//! * A tool that is not there, lacks the entry, or says that it does not want to, is as good as none: no word, no error.
//! * No tool is called by anything that promises not to wait: a caller asks [`attached`] first.
//! * Ranges come in pairs on one thread, in the domain `tenure`.
//!
//! # Cost
//! Without a tool: one relaxed load and a branch. With one: what the tool costs.
//!
//! # Why by hand
//! NVIDIA's headers are the reference, and a client is meant to compile them in. NVIDIA's crate for Rust, `nvtx-sys`, binds
//! the core, not the memory extension that is wanted here, and needs libclang wherever tenure is built; a copy of the
//! headers would be a part of NVIDIA's in this repository. What a client has of them is small and fixed by the ABI between
//! separately built programs and tools: two entries, six tables of pointers, five structures. `ci/check-cuda-headers`
//! holds [`abi`] against NVIDIA's headers.
//!
//! What the headers have and this has not: 32-bit processes, Windows, Android, and a tool that is linked into the program
//! (`InitializeInjectionNvtx2_fnptr`): a tool is a library named by the environment here.

pub mod abi;
mod attach;
pub mod memory;

use core::ffi::{CStr, c_void};

use attach::CORE2;

pub use attach::{attached, look};

/// The name of the domain, so that a tool can show or hide all of tenure.
pub(crate) const DOMAIN: &CStr = c"tenure";

/// What a range is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Name {
    /// An allocation by somebody outside; the payload is the size asked for.
    Allocate = 0,
    /// A free by somebody outside; the payload is the size given.
    Deallocate = 1,
}

impl Name {
    pub(crate) const ALL: [Self; 2] = [Self::Allocate, Self::Deallocate];

    pub(crate) const fn text(self) -> &'static CStr {
        match self {
            Self::Allocate => c"allocate",
            Self::Deallocate => c"deallocate",
        }
    }
}

/// A range that ends when this is dropped, on the thread that began it.
#[derive(Debug)]
#[must_use = "the range ends when this is dropped"]
pub struct Range {
    /// A range belongs to its thread.
    _thread: core::marker::PhantomData<*const c_void>,
}

/// Begins a range with the payload `bytes`, if a tool wants ranges.
#[inline]
pub fn range(name: Name, bytes: u64) -> Option<Range> {
    if attached() { push(name, bytes) } else { None }
}

#[cold]
fn push(name: Name, bytes: u64) -> Option<Range> {
    if crate::process::unusable() {
        return None;
    }
    let pop = attach::slot(CORE2, abi::DOMAIN_RANGE_POP);
    let push = attach::slot(CORE2, abi::DOMAIN_RANGE_PUSH_EX);
    if pop.is_null() || push.is_null() {
        return None;
    }
    let registered = attach::string(name);
    let (message_type, message) = if registered.is_null() {
        (abi::MESSAGE_ASCII, name.text().as_ptr().cast())
    } else {
        (abi::MESSAGE_REGISTERED, registered.cast_const())
    };
    let attributes = abi::EventAttributes {
        version: abi::VERSION,
        size: size_of::<abi::EventAttributes>() as u16,
        category: 0,
        color_type: 0,
        color: 0,
        payload_type: abi::PAYLOAD_UNSIGNED_INT64,
        reserved0: 0,
        payload: bytes,
        message_type,
        message,
    };
    // SAFETY: a slot of this number holds nothing but what the tool put there for nvtxDomainRangePushEx; the tool stays
    // loaded once it is attached.
    let push: abi::DomainRangePushEx = unsafe { core::mem::transmute(push) };
    // SAFETY: the domain is the tool's own answer, and the attributes live until the call returns.
    unsafe { push(attach::domain(), &attributes) };
    Some(Range { _thread: core::marker::PhantomData })
}

impl Drop for Range {
    fn drop(&mut self) {
        let pop = attach::slot(CORE2, abi::DOMAIN_RANGE_POP);
        if pop.is_null() {
            // The tool has left meanwhile.
            return;
        }
        // SAFETY: as for the push.
        let pop: abi::DomainRangePop = unsafe { core::mem::transmute(pop) };
        // SAFETY: the domain is the tool's own answer; this thread pushed before.
        unsafe { pop(attach::domain()) };
    }
}
