//! The families by what they speak of: names, help texts, labels and buckets.

use std::collections::BTreeMap;
use std::sync::Mutex;

use jiff::Timestamp;
use prometheus::{Gauge, Histogram, IntCounter, IntGauge, IntGaugeVec, Opts};

use super::family::{Each, Registrar, cross, one};
use super::{ReadKind, ReadResult, WEBHOOK_CODES};
use crate::policy::{ApprovalEvent, Closed, GlassEvent, Hold, Mode, Outcome, Phase, Reason, RecoveryFold, Rung, Source};

type Registered<T> = Result<T, prometheus::Error>;

/// Attempts and what came of them.
pub(super) struct Recovery {
    pub(super) fraction: Gauge,
    pub(super) recoveries: Each<(Rung, Reason), IntCounter>,
    pub(super) attempts: Each<(Rung, Outcome), IntCounter>,
    pub(super) took: Histogram,
    /// What `fraction` is computed from: the attempts in the log.
    pub(super) fold: Mutex<RecoveryFold>,
    pub(super) break_glass: Each<GlassEvent, IntCounter>,
    pub(super) approvals: Each<ApprovalEvent, IntCounter>,
    pub(super) requests: Each<&'static str, IntCounter>,
}

impl Recovery {
    pub(super) fn register(r: &Registrar<'_>) -> Registered<Self> {
        let help =
            "Ratio (0 to 1) of successful recoveries whose action was neither full_mcp_restart nor host_restart; NaN while there are none.";
        let fraction = r.add(Gauge::with_opts(Opts::new("fraction_avoided_full_restart", help))?)?;
        fraction.set(f64::NAN);
        Ok(Self {
            fraction,
            fold: Mutex::default(),
            break_glass: r.counters(
                "break_glass_total",
                "Break-glass grants, by what became of them; refused: none was given.",
                &["event"],
                one(GlassEvent::ALL, GlassEvent::as_str),
            )?,
            approvals: r.counters(
                "approvals_total",
                "Approvals, by what became of them; refused: none was given.",
                &["event"],
                one(ApprovalEvent::ALL, ApprovalEvent::as_str),
            )?,
            requests: r.counters(
                "restart_requests_total",
                "Restart requests judged, by verdict.",
                &["verdict"],
                ["allowed", "refused"].into_iter().map(|verdict| (verdict, vec![verdict])),
            )?,
            recoveries: r.counters(
                "recoveries_total",
                "Recoveries proved, by the action that brought the server back and the incident's reason.",
                &["action", "reason"],
                cross(Rung::ALL, Reason::ALL, Rung::as_str, Reason::as_str),
            )?,
            attempts: r.counters(
                "attempts_total",
                "Attempts settled, by action and outcome.",
                &["action", "outcome"],
                cross(Rung::ALL, Outcome::ALL, Rung::as_str, Outcome::as_str),
            )?,
            took: r.histogram(
                "time_to_recovery_seconds",
                "Seconds from a server's death to the end of the action that brought it back; counted once that is proved.",
                &[0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0],
            )?,
        })
    }
}

/// Dead servers, incidents and what holds them.
pub(super) struct Incidents {
    pub(super) server_dead: IntGaugeVec,
    /// What `server_dead` shows, so that a server that is no longer dead loses its series.
    pub(super) shown_dead: Mutex<BTreeMap<String, Reason>>,
    pub(super) opened: Each<Reason, IntCounter>,
    pub(super) open: Each<(Reason, Phase), IntGauge>,
    pub(super) closed: Each<Closed, IntCounter>,
    pub(super) exhausted: IntGauge,
    pub(super) holds: Each<Hold, IntGauge>,
    pub(super) hold_orders: IntGauge,
    pub(super) pauses: Each<&'static str, IntGauge>,
    pub(super) storm: IntGauge,
    pub(super) detected_after: Histogram,
    pub(super) disagreements: IntCounter,
}

impl Incidents {
    pub(super) fn register(r: &Registrar<'_>) -> Registered<Self> {
        let dead_help = "1 while the server is dead, and why; no series once it is not.";
        Ok(Self {
            server_dead: r.int_gauges("server_dead", dead_help, &["mcp_server", "reason"])?,
            shown_dead: Mutex::default(),
            opened: r.counters(
                "incidents_total",
                "Incidents opened, by the reason known then.",
                &["reason"],
                one(Reason::ALL, Reason::as_str),
            )?,
            open: r.gauges(
                "incidents_open",
                "Open incidents, by reason and phase.",
                &["reason", "phase"],
                cross(Reason::ALL, Phase::OPEN, Reason::as_str, Phase::as_str),
            )?,
            closed: r.counters("incidents_closed_total", "Incidents closed, by how.", &["how"], one(Closed::ALL, Closed::as_str))?,
            exhausted: r.int_gauge("incidents_exhausted", "Open incidents whose ladder is spent: a person is needed.")?,
            holds: r.gauges("holds", "Open incidents held, by what holds them.", &["hold"], one(Hold::ALL, Hold::as_str))?,
            hold_orders: r.int_gauge("hold_orders", "Servers that were stopped deliberately and are not started until released.")?,
            pauses: r.gauges(
                "pauses",
                "Pauses that stand: of everything (0 or 1), and of single servers.",
                &["scope"],
                ["all", "server"].into_iter().map(|scope| (scope, vec![scope])),
            )?,
            storm: r.int_gauge("storm_active", "Whether so many servers died at once that all but one canary are held (1) or not (0).")?,
            detected_after: r.histogram(
                "time_to_detect_seconds",
                "Seconds from a server's death, as its source dates it, to the incident being opened.",
                &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0],
            )?,
            disagreements: r
                .counter("classification_disagreements_total", "Times that two sources gave different reasons for one death.")?,
        })
    }
}

/// What is heard, and how well.
pub(super) struct Sources {
    pub(super) age: Each<Source, Gauge>,
    pub(super) heard: Mutex<BTreeMap<Source, Timestamp>>,
    pub(super) log_lag: IntGauge,
    pub(super) log_gaps: IntCounter,
    pub(super) log_lines_skipped: IntCounter,
    pub(super) reads: Each<(ReadKind, ReadResult), IntCounter>,
    pub(super) hangar_up: IntGauge,
    pub(super) webhook_requests: Each<&'static str, IntCounter>,
    pub(super) alerts: IntCounter,
    pub(super) alerts_dropped: IntCounter,
    pub(super) alerts_truncated: IntCounter,
}

impl Sources {
    pub(super) fn register(r: &Registrar<'_>) -> Registered<Self> {
        Ok(Self {
            age: r.float_gauges(
                "signal_age_seconds",
                "Seconds since a source was last heard; NaN while it never was.",
                &["source"],
                one(Source::ALL, Source::as_str),
            )?,
            heard: Mutex::default(),
            log_lag: r.int_gauge("log_lag_bytes", "Bytes of Hangar's log that are written and not yet read.")?,
            log_gaps: r.counter("log_gaps_total", "Times that a part of Hangar's log was lost before it was read.")?,
            log_lines_skipped: r.counter("log_lines_skipped_total", "Lines of Hangar's log that could not be read as events.")?,
            reads: r.counters(
                "hangar_reads_total",
                "Reads of Hangar, by what was read and what came of it.",
                &["kind", "result"],
                cross(ReadKind::ALL, ReadResult::ALL, ReadKind::as_str, ReadResult::as_str),
            )?,
            hangar_up: r.int_gauge("hangar_up", "Whether the last read of Hangar's metrics succeeded (1) or not (0).")?,
            webhook_requests: r.counters(
                "webhook_requests_total",
                "Webhook requests answered, by HTTP status code.",
                &["code"],
                WEBHOOK_CODES.iter().map(|code| (*code, vec![*code])),
            )?,
            alerts: r.counter("webhook_alerts_total", "Valid alerts received.")?,
            alerts_dropped: r.counter("webhook_alerts_dropped_total", "Alerts of usable deliveries that were dropped as not valid.")?,
            alerts_truncated: r
                .counter("webhook_alerts_truncated_total", "Alerts that Alertmanager says it left out of its deliveries.")?,
        })
    }
}

/// The daemon itself.
pub(super) struct Daemon {
    pub(super) log_writable: IntGauge,
    pub(super) log_records: IntCounter,
    pub(super) config_ok: IntGauge,
    pub(super) config_at: Gauge,
    pub(super) config_hash: Gauge,
    pub(super) tls_ok: IntGauge,
    pub(super) mode: Each<Mode, IntGauge>,
    pub(super) plans: IntCounter,
    pub(super) plan_took: Histogram,
}

impl Daemon {
    pub(super) fn register(r: &Registrar<'_>) -> Registered<Self> {
        let build = r.int_gauges("build_info", "Always 1; the label says which build this is.", &["version"])?;
        build.get_metric_with_label_values(&[env!("CARGO_PKG_VERSION")])?.set(1);
        let writable = "Whether the attempt log took its last write (1) or not (0): then nothing acts.";
        Ok(Self {
            log_writable: r.int_gauge("attempt_log_writable", writable)?,
            log_records: r.counter("attempt_log_records_total", "Records in the attempt log, those of earlier processes included.")?,
            config_ok: r
                .int_gauge("config_last_reload_successful", "Whether the last load of the configuration succeeded (1) or not (0).")?,
            config_at: r.gauge(
                "config_last_reload_success_timestamp_seconds",
                "Unix time in seconds of the last successful load of the configuration.",
            )?,
            config_hash: r.gauge("config_hash", "First 48 bits of the SHA-256 of the configuration in use.")?,
            tls_ok: r.int_gauge(
                "web_tls_last_reload_successful",
                "Whether the certificate files of our own address are in use as they are (1), or older ones (0).",
            )?,
            mode: r.gauges("mode", "1 for the mode in use: observe only records, act acts.", &["mode"], one(Mode::ALL, Mode::as_str))?,
            plans: r.counter("engine_plans_total", "Times that the engine planned.")?,
            plan_took: r.histogram(
                "engine_plan_seconds",
                "Seconds that one plan took to make.",
                &[0.000_01, 0.000_05, 0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0],
            )?,
        })
    }
}
