//! The C ABI of tenure: its types and its one table of functions.
//!
//! Everything that crosses from one language to another crosses here. The rules of the border:
//!
//! * [`tenure_api`] is append-only: an old client meets a newer table and finds what it knows at the same place.
//!   Structures that may grow start with their `size`.
//! * Handles are opaque 64-bit values. Nobody dereferences them; null, foreign and dead ones are errors.
//! * Each function returns a [`tenure_status`]. What went wrong is kept per thread and read with
//!   `tenure_error_get`, until the next failing call on that thread.
//! * No function unwinds, and no function but those named `_try_` promises not to wait.
//!
//! The functions are listed once, in [`functions`](mod@functions), with the documentation that becomes the C header.

#![no_std]
#![allow(non_camel_case_types)]

mod functions;
mod types;

pub use functions::*;
pub use types::*;
