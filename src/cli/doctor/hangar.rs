//! Hangar itself: whether it answers, which version it is, whether it lets us in, and what it lets us do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::Check;
use crate::cli::store;
use crate::config::Config;
use crate::engine::{FIRST_SUPPORTED, FIRST_WITH_DEAD_BLOCK};
use crate::hangar::client::Clocks;
use crate::hangar::{AuthMemory, CallError, Fault, HangarClient, MemoryError, Settings, parse_version};
use crate::observe::metrics_text::MetricsReading;

/// Beyond this two clocks are not the same.
const SKEW_WARN: SignedDuration = SignedDuration::from_secs(2);

/// What later checks need of Hangar.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) process_start: Option<Timestamp>,
    /// Hangar has series of servers, so Prometheus should have them.
    pub(super) has_series: bool,
    /// Hangar wrote to its log while it was asked; `None` where nothing was asked that it logs.
    pub(super) log_was_written: Option<bool>,
}

/// Makes the checks, from the outside in: what failed makes the rest be skipped.
pub(super) async fn examine(config: &Config, checks: &mut Vec<Check>) -> Seen {
    let client = match client(config).await {
        Ok(client) => client,
        Err(why) => {
            checks.push(Check::fail("hangar_reachable", why, "correct hangar.url: http://HOST:PORT of Hangar itself"));
            return Seen::default();
        }
    };
    let url = config.hangar.url.as_str();
    match client.clocks().await {
        Ok(clocks) => {
            checks.push(Check::ok("hangar_reachable", format!("{url} answers")));
            checks.push(clock("hangar_clock", "Hangar", clocks, config.policy.settle));
        }
        Err(error) => {
            checks.push(unreachable(url, &error));
            checks.push(Check::skip("hangar_version", "Hangar does not answer"));
            return Seen::default();
        }
    }
    let metrics = client.metrics().await;
    checks.push(version(&metrics));
    checks.push(gauges(&metrics));
    let mut seen = Seen::default();
    if let Ok(reading) = &metrics {
        seen.process_start = reading.process_start;
        seen.has_series = reading.servers.values().any(|s| s.gauge.is_some());
    }
    let asked = key(config, &client, checks).await;
    seen.log_was_written = asked.then_some(true);
    seen
}

async fn client(config: &Config) -> Result<HangarClient, String> {
    HangarClient::new(Settings::from(&config.hangar), Arc::new(memory(config).await)).map_err(|e| e.to_string())
}

/// Refusals that the daemon remembers count here too; ours are forgotten, since a running daemon holds the store.
#[derive(Default)]
struct Memory {
    kept: Mutex<Option<Value>>,
}

async fn memory(config: &Config) -> Memory {
    let Ok(log) = store::open(&config.storage, Some(&config.hangar.instance), false).await else { return Memory::default() };
    let kept = log.get(&format!("hangar_auth:{}", config.hangar.instance)).await.ok().flatten();
    Memory { kept: Mutex::new(kept) }
}

impl AuthMemory for Memory {
    fn get<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Option<Value>, MemoryError>> {
        Box::pin(async { Ok(self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()) })
    }

    fn put<'a>(&'a self, _: &'a str, value: Value) -> BoxFuture<'a, Result<(), MemoryError>> {
        Box::pin(async {
            *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
            Ok(())
        })
    }
}

fn unreachable(url: &str, error: &CallError) -> Check {
    let walled = matches!(error.fault, Fault::Auth(_) | Fault::Forbidden { .. });
    let advice = if walled {
        "a proxy before Hangar asks for credentials: let /health/live and /metrics through"
    } else {
        error.fault.advice(false)
    };
    Check::fail("hangar_reachable", format!("{url}: {}", error.fault), advice)
}

/// Compares at the resolution of a `Date`: a second.
pub(super) fn clock(check: &'static str, whose: &str, clocks: Option<Clocks>, settle: SignedDuration) -> Check {
    let Some(Clocks { theirs, sent_at, answered_at }) = clocks else {
        return Check::skip(check, format!("{whose} tells no time (no Date header)"));
    };
    // Anywhere within its second, at any moment of the exchange.
    let second = SignedDuration::from_secs(1);
    let (ahead, behind) = (theirs.duration_since(answered_at), sent_at.duration_since(theirs + second));
    let (skew, word) = if ahead > behind { (ahead, "ahead of") } else { (behind, "behind") };
    if skew <= SKEW_WARN {
        return Check::ok(check, format!("{whose}'s clock and ours agree within {} s", SKEW_WARN.as_secs()));
    }
    let found = format!("{whose}'s clock is {} s {word} ours", skew.as_secs());
    let advice = "set both by NTP: a recovery is proved by comparing Hangar's times with ours";
    if skew > settle { Check::fail(check, found, advice) } else { Check::warn(check, found, advice) }
}

fn version(metrics: &Result<MetricsReading, CallError>) -> Check {
    const CHECK: &str = "hangar_version";
    let Ok(reading) = metrics else { return Check::skip(CHECK, "Hangar's metrics cannot be read") };
    let Some(text) = &reading.version else {
        return Check::warn(CHECK, "Hangar tells no version", "is it MCP Hangar? The daemon goes by what it answers");
    };
    match parse_version(text) {
        Some(v) if v < FIRST_SUPPORTED => Check::fail(
            CHECK,
            format!("Hangar {text} is too old: a dead server reads cold or ready there, and no recovery can be proved"),
            "upgrade Hangar to 2.20.0 or later; 2.21.0 or later also tells why a server is dead",
        ),
        Some(v) if v < FIRST_WITH_DEAD_BLOCK => Check::warn(
            CHECK,
            format!("Hangar {text} does not tell why a server is dead; only its log does"),
            "upgrade to 2.21.0 or later, or set hangar.log_file to Hangar's --log-file",
        ),
        Some(_) => Check::ok(CHECK, text.clone()),
        None => Check::warn(CHECK, format!("\"{text}\" is no version"), "the daemon goes by what Hangar answers"),
    }
}

fn gauges(metrics: &Result<MetricsReading, CallError>) -> Check {
    const CHECK: &str = "gauges";
    let reading = match metrics {
        Ok(reading) => reading,
        Err(error) => {
            let advice = "open that address: it must be Hangar's own /metrics, not a page of a proxy; hangar.max_body bounds its size";
            return Check::fail(CHECK, error.to_string(), advice);
        }
    };
    let states = reading.servers.values().filter(|s| s.gauge.is_some()).count();
    let healthy = reading.servers.values().filter(|s| s.last_healthy.is_some()).count();
    match (states, healthy) {
        (0, _) => Check::warn(
            CHECK,
            "no server has a series yet: Hangar exports one once a server was started",
            "start a server, or go on: nothing is dead while nothing was started",
        ),
        (n, 0) => Check::warn(
            CHECK,
            format!("{n} servers have a state, none has a last-healthy time"),
            "none was ever healthy, or Hangar is older than 2.20.0: a recovery cannot be proved without it",
        ),
        (n, m) => Check::ok(CHECK, format!("{n} servers have a state, {m} a last-healthy time")),
    }
}

/// The key and its permissions. True if authenticated calls were answered.
async fn key(config: &Config, client: &HangarClient, checks: &mut Vec<Check>) -> bool {
    let file = config.hangar.api_key.as_ref().map(|key| key.path.display().to_string());
    let me = match client.me().await {
        Ok(me) => me,
        Err(error) => {
            checks.push(refused(file.as_deref(), &error.fault));
            for (check, ..) in PERMISSIONS {
                checks.push(Check::skip(check, "Hangar does not let us in"));
            }
            checks.push(Check::skip("websocket", "Hangar does not let us in"));
            return false;
        }
    };
    checks.push(match (&file, me.authenticated) {
        (Some(file), true) => Check::ok("api_key", format!("the key in {file} is {}", me.principal.as_deref().unwrap_or("somebody"))),
        (None, true) => Check::ok("api_key", "Hangar lets anybody in as an anonymous principal"),
        (Some(_), false) => Check::ok("api_key", "Hangar runs without authentication: the key is not needed"),
        (None, false) => Check::ok("api_key", "Hangar runs without authentication: no key is needed"),
    });
    permissions(client, checks).await;
    checks.push(websocket(config, client).await);
    me.authenticated
}

fn refused(file: Option<&str>, fault: &Fault) -> Check {
    let of = file.map_or_else(|| "no key is configured, and ".to_owned(), |file| format!("the key in {file}: "));
    Check::fail("api_key", format!("{of}{fault}"), fault.advice(file.is_some()))
}

/// Check, permission, and what is not possible without it.
const PERMISSIONS: [(&str, &str, &str); 4] = [
    ("permission_read", "mcp_servers:read", "no state can be confirmed, so nothing is ever started"),
    ("permission_start", "mcp_servers:lifecycle", "no server can be started"),
    ("permission_groups", "group:read", "a group's members are treated like any other server"),
    ("permission_rebalance", "group:update", "a member that stays out of rotation is not taken back (lease_recovery)"),
];

async fn permissions(client: &HangarClient, checks: &mut Vec<Check>) {
    let answers =
        [client.list().await.map(drop), client.may_start().await, client.groups().await.map(drop), client.may_change_groups().await];
    for ((check, permission, lost), answer) in PERMISSIONS.into_iter().zip(answers) {
        let group = permission.starts_with("group:");
        checks.push(match answer {
            Ok(()) => Check::ok(check, permission),
            Err(CallError { fault: Fault::Forbidden { .. }, .. }) => {
                let found = format!("{permission} is missing: {lost}");
                let advice = format!("give the key a role that holds it (POST /api/auth/roles with \"{permission}\")");
                if group { Check::warn(check, found, advice) } else { Check::fail(check, found, advice) }
            }
            Err(error) => Check::warn(check, format!("{permission} cannot be told: {error}"), "look at Hangar's own log"),
        });
    }
}

async fn websocket(config: &Config, client: &HangarClient) -> Check {
    const CHECK: &str = "websocket";
    if !config.hangar.hears_events() {
        return Check::skip(CHECK, "not needed: Hangar's log is read, or hangar.events is off");
    }
    match client.events().await {
        Ok(mut socket) => {
            // Left open it would make Hangar exit 1 on SIGTERM.
            let _ = tokio::time::timeout(Duration::from_secs(1), socket.close(None)).await;
            Check::ok(CHECK, "the event stream opens (audit:read)")
        }
        Err(CallError { fault: Fault::Forbidden { .. }, .. }) => Check::warn(
            CHECK,
            "Hangar refuses the event stream: audit:read is missing",
            "give the key a role with \"audit:read\", or set hangar.log_file, which tells more; else a death is seen at the next poll",
        ),
        Err(error) => Check::warn(
            CHECK,
            format!("no event stream: {}", error.fault),
            "a proxy must pass WebSocket upgrades of /api/ws/events, and Hangar's Python needs the package websockets; or set hangar.log_file",
        ),
    }
}
