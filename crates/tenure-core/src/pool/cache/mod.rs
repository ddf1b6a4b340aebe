//! *cache*: what a thread has freed and may have again, without a word that another thread touches.
//!
//! ```text
//!   thread 1 --> desk | magazine of stream A:  256 B [ooo]  512 B [o]  1 KiB [oooo] ...      pieces, freed on A
//!                     | magazine of stream B:  ...
//!                     | outbox:  pieces of A that were freed on B
//!                     | parked:  the last large block, freed on A
//!                     | plot of stream A:  large free memory that this thread divides    (only in a crowd)
//!                     | credit:  bytes that are not in the pool's figures yet
//!   thread 2 --> desk | ...
//!                          |  full, needed elsewhere, or another large size: given back in one go
//!                          v
//!                     the placer, under the pool's lock, with the tag of the stream
//! ```
//!
//! A piece in a magazine is *held*: handed out as far as the placer is concerned, free as far as anyone else is. Allocating
//! takes it back for the same stream with two stores. A free that finds the piece booked for the stream it names puts it in
//! the magazine with one compare-exchange; one that names another stream of this desk goes to the outbox.
//!
//! **A large block** is worth a place where it merges. So a desk parks one, and gives it back as soon as it is asked for
//! anything else; a loop that allocates and frees one size meets the same block, and the placer sees no difference.
//!
//! **In a crowd** this is not enough: of random large sizes hardly one meets the block that is parked, and threads that come to
//! the placer each time wait for each other there. A desk that finds the pool's lock taken again and again counts as
//! *crowded*. It then gets a *plot* for its stream ([`Plot`]): the placer lends it large free memory, a share more each time it
//! does not suffice, and the desk cuts and merges in it without the lock. Its magazines of small sizes become larger too, and it
//! tells the figures of live bytes in larger steps. When plots are given up: `crowd.rs`.
//!
//! **Invariants**
//! * I2: what is in the magazine of a stream was freed in that stream's order, and goes back with its tag.
//! * A record with a magazine anywhere is not dropped (`Record::magazines`), so that a stamp in a desk is never another
//!   stream's.
//! * The lock of a desk (`threshold.rs`: its own thread's, and others knock) is taken before the pool's lock, never after; the
//!   list of desks before both. No driver call, no
//!   upstream, no user code under any of them.
//! * The published figure of live bytes is never above the truth (`tally.rs`).
//!
//! **Cost**: a pair is two stays at the desk (two stores each) and a compare-exchange of its own thread. A magazine holds at most
//! [`CLASS_BYTES`] or [`LEAST`] pieces of a class.

mod collected;
mod seat;

use crossbeam_utils::CachePadded;
use tenure_driver::RawStream;

pub(super) use self::collected::{Collected, Which};
use super::State;
use super::at_hand::Recent;
use super::order::{Key, cur};
use super::place::{CLASSES, Held, Plot, UNIT, class_units};
use crate::adaptor::tally::Shared;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex};
use crate::thread::{self, Local};
pub(super) use crate::threshold::Hold;
use crate::threshold::{Threshold, knock};

/// Bytes of one class that a magazine holds at most.
const CLASS_BYTES: u64 = 64 << 10;
/// The same where threads are in each other's way.
const CROWDED_BYTES: u64 = 512 << 10;
/// Pieces of a class that a magazine may hold whatever their size.
const LEAST: u64 = 2;
/// Pieces of a class that it holds at most.
const MOST: u64 = 64;
const _: () = assert!(MOST <= u8::MAX as u64);
/// Magazines of one desk; the one used longest ago goes.
const MAGAZINES: usize = 8;
/// Pieces in the outbox.
const OUTBOX: usize = 32;
/// Large blocks in it that wait for the next visit of the placer.
const PATIENCE: usize = 4;
/// Bytes that a desk may keep out of the pool's figures.
const CREDIT: i64 = 1 << 20;
/// What a visit adds that found the pool's lock in other hands; one that did not takes one off.
const CROWD_STEP: u32 = 8;
/// From here on a desk is crowded.
const CROWD: u32 = 64;
/// No more is counted.
const CROWD_MOST: u32 = 4 * CROWD;
/// What a plot gets at a time: this share of what it has, but at least and at most so many bytes.
const PLOT_SHARE: u64 = 4;
const PLOT_LEAST: u64 = 2 << 20;
const PLOT_MOST: u64 = 32 << 20;
/// Pieces of a plot that wait for other streams before it is given up.
const STRANGERS: usize = 32;
/// The same where threads are in each other's way: each time it is told, all of them read the figure anew.
const CROWDED_CREDIT: i64 = 8 << 20;
/// So many desks whose threads have ended are left standing until a slow path comes by.
const LEFT: usize = 16;

/// How many pieces of a class a magazine holds at most.
fn room(class: usize) -> usize {
    (CLASS_BYTES / (u64::from(class_units(class)) * UNIT)).clamp(LEAST, MOST) as usize
}

/// How many it holds at most where threads are in each other's way.
fn crowded_room(class: usize) -> usize {
    (CROWDED_BYTES / (u64::from(class_units(class)) * UNIT)).clamp(LEAST, MOST) as usize
}

/// The pieces of one class.
struct Stack {
    pieces: Vec<Held>,
    /// How many to take when there are none: doubles each time.
    wants: u8,
    /// How many there may be.
    room: u8,
}

/// What was freed in the order of one stream.
struct Magazine {
    key: u64,
    raw: RawStream,
    record: u32,
    stamp: u32,
    classes: Box<[Stack; CLASSES]>,
    /// What large sizes are served from, where threads are in each other's way.
    plot: Option<Box<Plot>>,
}

/// A block above the small sizes.
struct Parked {
    held: Held,
    units: u32,
    stamp: u32,
}

/// What to do where somebody else has a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    /// Wait for it.
    Wait,
    /// Do without.
    Try,
}

/// What a desk has. See the module.
#[derive(Default)]
pub(super) struct Drawer {
    /// The one used last is first.
    magazines: Vec<Magazine>,
    outbox: Vec<(Held, u32)>,
    parked: Option<Parked>,
    /// The block of a free, for the next one. It may be anybody's by now.
    pub(super) recent: Option<Recent>,
    credit: i64,
    /// How often the pool's lock was in somebody else's hands: see [`Drawer::met`].
    crowd: u32,
}

/// One thread's part of one pool.
pub(super) struct Desk {
    pool: u64,
    /// The thread has ended.
    left: AtomicBool,
    /// The pool has ended.
    closed: AtomicBool,
    drawer: CachePadded<Threshold<Drawer>>,
}

impl Drawer {
    /// The magazine of an identity, by its [code](Key::code).
    #[inline(always)]
    fn magazine(&mut self, key: u64) -> Option<&mut Magazine> {
        if self.magazines.first()?.key != key {
            let at = self.magazines.iter().position(|m| m.key == key)?;
            self.magazines.swap(0, at);
        }
        self.magazines.first_mut()
    }

    /// The record of an identity, as far as this desk knows it.
    #[inline]
    pub(super) fn record_of(&mut self, key: u64) -> Option<u32> {
        self.magazine(key).map(|magazine| magazine.record)
    }

    /// A piece of a class for an identity: held until the caller hands it out.
    #[inline(always)]
    pub(super) fn pop(&mut self, key: u64, class: usize) -> Option<(Held, u32)> {
        let magazine = self.magazine(key)?;
        Some((magazine.classes[class].pieces.pop()?, magazine.stamp))
    }

    /// Whether some stream that had this value left what is wanted here.
    pub(super) fn may_have(&self, raw: RawStream, class: usize, units: u32) -> bool {
        self.magazines.iter().filter(|m| m.raw == raw).any(|m| match m.classes.get(class) {
            Some(stack) => !stack.pieces.is_empty(),
            None => {
                self.parked.as_ref().is_some_and(|p| p.units == units && p.stamp == m.stamp)
                    || m.plot.as_ref().is_some_and(|plot| plot.fits(units))
            }
        })
    }

    /// The parked block, where it is what is wanted.
    #[inline]
    pub(super) fn unpark(
        &mut self,
        key: u64,
        units: u32,
        align: u64,
        ptr_of: impl Fn(u64) -> u64,
    ) -> Option<(Held, u32)> {
        let parked = self.parked.as_ref().filter(|p| p.units == units)?;
        let (held, stamp) = (parked.held, parked.stamp);
        if !ptr_of(u64::from(held.unit) * UNIT).is_multiple_of(align) || self.magazine(key)?.stamp != stamp {
            return None;
        }
        self.parked = None;
        Some((held, stamp))
    }

    /// The stamp of the stream that a free names, if this desk knows it: by its identity, or by the value that the piece was
    /// booked with.
    #[inline(always)]
    pub(super) fn stamp_for(&mut self, key: Option<u64>, raw: RawStream, booked: u32) -> Option<u32> {
        match key {
            Some(key) => self.magazine(key).map(|m| m.stamp),
            None => self.magazines.iter().find(|m| m.stamp == booked && m.raw == raw).map(|m| m.stamp),
        }
    }

    /// The magazine with a stamp. Hardly ever another one than the first.
    #[inline(always)]
    fn stamped(&mut self, stamp: u32) -> Option<&mut Magazine> {
        if self.magazines.first()?.stamp == stamp {
            return self.magazines.first_mut();
        }
        self.magazines.iter_mut().find(|m| m.stamp == stamp)
    }

    /// Keeps a claimed piece of a class; false when the magazine is full then.
    #[inline(always)]
    pub(super) fn push(&mut self, held: Held, class: usize, stamp: u32) -> bool {
        let Some(magazine) = self.stamped(stamp) else { return false };
        let stack = &mut magazine.classes[class];
        stack.pieces.push(held);
        stack.pieces.len() < usize::from(stack.room)
    }

    /// A piece of the stream's plot.
    #[inline]
    pub(super) fn cut(&mut self, key: u64, units: u32) -> Option<(Held, u32)> {
        let magazine = self.magazine(key)?;
        Some((magazine.plot.as_mut()?.cut(units)?, magazine.stamp))
    }

    /// Gives a large block to the plot that it is of; false where it is of none.
    #[inline]
    fn replant(&mut self, held: &Held, stamp: u32) -> bool {
        let magazine = self.stamped(stamp);
        let plot = magazine.and_then(|m| m.plot.as_mut()).filter(|plot| plot.owns(held));
        plot.map(|plot| plot.take_back(held)).is_some()
    }

    /// Keeps a claimed piece that was freed in another stream's order than it was booked for; false when that is enough.
    #[inline]
    pub(super) fn send(&mut self, held: Held, stamp: u32) -> bool {
        self.outbox.push((held, stamp));
        self.outbox.len() < OUTBOX
    }

    /// Whether what is in the outbox may wait for the desk's next visit of the placer.
    #[inline]
    pub(super) fn may_wait(&self) -> bool {
        self.outbox.len() < PATIENCE
    }

    /// Keeps a claimed large block; gives the one that was parked before, unless a plot has it now.
    #[inline]
    pub(super) fn park(&mut self, held: Held, units: u32, stamp: u32) -> Option<(Held, u32)> {
        let before = self.parked.replace(Parked { held, units, stamp })?;
        (!self.replant(&before.held, before.stamp)).then_some((before.held, before.stamp))
    }

    /// Gives back what only waits: the outbox and the parked block.
    #[inline]
    pub(super) fn post(&mut self, state: &mut State) {
        if let Some(parked) = self.parked.take()
            && !self.replant(&parked.held, parked.stamp)
        {
            state.take_back(parked.held, parked.stamp);
        }
        self.post_sent(state);
    }

    /// Gives back the outbox.
    #[inline]
    pub(super) fn post_sent(&mut self, state: &mut State) {
        if self.outbox.is_empty() {
            return;
        }
        for (held, tag) in self.outbox.drain(..) {
            state.take_back(held, tag);
        }
    }

    /// Gives back the older half of a class, or, in a crowd, makes room for more.
    #[cold]
    pub(super) fn spill(&mut self, class: usize, stamp: u32, state: &mut State) {
        self.post(state);
        let is_crowded = self.is_crowded();
        if let Some(magazine) = self.stamped(stamp) {
            let Stack { pieces, room, .. } = &mut magazine.classes[class];
            let most = crowded_room(class);
            if is_crowded && usize::from(*room) < most {
                *room = (usize::from(*room) * 2).min(most) as u8;
                return;
            }
            for held in pieces.drain(..pieces.len().div_ceil(2)) {
                state.take_back(held, stamp);
            }
        }
    }

    /// The magazine of a record, set up if need be: true then.
    pub(super) fn open(&mut self, key: Key, raw: RawStream, record: u32, state: &mut State) -> bool {
        if self.magazine(key.code()).is_some() {
            return false;
        }
        if self.magazines.len() == MAGAZINES
            && let Some(last) = self.magazines.pop()
        {
            self.close(last, state);
        }
        state.records.pin_magazine(record, 1);
        let classes =
            Box::new(std::array::from_fn(|class| Stack { pieces: Vec::new(), wants: 0, room: room(class) as u8 }));
        self.magazines.insert(0, Magazine { key: key.code(), raw, record, stamp: cur(record), classes, plot: None });
        true
    }

    fn close(&mut self, mut magazine: Magazine, state: &mut State) {
        // What waits may have this record's tag.
        self.post(state);
        if let Some(plot) = magazine.plot.take() {
            state.give_up(*plot);
        }
        for held in magazine.classes.iter_mut().flat_map(|stack| stack.pieces.drain(..)) {
            state.take_back(held, magazine.stamp);
        }
        state.records.pin_magazine(magazine.record, -1);
    }

    /// Fills the magazine of an identity from the placer, and gives one piece of it.
    pub(super) fn refill(&mut self, key: u64, class: usize, state: &mut State, tags: &[u32]) -> Option<(Held, u32)> {
        let magazine = self.magazine(key)?;
        let stamp = magazine.stamp;
        let stack = &mut magazine.classes[class];
        let wants = u32::from(stack.wants.max(1));
        let pieces = &mut stack.pieces;
        state.place.hold(class, wants, tags, stamp, |held| pieces.push(held));
        let held = pieces.pop()?;
        stack.wants = (wants * 2).min(u32::from(stack.room) / 2).max(1) as u8;
        Some((held, stamp))
    }

    /// Takes everything out, plots only where they are asked for.
    fn empty(&mut self, plots: bool, out: &mut Collected) {
        out.pieces.extend(self.parked.take().map(|p| (p.held, p.stamp)));
        out.pieces.append(&mut self.outbox);
        for magazine in &mut self.magazines {
            for stack in magazine.classes.iter_mut() {
                out.pieces.extend(stack.pieces.drain(..).map(|held| (held, magazine.stamp)));
                stack.wants = 0;
            }
        }
        if plots {
            self.take_plots(|_| true, out);
        }
    }

    /// Takes out the plots that are asked for.
    fn take_plots(&mut self, which: impl Fn(&Plot) -> bool, out: &mut Collected) {
        for magazine in &mut self.magazines {
            out.plots.extend(magazine.plot.take_if(|plot| which(plot)).map(|plot| *plot));
        }
    }

    /// Takes out what has the tag of a stream; its magazine stays, with its pieces unless `pieces`.
    fn hand_in(&mut self, key: Key, pieces: bool, out: &mut Collected) {
        let Some(magazine) = self.magazines.iter_mut().find(|m| m.key == key.code()) else { return };
        let stamp = magazine.stamp;
        if pieces {
            out.pieces.extend(magazine.classes.iter_mut().flat_map(|s| s.pieces.drain(..)).map(|held| (held, stamp)));
            out.plots.extend(magazine.plot.take().map(|plot| *plot));
        }
        out.pieces.extend(self.parked.take_if(|p| p.stamp == stamp).map(|p| (p.held, stamp)));
        out.pieces.extend(self.outbox.extract_if(.., |(_, tag)| *tag == stamp));
    }

    /// Takes out what has the tag of a stream, and its magazine.
    fn leave(&mut self, key: Key, out: &mut Collected) {
        self.hand_in(key, true, out);
        if let Some(at) = self.magazines.iter().position(|m| m.key == key.code()) {
            out.magazines.push(self.magazines.remove(at).record);
        }
    }

    // -------------------------------------------------------------------------------------------------------- plots

    /// The pool's lock was free, or not. Where it was not at more than a few of the last visits, the desk is crowded.
    #[inline]
    pub(super) fn met(&mut self, others: bool, forced: bool) {
        self.crowd = match (forced, others) {
            (true, _) => CROWD_MOST,
            (_, true) => (self.crowd + CROWD_STEP).min(CROWD_MOST),
            _ => self.crowd.saturating_sub(1),
        };
    }

    /// Whether threads are in each other's way.
    #[inline(always)]
    pub(super) fn is_crowded(&self) -> bool {
        self.crowd >= CROWD
    }

    /// More for the stream's plot, and a piece of it; `None` where the placer has nothing that would do.
    pub(super) fn till(&mut self, key: u64, units: u32, state: &mut State, tags: &[u32]) -> Option<(Held, u32)> {
        let crowd = &mut self.crowd;
        if self.magazines.first()?.key != key {
            return None;
        }
        let magazine = self.magazines.first_mut()?;
        let stamp = magazine.stamp;
        let plot = magazine.plot.get_or_insert_with(|| Box::new(state.place.open_plot(stamp)));
        if state.place.deliver(plot) > STRANGERS {
            // Most of it is for others: a plot is no help here.
            *crowd = 0;
            let plot = magazine.plot.take()?;
            state.give_up(*plot);
            return None;
        }
        state.place.lend_lines(plot);
        if let Some(held) = plot.cut(units) {
            return Some((held, stamp));
        }
        let wish = (plot.units() / PLOT_SHARE).clamp(PLOT_LEAST / UNIT, PLOT_MOST / UNIT) as u32;
        if !state.place.lend(plot, units, wish.max(units), tags) {
            return None;
        }
        Some((plot.cut(units)?, stamp))
    }

    // ------------------------------------------------------------------------------------------------------ figures

    /// `bytes` more are live. A loop that allocates and frees one block stays out of the shared figure, whatever its size.
    #[inline(always)]
    pub(super) fn count_in(&mut self, figures: &Shared, bytes: i64) {
        self.credit = figures.add(self.credit, bytes, self.slack().max(2 * bytes));
    }

    /// `bytes` fewer are live.
    #[inline(always)]
    pub(super) fn count_out(&mut self, figures: &Shared, bytes: i64) {
        self.credit = figures.subtract(self.credit, bytes, self.slack().max(2 * bytes));
    }

    /// Bytes that it may keep out of the figures.
    #[inline(always)]
    fn slack(&self) -> i64 {
        if self.is_crowded() { CROWDED_CREDIT } else { CREDIT }
    }
}

/// All desks of a pool.
pub(super) struct Cache {
    serial: u64,
    desks: Mutex<Vec<Arc<Desk>>>,
    /// Bytes that are live, as far as the desks have told.
    pub(super) figures: CachePadded<Shared>,
    /// Collections that are on their way to the placer.
    pub(super) moving: Arc<AtomicUsize>,
}

impl Cache {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            serial: NEXT.fetch_add(1, Ordering::Relaxed),
            desks: Mutex::default(),
            figures: CachePadded::default(),
            moving: Arc::default(),
        }
    }

    /// What this thread's desk has, held. `None` where a thread is ending and can have no desk; with [`Lock::Try`] also where
    /// somebody else is at it.
    #[inline]
    pub(super) fn drawer(&self, lock: Lock) -> Option<Hold<'_, Drawer>> {
        thread::with(|here| self.drawer_of(here, lock))
    }

    /// [`drawer`](Self::drawer) for a caller who has looked what is this thread's.
    #[inline(always)]
    pub(super) fn drawer_of(&self, here: &Local, lock: Lock) -> Option<Hold<'_, Drawer>> {
        // SAFETY: this pool is alive while it is borrowed, and nothing that holds a drawer takes a seat.
        let desk = match unsafe { seat::desk(self.serial, here) } {
            Some(desk) => desk,
            None => self.set_up(here, lock)?,
        };
        // SAFETY: the desk is this thread's, and nobody else comes to its drawer but as a guest.
        unsafe { if lock == Lock::Wait { Some(desk.drawer.hold()) } else { desk.drawer.try_hold() } }
    }

    /// A desk for this thread.
    #[cold]
    fn set_up(&self, here: &Local, lock: Lock) -> Option<&Desk> {
        let desk = Arc::new(Desk {
            pool: self.serial,
            left: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            drawer: CachePadded::default(),
        });
        let list = if lock == Lock::Wait { Some(self.desks.lock()) } else { self.desks.try_lock() };
        let mut list = list?;
        if !seat::sit(&desk) {
            return None;
        }
        list.push(desk);
        drop(list);
        // SAFETY: as in `drawer_of`.
        unsafe { seat::desk(self.serial, here) }
    }

    /// True when so many threads have ended that their desks are worth a visit.
    pub(super) fn is_crowded(&self) -> bool {
        self.desks.lock().iter().filter(|desk| desk.left.load(Ordering::Relaxed)).count() > LEFT
    }

    /// Takes everything out of the desks, and away those whose threads have ended. The caller gives it to the placer.
    pub(super) fn collect(&self, which: Which) -> Collected {
        self.moving.fetch_add(1, Ordering::AcqRel);
        let mut collected =
            Collected { pieces: Vec::new(), plots: Vec::new(), magazines: Vec::new(), moving: self.moving.clone() };
        let mut desks = self.desks.lock();
        // Each asked once: a thread may end at any time.
        let left: Vec<bool> = desks.iter().map(|desk| desk.left.load(Ordering::Acquire)).collect();
        let asked = || desks.iter().zip(&left).filter(|(_, left)| **left || !matches!(which, Which::Left));
        let knocked = knock(asked().map(|(desk, _)| &*desk.drawer));
        for (knocked, (_, left)) in knocked.into_iter().zip(asked()) {
            let mut drawer = knocked.enter();
            match which {
                Which::Stream(key) => drawer.leave(key, &mut collected),
                Which::Freed(key) => drawer.hand_in(key, true, &mut collected),
                Which::Waiting(key) => drawer.hand_in(key, false, &mut collected),
                Which::All | Which::Left => drawer.empty(true, &mut collected),
                Which::Pieces => drawer.empty(false, &mut collected),
                Which::Plots => drawer.take_plots(|_| true, &mut collected),
                Which::Idle => drawer.take_plots(|plot| plot.is_idle(), &mut collected),
            }
            if *left {
                drawer.empty(true, &mut collected);
                collected.magazines.extend(drawer.magazines.drain(..).map(|m| m.record));
                self.figures.add(std::mem::take(&mut drawer.credit), 0, -1);
            }
        }
        let mut left = left.into_iter();
        desks.retain(|_| left.next() != Some(true));
        collected
    }

    /// How many plots there are, and how many of them are idle.
    pub(super) fn plots(&self) -> (u64, u64) {
        let (mut count, mut idle) = (0, 0);
        let desks = self.desks.lock();
        for knocked in knock(desks.iter().map(|desk| &*desk.drawer)) {
            let drawer = knocked.enter();
            for plot in drawer.magazines.iter().filter_map(|m| m.plot.as_ref()) {
                (count, idle) = (count + 1, idle + u64::from(plot.is_idle()));
            }
        }
        (count, idle)
    }

    /// The pool ends: nobody may look for a desk of it any more.
    pub(super) fn close(&self) -> Collected {
        let collected = self.collect(Which::All);
        for desk in self.desks.lock().drain(..) {
            desk.closed.store(true, Ordering::Relaxed);
        }
        collected
    }
}
