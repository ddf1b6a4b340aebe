//! The short way through the limiting and statistics adaptors: as exact as the whole way, and nothing happens where it is not
//! taken.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tenure_core::adaptor::{Limiting, Statistics};
use tenure_core::error::{Error, MisuseKind, Result};
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{Block, Info, MemoryResource, Named, Properties, Request, Resource};
use tenure_core::stream::StreamRef;
use tenure_core::thread::Local;

const S: StreamRef<'static> = StreamRef::DEFAULT;

fn pool() -> Resource {
    tenure_driver::load::prefer_sim().expect("the simulated device");
    Resource::new(Pool::new(shared::cuda().expect("a leaf"), 0, PoolOptions::default()).expect("a pool")).expect("room")
}

fn limiting(upstream: &Resource, limit: u64) -> Resource {
    Resource::new(Limiting::new(upstream.clone(), limit)).expect("room")
}

fn statistics(upstream: &Resource) -> Resource {
    Resource::new(Statistics::new(upstream.clone())).expect("room")
}

/// What the adaptor itself says: live bytes and blocks, and their peak.
fn figures(resource: &Named) -> (u64, u64, u64) {
    let info = resource.body().info();
    (info.live_bytes, info.live_count, info.peak_live_bytes)
}

/// Lets the thread have `count` blocks of `bytes` at hand.
fn warm(resource: &Named, bytes: usize, count: usize) {
    let blocks: Vec<u64> = (0..count).map(|_| resource.allocate(bytes, 256, S).expect("room")).collect();
    for ptr in blocks {
        resource.deallocate(ptr, bytes, 256, S).expect("mine");
    }
}

fn at_hand(resource: &Named, bytes: usize) -> Option<u64> {
    resource.allocate_at_hand(bytes, 256, S).map(|answer| answer.expect("no question is asked of a default stream"))
}

#[test]
fn adaptors_let_the_short_way_through_and_count_it() {
    let pool = pool();
    let inner = statistics(&pool);
    let middle = limiting(&inner, 1 << 20);
    let outer = statistics(&middle);
    let stack = [&outer, &middle, &inner];
    for round in 1..=5 {
        // To ask a pool for its figures empties the desks.
        warm(&pool, 1000, 3);
        let first = at_hand(&outer, 1000).expect("the thread has one");
        let second = at_hand(&outer, 900).expect("the thread has one");
        for resource in stack {
            assert_eq!(figures(resource), (1900, 2, 1900), "{resource:?}, round {round}");
        }
        assert!(outer.deallocate_at_hand(first, 1000, 256, S));
        assert!(outer.deallocate_at_hand(second, 900, 256, S));
        for resource in stack {
            assert_eq!(figures(resource), (0, 0, 1900), "{resource:?}, round {round}");
        }
        let counters = outer.downcast::<Statistics>().expect("its type").counters();
        assert_eq!((counters.bytes.total, counters.allocations.total), (1900 * round, 2 * round));
        assert_eq!(middle.body().property("allocated_bytes"), Some(0));
    }
    // A block above the small sizes is kept too, one of them.
    warm(&pool, 4 << 20, 1);
    assert!(at_hand(&outer, 4 << 20).is_none(), "above the limit");
    let large = at_hand(&inner, 4 << 20).expect("the thread has one");
    assert_eq!(figures(&inner), (4 << 20, 1, 4 << 20));
    assert!(inner.deallocate_at_hand(large, 4 << 20, 256, S));
}

#[test]
fn the_limit_is_met_to_the_byte_on_the_short_way() {
    let pool = pool();
    for limit in [1000_u64, 10_240, 100_000, 64 << 20] {
        let limiting = limiting(&pool, limit);
        let bytes = (limit / 10) as usize;
        warm(&pool, bytes, 12);
        let mut blocks: Vec<(u64, usize)> = Vec::new();
        for _ in 0..10 {
            // At hand or not (large blocks are kept one at a time): the limit is the same.
            blocks.push((limiting.allocate(bytes, 256, S).expect("within the limit"), bytes));
        }
        assert_eq!(limiting.body().property("allocated_bytes"), Some(10 * bytes as u64));
        let rest = (limit - 10 * bytes as u64) as usize;
        if rest > 0 {
            blocks.push((limiting.allocate(rest, 256, S).expect("to the byte"), rest));
        }
        for bytes in [1, bytes] {
            assert_eq!(at_hand(&limiting, bytes), None, "a refusal is the whole way's");
            match limiting.allocate(bytes, 256, S) {
                Err(Error::OutOfMemory(e)) => assert_eq!((e.live, e.limit, e.largest_free), (limit, limit, 0)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(figures(&limiting), (limit, blocks.len() as u64, limit));
        let (ptr, size) = blocks.pop().expect("blocks");
        limiting.deallocate(ptr, size, 256, S).expect("mine");
        blocks.push((limiting.allocate(size, 256, S).expect("there is room again"), size));
        assert!(limiting.allocate(1, 256, S).is_err());
        for (ptr, size) in blocks {
            limiting.deallocate(ptr, size, 256, S).expect("mine");
        }
        assert_eq!(figures(&limiting).0, 0);
        assert_eq!(limiting.body().property("allocated_bytes"), Some(0));
    }
}

#[test]
fn a_wrong_free_is_left_to_the_whole_way_which_names_the_owner() {
    let pool = pool();
    let limiting = limiting(&pool, 1 << 20);
    let statistics = statistics(&limiting);
    warm(&pool, 1000, 4);
    let ptr = at_hand(&statistics, 1000).expect("the thread has one");
    let below = at_hand(&limiting, 1000).expect("the thread has one");
    let resources = [&pool, &limiting, &statistics];
    let before = resources.map(|r| figures(r));
    let cases = [
        (&statistics, below, 1000, MisuseKind::WrongResource, limiting.id()),
        (&limiting, ptr, 1000, MisuseKind::WrongResource, statistics.id()),
        (&pool, ptr, 1000, MisuseKind::WrongResource, statistics.id()),
        (&statistics, ptr, 2000, MisuseKind::WrongSize, statistics.id()),
        (&statistics, ptr + 256, 1000, MisuseKind::InteriorPointer, statistics.id()),
    ];
    for (resource, ptr, bytes, kind, owner) in cases {
        assert!(!resource.deallocate_at_hand(ptr, bytes, 256, S), "{kind:?}");
        match resource.deallocate(ptr, bytes, 256, S) {
            Err(Error::Misuse(m)) => assert_eq!((m.kind, m.asked, m.owner), (kind, resource.id(), owner)),
            other => panic!("{kind:?} gave {other:?}"),
        }
    }
    assert_eq!(resources.map(|r| figures(r)), before);
    assert!(statistics.deallocate_at_hand(ptr, 1000, 256, S));
    assert!(!statistics.deallocate_at_hand(ptr, 1000, 256, S));
    match statistics.deallocate(ptr, 1000, 256, S) {
        Err(Error::Misuse(m)) => assert_eq!(m.kind, MisuseKind::DoubleFree),
        other => panic!("{other:?}"),
    }
    limiting.deallocate(below, 1000, 256, S).expect("mine");
    assert_eq!(resources.map(|r| figures(r).0), [0, 0, 0]);
}

/// Says on the short way what it is told to; nothing is behind its addresses.
#[derive(Default)]
struct Told {
    answer: AtomicUsize,
    next: AtomicU64,
}

const NOTHING: usize = 0;
const AN_ERROR: usize = 1;
const A_BLOCK: usize = 2;

impl MemoryResource for Told {
    fn kind(&self) -> &'static str {
        "told"
    }
    fn allocate(&self, _: &Request, _: StreamRef<'_>) -> Result<u64> {
        Err(Error::Callback("the whole way".into(), None))
    }
    fn deallocate(&self, _: u64, _: &Request, _: StreamRef<'_>) -> Result<()> {
        Ok(())
    }
    fn allocate_at_hand(&self, _: &Request, _: StreamRef<'_>, _: &Local) -> Option<Result<u64, Box<Error>>> {
        match self.answer.load(Ordering::SeqCst) {
            NOTHING => None,
            AN_ERROR => Some(Err(Box::new(Error::Callback("the short way".into(), None)))),
            _ => Some(Ok((1 << 40) + self.next.fetch_add(1 << 30, Ordering::SeqCst))),
        }
    }
    fn device(&self) -> Option<i32> {
        Some(0)
    }
    fn properties(&self) -> Properties {
        Properties::default()
    }
    fn find(&self, _: u64) -> Option<Block> {
        None
    }
    fn info(&self) -> Info {
        Info::default()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn a_short_way_that_is_not_taken_changes_nothing() {
    tenure_driver::load::prefer_sim().expect("the simulated device");
    let told = Resource::new(Told::default()).expect("room");
    let answer = |what| told.downcast::<Told>().expect("its type").answer.store(what, Ordering::SeqCst);
    let inner = limiting(&told, 16 << 20);
    let outer = statistics(&inner);
    let seen = |resource: &Resource| {
        let statistics = outer.downcast::<Statistics>().expect("its type");
        (figures(resource), resource.body().property("allocated_bytes"), statistics.counters())
    };
    answer(A_BLOCK);
    let kept = at_hand(&outer, 5000).expect("told so");
    let before = [&inner, &outer].map(seen);
    for bytes in [1, 4000, 600_000, 3 << 20, 15 << 20] {
        for what in [NOTHING, AN_ERROR, NOTHING] {
            answer(what);
            match outer.allocate_at_hand(bytes, 256, S) {
                None => assert_eq!(what, NOTHING),
                Some(Err(e)) => assert!(what == AN_ERROR && e.to_string().contains("the short way"), "{e}"),
                Some(Ok(ptr)) => panic!("{ptr:#x}"),
            }
            assert!(!outer.deallocate_at_hand(kept, 5000, 256, S));
            assert_eq!([&inner, &outer].map(seen), before, "{bytes} bytes");
            // Nor does the whole way after it, which fails here too.
            assert!(outer.allocate(bytes, 256, S).is_err());
            assert_eq!([&inner, &outer].map(seen), before, "{bytes} bytes");
        }
    }
    // All that is left of the limit can still be had in one piece.
    answer(A_BLOCK);
    assert!(at_hand(&outer, (16 << 20) - 5000).is_some());
    assert!(at_hand(&outer, 1).is_none());
    assert_eq!(figures(&inner), (16 << 20, 2, 16 << 20));
    assert_eq!(figures(&outer), (16 << 20, 2, 16 << 20));
}

#[test]
fn threads_on_the_short_way_stay_within_the_limit_and_count_each_block() {
    const THREADS: usize = 6;
    const LIMIT: u64 = 3 << 20;
    let pool = pool();
    let middle = limiting(&pool, LIMIT);
    let outer = statistics(&middle);
    let made = AtomicU64::new(0);
    let bytes_made = AtomicU64::new(0);
    let short = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|t| {
                let (outer, made, bytes_made, short) = (&outer, &made, &bytes_made, &short);
                scope.spawn(move || {
                    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(t as u64 + 1);
                    let mut blocks = Vec::new();
                    for _ in 0..4000 {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        // Whole classes, so that the pool's figures can be compared with the limit's.
                        let bytes = 256 << (state >> 32 & 11);
                        if state & 1 == 0 || blocks.len() > 12 {
                            if let Some((ptr, bytes)) = blocks.pop() {
                                outer.deallocate(ptr, bytes, 256, S).expect("mine");
                            }
                            continue;
                        }
                        let at_hand = outer.allocate_at_hand(bytes, 256, S);
                        short.fetch_add(u64::from(at_hand.is_some()), Ordering::Relaxed);
                        let answer = match at_hand {
                            Some(answer) => answer.map_err(|e| *e),
                            None => outer.allocate(bytes, 256, S),
                        };
                        match answer {
                            Ok(ptr) => {
                                made.fetch_add(1, Ordering::Relaxed);
                                bytes_made.fetch_add(bytes as u64, Ordering::Relaxed);
                                blocks.push((ptr, bytes));
                            }
                            Err(Error::OutOfMemory(e)) => {
                                assert!(e.live + bytes as u64 > LIMIT, "{} were live", e.live)
                            }
                            Err(e) => panic!("{e}"),
                        }
                    }
                    for (ptr, bytes) in blocks {
                        outer.deallocate(ptr, bytes, 256, S).expect("mine");
                    }
                })
            })
            .collect();
        let (middle, done) = (&middle, &done);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let taken = middle.body().property("allocated_bytes").expect("a figure");
                assert!(taken <= LIMIT, "{taken} bytes were handed out");
                std::thread::yield_now();
            }
        });
        for worker in workers {
            worker.join().expect("no panic");
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(short.load(Ordering::Relaxed) > 1000, "the short way was hardly taken");
    assert!(pool.body().info().peak_live_bytes <= LIMIT, "the limit was passed");
    let counters = outer.downcast::<Statistics>().expect("its type").counters();
    assert_eq!((counters.bytes.value, counters.allocations.value), (0, 0));
    assert_eq!(counters.allocations.total as u64, made.load(Ordering::Relaxed));
    assert_eq!(counters.bytes.total as u64, bytes_made.load(Ordering::Relaxed));
    assert_eq!((figures(&middle).0, figures(&middle).1), (0, 0));
    assert_eq!(middle.body().property("allocated_bytes"), Some(0));
    let all = middle.allocate(LIMIT as usize, 256, S).expect("all of the limit is there");
    middle.deallocate(all, LIMIT as usize, 256, S).expect("mine");
}
