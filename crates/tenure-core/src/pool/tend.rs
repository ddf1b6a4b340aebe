//! What is done for pools in the background: growing ahead and giving back after a while. Off by default.
//!
//! ```text
//!   a pool grows ------ wake ---->  one thread of the process:  for each living pool that asks for it
//!   a decay passes ---------------> |                             grow ahead, if a growth was noted
//!   a pool ends ------- wake ---->  |                             decay
//!                                   ends when no pool asks for it any more
//! ```
//!
//! The thread finds pools through the registry of resources and holds one only while it works for it: a pool ends with its
//! last owner, or, where that goes at this very moment, right after. It takes a pool's turn only when nobody has it, and
//! looks before each pool whether the process is ending: then it ends, and in a forked child it never was.

use std::time::Duration;

use super::give_back::Idle;
use super::order::cur;
use super::pages::Pages;
use super::place::{LARGE, PROVEN};
use super::turn::Turn;
use super::{PAGE, Pool, PoolOptions};
use crate::error::Result;
use crate::resource::{MAX_ALIGNMENT, Request, registry};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};

/// The longest growth ahead, in bytes.
const MOST: u64 = 256 << 20;

/// How long the thread waits where it has nothing to wait for but pools.
const IDLE: Duration = Duration::from_secs(60);

/// How long it leaves a pool alone that another thread was growing.
const AGAIN: Duration = Duration::from_millis(1);

/// How long it waits for a pool that was announced and cannot be found yet.
const GRACE: Duration = Duration::from_secs(1);

/// The background of one pool.
#[derive(Default)]
pub(super) struct Tend {
    /// Bytes to grow ahead by; 0 for no wish.
    ahead: AtomicU64,
    pub(super) idle: Idle,
}

struct Thread {
    running: bool,
    woken: bool,
    /// It works for some pool, and may be in a driver call.
    busy: bool,
}

static THREAD: Mutex<Thread> = Mutex::new(Thread { running: false, woken: false, busy: false });
static WOKEN: Condvar = Condvar::new();
static DONE: Condvar = Condvar::new();

/// Waits until the thread is in no driver call, a second at most. Called when the process ends, after that was declared:
/// the thread makes no call from then on.
pub fn end_background() {
    let mut thread = THREAD.lock();
    if thread.busy {
        let _ = DONE.wait_while_for(&mut thread, |thread| thread.busy, GRACE);
    }
}

impl Tend {
    /// A pool has grown by so many bytes: the next growth may be made ahead, and what is idle will have to be looked at.
    pub(super) fn grew(&self, options: &PoolOptions, bytes: u64) {
        if options.grow_ahead {
            let next = bytes.max(options.chunk_bytes).clamp(PAGE, MOST.max(options.chunk_bytes));
            self.ahead.fetch_max(next, Ordering::Relaxed);
        }
        Self::announce(options);
    }

    /// There is a pool with these options, or will be in a moment.
    pub(super) fn announce(options: &PoolOptions) {
        if options.grow_ahead || options.decay_ms != 0 {
            Self::start();
        }
    }

    /// Wakes the thread, if there is one, so that it notices that a pool has ended.
    pub(super) fn wake() {
        // In a forked child the lock may be held by a thread that is not there.
        if tenure_driver::process::unusable() {
            return;
        }
        let mut thread = THREAD.lock();
        if thread.running {
            thread.woken = true;
            WOKEN.notify_all();
        }
    }

    /// Wakes the thread, or starts it.
    fn start() {
        if tenure_driver::process::unusable() {
            return;
        }
        let mut thread = THREAD.lock();
        thread.woken = true;
        if thread.running {
            WOKEN.notify_all();
            return;
        }
        match std::thread::Builder::new().name("tenure-pools".to_owned()).spawn(run) {
            Ok(_) => thread.running = true,
            // The pool does without: growth is waited for, and what is idle goes at the next slow path.
            Err(e) => log::warn!("tenure: no thread for growing ahead and giving back: {e}"),
        }
    }
}

fn run() {
    let mut patient = true;
    loop {
        {
            let mut thread = THREAD.lock();
            if tenure_driver::process::unusable() {
                thread.running = false;
                return;
            }
            thread.busy = true;
        }
        let mut wait: Option<Duration> = None;
        registry::for_each(|resource| {
            if tenure_driver::process::unusable() {
                return;
            }
            let Some(pool) = resource.downcast::<Pool>() else { return };
            let options = pool.options();
            if !options.grow_ahead && options.decay_ms == 0 {
                return;
            }
            let mut next = match options.decay_ms {
                0 => IDLE,
                ms => Duration::from_millis((ms / 4).max(1)).min(IDLE),
            };
            if !pool.tend() {
                next = AGAIN;
            }
            wait = Some(wait.map_or(next, |w| w.min(next)));
        });
        let mut thread = THREAD.lock();
        thread.busy = false;
        DONE.notify_all();
        if !thread.woken {
            let wait = match wait {
                Some(wait) => wait,
                None if patient => GRACE,
                None => {
                    thread.running = false;
                    return;
                }
            };
            let _ = WOKEN.wait_for(&mut thread, wait);
        }
        // Whoever wakes it may have a pool that can be found in a moment only.
        patient = thread.woken;
        thread.woken = false;
    }
}

impl Pool {
    /// What the thread does for this pool. False when another thread has its turn and something is left to do.
    fn tend(&self) -> bool {
        let ahead = self.tend.ahead.load(Ordering::Relaxed);
        if ahead > 0 {
            let Some(turn) = self.turns.try_take() else { return false };
            self.tend.ahead.store(0, Ordering::Relaxed);
            if let Err(e) = self.grow_by(&turn, ahead) {
                log::debug!("tenure: a pool could not grow ahead: {e}");
            }
        }
        self.decay();
        true
    }

    /// Grows until a block of `bytes` bytes is free, if the limit and the device leave room for it.
    fn grow_by(&self, _turn: &Turn<'_>, bytes: u64) -> Result<()> {
        let plan = {
            let mut state = self.lock();
            let tag = state.sole.map_or(PROVEN, cur);
            state.place.consolidate();
            if state.place.tag_largest(tag) >= bytes {
                return Ok(());
            }
            let request = Request { bytes: bytes as usize, align: PAGE as usize, owner: 0, flags: 0 };
            self.plan(&state, &request, LARGE, &[tag], false)
        };
        let Some(plan) = plan else { return Ok(()) };
        let Some(plan) = self.take_pages(plan, false)? else { return Ok(()) };
        self.note_reserved();
        let mut state = self.lock();
        // A second stream may have come meanwhile, or the only one may have a tag of its own now.
        let tag = state.sole.map_or(PROVEN, cur);
        state.place.extend(plan.offset, plan.usable, tag, LARGE);
        state.borrows = matches!(self.pages, Pages::Chunks(_));
        Ok(())
    }
}

const _: () = assert!(PAGE as usize <= MAX_ALIGNMENT);
