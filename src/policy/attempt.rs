//! Attempt records as others hand them in: the playbook's five fields, with ours beside them, read strictly.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ladder::Rung;
use super::record::{Outcome, Receipt};
use super::when::after;

/// A record may be dated this far ahead of our clock; more is a fault.
pub const AHEAD_MAX: SignedDuration = SignedDuration::from_mins(5);

/// One prior attempt (playbook, *Attempt log shape*): the five fields, exactly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    pub action: Rung,
    pub outcome: Outcome,
    pub reason: String,
    /// Who tried.
    pub actor: String,
    pub recorded_at: Timestamp,
}

impl AttemptRecord {
    /// Builds a record (playbook, `build_attempt_record`).
    pub fn new(action: Rung, outcome: Outcome, reason: impl Into<String>, actor: impl Into<String>, recorded_at: Timestamp) -> Self {
        Self { action, outcome, reason: reason.into(), actor: actor.into(), recorded_at }
    }
}

/// One fault of an attempt record: where, and what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {text}")]
pub struct AttemptFault {
    /// `attempts[3].outcome`.
    pub path: String,
    pub text: String,
}

impl AttemptFault {
    /// A fault at `path`.
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into() }
    }
}

/// The keys that a record may have besides the five: ours, as the API and `attempts list` write them.
const OURS: &[&str] = &[
    "attempt_id",
    "incident_id",
    "instance",
    "mcp_server",
    "rank",
    "started_at",
    "settled_at",
    "receipt",
    "evidence",
    "prev_hash",
    "hash",
];
const FIVE: &[&str] = &["action", "outcome", "reason", "actor", "recorded_at"];

/// Reads one record; `index` counts from 0 and names it in faults.
///
/// # Errors
/// Every fault of the record: unknown word, missing, unknown or duplicate key, a time that is no RFC 3339 or more than
/// [`AHEAD_MAX`] ahead of `now`, a rank that is not the action's.
pub fn parse_attempt(text: &str, index: usize, now: Timestamp) -> Result<AttemptRecord, Vec<AttemptFault>> {
    let path = format!("attempts[{index}]");
    match serde_json::from_str::<Fields>(text) {
        Ok(fields) => fields.judge(&path, now),
        Err(error) => Err(vec![AttemptFault::new(path, not_json(text, &error))]),
    }
}

fn not_json(text: &str, error: &serde_json::Error) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(_)) => error.to_string(),
        Ok(other) => format!("must be an object, not {}", kind(&other)),
        Err(error) => format!("is not valid JSON: {error}"),
    }
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The keys of one object as written, duplicates noticed.
struct Fields {
    values: BTreeMap<String, Value>,
    twice: Vec<String>,
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Fields;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Fields { values: BTreeMap::new(), twice: Vec::new() };
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    if fields.values.insert(key.clone(), value).is_some() {
                        fields.twice.push(key);
                    }
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

impl Fields {
    fn judge(self, path: &str, now: Timestamp) -> Result<AttemptRecord, Vec<AttemptFault>> {
        let mut reader = Reader { path, values: &self.values, now, faults: Vec::new() };
        for key in &self.twice {
            reader.fault(&shown(key), "is given twice");
        }
        let action = reader.word::<Rung>("action");
        let outcome = reader.outcome();
        let (reason, actor, recorded_at) = (reader.text("reason"), reader.text("actor"), reader.time("recorded_at"));
        reader.ours(action);
        let unknown = self.values.keys().filter(|k| !FIVE.contains(&k.as_str()) && !OURS.contains(&k.as_str()));
        for key in unknown {
            reader.fault(&shown(key), "unknown key");
        }
        let faults = reader.faults;
        match (action, outcome, reason, actor, recorded_at) {
            (Some(action), Some(outcome), Some(reason), Some(actor), Some(recorded_at)) if faults.is_empty() => {
                Ok(AttemptRecord { action, outcome, reason, actor, recorded_at })
            }
            _ => Err(faults),
        }
    }
}

/// A key as a fault shows it: one line, at most 80 characters.
fn shown(key: &str) -> String {
    key.chars().take(80).collect::<String>().escape_debug().to_string()
}

struct Reader<'a> {
    path: &'a str,
    values: &'a BTreeMap<String, Value>,
    now: Timestamp,
    faults: Vec<AttemptFault>,
}

impl<'a> Reader<'a> {
    fn fault(&mut self, key: &str, text: impl Into<String>) {
        self.faults.push(AttemptFault::new(format!("{}.{key}", self.path), text));
    }

    fn text_of(&mut self, key: &str) -> Option<&'a str> {
        match self.values.get(key) {
            Some(Value::String(text)) => return Some(text),
            None => self.fault(key, "is missing"),
            Some(other) => self.fault(key, format!("must be text, not {}", kind(other))),
        }
        None
    }

    fn text(&mut self, key: &str) -> Option<String> {
        self.text_of(key).map(ToOwned::to_owned)
    }

    fn word<T: std::str::FromStr<Err = super::UnknownWord>>(&mut self, key: &str) -> Option<T> {
        match self.text_of(key)?.parse() {
            Ok(word) => Some(word),
            Err(error) => {
                self.fault(key, error.to_string());
                None
            }
        }
    }

    fn outcome(&mut self) -> Option<Outcome> {
        match self.values.get("outcome") {
            Some(Value::String(text)) if text == "success" || text == "succeeded" => Some(Outcome::Recovered),
            Some(Value::Null) => {
                self.fault("outcome", "has no value: the attempt is not settled yet");
                None
            }
            Some(_) | None => self.word("outcome"),
        }
    }

    fn time(&mut self, key: &str) -> Option<Timestamp> {
        let text = self.text_of(key)?;
        let Some(at) = rfc3339(text) else {
            self.fault(key, format!("\"{}\" is no RFC 3339 time such as 2026-07-25T21:00:00Z", shown(text)));
            return None;
        };
        if at > after(self.now, AHEAD_MAX) {
            self.fault(key, format!("{at} lies more than {} min ahead of now", AHEAD_MAX.as_mins()));
            return None;
        }
        Some(at)
    }

    /// Ours are optional; null is as good as absent. What is there must make sense.
    fn ours(&mut self, action: Option<Rung>) {
        let given = |values: &BTreeMap<String, Value>, key: &str| values.get(key).is_some_and(|v| !v.is_null());
        for key in ["attempt_id", "incident_id", "instance", "mcp_server", "prev_hash", "hash"] {
            if given(self.values, key) {
                self.text_of(key);
            }
        }
        for key in ["started_at", "settled_at"] {
            if given(self.values, key) {
                self.time(key);
            }
        }
        if given(self.values, "receipt") {
            self.word::<Receipt>("receipt");
        }
        if let Some(evidence) = self.values.get("evidence").filter(|v| !v.is_null() && !v.is_object()) {
            self.fault("evidence", format!("must be an object, not {}", kind(evidence)));
        }
        let rank = self.values.get("rank").filter(|v| !v.is_null());
        if let (Some(rank), Some(action)) = (rank, action)
            && rank.as_u64() != Some(action.rank().into())
        {
            self.fault("rank", format!("{} has rank {}", action, action.rank()));
        }
    }
}

/// RFC 3339 and nothing else: date, `T`, time to the second, offset.
fn rfc3339(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let shape = |at: usize, shape: &[u8]| {
        bytes.get(at..at + shape.len()).is_some_and(|found| {
            found.iter().zip(shape).all(|(b, s)| match s {
                b'0' => b.is_ascii_digit(),
                b'T' => matches!(b, b'T' | b't' | b' '),
                b'+' => matches!(b, b'+' | b'-'),
                other => b == other,
            })
        })
    };
    if !shape(0, b"0000-00-00T00:00:00") {
        return None;
    }
    let rest = bytes.get(19..)?;
    let fraction = rest.strip_prefix(b".").map_or(0, |digits| 1 + digits.iter().take_while(|b| b.is_ascii_digit()).count());
    let zone = 19 + fraction;
    let whole = match bytes.len().checked_sub(zone)? {
        1 => matches!(bytes.get(zone), Some(b'Z' | b'z')),
        6 => shape(zone, b"+00:00"),
        _ => false,
    };
    if fraction == 1 || !whole {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"action":"client_reconnect","outcome":"insufficient","reason":"transport still closed after IDE reconnect","actor":"prgs-controller-12345","recorded_at":"2026-07-25T21:00:00+00:00"}"#;

    fn now() -> Timestamp {
        "2026-07-25T22:00:00Z".parse().unwrap()
    }

    fn faults(text: &str) -> Vec<String> {
        parse_attempt(text, 3, now()).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    /// `GOOD` with one key set to a JSON text, or taken away.
    fn with(key: &str, value: Option<&str>) -> String {
        let mut object: serde_json::Map<String, Value> = serde_json::from_str(GOOD).unwrap();
        match value {
            Some(value) => object.insert(key.to_owned(), serde_json::from_str(value).unwrap()),
            None => object.remove(key),
        };
        Value::Object(object).to_string()
    }

    #[test]
    fn the_playbooks_own_example_is_read_and_written_alike() {
        let record = parse_attempt(GOOD, 0, now()).unwrap();
        let reason = "transport still closed after IDE reconnect";
        let at = "2026-07-25T21:00:00Z".parse().unwrap();
        assert_eq!(record, AttemptRecord::new(Rung::ClientReconnect, Outcome::Insufficient, reason, "prgs-controller-12345", at));
        let written = serde_json::to_string(&record).unwrap();
        assert_eq!(parse_attempt(&written, 0, now()).unwrap(), record);
        assert_eq!(serde_json::from_str::<serde_json::Map<String, Value>>(&written).unwrap().len(), 5);
    }

    #[test]
    fn success_and_succeeded_read_as_recovered() {
        for (word, outcome) in [("success", Outcome::Recovered), ("succeeded", Outcome::Recovered), ("failed", Outcome::Failed)] {
            let text = with("outcome", Some(&format!("\"{word}\"")));
            assert_eq!(parse_attempt(&text, 0, now()).unwrap().outcome, outcome);
        }
    }

    #[test]
    fn every_fault_names_its_place() {
        let outcomes = "known: recovered, failed, insufficient, denied, unresolved, timeout, error, cancelled, not_applicable";
        for (key, value, fault) in [
            ("outcome", Some("\"meh\""), format!("unknown outcome \"meh\"; {outcomes}")),
            ("outcome", Some("\"Failed\""), format!("unknown outcome \"Failed\"; {outcomes}")),
            ("outcome", Some("null"), "has no value: the attempt is not settled yet".to_owned()),
            ("outcome", None, "is missing".to_owned()),
            ("action", None, "is missing".to_owned()),
            ("actor", None, "is missing".to_owned()),
            ("reason", Some("7"), "must be text, not a number".to_owned()),
            ("recorded_at", None, "is missing".to_owned()),
            ("recorded_at", Some("1785013200"), "must be text, not a number".to_owned()),
            ("recorded_at", Some("\"2026-07-25T22:05:01Z\""), "2026-07-25T22:05:01Z lies more than 5 min ahead of now".to_owned()),
            ("started_at", Some("\"2026-07-26T22:05:01Z\""), "2026-07-26T22:05:01Z lies more than 5 min ahead of now".to_owned()),
            ("rank", Some("1"), "client_reconnect has rank 0".to_owned()),
            ("receipt", Some("\"ok\""), "unknown receipt \"ok\"; known: accepted, refused, unknown".to_owned()),
            ("evidence", Some("[]"), "must be an object, not an array".to_owned()),
            ("outcomes", Some("1"), "unknown key".to_owned()),
        ] {
            assert_eq!(faults(&with(key, value)), [format!("attempts[3].{key}: {fault}")]);
        }
        assert!(faults(&with("action", Some("\"kill\"")))[0].starts_with("attempts[3].action: unknown action \"kill\"; known: client_rec"));
    }

    #[test]
    fn all_faults_of_a_record_are_told_at_once() {
        assert_eq!(faults("{}").len(), 5);
        assert_eq!(faults(r#"{"action":"x","outcome":"y","reason":1,"actor":null,"recorded_at":"z","extra":2}"#).len(), 6);
    }

    #[test]
    fn what_is_no_single_object_is_refused() {
        for (text, fault) in [
            ("7", "must be an object, not a number"),
            ("[]", "must be an object, not an array"),
            ("null", "must be an object, not null"),
            ("", "is not valid JSON: EOF while parsing a value at line 1 column 0"),
            ("{", "is not valid JSON: EOF while parsing an object at line 1 column 1"),
        ] {
            assert_eq!(faults(text), [format!("attempts[3]: {fault}")]);
        }
        assert!(faults(&format!("{GOOD} x"))[0].contains("trailing characters"));
        assert!(faults(&format!("{GOOD}{GOOD}"))[0].contains("trailing characters"));
        let twice = GOOD.replace("\"outcome\":", "\"outcome\":\"failed\",\"outcome\":");
        assert_eq!(faults(&twice), ["attempts[3].outcome: is given twice"]);
    }

    #[test]
    fn times_are_rfc_3339_and_nothing_else() {
        let read = |time: &str| parse_attempt(&with("recorded_at", Some(&format!("\"{time}\""))), 0, now()).is_ok();
        for good in [
            "2026-07-25T21:00:00Z",
            "2026-07-25T21:00:00z",
            "2026-07-25t21:00:00.123456789+02:00",
            "2026-07-25 21:00:00-00:30",
            "2026-07-25T22:05:00Z",
            "1969-12-31T23:59:59Z",
        ] {
            assert!(read(good), "{good}");
        }
        for bad in [
            "2026-07-25",
            "2026-07-25T21:00Z",
            "2026-07-25T21:00:00",
            "20260725T210000Z",
            "2026-07-25T21:00:00+00",
            "2026-07-25T21:00:00+0000",
            "2026-07-25T21:00:00.Z",
            "2026-07-25T21:00:00Z[UTC]",
            "2026-02-30T21:00:00Z",
            "2026-07-25T25:00:00Z",
            "+002026-07-25T21:00:00Z",
            " 2026-07-25T21:00:00Z",
            "yesterday",
            "",
        ] {
            assert!(!read(bad), "{bad}");
        }
    }

    #[test]
    fn ours_are_accepted_beside_the_five() {
        let whole = r#"{"action":"session_reconnect","outcome":"recovered","reason":"r","actor":"a","recorded_at":"2026-07-25T21:00:00Z",
            "attempt_id":"api.1.1","incident_id":"api.1","instance":"h","mcp_server":"api","rank":2,"started_at":"2026-07-25T20:59:00Z",
            "settled_at":null,"receipt":"accepted","evidence":{"x":[1]},"prev_hash":"00","hash":"01"}"#;
        assert_eq!(parse_attempt(whole, 0, now()).unwrap().action, Rung::SessionReconnect);
    }
}
