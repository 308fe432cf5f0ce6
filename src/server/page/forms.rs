//! What a person can do on the page: approve, hold, pause, resume. Each form is on a page of its own, which never reloads
//! itself, and bears the token in a field: there are no cookies, so no other site can act in a person's name. Who may what
//! is judged by the same code, and each body is read by the same code, as in the API.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::model::{Field, FormPage, Row, Top, evidence};
use super::{failed, missing, rendered, starting};
use crate::clock;
use crate::engine::Held;
use crate::server::operations::{approve_body, pause_body, reason_body};
use crate::server::views::StatusView;
use crate::server::{ApiError, Shared};

/// Bytes of a form.
pub(super) const FORM_MAX: usize = 16 * 1024;

type Given<T, E> = Result<T, E>;

/// A form, by what it does.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    Approve { incident: String },
    Hold { server: String },
    Resume { server: String },
    PauseAll,
    ResumeAll,
}

impl Form {
    /// The route of the API that does the same; its permission is asked for.
    const fn route(&self) -> &'static str {
        match self {
            Self::Approve { .. } => "/api/v1/incidents/{id}/approve",
            Self::Hold { .. } => "/api/v1/servers/{id}/hold",
            Self::Resume { .. } => "/api/v1/servers/{id}/resume",
            Self::PauseAll => "/api/v1/pause",
            Self::ResumeAll => "/api/v1/resume",
        }
    }

    /// Way back to `/`.
    const fn root(&self) -> &'static str {
        match self {
            Self::Approve { .. } | Self::Hold { .. } | Self::Resume { .. } => "../../",
            Self::PauseAll | Self::ResumeAll => "./",
        }
    }

    /// Where a person is sent once it is done.
    fn back(&self) -> String {
        match self {
            Self::Approve { incident } => format!("../../incidents/{incident}?done=approved"),
            Self::Hold { .. } => "../../?done=held".to_owned(),
            Self::Resume { .. } => "../../?done=resumed".to_owned(),
            Self::PauseAll => "./?done=paused".to_owned(),
            Self::ResumeAll => "./?done=resumed".to_owned(),
        }
    }

    fn title(&self) -> String {
        match self {
            Self::Approve { incident } => format!("Approve the next step of {incident}"),
            Self::Hold { server } => format!("Hold {server}"),
            Self::Resume { server } => format!("Resume {server}"),
            Self::PauseAll => "Pause the medic".to_owned(),
            Self::ResumeAll => "Resume the medic".to_owned(),
        }
    }

    const fn text(&self) -> &'static str {
        match self {
            Self::Approve { .. } => {
                "You allow this one step, once, for the evidence below and no other. Every other brake is asked as always, and what you do is written down."
            }
            Self::Hold { .. } => "The medic leaves this server alone until somebody resumes it, across restarts of everything.",
            Self::Resume { .. } => "The medic may bring this server back again: what held or paused it ends. It does not start it at once.",
            Self::PauseAll => "The medic goes on watching and changes nothing until the time is over, or somebody resumes it.",
            Self::ResumeAll => "The pause of everything ends. Holds and pauses of single servers stay.",
        }
    }

    const fn button(&self) -> &'static str {
        match self {
            Self::Approve { .. } => "Approve",
            Self::Hold { .. } => "Hold",
            Self::PauseAll => "Pause",
            Self::Resume { .. } | Self::ResumeAll => "Resume",
        }
    }
}

/// What was filled in. A field that is there twice counts as neither.
fn fields(body: &[u8]) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let mut twice = Vec::new();
    // Any address will do: its query is read as a form's body is (application/x-www-form-urlencoded).
    if let (Ok(text), Ok(mut url)) = (std::str::from_utf8(body), reqwest::Url::parse("http://form/")) {
        url.set_query(Some(text));
        for (name, value) in url.query_pairs().take(32) {
            if fields.insert(name.to_string(), value.to_string()).is_some() {
                twice.push(name.to_string());
            }
        }
    }
    for name in twice {
        fields.remove(&name);
    }
    fields
}

/// A browser says where a form was shown: only here counts. Other programs have the API.
fn shown_here(headers: &HeaderMap) -> bool {
    let one = |name: header::HeaderName| {
        let mut all = headers.get_all(name).iter();
        let first = all.next().and_then(|v| v.to_str().ok())?;
        all.next().is_none().then(|| first.to_ascii_lowercase())
    };
    let (Some(origin), Some(host)) = (one(header::ORIGIN), one(header::HOST)) else { return false };
    let plain = |scheme: &str, port: &str| origin.strip_prefix(scheme).is_some_and(|o| o == host || format!("{o}{port}") == host);
    plain("http://", ":80") || plain("https://", ":443")
}

/// One look at a form, or one answer to it.
struct Visit {
    shared: Arc<Shared>,
    form: Form,
    /// What to show above the form, with the status of the answer.
    fault: Option<(StatusCode, String)>,
    reason: String,
}

impl Visit {
    fn new(shared: Arc<Shared>, form: Form) -> Self {
        Self { shared, form, fault: None, reason: String::new() }
    }

    async fn show(self) -> Response {
        let Ok(views) = self.shared.views() else { return starting(&self.shared) };
        let status = views.status();
        let mut shown = Shown::default();
        if let Form::Approve { incident } = &self.form {
            match views.story(incident).await {
                Ok(Some(story)) => match story.without_upstream_text().incident.approval {
                    Some(approval) => shown.approval(&approval),
                    None => shown.not_now = Some("Nothing of this incident waits for an approval now.".to_owned()),
                },
                Ok(None) => return missing(&self.shared, self.form.root()),
                Err(error) => return failed(&self.shared, self.form.root(), &ApiError::from(error)),
            }
        }
        if self.shared.principals().is_empty() {
            let why = "Nobody may: web.principals names nobody. Name people there, each with a role and a token file.";
            shown.not_now = Some(why.to_owned());
        }
        self.page(&status, shown)
    }

    fn page(self, status: &StatusView, shown: Shown) -> Response {
        let mut fields = vec![Field::text("reason", "Why (for whoever reads the record)", &self.reason)];
        if self.form == Form::PauseAll {
            fields.push(Field::text("duration", "For how long (30m, 2h)", "1h"));
        }
        fields.push(Field::secret("token", "Your token (of web.principals)"));
        let code = self.fault.as_ref().map_or(StatusCode::OK, |(code, _)| *code);
        let page = FormPage {
            top: Top::form(self.form.root(), status, clock::now()),
            title: self.form.title(),
            text: self.form.text(),
            button: self.form.button(),
            fault: self.fault.map(|(_, why)| why),
            not_now: shown.not_now,
            hidden: shown.hidden,
            rows: shown.rows,
            fields,
        };
        let mut response = rendered(&page, false);
        if response.status() == StatusCode::OK {
            *response.status_mut() = code;
        }
        response
    }

    async fn answer(mut self, headers: &HeaderMap, body: Given<Bytes, BytesRejection>) -> Response {
        let done = match body {
            Ok(body) if shown_here(headers) => {
                let mut fields = fields(&body);
                self.reason = fields.get("reason").cloned().unwrap_or_default();
                let token = fields.remove("token").unwrap_or_default();
                self.act(&token, &fields).await
            }
            Ok(_) => {
                let why = "The form was not sent from this page. If a proxy lies between, it must pass the Host header on unchanged; programs use the API.";
                Err(ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", why))
            }
            Err(refused) => Err(ApiError::new(refused.status(), "too_large", "The form is too large, or was cut off.")),
        };
        match done {
            Ok(()) => {
                let back = HeaderValue::from_str(&self.form.back()).unwrap_or_else(|_| HeaderValue::from_static("/"));
                let mut response = StatusCode::SEE_OTHER.into_response();
                response.headers_mut().insert(header::LOCATION, back);
                response
            }
            Err(error) => {
                self.fault = Some((error.status(), error.message().to_owned()));
                self.show().await
            }
        }
    }

    async fn act(&self, token: &str, fields: &BTreeMap<String, String>) -> Result<(), ApiError> {
        let caller = self.shared.admit(token, self.form.route())?;
        let operations = self.shared.operations()?;
        let document = |names: &[&str]| -> Vec<u8> {
            let given = names.iter().filter_map(|n| Some(((*n).to_owned(), json!(fields.get(*n)?))));
            Value::Object(given.collect::<Map<_, _>>()).to_string().into_bytes()
        };
        let faulty = |faults: Vec<String>| ApiError::bad_request(faults.join("; "));
        let reason = || reason_body(&document(&["reason"])).map_err(faulty);
        match self.form.clone() {
            Form::Approve { incident } => {
                let body = approve_body(&document(&["action", "evidence_sha256", "reason"])).map_err(faulty)?;
                operations.approve(caller, incident, body).await?;
            }
            Form::Hold { server } => drop(operations.hold(caller, Held::Server(server), reason()?).await?),
            Form::Resume { server } => drop(operations.resume(caller, Held::Server(server), reason()?).await?),
            Form::PauseAll => drop(operations.pause(caller, pause_body(&document(&["duration", "reason"])).map_err(faulty)?).await?),
            Form::ResumeAll => operations.unpause(caller, reason()?).await?,
        }
        Ok(())
    }
}

/// What stands between the title and the fields.
#[derive(Default)]
struct Shown {
    not_now: Option<String>,
    hidden: Vec<Row>,
    rows: Vec<Row>,
}

impl Shown {
    fn approval(&mut self, approval: &crate::server::views::ApprovalView) {
        let row = |name: &str, value: String| Row { name: name.to_owned(), value };
        self.rows = vec![row("step", format!("{}: {}", approval.action, approval.action.what()))];
        self.rows.extend(approval.evidence.iter().map(|(name, value)| evidence(name, value)));
        self.rows.push(row("hash of the evidence", approval.evidence_sha256.clone()));
        if let Some(stands) = &approval.approved {
            self.rows.push(row("approved already", format!("by {} ({})", stands.principal, stands.role)));
        }
        self.hidden = vec![row("action", approval.action.to_string()), row("evidence_sha256", approval.evidence_sha256.clone())];
    }
}

/// The two handlers of one form.
macro_rules! handlers {
    ($show:ident, $answer:ident, $form:expr) => {
        pub(super) async fn $show(State(shared): State<Arc<Shared>>, id: Given<Path<String>, PathRejection>) -> Response {
            let Ok(Path(id)) = id else { return missing(&shared, "../../") };
            Visit::new(shared, $form(id)).show().await
        }

        pub(super) async fn $answer(
            State(shared): State<Arc<Shared>>,
            id: Given<Path<String>, PathRejection>,
            headers: HeaderMap,
            body: Given<Bytes, BytesRejection>,
        ) -> Response {
            let Ok(Path(id)) = id else { return missing(&shared, "../../") };
            Visit::new(shared, $form(id)).answer(&headers, body).await
        }
    };
}

handlers!(approve, approved, |incident| Form::Approve { incident });
handlers!(hold, held, |server| Form::Hold { server });
handlers!(resume, resumed, |server| Form::Resume { server });

pub(super) async fn pause(State(shared): State<Arc<Shared>>) -> Response {
    Visit::new(shared, Form::PauseAll).show().await
}

pub(super) async fn paused(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Given<Bytes, BytesRejection>) -> Response {
    Visit::new(shared, Form::PauseAll).answer(&headers, body).await
}

pub(super) async fn resume_all(State(shared): State<Arc<Shared>>) -> Response {
    Visit::new(shared, Form::ResumeAll).show().await
}

pub(super) async fn resumed_all(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Given<Bytes, BytesRejection>) -> Response {
    Visit::new(shared, Form::ResumeAll).answer(&headers, body).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(origin: Option<&str>, host: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        headers.insert(header::HOST, host.parse().unwrap());
        headers
    }

    #[test]
    fn only_a_form_that_was_shown_here_counts() {
        for (origin, host, here) in [
            (Some("http://127.0.0.1:9923"), "127.0.0.1:9923", true),
            (Some("https://medic.example"), "medic.example", true),
            (Some("https://MEDIC.example"), "medic.example:443", true),
            (Some("http://evil.example"), "127.0.0.1:9923", false),
            (Some("http://127.0.0.1:9924"), "127.0.0.1:9923", false),
            (Some("http://127.0.0.1"), "127.0.0.1:9923", false),
            (Some("null"), "127.0.0.1:9923", false),
            (Some("ftp://127.0.0.1:9923"), "127.0.0.1:9923", false),
            (None, "127.0.0.1:9923", false),
        ] {
            assert_eq!(shown_here(&headers(origin, host)), here, "{origin:?} {host}");
        }
        let mut twice = headers(Some("http://127.0.0.1:9923"), "127.0.0.1:9923");
        twice.append(header::ORIGIN, "http://evil.example".parse().unwrap());
        assert!(!shown_here(&twice));
    }

    #[test]
    fn a_form_is_read_as_browsers_write_it_and_a_doubled_field_is_none() {
        let read = fields(b"reason=a+b%26c%0D%0A&token=t%C3%A9&x=1&x=2&empty=");
        let want = [("reason", "a b&c\r\n"), ("token", "t\u{e9}"), ("empty", "")];
        assert_eq!(read, want.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        assert!(fields(b"\xff").is_empty());
    }
}
