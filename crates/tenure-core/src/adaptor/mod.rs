//! Adaptors: resources that stand in front of another one and count, refuse, list, ask or hint.
//!
//! An adaptor holds an anchor on its upstream and calls its trait; the request goes down as it came, with the id of the
//! resource that the caller named. So the layer at the bottom that books the block also knows whose it is, and a wrong
//! free comes back from there as an error before anything here has changed. No adaptor needs a map of blocks for that;
//! [`Tracking`] keeps one because its list is what it is for.
//!
//! # The short way
//! What a thread has at hand is served without a lock that others use, and an adaptor lets that through with two methods of
//! the trait. Without them (their default is "not at hand") each call takes the whole way, some 100 ns more:
//!
//! ```text
//!  fn allocate_at_hand(&self, request: &Request, stream: StreamRef<'_>, here: &Local) -> Option<Result<u64, Box<Error>>> {
//!      let answer = self.upstream.body().allocate_at_hand(request, stream, here)?;     // None: nobody did anything
//!      if let Ok(ptr) = &answer { ..note it.. }
//!      Some(answer)
//!  }
//!  fn deallocate_at_hand(&self, ptr: u64, request: &Request, stream: StreamRef<'_>, here: &Local) -> bool {
//!      let done = self.upstream.body().deallocate_at_hand(ptr, request, stream, here); // false: nobody did anything
//!      if done { ..note it.. }
//!      done
//!  }
//! ```
//!
//! * `None` and `false` mean that *nothing changed*: the caller then makes the plain call, which does everything from the
//!   start and is the one that refuses and explains. So a layer refuses here by saying `None`, and what it did before it
//!   asked its upstream (a limit reserves first) it undoes. An error (only the driver's, of a question about the stream) is
//!   an answer: no plain call follows, nothing is counted.
//! * The request goes down unchanged but for what the layer's own `allocate` changes: the owner's id is how the bottom knows
//!   a wrong free, also on this way.
//! * No lock is held while the upstream is asked, which may call the driver. Locks of the layer's own are held for some
//!   nanoseconds. User code is not called: a layer that must (a hook, a log that writes) leaves these methods out, or looks
//!   first whether there is something to call and says `None` then.
//! * What a layer counts it counts *after* a free that was done. Another thread may have the address by then: what is kept
//!   by address must leave before the free (see `bins/binning.rs`), or be overwritten by its next owner (`bins/fixed_size.rs`).

pub mod aligned;
pub mod failure;
pub mod limiting;
pub mod logging;
pub(crate) mod outstanding;
pub mod prefetch;
pub mod scopes;
pub mod statistics;
pub(crate) mod tally;
pub mod thread_safe;
pub mod tracking;

pub use aligned::Aligned;
pub use failure::{FailureCallback, OnFailure};
pub use limiting::Limiting;
pub use logging::Logging;
pub use prefetch::Prefetch;
pub use scopes::Scope;
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
