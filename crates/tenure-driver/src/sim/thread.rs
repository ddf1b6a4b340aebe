//! What the driver remembers per calling thread: the stack of current contexts, the mode for captures, and whether the
//! thread is inside a host function.
//!
//! The values are plain cells without a destructor, so that they can still be read while other thread-local values of
//! the thread are being destroyed: buffers do live in thread-locals.

use std::cell::Cell;

use super::codes::*;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sys::CU_STREAM_CAPTURE_MODE_GLOBAL;

const DEPTH: usize = 32;

struct Thread {
    id: Cell<u64>,
    depth: Cell<usize>,
    stack: [Cell<usize>; DEPTH],
    mode: Cell<u32>,
    in_callback: Cell<bool>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            id: Cell::new(0),
            depth: Cell::new(0),
            stack: [const { Cell::new(0) }; DEPTH],
            mode: Cell::new(CU_STREAM_CAPTURE_MODE_GLOBAL),
            in_callback: Cell::new(false),
        }
    };
}

/// A number for the calling thread, never used for another.
pub(super) fn id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    THREAD.with(|t| {
        if t.id.get() == 0 {
            t.id.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        t.id.get()
    })
}

/// The handle of the current context, 0 for none.
pub(super) fn current() -> usize {
    THREAD.with(|t| match t.depth.get() {
        0 => 0,
        n => t.stack[n - 1].get(),
    })
}

/// Replaces the top of the stack (an empty stack gets one); 0 takes the top away.
pub(super) fn set_current(context: usize) {
    THREAD.with(|t| {
        let n = t.depth.get();
        if context == 0 {
            t.depth.set(n.saturating_sub(1));
        } else if n == 0 {
            t.stack[0].set(context);
            t.depth.set(1);
        } else {
            t.stack[n - 1].set(context);
        }
    });
}

pub(super) fn push(context: usize) -> Result<(), i32> {
    THREAD.with(|t| {
        let n = t.depth.get();
        if n == DEPTH {
            return Err(INVALID_CONTEXT);
        }
        t.stack[n].set(context);
        t.depth.set(n + 1);
        Ok(())
    })
}

pub(super) fn pop() -> Result<usize, i32> {
    THREAD.with(|t| {
        let n = t.depth.get();
        if n == 0 {
            return Err(INVALID_CONTEXT);
        }
        t.depth.set(n - 1);
        Ok(t.stack[n - 1].get())
    })
}

/// The thread's mode for captures (`cuThreadExchangeStreamCaptureMode`).
pub(super) fn mode() -> u32 {
    THREAD.with(|t| t.mode.get())
}

pub(super) fn exchange_mode(mode: u32) -> u32 {
    THREAD.with(|t| t.mode.replace(mode))
}

/// Whether the thread runs a host function of the device, from which no driver call is allowed.
pub(super) fn in_callback() -> bool {
    THREAD.with(|t| t.in_callback.get())
}

/// Runs `f` as a host function.
pub(super) fn as_callback(f: impl FnOnce()) {
    THREAD.with(|t| {
        let before = t.in_callback.replace(true);
        f();
        t.in_callback.set(before);
    });
}
