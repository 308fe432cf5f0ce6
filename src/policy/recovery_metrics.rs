//! How often a full restart was spared (playbook, *Metrics*): a fold over attempts, in memory that does not grow.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ladder::Rung;
use super::record::Outcome;

/// The fold: settled attempts by action and outcome.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecoveryFold(BTreeMap<(Rung, Outcome), u64>);

impl RecoveryFold {
    /// One more attempt.
    pub fn add(&mut self, action: Rung, outcome: Outcome) {
        self.add_many(action, outcome, 1);
    }

    /// `n` more attempts that ended alike.
    pub fn add_many(&mut self, action: Rung, outcome: Outcome, n: u64) {
        let count = self.0.entry((action, outcome)).or_default();
        *count = count.saturating_add(n);
    }

    /// An attempt was settled again: what it counted as before goes.
    pub fn replace(&mut self, action: Rung, before: Outcome, outcome: Outcome) {
        if let Some(count) = self.0.get_mut(&(action, before)) {
            *count = count.saturating_sub(1);
        }
        self.add(action, outcome);
    }

    /// What the fold comes to.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "exact below 2^53 attempts")]
    pub fn report(&self) -> RecoveryMetrics {
        let mut report = RecoveryMetrics::default();
        for ((action, outcome), n) in self.0.iter().filter(|(_, n)| **n > 0) {
            report.attempts += n;
            *report.by_action.entry(*action).or_default() += n;
            *report.by_outcome.entry(*outcome).or_default() += n;
            if *outcome == Outcome::Recovered {
                report.successful_recoveries += n;
                report.avoided_full_restart += if action.is_full_restart() { 0 } else { *n };
            }
        }
        let (avoided, all) = (report.avoided_full_restart, report.successful_recoveries);
        report.fraction_avoided_full_restart = (all > 0).then(|| avoided as f64 / all as f64);
        report
    }
}

/// `recovery-metrics`, `GET /api/v1/recovery-metrics` and the gauge.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RecoveryMetrics {
    pub attempts: u64,
    pub successful_recoveries: u64,
    /// Recoveries whose action was neither `full_mcp_restart` nor `host_restart`.
    pub avoided_full_restart: u64,
    /// 0 to 1; `None` while there is no recovery.
    pub fraction_avoided_full_restart: Option<f64>,
    /// Attempts by action; those that never occurred are left out.
    pub by_action: BTreeMap<Rung, u64>,
    pub by_outcome: BTreeMap<Outcome, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(attempts: &[(Rung, Outcome, u64)]) -> RecoveryMetrics {
        let mut fold = RecoveryFold::default();
        for (action, outcome, n) in attempts {
            fold.add_many(*action, *outcome, *n);
        }
        fold.report()
    }

    #[test]
    fn the_fraction_is_of_recoveries_that_spared_full_mcp_and_host_restart() {
        for (attempts, fraction) in [
            (vec![], None),
            (vec![(Rung::SessionReconnect, Outcome::Failed, 9), (Rung::HostRestart, Outcome::Cancelled, 1)], None),
            (vec![(Rung::SessionReconnect, Outcome::Recovered, 1)], Some(1.0)),
            (vec![(Rung::FullMcpRestart, Outcome::Recovered, 2)], Some(0.0)),
            (vec![(Rung::RollingMcpRestart, Outcome::Recovered, 3), (Rung::HostRestart, Outcome::Recovered, 1)], Some(0.75)),
        ] {
            assert_eq!(report(&attempts).fraction_avoided_full_restart, fraction, "{attempts:?}");
        }
    }

    #[test]
    fn everything_is_counted_by_action_and_outcome() {
        let report = report(&[(Rung::WorkerRestart, Outcome::Recovered, 2), (Rung::WorkerRestart, Outcome::Failed, 1)]);
        let json = serde_json::json!({
            "attempts": 3, "successful_recoveries": 2, "avoided_full_restart": 2, "fraction_avoided_full_restart": 1.0,
            "by_action": {"worker_restart": 3}, "by_outcome": {"recovered": 2, "failed": 1},
        });
        assert_eq!(serde_json::to_value(report).unwrap(), json);
        let none = serde_json::to_value(super::RecoveryFold::default().report()).unwrap();
        assert_eq!((&none["attempts"], &none["fraction_avoided_full_restart"]), (&0.into(), &serde_json::Value::Null));
    }

    #[test]
    fn an_attempt_that_is_settled_again_counts_once() {
        let mut fold = RecoveryFold::default();
        fold.add(Rung::SessionReconnect, Outcome::Recovered);
        fold.add(Rung::FullMcpRestart, Outcome::Recovered);
        fold.replace(Rung::SessionReconnect, Outcome::Recovered, Outcome::Insufficient);
        let report = fold.report();
        assert_eq!((report.attempts, report.fraction_avoided_full_restart), (2, Some(0.0)));
        assert_eq!(report.by_outcome, [(Outcome::Recovered, 1), (Outcome::Insufficient, 1)].into());
    }
}
