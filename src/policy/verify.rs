//! Proof: what came of an attempt. HTTP 200 proves nothing; ready, a later last-healthy and the settle window do.

use jiff::Timestamp;

use super::history::{Attempt, History, Incident};
use super::ladder::Rung;
use super::limits::Policy;
use super::record::{Outcome, Receipt};
use super::seen::Seen;
use super::snapshot::{HangarReading, ServerReading, Snapshot, StopReason};
use super::stops::risen;
use super::when::after;

/// The verdict on an open attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verified {
    /// Nothing can be said before then; `None`: until something changes.
    Pending(Option<Timestamp>),
    /// The window is over: read again what is from before then, and judge.
    ReadAgain(Timestamp),
    /// The metrics are older than the REST answer: read them, then judge.
    ReadMetrics,
    Settled(Outcome, String),
}

fn settled(outcome: Outcome, why: impl Into<String>) -> Verified {
    Verified::Settled(outcome, why.into())
}

/// Judges an attempt that has its receipt. `Seen::Unknown` settles nothing.
#[must_use]
#[allow(clippy::too_many_arguments, reason = "the planner's whole view; a struct of it would be made for this one call")]
pub fn verify(
    policy: &Policy,
    snapshot: &Snapshot,
    history: &History,
    incident: &Incident,
    attempt: &Attempt,
    server: &ServerReading,
    seen: &Seen,
    now: Timestamp,
) -> Verified {
    let hangar = &snapshot.hangar;
    let (Some(receipt), Some(receipt_at)) = (attempt.receipt, attempt.receipt_at) else {
        return Verified::Pending(None);
    };
    // A start that ran is judged by the server, whatever became of the rebalance after it.
    let judged_by_server = attempt.action == Rung::LeaseRecovery && attempt.half_done_at.is_some();
    if let Some(outcome) = attempt.receipt_outcome.filter(|_| !judged_by_server) {
        return settled(outcome, own_words(attempt, outcome));
    }
    if attempt.action.restores_fleet() {
        return if hangar.fresh {
            super::fleet::verify(policy, snapshot, history, attempt, receipt_at, now)
        } else {
            Verified::Pending(None)
        };
    }
    if *seen == Seen::Unknown {
        return Verified::Pending(None);
    }
    if !attempt.made_in(hangar.process_start) {
        return settled(Outcome::Unresolved, "Hangar restarted before the attempt was proved");
    }
    // A slow start is over later than its answer: the window runs from when the server was up.
    let up_at = server.rest.as_ref().and_then(|r| r.started_at).filter(|at| *at > receipt_at && *at <= now);
    let due = after(up_at.unwrap_or(receipt_at), policy.settle);
    let read_since = |at: Timestamp| hangar.read_at.is_some_and(|read| read >= at) && server.rest.as_ref().is_none_or(|r| r.at >= at);
    let moved = server.last_healthy.is_some_and(|at| at > attempt.started_at);
    match seen {
        Seen::Healthy if started_before(server, attempt) => {
            settled(Outcome::Cancelled, "the server was started by somebody else before our start")
        }
        Seen::Healthy if now < due => Verified::Pending(Some(due)),
        Seen::Healthy | Seen::NotSeenHealthy | Seen::Down if now >= due && !read_since(due) => Verified::ReadAgain(due),
        Seen::Healthy if moved => {
            settled(Outcome::Recovered, format!("ready, last healthy after the action, and held for {:#}", policy.settle))
        }
        // Metrics from before the look that says ready cannot tell that last-healthy did not move.
        Seen::Healthy | Seen::NotSeenHealthy if now >= due && metrics_before_rest(hangar, server) => Verified::ReadMetrics,
        Seen::Healthy | Seen::NotSeenHealthy if now >= due => unproved(receipt, "ready, but last-healthy did not move"),
        Seen::NotSeenHealthy => Verified::Pending(Some(due)),
        Seen::Cold if reaped_idle(incident, hangar, server) && moved => {
            settled(Outcome::Recovered, "ready and healthy after the action, then reaped as idle")
        }
        Seen::Dead | Seen::Down if read_since(receipt_at) && moved => {
            settled(Outcome::Insufficient, "came up and went down again within the settle window")
        }
        Seen::Dead | Seen::Down if read_since(receipt_at) && now >= due => unproved(receipt, "still not running"),
        Seen::Degraded(_) if read_since(receipt_at) => settled(failed(receipt), "the start failed and Hangar's saga took over"),
        Seen::Cold if now >= due => unproved(receipt, "not running"),
        Seen::Gone => settled(Outcome::Cancelled, "Hangar no longer knows the server"),
        Seen::Initializing(since) => {
            // While the gauge does not show the start, `since` moves with each look.
            let give_up = due.max(after((*since).min(receipt_at), policy.stuck_starting_after));
            if now >= give_up { unproved(receipt, "still starting") } else { Verified::Pending(Some(give_up)) }
        }
        Seen::Dead | Seen::Down | Seen::Cold | Seen::Degraded(_) => {
            if now >= due {
                Verified::ReadAgain(due)
            } else {
                Verified::Pending(Some(due))
            }
        }
        Seen::Healthy | Seen::Unknown => Verified::Pending(None),
    }
}

/// Why a receipt settles the attempt, in our own words: an upstream's text stays in `detail`, which not everybody may read.
fn own_words(attempt: &Attempt, outcome: Outcome) -> String {
    let code = attempt.evidence.get("error_code").and_then(|code| code.as_str());
    let safe = code.filter(|code| code.len() <= 64 && code.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'));
    match (safe, outcome) {
        (Some(code), _) => format!("Hangar answered {code}"),
        (None, Outcome::Insufficient) if attempt.action.only_looks() => "looked: still not working".to_owned(),
        (None, Outcome::Cancelled) if attempt.action.only_looks() => "looked: found healthy".to_owned(),
        (None, Outcome::Cancelled) => "our own check held it back: nothing was sent".to_owned(),
        (None, Outcome::NotApplicable) => "there was nothing for it to do: nothing was sent".to_owned(),
        (None, Outcome::Denied) => "Hangar did not let us".to_owned(),
        (None, outcome) => format!("Hangar gave no usable answer ({outcome})"),
    }
}

fn metrics_before_rest(hangar: &HangarReading, server: &ServerReading) -> bool {
    !server.rest_outdated && server.rest.as_ref().is_some_and(|r| hangar.read_at.is_none_or(|read| read < r.at))
}

/// Ready before we acted: whoever started it earned the credit.
fn started_before(server: &ServerReading, attempt: &Attempt) -> bool {
    attempt.action == Rung::SessionReconnect && server.rest.as_ref().and_then(|r| r.started_at).is_some_and(|at| at < attempt.started_at)
}

/// Stopped by Hangar for idleness since the incident opened.
#[must_use]
pub fn reaped_idle(incident: &Incident, hangar: &HangarReading, server: &ServerReading) -> bool {
    risen(incident, hangar, server, StopReason::Idle) > 0
}

const fn failed(receipt: Receipt) -> Outcome {
    match receipt {
        Receipt::Accepted | Receipt::Refused => Outcome::Failed,
        Receipt::Unknown => Outcome::Unresolved,
    }
}

fn unproved(receipt: Receipt, why: &str) -> Verified {
    match receipt {
        Receipt::Accepted | Receipt::Refused => settled(Outcome::Insufficient, why),
        Receipt::Unknown => settled(Outcome::Unresolved, format!("no answer was heard; {why}")),
    }
}
