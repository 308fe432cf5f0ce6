//! Connecting, and every reason not to.

use std::str::FromStr;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Connection};

use super::super::LogError;
use super::super::driver::{Link, args, first};
use super::super::error::Place;
use super::super::migrate::{self, NEWEST};
use super::super::tables::end;
use super::super::tables::read::{number, text};
use super::{CONNECT_MAX, STATEMENT_MAX, Server, Shared, too_slow};
use crate::config::Postgres;

/// Connections that read, at once. One more writes, and one more may hold the fleet lock.
const READERS_MAX: u32 = 3;

/// All tables are in this schema, so that the database may be Hangar's own.
const HAS_TABLES: &str = "SELECT count(*) FROM pg_tables WHERE schemaname = 'hangar_medic' AND tablename = '_sqlx_migrations'";
const HAS_SCHEMA: &str = "SELECT count(*) FROM pg_namespace WHERE nspname = 'hangar_medic'";
const MAKE_SCHEMA: &str = "CREATE SCHEMA hangar_medic";
const MAKING: &str = "SELECT pg_advisory_lock(hashtextextended('hangar-medic/tables', 0))";
const MADE: &str = "SELECT pg_advisory_unlock(hashtextextended('hangar-medic/tables', 0))";

/// Two names with one hash are two instances that cannot write at once: never two writers of one chain.
pub(super) const TRY_LOCK: &str = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))::int::bigint";
pub(super) const HOLDER: &str = "SELECT 'backend ' || l.pid || coalesce(' from ' || host(a.client_addr), '') FROM pg_locks l \
     LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 \
     AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
     AND ((l.classid::bigint << 32) | l.objid::bigint) = hashtextextended($1, 0) LIMIT 1";

impl Shared {
    /// Opens the chain of one instance on the server, and makes the tables if there are none yet.
    ///
    /// Nobody else writes to this chain while the store lives: of two medics of one instance the second is refused. Changes
    /// nothing in a store that is damaged, newer, or held.
    pub async fn open(postgres: &Postgres, instance: &str) -> Result<Self, LogError> {
        let place = place(postgres);
        let mut link = claim(postgres, &place, instance).await?;
        make_tables(&mut link, &place).await?;
        end::check_end(&mut link, &place, instance, None).await?;
        Ok(Self::new(server(postgres, place)?, instance, Some(link)))
    }

    /// Opens the store for reading. `instance` may be left out where the store has only one.
    pub async fn open_read_only(postgres: &Postgres, instance: Option<&str>) -> Result<Self, LogError> {
        let place = place(postgres);
        let mut link = connect(postgres, &place).await?;
        let instance = match has_tables(&mut link, &place).await {
            Ok(true) => end::readable(&mut link, &place, instance).await,
            Ok(false) => Err(LogError::Missing { place: place.clone() }),
            Err(error) => Err(error),
        };
        let _ = link.close().await;
        let instance = instance?;
        Ok(Self::new(server(postgres, place)?, &instance, None))
    }

    /// Closes every connection, and with the one that writes lets go of the chain. Dropping the store does the same, a moment later.
    pub async fn close(self) {
        self.driver.readers.close().await;
        if let Some(writer) = &self.writer
            && let Some(connection) = writer.lock().await.connection.take()
        {
            let _ = connection.close().await;
        }
    }
}

fn server(postgres: &Postgres, place: Place) -> Result<Server, LogError> {
    let options = options(postgres).map_err(|source| LogError::Unreadable { place: place.clone(), source })?;
    Ok(Server { readers: readers(options), postgres: postgres.clone(), place })
}

fn readers(options: PgConnectOptions) -> PgPool {
    PgPoolOptions::new()
        .max_connections(READERS_MAX)
        .min_connections(0)
        .idle_timeout(std::time::Duration::from_secs(30))
        .acquire_timeout(CONNECT_MAX)
        .connect_lazy_with(options)
}

/// How the server is named: without user, password and parameters.
pub(super) fn place(postgres: &Postgres) -> Place {
    let name = postgres.address().ok().map(|(url, _)| {
        let host = url.host_str().filter(|h| !h.is_empty()).unwrap_or("local");
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!("postgres://{host}{port}{}", url.path())
    });
    Place::Server(name.unwrap_or_else(|| "of storage.postgres".to_owned()))
}

/// Every session: our schema alone, durable writes, and no wait without an end.
pub(super) fn options(postgres: &Postgres) -> Result<PgConnectOptions, Box<dyn std::error::Error + Send + Sync>> {
    let (url, password) = postgres.address()?;
    let mut options = PgConnectOptions::from_str(url.as_str())?;
    if let Some(password) = password {
        options = options.password(password.expose());
    }
    let statement_timeout = STATEMENT_MAX.as_millis().to_string();
    let options = options.application_name("hangar-medic").options([
        ("search_path", "hangar_medic"),
        ("statement_timeout", &statement_timeout),
        ("idle_in_transaction_session_timeout", "60s"),
        ("synchronous_commit", "on"),
        ("default_transaction_isolation", "read committed"),
        // The server must notice that we are gone: until then the chain is held.
        ("tcp_keepalives_idle", "10"),
        ("tcp_keepalives_interval", "5"),
        ("tcp_keepalives_count", "3"),
    ]);
    Ok(options.disable_statement_logging())
}

/// A new connection, made within 5 s.
pub(super) async fn connect(postgres: &Postgres, place: &Place) -> Result<PgConnection, LogError> {
    let options = options(postgres).map_err(|source| LogError::Unwritable { place: place.clone(), source })?;
    let connected = tokio::time::timeout(CONNECT_MAX, options.connect()).await.map_err(too_slow);
    connected.and_then(|connected| connected).map_err(|e| LogError::writing(place, e))
}

/// A connection that holds the chain of `instance` for as long as it lives.
pub(super) async fn claim(postgres: &Postgres, place: &Place, instance: &str) -> Result<PgConnection, LogError> {
    let mut link = connect(postgres, place).await?;
    let (key, writing) = (format!("hangar-medic/chain/{instance}"), |e| LogError::writing(place, e));
    if number(&mut link, TRY_LOCK, args![&key]).await.map_err(writing)? == Some(1) {
        return Ok(link);
    }
    let holder = first(&mut link, HOLDER, args![&key]).await.map_err(writing)?;
    let _ = link.close().await;
    Err(LogError::Held { place: place.clone(), by: holder.map(|row| text(&row, 0)) })
}

async fn has_tables(link: &mut PgConnection, place: &Place) -> Result<bool, LogError> {
    Ok(number(link, HAS_TABLES, args![]).await.map_err(|e| LogError::reading(place, e))? == Some(1))
}

/// Makes the tables, or brings them up to date. Asks for no right that it does not need: a role that may only write does
/// where the tables are there.
async fn make_tables(link: &mut PgConnection, place: &Place) -> Result<(), LogError> {
    let writing = |e| LogError::writing(place, e);
    // Two medics may start at once on an empty database.
    link.run(MAKING, args![]).await.map_err(writing)?;
    let made = async {
        if has_tables(link, place).await? && end::version(link, place).await? == NEWEST {
            return Ok(());
        }
        if number(link, HAS_SCHEMA, args![]).await.map_err(writing)? == Some(0) {
            link.run(MAKE_SCHEMA, args![]).await.map_err(writing)?;
        }
        tokio::time::timeout(STATEMENT_MAX, migrate::run(link, place)).await.map_err(|e| writing(too_slow(e)))?
    };
    let made = made.await;
    link.run(MADE, args![]).await.map_err(writing)?;
    made
}
