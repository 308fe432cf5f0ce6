//! What people ask for, what the configuration leaves alone, and what stands of it by the attempt log.

use std::collections::{BTreeMap, BTreeSet};

use hangar_medic::policy::{ApprovalEnd, Body, Mode, Rung};
use jiff::Timestamp;
use serde_json::Value;

use super::super::time::{mono, wall};
use super::Check;

/// A maintenance window: each hour at this minute, for so many minutes.
#[derive(Debug, Clone)]
pub struct Span {
    pub minute: i64,
    pub lasts: i64,
    /// One server, or all.
    pub server: Option<String>,
}

impl Span {
    fn open(&self, id: &str, now: Timestamp) -> bool {
        let hour = 3_600_000;
        let since = (now.as_millisecond() - self.minute * 60_000).rem_euclid(hour);
        since < self.lasts * 60_000 && self.server.as_ref().is_none_or(|server| server == id)
    }
}

#[derive(Debug, Clone)]
struct Approved {
    id: String,
    action: Rung,
    until: Timestamp,
    at: Timestamp,
    /// The undeclared tools that were shown, where they were known.
    undeclared: Option<BTreeSet<String>>,
}

/// See the module's page.
#[derive(Debug, Clone, Default)]
pub struct People {
    pub windows: Vec<Span>,
    pub asked_hold: BTreeSet<String>,
    pub asked_resume: BTreeSet<String>,
    pub asked_pause: BTreeSet<Option<String>>,
    pub asked_unpause: BTreeSet<Option<String>>,
    /// Evidence that a person with a role that is permitted it approved, by incident.
    pub asked_approval: BTreeSet<(String, String)>,
    pauses: BTreeMap<Option<String>, Timestamp>,
    approvals: BTreeMap<String, Approved>,
    pub approvals_used: usize,
    /// Somebody looks after what waits for a person, once all faults have ended.
    pub tend: bool,
}

impl People {
    fn paused(&self, id: &str) -> bool {
        [None, Some(id.to_owned())].iter().any(|key| self.pauses.get(key).is_some_and(|until| wall() < *until))
    }

    /// The attempt that opens uses it up.
    pub fn uses_approval(&mut self, incident: &str, action: Rung) -> bool {
        let used = self.approvals.get(incident).is_some_and(|a| a.action == action);
        if used {
            self.approvals.remove(incident);
            self.approvals_used += 1;
        }
        used
    }

    pub fn standing_pauses(&self) -> Vec<Option<String>> {
        self.pauses.keys().cloned().collect()
    }
}

impl Check {
    /// The configuration says that nothing is done to it.
    pub(super) fn only_watched(&self, id: &str) -> bool {
        let rule = self.policy.servers.iter().find(|rule| rule.servers.matches(id));
        // No rule lifts what holds for all.
        self.policy.mode == Mode::Observe || rule.is_some_and(|rule| !rule.enabled || rule.mode == Some(Mode::Observe))
    }

    /// Starts of it within the window.
    pub(super) fn starts_max(&self, id: &str) -> usize {
        let rule = self.policy.servers.iter().find(|rule| rule.servers.matches(id));
        rule.and_then(|rule| rule.starts_per_server).unwrap_or(self.policy.budgets.starts_per_server).get() as usize
    }

    /// Not even looking is begun on what people keep their hands on.
    pub(super) fn may_begin(&mut self, attempt: &str, id: &str) {
        if self.people.paused(id) {
            self.broken(format!("{attempt}: begun while paused"));
        }
        if self.people.windows.iter().any(|window| window.open(id, wall())) {
            self.broken(format!("{attempt}: begun in a maintenance window"));
        }
        if self.policy.servers.iter().find(|rule| rule.servers.matches(id)).is_some_and(|rule| !rule.enabled) {
            self.broken(format!("{attempt}: begun on a server that is opted out"));
        }
    }

    /// A blocked server is acted on only with an approval of exactly what is known of it.
    pub(super) fn approved(&mut self, attempt: &str, id: &str, action: Rung) {
        let incident = self.case(id).map(|c| c.id.clone()).unwrap_or_default();
        let Some(approved) = self.people.approvals.get(&incident).filter(|a| a.action == action).cloned() else {
            return self.broken(format!("{attempt}: acts on a capability-blocked server without approval"));
        };
        if wall() >= approved.until || wall() < approved.at {
            self.broken(format!("{attempt}: the approval is over"));
        }
        let known = self.heard.blocked.get(id).filter(|tools| !tools.is_empty());
        // What is heard at this very moment may be judged in the next turn.
        let settled = mono() > self.heard.blocked_at + 400;
        if settled && approved.undeclared.as_ref().zip(known).is_some_and(|(shown, known)| shown != known) {
            self.broken(format!("{attempt}: the approval is of other tools"));
        }
    }

    pub(super) fn asked(&mut self, body: &Body) {
        match body {
            Body::Paused { mcp_server, until, .. } => {
                if !self.people.asked_pause.contains(mcp_server) {
                    self.broken(format!("{mcp_server:?}: paused, and nobody asked for it"));
                }
                self.people.pauses.insert(mcp_server.clone(), *until);
            }
            Body::Unpaused { mcp_server, .. } => {
                let until = self.people.pauses.remove(mcp_server);
                if until.is_none_or(|until| wall() < until) && !self.people.asked_unpause.contains(mcp_server) {
                    self.broken(format!("{mcp_server:?}: a pause ended before its time"));
                }
            }
            Body::Approved { approval_id, incident_id, action, evidence_sha256, evidence, expires_at, .. } => {
                if !self.people.asked_approval.contains(&(incident_id.clone(), evidence_sha256.clone())) {
                    self.broken(format!("{incident_id}: approved what no permitted person looked at"));
                }
                let names = |tools: &Vec<Value>| tools.iter().filter_map(Value::as_str).map(str::to_owned).collect();
                let undeclared = evidence["undeclared_tools"].as_array().map(names);
                let new = Approved { id: approval_id.clone(), action: *action, until: *expires_at, at: wall(), undeclared };
                self.people.approvals.insert(incident_id.clone(), new);
            }
            Body::ApprovalEnded { approval_id, incident_id, how, .. } => {
                let Some(ended) = self.people.approvals.remove(incident_id).filter(|a| a.id == *approval_id) else {
                    return self.broken(format!("{approval_id}: ended, and did not stand"));
                };
                if *how == ApprovalEnd::Expired && wall() < ended.until {
                    self.broken(format!("{approval_id}: expired before its time"));
                }
            }
            _ => {}
        }
    }
}
