//! A damaged store is kept aside, whole, under a name that tells when; nothing is begun in its place unless a person says so.
//!
//! What brakes, hold orders and budgets rest on is in that store: an empty one in its place would act as if nothing was known.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::error::Place;
use super::files::{self, database, identity};
use super::{LogError, Store};

/// Each is a directory, so that a write-ahead log keeps its name and `attempts verify --storage.path` reads what is left.
const PREFIX: &str = "medic.db.damaged-";
/// What goes there. The database first: without it nothing begins, whatever a death in between leaves behind.
const FILES: [&str; 4] = ["medic.db", "medic.db-wal", "medic.head", "medic.db-shm"];
/// Why, in the words of the error.
const WHY: &str = "why.txt";
/// With so many there the next one stays where it is.
pub const KEPT_MAX: usize = 10;

/// What is kept aside in a storage directory, oldest first.
#[must_use]
pub fn kept_aside(dir: &Path) -> Vec<PathBuf> {
    let named = |entry: fs::DirEntry| entry.file_name().to_str().is_some_and(|n| n.starts_with(PREFIX)).then(|| entry.path());
    let mut kept: Vec<PathBuf> = fs::read_dir(dir).into_iter().flatten().flatten().filter_map(named).collect();
    kept.sort();
    kept
}

/// The error of a directory that has no store, because its store is kept aside.
pub(super) fn refuse_beside(dir: &Path) -> Result<(), LogError> {
    let Some(aside) = kept_aside(dir).pop() else { return Ok(()) };
    let why = fs::read_to_string(aside.join(WHY)).ok();
    let why = why.map_or_else(|| "it was damaged".to_owned(), |text| text.trim().chars().take(2000).collect());
    Err(LogError::KeptAside { place: Place::file(&database(dir)), aside, why })
}

impl Store {
    /// Moves the store in `dir` into a directory of its own beside it, and answers with the error that says so.
    ///
    /// Nothing is overwritten and nothing is copied. Where it cannot be moved it stays, and `damage` is the answer.
    #[must_use]
    pub fn keep_aside(dir: &Path, damage: LogError, now: Timestamp) -> LogError {
        // Held by another medic: it is not ours to move.
        let _lock = match files::lock(dir) {
            Ok(lock) => lock,
            Err(held) => return held,
        };
        match move_files(dir, &damage, now) {
            Ok(()) => refuse_beside(dir).err().unwrap_or(damage),
            Err(error) => {
                tracing::warn!(%error, "the damaged attempt log cannot be kept aside: it stays where it is");
                damage
            }
        }
    }

    /// Makes an empty store in the place of one that is kept aside: its orders, budgets and attempts are unknown from then on.
    ///
    /// # Errors
    /// There is a store, or none is kept aside.
    pub fn begin_anew(dir: &Path) -> Result<PathBuf, LogError> {
        let _lock = files::lock(dir)?;
        let path = database(dir);
        let place = Place::file(&path);
        if path.symlink_metadata().is_ok() {
            return Err(LogError::NotAside { place, why: "there is one at that place" });
        }
        let Some(aside) = kept_aside(dir).pop() else {
            return Err(LogError::NotAside { place, why: "none is kept aside; the first run makes one by itself" });
        };
        files::private(&path).map(drop).map_err(|source| LogError::Unwritable { place, source: Box::new(source) })?;
        // Whoever says so may be root: the file is for the daemon.
        if let Ok(owner) = fs::metadata(dir) {
            for file in [path, dir.join("medic.lock")] {
                let _ = std::os::unix::fs::chown(file, Some(owner.uid()), Some(owner.gid()));
            }
        }
        Ok(aside)
    }
}

fn move_files(dir: &Path, damage: &LogError, now: Timestamp) -> io::Result<()> {
    if kept_aside(dir).len() >= KEPT_MAX {
        return Err(io::Error::other(format!("{KEPT_MAX} are kept aside already: take some of them away")));
    }
    if database(dir).is_symlink() {
        return Err(io::Error::other("it is a symbolic link"));
    }
    if FILES.iter().all(|file| identity(&dir.join(file)).is_err()) {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    let aside = make_aside(dir, now)?;
    let why = if let LogError::Damaged { what, .. } = damage { what.clone() } else { crate::hangar::fault::chain(damage) };
    // It only tells: a full disk must not keep the store where it is.
    let _ = File::options().write(true).create_new(true).mode(0o600).open(aside.join(WHY)).and_then(|mut f| writeln!(f, "{why}"));
    for file in FILES {
        match fs::rename(dir.join(file), aside.join(file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    for changed in [aside.as_path(), dir] {
        File::open(changed).and_then(|dir| dir.sync_all())?;
    }
    Ok(())
}

/// A new directory, never one that is there.
fn make_aside(dir: &Path, now: Timestamp) -> io::Result<PathBuf> {
    let name = format!("{PREFIX}{}", now.strftime("%Y%m%dT%H%M%SZ"));
    let mut made = Err(io::Error::from(io::ErrorKind::AlreadyExists));
    for n in 0..KEPT_MAX {
        let path = dir.join(if n == 0 { name.clone() } else { format!("{name}.{n}") });
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => made = Err(error),
            Err(error) => return Err(error),
        }
    }
    made
}
