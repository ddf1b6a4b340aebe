//! Many threads at once: nothing is lost, nothing is freed twice, nothing lives too long.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use common::alone;
use tenure::{Device, DeviceBuffer, DeviceVec, Pool, Resource, Statistics, Stream, current, misuse_count, owner_of};

#[test]
fn buffers_are_freed_on_other_threads_than_they_were_made_on() {
    let _alone = alone();
    let pool = Pool::builder(&Device::current().unwrap()).build().unwrap();
    let id = pool.id();
    let (send, receive) = mpsc::channel::<DeviceVec<u64>>();
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let (pool, send) = (pool.clone(), send.clone());
            scope.spawn(move || {
                let stream = Stream::create().unwrap();
                for i in 0..100 {
                    let value = thread * 1000 + i;
                    send.send(DeviceVec::from_host_in(&[value; 100], &stream, &pool).unwrap()).unwrap();
                }
            });
        }
        drop(send);
        scope.spawn(move || {
            let stream = Stream::create().unwrap();
            let mut seen: Vec<u64> = receive
                .into_iter()
                .map(|vec| {
                    let values = vec.to_host(&stream).unwrap();
                    assert!(values.iter().all(|&value| value == values[0]));
                    values[0]
                })
                .collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), 400);
        });
    });
    assert_eq!(pool.info().unwrap().live_count, 0);
    drop(pool);
    assert_eq!(Resource::from_id(id).unwrap(), None);
    assert_eq!(misuse_count().unwrap(), 0);
}

#[test]
fn a_reading_of_the_table_is_never_stale() {
    let _alone = alone();
    let device = Device::current().unwrap();
    let first = current::get().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let stream = Stream::create().unwrap();
                    for _ in 0..300 {
                        let resource = current::get().unwrap();
                        let buffer = DeviceBuffer::new_in(1000, &stream, &resource).unwrap();
                        assert_eq!(owner_of(buffer.ptr()).unwrap(), Some(resource));
                        // Without a name: whatever is current at this very moment, alive.
                        assert!(DeviceBuffer::new(10, &stream).unwrap().resource().unwrap().is_some());
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let pool = Pool::builder(&device).build().unwrap();
                drop(current::set(&pool).unwrap());
            }
        });
        for reader in readers {
            reader.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    let last = current::set(&first).unwrap();
    let id = last.id();
    drop(last);
    assert!(id == first.id() || Resource::from_id(id).unwrap().is_none());
    assert_eq!(misuse_count().unwrap(), 0);
}

#[test]
fn the_counters_of_an_adaptor_add_up() {
    let _alone = alone();
    let pool = Pool::builder(&Device::current().unwrap()).build().unwrap();
    let statistics = Statistics::new(&pool).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let stream = Stream::create().unwrap();
                for i in 1..=200 {
                    drop(DeviceBuffer::new_in(i, &stream, &statistics).unwrap());
                }
            });
        }
    });
    let counters = statistics.counters().unwrap();
    assert_eq!((counters.current_count, counters.current_bytes, counters.total_count), (0, 0, 800));
    assert_eq!(counters.total_bytes, 4 * 200 * 201 / 2);
    assert!(counters.peak_count >= 1);
}

#[test]
fn scopes_are_their_threads() {
    let _alone = alone();
    let device = Device::current().unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let stream = Stream::create().unwrap();
                for _ in 0..50 {
                    let pool = Pool::builder(&device).build().unwrap();
                    let guard = current::using(&pool).unwrap();
                    assert_eq!(DeviceBuffer::new(10, &stream).unwrap().resource().unwrap().unwrap(), *pool);
                    drop(guard);
                }
            });
        }
    });
}
