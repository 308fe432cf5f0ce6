//! Where a test kills the daemon: before and after each durable step and each send. A release build has none of it.

/// Every point. A test of the real process dies at each of them.
pub const POINTS: &[&str] = &[
    "append.begin",
    "append.uncommitted",
    "append.committed",
    "append.remembered",
    "checkpoint.begin",
    "checkpoint.written",
    "act.begin",
    "act.done",
    "start.unsent",
    "start.answered",
    "stop.unsent",
    "stop.answered",
    "rebalance.unsent",
    "rebalance.answered",
];

/// Dies here if a test asked for it by `FAILPOINTS=<name>=return`: nothing is flushed, nothing is dropped, as by SIGKILL.
#[inline]
pub fn point(name: &str) {
    #[cfg(debug_assertions)]
    {
        debug_assert!(POINTS.contains(&name), "{name} is on no list");
        fail::fail_point!(name, |_| std::process::abort());
    }
    #[cfg(not(debug_assertions))]
    let _ = name;
}

/// Reads `FAILPOINTS`. Keep what it gives for as long as the points are to be armed.
#[must_use]
pub fn arm() -> impl Sized {
    #[cfg(debug_assertions)]
    return fail::FailScenario::setup();
    #[cfg(not(debug_assertions))]
    return;
}
