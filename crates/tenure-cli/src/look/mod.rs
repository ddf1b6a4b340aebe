//! `tenure view` and `tenure stats`: what a run left behind, as a page and as tables.
//!
//! ```text
//!   tenure run -o FILE, Report.save    ---\
//!   a log of the logging adaptor (CSV) ----+--> Picture --> page (view), tables or JSON (stats)
//!   memory_snapshot, the OOM report    ---/
//! ```
//!
//! Which of them a file is, its text says. Nothing is loaded: no library, no device.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::Failure;

mod csv;
mod json;
mod page;
mod picture;
mod stats;

use picture::Picture;

#[derive(Debug, Args)]
pub(crate) struct View {
    /// What `python -m tenure run -o FILE` wrote, a log of the logging adaptor, a memory snapshot or an out-of-memory report.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where the page goes; without it, beside the file, with the extension html. `-` is the standard output.
    #[arg(short, long, value_name = "PAGE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// What `python -m tenure run -o FILE` wrote, a log of the logging adaptor, a memory snapshot or an out-of-memory report.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// Writes the page of a file.
pub(crate) fn view(options: &View, out: &mut impl Write) -> Result<(), Failure> {
    let picture = read(&options.file)?;
    let page = page::text(&picture, &options.file.display().to_string());
    let to = match &options.output {
        Some(to) if to.as_os_str() == "-" => {
            out.write_all(page.as_bytes())?;
            return Ok(());
        }
        Some(to) => to.clone(),
        None => options.file.with_extension("html"),
    };
    if to == options.file {
        return Err(Failure::Input(format!(
            "the page would replace {} itself: name another file with -o",
            to.display()
        )));
    }
    std::fs::write(&to, page)
        .map_err(|e| Failure::Input(format!("{} cannot be written ({e}): name another file with -o", to.display())))?;
    writeln!(out, "The page is {}.", to.display())?;
    Ok(())
}

/// Prints the figures of a file.
pub(crate) fn stats(options: &Stats, out: &mut impl Write) -> Result<(), Failure> {
    let picture = read(&options.file)?;
    if options.json { stats::json(&picture, out) } else { stats::print(&picture, out) }
}

/// Reads a file of any of the kinds.
fn read(path: &Path) -> Result<Picture, Failure> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|mut file| file.read_to_end(&mut text))
        .map_err(|e| Failure::Input(format!("{} cannot be read: {e}", path.display())))?;
    let text = String::from_utf8_lossy(&text);
    let start = text.trim_start();
    let read = if start.starts_with('{') {
        json::read(start)
    } else if start.starts_with("Thread,") {
        csv::read(start)
    } else {
        Err("it is neither JSON that tenure wrote nor a log with a line of titles (Thread,Time,Action,...)".to_owned())
    };
    read.map_err(|why| {
        Failure::Input(format!(
            "{} is not what can be shown: {why}; give what `python -m tenure run -o FILE` wrote, a log, a memory snapshot \
             or an out-of-memory report",
            path.display()
        ))
    })
}
