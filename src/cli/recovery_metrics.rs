//! `hangar-medic recovery-metrics`: how often a full restart was spared.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::args::{RecoveryMetricsArgs, StoreArgs};
use super::table::Table;
use super::{Format, none, print_json, store};
use crate::attempt_log::Log;
use crate::policy::{RecoveryFold, RecoveryMetrics};

/// `recovery-metrics` over a store, or over those of every instance: the counts of its index, so any number of attempts fits.
pub async fn run_stored(args: &RecoveryMetricsArgs, config_file: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
    let from = StoreArgs { storage_path: PathBuf::new(), config_file: Some(config_file.to_owned()) };
    let mut fold = RecoveryFold::default();
    store::each(&from, &args.chain, false, async |log: &dyn Log| {
        for ((action, outcome), n) in log.counts().await?.settled {
            fold.add_many(action, outcome, n);
        }
        Ok(())
    })
    .await?;
    Ok(print_metrics(out, &fold.report(), args.format.format)?)
}

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
