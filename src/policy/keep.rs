//! Bookkeeping: what has happened and must be written down before the next decision.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::decide::{Decision, decide};
use super::fleet::{definition_is_out, shutdowns_are_ours, stopped_meanwhile};
use super::gate::Gate;
use super::halves::{Second, second};
use super::history::{Acted, Attempt, History, Incident, attempt_id, incident_id, valid_server_id};
use super::ladder::Rung;
use super::limits::{Mode, Policy};
use super::reason::{Provenance, Reason, Source};
use super::record::{Body, Closed, HoldCause, Outcome, Receipt};
use super::seen::{Seen, long_not_working, reason};
use super::snapshot::{ServerReading, Snapshot, State, StopReason};
use super::stops::{STOP_COUNTED, deliberate_stop, our_stops, risen};
use super::symptom::Symptom;
use super::verify::{Verified, reaped_idle, verify};
use super::when::{after, before};

/// A start this shortly before a hold order may still bring the server up, this long after it was sent.
const OUR_START_MAY_LAND: SignedDuration = SignedDuration::from_secs(60);

/// A new Hangar process: recorded, and servers whose start took the old one down are held.
#[must_use]
pub fn restart(policy: &Policy, snapshot: &Snapshot, history: &History) -> Vec<Body> {
    let Some(process_start) = snapshot.hangar.process_start.filter(|start| history.process_start != Some(*start)) else {
        return Vec::new();
    };
    let mut records = vec![Body::HangarRestarted { process_start }];
    let Some(before) = history.process_start else { return records };
    // We had it restarted ourselves: no start took it down.
    if history.fleet().is_some_and(|f| f.takes_down(before)) {
        return records;
    }
    let gone_at = snapshot.hangar.lost_at.unwrap_or(process_start).min(process_start);
    // Nor did any where the medic of another replica had all of them restarted.
    if snapshot.others.restarted(policy, gone_at, process_start).is_some() {
        return records;
    }
    let mut held: Vec<&str> = Vec::new();
    for acted in history.acted.iter().filter(|a| a.process_start == Some(before)) {
        let open = history.open.get(&acted.mcp_server).and_then(Incident::open_attempt);
        let unanswered = open.is_some_and(|a| {
            a.attempt_id == acted.attempt_id && a.receipt != Some(Receipt::Refused) && a.receipt != Some(Receipt::Accepted)
        });
        let soon = gone_at.duration_since(acted.at) <= policy.took_hangar_down_within;
        let already = history.orders.contains_key(&acted.mcp_server) || held.contains(&acted.mcp_server.as_str());
        if (soon || unanswered) && !already {
            held.push(&acted.mcp_server);
            let why = format!("Hangar went down {:#} after our start of it: a person must look first", gone_at.duration_since(acted.at));
            records.push(Body::HoldOrdered { mcp_server: acted.mcp_server.clone(), cause: HoldCause::TookHangarDown, why });
        }
    }
    records
}

/// Receipts of attempts whose process ended: known even while Hangar cannot be read.
#[must_use]
pub fn orphans(snapshot: &Snapshot, history: &History) -> Vec<Body> {
    let orphaned = |a: &&Attempt| {
        a.receipt.is_none() && a.half_done_at.is_none() && !a.action.only_looks() && !snapshot.running.contains(&a.attempt_id)
    };
    // `worker_restart` waits: Hangar's counters will tell whether its stop was done.
    let attempts = history.open.values().filter_map(Incident::open_attempt).filter(orphaned);
    attempts.filter(|a| a.action != Rung::WorkerRestart && !a.action.saves_first()).map(orphan_receipt).collect()
}

fn orphan_receipt(attempt: &Attempt) -> Body {
    Body::AttemptReceipt {
        attempt_id: attempt.attempt_id.clone(),
        receipt: Receipt::Unknown,
        outcome: attempt.action.only_looks().then_some(Outcome::Unresolved),
        detail: "the medic ended before it heard an answer".to_owned(),
        evidence: BTreeMap::new(),
    }
}

/// A server without an incident: releases its hold order, or opens an incident.
#[must_use]
pub fn server(
    policy: &Policy,
    snapshot: &Snapshot,
    history: &History,
    id: &str,
    server: &ServerReading,
    seen: &Seen,
    now: Timestamp,
) -> Vec<Body> {
    if *seen == Seen::Healthy {
        return released(history, id, server).into_iter().collect();
    }
    if let Some(ordered) = stopped_meanwhile(history, &snapshot.hangar, id, server) {
        return vec![ordered];
    }
    let Some((symptom, reason, provenance)) = ill(policy, snapshot, server, seen, now).filter(|_| valid_server_id(id)) else {
        return Vec::new();
    };
    let mut records = Vec::new();
    let flapped = history.closed.get(id).filter(|i| within_flap_window(policy, i, now));
    let recovering = flapped.and_then(|i| i.attempts.iter().rev().find(|a| a.outcome == Some(Outcome::Recovered)));
    if let Some(attempt) = recovering {
        let why = format!("dead again within {:#}", policy.flap_window);
        records.push(Body::AttemptSettled { attempt_id: attempt.attempt_id.clone(), outcome: Outcome::Insufficient, why });
    }
    records.push(Body::IncidentOpened {
        incident_id: incident_id(id, now),
        mcp_server: id.to_owned(),
        symptom,
        reason,
        since: provenance.as_ref().map_or(now, |p| p.at).min(now),
        provenance,
        reopens: flapped.map(|i| i.incident_id.clone()),
        floor_rank: recovering.map_or(0, |a| a.action.rank() + 1),
        slow_retries: flapped.map_or(0, |i| i.slow_retries),
        stops: server.stops.clone(),
        process_start: snapshot.hangar.process_start,
        group: server.group.as_ref().map(|g| g.group.clone()),
    });
    records
}

fn within_flap_window(policy: &Policy, incident: &Incident, now: Timestamp) -> bool {
    incident.closed.as_ref().is_some_and(|(how, at, _)| *how == Closed::Recovered && now.duration_since(*at) <= policy.flap_window)
}

/// A stop's order ends when the server is seen ready again without us; what a person ordered or must look at, by a person only.
fn released(history: &History, id: &str, server: &ServerReading) -> Option<Body> {
    let order = history.orders.get(id)?;
    match order.cause {
        HoldCause::TookHangarDown | HoldCause::Person => return None,
        HoldCause::UserRequest | HoldCause::Manual | HoldCause::Shutdown | HoldCause::DetectionBlock | HoldCause::Other => {}
    }
    let rest = server.rest.as_ref().filter(|_| !server.rest_outdated)?;
    let up_since = rest.started_at.or(server.gauge_since)?;
    let may_be_ours = |a: &Acted| {
        let from = before(order.since, OUR_START_MAY_LAND);
        a.mcp_server == id && a.at > from && up_since <= after(a.at, OUR_START_MAY_LAND)
    };
    let ours = history.acted.iter().any(may_be_ours);
    (!ours).then(|| Body::HoldReleased { mcp_server: id.to_owned(), why: "seen ready without us".to_owned() })
}

/// The symptom that a server shows, if it is ill.
fn ill(
    policy: &Policy,
    snapshot: &Snapshot,
    server: &ServerReading,
    seen: &Seen,
    now: Timestamp,
) -> Option<(Symptom, Reason, Option<Provenance>)> {
    let (told, provenance) = reason(snapshot, server, now);
    let blocked = told == Reason::CapabilityBlocked;
    let when_up = |symptom| Some((symptom, if blocked { told } else { Reason::Unknown }, provenance.clone().filter(|_| blocked)));
    match seen {
        Seen::Dead => Some((Symptom::of_dead(told), told, provenance)),
        // Hangar will call it crashed at its next look.
        Seen::Down if blocked => Some((Symptom::TransportEof, told, provenance)),
        Seen::Down => {
            let at = server.rest.as_ref().map_or(now, |r| r.at);
            Some((Symptom::TransportEof, Reason::Crashed, Some(Provenance::of(Source::Rest, at))))
        }
        Seen::NotSeenHealthy => when_up(Symptom::ServerNotSeenHealthy),
        // Retried or started again and again counts too: then no single try lasts, and nothing works all the same.
        Seen::Degraded(since) if now.duration_since(*since) > policy.degraded_too_long_after || long_not_working(policy, server, now) => {
            when_up(Symptom::ServerDegradedTooLong)
        }
        Seen::Initializing(since) if now.duration_since(*since) > policy.stuck_starting_after || long_not_working(policy, server, now) => {
            when_up(Symptom::ServerStuckStarting)
        }
        Seen::Degraded(_) | Seen::Initializing(_) | Seen::Healthy | Seen::Cold | Seen::Gone | Seen::Unknown => None,
    }
}

/// A server with an open incident.
#[must_use]
pub fn incident(
    policy: &Policy,
    snapshot: &Snapshot,
    history: &History,
    incident: &Incident,
    server: &ServerReading,
    seen: &Seen,
    now: Timestamp,
) -> Vec<Body> {
    let keeper = Keeper { policy, snapshot, history, incident, server, seen, now };
    // One stage at a time: each next one must see what the one before wrote.
    let stages = [keeper.respect_stop(), keeper.told(), keeper.lost_in_restart(), keeper.settle(), keeper.close(), keeper.spend()];
    stages.into_iter().find(|records| !records.is_empty()).unwrap_or_default()
}

struct Keeper<'a> {
    policy: &'a Policy,
    snapshot: &'a Snapshot,
    history: &'a History,
    incident: &'a Incident,
    server: &'a ServerReading,
    seen: &'a Seen,
    now: Timestamp,
}

impl Keeper<'_> {
    fn running(&self) -> bool {
        self.incident.open_attempt().is_some_and(|a| self.snapshot.running.contains(&a.attempt_id))
    }

    fn closed(&self, how: Closed, why: impl Into<String>) -> Body {
        Body::IncidentClosed { incident_id: self.incident.incident_id.clone(), how, why: why.into() }
    }

    fn updated(&self, symptom: Symptom, reason: Reason, provenance: Option<Provenance>) -> Body {
        Body::IncidentUpdated { incident_id: self.incident.incident_id.clone(), symptom, reason, provenance }
    }

    fn settled(attempt: &Attempt, outcome: Outcome, why: impl Into<String>) -> Body {
        Body::AttemptSettled { attempt_id: attempt.attempt_id.clone(), outcome, why: why.into() }
    }

    /// A deliberate stop since the death: ordered at once, and the incident ends when our executor is not at work.
    fn respect_stop(&self) -> Vec<Body> {
        let up = matches!(self.seen, Seen::Healthy | Seen::NotSeenHealthy);
        let starting = self.incident.open_attempt().is_some_and(|a| !a.action.only_looks());
        // Its counter and its gauge tell of a stop even where REST cannot be read.
        let unknown = *self.seen == Seen::Unknown && self.server.gauge != Some(State::Cold);
        if unknown || (up && !starting) {
            return Vec::new();
        }
        // Up with a stop on record: started since, by whoever. Where that may have been us, a detection rule's block still stands.
        let open = self.incident.open_attempt();
        let hangar = &self.snapshot.hangar;
        if open.is_some_and(|a| a.action.puts_back() && a.receipt.is_none()) {
            // What was taken away is put back all the same.
            return stopped_meanwhile(self.history, hangar, &self.incident.mcp_server, self.server).into_iter().collect();
        }
        let ours = |cause: &HoldCause| *cause == HoldCause::Shutdown && shutdowns_are_ours(self.history, self.incident, hangar);
        let stop = deliberate_stop(self.incident, hangar, self.server, self.seen).filter(|cause| !ours(cause));
        let Some(cause) = stop.filter(|cause| !up || *cause == HoldCause::DetectionBlock) else { return Vec::new() };
        let mut records = Vec::new();
        let why = format!("stopped at Hangar, reason {cause}");
        if !self.history.orders.contains_key(&self.incident.mcp_server) {
            records.push(Body::HoldOrdered { mcp_server: self.incident.mcp_server.clone(), cause, why: why.clone() });
        }
        if !self.running() {
            records.extend(self.incident.open_attempt().map(|a| Self::settled(a, Outcome::Cancelled, why.clone())));
            records.push(self.closed(Closed::Cancelled, why));
        }
        records
    }

    /// The reason or the symptom became known or changed. A capability block stays until the server is seen ready.
    fn told(&self) -> Vec<Body> {
        let Some((symptom, told, provenance)) = ill(self.policy, self.snapshot, self.server, self.seen, self.now) else {
            return self.blocked_meanwhile();
        };
        let known = self.incident.reason;
        let sticks = known == Reason::CapabilityBlocked || (told == Reason::Unknown && *self.seen != Seen::NotSeenHealthy);
        let reason = if sticks { known } else { told };
        // A block that a log line tells of afterwards is a symptom of its own even while the server looks otherwise ill.
        let symptom = if *self.seen == Seen::Dead { Symptom::of_dead(reason) } else { symptom };
        let same = reason == known && (symptom == self.incident.symptom() || self.incident.open_attempt().is_some());
        if same {
            return Vec::new();
        }
        let provenance = if reason == known { self.incident.provenance.clone() } else { provenance };
        vec![self.updated(symptom, reason, provenance)]
    }

    /// A capability block that is told late, of a server that is not dead (any more): cold after a restart, being started, ...
    fn blocked_meanwhile(&self) -> Vec<Body> {
        if matches!(self.seen, Seen::Healthy | Seen::Unknown | Seen::Gone) || self.incident.reason == Reason::CapabilityBlocked {
            return Vec::new();
        }
        let (told, provenance) = reason(self.snapshot, self.server, self.now);
        if told == Reason::CapabilityBlocked { vec![self.updated(self.incident.symptom(), told, provenance)] } else { Vec::new() }
    }

    /// After a restart of Hangar every server reads cold: an ill one was lost, if it was seen ill shortly before.
    fn lost_in_restart(&self) -> Vec<Body> {
        if *self.seen != Seen::Cold || self.incident.symptom() == Symptom::ServerLostInRestart || self.incident.open_attempt().is_some() {
            return Vec::new();
        }
        let Some(start) = self.restarted_since() else { return Vec::new() };
        if self.was_cold() {
            return vec![self.closed(Closed::Cancelled, "cold already before Hangar restarted: stopped, or its definition changed")];
        }
        let lost = start.duration_since(self.last_seen_ill()) <= self.policy.lost_in_restart_within;
        // A capability block outlives everything: it ends when the server is seen ready, or by a person.
        if lost || self.incident.reason == Reason::CapabilityBlocked {
            return vec![self.updated(Symptom::ServerLostInRestart, self.incident.reason, self.incident.provenance.clone())];
        }
        let why = format!("Hangar restarted more than {:#} after the server was last seen dead", self.policy.lost_in_restart_within);
        vec![self.closed(Closed::Cancelled, why)]
    }

    /// Not lost in the restart, but put to rest before it, and not by us; why, Hangar's counters can no longer tell.
    fn was_cold(&self) -> bool {
        let stopped_by_us = |a: &Attempt| a.action == Rung::WorkerRestart && a.outcome != Some(Outcome::NotApplicable);
        let blocked = self.incident.reason == Reason::CapabilityBlocked;
        self.server.cold_before_restart && !blocked && !self.incident.attempts.iter().any(stopped_by_us)
    }

    fn last_seen_ill(&self) -> Timestamp {
        let remembered = self.history.seen_dead.get(&self.incident.mcp_server).copied();
        remembered.into_iter().chain([self.incident.opened_at, self.incident.reason_at]).max().unwrap_or(self.incident.opened_at)
    }

    /// The start of a Hangar process in which the server has not been seen ill yet.
    fn restarted_since(&self) -> Option<Timestamp> {
        let start = self.snapshot.hangar.process_start.filter(|start| self.incident.process_start != Some(*start))?;
        (start > self.last_seen_ill()).then_some(start)
    }

    fn settle(&self) -> Vec<Body> {
        let Some(attempt) = self.incident.open_attempt().filter(|_| !self.running()) else { return Vec::new() };
        let held = self.history.orders.contains_key(&self.incident.mcp_server) && !attempt.action.saves_first();
        if held && attempt.receipt.is_none() && attempt.half_done_at.is_some() {
            return vec![Self::settled(attempt, Outcome::Unresolved, "held before the second half")];
        }
        if attempt.receipt.is_none() {
            return match second(self.policy, self.snapshot, self.history, self.incident, attempt, self.server, self.seen, self.now) {
                // A crash came between the stop and its record. Once started, nothing would tell that this stop was ours.
                Second::Due(_) if attempt.action == Rung::WorkerRestart && attempt.half_done_at.is_none() => {
                    vec![Body::AttemptHalfDone { attempt_id: attempt.attempt_id.clone(), evidence: BTreeMap::new() }]
                }
                Second::Due(_) | Second::ReadAgain(_) | Second::Wait(_) => Vec::new(),
                Second::NotNeeded(why) => vec![Body::AttemptReceipt {
                    attempt_id: attempt.attempt_id.clone(),
                    receipt: Receipt::Accepted,
                    outcome: None,
                    detail: why.to_owned(),
                    evidence: BTreeMap::new(),
                }],
                Second::Over(why, outcome) => vec![Body::AttemptReceipt {
                    attempt_id: attempt.attempt_id.clone(),
                    receipt: Receipt::Unknown,
                    outcome,
                    detail: why.to_owned(),
                    evidence: BTreeMap::new(),
                }],
                Second::None => vec![self.orphan_receipt(attempt)],
            };
        }
        let verified = verify(self.policy, self.snapshot, self.history, self.incident, attempt, self.server, self.seen, self.now);
        let Verified::Settled(outcome, why) = verified else { return Vec::new() };
        let mut records = vec![Self::settled(attempt, outcome, why.clone())];
        if outcome == Outcome::Recovered {
            records.push(self.closed(Closed::Recovered, format!("{}: {why}", attempt.action)));
        }
        records
    }

    /// By now Hangar's counter tells whether an interrupted restart got as far as its stop. Later stops are not ours.
    fn orphan_receipt(&self, attempt: &Attempt) -> Body {
        let mut body = orphan_receipt(attempt);
        if let Body::AttemptReceipt { evidence, .. } = &mut body
            && attempt.action == Rung::WorkerRestart
            && attempt.half_done_at.is_none()
        {
            let hangar = &self.snapshot.hangar;
            let counted = risen(self.incident, hangar, self.server, StopReason::Manual) >= our_stops(self.incident, hangar);
            evidence.insert(STOP_COUNTED.to_owned(), counted.into());
        }
        body
    }

    /// The end of an incident that no attempt of ours brought about.
    fn close(&self) -> Vec<Body> {
        if self.incident.open_attempt().is_some() {
            return Vec::new();
        }
        let id = &self.incident.mcp_server;
        match self.seen {
            Seen::Healthy if self.works() => {
                let mut records: Vec<Body> = released(self.history, id, self.server).into_iter().collect();
                records.push(self.healed());
                records
            }
            Seen::Gone if definition_is_out(self.incident) && self.incident.exhausted_at.is_none() => {
                vec![Body::Exhausted { incident_id: self.incident.incident_id.clone() }]
            }
            Seen::Gone if definition_is_out(self.incident) => Vec::new(),
            Seen::Gone => vec![self.closed(Closed::Cancelled, "Hangar no longer knows this server")],
            Seen::Cold if self.brought_back_soon() => Vec::new(),
            Seen::Cold if self.cold_is_an_end() => {
                vec![self.closed(Closed::Cancelled, "cold without a restart of Hangar: idle, or its definition changed")]
            }
            Seen::Healthy
            | Seen::Cold
            | Seen::Unknown
            | Seen::NotSeenHealthy
            | Seen::Down
            | Seen::Degraded(_)
            | Seen::Initializing(_)
            | Seen::Dead => Vec::new(),
        }
    }

    /// A reload or a restart of ours that saved this server brought it back; one attempt, however many servers it heals.
    fn healed(&self) -> Body {
        let ours = self.history.fleet().filter(|f| f.attempt.started_at >= self.incident.opened_at && f.covers(&self.incident.mcp_server));
        ours.map_or_else(
            || self.closed(Closed::HealedByItself, "seen ready and healthy without us"),
            |fleet| self.closed(Closed::Recovered, format!("brought back by {} ({})", fleet.attempt.action, fleet.attempt.attempt_id)),
        )
    }

    fn brought_back_soon(&self) -> bool {
        self.history.fleet_under_way().is_some_and(|f| f.covers(&self.incident.mcp_server))
    }

    /// Ready proves nothing: something healthy must have been seen since the death. Hangar before 2.20 has no such series.
    fn works(&self) -> bool {
        self.server.last_healthy.is_none_or(|at| at > self.incident.since)
    }

    /// Cold in the process in which it was ill, and not by a stop of ours.
    fn cold_is_an_end(&self) -> bool {
        let ours = our_stops(self.incident, &self.snapshot.hangar) > 0;
        let in_this_process = self.restarted_since().is_none() && self.incident.symptom() != Symptom::ServerLostInRestart;
        in_this_process && (!ours || reaped_idle(self.incident, &self.snapshot.hangar, self.server))
    }

    /// Rungs that do not apply are written down and passed; the last one ends the ladder; observe mode writes what it would do.
    fn spend(&self) -> Vec<Body> {
        let gate = Gate { policy: self.policy, snapshot: self.snapshot, history: self.history, now: self.now };
        let observed =
            self.policy.mode_of(&self.incident.mcp_server) == Mode::Observe && self.incident.would_act.iter().any(|r| !r.only_looks());
        let idle = observed || matches!(self.seen, Seen::Unknown | Seen::Healthy | Seen::Gone);
        if self.incident.open_attempt().is_some() || idle || gate.before_deciding(self.incident, self.seen).is_some() {
            return Vec::new();
        }
        let id = &self.incident.incident_id;
        match decide(self.policy, self.incident, self.seen) {
            Decision::Pass(rung, why) => {
                let attempt_id = attempt_id(id, self.incident.attempts.len() + 1);
                vec![
                    Body::AttemptOpened {
                        attempt_id: attempt_id.clone(),
                        incident_id: id.clone(),
                        mcp_server: self.incident.mcp_server.clone(),
                        action: rung,
                        why: why.to_owned(),
                        slow_retry: false,
                        process_start: self.history.process_start,
                    },
                    Body::AttemptSettled { attempt_id, outcome: Outcome::NotApplicable, why: why.to_owned() },
                ]
            }
            Decision::Exhausted if self.incident.exhausted_at.is_none() && self.policy.mode_of(&self.incident.mcp_server) == Mode::Act => {
                vec![Body::Exhausted { incident_id: id.clone() }]
            }
            Decision::Climb(rung)
                if self.incident.exhausted_at.is_none()
                    && self.policy.mode_of(&self.incident.mcp_server) == Mode::Act
                    && gate.closed(self.incident, self.seen, rung, || gate.storm().hold(self.incident, rung)).is_some() =>
            {
                vec![Body::Exhausted { incident_id: id.clone() }]
            }
            // What only looks leads to the first rung that would act; that one is shown and kept.
            Decision::Climb(rung) if self.policy.mode_of(&self.incident.mcp_server) == Mode::Observe => {
                vec![Body::WouldAct { incident_id: id.clone(), action: rung }]
            }
            Decision::Climb(_) | Decision::Exhausted | Decision::Forbidden(_) => Vec::new(),
        }
    }
}
