//! Blocks of one size, and bins of them: sizes, checked frees, order between streams, bins that come late, upstreams that
//! fail or lie.

#![allow(missing_docs)]

#[path = "pool_common.rs"]
mod common;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::*;
use tenure_core::adaptor::{Limiting, Statistics};
use tenure_core::arena::{Arena, ArenaOptions};
use tenure_core::bins::{Binning, BinningOptions, FixedSize, FixedSizeOptions, MAX_BINS};
use tenure_core::error::{Error, MisuseKind, Result};
use tenure_core::pool::PoolOptions;
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{Block, Info, MAX_BYTES, MemoryResource, Properties, Request, Resource};
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_core::sync::Mutex;

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;
const KIB: u64 = 1 << 10;

fn cuda() -> Resource {
    shared::cuda().expect("the plain resource")
}

fn blocks(block_size: u64, blocks_to_preallocate: u64) -> FixedSizeOptions {
    FixedSizeOptions { block_size, blocks_to_preallocate }
}

fn fixed(upstream: Resource, block_size: u64, count: u64) -> Resource {
    resource(FixedSize::new(upstream, 0, blocks(block_size, count)).expect("a fixed-size resource"))
}

fn bins(upstream: Resource, min: i32, max: i32) -> Resource {
    let options = BinningOptions { min_size_exponent: min, max_size_exponent: max };
    resource(Binning::new(upstream, 0, options).expect("a binning resource"))
}

fn binning(resource: &Resource) -> &Binning {
    resource.downcast().expect("a binning resource")
}

fn take(resource: &Resource, bytes: u64) -> u64 {
    resource.allocate(bytes as usize, 256, LEGACY).expect("memory")
}

fn give(resource: &Resource, ptr: u64, bytes: u64) {
    resource.deallocate(ptr, bytes as usize, 256, LEGACY).expect("a free");
}

fn misuse(result: Result<()>) -> (MisuseKind, u64) {
    match result {
        Err(Error::Misuse(misuse)) => (misuse.kind, misuse.owner_bytes),
        other => panic!("this free must be refused as misuse: {other:?}"),
    }
}

fn message<T>(result: Result<T>) -> String {
    match result {
        Err(Error::Invalid(text)) => text,
        Err(other) => panic!("not an invalid argument: {other:?}"),
        Ok(_) => panic!("this must be refused"),
    }
}

/// An upstream that hands out numbers and counts, and fails or lies when told to.
#[derive(Default)]
struct Upstream {
    out_of_memory: AtomicBool,
    broken: AtomicBool,
    /// Added to every address.
    shift: AtomicU64,
    /// Gives the last block once more.
    again: AtomicBool,
    next: AtomicU64,
    requests: Mutex<Vec<usize>>,
    live: Mutex<Vec<(u64, usize)>>,
}

struct Shared(Arc<Upstream>);

fn upstream() -> (Resource, Arc<Upstream>) {
    let it = Arc::new(Upstream { next: AtomicU64::new(0x7000_0000_0100), ..Default::default() });
    (resource(Shared(it.clone())), it)
}

impl MemoryResource for Shared {
    fn kind(&self) -> &str {
        "hostile"
    }
    fn allocate(&self, request: &Request, _: StreamRef<'_>) -> Result<u64> {
        self.allocate_sync(request)
    }
    fn deallocate(&self, ptr: u64, request: &Request, _: StreamRef<'_>) -> Result<()> {
        self.deallocate_sync(ptr, request)
    }
    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        let it = &self.0;
        it.requests.lock().push(request.bytes);
        if it.out_of_memory.load(Ordering::SeqCst) {
            return Err(Error::OutOfMemory(Box::default()));
        }
        if it.broken.load(Ordering::SeqCst) {
            return Err(Error::Callback("no luck today".into(), None));
        }
        let mut live = it.live.lock();
        if it.again.load(Ordering::SeqCst)
            && let Some((ptr, _)) = live.last()
        {
            return Ok(*ptr);
        }
        let gap = (request.bytes as u64).next_multiple_of(256) + 256;
        let ptr = it.next.fetch_add(gap, Ordering::SeqCst) + it.shift.load(Ordering::SeqCst);
        live.push((ptr, request.bytes));
        Ok(ptr)
    }
    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        let mut live = self.0.live.lock();
        let at = live.iter().position(|block| *block == (ptr, request.bytes)).expect("a block that was given");
        live.swap_remove(at);
        Ok(())
    }
    fn device(&self) -> Option<i32> {
        None
    }
    fn properties(&self) -> Properties {
        Properties { device_accessible: true, ..Default::default() }
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

// -------------------------------------------------------------------------------------------------------- blocks of one size

#[test]
fn blocks_are_taken_by_the_chunk_and_serve_any_size_up_to_theirs() {
    let _machine = machine();
    let (up, it) = upstream();
    let mr = fixed(up, MIB, 4);
    assert_eq!(*it.requests.lock(), [4 << 20], "the first blocks, at once and exactly");
    let mut got: Vec<(u64, u64)> = [1, 256, 1000, MIB].map(|bytes| (take(&mr, bytes), bytes)).to_vec();
    assert_eq!(it.requests.lock().len(), 1, "four blocks are in the chunk");
    got.push((take(&mr, 5000), 5000));
    assert_eq!(*it.requests.lock(), [4 << 20, 4 << 20], "the fifth takes as many again");
    got.sort_unstable();
    assert!(got.windows(2).all(|w| w[1].0 - w[0].0 >= MIB), "{got:x?}");
    let info = mr.body().info();
    assert_eq!((info.live_bytes, info.live_count), (5 * MIB, 5));
    assert_eq!((info.reserved_bytes, info.cached_bytes), (8 * MIB, 3 * MIB));
    for (ptr, bytes) in got {
        assert_eq!(mr.block(ptr).map(|b| b.bytes as u64), Some(bytes), "the size that was asked for");
        give(&mr, ptr, bytes);
    }
    assert_eq!(mr.body().info().live_bytes, 0);
    assert_eq!(mr.body().trim(0).expect("all idle"), 8 << 20);
    assert!(it.live.lock().is_empty());
    assert_eq!(mr.body().property("block_size"), Some(MIB));
    assert_eq!(mr.stack(), "fixed_size > hostile");
    drop(mr);
}

#[test]
fn small_blocks_that_were_preallocated_need_no_growth() {
    let _machine = machine();
    for size in [256, 300, 2048, 4096, 5000, 9000, 20_000, 32 * KIB, 33 * KIB] {
        let (up, it) = upstream();
        let mr = fixed(up, size, 128);
        let got: Vec<u64> = (0..128).map(|_| take(&mr, size)).collect();
        assert_eq!(it.requests.lock().len(), 1, "{size}");
        let taken = it.requests.lock()[0] as u64;
        assert!(taken <= 128 * size.next_multiple_of(256) * 9 / 8 + 64 * KIB, "{size}: {taken}");
        for ptr in got {
            give(&mr, ptr, size);
        }
    }
}

#[test]
fn over_the_plain_resource_the_pages_show_in_it() {
    let _machine = machine();
    let before = cuda().body().info().reserved_bytes;
    let mr = fixed(cuda(), MIB, 8);
    assert_eq!(cuda().body().info().reserved_bytes - before, 8 * MIB);
    let got: Vec<u64> = (0..9).map(|_| take(&mr, MIB)).collect();
    assert_eq!(cuda().body().info().reserved_bytes - before, 16 * MIB, "as many blocks again");
    for ptr in got {
        give(&mr, ptr, MIB);
    }
    drop(mr);
    assert_eq!(cuda().body().info().reserved_bytes, before);
}

#[test]
fn a_growth_takes_less_where_so_much_is_not_to_be_had() {
    let _machine = machine();
    // 256 MiB in all: two chunks of 100 MiB, and then what is left, block by block.
    let mr = fixed(cuda(), 10 * MIB, 10);
    let free = driver_free() / MIB;
    let more = 10 + free / 10;
    let got: Vec<u64> = (0..more).map(|_| take(&mr, 10 * MIB)).collect();
    match mr.allocate(10 << 20, 256, LEGACY) {
        Err(Error::OutOfMemory(e)) => {
            assert_eq!((e.requested, e.live), (10 * MIB, more * 10 * MIB));
            assert_eq!(e.resource, "fixed_size > cuda");
        }
        other => panic!("{other:?}"),
    }
    for ptr in got {
        give(&mr, ptr, 10 * MIB);
    }
}

#[test]
fn what_is_larger_than_a_block_is_refused_by_name() {
    let _machine = machine();
    let mr = fixed(cuda(), MIB, 2);
    let before = mr.body().info();
    let text = message(mr.allocate((MIB + 1) as usize, 256, LEGACY));
    assert!(text.contains("1048577 bytes") && text.contains("block_size is 1048576"), "{text}");
    message(mr.allocate_sync((MIB + 1) as usize, 256));
    message(mr.try_allocate(MAX_BYTES, 256, LEGACY));
    assert_eq!(mr.body().info(), before);
}

#[test]
fn settings_are_checked_by_name() {
    let _machine = machine();
    let make = |options| message(FixedSize::new(cuda(), 0, options));
    assert!(make(blocks(0, 1)).contains("block_size is 0"));
    assert!(make(blocks(u64::MAX, 1)).contains("block_size"));
    assert!(make(blocks(MIB, u64::MAX)).contains("blocks_to_preallocate"));
    assert!(make(blocks(MAX_BYTES as u64, 2)).contains("blocks_to_preallocate"));
    assert!(message(FixedSize::new(cuda(), 9, blocks(MIB, 1))).contains("no device 9"));
    let here = resource(pool(PoolOptions::default()));
    assert!(message(FixedSize::new(here, 1, blocks(MIB, 1))).contains("device 0"));
    match FixedSize::new(cuda(), 0, blocks(MIB, 1 << 20)) {
        Err(Error::OutOfMemory(e)) => assert_eq!(e.resource, "fixed_size > cuda"),
        other => panic!("{other:?}"),
    }
    let odd = FixedSize::new(cuda(), 0, blocks(1000, 0)).expect("rounded");
    assert_eq!((odd.block_size(), odd.info().reserved_bytes), (1024, 0));
}

#[test]
fn every_wrong_free_has_its_name_and_changes_nothing() {
    let _machine = machine();
    for upstream in [cuda(), upstream().0] {
        let mr = fixed(upstream, MIB, 4);
        let other = fixed(cuda(), MIB, 1);
        let ptr = take(&mr, 1000);
        let before = mr.body().info();
        let free = |mr: &Resource, ptr, bytes, align| misuse(mr.deallocate(ptr, bytes, align, LEGACY));
        assert_eq!(free(&mr, ptr, 1001, 256), (MisuseKind::WrongSize, 1000), "to the byte");
        assert_eq!(free(&mr, ptr, 1 << 20, 256), (MisuseKind::WrongSize, 1000));
        assert_eq!(free(&mr, ptr, 2 << 20, 256), (MisuseKind::WrongSize, 1000), "more than a block");
        assert_eq!(free(&mr, ptr + 256, 1000, 256), (MisuseKind::InteriorPointer, 1000));
        assert_eq!(free(&mr, 0x1234_0000, 1000, 256).0, MisuseKind::UnknownPointer);
        assert_eq!(free(&other, ptr, 1000, 256).0, MisuseKind::UnknownPointer);
        let odd = ptr.trailing_zeros();
        if odd < 21 {
            assert_eq!(free(&mr, ptr, 1000, 2 << odd), (MisuseKind::WrongAlignment, 1000));
        }
        let above = resource(Statistics::new(mr.clone()));
        assert_eq!(free(&above, ptr, 1000, 256), (MisuseKind::WrongResource, 1000));
        assert_eq!(misuse(mr.try_deallocate(ptr, 999, 256, LEGACY)), (MisuseKind::WrongSize, 1000));
        assert_eq!(misuse(mr.deallocate_sync(ptr, 999, 256)), (MisuseKind::WrongSize, 1000));
        assert_eq!(mr.body().info(), before);
        give(&mr, ptr, 1000);
        assert_eq!(free(&mr, ptr, 1000, 256).0, MisuseKind::DoubleFree);
        assert_eq!(free(&mr, ptr, 999, 256).0, MisuseKind::DoubleFree);
        assert_eq!(free(&mr, ptr + 512, 999, 256).0, MisuseKind::UnknownPointer);
        mr.body().trim(0).expect("idle");
        assert_eq!(free(&mr, ptr, 999, 256).0, MisuseKind::UnknownPointer, "what went back is forgotten");
    }
}

#[test]
fn large_alignments_are_kept() {
    let _machine = machine();
    for upstream in [cuda(), upstream().0] {
        let mr = fixed(upstream, 100 * KIB, 64);
        for align in [512, 4096, 64 << 10, 2 << 20] {
            let ptr = mr.allocate(100, align, LEGACY).expect("memory");
            assert_eq!(ptr % align as u64, 0);
            mr.deallocate(ptr, 100, align, LEGACY).expect("a free");
        }
    }
}

#[test]
fn a_block_that_was_freed_on_one_stream_reaches_another_in_order_only() {
    let _machine = machine();
    tenure_driver::sim::check_order(true);
    let mr = fixed(cuda(), MIB, 1);
    let a = StreamObject::create(0, true).expect("a stream");
    let b = StreamObject::create(0, true).expect("a stream");
    let ptr = mr.allocate(1000, 256, object(&a)).expect("memory");
    // SAFETY: live memory of the device.
    unsafe { tenure_core::ops::fill_async(ptr, 7, 1000, object(&a), 0) }.expect("work");
    mr.deallocate(ptr, 1000, 256, object(&a)).expect("a free");
    let reserved = mr.body().info().reserved_bytes;
    // Two MiB are mapped: the second block is proven, the first is another stream's.
    let other = mr.allocate(1000, 256, object(&b)).expect("memory");
    let again = mr.allocate(1000, 256, object(&b)).expect("memory");
    assert_eq!(mr.body().info().reserved_bytes, reserved, "what another stream has left comes before a growth");
    // SAFETY: live memory of the device. The checker of the simulated device sees whether it is ordered.
    unsafe {
        tenure_core::ops::fill_async(other, 8, 1000, object(&b), 0).expect("work");
        tenure_core::ops::fill_async(again, 9, 1000, object(&b), 0).expect("work");
    }
    for ptr in [other, again] {
        mr.deallocate(ptr, 1000, 256, object(&b)).expect("a free");
    }
    drop((mr, a, b));
    assert_eq!(tenure_driver::sim::races(), 0, "{:?}", tenure_driver::sim::race_texts());
}

#[test]
fn streams_that_end_leave_their_blocks_to_others() {
    let _machine = machine();
    tenure_driver::sim::check_order(true);
    let below = resource(Limiting::new(cuda(), 4 * MIB));
    let mr = fixed(below, MIB, 4);
    for round in 0..20u8 {
        let stream = StreamObject::create(0, true).expect("a stream");
        let blocks: Vec<u64> =
            (0..4).map(|_| mr.allocate(1000, 256, object(&stream)).expect("what an ended stream has left")).collect();
        for ptr in blocks {
            // SAFETY: live memory of the device.
            unsafe { tenure_core::ops::fill_async(ptr, round, 1000, object(&stream), 0) }.expect("work");
            mr.deallocate(ptr, 1000, 256, object(&stream)).expect("a free");
        }
    }
    drop(mr);
    assert_eq!(tenure_driver::sim::races(), 0, "{:?}", tenure_driver::sim::race_texts());
}

#[test]
fn a_graph_has_blocks_of_its_own() {
    let _machine = machine();
    let stream = StreamObject::create(0, true).expect("a stream");
    let bins = bins(cuda(), 18, 20);
    let arena =
        resource(Arena::new(cuda(), 0, ArenaOptions { arena_size: Some(16 * MIB), ..Default::default() }).unwrap());
    for mr in [fixed(cuda(), MIB, 4), bins, arena] {
        let driver = tenure_core::device::driver().expect("the driver");
        let eager = mr.allocate(1000, 256, object(&stream)).expect("a block");
        mr.deallocate(eager, 1000, 256, object(&stream)).expect("a free");
        driver
            .stream_begin_capture(stream.raw(), tenure_driver::sys::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .expect("a capture");
        let mut blocks = Vec::new();
        for bytes in [1000, 1 << 20] {
            let ptr = mr.allocate(bytes, 256, object(&stream)).expect("memory of the graph");
            assert_ne!(ptr, eager, "eager memory in a graph");
            assert!(mr.body().capture_of(ptr).is_some());
            blocks.push((ptr, bytes));
        }
        let _graph = driver.stream_end_capture(stream.raw()).expect("the capture goes on until it is ended");
        for (ptr, bytes) in blocks {
            assert!(matches!(mr.deallocate(ptr, bytes - 1 - 300, 256, object(&stream)), Err(Error::Misuse(_))));
            mr.deallocate(ptr, bytes, 256, object(&stream)).expect("a free");
        }
    }
    // Chunks of an upstream come through calls that would end the capture.
    let mr = fixed(resource(Limiting::new(cuda(), 64 * MIB)), MIB, 1);
    let driver = tenure_core::device::driver().expect("the driver");
    driver
        .stream_begin_capture(stream.raw(), tenure_driver::sys::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .expect("a capture");
    match mr.allocate(1000, 256, object(&stream)) {
        Err(Error::Unsupported(text)) => assert!(text.contains("capturing"), "{text}"),
        other => panic!("{other:?}"),
    }
    driver.stream_end_capture(stream.raw()).expect("the capture goes on until it is ended");
}

#[test]
fn upstreams_that_fail_or_lie_are_not_believed() {
    let _machine = machine();
    let (up, it) = upstream();
    it.out_of_memory.store(true, Ordering::SeqCst);
    assert!(matches!(FixedSize::new(up.clone(), 0, blocks(MIB, 4)), Err(Error::OutOfMemory(_))));
    it.out_of_memory.store(false, Ordering::SeqCst);
    it.broken.store(true, Ordering::SeqCst);
    assert!(matches!(FixedSize::new(up.clone(), 0, blocks(MIB, 4)), Err(Error::Callback(..))));
    it.broken.store(false, Ordering::SeqCst);
    it.shift.store(8, Ordering::SeqCst);
    assert!(message(FixedSize::new(up.clone(), 0, blocks(MIB, 4))).contains("multiple of 256"));
    it.shift.store(0, Ordering::SeqCst);
    assert!(it.live.lock().is_empty(), "what was refused went back");

    let mr = fixed(up, MIB, 2);
    let (a, b) = (take(&mr, MIB), take(&mr, 10));
    it.again.store(true, Ordering::SeqCst);
    let text = message(mr.allocate(10, 256, LEGACY));
    assert!(text.contains("overlaps"), "{text}");
    it.again.store(false, Ordering::SeqCst);
    it.out_of_memory.store(true, Ordering::SeqCst);
    assert!(mr.allocate(10, 256, LEGACY).is_err_and(|e| e.is_out_of_memory()));
    // What is there is still served.
    give(&mr, a, MIB);
    assert_eq!(take(&mr, 99), a);
    give(&mr, a, 99);
    give(&mr, b, 10);
    drop(mr);
    assert!(it.live.lock().is_empty());
}

#[test]
fn threads_share_the_blocks() {
    let _machine = machine();
    let mr = fixed(cuda(), 64 * KIB, 64);
    std::thread::scope(|scope| {
        for t in 1..=4u64 {
            let mr = &mr;
            scope.spawn(move || {
                let stream = StreamObject::create(0, true).expect("a stream");
                let mut mine = Vec::new();
                for round in 0..300u64 {
                    let bytes = (t * 7919 + round * 104_729) % (64 * KIB) + 1;
                    mine.push((mr.allocate(bytes as usize, 256, object(&stream)).expect("memory"), bytes));
                    if round % 3 != 0 {
                        let (ptr, bytes) = mine.swap_remove((round % mine.len() as u64) as usize);
                        mr.deallocate(ptr, bytes as usize, 256, object(&stream)).expect("a free");
                    }
                }
                for (ptr, bytes) in mine {
                    mr.deallocate(ptr, bytes as usize, 256, object(&stream)).expect("a free");
                }
            });
        }
    });
    assert_eq!(mr.body().info().live_bytes, 0);
}

// ---------------------------------------------------------------------------------------------------------------------- bins

#[test]
fn each_size_goes_to_the_smallest_bin_that_fits_and_comes_home() {
    let _machine = machine();
    let (up, it) = upstream();
    let mr = bins(up.clone(), 18, 20);
    assert!(it.requests.lock().is_empty(), "bins take nothing before they are used");
    let list = binning(&mr).list();
    assert_eq!(list.iter().map(|(size, _)| *size).collect::<Vec<_>>(), [256 * KIB, 512 * KIB, MIB]);
    let serving = |bytes: u64| {
        let ptr = take(&mr, bytes);
        let at = list.iter().position(|(_, bin)| bin.body().find(ptr).is_some());
        (ptr, at)
    };
    let mut got = Vec::new();
    for (bytes, at) in [
        (1, Some(0)),
        (256 * KIB, Some(0)),
        (256 * KIB + 1, Some(1)),
        (512 * KIB, Some(1)),
        (MIB - 1, Some(2)),
        (MIB, Some(2)),
        (MIB + 1, None),
    ] {
        let (ptr, served) = serving(bytes);
        assert_eq!(served, at, "{bytes}");
        got.push((ptr, bytes));
    }
    assert_eq!(it.requests.lock().last(), Some(&((1 << 20) + 1)), "the upstream gets the request as it was");
    let info = mr.body().info();
    assert_eq!(info.live_bytes, got.iter().map(|(_, bytes)| bytes).sum::<u64>(), "as they were asked for");
    assert_eq!(info.live_count, 7);
    let stores: u64 = list.iter().map(|(_, bin)| bin.body().info().reserved_bytes).sum();
    assert_eq!(info.reserved_bytes, stores + MIB + 1, "of the bins, and what none of them serves");
    assert_eq!((info.peak_reserved_bytes, info.largest_free_bytes), (info.reserved_bytes, MIB));
    for (ptr, bytes) in got {
        give(&mr, ptr, bytes);
    }
    let info = mr.body().info();
    assert_eq!((info.live_bytes, info.live_count), (0, 0));
    assert!(list.iter().all(|(_, bin)| bin.body().info().live_bytes == 0));
    let cached = info.cached_bytes;
    assert_eq!(mr.body().trim(0).expect("all idle") as u64, cached);
    assert!(it.live.lock().is_empty());
    assert_eq!(mr.stack(), "binning > hostile");
}

#[test]
fn a_block_goes_home_whatever_bins_came_meanwhile() {
    let _machine = machine();
    let mr = bins(cuda(), -1, -1);
    let of_upstream = take(&mr, 100_000);
    binning(&mr).add_bin(MIB, None).expect("a bin");
    let of_large = take(&mr, 100_000);
    binning(&mr).add_bin(128 * KIB, None).expect("a bin");
    let of_small = take(&mr, 100_000);
    let list = binning(&mr).list();
    assert!(list[0].1.body().find(of_small).is_some() && list[1].1.body().find(of_large).is_some());
    assert!(cuda().body().find(of_upstream).is_some_and(|b| b.bytes == 100_000));
    let before = mr.body().info();
    for (ptr, size) in [(of_upstream, 100_001), (of_large, 99_999), (of_small, 1), (of_small, 2 << 20)] {
        let (kind, bytes) = misuse(mr.deallocate(ptr, size, 256, LEGACY));
        assert_eq!((kind, bytes), (MisuseKind::WrongSize, 100_000), "{size}");
    }
    let (kind, _) = misuse(mr.deallocate(of_large + 4096, 100_000, 256, LEGACY));
    assert_eq!(kind, MisuseKind::InteriorPointer);
    assert_eq!(mr.body().info(), before);
    for ptr in [of_upstream, of_large, of_small] {
        give(&mr, ptr, 100_000);
        assert_eq!(misuse(mr.deallocate(ptr, 100_000, 256, LEGACY)).0, MisuseKind::DoubleFree);
    }
    assert_eq!(misuse(mr.deallocate(0x5000, 100_000, 256, LEGACY)).0, MisuseKind::UnknownPointer);
    assert_eq!(mr.body().info().live_bytes, 0);
    assert_eq!(cuda().body().find(of_upstream), None, "back where it came from");
}

#[test]
fn the_chunks_that_bins_take_are_told_apart_from_blocks_of_the_upstream() {
    let _machine = machine();
    let below = resource(pool(PoolOptions::default()));
    let mr = bins(below.clone(), 18, 18);
    let ptr = take(&mr, 1000);
    // The first block of a chunk starts where the chunk does, and the chunk is a live block of the pool below.
    assert!(below.body().find(ptr).is_some());
    assert_eq!(misuse(mr.deallocate(ptr, 1 << 20, 256, LEGACY)), (MisuseKind::WrongSize, 1000));
    let (owner, block) = tenure_core::resource::registry::owner_of(ptr + 10).expect("known");
    assert_eq!((owner.id(), block.bytes), (mr.id(), 1000));
    let large = take(&mr, MIB);
    assert_eq!(below.body().find(large).map(|b| b.owner), Some(mr.id()));
    give(&mr, large, MIB);
    give(&mr, ptr, 1000);
    assert_eq!(misuse(mr.deallocate(ptr, 1000, 256, LEGACY)).0, MisuseKind::DoubleFree);
    let theirs = take(&below, 1000);
    let (kind, bytes) = misuse(mr.deallocate(theirs, 1000, 256, LEGACY));
    assert_eq!((kind, bytes), (MisuseKind::WrongResource, 1024));
    give(&below, theirs, 1000);
}

#[test]
fn adaptors_over_the_upstream_get_back_what_they_gave_and_nothing_else() {
    let _machine = machine();
    // Each of these would take back whatever the plain resource made for this owner.
    let members: Vec<Resource> = (0..4)
        .map(|i| {
            let counted = resource(Statistics::new(cuda()));
            if i % 2 == 0 { counted } else { resource(Limiting::new(counted, 1 << 40)) }
        })
        .collect();
    let mr = bins(cuda(), -1, -1);
    let sizes = [64 * KIB, 4 * KIB, 16 * KIB, 256 * KIB];
    let mut live: Vec<(u64, u64, Option<usize>)> = Vec::new();
    let (mut bins_now, mut state): (Vec<(u64, usize)>, u64) = (Vec::new(), 99);
    for round in 0..4000u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = state >> 33;
        if round % 900 == 500 {
            let at = (round / 900) as usize;
            binning(&mr).add_bin(sizes[at], Some(members[at].clone())).expect("a bin");
            bins_now.push((sizes[at], at));
            bins_now.sort_unstable();
        }
        if live.len() < 40 && random % 2 == 0 || live.is_empty() {
            let bytes = random % (300 * KIB) + 1;
            let member = bins_now.iter().find(|(size, _)| *size >= bytes).map(|(_, at)| *at);
            live.push((take(&mr, bytes), bytes, member));
        } else {
            let (ptr, bytes, _) = live.swap_remove(random as usize % live.len());
            assert_eq!(misuse(mr.deallocate(ptr, bytes as usize + 1, 256, LEGACY)), (MisuseKind::WrongSize, bytes));
            give(&mr, ptr, bytes);
        }
        for (at, member) in members.iter().enumerate() {
            let mine = live.iter().filter(|(.., by)| *by == Some(at)).map(|(_, bytes, _)| bytes).sum::<u64>();
            assert_eq!(member.body().info().live_bytes, mine, "member {at} in round {round}");
        }
        let info = mr.body().info();
        assert_eq!(info.live_bytes, live.iter().map(|(_, bytes, _)| bytes).sum::<u64>());
        assert_eq!(info.live_count, live.len() as u64);
    }
    for (ptr, bytes, _) in live {
        give(&mr, ptr, bytes);
    }
}

#[test]
fn memory_lies_on_the_resources_device_whatever_is_current_or_carried() {
    let _machine = machine();
    let counted = resource(Statistics::new(cuda()));
    for upstream in [cuda(), counted] {
        let mr = resource(Binning::new(upstream.clone(), 1, BinningOptions::default()).expect("of the other device"));
        binning(&mr).add_bin(4096, None).expect("a bin");
        binning(&mr).add_bin(64 * KIB, Some(upstream)).expect("a bin");
        let there = StreamObject::create(1, true).expect("a stream");
        let here = StreamObject::create(0, true).expect("a stream");
        for bytes in [100, 5000, 1 << 20] {
            let own = mr.allocate(bytes, 256, LEGACY).expect("of a default stream");
            let on = mr.allocate(bytes, 256, object(&there)).expect("of a stream of the device");
            let sync = mr.allocate_sync(bytes, 256).expect("of no stream");
            for ptr in [own, on, sync] {
                assert_eq!(mr.block(ptr).map(|block| (block.device, block.bytes)), Some((1, bytes)));
            }
            let text = message(mr.allocate(bytes, 256, object(&here)));
            assert!(text.contains("device 0") && text.contains("device 1"), "{text}");
            mr.deallocate(own, bytes, 256, LEGACY).expect("a free");
            mr.deallocate(on, bytes, 256, object(&there)).expect("a free");
            mr.deallocate_sync(sync, bytes, 256).expect("a free");
        }
        assert_eq!((mr.body().device(), mr.body().info().live_bytes), (Some(1), 0));
    }
}

#[test]
fn a_bin_of_ones_own_is_asked_with_the_request_as_it_is() {
    let _machine = machine();
    let statistics = resource(Statistics::new(cuda()));
    let mr = bins(cuda(), -1, -1);
    binning(&mr).add_bin(MIB, Some(statistics.clone())).expect("a bin");
    let ptr = take(&mr, 1000);
    assert_eq!(statistics.body().info().live_bytes, 1000);
    assert_eq!(binning(&mr).list()[0].1, statistics);
    assert!(mr.owns(ptr));
    give(&mr, ptr, 1000);
    assert_eq!(statistics.body().info().live_bytes, 0);
    // The bin's resource is held, and let go of with the binning resource.
    let (anchors, _) = statistics.references();
    drop(mr);
    assert_eq!(statistics.references().0, anchors - 1);
}

#[test]
fn bins_that_make_no_sense_are_refused_by_name() {
    let _machine = machine();
    let make = |min, max| {
        let options = BinningOptions { min_size_exponent: min, max_size_exponent: max };
        message(Binning::new(cuda(), 0, options))
    };
    assert!(make(20, -1).contains("max_size_exponent is -1"));
    assert!(make(-1, 20).contains("min_size_exponent is -1"));
    assert!(make(-2, -2).contains("min_size_exponent is -2"));
    assert!(make(10, 99).contains("max_size_exponent is 99"));
    assert!(make(20, 18).contains("above max_size_exponent"));
    let mr = bins(cuda(), 3, 9);
    assert_eq!(binning(&mr).list().iter().map(|(size, _)| *size).collect::<Vec<_>>(), [256, 512], "rounded to 256");
    let add = |size, bin| binning(&mr).add_bin(size, bin);
    assert!(message(add(0, None)).contains("allocation_size is 0"));
    assert!(message(add(u64::MAX, None)).contains("allocation_size"));
    add(512, None).expect("there already");
    add(500, Some(cuda())).expect("in the place of the one that is there");
    assert!(binning(&mr).list()[1].1 == cuda());
    assert!(message(add(MIB, Some(fixed(cuda(), MIB / 2, 0)))).contains("524288"));
    assert!(message(add(MIB, Some(mr.clone()))).contains("takes its memory from this"));
    let over = resource(Limiting::new(resource(Statistics::new(mr.clone())), 1));
    assert!(message(add(MIB, Some(over.clone()))).contains("takes its memory from this"));
    let other = bins(cuda(), -1, -1);
    binning(&other).add_bin(MIB, Some(over)).expect("no circle yet");
    assert!(message(add(2 * MIB, Some(other))).contains("takes its memory from this"));
    let far = resource(FixedSize::new(cuda(), 1, blocks(MIB, 0)).expect("the other device"));
    assert!(message(add(MIB, Some(far))).contains("device 1"));
    assert_eq!(binning(&mr).list().len(), 2);
    // The one that was replaced counts.
    for i in 3..MAX_BINS as u64 {
        add(i * MIB, Some(cuda())).expect("room");
    }
    assert!(message(add(3 << 40, None)).contains("128 bins"));
}

#[test]
fn threads_allocate_while_bins_are_added() {
    let _machine = machine();
    let mr = bins(cuda(), -1, -1);
    std::thread::scope(|scope| {
        for t in 1..=3u64 {
            let mr = &mr;
            scope.spawn(move || {
                let mut mine = Vec::new();
                for round in 0..200u64 {
                    let bytes = (t * 7919 + round * 104_729) % (512 * KIB) + 1;
                    mine.push((take(mr, bytes), bytes));
                    if round % 3 != 0 {
                        let (ptr, bytes) = mine.swap_remove((round % mine.len() as u64) as usize);
                        give(mr, ptr, bytes);
                    }
                }
                for (ptr, bytes) in mine {
                    give(mr, ptr, bytes);
                }
            });
        }
        let mr = &mr;
        scope.spawn(move || {
            for exponent in (12..=19).rev() {
                binning(mr).add_bin(1 << exponent, None).expect("a bin");
                std::thread::yield_now();
            }
        });
    });
    let info = mr.body().info();
    assert_eq!((info.live_bytes, info.live_count), (0, 0));
    assert_eq!(binning(&mr).list().len(), 8);
    assert!(binning(&mr).list().iter().all(|(_, bin)| bin.body().info().live_count == 0));
}

#[test]
fn a_free_that_fails_can_be_made_again() {
    let _machine = machine();
    let mr = bins(cuda(), 18, 18);
    let ptr = take(&mr, MIB);
    let before = mr.body().info();
    tenure_driver::sim::fail_next("cuMemFree", 999, 0).expect("a call with this name");
    assert!(matches!(mr.deallocate(ptr, MIB as usize, 256, LEGACY), Err(Error::Device(_))));
    assert_eq!(mr.body().info(), before);
    assert!(mr.owns(ptr));
    give(&mr, ptr, MIB);
}

#[test]
fn memory_of_a_dropped_resource_lives_as_long_as_its_blocks() {
    let _machine = machine();
    let before = cuda().body().info();
    let mr = bins(cuda(), 18, 19);
    let (small, large) = (take(&mr, 100), take(&mr, MIB));
    let named = *mr;
    drop(mr);
    named.deallocate(small, 100, 256, LEGACY).expect("a free");
    named.deallocate(large, 1 << 20, 256, LEGACY).expect("the last free closes it");
    assert_eq!(cuda().body().info().live_bytes, before.live_bytes);
    assert_eq!(cuda().body().info().reserved_bytes, before.reserved_bytes);
}
