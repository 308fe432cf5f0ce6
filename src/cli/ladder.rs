//! `hangar-medic ladder`.

use std::io::{self, Write};

use super::table::Table;
use super::{Format, none, print_json};
use crate::policy::LadderDocument;

/// Prints the ladder as configured.
///
/// # Errors
/// `out` cannot be written.
pub fn print_ladder(out: &mut dyn Write, ladder: &LadderDocument, format: Format) -> io::Result<()> {
    if format == Format::Json {
        return print_json(out, ladder);
    }
    let yes = |is: bool| if is { "yes".to_owned() } else { none() };
    let mut table = Table::new(&["RANK", "ACTION", "SELF", "BROAD", "ON", "WHAT"]);
    for rung in &ladder.rungs {
        let what = rung.why_not.map_or_else(|| rung.what.to_owned(), |why| format!("{} (off: {why})", rung.what));
        table.row([rung.rank.to_string(), rung.action.to_string(), yes(rung.self_service), yes(rung.broad), yes(rung.configured), what]);
    }
    table.print(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Policy, ladder_document};

    #[test]
    fn the_ladder_reads_as_a_table_and_as_the_document() {
        let policy = Policy::default();
        let document = ladder_document(|rung| policy.why_not(rung));
        let print = |format| {
            let mut out = Vec::new();
            print_ladder(&mut out, &document, format).unwrap();
            String::from_utf8(out).unwrap()
        };
        insta::assert_snapshot!("ladder_table", print(Format::Table));
        let json: serde_json::Value = serde_json::from_str(&print(Format::Json)).unwrap();
        assert_eq!(json, serde_json::to_value(&document).unwrap());
        assert_eq!(json["rungs"].as_array().unwrap().len(), 11);
    }
}
