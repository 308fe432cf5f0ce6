//! The two gauges by instant query, where Prometheus already scrapes Hangar.
//!
//! An answer is either fresh and whole, or it is [`Unknown`] with a reason; Hangar itself confirms before each action.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use prometheus_http_query::Client;
use prometheus_http_query::response::{InstantVector, PromqlResult};
use reqwest::header::AUTHORIZATION;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::http;
use super::metrics_text::time;
use crate::config::HttpAccess;
use crate::hangar::fault::{chain, clean, clean_to};
use crate::policy::{State, valid_server_id};

const STATE: &str = "mcp_hangar_mcp_server_state";
/// Hangar's alerts of a dead server (its runbook).
const ALERTS: &str = "ALERTS{alertname=~\"MCPHangarProviderDead|MCPHangarProviderNotSeenHealthy\",alertstate=\"firing\"";
const LAST_HEALTHY: &str = "mcp_hangar_mcp_server_last_healthy_timestamp_seconds";

/// How to reach Prometheus.
#[derive(Debug, Clone)]
pub struct Settings {
    pub url: reqwest::Url,
    /// The value of Prometheus' `instance` label for this Hangar.
    pub instance: String,
    /// More label matchers, e.g. `job="hangar"`.
    pub selector: Option<String>,
    /// For each query.
    pub timeout: Duration,
    /// A sample scraped longer ago than this is stale.
    pub stale_after: SignedDuration,
    /// Largest answer, in bytes.
    pub max_body: u64,
    pub http: HttpAccess,
}

/// One good read: everything of one Hangar, nothing of another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reading {
    pub servers: BTreeMap<String, PrometheusSample>,
    /// Servers of which an alert of Hangar's fires.
    pub firing: BTreeSet<String>,
}

/// What Prometheus says of one server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrometheusSample {
    /// `None`: the value is no state (NaN), or two series differ.
    pub state: Option<State>,
    pub last_healthy: Option<Timestamp>,
    /// When the state was scraped.
    pub scraped_at: Option<Timestamp>,
}

/// Why the answer says nothing about any server.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Unknown {
    #[error("Prometheus cannot be reached: {0}")]
    Unreachable(String),
    #[error("bad answer of Prometheus: {0}")]
    BadAnswer(String),
    #[error("Prometheus refused the query: {0}")]
    Refused(String),
    /// A warning may mean a partial response.
    #[error("Prometheus warns: {0}")]
    Warning(String),
    /// No series at all; absence is never health.
    #[error("no series for this Hangar")]
    Empty,
    #[error("Prometheus' last scrape of this Hangar failed (up is 0)")]
    Down,
    #[error("no series with instance=\"{wanted}\"; there are: {seen}")]
    WrongInstance { wanted: String, seen: String },
    #[error("the newest sample is {} s old", age.as_secs())]
    Stale { age: SignedDuration },
}

/// The `prometheus.url` cannot make a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("prometheus.url: {0}")]
pub struct SettingsError(String);

/// The source.
pub struct PrometheusSource {
    client: Client,
    settings: Settings,
}

#[derive(Deserialize)]
struct Envelope {
    status: String,
    data: Option<Box<RawValue>>,
    #[serde(default)]
    warnings: Vec<String>,
    /// Remarks on the query itself (Prometheus 3); never on its data.
    #[serde(default)]
    infos: Vec<String>,
    #[serde(rename = "errorType", default)]
    error_type: String,
    #[serde(default)]
    error: String,
}

impl PrometheusSource {
    /// Dials nothing yet.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let client = dial(&settings)?;
        Ok(Self { client, settings })
    }

    /// Reads every server of the configured instance.
    pub async fn read(&mut self, now: Timestamp) -> Result<Reading, Unknown> {
        let read = self.read_all(now).await;
        if let Err(Unknown::Unreachable(_)) = &read
            && let Ok(fresh) = dial(&self.settings)
        {
            // Its certificates may have been renewed.
            self.client = fresh;
        }
        read
    }

    async fn read_all(&self, now: Timestamp) -> Result<Reading, Unknown> {
        let instance = format!("instance={}", quote(&self.settings.instance));
        let ours =
            self.settings.selector.as_ref().map_or_else(|| instance.clone(), |more| format!("{instance},{}", more.trim_end_matches(',')));
        let up = self.query(&format!("up{{{ours}}}")).await?;
        if !up.is_empty() && up.iter().all(|v| v.sample().value() == 0.0) {
            return Err(Unknown::Down);
        }
        let states = self.query(&format!("{STATE}{{{ours}}}")).await?;
        if states.is_empty() {
            return Err(self.why_empty().await?);
        }
        // A sample's own time in an instant query is that of the evaluation; `timestamp()` tells the scrape's.
        let scraped = self.query(&format!("timestamp({STATE}{{{ours}}})")).await?;
        let healthy = self.query(&format!("{LAST_HEALTHY}{{{ours}}}")).await?;
        let mut servers = BTreeMap::<String, PrometheusSample>::new();
        for (id, value) in by_server(&states) {
            let state = State::from_gauge(value);
            servers
                .entry(id.to_owned())
                .and_modify(|s| s.state = s.state.filter(|before| Some(*before) == state))
                .or_insert(PrometheusSample { state, ..PrometheusSample::default() });
        }
        for (id, value) in by_server(&scraped) {
            if let Some(server) = servers.get_mut(id) {
                // The older one, should two jobs scrape the same instance.
                server.scraped_at = match (server.scraped_at, time(value)) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
        }
        for (id, value) in by_server(&healthy) {
            if let Some(server) = servers.get_mut(id) {
                server.last_healthy = server.last_healthy.max(time(value));
            }
        }
        let servers = self.fresh_only(servers, now)?;
        let alerts = self.query(&format!("{ALERTS},{instance}}}")).await?;
        let firing = by_server(&alerts).map(|(id, _)| id.to_owned()).collect();
        Ok(Reading { servers, firing })
    }

    /// Servers whose sample is stale, or of unknown age, are left out: unknown. All stale is one answer.
    fn fresh_only(
        &self,
        mut servers: BTreeMap<String, PrometheusSample>,
        now: Timestamp,
    ) -> Result<BTreeMap<String, PrometheusSample>, Unknown> {
        let newest = servers.values().filter_map(|s| s.scraped_at).max();
        servers.retain(|_, s| s.scraped_at.is_some_and(|at| now.duration_since(at) <= self.settings.stale_after));
        match newest {
            _ if !servers.is_empty() => Ok(servers),
            Some(at) => Err(Unknown::Stale { age: now.duration_since(at) }),
            None => Err(Unknown::Empty),
        }
    }

    /// No series of ours: is the instance another one, or is there nothing?
    async fn why_empty(&self) -> Result<Unknown, Unknown> {
        let others = self.query("count by (instance) (mcp_hangar_build_info)").await?;
        let mut seen: Vec<String> = others.iter().filter_map(|v| v.metric().get("instance")).map(|i| clean_to(i, 80)).collect();
        if seen.is_empty() || seen.contains(&self.settings.instance) {
            return Ok(Unknown::Empty);
        }
        seen.sort();
        seen.truncate(5);
        Ok(Unknown::WrongInstance { wanted: self.settings.instance.clone(), seen: seen.join(", ") })
    }

    /// Labels and values of an instant query, for `doctor`.
    ///
    /// # Errors
    /// As [`PrometheusSource::read`].
    pub async fn series(&self, promql: &str) -> Result<Vec<(BTreeMap<String, String>, f64)>, Unknown> {
        let labels = |v: &InstantVector| v.metric().iter().map(|(k, v)| (k.clone(), clean_to(v, 80))).collect();
        Ok(self.query(promql).await?.iter().map(|v| (labels(v), v.sample().value())).collect())
    }

    async fn query(&self, promql: &str) -> Result<Vec<InstantVector>, Unknown> {
        // The raw answer, since the crate's own reading drops `warnings`.
        // Thanos and its kin give what they have, unless they are told not to.
        let mut query = self.client.query(promql).query("partial_response", "false");
        if let Some(value) = http::authorization(&self.settings.http).map_err(Unknown::Unreachable)? {
            query = query.header(AUTHORIZATION, value);
        }
        let response = query.get_raw().await.map_err(|e| Unknown::Unreachable(chain(&e)))?;
        let status = response.status();
        let too_large = format!("larger than {} bytes", self.settings.max_body);
        let body = http::body(response, self.settings.max_body).await;
        let body = body.map_err(|why| if why == too_large { Unknown::BadAnswer(why) } else { Unknown::Unreachable(why) })?;
        let bad = |e: serde_json::Error| Unknown::BadAnswer(clean(&format!("HTTP {}: {e}", status.as_u16())));
        let envelope: Envelope = serde_json::from_slice(&body).map_err(bad)?;
        if envelope.status != "success" {
            return Err(Unknown::Refused(clean(&format!("{}: {}", envelope.error_type, envelope.error))));
        }
        if let Some(warning) = envelope.warnings.iter().find(|w| !is_lint(w)) {
            return Err(Unknown::Warning(clean(warning)));
        }
        if let Some(remark) = envelope.infos.iter().chain(&envelope.warnings).next() {
            tracing::debug!(remark = clean(remark), "Prometheus remarks on a query");
        }
        let data = envelope.data.ok_or_else(|| Unknown::BadAnswer("no data".to_owned()))?;
        let result: PromqlResult = serde_json::from_str(data.get()).map_err(bad)?;
        let (data, _) = result.into_inner();
        data.into_vector().map_err(|_| Unknown::BadAnswer("not a vector".to_owned()))
    }
}

/// A remark on the query itself, such as that a counter's name does not end in `_total`. Anything else that Prometheus warns
/// of is about its data.
fn is_lint(warning: &str) -> bool {
    warning.starts_with("PromQL info") || warning.starts_with("PromQL warning")
}

fn dial(settings: &Settings) -> Result<Client, SettingsError> {
    let http = http::client(&settings.url, settings.timeout, &settings.http).map_err(SettingsError)?;
    Client::from(http, settings.url.as_str()).map_err(|e| SettingsError(chain(&e)))
}

fn by_server(vector: &[InstantVector]) -> impl Iterator<Item = (&str, f64)> {
    vector.iter().filter_map(|v| {
        let id = v.metric().get("mcp_server")?;
        valid_server_id(id).then(|| (id.as_str(), v.sample().value()))
    })
}

/// A PromQL string.
#[must_use]
pub fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
