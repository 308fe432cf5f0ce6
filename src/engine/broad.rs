//! What actions that take something away need of the loop: what stood before is written down with the intent.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Engine;
use crate::execute::hangar::{SERVERS_BEFORE, named};
use crate::policy::{Action, Attempt, Body, Incident, Reason, Rung, Saved, State, deliberate_stops, to_save};

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
        if action.rung == Rung::ConfigurationReload {
            saved.known = self.board.known_ids().map(str::to_owned).collect();
        }
        Some(saved)
    }

    /// What the first half found, for the receipt that comes with the second: another process may have done it.
    pub(super) fn found_before(&self, action: &Action) -> BTreeMap<String, Value> {
        let Some(attempt) = self.attempt_of(action) else { return BTreeMap::new() };
        let mut found = attempt.evidence.clone();
        // It ended before it was written down: what was known when it began is.
        if let Some(saved) = attempt.saved.as_ref().filter(|saved| !saved.known.is_empty()) {
            found.entry(SERVERS_BEFORE.to_owned()).or_insert_with(|| named(&saved.known));
        }
        found
    }

    /// The second half's intent is durable too: what is begun again and again takes Hangar down.
    pub(super) async fn begin_second(&mut self, action: &Action) -> bool {
        let starts_after_lease = action.rung == Rung::LeaseRecovery && action.group.is_none();
        if !action.rung.saves_first() && !starts_after_lease {
            return true;
        }
        let process_start = self.board.process_start();
        self.append(vec![Body::AttemptSecond { attempt_id: action.attempt_id.clone(), process_start }]).await
    }

    /// What was saved, less what has been forbidden since.
    pub(super) fn still_to_do(&self, action: &Action) -> Option<Saved> {
        let mut saved = self.attempt_of(action)?.saved.clone()?;
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
        let at_work = |a: &Attempt| a.action.saves_first() && self.running.contains(&a.attempt_id);
        if self.history.open.values().filter_map(Incident::open_attempt).any(at_work) {
            self.parts.executor.leave_alone(self.left_alone().collect());
        }
    }

    fn attempt_of(&self, action: &Action) -> Option<&Attempt> {
        self.history.open.get(&action.mcp_server)?.attempt(&action.attempt_id)
    }
}
