//! A table that grows and never moves: places found by their number without a lock.
//!
//! ```text
//!   number --> chunk, made when the first of its places is needed --> place
//! ```
//!
//! **Invariant**: a chunk is never given back, also not where the table goes: it is for what lives as long as the process.
//!
//! **Cost**: two loads.
//!
//! Unsafe in this file: the chunks.

use crate::sync::atomic::{AtomicPtr, Ordering};

/// `COUNT` chunks of `SIZE` places, none of them there at first.
pub struct Chunks<T, const SIZE: usize, const COUNT: usize>([AtomicPtr<[T; SIZE]>; COUNT]);

impl<T: Send + Sync, const SIZE: usize, const COUNT: usize> Chunks<T, SIZE, COUNT> {
    /// An empty table.
    #[allow(clippy::new_without_default, reason = "made in statics only")]
    pub const fn new() -> Self {
        Self([const { AtomicPtr::new(std::ptr::null_mut()) }; COUNT])
    }

    /// The place of this number, if its chunk is there.
    #[inline(always)]
    pub fn get(&self, number: usize) -> Option<&'static T> {
        let chunk = self.0.get(number / SIZE)?.load(Ordering::Acquire);
        // SAFETY: a chunk that is there is whole and never given back.
        unsafe { chunk.as_ref() }.map(|chunk| &chunk[number % SIZE])
    }

    /// The place of this number, with its chunk, whose places `make` makes by their numbers. `None` where the table ends before.
    #[cold]
    pub fn reach(&self, number: usize, make: impl FnMut(usize) -> T) -> Option<&'static T> {
        let place = self.0.get(number / SIZE)?;
        if place.load(Ordering::Acquire).is_null() {
            let first = number / SIZE * SIZE;
            let chunk: Box<[T]> = (first..first + SIZE).map(make).collect();
            let chunk = Box::into_raw(chunk).cast::<[T; SIZE]>();
            if place.compare_exchange(std::ptr::null_mut(), chunk, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: another thread was first; this one was made above, of as many places, and nobody has seen it.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
        self.get(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_where_it_was_and_the_table_has_an_end() {
        static TABLE: Chunks<usize, 4, 3> = Chunks::new();
        assert_eq!(TABLE.get(5), None);
        let place = TABLE.reach(5, |number| number).unwrap();
        assert_eq!((*place, TABLE.get(4), TABLE.get(7), TABLE.get(3)), (5, Some(&4), Some(&7), None));
        assert!(std::ptr::eq(TABLE.reach(5, |_| 0).unwrap(), place));
        assert_eq!((TABLE.get(12), TABLE.reach(12, |number| number)), (None, None));
    }

    #[test]
    fn of_threads_that_make_a_chunk_at_once_all_see_one() {
        static TABLE: Chunks<usize, 64, 8> = Chunks::new();
        let seen: Vec<usize> = std::thread::scope(|scope| {
            let all: Vec<_> =
                (0..8).map(|_| scope.spawn(|| &raw const *TABLE.reach(100, |n| n).unwrap() as usize)).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(seen.iter().all(|place| *place == seen[0]));
    }
}
