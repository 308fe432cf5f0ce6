//! What the API and the command line show: the JSON of incidents, attempts and status, and where it comes from.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::story::Story;
use crate::policy::{
    Approvable, Attempt, Auth, Closed, Hold, HoldCause, Incident, LadderDocument, Mode, Outcome, Phase, Provenance, Reason, Receipt,
    RecoveryMetrics, Rung, Standing, Symptom,
};

/// One incident on the wire.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IncidentView {
    pub incident_id: String,
    pub instance: String,
    pub mcp_server: String,
    pub symptoms: Vec<Symptom>,
    pub reason: Reason,
    pub provenance: Option<Provenance>,
    pub phase: Phase,
    pub hold: Option<Hold>,
    pub hold_until: Option<Timestamp>,
    pub why: Option<String>,
    pub opened_at: Timestamp,
    pub closed_at: Option<Timestamp>,
    pub how: Option<Closed>,
    pub attempts: Vec<String>,
    pub evidence: Option<BTreeMap<String, Value>>,
    pub next_retry_at: Option<Timestamp>,
    /// What a person may approve now, and what for; absent where nothing waits for an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalView>,
    /// What each source says of the reason, where they differ; the stricter one is acted on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources_disagree: Vec<SaidView>,
}

/// What can be approved: an approval names `action` and `evidence_sha256` as they are shown here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalView {
    pub action: Rung,
    pub evidence_sha256: String,
    pub evidence: BTreeMap<String, Value>,
    /// The approval that stands and was not used yet.
    pub approved: Option<ApprovedView>,
}

/// An approval that stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovedView {
    pub approval_id: String,
    pub principal: String,
    pub role: String,
    pub at: Timestamp,
    pub expires_at: Timestamp,
    pub evidence_sha256: String,
}

impl From<Approvable> for ApprovalView {
    fn from(approvable: Approvable) -> Self {
        let Approvable { action, evidence, evidence_sha256, approved } = approvable;
        let approved = approved.map(|a| ApprovedView {
            approval_id: a.approval_id,
            principal: a.principal,
            role: a.role,
            at: a.at,
            expires_at: a.expires_at,
            evidence_sha256: a.evidence_sha256,
        });
        Self { action, evidence_sha256, evidence, approved }
    }
}

/// One source's word on why a server is dead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaidView {
    pub reason: Reason,
    #[serde(flatten)]
    pub provenance: Provenance,
}

impl IncidentView {
    /// `standing` is ignored for a closed incident; without one an open incident is `watching`.
    #[must_use]
    pub fn new(incident: &Incident, standing: Option<&Standing>) -> Self {
        let (closed, standing) = match &incident.closed {
            Some(closed) => (Some(closed), Standing::new(Phase::Closed, "")),
            None => (None, standing.cloned().unwrap_or_else(|| Standing::new(Phase::Watching, ""))),
        };
        let looks = incident.attempts.iter().rev().filter(|a| a.action == Rung::CapabilityRefresh);
        let evidence = looks.map(|a| &a.evidence).find(|e| !e.is_empty()).cloned();
        Self {
            incident_id: incident.incident_id.clone(),
            instance: incident.instance.clone(),
            mcp_server: incident.mcp_server.clone(),
            symptoms: incident.symptoms.clone(),
            reason: incident.reason,
            provenance: incident.provenance.clone(),
            phase: standing.phase,
            hold: standing.hold,
            hold_until: standing.until,
            why: closed.map(|(_, _, why)| why.clone()).or(Some(standing.why).filter(|why| !why.is_empty())),
            opened_at: incident.opened_at,
            closed_at: closed.map(|(_, at, _)| *at),
            how: closed.map(|(how, _, _)| *how),
            attempts: incident.attempts.iter().map(|a| a.attempt_id.clone()).collect(),
            evidence,
            next_retry_at: standing.next_retry_at,
            approval: standing.approval.map(ApprovalView::from),
            sources_disagree: Vec::new(),
        }
    }

    /// Leaves out what only a reader with credentials may see.
    #[must_use]
    pub fn without_upstream_text(mut self) -> Self {
        self.evidence = self.evidence.map(without_upstream_text);
        self
    }
}

/// One attempt on the wire: the playbook's five keys first, then ours (playbook, *Attempt log shape*).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptView {
    pub action: Rung,
    pub outcome: Option<Outcome>,
    /// Why it was settled so; before that, why it was made.
    pub reason: String,
    pub actor: String,
    /// Of its latest record.
    pub recorded_at: Timestamp,
    pub attempt_id: String,
    pub incident_id: String,
    pub instance: String,
    pub mcp_server: String,
    pub rank: u8,
    pub started_at: Timestamp,
    pub settled_at: Option<Timestamp>,
    pub receipt: Option<Receipt>,
    pub evidence: Option<BTreeMap<String, Value>>,
    pub prev_hash: String,
    pub hash: String,
    /// Why it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// `worker_restart`: when its stop was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub half_done_at: Option<Timestamp>,
    /// When the target answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_at: Option<Timestamp>,
}

impl From<&Attempt> for AttemptView {
    fn from(attempt: &Attempt) -> Self {
        let reason = if attempt.settled_why.is_empty() { &attempt.why } else { &attempt.settled_why };
        Self {
            action: attempt.action,
            outcome: attempt.outcome,
            reason: reason.clone(),
            actor: attempt.actor.clone(),
            recorded_at: attempt.recorded_at,
            attempt_id: attempt.attempt_id.clone(),
            incident_id: attempt.incident_id.clone(),
            instance: attempt.instance.clone(),
            mcp_server: attempt.mcp_server.clone(),
            rank: attempt.action.rank(),
            started_at: attempt.started_at,
            settled_at: attempt.settled_at,
            receipt: attempt.receipt,
            evidence: (!attempt.evidence.is_empty()).then(|| attempt.evidence.clone()),
            prev_hash: attempt.prev_hash.clone(),
            hash: attempt.hash.clone(),
            why: (!attempt.why.is_empty()).then(|| attempt.why.clone()),
            half_done_at: attempt.half_done_at,
            answered_at: attempt.receipt_at,
        }
    }
}

impl AttemptView {
    /// Leaves out what only a reader with credentials may see.
    #[must_use]
    pub fn without_upstream_text(mut self) -> Self {
        self.evidence = self.evidence.map(without_upstream_text);
        self
    }
}

/// Evidence that names things and holds no text of an upstream. Whatever is not listed stays with the store: Hangar's
/// stdio servers share loopback, and one server's output may hold another's secrets.
const EVIDENCE_FOR_ALL: &[&str] = &[
    "exposed_tools",
    "undeclared_tools",
    "undeclared_tools_note",
    "principal",
    // Ids of servers, and times.
    "servers_before",
    "servers_after",
    "only_live",
    "only_in_file",
    "added",
    "removed",
    "updated",
    "started",
    "left_alone",
    "definition_out",
    "management_lease_before",
    "waited_s",
    crate::policy::LEASE_HELD_UNTIL,
];

fn without_upstream_text(evidence: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let (mut kept, withheld): (BTreeMap<_, _>, BTreeMap<_, _>) =
        evidence.into_iter().partition(|(key, _)| EVIDENCE_FOR_ALL.contains(&key.as_str()));
    if !withheld.is_empty() {
        kept.insert("withheld".to_owned(), withheld.into_keys().collect());
    }
    kept
}

/// `GET /api/v1/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatusView {
    pub version: String,
    pub instance: String,
    pub mode: Mode,
    pub started_at: Timestamp,
    pub ready: bool,
    pub hangar: HangarView,
    pub known_servers: usize,
    pub incidents_open: usize,
    /// Open incidents by what holds them; those that hold none are left out.
    pub holds: BTreeMap<Hold, usize>,
    pub hold_orders: Vec<HoldOrderView>,
    /// Pauses that stand.
    #[serde(default)]
    pub pauses: Vec<PauseView>,
    /// `None` while there is no recovery.
    pub fraction_avoided_full_restart: Option<f64>,
}

/// Hangar as the medic sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HangarView {
    pub url: String,
    pub version: Option<String>,
    pub reachable: bool,
    pub last_read_at: Option<Timestamp>,
    pub process_start_time: Option<Timestamp>,
    pub auth: Auth,
    /// What cannot be seen of this version of Hangar, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cannot_see: Vec<String>,
}

/// A stop that is respected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldOrderView {
    pub mcp_server: String,
    pub cause: HoldCause,
    pub since: Timestamp,
}

/// A pause that stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseView {
    /// `None`: everything.
    pub mcp_server: Option<String>,
    pub since: Timestamp,
    pub until: Timestamp,
    pub principal: String,
    pub reason: String,
}

/// Which incidents are asked for (`?state=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    Open,
    Closed,
    #[default]
    All,
}

/// Why a view cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    #[error("the attempt log cannot be read")]
    Log(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Where the server gets what it shows. Nothing in here changes anything but `wake`.
pub trait Views: Send + Sync {
    /// The daemon at this moment. Must not block.
    fn status(&self) -> StatusView;

    /// The ladder as configured. Must not block.
    fn ladder(&self) -> LadderDocument;

    /// How often a full restart was spared, over the attempt log. Must not block.
    fn recovery_metrics(&self) -> RecoveryMetrics;

    /// Incidents, oldest first; if there are more than `limit`, the newest of them.
    fn incidents(&self, which: Which, limit: usize) -> BoxFuture<'_, Result<Vec<IncidentView>, ViewError>>;

    /// One incident, open or closed.
    fn incident<'a>(&'a self, incident_id: &'a str) -> BoxFuture<'a, Result<Option<IncidentView>, ViewError>>;

    /// Attempts, oldest first; if there are more than `limit`, the newest of them.
    fn attempts<'a>(&'a self, incident_id: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<AttemptView>, ViewError>>;

    /// Incidents with their attempts, oldest first; if there are more than `limit`, the newest of them.
    fn stories(&self, which: Which, limit: usize) -> BoxFuture<'_, Result<Vec<Story>, ViewError>>;

    /// One incident with its attempts, open or closed.
    fn story<'a>(&'a self, incident_id: &'a str) -> BoxFuture<'a, Result<Option<Story>, ViewError>>;

    /// Something was heard: look again soon. Coalesced, so that a flood of calls is one look. Must not block.
    fn wake(&self, n_alerts: usize);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sample::{at, story};

    #[test]
    fn a_closed_incident_says_how_and_why_and_forgets_what_held_it() {
        let (closed, _) = story(true);
        assert_eq!((closed.phase, closed.how, closed.closed_at), (Phase::Closed, Some(Closed::Recovered), Some(at(20))));
        assert_eq!((closed.hold, closed.hold_until, closed.why.as_deref()), (None, None, Some("ready, and still so after 10 s")));
    }

    #[test]
    fn an_attempt_gives_why_it_was_settled_and_before_that_why_it_was_made() {
        let reasons: Vec<String> = story(false).1.into_iter().map(|a| a.reason).collect();
        assert_eq!(reasons, ["Hangar still says dead\nforged line", "no drift", "session_reconnect is next"]);
        assert_eq!(story(false).1[0].recorded_at, at(4));
    }

    #[test]
    fn without_credentials_evidence_names_tools_and_keeps_the_server_log_back() {
        let (incident, attempts) = story(false);
        let want = serde_json::json!({"exposed_tools": ["read"], "principal": "medic", "withheld": ["server_log"]});
        assert_eq!(serde_json::to_value(incident.without_upstream_text().evidence).unwrap(), want);
        let of_attempts: Vec<_> = attempts.into_iter().map(|a| serde_json::to_value(a.without_upstream_text().evidence).unwrap()).collect();
        assert_eq!(of_attempts, [Value::Null, want, Value::Null]);
    }
}
