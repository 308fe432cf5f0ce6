//! Alertmanager's silences (API v2): an active one on one of Hangar's alerts for a server says that a person is at work.
//!
//! A silence is often set before the alert fires, so it is matched against the alerts that Hangar's rules would raise, and
//! against those that Alertmanager holds. An inhibited alert is no person's work and holds nothing: `MCPHangarProviderDead`
//! usually inhibits its neighbour.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use regex::Regex;
use reqwest::{Client, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::http;
use crate::config::HttpAccess;
use crate::hangar::fault::{chain, clean, clean_to};
use crate::policy::Silenced;

/// Hangar's alerts of a dead server, with their severity (its runbook).
const ALERTS: [(&str, &str); 2] = [("MCPHangarProviderDead", "critical"), ("MCPHangarProviderNotSeenHealthy", "warning")];
/// Largest answer, in bytes.
const BODY_MAX: u64 = 16 * 1024 * 1024;
/// Largest compiled pattern, in bytes.
const REGEX_MAX: usize = 1 << 20;

/// What the engine hears.
#[derive(Debug, Clone)]
pub enum Update {
    Known(Arc<Silences>),
    /// Alertmanager cannot be asked, or did not answer as it should.
    Unknown,
}

/// How to reach Alertmanager.
#[derive(Debug, Clone)]
pub struct Settings {
    pub url: Url,
    /// The value of the alerts' `instance` label for this Hangar.
    pub instance: String,
    pub poll_interval: Duration,
    pub timeout: Duration,
    pub http: HttpAccess,
}

/// The active silences at one moment, and the alerts of ours that Alertmanager holds.
#[derive(Debug, Clone, Default)]
pub struct Silences {
    instance: String,
    set: Vec<Silence>,
    /// Labels of alerts, by alert name and server.
    alerts: BTreeMap<(String, String), BTreeMap<String, String>>,
}

#[derive(Debug, Clone)]
struct Silence {
    from: Timestamp,
    until: Timestamp,
    what: String,
    matchers: Vec<Matcher>,
}

#[derive(Debug, Clone)]
struct Matcher {
    label: String,
    equal: bool,
    test: Test,
}

#[derive(Debug, Clone)]
enum Test {
    Text(String),
    Pattern(Regex),
    /// A pattern that cannot be read here: taken to match, since a person may be at work.
    Any,
}

impl Matcher {
    fn holds(&self, value: &str) -> bool {
        match &self.test {
            Test::Text(text) => (text == value) == self.equal,
            Test::Pattern(pattern) => pattern.is_match(value) == self.equal,
            Test::Any => true,
        }
    }

    /// It asks for a value of its own, so that it names something.
    fn names(&self) -> bool {
        self.equal && !self.holds("")
    }
}

impl Silences {
    /// The silence that holds this server now and lasts longest.
    #[must_use]
    pub fn of(&self, mcp_server: &str, now: Timestamp) -> Option<Silenced> {
        let active = self.set.iter().filter(|s| s.from <= now && now < s.until);
        let ours = active.filter(|s| ALERTS.iter().any(|(alert, severity)| self.matches(s, alert, severity, mcp_server)));
        ours.max_by_key(|s| s.until).map(|s| Silenced { until: s.until, what: s.what.clone() })
    }

    fn matches(&self, silence: &Silence, alert: &str, severity: &str, mcp_server: &str) -> bool {
        if let Some(labels) = self.alerts.get(&(alert.to_owned(), mcp_server.to_owned())) {
            return silence.matchers.iter().all(|m| m.holds(labels.get(&m.label).map_or("", String::as_str)));
        }
        // The alert has yet to fire: some of its labels are not known here. Those are taken to match where the silence names
        // the alert, the server or this Hangar; else it is some other team's.
        let (mut unknown, mut named) = (false, false);
        for matcher in &silence.matchers {
            let known = match matcher.label.as_str() {
                "alertname" => Some(alert),
                "mcp_server" => Some(mcp_server),
                "instance" => Some(self.instance.as_str()),
                "severity" => Some(severity),
                _ => None,
            };
            match known {
                Some(value) if !matcher.holds(value) => return false,
                Some(_) => named |= matcher.label != "severity" && matcher.names(),
                None => unknown |= matcher.names(),
            }
        }
        named || !unknown
    }

    /// Reads Alertmanager's answers to `/api/v2/silences` and `/api/v2/alerts`.
    ///
    /// # Errors
    /// An answer that is not Alertmanager's, in one line.
    pub fn parse(instance: &str, silences: &[u8], alerts: &[u8]) -> Result<Self, String> {
        let silences: Vec<RawSilence> = json(silences)?;
        let alerts: Vec<RawAlert> = json(alerts)?;
        let of_ours = |a: &RawAlert| a.labels.get("instance").is_none_or(|i| i == instance);
        let keyed = |a: RawAlert| Some(((a.labels.get("alertname")?.clone(), a.labels.get("mcp_server")?.clone()), a.labels));
        Ok(Self {
            instance: instance.to_owned(),
            set: silences.into_iter().filter(|s| s.status.state != "expired").map(Silence::from).collect(),
            alerts: alerts.into_iter().filter(of_ours).filter_map(keyed).collect(),
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSilence {
    id: String,
    status: RawStatus,
    starts_at: Timestamp,
    ends_at: Timestamp,
    #[serde(default)]
    created_by: String,
    #[serde(default)]
    comment: String,
    matchers: Vec<RawMatcher>,
}

#[derive(Deserialize)]
struct RawStatus {
    state: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMatcher {
    name: String,
    value: String,
    is_regex: bool,
    /// Absent before Alertmanager 0.22.
    #[serde(default = "yes")]
    is_equal: bool,
}

#[derive(Deserialize)]
struct RawAlert {
    labels: BTreeMap<String, String>,
}

const fn yes() -> bool {
    true
}

impl From<RawSilence> for Silence {
    fn from(raw: RawSilence) -> Self {
        let what = format!("silence {} of {}: {}", clean_to(&raw.id, 40), clean_to(&raw.created_by, 80), clean_to(&raw.comment, 200));
        let matchers = raw.matchers.into_iter().map(Matcher::from).collect();
        Self { from: raw.starts_at, until: raw.ends_at, what, matchers }
    }
}

impl From<RawMatcher> for Matcher {
    fn from(raw: RawMatcher) -> Self {
        let test = if raw.is_regex {
            let whole = format!("^(?:{})$", raw.value);
            let pattern = regex::RegexBuilder::new(&whole).size_limit(REGEX_MAX).build();
            pattern.map_or(Test::Any, Test::Pattern)
        } else {
            Test::Text(raw.value)
        };
        Self { label: raw.name, equal: raw.is_equal, test }
    }
}

fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|e| clean(&format!("not an answer of Alertmanager's: {e}")))
}

/// Entry point for fuzzing: any bytes as both answers.
#[doc(hidden)]
pub fn fuzz_silences(data: &[u8]) {
    if let Ok(silences) = Silences::parse("host:1", data, b"[]") {
        let _ = silences.of("api", Timestamp::UNIX_EPOCH);
    }
    let _ = Silences::parse("host:1", b"[]", data);
}

/// Asks Alertmanager until `stop`.
pub async fn follow<T: From<Update> + Send>(settings: Settings, out: mpsc::Sender<T>, stop: CancellationToken) {
    let mut client = None;
    let mut complaint: Option<String> = None;
    loop {
        let update = match read(&settings, &mut client).await {
            Ok(silences) => {
                if complaint.take().is_some() {
                    tracing::info!(event = "silences_known", "Alertmanager is asked again");
                }
                Update::Known(Arc::new(silences))
            }
            Err(why) => {
                // Its certificates may have been renewed.
                client = None;
                if complaint.as_ref() != Some(&why) {
                    tracing::warn!(event = "silences_unknown", error = why, "Alertmanager cannot be asked for silences");
                    complaint = Some(why);
                }
                Update::Unknown
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            sent = out.send(update.into()) => if sent.is_err() { return },
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(settings.poll_interval) => {}
        }
    }
}

async fn read(settings: &Settings, kept: &mut Option<Client>) -> Result<Silences, String> {
    let client = match kept {
        Some(client) => client,
        None => kept.insert(http::client(&settings.url, settings.timeout, &settings.http)?),
    };
    let authorization = http::authorization(&settings.http)?;
    let get = async |path: &str| {
        let url = settings.url.join(path).map_err(|e| e.to_string())?;
        let mut request = client.get(url);
        if let Some(value) = &authorization {
            request = request.header(reqwest::header::AUTHORIZATION, value);
        }
        let response = request.send().await.map_err(|e| chain(&e.without_url()))?;
        if !response.status().is_success() {
            return Err(format!("HTTP {}", response.status().as_u16()));
        }
        http::body(response, BODY_MAX).await
    };
    let silences = get("api/v2/silences").await?;
    let alerts = get("api/v2/alerts?filter=alertname%3D~%22MCPHangar.*%22").await?;
    Silences::parse(&settings.instance, &silences, &alerts)
}

/// Silences that were heard, and how well; part of the board.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    /// The last known ones: one that is active still holds while Alertmanager cannot be asked.
    last: Option<Arc<Silences>>,
    /// Good or bad, something was heard of Alertmanager.
    any: bool,
    /// Its last answer, unless a failure came after it.
    known_at: Option<Timestamp>,
}

impl Heard {
    /// Takes an update in.
    pub fn hear(&mut self, update: Update, now: Timestamp) {
        self.any = true;
        match update {
            Update::Known(silences) => {
                self.last = Some(silences);
                self.known_at = Some(now);
            }
            Update::Unknown => self.known_at = None,
        }
    }

    /// Nothing was heard of Alertmanager yet, neither good nor bad.
    #[must_use]
    pub const fn is_awaited(&self) -> bool {
        !self.any
    }

    /// Whether the silences are known now.
    #[must_use]
    pub fn is_known(&self, stale_after: SignedDuration, now: Timestamp) -> bool {
        self.known_at.is_some_and(|at| now.duration_since(at) <= stale_after)
    }

    /// See [`Silences::of`].
    #[must_use]
    pub fn of(&self, mcp_server: &str, now: Timestamp) -> Option<Silenced> {
        self.last.as_ref()?.of(mcp_server, now)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: i64 = 1_796_052_100;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(NOW + seconds).unwrap()
    }

    fn silence(matchers: &[&str]) -> Value {
        let one = |text: &&str| {
            let op = ["!=", "!~", "=~", "="].into_iter().find(|op| text.contains(op)).unwrap();
            let (name, value) = text.split_once(op).unwrap();
            json!({"name": name, "value": value, "isRegex": op.ends_with('~'), "isEqual": op.starts_with('=')})
        };
        json!({
            "id": "0123", "status": {"state": "active"}, "startsAt": at(-60).to_string(), "endsAt": at(60).to_string(),
            "updatedAt": at(-60).to_string(), "createdBy": "ann\n", "comment": "replacing the disk",
            "matchers": matchers.iter().map(one).collect::<Vec<_>>(),
        })
    }

    fn alert(labels: &Value) -> Value {
        json!({"labels": labels, "status": {"state": "active", "silencedBy": [], "inhibitedBy": []}, "fingerprint": "f"})
    }

    fn known(silences: &[Value], alerts: &[Value]) -> Silences {
        Silences::parse("hangar-1:8000", json!(silences).to_string().as_bytes(), json!(alerts).to_string().as_bytes()).unwrap()
    }

    #[track_caller]
    fn holds(matchers: &[&str], expected: bool) {
        assert_eq!(known(&[silence(matchers)], &[]).of("api", at(0)).is_some(), expected, "{matchers:?}");
    }

    #[test]
    fn a_silence_that_names_our_alert_or_server_holds_before_the_alert_fires() {
        holds(&["alertname=MCPHangarProviderDead"], true);
        holds(&["alertname=~MCPHangar.*", "mcp_server=api"], true);
        holds(&["mcp_server=~a.i|db"], true);
        holds(&["instance=hangar-1:8000"], true);
        holds(&["severity=critical"], true);
        holds(&["mcp_server=api", "cluster=eu"], true);
        holds(&["alertname=MCPHangarProviderDead", "team!=payments"], true);
        holds(&["mcp_server=~(?P<bad"], true);
    }

    #[test]
    fn a_silence_of_something_else_holds_nothing() {
        holds(&["alertname=HighLatency"], false);
        holds(&["mcp_server=db"], false);
        holds(&["mcp_server!=api", "alertname=MCPHangarProviderDead"], false);
        holds(&["mcp_server=~ap"], false);
        holds(&["instance=hangar-2:8000", "mcp_server=api"], false);
        holds(&["team=payments"], false);
        holds(&["severity=critical", "cluster=eu"], false);
    }

    #[test]
    fn once_the_alert_is_there_its_own_labels_decide() {
        let dead = |instance: &str| {
            alert(
                &json!({"alertname": "MCPHangarProviderDead", "mcp_server": "api", "instance": instance, "cluster": "us", "severity": "page"}),
            )
        };
        let held = |matchers: &[&str], instance: &str| known(&[silence(matchers)], &[dead(instance)]).of("api", at(0)).is_some();
        assert!(!held(&["alertname=MCPHangarProviderDead", "cluster=eu"], "hangar-1:8000"));
        assert!(held(&["alertname=MCPHangarProviderDead", "cluster=us"], "hangar-1:8000"));
        assert!(held(&["cluster=us", "severity=page"], "hangar-1:8000"));
        assert!(!held(&["cluster=us"], "hangar-2:8000"), "another Hangar's alert");
    }

    #[test]
    fn only_an_active_silence_holds_and_it_says_until_when_and_whose() {
        let set = known(&[silence(&["mcp_server=api"])], &[]);
        assert_eq!((set.of("api", at(-61)), set.of("api", at(60))), (None, None));
        let held = set.of("api", at(59)).unwrap();
        assert_eq!((held.until, held.what.as_str()), (at(60), "silence 0123 of ann\\n: replacing the disk"));
        let mut expired = silence(&["mcp_server=api"]);
        expired["status"]["state"] = json!("expired");
        assert_eq!(known(&[expired], &[]).of("api", at(0)), None);
        let mut pending = silence(&["mcp_server=api"]);
        (pending["status"]["state"], pending["startsAt"]) = (json!("pending"), json!(at(10).to_string()));
        let pending = known(&[pending], &[]);
        assert_eq!((pending.of("api", at(9)).is_some(), pending.of("api", at(10)).is_some()), (false, true));
    }

    #[test]
    fn what_is_no_answer_of_alertmanagers_is_refused() {
        for body in ["", "{}", "<html>", "[{}]", "null", "{\"status\":\"success\",\"data\":[]}"] {
            assert!(Silences::parse("i", body.as_bytes(), b"[]").is_err(), "{body}");
        }
        assert!(Silences::parse("i", b"[]", b"7").is_err());
    }

    #[test]
    fn a_known_silence_outlives_an_alertmanager_that_is_gone() {
        let mut heard = Heard::default();
        assert!(heard.is_awaited());
        heard.hear(Update::Known(Arc::new(known(&[silence(&["mcp_server=api"])], &[]))), at(0));
        heard.hear(Update::Unknown, at(0));
        assert!(heard.of("api", at(0)).is_some() && !heard.is_awaited());
        assert!(!heard.is_known(SignedDuration::from_hours(1), at(0)));
    }
}
