//! What the API can have done, and what of it is read from a body.

use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};

use super::Caller;
use crate::config::{parse_duration, show_duration};
use crate::engine::{CommandError, Held};
use crate::policy::{AttemptRecord, GRANT_MAX, GrantVerdict, PAUSE_MAX, RequestVerdict, Rung, Symptom, parse_attempt};

/// Characters of a target and of a reason.
const TARGET_MAX: usize = 200;
const REASON_MAX: usize = 2_000;
/// Prior attempts of one request.
const CLAIMED_MAX: usize = 1_000;

/// `POST /api/v1/break-glass`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlassBody {
    pub action: Rung,
    pub target: String,
    pub reason: String,
    /// Positive, at most [`GRANT_MAX`].
    pub duration: SignedDuration,
}

/// `POST /api/v1/restart-requests`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestBody {
    pub restart_class: Rung,
    pub target: String,
    pub symptoms: Vec<Symptom>,
    pub reason: String,
    pub claimed: Vec<AttemptRecord>,
    pub request_break_glass: bool,
}

/// `POST /api/v1/incidents/{id}/approve`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApproveBody {
    pub action: Rung,
    /// As the incident shows it.
    pub evidence_sha256: String,
    pub reason: String,
}

/// `POST /api/v1/pause`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseBody {
    /// `None`: everything.
    pub mcp_server: Option<String>,
    /// Positive, at most [`PAUSE_MAX`].
    pub duration: SignedDuration,
    pub reason: String,
}

/// `POST /api/v1/resume`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeBody {
    /// `None`: ends the pause of everything.
    pub mcp_server: Option<String>,
    pub reason: String,
}

/// Carries out what people ask for. The caller is authenticated, and may ask.
pub trait Operations: Send + Sync {
    /// Judges and records; the verdict says whether there is a grant.
    fn break_glass(&self, caller: Caller, body: GlassBody) -> BoxFuture<'_, Result<GrantVerdict, CommandError>>;

    /// Judges and records; answers with the request's id.
    fn request(&self, caller: Caller, body: RequestBody) -> BoxFuture<'_, Result<(String, RequestVerdict), CommandError>>;

    /// Ends a hold order; answers with the server.
    fn resume(&self, caller: Caller, held: Held, reason: String) -> BoxFuture<'_, Result<String, CommandError>>;

    /// Approves one action of an incident for the evidence that was shown; answers with the record.
    fn approve(&self, caller: Caller, incident_id: String, body: ApproveBody) -> BoxFuture<'_, Result<crate::policy::Body, CommandError>>;

    /// Holds a server until a person resumes it; answers with the server.
    fn hold(&self, caller: Caller, held: Held, reason: String) -> BoxFuture<'_, Result<String, CommandError>>;

    /// Pauses everything or one server; answers with the end of the pause.
    fn pause(&self, caller: Caller, body: PauseBody) -> BoxFuture<'_, Result<Timestamp, CommandError>>;

    /// Ends the pause of everything.
    fn unpause(&self, caller: Caller, reason: String) -> BoxFuture<'_, Result<(), CommandError>>;
}

/// Reads a JSON object and gathers every fault of it.
struct Body {
    values: Map<String, Value>,
    faults: Vec<String>,
}

impl Body {
    fn new(bytes: &[u8]) -> Result<Self, Vec<String>> {
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(values)) => Ok(Self { values, faults: Vec::new() }),
            Ok(_) => Err(vec!["the body must be one JSON object".to_owned()]),
            Err(error) => Err(vec![format!("the body is not valid JSON: {error}")]),
        }
    }

    fn fault(&mut self, key: &str, text: impl std::fmt::Display) {
        self.faults.push(format!("{key}: {text}"));
    }

    fn text(&mut self, key: &str, max: usize) -> Option<String> {
        match self.values.remove(key) {
            Some(Value::String(text)) if text.trim().is_empty() => self.fault(key, "is empty"),
            Some(Value::String(text)) if text.chars().count() > max => self.fault(key, format!("has more than {max} characters")),
            Some(Value::String(text)) => return Some(text),
            Some(Value::Null) | None => self.fault(key, "is missing"),
            Some(_) => self.fault(key, "must be text"),
        }
        None
    }

    /// A text that may be left out.
    fn optional(&mut self, key: &str, max: usize) -> Option<String> {
        match self.values.get(key) {
            Some(Value::Null) | None => {
                self.values.remove(key);
                None
            }
            Some(_) => self.text(key, max),
        }
    }

    fn word<T: std::str::FromStr<Err = crate::policy::UnknownWord>>(&mut self, key: &str) -> Option<T> {
        let text = self.text(key, REASON_MAX)?;
        text.parse().map_err(|error| self.fault(key, error)).ok()
    }

    fn list(&mut self, key: &str) -> Vec<Value> {
        match self.values.remove(key) {
            Some(Value::Array(items)) if items.len() > CLAIMED_MAX => self.fault(key, format!("has more than {CLAIMED_MAX} entries")),
            Some(Value::Array(items)) => return items,
            Some(Value::Null) | None => {}
            Some(_) => self.fault(key, "must be an array"),
        }
        Vec::new()
    }

    fn symptoms(&mut self) -> Vec<Symptom> {
        let mut symptoms = Vec::new();
        for item in self.list("symptoms") {
            match item.as_str().map(str::parse) {
                Some(Ok(symptom)) => symptoms.push(symptom),
                Some(Err(error)) => self.fault("symptoms", error),
                None => self.fault("symptoms", "must be texts"),
            }
        }
        symptoms
    }

    fn flag(&mut self, key: &str) -> bool {
        match self.values.remove(key) {
            Some(Value::Bool(on)) => return on,
            Some(Value::Null) | None => {}
            Some(_) => self.fault(key, "must be true or false"),
        }
        false
    }

    /// A text with a unit, or whole seconds.
    fn duration(&mut self, key: &str, max: SignedDuration) -> Option<SignedDuration> {
        let read = match self.values.remove(key) {
            Some(Value::String(text)) => parse_duration(&text),
            Some(Value::Number(n)) => n.as_i64().map(SignedDuration::from_secs).ok_or_else(|| "must be whole seconds".to_owned()),
            Some(Value::Null) | None => Err("is missing".to_owned()),
            Some(_) => Err("must be a duration such as \"10m\", or seconds".to_owned()),
        };
        match read {
            Ok(duration) if duration.is_positive() && duration <= max => return Some(duration),
            Ok(_) => self.fault(key, format!("is out of bounds: more than 0s, at most {}", show_duration(max))),
            Err(text) => self.fault(key, text),
        }
        None
    }

    /// Every fault, those of keys that nobody asked for included.
    fn done(mut self) -> Vec<String> {
        let unknown: Vec<String> = self.values.keys().map(|k| k.chars().take(80).collect::<String>().escape_debug().to_string()).collect();
        for key in &unknown {
            self.fault(key, "unknown key");
        }
        self.faults
    }
}

/// Reads the body of `POST /api/v1/break-glass`, or every fault of it.
pub(super) fn glass_body(bytes: &[u8]) -> Result<GlassBody, Vec<String>> {
    let mut body = Body::new(bytes)?;
    // The playbook's word for it is taken too.
    let key = if body.values.contains_key("restart_class") { "restart_class" } else { "action" };
    let (action, target, reason) = (body.word(key), body.text("target", TARGET_MAX), body.text("reason", REASON_MAX));
    let duration = body.duration("duration", GRANT_MAX);
    match (action, target, reason, duration, body.done()) {
        (Some(action), Some(target), Some(reason), Some(duration), faults) if faults.is_empty() => {
            Ok(GlassBody { action, target, reason, duration })
        }
        (.., faults) => Err(faults),
    }
}

/// Reads the body of `POST /api/v1/restart-requests`, or every fault of it.
pub(super) fn request_body(bytes: &[u8], now: jiff::Timestamp) -> Result<RequestBody, Vec<String>> {
    let mut body = Body::new(bytes)?;
    let (class, target, reason) = (body.word("restart_class"), body.text("target", TARGET_MAX), body.text("reason", REASON_MAX));
    let symptoms = body.symptoms();
    let request_break_glass = body.flag("request_break_glass");
    let mut claimed = Vec::new();
    for (i, item) in body.list("prior_recovery_attempts").iter().enumerate() {
        match parse_attempt(&item.to_string(), i, now) {
            Ok(attempt) => claimed.push(attempt),
            Err(faults) => body.faults.extend(faults.iter().map(|f| format!("prior_recovery_{f}"))),
        }
    }
    match (class, target, reason, body.done()) {
        (Some(restart_class), Some(target), Some(reason), faults) if faults.is_empty() => {
            Ok(RequestBody { restart_class, target, symptoms, reason, claimed, request_break_glass })
        }
        (.., faults) => Err(faults),
    }
}

/// Reads the body of `POST /api/v1/incidents/{id}/approve`, or every fault of it.
pub(super) fn approve_body(bytes: &[u8]) -> Result<ApproveBody, Vec<String>> {
    let mut body = Body::new(bytes)?;
    let (action, evidence_sha256) = (body.word("action"), body.text("evidence_sha256", 64));
    let reason = body.text("reason", REASON_MAX);
    match (action, evidence_sha256, reason, body.done()) {
        (Some(action), Some(evidence_sha256), Some(reason), faults) if faults.is_empty() => {
            Ok(ApproveBody { action, evidence_sha256, reason })
        }
        (.., faults) => Err(faults),
    }
}

/// Reads the body of `POST /api/v1/pause`, or every fault of it.
pub(super) fn pause_body(bytes: &[u8]) -> Result<PauseBody, Vec<String>> {
    let mut body = Body::new(bytes)?;
    let (mcp_server, duration) = (body.optional("mcp_server", TARGET_MAX), body.duration("duration", PAUSE_MAX));
    let reason = body.text("reason", REASON_MAX);
    match (duration, reason, body.done()) {
        (Some(duration), Some(reason), faults) if faults.is_empty() => Ok(PauseBody { mcp_server, duration, reason }),
        (.., faults) => Err(faults),
    }
}

/// Reads the body of `POST /api/v1/resume`, or every fault of it.
pub(super) fn resume_body(bytes: &[u8]) -> Result<ResumeBody, Vec<String>> {
    let mut body = Body::new(bytes)?;
    let (mcp_server, reason) = (body.optional("mcp_server", TARGET_MAX), body.text("reason", REASON_MAX));
    match (reason, body.done()) {
        (Some(reason), faults) if faults.is_empty() => Ok(ResumeBody { mcp_server, reason }),
        (_, faults) => Err(faults),
    }
}

/// Reads the body of a hold or a resume: `{"reason"}`, or every fault of it.
pub(super) fn reason_body(bytes: &[u8]) -> Result<String, Vec<String>> {
    let mut body = Body::new(bytes)?;
    let reason = body.text("reason", REASON_MAX);
    match (reason, body.done()) {
        (Some(reason), faults) if faults.is_empty() => Ok(reason),
        (_, faults) => Err(faults),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> jiff::Timestamp {
        "2026-11-30T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_grant_is_asked_for_with_a_time_that_has_a_bound() {
        let body = |duration: &str| {
            let text = format!(r#"{{"action":"full_mcp_restart","target":"hangar","reason":"r","duration":{duration}}}"#);
            glass_body(text.as_bytes()).map(|b| show_duration(b.duration)).map_err(|faults| faults.join("; "))
        };
        for (duration, want) in [("\"10m\"", "10m"), ("\"1m 30s\"", "1m 30s"), ("900", "15m"), ("1", "1s")] {
            assert_eq!(body(duration).unwrap(), want);
        }
        let bounds = "duration: is out of bounds: more than 0s, at most 15m";
        for (duration, want) in [
            ("\"16m\"", bounds),
            ("0", bounds),
            ("-5", bounds),
            ("901", bounds),
            ("null", "duration: is missing"),
            ("1.5", "duration: must be whole seconds"),
        ] {
            assert_eq!(body(duration).unwrap_err(), want);
        }
    }

    #[test]
    fn every_fault_of_a_request_is_named() {
        let text = r#"{"restart_class":"kill","target":" ","symptoms":["nope",7],"prior_recovery_attempts":[{"action":"x"}],"request_break_glass":"yes","why":1}"#;
        let faults = request_body(text.as_bytes(), now()).unwrap_err();
        let starts = [
            "restart_class: unknown action \"kill\"",
            "target: is empty",
            "reason: is missing",
            "symptoms: unknown symptom \"nope\"",
            "symptoms: must be texts",
            "request_break_glass: must be true or false",
            "prior_recovery_attempts[0].action: unknown action \"x\"",
        ];
        assert!(starts.iter().all(|s| faults.iter().any(|f| f.starts_with(s))), "{faults:?}");
        assert!(faults.contains(&"why: unknown key".to_owned()));
        assert_eq!(request_body(b"[]", now()).unwrap_err(), ["the body must be one JSON object"]);
        assert!(request_body(b"{} x", now()).unwrap_err()[0].contains("trailing characters"));
    }

    #[test]
    fn only_class_target_and_reason_are_needed() {
        let body = request_body(br#"{"restart_class":"worker_restart","target":"api","reason":"stuck"}"#, now()).unwrap();
        assert_eq!((body.symptoms.len(), body.claimed.len(), body.request_break_glass), (0, 0, false));
    }
}
