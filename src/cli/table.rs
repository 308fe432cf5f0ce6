//! Tables for a person: aligned columns, two spaces apart.

use std::io::{self, Write};

/// Prints `rows` under `head`. Control characters of a cell are shown as escapes: some cells hold upstream text.
///
/// Errors: `out` cannot be written.
pub fn print<const N: usize>(out: &mut impl Write, head: [&str; N], rows: &[[String; N]]) -> io::Result<()> {
    let head = head.map(str::to_owned);
    let lines: Vec<[String; N]> = std::iter::once(&head).chain(rows).map(|row| row.each_ref().map(|c| shown(c))).collect();
    let mut widths = [0; N];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for line in &lines {
        let cells = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

fn shown(cell: &str) -> String {
    if cell.is_empty() {
        return "-".to_owned();
    }
    cell.chars().flat_map(|c| if c.is_control() { c.escape_debug().collect::<Vec<_>>() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_aligned_and_nothing_breaks_a_line() {
        let mut out = Vec::new();
        let row = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
        super::print(&mut out, ["NAME", "WHY"], &[row("é", "a\nb\u{1b}[31m"), row("longer", "")]).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "NAME    WHY\né       a\\nb\\u{1b}[31m\nlonger  -\n");
    }
}
