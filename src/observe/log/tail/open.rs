//! One open file and how far it was read.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use super::checkpoint::{FilePosition, HEAD_MAX, Prefix};
use super::siblings::{Candidate, head_of, modified_ns};
use super::{FileId, Line};
use crate::observe::log::split::Splitter;

/// Bytes before the position that are compared again after each read; with a hole at its beginning, which a writer
/// without `O_APPEND` leaves, a file's first bytes tell nothing.
const GUARD: usize = 64;

#[derive(Debug)]
pub(super) struct Open {
    file: File,
    id: FileId,
    /// The first bytes, as far as they were read.
    head: Vec<u8>,
    /// The last bytes before the position.
    guard: Vec<u8>,
    splitter: Splitter,
    too_long_before: u64,
    /// A copy that does not grow.
    copy: bool,
    /// Length and modification time when it was at its end last: unchanged means nothing to do.
    seen: Option<(u64, i128)>,
    grew: Instant,
}

/// What reading on came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Read(usize),
    AtEnd,
    /// What was read before is not there any more.
    Truncated,
}

impl Open {
    fn new(candidate: Candidate, offset: u64, skipping: bool) -> io::Result<Self> {
        let (id, copy) = (candidate.id(), candidate.compressed);
        let mut head = candidate.head.clone();
        head.truncate(usize::try_from(offset).unwrap_or(usize::MAX));
        let mut open = Self {
            id,
            file: candidate.unpacked()?,
            head,
            guard: Vec::new(),
            splitter: Splitter::at(offset, skipping),
            too_long_before: 0,
            copy,
            seen: None,
            grew: Instant::now(),
        };
        open.guard = open.guard_now()?;
        Ok(open)
    }

    pub(super) fn at_start(candidate: Candidate) -> io::Result<Self> {
        Self::new(candidate, 0, false)
    }

    /// From the first whole line in the last `max` bytes.
    pub(super) fn at_end_of(candidate: Candidate, max: u64) -> io::Result<Self> {
        let offset = candidate.length.saturating_sub(max);
        Self::new(candidate, offset, offset > 0)
    }

    pub(super) fn resumed(candidate: Candidate, position: &FilePosition, copy: bool) -> io::Result<Self> {
        // A file at the path goes on growing, whatever it was made from.
        let copy = copy && !candidate.is_path;
        let open = Self::new(candidate, position.offset, position.skipping)?;
        Ok(Self { copy: copy || open.copy, ..open })
    }

    pub(super) const fn id(&self) -> FileId {
        self.id
    }

    pub(super) const fn is_copy(&self) -> bool {
        self.copy
    }

    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    /// The first bytes as they are now, which may be younger than what was read.
    pub(super) fn head_now(&self) -> Vec<u8> {
        head_of(&self.file, HEAD_MAX).unwrap_or_default()
    }

    pub(super) const fn has_content(&self) -> bool {
        self.splitter.position() > 0
    }

    pub(super) fn too_long(&self) -> u64 {
        self.too_long_before + self.splitter.too_long()
    }

    /// Bytes written and not read.
    pub(super) fn lag(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len().saturating_sub(self.splitter.position()))
    }

    pub(super) fn is_unread(&self) -> bool {
        self.lag() > 0
    }

    pub(super) fn still_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.grew)
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    }

    pub(super) fn position(&self) -> FilePosition {
        FilePosition {
            device: self.id.device,
            inode: self.id.inode,
            prefix: Prefix::of(&self.head),
            offset: self.splitter.told_to(),
            skipping: self.splitter.is_skipping(),
            modified_ns: self.file.metadata().map_or(0, |metadata| modified_ns(&metadata)),
        }
    }

    /// Reads the next chunk and tells its lines, once it is sure that the chunk belongs to what was read before.
    pub(super) fn step(&mut self, buffer: &mut [u8], tell: &mut dyn FnMut(Line<'_>)) -> io::Result<Step> {
        let metadata = self.file.metadata()?;
        let now = (metadata.len(), modified_ns(&metadata));
        if self.seen == Some(now) && metadata.len() == self.splitter.position() {
            return Ok(Step::AtEnd);
        }
        let position = self.splitter.position();
        let got = loop {
            match self.file.read_at(buffer, position) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        // Checked after the read: a truncation before it shows here, one after it is of no matter to this chunk.
        if metadata.len() < position || !self.is_still_there()? {
            return Ok(Step::Truncated);
        }
        if got == 0 {
            self.seen = Some(now);
            return Ok(Step::AtEnd);
        }
        let chunk = buffer.get(..got).unwrap_or_default();
        if self.head.len() < HEAD_MAX && self.head.len() as u64 == position {
            self.head.extend(chunk.iter().take(HEAD_MAX - self.head.len()));
        }
        self.guard.extend_from_slice(chunk.get(got.saturating_sub(GUARD)..).unwrap_or_default());
        self.guard.drain(..self.guard.len().saturating_sub(GUARD));
        self.grew = Instant::now();
        let file = self.id;
        self.splitter.feed(chunk, &mut |offset, bytes| tell(Line { file, offset, bytes }));
        Ok(Step::Read(got))
    }

    /// Starts over at the beginning, and gives where it stood.
    pub(super) fn restart(&mut self) -> FilePosition {
        let old = self.position();
        self.too_long_before += self.splitter.too_long();
        self.splitter = Splitter::default();
        (self.head, self.guard, self.seen) = (Vec::new(), Vec::new(), None);
        old
    }

    /// Nothing more will come: a last line without its newline is told too.
    pub(super) fn finish(&mut self, tell: &mut dyn FnMut(Line<'_>)) {
        let file = self.id;
        self.splitter.finish(&mut |offset, bytes| tell(Line { file, offset, bytes }));
    }

    fn is_still_there(&self) -> io::Result<bool> {
        Ok(head_of(&self.file, self.head.len())? == self.head && (self.guard.is_empty() || self.guard_now()? == self.guard))
    }

    /// As many bytes before the position as there are in the guard, or could be.
    fn guard_now(&self) -> io::Result<Vec<u8>> {
        let position = self.splitter.position();
        let length = if self.guard.is_empty() { GUARD as u64 } else { self.guard.len() as u64 }.min(position);
        let mut guard = vec![0; usize::try_from(length).unwrap_or(GUARD)];
        match self.file.read_exact_at(&mut guard, position - length) {
            Ok(()) => Ok(guard),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}
