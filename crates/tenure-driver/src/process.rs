//! Whether this process may still call the driver.
//!
//! Two things end that, once and for good, and after either one every call answers with an error instead of being made:
//!
//! * **a fork**: the child has the parent's memory and none of its threads; the driver does not work there, and locks
//!   may be held by threads that do not exist any more. So the check comes *before any lock*;
//! * **the exit of the process**: the driver takes itself apart in an `atexit` handler, and calls after it crash.
//!
//! ```text
//!   WORD ----> ALIVE (a plain static)            until something is worth protecting
//!        arm() ---> a page of its own, MADV_WIPEONFORK:   ALIVE --begin_exit()--> EXITING
//!                                                           \--fork, in the child--> 0 (the kernel wipes the page)
//! ```
//!
//! The check is two loads and a comparison, about a nanosecond. A child forked *before* [`arm`] is a fresh process like any
//! other and may use the driver; [`crate::Driver::get`] arms right before the driver is first called. Where the kernel
//! lacks MADV_WIPEONFORK (before Linux 4.14), a `pthread_atfork` handler clears the word in the child; that misses a bare
//! `clone` system call.

// Process-wide flags in statics, which loom's atomics cannot be; no model covers them.
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

const WIPED: u32 = 0;
const ALIVE: u32 = 1;
const EXITING: u32 = 2;

static UNARMED: AtomicU32 = AtomicU32::new(ALIVE);
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const UNARMED).cast_mut());

/// Why the driver may not be called any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    /// The process was forked from one that had used the driver.
    Forked,
    /// The process is ending.
    Exiting,
}

#[inline]
fn word() -> &'static AtomicU32 {
    // SAFETY: WORD holds the address of a static or of a mapping that is never unmapped, both valid for an AtomicU32.
    unsafe { &*WORD.load(Ordering::Acquire) }
}

/// Fails when the driver may not be called in this process any more. Costs about a nanosecond and takes no lock.
///
/// # Errors
///
/// The reason, see [`Unusable`].
#[inline]
pub fn check() -> Result<(), Unusable> {
    match word().load(Ordering::Relaxed) {
        ALIVE => Ok(()),
        EXITING => Err(Unusable::Exiting),
        _ => Err(Unusable::Forked),
    }
}

/// Whether the driver may not be called in this process any more, for either reason.
#[inline]
#[must_use]
pub fn unusable() -> bool {
    word().load(Ordering::Relaxed) != ALIVE
}

/// Whether this process was forked from one that had [armed](arm) the check.
#[inline]
#[must_use]
pub fn forked() -> bool {
    word().load(Ordering::Relaxed) == WIPED
}

/// Whether [`begin_exit`] was called (in this process: a forked child of an ending process is `forked`).
#[inline]
#[must_use]
pub fn exiting() -> bool {
    word().load(Ordering::Relaxed) == EXITING
}

/// Declares the end of the process: from now on no call reaches the driver. Cannot be undone. May be called more than
/// once, from an `atexit` handler too.
pub fn begin_exit() {
    // A forked child stays forked.
    let _ = word().compare_exchange(ALIVE, EXITING, Ordering::AcqRel, Ordering::Relaxed);
}

/// Makes later forks visible to [`check`]. Called before the driver is first used; harmless to call again.
pub fn arm() {
    let unarmed = (&raw const UNARMED).cast_mut();
    if WORD.load(Ordering::Acquire) != unarmed {
        return;
    }
    let Some(page) = new_word() else {
        // No memory for one page: the static serves, cleared by the handler.
        clear_after_fork();
        return;
    };
    // `begin_exit` may run meanwhile: it changes the word it sees, so that state is carried over after the exchange.
    if WORD.compare_exchange(unarmed, page, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        if UNARMED.load(Ordering::Acquire) == EXITING {
            begin_exit();
        }
    } else {
        // SAFETY: another thread was first; this mapping was made above and nobody else has seen it.
        unsafe { libc::munmap(page.cast(), PAGE) };
    }
}

/// Bytes of the mapping; the kernel rounds up to its page size.
const PAGE: usize = 4096;

/// A word, ALIVE, in a page of its own that a fork wipes.
fn new_word() -> Option<*mut AtomicU32> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice affects nothing that exists.
    let page = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return None;
    }
    let word = page.cast::<AtomicU32>();
    // SAFETY: the mapping is writable, larger than the word and aligned to a page.
    unsafe { (*word).store(ALIVE, Ordering::Relaxed) };
    // SAFETY: the range is exactly the mapping made above.
    if unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) } != 0 {
        clear_after_fork();
    }
    Some(word)
}

/// The fallback: a handler that clears the word in a forked child.
fn clear_after_fork() {
    unsafe extern "C" fn in_child() {
        word().store(WIPED, Ordering::Relaxed);
    }
    // SAFETY: the handler touches an atomic only, and the library that holds it is never unloaded (`-z nodelete`). A
    // failure (no memory) leaves forks unseen, which is all that can be done here.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}
