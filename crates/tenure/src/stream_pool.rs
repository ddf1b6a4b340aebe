//! Streams that are given out in turn.
//!
//! Unsafe in this file: calls through the table.

use std::fmt;

use tenure_abi::*;

use crate::api;
use crate::device::Device;
use crate::error::{Result, check};
use crate::stream::Stream;

/// A set of streams of one device, given out in turn: for programs that want a stream for each of many small tasks.
///
/// Whoever gets a stream shares it with whoever gets it a round later. A stream that something names outlives the pool.
/// Any number of threads may ask at once; asking makes no driver call.
///
/// # Examples
/// ```
/// use tenure::{DeviceBuffer, StreamPool};
///
/// let pool = StreamPool::new(4)?;
/// let buffers: Vec<_> = (0..8).map(|_| DeviceBuffer::new(1024, &pool.next()?)).collect::<Result<_, _>>()?;
/// assert_eq!(pool.next()?.raw(), pool.at(8)?.raw());
/// # Ok::<(), tenure::Error>(())
/// ```
pub struct StreamPool {
    api: &'static tenure_api,
    pool: tenure_stream_pool,
}

impl StreamPool {
    /// Makes `streams` streams on the current device, which do not synchronise with the legacy default stream.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for none; what the driver says;
    /// [`Error::Load`](crate::Error::Load) without a library.
    pub fn new(streams: usize) -> Result<Self> {
        Self::make(-1, streams, true)
    }

    /// The same on `device`. Streams that are not `non_blocking` wait for the legacy default stream and are waited for by it.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn new_on(device: &Device, streams: usize, non_blocking: bool) -> Result<Self> {
        Self::make(device.ordinal(), streams, non_blocking)
    }

    fn make(device: i32, streams: usize, non_blocking: bool) -> Result<Self> {
        let api = api()?;
        let mut pool = 0;
        // SAFETY: the pointer is valid for writing.
        check(api, unsafe { (api.stream_pool_create)(device, streams, u32::from(non_blocking), &mut pool) })?;
        Ok(Self { api, pool })
    }

    /// How many streams there are.
    pub fn size(&self) -> usize {
        let mut size = 0;
        // SAFETY: the pointer is valid for writing. A pool that is held always has a size.
        unsafe { (self.api.stream_pool_size)(self.pool, &mut size) };
        size
    }

    /// The stream whose turn it is.
    ///
    /// # Errors
    /// In a forked child there are no streams.
    pub fn next(&self) -> Result<Stream> {
        // SAFETY: the pointer is valid for writing.
        self.given(|out| unsafe { (self.api.stream_pool_next)(self.pool, out) })
    }

    /// The stream with this number; numbers beyond the last one go round.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn at(&self, number: usize) -> Result<Stream> {
        // SAFETY: the pointer is valid for writing.
        self.given(|out| unsafe { (self.api.stream_pool_at)(self.pool, number, out) })
    }

    fn given(&self, ask: impl FnOnce(*mut tenure_stream) -> tenure_status) -> Result<Stream> {
        let mut out = tenure_stream { raw: std::ptr::null_mut(), object: 0 };
        check(self.api, ask(&mut out))?;
        // SAFETY: the reference in `out` is ours now.
        Ok(unsafe { Stream::from_handle(out) })
    }
}

impl fmt::Debug for StreamPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamPool({:#x})", self.pool)
    }
}

impl Drop for StreamPool {
    fn drop(&mut self) {
        // SAFETY: the pool is given back once.
        unsafe { (self.api.stream_pool_release)(self.pool) };
    }
}
