//! Knows every block that is out, and where it came from.
//!
//! ```text
//!  allocate   upstream -> stack, if stacks are kept -> into the list
//!  free       out of the list -> upstream -> refused? back into the list
//! ```
//!
//! The list is for people and for tests that look for what was not given back; whether a free is right is the business of
//! whoever made the block, and a wrong one comes back from there with the list as it was.
//!
//! # Stacks
//! With [`Tracking::new`]`(.., true)` each block keeps the [`Stack`] of its allocation. Names are looked up when the list is
//! asked for. An interpreter is entered for its frames, so that a call which must not wait answers
//! [`Error::WouldBlock`] and comes again as one that may.
//!
//! # Cost
//! Without stacks about 10 ns for an allocation and its free, on any number of threads (see `outstanding`). With stacks some
//! microseconds and about 500 bytes of host memory for each block.
//!
//! # Limitation
//! There is no peak of its own, which would need a word that all threads share: [`info`](MemoryResource::info) shows the
//! upstream's. A statistics adaptor has one.

use std::any::Any;
use std::fmt::Write as _;

use crate::adaptor::limiting::sign;
use crate::adaptor::outstanding::{Live, Outstanding};
use crate::adaptor::pass_on;
use crate::error::{Error, Result};
use crate::resource::{Info, MemoryResource, Request, Resource};
use crate::stack::Stack;
use crate::stream::StreamRef;
use crate::thread::Local;

/// One block that is out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracked {
    /// Where it starts.
    pub ptr: u64,
    /// Its size in bytes, as it was asked for.
    pub bytes: usize,
    /// Where it came from, if stacks are kept.
    pub stack: Option<Stack>,
}

/// Keeps a list of what is out.
pub struct Tracking {
    upstream: Resource,
    outstanding: Outstanding,
    capture_stacks: bool,
}

impl std::fmt::Debug for Tracking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bytes, count) = self.outstanding.figures();
        write!(f, "Tracking({count} blocks, {bytes} bytes)")
    }
}

impl Tracking {
    /// Keeps a list of what passes to `upstream`, with the stack of each allocation where that is wanted.
    pub fn new(upstream: Resource, capture_stacks: bool) -> Self {
        Self { upstream, outstanding: Outstanding::default(), capture_stacks }
    }

    /// Whether each block keeps the stack of its allocation.
    pub fn captures_stacks(&self) -> bool {
        self.capture_stacks
    }

    /// Bytes that are out.
    pub fn allocated_bytes(&self) -> u64 {
        self.outstanding.figures().0
    }

    /// The blocks that are out, by address.
    pub fn outstanding(&self) -> Vec<Tracked> {
        let as_tracked = |(ptr, live): (u64, Live)| Tracked { ptr, bytes: live.bytes, stack: live.stack.map(|s| *s) };
        self.outstanding.list().into_iter().map(as_tracked).collect()
    }

    /// The blocks that are out, for people: a line for each, followed by its stack where there is one; empty when there is
    /// none.
    pub fn outstanding_text(&self) -> String {
        let mut text = String::new();
        for block in self.outstanding() {
            // Writing into a string does not fail.
            let _ = write!(text, "{:#x}: {} B", block.ptr, block.bytes);
            if let Some(stack) = &block.stack {
                text.push_str(" : callstack:");
                for line in stack.lines() {
                    text.push('\n');
                    text.push_str(&line);
                }
            }
            text.push('\n');
        }
        text
    }

    /// Hands [`outstanding_text`](Self::outstanding_text) to the log of the process (the crate `log`, level debug).
    pub fn log_outstanding(&self) {
        if log::log_enabled!(log::Level::Debug) {
            let text = self.outstanding_text();
            let text = if text.is_empty() { "none" } else { text.trim_end() };
            log::debug!("tenure: outstanding allocations: {text}");
        }
    }

    /// Notes what was made.
    #[inline]
    fn note(&self, request: &Request, ptr: u64) {
        let stack = if self.capture_stacks { Some(Box::new(Stack::capture())) } else { None };
        self.outstanding.enter(ptr, Live { bytes: request.bytes, stack });
    }

    fn allocated(&self, request: &Request, made: Result<u64>) -> Result<u64> {
        let ptr = made.map_err(|e| sign(e, self.kind()))?;
        self.note(request, ptr);
        Ok(ptr)
    }

    /// Takes the block out, has it freed, and puts it back where that did not happen.
    #[inline]
    fn free<E>(&self, ptr: u64, free: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let live = self.outstanding.leave(ptr);
        let freed = free();
        if freed.is_err()
            && let Some(live) = live
        {
            self.outstanding.put_back(ptr, live, || self.upstream.body().find(ptr).is_some_and(|b| b.ptr == ptr));
        }
        freed
    }
}

impl MemoryResource for Tracking {
    fn kind(&self) -> &'static str {
        "tracking"
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.allocated(request, self.upstream.body().allocate(request, stream))
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.free(ptr, || self.upstream.body().deallocate(ptr, request, stream))
    }

    fn allocate_at_hand(
        &self,
        request: &Request,
        stream: StreamRef<'_>,
        here: &Local,
    ) -> Option<Result<u64, Box<Error>>> {
        if self.capture_stacks {
            return None;
        }
        let made = self.upstream.body().allocate_at_hand(request, stream, here)?;
        if let Ok(ptr) = made {
            self.note(request, ptr);
        }
        Some(made)
    }

    fn deallocate_at_hand(&self, ptr: u64, request: &Request, stream: StreamRef<'_>, here: &Local) -> bool {
        self.free(ptr, || {
            if self.upstream.body().deallocate_at_hand(ptr, request, stream, here) { Ok(()) } else { Err(()) }
        })
        .is_ok()
    }

    fn try_allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        if self.capture_stacks {
            // The interpreter is entered for its frames.
            return Err(Error::WouldBlock);
        }
        self.allocated(request, self.upstream.body().try_allocate(request, stream))
    }

    fn try_deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.free(ptr, || self.upstream.body().try_deallocate(ptr, request, stream))
    }

    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        self.allocated(request, self.upstream.body().allocate_sync(request))
    }

    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        self.free(ptr, || self.upstream.body().deallocate_sync(ptr, request))
    }

    /// What is live is this layer's; everything else is the upstream's, which others may use too.
    fn info(&self) -> Info {
        let (live_bytes, live_count) = self.outstanding.figures();
        let below = self.upstream.body().info();
        Info { live_bytes, live_count, peak_live_bytes: below.peak_live_bytes.max(live_bytes), ..below }
    }

    fn property(&self, name: &str) -> Option<u64> {
        match name {
            "allocated_bytes" => Some(self.allocated_bytes()),
            "capture_stacks" => Some(u64::from(self.capture_stacks)),
            _ => None,
        }
    }

    pass_on! {}
}
