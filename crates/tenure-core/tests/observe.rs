//! Looking inside: every live block is in a snapshot once, whoever made it; tags, threads and resources are counted; events
//! are kept in bounds and in order; and an out-of-memory error says who holds what.

#![allow(missing_docs)]

#[path = "pool_common.rs"]
mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::*;
use serde_json::Value;
use tenure_core::adaptor::{Aligned, Limiting, Statistics, ThreadSafe, Tracking};
use tenure_core::arena::{Arena, ArenaOptions};
use tenure_core::bins::{Binning, BinningOptions, FixedSize, FixedSizeOptions};
use tenure_core::buffer::Buffer;
use tenure_core::error::{Error, OutOfMemory, Payload, Result};
use tenure_core::observe::{self, By, Tag, Usage, history, pop_tag, push_tag};
use tenure_core::pool::PoolOptions;
use tenure_core::resource::callback::{CallbackResource, Callbacks};
use tenure_core::resource::leaf::{AsyncOptions, AsyncPool, SamHeadroom, shared};
use tenure_core::resource::{Properties, Resource};
use tenure_core::stack::set_source;
use tenure_core::stream::{StreamHold, StreamObject, StreamRef};

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;

fn cuda() -> Resource {
    shared::cuda().expect("the plain resource")
}

fn a_pool(options: PoolOptions) -> Resource {
    resource(pool(options))
}

fn snapshot() -> Value {
    serde_json::from_str(&observe::snapshot::text()).expect("JSON")
}

/// A live block: its size, its tag, its stream.
type Seen = (u64, Option<String>, Option<u64>);

/// The live blocks of a snapshot that a user asked for, by address and resource. Each once.
fn live() -> BTreeMap<(u64, u64), Seen> {
    let all = snapshot();
    let mut found = BTreeMap::new();
    for block in all["blocks"].as_array().expect("blocks") {
        if !block["held_by"].is_null() {
            continue;
        }
        let at = (block["address"].as_u64().expect("an address"), block["resource"].as_u64().expect("a resource"));
        let seen = (
            block["size"].as_u64().expect("a size"),
            block["tag"].as_str().map(str::to_owned),
            block["stream"].as_u64(),
        );
        assert_eq!(found.insert(at, seen), None, "{at:x?} is there twice");
    }
    found
}

fn account(by: By, name: &str) -> Usage {
    observe::usage(by).into_iter().find(|usage| usage.name == name).unwrap_or_default()
}

fn no_longer() {
    history::record(false, false, 1).expect("ends");
    observe::observe(false);
    drop(set_source(None));
    assert!(!observe::is_on());
}

/// Memory of another resource, handed on by user functions.
struct HandOn(Resource);

impl Callbacks for HandOn {
    fn allocate(&self, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<u64> {
        self.0.allocate(bytes, align, stream)
    }
    fn deallocate(&self, ptr: u64, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<()> {
        self.0.deallocate(ptr, bytes, align, stream)
    }
    fn failed_free(&self, _ptr: u64, _bytes: usize, error: Error) {
        panic!("a free failed: {error}");
    }
}

fn every_kind() -> Vec<(&'static str, Resource)> {
    let properties = Properties { device_accessible: true, ..Properties::default() };
    let pooled = || a_pool(PoolOptions::default());
    let fixed = FixedSizeOptions { block_size: MIB, blocks_to_preallocate: 2 };
    let bins = BinningOptions { min_size_exponent: 18, max_size_exponent: 20 };
    let arena = ArenaOptions { arena_size: Some(16 * MIB), ..ArenaOptions::default() };
    vec![
        ("cuda", cuda()),
        ("managed", shared::managed().unwrap()),
        ("pinned", shared::pinned().unwrap()),
        ("system", shared::system().unwrap()),
        ("async", resource(AsyncPool::new(AsyncOptions { device: Some(0), ..AsyncOptions::default() }).unwrap())),
        ("pool", pooled()),
        ("pool of chunks", a_pool(PoolOptions { plain_chunks: true, ..PoolOptions::default() })),
        ("pool over a pool", resource(tenure_core::pool::Pool::new(pooled(), 0, PoolOptions::default()).unwrap())),
        ("arena", resource(Arena::new(cuda(), 0, arena).unwrap())),
        ("fixed size", resource(FixedSize::new(cuda(), 0, fixed).unwrap())),
        ("binning", resource(Binning::new(cuda(), 0, bins).unwrap())),
        ("limiting", resource(Limiting::new(pooled(), 64 * MIB))),
        ("statistics", resource(Statistics::new(pooled()))),
        ("statistics over limiting", resource(Statistics::new(resource(Limiting::new(pooled(), 64 * MIB))))),
        ("tracking", resource(Tracking::new(pooled(), false))),
        ("aligned", resource(Aligned::new(pooled(), 4096, 0).unwrap())),
        ("thread safe", resource(ThreadSafe::new(pooled()))),
        ("sam headroom", resource(SamHeadroom::new(MIB))),
        ("callback", resource(CallbackResource::new(Box::new(HandOn(pooled())), Some(0), properties))),
    ]
}

#[test]
fn each_live_block_of_each_resource_is_in_a_snapshot_also_when_nothing_is_booked() {
    let _machine = machine();
    no_longer();
    for (kind, resource) in every_kind() {
        let before = live();
        let sizes = [100usize, 4096, 200 << 10, 1 << 20];
        let blocks: Vec<u64> = sizes.iter().map(|bytes| resource.allocate(*bytes, 256, LEGACY).unwrap()).collect();
        let now = live();
        for (ptr, bytes) in blocks.iter().zip(sizes) {
            let seen = now.get(&(*ptr, resource.id()));
            let (size, tag, stream) = seen.unwrap_or_else(|| panic!("{kind}: {bytes} bytes are missing"));
            assert!((bytes as u64..=bytes as u64 * 9 / 8 + 256).contains(size), "{kind}: {bytes} bytes are {size}");
            assert_eq!(*tag, None);
            // Which stream a callback's memory is for, the callback knows.
            assert!(kind == "callback" || *stream == Some(0), "{kind}");
        }
        // A callback's block is shown by the resource that it comes from, too, in that one's name.
        let each = if kind == "callback" { 2 } else { 1 };
        assert_eq!(now.len() - before.len(), sizes.len() * each, "{kind}");
        for (ptr, bytes) in blocks.iter().zip(sizes) {
            resource.deallocate(*ptr, bytes, 256, LEGACY).unwrap();
        }
        assert_eq!(live(), before, "{kind}");
    }
}

#[test]
fn booked_blocks_have_their_exact_size_their_tag_and_their_stream_in_each_resource() {
    let _machine = machine();
    no_longer();
    let stream = StreamObject::create(0, true).unwrap();
    for (kind, resource) in every_kind() {
        let tag = Tag::open("things").unwrap();
        let ptr = resource.allocate(1001, 256, object(&stream)).unwrap();
        drop(tag);
        let (size, tag, on) = live()[&(ptr, resource.id())].clone();
        assert_eq!((size, tag.as_deref(), on), (1001, Some("things"), Some(stream.raw().addr() as u64)), "{kind}");
        let things = account(By::Tag, "things");
        // Both requests of a callback are requests of a public entry.
        let each = if kind == "callback" { 2 } else { 1 };
        assert_eq!((things.live_bytes, things.live_count), (1001 * each, each), "{kind}");
        resource.deallocate(ptr, 1001, 256, object(&stream)).unwrap();
        assert_eq!(account(By::Tag, "things").live_bytes, 0, "{kind}");
    }
    no_longer();
}

#[test]
fn tags_nest_and_the_innermost_counts_until_it_ends_in_any_order() {
    let _machine = machine();
    let pool = a_pool(PoolOptions::default());
    let take = |bytes| pool.allocate(bytes, 256, LEGACY).unwrap();
    let outer = push_tag("nest outer").unwrap();
    let a = take(1000);
    let inner = push_tag("nest inner").unwrap();
    let b = take(2000);
    assert_eq!(observe::current_tag().as_deref(), Some("nest inner"));
    pop_tag(outer).unwrap();
    let c = take(4000);
    pop_tag(inner).unwrap();
    let d = take(8000);
    let of = |name| account(By::Tag, name).live_bytes;
    assert_eq!((of("nest outer"), of("nest inner")), (1000, 6000));
    assert!(matches!(pop_tag(inner), Err(Error::BadHandle(_))), "ended already");
    let elsewhere = push_tag("nest outer").unwrap();
    let other = std::thread::spawn(move || pop_tag(elsewhere)).join().unwrap();
    assert!(matches!(other, Err(Error::BadHandle(_))), "another thread's");
    pop_tag(elsewhere).unwrap();
    for (ptr, bytes) in [(a, 1000), (b, 2000), (c, 4000), (d, 8000)] {
        pool.deallocate(ptr, bytes, 256, LEGACY).unwrap();
    }
    let outer = account(By::Tag, "nest outer");
    assert_eq!((outer.live_bytes, outer.peak_bytes, outer.total_bytes, outer.total_count), (0, 1000, 1000, 1));
    assert_eq!(account(By::Tag, "nest inner").peak_bytes, 6000);
    for bad in ["", &"x".repeat(257)] {
        assert!(matches!(push_tag(bad), Err(Error::Invalid(_))));
    }
    no_longer();
}

#[test]
fn what_is_freed_elsewhere_leaves_the_account_of_who_allocated() {
    let _machine = machine();
    let pool = a_pool(PoolOptions::default());
    let _tag = Tag::open("elsewhere").unwrap();
    let me = {
        // SAFETY: takes no argument.
        let id = unsafe { libc::syscall(libc::SYS_gettid) } as u64;
        move || observe::usage(By::Thread).into_iter().find(|usage| usage.id == id).unwrap_or_default()
    };
    let before = me();
    let ptr = pool.allocate(5000, 256, LEGACY).unwrap();
    assert_eq!(me().live_bytes - before.live_bytes, 5000);
    let name = pool.stack();
    let of_pool = || observe::usage(By::Resource).into_iter().find(|usage| usage.id == pool.id()).unwrap();
    assert_eq!((of_pool().live_bytes, of_pool().name), (5000, name));
    std::thread::scope(|scope| {
        scope.spawn(|| pool.deallocate(ptr, 5000, 256, LEGACY).unwrap());
    });
    assert_eq!(me().live_bytes, before.live_bytes);
    assert_eq!(of_pool().live_bytes, 0);
    no_longer();
}

#[test]
fn a_free_that_is_refused_leaves_the_block_in_the_book() {
    let _machine = machine();
    let (pool, other) = (a_pool(PoolOptions::default()), a_pool(PoolOptions::default()));
    let _tag = Tag::open("refused").unwrap();
    let ptr = pool.allocate(10_000, 256, LEGACY).unwrap();
    let refusals = [
        other.deallocate(ptr, 10_000, 256, LEGACY),
        pool.deallocate(ptr, 500, 256, LEGACY),
        pool.deallocate(ptr + 256, 10_000, 256, LEGACY),
    ];
    assert!(refusals.iter().all(|freed| matches!(freed, Err(Error::Misuse(_)))), "{refusals:?}");
    let freed = pool.deallocate_many(&[ptr, ptr], &[10, 20], 256, LEGACY);
    assert!(matches!(freed, Err(Error::OneOf(_))));
    assert_eq!(account(By::Tag, "refused").live_bytes, 10_000);
    assert_eq!(live()[&(ptr, pool.id())].1.as_deref(), Some("refused"));
    pool.deallocate(ptr, 10_000, 256, LEGACY).unwrap();
    assert!(pool.deallocate(ptr, 10_000, 256, LEGACY).is_err());
    assert_eq!(account(By::Tag, "refused").live_bytes, 0);
    no_longer();
}

#[test]
fn buffers_and_many_blocks_in_one_call_are_counted_too() {
    let _machine = machine();
    let pool = a_pool(PoolOptions::default());
    let tag = Tag::open("buffers").unwrap();
    let hold = || StreamHold::raw(LEGACY.raw);
    let mut buffer = Buffer::create(3000, 0, hold(), pool.light()).unwrap();
    let tried = Buffer::try_create(3000, 0, hold(), pool.light()).unwrap();
    let many = Buffer::create_many(&[100, 0, 200], 0, &hold(), &pool.light()).unwrap();
    let mut ptrs = [0; 3];
    pool.allocate_many(&[10, 0, 20], 256, LEGACY, &mut ptrs).unwrap();
    drop(tag);
    assert_eq!(account(By::Tag, "buffers").live_bytes, 6330);
    // What a buffer grows to counts where it grows.
    buffer.resize(50_000, hold()).unwrap();
    assert_eq!(account(By::Tag, "buffers").live_bytes, 3330);
    assert_eq!(live()[&(buffer.ptr(), pool.id())].0, 50_000);
    drop((buffer, tried, many));
    assert_eq!(account(By::Tag, "buffers").live_bytes, 30);
    pool.deallocate_many(&ptrs, &[10, 0, 20], 256, LEGACY).unwrap();
    assert_eq!(account(By::Tag, "buffers").live_count, 0);
    no_longer();
}

/// Sets a flag whatever happens.
struct AtTheEnd<'a>(&'a AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_walk_over_a_busy_pool_has_every_block_that_stays_once() {
    let _machine = machine();
    no_longer();
    let pool = a_pool(PoolOptions::default());
    let streams: Vec<_> = (0..3).map(|_| StreamObject::create(0, true).unwrap()).collect();
    let mut sizes = (1u64..).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40).map(|n| match n % 10 {
        0 => 100_000 + n % 300_000,
        _ => 1 + n % 5000,
    });
    let mut stay = BTreeMap::new();
    for i in 0..3000 {
        let bytes = sizes.next().unwrap();
        let ptr = pool.allocate(bytes as usize, 256, object(&streams[i % 3])).unwrap();
        if i % 3 == 0 {
            pool.deallocate(ptr, bytes as usize, 256, object(&streams[i % 3])).unwrap();
        } else {
            stay.insert(ptr, (bytes, streams[i % 3].raw().addr() as u64));
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for stream in &streams {
            let (pool, over) = (&pool, &over);
            scope.spawn(move || {
                let mut held = Vec::new();
                let mut n = 7usize;
                while !over.load(Ordering::Relaxed) {
                    n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let bytes = 1 + (n >> 33) % 60_000;
                    if let Ok(ptr) = pool.allocate(bytes, 256, object(stream)) {
                        held.push((ptr, bytes));
                    }
                    if held.len() > 20 {
                        let (ptr, bytes) = held.swap_remove(n % 20);
                        pool.deallocate(ptr, bytes, 256, object(stream)).unwrap();
                    }
                }
                for (ptr, bytes) in held {
                    pool.deallocate(ptr, bytes, 256, object(stream)).unwrap();
                }
            });
        }
        // A test that fails must not leave the others busy for ever.
        let _end = AtTheEnd(&over);
        for round in 0..10 {
            if round == 5 {
                observe::observe(true);
            }
            let seen = live();
            for (ptr, (bytes, stream)) in &stay {
                let (size, _, on) = seen.get(&(*ptr, pool.id())).expect("a block that stays");
                assert!(*size >= *bytes);
                assert_eq!(*on, Some(*stream));
            }
        }
    });
    assert_eq!(live().keys().filter(|(_, owner)| *owner == pool.id()).count(), stay.len());
    let all = snapshot();
    let shown = all["resources"].as_array().unwrap().iter().find(|r| r["id"] == pool.id()).unwrap();
    let sum = |name: &str| -> u64 {
        shown[name].as_array().unwrap().iter().map(|range| range["size"].as_u64().unwrap()).sum()
    };
    let held: u64 = all["blocks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|block| block["resource"] == pool.id())
        .map(|block| block["held"].as_u64().unwrap())
        .sum();
    assert_eq!(sum("reserved"), sum("free") + held, "what is not live is free");
    assert_eq!(sum("reserved"), shown["live_bytes"].as_u64().unwrap() + shown["cached_bytes"].as_u64().unwrap());
    for (ptr, (bytes, _)) in stay {
        pool.deallocate(ptr, bytes as usize, 256, LEGACY).unwrap();
    }
    no_longer();
}

#[test]
fn many_threads_leave_every_account_at_zero() {
    let _machine = machine();
    let pool = a_pool(PoolOptions::default());
    observe::observe(true);
    let total = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (pool, total) = (&pool, &total);
            scope.spawn(move || {
                let _tag = Tag::open(if thread % 2 == 0 { "even threads" } else { "odd threads" }).unwrap();
                for i in 0..3000usize {
                    let bytes = 256 + i % 4000;
                    let ptr = pool.allocate(bytes, 256, LEGACY).unwrap();
                    total.fetch_add(bytes as u64, Ordering::Relaxed);
                    pool.deallocate(ptr, bytes, 256, LEGACY).unwrap();
                }
            });
        }
    });
    let tags = [account(By::Tag, "even threads"), account(By::Tag, "odd threads")];
    assert_eq!(tags.iter().map(|tag| tag.live_bytes + tag.live_count).sum::<u64>(), 0);
    assert_eq!(tags.iter().map(|tag| tag.total_bytes).sum::<u64>(), total.load(Ordering::Relaxed));
    assert_eq!(tags.iter().map(|tag| tag.total_count).sum::<u64>(), 12_000);
    no_longer();
}

// ------------------------------------------------------------------------------------------------------------ history

fn events() -> Vec<Value> {
    snapshot()["events"].as_array().expect("events").clone()
}

#[test]
fn history_keeps_the_last_events_in_their_order() {
    let _machine = machine();
    no_longer();
    drop(set_source(Some(Arc::new(|| "inner.rs:3 inner\nouter.rs:4 outer\n".to_owned()))));
    // One per process: whether it is made now depends on the tests before this one.
    let _cuda = shared::cuda().unwrap();
    history::record(true, true, 6).unwrap();
    let pool = a_pool(PoolOptions { maximum_bytes: Some(4 * MIB), ..PoolOptions::default() });
    let ptr = pool.allocate(7000, 256, LEGACY).unwrap();
    pool.deallocate(ptr, 7000, 256, LEGACY).unwrap();
    assert!(pool.allocate(64 << 20, 256, LEGACY).is_err());
    pool.trim(0).unwrap();
    let previous = tenure_core::current::set(0, pool.clone()).unwrap();
    drop(tenure_core::current::set(0, previous).unwrap());
    let id = pool.id();
    drop(pool);
    history::record(false, false, 1).unwrap();
    let all = events();
    let names: Vec<&str> = all.iter().map(|event| event["action"].as_str().unwrap()).collect();
    // Eight events, of which the first two are gone.
    assert_eq!(names, ["free", "failure", "trim", "set_current", "set_current", "resource_close"]);
    assert_eq!((&all[0]["address"], &all[0]["size"], &all[0]["resource"]), (&ptr.into(), &7000.into(), &id.into()));
    assert_eq!(all[1]["frames"], serde_json::json!(["inner.rs:3 inner", "outer.rs:4 outer"]));
    assert!(all[1]["detail"].as_str().unwrap().contains("out of memory: 64.00 MiB"));
    assert_eq!(snapshot()["events_dropped"], 2);
    assert!(matches!(history::record(true, false, 0), Err(Error::Invalid(_))));
    // What begins anew forgets what was.
    history::record(true, false, 100).unwrap();
    assert_eq!(events().len(), 0);
    no_longer();
}

#[test]
fn an_address_is_freed_before_it_is_allocated_again_also_in_the_history() {
    let _machine = machine();
    no_longer();
    history::record(true, false, 1_000_000).unwrap();
    let pool = a_pool(PoolOptions::default());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for i in 0..2000usize {
                    let bytes = 40_000 + i % 3 * 10_000;
                    let ptr = pool.allocate(bytes, 256, LEGACY).unwrap();
                    pool.deallocate(ptr, bytes, 256, LEGACY).unwrap();
                }
            });
        }
    });
    history::record(false, false, 1).unwrap();
    let mut live = std::collections::BTreeSet::new();
    let mut count = 0;
    for event in events().iter().filter(|event| event["resource"] == pool.id()) {
        let ptr = event["address"].as_u64();
        match event["action"].as_str().unwrap() {
            "allocate" => assert!(live.insert(ptr.unwrap()), "allocated twice"),
            "free" => assert!(live.remove(&ptr.unwrap()), "freed before"),
            _ => continue,
        }
        count += 1;
    }
    assert_eq!((count, live.len()), (12_000, 0));
    no_longer();
}

// ------------------------------------------------------------------------------------------------------------ failures

fn oom(result: Result<u64>) -> OutOfMemory {
    match result {
        Err(Error::OutOfMemory(oom)) => *oom,
        other => panic!("not out of memory: {other:?}"),
    }
}

fn has(oom: &OutOfMemory, parts: &[&str]) -> bool {
    assert!(oom.notes.len() <= 8, "{:#?}", oom.notes);
    assert!(!oom.to_string().contains('\n'));
    oom.notes.iter().any(|note| parts.iter().all(|part| note.contains(part)))
}

#[test]
fn a_failure_names_who_holds_most() {
    let _machine = machine();
    no_longer();
    drop(set_source(Some(Arc::new(|| "train.py:12 load\nmain.py:1 main\n".to_owned()))));
    history::record(true, true, 100).unwrap();
    let stream = StreamObject::create(0, true).unwrap();
    let pool = a_pool(PoolOptions { maximum_bytes: Some(32 * MIB), ..PoolOptions::default() });
    let tag = Tag::open("loader").unwrap();
    let a = pool.allocate(10 << 20, 256, object(&stream)).unwrap();
    drop(tag);
    let error = oom(pool.allocate(30 << 20, 256, LEGACY));
    assert!(
        has(&error, &["tag \"loader\" holds 10.00 MiB in 1 block on stream 0x", "at train.py:12 load"]),
        "{error:#?}"
    );
    assert!(has(&error, &["the largest free block is"]));
    // The bytes that would have done: 10 and 30 MiB.
    assert!(has(&error, &["maximum_pool_size=41943040 bytes"]), "{:#?}", error.notes);
    // Held back by another stream.
    pool.deallocate(a, 10 << 20, 256, object(&stream)).unwrap();
    let error = oom(pool.allocate(40 << 20, 256, LEGACY));
    assert!(has(&error, &["cached and not handed out: 10.00 MiB by pool > cuda"]), "{:#?}", error.notes);
    assert!(has(&error, &["held back until other streams", "10.00 MiB by stream 0x"]), "{:#?}", error.notes);
    let other = pool.allocate(20 << 20, 256, LEGACY).unwrap();
    let error = oom(pool.allocate(30 << 20, 256, LEGACY));
    pool.deallocate(other, 20 << 20, 256, LEGACY).unwrap();
    assert!(has(&error, &["tried: ", "growing (the limit is reached)"]), "{:#?}", error.notes);
    no_longer();
}

#[test]
fn the_named_setting_is_one_that_serves_the_request() {
    let _machine = machine();
    no_longer();
    let setting = |error: &OutOfMemory, name: &str| -> u64 {
        let note = error.notes.iter().find_map(|note| note.split_once(&format!("{name}="))).expect("a setting");
        note.1.split(' ').next().unwrap().parse().unwrap()
    };
    let hold =
        |bytes: usize, resource: &Resource| Buffer::create(bytes, 0, StreamHold::raw(LEGACY.raw), resource.light());
    let refused = |made: Result<Buffer>| oom(made.map(|buffer| buffer.ptr()));
    let pooled = |maximum: u64| a_pool(PoolOptions { maximum_bytes: Some(maximum), ..PoolOptions::default() });
    let small = pooled(16 * MIB);
    let held: Vec<Buffer> = (0..3).map(|_| hold(5 << 20, &small).unwrap()).collect();
    let maximum = setting(&refused(hold(20 << 20, &small)), "maximum_pool_size");
    let larger = pooled(maximum);
    let again: Vec<Buffer> = (0..3).map(|_| hold(5 << 20, &larger).unwrap()).collect();
    drop(hold(20 << 20, &larger).expect("with the setting that was named"));

    let limited = |limit| resource(Limiting::new(a_pool(PoolOptions::default()), limit));
    let short = limited(1000);
    let kept = hold(700, &short).unwrap();
    let limit = setting(&refused(hold(5000, &short)), "allocation_limit");
    let longer = limited(limit);
    let too = hold(700, &longer).unwrap();
    drop(hold(5000, &longer).expect("with the limit that was named"));

    // No setting serves what the device does not have.
    for error in [refused(hold(1 << 30, &small)), refused(hold(1 << 30, &short))] {
        assert!(!has(&error, &["would have been served"]), "{:#?}", error.notes);
    }
    drop((held, again, kept, too));
}

#[test]
fn mapped_pages_are_named_where_they_would_have_served() {
    let _machine = machine();
    no_longer();
    let run = |upstream: Resource| {
        let options = PoolOptions { initial_bytes: 32 * MIB, maximum_bytes: Some(32 * MIB), ..PoolOptions::default() };
        let pool = resource(tenure_core::pool::Pool::new(upstream, 0, options).unwrap());
        let blocks: Vec<u64> = (0..8).map(|_| pool.allocate(4 << 20, 256, LEGACY).unwrap()).collect();
        for ptr in blocks.iter().step_by(2) {
            pool.deallocate(*ptr, 4 << 20, 256, LEGACY).unwrap();
        }
        let found = pool.allocate(12 << 20, 256, LEGACY);
        for ptr in blocks.iter().skip(1).step_by(2) {
            pool.deallocate(*ptr, 4 << 20, 256, LEGACY).unwrap();
        }
        (pool, found)
    };
    let (_pool, refused) = run(resource(Statistics::new(cuda())));
    let error = oom(refused);
    assert!(has(&error, &["as a pool over the plain device resource it would have been served"]), "{:#?}", error.notes);
    let (pool, served) = run(cuda());
    pool.deallocate(served.expect("as the note says"), 12 << 20, 256, LEGACY).unwrap();
}

#[test]
fn what_pools_hold_is_named_to_whoever_takes_from_the_device() {
    let _machine = machine();
    no_longer();
    let pool = a_pool(PoolOptions::default());
    let ptr = pool.allocate(200 << 20, 256, LEGACY).unwrap();
    let error = oom(cuda().allocate(100 << 20, 256, LEGACY));
    assert!(has(&error, &["pool > cuda", "holds 200.00 MiB"]), "{:#?}", error.notes);
    assert!(!has(&error, &["would have been served"]), "{:#?}", error.notes);
    pool.deallocate(ptr, 200 << 20, 256, LEGACY).unwrap();
    let ptr = cuda().allocate(100 << 20, 256, LEGACY).expect("idle memory is asked for first");
    cuda().deallocate(ptr, 100 << 20, 256, LEGACY).unwrap();
}

#[test]
fn what_may_not_wait_is_explained_only_when_somebody_asks() {
    let _machine = machine();
    no_longer();
    let limited = resource(Limiting::new(a_pool(PoolOptions::default()), 1000));
    let mut error = oom(limited.try_allocate(5000, 256, LEGACY));
    assert_eq!(error.notes.len(), 0);
    observe::notes::explain(&mut error);
    assert!(has(&error, &["allocation_limit=5000 bytes"]), "{:#?}", error.notes);
}

#[test]
fn calls_that_may_not_wait_refuse_while_stacks_are_told() {
    let _machine = machine();
    no_longer();
    let pool = a_pool(PoolOptions::default());
    let ptr = pool.allocate(1000, 256, LEGACY).unwrap();
    pool.deallocate(ptr, 1000, 256, LEGACY).unwrap();
    let again = pool.try_allocate(1000, 256, LEGACY).expect("at hand");
    history::record(true, true, 100).unwrap();
    assert!(matches!(pool.try_allocate(1000, 256, LEGACY), Err(Error::WouldBlock)));
    history::record(true, false, 100).unwrap();
    let more = pool.try_allocate(1000, 256, LEGACY);
    if let Ok(ptr) = more {
        pool.try_deallocate(ptr, 1000, 256, LEGACY).unwrap();
    }
    no_longer();
    pool.try_deallocate(again, 1000, 256, LEGACY).unwrap();
}

/// A hook that is held by somebody: dropped when it is replaced, not before.
#[test]
fn the_hook_of_stacks_may_allocate_and_is_let_go_of() {
    let _machine = machine();
    no_longer();
    static RELEASED: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn release(_: *mut std::ffi::c_void) {
        RELEASED.fetch_add(1, Ordering::SeqCst);
    }
    let pool = a_pool(PoolOptions::default());
    let payload = Payload { kind: 0, data: std::ptr::null_mut(), release: Some(release) };
    let (inside, within) = (AtomicBool::new(false), pool.clone());
    drop(set_source(Some(Arc::new(move || {
        let _kept = &payload;
        if !inside.swap(true, Ordering::SeqCst) {
            let ptr = within.allocate(300, 256, LEGACY).unwrap();
            within.deallocate(ptr, 300, 256, LEGACY).unwrap();
            inside.store(false, Ordering::SeqCst);
        }
        String::new()
    }))));
    history::record(true, true, 100).unwrap();
    let ptr = pool.allocate(1000, 256, LEGACY).unwrap();
    pool.deallocate(ptr, 1000, 256, LEGACY).unwrap();
    assert_eq!(events().iter().filter(|event| event["action"] == "allocate").count(), 2);
    assert_eq!(RELEASED.load(Ordering::SeqCst), 0);
    no_longer();
    assert_eq!(RELEASED.load(Ordering::SeqCst), 1);
}
