//! The one reader of wall time. Everything that decides takes the time as an argument.

use jiff::Timestamp;

/// The wall clock, to the microsecond (what Hangar itself writes).
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the one place")]
pub fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}
