//! Finding the one library of the process, and its table of functions.
//!
//! A Rust static exists once per shared object, so a second copy of the engine would be a second table of current
//! resources. A client therefore never contains the engine; it looks for the one that is there, in this order, and takes
//! the first it finds:
//!
//! 1. `tenure_get_api` in the global scope: a program that has the engine linked in (feature `static`) exports it;
//! 2. `libtenure.so.0` among the loaded objects, whoever loaded it and from where;
//! 3. the path in the environment variable `TENURE_LIBRARY` (a file, or a folder that holds one);
//! 4. beside the object that contains this code: its folder (in a target folder of cargo's, under the name
//!    `libtenure_engine.so`), then `lib`, `../lib` and `../../lib` from there;
//! 5. wherever the system's loader looks for `libtenure.so.0`.
//!
//! A file that is there and cannot be used is an error and is never passed over in silence for the next: what a person
//! put somewhere on purpose must not be replaced by a library of another version.
//!
//! Finding costs one search per process; afterwards [`api`] is one load.
//!
//! Unsafe in this file: calls of the system's loader, and of the two functions through which a library says what it is.

use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use tenure_abi::{TENURE_ABI_VERSION, tenure_api};

use crate::error::{Error, LoadError, LoadFailure, Result};

/// The name under which the library is installed and recognised among the loaded objects.
pub(crate) const SONAME: &CStr = c"libtenure.so.0";
/// The name that cargo gives the library in its target folder.
const CARGO_NAME: &str = "libtenure_engine.so";
/// What a library exports: the table.
pub(crate) const GET_API: &CStr = c"tenure_get_api";
/// What a library exports: why it gave no table.
const GET_API_ERROR: &CStr = c"tenure_get_api_error";

type GetApi = unsafe extern "C" fn(u32) -> *const tenure_api;
type GetApiError = unsafe extern "C" fn() -> *const c_char;

static TABLE: OnceLock<&'static tenure_api> = OnceLock::new();
static SEARCH: Mutex<()> = Mutex::new(());

/// The table of functions of this process's one library, which is found and loaded at the first call.
///
/// For bindings and for what the safe types of this crate do not offer. The table lives as long as the process, and
/// every function of [`tenure_api`] is there: a library whose table is shorter than this crate's is refused.
///
/// # Errors
/// [`Error::Load`] with the places that were looked at and what to do. A failure is not remembered: the next call
/// searches again.
///
/// # Examples
/// ```
/// let api = tenure::api()?;
/// assert!(api.abi >= tenure::abi::TENURE_ABI_VERSION);
/// # Ok::<(), tenure::Error>(())
/// ```
#[inline]
pub fn api() -> Result<&'static tenure_api> {
    match TABLE.get() {
        Some(table) => Ok(table),
        None => search(),
    }
}

#[cold]
fn search() -> Result<&'static tenure_api> {
    let _one_at_a_time = SEARCH.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(table) = TABLE.get() {
        return Ok(table);
    }
    let table = find().map_err(|e| Error::Load(Box::new(e)))?;
    Ok(TABLE.get_or_init(|| table))
}

/// The file that the library of this process was loaded from; of a program that has the engine linked in, the program.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn library_path() -> Result<PathBuf> {
    let table: *const tenure_api = api()?;
    let path = object_of(table.cast()).unwrap_or_default();
    // The loader knows the program by the name it was called by, which need not be a path.
    if path.is_absolute() { Ok(path) } else { Ok(std::env::current_exe().unwrap_or(path)) }
}

/// The table if some call has found it already. Does not search.
pub(crate) fn loaded() -> Option<&'static tenure_api> {
    TABLE.get().copied()
}

/// One search: the places looked at so far, for the error's text.
#[derive(Default)]
pub(crate) struct Search {
    places: Vec<String>,
}

impl Search {
    /// Adds a place.
    #[cfg(feature = "static")]
    pub(crate) fn note(&mut self, place: &str) {
        self.places.push(place.into());
    }

    /// Ends the search.
    pub(crate) fn fail(self, failure: LoadFailure, message: String) -> LoadError {
        LoadError { failure, message, places: self.places }
    }
}

fn find() -> Result<&'static tenure_api, LoadError> {
    #[cfg(feature = "static")]
    return crate::linked::find(Search::default());
    #[cfg(not(feature = "static"))]
    return find_shared();
}

#[cfg_attr(feature = "static", expect(dead_code, reason = "a program with the engine in it looks nowhere else"))]
fn find_shared() -> Result<&'static tenure_api, LoadError> {
    let mut search = Search::default();

    search.places.push("tenure_get_api in the global scope".into());
    if let Some(get) = symbol(libc::RTLD_DEFAULT, GET_API) {
        return ask(search, get, symbol(libc::RTLD_DEFAULT, GET_API_ERROR), "the program itself");
    }
    search.places.push("libtenure.so.0 among the loaded objects".into());
    if let Some(handle) = open(SONAME, libc::RTLD_NOLOAD).ok().flatten() {
        return ask_object(search, handle, "the library that is loaded already");
    }
    if let Some(value) = std::env::var_os("TENURE_LIBRARY").filter(|v| !v.is_empty()) {
        let path = named_by_environment(&value);
        search.places.push(format!("TENURE_LIBRARY={}", value.to_string_lossy()));
        return open_file(search, &path, "TENURE_LIBRARY names it; correct the variable or unset it");
    }
    match folder_of_this_code() {
        Some(folder) => {
            for path in beside(&folder) {
                search.places.push(path.display().to_string());
                if path.exists() {
                    return open_file(search, &path, "repair or remove it, or name another one in TENURE_LIBRARY");
                }
            }
        }
        None => search.places.push("beside the object that contains this code (its path is not known)".into()),
    }
    search.places.push("libtenure.so.0 where the system's loader looks".into());
    match open(SONAME, 0) {
        Ok(Some(handle)) => ask_object(search, handle, "libtenure.so.0"),
        Ok(None) => Err(missing(search, "the loader gave no reason")),
        // The loader's text for "nowhere" names the file that was asked for and nothing else; any other names a path.
        Err(why) => Err(missing(search, &why)),
    }
}

fn missing(search: Search, why: &str) -> LoadError {
    search.fail(
        LoadFailure::Missing,
        format!(
            "libtenure.so.0 was not found ({why}): install tenure, or set TENURE_LIBRARY to the file or to the folder that holds it"
        ),
    )
}

/// A folder stands for the library in it.
fn named_by_environment(value: &OsStr) -> PathBuf {
    let path = PathBuf::from(value);
    if !path.is_dir() {
        return path;
    }
    let installed = path.join(OsStr::from_bytes(SONAME.to_bytes()));
    let built = path.join(CARGO_NAME);
    if !installed.exists() && built.exists() { built } else { installed }
}

/// Where the library is kept in an installed package, in a prefix, and in a folder of cargo's. What cargo has built comes
/// before the prefixes: a target folder may well lie two folders below somebody's `lib`.
fn beside(folder: &Path) -> Vec<PathBuf> {
    let installed = OsStr::from_bytes(SONAME.to_bytes());
    let built = OsStr::new(CARGO_NAME);
    [("", installed), ("", built), ("..", built), ("lib", installed), ("../lib", installed), ("../../lib", installed)]
        .map(|(place, name)| folder.join(place).join(name))
        .into()
}

/// The folder of the shared object or the program that this very function was linked into.
fn folder_of_this_code() -> Option<PathBuf> {
    let here = folder_of_this_code as fn() -> Option<PathBuf> as *const c_void;
    let name = object_of(here)?;
    // For the program itself the loader reports argv[0], which need not be a path.
    let path = match name.canonicalize() {
        Ok(path) if name.components().count() > 1 => path,
        _ => std::env::current_exe().ok()?,
    };
    path.parent().map(Path::to_path_buf)
}

/// The loaded object that an address lies in, under the name by which the loader knows it.
fn object_of(address: *const c_void) -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: the address is only compared, and `info` is valid for writing.
    let found = unsafe { libc::dladdr(address, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr succeeded, so the name is a string of the loader that lives as long as the object, which is not closed
    // meanwhile.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// Opens a file that a person named or that lies where the library belongs: any failure is final.
fn open_file(search: Search, path: &Path, advice: &str) -> Result<&'static tenure_api, LoadError> {
    let shown = path.display().to_string();
    if path.components().count() > 1 && !path.exists() {
        return Err(search.fail(LoadFailure::Missing, format!("there is no file {shown}: {advice}")));
    }
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else {
        return Err(search.fail(LoadFailure::Missing, format!("the path {shown:?} holds a zero byte: {advice}")));
    };
    match open(&name, 0) {
        Ok(Some(handle)) => ask_object(search, handle, &shown),
        Ok(None) => Err(search.fail(LoadFailure::Broken, format!("{shown} cannot be loaded: {advice}"))),
        Err(why) => Err(search.fail(LoadFailure::Broken, format!("{shown} cannot be loaded ({why}): {advice}"))),
    }
}

/// `dlopen`, never closed again. `Ok(None)` when there is nothing and no reason, as with `RTLD_NOLOAD`.
pub(crate) fn open(name: &CStr, flags: i32) -> Result<Option<*mut c_void>, String> {
    // SAFETY: `name` is a string; loading runs the library's initialisers, of which libtenure has none. Clearing the
    // loader's error first keeps an older one from being reported.
    unsafe {
        libc::dlerror();
        let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | flags);
        if !handle.is_null() {
            return Ok(Some(handle));
        }
        let why = libc::dlerror();
        if why.is_null() { Ok(None) } else { Err(CStr::from_ptr(why).to_string_lossy().into_owned()) }
    }
}

/// `dlsym`; null is absent.
pub(crate) fn symbol(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `handle` is one of the loader's or RTLD_DEFAULT, `name` a string.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

fn ask_object(search: Search, handle: *mut c_void, whose: &str) -> Result<&'static tenure_api, LoadError> {
    match symbol(handle, GET_API) {
        Some(get) => ask(search, get, symbol(handle, GET_API_ERROR), whose),
        None => Err(search.fail(
            LoadFailure::Broken,
            format!(
                "{whose} is not libtenure (it does not export tenure_get_api): name the right file in TENURE_LIBRARY"
            ),
        )),
    }
}

/// Asks for the table, and asks why where it is refused.
pub(crate) fn ask(
    search: Search,
    get: *mut c_void,
    why: Option<*mut c_void>,
    whose: &str,
) -> Result<&'static tenure_api, LoadError> {
    // SAFETY: whoever exports a symbol `tenure_get_api` states with it that it has this signature.
    let get: GetApi = unsafe { std::mem::transmute::<*mut c_void, GetApi>(get) };
    // SAFETY: as above; it may be called on any thread at any time.
    let table = unsafe { get(TENURE_ABI_VERSION) };
    accept(search, table, || why.map(reason), whose)
}

/// The text of `tenure_get_api_error`.
fn reason(address: *mut c_void) -> String {
    // SAFETY: whoever exports a symbol `tenure_get_api_error` states with it that it has this signature, and that the
    // string lives as long as the thread makes no further call of `tenure_get_api`.
    unsafe {
        let why: GetApiError = std::mem::transmute::<*mut c_void, GetApiError>(address);
        let text = why();
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    }
}

/// Checks a table before anyone reads it as ours.
fn accept(
    search: Search,
    table: *const tenure_api,
    why: impl FnOnce() -> Option<String>,
    whose: &str,
) -> Result<&'static tenure_api, LoadError> {
    if table.is_null() {
        let why = why().filter(|text| !text.is_empty()).unwrap_or_else(|| {
            format!("it does not serve ABI version {TENURE_ABI_VERSION}; install versions of one release")
        });
        return Err(search.fail(LoadFailure::Refused, format!("{whose} gave no table of functions: {why}")));
    }
    // SAFETY: a table that is not null starts with its ABI version and its size, whatever its version.
    let (abi, size) = unsafe { ((*table).abi, (*table).size) };
    let needed = size_of::<tenure_api>();
    if abi < TENURE_ABI_VERSION || (size as usize) < needed {
        return Err(search.fail(
            LoadFailure::WrongVersion,
            format!(
                "{whose} is older than this program: its table has ABI {abi} and {size} bytes, and ABI \
                 {TENURE_ABI_VERSION} and {needed} bytes are needed; upgrade tenure so that both are of one release"
            ),
        ));
    }
    // SAFETY: the table is at least as long as ours, append-only, never written to and never freed.
    Ok(unsafe { &*table })
}
