//! Places for buffers and streams, found by an opaque 64-bit value.
//!
//! ```text
//!   handle = tag (4 bits) | generation (30 bits) | index (30 bits)
//! ```
//!
//! A place is locked for as long as it takes to move its tenant in or out, never while the engine works on the tenant: an
//! operation takes the tenant out and puts it back. A second call that names the same tenant meanwhile is an error and not
//! a wait, so that a callback which names the buffer that it is being called for gets an answer. What only reads a tenant
//! or adds to it, and calls nobody, is done under the lock ([`Slab::peek`]): any number of threads may do so at once.
//!
//! A thread takes a free place from its own shard, else half of another's, and only then a new one: where one thread makes
//! and another ends, the places go round.

use tenure_core::error::{Error, Result};
use tenure_core::sync::atomic::{AtomicUsize, Ordering};
use tenure_core::sync::{Mutex, OnceCell};
use tenure_driver::process;

const CHUNK: usize = 256;
const CHUNKS: usize = 1 << 16;
const INDEX_BITS: u32 = 30;
const MASK: u64 = (1 << INDEX_BITS) - 1;
const SHARDS: usize = 16;

/// The free places of the threads that use this shard, on cache lines of its own.
#[repr(align(128))]
struct Free {
    /// How many there are, for those who look for some: read without the lock.
    count: AtomicUsize,
    places: Mutex<Vec<u32>>,
}

enum Tenant<T> {
    Nobody,
    Here(T),
    /// An operation has it.
    Out,
}

struct Place<T, V> {
    generation: u64,
    tenant: Tenant<T>,
    view: Option<V>,
}

type Chunk<T, V> = Box<[Mutex<Place<T, V>>]>;

/// A set of tenants `T`, each with a copy of what may be asked of it at any time, `V`.
pub(crate) struct Slab<T, V> {
    tag: u64,
    what: &'static str,
    chunks: [OnceCell<Chunk<T, V>>; CHUNKS],
    used: AtomicUsize,
    free: [Free; SHARDS],
}

thread_local! {
    static SHARD: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS
    };
}

fn shard() -> usize {
    SHARD.try_with(|s| *s).unwrap_or(0)
}

impl<T, V: Copy> Slab<T, V> {
    pub(crate) const fn new(tag: u64, what: &'static str) -> Self {
        Self {
            tag,
            what,
            chunks: [const { OnceCell::new() }; CHUNKS],
            used: AtomicUsize::new(0),
            free: [const { Free { count: AtomicUsize::new(0), places: Mutex::new(Vec::new()) } }; SHARDS],
        }
    }

    /// How many places were ever made use of.
    #[cfg(test)]
    pub(crate) fn places(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn place(&self, index: usize) -> Option<&Mutex<Place<T, V>>> {
        self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)
    }

    fn index_of(&self, handle: u64) -> Result<(usize, u64)> {
        if handle >> 60 != self.tag {
            return Err(self.bad());
        }
        Ok(((handle & MASK) as usize, (handle >> INDEX_BITS) & MASK))
    }

    /// The number of the place that a handle names, whoever is there.
    #[inline]
    pub(crate) fn index(&self, handle: u64) -> Option<usize> {
        (handle >> 60 == self.tag).then_some((handle & MASK) as usize)
    }

    fn bad(&self) -> Error {
        Error::BadHandle(format!("this {} handle is null, was given back, or is not one of tenure's", self.what))
    }

    fn busy(&self) -> Error {
        Error::invalid(format!("another call is working on this {0}: a {0} is used by one call at a time", self.what))
    }

    /// A place that nobody has: of this thread's shard, else of another, half of whose places move here.
    fn free_place(&self) -> Option<u32> {
        let own = shard();
        let pop = |places: &mut Vec<u32>| {
            let popped = places.pop();
            self.free[own].count.store(places.len(), Ordering::Relaxed);
            popped
        };
        if let Some(place) = pop(&mut self.free[own].places.lock()) {
            return Some(place);
        }
        let other = (1..SHARDS)
            .map(|step| &self.free[(own + step) % SHARDS])
            .find(|free| free.count.load(Ordering::Relaxed) != 0)?;
        let moved = {
            let mut places = other.places.lock();
            let keep = places.len() / 2;
            let moved = places.split_off(keep);
            other.count.store(keep, Ordering::Relaxed);
            moved
        };
        // One shard's lock at a time.
        let mut places = self.free[own].places.lock();
        places.extend(moved);
        pop(&mut places)
    }

    /// Takes a tenant in.
    pub(crate) fn insert(&self, tenant: T, view: V) -> Result<u64, (Error, T)> {
        let index = match self.free_place() {
            Some(index) => index as usize,
            None => {
                let index = self.used.fetch_add(1, Ordering::Relaxed);
                let Some(chunk) = self.chunks.get(index / CHUNK) else {
                    self.used.fetch_sub(1, Ordering::Relaxed);
                    return Err((Error::invalid(format!("more than 16 million {}s are alive", self.what)), tenant));
                };
                chunk.get_or_init(|| {
                    (0..CHUNK)
                        .map(|_| Mutex::new(Place { generation: 0, tenant: Tenant::Nobody, view: None }))
                        .collect()
                });
                index
            }
        };
        let Some(place) = self.place(index) else {
            return Err((Error::Internal("a place of a slab is missing".into()), tenant));
        };
        let mut place = place.lock();
        place.generation = (place.generation + 1) & MASK;
        place.tenant = Tenant::Here(tenant);
        place.view = Some(view);
        Ok((self.tag << 60) | (place.generation << INDEX_BITS) | index as u64)
    }

    /// What may be asked at any time.
    pub(crate) fn view(&self, handle: u64) -> Result<V> {
        let (index, generation) = self.index_of(handle)?;
        let place = self.place(index).ok_or_else(|| self.bad())?;
        // In a forked child the lock may be held by a thread that does not exist.
        let place = if process::forked() { place.try_lock().ok_or(Error::Forked)? } else { place.lock() };
        if place.generation != generation {
            return Err(self.bad());
        }
        place.view.ok_or_else(|| self.bad())
    }

    fn take(&self, handle: u64) -> Result<T> {
        let (index, generation) = self.index_of(handle)?;
        let mut place = self.place(index).ok_or_else(|| self.bad())?.lock();
        if place.generation != generation {
            return Err(self.bad());
        }
        match std::mem::replace(&mut place.tenant, Tenant::Out) {
            Tenant::Here(tenant) => Ok(tenant),
            Tenant::Out => Err(self.busy()),
            Tenant::Nobody => {
                place.tenant = Tenant::Nobody;
                Err(self.bad())
            }
        }
    }

    fn put_back(&self, handle: u64, tenant: T, view: V) {
        if let Ok((index, _)) = self.index_of(handle)
            && let Some(place) = self.place(index)
        {
            let mut place = place.lock();
            place.tenant = Tenant::Here(tenant);
            place.view = Some(view);
        }
    }

    fn vacate(&self, handle: u64) {
        if let Ok((index, _)) = self.index_of(handle)
            && let Some(place) = self.place(index)
        {
            let mut place = place.lock();
            place.tenant = Tenant::Nobody;
            place.view = None;
            // A place whose generations are used up is not given out again, so that no handle ever comes back.
            let again = place.generation < MASK;
            drop(place);
            if again {
                let free = &self.free[shard()];
                let mut places = free.places.lock();
                places.push(index as u32);
                free.count.store(places.len(), Ordering::Relaxed);
            }
        }
    }

    /// Works on a tenant, which is put back also when `f` panics.
    pub(crate) fn with<R>(&self, handle: u64, view: impl Fn(&T) -> V, f: impl FnOnce(&mut T) -> R) -> Result<R> {
        struct Back<'a, T, V: Copy, F: Fn(&T) -> V> {
            slab: &'a Slab<T, V>,
            handle: u64,
            view: F,
            tenant: Option<T>,
        }
        impl<T, V: Copy, F: Fn(&T) -> V> Drop for Back<'_, T, V, F> {
            fn drop(&mut self) {
                if let Some(tenant) = self.tenant.take() {
                    let view = (self.view)(&tenant);
                    self.slab.put_back(self.handle, tenant, view);
                }
            }
        }
        let mut back = Back { slab: self, handle, view, tenant: Some(self.take(handle)?) };
        match back.tenant.as_mut() {
            Some(tenant) => Ok(f(tenant)),
            None => Err(self.bad()),
        }
    }

    /// Works on a tenant that leaves when `f` says `Ok`, and stays when it says `Err`.
    pub(crate) fn remove(
        &self,
        handle: u64,
        view: impl Fn(&T) -> V,
        f: impl FnOnce(&mut T) -> Result<()>,
    ) -> Result<Option<T>> {
        let mut tenant = self.take(handle)?;
        match f(&mut tenant) {
            Ok(()) => {
                self.vacate(handle);
                Ok(Some(tenant))
            }
            Err(error) => {
                let view = view(&tenant);
                self.put_back(handle, tenant, view);
                Err(error)
            }
        }
    }

    /// Reads a tenant under the place's lock: `f` must be short and call nobody.
    pub(crate) fn peek<R>(&self, handle: u64, f: impl FnOnce(&mut T) -> R) -> Result<R> {
        let (index, generation) = self.index_of(handle)?;
        let mut place = self.place(index).ok_or_else(|| self.bad())?.lock();
        if place.generation != generation {
            return Err(self.bad());
        }
        match &mut place.tenant {
            Tenant::Here(tenant) => Ok(f(tenant)),
            Tenant::Out => Err(self.busy()),
            Tenant::Nobody => Err(self.bad()),
        }
    }
}
