//! The attempt log: an append-only, hash-chained record of all that was done and why, one chain per instance.
//!
//! What is appended is durable when `append` returns. Reading never trusts the index: every record that decides something
//! is checked against its own hash when it is read, and `verify` checks the whole chain.

mod aside;
mod chain;
mod derive;
mod driver;
mod error;
mod files;
pub mod fleet;
mod migrate;
mod postgres;
mod sql;
mod sqlite;
mod tables;

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde_json::Value;

use crate::policy::{Attempt, Body, Closed, History, Incident, Outcome, Policy, Reason, Record, Rung};

pub use aside::{KEPT_MAX, kept_aside};
pub use chain::{Fault, FaultKind, GENESIS, VerifyReport, hash_of, verify_export};
pub use error::{LogError, Place};
pub use postgres::Shared;
pub use sqlite::Store;

/// The last record of a chain. Kept elsewhere, it later proves that nothing was taken off the end.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Head {
    pub seq: u64,
    /// Lower-case hex.
    pub hash: String,
}

/// Which incidents to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IncidentState {
    Open,
    Closed,
    #[default]
    All,
}

/// How many incidents or attempts a list holds when nobody says.
pub const LIST_LIMIT: u32 = 1000;

/// What the counters start from. Retention takes away from it; nothing else does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counts {
    /// Attempts by their latest settlement.
    pub settled: BTreeMap<(Rung, Outcome), u64>,
    /// Recoveries by the reason that the incident had when the attempt was settled.
    pub recoveries: BTreeMap<(Rung, Reason), u64>,
    pub closed: BTreeMap<Closed, u64>,
    /// Incidents by the last reason known.
    pub incidents: BTreeMap<Reason, u64>,
}

/// How far a long read is: records done, records in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub done: u64,
    pub total: u64,
}

/// What retention did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cut {
    /// Records removed by this call.
    pub removed: u64,
    /// The first record that is still there.
    pub first_seq: u64,
}

/// The chain of one instance.
pub trait AttemptLog: Send + Sync {
    /// Appends in one transaction, durable when this returns: all of `bodies` or none. A dropped future appends all or none.
    ///
    /// `at` is kept to the microsecond. After `LogError::Unwritable` a later try may succeed.
    fn append<'a>(&'a self, at: Timestamp, actor: &'a str, bodies: Vec<Body>) -> BoxFuture<'a, Result<Vec<Record>, LogError>>;

    /// The fold of the whole chain, pruned to the policy's windows, read without reading the whole chain.
    ///
    /// Fails on an altered record and on one that only a newer version can read: both may hold an order to respect.
    fn history<'a>(&'a self, policy: &'a Policy, now: Timestamp) -> BoxFuture<'a, Result<History, LogError>>;

    /// Every record in order, in bounded memory.
    fn replay<'a>(&'a self, each: &'a mut (dyn FnMut(Record) + Send)) -> BoxFuture<'a, Result<(), LogError>>;

    /// The newest `limit` incidents, oldest first.
    fn incidents(&self, state: IncidentState, limit: u32) -> BoxFuture<'_, Result<Vec<Incident>, LogError>>;

    /// One incident; `None` if the log does not hold it.
    fn incident<'a>(&'a self, incident_id: &'a str) -> BoxFuture<'a, Result<Option<Incident>, LogError>>;

    /// The newest `limit` attempts, of one incident or of all, oldest first.
    fn attempts<'a>(&'a self, incident_id: Option<&'a str>, limit: u32) -> BoxFuture<'a, Result<Vec<Attempt>, LogError>>;

    /// What the counters start from.
    fn counts(&self) -> BoxFuture<'_, Result<Counts, LogError>>;

    /// Checks the whole chain. A broken chain is a report, not an error.
    fn verify<'a>(&'a self, progress: &'a mut (dyn FnMut(Progress) + Send)) -> BoxFuture<'a, Result<VerifyReport, LogError>>;

    /// Every record as one JSON line that `verify_export` can check offline. Stops at the first error of `out`.
    fn export<'a>(&'a self, out: &'a mut (dyn std::io::Write + Send)) -> BoxFuture<'a, Result<u64, LogError>>;

    /// Removes the longest prefix that lies wholly before `before` and holds no open incident, no part of one that goes
    /// on after it, and nothing that still stands (hold orders, the Hangar process seen last). Leaves an anchor record.
    fn cut<'a>(&'a self, before: Timestamp, now: Timestamp, actor: &'a str) -> BoxFuture<'a, Result<Cut, LogError>>;

    /// The last record, `None` for an empty chain.
    fn head(&self) -> BoxFuture<'_, Result<Option<Head>, LogError>>;
}

/// A whole store.
pub trait Log: AttemptLog + Checkpoints {}

impl<T: AttemptLog + Checkpoints> Log for T {}

/// Small values that are replaced in place, outside the chain, durable when `put` returns.
pub trait Checkpoints: Send + Sync {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Value>, LogError>>;
    fn put<'a>(&'a self, key: &'a str, value: Value) -> BoxFuture<'a, Result<(), LogError>>;
}
