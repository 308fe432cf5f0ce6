//! Pauses: a person's "hands off", of everything, of one server or of a group's, until a time. What undoes our own stop goes on.

use jiff::{SignedDuration, Timestamp};

use super::brake::Braked;
use super::history::History;
use super::hold::Hold;
use super::ladder::Rung;
use super::record::Body;

/// The longest a pause may last; a longer one is a decision for the configuration.
pub const PAUSE_MAX: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Servers that may be paused at once. More is everything.
pub const PAUSES_MAX: usize = 10_000;

/// A pause that stands, folded from its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// A server or a group; `None`: everything.
    pub mcp_server: Option<String>,
    pub since: Timestamp,
    pub until: Timestamp,
    pub principal: String,
    pub reason: String,
}

/// The pause that stops this server now, if any: that of everything first, else its own, else its group's.
#[must_use]
pub fn paused(history: &History, mcp_server: &str, group: Option<&str>, now: Timestamp) -> Option<Braked> {
    if history.pauses.is_empty() {
        return None;
    }
    let stands = |key: Option<&str>| history.pauses.get(&key.map(str::to_owned)).filter(|p| now < p.until);
    let of_group = || group.and_then(|group| stands(Some(group)));
    let pause = stands(None).or_else(|| stands(Some(mcp_server))).or_else(of_group)?;
    let what = match &pause.mcp_server {
        None => "everything is".to_owned(),
        Some(id) if id == mcp_server => "this server is".to_owned(),
        Some(group) => format!("its group {group} is"),
    };
    let why = format!("{what} paused by {}: {}", pause.principal, pause.reason);
    Some(Braked::new(Hold::Paused, Some(pause.until), why))
}

/// Whoever paused any server is at work on this Hangar: what touches all of its servers waits for that, too.
#[must_use]
pub fn elsewhere(history: &History, rung: Rung, now: Timestamp) -> Option<Braked> {
    let pause = history.pauses.values().filter(|p| now < p.until).max_by_key(|p| p.until)?;
    let what = pause.mcp_server.as_deref().unwrap_or("everything");
    let why = format!("{what} is paused by {}, and {rung} touches every server: {}", pause.principal, pause.reason);
    Some(Braked::new(Hold::Paused, Some(pause.until), why))
}

/// Pauses whose time is over, to be recorded as such.
#[must_use]
pub fn ended(history: &History, now: Timestamp) -> Vec<Body> {
    let over = history.pauses.values().filter(|p| now >= p.until);
    over.map(|p| Body::Unpaused { mcp_server: p.mcp_server.clone(), why: "its time is over".to_owned() }).collect()
}
