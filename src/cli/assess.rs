//! `hangar-medic assess`: the gate, offline.

use std::io::{self, Write};

use super::table::{Table, WIDTH, visible, wrapped};
use super::{Format, print_json, time};
use crate::policy::Report;

/// The variable that authorises break-glass: set, and not empty.
pub const AUTHORIZATION: &str = "HANGAR_MEDIC_BREAKGLASS_AUTHORIZATION";

/// Whether the environment authorises break-glass. What the variable holds is never looked at, or shown.
#[must_use]
pub fn break_glass_authorised() -> bool {
    std::env::var_os(AUTHORIZATION).is_some_and(|value| !value.is_empty())
}

/// Prints a report.
///
/// # Errors
/// `out` cannot be written.
pub fn print_report(out: &mut dyn Write, report: &Report, format: Format) -> io::Result<()> {
    if format == Format::Json {
        return print_json(out, report);
    }
    let r = report;
    let (escalation, glass) = (&r.playbook_escalation, r.break_glass);
    let or = |is: bool, yes: &str, no: &str| if is { yes.to_owned() } else { no.to_owned() };
    let broad = or(r.broad, ", broad", "");
    let next = escalation.next_narrower.map_or_else(|| "every narrower action was tried".to_owned(), |n| format!("next narrower: {n}"));
    let escalated = match (escalation.required, escalation.satisfied) {
        (false, _) => "not required".to_owned(),
        (true, true) => "required, satisfied".to_owned(),
        (true, false) => "required, not satisfied".to_owned(),
    };
    let used = or(glass.used, ", used", "");
    let lines = [
        ("verdict", or(r.allowed, "allowed", "refused")),
        ("class", format!("{}, rank {}{broad}", r.restart_class, r.rank)),
        ("role", format!("{}, {}", r.role, or(r.permitted, "permitted", "not permitted"))),
        ("attempt log", format!("{}: {} count", or(r.attempt_log_satisfied, "satisfied", "not satisfied"), escalation.counted.len())),
        ("escalation", format!("{escalated}; {next}")),
        (
            "break-glass",
            format!(
                "{}, {}{used}",
                or(glass.requested, "requested", "not requested"),
                or(glass.authorised, "authorised", "not authorised")
            ),
        ),
    ];
    for (name, value) in lines {
        writeln!(out, "{name:11}  {}", visible(&value))?;
    }
    for refusal in &r.refusals {
        for (n, line) in wrapped(&format!("{}: {}", refusal.code, refusal.message), WIDTH - 13).into_iter().enumerate() {
            writeln!(out, "{:11}  {line}", if n == 0 { "refused" } else { "" })?;
        }
    }
    if escalation.counted.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let mut table = Table::new(&["ACTION", "OUTCOME", "RECORDED", "ACTOR", "REASON"]);
    for a in &escalation.counted {
        table.row([a.action.to_string(), a.outcome.to_string(), time(Some(a.recorded_at)), a.actor.clone(), a.reason.clone()]);
    }
    table.print(out)
}
