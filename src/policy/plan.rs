//! The planner: from what is seen and what was done to what is written down, read and done next.

mod open;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::approval::{self, Approvable, Approval};
use super::brake::{Braked, Budgets, Storm};
use super::decide::{Decision, decide, next_slow_retry, only_to_look, slow_retry_rung};
use super::gate::{Gate, OURSELVES};
use super::history::{History, Incident, attempt_id};
use super::hold::Hold;
use super::keep;
use super::ladder::Rung;
use super::limits::{Mode, Policy};
use super::record::Body;
use super::request::{REQUEST_WAITS_MAX, Request, waiting};
use super::seen::{
    CONFIRM_WITHIN, COUNTER_LAG, FORBIDDEN_RETRY, REST_RETRY, Seen, cold_unexplained, looked_since, rest_since, seen, seen_closely,
};
use super::snapshot::{ServerReading, Snapshot, State};
use super::when::after;
use super::words::words;

words! {
    /// Where an incident stands.
    pub enum Phase as "phase" {
        /// Nothing is to be done at this moment.
        Watching = "watching",
        Held = "held",
        Acting = "acting",
        /// The action is over; its proof is awaited.
        Settling = "settling",
        /// Every rung is spent: a person is needed.
        Exhausted = "exhausted",
        /// Over: never of an open incident.
        Closed = "closed",
    }
}

impl Phase {
    /// The phases of an open incident.
    pub const OPEN: &'static [Self] = &[Self::Watching, Self::Held, Self::Acting, Self::Settling, Self::Exhausted];
}

/// Which half of a rung. `worker_restart` stops, then starts; `lease_recovery` starts a member, then rebalances its group, or
/// waits out a lease, then starts; what takes something away puts it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    First,
    Second,
}

/// One thing to be done by an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    pub attempt_id: String,
    pub incident_id: String,
    pub mcp_server: String,
    pub rung: Rung,
    pub part: Part,
    pub group: Option<String>,
    /// Why this rung now.
    pub why: String,
    pub slow_retry: bool,
    /// The Hangar process that it is made in.
    pub process_start: Option<Timestamp>,
    /// The request that asked for it, if it is not the daemon's own idea.
    pub asked_by: Option<AskedBy>,
}

/// Whose idea an action was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedBy {
    pub request_id: String,
    pub principal: String,
}

/// Something to be read from Hangar before more can be said.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Read {
    Metrics,
    Server(String),
}

/// One step of a plan, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Write this down, durably, then plan again.
    Record(Body),
    Read(Read),
    /// Open the attempt durably (first half), then act.
    Act(Action),
}

/// Where one incident stands, for people and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub phase: Phase,
    pub hold: Option<Hold>,
    pub until: Option<Timestamp>,
    pub why: String,
    /// The next slow retry of an exhausted incident.
    pub next_retry_at: Option<Timestamp>,
    /// What a person may approve, if anything waits for that.
    pub approval: Option<Approvable>,
}

impl Standing {
    /// A standing that nothing holds.
    pub fn new(phase: Phase, why: impl Into<String>) -> Self {
        Self { phase, hold: None, until: None, why: why.into(), next_retry_at: None, approval: None }
    }

    fn held(braked: Braked) -> Self {
        Self { hold: Some(braked.hold), until: braked.until, ..Self::new(Phase::Held, braked.why) }
    }
}

/// What to do now, where everything stands, and when to plan again at the latest.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// By server, for each open incident. Empty while there is something to write down first.
    pub standings: BTreeMap<String, Standing>,
    pub storm: bool,
    /// In a storm whose canary could not be recovered.
    pub canary_failed: bool,
    pub wake_at: Option<Timestamp>,
}

/// Plans. Deterministic and total. Records come alone: they are written down, then `plan` is asked again.
#[must_use]
pub fn plan(policy: &Policy, snapshot: &Snapshot, history: &History, now: Timestamp) -> Plan {
    let records = bookkeeping(policy, snapshot, history, now);
    if !records.is_empty() {
        return Plan { steps: records.into_iter().map(Step::Record).collect(), ..Plan::default() };
    }
    Climber::new(policy, snapshot, history, now).climb()
}

/// What has to be written down before anything is decided.
fn bookkeeping(policy: &Policy, snapshot: &Snapshot, history: &History, now: Timestamp) -> Vec<Body> {
    let mut records = super::break_glass::expired(history, now);
    records.extend(super::pause::ended(history, now));
    records.extend(approval::ended(policy, snapshot, history, now));
    records.extend(super::request::ended(policy, snapshot, history, now));
    if !snapshot.hangar.fresh {
        records.extend(keep::orphans(snapshot, history));
        return records;
    }
    records.extend(keep::restart(policy, snapshot, history));
    for (id, server) in &snapshot.servers {
        records.extend(if let Some(incident) = history.open.get(id) {
            let seen = seen_closely(policy, &snapshot.hangar, incident, server, now);
            keep::incident(policy, snapshot, history, incident, server, &seen, now)
        } else {
            let seen = seen(policy, &snapshot.hangar, server, now);
            keep::server(policy, snapshot, history, id, server, &seen, now)
        });
    }
    records
}

/// Why a rung is to be climbed.
#[derive(Clone, Copy)]
enum Because<'a> {
    /// The ladder says so.
    Next,
    /// No look so far told what a person needs to judge.
    NotTold,
    SlowRetry,
    Asked(&'a Request),
    Approved(&'a Approval),
}

impl<'a> Because<'a> {
    /// Who the gate is asked about.
    fn who(self, now: Timestamp) -> super::gate::Who<'a> {
        match self {
            Self::Next | Self::NotTold | Self::SlowRetry => OURSELVES,
            Self::Asked(request) => request.who(now),
            Self::Approved(approval) => super::gate::Who { role: &approval.role, break_glass: false },
        }
    }

    fn asked_by(self) -> Option<AskedBy> {
        match self {
            Self::Next | Self::NotTold | Self::SlowRetry | Self::Approved(_) => None,
            Self::Asked(r) => Some(AskedBy { request_id: r.request_id.clone(), principal: r.principal.clone() }),
        }
    }
}

struct Climber<'a> {
    policy: &'a Policy,
    snapshot: &'a Snapshot,
    history: &'a History,
    now: Timestamp,
    budgets: Budgets<'a>,
    storm: Storm,
    asked: BTreeSet<Read>,
    plan: Plan,
}

impl<'a> Climber<'a> {
    fn new(policy: &'a Policy, snapshot: &'a Snapshot, history: &'a History, now: Timestamp) -> Self {
        let storm = Gate { policy, snapshot, history, now }.storm();
        let budgets = Budgets::count(policy, snapshot, history, now);
        Self { policy, snapshot, history, now, budgets, storm, asked: BTreeSet::new(), plan: Plan::default() }
    }

    fn climb(mut self) -> Plan {
        self.plan.storm = self.storm.active();
        self.plan.canary_failed = self.storm.canary_failed();
        self.read_what_is_outdated();
        let history = self.history;
        let mut incidents: Vec<&Incident> = history.open.values().collect();
        incidents.sort_by_key(|i| (i.opened_at, i.mcp_server.as_str()));
        for incident in incidents {
            let mut standing = self.stand(incident);
            standing.approval = approval::approvable(self.policy, incident, self.snapshot.servers.get(&incident.mcp_server));
            self.wake(incident.approval.as_ref().map(|a| a.expires_at));
            self.wake(standing.until);
            self.wake(standing.next_retry_at);
            self.plan.standings.insert(incident.mcp_server.clone(), standing);
        }
        history.grants.values().for_each(|g| self.wake(Some(g.expires_at)));
        history.pauses.values().for_each(|p| self.wake(Some(p.until)));
        history.requests.values().for_each(|r| self.wake(Some(after(r.at, REQUEST_WAITS_MAX))));
        self.plan
    }

    fn wake(&mut self, at: Option<Timestamp>) {
        self.plan.wake_at = [self.plan.wake_at, at.filter(|at| *at > self.now)].into_iter().flatten().min();
    }

    fn read(&mut self, read: Read) {
        if self.asked.insert(read.clone()) {
            self.plan.steps.push(Step::Read(read));
        }
    }

    fn read_what_is_outdated(&mut self) {
        if !self.snapshot.hangar.fresh || self.snapshot.draining || self.snapshot.hangar.auth_refused {
            return;
        }
        let snapshot = self.snapshot;
        if snapshot.hangar.read_forbidden {
            return self.ask_whether_permitted();
        }
        for (id, server) in &snapshot.servers {
            let incident = self.history.open.get(id);
            let acted_at = incident.and_then(Incident::last_acted_at);
            // A hold order ends by a REST answer, not by the gauge.
            let up_again = server.gauge == Some(State::Ready) && self.history.orders.contains_key(id);
            let watched = incident.is_some() || up_again || super::seen::suspect(self.policy, server, self.now);
            let unseen = !looked_since(&snapshot.hangar, server, acted_at, self.now);
            if incident.is_some() && cold_unexplained(&snapshot.hangar, server, self.now) {
                let counted = server.rest.as_ref().map_or(self.now, |r| after(r.at, COUNTER_LAG));
                if self.now >= counted { self.read(Read::Metrics) } else { self.wake(Some(counted)) }
            }
            if incident.is_none() && server.gauge == Some(State::Cold) {
                self.count_stops(id, server);
            }
            // While an executor is at work on it nothing is decided; it is read when its receipt is in.
            let at_work = incident.and_then(Incident::open_attempt).is_some_and(|a| snapshot.running.contains(&a.attempt_id));
            if watched && !at_work && (unseen || self.rest_outdated(server)) && self.may_read(server) {
                // What an action moved in the metrics outdates an answer of the same moment: the metrics first, then the server.
                // An action from the future (the clock stepped back) is never older than a look.
                let behind = acted_at > snapshot.hangar.read_at;
                if behind {
                    self.read(Read::Metrics);
                }
                if !behind || acted_at > Some(self.now) {
                    self.read(Read::Server(id.clone()));
                }
            }
        }
    }

    /// One that is to be brought back went cold meanwhile: whether somebody stopped it is counted a moment later.
    fn count_stops(&mut self, id: &str, server: &ServerReading) {
        let covered = self.history.fleet_under_way().is_some_and(|fleet| fleet.covers(id));
        let counted = server.gauge_since.filter(|_| covered).map(|at| after(at.min(self.now), COUNTER_LAG));
        let Some(counted) = counted.filter(|at| self.snapshot.hangar.read_at < Some(*at)) else { return };
        if self.now >= counted { self.read(Read::Metrics) } else { self.wake(Some(counted)) }
    }

    /// The permission may be given later, to this key or with another one: one server is asked for now and then.
    fn ask_whether_permitted(&mut self) {
        let snapshot = self.snapshot;
        let asked_at = snapshot.servers.values().filter_map(|s| s.rest_failed_at).filter(|at| *at <= self.now).max();
        let again = asked_at.map_or(self.now, |at| after(at, FORBIDDEN_RETRY));
        self.wake(Some(again));
        let wanted = |id: &&String| self.history.open.contains_key(*id) || self.history.orders.contains_key(*id);
        if again <= self.now
            && let Some(id) = snapshot.servers.keys().find(wanted)
        {
            self.read(Read::Server(id.clone()));
        }
    }

    fn rest_outdated(&self, server: &ServerReading) -> bool {
        if server.rest_outdated || (server.rest.is_none() && !server.rest_not_found) {
            return true;
        }
        let starting = matches!(server.rest.as_ref().map(|r| r.state), Some(State::Initializing));
        // While a dead server is being started the gauge does not move: only REST shows how it ends.
        starting && server.rest.as_ref().is_some_and(|r| self.now.duration_since(r.at) >= REST_RETRY || r.at > self.now)
    }

    fn may_read(&mut self, server: &ServerReading) -> bool {
        // A failure from the future (the clock stepped back) holds nothing up.
        let Some(failed_at) = server.rest_failed_at.filter(|at| *at <= self.now) else { return true };
        let again = after(failed_at, REST_RETRY);
        self.wake(Some(again));
        again <= self.now
    }

    fn stand(&mut self, incident: &'a Incident) -> Standing {
        let Some(server) = self.snapshot.servers.get(&incident.mcp_server) else {
            return Standing::new(Phase::Watching, "not read yet");
        };
        let seen = seen_closely(self.policy, &self.snapshot.hangar, incident, server, self.now);
        if let Some(attempt) = incident.open_attempt() {
            return self.stand_by_attempt(incident, attempt, server, &seen);
        }
        let gate = Gate { policy: self.policy, snapshot: self.snapshot, history: self.history, now: self.now };
        if let Some(braked) = gate.before_deciding(incident, &seen) {
            return Standing::held(braked);
        }
        if seen == Seen::Unknown {
            return Standing::new(Phase::Watching, "the state is being read");
        }
        if seen == Seen::Gone && super::fleet::definition_is_out(incident) {
            return Standing::new(Phase::Exhausted, "its definition is out of Hangar and could not be put back: a person must do it");
        }
        if matches!(seen, Seen::Healthy | Seen::Gone) {
            return Standing::new(Phase::Watching, "ready again, but nothing healthy was seen since");
        }
        if let Some(rung) =
            incident.would_act.iter().find(|r| !r.only_looks()).filter(|_| self.policy.mode_of(&incident.mcp_server) == Mode::Observe)
        {
            return Standing::held(Braked::new(Hold::ObserveOnly, None, format!("would do {rung}")));
        }
        // A request is no approval: what forbids acting forbids it too.
        let asked = waiting(self.history, incident).filter(|r| r.restart_class.only_looks() || !only_to_look(incident, &seen));
        if let Some(request) = asked {
            return self.rung(incident, server, &seen, request.restart_class, Because::Asked(request));
        }
        match decide(self.policy, incident, &seen) {
            Decision::Climb(rung) => match gate.closed(incident, &seen, rung, || self.storm.hold(incident, rung)) {
                Some(braked) if incident.exhausted_at.is_some() => {
                    let standing = self.exhausted(incident, server, &seen, &braked.why);
                    let hold = standing.hold.or((standing.phase == Phase::Exhausted).then_some(braked.hold));
                    Standing { hold, ..standing }
                }
                _ => self.rung(incident, server, &seen, rung, Because::Next),
            },
            Decision::Forbidden(reason) => match approval::opened(self.policy, incident, server, self.now) {
                Some(approval) => self.rung(incident, server, &seen, approval.action, Because::Approved(approval)),
                None => match approval::look_again_at(self.policy, incident, server) {
                    Some(due) if due <= self.now => self.rung(incident, server, &seen, Rung::CapabilityRefresh, Because::NotTold),
                    again => {
                        self.wake(again);
                        Standing::held(Gate::forbidden(reason))
                    }
                },
            },
            Decision::Pass(rung, why) => Standing::new(Phase::Watching, format!("{rung}: {why}")),
            Decision::Exhausted => {
                self.exhausted(incident, server, &seen, "every rung that is enabled and applies was tried: a person is needed")
            }
        }
    }

    /// Gate, confirm, act.
    fn rung(&mut self, incident: &'a Incident, server: &ServerReading, seen: &Seen, rung: Rung, because: Because<'a>) -> Standing {
        let gate = Gate { policy: self.policy, snapshot: self.snapshot, history: self.history, now: self.now };
        let braked = gate
            .before_rung(incident, server, seen, rung)
            .or_else(|| self.storm.hold(incident, rung).filter(|_| !(rung.only_looks() && only_to_look(incident, seen))))
            .or_else(|| gate.after_storm(incident, rung))
            .or_else(|| self.budgets.check(self.policy, &incident.mcp_server, rung))
            .or_else(|| self.alone(incident, rung))
            .or_else(|| gate.permitted(Some(incident), Some(seen), rung, because.who(self.now)))
            .or_else(|| gate.last(incident));
        if let Some(braked) = braked {
            return Standing::held(braked);
        }
        if self.policy.mode_of(&incident.mcp_server) == Mode::Observe {
            return Standing::held(Braked::new(Hold::ObserveOnly, None, format!("would do {rung}")));
        }
        if !rung.only_looks() && !self.confirmed(server) {
            self.confirm(incident, server);
            return Standing::new(Phase::Watching, format!("reading the state again before {rung}"));
        }
        let why = match because {
            Because::SlowRetry => "slow retry of an exhausted incident".to_owned(),
            Because::NotTold => "what it exposes is not known yet: nobody can approve its start".to_owned(),
            Because::Next => format!("{}, {}: the narrowest rung not yet tried", incident.symptom(), incident.reason),
            Because::Approved(approval) => format!("approved by {} ({}), {}", approval.principal, approval.role, approval.approval_id),
            Because::Asked(request) => format!("asked for by {} ({}), {}", request.principal, request.role, request.request_id),
        };
        let action = Action {
            attempt_id: attempt_id(&incident.incident_id, incident.attempts.len() + 1),
            incident_id: incident.incident_id.clone(),
            mcp_server: incident.mcp_server.clone(),
            rung,
            part: Part::First,
            group: incident.group.clone(),
            why,
            slow_retry: matches!(because, Because::SlowRetry),
            process_start: self.history.process_start,
            asked_by: because.asked_by(),
        };
        self.plan.steps.push(Step::Act(action));
        self.budgets.book(&incident.mcp_server, rung, self.now);
        Standing::new(Phase::Acting, rung.as_str())
    }

    /// What touches every server, or every dead member of a group, waits for what this very plan begins elsewhere, and the
    /// other way round.
    fn alone(&self, incident: &Incident, rung: Rung) -> Option<Braked> {
        let begun = self.plan.steps.iter().filter_map(|step| if let Step::Act(action) = step { Some(action) } else { None });
        let of_group = |action: &Action| {
            let many = rung == Rung::RoleRuntimeRestart || action.rung == Rung::RoleRuntimeRestart;
            many && action.group.is_some() && action.group == incident.group
        };
        let other = begun.into_iter().find(|a| rung.restores_fleet() || a.rung.restores_fleet() || of_group(a))?;
        Some(Braked::new(Hold::Cooldown, None, format!("{} at {} is begun at this moment", other.rung, other.mcp_server)))
    }

    fn exhausted(&mut self, incident: &'a Incident, server: &ServerReading, seen: &Seen, why: &str) -> Standing {
        let rung = slow_retry_rung(self.policy, &incident.mcp_server, seen);
        let due = rung.and_then(|_| next_slow_retry(self.policy, incident));
        let mut standing = Standing::new(Phase::Exhausted, why);
        standing.next_retry_at = due;
        if let Some(rung) = rung.filter(|_| due.is_some_and(|due| due <= self.now)) {
            let retry = self.rung(incident, server, seen, rung, Because::SlowRetry);
            if retry.phase == Phase::Acting {
                return retry;
            }
            standing.hold = retry.hold;
            standing.until = retry.until;
            standing.why = format!("{}; slow retry: {}", standing.why, retry.why);
        }
        standing
    }

    /// Both reads are young enough to act on.
    fn confirmed(&self, server: &ServerReading) -> bool {
        self.metrics_young(server) && self.rest_young(server)
    }

    /// Counted from the answer, and for as long as the other read takes besides: where both are slow they would else take
    /// turns at being too old, and nothing would ever be done.
    fn young(&self, at: Timestamp, took: SignedDuration, other_took: SignedDuration) -> bool {
        let within = CONFIRM_WITHIN.saturating_add(took).saturating_add(other_took);
        at <= self.now && self.now.duration_since(at) <= within
    }

    fn metrics_young(&self, server: &ServerReading) -> bool {
        let hangar = &self.snapshot.hangar;
        let rest_took = server.rest.as_ref().map_or(SignedDuration::ZERO, |r| r.took);
        hangar.read_at.is_some_and(|at| self.young(at, hangar.took, rest_took))
    }

    fn rest_young(&self, server: &ServerReading) -> bool {
        // The list says less than the detail: no failures in a row, and on 2.20 no backoff.
        let current = server.rest.as_ref().filter(|r| !server.rest_outdated && r.consecutive_failures.is_some());
        current.is_some_and(|r| self.young(r.at, r.took, self.snapshot.hangar.took))
    }

    /// Reads again what is from before `since` (what was read before a window ended says nothing of its end), and only that:
    /// what is there already is not asked for while the other is awaited.
    fn read_again(&mut self, incident: &Incident, server: &ServerReading, since: Option<Timestamp>) {
        if !self.may_read(server) {
            return;
        }
        if since.is_none_or(|since| self.snapshot.hangar.read_at < Some(since)) {
            self.read(Read::Metrics);
        }
        if since.is_none() || self.rest_outdated(server) || !rest_since(server, since, self.now) {
            self.read(Read::Server(incident.mcp_server.clone()));
        }
    }

    /// Reads again what is too old to act on, and only that: where one read is slow the other must not wait for it for ever.
    fn confirm(&mut self, incident: &Incident, server: &ServerReading) {
        if !self.may_read(server) {
            return;
        }
        if !self.metrics_young(server) {
            self.read(Read::Metrics);
        }
        if !self.rest_young(server) {
            self.read(Read::Server(incident.mcp_server.clone()));
        }
    }
}
