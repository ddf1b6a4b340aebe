//! Asking the rest of the process for memory, and being asked.
//!
//! ```text
//!   a pool is about to fail      -> siblings give back -> ask: each registered callback, newest first, until enough
//!   a device resource is         -> the same: `Room`
//!   another library is about to  -> give_back(device, bytes): tenure's pools give back what is idle
//! ```
//!
//! Callbacks are called without a lock and may do anything: free, allocate, register, end themselves. A thread that is in
//! one already asks none again, so that two libraries that ask each other come to an end. What a callback says it freed is
//! a hint: the pool tries again, a bounded number of times, and fails when it is still not enough.

use std::cell::Cell;

use crate::error::{Error, Result, Tried};
use crate::resource::{MemoryResource, Request};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex};

/// Called with a device and the bytes that are wanted there; says how many it freed.
pub type Callback = dyn Fn(i32, u64) -> Result<u64> + Send + Sync;

static CALLBACKS: Mutex<Vec<(u64, Arc<Callback>)>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Calls `callback` whenever a pool is about to fail, until [`unregister`].
pub fn register(callback: Arc<Callback>) -> u64 {
    let token = NEXT.fetch_add(1, Ordering::Relaxed);
    CALLBACKS.lock().push((token, callback));
    token
}

/// Ends a registration. A call that is under way on another thread may still end after this.
///
/// # Errors
/// [`Error::BadHandle`] for an unknown or ended one.
pub fn unregister(token: u64) -> Result<()> {
    let removed = {
        let mut callbacks = CALLBACKS.lock();
        let position = callbacks.iter().position(|(t, _)| *t == token);
        position.map(|i| callbacks.remove(i))
    };
    // What the callback holds may go with it, which needs that no lock is held.
    removed.map(drop).ok_or_else(|| Error::BadHandle("this low-memory callback is null or was removed already".into()))
}

/// Makes tenure's pools on `device` (-1: the current one) give back idle memory until `bytes` bytes went, or all that is
/// idle with 0; says how many did. For other libraries that need memory. Waits for the device where memory is not proven
/// idle yet; release thresholds do not count, and pools that grow at this moment are left alone.
///
/// # Errors
/// An unknown device; no device layer.
pub fn give_back(device: i32, bytes: u64) -> Result<u64> {
    crate::device::alive()?;
    let device = if device == -1 { crate::device::current()? } else { crate::device::check(device)? };
    Ok(crate::pool::trim_pools(device, if bytes == 0 { u64::MAX } else { bytes }, None))
}

/// Asks the callbacks for `bytes` bytes on `device`; says what they say they freed. 0 inside a callback.
pub(crate) fn ask(device: i32, bytes: u64) -> u64 {
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = ASKING.try_with(|asking| asking.set(false));
        }
    }
    if ASKING.try_with(|asking| asking.replace(true)).unwrap_or(true) {
        return 0;
    }
    let _restore = Restore;
    let callbacks: Vec<_> = CALLBACKS.lock().iter().rev().map(|(_, f)| f.clone()).collect();
    let mut freed = 0u64;
    for callback in callbacks {
        if freed >= bytes {
            break;
        }
        match callback(device, bytes - freed) {
            Ok(bytes) => freed = freed.saturating_add(bytes),
            // The others may still help; the request that fails has an error of its own.
            Err(e) => log::error!("tenure: a low-memory callback failed: {e}"),
        }
    }
    freed
}

/// How often one request asks others for memory: what they say they gave may not be what it needs.
const ASKS: usize = 8;

/// Makes room on a device for a request that a resource without memory of its own cannot serve.
pub(crate) struct Room<'a> {
    asker: &'a dyn MemoryResource,
    device: i32,
    bytes: u64,
    asks: usize,
    tried: Vec<Tried>,
}

impl<'a> Room<'a> {
    /// Room for `request` on `device`; none is made for one that wants to be [alone](Request::ALONE).
    pub(crate) fn new(asker: &'a dyn MemoryResource, request: &Request, device: i32) -> Self {
        let asks = if request.flags & Request::ALONE == 0 && device >= 0 { ASKS } else { 0 };
        Self { asker, device, bytes: request.bytes as u64, asks, tried: Vec::new() }
    }

    /// Asks other pools, then other libraries. True when somebody gave something: the request may be tried again.
    pub(crate) fn make(&mut self) -> bool {
        if self.asks == 0 {
            return false;
        }
        self.asks -= 1;
        self.tried.clear();
        if crate::device::memory_info(self.device).is_ok_and(|(_, total)| self.bytes > total) {
            // Nobody can help, and nobody shall lose what is cached for it.
            return false;
        }
        if crate::pool::trim_pools(self.device, self.bytes, Some(self.asker)) > 0 {
            self.tried.push(Tried { step: "other pools", outcome: "done, and not enough" });
            return true;
        }
        self.tried.push(Tried { step: "other pools", outcome: "nothing was idle there" });
        let given = ask(self.device, self.bytes) > 0;
        let outcome = if given { "done, and not enough" } else { "nothing came of it" };
        self.tried.push(Tried { step: "other libraries", outcome });
        given
    }

    /// Adds what was tried to the error of a request for which there was no room.
    pub(crate) fn explain(self, mut error: Error) -> Error {
        if let Error::OutOfMemory(detail) = &mut error {
            detail.tried = self.tried;
        }
        error
    }
}
