//! The read-only API. Without credentials no answer holds text that an upstream wrote.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::views::{AttemptView, IncidentView, StatusView, Which};
use super::{ApiError, Shared};
use crate::policy::{LadderDocument, RecoveryMetrics};

/// Rows of one answer at most; the newest are given, and `truncated` says that there are more.
const ROWS_MAX: usize = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IncidentsQuery {
    #[serde(default)]
    state: Which,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AttemptsQuery {
    incident_id: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Incidents {
    incidents: Vec<IncidentView>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

#[derive(Serialize)]
pub(super) struct Attempts {
    attempts: Vec<AttemptView>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

pub(super) async fn status(State(shared): State<Arc<Shared>>) -> Result<Json<StatusView>, ApiError> {
    Ok(Json(shared.views()?.status()))
}

pub(super) async fn ladder(State(shared): State<Arc<Shared>>) -> Result<Json<LadderDocument>, ApiError> {
    Ok(Json(shared.views()?.ladder()))
}

pub(super) async fn recovery_metrics(State(shared): State<Arc<Shared>>) -> Result<Json<RecoveryMetrics>, ApiError> {
    Ok(Json(shared.views()?.recovery_metrics()))
}

pub(super) async fn incidents(
    State(shared): State<Arc<Shared>>,
    query: Result<Query<IncidentsQuery>, QueryRejection>,
) -> Result<Json<Incidents>, ApiError> {
    let Query(query) = query.map_err(|e| ApiError::bad_request(e.body_text()))?;
    let (rows, truncated) = newest(shared.views()?.incidents(query.state, ROWS_MAX + 1).await?);
    Ok(Json(Incidents { incidents: rows.map(IncidentView::without_upstream_text).collect(), truncated }))
}

pub(super) async fn incident(
    State(shared): State<Arc<Shared>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<IncidentView>, ApiError> {
    let id = super::changes::id(id)?;
    let found = shared.views()?.incident(&id).await?;
    let missing = || ApiError::new(StatusCode::NOT_FOUND, "not_found", "no incident has this id");
    Ok(Json(found.ok_or_else(missing)?.without_upstream_text()))
}

pub(super) async fn attempts(
    State(shared): State<Arc<Shared>>,
    query: Result<Query<AttemptsQuery>, QueryRejection>,
) -> Result<Json<Attempts>, ApiError> {
    let Query(query) = query.map_err(|e| ApiError::bad_request(e.body_text()))?;
    let (rows, truncated) = newest(shared.views()?.attempts(query.incident_id.as_deref(), ROWS_MAX + 1).await?);
    Ok(Json(Attempts { attempts: rows.map(AttemptView::without_upstream_text).collect(), truncated }))
}

/// The newest rows that one answer may hold, oldest first, and whether there are more.
fn newest<T>(rows: Vec<T>) -> (impl Iterator<Item = T>, bool) {
    let more = rows.len().saturating_sub(ROWS_MAX);
    (rows.into_iter().skip(more), more > 0)
}
