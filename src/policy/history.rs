//! The fold of the attempt log: what was done, what is open, what must be respected.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::approval::Approval;
use super::break_glass::Grant;
use super::fleet::{Fleet, Saved};
use super::ladder::Rung;
use super::limits::Policy;
use super::pause::Pause;
use super::reason::{Provenance, Reason};
use super::record::{Body, Closed, HoldCause, Outcome, Receipt, Record};
use super::request::Request;
use super::snapshot::Stops;
use super::symptom::Symptom;
use super::when::{after, before};

/// One try, folded from its records.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    pub attempt_id: String,
    pub incident_id: String,
    pub instance: String,
    pub mcp_server: String,
    pub action: Rung,
    pub actor: String,
    /// Why this rung, at the moment of opening.
    pub why: String,
    pub slow_retry: bool,
    pub started_at: Timestamp,
    /// The Hangar process that it was made in. From the order of the records, so that a clock that steps back cannot confuse it.
    pub process_start: Option<Timestamp>,
    /// `worker_restart`: when its stop was done.
    pub half_done_at: Option<Timestamp>,
    /// What stood before it, where it takes something away.
    pub saved: Option<Saved>,
    /// The Hangar process of each time that its second half was begun.
    pub seconds: Vec<Option<Timestamp>>,
    pub receipt: Option<Receipt>,
    pub receipt_at: Option<Timestamp>,
    /// The outcome that the receipt itself settles, if any.
    pub receipt_outcome: Option<Outcome>,
    /// The target's words.
    pub detail: String,
    pub evidence: BTreeMap<String, Value>,
    pub outcome: Option<Outcome>,
    pub settled_at: Option<Timestamp>,
    pub settled_why: String,
    /// Of the attempt's latest record.
    pub recorded_at: Timestamp,
    pub prev_hash: String,
    pub hash: String,
}

impl Attempt {
    /// Not settled yet.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.outcome.is_none()
    }

    /// Whether this Hangar process is the one that it was made in.
    #[must_use]
    pub fn made_in(&self, process_start: Option<Timestamp>) -> bool {
        self.process_start == process_start
    }

    /// Its receipt shows that the start ran at Hangar (DESIGN: only these can unlock a broad rung).
    #[must_use]
    pub fn start_ran(&self) -> bool {
        self.action.rank() >= 2 && (self.receipt == Some(Receipt::Accepted) || self.receipt_outcome == Some(Outcome::Failed))
    }

    /// Hangar does not permit our key to do this: nothing was tried.
    #[must_use]
    pub fn not_permitted(&self) -> bool {
        self.outcome == Some(Outcome::Denied) && self.evidence.get("forbidden").and_then(Value::as_bool) == Some(true)
    }

    /// Its rung applied, and Hangar let us.
    #[must_use]
    pub fn was_made(&self) -> bool {
        self.outcome != Some(Outcome::NotApplicable) && !self.not_permitted()
    }

    /// The outcome says that this rung was tried and is spent.
    #[must_use]
    pub fn spends_rung(&self) -> bool {
        !matches!(self.outcome, Some(Outcome::Cancelled | Outcome::NotApplicable))
    }
}

/// One incident, folded from its records.
#[derive(Debug, Clone, PartialEq)]
pub struct Incident {
    pub incident_id: String,
    pub instance: String,
    pub mcp_server: String,
    pub opened_at: Timestamp,
    pub symptoms: Vec<Symptom>,
    pub reason: Reason,
    /// When this reason became known.
    pub reason_at: Timestamp,
    /// When it was last found lost in a restart of Hangar.
    pub lost_at: Option<Timestamp>,
    pub provenance: Option<Provenance>,
    pub since: Timestamp,
    pub reopens: Option<String>,
    pub floor_rank: u8,
    /// Slow retries made, with those of the incident that this one goes on with.
    pub slow_retries: u32,
    pub stops: Stops,
    pub process_start: Option<Timestamp>,
    pub group: Option<String>,
    pub exhausted_at: Option<Timestamp>,
    pub closed: Option<(Closed, Timestamp, String)>,
    /// Oldest first.
    pub attempts: Vec<Attempt>,
    /// Rungs recorded as "would act" in observe mode.
    pub would_act: BTreeSet<Rung>,
    /// The approval that stands, if any.
    pub approval: Option<Approval>,
}

impl Incident {
    /// The symptom it stands under now.
    #[must_use]
    pub fn symptom(&self) -> Symptom {
        self.symptoms.last().copied().unwrap_or(Symptom::ServerNotSeenHealthy)
    }

    /// When our last action at Hangar ended, or its first half. What was seen before that tells nothing of what came of it.
    #[must_use]
    pub fn last_acted_at(&self) -> Option<Timestamp> {
        self.attempts.iter().filter(|a| !a.action.only_looks()).flat_map(|a| [a.half_done_at, a.receipt_at]).flatten().max()
    }

    /// The attempt of this id.
    #[must_use]
    pub fn attempt(&self, attempt_id: &str) -> Option<&Attempt> {
        self.attempts.iter().find(|a| a.attempt_id == attempt_id)
    }

    /// The attempt under way, if any.
    #[must_use]
    pub fn open_attempt(&self) -> Option<&Attempt> {
        self.attempts.iter().rev().find(|a| a.is_open())
    }
}

/// A stop to be respected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldOrder {
    pub mcp_server: String,
    pub cause: HoldCause,
    pub since: Timestamp,
    pub why: String,
}

/// An acting attempt, for the budgets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acted {
    pub at: Timestamp,
    /// After this nothing more of it was sent; `None` while it is open. A second half may come long after the first.
    pub ended_at: Option<Timestamp>,
    /// The Hangar process that it was made in.
    pub process_start: Option<Timestamp>,
    pub mcp_server: String,
    pub attempt_id: String,
    pub action: Rung,
}

impl Acted {
    /// How long ago it can have started something at the latest.
    #[must_use]
    pub fn age(&self, now: Timestamp) -> SignedDuration {
        now.duration_since(self.ended_at.unwrap_or(now))
    }
}

/// An opened incident, for the storm brake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedAt {
    pub at: Timestamp,
    pub mcp_server: String,
    pub incident_id: String,
    /// Set when the incident was closed as recovered by us.
    pub recovered: bool,
}

/// All of the past that `plan` needs. Bounded by the windows of the policy and the number of servers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct History {
    /// Open incidents by server.
    pub open: BTreeMap<String, Incident>,
    /// The last closed incident of each server, kept for the flap window.
    pub closed: BTreeMap<String, Incident>,
    pub orders: BTreeMap<String, HoldOrder>,
    /// Acting attempts of the longest budget window, oldest first.
    pub acted: VecDeque<Acted>,
    /// Incidents opened lately, oldest first.
    pub opened: VecDeque<OpenedAt>,
    /// The Hangar process seen last.
    pub process_start: Option<Timestamp>,
    /// Live break-glass grants, by id: neither used nor recorded as expired.
    pub grants: BTreeMap<String, Grant>,
    /// Restart requests that wait for their turn, by id.
    pub requests: BTreeMap<String, Request>,
    /// Pauses that stand: of everything (`None`) and of servers.
    pub pauses: BTreeMap<Option<String>, Pause>,
    /// Not records but checkpoints: when each server was last seen dead.
    pub seen_dead: BTreeMap<String, Timestamp>,
    /// Its attempt: see [`Self::fleet`].
    pub last_fleet: Option<String>,
}

/// How many entries of `acted` and `opened` are kept at most, whatever happens.
const WINDOW_ENTRIES_MAX: usize = 100_000;

/// However long the operator makes the storm's window, this much of it is kept.
pub(crate) const STORM_WINDOW_MAX: SignedDuration = SignedDuration::from_hours(24);

impl History {
    /// Folds one record in. Records of other instances must not be given.
    pub fn apply(&mut self, record: &Record) {
        match &record.body {
            Body::IncidentOpened { .. } => self.incident_opened(record),
            Body::IncidentUpdated { incident_id, symptom, reason, provenance } => {
                if let Some(incident) = self.open_by_id(incident_id) {
                    if incident.symptom() != *symptom {
                        if *symptom == Symptom::ServerLostInRestart {
                            incident.lost_at = Some(record.at);
                        }
                        incident.symptoms.retain(|s| s != symptom);
                        incident.symptoms.push(*symptom);
                    }
                    if incident.reason != *reason {
                        incident.reason = *reason;
                        incident.reason_at = record.at;
                    }
                    incident.provenance.clone_from(provenance);
                }
            }
            Body::IncidentClosed { incident_id, how, why } => self.incident_closed(record.at, incident_id, *how, why),
            Body::AttemptOpened { .. } => self.attempt_opened(record),
            Body::AttemptHalfDone { attempt_id, evidence } => {
                self.attempt(record, attempt_id, |a| {
                    a.half_done_at = Some(record.at);
                    a.evidence.extend(evidence.clone());
                });
            }
            Body::AttemptReceipt { attempt_id, receipt, outcome, detail, evidence } => {
                self.attempt(record, attempt_id, |a| {
                    a.receipt = Some(*receipt);
                    a.receipt_at = Some(record.at);
                    a.receipt_outcome = *outcome;
                    a.detail.clone_from(detail);
                    a.evidence.extend(evidence.clone());
                });
            }
            Body::AttemptSettled { attempt_id, outcome, why } => {
                self.attempt(record, attempt_id, |a| {
                    a.outcome = Some(*outcome);
                    a.settled_at = Some(record.at);
                    a.settled_why.clone_from(why);
                });
            }
            Body::HoldOrdered { mcp_server, cause, why } => {
                let order = HoldOrder { mcp_server: mcp_server.clone(), cause: *cause, since: record.at, why: why.clone() };
                self.orders.insert(mcp_server.clone(), order);
            }
            Body::HoldReleased { mcp_server, .. } => {
                self.orders.remove(mcp_server);
            }
            Body::HangarRestarted { process_start } => self.process_start = Some(*process_start),
            Body::WouldAct { incident_id, action } => {
                if let Some(incident) = self.open_by_id(incident_id) {
                    incident.would_act.insert(*action);
                }
            }
            Body::Exhausted { incident_id } => {
                if let Some(incident) = self.open_by_id(incident_id) {
                    incident.exhausted_at = Some(record.at);
                }
            }
            Body::Granted { .. } => self.granted(record),
            Body::GrantUsed { grant_id, .. } | Body::GrantExpired { grant_id } => {
                self.grants.remove(grant_id);
            }
            Body::Request { .. } => self.requested(record),
            Body::RequestEnded { request_id, .. } => {
                self.requests.remove(request_id);
            }
            Body::AttemptSaved { attempt_id, saved } => {
                self.attempt(record, attempt_id, |a| a.saved = Some(saved.clone()));
            }
            Body::AttemptSecond { attempt_id, process_start } => {
                self.attempt(record, attempt_id, |a| a.seconds.push(*process_start));
            }
            Body::Paused { mcp_server, until, principal, reason, .. } => {
                let (principal, reason) = (principal.clone(), reason.clone());
                let pause = Pause { mcp_server: mcp_server.clone(), since: record.at, until: *until, principal, reason };
                self.pauses.insert(mcp_server.clone(), pause);
            }
            Body::Unpaused { mcp_server, .. } => {
                self.pauses.remove(mcp_server);
            }
            Body::Approved { incident_id, .. } => {
                let approval = approved(record);
                if let Some(incident) = self.open_by_id(incident_id) {
                    incident.approval = approval;
                }
            }
            Body::ApprovalEnded { approval_id, incident_id, .. } => {
                if let Some(incident) = self.open_by_id(incident_id) {
                    incident.approval = incident.approval.take().filter(|a| a.approval_id != *approval_id);
                }
            }
            Body::GrantRefused { .. } | Body::Anchor { .. } => {}
        }
    }

    /// Forgets what no window of the policy reaches any more.
    pub fn prune(&mut self, policy: &Policy, now: Timestamp) {
        let acted = policy.longest_budget_window();
        // Not in the order of their ends: one that is under way must not keep those behind it.
        self.acted.retain(|a| a.age(now) <= acted);
        while self.acted.len() > WINDOW_ENTRIES_MAX {
            self.acted.pop_front();
        }
        self.prune_opened(policy, now);
        self.closed.retain(|_, i| i.closed.as_ref().is_some_and(|(_, at, _)| now.duration_since(*at) <= policy.flap_window));
        self.last_fleet = self.last_kept_fleet();
    }

    /// Among what is kept: what a restart would find again.
    fn last_kept_fleet(&self) -> Option<String> {
        let attempts = self.open.values().chain(self.closed.values()).flat_map(|i| &i.attempts);
        let made = attempts.filter(|a| a.action.restores_fleet() && a.outcome != Some(Outcome::NotApplicable));
        made.max_by_key(|a| (a.started_at, &a.attempt_id)).map(|a| a.attempt_id.clone())
    }

    /// Servers that are looked at whatever their gauge says, some more than once: with an incident, held, or to be brought back.
    pub fn subjects(&self) -> impl Iterator<Item = &String> {
        let saved = self.fleet_under_way().into_iter().flat_map(Fleet::servers);
        self.open.keys().chain(self.orders.keys()).chain(saved)
    }

    /// The last reload or restart of Hangar that we made, as long as its incident is kept.
    #[must_use]
    pub fn fleet(&self) -> Option<Fleet<'_>> {
        let id = self.last_fleet.as_deref()?;
        let incidents = [self.open.get(server_of(id)), self.closed.get(server_of(id))];
        incidents.into_iter().flatten().find_map(|incident| {
            let attempt = incident.attempt(id)?;
            // With its incident an attempt is over.
            Some(Fleet { attempt, under_way: attempt.outcome.is_none() && incident.closed.is_none() })
        })
    }

    /// A storm outlives its window as long as one of its incidents is open. What opened near no open incident goes, so that
    /// one server that is held for months does not keep every later incident with it.
    fn prune_opened(&mut self, policy: &Policy, now: Timestamp) {
        let window = policy.storm.window.clamp(SignedDuration::ZERO, STORM_WINDOW_MAX);
        if self.opened.iter().any(|o| now.duration_since(o.at) > window) {
            let open: BTreeSet<Timestamp> = self.open.values().map(|i| i.opened_at).collect();
            self.opened
                .retain(|o| now.duration_since(o.at) <= window || open.range(before(o.at, window)..=after(o.at, window)).next().is_some());
        }
        while self.opened.len() > WINDOW_ENTRIES_MAX {
            self.opened.pop_front();
        }
    }

    fn granted(&mut self, record: &Record) {
        let Body::Granted { grant_id, action, target, principal, expires_at, .. } = &record.body else { return };
        let grant = Grant {
            grant_id: grant_id.clone(),
            action: *action,
            target: target.clone(),
            principal: principal.clone(),
            granted_at: record.at,
            expires_at: *expires_at,
        };
        self.grants.insert(grant_id.clone(), grant);
    }

    fn requested(&mut self, record: &Record) {
        let Body::Request { request_id, restart_class, target, principal, role, acts: true, break_glass_until, .. } = &record.body else {
            return;
        };
        let request = Request {
            request_id: request_id.clone(),
            restart_class: *restart_class,
            target: target.clone(),
            principal: principal.clone(),
            role: role.clone(),
            at: record.at,
            break_glass_until: *break_glass_until,
        };
        self.requests.insert(request_id.clone(), request);
    }

    fn open_by_id(&mut self, incident_id: &str) -> Option<&mut Incident> {
        let server = server_of(incident_id);
        self.open.get_mut(server).filter(|i| i.incident_id == incident_id)
    }

    fn incident_opened(&mut self, record: &Record) {
        let Body::IncidentOpened {
            incident_id,
            mcp_server,
            symptom,
            reason,
            provenance,
            since,
            reopens,
            floor_rank,
            slow_retries,
            stops,
            process_start,
            group,
        } = &record.body
        else {
            return;
        };
        let incident = Incident {
            incident_id: incident_id.clone(),
            instance: record.instance.clone(),
            mcp_server: mcp_server.clone(),
            opened_at: record.at,
            symptoms: vec![*symptom],
            reason: *reason,
            reason_at: record.at,
            lost_at: None,
            provenance: provenance.clone(),
            since: *since,
            reopens: reopens.clone(),
            floor_rank: *floor_rank,
            slow_retries: *slow_retries,
            stops: stops.clone(),
            process_start: *process_start,
            group: group.clone(),
            exhausted_at: None,
            closed: None,
            attempts: Vec::new(),
            would_act: BTreeSet::new(),
            approval: None,
        };
        // A recovery that did not last proves nothing in a storm.
        if let Some(before) = self.opened.iter_mut().rev().find(|o| Some(&o.incident_id) == reopens.as_ref()) {
            before.recovered = false;
        }
        let opened = OpenedAt { at: record.at, mcp_server: mcp_server.clone(), incident_id: incident_id.clone(), recovered: false };
        // The clock may have stepped back.
        let place = self.opened.partition_point(|o| o.at <= record.at);
        self.opened.insert(place, opened);
        self.closed.remove(mcp_server);
        if let Some(replaced) = self.open.insert(mcp_server.clone(), incident) {
            self.end_acted(&replaced, record.at);
        }
    }

    fn incident_closed(&mut self, at: Timestamp, incident_id: &str, how: Closed, why: &str) {
        let server = server_of(incident_id);
        if self.open.get(server).is_none_or(|i| i.incident_id != incident_id) {
            return;
        }
        if let Some(opened) = self.opened.iter_mut().rev().find(|o| o.incident_id == incident_id) {
            opened.recovered = how == Closed::Recovered;
        }
        if let Some(mut incident) = self.open.remove(server) {
            self.end_acted(&incident, at);
            incident.closed = Some((how, at, why.to_owned()));
            self.closed.insert(server.to_owned(), incident);
        }
        self.seen_dead.remove(server);
    }

    /// With its incident an attempt is over, whatever is on record of it: its budget runs out like any other's.
    fn end_acted(&mut self, incident: &Incident, at: Timestamp) {
        for acted in self.acted.iter_mut().filter(|a| a.ended_at.is_none()) {
            if incident.attempt(&acted.attempt_id).is_some() {
                acted.ended_at = Some(at);
            }
        }
    }

    fn attempt_opened(&mut self, record: &Record) {
        let Body::AttemptOpened { attempt_id, incident_id, mcp_server, action, why, slow_retry, process_start } = &record.body else {
            return;
        };
        if !action.only_looks() {
            self.acted.push_back(Acted {
                at: record.at,
                ended_at: None,
                process_start: *process_start,
                mcp_server: mcp_server.clone(),
                attempt_id: attempt_id.clone(),
                action: *action,
            });
        }
        if action.restores_fleet() {
            self.last_fleet = Some(attempt_id.clone());
        }
        let attempt = Attempt {
            attempt_id: attempt_id.clone(),
            incident_id: incident_id.clone(),
            instance: record.instance.clone(),
            mcp_server: mcp_server.clone(),
            action: *action,
            actor: record.actor.clone(),
            why: why.clone(),
            slow_retry: *slow_retry,
            started_at: record.at,
            process_start: *process_start,
            half_done_at: None,
            saved: None,
            seconds: Vec::new(),
            receipt: None,
            receipt_at: None,
            receipt_outcome: None,
            detail: String::new(),
            evidence: BTreeMap::new(),
            outcome: None,
            settled_at: None,
            settled_why: String::new(),
            recorded_at: record.at,
            prev_hash: record.prev_hash.clone(),
            hash: record.hash.clone(),
        };
        if let Some(incident) = self.open_by_id(incident_id) {
            // The same record twice is one attempt.
            if incident.attempt(attempt_id).is_some() {
                return;
            }
            // Used once, whatever comes of it.
            incident.approval = incident.approval.take().filter(|a| a.action != *action);
            if *slow_retry {
                incident.slow_retries = incident.slow_retries.saturating_add(1);
            }
            incident.attempts.push(attempt);
        }
    }

    fn attempt(&mut self, record: &Record, attempt_id: &str, change: impl FnOnce(&mut Attempt)) {
        let server = server_of(attempt_id);
        let incidents = [self.open.get_mut(server), self.closed.get_mut(server)];
        let found = incidents.into_iter().flatten().flat_map(|i| i.attempts.iter_mut().rev()).find(|a| a.attempt_id == attempt_id);
        let Some(attempt) = found else { return };
        change(attempt);
        attempt.recorded_at = record.at;
        attempt.prev_hash.clone_from(&record.prev_hash);
        attempt.hash.clone_from(&record.hash);
        let ended = attempt.receipt.is_some() || attempt.outcome.is_some();
        // What did not apply was never sent and spends no budget. What was cancelled may have been sent.
        let unsent = attempt.receipt.is_none_or(|receipt| receipt == Receipt::Refused);
        if attempt.outcome == Some(Outcome::NotApplicable) && unsent {
            self.acted.retain(|a| a.attempt_id != attempt_id);
        } else if let Some(acted) = self.acted.iter_mut().rev().find(|a| ended && a.attempt_id == attempt_id) {
            acted.ended_at.get_or_insert(record.at);
        }
    }
}

fn approved(record: &Record) -> Option<Approval> {
    let Body::Approved { approval_id, action, evidence_sha256, principal, role, expires_at, .. } = &record.body else { return None };
    Some(Approval {
        approval_id: approval_id.clone(),
        action: *action,
        evidence_sha256: evidence_sha256.clone(),
        principal: principal.clone(),
        role: role.clone(),
        at: record.at,
        expires_at: *expires_at,
    })
}

/// `<mcp_server>.<opened at, ms>`: readable, and unique for a server of one instance.
#[must_use]
pub fn incident_id(mcp_server: &str, at: Timestamp) -> String {
    format!("{mcp_server}.{}", at.as_millisecond())
}

/// `<incident_id>.<n>`, n counting from 1.
#[must_use]
pub fn attempt_id(incident_id: &str, n: usize) -> String {
    format!("{incident_id}.{n}")
}

/// The server that an incident or attempt id speaks of. Server ids hold no dot.
#[must_use]
pub fn server_of(id: &str) -> &str {
    id.split_once('.').map_or(id, |(server, _)| server)
}

/// Whether Hangar itself would accept this as a server id (`^[a-zA-Z][a-zA-Z0-9_-]{0,63}$`). Any other is never acted on.
#[must_use]
pub fn valid_server_id(id: &str) -> bool {
    id.len() <= 64
        && id.starts_with(|c: char| c.is_ascii_alphabetic())
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}
