//! What the gate answers: the same report for `assess`, the API, the MCP tool and the attempt log.

use serde::{Deserialize, Serialize};

use super::attempt::AttemptRecord;
use super::ladder::Rung;
use super::words::words;

words! {
    /// Why the gate says no.
    pub enum RefusalCode as "refusal" {
        /// The class matrix does not permit the role this class. Nothing lifts it.
        NotPermitted = "not_permitted",
        /// A broad class without a counting attempt of a narrower one.
        AttemptLogMissing = "attempt_log_missing",
        /// Break-glass was asked for, and nobody authorised it.
        BreakGlassNotAuthorised = "break_glass_not_authorised",
    }
}

/// One "no", with its name and its words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub code: RefusalCode,
    pub message: String,
}

/// The playbook's escalation rule, applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Escalation {
    /// Whether the class is broad, so that the rule asks for something.
    pub required: bool,
    /// Nothing is required, or the attempt log or break-glass gives it.
    pub satisfied: bool,
    /// The attempts that count: of a narrower class, with a counting outcome.
    pub counted: Vec<AttemptRecord>,
    /// The narrowest action below the class without a counting attempt; `None` when all of them were tried.
    pub next_narrower: Option<Rung>,
}

/// Break-glass, as asked for and as it came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakGlass {
    pub requested: bool,
    pub authorised: bool,
    /// It was what satisfied the rule: nothing else did.
    pub used: bool,
}

/// The gate's answer.
#[allow(clippy::struct_excessive_bools, reason = "the report's fields are its contract")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// True exactly when `refusals` is empty.
    pub allowed: bool,
    pub restart_class: Rung,
    pub rank: u8,
    pub role: String,
    /// What the class matrix says of the role.
    pub permitted: bool,
    pub broad: bool,
    /// A counting attempt of a narrower class is in the log, whatever the rank.
    pub attempt_log_satisfied: bool,
    pub playbook_escalation: Escalation,
    pub break_glass: BreakGlass,
    pub refusals: Vec<Refusal>,
}
