//! Speaking C++ to PyTorch: throwing its exceptions, and one virtual function of its allocator.
//!
//! ```text
//!  throw(status) --> c10::OutOfMemoryError(here, text) --> __cxa_throw --> PyTorch's catch --> torch.OutOfMemoryError
//!  cacheInfo     --> a copy of the class's table of functions, with one of ours in the place of PyTorch's
//! ```
//!
//! PyTorch is not there when this is built, and comes in many versions. So nothing of it is linked: constructor and
//! type of the exception are found by their mangled names, which say their signatures, in the library that PyTorch has loaded; room for the exception comes from the C++ runtime, and no layout is known here but that of a `std::string`'s size.
//!
//! `CUDAPluggableAllocator` says of `cacheInfo`, which cuDNN's benchmark mode calls, that it has none, and has no hook for
//! it. Its objects find their functions in a table; where the table has PyTorch's own `cacheInfo` at exactly one place, the
//! one object that is ours gets a copy of the table with another function there. Where anything is not as it was looked for,
//! nothing is changed.
//!
//! # Invariants
//! * What cannot be found is known before anything is thrown: the table of `tenure.enable` says so.
//! * No value that needs to be dropped lives in a frame that an exception leaves.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use tenure_abi::*;

use crate::table::api;
use crate::torch;

/// `c10::SourceLocation`, which PyTorch's exceptions are made with.
#[repr(C)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// Room for a `std::string` of libstdc++, which is 32 bytes long.
#[repr(C, align(16))]
struct CxxString([u8; 64]);

type Construct = unsafe extern "C-unwind" fn(*mut c_void, SourceLocation, *mut CxxString);
type Destroy = unsafe extern "C-unwind" fn(*mut c_void);
type StringNew = unsafe extern "C-unwind" fn(*mut CxxString, *const c_char, usize, *const u8);
type StringEnd = unsafe extern "C-unwind" fn(*mut CxxString);
type Room = unsafe extern "C-unwind" fn(usize) -> *mut c_void;
type Throw = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, Option<Destroy>) -> !;
type RuntimeError = unsafe extern "C-unwind" fn(*const c_char) -> !;

/// What throwing needs.
struct Cxx {
    room: Room,
    throw: Throw,
    string: StringNew,
    string_end: StringEnd,
    /// Constructor and type of `c10::OutOfMemoryError`, and its table of virtual functions where the constructor is the
    /// base class's.
    out_of_memory: Option<(Construct, *const c_void, *const c_void)>,
}

// SAFETY: addresses of functions and of constants.
unsafe impl Send for Cxx {}
// SAFETY: as above.
unsafe impl Sync for Cxx {}

static CXX: OnceLock<Option<Cxx>> = OnceLock::new();
/// Throws a `std::runtime_error`: in every libstdc++.
static RUNTIME_ERROR: OnceLock<Option<RuntimeError>> = OnceLock::new();

/// A library that is loaded already.
struct Loaded(*mut c_void);

impl Loaded {
    fn find(name: &CStr) -> Option<Self> {
        // SAFETY: a string; nothing is loaded that is not there.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        (!handle.is_null()).then_some(Self(handle))
    }

    fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the library stays loaded: its handle is never closed.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }
}

/// Room for an exception of PyTorch's, which are some hundred bytes long.
const EXCEPTION_BYTES: usize = 2048;

impl Cxx {
    /// Looks the functions up in the C++ runtime of the process and in `library`, which has PyTorch's exceptions.
    fn find(library: &CStr) -> Option<Self> {
        let runtime = Loaded::find(c"libstdc++.so.6")?;
        let torch = Loaded::find(library);
        let memory = torch.and_then(|torch| {
            let own =
                c"_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
            let base = c"_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
            // Before PyTorch 2.15 the class has no code of its own: its type and its table of functions, all of which are the
            // same, are in the libraries that throw or catch it; and the constructor is the base class's.
            let users = [c"libc10_cuda.so", c"libtorch_python.so", c"libtorch_cuda.so", c"libtorch_cpu.so"];
            let anywhere = |name: &CStr| {
                let in_users = || users.iter().find_map(|user| Loaded::find(user)?.symbol(name));
                torch.symbol(name).or_else(in_users)
            };
            let kind = anywhere(c"_ZTIN3c1016OutOfMemoryErrorE")?;
            let (make, functions) = match torch.symbol(own) {
                Some(make) => (make, null_mut()),
                None => (torch.symbol(base)?, anywhere(c"_ZTVN3c1016OutOfMemoryErrorE")?),
            };
            // SAFETY: the mangled names are the signatures.
            unsafe {
                Some((std::mem::transmute::<*mut c_void, Construct>(make), kind.cast_const(), functions.cast_const()))
            }
        });
        let string = runtime.symbol(c"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEC1EPKcmRKS3_")?;
        let string_end = runtime.symbol(c"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEED1Ev")?;
        let (room, throw) = (runtime.symbol(c"__cxa_allocate_exception")?, runtime.symbol(c"__cxa_throw")?);
        // SAFETY: the names are those of the C++ ABI, and the mangled ones are the signatures.
        unsafe {
            Some(Self {
                room: std::mem::transmute::<*mut c_void, Room>(room),
                throw: std::mem::transmute::<*mut c_void, Throw>(throw),
                string: std::mem::transmute::<*mut c_void, StringNew>(string),
                string_end: std::mem::transmute::<*mut c_void, StringEnd>(string_end),
                out_of_memory: memory,
            })
        }
    }
}

/// What the last failing call of this thread says, as a string that C++ takes over.
fn last_message() -> CString {
    // SAFETY: all fields are integers and pointers, for which zeros are values.
    let mut detail: tenure_error = unsafe { std::mem::zeroed() };
    detail.size = size_of::<tenure_error>();
    // SAFETY: `detail` is valid and its size is set; its strings live until this thread's next failing call.
    unsafe {
        if (api().error_get)(&mut detail) != TENURE_OK || detail.message.is_null() {
            return c"tenure could not allocate".into();
        }
        CStr::from_ptr(detail.message).into()
    }
}

/// Throws what became of an allocation. No value of this function's needs to be dropped when the exception leaves it.
pub(crate) fn throw(status: tenure_status) -> ! {
    let message = last_message();
    if let Some(cxx) = CXX.get().and_then(Option::as_ref)
        && let Some((make, kind, functions)) = cxx.out_of_memory.filter(|_| status == TENURE_ERROR_OUT_OF_MEMORY)
    {
        let mut text = CxxString([0; 64]);
        // SAFETY: the functions are those of their names. The string is made, taken by the constructor, which moves out of
        // it, and ended by its caller, as C++ has it; the exception is made in room that the runtime gave, before it is
        // thrown with the type and the destructor of its class.
        unsafe {
            (cxx.string)(&mut text, message.as_ptr(), message.as_bytes().len(), &0);
            let exception = (cxx.room)(EXCEPTION_BYTES);
            let here = SourceLocation { function: c"tenure".as_ptr(), file: c"tenure".as_ptr(), line: 0 };
            make(exception, here, &mut text);
            if !functions.is_null() {
                // The table begins with two words that are not functions.
                exception.cast::<*const c_void>().write(functions.cast::<*const c_void>().add(2).cast());
            }
            (cxx.string_end)(&mut text);
            drop(message);
            // The first virtual function of a `std::exception` is its destructor; the class does not export it by name.
            let end = exception.cast::<*const Destroy>().read().read();
            (cxx.throw)(exception, kind, Some(end))
        }
    }
    match RUNTIME_ERROR.get().copied().flatten() {
        Some(throw) => {
            // What C++ copies out of, this thread keeps until its next failure.
            thread_local! {
                static TEXT: Cell<*mut c_char> = const { Cell::new(null_mut()) };
            }
            let text = message.into_raw();
            let old = TEXT.try_with(|kept| kept.replace(text)).unwrap_or(null_mut());
            if !old.is_null() {
                // SAFETY: it came out of `into_raw` at this thread's last failure.
                drop(unsafe { CString::from_raw(old) });
            }
            // SAFETY: a string that lives on.
            unsafe { throw(text) }
        }
        // `prepare` refuses to hand out `malloc` without it.
        None => std::process::abort(),
    }
}

/// What was found.
pub(crate) struct Found {
    /// Whether a lack of memory can be PyTorch's own exception.
    pub(crate) out_of_memory: bool,
}

/// Looks up what throwing needs. `None` where nothing can be thrown.
pub(crate) fn prepare(library: &CStr) -> Option<Found> {
    let cxx = CXX.get_or_init(|| Cxx::find(library));
    let runtime = RUNTIME_ERROR.get_or_init(|| {
        let address = Loaded::find(c"libstdc++.so.6")?.symbol(c"_ZSt21__throw_runtime_errorPKc")?;
        // SAFETY: the mangled name is the signature.
        Some(unsafe { std::mem::transmute::<*mut c_void, RuntimeError>(address) })
    });
    (*runtime)?;
    Some(Found { out_of_memory: cxx.as_ref().is_some_and(|cxx| cxx.out_of_memory.is_some()) })
}

/// `cacheInfo(this, device, largest)`.
unsafe extern "C" fn cache_info(_this: *mut c_void, device: i8, largest: *mut usize) {
    if !largest.is_null() {
        // SAFETY: PyTorch's variable.
        unsafe { largest.write(torch::largest_free(c_int::from(device))) };
    }
}

/// Bytes of a symbol, as its library says.
fn bytes_of(address: *mut c_void) -> Option<usize> {
    /// `RTLD_DL_SYMENT` of `dlfcn.h`.
    const SYMBOL_ENTRY: c_int = 1;
    unsafe extern "C" {
        fn dladdr1(address: *const c_void, info: *mut libc::Dl_info, extra: *mut *mut c_void, flags: c_int) -> c_int;
    }
    // SAFETY: all fields are pointers, for which zeros are values.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let mut entry: *mut c_void = null_mut();
    // SAFETY: both are valid for writing.
    if unsafe { dladdr1(address, &mut info, &mut entry, SYMBOL_ENTRY) } == 0 || entry.is_null() {
        return None;
    }
    // SAFETY: the entry of the symbol in its library's table, which stays loaded.
    let entry = unsafe { &*entry.cast::<libc::Elf64_Sym>() };
    usize::try_from(entry.st_size).ok()
}

/// Gives PyTorch's current allocator, one of ours, a `cacheInfo`. The libraries are asked in their order. True when it has
/// one afterwards.
pub(crate) fn answer_cache_info(libraries: &[CString]) -> bool {
    let find = |name: &CStr| libraries.iter().find_map(|library| Loaded::find(library)?.symbol(name));
    let (Some(current), Some(functions), Some(theirs)) = (
        find(c"_ZN3c104cuda20CUDACachingAllocator9allocatorE"),
        find(c"_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE"),
        find(c"_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9cacheInfoEaPm"),
    ) else {
        return false;
    };
    let words = bytes_of(functions).map_or(0, |bytes| bytes / size_of::<usize>());
    if !(4..=1024).contains(&words) {
        return false;
    }
    // SAFETY: `std::atomic<CUDAAllocator*>`, a word; the object that it names, if any, begins with the address of its class's
    // functions, which begin after two words of the table.
    unsafe {
        let object = (*current.cast::<AtomicPtr<AtomicPtr<usize>>>()).load(Ordering::Acquire);
        let table = functions.cast::<usize>();
        if object.is_null() {
            return false;
        }
        let used = (*object).load(Ordering::Acquire);
        if used != table.add(2) {
            // Another class's, or ours already.
            return OURS.get().is_some_and(|ours| *ours == used as usize);
        }
        let mut copy = std::slice::from_raw_parts(table, words).to_vec();
        let mut places = copy.iter_mut().filter(|word| **word == theirs as usize);
        let (Some(place), None) = (places.next(), places.next()) else { return false };
        *place = cache_info as *const () as usize;
        // The object may outlive everything here.
        let copy = copy.leak().as_mut_ptr().add(2);
        let _ = OURS.set(copy as usize);
        (*object).store(copy, Ordering::Release);
    }
    true
}

/// The copy of the table, once there is one.
static OURS: OnceLock<usize> = OnceLock::new();
