//! What the log tells: transitions as they come, and the state at its end.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::tail::FileId;
use crate::policy::Reason;

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

impl Told {
    pub(super) const fn retraction(file: FileId, offset: u64) -> Self {
        Self { mcp_server: None, at: Timestamp::UNIX_EPOCH, file, offset, event: "", what: Change::Retracted }
    }
}
