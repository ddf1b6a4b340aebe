//! The engine of tenure.
//!
//! ```text
//!          buffer    current   report   trace          what users hold and ask
//!             \         |        |       /
//!              resource/  (handle, registry, leaves)    who made the memory
//!              adaptor/   (limiting, statistics, ...)   what stands in front of it
//!              pool/      (place, pages, order)         who may have which byte now
//!                   |
//!              stream, device, misuse, error, tools     the words they share
//!              observe                                  what is live, by whom, and what became of a request
//!                   |
//!              tenure-driver                            one table of driver calls
//! ```
//!
//! Only `libtenure` links this crate (and the crate `tenure` under its feature `static`): its statics *are* the state of
//! the process. Every other face is a client of the function table in `tenure-abi`.

pub use tenure_driver::sync;

pub mod adaptor;
pub mod arena;
mod barrier;
pub mod bins;
pub mod buffer;
pub mod chunks;
pub mod count;
pub mod current;
pub mod device;
pub mod error;
mod latch;
pub mod low_memory;
pub mod misuse;
pub mod observe;
pub mod ops;
pub mod pool;
pub mod prefetch;
pub mod report;
pub mod resource;
pub mod sharing;
pub mod stack;
pub mod stream;
pub mod stream_pool;
pub mod thread;
mod threshold;
pub mod tools;
pub mod trace;
