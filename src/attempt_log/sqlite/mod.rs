//! The attempt log in one SQLite file.

mod open;

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePool, SqliteRow};
use sqlx::{Sqlite, Transaction};

use super::driver::{Arg, Driver, Link, bound, columns};
use super::error::Place;
use super::files::{self, Remembered};
use super::tables::Tables;
use super::{Head, LogError};

/// The store in a directory. Holds `medic.lock` while it lives, unless it was opened for reading only.
pub type Store = Tables<Files>;

/// The database file and what lies beside it.
#[derive(Debug)]
pub struct Files {
    path: PathBuf,
    place: Place,
    options: SqliteConnectOptions,
    /// Device and inode of the database when it was opened.
    identity: Option<(u64, u64)>,
    readers: SqlitePool,
    /// `None` where the store is for reading.
    remembered: Option<Mutex<Remembered>>,
    /// Last, so that the connections go before it does.
    _lock: Option<File>,
}

columns!(SqliteRow);

impl Link for SqliteConnection {
    type Row = SqliteRow;
    const BEGIN: &'static str = "BEGIN IMMEDIATE";

    fn run(&mut self, statement: &'static str, args: Vec<Arg>) -> BoxFuture<'_, Result<(), sqlx::Error>> {
        Box::pin(async move { bound!(statement, args).execute(self).await.map(drop) })
    }

    fn rows(&mut self, statement: &'static str, args: Vec<Arg>) -> BoxStream<'_, Result<SqliteRow, sqlx::Error>> {
        bound!(statement, args).fetch(self)
    }
}

impl Driver for Files {
    type Link = SqliteConnection;
    type Snapshot = Transaction<'static, Sqlite>;

    fn place(&self) -> &Place {
        &self.place
    }

    /// What goes to a file that was removed is lost, however well it was synced.
    fn still_there(&self) -> Result<(), LogError> {
        let unwritable = |source| LogError::Unwritable { place: self.place.clone(), source };
        let identity = files::identity(&self.path).map_err(|e| unwritable(Box::new(e)))?;
        if self.identity.is_some_and(|known| known != identity) {
            return Err(unwritable("the file was replaced by another one while it was in use".into()));
        }
        Ok(())
    }

    fn connect<'a>(&'a self, _instance: &'a str) -> BoxFuture<'a, Result<SqliteConnection, LogError>> {
        Box::pin(async move { self.options.connect().await.map_err(|e| LogError::writing(&self.place, e)) })
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Self::Snapshot, sqlx::Error>> {
        Box::pin(self.readers.begin())
    }

    fn remember(&self, instance: &str, head: &Head) {
        if let Some(remembered) = &self.remembered {
            remembered.lock().unwrap_or_else(PoisonError::into_inner).write(instance, head);
        }
    }

    fn remembered(&self, instance: &str) -> Option<Head> {
        files::remembered(self.path.parent()?).filter(|(of, _)| of == instance).map(|(_, head)| head)
    }
}

#[cfg(test)]
impl Store {
    /// Lets the file grow no further than it is, as a full disk would; `None` lifts that.
    pub(crate) async fn fill_disk(&self, full: bool) {
        let mut writer = self.writer.as_ref().unwrap().lock().await;
        if writer.connection.is_none() {
            writer.connection = Some(self.driver.connect("").await.unwrap());
        }
        let pages: i64 = if full { 1 } else { 1 << 30 };
        let pragma = sqlx::query(sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {pages}")));
        pragma.fetch_one(writer.connection.as_mut().unwrap()).await.unwrap();
    }
}

#[cfg(test)]
mod tests;
