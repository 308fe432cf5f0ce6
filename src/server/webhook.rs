//! `POST /api/v1/alertmanager`: checks the delivery, wakes the engine, answers. It opens nothing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::{Json, RequestExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::limits::{BODIES_KIB, BODY_MAX};
use super::tls::Peer;
use super::{ApiError, Shared};
use crate::config::HttpAccess;
use crate::observe::http;
use crate::observe::webhook::{Fault, parse};

/// What the webhook keeps between requests.
pub(super) struct Desk {
    /// KiB of bodies that may be in memory at once: many senders cannot fill it.
    room: Semaphore,
    complaints: Seldom,
}

impl Desk {
    pub(super) fn new() -> Self {
        Self { room: Semaphore::new(BODIES_KIB), complaints: Seldom::default() }
    }
}

pub(super) async fn receive(State(shared): State<Arc<Shared>>, request: Request) -> Result<Json<Value>, ApiError> {
    let name = shared.webhook_certificate.get();
    if !name.is_some_and(|name| request.extensions().get::<Peer>().is_some_and(|peer| peer.is(name))) {
        admit(shared.webhook_access.get(), name.is_some(), request.headers().get(header::AUTHORIZATION))?;
    }
    // Before the store is open nobody could be woken; Alertmanager comes again after a 503.
    let views = shared.views()?;
    let bytes = body_of(&shared.desk, request).await?;
    let delivery = parse(&bytes).map_err(|faults| {
        shared.desk.complain(&faults, "webhook delivery refused");
        refusal(&faults)
    })?;
    shared.metrics.webhook_delivered(delivery.alerts.len(), delivery.dropped.len(), delivery.truncated_alerts);
    if !delivery.dropped.is_empty() {
        shared.desk.complain(&delivery.dropped, "alerts of a webhook delivery dropped");
    }
    tracing::debug!(alerts = delivery.alerts.len(), truncated = delivery.truncated_alerts, "alerts wake the engine");
    views.wake(delivery.alerts.len());
    Ok(Json(json!({
        "status": "ok",
        "alerts": delivery.alerts.len(),
        "dropped": words(&delivery.dropped),
        "truncated_alerts": delivery.truncated_alerts,
    })))
}

/// Compares what was shown with what is configured, in a time that tells nothing.
fn admit(access: Option<&HttpAccess>, certificate: bool, shown: Option<&HeaderValue>) -> Result<(), ApiError> {
    let refused = || ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", "the webhook asks for credentials (web.webhook)");
    let open = || if certificate { Err(refused()) } else { Ok(()) };
    let Some(access) = access else { return open() };
    // Alertmanager comes again after a 503: the secret may be there by then.
    let wanted = http::authorization(access).map_err(|why| {
        tracing::warn!(source = "alertmanager", error = why, "the webhook's credentials cannot be read");
        ApiError::unavailable("credentials_unreadable", "the webhook's credentials cannot be read")
    })?;
    let Some(wanted) = wanted else { return open() };
    let same = shown.is_some_and(|shown| Sha256::digest(shown.as_bytes()) == Sha256::digest(wanted.as_bytes()));
    same.then_some(()).ok_or_else(refused)
}

/// Reads the body once there is room for it.
async fn body_of(desk: &Desk, request: Request) -> Result<Bytes, ApiError> {
    let too_large = || ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", format!("the body may have at most {BODY_MAX} bytes"));
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|l| l.to_str().ok()).and_then(|l| l.parse::<usize>().ok());
    let announced = length.unwrap_or(BODY_MAX);
    if announced > BODY_MAX {
        return Err(too_large());
    }
    let kib = u32::try_from(announced / 1024 + 1).unwrap_or(u32::MAX);
    let _room = desk.room.acquire_many(kib).await.map_err(|_| ApiError::unavailable("stopping", "the daemon is stopping"))?;
    request.extract::<Bytes, _>().await.map_err(|refused| match refused.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(),
        _ => ApiError::bad_request("the body was cut off"),
    })
}

fn refusal(faults: &[Fault]) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_payload", "no valid webhook delivery of version 4").with_faults(words(faults))
}

fn words(faults: &[Fault]) -> Vec<String> {
    faults.iter().map(ToString::to_string).collect()
}

impl Desk {
    /// The sender is told of every fault; the log only of some, since anybody on loopback can send them.
    fn complain(&self, faults: &[Fault], what: &str) {
        if let Some(unsaid) = self.complaints.now() {
            let first = faults.first().map(ToString::to_string);
            tracing::warn!(source = "alertmanager", faults = faults.len(), first, unsaid, "{what}");
        }
    }
}

/// Lets one through a minute and counts the others.
#[derive(Debug, Default)]
struct Seldom {
    last: Mutex<(Option<Instant>, u64)>,
}

impl Seldom {
    const EVERY: Duration = Duration::from_mins(1);

    /// How many were held back since the last one that was let through; `None` holds this one back too.
    fn now(&self) -> Option<u64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0.is_some_and(|at| at.elapsed() < Self::EVERY) {
            last.1 += 1;
            return None;
        }
        let unsaid = last.1;
        *last = (Some(Instant::now()), 0);
        Some(unsaid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_let_through_once_a_minute_and_the_others_counted() {
        let seldom = Seldom::default();
        assert_eq!([seldom.now(), seldom.now(), seldom.now()], [Some(0), None, None]);
        let ago = Instant::now().checked_sub(Seldom::EVERY).unwrap();
        seldom.last.lock().unwrap().0 = Some(ago);
        assert_eq!([seldom.now(), seldom.now()], [Some(2), None]);
    }
}
