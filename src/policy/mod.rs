//! Everything that decides: pure functions over data. No async, IO, clock, logging or randomness inside.

mod history;
mod hold;
mod ladder;
mod limits;
mod reason;
mod record;
mod snapshot;
mod symptom;
mod words;

pub use history::{Acted, Attempt, History, HoldOrder, Incident, OpenedAt, attempt_id, incident_id, server_of, valid_server_id};
pub use hold::Hold;
pub use ladder::{LadderDocument, LadderRow, Rung, document as ladder_document};
pub use limits::{Budgets, Mode, Policy, RungLimits, StormLimits};
pub use reason::{Provenance, Reason, Source};
pub use record::{Body, Closed, HoldCause, Outcome, Receipt, Record};
pub use snapshot::{
    Auth, DeadBlock, GroupReading, HangarReading, LogReading, RestReading, ServerReading, Snapshot, State, StopReason, Stops,
};
pub use symptom::Symptom;
pub use words::UnknownWord;
