//! Each record as one line for a person and as a step of the counters.

use crate::metrics::Metrics;
use crate::policy::{ApprovalEnd, ApprovalEvent, Body, GlassEvent, History, Outcome, Record};

/// Logs a record and counts it. `history` is the past without it.
pub fn tell(record: &Record, history: &History, metrics: &Metrics) {
    match &record.body {
        Body::IncidentOpened { incident_id, mcp_server, symptom, reason, since, reopens, .. } => {
            metrics.incident_opened(*reason, record.at.duration_since(*since));
            let reopens = reopens.as_deref();
            tracing::warn!(event = "incident_opened", incident_id, mcp_server, %symptom, %reason, %since, reopens);
        }
        Body::IncidentUpdated { incident_id, symptom, reason, .. } => {
            tracing::info!(event = "incident_updated", incident_id, mcp_server = server(incident_id), %symptom, %reason);
        }
        Body::IncidentClosed { incident_id, how, why } => {
            metrics.incident_closed(*how);
            tracing::info!(event = "incident_closed", incident_id, mcp_server = server(incident_id), %how, why);
        }
        Body::AttemptOpened { attempt_id, mcp_server, action, why, slow_retry, .. } => {
            if history.open.get(mcp_server).and_then(|i| i.approval.as_ref()).is_some_and(|a| a.action == *action) {
                metrics.approval(ApprovalEvent::Used);
            }
            tracing::info!(event = "attempt_opened", attempt_id, mcp_server, %action, rank = action.rank(), slow_retry, why);
        }
        Body::AttemptHalfDone { attempt_id, .. } => {
            tracing::info!(event = "attempt_half_done", attempt_id, mcp_server = server(attempt_id));
        }
        Body::AttemptReceipt { attempt_id, receipt, outcome, detail, .. } => {
            let outcome = outcome.map(Outcome::as_str);
            tracing::info!(event = "attempt_receipt", attempt_id, mcp_server = server(attempt_id), %receipt, outcome, detail);
        }
        Body::AttemptSettled { attempt_id, outcome, why } => {
            settled(record, history, metrics, attempt_id, *outcome);
            tracing::info!(event = "attempt_settled", attempt_id, mcp_server = server(attempt_id), %outcome, why);
        }
        Body::HoldOrdered { mcp_server, cause, why } => tracing::warn!(event = "hold_ordered", mcp_server, %cause, why),
        Body::HoldReleased { mcp_server, why } => tracing::info!(event = "hold_released", mcp_server, why),
        Body::HangarRestarted { process_start } => tracing::info!(event = "hangar_process", %process_start),
        Body::WouldAct { incident_id, action } => {
            tracing::info!(event = "would_act", incident_id, mcp_server = server(incident_id), %action);
        }
        Body::Exhausted { incident_id } => {
            tracing::error!(event = "exhausted", incident_id, mcp_server = server(incident_id), "every rung was tried: a person is needed");
        }
        Body::Granted { grant_id, action, target, principal, role, reason, expires_at } => {
            metrics.break_glass(GlassEvent::Granted);
            tracing::warn!(event = "granted", grant_id, %action, target, principal, role, reason, %expires_at);
        }
        Body::GrantUsed { grant_id, request_id } => {
            metrics.break_glass(GlassEvent::Used);
            tracing::warn!(event = "grant_used", grant_id, request_id);
        }
        Body::GrantExpired { grant_id } => {
            metrics.break_glass(GlassEvent::Expired);
            tracing::info!(event = "grant_expired", grant_id);
        }
        Body::GrantRefused { action, target, principal, role, reason, why } => {
            metrics.break_glass(GlassEvent::Refused);
            tracing::warn!(event = "grant_refused", %action, target, principal, role, reason, why);
        }
        Body::Request { request_id, restart_class, target, principal, role, reason, report, acts, .. } => {
            metrics.restart_requested(report.allowed);
            let allowed = report.allowed;
            tracing::info!(event = "request", request_id, %restart_class, target, principal, role, reason, allowed, acts);
        }
        Body::RequestEnded { request_id, how, why } => tracing::info!(event = "request_ended", request_id, %how, why),
        Body::AttemptSaved { attempt_id, saved } => {
            let (ready, dead, left) = (saved.ready.len(), saved.dead.len(), saved.left.len());
            tracing::info!(event = "attempt_saved", attempt_id, mcp_server = server(attempt_id), ready, dead, left);
        }
        Body::AttemptSecond { attempt_id, .. } => {
            tracing::info!(event = "attempt_second_half", attempt_id, mcp_server = server(attempt_id));
        }
        Body::Paused { mcp_server, until, principal, role, reason } => {
            tracing::warn!(event = "paused", mcp_server, %until, principal, role, reason);
        }
        Body::Unpaused { mcp_server, why } => tracing::info!(event = "unpaused", mcp_server, why),
        Body::Approved { approval_id, incident_id, action, evidence_sha256, principal, role, reason, expires_at, .. } => {
            metrics.approval(ApprovalEvent::Approved);
            let mcp_server = server(incident_id);
            tracing::warn!(event = "approved", approval_id, incident_id, mcp_server, %action, evidence_sha256, principal, role, reason, %expires_at);
        }
        Body::ApprovalEnded { approval_id, incident_id, how, why } => {
            metrics.approval(match how {
                ApprovalEnd::Voided => ApprovalEvent::Voided,
                ApprovalEnd::Expired => ApprovalEvent::Expired,
            });
            tracing::warn!(event = "approval_ended", approval_id, incident_id, mcp_server = server(incident_id), %how, why);
        }
        Body::Anchor { records, .. } => tracing::info!(event = "retention", records),
    }
}

fn server(id: &str) -> &str {
    crate::policy::server_of(id)
}

fn settled(record: &Record, history: &History, metrics: &Metrics, attempt_id: &str, outcome: Outcome) {
    let name = server(attempt_id);
    let incident = history.open.get(name).or_else(|| history.closed.get(name));
    let attempt = incident.and_then(|i| i.attempt(attempt_id));
    let (Some(incident), Some(attempt)) = (incident, attempt) else { return };
    metrics.attempt_settled(attempt.action, attempt.outcome, outcome);
    if outcome == Outcome::Recovered {
        metrics.recovered(attempt.action, incident.reason, record.at.duration_since(incident.since));
    }
}
