//! The chain of one instance in the tables of a database, whichever that is.

mod check;
pub(super) mod end;
pub(super) mod read;
mod write;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::Mutex;

use super::driver::Driver;
use super::error::Place;
use super::{AttemptLog, Checkpoints, Counts, Cut, Head, IncidentState, LogError, Progress, VerifyReport};
use crate::policy::{Attempt, Body, History, Incident, Policy, Record};

/// The one connection that writes. Empty after a failure and while a write is under way, so that neither a failed write nor
/// a dropped future leaves half a transaction behind: the connection goes, and with it what was not committed.
#[derive(Debug)]
pub(super) struct Writer<L> {
    pub connection: Option<L>,
    known: Known,
}

/// The end of the chain as our reader knows of it.
#[derive(Debug)]
enum Known {
    /// Nobody has read or written yet.
    Nothing,
    End(Option<Head>),
}

/// An open store. The only one that writes to the chain of its instance, unless it was opened for reading only.
#[derive(Debug)]
pub struct Tables<D: Driver> {
    pub(super) driver: D,
    instance: String,
    pub(super) writer: Option<Mutex<Writer<D::Link>>>,
}

impl<D: Driver> Tables<D> {
    /// `connection` writes; without one the store is for reading.
    pub(super) fn new(driver: D, instance: &str, connection: Option<D::Link>) -> Self {
        let writer = connection.map(|connection| Mutex::new(Writer { connection: Some(connection), known: Known::Nothing }));
        Self { driver, instance: instance.to_owned(), writer }
    }

    /// Where the store is.
    #[must_use]
    pub fn place(&self) -> &Place {
        self.driver.place()
    }

    /// Whose chain this is.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.instance
    }
}

impl<D: Driver> AttemptLog for Tables<D> {
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

impl<D: Driver> Checkpoints for Tables<D> {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Value>, LogError>> {
        Box::pin(self.read_checkpoint(key))
    }

    fn put<'a>(&'a self, key: &'a str, value: Value) -> BoxFuture<'a, Result<(), LogError>> {
        Box::pin(self.write_checkpoint(key, value))
    }
}
