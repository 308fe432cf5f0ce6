//! The two gauges by instant query, where Prometheus already scrapes Hangar.
//!
//! An answer is either fresh and whole, or it is [`Unknown`] with a reason; Hangar itself confirms before each action.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use prometheus_http_query::Client;
use prometheus_http_query::response::{InstantVector, PromqlResult};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::metrics_text::time;
use crate::hangar::fault::{chain, clean, clean_to};
use crate::policy::{State, valid_server_id};

const STATE: &str = "mcp_hangar_mcp_server_state";
const LAST_HEALTHY: &str = "mcp_hangar_mcp_server_last_healthy_timestamp_seconds";

/// How to reach Prometheus.
#[derive(Debug, Clone)]
pub struct Settings {
    pub url: String,
    /// The value of Prometheus' `instance` label for this Hangar.
    pub instance: String,
    /// For each query.
    pub timeout: Duration,
    /// A sample scraped longer ago than this is stale.
    pub stale_after: SignedDuration,
    /// Largest answer, in bytes.
    pub max_body: u64,
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
    #[serde(rename = "errorType", default)]
    error_type: String,
    #[serde(default)]
    error: String,
}

impl PrometheusSource {
    /// Dials nothing yet.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let mut http = reqwest::Client::builder()
            .user_agent(concat!("hangar-medic/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .timeout(settings.timeout);
        if settings.url.starts_with("http://") {
            http = http.tls_certs_only([]);
        }
        let http = http.build().map_err(|e| SettingsError(chain(&e)))?;
        let client = Client::from(http, &settings.url).map_err(|e| SettingsError(chain(&e)))?;
        Ok(Self { client, settings })
    }

    /// Reads every server of the configured instance.
    pub async fn read(&self, now: Timestamp) -> Result<BTreeMap<String, PrometheusSample>, Unknown> {
        let instance = quote(&self.settings.instance);
        let states = self.query(&format!("{STATE}{{instance={instance}}}")).await?;
        if states.is_empty() {
            return Err(self.why_empty(&instance).await?);
        }
        // A sample's own time in an instant query is that of the evaluation; `timestamp()` tells the scrape's.
        let scraped = self.query(&format!("timestamp({STATE}{{instance={instance}}})")).await?;
        let healthy = self.query(&format!("{LAST_HEALTHY}{{instance={instance}}}")).await?;
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
        self.fresh_only(servers, now)
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

    /// No series of ours: is the target down, is the instance another one, or is there nothing?
    async fn why_empty(&self, instance: &str) -> Result<Unknown, Unknown> {
        let up = self.query(&format!("up{{instance={instance}}}")).await?;
        if up.iter().any(|v| v.sample().value() == 0.0) {
            return Ok(Unknown::Down);
        }
        let others = self.query("count by (instance) (mcp_hangar_build_info)").await?;
        let mut seen: Vec<String> = others.iter().filter_map(|v| v.metric().get("instance")).map(|i| clean_to(i, 80)).collect();
        if seen.is_empty() || seen.contains(&self.settings.instance) {
            return Ok(Unknown::Empty);
        }
        seen.sort();
        seen.truncate(5);
        Ok(Unknown::WrongInstance { wanted: self.settings.instance.clone(), seen: seen.join(", ") })
    }

    async fn query(&self, promql: &str) -> Result<Vec<InstantVector>, Unknown> {
        // The raw answer, since the crate's own reading drops `warnings`.
        let mut response = self.client.query(promql).get_raw().await.map_err(|e| Unknown::Unreachable(chain(&e)))?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| Unknown::Unreachable(chain(&e)))? {
            if (body.len() + chunk.len()) as u64 > self.settings.max_body {
                return Err(Unknown::BadAnswer(format!("larger than {} bytes", self.settings.max_body)));
            }
            body.extend_from_slice(&chunk);
        }
        let bad = |e: serde_json::Error| Unknown::BadAnswer(clean(&format!("HTTP {}: {e}", status.as_u16())));
        let envelope: Envelope = serde_json::from_slice(&body).map_err(bad)?;
        if envelope.status != "success" {
            return Err(Unknown::Refused(clean(&format!("{}: {}", envelope.error_type, envelope.error))));
        }
        if let Some(warning) = envelope.warnings.first() {
            return Err(Unknown::Warning(clean(warning)));
        }
        let data = envelope.data.ok_or_else(|| Unknown::BadAnswer("no data".to_owned()))?;
        let result: PromqlResult = serde_json::from_str(data.get()).map_err(bad)?;
        let (data, _) = result.into_inner();
        data.into_vector().map_err(|_| Unknown::BadAnswer("not a vector".to_owned()))
    }
}

fn by_server(vector: &[InstantVector]) -> impl Iterator<Item = (&str, f64)> {
    vector.iter().filter_map(|v| {
        let id = v.metric().get("mcp_server")?;
        valid_server_id(id).then(|| (id.as_str(), v.sample().value()))
    })
}

/// A PromQL string.
fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
