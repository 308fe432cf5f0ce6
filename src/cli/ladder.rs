//! `ladder`: the eleven actions, and which of them a configuration has on.

use std::io::{self, Write};

use super::args::{Format, INVALID, LadderArgs, OK};
use super::check_config::print_json;
use super::table;
use crate::config::{self, Overrides};
use crate::policy::{LadderDocument, Policy, ladder_document};

/// Prints the ladder. Returns the exit code: 0, or 1 when the configuration is invalid.
///
/// Errors: stdout or stderr cannot be written.
pub fn run(args: &LadderArgs, out: &mut impl Write, err: &mut impl Write) -> io::Result<u8> {
    let policy = match &args.config_file {
        None => Policy::default(),
        Some(file) => match config::load(Some(file), &Overrides::default()) {
            Ok(config) => config.policy,
            Err(faults) => {
                faults.iter().try_for_each(|fault| writeln!(err, "{}", fault.about(Some(file))))?;
                return Ok(INVALID);
            }
        },
    };
    let document = ladder_document(|rung| policy.rung(rung).is_some());
    match args.format.format {
        Format::Json => print_json(out, &document)?,
        Format::Table => print_table(&document, out)?,
    }
    Ok(OK)
}

fn print_table(document: &LadderDocument, out: &mut impl Write) -> io::Result<()> {
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let rows: Vec<[String; 6]> = document
        .rungs
        .iter()
        .map(|r| {
            let on = r.why_not.map_or_else(|| yes(r.configured), |why| format!("no: {why}"));
            [r.rank.to_string(), r.action.to_string(), yes(r.self_service), yes(r.broad), on, r.what.to_owned()]
        })
        .collect();
    table::print(out, ["RANK", "ACTION", "SELF-SERVICE", "BROAD", "ON", "WHAT IT DOES"], &rows)
}
