//! What is read from the store.

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::super::chain::Stored;
use super::super::{Counts, Head, IncidentState, LogError, sql};
use super::Store;
use crate::policy::{Attempt, History, Incident, Policy, Record, STORM_WINDOW_MAX, server_of};

/// For SQL, which has no unsigned numbers.
pub(super) fn int(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

fn uint(seq: i64) -> u64 {
    u64::try_from(seq).unwrap_or_default()
}

/// Text as it is: a damaged file may hold anything, and the hash shows it.
pub(super) fn text(row: &SqliteRow, column: usize) -> String {
    let bytes: &[u8] = row.try_get_unchecked(column).unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

pub(super) fn row(row: &SqliteRow) -> Stored {
    Stored {
        seq: uint(row.try_get_unchecked(0).unwrap_or_default()),
        at: text(row, 1),
        actor: text(row, 2),
        body: text(row, 3),
        prev_hash: text(row, 4),
        hash: text(row, 5),
        instance: text(row, 6),
    }
}

pub(super) async fn head_of(connection: &mut SqliteConnection, instance: &str) -> Result<Option<Head>, sqlx::Error> {
    let head: Option<(i64, String)> = sqlx::query_as(sql::HEAD).bind(instance).fetch_optional(connection).await?;
    Ok(head.map(|(seq, hash)| Head { seq: uint(seq), hash }))
}

/// The one number that a statement gives, if any; `bound` is its `$2`.
pub(super) async fn number(
    connection: &mut SqliteConnection,
    statement: &'static str,
    instance: &str,
    bound: Option<i64>,
) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar::<_, Option<i64>>(statement).bind(instance).bind(bound).fetch_one(connection).await
}

fn micros(duration: SignedDuration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl Store {
    pub(super) fn reading(&self) -> impl Fn(sqlx::Error) -> LogError + '_ {
        |error| LogError::reading(&self.path, error)
    }

    /// A record that may be believed: its hash fits, and this version knows its kind.
    fn believe(&self, row: &SqliteRow) -> Result<Record, LogError> {
        let stored = self::row(row);
        if !stored.is_intact() || stored.instance != self.instance {
            return Err(LogError::Broken { path: self.path.clone(), fault: stored.altered() });
        }
        let seq = stored.seq;
        stored.record().map_err(|source| LogError::UnknownRecord { path: self.path.clone(), seq, source })
    }

    pub(super) async fn read_head(&self) -> Result<Option<Head>, LogError> {
        let mut connection = self.readers.acquire().await.map_err(self.reading())?;
        head_of(&mut connection, &self.instance).await.map_err(self.reading())
    }

    pub(super) async fn read_history(&self, policy: &Policy, now: Timestamp) -> Result<History, LogError> {
        let window = policy.longest_budget_window().max(policy.flap_window);
        let now_us = now.as_microsecond();
        let storm = micros(policy.storm.window.min(STORM_WINDOW_MAX));
        let mut history = History::default();
        let query = sqlx::query(sql::HISTORY).bind(&self.instance).bind(now_us.saturating_sub(micros(window)));
        let mut rows = query.bind(now_us.saturating_sub(storm)).bind(storm).fetch(&self.readers);
        while let Some(row) = rows.try_next().await.map_err(self.reading())? {
            history.apply(&self.believe(&row)?);
        }
        history.prune(policy, now);
        Ok(history)
    }

    pub(super) async fn read_all(&self, each: &mut (dyn FnMut(Record) + Send)) -> Result<(), LogError> {
        let mut rows = sqlx::query(sql::RECORDS).bind(&self.instance).fetch(&self.readers);
        while let Some(row) = rows.try_next().await.map_err(self.reading())? {
            each(self.believe(&row)?);
        }
        Ok(())
    }

    pub(super) async fn read_incidents(&self, state: IncidentState, limit: u32) -> Result<Vec<Incident>, LogError> {
        let statement = match state {
            IncidentState::All => sql::INCIDENTS_ALL,
            IncidentState::Open => sql::INCIDENTS_OPEN,
            IncidentState::Closed => sql::INCIDENTS_CLOSED,
        };
        self.fold_incidents(sqlx::query(statement).bind(&self.instance).bind(i64::from(limit))).await
    }

    pub(super) async fn read_incident(&self, incident_id: &str) -> Result<Option<Incident>, LogError> {
        let query = sqlx::query(sql::INCIDENT).bind(&self.instance).bind(incident_id.to_owned());
        self.fold_incidents(query).await.map(|mut found| found.pop())
    }

    /// Folds each incident by itself from its own records, which come together and in order.
    ///
    /// A list only shows: a record of a newer version is left out of it, where `history` refuses to go on.
    async fn fold_incidents(
        &self,
        query: sqlx::query::Query<'_, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>,
    ) -> Result<Vec<Incident>, LogError> {
        let mut incidents = Vec::new();
        let mut current = (String::new(), History::default());
        let mut rows = query.fetch(&self.readers);
        while let Some(row) = rows.try_next().await.map_err(self.reading())? {
            let record = match self.believe(&row) {
                Ok(record) => record,
                Err(LogError::UnknownRecord { .. }) => continue,
                Err(error) => return Err(error),
            };
            let incident_id = text(&row, 7);
            if incident_id != current.0 {
                incidents.extend(take(&mut current.1, &current.0));
                current = (incident_id, History::default());
            }
            current.1.apply(&record);
        }
        incidents.extend(take(&mut current.1, &current.0));
        Ok(incidents)
    }

    pub(super) async fn read_attempts(&self, incident_id: Option<&str>, limit: u32) -> Result<Vec<Attempt>, LogError> {
        if let Some(incident_id) = incident_id {
            let mut attempts = self.read_incident(incident_id).await?.map(|i| i.attempts).unwrap_or_default();
            let beyond = attempts.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
            return Ok(attempts.split_off(beyond));
        }
        let limit = i64::from(limit);
        // One list of ids decides what is shown: what is appended meanwhile comes with the next call.
        let ids: Vec<String> =
            sqlx::query_scalar(sql::ATTEMPT_IDS).bind(&self.instance).bind(limit).fetch_all(&self.readers).await.map_err(self.reading())?;
        let incidents = self.fold_incidents(sqlx::query(sql::INCIDENTS_OF_ATTEMPTS).bind(&self.instance).bind(limit)).await?;
        let mut by_id: BTreeMap<String, Attempt> =
            incidents.into_iter().flat_map(|i| i.attempts).map(|a| (a.attempt_id.clone(), a)).collect();
        Ok(ids.iter().rev().filter_map(|id| by_id.remove(id)).collect())
    }

    pub(super) async fn read_counts(&self) -> Result<Counts, LogError> {
        let mut tx = self.readers.begin().await.map_err(self.reading())?;
        let mut groups = Vec::new();
        for statement in [sql::COUNT_SETTLED, sql::COUNT_RECOVERIES, sql::COUNT_INCIDENTS] {
            let query = sqlx::query_as::<_, (String, Option<String>, i64)>(statement).bind(&self.instance);
            groups.push(query.fetch_all(&mut *tx).await.map_err(self.reading())?);
        }
        let mut counts = Counts::default();
        let mut groups = groups.into_iter().map(|group| group.into_iter().map(|(a, b, n)| (a, b.unwrap_or_default(), uint(n))));
        // A word of a newer version has no label here.
        for (action, outcome, n) in groups.next().into_iter().flatten() {
            if let (Ok(action), Ok(outcome)) = (action.parse(), outcome.parse()) {
                counts.settled.insert((action, outcome), n);
            }
        }
        for (action, reason, n) in groups.next().into_iter().flatten() {
            if let (Ok(action), Ok(reason)) = (action.parse(), reason.parse()) {
                counts.recoveries.insert((action, reason), n);
            }
        }
        for (reason, how, n) in groups.next().into_iter().flatten() {
            if let Ok(reason) = reason.parse() {
                *counts.incidents.entry(reason).or_default() += n;
            }
            if let Ok(how) = how.parse() {
                *counts.closed.entry(how).or_default() += n;
            }
        }
        Ok(counts)
    }

    pub(super) async fn read_checkpoint(&self, key: &str) -> Result<Option<Value>, LogError> {
        let text: Option<String> = sqlx::query_scalar(sql::CHECKPOINT)
            .bind(&self.instance)
            .bind(key)
            .fetch_optional(&self.readers)
            .await
            .map_err(self.reading())?;
        let damaged = |_| LogError::damaged(&self.path, format!("the value of \"{}\" is not JSON", key.escape_debug()));
        text.map(|text| serde_json::from_str(&text).map_err(damaged)).transpose()
    }
}

/// The incident out of the fold of its records alone.
fn take(history: &mut History, incident_id: &str) -> Option<Incident> {
    let server = server_of(incident_id);
    history.open.remove(server).or_else(|| history.closed.remove(server)).filter(|i| i.incident_id == incident_id)
}
