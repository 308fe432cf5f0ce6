//! Pauses: a person's "hands off", of everything or of one server, until a time. What undoes our own stop goes on.

use jiff::{SignedDuration, Timestamp};

use super::brake::Braked;
use super::history::History;
use super::hold::Hold;
use super::record::Body;

/// The longest a pause may last; a longer one is a decision for the configuration.
pub const PAUSE_MAX: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Servers that may be paused at once. More is everything.
pub const PAUSES_MAX: usize = 10_000;

/// A pause that stands, folded from its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// `None`: everything.
    pub mcp_server: Option<String>,
    pub since: Timestamp,
    pub until: Timestamp,
    pub principal: String,
    pub reason: String,
}

/// The pause that stops this server now, if any: that of everything first, else its own.
#[must_use]
pub fn paused(history: &History, mcp_server: &str, now: Timestamp) -> Option<Braked> {
    if history.pauses.is_empty() {
        return None;
    }
    let stands = |key: &Option<String>| history.pauses.get(key).filter(|p| now < p.until);
    let pause = stands(&None).or_else(|| stands(&Some(mcp_server.to_owned())))?;
    let what = if pause.mcp_server.is_some() { "this server is" } else { "everything is" };
    let why = format!("{what} paused by {}: {}", pause.principal, pause.reason);
    Some(Braked::new(Hold::Paused, Some(pause.until), why))
}

/// Pauses whose time is over, to be recorded as such.
#[must_use]
pub fn ended(history: &History, now: Timestamp) -> Vec<Body> {
    let over = history.pauses.values().filter(|p| now >= p.until);
    over.map(|p| Body::Unpaused { mcp_server: p.mcp_server.clone(), why: "its time is over".to_owned() }).collect()
}
