//! Rung 1: what a person needs to judge the incident, read and kept. Upstream text is foreign: cut, escaped, bounded.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Done, looked, looked_in_vain};
use crate::hangar::fault::clean_to;
use crate::hangar::{CallError, Fault, HangarClient, LogLine};

/// Lines of the upstream's own log that are asked for.
const LOG_LINES: u32 = 200;
/// Characters kept of one line.
const LINE_CHARS: usize = 500;
/// Bytes kept of all lines together; the last ones win.
const LOG_BYTES: usize = 32 * 1024;
/// Tools kept, and characters of a name.
const TOOLS_MAX: usize = 500;
const TOOL_CHARS: usize = 200;
/// Bytes kept of the details of a refusal.
const DETAILS_BYTES: usize = 2 * 1024;

/// Reads who we are, the server's detail, its tools and its last lines. What cannot be read is noted under `not_read`.
pub(super) async fn capability_refresh(hangar: &HangarClient, server: &str) -> Done {
    let mut evidence = BTreeMap::new();
    let mut not_read = BTreeMap::new();
    match hangar.me().await {
        Ok(me) => {
            evidence.insert("principal".to_owned(), me.principal.map_or(Value::Null, Value::from));
        }
        // Not let in: three more calls would only burn tries.
        Err(e) if matches!(e.fault, Fault::Auth(_)) => return looked_in_vain(&e),
        Err(e) => note(&mut not_read, "principal", &e),
    }
    let mut done = match hangar.server(server).await {
        Ok(detail) => looked(detail.reading),
        Err(e) => {
            note(&mut not_read, "state", &e);
            looked_in_vain(&e)
        }
    };
    if let Some(reading) = &done.reading {
        evidence.insert("state".to_owned(), Value::from(reading.state.as_str()));
        evidence.insert("alive".to_owned(), Value::from(reading.alive));
        evidence.insert("consecutive_failures".to_owned(), reading.consecutive_failures.map_or(Value::Null, Value::from));
    }
    if !done.not_found {
        match hangar.tools(server).await {
            Ok(tools) => {
                evidence.insert("exposed_tools".to_owned(), names(&tools));
            }
            Err(e) => note(&mut not_read, "exposed_tools", &e),
        }
        match hangar.logs(server, LOG_LINES).await {
            Ok(lines) => {
                evidence.insert("server_log".to_owned(), log(&lines));
            }
            Err(e) => note(&mut not_read, "server_log", &e),
        }
    }
    for key in ["principal", "exposed_tools", "server_log", "state", "consecutive_failures"] {
        evidence.entry(key.to_owned()).or_insert(Value::Null);
    }
    if !not_read.is_empty() {
        evidence.insert("not_read".to_owned(), Value::from_iter(not_read));
    }
    done.evidence = evidence;
    done
}

fn note(not_read: &mut BTreeMap<String, String>, what: &str, error: &CallError) {
    not_read.insert(what.to_owned(), error.to_string());
}

/// Names of tools, bounded.
pub(super) fn names(tools: &[String]) -> Value {
    tools.iter().take(TOOLS_MAX).map(|name| clean_to(name, TOOL_CHARS)).collect()
}

/// The last lines that fit, oldest first.
fn log(lines: &[LogLine]) -> Value {
    let mut room = LOG_BYTES;
    let last = lines.iter().rev().take(LOG_LINES as usize).map(|line| clean_to(&line.content, LINE_CHARS));
    let mut kept: Vec<String> = last
        .take_while(|line| {
            let fits = line.len() <= room;
            room = room.saturating_sub(line.len());
            fits
        })
        .collect();
    kept.reverse();
    Value::from(kept)
}

/// The details of a refusal, unless they are too long to keep.
pub(super) fn bounded(details: &Value) -> Value {
    let text = details.to_string();
    if text.len() <= DETAILS_BYTES { details.clone() } else { Value::from(clean_to(&text, DETAILS_BYTES / 4)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(content: &str) -> LogLine {
        LogLine { stream: "stderr".to_owned(), content: content.to_owned() }
    }

    #[test]
    fn of_a_long_log_the_last_lines_are_kept_within_every_bound() {
        let lines: Vec<LogLine> = (0..300).map(|n| line(&format!("{n:03}{}", "x".repeat(600)))).collect();
        let Value::Array(kept) = log(&lines) else { panic!() };
        let kept: Vec<&str> = kept.iter().filter_map(Value::as_str).collect();
        assert_eq!(kept.len(), LOG_BYTES / 503, "500 characters and an ellipsis of 3 bytes");
        assert!(kept.last().unwrap().starts_with("299"));
        assert!(kept.first().unwrap() < kept.last().unwrap());
    }

    #[test]
    fn control_characters_of_a_hostile_upstream_are_escaped() {
        assert_eq!(log(&[line("\u{1b}[31mred\n{\"event\":\"forged\"}")])[0], "\\u{1b}[31mred\\n{\"event\":\"forged\"}");
    }
}
