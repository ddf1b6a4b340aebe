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

/// Why this engine must refuse, if it must.
fn look() -> Option<String> {
    let mine = tenure_get_api as *const () as usize;
    let mut paths: Vec<CString> = Vec::new();
    // SAFETY: the callback is called during this call only, with the vector that it is given.
    unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut paths).cast()) };
    let mut first: Option<(usize, CString)> = None;
    for path in paths {
        let address = api_in(&path)?.unwrap_or(0);
        if address != 0 && first.is_none() {
            first = Some((address, path));
        }
    }
    let (address, path) = first?;
    if address == mine {
        return None;
    }
    Some(format!(
        "a second tenure engine was loaded: {} is the instance of this process and {} refuses, since each would have its own \
         table of current resources. Make everything load one libtenure.so.0 (set TENURE_LIBRARY, or remove the other copy)",
        object_name(address, &path),
        object_name(mine, c"this one"),
    ))
}

/// The address of `tenure_get_api` in the object of this path; `Some(None)` when it has none. The outer `None` is never
/// returned; it only lets the caller use `?`.
#[allow(clippy::unnecessary_wraps)]
fn api_in(path: &CStr) -> Option<Option<usize>> {
    let name = if path.is_empty() { std::ptr::null() } else { path.as_ptr() };
    // SAFETY: the path is a C string or null (the program itself); RTLD_NOLOAD loads nothing.
    let object = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if object.is_null() {
        return Some(None);
    }
    // SAFETY: `object` is a handle that dlopen gave.
    let symbol = unsafe { libc::dlsym(object, c"tenure_get_api".as_ptr()) };
    // SAFETY: given back once.
    unsafe { libc::dlclose(object) };
    if symbol.is_null() {
        return Some(None);
    }
    // dlsym also looks into what the object depends on: count the symbol only for the object that has it.
    let found = info_of(symbol as usize).map(|info| info.0).unwrap_or_default();
    let same = if path.is_empty() {
        // For the program itself every global object is searched.
        !found.contains(".so")
    } else {
        found.as_bytes() == path.to_bytes()
    };
    Some(same.then_some(symbol as usize))
}

fn info_of(address: usize) -> Option<(String, usize)> {
    // SAFETY: a zeroed Dl_info is a valid out-argument.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr only compares the address with the loaded objects.
    if unsafe { libc::dladdr(address as *const c_void, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr succeeded: the name is a C string of the loader.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some((name.to_string_lossy().into_owned(), info.dli_fbase as usize))
}

fn object_name(address: usize, otherwise: &CStr) -> String {
    info_of(address).map_or_else(|| otherwise.to_string_lossy().into_owned(), |(name, _)| name)
}

unsafe extern "C" fn collect(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader gives a valid structure, and `data` is the vector of `look`.
    unsafe {
        let paths = &mut *data.cast::<Vec<CString>>();
        let name = (*info).dlpi_name;
        paths.push(if name.is_null() { CString::default() } else { CStr::from_ptr(name).to_owned() });
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
