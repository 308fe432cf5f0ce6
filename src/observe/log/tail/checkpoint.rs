//! Where a tail stands, in a form that outlives the process.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::FileId;
use crate::observe::log::ReaderState;
use crate::policy::hex;

/// Bytes of a file's beginning that tell it from others.
pub(super) const HEAD_MAX: usize = 1024;
/// The position of a [`super::Tail`]. Opaque to the caller, who stores it after what was told is durable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub files: Vec<FilePosition>,
    pub known: Vec<Prefix>,
    /// What the lines before had told; only a [`super::Follower`]'s checkpoint has it.
    #[serde(default)]
    pub reader: ReaderState,
    /// Of a journal, which has no files: the last entry that was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// How far one file was told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePosition {
    pub device: u64,
    pub inode: u64,
    pub prefix: Prefix,
    /// Offset of the first byte that no told line held.
    pub offset: u64,
    /// That byte is inside a line that is skipped for its length.
    #[serde(default)]
    pub skipping: bool,
    /// Modification time when it was read last, nanoseconds since the epoch.
    pub modified_ns: i128,
}

/// The hash of a file's first bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prefix {
    /// How many bytes it is of, at most 1024.
    pub length: usize,
    /// SHA-256, hexadecimal.
    pub sha256: String,
    /// Whether it is enough to know a copy by: it holds a whole line, whose time makes it one of a kind. Half of
    /// Hangar's first line is the same in every log.
    pub tells: bool,
}

/// Whether `head` is enough to know a file by.
pub(super) fn tells(head: &[u8]) -> bool {
    head.contains(&b'\n') || (head.len() == HEAD_MAX && head.iter().any(|byte| *byte != 0))
}

impl Prefix {
    /// The prefix of a file that begins with `head`.
    #[must_use]
    pub fn of(head: &[u8]) -> Self {
        Self { length: head.len(), sha256: hex(&Sha256::digest(head)), tells: tells(head) }
    }

    /// Whether a file with `head` begins with the bytes that this is of.
    #[must_use]
    pub fn begins(&self, head: &[u8]) -> bool {
        head.get(..self.length).is_some_and(|head| self.length == 0 || Self::of(head).sha256 == self.sha256)
    }
}

impl FilePosition {
    pub(super) const fn id(&self) -> FileId {
        FileId { device: self.device, inode: self.inode }
    }

    pub(super) const fn has_content(&self) -> bool {
        self.offset > 0 || self.prefix.length > 0
    }
}
