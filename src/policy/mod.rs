//! Everything that decides: pure functions over data. No async, IO, clock, logging or randomness inside.

mod approval;
mod assess;
mod attempt;
mod brake;
mod break_glass;
mod decide;
mod fleet;
mod gate;
mod halves;
mod hex;
mod history;
mod hold;
mod keep;
mod ladder;
mod limits;
mod matrix;
mod owners;
mod pause;
mod plan;
mod platform;
mod reason;
mod recommend;
mod record;
mod recovery_metrics;
mod report;
mod request;
mod rule;
mod seen;
mod sentences;
mod snapshot;
mod stops;
mod symptom;
mod verify;
mod when;
mod words;

pub use approval::{Approvable, Approval, ApprovalAsk, ApprovalEnd, ApprovalEvent, ApprovalRefusal, approvable, approve};
pub use assess::{Ask, assess, own_log};
pub use attempt::{AHEAD_MAX, AttemptFault, AttemptRecord, parse_attempt};
pub use break_glass::{GRANT_MAX, GRANTS_MAX, GlassEvent, GlassRefusal, Grant, GrantAsk, GrantVerdict, grant};
pub use fleet::{Fleet, LEASE_HELD_UNTIL, Membership, Saved, to_save};
pub use hex::hex;
pub(crate) use history::STORM_WINDOW_MAX;
pub use history::{Acted, Attempt, History, HoldOrder, Incident, OpenedAt, attempt_id, incident_id, server_of, valid_server_id};
pub use hold::Hold;
pub use ladder::{LadderDocument, LadderRow, Rung, document as ladder_document};
pub use limits::{Budgets, Mode, Policy, RungBudget, RungLimits, StormLimits};
pub use matrix::{Matrix, OWN_ROLE};
pub use owners::Owners;
pub use pause::{PAUSE_MAX, PAUSES_MAX, Pause};
pub use plan::{Action, AskedBy, Part, Phase, Plan, Read, Standing, Step, plan};
pub use platform::Platform;
pub use reason::{Provenance, Reason, Source};
pub use recommend::{Place, Recommendation, Stride, Tried, recommend};
pub use record::{Body, Closed, HoldCause, Outcome, Receipt, Record};
pub use recovery_metrics::{RecoveryFold, RecoveryMetrics};
pub use report::{BreakGlass, Escalation, Refusal, RefusalCode, Report};
pub use request::{REQUEST_WAITS_MAX, REQUESTS_MAX, Request, RequestAsk, RequestEnd, RequestVerdict, judge};
pub use rule::{Pattern, ServerRule};
pub use seen::{Seen, disagree, seen, suspect, told};
pub use snapshot::{
    Auth, DeadBlock, GroupReading, HangarReading, LogReading, Maintenance, RestReading, ServerReading, Silenced, Snapshot, State,
    StopReason, Stops, Unasked,
};
pub use symptom::Symptom;
pub use words::UnknownWord;
pub(crate) use words::words;
