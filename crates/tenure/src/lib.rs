//! GPU memory management with owned buffers: the Rust face of tenure.
//!
//! ```text
//!   your code --> DeviceBuffer, DeviceVec<T>, DeviceScalar<T>   memory with an owner
//!                    |        \
//!                 Resource   Stream                             who made it, in whose order it is freed
//!                    |
//!                 one table of functions (tenure_abi)           the border
//!                    |
//!                 libtenure.so.0                                one engine per process, whatever languages share it
//! ```
//!
//! A buffer is freed by the resource that made it, in the order of its stream, while that resource is alive, and nothing of
//! that is the caller's to get right:
//!
//! ```
//! use tenure::{Device, DeviceBuffer, Pool, Stream};
//!
//! let (device, stream, n) = (Device::current()?, Stream::create()?, 1 << 20);
//! let pool = Pool::builder(&device).build()?;
//! let buffer = DeviceBuffer::new_in(n, &stream, &pool)?;
//! drop(pool);
//! drop(buffer);
//! # assert_eq!(tenure::misuse_count()?, 0);
//! # Ok::<(), tenure::Error>(())
//! ```
//!
//! # The library
//! This crate does not contain the engine. At first use it finds the library of the process, or loads the installed one; no
//! driver call is made before the first call that needs a device. Where there is no library, every call returns an
//! [`Error::Load`] that names the places which were looked at. `TENURE_LIBRARY` names another one, and
//! `TENURE_DEVICE=auto|cuda|sim` chooses the device layer.
//!
//! # Libraries that allocate
//! Take a `&Resource` and a `&Stream` in each function that allocates, and pass them on to whatever you call. Where the
//! caller gives none, read [`current::get`] once, first of all.
//!
//! # The feature `static`
//! Off by default. It links the engine into a *program* and publishes its table, so that whatever is loaded later (a Python
//! extension, a C++ library) joins it. The program needs one line in its `build.rs`:
//!
//! ```no_run
//! println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=tenure_get_api*");
//! ```
//!
//! **A library must never turn it on, nor offer it as a feature of its own**: an engine in a shared object is a second table
//! of current resources and a second owner of pools in the process, which is the very thing that tenure ends. Where another
//! instance is at work already, the feature makes every call return an [`Error::Load`] that says so.
//!
//! # Errors
//! Every function returns an [`Error`] with fields; only [`Error::OutOfMemory`] is worth another try. A drop cannot return
//! one: a free that was wrong is counted in [`misuse_count`] and reported ([`misuse`]).

#![warn(missing_debug_implementations)]

pub use tenure_abi as abi;

mod adaptors;
mod bins;
mod buffer;
mod bytes;
mod callbacks;
mod capture;
pub mod current;
mod device;
mod error;
mod foreign;
#[cfg(feature = "static")]
mod linked;
mod load;
mod logging;
pub mod low_memory;
pub mod misuse;
pub mod observe;
mod owner;
mod pool;
mod report;
mod resource;
mod scopes;
pub mod sharing;
pub mod sim;
mod stream;
mod stream_pool;
mod typed;

pub use adaptors::{Aligned, FailureCallback, Prefetch, ThreadSafe, Tracked, Tracking, prefetch, sam_headroom};
pub use bins::{Arena, ArenaBuilder, Binning, BinningBuilder, FixedSize, FixedSizeBuilder};
pub use buffer::{Detached, DeviceBuffer};
pub use bytes::Bytes;
pub use callbacks::{Callbacks, Request};
pub use capture::{CaptureScope, SharedArena};
pub use device::{Device, DeviceInfo};
pub use error::{
    BoxError, Callback, Cuda, Error, LoadError, LoadFailure, MisuseKind, OutOfMemory, Ownership, Result, check,
};
pub use load::{api, library_path};
pub use logging::Logging;
pub use misuse::count as misuse_count;
pub use observe::{Tag, memory_snapshot, tag, usage};
pub use pool::{
    AsyncPool, AsyncPoolBuilder, Counters, HandleType, Limiting, Pool, PoolBuilder, Statistics, cuda, managed, pinned,
    system,
};
pub use report::{collect, describe, replay, version};
pub use resource::{Block, DEFAULT_ALIGNMENT, Info, Properties, Resource, block_of, owner_of};
pub use scopes::StatisticsScope;
pub use sharing::Shared;
pub use stream::{Stream, StreamRef};
pub use stream_pool::StreamPool;
pub use typed::{DeviceCopy, DeviceScalar, DeviceVec};
