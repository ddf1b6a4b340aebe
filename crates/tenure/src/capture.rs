//! Captures: memory that graphs share, and streams that are about to be captured.
//!
//! A pool over the plain device resource serves allocations on a capturing stream by itself: they are the graph's as long
//! as it lives. What is here is for more than that.
//!
//! Unsafe in this file: calls through the table.

use std::fmt;

use tenure_abi::*;

use crate::api;
use crate::error::{Result, check};
use crate::stream::StreamRef;

/// A name for memory that several graphs share which never run at the same time.
///
/// Each pool that is asked for memory inside a [`CaptureScope`] with this name keeps one arena for it: what one graph freed
/// while it was captured serves the next. The memory goes back when the name, the graphs and the allocations are gone.
///
/// The program orders the runs of these graphs with each other: in one stream, or by events.
pub struct SharedArena {
    api: &'static tenure_api,
    arena: tenure_shared_arena,
}

impl SharedArena {
    /// A new name.
    ///
    /// # Errors
    /// [`Error::Load`](crate::Error::Load) without a library.
    pub fn new() -> Result<Self> {
        let api = api()?;
        let mut arena = 0;
        // SAFETY: the pointer is valid for writing.
        check(api, unsafe { (api.shared_arena_create)(&mut arena) })?;
        Ok(Self { api, arena })
    }
}

impl fmt::Debug for SharedArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedArena({:#x})", self.arena)
    }
}

impl Drop for SharedArena {
    fn drop(&mut self) {
        // SAFETY: the name is given back once.
        unsafe { (self.api.shared_arena_release)(self.arena) };
    }
}

/// A scope around captures of a stream; it ends when dropped, in any order among others and on any thread.
#[must_use = "the scope ends when this is dropped"]
pub struct CaptureScope {
    api: &'static tenure_api,
    scope: tenure_capture_scope,
}

impl CaptureScope {
    /// Opens a scope for captures of `stream`, whichever thread allocates in them. The per-thread default stream stands for
    /// this thread: only inside such a scope is it asked for capture in every allocation. With `shared`, the graphs share
    /// the arena of that name; captures that share one follow each other.
    ///
    /// # Examples
    /// ```
    /// use tenure::{CaptureScope, SharedArena, Stream};
    ///
    /// let stream = Stream::create()?;
    /// let arena = SharedArena::new()?;
    /// for _shape in 0..3 {
    ///     let _scope = CaptureScope::enter(&stream, Some(&arena))?;
    ///     // begin the capture, allocate, launch, free, end the capture
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for the legacy stream, which cannot be captured, and for a name that a
    /// scope of another thread has open.
    pub fn enter<'a>(stream: impl Into<StreamRef<'a>>, shared: Option<&SharedArena>) -> Result<Self> {
        let api = api()?;
        let mut scope = 0;
        let arena = shared.map_or(0, |shared| shared.arena);
        // SAFETY: the pointer is valid for writing. A stream without an object is asked again while the scope is open, and
        // its caller has promised that it lives for as long.
        check(api, unsafe { (api.capture_scope_enter)(stream.into().raw, arena, &mut scope) })?;
        Ok(Self { api, scope })
    }
}

impl fmt::Debug for CaptureScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CaptureScope({:#x})", self.scope)
    }
}

impl Drop for CaptureScope {
    fn drop(&mut self) {
        // SAFETY: the scope is left once. A failure (a forked child) leaves nothing that could be put right.
        unsafe { (self.api.capture_scope_exit)(self.scope) };
    }
}
