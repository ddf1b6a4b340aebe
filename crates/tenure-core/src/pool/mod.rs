//! The stream-ordered pool.
//!
//! ```text
//!                allocate                               deallocate
//!                   |                                       |
//!   +---------- cache/: the thread's own desk ----------+   |  ledger: known? whole? owner, size, alignment right?
//!   |  pieces freed on this stream, one large block     | <-+
//!   +---------------------------------------------------+   |
//!                   | none                                  | full, another stream, another large size
//!      own tag, then proven  --- none --> ladder            |
//!                   v                       v               v
//!   +------------------------- one short lock: State -------------------------+
//!   |  place/  which bytes, for whom        order/  stream records and tags   |
//!   +--------------------------------------------------------------------------+
//!        |  never under the lock
//!   pages/  ranges and chunks        driver: events, waits, the device proof        (one thread's turn: turn.rs)
//! ```
//!
//! **The ladder** when a stream's own and the proven memory do not suffice: return what small classes keep -> what has
//! completed on other streams -> grow within the limit, or map idle pages again -> another stream's block behind an inserted wait -> memory of the
//! other zone -> remap idle pages side by side -> wait for the whole device -> exchange idle pages for pages where they are
//! needed -> sibling pools and other libraries give back -> out of memory (`ladder/`).
//! `prefer = footprint` swaps growing and the inserted wait.
//!
//! **One stream only.** As long as one stream identity has been seen, every byte carries its tag and merges freely; what
//! was never handed out becomes proven when a second one appears.
//!
//! **Invariants**: those of `cache/`, `place/` and `order/`; no driver call and no call of the upstream under the lock; a
//! failure changes nothing; live + cached = mapped.
//!
//! **Cost**: an allocation or a free of what the thread has at hand touches no word of another thread: see `cache/`. Else it
//! is one short lock and one constant search, and where threads meet there again and again they get plots of their own
//! (`crowd.rs`). 64 bytes a block, 16 a slot of a small class.

mod at_hand;
mod cache;
mod crowd;
mod give_back;
mod graph;
mod ladder;
mod look;
mod many;
mod note;
mod options;
mod order;
mod pages;
pub mod place;
mod report;
mod serve;
mod share;
mod siblings;
mod tend;
mod turn;

pub use graph::{CaptureScope, SharedArena};
pub use options::{PoolOptions, Prefer};
pub(crate) use siblings::trim as trim_pools;
pub use tend::end_background;

use cache::{Cache, Which};
use crowd::Plots;
use order::{Key, Records, cur, sealed};
use pages::{Chunks, PAGE, Pages, VirtualRange};
use place::ledger::Ledger;
use place::{Held, LARGE, PROVEN, Place, Plot, SMALL, UNIT, UNPROVEN, zone_of};
use turn::Turns;

use crossbeam_utils::CachePadded;

use crate::error::{Error, Result};
use crate::resource::leaf::HandleType;
use crate::resource::{Properties, Request, Resource};
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Offsets of a pool over chunks, in bytes: as many as the placer can name.
const CHUNK_SPAN: u64 = (u32::MAX as u64 - 1) * UNIT;

/// How much the small zone borrows from the large one at a time, in bytes.
const FEED: u64 = 256 << 10;

/// So many large requests without a tight block before others' memory is looked at. Fewer gain nothing on the logs measured.
const LOOSE: u32 = 4;

/// How often the lock is tried, with growing pauses, before the thread sleeps.
const SPINS: u32 = 40;

/// What the lock guards.
struct State {
    place: Place,
    records: Records,
    /// The only record so far; its tag is on everything.
    sole: Option<u32>,
    /// Small sizes borrow from the large zone before the pool grows: over chunks always, which have one zone only; over
    /// ranges until the first growth, so that the initial size serves both.
    borrows: bool,
    /// Large requests that found no tight block, since others' memory was last looked at.
    loose: u32,
}

impl State {
    /// Takes memory for `record` with the tags it may have, in the zone of the size.
    #[inline]
    fn take(&mut self, request: &Request, tags: &[u32], stamp: u32) -> Option<u64> {
        let bytes = request.bytes as u64;
        self.place.allocate(bytes, request.align as u64, tags, stamp, request.owner, zone_of(bytes))
    }

    /// [`State::take`] after what the classes keep has been given back; small sizes may borrow from the initial memory.
    fn take_drained(&mut self, request: &Request, tags: &[u32], stamp: u32) -> Option<u64> {
        if let Some(offset) = self.take(request, tags, stamp) {
            return Some(offset);
        }
        if self.place.drain()
            && let Some(offset) = self.take(request, tags, stamp)
        {
            return Some(offset);
        }
        if self.borrows && zone_of(request.bytes as u64) == SMALL {
            return self.borrow(request, tags, stamp);
        }
        None
    }

    /// Serves a small size from memory that the small zone borrows.
    fn borrow(&mut self, request: &Request, tags: &[u32], stamp: u32) -> Option<u64> {
        let need = Place::need(request.bytes as u64, request.align as u64) + request.align as u64 - UNIT;
        for amount in [FEED.max(need), need] {
            if self.place.feed(amount, tags)
                && let Some(offset) = self.take(request, tags, stamp)
            {
                return Some(offset);
            }
        }
        None
    }

    /// [`State::take`] in either zone.
    fn take_anywhere(&mut self, request: &Request, tags: &[u32], stamp: u32) -> Option<u64> {
        self.place.consolidate();
        let bytes = request.bytes as u64;
        let order = if zone_of(bytes) == SMALL { [SMALL, LARGE] } else { [LARGE, SMALL] };
        if let Some(offset) = self.take(request, tags, stamp) {
            return Some(offset);
        }
        if order[0] == SMALL
            && let Some(offset) = self.borrow(request, tags, stamp)
        {
            return Some(offset);
        }
        self.place.allocate(bytes, request.align as u64, tags, stamp, request.owner, order[1])
    }

    /// The record of an identity, made if need be.
    fn record(&mut self, key: Key, raw: tenure_driver::RawStream) -> u32 {
        if let Some(record) = self.records.find(key) {
            return record;
        }
        let record = self.records.add(key, raw, &self.place);
        match self.sole {
            // A raw stream that comes after others will go as they did: what is proven must not be its alone.
            None if self.records.len() == 1
                && self.place.live_count() == 0
                && !(matches!(key, Key::Raw(_)) && self.records.most() > 1) =>
            {
                self.sole = Some(record);
                self.resettle();
            }
            Some(only) if only != record => self.end_sole(),
            _ => {}
        }
        record
    }

    /// A second stream may come: what the only one has never had is for everyone.
    fn end_sole(&mut self) {
        if let Some(only) = self.sole.take() {
            self.place.prove_untouched(cur(only));
        }
    }

    /// While there is one stream only, proven memory gets its tag, so that all of it merges.
    fn resettle(&mut self) {
        if let Some(only) = self.sole {
            self.place.relabel(PROVEN, cur(only), true);
            self.place.relabel(sealed(only), cur(only), false);
        }
    }

    /// The tag of what was freed in the order of a stream, as far as that one is still there.
    #[inline]
    fn late(&self, tag: u32) -> u32 {
        let open = self.records.of_stamp(tag).is_some_and(|(_, record)| !record.closed);
        if open { tag } else { UNPROVEN }
    }

    /// Takes back what a thread's cache held, with the tag of the stream that it was freed on.
    #[inline]
    fn take_back(&mut self, held: Held, tag: u32) {
        let tag = self.late(tag);
        self.place.give_back(held, tag);
    }

    /// [`State::take_back`] of many with one tag.
    fn take_back_many(&mut self, pieces: impl Iterator<Item = Held>, tag: u32) {
        let tag = self.late(tag);
        self.place.give_back_many(pieces, tag);
    }

    /// A plot is the placer's again.
    fn give_up(&mut self, plot: Plot) {
        let tag = self.late(plot.stamp);
        self.place.take_plot(plot, tag);
    }

    /// Whether a large request had better see what other streams have let go of, before it cuts up what its own stream has.
    /// Only where memory is short, and then not each time: to look costs two driver calls a stream.
    fn is_loose(&mut self, request: &Request, tags: &[u32]) -> bool {
        let (mapped, live) = (self.place.mapped_bytes(), self.place.live_bytes());
        let (free, bytes) = (mapped - live, request.bytes as u64);
        if self.sole.is_some() || free > mapped / 4 {
            return false;
        }
        let own: u64 = tags.iter().map(|tag| self.place.tag_bytes(*tag)).sum();
        let tight = self.place.slack(bytes, request.align as u64, tags).is_some_and(|slack| slack <= bytes / 4);
        if tight || free.saturating_sub(own) < bytes {
            return false;
        }
        self.loose += 1;
        let due = self.loose >= LOOSE.max(self.records.len() as u32);
        if due {
            self.loose = 0;
        }
        due
    }

    /// Free bytes that are not proven.
    fn unproven(&self) -> u64 {
        let free = self.place.mapped_bytes() - self.place.live_bytes();
        free - self.place.tag_bytes(PROVEN)
    }
}

/// A pool of device memory in stream order. See the [module](self).
pub struct Pool {
    /// What each thread has at hand.
    cache: Cache,
    /// On lines of its own: what else a call reads of a pool does not change.
    state: CachePadded<Mutex<State>>,
    /// What a free is checked against without the lock.
    ledger: Arc<Ledger>,
    pages: Pages,
    turns: Turns,
    graphs: graph::Graphs,
    /// Signalled when a record's pins go.
    unpinned: Condvar,
    options: PoolOptions,
    device: i32,
    /// What no request can exceed, in bytes: the limit, or all that the device has.
    ceiling: u64,
    upstream: Resource,
    /// What memory that the pool maps itself can do; read with every buffer.
    own_properties: Properties,
    /// How often the device was waited for.
    proofs: AtomicU64,
    /// The next request of the ladder looks at others' memory first.
    harvest_due: AtomicBool,
    /// What large sizes of crowded desks are served from.
    plots: Plots,
    peak_reserved: AtomicU64,
    /// What of it the upstream has been told.
    shown: AtomicU64,
    /// What is done for the pool now and then.
    tend: tend::Tend,
}

impl Pool {
    /// Makes a pool of memory of `device` over `upstream`. Over the plain device resource (`"cuda"`) and where the device
    /// can map pages, the pool maps ranges of its own; otherwise it takes chunks through the upstream.
    ///
    /// # Errors
    /// [`Error::Invalid`] for settings that make no sense or an upstream of another device; out of memory when the initial
    /// size cannot be had; what the driver says. Nothing is kept then.
    pub fn new(upstream: Resource, device: i32, options: PoolOptions) -> Result<Self> {
        options.validate()?;
        let device = crate::device::check(device)?;
        if let Some(other) = upstream.body().device()
            && other >= 0
            && other != device
        {
            return Err(Error::invalid(format!(
                "the upstream's memory is on device {other}, and the pool was asked for on device {device}: give an \
                 upstream of that device"
            )));
        }
        let driver = crate::device::driver()?;
        let properties = driver.device(device)?.properties()?;
        let own_ranges =
            upstream.body().kind() == "cuda" && properties.capabilities.virtual_memory && !options.plain_chunks;
        // A checker of memory takes pieces that are allocations of the driver's (tools::memory_checked).
        let own_ranges = !crate::tools::memory_checked(device)? && own_ranges;
        let sharing = share::sharing_of(&options, device, own_ranges, &upstream)?;
        let users = share::users_of(&options, device, own_ranges)?;
        let pages = if own_ranges {
            let all = properties.total_memory as u64;
            let range = VirtualRange::new(driver.device(device)?, all, options.chunk_bytes)?;
            Pages::Virtual(range.shareable(sharing).used_by(users))
        } else {
            Pages::Chunks(Chunks::new(CHUNK_SPAN, device))
        };
        let (span, small_base, all) = match &pages {
            Pages::Virtual(v) => (v.span(), v.small_base(), properties.total_memory as u64),
            Pages::Chunks(_) => (CHUNK_SPAN, CHUNK_SPAN, CHUNK_SPAN),
        };
        // The proof needs a block of its own, which a full device would not give later. Without it the proof tries then.
        if let Err(e) = crate::device::prepare_proof(device) {
            log::debug!("tenure: no block for the device proof of device {device} yet: {e}");
        }
        let place = Place::new(span, small_base);
        let cache = Cache::new();
        let pool = Self {
            ledger: place.ledger(),
            state: CachePadded::new(Mutex::new(State {
                place,
                records: Records::new(cache.moving.clone()),
                sole: None,
                borrows: true,
                loose: 0,
            })),
            cache,
            pages,
            turns: Turns::default(),
            graphs: graph::Graphs::default(),
            unpinned: Condvar::new(),
            options,
            device,
            ceiling: options.maximum_bytes.unwrap_or(u64::MAX).min(all),
            upstream,
            own_properties: Properties {
                device_accessible: true,
                stream_ordered: true,
                exportable: options.export_handle_type != HandleType::None,
                ..Properties::default()
            },
            proofs: AtomicU64::new(0),
            harvest_due: AtomicBool::new(false),
            plots: Plots::new(options.prefer),
            peak_reserved: AtomicU64::new(0),
            shown: AtomicU64::new(0),
            tend: tend::Tend::default(),
        };
        pool.start()?;
        tend::Tend::announce(&options);
        Ok(pool)
    }

    /// The lock, spun for before it is waited for: it is held for some 30 ns, and a thread that sleeps costs thousands.
    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        match self.state.try_lock() {
            Some(state) => state,
            None => self.lock_contended(),
        }
    }

    #[cold]
    fn lock_contended(&self) -> MutexGuard<'_, State> {
        for round in 0..SPINS {
            for _ in 0..1 << round.min(6) {
                std::hint::spin_loop();
            }
            if let Some(state) = self.state.try_lock() {
                return state;
            }
        }
        self.state.lock()
    }

    /// Whether some thread is at what all threads share. For tests: no driver call is made then.
    #[doc(hidden)]
    pub fn is_locked(&self) -> bool {
        self.state.is_locked() || self.graphs.is_locked()
    }

    /// Threads get plots as if they were always in each other's way. For tests.
    #[doc(hidden)]
    pub fn force_plots(&self) {
        self.plots.force();
    }

    /// Gives what the threads' caches hold to the placer. True when there was something.
    fn drain(&self, which: Which) -> bool {
        let collected = self.cache.collect(which);
        collected.give(&mut self.lock())
    }

    /// Takes the initial size.
    fn start(&self) -> Result<()> {
        let bytes = self.options.initial_bytes;
        if bytes == 0 {
            return Ok(());
        }
        let usable = bytes.next_multiple_of(UNIT).min(self.limit() / UNIT * UNIT);
        let taken = match &self.pages {
            Pages::Virtual(_) => bytes.next_multiple_of(PAGE),
            Pages::Chunks(_) => usable,
        };
        let usable = if taken <= self.limit() { taken } else { usable };
        let plan = pages::Plan { offset: 0, bytes: taken, usable, extends: 0, tag: PROVEN };
        let plan = self
            .pages
            .grow(plan, self.options.maximum_bytes, &self.upstream)
            .map_err(|e| if e.is_out_of_memory() { self.out_of_memory(bytes, Vec::new()) } else { e })?;
        self.lock().place.extend(plan.offset, plan.usable, PROVEN, LARGE);
        self.note_reserved();
        Ok(())
    }

    /// Bytes that may be mapped at most beside those of graphs.
    fn limit(&self) -> u64 {
        self.options.maximum_bytes.unwrap_or(u64::MAX).saturating_sub(self.graph_bytes().0)
    }

    /// The device of the pool.
    pub fn device_ordinal(&self) -> i32 {
        self.device
    }

    /// The settings it was made with.
    pub fn options(&self) -> &PoolOptions {
        &self.options
    }

    /// True when the pool maps ranges of its own; false when it takes chunks through its upstream.
    pub fn has_own_ranges(&self) -> bool {
        matches!(self.pages, Pages::Virtual(_))
    }

    /// Checks the invariants of the placer.
    ///
    /// # Errors
    /// What does not hold.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), String> {
        self.lock().place.check()?;
        self.check_graphs()
    }
}

impl Pool {
    /// Lets the pages be, for as long as the process lives.
    fn forget_pages(&self) {
        match &self.pages {
            Pages::Virtual(v) => v.forget(),
            Pages::Chunks(c) => c.forget(),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        tend::Tend::wake();
        if tenure_driver::process::unusable() {
            // No driver call any more: what the driver holds goes with the process.
            self.forget_pages();
            self.end_graphs();
            return;
        }
        self.cache.close().give(self.state.get_mut());
        self.end_graphs();
        // Unmapping does not wait for the device, so everything must have passed. One proof covers all streams.
        let unproven = self.state.get_mut().unproven() > 0 || self.state.get_mut().place.live_count() > 0;
        if unproven && let Err(e) = crate::device::settled(crate::device::prove_at_last(self.device)) {
            log::error!(
                "tenure: device {} cannot be waited for, so that the memory of a pool that ends stays where it is: {e}",
                self.device
            );
            self.forget_pages();
            return;
        }
        let pieces = self.pages.pieces();
        let (mut stay, mut error) = self.pages.give_back(&pieces, &self.upstream);
        if error.is_some() {
            // Nobody comes back later: a failure that passes must not keep memory for the life of the process.
            (stay, error) = self.pages.give_back(&stay, &self.upstream);
        }
        self.note_reserved();
        if let Some(e) = error {
            log::error!("tenure: {} pieces of a pool could not be given back when it ended: {e}", stay.len());
        }
    }
}
