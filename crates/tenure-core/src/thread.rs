//! The number of a thread, by which it chooses its own of what there are several of: stripes, shards.
//!
//! Threads count up in the order in which they first ask, so that as many as there are stripes have one each. One number
//! serves all: what is kept per thread costs a call in a shared library, whatever is behind it.
//!
//! **Cost**: one read of the thread's own storage, which works until the thread's very end.

use std::cell::Cell;

// Never modelled: a model gives its threads their stripes itself.
use crate::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// The number of this thread, from 1; no other thread of the process ever has it.
#[inline]
pub fn number() -> usize {
    match NUMBER.get() {
        0 => take(),
        number => number,
    }
}

#[cold]
fn take() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}
