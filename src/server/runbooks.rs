//! The alerts' runbooks as the daemon was built with them, so that the one who is paged needs no other place.

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::ApiError;

/// Puts the pages into the binary.
macro_rules! pages {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../alerts/runbooks/", $name, ".md")))),+]
    };
}

/// Every page, by the name of its alert.
pub const PAGES: &[(&str, &str)] = pages![
    "MCPHangarProviderDead",
    "MCPHangarProviderNotSeenHealthy",
    "MCPHangarMedicDown",
    "MCPHangarMedicBlind",
    "MCPHangarMedicLogUnwritable",
    "MCPHangarMedicConfigReloadFailed",
    "MCPHangarMedicApprovalNeeded",
    "MCPHangarMedicLadderExhausted",
    "MCPHangarMedicStormBrake",
    "MCPHangarMedicBroadRestart",
    "MCPHangarMedicFullRestartsRising",
    "holds",
];

/// One page, as text. Its links name the file, so `.md` may follow the name.
pub(super) async fn page(Path(name): Path<String>) -> Response {
    let wanted = name.trim_end_matches(".md");
    match PAGES.iter().find(|(name, _)| *name == wanted) {
        Some((_, text)) => ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], *text).into_response(),
        None => ApiError::new(StatusCode::NOT_FOUND, "not_found", "no runbook has this name").into_response(),
    }
}
