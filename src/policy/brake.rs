//! The brakes without which nothing may act: storm, budgets, one per target, cooldown. All of it follows from the history.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::{SignedDuration, Timestamp};

use super::history::{History, Incident, OpenedAt};
use super::hold::Hold;
use super::ladder::Rung;
use super::limits::Policy;
use super::reason::Reason;
use super::snapshot::Snapshot;
use super::when::{after, before};

/// Held by a brake, until then if that is known, and why in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Braked {
    pub hold: Hold,
    pub until: Option<Timestamp>,
    pub why: String,
}

impl Braked {
    /// A hold with its reason.
    pub fn new(hold: Hold, until: Option<Timestamp>, why: impl Into<String>) -> Self {
        Self { hold, until, why: why.into() }
    }
}

/// The incidents of each storm: opened within a window that holds enough of them, or within the next such window.
#[must_use]
pub fn storms(policy: &Policy, history: &History, known: usize) -> Vec<BTreeSet<String>> {
    let need = (policy.storm.servers.get() as usize).max(share_of(policy.storm.share, known));
    let mut storms: Vec<BTreeSet<String>> = Vec::new();
    let mut window: VecDeque<&OpenedAt> = VecDeque::new();
    let mut servers: BTreeMap<&str, usize> = BTreeMap::new();
    // How many of the newest in the window are not members yet.
    let mut unmarked = 0;
    for newest in &history.opened {
        window.push_back(newest);
        unmarked += 1;
        *servers.entry(newest.mcp_server.as_str()).or_default() += 1;
        while let Some(oldest) = window.pop_front_if(|o| newest.at.duration_since(o.at) > policy.storm.window) {
            unmarked = unmarked.min(window.len());
            if let Some(count) = servers.get_mut(oldest.mcp_server.as_str()) {
                *count -= 1;
                if *count == 0 {
                    servers.remove(oldest.mcp_server.as_str());
                }
            }
        }
        if servers.len() >= need {
            let news = window.iter().rev().take(unmarked).map(|o| o.incident_id.clone());
            match storms.last_mut().filter(|_| unmarked < window.len()) {
                Some(storm) => storm.extend(news),
                None => storms.push(news.collect()),
            }
            unmarked = 0;
        }
    }
    storms
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a number of servers, both small and not negative"
)]
fn share_of(share: f64, known: usize) -> usize {
    (share.clamp(0.0, 1.0) * known as f64).ceil() as usize
}

/// The storm as it stands: who belongs to it and who may go on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Storm {
    members: BTreeSet<String>,
    /// Members that may act now: the canary, or after its recovery a slowly growing number.
    allowed: BTreeSet<String>,
    canary_failed: bool,
}

impl Storm {
    /// Judges the storm. `able` tells which open incidents no other hold stops: a canary must be able to act.
    #[must_use]
    pub fn judge(policy: &Policy, history: &History, known: usize, able: &dyn Fn(&Incident) -> bool) -> Self {
        let mut all = Self::default();
        for members in storms(policy, history, known) {
            let one = Self::judge_one(history, members, able);
            all.members.extend(one.members);
            all.allowed.extend(one.allowed);
            all.canary_failed |= one.canary_failed;
        }
        all
    }

    /// What an older storm proved, of which something is left, proves nothing about the next one.
    fn judge_one(history: &History, members: BTreeSet<String>, able: &dyn Fn(&Incident) -> bool) -> Self {
        let mut open: Vec<&Incident> = history.open.values().filter(|i| members.contains(&i.incident_id)).collect();
        // What is left of a storm once nobody of it could act any more (blocked, held) is no storm.
        if !open.iter().any(|i| i.open_attempt().is_some() || able(i)) {
            return Self::default();
        }
        // Whoever was acted on keeps the canary's place; looking takes it from nobody.
        let tried = |i: &Incident| i.attempts.iter().any(|a| !a.action.only_looks() && a.spends_rung());
        open.sort_by_key(|i| (!tried(i), i.open_attempt().is_none(), i.attempts.is_empty(), i.opened_at, i.mcp_server.clone()));
        let recovered = history.opened.iter().filter(|o| o.recovered && members.contains(&o.incident_id)).count();
        // One that was exhausted without a try of ours (it died again on the last rung) proves nothing. Nor does one that a
        // person must decide on by now: it would never be proved.
        let out = |i: &Incident| i.reason == Reason::CapabilityBlocked || history.orders.contains_key(&i.mcp_server);
        let canary_failed = recovered == 0 && open.iter().any(|i| i.exhausted_at.is_some() && tried(i) && !out(i));
        // One canary; then as many at once as have been proved, so that the release doubles at most.
        let places = recovered.max(1);
        let mut allowed: BTreeSet<String> = if canary_failed {
            open.iter().filter(|i| i.open_attempt().is_some()).map(|i| i.incident_id.clone()).collect()
        } else {
            // While its start is under way nothing else could be done there, and its place is taken all the same.
            let at_work = |i: &&&Incident| i.exhausted_at.is_none() && (i.open_attempt().is_some() || able(i));
            open.iter().filter(at_work).take(places).map(|i| i.incident_id.clone()).collect()
        };
        // What is exhausted goes on with its slow retries alone: one of them may end the storm.
        allowed.extend(open.iter().filter(|i| i.exhausted_at.is_some()).map(|i| i.incident_id.clone()));
        Self { members, allowed, canary_failed }
    }

    /// Whether a storm is on.
    #[must_use]
    pub fn active(&self) -> bool {
        !self.members.is_empty()
    }

    /// The canary could not be recovered: nothing but slow retries goes on, and a person is needed.
    #[must_use]
    pub fn canary_failed(&self) -> bool {
        self.canary_failed
    }

    /// The storm's hold on this incident, if any.
    #[must_use]
    pub fn hold(&self, incident: &Incident, rung: Rung) -> Option<Braked> {
        if self.active() && rung.restores_fleet() {
            let why = format!("many servers died at once: {rung} touches every server, the platform's on-call decides");
            return Some(Braked::new(Hold::Storm, None, why));
        }
        if !self.members.contains(&incident.incident_id) || self.allowed.contains(&incident.incident_id) {
            return None;
        }
        let why = if self.canary_failed {
            "many servers died at once and the canary could not be recovered: a shared cause, the platform's on-call is needed"
        } else {
            "many servers died at once: the canary goes first"
        };
        Some(Braked::new(Hold::Storm, None, why))
    }
}

/// The second of two neighbours waits, so that a storm is seen before more than one server is touched.
#[must_use]
pub fn neighbour(policy: &Policy, history: &History, incident: &Incident, now: Timestamp) -> Option<Braked> {
    let until = after(incident.opened_at, policy.neighbour_wait);
    if now >= until || !incident.attempts.is_empty() {
        return None;
    }
    let earlier =
        |o: &&OpenedAt| o.incident_id != incident.incident_id && (o.at, &o.mcp_server) < (incident.opened_at, &incident.mcp_server);
    let from = before(incident.opened_at, policy.neighbour_wait);
    let first = history.opened.partition_point(|o| o.at < from);
    let neighbour = history.opened.range(first..).take_while(|o| o.at <= incident.opened_at).find(earlier)?;
    let why = format!("{} died within {:#} of it: waiting to see whether more do", neighbour.mcp_server, policy.neighbour_wait);
    Some(Braked::new(Hold::Storm, Some(until), why))
}

/// The pause after the last acting rung of this incident.
#[must_use]
pub fn cooldown(policy: &Policy, incident: &Incident, now: Timestamp) -> Option<Braked> {
    let last = incident.attempts.iter().rev().find(|a| !a.action.only_looks() && a.spends_rung())?;
    let pause = policy.rung(last.action).map_or(SignedDuration::ZERO, |r| r.pause);
    let until = after(last.settled_at?, pause);
    (now < until).then(|| Braked::new(Hold::Cooldown, Some(until), format!("pause after {}", last.action)))
}

/// Counts against the budgets, computed once a plan.
#[derive(Debug, Default)]
pub struct Budgets<'a> {
    by_server: BTreeMap<&'a str, (usize, Timestamp)>,
    by_rung: BTreeMap<Rung, (usize, Timestamp)>,
    actions: usize,
    oldest_action: Option<Timestamp>,
    in_flight: usize,
}

impl<'a> Budgets<'a> {
    /// Counts the acting attempts of the windows and the attempts under way; of other medics those that restarted our Hangar.
    #[must_use]
    pub fn count(policy: &Policy, snapshot: &Snapshot, history: &'a History, now: Timestamp) -> Self {
        let mut budgets = Self::default();
        for order in snapshot.others.of_us(policy, history.process_start) {
            let at = order.over_at.unwrap_or(now);
            if policy.budgets.rungs.iter().any(|r| r.action == order.action && now.duration_since(at) < r.window) {
                let entry = budgets.by_rung.entry(order.action).or_insert((0, at));
                *entry = (entry.0 + 1, entry.1.min(at));
            }
        }
        for acted in &history.acted {
            // A record from the future (a clock stepped back) counts: when in doubt, hold.
            let age = acted.age(now);
            let at = acted.ended_at.unwrap_or(now);
            if age < policy.budgets.starts_window {
                let entry = budgets.by_server.entry(acted.mcp_server.as_str()).or_insert((0, at));
                *entry = (entry.0 + 1, entry.1.min(at));
            }
            if policy.budgets.rungs.iter().any(|r| r.action == acted.action && age < r.window) {
                let entry = budgets.by_rung.entry(acted.action).or_insert((0, at));
                *entry = (entry.0 + 1, entry.1.min(at));
            }
            if age < policy.budgets.actions_window {
                budgets.actions += 1;
                budgets.oldest_action = Some(budgets.oldest_action.map_or(at, |oldest| oldest.min(at)));
            }
        }
        budgets.in_flight = history.open.values().filter(|i| i.open_attempt().is_some()).count();
        budgets
    }

    /// Whether one more attempt of `rung` at `server` is within every budget.
    #[must_use]
    pub fn check(&self, policy: &Policy, server: &str, rung: Rung) -> Option<Braked> {
        let limits = &policy.budgets;
        if self.in_flight >= limits.in_flight.get() as usize {
            let why = format!("{} attempts are under way, the most allowed", self.in_flight);
            return Some(Braked::new(Hold::BudgetSpent, None, why));
        }
        if rung.only_looks() {
            return None;
        }
        if let Some((count, oldest)) = self.by_server.get(server)
            && *count >= policy.starts_of(server).get() as usize
        {
            let why = format!("{count} starts of this server within {:#}", limits.starts_window);
            return Some(Braked::new(Hold::BudgetSpent, Some(after(*oldest, limits.starts_window)), why));
        }
        if self.actions >= limits.actions.get() as usize {
            let until = self.oldest_action.map(|at| after(at, limits.actions_window));
            let why = format!("{} actions within {:#}", self.actions, limits.actions_window);
            return Some(Braked::new(Hold::BudgetSpent, until, why));
        }
        for of_rung in limits.rungs.iter().filter(|r| r.action == rung) {
            if let Some((count, oldest)) = self.by_rung.get(&rung)
                && *count >= of_rung.actions.get() as usize
            {
                let why = format!("{count} times {rung} within {:#}", of_rung.window);
                return Some(Braked::new(Hold::BudgetSpent, Some(after(*oldest, of_rung.window)), why));
            }
        }
        None
    }

    /// Books one more attempt of this very plan.
    pub fn book(&mut self, server: &'a str, rung: Rung, now: Timestamp) {
        self.in_flight += 1;
        if !rung.only_looks() {
            self.actions += 1;
            self.oldest_action.get_or_insert(now);
            self.by_server.entry(server).or_insert((0, now)).0 += 1;
            self.by_rung.entry(rung).or_insert((0, now)).0 += 1;
        }
    }
}

#[cfg(test)]
mod tests;
