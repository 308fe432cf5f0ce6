//! Actions that touch every server of a Hangar: its reload and its restarts. What stood before is saved, what was lost is
//! brought back, and the outcome is judged on those servers, not on Hangar being up.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::brake::Braked;
use super::halves::Second;
use super::history::{Attempt, History, Incident};
use super::hold::Hold;
use super::ladder::Rung;
use super::limits::Policy;
use super::reason::Reason;
use super::record::{Body, Outcome, Receipt};
use super::snapshot::{HangarReading, ServerReading, Snapshot, State, StopReason};
use super::stops::{DELIBERATE, deliberate_stops};
use super::verify::Verified;
use super::when::{after, doubled};

/// How often the second half of one attempt is begun at most; each time it reads before it sends.
const SECOND_MAX: usize = 3;
/// How often what was taken out is put back at most: for about an hour and a half.
const PUT_BACK_MAX: usize = 24;
const PUT_BACK_PAUSE_MAX: SignedDuration = SignedDuration::from_mins(5);
/// Besides a restart itself: bringing the servers back.
pub const BRING_BACK_MAX: SignedDuration = SignedDuration::from_mins(10);
/// Servers that an outcome names; the rest are counted.
const NAMED_MAX: usize = 10;

/// What must be durable before an action takes something away that it has to put back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Saved {
    /// Servers that were ready.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub ready: BTreeSet<String>,
    /// Servers that were dead for a reason that does not forbid a start.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub dead: BTreeSet<String>,
    /// Servers that are left alone: blocked, dead for an unknown reason, or under a hold order.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub left: BTreeSet<String>,
    /// Every server that was known, where the action may change which there are.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub known: BTreeSet<String>,
    /// Deliberate stops that Hangar had counted of each by then, where there were any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stops: BTreeMap<String, u64>,
    /// The place that a group member is taken out of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<Membership>,
}

/// A member's place in its group, as Hangar told it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    pub group: String,
    pub weight: u32,
    pub priority: u32,
}

impl Saved {
    /// What is to be ready again: saved, and nothing has forbidden it since.
    #[must_use]
    pub fn expected(&self, history: &History) -> BTreeSet<String> {
        let forbidden = |id: &&String| history.orders.contains_key(*id) || blocked(history, id);
        self.ready.iter().chain(&self.dead).filter(|id| !forbidden(id)).cloned().collect()
    }
}

/// A person or a rule stopped a server that is to be brought back: it is left alone from now on.
#[must_use]
pub fn stopped_meanwhile(history: &History, hangar: &HangarReading, id: &str, server: &ServerReading) -> Option<Body> {
    let fleet = history.fleet_under_way().filter(|fleet| fleet.covers(id) && !history.orders.contains_key(id))?;
    let same_process = fleet.attempt.made_in(hangar.process_start);
    let before = fleet.attempt.saved.as_ref().filter(|_| same_process).and_then(|saved| saved.stops.get(id)).copied().unwrap_or(0);
    let stopped = server.gauge != Some(State::Ready) && deliberate_stops(&server.stops) > before;
    let cause = DELIBERATE.iter().find(|(reason, _)| stopped && server.stops.get(reason).is_some_and(|n| *n > 0))?.1;
    let why = format!("stopped at Hangar, reason {cause}, while {} was under way", fleet.attempt.action);
    Some(Body::HoldOrdered { mcp_server: id.to_owned(), cause, why })
}

fn blocked(history: &History, id: &str) -> bool {
    history.open.get(id).is_some_and(|i| i.reason == Reason::CapabilityBlocked)
}

/// The last action of this kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fleet<'a> {
    pub attempt: &'a Attempt,
    pub under_way: bool,
}

impl<'a> Fleet<'a> {
    /// What it saved and is to bring back.
    pub fn servers(self) -> impl Iterator<Item = &'a String> {
        self.attempt.saved.iter().flat_map(|saved| saved.ready.iter().chain(&saved.dead))
    }

    /// Saved and to be brought back by it.
    #[must_use]
    pub fn covers(&self, id: &str) -> bool {
        self.attempt.saved.as_ref().is_some_and(|saved| saved.ready.contains(id) || saved.dead.contains(id))
    }

    /// It restarts the process, and was begun in this one.
    #[must_use]
    pub fn takes_down(&self, process_start: Timestamp) -> bool {
        self.attempt.action.broad() && self.attempt.process_start == Some(process_start) && self.under_way
    }
}

impl History {
    /// The action of this kind that is under way.
    #[must_use]
    pub fn fleet_under_way(&self) -> Option<Fleet<'_>> {
        self.fleet().filter(|f| f.under_way)
    }
}

/// What is saved before `rung` acts on the incident's server, by what the gauges say: `up` are ready, being started or
/// retried by Hangar, `dead` are dead.
#[must_use]
pub fn to_save(history: &History, rung: Rung, server: &str, up: &BTreeSet<String>, dead: &BTreeSet<String>) -> Saved {
    let mut saved = Saved::default();
    saved.left.extend(history.orders.keys().cloned());
    for id in up.iter().chain(dead).chain(history.open.keys()) {
        let may = match history.open.get(id).map(|i| i.reason) {
            Some(Reason::CapabilityBlocked) => false,
            Some(Reason::Unknown) | None => up.contains(id) || id == server,
            Some(Reason::GivenUp | Reason::Crashed | Reason::StartFailed) => true,
        };
        let place = match (may && !saved.left.contains(id), history.open.contains_key(id)) {
            (false, _) => &mut saved.left,
            (true, true) => &mut saved.dead,
            (true, false) => &mut saved.ready,
        };
        place.insert(id.clone());
    }
    if !rung.restores_fleet() {
        // Where only one server or one group is touched, the rest needs no saving.
        saved.ready.clear();
        saved.dead.clear();
    }
    saved
}

/// While every server is being brought back, nothing else is done to any of them.
#[must_use]
pub fn under_way(history: &History, incident: &Incident) -> Option<Braked> {
    if let Some(other) = members_at_work(history, incident).find(|other| of_group(other)) {
        let why = format!("the dead members of its group are being started, for {}", other.mcp_server);
        return Some(Braked::new(Hold::LeaseHeld, None, why));
    }
    let fleet = history.fleet_under_way().filter(|f| incident.attempts.iter().all(|a| a.attempt_id != f.attempt.attempt_id))?;
    let why = format!("{} is under way ({}): it brings every server back", fleet.attempt.action, fleet.attempt.attempt_id);
    Some(Braked::new(Hold::LeaseHeld, None, why))
}

/// What stops an action on the whole fleet before it begins.
#[must_use]
pub fn before(policy: &Policy, snapshot: &Snapshot, history: &History, incident: &Incident, rung: Rung, now: Timestamp) -> Option<Braked> {
    if rung == Rung::RoleRuntimeRestart {
        return blocked_member(history, incident).or_else(|| member_at_work(history, incident));
    }
    if !rung.restores_fleet() {
        return None;
    }
    if policy.platform.instances.get() > 1 && !policy.platform.fleet_lock {
        let why = format!("{} replicas and no lock that they share: storage must be one that they share", policy.platform.instances);
        return Some(Braked::new(Hold::LeaseHeld, None, why));
    }
    let last = incident.attempts.iter().rev().find(|a| a.action == rung).filter(|a| !snapshot.others.lock_is_free_since(a));
    if let Some(until) = last.and_then(lock_asked).filter(|until| now < *until) {
        return Some(Braked::new(Hold::LeaseHeld, Some(until), "another replica holds the fleet lock"));
    }
    if let Some(paused) = super::pause::elsewhere(history, rung, now) {
        return Some(paused);
    }
    if let Some(attempt) = history.open.values().find_map(Incident::open_attempt) {
        let why = format!("{} at {} is under way; {rung} touches every server and waits for it", attempt.action, attempt.mcp_server);
        return Some(Braked::new(Hold::Cooldown, None, why));
    }
    None
}

/// Other incidents of the same group with an attempt that acts.
fn members_at_work<'a>(history: &'a History, incident: &'a Incident) -> impl Iterator<Item = &'a Incident> {
    let acts = |other: &&Incident| other.open_attempt().is_some_and(|a| !a.action.only_looks());
    let same = |other: &&Incident| other.group.is_some() && other.group == incident.group && other.mcp_server != incident.mcp_server;
    history.open.values().filter(same).filter(acts)
}

/// An action on the dead members of a group may be under way there.
fn of_group(incident: &Incident) -> bool {
    incident.open_attempt().is_some_and(|a| a.action == Rung::RoleRuntimeRestart && a.receipt.is_none())
}

/// The dead members are started one by one: none that is being acted on.
fn member_at_work(history: &History, incident: &Incident) -> Option<Braked> {
    let other = members_at_work(history, incident).next()?;
    Some(Braked::new(Hold::Cooldown, None, format!("{} of its group is being acted on", other.mcp_server)))
}

/// Evidence of an attempt that found the fleet lock taken.
pub const LEASE_HELD_UNTIL: &str = "lease_held_until";

/// Until when this attempt found the fleet lock taken, if it did.
#[must_use]
pub fn lock_asked(attempt: &Attempt) -> Option<Timestamp> {
    attempt.evidence.get(LEASE_HELD_UNTIL)?.as_str()?.parse().ok()
}

/// A member that a person must look at holds its group: a group action must not come near it.
fn blocked_member(history: &History, incident: &Incident) -> Option<Braked> {
    let group = incident.group.as_ref()?;
    let blocked = history.open.values().find(|i| i.group.as_ref() == Some(group) && i.reason == Reason::CapabilityBlocked)?;
    let why = format!("{} of group {group} is capability_blocked: a person must compare its tools first", blocked.mcp_server);
    Some(Braked::new(Hold::ApprovalNeeded, None, why))
}

/// Hangar itself stops servers as `shutdown` when it is restarted or reloaded, or when a definition is taken out: no
/// person's stop, where we had that done since the incident opened.
#[must_use]
pub fn shutdowns_are_ours(history: &History, incident: &Incident, hangar: &HangarReading) -> bool {
    let fleet = history.fleet().filter(|f| f.under_way || f.attempt.process_start == hangar.process_start);
    let of_fleet = fleet.is_some_and(|f| f.attempt.started_at >= incident.opened_at || f.under_way);
    let of_connector =
        |a: &Attempt| a.action == Rung::ConnectorRestart && a.made_in(hangar.process_start) && a.outcome != Some(Outcome::NotApplicable);
    of_fleet || incident.attempts.iter().any(of_connector)
}

/// The second half of an action that takes away and has to put back, whose executor is not at work.
#[must_use]
pub fn second(policy: &Policy, hangar: &HangarReading, attempt: &Attempt, now: Timestamp) -> Second {
    let begun = attempt.seconds.len();
    if attempt.action == Rung::RoleRuntimeRestart {
        let due = attempt.half_done_at.is_some() && begun == 0;
        let over = Second::Over("the medic ended before it heard an answer", None);
        return if due { Second::Due("its upstream was restarted, the start is due") } else { over };
    }
    if attempt.action == Rung::ConnectorRestart {
        return put_back(attempt, now);
    }
    if begun >= SECOND_MAX {
        return Second::Over("its servers could not be brought back in three tries", Some(Outcome::Failed));
    }
    if attempt.seconds.last().is_some_and(|process| *process != hangar.process_start) {
        return Second::Over("Hangar restarted again while its servers were brought back", Some(Outcome::Failed));
    }
    if attempt.action == Rung::ConfigurationReload {
        return Second::Due("the configuration was reloaded: what was dead is started");
    }
    if attempt.half_done_at.is_some() || (hangar.process_start.is_some() && !attempt.made_in(hangar.process_start)) {
        return Second::Due("Hangar is up again: its servers are brought back");
    }
    let until = after(attempt.started_at, policy.platform.restart_within);
    if now < until { Second::Wait(Some(until)) } else { Second::Over("Hangar was not restarted in time", Some(Outcome::Timeout)) }
}

/// Tried again and again, ever more slowly: while it is out the server does not exist.
fn put_back(attempt: &Attempt, now: Timestamp) -> Second {
    let begun = attempt.seconds.len();
    if begun >= PUT_BACK_MAX {
        return Second::Over("its definition is out of Hangar and cannot be put back", Some(Outcome::Failed));
    }
    let pause = doubled(SignedDuration::from_secs(1), begun, PUT_BACK_PAUSE_MAX);
    match attempt.half_done_at.map(|at| after(at, pause)) {
        Some(until) if begun > 0 && now < until => Second::Wait(Some(until)),
        Some(_) | None => Second::Due("its definition may be out: it is put back"),
    }
}

/// A definition that we took out and could not put back: only a person can.
#[must_use]
pub fn definition_is_out(incident: &Incident) -> bool {
    let last = incident.attempts.iter().rev().find(|a| a.action == Rung::ConnectorRestart);
    last.is_some_and(|a| a.outcome == Some(Outcome::Failed) && !a.seconds.is_empty() && a.receipt == Some(Receipt::Unknown))
}

/// Judges an attempt that has its receipt, on the servers that were saved.
#[must_use]
pub fn verify(
    policy: &Policy,
    snapshot: &Snapshot,
    history: &History,
    attempt: &Attempt,
    receipt_at: Timestamp,
    now: Timestamp,
) -> Verified {
    let due = after(receipt_at, policy.settle);
    if now < due {
        return Verified::Pending(Some(due));
    }
    if snapshot.hangar.read_at.is_none_or(|read| read < due) {
        return Verified::ReadMetrics;
    }
    let Some(saved) = &attempt.saved else {
        return Verified::Settled(Outcome::Unresolved, "what stood before is not on record".to_owned());
    };
    let expected = saved.expected(history);
    let same_process = attempt.made_in(snapshot.hangar.process_start);
    let stands = |id: &String| stand(snapshot.servers.get(id), attempt, same_process && saved.ready.contains(id));
    let missing: Vec<&String> = expected.iter().filter(|id| stands(id) != Stands::Up).collect();
    if missing.is_empty() {
        let why = format!("all {} servers that were ready or dead before are ready and held for {:#}", expected.len(), policy.settle);
        return Verified::Settled(Outcome::Recovered, why);
    }
    let give_up = after(receipt_at, policy.stuck_starting_after).max(due);
    if now < give_up && missing.iter().any(|id| stands(id) == Stands::Starting) {
        return Verified::Pending(Some(after(now, SignedDuration::from_secs(1)).min(give_up)));
    }
    let named: Vec<&str> = missing.iter().take(NAMED_MAX).map(|id| id.as_str()).collect();
    let more = missing.len().saturating_sub(named.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let why = format!("{} of {} servers are not back: {}{more}", missing.len(), expected.len(), named.join(", "));
    Verified::Settled(Outcome::Insufficient, why)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stands {
    Up,
    Starting,
    Down,
}

/// Absent is never ready: after a restart every server has no series at all.
fn stand(server: Option<&ServerReading>, attempt: &Attempt, untouched: bool) -> Stands {
    let Some(server) = server else { return Stands::Down };
    let moved = untouched || server.last_healthy.is_some_and(|at| at > attempt.started_at);
    let reaped = server.stops.get(&StopReason::Idle).is_some_and(|n| *n > 0);
    match server.gauge {
        Some(State::Ready) if moved => Stands::Up,
        Some(State::Cold) if moved && reaped => Stands::Up,
        Some(State::Initializing | State::Degraded) => Stands::Starting,
        None | Some(State::Cold | State::Dead) if server.starting => Stands::Starting,
        None | Some(State::Ready | State::Cold | State::Dead) => Stands::Down,
    }
}
