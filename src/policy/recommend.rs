//! What to try next: from the symptoms' first rung upwards, past what was tried and did not help.

use serde::{Deserialize, Serialize};

use super::attempt::AttemptRecord;
use super::ladder::Rung;
use super::record::Outcome;
use super::symptom::Symptom;
use super::words::words;

words! {
    /// Where a rung stands in the walk.
    pub enum Place as "place" {
        /// Tried, and it did not help.
        Passed = "passed",
        /// To be tried now.
        Next = "next",
        /// To be tried if everything before does not help.
        Later = "later",
    }
}

/// One rung of the walk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stride {
    pub rank: u8,
    pub action: Rung,
    pub self_service: bool,
    /// The gate must allow it first.
    pub broad: bool,
    pub place: Place,
    pub why: String,
}

/// What `recommend` answers. Soft: it never replaces the gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recommendation {
    pub symptoms: Vec<Symptom>,
    /// The narrowest first rung over all symptoms.
    pub first_rung: Rung,
    /// `None` when the whole ladder was walked: a person is needed.
    pub next: Option<Rung>,
    pub why: String,
    pub walk: Vec<Stride>,
}

/// The latest counting outcome of each action: all that `recommend` needs to know of any number of attempts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tried([Option<Outcome>; Rung::ALL.len()]);

impl Tried {
    /// One more attempt.
    pub fn add(&mut self, attempt: &AttemptRecord) {
        if let Some(last) = self.0.get_mut(usize::from(attempt.action.rank())).filter(|_| attempt.outcome.counts()) {
            *last = Some(attempt.outcome);
        }
    }

    fn of(&self, rung: Rung) -> Option<Outcome> {
        self.0.get(usize::from(rung.rank())).copied().flatten()
    }
}

/// Recommends. `None` without symptoms: there is nothing to recommend for.
#[must_use]
pub fn recommend(symptoms: &[Symptom], tried: &Tried) -> Option<Recommendation> {
    let leading = symptoms.iter().copied().min_by_key(|s| s.first_rung())?;
    let first = leading.first_rung();
    let mut next = None;
    let walk: Vec<Stride> = Rung::ALL.iter().copied().filter(|r| *r >= first).map(|rung| stride(rung, leading, tried, &mut next)).collect();
    let why = match walk.iter().find(|s| s.place == Place::Next) {
        Some(stride) => stride.why.clone(),
        None => "every action from the first rung to the broadest was tried and did not help: a person is needed".to_owned(),
    };
    Some(Recommendation { symptoms: symptoms.to_vec(), first_rung: first, next, why, walk })
}

fn stride(rung: Rung, leading: Symptom, tried: &Tried, next: &mut Option<Rung>) -> Stride {
    let (place, why) = match (tried.of(rung), *next) {
        (Some(outcome), _) => (Place::Passed, format!("tried: {outcome}")),
        (None, Some(_)) => (Place::Later, "if what comes before does not help".to_owned()),
        (None, None) => {
            *next = Some(rung);
            (Place::Next, reason(rung, leading))
        }
    };
    Stride { rank: rung.rank(), action: rung, self_service: rung.self_service(), broad: rung.broad(), place, why }
}

fn reason(rung: Rung, leading: Symptom) -> String {
    let mut why = if rung == leading.first_rung() {
        format!("the narrowest action that can clear {leading}")
    } else {
        format!("the narrowest action not yet tried for {leading}")
    };
    if rung.broad() {
        why.push_str("; broad: assess must allow it first");
    }
    why
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(symptoms: &[Symptom], attempts: &[(Rung, Outcome)]) -> Option<Rung> {
        let mut tried = Tried::default();
        for (action, outcome) in attempts {
            tried.add(&AttemptRecord::new(*action, *outcome, "r", "a", jiff::Timestamp::UNIX_EPOCH));
        }
        recommend(symptoms, &tried).unwrap().next
    }

    #[test]
    fn each_symptom_begins_at_its_rung() {
        for (symptom, rung) in [
            ("transport_eof", "client_reconnect"),
            ("stale_capability", "capability_refresh"),
            ("stale_session", "session_reconnect"),
            ("config_drift", "configuration_reload"),
            ("stale_lease", "lease_recovery"),
            ("worker_corrupt", "worker_restart"),
            ("group_unavailable", "role_runtime_restart"),
            ("connector_corrupt", "connector_restart"),
            ("daemon_corrupt", "rolling_mcp_restart"),
            ("server_crashed", "client_reconnect"),
            ("hangar_unreachable", "client_reconnect"),
            ("server_capability_blocked", "capability_refresh"),
            ("server_start_failed", "capability_refresh"),
            ("server_given_up", "capability_refresh"),
            ("server_lost_in_restart", "capability_refresh"),
            ("server_not_seen_healthy", "session_reconnect"),
            ("server_stuck_starting", "worker_restart"),
            ("server_degraded_too_long", "worker_restart"),
        ] {
            let symptom: Symptom = symptom.parse().unwrap();
            assert_eq!(next(&[symptom], &[]).unwrap().as_str(), rung, "{symptom}");
        }
        assert_eq!(Symptom::ALL.len(), 18);
    }

    #[test]
    fn the_narrowest_of_several_leads() {
        assert_eq!(next(&[Symptom::DaemonCorrupt, Symptom::StaleLease, Symptom::WorkerCorrupt], &[]), Some(Rung::LeaseRecovery));
    }

    #[test]
    fn what_was_tried_and_did_not_help_is_passed_and_nothing_else() {
        let (failed, eof) = (Outcome::Failed, [Symptom::TransportEof]);
        assert_eq!(next(&eof, &[(Rung::ClientReconnect, Outcome::Insufficient)]), Some(Rung::CapabilityRefresh));
        assert_eq!(next(&eof, &[(Rung::CapabilityRefresh, Outcome::Insufficient)]), Some(Rung::ClientReconnect));
        for outcome in [Outcome::Recovered, Outcome::Cancelled, Outcome::NotApplicable] {
            assert_eq!(next(&eof, &[(Rung::ClientReconnect, outcome)]), Some(Rung::ClientReconnect));
        }
        let below = [(Rung::ClientReconnect, failed), (Rung::SessionReconnect, failed)];
        assert_eq!(next(&[Symptom::StaleSession], &below), Some(Rung::ConfigurationReload));
        let all: Vec<_> = Rung::ALL.iter().map(|r| (*r, failed)).collect();
        assert_eq!(next(&eof, &all), None);
    }

    #[test]
    fn the_walk_says_where_each_rung_stands_and_why() {
        let mut tried = Tried::default();
        tried.add(&AttemptRecord::new(Rung::ConnectorRestart, Outcome::Timeout, "r", "a", jiff::Timestamp::UNIX_EPOCH));
        let found = recommend(&[Symptom::ConnectorCorrupt], &tried).unwrap();
        let lines: Vec<String> = found.walk.iter().map(|s| format!("{} {} {}: {}", s.rank, s.action, s.place, s.why)).collect();
        assert_eq!(
            lines,
            [
                "7 connector_restart passed: tried: timeout",
                "8 rolling_mcp_restart next: the narrowest action not yet tried for connector_corrupt; broad: assess must allow it first",
                "9 full_mcp_restart later: if what comes before does not help",
                "10 host_restart later: if what comes before does not help",
            ]
        );
        assert_eq!(recommend(&[], &tried), None);
    }
}
