//! What is known of the world at one instant. Built by `observe`, read by `plan`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::reason::{Provenance, Reason};
use super::replicas::Others;
use super::rule::Pattern;
use super::words::words;

words! {
    /// Hangar's server states. The gauge carries them as 0 to 4 in this order.
    pub enum State as "state" {
        Cold = "cold",
        Initializing = "initializing",
        Ready = "ready",
        Degraded = "degraded",
        Dead = "dead",
    }
}

impl State {
    /// The state of a sample of `mcp_hangar_mcp_server_state`; `None` for anything but exactly 0 to 4 (NaN too).
    #[must_use]
    pub fn from_gauge(value: f64) -> Option<Self> {
        Self::ALL.iter().copied().find(|s| (f64::from(*s as u8) - value).abs() < f64::EPSILON)
    }
}

words! {
    /// `reason` of `mcp_hangar_mcp_server_stops_total` and of `McpServerStopped`.
    pub enum StopReason as "stop reason" {
        Idle = "idle",
        Shutdown = "shutdown",
        UserRequest = "user_request",
        Manual = "manual",
        DetectionBlock = "detection_enforcement:block",
        MaxRetriesExceeded = "max_retries_exceeded",
        /// `failback`, `compensation` and whatever a newer Hangar adds: treated as deliberate.
        Other = "other",
    }
}

/// Stops counted by Hangar's process, by reason.
pub type Stops = BTreeMap<StopReason, u64>;

/// The `dead` block of a REST answer (Hangar 2.21.0 and later).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadBlock {
    pub reason: Reason,
    pub since: Option<Timestamp>,
    /// `None` is either "no backoff" or "no call revives it".
    pub retry_allowed_at: Option<Timestamp>,
    /// A call revives it; else only a deliberate start does.
    pub revived_by_call: bool,
}

/// `GET /api/mcp_servers/{id}` or its entry in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestReading {
    /// When it was asked for: what Hangar said may be as old as that.
    pub at: Timestamp,
    /// How long the answer took.
    pub took: SignedDuration,
    pub state: State,
    /// Process liveness now; says nothing for `remote` servers.
    pub alive: bool,
    /// `subprocess`, `docker`, `remote`, ... as Hangar writes it.
    pub mode: String,
    pub dead: Option<DeadBlock>,
    /// Failures in a row; `None` where only the list was read.
    pub consecutive_failures: Option<u32>,
    /// When the running process was started (`meta.started_at`), if Hangar says.
    pub started_at: Option<Timestamp>,
    /// No start before this: `dead.retry_allowed_at`, or where there is no `dead` block (2.20.0) what the health block
    /// implies (min(60, 2^failures) s +10 % after the last failure while `can_retry` is false).
    pub backoff_until: Option<Timestamp>,
}

/// What Hangar's log tells of a server at its end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogReading {
    /// Dead, and why, if the log shows it dead at its end.
    pub dead: Option<(Reason, Provenance)>,
    /// A capability block since the last completed start.
    pub capability_blocked: bool,
    pub undeclared_tools: Vec<String>,
}

/// Membership of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupReading {
    pub at: Timestamp,
    pub group: String,
    pub in_rotation: bool,
    /// Any other member is degraded: a rebalance would evict it.
    pub degraded_member: bool,
    /// Members in rotation.
    pub in_rotation_count: u32,
}

/// One server that is not plainly healthy, or that an open incident or a hold order names.
#[allow(clippy::struct_excessive_bools, reason = "independent facts of a server")]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerReading {
    /// The state gauge of the last good metrics read; `None` = no series.
    pub gauge: Option<State>,
    /// Since when the gauge shows this value, or the last start attempt seen since, whichever is later.
    pub gauge_since: Option<Timestamp>,
    pub last_healthy: Option<Timestamp>,
    pub stops: Stops,
    /// `cold_start_in_progress` is 1.
    pub starting: bool,
    /// The last REST answer for this server, if one was read from this Hangar process.
    pub rest: Option<RestReading>,
    /// Since when REST says `initializing` without a break. The gauge does not show a start: it is absent, or stays where it was.
    pub initializing_since: Option<Timestamp>,
    /// Hangar answered that it does not know this server.
    pub rest_not_found: bool,
    /// The gauge, a counter or the process changed since the REST answer: it must be read again.
    pub rest_outdated: bool,
    /// The last REST read of this server failed then; it is not repeated at once.
    pub rest_failed_at: Option<Timestamp>,
    /// The death that Hangar's events told last, if none of them undid it.
    pub events: Option<(Reason, Provenance)>,
    /// When `stops{max_retries_exceeded}` was seen to rise; `None` if it stood there from our first look on.
    pub given_up_at: Option<Timestamp>,
    /// Since when the gauge shows anything but cold.
    pub not_cold_since: Option<Timestamp>,
    pub log: Option<LogReading>,
    pub group: Option<GroupReading>,
    /// A silence that speaks of this server is active.
    pub silenced: Option<Silenced>,
    /// The wall clock stepped then: how long ago a time from before it was cannot be told.
    pub clock_stepped_at: Option<Timestamp>,
    /// Its gauge was cold when the Hangar process before this one was last read.
    pub cold_before_restart: bool,
}

/// An active Alertmanager silence on an alert of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Silenced {
    /// When it ends.
    pub until: Timestamp,
    /// Its id, its author and comment, made fit for a log line.
    pub what: String,
}

words! {
    /// What may be done while Alertmanager cannot be asked for silences.
    pub enum Unasked as "word" {
        /// The rungs that a session may do for itself: 0 to 2.
        Narrow = "narrow",
        /// Everything, as without an Alertmanager.
        Act = "act",
        /// Only what looks.
        Hold = "hold",
    }
}

words! {
    /// Whether Hangar takes our credentials.
    pub enum Auth as "auth" {
        Ok = "ok",
        Refused = "refused",
        Unknown = "unknown",
    }
}

/// The Hangar process itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HangarReading {
    /// When the last good read of its metrics was asked for; `None` before the first.
    pub read_at: Option<Timestamp>,
    /// How long that read took.
    pub took: SignedDuration,
    /// The last read is not older than the staleness bound and nothing failed since.
    pub fresh: bool,
    /// `mcp_hangar_process_start_time_seconds`.
    pub process_start: Option<Timestamp>,
    /// First failed read after the last good one of an *earlier* process, if there was one.
    pub lost_at: Option<Timestamp>,
    /// While set and ahead, no authenticated call is made.
    pub auth_refused_until: Option<Timestamp>,
    pub auth_refused: bool,
    /// Hangar answered 403 to a read.
    pub read_forbidden: bool,
    /// Set while Alertmanager is configured and its silences are not known.
    pub silences_unknown: Option<Unasked>,
    /// Major, minor, patch.
    pub version: Option<(u32, u32, u32)>,
}

/// A maintenance window that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maintenance {
    pub name: String,
    pub servers: Pattern,
    pub until: Timestamp,
}

/// Everything `plan` sees of the present.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Snapshot {
    /// Servers that Hangar's metrics or REST list name.
    pub known: usize,
    pub hangar: HangarReading,
    /// Suspects and the subjects of open incidents and hold orders only.
    pub servers: BTreeMap<String, ServerReading>,
    /// Attempts whose executor is at work in this process. An open attempt that is not here is an orphan of a crash.
    pub running: BTreeSet<String>,
    /// Maintenance windows that are open now.
    pub maintenance: Vec<Maintenance>,
    /// The medics of the other replicas.
    pub others: Others,
    /// The attempt log refused its last write.
    pub log_unwritable: bool,
    /// SIGTERM was heard: no new action.
    pub draining: bool,
}
