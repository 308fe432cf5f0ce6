//! The fleet lock: of several replicas of one Hangar, one at a time may be reloaded or restarted.
//!
//! With `hangar.instances: 1` there is nobody to exclude and [`NoFleet`] serves. Where there are more, the lock is kept in
//! the store that the replicas share.

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::LogError;
use crate::policy::OrderedRestart;

/// What is locked: the replicas of one Hangar, one at a time.
pub const LOCK: &str = "hangar";
/// Restarts by others that are read at once.
pub const ORDERED_MAX: u32 = 100;

/// How an attempt to take the lock ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// It is ours until the deadline.
    Ours,
    /// Another holder has it, and its deadline is not over.
    Held {
        /// The holder's instance.
        by: String,
        /// After this it may be taken over.
        until: Timestamp,
    },
}

/// One lock for each target. The holder is this process' instance.
pub trait FleetLock: Send + Sync {
    /// Takes the lock of `target` until `deadline`, or extends it where it is ours already: a process that was started
    /// again goes on with the lock of the one before it. A holder whose deadline is over is taken over.
    ///
    /// Errors: the store cannot be asked. Then the lock is not ours and nothing may be done.
    fn acquire<'a>(&'a self, target: &'a str, deadline: Timestamp) -> BoxFuture<'a, Result<Acquired, LogError>>;

    /// Gives the lock of `target` back, if it is ours; of anybody else's nothing changes.
    fn release<'a>(&'a self, target: &'a str) -> BoxFuture<'a, Result<(), LogError>>;

    /// Whether `acquire` would find the lock of `target` free. Takes nothing. Where nobody can tell it is not: its deadline is
    /// waited for.
    fn is_free<'a>(&'a self, _target: &'a str) -> BoxFuture<'a, Result<bool, LogError>> {
        Box::pin(async { Ok(false) })
    }

    /// Restarts of Hangar that other holders began since then, the newest first, at most [`ORDERED_MAX`].
    fn ordered(&self, _since: Timestamp) -> BoxFuture<'_, Result<Vec<OrderedRestart>, LogError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// The lock of a Hangar that runs as one instance: always ours.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFleet;

impl FleetLock for NoFleet {
    fn acquire<'a>(&'a self, _target: &'a str, _deadline: Timestamp) -> BoxFuture<'a, Result<Acquired, LogError>> {
        Box::pin(async { Ok(Acquired::Ours) })
    }

    fn release<'a>(&'a self, _target: &'a str) -> BoxFuture<'a, Result<(), LogError>> {
        Box::pin(async { Ok(()) })
    }
}
