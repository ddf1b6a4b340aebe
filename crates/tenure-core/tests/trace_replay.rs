//! Replays on the simulated device: what is counted, what fails, and that nothing is left behind.
//!
//! The simulated device is one per process, and the tests count its bytes: they run one at a time.

use std::fmt::Write as _;
use std::path::PathBuf;

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tenure_core::device;
use tenure_core::report::Report;
use tenure_core::trace::{GRAIN, Log, MAX_LANES, Options, replay, replay_json};
use tenure_driver::sim::{self, Config};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
const MEMORY: u64 = 256 << 20;
const TARGETS: [&str; 4] = ["cuda", "async", "pool", "pool:32MiB"];
const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

fn alone() -> MutexGuard<'static, ()> {
    let guard = ONE_AT_A_TIME.lock();
    // Only the first call is in time; it is the same each time.
    let _ = sim::configure(Config { devices: 2, memory: MEMORY });
    tenure_driver::load::prefer_sim().expect("the simulated device");
    sim::fail_clear();
    for device in 0..2 {
        device::prepare_proof(device).expect("256 bytes");
    }
    guard
}

fn free_bytes(device: i32) -> u64 {
    device::memory_info(device).expect("asked").0
}

fn read(text: &str) -> Log {
    Log::read("test.csv", text.as_bytes()).expect("a log")
}

fn run(log: &Log, target: &str, repeat: u32) -> Report {
    let options = Options { repeat, ..Options::new(target).expect("a target") };
    replay(log, &options, &mut |_, _| true).expect("replayed")
}

/// A log of `events` events on three streams and two threads, the same for the same seed. Some allocations stay live.
fn random_log(seed: u64, events: usize) -> String {
    let mut state = seed | 1;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut text = HEADER.to_owned();
    let mut live: Vec<(u64, u64)> = Vec::new();
    let mut next = 0x3_0200_0000_u64;
    for n in 0..events {
        let stream = ["0", "0x7f0010", "0x7f0020"][random(3) as usize];
        let head = format!("{},16:00:00.{n:06}", 100 + random(2));
        if live.len() > 40 || (!live.is_empty() && random(3) == 0) {
            let (ptr, bytes) = live.swap_remove(random(live.len() as u64) as usize);
            writeln!(text, "{head},free,{ptr:#x},{bytes},{stream}").unwrap();
        } else {
            let bytes = 1 + (1 << random(20)) + random(4096);
            writeln!(text, "{head},allocate,{next:#x},{bytes},{stream}").unwrap();
            live.push((next, bytes));
            next += bytes.next_multiple_of(512);
        }
    }
    text
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tenure-trace-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn each_target_replays_a_log_and_leaves_nothing() {
    let _alone = alone();
    let log = read(&random_log(1, 3000));
    let before = (free_bytes(0), sim::violations());
    for target in TARGETS {
        let report = run(&log, target, 2);
        assert_eq!(report.failed_events, 0, "{target}: {:?}", report.first_failure);
        assert_eq!((report.events, report.calls), (3000, 3000), "{target}");
        assert_eq!((report.threads, report.streams), (2, 3), "{target}");
        assert_eq!(report.peak_live_bytes, log.peak_live_bytes, "{target}");
        assert!(report.left_live > 0, "the log leaves something live, which the replay frees");
        let overhead = report.overhead().expect("something was live");
        assert!((1.0..8.0).contains(&overhead), "{target}: {overhead}");
        assert!(report.ns_per_event_min > 0.0 && report.ns_per_event_min <= report.ns_per_event);
        assert!(report.simulated && report.device.starts_with("sim:0"), "{}", report.device);
        assert_eq!((free_bytes(0), sim::violations()), before, "{target}: memory is back and no rule was broken");
    }
}

#[test]
fn driver_calls_are_counted_by_name() {
    let _alone = alone();
    let log = read(&random_log(2, 1000));
    let allocations = log.events.iter().filter(|e| e.action == tenure_core::trace::Action::Allocate).count() as u64;
    let plain = run(&log, "cuda", 1);
    let made = plain.driver_calls.iter().find(|(name, _)| *name == "cuMemAlloc").expect("plain memory is made").1;
    assert!(made >= allocations, "{made} calls for {allocations} allocations");
    assert!(plain.driver_calls_per_event() >= 1.0);
    // A pool that has what it needs asks the driver for no memory.
    let pool = run(&log, "pool:64MiB", 3);
    let memory = |name: &str| pool.driver_calls.iter().find(|(n, _)| *n == name).map_or(0, |(_, n)| *n);
    assert_eq!(memory("cuMemAlloc") + memory("cuMemCreate"), 0, "{:?}", pool.driver_calls);
}

#[test]
fn a_pool_with_a_size_has_it_at_once() {
    let _alone = alone();
    let log = read(&format!("{HEADER}1,0,allocate,0x10,1000,0\n"));
    assert!(run(&log, "pool:64MiB", 1).peak_reserved_bytes >= 64 << 20);
    assert!(run(&log, "pool:25%", 1).peak_reserved_bytes >= MEMORY / 4);
    assert!(run(&log, "pool", 1).peak_reserved_bytes < 64 << 20);
    let before = free_bytes(0);
    let options = Options::new("pool:1TiB").unwrap();
    let error = replay(&log, &options, &mut |_, _| true).expect_err("the device has less");
    assert!(error.is_out_of_memory(), "{error}");
    assert_eq!(free_bytes(0), before);
}

#[test]
fn the_series_and_the_map_agree_with_the_log() {
    let _alone = alone();
    let log = read(&random_log(3, 800));
    for target in TARGETS {
        let report = run(&log, target, 1);
        let points = &report.series.points;
        assert_eq!(points.len(), 800, "a short log has a point for each event");
        assert_eq!(points.iter().map(|p| p.live).max(), Some(log.peak_live_bytes));
        assert_eq!(points[log.peak_event].live, log.peak_live_bytes);
        assert!(points.iter().all(|p| p.reserved >= p.live), "{target}");
        let most = points.iter().map(|p| p.reserved).max().unwrap();
        assert_eq!(most, report.peak_reserved_bytes, "{target}: the picture and the figure show the same peak");

        let map = &report.map;
        assert_eq!((map.event, map.live_bytes), (log.peak_event, log.peak_live_bytes), "{target}");
        assert_eq!(map.blocks.iter().map(|b| u64::from(b.count)).sum::<u64>(), map.live_count, "{target}");
        for pair in map.blocks.windows(2).filter(|p| p[0].segment == p[1].segment) {
            assert!(pair[0].offset + pair[0].bytes <= pair[1].offset, "{target}: two blocks overlap: {pair:?}");
        }
        for block in &map.blocks {
            assert!(block.offset + block.bytes <= map.segments[block.segment].bytes, "{target}: {block:?}");
        }
        let span: u64 = map.segments.iter().map(|s| s.bytes).sum();
        let blocks: u64 = map.blocks.iter().map(|b| b.bytes).sum();
        assert!(map.holes.bytes <= span - blocks, "{target}");
    }
}

#[test]
fn what_does_not_fit_is_counted_and_its_free_is_left_out() {
    let _alone = alone();
    let before = free_bytes(0);
    let log = read(&format!(
        "{HEADER}1,0,allocate,0x10,1000,0\n1,0,allocate,0x20,{0},0\n1,0,allocate,0x30,{0},0\n1,0,free,0x20,{0},0\n\
         1,0,free,0x30,{0},0\n1,0,free,0x10,1000,0\n1,0,allocate,0x40,{1},0\n",
        MEMORY * 2,
        u64::MAX
    ));
    for target in TARGETS {
        let report = run(&log, target, 1);
        assert_eq!(report.failed_events, 3, "{target}: {:?}", report.first_failure);
        let first = report.first_failure.as_deref().unwrap_or_default();
        assert!(first.contains("call 1") && first.contains("out of memory"), "{target}: {first}");
        assert_eq!(report.peak_live_bytes, 1000, "{target}: only what was had was live");
        assert_eq!(free_bytes(0), before, "{target}");
    }
}

#[test]
fn requests_that_had_failed_in_the_log_are_tried_and_are_no_failures() {
    let _alone = alone();
    let log = read(&format!(
        "{HEADER}1,0,allocate failure,(nil),4096,0\n1,0,allocate,0x10,1000,0x7f\n1,0,allocate failure,(nil),{},0x7f\n\
         1,0,free,0x10,1000,0x7f\n",
        MEMORY * 4
    ));
    let before = free_bytes(0);
    for target in TARGETS {
        let report = run(&log, target, 2);
        assert_eq!(report.failed_events, 0, "{target}: {:?}", report.first_failure);
        assert_eq!((report.failures_in_log, report.failures_served), (2, 1), "{target}");
        assert_eq!(report.peak_live_bytes, 1000, "{target}");
        assert_eq!(free_bytes(0), before, "{target}");
    }
}

#[test]
fn one_driver_call_that_fails_is_one_failed_event() {
    let _alone = alone();
    let log = read(&random_log(4, 200));
    let before = free_bytes(0);
    // The observed pass makes as many calls; the failure is set in the timed one.
    let mut failed = false;
    let options = Options::new("cuda").unwrap();
    let report = replay(&log, &options, &mut |done, _| {
        if done == 200 && !failed {
            failed = true;
            sim::fail_next("cuMemAlloc", 2, 10).expect("a call of that name");
        }
        true
    })
    .expect("replayed");
    assert_eq!(report.failed_events, 1, "{:?}", report.first_failure);
    assert_eq!(free_bytes(0), before);
}

#[test]
fn special_streams_are_the_devices_own() {
    let _alone = alone();
    let mut text = HEADER.to_owned();
    for (n, stream) in ["0", "(nil)", "0x0", "1", "2", "0x2", "3", "0xabc"].iter().enumerate() {
        writeln!(text, "1,0,allocate,{:#x},512,{stream}", 0x1000 * (n + 1)).unwrap();
    }
    let log = read(&text);
    assert_eq!(log.streams, [0, 1, 2, 3, 0xabc]);
    let violations = sim::violations();
    for target in TARGETS {
        let before = sim::calls("cuStreamCreate");
        let report = run(&log, target, 1);
        assert_eq!(report.failed_events, 0, "{target}: {:?}", report.first_failure);
        assert_eq!(sim::calls("cuStreamCreate") - before, 2, "{target}: only 3 and 0xabc are made");
    }
    assert_eq!(sim::violations(), violations);
}

#[test]
fn progress_rises_to_the_end_and_can_stop() {
    let _alone = alone();
    let log = read(&random_log(5, 10_000));
    for target in TARGETS {
        let before = free_bytes(0);
        let mut seen = Vec::new();
        let options = Options { repeat: 2, ..Options::new(target).unwrap() };
        replay(&log, &options, &mut |done, total| {
            seen.push((done, total));
            true
        })
        .expect("replayed");
        assert!(seen.len() >= 6 && seen.is_sorted(), "{seen:?}");
        assert_eq!(seen.last(), Some(&(40_000, 40_000)));
        for stop_at in [1, 12_000, 29_000] {
            let error = replay(&log, &options, &mut |done, _| done < stop_at).expect_err("stopped");
            assert!(error.to_string().contains("stopped"), "{error}");
            assert_eq!(free_bytes(0), before, "{target}: stopped at {stop_at}, everything is back");
        }
    }
}

#[test]
fn another_device_and_one_that_is_not_there() {
    let _alone = alone();
    let log = read(&random_log(6, 300));
    for target in TARGETS {
        let used = free_bytes(1);
        let options = Options { device: Some(1), ..Options::new(target).unwrap() };
        let mut low = u64::MAX;
        let report = replay(&log, &options, &mut |_, _| {
            low = low.min(free_bytes(1));
            true
        })
        .expect("replayed");
        assert!(report.device.starts_with("sim:1"), "{}", report.device);
        assert_eq!(report.failed_events, 0, "{target}: {:?}", report.first_failure);
        assert!(low < used, "{target}: the memory came from device 1");
        assert_eq!(device::current().unwrap(), 0, "the current device is as it was");
    }
    let options = Options { device: Some(7), ..Options::new("pool").unwrap() };
    let error = replay(&log, &options, &mut |_, _| true).expect_err("no such device");
    assert!(error.to_string().contains("no device 7"), "{error}");
}

#[test]
fn one_call_reads_replays_and_draws() {
    let _alone = alone();
    let folder = Folder::new("json");
    let a = folder.file("a.csv", &random_log(7, 500));
    let b = folder.file("b.csv", &random_log(8, 600));
    let html = folder.0.join("page.html");

    let one = replay_json(&json!({ "log": a, "resource": "async" }).to_string(), &mut |_, _| true).expect("replayed");
    let one: Value = serde_json::from_str(&one).expect("JSON");
    assert_eq!((one["log"].as_str(), one["events"].as_u64()), (Some(a.as_str()), Some(500)));
    assert_eq!((one["resource"].as_str(), one["failed_events"].as_u64()), (Some("async"), Some(0)));

    let options = json!({ "logs": [a, b], "resource": "pool:16MiB", "repeat": 3, "html": html }).to_string();
    let mut last = (0, 0);
    let both = replay_json(&options, &mut |done, total| {
        last = (done, total);
        true
    })
    .expect("replayed");
    assert_eq!(last, (5500, 5500), "progress runs over all logs and passes");
    let both: Value = serde_json::from_str(&both).expect("JSON");
    assert_eq!((both[0]["events"].as_u64(), both[1]["events"].as_u64()), (Some(500), Some(600)));
    let page = std::fs::read_to_string(&html).expect("the page was written");
    assert_eq!(page.matches("<section").count(), 2);
    assert!(page.contains("a.csv") && page.contains("b.csv") && page.ends_with("</html>\n"));
}

#[test]
fn a_page_that_cannot_be_written_says_where() {
    let _alone = alone();
    let folder = Folder::new("page");
    let log = folder.file("a.csv", &random_log(9, 10));
    let html = folder.0.join("no/such/folder/page.html");
    let error = replay_json(&json!({ "log": log, "html": html }).to_string(), &mut |_, _| true).expect_err("no folder");
    assert!(error.to_string().contains("no/such/folder"), "{error}");
}

#[test]
fn a_log_whose_requests_have_no_bytes_replays_to_nothing() {
    let _alone = alone();
    let log = read(&format!("{HEADER}1,0,allocate,(nil),0,0\n1,0,free,(nil),0,0\n1,0,free,0x99,512,0\n"));
    let report = run(&log, "pool", 2);
    assert_eq!((report.events, report.calls, report.unknown_frees, report.failed_events), (3, 0, 1, 0));
    assert_eq!(report.to_json()["overhead"], Value::Null);
}

fn run_threads(log: &Log, target: &str, repeat: u32) -> Report {
    let options = Options { repeat, threads: true, ..Options::new(target).expect("a target") };
    replay(log, &options, &mut |_, _| true).expect("replayed")
}

#[test]
fn each_thread_of_a_log_can_have_a_thread_of_its_own() {
    let _alone = alone();
    let log = read(&random_log(10, 4000));
    let before = (free_bytes(0), sim::violations());
    for target in TARGETS {
        let report = run_threads(&log, target, 3);
        assert_eq!(report.failed_events, 0, "{target}: {:?}", report.first_failure);
        assert_eq!((report.events, report.calls, report.threads), (4000, 4000, 2), "{target}");
        assert!(report.threaded && report.ns_per_event > 0.0);
        assert!(
            report.ns_per_event_p50 <= report.ns_per_event_p99 && report.ns_per_event_p99 <= report.ns_per_event_max
        );
        assert!(report.ns_per_event_max > 0, "{target}");
        assert_eq!((free_bytes(0), sim::violations()), before, "{target}: memory is back and no rule was broken");
    }
}

#[test]
fn threads_keep_the_order_of_the_calls_for_each_address() {
    let _alone = alone();
    // One address goes round eight threads, and the pool has room for one block: a call out of its turn does not fit, or
    // frees what is not there.
    let mut text = HEADER.to_owned();
    for n in 0..800 {
        let (maker, taker) = (n % 8, (n + 1) % 8);
        writeln!(text, "{maker},0,allocate,0x10,3000000,0\n{taker},0,free,0x10,3000000,0").unwrap();
    }
    let log = read(&text);
    let report = run_threads(&log, "pool:4MiB", 3);
    assert_eq!((report.failed_events, report.threads), (0, 8), "{:?}", report.first_failure);
    assert_eq!(report.peak_live_bytes, 3_000_000, "never two at once");
}

#[test]
fn threads_end_whatever_the_log_holds() {
    let _alone = alone();
    let before = free_bytes(0);
    let huge = MEMORY * 4;
    let log = read(&format!(
        "{HEADER}1,0,free,0x99,512,0\n1,0,allocate,0x10,1000,0\n2,0,allocate,0x10,2000,0x7f\n3,0,free,0x10,2000,0\n\
         3,0,free,0x10,1000,0\n2,0,free,0x10,1000,0\n4,0,allocate failure,(nil),4096,0\n4,0,allocate failure,(nil),{huge},0\n\
         5,0,allocate,0x20,{huge},0\n1,0,free,0x20,{huge},0\n2,0,allocate,(nil),0,0\n2,0,free,(nil),0,0\n\
         6,0,allocate,0x30,512,2\n1,0,free,0x30,7,2\nmain,0,allocate,0x40,100,0\n"
    ));
    for target in TARGETS {
        let report = run_threads(&log, target, 2);
        assert_eq!(report.failed_events, 1, "{target}: only what is too large: {:?}", report.first_failure);
        let first = report.first_failure.as_deref().unwrap_or_default();
        assert!(first.contains(&format!("allocation of {huge} bytes")), "{first}");
        assert_eq!((report.failures_in_log, report.failures_served), (2, 1), "{target}");
        assert_eq!((report.unknown_frees, report.overlapping, report.left_live), (2, 1, 1), "{target}");
        assert_eq!(free_bytes(0), before, "{target}");
    }
}

#[test]
fn threads_can_be_stopped_and_have_a_limit() {
    let _alone = alone();
    let before = free_bytes(0);
    let log = read(&random_log(11, 20_000));
    let options = Options { repeat: 2, threads: true, ..Options::new("pool").unwrap() };
    let mut last = (0, 0);
    replay(&log, &options, &mut |done, total| {
        last = (done, total);
        true
    })
    .expect("replayed");
    assert_eq!(last, (60_000, 60_000));
    for stop_at in [1, 20_001, 45_000] {
        let error = replay(&log, &options, &mut |done, _| done < stop_at).expect_err("stopped");
        assert!(error.to_string().contains("stopped"), "{error}");
        assert_eq!(free_bytes(0), before, "stopped at {stop_at}, everything is back");
    }
    let mut text = HEADER.to_owned();
    for thread in 0..=MAX_LANES {
        writeln!(text, "{thread},0,allocate,{:#x},256,0", 0x1000 * (thread + 1)).unwrap();
    }
    let options = Options { threads: true, ..Options::new("pool").unwrap() };
    let error = replay(&read(&text), &options, &mut |_, _| panic!("nothing is replayed")).expect_err("too many");
    assert!(error.to_string().contains("513 threads"), "{error}");
    assert_eq!(run(&read(&text), "pool", 1).failed_events, 0, "without threads it runs");
}

fn find_smallest(log: &Log) -> Report {
    let options = Options { smallest: true, ..Options::new("pool").unwrap() };
    replay(log, &options, &mut |_, _| true).expect("replayed")
}

#[test]
fn the_smallest_pool_fits_and_a_smaller_one_does_not() {
    let _alone = alone();
    let before = free_bytes(0);
    for seed in [12, 13, 14] {
        let log = read(&random_log(seed, 2000));
        let report = find_smallest(&log);
        let found = report.smallest.clone().expect("looked for");
        let bytes = found.bytes.expect("it fits into the device");
        assert!(bytes >= log.peak_live_bytes && bytes.is_multiple_of(GRAIN), "{found:?}");
        assert_eq!(run(&log, &format!("pool:{bytes}"), 1).failed_events, 0, "{found:?}");
        for below in 1..=8 {
            let size = bytes - below * GRAIN;
            assert!(run(&log, &format!("pool:{size}"), 1).failed_events > 0, "{found:?} also fits into {size}");
        }
        let json = report.to_json();
        assert_eq!(json["smallest_pool_bytes"], bytes);
        assert!(json["smallest_pool_over_live"].as_f64().unwrap() >= 1.0);
        assert_eq!(free_bytes(0), before);
    }
}

#[test]
fn the_smallest_pool_of_one_block_is_the_block() {
    let _alone = alone();
    let size = 40 * GRAIN;
    let log = read(&format!(
        "{HEADER}1,0,allocate failure,(nil),{},0\n1,0,allocate,0x10,{size},0\n1,0,free,0x10,{size},0\n",
        MEMORY * 4
    ));
    let found = find_smallest(&log).smallest.expect("looked for");
    assert_eq!((found.bytes, found.monotonic), (Some(size), true), "what had failed in the log may fail: {found:?}");
}

#[test]
fn where_there_is_no_smallest_pool_the_reason_is_said() {
    let _alone = alone();
    let before = free_bytes(0);
    let log = read(&format!("{HEADER}1,0,allocate,0x10,{0},0\n1,0,free,0x10,{0},0\n", MEMORY * 2));
    let found = find_smallest(&log).smallest.expect("looked for");
    assert_eq!(found.bytes, None);
    assert!(found.why.as_deref().unwrap_or_default().contains("does not fit"), "{found:?}");
    assert_eq!(free_bytes(0), before);
    let found = find_smallest(&read(&format!("{HEADER}1,0,allocate,(nil),0,0\n"))).smallest.expect("looked for");
    assert!(found.why.as_deref().unwrap_or_default().contains("allocates nothing"), "{found:?}");
    let options = Options { smallest: true, ..Options::new("pool:1GiB").unwrap() };
    let error = replay(&log, &options, &mut |_, _| true).expect_err("has a size");
    assert!(error.to_string().contains("\"pool\""), "{error}");
}

#[test]
fn the_search_for_the_smallest_pool_can_be_stopped() {
    let _alone = alone();
    let before = free_bytes(0);
    let log = read(&random_log(15, 5000));
    let options = Options { smallest: true, ..Options::new("pool").unwrap() };
    let mut last = (0, 0);
    replay(&log, &options, &mut |done, total| {
        assert!(done <= total);
        last = (done, total);
        true
    })
    .expect("replayed");
    assert_eq!(last.0, last.1, "it ends at the end");
    let error = replay(&log, &options, &mut |done, _| done < 25_000).expect_err("stopped");
    assert!(error.to_string().contains("stopped"), "{error}");
    assert_eq!(free_bytes(0), before);
}
