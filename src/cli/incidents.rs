//! `hangar-medic incidents list|show`.

use std::io::{self, Write};

use jiff::Timestamp;
use serde::Serialize;

use super::paint::{Paint, Tone};
use super::table::{Table, WIDTH, visible, wrapped};
use super::{Format, print_json};
use crate::policy::Phase;
use crate::server::story::Story;
use crate::server::views::IncidentView;

/// Prints many, one a line, oldest first.
///
/// # Errors
/// `out` cannot be written.
pub fn print_incidents(out: &mut dyn Write, incidents: &[IncidentView], paint: Paint, format: Format) -> io::Result<()> {
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
    let mut table = Table::painted(&["INCIDENT", "REASON", "STANDING", "SINCE", "TRIES"], paint);
    for i in incidents {
        let (standing, tone) = standing_word(i);
        let since = short(i.closed_at.unwrap_or(i.opened_at));
        table.toned([i.incident_id.clone(), i.reason.to_string(), standing.to_owned(), since, i.attempts.len().to_string()], 2, tone);
    }
    table.print(out)
}

/// What holds it, else its phase; of one that is over how it ended.
fn standing_word(i: &IncidentView) -> (&'static str, Tone) {
    match (i.how, i.hold) {
        (Some(how), _) => (how.as_str(), Tone::Good),
        (None, Some(hold)) => (hold.as_str(), if hold.needs_person() { Tone::Bad } else { Tone::Warn }),
        (None, None) => (i.phase.as_str(), if i.phase == Phase::Exhausted { Tone::Bad } else { Tone::Warn }),
    }
}

/// To the minute: `incidents show` tells more.
fn short(at: Timestamp) -> String {
    at.strftime("%m-%d %H:%MZ").to_string()
}

/// To the second, for a person.
fn moment(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// Columns before the text of a story's line.
const INDENT: usize = 31;

/// Prints one as a story: what was seen, decided, sent and proved, in order. As JSON: the incident exactly as the API words it.
///
/// # Errors
/// `out` cannot be written.
pub fn print_incident(out: &mut dyn Write, story: &Story, paint: Paint, format: Format) -> io::Result<()> {
    let i = &story.incident;
    if format == Format::Json {
        return print_json(out, i);
    }
    let (standing, tone) = standing_word(i);
    writeln!(out, "{}  {}  {}", paint.of(Tone::Strong, &visible(&i.mcp_server)), i.reason, paint.of(tone, standing))?;
    writeln!(out, "incident {} at {}", visible(&i.incident_id), visible(&i.instance))?;
    writeln!(out)?;
    for event in story.events() {
        let at = event.at.map_or_else(String::new, moment);
        let mut lines = wrapped(&event.text, WIDTH - INDENT).into_iter();
        writeln!(out, "{at:20}  {}  {}", paint.of(Tone::Strong, &format!("{:7}", event.kind.as_str())), lines.next().unwrap_or_default())?;
        for line in lines {
            writeln!(out, "{:INDENT$}{line}", "")?;
        }
    }
    for (label, at) in [("until", i.hold_until), ("next try", i.next_retry_at)] {
        if let Some(at) = at {
            writeln!(out, "{:20}  {label} {}", "", moment(at))?;
        }
    }
    print_evidence(out, i)
}

fn print_evidence(out: &mut dyn Write, i: &IncidentView) -> io::Result<()> {
    let said = i.sources_disagree.iter().map(|s| (s.provenance.source.as_str().to_owned(), s.reason.to_string()));
    let said: Vec<(String, String)> = said.collect();
    let evidence = i.evidence.iter().flatten().map(|(name, value)| (name.clone(), value.to_string()));
    let evidence: Vec<(String, String)> = evidence.collect();
    let mut approval = Vec::new();
    if let Some(a) = &i.approval {
        let word = |name: &str, value: String| (name.to_owned(), value);
        approval = vec![word("action", a.action.to_string()), word("evidence-sha256", a.evidence_sha256.clone())];
        approval.extend(a.evidence.iter().map(|(name, value)| (name.clone(), value.to_string())));
        let approved = a.approved.as_ref();
        approval.extend(approved.map(|a| word("approved", format!("by {} ({}) until {}", a.principal, a.role, moment(a.expires_at)))));
    }
    for (title, rows) in [("the sources disagree", said), ("evidence", evidence), ("to be approved", approval)] {
        if rows.is_empty() {
            continue;
        }
        writeln!(out, "\n{title}")?;
        for (name, value) in rows {
            for (n, line) in wrapped(&value, WIDTH - 26).into_iter().enumerate() {
                writeln!(out, "  {:22}  {line}", if n == 0 { visible(&name) } else { String::new() })?;
            }
        }
    }
    Ok(())
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
        insta::assert_snapshot!("incidents_table", printed(|out| print_incidents(out, &incidents, Paint::plain(), Format::Table)));
        insta::assert_snapshot!("incidents_json", printed(|out| print_incidents(out, &incidents, Paint::plain(), Format::Json)));
    }

    #[test]
    fn one_incident_is_told_as_a_story() {
        for (name, closed) in [("incident_show", false), ("incident_show_closed", true)] {
            let (incident, attempts) = story(closed);
            let story = Story { incident, attempts };
            let text = printed(|out| print_incident(out, &story, Paint::plain(), Format::Table));
            assert!(text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
            insta::assert_snapshot!(name, text);
            let json = printed(|out| print_incident(out, &story, Paint::plain(), Format::Json));
            assert_eq!(serde_json::from_str::<IncidentView>(&json).unwrap(), story.incident);
        }
    }

    #[test]
    fn nothing_is_said_as_such_and_stays_valid_json() {
        assert_eq!(printed(|out| print_incidents(out, &[], Paint::plain(), Format::Table)), "no incidents\n");
        assert_eq!(printed(|out| print_incidents(out, &[], Paint::plain(), Format::Json)), "{\n  \"incidents\": []\n}\n");
    }
}
