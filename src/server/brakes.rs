//! The routes by which people brake and release: approve, hold, pause, resume.

use std::sync::Arc;

use axum::Extension;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::changes::{faulty, id, whole};
use super::operations::{approve_body, pause_body, reason_body, resume_body};
use super::{ApiError, Caller, Shared};
use crate::engine::Held;
use crate::policy::Body;

type Given<T, E> = Result<T, E>;

pub(super) async fn approve(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    path: Given<Path<String>, PathRejection>,
    body: Given<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let (incident, body) = (id(path)?, approve_body(&whole(body)?).map_err(faulty)?);
    let record = shared.operations()?.approve(caller, incident, body).await?;
    let Body::Approved { approval_id, incident_id, action, evidence_sha256, principal, role, reason, expires_at, .. } = record else {
        return Err(ApiError::unavailable("log_unwritable", "no approval was recorded"));
    };
    let approval = json!({
        "approval_id": approval_id, "incident_id": incident_id, "action": action, "evidence_sha256": evidence_sha256,
        "principal": principal, "role": role, "reason": reason, "expires_at": expires_at,
    });
    Ok(Json(json!({"approved": true, "approval": approval})).into_response())
}

pub(super) async fn hold_incident(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    path: Given<Path<String>, PathRejection>,
    body: Given<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    hold(&shared, caller, Held::Incident(id(path)?), body).await
}

pub(super) async fn hold_server(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    path: Given<Path<String>, PathRejection>,
    body: Given<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    hold(&shared, caller, Held::Server(id(path)?), body).await
}

async fn hold(shared: &Shared, caller: Caller, held: Held, body: Given<Bytes, BytesRejection>) -> Result<Response, ApiError> {
    let reason = reason_body(&whole(body)?).map_err(faulty)?;
    let server = shared.operations()?.hold(caller, held, reason).await?;
    Ok(Json(json!({"held": true, "mcp_server": server})).into_response())
}

/// `POST /-/reload`; the body is not read.
pub(super) async fn reload(State(shared): State<Arc<Shared>>, Extension(caller): Extension<Caller>) -> Result<Response, ApiError> {
    let sha256 = shared.operations()?.reload(caller).await?;
    Ok(Json(json!({"reloaded": true, "config_sha256": sha256})).into_response())
}

pub(super) async fn pause(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    body: Given<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let body = pause_body(&whole(body)?).map_err(faulty)?;
    let mcp_server = body.mcp_server.clone();
    let until = shared.operations()?.pause(caller, body).await?;
    Ok(Json(json!({"paused": true, "mcp_server": mcp_server, "until": until})).into_response())
}

pub(super) async fn resume(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    body: Given<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let body = resume_body(&whole(body)?).map_err(faulty)?;
    let mcp_server = if let Some(server) = body.mcp_server {
        Some(shared.operations()?.resume(caller, Held::Server(server), body.reason).await?)
    } else {
        shared.operations()?.unpause(caller, body.reason).await?;
        None
    };
    Ok(Json(json!({"resumed": true, "mcp_server": mcp_server})).into_response())
}
