//! The tables, the same in both databases.

use sqlx::SqlSafeStr;
use sqlx::migrate::{Migrate, MigrateError, Migration, MigrationType, Migrator};

use super::LogError;
use super::error::Place;

/// Every migration, oldest first. A released one is never changed; a new kind of record that an older version must not
/// overlook comes with a new migration.
const MIGRATIONS: [(i64, &str, &str); 2] = [
    (1, "attempt log", include_str!("migrations/0001_attempt_log.sql")),
    (2, "fleet lock", include_str!("migrations/0002_fleet_lock.sql")),
];

/// The version of a store that is up to date.
pub(super) const NEWEST: i64 = 2;

/// The version of a store; 0 for one without any tables of ours yet.
pub(super) const VERSION: &str = "SELECT MAX(version) FROM _sqlx_migrations";

/// Brings the tables up to date.
pub(super) async fn run(connection: &mut impl Migrate, place: &Place) -> Result<(), LogError> {
    let migration = |(version, what, sql): (i64, &'static str, &'static str)| {
        Migration::new(version, what.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    let migrator = Migrator::with_migrations(MIGRATIONS.into_iter().map(migration).collect());
    let Err(error) = migrator.run_direct(None, connection, false).await else { return Ok(()) };
    if let MigrateError::VersionMismatch(version) | MigrateError::Dirty(version) = error {
        return Err(LogError::damaged(place, format!("its tables are not those of migration {version}")));
    }
    if let MigrateError::Execute(e) | MigrateError::ExecuteMigration(e, _) = error {
        return Err(LogError::writing(place, e));
    }
    Err(LogError::Unwritable { place: place.clone(), source: Box::new(error) })
}
