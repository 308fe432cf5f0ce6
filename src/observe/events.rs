//! Hangar's event stream (`/api/ws/events`): it wakes the engine, and tells why a server died before REST is asked.
//!
//! It replays nothing, keeps no order and may drop events, so each connection begins with a re-read, and nothing that it
//! tells opens or closes an incident. An open socket makes Hangar exit 1 on SIGTERM: it is closed as soon as we are to stop.

mod gate;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;

use gate::Stream;
pub use gate::{Gate, Paused};

use super::metrics_text::time;
use crate::hangar::client::Socket;
use crate::hangar::fault::{clean, clean_to};
use crate::hangar::{CallError, Fault, HangarClient};
use crate::jitter::{Backoff, Jitter};
use crate::policy::{Reason, StopReason, valid_server_id};

/// What is asked for; Hangar takes no patterns.
const EVENT_TYPES: [&str; 5] = ["McpServerStateChanged", "McpServerDegraded", "McpServerStarted", "McpServerStopped", "HealthCheckFailed"];
/// Events that wait for the engine at most; then the oldest go, and it reads everything again.
const WAITING_MAX: usize = 1024;
/// Hangar pings after 55 s of silence: a socket that is silent for longer is dead.
const SILENCE_MAX: Duration = Duration::from_secs(80);
/// A write that takes longer than this means that the other side is gone. Hangar waits 10 s for a pong.
const WRITE_MAX: Duration = Duration::from_secs(5);
const RECONNECT_FIRST: Duration = Duration::from_millis(500);
const RECONNECT_MAX: Duration = Duration::from_secs(30);
/// A connection that lasted this long was a good one.
const GOOD_AFTER: Duration = Duration::from_secs(30);
/// How long Hangar takes to see a closed socket.
const CLOSED_AFTER: Duration = Duration::from_millis(100);
/// How long Hangar's side of a closed stream may wait where nothing happens: for an event, then for a pong.
const LETS_GO_AFTER: Duration = Duration::from_secs(66);
const WAKE_MAX: Duration = Duration::from_secs(1);
/// Where the stream is refused or not there, it is asked for again this seldom: each try may count as a failed authentication.
const REFUSED_RETRY: Duration = Duration::from_mins(15);

/// What the stream brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// Connected and subscribed: whatever happened before is unknown.
    Open,
    /// Nothing is heard any more.
    Closed,
    Told {
        told: Vec<Told>,
        /// Events that were dropped here since the last update.
        missed: u64,
    },
}

/// One event of this Hangar process about one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub mcp_server: String,
    /// Hangar's `occurred_at`.
    pub at: Timestamp,
    pub what: What,
}

/// What happened to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Dead(Reason),
    Degraded,
    /// Initializing, ready or cold.
    NotDead,
    Stopped(StopReason),
    CheckFailed,
}

/// One message of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    Ping,
    Told(Told),
    /// A peer replica's event.
    Foreign,
    /// An acknowledgement, or an event of another kind.
    Nothing,
    /// Not what Hangar sends.
    Bad(String),
}

#[derive(Deserialize)]
struct Raw {
    #[serde(rename = "type")]
    kind: Option<String>,
    event_type: Option<String>,
    occurred_at: Option<f64>,
    produced_by: Option<String>,
    mcp_server_id: Option<String>,
    new_state: Option<String>,
    dead_reason: Option<String>,
    reason: Option<String>,
}

/// Reads one message. `own` is the `instance_id` of the Hangar that is watched; `None`: it does not say, and then no event
/// is taken for its own.
#[must_use]
pub fn read(message: &str, own: Option<&str>) -> Heard {
    let raw: Raw = match serde_json::from_str(message) {
        Ok(raw) => raw,
        Err(error) => return Heard::Bad(clean(&error.to_string())),
    };
    if raw.kind.as_deref() == Some("ping") {
        return Heard::Ping;
    }
    let (Some(event), Some(id)) = (raw.event_type.as_deref(), raw.mcp_server_id) else { return Heard::Nothing };
    if own.is_none() || raw.produced_by.as_deref() != own {
        return Heard::Foreign;
    }
    let what = match event {
        "McpServerStateChanged" => match raw.new_state.as_deref() {
            // A reason that a newer Hangar adds may be as serious as a capability block.
            Some("dead") => What::Dead(raw.dead_reason.and_then(|r| r.parse().ok()).unwrap_or(Reason::Unknown)),
            Some("degraded") => What::Degraded,
            Some(_) => What::NotDead,
            None => return Heard::Bad("McpServerStateChanged without new_state".to_owned()),
        },
        "McpServerDegraded" => What::Degraded,
        "McpServerStarted" => What::NotDead,
        "McpServerStopped" => What::Stopped(raw.reason.and_then(|r| r.parse().ok()).unwrap_or(StopReason::Other)),
        "HealthCheckFailed" => What::CheckFailed,
        _ => return Heard::Nothing,
    };
    match raw.occurred_at.and_then(time) {
        Some(at) if valid_server_id(&id) => Heard::Told(Told { mcp_server: id, at, what }),
        Some(_) => Heard::Bad(format!("an id that Hangar would refuse: {}", clean_to(&id, 80))),
        None => Heard::Bad("an event without a time".to_owned()),
    }
}

/// Entry point for fuzzing: any bytes as a message.
#[doc(hidden)]
pub fn fuzz_events(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = read(text, Some("host-1"));
    }
}

/// What waits for the engine, bounded.
#[derive(Default)]
struct Waiting {
    told: VecDeque<Told>,
    missed: u64,
}

impl Waiting {
    fn push(&mut self, told: Told) {
        if self.told.len() >= WAITING_MAX {
            self.told.pop_front();
            self.missed += 1;
        }
        self.told.push_back(told);
    }

    fn take(&mut self) -> Update {
        Update::Told { told: std::mem::take(&mut self.told).into(), missed: std::mem::take(&mut self.missed) }
    }
}

/// Why a connection ended.
enum End {
    Stopped,
    /// Closed for whoever holds the gate.
    Paused,
    /// Lost, or not made: tried again soon.
    Lost(String),
    /// Refused for good: tried again seldom.
    Refused(String),
}

/// Follows the stream until `stop`, but while `gate` is held; `T` is what the engine hears.
pub async fn follow<T: From<Update> + Send>(
    client: Arc<HangarClient>,
    jitter: Jitter,
    gate: Gate,
    out: mpsc::Sender<T>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::new(jitter, RECONNECT_FIRST, RECONNECT_MAX);
    let mut complaint: Option<String> = None;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = gate.free() => gate.tell(Stream::Open),
        }
        let begun = Instant::now();
        let mut advice = "nothing: it is tried again";
        let end = tokio::select! {
            () = stop.cancelled() => return,
            () = gate.held() => {
                // The upgrade may have been sent already.
                gate.tell(shut(false));
                continue;
            }
            connected = connect(&client) => match connected {
                Ok((socket, own)) => {
                    complaint = None;
                    tracing::info!(event = "events_open", "Hangar's events are heard");
                    let end = session(socket, own.as_deref(), &client, &gate, &out, &stop).await;
                    if out.send(Update::Closed.into()).await.is_err() {
                        return;
                    }
                    end
                }
                Err(error) => {
                    advice = advice_on(&error, client.has_key());
                    refusal(&error)
                }
            }
        };
        if begun.elapsed() >= GOOD_AFTER {
            backoff.reset();
        }
        let (why, wait) = match end {
            End::Stopped => return,
            End::Paused => {
                tracing::info!(event = "events_paused", "Hangar's events are not heard while it is restarted");
                backoff.reset();
                continue;
            }
            End::Lost(why) => (why, backoff.wait()),
            End::Refused(why) => (why, REFUSED_RETRY),
        };
        gate.tell(Stream::Shut { let_go_at: None });
        if complaint.as_ref() != Some(&why) {
            tracing::warn!(event = "events_lost", error = why, advice, "Hangar's events are not heard; going on without them");
            complaint = Some(why);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(wait) => {}
        }
    }
}

/// The key is proved by a plain call first; whose events are ours is asked once the socket is open, since Hangar may have
/// restarted in between.
async fn connect(client: &HangarClient) -> Result<(Socket, Option<String>), CallError> {
    client.system().await?;
    let mut socket = client.events().await?;
    let subscribe = serde_json::json!({"type": "subscribe", "event_types": EVENT_TYPES}).to_string();
    let lost = |why: String| CallError { call: "GET /api/ws/events".to_owned(), fault: Fault::Lost { why } };
    write(&mut socket, subscribe).await.map_err(lost)?;
    let own = client.system().await?.instance_id;
    Ok((socket, own))
}

/// Where only the stream is refused, something else helps than where Hangar is.
fn advice_on(error: &CallError, has_key: bool) -> &'static str {
    let of_the_stream = error.call.ends_with("/ws/events");
    if of_the_stream && matches!(error.fault, Fault::BadAnswer { .. }) {
        "Hangar's Python needs the package websockets, and a proxy must pass the upgrade; or set hangar.log_file"
    } else if of_the_stream && matches!(error.fault, Fault::Forbidden { .. }) {
        "give the key's role the permission audit:read, or set hangar.log_file"
    } else {
        error.fault.advice(has_key)
    }
}

fn refusal(error: &CallError) -> End {
    let why = error.to_string();
    match &error.fault {
        // The last ones: no such route, a Hangar or a proxy without the stream.
        Fault::Forbidden { .. } | Fault::NotFound { .. } | Fault::BadId { .. } | Fault::BadAnswer { status: Some(404 | 405 | 426), .. } => {
            End::Refused(why)
        }
        // The guard decides when the key is tried again; asking it sends nothing.
        Fault::Auth(_)
        | Fault::Unreachable { .. }
        | Fault::Lost { .. }
        | Fault::RateLimited { .. }
        | Fault::Api { .. }
        | Fault::BadAnswer { .. } => End::Lost(why),
    }
}

async fn session<T: From<Update> + Send>(
    mut socket: Socket,
    own: Option<&str>,
    client: &HangarClient,
    gate: &Gate,
    out: &mpsc::Sender<T>,
    stop: &CancellationToken,
) -> End {
    let mut waiting = Waiting::default();
    let mut opened = false;
    loop {
        let message = tokio::select! {
            // First, so that nothing that comes in can keep the socket open.
            biased;
            () = stop.cancelled() => {
                close(socket, client).await;
                return End::Stopped;
            }
            () = gate.held() => {
                let woken = close(socket, client).await;
                gate.tell(shut(woken));
                return End::Paused;
            }
            permit = out.reserve(), if !opened || !waiting.told.is_empty() => {
                let Ok(permit) = permit else { return End::Stopped };
                permit.send(if opened { waiting.take() } else { Update::Open }.into());
                opened = true;
                continue;
            }
            message = timeout(SILENCE_MAX, socket.next()) => message,
        };
        let text = match message {
            Err(_) => return End::Lost("silent for longer than Hangar's pings".to_owned()),
            Ok(None) => return End::Lost("closed by Hangar".to_owned()),
            Ok(Some(Err(error))) => return End::Lost(clean(&error.to_string())),
            Ok(Some(Ok(Message::Text(text)))) => text,
            // Protocol pings are answered by the library.
            Ok(Some(Ok(_))) => continue,
        };
        match read(&text, own) {
            Heard::Ping => {
                if let Err(why) = write(&mut socket, r#"{"type":"pong"}"#.to_owned()).await {
                    return End::Lost(why);
                }
            }
            Heard::Told(told) => waiting.push(told),
            Heard::Foreign | Heard::Nothing => {}
            Heard::Bad(what) => tracing::debug!(what, "an event that cannot be read"),
        }
    }
}

/// Closes the stream, and wakes Hangar's side of it: that waits for its next event, up to 55 s, before it looks whether
/// anybody listens, and keeps Hangar from ending for as long. So it is made to hear of everything, and where keys are
/// checked, a call with ours is such an event. True if it is: Hangar has let go.
async fn close(mut socket: Socket, client: &HangarClient) -> bool {
    let _ = write(&mut socket, r#"{"type":"subscribe"}"#.to_owned()).await;
    let _ = timeout(WRITE_MAX, socket.close(None)).await;
    sleep(CLOSED_AFTER).await;
    let woken = timeout(WAKE_MAX, client.me()).await;
    matches!(woken, Ok(Ok(me)) if me.authenticated)
}

fn shut(let_go: bool) -> Stream {
    Stream::Shut { let_go_at: (!let_go).then(|| Instant::now() + LETS_GO_AFTER) }
}

async fn write(socket: &mut Socket, text: String) -> Result<(), String> {
    match timeout(WRITE_MAX, socket.send(Message::text(text))).await {
        Ok(sent) => sent.map_err(|error| clean(&error.to_string())),
        Err(_) => Err("Hangar takes no answer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn told(message: &str) -> Heard {
        read(message, Some("host-1"))
    }

    fn of(event: &str, more: &str) -> String {
        format!(
            r#"{{"event_type":"{event}","event_id":"e","occurred_at":1796052641.474086,"produced_by":"host-1","mcp_server_id":"gu"{more}}}"#
        )
    }

    fn check(event: &str, more: &str, what: What) {
        let Heard::Told(got) = told(&of(event, more)) else { panic!("{event}{more}: {:?}", told(&of(event, more))) };
        assert_eq!((got.mcp_server.as_str(), got.what), ("gu", what));
        assert_eq!(got.at.as_second(), 1_796_052_641);
    }

    #[test]
    fn each_event_that_is_asked_for_says_what_happened() {
        let changed = "McpServerStateChanged";
        check(changed, r#","old_state":"degraded","new_state":"dead","dead_reason":"given_up""#, What::Dead(Reason::GivenUp));
        check(changed, r#","old_state":"ready","new_state":"dead","dead_reason":"something_new""#, What::Dead(Reason::Unknown));
        check(changed, r#","old_state":"ready","new_state":"dead","dead_reason":null"#, What::Dead(Reason::Unknown));
        check(changed, r#","old_state":"dead","new_state":"initializing","dead_reason":null"#, What::NotDead);
        check("McpServerDegraded", r#","consecutive_failures":3"#, What::Degraded);
        check("McpServerStarted", "", What::NotDead);
        check("McpServerStopped", r#","reason":"max_retries_exceeded""#, What::Stopped(StopReason::MaxRetriesExceeded));
        check("McpServerStopped", r#","reason":"failback""#, What::Stopped(StopReason::Other));
        check("HealthCheckFailed", "", What::CheckFailed);
    }

    #[test]
    fn a_peers_event_and_one_of_nobody_is_not_ours() {
        let event = of("McpServerStarted", "");
        assert_eq!(read(&event, Some("host-2")), Heard::Foreign);
        assert_eq!(read(&event, None), Heard::Foreign);
        assert_eq!(told(&event.replace("\"host-1\"", "null")), Heard::Foreign);
    }

    #[test]
    fn what_is_no_event_of_a_server_says_nothing() {
        assert_eq!(told(r#"{"type":"ping"}"#), Heard::Ping);
        assert_eq!(told(r#"{"type":"subscribed","event_types":[]}"#), Heard::Nothing);
        assert_eq!(told(&of("BatchInvocationRequested", "")), Heard::Nothing);
        for bad in ["", "[]", "{", "7", &of("McpServerStateChanged", ""), &of("McpServerStarted", "").replace("gu", "a/b")] {
            assert!(matches!(told(bad), Heard::Bad(_)), "{bad}: {:?}", told(bad));
        }
        assert!(matches!(told(&of("McpServerStarted", "").replace("1796052641.474086", "1e300")), Heard::Bad(_)));
    }

    #[test]
    fn more_events_than_fit_lose_the_oldest_and_are_counted() {
        let mut waiting = Waiting::default();
        let Heard::Told(one) = told(&of("McpServerStarted", "")) else { panic!() };
        for n in 0..WAITING_MAX + 3 {
            waiting.push(Told { mcp_server: format!("s{n}"), ..one.clone() });
        }
        let Update::Told { told, missed } = waiting.take() else { panic!() };
        assert_eq!((told.len(), missed, told[0].mcp_server.as_str()), (WAITING_MAX, 3, "s3"));
        assert_eq!(waiting.take(), Update::Told { told: Vec::new(), missed: 0 });
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(data in proptest::collection::vec(any::<u8>(), 0..300)) {
            fuzz_events(&data);
        }
    }
}
