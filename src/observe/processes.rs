//! Ends of Hangar's child processes, where they can be seen (the same machine, or one process namespace).
//!
//! Hangar itself says nothing on its event stream or in its metrics when a stdio server dies: it notices at its next health
//! check. Its log does; this is for where no log is read. Which child was which server is not known here, and need not be:
//! an end only has Hangar's list read, at most once a second. Reads `/proc` of Linux; elsewhere it sees nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock;

/// A look at every child this often ...
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// ... but looking takes at most one part in this many of one core.
const IDLE_SHARE: u32 = 50;
/// New children are looked for this often: each thread of Hangar's has a list of its own.
const LIST_EVERY: Duration = Duration::from_secs(1);
/// While Hangar's process is not found.
const SEARCH_EVERY: Duration = Duration::from_secs(2);
/// Hangar tells when it loaded its metrics, which is this long after its process began, at most.
const LOADS_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// Its clock and the kernel's differ by this much at most.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_millis(500);
/// Processes that may be the one.
const CANDIDATES_MAX: usize = 8;
/// State of a socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";
/// `USER_HZ`, which every Linux that we run on fixes at 100.
const TICKS_PER_SECOND: i64 = 100;

/// A child of Hangar's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended;

/// The processes under `/proc`, and what was seen of them.
#[derive(Debug)]
pub struct Watched {
    proc: PathBuf,
    /// Where Hangar listens on this machine, if it does.
    port: Option<u16>,
    started: Option<Timestamp>,
    hangars: Vec<u32>,
    children: BTreeSet<u32>,
    listed: Option<Instant>,
    searched: Option<Instant>,
}

impl Watched {
    /// `proc` is `/proc`; `port` is where Hangar listens on this machine, if it does.
    #[must_use]
    pub fn new(proc: &Path, port: Option<u16>) -> Self {
        Self { proc: proc.to_owned(), port, started: None, hangars: Vec::new(), children: BTreeSet::new(), listed: None, searched: None }
    }

    /// Looks once. True if a child that ran at the last look has ended. `started` is what Hangar tells of its start.
    pub fn look(&mut self, started: Option<Timestamp>, now: Timestamp) -> bool {
        if self.started != started {
            *self = Self { started, ..Self::new(&self.proc, self.port) };
        }
        let before = self.children.len();
        self.children.retain(|pid| runs(&self.proc, *pid));
        let ended = self.children.len() < before;
        if self.listed.is_none_or(|at| at.elapsed() >= LIST_EVERY) {
            self.list(now);
        }
        // Where Hangar itself is gone its children are too; that is no news of theirs.
        ended && self.hangars.iter().any(|pid| runs(&self.proc, *pid))
    }

    fn list(&mut self, now: Timestamp) {
        self.listed = Some(Instant::now());
        self.hangars.retain(|pid| runs(&self.proc, *pid));
        if self.hangars.is_empty() {
            self.children.clear();
            self.search(now);
        }
        let all = self.hangars.iter().flat_map(|pid| children(&self.proc, *pid));
        self.children.extend(all.filter(|pid| runs(&self.proc, *pid)));
    }

    /// Whether Hangar's process is seen.
    #[must_use]
    pub fn sees_hangar(&self) -> bool {
        !self.hangars.is_empty()
    }

    fn search(&mut self, now: Timestamp) {
        let Some(started) = self.started else { return };
        if self.searched.is_some_and(|at| at.elapsed() < SEARCH_EVERY) {
            return;
        }
        self.searched = Some(Instant::now());
        let Some(boot) = boot_time(&self.proc, now) else { return };
        let pids = fs::read_dir(&self.proc).into_iter().flatten().flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        let in_time = |pid: u32| {
            let began = stat(&self.proc, pid).map(|s| boot + SignedDuration::from_millis(s.start_ticks * 1000 / TICKS_PER_SECOND));
            let took = began.map(|began| started.duration_since(began));
            took.is_some_and(|took| (-CLOCKS_DIFFER..=LOADS_WITHIN).contains(&took)) && is_hangar(&self.proc, pid)
        };
        let found: Vec<u32> = pids.filter(|pid| in_time(*pid)).take(CANDIDATES_MAX).collect();
        // Where several run on one machine it is the one that listens; if that cannot be told, each of them may be it.
        let sockets = self.port.map(|port| listening(&self.proc, port)).unwrap_or_default();
        let ours: Vec<u32> = found.iter().copied().filter(|pid| holds_one_of(&self.proc, *pid, &sockets)).collect();
        self.hangars = if ours.is_empty() { found } else { ours };
    }
}

/// Looks until `stop`; `started` is asked at each look. Slower where there is much to look at.
pub async fn follow<T: From<Ended> + Send>(
    proc: PathBuf,
    port: Option<u16>,
    started: impl Fn() -> Option<Timestamp> + Send,
    out: mpsc::Sender<T>,
    stop: CancellationToken,
) {
    let mut watched = Watched::new(&proc, port);
    let mut wait = LOOK_EVERY;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        let begun = Instant::now();
        let ended = watched.look(started(), clock::now());
        wait = if watched.sees_hangar() { LOOK_EVERY.max(begun.elapsed() * IDLE_SHARE) } else { SEARCH_EVERY };
        if ended && out.send(Ended.into()).await.is_err() {
            return;
        }
    }
}

struct Stat {
    state: char,
    start_ticks: i64,
}

/// `/proc/<pid>/stat`. The name in it may hold anything, so it is read from its last bracket on.
fn stat(proc: &Path, pid: u32) -> Option<Stat> {
    let text = fs::read(proc.join(pid.to_string()).join("stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some(Stat { state, start_ticks: fields.nth(18)?.parse().ok()? })
}

/// A zombie's parent has yet to look at it: it runs no more.
fn runs(proc: &Path, pid: u32) -> bool {
    stat(proc, pid).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X' | 'x'))
}

/// Children by the thread that made them.
fn children(proc: &Path, pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(proc.join(pid.to_string()).join("task"));
    let lists = threads.into_iter().flatten().flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}

fn is_hangar(proc: &Path, pid: u32) -> bool {
    let line = fs::read(proc.join(pid.to_string()).join("cmdline")).unwrap_or_default();
    let mut words = line.split(|b| *b == 0).take(4);
    words.any(|word| {
        let name = word.rsplit(|b| *b == b'/').next().unwrap_or_default();
        name == b"mcp-hangar" || name == b"mcp_hangar" || word.starts_with(b"mcp_hangar.")
    })
}

/// Sockets that listen on this port.
fn listening(proc: &Path, port: u16) -> BTreeSet<String> {
    let tables = ["net/tcp", "net/tcp6"].map(|table| fs::read_to_string(proc.join(table)).unwrap_or_default());
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let local = u16::from_str_radix(fields.get(1)?.rsplit(':').next()?, 16).ok()?;
        (local == port && *fields.get(3)? == LISTEN).then(|| format!("socket:[{}]", fields.get(9).unwrap_or(&"")))
    };
    tables.iter().flat_map(|table| table.lines().filter_map(socket)).collect()
}

fn holds_one_of(proc: &Path, pid: u32, sockets: &BTreeSet<String>) -> bool {
    let files = fs::read_dir(proc.join(pid.to_string()).join("fd")).into_iter().flatten().flatten();
    !sockets.is_empty() && files.filter_map(|f| fs::read_link(f.path()).ok()).any(|to| to.to_str().is_some_and(|to| sockets.contains(to)))
}

fn boot_time(proc: &Path, now: Timestamp) -> Option<Timestamp> {
    let text = fs::read_to_string(proc.join("uptime")).ok()?;
    let up: f64 = text.split_ascii_whitespace().next()?.parse().ok()?;
    now.checked_sub(SignedDuration::try_from_secs_f64(up).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `/proc` of files: booted at 1,000,000, 100 s ago; Hangar is process 10, begun 50 s after that.
    struct Proc(tempfile::TempDir);

    impl Proc {
        fn new() -> Self {
            let proc = Self(tempfile::tempdir().unwrap());
            proc.write("uptime", "100.00 350.12\n");
            proc.process(10, "(mcp-hangar) S)", "/v/bin/python3\0/v/bin/mcp-hangar\0serve\0", 5_000);
            proc.write("10/task/10/children", "");
            proc.write("10/fd/0", "");
            proc
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn process(&self, pid: u32, name: &str, cmdline: &str, ticks: u32) {
            let (name, state) = name.rsplit_once(' ').map_or((name, "S"), |(name, state)| (name, state.trim_end_matches(')')));
            self.write(&format!("{pid}/stat"), &format!("{pid} {name} {state} 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {ticks} 0 0\n"));
            self.write(&format!("{pid}/cmdline"), cmdline);
        }

        fn child(&self, pid: u32, state: char) {
            self.process(pid, &format!("(toy a) b) {state}"), "python3\0toy.py\0", 6_000);
        }
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_000_100).unwrap()
    }

    fn started(seconds: i64) -> Option<Timestamp> {
        Timestamp::from_second(1_000_000 + seconds).ok()
    }

    #[test]
    fn a_child_that_ended_is_told_once_a_zombie_counts_as_ended_and_a_new_one_does_not() {
        let proc = Proc::new();
        let mut watched = Watched::new(proc.0.path(), None);
        proc.child(20, 'S');
        proc.write("10/task/11/children", "20 ");
        assert!(!watched.look(started(52), now()));
        assert!(watched.sees_hangar());
        proc.child(21, 'R');
        proc.write("10/task/10/children", "21 ");
        watched.listed = None;
        assert!(!watched.look(started(52), now()), "a new child");
        proc.child(20, 'Z');
        assert!(watched.look(started(52), now()), "a zombie");
        assert!(!watched.look(started(52), now()), "once");
        fs::remove_dir_all(proc.0.path().join("21")).unwrap();
        assert!(watched.look(started(52), now()), "gone");
    }

    #[test]
    fn only_a_hangar_of_the_right_age_is_watched_and_its_end_is_no_childs() {
        let proc = Proc::new();
        proc.child(20, 'S');
        proc.write("10/task/10/children", "20");
        for wrong in [started(10), started(500), None] {
            let mut watched = Watched::new(proc.0.path(), None);
            assert!(!watched.look(wrong, now()) && !watched.sees_hangar(), "{wrong:?}");
        }
        // Another one that began earlier, with a child that ends.
        proc.process(9, "(mcp-hangar)", "python3\0-m\0mcp_hangar\0", 4_000);
        proc.write("9/task/9/children", "30");
        proc.child(30, 'S');
        proc.write("net/tcp", "  sl  local_address ...\n   0: 0100007F:1F40 00000000:0000 0A 0:0 0:0 0 0 0 777 1\n");
        std::os::unix::fs::symlink("socket:[777]", proc.0.path().join("10/fd/5")).unwrap();
        let (mut exact, mut either) = (Watched::new(proc.0.path(), Some(8000)), Watched::new(proc.0.path(), Some(8001)));
        assert!(!exact.look(started(52), now()) && !either.look(started(52), now()));
        proc.child(30, 'Z');
        assert!(!exact.look(started(52), now()), "a neighbour's child");
        assert!(either.look(started(52), now()), "nobody knows whose");
        fs::remove_dir_all(proc.0.path().join("9")).unwrap();
        let mut watched = Watched::new(proc.0.path(), None);
        watched.look(started(52), now());
        fs::remove_dir_all(proc.0.path().join("10")).unwrap();
        watched.listed = None;
        assert!(!watched.look(started(52), now()) && !watched.sees_hangar());
        let mut nothing = Watched::new(&proc.0.path().join("none"), None);
        assert!(!nothing.look(started(52), now()));
    }
}
