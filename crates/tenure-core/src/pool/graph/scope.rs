//! Scopes around captures: whose memory a graph shares, and a default stream that is about to be captured.
//!
//! ```text
//!   let arena = SharedArena::new();
//!   scope(stream a, arena) ----- capture on a ----- end        graph 1 \  one arena: they never run at once
//!   scope(stream a, arena) ----- capture on a ----- end        graph 2 /
//! ```
//!
//! A scope names a stream. Captures of that stream, and every other stream that takes part in them, take their memory from
//! the scope's arena, whichever thread asks. A scope that names the per-thread default stream stands for its *thread*: for
//! that stream, which is asked for capture in every allocation while such a scope is open, and for whatever captures this
//! thread allocates in.
//!
//! **Cost**: an allocation on the per-thread default stream reads one word that nobody writes while no scope opens or ends;
//! the list is read where a capture asks for memory for the first time.

use tenure_driver::RawStream;

use crate::error::{Error, Result};
use crate::pool::order::identity::this_thread;
use crate::stream::{StreamHold, StreamRef};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, Weak};

/// What is behind a [`SharedArena`].
#[derive(Debug)]
pub(in crate::pool) struct Name(u64);

/// Memory that several graphs share which never run at the same time.
///
/// A value of it is only a name: each pool that is asked for memory inside a scope with this name keeps one arena for it.
/// What one graph freed while it was captured serves the next; what is still allocated stays. The memory goes back when the
/// last clone of the name, the last of the graphs and the last allocation are gone.
///
/// Runs of the graphs must be ordered with each other by the program: in one stream, or by events.
#[derive(Clone, Debug)]
pub struct SharedArena(Arc<Name>);

impl Default for SharedArena {
    fn default() -> Self {
        Self::new()
    }
}

impl SharedArena {
    /// A new name.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(Arc::new(Name(NEXT.fetch_add(1, Ordering::Relaxed))))
    }

    /// A number that no other one of the process has.
    pub fn id(&self) -> u64 {
        self.0.0
    }

    pub(in crate::pool) fn weak(&self) -> Weak<Name> {
        Arc::downgrade(&self.0)
    }
}

/// One open scope.
struct Open {
    token: u64,
    thread: u64,
    /// `None`: the scope stands for its thread.
    stream: Option<StreamHold>,
    shared: Option<SharedArena>,
}

static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());
/// How many of them stand for their thread.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// A scope around one capture, or around several that follow each other; it ends when dropped, on whatever thread.
#[derive(Debug)]
#[must_use = "the scope ends when this is dropped"]
pub struct CaptureScope {
    token: u64,
}

impl CaptureScope {
    /// Opens a scope for captures of `stream`; the per-thread default stream stands for this thread. A raw value must be
    /// alive until the scope ends. With `shared`, the graphs share the arena of that name.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the legacy stream, which cannot be captured, and for a name that a scope of another thread
    /// has open: captures that share an arena follow each other.
    pub fn enter(stream: StreamHold, shared: Option<SharedArena>) -> Result<Self> {
        let raw = stream.value();
        if raw.is_legacy() {
            return Err(Error::invalid(
                "the legacy default stream cannot be captured: name the stream that will be, or the per-thread default \
                 stream",
            ));
        }
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let thread = this_thread();
        let mut open = OPEN.lock();
        if let Some(shared) = &shared
            && open.iter().any(|o| o.thread != thread && o.shared.as_ref().is_some_and(|s| s.id() == shared.id()))
        {
            return Err(Error::invalid(
                "another thread has a capture scope open with this shared arena: captures that share one follow each \
                 other; end that scope first, or share another arena",
            ));
        }
        let token = NEXT.fetch_add(1, Ordering::Relaxed);
        let stream = if raw.is_per_thread() { None } else { Some(stream) };
        if stream.is_none() {
            THREADS.fetch_add(1, Ordering::Relaxed);
        }
        open.push(Open { token, thread, stream, shared });
        Ok(Self { token })
    }

    /// A number for the scope, which [`exit`](Self::exit) takes: for faces that cannot hold the value.
    pub fn into_token(self) -> u64 {
        std::mem::ManuallyDrop::new(self).token
    }

    /// Ends the scope of a token.
    ///
    /// # Errors
    /// [`Error::BadHandle`] for one that has ended.
    pub fn exit(token: u64) -> Result<()> {
        let ended = {
            let mut open = OPEN.lock();
            let at = open.iter().position(|o| o.token == token);
            at.map(|at| open.remove(at))
        };
        // The stream or the name may go with it, which needs that no lock is held.
        let ended = ended.ok_or_else(|| {
            Error::BadHandle("this capture scope is null or was left already: each scope is left once".into())
        })?;
        if ended.stream.is_none() {
            THREADS.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for CaptureScope {
    fn drop(&mut self) {
        let _ = Self::exit(self.token);
    }
}

/// True while some thread may be capturing its default stream.
#[inline]
pub(in crate::pool) fn threads_announced() -> bool {
    THREADS.load(Ordering::Relaxed) != 0
}

/// The name that memory of `capture`, asked for on `stream` by this thread, goes by. The newest scope wins.
pub(in crate::pool) fn shared_for(capture: u64, stream: StreamRef<'_>) -> Option<SharedArena> {
    let thread = this_thread();
    let all: Vec<(Option<StreamHold>, Option<SharedArena>)> = {
        let open = OPEN.lock();
        let mine = |o: &&Open| o.stream.is_some() || o.thread == thread;
        open.iter().rev().filter(mine).map(|o| (o.stream.clone(), o.shared.clone())).collect()
    };
    let takes_part = |scope: &StreamHold| {
        scope.value() == stream.raw || capture_of(scope.value()).is_some_and(|other| other == capture)
    };
    all.into_iter().find(|(scope, _)| scope.as_ref().is_none_or(takes_part))?.1
}

/// The capture that a stream of a scope takes part in now.
fn capture_of(raw: RawStream) -> Option<u64> {
    let info = crate::device::driver().ok()?.stream_capture_info(raw).ok()?;
    (info.status == tenure_driver::CaptureStatus::Active).then_some(info.id)
}
