//! Looking inside, as Rust programs ask.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure::observe::{self, By, Library, Usage};
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

#[test]
fn a_report_names_the_library_that_allocates() {
    let _alone = alone();
    let (stream, pool) = (Stream::create().unwrap(), pool());
    let (solver, mesh) = (Library::named("rust solver").unwrap(), Library::named("rust mesh").unwrap());
    assert_eq!(solver, Library::named("rust solver").unwrap());
    observe::report_begin(false).unwrap();
    let held = {
        let _solver = solver.enter().unwrap();
        let first = DeviceBuffer::new_in(5000, &stream, &pool).unwrap();
        let second = {
            let _mesh = mesh.enter().unwrap();
            DeviceBuffer::new_in(700, &stream, &pool).unwrap()
        };
        (first, second, DeviceBuffer::new_in(40, &stream, &pool).unwrap())
    };
    let own = DeviceBuffer::new_in(3, &stream, &pool).unwrap();
    let report = observe::report().unwrap();
    assert_eq!(
        live_by_library(&report),
        [("".to_owned(), 3), ("rust mesh".to_owned(), 700), ("rust solver".to_owned(), 5040)],
        "{report}"
    );
    assert!(report.contains("\"peak_live_bytes\":5743"), "{report}");
    observe::report_end().unwrap();
    let after = DeviceBuffer::new_in(90_000, &stream, &pool).unwrap();
    assert!(observe::report().unwrap().contains("\"peak_live_bytes\":5743"));
    drop((held, own, after));
    for name in ["", "a\0b", &"x".repeat(257)] {
        assert!(matches!(Library::named(name), Err(Error::Invalid(_))), "{name:?}");
    }
}

/// `live_bytes` by library, those of the report's holders with any, in the order of names.
fn live_by_library(report: &str) -> Vec<(String, u64)> {
    let (_, holders) = report.split_once("\"holders\":[").expect("holders");
    let (holders, _) = holders.split_once(']').expect("their end");
    let field = |one: &str, name: &str| {
        let (_, rest) = one.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{name} in {one}"));
        rest.split([',', '}']).next().unwrap_or_default().trim_matches('"').to_owned()
    };
    let mut all: Vec<(String, u64)> = holders
        .split_inclusive('}')
        .filter(|one| one.contains('{'))
        .map(|one| (field(one, "library").replace("null", ""), field(one, "live_bytes").parse().expect("a number")))
        .filter(|(_, live)| *live > 0)
        .collect();
    all.sort();
    all
}
