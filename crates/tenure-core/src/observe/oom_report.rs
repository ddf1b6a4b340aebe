//! The report of a failure, as files: `TENURE_OOM_REPORT=dir`.
//!
//! ```text
//!   dir/tenure-oom-PID-1.json    the error, its notes, the holders, and a snapshot of memory
//!   dir/tenure-oom-PID-1.html    the same for people, in one self-contained page
//! ```
//!
//! At most [`MOST`] reports a process, so that a program which lives with failures does not fill a disk; what is wrong with
//! the folder is logged once and fails nobody. The variable is read at each failure.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::notes::{Finding, stream_name};
use super::snapshot::{Layer, Seen};
use crate::error::{OutOfMemory, human};
use crate::report::{STYLE, escaped};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Reports of one process at most.
const MOST: u64 = 16;
const VARIABLE: &str = "TENURE_OOM_REPORT";
/// Blocks that are listed in the JSON, and on the page: the largest.
const LISTED: usize = 100_000;
const SHOWN: usize = 200;
/// Holders that are listed.
const HOLDERS: usize = 1000;

/// Writes the report where one is wanted.
pub(super) fn write(oom: &OutOfMemory, finding: &Finding) {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    static COMPLAINED: AtomicBool = AtomicBool::new(false);
    let Some(folder) = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) else { return };
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed) + 1;
    if number > MOST {
        WRITTEN.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let folder = Path::new(&folder);
    let name = format!("tenure-oom-{}-{number}", std::process::id());
    let mut blocks: Vec<&Seen> = finding.picture.blocks.iter().collect();
    blocks.sort_by_key(|seen| std::cmp::Reverse(seen.block.bytes));
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| {
            let report = to_json(oom, finding, &blocks);
            let text = serde_json::to_string_pretty(&report)?;
            std::fs::write(folder.join(format!("{name}.json")), text)
        })
        .and_then(|()| std::fs::write(folder.join(format!("{name}.html")), page(oom, finding, &blocks)));
    if let Err(error) = written
        && !COMPLAINED.swap(true, Ordering::Relaxed)
    {
        log::warn!("tenure: no report of an out-of-memory error could be written to {}: {error}", folder.display());
    }
}

fn to_json(oom: &OutOfMemory, finding: &Finding, blocks: &[&Seen]) -> Value {
    let holders: Vec<Value> = finding
        .holders
        .iter()
        .take(HOLDERS)
        .map(|holder| {
            json!({
                "name": holder.name,
                "bytes": holder.bytes,
                "blocks": holder.blocks,
                "stream": holder.stream,
                "line": holder.line,
            })
        })
        .collect();
    json!({
        "format": "tenure.oom_report",
        "version": 1,
        "time_ns": super::history::now(),
        "pid": std::process::id(),
        "message": oom.to_string(),
        "notes": oom.notes,
        "advice": finding.advice,
        "requested": oom.requested,
        "live": oom.live,
        "reserved": oom.reserved,
        "cached": oom.cached,
        "unproven": oom.unproven,
        "limit": oom.limit,
        "largest_free": oom.largest_free,
        "driver_free": oom.driver_free,
        "driver_total": oom.driver_total,
        "resource": oom.resource,
        "asked": oom.asked,
        "device": finding.device,
        "pending": oom.pending.iter().map(|p| json!({"stream": p.stream, "bytes": p.bytes})).collect::<Vec<_>>(),
        "tried": oom.tried.iter().map(|t| json!({"step": t.step, "outcome": t.outcome})).collect::<Vec<_>>(),
        "holders": holders,
        "resources": finding.picture.layers.iter().map(Layer::json).collect::<Vec<_>>(),
        "blocks": blocks.iter().take(LISTED).map(|seen| seen.json()).collect::<Vec<_>>(),
        "blocks_left_out": blocks.len().saturating_sub(LISTED),
    })
}

fn page(oom: &OutOfMemory, finding: &Finding, blocks: &[&Seen]) -> String {
    let mut out = String::with_capacity(32 << 10);
    out.push_str("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    let _ = write!(out, "<title>tenure: out of memory</title>\n<style>\n{STYLE}</style></head><body><main>\n");
    let _ = writeln!(out, "<h1>Out of memory</h1>\n<p class=\"note\">{}</p>\n<ul>", escaped(&oom.to_string()));
    for note in &oom.notes {
        let _ = writeln!(out, "<li>{}</li>", escaped(note));
    }
    out.push_str("</ul>\n<h2>Who holds memory</h2>\n");
    let rows = finding.holders.iter().take(SHOWN).map(|holder| {
        [
            escaped(&holder.name),
            human(holder.bytes),
            holder.blocks.to_string(),
            stream_name(holder.stream),
            escaped(&holder.line),
        ]
    });
    table(&mut out, ["holder", "bytes", "blocks", "stream", "allocated at"], rows);
    out.push_str("<h2>Resources</h2>\n");
    for layer in &finding.picture.layers {
        resource(&mut out, layer);
    }
    let _ = writeln!(out, "<h2>The largest of {} live blocks</h2>", blocks.len());
    let rows = blocks.iter().take(SHOWN).map(|seen| {
        let entry = seen.entry.as_ref();
        [
            format!("{:#x}", seen.block.ptr),
            human(seen.block.bytes as u64),
            stream_name(seen.stream),
            format!("#{:x}", seen.block.owner),
            escaped(&entry.map_or_else(String::new, |entry| entry.who.tag.name())),
            escaped(entry.and_then(|entry| entry.stack.as_deref()).map_or("", |stack| stack.top())),
        ]
    });
    table(&mut out, ["address", "bytes", "stream", "resource", "tag", "allocated at"], rows);
    out.push_str("</main></body></html>\n");
    out
}

fn table<const N: usize>(out: &mut String, head: [&str; N], rows: impl Iterator<Item = [String; N]>) {
    out.push_str("<div class=\"scroll\"><table><thead><tr>");
    for name in head {
        let _ = write!(out, "<th>{name}</th>");
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = write!(out, "<td>{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

/// A resource's figures, and its ranges as a bar: what is free is light.
fn resource(out: &mut String, layer: &Layer) {
    let _ = writeln!(out, "<h3>{} (#{:x})</h3>", escaped(&layer.stack), layer.id);
    if let Some(info) = &layer.info {
        let _ = writeln!(
            out,
            "<p class=\"soft\">live {} in {} blocks, cached {}, reserved {}, largest free {}</p>",
            human(info.live_bytes),
            info.live_count,
            human(info.cached_bytes),
            human(info.reserved_bytes),
            human(info.largest_free_bytes)
        );
    }
    let all: u64 = layer.ranges.iter().map(|(_, bytes)| bytes).sum();
    if all == 0 {
        return;
    }
    out.push_str(
        "<svg viewBox=\"0 0 1000 24\" width=\"100%\" height=\"24\" role=\"img\" preserveAspectRatio=\"none\">",
    );
    out.push_str("<rect width=\"1000\" height=\"24\" fill=\"currentColor\" opacity=\"0.55\"/>");
    let mut before = 0u64;
    let mut free = layer.free.iter().peekable();
    let scale = 1000.0 / all as f64;
    for (start, bytes) in &layer.ranges {
        while let Some((at, gap)) = free.next_if(|(at, _)| *at < start.saturating_add(*bytes)) {
            let x = (before + at.saturating_sub(*start)) as f64 * scale;
            let _ = write!(
                out,
                "<rect x=\"{x:.3}\" width=\"{:.3}\" height=\"24\" fill=\"Canvas\" opacity=\"0.9\"/>",
                *gap as f64 * scale
            );
        }
        before += bytes;
    }
    out.push_str("</svg>\n");
}
