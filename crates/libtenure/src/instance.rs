//! One engine per process.
//!
//! A Rust static is per shared object: a second copy of this library (another path, another version, a program that links
//! the engine in) would be a second table of current resources. At its first call an engine looks through the loaded
//! objects for others that have a `tenure_get_api`. The first in the loader's order is the instance; any other refuses and
//! names both, so that two that are loaded at the same moment agree on one.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use tenure_abi::*;
use tenure_core::error::{Error, Result};
use tenure_core::sync::OnceCell;
use tenure_core::sync::atomic::{AtomicBool, Ordering};

static VERDICT: OnceCell<Option<CString>> = OnceCell::new();
static IS_INSTANCE: AtomicBool = AtomicBool::new(false);

/// True once [`check`] has found that this is the instance of the process.
#[inline]
pub(crate) fn is_checked() -> bool {
    IS_INSTANCE.load(Ordering::Relaxed)
}

/// Fails when another engine is the process's instance. One relaxed load once it is known.
pub(crate) fn check() -> Result<()> {
    if IS_INSTANCE.load(Ordering::Relaxed) {
        return Ok(());
    }
    match verdict() {
        None => Ok(()),
        Some(text) => Err(Error::Unsupported(text.to_string_lossy().into_owned())),
    }
}

fn verdict() -> &'static Option<CString> {
    let verdict = VERDICT.get_or_init(|| {
        let refusal = look().and_then(|text| CString::new(text).ok());
        if refusal.is_none() {
            tenure_driver::load::on_init(crate::library::at_driver_init);
        }
        refusal
    });
    if verdict.is_none() {
        IS_INSTANCE.store(true, Ordering::Relaxed);
    }
    verdict
}

/// One loaded object: the path by which the loader knows it (empty for the program itself) and where its segments lie.
struct Object {
    path: CString,
    segments: Vec<(usize, usize)>,
}

/// Why this engine must refuse, if it must.
fn look() -> Option<String> {
    let mine = tenure_get_api as *const () as usize;
    let mut objects: Vec<Object> = Vec::new();
    // SAFETY: the callback is called during this call only, with the vector that it is given.
    unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut objects).cast()) };
    let address = objects.iter().find_map(api_in)?;
    if address == mine {
        return None;
    }
    Some(format!(
        "a second tenure engine was loaded: {} is the instance of this process and {} refuses, since each would have its own \
         table of current resources. Make everything load one libtenure.so.0 (set TENURE_LIBRARY, or remove the other copy)",
        name_of(address),
        name_of(mine),
    ))
}

/// The address of `tenure_get_api` in this object, if it has one.
fn api_in(object: &Object) -> Option<usize> {
    let name = if object.path.is_empty() { std::ptr::null() } else { object.path.as_ptr() };
    // SAFETY: the path is a C string or null (the program itself); RTLD_NOLOAD loads nothing.
    let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: `handle` is one that dlopen gave.
    let symbol = unsafe { libc::dlsym(handle, c"tenure_get_api".as_ptr()) } as usize;
    // SAFETY: given back once.
    unsafe { libc::dlclose(handle) };
    // dlsym also looks into what the object depends on: the symbol counts for the object that it lies in.
    object.segments.iter().any(|(start, end)| (*start..*end).contains(&symbol)).then_some(symbol)
}

/// The file of the object that this address lies in.
fn name_of(address: usize) -> String {
    // SAFETY: a zeroed Dl_info is a valid out-argument.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr only compares the address with the loaded objects.
    if unsafe { libc::dladdr(address as *const c_void, &mut info) } == 0 || info.dli_fname.is_null() {
        return "an object without a name".into();
    }
    // SAFETY: dladdr succeeded: the name is a C string of the loader.
    unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned()
}

unsafe extern "C" fn collect(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader gives a valid structure with `dlpi_phnum` headers, and `data` is the vector of `look`.
    unsafe {
        let objects = &mut *data.cast::<Vec<Object>>();
        let info = &*info;
        let headers = match info.dlpi_phnum {
            0 => &[],
            count => std::slice::from_raw_parts(info.dlpi_phdr, count.into()),
        };
        let segments = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD)
            .map(|header| {
                let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
                (start, start.wrapping_add(header.p_memsz as usize))
            })
            .collect();
        let path =
            if info.dlpi_name.is_null() { CString::default() } else { CStr::from_ptr(info.dlpi_name).to_owned() };
        objects.push(Object { path, segments });
    }
    0
}

/// The table of functions for a client of this ABI version; null, with the reason from [`tenure_get_api_error`], when this
/// library does not serve it or is not the instance of the process.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_get_api(abi: u32) -> *const tenure_api {
    if abi == 0 || abi > TENURE_ABI_VERSION {
        return std::ptr::null();
    }
    match std::panic::catch_unwind(verdict) {
        Ok(None) => &raw const crate::table::TABLE,
        _ => std::ptr::null(),
    }
}

/// Why [`tenure_get_api`] gave null, as one sentence; it is about the ABI version unless this library is not the instance.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_get_api_error() -> *const c_char {
    match VERDICT.get() {
        Some(Some(text)) => text.as_ptr(),
        _ => c"this libtenure serves ABI version 1 only: install the libtenure that belongs to the client".as_ptr(),
    }
}
