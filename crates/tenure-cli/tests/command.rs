//! The command as a person meets it: output, errors and exit codes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tenure-command-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const LOG: &str = "Thread,Time,Action,Pointer,Size,Stream\n\
    1,10:00:00.000001,allocate,0x1000,1000,0\n\
    2,10:00:00.000002,allocate,0x2000,2000,0x7f01\n\
    1,10:00:00.000003,free,0x1000,1000,0\n\
    2,10:00:00.000004,allocate,0x3000,500,0x7f01\n\
    2,10:00:00.000005,free,0x2000,2000,0x7f01\n\
    2,10:00:00.000006,free,0x3000,500,0x7f01\n";

fn tenure(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(arguments).env_remove("TENURE_SIM_DEVICES");
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn good(output: &Output) -> String {
    assert!(output.status.success(), "{:?}: {}", output.status, text(&output.stderr));
    text(&output.stdout)
}

#[track_caller]
fn fails(output: &Output, code: i32, parts: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
}

fn as_text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn replay_json_has_the_promised_fields() {
    let folder = Folder::new("json");
    let (a, b) = (folder.file("a.csv", LOG), folder.file("b.csv", LOG));
    let output = tenure(&["replay", as_text(&a), as_text(&b), "--device", "sim", "--json", "--repeat", "2"]);
    let reports: Vec<Value> = serde_json::from_str(&good(&output)).unwrap();
    assert_eq!(reports.len(), 2);
    for (report, path) in reports.iter().zip([&a, &b]) {
        assert!(as_text(path).ends_with(report["log"].as_str().unwrap().rsplit('/').next().unwrap()));
        assert_eq!(report["events"], 6);
        assert_eq!(report["threads"], 2);
        assert_eq!(report["streams"], 2);
        assert_eq!(report["peak_live_bytes"], 3000);
        assert!(report["peak_reserved_bytes"].as_u64().unwrap() >= 3000);
        assert!(report["overhead"].as_f64().unwrap() >= 1.0);
        assert!(report["ns_per_event"].as_f64().unwrap() > 0.0);
        assert!(report["driver_calls_per_event"].is_number());
        assert_eq!(report["failed_events"], 0);
        assert_eq!(report["resource"], "pool");
        assert!(report["device"].is_string());
    }
    assert_eq!(text(&output.stderr), "", "no progress where there is no terminal");
}

#[test]
fn replay_prints_a_table_by_default() {
    let folder = Folder::new("table");
    let log = folder.file("a.csv", LOG);
    for resource in ["cuda", "async", "pool", "pool:4MiB"] {
        let said = good(&tenure(&["replay", as_text(&log), "--device", "sim", "--resource", resource]));
        let lines: Vec<_> = said.lines().collect();
        assert!(lines[0].starts_with("device: "), "{said}");
        for title in
            ["log", "events", "peak live", "peak reserved", "overhead", "ns/event", "driver calls/event", "failed"]
        {
            assert!(lines[1].contains(title), "{said}");
        }
        assert!(lines[2].starts_with("a.csv") && lines[2].contains(resource), "{said}");
    }
}

#[test]
fn replay_writes_a_page() {
    let folder = Folder::new("html");
    let (log, page) = (folder.file("a.csv", LOG), folder.0.join("report.html"));
    good(&tenure(&["replay", as_text(&log), "--device", "sim", "--html", as_text(&page)]));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") || page.contains("<canvas"), "there is a picture");
    assert!(!page.contains("src=\"http") && !page.contains("href=\"http"), "it is self-contained");
}

#[test]
fn an_event_that_fails_is_exit_code_1() {
    let folder = Folder::new("fails");
    let log = folder.file("a.csv", &LOG.replace(",500,", ",1125899906842624,"));
    let output = tenure(&["replay", as_text(&log), "--device", "sim", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let reports: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(reports[0]["failed_events"].as_u64().unwrap() >= 1);
}

#[test]
fn a_failure_that_the_log_has_is_none() {
    let folder = Folder::new("logged");
    let failure = "1,10:00:00.000007,allocate failure,0x0,1125899906842624,0\n";
    let log = folder.file("a.csv", &format!("{LOG}{failure}"));
    good(&tenure(&["replay", as_text(&log), "--device", "sim"]));
}

#[test]
fn logs_that_cannot_be_read() {
    let folder = Folder::new("unreadable");
    let truncated = folder.file("truncated.csv", &LOG[..LOG.len() - 20]);
    let prose = folder.file("prose.csv", "Once upon a time\nthere was a buffer.\n");
    let empty = folder.file("empty.csv", "");
    let binary = folder.0.join("binary.csv");
    std::fs::write(&binary, [0u8, 159, 146, 150, 255, 254]).unwrap();
    let missing = folder.0.join("missing.csv");
    for log in [&truncated, &prose, &empty, &binary, &missing, &folder.0] {
        let output = tenure(&["replay", as_text(log), "--device", "sim"]);
        fails(&output, 2, &["tenure: ", as_text(log)]);
        assert_eq!(text(&output.stdout), "");
    }
    // A bad one among good ones costs nothing: no report of the others is printed.
    let log = folder.file("a.csv", LOG);
    let output = tenure(&["replay", as_text(&log), as_text(&missing), "--device", "sim", "--json"]);
    fails(&output, 2, &["missing.csv"]);
}

#[test]
fn arguments_that_are_none() {
    let folder = Folder::new("arguments");
    let log = folder.file("a.csv", LOG);
    fails(&tenure(&[]), 2, &["Usage"]);
    fails(&tenure(&["replay"]), 2, &["LOG"]);
    fails(&tenure(&["replay", as_text(&log), "--resource", "arena"]), 2, &["pool:SIZE"]);
    fails(&tenure(&["replay", as_text(&log), "--resource", "pool:lots"]), 2, &["512MiB"]);
    fails(&tenure(&["replay", as_text(&log), "--repeat", "0"]), 2, &["repeat"]);
    fails(&tenure(&["replay", as_text(&log), "--device", "tpu"]), 2, &["sim"]);
    fails(&tenure(&["bench", "nothing", "--device", "sim"]), 2, &["pair, churn", "--list"]);
    fails(&tenure(&["bench", "pair-own-256B", "", "--device", "sim"]), 2, &["begins with \"\""]);
    fails(&tenure(&["bench", "--rounds", "0"]), 2, &["rounds"]);
    fails(
        &tenure(&["replay", as_text(&log), "--smallest", "--resource", "pool:1GiB"]),
        2,
        &["--resource pool:1GiB out"],
    );
    fails(&tenure(&["replay", as_text(&log), "--smallest", "--resource", "cuda"]), 2, &["--smallest"]);
}

#[test]
fn a_page_that_cannot_be_written() {
    let folder = Folder::new("page");
    let log = folder.file("a.csv", LOG);
    let page = folder.0.join("no/such/folder/report.html");
    fails(&tenure(&["replay", as_text(&log), "--device", "sim", "--html", as_text(&page)]), 2, &["report.html"]);
}

#[test]
fn info_says_what_is_here() {
    let facts: Value = serde_json::from_str(&good(&tenure(&["info", "--device", "sim", "--json"]))).unwrap();
    assert!(facts.is_object());
    assert!(facts.to_string().contains("sim"), "{facts}");
    let said = good(&tenure(&["info", "--device", "sim"]));
    assert!(said.contains("client: ") && said.contains("version: "), "{said}");
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let folder = Folder::new("nodevice");
    let log = folder.file("a.csv", LOG);
    let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["replay", as_text(&log), "--device", "cuda"])
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap();
    fails(&output, 2, &["tenure: "]);
    // It is an answer of info.
    let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["info", "--device", "cuda", "--json"])
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap();
    assert!(serde_json::from_str::<Value>(&good(&output)).unwrap().is_object());
}

#[test]
fn a_missing_library_is_a_sentence() {
    let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .arg("info")
        .env("TENURE_LIBRARY", "/nonexistent/libtenure.so.0")
        .output()
        .unwrap();
    fails(&output, 2, &["/nonexistent/libtenure.so.0", "TENURE_LIBRARY"]);
}

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/data/");

#[test]
fn replay_finds_the_smallest_pool() {
    let folder = Folder::new("smallest");
    let log = folder.file("a.csv", LOG);
    let output = tenure(&["replay", as_text(&log), "--device", "sim", "--smallest", "--json"]);
    let reports: Vec<Value> = serde_json::from_str(&good(&output)).unwrap();
    let bytes = reports[0]["smallest_pool_bytes"].as_u64().unwrap();
    assert!(bytes >= 3000 && bytes.is_multiple_of(256 << 10), "{bytes}");
    assert!(reports[0]["smallest_pool_trials"].as_u64().unwrap() > 0);
    good(&tenure(&["replay", as_text(&log), "--device", "sim", "--resource", &format!("pool:{bytes}")]));
    let said = good(&tenure(&["replay", as_text(&log), "--device", "sim", "--smallest"]));
    assert!(said.contains("smallest pool") && said.contains("over live"), "{said}");
    // Not asked for, not looked for.
    let output = tenure(&["replay", as_text(&log), "--device", "sim", "--json"]);
    let reports: Vec<Value> = serde_json::from_str(&good(&output)).unwrap();
    assert!(reports[0]["smallest_pool_bytes"].is_null());
    // No size fits what the device does not have; that is an answer beside the failed event.
    let log = folder.file("huge.csv", &LOG.replace(",500,", ",1125899906842624,"));
    let output = tenure(&["replay", as_text(&log), "--device", "sim", "--smallest"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("there is no smallest pool: it does not fit"), "{}", text(&output.stdout));
}

#[test]
fn replay_runs_on_threads() {
    let folder = Folder::new("threads");
    let log = folder.file("a.csv", LOG);
    for resource in ["cuda", "async", "pool", "pool:4MiB"] {
        let arguments = ["replay", as_text(&log), "--device", "sim", "--threads", "--json", "--repeat", "3"];
        let output = tenure(&[&arguments[..], &["--resource", resource]].concat());
        let reports: Vec<Value> = serde_json::from_str(&good(&output)).unwrap();
        assert_eq!((reports[0]["threaded"].as_bool(), reports[0]["failed_events"].as_u64()), (Some(true), Some(0)));
        let [p50, p99, max] = ["p50", "p99", "max"].map(|p| reports[0][format!("ns_per_event_{p}")].as_u64().unwrap());
        assert!(p50 <= p99 && p99 <= max && max > 0, "{p50} {p99} {max}");
    }
}

#[test]
fn a_log_whose_blocks_are_freed_on_other_streams_replays() {
    let log = format!("{DATA}pipeline.dev0.csv");
    let recorded = std::fs::read_to_string(&log).unwrap();
    let mut made = std::collections::HashMap::new();
    let mut elsewhere = 0;
    for line in recorded.lines().skip(1) {
        let fields: Vec<_> = line.split(',').collect();
        match fields[2] {
            "allocate" => assert!(made.insert(fields[3], fields[5]).is_none(), "handed out twice: {line}"),
            _ => elsewhere += u32::from(made.remove(fields[3]).unwrap() != fields[5]),
        }
    }
    assert!(elsewhere > 1000 && made.is_empty(), "{elsewhere}");
    for more in [&["--smallest"][..], &["--threads"]] {
        let output = tenure(&[&["replay", &log, "--device", "sim", "--json"], more].concat());
        let reports: Vec<Value> = serde_json::from_str(&good(&output)).unwrap();
        assert_eq!((reports[0]["failed_events"].as_u64(), reports[0]["streams"].as_u64()), (Some(0), Some(5)));
        assert_eq!(reports[0]["left_live"], 0);
    }
}

#[test]
fn bench_rows_have_references() {
    let names = ["pair-own-256B", "pair-try", "churn-c-100", "burst", "phase", "adaptors", "current", "buffer"];
    let output = tenure(&[&["bench", "--device", "sim", "--json", "--quick"], &names[..]].concat());
    let all: Value = serde_json::from_str(&good(&output)).unwrap();
    assert_eq!((&all["simulated"], &all["failed"]), (&Value::Bool(true), &Value::Array(vec![])));
    let rows = all["rows"].as_array().unwrap();
    let found: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    for name in names {
        assert!(found.iter().any(|found| found.starts_with(name)), "{name} in {found:?}");
    }
    for row in rows {
        for key in ["ns", "mean_ns", "p50_ns", "p99_ns", "max_ns", "worst_thread_ns", "reference_ns", "ratio"] {
            assert!(row[key].as_f64().unwrap() >= 0.0, "{key}: {row}");
        }
        assert!(row["ns"].as_f64().unwrap() > 0.0 && row["reference_ns"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["p50_ns"].as_f64() <= row["p99_ns"].as_f64() && row["p99_ns"].as_f64() <= row["max_ns"].as_f64());
        assert!(!row["reference"].as_str().unwrap().is_empty() && !row["what"].as_str().unwrap().is_empty());
    }
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    assert_eq!(row("pair-own-256B")["driver_calls"], 1.0, "is it capturing?");
    assert_eq!(row("pair-own-256B")["target"], "<= 80 ns");
    assert!(row("pair-own-256B")["met"].is_boolean());
    assert!(row("current-2")["growth"].as_f64().unwrap() > 0.0);
    let said = good(&tenure(&["bench", "--device", "sim", "--rounds", "1", "--quick", "pair-rust", "churn-rust-100"]));
    assert!(said.contains("pair-rust") && !said.contains("holes") && said.contains("reference: malloc"), "{said}");
}

#[test]
fn bench_runs_threads_and_counts_what_is_counted() {
    let names =
        ["threads-own-4", "ownership-2", "handover-2", "random_allocations-1000-1MiB", "churn-c-10000", "holes-64"];
    let output = tenure(&[&["bench", "--device", "sim", "--json", "--quick", "--rounds", "2"], &names[..]].concat());
    let all: Value = serde_json::from_str(&good(&output)).unwrap();
    let rows = all["rows"].as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    // A row over threads brings the row of one thread along, without which there is no growth.
    assert_eq!(row("threads-own-1")["growth"], Value::Null);
    let growth = row("threads-own-4");
    assert!(growth["growth"].as_f64().unwrap() > 0.0 && growth["reference_growth"].as_f64().unwrap() > 0.0);
    assert!(growth["worst_thread_ns"].as_f64() >= growth["ns"].as_f64());
    let host = row("churn-c-10000")["host_bytes_per_block"].as_f64().unwrap();
    assert!((8.0..4096.0).contains(&host), "{host}");
    assert_eq!(rows.len(), names.len() + 2);
}

#[test]
fn bench_lists_its_rows() {
    let said = good(&tenure(&["bench", "--list"]));
    for name in ["pair-own-256MiB", "churn-rust-100000", "threads-perthread-16", "phase-other", "adaptors-limiting"] {
        assert!(said.contains(name), "{said}");
    }
    let rows: Vec<Value> = serde_json::from_str(&good(&tenure(&["bench", "--list", "--json", "burst"]))).unwrap();
    let found: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(found, ["burst-single", "burst-batch"]);
    assert!(rows.iter().all(|row| row["theme"] == "burst"));
}

/// What the pool is measured by, whatever else there is.
#[test]
fn bench_has_every_row_of_its_themes() {
    let rows: Vec<Value> = serde_json::from_str(&good(&tenure(&["bench", "--list", "--json"]))).unwrap();
    let found: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    let all = |theme: &str, kinds: &[&str], sizes: &[&str]| {
        for (kind, size) in kinds.iter().flat_map(|kind| sizes.iter().map(move |size| (kind, size))) {
            let name = format!("{theme}{kind}-{size}");
            assert!(found.contains(&name.as_str()), "{name} is not among {found:?}");
        }
    };
    let threads = ["1", "2", "4", "8", "16"];
    all("pair", &["-own", "-registered", "-raw", "-default"], &["256B", "64KiB", "4MiB", "256MiB"]);
    all("churn", &["-c"], &["100", "1000", "10000", "100000"]);
    all("holes", &[""], &["0", "64", "1024", "16384", "65536"]);
    all("threads", &["-own", "-shared", "-perthread"], &threads);
    all("handover", &[""], &["2", "4", "8", "16"]);
    all("burst", &[""], &["single", "batch"]);
    all("phase", &[""], &["same", "other"]);
    all("random_allocations", &["-1000", "-10000", "-100000"], &["4MiB"]);
    all(
        "adaptors",
        &[""],
        &["statistics", "limiting", "logging", "tracking", "failure_callback", "prefetch", "aligned", "thread_safe"],
    );
    all("ownership", &[""], &threads);
}

#[test]
fn a_row_that_the_device_has_no_room_for_is_left_out_and_said() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(["bench", "--device", "sim", "--quick", "pair-own-256MiB", "pair-own-256B"]);
    let output = command.env("TENURE_SIM_MEMORY", "64MiB").output().unwrap();
    let said = good(&output);
    assert!(said.contains("left out") && said.contains("pair-own-256MiB: needs"), "{said}");
}

#[test]
fn a_row_that_fails_ends_none_of_the_others() {
    // A burst of 10 000 buffers does not fit.
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command
        .args(["bench", "--device", "sim", "--quick", "--json", "burst", "current-1"])
        .env("TENURE_SIM_MEMORY", "8MiB");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((all["rows"].as_array().unwrap().len(), &all["rows"][0]["name"]), (1, &Value::from("current-1")));
    assert_eq!(all["failed"][0]["name"], "burst-single");
    assert!(all["failed"][0]["error"].as_str().unwrap().contains("out of memory"), "{all}");
}

#[test]
fn output_that_nobody_reads_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["info", "--device", "sim"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}
