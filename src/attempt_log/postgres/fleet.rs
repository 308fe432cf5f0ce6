//! The fleet lock: an advisory lock that goes with its holder's session, and a row that outlives it.
//!
//! While the holder lives nobody takes over, however late it is: what hangs may still act. Once its session is gone the
//! lock is free, but the row keeps others out until its deadline: what was begun may still be under way. The holder asks
//! again before each thing that it sends, and by `epoch` it learns that it was taken over meanwhile.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use sqlx::Connection;
use sqlx::postgres::{PgConnection, PgRow};
use tokio::sync::Mutex;

use super::super::LogError;
use super::super::driver::{Columns, Link, all, args, first};
use super::super::error::Place;
use super::super::fleet::{Acquired, FleetLock, ORDERED_MAX};
use super::super::sql;
use super::super::tables::read::number;
use super::Shared;
use super::open::{self, TRY_LOCK};
use crate::clock;
use crate::config::Postgres;
use crate::policy::OrderedRestart;

/// A holder that lives on after its deadline is asked for again after this.
const OVERDUE: SignedDuration = SignedDuration::from_secs(15);

const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
const ROW: &str = "SELECT holder, epoch, deadline_us FROM fleet_lock WHERE target = $1";
const ROW_LOCKED: &str = "SELECT holder, epoch, deadline_us FROM fleet_lock WHERE target = $1 FOR UPDATE";
const TAKE: &str = "INSERT INTO fleet_lock (target, holder, epoch, deadline_us) VALUES ($1, $2, $3, $4) \
     ON CONFLICT (target) DO UPDATE SET holder = excluded.holder, epoch = excluded.epoch, deadline_us = excluded.deadline_us";
const GIVE_BACK: &str = "UPDATE fleet_lock SET holder = NULL, deadline_us = 0 WHERE target = $1 AND holder = $2";
const UNLOCK: &str = "SELECT pg_advisory_unlock(hashtextextended($1, 0))::int::bigint";

/// `$1` = ourselves, `$2` = µs, `$3` = limit. The attempts of an incident follow each other: the first settlement after an
/// opening is its own.
const ORDERED: &str = "SELECT a.instance, a.attempt_id, a.action, o.at_us, (SELECT s.at_us FROM records s WHERE s.instance = a.instance \
     AND s.incident_id = a.incident_id AND s.kind = 'attempt_settled' AND s.seq > a.opened_seq ORDER BY s.seq LIMIT 1) \
     FROM attempts a JOIN records o ON o.instance = a.instance AND o.seq = a.opened_seq \
     WHERE a.instance <> $1 AND a.action IN ('rolling_mcp_restart', 'full_mcp_restart', 'host_restart') \
     AND a.outcome IS DISTINCT FROM 'not_applicable' AND o.at_us >= $2 ORDER BY o.at_us DESC LIMIT $3";

/// The lock of the fleet whose medics share a server.
pub struct Fleet {
    postgres: Postgres,
    place: Place,
    /// Who we are to the others.
    holder: String,
    session: Mutex<Option<Session>>,
}

/// Holds the advisory lock of every target in `epochs`; they go with it.
struct Session {
    link: PgConnection,
    epochs: BTreeMap<String, i64>,
}

/// A row of the table.
struct Row {
    holder: Option<String>,
    epoch: i64,
    deadline_us: i64,
}

impl Row {
    fn of(row: &impl Columns) -> Self {
        Self { holder: row.text(0), epoch: row.int(1).unwrap_or_default(), deadline_us: row.int(2).unwrap_or_default() }
    }
}

impl Shared {
    /// The lock that this instance shares with the others.
    #[must_use]
    pub fn fleet(&self) -> Fleet {
        let (postgres, place) = (self.driver.postgres.clone(), self.place().clone());
        Fleet { postgres, place, holder: self.instance().to_owned(), session: Mutex::new(None) }
    }
}

fn key(target: &str) -> String {
    format!("hangar-medic/fleet/{target}")
}

fn micros(duration: SignedDuration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl Fleet {
    async fn session(&self, kept: Option<Session>) -> Result<Session, LogError> {
        match kept {
            Some(session) => Ok(session),
            None => Ok(Session { link: open::connect(&self.postgres, &self.place).await?, epochs: BTreeMap::new() }),
        }
    }

    /// The server's own time decides, so that clocks of the replicas may differ.
    async fn take(&self, session: &mut Session, target: &str, ttl: SignedDuration) -> Result<Acquired, sqlx::Error> {
        let Session { link, epochs } = session;
        if !epochs.contains_key(target) && number(link, TRY_LOCK, args![&key(target)]).await? != Some(1) {
            let row = first(link, ROW, args![target]).await?.map(|row| Row::of(&row));
            let now_us = number(link, NOW, args![]).await?.unwrap_or_default();
            return Ok(held(row, now_us));
        }
        link.run(PgConnection::BEGIN, args![]).await?;
        let row = first(link, ROW_LOCKED, args![target]).await?.map(|row| Row::of(&row));
        let now_us = number(link, NOW, args![]).await?.unwrap_or_default();
        let others = row.as_ref().is_some_and(|row| {
            let is_other = row.holder.as_ref().is_some_and(|holder| *holder != self.holder);
            is_other && row.deadline_us > now_us
        });
        if others {
            link.run(sql::ROLLBACK, args![]).await?;
            number(link, UNLOCK, args![&key(target)]).await?;
            epochs.remove(target);
            return Ok(held(row, now_us));
        }
        let before = row.as_ref().map_or(0, |row| row.epoch);
        let epoch = if epochs.get(target) == Some(&before) { before } else { before + 1 };
        if let Some(from) = row.and_then(|row| row.holder).filter(|holder| *holder != self.holder) {
            tracing::warn!(event = "fleet_lock", target, from, epoch, "its holder is gone and its deadline is over: taken over");
        }
        link.run(TAKE, args![target, &self.holder, epoch, now_us.saturating_add(micros(ttl))]).await?;
        link.run(sql::COMMIT, args![]).await?;
        epochs.insert(target.to_owned(), epoch);
        Ok(Acquired::Ours)
    }

    /// A holder that is late and lives on keeps it, as in [`Self::take`].
    async fn look(&self, link: &mut PgConnection, target: &str) -> Result<bool, sqlx::Error> {
        let row = first(link, ROW, args![target]).await?.map(|row| Row::of(&row));
        let now_us = number(link, NOW, args![]).await?.unwrap_or_default();
        let others = row.is_some_and(|row| row.holder.is_some_and(|holder| holder != self.holder) && row.deadline_us > now_us);
        Ok(!others && first(link, open::HOLDER, args![&key(target)]).await?.is_none())
    }

    async fn orders(&self, link: &mut PgConnection, since: Timestamp) -> Result<Vec<OrderedRestart>, sqlx::Error> {
        let rows = all(link, ORDERED, args![&self.holder, since.as_microsecond(), i64::from(ORDERED_MAX)]).await?;
        let read = |row: &PgRow| {
            let at = |column| Timestamp::from_microsecond(row.int(column)?).ok();
            let (instance, attempt_id) = (row.text(0)?, row.text(1)?);
            Some(OrderedRestart { instance, attempt_id, action: row.text(2)?.parse().ok()?, at: at(3)?, over_at: at(4) })
        };
        Ok(rows.iter().filter_map(read).collect())
    }

    async fn give_back(&self, session: &mut Session, target: &str) -> Result<(), sqlx::Error> {
        session.link.run(GIVE_BACK, args![target, &self.holder]).await?;
        if session.epochs.remove(target).is_some() {
            number(&mut session.link, UNLOCK, args![&key(target)]).await?;
        }
        Ok(())
    }
}

fn held(row: Option<Row>, now_us: i64) -> Acquired {
    let by = row.as_ref().and_then(|row| row.holder.clone()).unwrap_or_else(|| "another medic".to_owned());
    let left = row.map_or(0, |row| row.deadline_us.saturating_sub(now_us));
    let left = if left > 0 { SignedDuration::from_micros(left) } else { OVERDUE };
    Acquired::Held { by, until: clock::now().checked_add(left).unwrap_or(Timestamp::MAX) }
}

impl FleetLock for Fleet {
    fn acquire<'a>(&'a self, target: &'a str, deadline: Timestamp) -> BoxFuture<'a, Result<Acquired, LogError>> {
        Box::pin(async move {
            let ttl = deadline.duration_since(clock::now()).max(SignedDuration::ZERO);
            // Out of its place meanwhile: a session that failed, or whose future was dropped, is gone with its locks.
            let mut place = self.session.lock().await;
            let mut session = self.session(place.take()).await?;
            let acquired = self.take(&mut session, target, ttl).await.map_err(|e| LogError::writing(&self.place, e))?;
            *place = Some(session).filter(|session| !session.epochs.is_empty());
            Ok(acquired)
        })
    }

    fn release<'a>(&'a self, target: &'a str) -> BoxFuture<'a, Result<(), LogError>> {
        Box::pin(async move {
            let mut place = self.session.lock().await;
            let mut session = self.session(place.take()).await?;
            self.give_back(&mut session, target).await.map_err(|e| LogError::writing(&self.place, e))?;
            *place = Some(session).filter(|session| !session.epochs.is_empty());
            Ok(())
        })
    }

    fn is_free<'a>(&'a self, target: &'a str) -> BoxFuture<'a, Result<bool, LogError>> {
        Box::pin(async move {
            let mut link = open::connect(&self.postgres, &self.place).await?;
            let free = self.look(&mut link, target).await.map_err(|e| LogError::reading(&self.place, e));
            let _ = link.close().await;
            free
        })
    }

    fn ordered(&self, since: Timestamp) -> BoxFuture<'_, Result<Vec<OrderedRestart>, LogError>> {
        Box::pin(async move {
            let mut link = open::connect(&self.postgres, &self.place).await?;
            let orders = self.orders(&mut link, since).await.map_err(|e| LogError::reading(&self.place, e));
            let _ = link.close().await;
            orders
        })
    }
}
