//! Who asks for a change: a principal, known by a bearer token. Each route that changes something names its permission.

use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::tls::Peer;
use super::{ApiError, Shared};
use crate::config::{Principal, Proof};
use crate::policy::{Matrix, Rung};

/// What a route asks of the caller's role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
    /// Every principal may ask: the gate judges what is asked for, and the refusal carries its report.
    Ask,
    /// Brakes, or lets the daemon start what was stopped: whoever may restart a worker may do both.
    Brake,
}

/// Every route that changes something. One that is not named here is denied.
const ROUTES: &[(&str, Permission)] = &[
    ("/api/v1/break-glass", Permission::Ask),
    ("/api/v1/restart-requests", Permission::Ask),
    ("/api/v1/incidents/{id}/resume", Permission::Brake),
    ("/api/v1/servers/{id}/resume", Permission::Brake),
    ("/api/v1/incidents/{id}/approve", Permission::Ask),
    ("/api/v1/incidents/{id}/hold", Permission::Brake),
    ("/api/v1/servers/{id}/hold", Permission::Brake),
    ("/api/v1/pause", Permission::Brake),
    ("/api/v1/resume", Permission::Brake),
];

/// The principal behind a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub name: String,
    pub role: String,
}

impl From<&Principal> for Caller {
    fn from(principal: &Principal) -> Self {
        Self { name: principal.name.clone(), role: principal.role.clone() }
    }
}

/// Whether a file may have changed: device, inode, size, and both times to the nanosecond.
type Stamp = (u64, u64, u64, i64, i64, i64, i64);

/// A principal with its token's digest, as read when its file last changed.
struct Known {
    principal: Principal,
    stamp: Option<Stamp>,
    /// `None`: the file gives no token, so nobody is this principal.
    digest: Option<[u8; 32]>,
}

impl Known {
    fn refresh(&mut self) {
        let Proof::Token(file) = &self.principal.proof else { return };
        let meta = std::fs::metadata(&file.path).ok();
        let stamp = meta.map(|m| (m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()));
        if stamp.is_some() && stamp == self.stamp {
            return;
        }
        let (before, name) = (self.digest.take(), &self.principal.name);
        match file.read() {
            Ok(token) => self.digest = Some(digest(token.expose())),
            Err(error) if before.is_some() || self.stamp != stamp => {
                tracing::warn!(principal = name, error = error.explained(), "the token file gives no token: nobody is this principal");
            }
            Err(_) => {}
        }
        self.stamp = stamp;
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// Every principal, and the matrix that says what their roles may do.
pub struct Principals {
    known: Mutex<Vec<Known>>,
    matrix: Matrix,
}

impl Principals {
    /// Without principals every route that changes something is denied.
    #[must_use]
    pub fn new(principals: &[Principal], matrix: Matrix) -> Self {
        let known = principals.iter().map(|p| Known { principal: p.clone(), stamp: None, digest: None });
        Self { known: Mutex::new(known.collect()), matrix }
    }

    /// Whether nobody is named.
    pub(super) fn is_empty(&self) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Whoever has this token, if they may use this route of the API.
    pub(super) fn admit(&self, token: &str, route: &str) -> Result<Caller, ApiError> {
        let permission = permission_for(Some(route))?;
        let bearer = HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(|_| unauthorized())?;
        let caller = self.authenticate(Some(&bearer), &Peer::default())?;
        self.may(&caller, permission)?;
        Ok(caller)
    }

    /// By the token, where one is given; else by the certificate.
    fn authenticate(&self, authorization: Option<&HeaderValue>, peer: &Peer) -> Result<Caller, ApiError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_empty() {
            let why = "no principals are configured (web.principals): nothing can be changed through the API";
            return Err(ApiError::new(StatusCode::FORBIDDEN, "no_credentials_configured", why));
        }
        if authorization.is_none() && peer.is_known() {
            let is_shown = |known: &&Known| matches!(&known.principal.proof, Proof::Certificate(name) if peer.is(name));
            let mut found = known.iter().filter(is_shown);
            let (first, second) = (found.next(), found.next());
            let caller = first.filter(|_| second.is_none()).map(|k| Caller::from(&k.principal));
            return caller.ok_or_else(unauthorized);
        }
        let given = authorization.and_then(bearer).map(digest).ok_or_else(unauthorized)?;
        // All are compared, each in constant time: how long it takes tells nothing of any token.
        let mut found = None;
        let mut matches = 0_u32;
        for each in known.iter_mut() {
            each.refresh();
            let same = each.digest.map_or(Choice::from(0), |digest| digest.ct_eq(&given));
            matches += u32::from(same.unwrap_u8());
            if bool::from(same) {
                found = Some(Caller::from(&each.principal));
            }
        }
        // Two with one token: nobody can say who it is.
        found.filter(|_| matches == 1).ok_or_else(unauthorized)
    }

    fn may(&self, caller: &Caller, permission: Permission) -> Result<(), ApiError> {
        match permission {
            Permission::Ask => Ok(()),
            Permission::Brake if self.matrix.permits(&caller.role, Rung::WorkerRestart) => Ok(()),
            Permission::Brake => {
                let why =
                    format!("the role {} may neither hold nor resume: that needs {} in the class matrix", caller.role, Rung::WorkerRestart);
                Err(ApiError::new(StatusCode::FORBIDDEN, "not_permitted", why))
            }
        }
    }
}

/// `Bearer <token>`; the scheme in any case (RFC 9110).
fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn unauthorized() -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", "a bearer token, or a certificate, of a configured principal is needed")
}

/// Lets through who may; the handler finds the [`Caller`] in the request's extensions. The body is not read before.
pub(super) async fn authorise(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    match judge(&shared.principals, &request) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(error) => {
            let mut response = error.into_response();
            if response.status() == StatusCode::UNAUTHORIZED {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            response
        }
    }
}

fn permission_for(route: Option<&str>) -> Result<Permission, ApiError> {
    let permission = ROUTES.iter().find(|(known, _)| Some(*known) == route).map(|(_, permission)| *permission);
    permission.ok_or_else(|| ApiError::new(StatusCode::FORBIDDEN, "not_permitted", "nobody may do this"))
}

fn judge(principals: &Principals, request: &Request) -> Result<Caller, ApiError> {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let permission = permission_for(path)?;
    let mut headers = request.headers().get_all(header::AUTHORIZATION).iter();
    let (first, second) = (headers.next(), headers.next());
    let nobody = Peer::default();
    let peer = request.extensions().get::<Peer>().filter(|_| first.is_none()).unwrap_or(&nobody);
    let caller = principals.authenticate(first.filter(|_| second.is_none()), peer)?;
    principals.may(&caller, permission)?;
    Ok(caller)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SecretFile;

    fn check(principals: &Principals, authorization: &str, who: Result<&str, &str>) {
        let value = HeaderValue::from_str(authorization).unwrap();
        let found = principals.authenticate(Some(&value).filter(|_| !authorization.is_empty()), &Peer::default());
        let found = found.map(|c| c.name).map_err(|e| e.code().to_owned());
        assert_eq!(found, who.map(ToOwned::to_owned).map_err(ToOwned::to_owned), "{authorization}");
    }

    #[test]
    fn a_principal_is_whoever_has_the_token_that_is_in_the_file_now() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, token: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, token).unwrap();
            Principal { name: name.to_owned(), role: "operator".to_owned(), proof: Proof::Token(SecretFile { path }) }
        };
        let all = [file("alice", "token-of-alice-1\n"), file("bob", "token-of-bob-123")];
        let principals = Principals::new(&all, Matrix::default());
        check(&principals, "Bearer token-of-alice-1", Ok("alice"));
        check(&principals, "bearer  token-of-bob-123", Ok("bob"));
        for nobody in
            ["", "Bearer", "Bearer ", "Basic token-of-alice-1", "Bearer token-of-alice-", "Bearer token-of-alice-12", "token-of-alice-1"]
        {
            check(&principals, nobody, Err("unauthorized"));
        }
        file("alice", "token-of-alice-2");
        check(&principals, "Bearer token-of-alice-1", Err("unauthorized"));
        check(&principals, "Bearer token-of-alice-2", Ok("alice"));
        file("bob", "token-of-alice-2");
        check(&principals, "Bearer token-of-alice-2", Err("unauthorized"));
        std::fs::remove_file(dir.path().join("bob")).unwrap();
        check(&principals, "Bearer token-of-alice-2", Ok("alice"));
        file("alice", "");
        check(&principals, "Bearer ", Err("unauthorized"));
        check(&Principals::new(&[], Matrix::default()), "Bearer token-of-alice-2", Err("no_credentials_configured"));
    }

    #[test]
    fn whoever_may_restart_a_worker_may_hold_and_resume() {
        let principals = Principals::new(&[], Matrix::default());
        for (role, may) in [("viewer", false), ("operator", true), ("admin", true), ("root", false)] {
            let caller = Caller { name: "a".to_owned(), role: role.to_owned() };
            assert_eq!(principals.may(&caller, Permission::Brake).is_ok(), may, "{role}");
            assert!(principals.may(&caller, Permission::Ask).is_ok());
        }
    }
}
