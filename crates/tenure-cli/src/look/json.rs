//! What tenure writes as JSON: the report of a run, the memory snapshot, the out-of-memory report.

use serde_json::Value;

use super::picture::{Block, Figure, Follower, Holder, Picture, Point};

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or(0)
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or("").to_owned()
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

fn frame(block: &Value) -> Option<String> {
    block["frames"].as_array()?.first()?.as_str().map(str::to_owned)
}

/// Reads one of them.
pub(crate) fn read(start: &str) -> Result<Picture, String> {
    let value: Value = serde_json::from_str(start).map_err(|e| format!("its JSON is broken ({e})"))?;
    let format = value["format"].as_str().unwrap_or("");
    let version = number(&value, "version");
    if version > 1 {
        return Err(format!("it has version {version} of {format}, and this tenure knows 1"));
    }
    match format {
        "tenure.report" => Ok(report(&value)),
        "tenure.memory_snapshot" => Ok(snapshot(&value)),
        "tenure.oom_report" => Ok(out_of_memory(&value)),
        "" => Err("its JSON has no format".to_owned()),
        other => Err(format!("its JSON has the format {other:?}")),
    }
}

fn block(value: &Value) -> Block {
    let (library, tag) = (text(value, "library"), text(value, "tag"));
    let maker = frame(value).unwrap_or_else(|| match (library.as_str(), tag.as_str()) {
        ("", "") => "the program".to_owned(),
        ("", tag) => format!("tag {tag}"),
        (library, "") => library.to_owned(),
        (library, tag) => format!("{library}, tag {tag}"),
    });
    Block { address: number(value, "address"), size: number(value, "size"), library, tag, maker }
}

fn report(value: &Value) -> Picture {
    let begun = number(value, "begun_ns");
    let mut picture = Picture { kind: "report", ..Picture::default() };
    let program: Vec<&str> = list(value, "program").filter_map(Value::as_str).collect();
    if !program.is_empty() {
        picture.about.push(format!("{} on {}", program.join(" "), text(value, "resource")));
    }
    match value["end"].as_str() {
        Some("running") => {
            picture.about.push("the program had not ended: the figures are those of a moment before".to_owned());
        }
        Some(end) if end != "exit" => picture.about.push(format!("it ended by {end}")),
        _ => {}
    }
    for library in list(value, "enabled").filter(|library| library["state"] == "failed") {
        picture.about.push(format!("{} was not turned on", text(library, "library")));
    }
    picture.holders = list(value, "holders")
        .map(|holder| Holder {
            library: text(holder, "library"),
            tag: text(holder, "tag"),
            live: number(holder, "live_bytes"),
            live_count: number(holder, "live_count"),
            peak: number(holder, "peak_bytes"),
            at_peak: number(holder, "at_peak_bytes"),
            total: number(holder, "total_bytes"),
            total_count: number(holder, "total_count"),
        })
        .collect();
    picture.timeline = list(value, "timeline")
        .map(|point| Point {
            time: number(point, "time_ns").saturating_sub(begun),
            live: number(point, "live_bytes"),
            reserved: number(point, "reserved_bytes"),
            held: list(point, "held").filter_map(Value::as_u64).collect(),
        })
        .collect();
    picture.left = list(value, "left").map(block).collect();
    (picture.left_count, picture.left_bytes) = (number(value, "live_count"), number(value, "live_bytes"));
    let seconds = |field: &str| Figure::Seconds(number(value, field) as f64 / 1e9);
    let driver = list(value, "devices").map(|device| number(device, "peak_used_bytes")).sum();
    let calls = number(value, "allocate_calls") + number(value, "free_calls");
    picture.figures = vec![
        ("seconds", Figure::Seconds(number(value, "time_ns").saturating_sub(begun) as f64 / 1e9)),
        ("peak live", Figure::Bytes(number(value, "peak_live_bytes"))),
        ("peak reserved", Figure::Bytes(number(value, "peak_reserved_bytes").max(number(value, "reserved_bytes")))),
        ("the driver's peak, all processes", Figure::Bytes(driver)),
        ("allocations", Figure::Count(picture.holders.iter().map(|holder| holder.total_count).sum())),
        ("allocated", Figure::Bytes(picture.holders.iter().map(|holder| holder.total).sum())),
        ("time spent in allocations", seconds("allocate_ns")),
        ("time spent in frees", seconds("free_ns")),
        ("calls", Figure::Count(calls)),
    ];
    picture
}

/// The live blocks of a snapshot, as holders that have what they have.
fn holders(blocks: &[Block]) -> Vec<Holder> {
    let mut all: Vec<Holder> = Vec::new();
    for block in blocks {
        let at = all.iter().position(|holder| holder.library == block.library && holder.tag == block.tag);
        let at = at.unwrap_or_else(|| {
            all.push(Holder { library: block.library.clone(), tag: block.tag.clone(), ..Holder::default() });
            all.len() - 1
        });
        let holder = &mut all[at];
        holder.live += block.size;
        holder.live_count += 1;
        (holder.peak, holder.at_peak) = (holder.live, holder.live);
        (holder.total, holder.total_count) = (holder.live, holder.live_count);
    }
    all
}

/// What resources have, each byte once: what a pool took of its upstream is that pool's.
fn of_resources(value: &Value) -> Vec<(&'static str, Figure)> {
    let sum = |field: &str| list(value, "resources").map(|resource| number(resource, field)).max().unwrap_or(0);
    vec![("most reserved by a resource", Figure::Bytes(sum("reserved_bytes")))]
}

fn blocks_of(value: &Value) -> Vec<Block> {
    let mut blocks: Vec<Block> = list(value, "blocks").filter(|block| block["held_by"].is_null()).map(block).collect();
    blocks.sort_by(|a, b| b.size.cmp(&a.size).then(a.address.cmp(&b.address)));
    blocks
}

fn snapshot(value: &Value) -> Picture {
    let blocks = blocks_of(value);
    let mut follower = Follower::default();
    let mut begun = None;
    for event in list(value, "events") {
        let time = number(event, "time_ns");
        let time = time.saturating_sub(*begun.get_or_insert(time));
        match event["action"].as_str() {
            Some("allocate") => {
                let (address, size) = (number(event, "address"), number(event, "size"));
                follower.allocate(time, address, size, "", &text(event, "tag"));
            }
            Some("free") => {
                follower.free(time, number(event, "address"));
            }
            _ => {}
        }
    }
    let (followed, peak) = follower.end();
    let mut picture = Picture { kind: "snapshot", ..Picture::default() };
    picture.about.push(format!("a snapshot of process {}", number(value, "pid")));
    (picture.left_count, picture.left_bytes) = (blocks.len() as u64, blocks.iter().map(|block| block.size).sum());
    picture.figures = vec![("live", Figure::Bytes(picture.left_bytes)), ("blocks", Figure::Count(picture.left_count))];
    picture.figures.extend(of_resources(value));
    if followed.timeline.is_empty() {
        picture.holders = holders(&blocks);
    } else {
        // What was out before is in the blocks, and not in the events.
        picture.figures.push(("peak live of what was recorded", Figure::Bytes(peak)));
        (picture.holders, picture.timeline) = (followed.holders, followed.timeline);
    }
    picture.left = blocks;
    picture
}

fn out_of_memory(value: &Value) -> Picture {
    let blocks = blocks_of(value);
    let mut picture = Picture { kind: "out of memory", ..Picture::default() };
    picture.about.push(text(value, "message"));
    picture.about.extend(list(value, "notes").filter_map(Value::as_str).map(str::to_owned));
    picture.figures = vec![
        ("requested", Figure::Bytes(number(value, "requested"))),
        ("live", Figure::Bytes(number(value, "live"))),
        ("reserved", Figure::Bytes(number(value, "reserved"))),
        ("cached", Figure::Bytes(number(value, "cached"))),
        ("free on the device", Figure::Bytes(number(value, "driver_free"))),
        ("of the device", Figure::Bytes(number(value, "driver_total"))),
    ];
    picture.holders = holders(&blocks);
    (picture.left_count, picture.left_bytes) = (blocks.len() as u64, blocks.iter().map(|block| block.size).sum());
    picture.left = blocks;
    picture
}
