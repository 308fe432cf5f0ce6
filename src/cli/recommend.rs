//! `hangar-medic recommend`: what to try next.

use std::io::{self, Write};

use super::table::Table;
use super::{Format, print_json};
use crate::policy::Recommendation;

/// Prints a recommendation.
///
/// # Errors
/// `out` cannot be written.
pub fn print_recommendation(out: &mut dyn Write, found: &Recommendation, format: Format) -> io::Result<()> {
    if format == Format::Json {
        return print_json(out, found);
    }
    let next = found.next.map_or("a person", crate::policy::Rung::as_str);
    writeln!(out, "next: {next}\nwhy:  {}\n", found.why)?;
    let mut table = Table::new(&["RANK", "ACTION", "SELF", "BROAD", "PLACE", "WHY"]);
    let yes = |is: bool| if is { "yes" } else { "-" }.to_owned();
    for s in &found.walk {
        table.row([s.rank.to_string(), s.action.to_string(), yes(s.self_service), yes(s.broad), s.place.to_string(), s.why.clone()]);
    }
    table.print(out)
}
