//! Hangar's JSON answers: lenient about fields that nobody here reads, strict about those that something turns on.

mod system;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::fault::{AuthFault, Fault, clean, clean_to};
use crate::observe::metrics_text::time;
use crate::policy::{DeadBlock, GroupReading, Reason, RestReading, State, valid_server_id};
pub(super) use system::system;
pub use system::{Lease, System};

/// How long a lock-out is waited out when Hangar does not say (its default, `auth.rate_limit.lockout_seconds`).
const LOCKOUT_DEFAULT: SignedDuration = SignedDuration::from_secs(300);
/// No answer makes us wait longer than this.
const LOCKOUT_MAX: SignedDuration = SignedDuration::from_hours(24);

/// `GET /api/mcp_servers/{id}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerDetail {
    pub reading: RestReading,
    /// This Hangar has a `dead` field (2.21.0 and later): `reading.dead` = `None` then means "not dead".
    pub tells_dead: bool,
    /// Names of the tools that Hangar remembers.
    pub tools: Vec<String>,
}

/// `GET /api/mcp_servers/`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerList {
    pub servers: BTreeMap<String, RestReading>,
    /// At least one entry has a `dead` field (Hangar 2.21.0 and later).
    pub tells_dead: bool,
    /// Ids that Hangar itself would refuse, cut and escaped: never acted on.
    pub skipped_ids: Vec<String>,
    /// Entries whose state cannot be read, and why: unknown.
    pub unreadable: BTreeMap<String, String>,
}

/// `POST /api/mcp_servers/{id}/start` answered 200. Proves nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    pub state: State,
    pub tools: Vec<String>,
}

/// One line of the upstream's stderr.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LogLine {
    #[serde(default)]
    pub stream: String,
    pub content: String,
}

/// `GET /api/system/me`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Me {
    /// False when Hangar runs without authentication.
    pub authenticated: bool,
    /// `service:hangar-medic`
    pub principal: Option<String>,
}

/// One group of `GET /api/groups/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub id: String,
    /// Its circuit breaker is open: no call gets through.
    pub circuit_open: bool,
    pub members: Vec<GroupMember>,
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    pub id: String,
    pub state: State,
    pub in_rotation: bool,
    /// Its place in the group; `None` where Hangar does not tell.
    pub place: Option<(u32, u32)>,
}

/// What a reload of the configuration did, by server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reloaded {
    pub added: Vec<String>,
    pub removed: Vec<String>,
    pub updated: Vec<String>,
}

impl Group {
    /// What the planner needs of one member; `None` if it is none.
    #[must_use]
    pub fn reading(&self, member: &str, at: Timestamp) -> Option<GroupReading> {
        let me = self.members.iter().find(|m| m.id == member)?;
        Some(GroupReading {
            at,
            group: self.id.clone(),
            in_rotation: me.in_rotation,
            degraded_member: self.members.iter().any(|m| m.id != member && m.state == State::Degraded),
            in_rotation_count: u32::try_from(self.members.iter().filter(|m| m.in_rotation).count()).unwrap_or(u32::MAX),
        })
    }
}

/// `2.34.4`, with whatever a pre-release appends, as three numbers.
#[must_use]
pub fn parse_version(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.trim().split('.').map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part.get(..digits).and_then(|d| d.parse().ok())
    });
    Some((parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
}

#[derive(Deserialize)]
struct RawServer {
    mcp_server_id: String,
    state: String,
    mode: String,
    alive: bool,
    #[serde(default)]
    dead: DeadField,
    health: Option<RawHealth>,
    meta: Option<RawMeta>,
    tools: Option<Vec<RawTool>>,
}

#[derive(Deserialize)]
struct RawDead {
    reason: String,
    since: Option<Timestamp>,
    retry_allowed_at: Option<Timestamp>,
    revived_by: String,
}

#[derive(Deserialize)]
struct RawHealth {
    consecutive_failures: Option<u32>,
    can_retry: Option<bool>,
    last_failure_ago: Option<f64>,
}

#[derive(Deserialize)]
struct RawMeta {
    started_at: Option<f64>,
}

#[derive(Deserialize)]
struct RawTool {
    name: String,
}

/// Absent before 2.21.0, null while not dead.
#[derive(Default)]
enum DeadField {
    #[default]
    Absent,
    Null,
    Block(RawDead),
}

impl<'de> Deserialize<'de> for DeadField {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Null, Self::Block))
    }
}

impl DeadField {
    const fn is_told(&self) -> bool {
        !matches!(self, Self::Absent)
    }
}

fn reading(raw: &RawServer, at: Timestamp) -> Result<RestReading, String> {
    let state = word(&raw.state)?;
    let dead = match &raw.dead {
        DeadField::Absent | DeadField::Null => None,
        DeadField::Block(d) => Some(DeadBlock {
            // A reason that a newer Hangar adds may be as serious as a capability block.
            reason: d.reason.parse().unwrap_or(Reason::Unknown),
            since: d.since,
            retry_allowed_at: d.retry_allowed_at,
            revived_by_call: d.revived_by == "call_or_start",
        }),
    };
    Ok(RestReading {
        at,
        took: SignedDuration::ZERO,
        state,
        alive: raw.alive,
        mode: raw.mode.chars().take(64).collect(),
        dead,
        consecutive_failures: raw.health.as_ref().and_then(|h| h.consecutive_failures),
        started_at: raw.meta.as_ref().and_then(|m| m.started_at).and_then(time),
        backoff_until: match &raw.dead {
            DeadField::Block(dead) => dead.retry_allowed_at,
            DeadField::Null => None,
            DeadField::Absent => raw.health.as_ref().filter(|_| state == State::Dead).and_then(|h| implied_backoff(h, at)),
        },
    })
}

/// Hangar's backoff where it does not tell it (2.20.0): min(60, 2^failures) s and 10 % after the last failure.
fn implied_backoff(health: &RawHealth, at: Timestamp) -> Option<Timestamp> {
    let failures = health.consecutive_failures.filter(|_| health.can_retry == Some(false))?;
    let backoff = 2_f64.powi(i32::try_from(failures).unwrap_or(6).min(6)).min(60.0) * 1.1;
    let left = backoff - health.last_failure_ago?.max(0.0);
    let left = SignedDuration::try_from_secs_f64(left.clamp(0.0, 66.0)).ok()?;
    at.checked_add(left).ok()
}

fn word(state: &str) -> Result<State, String> {
    state.parse().map_err(|e: crate::policy::UnknownWord| e.to_string())
}

fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|e| match e.classify() {
        serde_json::error::Category::Eof => format!("truncated JSON after {} bytes", body.len()),
        serde_json::error::Category::Syntax | serde_json::error::Category::Io => format!("not JSON: {}", excerpt(body)),
        serde_json::error::Category::Data => clean(&format!("unexpected JSON: {e}")),
    })
}

fn excerpt(body: &[u8]) -> String {
    let cut = body.get(..400).unwrap_or(body);
    clean_to(&String::from_utf8_lossy(cut), 80)
}

/// Reads a server's detail; it must be the server that was asked for.
pub(super) fn server(body: &[u8], id: &str, at: Timestamp) -> Result<ServerDetail, String> {
    let raw: RawServer = json(body)?;
    if raw.mcp_server_id != id {
        return Err(format!("asked for {id}, answered for \"{}\"", clean_to(&raw.mcp_server_id, 80)));
    }
    Ok(ServerDetail { reading: reading(&raw, at)?, tells_dead: raw.dead.is_told(), tools: names(raw.tools.unwrap_or_default()) })
}

fn names(tools: Vec<RawTool>) -> Vec<String> {
    tools.into_iter().map(|t| t.name).collect()
}

/// Reads the list. One odd entry makes only that server unknown.
pub(super) fn list(body: &[u8], at: Timestamp) -> Result<ServerList, String> {
    #[derive(Deserialize)]
    struct Raw {
        mcp_servers: Vec<Value>,
    }
    #[derive(Deserialize)]
    struct Id {
        mcp_server_id: String,
    }
    let raw: Raw = json(body)?;
    let mut list = ServerList::default();
    for entry in raw.mcp_servers {
        let Id { mcp_server_id: id } = Id::deserialize(&entry).map_err(|e| clean(&format!("an entry without an id: {e}")))?;
        if !valid_server_id(&id) {
            list.skipped_ids.push(clean_to(&id, 80));
            continue;
        }
        let read =
            RawServer::deserialize(entry).map_err(|e| clean(&e.to_string())).and_then(|raw| Ok((reading(&raw, at)?, raw.dead.is_told())));
        match read {
            Ok((reading, tells_dead)) => {
                list.tells_dead |= tells_dead;
                list.servers.insert(id, reading);
            }
            Err(why) => {
                list.unreadable.insert(id, why);
            }
        }
    }
    Ok(list)
}

/// Reads the answer to a start.
pub(super) fn started(body: &[u8]) -> Result<Started, String> {
    #[derive(Deserialize)]
    struct Raw {
        state: String,
        #[serde(default)]
        tools: Vec<String>,
    }
    let raw: Raw = json(body)?;
    Ok(Started { state: word(&raw.state)?, tools: raw.tools })
}

/// Reads the names of the tools that a server exposes.
pub(super) fn tools(body: &[u8]) -> Result<Vec<String>, String> {
    #[derive(Deserialize)]
    struct Raw {
        tools: Vec<RawTool>,
    }
    Ok(names(json::<Raw>(body)?.tools))
}

/// Reads the upstream's last lines, oldest first.
pub(super) fn logs(body: &[u8]) -> Result<Vec<LogLine>, String> {
    #[derive(Deserialize)]
    struct Raw {
        logs: Vec<LogLine>,
    }
    Ok(json::<Raw>(body)?.logs)
}

/// Reads who we are to Hangar.
pub(super) fn me(body: &[u8]) -> Result<Me, String> {
    #[derive(Deserialize)]
    struct Raw {
        authenticated: bool,
        principal: Option<Principal>,
    }
    #[derive(Deserialize)]
    struct Principal {
        id: String,
    }
    let raw: Raw = json(body)?;
    Ok(Me { authenticated: raw.authenticated, principal: raw.principal.map(|p| clean_to(&p.id, 200)) })
}

#[derive(Deserialize)]
struct RawGroup {
    group_id: String,
    #[serde(default)]
    circuit_open: bool,
    members: Vec<RawMember>,
}

#[derive(Deserialize)]
struct RawMember {
    id: String,
    state: String,
    in_rotation: bool,
    weight: Option<u32>,
    priority: Option<u32>,
}

fn whole_group(raw: RawGroup) -> Result<Group, String> {
    let member =
        |m: RawMember| Ok(GroupMember { state: word(&m.state)?, id: m.id, in_rotation: m.in_rotation, place: m.weight.zip(m.priority) });
    let members = raw.members.into_iter().map(member).collect::<Result<_, String>>()?;
    Ok(Group { id: raw.group_id, circuit_open: raw.circuit_open, members })
}

/// Reads one group.
pub(super) fn group(body: &[u8]) -> Result<Group, String> {
    whole_group(json(body)?)
}

/// Reads all groups.
pub(super) fn groups(body: &[u8]) -> Result<Vec<Group>, String> {
    #[derive(Deserialize)]
    struct Raw {
        groups: Vec<RawGroup>,
    }
    json::<Raw>(body)?.groups.into_iter().map(whole_group).collect()
}

/// Reads the answer to a reload.
pub(super) fn reloaded(body: &[u8]) -> Result<Reloaded, String> {
    #[derive(Deserialize)]
    struct Raw {
        #[serde(default)]
        result: Option<RawResult>,
    }
    #[derive(Deserialize, Default)]
    struct RawResult {
        #[serde(default, rename = "mcp_servers_added")]
        added: Vec<String>,
        #[serde(default, rename = "mcp_servers_removed")]
        removed: Vec<String>,
        #[serde(default, rename = "mcp_servers_updated")]
        updated: Vec<String>,
    }
    let raw = json::<Raw>(body)?.result.unwrap_or_default();
    Ok(Reloaded { added: raw.added, removed: raw.removed, updated: raw.updated })
}

/// Any JSON object will do: what came of it is read from the server's state.
pub(super) fn acknowledged(body: &[u8]) -> Result<(), String> {
    json::<serde_json::Map<String, Value>>(body).map(drop)
}

/// What an answer that is not 2xx says. Decided by `error.code`; the status only where there is no code
/// (a proxy's page, a plain text 500 with PostgreSQL down).
pub(super) fn refusal(status: u16, retry_after: Option<SignedDuration>, body: &[u8], now: Timestamp) -> Fault {
    let envelope = serde_json::from_slice::<Value>(body).ok().and_then(|v| Envelope::read(&v));
    let Some(Envelope { code, message, details }) = envelope else {
        // A proxy's 401 is counted like Hangar's: the same key is being tried.
        return if status == 401 {
            Fault::Auth(AuthFault::Refused { message: excerpt(body) })
        } else {
            Fault::BadAnswer { status: Some(status), what: format!("not in Hangar's form: {}", excerpt(body)) }
        };
    };
    if code == "RateLimitExceededError" || details.get("auth_method").and_then(Value::as_str) == Some("rate_limit") {
        let wait = seconds(&details, "retry_after").or(retry_after).unwrap_or(LOCKOUT_DEFAULT).min(LOCKOUT_MAX);
        // A second more: Hangar rounds, and its clock is not ours.
        let until = now.checked_add(wait + SignedDuration::from_secs(1)).unwrap_or(Timestamp::MAX);
        return Fault::Auth(AuthFault::LockedOut { until });
    }
    match code.as_str() {
        "authentication_failed"
        | "AuthenticationError"
        | "InvalidCredentialsError"
        | "ExpiredCredentialsError"
        | "RevokedCredentialsError"
        | "MissingCredentialsError"
        | "TokenLifetimeExceededError" => Fault::Auth(AuthFault::Refused { message }),
        "access_denied" | "AccessDeniedError" | "AuthorizationError" | "csrf_header_required" => Fault::Forbidden { code, message },
        "McpServerNotFoundError" => Fault::NotFound { message },
        "RateLimitExceeded" => {
            Fault::RateLimited { retry_after: seconds(&details, "retry_after").or(retry_after).unwrap_or(SignedDuration::from_secs(1)) }
        }
        _ if status == 401 => Fault::Auth(AuthFault::Refused { message }),
        _ => Fault::Api { status, code, message, details },
    }
}

/// `{"error":{"code","message","details"}}`, or flat: `{"error":code,"message","details"}`.
struct Envelope {
    code: String,
    message: String,
    details: Value,
}

impl Envelope {
    fn read(value: &Value) -> Option<Self> {
        let error = value.get("error")?;
        let (code, rest) = match error {
            Value::String(code) => (code.as_str(), value),
            Value::Object(_) => (error.get("code")?.as_str()?, error),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => return None,
        };
        let message = rest.get("message").and_then(Value::as_str).unwrap_or_default();
        Some(Self { code: clean_to(code, 80), message: clean(message), details: rest.get("details").cloned().unwrap_or_default() })
    }
}

fn seconds(details: &Value, key: &str) -> Option<SignedDuration> {
    let seconds = details.get(key)?.as_f64()?;
    if (0.0..1e9).contains(&seconds) { SignedDuration::try_from_secs_f64(seconds).ok() } else { None }
}

/// Entry point for fuzzing: any bytes as each of Hangar's answers.
#[doc(hidden)]
pub fn fuzz_answers(data: &[u8]) {
    let now = Timestamp::UNIX_EPOCH;
    let _ = (server(data, "api", now), list(data, now), started(data), tools(data), logs(data));
    let _ = (me(data), system(data), groups(data), acknowledged(data), refusal(500, None, data, now));
    if let Ok(group) = group(data) {
        let _ = group.reading("api", now);
    }
}

#[cfg(test)]
mod tests;
