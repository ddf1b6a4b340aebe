//! Buffers that other processes see, and buffers of what those share.

use super::{Buffer, Source};
use crate::error::Result;
use crate::resource::{Light, Request};
use crate::sharing::ToShare;
use crate::stream::StreamHold;

impl Buffer {
    /// What sharing needs to know, taken without a call of the driver.
    pub fn to_share(&self) -> ToShare {
        ToShare {
            ptr: self.ptr,
            bytes: self.bytes,
            device: self.device,
            default: self.default,
            resource: match &self.source {
                Source::Resource(light) => Some(light.light()),
                Source::Foreign(_) => None,
            },
            streams: std::iter::once(&self.home).chain(&self.used).cloned().collect(),
        }
    }

    /// A buffer of a range that an imported resource lends.
    ///
    /// # Errors
    /// Those of the range; exit and fork.
    pub(crate) fn of_imported(
        bytes: usize,
        home: StreamHold,
        resource: Light,
        lend: impl FnOnce(&Request) -> Result<u64>,
    ) -> Result<Self> {
        Self::create_by(bytes, 1, home, resource, |named, request, stream| {
            crate::observe::allocate(named, request, Some(stream), || lend(request))
        })
    }
}
