//! Opening a store, and every reason not to.

use std::path::Path;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqlSafeStr};
use tokio::sync::Mutex;

use super::super::chain::{Fault, FaultKind};
use super::super::error::sqlite_code;
use super::super::files::{self, Remembered};
use super::super::{Head, LogError, sql};
use super::read::{head_of, row};
use super::{Store, Writer};

/// Every migration, oldest first. A released one is never changed; a new kind of record that an older version must not
/// overlook comes with a new migration.
const MIGRATIONS: [(i64, &str, &str); 1] = [(1, "attempt log", include_str!("../migrations/sqlite/0001_attempt_log.sql"))];

const NEWEST: i64 = 1;

/// Up to this size (bytes) the whole file is checked at each start: about 0.1 s. Above it, `Store::check_pages` does it later.
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
        let options = options(&path, false).journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
        inspect(dir).await?;
        let mut connection = options.clone().connect().await.map_err(|e| LogError::writing(&path, e))?;
        let remembered = match prepare(&mut connection, dir, &path, instance).await {
            Ok(remembered) => remembered,
            Err(error) => {
                // Not just dropped: that would end later, under the next try.
                let _ = connection.close().await;
                return Err(error);
            }
        };
        Ok(Self {
            identity: files::identity(&path).ok(),
            readers: readers(options.clone().read_only(true)),
            instance: instance.to_owned(),
            options,
            writer: Some(Mutex::new(Writer { connection: Some(connection), remembered: Some(remembered) })),
            path,
            _lock: Some(lock),
        })
    }

    /// Opens the store for reading, also beside a running daemon. `instance` may be left out where the store has only one.
    pub async fn open_read_only(dir: &Path, instance: Option<&str>) -> Result<Self, LogError> {
        Self::open_to_read(dir, instance, false).await
    }

    /// Opens a store that may be damaged, to verify it: what can still be read is.
    pub async fn open_to_verify(dir: &Path, instance: Option<&str>) -> Result<Self, LogError> {
        let opened = Self::open_to_read(dir, instance, true).await;
        let hidden = match &opened {
            Ok(store) => store.instance.is_empty(),
            Err(error) => matches!(error, LogError::Damaged { .. }),
        };
        // Even whose chain it is may be unreadable: beside the database that is remembered too.
        let remembered = files::remembered(dir).map(|(of, _)| of).filter(|of| hidden && instance.is_none_or(|wanted| wanted == of));
        match remembered {
            Some(of) => {
                let path = files::database(dir);
                let options = options(&path, true).read_only(true);
                Ok(Self::for_reading(&path, of, options))
            }
            None => opened,
        }
    }

    async fn open_to_read(dir: &Path, instance: Option<&str>, damaged: bool) -> Result<Self, LogError> {
        let (path, options, mut connection) = connect_to_read(dir, damaged).await?;
        let instance = look(&mut connection, &path, instance, damaged).await;
        let _ = connection.close().await;
        Ok(Self::for_reading(&path, instance?, options))
    }

    fn for_reading(path: &Path, instance: String, options: SqliteConnectOptions) -> Self {
        Self { identity: None, readers: readers(options.clone()), instance, options, writer: None, path: path.to_owned(), _lock: None }
    }

    /// Looks at every page of the file (SQLite's `quick_check`): about 2 s per GB. Smaller files are checked at each start.
    pub async fn check_pages(&self) -> Result<(), LogError> {
        let mut connection = self.readers.acquire().await.map_err(|e| LogError::reading(&self.path, e))?;
        quick_check(&mut connection, &self.path).await
    }

    /// Closes every connection and lets go of the lock. Dropping the store does the same, a moment later.
    pub async fn close(self) {
        self.readers.close().await;
        if let Some(writer) = &self.writer
            && let Some(connection) = writer.lock().await.connection.take()
        {
            let _ = connection.close().await;
        }
    }

    /// A new connection for writing, in place of one that failed.
    pub(super) async fn reconnect(&self) -> Result<SqliteConnection, LogError> {
        self.options.clone().connect().await.map_err(|e| LogError::writing(&self.path, e))
    }
}

/// Looks at a store without the right to change it: even the setting that a writer begins with is written to the file.
async fn inspect(dir: &Path) -> Result<(), LogError> {
    let (path, _, mut connection) = connect_to_read(dir, false).await?;
    let mut found = refuse_foreign(&mut connection, &path).await;
    if found.is_ok() && std::fs::metadata(&path).is_ok_and(|m| m.len() <= CHECK_AT_START_MAX) {
        found = quick_check(&mut connection, &path).await;
    }
    let _ = connection.close().await;
    found
}

/// What a store goes through before it is written to.
async fn prepare(connection: &mut SqliteConnection, dir: &Path, path: &Path, instance: &str) -> Result<Remembered, LogError> {
    // SQLite opens a write-protected file for reading and says nothing before the first write: ask it for one.
    let probe = connection.begin_with("BEGIN IMMEDIATE").await.map_err(|e| LogError::writing(path, e))?;
    probe.rollback().await.map_err(|e| LogError::writing(path, e))?;
    migrate(connection, path).await?;
    let mut remembered = Remembered::open(dir)?;
    check_end(connection, path, instance, remembered.read(instance)).await?;
    Ok(remembered)
}

/// Whose chain is to be read, in a store that can be.
async fn look(connection: &mut SqliteConnection, path: &Path, instance: Option<&str>, damaged: bool) -> Result<String, LogError> {
    if !damaged {
        refuse_foreign(connection, path).await?;
        if newest_migration(connection).await.map_err(|e| LogError::reading(path, e))? < NEWEST {
            return Err(LogError::Older { path: path.to_owned() });
        }
    }
    match instance {
        Some(instance) => Ok(instance.to_owned()),
        None => only_instance(connection, path).await,
    }
}

async fn connect_to_read(dir: &Path, damaged: bool) -> Result<(std::path::PathBuf, SqliteConnectOptions, SqliteConnection), LogError> {
    let path = files::database(dir);
    if std::fs::metadata(&path).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        return Err(LogError::Missing { path });
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
            let connection = options.clone().connect().await.map_err(|e| LogError::reading(&path, e))?;
            Ok((path, options, connection))
        }
        Err(error) => Err(LogError::reading(&path, error)),
    }
}

async fn readable(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT count(*) FROM sqlite_master").fetch_one(connection).await.map(drop)
}

/// A database that is not ours, or of a newer version, is left alone.
async fn refuse_foreign(connection: &mut SqliteConnection, path: &Path) -> Result<(), LogError> {
    let reading = |e| LogError::reading(path, e);
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
        return Err(LogError::damaged(path, "it is a database of another program"));
    }
    match newest_migration(connection).await.map_err(reading)? {
        version if version > NEWEST => Err(LogError::Newer { path: path.to_owned(), version }),
        _ => Ok(()),
    }
}

/// 0 for a store without any.
async fn newest_migration(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    let newest = sqlx::query_scalar::<_, Option<i64>>("SELECT MAX(version) FROM _sqlx_migrations").fetch_one(connection).await;
    newest.map(Option::unwrap_or_default)
}

async fn migrate(connection: &mut SqliteConnection, path: &Path) -> Result<(), LogError> {
    let migration = |(version, what, sql): (i64, &'static str, &'static str)| {
        Migration::new(version, what.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    let migrator = Migrator::with_migrations(MIGRATIONS.into_iter().map(migration).collect());
    let Err(error) = migrator.run_direct(None, connection, false).await else { return Ok(()) };
    if let MigrateError::VersionMismatch(version) | MigrateError::Dirty(version) = error {
        return Err(LogError::damaged(path, format!("its tables are not those of migration {version}")));
    }
    if let MigrateError::Execute(e) | MigrateError::ExecuteMigration(e, _) = error {
        return Err(LogError::writing(path, e));
    }
    Err(LogError::Unwritable { path: path.to_owned(), source: Box::new(error) })
}

async fn quick_check(connection: &mut SqliteConnection, path: &Path) -> Result<(), LogError> {
    let found: String = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(connection).await.map_err(|e| LogError::reading(path, e))?;
    if found == "ok" { Ok(()) } else { Err(LogError::damaged(path, found.lines().collect::<Vec<_>>().join(" "))) }
}

/// The end of the chain must be what it was when it was last written: a lost end may have held an attempt under way.
async fn check_end(connection: &mut SqliteConnection, path: &Path, instance: &str, remembered: Option<Head>) -> Result<(), LogError> {
    let reading = |e| LogError::reading(path, e);
    let broken =
        |seq, kind, detail: &str| Err(LogError::Broken { path: path.to_owned(), fault: Fault { seq, kind, detail: detail.to_owned() } });
    let head = head_of(connection, instance).await.map_err(reading)?;
    let last = sqlx::query(sql::LAST).bind(instance).fetch_optional(&mut *connection).await.map_err(reading)?.map(|r| row(&r));
    match (&head, &last) {
        (None, None) => {}
        (Some(head), Some(last)) if head.seq == last.seq && head.hash == last.hash => {
            if !last.is_intact() {
                return Err(LogError::Broken { path: path.to_owned(), fault: last.altered() });
            }
        }
        (Some(head), _) if last.as_ref().is_none_or(|last| last.seq < head.seq) => {
            return broken(last.map_or(1, |l| l.seq + 1), FaultKind::Missing, "the log once reached further");
        }
        (_, last) => return broken(last.as_ref().map_or(1, |l| l.seq), FaultKind::Altered, "it is not the record that was last written"),
    }
    let Some(remembered) = remembered else { return Ok(()) };
    let reached = head.map_or(0, |h| h.seq);
    if remembered.seq > reached {
        let detail = "medic.head remembers a later record: was medic.db-wal deleted, or an older copy restored? Remove medic.head to go on without what is lost";
        return broken(reached + 1, FaultKind::Missing, detail);
    }
    let at = i64::try_from(remembered.seq).unwrap_or(i64::MAX);
    let hash: Option<String> =
        sqlx::query_scalar(sql::HASH_AT).bind(instance).bind(at).fetch_optional(connection).await.map_err(reading)?;
    match hash {
        Some(hash) if hash != remembered.hash => {
            broken(remembered.seq, FaultKind::Altered, "medic.head remembers another record; remove medic.head if this is wanted")
        }
        _ => Ok(()),
    }
}

async fn only_instance(connection: &mut SqliteConnection, path: &Path) -> Result<String, LogError> {
    let mut instances: Vec<String> =
        sqlx::query_scalar(sql::INSTANCES).fetch_all(connection).await.map_err(|e| LogError::reading(path, e))?;
    match instances.len() {
        0 => Ok(String::new()),
        1 => Ok(instances.remove(0)),
        _ => Err(LogError::WhichInstance { path: path.to_owned(), instances }),
    }
}
