//! What rows are made of: pools, streams in their kinds, random sizes that are the same in each run, and blocks with an
//! owner.
//!
//! Unsafe in this file: calls through the table, and frees of blocks that nobody uses: no row queues work.

use std::ffi::c_void;

use tenure::abi::{tenure_api, tenure_stream};
use tenure::{DEFAULT_ALIGNMENT, Device, DeviceInfo, Pool, Resource, Stream, check};

/// What all rows share.
#[derive(Debug)]
pub(crate) struct Bed {
    pub(crate) device: Device,
    pub(crate) info: DeviceInfo,
    /// Bytes of device memory that rows may use.
    pub(crate) room: u64,
}

impl Bed {
    pub(crate) fn new() -> tenure::Result<Self> {
        let device = Device::current()?;
        let info = device.info()?;
        let room = info.free_bytes / 10 * 8;
        Ok(Self { device, info, room })
    }

    /// A pool of the row's own, which grows by need.
    pub(crate) fn pool(&self) -> tenure::Result<Resource> {
        Ok(Pool::builder(&self.device).build()?.into())
    }

    /// Sizes between 256 bytes and `most`, or less where so many live blocks would not fit into the device.
    pub(crate) fn sizes(&self, live: usize, most: usize) -> Sizes {
        // A small device is shared with others, or simulated in the memory of the host.
        let room = if self.room < 64 << 30 { self.room / 4 } else { self.room };
        let mut most = most;
        while most > 1024 && Sizes::new(256, most).mean() * live as f64 * 1.2 > room as f64 {
            most /= 2;
        }
        Sizes::new(256, most)
    }
}

/// What kind of stream a call carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A stream that tenure made.
    Own,
    /// Somebody else's, as an object that knows its owner.
    Registered,
    /// A driver's value and nothing else.
    Raw,
    /// The legacy default stream.
    Default,
    /// The default stream of the calling thread.
    PerThread,
}

/// A stream of one of the kinds.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    kind: Kind,
    stream: Stream,
}

impl Given {
    pub(crate) fn new(kind: Kind) -> tenure::Result<Self> {
        let stream = match kind {
            Kind::Own | Kind::Raw => Stream::create()?,
            Kind::Registered => {
                let owner = Stream::create()?;
                // SAFETY: the value is the owner's, which the new object keeps.
                unsafe { Stream::wrap(owner.raw(), None, owner)? }
            }
            Kind::Default => Stream::legacy_default(),
            Kind::PerThread => Stream::per_thread_default(),
        };
        Ok(Self { kind, stream })
    }

    pub(crate) fn many(kind: Kind, count: usize) -> tenure::Result<Vec<Self>> {
        (0..count).map(|_| Self::new(kind)).collect()
    }

    /// As the crate takes it.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// As the C ABI takes it; good while this lives.
    pub(crate) fn abi(&self) -> tenure_stream {
        if self.kind == Kind::Raw {
            return tenure_stream { raw: self.stream.raw(), object: 0 };
        }
        let handle = self.stream.clone().into_handle();
        // The reference goes back; the object is alive while `self.stream` is.
        // SAFETY: it is the reference that was made in the line before.
        drop(unsafe { Stream::from_handle(handle) });
        handle
    }
}

/// The C ABI as a row calls it.
#[derive(Clone, Copy)]
pub(crate) struct Calls {
    api: &'static tenure_api,
    resource: u64,
}

impl Calls {
    /// `resource` must outlive the result.
    pub(crate) fn new(resource: &Resource) -> tenure::Result<Self> {
        Ok(Self { api: tenure::api()?, resource: resource.as_raw() })
    }

    #[inline]
    pub(crate) fn allocate(self, bytes: usize, stream: tenure_stream) -> tenure::Result<*mut c_void> {
        let mut ptr = std::ptr::null_mut();
        // SAFETY: the pointer is valid for writing; the stream is alive, says whoever made it.
        check(self.api, unsafe { (self.api.allocate)(self.resource, bytes, DEFAULT_ALIGNMENT, stream, &mut ptr) })?;
        Ok(ptr)
    }

    #[inline]
    pub(crate) fn free(self, ptr: *mut c_void, bytes: usize, stream: tenure_stream) -> tenure::Result<()> {
        // SAFETY: nobody uses the block; the library checks the rest.
        check(self.api, unsafe { (self.api.deallocate)(self.resource, ptr, bytes, DEFAULT_ALIGNMENT, stream) })
    }

    /// A block for each size, by one call. `ptrs` is as long as `sizes`.
    pub(crate) fn allocate_many(
        self,
        sizes: &[usize],
        stream: tenure_stream,
        ptrs: &mut [*mut c_void],
    ) -> tenure::Result<()> {
        let (api, count) = (self.api, sizes.len().min(ptrs.len()));
        // SAFETY: `count` sizes are read and as many pointers written; otherwise as in `allocate`.
        check(api, unsafe {
            (api.allocate_many)(self.resource, count, sizes.as_ptr(), DEFAULT_ALIGNMENT, stream, ptrs.as_mut_ptr())
        })
    }

    /// Frees them, by one call.
    pub(crate) fn free_many(self, ptrs: &[*mut c_void], sizes: &[usize], stream: tenure_stream) -> tenure::Result<()> {
        let (api, count) = (self.api, sizes.len().min(ptrs.len()));
        let nowhere = std::ptr::null_mut();
        // SAFETY: `count` pointers and sizes are read; otherwise as in `free`.
        check(api, unsafe {
            (api.deallocate_many)(
                self.resource,
                count,
                ptrs.as_ptr(),
                sizes.as_ptr(),
                DEFAULT_ALIGNMENT,
                stream,
                nowhere,
            )
        })
    }

    /// [`allocate`](Self::allocate) by the entry that never waits, and where that cannot, by the plain one: as a client
    /// does that holds an interpreter's lock.
    #[inline]
    pub(crate) fn try_allocate(self, bytes: usize, stream: tenure_stream) -> tenure::Result<*mut c_void> {
        let mut ptr = std::ptr::null_mut();
        // SAFETY: as in `allocate`.
        if unsafe { (self.api.try_allocate)(self.resource, bytes, DEFAULT_ALIGNMENT, stream, &mut ptr) } == 0 {
            return Ok(ptr);
        }
        self.allocate(bytes, stream)
    }

    /// [`free`](Self::free), likewise.
    #[inline]
    pub(crate) fn try_free(self, ptr: *mut c_void, bytes: usize, stream: tenure_stream) -> tenure::Result<()> {
        // SAFETY: as in `free`.
        if unsafe { (self.api.try_deallocate)(self.resource, ptr, bytes, DEFAULT_ALIGNMENT, stream) } == 0 {
            return Ok(());
        }
        self.free(ptr, bytes, stream)
    }
}

/// A sequence of numbers that is the same in each run (xorshift64).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence(u64);

impl Sequence {
    /// Another sequence for each `seed`.
    pub(crate) fn new(seed: usize) -> Self {
        let mut sequence = Self(0x9e37_79b9_7f4a_7c15 ^ (seed as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9));
        sequence.next();
        sequence
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number from 0 to `below` - 1.
    pub(crate) fn below(&mut self, below: usize) -> usize {
        ((u128::from(self.next()) * below as u128) >> 64) as usize
    }
}

/// Sizes whose logarithm is evenly spread: small blocks are common, large ones exist.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) least: usize,
    pub(crate) most: usize,
}

impl Sizes {
    /// Both are powers of two.
    pub(crate) fn new(least: usize, most: usize) -> Self {
        Self { least, most }
    }

    /// About: within a doubling, sizes are evenly spread.
    pub(crate) fn mean(self) -> f64 {
        let doublings = (self.most as f64 / self.least as f64).log2().max(1.0);
        1.5 * (self.most - self.least) as f64 / doublings
    }

    /// The next size. No division, no floating point: it is part of what is timed.
    #[inline]
    pub(crate) fn next(self, sequence: &mut Sequence) -> usize {
        let doublings = (self.most / self.least).trailing_zeros().max(1) as usize;
        let base = self.least << sequence.below(doublings);
        base + sequence.below(base)
    }
}

/// Blocks of a pool, which are freed at the end. Through the C ABI.
pub(crate) struct Blocks {
    calls: Calls,
    stream: tenure_stream,
    blocks: Vec<(*mut c_void, usize)>,
}

impl Blocks {
    /// `live` blocks. Pool and stream must outlive them.
    pub(crate) fn new(
        pool: &Resource,
        stream: tenure_stream,
        live: usize,
        size: impl FnMut() -> usize,
    ) -> tenure::Result<Self> {
        Self::within(Vec::with_capacity(live), pool, stream, live, size)
    }

    /// [`new`](Self::new) in an empty list that is there already.
    pub(crate) fn within(
        list: Vec<(*mut c_void, usize)>,
        pool: &Resource,
        stream: tenure_stream,
        live: usize,
        mut size: impl FnMut() -> usize,
    ) -> tenure::Result<Self> {
        let mut all = Self { calls: Calls::new(pool)?, stream, blocks: list };
        for _ in 0..live {
            let bytes = size();
            all.blocks.push((all.calls.allocate(bytes, stream)?, bytes));
        }
        Ok(all)
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Frees the block in a slot and puts another one there.
    #[inline]
    pub(crate) fn replace(&mut self, slot: usize, bytes: usize) -> tenure::Result<()> {
        let (ptr, old) = std::mem::replace(&mut self.blocks[slot], (std::ptr::null_mut(), 0));
        self.calls.free(ptr, old, self.stream)?;
        self.blocks[slot] = (self.calls.allocate(bytes, self.stream)?, bytes);
        Ok(())
    }

    /// Frees every second block, and keeps the others.
    pub(crate) fn thin(&mut self) -> tenure::Result<()> {
        let mut free = false;
        let (calls, stream) = (self.calls, self.stream);
        let mut outcome = Ok(());
        self.blocks.retain(|&(ptr, bytes)| {
            free = !free;
            if free && outcome.is_ok() {
                outcome = calls.free(ptr, bytes, stream);
                return outcome.is_err();
            }
            true
        });
        outcome
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for &(ptr, bytes) in self.blocks.iter().filter(|(ptr, _)| !ptr.is_null()) {
            // A failure was reported by the operation before; there is nothing to add.
            let _ = self.calls.free(ptr, bytes, self.stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_stay_in_their_range_and_near_their_mean() {
        let (sizes, mut sequence) = (Sizes::new(256, 4 << 20), Sequence::new(3));
        let drawn: Vec<_> = (0..100_000).map(|_| sizes.next(&mut sequence)).collect();
        assert!(drawn.iter().all(|&size| (256..4 << 20).contains(&size)));
        let mean = drawn.iter().sum::<usize>() as f64 / drawn.len() as f64;
        assert!((mean / sizes.mean() - 1.0).abs() < 0.05, "{mean} {}", sizes.mean());
    }

    #[test]
    fn a_sequence_is_the_same_each_time_and_another_for_each_seed() {
        let draw = |seed| (0..4).map(|_| Sequence::new(seed).next()).collect::<Vec<_>>();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let mut sequence = Sequence::new(0);
        assert!((0..1000).all(|_| sequence.below(3) < 3));
    }
}
