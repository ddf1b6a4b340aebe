//! The last events, for whoever wants to know how things came to be.
//!
//! Each group of threads keeps a ring of its own, so that recording touches no word that all share; whoever reads merges
//! them by time. Events stay after recording has ended, until it begins again.
//!
//! **Cost**: a lock of the group's, a look at the clock, and about 120 bytes an event. Each group keeps as many events as
//! were asked for in all, since one thread may make all of them.

use std::collections::VecDeque;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crossbeam_utils::CachePadded;

use super::account::{Account, Who};
use super::stack::Stack;
use super::{HISTORY, STACKS, want};
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Lazy, Mutex};

/// Events that are kept where nobody says how many.
pub const DEFAULT_ENTRIES: usize = 100_000;
/// Events that can be kept at most.
pub const MOST_ENTRIES: usize = 100_000_000;

const GROUPS: usize = 16;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Allocate,
    Free,
    Failure,
    ResourceCreate,
    ResourceClose,
    Trim,
    SetCurrent,
}

impl What {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::Free => "free",
            Self::Failure => "failure",
            Self::ResourceCreate => "resource_create",
            Self::ResourceClose => "resource_close",
            Self::Trim => "trim",
            Self::SetCurrent => "set_current",
        }
    }
}

/// One event.
#[derive(Clone)]
pub(super) struct Event {
    /// Nanoseconds since 1970.
    pub(super) time: u64,
    pub(super) what: What,
    pub(super) ptr: u64,
    pub(super) bytes: u64,
    pub(super) stream: Option<u64>,
    pub(super) resource: u64,
    pub(super) thread: &'static Account,
    pub(super) tag: &'static Account,
    pub(super) stack: Option<Arc<Stack>>,
    pub(super) detail: Option<Box<str>>,
}

impl Event {
    /// Of a resource, by this thread, now; the caller says what.
    pub(super) fn of(resource: u64, who: Who) -> Self {
        Self {
            time: now(),
            what: What::Trim,
            ptr: 0,
            bytes: 0,
            stream: None,
            resource,
            thread: who.thread,
            tag: who.tag,
            stack: None,
            detail: None,
        }
    }
}

type Group = CachePadded<Mutex<VecDeque<Event>>>;

static GROUP: Lazy<Vec<Group>> = Lazy::new(|| (0..GROUPS).map(|_| Group::default()).collect());
static MOST: AtomicUsize = AtomicUsize::new(DEFAULT_ENTRIES);
/// Events that were recorded, as far as rings have let go of them.
static DROPPED: AtomicU64 = AtomicU64::new(0);
/// A moment on both clocks: one that never goes back, and the one that people read.
static START: Lazy<(Instant, u64)> = Lazy::new(|| {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    (Instant::now(), u64::try_from(wall).unwrap_or(0))
});

/// Nanoseconds since 1970, on a clock that never goes back while the process lives.
pub(super) fn now() -> u64 {
    let (start, wall) = *START;
    wall + u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX / 2)
}

/// Records events from now on, with `stacks` where somebody can tell them, the last `most` of them; or ends it. What a
/// recording before this one left is forgotten when one begins.
///
/// # Errors
/// [`Error::Invalid`] for a number of events that is 0 or more than [`MOST_ENTRIES`].
pub fn record(on: bool, stacks: bool, most: usize) -> Result<()> {
    if !on {
        want(STACKS, false);
        want(HISTORY, false);
        return Ok(());
    }
    if most == 0 || most > MOST_ENTRIES {
        return Err(Error::invalid(format!(
            "max_entries {most} is not usable: give a number from 1 to {MOST_ENTRIES}"
        )));
    }
    for group in GROUP.iter() {
        let gone = std::mem::take(&mut *group.lock());
        drop(gone);
    }
    DROPPED.store(0, Ordering::Relaxed);
    MOST.store(most, Ordering::Relaxed);
    want(STACKS, stacks);
    want(HISTORY, true);
    Ok(())
}

/// Takes note of an event.
pub(super) fn note(event: Event) {
    let group = &GROUP[crate::stream::this_thread() as usize % GROUPS];
    let most = MOST.load(Ordering::Relaxed);
    let gone = {
        let mut ring = group.lock();
        ring.push_back(event);
        if ring.len() > most { ring.pop_front() } else { None }
    };
    if gone.is_some() {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// The last events by time, and how many there were before them.
pub(super) fn events() -> (Vec<Event>, u64) {
    let mut all = Vec::new();
    for group in GROUP.iter() {
        all.extend(group.lock().iter().cloned());
    }
    // Stable: what one thread did in one tick of the clock stays in its order.
    all.sort_by_key(|event| event.time);
    let over = all.len().saturating_sub(MOST.load(Ordering::Relaxed));
    all.drain(..over);
    (all, DROPPED.load(Ordering::Relaxed) + over as u64)
}
