//! What is said of one server. These series come and go with their server's trouble, so their number is that of open incidents.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use prometheus::GaugeVec;

use super::Metrics;
use super::family::{Registrar, opts};
use crate::policy::{Hold, Outcome, Phase, Rung};

/// Label values in the order of their names.
type Values = Vec<String>;

/// Series by server.
pub(super) struct Servers {
    info: Shown,
    incident: Shown,
    attempt: Shown,
}

/// A family whose series are replaced as a whole.
struct Shown {
    family: GaugeVec,
    now: Mutex<BTreeMap<Values, f64>>,
}

impl Shown {
    fn register(r: &Registrar<'_>, name: &str, help: &str, labels: &[&str]) -> Result<Self, prometheus::Error> {
        Ok(Self { family: r.add(GaugeVec::new(opts(name, help), labels)?)?, now: Mutex::default() })
    }

    fn replace(&self, series: impl IntoIterator<Item = (Values, f64)>) {
        let next: BTreeMap<Values, f64> = series.into_iter().collect();
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in now.keys().filter(|values| !next.contains_key(*values)) {
            // It can only fail if the series is gone already.
            let _ = self.family.remove_label_values(&gone.iter().map(String::as_str).collect::<Vec<_>>());
        }
        for (values, value) in next.iter().filter(|(values, value)| now.get(*values) != Some(*value)) {
            if let Ok(gauge) = self.family.get_metric_with_label_values(&values.iter().map(String::as_str).collect::<Vec<_>>()) {
                gauge.set(*value);
            }
        }
        *now = next;
    }
}

/// One attempt for a server, as its series shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerAttempt<'a> {
    pub mcp_server: &'a str,
    pub action: Rung,
    /// `None` until it is settled.
    pub outcome: Option<Outcome>,
    pub started_at: Timestamp,
}

impl Servers {
    pub(super) fn register(r: &Registrar<'_>) -> Result<Self, prometheus::Error> {
        let info = "Always 1; whom policy.owners names for the server. No series for a server that it does not name.";
        let incident = "1 while the server has an open incident: where it stands and what holds it (none: nothing).";
        let attempt = "Unix time in seconds of the server's newest attempt of this action, by outcome (open until settled); \
                       no series some minutes after its incident.";
        Ok(Self {
            info: Shown::register(r, "server_info", info, &["mcp_server", "owner"])?,
            incident: Shown::register(r, "server_incident", incident, &["mcp_server", "phase", "hold"])?,
            attempt: Shown::register(r, "server_attempt_timestamp_seconds", attempt, &["mcp_server", "action", "outcome"])?,
        })
    }
}

impl Metrics {
    /// Replaces who owns which known server.
    pub fn set_owners<'a>(&self, owners: impl IntoIterator<Item = (&'a str, &'a str)>) {
        self.servers.info.replace(owners.into_iter().map(|(server, owner)| (vec![server.to_owned(), owner.to_owned()], 1.0)));
    }

    /// Replaces where each server's open incident stands.
    pub fn set_server_incidents<'a>(&self, open: impl IntoIterator<Item = (&'a str, Phase, Option<Hold>)>) {
        let series = |(server, phase, hold): (&str, Phase, Option<Hold>)| {
            (vec![server.to_owned(), phase.as_str().to_owned(), hold.map_or("none", Hold::as_str).to_owned()], 1.0)
        };
        self.servers.incident.replace(open.into_iter().map(series));
    }

    /// Replaces the newest attempts of each server; of two of one action and server the later in the sequence counts.
    pub fn set_server_attempts<'a>(&self, attempts: impl IntoIterator<Item = ServerAttempt<'a>>) {
        let newest: BTreeMap<(&str, Rung), ServerAttempt<'_>> =
            attempts.into_iter().map(|attempt| ((attempt.mcp_server, attempt.action), attempt)).collect();
        let series = |((server, action), attempt): ((&str, Rung), ServerAttempt<'_>)| {
            let outcome = attempt.outcome.map_or("open", Outcome::as_str);
            (vec![server.to_owned(), action.as_str().to_owned(), outcome.to_owned()], attempt.started_at.as_duration().as_secs_f64())
        };
        self.servers.attempt.replace(newest.into_iter().map(series));
    }
}
