//! What actions that take something away need of the loop: what stood before is written down with the intent.

use std::collections::BTreeSet;

use super::Engine;
use crate::policy::{Action, Body, Reason, Rung, Saved, State, deliberate_stops, to_save};

impl Engine {
    /// What stands now and would be lost; `None` for actions that take nothing away.
    pub(super) fn saved(&self, action: &Action) -> Option<Saved> {
        if !action.rung.saves_first() {
            return None;
        }
        let with = |states: &[State]| -> BTreeSet<String> {
            self.board.gauges().filter(|(_, state)| states.contains(state)).map(|(id, _)| id.clone()).collect()
        };
        let (up, dead) = (with(&[State::Ready, State::Degraded, State::Initializing]), with(&[State::Dead]));
        let mut saved = to_save(&self.history, action.rung, &action.mcp_server, &up, &dead);
        let stops = saved.ready.iter().chain(&saved.dead).map(|id| (id.clone(), self.board.stops(id).map_or(0, deliberate_stops)));
        saved.stops = stops.filter(|(_, n)| *n > 0).collect();
        if action.rung == Rung::ConnectorRestart {
            saved.member = self.board.member(&action.mcp_server).cloned();
        }
        Some(saved)
    }

    /// The second half's intent is durable too: what is begun again and again takes Hangar down.
    pub(super) async fn begin_second(&mut self, action: &Action) -> bool {
        if !action.rung.saves_first() {
            return true;
        }
        let process_start = self.board.process_start();
        self.append(vec![Body::AttemptSecond { attempt_id: action.attempt_id.clone(), process_start }]).await
    }

    /// What was saved, less what has been forbidden since.
    pub(super) fn still_to_do(&self, action: &Action) -> Option<Saved> {
        let attempts = self.history.open.get(&action.mcp_server).map(|i| i.attempts.as_slice()).unwrap_or_default();
        let mut saved = attempts.iter().find(|a| a.attempt_id == action.attempt_id)?.saved.clone()?;
        let expected = saved.expected(&self.history);
        let lost: Vec<String> = saved.ready.iter().chain(&saved.dead).filter(|id| !expected.contains(*id)).cloned().collect();
        saved.left.extend(lost);
        saved.left.extend(self.left_alone());
        saved.ready.retain(|id| expected.contains(id));
        saved.dead.retain(|id| expected.contains(id));
        Some(saved)
    }

    fn left_alone(&self) -> impl Iterator<Item = String> {
        let blocked = self.history.open.values().filter(|i| i.reason == Reason::CapabilityBlocked).map(|i| &i.mcp_server);
        self.history.orders.keys().chain(blocked).cloned()
    }

    /// Bringing many back takes a while: what is forbidden meanwhile is not started any more.
    pub(super) fn tell_what_is_left_alone(&self) {
        if self.history.fleet_under_way().is_some() || self.running.iter().any(|id| self.brings_back(id)) {
            self.parts.executor.leave_alone(self.left_alone().collect());
        }
    }

    fn brings_back(&self, attempt: &str) -> bool {
        let attempts = self.history.open.values().filter_map(crate::policy::Incident::open_attempt);
        attempts.into_iter().any(|a| a.attempt_id == attempt && a.action.saves_first())
    }
}
