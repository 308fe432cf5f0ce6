//! The records of the attempt log. All that must outlive a crash is one of these.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::approval::ApprovalEnd;
use super::fleet::Saved;
use super::ladder::Rung;
use super::reason::{Provenance, Reason};
use super::report::Report;
use super::request::RequestEnd;
use super::snapshot::Stops;
use super::symptom::Symptom;
use super::words::words;

words! {
    /// The target's answer to what was sent.
    pub enum Receipt as "receipt" {
        Accepted = "accepted",
        Refused = "refused",
        /// A time-out or a lost connection: it may have acted.
        Unknown = "unknown",
    }
}

words! {
    /// What came of an attempt, after verification (playbook, *Attempt log shape*).
    pub enum Outcome as "outcome" {
        Recovered = "recovered",
        Failed = "failed",
        Insufficient = "insufficient",
        Denied = "denied",
        Unresolved = "unresolved",
        Timeout = "timeout",
        Error = "error",
        Cancelled = "cancelled",
        NotApplicable = "not_applicable",
    }
}

impl Outcome {
    /// Whether it counts as an insufficient narrower recovery (playbook, *Outcomes that count towards escalation*).
    #[must_use]
    pub const fn counts(self) -> bool {
        match self {
            Self::Failed | Self::Insufficient | Self::Denied | Self::Unresolved | Self::Timeout | Self::Error => true,
            Self::Recovered | Self::Cancelled | Self::NotApplicable => false,
        }
    }
}

words! {
    /// How an incident was closed.
    pub enum Closed as "how" {
        /// One of our attempts was proved to have brought the server back.
        Recovered = "recovered",
        /// It came back without us.
        HealedByItself = "healed_by_itself",
        /// A person stopped or removed the server, or it is no longer ours to heal.
        Cancelled = "cancelled",
    }
}

words! {
    /// Why a server must not be started until it is seen ready without us or a person resumes it.
    pub enum HoldCause as "hold cause" {
        UserRequest = "user_request",
        Manual = "manual",
        Shutdown = "shutdown",
        DetectionBlock = "detection_enforcement:block",
        Other = "other",
        /// Hangar went down right after our start of this server. Only a person ends this one.
        TookHangarDown = "took_hangar_down",
        /// A person asked us to hold (API).
        Person = "person",
    }
}

/// What a record says. Field order and names are the canonical form that is hashed: only ever append.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Body {
    /// An incident begins.
    IncidentOpened {
        incident_id: String,
        mcp_server: String,
        symptom: Symptom,
        reason: Reason,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provenance: Option<Provenance>,
        /// When the server died, as far as any source tells; else when we saw it.
        since: Timestamp,
        /// The incident that this one goes on with, when the server died again within the flap window.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reopens: Option<String>,
        /// Only rungs of this rank or higher: the narrower ones were insufficient before.
        #[serde(default)]
        floor_rank: u8,
        /// Slow retries already made in the incident that this one goes on with.
        #[serde(default)]
        slow_retries: u32,
        /// Hangar's stop counters at this moment, and the process that they belong to.
        stops: Stops,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process_start: Option<Timestamp>,
        /// Members of the group are told apart for `lease_recovery`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<String>,
    },
    /// A reason or a symptom became known or changed.
    IncidentUpdated {
        incident_id: String,
        symptom: Symptom,
        reason: Reason,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provenance: Option<Provenance>,
    },
    /// An incident ends.
    IncidentClosed { incident_id: String, how: Closed, why: String },
    /// An attempt is about to act: durable before anything is sent.
    AttemptOpened {
        attempt_id: String,
        incident_id: String,
        mcp_server: String,
        action: Rung,
        why: String,
        slow_retry: bool,
        /// The Hangar process that it is made in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process_start: Option<Timestamp>,
    },
    /// The first half is done, and the second has yet to follow.
    AttemptHalfDone {
        attempt_id: String,
        /// What the first half found: the receipt comes with the second.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        evidence: BTreeMap<String, serde_json::Value>,
    },
    /// The target answered, or will not.
    AttemptReceipt {
        attempt_id: String,
        receipt: Receipt,
        /// Outcome that needs no verification (rungs that only look, refusals).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outcome: Option<Outcome>,
        detail: String,
        /// Kept for the person who must judge (exposed tools, last log lines, ...).
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        evidence: BTreeMap<String, serde_json::Value>,
    },
    /// Verification is over. A later record of the same attempt replaces an earlier one.
    AttemptSettled { attempt_id: String, outcome: Outcome, why: String },
    /// A stop that must be respected.
    HoldOrdered { mcp_server: String, cause: HoldCause, why: String },
    /// A hold order ends.
    HoldReleased { mcp_server: String, why: String },
    /// A restarted Hangar process was seen.
    HangarRestarted { process_start: Timestamp },
    /// `--mode observe`: what would have been done.
    WouldAct { incident_id: String, action: Rung },
    /// An incident is exhausted: a person is needed.
    Exhausted { incident_id: String },
    /// Retention cut the first `records` records of the chain, the last of which had this hash. Appended like any other.
    Anchor { records: u64, last_hash: String },
    /// Break-glass was granted: one action on one target, once, until then.
    Granted { grant_id: String, action: Rung, target: String, principal: String, role: String, reason: String, expires_at: Timestamp },
    /// A request used the grant up.
    GrantUsed { grant_id: String, request_id: String },
    /// Nobody used the grant in time.
    GrantExpired { grant_id: String },
    /// Break-glass was asked for and not granted.
    GrantRefused { action: Rung, target: String, principal: String, role: String, reason: String, why: String },
    /// A restart was asked for and judged by what the caller claims.
    Request {
        request_id: String,
        restart_class: Rung,
        target: String,
        symptoms: Vec<Symptom>,
        principal: String,
        role: String,
        reason: String,
        request_break_glass: bool,
        /// How many prior attempts the caller claimed.
        claimed: u64,
        /// The verdict, with the first of the counted attempts only.
        report: Box<Report>,
        /// It waits for its turn (`requests.act`); else it is only recorded.
        acts: bool,
        /// It used a grant that lasts until then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        break_glass_until: Option<Timestamp>,
    },
    /// A request that was to act came to its end.
    RequestEnded { request_id: String, how: RequestEnd, why: String },
    /// What stood before an attempt that takes something away. Recorded with its opening.
    AttemptSaved { attempt_id: String, saved: Saved },
    /// The second half of an attempt is about to act.
    AttemptSecond {
        attempt_id: String,
        /// The Hangar process that it is made in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process_start: Option<Timestamp>,
    },
    /// A person paused everything, or one server, until then.
    Paused {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mcp_server: Option<String>,
        until: Timestamp,
        principal: String,
        role: String,
        reason: String,
    },
    /// A pause ends: its time is over, or a person ended it.
    Unpaused {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mcp_server: Option<String>,
        why: String,
    },
    /// A person approved one action of one incident on this evidence: once, until then.
    Approved {
        approval_id: String,
        incident_id: String,
        action: Rung,
        evidence_sha256: String,
        /// What was approved, for whoever reads the record.
        evidence: BTreeMap<String, serde_json::Value>,
        principal: String,
        role: String,
        reason: String,
        expires_at: Timestamp,
    },
    /// An approval ended unused. The attempt that it opens uses it up.
    ApprovalEnded { approval_id: String, incident_id: String, how: ApprovalEnd, why: String },
}

/// A record as stored: `seq` counts from 1 in each `instance`; `hash` covers everything else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub instance: String,
    pub seq: u64,
    pub at: Timestamp,
    pub actor: String,
    #[serde(flatten)]
    pub body: Body,
    pub prev_hash: String,
    pub hash: String,
}
