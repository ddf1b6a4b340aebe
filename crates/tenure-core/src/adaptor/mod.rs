//! Adaptors: resources that stand in front of another one and count or refuse.
//!
//! An adaptor holds an anchor on its upstream and calls its trait; the request goes down as it came, with the id of the
//! resource that the caller named. So the layer at the bottom that books the block also knows whose it is, and a wrong
//! free comes back from there as an error before anything here has changed. No adaptor keeps a map of blocks.

pub mod limiting;
pub mod logging;
pub mod scopes;
pub mod statistics;
pub(crate) mod tally;

pub use limiting::Limiting;
pub use logging::Logging;
pub use scopes::Scope;
pub use statistics::Statistics;
pub use tally::{Counter, Counters};
