//! `tenure replay`: what a log costs under a resource. The replay itself happens in the engine.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use tenure::Bytes;

use crate::table::Table;
use crate::{DeviceLayer, Failure};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Logs of RMM's logging adaptor (CSV).
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// The resource to replay against: cuda, async, pool, or pool:SIZE, which has that size from the start and never more, such as pool:1GiB.
    #[arg(long, default_value = "pool", value_parser = resource)]
    resource: String,
    /// The device layer.
    #[arg(long, value_enum)]
    pub(crate) device: Option<DeviceLayer>,
    /// Number of timed passes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000), value_name = "N")]
    repeat: u32,
    /// Replays each thread of a log on a thread of its own, keeping the order of the calls for each address.
    #[arg(long)]
    threads: bool,
    /// Also finds the smallest fixed pool (pool:SIZE) in which a log replays without a failure, to 256 KiB.
    #[arg(long)]
    smallest: bool,
    /// Writes a page with pictures: memory over time, and the address space at the peak.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Prints JSON: an array with one object for each log.
    #[arg(long)]
    json: bool,
}

/// Says early what the engine would say late.
fn resource(text: &str) -> Result<String, String> {
    let good = match text.split_once(':') {
        None => matches!(text, "cuda" | "async" | "pool"),
        Some(("pool", size)) => {
            // Of what a percentage is taken is the engine's to know; here it only has to be one.
            Bytes::parse_of(size, 0).map_err(|e| e.to_string())?;
            true
        }
        Some(_) => false,
    };
    if good { Ok(text.to_owned()) } else { Err("there are cuda, async, pool and pool:SIZE, such as pool:1GiB".into()) }
}

/// Runs the command; false when an event failed that had not failed in its log.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<bool, Failure> {
    let mut order = json!({
        "logs": options.logs.iter().map(|log| text(log)).collect::<Result<Vec<_>, _>>()?,
        "resource": options.resource,
        "repeat": options.repeat,
    });
    if options.threads {
        order["threads"] = true.into();
    }
    if options.smallest {
        if options.resource != "pool" {
            return Err(Failure::Input(format!(
                "--smallest looks for a size among pools that have one: leave --resource {} out",
                options.resource
            )));
        }
        order["smallest"] = true.into();
    }
    if let Some(html) = &options.html {
        order["html"] = text(html)?.into();
    }
    let bar = bar();
    let answer = tenure::replay(&order.to_string(), |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        true
    });
    bar.finish_and_clear();
    let answer = answer?;
    let reports: Vec<Value> = serde_json::from_str(&answer).map_err(|e| {
        Failure::Input(format!(
            "the library answered with text that is no list of reports ({e}): use one of the same release"
        ))
    })?;

    if options.json {
        writeln!(out, "{:#}", Value::Array(reports.clone()))?;
    } else {
        print(&reports, options.smallest, out)?;
        if let Some(html) = &options.html {
            writeln!(out, "\nThe page is {}.", html.display())?;
        }
    }
    Ok(reports.iter().all(|report| report["failed_events"] == 0))
}

/// A path as JSON can carry it.
fn text(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| {
        Failure::Input(format!(
            "the path {} is not UTF-8: rename the file or link it under another name",
            path.display()
        ))
    })
}

/// Shown on a terminal only.
fn bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {percent:>3}%  {human_pos} of {human_len} events  {eta}")
    {
        bar.set_style(style);
    }
    bar
}

fn print(reports: &[Value], smallest: bool, out: &mut impl Write) -> Result<(), Failure> {
    let titles = [
        "log",
        "resource",
        "events",
        "threads",
        "streams",
        "peak live",
        "peak reserved",
        "overhead",
        "ns/event",
        "p50",
        "p99",
        "max",
        "driver calls/event",
        "failed",
        "smallest pool",
        "over live",
    ];
    // What was not looked for has no columns.
    let columns = if smallest { titles.len() } else { titles.len() - 2 };
    let mut table = Table::new(&titles[..columns], 2);
    for report in reports {
        let log = report["log"].as_str().unwrap_or_default();
        let name = Path::new(log).file_name().map_or_else(|| log.into(), |name| name.to_string_lossy());
        let count = |key: &str| report[key].as_u64().map_or("-".into(), |n| n.to_string());
        let size = |key: &str| report[key].as_u64().map_or("-".into(), |n| Bytes::new(n).to_string());
        let float = |key: &str, digits: usize| report[key].as_f64().map_or("-".into(), |x| format!("{x:.digits$}"));
        let mut cells = vec![
            name.into_owned(),
            report["resource"].as_str().unwrap_or("-").to_owned(),
            count("events"),
            count("threads"),
            count("streams"),
            size("peak_live_bytes"),
            size("peak_reserved_bytes"),
            float("overhead", 3),
            float("ns_per_event", 1),
            count("ns_per_event_p50"),
            count("ns_per_event_p99"),
            count("ns_per_event_max"),
            float("driver_calls_per_event", 4),
            count("failed_events"),
            size("smallest_pool_bytes"),
            float("smallest_pool_over_live", 3),
        ];
        cells.truncate(columns);
        table.row(cells);
    }
    let mut devices: Vec<_> = reports.iter().filter_map(|report| report["device"].as_str()).collect();
    devices.dedup();
    writeln!(out, "device: {}", devices.join(", "))?;
    table.write(out)?;
    for report in reports {
        let log = report["log"].as_str().unwrap_or_default();
        if let Some(reason) = report["smallest_pool_reason"].as_str() {
            writeln!(out, "{log}: there is no smallest pool: {reason}")?;
        }
        if report["smallest_pool_bytes"].is_number() && report["smallest_pool_monotonic"] == false {
            writeln!(out, "{log}: near the smallest pool there are larger ones in which it fails: take some MiB more")?;
        }
        if let Some(failure) = report["first_failure"].as_str() {
            writeln!(out, "{log}: the first event that failed: {failure}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_named() {
        for text in ["cuda", "async", "pool", "pool:1GiB", "pool:80%"] {
            assert_eq!(resource(text).as_deref(), Ok(text));
        }
        for text in ["", "arena", "pool:", "pool:lots", "cuda:1GiB", "pool:101%"] {
            assert!(resource(text).is_err(), "{text}");
        }
    }
}
