//! Looking for a tool, once, and the slots that it fills.
//!
//! ```text
//!   STATE   FRESH -> LOOKING -> OFF | QUIET | ATTACHED     QUIET -> ATTACHED when the tool takes an extension
//!   TABLES[module][function] ---> SLOTS[module][function] ---> the tool's function, or null
//! ```
//!
//! A tool writes the slots while it is initialised (and may clear them later, when it leaves); everybody else reads them as
//! atomics, after an acquiring load of STATE.

use core::ffi::{c_int, c_void};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use super::{DOMAIN, Name, abi};
// Process-wide state in statics, which loom's atomics cannot be; no model covers it.
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

/// The environment's name of the tool's library.
const VARIABLE: &str = if size_of::<usize>() == 4 { "NVTX_INJECTION32_PATH" } else { "NVTX_INJECTION64_PATH" };

pub(super) const CORE2: usize = abi::MODULE_CORE2;

const FRESH: u8 = 0;
const OFF: u8 = 1;
const LOOKING: u8 = 2;
/// A tool that has been told of no extension yet and wants nothing else.
const QUIET: u8 = 3;
/// A tool that wants to be called.
pub(super) const ATTACHED: u8 = 4;

/// An answer that is found once.
pub(super) struct Once {
    state: AtomicU8,
    /// The thread that is looking.
    looker: AtomicUsize,
}

impl Once {
    pub(super) const fn new() -> Self {
        Self { state: AtomicU8::new(FRESH), looker: AtomicUsize::new(0) }
    }

    /// The answer, found by `look` if nobody has looked yet. A tool that calls back while it is being looked for is told
    /// that there is none; other threads wait for the answer.
    pub(super) fn get(&self, look: impl FnOnce() -> u8) -> u8 {
        loop {
            let state = self.state.load(Ordering::Acquire);
            if state != FRESH && state != LOOKING {
                return state;
            }
            if crate::process::unusable() {
                return OFF;
            }
            // SAFETY: always succeeds.
            let me = unsafe { libc::pthread_self() } as usize;
            if state == LOOKING {
                if self.looker.load(Ordering::Relaxed) == me {
                    return OFF;
                }
                std::thread::yield_now();
                continue;
            }
            if self.state.compare_exchange(FRESH, LOOKING, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                self.looker.store(me, Ordering::Relaxed);
                let found = look();
                self.looker.store(0, Ordering::Relaxed);
                self.state.store(found, Ordering::Release);
                return found;
            }
        }
    }

    /// One relaxed load.
    #[inline]
    pub(super) fn found(&self) -> bool {
        self.state.load(Ordering::Relaxed) >= ATTACHED
    }
}

static STATE: Once = Once::new();

type Slot = AtomicPtr<c_void>;

static SLOTS: [[Slot; abi::LARGEST_MODULE]; abi::MODULES] =
    [const { [const { Slot::new(core::ptr::null_mut()) }; abi::LARGEST_MODULE] }; abi::MODULES];

/// What a tool gets of a module: pointers to its slots, null at both ends.
type Table = [AtomicPtr<Slot>; abi::LARGEST_MODULE + 1];

static TABLES: [Table; abi::MODULES] = [table(0), table(1), table(2), table(3), table(4), table(5), table(6)];

const fn table(module: usize) -> Table {
    let mut table = [const { AtomicPtr::new(core::ptr::null_mut()) }; abi::LARGEST_MODULE + 1];
    let mut function = 1;
    while function < abi::MODULE_SIZES[module] {
        table[function] = AtomicPtr::new((&raw const SLOTS[module][function]).cast_mut());
        function += 1;
    }
    table
}

static CALLBACKS: abi::Callbacks =
    abi::Callbacks { struct_size: size_of::<abi::Callbacks>(), get_module_function_table };

static VERSION_INFO: abi::VersionInfo = abi::VersionInfo {
    struct_size: size_of::<abi::VersionInfo>(),
    version: abi::VERSION as u32,
    reserved0: 0,
    set_injection_nvtx_version,
};

unsafe extern "C" fn get_export_table(id: u32) -> *const c_void {
    match id {
        abi::EXPORT_CALLBACKS => (&raw const CALLBACKS).cast(),
        abi::EXPORT_VERSION_INFO => (&raw const VERSION_INFO).cast(),
        _ => core::ptr::null(),
    }
}

unsafe extern "C" fn get_module_function_table(module: c_int, table: *mut *mut c_void, size: *mut u32) -> c_int {
    let Some(module) = usize::try_from(module).ok().filter(|&m| m > 0 && m < abi::MODULES) else { return 0 };
    if !size.is_null() {
        // SAFETY: the tool gave somewhere to write.
        unsafe { size.write(abi::MODULE_SIZES[module] as u32) };
    }
    if !table.is_null() {
        // SAFETY: as above.
        unsafe { table.write((&raw const TABLES[module]).cast_mut().cast()) };
    }
    1
}

unsafe extern "C" fn set_injection_nvtx_version(_version: u32) {}

/// What the tool answered when the domain and the names were made.
static DOMAIN_HANDLE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static STRINGS: [AtomicPtr<c_void>; Name::ALL.len()] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; Name::ALL.len()];

/// The tool's entry of extensions.
static EXTENSION_ENTRY: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Whether a tool is attached that wants to be called. One relaxed load; before the first [`look`] the answer is no.
#[inline]
#[must_use]
pub fn attached() -> bool {
    STATE.found()
}

/// Looks whether a tool is attached, if nobody has yet. May load the tool and call it.
pub fn look() -> bool {
    let found = STATE.get(attach) >= ATTACHED;
    if found {
        crate::watch::begin(crate::watch::TOOL);
    }
    found
}

/// The function that the tool has put into a slot; null where it has none.
pub(super) fn slot(module: usize, function: usize) -> *mut c_void {
    // The tool's stores came before the state's.
    let _ = STATE.state.load(Ordering::Acquire);
    SLOTS[module][function].load(Ordering::Relaxed)
}

pub(super) fn domain() -> *mut c_void {
    DOMAIN_HANDLE.load(Ordering::Relaxed)
}

pub(super) fn string(name: Name) -> *mut c_void {
    STRINGS[name as usize].load(Ordering::Relaxed)
}

/// The tool's entry of extensions, if it has one.
pub(super) fn extension() -> Option<abi::InitializeExtension> {
    look();
    let entry = EXTENSION_ENTRY.load(Ordering::Relaxed);
    // SAFETY: the address is that of the tool's InitializeInjectionNvtxExtension, and the tool stays loaded.
    (!entry.is_null()).then(|| unsafe { core::mem::transmute::<*mut c_void, abi::InitializeExtension>(entry) })
}

/// A tool took an extension: it is attached, also where it wants no ranges.
pub(super) fn taken() {
    let _ = STATE.state.compare_exchange(QUIET, ATTACHED, Ordering::AcqRel, Ordering::Relaxed);
    crate::watch::begin(crate::watch::TOOL);
}

fn attach() -> u8 {
    // SAFETY: reads the auxiliary vector.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // Whoever started this program may not choose what it loads.
        return OFF;
    }
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else { return OFF };
    // SAFETY: the user has named this library as a tool for this process; its initialisers run as the tool wants.
    let Ok(library) = (unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL) }) else { return OFF };
    let mut found = OFF;
    // SAFETY: by this name, tools of NVTX have a function of this type.
    if let Ok(entry) = unsafe { library.get::<abi::InitializeInjection>(c"InitializeInjectionNvtx2") } {
        // SAFETY: the table that is passed answers as the ABI says, for as long as the process lives.
        if unsafe { entry(get_export_table) } != 0 {
            found = ATTACHED;
        }
    }
    if found == OFF {
        // What a tool filled in before it said no is not called.
        SLOTS.iter().flatten().for_each(|slot| slot.store(core::ptr::null_mut(), Ordering::Relaxed));
    }
    // SAFETY: by this name, tools of NVTX have a function of this type.
    if let Ok(entry) = unsafe { library.get::<abi::InitializeExtension>(c"InitializeInjectionNvtxExtension") } {
        EXTENSION_ENTRY.store(*entry as *mut c_void, Ordering::Relaxed);
        found = found.max(QUIET);
    }
    if found == OFF {
        // Dropped, and thereby closed.
        return OFF;
    }
    // A tool stays for the life of the process.
    let _ = library.into_raw();
    make_domain();
    found
}

/// Makes the domain and registers the names, as far as the tool wants to know.
fn make_domain() {
    let create = SLOTS[CORE2][abi::DOMAIN_CREATE_A].load(Ordering::Relaxed);
    if create.is_null() {
        return;
    }
    // SAFETY: the tool put it there for nvtxDomainCreateA.
    let create: abi::DomainCreateA = unsafe { core::mem::transmute(create) };
    // SAFETY: the name is a C string for good.
    let domain = unsafe { create(DOMAIN.as_ptr()) };
    DOMAIN_HANDLE.store(domain, Ordering::Relaxed);
    let register = SLOTS[CORE2][abi::DOMAIN_REGISTER_STRING_A].load(Ordering::Relaxed);
    if register.is_null() {
        return;
    }
    // SAFETY: the tool put it there for nvtxDomainRegisterStringA.
    let register: abi::DomainRegisterStringA = unsafe { core::mem::transmute(register) };
    for name in Name::ALL {
        // SAFETY: the domain is the tool's answer, the text a C string for good.
        let string = unsafe { register(domain, name.text().as_ptr()) };
        STRINGS[name as usize].store(string, Ordering::Relaxed);
    }
}
