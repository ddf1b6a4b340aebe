//! `tenure stats`: figures, holders and makers as tables, or as JSON.

use std::io::Write;

use serde_json::{Value, json};

use super::picture::{Figure, Holder, Picture, or, size};
use crate::Failure;
use crate::table::Table;

fn groups(picture: &Picture) -> [(&'static str, Vec<(String, Holder)>); 2] {
    [
        ("library", picture.grouped(|holder| or(&holder.library, "the program")).0),
        ("tag", picture.grouped(|holder| or(&holder.tag, "no tag")).0),
    ]
}

/// Prints tables.
pub(crate) fn print(picture: &Picture, out: &mut impl Write) -> Result<(), Failure> {
    for line in &picture.about {
        writeln!(out, "{line}")?;
    }
    let width = picture.figures.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, figure) in &picture.figures {
        writeln!(out, "{name:width$}  {}", figure.text())?;
    }
    for (title, rows) in groups(picture) {
        // One row that is the program itself, or no tag, says nothing that was not said.
        if rows.len() < 2 && !rows.iter().any(|(name, _)| name != "no tag") {
            continue;
        }
        writeln!(out)?;
        let mut table = Table::new(&[title, "at the peak", "live", "blocks", "allocations", "allocated"], 1);
        for (name, row) in rows {
            table.row(vec![
                name,
                size(row.at_peak),
                size(row.live),
                row.live_count.to_string(),
                row.total_count.to_string(),
                size(row.total),
            ]);
        }
        table.write(out)?;
    }
    writeln!(out)?;
    if picture.left_count == 0 {
        writeln!(out, "left: nothing")?;
        return Ok(());
    }
    writeln!(out, "left: {} blocks of {}", picture.left_count, size(picture.left_bytes))?;
    let mut table = Table::new(&["made by", "blocks", "bytes"], 1);
    for (name, count, bytes) in picture.makers() {
        table.row(vec![name, count.to_string(), size(bytes)]);
    }
    table.write(out)?;
    let listed = picture.left.len() as u64;
    if listed < picture.left_count {
        writeln!(out, "of the {listed} largest; the file has no more")?;
    }
    Ok(())
}

/// Prints JSON.
pub(crate) fn json(picture: &Picture, out: &mut impl Write) -> Result<(), Failure> {
    let figures: serde_json::Map<String, Value> = picture
        .figures
        .iter()
        .map(|(name, figure)| {
            let value = match figure {
                Figure::Bytes(n) | Figure::Count(n) => Value::from(*n),
                Figure::Seconds(seconds) => Value::from(*seconds),
            };
            ((*name).to_owned(), value)
        })
        .collect();
    let rows = |rows: Vec<(String, Holder)>| -> Vec<Value> {
        rows.into_iter()
            .map(|(name, row)| {
                json!({
                    "name": name,
                    "at_peak_bytes": row.at_peak,
                    "live_bytes": row.live,
                    "live_count": row.live_count,
                    "peak_bytes": row.peak,
                    "total_bytes": row.total,
                    "total_count": row.total_count,
                })
            })
            .collect()
    };
    let [(_, libraries), (_, tags)] = groups(picture);
    let makers: Vec<Value> = picture
        .makers()
        .into_iter()
        .map(|(name, count, bytes)| json!({"name": name, "blocks": count, "bytes": bytes}))
        .collect();
    let all = json!({
        "kind": picture.kind,
        "about": picture.about,
        "figures": figures,
        "libraries": rows(libraries),
        "tags": rows(tags),
        "left": {"blocks": picture.left_count, "bytes": picture.left_bytes, "makers": makers},
    });
    writeln!(out, "{all:#}")?;
    Ok(())
}
