//! Who may use a buffer now: one call at a time, one change while nobody else has the memory.

use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use pyo3::exceptions::{PyBufferError, PyRuntimeError};
use pyo3::prelude::*;
use tenure_abi::*;

use super::DeviceBuffer;
use crate::errors::call;
use crate::gil;
use crate::observe;
use crate::scopes;

/// The right to change a buffer, given back when dropped.
pub(crate) struct Change<'a> {
    exports: &'a AtomicIsize,
    _turn: Turn<'a>,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.exports.store(0, Ordering::Release);
    }
}

/// The engine works on a buffer for one call at a time; this is a call's turn.
pub(crate) struct Turn<'a> {
    holder: &'a AtomicUsize,
    _lock: MutexGuard<'a, ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.holder.store(0, Ordering::Release);
    }
}

impl DeviceBuffer {
    /// Waits for this call's turn, without the interpreter lock.
    ///
    /// # Errors
    /// A call further up on this thread has it (a callback uses the buffer that it allocates for).
    pub(crate) fn turn(&self, py: Python<'_>) -> PyResult<Turn<'_>> {
        let me = gil::this_thread();
        if self.holder.load(Ordering::Acquire) == me {
            return Err(PyBufferError::new_err("the buffer is in use by the call that called this function"));
        }
        let lock = match self.turn.try_lock() {
            Ok(lock) => lock,
            Err(_) if self.forks.load(Ordering::Acquire) != gil::forks() => {
                return Err(PyRuntimeError::new_err(
                    "a thread was using the buffer when this process was forked, and it does not exist in the child: use the buffer in the parent",
                ));
            }
            Err(_) => gil::detach(py, || self.turn.lock().unwrap_or_else(PoisonError::into_inner)),
        };
        self.forks.store(gil::forks(), Ordering::Release);
        self.holder.store(me, Ordering::Release);
        Ok(Turn { holder: &self.holder, _lock: lock })
    }

    /// Begins what may move or free the memory, or replace it.
    pub(crate) fn change(&self, py: Python<'_>, what: &str) -> PyResult<Change<'_>> {
        scopes::sync(py);
        self.handle()?;
        let turn = self.turn(py)?;
        if let Err(exports) = self.exports.compare_exchange(0, -1, Ordering::AcqRel, Ordering::Acquire) {
            return Err(PyBufferError::new_err(if exports < 0 {
                format!("the buffer cannot be {what} now: another thread is changing it")
            } else {
                format!("the buffer cannot be {what} while {exports} memoryview(s) show it; release them first")
            }));
        }
        let change = Change { exports: &self.exports, _turn: turn };
        // Only under the lock of the interpreter can the count rise, and nobody exports during a change.
        if self.shared.get().is_some_and(|shared| Arc::strong_count(shared) > 1) {
            return Err(PyBufferError::new_err(format!(
                "the buffer cannot be {what} while it is exported through DLPack or Arrow; drop the arrays that share it first"
            )));
        }
        Ok(change)
    }

    /// Whether somebody else has the memory, through the buffer protocol or DLPack.
    pub(super) fn is_exported(&self) -> bool {
        self.exports.load(Ordering::Acquire) != 0 || self.shared.get().is_some_and(|owned| Arc::strong_count(owned) > 1)
    }

    /// Begins an export through the buffer protocol.
    pub(crate) fn begin_export(&self) -> PyResult<()> {
        let begun = self.exports.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n >= 0).then_some(n + 1));
        begun.map(|_| ()).map_err(|_| Self::being_changed())
    }

    pub(crate) fn end_export(&self) {
        self.exports.fetch_sub(1, Ordering::AcqRel);
    }

    /// # Errors
    /// Another thread is changing the buffer.
    pub(crate) fn not_changing(&self) -> PyResult<()> {
        if self.exports.load(Ordering::Acquire) < 0 { Err(Self::being_changed()) } else { Ok(()) }
    }

    fn being_changed() -> PyErr {
        PyBufferError::new_err("the buffer cannot be exported now: another thread is changing it")
    }

    pub(crate) fn writable(&self) -> PyResult<()> {
        if self.readonly.load(Ordering::Acquire) {
            return Err(PyBufferError::new_err("the memory is read-only for its owner; make a copy and write to that"));
        }
        Ok(())
    }

    /// Runs a call of the table that takes buffer, size and stream, as a change.
    pub(super) fn resized(
        &self,
        py: Python<'_>,
        what: &str,
        bytes: usize,
        stream: Option<&Bound<'_, PyAny>>,
        call_it: unsafe extern "C" fn(tenure_buffer, usize, tenure_stream) -> tenure_status,
    ) -> PyResult<()> {
        self.writable()?;
        observe::sync(py)?;
        let _change = self.change(py, what)?;
        if let Some(held) = self.held.get() {
            held.used();
        }
        let (_held, carried) = self.stream_or_home(py, stream)?;
        let buffer = self.handle()?;
        // SAFETY: the handles are held by this object and by `_held`.
        call(py, || unsafe { call_it(buffer, bytes, carried) })
    }
}
