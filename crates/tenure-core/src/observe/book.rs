//! The book of observed blocks.
//!
//! ```text
//!   address --hash--> shard 0..63   { (start, resource asked) -> Entry }        each on cache lines of its own
//! ```
//!
//! By the resource too: user functions may hand on what another resource gave them, and both were asked for it.
//!
//! **Invariants**: an entry counts in its accounts from [`enter`] until [`Entry::count_out`]. A shard is locked for one
//! operation of its map, and nothing is called under the lock.

use crossbeam_utils::CachePadded;
use rustc_hash::FxHashMap;

use super::account::Who;
use super::is_on;
use super::meter::Mark;
use super::stack::Stack;
use crate::sync::{Arc, Lazy, Mutex};

const SHARDS: usize = 64;

/// What is known of one block. Sizes are in bytes.
#[derive(Clone)]
pub(super) struct Entry {
    /// As it was asked for.
    pub(super) bytes: usize,
    pub(super) stream: Option<u64>,
    /// When it was allocated, on the clock of the history; 0 where none was kept.
    pub(super) time: u64,
    pub(super) who: Who,
    pub(super) stack: Option<Arc<Stack>>,
    /// Where the meter counts it.
    pub(super) mark: Option<Mark>,
}

impl Entry {
    /// The block is not live any more.
    pub(super) fn count_out(&self) {
        self.who.count_out(self.bytes);
        if let Some(mark) = self.mark {
            super::meter::count_out(mark, self.bytes);
        }
    }
}

type Entries = FxHashMap<(u64, u64), Entry>;
type Shard = CachePadded<Mutex<Entries>>;

static BOOK: Lazy<Vec<Shard>> = Lazy::new(|| (0..SHARDS).map(|_| Shard::default()).collect());

fn shard(ptr: u64) -> &'static Mutex<Entries> {
    // Fibonacci hashing: addresses share their low bits.
    &BOOK[(ptr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize]
}

/// Books a block that was just allocated.
pub(super) fn enter(ptr: u64, entry: Entry) {
    entry.who.count_in(entry.bytes);
    put_back(ptr, entry);
}

/// Books a block that is counted already: its free has failed.
pub(super) fn put_back(ptr: u64, entry: Entry) {
    let stale = {
        let mut shard = shard(ptr).lock();
        if is_on() { shard.insert((ptr, entry.who.owner), entry) } else { Some(entry) }
    };
    // A block that was freed behind the book's back: its address would not have come again else.
    if let Some(stale) = stale {
        stale.count_out();
    }
}

/// Takes out the block at `ptr` that was asked of the resource `owner`: before it is freed.
pub(super) fn take(ptr: u64, owner: u64) -> Option<Entry> {
    shard(ptr).lock().remove(&(ptr, owner))
}

/// What is booked for the block at `ptr` of the resource `owner`.
pub(super) fn get(ptr: u64, owner: u64) -> Option<Entry> {
    shard(ptr).lock().get(&(ptr, owner)).cloned()
}

/// Every entry, for reports. Not of one moment.
pub(super) fn all() -> Vec<(u64, Entry)> {
    let mut found = Vec::new();
    for shard in BOOK.iter() {
        found.extend(shard.lock().iter().map(|((ptr, _), entry)| (*ptr, entry.clone())));
    }
    found
}

/// Forgets everything.
pub(super) fn clear() {
    for shard in BOOK.iter() {
        let gone = std::mem::take(&mut *shard.lock());
        gone.values().for_each(Entry::count_out);
    }
}
