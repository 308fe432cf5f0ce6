//! What reaches Hangar, and the platform.

use hangar_medic::execute::platform::Order;
use hangar_medic::policy::{Reason, Rung};

use super::super::hangar::Hangar;
use super::super::time::mono;
use super::{Check, Try};

impl Check {
    /// A start is about to leave: no more of them a second than allowed.
    pub fn leaves(&mut self, path: &str) {
        if !path.ends_with("/start") {
            return;
        }
        let (now, gap) = (mono(), 1000 / i64::from(self.policy.budgets.starts_per_second.get()));
        if self.heard.started.last().is_some_and(|last| now - last < gap - 1) {
            self.broken(format!("{path}: two starts within {gap} ms"));
        }
        self.heard.started.push(now);
    }

    /// A request that changes something is at Hangar, and `served` it (not refused by the rate limit or at the door).
    pub fn arrives(&mut self, method: &str, path: &str, served: bool, hangar: &Hangar) {
        let parts: Vec<&str> = path.split('/').collect();
        let (id, what) = match (method, parts.as_slice()) {
            ("POST", ["api", "mcp_servers", id, "start"]) => ((*id).to_owned(), "start"),
            ("POST", ["api", "mcp_servers", id, "stop"]) => ((*id).to_owned(), "stop"),
            ("POST", ["api", "groups", group, "rebalance"]) => return self.rebalances(group),
            ("POST", ["api", "groups", group, "members"]) | ("DELETE", ["api", "groups", group, "members", _]) => return self.moves(group),
            _ => return self.broken(format!("{method} {path}: nothing of ours")),
        };
        let Some((attempt, t)) = self.in_charge(&id) else {
            return self.broken(format!("POST {path}: no open attempt is on record"));
        };
        if t.receipt.is_some() {
            self.broken(format!("POST {path}: {attempt} has its receipt already"));
        }
        // How often it may be sent.
        let most = match (t.action, what) {
            // Of a group's members each, or once the upstream is another one.
            (Rung::SessionReconnect | Rung::LeaseRecovery | Rung::WorkerRestart | Rung::RoleRuntimeRestart, "start")
            | (Rung::WorkerRestart, "stop") => 1,
            (_, "start") => t.seconds,
            (_, _) => 0,
        };
        if most == 0 {
            self.broken(format!("POST {path}: {attempt} is a {}", t.action));
        }
        if self.noticed.contains(&id) && what == "start" {
            self.broken(format!("POST {path}: a stop by somebody else was seen before"));
        }
        let blocked = self.case(&id).is_some_and(|c| c.reason == Reason::CapabilityBlocked);
        if blocked && what == "start" && !t.approved {
            self.broken(format!("POST {path}: capability_blocked is on record"));
        }
        if t.server != id && self.ordered_before(&id, t.second_at) {
            self.broken(format!("POST {path}: {attempt} starts it against a hold order"));
        }
        if t.server == id && !hangar.servers.get(&id).is_none_or(|s| s.broken) {
            self.broken(format!("POST {path}: nobody broke it"));
        }
        if !served {
            return;
        }
        if t.sent.get(&(id.clone(), what)).copied().unwrap_or(0) >= most {
            self.broken(format!("POST {path}: {attempt} did that already"));
        }
        self.tried(&attempt, |t| *t.sent.entry((id, what)).or_default() += 1);
    }

    /// The open attempt that may act on this server: its own, or one that brings back many.
    fn in_charge(&self, id: &str) -> Option<(String, Try)> {
        let open = |(_, t): &(&String, &Try)| t.outcome.is_none();
        let of_many = |(_, t): &(&String, &Try)| {
            let brings_back = t.saved.as_ref().is_some_and(|saved| saved.ready.contains(id) || saved.dead.contains(id));
            let of_group = t.action == Rung::RoleRuntimeRestart && t.saved.as_ref().is_some_and(|saved| !saved.left.contains(id));
            brings_back || of_group
        };
        let mine = self.tries.iter().filter(open).find(|(_, t)| t.server == id);
        mine.or_else(|| self.tries.iter().filter(open).find(of_many)).map(|(attempt, t)| (attempt.clone(), t.clone()))
    }

    fn rebalances(&mut self, group: &str) {
        let ours = self.tries.values().any(|t| t.action == Rung::LeaseRecovery && t.outcome.is_none() && t.receipt.is_none());
        if !ours {
            self.broken(format!("{group}: rebalanced without an attempt"));
        }
    }

    fn moves(&mut self, group: &str) {
        let ours = self.tries.values().any(|t| {
            let place = t.saved.as_ref().and_then(|saved| saved.member.as_ref());
            t.action == Rung::ConnectorRestart && t.receipt.is_none() && place.is_some_and(|place| place.group == group)
        });
        if !ours {
            self.broken(format!("{group}: its members are moved without an attempt"));
        }
    }

    /// The platform is told to restart something. `again`: it was told that before; `busy`: another order is being carried out;
    /// `locked`: the lock is this medic's.
    pub fn ordered(&mut self, order: &Order, again: bool, busy: bool, locked: bool) {
        let id = &order.attempt_id;
        let Some(t) = self.tries.get(id).cloned().filter(|t| t.outcome.is_none() && t.receipt.is_none()) else {
            return self.broken(format!("{id}: ordered, and no open attempt is on record"));
        };
        if again {
            self.broken(format!("{id}: ordered twice"));
        }
        if t.action != order.action || t.server != order.mcp_server || t.saved.is_none() {
            self.broken(format!("{id}: ordered is a {} of {}", order.action, order.mcp_server));
        }
        if order.action.restores_fleet() && !locked {
            self.broken(format!("{id}: ordered without the fleet lock"));
        }
        if order.action.restores_fleet() && busy {
            self.broken(format!("{id}: ordered while another restart is carried out"));
        }
    }

    /// A login of ours was refused.
    pub fn refused_login(&mut self, in_a_row: u32) {
        self.logins_refused = self.logins_refused.max(in_a_row);
        if in_a_row >= 8 {
            self.broken(format!("{in_a_row} refused logins in a row: users are about to be locked out"));
        }
    }
}
