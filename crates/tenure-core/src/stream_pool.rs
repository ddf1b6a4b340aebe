//! A set of streams of one device, given out in turn.
//!
//! ```text
//!   next(): 0 1 2 ... n-1 0 1 ...      whoever gets a stream shares it with whoever gets it n calls later
//! ```
//!
//! Making a stream costs a driver call of some ten microseconds and the driver has few queues; a program that wants a
//! stream for each small task takes one of these instead. The streams are objects like any other: one that a buffer or a
//! user names outlives the pool.
//!
//! Cost: an atomic addition. No lock, no driver call after construction.

use crate::error::{Error, Result};
use crate::stream::StreamObject;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// More than any device has a use for; a larger number is a mistake that would take minutes to notice.
const MOST: usize = 1 << 16;

/// A set of streams of one device, given out in turn.
#[derive(Debug)]
pub struct StreamPool {
    streams: Box<[Arc<StreamObject>]>,
    turn: AtomicUsize,
}

impl StreamPool {
    /// Makes `count` streams on `device`; `non_blocking` ones do not synchronise with the legacy default stream.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no streams or more than 65 536; what the driver says, and then there are none.
    pub fn new(device: i32, count: usize, non_blocking: bool) -> Result<Self> {
        if count == 0 {
            return Err(Error::invalid("a stream pool of no streams gives out none: pool_size must be 1 or more"));
        }
        if count > MOST {
            return Err(Error::invalid(format!(
                "a stream pool of {count} streams is beyond what a device has a use for: pool_size is at most {MOST}"
            )));
        }
        let streams = (0..count).map(|_| StreamObject::create(device, non_blocking)).collect::<Result<_>>()?;
        Ok(Self { streams, turn: AtomicUsize::new(0) })
    }

    /// The streams.
    pub fn streams(&self) -> &[Arc<StreamObject>] {
        &self.streams
    }

    /// Whose turn it is: an index into [`streams`](Self::streams), and the next call's is the next one.
    pub fn turn(&self) -> usize {
        // The counter wraps after 2^64 calls; a jump in the order then is all that happens.
        self.turn.fetch_add(1, Ordering::Relaxed) % self.streams.len()
    }

    /// The index that `number` stands for: numbers go round.
    pub fn index(&self, number: usize) -> usize {
        number % self.streams.len()
    }
}
