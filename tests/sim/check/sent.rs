//! What reaches Hangar.

use hangar_medic::policy::{Reason, Rung};

use super::super::hangar::Hangar;
use super::super::time::mono;
use super::Check;

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
    pub fn arrives(&mut self, path: &str, served: bool, hangar: &Hangar) {
        let parts: Vec<&str> = path.split('/').collect();
        let (id, what) = match parts.as_slice() {
            ["api", "mcp_servers", id, what @ ("start" | "stop")] => ((*id).to_owned(), *what),
            ["api", "groups", group, "rebalance"] => return self.rebalances(group),
            _ => return self.broken(format!("POST {path}: nothing of ours")),
        };
        let Some((attempt, t)) = self.open_try(&id).map(|(a, t)| (a.clone(), t.clone())) else {
            return self.broken(format!("POST {path}: no open attempt is on record"));
        };
        if t.receipt.is_some() {
            self.broken(format!("POST {path}: {attempt} has its receipt already"));
        }
        let fits = match (t.action, what) {
            (Rung::SessionReconnect | Rung::LeaseRecovery | Rung::WorkerRestart, "start") | (Rung::WorkerRestart, "stop") => true,
            (_, _) => false,
        };
        if !fits {
            self.broken(format!("POST {path}: {attempt} is a {}", t.action));
        }
        if self.noticed.contains(&id) && what == "start" {
            self.broken(format!("POST {path}: a stop by somebody else was seen before"));
        }
        let blocked = self.case(&id).is_some_and(|c| c.reason == Reason::CapabilityBlocked);
        if blocked && what == "start" && !t.approved {
            self.broken(format!("POST {path}: capability_blocked is on record"));
        }
        if !hangar.servers.get(&id).is_none_or(|s| s.broken) {
            self.broken(format!("POST {path}: nobody broke it"));
        }
        if !served {
            return;
        }
        let sent = if what == "start" { t.starts } else { t.stops };
        if sent > 0 {
            self.broken(format!("POST {path}: {attempt} did that already"));
        }
        self.tried(&attempt, |t| if what == "start" { t.starts += 1 } else { t.stops += 1 });
    }

    fn rebalances(&mut self, group: &str) {
        let ours = self.tries.values().any(|t| t.action == Rung::LeaseRecovery && t.outcome.is_none() && t.receipt.is_none());
        if !ours {
            self.broken(format!("{group}: rebalanced without an attempt"));
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
