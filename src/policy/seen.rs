//! Three values: a server is healthy, ill in some way, or unknown. And the one reason that the sources give together.

use jiff::{SignedDuration, Timestamp};

use super::history::Incident;
use super::limits::Policy;
use super::reason::{Provenance, Reason, Source};
use super::snapshot::{HangarReading, RestReading, ServerReading, Snapshot, State, StopReason};
use super::when::after;

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
    cold_at.is_some_and(|at| hangar.read_at.is_none_or(|read| read < after(at, COUNTER_LAG)))
}

/// Whether the metrics and the server's REST answer are current and not older than `since`.
#[must_use]
pub fn looked_since(hangar: &HangarReading, server: &ServerReading, since: Option<Timestamp>, now: Timestamp) -> bool {
    hangar.read_at.is_some_and(|at| young(at, since, now)) && (rest_since(server, since, now) || rest_unreadable(hangar))
}

/// Whether the server's REST answer is current and not older than `since`.
#[must_use]
pub fn rest_since(server: &ServerReading, since: Option<Timestamp>, now: Timestamp) -> bool {
    !server.rest_outdated && (server.rest_not_found || server.rest.as_ref().is_some_and(|r| young(r.at, since, now)))
}

/// After the clock stepped back nothing can be younger than what was recorded before: a look of this moment has to do.
fn young(at: Timestamp, since: Option<Timestamp>, now: Timestamp) -> bool {
    since.is_none_or(|since| at >= since.min(now))
}

/// Hangar does not let us read its REST answers.
#[must_use]
pub const fn rest_unreadable(hangar: &HangarReading) -> bool {
    hangar.auth_refused || hangar.read_forbidden
}

fn by_rest(policy: &Policy, server: &ServerReading, rest: &RestReading, since: Timestamp, now: Timestamp) -> Seen {
    match rest.state {
        State::Cold => Seen::Cold,
        State::Initializing => {
            let told = if server.gauge == Some(State::Initializing) { since } else { rest.at };
            Seen::Initializing(server.initializing_since.map_or(told, |at| at.min(told)).min(now))
        }
        State::Degraded => Seen::Degraded(since),
        State::Dead => Seen::Dead,
        // `alive` tells of the process only where Hangar itself is its parent.
        State::Ready if !rest.alive && rest.mode == "subprocess" => Seen::Down,
        // A start that has just been completed may not be in the metrics that are at hand.
        State::Ready if not_seen_healthy(policy, server, now) && rest.started_at.is_none_or(|at| long_past(policy, at, now)) => {
            Seen::NotSeenHealthy
        }
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
    server.last_healthy.max(server.last_healthy.and(server.clock_stepped_at)).is_some_and(|at| long_past(policy, at, now))
}

fn long_past(policy: &Policy, at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at) > policy.not_seen_healthy_after
}

/// Neither cold nor seen working for the bound (the runbook's condition), whatever the state says: dead, retried or starting.
#[must_use]
pub fn long_not_working(policy: &Policy, server: &ServerReading, now: Timestamp) -> bool {
    let past = |at: Timestamp| long_past(policy, at, now);
    server.not_cold_since.is_some_and(past) && server.last_healthy.is_none_or(past) && server.clock_stepped_at.is_none_or(past)
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
        Some(State::Degraded) => now.duration_since(since) > policy.degraded_too_long_after || long_not_working(policy, server, now),
        Some(State::Initializing) => now.duration_since(since) > policy.stuck_starting_after || long_not_working(policy, server, now),
        Some(State::Cold) | None => false,
    }
}

/// Clocks and the order of writing differ by this much at most between Hangar's gauges, log, events and REST answers.
const SAME_MOMENT: SignedDuration = SignedDuration::from_secs(1);

/// What each source says of why the server is dead now, the nearest to Hangar first: REST, events, the log. What is older
/// than the last time it worked, or than the death that REST dates, speaks of an earlier death and is left out.
#[must_use]
pub fn told(server: &ServerReading, now: Timestamp) -> Vec<(Reason, Provenance)> {
    let dead = server.rest.as_ref().filter(|_| !server.rest_outdated).and_then(|rest| Some((rest, rest.dead.as_ref()?)));
    let since = dead.and_then(|(_, dead)| dead.since);
    let from_rest = dead.map(|(rest, dead)| (dead.reason, Provenance::of(Source::Rest, dead.since.unwrap_or(rest.at))));
    let of_this_death = |(_, provenance): &(Reason, Provenance)| {
        let begun = worked_at(server, now).max(since);
        begun.is_none_or(|begun| begun.duration_since(provenance.at) <= SAME_MOMENT)
    };
    let from_log = server.log.as_ref().and_then(|log| log.dead.clone());
    let others = [server.events.clone(), from_log].into_iter().flatten().filter(of_this_death);
    from_rest.into_iter().chain(others).collect()
}

/// When it last worked. A time that lies ahead is from before the clock stepped back: it says nothing of the order of things.
fn worked_at(server: &ServerReading, now: Timestamp) -> Option<Timestamp> {
    server.last_healthy.filter(|at| at.duration_since(now) <= SAME_MOMENT)
}

/// Whether sources give different reasons for one death. One that does not know does not disagree.
#[must_use]
pub fn disagree(told: &[(Reason, Provenance)]) -> bool {
    let mut known = told.iter().map(|(reason, _)| *reason).filter(|reason| *reason != Reason::Unknown);
    known.next().is_some_and(|first| known.any(|other| other != first))
}

/// The reason that all sources give together, and which of them gave it. Where they differ the stricter wins; a capability
/// block since the last completed start wins whoever tells it, since it is the one that forbids acting.
#[must_use]
pub fn reason(snapshot: &Snapshot, server: &ServerReading, now: Timestamp) -> (Reason, Option<Provenance>) {
    if let Some(blocked) = blocked(server, now) {
        return (Reason::CapabilityBlocked, Some(blocked));
    }
    let strictest = told(server, now).into_iter().reduce(|a, b| if b.0.strictness() > a.0.strictness() { b } else { a });
    match strictest {
        Some((Reason::Unknown, _)) => (Reason::Unknown, None),
        Some((reason, provenance)) => (reason, Some(provenance)),
        None => by_counter(snapshot, server, now).map_or((Reason::Unknown, None), |p| (Reason::GivenUp, Some(p))),
    }
}

/// The counter of given-up servers proves that it was given up at some time, not that it is why it is dead now: it serves
/// only where nothing else tells, and where a log is read that would tell a capability block.
fn by_counter(snapshot: &Snapshot, server: &ServerReading, now: Timestamp) -> Option<Provenance> {
    let counted = server.stops.get(&StopReason::MaxRetriesExceeded).is_some_and(|n| *n > 0);
    let worked_since = server.given_up_at.is_some_and(|at| server.last_healthy.is_some_and(|healthy| healthy > at));
    let at = server.given_up_at.or(snapshot.hangar.read_at).unwrap_or(now);
    (counted && server.log.is_some() && !worked_since).then(|| Provenance::of(Source::Metrics, at))
}

fn blocked(server: &ServerReading, now: Timestamp) -> Option<Provenance> {
    let current = server.rest.as_ref().filter(|_| !server.rest_outdated);
    let from_rest = current.and_then(|rest| Some((rest.dead.as_ref()?.reason, rest.dead.as_ref()?.since.unwrap_or(rest.at))));
    if let Some((_, at)) = from_rest.filter(|(reason, _)| *reason == Reason::CapabilityBlocked) {
        return Some(Provenance::of(Source::Rest, at));
    }
    // The log's own order says "since the last completed start": no clock, which may step, is asked about that.
    let log = server.log.as_ref().filter(|log| log.capability_blocked);
    let in_log = log.map(|log| log.dead.as_ref().map_or_else(|| Provenance::of(Source::Log, now), |(_, told)| told.clone()));
    let since_it_worked = |at: Timestamp| worked_at(server, now).is_none_or(|healthy| healthy.duration_since(at) <= SAME_MOMENT);
    let by_event = server.events.as_ref().filter(|(reason, told)| *reason == Reason::CapabilityBlocked && since_it_worked(told.at));
    by_event.map(|(_, told)| told.clone()).or(in_log)
}

/// Hangar counts a stop this long after REST reads cold, at most.
pub const COUNTER_LAG: SignedDuration = SignedDuration::from_millis(300);

/// How long a failed REST read is left alone before the next try.
pub const REST_RETRY: SignedDuration = SignedDuration::from_secs(5);

/// How long a read that Hangar does not permit us is left alone: each one writes to Hangar's log.
pub const FORBIDDEN_RETRY: SignedDuration = SignedDuration::from_secs(30);

/// How old the confirming reads' answers may be when an action is sent.
pub const CONFIRM_WITHIN: SignedDuration = SignedDuration::from_secs(1);
