//! The status page: what is wrong now, what the medic does about it or why not, in plain words. Rendered here, without
//! scripts or cookies, and without text that an upstream wrote.

mod forms;
mod model;

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;

use super::views::Which;
use super::{ApiError, Shared, access};
use crate::clock;
use model::{IncidentPage, Index, Message, Top};

/// A page that changes nothing is loaded again this often, in seconds; `?refresh=off` ends it, so that a person can read,
/// select and move the focus in peace.
const REFRESH: &str = "5";
/// Open incidents that are looked at for one page: of more the newest.
const OPEN_MAX: usize = 1000;
/// Incidents that are over, on the overview.
const CLOSED_MAX: usize = 10;
const CSP: &str = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

#[derive(Debug, Default, Deserialize)]
pub(super) struct Options {
    #[serde(default)]
    refresh: String,
    /// What was done by a form before this page.
    #[serde(default)]
    done: String,
}

impl Options {
    fn refreshes(&self) -> bool {
        self.refresh != "off"
    }

    /// Our own words for it: none of what stands in an address is shown.
    fn done(&self) -> Option<&'static str> {
        match self.done.as_str() {
            "approved" => Some("Approved. The medic takes the step when every other brake allows it."),
            "held" => Some("Held. The medic leaves that server alone until somebody resumes it."),
            "resumed" => Some("Resumed. The medic goes on at its next look."),
            "paused" => Some("Paused. The medic watches and changes nothing."),
            _ => None,
        }
    }
}

/// The pages. A name that a web page was made to point at loopback is refused here as in the API.
pub(super) fn router(host_rule: access::HostRule) -> Router<Arc<Shared>> {
    Router::new()
        .route("/", get(index))
        .route("/incidents/{id}", get(incident))
        .route("/incidents/{id}/approve", get(forms::approve).post(forms::approved))
        .route("/servers/{id}/hold", get(forms::hold).post(forms::held))
        .route("/servers/{id}/resume", get(forms::resume).post(forms::resumed))
        .route("/pause", get(forms::pause).post(forms::paused))
        .route("/resume", get(forms::resume_all).post(forms::resumed_all))
        .route("/style.css", get(style))
        .route("/icon.svg", get(icon))
        .layer(DefaultBodyLimit::max(forms::FORM_MAX))
        .layer(middleware::map_response(guarded))
        .layer(middleware::from_fn_with_state(host_rule, access::check_host))
}

/// The headers of every page.
async fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CSP));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    // Not no-referrer: a form would then be sent with `Origin: null`.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin"));
    response
}

fn refreshed(page: String, refresh: bool) -> Response {
    let mut response = Html(page).into_response();
    if refresh {
        // A header, so that no script and no element of the page is needed.
        response.headers_mut().insert(header::REFRESH, HeaderValue::from_static(REFRESH));
    }
    response
}

async fn style() -> Response {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("page/style.css")).into_response()
}

async fn icon() -> Response {
    ([(header::CONTENT_TYPE, "image/svg+xml")], include_str!("page/icon.svg")).into_response()
}

async fn index(State(shared): State<Arc<Shared>>, Query(options): Query<Options>) -> Response {
    let now = clock::now();
    let Ok(views) = shared.views() else { return starting(&shared) };
    let status = views.status();
    let read = async {
        let open = views.stories(Which::Open, OPEN_MAX).await?;
        let closed = views.incidents(Which::Closed, CLOSED_MAX).await?;
        Ok::<_, super::views::ViewError>((open, closed))
    };
    let (open, closed) = match read.await {
        Ok(read) => read,
        Err(error) => return failed(&shared, "./", &ApiError::from(error)),
    };
    let page =
        Index::new(&status, &views.ladder(), &open, &closed, Top::overview(&status, now, options.refreshes()).after(options.done()), now);
    rendered(&page, options.refreshes())
}

async fn incident(State(shared): State<Arc<Shared>>, id: Result<Path<String>, PathRejection>, Query(options): Query<Options>) -> Response {
    let now = clock::now();
    let Ok(views) = shared.views() else { return starting(&shared) };
    let Ok(Path(id)) = id else { return missing(&shared, "../") };
    match views.story(&id).await {
        Ok(Some(story)) => {
            let status = views.status();
            let refresh = options.refreshes() && story.incident.closed_at.is_none();
            let top = Top::below(&status, now, story.incident.closed_at.is_none().then_some((refresh, id.as_str()))).after(options.done());
            rendered(&IncidentPage::new(&story.without_upstream_text(), top, now), refresh)
        }
        Ok(None) => missing(&shared, "../"),
        Err(error) => failed(&shared, "../", &ApiError::from(error)),
    }
}

fn rendered(page: &impl Template, refresh: bool) -> Response {
    match page.render() {
        Ok(page) => refreshed(page, refresh),
        Err(error) => {
            tracing::error!(error = error.to_string(), "a page cannot be rendered");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

fn message(top: Top, status: StatusCode, tone: &'static str, title: &str, text: &str) -> Response {
    let page = Message { top, tone, title: title.to_owned(), text: text.to_owned() };
    let mut response = rendered(&page, false);
    if response.status() == StatusCode::OK {
        *response.status_mut() = status;
    }
    response
}

fn top(shared: &Shared, root: &'static str) -> Top {
    let now = clock::now();
    shared.views().map_or_else(|_| Top::bare(now), |views| Top::form(root, &views.status(), now))
}

fn starting(shared: &Shared) -> Response {
    let (tone, title, text) = match shared.why_not_open() {
        Some(why) => ("bad", "The medic does nothing", format!("It cannot open its attempt log. {why}")),
        None => ("warn", "The medic is starting", "The attempt log is being opened. This page looks again in a few seconds.".to_owned()),
    };
    let mut response = message(Top::bare(clock::now()), StatusCode::SERVICE_UNAVAILABLE, tone, title, &text);
    response.headers_mut().insert(header::REFRESH, HeaderValue::from_static(REFRESH));
    response
}

fn missing(shared: &Shared, root: &'static str) -> Response {
    let text = "No incident has this name. Old ones are removed after the retention time.";
    message(top(shared, root), StatusCode::NOT_FOUND, "warn", "There is nothing here", text)
}

fn failed(shared: &Shared, root: &'static str, error: &ApiError) -> Response {
    let text = format!("{}. The medic's own log tells more.", error.message());
    let status = error.status();
    message(top(shared, root), status, "bad", "This cannot be shown now", &text)
}
