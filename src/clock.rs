//! The one reader of wall time. Everything that decides takes the time as an argument.

use std::cell::Cell;

use jiff::Timestamp;

thread_local! {
    static STAND_IN: Cell<Option<fn() -> Timestamp>> = const { Cell::new(None) };
}

/// The wall clock, to the microsecond (what Hangar itself writes).
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the one place")]
pub fn now() -> Timestamp {
    let now = STAND_IN.get().map_or_else(Timestamp::now, |clock| clock());
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

/// Lets another clock tell the time on this thread: a simulation's, where time is virtual and steps when it is told to.
pub fn stand_in(clock: Option<fn() -> Timestamp>) {
    STAND_IN.set(clock);
}
