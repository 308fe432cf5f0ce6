//! Which rung is next: the walk up the ladder, from the symptom's first rung, past what is spent or does not apply.

use jiff::Timestamp;

use super::history::Incident;
use super::ladder::Rung;
use super::limits::{Mode, Policy};
use super::reason::Reason;
use super::record::Outcome;
use super::seen::Seen;
use super::symptom::Symptom;
use super::when::{after, doubled};

/// What the ladder says, before any gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Climb(Rung),
    /// The rung has nothing to act on here: written down, then passed.
    Pass(Rung, &'static str),
    /// The reason forbids every further rung.
    Forbidden(Reason),
    Exhausted,
}

/// The next rung of an incident. Narrower rungs first, always.
#[must_use]
pub fn decide(policy: &Policy, incident: &Incident, seen: &Seen) -> Decision {
    let first = first_rank(incident, seen);
    let due = start_due(incident, seen);
    let wanted = |rung: Rung| rung.rank() >= first || (due && rung == Rung::SessionReconnect);
    for limits in policy.rungs_of(&incident.mcp_server).filter(|r| wanted(r.action)) {
        let rung = limits.action;
        if observed(policy, incident, rung) {
            continue;
        }
        if !rung.only_looks()
            && let Some(reason) = forbids(incident, seen)
        {
            return Decision::Forbidden(reason);
        }
        if let Some(why) = not_applicable(policy, incident, rung, seen) {
            if incident.attempts.iter().any(|a| a.action == rung && a.outcome == Some(Outcome::NotApplicable)) {
                continue;
            }
            return Decision::Pass(rung, why);
        }
        if !spent(limits.attempts_max.get().into(), incident, rung, seen) {
            return Decision::Climb(rung);
        }
    }
    forbids(incident, seen).map_or(Decision::Exhausted, Decision::Forbidden)
}

/// The narrowest enabled rung below `class` that applies here and is not spent (DESIGN: a broad action needs them all spent).
#[must_use]
pub fn unspent_below(policy: &Policy, incident: &Incident, seen: &Seen, class: Rung) -> Option<Rung> {
    let first = first_rank(incident, seen);
    let lower = policy.rungs_of(&incident.mcp_server).filter(|r| r.action.rank() >= first && r.action < class);
    let left = lower.filter(|r| not_applicable(policy, incident, r.action, seen).is_none());
    left.filter(|r| !spent(r.attempts_max.get().into(), incident, r.action, seen)).map(|r| r.action).min()
}

/// In observe mode a rung that was recorded as "would act" counts as tried.
fn observed(policy: &Policy, incident: &Incident, rung: Rung) -> bool {
    policy.mode_of(&incident.mcp_server) == Mode::Observe && incident.would_act.contains(&rung)
}

fn first_rank(incident: &Incident, seen: &Seen) -> u8 {
    let by_symptom = incident.symptoms.iter().map(|s| s.first_rung().rank()).min().unwrap_or(0);
    match forbids(incident, seen) {
        // Nothing but looking is allowed: everything that looks, even where a narrower rung was insufficient before.
        Some(Reason::Unknown) => 0,
        Some(_) => by_symptom,
        None => by_symptom.max(incident.floor_rank),
    }
}

/// Not running at all, so that an unknown reason may hide a capability block.
const fn not_working(seen: &Seen) -> bool {
    matches!(seen, Seen::Dead | Seen::Cold)
}

/// Ready until a stop of ours, and not started since: no capability block can be the reason, and the start is owed.
fn left_cold(incident: &Incident, seen: &Seen) -> bool {
    *seen == Seen::Cold && incident.attempts.iter().any(|a| a.action == Rung::WorkerRestart && a.half_done_at.is_some())
}

/// The reason forbids acting: its evidence need not wait for a storm that it has no part in.
#[must_use]
pub fn only_to_look(incident: &Incident, seen: &Seen) -> bool {
    forbids(incident, seen).is_some()
}

fn forbids(incident: &Incident, seen: &Seen) -> Option<Reason> {
    match incident.reason {
        Reason::CapabilityBlocked => Some(Reason::CapabilityBlocked),
        Reason::Unknown if not_working(seen) && !left_cold(incident, seen) => Some(Reason::Unknown),
        Reason::Unknown | Reason::GivenUp | Reason::Crashed | Reason::StartFailed => None,
    }
}

/// Why a rung has nothing to act on here, if so.
#[must_use]
pub fn not_applicable(policy: &Policy, incident: &Incident, rung: Rung, seen: &Seen) -> Option<&'static str> {
    match rung {
        Rung::ClientReconnect | Rung::CapabilityRefresh => None,
        Rung::SessionReconnect => match seen {
            Seen::Initializing(_) | Seen::Degraded(_) => Some("Hangar is starting it; a second start would join that one"),
            Seen::Unknown | Seen::Healthy | Seen::NotSeenHealthy | Seen::Down | Seen::Dead | Seen::Cold | Seen::Gone => None,
        },
        // A group takes its member back; of several replicas one holds the lease that they manage servers under.
        Rung::LeaseRecovery => match seen {
            _ if incident.group.is_none() && policy.platform.instances.get() < 2 => Some("not a member of a group"),
            Seen::Dead | Seen::Cold if starts_used_up(incident) => Some("two starts of ours failed after this death already"),
            Seen::Dead | Seen::Cold | Seen::Down => None,
            Seen::Unknown | Seen::Healthy | Seen::NotSeenHealthy | Seen::Degraded(_) | Seen::Initializing(_) | Seen::Gone => {
                Some("the server is not down")
            }
        },
        Rung::WorkerRestart => match seen {
            Seen::Dead | Seen::Cold => Some("a dead server: there is nothing to stop, and the stop would only clear the alert"),
            Seen::Unknown | Seen::Healthy | Seen::NotSeenHealthy | Seen::Down | Seen::Degraded(_) | Seen::Initializing(_) | Seen::Gone => {
                None
            }
        },
        Rung::ConfigurationReload | Rung::RollingMcpRestart | Rung::FullMcpRestart | Rung::HostRestart => policy.platform.missing(rung),
        Rung::RoleRuntimeRestart if policy.platform.upstreams.contains(&incident.mcp_server) => None,
        Rung::RoleRuntimeRestart => match (&incident.group, seen) {
            (None, _) => Some("neither a group member nor a server whose upstream has an executor (platform.upstreams)"),
            (Some(_), Seen::Dead | Seen::Cold) if starts_used_up(incident) => Some("two starts of ours failed after this death already"),
            (Some(_), Seen::Dead | Seen::Cold | Seen::Down) => None,
            (Some(_), _) => Some("the member is not down"),
        },
        Rung::ConnectorRestart if policy.platform.definitions.contains(&incident.mcp_server) || incident.group.is_some() => None,
        Rung::ConnectorRestart => Some("neither a group member nor a server whose definition is at hand (platform.definitions)"),
    }
}

/// Lost in a restart of Hangar and not started since: one start is due, whatever was spent on the process before.
fn start_due(incident: &Incident, seen: &Seen) -> bool {
    let lost_at = incident.lost_at.filter(|_| *seen == Seen::Cold && incident.symptom() == Symptom::ServerLostInRestart);
    let since = |lost: Timestamp| incident.attempts.iter().any(|a| !a.action.only_looks() && a.was_made() && a.started_at >= lost);
    lost_at.is_some_and(|lost| !since(lost))
}

/// At most two starts of ours after a fresh death: the next failing one may hand the server to Hangar's saga.
fn starts_used_up(incident: &Incident) -> bool {
    let starts = incident.attempts.iter().filter(|a| !a.action.only_looks() && !a.slow_retry && a.spends_rung()).count();
    incident.reason == Reason::StartFailed && starts >= 2
}

fn spent(attempts_max: usize, incident: &Incident, rung: Rung, seen: &Seen) -> bool {
    // Only asking the replicas shows that no lease is stale: once is enough.
    let asked = |a: &super::history::Attempt| a.action == rung && a.receipt.is_some() && a.outcome == Some(Outcome::NotApplicable);
    if rung == Rung::LeaseRecovery && incident.attempts.iter().any(asked) {
        return true;
    }
    let counts = |a: &&super::history::Attempt| a.action == rung && !a.slow_retry && a.was_made();
    if rung == Rung::SessionReconnect && start_due(incident, seen) {
        return false;
    }
    let made = incident.attempts.iter().filter(counts).count();
    if rung != Rung::SessionReconnect {
        return made >= attempts_max;
    }
    match incident.reason {
        // One start once Hangar has given up, whatever was tried before that.
        Reason::GivenUp => incident.attempts.iter().filter(counts).any(|a| a.started_at >= incident.reason_at),
        Reason::StartFailed => made >= attempts_max.min(2) || starts_used_up(incident),
        // It answers 200 and does nothing while Hangar believes the server ready: once is enough.
        Reason::Unknown if *seen != Seen::Cold => made >= 1,
        Reason::Unknown | Reason::Crashed | Reason::CapabilityBlocked => made >= attempts_max,
    }
}

/// What a slow retry does: a start, or for a server that is up and does not work a restart, since a start would do nothing there.
#[must_use]
pub fn slow_retry_rung(policy: &Policy, mcp_server: &str, seen: &Seen) -> Option<Rung> {
    let rung = match seen {
        Seen::NotSeenHealthy | Seen::Degraded(_) | Seen::Initializing(_) => Rung::WorkerRestart,
        Seen::Unknown | Seen::Healthy | Seen::Down | Seen::Dead | Seen::Cold | Seen::Gone => Rung::SessionReconnect,
    };
    policy.rung_of(mcp_server, rung).map(|limits| limits.action)
}

/// When the next slow retry of an exhausted incident is due; `None` = never.
#[must_use]
pub fn next_slow_retry(policy: &Policy, incident: &Incident) -> Option<Timestamp> {
    let exhausted_at = incident.exhausted_at?;
    if policy.exhausted_retry.is_zero() || incident.reason == Reason::CapabilityBlocked {
        return None;
    }
    // Of a climb too: a new reason may have led back to the ladder after the incident was exhausted.
    let acted = incident.attempts.iter().rev().filter(|a| !a.action.only_looks() && a.outcome != Some(Outcome::NotApplicable));
    let last = acted.filter_map(|a| a.settled_at).max();
    let longest = policy.exhausted_retry_max.max(policy.exhausted_retry);
    let wait = doubled(policy.exhausted_retry, incident.slow_retries as usize, longest);
    Some(after(last.unwrap_or(exhausted_at).max(exhausted_at), wait))
}

#[cfg(test)]
mod tests;
