//! The history is read from the attempt log at the start, and again whenever an append failed: what became of that append
//! is known to the log alone, and meanwhile somebody else may have written.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::json;
use tokio::time::Instant;

use super::{Engine, LOG_RETRY, Parts, SEEN_DEAD, WRITE_PROBE};
use crate::attempt_log::LogError;
use crate::clock;
use crate::hangar::fault::chain;
use crate::policy::History;

impl Engine {
    /// The history as the log has it, with what was remembered of the dead beside it.
    pub(super) async fn read_history(parts: &Parts) -> Result<History, LogError> {
        let mut history = parts.log.history(&parts.policy, clock::now()).await?;
        if let Some(saved) = parts.checkpoints.get(SEEN_DEAD).await?
            && let Ok(saved) = serde_json::from_value::<BTreeMap<String, Timestamp>>(saved)
        {
            history.seen_dead = saved;
            history.seen_dead.retain(|id, _| history.open.contains_key(id));
        }
        Ok(history)
    }

    /// Whether the history is that of the log, and the log can be written: reads it again after a failure.
    pub(super) async fn history_is_whole(&mut self) -> bool {
        if !self.history_outdated {
            return true;
        }
        if self.history_tried.is_some_and(|at| at.elapsed() < LOG_RETRY) {
            return false;
        }
        self.history_tried = Some(Instant::now());
        let read = match Self::read_history(&self.parts).await {
            // Read is not yet written: while it is held unwritable nothing is planned that would show it.
            Ok(read) => self.parts.checkpoints.put(WRITE_PROBE, json!(clock::now())).await.map(|()| read),
            refused => refused,
        };
        match read {
            Ok(mut read) => {
                if self.history_known {
                    read.seen_dead = std::mem::take(&mut self.history.seen_dead);
                    read.seen_dead.retain(|id, _| read.open.contains_key(id));
                }
                self.history = read;
                self.log_damage = None;
                (self.history_outdated, self.history_known) = (false, true);
                if std::mem::take(&mut self.log_unwritable) {
                    tracing::info!("the attempt log can be written again");
                }
                true
            }
            Err(error) => {
                let words = chain(&error);
                self.log_damage = super::damage_of(&error);
                if self.history_trouble.as_ref() != Some(&words) {
                    tracing::error!(error = words, "the attempt log cannot be used: nothing acts until it can");
                    self.history_trouble = Some(words);
                }
                false
            }
        }
    }
}
