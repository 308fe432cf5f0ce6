//! The modelled executor: what is sent to Hangar, and what comes back.

use hangar_medic::policy::{Action, Outcome, Part, Receipt, Rung, State, StopReason};
use jiff::{SignedDuration, Timestamp};

use super::hangar::{Hangar, StartAnswer, secs};
use super::watch::Watch;

/// An action whose executor is at work.
#[derive(Debug, Clone)]
pub struct Job {
    pub action: Action,
    pub due: Timestamp,
    waits_for_start: bool,
    answer: Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    pub receipt: Receipt,
    pub outcome: Option<Outcome>,
    pub half: bool,
}

const fn done(receipt: Receipt, outcome: Option<Outcome>) -> Done {
    Done { receipt, outcome, half: false }
}

const TAKES: SignedDuration = SignedDuration::from_millis(50);

impl Job {
    /// Whether this action sends a start to Hangar.
    pub fn starts(action: &Action) -> bool {
        matches!(
            (action.rung, action.part),
            (Rung::SessionReconnect, _) | (Rung::LeaseRecovery, Part::First) | (Rung::WorkerRestart, Part::Second)
        )
    }

    /// The medic is about to send it, and never will.
    pub fn stillborn(action: Action, now: Timestamp) -> Self {
        Self { due: now + SignedDuration::from_hours(100_000), waits_for_start: false, answer: done(Receipt::Accepted, None), action }
    }

    pub fn begin(action: Action, hangar: &mut Hangar, now: Timestamp) -> Self {
        let id = action.mcp_server.clone();
        let mut job = Self { due: now + TAKES, waits_for_start: false, answer: done(Receipt::Accepted, None), action };
        match (job.action.rung, job.action.part) {
            (Rung::ClientReconnect | Rung::CapabilityRefresh, _) => {}
            (Rung::WorkerRestart, Part::First) => {
                let sent = hangar.stop(&id, StopReason::Manual);
                job.answer = if sent { Done { half: true, ..job.answer } } else { done(Receipt::Refused, Some(Outcome::Error)) };
            }
            (Rung::LeaseRecovery, Part::Second) => {
                hangar.rebalance(&id);
            }
            _ => match hangar.start(&id, now) {
                StartAnswer::Ready => job.answer = job.started(),
                StartAnswer::Refused | StartAnswer::Failed => job.answer = done(Receipt::Refused, Some(Outcome::Denied)),
                StartAnswer::Lost => job.answer = done(Receipt::Refused, Some(Outcome::Error)),
                StartAnswer::Busy => {
                    job.waits_for_start = true;
                    job.due = hangar.servers[&id].start_ends.unwrap_or(now + secs(60)) + TAKES;
                }
            },
        }
        job
    }

    fn started(&self) -> Done {
        Done { half: self.action.rung == Rung::LeaseRecovery, ..done(Receipt::Accepted, None) }
    }

    /// The answer, or `None` and a later `due`.
    pub fn end(&mut self, hangar: &Hangar, watch: &mut Watch, now: Timestamp) -> Option<Done> {
        let id = &self.action.mcp_server;
        if self.action.rung.only_looks() {
            watch.read_metrics(hangar, now);
            watch.read_server(hangar, id, now);
            return Some(self.looked(watch));
        }
        if !self.waits_for_start {
            return Some(self.answer);
        }
        match hangar.answer(id) {
            StartAnswer::Ready => Some(self.started()),
            StartAnswer::Busy => {
                let Some(ends) = hangar.servers[id].start_ends else { return Some(done(Receipt::Unknown, None)) };
                self.due = ends + TAKES;
                None
            }
            StartAnswer::Failed | StartAnswer::Refused => Some(done(Receipt::Refused, Some(Outcome::Failed))),
            StartAnswer::Lost => Some(done(Receipt::Unknown, None)),
        }
    }

    fn looked(&self, watch: &Watch) -> Done {
        let (reading, _) = &watch.servers[&self.action.mcp_server];
        let Some(rest) = reading.rest.as_ref().filter(|_| reading.rest_failed_at.is_none()) else {
            return done(Receipt::Unknown, Some(Outcome::Error));
        };
        let healthy = rest.state == State::Ready && rest.alive && self.action.rung == Rung::ClientReconnect;
        done(Receipt::Accepted, Some(if healthy { Outcome::Cancelled } else { Outcome::Insufficient }))
    }
}
