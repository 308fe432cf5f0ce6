//! Rows in aligned columns, for a person.

use std::io::{self, Write};

use super::paint::{Paint, Tone};

/// Columns of a line, at most: what a terminal shows without breaking it.
pub const WIDTH: usize = 80;
/// The last column gets a line of its own rather than fewer columns than this.
const LAST_MIN: usize = 16;

/// A table that prints its columns as wide as they need to be, and breaks its lines at [`WIDTH`].
#[derive(Debug, Clone)]
pub struct Table {
    rows: Vec<Row>,
    paint: Paint,
}

#[derive(Debug, Clone)]
struct Row {
    cells: Vec<String>,
    /// Which cell has a colour.
    tone: Option<(usize, Tone)>,
}

impl Table {
    #[must_use]
    pub fn new(header: &[&str]) -> Self {
        Self::painted(header, Paint::plain())
    }

    /// With colours, where `paint` has any.
    #[must_use]
    pub fn painted(header: &[&str], paint: Paint) -> Self {
        Self { rows: vec![Row { cells: header.iter().map(|h| (*h).to_owned()).collect(), tone: None }], paint }
    }

    /// Control characters in a cell are shown as escapes, so that a hostile name cannot write to the terminal.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(Row { cells: cells.into_iter().map(|cell| visible(&cell)).collect(), tone: None });
    }

    /// A row whose `n`-th cell, not its last, has a colour.
    pub fn toned(&mut self, cells: impl IntoIterator<Item = String>, n: usize, tone: Tone) {
        self.row(cells);
        if let Some(row) = self.rows.last_mut() {
            row.tone = Some((n, tone));
        }
    }

    /// A row that is too wide: its last cell is wrapped; if that leaves too little, it begins a line of its own, and so does
    /// what follows a first cell that is too wide itself (an id is never cut).
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows.iter().map(|r| r.cells.len()).max().unwrap_or(0);
        let width = |n: usize| self.rows.iter().filter_map(|r| r.cells.get(n)).map(|c| c.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let (Some(&last), Some(&first)) = (widths.last(), widths.first()) else { return Ok(()) };
        let before: usize = widths.iter().take(columns - 1).map(|w| w + 2).sum();
        let alone = columns > 2 && before + last > WIDTH && (before > WIDTH || last <= LAST_MIN);
        // What is before the last cell of a line that has all others.
        let (skip, indent) = if alone { (1, before - first) } else { (0, before) };
        let room = WIDTH.saturating_sub(indent);
        let below = last > room && room < LAST_MIN;
        for row in &self.rows {
            if alone {
                writeln!(out, "{}", self.cell(row, 0, 0).trim_end())?;
            }
            let mut line = if alone { "  ".to_owned() } else { String::new() };
            for n in skip..columns.saturating_sub(1) {
                line.push_str(&self.cell(row, n, widths.get(n).copied().unwrap_or(0)));
                line.push_str("  ");
            }
            let text = row.cells.get(columns - 1).map_or("", String::as_str);
            if below {
                writeln!(out, "{}", line.trim_end())?;
                for part in broken(text, WIDTH - 4) {
                    writeln!(out, "    {part}")?;
                }
                continue;
            }
            let mut parts = broken(text, room.max(LAST_MIN)).into_iter();
            writeln!(out, "{}", format!("{line}{}", parts.next().unwrap_or_default()).trim_end())?;
            for part in parts {
                writeln!(out, "{:indent$}{part}", "")?;
            }
        }
        Ok(())
    }

    fn cell(&self, row: &Row, n: usize, width: usize) -> String {
        let text = format!("{:width$}", row.cells.get(n).map_or("", String::as_str));
        match row.tone {
            Some((at, tone)) if at == n => self.paint.of(tone, &text),
            Some(_) | None => text,
        }
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

/// Text in lines of at most `width` characters, broken at spaces; a longer word is cut. Control characters are escaped.
#[must_use]
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    broken(&visible(text), width)
}

/// [`wrapped`], of a text without control characters.
fn broken(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        let mut rest: Vec<char> = word.chars().collect();
        if used > 0 && used + 1 + rest.len() > width {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        while rest.len() > width {
            let tail = rest.split_off(width);
            lines.push(rest.into_iter().collect());
            rest = tail;
        }
        used += rest.len();
        line.extend(rest);
    }
    lines.extend(Some(line).filter(|l| !l.is_empty()));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_at_spaces_and_a_long_word_is_cut() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("a 0123456789ab c", 5), ["a", "01234", "56789", "ab c"]);
        assert_eq!(wrapped("new\nline", 20), ["new\\nline"]);
        assert_eq!(wrapped("  ", 5), [""; 0]);
    }

    fn printed(table: &Table) -> String {
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn no_line_is_wider_than_a_terminal_unless_an_id_is() {
        let mut table = Table::new(&["ID", "WHAT"]);
        table.row(["a".to_owned(), "some words ".repeat(12)]);
        let text = printed(&table);
        assert!(text.lines().count() == 3 && text.lines().all(|l| l.len() <= WIDTH), "{text}");
        assert!(text.lines().nth(2).unwrap().starts_with("    some words"), "{text}");
        let mut table = Table::new(&["ID", "A", "B", "LAST"]);
        table.row(["x".repeat(64), "y".repeat(20), "z".repeat(20), "12".to_owned()]);
        let want = format!("ID\n  {:20}  {:20}  LAST\n{}\n  {}  {}  12\n", "A", "B", "x".repeat(64), "y".repeat(20), "z".repeat(20));
        assert_eq!(printed(&table), want);
        let mut table = Table::new(&["ID", "A", "WHY"]);
        table.row(["x".repeat(30), "y".repeat(36), "because of this and that".to_owned()]);
        let text = printed(&table);
        assert!(text.ends_with("y\n    because of this and that\n"), "{text}");
    }

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
