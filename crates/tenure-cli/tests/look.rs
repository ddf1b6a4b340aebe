//! `tenure view` and `tenure stats`: each kind of file, and what is none.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn file(name: &str, text: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tenure-look-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn tenure(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenure")).args(arguments).output().unwrap()
}

#[track_caller]
fn good(arguments: &[&str]) -> String {
    let output = tenure(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn report() -> String {
    json!({
        "format": "tenure.report", "version": 1, "begun_ns": 1000, "time_ns": 2_000_001_000u64, "end": "exit",
        "program": ["train.py", "--x"], "resource": "PoolMemoryResource",
        "peak_live_bytes": 5 << 20, "peak_reserved_bytes": 8 << 20, "reserved_bytes": 8 << 20,
        "allocate_ns": 250_000_000u64, "allocate_calls": 3, "free_ns": 0, "free_calls": 1,
        "live_bytes": 1 << 20, "live_count": 1,
        "devices": [{"device": 0, "peak_used_bytes": 9 << 20}],
        "holders": [
            {"library": "cupy", "tag": null, "live_bytes": 0, "live_count": 0, "peak_bytes": 4 << 20, "at_peak_bytes": 4 << 20,
             "total_bytes": 4 << 20, "total_count": 2},
            {"library": null, "tag": "<i>&", "live_bytes": 1 << 20, "live_count": 1, "peak_bytes": 1 << 20,
             "at_peak_bytes": 1 << 20, "total_bytes": 1 << 20, "total_count": 1},
        ],
        "timeline": [
            {"time_ns": 1000, "live_bytes": 4 << 20, "reserved_bytes": 8 << 20, "held": [4 << 20]},
            {"time_ns": 9000, "live_bytes": 5 << 20, "reserved_bytes": 8 << 20, "held": [4 << 20, 1 << 20]},
        ],
        "left": [{"address": 4096, "size": 1 << 20, "library": null, "tag": "<i>&", "frames": ["train.py:7 <module>"]}],
    })
    .to_string()
}

/// Checks that all elements of a page close, and returns its text without them.
fn parsed(page: &str) -> String {
    let (mut open, mut text, mut rest) = (Vec::new(), String::new(), page);
    while let Some(at) = rest.find('<') {
        text.push_str(&rest[..at]);
        let end = at + rest[at..].find('>').expect("a tag that ends");
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '\n']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "what is closed was opened last");
        } else if !tag.starts_with('!') && name != "meta" {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    text
}

#[test]
fn the_report_of_a_run_is_shown() {
    let path = file("run.json", &report());
    let path = path.to_str().unwrap();
    let told = good(&["stats", path]);
    for part in [
        "train.py --x on PoolMemoryResource",
        "5.0 MiB",
        "8.0 MiB",
        "9.0 MiB",
        "0.250 s",
        "cupy",
        "train.py:7 <module>",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let all: Value = serde_json::from_str(&good(&["stats", "--json", path])).unwrap();
    assert_eq!(all["figures"]["peak live"], 5 << 20);
    assert_eq!(
        all["libraries"][0],
        json!({"name": "cupy", "at_peak_bytes": 4 << 20, "live_bytes": 0, "live_count": 0,
        "peak_bytes": 4 << 20, "total_bytes": 4 << 20, "total_count": 2})
    );
    assert_eq!(all["left"]["makers"][0]["bytes"], 1 << 20);

    assert!(good(&["view", path]).contains("run.html"));
    let page = std::fs::read_to_string(path.replace(".json", ".html")).unwrap();
    let text = parsed(&page);
    for part in ["5.0 MiB", "8.0 MiB", "9.0 MiB", "cupy", "&lt;i&gt;&amp;", "train.py:7 &lt;module&gt;", "2.000 s"] {
        assert!(text.contains(part), "{part}");
    }
    assert_eq!(page.matches("<path").count(), 3, "two holders, and what is reserved");
    assert!(!page.contains("<script") && !page.contains("http"), "nothing is loaded");
    assert_eq!(good(&["view", path, "-o", "-"]), page);
}

#[test]
fn a_log_is_shown() {
    let log = "Thread,Time,Action,Pointer,Size,Stream\n\
        1,23:59:59.500000,allocate,0x1000,1000,0\n1,23:59:59.700000,allocate,0x2000,2000,0\n\
        1,00:00:00.500000,free,0x1000,1000,0\n1,00:00:00.600000,allocate failure,0x0,99,0\n";
    let path = file("log.csv", log);
    let path = path.to_str().unwrap();
    let all: Value = serde_json::from_str(&good(&["stats", "--json", path])).unwrap();
    assert_eq!(all["figures"]["peak live"], 3000);
    assert_eq!(all["figures"]["failed allocations"], 1);
    assert!((all["figures"]["seconds"].as_f64().unwrap() - 1.1).abs() < 1e-6, "past midnight: {all}");
    assert_eq!(all["left"]["bytes"], 2000);
    parsed(&good(&["view", path, "-o", "-"]));
}

#[test]
fn snapshots_and_failures_are_shown() {
    let block = json!({"address": 1, "size": 700, "held_by": null, "tag": "loader", "frames": null});
    let held = json!({"address": 1, "size": 9_000_000, "held_by": 7, "tag": null, "frames": null});
    let snapshot = json!({"format": "tenure.memory_snapshot", "version": 1, "pid": 5, "blocks": [block, held],
        "resources": [{"reserved_bytes": 9_000_000}], "events": []});
    let oom = json!({"format": "tenure.oom_report", "version": 1, "message": "out of memory: <x>", "notes": ["a note"],
        "requested": 10, "blocks": [block]});
    for (name, value, part) in [("s.json", snapshot, "process 5"), ("o.json", oom, "a note")] {
        let path = file(name, &value.to_string());
        let told = good(&["stats", path.to_str().unwrap()]);
        assert!(told.contains(part) && told.contains("left: 1 blocks of 700 B") && told.contains("loader"), "{told}");
        parsed(&good(&["view", path.to_str().unwrap(), "-o", "-"]));
    }
}

#[test]
fn what_is_none_of_them_is_refused() {
    for (name, text, part) in [
        ("a.txt", "hello", "neither JSON"),
        ("b.json", "{\"format\": \"tenure.report\"", "its JSON is broken"),
        ("c.json", "{}", "no format"),
        ("d.json", "{\"format\": \"x\"}", "the format \"x\""),
        ("e.json", "{\"format\": \"tenure.report\", \"version\": 2}", "this tenure knows 1"),
        ("f.csv", "Thread,Time\n1,2\n", "no Action"),
        ("g.csv", "Thread,Action,Pointer,Size\n1,allocate,x,2\n", "line 2 has \"x\""),
        ("h.txt", "", "neither JSON"),
    ] {
        let path = file(name, text);
        let output = tenure(&["stats", path.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(part) && !said.contains("panicked"), "{name}: {said}");
    }
    let path = file("same.html", &report());
    assert_eq!(tenure(&["view", path.to_str().unwrap()]).status.code(), Some(2), "a page never replaces its file");
    assert_eq!(tenure(&["stats", "/no/such"]).status.code(), Some(2));
}
