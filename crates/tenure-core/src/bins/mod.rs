//! Resources that sort requests by size: blocks of one size, and bins of them.
//!
//! ```text
//!                        request of n bytes
//!                               |
//!   binning     256 KiB?    512 KiB?    1 MiB?    none of them fits
//!                  |           |          |             |
//!              fixed_size  fixed_size    any         upstream
//!                  |           |       resource
//!                 pool        pool                         each over the same upstream, in chunks of many blocks
//! ```
//!
//! Both have RMM's parameters and its rules: a fixed-size resource refuses what is larger than its block; a binning
//! resource asks the smallest bin that is large enough. Neither has a protocol of its own for streams: a block of a
//! fixed-size resource is a block of the [pool](crate::pool) inside it, so that order, captures, the end of a stream, fork
//! and exit are the pool's.
//!
//! # What is different from RMM
//! * A free is checked, to the byte.
//! * Bins may be added at any time: a free goes to whoever made the block, whatever bins there are by then.
//! * The bins that a binning resource makes itself take nothing before they are used. RMM takes 128 blocks for each at
//!   once.

mod binning;
mod fixed_size;
mod homes;
mod sizes;

pub use binning::{Binning, BinningOptions, MAX_BINS};
pub(crate) use fixed_size::rename;
pub use fixed_size::{FixedSize, FixedSizeOptions};
