//! What happens when somebody else shortens a file that is mapped: a row more in the new file, and not the end of the process.
//!
//! A store into a mapping behind the end of its file raises SIGBUS, which ends a process that does not expect it. Log files
//! are emptied by people and by programs that rotate them, so it is expected here: the page is replaced by one of plain
//! memory, the store goes there, and the window says afterwards that it was [`Guarded::faulted`].
//!
//! # Rules
//! * The handler is put in place once, when the first file is mapped, and takes no fault that is not in one of the windows:
//!   that goes to whoever was there before. A handler that somebody puts in place later comes first, and has to pass on what
//!   it does not know.
//! * In the handler: loads and stores of atomics, and one system call.

use crate::sync::OnceCell;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Windows that are guarded at once; more are not.
const SLOTS: usize = 64;

/// An empty one has no length.
struct Slot {
    taken: AtomicBool,
    start: AtomicUsize,
    len: AtomicUsize,
    faulted: AtomicBool,
}

static WINDOWS: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        faulted: AtomicBool::new(false),
    }
}; SLOTS];

/// Who handled SIGBUS before.
static BEFORE: OnceCell<libc::sigaction> = OnceCell::new();

/// A range of memory in which faults are expected, as long as this lives.
pub(super) struct Guarded(Option<&'static Slot>);

impl Guarded {
    pub(super) fn new(start: usize, len: usize) -> Self {
        install();
        let free = WINDOWS.iter().find(|slot| !slot.taken.swap(true, Ordering::AcqRel));
        if let Some(slot) = free {
            slot.faulted.store(false, Ordering::Relaxed);
            slot.start.store(start, Ordering::Relaxed);
            slot.len.store(len, Ordering::Release);
        }
        Self(free)
    }

    /// No range.
    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// Whether something was stored behind the end of the file.
    #[inline]
    pub(super) fn faulted(&self) -> bool {
        self.0.is_some_and(|slot| slot.faulted.load(Ordering::Relaxed))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.len.store(0, Ordering::Release);
            slot.taken.store(false, Ordering::Release);
        }
    }
}

fn install() {
    BEFORE.get_or_init(|| {
        // SAFETY: a structure of integers and pointers, for which zeros are a value.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
        ours.sa_sigaction = handle as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler keeps to what a handler may do, and the library that holds it is never unloaded.
        unsafe { libc::sigaction(libc::SIGBUS, &ours, &mut before) };
        before
    });
}

unsafe extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes the information on the signal.
    let (code, at) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code == libc::BUS_ADRERR && replace_page(at) {
        return;
    }
    let Some(before) = BEFORE.get() else { return };
    match before.sa_sigaction {
        // The default ends the process: when the instruction is tried again, or when the signal comes again. It is never
        // ignored where it is a fault.
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: puts back what was there.
            unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
            if code <= 0 {
                // Somebody sent it.
                // SAFETY: may be called in a handler.
                unsafe { libc::raise(signal) };
            }
        }
        other if before.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = unsafe extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: whoever installed it said that it has this signature.
            unsafe { std::mem::transmute::<usize, Handler>(other)(signal, info, context) };
        }
        other => {
            type Handler = unsafe extern "C" fn(libc::c_int);
            // SAFETY: as above.
            unsafe { std::mem::transmute::<usize, Handler>(other)(signal) };
        }
    }
}

/// Puts plain memory where a window has lost its file. False where `at` is in no window.
fn replace_page(at: usize) -> bool {
    for slot in &WINDOWS {
        let (len, start) = (slot.len.load(Ordering::Acquire), slot.start.load(Ordering::Relaxed));
        if !(start..start.saturating_add(len)).contains(&at) {
            continue;
        }
        // All of it: what lies before `at` may be lost too, and the row is written again anyway.
        // SAFETY: the range is a mapping of ours that nobody but the thread which faults uses now.
        let page = unsafe {
            libc::mmap(
                start as *mut libc::c_void,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        slot.faulted.store(true, Ordering::Relaxed);
        return page != libc::MAP_FAILED;
    }
    false
}
