//! One call at a time for an upstream that cannot take more.
//!
//! ```text
//!  call   whose turn is it? nobody's, or this thread's already -> upstream -> the turn ends
//!                           another thread's                   -> wait (a call that must not wait: WouldBlock)
//! ```
//!
//! Every resource of tenure's may be called from many threads as it is. This is for a resource of user functions that may not,
//! and the one adaptor whose purpose it is that others wait while the upstream is called. So it is a *turn* that the
//! upstream's own calls may take again on the same thread (a callback that allocates through this very resource does not
//! wait for itself), and not a lock that the rest of the library knows of.
//!
//! # Rules
//! * Questions (`info`, `find`, `trim` and properties) take a turn as well where they reach the upstream's own code.
//! * At the end of an interpreter a thread may be stopped for good inside a callback. A free then waits for a moment only, and
//!   goes on: nothing is called in that interpreter any more.
//!
//! # Cost
//! Two locks for each call that reaches the upstream's own code, some 50 ns while threads do not meet; those that meet wait for
//! each other, which is what it is for. What a pool's thread has at hand passes through.

use std::any::Any;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::adaptor::limiting::sign;
use crate::error::{Error, Result};
use crate::resource::{Block, Info, MemoryResource, Properties, Request, Resource};
use crate::stream::StreamRef;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::thread::Local;

/// How long a free waits for its turn once an interpreter is going.
const LAST_WAIT: Duration = Duration::from_millis(200);

static INTERPRETER_GOING: AtomicBool = AtomicBool::new(false);

/// From now on a thread that has the turn may be stopped for good.
pub fn interpreter_exit() {
    INTERPRETER_GOING.store(true, Ordering::Release);
}

#[derive(Default)]
struct Seat {
    holder: Option<ThreadId>,
    depth: u32,
    waiting: u32,
}

/// Lets one call at a time through.
pub struct ThreadSafe {
    upstream: Resource,
    seat: Mutex<Seat>,
    free: Condvar,
}

impl std::fmt::Debug for ThreadSafe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ThreadSafe({:?})", self.upstream)
    }
}

/// The turn of this thread; ends when dropped.
struct Turn<'a>(&'a ThreadSafe);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut seat = self.0.seat.lock();
        seat.depth -= 1;
        if seat.depth == 0 {
            seat.holder = None;
            if seat.waiting > 0 {
                self.0.free.notify_one();
            }
        }
    }
}

impl ThreadSafe {
    /// Lets one call at a time through to `upstream`.
    pub fn new(upstream: Resource) -> Self {
        Self { upstream, seat: Mutex::new(Seat::default()), free: Condvar::new() }
    }

    /// The turn, if nobody else has it.
    fn try_turn(&self) -> Option<Turn<'_>> {
        let mine = take(&mut self.seat.lock());
        // Not made where it is not had: its end gives the seat back.
        mine.then(|| Turn(self))
    }

    /// Waits for the turn. `None` only where whoever has it may never give it back.
    fn turn(&self) -> Option<Turn<'_>> {
        let mut seat = self.seat.lock();
        if !take(&mut seat) {
            seat.waiting += 1;
            let mut last = None;
            while !take(&mut seat) {
                if !INTERPRETER_GOING.load(Ordering::Acquire) {
                    // Not for ever: the interpreter may be going meanwhile.
                    self.free.wait_for(&mut seat, LAST_WAIT);
                    continue;
                }
                let end = *last.get_or_insert_with(|| Instant::now() + LAST_WAIT);
                if self.free.wait_until(&mut seat, end).timed_out() && seat.holder.is_some() {
                    seat.waiting -= 1;
                    return None;
                }
            }
            seat.waiting -= 1;
        }
        Some(Turn(self))
    }

    fn allocated(&self, make: impl FnOnce(&dyn MemoryResource) -> Result<u64>) -> Result<u64> {
        let Some(_turn) = self.turn() else { return Err(Error::Exiting) };
        make(self.upstream.body()).map_err(|e| sign(e, self.kind()))
    }

    fn freed(&self, free: impl FnOnce(&dyn MemoryResource) -> Result<()>) -> Result<()> {
        let _turn = self.turn();
        free(self.upstream.body())
    }
}

/// Takes a seat that is free, or this thread's own.
fn take(seat: &mut Seat) -> bool {
    let me = thread::current().id();
    if seat.holder.is_some_and(|holder| holder != me) {
        return false;
    }
    seat.holder = Some(me);
    seat.depth += 1;
    true
}

impl MemoryResource for ThreadSafe {
    fn kind(&self) -> &'static str {
        "thread_safe"
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.allocated(|upstream| upstream.allocate(request, stream))
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.freed(|upstream| upstream.deallocate(ptr, request, stream))
    }

    // What a thread has at hand calls nobody's code: there is no turn to wait for.
    fn allocate_at_hand(
        &self,
        request: &Request,
        stream: StreamRef<'_>,
        here: &Local,
    ) -> Option<Result<u64, Box<Error>>> {
        self.upstream.body().allocate_at_hand(request, stream, here)
    }

    fn deallocate_at_hand(&self, ptr: u64, request: &Request, stream: StreamRef<'_>, here: &Local) -> bool {
        self.upstream.body().deallocate_at_hand(ptr, request, stream, here)
    }

    fn try_allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        let Some(_turn) = self.try_turn() else { return Err(Error::WouldBlock) };
        self.upstream.body().try_allocate(request, stream).map_err(|e| sign(e, self.kind()))
    }

    fn try_deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        let Some(_turn) = self.try_turn() else { return Err(Error::WouldBlock) };
        self.upstream.body().try_deallocate(ptr, request, stream)
    }

    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        self.allocated(|upstream| upstream.allocate_sync(request))
    }

    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        self.freed(|upstream| upstream.deallocate_sync(ptr, request))
    }

    fn device(&self) -> Option<i32> {
        self.upstream.body().device()
    }

    fn properties(&self) -> Properties {
        self.upstream.body().properties()
    }

    fn find(&self, ptr: u64) -> Option<Block> {
        // From the book of whoever made the block: no user function is asked.
        self.upstream.body().find(ptr)
    }

    /// The upstream's: this layer changes none of the figures.
    fn info(&self) -> Info {
        let _turn = self.turn();
        self.upstream.body().info()
    }

    fn trim(&self, keep_bytes: usize) -> Result<usize> {
        let Some(_turn) = self.turn() else { return Err(Error::Exiting) };
        self.upstream.body().trim(keep_bytes)
    }

    fn upstream(&self) -> Option<&Resource> {
        Some(&self.upstream)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
