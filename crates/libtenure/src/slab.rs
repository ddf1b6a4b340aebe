//! Places for buffers and streams, found by an opaque 64-bit value.
//!
//! ```text
//!   handle = tag (4 bits) | generation (30 bits) | index (30 bits)
//!
//!   thread: free places, 64 at most  <--32 at a time-->  free places of all threads
//! ```
//!
//! A tenant is worked on in its place, which says meanwhile that it is out (see `place.rs`). A second call that names the
//! same tenant then is an error and not a wait, so that a callback which names the buffer that it is being called for gets an
//! answer. What only reads a tenant or adds to it, and calls nobody, holds it for that long ([`Slab::peek`]): any number of
//! threads may do so at once.
//!
//! A thread takes the place that it gave back last, and where it has none some that others gave back, and only then a new one:
//! where one thread makes and another ends, the places go round. What an ending thread has goes to all.
//!
//! **Cost**: a tenant comes and goes with one compare-exchange. What the thread has is found through what its caller has looked
//! up already (`thread.rs` of the engine).
//!
//! Unsafe in this file: letting tenants into places and out of them (`place.rs`), and the way to what the thread has.

use std::cell::Cell;

use tenure_core::chunks::Chunks;
use tenure_core::error::{Error, Result};
use tenure_core::sync::Mutex;
use tenure_core::sync::atomic::{AtomicUsize, Ordering};
use tenure_core::thread::{self, Local};
use tenure_driver::process;

use crate::place::{Held, Place, Refusal};

const CHUNK: usize = 256;
/// Chunks of a slab for what a program may have millions of.
pub(crate) const MANY: usize = 1 << 16;
/// Chunks of a slab for what a program has a few of. The list of them lies in the library's file.
pub(crate) const FEW: usize = 1 << 8;
const INDEX_BITS: u32 = 30;
const MASK: u64 = (1 << INDEX_BITS) - 1;
/// Free places that a thread keeps at most, and how many go at a time.
const NEAR: usize = 64;
const BATCH: usize = NEAR / 2;
/// No tag is above.
const TAGS: usize = 8;

/// The free places of all threads.
struct Free {
    /// How many there are, for those who look for some: read without the lock.
    count: AtomicUsize,
    places: Mutex<Vec<u32>>,
}

impl Free {
    /// Takes some, and gives one of them.
    #[cold]
    fn draw(&self, into: &Near) -> Option<u32> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut places = self.places.lock();
        let keep = places.len().saturating_sub(BATCH);
        for place in places.drain(keep..) {
            into.push(place);
        }
        self.count.store(keep, Ordering::Relaxed);
        into.pop()
    }

    /// Gives some back.
    #[cold]
    fn give(&self, given: impl IntoIterator<Item = u32>) {
        let mut places = self.places.lock();
        places.extend(given);
        self.count.store(places.len(), Ordering::Relaxed);
    }
}

/// The free places that a thread has of one slab.
struct Near {
    /// Where they go when the thread ends; none before the first and after the end.
    home: Cell<Option<&'static Free>>,
    count: Cell<usize>,
    places: [Cell<u32>; NEAR],
}

impl Near {
    const fn none() -> Self {
        Self { home: Cell::new(None), count: Cell::new(0), places: [const { Cell::new(0) }; NEAR] }
    }

    /// The place that came last.
    #[inline(always)]
    fn pop(&self) -> Option<u32> {
        let last = self.count.get().checked_sub(1)?;
        self.count.set(last);
        self.places.get(last).map(Cell::get)
    }

    /// Keeps a place; false where there is no room.
    #[inline(always)]
    fn push(&self, place: u32) -> bool {
        let count = self.count.get();
        let room = self.places.get(count);
        if let Some(room) = room {
            room.set(place);
            self.count.set(count + 1);
        }
        room.is_some()
    }

    /// Gives all but `keep` to whoever needs some.
    #[cold]
    fn give(&self, home: &Free, keep: usize) {
        home.give((keep..self.count.get()).filter_map(|_| self.pop()));
    }
}

/// Gives what the thread has of each slab to all when it ends.
struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        NEARBY.with(|nearby| {
            for near in nearby {
                // In a forked child the lock may be held by a thread that does not exist.
                if let Some(home) = near.home.take().filter(|_| !process::unusable()) {
                    near.give(home, 0);
                }
            }
        });
    }
}

thread_local! {
    /// By the tag of the slab. On its own, since what needs no clean-up is read without asking whether the thread is ending.
    static NEARBY: [Near; TAGS] = const { [const { Near::none() }; TAGS] };
    static LEAVING: Leaving = const { Leaving };
}

/// On cache lines of its own: neighbours belong to several threads.
#[repr(align(64))]
struct Own<T, V>(Place<T, V>);

/// A set of tenants `T`, each with a copy of what may be asked of it at any time, `V`.
pub(crate) struct Slab<T: 'static, V: 'static, const CHUNKS: usize> {
    tag: u64,
    what: &'static str,
    view: fn(&T) -> V,
    chunks: Chunks<Own<T, V>, CHUNK, CHUNKS>,
    used: AtomicUsize,
    free: Free,
}

/// A vacant place that one thread has. It must be settled: one that is dropped is not given out again.
#[must_use]
pub(crate) struct Vacancy<T: 'static, V: 'static> {
    place: &'static Place<T, V>,
    index: u64,
    tag: u64,
}

impl<T, V> Vacancy<T, V> {
    /// Lets a tenant in, made where it will be, and gives its handle.
    #[inline(always)]
    pub(crate) fn settle(self, make: impl FnOnce() -> T) -> u64 {
        let generation = self.place.generation() + 1;
        // SAFETY: the place came from the free ones, or is new: it is vacant, and this thread has it alone.
        unsafe { self.place.settle(generation, make) };
        (self.tag << 60) | (generation << INDEX_BITS) | self.index
    }
}

/// In a forked child whoever holds a place may be a thread that does not exist.
fn is_lost() -> bool {
    process::forked()
}

impl<T: Send, V: Copy + Send, const CHUNKS: usize> Slab<T, V, CHUNKS> {
    /// An empty one. Slabs of one process have different tags, all below [`TAGS`].
    pub(crate) const fn new(tag: u64, what: &'static str, view: fn(&T) -> V) -> Self {
        Self {
            tag,
            what,
            view,
            chunks: Chunks::new(),
            used: AtomicUsize::new(0),
            free: Free { count: AtomicUsize::new(0), places: Mutex::new(Vec::new()) },
        }
    }

    /// How many places were ever made use of.
    #[cfg(test)]
    pub(crate) fn places(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn place(&self, index: usize) -> Option<&'static Place<T, V>> {
        self.chunks.get(index).map(|own| &own.0)
    }

    /// The number of the place that a handle names, whoever is there.
    #[inline]
    pub(crate) fn index(&self, handle: u64) -> Option<usize> {
        (handle >> 60 == self.tag).then_some((handle & MASK) as usize)
    }

    #[inline]
    fn find(&self, handle: u64) -> Option<(&Place<T, V>, u64)> {
        Some((self.place(self.index(handle)?)?, (handle >> INDEX_BITS) & MASK))
    }

    #[cold]
    fn bad(&self) -> Error {
        Error::BadHandle(format!("this {} handle is null, was given back, or is not one of tenure's", self.what))
    }

    #[cold]
    fn refused(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Bad => self.bad(),
            Refusal::Busy => Error::invalid(format!(
                "another call is working on this {0}: a {0} is used by one call at a time",
                self.what
            )),
            Refusal::Lost => Error::Forked,
        }
    }

    #[inline]
    fn hold(&self, handle: u64) -> Result<Held<'_, T, V>> {
        let (place, generation) = self.find(handle).ok_or_else(|| self.bad())?;
        place.hold(generation, is_lost).map_err(|refusal| self.refused(refusal))
    }

    /// What this thread has nearby; `None` where it is ending.
    #[inline(always)]
    fn near<'a>(&'static self, here: &'a Local) -> Option<&'a Near> {
        let mut nearby = here.face.get();
        if nearby.is_null() {
            nearby = Self::seek_nearby(here);
        }
        // SAFETY: it is this thread's, which only this file notes there, has no destructor, and is there until the thread's
        // end, as `here` is.
        let near = unsafe { &(*nearby.cast::<[Near; TAGS]>())[self.tag as usize % TAGS] };
        (near.home.get().is_some() || self.settle_near(near)).then_some(near)
    }

    #[cold]
    #[inline(never)]
    fn seek_nearby(here: &Local) -> *const () {
        let nearby = NEARBY.with(|nearby| std::ptr::from_ref(nearby).cast());
        here.face.set(nearby);
        nearby
    }

    #[cold]
    #[inline(never)]
    fn settle_near(&'static self, near: &Near) -> bool {
        // From here on the thread gives back what it has when it ends.
        let stays = LEAVING.try_with(|_| ()).is_ok();
        if stays {
            near.home.set(Some(&self.free));
        }
        stays
    }

    /// A place that nobody has: of this thread's, else of all.
    #[inline(always)]
    fn free_place(&'static self, here: &Local) -> Option<u32> {
        let near = self.near(here)?;
        near.pop().or_else(|| self.free.draw(near))
    }

    /// Nobody is there any more.
    #[inline(always)]
    fn vacated(&'static self, handle: u64, here: &Local) {
        // A place whose generations are used up is not given out again, so that no handle ever comes back.
        let Some(index) = self.index(handle).filter(|_| (handle >> INDEX_BITS) & MASK < MASK) else { return };
        match self.near(here) {
            Some(near) if near.push(index as u32) => {}
            Some(near) => {
                near.give(&self.free, NEAR - BATCH);
                near.push(index as u32);
            }
            None => self.free.give([index as u32]),
        }
    }

    /// Takes a tenant in.
    ///
    /// # Errors
    /// There are too many; the tenant is dropped.
    #[inline]
    pub(crate) fn insert(&'static self, tenant: T) -> Result<u64> {
        match thread::with(|here| self.vacancy(here)) {
            Some(vacancy) => Ok(vacancy.settle(|| tenant)),
            None => Err(self.full()),
        }
    }

    /// A place for one tenant; `None` where there are too many.
    #[inline(always)]
    pub(crate) fn vacancy(&'static self, here: &Local) -> Option<Vacancy<T, V>> {
        let index = match self.free_place(here) {
            Some(index) => index as usize,
            None => self.new_place()?,
        };
        let place = self.place(index)?;
        Some(Vacancy { place, index: index as u64, tag: self.tag })
    }

    #[cold]
    #[inline(never)]
    fn new_place(&self) -> Option<usize> {
        let index = self.used.fetch_add(1, Ordering::Relaxed);
        if self.chunks.reach(index, |_| Own(Place::default())).is_none() {
            self.used.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(index)
    }

    /// Why there was no [`vacancy`](Self::vacancy).
    #[cold]
    #[inline(never)]
    pub(crate) fn full(&self) -> Error {
        Error::invalid(format!("more than {} {}s are alive", CHUNKS * CHUNK, self.what))
    }

    /// What may be asked at any time.
    #[inline]
    pub(crate) fn view(&self, handle: u64) -> Result<V> {
        let (place, generation) = self.find(handle).ok_or_else(|| self.bad())?;
        place.view(generation, self.view, is_lost).map_err(|refusal| self.refused(refusal))
    }

    /// Works on a tenant, which comes back also when `f` panics.
    pub(crate) fn with<R>(&self, handle: u64, f: impl FnOnce(&mut T) -> R) -> Result<R> {
        let mut taken = self.hold(handle)?.take(self.view);
        Ok(f(&mut taken))
    }

    /// Works on a tenant that leaves when `f` says `Ok`, and stays when it says `Err`.
    pub(crate) fn remove(&'static self, handle: u64, f: impl FnOnce(&mut T) -> Result<()>) -> Result<T> {
        let mut taken = self.hold(handle)?.take(self.view);
        f(&mut taken)?;
        // SAFETY: the place is given out again below.
        let tenant = unsafe { taken.end() };
        thread::with(|here| self.vacated(handle, here));
        Ok(tenant)
    }

    /// Ends a tenant where `f` says `Some`; `None`, with nothing changed, where it does not, and for a handle that is not right.
    /// The tenant is held meanwhile: `f` must be short and call nobody. It is forgotten then and not dropped: `f` takes out of
    /// it what must be.
    #[inline(always)]
    pub(crate) fn end_if<R>(
        &'static self,
        handle: u64,
        here: &Local,
        f: impl FnOnce(&mut T) -> Option<R>,
    ) -> Option<R> {
        let (place, generation) = self.find(handle)?;
        let mut held = place.hold(generation, is_lost).ok()?;
        let answer = f(&mut held)?;
        held.end();
        self.vacated(handle, here);
        Some(answer)
    }

    /// Reads a tenant that is held meanwhile: `f` must be short and call nobody.
    pub(crate) fn peek<R>(&self, handle: u64, f: impl FnOnce(&mut T) -> R) -> Result<R> {
        Ok(f(&mut *self.hold(handle)?))
    }
}
