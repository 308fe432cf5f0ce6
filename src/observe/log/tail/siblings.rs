//! The files next to a log that it was rotated into.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::FileId;
use super::checkpoint::{HEAD_MAX, Prefix, tells};

/// Rotated files looked at, newest first; more than any sane rotation keeps.
const SIBLINGS_MAX: usize = 256;
/// Of a compressed file no more than this is unpacked.
const UNPACKED_MAX: u64 = 1 << 30;

/// A file that is the log, was the log, or is a copy of it.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) file: File,
    pub(super) head: Vec<u8>,
    /// Of a compressed one not known before it is unpacked, and taken for endless.
    pub(super) length: u64,
    pub(super) compressed: bool,
    pub(super) modified_ns: i128,
    pub(super) is_path: bool,
    id: FileId,
    name: String,
}

impl Candidate {
    fn open(path: &Path, is_path: bool) -> io::Result<Self> {
        // Looked at before it is opened: opening a pipe would wait for its writer.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let compressed = !is_path && path.extension().is_some_and(|extension| extension == "gz");
        let (head, length) = if compressed {
            let mut head = Vec::new();
            flate2::read::MultiGzDecoder::new(&file).take(HEAD_MAX as u64).read_to_end(&mut head)?;
            (head, u64::MAX)
        } else {
            (head_of(&file, HEAD_MAX)?, metadata.len())
        };
        Ok(Self { head, length, compressed, modified_ns: modified_ns(&metadata), is_path, id: id_of(&metadata), name, file })
    }

    /// The file to read: a compressed one is unpacked into a file without a name.
    pub(super) fn unpacked(self) -> io::Result<File> {
        if !self.compressed {
            return Ok(self.file);
        }
        let path = std::env::temp_dir().join(format!("hangar-medic-{}-{}", std::process::id(), self.id.inode));
        let mut unpacked = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        (&self.file).rewind()?;
        let mut packed = flate2::read::MultiGzDecoder::new(&self.file).take(UNPACKED_MAX);
        io::copy(&mut packed, &mut unpacked)?;
        unpacked.flush()?;
        Ok(unpacked)
    }

    pub(super) const fn id(&self) -> FileId {
        self.id
    }

    pub(super) fn prefix(&self) -> Prefix {
        Prefix::of(&self.head)
    }

    /// Whether this begins as `head` does, so is that file, grown, or a copy of it.
    pub(super) fn continues(&self, head: &[u8]) -> bool {
        tells(head) && self.head.starts_with(head)
    }

    fn suffix(&self) -> &str {
        let name = self.name.strip_suffix(".gz").unwrap_or(&self.name);
        name.get(name.trim_end_matches(is_stamp).len()..).unwrap_or_default()
    }

    /// The `1` of `hangar.log.1`.
    fn number(&self) -> Option<u32> {
        self.suffix().strip_prefix('.')?.parse().ok().filter(|number| *number < 10_000)
    }
}

/// Oldest first. A rotation's own numbers and dates are exact; times are not: compressing a file makes it look young.
fn sort(found: &mut [Candidate]) {
    let dated = |c: &Candidate| c.suffix().bytes().filter(u8::is_ascii_digit).count() >= 8;
    if found.iter().all(|c| c.number().is_some()) {
        found.sort_by_key(|c| std::cmp::Reverse(c.number()));
    } else if found.iter().all(dated) {
        found.sort_by(|a, b| a.suffix().cmp(b.suffix()));
    } else {
        found.sort_by_key(|c| c.modified_ns);
    }
}

/// The log and what it was rotated into, oldest first, the path's own file last. What cannot be opened is left out: it
/// is gone again, or not ours to read.
///
/// # Errors
/// There is something at `path` itself, and it cannot be opened or is no file.
pub(super) fn candidates(path: &Path) -> io::Result<Vec<Candidate>> {
    let mut found: Vec<Candidate> = Vec::new();
    let target = fs::canonicalize(path).ok();
    for place in [Some(path), target.as_deref().filter(|target| *target != path)].into_iter().flatten() {
        for sibling in rotated(place, place != path) {
            if let Ok(candidate) = Candidate::open(&sibling, false)
                && found.iter().all(|other| other.id != candidate.id)
            {
                found.push(candidate);
            }
        }
    }
    // The path is opened last: a file that is moved away meanwhile is seen under one name at least.
    let own = match Candidate::open(path, true) {
        Ok(own) => Some(own),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => None,
        Err(error) => return Err(error),
    };
    found.retain(|other| own.as_ref().is_none_or(|own| own.id != other.id));
    sort(&mut found);
    found.extend(own);
    Ok(found)
}

/// The file at `path` now.
pub(super) fn id_at(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().map(|metadata| id_of(&metadata))
}

/// When the path's directory changed last.
pub(super) fn changed_ns(path: &Path) -> Option<i128> {
    fs::metadata(dir_of(path)).ok().map(|metadata| modified_ns(&metadata))
}

fn dir_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn rotated(path: &Path, linked: bool) -> Vec<PathBuf> {
    let Some(own) = path.file_name().map(|name| name.to_string_lossy().into_owned()) else { return Vec::new() };
    let dir = dir_of(path);
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| *name != own && (is_rotation_of(&own, name) || (linked && is_alike(&own, name))))
        .take(4 * SIBLINGS_MAX)
        .collect();
    names.sort();
    names.truncate(SIBLINGS_MAX);
    names.into_iter().map(|name| dir.join(name)).collect()
}

/// `hangar.log.1`, `hangar.log-20261130`, `0.log.20261130-152059`, `hangar-20261130.log`.
fn is_rotation_of(own: &str, name: &str) -> bool {
    let name = name.strip_suffix(".gz").unwrap_or(name);
    if let Some(suffix) = name.strip_prefix(own) {
        return suffix.starts_with(['.', '-', '_']) && (suffix.chars().all(is_stamp) || matches!(suffix, ".old" | ".bak" | ".prev"));
    }
    let Some((stem, extension)) = own.rsplit_once('.') else { return false };
    let middle = name.strip_prefix(stem).and_then(|rest| rest.strip_suffix(extension)).unwrap_or_default();
    // Fewer digits could as well be another instance's number.
    middle.starts_with(['.', '-', '_']) && middle.chars().all(is_stamp) && middle.chars().filter(char::is_ascii_digit).count() >= 8
}

/// `hangar-7.log` for `hangar-6.log`: only for what a link points to, since the link says that these are one log.
fn is_alike(own: &str, name: &str) -> bool {
    let shape = |text: &str| text.chars().filter(|c| !is_stamp(*c)).collect::<String>();
    own.contains(|c: char| c.is_ascii_digit()) && shape(own) == shape(name)
}

fn is_stamp(c: char) -> bool {
    c.is_ascii_digit() || matches!(c, '.' | '-' | '_' | ':' | 'T' | 'Z' | '+')
}

pub(super) fn head_of(file: &File, length: usize) -> io::Result<Vec<u8>> {
    let mut head = vec![0; length];
    let mut filled = 0;
    while let Some(rest) = head.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, filled as u64) {
            Ok(0) => break,
            Ok(got) => filled += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    head.truncate(filled);
    Ok(head)
}

pub(super) fn id_of(metadata: &Metadata) -> FileId {
    FileId { device: metadata.dev(), inode: metadata.ino() }
}

pub(super) fn modified_ns(metadata: &Metadata) -> i128 {
    i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec())
}
