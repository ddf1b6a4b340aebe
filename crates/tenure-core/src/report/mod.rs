//! What a replay found out: figures as values and JSON, pictures as one HTML page.
//!
//! [`Report`] holds the figures, [`series::Series`] memory over the events, [`map::Map`] the address space at the peak.
//! All three are small however long the log is: a series has at most 2000 points, a map some thousand blocks.

use serde_json::{Value, json};

use crate::trace::Smallest;

pub mod map;
mod page;
pub mod series;

pub use page::page;
pub(crate) use page::{STYLE, escaped};

/// The outcome of a replay. Sizes are in bytes.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Where the log came from.
    pub log: String,
    /// The device, for people: `sim:0 (…)`, `cuda:0 (NVIDIA H100)`.
    pub device: String,
    /// True on the simulated device, whose times say nothing about a GPU.
    pub simulated: bool,
    /// The resource as it was asked for: `pool:1GiB`.
    pub resource: String,
    /// The kinds of the resource and what it stands on: `pool > cuda`.
    pub stack: String,
    /// Events that were logged.
    pub events: u64,
    /// Calls that were made for them: requests of no bytes and unknown frees make none.
    pub calls: u64,
    /// Threads that the log names.
    pub threads: u64,
    /// Streams that the log names.
    pub streams: u64,
    /// Those streams, as they were logged.
    pub stream_names: Vec<u64>,
    /// The most that was live at once, as it was asked for; less than the log's own figure where requests failed.
    pub peak_live_bytes: u64,
    /// The most that the resource held at once, in any timed pass.
    pub peak_reserved_bytes: u64,
    /// Nanoseconds per call in the median of all passes. Attempts at requests that had failed in the log are not counted.
    pub ns_per_event: f64,
    /// The same in the first pass, whose resource was new.
    pub ns_per_event_first: f64,
    /// The least of all passes.
    pub ns_per_event_min: f64,
    /// The same in the last pass, whose resource was warm unless there was only one.
    pub ns_per_event_last: f64,
    /// Number of timed passes.
    pub repeat: u32,
    /// Each thread of the log was replayed on a thread of its own.
    pub threaded: bool,
    /// Half of all calls took at most so many nanoseconds, each timed by itself in a warm resource.
    pub ns_per_event_p50: u64,
    /// The same of 99 of 100 calls.
    pub ns_per_event_p99: u64,
    /// The same of all calls.
    pub ns_per_event_max: u64,
    /// The smallest fixed pool, where it was looked for.
    pub smallest: Option<Smallest>,
    /// Driver calls of the last pass, by name.
    pub driver_calls: Vec<(&'static str, u64)>,
    /// Calls that failed and had not failed in the log, in the last pass.
    pub failed_events: u64,
    /// The first of them.
    pub first_failure: Option<String>,
    /// Requests that had failed in the log.
    pub failures_in_log: u64,
    /// How many of those are served now.
    pub failures_served: u64,
    /// Frees of memory that was allocated before the log began; they are skipped.
    pub unknown_frees: u64,
    /// Requests of no bytes; they are skipped.
    pub zero_sized: u64,
    /// Allocations at an address that was live already.
    pub overlapping: u64,
    /// Frees whose size was not that of the allocation; they free the allocation.
    pub size_mismatches: u64,
    /// Allocations that are live when the log ends; they are freed after it.
    pub left_live: u64,
    /// Time that the log covers, in microseconds, if its times could be read.
    pub duration_us: Option<u64>,
    /// Memory over the events.
    pub series: series::Series,
    /// The address space when most was live.
    pub map: map::Map,
}

impl Report {
    /// Reserved over live at their peaks; `None` when nothing was ever live.
    #[must_use]
    pub fn overhead(&self) -> Option<f64> {
        (self.peak_live_bytes != 0).then(|| self.peak_reserved_bytes as f64 / self.peak_live_bytes as f64)
    }

    /// The smallest fixed pool over the live bytes at their peak; `None` where it was not looked for or not found.
    #[must_use]
    pub fn smallest_over_live(&self) -> Option<f64> {
        let bytes = self.smallest.as_ref()?.bytes?;
        (self.peak_live_bytes != 0).then(|| bytes as f64 / self.peak_live_bytes as f64)
    }

    /// Driver calls per call in the last pass.
    #[must_use]
    pub fn driver_calls_per_event(&self) -> f64 {
        self.driver_calls.iter().map(|(_, n)| *n).sum::<u64>() as f64 / self.calls.max(1) as f64
    }

    /// The figures as a JSON object. The first twelve are those that `tenure replay --json` promises; the others may be
    /// added to.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "log": self.log,
            "device": self.device,
            "resource": self.resource,
            "events": self.events,
            "threads": self.threads,
            "streams": self.streams,
            "peak_live_bytes": self.peak_live_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "overhead": self.overhead(),
            "ns_per_event": self.ns_per_event,
            "driver_calls_per_event": self.driver_calls_per_event(),
            "failed_events": self.failed_events,

            "first_failure": self.first_failure,
            "simulated": self.simulated,
            "stack": self.stack,
            "calls": self.calls,
            "repeat": self.repeat,
            "ns_per_event_first": self.ns_per_event_first,
            "ns_per_event_min": self.ns_per_event_min,
            "ns_per_event_last": self.ns_per_event_last,
            "ns_per_event_p50": self.ns_per_event_p50,
            "ns_per_event_p99": self.ns_per_event_p99,
            "ns_per_event_max": self.ns_per_event_max,
            "threaded": self.threaded,
            "smallest_pool_bytes": self.smallest.as_ref().and_then(|found| found.bytes),
            "smallest_pool_over_live": self.smallest_over_live(),
            "smallest_pool_trials": self.smallest.as_ref().map(|found| found.trials),
            "smallest_pool_monotonic": self.smallest.as_ref().map(|found| found.monotonic),
            "smallest_pool_reason": self.smallest.as_ref().and_then(|found| found.why.as_deref()),
            "driver_calls": self.driver_calls.iter().map(|(name, n)| ((*name).to_owned(), json!(n)))
                .collect::<serde_json::Map<_, _>>(),
            "failures_in_log": self.failures_in_log,
            "failures_served": self.failures_served,
            "unknown_frees": self.unknown_frees,
            "zero_sized": self.zero_sized,
            "overlapping": self.overlapping,
            "size_mismatches": self.size_mismatches,
            "left_live": self.left_live,
            "duration_us": self.duration_us,
            "holes": self.map.holes.count,
            "hole_bytes": self.map.holes.bytes,
            "largest_hole_bytes": self.map.holes.largest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_the_promised_fields() {
        let report = Report {
            log: "a.csv".into(),
            calls: 4,
            peak_live_bytes: 100,
            peak_reserved_bytes: 150,
            driver_calls: vec![("cuMemCreate", 1), ("cuMemMap", 1)],
            ..Report::default()
        };
        let json = report.to_json();
        for key in [
            "log",
            "device",
            "resource",
            "events",
            "threads",
            "streams",
            "peak_live_bytes",
            "peak_reserved_bytes",
            "overhead",
            "ns_per_event",
            "driver_calls_per_event",
            "failed_events",
        ] {
            assert!(json.get(key).is_some(), "{key}");
        }
        assert_eq!(json["overhead"], 1.5);
        assert_eq!(json["driver_calls_per_event"], 0.5);
        assert_eq!(json["driver_calls"]["cuMemMap"], 1);
    }

    #[test]
    fn no_figure_is_not_a_number() {
        let json = Report::default().to_json();
        assert_eq!(json["overhead"], Value::Null);
        assert_eq!(json["driver_calls_per_event"], 0.0);
    }
}
