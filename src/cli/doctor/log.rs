//! Hangar's log: the right file, readable, in a form that is understood, and still written to.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::Check;
use crate::observe::log::{Frames, Inner, InputFormat};

const CHECK: &str = "log_file";
/// Read of the file's end.
const TAIL: u64 = 256 * 1024;
/// Files next to the log and processes that are looked at, at most.
const LOOK_MAX: usize = 4096;
const ROTATE: &str =
    "Hangar writes on to the old file after a rename: rotate with copytruncate (logrotate), or restart Hangar after a rotation";

/// The log as it was before Hangar was asked anything.
pub(super) struct Watched {
    path: Option<PathBuf>,
    before: Option<u64>,
}

impl Watched {
    pub(super) fn new(path: Option<&Path>) -> Self {
        Self { path: path.map(Path::to_owned), before: path.and_then(|p| fs::metadata(p).ok()).map(|m| m.len()) }
    }
}

/// Judges it. `asked`: Hangar was asked something that it logs, since the log was looked at first.
pub(super) async fn judge(watched: Watched, asked: Option<bool>) -> Check {
    let Some(path) = watched.path else {
        return Check::skip(CHECK, "hangar.log_file is not set: the reason of a death is told by Hangar itself (2.21.0 and later)");
    };
    // Hangar writes its log from a thread of its own.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let looked = tokio::task::spawn_blocking(move || look(&path, watched.before, asked == Some(true))).await;
    looked.unwrap_or_else(|_| Check::skip(CHECK, "could not be looked at"))
}

fn look(path: &Path, before: Option<u64>, asked: bool) -> Check {
    let shown = path.display();
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let advice = "start Hangar with --log-file and that path; in containers the file must be on a volume that both share";
            return Check::fail(CHECK, format!("{shown} does not exist"), advice);
        }
        Err(error) => return unreadable(path, &error),
    };
    if !metadata.is_file() {
        let what = if metadata.file_type().is_fifo() { "a pipe" } else { "not a regular file" };
        return Check::fail(CHECK, format!("{shown} is {what}"), "give a regular file: Hangar's --log-file");
    }
    let end = match end_of(path) {
        Ok(end) => end,
        Err(error) => return unreadable(path, &error),
    };
    if let Some(check) = strange(path, &end) {
        return check;
    }
    if before.is_some_and(|before| metadata.len() > before) {
        return Check::ok(CHECK, format!("{shown} is Hangar's, and it grew while Hangar was asked"));
    }
    match written(path, &metadata) {
        Written::Here => Check::ok(CHECK, format!("{shown} is Hangar's log, and open for writing")),
        Written::At(old) => Check::fail(CHECK, format!("{shown} is not written to any more: {} is", old.display()), ROTATE),
        Written::Unseen if asked => {
            let found = format!("{shown} did not grow while Hangar was asked things that it logs");
            Check::fail(CHECK, found, format!("is it the file of Hangar's --log-file? {ROTATE}"))
        }
        Written::Unseen if end.is_empty() => {
            Check::warn(CHECK, format!("{shown} is empty"), format!("is it the file of Hangar's --log-file? If it was rotated: {ROTATE}"))
        }
        Written::Unseen => Check::ok(CHECK, format!("{shown} is in a form of Hangar's; who writes to it cannot be seen from here")),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Check {
    let advice = "let the daemon's user read it and its directory (a common group, or the same user as Hangar)";
    Check::fail(CHECK, format!("{} cannot be read: {error}", path.display()), advice)
}

fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let from = file.metadata()?.len().saturating_sub(TAIL);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    if from > 0 {
        // Begins within a line.
        let first = bytes.iter().position(|b| *b == b'\n').map_or(bytes.len(), |n| n + 1);
        bytes.drain(..first);
    }
    Ok(bytes)
}

/// A file whose lines are in no form of Hangar's.
fn strange(path: &Path, end: &[u8]) -> Option<Check> {
    let mut frames = Frames::new(InputFormat::Auto);
    let (mut lines, mut understood) = (0_u32, 0_u32);
    for line in end.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
        lines += 1;
        frames.line(line, 0, &mut |inner| understood += u32::from(matches!(inner, Inner::Line { .. })));
    }
    (lines > 0 && understood == 0).then(|| {
        let advice = "give Hangar's own --log-file (JSON lines), or the container log that holds it (CRI, docker json-file, journald)";
        Check::fail(CHECK, format!("none of the last {lines} lines of {} is in a form of Hangar's", path.display()), advice)
    })
}

enum Written {
    Here,
    /// A file next to it is open for writing, and it is not: what it was renamed to.
    At(PathBuf),
    /// No process that we may look into has it open.
    Unseen,
}

/// Which file of this log's name some process has open for writing (Linux's `/proc`; elsewhere nothing is seen).
fn written(path: &Path, metadata: &fs::Metadata) -> Written {
    let of = |m: &fs::Metadata| (m.dev(), m.ino());
    let here = of(metadata);
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    // `hangar.log.1`, `hangar.log-20261130`, `hangar-20261130.log`.
    let rotated = |other: &str| {
        let dated = other.strip_prefix(&stem).and_then(|rest| rest.strip_prefix(['-', '.', '_']));
        other.starts_with(&name) || dated.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let siblings =
        path.parent().map(|dir| if dir.as_os_str().is_empty() { Path::new(".") } else { dir }).and_then(|dir| fs::read_dir(dir).ok());
    let siblings: Vec<((u64, u64), PathBuf)> = siblings
        .into_iter()
        .flatten()
        .flatten()
        .take(LOOK_MAX)
        .filter(|e| rotated(&e.file_name().to_string_lossy()))
        .filter_map(|e| Some((of(&e.metadata().ok()?), e.path())))
        .filter(|(id, _)| *id != here)
        .collect();
    let mut old = None;
    for id in written_files() {
        if id == here {
            return Written::Here;
        }
        old = old.or_else(|| siblings.iter().find(|(sibling, _)| *sibling == id).map(|(_, path)| path.clone()));
    }
    old.map_or(Written::Unseen, Written::At)
}

/// Device and inode of every regular file that a process of this machine has open for writing, as far as we may look.
fn written_files() -> impl Iterator<Item = (u64, u64)> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten().map(|e| e.path());
    let pids = pids.filter(|p| p.file_name().is_some_and(|n| n.as_encoded_bytes().iter().all(u8::is_ascii_digit)));
    pids.take(LOOK_MAX).flat_map(|process| {
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().take(LOOK_MAX);
        open.filter_map(move |fd| {
            let flags = fs::read_to_string(process.join("fdinfo").join(fd.file_name())).ok()?;
            let flags = flags.lines().find_map(|l| l.strip_prefix("flags:")).and_then(|f| u32::from_str_radix(f.trim(), 8).ok())?;
            // O_WRONLY or O_RDWR.
            let metadata = (flags & 3 != 0).then(|| fs::metadata(fd.path()).ok()).flatten()?;
            metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
        })
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::Status;
    use super::*;

    const LINE: &str = r#"{"event": "mcp_server_started: api", "level": "info", "logger": "mcp_hangar.domain.model.mcp_server", "timestamp": "2026-11-30T20:17:30.849604Z", "service": "mcp-hangar"}"#;

    #[track_caller]
    fn check(path: &Path, before: Option<u64>, asked: bool, status: Status, words: &str) {
        let found = look(path, before, asked);
        assert!(found.status == status && format!("{found:?}").contains(words), "{words}: {found:?}");
    }

    #[test]
    fn a_log_that_is_missing_strange_or_no_file_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hangar.log");
        check(&path, None, false, Status::Fail, "does not exist");
        check(dir.path(), None, false, Status::Fail, "not a regular file");
        fs::write(&path, "GET / 200\nGET / 404\n").unwrap();
        check(&path, None, false, Status::Fail, "none of the last 2 lines");
        fs::write(&path, "").unwrap();
        check(&path, None, false, Status::Warn, "is empty");
        fs::write(&path, format!("{LINE}\n")).unwrap();
        check(&path, None, false, Status::Ok, "in a form of Hangar's");
        check(&path, Some(5), true, Status::Ok, "it grew");
        check(&path, Some(fs::metadata(&path).unwrap().len()), true, Status::Fail, "did not grow");
    }

    #[test]
    fn a_writer_that_stays_with_the_renamed_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hangar.log");
        let mut writer = File::options().create(true).append(true).open(&path).unwrap();
        writeln!(writer, "{LINE}").unwrap();
        check(&path, None, false, Status::Ok, "open for writing");
        fs::rename(&path, dir.path().join("hangar.log.1")).unwrap();
        fs::write(&path, format!("{LINE}\n")).unwrap();
        check(&path, None, false, Status::Fail, "hangar.log.1 is");
        check(&path, None, false, Status::Fail, "copytruncate");
    }
}
