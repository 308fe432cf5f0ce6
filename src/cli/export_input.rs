//! An export of the attempt log as the input of the playbook's functions: its records are folded to attempts.

use std::collections::{HashMap, VecDeque};

use jiff::Timestamp;
use serde::Deserialize;

use crate::policy::{AttemptRecord, Body, Rung};

/// Attempts that are remembered, so that one that is settled again counts once. An attempt is settled again within the
/// flap window only: more than this many in one is no log of ours.
const REMEMBERED: usize = 10_000;

/// One line of `attempts export`. Whether it is as it was written, `attempts verify` tells.
#[derive(Deserialize)]
pub struct ExportLine {
    instance: String,
    at: Timestamp,
    actor: String,
    body: Body,
}

/// Whether a line looks like one of an export.
pub fn is_export(line: &str) -> bool {
    #[derive(Deserialize)]
    struct Peek {
        #[serde(rename = "seq")]
        _seq: u64,
        #[serde(rename = "body")]
        _body: serde::de::IgnoredAny,
    }
    serde_json::from_str::<Peek>(line).is_ok()
}

struct Opened {
    action: Rung,
    actor: String,
    settled: Option<AttemptRecord>,
}

/// Instance and attempt: replicas name theirs alike.
type Key = (String, String);

/// The fold. Open attempts are no attempts yet: they are left out, as is what is no attempt.
#[derive(Default)]
pub struct ExportFold {
    attempts: HashMap<Key, Opened>,
    oldest: VecDeque<Key>,
}

impl ExportFold {
    /// One more record; an attempt that is settled for good goes to `each`.
    ///
    /// # Errors
    /// The line is no record.
    pub fn line(&mut self, line: &str, each: &mut dyn FnMut(AttemptRecord)) -> Result<(), String> {
        let ExportLine { instance, at, actor, body } =
            serde_json::from_str(line).map_err(|error| format!("is no record of an export: {error}"))?;
        if let Body::AttemptOpened { attempt_id, action, .. } = body {
            let key = (instance, attempt_id);
            self.attempts.insert(key.clone(), Opened { action, actor, settled: None });
            self.oldest.push_back(key);
            if self.oldest.len() > REMEMBERED {
                self.forget(each);
            }
        } else if let Body::AttemptSettled { attempt_id, outcome, why } = body
            && let Some(opened) = self.attempts.get_mut(&(instance, attempt_id))
        {
            opened.settled = Some(AttemptRecord::new(opened.action, outcome, why, opened.actor.clone(), at));
        }
        Ok(())
    }

    fn forget(&mut self, each: &mut dyn FnMut(AttemptRecord)) {
        let oldest = self.oldest.pop_front().and_then(|id| self.attempts.remove(&id));
        if let Some(settled) = oldest.and_then(|opened| opened.settled) {
            each(settled);
        }
    }

    /// The end of the export.
    pub fn finish(mut self, each: &mut dyn FnMut(AttemptRecord)) {
        while !self.oldest.is_empty() {
            self.forget(each);
        }
    }
}
