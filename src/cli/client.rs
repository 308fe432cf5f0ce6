//! Asks a running daemon.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::table::visible;
use crate::config::SecretFile;
use crate::server::views::{AttemptView, IncidentView};

const TIMEOUT: Duration = Duration::from_secs(10);

/// A running daemon, by the address of its API.
pub struct Medic {
    url: String,
    http: reqwest::Client,
    token: Option<SecretFile>,
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
        Ok(Self { url: url.trim_end_matches('/').to_owned(), http, token: None })
    }

    /// Speaks as the principal whose token the file holds; it is read now, and again for each request.
    pub fn with_token_file(url: &str, file: &Path) -> anyhow::Result<Self> {
        let token = SecretFile { path: file.to_owned() };
        token.read().with_context(|| format!("--token-file {}", file.display()))?;
        Ok(Self { token: Some(token), ..Self::new(url)? })
    }

    /// Asks for a change; the answer is JSON, whatever its status.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<(StatusCode, Value)> {
        let mut request = self.http.post(self.address(path, &[])?).json(body);
        if let Some(file) = &self.token {
            request = request.bearer_auth(file.read().context("--token-file")?.expose());
        }
        let answer = request.send().await.with_context(|| self.silent())?;
        let status = answer.status();
        let body = answer.bytes().await.with_context(|| format!("the answer of {} broke off", self.url))?;
        let said = serde_json::from_slice(&body).with_context(|| format!("what {} answered is not the medic's API", self.url))?;
        Ok((status, said))
    }

    /// What a route answers, as it is.
    pub async fn get_json(&self, path: &str, query: &[(&str, &str)]) -> anyhow::Result<Value> {
        self.get(path, query).await
    }

    fn silent(&self) -> String {
        format!("no daemon answers at {}: start it with `hangar-medic run`, or name its address with --medic.url", self.url)
    }

    fn address(&self, path: &str, query: &[(&str, &str)]) -> anyhow::Result<reqwest::Url> {
        let mut url =
            reqwest::Url::parse(&format!("{}{path}", self.url)).with_context(|| format!("--medic.url {} is no address", self.url))?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
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
        let answer = self.http.get(self.address(path, query)?).send().await.with_context(|| self.silent())?;
        let status = answer.status();
        let body = answer.bytes().await.with_context(|| format!("the answer of {} broke off", self.url))?;
        if !status.is_success() {
            let said: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
            let message = said.pointer("/error/message").and_then(serde_json::Value::as_str).unwrap_or("no reason given");
            let advice = match status {
                StatusCode::NOT_FOUND => "; `hangar-medic incidents list` prints what there is",
                StatusCode::SERVICE_UNAVAILABLE => "; try again in a moment",
                _ => "",
            };
            bail!("{} answered {}: {}{advice}", self.url, status.as_u16(), visible(message));
        }
        serde_json::from_slice(&body).with_context(|| format!("what {} answered is not the medic's API", self.url))
    }
}
