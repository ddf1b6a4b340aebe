//! Measurements that belong to the thread or the task that opened them.
//!
//! ```text
//!   thread 1:  innermost --> scope C --> scope A         an allocation of thread 1 counts in C, in A,
//!   thread 2:  innermost --> scope B                     and in the adaptor; one of thread 2 in B and in the adaptor
//! ```
//!
//! A [`Scope`] counts what its own thread does through one [`Statistics`](super::Statistics) adaptor while it is open:
//!
//! * an allocation counts in the scopes that the *allocating* thread is in, and a free in those that the *freeing* thread is
//!   in, whoever had allocated the block. So `value` is what the thread's own work has added since the scope was opened; it
//!   is negative where more was freed than allocated, and the values of all threads add up to what the adaptor saw;
//! * a scope that is opened inside another one is part of it: what it counts counts there too, at the same time, so that
//!   peaks are exact;
//! * a scope counts for its adaptor only. Scopes of several adaptors may be nested in each other;
//! * a thread that starts is in no scope. [`enter`] puts a thread into a scope that another one opened: work that is handed
//!   on, or a task that goes on; then several threads count in one scope, and their sum is its figure;
//! * a scope is closed once, by whichever thread and in any order. What is nested in it stays open, and counts on for itself
//!   and for what the closed one was nested in.
//!
//! The adaptor's own counters, and those that [`push_counters`](super::Statistics::push_counters) nests, are everybody's:
//! they go on beside the scopes as if there were none.
//!
//! # Cost
//! Without an open scope one load. In scopes, 10 ns for each of them.

use std::cell::RefCell;

use crate::adaptor::tally::{All, Counters, Held, Tally};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex};
use crate::thread::{self, Local};

/// A measurement of what one thread or task does.
#[derive(Debug)]
pub struct Scope {
    id: u64,
    /// The adaptor whose traffic it counts.
    adaptor: u64,
    inner: Mutex<Inner>,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    counters: Counters,
    /// What it was opened in, or what that was in, once that is closed.
    parent: Option<Arc<Scope>>,
}

/// Open scopes of the process: where there are none, nobody looks for them.
static OPEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// What the thread is in; perhaps a scope that somebody has closed.
    static INNERMOST: RefCell<Option<Arc<Scope>>> = const { RefCell::new(None) };
}

/// The nearest scope that is open, from `scope` outward.
fn open_from(mut scope: Option<Arc<Scope>>) -> Option<Arc<Scope>> {
    while let Some(at) = scope {
        if !at.closed.load(Ordering::Acquire) {
            return Some(at);
        }
        scope = at.inner.lock().parent.clone();
    }
    None
}

/// The open scope that the calling thread is in.
pub fn innermost() -> Option<Arc<Scope>> {
    INNERMOST.try_with(|innermost| open_from(innermost.borrow().clone())).ok().flatten()
}

/// Puts the calling thread into `scope`, or out of all, and says what it was in.
pub fn enter(scope: Option<Arc<Scope>>) -> Option<Arc<Scope>> {
    let scope = open_from(scope);
    // Dropped outside of the cell: a scope may be the last to hold a long chain of others.
    let before = INNERMOST.try_with(|innermost| innermost.replace(scope)).ok().flatten();
    open_from(before)
}

impl Scope {
    fn open(adaptor: u64) -> Arc<Self> {
        let parent = innermost();
        if let Some(parent) = &parent {
            // Scopes that are closed before what they were opened in would else make an ever longer way out.
            let outer = open_from(parent.inner.lock().parent.clone());
            let before = std::mem::replace(&mut parent.inner.lock().parent, outer);
            drop(before);
        }
        let inner = Mutex::new(Inner { counters: Counters::default(), parent });
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let scope = Arc::new(Self { id, adaptor, inner, closed: AtomicBool::new(false) });
        OPEN.fetch_add(1, Ordering::AcqRel);
        enter(Some(scope.clone()));
        scope
    }

    /// A number that no other scope of the process ever has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What it has counted.
    pub fn counters(&self) -> Counters {
        self.inner.lock().counters
    }

    /// Ends it, and says what it has counted. The calling thread is then in what it was opened in, if it was in it. Again:
    /// nothing but the figures.
    pub fn close(&self) -> Counters {
        if !self.closed.swap(true, Ordering::AcqRel) {
            OPEN.fetch_sub(1, Ordering::AcqRel);
            enter(innermost());
        }
        self.counters()
    }
}

/// Counts for the scopes of the calling thread that are `adaptor`'s.
#[cold]
fn each(adaptor: u64, count: impl Fn(&mut Counters)) {
    let _ = INNERMOST.try_with(|innermost| {
        let mut at = innermost.borrow().clone();
        while let Some(scope) = at {
            let mut inner = scope.inner.lock();
            if scope.adaptor == adaptor && !scope.closed.load(Ordering::Acquire) {
                count(&mut inner.counters);
            }
            at = inner.parent.clone();
        }
    });
}

/// The tally of an adaptor, and the scopes that count with it.
pub(super) struct Scoped {
    tally: Tally,
    /// A number that no other adaptor of the process has.
    adaptor: u64,
}

impl Default for Scoped {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { tally: Tally::default(), adaptor: NEXT.fetch_add(1, Ordering::Relaxed) }
    }
}

/// The stripe of this thread, held until something was counted.
pub(super) struct Counting<'a> {
    held: Held<'a>,
    adaptor: u64,
}

impl Scoped {
    /// Opens a scope, which the calling thread then is in.
    pub(super) fn open(&self) -> Arc<Scope> {
        Scope::open(self.adaptor)
    }

    #[inline]
    pub(super) fn hold(&self) -> Counting<'_> {
        thread::with(|here| self.hold_of(here))
    }

    #[inline(always)]
    pub(super) fn hold_of(&self, here: &Local) -> Counting<'_> {
        Counting { held: self.tally.hold_of(here), adaptor: self.adaptor }
    }

    pub(super) fn hold_all(&self) -> All<'_> {
        self.tally.hold_all()
    }

    pub(super) fn counters(&self) -> Counters {
        self.tally.counters()
    }
}

impl Counting<'_> {
    /// A block of `bytes` has come to life.
    #[inline]
    pub(super) fn add(self, bytes: i64) {
        self.held.add(bytes);
        drop(self.held);
        if OPEN.load(Ordering::Relaxed) != 0 {
            each(self.adaptor, |counters| counters.add(bytes));
        }
    }

    /// A block of `bytes` is gone.
    #[inline]
    pub(super) fn subtract(self, bytes: i64) {
        self.held.subtract(bytes);
        drop(self.held);
        if OPEN.load(Ordering::Relaxed) != 0 {
            each(self.adaptor, |counters| counters.subtract(bytes));
        }
    }
}
