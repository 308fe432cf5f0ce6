//! The attempt log in a PostgreSQL database, which the medics of several replicas share: a chain for each instance.
//!
//! A session holds the advisory lock of its instance's chain for as long as it may write, so a pooler in between must give
//! each client a session of its own. Everything is bounded in time: a server that hangs is one that is not there.

mod fleet;
mod open;

use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt, try_unfold};
use sqlx::postgres::{PgConnection, PgPool, PgRow};
use sqlx::{Postgres, Transaction};

use super::driver::{Arg, Driver, Link, bound, columns};
use super::error::Place;
use super::tables::Tables;
use super::{Head, LogError};
use crate::config::Postgres as Settings;

/// The store on a server.
pub type Shared = Tables<Server>;

/// How long one statement may take, or the next row of its answer.
const STATEMENT_MAX: Duration = Duration::from_secs(5);
/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// One state of the tables. Reading all of a long chain may take longer than a statement that writes may.
const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = 0";

/// The server, and how to get to it.
#[derive(Debug)]
pub struct Server {
    place: Place,
    postgres: Settings,
    readers: PgPool,
}

columns!(PgRow);

fn too_slow<T>(_: T) -> sqlx::Error {
    let words = format!("no answer within {} s", STATEMENT_MAX.as_secs());
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, words))
}

/// PostgreSQL's text has no such character; no record of ours has it either.
fn without_zeros(args: Vec<Arg>) -> Vec<Arg> {
    let clean = |arg| match arg {
        Arg::Text(Some(text)) if text.contains('\0') => Arg::Text(Some(text.replace('\0', "\u{fffd}"))),
        other @ (Arg::Text(_) | Arg::Int(_)) => other,
    };
    args.into_iter().map(clean).collect()
}

impl Link for PgConnection {
    type Row = PgRow;
    const BEGIN: &'static str = "BEGIN";

    fn run(&mut self, statement: &'static str, args: Vec<Arg>) -> BoxFuture<'_, Result<(), sqlx::Error>> {
        Box::pin(async move {
            let ran = bound!(statement, without_zeros(args)).execute(self);
            tokio::time::timeout(STATEMENT_MAX, ran).await.map_err(too_slow)?.map(drop)
        })
    }

    fn rows(&mut self, statement: &'static str, args: Vec<Arg>) -> BoxStream<'_, Result<PgRow, sqlx::Error>> {
        try_unfold(bound!(statement, without_zeros(args)).fetch(self), next_row).boxed()
    }
}

type Rows<'a> = BoxStream<'a, Result<PgRow, sqlx::Error>>;

async fn next_row(mut rows: Rows<'_>) -> Result<Option<(PgRow, Rows<'_>)>, sqlx::Error> {
    let row = tokio::time::timeout(STATEMENT_MAX, rows.try_next()).await.map_err(too_slow)??;
    Ok(row.map(|row| (row, rows)))
}

impl Driver for Server {
    type Link = PgConnection;
    type Snapshot = Transaction<'static, Postgres>;

    fn place(&self) -> &Place {
        &self.place
    }

    fn still_there(&self) -> Result<(), LogError> {
        Ok(())
    }

    fn connect<'a>(&'a self, instance: &'a str) -> BoxFuture<'a, Result<PgConnection, LogError>> {
        Box::pin(open::claim(&self.postgres, &self.place, instance))
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Self::Snapshot, sqlx::Error>> {
        Box::pin(async move {
            let begun = tokio::time::timeout(CONNECT_MAX, self.readers.begin_with(SNAPSHOT)).await.map_err(too_slow);
            let begun = begun.and_then(|begun| begun);
            if begun.is_err()
                && let Ok(options) = open::options(&self.postgres)
            {
                // The password may be another one by now.
                self.readers.set_connect_options(options);
            }
            begun
        })
    }

    fn remember(&self, _instance: &str, _head: &Head) {}

    fn remembered(&self, _instance: &str) -> Option<Head> {
        None
    }
}
