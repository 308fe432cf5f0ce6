//! Files that hold one secret, read again each time so that a rotated key needs no restart.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::policy::hex;

/// A secret is one short line.
const MAX_SECRET: u64 = 64 * 1024;

/// Where a secret is kept. Holds the path only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretFile {
    pub path: PathBuf,
}

/// A secret in memory. Neither `Debug` nor anything else prints it.
pub struct Secret {
    value: String,
    sha256: String,
}

/// Why a secret file gives no secret. `Display` holds neither its content nor its path: a key pasted in place of the path
/// must not reach a log.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("cannot read the secret file")]
    Read(#[source] io::Error),
    #[error("the secret file is not a regular file")]
    NotAFile,
    #[error("the secret file is empty")]
    Empty,
    #[error("the secret file is larger than 64 KiB")]
    TooLarge,
    #[error("the secret file holds more than one line, or a character that no HTTP header takes")]
    BadCharacter,
}

impl SecretError {
    /// The error and its source in one line, for a list of faults.
    #[must_use]
    pub fn explained(&self) -> String {
        match std::error::Error::source(self) {
            Some(source) => format!("{self}: {source}"),
            None => self.to_string(),
        }
    }
}

impl Secret {
    /// The secret itself, without the white space around it: visible ASCII and inner spaces.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.value
    }

    /// SHA-256 of the file as it was read, in hex: tells one key file from the next without holding the key.
    #[must_use]
    pub fn sha256(&self) -> &str {
        &self.sha256
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl SecretFile {
    /// Reads the file now. Blocking, but a local file of at most 64 KiB.
    ///
    /// Errors: missing, unreadable, not a regular file, empty, too large, more than one line, not visible ASCII.
    pub fn read(&self) -> Result<Secret, SecretError> {
        let bytes = read_regular(&self.path)?;
        let text = bytes.trim_ascii();
        if text.is_empty() {
            return Err(SecretError::Empty);
        }
        let value = std::str::from_utf8(text).ok().filter(|t| t.bytes().all(|b| b == b' ' || b.is_ascii_graphic()));
        let value = value.ok_or(SecretError::BadCharacter)?.to_owned();
        Ok(Secret { value, sha256: hex(&Sha256::digest(&bytes)) })
    }

    /// SHA-256 of the file's bytes in hex, whatever they are: the guard against a refused key compares it.
    ///
    /// Errors: as [`SecretFile::read`], but content is not judged.
    pub fn sha256(&self) -> Result<String, SecretError> {
        Ok(hex(&Sha256::digest(read_regular(&self.path)?)))
    }

    /// Whether every user of the machine can read the file; unknown counts as no.
    #[must_use]
    pub fn world_readable(&self) -> bool {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::metadata(&self.path).is_ok_and(|m| m.permissions().mode() & 0o004 != 0)
        }
        #[cfg(not(unix))]
        false
    }
}

/// The file's bytes. Links are followed: Kubernetes mounts secrets behind two of them.
fn read_regular(path: &Path) -> Result<Vec<u8>, SecretError> {
    // Asked before opening: opening a named pipe would wait for its writer.
    if !fs::metadata(path).map_err(SecretError::Read)?.is_file() {
        return Err(SecretError::NotAFile);
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(SecretError::Read)?.take(MAX_SECRET + 1).read_to_end(&mut bytes).map_err(SecretError::Read)?;
    if bytes.len() as u64 > MAX_SECRET {
        return Err(SecretError::TooLarge);
    }
    Ok(bytes)
}
