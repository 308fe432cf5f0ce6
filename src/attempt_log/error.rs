//! What can be wrong with the store, where, and what to do about it.

use std::fmt;
use std::path::{Path, PathBuf};

use super::chain::Fault;

/// Where a store is, as errors name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The database file.
    File(PathBuf),
    /// A server and its database, without credentials.
    Server(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Server(name) => f.pad(name),
        }
    }
}

impl Place {
    pub(super) fn file(path: &Path) -> Self {
        Self::File(path.to_owned())
    }

    const fn unwritable(&self) -> &'static str {
        match self {
            Self::File(_) => "free space and permissions there decide",
            Self::Server(_) => "whether it runs, lets us in and may be written decides",
        }
    }

    const fn damaged(&self) -> &'static str {
        match self {
            Self::File(_) => "the daemon keeps it aside when it starts, and goes on with a backup, or when a person lets it begin anew",
            Self::Server(_) => "restore a backup, or start with an empty database",
        }
    }

    const fn apart(&self) -> &'static str {
        match self {
            Self::File(_) => "give this one its own --storage.path",
            Self::Server(_) => "give this one its own hangar.instance",
        }
    }
}

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Every way in which the attempt log fails. Nothing is ever overwritten to get around one.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Nothing was written. The same write may succeed later.
    #[error("cannot write the attempt log {place}: {}; no action is taken meanwhile", place.unwritable())]
    Unwritable { place: Place, source: Source },
    #[error("cannot read the attempt log {place}")]
    Unreadable { place: Place, source: Source },
    #[error("the attempt log {place} is damaged: {what}; nothing in it was changed; {}", place.damaged())]
    Damaged {
        place: Place,
        what: String,
        #[source]
        source: Option<Source>,
    },
    /// A database that never was ours: it is left alone, wherever it is.
    #[error("{place} is a database of another program; nothing in it was changed; give another --storage.path")]
    Foreign { place: Place },
    /// See [`super::Store::keep_aside`].
    #[error(
        "the attempt log was damaged and is kept aside in {}: nothing acts until a backup is put at {place}, or \
         `hangar-medic attempts begin-anew` begins an empty one ({why})",
        aside.display()
    )]
    KeptAside { place: Place, aside: PathBuf, why: String },
    #[error("no empty attempt log is begun at {place}: {why}")]
    NotAside { place: Place, why: &'static str },
    #[error("the attempt log {place} was written by a newer version (migration {version}); nothing in it was changed; run that version")]
    Newer { place: Place, version: i64 },
    #[error("the attempt log {place} is of an older version; start the daemon once, it brings the log up to date")]
    Older { place: Place },
    #[error("the attempt log {place} is held by another running hangar-medic{}; stop that one, or {}", of_holder(by.as_deref()), place.apart())]
    Held { place: Place, by: Option<String> },
    #[error("there is no attempt log at {place}")]
    Missing { place: Place },
    #[error("the attempt log {place} was opened for reading only")]
    ReadOnly { place: Place },
    #[error("the attempt log {place} holds the chains of several instances ({}); name one", instances.join(", "))]
    WhichInstance { place: Place, instances: Vec<String> },
    /// The chain does not hold. `attempts verify` tells more.
    #[error("the attempt log {place} cannot be trusted: {fault}")]
    Broken { place: Place, fault: Fault },
    #[error("record {seq} of the attempt log {place} cannot be read by this version; run the version that wrote it")]
    UnknownRecord { place: Place, seq: u64, source: Source },
    /// Somebody wrote to the chain since its history was read. Once it is read again the same call may succeed.
    #[error("the attempt log {place} went on to record {seq} without this process; its history must be read again")]
    Overtaken { place: Place, seq: u64 },
    #[error("cannot write the export")]
    Export(#[source] std::io::Error),
}

fn of_holder(by: Option<&str>) -> String {
    by.map_or_else(String::new, |by| format!(" ({by})"))
}

impl LogError {
    /// Whether the same call may succeed later without anybody's help.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::Unwritable { .. } | Self::Unreadable { .. } | Self::Held { .. } | Self::Overtaken { .. })
    }

    /// Whether what was written is no longer what is there.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Broken { .. })
    }

    pub(super) fn writing(place: &Place, source: sqlx::Error) -> Self {
        Self::damage(place, source).unwrap_or_else(|source| Self::Unwritable { place: place.clone(), source: Box::new(source) })
    }

    pub(super) fn reading(place: &Place, source: sqlx::Error) -> Self {
        Self::damage(place, source).unwrap_or_else(|source| Self::Unreadable { place: place.clone(), source: Box::new(source) })
    }

    pub(super) fn damaged(place: &Place, what: impl Into<String>) -> Self {
        Self::Damaged { place: place.clone(), what: what.into(), source: None }
    }

    fn damage(place: &Place, source: sqlx::Error) -> Result<Self, sqlx::Error> {
        let what = match (sqlite_code(&source), postgres_code(&source).as_deref()) {
            (Some(1), _) if source.to_string().contains("no such table") => "its tables are gone",
            (Some(11), _) => "its pages do not fit together",
            (Some(26), _) => "it is not a SQLite file",
            // undefined_table
            (_, Some("42P01")) => "its tables are gone",
            // data_corrupted, index_corrupted
            (_, Some("XX001" | "XX002")) => "its pages do not fit together",
            _ => return Err(source),
        };
        Ok(Self::Damaged { place: place.clone(), what: what.to_owned(), source: Some(Box::new(source)) })
    }
}

/// SQLite's primary result code (<https://www.sqlite.org/rescode.html>), if that is what failed.
pub(super) fn sqlite_code(error: &sqlx::Error) -> Option<u32> {
    let error = error.as_database_error()?.try_downcast_ref::<sqlx::sqlite::SqliteError>()?;
    let code: u32 = sqlx::error::DatabaseError::code(error)?.parse().ok()?;
    Some(code & 0xff)
}

/// PostgreSQL's SQLSTATE (<https://www.postgresql.org/docs/current/errcodes-appendix.html>), if that is what failed.
pub(super) fn postgres_code(error: &sqlx::Error) -> Option<String> {
    let error = error.as_database_error()?.try_downcast_ref::<sqlx::postgres::PgDatabaseError>()?;
    Some(error.code().to_owned())
}
