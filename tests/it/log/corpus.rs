//! Every corpus, cut wherever its timeline has been quiet: the log names exactly the servers that Hangar's REST then
//! calls dead, for the same reason.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use hangar_medic::observe::log::{InputFormat, Reader, Splitter};
use jiff::Timestamp;
use serde_json::Value;

/// Server → reason; `None` where this Hangar tells no reason (before 2.21.0).
pub type Dead = BTreeMap<String, Option<String>>;

/// One recorded run of a real Hangar.
pub struct Scenario {
    pub name: String,
    pub json: Vec<u8>,
    pub console: Vec<u8>,
    rows: Vec<(f64, Value)>,
    /// Servers that were taken out, and when: REST lists them no more, and the timeline has no row for that.
    removed: BTreeMap<String, f64>,
}

/// All recorded runs whose Hangar is new enough that there is a truth to agree with.
pub fn scenarios() -> &'static [Scenario] {
    static ALL: OnceLock<Vec<Scenario>> = OnceLock::new();
    ALL.get_or_init(load)
}

/// The recorded run with this name.
pub fn scenario(name: &str) -> &'static Scenario {
    scenarios().iter().find(|scenario| scenario.name == name).unwrap()
}

fn load() -> Vec<Scenario> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let list = |dir: &Path| -> Vec<PathBuf> {
        let mut found: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|p| p.is_dir()).collect();
        found.sort();
        found
    };
    let dirs = list(&root).into_iter().filter(|version| !version.ends_with("2.19.1")).flat_map(|version| list(&version));
    dirs.map(|dir| {
        let timeline = fs::read_to_string(dir.join("timeline.jsonl")).unwrap();
        let rows = timeline.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let json = fs::read(dir.join("hangar.json.log")).unwrap();
        let records = json.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
        let removed = records.filter(|r| r["event"] == "mcp_server_removed" || r["event"] == "mcp_server_deleted");
        let removed = removed.map(|r| (r["mcp_server_id"].as_str().unwrap().to_owned(), seconds(r["timestamp"].as_str().unwrap())));
        Scenario {
            removed: removed.collect(),
            name: dir.strip_prefix(&root).unwrap().display().to_string(),
            json,
            console: fs::read(dir.join("hangar.console.log")).unwrap(),
            rows: rows.map(|row| (row["t"].as_f64().unwrap(), row)).collect(),
        }
    })
    .collect()
}

/// A moment at which nothing has changed for a second and nothing is under way, and what REST says then.
pub struct Quiet {
    pub from: f64,
    pub to: f64,
    pub dead: Dead,
}

impl Scenario {
    pub fn quiet(&self) -> Vec<Quiet> {
        let mut state: BTreeMap<String, Value> = BTreeMap::new();
        let (mut found, away) = (Vec::new(), self.away());
        for (i, (t, row)) in self.rows.iter().enumerate() {
            state.insert(row["id"].as_str().unwrap().to_owned(), row.clone());
            let down = away.iter().map(|(down, _)| *down).find(|down| down > t).unwrap_or(f64::MAX);
            // A change shows up to two polls late, and the poller ends before Hangar does.
            let next = self.rows.get(i + 1).map_or(f64::MAX, |(next, _)| *next - 0.45).min(down - 1.0);
            let under_way = state.values().any(|row| row["rest"] == "initializing");
            let removal = self.removed.values().copied().find(|gone| (*t..next).contains(gone)).unwrap_or(*t);
            for (from, to) in [(*t, removal), (removal, next)] {
                if to > from + 1.0 && !under_way {
                    found.push(Quiet { from: from + 1.0, to, dead: self.dead(&state, from) });
                }
            }
        }
        found
    }

    fn dead(&self, state: &BTreeMap<String, Value>, at: f64) -> Dead {
        let there = |id: &str| self.removed.get(id).is_none_or(|gone| *gone > at);
        let dead = state.iter().filter(|(id, row)| row["rest"] == "dead" && there(id));
        dead.map(|(id, row)| (id.clone(), row["dead"]["reason"].as_str().map(str::to_owned))).collect()
    }

    /// Stretches in which Hangar is down, or not yet up for a second.
    fn away(&self) -> Vec<(f64, f64)> {
        let (mut last, mut began, mut away) = (0.0, Some(0.0), Vec::new());
        for line in self.json.split(|b| *b == b'\n') {
            let Ok(record) = serde_json::from_slice::<Value>(line) else { continue };
            let at = seconds(record["timestamp"].as_str().unwrap());
            match record["event"].as_str().unwrap() {
                "shutdown_signal_received" | "http_shutdown_draining" => began = began.or(Some(at)),
                "mcp_registry_starting" => began = began.or(Some(last)),
                "mcp_registry_ready" => away.push((began.take().unwrap(), at + 1.0)),
                _ => {}
            }
            last = at;
        }
        away.extend(began.map(|from| (from, f64::MAX)));
        away
    }
}

fn seconds(timestamp: &str) -> f64 {
    timestamp.parse::<Timestamp>().unwrap().as_microsecond() as f64 / 1e6
}

/// When a line was logged, if it is the first of a record.
fn at(line: &[u8]) -> Option<f64> {
    if let Some(rest) = line.strip_prefix(b"\x1b[2m") {
        return Some(seconds(std::str::from_utf8(rest.get(..27)?).ok()?));
    }
    let record: Value = serde_json::from_slice(line).ok()?;
    Some(seconds(record["timestamp"].as_str()?))
}

pub fn dead(reader: &Reader) -> Dead {
    let dead = reader.classifier().dead();
    dead.map(|verdict| (verdict.mcp_server.to_owned(), Some(verdict.reason.to_string()))).collect()
}

fn agrees(said: &Dead, truth: &Dead) -> bool {
    said.len() == truth.len()
        && said.iter().zip(truth).all(|((a, reason), (b, true_reason))| a == b && (true_reason.is_none() || reason == true_reason))
}

/// Reads `log` and checks the answer after each line that was logged at a quiet moment. Gives the number of checks.
fn check(scenario: &Scenario, log: &[u8], holds: impl Fn(&Dead, &Dead) -> bool) -> usize {
    let (quiet, away) = (scenario.quiet(), scenario.away());
    let (mut reader, mut splitter) = (Reader::new(InputFormat::Auto), Splitter::default());
    let (mut checked, mut seen) = (0, Vec::new());
    let mut previous: Option<f64> = None;
    splitter.feed(log, &mut |offset, line| {
        let now = at(line);
        // The state between two lines is that after the first: every instant in between is a cut.
        if let (Some(from), Some(to)) = (previous, now) {
            let hits = quiet.iter().filter(|q| q.from < to && q.to > from);
            let hits = hits.filter(|q| !away.iter().any(|(a, b)| *a < to.min(q.to) && *b > from.max(q.from)));
            for q in hits {
                checked += 1;
                let said = dead(&reader);
                if !holds(&said, &q.dead) {
                    seen.push(format!("{} between {from} and {to} (byte {offset}): log {said:?}, REST {:?}", scenario.name, q.dead));
                }
            }
        }
        previous = now.or(previous);
        reader.line(line, offset, &mut |_| {});
    });
    assert!(seen.is_empty(), "{}", seen.join("\n"));
    checked
}

#[test]
fn the_json_log_cut_at_any_quiet_instant_names_what_rest_calls_dead_and_why() {
    let checked: usize = scenarios().iter().map(|s| check(s, &s.json, agrees)).sum();
    assert!(checked > 400, "only {checked} instants were quiet");
}

#[test]
fn the_console_log_says_the_same_and_where_text_is_printed_raw_never_more() {
    let mut missed = Vec::new();
    for scenario in scenarios() {
        let raw_text = scenario.name.starts_with("2.20.0");
        check(
            scenario,
            &scenario.console,
            |said, truth| if raw_text { said.keys().all(|id| truth.contains_key(id)) } else { agrees(said, truth) },
        );
        let end = |log: &[u8]| {
            let (mut reader, mut splitter) = (Reader::new(InputFormat::Auto), Splitter::default());
            splitter.feed(log, &mut |offset, line| reader.line(line, offset, &mut |_| {}));
            dead(&reader)
        };
        let (json, console) = (end(&scenario.json), end(&scenario.console));
        if raw_text {
            missed.extend(json.into_iter().filter(|(id, _)| !console.contains_key(id)).map(|(id, _)| format!("{} {id}", scenario.name)));
        } else {
            assert_eq!(json, console, "{}", scenario.name);
        }
    }
    eprintln!("missed in raw console logs: {missed:?}");
}
