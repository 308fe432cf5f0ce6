//! `hangar-medic incidents list|show`.

use std::io::{self, Write};

use serde::Serialize;

use super::table::{Table, visible};
use super::{Format, attempts, none, print_json, time};
use crate::server::views::{AttemptView, IncidentView};

/// Prints many, one a line, oldest first.
///
/// # Errors
/// `out` cannot be written.
pub fn print_incidents(out: &mut dyn Write, incidents: &[IncidentView], format: Format) -> io::Result<()> {
    #[derive(Serialize)]
    struct Document<'a> {
        incidents: &'a [IncidentView],
    }
    if format == Format::Json {
        return print_json(out, &Document { incidents });
    }
    if incidents.is_empty() {
        return writeln!(out, "no incidents");
    }
    let mut table = Table::new(&["INCIDENT", "SERVER", "REASON", "PHASE", "HOLD", "UNTIL", "OPENED", "CLOSED", "HOW", "ATTEMPTS"]);
    for i in incidents {
        let until = i.hold_until.or(i.next_retry_at);
        let how = i.how.map_or_else(none, |h| h.to_string());
        let hold = i.hold.map_or_else(none, |h| h.to_string());
        let (reason, phase, tried) = (i.reason.to_string(), i.phase.as_str().to_owned(), i.attempts.len().to_string());
        let (opened, closed) = (time(Some(i.opened_at)), time(i.closed_at));
        table.row([i.incident_id.clone(), i.mcp_server.clone(), reason, phase, hold, time(until), opened, closed, how, tried]);
    }
    table.print(out)
}

/// Prints one with its attempts. As JSON: the incident exactly as the API words it.
///
/// # Errors
/// `out` cannot be written.
pub fn print_incident(out: &mut dyn Write, incident: &IncidentView, tried: &[AttemptView], format: Format) -> io::Result<()> {
    if format == Format::Json {
        return print_json(out, incident);
    }
    let i = incident;
    let words = |all: &[String]| if all.is_empty() { none() } else { all.join(", ") };
    let provenance = i.provenance.as_ref().map_or_else(none, |p| {
        let place = if p.file.is_empty() { String::new() } else { format!(", file {} offset {}", p.file, p.offset.unwrap_or(0)) };
        format!("{} at {}{place}", p.source, time(Some(p.at)))
    });
    let symptoms: Vec<String> = i.symptoms.iter().map(ToString::to_string).collect();
    let lines = [
        ("incident", i.incident_id.clone()),
        ("instance", i.instance.clone()),
        ("server", i.mcp_server.clone()),
        ("reason", i.reason.to_string()),
        ("known from", provenance),
        ("symptoms", words(&symptoms)),
        ("phase", i.phase.as_str().to_owned()),
        ("hold", i.hold.map_or_else(none, |h| h.to_string())),
        ("hold until", time(i.hold_until)),
        ("next retry", time(i.next_retry_at)),
        ("why", i.why.clone().unwrap_or_else(none)),
        ("opened", time(Some(i.opened_at))),
        ("closed", time(i.closed_at)),
        ("how", i.how.map_or_else(none, |h| h.to_string())),
    ];
    for (name, value) in lines {
        writeln!(out, "{name:10}  {}", visible(&value))?;
    }
    for (name, value) in i.evidence.iter().flatten() {
        writeln!(out, "evidence    {}: {}", visible(name), visible(&value.to_string()))?;
    }
    if let Some(approval) = &i.approval {
        let approved = approval.approved.as_ref();
        let approved = approved.map_or_else(none, |a| format!("by {} ({}) until {}", a.principal, a.role, time(Some(a.expires_at))));
        writeln!(out, "approvable  {}, for evidence {}", approval.action, visible(&approval.evidence_sha256))?;
        for (name, value) in &approval.evidence {
            writeln!(out, "            {}: {}", visible(name), visible(&value.to_string()))?;
        }
        writeln!(out, "approved    {}", visible(&approved))?;
    }
    writeln!(out)?;
    attempts::print_attempts(out, tried, format)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sample::story;

    fn printed(act: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        act(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn incidents_read_as_a_table_and_as_the_api_words_them() {
        let incidents = [story(false).0, story(true).0];
        insta::assert_snapshot!("incidents_table", printed(|out| print_incidents(out, &incidents, Format::Table)));
        insta::assert_snapshot!("incidents_json", printed(|out| print_incidents(out, &incidents, Format::Json)));
    }

    #[test]
    fn one_incident_is_shown_with_its_evidence_and_attempts() {
        let (incident, tried) = story(false);
        insta::assert_snapshot!("incident_show", printed(|out| print_incident(out, &incident, &tried, Format::Table)));
        let json = printed(|out| print_incident(out, &incident, &tried, Format::Json));
        assert_eq!(serde_json::from_str::<IncidentView>(&json).unwrap(), incident);
    }

    #[test]
    fn nothing_is_said_as_such_and_stays_valid_json() {
        assert_eq!(printed(|out| print_incidents(out, &[], Format::Table)), "no incidents\n");
        assert_eq!(printed(|out| print_incidents(out, &[], Format::Json)), "{\n  \"incidents\": []\n}\n");
    }
}
