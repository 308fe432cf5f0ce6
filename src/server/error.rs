//! Errors as the API words them: `{"error":{"code","message"}}`.

use axum::Json;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::views::ViewError;
use crate::supervise::chain;

/// One refused request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    /// Every fault of a body, where there may be several.
    faults: Vec<String>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), faults: Vec::new() }
    }

    /// The name of what is wrong.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.code
    }

    pub(super) const fn status(&self) -> StatusCode {
        self.status
    }

    /// What is wrong, in words.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub(super) fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
    }

    pub(super) fn with_faults(mut self, faults: Vec<String>) -> Self {
        self.faults = faults;
        self
    }
}

impl From<ViewError> for ApiError {
    fn from(error: ViewError) -> Self {
        // The source may hold a path: it goes to the log, not to whoever asks.
        tracing::error!(error = chain(&error), "a question of the API cannot be answered");
        match error {
            ViewError::Log(_) => Self::unavailable("log_unreadable", error.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut error = json!({"code": self.code, "message": self.message});
        if let (false, Some(error)) = (self.faults.is_empty(), error.as_object_mut()) {
            error.insert("faults".to_owned(), json!(self.faults));
        }
        (self.status, Json(json!({ "error": error }))).into_response()
    }
}

pub(super) async fn not_found() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found", "there is nothing here")
}

pub(super) async fn method_not_allowed(request: Request) -> ApiError {
    let message = format!("{} is not for this path", request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}
