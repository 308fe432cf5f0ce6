//! Rows in aligned columns, for a person.

use std::io::{self, Write};

/// A table that prints its columns as wide as they need to be.
#[derive(Debug, Clone)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    #[must_use]
    pub fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(|h| (*h).to_owned()).collect()] }
    }

    /// Control characters in a cell are shown as escapes, so that a hostile name cannot write to the terminal.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| visible(&cell)).collect());
    }

    /// # Errors
    /// `out` cannot be written.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> =
            (0..columns).map(|n| self.rows.iter().filter_map(|r| r.get(n)).map(|c| c.chars().count()).max().unwrap_or(0)).collect();
        for row in &self.rows {
            let line: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(out, "{}", line.join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// Text with its control characters written as escapes.
#[must_use]
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_nothing_hostile_gets_through() {
        let mut table = Table::new(&["A", "SECOND", "C"]);
        table.row(["long cell".to_owned(), "é".to_owned(), String::new()]);
        table.row(["x\n\u{1b}[31m\u{9b}".to_owned(), "y".to_owned(), "z".to_owned()]);
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        let want = "\
A                    SECOND  C
long cell            é
x\\n\\u{1b}[31m\\u{9b}  y       z
";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}
