//! `tenure view`: a page that needs nothing else. Pictures are SVG, and what lies under the pointer tells itself in titles.

use std::fmt::Write as _;

use super::picture::{Picture, Point, or, size};

const STYLE: &str = "
:root{color-scheme:light dark;--bg:#fff;--ink:#1c2127;--soft:#5b6672;--line:#d9dee4}
@media(prefers-color-scheme:dark){:root{--bg:#14181d;--ink:#e4e8ec;--soft:#9aa5b1;--line:#333b45}}
body{background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif;max-width:1060px;margin:2em auto;padding:0 1em}
table{border-collapse:collapse;margin:.5em 0 1.5em}td,th{padding:.15em .9em .15em 0;border-bottom:1px solid var(--line);text-align:right}
td:first-child,th:first-child{text-align:left;overflow-wrap:anywhere}th{color:var(--soft);font-weight:500}
svg{width:100%;height:auto}text{fill:var(--soft);font-size:12px}.key{display:inline-block;width:.8em;height:.8em;margin-right:.5em}
";
const COLOURS: [&str; 8] = ["#2f6fb7", "#2a9072", "#8458b3", "#b58a00", "#c2467c", "#3399aa", "#7a6a55", "#5f8f2f"];
const REST: &str = "#8b949e";
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 300.0;
/// Rows of a table at most.
const ROWS: usize = 200;

/// Text that means itself in HTML and in an attribute.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn colour(at: usize) -> &'static str {
    COLOURS.get(at).copied().unwrap_or(REST)
}

/// The area between two lines over time, as steps from point to point.
fn area(out: &mut String, xs: &[f64], lower: &[f64], upper: &[f64], colour: &str, title: &str) {
    let _ = write!(out, "<path fill=\"{colour}\" d=\"M{:.1} {:.1}", xs[0], upper[0]);
    for (x, y) in xs.iter().zip(upper).skip(1) {
        let _ = write!(out, "H{x:.1}V{y:.1}");
    }
    let last = xs.len() - 1;
    let _ = write!(out, "V{:.1}", lower[last]);
    for at in (0..last).rev() {
        let _ = write!(out, "H{:.1}V{:.1}", xs[at], lower[at]);
        let _ = write!(out, "V{:.1}", lower[at]);
    }
    let _ = write!(out, "Z\"><title>{}</title></path>", escaped(title));
}

/// What was live over time, one band for each holder, and what was reserved as a line over it.
fn timeline(out: &mut String, picture: &Picture) {
    let points: Vec<&Point> = picture.timeline.iter().collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
    let (title, names, whose) = picture.series();
    let most = points.iter().map(|point| point.live.max(point.reserved)).max().unwrap_or(0).max(1);
    let span = last.time.saturating_sub(first.time).max(1);
    let x = |time: u64| time.saturating_sub(first.time) as f64 / span as f64 * WIDTH;
    let y = |bytes: u64| HEIGHT - bytes as f64 / most as f64 * HEIGHT;
    let mut xs: Vec<f64> = points.iter().map(|point| x(point.time)).collect();
    if xs.len() == 1 {
        // One moment is a bar.
        xs.push(WIDTH);
    }
    let shown: Vec<&Point> = points.iter().copied().chain((points.len() == 1).then_some(*last)).collect();
    let _ =
        write!(out, "<h2>Over time, by {title}</h2><svg viewBox=\"0 -14 {WIDTH} {:.0}\" role=\"img\">", HEIGHT + 34.0);
    let bands = names.len().min(COLOURS.len() + 1);
    let mut sums = vec![0u64; shown.len()];
    for (band, (name, _)) in names.iter().enumerate().take(bands) {
        let lower: Vec<f64> = sums.iter().map(|sum| y(*sum)).collect();
        for (sum, point) in sums.iter_mut().zip(&shown) {
            for (at, held) in point.held.iter().enumerate() {
                // What has no colour of its own is the last band's.
                if whose.get(at).is_some_and(|at| (*at).min(bands - 1) == band) {
                    *sum = sum.saturating_add(*held);
                }
            }
        }
        let upper: Vec<f64> = sums.iter().map(|sum| y(*sum)).collect();
        let name = if band == COLOURS.len() { "others" } else { name };
        area(out, &xs, &lower, &upper, colour(band), name);
    }
    if shown.iter().any(|point| point.reserved != 0) {
        let _ = write!(
            out,
            "<path fill=\"none\" stroke=\"currentColor\" stroke-dasharray=\"4 3\" d=\"M{:.1} {:.1}",
            xs[0],
            y(shown[0].reserved)
        );
        for (x, point) in xs.iter().zip(&shown).skip(1) {
            let _ = write!(out, "H{x:.1}V{:.1}", y(point.reserved));
        }
        out.push_str("\"><title>reserved</title></path>");
    }
    let _ = write!(
        out,
        "<text x=\"2\" y=\"-3\">{}</text><text x=\"2\" y=\"{:.0}\">0 s</text><text x=\"{WIDTH}\" y=\"{:.0}\" \
         text-anchor=\"end\">{:.3} s</text></svg><p>",
        size(most),
        HEIGHT + 16.0,
        HEIGHT + 16.0,
        span as f64 / 1e9
    );
    for (band, (name, _)) in names.iter().enumerate().take(bands) {
        let name = if band == COLOURS.len() { "others" } else { name };
        let _ =
            write!(out, "<span class=\"key\" style=\"background:{}\"></span>{} &#160; ", colour(band), escaped(name));
    }
    out.push_str("dashed: reserved</p>");
}

/// Who made what is out, as one bar whose parts are as wide as they have bytes.
fn makers(out: &mut String, picture: &Picture) {
    let makers = picture.makers();
    let all: u64 = makers.iter().map(|maker| maker.2).sum();
    let _ = write!(out, "<h2>Out at the end: {} blocks of {}</h2>", picture.left_count, size(picture.left_bytes));
    if all == 0 {
        return;
    }
    let _ = write!(out, "<svg viewBox=\"0 0 {WIDTH} 40\" role=\"img\">");
    let mut x = 0.0;
    for (at, (name, count, bytes)) in makers.iter().enumerate().take(ROWS) {
        let wide = *bytes as f64 / all as f64 * WIDTH;
        let _ = write!(
            out,
            "<rect x=\"{x:.1}\" y=\"0\" width=\"{wide:.1}\" height=\"40\" fill=\"{}\"><title>{}: {} in {count}</title></rect>",
            colour(at),
            escaped(name),
            size(*bytes)
        );
        x += wide;
    }
    out.push_str("</svg><table><tr><th>made by</th><th>blocks</th><th>bytes</th></tr>");
    for (name, count, bytes) in makers.iter().take(ROWS) {
        let _ = write!(out, "<tr><td>{}</td><td>{count}</td><td>{}</td></tr>", escaped(name), size(*bytes));
    }
    out.push_str("</table><h2>The largest blocks</h2><table><tr><th>address</th><th>bytes</th><th>library</th><th>tag</th><th>made by</th></tr>");
    for block in picture.left.iter().take(ROWS) {
        let _ = write!(
            out,
            "<tr><td>{:#x}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            block.address,
            size(block.size),
            escaped(&block.library),
            escaped(&block.tag),
            escaped(&block.maker)
        );
    }
    out.push_str("</table>");
}

/// The page.
pub(crate) fn text(picture: &Picture, name: &str) -> String {
    let mut out = format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>tenure: {0}</title><style>{STYLE}</style></head>\
         <body><h1>{0}</h1>",
        escaped(name)
    );
    for line in &picture.about {
        let _ = write!(out, "<p>{}</p>", escaped(line));
    }
    out.push_str("<table>");
    for (name, figure) in &picture.figures {
        let _ = write!(out, "<tr><td>{name}</td><td>{}</td></tr>", figure.text());
    }
    out.push_str("</table>");
    timeline(&mut out, picture);
    for (title, rows) in [
        ("library", picture.grouped(|holder| or(&holder.library, "the program")).0),
        ("tag", picture.grouped(|holder| or(&holder.tag, "no tag")).0),
    ] {
        let _ = write!(
            out,
            "<h2>By {title}</h2><table><tr><th>{title}</th><th>at the peak</th><th>live</th><th>allocations</th><th>allocated</th></tr>"
        );
        for (name, row) in rows.iter().take(ROWS) {
            let _ = write!(
                out,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escaped(name),
                size(row.at_peak),
                size(row.live),
                row.total_count,
                size(row.total)
            );
        }
        out.push_str("</table>");
    }
    makers(&mut out, picture);
    out.push_str("</body></html>\n");
    out
}
