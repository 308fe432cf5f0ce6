//! Approvals: a person allows one action of one incident, for the very evidence that was shown, once and for a short time.
//! It opens what the reason forbids and nothing else: every other brake is asked as always.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::hex::hex;
use super::history::{History, Incident};
use super::ladder::Rung;
use super::limits::Policy;
use super::reason::Reason;
use super::record::Body;
use super::snapshot::{ServerReading, Snapshot};
use super::when::{after, doubled};
use super::words::words;

words! {
    /// What happened around approvals; the metric's label.
    pub enum ApprovalEvent as "approval event" {
        Approved = "approved",
        /// The action was begun.
        Used = "used",
        /// The evidence changed.
        Voided = "voided",
        Expired = "expired",
        Refused = "refused",
    }
}

words! {
    /// How an approval ended that was not used.
    pub enum ApprovalEnd as "approval end" {
        Voided = "voided",
        Expired = "expired",
    }
}

words! {
    /// Why nothing was approved.
    pub enum ApprovalRefusal as "approval refusal" {
        NotPermitted = "not_permitted",
        /// The evidence is not what the request speaks of (any more).
        EvidenceChanged = "evidence_changed",
        NothingToApprove = "nothing_to_approve",
        AlreadyApproved = "already_approved",
    }
}

/// An approval that stands, folded from its record: neither used, voided nor recorded as expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    pub approval_id: String,
    pub action: Rung,
    pub evidence_sha256: String,
    pub principal: String,
    pub role: String,
    pub at: Timestamp,
    pub expires_at: Timestamp,
}

/// What a person may approve now, and on what evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approvable {
    pub action: Rung,
    /// What it turns on; `evidence_sha256` is of this.
    pub evidence: BTreeMap<String, Value>,
    /// Lower-case hex.
    pub evidence_sha256: String,
    pub approved: Option<Approval>,
}

/// Somebody approves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalAsk {
    pub approval_id: String,
    pub incident_id: String,
    pub action: Rung,
    pub evidence_sha256: String,
    pub principal: String,
    pub role: String,
    pub reason: String,
}

/// What of this incident can be approved: the start of a blocked server, once it is known what it exposes.
///
/// The evidence is which names are at issue, no matter in what order they are told. Without Hangar's log the undeclared
/// names are unknown; then the block itself is part of it, so that a later block asks again.
#[must_use]
pub fn approvable(policy: &Policy, incident: &Incident, server: Option<&ServerReading>) -> Option<Approvable> {
    let action = Rung::SessionReconnect;
    let acting = incident.open_attempt().is_some_and(|a| !a.action.only_looks());
    if acting || incident.reason != Reason::CapabilityBlocked || policy.rung_of(&incident.mcp_server, action).is_none() {
        return None;
    }
    let looks = incident.attempts.iter().rev().filter(|a| a.action == Rung::CapabilityRefresh);
    let looked = looks.map(|a| &a.evidence).find(|e| !e.is_empty());
    let recorded = |key: &str| looked.and_then(|e| e.get(key)).and_then(names);
    let told = server.and_then(|s| s.log.as_ref()).map(|log| &log.undeclared_tools).filter(|names| !names.is_empty());
    let undeclared = told.map(|names| names.iter().cloned().collect()).or_else(|| recorded("undeclared_tools"));
    let exposed = recorded("exposed_tools");
    if undeclared.is_none() && exposed.is_none() {
        return None;
    }
    let mut evidence = BTreeMap::from([
        ("incident_id".to_owned(), Value::from(incident.incident_id.as_str())),
        ("mcp_server".to_owned(), Value::from(incident.mcp_server.as_str())),
        ("action".to_owned(), Value::from(action.as_str())),
        ("reason".to_owned(), Value::from(incident.reason.as_str())),
        ("undeclared_tools".to_owned(), list(undeclared.as_ref())),
        ("exposed_tools".to_owned(), list(exposed.as_ref())),
    ]);
    if undeclared.is_none() {
        let since = server.and_then(|s| s.rest.as_ref()?.dead.as_ref()?.since);
        evidence.insert("blocked_since".to_owned(), since.map_or(Value::Null, |at| Value::from(at.to_string())));
    }
    let evidence_sha256 = digest(&evidence);
    Some(Approvable { action, evidence, evidence_sha256, approved: incident.approval.clone() })
}

/// The pause before what a blocked server exposes is looked at again, doubled each time.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_mins(1);
const LOOK_AGAIN_MAX: SignedDuration = SignedDuration::from_mins(15);

/// When a blocked server is looked at again, since no look so far told what it exposes: the medic ended meanwhile, or Hangar did not
/// answer. Else nobody could ever approve its start.
#[must_use]
pub fn look_again_at(policy: &Policy, incident: &Incident, server: &ServerReading) -> Option<Timestamp> {
    if incident.reason != Reason::CapabilityBlocked || approvable(policy, incident, Some(server)).is_some() {
        return None;
    }
    policy.rung_of(&incident.mcp_server, Rung::CapabilityRefresh)?;
    let looks: Vec<_> = incident.attempts.iter().filter(|a| a.action == Rung::CapabilityRefresh).collect();
    let pause = doubled(LOOK_AGAIN, looks.len().saturating_sub(1), LOOK_AGAIN_MAX);
    Some(after(looks.last()?.settled_at?, pause))
}

fn names(value: &Value) -> Option<BTreeSet<String>> {
    value.as_array().map(|names| names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

fn list(names: Option<&BTreeSet<String>>) -> Value {
    names.map_or(Value::Null, |names| names.iter().map(String::as_str).collect())
}

/// SHA-256 of the evidence as compact JSON with sorted keys.
fn digest(evidence: &BTreeMap<String, Value>) -> String {
    let pairs = evidence.iter().map(|(key, value)| format!("{}:{value}", Value::from(key.as_str()))).collect::<Vec<_>>().join(",");
    hex(&Sha256::digest(format!("{{{pairs}}}")))
}

/// The approval that opens what is forbidden in this incident now, if there is one for exactly what is known now.
/// One from the future (the clock stepped back) opens nothing.
#[must_use]
pub fn opened<'a>(policy: &Policy, incident: &'a Incident, server: &ServerReading, now: Timestamp) -> Option<&'a Approval> {
    let approval = incident.approval.as_ref()?;
    let current = approvable(policy, incident, Some(server))?;
    let same = current.action == approval.action && current.evidence_sha256 == approval.evidence_sha256;
    (same && approval.at <= now && now < approval.expires_at).then_some(approval)
}

/// Judges an approval. The record, if it is one.
///
/// # Errors
/// Why not, in words for whoever asked.
pub fn approve(
    policy: &Policy,
    snapshot: &Snapshot,
    history: &History,
    ask: &ApprovalAsk,
    now: Timestamp,
) -> Result<Body, (ApprovalRefusal, String)> {
    if !policy.matrix.permits(&ask.role, ask.action) {
        let why = format!("the class matrix does not permit {} to the role {}", ask.action, ask.role);
        return Err((ApprovalRefusal::NotPermitted, why));
    }
    let nothing = |why: &str| (ApprovalRefusal::NothingToApprove, why.to_owned());
    let incident = history.open.values().find(|i| i.incident_id == ask.incident_id);
    let incident = incident.ok_or_else(|| nothing("no open incident has this id"))?;
    let server = snapshot.servers.get(&incident.mcp_server);
    let current = approvable(policy, incident, server).filter(|c| c.action == ask.action);
    let current = current.ok_or_else(|| {
        nothing(
            "nothing of this incident waits for that approval: it is not blocked, its tools are not known yet, or its start is under way",
        )
    })?;
    if current.evidence_sha256 != ask.evidence_sha256 {
        let why = "the evidence is another one now: look at it again, and approve that".to_owned();
        return Err((ApprovalRefusal::EvidenceChanged, why));
    }
    if let Some(standing) = current.approved.filter(|a| now < a.expires_at) {
        return Err((
            ApprovalRefusal::AlreadyApproved,
            format!("{} approved it already, until {}", standing.principal, standing.expires_at),
        ));
    }
    Ok(Body::Approved {
        approval_id: ask.approval_id.clone(),
        incident_id: ask.incident_id.clone(),
        action: ask.action,
        evidence_sha256: current.evidence_sha256,
        evidence: current.evidence,
        principal: ask.principal.clone(),
        role: ask.role.clone(),
        reason: ask.reason.clone(),
        expires_at: after(now, policy.approval_lasts),
    })
}

/// Approvals that are over or whose evidence changed, to be recorded as such.
#[must_use]
pub fn ended(policy: &Policy, snapshot: &Snapshot, history: &History, now: Timestamp) -> Vec<Body> {
    let end = |incident: &Incident| {
        let approval = incident.approval.as_ref()?;
        let server = snapshot.servers.get(&incident.mcp_server).filter(|_| snapshot.hangar.fresh);
        let current = server.and_then(|server| approvable(policy, incident, Some(server)));
        let (how, why) = if now >= approval.expires_at {
            (ApprovalEnd::Expired, "its time is over")
        } else if current.is_some_and(|c| c.evidence_sha256 != approval.evidence_sha256) {
            (ApprovalEnd::Voided, "the evidence changed: it must be looked at again")
        } else {
            return None;
        };
        let (approval_id, incident_id) = (approval.approval_id.clone(), incident.incident_id.clone());
        Some(Body::ApprovalEnded { approval_id, incident_id, how, why: why.to_owned() })
    };
    history.open.values().filter_map(end).collect()
}
