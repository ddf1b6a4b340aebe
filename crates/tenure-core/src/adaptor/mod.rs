//! Adaptors: resources that stand in front of another one and count, refuse, list, ask or hint.
//!
//! An adaptor holds an anchor on its upstream and calls its trait; the request goes down as it came, with the id of the
//! resource that the caller named. So the layer at the bottom that books the block also knows whose it is, and a wrong
//! free comes back from there as an error before anything here has changed. No adaptor needs a map of blocks for that;
//! [`Tracking`] keeps one because its list is what it is for.

pub mod aligned;
pub mod failure;
pub mod limiting;
pub mod logging;
pub(crate) mod outstanding;
pub mod prefetch;
pub mod statistics;
pub(crate) mod tally;
pub mod thread_safe;
pub mod tracking;

pub use aligned::Aligned;
pub use failure::{FailureCallback, OnFailure};
pub use limiting::Limiting;
pub use logging::Logging;
pub use prefetch::Prefetch;
pub use statistics::Statistics;
pub use tally::{Counter, Counters};
pub use thread_safe::ThreadSafe;
pub use tracking::{Tracked, Tracking};

/// What an adaptor with a field `upstream` answers as its upstream does.
macro_rules! pass_on {
    () => {
        fn device(&self) -> Option<i32> {
            self.upstream.body().device()
        }

        fn properties(&self) -> crate::resource::Properties {
            self.upstream.body().properties()
        }

        fn find(&self, ptr: u64) -> Option<crate::resource::Block> {
            self.upstream.body().find(ptr)
        }

        fn trim(&self, keep_bytes: usize) -> Result<usize> {
            self.upstream.body().trim(keep_bytes)
        }

        fn upstream(&self) -> Option<&Resource> {
            Some(&self.upstream)
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    };
}
pub(crate) use pass_on;
