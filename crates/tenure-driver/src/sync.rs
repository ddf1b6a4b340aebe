//! The one place that names synchronisation primitives.
//!
//! Everything above uses these names, so that locks are `parking_lot`'s everywhere (no poisoning: a panic in one thread
//! never makes the memory manager of a process unusable), one-time cells are `once_cell`'s, and a model checker can take
//! the place of the atomics: a module that is model-checked names `crate::sync::atomic` and is included by its loom test
//! under a crate root whose `sync` is loom's (`tenure-core/tests/loom_count.rs`).

pub use once_cell::sync::{Lazy, OnceCell};
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use std::hint::spin_loop;
pub use std::sync::{Arc, Weak, atomic, mpsc};
pub use std::thread::yield_now;
