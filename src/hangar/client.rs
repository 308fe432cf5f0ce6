//! The HTTP client. Every call is bounded in time and size, is sent once, and says what may have happened.

mod admin;
mod events;
mod probe;
mod wire;

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::SignedDuration;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Method, Response, Url};

use super::answers::{self, Group, LogLine, Me, ServerDetail, ServerList, Started, System};
use super::auth::{AuthGuard, AuthMemory, AuthState, Clock, Verdict};
use super::fault::{CallError, Fault, chain, clean_to};
use crate::config;
use crate::crash;
use crate::observe::metrics_text::{Collector, MetricsReading};
use crate::policy::valid_server_id;
pub use events::Socket;
pub use probe::Clocks;
pub use wire::{Answer, Sent, Wire};

/// Uvicorn closes idle connections after 5 s; one that it is just closing would lose a start.
const POOL_IDLE: Duration = Duration::from_secs(3);
/// Longest time to connect, within the time-out of the call.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A refusal is never longer than this.
const REFUSAL_MAX: usize = 64 * 1024;

/// How to reach Hangar.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `http://127.0.0.1:8000`, with the base path that a proxy adds, if any.
    pub url: String,
    /// Names what is remembered of the credentials.
    pub instance: String,
    /// The key is the file's one line; without a file calls go without a key.
    pub api_key_file: Option<PathBuf>,
    /// For every call but a start.
    pub request_timeout: Duration,
    /// For a start: a hung upstream is answered for after 15 to 30 s.
    pub start_timeout: Duration,
    /// Largest answer, in bytes.
    pub max_body: u64,
}

impl From<&config::Hangar> for Settings {
    fn from(hangar: &config::Hangar) -> Self {
        Self {
            url: hangar.url.to_string(),
            instance: hangar.instance.clone(),
            api_key_file: hangar.api_key.as_ref().map(|key| key.path.clone()),
            request_timeout: config::unsigned(hangar.request_timeout),
            start_timeout: config::unsigned(hangar.start_timeout),
            max_body: hangar.max_body,
        }
    }
}

/// The settings cannot make a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("hangar.url: {0}")]
    Url(String),
    #[error("TLS: {0}")]
    Tls(String),
}

/// Everything that is read from one Hangar and sent to it.
pub struct HangarClient {
    base: Url,
    settings: Settings,
    auth: AuthGuard,
    clock: Clock,
    /// Replaced as a whole by [`HangarClient::redial`].
    http: RwLock<reqwest::Client>,
    /// Stands in for the network.
    wire: Option<Arc<dyn Wire>>,
}

impl HangarClient {
    /// Dials nothing yet.
    pub fn new(settings: Settings, memory: Arc<dyn AuthMemory>) -> Result<Self, SettingsError> {
        Self::with_clock(settings, memory, Arc::new(crate::clock::now))
    }

    /// [`HangarClient::new`] with the caller's clock, which the auth guard goes by.
    pub fn with_clock(settings: Settings, memory: Arc<dyn AuthMemory>, clock: Clock) -> Result<Self, SettingsError> {
        let mut base = Url::parse(&settings.url).map_err(|e| SettingsError::Url(e.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            return Err(SettingsError::Url("neither http:// nor https://".to_owned()));
        }
        if !base.username().is_empty() || base.password().is_some() || base.query().is_some() || base.fragment().is_some() {
            return Err(SettingsError::Url("user, password, query and fragment do not belong here".to_owned()));
        }
        if !base.path().ends_with('/') {
            let path = format!("{}/", base.path());
            base.set_path(&path);
        }
        let http = RwLock::new(dial(&base, &settings, Http::Any)?);
        let auth = AuthGuard::new(&settings.instance, settings.api_key_file.clone(), memory, Arc::clone(&clock));
        Ok(Self { base, settings, auth, clock, http, wire: None })
    }

    /// Sends over `wire` instead of the network. What is decided by the answers stays the same.
    #[must_use]
    pub fn over(self, wire: Arc<dyn Wire>) -> Self {
        Self { wire: Some(wire), ..self }
    }

    /// Drops every connection: this and all later calls dial anew. Calls under way keep theirs to their end.
    pub fn redial(&self) -> Result<(), SettingsError> {
        let fresh = dial(&self.base, &self.settings, Http::Any)?;
        *self.http.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// Whether Hangar takes our credentials, as the last call showed.
    pub fn auth_state(&self) -> AuthState {
        self.auth.state()
    }

    /// Whether a key file is configured.
    pub const fn has_key(&self) -> bool {
        self.settings.api_key_file.is_some()
    }

    /// Looks at the key file without sending anything; true if an authenticated call would be sent now.
    pub async fn auth_look(&self) -> bool {
        self.auth.look().await
    }

    /// `GET /metrics`, parsed as it comes in. Needs no key.
    pub async fn metrics(&self) -> Result<MetricsReading, CallError> {
        let (call, at) = (Call::get("metrics"), (self.clock)());
        let reading = self.metrics_body(&call).await.map_err(|fault| call.error(fault))?;
        Ok(MetricsReading { took: self.since(at), ..reading })
    }

    /// `GET /health/live`: only an answer from Hangar itself counts. Needs no key.
    pub async fn live(&self) -> Result<(), CallError> {
        let call = Call::get("health/live");
        let body = self.exchange(&call, None).await;
        body.and_then(|body| parsed(answers::acknowledged(&body))).map_err(|fault| call.error(fault))
    }

    /// `GET /api/mcp_servers/`: all servers, without `consecutive_failures`.
    pub async fn list(&self) -> Result<ServerList, CallError> {
        let at = (self.clock)();
        let mut list = self.call(Call::get("api/mcp_servers/"), |body| answers::list(body, at)).await?;
        let took = self.since(at);
        list.servers.values_mut().for_each(|reading| reading.took = took);
        Ok(list)
    }

    /// `GET /api/mcp_servers/{id}`. Cached at Hangar: no upstream is asked.
    pub async fn server(&self, id: &str) -> Result<ServerDetail, CallError> {
        let at = (self.clock)();
        let mut detail = self.call(Call::get_of("api/mcp_servers", id, ""), |body| answers::server(body, id, at)).await?;
        detail.reading.took = self.since(at);
        Ok(detail)
    }

    /// Never below zero, whatever the clock did meanwhile.
    fn since(&self, at: jiff::Timestamp) -> SignedDuration {
        (self.clock)().duration_since(at).max(SignedDuration::ZERO)
    }

    /// `GET /api/mcp_servers/{id}/tools`: the names. A capability-blocked server's too.
    pub async fn tools(&self, id: &str) -> Result<Vec<String>, CallError> {
        self.call(Call::get_of("api/mcp_servers", id, "/tools"), answers::tools).await
    }

    /// `GET /api/mcp_servers/{id}/logs`: the upstream's own last lines, oldest first. Foreign text.
    pub async fn logs(&self, id: &str, lines: u32) -> Result<Vec<LogLine>, CallError> {
        self.call(Call::get_of("api/mcp_servers", id, &format!("/logs?lines={lines}")), answers::logs).await
    }

    /// `GET /api/system/me`.
    pub async fn me(&self) -> Result<Me, CallError> {
        self.call(Call::get("api/system/me"), answers::me).await
    }

    /// `GET /api/system/`.
    pub async fn system(&self) -> Result<System, CallError> {
        self.call(Call::get("api/system/"), answers::system).await
    }

    /// `GET /api/groups/`.
    pub async fn groups(&self) -> Result<Vec<Group>, CallError> {
        self.call(Call::get("api/groups/"), answers::groups).await
    }

    /// `GET /api/groups/{id}`.
    pub async fn group(&self, id: &str) -> Result<Group, CallError> {
        self.call(Call::get_of("api/groups", id, ""), answers::group).await
    }

    /// `POST /api/mcp_servers/{id}/start`. A ready server answers 200 and nothing happens.
    pub async fn start(&self, id: &str) -> Result<Started, CallError> {
        let call = Call { timeout: Some(self.settings.start_timeout), ..Call::post("api/mcp_servers", id, "/start") };
        self.change(["start.unsent", "start.answered"], call, answers::started).await
    }

    /// `POST /api/mcp_servers/{id}/stop`. Whatever the reason, Hangar counts it as `manual`.
    pub async fn stop(&self, id: &str, reason: &str) -> Result<(), CallError> {
        let body = serde_json::json!({ "reason": reason }).to_string();
        let call = Call { body: Some(body), ..Call::post("api/mcp_servers", id, "/stop") };
        self.change(["stop.unsent", "stop.answered"], call, answers::acknowledged).await
    }

    /// `POST /api/groups/{id}/rebalance`. Resets the group's circuit and evicts its degraded members.
    pub async fn rebalance(&self, group: &str) -> Result<(), CallError> {
        let call = Call::post("api/groups", group, "/rebalance");
        self.change(["rebalance.unsent", "rebalance.answered"], call, answers::acknowledged).await
    }

    /// A call that changes something, between its two fail points.
    async fn change<T>(&self, points: [&str; 2], call: Call, read: impl FnOnce(&[u8]) -> Result<T, String>) -> Result<T, CallError> {
        let [unsent, answered] = points;
        crash::point(unsent);
        let answer = self.call(call, read).await;
        crash::point(answered);
        answer
    }

    /// An authenticated call: let through by the guard, exchanged, read, and told to the guard.
    async fn call<T>(&self, call: Call, read: impl FnOnce(&[u8]) -> Result<T, String>) -> Result<T, CallError> {
        if let Some(id) = &call.bad_id {
            let fault = Fault::BadId { id: id.clone() };
            return Err(call.error(fault));
        }
        let leave = self.auth.admit().await.map_err(|fault| call.error(Fault::Auth(fault)))?;
        let answer = self.exchange(&call, leave.key.clone()).await.and_then(|body| parsed(read(&body)));
        let verdict = answer.as_ref().map_or_else(Verdict::of, |_| Verdict::LetIn);
        self.auth.settle(leave, verdict).await;
        answer.map_err(|fault| call.error(fault))
    }

    async fn send(&self, call: &Call, key: Option<reqwest::header::HeaderValue>) -> Result<Response, Fault> {
        let url = self.base.join(&call.path).map_err(|e| Fault::Unreachable { why: e.to_string() })?;
        let http = self.http.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut request = http.request(call.method.clone(), url).timeout(call.timeout.unwrap_or(self.settings.request_timeout));
        if let Some(key) = key {
            request = request.header("x-api-key", key);
        }
        if let Some(body) = &call.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        request.send().await.map_err(lost)
    }

    /// Sends and takes the whole body of a 2xx answer.
    async fn exchange(&self, call: &Call, key: Option<reqwest::header::HeaderValue>) -> Result<Vec<u8>, Fault> {
        if let Some(wire) = &self.wire {
            return self.exchange_over(wire, call).await;
        }
        let response = self.send(call, key).await?;
        let status = response.status();
        if status.is_success() {
            return body(response, self.settings.max_body).await;
        }
        Err(self.refusal(response).await)
    }

    async fn refusal(&self, response: Response) -> Fault {
        let status = response.status().as_u16();
        let wait = response.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u32>().ok());
        let wait = wait.map(|s| SignedDuration::from_secs(i64::from(s)));
        // The status alone tells enough when the body cannot be had.
        let body = start_of(response, REFUSAL_MAX).await;
        answers::refusal(status, wait, &body, (self.clock)())
    }

    async fn metrics_body(&self, call: &Call) -> Result<MetricsReading, Fault> {
        if let Some(wire) = &self.wire {
            return wire.metrics().await;
        }
        let mut response = self.send(call, None).await?;
        let status = response.status();
        if !status.is_success() {
            return Err(self.refusal(response).await);
        }
        too_large(response.content_length().unwrap_or(0), self.settings.max_body)?;
        let mut collector = Collector::default();
        let mut size = 0;
        let bad = |what: String| Fault::BadAnswer { status: Some(status.as_u16()), what };
        while let Some(chunk) = response.chunk().await.map_err(lost)? {
            size += chunk.len() as u64;
            too_large(size, self.settings.max_body)?;
            collector.feed(&chunk).map_err(|e| bad(e.to_string()))?;
        }
        collector.finish().map_err(|e| bad(e.to_string()))
    }
}

/// One request to be.
struct Call {
    method: Method,
    /// Relative to the base; ids in it are plain.
    path: String,
    body: Option<String>,
    /// Where it is not `request_timeout`.
    timeout: Option<Duration>,
    /// An id that must not get into a path.
    bad_id: Option<String>,
}

impl Call {
    fn get(path: &str) -> Self {
        Self { method: Method::GET, path: path.to_owned(), body: None, timeout: None, bad_id: None }
    }

    fn get_of(collection: &str, id: &str, tail: &str) -> Self {
        let bad_id = (!valid_server_id(id)).then(|| clean_to(id, 80));
        let shown = bad_id.as_deref().unwrap_or(id);
        Self { method: Method::GET, path: format!("{collection}/{shown}{tail}"), body: None, timeout: None, bad_id }
    }

    fn post(collection: &str, id: &str, tail: &str) -> Self {
        Self { method: Method::POST, ..Self::get_of(collection, id, tail) }
    }

    fn error(&self, fault: Fault) -> CallError {
        CallError { call: format!("{} /{}", self.method, self.path), fault }
    }
}

/// Which HTTP is spoken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Http {
    Any,
    /// An upgrade to WebSocket exists in HTTP/1.1 only.
    One,
}

/// No redirects (they would carry the key along), no proxy from the environment, no second sending.
fn dial(base: &Url, settings: &Settings, http: Http) -> Result<reqwest::Client, SettingsError> {
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("hangar-medic/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .no_proxy()
        .pool_idle_timeout(POOL_IDLE)
        // Ends before the call's own time-out, so that a connection never made is told from an answer never given.
        .connect_timeout(CONNECT_MAX.min(settings.request_timeout / 4 * 3));
    if http == Http::One {
        builder = builder.http1_only();
    }
    if base.scheme() == "http" {
        // A minimal container may hold no CA certificates, which plain HTTP does not need.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(|e| SettingsError::Tls(chain(&e)))
}

fn parsed<T>(read: Result<T, String>) -> Result<T, Fault> {
    read.map_err(|what| Fault::BadAnswer { status: None, what })
}

/// Only a connection that was never made proves that nothing was sent.
fn lost(error: reqwest::Error) -> Fault {
    // The call's path is named once, by `CallError`.
    let error = error.without_url();
    let why = chain(&error);
    if error.is_connect() || error.is_builder() { Fault::Unreachable { why } } else { Fault::Lost { why } }
}

fn too_large(size: u64, max: u64) -> Result<(), Fault> {
    if size <= max {
        return Ok(());
    }
    Err(Fault::BadAnswer { status: None, what: format!("larger than hangar.max_body ({max} bytes)") })
}

async fn body(mut response: Response, max: u64) -> Result<Vec<u8>, Fault> {
    too_large(response.content_length().unwrap_or(0), max)?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(lost)? {
        too_large((body.len() + chunk.len()) as u64, max)?;
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// As much of a body as comes, up to `max` bytes.
async fn start_of(mut response: Response, max: usize) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = max.saturating_sub(body.len()).min(chunk.len());
        body.extend_from_slice(chunk.get(..room).unwrap_or_default());
        if body.len() >= max {
            break;
        }
    }
    body
}
