//! Which driver this process uses, decided once, at first use.
//!
//! | `TENURE_DEVICE` | a driver library is there | none is there |
//! |---|---|---|
//! | `auto` (or not set) | CUDA; an error if it does not work | the simulated device, said once on stderr |
//! | `cuda` | CUDA; an error if it does not work | [`LoadError::NoLibrary`] |
//! | `sim` | the simulated device | the simulated device |
//!
//! A driver that is there and fails is *never* replaced: a program that silently computes on the host instead of the
//! GPU is worse than one that says why it cannot start. The outcome, good or bad, is kept for the life of the process.
//! Nothing here runs before the first [`Driver::get`], so that an import makes no driver call.

use core::ffi::CStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::driver::Driver;
use crate::error::{DriverError, code_name};
use crate::process;
use crate::sync::{Mutex, OnceCell};
use crate::sys::*;
use crate::table::Table;

/// The oldest driver that works: CUDA 12.2, as `cuDriverGetVersion` says it.
pub const OLDEST_DRIVER: i32 = 12020;

/// The environment variable that chooses the device.
pub const VARIABLE: &str = "TENURE_DEVICE";

const LIBRARY: &str = "libcuda.so.1";

/// What stands in the way of a driver library that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The file cannot be loaded (damaged, for another machine, a library it needs is missing, not readable).
    Library,
    /// The driver is older than [`OLDEST_DRIVER`], or lacks calls that every driver since has.
    TooOld,
    /// No device: none in the machine, or none visible to this process (`CUDA_VISIBLE_DEVICES`).
    NoDevice,
    /// The device files may not be opened by this user.
    Permission,
    /// The library and the kernel module are of different versions.
    Mismatch,
    /// The driver said something else.
    Other,
}

/// Why there is no device to use. Kept: a later call gives the same answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// `TENURE_DEVICE` has a value that is none of the three.
    #[error("TENURE_DEVICE is \"{value}\", which is not a device: set it to auto, cuda or sim, or unset it (auto)")]
    UnknownChoice {
        /// The value found.
        value: String,
    },
    /// `TENURE_DEVICE=cuda`, and the loader finds no driver library.
    #[error(
        "TENURE_DEVICE is cuda, but there is no CUDA driver library: install the NVIDIA driver (in a container, start \
         it with GPU access), or set TENURE_DEVICE=sim to use the simulated device; the loader says: {detail}"
    )]
    NoLibrary {
        /// The loader's message.
        detail: String,
    },
    /// A driver library is there and does not work.
    #[error("the CUDA driver is there but does not work: {message}; to run without a GPU, set TENURE_DEVICE=sim")]
    Broken {
        /// What kind of trouble it is.
        cause: Cause,
        /// The driver's code where it gave one, else 0.
        code: CUresult,
        /// What is wrong and what to do about it.
        message: String,
    },
    /// The simulated device could not be set up.
    #[error("the simulated device could not be set up: {message}")]
    Simulated {
        /// What is wrong and what to do about it.
        message: String,
    },
    /// [`prefer_sim`] came after the driver had been loaded.
    #[error("the simulated device was asked for after CUDA was in use: ask before the first use of a device")]
    AlreadyLoaded,
    /// This process was forked from one that had used the driver.
    #[error(
        "this process was forked from one that had used the device, and the driver does not work in such a child; \
         start workers with \"spawn\" or \"forkserver\", or fork before the first use"
    )]
    Forked,
    /// The process is ending.
    #[error("the process is ending, and the driver may be gone already")]
    Exiting,
}

impl From<process::Unusable> for LoadError {
    fn from(why: process::Unusable) -> Self {
        match why {
            process::Unusable::Forked => LoadError::Forked,
            process::Unusable::Exiting => LoadError::Exiting,
        }
    }
}

/// No driver, or a call of it that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// There is no driver to call.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] DriverError),
}

// ----------------------------------------------------------------------------------------------------- the one instance

static DRIVER: OnceCell<Result<Driver, LoadError>> = OnceCell::new();
static PREFER_SIM: OnceCell<()> = OnceCell::new();

impl Driver {
    /// The driver of this process; loads it at the first call.
    ///
    /// # Errors
    ///
    /// Why there is none. The answer of the first call is kept, a failure too; in a forked child and while the process
    /// ends the answer is an error whatever it was before.
    pub fn get() -> Result<&'static Driver, LoadError> {
        if let Err(why) = process::check() {
            // A child of a process that had no driver is told why there was none.
            return Err(match DRIVER.get() {
                Some(Err(known)) => known.clone(),
                _ => why.into(),
            });
        }
        if let Some(known) = DRIVER.get() {
            return known.as_ref().map_err(Clone::clone);
        }
        // Before the first lock and the first call, so that a child forked from here on is recognised.
        process::arm();
        DRIVER.get_or_init(load).as_ref().map_err(Clone::clone)
    }
}

/// The driver, if one has been loaded; loads nothing.
#[must_use]
pub fn loaded() -> Option<&'static Driver> {
    DRIVER.get().and_then(|result| result.as_ref().ok())
}

/// Chooses the simulated device for this process, whatever `TENURE_DEVICE` says, and loads it.
///
/// # Errors
///
/// [`LoadError::AlreadyLoaded`] when CUDA is in use already, otherwise what [`Driver::get`] says.
pub fn prefer_sim() -> Result<&'static Driver, LoadError> {
    process::check()?;
    let _ = PREFER_SIM.set(());
    let driver = Driver::get()?;
    if driver.is_simulated() { Ok(driver) } else { Err(LoadError::AlreadyLoaded) }
}

/// What runs when the driver has been initialised.
struct Hooks {
    ran: bool,
    list: Vec<fn()>,
}

static HOOKS: Mutex<Hooks> = Mutex::new(Hooks { ran: false, list: Vec::new() });

/// Has `hook` called right after the first successful `cuInit` (at once, if that has been). A handler that it registers
/// with `atexit` therefore runs before the driver's own.
///
/// The hook runs without a lock of this module, but inside the first [`Driver::get`]: it must not call it.
pub fn on_init(hook: fn()) {
    {
        let mut hooks = HOOKS.lock();
        if !hooks.ran {
            hooks.list.push(hook);
            return;
        }
    }
    hook();
}

fn run_hooks() {
    let list = {
        let mut hooks = HOOKS.lock();
        hooks.ran = true;
        core::mem::take(&mut hooks.list)
    };
    for hook in list {
        hook();
    }
}

// ---------------------------------------------------------------------------------------------------------- the decision

fn load() -> Result<Driver, LoadError> {
    let value = std::env::var_os(VARIABLE).unwrap_or_default();
    let by_hand = PREFER_SIM.get().is_some() || value == "sim";
    let driver = if by_hand {
        load_sim(true)?
    } else if value == "cuda" || value == "auto" || value.is_empty() {
        match find_cuda() {
            Found::Library(library) => load_cuda(library)?,
            Found::Broken(message) => {
                return Err(LoadError::Broken { cause: Cause::Library, code: 0, message });
            }
            Found::Absent(detail) if value == "cuda" => {
                return Err(LoadError::NoLibrary { detail });
            }
            Found::Absent(_) => {
                let driver = load_sim(false)?;
                say_simulated();
                driver
            }
        }
    } else {
        return Err(LoadError::UnknownChoice { value: value.to_string_lossy().into_owned() });
    };
    run_hooks();
    Ok(driver)
}

/// Said once per process, since `load` runs once. A closed stderr is no reason to fail.
fn say_simulated() {
    let _ = writeln!(
        std::io::stderr(),
        "tenure: no CUDA driver on this machine, using the simulated device (host memory, no GPU). Install the NVIDIA \
         driver to use a GPU, or set TENURE_DEVICE=sim to choose this silently, TENURE_DEVICE=cuda to make it an error."
    );
}

fn load_sim(by_hand: bool) -> Result<Driver, LoadError> {
    let table = crate::sim::table();
    let driver = Driver::new(table, by_hand, "the simulated device".to_owned(), true);
    initialise(&driver).map_err(|error| LoadError::Simulated {
        message: format!(
            "{error}; TENURE_SIM_DEVICES and TENURE_SIM_MEMORY set its number of devices and their memory"
        ),
    })?;
    Ok(driver)
}

/// `cuInit` and the version; what both kinds of driver need.
fn initialise(driver: &Driver) -> Result<(), DriverError> {
    driver.init()?;
    driver.read_version()
}

// ------------------------------------------------------------------------------------------------------------------ CUDA

enum Found {
    Library(libloading::os::unix::Library),
    Absent(String),
    Broken(String),
}

fn find_cuda() -> Found {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    // SAFETY: the library is NVIDIA's driver by its SONAME; its initialisers run in every process that uses a GPU. What
    // is loaded here is never unloaded.
    match unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_LOCAL) } {
        Ok(library) => Found::Library(library),
        Err(error) => {
            let detail = loader_message(&error);
            if !says_absent(&detail) {
                return Found::Broken(format!("{LIBRARY} cannot be loaded ({detail}); reinstall the NVIDIA driver"));
            }
            match left_over() {
                None => Found::Absent(detail),
                Some(path) => Found::Broken(format!(
                    "{} is there, but the loader cannot open it ({detail}): it is a dangling link, not readable, or its \
                     directory is unknown to the loader (run ldconfig, or name the directory in LD_LIBRARY_PATH)",
                    path.display()
                )),
            }
        }
    }
}

/// The loader's own words: libloading's error keeps them as its source.
fn loader_message(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Whether the loader's message means "there is no such library". The message is in the user's language, so that the
/// words of "no such file" are asked from the C library; a message about a file that was found names its whole path,
/// and one about a library that the driver needs names that one.
fn says_absent(message: &str) -> bool {
    let Some(at) = message.find(LIBRARY) else {
        return false;
    };
    let own_name = message[..at].chars().next_back().is_none_or(|c| c != '/');
    own_name && (message.contains("No such file or directory") || message.contains(&no_such_file()))
}

fn no_such_file() -> String {
    let mut text = [0u8; 256];
    // SAFETY: the buffer is writable for the length that is passed; the XSI variant that `libc` binds fills it.
    let failed = unsafe { libc::strerror_r(libc::ENOENT, text.as_mut_ptr().cast(), text.len()) } != 0;
    match CStr::from_bytes_until_nul(&text) {
        Ok(text) if !failed && !text.is_empty() => text.to_string_lossy().into_owned(),
        _ => "No such file or directory".to_owned(),
    }
}

/// A driver library where drivers usually are (a dangling link counts), although the loader finds none.
fn left_over() -> Option<PathBuf> {
    let usual = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/lib/wsl/lib",
        "/usr/local/nvidia/lib64",
        "/run/opengl-driver/lib",
    ];
    let listed = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::split_paths(&listed)
        .filter(|directory| directory.is_absolute())
        .chain(usual.iter().map(PathBuf::from))
        .map(|directory| directory.join(LIBRARY))
        .find(|path| path.symlink_metadata().is_ok())
}

type GetProcAddress = unsafe extern "C" fn(
    *const c_char,
    *mut *mut c_void,
    c_int,
    cuuint64_t,
    *mut CUdriverProcAddressQueryResult,
) -> CUresult;

fn load_cuda(library: libloading::os::unix::Library) -> Result<Driver, LoadError> {
    let too_old = |message: String| LoadError::Broken { cause: Cause::TooOld, code: 0, message };
    // SAFETY: the driver declares the symbol with exactly this type since CUDA 12.0.
    let find: GetProcAddress = match unsafe { library.get::<GetProcAddress>(c"cuGetProcAddress_v2") } {
        Ok(symbol) => *symbol,
        Err(_) => {
            return Err(too_old(format!(
                "{LIBRARY} has no cuGetProcAddress_v2, so it is older than CUDA 12 (12.2 is needed); update the NVIDIA \
                 driver to 535 or newer"
            )));
        }
    };
    // The driver registers handlers and threads of its own: it stays for the life of the process.
    let _ = library.into_raw();

    let mut name = [0u8; 64];
    // SAFETY: the driver returns, for a name and the version in which the parameters of our table appeared, null or the
    // function with those parameters; ci/check-cuda-headers compares the table with NVIDIA's headers. The library was
    // leaked above.
    let table = unsafe {
        Table::resolve(|call, version| {
            name.fill(0);
            let Some(room) = name.get_mut(..call.len()) else {
                return core::ptr::null_mut();
            };
            room.copy_from_slice(call.as_bytes());
            if name[name.len() - 1] != 0 {
                return core::ptr::null_mut();
            }
            let mut address = core::ptr::null_mut();
            let mut found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
            let code = find(name.as_ptr().cast(), &mut address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &mut found);
            if code == CUDA_SUCCESS && found == CU_GET_PROC_ADDRESS_SUCCESS { address } else { core::ptr::null_mut() }
        })
    };
    for call in NEEDED {
        if !table.has(call) {
            return Err(too_old(format!("{LIBRARY} lacks the call {call}; update the NVIDIA driver to 535 or newer")));
        }
    }
    let driver = Driver::new(table, true, LIBRARY.to_owned(), false);
    // The version may be asked before cuInit, and explains more than the code that cuInit of an old driver gives.
    driver.read_version().map_err(|error| broken(&driver, &error))?;
    if driver.version() < OLDEST_DRIVER {
        return Err(too_old(format!(
            "it is a driver for CUDA {}.{}, and 12.2 or newer is needed; update the NVIDIA driver to 535 or newer",
            driver.version() / 1000,
            driver.version() % 1000 / 10
        )));
    }
    driver.init().map_err(|error| broken(&driver, &error))?;
    match driver.device_count() {
        Ok(count) if count > 0 => Ok(driver),
        Ok(_) => Err(broken(&driver, &DriverError::new("cuDeviceGetCount", CUDA_ERROR_NO_DEVICE))),
        Err(error) => Err(broken(&driver, &error)),
    }
}

/// Calls that every driver since the floor has and without which nothing works.
const NEEDED: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxGetDevice",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemGetInfo",
];

/// Names the cause behind a code of `cuInit` or `cuDeviceGetCount`.
fn broken(driver: &Driver, error: &DriverError) -> LoadError {
    let code = error.code;
    // A code that is newer than our table: this driver is not the process's yet, so that it is asked here.
    let name = driver.error_name(code).unwrap_or_else(|| code_name(code));
    let said = format!("{} gave {name} (code {code})", error.call);
    let denied = denied_device_file();
    let (cause, message) = match code {
        CUDA_ERROR_NO_DEVICE | CUDA_ERROR_INVALID_DEVICE => match (visible_devices(), denied) {
            (Some(value), _) if value.trim().is_empty() || value.trim() == "-1" => (
                Cause::NoDevice,
                format!(
                    "{said}, because CUDA_VISIBLE_DEVICES is \"{value}\", which hides every GPU from this process; \
                     unset it or list a GPU in it"
                ),
            ),
            (_, Some(path)) => (Cause::Permission, permission(&said, &path)),
            (Some(value), None) => (
                Cause::NoDevice,
                format!("{said}; CUDA_VISIBLE_DEVICES is \"{value}\": check that it names a GPU of this machine"),
            ),
            (None, None) => (
                Cause::NoDevice,
                format!("{said}: no GPU is visible to this process; nvidia-smi shows what the machine has"),
            ),
        },
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => (
            Cause::Mismatch,
            format!(
                "{said}: {LIBRARY} and the loaded kernel module are of different versions, as after an update; reboot, \
                 or reload the nvidia modules"
            ),
        ),
        CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => (
            Cause::Mismatch,
            format!(
                "{said}: a forward-compatibility {LIBRARY} is found first, and this GPU does not support it; take its \
                 directory out of LD_LIBRARY_PATH"
            ),
        ),
        CUDA_ERROR_STUB_LIBRARY => (
            Cause::Library,
            format!(
                "{said}: a stub for linking was loaded instead of the driver; take the \"stubs\" directory out of \
                     LD_LIBRARY_PATH"
            ),
        ),
        CUDA_ERROR_SYSTEM_NOT_READY => (
            Cause::Other,
            format!("{said}: the system is not ready; on machines with NVSwitch, start the fabric manager"),
        ),
        CUDA_ERROR_NOT_PERMITTED => (Cause::Permission, format!("{said}: this user may not use the GPU")),
        _ => match denied {
            Some(path) => (Cause::Permission, permission(&said, &path)),
            None => (Cause::Other, format!("{said}; nvidia-smi may say more")),
        },
    };
    LoadError::Broken { cause, code, message }
}

fn permission(said: &str, path: &Path) -> String {
    format!(
        "{said}: this user may not open {}; add the user to the group that owns it, or mend its permissions",
        path.display()
    )
}

fn visible_devices() -> Option<String> {
    std::env::var_os("CUDA_VISIBLE_DEVICES").map(|value| value.to_string_lossy().into_owned())
}

/// A device file of the driver that this user may not open.
fn denied_device_file() -> Option<PathBuf> {
    ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"].iter().map(PathBuf::from).find(|path| {
        match std::fs::OpenOptions::new().read(true).write(true).open(path) {
            Ok(_) => false,
            Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
        }
    })
}
