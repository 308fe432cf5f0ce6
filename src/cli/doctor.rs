//! `hangar-medic doctor`: everything that a new user gets wrong, one check each, with what to do about it.
//!
//! Changes nothing: no server is started or stopped, no store and no directory is made. At most one call is sent with a key
//! that Hangar refuses, and none where two were refused before.

mod alertmanager;
mod executors;
mod hangar;
mod log;
mod own;
mod prometheus;

use std::io::{self, Write};

use serde::Serialize;

use super::args::{DoctorArgs, Format, INVALID, OK};
use super::paint::{Paint, Tone};
use super::print_json;
use super::table::wrapped;
use crate::config::{self, Config, Overrides};

/// What came of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Ok,
    /// The daemon works, but not as well as it could.
    Warn,
    /// The daemon cannot do its work like this.
    Fail,
    /// Not checked: not configured, or something before it failed.
    Skip,
}

impl Status {
    /// The word in the table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
            Self::Skip => "skip",
        }
    }

    const fn tone(self) -> Tone {
        match self {
            Self::Ok => Tone::Good,
            Self::Warn => Tone::Warn,
            Self::Fail => Tone::Bad,
            Self::Skip => Tone::Quiet,
        }
    }
}

/// One check: what was found, and what to do if that is not well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub check: &'static str,
    pub status: Status,
    pub found: String,
    #[serde(rename = "do", skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Check {
    fn new(check: &'static str, status: Status, found: impl Into<String>) -> Self {
        Self { check, status, found: found.into(), advice: None }
    }

    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Status::Ok, found)
    }

    pub(super) fn skip(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Status::Skip, found)
    }

    pub(super) fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..Self::new(check, Status::Warn, found) }
    }

    pub(super) fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..Self::new(check, Status::Fail, found) }
    }
}

/// All checks, in the order in which they were made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// No check failed; warnings may be there.
    pub ok: bool,
    pub checks: Vec<Check>,
}

impl Report {
    fn of(checks: Vec<Check>) -> Self {
        Self { ok: checks.iter().all(|c| c.status != Status::Fail), checks }
    }
}

/// Checks and prints. Returns the exit code: 0 nothing failed, 1 something did.
///
/// # Errors
/// `out` cannot be written.
pub async fn run(args: &DoctorArgs, paint: Paint, out: &mut dyn Write) -> io::Result<u8> {
    let overrides = Overrides::from(args.overrides.clone());
    let report = match config::load(args.config_file.as_deref(), &overrides) {
        Ok(config) => Report::of(examine(&config).await),
        Err(faults) => {
            let advice = "correct it; `hangar-medic check-config --example` prints a file with every setting";
            let check = |fault: &config::Invalid| Check::fail("config", fault.about(args.config_file.as_deref()), advice);
            Report::of(faults.iter().map(check).collect())
        }
    };
    match args.format.format {
        Format::Json => print_json(out, &report)?,
        Format::Table => print_report(out, &report, paint)?,
    }
    Ok(if report.ok { OK } else { INVALID })
}

/// Every check of a valid configuration. Takes a few seconds at most where everything answers, and the configured
/// time-outs where something does not.
async fn examine(config: &Config) -> Vec<Check> {
    let mut checks = vec![own::configuration(config)];
    let watched = log::Watched::new(config.hangar.log_file.as_deref());
    let seen = hangar::examine(config, &mut checks).await;
    checks.push(log::judge(watched, seen.log_was_written).await);
    prometheus::examine(config, &seen, &mut checks).await;
    alertmanager::examine(config, &mut checks).await;
    own::examine(config, &mut checks).await;
    executors::examine(config, &mut checks).await;
    checks
}

/// Columns of the table: the status, the longest name of a check, two gaps.
const INDENT: usize = 28;

/// Prints a line or more a check, 80 columns wide at most, and what it comes to.
///
/// # Errors
/// `out` cannot be written.
pub fn print_report(out: &mut dyn Write, report: &Report, paint: Paint) -> io::Result<()> {
    for check in &report.checks {
        let status = paint.of(check.status.tone(), &format!("{:4}", check.status.as_str()));
        let mut lines = wrapped(&check.found, 80 - INDENT).into_iter();
        writeln!(out, "{status}  {:20}  {}", check.check, lines.next().unwrap_or_default())?;
        for line in lines {
            writeln!(out, "{:INDENT$}{line}", "")?;
        }
        for (n, line) in check.advice.iter().flat_map(|advice| wrapped(advice, 77 - INDENT)).enumerate() {
            writeln!(out, "{:INDENT$}{} {line}", "", if n == 0 { "->" } else { "  " })?;
        }
    }
    let count = |status| report.checks.iter().filter(|c| c.status == status).count();
    let (failed, warned) = (count(Status::Fail), count(Status::Warn));
    writeln!(out)?;
    match (failed, warned) {
        (0, 0) => writeln!(out, "{}", paint.of(Tone::Good, "All is well.")),
        (0, n) => writeln!(out, "{}", paint.of(Tone::Warn, &format!("Nothing failed; {n} could be better (see ->)."))),
        (n, _) => writeln!(out, "{}", paint.of(Tone::Bad, &format!("{n} failed: do what is said after ->, and run doctor again."))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report::of(vec![
            Check::ok("hangar_reachable", "http://127.0.0.1:8000/ answers"),
            Check::warn(
                "hangar_clock",
                "Hangar's clock is 4 s ahead of ours",
                "set both by NTP: a recovery is proved by comparing times of both",
            ),
            Check::fail("api_key", "Hangar refused the key \u{1b}[31m", "mint a key and put it alone in the file"),
            Check::skip("permission_to_start", "the key was refused"),
        ])
    }

    #[test]
    fn a_report_fits_80_columns_and_says_what_to_do() {
        let mut out = Vec::new();
        print_report(&mut out, &report(), Paint::plain()).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
        insta::assert_snapshot!("doctor_table", text);
    }

    #[test]
    fn a_failure_and_only_a_failure_is_not_ok() {
        let mut report = report();
        assert!(!report.ok);
        report.checks.retain(|c| c.status != Status::Fail);
        assert!(Report::of(report.checks).ok);
    }
}
