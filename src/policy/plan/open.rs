//! Where an incident stands whose attempt is open: at work, between its halves, or waiting for its proof.

use super::super::brake::Braked;
use super::super::gate::Gate;
use super::super::halves;
use super::super::history::{Attempt, Incident};
use super::super::hold::Hold;
use super::super::ladder::Rung;
use super::super::limits::Mode;
use super::super::seen::Seen;
use super::super::snapshot::ServerReading;
use super::super::verify::{Verified, verify};
use super::{Action, Climber, Part, Phase, Read, Standing, Step};

impl Climber<'_> {
    pub(super) fn stand_by_attempt(&mut self, incident: &Incident, attempt: &Attempt, server: &ServerReading, seen: &Seen) -> Standing {
        if self.snapshot.running.contains(&attempt.attempt_id) {
            return Standing::new(Phase::Acting, attempt.action.as_str());
        }
        let second = halves::second(self.policy, self.snapshot, self.history, incident, attempt, server, seen, self.now);
        if matches!(second, halves::Second::Due(_))
            && let Some(braked) = self.second_held(incident, attempt)
        {
            return Standing::held(braked);
        }
        match second {
            // What puts back reads for itself, and where a definition is out there is nothing to confirm.
            halves::Second::Due(why) if attempt.action.puts_back() || self.confirmed(server) => {
                let action = Action {
                    attempt_id: attempt.attempt_id.clone(),
                    incident_id: incident.incident_id.clone(),
                    mcp_server: incident.mcp_server.clone(),
                    rung: attempt.action,
                    part: Part::Second,
                    group: incident.group.clone(),
                    why: why.to_owned(),
                    slow_retry: attempt.slow_retry,
                    process_start: attempt.process_start,
                    asked_by: None,
                };
                self.plan.steps.push(Step::Act(action));
                return Standing::new(Phase::Acting, attempt.action.as_str());
            }
            halves::Second::Due(why) => {
                self.confirm(incident, server);
                return Standing::new(Phase::Acting, why);
            }
            halves::Second::ReadAgain(why) => {
                self.read_again(incident, server, None);
                return Standing::new(Phase::Acting, why);
            }
            halves::Second::Wait(until) => {
                self.wake(until);
                return Standing::new(Phase::Settling, attempt.action.as_str());
            }
            halves::Second::None | halves::Second::NotNeeded(_) | halves::Second::Over(..) => {}
        }
        let verified = verify(self.policy, self.snapshot, self.history, incident, attempt, server, seen, self.now);
        match verified {
            Verified::Pending(until) => self.wake(until),
            Verified::ReadAgain(since) => self.read_again(incident, server, Some(since)),
            Verified::ReadMetrics => self.read(Read::Metrics),
            Verified::Settled(..) => {}
        }
        Standing::new(Phase::Settling, format!("{}: its proof is awaited", attempt.action))
    }

    /// What stops even the second half of an action that has begun. Its intent is durable and its budget booked.
    fn second_held(&self, incident: &Incident, attempt: &Attempt) -> Option<Braked> {
        let gate = Gate { policy: self.policy, snapshot: self.snapshot, history: self.history, now: self.now };
        let observing = self.policy.mode_of(&incident.mcp_server) == Mode::Observe;
        let would = || Braked::new(Hold::ObserveOnly, None, format!("would finish {}", attempt.action));
        // What we stopped is started again whatever is paused meanwhile: leaving it down would be our own harm.
        let undoes = attempt.action == Rung::WorkerRestart || attempt.action.saves_first();
        let hands_off = || gate.hands_off(incident).or_else(|| gate.maintenance(incident)).filter(|_| !undoes);
        gate.draining().or_else(hands_off).or_else(|| observing.then(would)).or_else(|| gate.blind()).or_else(|| gate.last(incident))
    }
}
