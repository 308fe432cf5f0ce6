//! Follow a growing file through every kind of rotation.
//!
//! A file is who it is by device, inode and the hash of its first bytes: an inode is reused, a name is moved, and
//! `copytruncate` keeps both. A file that was rotated away is read to its end before its successor, and stays open
//! while its writer may still hold it (Hangar's own handler writes on to the old inode after a rename). What cannot be
//! known, because it was truncated away unread, is counted as a gap.

mod checkpoint;
mod follow;
mod open;
mod siblings;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use checkpoint::{Checkpoint, FilePosition, Prefix};
pub use follow::{Follower, ServerState, Update, follow};
use open::{Open, Step};
use serde::{Deserialize, Serialize};
use siblings::Candidate;

use super::ReaderState;

/// On a first start no more than this is read of the file's end.
pub const FIRST_READ_MAX: u64 = 64 << 20;
/// A rotated file is closed when its successor has grown and it has been still for this long.
const STILL: Duration = Duration::from_mins(5);
/// Rotated files that are open at once; the oldest is closed beyond it.
const OPEN_MAX: usize = 16;
/// Bytes read in one poll.
const POLL_BYTES: usize = 1 << 20;

/// Which file a line is from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileId {
    pub device: u64,
    pub inode: u64,
}

impl std::fmt::Display for FileId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.device, self.inode)
    }
}

/// One whole line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    pub file: FileId,
    /// Byte offset of its first byte.
    pub offset: u64,
    /// Without the newline.
    pub bytes: &'a [u8],
}

/// What was counted since the tail was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TailCounts {
    pub lines: u64,
    /// Times at which lines may have been lost unseen (`log_gaps_total`): a truncation, a file gone before its end was read.
    pub gaps: u64,
    /// Lines longer than [`super::frame::LINE_MAX`], skipped.
    pub too_long: u64,
    /// Bytes that are written and not read yet (`log_lag_bytes`).
    pub lag_bytes: u64,
}

/// What a poll came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// There is more to read at once.
    More,
    /// Everything that was there is read.
    Caught,
}

/// A followed path. Blocking; it does nothing but in [`Tail::poll`].
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    /// Oldest first; the last one is, or was, at `path`.
    files: VecDeque<Open>,
    /// Beginnings of files that are done with, so that neither they nor their copies are read again.
    known: VecDeque<Prefix>,
    start: Start,
    /// When the directory changed last, if the path was missing then and nothing else new was there.
    nothing_at: Option<i128>,
    /// Looks still to be made although the newest file is at the path: a rotation may have been seen half done.
    looks: u8,
    counts: TailCounts,
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Start {
    First,
    Resume(Box<Checkpoint>),
    Done,
}

/// Beginnings kept of files that are done with.
const KNOWN_MAX: usize = 64;

impl Tail {
    /// Follows `path` from where `checkpoint` was taken; without one from its beginning, or its last
    /// [`FIRST_READ_MAX`] bytes. The path need not exist yet.
    #[must_use]
    pub fn new(path: &Path, checkpoint: Option<Checkpoint>) -> Self {
        Self {
            path: path.to_owned(),
            files: VecDeque::new(),
            known: VecDeque::new(),
            start: checkpoint.map_or(Start::First, |checkpoint| Start::Resume(Box::new(checkpoint))),
            nothing_at: None,
            looks: 0,
            counts: TailCounts::default(),
            buffer: vec![0; 256 * 1024],
        }
    }

    /// What was counted so far.
    pub fn counts(&self) -> TailCounts {
        let lag_bytes = self.files.iter().map(Open::lag).sum();
        TailCounts { lag_bytes, ..self.counts }
    }

    /// The path that is followed.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where a tail has to go on that has told what this one has told. Save it after what was told is durable.
    pub fn checkpoint(&self) -> Checkpoint {
        match &self.start {
            Start::Resume(checkpoint) => (**checkpoint).clone(),
            Start::First | Start::Done => Checkpoint {
                files: self.files.iter().map(Open::position).collect(),
                known: self.known.iter().cloned().collect(),
                reader: ReaderState::default(),
                cursor: None,
            },
        }
    }

    /// Reads what there is, up to about a mebibyte, and tells each whole line, oldest file first.
    ///
    /// # Errors
    /// A file that is there cannot be read. A path that is not there is no error.
    pub fn poll(&mut self, tell: &mut dyn FnMut(Line<'_>)) -> io::Result<Progress> {
        self.begin()?;
        let mut budget = POLL_BYTES;
        // Twice: what was found by the second look is read in the next poll, after the older files once more.
        for _ in 0..2 {
            if !self.read(&mut budget, tell)? {
                return Ok(Progress::More);
            }
            if !self.look()? {
                break;
            }
        }
        self.close_still(tell);
        Ok(if self.files.iter().any(Open::is_unread) { Progress::More } else { Progress::Caught })
    }

    /// Reads all files to their end, in order. False when the budget ran out first.
    fn read(&mut self, budget: &mut usize, tell: &mut dyn FnMut(Line<'_>)) -> io::Result<bool> {
        let mut index = 0;
        while let Some(file) = self.files.get_mut(index) {
            if *budget == 0 {
                return Ok(false);
            }
            let (lines, too_long) = (&mut self.counts.lines, file.too_long());
            let step = file.step(&mut self.buffer, &mut |line| {
                *lines += 1;
                tell(line);
            })?;
            self.counts.too_long += file.too_long() - too_long;
            match step {
                Step::Read(bytes) => *budget = budget.saturating_sub(bytes),
                Step::Truncated => self.truncated(index)?,
                Step::AtEnd if file.is_copy() => {
                    // Its last line, if it has no end, was cut by the truncation: part of the gap already counted.
                    self.files.remove(index);
                }
                Step::AtEnd => index += 1,
            }
        }
        Ok(true)
    }

    fn begin(&mut self) -> io::Result<()> {
        match &self.start {
            Start::Done => return Ok(()),
            Start::First => {
                for candidate in siblings::candidates(&self.path)? {
                    if candidate.is_path {
                        self.files.push_back(Open::at_end_of(candidate, FIRST_READ_MAX)?);
                    } else {
                        self.remember(candidate.prefix());
                    }
                }
            }
            Start::Resume(checkpoint) => {
                let checkpoint = (**checkpoint).clone();
                self.files.clear();
                self.resume(checkpoint)?;
            }
        }
        self.start = Start::Done;
        Ok(())
    }

    fn resume(&mut self, checkpoint: Checkpoint) -> io::Result<()> {
        self.known = checkpoint.known.into();
        let fits = |p: &FilePosition, c: &Candidate| c.length >= p.offset && p.prefix.begins(&c.head);
        let found = |c: &[Candidate], p: &FilePosition| c.iter().any(|c| (c.id() == p.id() || p.prefix.tells) && fits(p, c));
        let mut candidates = self.settled(|candidates| checkpoint.files.iter().all(|p| found(candidates, p)))?;
        let floor = checkpoint.files.iter().map(|file| file.modified_ns).min().unwrap_or(i128::MIN);
        for position in checkpoint.files {
            let same = candidates.iter().position(|c| c.id() == position.id() && fits(&position, c));
            let found = same.or_else(|| candidates.iter().position(|c| position.prefix.tells && fits(&position, c)));
            let kept = found.and_then(|i| {
                let candidate = candidates.remove(i);
                // Compressed after it was moved away: it is whole. Any other copy was made before a truncation.
                let whole = same.is_some() || (candidate.compressed && candidates.iter().all(|c| c.id() != position.id()));
                Open::resumed(candidate, &position, same.is_none()).ok().map(|file| (file, whole))
            });
            if same.is_none() {
                self.remember(position.prefix.clone());
            }
            let whole = kept.as_ref().is_some_and(|(_, whole)| *whole);
            self.counts.gaps += u64::from(!whole && position.has_content());
            self.files.extend(kept.map(|(file, _)| file));
        }
        // What is older than what was read last was read before, or was never ours.
        for candidate in candidates {
            if !candidate.is_path && candidate.modified_ns < floor {
                self.remember(candidate.prefix());
            }
        }
        self.looks = 2;
        self.look().map(drop)
    }

    /// The files that are there, once they hold what is looked for: one that is renamed between being listed and being
    /// opened is missed. Looks again a few times, 30 ms in all.
    fn settled(&self, holds: impl Fn(&[Candidate]) -> bool) -> io::Result<Vec<Candidate>> {
        let mut candidates = siblings::candidates(&self.path)?;
        for _ in 0..3 {
            if holds(&candidates) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            candidates = siblings::candidates(&self.path)?;
        }
        Ok(candidates)
    }

    /// Looks for files that came since; true if there are any.
    fn look(&mut self) -> io::Result<bool> {
        let here = siblings::id_at(&self.path);
        let stays = here.is_some() && self.files.back().map(Open::id) == here;
        // Of a file that nothing was read of, a truncation does not show: only its copy does.
        let empty = stays && self.looks == 0 && self.files.back().is_some_and(|file| !file.has_content());
        if stays && !empty {
            if self.looks == 0 {
                return Ok(false);
            }
            self.looks -= 1;
        }
        let changed = siblings::changed_ns(&self.path);
        if (here.is_none() || empty) && changed.is_some() && self.nothing_at == changed {
            return Ok(false);
        }
        let found = self.unseen()?;
        self.nothing_at = if found.is_empty() { changed } else { None };
        let any = !found.is_empty();
        if any {
            self.looks = 2;
            self.counts.gaps += u64::from(empty);
        }
        for candidate in found {
            // One that was missed in an earlier look is older than the path's own file.
            let newest_stays = !candidate.is_path && self.files.back().map(Open::id) == here && here.is_some();
            let place = self.files.len() - usize::from(newest_stays);
            if let Some(file) = self.open_unseen(candidate)? {
                self.files.insert(place, file);
            }
        }
        Ok(any)
    }

    fn open_unseen(&mut self, candidate: Candidate) -> io::Result<Option<Open>> {
        if !candidate.compressed {
            return Open::at_start(candidate).map(Some);
        }
        // It is closed once it is read, and must not be found again. What cannot be unpacked is lost.
        self.remember(candidate.prefix());
        let file = Open::at_start(candidate).ok();
        self.counts.gaps += u64::from(file.is_none());
        Ok(file)
    }

    /// Files next to the path, and the path's own, that were not read yet; oldest first.
    fn unseen(&self) -> io::Result<Vec<Candidate>> {
        let mut candidates = siblings::candidates(&self.path)?;
        let live: Vec<Vec<u8>> = self.files.iter().map(Open::head_now).collect();
        candidates.retain(|candidate| {
            if self.files.iter().any(|file| file.id() == candidate.id() && !file.is_copy()) {
                return false;
            }
            candidate.is_path || (candidate.length > 0 && !self.is_known(candidate) && !live.iter().any(|head| candidate.continues(head)))
        });
        Ok(candidates)
    }

    fn is_known(&self, candidate: &Candidate) -> bool {
        self.known.iter().any(|prefix| prefix.begins(&candidate.head)) || self.files.iter().any(|file| candidate.continues(file.head()))
    }

    /// The file at `index` does not hold any more what was read of it: it was truncated, and may have grown since.
    /// `copytruncate` left a copy; what was not read yet is read from there, and then what other files came meanwhile.
    fn truncated(&mut self, index: usize) -> io::Result<()> {
        self.counts.gaps += 1;
        let Some(file) = self.files.get_mut(index) else { return Ok(()) };
        let old = file.restart();
        if file.is_copy() {
            self.files.remove(index);
            return Ok(());
        }
        let id = file.id();
        let fits = |c: &Candidate| c.id() != id && c.length >= old.offset && old.prefix.tells && old.prefix.begins(&c.head);
        let copy = self.settled(|candidates| candidates.iter().any(fits))?.into_iter().find(fits);
        let mut before = Vec::new();
        if let Some(candidate) = copy {
            before.push(Open::resumed(candidate, &old, true)?);
        }
        self.remember(old.prefix);
        for candidate in self.unseen()? {
            if !candidate.is_path {
                before.extend(self.open_unseen(candidate)?);
            }
        }
        for file in before.into_iter().rev() {
            self.files.insert(index, file);
        }
        Ok(())
    }

    /// Closes rotated files whose writer has moved on, and of too many the one that has been still for longest.
    fn close_still(&mut self, tell: &mut dyn FnMut(Line<'_>)) {
        let now = Instant::now();
        let grown = self.files.back().is_some_and(Open::has_content);
        loop {
            let older = self.files.len().saturating_sub(1);
            let stillest = self.files.iter().take(older).enumerate().max_by_key(|(_, file)| file.still_for(now));
            let Some((index, file)) = stillest else { break };
            if !(grown && file.still_for(now) > STILL || older >= OPEN_MAX) {
                break;
            }
            if let Some(mut file) = self.files.remove(index) {
                self.remember(file.position().prefix);
                file.finish(&mut |line| {
                    self.counts.lines += 1;
                    tell(line);
                });
            }
        }
        // A deleted file would keep its disk space as long as it is open.
        if let [only] = self.files.make_contiguous()
            && only.still_for(now) > STILL
            && only.is_deleted()
        {
            let prefix = only.position().prefix;
            self.files.clear();
            self.remember(prefix);
        }
    }

    fn remember(&mut self, prefix: Prefix) {
        if !prefix.tells || self.known.contains(&prefix) {
            return;
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.pop_front();
        }
        self.known.push_back(prefix);
    }
}
