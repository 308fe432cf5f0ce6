//! The routes that change something. Who comes here is authenticated, and named in `Caller`.

use std::sync::Arc;

use axum::Extension;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;

use super::operations::{glass_body, reason_body, request_body};
use super::{ApiError, Caller, Shared};
use crate::clock;
use crate::engine::{CommandError, Held};
use crate::policy::{Body, RefusalCode, Report};

/// Bytes of a body: a thousand prior attempts fit.
pub(super) const CHANGE_BODY_MAX: usize = 512 * 1024;

pub(super) fn whole(body: Result<Bytes, BytesRejection>) -> Result<Bytes, ApiError> {
    body.map_err(|refused| match refused.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", format!("the body may have at most {CHANGE_BODY_MAX} bytes"))
        }
        _ => ApiError::bad_request("the body was cut off"),
    })
}

pub(super) fn id(path: Result<Path<String>, PathRejection>) -> Result<String, ApiError> {
    path.map(|Path(id)| id).map_err(|e| ApiError::bad_request(e.body_text()))
}

#[allow(clippy::needless_pass_by_value, reason = "the shape that map_err takes")]
pub(super) fn faulty(faults: Vec<String>) -> ApiError {
    ApiError::bad_request(faults.join("; ")).with_faults(faults)
}

impl From<CommandError> for ApiError {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Unwritable => Self::unavailable("log_unwritable", error.to_string()),
            CommandError::Stopping => Self::unavailable("stopping", error.to_string()),
            CommandError::Unreadable => Self::unavailable("log_unreadable", error.to_string()),
            CommandError::Invalid(faults) => {
                Self::new(StatusCode::CONFLICT, "configuration_refused", "the configuration in use stays").with_faults(faults)
            }
            CommandError::NotFound(_) => Self::new(StatusCode::NOT_FOUND, "not_found", error.to_string()),
            CommandError::Refused { code, .. } => {
                let status = if code == "not_permitted" { StatusCode::FORBIDDEN } else { StatusCode::CONFLICT };
                Self::new(status, code, error.to_string())
            }
            CommandError::NothingToDo(_) => Self::new(StatusCode::CONFLICT, "nothing_to_do", error.to_string()),
        }
    }
}

/// What a restart request is answered with: the report, and what became of the request.
#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    report: Report,
    request_id: String,
    /// It waits for its turn; else it was recorded and reported only.
    acts: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    acts_why_not: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<serde_json::Value>,
}

pub(super) async fn break_glass(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let body = glass_body(&whole(body)?).map_err(faulty)?;
    let verdict = shared.operations()?.break_glass(caller, body).await?;
    if let Some((code, message)) = verdict.refused {
        let refusal = json!({"error": {"code": code.as_str(), "message": message}, "granted": false, "report": verdict.report});
        return Ok((StatusCode::FORBIDDEN, Json(refusal)).into_response());
    }
    let Body::Granted { grant_id, action, target, principal, role, reason, expires_at } = verdict.record else {
        return Err(ApiError::unavailable("log_unwritable", "no grant was recorded"));
    };
    let grant = json!({
        "grant_id": grant_id, "action": action, "target": target, "principal": principal, "role": role, "reason": reason,
        "expires_at": expires_at,
    });
    Ok(Json(json!({"granted": true, "grant": grant})).into_response())
}

pub(super) async fn restart_request(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let body = request_body(&whole(body)?, clock::now()).map_err(faulty)?;
    let (request_id, verdict) = shared.operations()?.request(caller, body).await?;
    let barred = verdict.report.refusals.iter().find(|r| r.code == RefusalCode::NotPermitted);
    let error = barred.map(|r| json!({"code": r.code.as_str(), "message": r.message}));
    let status = if error.is_some() { StatusCode::FORBIDDEN } else { StatusCode::OK };
    let answer = Answer { report: verdict.report, request_id, acts: verdict.waits.is_ok(), acts_why_not: verdict.waits.err(), error };
    Ok((status, Json(answer)).into_response())
}

pub(super) async fn resume_incident(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    resume(&shared, caller, Held::Incident(id(path)?), body).await
}

pub(super) async fn resume_server(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    resume(&shared, caller, Held::Server(id(path)?), body).await
}

async fn resume(shared: &Shared, caller: Caller, held: Held, body: Result<Bytes, BytesRejection>) -> Result<Response, ApiError> {
    let reason = reason_body(&whole(body)?).map_err(faulty)?;
    let server = shared.operations()?.resume(caller, held, reason).await?;
    Ok(Json(json!({"resumed": true, "mcp_server": server})).into_response())
}
