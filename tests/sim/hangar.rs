//! A model of MCP Hangar in virtual time: what it does by itself and what it answers, as real Hangars were seen to.
//!
//! States, backoff, recovery saga, health sweep, group recovery, lagging gauge and counters, restarts, rate limit, lock-out.

mod answers;
mod befall;

use std::collections::BTreeMap;

use hangar_medic::observe::events::{Told, What};
use hangar_medic::policy::{Reason, State, StopReason, Stops};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::rng::Rng;
use super::time::wall;

/// What is behind a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upstream {
    Works,
    Broken,
    /// Answers nothing until Hangar's own time-out.
    Hangs,
    /// Exposes a tool that was not declared.
    Drifts,
    /// Its start takes Hangar down.
    KillsHangar,
    /// Broken until Hangar's process is another one.
    NeedsHangar,
    /// Broken until the platform restarts what is behind it.
    NeedsRuntime,
}

/// A restart of Hangar that was ordered.
#[derive(Debug, Clone, Copy)]
pub struct Restart {
    pub at: i64,
    pub lasts: i64,
    pub takes_medic: bool,
    /// The medic beside this very replica ordered it, and has to bring its servers back.
    pub ours: bool,
}

/// A start under way.
#[derive(Debug, Clone, Copy)]
struct Start {
    ends: i64,
    was_given_up: bool,
}

#[allow(clippy::struct_excessive_bools, reason = "independent facts of a model")]
#[derive(Debug, Clone)]
pub struct Server {
    pub mode: &'static str,
    pub group: Option<String>,
    pub upstream: Upstream,
    pub state: State,
    /// The process behind a ready server is gone, and Hangar has yet to notice.
    pub process_gone: bool,
    /// Ready, and nothing comes through until it is stopped and started.
    pub session_lost: bool,
    /// Degraded or initializing, and nothing goes on.
    pub stuck: bool,
    pub gauge: Option<State>,
    pub last_healthy: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub stops: Stops,
    /// Stops that happened and are not counted yet.
    uncounted: Vec<(i64, StopReason)>,
    starts_ok: u64,
    starts_failed: u64,
    pub failures: u32,
    pub failed_at: Option<Timestamp>,
    pub dead: Option<(Reason, Timestamp)>,
    /// Undeclared tools were found, and no start was completed since.
    pub blocked: bool,
    /// Undeclared tools that a drifting upstream exposes.
    drift: usize,
    start: Option<Start>,
    saga: Option<(usize, i64)>,
    pub in_rotation: bool,
    pub evicted: bool,
    // What the checker knows of it and Hangar does not tell.
    /// The world did something to it. What nobody broke is never touched.
    pub broken: bool,
    /// A person or a rule stopped it, and it was not ready since.
    pub stopped: bool,
    pub ever_stopped: bool,
    pub serves: bool,
    pub last_served: i64,
    /// Since when it is degraded, or starting.
    pub busy_since: i64,
    /// It was up when a restart was carried out for the medic, and not since.
    pub owed: bool,
    /// The group that it was taken out of.
    pub taken_out: Option<String>,
}

impl Server {
    fn new(mode: &'static str, group: Option<String>, upstream: Upstream) -> Self {
        Self {
            mode,
            group,
            upstream,
            state: State::Cold,
            process_gone: false,
            session_lost: false,
            stuck: false,
            gauge: None,
            last_healthy: None,
            started_at: None,
            stops: Stops::new(),
            uncounted: Vec::new(),
            starts_ok: 0,
            starts_failed: 0,
            failures: 0,
            failed_at: None,
            dead: None,
            blocked: false,
            drift: 1,
            start: None,
            saga: None,
            in_rotation: false,
            evicted: false,
            broken: false,
            stopped: false,
            ever_stopped: false,
            serves: false,
            last_served: -1_000_000_000,
            busy_since: 0,
            owed: false,
            taken_out: None,
        }
    }

    fn backoff_until(&self) -> Option<Timestamp> {
        let wait = 2_i64.saturating_pow(self.failures.min(6)).min(60) * 1_100;
        self.failed_at.filter(|_| self.failures > 0).map(|at| at + SignedDuration::from_millis(wait.min(60_000)))
    }

    /// Whether a call would be answered.
    fn would_serve(&self) -> bool {
        self.state == State::Ready && !self.process_gone && !self.session_lost
    }
}

/// What Hangar answers, or when it will.
#[derive(Debug, Clone)]
pub enum Reply {
    Now(u16, Value),
    /// A start is under way until then.
    When(i64),
    /// No answer at all.
    Gone,
}

#[allow(clippy::struct_excessive_bools, reason = "independent facts of a model")]
#[derive(Debug)]
pub struct Hangar {
    pub now: i64,
    pub servers: BTreeMap<String, Server>,
    pub process_start: Timestamp,
    pub up: bool,
    pub back_at: Option<i64>,
    pub version: (u32, u32, u32),
    next_health: i64,
    group_due: BTreeMap<String, (i64, i64)>,
    tokens: f64,
    refilled: i64,
    /// Refuses every credential.
    pub refuses: bool,
    pub failed_logins: u32,
    pub locked_until: i64,
    /// Every line that Hangar wrote to its log.
    pub log: Vec<String>,
    /// What went over its event stream since it was last taken.
    pub events: Vec<Told>,
    rng: Rng,
    /// Times at which Hangar went down, and not by an order.
    pub downs: Vec<i64>,
    pub ordered_downs: Vec<i64>,
    pub restarted_by_others: bool,
    /// Restarts that are ordered and yet to come.
    pub restarts: Vec<Restart>,
    /// A restart has just taken the medic down.
    pub took_medic: bool,
}

fn ms(n: i64) -> SignedDuration {
    SignedDuration::from_millis(n)
}

impl Hangar {
    pub fn new(version: (u32, u32, u32), rng: Rng) -> Self {
        Self {
            now: 0,
            servers: BTreeMap::new(),
            process_start: wall() - ms(3_600_000),
            up: true,
            back_at: None,
            version,
            next_health: 60_000,
            group_due: BTreeMap::new(),
            tokens: 20.0,
            refilled: 0,
            refuses: false,
            failed_logins: 0,
            locked_until: 0,
            log: Vec::new(),
            events: Vec::new(),
            rng,
            downs: Vec::new(),
            ordered_downs: Vec::new(),
            restarted_by_others: false,
            restarts: Vec::new(),
            took_medic: false,
        }
    }

    pub fn add(&mut self, id: &str, mode: &'static str, group: Option<String>, ready: bool) {
        let mut server = Server::new(mode, group, Upstream::Works);
        if ready {
            server.state = State::Ready;
            server.gauge = Some(State::Ready);
            server.last_healthy = Some(wall());
            server.started_at = Some(wall() - ms(1_800_000));
            server.in_rotation = server.group.is_some();
            server.serves = true;
            server.last_served = 0;
        }
        self.servers.insert(id.to_owned(), server);
    }

    fn says_dead(&self) -> bool {
        self.version >= (2, 21, 0)
    }

    /// When something happens by itself next.
    pub fn next(&self) -> i64 {
        let starts = self.servers.values().filter_map(|s| s.start.map(|s| s.ends));
        let sagas = self.servers.values().filter_map(|s| s.saga).map(|(_, at)| at);
        let counts = self.servers.values().flat_map(|s| s.uncounted.iter().map(|(at, _)| *at));
        let groups = self.group_due.values().map(|(at, _)| *at);
        let all = starts
            .chain(sagas)
            .chain(counts)
            .chain(groups)
            .chain([self.next_health])
            .chain(self.back_at)
            .chain(self.restarts.iter().map(|r| r.at));
        all.min().unwrap_or(i64::MAX)
    }

    /// Does everything that is due up to `now`, in its order.
    pub fn advance(&mut self, now: i64) {
        while self.next() <= now {
            self.now = self.next().max(self.now);
            self.happen();
        }
        self.now = now;
        self.watch();
    }

    /// Keeps what the checker knows.
    fn watch(&mut self) {
        let (up, now) = (self.up, self.now);
        for server in self.servers.values_mut() {
            server.serves = up && server.would_serve();
            if server.serves {
                server.last_served = now;
                server.stopped = false;
                server.owed = false;
            }
        }
    }

    fn happen(&mut self) {
        if let Some(n) = self.restarts.iter().position(|r| r.at <= self.now) {
            let restart = self.restarts.remove(n);
            self.restarted(restart);
        }
        if self.back_at.is_some_and(|at| at <= self.now) {
            self.back_at = None;
            self.up = true;
            self.process_start = wall();
            self.next_health = self.now + 60_000;
        }
        let ids: Vec<String> = self.servers.keys().cloned().collect();
        for id in &ids {
            self.happen_to(id);
        }
        if self.next_health <= self.now {
            self.next_health = self.now + 60_000;
            if self.up {
                for id in &ids {
                    self.check_health(id);
                }
            }
        }
        self.recover_groups();
        self.watch();
    }

    fn happen_to(&mut self, id: &str) {
        let now = self.now;
        let Some(server) = self.servers.get_mut(id) else { return };
        let due: Vec<StopReason> = server.uncounted.iter().filter(|(at, _)| *at <= now).map(|(_, reason)| *reason).collect();
        server.uncounted.retain(|(at, _)| *at > now);
        for reason in due {
            *server.stops.entry(reason).or_default() += 1;
        }
        if let Some(start) = server.start.filter(|s| s.ends <= now) {
            self.end_start(id, start);
        }
        let Some(server) = self.servers.get_mut(id) else { return };
        if let Some((k, at)) = server.saga.filter(|(_, at)| *at <= now) {
            // Its own retry ends in `fail`, which books the next one.
            server.saga = Some((k, i64::MAX / 2));
            if server.state == State::Degraded && !server.stuck {
                self.begin_start(id);
            }
            let _ = at;
        }
    }

    fn check_health(&mut self, id: &str) {
        let says_dead = self.says_dead();
        let Some(server) = self.servers.get_mut(id).filter(|s| s.state == State::Ready) else { return };
        if !server.process_gone && !server.session_lost {
            server.last_healthy = Some(wall());
        } else if server.process_gone && (server.mode == "subprocess" || says_dead) {
            self.die(id, Reason::Crashed);
            self.say(json!({"event": format!("mcp_server_dead: {id}"), "level": "warning"}));
        } else {
            // 2.20 with a remote upstream that is gone: ready for ever.
            server.session_lost = true;
        }
    }

    fn say(&mut self, mut line: Value) {
        line["timestamp"] = json!(wall().to_string());
        line["service"] = json!("mcp-hangar");
        if line.get("logger").is_none() {
            line["logger"] = json!("mcp_hangar.domain.model.mcp_server");
        }
        self.log.push(line.to_string());
    }

    fn tell(&mut self, id: &str, what: What) {
        self.events.push(Told { mcp_server: id.to_owned(), at: wall(), what });
    }

    fn die(&mut self, id: &str, reason: Reason) {
        let Some(server) = self.servers.get_mut(id) else { return };
        server.state = State::Dead;
        server.dead = Some((reason, wall()));
        server.saga = None;
        server.start = None;
        server.stuck = false;
        server.session_lost = false;
        server.process_gone = false;
        server.gauge = Some(State::Dead);
        server.evicted |= server.group.is_some() && reason != Reason::Crashed;
        server.in_rotation &= reason == Reason::Crashed;
        self.tell(id, What::Dead(reason));
    }

    fn begin_start(&mut self, id: &str) {
        let (now, up) = (self.now, self.up);
        let slow = self.rng.between(15_000, 30_000);
        let quick = self.rng.between(200, 2_500);
        let Some(server) = self.servers.get_mut(id).filter(|_| up) else { return };
        let was_given_up = matches!(server.dead, Some((Reason::GivenUp, _)));
        server.state = State::Initializing;
        server.dead = None;
        server.busy_since = now;
        server.process_gone = false;
        let takes = if server.upstream == Upstream::Hangs { slow } else { quick };
        server.start = Some(Start { ends: now + takes, was_given_up });
        self.tell(id, What::NotDead);
    }

    fn end_start(&mut self, id: &str, start: Start) {
        let now = self.now;
        let Some(server) = self.servers.get_mut(id) else { return };
        server.start = None;
        match server.upstream {
            Upstream::Works => {
                server.state = State::Ready;
                server.stuck = false;
                server.started_at = Some(wall());
                server.last_healthy = Some(wall());
                server.failures = 0;
                server.failed_at = None;
                server.blocked = false;
                server.saga = None;
                server.session_lost = false;
                server.process_gone = false;
                server.gauge = Some(State::Ready);
                server.in_rotation = server.group.is_some();
                server.evicted = false;
                server.starts_ok += 2;
                let mode = server.mode;
                self.say(json!({"event": format!("mcp_server_started: {id}, mode={mode}, tools=1"), "level": "info"}));
                self.tell(id, What::NotDead);
            }
            Upstream::Drifts => {
                server.blocked = true;
                server.starts_failed += 1;
                let tools: Vec<String> = (0..server.drift).map(|n| format!("extra{n}")).collect();
                let drift = json!({"mcp_server_id": id, "undeclared_tools": tools, "enforcement_mode": "block",
                    "event": "capability_drift_detected", "level": "warning"});
                self.say(drift);
                self.say_failed(id, "CapabilityBlockedError");
                self.die(id, Reason::CapabilityBlocked);
            }
            Upstream::KillsHangar => self.down(now + 4_000),
            Upstream::Broken | Upstream::Hangs | Upstream::NeedsHangar | Upstream::NeedsRuntime => self.fail(id, start.was_given_up),
        }
    }

    fn say_failed(&mut self, id: &str, error_type: &str) {
        self.say(if self.says_dead() {
            json!({"mcp_server_id": id, "error_type": error_type, "event": "mcp_server_start_failed", "level": "error"})
        } else {
            let text = if error_type == "CapabilityBlockedError" {
                "Failed to start mcp_server: capability_violation: it serves tools that are not declared"
            } else {
                "Failed to start mcp_server: MCP initialization failed: reader_died"
            };
            json!({"event": format!("mcp_server_start_failed: {id}, error={text}"), "level": "error"})
        });
    }

    fn fail(&mut self, id: &str, was_given_up: bool) {
        let now = self.now;
        let Some(server) = self.servers.get_mut(id) else { return };
        server.failures += 1;
        server.failed_at = Some(wall());
        server.starts_failed += 1;
        server.gauge = server.gauge.or(Some(State::Dead));
        let (failures, saga) = (server.failures, server.saga);
        let at_end = matches!(saga, Some((3, _)));
        if was_given_up || at_end {
            server.stops.entry(StopReason::MaxRetriesExceeded).and_modify(|n| *n += 1).or_insert(1);
            if at_end {
                self.say(json!({"event": format!("mcp_server_degraded: {id}, failures={failures}"), "level": "warning"}));
            }
            self.say_failed(id, "McpServerStartError");
            self.die(id, Reason::GivenUp);
            self.say(json!({"mcp_server_id": id, "reason": "max_retries_exceeded", "event": "mcp_server_given_up", "level": "warning"}));
        } else if failures < 3 && saga.is_none() {
            self.say_failed(id, "McpServerStartError");
            self.die(id, Reason::StartFailed);
        } else {
            let k = saga.map_or(0, |(k, _)| k);
            let wait = [5_000, 10_000, 20_000][k].max(if failures >= 6 { 60_000 } else { 0 });
            server.saga = Some((k + 1, now + wait));
            server.state = State::Degraded;
            server.gauge = Some(State::Degraded);
            server.busy_since = now;
            server.in_rotation = false;
            server.evicted |= server.group.is_some();
            self.say(json!({"event": format!("mcp_server_degraded: {id}, failures={failures}"), "level": "warning"}));
            self.say_failed(id, "McpServerStartError");
            let retry = format!("McpServer {id} degraded, scheduling retry {}/3 in {}.0s", k + 1, wait / 1000);
            self.say(json!({"event": retry, "level": "info", "logger": "mcp_hangar.application.sagas.mcp_server_recovery_saga"}));
            self.tell(id, What::Degraded);
        }
    }

    fn refill(&mut self) {
        let passed = self.now - self.refilled;
        self.refilled = self.now;
        #[allow(clippy::cast_precision_loss, reason = "milliseconds of a few hours")]
        let more = passed as f64 / 100.0;
        self.tokens = (self.tokens + more).min(20.0);
    }
}
