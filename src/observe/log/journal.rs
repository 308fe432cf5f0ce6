//! Hangar's log in systemd's journal, through `journalctl -o json --follow` as a child.
//!
//! The child is begun *at* the last cursor and not after it: systemd goes to the nearest entry when that one is gone
//! (rotated, vacuumed), so only seeing it again proves that nothing is missing. What is missing is counted as a gap.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::tail::{Checkpoint, TailCounts, Update};
use super::{Change, InputFormat, Reader, ServerState, Splitter};
use crate::hangar::fault::clean_to;
use crate::jitter::{Backoff, Jitter};
use crate::observe::line;

/// Without a cursor so many of the unit's last entries are read.
const FIRST_ENTRIES: &str = "--lines=100000";
/// Nothing for this long: everything that was written is read.
const QUIET: Duration = Duration::from_millis(200);
/// How often the position is told while the entries tell nothing.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
const RESTART_FIRST: Duration = Duration::from_millis(500);
const RESTART_MAX: Duration = Duration::from_secs(30);
/// A child that lasted this long was a good one.
const GOOD_AFTER: Duration = Duration::from_secs(30);
/// Children in a row that end without one entry, until the cursor is given up: it may be another machine's.
const BARREN_MAX: u32 = 3;
/// Bytes of stderr that are kept to say why it ended.
const WORDS_MAX: usize = 4096;
const CHUNK: usize = 64 * 1024;

/// What is followed, and with what.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `journalctl`: looked for on `PATH` where it has no slash.
    pub program: PathBuf,
    /// What selects the entries, e.g. `--unit=mcp-hangar.service`.
    pub select: Vec<OsString>,
}

impl Settings {
    /// The entries of one systemd unit.
    #[must_use]
    pub fn unit(unit: &str) -> Self {
        Self { program: "journalctl".into(), select: vec![format!("--unit={unit}").into()] }
    }

    fn command(&self, cursor: Option<&str>) -> Command {
        let mut command = Command::new(&self.program);
        // --all: without it a long field is null. Its own pager or colours must not depend on our environment.
        command.args(["--output=json", "--follow", "--all", "--no-pager", "--quiet"]).args(&self.select);
        match cursor {
            Some(cursor) => command.arg(format!("--cursor={cursor}")).arg("--no-tail"),
            None => command.arg(FIRST_ENTRIES),
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }
}

/// Follows the journal until `stop`; the child ends with it.
pub async fn follow<T: From<Update> + Send>(
    settings: Settings,
    checkpoint: Option<Checkpoint>,
    jitter: Jitter,
    out: mpsc::Sender<T>,
    stop: CancellationToken,
) {
    let mut journal = Journal::new(checkpoint, out);
    let mut backoff = Backoff::new(jitter, RESTART_FIRST, RESTART_MAX);
    loop {
        let begun = Instant::now();
        let why = tokio::select! {
            () = stop.cancelled() => return,
            why = journal.one_child(&settings) => why,
        };
        let Some(why) = why else { return };
        if begun.elapsed() >= GOOD_AFTER {
            backoff.reset();
        }
        journal.trouble = Some(why);
        let told = async {
            if journal.tell().await.is_ok() {
                sleep(backoff.wait()).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = told => {}
        }
    }
}

/// What is kept from one child to the next.
struct Journal<T> {
    reader: Reader,
    cursor: Option<String>,
    servers: Arc<[ServerState]>,
    told: Vec<super::Told>,
    line_sha256: Vec<(u64, String)>,
    counts: TailCounts,
    /// Bytes that all children before this one wrote.
    read: u64,
    /// Children in a row that ended without an entry.
    barren: u32,
    caught_up: bool,
    trouble: Option<String>,
    sent: Instant,
    unsent: bool,
    out: mpsc::Sender<T>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "__CURSOR")]
    cursor: Option<String>,
}

impl<T: From<Update> + Send> Journal<T> {
    fn new(checkpoint: Option<Checkpoint>, out: mpsc::Sender<T>) -> Self {
        let (cursor, reader) = match checkpoint {
            Some(checkpoint) => (checkpoint.cursor, Reader::restored_from(checkpoint.reader, InputFormat::Journald)),
            None => (None, Reader::new(InputFormat::Journald)),
        };
        Self {
            servers: reader.classifier().states().collect(),
            reader,
            cursor,
            told: Vec::new(),
            line_sha256: Vec::new(),
            counts: TailCounts::default(),
            read: 0,
            barren: 0,
            caught_up: false,
            trouble: None,
            sent: Instant::now(),
            unsent: true,
            out,
        }
    }

    /// Runs one child to its end, and says why it ended; `None`: nobody listens any more.
    async fn one_child(&mut self, settings: &Settings) -> Option<String> {
        let name = settings.program.display();
        let mut child = match settings.command(self.cursor.as_deref()).spawn() {
            Ok(child) => child,
            Err(error) => return Some(format!("{name} cannot be started: {error}")),
        };
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Some(format!("{name} has no output"));
        };
        let before = self.counts.lines;
        let entries = async {
            let read = self.entries(stdout).await;
            (read, end(&mut child).await)
        };
        let ((read, ended), words) = tokio::join!(entries, last_words(stderr));
        read.ok()?;
        self.barren = if self.counts.lines > before { 0 } else { self.barren + 1 };
        if self.barren >= BARREN_MAX && self.cursor.is_some() {
            self.barren = 0;
            self.lost();
            self.cursor = None;
        }
        let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
        Some(format!("{name} ended ({how}): {}", if words.is_empty() { "it said nothing" } else { &words }))
    }

    /// Reads a child's entries until it ends. An error: nobody listens.
    async fn entries(&mut self, mut stdout: impl AsyncRead + Unpin) -> Result<(), Gone> {
        let mut splitter = Splitter::at(self.read, false);
        let mut first = self.cursor.is_some();
        let mut chunk = vec![0; CHUNK];
        let none = self.counts.lines;
        loop {
            // A large journal takes a while to be opened.
            let quiet = if self.counts.lines == none { QUIET * 5 } else { QUIET };
            let got = if let Ok(got) = timeout(quiet, stdout.read(&mut chunk)).await {
                got
            } else {
                let recovered = self.trouble.take().is_some();
                if !self.caught_up || recovered || (self.unsent && self.sent.elapsed() > PROGRESS_EVERY) {
                    self.caught_up = true;
                    self.tell().await?;
                }
                if self.unsent {
                    continue;
                }
                // Without a bound: there is nothing to say until something comes.
                stdout.read(&mut chunk).await
            };
            if !self.take(got, &chunk, &mut splitter, &mut first) {
                break;
            }
            if !self.told.is_empty() {
                self.tell().await?;
            }
        }
        self.read = splitter.position();
        Ok(())
    }

    /// Takes what was read; false at the end.
    fn take(&mut self, got: std::io::Result<usize>, chunk: &[u8], splitter: &mut Splitter, first: &mut bool) -> bool {
        let bytes = got.ok().and_then(|got| chunk.get(..got)).unwrap_or_default();
        let too_long = splitter.too_long();
        splitter.feed(bytes, &mut |offset, line| self.entry(offset, line, first));
        self.counts.too_long += splitter.too_long() - too_long;
        !bytes.is_empty()
    }

    fn entry(&mut self, offset: u64, line: &[u8], first: &mut bool) {
        let cursor = serde_json::from_slice::<Entry>(line).ok().and_then(|entry| entry.cursor);
        self.counts.lines += 1;
        self.unsent = true;
        if std::mem::take(first) {
            if cursor == self.cursor {
                return;
            }
            self.lost();
        }
        if cursor.is_some() {
            self.cursor = cursor;
        }
        let Self { reader, told, .. } = self;
        let before = told.len();
        reader.line(line, offset, &mut |t| told.push(t));
        if told.iter().skip(before).any(|t| matches!(t.what, Change::Dead { .. })) {
            self.line_sha256.push((offset, line::sha256_of(line)));
        }
    }

    fn lost(&mut self) {
        self.counts.gaps += 1;
        self.unsent = true;
        tracing::warn!(event = "log_cursor_lost", "the journal does not hold the entry that was read last any more: some may be missing");
    }

    async fn tell(&mut self) -> Result<(), Gone> {
        let told = std::mem::take(&mut self.told);
        if !told.is_empty() {
            self.servers = self.reader.classifier().states().collect();
        }
        (self.sent, self.unsent) = (Instant::now(), false);
        let update = Update {
            told,
            line_sha256: std::mem::take(&mut self.line_sha256),
            servers: Arc::clone(&self.servers),
            checkpoint: Checkpoint { reader: self.reader.save(), cursor: self.cursor.clone(), ..Checkpoint::default() },
            counts: self.counts,
            frames: self.reader.counts(),
            trouble: self.trouble.clone(),
            caught_up: self.caught_up,
        };
        self.out.send(update.into()).await.map_err(|_| Gone)
    }
}

/// The receiver is gone.
struct Gone;

/// Ends the child, if it has not ended, and reaps it.
async fn end(child: &mut Child) -> std::io::Result<ExitStatus> {
    // Its stdout is closed: it is at its end, or of no use any more.
    if let Ok(ended) = timeout(QUIET, child.wait()).await {
        return ended;
    }
    child.start_kill()?;
    child.wait().await
}

/// What it says on stderr, of which the end is kept.
async fn last_words(mut stderr: impl AsyncRead + Unpin) -> String {
    let (mut words, mut chunk) = (Vec::new(), vec![0; WORDS_MAX]);
    while let Ok(got @ 1..) = stderr.read(&mut chunk).await {
        words.extend_from_slice(chunk.get(..got).unwrap_or_default());
        words.drain(..words.len().saturating_sub(WORDS_MAX));
    }
    clean_to(String::from_utf8_lossy(&words).trim(), 200)
}
