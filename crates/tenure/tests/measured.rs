//! What is written down and counted: the log, and scopes of statistics.

mod common;

use std::path::PathBuf;

use common::alone;
use tenure::{Device, DeviceBuffer, Error, Logging, Pool, Resource, Statistics, StatisticsScope, Stream};

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tenure-measured-{}-{name}", std::process::id()))
}

#[test]
fn a_log_has_a_row_for_each_call() {
    let _alone = alone();
    let (device, stream) = (Device::current().unwrap(), Stream::create().unwrap());
    let pool: Resource = Pool::builder(&device).build().unwrap().into();
    let name = file("rows.csv");
    let log = Logging::new(&pool, &name).unwrap();
    assert_eq!((log.kind(), log.file_name().unwrap()), ("logging".to_owned(), name.clone()));
    assert_eq!(log.upstream().unwrap(), Some(pool));
    drop(DeviceBuffer::new_in(1000, &stream, &log).unwrap());
    assert!(matches!(DeviceBuffer::new_in(1 << 50, &stream, &log), Err(Error::OutOfMemory(_))));
    log.flush().unwrap();
    let text = std::fs::read_to_string(&name).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0][..6], ["Thread", "Time", "Action", "Pointer", "Size", "Stream"]);
    let said: Vec<_> = rows[1..].iter().map(|row| (row[2], row[4], row[10])).collect();
    let too_much = (1_u64 << 50).to_string();
    assert_eq!(
        said,
        [("allocate", "1000", "ok"), ("free", "1000", "ok"), ("allocate failure", &*too_much, "out of memory")]
    );
    assert_eq!(Logging::try_from(Resource::from(log.clone())).unwrap(), log);
    std::fs::remove_file(name).unwrap();
}

#[test]
fn a_log_that_cannot_be_written_is_refused() {
    let _alone = alone();
    let cuda = tenure::cuda().unwrap();
    let error = Logging::new(&cuda, file("no").join("log.csv")).unwrap_err().to_string();
    assert!(error.contains("its folder does not exist"), "{error}");
    assert!(!file("no").exists());
    assert!(matches!(Logging::new(&cuda, "a\0b"), Err(Error::Invalid(_))));
    if std::env::var_os("RMM_LOG_FILE").is_none() {
        assert!(Logging::from_environment(&cuda).unwrap_err().to_string().contains("RMM_LOG_FILE"));
    }
}

#[test]
fn scopes_belong_to_their_threads() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let statistics = Statistics::new(&tenure::cuda().unwrap()).unwrap();
    let make = |bytes| DeviceBuffer::new_in(bytes, &stream, &statistics).unwrap();
    let outer = StatisticsScope::open(&statistics).unwrap();
    let kept = make(100);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let own = StatisticsScope::open(&statistics).unwrap();
            let other = make(5000);
            let counted = own.close().unwrap();
            assert_eq!((counted.total_bytes, counted.current_count), (5000, 1));
            drop(other);
            assert_eq!(outer.run(|| make(7).len()).unwrap(), 7);
        });
    });
    {
        let inner = StatisticsScope::open(&statistics).unwrap();
        drop(make(30));
        assert_eq!(inner.counters().unwrap().peak_bytes, 30);
    }
    let counted = outer.close().unwrap();
    assert_eq!((counted.current_bytes, counted.peak_bytes, counted.total_bytes), (100, 130, 137));
    assert_eq!(statistics.counters().unwrap().total_bytes, 5137);
    drop(kept);
}
