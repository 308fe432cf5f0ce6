//! The state of every server as the log tells it: a state machine fed line by line. No IO and no clock.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::console::{Console, Trust};
use super::frame::Form;
use super::record::{self, Meaning, Prefilter};
use super::tail::FileId;
pub use super::told::{Change, ServerState, Told, Verdict};
use crate::policy::Reason;

/// Servers followed at once. More ids than this are counted and not followed: the bound holds whatever is in the file.
pub const SERVERS_MAX: usize = 100_000;

/// What one line told: nothing, mostly; a refused drift tells two things.
pub type Tellings = std::iter::Flatten<std::array::IntoIter<Option<Told>, 2>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    NotDead,
    Degraded,
    Dead(Reason),
}

/// One of Hangar's; an alias, since serde would borrow a plain `&str`.
type EventName = &'static str;

/// The next line that belongs to the one just seen, so that it is not taken for news of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Expect {
    Nothing,
    /// `mcp_server_degraded: X` is followed by `mcp_server_start_failed` of the same start.
    FailureOfDegradation,
    /// In 2.20.0 nothing in the failure's own line tells a capability block from another failure.
    FailureOfDrift,
    /// Giving up is also published as a stop, since 2.21.0.
    StopOfGivingUp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Server {
    state: State,
    at: Timestamp,
    file: FileId,
    offset: u64,
    #[serde(deserialize_with = "record::event_name")]
    event: EventName,
    expect: Expect,
    blocked: bool,
    undeclared: Vec<String>,
    /// The reason it had when Hangar went down, in case Hangar brings the state back from its event store.
    before_restart: Option<Reason>,
    /// A death that may be forged: held until Hangar publishes a state change of this very server.
    doubted: Option<Doubted>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Doubted {
    reason: Reason,
    seen: Seen,
    undeclared: Option<Vec<String>>,
}

/// A [`Classifier`]'s state, to go on from after a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    servers: Vec<(String, Server)>,
    console: Console,
}

/// The state machine over one source.
#[derive(Debug)]
pub struct Classifier {
    servers: HashMap<Box<str>, Server>,
    prefilter: Prefilter,
    console: Console,
    /// Servers with an [`Expect`] or a doubt: while there is none, events of state changes are not even parsed.
    awaiting: usize,
    not_followed: u64,
    file: FileId,
}

impl Default for Classifier {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    at: Timestamp,
    file: FileId,
    offset: u64,
    #[serde(deserialize_with = "record::event_name")]
    event: EventName,
}

impl Classifier {
    #[must_use]
    pub fn new() -> Self {
        Self::starting_in(FileId::default())
    }

    pub(super) fn starting_in(file: FileId) -> Self {
        Self { servers: HashMap::new(), prefilter: Prefilter::new(), console: Console::default(), awaiting: 0, not_followed: 0, file }
    }

    /// Goes on from `saved`.
    #[must_use]
    pub fn restored_from(saved: Saved) -> Self {
        let servers = saved.servers.into_iter().filter(|(id, _)| record::is_id(id)).take(SERVERS_MAX);
        let servers: HashMap<_, _> = servers.map(|(id, server)| (id.into_boxed_str(), server)).collect();
        let awaits = |server: &Server| usize::from(server.expect != Expect::Nothing) + usize::from(server.doubted.is_some());
        let awaiting = servers.values().map(awaits).sum();
        Self { servers, awaiting, console: saved.console, ..Self::new() }
    }

    /// What to go on from after a restart.
    pub fn save(&self) -> Saved {
        let servers = self.servers.iter().map(|(id, server)| (id.to_string(), server.clone())).collect();
        Saved { servers, console: self.console.clone() }
    }

    /// The lines to come are from `file`.
    pub const fn in_file(&mut self, file: FileId) {
        self.file = file;
    }

    pub(super) const fn file(&self) -> FileId {
        self.file
    }

    /// Takes one line in `form` (without its newline), which began at byte `offset` of its source.
    pub fn line(&mut self, form: Form, line: &[u8], offset: u64) -> Tellings {
        let mut told = [None, None];
        let mut places = told.iter_mut();
        self.feed(form, line, offset, &mut |one| {
            if let Some(place) = places.next() {
                *place = Some(one);
            }
        });
        told.into_iter().flatten()
    }

    /// As [`Self::line`], for many: a line that tells nothing costs no more than finding that out.
    pub fn feed(&mut self, form: Form, line: &[u8], offset: u64, tell: &mut dyn FnMut(Told)) {
        let state_events = self.awaiting > 0;
        match form {
            Form::Json => {
                if line.first() == Some(&b'{')
                    && self.prefilter.may_tell(line, state_events)
                    && let Some(record) = record::from_json(line)
                {
                    self.record(&record, Trust::Believed, offset, tell);
                }
            }
            Form::Console => {
                if let Some(read) = self.console.line(line, offset, &self.prefilter, state_events) {
                    let offset = self.console.record_offset();
                    self.record(&read.record, read.trust, offset, tell);
                }
            }
        }
    }

    fn record(&mut self, record: &record::Record<'_>, trust: Trust, offset: u64, tell: &mut dyn FnMut(Told)) {
        let Some(meaning) = record::meaning(record) else { return };
        let Some(at) = record.at() else { return };
        let seen = Seen { at, file: self.file, offset, event: meaning.event() };
        let told = match trust {
            Trust::Believed => self.apply(meaning, record, &seen),
            Trust::Doubted => self.apply_doubted(meaning, record, &seen),
        };
        told.into_iter().flatten().for_each(tell);
    }

    /// Every server that is dead as far as the log tells, in no order.
    pub fn dead(&self) -> impl Iterator<Item = Verdict<'_>> {
        self.servers.iter().filter_map(|(id, server)| match server.state {
            State::Dead(reason) => Some(server.verdict(id, reason)),
            State::NotDead | State::Degraded => None,
        })
    }

    /// What the log holds against `mcp_server`, dead or not: a capability block since its last completed start, which
    /// outlives a restart of Hangar, and the undeclared tools.
    pub fn capability(&self, mcp_server: &str) -> (bool, &[String]) {
        self.servers.get(mcp_server).map_or((false, &[]), |s| (s.blocked, s.undeclared.as_slice()))
    }

    /// Every server that the log says something against: dead, degraded, or capability-blocked since its last start.
    pub fn states(&self) -> impl Iterator<Item = ServerState> + '_ {
        self.servers.iter().map(|(id, server)| ServerState {
            mcp_server: id.to_string(),
            dead: match server.state {
                State::Dead(reason) => Some(reason),
                State::NotDead | State::Degraded => None,
            },
            degraded: server.state == State::Degraded,
            at: server.at,
            file: server.file,
            offset: server.offset,
            event: server.event,
            capability_blocked_since_start: server.blocked,
            undeclared_tools: server.undeclared.clone(),
        })
    }

    /// The death of `mcp_server`, if the log shows it dead.
    pub fn verdict(&self, mcp_server: &str) -> Option<Verdict<'_>> {
        let (id, server) = self.servers.get_key_value(mcp_server)?;
        match server.state {
            State::Dead(reason) => Some(server.verdict(id, reason)),
            State::NotDead | State::Degraded => None,
        }
    }

    /// Lines about servers beyond [`SERVERS_MAX`].
    pub const fn not_followed(&self) -> u64 {
        self.not_followed
    }

    /// Servers held in memory.
    pub fn followed(&self) -> usize {
        self.servers.len()
    }

    fn apply(&mut self, meaning: Meaning<'_>, record: &record::Record<'_>, seen: &Seen) -> [Option<Told>; 2] {
        match meaning {
            Meaning::StdoutEof => [seen.told(None, Change::StdoutEof), None],
            Meaning::HangarStopping => [seen.told(None, Change::HangarStopping), None],
            Meaning::HangarStarted => {
                self.restart();
                [seen.told(None, Change::HangarStarted), None]
            }
            Meaning::Started(id) => {
                self.forget(id);
                [seen.told(Some(id), Change::Ready), None]
            }
            Meaning::Removed(id) => {
                self.forget(id);
                [seen.told(Some(id), Change::Removed), None]
            }
            Meaning::IdleShutdown(id) | Meaning::StartFailedAfterStop(id) | Meaning::StoppedForReload(id) | Meaning::Replaced(id) => {
                self.stopped(id, seen)
            }
            Meaning::StopEvent(id) => self.stop_event(id, seen),
            Meaning::StateEvent(id) => self.state_event(id),
            Meaning::DegradedByStart(id) => self.degraded(id, seen, Expect::FailureOfDegradation),
            Meaning::DegradedByHealthCheck(id) => self.degraded(id, seen, Expect::Nothing),
            Meaning::Crashed(id) => self.dead_now(id, seen, Reason::Crashed, Expect::Nothing),
            Meaning::GivenUp(id) => self.dead_now(id, seen, Reason::GivenUp, Expect::StopOfGivingUp),
            Meaning::StartFailed { id, capability: true } => {
                let told = self.dead_now(id, seen, Reason::CapabilityBlocked, Expect::Nothing);
                self.update(id, |server| server.blocked = true);
                told
            }
            Meaning::StartFailed { id, capability: false } | Meaning::StartFailedText(id) => self.start_failed(id, seen),
            Meaning::Drift { id, refusing } => self.drift(id, refusing, record, seen),
            Meaning::Restored { id, state } => self.restored(id, state, seen),
        }
    }

    /// What may be somebody's text can take a death away but neither make nor prove one.
    fn apply_doubted(&mut self, meaning: Meaning<'_>, record: &record::Record<'_>, seen: &Seen) -> [Option<Told>; 2] {
        if let Meaning::StopEvent(id) = meaning {
            return self.stopped(id, seen);
        }
        if let Meaning::StateEvent(id) = meaning {
            if self.servers.get(id).is_some_and(|server| server.expect == Expect::StopOfGivingUp) {
                self.expect(id, Expect::Nothing);
            }
            return [None, None];
        }
        if meaning.kills() {
            self.doubt(meaning, record, seen);
            return [None, None];
        }
        self.apply(meaning, record, seen)
    }

    fn start_failed(&mut self, id: &str, seen: &Seen) -> [Option<Told>; 2] {
        match self.servers.get(id).map_or(Expect::Nothing, |server| server.expect) {
            Expect::FailureOfDegradation | Expect::FailureOfDrift => {
                self.expect(id, Expect::Nothing);
                [None, None]
            }
            Expect::Nothing | Expect::StopOfGivingUp => self.dead_now(id, seen, Reason::StartFailed, Expect::Nothing),
        }
    }

    fn drift(&mut self, id: &str, refusing: bool, record: &record::Record<'_>, seen: &Seen) -> [Option<Told>; 2] {
        let undeclared_tools = record.tools();
        let mode = record.enforcement_mode.as_deref().unwrap_or_default().chars().take(64).collect();
        let dead = if refusing {
            let [dead, _] = self.dead_now(id, seen, Reason::CapabilityBlocked, Expect::FailureOfDrift);
            self.update(id, |server| {
                server.blocked = true;
                server.undeclared.clone_from(&undeclared_tools);
            });
            dead
        } else {
            None
        };
        [seen.told(Some(id), Change::CapabilityDrift { mode, undeclared_tools }), dead]
    }

    fn restored(&mut self, id: &str, state: &str, seen: &Seen) -> [Option<Told>; 2] {
        // Python writes the enum as `McpServerState.DEAD`.
        let state = state.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
        match state.as_str() {
            "dead" => {
                let reason = self.servers.get(id).and_then(|server| server.before_restart).unwrap_or(Reason::Unknown);
                self.dead_now(id, seen, reason, Expect::Nothing)
            }
            "degraded" => self.degraded(id, seen, Expect::Nothing),
            _ => [None, None],
        }
    }

    fn stop_event(&mut self, id: &str, seen: &Seen) -> [Option<Told>; 2] {
        match self.servers.get(id) {
            Some(server) if server.expect == Expect::StopOfGivingUp => {
                self.expect(id, Expect::Nothing);
                [None, None]
            }
            _ => self.stopped(id, seen),
        }
    }

    fn stopped(&mut self, id: &str, seen: &Seen) -> [Option<Told>; 2] {
        self.settle(id, seen, State::NotDead, Expect::Nothing);
        if self.servers.get(id).is_some_and(|server| !server.blocked) {
            self.forget(id);
        }
        [seen.told(Some(id), Change::Stopped), None]
    }

    fn degraded(&mut self, id: &str, seen: &Seen, expect: Expect) -> [Option<Told>; 2] {
        self.follow(id, seen);
        self.settle(id, seen, State::Degraded, expect);
        [seen.told(Some(id), Change::Degraded), None]
    }

    fn dead_now(&mut self, id: &str, seen: &Seen, reason: Reason, expect: Expect) -> [Option<Told>; 2] {
        self.follow(id, seen);
        // A failed start of a blocked server says so once more; the drift's own line is the better evidence.
        let same_death = self.servers.get(id).is_some_and(|server| {
            server.state == State::Dead(Reason::CapabilityBlocked)
                && reason == Reason::CapabilityBlocked
                && server.expect == Expect::FailureOfDrift
        });
        if same_death && expect == Expect::Nothing {
            self.expect(id, Expect::Nothing);
            return [None, None];
        }
        self.settle(id, seen, State::Dead(reason), expect);
        [seen.told(Some(id), Change::Dead { reason }), None]
    }

    /// A published state change ends what a line of the same change could still expect, and proves a doubted death:
    /// the event of another server's death cannot come from that server's own text.
    fn state_event(&mut self, id: &str) -> [Option<Told>; 2] {
        self.expect(id, Expect::Nothing);
        let Some(doubted) = self.servers.get_mut(id).and_then(|server| server.doubted.take()) else {
            return [None, None];
        };
        self.awaiting -= 1;
        let told = self.dead_now(id, &doubted.seen, doubted.reason, Expect::Nothing);
        if doubted.reason == Reason::CapabilityBlocked {
            self.update(id, |server| {
                server.blocked = true;
                if let Some(undeclared) = doubted.undeclared {
                    server.undeclared = undeclared;
                }
            });
        }
        told
    }

    fn doubt(&mut self, meaning: Meaning<'_>, record: &record::Record<'_>, seen: &Seen) {
        let (id, reason) = match meaning {
            Meaning::Crashed(id) => (id, Reason::Crashed),
            Meaning::GivenUp(id) => (id, Reason::GivenUp),
            Meaning::StartFailed { id, capability: true } | Meaning::Drift { id, refusing: true } => (id, Reason::CapabilityBlocked),
            Meaning::StartFailed { id, .. } | Meaning::StartFailedText(id) => match self.servers.get(id).map(|s| s.expect) {
                // It belongs to a line before, or pretends to: no news.
                Some(Expect::FailureOfDegradation | Expect::FailureOfDrift) => return,
                _ => (id, Reason::StartFailed),
            },
            Meaning::Restored { id, .. } => (id, Reason::Unknown),
            // Nothing else kills.
            Meaning::Drift { .. }
            | Meaning::Started(_)
            | Meaning::DegradedByStart(_)
            | Meaning::DegradedByHealthCheck(_)
            | Meaning::StartFailedAfterStop(_)
            | Meaning::IdleShutdown(_)
            | Meaning::StopEvent(_)
            | Meaning::StateEvent(_)
            | Meaning::StoppedForReload(_)
            | Meaning::Removed(_)
            | Meaning::Replaced(_)
            | Meaning::StdoutEof
            | Meaning::HangarStarted
            | Meaning::HangarStopping => return,
        };
        let undeclared = matches!(meaning, Meaning::Drift { .. }).then(|| record.tools());
        self.follow(id, seen);
        let doubted = Doubted { reason, seen: *seen, undeclared };
        if let Some(server) = self.servers.get_mut(id) {
            // The first of several doubted lines about one death names it best: a drift, then its failed start.
            let keeps = server.doubted.as_ref().is_some_and(|d| d.reason.strictness() > doubted.reason.strictness());
            if keeps {
                return;
            }
            if server.doubted.replace(doubted).is_none() {
                self.awaiting += 1;
            }
        }
    }

    fn restart(&mut self) {
        self.awaiting = 0;
        self.servers.retain(|_, server| {
            server.before_restart = match server.state {
                State::Dead(reason) => Some(reason),
                State::NotDead | State::Degraded => None,
            };
            (server.state, server.expect, server.doubted) = (State::NotDead, Expect::Nothing, None);
            server.blocked || server.before_restart.is_some()
        });
    }

    fn follow(&mut self, id: &str, seen: &Seen) {
        if self.servers.contains_key(id) {
            return;
        }
        if self.servers.len() >= SERVERS_MAX {
            self.not_followed += 1;
            return;
        }
        let server = Server {
            state: State::NotDead,
            at: seen.at,
            file: seen.file,
            offset: seen.offset,
            event: seen.event,
            expect: Expect::Nothing,
            blocked: false,
            undeclared: Vec::new(),
            before_restart: None,
            doubted: None,
        };
        self.servers.insert(id.into(), server);
    }

    fn settle(&mut self, id: &str, seen: &Seen, state: State, expect: Expect) {
        self.expect(id, expect);
        if let Some(server) = self.servers.get_mut(id) {
            (server.state, server.at, server.file) = (state, seen.at, seen.file);
            (server.offset, server.event) = (seen.offset, seen.event);
            if server.doubted.take().is_some() {
                self.awaiting -= 1;
            }
        }
    }

    fn expect(&mut self, id: &str, expect: Expect) {
        let Some(server) = self.servers.get_mut(id) else { return };
        self.awaiting -= usize::from(server.expect != Expect::Nothing);
        self.awaiting += usize::from(expect != Expect::Nothing);
        server.expect = expect;
    }

    fn update(&mut self, id: &str, change: impl FnOnce(&mut Server)) {
        if let Some(server) = self.servers.get_mut(id) {
            change(server);
        }
    }

    fn forget(&mut self, id: &str) {
        if let Some(server) = self.servers.remove(id) {
            self.awaiting -= usize::from(server.expect != Expect::Nothing) + usize::from(server.doubted.is_some());
        }
    }
}

impl Server {
    fn verdict<'a>(&'a self, id: &'a str, reason: Reason) -> Verdict<'a> {
        Verdict {
            mcp_server: id,
            reason,
            at: self.at,
            file: self.file,
            offset: self.offset,
            event: self.event,
            capability_blocked_since_start: self.blocked,
            undeclared_tools: &self.undeclared,
        }
    }
}

impl Seen {
    #[allow(clippy::unnecessary_wraps, reason = "it fills one of the two places of a telling")]
    fn told(&self, mcp_server: Option<&str>, what: Change) -> Option<Told> {
        let mcp_server = mcp_server.map(str::to_owned);
        Some(Told { mcp_server, at: self.at, file: self.file, offset: self.offset, event: self.event, what })
    }
}
