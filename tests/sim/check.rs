//! The promises, checked at every record and every request. Written from the issues, not from the planner.

mod act;
mod fleet;
pub mod people;
mod sent;

use std::collections::{BTreeMap, BTreeSet};

use hangar_medic::policy::{Body, Closed, HoldCause, Outcome, Policy, Reason, Receipt, Record, Rung, Saved, State};
use jiff::{SignedDuration, Timestamp};

use super::hangar::Hangar;
use super::time::mono;
use people::{People, Span};

/// Hangar looks at its servers this often: what died since may not be known to anybody.
const SWEEP: i64 = 60_000;

#[derive(Debug, Clone)]
struct Try {
    server: String,
    incident: String,
    action: Rung,
    opened: i64,
    /// What was served of its requests.
    sent: BTreeMap<(String, &'static str), u32>,
    half: bool,
    saved: Option<Saved>,
    /// How often its second half was begun, and when last.
    seconds: u32,
    second_at: i64,
    receipt: Option<Receipt>,
    outcome: Option<Outcome>,
    ended: Option<i64>,
    /// A person approved it.
    approved: bool,
}

#[derive(Debug, Clone)]
struct Case {
    id: String,
    opened: i64,
    reason: Reason,
    exhausted: bool,
    recovered: bool,
    closed: bool,
    server: String,
    reopens: Option<String>,
}

/// What a REST answer told, and what was true when it was given.
#[derive(Debug, Clone)]
struct Told {
    sent: i64,
    got: i64,
    state: State,
    reason: Option<Reason>,
    no_start_before: Option<Timestamp>,
    serves: bool,
    busy_since: i64,
}

/// All that one process of the medic has heard.
#[derive(Debug, Clone, Default)]
struct Heard {
    metrics: Option<(i64, i64)>,
    metrics_failed: bool,
    /// Servers whose gauge was ready.
    ready: BTreeSet<String>,
    rest: BTreeMap<String, Told>,
    /// The log that it read tells of a capability block, by these tools.
    blocked: BTreeMap<String, BTreeSet<String>>,
    blocked_at: i64,
    started: Vec<i64>,
}

/// See the module's page.
#[derive(Debug)]
pub struct Check {
    /// What the operator asked for, whatever the medic was given.
    pub policy: Policy,
    pub poll: i64,
    pub people: People,
    pub steps: u32,
    tries: BTreeMap<String, Try>,
    cases: Vec<Case>,
    pub orders: BTreeMap<String, HoldCause>,
    orders_at: BTreeMap<String, i64>,
    /// Deliberate stops that the medic has heard of while it had a case or an order of that server.
    noticed: BTreeSet<String>,
    heard: Heard,
    pub violation: Option<String>,
    pub silenced: BTreeSet<String>,
    pub logins_refused: u32,
    /// Servers in all.
    pub known: usize,
    /// A configuration that was asked for: as the operator has it, and as the medic is given it.
    wanted: Option<(Policy, Vec<Span>, Policy)>,
}

impl Check {
    pub fn new(policy: Policy, poll: i64) -> Self {
        Self {
            policy,
            poll,
            people: People::default(),
            steps: 0,
            tries: BTreeMap::new(),
            cases: Vec::new(),
            orders: BTreeMap::new(),
            orders_at: BTreeMap::new(),
            noticed: BTreeSet::new(),
            heard: Heard::default(),
            violation: None,
            silenced: BTreeSet::new(),
            logins_refused: 0,
            known: 0,
            wanted: None,
        }
    }

    /// What the operator asked for, from this moment on.
    pub fn configured(&mut self, policy: Policy, windows: Vec<Span>) {
        self.policy = policy;
        self.people.windows = windows;
        self.wanted = None;
    }

    /// The operator asks for it, as the medic will be `given` it; it holds once the medic takes it over. Answers with what is in use.
    pub fn wants_config(&mut self, policy: Policy, windows: Vec<Span>, given: Policy) -> Policy {
        self.wanted = Some((policy, windows, given));
        self.policy.clone()
    }

    /// The medic reads its past by this policy: from now on it goes by it.
    pub fn takes_over(&mut self, given: &Policy, keeps: bool) {
        if let Some((policy, windows, _)) = self.wanted.take_if(|(.., wanted)| keeps || wanted == given) {
            self.configured(policy, windows);
        }
    }

    fn broken(&mut self, what: impl Into<String>) {
        if self.violation.is_none() {
            self.violation = Some(what.into());
        }
    }

    /// A process of the medic began: it has heard nothing.
    pub fn medic_began(&mut self) {
        self.heard = Heard::default();
        let orders = &self.orders;
        self.noticed.retain(|id| orders.contains_key(id));
    }

    fn case(&self, server: &str) -> Option<&Case> {
        self.cases.iter().rev().find(|c| c.server == server && !c.closed)
    }

    fn open_try(&self, server: &str) -> Option<(&String, &Try)> {
        self.tries.iter().find(|(_, t)| t.server == server && t.outcome.is_none())
    }

    // ---- what is heard ----

    pub fn metrics_heard(&mut self, sent: i64, hangar: &Hangar) {
        self.heard.metrics = Some((sent, mono()));
        self.heard.metrics_failed = false;
        self.heard.ready = hangar.servers.iter().filter(|(_, s)| s.gauge == Some(State::Ready)).map(|(id, _)| id.clone()).collect();
        for (id, server) in &hangar.servers {
            let brought_back = self.tries.values().any(|t| t.outcome.is_none() && t.saved.as_ref().is_some_and(|s| s.ready.contains(id)));
            let watched = self.case(id).is_some() || self.orders.contains_key(id) || brought_back;
            if server.stopped && watched && server.gauge == Some(State::Cold) {
                self.noticed.insert(id.clone());
            } else if !server.stopped {
                self.noticed.remove(id);
            }
        }
    }

    pub fn metrics_lost(&mut self) {
        // A look of rung 0 that fails right after a good read takes nothing away from that.
        self.heard.metrics_failed |= self.heard.metrics.is_none_or(|(_, got)| mono() > got + 100);
    }

    /// What was true of a server when Hangar answered for it.
    pub fn truth(hangar: &Hangar, id: &str, sent: i64) -> Option<TruthThen> {
        let s = hangar.servers.get(id)?;
        let waits = match s.dead {
            Some((Reason::GivenUp | Reason::StartFailed, _)) => s.failed_at.map(|at| at + SignedDuration::from_secs(backoff(s.failures))),
            _ => None,
        };
        Some(TruthThen(Told {
            sent,
            got: 0,
            state: s.state,
            reason: s.dead.map(|(reason, _)| reason).filter(|_| s.state == State::Dead),
            no_start_before: waits,
            serves: s.serves,
            busy_since: s.busy_since,
        }))
    }

    pub fn rest_heard(&mut self, id: &str, truth: &TruthThen) {
        self.heard.rest.insert(id.to_owned(), Told { got: mono(), ..truth.0 });
    }

    pub fn log_heard(&mut self, blocked: BTreeMap<String, BTreeSet<String>>) {
        if blocked != self.heard.blocked {
            self.heard.blocked_at = mono();
        }
        self.heard.blocked = blocked;
    }

    // ---- what is written down ----

    /// Before a record is durable: what the medic knows at this moment must allow it.
    pub fn wants(&mut self, bodies: &[Body], hangar: &Hangar) {
        // A rung that does not apply is written down as opened and settled at once: nothing is sent.
        let passed = |id: &String| {
            bodies.iter().any(|b| matches!(b, Body::AttemptSettled { attempt_id, outcome: Outcome::NotApplicable, .. } if attempt_id == id))
        };
        for body in bodies {
            if let Body::AttemptOpened { attempt_id, mcp_server, action, .. } = body
                && !passed(attempt_id)
            {
                let under_way = self.tries.values().filter(|t| t.outcome.is_none()).count();
                if under_way >= self.policy.budgets.in_flight.get() as usize {
                    self.broken(format!("{attempt_id}: the {}. attempt at once", under_way + 1));
                }
                self.may_begin(attempt_id, mcp_server);
                self.alone(attempt_id, *action);
                if !action.only_looks() {
                    self.may_act(attempt_id, mcp_server, *action, hangar);
                }
            }
        }
    }

    /// A record is durable.
    pub fn wrote(&mut self, record: &Record, hangar: &Hangar) {
        let now = mono();
        match &record.body {
            Body::IncidentOpened { incident_id, mcp_server, reason, reopens, .. } => {
                if self.case(mcp_server).is_some() {
                    self.broken(format!("{incident_id}: a second open incident of one server"));
                }
                let (id, server) = (incident_id.clone(), mcp_server.clone());
                self.cases.push(Case {
                    id,
                    opened: now,
                    reason: *reason,
                    exhausted: false,
                    recovered: false,
                    closed: false,
                    server,
                    reopens: reopens.clone(),
                });
                if let Some(s) = hangar.servers.get(mcp_server)
                    && !s.broken
                {
                    self.broken(format!("{incident_id}: an incident of a server that nobody broke"));
                }
            }
            Body::IncidentUpdated { incident_id, reason, .. } => self.of(incident_id, |c| c.reason = *reason),
            Body::Exhausted { incident_id } => self.of(incident_id, |c| c.exhausted = true),
            Body::IncidentClosed { incident_id, how, .. } => self.closed(incident_id, *how, hangar),
            Body::AttemptOpened { attempt_id, incident_id, mcp_server, action, .. } => {
                if let Some((other, _)) = self.open_try(mcp_server) {
                    let other = other.clone();
                    self.broken(format!("{attempt_id}: while {other} is under way at the same server"));
                }
                if self.case(mcp_server).is_none_or(|c| c.id != *incident_id) {
                    self.broken(format!("{attempt_id}: of no open incident"));
                }
                let new = Try {
                    server: mcp_server.clone(),
                    incident: incident_id.clone(),
                    action: *action,
                    opened: now,
                    sent: BTreeMap::new(),
                    half: false,
                    saved: None,
                    seconds: 0,
                    second_at: 0,
                    receipt: None,
                    outcome: None,
                    ended: None,
                    approved: !action.only_looks() && self.people.uses_approval(incident_id, *action),
                };
                if self.tries.insert(attempt_id.clone(), new).is_some() {
                    self.broken(format!("{attempt_id}: opened twice"));
                }
            }
            Body::AttemptHalfDone { attempt_id, .. } => self.tried(attempt_id, |t| t.half = true),
            Body::AttemptReceipt { attempt_id, receipt, .. } => self.tried(attempt_id, |t| {
                t.receipt = Some(*receipt);
                t.ended = t.ended.or(Some(now));
            }),
            Body::AttemptSettled { attempt_id, outcome, .. } => self.settled(attempt_id, *outcome, hangar),
            Body::HoldOrdered { mcp_server, cause, .. } => {
                let earned = match cause {
                    // Nobody tells a medic that another one had its Hangar restarted.
                    HoldCause::TookHangarDown => {
                        let unasked = |at: &i64| !self.in_charge_at(*at);
                        !hangar.downs.is_empty() || hangar.restarted_by_others || hangar.ordered_downs.iter().any(unasked)
                    }
                    HoldCause::Person => self.people.asked_hold.contains(mcp_server),
                    HoldCause::UserRequest | HoldCause::Manual | HoldCause::Shutdown | HoldCause::DetectionBlock | HoldCause::Other => {
                        hangar.servers.get(mcp_server).is_none_or(|s| s.ever_stopped)
                    }
                };
                if !earned {
                    self.broken(format!("{mcp_server}: held ({cause}) though nobody stopped it"));
                }
                self.orders.insert(mcp_server.clone(), *cause);
                self.orders_at.insert(mcp_server.clone(), now);
            }
            Body::HoldReleased { mcp_server, .. } => {
                let cause = self.orders.remove(mcp_server);
                let by_person_only = matches!(cause, Some(HoldCause::Person | HoldCause::TookHangarDown));
                if by_person_only && !self.people.asked_resume.contains(mcp_server) {
                    self.broken(format!("{mcp_server}: what only a person ends was ended without one"));
                }
                self.noticed.remove(mcp_server);
            }
            Body::HangarRestarted { .. }
            | Body::WouldAct { .. }
            | Body::Anchor { .. }
            | Body::Granted { .. }
            | Body::GrantUsed { .. }
            | Body::GrantExpired { .. }
            | Body::GrantRefused { .. }
            | Body::Request { .. }
            | Body::RequestEnded { .. } => {}
            Body::AttemptSaved { attempt_id, saved } => self.saves(attempt_id, saved),
            Body::AttemptSecond { attempt_id, .. } => self.begins_second(attempt_id),
            Body::Paused { .. } | Body::Unpaused { .. } | Body::Approved { .. } | Body::ApprovalEnded { .. } => self.asked(&record.body),
        }
    }

    fn of(&mut self, incident: &str, change: impl FnOnce(&mut Case)) {
        match self.cases.iter_mut().rev().find(|c| c.id == incident) {
            Some(case) => change(case),
            None => self.broken(format!("{incident}: not on record")),
        }
    }

    fn tried(&mut self, attempt: &str, change: impl FnOnce(&mut Try)) {
        match self.tries.get_mut(attempt) {
            Some(found) => change(found),
            None => self.broken(format!("{attempt}: not on record")),
        }
    }

    fn served_lately(&self, hangar: &Hangar, id: &str) -> bool {
        let within = SWEEP + 4 * self.poll + millis(self.policy.settle) + 30_000;
        hangar.servers.get(id).is_some_and(|s| s.serves || mono() - s.last_served <= within)
    }

    fn settled(&mut self, attempt: &str, outcome: Outcome, hangar: &Hangar) {
        let Some(done) = self.tries.get(attempt).cloned() else { return self.broken(format!("{attempt}: settled, and never opened")) };
        if outcome == Outcome::Recovered {
            if done.action.restores_fleet() {
                self.brought_back(attempt, &done, hangar);
            }
            let served = done.action.restores_fleet() || hangar.servers.get(&done.server).is_some_and(|s| s.last_served > done.opened);
            let lately = done.action.restores_fleet() || self.served_lately(hangar, &done.server);
            if !served || !lately {
                self.broken(format!("{attempt}: recovered, and the server does not work"));
            }
            // Where we stopped it, somebody else's start may have been faster.
            let started = done.sent.keys().any(|(id, what)| *id == done.server && (*what == "start" || done.half));
            let may_have_acted = done.receipt == Some(Receipt::Unknown);
            if !started && !may_have_acted && !done.action.only_looks() && !done.action.restores_fleet() {
                self.broken(format!("{attempt}: recovered by a start that was never sent"));
            }
        }
        let now = mono();
        self.tried(attempt, |t| {
            t.outcome = Some(outcome);
            t.ended = t.ended.or(Some(now));
        });
        // A recovery that did not last proves nothing.
        if outcome == Outcome::Insufficient {
            self.of(&done.incident, |c| c.recovered = false);
        }
    }

    fn closed(&mut self, incident: &str, how: Closed, hangar: &Hangar) {
        let Some(case) = self.cases.iter().rev().find(|c| c.id == incident).cloned() else { return };
        if let Some((attempt, _)) = self.tries.iter().find(|(_, t)| t.incident == incident && t.outcome.is_none()) {
            let attempt = attempt.clone();
            self.broken(format!("{incident}: closed while {attempt} is not settled"));
        }
        let recovered = self.tries.values().any(|t| t.incident == incident && t.outcome == Some(Outcome::Recovered));
        match how {
            Closed::Recovered if !recovered && !self.brought_back_by_fleet(&case.server, case.opened) => {
                self.broken(format!("{incident}: recovered, and no attempt did it"));
            }
            Closed::HealedByItself if !self.served_lately(hangar, &case.server) => {
                self.broken(format!("{incident}: healed by itself, and the server does not work"));
            }
            Closed::Recovered | Closed::HealedByItself | Closed::Cancelled => {}
        }
        self.of(incident, |c| {
            c.closed = true;
            c.recovered = how == Closed::Recovered;
        });
    }

    // ---- how it ends ----

    /// Servers that are not brought back and that no person has to decide on.
    pub fn left(&self, hangar: &Hangar, tells_reasons: bool) -> Vec<String> {
        let tended = self.people.tend;
        let decided_by_person = |id: &str| {
            let reason = self.case(id).map(|c| c.reason);
            // What was only ill when Hangar went down reads cold now, and may be blocked for all that anybody knows.
            let lost = self.case(id).is_some_and(|c| hangar.downs.iter().chain(&hangar.ordered_downs).any(|at| *at >= c.opened));
            let undeterminable = reason == Some(Reason::Unknown) && (!tells_reasons || lost);
            let held = self.orders.get(id).is_some_and(|cause| !tended || !matches!(cause, HoldCause::Person | HoldCause::TookHangarDown));
            // What is stuck besides needs more than the start that can be approved.
            let stuck = hangar.servers.get(id).is_some_and(|s| s.stuck || s.state == State::Ready);
            let blocked = reason == Some(Reason::CapabilityBlocked) && (!tended || stuck);
            held || blocked || undeterminable || self.only_watched(id)
        };
        let mut left = Vec::new();
        for (id, server) in &hangar.servers {
            let open = self.case(id).is_some();
            // Cold without an incident is idle, or was stopped.
            let owed = server.owed && !self.told_of_loss() && hangar.ordered_downs.last().is_some_and(|at| self.brings_back_at(id, *at));
            let rests = server.state == State::Cold && !open && !owed && server.taken_out.is_none();
            if !decided_by_person(id) && !rests && (open || !server.serves) {
                left.push(id.clone());
            }
        }
        left
    }

    /// Attempts without an end.
    pub fn unsettled(&self) -> Vec<&String> {
        self.tries.iter().filter(|(_, t)| t.outcome.is_none()).map(|(id, _)| id).collect()
    }

    pub fn counts(&self) -> (usize, usize) {
        let acts = self.tries.values().filter(|t| !t.action.only_looks() && t.outcome != Some(Outcome::NotApplicable));
        (self.cases.len(), acts.count())
    }
}

/// Opaque to the wire.
#[derive(Debug, Clone)]
pub struct TruthThen(Told);

fn backoff(failures: u32) -> i64 {
    2_i64.saturating_pow(failures.min(6)).min(60)
}

fn millis(of: SignedDuration) -> i64 {
    i64::try_from(of.as_millis()).unwrap_or(i64::MAX)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a share of few servers")]
fn share(share: f64, known: usize) -> usize {
    (share.clamp(0.0, 1.0) * known as f64).ceil() as usize
}
