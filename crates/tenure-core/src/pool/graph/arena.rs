//! One arena: the memory of the graph of one capture, or of several that never run at once.
//!
//! ```text
//!   lives     [capture 7: alive] [capture 9: gone]        flags that the driver sets when a graph is gone
//!   guests    tag 4: (capture 9, stream a)   tag 5: (capture 9, stream b)
//!   segments  |== Place over its own range ==| |==== Place over a larger range ====|
//! ```
//!
//! A segment is a placer of its own over addresses of its own, so that nothing here mixes with the pool's eager memory. The
//! tag of what is free says who may have it:
//!
//! * `PROVEN`: any stream of the capture that is under way;
//! * a guest's tag: that stream in that capture, which is where it was freed;
//! * `UNPROVEN`: freed by eager work; a later capture of a shared arena may have it after a device proof;
//! * `HELD`: freed where some other graph may name it, or nobody can say where: only the end of the arena frees it.

use tenure_driver::RawStream;

use super::scope::Name;
use crate::error::Result;
use crate::pool::order::{Key, PENDING};
use crate::pool::pages::{Plan, VirtualRange};
use crate::pool::place::{Entry, Fault, LARGE, LivePiece, PROVEN, Place, SMALL, UNIT, UNPROVEN, zone_of};
use crate::pool::{FEED, PAGE};
use crate::resource::Request;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Weak};

/// The tag of what goes back with the arena only.
pub(super) const HELD: u32 = 3;
/// The first tag of guests.
const FIRST: u32 = 4;
/// Addresses of the first segment, in bytes; each later one has four times those of the one before.
const SPAN: u64 = 1 << 30;

/// Whether the graph of a capture is there. The driver keeps it with the graph and tells its end.
#[derive(Default)]
pub(super) struct Life {
    gone: AtomicBool,
}

impl Life {
    pub(super) fn end(&self) {
        self.gone.store(true, Ordering::Release);
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

/// A stream that took part in a capture.
#[derive(Clone, Copy)]
struct Guest {
    capture: u64,
    key: Key,
    raw: RawStream,
}

/// A placer over a range of its own.
struct Segment {
    place: Place,
    /// Shared with whoever grows it, outside the lock.
    pages: Arc<VirtualRange>,
}

/// Where a growth goes.
pub(super) struct Growth {
    pub(super) segment: usize,
    pub(super) pages: Arc<VirtualRange>,
    pub(super) plan: Plan,
}

/// See the module.
pub(super) struct Arena {
    segments: Vec<Segment>,
    /// The name it goes by; `None` for the arena of one capture.
    pub(super) shared: Option<Weak<Name>>,
    lives: Vec<(u64, Arc<Life>)>,
    /// The capture that is served now.
    pub(super) current: u64,
    guests: Vec<Option<Guest>>,
    /// The only guest of the current capture so far: its tag is on everything.
    sole: Option<u32>,
    /// Something was freed that the end of the graphs does not cover.
    pub(super) eager: bool,
}

impl Arena {
    pub(super) fn new(shared: Option<Weak<Name>>) -> Self {
        Self {
            segments: Vec::new(),
            shared,
            lives: Vec::new(),
            current: 0,
            guests: Vec::new(),
            sole: None,
            eager: false,
        }
    }

    /// True when the capture has been served here.
    pub(super) fn knows(&self, capture: u64) -> bool {
        self.lives.iter().any(|(id, _)| *id == capture)
    }

    /// Notes a capture whose graph holds `life`.
    pub(super) fn add_life(&mut self, capture: u64, life: Arc<Life>) {
        self.lives.retain(|(_, life)| !life.is_gone());
        self.lives.push((capture, life));
    }

    /// True while a capture, a graph or its run needs the memory.
    pub(super) fn has_graphs(&self) -> bool {
        self.lives.iter().any(|(_, life)| !life.is_gone())
    }

    /// True when nothing needs the arena any more.
    pub(super) fn is_over(&self) -> bool {
        let named = self.shared.as_ref().is_some_and(|name| name.strong_count() > 0);
        !named && !self.has_graphs() && self.live_count() == 0
    }

    pub(super) fn live_count(&self) -> u64 {
        self.segments.iter().map(|s| s.place.live_count()).sum()
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.segments.iter().map(|s| s.place.live_bytes()).sum()
    }

    pub(super) fn mapped_bytes(&self) -> u64 {
        self.segments.iter().map(|s| s.place.mapped_bytes()).sum()
    }

    /// Bytes taken from the device.
    pub(super) fn reserved(&self) -> u64 {
        self.segments.iter().map(|s| s.pages.reserved()).sum()
    }

    /// The mapped ranges, as addresses and bytes.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.segments.iter().flat_map(|s| s.place.mapped().map(|(offset, bytes)| (s.pages.base() + offset, bytes)))
    }

    /// Calls `see` with the address of each live piece, the piece, and the stream that it was asked for on.
    pub(super) fn each_live(&self, see: &mut dyn FnMut(u64, LivePiece, Option<RawStream>)) {
        for segment in &self.segments {
            segment.place.each_live(0..segment.place.granules(), &mut |piece| {
                let guest = piece.stamp.checked_sub(FIRST).and_then(|at| (*self.guests.get(at as usize)?).as_ref());
                see(segment.pages.base() + piece.offset, piece, guest.map(|guest| guest.raw));
            });
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        self.segments.iter().try_for_each(|s| s.place.check())
    }

    // ------------------------------------------------------------------------------------------------------- captures

    /// True when the capture must begin with a device proof: something is free that another capture's stream had.
    pub(super) fn begin(&mut self) -> bool {
        let tags = (0..self.guests.len() as u32).map(|i| FIRST + i).chain([UNPROVEN]);
        let mut any = false;
        for tag in tags {
            for segment in &mut self.segments {
                any |= segment.place.tag_bytes(tag) > 0;
                segment.place.relabel(tag, PENDING, true);
            }
        }
        any
    }

    /// The proof that [`Arena::begin`] asked for has come, or has failed; then nothing changed but that it is needed again.
    pub(super) fn begun(&mut self, capture: u64, proven: bool) {
        for segment in &mut self.segments {
            segment.place.relabel(PENDING, if proven { PROVEN } else { UNPROVEN }, true);
            segment.place.consolidate();
        }
        if proven {
            (self.current, self.sole) = (capture, None);
        }
    }

    /// The tag of a stream in the capture that is served now.
    fn guest(&mut self, key: Key, raw: RawStream) -> u32 {
        let capture = self.current;
        let same = |g: &Option<Guest>| g.is_some_and(|g| g.capture == capture && g.key == key);
        if let Some(at) = self.guests.iter().position(same) {
            return FIRST + at as u32;
        }
        // A number is used again when nothing free has it and nothing live is stamped with it.
        let segments = &self.segments;
        let unused = |tag: u32| segments.iter().all(|s| s.place.tag_unused(tag));
        let over =
            |(at, g): (usize, &Option<Guest>)| g.is_none_or(|g| g.capture != capture) && unused(FIRST + at as u32);
        let at = self.guests.iter().enumerate().position(over).unwrap_or(self.guests.len());
        if at == self.guests.len() {
            self.guests.push(None);
        }
        let first = !self.guests.iter().flatten().any(|g| g.capture == capture);
        self.guests[at] = Some(Guest { capture, key, raw });
        let tag = FIRST + at as u32;
        if first {
            self.sole = Some(tag);
            for segment in &mut self.segments {
                segment.place.relabel(PROVEN, tag, true);
            }
        } else if let Some(only) = self.sole.take() {
            // What the first one has never had is for everyone.
            for segment in &mut self.segments {
                segment.place.prove_untouched(only);
            }
        }
        tag
    }

    // ------------------------------------------------------------------------------------------------------- memory

    /// Takes memory for a stream of the current capture; gives the address.
    pub(super) fn take(&mut self, request: &Request, key: Key, raw: RawStream) -> Option<u64> {
        let tag = self.guest(key, raw);
        let tags = [tag, PROVEN];
        for drained in [false, true] {
            for segment in &mut self.segments {
                if drained {
                    segment.place.consolidate();
                }
                if let Some(offset) = segment.take(request, &tags, tag) {
                    return Some(segment.pages.base() + offset);
                }
            }
        }
        None
    }

    /// Where a growth for the request would go: `None` when a new segment is needed. `left` bounds the usable bytes.
    pub(super) fn plan(&mut self, request: &Request, key: Key, raw: RawStream, left: u64) -> Option<Growth> {
        let tag = self.guest(key, raw);
        let (bytes, align) = (request.bytes as u64, request.align as u64);
        // Small sizes borrow from the large zone; what they borrow need not be aligned.
        let need = match zone_of(bytes) {
            SMALL => Place::need(bytes, align) + align.max(UNIT) - UNIT,
            _ => Place::need(bytes, align),
        };
        let mut best: Option<Growth> = None;
        for (at, segment) in self.segments.iter().enumerate() {
            let plans = segment.pages.plans(&segment.place, LARGE, &[tag, PROVEN], need, align.max(UNIT), left);
            if let Some(plan) = plans.into_iter().next()
                && best.as_ref().is_none_or(|b| plan.bytes < b.plan.bytes)
            {
                best = Some(Growth { segment: at, pages: segment.pages.clone(), plan });
            }
        }
        best
    }

    /// Bytes of addresses that the next segment should have for the request.
    pub(super) fn next_span(&self, request: &Request) -> u64 {
        let last = self.segments.last().map_or(SPAN / 4, |s| s.pages.span());
        (4 * last).max((2 * (request.bytes as u64 + request.align as u64)).next_multiple_of(PAGE))
    }

    /// Adds a segment; gives its number.
    pub(super) fn add_segment(&mut self, pages: VirtualRange) -> usize {
        let place = Place::new(pages.span(), pages.span());
        self.segments.push(Segment { place, pages: Arc::new(pages) });
        self.segments.len() - 1
    }

    /// The address range of a segment.
    pub(super) fn base_of(&self, segment: usize) -> u64 {
        self.segments[segment].pages.base()
    }

    /// Books what a growth took.
    pub(super) fn grown(&mut self, growth: &Growth) {
        let Some(segment) = self.segments.get_mut(growth.segment) else { return };
        let tag = self.sole.unwrap_or(PROVEN);
        segment.place.extend(growth.plan.offset, growth.plan.usable, tag, LARGE);
    }

    /// The live block that contains an address of a segment.
    pub(super) fn around(&self, segment: usize, ptr: u64) -> Result<Entry, Fault> {
        let segment = self.segments.get(segment).ok_or(Fault::Unknown)?;
        segment.place.around(ptr - segment.pages.base())
    }

    /// The live block that starts at an address of a segment.
    pub(super) fn entry(&self, segment: usize, ptr: u64) -> Result<Entry, Fault> {
        let segment = self.segments.get(segment).ok_or(Fault::Unknown)?;
        segment.place.entry(ptr - segment.pages.base())
    }

    /// The stream that a live block was asked for on, and its capture.
    pub(super) fn booked(&self, entry: &Entry) -> Option<(RawStream, u64)> {
        let guest = (*self.guests.get(entry.stamp.checked_sub(FIRST)? as usize)?)?;
        Some((guest.raw, guest.capture))
    }

    /// Frees a block.
    pub(super) fn free(&mut self, segment: usize, entry: &Entry, freed: Freed) {
        let tag = match freed {
            Freed::InCapture { key, raw } => self.guest(key, raw),
            Freed::AsBooked => {
                self.eager = true;
                entry.stamp
            }
            Freed::Eagerly => {
                self.eager = true;
                UNPROVEN
            }
            Freed::Unknown => {
                self.eager = true;
                HELD
            }
        };
        if let Some(segment) = self.segments.get_mut(segment) {
            segment.place.free(entry, tag);
        }
    }

    /// Gives the pages back; nothing uses them any more. What the driver does not take, twice in a row, may be tried again. Of
    /// a device that is lost nothing is.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn clear(&self) -> Result<()> {
        let clear = |segment: &Segment| segment.pages.clear().or_else(|_| segment.pages.clear());
        crate::device::settled(self.segments.iter().try_for_each(clear))
    }

    /// Lets go of the pages without a driver call: the process is ending or was forked.
    pub(super) fn forget(self) {
        for segment in &self.segments {
            segment.pages.forget();
        }
    }
}

/// What a free is known to be ordered with.
#[derive(Clone, Copy)]
pub(super) enum Freed {
    /// The work of a stream in the capture that is served now.
    InCapture { key: Key, raw: RawStream },
    /// The stream that the block was booked with, by a value that nobody may ask: in its capture, or after it.
    AsBooked,
    /// Eager work.
    Eagerly,
    /// Work that some other graph may have recorded.
    Unknown,
}

impl Segment {
    fn take(&mut self, request: &Request, tags: &[u32], stamp: u32) -> Option<u64> {
        let (bytes, align) = (request.bytes as u64, request.align as u64);
        let zone = zone_of(bytes);
        if let Some(offset) = self.place.allocate(bytes, align, tags, stamp, request.owner, zone) {
            return Some(offset);
        }
        if zone != SMALL {
            return None;
        }
        let need = Place::need(bytes, align) + align.max(UNIT) - UNIT;
        for amount in [FEED.max(need), need] {
            if self.place.feed(amount, tags)
                && let Some(offset) = self.place.allocate(bytes, align, tags, stamp, request.owner, zone)
            {
                return Some(offset);
            }
        }
        None
    }
}
