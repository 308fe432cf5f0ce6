//! What the server shows of the running daemon.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::sync::Notify;

use crate::attempt_log::{AttemptLog, IncidentState, LogError};
use crate::clock;
use crate::config::Config;
use crate::engine::{Share, blind_spots};
use crate::hangar::HangarClient;
use crate::metrics::Metrics;
use crate::policy::{LadderDocument, Mode, Policy, Provenance, Reason, RecoveryMetrics, ladder_document};
use crate::server::story::Story;
use crate::server::views::{
    AttemptView, HangarView, HoldOrderView, IncidentView, PauseView, SaidView, StatusView, ViewError, Views, Which,
};

/// The daemon, as its parts tell it.
pub struct DaemonViews {
    instance: String,
    url: String,
    mode: Mode,
    reads_log: bool,
    policy: Policy,
    started_at: Timestamp,
    log: Arc<dyn AttemptLog>,
    live: Arc<Share>,
    metrics: Arc<Metrics>,
    client: Arc<HangarClient>,
    wake: Arc<Notify>,
}

impl DaemonViews {
    /// The daemon started now.
    pub fn new(
        config: &Config,
        log: Arc<dyn AttemptLog>,
        live: Arc<Share>,
        metrics: Arc<Metrics>,
        client: Arc<HangarClient>,
        wake: Arc<Notify>,
    ) -> Self {
        Self {
            instance: config.hangar.instance.clone(),
            url: config.hangar.url.to_string(),
            mode: config.policy.mode,
            reads_log: config.hangar.reads_log(),
            policy: config.policy.clone(),
            started_at: clock::now(),
            log,
            live,
            metrics,
            client,
            wake,
        }
    }

    fn view(&self, incident: &crate::policy::Incident) -> IncidentView {
        let live = self.live.get();
        let mut view = IncidentView::new(incident, live.standings.get(&incident.mcp_server));
        if incident.closed.is_none()
            && let Some(said) = live.disagreements.get(&incident.mcp_server)
        {
            let word = |(reason, provenance): &(Reason, Provenance)| SaidView { reason: *reason, provenance: provenance.clone() };
            view.sources_disagree = said.iter().map(word).collect();
        }
        view
    }

    fn story_of(&self, incident: &crate::policy::Incident) -> Story {
        Story { incident: self.view(incident), attempts: incident.attempts.iter().map(AttemptView::from).collect() }
    }
}

const fn state(which: Which) -> IncidentState {
    match which {
        Which::Open => IncidentState::Open,
        Which::Closed => IncidentState::Closed,
        Which::All => IncidentState::All,
    }
}

fn limit(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn unread(error: LogError) -> ViewError {
    ViewError::Log(Box::new(error))
}

impl Views for DaemonViews {
    fn status(&self) -> StatusView {
        let live = self.live.get();
        let mut holds = BTreeMap::new();
        for hold in live.standings.values().filter_map(|s| s.hold) {
            *holds.entry(hold).or_insert(0) += 1;
        }
        StatusView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: self.instance.clone(),
            mode: self.mode,
            started_at: self.started_at,
            ready: live.read_at.is_some(),
            hangar: HangarView {
                url: self.url.clone(),
                version: live.version.map(|(major, minor, patch)| format!("{major}.{minor}.{patch}")),
                reachable: live.fresh,
                last_read_at: live.read_at,
                process_start_time: live.process_start,
                auth: self.client.auth_state().auth,
                cannot_see: blind_spots(live.version, self.reads_log).into_iter().map(str::to_owned).collect(),
            },
            known_servers: live.known,
            incidents_open: live.incidents_open,
            holds,
            hold_orders: live
                .orders
                .iter()
                .map(|order| HoldOrderView { mcp_server: order.mcp_server.clone(), cause: order.cause, since: order.since })
                .collect(),
            pauses: live
                .pauses
                .into_iter()
                .map(|p| PauseView { mcp_server: p.mcp_server, since: p.since, until: p.until, principal: p.principal, reason: p.reason })
                .collect(),
            fraction_avoided_full_restart: self.metrics.fraction_avoided_full_restart(),
        }
    }

    fn ladder(&self) -> LadderDocument {
        ladder_document(|rung| self.policy.why_not(rung))
    }

    fn recovery_metrics(&self) -> RecoveryMetrics {
        self.metrics.recovery_metrics()
    }

    fn incidents(&self, which: Which, n: usize) -> BoxFuture<'_, Result<Vec<IncidentView>, ViewError>> {
        Box::pin(async move {
            let incidents = self.log.incidents(state(which), limit(n)).await.map_err(unread)?;
            Ok(incidents.iter().map(|incident| self.view(incident)).collect())
        })
    }

    fn incident<'a>(&'a self, incident_id: &'a str) -> BoxFuture<'a, Result<Option<IncidentView>, ViewError>> {
        Box::pin(async move {
            let incident = self.log.incident(incident_id).await.map_err(unread)?;
            Ok(incident.map(|incident| self.view(&incident)))
        })
    }

    fn attempts<'a>(&'a self, incident_id: Option<&'a str>, n: usize) -> BoxFuture<'a, Result<Vec<AttemptView>, ViewError>> {
        Box::pin(async move {
            let attempts = self.log.attempts(incident_id, limit(n)).await.map_err(unread)?;
            Ok(attempts.iter().map(AttemptView::from).collect())
        })
    }

    fn stories(&self, which: Which, n: usize) -> BoxFuture<'_, Result<Vec<Story>, ViewError>> {
        Box::pin(async move {
            let incidents = self.log.incidents(state(which), limit(n)).await.map_err(unread)?;
            Ok(incidents.iter().map(|incident| self.story_of(incident)).collect())
        })
    }

    fn story<'a>(&'a self, incident_id: &'a str) -> BoxFuture<'a, Result<Option<Story>, ViewError>> {
        Box::pin(async move {
            let incident = self.log.incident(incident_id).await.map_err(unread)?;
            Ok(incident.map(|incident| self.story_of(&incident)))
        })
    }

    fn wake(&self, _n_alerts: usize) {
        self.wake.notify_one();
    }
}
