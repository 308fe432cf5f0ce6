//! What changes the store.

use jiff::Timestamp;
use serde_json::Value;
use sqlx::Connection;
use sqlx::sqlite::SqliteConnection;

use super::super::chain::{self, GENESIS, Stored};
use super::super::derive::Derived;
use super::super::{Cut, Head, LogError, files, sql};
use super::read::{head_of, int, number};
use super::{Store, Writer};
use crate::crash;
use crate::policy::{Body, Record};

/// Records cut in one transaction, so that retention never keeps an attempt waiting for long.
const CUT_AT_ONCE: u64 = 5_000;

impl Store {
    /// The writer, and a connection taken out of it: put back only by what succeeds.
    async fn writer(&self) -> Result<(tokio::sync::MutexGuard<'_, Writer>, SqliteConnection), LogError> {
        let Some(writer) = &self.writer else { return Err(LogError::ReadOnly { path: self.path.clone() }) };
        let mut writer = writer.lock().await;
        let unwritable = |source| LogError::Unwritable { path: self.path.clone(), source };
        // What goes to a file that was removed is lost, however well it was synced.
        let identity = files::identity(&self.path).map_err(|e| unwritable(Box::new(e)))?;
        if self.identity.is_some_and(|known| known != identity) {
            return Err(unwritable("the file was replaced by another one while it was in use".into()));
        }
        let connection = match writer.connection.take() {
            Some(connection) => connection,
            None => self.reconnect().await?,
        };
        Ok((writer, connection))
    }

    fn wrote<T>(
        &self,
        mut writer: impl std::ops::DerefMut<Target = Writer>,
        connection: SqliteConnection,
        result: Result<T, sqlx::Error>,
    ) -> Result<T, LogError> {
        match result {
            Ok(value) => {
                writer.connection = Some(connection);
                Ok(value)
            }
            Err(error) => Err(LogError::writing(&self.path, error)),
        }
    }

    pub(super) async fn write_records(&self, at: Timestamp, actor: &str, bodies: Vec<Body>) -> Result<Vec<Record>, LogError> {
        if bodies.is_empty() {
            return Ok(Vec::new());
        }
        crash::point("append.begin");
        let (mut writer, mut connection) = self.writer().await?;
        let result = append(&mut connection, &self.instance, at, actor, bodies).await;
        let records = self.wrote(&mut *writer, connection, result)?;
        crash::point("append.committed");
        if let Some(last) = records.last() {
            self.remember(&mut writer, &Head { seq: last.seq, hash: last.hash.clone() });
        }
        crash::point("append.remembered");
        Ok(records)
    }

    fn remember(&self, writer: &mut Writer, head: &Head) {
        if let Some(remembered) = &mut writer.remembered {
            remembered.write(&self.instance, head);
        }
    }

    pub(super) async fn write_checkpoint(&self, key: &str, value: Value) -> Result<(), LogError> {
        let (mut writer, mut connection) = self.writer().await?;
        let query = sqlx::query(sql::CHECKPOINT_SET).bind(&self.instance).bind(key).bind(value.to_string());
        crash::point("checkpoint.begin");
        let result = query.execute(&mut connection).await.map(drop);
        crash::point("checkpoint.written");
        self.wrote(&mut *writer, connection, result)
    }

    pub(super) async fn cut_prefix(&self, before: Timestamp, now: Timestamp, actor: &str) -> Result<Cut, LogError> {
        let mut cut = Cut::default();
        let mut at_once = CUT_AT_ONCE;
        loop {
            let (mut writer, mut connection) = self.writer().await?;
            let result = cut_some(&mut connection, &self.instance, before, now, actor, at_once).await;
            let step = self.wrote(&mut *writer, connection, result)?;
            cut.removed += step.removed;
            cut.first_seq = step.first_seq;
            if let Some(head) = &step.head {
                self.remember(&mut writer, head);
            }
            match (step.removed, step.more) {
                (_, false) => return Ok(cut),
                // One long incident fills the whole step: take a longer one.
                (0, true) => at_once = at_once.saturating_mul(2),
                _ => at_once = CUT_AT_ONCE,
            }
        }
    }

    /// Builds the index anew from the chain, after `verify` found that they differ. Appends wait meanwhile.
    pub async fn rebuild_index(&self) -> Result<(), LogError> {
        let (mut writer, mut connection) = self.writer().await?;
        let result = self.rebuild(&mut connection).await;
        self.wrote(&mut *writer, connection, result)
    }

    async fn rebuild(&self, connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        use futures_util::TryStreamExt;
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        for forget in sql::FORGET_INDEX {
            sqlx::query(forget).bind(&self.instance).execute(&mut *tx).await?;
        }
        // Read beside the transaction: nothing else can write meanwhile.
        let mut rows = sqlx::query(sql::RECORDS).bind(&self.instance).fetch(&self.readers);
        while let Some(row) = rows.try_next().await? {
            let stored = super::read::row(&row);
            let derived = Derived::of(&stored.body);
            let at: Option<Timestamp> = stored.at.parse().ok();
            let (seq, at_us) = (int(stored.seq), at.map_or(0, Timestamp::as_microsecond));
            let update = sqlx::query(sql::REDERIVE).bind(&self.instance).bind(seq).bind(at_us);
            update.bind(&derived.kind).bind(&derived.incident_id).bind(&derived.mcp_server).execute(&mut *tx).await?;
            if let Ok(body) = serde_json::from_str(&stored.body) {
                index(&mut tx, &self.instance, seq, at_us, &body).await?;
            }
        }
        tx.commit().await
    }

    /// Lets the file grow no further than it is, as a full disk would; `None` lifts that.
    #[cfg(test)]
    pub(crate) async fn fill_disk(&self, full: bool) {
        let (mut writer, mut connection) = self.writer().await.unwrap();
        let pages: i64 = if full { 1 } else { 1 << 30 };
        sqlx::query(sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"))).fetch_one(&mut connection).await.unwrap();
        writer.connection = Some(connection);
    }
}

async fn append(
    connection: &mut SqliteConnection,
    instance: &str,
    at: Timestamp,
    actor: &str,
    bodies: Vec<Body>,
) -> Result<Vec<Record>, sqlx::Error> {
    let texts: Vec<String> =
        bodies.iter().map(serde_json::to_string).collect::<Result<_, _>>().map_err(|e| sqlx::Error::Encode(Box::new(e)))?;
    let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
    let (mut seq, mut prev_hash) = match head_of(&mut tx, instance).await? {
        Some(head) => (head.seq, head.hash),
        None => (0, GENESIS.to_owned()),
    };
    let at_text = chain::canonical_time(at);
    let at: Timestamp = at_text.parse().unwrap_or(at);
    let mut records = Vec::with_capacity(bodies.len());
    for (body, text) in bodies.into_iter().zip(texts) {
        seq += 1;
        let hash = chain::hash_of(&prev_hash, instance, seq, &at_text, actor, &text);
        let row = Stored { instance: instance.to_owned(), seq, at: at_text.clone(), actor: actor.to_owned(), body: text, prev_hash, hash };
        insert(&mut tx, &row, at.as_microsecond()).await?;
        index(&mut tx, instance, int(seq), at.as_microsecond(), &body).await?;
        prev_hash = row.hash.clone();
        records.push(Record { instance: row.instance, seq, at, actor: row.actor, body, prev_hash: row.prev_hash, hash: row.hash });
    }
    sqlx::query(sql::HEAD_SET).bind(instance).bind(int(seq)).bind(prev_hash).execute(&mut *tx).await?;
    crash::point("append.uncommitted");
    tx.commit().await?;
    Ok(records)
}

async fn insert(tx: &mut SqliteConnection, row: &Stored, at_us: i64) -> Result<(), sqlx::Error> {
    let derived = Derived::of(&row.body);
    let query = sqlx::query(sql::INSERT).bind(&row.instance).bind(int(row.seq)).bind(&row.at).bind(&row.actor).bind(&row.body);
    let query = query.bind(&row.prev_hash).bind(&row.hash).bind(at_us);
    query.bind(derived.kind).bind(derived.incident_id).bind(derived.mcp_server).execute(tx).await.map(drop)
}

/// What the index must know of one more record of the chain. The same rules as `History::apply`.
async fn index(tx: &mut SqliteConnection, instance: &str, seq: i64, at_us: i64, body: &Body) -> Result<(), sqlx::Error> {
    let query = |text: &'static str| sqlx::query(text).bind(instance.to_owned());
    let query = match body {
        Body::IncidentOpened { incident_id, mcp_server, reason, reopens, .. } => {
            query(sql::INCIDENT_REPLACED).bind(mcp_server).bind(seq).execute(&mut *tx).await?;
            query(sql::INCIDENT_OPENED).bind(incident_id).bind(mcp_server).bind(seq).bind(at_us).bind(reason.as_str()).bind(reopens)
        }
        Body::IncidentUpdated { incident_id, reason, .. } => query(sql::INCIDENT_REASON).bind(incident_id).bind(reason.as_str()),
        Body::IncidentClosed { incident_id, how, .. } => query(sql::INCIDENT_CLOSED).bind(incident_id).bind(seq).bind(how.as_str()),
        Body::AttemptOpened { attempt_id, incident_id, action, .. } => {
            query(sql::ATTEMPT_OPENED).bind(attempt_id).bind(incident_id).bind(seq).bind(action.as_str())
        }
        Body::AttemptSettled { attempt_id, outcome, .. } => query(sql::ATTEMPT_SETTLED).bind(attempt_id).bind(outcome.as_str()),
        Body::HoldOrdered { mcp_server, .. } => query(sql::STANDS).bind(hold_topic(mcp_server)).bind(seq),
        Body::HoldReleased { mcp_server, .. } => query(sql::ENDS).bind(hold_topic(mcp_server)),
        Body::Granted { grant_id, .. } => query(sql::STANDS).bind(grant_topic(grant_id)).bind(seq),
        Body::GrantUsed { grant_id, .. } | Body::GrantExpired { grant_id } => query(sql::ENDS).bind(grant_topic(grant_id)),
        Body::Request { request_id, acts: true, .. } => query(sql::STANDS).bind(request_topic(request_id)).bind(seq),
        Body::RequestEnded { request_id, .. } => query(sql::ENDS).bind(request_topic(request_id)),
        Body::Paused { mcp_server, .. } => query(sql::STANDS).bind(pause_topic(mcp_server.as_deref())).bind(seq),
        Body::Unpaused { mcp_server, .. } => query(sql::ENDS).bind(pause_topic(mcp_server.as_deref())),
        Body::HangarRestarted { .. } => query(sql::STANDS).bind(RESTART_TOPIC).bind(seq),
        Body::AttemptHalfDone { .. }
        | Body::AttemptReceipt { .. }
        | Body::AttemptSaved { .. }
        | Body::AttemptSecond { .. }
        | Body::WouldAct { .. }
        | Body::Exhausted { .. }
        | Body::GrantRefused { .. }
        | Body::Request { acts: false, .. }
        // They live and end with their incident, which is read whole.
        | Body::Approved { .. }
        | Body::ApprovalEnded { .. }
        | Body::Anchor { .. } => return Ok(()),
    };
    query.execute(tx).await.map(drop)
}

/// The live hold order of a server, in `standing`.
pub(super) fn hold_topic(mcp_server: &str) -> String {
    format!("hold/{mcp_server}")
}

/// A pause of one server or of everything, in `standing`. No server id is empty.
pub(super) fn pause_topic(mcp_server: Option<&str>) -> String {
    format!("pause/{}", mcp_server.unwrap_or_default())
}

/// A live break-glass grant, in `standing`.
pub(super) fn grant_topic(grant_id: &str) -> String {
    format!("grant/{grant_id}")
}

/// A restart request that waits for its turn, in `standing`.
pub(super) fn request_topic(request_id: &str) -> String {
    format!("request/{request_id}")
}

/// The Hangar process seen last, in `standing`.
pub(super) const RESTART_TOPIC: &str = "hangar_restarted";

async fn seq_by(
    tx: &mut SqliteConnection,
    statement: &'static str,
    instance: &str,
    bound: Option<i64>,
) -> Result<Option<u64>, sqlx::Error> {
    number(tx, statement, instance, bound).await.map(|seq| seq.and_then(|seq| u64::try_from(seq).ok()))
}

/// One transaction of retention.
struct Step {
    removed: u64,
    first_seq: u64,
    /// More lies before the bound.
    more: bool,
    head: Option<Head>,
}

async fn cut_some(
    connection: &mut SqliteConnection,
    instance: &str,
    before: Timestamp,
    now: Timestamp,
    actor: &str,
    at_once: u64,
) -> Result<Step, sqlx::Error> {
    let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
    let first = seq_by(&mut tx, sql::FIRST_SEQ, instance, None).await?;
    let head = head_of(&mut tx, instance).await?;
    let (Some(first), Some(head)) = (first, head) else {
        return Ok(Step { removed: 0, first_seq: 0, more: false, head: None });
    };
    let young = seq_by(&mut tx, sql::FIRST_FROM, instance, Some(before.as_microsecond())).await?;
    let needed = seq_by(&mut tx, sql::FIRST_NEEDED, instance, None).await?;
    let all = young.unwrap_or(head.seq + 1).min(needed.unwrap_or(u64::MAX)) - 1;
    let mut last = all.min(first.saturating_add(at_once) - 1);
    let more = last < all;
    while last >= first {
        match seq_by(&mut tx, sql::FIRST_STRADDLING, instance, Some(int(last))).await? {
            Some(begins) => last = begins - 1,
            None => break,
        }
    }
    // The newest record is an anchor and nothing else is left: cutting it would only make another.
    if last < first || (last == first && first == head.seq) {
        return Ok(Step { removed: 0, first_seq: first, more, head: None });
    }
    let last_hash: String = sqlx::query_scalar(sql::HASH_AT).bind(instance).bind(int(last)).fetch_one(&mut *tx).await?;
    for statement in sql::CUT {
        sqlx::query(statement).bind(instance).bind(int(last)).execute(&mut *tx).await?;
    }
    let head = anchor(&mut tx, instance, now, actor, head, Body::Anchor { records: last, last_hash }).await?;
    tx.commit().await?;
    Ok(Step { removed: last + 1 - first, first_seq: last + 1, more, head: Some(head) })
}

async fn anchor(
    tx: &mut SqliteConnection,
    instance: &str,
    now: Timestamp,
    actor: &str,
    head: Head,
    body: Body,
) -> Result<Head, sqlx::Error> {
    let text = serde_json::to_string(&body).map_err(|e| sqlx::Error::Encode(Box::new(e)))?;
    let (seq, at) = (head.seq + 1, chain::canonical_time(now));
    let hash = chain::hash_of(&head.hash, instance, seq, &at, actor, &text);
    let row = Stored { instance: instance.to_owned(), seq, at, actor: actor.to_owned(), body: text, prev_hash: head.hash, hash };
    insert(tx, &row, now.as_microsecond()).await?;
    sqlx::query(sql::HEAD_SET).bind(instance).bind(int(seq)).bind(&row.hash).execute(&mut *tx).await?;
    Ok(Head { seq, hash: row.hash })
}
