//! A tail and its reader in a thread of their own; what they tell goes through a bounded channel.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

use super::siblings::id_of;
use super::{Checkpoint, FileId, Progress, Tail, TailCounts};
use crate::observe::log::classify::Told;
use crate::observe::log::frame::FrameCounts;
use crate::observe::log::{InputFormat, Reader};

pub use crate::observe::log::classify::ServerState;

/// Updates on their way at once; then reading stops until they are taken.
const UPDATES_MAX: usize = 16;
/// How often the position is told while the lines tell nothing.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// After a hint, so that a burst of writes is one read.
const GATHER: Duration = Duration::from_millis(5);

/// What the log told since the last update.
#[derive(Debug)]
pub struct Update {
    pub told: Vec<Told>,
    /// SHA-256, by offset, of the lines that told a death, where they cannot be read again by their offset (the journal).
    pub line_sha256: Vec<(u64, String)>,
    /// Every server that the log says something against, after all of `told`; the same `Arc` while nothing changed.
    pub servers: Arc<[ServerState]>,
    /// Where to go on after a restart, once this update is durable.
    pub checkpoint: Checkpoint,
    pub counts: TailCounts,
    pub frames: FrameCounts,
    /// Reading fails, and why; it is tried again.
    pub trouble: Option<String>,
    /// Everything that was written is read: `servers` is how things are, not how they were.
    pub caught_up: bool,
}

/// A running follower. It ends when this, or the receiver, is dropped; at the latest one interval later.
#[derive(Debug)]
pub struct Follower {
    stop: Arc<AtomicBool>,
    hint: SyncSender<()>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.hint.try_send(());
    }
}

impl Follower {
    /// Whether its thread has ended, which it does by itself only if the receiver was dropped.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(thread::JoinHandle::is_finished)
    }
}

/// Follows `path` in a thread: on inotify's hint, and every `interval` without one.
///
/// # Errors
/// The thread cannot be started.
pub fn follow(
    path: &Path,
    format: InputFormat,
    checkpoint: Option<Checkpoint>,
    interval: Duration,
) -> std::io::Result<(Follower, mpsc::Receiver<Update>)> {
    let (updates, receiver) = mpsc::channel(UPDATES_MAX);
    let (hint, hints) = sync_channel(1);
    let stop = Arc::new(AtomicBool::new(false));
    let reader = match &checkpoint {
        Some(checkpoint) => Reader::restored_from(checkpoint.reader.clone(), format),
        None => Reader::new(format),
    };
    let tail = Tail::new(path, checkpoint);
    let worker = Worker {
        watch: Watch { watcher: None, dirs: Vec::new(), hint: hint.clone() },
        stop: Arc::clone(&stop),
        servers: reader.classifier().states().collect(),
        reader,
        trouble: None,
        tail,
    };
    let thread = thread::Builder::new().name("hangar-log".to_owned()).spawn(move || worker.run(&updates, &hints, interval))?;
    Ok((Follower { stop, hint, thread: Some(thread) }, receiver))
}

struct Worker {
    tail: Tail,
    reader: Reader,
    watch: Watch,
    stop: Arc<AtomicBool>,
    servers: Arc<[ServerState]>,
    trouble: Option<String>,
}

impl Worker {
    fn run(mut self, updates: &mpsc::Sender<Update>, hints: &Receiver<()>, interval: Duration) {
        let (mut first, mut unsent, mut sent) = (true, false, Instant::now());
        while !self.stop.load(Ordering::Acquire) && !updates.is_closed() {
            self.watch.arm(self.tail.path());
            let before = self.standing();
            let mut told = Vec::new();
            let Self { tail, reader, .. } = &mut self;
            let polled = tail.poll(&mut |line| {
                reader.in_file(line.file);
                reader.line(line.bytes, line.offset, &mut |t| told.push(t));
            });
            self.trouble = polled.as_ref().err().map(ToString::to_string);
            let caught_up = matches!(polled, Ok(Progress::Caught));
            // The first one is sent whatever it holds: it says that the log is read, and how the servers are.
            let news = !told.is_empty() || before.1 != self.standing().1 || (first && caught_up);
            unsent |= before.0 != self.standing().0;
            if news || (unsent && sent.elapsed() > PROGRESS_EVERY) {
                (first, unsent, sent) = (first && !caught_up, false, Instant::now());
                if updates.blocking_send(self.update(told, caught_up)).is_err() {
                    return;
                }
            }
            if !matches!(polled, Ok(Progress::More)) && hints.recv_timeout(interval).is_ok() {
                thread::sleep(GATHER);
            }
        }
    }

    /// What only moves the position, and what is worth an update at once.
    fn standing(&self) -> (u64, (u64, u64, FrameCounts, Option<String>)) {
        let TailCounts { lines, gaps, too_long, .. } = self.tail.counts();
        (lines, (gaps, too_long, FrameCounts { unrecognised: 0, ..self.reader.counts() }, self.trouble.clone()))
    }

    fn update(&mut self, told: Vec<Told>, caught_up: bool) -> Update {
        if !told.is_empty() {
            self.servers = self.reader.classifier().states().collect();
        }
        Update {
            told,
            line_sha256: Vec::new(),
            servers: Arc::clone(&self.servers),
            checkpoint: Checkpoint { reader: self.reader.save(), ..self.tail.checkpoint() },
            counts: self.tail.counts(),
            frames: self.reader.counts(),
            trouble: self.trouble.clone(),
            caught_up,
        }
    }
}

/// inotify on the directories that hold the path and what it links to. It only wakes: a lost event costs one interval.
struct Watch {
    watcher: Option<RecommendedWatcher>,
    dirs: Vec<(std::path::PathBuf, FileId)>,
    hint: SyncSender<()>,
}

impl Watch {
    fn arm(&mut self, path: &Path) {
        let target = std::fs::canonicalize(path).ok();
        let parents = [Some(path), target.as_deref()].into_iter().flatten().filter_map(Path::parent);
        let mut dirs: Vec<_> = parents
            .map(|dir| if dir.as_os_str().is_empty() { Path::new(".") } else { dir })
            .filter_map(|dir| Some((dir.to_owned(), id_of(&std::fs::metadata(dir).ok()?))))
            .collect();
        dirs.dedup_by(|a, b| a.1 == b.1);
        if dirs == self.dirs {
            return;
        }
        let hint = self.hint.clone();
        // A new watcher each time: the old one's watches are of directories that are gone.
        self.watcher = notify::recommended_watcher(move |_| {
            let _ = hint.try_send(());
        })
        .ok();
        if let Some(watcher) = &mut self.watcher {
            for (dir, _) in &dirs {
                let _ = watcher.watch(dir, RecursiveMode::NonRecursive);
            }
        }
        self.dirs = dirs;
    }
}
