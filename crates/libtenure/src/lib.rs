//! The shared library of tenure.
//!
//! Fills the table of `tenure-abi` from `tenure-core` and exports every function under its name with `tenure_` in front.
//! There is no logic here: each function turns handles into references, calls the engine, and turns the result into a
//! status and a detail.
//!
//! * [`guard`]: no panic and no error leaves without a status;
//! * [`instance`]: one engine per process;
//! * [`handles`]: opaque values for resources, buffers and streams;
//! * one file per chapter of the table.

#![allow(clippy::missing_safety_doc, reason = "the contract of each exported function is its text in tenure-abi")]

use tenure_core::sync;

mod adaptors;
mod bins;
mod buffer;
mod callback;
mod capture;
mod current;
mod device;
mod guard;
mod handles;
mod instance;
mod library;
mod logging;
mod low_memory;
mod many;
mod observe;
mod place;
mod resource;
mod scopes;
mod sharing;
mod sim;
mod slab;
mod stream_pool;
mod table;
#[cfg(test)]
mod tests;
mod tickets;

pub use instance::{tenure_get_api, tenure_get_api_error};
