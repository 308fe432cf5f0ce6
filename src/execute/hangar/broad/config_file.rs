//! Hangar's own configuration file, looked at before Hangar is told to read it again.

use std::collections::BTreeSet;
use std::path::Path;

use jiff::Timestamp;
use serde_json::Value;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

/// Larger files are none of Hangar's.
const FILE_MAX: u64 = 16 * 1024 * 1024;
/// How much of the log's end is searched for Hangar's last reload.
const LOG_TAIL: u64 = 4 * 1024 * 1024;
const RELOADED: &str = "configuration_reloaded";

/// What the file says now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigFile {
    /// Every server that it defines, the members of groups too.
    pub(super) ids: BTreeSet<String>,
    pub(super) changed_at: Option<Timestamp>,
}

/// Reads and parses the file.
///
/// # Errors
/// It cannot be read, is too large, is no YAML, or defines no servers; in one line.
pub(super) async fn read(path: &Path) -> Result<ConfigFile, String> {
    let told = |what: String| format!("{}: {what}", path.display());
    let file = File::open(path).await.map_err(|e| told(e.to_string()))?;
    let metadata = file.metadata().await.map_err(|e| told(e.to_string()))?;
    let mut text = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut text).await.map_err(|e| told(e.to_string()))?;
    if text.len() as u64 > FILE_MAX {
        return Err(told(format!("larger than {FILE_MAX} bytes")));
    }
    let ids = ids(&text).map_err(told)?;
    let changed_at = metadata.modified().ok().and_then(|at| Timestamp::try_from(at).ok());
    Ok(ConfigFile { ids, changed_at })
}

/// The text of a YAML error may repeat a secret of the file: only its place is told.
pub(super) fn ids(text: &[u8]) -> Result<BTreeSet<String>, String> {
    let document: Value = serde_yaml::from_slice(text).map_err(|e| {
        let at = e.location().map_or_else(String::new, |at| format!(" at line {}, column {}", at.line(), at.column()));
        format!("is not valid YAML{at}")
    })?;
    let servers = document.get("mcp_servers").and_then(Value::as_object);
    let servers = servers.filter(|servers| !servers.is_empty()).ok_or("defines no mcp_servers: a reload would delete every server")?;
    let mut ids = BTreeSet::new();
    for (id, entry) in servers {
        if entry.get("mode").and_then(Value::as_str) != Some("group") {
            ids.insert(id.clone());
            continue;
        }
        let members = entry.get("members").and_then(Value::as_array);
        let member = |m: &Value| m.as_str().or_else(|| m.get("id").and_then(Value::as_str)).map(str::to_owned);
        ids.extend(members.into_iter().flatten().filter_map(member));
    }
    Ok(ids)
}

/// When Hangar's log says that the file was last read, besides at its start. `None`: not said, or no log.
pub(super) async fn last_reload(log: &Path) -> Option<Timestamp> {
    let mut file = File::open(log).await.ok()?;
    let size = file.metadata().await.ok()?.len();
    file.seek(std::io::SeekFrom::Start(size.saturating_sub(LOG_TAIL))).await.ok()?;
    let mut tail = Vec::new();
    file.take(LOG_TAIL).read_to_end(&mut tail).await.ok()?;
    tail.split(|b| *b == b'\n').rev().find_map(reloaded_at)
}

/// The upstream's text can be inside a value, never the event itself.
fn reloaded_at(line: &[u8]) -> Option<Timestamp> {
    memchr::memmem::find(line, RELOADED.as_bytes())?;
    let line: Value = serde_json::from_slice(line).ok()?;
    let is = |key: &str, value: &str| line.get(key).and_then(Value::as_str) == Some(value);
    let of_hangar = is("event", RELOADED) && is("logger", "mcp_hangar.application.commands.reload_handler");
    of_hangar.then(|| line.get("timestamp")?.as_str()?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_the_members_of_groups_are_ids_and_groups_are_not() {
        let yaml = "mcp_servers:\n  a: {mode: subprocess}\n  g:\n    mode: group\n    members: [{id: m1}, m2, {id: a}]\n";
        assert_eq!(ids(yaml.as_bytes()).unwrap().into_iter().collect::<Vec<_>>(), ["a", "m1", "m2"]);
        for (bad, why) in [
            ("", "defines no mcp_servers"),
            ("mcp_servers: {}", "defines no mcp_servers"),
            ("mcp_servers: [a]", "defines no mcp_servers"),
            ("mcp_servers: {a: {env: {K: 's3cret}}", "is not valid YAML"),
        ] {
            let error = ids(bad.as_bytes()).unwrap_err();
            assert!(error.starts_with(why) && !error.contains("s3cret"), "{bad}: {error}");
        }
    }

    #[test]
    fn only_hangars_own_line_tells_of_a_reload() {
        let line = |event: &str, logger: &str| {
            format!(r#"{{"event":"{event}","logger":"{logger}","timestamp":"2026-11-30T15:25:27Z","detail":"configuration_reloaded"}}"#)
        };
        let ours = "mcp_hangar.application.commands.reload_handler";
        assert_eq!(reloaded_at(line(RELOADED, ours).as_bytes()), Some("2026-11-30T15:25:27Z".parse().unwrap()));
        assert_eq!(reloaded_at(line("x", ours).as_bytes()), None);
        assert_eq!(reloaded_at(line(RELOADED, "mcp_hangar.x").as_bytes()), None);
        assert_eq!(reloaded_at(b"configuration_reloaded"), None);
    }
}
