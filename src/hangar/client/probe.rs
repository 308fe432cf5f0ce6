//! What `doctor` asks: calls that show a permission, or the clock, and change nothing.

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::DATE;

use super::{Call, CallError, HangarClient};
use crate::hangar::answers;
use crate::hangar::fault::Fault;

/// In place of a server or group. No id begins with a hyphen (`^[a-zA-Z]…`), so nothing can be meant by it.
const NOBODY: &str = "-";

/// Hangar's clock against ours at one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// Hangar's `Date`, cut to the second.
    pub theirs: Timestamp,
    pub sent_at: Timestamp,
    pub answered_at: Timestamp,
}

impl HangarClient {
    /// `GET /health/live`, for its `Date`; `None` where the answer bears none. Needs no key.
    ///
    /// # Errors
    /// As [`HangarClient::live`].
    pub async fn clocks(&self) -> Result<Option<Clocks>, CallError> {
        let call = Call::get("health/live");
        let sent_at = (self.clock)();
        let response = self.send(&call, None).await.map_err(|fault| call.error(fault))?;
        let answered_at = (self.clock)();
        if !response.status().is_success() {
            let fault = self.refusal(response).await;
            return Err(call.error(fault));
        }
        let theirs = response.headers().get(DATE).and_then(|v| v.to_str().ok()).and_then(|v| rfc2822::parse(v).ok());
        let body = super::body(response, super::REFUSAL_MAX as u64).await;
        body.and_then(|body| super::parsed(answers::acknowledged(&body))).map_err(|fault| call.error(fault))?;
        Ok(theirs.map(|theirs| Clocks { theirs: theirs.timestamp(), sent_at, answered_at }))
    }

    /// Whether this key may start servers: a start of a server that cannot exist. Hangar judges the permission first.
    ///
    /// # Errors
    /// `Fault::Forbidden` where it may not; any other fault tells nothing of it.
    pub async fn may_start(&self) -> Result<(), CallError> {
        self.of_nobody("api/mcp_servers", "/start").await
    }

    /// Whether this key may change groups: a rebalance of a group that cannot exist. Before 2.24 Hangar lets anybody.
    ///
    /// # Errors
    /// As [`HangarClient::may_start`].
    pub async fn may_change_groups(&self) -> Result<(), CallError> {
        self.of_nobody("api/groups", "/rebalance").await
    }

    async fn of_nobody(&self, collection: &str, tail: &str) -> Result<(), CallError> {
        let call = Call { bad_id: None, ..Call::post(collection, NOBODY, tail) };
        match self.call(call, |_| Ok(())).await {
            Err(CallError { fault: Fault::NotFound { .. }, .. }) => Ok(()),
            other => other,
        }
    }
}
