//! The page: one self-contained HTML file for any number of reports.
//!
//! Style and script are inside, nothing is fetched, and the page follows the reader's light or dark setting. The charts
//! are SVG and readable without the script; the maps are drawn by it on a canvas, from the same data that the hints
//! under the pointer use. A log takes well under 300 KiB, however long it is.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::Report;
use super::map::MIXED;
use super::series::Point;
use crate::error::human;

pub(crate) const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Streams that have a colour of their own.
const COLOURS: usize = 8;

// The chart's frame, in units of its own.
const WIDTH: f64 = 1080.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 34.0;

/// The page for these reports.
#[must_use]
pub fn page(reports: &[Report]) -> String {
    let mut out = String::with_capacity(64 << 10);
    out.push_str("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    out.push_str("<title>tenure replay</title>\n<style>\n");
    out.push_str(STYLE);
    out.push_str("</style></head><body><main>\n");
    head(&mut out, reports);
    table(&mut out, reports);
    for (at, report) in reports.iter().enumerate() {
        section(&mut out, at, report);
    }
    let data = Value::Array(reports.iter().map(data).collect());
    // `<` inside a script element could end it.
    let data = data.to_string().replace('<', "\\u003c");
    let _ = writeln!(
        out,
        "</main><div id=\"tip\" role=\"status\"></div>\n<script type=\"application/json\" id=\"data\">{data}</script>"
    );
    let _ = writeln!(out, "<script>\n{SCRIPT}</script></body></html>");
    out
}

/// Text as a page may hold it.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

/// The last part of a path: what fits in a table.
fn short(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().filter(|name| !name.is_empty()).unwrap_or(path)
}

/// A number with thin spaces between thousands.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 2);
    for (at, c) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push('\u{2009}');
        }
        out.push(c);
    }
    out
}

fn stream_name(logged: u64) -> String {
    match logged {
        0 => "default".into(),
        1 => "legacy".into(),
        2 => "per-thread".into(),
        other => format!("{other:#x}"),
    }
}

fn head(out: &mut String, reports: &[Report]) {
    let (logs, events) = (reports.len(), reports.iter().map(|r| r.events).sum::<u64>());
    let _ = writeln!(out, "<h1>Replay of {} {}</h1>", logs, if logs == 1 { "log" } else { "logs" });
    if let Some(first) = reports.first() {
        let _ = writeln!(
            out,
            "<p class=\"soft\">{} events on {} against {} ({})</p>",
            grouped(events),
            escaped(&first.device),
            escaped(&first.resource),
            escaped(&first.stack)
        );
    }
    if reports.iter().any(|r| r.simulated) {
        out.push_str(
            "<p class=\"note\">Replayed on the simulated device. Bytes are those of a GPU; times are the host's and say \
             nothing about one.</p>\n",
        );
    }
}

fn table(out: &mut String, reports: &[Report]) {
    out.push_str(
        "<div class=\"scroll\"><table><thead><tr><th>log</th><th>events</th><th>threads</th><th>streams</th>\
         <th>peak live</th><th>peak reserved</th><th>overhead</th><th>holes at the peak</th><th>largest hole</th>\
         <th>ns per event</th><th>driver calls<br>per event</th><th>failed</th></tr></thead><tbody>\n",
    );
    for r in reports {
        let overhead = r.overhead().map_or_else(|| "–".into(), |o| format!("{o:.3}"));
        let times = if r.repeat > 1 {
            format!(
                "{:.0} <span class=\"soft\">(best {:.0}, first {:.0})</span>",
                r.ns_per_event, r.ns_per_event_min, r.ns_per_event_first
            )
        } else {
            format!("{:.0}", r.ns_per_event)
        };
        let _ = writeln!(
            out,
            "<tr><td title=\"{}\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{overhead}</td>\
             <td>{} in {}</td><td>{}</td><td>{times}</td><td>{:.4}</td><td{}>{}</td></tr>",
            escaped(&r.log),
            escaped(short(&r.log)),
            grouped(r.events),
            grouped(r.threads),
            grouped(r.streams),
            human(r.peak_live_bytes),
            human(r.peak_reserved_bytes),
            human(r.map.holes.bytes),
            grouped(r.map.holes.count),
            human(r.map.holes.largest),
            r.driver_calls_per_event(),
            if r.failed_events > 0 { " class=\"bad\"" } else { "" },
            grouped(r.failed_events),
        );
    }
    out.push_str("</tbody></table></div>\n");
}

/// What a reader must know about the log, in sentences.
fn remarks(r: &Report) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut say = |n: u64, text: &str| {
        if n > 0 {
            remarks.push(format!("{} {text}", grouped(n)));
        }
    };
    say(r.left_live, "allocations are live when the log ends; they are freed after it");
    say(r.unknown_frees, "frees of memory that was allocated before the log began are skipped");
    say(r.zero_sized, "requests of no bytes are skipped");
    say(r.overlapping, "allocations are logged at an address that was live");
    say(r.size_mismatches, "frees name another size than their allocation");
    say(r.failures_in_log, "requests had failed when the log was written");
    say(r.failures_served, "of those are served here");
    if let Some(us) = r.duration_us {
        remarks.push(format!("the log covers {:.3} s", us as f64 / 1e6));
    }
    remarks
}

fn section(out: &mut String, at: usize, r: &Report) {
    let _ = writeln!(out, "<section data-log=\"{at}\"><h2>{}</h2>", escaped(&r.log));
    let _ = writeln!(out, "<p class=\"soft\">{}</p>", escaped(&remarks(r).join("; ")));
    if let Some(failure) = &r.first_failure {
        let _ = writeln!(
            out,
            "<p class=\"bad\">{} events failed that had not failed in the log. The first: {}</p>",
            grouped(r.failed_events),
            escaped(failure)
        );
    }
    out.push_str(
        "<h3>Memory over the events</h3><div class=\"legend\"><span><i style=\"background:var(--live)\"></i>live, as asked \
         for</span><span><i style=\"background:var(--reserved)\"></i>reserved by the resource</span></div>\n",
    );
    let drawn = r.series.points.iter().map(|p| p.reserved).max().unwrap_or(0);
    if drawn != 0 && drawn != r.peak_reserved_bytes {
        let _ = writeln!(
            out,
            "<p class=\"soft\">The pictures are of a pass of its own, on a new resource, in which at most {} were reserved; the \
             table counts all timed passes.</p>",
            human(drawn)
        );
    }
    if r.series.points.is_empty() {
        out.push_str("<p class=\"soft\">No event of this log made a call.</p></section>\n");
        return;
    }
    chart(out, r);
    map(out, r);
    out.push_str("</section>\n");
}

/// A step of an axis: 1, 2 or 5 times a power of the base that fits the unit.
fn tick(most: f64, wanted: f64, binary: bool) -> f64 {
    let base = if binary { 1024_f64.powf((most.max(1.0).log2() / 10.0).floor()) } else { 1.0 };
    let raw = (most / base / wanted).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= raw).unwrap_or(10.0 * power);
    (step * base).max(1.0)
}

fn chart(out: &mut String, r: &Report) {
    let points = &r.series.points;
    let most = points.iter().map(|p| p.live.max(p.reserved)).max().unwrap_or(0).max(1) as f64 * 1.04;
    let calls = r.calls.max(1) as f64;
    let x = |event: u64| LEFT + event as f64 / calls * (WIDTH - LEFT - RIGHT);
    let y = |bytes: f64| HEIGHT - BOTTOM - bytes / most * (HEIGHT - TOP - BOTTOM);
    let base = y(0.0);

    let _ = writeln!(
        out,
        "<div class=\"chart\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Live and reserved memory over \
         the events of the log: at most {} live and {} reserved\">",
        human(r.peak_live_bytes),
        human(r.peak_reserved_bytes)
    );
    let step = tick(most, 5.0, true);
    let mut at = 0.0;
    while at <= most {
        let line = y(at);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{line:.1}\" y2=\"{line:.1}\"/><text x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            line + 4.0,
            axis_bytes(at, step)
        );
        at += step;
    }
    let step = tick(calls, 8.0, false);
    let mut at = 0.0;
    while at <= calls {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            x(at as u64),
            HEIGHT - BOTTOM + 18.0,
            grouped(at as u64)
        );
        at += step;
    }
    let _ = writeln!(
        out,
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{base}\" y2=\"{base}\"/>\n<line class=\"peak\" x1=\"{px:.1}\" \
         x2=\"{px:.1}\" y1=\"{TOP}\" y2=\"{base}\"/>",
        WIDTH - RIGHT,
        px = x(r.map.event as u64 + 1)
    );
    let line = |value: fn(&Point) -> u64| {
        let mut path = String::with_capacity(points.len() * 12);
        let mut last = None;
        for (n, p) in points.iter().enumerate() {
            let at = (x(p.event), y(value(p) as f64));
            // A point that moves nothing by a tenth of a unit is not drawn; the last one always is.
            if n + 1 < points.len()
                && last.is_some_and(|(lx, ly): (f64, f64)| (at.0 - lx).abs() < 0.1 && (at.1 - ly).abs() < 0.1)
            {
                continue;
            }
            let _ = write!(path, "{}{:.1} {:.1}", if n == 0 { "M" } else { "L" }, at.0, at.1);
            last = Some(at);
        }
        path
    };
    let live = line(|p| p.live);
    let (first, last) = (x(points[0].event), x(points[points.len() - 1].event));
    let _ = writeln!(
        out,
        "<path class=\"live-area\" d=\"{live}L{last:.1} {base}L{first:.1} {base}Z\"/><path class=\"live-line\" d=\"{live}\"/>\n\
         <path class=\"reserved-line\" d=\"{}\"/>\n<line class=\"cursor\" y1=\"{TOP}\" y2=\"{base}\" x1=\"0\" x2=\"0\"/>\n\
         </svg></div>",
        line(|p| p.reserved)
    );
}

/// A label of the axis: no more digits than the step has.
fn axis_bytes(bytes: f64, step: f64) -> String {
    if bytes == 0.0 {
        return "0".into();
    }
    let mut unit = 0;
    let (mut value, mut step) = (bytes, step);
    while value >= 1024.0 && unit < 4 {
        value /= 1024.0;
        step /= 1024.0;
        unit += 1;
    }
    let digits = if step >= 1.0 && value.fract() < 0.01 { 0 } else { 1 };
    format!("{value:.digits$} {}", ["B", "KiB", "MiB", "GiB", "TiB"][unit])
}

fn map(out: &mut String, r: &Report) {
    let map = &r.map;
    let _ = writeln!(
        out,
        "<h3>Address space at the peak (event {})</h3><p class=\"soft\">{} blocks hold {} of {} reserved; {} {} of 512 bytes or \
         more, {} in all, the largest {}. {}</p>",
        grouped(map.event as u64 + 1),
        grouped(map.live_count),
        human(map.live_bytes),
        human(map.reserved_bytes),
        grouped(map.holes.count),
        if map.holes.count == 1 { "hole" } else { "holes" },
        human(map.holes.bytes),
        human(map.holes.largest),
        if map.exact {
            "Rows are the ranges that the resource has memory behind."
        } else {
            "Rows run from the first block to the last of each stretch of addresses; a gap need not have memory behind it."
        }
    );
    out.push_str("<div class=\"legend\">");
    let mut others = map.blocks.iter().any(|b| b.stream == MIXED);
    for (at, logged) in r.stream_names.iter().enumerate() {
        if !map.blocks.iter().any(|b| b.stream as usize == at) {
            continue;
        }
        if at < COLOURS {
            let _ = write!(
                out,
                "<span><i style=\"background:var(--s{at})\"></i>stream {}</span>",
                escaped(&stream_name(*logged))
            );
        } else {
            others = true;
        }
    }
    if others {
        out.push_str("<span><i style=\"background:var(--mixed)\"></i>other or several streams</span>");
    }
    out.push_str("<span><i style=\"background:var(--hole)\"></i>hole</span></div>\n");
    out.push_str("<canvas class=\"map\" role=\"img\" aria-label=\"Blocks and holes in the address space at the peak\"></canvas>\n");
    out.push_str(
        "<noscript><p class=\"soft\">The map is drawn by a script, which is switched off here.</p></noscript>\n",
    );
}

/// What the script needs of a report.
fn data(r: &Report) -> Value {
    json!({
        "calls": r.calls.max(1),
        "frame": { "left": LEFT, "right": RIGHT, "width": WIDTH },
        "points": r.series.points.iter().flat_map(|p| [p.event, p.live, p.reserved]).collect::<Vec<_>>(),
        "streams": r.stream_names.iter().map(|s| stream_name(*s)).collect::<Vec<_>>(),
        "segments": r.map.segments.iter().map(|s| json!([format!("{:#x}", s.start), s.bytes])).collect::<Vec<_>>(),
        "blocks": r.map.blocks.iter().flat_map(|b| {
            let stream = if b.stream == MIXED { -1 } else { i64::from(b.stream) };
            [json!(b.segment), json!(b.offset), json!(b.bytes), json!(stream), json!(b.count)]
        }).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::map::Map;
    use crate::report::series::Series;
    use crate::trace::LiveBlock;

    fn report(name: &str, events: usize) -> Report {
        let mut series = Series::new(events);
        for at in 0..events {
            let live = ((at * 7919) % 100_000) as u64 * 4096;
            series.event(at, live, || (live + (1 << 20), 1 << 30));
        }
        let blocks = (0..events as u64)
            .map(|n| LiveBlock {
                ptr: 0x3_0200_0000 + n * 8192,
                bytes: 4096 + n % 4096,
                stream: (n % 11) as u16,
                slot: 0,
            })
            .collect();
        Report {
            log: name.into(),
            device: "sim:0".into(),
            simulated: true,
            resource: "pool".into(),
            stack: "pool > cuda".into(),
            events: events as u64,
            calls: events as u64,
            streams: 11,
            stream_names: (0..11).map(|n| n * 0x1000).collect(),
            peak_live_bytes: 5 << 30,
            peak_reserved_bytes: 6 << 30,
            repeat: 1,
            series,
            map: Map::new(events / 2, blocks, vec![], 6 << 30),
            ..Report::default()
        }
    }

    #[test]
    fn a_page_is_one_closed_file_and_small() {
        let html = page(&[report("a.csv", 300_000), report("b.csv", 10)]);
        assert!(html.len() < 2 << 20, "{} bytes", html.len());
        let one = page(&[report("a.csv", 300_000)]);
        assert!(one.len() < 1 << 20, "{} bytes for one long log", one.len());
        for part in ["http://", "https://", "src=", "href=", "@import", "url("] {
            assert!(!html.contains(part), "the page fetches something: {part}");
        }
        assert_eq!(html.matches("<section").count(), 2);
        assert_eq!(html.matches("<svg").count(), 2);
        assert_eq!(html.matches("class=\"map\"").count(), 2);
        assert!(html.contains("simulated device"));
    }

    #[test]
    fn names_cannot_break_out() {
        let html = page(&[report("</script><script>alert(1)</script>\"&", 3)]);
        assert_eq!(html.matches("<script").count(), 2, "the data and the page's own script");
        assert!(html.contains("&lt;/script&gt;&lt;script&gt;alert(1)"));
    }

    #[test]
    fn the_data_is_json_that_says_what_the_report_says() {
        let report = report("a.csv", 5);
        let html = page(std::slice::from_ref(&report));
        let start = html.find("id=\"data\">").unwrap() + "id=\"data\">".len();
        let text = &html[start..start + html[start..].find("</script>").unwrap()];
        let data: Value = serde_json::from_str(text).unwrap();
        assert_eq!(data[0]["points"].as_array().unwrap().len(), 3 * report.series.points.len());
        assert_eq!(data[0]["blocks"].as_array().unwrap().len(), 5 * report.map.blocks.len());
        assert_eq!(data[0]["segments"][0][0], "0x302000000");
    }

    #[test]
    fn failures_are_shown() {
        let mut report = report("a.csv", 5);
        report.failed_events = 3;
        report.first_failure = Some("call 1, allocation of 5 bytes: out of memory".into());
        let html = page(&[report]);
        assert!(html.contains("3 events failed") && html.contains("out of memory"));
    }

    #[test]
    fn a_picture_that_shows_another_peak_than_the_table_says_why() {
        let mut report = report("a.csv", 5);
        assert!(page(std::slice::from_ref(&report)).contains("at most 1.00 GiB were reserved"));
        report.peak_reserved_bytes = 1 << 30;
        assert!(!page(&[report]).contains("of a pass of its own"));
    }

    #[test]
    fn an_empty_report_is_a_page_too() {
        let html = page(&[Report::default()]);
        assert!(html.contains("No event of this log made a call") && html.ends_with("</html>\n"));
        assert!(page(&[]).ends_with("</html>\n"));
    }

    #[test]
    fn labels() {
        assert_eq!(grouped(1_234_567), "1\u{2009}234\u{2009}567");
        assert_eq!(grouped(12), "12");
        assert_eq!(axis_bytes(200.0 * 1048576.0, 100.0 * 1048576.0), "200 MiB");
        assert_eq!(axis_bytes(1.5 * 1073741824.0, 0.5 * 1073741824.0), "1.5 GiB");
        assert_eq!(tick(350.0 * 1048576.0, 5.0, true), 100.0 * 1048576.0);
        assert_eq!(tick(8000.0, 8.0, false), 1000.0);
        assert_eq!(tick(1.0, 8.0, false), 1.0);
    }
}
