//! The arena: a size that never changes, and the dump.

#![allow(missing_docs)]

#[path = "pool_common.rs"]
mod common;

use common::*;
use tenure_core::arena::{Arena, ArenaOptions};
use tenure_core::error::{Error, MisuseKind};
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{MemoryResource, Resource};
use tenure_core::stream::{StreamObject, StreamRef};

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;

fn cuda() -> Resource {
    shared::cuda().expect("the plain resource")
}

fn arena(bytes: u64) -> Resource {
    resource(Arena::new(cuda(), 0, size(bytes)).expect("an arena"))
}

fn size(bytes: u64) -> ArenaOptions {
    ArenaOptions { arena_size: Some(bytes), ..Default::default() }
}

#[test]
fn the_arena_is_taken_at_once_and_never_more() {
    let _machine = machine();
    let before = driver_free();
    let mr = arena(8 * MIB);
    assert_eq!(before - driver_free(), 8 * MIB);
    let all = mr.allocate(8 << 20, 256, LEGACY).expect("all of it fits");
    match mr.allocate(256, 256, LEGACY) {
        Err(Error::OutOfMemory(e)) => {
            assert_eq!((e.requested, e.live, e.limit), (256, 8 * MIB, 8 * MIB));
            assert_eq!(e.resource, "arena > cuda");
        }
        other => panic!("{other:?}"),
    }
    mr.deallocate(all, 8 << 20, 256, LEGACY).expect("a free");
    let info = mr.body().info();
    assert_eq!((info.live_bytes, info.reserved_bytes, info.peak_live_bytes), (0, 8 * MIB, 8 * MIB));
    assert_eq!((mr.body().kind(), mr.body().property("arena_size")), ("arena", Some(8 * MIB)));
    assert_eq!(mr.body().trim(0).expect("idle"), 8 << 20);
    let again = mr.allocate(1 << 20, 256, LEGACY).expect("what was trimmed can be taken again");
    mr.deallocate(again, 1 << 20, 256, LEGACY).expect("a free");
    drop(mr);
    assert_eq!(driver_free(), before);
}

#[test]
fn without_a_size_it_is_half_of_what_is_free() {
    let _machine = machine();
    let half = driver_free() / 2 / 256 * 256;
    let mr = Arena::new(cuda(), 0, ArenaOptions::default()).expect("an arena");
    assert_eq!(mr.arena_size(), half);
    assert!(mr.info().reserved_bytes >= half);
}

#[test]
fn sizes_that_make_no_sense_are_refused_by_name() {
    let _machine = machine();
    for bytes in [0, 255, 32 << 10, u64::MAX] {
        match Arena::new(cuda(), 0, size(bytes)) {
            Err(Error::Invalid(text)) => assert!(text.contains(&format!("arena_size is {bytes}")), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    let before = driver_free();
    match Arena::new(cuda(), 0, size(2 * DEVICE)) {
        Err(Error::OutOfMemory(e)) => assert_eq!(e.resource, "arena > cuda"),
        other => panic!("{other:?}"),
    }
    assert_eq!(driver_free(), before);
    assert!(matches!(Arena::new(cuda(), 7, size(MIB)), Err(Error::Invalid(_))));
}

#[test]
fn threads_and_streams_share_it_in_order() {
    let _machine = machine();
    tenure_driver::sim::check_order(true);
    let mr = arena(4 * MIB);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mr = &mr;
            scope.spawn(move || {
                let stream = StreamObject::create(0, true).expect("a stream");
                for round in 0..100usize {
                    let bytes = round * 7919 % 200_000 + 1;
                    let ptr = mr.allocate(bytes, 256, object(&stream)).expect("memory");
                    // SAFETY: live memory of the device.
                    unsafe { tenure_core::ops::fill_async(ptr, 1, bytes, object(&stream), 0) }.expect("work");
                    mr.deallocate(ptr, bytes, 256, object(&stream)).expect("a free");
                }
            });
        }
    });
    // As RMM's users know it: all of it is one block again.
    let all = mr.allocate(4 << 20, 256, LEGACY).expect("what streams have left is found");
    mr.deallocate(all, 4 << 20, 256, LEGACY).expect("a free");
    assert_eq!(tenure_driver::sim::races(), 0, "{:?}", tenure_driver::sim::race_texts());
    match mr.deallocate(all, 4 << 20, 256, LEGACY) {
        Err(Error::Misuse(misuse)) => assert_eq!(misuse.kind, MisuseKind::DoubleFree),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_failure_leaves_the_state_in_the_file_where_that_is_wanted() {
    let _machine = machine();
    let file = std::env::temp_dir().join(format!("tenure-arena-{}.log", std::process::id()));
    let options = ArenaOptions { arena_size: Some(2 * MIB), dump_log: Some(file.clone()) };
    let mr = resource(Arena::new(cuda(), 0, options).expect("an arena"));
    let held = mr.allocate(1000, 256, LEGACY).expect("memory");
    assert!(!file.exists(), "nothing has failed yet");
    for _ in 0..2 {
        assert!(mr.allocate(8 << 20, 256, LEGACY).is_err_and(|e| e.is_out_of_memory()));
    }
    let text = std::fs::read_to_string(&file).expect("a dump");
    assert_eq!(text.matches("out of memory: 8.00 MiB requested from arena > cuda").count(), 2, "{text}");
    assert!(text.contains("arena size") && text.contains("live blocks") && text.contains("0x"), "{text}");
    std::fs::remove_file(&file).expect("the dump");
    mr.deallocate(held, 1000, 256, LEGACY).expect("a free");

    // A file that cannot be written changes nothing.
    let nowhere = ArenaOptions { arena_size: Some(MIB), dump_log: Some("/nowhere/at/all.log".into()) };
    let mr = resource(Arena::new(cuda(), 0, nowhere).expect("an arena"));
    assert!(mr.allocate(8 << 20, 256, LEGACY).is_err_and(|e| e.is_out_of_memory()));
}
