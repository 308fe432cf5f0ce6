//! What the tables need of a database. Both run the statements of `sql`.

use std::ops::DerefMut;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

use super::error::Place;
use super::{Head, LogError};

/// One value of a statement.
#[derive(Debug, Clone)]
pub enum Arg {
    Int(i64),
    Text(Option<String>),
}

impl From<i64> for Arg {
    fn from(n: i64) -> Self {
        Self::Int(n)
    }
}

impl From<&str> for Arg {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<&String> for Arg {
    fn from(text: &String) -> Self {
        Self::Text(Some(text.clone()))
    }
}

impl From<&Option<String>> for Arg {
    fn from(text: &Option<String>) -> Self {
        Self::Text(text.clone())
    }
}

/// The values of a statement, in the order of `$1`, `$2`, …
macro_rules! args {
    ($($arg:expr),* $(,)?) => { vec![$($crate::attempt_log::driver::Arg::from($arg)),*] };
}
pub(super) use args;

/// One row. What is not there, or of another type, is `None`: a damaged table may hold anything.
pub trait Columns: Send + Sync {
    fn int(&self, column: usize) -> Option<i64>;
    /// Text as it is; what is no UTF-8 shows in the hash.
    fn text(&self, column: usize) -> Option<String>;
}

/// One connection. Dropped within a transaction it takes back what was not committed.
pub trait Link: Send + Sync + 'static {
    type Row: Columns;
    /// Begins a transaction that writes.
    const BEGIN: &'static str;

    fn run(&mut self, statement: &'static str, args: Vec<Arg>) -> BoxFuture<'_, Result<(), sqlx::Error>>;

    fn rows(&mut self, statement: &'static str, args: Vec<Arg>) -> BoxStream<'_, Result<Self::Row, sqlx::Error>>;
}

/// The database behind a store.
pub trait Driver: Send + Sync + 'static {
    type Link: Link;
    /// A transaction that reads one state of the tables and is over when it is dropped.
    type Snapshot: DerefMut<Target = Self::Link> + Send;

    fn place(&self) -> &Place;

    /// Whether what is written now will be found again.
    fn still_there(&self) -> Result<(), LogError>;

    /// A connection that alone writes to the chain of `instance`, in place of one that failed.
    fn connect<'a>(&'a self, instance: &'a str) -> BoxFuture<'a, Result<Self::Link, LogError>>;

    fn snapshot(&self) -> BoxFuture<'_, Result<Self::Snapshot, sqlx::Error>>;

    /// Notes the last record outside of the database, where there is such a place.
    fn remember(&self, instance: &str, head: &Head);

    /// The last record as it was noted there.
    fn remembered(&self, instance: &str) -> Option<Head>;
}

/// The first row of an answer, if any.
pub(super) async fn first<L: Link>(link: &mut L, statement: &'static str, args: Vec<Arg>) -> Result<Option<L::Row>, sqlx::Error> {
    use futures_util::TryStreamExt;
    link.rows(statement, args).try_next().await
}

/// The whole answer, for statements whose answer is short.
pub(super) async fn all<L: Link>(link: &mut L, statement: &'static str, args: Vec<Arg>) -> Result<Vec<L::Row>, sqlx::Error> {
    use futures_util::TryStreamExt;
    link.rows(statement, args).try_collect().await
}

/// How a row of this database is read.
macro_rules! columns {
    ($row:ty) => {
        impl $crate::attempt_log::driver::Columns for $row {
            fn int(&self, column: usize) -> Option<i64> {
                let number: Option<i64> = sqlx::Row::try_get_unchecked(self, column).ok()?;
                number
            }

            fn text(&self, column: usize) -> Option<String> {
                let bytes: Option<&[u8]> = sqlx::Row::try_get_unchecked(self, column).ok()?;
                bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            }
        }
    };
}
pub(super) use columns;

/// A statement of this database with its values.
macro_rules! bound {
    ($statement:expr, $args:expr) => {
        $args.into_iter().fold(sqlx::query($statement), |query, arg| match arg {
            $crate::attempt_log::driver::Arg::Int(n) => query.bind(n),
            $crate::attempt_log::driver::Arg::Text(text) => query.bind(text),
        })
    };
}
pub(super) use bound;
