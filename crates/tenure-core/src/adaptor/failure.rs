//! Asks somebody before a request fails for want of memory.
//!
//! ```text
//!  allocate   upstream -> memory
//!                      -> out of memory -> callback(bytes) -> "give up": the error
//!                                                          -> "try again": upstream ...   at most MAX_IDLE_TRIES in a row
//!                                                          -> an error of its own: that one
//!                      -> any other error: that one; nobody is asked
//! ```
//!
//! # Rules
//! * Only out of memory, whoever says so, asks the callback. A fault of the device or a wrong argument is no reason to try
//!   again.
//! * The callback belongs to this resource and is called without a lock, on the thread that asks for memory, perhaps on
//!   several at once. It may allocate and free, also through this very resource: a request of its own that fails does not
//!   ask it again, since a callback that needs memory to free some would never end.
//! * What the callback returns as an error reaches whoever asked for memory, as it was made.
//!
//! # "Try again" has an end
//! A try is *idle* when, before it, nothing has become better than at any failure of this request: no fewer bytes are live in
//! the upstream, its largest free block is no larger, and the driver has no more free memory. [`MAX_IDLE_TRIES`] idle tries
//! in a row end the request with the error of the last. A callback that frees something each time goes on as long as it
//! does; one that has to wait until others free waits by itself and then returns.
//!
//! # Cost
//! While nothing fails, one call through: a few nanoseconds.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_void;

use crate::adaptor::limiting::sign;
use crate::adaptor::pass_on;
use crate::device;
use crate::error::{Error, Result, Tried};
use crate::resource::{Info, MemoryResource, Request, Resource};
use crate::stream::StreamRef;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::thread::Local;

/// How many tries in a row may find nothing better before "try again" is not believed any more.
pub const MAX_IDLE_TRIES: u32 = 100;

/// Who is asked. It may be called from any thread, several at a time.
pub trait OnFailure: Send + Sync + 'static {
    /// `bytes` bytes are not to be had: true to try again, false to give up.
    ///
    /// # Errors
    /// Whatever whoever asked for memory shall see.
    fn failed(&self, bytes: usize) -> Result<bool>;

    /// The object that is asked, for the face that made it.
    fn context(&self) -> *mut c_void {
        std::ptr::null_mut()
    }

    /// A number that says which face made [`context`](Self::context).
    fn face(&self) -> u64 {
        0
    }
}

impl<F: Fn(usize) -> Result<bool> + Send + Sync + 'static> OnFailure for F {
    fn failed(&self, bytes: usize) -> Result<bool> {
        self(bytes)
    }
}

/// Asks a callback before a request fails.
pub struct FailureCallback {
    upstream: Resource,
    callback: Box<dyn OnFailure>,
    asked: AtomicU64,
}

impl std::fmt::Debug for FailureCallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FailureCallback(asked {} times)", self.asked())
    }
}

thread_local! {
    /// The resources whose callback this thread is in, by address.
    static ASKING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// This thread is in the callback of a resource; ends when dropped.
struct Asking(usize);

impl Asking {
    /// `None` when it is already, or is ending.
    fn begin(resource: &FailureCallback) -> Option<Self> {
        let at = std::ptr::from_ref(resource) as usize;
        let entered = ASKING.try_with(|asking| {
            let mut asking = asking.borrow_mut();
            let first = !asking.contains(&at);
            if first {
                asking.push(at);
            }
            first
        });
        // Not made where it was not entered: its end takes the address out.
        entered.unwrap_or(false).then(|| Self(at))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let _ = ASKING.try_with(|asking| asking.borrow_mut().retain(|at| *at != self.0));
    }
}

/// The best that was seen at the failures of one request.
#[derive(Default)]
struct Best {
    seen: bool,
    live: u64,
    largest_free: u64,
    driver_free: u64,
    idle: u32,
}

impl Best {
    /// Takes note of the figures at a failure; says whether the try that failed was one too many.
    fn exhausted(&mut self, info: &Info, driver_free: u64) -> bool {
        let better = info.live_bytes < self.live
            || info.largest_free_bytes > self.largest_free
            || driver_free > self.driver_free;
        self.idle = if better || !self.seen { 0 } else { self.idle + 1 };
        self.live = if self.seen { self.live.min(info.live_bytes) } else { info.live_bytes };
        self.largest_free = self.largest_free.max(info.largest_free_bytes);
        self.driver_free = self.driver_free.max(driver_free);
        self.seen = true;
        self.idle >= MAX_IDLE_TRIES
    }
}

impl FailureCallback {
    /// Asks `callback` whenever `upstream` has no memory.
    pub fn new(upstream: Resource, callback: Box<dyn OnFailure>) -> Self {
        Self { upstream, callback, asked: AtomicU64::new(0) }
    }

    /// Who is asked.
    pub fn callback(&self) -> &dyn OnFailure {
        &*self.callback
    }

    /// How often the callback was asked.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Has memory made, and asks while there is none.
    fn persist(
        &self,
        request: &Request,
        stream: Option<StreamRef<'_>>,
        mut make: impl FnMut() -> Result<u64>,
    ) -> Result<u64> {
        let mut best = Best::default();
        loop {
            match make() {
                Ok(ptr) => return Ok(ptr),
                Err(e) if !e.is_out_of_memory() => return Err(e),
                Err(e) => self.ask(request, stream, e, &mut best)?,
            }
        }
    }

    /// Returns for another try, or with the error that ends the request.
    #[cold]
    fn ask(&self, request: &Request, stream: Option<StreamRef<'_>>, error: Error, best: &mut Best) -> Result<()> {
        let Some(asking) = Asking::begin(self) else {
            return Err(self.give_up(error, "not asked: this request is the callback's own"));
        };
        if best.exhausted(&self.upstream.body().info(), self.driver_free(stream)) {
            return Err(self.give_up(error, "asked for another try again and again, and nothing had been freed"));
        }
        self.asked.fetch_add(1, Ordering::Relaxed);
        let again = self.callback.failed(request.bytes)?;
        drop(asking);
        if again { Ok(()) } else { Err(self.give_up(error, "gave up")) }
    }

    fn give_up(&self, error: Error, outcome: &'static str) -> Error {
        match sign(error, self.kind()) {
            Error::OutOfMemory(mut e) => {
                e.tried.push(Tried { step: "the failure callback", outcome });
                Error::OutOfMemory(e)
            }
            other => other,
        }
    }

    /// Free bytes of the device that the request is for, as the driver says; 0 where nobody can tell.
    fn driver_free(&self, stream: Option<StreamRef<'_>>) -> u64 {
        let device = match (self.upstream.body().device(), stream) {
            (Some(device), _) => Ok(device),
            (None, Some(stream)) => device::home_or_current(stream),
            (None, None) => device::current(),
        };
        device
            .ok()
            .filter(|device| *device >= 0)
            .and_then(|device| device::memory_info(device).ok())
            .map_or(0, |(free, _)| free)
    }
}

impl MemoryResource for FailureCallback {
    fn kind(&self) -> &'static str {
        "failure_callback"
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.persist(request, Some(stream), || self.upstream.body().allocate(request, stream))
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.upstream.body().deallocate(ptr, request, stream)
    }

    fn allocate_at_hand(
        &self,
        request: &Request,
        stream: StreamRef<'_>,
        here: &Local,
    ) -> Option<Result<u64, Box<Error>>> {
        self.upstream
            .body()
            .allocate_at_hand(request, stream, here)
            .filter(|made| !matches!(made, Err(e) if e.is_out_of_memory()))
    }

    fn deallocate_at_hand(&self, ptr: u64, request: &Request, stream: StreamRef<'_>, here: &Local) -> bool {
        self.upstream.body().deallocate_at_hand(ptr, request, stream, here)
    }

    fn try_allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        match self.upstream.body().try_allocate(request, stream) {
            // To be asked about in a call that may.
            Err(e) if e.is_out_of_memory() => Err(Error::WouldBlock),
            made => made,
        }
    }

    fn try_deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.upstream.body().try_deallocate(ptr, request, stream)
    }

    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        self.persist(request, None, || self.upstream.body().allocate_sync(request))
    }

    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        self.upstream.body().deallocate_sync(ptr, request)
    }

    /// The upstream's: this layer changes none of the figures.
    fn info(&self) -> Info {
        self.upstream.body().info()
    }

    fn property(&self, name: &str) -> Option<u64> {
        match name {
            "asked" => Some(self.asked()),
            "context" => Some(self.callback.context() as u64),
            _ => None,
        }
    }

    pass_on! {}
}
