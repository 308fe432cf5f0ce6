//! One record of Hangar's log, as JSON or console wrote it, and what it means.

use std::borrow::Cow;

use jiff::Timestamp;
use memchr::memmem::Finder;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Undeclared tool names kept per server.
pub const TOOLS_MAX: usize = 64;
/// Characters kept of one undeclared tool name; Hangar itself cuts at 2048.
pub const TOOL_CHARS_MAX: usize = 128;

const MODEL: &str = "mcp_hangar.domain.model.mcp_server";
const EVENTS: &str = "mcp_hangar.application.event_handlers.logging_handler";
const RELOAD: &str = "mcp_hangar.application.commands.reload_handler";
const CRUD: &str = "mcp_hangar.application.commands.crud_handlers";
const STDIO: &str = "mcp_hangar.stdio_client";
const BOOTSTRAP: &str = "mcp_hangar.server.bootstrap";
const LIFECYCLE: &str = "mcp_hangar.server.lifecycle";

/// The fields of a record that something here looks at. Text stays borrowed unless it holds escapes.
#[derive(Debug, Clone, Deserialize)]
pub struct Record<'a> {
    #[serde(borrow)]
    pub event: Cow<'a, str>,
    #[serde(borrow)]
    pub logger: Cow<'a, str>,
    #[serde(borrow)]
    pub level: Cow<'a, str>,
    #[serde(borrow)]
    pub timestamp: Cow<'a, str>,
    #[serde(borrow)]
    pub service: Cow<'a, str>,
    #[serde(borrow, default)]
    pub mcp_server_id: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub error_type: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub enforcement_mode: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub event_type: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub state: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) undeclared_tools: Option<&'a RawValue>,
    /// The console writes the list as Python does; it is read only when a drift is told.
    #[serde(skip)]
    pub(super) undeclared_repr: Option<&'a str>,
}

/// Borrowed text inside an `Option`, which serde would copy if it were a bare `Cow`.
#[derive(Debug, Clone, Deserialize)]
pub struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// Parses one JSON line. `None` for everything that is not a whole record of Hangar's.
#[must_use]
pub fn from_json(line: &[u8]) -> Option<Record<'_>> {
    let record: Record<'_> = serde_json::from_slice(line).ok()?;
    (record.service == "mcp-hangar").then_some(record)
}

impl Record<'_> {
    /// When Hangar says that it happened.
    pub fn at(&self) -> Option<Timestamp> {
        self.timestamp.parse().ok()
    }

    /// The undeclared tools of a drift, bounded by [`TOOLS_MAX`] and [`TOOL_CHARS_MAX`].
    pub fn tools(&self) -> Vec<String> {
        let cut = |name: String| match name.char_indices().nth(TOOL_CHARS_MAX) {
            Some((end, _)) => name.get(..end).map(str::to_owned).unwrap_or_default(),
            None => name,
        };
        let names = match (self.undeclared_tools, self.undeclared_repr) {
            (Some(json), _) => serde_json::from_str::<Vec<String>>(json.get()).unwrap_or_default(),
            (None, Some(repr)) => super::console::python_strings(repr),
            (None, None) => Vec::new(),
        };
        names.into_iter().take(TOOLS_MAX).map(cut).collect()
    }
}

/// What a record says about a server, or about Hangar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning<'r> {
    /// A start completed.
    Started(&'r str),
    Crashed(&'r str),
    DegradedByStart(&'r str),
    DegradedByHealthCheck(&'r str),
    /// The failure has its class in a field (2.21.0 and later).
    StartFailed {
        id: &'r str,
        capability: bool,
    },
    /// The failure has the upstream's own text in it (2.20.0 and before).
    StartFailedText(&'r str),
    StartFailedAfterStop(&'r str),
    GivenUp(&'r str),
    /// `refusing`: the mode refuses the server (`block`, `quarantine`), not only reports (`alert`).
    Drift {
        id: &'r str,
        refusing: bool,
    },
    IdleShutdown(&'r str),
    Restored {
        id: &'r str,
        state: &'r str,
    },
    /// The event of a stop; says not why.
    StopEvent(&'r str),
    StateEvent(&'r str),
    StoppedForReload(&'r str),
    Removed(&'r str),
    Replaced(&'r str),
    StdoutEof,
    HangarStarted,
    HangarStopping,
}

/// Reads a record's meaning from `event`, `logger` and `level` together.
pub(super) fn meaning<'r>(record: &'r Record<'_>) -> Option<Meaning<'r>> {
    let (event, level) = (&*record.event, &*record.level);
    match &*record.logger {
        MODEL => model(record, event, level),
        EVENTS => match (level, event, record.event_type.as_deref()?) {
            ("info", "domain_event", "McpServerStopped") => id_field(record).map(Meaning::StopEvent),
            ("info", "domain_event", "McpServerStateChanged") => id_field(record).map(Meaning::StateEvent),
            _ => None,
        },
        RELOAD => match (level, event) {
            ("info", "mcp_server_stopped_for_reload") => id_field(record).map(Meaning::StoppedForReload),
            ("info", "mcp_server_removed") => id_field(record).map(Meaning::Removed),
            _ => None,
        },
        CRUD => match (level, event) {
            ("info", "mcp_server_deleted") => id_field(record).map(Meaning::Removed),
            ("info", "mcp_server_replaced") => id_field(record).map(Meaning::Replaced),
            _ => None,
        },
        STDIO => (level == "warning" && event == "stdio_client_eof_on_stdout").then_some(Meaning::StdoutEof),
        BOOTSTRAP => (level == "info" && event == "bootstrap_start").then_some(Meaning::HangarStarted),
        LIFECYCLE => (level == "info" && event == "shutdown_signal_received").then_some(Meaning::HangarStopping),
        _ => None,
    }
}

fn model<'r>(record: &'r Record<'_>, event: &'r str, level: &str) -> Option<Meaning<'r>> {
    match level {
        "warning" => match event {
            "mcp_server_given_up" => id_field(record).map(Meaning::GivenUp),
            "capability_drift_detected" => {
                let refusing = match record.enforcement_mode.as_deref()? {
                    "alert" => false,
                    // A mode that this was not written for is taken for the strict kind.
                    _ => true,
                };
                id_field(record).map(|id| Meaning::Drift { id, refusing })
            }
            _ => {
                if let Some(id) = event.strip_prefix("mcp_server_dead: ") {
                    return is_id(id).then_some(Meaning::Crashed(id));
                }
                if let Some(id) = event.strip_prefix("mcp_server_degraded_by_health_check: ") {
                    return is_id(id).then_some(Meaning::DegradedByHealthCheck(id));
                }
                let (id, failures) = split_text(event, "mcp_server_degraded: ", ", failures=")?;
                is_number(failures).then_some(Meaning::DegradedByStart(id))
            }
        },
        "error" => {
            if event == "mcp_server_start_failed" {
                let capability = record.error_type.as_deref()? == "CapabilityBlockedError";
                return id_field(record).map(|id| Meaning::StartFailed { id, capability });
            }
            split_text(event, "mcp_server_start_failed: ", ", error=").map(|(id, _)| Meaning::StartFailedText(id))
        }
        "info" => model_info(record, event),
        _ => None,
    }
}

fn model_info<'r>(record: &'r Record<'_>, event: &'r str) -> Option<Meaning<'r>> {
    match event {
        "mcp_server_retired" => id_field(record).map(Meaning::Replaced),
        "lifecycle_state_restored" => {
            let (id, state) = (id_field(record)?, record.state.as_deref()?);
            Some(Meaning::Restored { id, state })
        }
        _ => {
            if let Some((id, rest)) = split_text(event, "mcp_server_started: ", ", mode=") {
                let (mode, tools) = rest.split_once(", tools=")?;
                return (is_word(mode) && is_number(tools)).then_some(Meaning::Started(id));
            }
            if let Some((id, state)) = split_text(event, "mcp_server_start_failed_after_stop: ", ", state=") {
                return is_word(state).then_some(Meaning::StartFailedAfterStop(id));
            }
            let (id, idle) = split_text(event, "mcp_server_idle_shutdown: ", ", idle=")?;
            let seconds = idle.strip_suffix('s')?;
            seconds.bytes().all(|b| b.is_ascii_digit() || b == b'.').then_some(Meaning::IdleShutdown(id))
        }
    }
}

impl Meaning<'_> {
    /// The event's stable name: what `evidence.event` says, without ids or text.
    pub(super) const fn event(&self) -> &'static str {
        match self {
            Self::Started(_) => "mcp_server_started",
            Self::Crashed(_) => "mcp_server_dead",
            Self::DegradedByStart(_) => "mcp_server_degraded",
            Self::DegradedByHealthCheck(_) => "mcp_server_degraded_by_health_check",
            Self::StartFailed { .. } | Self::StartFailedText(_) => "mcp_server_start_failed",
            Self::StartFailedAfterStop(_) => "mcp_server_start_failed_after_stop",
            Self::GivenUp(_) => "mcp_server_given_up",
            Self::Drift { .. } => "capability_drift_detected",
            Self::IdleShutdown(_) => "mcp_server_idle_shutdown",
            Self::Restored { .. } => "lifecycle_state_restored",
            Self::StopEvent(_) => "McpServerStopped",
            Self::StateEvent(_) => "McpServerStateChanged",
            Self::StoppedForReload(_) => "mcp_server_stopped_for_reload",
            Self::Removed(_) => "mcp_server_removed",
            Self::Replaced(_) => "mcp_server_replaced",
            Self::StdoutEof => "stdio_client_eof_on_stdout",
            Self::HangarStarted => "bootstrap_start",
            Self::HangarStopping => "shutdown_signal_received",
        }
    }

    /// Whether it may make a server dead, or its death stricter. Only such a record is worth forging.
    pub(super) const fn kills(&self) -> bool {
        match self {
            Self::Crashed(_)
            | Self::StartFailed { .. }
            | Self::StartFailedText(_)
            | Self::GivenUp(_)
            | Self::Drift { .. }
            | Self::Restored { .. } => true,
            Self::Started(_)
            | Self::DegradedByStart(_)
            | Self::DegradedByHealthCheck(_)
            | Self::StartFailedAfterStop(_)
            | Self::IdleShutdown(_)
            | Self::StopEvent(_)
            | Self::StateEvent(_)
            | Self::StoppedForReload(_)
            | Self::Removed(_)
            | Self::Replaced(_)
            | Self::StdoutEof
            | Self::HangarStarted
            | Self::HangarStopping => false,
        }
    }
}

/// Reads an event's name back as one of those that [`Meaning::event`] gives.
pub(super) fn event_name<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<&'static str, D::Error> {
    let word = Cow::<'de, str>::deserialize(deserializer)?;
    EVENT_NAMES.iter().find(|name| **name == word).copied().ok_or_else(|| serde::de::Error::custom("unknown event"))
}

const EVENT_NAMES: [&str; 14] = [
    "mcp_server_started",
    "mcp_server_dead",
    "mcp_server_degraded",
    "mcp_server_degraded_by_health_check",
    "mcp_server_start_failed",
    "mcp_server_start_failed_after_stop",
    "mcp_server_given_up",
    "capability_drift_detected",
    "mcp_server_idle_shutdown",
    "lifecycle_state_restored",
    "McpServerStopped",
    "mcp_server_stopped_for_reload",
    "mcp_server_removed",
    "mcp_server_replaced",
];

/// Whether `id` is one that Hangar can have: `^[a-zA-Z][a-zA-Z0-9_-]{0,63}$` as Python reads it, whose `$` lets one
/// newline pass. `POST /api/mcp_servers/` takes such an id, and it is another server than the one without.
#[must_use]
pub fn is_id(id: &str) -> bool {
    let id = id.strip_suffix('\n').unwrap_or(id);
    id.len() <= 64
        && id.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn id_field<'r>(record: &'r Record<'_>) -> Option<&'r str> {
    record.mcp_server_id.as_deref().filter(|id| is_id(id))
}

/// `<prefix><id><middle><rest>` → `(id, rest)`.
fn split_text<'r>(event: &'r str, prefix: &str, middle: &str) -> Option<(&'r str, &'r str)> {
    let (id, rest) = event.strip_prefix(prefix)?.split_once(middle)?;
    is_id(id).then_some((id, rest))
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Finds, without parsing, the few lines in a hundred that can mean something.
#[derive(Debug)]
pub(super) struct Prefilter {
    /// For lines whose logger does not stand where Hangar's JSON has it.
    anywhere: [Finder<'static>; 6],
    stopped: Finder<'static>,
    state_event: Finder<'static>,
    eof: Finder<'static>,
    bootstrap: Finder<'static>,
    shutdown: Finder<'static>,
}

/// What follows the logger in Hangar's JSON, but for the time.
const BEFORE_TIME: &[u8] = b"\", \"timestamp\": \"";
const AFTER_TIME: &[u8] = b"\", \"service\": \"mcp-hangar\"}";
/// Bytes of `2026-11-30T15:20:53.435902Z`.
const TIME: usize = 27;

impl Prefilter {
    pub(super) fn new() -> Self {
        let [stopped, state_event, eof, bootstrap, shutdown] =
            ["McpServerStopped", "McpServerStateChanged", "eof_on_stdout", "bootstrap_start", "shutdown_signal_received"].map(Finder::new);
        Self {
            anywhere: [
                "domain.model.mcp_server",
                "McpServerStopped",
                "application.commands.",
                "eof_on_stdout",
                "bootstrap_start",
                "shutdown_signal_received",
            ]
            .map(Finder::new),
            stopped,
            state_event,
            eof,
            bootstrap,
            shutdown,
        }
    }

    /// False only for lines that mean nothing. `state_events`: whether those of state changes are wanted now; they are
    /// a third of a busy log and matter only right after a death.
    pub(super) fn may_tell(&self, line: &[u8], state_events: bool) -> bool {
        let Some(logger) = logger_of(line) else { return self.anywhere(line, state_events) };
        self.logger_may_tell(logger, line, state_events)
    }

    /// As [`Self::may_tell`], for a line of this logger.
    pub(super) fn logger_may_tell(&self, logger: &[u8], line: &[u8], state_events: bool) -> bool {
        let is = |name: &str| logger == name.as_bytes();
        if is(EVENTS) {
            self.stopped.find(line).is_some() || (state_events && self.state_event.find(line).is_some())
        } else if is(STDIO) {
            self.eof.find(line).is_some()
        } else if is(BOOTSTRAP) {
            self.bootstrap.find(line).is_some()
        } else if is(LIFECYCLE) {
            self.shutdown.find(line).is_some()
        } else {
            is(MODEL) || is(RELOAD) || is(CRUD)
        }
    }

    /// As [`Self::may_tell`], for lines of any shape.
    pub(super) fn anywhere(&self, line: &[u8], state_events: bool) -> bool {
        self.anywhere.iter().any(|needle| needle.find(line).is_some()) || (state_events && self.state_event.find(line).is_some())
    }
}

/// The logger, if it stands right before the time and the service, at the line's end.
fn logger_of(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_suffix(AFTER_TIME)?;
    let rest = rest.get(..rest.len().checked_sub(TIME)?)?.strip_suffix(BEFORE_TIME)?;
    let quote = memchr::memrchr(b'"', rest)?;
    rest.get(..quote)?.ends_with(b"\"logger\": ").then(|| rest.get(quote + 1..)).flatten()
}
