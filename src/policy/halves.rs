//! Rungs of two halves. The second is planned like everything else, so a crash in between needs no path of its own.

use jiff::{SignedDuration, Timestamp};

use super::history::{Attempt, History, Incident};
use super::ladder::Rung;
use super::limits::Policy;
use super::reason::Reason;
use super::record::Outcome;
use super::seen::Seen;
use super::snapshot::{ServerReading, Snapshot, StopReason};
use super::stops::{our_stops, risen};
use super::when::after;

/// Whether the second half of an open attempt is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Second {
    /// There is none, or no longer.
    None,
    Wait(Option<Timestamp>),
    /// The state has to be read again before it can be told.
    ReadAgain(&'static str),
    Due(&'static str),
    /// It is not needed: the attempt has its receipt.
    NotNeeded(&'static str),
    /// It can no longer be done; the outcome, where nothing is left to verify.
    Over(&'static str, Option<Outcome>),
}

/// How long the group's answer is waited for once a rebalance may be due.
const GROUP_READ_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// Judges the second half of an attempt whose executor is not at work.
#[must_use]
#[allow(clippy::too_many_arguments, reason = "the planner's whole view; a struct of it would be made for this one call")]
pub fn second(
    policy: &Policy,
    snapshot: &Snapshot,
    history: &History,
    incident: &Incident,
    attempt: &Attempt,
    server: &ServerReading,
    seen: &Seen,
    now: Timestamp,
) -> Second {
    let forbidden = history.orders.contains_key(&incident.mcp_server) || incident.reason == Reason::CapabilityBlocked;
    if attempt.action == Rung::RoleRuntimeRestart && forbidden && attempt.receipt.is_none() {
        return Second::Over(
            "its upstream was restarted; it is not started, since that was forbidden meanwhile",
            Some(Outcome::Unresolved),
        );
    }
    if attempt.action.saves_first() {
        // What was taken away is put back, whatever became of the server whose incident this is; that one is left alone then.
        return if attempt.receipt.is_some() { Second::None } else { super::fleet::second(policy, &snapshot.hangar, attempt, now) };
    }
    if forbidden || attempt.receipt.is_some() {
        return Second::None;
    }
    if attempt.action == Rung::LeaseRecovery {
        return match (attempt.half_done_at, &incident.group) {
            (None, _) => Second::None,
            (Some(_), None) => after_lease(attempt, seen),
            (Some(started), Some(_)) => rejoin(policy, started, server, seen, now),
        };
    }
    if attempt.action != Rung::WorkerRestart {
        return Second::None;
    }
    match seen {
        Seen::Unknown => Second::Wait(None),
        Seen::Cold if stop_was_ours(incident, snapshot, attempt, server) => Second::Due("our stop is done, the start is due"),
        // A stop leaves it cold: what is dead after it has been started since, perhaps by us, and a start is never repeated blindly.
        Seen::Healthy
        | Seen::NotSeenHealthy
        | Seen::Down
        | Seen::Degraded(_)
        | Seen::Initializing(_)
        | Seen::Gone
        | Seen::Cold
        | Seen::Dead => Second::None,
    }
}

/// The stop is on record, or Hangar counted exactly the one that our open attempt may have sent before a crash.
fn stop_was_ours(incident: &Incident, snapshot: &Snapshot, attempt: &Attempt, server: &ServerReading) -> bool {
    if !attempt.made_in(snapshot.hangar.process_start) {
        return false;
    }
    let risen = risen(incident, &snapshot.hangar, server, StopReason::Manual);
    attempt.half_done_at.is_some() || (risen > 0 && risen == our_stops(incident, &snapshot.hangar))
}

/// No stale lease is in the way any more: the server is started, once.
fn after_lease(attempt: &Attempt, seen: &Seen) -> Second {
    if !attempt.seconds.is_empty() {
        return Second::Over("the medic ended before it heard an answer", None);
    }
    match seen {
        Seen::Unknown => Second::Wait(None),
        Seen::Dead | Seen::Down | Seen::Cold => Second::Due("the stale management lease is over: the start is due"),
        Seen::Healthy | Seen::NotSeenHealthy | Seen::Degraded(_) | Seen::Initializing(_) | Seen::Gone => {
            Second::Over("it was no longer down when the lease was over: nothing was sent", Some(Outcome::Cancelled))
        }
    }
}

/// A rebalance resets the group's circuit and evicts degraded members: only when the member stays out, and nobody is degraded.
fn rejoin(policy: &Policy, started: Timestamp, server: &ServerReading, seen: &Seen, now: Timestamp) -> Second {
    let due = after(started, policy.rejoin_after);
    match (seen, &server.group) {
        (Seen::Unknown, _) => Second::Wait(None),
        (Seen::Healthy, Some(group)) if group.at >= started && group.in_rotation => Second::NotNeeded("started, and back in rotation"),
        (Seen::Healthy, Some(group)) if group.degraded_member => Second::NotNeeded("started; not rebalanced, since a member is degraded"),
        (Seen::Healthy | Seen::Initializing(_), Some(_)) if now < due => Second::Wait(Some(due)),
        (Seen::Healthy, Some(group)) if group.at >= due => Second::Due("ready, but still out of rotation"),
        // The group is read with its member; where it cannot be read it is left alone.
        (Seen::Healthy, Some(_)) if now < after(due, GROUP_READ_WITHIN) => {
            Second::ReadAgain("ready; whether it is back in rotation is read")
        }
        (Seen::Healthy, Some(_)) => Second::NotNeeded("started; not rebalanced, since its group cannot be read"),
        _ => Second::NotNeeded("started"),
    }
}
