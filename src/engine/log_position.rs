//! How far Hangar's log was read, saved once what it told is durable.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Engine;
use crate::attempt_log::{Checkpoints, LogError};
use crate::hangar::fault::chain;
use crate::observe::log::Checkpoint;

/// Under which name it is kept.
const KEY: &str = "log_position";
/// Saved at most this often: what was read since the last time is read again after a crash, which changes nothing.
const EVERY: Duration = Duration::from_secs(30);

#[derive(Serialize, Deserialize)]
struct Saved {
    source: String,
    checkpoint: Checkpoint,
}

/// What is still to be saved.
#[derive(Debug, Default)]
pub(super) struct Position {
    unsaved: Option<Checkpoint>,
    saved: Option<Instant>,
}

impl Position {
    pub(super) fn heard(&mut self, checkpoint: Checkpoint) {
        self.unsaved = Some(checkpoint);
    }
}

/// Where the reading of `source` goes on; `None` for another source than the one that was read last.
///
/// # Errors
/// The store cannot be read.
pub async fn log_checkpoint(checkpoints: &dyn Checkpoints, source: &str) -> Result<Option<Checkpoint>, LogError> {
    let Some(saved) = checkpoints.get(KEY).await? else { return Ok(None) };
    match serde_json::from_value::<Saved>(saved) {
        Ok(saved) => Ok((saved.source == source).then_some(saved.checkpoint)),
        Err(error) => {
            tracing::warn!(%error, "where Hangar's log was read to is not understood: its end is read again");
            Ok(None)
        }
    }
}

impl Engine {
    /// Called when there is nothing left to write down of what was heard.
    pub(super) async fn remember_log(&mut self) {
        let due = self.draining || self.log_position.saved.is_none_or(|at| at.elapsed() >= EVERY);
        let Some(source) = self.parts.log_source.clone().filter(|_| due) else { return };
        let Some(checkpoint) = self.log_position.unsaved.take() else { return };
        // Tried again with the next news, after the same time.
        self.log_position.saved = Some(Instant::now());
        let saved = match serde_json::to_value(Saved { source, checkpoint }) {
            Ok(saved) => saved,
            Err(error) => return tracing::error!(%error, "the log's position cannot be written as JSON"),
        };
        if let Err(error) = self.parts.checkpoints.put(KEY, saved).await {
            tracing::warn!(error = chain(&error), "where Hangar's log was read to cannot be saved");
        }
    }
}
