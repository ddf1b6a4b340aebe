//! The count under loom: every interleaving of two or three threads, under the C++ memory model.
//!
//! `obvious` is the scheme that one would write first. It is here because it is wrong in three ways, and a model that
//! finds them can be trusted with the real one. So is `hasty`, a stripe of one thread's own that is swept without a turn.
//!
//! Stripes 0 and 1 belong to one thread each in every model (where two threads name one of them, one has ended before the other
//! begins), 2 and above are shared.

#![allow(missing_docs)]

mod sync {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic;
    pub(crate) use loom::thread::yield_now;
}

/// Both sides have a fence of their own: loom has none that one side pays for all.
mod barrier {
    use loom::sync::atomic::{Ordering, fence};

    pub(crate) fn one_sided() -> bool {
        false
    }

    pub(crate) fn light(_: bool) {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy(_: bool) {
        fence(Ordering::SeqCst);
    }
}

#[path = "../src/count.rs"]
#[allow(dead_code, unreachable_pub)]
mod count;

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Release, SeqCst};
use loom::thread;

/// Something that is counted: each operation reads it, the destroyer writes it. loom reports a read that is not ordered
/// before the write.
struct Counted {
    count: count::Count<2, 1>,
    destroyed: AtomicUsize,
    body: UnsafeCell<u32>,
}

// SAFETY: the body is reached from several threads on purpose; loom reports an access that is not ordered.
unsafe impl Sync for Counted {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Counted {}

impl Counted {
    fn new(anchors: usize, lights: usize) -> Arc<Self> {
        let this = Self { count: count::Count::new(), destroyed: AtomicUsize::new(0), body: UnsafeCell::new(0) };
        this.count.revive();
        (1..anchors).for_each(|_| this.count.take_anchor());
        (0..lights).for_each(|_| this.count.take_light(MANY));
        Arc::new(this)
    }

    fn touch(&self) {
        // SAFETY: loom checks that no write is concurrent; that check is the test.
        self.body.with(|p| unsafe { assert_eq!(*p, 0, "used after it was destroyed") });
    }

    fn end(&self, last: bool) {
        if last {
            // SAFETY: as above; the destroyer is alone, or loom says so.
            self.body.with_mut(|p| unsafe {
                assert_eq!(*p, 0, "destroyed twice");
                *p = 1;
            });
            self.destroyed.fetch_add(1, AcqRel);
        }
    }

    fn take_light(&self, k: usize) {
        self.touch();
        self.count.take_light(k);
    }

    fn drop_light(&self, k: usize) {
        self.touch();
        let last = self.count.drop_light(k);
        self.end(last);
    }

    fn take_lights(&self, k: usize, many: usize) {
        self.touch();
        self.count.take_lights(k, many);
    }

    fn drop_lights(&self, k: usize, many: usize) {
        self.touch();
        let last = self.count.drop_lights(k, many);
        self.end(last);
    }

    fn take_anchor(&self) {
        self.touch();
        self.count.take_anchor();
    }

    fn drop_anchor(&self) {
        self.touch();
        let last = self.count.drop_anchor().expect("an anchor is there");
        self.end(last);
    }

    fn times_destroyed(&self) -> usize {
        self.destroyed.load(SeqCst)
    }
}

/// A stripe that is shared.
const MANY: usize = 2;

/// Of two threads each with a stripe of its own, one with and one without, and none with one.
fn stripes(f: impl Fn(usize, usize)) {
    for (t, u) in [(0, 1), (0, MANY), (MANY, 1), (MANY, MANY)] {
        f(t, u);
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    // Three preemptions find every defect known of this scheme; the whole space takes minutes.
    bounded(3, f);
}

/// [`model`] of three threads that have much to do: two preemptions find what is known of these.
fn crowded(f: impl Fn() + Sync + Send + 'static) {
    bounded(2, f);
}

fn bounded(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(f);
}

#[test]
fn the_last_anchor_beside_the_last_light() {
    stripes(|t, _| {
        model(move || {
            let c = Counted::new(1, 1);
            let other = c.clone();
            let first = thread::spawn(move || other.drop_light(t));
            c.drop_anchor();
            first.join().unwrap();
            assert_eq!(c.times_destroyed(), 1);
        });
    });
}

#[test]
fn two_anchors_and_a_light() {
    stripes(|t, _| {
        model(move || {
            let c = Counted::new(2, 1);
            let (a, b) = (c.clone(), c.clone());
            let first = thread::spawn(move || a.drop_light(t));
            let second = thread::spawn(move || b.drop_anchor());
            c.drop_anchor();
            first.join().unwrap();
            second.join().unwrap();
            assert_eq!(c.times_destroyed(), 1);
        });
    });
}

#[test]
fn a_buffer_moves_between_stripes_while_another_goes() {
    for (t, u) in [(0, MANY), (MANY, 1)] {
        crowded(move || {
            let c = Counted::new(1, 2);
            let (a, b) = (c.clone(), c.clone());
            let first = thread::spawn(move || {
                a.take_light(t);
                a.drop_light(t);
            });
            let second = thread::spawn(move || b.drop_light(u));
            c.drop_anchor();
            first.join().unwrap();
            second.join().unwrap();
            assert_eq!(c.times_destroyed(), 0, "one buffer is alive");
            c.drop_light(MANY);
            assert_eq!(c.times_destroyed(), 1);
        });
    }
}

#[test]
fn many_lights_come_and_go_while_closing() {
    for (t, u) in [(0, MANY), (MANY, 1)] {
        crowded(move || {
            let c = Counted::new(1, 3);
            let (a, b) = (c.clone(), c.clone());
            let first = thread::spawn(move || {
                a.take_lights(t, 2);
                a.drop_lights(t, 4);
            });
            let second = thread::spawn(move || b.drop_light(u));
            c.drop_anchor();
            first.join().unwrap();
            second.join().unwrap();
            assert_eq!(c.times_destroyed(), 1);
        });
    }
}

#[test]
fn an_anchor_is_made_from_a_buffer_while_closing() {
    stripes(|t, _| {
        model(move || {
            let c = Counted::new(1, 1);
            let a = c.clone();
            let first = thread::spawn(move || {
                a.take_anchor();
                a.drop_light(t);
                a.drop_anchor();
            });
            c.drop_anchor();
            first.join().unwrap();
            assert_eq!(c.times_destroyed(), 1);
        });
    });
}

#[test]
fn a_closed_count_is_opened_again() {
    stripes(|t, u| {
        model(move || {
            let c = Counted::new(1, 2);
            c.drop_anchor();
            assert_eq!(c.times_destroyed(), 0);
            let (a, b) = (c.clone(), c.clone());
            let first = thread::spawn(move || {
                a.take_anchor();
                a.count.reopen();
                a.drop_light(t);
                a.drop_anchor();
            });
            let second = thread::spawn(move || b.drop_light(u));
            first.join().unwrap();
            second.join().unwrap();
            assert_eq!(c.times_destroyed(), 1);
        });
    });
}

#[test]
fn opened_again_beside_the_last_anchor() {
    stripes(|t, _| {
        model(move || {
            let c = Counted::new(1, 1);
            let a = c.clone();
            let first = thread::spawn(move || {
                a.take_anchor();
                a.count.reopen();
                a.drop_light(t);
                a.drop_anchor();
            });
            c.drop_anchor();
            first.join().unwrap();
            assert_eq!(c.times_destroyed(), 1);
        });
    });
}

#[test]
fn opened_again_while_a_buffer_is_resized() {
    stripes(|t, _| {
        model(move || {
            let c = Counted::new(1, 1);
            c.drop_anchor();
            let (a, b) = (c.clone(), c.clone());
            b.take_anchor();
            let first = thread::spawn(move || {
                a.take_light(t);
                a.drop_light(t);
            });
            b.count.reopen();
            b.drop_anchor();
            first.join().unwrap();
            assert_eq!(c.times_destroyed(), 0);
            c.drop_light(MANY);
            assert_eq!(c.times_destroyed(), 1);
        });
    });
}

#[test]
fn lights_come_and_go_while_the_stripes_are_swept() {
    stripes(|t, _| {
        model(move || {
            let c = Counted::new(1, 1);
            let (a, b) = (c.clone(), c.clone());
            let first = thread::spawn(move || {
                a.take_light(t);
                a.drop_light(t);
            });
            let second = thread::spawn(move || {
                if b.count.upgrade() {
                    b.drop_anchor();
                }
            });
            c.drop_anchor();
            first.join().unwrap();
            second.join().unwrap();
            assert_eq!(c.times_destroyed(), 0, "one is alive");
            c.drop_light(MANY);
            assert_eq!(c.times_destroyed(), 1);
        });
    });
}

#[test]
fn a_weak_reference_beside_the_end() {
    stripes(|_, u| {
        model(move || {
            let c = Counted::new(1, 1);
            let (a, b) = (c.clone(), c.clone());
            let first = thread::spawn(move || {
                if a.count.upgrade() {
                    a.touch();
                    a.drop_anchor();
                }
            });
            let second = thread::spawn(move || b.drop_light(u));
            c.drop_anchor();
            first.join().unwrap();
            second.join().unwrap();
            assert_eq!(c.times_destroyed(), 1);
        });
    });
}

#[test]
fn a_straggler_on_a_slot_that_is_used_again() {
    // A client names a released handle while the slot gets a new owner: it takes a light, finds the id changed and gives
    // the light back. The new object must neither die early nor live for ever.
    stripes(|t, _| {
        model(move || {
            let c = Counted::new(1, 0);
            assert!(c.count.drop_anchor().unwrap());
            let a = c.clone();
            let first = thread::spawn(move || {
                a.count.take_light(t);
                a.count.drop_light(t)
            });
            c.count.revive();
            let mine = c.count.drop_anchor().unwrap();
            let theirs = first.join().unwrap();
            assert!(mine || theirs, "the new object would live for ever");
        });
    });
}

#[test]
fn an_anchor_too_many_is_refused() {
    model(|| {
        let c = Counted::new(1, 1);
        c.drop_anchor();
        assert_eq!(c.count.drop_anchor(), Err(count::OverRelease));
        c.drop_light(MANY);
        assert_eq!(c.times_destroyed(), 1);
    });
}

#[test]
fn a_light_goes_round_the_stripes_while_they_are_opened() {
    stripes(|t, u| {
        model(move || {
            let c = Counted::new(1, 1);
            c.drop_anchor();
            c.take_anchor();
            c.drop_light(MANY);
            let a = c.clone();
            let first = thread::spawn(move || {
                a.take_light(t);
                a.drop_light(if u == t { MANY } else { u });
            });
            c.count.reopen();
            first.join().unwrap();
            assert_eq!(c.count.snapshot(), (1, 0));
            c.drop_anchor();
            assert_eq!(c.times_destroyed(), 1);
        });
    });
}

#[test]
fn who_looks_late_finds_another_object_being_closed() {
    // The drop was seen by the sweep and the object destroyed; before its thread looks whether the stripe is shut, the slot has
    // got a new owner, and that one is closing.
    stripes(|t, _| {
        model(move || {
            let c = Counted::new(1, 1);
            let a = c.clone();
            let first = thread::spawn(move || a.count.drop_light(t));
            let mine = c.count.drop_anchor().unwrap();
            if mine {
                c.count.revive();
                assert!(c.count.drop_anchor().unwrap(), "the new object would live for ever");
            }
            assert_ne!(mine, first.join().unwrap(), "the first object is destroyed once");
        });
    });
}

/// One counter of handles, one of live buffers per thread; "the free that brings the sum to zero after the last handle is
/// gone destroys".
struct Obvious {
    handles: AtomicUsize,
    closing: loom::sync::atomic::AtomicBool,
    live: [loom::sync::atomic::AtomicI64; 2],
    destroyed: AtomicUsize,
}

impl Obvious {
    fn new(live: i64) -> Arc<Self> {
        Arc::new(Self {
            handles: AtomicUsize::new(1),
            closing: loom::sync::atomic::AtomicBool::new(false),
            live: [loom::sync::atomic::AtomicI64::new(live), loom::sync::atomic::AtomicI64::new(0)],
            destroyed: AtomicUsize::new(0),
        })
    }

    fn close(&self) {
        if self.live[0].load(Acquire) + self.live[1].load(Acquire) == 0 {
            self.destroyed.fetch_add(1, AcqRel);
        }
    }

    fn release(&self) {
        if self.handles.fetch_sub(1, AcqRel) == 1 {
            self.closing.swap(true, AcqRel);
            self.close();
        }
    }

    fn free(&self, k: usize) {
        self.live[k].fetch_sub(1, AcqRel);
        if self.closing.load(Acquire) {
            self.close();
        }
    }
}

#[test]
#[should_panic(expected = "never closed")]
fn obvious_may_never_close() {
    model(|| {
        let c = Obvious::new(1);
        let a = c.clone();
        let t = thread::spawn(move || a.free(0));
        c.release();
        t.join().unwrap();
        assert!(c.destroyed.load(SeqCst) > 0, "never closed");
    });
}

#[test]
#[should_panic(expected = "destroyed under a live buffer")]
fn obvious_finds_a_false_zero() {
    model(|| {
        let c = Obvious::new(2);
        c.release();
        let a = c.clone();
        let t = thread::spawn(move || {
            a.live[0].fetch_add(1, AcqRel);
            a.free(1);
        });
        c.free(1);
        t.join().unwrap();
        assert_eq!(c.destroyed.load(SeqCst), 0, "destroyed under a live buffer");
    });
}

/// A stripe of one thread's own that goes to the word by itself where it is found shut, whether or not the sweep saw it.
struct Hasty {
    /// Anchors and lights.
    word: loom::sync::atomic::AtomicI64,
    shut: loom::sync::atomic::AtomicBool,
    own: loom::sync::atomic::AtomicI64,
    destroyed: AtomicUsize,
}

impl Hasty {
    fn new(lights: i64) -> Arc<Self> {
        Arc::new(Self {
            word: loom::sync::atomic::AtomicI64::new(1),
            shut: loom::sync::atomic::AtomicBool::new(false),
            own: loom::sync::atomic::AtomicI64::new(lights),
            destroyed: AtomicUsize::new(0),
        })
    }

    fn add(&self, change: i64) {
        if self.word.fetch_add(change, AcqRel) + change == 0 {
            self.destroyed.fetch_add(1, AcqRel);
        }
    }

    fn free(&self) {
        self.own.store(self.own.load(Acquire) - 1, Release);
        barrier::light(false);
        if self.shut.load(Acquire) {
            self.add(-1);
        }
    }

    fn close(&self) {
        self.shut.store(true, Release);
        barrier::heavy(false);
        self.add(self.own.load(Acquire) - 1);
    }
}

#[test]
#[should_panic(expected = "destroyed under a live buffer")]
fn hasty_counts_one_free_twice() {
    model(|| {
        let c = Hasty::new(2);
        let a = c.clone();
        let t = thread::spawn(move || a.free());
        c.close();
        t.join().unwrap();
        assert_eq!(c.destroyed.load(SeqCst), 0, "destroyed under a live buffer");
    });
}
