//! Everything that decides: pure functions over data. No async, IO, clock, logging or randomness inside.

mod hold;
mod ladder;
mod reason;
mod symptom;
mod words;

pub use hold::Hold;
pub use ladder::{LadderDocument, LadderRow, Rung, document as ladder_document};
pub use reason::{Provenance, Reason, Source};
pub use symptom::Symptom;
pub use words::UnknownWord;
