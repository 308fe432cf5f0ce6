//! What the log that the replicas share tells of the others' medics.

use jiff::{SignedDuration, Timestamp};

use super::fleet::{BRING_BACK_MAX, lock_asked};
use super::history::{Attempt, History};
use super::ladder::Rung;
use super::limits::Policy;
use super::when::{after, before};

/// The clocks of the replicas' machines may differ by this.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_secs(30);

/// A restart of Hangar that the medic of another replica ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderedRestart {
    pub instance: String,
    pub attempt_id: String,
    pub action: Rung,
    pub at: Timestamp,
    /// When its outcome was written down; `None` while it is open.
    pub over_at: Option<Timestamp>,
}

impl OrderedRestart {
    fn explains(&self, policy: &Policy, gone_at: Timestamp, process_start: Timestamp, slack: SignedDuration) -> bool {
        // Its medic may be gone for good: then it is over once its lock would be.
        let longest = after(self.at, policy.platform.restart_within.saturating_add(BRING_BACK_MAX));
        let until = self.over_at.unwrap_or(longest).min(longest);
        before(self.at, slack) <= process_start && gone_at <= after(until, slack)
    }
}

/// What was read of the others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Others {
    /// Their restarts, of the time that the policy looks back.
    pub restarts: Vec<OrderedRestart>,
    /// The fleet lock was free when it was looked at then.
    pub lock_free_at: Option<Timestamp>,
}

impl Others {
    /// The restart that explains why a process of Hangar's was gone between `gone_at` and `process_start`.
    #[must_use]
    pub fn restarted(&self, policy: &Policy, gone_at: Timestamp, process_start: Timestamp) -> Option<&OrderedRestart> {
        self.restarts.iter().find(|order| order.explains(policy, gone_at, process_start, CLOCKS_DIFFER))
    }

    /// Those that this replica's process came out of: for the budgets they are as good as our own.
    pub fn of_us(&self, policy: &Policy, process_start: Option<Timestamp>) -> impl Iterator<Item = &OrderedRestart> {
        self.restarts
            .iter()
            .filter(move |order| process_start.is_some_and(|start| order.explains(policy, start, start, SignedDuration::ZERO)))
    }

    /// The lock that this attempt met is free by now.
    #[must_use]
    pub fn lock_is_free_since(&self, attempt: &Attempt) -> bool {
        self.lock_free_at.is_some_and(|at| attempt.receipt_at.is_some_and(|asked| at > asked))
    }
}

/// Whether anything waits for the fleet lock, so that it is worth looking at.
#[must_use]
pub fn waits_for_lock(history: &History, now: Timestamp) -> bool {
    history.open.values().any(|incident| incident.attempts.iter().any(|attempt| lock_asked(attempt).is_some_and(|until| now < until)))
}
