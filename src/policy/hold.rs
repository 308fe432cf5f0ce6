//! Why something is not done. Every "no" has one of these names.

use super::words::words;

words! {
    /// Why an incident is held. The order is the order of the gate: the first that applies is the one shown.
    pub enum Hold as "hold" {
        /// A person paused everything, this server or its group; or any server, where an action would touch all of them.
        Paused = "paused",
        /// `policy.servers` leaves this server alone.
        OptedOut = "opted_out",
        /// `--mode observe`: what would be done is recorded, nothing is sent.
        ObserveOnly = "observe_only",
        /// A person or a detection rule stopped the server.
        StoppedDeliberately = "stopped_deliberately",
        /// An active Alertmanager silence says that a person is at work.
        Silenced = "silenced",
        /// A maintenance window is open.
        Maintenance = "maintenance",
        /// Hangar's own saga or start is at work.
        HangarRetrying = "hangar_retrying",
        /// Hangar's `retry_allowed_at` lies ahead.
        Backoff = "backoff",
        /// Hangar's group recovery worker gets its one pass first.
        GroupRecovery = "group_recovery",
        /// Many servers died at once; one canary goes first.
        Storm = "storm",
        /// The pause after an acting rung.
        Cooldown = "cooldown",
        /// A budget of the window is used up.
        BudgetSpent = "budget_spent",
        /// A person must approve: capability block, or the server's start took Hangar down.
        ApprovalNeeded = "approval_needed",
        /// The class matrix, or Hangar's own permissions, refuse.
        NotPermitted = "not_permitted",
        /// A broad rung without a counting narrower attempt.
        AttemptLogMissing = "attempt_log_missing",
        /// Another instance holds the fleet lock, or there is none; or Hangar is being restarted.
        LeaseHeld = "lease_held",
        /// Hangar refused our key, or locked our address out.
        AuthRefused = "auth_refused",
        /// The attempt log cannot be written: nothing may act.
        LogUnwritable = "log_unwritable",
        /// The reason cannot be told (it may be a capability block), or the state cannot be read.
        Undeterminable = "undeterminable",
    }
}

impl Hold {
    /// Why nothing is done, for a person who knows none of our words. One clause, to be followed by the details.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Paused => "A person paused the medic: it watches and changes nothing.",
            Self::OptedOut => "The configuration leaves this server alone: it is watched and not touched.",
            Self::ObserveOnly => "The medic runs in observe mode: it writes down what it would do, and does nothing.",
            Self::StoppedDeliberately => "Somebody, or a detection rule, stopped this server on purpose: it stays down.",
            Self::Silenced => "Its alert is silenced in Alertmanager: a person is probably at work on it.",
            Self::Maintenance => "A maintenance window is open.",
            Self::HangarRetrying => "Hangar itself is trying to bring it back; two at once would only disturb each other.",
            Self::Backoff => "Hangar allows no new start yet: an earlier one failed a moment ago.",
            Self::GroupRecovery => "Hangar's own group recovery goes first.",
            Self::Storm => "Many servers died at once, which has one cause: one of them is tried first, the others wait for its proof.",
            Self::Cooldown => "The medic pauses a moment between two steps.",
            Self::BudgetSpent => "As many actions as are allowed in this time were made; more would be no help.",
            Self::ApprovalNeeded => "A person must decide: starting this server may be unsafe.",
            Self::NotPermitted => "The medic lacks the right to do the next step.",
            Self::AttemptLogMissing => "The next step is a broad one, and no narrower one was tried that would justify it.",
            Self::LeaseHeld => "Another medic is in charge of this Hangar.",
            Self::AuthRefused => "Hangar refuses the medic's API key.",
            Self::LogUnwritable => "The medic cannot write its log, and does nothing that it cannot write down first.",
            Self::Undeterminable => "Why it is dead cannot be told for certain, and it may have been blocked for safety.",
        }
    }

    /// What a person can do about it; whether one must is told by [`Hold::needs_person`].
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Paused => "Resume when you are done.",
            Self::OptedOut => "Change policy.servers if the medic should look after it.",
            Self::ObserveOnly => "Run it with --mode act once its plans look right.",
            Self::StoppedDeliberately => "Start the server yourself, or resume it here, if it should run again.",
            Self::Silenced => "End the silence if nobody is at work on it.",
            Self::Maintenance => "Nothing to do: it goes on when the window closes.",
            Self::HangarRetrying | Self::Backoff | Self::GroupRecovery | Self::Cooldown => "Nothing to do: it goes on by itself.",
            Self::Storm => "Look for what they share: a host, a network, a credential.",
            Self::BudgetSpent => "Look at why it keeps dying; the medic goes on when the window has passed.",
            Self::ApprovalNeeded => {
                "Compare the tools that it exposes with those that it declares; approve only if you know why they differ."
            }
            Self::NotPermitted => {
                "Give its Hangar key the missing permission, or its role the action (matrix.roles). `hangar-medic doctor` tells which."
            }
            Self::AttemptLogMissing => "Try a narrower action first, or use break-glass.",
            Self::LeaseHeld => "Nothing to do, unless the other one is gone.",
            Self::AuthRefused => "Put a valid key into hangar.api_key_file; it is read again at once.",
            Self::LogUnwritable => "Make room on its disk, or give the directory back to its user.",
            Self::Undeterminable => "Read the server's own log; start it yourself if it is safe. hangar.log_file lets the medic see more.",
        }
    }

    /// Whether this goes on for ever without a person.
    #[must_use]
    pub const fn needs_person(self) -> bool {
        match self {
            Self::Paused
            | Self::ApprovalNeeded
            | Self::NotPermitted
            | Self::AttemptLogMissing
            | Self::AuthRefused
            | Self::LogUnwritable
            | Self::Undeterminable => true,
            Self::OptedOut
            | Self::ObserveOnly
            | Self::StoppedDeliberately
            | Self::Silenced
            | Self::Maintenance
            | Self::HangarRetrying
            | Self::Backoff
            | Self::GroupRecovery
            | Self::Storm
            | Self::Cooldown
            | Self::BudgetSpent
            | Self::LeaseHeld => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hold_has_its_own_sentence_that_uses_none_of_our_words() {
        let mut seen = std::collections::BTreeSet::new();
        for hold in Hold::ALL {
            let (sentence, advice) = (hold.sentence(), hold.advice());
            assert!(sentence.len() > 20 && sentence.ends_with('.') && advice.ends_with('.'), "{hold}");
            assert!(!sentence.contains('_') && seen.insert(sentence), "{hold}: {sentence}");
        }
    }
}
