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
use super::{PAGE, Pool, PoolOptions};
use crate::error::Result;
use crate::resource::{MAX_ALIGNMENT, Request, registry};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};

/// The longest growth ahead, in bytes.
const MOST: u64 = 256 << 20;

/// How long the thread waits where it has nothing to wait for but pools.
const IDLE: Duration = Duration::from_secs(60);

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
}

static THREAD: Mutex<Thread> = Mutex::new(Thread { running: false, woken: false });
static WOKEN: Condvar = Condvar::new();

impl Tend {
    /// A pool has grown by so many bytes: the next growth may be made ahead, and what is idle will have to be looked at.
    pub(super) fn grew(&self, options: &PoolOptions, bytes: u64) {
        if options.grow_ahead {
            let next = bytes.max(options.chunk_bytes).clamp(PAGE, MOST.max(options.chunk_bytes));
            self.ahead.fetch_max(next, Ordering::Relaxed);
        }
        if options.grow_ahead || options.decay_ms != 0 {
            Self::start();
        }
    }

    /// Wakes the thread, if there is one, so that it notices that a pool has ended.
    pub(super) fn wake() {
        let mut thread = THREAD.lock();
        if thread.running {
            thread.woken = true;
            WOKEN.notify_all();
        }
    }

    /// Wakes the thread, or starts it.
    fn start() {
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
    loop {
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
            let next = match options.decay_ms {
                0 => IDLE,
                ms => Duration::from_millis((ms / 4).max(1)).min(IDLE),
            };
            wait = Some(wait.map_or(next, |w| w.min(next)));
            pool.tend();
        });
        let mut thread = THREAD.lock();
        if tenure_driver::process::unusable() {
            thread.running = false;
            return;
        }
        if !thread.woken {
            let Some(wait) = wait else {
                thread.running = false;
                return;
            };
            let _ = WOKEN.wait_for(&mut thread, wait);
        }
        thread.woken = false;
    }
}

impl Pool {
    /// What the thread does for this pool.
    fn tend(&self) {
        let ahead = self.tend.ahead.swap(0, Ordering::Relaxed);
        if ahead > 0
            && let Err(e) = self.grow_by(ahead)
        {
            log::debug!("tenure: a pool could not grow ahead: {e}");
        }
        self.decay();
    }

    /// Grows until a block of `bytes` bytes is free, if the limit and the device leave room for it.
    fn grow_by(&self, bytes: u64) -> Result<()> {
        let Some(_turn) = self.turns.try_take() else { return Ok(()) };
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
        let Some(plan) = self.take_pages(plan)? else { return Ok(()) };
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
