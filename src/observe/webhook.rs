//! Alertmanager's webhook payload, version 4: bytes in, a checked delivery or every fault out. Pure.
//!
//! An alert is only a reason to look again: nothing in here opens or closes an incident.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

/// How many faults are told of one delivery; the rest are counted.
const FAULTS_MAX: usize = 50;
/// How many characters of an offending value are repeated to the sender and the log.
const SHOWN_MAX: usize = 60;

/// One delivery that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub status: Status,
    pub receiver: String,
    /// Alerts of the group that Alertmanager left out (`max_alerts`).
    pub truncated_alerts: u64,
    /// The alerts that are valid.
    pub alerts: Vec<Alert>,
    /// What was wrong with the others; each was dropped by itself.
    pub dropped: Vec<Fault>,
}

/// `firing` or `resolved`, of a delivery and of each alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Firing,
    Resolved,
}

/// One alert, with the labels that say what it speaks of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    pub status: Status,
    pub starts_at: Timestamp,
    /// `None` while it fires: Alertmanager then writes the year 1.
    pub ends_at: Option<Timestamp>,
    pub alertname: Option<String>,
    /// As the sender wrote it: not checked against Hangar's rule for server ids.
    pub mcp_server: Option<String>,
    pub instance: Option<String>,
    pub fingerprint: Option<String>,
}

/// One thing that is wrong, with the path of where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// As in `alerts[2].startsAt`; empty for the body as a whole.
    pub path: String,
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.what) } else { write!(f, "{}: {}", self.path, self.what) }
    }
}

/// Checks one body. Unknown fields are ignored, a bad alert does not drop its neighbours.
///
/// # Errors
/// Every fault, if the body is no payload of version 4 or holds alerts and not one of them is valid.
pub fn parse(body: &[u8]) -> Result<Delivery, Vec<Fault>> {
    let mut faults = Faults::default();
    let raw: RawDelivery<'_> = match std::str::from_utf8(body).map_err(|e| e.to_string()).and_then(object) {
        Ok(raw) => raw,
        Err(e) => {
            faults.add("", format!("the body is no JSON object: {e}"));
            return Err(faults.told());
        }
    };
    match faults.text("version", raw.version) {
        Some(version) if version != "4" => faults.add("version", format!("must be \"4\", is {}", shown(&version))),
        Some(_) | None => {}
    }
    let status = faults.status("status", raw.status);
    let receiver = faults.optional_text("receiver", raw.receiver);
    let truncated_alerts = faults.count("truncatedAlerts", raw.truncated_alerts);
    let alerts = faults.list("alerts", raw.alerts);
    let (Some(status), Some(alerts), true) = (status, alerts, faults.none()) else {
        return Err(faults.told());
    };
    let total = alerts.len();
    let alerts: Vec<Alert> = alerts.iter().enumerate().filter_map(|(n, raw)| alert(n, raw, &mut faults)).collect();
    if total > 0 && alerts.is_empty() {
        return Err(faults.told());
    }
    Ok(Delivery { status, receiver: receiver.unwrap_or_default(), truncated_alerts, alerts, dropped: faults.told() })
}

/// Entry point for fuzzing: any bytes as a delivery's body.
#[doc(hidden)]
pub fn fuzz_webhook(data: &[u8]) {
    let _ = parse(data);
}

#[derive(Deserialize)]
struct RawDelivery<'a> {
    #[serde(borrow, default)]
    version: Option<&'a RawValue>,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
    #[serde(borrow, default)]
    receiver: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "truncatedAlerts")]
    truncated_alerts: Option<&'a RawValue>,
    #[serde(borrow, default)]
    alerts: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawAlert<'a> {
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
    #[serde(borrow, default)]
    labels: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "startsAt")]
    starts_at: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "endsAt")]
    ends_at: Option<&'a RawValue>,
    #[serde(borrow, default)]
    fingerprint: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
struct RawLabels {
    #[serde(default)]
    alertname: Option<String>,
    #[serde(default)]
    mcp_server: Option<String>,
    #[serde(default)]
    instance: Option<String>,
}

fn alert(n: usize, raw: &RawValue, faults: &mut Faults) -> Option<Alert> {
    let path = format!("alerts[{n}]");
    let at = |field: &str| format!("{path}.{field}");
    let raw: RawAlert<'_> = match object(raw.get()) {
        Ok(raw) => raw,
        Err(e) => {
            faults.add(&path, format!("must be an object: {e}"));
            return None;
        }
    };
    let before = faults.total;
    let status = faults.status(&at("status"), raw.status);
    if raw.starts_at.is_none() {
        faults.add(&at("startsAt"), "is missing".to_owned());
    }
    let starts_at = faults.time(&at("startsAt"), raw.starts_at);
    let ends_at = faults.time(&at("endsAt"), raw.ends_at);
    let labels = faults.labels(&at("labels"), raw.labels);
    let fingerprint = faults.optional_text(&at("fingerprint"), raw.fingerprint);
    if faults.total > before {
        return None;
    }
    Some(Alert {
        status: status?,
        starts_at: starts_at?,
        ends_at: ends_at.filter(|end| end.as_second() > YEAR_2_UNIX_SECONDS),
        alertname: labels.alertname,
        mcp_server: labels.mcp_server,
        instance: labels.instance,
        fingerprint,
    })
}

/// Serde would also take a list as a struct, field by field.
fn object<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    if !text.trim_ascii_start().starts_with('{') {
        return Err("it does not begin with {".to_owned());
    }
    serde_json::from_str(text).map_err(|e| e.to_string())
}

/// Go's zero time lies in the year 1.
const YEAR_2_UNIX_SECONDS: i64 = -62_104_060_800;

#[derive(Default)]
struct Faults {
    kept: Vec<Fault>,
    total: usize,
}

impl Faults {
    fn add(&mut self, path: &str, what: String) {
        self.total += 1;
        if self.kept.len() < FAULTS_MAX {
            self.kept.push(Fault { path: path.to_owned(), what });
        }
    }

    const fn none(&self) -> bool {
        self.total == 0
    }

    fn told(mut self) -> Vec<Fault> {
        let more = self.total - self.kept.len();
        if more > 0 {
            self.kept.push(Fault { path: String::new(), what: format!("and {more} more faults") });
        }
        self.kept
    }

    fn text<'a>(&mut self, path: &str, raw: Option<&'a RawValue>) -> Option<Cow<'a, str>> {
        if raw.is_none() {
            self.add(path, "is missing".to_owned());
        }
        self.maybe_text(path, raw)
    }

    fn optional_text(&mut self, path: &str, raw: Option<&RawValue>) -> Option<String> {
        self.maybe_text(path, raw).map(Cow::into_owned)
    }

    fn maybe_text<'a>(&mut self, path: &str, raw: Option<&'a RawValue>) -> Option<Cow<'a, str>> {
        let raw = raw?;
        // A borrowed string where nothing is escaped, which is nearly always.
        if let Ok(text) = serde_json::from_str::<&str>(raw.get()) {
            return Some(Cow::Borrowed(text));
        }
        let text = serde_json::from_str::<String>(raw.get()).ok();
        if text.is_none() {
            self.add(path, format!("must be a string, is {}", shown(raw.get())));
        }
        text.map(Cow::Owned)
    }

    fn status(&mut self, path: &str, raw: Option<&RawValue>) -> Option<Status> {
        match self.text(path, raw)?.as_ref() {
            "firing" => Some(Status::Firing),
            "resolved" => Some(Status::Resolved),
            other => {
                self.add(path, format!("must be \"firing\" or \"resolved\", is {}", shown(other)));
                None
            }
        }
    }

    fn time(&mut self, path: &str, raw: Option<&RawValue>) -> Option<Timestamp> {
        let text = self.maybe_text(path, raw)?;
        let at = text.parse().ok();
        if at.is_none() {
            self.add(path, format!("must be an RFC 3339 time, is {}", shown(&text)));
        }
        at
    }

    fn count(&mut self, path: &str, raw: Option<&RawValue>) -> u64 {
        let Some(raw) = raw else { return 0 };
        serde_json::from_str(raw.get()).unwrap_or_else(|_| {
            self.add(path, format!("must be a whole number from 0, is {}", shown(raw.get())));
            0
        })
    }

    fn list<'a>(&mut self, path: &str, raw: Option<&'a RawValue>) -> Option<Vec<&'a RawValue>> {
        let Some(raw) = raw else {
            self.add(path, "is missing".to_owned());
            return None;
        };
        let list = serde_json::from_str(raw.get()).ok();
        if list.is_none() {
            self.add(path, format!("must be a list, is {}", shown(raw.get())));
        }
        list
    }

    fn labels(&mut self, path: &str, raw: Option<&RawValue>) -> RawLabels {
        let Some(raw) = raw else { return RawLabels::default() };
        object(raw.get()).unwrap_or_else(|_| {
            self.add(path, format!("must be an object of strings, is {}", shown(raw.get())));
            RawLabels::default()
        })
    }
}

/// A value as it may be repeated: cut, and with no control character left as it is.
fn shown(text: &str) -> String {
    let cut: String = text.chars().take(SHOWN_MAX).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("\"{}{dots}\"", cut.escape_debug())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// What Alertmanager 0.28 sends.
    fn delivery() -> Value {
        json!({
            "receiver": "medic", "status": "firing", "version": "4", "groupKey": "{}:{alertname=\"X\"}", "truncatedAlerts": 0,
            "groupLabels": {"alertname": "X"}, "commonLabels": {}, "commonAnnotations": {}, "externalURL": "http://am:9093",
            "alerts": [alert_of("api"), alert_of("db")]
        })
    }

    fn alert_of(server: &str) -> Value {
        json!({
            "status": "firing",
            "labels": {"alertname": "MCPHangarProviderDead", "mcp_server": server, "instance": "127.0.0.1:8000", "severity": "critical"},
            "annotations": {"summary": "dead"}, "startsAt": "2026-11-30T15:18:05.19Z", "endsAt": "0001-01-01T00:00:00Z",
            "generatorURL": "http://prom/graph", "fingerprint": "c0ffee"
        })
    }

    fn changed(path: &str, value: Value) -> Vec<u8> {
        let mut body = delivery();
        *body.pointer_mut(path).unwrap_or_else(|| panic!("no {path}")) = value;
        body.to_string().into_bytes()
    }

    fn faults(body: &[u8]) -> Vec<String> {
        parse(body).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_real_delivery_is_taken_whole() {
        let got = parse(delivery().to_string().as_bytes()).unwrap();
        assert_eq!((got.status, got.receiver.as_str(), got.truncated_alerts, got.dropped.len()), (Status::Firing, "medic", 0, 0));
        let servers: Vec<_> = got.alerts.iter().map(|a| a.mcp_server.as_deref().unwrap()).collect();
        assert_eq!(servers, ["api", "db"]);
        assert_eq!(got.alerts[0].ends_at, None);
        assert_eq!(got.alerts[0].starts_at, "2026-11-30T15:18:05.19Z".parse().unwrap());
    }

    #[test]
    fn unknown_fields_missing_optional_ones_and_escaped_text_are_tolerated() {
        let body = json!({"version": "4", "status": "resolved", "alerts": [
            {"status": "resolved", "startsAt": "2026-11-30T16:18:05+01:00", "endsAt": "2026-11-30T15:19:00Z", "labels": {"a\"b": "c"}, "new": [1]}
        ], "truncatedAlerts": 3, "receiver": "a\"b\u{e9}", "more": {}});
        let got = parse(body.to_string().as_bytes()).unwrap();
        assert_eq!((got.receiver.as_str(), got.truncated_alerts, got.alerts.len()), ("a\"b\u{e9}", 3, 1));
        assert_eq!(got.alerts[0].ends_at, Some("2026-11-30T15:19:00Z".parse().unwrap()));
    }

    #[test]
    fn one_bad_alert_does_not_drop_the_rest() {
        let check = |path: &str, value: Value, fault: &str| {
            let got = parse(&changed(path, value)).unwrap();
            assert_eq!(got.alerts.len(), 1, "{path}");
            assert_eq!(got.dropped.iter().map(ToString::to_string).collect::<Vec<_>>(), [fault]);
        };
        check("/alerts/0", json!(7), "alerts[0]: must be an object: it does not begin with {");
        check("/alerts/1/status", json!("paused"), "alerts[1].status: must be \"firing\" or \"resolved\", is \"paused\"");
        check("/alerts/0/startsAt", Value::Null, "alerts[0].startsAt: is missing");
        check("/alerts/0/endsAt", json!("soon"), "alerts[0].endsAt: must be an RFC 3339 time, is \"soon\"");
        check(
            "/alerts/0/labels",
            json!({"mcp_server": 1}),
            "alerts[0].labels: must be an object of strings, is \"{\\\"mcp_server\\\":1}\"",
        );
        check("/alerts/0/fingerprint", json!(1), "alerts[0].fingerprint: must be a string, is \"1\"");
    }

    #[test]
    fn what_can_never_be_valid_is_refused_with_every_fault() {
        let body = json!({"version": "3", "status": "on", "truncatedAlerts": -1, "alerts": {}});
        assert_eq!(
            faults(body.to_string().as_bytes()),
            [
                "version: must be \"4\", is \"3\"",
                "status: must be \"firing\" or \"resolved\", is \"on\"",
                "truncatedAlerts: must be a whole number from 0, is \"-1\"",
                "alerts: must be a list, is \"{}\"",
            ]
        );
        assert_eq!(faults(b"{}"), ["version: is missing", "status: is missing", "alerts: is missing"]);
        assert_eq!(faults(&changed("/alerts", json!([{}, 1]))).len(), 3);
        for broken in [&b""[..], b"[]", b"null", b"<html>", b"{\"version\":\"4\"", b"\xff\xfe", &b"[".repeat(100_000)] {
            assert_eq!(faults(broken).len(), 1);
        }
    }

    #[test]
    fn faults_are_bounded_and_repeat_no_control_characters() {
        let alerts: Vec<Value> = (0..500).map(|_| json!({"status": "a\n\u{1b}[31m", "startsAt": "2026-11-30T15:18:05Z"})).collect();
        let told = faults(&changed("/alerts", json!(alerts)));
        assert_eq!(told.len(), FAULTS_MAX + 1);
        assert_eq!(told.last().unwrap(), "and 450 more faults");
        assert!(told.iter().all(|f| !f.contains(char::is_control)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in proptest::collection::vec(any::<u8>(), 0..512)) {
            fuzz_webhook(&body);
        }

        #[test]
        fn no_damage_to_a_real_delivery_makes_it_panic_or_invents_alerts(at in any::<proptest::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
            let mut body = delivery().to_string().into_bytes();
            let at = at.index(body.len());
            if cut { body.truncate(at) } else { body[at] = byte }
            if let Ok(got) = parse(&body) {
                prop_assert!(!got.alerts.is_empty() && got.alerts.len() <= 2);
            }
        }
    }
}
