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
//! **Cost**: a tenant comes and goes with one compare-exchange, and a read of the thread's own storage for each.

use std::cell::RefCell;

use tenure_core::error::{Error, Result};
use tenure_core::sync::atomic::{AtomicUsize, Ordering};
use tenure_core::sync::{Mutex, OnceCell};
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
    /// Takes some.
    #[cold]
    fn draw(&self, into: &mut Vec<u32>) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut places = self.places.lock();
        let keep = places.len().saturating_sub(BATCH);
        into.extend(places.drain(keep..));
        self.count.store(keep, Ordering::Relaxed);
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
    home: Option<&'static Free>,
    places: Vec<u32>,
}

/// What a thread has of each slab, by the tag.
struct Nearby([Near; TAGS]);

impl Drop for Nearby {
    fn drop(&mut self) {
        if process::unusable() {
            // In a forked child the lock may be held by a thread that does not exist.
            return;
        }
        for near in &mut self.0 {
            if let Some(home) = near.home {
                home.give(near.places.drain(..));
            }
        }
    }
}

thread_local! {
    static NEARBY: RefCell<Nearby> =
        const { RefCell::new(Nearby([const { Near { home: None, places: Vec::new() } }; TAGS])) };
}

/// On cache lines of its own: neighbours belong to several threads.
#[repr(align(64))]
struct Own<T, V>(Place<T, V>);

type Chunk<T, V> = Box<[Own<T, V>]>;

/// A set of tenants `T`, each with a copy of what may be asked of it at any time, `V`.
pub(crate) struct Slab<T: 'static, V: 'static, const CHUNKS: usize> {
    tag: u64,
    what: &'static str,
    view: fn(&T) -> V,
    chunks: [OnceCell<Chunk<T, V>>; CHUNKS],
    used: AtomicUsize,
    free: Free,
}

/// In a forked child whoever holds a place may be a thread that does not exist.
fn is_lost() -> bool {
    process::forked()
}

impl<T, V: Copy, const CHUNKS: usize> Slab<T, V, CHUNKS> {
    /// An empty one. Slabs of one process have different tags, all below [`TAGS`].
    pub(crate) const fn new(tag: u64, what: &'static str, view: fn(&T) -> V) -> Self {
        Self {
            tag,
            what,
            view,
            chunks: [const { OnceCell::new() }; CHUNKS],
            used: AtomicUsize::new(0),
            free: Free { count: AtomicUsize::new(0), places: Mutex::new(Vec::new()) },
        }
    }

    /// How many places were ever made use of.
    #[cfg(test)]
    pub(crate) fn places(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    #[inline]
    fn place(&self, index: usize) -> Option<&Place<T, V>> {
        Some(&self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)?.0)
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

    /// Runs `f` with what this thread has nearby; `None` where its storage is gone.
    #[inline]
    fn near<R>(&'static self, f: impl FnOnce(&mut Vec<u32>) -> R) -> Option<R> {
        let near = |nearby: &RefCell<Nearby>| {
            let mut nearby = nearby.try_borrow_mut().ok()?;
            let near = &mut nearby.0[self.tag as usize % TAGS];
            if near.home.is_none() {
                near.home = Some(&self.free);
                near.places.reserve(NEAR);
            }
            Some(f(&mut near.places))
        };
        NEARBY.try_with(near).ok().flatten()
    }

    /// A place that nobody has: of this thread's, else of all.
    #[inline]
    fn free_place(&'static self) -> Option<u32> {
        self.near(|places| {
            if places.is_empty() {
                self.free.draw(places);
            }
            places.pop()
        })
        .flatten()
    }

    /// Nobody is there any more.
    #[inline(always)]
    fn vacated(&'static self, handle: u64) {
        // A place whose generations are used up is not given out again, so that no handle ever comes back.
        let Some(index) = self.index(handle).filter(|_| (handle >> INDEX_BITS) & MASK < MASK) else { return };
        let kept = self.near(|places| {
            if places.len() >= NEAR {
                self.free.give(places.drain(..BATCH));
            }
            places.push(index as u32);
        });
        if kept.is_none() {
            self.free.give([index as u32]);
        }
    }

    /// Takes a tenant in.
    ///
    /// # Errors
    /// There are too many; the tenant is dropped.
    #[inline]
    pub(crate) fn insert(&'static self, tenant: T) -> Result<u64> {
        self.insert_with(|| tenant)
    }

    /// Takes in a tenant that is made in its place.
    ///
    /// # Errors
    /// There are too many; the tenant is made and dropped.
    #[inline]
    pub(crate) fn insert_with(&'static self, make: impl FnOnce() -> T) -> Result<u64> {
        let found = match self.free_place() {
            Some(index) => Ok(index as usize),
            None => self.new_place(),
        };
        let found = found.and_then(|index| match self.place(index) {
            Some(place) => Ok((index, place)),
            None => Err(Error::Internal("a place of a slab is missing".into())),
        });
        match found {
            Ok((index, place)) => {
                let generation = place.generation() + 1;
                // SAFETY: the place came from the free ones, or is new: it is vacant, and this thread has it alone.
                unsafe { place.settle(generation, make) };
                Ok((self.tag << 60) | (generation << INDEX_BITS) | index as u64)
            }
            Err(error) => {
                drop(make());
                Err(error)
            }
        }
    }

    #[cold]
    fn new_place(&self) -> Result<usize> {
        let index = self.used.fetch_add(1, Ordering::Relaxed);
        let Some(chunk) = self.chunks.get(index / CHUNK) else {
            self.used.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::invalid(format!("more than {} {}s are alive", CHUNKS * CHUNK, self.what)));
        };
        chunk.get_or_init(|| (0..CHUNK).map(|_| Own(Place::default())).collect());
        Ok(index)
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
        self.vacated(handle);
        Ok(tenant)
    }

    /// Ends a tenant where `f` says so; false, with nothing changed, where it does not, and for a handle that is not right.
    /// The tenant is held meanwhile: `f` must be short and call nobody.
    #[inline(always)]
    pub(crate) fn end_if(&'static self, handle: u64, f: impl FnOnce(&mut T) -> bool) -> bool {
        let Some((place, generation)) = self.find(handle) else { return false };
        let Ok(mut held) = place.hold(generation, is_lost) else { return false };
        if !f(&mut held) {
            return false;
        }
        // SAFETY: the place is given out again below.
        unsafe { held.end() };
        self.vacated(handle);
        true
    }

    /// Reads a tenant that is held meanwhile: `f` must be short and call nobody.
    pub(crate) fn peek<R>(&self, handle: u64, f: impl FnOnce(&mut T) -> R) -> Result<R> {
        Ok(f(&mut *self.hold(handle)?))
    }
}
