//! The other pools of the device: before a pool fails they give back what is idle, and so do other libraries.
//!
//! ```text
//!   pool A, about to fail                 pool B, same device
//!     holds no lock and no turn    --->     yield_up: takes its turn if nobody has it, gives back idle pieces
//! ```
//!
//! Pools are found through the registry of resources: what nobody holds any more is not found, and a pool that is found is
//! held while it gives. Two pools that fail at once ask each other and never wait for each other.

use super::ladder::{Climb, Step};
use super::{Pages, Pool};
use crate::error::Result;
use crate::resource::leaf::AsyncPool;
use crate::resource::{MemoryResource, registry};

/// Makes the pools of `device`, `except` one, give back idle memory until `want` bytes went; says how many did. Takes no
/// lock, and no turn that somebody has.
pub(crate) fn trim(device: i32, want: u64, except: Option<&dyn MemoryResource>) -> u64 {
    let mut went = 0u64;
    registry::for_each(|resource| {
        let is_it = |except: &dyn MemoryResource| std::ptr::addr_eq(except, resource.body());
        if went >= want || resource.body().device() != Some(device) || except.is_some_and(is_it) {
            return;
        }
        let answer = if let Some(pool) = resource.downcast::<Pool>() {
            pool.yield_up(want - went)
        } else if let Some(pool) = resource.downcast::<AsyncPool>() {
            pool.trim(0).map(|bytes| bytes as u64)
        } else {
            return;
        };
        match answer {
            Ok(bytes) => went += bytes,
            // Not the asker's failure, and told to whoever asks that pool for memory next.
            Err(e) => log::debug!("tenure: a pool could not give back idle memory for another: {e}"),
        }
    });
    went
}

impl Pool {
    /// Bytes that a growth for the request would take, if the limit leaves room for it.
    pub(super) fn wanted(&self, climb: &Climb<'_>) -> Option<u64> {
        let mut state = self.lock();
        let (tags, _) = Self::stamp(&mut state, climb.asker());
        let zone = self.growth_zone(climb.request);
        self.plan(&state, climb.request, zone, &tags, false).map(|plan| plan.bytes)
    }

    /// Makes sibling pools give back what is idle.
    pub(super) fn ask_siblings(&self, climb: &mut Climb<'_>) -> Result<Step> {
        let Some(want) = self.wanted(climb) else { return Ok(Step::Nothing("the pool's own limit is reached")) };
        if !matches!(self.pages, Pages::Virtual(_)) && self.upstream.body().kind() != "cuda" {
            // Memory of the host, say: what a sibling gives back would not help.
            return Ok(Step::Nothing("the upstream is not the device"));
        }
        if !climb.may_ask() || trim(self.device, want, Some(self)) == 0 {
            return Ok(Step::Nothing("nothing was idle there"));
        }
        Ok(Step::Again)
    }

    /// Asks the libraries that have registered for it to give memory back.
    pub(super) fn ask_hooks(&self, climb: &mut Climb<'_>) -> Result<Step> {
        let want = self.wanted(climb).unwrap_or(climb.request.bytes as u64);
        if !climb.may_ask() || crate::low_memory::ask(self.device, want) == 0 {
            return Ok(Step::Nothing("nothing came of it"));
        }
        // What they freed may lie with streams that have completed meanwhile.
        climb.begin_again();
        Ok(Step::Again)
    }
}
