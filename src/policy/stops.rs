//! Deliberate stops: counted by Hangar, told apart from our own, and respected.

use super::history::Incident;
use super::ladder::Rung;
use super::record::{HoldCause, Receipt};
use super::seen::Seen;
use super::snapshot::{HangarReading, ServerReading, StopReason, Stops};

/// The deliberate stop seen since the incident opened, if any. `idle` and `max_retries_exceeded` are none, nor is the one
/// `manual` stop of each `worker_restart` of ours.
#[must_use]
pub fn deliberate_stop(incident: &Incident, hangar: &HangarReading, server: &ServerReading, seen: &Seen) -> Option<HoldCause> {
    // Each stop that raised another reason as well. More than those were somebody's own.
    let twice = [StopReason::Manual, StopReason::UserRequest, StopReason::DetectionBlock, StopReason::Other];
    let told_apart = twice.into_iter().fold(0_u64, |sum, reason| sum.saturating_add(risen(incident, hangar, server, reason)));
    let causes = [
        (StopReason::DetectionBlock, HoldCause::DetectionBlock, 0),
        (StopReason::UserRequest, HoldCause::UserRequest, 0),
        (StopReason::Manual, HoldCause::Manual, our_stops(incident, hangar)),
        (StopReason::Other, HoldCause::Other, 0),
        (StopReason::Shutdown, HoldCause::Shutdown, if counts_twice(hangar) { told_apart } else { 0 }),
    ];
    causes
        .into_iter()
        // Hangar before 2.21 counts a give-up as `shutdown`; that one leaves the server dead, a real stop leaves it cold.
        .filter(|(reason, _, _)| *reason != StopReason::Shutdown || *seen == Seen::Cold)
        .find(|(reason, _, ours)| risen(incident, hangar, server, *reason) > *ours)
        .map(|(_, cause, _)| cause)
}

/// What nobody but a person or a rule of theirs counts. `shutdown` is Hangar's own word too.
pub const DELIBERATE: [(StopReason, HoldCause); 4] = [
    (StopReason::DetectionBlock, HoldCause::DetectionBlock),
    (StopReason::UserRequest, HoldCause::UserRequest),
    (StopReason::Manual, HoldCause::Manual),
    (StopReason::Other, HoldCause::Other),
];

/// How many of those Hangar's process has counted.
#[must_use]
pub fn deliberate_stops(stops: &Stops) -> u64 {
    DELIBERATE.iter().filter_map(|(reason, _)| stops.get(reason)).fold(0, |sum, n| sum.saturating_add(*n))
}

/// How many stops of this kind Hangar has counted since the incident opened. A new process counts from zero.
#[must_use]
pub fn risen(incident: &Incident, hangar: &HangarReading, server: &ServerReading, reason: StopReason) -> u64 {
    let same_process = incident.process_start == hangar.process_start;
    let before = if same_process { incident.stops.get(&reason).copied().unwrap_or(0) } else { 0 };
    server.stops.get(&reason).copied().unwrap_or(0).saturating_sub(before)
}

/// Evidence of an attempt that a crash interrupted: whether Hangar's counter shows that its stop was done.
pub const STOP_COUNTED: &str = "stop_counted";

/// How many `manual` stops of this Hangar process may be ours.
#[must_use]
pub fn our_stops(incident: &Incident, hangar: &HangarReading) -> u64 {
    let may_have_stopped = |a: &&super::history::Attempt| {
        a.action == Rung::WorkerRestart
            && (a.half_done_at.is_some() || a.receipt.is_none_or(|r| r == Receipt::Unknown))
            && a.evidence.get(STOP_COUNTED) != Some(&false.into())
            && a.made_in(hangar.process_start)
            && a.outcome != Some(super::record::Outcome::NotApplicable)
    };
    incident.attempts.iter().filter(may_have_stopped).count() as u64
}

/// Hangar before 2.21.0 counts one stop twice: by the reason sent and as `shutdown`.
fn counts_twice(hangar: &HangarReading) -> bool {
    hangar.version.is_some_and(|version| version < (2, 21, 0))
}
