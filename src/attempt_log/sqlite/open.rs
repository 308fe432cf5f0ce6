//! Opening a store, and every reason not to.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection};

use super::super::error::{Place, sqlite_code};
use super::super::files::{self, Remembered};
use super::super::migrate;
use super::super::tables::end;
use super::super::{LogError, aside};
use super::{Files, Store};

/// Up to this size (bytes) `Store::open` checks the whole file: about 0.1 s. Above it, `Store::check_the_rest` does.
const CHECK_AT_START_MAX: u64 = 32 << 20;

/// `damaged`: reads what can be read. That setting comes first, since most others look at the whole file's header.
fn options(path: &Path, damaged: bool) -> SqliteConnectOptions {
    let options = SqliteConnectOptions::new().filename(path);
    // Else SQLite reads nothing at all from a file that was cut short.
    let options = if damaged { options.pragma("writable_schema", "ON") } else { options };
    options
        .create_if_missing(false)
        .busy_timeout(Duration::from_secs(5))
        .pragma("cell_size_check", "ON")
        .pragma("trusted_schema", "OFF")
        .pragma("cache_size", "-1024")
        .disable_statement_logging()
}

/// Connections for reading come and go; none stays while nobody asks.
fn readers(options: SqliteConnectOptions) -> SqlitePool {
    SqlitePoolOptions::new()
        .max_connections(2)
        .min_connections(0)
        .idle_timeout(Duration::from_secs(30))
        .acquire_timeout(Duration::from_secs(10))
        .connect_lazy_with(options)
}

impl Store {
    /// Opens the store in the directory `dir` for one instance, and makes both if there is nothing yet.
    ///
    /// Takes the lock for as long as the store lives: two medics never write to one store. Changes nothing in a store that
    /// is damaged, newer, held by another process, or not ours.
    pub async fn open(dir: &Path, instance: &str) -> Result<Self, LogError> {
        files::make_dir(dir)?;
        let lock = files::lock(dir)?;
        files::make_database(dir)?;
        let path = files::database(dir);
        let place = Place::file(&path);
        let options = options(&path, false).journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
        inspect(dir).await?;
        let mut connection = options.clone().connect().await.map_err(|e| LogError::writing(&place, e))?;
        let remembered = match prepare(&mut connection, dir, &place, instance).await {
            Ok(remembered) => remembered,
            Err(error) => {
                // Not just dropped: that would end later, under the next try.
                let _ = connection.close().await;
                return Err(error);
            }
        };
        let identity = files::identity(&path).ok();
        let readers = readers(options.clone().read_only(true));
        let remembered = Some(std::sync::Mutex::new(remembered));
        let driver = Files { path, place, options, identity, readers, remembered, _lock: Some(lock) };
        Ok(Self::new(driver, instance, Some(connection)))
    }

    /// Opens the store for reading, also beside a running daemon. `instance` may be left out where the store has only one.
    pub async fn open_read_only(dir: &Path, instance: Option<&str>) -> Result<Self, LogError> {
        Self::open_to_read(dir, instance, false).await
    }

    /// Opens a store that may be damaged, to verify it: what can still be read is.
    pub async fn open_to_verify(dir: &Path, instance: Option<&str>) -> Result<Self, LogError> {
        let opened = Self::open_to_read(dir, instance, true).await;
        let hidden = match &opened {
            Ok(store) => store.instance().is_empty(),
            Err(error) => matches!(error, LogError::Damaged { .. }),
        };
        // Even whose chain it is may be unreadable: beside the database that is remembered too.
        let remembered = files::remembered(dir).map(|(of, _)| of).filter(|of| hidden && instance.is_none_or(|wanted| wanted == of));
        match remembered {
            Some(of) => {
                let path = files::database(dir);
                let options = options(&path, true).read_only(true);
                Ok(Self::for_reading(path, &of, options))
            }
            None => opened,
        }
    }

    async fn open_to_read(dir: &Path, instance: Option<&str>, damaged: bool) -> Result<Self, LogError> {
        let (path, options, mut connection) = connect_to_read(dir, damaged).await?;
        let instance = look(&mut connection, &Place::file(&path), instance, damaged).await;
        let _ = connection.close().await;
        Ok(Self::for_reading(path, &instance?, options))
    }

    fn for_reading(path: PathBuf, instance: &str, options: SqliteConnectOptions) -> Self {
        let (place, readers) = (Place::file(&path), readers(options.clone()));
        Self::new(Files { path, place, options, identity: None, readers, remembered: None, _lock: None }, instance, None)
    }

    /// Looks at every page of a file that `open` found too large for that (SQLite's `quick_check`): about 2 s per GB.
    pub async fn check_the_rest(&self) -> Result<(), LogError> {
        if small(&self.driver.path) { Ok(()) } else { self.check_pages().await }
    }

    /// Looks at every page of the file.
    pub async fn check_pages(&self) -> Result<(), LogError> {
        let mut connection = self.driver.readers.acquire().await.map_err(|e| LogError::reading(self.place(), e))?;
        quick_check(&mut connection, self.place()).await
    }

    /// Closes every connection and lets go of the lock. Dropping the store does the same, a moment later.
    pub async fn close(self) {
        self.driver.readers.close().await;
        if let Some(writer) = &self.writer
            && let Some(connection) = writer.lock().await.connection.take()
        {
            let _ = connection.close().await;
        }
    }
}

/// Looks at a store without the right to change it: even the setting that a writer begins with is written to the file.
async fn inspect(dir: &Path) -> Result<(), LogError> {
    let (path, _, mut connection) = connect_to_read(dir, false).await?;
    let place = Place::file(&path);
    let mut found = refuse_foreign(&mut connection, &place).await;
    if found.is_ok() && small(&path) {
        found = quick_check(&mut connection, &place).await;
    }
    let _ = connection.close().await;
    found
}

fn small(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.len() <= CHECK_AT_START_MAX)
}

/// What a store goes through before it is written to.
async fn prepare(connection: &mut SqliteConnection, dir: &Path, place: &Place, instance: &str) -> Result<Remembered, LogError> {
    // SQLite opens a write-protected file for reading and says nothing before the first write: ask it for one.
    let probe = connection.begin_with("BEGIN IMMEDIATE").await.map_err(|e| LogError::writing(place, e))?;
    probe.rollback().await.map_err(|e| LogError::writing(place, e))?;
    migrate::run(connection, place).await?;
    let mut remembered = Remembered::open(dir)?;
    end::check_end(connection, place, instance, remembered.read(instance)).await?;
    Ok(remembered)
}

/// Whose chain is to be read, in a store that can be.
async fn look(connection: &mut SqliteConnection, place: &Place, instance: Option<&str>, damaged: bool) -> Result<String, LogError> {
    if damaged {
        return end::whose(connection, place, instance).await;
    }
    refuse_foreign(connection, place).await?;
    end::readable(connection, place, instance).await
}

async fn connect_to_read(dir: &Path, damaged: bool) -> Result<(PathBuf, SqliteConnectOptions, SqliteConnection), LogError> {
    let path = files::database(dir);
    let place = Place::file(&path);
    if std::fs::metadata(&path).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        aside::refuse_beside(dir)?;
        return Err(LogError::Missing { place });
    }
    let options = options(&path, damaged).read_only(true);
    let tried = match options.clone().connect().await {
        Ok(mut connection) => readable(&mut connection).await.map(|()| connection),
        Err(error) => Err(error),
    };
    match tried {
        Ok(connection) => Ok((path, options, connection)),
        // A directory in which SQLite cannot make its shared-memory file. Without a write-ahead log nobody writes either.
        Err(error) if matches!(sqlite_code(&error), Some(8 | 14)) && !dir.join("medic.db-wal").exists() => {
            let options = options.immutable(true);
            let connection = options.clone().connect().await.map_err(|e| LogError::reading(&place, e))?;
            Ok((path, options, connection))
        }
        Err(error) => Err(LogError::reading(&place, error)),
    }
}

async fn readable(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT count(*) FROM sqlite_master").fetch_one(connection).await.map(drop)
}

/// A database that is not ours, or of a newer version, is left alone.
async fn refuse_foreign(connection: &mut SqliteConnection, place: &Place) -> Result<(), LogError> {
    let reading = |e| LogError::reading(place, e);
    let tables: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_master WHERE name NOT LIKE 'sqlite%'")
        .fetch_one(&mut *connection)
        .await
        .map_err(reading)?;
    if tables == 0 {
        return Ok(());
    }
    let ours: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_master WHERE name = '_sqlx_migrations'")
        .fetch_one(&mut *connection)
        .await
        .map_err(reading)?;
    if ours == 0 {
        return Err(LogError::Foreign { place: place.clone() });
    }
    end::version(connection, place).await.map(drop)
}

async fn quick_check(connection: &mut SqliteConnection, place: &Place) -> Result<(), LogError> {
    let found: String = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(connection).await.map_err(|e| LogError::reading(place, e))?;
    if found == "ok" { Ok(()) } else { Err(LogError::damaged(place, found.lines().collect::<Vec<_>>().join(" "))) }
}
