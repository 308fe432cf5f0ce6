//! Everything that decides: pure functions over data. No async, IO, clock, logging or randomness inside.

mod brake;
mod decide;
mod gate;
mod halves;
mod history;
mod hold;
mod keep;
mod ladder;
mod limits;
mod plan;
mod reason;
mod record;
mod seen;
mod snapshot;
mod stops;
mod symptom;
mod verify;
mod when;
mod words;

pub(crate) use history::STORM_WINDOW_MAX;
pub use history::{Acted, Attempt, History, HoldOrder, Incident, OpenedAt, attempt_id, incident_id, server_of, valid_server_id};
pub use hold::Hold;
pub use ladder::{LadderDocument, LadderRow, Rung, document as ladder_document};
pub use limits::{Budgets, Mode, Policy, RungLimits, StormLimits};
pub use plan::{Action, Part, Phase, Plan, Read, Standing, Step, plan};
pub use reason::{Provenance, Reason, Source};
pub use record::{Body, Closed, HoldCause, Outcome, Receipt, Record};
pub use seen::{Seen, seen, suspect};
pub use snapshot::{
    Auth, DeadBlock, GroupReading, HangarReading, LogReading, RestReading, ServerReading, Snapshot, State, StopReason, Stops,
};
pub use symptom::Symptom;
pub use words::UnknownWord;
