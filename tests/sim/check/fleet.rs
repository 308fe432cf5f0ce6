//! Actions that take many servers down and bring them back.

use hangar_medic::policy::{Outcome, Reason, Rung, Saved};

use super::super::hangar::Hangar;
use super::super::time::mono;
use super::{Check, Try};

impl Check {
    /// What is to be brought back is on record: everything that was seen ready, and nothing that must be left alone.
    pub(super) fn saves(&mut self, attempt: &str, saved: &Saved) {
        let Some(t) = self.tries.get(attempt).cloned() else { return self.broken(format!("{attempt}: saves, and was never opened")) };
        let brings: Vec<&String> = saved.ready.iter().chain(&saved.dead).collect();
        for id in &brings {
            let blocked = self.case(id).is_some_and(|c| c.reason == Reason::CapabilityBlocked);
            if blocked || self.orders.contains_key(*id) {
                self.broken(format!("{attempt}: is to bring back {id}, which must be left alone"));
            }
        }
        let forgotten = self.heard.ready.iter().find(|id| !brings.contains(id) && !saved.left.contains(*id));
        if let Some(id) = forgotten.filter(|_| t.action.restores_fleet()).cloned() {
            self.broken(format!("{attempt}: {id} was ready, and is not to be brought back"));
        }
        self.tried(attempt, |t| t.saved = Some(saved.clone()));
    }

    pub(super) fn begins_second(&mut self, attempt: &str) {
        let now = mono();
        self.tried(attempt, |t| {
            t.seconds += 1;
            t.second_at = now;
        });
    }

    /// A hold order that stood when the second half was begun.
    pub(super) fn ordered_before(&self, id: &str, second_at: i64) -> bool {
        self.orders_at.get(id).is_some_and(|at| self.orders.contains_key(id) && *at <= second_at)
    }

    /// What is begun while every server is being brought back, or while others are at work and it would take them all down.
    pub(super) fn alone(&mut self, attempt: &str, action: Rung) {
        let open = |t: &&Try| t.outcome.is_none();
        if self.tries.values().filter(open).any(|t| t.action.restores_fleet()) {
            self.broken(format!("{attempt}: begun while every server is being brought back"));
        }
        if action.restores_fleet() && self.tries.values().any(|t| t.outcome.is_none()) {
            self.broken(format!("{attempt}: begun while others are at work"));
        }
    }

    /// A narrower start of ours ran in this incident and was not enough; no broad action is begun twice in a row.
    pub(super) fn may_be_broad(&mut self, attempt: &str, id: &str, action: Rung) {
        let incidents = self.chain_of(id);
        let ran = |t: &Try| t.action.rank() >= 2 && t.action < action && t.sent.keys().any(|(_, what)| *what == "start");
        let narrower = self.tries.values().any(|t| incidents.contains(&t.incident) && ran(t) && t.outcome.is_some_and(Outcome::counts));
        if !narrower {
            self.broken(format!("{attempt}: a broad action without a narrower start that ran and did not help"));
        }
        let now = mono();
        for budget in self.policy.budgets.rungs.clone().iter().filter(|budget| budget.action == action) {
            let from = now - super::millis(budget.window) + 1_000;
            let lately = self.tries.values().filter(|t| t.action == action && t.outcome != Some(Outcome::NotApplicable));
            let lately = lately.filter(|t| t.ended.unwrap_or(now) > from).count();
            if lately >= budget.actions.get() as usize * (1 + self.steps as usize) {
                self.broken(format!("{attempt}: the {}. {action} within {:#}", lately + 1, budget.window));
            }
        }
    }

    /// The incident that is open, and those that it goes on with.
    fn chain_of(&self, id: &str) -> Vec<String> {
        let mut chain = Vec::new();
        let mut next = self.case(id).map(|c| c.id.clone());
        while let Some(case) = next.as_ref().and_then(|id| self.cases.iter().find(|c| c.id == *id)) {
            chain.push(case.id.clone());
            next.clone_from(&case.reopens);
        }
        chain
    }

    /// Everything that stood before is there again.
    pub(super) fn brought_back(&mut self, attempt: &str, done: &Try, hangar: &Hangar) {
        let Some(saved) = &done.saved else { return self.broken(format!("{attempt}: recovered, and nothing was saved")) };
        for id in saved.ready.iter().chain(&saved.dead) {
            let forbidden = self.orders.contains_key(id) || self.case(id).is_some_and(|c| c.reason == Reason::CapabilityBlocked);
            let idle = hangar.servers.get(id).is_none_or(|s| s.ever_stopped);
            if !forbidden && !idle && !self.served_lately(hangar, id) {
                self.broken(format!("{attempt}: recovered, and {id} is not back"));
            }
        }
    }

    /// One attempt, however many servers it heals.
    pub(super) fn brought_back_by_fleet(&self, id: &str, opened: i64) -> bool {
        self.tries.values().any(|t| {
            let covers = t.saved.as_ref().is_some_and(|saved| saved.ready.contains(id) || saved.dead.contains(id));
            covers && t.opened >= opened && t.action.restores_fleet() && t.outcome != Some(Outcome::NotApplicable)
        })
    }

    /// A restart of ours was under way then.
    pub(super) fn in_charge_at(&self, at: i64) -> bool {
        self.tries.values().any(|t| t.action.restores_fleet() && t.opened <= at && t.ended.is_none_or(|ended| ended >= at))
    }

    /// It had to bring this server back.
    pub(super) fn brings_back_at(&self, id: &str, at: i64) -> bool {
        self.tries.values().any(|t| {
            let saved = t.saved.as_ref().is_some_and(|saved| saved.ready.contains(id) || saved.dead.contains(id));
            saved && t.action.restores_fleet() && t.opened <= at && t.ended.is_none_or(|ended| ended >= at)
        })
    }

    /// The last restart of ours told a person that not everything came back.
    pub(super) fn told_of_loss(&self) -> bool {
        let last =
            self.tries.values().filter(|t| t.action.restores_fleet() && t.outcome != Some(Outcome::NotApplicable)).max_by_key(|t| t.opened);
        last.is_some_and(|t| t.outcome.is_some_and(Outcome::counts))
    }
}
