//! Where the network ends: a simulation puts itself here, so that everything above is what runs in the daemon.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::SignedDuration;

use super::{Call, HangarClient};
use crate::hangar::answers;
use crate::hangar::fault::Fault;
use crate::observe::metrics_text::MetricsReading;

/// One request as it goes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// `GET` or `POST`.
    pub method: String,
    /// Relative to Hangar's base: `api/mcp_servers/x/start`.
    pub path: String,
    pub body: Option<String>,
    /// No answer within this is a lost one.
    pub timeout: Duration,
}

/// One answer as it comes in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub retry_after: Option<SignedDuration>,
    pub body: Vec<u8>,
}

/// What carries requests to Hangar and its answers back.
pub trait Wire: Send + Sync {
    /// Fails where no answer came.
    fn send(&self, sent: Sent) -> BoxFuture<'_, Result<Answer, Fault>>;
    /// `GET /metrics`, read.
    fn metrics(&self) -> BoxFuture<'_, Result<MetricsReading, Fault>>;
}

impl HangarClient {
    pub(super) async fn exchange_over(&self, wire: &Arc<dyn Wire>, call: &Call) -> Result<Vec<u8>, Fault> {
        let timeout = call.timeout.unwrap_or(self.settings.request_timeout);
        let sent = Sent { method: call.method.to_string(), path: call.path.clone(), body: call.body.clone(), timeout };
        let answer = wire.send(sent).await?;
        if matches!(answer.status, 200..=299) {
            return Ok(answer.body);
        }
        Err(answers::refusal(answer.status, answer.retry_after, &answer.body, (self.clock)()))
    }
}
