//! What the plain leaves have in common: the order of events around one call that makes memory and one that frees it.
//!
//! ```text
//!  allocate   stream not capturing? -> device of the stream -> Source::make -> aligned? -> book
//!  free       agrees with the book? -> stream not capturing? -> wait -> out of the book -> Source::free
//!                                                                              failed: back into the book
//! ```
//!
//! # Who waits
//! A plain free is not ordered with streams, so the block must be idle before it. A [`Source`] whose own call waits for
//! the whole device ([`FreeWaits::Device`]) needs nothing more, except for a stream of *another* device. For the others
//! the home stream is waited for; where it cannot be asked any more (a raw value out of a buffer's memory), or where
//! some other stream that used the block cannot ([`Request::UNPROVEN`]), the device is.
//!
//! The book is compared before the wait and again after it: of two threads that free the same block, the second is
//! told so, however long the first waited.
//!
//! Unsafe here: the calls of [`Source::free`], which the book makes right.

use std::any::Any;

use tenure_driver::DriverError;

use crate::device;
use crate::error::{Error, Result};
use crate::low_memory::Room;
use crate::resource::book::{Book, Booked};
use crate::resource::{Block, Info, Live, MemoryResource, Properties, Request};
use crate::stream::StreamRef;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What a free of a source waits for by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeWaits {
    /// Everything on the device of the block.
    Device,
    /// Nothing.
    Nothing,
}

/// Two calls that make and free memory.
///
/// They run with the block's device current (where there is one) and the thread's capture mode relaxed.
pub trait Source: Default + Send + Sync + 'static {
    /// The kind of the resource.
    const KIND: &'static str;
    /// What [`free`](Self::free) waits for.
    const FREE_WAITS: FreeWaits;
    /// True for memory of the host: it lies on no device.
    const OF_HOST: bool;
    /// False for memory that is to be had where no device is.
    const NEEDS_DEVICE: bool;

    /// Makes `bytes` bytes, aligned to `align` if the source can say so to its maker.
    ///
    /// # Errors
    /// [`MakeError`].
    fn make(&self, bytes: usize, align: usize) -> Result<u64, MakeError>;

    /// Gives back what [`make`](Self::make) returned.
    ///
    /// # Safety
    /// `base` came from `make` of this source and has not been given back since; nothing uses its memory any more.
    ///
    /// # Errors
    /// What the driver says: then the memory is still there.
    unsafe fn free(&self, base: u64) -> Result<()>;

    /// What the memory can do.
    fn properties(&self) -> Properties;
}

/// Why a source made nothing.
#[derive(Debug)]
pub enum MakeError {
    /// There is no memory.
    OutOfMemory,
    /// Anything else.
    Other(Error),
}

impl From<DriverError> for MakeError {
    fn from(e: DriverError) -> Self {
        if e.is_out_of_memory() { Self::OutOfMemory } else { Self::Other(Error::Device(e)) }
    }
}

impl From<Error> for MakeError {
    fn from(e: Error) -> Self {
        match e {
            Error::Device(e) => e.into(),
            Error::OutOfMemory(_) => Self::OutOfMemory,
            other => Self::Other(other),
        }
    }
}

/// A leaf over a [`Source`].
#[derive(Default)]
pub struct Plain<S> {
    source: S,
    book: Book,
    /// Bytes that a pool above took from the device by itself (virtual ranges), to be shown as reserved here.
    pages: AtomicU64,
    peak_pages: AtomicU64,
    /// Blocks that were not aligned enough and whose free failed.
    strays: Mutex<Vec<Stray>>,
}

/// A block that nobody has and that the driver did not take back.
#[derive(Clone, Copy)]
struct Stray {
    home: i32,
    base: u64,
    bytes: usize,
}

impl<S: Source> Plain<S> {
    /// Shows `bytes` more as reserved: a pool that stands on this resource took them from the device in ranges of its
    /// own, so that they pass by the book.
    pub fn note_pages_taken(&self, bytes: u64) {
        let now = self.pages.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak_pages.fetch_max(now, Ordering::Relaxed);
    }

    /// Takes back what [`note_pages_taken`](Self::note_pages_taken) showed. Never goes below zero.
    pub fn note_pages_given(&self, bytes: u64) {
        let _ = self.pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(now.saturating_sub(bytes)));
    }

    /// Makes a block, with room in front of it where its maker does not align enough. Returns the address to hand out
    /// and the one its maker knows.
    fn make_aligned(&self, request: &Request, home: i32) -> Result<(u64, u64), MakeError> {
        let align = request.align as u64;
        let base = self.source.make(request.bytes, request.align)?;
        if base.is_multiple_of(align) {
            return Ok((base, base));
        }
        // SAFETY: made above, and nobody has seen it.
        if unsafe { self.source.free(base) }.is_err() {
            self.strays.lock().push(Stray { home, base, bytes: request.bytes });
        }
        let room = request.bytes.checked_add(request.align).ok_or(MakeError::OutOfMemory)?;
        let base = self.source.make(room, request.align)?;
        Ok((base.next_multiple_of(align), base))
    }

    /// Tries again to give back what could not be given back before. Returns the bytes that went.
    fn free_strays(&self) -> Result<usize> {
        let mut freed = 0;
        loop {
            // One at a time, so that the lock is not held while the driver is called.
            let Some(stray) = self.strays.lock().pop() else { return Ok(freed) };
            // SAFETY: nobody has it: it was taken out of the list above.
            let free = || unsafe { self.source.free(stray.base) };
            let given = if S::NEEDS_DEVICE { device::on(stray.home, free) } else { free() };
            if let Err(e) = device::settled(given) {
                self.strays.lock().push(stray);
                return Err(e);
            }
            freed += stray.bytes;
        }
    }

    fn out_of_memory(&self, request: &Request, device: i32) -> Error {
        device::out_of_memory(request, S::KIND, &self.book.info(), if S::OF_HOST { -1 } else { device })
    }

    fn book_in(&self, ptr: u64, booked: Booked) {
        if let Some(stale) = self.book.insert(ptr, booked) {
            log::warn!(
                "tenure: {} block {ptr:#x} ({} bytes) was freed behind tenure's back, since the driver hands its \
                 address out again; free it through the resource that made it",
                S::KIND,
                stale.bytes
            );
        }
    }

    /// Waits until nothing on a device uses the block any more.
    fn wait(&self, booked: &Booked, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        let live = stream.is_live();
        if S::FREE_WAITS == FreeWaits::Device {
            // The free will wait for the block's own device.
            return match device::home_of(stream, booked.home)? {
                Some(home) if home != booked.device => device::wait_stream_on(stream, home),
                _ => Ok(()),
            };
        }
        if booked.home < 0 && stream.object.is_none() && (stream.raw.is_special() || !live) {
            // No device was there when the block was made, and none is named now.
            return Ok(());
        }
        if live && request.flags & Request::UNPROVEN == 0 {
            return match device::home_of(stream, booked.home)? {
                Some(home) => device::wait_stream_on(stream, home),
                None => Ok(()),
            };
        }
        if live
            && let Some(home) = device::home_of(stream, booked.home)?
            && home != booked.home
        {
            device::wait_stream_on(stream, home)?;
        }
        if booked.home < 0 { Ok(()) } else { device::prove(booked.home) }
    }

    fn give_back(&self, ptr: u64, request: &Request) -> Result<()> {
        let booked = self.book.take(ptr, request).map_err(Error::Misuse)?;
        // SAFETY: the book had this block and has given it to this call alone; callers have waited for its work.
        let free = || unsafe { self.source.free(booked.base) };
        let freed = if S::NEEDS_DEVICE { device::on(booked.home, free) } else { free() };
        // A device that is lost for good has lost its memory as a whole: the block is as gone as it can be.
        match device::settled(freed) {
            Err(e) => {
                self.book.put_back(ptr, booked);
                Err(e)
            }
            Ok(()) => Ok(()),
        }
    }
}

impl<S: Source> MemoryResource for Plain<S> {
    fn kind(&self) -> &'static str {
        S::KIND
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        let home = match device::home_or_current(stream) {
            Ok(home) => home,
            // Host memory is to be had without a device. No work can use it then, so that nothing is waited for.
            Err(Error::NoDevice(_)) if !S::NEEDS_DEVICE && stream.object.is_none() => -1,
            Err(e) => return Err(e),
        };
        let attempt = || {
            if home < 0 {
                return self.make_aligned(request, home);
            }
            let make = || Ok(self.make_aligned(request, home));
            device::on_stream(stream, home, S::KIND, make).map_err(MakeError::from).and_then(|made| made)
        };
        let mut room = Room::new(self, request, if S::OF_HOST { -1 } else { home });
        let mut made = attempt();
        while matches!(made, Err(MakeError::OutOfMemory)) && room.make() {
            made = attempt();
        }
        match made {
            Ok((ptr, base)) => {
                self.book_in(ptr, Booked::new(request, if S::OF_HOST { -1 } else { home }, home, base).on(stream));
                Ok(ptr)
            }
            Err(MakeError::OutOfMemory) => Err(room.explain(self.out_of_memory(request, home))),
            Err(MakeError::Other(e)) => Err(e),
        }
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        if tenure_driver::process::unusable() {
            return Ok(());
        }
        let booked = self.book.check(ptr, request).map_err(Error::Misuse)?;
        if booked.home >= 0 && stream.is_live() {
            device::settled(device::refuse_capturing(stream, booked.home, S::KIND))?;
        }
        device::settled(self.wait(&booked, request, stream))?;
        self.give_back(ptr, request)
    }

    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        // Plain memory is usable everywhere at once: no stream needs a wait.
        self.allocate(request, StreamRef::raw(tenure_driver::RawStream::PER_THREAD))
    }

    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        if tenure_driver::process::unusable() {
            return Ok(());
        }
        self.give_back(ptr, request)
    }

    fn device(&self) -> Option<i32> {
        None
    }

    fn properties(&self) -> Properties {
        self.source.properties()
    }

    fn exports(&self) -> u32 {
        if self.source.properties().exportable { crate::sharing::Kinds::LEGACY.0 } else { 0 }
    }

    fn find(&self, ptr: u64) -> Option<Block> {
        self.book.find(ptr)
    }

    fn each_block(&self, see: &mut dyn FnMut(Live)) {
        self.book.each_block(see);
    }

    fn info(&self) -> Info {
        let mut info = self.book.info();
        let strays: usize = self.strays.lock().iter().map(|stray| stray.bytes).sum();
        info.reserved_bytes += self.pages.load(Ordering::Relaxed) + strays as u64;
        info.peak_reserved_bytes += self.peak_pages.load(Ordering::Relaxed);
        info
    }

    fn trim(&self, _keep_bytes: usize) -> Result<usize> {
        self.free_strays()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
