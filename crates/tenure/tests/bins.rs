//! Blocks of one size, bins, and the arena, as a Rust program makes and uses them.

mod common;

use common::alone;
use tenure::{Arena, Binning, Device, DeviceBuffer, Error, FixedSize, MisuseKind, Resource, Statistics, Stream};

fn device() -> Device {
    Device::current().expect("a device")
}

fn invalid<T: std::fmt::Debug>(result: tenure::Result<T>) -> String {
    match result {
        Err(Error::Invalid(text)) => text,
        other => panic!("{other:?}"),
    }
}

fn misuse(result: tenure::Result<()>) -> MisuseKind {
    match result {
        Err(Error::Ownership(ownership)) => ownership.kind.expect("a kind"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn blocks_of_one_size() {
    let _alone = alone();
    let counted = Statistics::new(&tenure::cuda().unwrap()).unwrap();
    let blocks = FixedSize::builder(&device()).upstream(&counted).block_size(100_000).blocks_to_preallocate(10);
    let blocks = blocks.build().unwrap();
    assert_eq!(blocks.block_size().unwrap(), 100_096);
    assert_eq!(counted.counters().unwrap().current_bytes, 1_000_960);
    let stream = Stream::create().unwrap();
    let buffer = DeviceBuffer::new_in(10, &stream, &blocks).unwrap();
    assert_eq!(blocks.info().unwrap().live_count, 1);
    assert!(invalid(DeviceBuffer::new_in(100_097, &stream, &blocks)).contains("block_size is 100096"));
    let ptr = blocks.allocate(1000, &stream).unwrap();
    // SAFETY: wrong frees are refused; the right one is of memory that nothing uses.
    unsafe {
        assert_eq!(misuse(blocks.deallocate(ptr, 1001, 256, &stream)), MisuseKind::WrongSize);
        blocks.deallocate(ptr, 1000, 256, &stream).unwrap();
        assert_eq!(misuse(blocks.deallocate(ptr, 1000, 256, &stream)), MisuseKind::DoubleFree);
    }
    // The buffer holds the resource, and that its upstream.
    drop(blocks);
    drop(buffer);
    assert_eq!(counted.counters().unwrap().current_bytes, 0);
    assert!(invalid(FixedSize::builder(&device()).block_size(0).build()).contains("block_size is 0"));
    let too_many = FixedSize::builder(&device()).blocks_to_preallocate(u64::MAX).build();
    assert!(invalid(too_many).contains("blocks_to_preallocate"));
}

#[test]
fn bins_come_at_any_time() {
    let _alone = alone();
    let bins = Binning::builder(&device()).build().unwrap();
    assert!(bins.bins().unwrap().is_empty());
    let early = DeviceBuffer::new_in(5000, &Stream::create().unwrap(), &bins).unwrap();
    bins.add_bin(8192, None).unwrap();
    let own: Resource = Statistics::new(&tenure::cuda().unwrap()).unwrap().into();
    bins.add_bin(1 << 20, Some(&own)).unwrap();
    let all = bins.bins().unwrap();
    assert_eq!(all.iter().map(|(size, _)| *size).collect::<Vec<_>>(), [8192, 1 << 20]);
    assert_eq!(all[1].1, own);
    assert_eq!(FixedSize::try_from(all[0].1.clone()).unwrap().block_size().unwrap(), 8192);
    drop(early);
    assert_eq!(bins.info().unwrap().live_bytes, 0);
    bins.add_bin(1 << 20, Some(&own)).unwrap();
    assert_eq!(bins.bins().unwrap().len(), 2, "the same again");
    bins.add_bin(1 << 20, Some(&tenure::cuda().unwrap())).unwrap();
    assert_eq!(bins.bins().unwrap()[1].1, tenure::cuda().unwrap(), "another one instead");
    assert!(invalid(bins.add_bin(1 << 21, Some(&bins))).contains("takes its memory from this"));
    assert!(invalid(Binning::builder(&device()).exponents(20, 10).build()).contains("min_size_exponent (20)"));
    let made = Binning::builder(&device()).exponents(10, 12).build().unwrap();
    assert_eq!(made.bins().unwrap().len(), 3);
    assert!(Arena::try_from(made.resource().clone()).is_err());
}

#[test]
fn an_arena_is_full_when_it_is_full() {
    let _alone = alone();
    let arena = Arena::builder(&device()).arena_size(4 << 20).build().unwrap();
    assert_eq!(arena.arena_size().unwrap(), 4 << 20);
    let stream = Stream::create().unwrap();
    let all = DeviceBuffer::new_in(4 << 20, &stream, &arena).unwrap();
    match DeviceBuffer::new_in(1, &stream, &arena) {
        Err(Error::OutOfMemory(e)) => assert_eq!((e.limit, e.resource.as_str()), (4 << 20, "arena > cuda")),
        other => panic!("{other:?}"),
    }
    drop(all);
    assert_eq!(arena.trim(0).unwrap(), 4 << 20);
    assert!(invalid(Arena::builder(&device()).arena_size(0).build()).contains("arena_size is 0"));
    let half = Arena::builder(&device()).build().unwrap();
    assert!(half.arena_size().unwrap() > 0);
}
