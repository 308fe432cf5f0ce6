//! What the loop shows to the server: replaced as a whole after each turn, read without waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{PoisonError, RwLock};

use jiff::Timestamp;
use tokio::sync::Notify;

use super::fusion::Said;
use crate::metrics::{Metrics, OpenIncident, ServerAttempt};
use crate::observe::board::Board;
use crate::policy::{History, Hold, HoldOrder, Pause, Phase, Plan, Snapshot, Standing};

/// The daemon at the end of its last turn.
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each shown by itself")]
#[derive(Debug, Clone, Default)]
pub struct Live {
    pub standings: BTreeMap<String, Standing>,
    pub orders: Vec<HoldOrder>,
    pub pauses: Vec<Pause>,
    pub known: usize,
    pub incidents_open: usize,
    pub fresh: bool,
    pub log_unwritable: bool,
    /// It is damaged, and how: only a start anew keeps it aside.
    pub log_damage: Option<String>,
    pub auth_refused: bool,
    pub read_forbidden: bool,
    pub read_at: Option<Timestamp>,
    pub process_start: Option<Timestamp>,
    pub version: Option<(u32, u32, u32)>,
    /// What each source says of why a server is dead, where they disagree.
    pub disagreements: BTreeMap<String, Said>,
}

impl Live {
    pub(super) fn new(plan: &Plan, snapshot: &Snapshot, history: &History, board: &Board, disagreements: BTreeMap<String, Said>) -> Self {
        Self {
            standings: plan.standings.clone(),
            orders: history.orders.values().cloned().collect(),
            pauses: history.pauses.values().cloned().collect(),
            known: board.known(),
            incidents_open: history.open.len(),
            fresh: snapshot.hangar.fresh,
            log_unwritable: false,
            log_damage: None,
            auth_refused: snapshot.hangar.auth_refused,
            read_forbidden: snapshot.hangar.read_forbidden,
            read_at: board.read_at(),
            process_start: board.process_start(),
            version: board.version(),
            disagreements,
        }
    }

    /// While the attempt log refuses, everything that is or would be an incident is held for that.
    pub(super) fn unwritable(mut self, refuses: bool, unwritten: &BTreeSet<String>, history: &History) -> Self {
        self.log_unwritable = refuses;
        if refuses {
            for id in history.open.keys().chain(unwritten) {
                let why = "the attempt log cannot be written: nothing acts until it can";
                let held = Standing { hold: Some(Hold::LogUnwritable), ..Standing::new(Phase::Held, why) };
                self.standings.insert(id.clone(), held);
            }
        }
        self
    }

    pub(super) fn measure(&self, metrics: &Metrics, history: &History) {
        let standing = |id: &String| self.standings.get(id).map_or((Phase::Watching, None), |s| (s.phase, s.hold));
        let open = history.open.iter().map(|(id, incident)| {
            let (phase, hold) = standing(id);
            OpenIncident { reason: incident.reason, phase, hold }
        });
        metrics.set_open_incidents(open);
        metrics.set_dead(history.open.iter().map(|(id, incident)| (id.as_str(), incident.reason)));
        metrics.set_hold_orders(self.orders.len());
        metrics.set_server_incidents(history.open.keys().map(|id| {
            let (phase, hold) = standing(id);
            (id.as_str(), phase, hold)
        }));
        // Closed incidents first: what an open one tried is newer.
        let attempts = history.closed.values().chain(history.open.values()).flat_map(|incident| &incident.attempts);
        metrics.set_server_attempts(attempts.map(|attempt| ServerAttempt {
            mcp_server: &attempt.mcp_server,
            action: attempt.action,
            outcome: attempt.outcome,
            started_at: attempt.started_at,
        }));
        let of_all = history.pauses.contains_key(&None);
        metrics.set_pauses(of_all, history.pauses.len() - usize::from(of_all));
    }
}

/// The place where the loop puts it and the server finds it.
#[derive(Debug, Default)]
pub struct Share {
    live: RwLock<Live>,
    first_read: Notify,
}

impl Share {
    /// Replaces what is shown.
    pub fn set(&self, live: Live) {
        if live.read_at.is_some() {
            self.first_read.notify_one();
        }
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = live;
    }

    /// What is shown now.
    #[must_use]
    pub fn get(&self) -> Live {
        self.live.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// When Hangar's process began, as it tells itself.
    #[must_use]
    pub fn process_start(&self) -> Option<Timestamp> {
        self.live.read().unwrap_or_else(PoisonError::into_inner).process_start
    }

    /// Hangar's metrics were read once.
    pub async fn first_read(&self) {
        self.first_read.notified().await;
    }
}
