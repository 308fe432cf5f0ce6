//! The upgrade to Hangar's event stream: the same address, TLS, key and guard as every other call.

use reqwest::header::{CONNECTION, HeaderValue, UPGRADE};
use reqwest::{StatusCode, Upgraded};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::{Call, Http, dial, lost};
use crate::hangar::auth::Verdict;
use crate::hangar::fault::{CallError, Fault};

/// Largest message that is taken, in bytes. Hangar's events are below 2 kB.
const MESSAGE_MAX: usize = 256 * 1024;

/// The open event stream.
pub type Socket = WebSocketStream<Upgraded>;

impl super::HangarClient {
    /// `GET /api/ws/events`, upgraded. Ask [`super::HangarClient::system`] right before: on the upgrade Hangar answers 403
    /// both to a key without `audit:read` and to a wrong key, and counts the second one towards its lock-out.
    pub async fn events(&self) -> Result<Socket, CallError> {
        let call = Call::get("api/ws/events");
        let leave = self.auth.admit().await.map_err(|fault| call.error(Fault::Auth(fault)))?;
        let answer = self.upgrade(&call, leave.key.clone()).await;
        let verdict = match &answer {
            Ok(_) => Verdict::LetIn,
            // See above: it proves nothing in favour of the key.
            Err(Fault::Forbidden { .. }) => Verdict::Unclear,
            Err(fault) => Verdict::of(fault),
        };
        self.auth.settle(leave, verdict).await;
        answer.map_err(|fault| call.error(fault))
    }

    async fn upgrade(&self, call: &Call, key: Option<HeaderValue>) -> Result<Socket, Fault> {
        let http = dial(&self.base, &self.settings, Http::One).map_err(|e| Fault::Unreachable { why: e.to_string() })?;
        let url = self.base.join(&call.path).map_err(|e| Fault::Unreachable { why: e.to_string() })?;
        let nonce = generate_key();
        let mut request = http
            .get(url)
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", &nonce);
        if let Some(key) = key {
            request = request.header("x-api-key", key);
        }
        // Bounded here and not by the client, whose time-out would also end the open stream.
        let answer = tokio::time::timeout(self.settings.request_timeout, request.send()).await;
        let response = answer.map_err(|_| Fault::Lost { why: "time-out".to_owned() })?.map_err(lost)?;
        match response.status() {
            StatusCode::SWITCHING_PROTOCOLS => {}
            StatusCode::FORBIDDEN => {
                let message = "the upgrade was refused; it needs the permission audit:read".to_owned();
                return Err(Fault::Forbidden { code: "upgrade_refused".to_owned(), message });
            }
            status if status.is_success() => {
                return Err(Fault::BadAnswer { status: Some(status.as_u16()), what: "no WebSocket upgrade".to_owned() });
            }
            _ => return Err(self.refusal(response).await),
        }
        let wanted = derive_accept_key(nonce.as_bytes());
        if response.headers().get("sec-websocket-accept").is_none_or(|accept| accept.as_bytes() != wanted.as_bytes()) {
            return Err(Fault::BadAnswer { status: Some(101), what: "not a WebSocket answer to our key".to_owned() });
        }
        let stream = response.upgrade().await.map_err(lost)?;
        let config = WebSocketConfig::default().max_message_size(Some(MESSAGE_MAX)).max_frame_size(Some(MESSAGE_MAX));
        Ok(WebSocketStream::from_raw_socket(stream, Role::Client, Some(config)).await)
    }
}
