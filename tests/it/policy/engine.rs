//! The engine's loop in virtual time, with every promise of the planner checked at each step.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use hangar_medic::policy::{
    Action, ApprovalAsk, Body, HangarReading, History, Hold, Maintenance, Mode, Part, Phase, Plan, Policy, Read, Reason, Record, Rung,
    Seen, Snapshot, Standing, Step, approvable, approve, plan, seen,
};
use jiff::{SignedDuration, Timestamp};

use super::executor::{Done, Job};
use super::hangar::{Hangar, secs};
use super::watch::Watch;

#[allow(clippy::struct_excessive_bools, reason = "independent facts of a model")]
pub struct World {
    pub now: Timestamp,
    pub zero: Timestamp,
    pub policy: Policy,
    pub hangar: Hangar,
    pub watch: Watch,
    pub history: History,
    pub records: Vec<Record>,
    pub running: BTreeSet<String>,
    jobs: Vec<Job>,
    pub sends: bool,
    pub medic_up: bool,
    pub draining: bool,
    pub log_unwritable: bool,
    next_poll: Timestamp,
    wake_at: Option<Timestamp>,
    pub journal: Vec<String>,
    shown: BTreeMap<String, (Phase, Option<Hold>)>,
    pub standings: BTreeMap<String, Standing>,
    /// Starts of ours that Hangar was sent: when and which.
    pub starts: Vec<(Timestamp, String)>,
    acted: Vec<Timestamp>,
    /// The clock went back: windows in wall time mean nothing from here on.
    pub stepped: bool,
    pub reads: usize,
    /// Open until their end.
    pub maintenance: Vec<Maintenance>,
    climbed: Vec<(Timestamp, Rung)>,
}

pub fn zero() -> Timestamp {
    "2026-11-30T12:00:00Z".parse().unwrap()
}

impl World {
    pub fn new(policy: Policy) -> Self {
        let now = zero();
        Self {
            now,
            zero: now,
            policy,
            hangar: Hangar::new(now),
            watch: Watch::default(),
            history: History::default(),
            records: Vec::new(),
            running: BTreeSet::new(),
            jobs: Vec::new(),
            sends: true,
            medic_up: true,
            draining: false,
            log_unwritable: false,
            next_poll: now,
            wake_at: None,
            journal: Vec::new(),
            shown: BTreeMap::new(),
            standings: BTreeMap::new(),
            starts: Vec::new(),
            acted: Vec::new(),
            stepped: false,
            reads: 0,
            maintenance: Vec::new(),
            climbed: Vec::new(),
        }
    }

    fn say(&mut self, server: &str, what: impl AsRef<str>) {
        let at = self.now.duration_since(self.zero).as_secs_f64();
        self.journal.push(format!("{at:.1} {server} {}", what.as_ref()));
    }

    /// Lets time pass.
    pub fn run_until(&mut self, until: Timestamp) {
        while self.now < until {
            let jobs = self.jobs.iter().map(|j| j.due);
            let next = jobs.chain([self.next_poll, until]).chain(self.wake_at).min().unwrap();
            self.now = next.max(self.now + SignedDuration::from_millis(1)).min(until);
            self.hangar.advance(self.now);
            self.turn();
        }
    }

    /// One wake of the engine.
    pub fn turn(&mut self) {
        if self.next_poll <= self.now {
            self.next_poll = self.now + secs(5);
            if self.medic_up {
                self.watch.read_metrics(&self.hangar, self.now);
                self.notice_stops();
            }
        }
        if !self.medic_up {
            self.wake_at = None;
            return;
        }
        self.finish_jobs();
        self.remember_dead();
        let plan = self.settle_plan();
        self.show(&plan);
        self.wake_at = plan.wake_at.filter(|at| *at > self.now);
        self.standings = plan.standings;
    }

    /// A stop of an ill server that a poll has shown must never be undone by us.
    fn notice_stops(&mut self) {
        if self.watch.hangar.fresh {
            for (id, server) in &mut self.hangar.servers {
                server.stop_noticed |= server.stopped && self.history.open.contains_key(id);
            }
        }
    }

    /// Plans until nothing is to be written down or read any more.
    fn settle_plan(&mut self) -> Plan {
        let mut rounds = 0;
        loop {
            let snapshot = self.snapshot();
            let plan = self.plan(&snapshot);
            let only_acts = plan.steps.iter().all(|s| matches!(s, Step::Act(_)));
            rounds += 1;
            let bound = 20 * (1 + self.history.open.len());
            assert!(rounds <= bound, "no end of records and reads after {rounds} rounds: {:?}\n{}", plan.steps, self.journal.join("\n"));
            let acting: Vec<Action> = plan.steps.iter().filter_map(|s| if let Step::Act(a) = s { Some(a.clone()) } else { None }).collect();
            for step in &plan.steps {
                match step {
                    Step::Record(body) => self.record(body.clone()),
                    Step::Read(Read::Metrics) => self.watch.read_metrics(&self.hangar, self.now),
                    Step::Read(Read::Server(id)) => {
                        self.reads += 1;
                        self.watch.read_server(&self.hangar, id, self.now);
                    }
                    Step::Act(_) => {}
                }
            }
            for action in acting {
                self.act(action, &snapshot);
            }
            if only_acts {
                return if plan.steps.is_empty() { plan } else { self.plan(&self.snapshot()) };
            }
            self.remember_dead();
        }
    }

    fn snapshot(&self) -> Snapshot {
        let snapshot = self.watch.snapshot(&self.policy, &self.history, &self.running, self.now);
        let maintenance = self.maintenance.iter().filter(|m| self.now < m.until).cloned().collect();
        Snapshot { draining: self.draining, log_unwritable: self.log_unwritable, maintenance, ..snapshot }
    }

    fn plan(&self, snapshot: &Snapshot) -> Plan {
        let first = plan(&self.policy, snapshot, &self.history, self.now);
        let again = plan(&self.policy, &snapshot.clone(), &self.history.clone(), self.now);
        assert_eq!(first, again, "the same view gave two plans");
        first
    }

    fn remember_dead(&mut self) {
        let Some(read_at) = self.watch.hangar.read_at.filter(|_| self.watch.hangar.fresh) else { return };
        for id in self.history.open.keys() {
            let ill = self.watch.servers.get(id).is_some_and(|(reading, _)| {
                let seen = seen(&self.policy, &self.watch.hangar, reading, self.now);
                !matches!(seen, Seen::Unknown | Seen::Healthy | Seen::Cold | Seen::Gone)
            });
            if ill {
                self.history.seen_dead.insert(id.clone(), read_at);
            }
        }
    }

    pub fn record(&mut self, body: Body) {
        self.tell(&body);
        let seq = u64::try_from(self.records.len()).unwrap() + 1;
        let record = Record {
            instance: "hangar".to_owned(),
            seq,
            at: self.now,
            actor: "medic".to_owned(),
            body,
            prev_hash: (seq - 1).to_string(),
            hash: seq.to_string(),
        };
        self.history.apply(&record);
        self.records.push(record);
    }

    fn tell(&mut self, body: &Body) {
        match body {
            Body::IncidentOpened { mcp_server, symptom, reason, reopens, floor_rank, .. } => {
                let mut line = format!("opened {symptom} {reason}");
                if reopens.is_some() {
                    write!(line, ", again, from rank {floor_rank}").unwrap();
                }
                self.say(mcp_server, line);
            }
            Body::IncidentUpdated { incident_id, symptom, reason, .. } => self.say_of(incident_id, format!("now {symptom} {reason}")),
            Body::IncidentClosed { incident_id, how, .. } => self.say_of(incident_id, format!("closed {how}")),
            Body::AttemptSettled { attempt_id, outcome, .. } => {
                let all = self.history.open.values().chain(self.history.closed.values()).flat_map(|i| &i.attempts);
                let action = all.into_iter().find(|a| a.attempt_id == *attempt_id).map_or("?", |a| a.action.as_str());
                self.say_of(attempt_id, format!("{action} {outcome}"));
            }
            Body::HoldOrdered { mcp_server, cause, .. } => self.say(mcp_server, format!("hold ordered {cause}")),
            Body::HoldReleased { mcp_server, .. } => self.say(mcp_server, "hold released"),
            Body::HangarRestarted { .. } if self.history.process_start.is_some() => self.say("hangar", "restarted"),
            Body::WouldAct { incident_id, action } => self.say_of(incident_id, format!("would {action}")),
            Body::Exhausted { incident_id } => self.say_of(incident_id, "exhausted".to_owned()),
            Body::Paused { mcp_server, until, .. } => {
                let until = until.duration_since(self.zero).as_secs_f64();
                self.say(mcp_server.as_deref().unwrap_or("all"), format!("paused until {until:.1}"));
            }
            Body::Unpaused { mcp_server, .. } => self.say(mcp_server.as_deref().unwrap_or("all"), "no longer paused"),
            Body::Approved { incident_id, action, .. } => self.say_of(incident_id, format!("{action} approved")),
            Body::ApprovalEnded { incident_id, how, .. } => self.say_of(incident_id, format!("approval {how}")),
            Body::HangarRestarted { .. }
            | Body::AttemptOpened { .. }
            | Body::AttemptHalfDone { .. }
            | Body::AttemptReceipt { .. }
            | Body::AttemptSaved { .. }
            | Body::AttemptSecond { .. }
            | Body::Granted { .. }
            | Body::GrantUsed { .. }
            | Body::GrantExpired { .. }
            | Body::GrantRefused { .. }
            | Body::Request { .. }
            | Body::RequestEnded { .. }
            | Body::Anchor { .. } => {}
        }
    }

    fn say_of(&mut self, id: &str, what: String) {
        let server = id.split_once('.').unwrap().0.to_owned();
        self.say(&server, what);
    }

    /// Shows each hold when it begins.
    fn show(&mut self, plan: &Plan) {
        self.shown.retain(|id, _| plan.standings.contains_key(id));
        for (id, standing) in &plan.standings {
            let key = (standing.phase, standing.hold);
            if self.shown.insert(id.clone(), key) == Some(key) {
                continue;
            }
            let Some(hold) = standing.hold else { continue };
            let until = standing.until.map(|at| format!(" until {:.1}", at.duration_since(self.zero).as_secs_f64()));
            self.say(id, format!("{} {hold}{}", standing.phase, until.unwrap_or_default()));
        }
    }

    fn act(&mut self, action: Action, snapshot: &Snapshot) {
        self.check(&action, snapshot);
        if action.part == Part::First {
            self.record(Body::AttemptOpened {
                attempt_id: action.attempt_id.clone(),
                incident_id: action.incident_id.clone(),
                mcp_server: action.mcp_server.clone(),
                action: action.rung,
                why: action.why.clone(),
                slow_retry: action.slow_retry,
                process_start: action.process_start,
            });
        }
        let half = if action.part == Part::Second { ", second half" } else { "" };
        let slow = if action.slow_retry { ", slow" } else { "" };
        self.say(&action.mcp_server, format!("> {}{half}{slow}", action.rung));
        self.running.insert(action.attempt_id.clone());
        let job = if self.sends { Job::begin(action, &mut self.hangar, self.now) } else { Job::stillborn(action, self.now) };
        self.jobs.push(job);
    }

    /// What must never happen, whatever the world does.
    fn check(&mut self, action: &Action, snapshot: &Snapshot) {
        let id = &action.mcp_server;
        let told = || format!("{action:?}\n{}", self.journal.join("\n"));
        assert!(self.jobs.iter().all(|j| j.action.mcp_server != *id), "two actions at once on one target: {}", told());
        assert!(snapshot.hangar.fresh, "an action on stale data: {}", told());
        assert!(
            !snapshot.draining && !snapshot.log_unwritable && self.policy.mode_of(id) == Mode::Act,
            "an action while nothing may act: {}",
            told()
        );
        let undoes = action.part == Part::Second && action.rung == Rung::WorkerRestart;
        let paused = |key: Option<&String>| self.history.pauses.get(&key.cloned()).is_some_and(|p| self.now < p.until);
        assert!(undoes || !(paused(None) || paused(Some(id))), "an action while paused: {}", told());
        let maintained = snapshot.maintenance.iter().any(|m| self.now < m.until && m.servers.matches(id));
        assert!(undoes || !maintained, "an action in a maintenance window: {}", told());
        assert!(undoes || self.policy.rule(id).is_none_or(|r| r.enabled), "an action at a server that is left alone: {}", told());
        let allowed = |only: &Vec<Rung>| only.contains(&action.rung);
        assert!(self.policy.rule(id).and_then(|r| r.rungs.as_ref()).is_none_or(allowed) || undoes, "a rung that is off: {}", told());
        if action.rung.only_looks() {
            return;
        }
        assert!(!snapshot.hangar.auth_refused && !snapshot.hangar.read_forbidden, "an action without a key: {}", told());
        let reading = &snapshot.servers[id];
        let seen = seen(&self.policy, &snapshot.hangar, reading, self.now);
        assert!(
            !matches!(seen, Seen::Healthy | Seen::Unknown | Seen::Gone) || action.part == Part::Second,
            "acted on {seen:?}: {}",
            told()
        );
        let backoff = reading.rest.as_ref().and_then(|r| r.backoff_until).is_some_and(|until| self.now < until);
        if Job::starts(action) {
            let incident = &self.history.open[id];
            let truly = &self.hangar.servers[id];
            let told_blocked = truly.blocked && truly.blocked_at.is_some_and(|at| self.now.duration_since(at) > secs(10));
            let blocked = told_blocked && !self.watch.faults.no_log;
            let shown = approvable(&self.policy, incident, Some(reading));
            let approved = incident.approval.as_ref().is_some_and(|a| {
                let same = shown.is_some_and(|s| (s.action, &s.evidence_sha256) == (a.action, &a.evidence_sha256));
                same && a.action == action.rung && a.at <= self.now && self.now < a.expires_at
            });
            assert!(approved || (incident.reason != Reason::CapabilityBlocked && !blocked), "started a blocked server: {}", told());
            // Killed before it was known whether our stop was sent: a stop of that moment may be anybody's.
            let half_known = incident.open_attempt().is_none_or(|a| a.half_done_at.is_some());
            assert!(!(truly.stopped && truly.stop_noticed && half_known), "started a stopped server: {}", told());
            assert!(!self.history.orders.contains_key(id), "started a server with a hold order: {}", told());
            assert!(!backoff || action.rung == Rung::WorkerRestart, "a start inside the backoff: {}", told());
            self.starts.push((self.now, id.clone()));
            let window = self.policy.budgets.starts_window;
            let lately = self.starts.iter().filter(|(at, s)| s == id && self.now.duration_since(*at) < window).count();
            let most = usize::try_from(self.policy.starts_of(id).get()).unwrap();
            assert!(self.stepped || lately <= most, "{lately} starts in one window: {}", self.journal.join("\n"));
        }
        if action.part == Part::First {
            self.climbed.push((self.now, action.rung));
            for budget in self.policy.budgets.rungs.iter().filter(|b| b.action == action.rung) {
                let within = |(at, rung): &&(Timestamp, Rung)| *rung == action.rung && self.now.duration_since(*at) < budget.window;
                let lately = self.climbed.iter().filter(within).count();
                let most = usize::try_from(budget.actions.get()).unwrap();
                assert!(self.stepped || lately <= most, "{lately} times {} in its window: {}", action.rung, self.journal.join("\n"));
            }
            self.acted.push(self.now);
            let window = self.policy.budgets.actions_window;
            let lately = self.acted.iter().filter(|at| self.now.duration_since(**at) < window).count();
            assert!(
                self.stepped || lately <= usize::try_from(self.policy.budgets.actions.get()).unwrap(),
                "{lately} actions in one window"
            );
        }
    }

    fn finish_jobs(&mut self) {
        let due: Vec<usize> = (0..self.jobs.len()).rev().filter(|i| self.jobs[*i].due <= self.now).collect();
        for index in due {
            let Some(done) = self.jobs[index].end(&self.hangar, &mut self.watch, self.now) else { continue };
            let job = self.jobs.remove(index);
            self.finished(&job.action, done);
        }
    }

    fn finished(&mut self, action: &Action, done: Done) {
        self.running.remove(&action.attempt_id);
        let attempt_id = action.attempt_id.clone();
        self.record(if done.half && action.part == Part::First {
            Body::AttemptHalfDone { attempt_id, evidence: [].into() }
        } else {
            Body::AttemptReceipt {
                attempt_id,
                receipt: done.receipt,
                outcome: done.outcome,
                detail: String::new(),
                evidence: BTreeMap::new(),
            }
        });
    }

    /// SIGKILL: what is in the log is all that is left; what was sent goes on.
    pub fn kill_medic(&mut self) {
        self.medic_up = false;
        self.jobs.clear();
        self.running.clear();
        self.watch.servers.clear();
        self.watch.hangar = HangarReading::default();
        self.shown.clear();
        let checkpoints = std::mem::take(&mut self.history).seen_dead;
        for record in &self.records {
            self.history.apply(record);
        }
        self.history.prune(&self.policy, self.now);
        self.history.seen_dead = checkpoints;
        self.draining = false;
    }

    pub fn start_medic(&mut self) {
        self.medic_up = true;
        self.next_poll = self.now;
        self.turn();
    }

    /// A person approves what the incident shows now, or what it showed before (`stale`).
    pub fn approve(&mut self, id: &str, role: &str, stale: bool) {
        let Some(incident) = self.history.open.get(id) else { return };
        let snapshot = self.snapshot();
        let Some(shown) = approvable(&self.policy, incident, snapshot.servers.get(id)) else { return self.say(id, "nothing to approve") };
        let evidence_sha256 = if stale { "0".repeat(64) } else { shown.evidence_sha256 };
        let ask = ApprovalAsk {
            approval_id: format!("approval-{}", self.records.len()),
            incident_id: incident.incident_id.clone(),
            action: shown.action,
            evidence_sha256,
            principal: "otto".to_owned(),
            role: role.to_owned(),
            reason: "compared".to_owned(),
        };
        match approve(&self.policy, &snapshot, &self.history, &ask, self.now) {
            Ok(record) => self.record(record),
            Err((code, _)) => self.say(id, format!("approval refused: {code}")),
        }
    }

    /// Moves the wall clock; what is scheduled stays as far away as it was.
    pub fn step_clock(&mut self, by: SignedDuration) {
        self.stepped = true;
        self.now += by;
        self.zero += by;
        self.next_poll = self.now;
        self.watch.clock_stepped();
        self.wake_at = self.wake_at.map(|at| at + by);
        for job in &mut self.jobs {
            job.due += by;
        }
        self.hangar.step_clock(by);
    }
}
