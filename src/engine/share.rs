//! What the loop shows to the server: replaced as a whole after each turn, read without waiting.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use jiff::Timestamp;
use tokio::sync::Notify;

use crate::metrics::{Metrics, OpenIncident};
use crate::observe::board::Board;
use crate::policy::{History, HoldOrder, Phase, Plan, Snapshot, Standing};

/// The daemon at the end of its last turn.
#[derive(Debug, Clone, Default)]
pub struct Live {
    pub standings: BTreeMap<String, Standing>,
    pub orders: Vec<HoldOrder>,
    pub known: usize,
    pub incidents_open: usize,
    pub fresh: bool,
    pub read_at: Option<Timestamp>,
    pub process_start: Option<Timestamp>,
    pub version: Option<(u32, u32, u32)>,
}

impl Live {
    pub(super) fn new(plan: &Plan, snapshot: &Snapshot, history: &History, board: &Board) -> Self {
        Self {
            standings: plan.standings.clone(),
            orders: history.orders.values().cloned().collect(),
            known: board.known(),
            incidents_open: history.open.len(),
            fresh: snapshot.hangar.fresh,
            read_at: board.read_at(),
            process_start: board.process_start(),
            version: board.version(),
        }
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

    /// Hangar's metrics were read once.
    pub async fn first_read(&self) {
        self.first_read.notified().await;
    }
}
