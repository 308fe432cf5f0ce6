//! A model of MCP Hangar in virtual time: states, backoff, saga, health sweep, lagging gauge, counters, restarts.

use std::collections::BTreeMap;

use hangar_medic::policy::{DeadBlock, GroupReading, LogReading, Provenance, Reason, RestReading, Source, State, StopReason, Stops};
use jiff::{SignedDuration, Timestamp};

pub const fn secs(n: i64) -> SignedDuration {
    SignedDuration::from_secs(n)
}

/// What is behind a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upstream {
    Works,
    Broken,
    /// Exposes a tool that was not declared.
    Drifts,
    /// Hangar calls it ready, and nothing healthy is ever seen.
    Lies,
    /// Hangs until Hangar's own time-out.
    Hangs,
    /// Its start takes Hangar down with it.
    KillsHangar,
    /// Its start is refused without being tried, and the server stays cold.
    Limited,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAnswer {
    Ready,
    Failed,
    Refused,
    Lost,
    Busy,
}

#[allow(clippy::struct_excessive_bools, reason = "independent facts of a model")]
#[derive(Debug, Clone)]
pub struct Server {
    pub mode: &'static str,
    pub upstream: Upstream,
    pub state: State,
    pub alive: bool,
    pub gauge: Option<State>,
    pub last_healthy: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub stops: Stops,
    pub failures: u32,
    pub failed_at: Option<Timestamp>,
    pub dead: Option<(Reason, Timestamp)>,
    /// In the log, since the last completed start.
    pub blocked: bool,
    pub log_dead: Option<(Reason, Timestamp)>,
    pub start_ends: Option<Timestamp>,
    saga: Option<(u8, Timestamp)>,
    pub starts: u32,
    pub group: Option<String>,
    pub in_rotation: bool,
    pub stays_out: bool,
    /// Stopped on purpose, and whether a read of ours has shown it.
    pub stopped: bool,
    pub stop_noticed: bool,
    pub blocked_at: Option<Timestamp>,
    /// The names in the last drift.
    pub undeclared: Vec<String>,
    /// Ready, and nothing comes through until it is started anew.
    pub session_lost: bool,
    /// Moves with everything that a metrics read can show.
    pub changes: u64,
}

impl Server {
    pub fn new(mode: &'static str) -> Self {
        Self {
            mode,
            upstream: Upstream::Works,
            state: State::Cold,
            alive: false,
            gauge: None,
            last_healthy: None,
            started_at: None,
            stops: Stops::new(),
            failures: 0,
            failed_at: None,
            dead: None,
            blocked: false,
            log_dead: None,
            start_ends: None,
            saga: None,
            starts: 0,
            group: None,
            in_rotation: false,
            stays_out: false,
            stopped: false,
            stop_noticed: false,
            blocked_at: None,
            undeclared: vec!["extra".to_owned()],
            session_lost: false,
            changes: 0,
        }
    }

    fn backoff_until(&self) -> Option<Timestamp> {
        let wait = 2_i64.saturating_pow(self.failures.min(16)).min(60);
        self.failed_at.filter(|_| self.failures > 0).map(|at| at + secs(wait))
    }

    fn show(&mut self, state: State) {
        self.gauge = Some(state);
        self.changes += 1;
    }

    fn die(&mut self, reason: Reason, now: Timestamp) {
        self.state = State::Dead;
        self.alive = false;
        self.dead = Some((reason, now));
        self.log_dead = Some((reason, now));
        self.saga = None;
        self.in_rotation = reason == Reason::Crashed && self.in_rotation;
        self.show(State::Dead);
    }

    fn begin(&mut self, now: Timestamp) {
        let hangs = matches!(self.upstream, Upstream::Hangs);
        self.starts += 1;
        self.stopped = false;
        self.stop_noticed = false;
        self.state = State::Initializing;
        self.dead = None;
        self.start_ends = Some(now + if hangs { secs(20) } else { secs(1) });
        self.changes += 1;
    }

    /// A start that the health of the upstream decides. `true`: it took Hangar down.
    fn end(&mut self, now: Timestamp, was_given_up: bool) -> bool {
        self.start_ends = None;
        match self.upstream {
            Upstream::Works | Upstream::Lies => {
                self.state = State::Ready;
                self.alive = true;
                self.started_at = Some(now);
                self.failures = 0;
                self.failed_at = None;
                self.blocked = false;
                self.log_dead = None;
                self.saga = None;
                self.in_rotation = self.group.is_some() && !self.stays_out;
                self.session_lost = self.upstream == Upstream::Lies;
                if !self.session_lost {
                    self.last_healthy = Some(now);
                }
                self.show(State::Ready);
            }
            Upstream::Broken | Upstream::Hangs => self.fail(now, was_given_up),
            Upstream::Drifts => {
                self.blocked = true;
                self.blocked_at = Some(now);
                self.die(Reason::CapabilityBlocked, now);
            }
            Upstream::KillsHangar => return true,
            Upstream::Limited => self.state = State::Cold,
        }
        false
    }

    fn fail(&mut self, now: Timestamp, was_given_up: bool) {
        self.failures += 1;
        self.failed_at = Some(now);
        if was_given_up {
            self.die(Reason::GivenUp, now);
        } else if self.failures < 3 {
            self.die(Reason::StartFailed, now);
        } else if let Some((3, _)) = self.saga {
            *self.stops.entry(StopReason::MaxRetriesExceeded).or_default() += 1;
            self.die(Reason::GivenUp, now);
        } else {
            let done = self.saga.map_or(0, |(k, _)| k);
            let wait = [5, 10, 20][usize::from(done)];
            self.saga = Some((done + 1, now + secs(wait)));
            self.state = State::Degraded;
            self.log_dead = None;
            self.show(State::Degraded);
        }
    }
}

#[derive(Debug, Clone)]
pub struct Hangar {
    pub servers: BTreeMap<String, Server>,
    pub process_start: Timestamp,
    pub up: bool,
    pub back_at: Option<Timestamp>,
    pub version: (u32, u32, u32),
    given_up_starts: Vec<String>,
    next_health: Timestamp,
    pub rebalances: u32,
}

impl Hangar {
    pub fn new(now: Timestamp) -> Self {
        Self {
            servers: BTreeMap::new(),
            process_start: now - secs(3600),
            up: true,
            back_at: None,
            version: (2, 34, 4),
            given_up_starts: Vec::new(),
            next_health: now + secs(60),
            rebalances: 0,
        }
    }

    /// Runs everything that Hangar does by itself up to `now`.
    pub fn advance(&mut self, now: Timestamp) {
        loop {
            let ends = self.servers.values().filter_map(|s| s.start_ends);
            let sagas = self.servers.values().filter_map(|s| s.saga).map(|(_, at)| at);
            let next = ends.chain(sagas).chain([self.next_health]).chain(self.back_at).min();
            let Some(at) = next.filter(|at| *at <= now) else { return };
            self.happen(at);
        }
    }

    fn happen(&mut self, at: Timestamp) {
        if self.back_at == Some(at) {
            self.back_at = None;
            self.up = true;
            self.process_start = at;
        }
        let ids: Vec<String> = self.servers.keys().cloned().collect();
        for id in ids {
            self.happen_to(&id, at);
        }
        if self.next_health == at {
            self.health(at);
            self.next_health = at + secs(60);
        }
    }

    fn happen_to(&mut self, id: &str, at: Timestamp) {
        let given_up = self.given_up_starts.iter().any(|s| s == id);
        let server = self.servers.get_mut(id).unwrap();
        if server.start_ends.is_some_and(|end| end <= at) {
            self.given_up_starts.retain(|s| s != id);
            if server.end(at, given_up) {
                self.down(at, Some(at + secs(3)));
                return;
            }
        }
        let server = self.servers.get_mut(id).unwrap();
        if let Some((k, due)) = server.saga
            && due <= at
            && server.start_ends.is_none()
        {
            server.begin(at);
            server.saga = Some((k, at + secs(3600)));
        }
    }

    fn health(&mut self, now: Timestamp) {
        for server in self.servers.values_mut().filter(|s| s.state == State::Ready) {
            if !server.alive {
                server.die(Reason::Crashed, now);
            } else if server.upstream == Upstream::Works && !server.session_lost {
                server.last_healthy = Some(now);
            }
        }
    }

    /// `POST /start`; the answer of a start that has begun comes when it ends.
    pub fn start(&mut self, id: &str, now: Timestamp) -> StartAnswer {
        if !self.up {
            return StartAnswer::Lost;
        }
        let Some(server) = self.servers.get_mut(id) else { return StartAnswer::Refused };
        match server.state {
            State::Ready if server.alive => StartAnswer::Ready,
            State::Initializing => StartAnswer::Busy,
            State::Degraded => StartAnswer::Refused,
            State::Cold if server.upstream == Upstream::Limited => StartAnswer::Refused,
            State::Ready | State::Cold | State::Dead => {
                if matches!(server.dead, Some((Reason::GivenUp, _))) {
                    self.given_up_starts.push(id.to_owned());
                }
                server.begin(now);
                StartAnswer::Busy
            }
        }
    }

    /// How a begun start ended.
    pub fn answer(&self, id: &str) -> StartAnswer {
        let Some(server) = self.servers.get(id).filter(|_| self.up) else { return StartAnswer::Lost };
        match server.state {
            State::Ready => StartAnswer::Ready,
            State::Initializing => StartAnswer::Busy,
            State::Dead | State::Cold | State::Degraded => StartAnswer::Failed,
        }
    }

    /// A user's call that names the server.
    pub fn call(&mut self, id: &str, now: Timestamp) {
        let up = self.up;
        let Some(server) = self.servers.get_mut(id).filter(|_| up) else { return };
        let waits = server.backoff_until().is_some_and(|until| now < until);
        let blocked = matches!(server.dead, Some((Reason::CapabilityBlocked, _)));
        match server.state {
            State::Ready if server.alive && server.upstream == Upstream::Works && !server.session_lost => server.last_healthy = Some(now),
            State::Ready if server.alive => {}
            State::Initializing | State::Degraded => {}
            State::Dead if waits || blocked => {}
            State::Ready | State::Cold | State::Dead => {
                self.start(id, now);
            }
        }
    }

    pub fn stop(&mut self, id: &str, reason: StopReason) -> bool {
        let up = self.up;
        let Some(server) = self.servers.get_mut(id).filter(|_| up) else { return false };
        server.state = State::Cold;
        server.alive = false;
        server.dead = None;
        server.log_dead = None;
        server.saga = None;
        server.start_ends = None;
        *server.stops.entry(reason).or_default() += 1;
        // Before 2.21.0 a stop on command is counted a second time, as the shutdown that it is.
        let commanded = matches!(reason, StopReason::Manual | StopReason::UserRequest | StopReason::DetectionBlock | StopReason::Other);
        if commanded && self.version < (2, 21, 0) {
            *server.stops.entry(StopReason::Shutdown).or_default() += 1;
        }
        server.show(State::Cold);
        true
    }

    /// A person's stop, or a detection rule's.
    pub fn stop_on_purpose(&mut self, id: &str, reason: StopReason) {
        if self.stop(id, reason) {
            self.servers.get_mut(id).unwrap().stopped = !matches!(reason, StopReason::Idle | StopReason::MaxRetriesExceeded);
        }
    }

    /// The process behind a ready server ends; Hangar has yet to notice.
    pub fn crash(&mut self, id: &str) {
        if let Some(server) = self.servers.get_mut(id).filter(|s| s.state == State::Ready) {
            server.alive = server.mode != "subprocess";
        }
    }

    /// A changed definition of a server: REST cold, the gauge stays.
    pub fn edit(&mut self, id: &str) {
        if let Some(server) = self.servers.get_mut(id) {
            server.state = State::Cold;
            server.dead = None;
            server.saga = None;
            server.start_ends = None;
        }
    }

    /// Hangar's process ends; everything but the definitions is lost.
    pub fn down(&mut self, _now: Timestamp, back_at: Option<Timestamp>) {
        self.up = false;
        self.back_at = back_at;
        self.given_up_starts.clear();
        for server in self.servers.values_mut() {
            let (mode, upstream, starts, group) = (server.mode, server.upstream, server.starts, server.group.clone());
            let (blocked, blocked_at, stop_noticed) = (server.blocked, server.blocked_at, server.stop_noticed);
            let undeclared = server.undeclared.clone();
            let stopped = stop_noticed;
            *server = Server { upstream, blocked, starts, group, stopped, stop_noticed, blocked_at, undeclared, ..Server::new(mode) };
        }
    }

    pub fn rest(&self, id: &str, now: Timestamp) -> Option<RestReading> {
        let s = self.servers.get(id)?;
        let has_block = self.version >= (2, 21, 0);
        let until =
            s.backoff_until().filter(|until| s.state == State::Dead && now < *until && !matches!(s.dead, Some((Reason::Crashed, _))));
        let dead = s.dead.filter(|_| has_block && s.state == State::Dead).map(|(reason, since)| DeadBlock {
            reason,
            since: Some(since),
            retry_allowed_at: until,
            revived_by_call: reason != Reason::CapabilityBlocked,
        });
        Some(RestReading {
            took: SignedDuration::ZERO,
            at: now,
            state: s.state,
            alive: s.alive,
            mode: s.mode.to_owned(),
            dead,
            consecutive_failures: Some(s.failures),
            started_at: s.started_at,
            backoff_until: until,
        })
    }

    pub fn log(&self, id: &str) -> Option<LogReading> {
        let s = self.servers.get(id)?;
        let provenance = |at| Provenance { source: Source::Log, at, file: "8:1".to_owned(), offset: Some(0), line_sha256: None };
        let undeclared_tools = if s.blocked { s.undeclared.clone() } else { Vec::new() };
        Some(LogReading { dead: s.log_dead.map(|(reason, at)| (reason, provenance(at))), capability_blocked: s.blocked, undeclared_tools })
    }

    pub fn group(&self, id: &str, now: Timestamp) -> Option<GroupReading> {
        let group = self.servers.get(id)?.group.clone()?;
        let members = || self.servers.iter().filter(|(_, s)| s.group.as_ref() == Some(&group));
        Some(GroupReading {
            at: now,
            in_rotation: self.servers[id].in_rotation,
            degraded_member: members().any(|(other, s)| other != id && s.state == State::Degraded),
            in_rotation_count: u32::try_from(members().filter(|(_, s)| s.in_rotation).count()).unwrap(),
            group,
        })
    }
}

impl Hangar {
    /// The wall clock moves; what is scheduled stays as far away as it was.
    pub fn step_clock(&mut self, by: SignedDuration) {
        self.next_health += by;
        self.back_at = self.back_at.map(|at| at + by);
        for server in self.servers.values_mut() {
            server.start_ends = server.start_ends.map(|at| at + by);
            server.saga = server.saga.map(|(k, at)| (k, at + by));
            server.failed_at = server.failed_at.map(|at| at + by);
        }
    }
}

impl Hangar {
    /// Makes a server dead for a reason, as if `failures` starts had failed in a row.
    pub fn kill(&mut self, id: &str, reason: Reason, failures: u32, now: Timestamp) {
        let server = self.servers.get_mut(id).unwrap();
        // It must have been started again for that.
        server.stopped = false;
        server.stop_noticed = false;
        server.failures = failures;
        server.failed_at = (failures > 0).then_some(now);
        if reason == Reason::CapabilityBlocked {
            server.blocked = true;
            server.blocked_at = Some(now);
        }
        if reason == Reason::GivenUp {
            *server.stops.entry(StopReason::MaxRetriesExceeded).or_default() += 1;
        }
        server.die(reason, now);
    }
}

impl Hangar {
    /// A user's call has just brought it back.
    pub fn revive(&mut self, id: &str, now: Timestamp) {
        let server = self.servers.get_mut(id).unwrap();
        server.upstream = Upstream::Works;
        server.begin(now);
        server.end(now, false);
    }
}

impl Hangar {
    /// Degraded or initializing, and nothing goes on.
    pub fn stick(&mut self, id: &str, state: State) {
        let server = self.servers.get_mut(id).unwrap();
        server.stopped = false;
        server.stop_noticed = false;
        server.state = state;
        server.alive = false;
        server.show(state);
    }

    pub fn count_stop(&mut self, id: &str, reason: StopReason) {
        let server = self.servers.get_mut(id).unwrap();
        *server.stops.entry(reason).or_default() += 1;
        server.changes += 1;
    }

    /// Out of its group's rotation until the group is rebalanced.
    pub fn evict(&mut self, id: &str) {
        let server = self.servers.get_mut(id).unwrap();
        server.in_rotation = false;
        server.stays_out = true;
    }

    pub fn rebalance(&mut self, id: &str) {
        self.rebalances += 1;
        let server = self.servers.get_mut(id).unwrap();
        server.stays_out = false;
        server.in_rotation = server.state == State::Ready;
    }
}
