//! Why a server is dead, and where we know it from.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::words::words;

words! {
    /// Why Hangar calls a server dead (runbook; REST `dead.reason` since Hangar 2.21.0).
    pub enum Reason as "reason" {
        /// The recovery saga ran out of retries on a degraded server.
        GivenUp = "given_up",
        /// A health check or a call found its connection dead.
        Crashed = "crashed",
        /// A start failed, below `max_consecutive_failures`.
        StartFailed = "start_failed",
        /// It exposed tools that it did not declare, under enforcement `block` or `quarantine`.
        CapabilityBlocked = "capability_blocked",
        /// No source tells, or none that can be trusted. May be a capability block.
        Unknown = "unknown",
    }
}

impl Reason {
    /// How strictly this reason forbids acting. Where sources differ the stricter wins, since stdio servers run as
    /// Hangar's user and can write its log.
    #[must_use]
    pub const fn strictness(self) -> u8 {
        match self {
            Self::CapabilityBlocked => 4,
            Self::Unknown => 3,
            Self::GivenUp => 2,
            Self::StartFailed => 1,
            Self::Crashed => 0,
        }
    }
}

words! {
    /// Which source told something.
    pub enum Source as "source" {
        Rest = "rest",
        Metrics = "metrics",
        Prometheus = "prometheus",
        Log = "log",
        Events = "events",
    }
}

/// Where a reason comes from, so that a person can look for themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    pub source: Source,
    /// When the source says that it happened.
    pub at: Timestamp,
    /// For the log: `device:inode` of the file; else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// For the log: byte offset of the line in that file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// For the log: SHA-256 of the line without its newline, in hex, where the line could be read again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_sha256: Option<String>,
}

impl Provenance {
    /// Of a source that is no file.
    #[must_use]
    pub const fn of(source: Source, at: Timestamp) -> Self {
        Self { source, at, file: String::new(), offset: None, line_sha256: None }
    }
}
