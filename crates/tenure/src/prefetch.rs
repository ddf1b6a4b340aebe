//! Telling the driver where managed memory will be needed.
//!
//! Unsafe in this file: a call through the table.

use tenure_abi::*;

use crate::api;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::{Result, check};
use crate::stream::StreamRef;

impl DeviceBuffer {
    /// Moves the memory, where it is managed, to `device` (`None`: to the host) in the order of `stream`. A hint: other
    /// memory stays where it is, and so does all memory where the device cannot be told.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a device that is not there.
    pub fn prefetch<'a>(&self, device: Option<&Device>, stream: impl Into<StreamRef<'a>>) -> Result<()> {
        let (api, stream) = (api()?, stream.into());
        let device = device.map_or(TENURE_PREFETCH_HOST, Device::ordinal);
        // SAFETY: the memory and the stream are alive during the call; the record below keeps the memory until the move is done.
        check(api, unsafe { (api.prefetch)(self.ptr(), self.len(), device, stream.raw) })?;
        self.record_stream(stream)
    }
}
