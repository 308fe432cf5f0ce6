//! Where a test kills the daemon: before and after each durable step and each send. A release build has none of it.

/// Every point. A test of the real process dies at each of them.
pub const POINTS: &[&str] = &[
    "append.begin",
    "append.uncommitted",
    "append.committed",
    "append.remembered",
    "checkpoint.begin",
    "checkpoint.written",
    "cut.begin",
    "cut.uncommitted",
    "cut.committed",
    "cut.remembered",
    "act.begin",
    "act.done",
    "start.unsent",
    "start.answered",
    "stop.unsent",
    "stop.answered",
    "rebalance.unsent",
    "rebalance.answered",
    "reload.unsent",
    "reload.answered",
    "delete.unsent",
    "delete.answered",
    "create.unsent",
    "create.answered",
    "remove_member.unsent",
    "remove_member.answered",
    "add_member.unsent",
    "add_member.answered",
    "hook.unsent",
    "hook.answered",
    "systemd.unsent",
    "systemd.answered",
    "kubernetes.unsent",
    "kubernetes.answered",
];

/// Dies here if a test asked for it by `FAILPOINTS=<name>=return`: by SIGKILL, so that nothing is flushed and nothing is dropped.
#[inline]
pub fn point(name: &str) {
    #[cfg(debug_assertions)]
    {
        debug_assert!(POINTS.contains(&name), "{name} is on no list");
        fail::fail_point!(name, |_| {
            let killed = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            unreachable!("alive after SIGKILL: {killed:?}")
        });
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
