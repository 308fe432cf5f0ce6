//! Broken medics. Each one must be found out, or the checks prove nothing.

use std::num::{NonZeroU8, NonZeroU32};

use hangar_medic::observe::metrics_text::MetricsReading;
use hangar_medic::policy::{Body, HoldCause, Mode, Policy, Record};
use jiff::SignedDuration;
use serde_json::{Value, json};

/// What is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// The intent is not written down.
    ForgetsIntent,
    /// Every request goes out twice.
    SendsTwice,
    /// No budgets.
    Spends,
    /// No storm brake, no waiting for neighbours.
    Storms,
    /// Starts come as fast as they can.
    Rushes,
    /// Hangar's own retries are not waited for.
    Impatient,
    /// Hangar's backoff is not seen.
    NoBackoff,
    /// A capability block reads like any other death.
    BlindToBlocks,
    /// Stops are not counted.
    BlindToStops,
    /// What was healthy long ago counts as healthy now.
    Credulous,
    /// Acts where it should only watch.
    NotObserving,
    /// Exhausted is for ever.
    GivesUp,
    /// Every server that is read looks dead.
    SeesDeath,
    /// A person's pause is over at once.
    ForgetsPauses,
    /// A person's hold order is none.
    ForgetsHolds,
    /// Knows of no maintenance window.
    KeepsNoWindows,
    /// A new configuration changes nothing.
    KeepsItsConfig,
    /// An approval never ends.
    ApprovesForEver,
    /// Whoever holds the fleet lock, it goes on.
    BlindToTheLock,
}

impl Mutant {
    pub const ALL: &'static [Self] = &[
        Self::ForgetsIntent,
        Self::SendsTwice,
        Self::Spends,
        Self::Storms,
        Self::Rushes,
        Self::Impatient,
        Self::NoBackoff,
        Self::BlindToBlocks,
        Self::BlindToStops,
        Self::Credulous,
        Self::NotObserving,
        Self::GivesUp,
        Self::SeesDeath,
        Self::ForgetsPauses,
        Self::ForgetsHolds,
        Self::KeepsNoWindows,
        Self::KeepsItsConfig,
        Self::ApprovesForEver,
        Self::BlindToTheLock,
    ];

    /// The policy that it goes by instead of the operator's.
    pub fn policy(self, mut policy: Policy) -> Policy {
        match self {
            Self::Spends => {
                policy.budgets.starts_per_server = NonZeroU32::MAX;
                policy.budgets.actions = NonZeroU32::MAX;
                policy.budgets.in_flight = NonZeroU32::MAX;
                policy.exhausted_retry = SignedDuration::from_secs(60);
                policy.exhausted_retry_max = SignedDuration::from_secs(60);
                policy.rungs.iter_mut().for_each(|r| r.attempts_max = NonZeroU8::MAX);
            }
            Self::Storms => {
                policy.storm.servers = NonZeroU32::MAX;
                policy.neighbour_wait = SignedDuration::ZERO;
            }
            Self::Rushes => policy.budgets.starts_per_second = NonZeroU32::MIN.saturating_add(999),
            Self::Impatient => {
                policy.degraded_too_long_after = SignedDuration::ZERO;
                policy.stuck_starting_after = SignedDuration::ZERO;
            }
            Self::NotObserving => policy.mode = Mode::Act,
            Self::GivesUp => policy.exhausted_retry = SignedDuration::ZERO,
            _ => {}
        }
        policy
    }

    /// What it makes of an answer.
    pub fn answer(self, mut body: Value) -> Value {
        let each = |change: &dyn Fn(&mut Value), body: &mut Value| {
            if let Some(all) = body.get_mut("mcp_servers").and_then(Value::as_array_mut) {
                all.iter_mut().for_each(change);
            } else if body.get("mcp_server_id").is_some() {
                change(body);
            }
        };
        match self {
            Self::NoBackoff => each(
                &|v| {
                    if v["dead"].is_object() {
                        v["dead"]["retry_allowed_at"] = Value::Null;
                    }
                },
                &mut body,
            ),
            Self::BlindToBlocks => each(
                &|v| {
                    if v["dead"]["reason"] == "capability_blocked" {
                        v["dead"]["reason"] = json!("given_up");
                    }
                },
                &mut body,
            ),
            Self::Credulous => each(
                &|v| {
                    if v["state"] == "initializing" || v["state"] == "degraded" {
                        v["state"] = json!("ready");
                        v["alive"] = json!(true);
                    }
                },
                &mut body,
            ),
            Self::SeesDeath => each(
                &|v| {
                    v["state"] = json!("dead");
                    v["dead"] = json!({"reason": "crashed", "since": null, "retry_allowed_at": null, "revived_by": "call_or_start"});
                },
                &mut body,
            ),
            _ => {}
        }
        body
    }

    /// What it makes of the metrics.
    pub fn metrics(self, mut reading: MetricsReading) -> MetricsReading {
        for sample in reading.servers.values_mut() {
            match self {
                Self::BlindToStops => sample.stops.clear(),
                Self::Credulous => sample.last_healthy = Some(super::time::wall()),
                _ => {}
            }
        }
        reading
    }

    /// What it makes of a record that it wrote.
    pub fn record(self, mut record: Record) -> Record {
        match (self, &mut record.body) {
            (Self::ForgetsPauses, Body::Paused { until, .. }) => *until = record.at,
            (Self::ApprovesForEver, Body::Approved { expires_at, .. }) => *expires_at += SignedDuration::from_hours(24),
            (Self::ForgetsHolds, Body::HoldOrdered { mcp_server, cause: HoldCause::Person, .. }) => {
                record.body = Body::HoldReleased { mcp_server: mcp_server.clone(), why: String::new() };
            }
            _ => {}
        }
        record
    }

    /// Hangar's log is of no use to it.
    pub fn ignores_log(self) -> bool {
        self == Self::BlindToBlocks
    }
}
