//! The files around the database: the directory, the lock, and the remembered head.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::error::Place;
use super::{Head, LogError, aside};

/// The database's name in the storage directory.
const DATABASE: &str = "medic.db";

pub(super) fn database(dir: &Path) -> PathBuf {
    dir.join(DATABASE)
}

fn unwritable(path: &Path) -> impl Fn(io::Error) -> LogError {
    move |source| LogError::Unwritable { place: Place::file(path), source: Box::new(source) }
}

/// Creates the directory (0700) where there is none. One that is there keeps its mode.
pub(super) fn make_dir(dir: &Path) -> Result<(), LogError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(unwritable(dir))
}

/// Takes `medic.lock`. The kernel lets go of it when the process ends, however it ends.
pub(super) fn lock(dir: &Path) -> Result<File, LogError> {
    let path = dir.join("medic.lock");
    let mut file = private(&path).map_err(unwritable(&path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = file.take(20).read_to_string(&mut pid);
            let pid = pid.trim();
            let by = (!pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit())).then(|| format!("process {pid}"));
            return Err(LogError::Held { place: Place::file(&database(dir)), by });
        }
        Err(TryLockError::Error(source)) => return Err(unwritable(&path)(source)),
    }
    // Only for the next one's error message: a full disk must not keep us from starting.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

pub(super) fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Makes the empty database file (0600) if there is none, so that SQLite gives its own files the same mode.
pub(super) fn make_database(dir: &Path) -> Result<(), LogError> {
    let path = database(dir);
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    // SQLite would throw a write-ahead log without its database away.
    for left in ["medic.db-wal", "medic.head"] {
        if std::fs::metadata(dir.join(left)).is_ok_and(|m| m.len() > 0) {
            return Err(LogError::damaged(&Place::file(&path), format!("the database is gone but {left} is still there")));
        }
    }
    aside::refuse_beside(dir)?;
    private(&path).map(drop).map_err(unwritable(&path))
}

/// Which file a path leads to, to notice one that was removed or replaced under us.
///
/// Never opens the database: closing any descriptor of it would drop SQLite's own locks (POSIX).
pub(super) fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::metadata(path).map(|m| (m.dev(), m.ino()))
}

/// `medic.head`: the last record that was appended, outside of SQLite. It shows that the database lost its end (a deleted or
/// damaged write-ahead log, a restored older copy). Written after each append, so it is never ahead of a whole store.
#[derive(Debug)]
pub(super) struct Remembered {
    file: File,
}

impl Remembered {
    pub(super) fn open(dir: &Path) -> Result<Self, LogError> {
        let path = dir.join("medic.head");
        private(&path).map(|file| Self { file }).map_err(unwritable(&path))
    }

    /// The head of this instance as remembered; `None` if nothing is, or the text makes no sense.
    pub(super) fn read(&mut self, instance: &str) -> Option<Head> {
        self.file.seek(SeekFrom::Start(0)).ok()?;
        let mut text = String::new();
        Read::by_ref(&mut self.file).take(4096).read_to_string(&mut text).ok()?;
        parse(&text).filter(|(of, _)| *of == instance).map(|(_, head)| head)
    }

    /// Not synced, and a failure is no failure of the append: an older head is only weaker, never wrong.
    pub(super) fn write(&mut self, instance: &str, head: &Head) {
        // Fixed width in front: a rewrite in place needs no new block, so a full disk does not stop it.
        let text = format!("{:020} {} {instance}\n", head.seq, head.hash);
        let written = self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.write_all(text.as_bytes()));
        let _ = written.and_then(|()| self.file.set_len(text.len() as u64));
    }
}

/// For readers beside the daemon: whose chain was written to last, and its head.
pub(super) fn remembered(dir: &Path) -> Option<(String, Head)> {
    let mut text = String::new();
    File::open(dir.join("medic.head")).ok()?.take(4096).read_to_string(&mut text).ok()?;
    parse(&text).map(|(of, head)| (of.to_owned(), head))
}

fn parse(text: &str) -> Option<(&str, Head)> {
    let (seq, rest) = text.strip_suffix('\n')?.split_once(' ')?;
    let (hash, of) = rest.split_once(' ').filter(|(hash, _)| hash.len() == 64)?;
    Some((of, Head { seq: seq.parse().ok()?, hash: hash.to_owned() }))
}
