//! The book: which blocks are live, who owns them and how large they are.
//!
//! ```text
//!   address --hash--> shard 0..15   { ordered map: start -> Booked,  ring: the last 64 starts that were freed }
//! ```
//!
//! Leaf resources and callback resources keep one. It is what makes a wrong free an error instead of a corruption: a
//! free is compared with the entry before anything is done.
//!
//! # Invariants
//! * A shard is locked for the length of one map operation. Nothing is called under the lock.
//! * An entry leaves the map *before* its memory is given back: from the moment of the driver's free the address may be
//!   handed to another thread, which books it anew. A free that fails puts its entry back.
//! * Bytes and counts move together with the entries; the peak is exact.
//!
//! # Cost
//! Booking and taking are one lock and O(log n) in a sixteenth of the blocks. Looking for the block around an interior
//! address asks every shard once: such a question comes from an error path, a report or `owner_of`.

use std::collections::BTreeMap;

use crossbeam_utils::CachePadded;

use crate::error::{Misuse, MisuseKind};
use crate::resource::{Block, Info, Live, Request};
use crate::stream::StreamRef;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

const SHARDS: usize = 16;
const RING: usize = 64;

/// What is known of one live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Booked {
    /// Its size in bytes, as it was asked for.
    pub bytes: usize,
    /// The alignment that was asked for, in bytes.
    pub align: usize,
    /// The id of the resource that the caller named.
    pub owner: u64,
    /// The device it lies on; -1 for memory of the host.
    pub device: i32,
    /// The device of the stream it was allocated on: the one to wait for when that stream cannot be asked any more. -1
    /// when no device was involved.
    pub home: i32,
    /// What its maker calls it: the address, or one in front of it where room was needed to align.
    pub base: u64,
    /// The driver's value of the stream that it was asked for on; `None` where there was none.
    pub stream: Option<u64>,
}

impl Booked {
    /// An entry for `request`, lying on `device`, made for a stream of device `home`, called `base` by its maker.
    pub fn new(request: &Request, device: i32, home: i32, base: u64) -> Self {
        Self { bytes: request.bytes, align: request.align, owner: request.owner, device, home, base, stream: None }
    }

    /// The same, asked for on `stream`.
    #[must_use]
    pub fn on(self, stream: StreamRef<'_>) -> Self {
        Self { stream: Some(stream.raw.addr() as u64), ..self }
    }

    fn as_block(&self, ptr: u64) -> Block {
        Block { ptr, bytes: self.bytes, owner: self.owner, device: self.device }
    }
}

/// The starts freed last, the oldest overwritten first: what tells "freed already" from "never seen".
#[derive(Default)]
pub(crate) struct FreedRing<const N: usize> {
    starts: Vec<u64>,
    next: usize,
}

impl<const N: usize> FreedRing<N> {
    pub(crate) fn note(&mut self, ptr: u64) {
        if self.starts.len() < N {
            self.starts.push(ptr);
        } else {
            self.starts[self.next] = ptr;
        }
        self.next = (self.next + 1) % N;
    }

    fn forget(&mut self, ptr: u64) {
        for start in &mut self.starts {
            if *start == ptr {
                *start = 0;
            }
        }
    }

    /// Whether the block at `ptr` was freed lately. Nothing starts at address 0.
    pub(crate) fn has(&self, ptr: u64) -> bool {
        ptr != 0 && self.starts.contains(&ptr)
    }
}

#[derive(Default)]
struct Shard {
    live: BTreeMap<u64, Booked>,
    freed: FreedRing<RING>,
}

impl Shard {
    /// The block of this shard that contains `ptr`. Blocks of a book do not overlap, so that only the last one that
    /// starts at or below `ptr` can.
    fn around(&self, ptr: u64) -> Option<(u64, Booked)> {
        let (&start, booked) = self.live.range(..=ptr).next_back()?;
        (ptr - start < booked.bytes as u64).then_some((start, *booked))
    }
}

/// The live blocks of one resource.
pub struct Book {
    shards: [CachePadded<Mutex<Shard>>; SHARDS],
    bytes: AtomicU64,
    count: AtomicU64,
    peak: AtomicU64,
}

impl Default for Book {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Book {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Book({} blocks, {} bytes)", self.live_count(), self.live_bytes())
    }
}

impl Book {
    /// An empty book.
    pub fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| CachePadded::new(Mutex::new(Shard::default()))),
            bytes: AtomicU64::new(0),
            count: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        }
    }

    fn shard(&self, ptr: u64) -> &Mutex<Shard> {
        // Fibonacci hashing: block addresses share their low bits and, within a chunk, their high ones.
        &self.shards[(ptr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize]
    }

    /// Counts a block that is about to be booked (before, so that no free of it can be counted earlier) and says how
    /// many bytes are live with it.
    fn count_in(&self, bytes: usize) -> u64 {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64
    }

    fn raise_peak(&self, live: u64) {
        self.peak.fetch_max(live, Ordering::Relaxed);
    }

    fn count_out(&self, bytes: usize) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// Books a block. Returns the entry that stood there, if one did: then somebody gave that block back behind the
    /// resource's back, and the maker of the memory, who hands its address out again, is right.
    pub fn insert(&self, ptr: u64, booked: Booked) -> Option<Booked> {
        let now = self.count_in(booked.bytes);
        let stale = self.shard(ptr).lock().live.insert(ptr, booked);
        let gone = stale.map_or(0, |stale| stale.bytes);
        if stale.is_some() {
            self.count_out(gone);
        }
        self.raise_peak(now - gone as u64);
        stale
    }

    /// Books a block whose maker is not trusted.
    ///
    /// # Errors
    /// The live block, of this book, that shares bytes with it: nothing is booked then. Of two threads that book
    /// overlapping blocks at the same moment at least one gets the error.
    pub fn insert_disjoint(&self, ptr: u64, booked: Booked) -> Result<(), Block> {
        let now = self.count_in(booked.bytes);
        let entered = self.enter_disjoint(ptr, booked);
        match entered {
            Ok(()) => self.raise_peak(now),
            Err(_) => self.count_out(booked.bytes),
        }
        entered
    }

    fn enter_disjoint(&self, ptr: u64, booked: Booked) -> Result<(), Block> {
        {
            let mut shard = self.shard(ptr).lock();
            if let Some(other) = shard.live.get(&ptr) {
                return Err(other.as_block(ptr));
            }
            shard.live.insert(ptr, booked);
        }
        // Entered first, compared second: whoever comes later finds this one.
        let last = ptr.saturating_add(booked.bytes.max(1) as u64 - 1);
        for shard in &self.shards {
            let shard = shard.lock();
            let other = shard
                .live
                .range(..=last)
                .rev()
                .find(|entry| *entry.0 != ptr)
                .filter(|(start, other)| start.saturating_add(other.bytes as u64) > ptr)
                .map(|(start, other)| other.as_block(*start));
            if let Some(other) = other {
                drop(shard);
                self.shard(ptr).lock().live.remove(&ptr);
                return Err(other);
            }
        }
        Ok(())
    }

    /// Compares a free with the entry and changes nothing.
    ///
    /// # Errors
    /// What is wrong about it, in this order: no block starts there (double free, interior or unknown), another owner,
    /// another size, an alignment that the address does not have.
    pub fn check(&self, ptr: u64, request: &Request) -> Result<Booked, Misuse> {
        let found = {
            let shard = self.shard(ptr).lock();
            compare(&shard, ptr, request)
        };
        found.map_err(|misuse| self.explain(misuse))
    }

    /// [`check`](Self::check), and takes the entry out.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn take(&self, ptr: u64, request: &Request) -> Result<Booked, Misuse> {
        let taken = {
            let mut shard = self.shard(ptr).lock();
            compare(&shard, ptr, request).inspect(|_| {
                shard.live.remove(&ptr);
                shard.freed.note(ptr);
            })
        };
        let booked = taken.map_err(|misuse| self.explain(misuse))?;
        self.count_out(booked.bytes);
        Ok(booked)
    }

    /// Puts back what [`take`](Self::take) gave: the free that followed did not happen.
    pub fn put_back(&self, ptr: u64, booked: Booked) {
        let now = self.count_in(booked.bytes);
        {
            let mut shard = self.shard(ptr).lock();
            shard.live.insert(ptr, booked);
            shard.freed.forget(ptr);
        }
        self.raise_peak(now);
    }

    /// The live block that contains `ptr`.
    pub fn find(&self, ptr: u64) -> Option<Block> {
        if let Some(booked) = self.shard(ptr).lock().live.get(&ptr) {
            return Some(booked.as_block(ptr));
        }
        self.shards
            .iter()
            .filter_map(|shard| shard.lock().around(ptr))
            .min_by_key(|(_, booked)| booked.bytes)
            .map(|(start, booked)| booked.as_block(start))
    }

    /// Calls `see` with each live block, without a lock held.
    pub fn each_block(&self, see: &mut dyn FnMut(Live)) {
        let mut seen = Vec::new();
        for shard in &self.shards {
            seen.extend(shard.lock().live.iter().map(|(ptr, booked)| Live {
                block: booked.as_block(*ptr),
                held: booked.bytes as u64,
                stream: booked.stream,
            }));
            seen.drain(..).for_each(&mut *see);
        }
    }

    /// Bytes of the live blocks.
    pub fn live_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Number of live blocks.
    pub fn live_count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The highest [`live_bytes`](Self::live_bytes) so far.
    pub fn peak_live_bytes(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// The figures of a resource that keeps nothing in store: what is reserved is what is live.
    pub fn info(&self) -> Info {
        let live = self.live_bytes();
        let peak = self.peak_live_bytes();
        Info {
            live_bytes: live,
            reserved_bytes: live,
            peak_live_bytes: peak,
            peak_reserved_bytes: peak,
            live_count: self.live_count(),
            ..Info::default()
        }
    }

    /// "Unknown" and "freed already" said more exactly, where another shard knows the live block around it. Outside any
    /// lock.
    fn explain(&self, misuse: Misuse) -> Misuse {
        if !matches!(misuse.kind, MisuseKind::UnknownPointer | MisuseKind::DoubleFree) {
            return misuse;
        }
        match self.find(misuse.ptr) {
            // Booked by another thread a moment ago: at the time of the free it was unknown.
            Some(block) if block.ptr != misuse.ptr => Misuse {
                kind: MisuseKind::InteriorPointer,
                owner: block.owner,
                owner_bytes: block.bytes as u64,
                ..misuse
            },
            _ => misuse,
        }
    }
}

/// Compares a free with what the shard knows.
fn compare(shard: &Shard, ptr: u64, request: &Request) -> Result<Booked, Misuse> {
    let wrong = |kind, owner, owner_bytes| Misuse {
        kind,
        ptr,
        bytes: request.bytes as u64,
        asked: request.owner,
        owner,
        owner_bytes,
    };
    let Some(booked) = shard.live.get(&ptr) else {
        let kind = if shard.freed.has(ptr) { MisuseKind::DoubleFree } else { MisuseKind::UnknownPointer };
        return Err(wrong(kind, 0, 0));
    };
    let kind = if booked.owner != request.owner {
        MisuseKind::WrongResource
    } else if booked.bytes != request.bytes {
        MisuseKind::WrongSize
    } else if !ptr.is_multiple_of(request.align.max(1) as u64) {
        MisuseKind::WrongAlignment
    } else {
        return Ok(*booked);
    };
    Err(wrong(kind, booked.owner, booked.bytes as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(bytes: usize, owner: u64) -> Request {
        Request { bytes, align: 256, owner, flags: 0 }
    }

    fn book_of(blocks: &[(u64, usize)]) -> Book {
        let book = Book::new();
        for &(ptr, bytes) in blocks {
            assert_eq!(book.insert(ptr, Booked::new(&request(bytes, 7), 0, 0, ptr)), None);
        }
        book
    }

    fn kind_of(result: Result<Booked, Misuse>) -> MisuseKind {
        result.expect_err("this free must be refused").kind
    }

    #[test]
    fn each_wrong_free_has_its_name_and_changes_nothing() {
        let book = book_of(&[(0x10000, 1000), (0x20000, 4096)]);
        let before = book.info();
        assert_eq!(kind_of(book.take(0x10000, &request(1000, 8))), MisuseKind::WrongResource);
        assert_eq!(kind_of(book.take(0x10000, &request(1001, 7))), MisuseKind::WrongSize);
        assert_eq!(kind_of(book.take(0x10100, &request(1000, 7))), MisuseKind::InteriorPointer);
        assert_eq!(kind_of(book.take(0x10000 + 1000, &request(1000, 7))), MisuseKind::UnknownPointer);
        assert_eq!(kind_of(book.take(0, &request(1000, 7))), MisuseKind::UnknownPointer);
        let coarse = Request { align: 0x20000, ..request(1000, 7) };
        assert_eq!(kind_of(book.take(0x10000, &coarse)), MisuseKind::WrongAlignment);
        assert_eq!(book.info(), before);
        let misuse = book.take(0x20fff, &request(1, 7)).expect_err("interior");
        assert_eq!((misuse.owner, misuse.owner_bytes, misuse.asked), (7, 4096, 7));
    }

    #[test]
    fn a_second_free_is_told_apart_from_an_unknown_one_until_the_block_is_back() {
        let book = book_of(&[(0x10000, 1000)]);
        let taken = book.take(0x10000, &request(1000, 7)).expect("the right free");
        assert_eq!(book.live_bytes(), 0);
        assert_eq!(book.peak_live_bytes(), 1000);
        assert_eq!(kind_of(book.take(0x10000, &request(1000, 7))), MisuseKind::DoubleFree);
        book.put_back(0x10000, taken);
        assert_eq!((book.live_bytes(), book.live_count()), (1000, 1));
        book.take(0x10000, &request(1000, 7)).expect("live again");
    }

    #[test]
    fn the_ring_forgets_the_oldest_only() {
        let book = Book::new();
        for i in 1..=(SHARDS * RING * 4) as u64 {
            book.insert(i * 256, Booked::new(&request(256, 7), 0, 0, i * 256));
            book.take(i * 256, &request(256, 7)).expect("booked");
        }
        let last = (SHARDS * RING * 4) as u64 * 256;
        assert_eq!(kind_of(book.take(last, &request(256, 7))), MisuseKind::DoubleFree);
        assert_eq!(kind_of(book.take(256, &request(256, 7))), MisuseKind::UnknownPointer);
    }

    #[test]
    fn finds_the_block_around_any_of_its_bytes() {
        let blocks: Vec<_> = (1..200u64).map(|i| (i * 0x1000, 0x800 + i as usize)).collect();
        let book = book_of(&blocks);
        for &(ptr, bytes) in &blocks {
            for at in [ptr, ptr + 1, ptr + bytes as u64 - 1] {
                let block = book.find(at).expect("inside");
                assert_eq!((block.ptr, block.bytes, block.owner), (ptr, bytes, 7));
            }
            assert_eq!(book.find(ptr + bytes as u64), None);
        }
    }

    #[test]
    fn overlapping_blocks_are_refused_and_leave_no_trace() {
        let book = book_of(&[(0x10000, 0x1000)]);
        let before = book.info();
        let new = |bytes| Booked::new(&request(bytes, 7), 0, 0, 0);
        for (ptr, bytes) in [(0x10000, 16), (0x10800, 16), (0xf000, 0x1001), (0xf000, 0x10000), (0x10fff, 1)] {
            let other = book.insert_disjoint(ptr, new(bytes)).expect_err("overlaps");
            assert_eq!(other.ptr, 0x10000);
        }
        assert_eq!(book.info(), before);
        assert_eq!(book.find(0xf000), None);
        book.insert_disjoint(0x11000, new(16)).expect("beside");
        book.insert_disjoint(0xf000, new(0x1000)).expect("before");
        assert_eq!(book.live_count(), 3);
    }

    #[test]
    fn an_address_that_comes_back_replaces_what_stood_there() {
        let book = book_of(&[(0x10000, 1000)]);
        let stale = book.insert(0x10000, Booked::new(&request(64, 9), 0, 0, 0x10000));
        assert_eq!(stale.map(|b| b.bytes), Some(1000));
        assert_eq!((book.live_bytes(), book.live_count()), (64, 1));
    }

    #[test]
    fn an_address_that_was_freed_and_lies_inside_a_live_block_now_is_interior() {
        let book = book_of(&[(0x10000, 4096)]);
        book.take(0x10000, &request(4096, 7)).expect("live");
        book.insert(0x8000, Booked::new(&request(0x10000, 7), 0, 0, 0x8000));
        let wrong = book.take(0x10000, &request(4096, 7)).expect_err("not live");
        assert_eq!((wrong.kind, wrong.owner_bytes), (MisuseKind::InteriorPointer, 0x10000));
    }

    #[test]
    fn threads_leave_the_figures_at_zero() {
        let book = Book::new();
        std::thread::scope(|scope| {
            for t in 0..4u64 {
                let book = &book;
                scope.spawn(move || {
                    for i in 1..2000u64 {
                        let ptr = (t << 32) + i * 512;
                        assert_eq!(book.insert(ptr, Booked::new(&request(512, t), 0, 0, ptr)), None);
                        if i % 2 == 0 {
                            book.take(ptr, &request(512, t)).expect("mine");
                            book.take(ptr - 512, &request(512, t)).expect("mine");
                        }
                    }
                    book.take((t << 32) + 1999 * 512, &request(512, t)).expect("the last");
                });
            }
        });
        assert_eq!((book.live_bytes(), book.live_count()), (0, 0));
        assert!(book.peak_live_bytes() >= 1024);
    }
}
