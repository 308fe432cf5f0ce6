//! The two places that a log can be in. What holds for both is written once, for any [`Home`].

use std::path::Path;

use hangar_medic::attempt_log::{AttemptLog, Checkpoints, LogError, Shared, Store};
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use super::INSTANCE;
use crate::support::Postgres;

/// A place for the logs of one test.
pub trait Home {
    type Log: AttemptLog + Checkpoints + std::fmt::Debug;

    fn new() -> Self;
    async fn try_open(&self, instance: &str) -> Result<Self::Log, LogError>;
    async fn read_only(&self, instance: Option<&str>) -> Result<Self::Log, LogError>;
    async fn to_verify(&self, instance: &str) -> Self::Log;
    async fn close(log: Self::Log);
    async fn rebuild_index(log: &Self::Log);
    /// The database behind the store's back.
    async fn tamper(&self, statements: &str);

    async fn open(&self) -> Self::Log {
        self.try_open(INSTANCE).await.unwrap()
    }
}

/// A SQLite file.
pub struct File(pub tempfile::TempDir);

impl Home for File {
    type Log = Store;

    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    async fn try_open(&self, instance: &str) -> Result<Store, LogError> {
        Store::open(self.0.path(), instance).await
    }

    async fn read_only(&self, instance: Option<&str>) -> Result<Store, LogError> {
        Store::open_read_only(self.0.path(), instance).await
    }

    async fn to_verify(&self, instance: &str) -> Store {
        Store::open_to_verify(self.0.path(), Some(instance)).await.unwrap()
    }

    async fn close(log: Store) {
        log.close().await;
    }

    async fn rebuild_index(log: &Store) {
        log.rebuild_index().await.unwrap();
    }

    async fn tamper(&self, statements: &str) {
        tamper(self.0.path(), statements).await;
    }
}

/// A SQLite database behind the store's back.
pub async fn tamper(dir: &Path, statements: &str) {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(dir.join("medic.db"));
    let mut db: SqliteConnection = options.connect().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(statements.to_owned())).execute(&mut db).await.unwrap();
    db.close().await.unwrap();
}

/// A PostgreSQL server.
pub struct Server(pub Postgres);

impl Home for Server {
    type Log = Shared;

    fn new() -> Self {
        Self(Postgres::start())
    }

    async fn try_open(&self, instance: &str) -> Result<Shared, LogError> {
        Shared::open(&self.0.settings(), instance).await
    }

    async fn read_only(&self, instance: Option<&str>) -> Result<Shared, LogError> {
        Shared::open_read_only(&self.0.settings(), instance).await
    }

    async fn to_verify(&self, instance: &str) -> Shared {
        self.read_only(Some(instance)).await.unwrap()
    }

    async fn close(log: Shared) {
        log.close().await;
    }

    async fn rebuild_index(log: &Shared) {
        log.rebuild_index().await.unwrap();
    }

    async fn tamper(&self, statements: &str) {
        self.0.execute("fleet", &format!("SET search_path = hangar_medic; {statements}"));
    }
}

/// Makes a test of each of these for each home.
macro_rules! on_both {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(#[test] fn $case() { crate::attempt_log::run(super::$case::<crate::attempt_log::homes::File>()); })*
        }
        mod postgres {
            $(#[test] fn $case() { crate::attempt_log::run(super::$case::<crate::attempt_log::homes::Server>()); })*
        }
    };
}
pub(super) use on_both;
