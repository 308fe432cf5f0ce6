//! The promises, checked at every record and every request. Written from the issues, not from the planner.

use std::collections::{BTreeMap, BTreeSet};

use hangar_medic::policy::{Body, Closed, HoldCause, Mode, Outcome, Policy, Reason, Receipt, Record, Rung, State};
use jiff::{SignedDuration, Timestamp};

use super::hangar::Hangar;
use super::time::{mono, wall};

/// Hangar looks at its servers this often: what died since may not be known to anybody.
const SWEEP: i64 = 60_000;

#[derive(Debug, Clone)]
struct Try {
    server: String,
    incident: String,
    action: Rung,
    opened: i64,
    starts: u32,
    stops: u32,
    half: bool,
    receipt: Option<Receipt>,
    outcome: Option<Outcome>,
    ended: Option<i64>,
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
    rest: BTreeMap<String, Told>,
    /// The log that it read tells of a capability block.
    blocked: BTreeSet<String>,
    started: Vec<i64>,
}

/// See the module's page.
#[derive(Debug)]
pub struct Check {
    /// What the operator asked for, whatever the medic was given.
    pub policy: Policy,
    pub poll: i64,
    pub observe: bool,
    pub steps: u32,
    tries: BTreeMap<String, Try>,
    cases: Vec<Case>,
    pub orders: BTreeMap<String, HoldCause>,
    /// Deliberate stops that the medic has heard of while it had a case or an order of that server.
    noticed: BTreeSet<String>,
    heard: Heard,
    pub violation: Option<String>,
    pub silenced: BTreeSet<String>,
    pub logins_refused: u32,
    /// Servers in all.
    pub known: usize,
}

impl Check {
    pub fn new(policy: Policy, poll: i64) -> Self {
        let observe = policy.mode == Mode::Observe;
        Self {
            policy,
            poll,
            observe,
            steps: 0,
            tries: BTreeMap::new(),
            cases: Vec::new(),
            orders: BTreeMap::new(),
            noticed: BTreeSet::new(),
            heard: Heard::default(),
            violation: None,
            silenced: BTreeSet::new(),
            logins_refused: 0,
            known: 0,
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
        for (id, server) in &hangar.servers {
            let watched = self.case(id).is_some() || self.orders.contains_key(id);
            if server.stopped && watched && server.state == State::Cold {
                self.noticed.insert(id.clone());
            } else if !server.stopped {
                self.noticed.remove(id);
            }
        }
    }

    pub fn metrics_lost(&mut self) {
        self.heard.metrics_failed = true;
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

    pub fn log_heard(&mut self, blocked: BTreeSet<String>) {
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
                if !action.only_looks() {
                    self.may_act(attempt_id, mcp_server, *action, hangar);
                }
            }
        }
    }

    fn may_act(&mut self, attempt: &str, id: &str, action: Rung, hangar: &Hangar) {
        let now = mono();
        if self.observe {
            return self.broken(format!("{attempt}: acts in observe mode"));
        }
        if self.silenced.contains(id) {
            self.broken(format!("{attempt}: acts on a silenced server"));
        }
        let Some((sent, got)) = self.heard.metrics.filter(|_| !self.heard.metrics_failed) else {
            return self.broken(format!("{attempt}: acts while Hangar's metrics are unknown"));
        };
        let Some(told) = self.heard.rest.get(id).cloned() else {
            return self.broken(format!("{attempt}: acts on a server that Hangar was not asked about"));
        };
        let young = 1_000 + (got - sent) + (told.got - told.sent) + 600;
        if now - sent > young || now - told.sent > young {
            let ages = format!("metrics {} ms, REST {} ms, allowed {young}", now - sent, now - told.sent);
            self.broken(format!("{attempt}: acts on what was not confirmed just before: {ages}"));
        }
        if told.serves {
            self.broken(format!("{attempt}: acts on a server that worked when it was asked about"));
        }
        if !hangar.servers.get(id).is_none_or(|s| s.broken) {
            self.broken(format!("{attempt}: acts on a server that nobody broke"));
        }
        // Before 2.21 only the log tells, and it may be behind.
        let told_blocked = told.reason == Some(Reason::CapabilityBlocked) && hangar.version >= (2, 21, 0);
        if told_blocked || self.heard.blocked.contains(id) {
            self.broken(format!("{attempt}: acts on a capability-blocked server without approval"));
        }
        if self.orders.contains_key(id) {
            self.broken(format!("{attempt}: acts against a hold order"));
        }
        if told.no_start_before.is_some_and(|until| wall() + SignedDuration::from_millis(1_100) < until) && self.steps == 0 {
            self.broken(format!("{attempt}: acts inside Hangar's backoff"));
        }
        let bound = match told.state {
            State::Degraded => Some(self.policy.degraded_too_long_after),
            State::Initializing => Some(self.policy.stuck_starting_after),
            State::Cold | State::Ready | State::Dead => None,
        };
        if let Some(bound) = bound {
            let long_ill =
                hangar.servers.get(id).is_some_and(|s| now - s.last_served > millis(self.policy.not_seen_healthy_after) - 61_000);
            let busy = now - told.busy_since;
            if busy + 100 < millis(bound) && !long_ill && self.steps == 0 {
                self.broken(format!("{attempt}: {action} while {} for {busy} ms only", told.state));
            }
        }
        self.within_budgets(attempt, id, now);
        self.within_storm(attempt, id, now);
        if action.broad() {
            let narrower = self.tries.values().any(|t| t.server == id && t.action < action && t.outcome.is_some_and(Outcome::counts));
            if !narrower {
                self.broken(format!("{attempt}: a broad action without a narrower try"));
            }
        }
    }

    fn within_budgets(&mut self, attempt: &str, id: &str, now: i64) {
        let budgets = self.policy.budgets.clone();
        let spread = 1 + self.steps as usize;
        let acted = |window: SignedDuration| {
            // A record is dated when it is handed to a disk that may be slow.
            let from = now - millis(window) + 1_000;
            move |t: &&Try| !t.action.only_looks() && t.outcome != Some(Outcome::NotApplicable) && t.ended.unwrap_or(now) > from
        };
        let of_server = self.tries.values().filter(acted(budgets.starts_window)).filter(|t| t.server == id).count();
        if of_server >= budgets.starts_per_server.get() as usize * spread {
            self.broken(format!("{attempt}: the {}. start of {id} within {:#}", of_server + 1, budgets.starts_window));
        }
        let all = self.tries.values().filter(acted(budgets.actions_window)).count();
        if all >= budgets.actions.get() as usize * spread {
            self.broken(format!("{attempt}: the {}. action within {:#}", all + 1, budgets.actions_window));
        }
    }

    /// Of many that died at once only one is touched until one came back.
    fn within_storm(&mut self, attempt: &str, id: &str, now: i64) {
        let window = millis(self.policy.storm.window);
        let Some(me) = self.case(id).cloned() else { return };
        // The densest window around this case.
        let near = |c: &&Case| (c.opened - me.opened).abs() <= window;
        let mut times: Vec<i64> = self.cases.iter().filter(near).map(|c| c.opened).collect();
        times.sort_unstable();
        let need = (self.policy.storm.servers.get() as usize).max(share(self.policy.storm.share, self.known));
        let dense = times.iter().filter_map(|from| {
            let inside: BTreeSet<&str> =
                self.cases.iter().filter(|c| c.opened >= *from && c.opened <= from + window).map(|c| c.server.as_str()).collect();
            (inside.len() >= need && me.opened >= *from && me.opened <= from + window).then_some((*from, from + window))
        });
        let Some((from, to)) = dense.into_iter().next() else { return };
        let members: Vec<&Case> = self.cases.iter().filter(|c| c.opened >= from && c.opened <= to).collect();
        let recovered = members.iter().filter(|c| c.recovered).count();
        let exhausted: BTreeSet<&str> = members.iter().filter(|c| c.exhausted).map(|c| c.server.as_str()).collect();
        let formed = members.iter().map(|c| c.opened).max().unwrap_or(now);
        let at_work =
            |t: &&Try| !t.action.only_looks() && t.outcome.is_none() && t.opened >= formed && members.iter().any(|c| c.id == t.incident);
        let busy = self.tries.values().filter(at_work).filter(|t| !exhausted.contains(t.server.as_str())).count();
        if busy >= recovered.max(1) && !exhausted.contains(id) && self.steps == 0 {
            self.broken(format!("{attempt}: {} of a storm are acted on at once, {recovered} came back", busy + 1));
        }
    }

    /// A record is durable.
    pub fn wrote(&mut self, record: &Record, hangar: &Hangar) {
        let now = mono();
        match &record.body {
            Body::IncidentOpened { incident_id, mcp_server, reason, .. } => {
                if self.case(mcp_server).is_some() {
                    self.broken(format!("{incident_id}: a second open incident of one server"));
                }
                let (id, server) = (incident_id.clone(), mcp_server.clone());
                self.cases.push(Case { id, opened: now, reason: *reason, exhausted: false, recovered: false, closed: false, server });
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
                    starts: 0,
                    stops: 0,
                    half: false,
                    receipt: None,
                    outcome: None,
                    ended: None,
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
                    HoldCause::TookHangarDown => !hangar.downs.is_empty(),
                    HoldCause::Person => false,
                    HoldCause::UserRequest | HoldCause::Manual | HoldCause::Shutdown | HoldCause::DetectionBlock | HoldCause::Other => {
                        hangar.servers.get(mcp_server).is_none_or(|s| s.ever_stopped)
                    }
                };
                if !earned {
                    self.broken(format!("{mcp_server}: held ({cause}) though nobody stopped it"));
                }
                self.orders.insert(mcp_server.clone(), *cause);
            }
            Body::HoldReleased { mcp_server, .. } => {
                self.orders.remove(mcp_server);
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
            | Body::RequestEnded { .. }
            | Body::AttemptSaved { .. }
            | Body::AttemptSecond { .. }
            | Body::Paused { .. }
            | Body::Unpaused { .. }
            | Body::Approved { .. }
            | Body::ApprovalEnded { .. } => {}
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
            let served = hangar.servers.get(&done.server).is_some_and(|s| s.last_served > done.opened);
            if !served || !self.served_lately(hangar, &done.server) {
                self.broken(format!("{attempt}: recovered, and the server does not work"));
            }
            if done.starts == 0 && !done.action.only_looks() {
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
            Closed::Recovered if !recovered => self.broken(format!("{incident}: recovered, and no attempt did it")),
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

    // ---- what is sent ----

    /// A start is about to leave: no more of them a second than allowed.
    pub fn leaves(&mut self, path: &str) {
        if !path.ends_with("/start") {
            return;
        }
        let (now, gap) = (mono(), 1000 / i64::from(self.policy.budgets.starts_per_second.get()));
        if self.heard.started.last().is_some_and(|last| now - last < gap - 1) {
            self.broken(format!("{path}: two starts within {gap} ms"));
        }
        self.heard.started.push(now);
    }

    /// A request that changes something is at Hangar, and `served` it (not refused by the rate limit or at the door).
    pub fn arrives(&mut self, path: &str, served: bool, hangar: &Hangar) {
        let parts: Vec<&str> = path.split('/').collect();
        let (id, what) = match parts.as_slice() {
            ["api", "mcp_servers", id, what @ ("start" | "stop")] => ((*id).to_owned(), *what),
            ["api", "groups", group, "rebalance"] => return self.rebalances(group),
            _ => return self.broken(format!("POST {path}: nothing of ours")),
        };
        let Some((attempt, t)) = self.open_try(&id).map(|(a, t)| (a.clone(), t.clone())) else {
            return self.broken(format!("POST {path}: no open attempt is on record"));
        };
        if t.receipt.is_some() {
            self.broken(format!("POST {path}: {attempt} has its receipt already"));
        }
        let fits = match (t.action, what) {
            (Rung::SessionReconnect | Rung::LeaseRecovery | Rung::WorkerRestart, "start") | (Rung::WorkerRestart, "stop") => true,
            (_, _) => false,
        };
        if !fits {
            self.broken(format!("POST {path}: {attempt} is a {}", t.action));
        }
        if self.noticed.contains(&id) && what == "start" {
            self.broken(format!("POST {path}: a stop by somebody else was seen before"));
        }
        let blocked = self.case(&id).is_some_and(|c| c.reason == Reason::CapabilityBlocked);
        if blocked && what == "start" {
            self.broken(format!("POST {path}: capability_blocked is on record"));
        }
        if !hangar.servers.get(&id).is_none_or(|s| s.broken) {
            self.broken(format!("POST {path}: nobody broke it"));
        }
        if !served {
            return;
        }
        let sent = if what == "start" { t.starts } else { t.stops };
        if sent > 0 {
            self.broken(format!("POST {path}: {attempt} did that already"));
        }
        self.tried(&attempt, |t| if what == "start" { t.starts += 1 } else { t.stops += 1 });
    }

    fn rebalances(&mut self, group: &str) {
        let ours = self.tries.values().any(|t| t.action == Rung::LeaseRecovery && t.outcome.is_none() && t.receipt.is_none());
        if !ours {
            self.broken(format!("{group}: rebalanced without an attempt"));
        }
    }

    /// A login of ours was refused.
    pub fn refused_login(&mut self, in_a_row: u32) {
        self.logins_refused = self.logins_refused.max(in_a_row);
        if in_a_row >= 8 {
            self.broken(format!("{in_a_row} refused logins in a row: users are about to be locked out"));
        }
    }

    // ---- how it ends ----

    /// Servers that are not brought back and that no person has to decide on.
    pub fn left(&self, hangar: &Hangar, tells_reasons: bool) -> Vec<String> {
        let decided_by_person = |id: &str| {
            let reason = self.case(id).map(|c| c.reason);
            let undeterminable = reason == Some(Reason::Unknown) && !tells_reasons;
            self.orders.contains_key(id) || reason == Some(Reason::CapabilityBlocked) || undeterminable || self.observe
        };
        let mut left = Vec::new();
        for (id, server) in &hangar.servers {
            let open = self.case(id).is_some();
            // Cold without an incident is idle, or was stopped.
            let rests = server.state == State::Cold && !open;
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
