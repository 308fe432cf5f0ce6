//! What the medic must know, and must have left, at the moment at which it writes down that it will act.

use std::collections::BTreeSet;

use hangar_medic::policy::{Outcome, Reason, Rung, State};
use jiff::SignedDuration;

use super::super::hangar::Hangar;
use super::super::time::{mono, wall};
use super::{Case, Check, Try, millis, share};

impl Check {
    pub(super) fn may_act(&mut self, attempt: &str, id: &str, action: Rung, hangar: &Hangar) {
        let now = mono();
        if self.only_watched(id) {
            return self.broken(format!("{attempt}: acts on a server that is only to be watched"));
        }
        if self.silenced.contains(id) {
            self.broken(format!("{attempt}: acts on a silenced server"));
        }
        let Some((sent, got)) = self.heard.metrics.filter(|_| !self.heard.metrics_failed) else {
            return self.broken(format!("{attempt}: acts while Hangar's metrics are unknown"));
        };
        let Some(told) = self.heard.rest.get(id).cloned() else {
            return self.broken(format!("{attempt}: acts on a server that Hangar was not asked about"));
        };
        let young = 1_000 + (got - sent) + (told.got - told.sent) + 600;
        if now - sent > young || now - told.sent > young {
            let ages = format!("metrics {} ms, REST {} ms, allowed {young}", now - sent, now - told.sent);
            self.broken(format!("{attempt}: acts on what was not confirmed just before: {ages}"));
        }
        if told.serves {
            self.broken(format!("{attempt}: acts on a server that worked when it was asked about"));
        }
        if !hangar.servers.get(id).is_none_or(|s| s.broken) {
            self.broken(format!("{attempt}: acts on a server that nobody broke"));
        }
        // Before 2.21 only the log tells, and it may be behind.
        let told_blocked = told.reason == Some(Reason::CapabilityBlocked) && hangar.version >= (2, 21, 0);
        let on_record = self.case(id).is_some_and(|c| c.reason == Reason::CapabilityBlocked);
        if told_blocked || on_record || self.heard.blocked.contains_key(id) {
            self.approved(attempt, id, action);
        }
        if self.orders.contains_key(id) {
            self.broken(format!("{attempt}: acts against a hold order"));
        }
        if told.no_start_before.is_some_and(|until| wall() + SignedDuration::from_millis(1_100) < until) && self.steps == 0 {
            self.broken(format!("{attempt}: acts inside Hangar's backoff"));
        }
        let bound = match told.state {
            State::Degraded => Some(self.policy.degraded_too_long_after),
            State::Initializing => Some(self.policy.stuck_starting_after),
            State::Cold | State::Ready | State::Dead => None,
        };
        if let Some(bound) = bound {
            let long_ill =
                hangar.servers.get(id).is_some_and(|s| now - s.last_served > millis(self.policy.not_seen_healthy_after) - 61_000);
            let busy = now - told.busy_since;
            if busy + 100 < millis(bound) && !long_ill && self.steps == 0 {
                self.broken(format!("{attempt}: {action} while {} for {busy} ms only", told.state));
            }
        }
        self.within_budgets(attempt, id, now);
        self.within_storm(attempt, id, now);
        if action.broad() {
            self.may_be_broad(attempt, id, action);
        }
    }

    fn within_budgets(&mut self, attempt: &str, id: &str, now: i64) {
        let budgets = self.policy.budgets.clone();
        let spread = 1 + self.steps as usize;
        let acted = |window: SignedDuration| {
            // A record is dated when it is handed to a disk that may be slow.
            let from = now - millis(window) + 1_000;
            move |t: &&Try| !t.action.only_looks() && t.outcome != Some(Outcome::NotApplicable) && t.ended.unwrap_or(now) > from
        };
        let of_server = self.tries.values().filter(acted(budgets.starts_window)).filter(|t| t.server == id).count();
        let most = self.starts_max(id);
        if of_server >= most * spread {
            self.broken(format!("{attempt}: the {}. start of {id} within {:#}", of_server + 1, budgets.starts_window));
        }
        let all = self.tries.values().filter(acted(budgets.actions_window)).count();
        if all >= budgets.actions.get() as usize * spread {
            self.broken(format!("{attempt}: the {}. action within {:#}", all + 1, budgets.actions_window));
        }
    }

    /// Of many that died at once only one is touched until one came back.
    fn within_storm(&mut self, attempt: &str, id: &str, now: i64) {
        let window = millis(self.policy.storm.window);
        let Some(me) = self.case(id).cloned() else { return };
        // The densest window around this case.
        let near = |c: &&Case| (c.opened - me.opened).abs() <= window;
        let mut times: Vec<i64> = self.cases.iter().filter(near).map(|c| c.opened).collect();
        times.sort_unstable();
        let need = (self.policy.storm.servers.get() as usize).max(share(self.policy.storm.share, self.known));
        let dense = times.iter().filter_map(|from| {
            let inside: BTreeSet<&str> =
                self.cases.iter().filter(|c| c.opened >= *from && c.opened <= from + window).map(|c| c.server.as_str()).collect();
            (inside.len() >= need && me.opened >= *from && me.opened <= from + window).then_some((*from, from + window))
        });
        let Some((from, to)) = dense.into_iter().next() else { return };
        let members: Vec<&Case> = self.cases.iter().filter(|c| c.opened >= from && c.opened <= to).collect();
        let recovered = members.iter().filter(|c| c.recovered).count();
        let exhausted: BTreeSet<&str> = members.iter().filter(|c| c.exhausted).map(|c| c.server.as_str()).collect();
        let formed = members.iter().map(|c| c.opened).max().unwrap_or(now);
        let at_work =
            |t: &&Try| !t.action.only_looks() && t.outcome.is_none() && t.opened >= formed && members.iter().any(|c| c.id == t.incident);
        let busy = self.tries.values().filter(at_work).filter(|t| !exhausted.contains(t.server.as_str())).count();
        if busy >= recovered.max(1) && !exhausted.contains(id) && self.steps == 0 {
            self.broken(format!("{attempt}: {} of a storm are acted on at once, {recovered} came back", busy + 1));
        }
    }
}
