//! Pieces of an upstream: taken and given back synchronously, on no user stream.
//!
//! Addresses are the upstream's choice. Each chunk gets a stretch of offsets that is congruent with its address modulo the
//! largest alignment, so that an aligned offset is an aligned address, and a gap before the next one, so that blocks of
//! two chunks never touch.
//!
//! **The upstream is not believed**: an address that is null, misaligned, wraps around or overlaps a chunk that is held is
//! refused. What it gave is given back, unless it overlaps a chunk (that would free memory in use).

use crate::error::{Error, Result};
use crate::pool::place::UNIT;
use crate::resource::{MAX_ALIGNMENT, Request, Resource};
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicU64, Ordering};

use super::Plan;

#[derive(Clone, Copy)]
struct Chunk {
    ptr: u64,
    offset: u64,
    bytes: u64,
}

/// See the module.
pub(in crate::pool) struct Chunks {
    span: u64,
    /// Whose memory it is to be, where the upstream leaves that open.
    device: i32,
    /// By offset, and by address. Written by whoever has the pool's turn only.
    tables: RwLock<(Vec<Chunk>, Vec<Chunk>)>,
    reserved: AtomicU64,
}

impl Chunks {
    pub(in crate::pool) fn new(span: u64, device: i32) -> Self {
        Self { span, device, tables: RwLock::new((Vec::new(), Vec::new())), reserved: AtomicU64::new(0) }
    }

    pub(super) fn device(&self) -> i32 {
        self.device
    }

    pub(super) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn offset_of(&self, ptr: u64) -> Option<u64> {
        let tables = self.tables.read();
        let at = tables.1.partition_point(|c| c.ptr <= ptr);
        let chunk = tables.1[..at].last()?;
        (ptr - chunk.ptr < chunk.bytes).then(|| chunk.offset + (ptr - chunk.ptr))
    }

    #[inline]
    pub(super) fn ptr_of(&self, offset: u64) -> u64 {
        let tables = self.tables.read();
        let at = tables.0.partition_point(|c| c.offset <= offset);
        tables.0[..at].last().map_or(0, |c| c.ptr + (offset - c.offset))
    }

    /// The request that takes or gives back a chunk. The ladder asks others itself, when it is their turn.
    fn request(bytes: u64, upstream: &Resource) -> Request {
        Request { bytes: bytes as usize, align: UNIT as usize, owner: upstream.id(), flags: Request::ALONE }
    }

    /// Takes a chunk of `plan.bytes` bytes and finds offsets for it.
    pub(super) fn grow(&self, plan: Plan, upstream: &Resource) -> Result<Plan> {
        let request = Self::request(plan.bytes, upstream);
        let ptr = {
            let _current = crate::device::current_for(upstream.body(), self.device)?;
            upstream.body().allocate_sync(&request)?
        };
        let kind = upstream.body().kind();
        let wrong = if ptr == 0 {
            Some("a null pointer")
        } else if ptr % UNIT != 0 {
            Some("an address that is not a multiple of 256")
        } else if ptr.checked_add(plan.bytes).is_none() {
            Some("an address so high that the block wraps around")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            if ptr != 0 {
                let _ = upstream.body().deallocate_sync(ptr, &request);
            }
            return Err(Error::invalid(format!(
                "the upstream ({kind}) of a pool answered a request of {} bytes with {wrong} ({ptr:#x}): mend the \
                 upstream; the pool has taken nothing",
                plan.bytes
            )));
        }
        let mut tables = self.tables.write();
        if tables.1.iter().any(|c| ptr < c.ptr + c.bytes && c.ptr < ptr + plan.bytes) {
            return Err(Error::invalid(format!(
                "the upstream ({kind}) of a pool gave {ptr:#x} ({} bytes), which overlaps memory that the pool holds \
                 from it already: mend the upstream; the pool has taken nothing",
                plan.bytes
            )));
        }
        let Some(offset) = place_for(&tables.0, ptr, plan.bytes, self.span) else {
            drop(tables);
            let _ = upstream.body().deallocate_sync(ptr, &request);
            return Err(Error::Unsupported("a pool over an upstream can hold 1 TiB at most".to_owned()));
        };
        let chunk = Chunk { ptr, offset, bytes: plan.bytes };
        let at = tables.0.partition_point(|c| c.offset < offset);
        tables.0.insert(at, chunk);
        let at = tables.1.partition_point(|c| c.ptr < ptr);
        tables.1.insert(at, chunk);
        self.reserved.fetch_add(plan.bytes, Ordering::Relaxed);
        Ok(Plan { offset, ..plan })
    }

    /// Forgets everything: the process is ending or was forked, and no call reaches the upstream's memory any more.
    pub(in crate::pool) fn forget(&self) {
        *self.tables.write() = (Vec::new(), Vec::new());
    }

    pub(super) fn pieces(&self) -> Vec<(u64, u64)> {
        self.tables.read().0.iter().map(|c| (c.offset, c.bytes)).collect()
    }

    pub(super) fn give_back(&self, pieces: &[(u64, u64)], upstream: &Resource) -> (Vec<(u64, u64)>, Option<Error>) {
        let (mut stay, mut first_error) = (Vec::new(), None);
        for (offset, bytes) in pieces {
            let ptr = self.ptr_of(*offset);
            match upstream.body().deallocate_sync(ptr, &Self::request(*bytes, upstream)) {
                Ok(()) => {
                    let mut tables = self.tables.write();
                    tables.0.retain(|c| c.offset != *offset);
                    tables.1.retain(|c| c.offset != *offset);
                    self.reserved.fetch_sub(*bytes, Ordering::Relaxed);
                }
                Err(e) => {
                    stay.push((*offset, *bytes));
                    first_error.get_or_insert(e);
                }
            }
        }
        (stay, first_error)
    }
}

/// The first stretch of offsets that is free, with a gap on both sides, and congruent with `ptr`.
fn place_for(chunks: &[Chunk], ptr: u64, bytes: u64, span: u64) -> Option<u64> {
    let align = MAX_ALIGNMENT as u64;
    let phase = ptr % align;
    let mut from = 0u64;
    for next in chunks.iter().map(|c| (c.offset, c.offset + c.bytes)).chain([(span, span)]) {
        let offset = from.next_multiple_of(align) + phase;
        if offset.checked_add(bytes)?.checked_add(UNIT)? <= next.0 {
            return Some(offset);
        }
        from = next.1 + UNIT;
    }
    None
}
