//! Logs of allocations, and what a resource makes of them.
//!
//! ```text
//!   log.csv --field, log--> Log --replay--> Report --report--> JSON, HTML page
//!                              |
//!                           target: cuda | async | pool | pool:SIZE
//! ```
//!
//! RMM's logging adaptor writes a line of CSV for each allocation and free; [`Log`] reads every form that it has written.
//! [`replay()`] makes the same calls in the same order on the same number of streams against a resource of tenure's and
//! says what they cost; if asked for, with a thread for each thread of the log, and with the smallest fixed pool that the log
//! fits into. [`replay_json`] is the whole of it behind one call, for the C ABI and the command line.
//!
//! A log of a hundred thousand lines is read in a few tens of milliseconds and takes 24 bytes a line.

use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::report::{self, Report};

mod field;
mod log;
mod replay;
mod size;
mod smallest;
mod target;
mod threads;
mod timing;

pub use field::Action;
#[cfg(test)]
pub(crate) use field::time;
pub use log::{COLUMNS, Event, Log, MAX_STREAMS};
pub use replay::{LiveBlock, Options, replay};
pub use size::Size;
pub use smallest::{GRAIN, Smallest};
pub use target::Target;
pub use threads::MAX_LANES;

/// The most timed passes that may be asked for.
pub const MAX_REPEAT: u64 = 100_000;

/// What [`replay_json`] was asked for.
#[derive(Debug)]
struct Order {
    logs: Vec<PathBuf>,
    /// The answer is an array.
    many: bool,
    options: Options,
    html: Option<PathBuf>,
}

/// Replays one log or several, as a JSON object says, and answers with JSON.
///
/// | key | value |
/// |---|---|
/// | `log` or `logs` | a path, or an array of paths: the answer is an object, or an array of objects |
/// | `resource` | `cuda`, `async`, `pool` (left out: this) or `pool:SIZE` |
/// | `repeat` | number of timed passes; left out: 1 |
/// | `threads` | true: each thread of the log is replayed on a thread of its own; left out: all on the calling one |
/// | `smallest` | true: also the smallest fixed pool in which the log replays is looked for; left out: not |
/// | `device` | the device's ordinal; left out: the current one |
/// | `html` | a path: a page with pictures is written there, over what was there |
///
/// The answer has the fields that `tenure replay --json` prints (`report::Report::to_json`). `progress` is called now
/// and then with the events done and the events in all, over all logs; false stops the replay.
///
/// All logs are read before the first is replayed, so that a bad one costs nothing.
///
/// # Errors
/// Bad options, a log that cannot be read, a device that cannot be had, a page that cannot be written, a stop. Events
/// that fail are no error: `failed_events` counts them.
pub fn replay_json(options: &str, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<String> {
    let order = Order::parse(options)?;
    let logs = order.logs.iter().map(|path| Log::open(path)).collect::<Result<Vec<_>>>()?;

    let passes = order.options.passes();
    let total: u64 = logs.iter().map(|log| log.events.len() as u64 * passes).sum();
    let mut before = 0;
    let mut reports = Vec::with_capacity(logs.len());
    for log in &logs {
        reports.push(replay(log, &order.options, &mut |done, _| progress(before + done, total))?);
        before += log.events.len() as u64 * passes;
    }
    if let Some(path) = &order.html {
        std::fs::write(path, report::page(&reports)).map_err(|e| {
            Error::invalid(format!(
                "cannot write the page {}: {e}; choose another file or make its folder",
                path.display()
            ))
        })?;
    }
    let answer = if order.many {
        Value::Array(reports.iter().map(Report::to_json).collect())
    } else {
        reports.first().map_or(Value::Null, Report::to_json)
    };
    Ok(answer.to_string())
}

impl Order {
    fn parse(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text)
            .map_err(|e| Error::invalid(format!("the options of a replay are not JSON: {e}")))?;
        let Value::Object(fields) = value else {
            return Err(Error::invalid("the options of a replay are a JSON object such as {\"log\": \"rmm.csv\"}"));
        };
        const KNOWN: [&str; 8] = ["log", "logs", "resource", "repeat", "device", "html", "threads", "smallest"];
        if let Some(key) = fields.keys().find(|key| !KNOWN.contains(&key.as_str())) {
            return Err(Error::invalid(format!("a replay has no option {key:?}; there are {}", KNOWN.join(", "))));
        }
        let (logs, many) = match (present(&fields, "log"), present(&fields, "logs")) {
            (Some(Value::String(log)), None) => (vec![PathBuf::from(log)], false),
            (None, Some(Value::Array(list))) if !list.is_empty() => {
                let path =
                    |v: &Value| v.as_str().map(PathBuf::from).ok_or_else(|| wrong("logs", "an array of paths", v));
                (list.iter().map(path).collect::<Result<Vec<_>>>()?, true)
            }
            (Some(other), None) => return Err(wrong("log", "a path", other)),
            (None, Some(other)) => return Err(wrong("logs", "an array of at least one path", other)),
            _ => {
                return Err(Error::invalid(
                    "a replay needs either \"log\" with a path or \"logs\" with an array of paths",
                ));
            }
        };
        let mut options = match present(&fields, "resource") {
            None => Options::new("pool")?,
            Some(Value::String(resource)) => Options::new(resource)?,
            Some(other) => return Err(wrong("resource", "a text such as \"pool:1GiB\"", other)),
        };
        if let Some(value) = present(&fields, "repeat") {
            options.repeat = match value.as_u64() {
                Some(n) if (1..=MAX_REPEAT).contains(&n) => n as u32,
                _ => return Err(wrong("repeat", &format!("a number from 1 to {MAX_REPEAT}"), value)),
            };
        }
        if let Some(value) = present(&fields, "device") {
            let ordinal = value.as_i64().and_then(|n| i32::try_from(n).ok());
            options.device = Some(ordinal.ok_or_else(|| wrong("device", "the ordinal of a device", value))?);
        }
        for (key, wanted) in [("threads", &mut options.threads), ("smallest", &mut options.smallest)] {
            if let Some(value) = present(&fields, key) {
                *wanted = value.as_bool().ok_or_else(|| wrong(key, "true or false", value))?;
            }
        }
        if options.smallest && options.target != Target::Pool(None) {
            return Err(Error::invalid(format!(
                "the smallest pool is looked for among pools: leave \"resource\" out, or make it \"pool\" instead of {:?}",
                options.resource
            )));
        }
        let html = match present(&fields, "html") {
            None => None,
            Some(Value::String(path)) => Some(PathBuf::from(path)),
            Some(other) => return Err(wrong("html", "a path", other)),
        };
        Ok(Self { logs, many, options, html })
    }
}

/// The value of a key; null counts as left out.
fn present<'a>(fields: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    fields.get(key).filter(|value| !value.is_null())
}

fn wrong(key: &str, expected: &str, found: &Value) -> Error {
    let found: String = found.to_string().chars().take(60).collect();
    Error::invalid(format!("the option {key:?} of a replay is {expected}, not {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let one = Order::parse(r#"{"log": "a.csv"}"#).unwrap();
        assert_eq!((one.logs.len(), one.many, one.options.repeat, one.html), (1, false, 1, None));
        assert_eq!(one.options.target, Target::Pool(None));
        let two = Order::parse(
            r#"{"logs": ["a.csv", "b.csv"], "resource": "pool:1GiB", "repeat": 5, "device": 1, "html": "p.html"}"#,
        )
        .unwrap();
        assert_eq!((two.logs.len(), two.many, two.options.repeat, two.options.device), (2, true, 5, Some(1)));
        assert_eq!(two.options.target, Target::Pool(Some(Size::Bytes(1 << 30))));
        assert_eq!(two.html, Some(PathBuf::from("p.html")));
        assert!(Order::parse(r#"{"log": "a.csv", "html": null, "logs": null}"#).unwrap().html.is_none());
    }

    #[test]
    fn bad_options_are_named() {
        for (text, part) in [
            ("", "not JSON"),
            ("[]", "JSON object"),
            ("{}", "either \"log\""),
            (r#"{"log": "a", "logs": ["b"]}"#, "either \"log\""),
            (r#"{"log": 3}"#, "a path, not 3"),
            (r#"{"logs": []}"#, "at least one path"),
            (r#"{"logs": [1]}"#, "an array of paths, not 1"),
            (r#"{"log": "a", "resource": "arena"}"#, "choose cuda, async, pool"),
            (r#"{"log": "a", "resource": 7}"#, "not 7"),
            (r#"{"log": "a", "repeat": 0}"#, "from 1 to"),
            (r#"{"log": "a", "repeat": -1}"#, "from 1 to"),
            (r#"{"log": "a", "repeat": "5"}"#, "from 1 to"),
            (r#"{"log": "a", "device": 1.5}"#, "ordinal"),
            (r#"{"log": "a", "threads": 4}"#, "true or false, not 4"),
            (r#"{"log": "a", "smallest": "yes"}"#, "true or false"),
            (r#"{"log": "a", "smallest": true, "resource": "pool:1GiB"}"#, "leave \"resource\" out"),
            (r#"{"log": "a", "smallest": true, "resource": "async"}"#, "instead of \"async\""),
            (r#"{"log": "a", "html": true}"#, "a path, not true"),
            (r#"{"log": "a", "hmtl": "x"}"#, "no option \"hmtl\""),
        ] {
            let error = Order::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_bad_log_is_found_before_anything_is_replayed() {
        let error = replay_json(r#"{"logs": ["no/such/log.csv"]}"#, &mut |_, _| panic!("nothing is replayed"));
        assert!(error.unwrap_err().to_string().contains("no such file"));
    }
}
