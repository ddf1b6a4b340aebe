//! A fence that one side pays for all.
//!
//! Two threads that each store a flag and then look at the other's must each have a fence between the two, or both may
//! see nothing. Where one of them does this all the time and the other hardly ever, the rare one can pay for both: `membarrier`
//! makes every thread of the process that is running pass a fence (one that is not has passed one when it was put aside).
//!
//! **Cost**: [`light`] nothing but a word to the compiler, where the kernel has `membarrier` for the process (Linux 4.14, and no
//! sandbox that forbids it), else a fence of about 8 ns; [`heavy`] a system call, some microseconds where other threads run.
//!
//! Unsafe in this file: the system call, which takes no memory.

use crate::sync::OnceCell;
use crate::sync::atomic::Ordering::SeqCst;
use crate::sync::atomic::{compiler_fence, fence};

const REGISTER_PRIVATE_EXPEDITED: libc::c_long = 1 << 4;
const PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
/// Microseconds after which a store has been seen by everybody on any machine, for want of something better.
const LONG: libc::useconds_t = 20_000;

fn membarrier(command: libc::c_long) -> bool {
    // SAFETY: the call takes numbers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0 as libc::c_long, 0 as libc::c_long) == 0 }
}

/// Whether this process has the one-sided fence. Asked of the kernel once.
pub(crate) fn one_sided() -> bool {
    static REGISTERED: OnceCell<bool> = OnceCell::new();
    *REGISTERED.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED))
}

/// The side that comes all the time. `one_sided` is what [`one_sided`] says.
#[inline(always)]
pub(crate) fn light(one_sided: bool) {
    if one_sided {
        compiler_fence(SeqCst);
    } else {
        fence(SeqCst);
    }
}

/// The side that hardly ever comes.
#[cold]
pub(crate) fn heavy(one_sided: bool) {
    fence(SeqCst);
    // A process that was brought back from an image of it may have lost the registration.
    let again = || membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED);
    if one_sided && !membarrier(PRIVATE_EXPEDITED) && !again() {
        // Somebody has forbidden the call since the process was registered for it. What the others have stored leaves their
        // processors in less than a microsecond, and whoever is not running has passed a fence. (Nothing is logged here: locks
        // are held.)
        // SAFETY: takes a number.
        unsafe { libc::usleep(LONG) };
    }
    fence(SeqCst);
}
