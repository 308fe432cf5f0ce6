//! `POST /api/v1/alertmanager`: checks the delivery, wakes the engine, answers. It opens nothing.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};

use super::limits::BODY_MAX;
use super::{ApiError, Shared};
use crate::observe::webhook::{Fault, parse};

pub(super) async fn receive(State(shared): State<Arc<Shared>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (parts, body) = request.into_parts();
    // Before the store is open nobody could be woken; Alertmanager comes again after a 503.
    let views = shared.views()?;
    let bytes = body_of(&shared, &parts.headers, body).await?;
    let delivery = parse(&bytes).map_err(|faults| refusal(&faults))?;
    shared.metrics.webhook_delivered(delivery.alerts.len(), delivery.dropped.len(), delivery.truncated_alerts);
    for fault in &delivery.dropped {
        tracing::warn!(source = "alertmanager", %fault, "alert dropped");
    }
    if delivery.truncated_alerts > 0 {
        tracing::info!(source = "alertmanager", truncated_alerts = delivery.truncated_alerts, "the delivery leaves alerts out");
    }
    views.wake(delivery.alerts.len());
    Ok(Json(json!({
        "status": "ok",
        "alerts": delivery.alerts.len(),
        "dropped": delivery.dropped.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "truncated_alerts": delivery.truncated_alerts,
    })))
}

/// Reads the body once there is room for it, so that many senders at once cannot fill the memory.
async fn body_of(shared: &Shared, headers: &HeaderMap, body: Body) -> Result<axum::body::Bytes, ApiError> {
    let too_large = || ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", format!("the body may have at most {BODY_MAX} bytes"));
    let length = headers.get(header::CONTENT_LENGTH).and_then(|l| l.to_str().ok()).and_then(|l| l.parse::<usize>().ok());
    let announced = length.unwrap_or(BODY_MAX);
    if announced > BODY_MAX {
        return Err(too_large());
    }
    let kib = u32::try_from(announced / 1024 + 1).unwrap_or(u32::MAX);
    let _room = shared.body_room.acquire_many(kib).await.map_err(|_| ApiError::unavailable("stopping", "the daemon is stopping"))?;
    to_bytes(body, BODY_MAX).await.map_err(|error| {
        // The limit's own error is the source of axum's.
        let cut = std::error::Error::source(&error).is_some_and(|e| e.to_string().contains("limit"));
        if cut { too_large() } else { ApiError::bad_request("the body was cut off") }
    })
}

fn refusal(faults: &[Fault]) -> ApiError {
    let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
    tracing::warn!(source = "alertmanager", faults = faults.len(), first = faults.first().map(String::as_str), "webhook delivery refused");
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_payload", "no valid webhook delivery of version 4").with_faults(faults)
}
