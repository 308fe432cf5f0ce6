//! `POST /api/v1/hook-results`: the operator's automation tells what came of an order. Signed with the order's key; it
//! changes nothing but what is known of that one order.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use serde_json::{Value, json};

use super::{ApiError, Shared};
use crate::clock;
use crate::execute::hook::{NotTaken, SIGNATURE, TIMESTAMP};

/// Largest body.
pub(super) const RESULT_BODY_MAX: usize = 64 * 1024;

/// What is signed is the path as the caller sent it.
const PATH: &str = "/api/v1/hook-results";

pub(super) async fn receive(State(shared): State<Arc<Shared>>, headers: HeaderMap, uri: Uri, body: Bytes) -> Result<Json<Value>, ApiError> {
    let header = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let callbacks = shared.callbacks.get().ok_or_else(|| ApiError::unavailable("starting", "no order is under way yet"))?;
    let path = uri.query().map_or_else(|| PATH.to_owned(), |query| format!("{PATH}?{query}"));
    match callbacks.take(header(SIGNATURE), header(TIMESTAMP), &path, &body, clock::now()) {
        Ok(()) => Ok(Json(json!({"status": "ok"}))),
        Err(NotTaken::Unproved) => {
            Err(ApiError::new(StatusCode::UNAUTHORIZED, "not_proved", "no such order is under way, or its signature or time is not good"))
        }
        Err(NotTaken::Malformed) => {
            let shape = r#"the body must be {"attempt_id":"...","result":"done"|"failed","detail":"..."}"#;
            Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid", shape))
        }
    }
}
