//! The limiting and statistics adaptors, over resources that do what they are told and over one that does not.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use tenure_core::adaptor::{Limiting, Statistics};
use tenure_core::error::{Error, MisuseKind, Result};
use tenure_core::resource::callback::{CallbackResource, Callbacks};
use tenure_core::resource::{Properties, Resource};
use tenure_core::stream::StreamRef;

/// Hands out numbers as addresses; refuses when told so. Its memory is never touched.
#[derive(Default)]
struct Numbers {
    next: AtomicU64,
    refuse: AtomicBool,
    live: AtomicU64,
    most: AtomicU64,
}

struct Shared(Arc<Numbers>);

impl Callbacks for Shared {
    fn allocate(&self, bytes: usize, _align: usize, _stream: StreamRef<'_>) -> Result<u64> {
        if self.0.refuse.load(Ordering::SeqCst) {
            return Err(Error::Callback("told to refuse".into(), None));
        }
        let live = self.0.live.fetch_add(bytes as u64, Ordering::SeqCst) + bytes as u64;
        self.0.most.fetch_max(live, Ordering::SeqCst);
        let room = (bytes as u64).next_multiple_of(256);
        Ok(self.0.next.fetch_add(room, Ordering::SeqCst) + (1 << 40))
    }

    fn deallocate(&self, _ptr: u64, bytes: usize, _align: usize, _stream: StreamRef<'_>) -> Result<()> {
        self.0.live.fetch_sub(bytes as u64, Ordering::SeqCst);
        Ok(())
    }
}

fn numbers() -> (Arc<Numbers>, Resource) {
    tenure_driver::load::prefer_sim().expect("the simulated device");
    let numbers = Arc::new(Numbers::default());
    let body = CallbackResource::new(Box::new(Shared(numbers.clone())), Some(0), Properties::default());
    (numbers, Resource::new(body).expect("a resource"))
}

const S: StreamRef<'static> = StreamRef::DEFAULT;

fn limit_of(error: Error) -> (u64, u64, u64, String) {
    match error {
        Error::OutOfMemory(e) => (e.requested, e.live, e.limit, e.resource),
        other => panic!("not out of memory: {other}"),
    }
}

#[test]
fn a_limit_is_met_to_the_byte_and_refuses_with_its_figures() {
    let (_, upstream) = numbers();
    let limiting = Resource::new(Limiting::new(upstream, 1000)).expect("made");
    let a = limiting.allocate(600, 256, S).expect("within");
    let b = limiting.allocate(400, 256, S).expect("to the byte");
    let refused = limiting.allocate(1, 256, S).expect_err("full");
    assert_eq!(limit_of(refused), (1, 1000, 1000, "limiting > callback".to_owned()));
    limiting.deallocate(b, 400, 256, S).expect("mine");
    let refused = limiting.allocate(401, 256, S).expect_err("one too many");
    assert_eq!(limit_of(refused).1, 600);
    limiting.deallocate(a, 600, 256, S).expect("mine");
    let info = limiting.body().info();
    assert_eq!((info.live_bytes, info.live_count, info.peak_live_bytes), (0, 0, 1000));
    assert_eq!(limiting.body().property("allocation_limit"), Some(1000));
    assert_eq!(limiting.body().property("allocated_bytes"), Some(0));
}

#[test]
fn credit_comes_back_when_the_upstream_fails() {
    let (numbers, upstream) = numbers();
    let limiting = Resource::new(Limiting::new(upstream, 1000)).expect("made");
    numbers.refuse.store(true, Ordering::SeqCst);
    for _ in 0..10 {
        let error = limiting.allocate(900, 256, S).expect_err("refused below");
        assert!(matches!(error, Error::Callback(ref text, _) if text == "told to refuse"), "{error}");
    }
    numbers.refuse.store(false, Ordering::SeqCst);
    let ptr = limiting.allocate(1000, 256, S).expect("all of the limit is there");
    limiting.deallocate(ptr, 1000, 256, S).expect("mine");
}

#[test]
fn wrong_frees_through_adaptors_change_nothing() {
    let (_, upstream) = numbers();
    let limiting = Resource::new(Limiting::new(upstream.clone(), 10_000)).expect("made");
    let statistics = Resource::new(Statistics::new(limiting.clone())).expect("made");
    let ptr = statistics.allocate(1000, 256, S).expect("room");
    let below = limiting.allocate(500, 256, S).expect("room");
    let before = [&upstream, &limiting, &statistics].map(|r| r.body().info());
    let cases = [
        (&statistics, ptr, 999, MisuseKind::WrongSize),
        (&statistics, ptr + 256, 1000, MisuseKind::InteriorPointer),
        (&statistics, ptr + (1 << 30), 1000, MisuseKind::UnknownPointer),
        (&statistics, below, 500, MisuseKind::WrongResource),
        (&limiting, ptr, 1000, MisuseKind::WrongResource),
        (&upstream, ptr, 1000, MisuseKind::WrongResource),
    ];
    for (resource, ptr, bytes, kind) in cases {
        match resource.deallocate(ptr, bytes, 256, S) {
            Err(Error::Misuse(m)) => assert_eq!(m.kind, kind),
            other => panic!("{kind:?} gave {other:?}"),
        }
    }
    assert_eq!([&upstream, &limiting, &statistics].map(|r| r.body().info()), before);
    statistics.deallocate(ptr, 1000, 256, S).expect("mine");
    match statistics.deallocate(ptr, 1000, 256, S) {
        Err(Error::Misuse(m)) => assert_eq!(m.kind, MisuseKind::DoubleFree),
        other => panic!("{other:?}"),
    }
    limiting.deallocate(below, 500, 256, S).expect("mine");
    assert_eq!(upstream.body().info().live_bytes, 0);
    assert_eq!(limiting.body().property("allocated_bytes"), Some(0));
}

#[test]
fn pushed_counters_are_seen_by_the_enclosing_ones() {
    let (_, upstream) = numbers();
    let resource = Resource::new(Statistics::new(upstream)).expect("made");
    let statistics: &Statistics = resource.downcast().expect("its own type");
    let a = resource.allocate(100, 256, S).expect("room");
    let b = resource.allocate(200, 256, S).expect("room");
    resource.deallocate(a, 100, 256, S).expect("mine");

    let outer = statistics.push_counters();
    assert_eq!((outer.bytes.value, outer.bytes.peak, outer.bytes.total), (200, 300, 300));
    assert_eq!(statistics.counters(), Default::default());
    resource.deallocate(b, 200, 256, S).expect("mine");
    let c = resource.allocate(1000, 256, S).expect("room");
    assert_eq!(resource.body().info().peak_live_bytes, 1000);
    let inner = statistics.pop_counters().expect("pushed");
    // 200 freed and 1000 allocated since the push.
    assert_eq!((inner.bytes.value, inner.bytes.peak, inner.bytes.total), (800, 800, 1000));
    assert_eq!((inner.allocations.value, inner.allocations.peak, inner.allocations.total), (0, 0, 1));

    let all = statistics.counters();
    assert_eq!((all.bytes.value, all.bytes.peak, all.bytes.total), (1000, 1000, 1300));
    assert_eq!((all.allocations.value, all.allocations.peak, all.allocations.total), (1, 2, 3));
    assert!(matches!(statistics.pop_counters(), Err(Error::Invalid(_))));
    assert_eq!(statistics.counters(), all);
    resource.deallocate(c, 1000, 256, S).expect("mine");
}

#[test]
fn a_failed_allocation_is_not_counted_and_names_the_layers() {
    let (_, upstream) = numbers();
    let limiting = Resource::new(Limiting::new(upstream, 64)).expect("made");
    let statistics = Resource::new(Statistics::new(limiting)).expect("made");
    let (requested, live, limit, stack) = limit_of(statistics.allocate(65, 256, S).expect_err("too much"));
    assert_eq!((requested, live, limit), (65, 0, 64));
    assert_eq!(stack, "statistics > limiting > callback");
    assert_eq!(statistics.body().property("total_bytes"), Some(0));
}

#[test]
fn threads_never_pass_the_limit_and_leave_the_figures_at_zero() {
    const THREADS: usize = 8;
    let (numbers, upstream) = numbers();
    let limiting = Resource::new(Limiting::new(upstream, 10_000)).expect("made");
    let statistics = Resource::new(Statistics::new(limiting.clone())).expect("made");
    let start = Barrier::new(THREADS);
    let refusals = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let (start, refusals, statistics) = (&start, &refusals, &statistics);
            scope.spawn(move || {
                start.wait();
                let mut mine = Vec::new();
                for i in 0..500usize {
                    let bytes = 1 + (i * 37 + t * 101) % 3000;
                    match statistics.allocate(bytes, 256, S) {
                        Ok(ptr) => mine.push((ptr, bytes)),
                        Err(Error::OutOfMemory(e)) => {
                            assert!(e.live + e.requested > e.limit);
                            refusals.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(other) => panic!("{other}"),
                    }
                    if mine.len() > 5 {
                        let (ptr, bytes) = mine.swap_remove(i % mine.len());
                        statistics.deallocate(ptr, bytes, 256, S).expect("mine");
                    }
                }
                for (ptr, bytes) in mine {
                    statistics.deallocate(ptr, bytes, 256, S).expect("mine");
                }
            });
        }
    });
    assert!(refusals.into_inner() > 0, "the limit was never met: the test shows nothing");
    assert!(numbers.most.load(Ordering::SeqCst) <= 10_000);
    assert_eq!(limiting.body().property("allocated_bytes"), Some(0));
    let info = statistics.body().info();
    assert_eq!((info.live_bytes, info.live_count), (0, 0));
    assert!(info.peak_live_bytes <= 10_000);
}

#[test]
fn credit_of_other_threads_is_called_back_before_a_refusal() {
    let (_, upstream) = numbers();
    let limiting = Resource::new(Limiting::new(upstream, 100_000)).expect("made");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let limiting = &limiting;
            scope.spawn(move || {
                for bytes in [100, 5000, 9000] {
                    let ptr = limiting.allocate(bytes, 256, S).expect("room");
                    limiting.deallocate(ptr, bytes, 256, S).expect("mine");
                }
            });
        }
    });
    assert_eq!(limiting.body().property("allocated_bytes"), Some(0));
    let ptr = limiting.allocate(100_000, 256, S).expect("all of it is there");
    assert_eq!(limit_of(limiting.allocate(1, 256, S).expect_err("full")).1, 100_000);
    limiting.deallocate(ptr, 100_000, 256, S).expect("mine");
}

#[test]
fn what_fits_is_never_refused_whatever_other_threads_do() {
    const THREADS: usize = 8;
    let (_, upstream) = numbers();
    // Each thread holds an eighth of the limit at most, so that nothing is ever asked in vain.
    let limiting = Resource::new(Limiting::new(upstream, THREADS as u64 * 4000)).expect("made");
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let limiting = &limiting;
            scope.spawn(move || {
                for i in 0..2000usize {
                    let first = 1 + (i * 37 + t * 101) % 3999;
                    let a = limiting.allocate(first, 256, S).expect("it fits");
                    let b = limiting.allocate(4000 - first, 256, S).expect("it fits");
                    limiting.deallocate(a, first, 256, S).expect("mine");
                    limiting.deallocate(b, 4000 - first, 256, S).expect("mine");
                }
            });
        }
    });
    assert_eq!(limiting.body().property("allocated_bytes"), Some(0));
}

#[test]
fn entries_that_may_not_wait_pass_through() {
    let (_, upstream) = numbers();
    let limiting = Resource::new(Limiting::new(upstream, 1000)).expect("made");
    let statistics = Resource::new(Statistics::new(limiting.clone())).expect("made");
    // A callback resource always has to call user code.
    assert!(matches!(statistics.try_allocate(100, 256, S), Err(Error::WouldBlock)));
    assert_eq!(limiting.body().property("allocated_bytes"), Some(0));
    let ptr = statistics.allocate(100, 256, S).expect("room");
    assert!(matches!(statistics.try_deallocate(ptr, 100, 256, S), Err(Error::WouldBlock)));
    assert_eq!(limiting.body().property("allocated_bytes"), Some(100));
    statistics.deallocate(ptr, 100, 256, S).expect("mine");
}
