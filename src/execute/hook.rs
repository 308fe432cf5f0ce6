//! The operator's automation, over HTTP: one signed order, and the result by the answer, by polling or by a callback.
//!
//! ```text
//! POST <platform.*.url>
//! Content-Type: application/json
//! Idempotency-Key: <attempt_id>
//! X-Hangar-Medic-Timestamp: <seconds since 1970>
//! X-Hangar-Medic-Signature: v1=<hex of HMAC-SHA-256(key, canonical)>
//!
//! {"version":1,"attempt_id":"…","action":"full_mcp_restart","instance":"…","mcp_server":"…","timeout_s":300}
//! ```
//! `canonical` is `v1`, the timestamp, the method, the path with its query, and the hex of the body's SHA-256, joined by
//! newlines. The receiver refuses a timestamp that is more than five minutes away, and does each idempotency key once.
//!
//! It answers 200 with `{"result":"done"|"failed","detail":"…"}`; or 202 with `{"status_url":"…"}`, of the same origin,
//! which is then asked with signed GETs until it tells a result other than `"running"`; or 202 without one, and POSTs
//! `{"attempt_id":"…","result":"done"|"failed","detail":"…"}`, signed the same way, to `/api/v1/hook-results` here.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Method, RequestBuilder, StatusCode, Url};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::platform::{Carried, CarryOut, Order};
use crate::clock;
use crate::config::{HttpAccess, SecretFile};
use crate::crash;
use crate::hangar::fault::{chain, clean_to};
use crate::observe::http;
use crate::policy::hex;

/// The header that says when an order or a result was signed.
pub const TIMESTAMP: &str = "x-hangar-medic-timestamp";
/// The header with the signature.
pub const SIGNATURE: &str = "x-hangar-medic-signature";
/// The header that names the order.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// A signature this far from now is no longer, or not yet, good.
pub const SKEW_MAX: jiff::SignedDuration = jiff::SignedDuration::from_mins(5);
/// Largest answer.
const ANSWER_MAX: u64 = 64 * 1024;
/// Bound of one request; the whole order has its own.
const REQUEST_MAX: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_secs(2);
const DETAIL_MAX: usize = 300;

/// `platform.*` with `executor: hook`.
pub struct Hook {
    pub url: Url,
    pub secret_file: SecretFile,
    /// PEM, instead of the system's certificate authorities.
    pub ca_file: Option<PathBuf>,
    /// Of the whole order.
    pub timeout: Duration,
    pub callbacks: Arc<Callbacks>,
}

/// What the automation says.
#[derive(Debug, Clone, Deserialize)]
struct Answer {
    #[serde(default)]
    result: Option<String>,
    #[serde(default)]
    detail: Option<String>,
    #[serde(default)]
    status_url: Option<String>,
}

impl Answer {
    fn carried(&self) -> Option<Carried> {
        let detail = clean_to(self.detail.as_deref().unwrap_or_default(), DETAIL_MAX);
        match self.result.as_deref()? {
            "done" => Some(Carried::Done(format!("the hook says done: {detail}"))),
            "failed" => Some(Carried::Failed(format!("the hook says failed: {detail}"))),
            _ => None,
        }
    }
}

/// The signature of one request, without its prefix. `path` has its query.
#[must_use]
pub fn sign(key: &[u8], timestamp: &str, method: &str, path: &str, body: &[u8]) -> String {
    mac(key, timestamp, method, path, body).map_or_else(String::new, |mac| hex(&mac.finalize().into_bytes()))
}

fn mac(key: &[u8], timestamp: &str, method: &str, path: &str, body: &[u8]) -> Option<Hmac<Sha256>> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).ok()?;
    mac.update(format!("v1\n{timestamp}\n{method}\n{path}\n{}", hex(&Sha256::digest(body))).as_bytes());
    Some(mac)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pair = |i: usize| text.get(i..i + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (text.len() == 64 && text.is_ascii()).then(|| (0..32).map(|i| pair(2 * i)).collect::<Option<Vec<u8>>>()).flatten()
}

/// Whether a signature with its prefix is good and fresh.
#[must_use]
pub fn verified(key: &[u8], signature: &str, timestamp: &str, method: &str, path: &str, body: &[u8], now: Timestamp) -> bool {
    let at = timestamp.parse::<i64>().ok().and_then(|s| Timestamp::from_second(s).ok());
    let fresh = at.is_some_and(|at| now.duration_since(at).abs() <= SKEW_MAX);
    let given = signature.strip_prefix("v1=").and_then(unhex);
    let good = given.zip(mac(key, timestamp, method, path, body)).is_some_and(|(given, mac)| mac.verify_slice(&given).is_ok());
    fresh && good
}

fn path_of(url: &Url) -> String {
    url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()))
}

impl CarryOut for Hook {
    fn carry_out<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Carried> {
        Box::pin(async move {
            let access = HttpAccess { ca_file: self.ca_file.clone(), ..HttpAccess::default() };
            let client = match http::client(&self.url, REQUEST_MAX.min(self.timeout), &access) {
                Ok(client) => client,
                Err(why) => return Carried::Refused(format!("the hook cannot be asked: {why}")),
            };
            // Before it is sent: a callback may be faster than the answer.
            let result = self.callbacks.expect(&order.attempt_id, self.secret_file.clone());
            let carried = tokio::time::timeout(self.timeout, self.ordered(&client, order, result)).await;
            self.callbacks.forget(&order.attempt_id);
            carried.unwrap_or_else(|_| Carried::Unknown(format!("the hook told no result within {} s", self.timeout.as_secs())))
        })
    }
}

impl Hook {
    async fn ordered(&self, client: &Client, order: &Order, result: oneshot::Receiver<Carried>) -> Carried {
        let body = serde_json::json!({
            "version": 1, "attempt_id": order.attempt_id, "action": order.action, "instance": order.instance,
            "mcp_server": order.mcp_server, "timeout_s": self.timeout.as_secs(),
        });
        let body = body.to_string();
        let request = match self.signed(client, Method::POST, &self.url, body.as_bytes()) {
            Ok(request) => request.header(IDEMPOTENCY_KEY, &order.attempt_id).header(CONTENT_TYPE, "application/json").body(body),
            Err(why) => return Carried::Refused(why),
        };
        crash::point("hook.unsent");
        let sent = request.send().await;
        crash::point("hook.answered");
        let response = match sent {
            Ok(response) => response,
            Err(e) if e.is_connect() || e.is_builder() => {
                return Carried::Refused(format!("the hook was never reached: {}", chain(&e.without_url())));
            }
            // It may be at work: only a callback can tell.
            Err(e) => return called_back(result, &chain(&e.without_url())).await,
        };
        let status = response.status();
        let answer = http::body(response, ANSWER_MAX).await.ok().and_then(|body| serde_json::from_slice::<Answer>(&body).ok());
        match (status, answer) {
            (StatusCode::ACCEPTED, Some(Answer { status_url: Some(url), .. })) => match self.same_origin(&url) {
                Some(url) => self.polled(client, &url, result).await,
                None => Carried::Unknown("the hook named a status URL of another origin; it was not asked".to_owned()),
            },
            (StatusCode::ACCEPTED, _) => called_back(result, "it said 202").await,
            (status, Some(answer)) if status.is_success() => {
                answer.carried().unwrap_or_else(|| Carried::Unknown("the hook answered without a result".to_owned()))
            }
            (status, _) if status.is_success() => Carried::Unknown("the hook's answer cannot be read".to_owned()),
            (StatusCode::REQUEST_TIMEOUT, _) => called_back(result, "it said 408").await,
            (status, answer) if status.is_client_error() || status.is_redirection() => {
                let detail = answer.and_then(|a| a.detail).unwrap_or_default();
                Carried::Refused(format!("the hook refused: HTTP {} {}", status.as_u16(), clean_to(&detail, DETAIL_MAX)))
            }
            (status, _) => called_back(result, &format!("it said {}", status.as_u16())).await,
        }
    }

    /// Signed with the secret as it stands in its file now.
    fn signed(&self, client: &Client, method: Method, url: &Url, body: &[u8]) -> Result<RequestBuilder, String> {
        let secret = self.secret_file.read().map_err(|e| format!("the hook cannot be asked: {}", e.explained()))?;
        let timestamp = clock::now().as_second().to_string();
        let signature = sign(secret.expose().as_bytes(), &timestamp, method.as_str(), &path_of(url), body);
        Ok(client.request(method, url.clone()).header(TIMESTAMP, timestamp).header(SIGNATURE, format!("v1={signature}")))
    }

    fn same_origin(&self, text: &str) -> Option<Url> {
        let url = self.url.join(text).ok()?;
        (url.origin() == self.url.origin() && url.username().is_empty() && url.password().is_none()).then_some(url)
    }

    /// Until a result is told either way. A poll that fails is made again: the outer bound ends it.
    async fn polled(&self, client: &Client, url: &Url, mut result: oneshot::Receiver<Carried>) -> Carried {
        let mut next = Instant::now();
        let mut heard = true;
        loop {
            tokio::select! {
                told = &mut result, if heard => match told {
                    Ok(carried) => return carried,
                    Err(_) => heard = false,
                },
                () = tokio::time::sleep_until(next) => {}
            }
            if Instant::now() < next {
                continue;
            }
            next = Instant::now() + POLL_EVERY;
            let Ok(request) = self.signed(client, Method::GET, url, b"") else { continue };
            let Ok(response) = request.send().await else { continue };
            if !response.status().is_success() {
                continue;
            }
            let answer = http::body(response, ANSWER_MAX).await.ok().and_then(|body| serde_json::from_slice::<Answer>(&body).ok());
            if let Some(carried) = answer.and_then(|a| a.carried()) {
                return carried;
            }
        }
    }
}

async fn called_back(result: oneshot::Receiver<Carried>, why: &str) -> Carried {
    match result.await {
        Ok(carried) => carried,
        Err(_) => Carried::Unknown(format!("no result from the hook ({why})")),
    }
}

/// Orders whose result may come by a callback.
#[derive(Default)]
pub struct Callbacks(Mutex<BTreeMap<String, Waiting>>);

/// The order's key, and who waits for its result until it is told.
type Waiting = (SecretFile, Option<oneshot::Sender<Carried>>);

/// Why a callback was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotTaken {
    /// Its signature or its time is not good, or no such order is under way: nobody is told which.
    Unproved,
    Malformed,
}

#[derive(Deserialize)]
struct Told {
    attempt_id: String,
    result: String,
    #[serde(default)]
    detail: Option<String>,
}

impl Callbacks {
    fn expect(&self, attempt_id: &str, secret: SecretFile) -> oneshot::Receiver<Carried> {
        let (told, result) = oneshot::channel();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(attempt_id.to_owned(), (secret, Some(told)));
        result
    }

    fn forget(&self, attempt_id: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(attempt_id);
    }

    /// A result by callback, signed with the key of the order that it names. The same one twice is taken twice.
    ///
    /// # Errors
    /// It is not proved, or cannot be read.
    pub fn take(&self, signature: &str, timestamp: &str, path: &str, body: &[u8], now: Timestamp) -> Result<(), NotTaken> {
        let told: Told = serde_json::from_slice(body).map_err(|_| NotTaken::Malformed)?;
        let secret = {
            let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.get(&told.attempt_id).map(|(secret, _)| secret.clone()).ok_or(NotTaken::Unproved)?
        };
        let key = secret.read().map_err(|_| NotTaken::Unproved)?;
        if !verified(key.expose().as_bytes(), signature, timestamp, "POST", path, body, now) {
            return Err(NotTaken::Unproved);
        }
        let answer = Answer { result: Some(told.result), detail: told.detail, status_url: None };
        let carried = answer.carried().ok_or(NotTaken::Malformed)?;
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = waiting.get_mut(&told.attempt_id).and_then(|(_, sender)| sender.take()) {
            // Whoever waited may just have gone.
            let _ = sender.send(carried);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_holds_for_its_key_time_path_and_body_only() {
        let now: Timestamp = "2026-11-30T12:00:00Z".parse().unwrap();
        let at = now.as_second().to_string();
        let signature = format!("v1={}", sign(b"key", &at, "POST", "/hook?a=1", b"{}"));
        // Made with: printf 'v1\n1796040000\nPOST\n/hook?a=1\n%s' "$(printf '{}' | sha256sum | cut -c-64)" | openssl dgst -sha256 -hmac key
        assert!(verified(b"key", &signature, &at, "POST", "/hook?a=1", b"{}", now));
        for (key, at, method, path, body) in [
            (&b"other"[..], at.as_str(), "POST", "/hook?a=1", &b"{}"[..]),
            (b"key", "1796040001", "POST", "/hook?a=1", b"{}"),
            (b"key", &at, "GET", "/hook?a=1", b"{}"),
            (b"key", &at, "POST", "/hook", b"{}"),
            (b"key", &at, "POST", "/hook?a=1", b"{ }"),
        ] {
            assert!(!verified(key, &signature, at, method, path, body, now), "{key:?} {at} {method} {path} {body:?}");
        }
        for signature in ["", "v1=", &signature[3..], "v1=zz", &format!("{signature}00"), &signature.replace("v1", "v2")] {
            assert!(!verified(b"key", signature, &at, "POST", "/hook?a=1", b"{}", now), "{signature}");
        }
        for late in [-301, 301] {
            let then = now + jiff::SignedDuration::from_secs(late);
            assert!(!verified(b"key", &signature, &at, "POST", "/hook?a=1", b"{}", then), "{late}");
        }
    }
}
