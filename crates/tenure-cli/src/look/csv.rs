//! Logs of the logging adaptor, tenure's and RMM's: one row for each allocation and free.

use super::picture::{Figure, Follower, Picture};

/// A row's number, also as `0x...`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Nanoseconds of a time of day such as `10:00:00.000001`.
fn time_of_day(text: &str) -> Option<u64> {
    let mut parts = text.split(':');
    let (hours, minutes, seconds) = (parts.next()?, parts.next()?, parts.next()?);
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let fraction: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let whole = hours.parse::<u64>().ok()? * 3600 + minutes.parse::<u64>().ok()? * 60 + whole.parse::<u64>().ok()?;
    Some(whole * 1_000_000_000 + fraction.parse::<u64>().ok()?)
}

/// Reads a log.
pub(crate) fn read(text: &str) -> Result<Picture, String> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    let titles = reader.headers().map_err(|e| e.to_string())?.clone();
    let column = |name: &str| titles.iter().position(|title| title == name);
    let needed = |name: &str| column(name).ok_or_else(|| format!("its line of titles has no {name}"));
    let (action, pointer, size) = (needed("Action")?, needed("Pointer")?, needed("Size")?);
    let (time, nanoseconds, tag) = (column("Time"), column("Nanoseconds"), column("Tag"));

    let mut follower = Follower::default();
    let (mut rows, mut failures, mut unknown) = (0u64, 0u64, 0u64);
    let (mut start, mut last, mut day) = (None, 0u64, 0u64);
    for (at, row) in reader.records().enumerate() {
        let line = at + 2;
        let row = row.map_err(|e| format!("line {line}: {e}"))?;
        let field = |column: usize| row.get(column).unwrap_or("");
        let wrong =
            |name: &str, column: usize| format!("line {line} has {:?} where its {name} should be", field(column));
        let when = nanoseconds.and_then(|column| number(field(column)));
        let when = when.or_else(|| {
            let mut when = time.and_then(|column| time_of_day(field(column)))? + day;
            if when + 43_200_000_000_000 < last {
                // Past midnight.
                day += 86_400_000_000_000;
                when += 86_400_000_000_000;
            }
            Some(when)
        });
        // Where a row has no time, rows follow one another.
        let when = when.unwrap_or(last + 1);
        last = last.max(when);
        let when = when.saturating_sub(*start.get_or_insert(when));
        rows += 1;
        let address = number(field(pointer));
        match field(action) {
            "allocate" => {
                let address = address.ok_or_else(|| wrong("Pointer", pointer))?;
                let size = number(field(size)).ok_or_else(|| wrong("Size", size))?;
                follower.allocate(when, address, size, "", tag.map_or("", field));
            }
            "free" | "deallocate" => {
                let address = address.ok_or_else(|| wrong("Pointer", pointer))?;
                unknown += u64::from(!follower.free(when, address) && address != 0);
            }
            "allocate failure" => failures += 1,
            other => return Err(format!("line {line} has the action {other:?}")),
        }
    }
    let (mut picture, peak) = follower.end();
    picture.kind = "log";
    picture.about.push(format!("a log of {rows} rows"));
    picture.figures = vec![
        ("seconds", Figure::Seconds(last.saturating_sub(start.unwrap_or(last)) as f64 / 1e9)),
        ("peak live", Figure::Bytes(peak)),
        ("allocations", Figure::Count(picture.holders.iter().map(|holder| holder.total_count).sum())),
        ("allocated", Figure::Bytes(picture.holders.iter().map(|holder| holder.total).sum())),
        ("failed allocations", Figure::Count(failures)),
        ("frees of unknown blocks", Figure::Count(unknown)),
    ];
    Ok(picture)
}
