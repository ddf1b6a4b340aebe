//! Looking inside, as Rust programs ask.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure::observe::{self, By, Usage};
use tenure::{Device, DeviceBuffer, Error, Limiting, Pool, Stream};

/// The book is one per process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pool() -> Pool {
    Pool::builder(&Device::current().expect("a device")).build().expect("a pool")
}

fn account(by: By, name: &str) -> Usage {
    let all = tenure::usage(by).expect("accounts");
    all.into_iter().find(|account| account.name == name).unwrap_or_default()
}

fn snapshot_has(what: &str) -> bool {
    tenure::memory_snapshot().expect("a snapshot").contains(what)
}

#[test]
fn a_tag_counts_until_its_guard_is_dropped() {
    let _alone = alone();
    let (stream, pool) = (Stream::create().unwrap(), pool());
    let outer = tenure::tag("rust outer").unwrap();
    let inner = tenure::tag("rust inner").unwrap();
    let a = DeviceBuffer::new_in(5000, &stream, &pool).unwrap();
    // In whichever order they go.
    drop(outer);
    let b = DeviceBuffer::new_in(700, &stream, &pool).unwrap();
    drop(inner);
    let c = DeviceBuffer::new_in(9000, &stream, &pool).unwrap();
    assert_eq!(account(By::Tag, "rust inner").live_bytes, 5700);
    assert_eq!(account(By::Tag, "rust outer").total_count, 0);
    assert_eq!(account(By::Resource, "pool > cuda").live_count, 3);
    assert!(snapshot_has("\"tag\":\"rust inner\""));
    let elsewhere = std::thread::spawn(move || drop(a));
    elsewhere.join().unwrap();
    drop((b, c));
    let inner = account(By::Tag, "rust inner");
    assert_eq!((inner.live_bytes, inner.peak_bytes, inner.total_bytes, inner.total_count), (0, 5700, 5700, 2));
    assert!(matches!(tenure::tag(""), Err(Error::Invalid(_))));
    assert!(matches!(tenure::tag("a\0b"), Err(Error::Invalid(_))));
    observe::observe(false).unwrap();
}

#[test]
fn events_are_kept_until_recording_begins_again() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    observe::record_history(false, 0).unwrap();
    drop(DeviceBuffer::new(87_654, &stream).unwrap());
    observe::end_history().unwrap();
    drop(DeviceBuffer::new(45_678, &stream).unwrap());
    assert!(snapshot_has("\"size\":87654") && !snapshot_has("\"size\":45678"));
    observe::record_history(false, 10).unwrap();
    assert!(!snapshot_has("\"size\":87654"));
    observe::end_history().unwrap();
    assert!(matches!(observe::record_history(false, usize::MAX), Err(Error::Invalid(_))));
}

#[test]
fn an_error_has_notes_only_where_memory_could_not_be_had() {
    let _alone = alone();
    let (stream, pool) = (Stream::create().unwrap(), pool());
    let limited = Limiting::new(&pool, 1000).unwrap();
    let _kept = DeviceBuffer::new_in(400, &stream, &limited).unwrap();
    let error = DeviceBuffer::new_in(5000, &stream, &limited).unwrap_err();
    assert!(!error.to_string().contains('\n'));
    let notes = error.notes();
    assert!((1..=8).contains(&notes.len()), "{notes:?}");
    assert_eq!(notes.last().unwrap(), "with allocation_limit=5400 bytes (5.27 KiB) it would have been served");
    assert!(tenure::tag("").unwrap_err().notes().is_empty());
}
