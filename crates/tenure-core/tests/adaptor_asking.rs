//! The tracking, failure-callback, prefetch, aligned and thread-safe adaptors, and system memory with headroom, below every face.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use tenure_core::adaptor::failure::MAX_IDLE_TRIES;
use tenure_core::adaptor::{Aligned, FailureCallback, Limiting, Prefetch, Statistics, ThreadSafe, Tracking};
use tenure_core::error::{Error, MisuseKind, Payload, Result};
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::prefetch::{Place, prefetch};
use tenure_core::resource::callback::{CallbackResource, Callbacks};
use tenure_core::resource::leaf::{AsyncPool, SamHeadroom, shared};
use tenure_core::resource::{Properties, Resource};
use tenure_core::stack;
use tenure_core::stream::{StreamObject, StreamRef};

const S: StreamRef<'static> = StreamRef::DEFAULT;
const MIB: usize = 1 << 20;

fn cuda() -> Resource {
    tenure_driver::load::prefer_sim().expect("the simulated device");
    shared::cuda().expect("the plain resource")
}

fn pool() -> Resource {
    Resource::new(Pool::new(cuda(), 0, PoolOptions::default()).expect("a pool")).expect("a resource")
}

fn tracking(resource: &Resource) -> &Tracking {
    resource.downcast().expect("a tracking adaptor")
}

// ------------------------------------------------------------------------------------------------------------- tracking

#[test]
fn the_list_is_what_is_out_over_every_way_in() {
    for upstream in [cuda(), pool()] {
        let tracked = Resource::new(Tracking::new(upstream, false)).expect("made");
        let a = tracked.allocate(1000, 256, S).expect("memory");
        let b = tracked.allocate_sync(50, 256).expect("memory");
        let mut many = [0; 3];
        tracked.allocate_many(&[10, 0, 20], 256, S, &mut many).expect("memory");
        let listed: Vec<(u64, usize)> =
            tracking(&tracked).outstanding().iter().map(|block| (block.ptr, block.bytes)).collect();
        let mut wanted = vec![(a, 1000), (b, 50), (many[0], 10), (many[2], 20)];
        wanted.sort_unstable();
        assert_eq!(listed, wanted);
        assert_eq!(tracking(&tracked).allocated_bytes(), 1080);
        assert_eq!(tracked.body().info().live_count, 4);
        tracked.deallocate_many(&many, &[10, 0, 20], 256, S).expect("freed");
        tracked.deallocate_sync(b, 50, 256).expect("freed");
        match tracked.try_deallocate(a, 1000, 256, S) {
            Ok(()) => {}
            Err(Error::WouldBlock) => {
                assert_eq!(tracking(&tracked).allocated_bytes(), 1000, "nothing changed");
                tracked.deallocate(a, 1000, 256, S).expect("freed");
            }
            Err(e) => panic!("{e}"),
        }
        assert_eq!(tracking(&tracked).outstanding(), []);
        assert_eq!((tracking(&tracked).allocated_bytes(), tracking(&tracked).outstanding_text()), (0, String::new()));
    }
}

#[test]
fn a_wrong_free_changes_nothing_and_says_what_is_wrong() {
    let tracked = Resource::new(Tracking::new(pool(), false)).expect("made");
    let other = Resource::new(Tracking::new(tracked.anchor(), false)).expect("made");
    let ptr = tracked.allocate(5000, 256, S).expect("memory");
    let kind = |result: Result<()>| match result {
        Err(Error::Misuse(misuse)) => misuse.kind,
        other => panic!("{other:?}"),
    };
    assert_eq!(kind(tracked.deallocate(ptr, 9000, 256, S)), MisuseKind::WrongSize);
    assert_eq!(kind(other.deallocate(ptr, 5000, 256, S)), MisuseKind::WrongResource);
    assert_eq!(tracking(&tracked).outstanding().len(), 1);
    assert_eq!(tracking(&other).outstanding().len(), 0);
    tracked.deallocate(ptr, 5000, 256, S).expect("freed");
    assert_eq!(kind(tracked.deallocate(ptr, 5000, 256, S)), MisuseKind::DoubleFree);
    assert_eq!(tracking(&tracked).allocated_bytes(), 0);
}

#[test]
fn threads_that_share_blocks_leave_an_empty_list() {
    let tracked = Resource::new(Tracking::new(pool(), false)).expect("made");
    let (to, from) = std::sync::mpsc::sync_channel::<(u64, usize)>(64);
    std::thread::scope(|scope| {
        let tracked = &tracked;
        scope.spawn(move || {
            // Frees what the others made: the address may be theirs again before this call ends.
            for (ptr, bytes) in from {
                tracked.deallocate(ptr, bytes, 256, S).expect("theirs");
            }
        });
        for t in 0..3usize {
            let to = to.clone();
            scope.spawn(move || {
                for round in 0..600usize {
                    let bytes = 256 * (1 + (t + round) % 40);
                    let ptr = tracked.allocate(bytes, 256, S).expect("memory");
                    if round % 3 == 0 {
                        to.send((ptr, bytes)).expect("received");
                    } else {
                        tracked.deallocate(ptr, bytes, 256, S).expect("mine");
                    }
                }
            });
        }
        drop(to);
    });
    assert_eq!(tracking(&tracked).outstanding(), []);
    assert_eq!(tracking(&tracked).allocated_bytes(), 0);
}

#[test]
fn stacks_are_taken_only_where_they_are_wanted_and_without_a_lock() {
    let asked = Arc::new(AtomicUsize::new(0));
    let plain = Resource::new(Tracking::new(pool(), false)).expect("made");
    let with = Resource::new(Tracking::new(pool(), true)).expect("made");
    let (count, inner) = (asked.clone(), with.clone());
    let before = stack::set_source(Some(Arc::new(move || {
        // The source may ask for the list and allocate: it is user code.
        if count.fetch_add(1, Ordering::SeqCst) == 0 {
            let ptr = inner.allocate(64, 256, S).expect("memory");
            assert_eq!(tracking(&inner).outstanding().len(), 1);
            inner.deallocate(ptr, 64, 256, S).expect("freed");
        }
        "  File \"a.py\", line 1, in f\n".to_owned()
    })));
    let a = plain.allocate(100, 256, S).expect("memory");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    assert!(matches!(with.try_allocate(100, 256, S), Err(Error::WouldBlock)), "an interpreter may be entered");
    let b = with.allocate(100, 256, S).expect("memory");
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    stack::set_source(before);
    let text = tracking(&with).outstanding_text();
    assert!(text.starts_with(&format!("{b:#x}: 100 B : callstack:\n  File \"a.py\", line 1, in f\n  0x")), "{text}");
    assert_eq!(tracking(&plain).outstanding_text(), format!("{a:#x}: 100 B\n"));
    plain.deallocate(a, 100, 256, S).expect("freed");
    with.deallocate(b, 100, 256, S).expect("freed");
}

// ----------------------------------------------------------------------------------------------------- failure callback

fn limited(bytes: u64) -> Resource {
    Resource::new(Limiting::new(cuda(), bytes)).expect("made")
}

fn asking(upstream: &Resource, callback: impl Fn(usize) -> Result<bool> + Send + Sync + 'static) -> Resource {
    Resource::new(FailureCallback::new(upstream.clone(), Box::new(callback))).expect("made")
}

fn text_of<T: std::fmt::Debug>(result: Result<T>) -> String {
    let error = result.expect_err("refused");
    assert!(error.is_out_of_memory(), "{error}");
    error.to_string()
}

#[test]
fn again_is_believed_for_as_long_as_something_becomes_free() {
    let limited = limited(1000);
    let blocks = Arc::new(std::sync::Mutex::new(
        (0..10).map(|_| limited.allocate(100, 256, S).expect("memory")).collect::<Vec<_>>(),
    ));
    let (cache, upstream, asked) = (blocks.clone(), limited.clone(), Arc::new(AtomicUsize::new(0)));
    let count = asked.clone();
    let top = asking(&limited, move |bytes| {
        assert_eq!(bytes, 1000);
        count.fetch_add(1, Ordering::SeqCst);
        let Some(ptr) = cache.lock().expect("not poisoned").pop() else { return Ok(false) };
        upstream.deallocate(ptr, 100, 256, S)?;
        Ok(true)
    });
    let ptr = top.allocate(1000, 256, S).expect("ten blocks were given up for it");
    assert_eq!(asked.load(Ordering::SeqCst), 10);
    assert_eq!(limited.body().info().live_bytes, 1000);
    top.deallocate(ptr, 1000, 256, S).expect("freed");
}

#[test]
fn again_for_ever_ends_and_leaves_everything_as_it_was() {
    let limited = limited(1000);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let top = asking(&limited, move |_| Ok(count.fetch_add(1, Ordering::SeqCst) < 1_000_000));
    let before = limited.body().info();
    let ways: [&dyn Fn() -> Result<u64>; 3] =
        [&|| top.allocate(2000, 256, S), &|| top.allocate_sync(2000, 256), &|| {
            top.allocate_many(&[10, 2000], 256, S, &mut [0, 0]).map(|()| 0)
        }];
    for way in ways {
        let text = text_of(way());
        assert!(text.contains("failure_callback > limiting") && text.contains("again and again"), "{text}");
        assert_eq!(asked.swap(0, Ordering::SeqCst), MAX_IDLE_TRIES as usize);
    }
    let after = limited.body().info();
    assert_eq!((after.live_bytes, after.live_count), (before.live_bytes, before.live_count));
}

#[test]
fn what_others_free_counts_as_well_and_what_comes_and_goes_does_not() {
    let limited = limited(100 * 1000);
    let asked = Arc::new(AtomicUsize::new(0));
    let (count, upstream) = (asked.clone(), limited.clone());
    let held = limited.allocate(100, 256, S).expect("memory");
    let mutex = std::sync::Mutex::new(Some(held));
    let top = asking(&limited, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        let mut held = mutex.lock().expect("not poisoned");
        *held = match held.take() {
            Some(ptr) => {
                upstream.deallocate(ptr, 100, 256, S)?;
                None
            }
            None => Some(upstream.allocate(100, 256, S)?),
        };
        Ok(true)
    });
    assert!(text_of(top.allocate(200 * 1000, 256, S)).contains("again and again"));
    // One record, and then idle tries.
    let tries = asked.load(Ordering::SeqCst);
    assert!((100..=102).contains(&tries), "{tries}");
}

#[test]
fn an_error_of_the_callback_is_the_error_payload_and_all() {
    static RELEASED: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn release(_data: *mut std::ffi::c_void) {
        RELEASED.fetch_add(1, Ordering::SeqCst);
    }
    let limited = limited(1000);
    let top = asking(&limited, |_| {
        let payload = Payload { kind: 7, data: std::ptr::without_provenance_mut(42), release: Some(release) };
        Err(Error::Callback("the user's own".into(), Some(payload)))
    });
    let top = Resource::new(Tracking::new(Resource::new(Statistics::new(top)).expect("made"), true)).expect("made");
    match top.allocate(2000, 256, S) {
        Err(Error::Callback(text, Some(payload))) => {
            assert_eq!((text.as_str(), payload.kind, payload.data as usize), ("the user's own", 7, 42));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(RELEASED.load(Ordering::SeqCst), 1);
    assert_eq!(tracking(&top).outstanding(), []);
}

#[test]
fn only_out_of_memory_asks() {
    struct Broken(fn() -> Error);
    impl Callbacks for Broken {
        fn allocate(&self, _bytes: usize, _align: usize, _stream: StreamRef<'_>) -> Result<u64> {
            Err((self.0)())
        }
        fn deallocate(&self, _ptr: u64, _bytes: usize, _align: usize, _stream: StreamRef<'_>) -> Result<()> {
            Ok(())
        }
    }
    cuda();
    let errors: [(fn() -> Error, usize); 6] = [
        (|| Error::Callback("broken".into(), None), 0),
        (|| Error::invalid("wrong"), 0),
        (|| Error::Unsupported("lacking".into()), 0),
        (|| Error::BadHandle("gone".into()), 0),
        (|| Error::CallbackOutOfMemory("the user has none".into(), None), 1),
        (|| Error::OutOfMemory(Box::default()), 1),
    ];
    for (error, times) in errors {
        let body = CallbackResource::new(Box::new(Broken(error)), Some(0), Properties::default());
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let top = asking(&Resource::new(body).expect("made"), move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(false)
        });
        let text = top.allocate(10, 256, S).expect_err("broken").to_string();
        assert_eq!(asked.load(Ordering::SeqCst), times, "{text}");
    }
}

#[test]
fn a_request_of_the_callback_does_not_ask_it_again_and_threads_do_not_share_that() {
    let limited = limited(1000);
    let itself: Arc<std::sync::OnceLock<Resource>> = Arc::default();
    let (weak, asked, barrier) = (itself.clone(), Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(2)));
    let (count, meet) = (asked.clone(), barrier.clone());
    let top = asking(&limited, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        // Both threads are inside at the same time.
        meet.wait();
        let me = weak.get().expect("set");
        for _ in 0..3 {
            assert!(text_of(me.allocate(5000, 256, S)).contains("not asked"));
        }
        let small = me.allocate(10, 256, S)?;
        me.deallocate(small, 10, 256, S)?;
        Ok(false)
    });
    itself.set(top.clone()).expect("once");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert!(text_of(top.allocate(2000, 256, S)).contains("gave up")));
        }
    });
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[test]
fn a_call_that_must_not_wait_does_not_ask() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let small = Pool::new(cuda(), 0, PoolOptions { maximum_bytes: Some(4 << 20), ..PoolOptions::default() });
    let top = asking(&Resource::new(small.expect("a pool")).expect("made"), move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(false)
    });
    assert!(matches!(top.try_allocate(64 << 20, 256, S), Err(Error::WouldBlock)));
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    text_of(top.allocate(64 << 20, 256, S));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

// ------------------------------------------------------------------------------------- prefetch, aligned, taking turns

#[test]
fn a_hint_is_given_where_there_is_something_to_move_and_never_fails() {
    cuda();
    let managed = shared::managed().expect("made");
    let over = |upstream: Resource| Resource::new(Prefetch::new(upstream)).expect("made");
    let told = |resource: &Resource| resource.downcast::<Prefetch>().expect("prefetch").told();
    for (upstream, moves) in [
        (cuda(), 0),
        (pool(), 0),
        (shared::pinned().expect("made"), 0),
        (managed.clone(), 1),
        (Resource::new(AsyncPool::managed_of_default(0).expect("CUDA 13")).expect("made"), 1),
    ] {
        let hinted = over(upstream);
        assert_eq!(hinted.body().property("hints"), Some(moves));
        let ptr = hinted.allocate(1000, 256, S).expect("memory");
        assert_eq!(told(&hinted), moves, "{hinted:?}");
        assert_eq!(prefetch(ptr, 1000, Place::Host, S).expect("a hint"), moves == 1);
        assert!(matches!(prefetch(ptr, 1000, Place::Device(99), S), Err(Error::Invalid(_))));
        assert!(!prefetch(ptr, 0, Place::Host, S).expect("nothing"));
        hinted.deallocate(ptr, 1000, 256, S).expect("freed");
    }
    assert!(!prefetch(0x1234_5678_0000, 100, Place::Device(0), S).expect("an address that nobody knows"));
    let stream = StreamObject::create(0, true).expect("a stream");
    let stored = StreamRef { raw: stream.raw(), object: None, stored: true };
    let ptr = managed.allocate(100, 256, S).expect("memory");
    assert!(!prefetch(ptr, 100, Place::Device(0), stored).expect("a stream that nobody may ask"));
    managed.deallocate(ptr, 100, 256, S).expect("freed");
}

#[test]
fn blocks_are_aligned_from_the_threshold_on_and_freed_by_what_was_asked() {
    for upstream in [cuda(), pool()] {
        for align in [512usize, 4096, 2 << 20] {
            let aligned = Resource::new(Aligned::new(upstream.clone(), align, 1000).expect("valid")).expect("made");
            let blocks: Vec<(u64, usize)> = [1, 999, 1000, 4097, 3, 70_000]
                .into_iter()
                .map(|bytes| (aligned.allocate(bytes, 256, S).expect("memory"), bytes))
                .collect();
            for (ptr, bytes) in &blocks {
                let wanted = if *bytes >= 1000 { align as u64 } else { 256 };
                assert_eq!(ptr % wanted, 0, "{bytes} bytes at {ptr:#x}");
            }
            let (ptr, bytes) = blocks[3];
            assert!(matches!(aligned.deallocate(ptr, bytes + 4096, 256, S), Err(Error::Misuse(_))));
            for (ptr, bytes) in blocks {
                aligned.deallocate(ptr, bytes, 256, S).expect("freed");
            }
        }
    }
    for align in [0, 3, 257, 4 << 20] {
        let error = Aligned::new(cuda(), align, 0).expect_err("no alignment").to_string();
        assert!(error.contains(&format!("alignment is {align}")), "{error}");
    }
    assert_eq!(Aligned::new(cuda(), 1, 0).expect("raised").alignment(), 256);
}

/// Cannot take two calls at a time.
#[derive(Default)]
struct OneAtATime {
    inside: AtomicUsize,
    most: AtomicUsize,
    next: AtomicU64,
}

struct Shared(Arc<OneAtATime>);

impl Shared {
    fn visit(&self) {
        let now = self.0.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(now, Ordering::SeqCst);
        std::thread::yield_now();
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Callbacks for Shared {
    fn allocate(&self, bytes: usize, _align: usize, _stream: StreamRef<'_>) -> Result<u64> {
        self.visit();
        if bytes == 13 {
            return Err(Error::Callback("unlucky".into(), None));
        }
        Ok(self.0.next.fetch_add(1 << 20, Ordering::SeqCst) + (1 << 40))
    }

    fn deallocate(&self, _ptr: u64, _bytes: usize, _align: usize, _stream: StreamRef<'_>) -> Result<()> {
        self.visit();
        Ok(())
    }
}

#[test]
fn one_call_at_a_time_and_an_error_gives_the_turn_back() {
    cuda();
    let state = Arc::new(OneAtATime::default());
    let body = CallbackResource::new(Box::new(Shared(state.clone())), Some(0), Properties::default());
    let safe = Resource::new(ThreadSafe::new(Resource::new(body).expect("made"))).expect("made");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..200usize {
                    assert!(safe.allocate(13, 256, S).is_err());
                    let ptr = safe.allocate(100, 256, S).expect("memory");
                    // A call that must not wait says so, whether or not it is its turn: user code would be called.
                    assert!(matches!(safe.try_allocate(100, 256, S), Err(Error::WouldBlock)), "{round}");
                    safe.deallocate(ptr, 100, 256, S).expect("freed");
                }
            });
        }
    });
    assert_eq!(state.most.load(Ordering::SeqCst), 1);
    assert_eq!(safe.body().info().live_count, 0);
}

#[test]
fn memory_with_headroom_is_memory_of_the_host_and_books_as_such() {
    cuda();
    let sam = Resource::new(SamHeadroom::new(MIB as u64)).expect("made");
    let ptr = sam.allocate(100_000, 4096, S).expect("memory");
    assert_eq!((sam.body().kind(), sam.body().property("headroom"), ptr % 4096), ("sam_headroom", Some(1 << 20), 0));
    assert_eq!(sam.block(ptr + 5).map(|block| (block.bytes, block.device)), Some((100_000, -1)));
    assert!(matches!(sam.deallocate(ptr, 1, 4096, S), Err(Error::Misuse(_))));
    sam.deallocate(ptr, 100_000, 4096, S).expect("freed");
}
