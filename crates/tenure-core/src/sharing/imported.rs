//! The resource of memory that another process shares: one for each mapping.
//!
//! It makes nothing: its blocks are ranges of the mapping, lent to one buffer after the other, and the same range to several
//! at once. The mapping goes with the resource, and that with the last buffer.
//!
//! **Who waits**: unmapping is not ordered with streams. So a free waits for the home stream, as that of plain memory does,
//! or for the device where the stream cannot be asked any more.

use std::any::Any;

use rustc_hash::FxHashMap;

use super::open::Mapping;
use crate::device;
use crate::error::{Error, Misuse, MisuseKind, Result};
use crate::resource::{Block, Info, Live, MemoryResource, Properties, Request};
use crate::stream::StreamRef;
use crate::sync::Mutex;

/// One range that is lent, so many times.
#[derive(Clone, Copy)]
struct Lent {
    count: usize,
    owner: u64,
}

#[derive(Default)]
struct Book {
    /// By address and size.
    lent: FxHashMap<(u64, usize), Lent>,
    live_bytes: u64,
    live_count: u64,
    peak_live_bytes: u64,
}

/// See the module.
pub struct Imported {
    mapping: Mapping,
    pid: u32,
    book: Mutex<Book>,
}

impl Imported {
    pub(super) fn new(mapping: Mapping, pid: u32) -> Self {
        Self { mapping, pid, book: Mutex::default() }
    }

    /// The process that made the memory.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Lends a range to a buffer.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it does not lie in the mapping.
    pub(super) fn lend(&self, offset: u64, request: &Request) -> Result<u64> {
        let end = offset.checked_add(request.bytes as u64).filter(|end| *end <= self.mapping.bytes());
        if end.is_none() {
            return Err(Error::invalid(format!(
                "the handle names {} bytes at {offset} of a piece of memory that has {}: pass it as it was made",
                request.bytes,
                self.mapping.bytes()
            )));
        }
        let ptr = self.mapping.base() + offset;
        let mut book = self.book.lock();
        book.lent.entry((ptr, request.bytes)).or_insert(Lent { count: 0, owner: request.owner }).count += 1;
        book.live_count += 1;
        book.live_bytes += request.bytes as u64;
        book.peak_live_bytes = book.peak_live_bytes.max(book.live_bytes);
        Ok(ptr)
    }

    fn check(&self, ptr: u64, request: &Request) -> Result<()> {
        if self.book.lock().lent.contains_key(&(ptr, request.bytes)) { Ok(()) } else { Err(self.misuse(ptr, request)) }
    }

    fn misuse(&self, ptr: u64, request: &Request) -> Error {
        let block = self.find(ptr);
        let kind = match &block {
            None => MisuseKind::UnknownPointer,
            Some(block) if block.ptr != ptr => MisuseKind::InteriorPointer,
            Some(_) => MisuseKind::WrongSize,
        };
        Error::Misuse(Misuse {
            kind,
            ptr,
            bytes: request.bytes as u64,
            asked: request.owner,
            owner: block.map_or(0, |block| block.owner),
            owner_bytes: block.map_or(0, |block| block.bytes as u64),
        })
    }

    fn take_back(&self, ptr: u64, request: &Request) -> Result<()> {
        let mut book = self.book.lock();
        let key = (ptr, request.bytes);
        let Some(lent) = book.lent.get_mut(&key) else {
            drop(book);
            return Err(self.misuse(ptr, request));
        };
        lent.count -= 1;
        if lent.count == 0 {
            book.lent.remove(&key);
        }
        book.live_count -= 1;
        book.live_bytes -= request.bytes as u64;
        Ok(())
    }
}

impl MemoryResource for Imported {
    fn kind(&self) -> &'static str {
        "imported"
    }

    fn allocate(&self, _request: &Request, _stream: StreamRef<'_>) -> Result<u64> {
        Err(Error::Unsupported(format!(
            "nothing is allocated from memory that process {} shares: name another resource, or import the handle again for \
             one more buffer of the same memory",
            self.pid
        )))
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        if tenure_driver::process::unusable() {
            return Ok(());
        }
        self.check(ptr, request)?;
        let home = self.mapping.device();
        if stream.is_live() && request.flags & Request::UNPROVEN == 0 {
            let on = device::home_of(stream, home)?.unwrap_or(home);
            device::settled(device::refuse_capturing(stream, on, self.kind()))?;
            device::settled(device::wait_stream_on(stream, on))?;
        } else {
            device::settled(device::prove(home))?;
        }
        self.take_back(ptr, request)
    }

    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        if tenure_driver::process::unusable() {
            return Ok(());
        }
        self.take_back(ptr, request)
    }

    fn device(&self) -> Option<i32> {
        Some(self.mapping.device())
    }

    fn properties(&self) -> Properties {
        Properties { device_accessible: true, ..Properties::default() }
    }

    fn find(&self, ptr: u64) -> Option<Block> {
        let book = self.book.lock();
        let around = book.lent.iter().filter(|((at, bytes), _)| ptr >= *at && ptr - at < *bytes as u64);
        let ((at, bytes), lent) = around.min_by_key(|((_, bytes), _)| *bytes)?;
        Some(Block { ptr: *at, bytes: *bytes, owner: lent.owner, device: self.mapping.device() })
    }

    fn each_block(&self, see: &mut dyn FnMut(Live)) {
        let lent: Vec<((u64, usize), Lent)> = self.book.lock().lent.iter().map(|(key, lent)| (*key, *lent)).collect();
        for ((ptr, bytes), lent) in lent {
            let block = Block { ptr, bytes, owner: lent.owner, device: self.mapping.device() };
            see(Live { block, held: bytes as u64, stream: None });
        }
    }

    fn held_ranges(&self) -> Vec<(u64, u64)> {
        vec![(self.mapping.base(), self.mapping.bytes())]
    }

    /// Reserved is nothing: the memory counts where it was made.
    fn info(&self) -> Info {
        let book = self.book.lock();
        Info {
            live_bytes: book.live_bytes,
            live_count: book.live_count,
            peak_live_bytes: book.peak_live_bytes,
            ..Info::default()
        }
    }

    fn share(&self, _ptr: u64, _bytes: usize, _wanted: super::Kinds) -> Result<Option<super::Parts>> {
        Err(Error::Unsupported(format!(
            "this memory is process {}'s, and only that process can share it: pass its handle on instead",
            self.pid
        )))
    }

    fn property(&self, name: &str) -> Option<u64> {
        match name {
            "mapped_bytes" => Some(self.mapping.bytes()),
            "exporter" => Some(u64::from(self.pid)),
            _ => None,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
