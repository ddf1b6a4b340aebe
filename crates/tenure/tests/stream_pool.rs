//! Streams that are given out in turn, and prefetching, as a Rust program uses them.

mod common;

use common::alone;
use tenure::{Device, DeviceBuffer, Error, StreamPool};

#[test]
fn streams_go_round_and_outlive_the_pool() {
    let _alone = alone();
    let pool = StreamPool::new(3).unwrap();
    assert_eq!(pool.size(), 3);
    let round: Vec<_> = (0..3).map(|_| pool.next().unwrap()).collect();
    for (number, stream) in round.iter().cycle().take(7).enumerate() {
        assert_eq!(pool.next().unwrap().raw(), stream.raw());
        assert_eq!(pool.at(number).unwrap().raw(), stream.raw());
    }
    let buffer = DeviceBuffer::new(100, &pool.next().unwrap()).unwrap();
    drop(pool);
    for stream in &round {
        stream.synchronize().unwrap();
    }
    drop(round);
    assert!(buffer.stream().is_some());
}

#[test]
fn threads_take_turns() {
    let _alone = alone();
    let pool = StreamPool::new_on(&Device::current().unwrap(), 4, false).unwrap();
    let seen: Vec<usize> = std::thread::scope(|scope| {
        let take = || (0..100).map(|_| pool.next().unwrap().raw() as usize).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    for number in 0..4 {
        let raw = pool.at(number).unwrap().raw() as usize;
        assert_eq!(seen.iter().filter(|one| **one == raw).count(), 100);
    }
}

#[test]
fn pools_that_make_no_sense() {
    let _alone = alone();
    for size in [0, 1 << 40] {
        match StreamPool::new(size) {
            Err(Error::Invalid(text)) => assert!(text.contains("pool_size"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn prefetching_is_a_hint() {
    let _alone = alone();
    let device = Device::current().unwrap();
    let stream = tenure::Stream::create().unwrap();
    for resource in [tenure::cuda().unwrap(), tenure::managed().unwrap()] {
        let buffer = DeviceBuffer::new_in(1000, &stream, &resource).unwrap();
        buffer.prefetch(Some(&device), &stream).unwrap();
        buffer.prefetch(None, &stream).unwrap();
    }
    stream.synchronize().unwrap();
}
