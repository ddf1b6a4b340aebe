//! The one place that names synchronisation primitives.
//!
//! Everything above uses these names, so that a model checker or a sanitizer sees all of them: under `cfg(loom)` the
//! atomics are loom's; otherwise locks are `parking_lot`'s (no poisoning: a panic in one thread never makes the memory
//! manager of a process unusable) and one-time cells are `once_cell`'s.

#[cfg(not(loom))]
pub use std::sync::atomic;

#[cfg(loom)]
pub use loom::sync::atomic;

pub use once_cell::sync::{Lazy, OnceCell};
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use std::sync::{Arc, Weak, mpsc};
