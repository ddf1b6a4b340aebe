//! GPU memory management with owned buffers: the Rust face of tenure.

pub use tenure_abi as abi;

mod callbacks;
mod error;
#[cfg(feature = "static")]
mod linked;
mod load;

pub use error::{
    BoxError, Callback, Cuda, Error, LoadError, LoadFailure, MisuseKind, OutOfMemory, Ownership, Result, check,
};
pub use load::api;
