//! Tables for people: columns that line up, text to the left and figures to the right.

use std::io::{self, Write};

/// Rows of text under titles.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    text_columns: usize,
}

impl Table {
    /// An empty table; the first `text_columns` columns are text.
    pub(crate) fn new(titles: &[&str], text_columns: usize) -> Self {
        Self { rows: vec![titles.iter().map(|&title| title.to_owned()).collect()], text_columns }
    }

    /// Adds a row, which has as many cells as there are titles.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Writes it, with two spaces between columns and none at the end of a line.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                line += &if column < self.text_columns {
                    format!("{gap}{cell:<width$}")
                } else {
                    format!("{gap}{cell:>width$}")
                };
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["log", "events"], 1);
        table.row(vec!["a.csv".into(), "7".into()]);
        table.row(vec!["ö".into(), "12345678".into()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "log      events\na.csv         7\nö      12345678\n");
    }
}
