//! Three values: a server is healthy, ill in some way, or unknown. And the one reason that the sources give together.

use jiff::{SignedDuration, Timestamp};

use super::history::Incident;
use super::limits::Policy;
use super::reason::{Provenance, Reason, Source};
use super::snapshot::{HangarReading, LogReading, RestReading, ServerReading, Snapshot, State, StopReason};

/// What one server is, as far as it can be known now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Nothing may be concluded: no fresh read, or sources not read yet.
    Unknown,
    Healthy,
    /// Ready, but nothing healthy seen for longer than the bound.
    NotSeenHealthy,
    /// Ready in Hangar's eyes while its process is gone: Hangar has yet to notice.
    Down,
    /// Hangar's saga is at work, since then.
    Degraded(Timestamp),
    /// A start is under way, since then.
    Initializing(Timestamp),
    Dead,
    /// Not running and not failed: idle, stopped, or forgotten in a restart.
    Cold,
    /// Hangar does not know it.
    Gone,
}

/// Judges one server. `Unknown` whenever Hangar's metrics are not fresh.
#[must_use]
pub fn seen(policy: &Policy, hangar: &HangarReading, server: &ServerReading, now: Timestamp) -> Seen {
    if !hangar.fresh {
        return Seen::Unknown;
    }
    let since = server.gauge_since.unwrap_or(now);
    if server.rest_not_found && !server.rest_outdated {
        return Seen::Gone;
    }
    match &server.rest {
        Some(rest) if !server.rest_outdated => by_rest(policy, server, rest, since, now),
        // Without a key that may read, the gauge is all there is; acting is impossible then anyway.
        _ if rest_unreadable(hangar) => by_gauge(policy, server, since, now),
        _ if server.gauge == Some(State::Ready) && !not_seen_healthy(policy, server, now) => Seen::Healthy,
        _ => Seen::Unknown,
    }
}

/// Judges a server under an incident. There the gauge alone is too little, and so is a look from before our last action ended.
#[must_use]
pub fn seen_closely(policy: &Policy, hangar: &HangarReading, incident: &Incident, server: &ServerReading, now: Timestamp) -> Seen {
    let known = looked_since(hangar, server, incident.last_acted_at(), now) && !cold_unexplained(hangar, server, now);
    if known { seen(policy, hangar, server, now) } else { Seen::Unknown }
}

/// REST reads cold, and the metrics that count stops are from before: it may be somebody's stop.
#[must_use]
pub fn cold_unexplained(hangar: &HangarReading, server: &ServerReading, now: Timestamp) -> bool {
    // A look from the future (the clock stepped back) would never be explained: the metrics would be read without end.
    let cold_at = server.rest.as_ref().filter(|r| r.state == State::Cold && !server.rest_outdated).map(|r| r.at.min(now));
    cold_at.is_some_and(|at| hangar.read_at.is_none_or(|read| read < at))
}

/// Whether the metrics and the server's REST answer are current and not older than `since`.
#[must_use]
pub fn looked_since(hangar: &HangarReading, server: &ServerReading, since: Option<Timestamp>, now: Timestamp) -> bool {
    // After the clock stepped back nothing can be younger than what was recorded before: a look of this moment has to do.
    let young = |at: Timestamp| since.is_none_or(|since| at >= since.min(now));
    let told = !server.rest_outdated && (server.rest_not_found || server.rest.as_ref().is_some_and(|r| young(r.at)));
    hangar.read_at.is_some_and(young) && (told || rest_unreadable(hangar))
}

/// Hangar does not let us read its REST answers.
#[must_use]
pub const fn rest_unreadable(hangar: &HangarReading) -> bool {
    hangar.auth_refused || hangar.read_forbidden
}

fn by_rest(policy: &Policy, server: &ServerReading, rest: &RestReading, since: Timestamp, now: Timestamp) -> Seen {
    match rest.state {
        State::Cold => Seen::Cold,
        State::Initializing => Seen::Initializing(if server.gauge == Some(State::Initializing) { since } else { rest.at.min(now) }),
        State::Degraded => Seen::Degraded(since),
        State::Dead => Seen::Dead,
        // `alive` tells of the process only where Hangar itself is its parent.
        State::Ready if !rest.alive && rest.mode == "subprocess" => Seen::Down,
        State::Ready if not_seen_healthy(policy, server, now) => Seen::NotSeenHealthy,
        State::Ready => Seen::Healthy,
    }
}

fn by_gauge(policy: &Policy, server: &ServerReading, since: Timestamp, now: Timestamp) -> Seen {
    match server.gauge {
        None | Some(State::Cold) => Seen::Cold,
        Some(State::Initializing) => Seen::Initializing(since),
        Some(State::Degraded) => Seen::Degraded(since),
        Some(State::Dead) => Seen::Dead,
        Some(State::Ready) if not_seen_healthy(policy, server, now) => Seen::NotSeenHealthy,
        Some(State::Ready) => Seen::Healthy,
    }
}

/// Runbook: not cold, and no passing health check, completed start or successful call for the bound.
/// A server that was never healthy has no such series and only the dead gauge catches it.
fn not_seen_healthy(policy: &Policy, server: &ServerReading, now: Timestamp) -> bool {
    server.last_healthy.is_some_and(|at| now.duration_since(at) > policy.not_seen_healthy_after)
}

/// Whether a server outside any incident is worth a REST read or a judgement at all. Cheap: runs for every server.
#[must_use]
pub fn suspect(policy: &Policy, server: &ServerReading, now: Timestamp) -> bool {
    let since = server.gauge_since.unwrap_or(now);
    match server.gauge {
        Some(State::Dead) => true,
        Some(State::Ready) => {
            not_seen_healthy(policy, server, now) || server.rest.as_ref().is_some_and(|r| !r.alive && r.mode == "subprocess")
        }
        Some(State::Degraded) => now.duration_since(since) > policy.degraded_too_long_after,
        Some(State::Initializing) => now.duration_since(since) > policy.stuck_starting_after,
        Some(State::Cold) | None => false,
    }
}

/// The reason that all sources give together, and which of them gave it. REST before the log before the stop counter;
/// a capability block that any of them tells wins, since it is the one that forbids acting.
#[must_use]
pub fn reason(snapshot: &Snapshot, server: &ServerReading, now: Timestamp) -> (Reason, Option<Provenance>) {
    let current = server.rest.as_ref().filter(|_| !server.rest_outdated);
    let from_rest = current.and_then(|rest| {
        let dead = rest.dead.as_ref()?;
        Some((dead.reason, provenance(Source::Rest, dead.since.unwrap_or(rest.at))))
    });
    let from_log = server.log.as_ref().and_then(|log| log.dead.clone());
    let given_up = server.stops.get(&StopReason::MaxRetriesExceeded).is_some_and(|n| *n > 0);
    // A counter proves a give-up at some time, not that it is why the server is dead now: it serves only
    // beside a log, which would tell of a capability block.
    let from_counter =
        (given_up && server.log.is_some()).then(|| (Reason::GivenUp, provenance(Source::Metrics, snapshot.hangar.read_at.unwrap_or(now))));
    if let Some(blocked) = blocked(server.log.as_ref(), from_rest.as_ref(), from_log.as_ref(), now) {
        return (Reason::CapabilityBlocked, Some(blocked));
    }
    [from_rest, from_log, from_counter]
        .into_iter()
        .flatten()
        .find(|(reason, _)| *reason != Reason::Unknown)
        .map_or((Reason::Unknown, None), |(reason, provenance)| (reason, Some(provenance)))
}

fn blocked(
    log: Option<&LogReading>,
    from_rest: Option<&(Reason, Provenance)>,
    from_log: Option<&(Reason, Provenance)>,
    now: Timestamp,
) -> Option<Provenance> {
    let told = [from_rest, from_log].into_iter().flatten().find(|(reason, _)| *reason == Reason::CapabilityBlocked);
    match told {
        Some((_, provenance)) => Some(provenance.clone()),
        None => log.filter(|l| l.capability_blocked).map(|_| provenance(Source::Log, now)),
    }
}

fn provenance(source: Source, at: Timestamp) -> Provenance {
    Provenance { source, at, file: String::new(), offset: None }
}

/// How long a failed REST read is left alone before the next try.
pub const REST_RETRY: SignedDuration = SignedDuration::from_secs(5);

/// How long a read that Hangar does not permit us is left alone: each one writes to Hangar's log.
pub const FORBIDDEN_RETRY: SignedDuration = SignedDuration::from_secs(30);

/// How old the confirming reads' answers may be when an action is sent.
pub const CONFIRM_WITHIN: SignedDuration = SignedDuration::from_secs(1);
