//! Asks a running daemon.

use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::server::views::{AttemptView, IncidentView};

const TIMEOUT: Duration = Duration::from_secs(10);

/// A running daemon, by the address of its API.
pub struct Medic {
    url: String,
    http: reqwest::Client,
}

#[derive(Deserialize)]
struct Incidents {
    incidents: Vec<IncidentView>,
}

#[derive(Deserialize)]
struct Attempts {
    attempts: Vec<AttemptView>,
}

impl Medic {
    /// Dials nothing yet.
    pub fn new(url: &str) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().timeout(TIMEOUT).no_proxy().build().context("no HTTP client")?;
        Ok(Self { url: url.trim_end_matches('/').to_owned(), http })
    }

    /// `state`: open, closed or all.
    pub async fn incidents(&self, state: &str) -> anyhow::Result<Vec<IncidentView>> {
        Ok(self.get::<Incidents>("/api/v1/incidents", &[("state", state)]).await?.incidents)
    }

    /// One incident.
    pub async fn incident(&self, id: &str) -> anyhow::Result<IncidentView> {
        self.get(&format!("/api/v1/incidents/{id}"), &[]).await
    }

    /// Attempts, of one incident or all.
    pub async fn attempts(&self, incident: Option<&str>) -> anyhow::Result<Vec<AttemptView>> {
        let query: Vec<_> = incident.map(|id| ("incident_id", id)).into_iter().collect();
        Ok(self.get::<Attempts>("/api/v1/attempts", &query).await?.attempts)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> anyhow::Result<T> {
        let mut url =
            reqwest::Url::parse(&format!("{}{path}", self.url)).with_context(|| format!("--medic.url {} is no address", self.url))?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let answer =
            self.http.get(url).send().await.with_context(|| format!("no daemon answers at {}: is it running? (--medic.url)", self.url))?;
        let status = answer.status();
        let body = answer.bytes().await.with_context(|| format!("the answer of {} broke off", self.url))?;
        if !status.is_success() {
            let said: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
            let message = said.pointer("/error/message").and_then(serde_json::Value::as_str).unwrap_or("no reason given");
            bail!("{} answered {status}: {message}", self.url);
        }
        serde_json::from_slice(&body).with_context(|| format!("what {} answered is not the medic's API", self.url))
    }
}
