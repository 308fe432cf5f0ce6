//! What can be wrong with the store, where, and what to do about it.

use std::path::{Path, PathBuf};

use super::chain::Fault;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Every way in which the attempt log fails. Nothing is ever overwritten to get around one.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Nothing was written. The same write may succeed later.
    #[error("cannot write the attempt log {}: free space and permissions there decide; no action is taken meanwhile", path.display())]
    Unwritable { path: PathBuf, source: Source },
    #[error("cannot read the attempt log {}", path.display())]
    Unreadable { path: PathBuf, source: Source },
    #[error("the attempt log {} is damaged: {what}; nothing in it was changed; move its directory aside and restore a backup, or start with an empty one", path.display())]
    Damaged {
        path: PathBuf,
        what: String,
        #[source]
        source: Option<Source>,
    },
    #[error("the attempt log {} was written by a newer version (migration {version}); nothing in it was changed; run that version", path.display())]
    Newer { path: PathBuf, version: i64 },
    #[error("the attempt log {} is of an older version; start the daemon once, it brings the log up to date", path.display())]
    Older { path: PathBuf },
    #[error("the attempt log {} is held by another running hangar-medic{}; stop that one, or give this one its own --storage.path", path.display(), of_process(pid.as_deref()))]
    Held { path: PathBuf, pid: Option<String> },
    #[error("there is no attempt log at {}", path.display())]
    Missing { path: PathBuf },
    #[error("the attempt log {} was opened for reading only", path.display())]
    ReadOnly { path: PathBuf },
    #[error("the attempt log {} holds the chains of several instances ({}); name one", path.display(), instances.join(", "))]
    WhichInstance { path: PathBuf, instances: Vec<String> },
    /// The chain does not hold. `attempts verify` tells more.
    #[error("the attempt log {} cannot be trusted: {fault}", path.display())]
    Broken { path: PathBuf, fault: Fault },
    #[error("record {seq} of the attempt log {} cannot be read by this version; run the version that wrote it", path.display())]
    UnknownRecord { path: PathBuf, seq: u64, source: Source },
    #[error("cannot write the export")]
    Export(#[source] std::io::Error),
}

fn of_process(pid: Option<&str>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

impl LogError {
    /// Whether the same call may succeed later without anybody's help.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::Unwritable { .. } | Self::Unreadable { .. } | Self::Held { .. })
    }

    pub(super) fn writing(path: &Path, source: sqlx::Error) -> Self {
        Self::damage(path, source).unwrap_or_else(|source| Self::Unwritable { path: path.to_owned(), source: Box::new(source) })
    }

    pub(super) fn reading(path: &Path, source: sqlx::Error) -> Self {
        Self::damage(path, source).unwrap_or_else(|source| Self::Unreadable { path: path.to_owned(), source: Box::new(source) })
    }

    pub(super) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into(), source: None }
    }

    fn damage(path: &Path, source: sqlx::Error) -> Result<Self, sqlx::Error> {
        let what = match sqlite_code(&source) {
            Some(1) if source.to_string().contains("no such table") => "its tables are gone",
            Some(11) => "its pages do not fit together",
            Some(26) => "it is not a SQLite file",
            _ => return Err(source),
        };
        Ok(Self::Damaged { path: path.to_owned(), what: what.to_owned(), source: Some(Box::new(source)) })
    }
}

/// SQLite's primary result code (<https://www.sqlite.org/rescode.html>), if that is what failed.
pub(super) fn sqlite_code(error: &sqlx::Error) -> Option<u32> {
    let code: u32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}
