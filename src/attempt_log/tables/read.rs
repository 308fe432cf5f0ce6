//! What is read from the store.

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::super::chain::Stored;
use super::super::driver::{Arg, Columns, Driver, Link, all, args, first};
use super::super::{Counts, Head, IncidentState, LogError, sql};
use super::{Known, Tables};
use crate::policy::{Attempt, History, Incident, Policy, Record, STORM_WINDOW_MAX, server_of};

/// For SQL, which has no unsigned numbers.
pub(in super::super) fn int(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

pub(in super::super) fn uint(seq: i64) -> u64 {
    u64::try_from(seq).unwrap_or_default()
}

pub(in super::super) fn text(row: &impl Columns, column: usize) -> String {
    row.text(column).unwrap_or_default()
}

pub(in super::super) fn row(row: &impl Columns) -> Stored {
    Stored {
        seq: uint(row.int(0).unwrap_or_default()),
        at: text(row, 1),
        actor: text(row, 2),
        body: text(row, 3),
        prev_hash: text(row, 4),
        hash: text(row, 5),
        instance: text(row, 6),
    }
}

pub(in super::super) async fn head_of<L: Link>(link: &mut L, instance: &str) -> Result<Option<Head>, sqlx::Error> {
    let head = first(link, sql::HEAD, args![instance]).await?;
    Ok(head.map(|row| Head { seq: uint(row.int(0).unwrap_or_default()), hash: text(&row, 1) }))
}

/// The one number that a statement gives, if any.
pub(in super::super) async fn number<L: Link>(link: &mut L, statement: &'static str, args: Vec<Arg>) -> Result<Option<i64>, sqlx::Error> {
    Ok(first(link, statement, args).await?.and_then(|row| row.int(0)))
}

fn micros(duration: SignedDuration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl<D: Driver> Tables<D> {
    pub(super) fn reading(&self) -> impl Fn(sqlx::Error) -> LogError + '_ {
        |error| LogError::reading(self.driver.place(), error)
    }

    /// One state of the tables, to read from.
    pub(in super::super) async fn snapshot(&self) -> Result<D::Snapshot, LogError> {
        self.driver.snapshot().await.map_err(self.reading())
    }

    /// A record that may be believed: its hash fits, and this version knows its kind.
    fn believe(&self, row: &impl Columns) -> Result<Record, LogError> {
        let stored = self::row(row);
        if !stored.is_intact() || stored.instance != self.instance {
            return Err(LogError::Broken { place: self.driver.place().clone(), fault: stored.altered() });
        }
        let seq = stored.seq;
        stored.record().map_err(|source| LogError::UnknownRecord { place: self.driver.place().clone(), seq, source })
    }

    /// Every instance that has a chain there, in order.
    pub async fn instances(&self) -> Result<Vec<String>, LogError> {
        let rows = all(&mut *self.snapshot().await?, sql::INSTANCES, args![]).await.map_err(self.reading())?;
        Ok(rows.iter().map(|row| text(row, 0)).collect())
    }

    pub(super) async fn read_head(&self) -> Result<Option<Head>, LogError> {
        head_of(&mut *self.snapshot().await?, &self.instance).await.map_err(self.reading())
    }

    pub(super) async fn read_history(&self, policy: &Policy, now: Timestamp) -> Result<History, LogError> {
        let budgets = &policy.budgets;
        let window = budgets.starts_window.max(budgets.actions_window).max(policy.flap_window);
        let now_us = now.as_microsecond();
        let storm = micros(policy.storm.window.min(STORM_WINDOW_MAX));
        let args = args![&self.instance, now_us.saturating_sub(micros(window)), now_us.saturating_sub(storm), storm];
        let mut history = History::default();
        let mut snapshot = self.snapshot().await?;
        let head = head_of(&mut *snapshot, &self.instance).await.map_err(self.reading())?;
        {
            let mut rows = snapshot.rows(sql::HISTORY, args);
            while let Some(row) = rows.try_next().await.map_err(self.reading())? {
                history.apply(&self.believe(&row)?);
            }
        }
        history.prune(policy, now);
        if let Some(writer) = &self.writer {
            writer.lock().await.known = Known::End(head);
        }
        Ok(history)
    }

    pub(super) async fn read_all(&self, each: &mut (dyn FnMut(Record) + Send)) -> Result<(), LogError> {
        let mut snapshot = self.snapshot().await?;
        let mut rows = snapshot.rows(sql::RECORDS, args![&self.instance]);
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
        self.fold_incidents(&mut self.snapshot().await?, statement, args![&self.instance, i64::from(limit)]).await
    }

    pub(super) async fn read_incident(&self, incident_id: &str) -> Result<Option<Incident>, LogError> {
        let args = args![&self.instance, incident_id];
        self.fold_incidents(&mut self.snapshot().await?, sql::INCIDENT, args).await.map(|mut found| found.pop())
    }

    /// Folds each incident by itself from its own records, which come together and in order.
    ///
    /// A list only shows: a record of a newer version is left out of it, where `history` refuses to go on.
    async fn fold_incidents(&self, snapshot: &mut D::Snapshot, statement: &'static str, args: Vec<Arg>) -> Result<Vec<Incident>, LogError> {
        let mut incidents = Vec::new();
        let mut current = (String::new(), History::default());
        let mut rows = snapshot.rows(statement, args);
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
        let args = || args![&self.instance, i64::from(limit)];
        let mut snapshot = self.snapshot().await?;
        let ids = all(&mut *snapshot, sql::ATTEMPT_IDS, args()).await.map_err(self.reading())?;
        let ids: Vec<String> = ids.iter().map(|row| text(row, 0)).collect();
        let incidents = self.fold_incidents(&mut snapshot, sql::INCIDENTS_OF_ATTEMPTS, args()).await?;
        let mut by_id: BTreeMap<String, Attempt> =
            incidents.into_iter().flat_map(|i| i.attempts).map(|a| (a.attempt_id.clone(), a)).collect();
        Ok(ids.iter().rev().filter_map(|id| by_id.remove(id)).collect())
    }

    pub(super) async fn read_counts(&self) -> Result<Counts, LogError> {
        let mut snapshot = self.snapshot().await?;
        let mut groups = Vec::new();
        for statement in [sql::COUNT_SETTLED, sql::COUNT_RECOVERIES, sql::COUNT_INCIDENTS] {
            groups.push(all(&mut *snapshot, statement, args![&self.instance]).await.map_err(self.reading())?);
        }
        let mut counts = Counts::default();
        let group = |rows: Vec<<D::Link as Link>::Row>| {
            rows.into_iter().map(|row| (text(&row, 0), text(&row, 1), uint(row.int(2).unwrap_or_default())))
        };
        let mut groups = groups.into_iter().map(group);
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
        let found = first(&mut *self.snapshot().await?, sql::CHECKPOINT, args![&self.instance, key]).await.map_err(self.reading())?;
        let damaged = |_| LogError::damaged(self.driver.place(), format!("the value of \"{}\" is not JSON", key.escape_debug()));
        found.map(|row| serde_json::from_str(&text(&row, 0)).map_err(damaged)).transpose()
    }
}

/// The incident out of the fold of its records alone.
fn take(history: &mut History, incident_id: &str) -> Option<Incident> {
    let server = server_of(incident_id);
    history.open.remove(server).or_else(|| history.closed.remove(server)).filter(|i| i.incident_id == incident_id)
}
