//! The state of every server as the log tells it: a state machine fed line by line. No IO and no clock.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::console::{Console, Trust};
use super::frame::Form;
use super::record::{self, Meaning, Prefilter};
use super::tail::FileId;
use crate::policy::Reason;

/// Servers followed at once. More ids than this are counted and not followed: the bound holds whatever is in the file.
pub const SERVERS_MAX: usize = 100_000;

/// What a line changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    Dead {
        reason: Reason,
    },
    /// Hangar is at work on it; not dead.
    Degraded,
    Ready,
    /// Cold by a stop, an idle reap, a reload or a failed start that a stop overtook.
    Stopped,
    /// Taken out of Hangar.
    Removed,
    /// Tools that were not declared. Under mode `block` or `quarantine` a [`Change::Dead`] follows; `alert` only tells.
    CapabilityDrift {
        mode: String,
        undeclared_tools: Vec<String>,
    },
    /// Some stdio server's process closed its stdout: the earliest sign of a crash. Hangar does not say whose.
    StdoutEof,
    /// A new Hangar process: every server is cold.
    HangarStarted,
    HangarStopping,
    /// Everything told so far was an upstream's words, not Hangar's: the source turned out to be a console log.
    Retracted,
}

impl Change {
    /// The change's word and, for a death, its reason's; for tables.
    pub const fn words(&self) -> (&'static str, &'static str) {
        match self {
            Self::Dead { reason } => ("dead", reason.as_str()),
            Self::Degraded => ("degraded", ""),
            Self::Ready => ("ready", ""),
            Self::Stopped => ("stopped", ""),
            Self::Removed => ("removed", ""),
            Self::CapabilityDrift { .. } => ("capability_drift", ""),
            Self::StdoutEof => ("stdout_eof", ""),
            Self::HangarStarted => ("hangar_started", ""),
            Self::HangarStopping => ("hangar_stopping", ""),
            Self::Retracted => ("retracted", ""),
        }
    }
}

/// One thing that the log told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Told {
    /// `None` where the line names no server.
    pub mcp_server: Option<String>,
    pub at: Timestamp,
    /// Zero where the source is no file that is followed.
    #[serde(skip)]
    pub file: FileId,
    /// Byte offset of the line in its file.
    pub offset: u64,
    /// Hangar's event, without ids and text.
    pub event: &'static str,
    #[serde(flatten)]
    pub what: Change,
}

/// What the log holds against one server; owned, for other threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerState {
    pub mcp_server: String,
    pub dead: Option<Reason>,
    /// Hangar retries it.
    pub degraded: bool,
    /// When the state began, and the line that says so.
    pub at: Timestamp,
    pub file: FileId,
    pub offset: u64,
    pub event: &'static str,
    /// See [`Verdict::capability_blocked_since_start`].
    pub capability_blocked_since_start: bool,
    pub undeclared_tools: Vec<String>,
}

/// A server that the log shows dead at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict<'a> {
    pub mcp_server: &'a str,
    pub reason: Reason,
    pub at: Timestamp,
    pub file: FileId,
    pub offset: u64,
    pub event: &'static str,
    /// A capability block was seen since the last completed start; for acting it is stricter than `reason`.
    pub capability_blocked_since_start: bool,
    /// The undeclared tools of the last drift since then, bounded.
    pub undeclared_tools: &'a [String],
}

impl Serialize for Verdict<'_> {
    /// The line that `classify` prints: `{"mcp_server","reason","at","evidence":{"offset","event"}}`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Evidence<'a> {
            offset: u64,
            event: &'a str,
            #[serde(skip_serializing_if = "<[String]>::is_empty")]
            undeclared_tools: &'a [String],
        }
        #[derive(Serialize)]
        struct Line<'a> {
            mcp_server: &'a str,
            reason: Reason,
            at: Timestamp,
            evidence: Evidence<'a>,
        }
        let evidence = Evidence { offset: self.offset, event: self.event, undeclared_tools: self.undeclared_tools };
        Line { mcp_server: self.mcp_server, reason: self.reason, at: self.at, evidence }.serialize(serializer)
    }
}

/// What one line told: nothing, mostly; a refused drift tells two things.
pub type Tellings = std::iter::Flatten<std::array::IntoIter<Option<Told>, 2>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    NotDead,
    Degraded,
    Dead(Reason),
}

/// The next line that belongs to the one just seen, so that it is not taken for news of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Nothing,
    /// `mcp_server_degraded: X` is followed by `mcp_server_start_failed` of the same start.
    FailureOfDegradation,
    /// In 2.20.0 nothing in the failure's own line tells a capability block from another failure.
    FailureOfDrift,
    /// Giving up is also published as a stop, since 2.21.0.
    StopOfGivingUp,
}

#[derive(Debug)]
struct Server {
    state: State,
    at: Timestamp,
    file: FileId,
    offset: u64,
    event: &'static str,
    expect: Expect,
    blocked: bool,
    undeclared: Vec<String>,
    /// The reason it had when Hangar went down, in case Hangar brings the state back from its event store.
    before_restart: Option<Reason>,
    /// A death that may be forged: held until Hangar publishes a state change of this very server.
    doubted: Option<Doubted>,
}

#[derive(Debug)]
struct Doubted {
    reason: Reason,
    seen: Seen,
    undeclared: Option<Vec<String>>,
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

#[derive(Debug, Clone, Copy)]
struct Seen {
    at: Timestamp,
    file: FileId,
    offset: u64,
    event: &'static str,
}

impl Classifier {
    #[must_use]
    pub fn new() -> Self {
        Self::starting_in(FileId::default())
    }

    pub(super) fn starting_in(file: FileId) -> Self {
        Self { servers: HashMap::new(), prefilter: Prefilter::new(), console: Console::new(), awaiting: 0, not_followed: 0, file }
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
        let nothing = || [None, None].into_iter().flatten();
        let (record, trust) = match form {
            Form::Json => {
                if line.first() != Some(&b'{') || !self.prefilter.may_tell(line, self.awaiting > 0) {
                    return nothing();
                }
                (record::from_json(line), Trust::Believed)
            }
            Form::Console => match self.console.line(line, offset) {
                Some(read) => (Some(read.record), read.trust),
                None => return nothing(),
            },
        };
        let Some((record, meaning)) = record.as_ref().and_then(|r| Some((r, record::meaning(r)?))) else {
            return nothing();
        };
        let Some(at) = record.at() else { return nothing() };
        let offset = if form == Form::Console { self.console.record_offset() } else { offset };
        let seen = Seen { at, file: self.file, offset, event: meaning.event() };
        let told = if trust == Trust::Doubted && meaning.kills() {
            self.doubt(meaning, record, &seen);
            [None, None]
        } else {
            self.apply(meaning, record, &seen)
        };
        told.into_iter().flatten()
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
                // It belongs to a believed line: no news, forged or not.
                Some(Expect::FailureOfDegradation | Expect::FailureOfDrift) => return self.expect(id, Expect::Nothing),
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

impl Told {
    pub(super) const fn retraction(file: FileId, offset: u64) -> Self {
        Self { mcp_server: None, at: Timestamp::UNIX_EPOCH, file, offset, event: "", what: Change::Retracted }
    }
}

impl Seen {
    #[allow(clippy::unnecessary_wraps, reason = "it fills one of the two places of a telling")]
    fn told(&self, mcp_server: Option<&str>, what: Change) -> Option<Told> {
        let mcp_server = mcp_server.map(str::to_owned);
        Some(Told { mcp_server, at: self.at, file: self.file, offset: self.offset, event: self.event, what })
    }
}
