//! A line of Hangar's log, found again by the place that an incident's provenance names.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::log::FileId;
use crate::policy::hex;

/// No line of the log is longer.
const LINE_MAX: u64 = 1 << 20;

/// SHA-256, in hex, of the line at `offset` without its newline; `None` where `path` is another file by now, or cannot be
/// read. Blocking, but one line.
#[must_use]
pub fn sha256(path: &Path, file: FileId, offset: u64) -> Option<String> {
    read(path, file, offset).ok()?.as_deref().map(sha256_of)
}

/// SHA-256, in hex, of a line without its newline.
#[must_use]
pub fn sha256_of(line: &[u8]) -> String {
    hex(&Sha256::digest(line))
}

fn read(path: &Path, file: FileId, offset: u64) -> io::Result<Option<Vec<u8>>> {
    let mut found = File::open(path)?;
    let metadata = found.metadata()?;
    if (metadata.dev(), metadata.ino()) != (file.device, file.inode) || metadata.len() <= offset {
        return Ok(None);
    }
    found.seek(SeekFrom::Start(offset))?;
    let mut line = Vec::new();
    BufReader::new(found.take(LINE_MAX + 1)).read_until(b'\n', &mut line)?;
    Ok((line.pop() == Some(b'\n')).then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_at_the_offset_of_that_very_file_is_hashed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "first\nabc\nhalf").unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        let file = FileId { device: metadata.dev(), inode: metadata.ino() };
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(&path, file, 6).as_deref(), Some(abc));
        for (file, offset) in [(file, 10), (file, 99), (FileId { inode: file.inode + 1, ..file }, 6)] {
            assert_eq!(sha256(&path, file, offset), None);
        }
        assert_eq!(sha256(&dir.path().join("none"), file, 6), None);
    }
}
