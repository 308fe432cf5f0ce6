//! Whether the process lives, whether it is of use, and the metrics page.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::Shared;

/// 200 from the moment that the port is bound: a restart would not help whatever else is wrong.
pub(super) async fn healthy() -> &'static str {
    "healthy\n"
}

/// 200 once the attempt log is open and Hangar was read; before and between, 503 and why.
pub(super) async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    match shared.not_ready() {
        None => "ready\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")).into_response(),
    }
}

/// Prometheus' text format.
pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], shared.metrics.render()).into_response()
}
