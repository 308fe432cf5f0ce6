//! The attempt log in one SQLite file.

mod check;
mod open;
mod read;
mod write;

use std::fs::File;
use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde_json::Value;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePool};
use tokio::sync::Mutex;

use super::files::Remembered;
use super::{AttemptLog, Checkpoints, Counts, Cut, Head, IncidentState, LogError, Progress, VerifyReport};
use crate::policy::{Attempt, Body, History, Incident, Policy, Record};

/// The one connection that writes. Empty after a failure and while a write is under way, so that neither a failed write nor
/// a dropped future leaves half a transaction behind: the connection goes, and with it what was not committed.
#[derive(Debug, Default)]
struct Writer {
    connection: Option<SqliteConnection>,
    remembered: Option<Remembered>,
}

/// An open store. Holds `medic.lock` while it lives, unless it was opened for reading only.
#[derive(Debug)]
pub struct Store {
    /// The database file.
    path: PathBuf,
    instance: String,
    options: SqliteConnectOptions,
    /// Device and inode of the database when it was opened.
    identity: Option<(u64, u64)>,
    readers: SqlitePool,
    writer: Option<Mutex<Writer>>,
    /// Last, so that the connections go before it does.
    _lock: Option<File>,
}

impl Store {
    /// The database file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose chain this is.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.instance
    }
}

impl AttemptLog for Store {
    fn append<'a>(&'a self, at: Timestamp, actor: &'a str, bodies: Vec<Body>) -> BoxFuture<'a, Result<Vec<Record>, LogError>> {
        Box::pin(self.write_records(at, actor, bodies))
    }

    fn history<'a>(&'a self, policy: &'a Policy, now: Timestamp) -> BoxFuture<'a, Result<History, LogError>> {
        Box::pin(self.read_history(policy, now))
    }

    fn replay<'a>(&'a self, each: &'a mut (dyn FnMut(Record) + Send)) -> BoxFuture<'a, Result<(), LogError>> {
        Box::pin(self.read_all(each))
    }

    fn incidents(&self, state: IncidentState, limit: u32) -> BoxFuture<'_, Result<Vec<Incident>, LogError>> {
        Box::pin(self.read_incidents(state, limit))
    }

    fn incident<'a>(&'a self, incident_id: &'a str) -> BoxFuture<'a, Result<Option<Incident>, LogError>> {
        Box::pin(self.read_incident(incident_id))
    }

    fn attempts<'a>(&'a self, incident_id: Option<&'a str>, limit: u32) -> BoxFuture<'a, Result<Vec<Attempt>, LogError>> {
        Box::pin(self.read_attempts(incident_id, limit))
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts, LogError>> {
        Box::pin(self.read_counts())
    }

    fn verify<'a>(&'a self, progress: &'a mut (dyn FnMut(Progress) + Send)) -> BoxFuture<'a, Result<VerifyReport, LogError>> {
        Box::pin(self.check_chain(progress))
    }

    fn export<'a>(&'a self, out: &'a mut (dyn std::io::Write + Send)) -> BoxFuture<'a, Result<u64, LogError>> {
        Box::pin(self.write_export(out))
    }

    fn cut<'a>(&'a self, before: Timestamp, now: Timestamp, actor: &'a str) -> BoxFuture<'a, Result<Cut, LogError>> {
        Box::pin(self.cut_prefix(before, now, actor))
    }

    fn head(&self) -> BoxFuture<'_, Result<Option<Head>, LogError>> {
        Box::pin(self.read_head())
    }
}

impl Checkpoints for Store {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Value>, LogError>> {
        Box::pin(self.read_checkpoint(key))
    }

    fn put<'a>(&'a self, key: &'a str, value: Value) -> BoxFuture<'a, Result<(), LogError>> {
        Box::pin(self.write_checkpoint(key, value))
    }
}

#[cfg(test)]
mod tests;
