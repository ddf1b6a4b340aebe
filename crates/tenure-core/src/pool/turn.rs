//! The pool's turn: one thread at a time grows, gives back or waits for the device.
//!
//! ```text
//!   thread 1   take -> [ plan under the lock | driver calls, no lock | book under the lock ] -> drop
//!   thread 2   take ........................................ waits ........................ -> retry what it wanted
//! ```
//!
//! Driver and upstream are called with the turn held and no lock. A thread that comes back into its own pool while it has
//! the turn (an upstream callback that allocates from the pool it feeds) is refused: waiting for itself would never end.

use crate::error::{Error, Result};
use crate::sync::{Condvar, Mutex};

use super::order::identity::this_thread;

/// A thread that is ending.
const NAMELESS: u64 = u64::MAX;

/// Whose turn it is: 0 for nobody's.
#[derive(Default)]
pub(super) struct Turns {
    holder: Mutex<u64>,
    free: Condvar,
}

/// Gives the turn back when dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    /// True when somebody else had it first, so that the state may have changed.
    pub(super) waited: bool,
}

impl Turns {
    /// Waits for the turn.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when this thread has it already.
    pub(super) fn take(&self) -> Result<Turn<'_>> {
        // Threads whose storage is gone cannot be told apart: they wait for each other.
        let me = match this_thread() {
            0 => NAMELESS,
            thread => thread,
        };
        let mut holder = self.holder.lock();
        let mut waited = false;
        while *holder != 0 {
            if *holder == me && me != NAMELESS {
                return Err(Error::Unsupported(
                    "the upstream of a pool asked the same pool for memory while the pool was growing: let the \
                     upstream take its own memory from elsewhere"
                        .to_owned(),
                ));
            }
            waited = true;
            self.free.wait(&mut holder);
        }
        *holder = me;
        Ok(Turn { turns: self, waited })
    }

    /// Takes the turn if nobody has it. For threads that come from outside the pool: whoever waits for no turn while it
    /// has none stands in no circle.
    pub(super) fn try_take(&self) -> Option<Turn<'_>> {
        let mut holder = self.holder.lock();
        if *holder != 0 {
            return None;
        }
        *holder = match this_thread() {
            0 => NAMELESS,
            thread => thread,
        };
        Some(Turn { turns: self, waited: false })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.turns.holder.lock() = 0;
        self.turns.free.notify_all();
    }
}
