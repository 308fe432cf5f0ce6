//! The HTTP server: health, metrics, the API and Alertmanager's webhook.
//!
//! Reading needs no credentials on loopback (`access`); every route that changes something needs a principal (`auth`).

mod access;
mod api;
mod auth;
mod brakes;
mod changes;
mod crowd;
mod error;
mod health;
mod hook_results;
mod limits;
pub mod operations;
mod pace;
mod page;
pub mod runbooks;
pub mod story;
mod tls;
pub mod views;
mod webhook;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::HttpAccess;
use crate::execute::hook::Callbacks;
use crate::metrics::Metrics;

use crate::policy::Matrix;
pub use auth::{Caller, Permission, Principals, ROUTES};
pub use error::ApiError;
pub use limits::{BODY_MAX, CONNECTIONS_MAX, DRAIN, HEADER_TIMEOUT, REQUEST_TIMEOUT, STALL_TIMEOUT};
use operations::Operations;
pub use tls::{Tls, TlsError};
pub use views::Views;

const STARTING: &str = "starting";
const WEBHOOK_PATH: &str = "/api/v1/alertmanager";

/// Why the server cannot be started or has to stop.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("web.listen_address \"{}\" cannot be resolved", .address.escape_debug())]
    Resolve { address: String, source: std::io::Error },
    #[error("web.listen_address \"{}\" names no address", .address.escape_debug())]
    NoAddress { address: String },
    #[error(
        "web.listen_address {address} is not on loopback and there are no credentials: whoever reaches it may read; allow that with --web.unsafe-no-auth (web.unsafe_no_auth: true)"
    )]
    Exposed { address: SocketAddr },
    #[error("cannot listen on {address}")]
    Bind { address: SocketAddr, source: std::io::Error },
}

/// What the server shows, filled in as the daemon comes up.
pub struct Shared {
    metrics: Arc<Metrics>,
    views: OnceLock<Arc<dyn Views>>,
    operations: OnceLock<Arc<dyn Operations>>,
    principals: RwLock<Arc<Principals>>,
    /// What Alertmanager must show.
    webhook_access: RwLock<Option<HttpAccess>>,
    /// Where results of hooks are waited for.
    callbacks: OnceLock<Arc<Callbacks>>,
    /// The name on the certificate that does as well.
    webhook_certificate: RwLock<Option<String>>,
    /// Why the daemon is not ready; `None` once it is.
    not_ready: RwLock<Option<String>>,
    desk: webhook::Desk,
    paces: pace::Paces,
}

impl Shared {
    /// Healthy from now on, and not ready. Nobody may change anything.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Self::with_principals(metrics, Principals::new(&[], Matrix::default()))
    }

    /// The same, with those who may ask for changes.
    #[must_use]
    pub fn with_principals(metrics: Arc<Metrics>, principals: Principals) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            views: OnceLock::new(),
            operations: OnceLock::new(),
            principals: RwLock::new(Arc::new(principals)),
            webhook_access: RwLock::new(None),
            callbacks: OnceLock::new(),
            webhook_certificate: RwLock::new(None),
            not_ready: RwLock::new(Some(STARTING.to_owned())),
            desk: webhook::Desk::new(),
            paces: pace::Paces::new(),
        })
    }

    /// Changes can be asked for from now on. Only the first call counts.
    pub fn set_operations(&self, operations: Arc<dyn Operations>) {
        let _ = self.operations.set(operations);
    }

    fn operations(&self) -> Result<&Arc<dyn Operations>, ApiError> {
        self.operations.get().ok_or_else(|| self.starting())
    }

    /// The webhook asks for these credentials from now on.
    pub fn set_webhook_access(&self, access: HttpAccess) {
        *self.webhook_access.write().unwrap_or_else(PoisonError::into_inner) = Some(access);
    }

    fn webhook_access(&self) -> Option<HttpAccess> {
        self.webhook_access.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// These may ask for changes from now on, and nobody else.
    pub fn set_principals(&self, principals: Principals) {
        *self.principals.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(principals);
    }

    fn principals(&self) -> Arc<Principals> {
        Arc::clone(&self.principals.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Results of hooks are taken from now on. Only the first call counts.
    pub fn set_callbacks(&self, callbacks: Arc<Callbacks>) {
        let _ = self.callbacks.set(callbacks);
    }

    /// The webhook lets in who shows a certificate with this name, too. Only the first call counts.
    pub fn set_webhook_certificate(&self, name: Option<String>) {
        *self.webhook_certificate.write().unwrap_or_else(PoisonError::into_inner) = name;
    }

    fn webhook_certificate(&self) -> Option<String> {
        self.webhook_certificate.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The API answers from now on. Only the first call counts.
    pub fn set_views(&self, views: Arc<dyn Views>) {
        let _ = self.views.set(views);
    }

    /// Ready from now on.
    pub fn set_ready(&self) {
        *self.not_ready.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Not ready from now on; `why` is shown to whoever asks, so it is in our own words.
    pub fn set_not_ready(&self, why: impl Into<String>) {
        *self.not_ready.write().unwrap_or_else(PoisonError::into_inner) = Some(why.into());
    }

    fn not_ready(&self) -> Option<String> {
        self.not_ready.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn starting(&self) -> ApiError {
        ApiError::unavailable("starting", self.why_not_open().unwrap_or_else(|| "the attempt log is not open yet".to_owned()))
    }

    /// Why the attempt log does not open; `None` where it only takes its time.
    fn why_not_open(&self) -> Option<String> {
        self.not_ready().filter(|why| why != STARTING)
    }

    fn views(&self) -> Result<&Arc<dyn Views>, ApiError> {
        self.views.get().ok_or_else(|| self.starting())
    }
}

/// A server that listens and does not answer yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Tls>,
}

/// Binds `host:port`. Port 0 takes a free one.
///
/// # Errors
/// The address is taken, unknown, or off loopback without `unsafe_no_auth`.
pub async fn bind(listen_address: &str, unsafe_no_auth: bool) -> Result<Bound, ServerError> {
    let found = tokio::net::lookup_host(listen_address).await;
    let found = found.map_err(|source| ServerError::Resolve { address: listen_address.to_owned(), source })?;
    let found: Vec<SocketAddr> = found.collect();
    if let Some(address) = found.iter().find(|a| !access::is_loopback(a.ip())).filter(|_| !unsafe_no_auth) {
        return Err(ServerError::Exposed { address: *address });
    }
    let mut refused = None;
    for address in found {
        match TcpListener::bind(address).await.and_then(|l| Ok((l.local_addr()?, l))) {
            Ok((address, listener)) => return Ok(Bound { listener, address, tls: None }),
            Err(source) => refused = refused.or(Some(ServerError::Bind { address, source })),
        }
    }
    Err(refused.unwrap_or_else(|| ServerError::NoAddress { address: listen_address.to_owned() }))
}

impl Bound {
    /// Where it listens, with the real port.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Speaks TLS only.
    #[must_use]
    pub fn with_tls(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    /// Answers until `stop` is cancelled, then ends what is under way within `DRAIN`.
    ///
    /// # Errors
    /// None at present; a failed accept is logged and tried again.
    pub async fn serve(self, shared: Arc<Shared>, stop: CancellationToken) -> Result<(), ServerError> {
        let tls = self.tls.map(|tls| (tls, Arc::clone(&shared.metrics)));
        let router = router(shared, access::HostRule::for_address(self.address.ip()));
        limits::serve(self.listener, router, tls, stop).await;
        Ok(())
    }
}

fn router(shared: Arc<Shared>, host_rule: access::HostRule) -> Router {
    let changes = Router::new()
        .route("/break-glass", post(changes::break_glass))
        .route("/restart-requests", post(changes::restart_request))
        .route("/incidents/{id}/resume", post(changes::resume_incident))
        .route("/servers/{id}/resume", post(changes::resume_server))
        .route("/incidents/{id}/approve", post(brakes::approve))
        .route("/incidents/{id}/hold", post(brakes::hold_incident))
        .route("/servers/{id}/hold", post(brakes::hold_server))
        .route("/pause", post(brakes::pause))
        .route("/resume", post(brakes::resume))
        .route_layer(DefaultBodyLimit::max(changes::CHANGE_BODY_MAX));
    let api = Router::new()
        .merge(changes)
        .route("/status", get(api::status))
        .route("/ladder", get(api::ladder))
        .route("/incidents", get(api::incidents))
        .route("/incidents/{id}", get(api::incident))
        .route("/attempts", get(api::attempts))
        .route("/recovery-metrics", get(api::recovery_metrics))
        .route("/alertmanager", post(webhook::receive).layer(DefaultBodyLimit::max(BODY_MAX)))
        .route("/hook-results", post(hook_results::receive).layer(DefaultBodyLimit::max(hook_results::RESULT_BODY_MAX)))
        .fallback(error::not_found)
        .method_not_allowed_fallback(error::method_not_allowed)
        .layer(middleware::from_fn_with_state(host_rule, access::check_host));
    let reload =
        Router::new().route("/-/reload", post(brakes::reload)).layer(middleware::from_fn_with_state(host_rule, access::check_host));
    Router::new()
        .merge(reload)
        .route("/-/healthy", get(health::healthy))
        .route("/-/ready", get(health::ready))
        .route("/metrics", get(health::metrics))
        .route("/runbooks/{name}", get(runbooks::page))
        .nest("/api/v1", api)
        .merge(page::router(host_rule))
        .route_layer(middleware::from_fn_with_state(shared.clone(), auth::authorise))
        .fallback(error::not_found)
        .method_not_allowed_fallback(error::method_not_allowed)
        .layer(middleware::from_fn_with_state(shared.clone(), around))
        .with_state(shared)
}

/// Around every request: the time-out, what is counted and logged, and the headers of every answer.
async fn around(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::unavailable("timeout", format!("not done within {} s", REQUEST_TIMEOUT.as_secs())).into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if path == WEBHOOK_PATH && method == Method::POST {
        shared.metrics.webhook_answered(response.status().as_u16());
    }
    tracing::debug!(%method, path, status = response.status().as_u16(), "answered");
    response
}
