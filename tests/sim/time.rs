//! Virtual time: tokio's paused clock, and a wall clock over it that steps when it is told to.

use std::cell::Cell;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

thread_local! {
    static BEGUN: Cell<Option<Instant>> = const { Cell::new(None) };
    static OFFSET: Cell<SignedDuration> = const { Cell::new(SignedDuration::ZERO) };
}

/// Where every world begins: 2026-11-30 12:00:00 UTC.
const ZERO: i64 = 1_796_040_000;

/// Begins a world on this thread. Must be called within its runtime.
pub fn begin() {
    BEGUN.set(Some(Instant::now()));
    OFFSET.set(SignedDuration::ZERO);
    hangar_medic::clock::stand_in(Some(wall));
}

/// Milliseconds since the world began; never steps.
pub fn mono() -> i64 {
    let begun = BEGUN.get().expect("a world has begun");
    i64::try_from((Instant::now() - begun).as_millis()).expect("short enough")
}

/// What the wall clock says.
pub fn wall() -> Timestamp {
    Timestamp::from_second(ZERO).expect("a time") + SignedDuration::from_millis(mono()) + OFFSET.get()
}

/// The wall clock steps.
pub fn step(by: SignedDuration) {
    OFFSET.set(OFFSET.get() + by);
}

pub async fn until(at: i64) {
    let begun = BEGUN.get().expect("a world has begun");
    tokio::time::sleep_until(begun + std::time::Duration::from_millis(u64::try_from(at.max(0)).expect("not negative"))).await;
}

pub async fn wait(ms: i64) {
    tokio::time::sleep(std::time::Duration::from_millis(u64::try_from(ms.max(0)).expect("not negative"))).await;
}
