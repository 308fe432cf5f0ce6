//! What the loop shows to the server: replaced as a whole after each turn, read without waiting.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use jiff::Timestamp;

use crate::metrics::{Metrics, OpenIncident};
use crate::observe::board::Board;
use crate::policy::{Auth, History, HoldOrder, Phase, Plan, Snapshot, Standing, State};

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
    pub auth: Option<Auth>,
}

impl Live {
    pub(super) fn new(plan: &Plan, snapshot: &Snapshot, history: &History, board: &Board) -> Self {
        let auth = if snapshot.hangar.auth_refused { Auth::Refused } else { Auth::Unknown };
        Self {
            standings: plan.standings.clone(),
            orders: history.orders.values().cloned().collect(),
            known: board.known(),
            incidents_open: history.open.len(),
            fresh: snapshot.hangar.fresh,
            read_at: board.read_at(),
            process_start: board.process_start(),
            version: board.version(),
            auth: Some(auth),
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
pub struct Share(RwLock<Live>);

impl Share {
    /// Replaces what is shown.
    pub fn set(&self, live: Live) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = live;
    }

    /// What is shown now.
    #[must_use]
    pub fn get(&self) -> Live {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A server is dead for the metric while its incident is open; ready ones that do not work are told by their incident.
#[must_use]
pub fn is_dead(state: Option<State>) -> bool {
    state == Some(State::Dead)
}
