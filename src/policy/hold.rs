//! Why something is not done. Every "no" has one of these names.

use super::words::words;

words! {
    /// Why an incident is held. The order is the order of the gate: the first that applies is the one shown.
    pub enum Hold as "hold" {
        /// A person paused everything or this server.
        Paused = "paused",
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
