//! What changes the store.

use std::ops::DerefMut;

use futures_util::TryStreamExt;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::MutexGuard;

use super::super::chain::{self, GENESIS, Stored};
use super::super::derive::Derived;
use super::super::driver::{Arg, Driver, Link, args, first};
use super::super::{Cut, Head, LogError, sql};
use super::read::{head_of, int, number, text, uint};
use super::{Known, Tables, Writer};
use crate::crash;
use crate::policy::{Body, Record};

/// Records cut in one transaction, so that retention never keeps an attempt waiting for long.
const CUT_AT_ONCE: u64 = 5_000;

/// Why a transaction came to nothing.
enum Failed {
    Database(sqlx::Error),
    /// The chain ends here, elsewhere than where its reader believes.
    Overtaken(u64),
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl<D: Driver> Tables<D> {
    /// The writer, and a connection taken out of it: put back only by what succeeds.
    async fn writer(&self) -> Result<(MutexGuard<'_, Writer<D::Link>>, D::Link), LogError> {
        let Some(writer) = &self.writer else { return Err(LogError::ReadOnly { place: self.driver.place().clone() }) };
        let mut writer = writer.lock().await;
        self.driver.still_there()?;
        let connection = match writer.connection.take() {
            Some(connection) => connection,
            None => self.driver.connect(&self.instance).await?,
        };
        Ok((writer, connection))
    }

    fn wrote<T>(&self, writer: &mut Writer<D::Link>, connection: D::Link, result: Result<T, impl Into<Failed>>) -> Result<T, LogError> {
        match result.map_err(Into::into) {
            Ok(value) => {
                writer.connection = Some(connection);
                Ok(value)
            }
            Err(Failed::Database(error)) => Err(LogError::writing(self.driver.place(), error)),
            Err(Failed::Overtaken(seq)) => Err(LogError::Overtaken { place: self.driver.place().clone(), seq }),
        }
    }

    pub(super) async fn write_records(&self, at: Timestamp, actor: &str, bodies: Vec<Body>) -> Result<Vec<Record>, LogError> {
        if bodies.is_empty() {
            return Ok(Vec::new());
        }
        // PostgreSQL's text has no such character.
        let actor = actor.replace('\0', "\u{fffd}");
        crash::point("append.begin");
        let (mut writer, mut connection) = self.writer().await?;
        let result = append(&mut connection, &self.instance, at, &actor, bodies, &writer.known).await;
        let records = self.wrote(&mut writer, connection, result)?;
        crash::point("append.committed");
        if let Some(last) = records.last() {
            self.reached(&mut writer, Head { seq: last.seq, hash: last.hash.clone() });
        }
        crash::point("append.remembered");
        Ok(records)
    }

    fn reached(&self, writer: &mut Writer<D::Link>, head: Head) {
        self.driver.remember(&self.instance, &head);
        writer.known = Known::End(Some(head));
    }

    pub(super) async fn write_checkpoint(&self, key: &str, value: Value) -> Result<(), LogError> {
        let (mut writer, mut connection) = self.writer().await?;
        crash::point("checkpoint.begin");
        let result = connection.run(sql::CHECKPOINT_SET, args![&self.instance, key, &value.to_string()]).await;
        crash::point("checkpoint.written");
        self.wrote(&mut writer, connection, result)
    }

    pub(super) async fn cut_prefix(&self, before: Timestamp, now: Timestamp, actor: &str) -> Result<Cut, LogError> {
        let mut cut = Cut::default();
        let mut at_once = CUT_AT_ONCE;
        loop {
            crash::point("cut.begin");
            let (mut writer, mut connection) = self.writer().await?;
            let result = cut_some(&mut connection, &self.instance, before, now, actor, at_once, &writer.known).await;
            let step = self.wrote(&mut writer, connection, result)?;
            crash::point("cut.committed");
            cut.removed += step.removed;
            cut.first_seq = step.first_seq;
            if let Some(head) = step.head {
                self.reached(&mut writer, head);
                crash::point("cut.remembered");
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
        self.wrote(&mut writer, connection, result)
    }

    async fn rebuild(&self, connection: &mut D::Link) -> Result<(), sqlx::Error> {
        connection.run(D::Link::BEGIN, args![]).await?;
        for forget in sql::FORGET_INDEX {
            connection.run(forget, args![&self.instance]).await?;
        }
        // Read beside the transaction: nothing else can write meanwhile.
        let mut snapshot = self.driver.snapshot().await?;
        let mut rows = snapshot.deref_mut().rows(sql::RECORDS, args![&self.instance]);
        while let Some(row) = rows.try_next().await? {
            let stored = super::read::row(&row);
            let derived = Derived::of(&stored.body);
            let at: Option<Timestamp> = stored.at.parse().ok();
            let (seq, at_us) = (int(stored.seq), at.map_or(0, Timestamp::as_microsecond));
            let args = args![&self.instance, seq, at_us, &derived.kind, &derived.incident_id, &derived.mcp_server];
            connection.run(sql::REDERIVE, args).await?;
            if let Ok(body) = serde_json::from_str(&stored.body) {
                index(connection, &self.instance, seq, at_us, &body).await?;
            }
        }
        connection.run(sql::COMMIT, args![]).await
    }
}

async fn append<L: Link>(
    link: &mut L,
    instance: &str,
    at: Timestamp,
    actor: &str,
    bodies: Vec<Body>,
    known: &Known,
) -> Result<Vec<Record>, Failed> {
    let texts: Vec<String> =
        bodies.iter().map(serde_json::to_string).collect::<Result<_, _>>().map_err(|e| sqlx::Error::Encode(Box::new(e)))?;
    link.run(L::BEGIN, args![]).await?;
    let (mut seq, mut prev_hash) = match end_of_chain(link, instance, known).await? {
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
        insert(link, &row, at.as_microsecond()).await?;
        index(link, instance, int(seq), at.as_microsecond(), &body).await?;
        prev_hash = row.hash.clone();
        records.push(Record { instance: row.instance, seq, at, actor: row.actor, body, prev_hash: row.prev_hash, hash: row.hash });
    }
    link.run(sql::HEAD_SET, args![instance, int(seq), &prev_hash]).await?;
    crash::point("append.uncommitted");
    link.run(sql::COMMIT, args![]).await?;
    Ok(records)
}

/// The end of the chain, if it is where our reader believes it. Else what is to be appended was decided without knowing the
/// rest: somebody else wrote, or an append of ours whose answer was lost was written after all.
async fn end_of_chain<L: Link>(link: &mut L, instance: &str, known: &Known) -> Result<Option<Head>, Failed> {
    let head = head_of(link, instance).await?;
    match known {
        Known::End(known) if *known != head => Err(Failed::Overtaken(head.map_or(0, |h| h.seq))),
        Known::Nothing | Known::End(_) => Ok(head),
    }
}

async fn insert<L: Link>(link: &mut L, row: &Stored, at_us: i64) -> Result<(), sqlx::Error> {
    let derived = Derived::of(&row.body);
    let (seq, chained) = (int(row.seq), (&row.prev_hash, &row.hash));
    let args = args![
        &row.instance,
        seq,
        &row.at,
        &row.actor,
        &row.body,
        chained.0,
        chained.1,
        at_us,
        &derived.kind,
        &derived.incident_id,
        &derived.mcp_server
    ];
    link.run(sql::INSERT, args).await
}

/// What the index must know of one more record of the chain. The same rules as `History::apply`.
async fn index<L: Link>(link: &mut L, instance: &str, seq: i64, at_us: i64, body: &Body) -> Result<(), sqlx::Error> {
    let (statement, args) = match body {
        Body::IncidentOpened { incident_id, mcp_server, reason, reopens, .. } => {
            link.run(sql::INCIDENT_REPLACED, args![instance, mcp_server, seq]).await?;
            (sql::INCIDENT_OPENED, args![instance, incident_id, mcp_server, seq, at_us, reason.as_str(), reopens])
        }
        Body::IncidentUpdated { incident_id, reason, .. } => (sql::INCIDENT_REASON, args![instance, incident_id, reason.as_str()]),
        Body::IncidentClosed { incident_id, how, .. } => (sql::INCIDENT_CLOSED, args![instance, incident_id, seq, how.as_str()]),
        Body::AttemptOpened { attempt_id, incident_id, action, .. } => {
            (sql::ATTEMPT_OPENED, args![instance, attempt_id, incident_id, seq, action.as_str()])
        }
        Body::AttemptSettled { attempt_id, outcome, .. } => (sql::ATTEMPT_SETTLED, args![instance, attempt_id, outcome.as_str()]),
        Body::HoldOrdered { mcp_server, .. } => (sql::STANDS, args![instance, &hold_topic(mcp_server), seq]),
        Body::HoldReleased { mcp_server, .. } => (sql::ENDS, args![instance, &hold_topic(mcp_server)]),
        Body::Granted { grant_id, .. } => (sql::STANDS, args![instance, &grant_topic(grant_id), seq]),
        Body::GrantUsed { grant_id, .. } | Body::GrantExpired { grant_id } => (sql::ENDS, args![instance, &grant_topic(grant_id)]),
        Body::Request { request_id, acts: true, .. } => (sql::STANDS, args![instance, &request_topic(request_id), seq]),
        Body::RequestEnded { request_id, .. } => (sql::ENDS, args![instance, &request_topic(request_id)]),
        Body::Paused { mcp_server, .. } => (sql::STANDS, args![instance, &pause_topic(mcp_server.as_deref()), seq]),
        Body::Unpaused { mcp_server, .. } => (sql::ENDS, args![instance, &pause_topic(mcp_server.as_deref())]),
        Body::HangarRestarted { .. } => (sql::STANDS, args![instance, RESTART_TOPIC, seq]),
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
    link.run(statement, args).await
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

async fn seq_by<L: Link>(link: &mut L, statement: &'static str, args: Vec<Arg>) -> Result<Option<u64>, sqlx::Error> {
    number(link, statement, args).await.map(|seq| seq.map(uint))
}

/// One transaction of retention.
struct Step {
    removed: u64,
    first_seq: u64,
    /// More lies before the bound.
    more: bool,
    head: Option<Head>,
}

async fn cut_some<L: Link>(
    link: &mut L,
    instance: &str,
    before: Timestamp,
    now: Timestamp,
    actor: &str,
    at_once: u64,
    known: &Known,
) -> Result<Step, Failed> {
    link.run(L::BEGIN, args![]).await?;
    let first_seq = seq_by(link, sql::FIRST_SEQ, args![instance]).await?;
    let head = end_of_chain(link, instance, known).await?;
    let (Some(first_seq), Some(head)) = (first_seq, head) else {
        link.run(sql::ROLLBACK, args![]).await?;
        return Ok(Step { removed: 0, first_seq: 0, more: false, head: None });
    };
    let young = seq_by(link, sql::FIRST_FROM, args![instance, before.as_microsecond()]).await?;
    let needed = seq_by(link, sql::FIRST_NEEDED, args![instance]).await?;
    let all = young.unwrap_or(head.seq + 1).min(needed.unwrap_or(u64::MAX)) - 1;
    let mut last = all.min(first_seq.saturating_add(at_once) - 1);
    let more = last < all;
    while last >= first_seq {
        match seq_by(link, sql::FIRST_STRADDLING, args![instance, int(last)]).await? {
            Some(begins) => last = begins - 1,
            None => break,
        }
    }
    // The newest record is an anchor and nothing else is left: cutting it would only make another.
    if last < first_seq || (last == first_seq && first_seq == head.seq) {
        link.run(sql::ROLLBACK, args![]).await?;
        return Ok(Step { removed: 0, first_seq, more, head: None });
    }
    let last_hash = first(link, sql::HASH_AT, args![instance, int(last)]).await?.map(|row| text(&row, 0));
    let last_hash = last_hash.ok_or(sqlx::Error::RowNotFound)?;
    for statement in sql::CUT {
        link.run(statement, args![instance, int(last)]).await?;
    }
    let head = anchor(link, instance, now, actor, head, Body::Anchor { records: last, last_hash }).await?;
    crash::point("cut.uncommitted");
    link.run(sql::COMMIT, args![]).await?;
    Ok(Step { removed: last + 1 - first_seq, first_seq: last + 1, more, head: Some(head) })
}

async fn anchor<L: Link>(link: &mut L, instance: &str, now: Timestamp, actor: &str, head: Head, body: Body) -> Result<Head, sqlx::Error> {
    let text = serde_json::to_string(&body).map_err(|e| sqlx::Error::Encode(Box::new(e)))?;
    let (seq, at) = (head.seq + 1, chain::canonical_time(now));
    let hash = chain::hash_of(&head.hash, instance, seq, &at, actor, &text);
    let row = Stored { instance: instance.to_owned(), seq, at, actor: actor.to_owned(), body: text, prev_hash: head.hash, hash };
    insert(link, &row, now.as_microsecond()).await?;
    link.run(sql::HEAD_SET, args![instance, int(seq), &row.hash]).await?;
    Ok(Head { seq, hash: row.hash })
}
