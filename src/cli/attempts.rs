//! `hangar-medic attempts list` and `attempts verify`.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use anyhow::{Context, bail};
use serde::Serialize;

use super::args::{AttemptsExportArgs, AttemptsListArgs, AttemptsVerifyArgs, INVALID, OK, StoreArgs};
use super::progress::{Bytes, Counted, Meter};
use super::table::Table;
use super::{Format, print_json, store};
use crate::attempt_log::{Head, LIST_LIMIT, Log, Store, VerifyReport, verify_export};
use crate::server::views::AttemptView;

/// Prints attempts, one a line, oldest first.
///
/// # Errors
/// `out` cannot be written.
pub fn print_attempts(out: &mut dyn Write, attempts: &[AttemptView], format: Format) -> io::Result<()> {
    #[derive(Serialize)]
    struct Document<'a> {
        attempts: &'a [AttemptView],
    }
    if format == Format::Json {
        return print_json(out, &Document { attempts });
    }
    if attempts.is_empty() {
        return writeln!(out, "no attempts");
    }
    let several = attempts.iter().any(|a| attempts.first().is_some_and(|first| first.instance != a.instance));
    let columns = ["INSTANCE", "ATTEMPT", "ACTION", "OUTCOME", "STARTED", "WHY"];
    let skipped = usize::from(!several);
    let mut table = Table::new(columns.get(skipped..).unwrap_or_default());
    for a in attempts {
        let outcome = a.outcome.map_or_else(|| "open".to_owned(), |o| o.to_string());
        let started = a.started_at.strftime("%m-%d %H:%MZ").to_string();
        let cells = [a.instance.clone(), a.attempt_id.clone(), a.action.to_string(), outcome, started, a.reason.clone()];
        table.row(cells.into_iter().skip(skipped));
    }
    table.print(out)
}

/// Checks the hash chains of a store, or of an export, and prints what was found. Returns the exit code: 0 whole, 1 not.
pub async fn verify(args: &AttemptsVerifyArgs, out: &mut dyn Write) -> anyhow::Result<u8> {
    let mut code = OK;
    let mut tell = |report: VerifyReport| -> anyhow::Result<()> {
        match args.format.format {
            Format::Json => print_json(out, &report)?,
            Format::Table => print_report(out, &report)?,
        }
        code = if report.fault.is_none() { code } else { INVALID };
        Ok(())
    };
    if let Some(file) = &args.file {
        let reports = verify_file(file, args.head.as_ref())?;
        if args.head.is_some() && reports.len() > 1 {
            anyhow::bail!("--head is the end of one chain, and {} has {}", file.display(), reports.len());
        }
        reports.into_iter().try_for_each(&mut tell)?;
        return Ok(code);
    }
    store::each(&args.store, &args.chain, true, async |log: &dyn Log| {
        let mut meter = Meter::new("verified");
        let mut report = log.verify(&mut |progress| meter.at(progress.done, progress.total)).await?;
        if let (None, Some(head)) = (&report.fault, &args.head) {
            report.fault = report.end_fault(head);
        }
        tell(report)
    })
    .await?;
    Ok(code)
}

/// Prints the attempts of a store. Asks no daemon.
pub async fn list_stored(args: &AttemptsListArgs, config_file: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
    let from = StoreArgs { storage_path: std::path::PathBuf::new(), config_file: Some(config_file.to_owned()) };
    let found = store::attempts(&from, &args.chain, args.incident.as_deref(), LIST_LIMIT).await?;
    let found: Vec<AttemptView> = found.iter().map(AttemptView::from).collect();
    Ok(print_attempts(out, &found, args.format.format)?)
}

/// Writes chains as JSON Lines, each whole before the next.
pub async fn export(args: &AttemptsExportArgs, out: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    store::each(&args.store, &args.chain, false, async |log: &dyn Log| {
        log.export(&mut *out).await?;
        Ok(())
    })
    .await
}

/// Lets the daemon begin with an empty log where a damaged one is kept aside.
///
/// # Errors
/// There is a store, or none is kept aside; the store is on a server.
pub fn begin_anew(args: &StoreArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (storage, _) = store::place(args)?;
    if storage.postgres.is_set() {
        bail!("a store on a PostgreSQL server is begun anew by dropping its schema hangar_medic");
    }
    let aside = Store::begin_anew(&storage.path)?;
    writeln!(out, "an empty attempt log begins; the damaged one stays in {}", aside.display())?;
    writeln!(out, "not known any more: hold orders, pauses, approvals, budgets, attempts; hold again what must stay stopped")?;
    Ok(())
}

fn verify_file(file: &Path, head: Option<&Head>) -> anyhow::Result<Vec<VerifyReport>> {
    let cannot = || format!("{} cannot be read", file.display());
    let bytes = Bytes::default();
    let (input, total): (Box<dyn Read>, u64) = if file == Path::new("-") {
        (Box::new(io::stdin()), 0)
    } else {
        let opened = File::open(file).with_context(cannot)?;
        let total = opened.metadata().with_context(cannot)?.len();
        (Box::new(opened), total)
    };
    let input = BufReader::with_capacity(1 << 16, Counted::new(input, bytes.clone()));
    let mut meter = Meter::new("verified");
    verify_export(input, head, &mut |_| meter.at(bytes.get(), total)).with_context(cannot)
}

fn print_report(out: &mut dyn Write, report: &VerifyReport) -> io::Result<()> {
    match &report.fault {
        Some(fault) => writeln!(out, "{}: {fault}", report.instance)?,
        None => writeln!(out, "{}: whole, {} records", report.instance, report.records)?,
    }
    if let Some(head) = report.head.as_ref().filter(|_| report.fault.is_none()) {
        writeln!(out, "head {}:{}", head.seq, head.hash)?;
    }
    if let Some(index) = &report.index_fault {
        writeln!(out, "{}: the index differs from the chain (it can be rebuilt): {index}", report.instance)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sample::story;

    fn printed(attempts: &[AttemptView], format: Format) -> String {
        let mut out = Vec::new();
        print_attempts(&mut out, attempts, format).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn attempts_read_as_a_table_and_as_the_api_words_them() {
        let attempts = story(false).1;
        insta::assert_snapshot!("attempts_table", printed(&attempts, Format::Table));
        insta::assert_snapshot!("attempts_json", printed(&attempts, Format::Json));
    }

    #[test]
    fn nothing_is_said_as_such_and_stays_valid_json() {
        assert_eq!(printed(&[], Format::Table), "no attempts\n");
        assert_eq!(printed(&[], Format::Json), "{\n  \"attempts\": []\n}\n");
    }
}
