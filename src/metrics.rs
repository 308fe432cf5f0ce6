//! Every exported metric: one struct, registered once, all label values present at zero from the start.
//!
//! No label comes from outside but `mcp_server`, and only on what is said of one server, and the configured `owner`.

mod family;
mod groups;
mod servers;

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use prometheus::{IntCounter, Registry, TextEncoder};

use crate::policy::words;
use crate::policy::{ApprovalEvent, Closed, GlassEvent, Hold, Mode, Outcome, Phase, Reason, RecoveryFold, RecoveryMetrics, Rung, Source};
use family::Registrar;
use groups::{Daemon, Incidents, Recovery, Sources};
pub use servers::ServerAttempt;
use servers::Servers;

words! {
    /// What was read from Hangar.
    pub enum ReadKind as "read" {
        Metrics = "metrics",
        Live = "live",
        System = "system",
        Me = "me",
        List = "list",
        Server = "server",
        Tools = "tools",
        Logs = "logs",
        Groups = "groups",
    }
}

words! {
    /// What came of a read.
    pub enum ReadResult as "result of a read" {
        Ok = "ok",
        NotFound = "not_found",
        /// 401, or our address is locked out.
        Refused = "refused",
        /// 403.
        Forbidden = "forbidden",
        RateLimited = "rate_limited",
        Timeout = "timeout",
        Unreachable = "unreachable",
        /// It answered something that could not be understood, or too much of it.
        Malformed = "malformed",
    }
}

/// Codes that the webhook can answer; any other is counted as `other`.
const WEBHOOK_CODES: &[&str] = &["200", "400", "401", "403", "413", "503", "other"];

/// What the counters stood at when the last process ended, from the attempt log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seed {
    pub attempts: BTreeMap<(Rung, Outcome), u64>,
    /// Recovered attempts by the reason of their incident.
    pub recoveries: BTreeMap<(Rung, Reason), u64>,
    pub incidents: BTreeMap<Reason, u64>,
    pub closed: BTreeMap<Closed, u64>,
    pub records: u64,
}

/// One open incident as the gauges count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenIncident {
    pub reason: Reason,
    pub phase: Phase,
    pub hold: Option<Hold>,
}

/// Every metric that the daemon exports. Shared by reference; every method may be called from any task.
pub struct Metrics {
    registry: Registry,
    recovery: Recovery,
    incidents: Incidents,
    sources: Sources,
    daemon: Daemon,
    servers: Servers,
}

impl Metrics {
    /// Makes every family and registers it.
    ///
    /// # Errors
    /// A name is taken in this registry, or a bug in this file.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let r = Registrar(registry);
        let daemon = Daemon::register(&r)?;
        daemon.tls_ok.set(1);
        Ok(Self {
            registry: registry.clone(),
            recovery: Recovery::register(&r)?,
            incidents: Incidents::register(&r)?,
            sources: Sources::register(&r)?,
            daemon,
            servers: Servers::register(&r)?,
        })
    }

    /// Sets the counters to where the attempt log says they stood. Called once, before anything is counted.
    pub fn seed(&self, seed: &Seed) {
        for (key, n) in &seed.attempts {
            self.recovery.attempts.with(key, |c| c.inc_by(*n));
        }
        for (key, n) in &seed.recoveries {
            self.recovery.recoveries.with(key, |c| c.inc_by(*n));
        }
        for (key, n) in &seed.incidents {
            self.incidents.opened.with(key, |c| c.inc_by(*n));
        }
        for (key, n) in &seed.closed {
            self.incidents.closed.with(key, |c| c.inc_by(*n));
        }
        self.daemon.log_records.inc_by(seed.records);
        self.recount(&seed.attempts);
    }

    /// An attempt is settled, for the first time or again: a recovery that did not last leaves the gauge.
    pub fn attempt_settled(&self, action: Rung, before: Option<Outcome>, outcome: Outcome) {
        self.recovery.attempts.with(&(action, outcome), IntCounter::inc);
        self.fold(|fold| match before {
            Some(before) => fold.replace(action, before, outcome),
            None => fold.add(action, outcome),
        });
    }

    /// Replaces what the gauge is computed from: retention took attempts out of the log.
    pub fn recount(&self, settled: &BTreeMap<(Rung, Outcome), u64>) {
        self.fold(|fold| {
            *fold = RecoveryFold::default();
            for ((action, outcome), n) in settled {
                fold.add_many(*action, *outcome, *n);
            }
        });
    }

    /// The fold of the attempt log (playbook, *Metrics*).
    #[must_use]
    pub fn recovery_metrics(&self) -> RecoveryMetrics {
        self.recovery.fold.lock().unwrap_or_else(PoisonError::into_inner).report()
    }

    /// Something happened around break-glass.
    pub fn break_glass(&self, event: GlassEvent) {
        self.recovery.break_glass.with(&event, IntCounter::inc);
    }

    /// Something happened around approvals.
    pub fn approval(&self, event: ApprovalEvent) {
        self.recovery.approvals.with(&event, IntCounter::inc);
    }

    /// Which pauses stand: of everything, and of how many servers.
    pub fn set_pauses(&self, all: bool, servers: usize) {
        self.incidents.pauses.with(&"all", |g| g.set(i64::from(all)));
        self.incidents.pauses.with(&"server", |g| g.set(whole(servers)));
    }

    /// A restart request was judged.
    pub fn restart_requested(&self, allowed: bool) {
        self.recovery.requests.with(&if allowed { "allowed" } else { "refused" }, IntCounter::inc);
    }

    /// A recovery is proved. `took` runs from the server's death to the end of the action that brought it back.
    pub fn recovered(&self, action: Rung, reason: Reason, took: SignedDuration) {
        self.recovery.recoveries.with(&(action, reason), IntCounter::inc);
        self.recovery.took.observe(took.as_secs_f64().max(0.0));
    }

    /// The share of recoveries that needed no full restart; `None` while there are none (playbook, *Metrics*).
    #[must_use]
    pub fn fraction_avoided_full_restart(&self) -> Option<f64> {
        self.recovery_metrics().fraction_avoided_full_restart
    }

    fn fold(&self, change: impl FnOnce(&mut RecoveryFold)) {
        let mut fold = self.recovery.fold.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut fold);
        self.recovery.fraction.set(fold.report().fraction_avoided_full_restart.unwrap_or(f64::NAN));
    }

    /// An incident is opened, `delay` after the death as its source dates it.
    pub fn incident_opened(&self, reason: Reason, delay: SignedDuration) {
        self.incidents.opened.with(&reason, IntCounter::inc);
        self.incidents.detected_after.observe(delay.as_secs_f64().max(0.0));
    }

    /// An incident is closed.
    pub fn incident_closed(&self, how: Closed) {
        self.incidents.closed.with(&how, IntCounter::inc);
    }

    /// Replaces what the gauges say of open incidents. No scrape sees them half done at zero.
    pub fn set_open_incidents(&self, open: impl IntoIterator<Item = OpenIncident>) {
        let mut standing = BTreeMap::<(Reason, Phase), i64>::new();
        let mut held = BTreeMap::<Hold, i64>::new();
        let mut exhausted = 0;
        for incident in open {
            *standing.entry((incident.reason, incident.phase)).or_default() += 1;
            exhausted += i64::from(incident.phase == Phase::Exhausted);
            if let Some(hold) = incident.hold {
                *held.entry(hold).or_default() += 1;
            }
        }
        for (key, gauge) in &self.incidents.open.0 {
            gauge.set(standing.get(key).copied().unwrap_or(0));
        }
        for (key, gauge) in &self.incidents.holds.0 {
            gauge.set(held.get(key).copied().unwrap_or(0));
        }
        self.incidents.exhausted.set(exhausted);
    }

    /// Replaces the set of dead servers. Who is no longer in it loses its series.
    pub fn set_dead<'a>(&self, dead: impl IntoIterator<Item = (&'a str, Reason)>) {
        let dead: BTreeMap<String, Reason> = dead.into_iter().map(|(server, reason)| (server.to_owned(), reason)).collect();
        let mut shown = self.incidents.shown_dead.lock().unwrap_or_else(PoisonError::into_inner);
        for (server, reason) in shown.iter().filter(|(server, reason)| dead.get(*server) != Some(*reason)) {
            // It can only fail if the series is gone already.
            let _ = self.incidents.server_dead.remove_label_values(&[server, reason.as_str()]);
        }
        for (server, reason) in &dead {
            if let Ok(gauge) = self.incidents.server_dead.get_metric_with_label_values(&[server, reason.as_str()]) {
                gauge.set(1);
            }
        }
        *shown = dead;
    }

    /// How many hold orders stand.
    pub fn set_hold_orders(&self, n: usize) {
        self.incidents.hold_orders.set(whole(n));
    }

    /// A source was heard, in good order, at this time.
    pub fn heard(&self, source: Source, at: Timestamp) {
        let mut heard = self.sources.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let last = heard.entry(source).or_insert(at);
        *last = at.max(*last);
    }

    /// Bytes of Hangar's log not yet read.
    pub fn set_log_lag(&self, bytes: u64) {
        self.sources.log_lag.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// A part of Hangar's log was lost before it was read.
    pub fn log_gap(&self) {
        self.sources.log_gaps.inc();
    }

    /// Lines of Hangar's log could not be read as events.
    pub fn log_lines_skipped(&self, lines: u64) {
        self.sources.log_lines_skipped.inc_by(lines);
    }

    /// Two sources gave different reasons for one death.
    pub fn classification_disagreed(&self) {
        self.incidents.disagreements.inc();
    }

    /// A webhook request was answered with this HTTP status code.
    pub fn webhook_answered(&self, code: u16) {
        let code = code.to_string();
        let known = WEBHOOK_CODES.iter().find(|known| **known == code).unwrap_or(&"other");
        self.sources.webhook_requests.with(known, IntCounter::inc);
    }

    /// What one usable delivery held.
    pub fn webhook_delivered(&self, alerts: usize, dropped: usize, truncated: u64) {
        self.sources.alerts.inc_by(alerts as u64);
        self.sources.alerts_dropped.inc_by(dropped as u64);
        self.sources.alerts_truncated.inc_by(truncated);
    }

    /// Hangar was read.
    pub fn hangar_read(&self, kind: ReadKind, result: ReadResult) {
        self.sources.reads.with(&(kind, result), IntCounter::inc);
        if kind == ReadKind::Metrics {
            self.sources.hangar_up.set(i64::from(result == ReadResult::Ok));
        }
    }

    /// Whether the storm brake holds.
    pub fn set_storm(&self, active: bool) {
        self.incidents.storm.set(i64::from(active));
    }

    /// Whether the attempt log took its last write.
    pub fn set_attempt_log_writable(&self, writable: bool) {
        self.daemon.log_writable.set(i64::from(writable));
    }

    /// Records were appended to the attempt log.
    pub fn attempt_log_appended(&self, records: u64) {
        self.daemon.log_records.inc_by(records);
    }

    /// A configuration was loaded; `sha256` is of its effective form.
    pub fn config_loaded(&self, sha256: &[u8; 32], at: Timestamp) {
        // 48 bits are exact in a float.
        let hash = sha256.iter().take(6).fold(0.0, |hash, byte| hash * 256.0 + f64::from(*byte));
        self.daemon.config_hash.set(hash);
        self.daemon.config_at.set(at.as_duration().as_secs_f64());
        self.daemon.config_ok.set(1);
    }

    /// A configuration could not be loaded; the one before stays in use.
    pub fn config_refused(&self) {
        self.daemon.config_ok.set(0);
    }

    /// The certificate files of our own address changed; whether they are in use now.
    pub fn tls_loaded(&self, in_use: bool) {
        self.daemon.tls_ok.set(i64::from(in_use));
    }

    /// The mode in use.
    pub fn set_mode(&self, mode: Mode) {
        for (each, gauge) in &self.daemon.mode.0 {
            gauge.set(i64::from(*each == mode));
        }
    }

    /// The engine planned once.
    pub fn planned(&self, took: Duration) {
        self.daemon.plans.inc();
        self.daemon.plan_took.observe(took.as_secs_f64());
    }

    /// The metrics page, in Prometheus' text format 0.0.4.
    #[must_use]
    pub fn render(&self) -> String {
        self.render_at(crate::clock::now())
    }

    fn render_at(&self, now: Timestamp) -> String {
        let heard = self.sources.heard.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (source, gauge) in &self.sources.age.0 {
            gauge.set(heard.get(source).map_or(f64::NAN, |at| now.duration_since(*at).as_secs_f64().max(0.0)));
        }
        let mut page = String::with_capacity(32 * 1024);
        if let Err(error) = TextEncoder::new().encode_utf8(&self.registry.gather(), &mut page) {
            tracing::error!(%error, "the metrics page is incomplete");
        }
        page
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

fn whole(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
