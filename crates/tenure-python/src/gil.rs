//! Letting go of the interpreter lock, and taking it.
//!
//! ```text
//!  a call from Python          _try_ with the lock held --WOULD_BLOCK--> detach { plain call } --> checked return
//!  a free from anywhere        _try_ --WOULD_BLOCK--> the lock is let go if this thread has it --> plain call
//!  a callback of the engine's  enter { Python }   or, once the interpreter is going, nothing
//! ```
//!
//! # Why not PyO3's own `attach` and `detach` alone
//! * `Python::attach` believes its own count of attachments. Where Python calls a foreign library that let go of the
//!   lock and comes back through the engine, that count says "attached" and is wrong; [`enter`] asks the interpreter.
//! * Up to Python 3.13 a thread that wants the lock back while the interpreter ends is ended with `pthread_exit`, and
//!   that unwinding aborts the process in a Rust frame. So a thread announces itself before it asks for the lock, the
//!   exit hook waits for those that did, and whoever comes later sleeps for ever, which is what Python 3.14 does.
//!
//! # Cost
//! Two atomic additions for each return from [`detach`] and each [`enter`].

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::{PyErr, ffi};
use tenure_abi::*;

use crate::errors;
use crate::table::api;

/// The package's exit hook has run: no Python callable is entered from now on, and no Python reference dropped.
static GOING: AtomicBool = AtomicBool::new(false);
/// The thread that runs the exit hook, and later the rest of the interpreter's end: it may always come back.
static LAST_THREAD: AtomicUsize = AtomicUsize::new(0);
/// Threads between "wants the lock" and "has it".
static COMING: AtomicUsize = AtomicUsize::new(0);
/// Threads that run Python code for the engine.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// How often this process came out of a fork as the child.
static FORKS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// How many of `INSIDE` are this thread's.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// How long the exit hook waits for threads that are about to get the lock. They need no more than their turn.
const WAIT_FOR_COMING: Duration = Duration::from_secs(2);
/// How long the exit hook waits for callbacks that run Python code.
const WAIT_FOR_INSIDE: Duration = Duration::from_millis(200);

/// A number that no other running thread has; never 0.
pub(crate) fn this_thread() -> usize {
    // SAFETY: takes no argument and cannot fail.
    unsafe { libc::pthread_self() as usize }
}

/// In the child of a fork only the thread that forked is left: nobody else is coming, and what others held stays held.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    COMING.store(0, Ordering::SeqCst);
    INSIDE.store(DEPTH.try_with(Cell::get).unwrap_or(0), Ordering::SeqCst);
}

/// Has [`in_child`] called from now on. Once, at import.
pub(crate) fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only stores to statics. A failure (no memory) costs a child a short wait at its exit.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// A number that is another one in a forked child.
pub(crate) fn forks() -> usize {
    FORKS.load(Ordering::SeqCst)
}

/// Whether Python may still be entered.
pub(crate) fn going() -> bool {
    GOING.load(Ordering::SeqCst)
}

/// One announced wish for the lock.
struct Coming;

impl Coming {
    /// `None` when the interpreter is going.
    fn try_announce() -> Option<Self> {
        COMING.fetch_add(1, Ordering::SeqCst);
        if GOING.load(Ordering::SeqCst) {
            COMING.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        Some(Self)
    }

    /// Announces, or never returns: a thread that had the lock and comes too late cannot go anywhere.
    fn announce() -> Option<Self> {
        let announced = Self::try_announce();
        if announced.is_none() && LAST_THREAD.load(Ordering::SeqCst) != this_thread() {
            loop {
                std::thread::park();
            }
        }
        announced
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        COMING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A closure that may cross `Python::detach` although it carries raw pointers.
struct Carried<F>(F);

// SAFETY: `Python::detach` runs the closure on the same thread; `Send` only stands for "touches no Python object", and
// the callers of `detach` below pass closures that call the table and nothing else.
unsafe impl<F> Send for Carried<F> {}

impl<T, F: FnOnce() -> T> Carried<F> {
    fn call(self) -> Carried<(T, Option<Coming>)> {
        let value = (self.0)();
        Carried((value, Coming::announce()))
    }
}

/// Runs `f` without the interpreter lock. `f` must not touch Python objects.
pub(crate) fn detach<T>(py: Python<'_>, f: impl FnOnce() -> T) -> T {
    let carried = Carried(f);
    let Carried((value, _coming)) = py.detach(move || carried.call());
    value
}

/// Runs `f` with the interpreter lock, for the engine. `None` when the interpreter is going or gone: nothing ran.
///
/// An exception that is set on this thread is put aside meanwhile: a free may happen while one is on its way.
pub(crate) fn enter<T>(f: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    // SAFETY: may be called at any time.
    if unsafe { ffi::Py_IsInitialized() } == 0 {
        return None;
    }
    let coming = Coming::try_announce()?;
    let _inside = Inside::begin();
    // SAFETY: the interpreter is there, and its exit hook waits for announced threads. Asked of the interpreter and not
    // of PyO3 (see the head of this file); PyO3's attachment below then finds the lock held.
    let state = unsafe { ffi::PyGILState_Ensure() };
    drop(coming);
    let value = Python::attach(|py| {
        let pending = PyErr::take(py);
        let value = f(py);
        if let Some(pending) = pending {
            pending.restore(py);
        }
        value
    });
    // SAFETY: the pair of the call above, on the same thread.
    unsafe { ffi::PyGILState_Release(state) };
    Some(value)
}

struct Inside;

impl Inside {
    fn begin() -> Self {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        // A thread that is ending has no locals any more, and forks no more.
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether this thread has the interpreter lock. Says yes when in doubt.
fn holds_lock() -> bool {
    type Check = unsafe extern "C" fn() -> libc::c_int;
    static CHECK: OnceLock<Option<Check>> = OnceLock::new();
    // Not in the limited API, but exported by every CPython.
    let check = CHECK.get_or_init(|| {
        // SAFETY: a string, and a symbol that has this signature wherever it exists.
        unsafe {
            let address = libc::dlsym(libc::RTLD_DEFAULT, c"PyGILState_Check".as_ptr());
            (!address.is_null()).then(|| std::mem::transmute::<*mut libc::c_void, Check>(address))
        }
    });
    // SAFETY: may be called on any thread while the interpreter is there, which the caller has checked.
    check.is_none_or(|check| unsafe { check() } != 0)
}

/// Makes a call that may wait, from a place that does not know whether its thread has the interpreter lock: a
/// destructor, or a deleter of a foreign library's.
pub(crate) fn without_lock<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: may be called at any time.
    if unsafe { ffi::Py_IsInitialized() } == 0 || !holds_lock() {
        return f();
    }
    if going() && LAST_THREAD.load(Ordering::SeqCst) != this_thread() {
        return f();
    }
    // SAFETY: this thread has the lock, so this only counts; Python::attach then finds the lock held.
    let state = unsafe { ffi::PyGILState_Ensure() };
    let value = Python::attach(|py| {
        let pending = PyErr::take(py);
        let value = detach(py, f);
        if let Some(pending) = pending {
            pending.restore(py);
        }
        value
    });
    // SAFETY: the pair of the call above.
    unsafe { ffi::PyGILState_Release(state) };
    value
}

/// Runs `f` where this thread has the interpreter lock already, and the interpreter is not going.
pub(crate) fn if_held(f: impl FnOnce(Python<'_>)) {
    // SAFETY: may be called at any time.
    if unsafe { ffi::Py_IsInitialized() } == 0 || going() || !holds_lock() {
        return;
    }
    // SAFETY: this thread has the lock, so this only counts; Python::attach then finds the lock held.
    let state = unsafe { ffi::PyGILState_Ensure() };
    Python::attach(f);
    // SAFETY: the pair of the call above.
    unsafe { ffi::PyGILState_Release(state) };
}

/// A free in a destructor: `try_it`, and where that would wait, `plain`. A wrong free goes to the misuse handler, a fault of
/// the driver (the block stays with its resource then) to `sys.unraisablehook`. Nothing is said once the process is ending.
pub(crate) fn give_back(try_it: impl FnOnce() -> tenure_status, plain: impl FnOnce() -> tenure_status) {
    let status = match try_it() {
        TENURE_OK => return,
        TENURE_OK_COLLECT => without_lock(collect),
        TENURE_ERROR_WOULD_BLOCK => without_lock(plain),
        other => other,
    };
    match status {
        TENURE_OK | TENURE_ERROR_FORKED | TENURE_ERROR_EXITING | TENURE_ERROR_NO_DEVICE => {}
        TENURE_ERROR_OWNERSHIP => {
            // SAFETY: takes no argument; the error of this thread is the one that was just made.
            without_lock(|| unsafe { (api().misuse_report)() });
        }
        failed => {
            // The detail is this thread's, so it is still there.
            enter(|py| errors::error(py, failed).write_unraisable(py, None));
        }
    }
}

/// Closes what a `_try_` function left to close. Without the lock.
pub(crate) fn collect() -> tenure_status {
    // SAFETY: takes no argument.
    unsafe { (api().collect)() }
}

/// The package's exit hook. Runs once, on the thread that ends the interpreter.
#[pyfunction]
pub(crate) fn _interpreter_exit(py: Python<'_>) {
    LAST_THREAD.store(this_thread(), Ordering::SeqCst);
    GOING.store(true, Ordering::SeqCst);
    py.detach(|| {
        // SAFETY: takes no argument.
        unsafe { (api().interpreter_exit)() };
        let start = Instant::now();
        let late = |count: &AtomicUsize, limit| count.load(Ordering::SeqCst) > 0 && start.elapsed() < limit;
        while late(&COMING, WAIT_FOR_COMING) || late(&INSIDE, WAIT_FOR_INSIDE) {
            std::thread::sleep(Duration::from_micros(50));
        }
    });
}

/// Runs something that may ask for the interpreter lock by itself, such as a foreign deleter. Nothing runs once the
/// interpreter is going.
pub(crate) fn announced(f: impl FnOnce()) {
    if let Some(_coming) = Coming::try_announce() {
        f();
    }
}
