//! *order*: who may have this memory now.
//!
//! Memory freed on stream A may be used on stream B only if the free happens before the use *on the device*.
//!
//! ```text
//!   free on A ------------> tag cur(A)              A may have it at once; no driver call
//!   checkpoint on A ------> cur(A) becomes sealed(A), an event is recorded on A
//!     event complete -----> PROVEN                  everyone may have it
//!     B waits for it -----> what this event covers B may have too, until A has another one
//!   free of a stream that nobody can name, or flagged so
//!                    -----> UNPROVEN ---device proof---> PROVEN
//! ```
//!
//! A [`Record`] stands for one stream identity; its two tags are what the placer knows of it. The implicit order between the
//! legacy stream and the blocking streams of its device counts for nothing here: it comes with *work* only, and memory may go
//! through hands that do none (taken on one stream, given back unused on another; or taken, waited for and used elsewhere).
//!
//! **Invariants**
//! * I7: an event is recorded after every free that its tag covers: sealing happens under the pool's lock, recording after.
//! * I11: a record is dropped only when nothing free carries its tags, nothing live is stamped with them and no thread has a
//!   magazine for it, so that a
//!   number that is used again can match nothing old; identities (object ids, driver ids) are never used again at all.
//! * No driver call under the pool's lock. A record is *pinned* while the driver is asked about its stream without the
//!   caller carrying it; the stream's end waits for the pins.
//!
//! **Cost**: a lookup is one hash of 16 bytes; the legacy stream needs none.

pub(super) mod identity;

pub(super) use identity::{Key, Who};

use std::cell::Cell;
use std::time::Instant;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tenure_driver::{Event, RawStream};

use super::place::{PROVEN, Place};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// The tag of what waits for a device proof that is under way.
pub(super) const PENDING: u32 = 2;
/// The first tag of records.
const FIRST: u32 = 4;
/// Records above this number are looked through for some that can go.
const MANY: usize = 64;

/// One stream identity.
pub(super) struct Record {
    pub(super) key: Key,
    pub(super) raw: RawStream,
    /// The stream has ended: nothing may name it.
    pub(super) closed: bool,
    /// Calls under way that name the stream to the driver without carrying it.
    pub(super) pins: u32,
    /// Covers what has the sealed tag. That tag gains memory only while there is none, so that a new event covers all of it.
    pub(super) sealed: Option<Arc<Event>>,
    /// Other records whose events its stream waits for, and the number of the event: what those cover it may have.
    waits: SmallVec<[(u32, u64); 2]>,
    /// Set whenever its stream asks for memory; looked at, and taken back, before the pool grows.
    pub(super) seen: Cell<bool>,
    /// When it was last known to have been seen.
    pub(super) since: Instant,
    /// Magazines of threads that hold pieces with its tag.
    pub(super) magazines: u32,
}

impl Record {
    /// True when a call on this thread may name the stream to the driver: it is alive without the caller's doing.
    pub(super) fn touchable(&self) -> bool {
        !self.closed
            && match self.key {
                Key::Legacy => true,
                Key::PerThread(thread) => thread == identity::this_thread(),
                Key::Object(_) => true,
                Key::Raw(_) => false,
            }
    }
}

/// The tag of what was freed on the record's stream and is not covered by an event.
#[inline]
pub(super) fn cur(record: u32) -> u32 {
    FIRST + 2 * record
}

/// The tag of what the record's event covers.
#[inline]
pub(super) fn sealed(record: u32) -> u32 {
    FIRST + 2 * record + 1
}

/// The tags that a request may take from, by preference.
pub(super) type Tags = SmallVec<[u32; 8]>;

/// All records of a pool.
#[derive(Default)]
pub(super) struct Records {
    entries: Vec<Option<Record>>,
    by_key: FxHashMap<Key, u32>,
    legacy: Option<u32>,
    spare: Vec<u32>,
    /// How many collections are on their way from the desks, with tags that no magazine stands for any more.
    moving: Arc<AtomicUsize>,
}

impl Records {
    /// No records; none is dropped while `moving` is not 0.
    pub(super) fn new(moving: Arc<AtomicUsize>) -> Self {
        Self { moving, ..Self::default() }
    }

    /// The record of an identity.
    #[inline]
    pub(super) fn find(&self, key: Key) -> Option<u32> {
        if key == Key::Legacy { self.legacy } else { self.by_key.get(&key).copied() }
    }

    /// Whether an identity that had this record has it still: a stream that has ended has none.
    #[inline]
    pub(super) fn is_open(&self, record: u32) -> bool {
        self.get(record).is_some_and(|record| !record.closed)
    }

    /// The record that a live block is stamped with.
    #[inline]
    pub(super) fn of_stamp(&self, stamp: u32) -> Option<(u32, &Record)> {
        let number = stamp.checked_sub(FIRST)? / 2;
        Some((number, self.entries.get(number as usize)?.as_ref()?))
    }

    pub(super) fn get(&self, record: u32) -> Option<&Record> {
        self.entries.get(record as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, record: u32) -> Option<&mut Record> {
        self.entries.get_mut(record as usize)?.as_mut()
    }

    /// All of them, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Record)> {
        self.entries.iter().enumerate().filter_map(|(i, r)| Some((i as u32, r.as_ref()?)))
    }

    /// The numbers of all of them.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.iter().map(|(number, _)| number).collect()
    }

    /// Number of records.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.spare.len()
    }

    /// The most records that there were at once.
    pub(super) fn most(&self) -> usize {
        self.entries.len()
    }

    /// Adds a record for an identity that has none.
    pub(super) fn add(&mut self, key: Key, raw: RawStream, place: &Place) -> u32 {
        if self.len() >= MANY {
            self.retire(place);
        }
        let (seen, since) = (Cell::new(true), Instant::now());
        let waits = SmallVec::new();
        let record = Record { key, raw, closed: false, pins: 0, sealed: None, waits, seen, since, magazines: 0 };
        let number = match self.spare.pop() {
            Some(number) => {
                self.entries[number as usize] = Some(record);
                number
            }
            None => {
                self.entries.push(Some(record));
                self.entries.len() as u32 - 1
            }
        };
        if key == Key::Legacy {
            self.legacy = Some(number);
        } else {
            self.by_key.insert(key, number);
        }
        number
    }

    /// A magazine for the record is set up (1) or gone (-1).
    pub(super) fn pin_magazine(&mut self, record: u32, by: i32) {
        if let Some(record) = self.get_mut(record) {
            record.magazines = record.magazines.saturating_add_signed(by);
        }
    }

    /// The identity is over: nothing finds the record by it any more.
    pub(super) fn close(&mut self, record: u32) {
        let Some(entry) = self.get_mut(record) else { return };
        entry.closed = true;
        let key = entry.key;
        self.by_key.remove(&key);
    }

    /// Drops the records that nothing needs: closed ones, and, where there are many, whatever has no block at all.
    pub(super) fn retire(&mut self, place: &Place) {
        if self.moving.load(Ordering::Acquire) != 0 {
            return;
        }
        let many = self.len() >= MANY;
        for number in 0..self.entries.len() as u32 {
            let Some(record) = self.get(number) else { continue };
            // An event would go back to the driver here, under the lock: whoever asks it next takes it out.
            let idle = record.pins == 0 && record.sealed.is_none() && record.magazines == 0;
            let may = (record.closed || many) && idle && record.key != Key::Legacy;
            if may && place.tag_unused(cur(number)) && place.tag_unused(sealed(number)) {
                let key = record.key;
                if !record.closed {
                    self.by_key.remove(&key);
                }
                self.entries[number as usize] = None;
                self.spare.push(number);
            }
        }
    }

    /// What the stream of a record may take at once: its own, what is proven, and what it has waited for.
    #[inline]
    pub(super) fn tags(&self, record: u32) -> Tags {
        let mut tags = Tags::from_slice(&[cur(record), sealed(record), PROVEN]);
        if let Some(record) = self.get(record) {
            record.seen.set(true);
            if !record.waits.is_empty() {
                let covered = record.waits.iter().filter(|(other, event)| self.is_covered(*other, *event));
                tags.extend(covered.map(|(other, _)| sealed(*other)));
            }
        }
        tags
    }

    /// [`Records::tags`] of a stream that waits for no other, which most do not.
    #[inline]
    pub(super) fn few_tags(&self, record: u32) -> Option<[u32; 3]> {
        let entry = self.get(record).filter(|entry| entry.waits.is_empty())?;
        entry.seen.set(true);
        Some([cur(record), sealed(record), PROVEN])
    }

    /// Whether what a record has sealed is what this event covers.
    fn is_covered(&self, record: u32, event: u64) -> bool {
        self.get(record).and_then(|r| r.sealed.as_ref()).is_some_and(|sealed| sealed.number() == event)
    }

    /// Whether the stream of `record` waits for all that `other` has sealed.
    pub(super) fn has_waited(&self, record: u32, other: u32) -> bool {
        let waits = self.get(record).map(|r| r.waits.as_slice()).unwrap_or_default();
        waits.iter().any(|(known, event)| *known == other && self.is_covered(other, *event))
    }

    /// The stream of `record` waits for this event of `other` before whatever it is given from now on.
    pub(super) fn note_wait(&mut self, record: u32, other: u32, event: u64) {
        let Some(mut waits) = self.get_mut(record).map(|r| std::mem::take(&mut r.waits)) else { return };
        waits.retain(|(known, event)| *known != other && self.is_covered(*known, *event));
        waits.push((other, event));
        if let Some(record) = self.get_mut(record) {
            record.waits = waits;
        }
    }
}
