//! `hangar-medic recovery-metrics`: how often a full restart was spared.

use std::io::{self, Write};

use super::table::Table;
use super::{Format, none, print_json};
use crate::policy::RecoveryMetrics;

/// Prints the metrics.
///
/// # Errors
/// `out` cannot be written.
pub fn print_metrics(out: &mut dyn Write, metrics: &RecoveryMetrics, format: Format) -> io::Result<()> {
    if format == Format::Json {
        return print_json(out, metrics);
    }
    let fraction = metrics.fraction_avoided_full_restart.map_or_else(none, |f| format!("{f:.4}"));
    writeln!(out, "attempts                       {}", metrics.attempts)?;
    writeln!(out, "successful recoveries          {}", metrics.successful_recoveries)?;
    writeln!(out, "avoided full restart           {}", metrics.avoided_full_restart)?;
    writeln!(out, "fraction_avoided_full_restart  {fraction}")?;
    let mut actions = Table::new(&["ACTION", "ATTEMPTS"]);
    metrics.by_action.iter().for_each(|(action, n)| actions.row([action.to_string(), n.to_string()]));
    let mut outcomes = Table::new(&["OUTCOME", "ATTEMPTS"]);
    metrics.by_outcome.iter().for_each(|(outcome, n)| outcomes.row([outcome.to_string(), n.to_string()]));
    for (rows, table) in [(metrics.by_action.len(), actions), (metrics.by_outcome.len(), outcomes)] {
        if rows > 0 {
            writeln!(out)?;
            table.print(out)?;
        }
    }
    Ok(())
}
