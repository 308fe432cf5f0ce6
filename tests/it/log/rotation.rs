//! Every kind of rotation, with the writer in a process of its own.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hangar_medic::observe::log::tail::TailCounts;
use hangar_medic::observe::log::{Change, Checkpoint, InputFormat, Tail, follow};

const ROUNDS: u32 = 6;
const PER_ROUND: u32 = 200;

struct Case {
    kind: &'static str,
    /// The reader is thrown away at random, with what it had not handed over, and starts from its last checkpoint.
    restarts: bool,
    /// It truncates: whether lines are gone nobody can know, so each time is counted as a gap.
    truncates: bool,
    /// Lines may really be gone before anybody could read them: no copy of them is left.
    may_lose: bool,
}

const fn case(kind: &'static str) -> Case {
    Case { kind, restarts: false, truncates: false, may_lose: false }
}

const CASES: &[Case] = &[
    case("rename_create"),
    case("back_to_back"),
    case("keeps_descriptor"),
    case("symlink_swap"),
    case("kubelet"),
    case("partial"),
    case("noise"),
    case("delete_recreate"),
    case("directory_goes"),
    Case { truncates: true, ..case("copytruncate") },
    Case { truncates: true, may_lose: true, ..case("copytruncate_concurrent") },
    Case { truncates: true, may_lose: true, ..case("truncate_grow") },
    Case { truncates: true, may_lose: true, ..case("hole") },
    Case { restarts: true, ..case("rename_create") },
    Case { restarts: true, ..case("back_to_back") },
    Case { restarts: true, ..case("partial") },
    Case { restarts: true, ..case("keeps_descriptor") },
    Case { restarts: true, truncates: true, ..case("copytruncate") },
];

#[derive(Default)]
struct Seen {
    lines: Vec<u32>,
    gaps: u64,
}

/// A small generator of its own: the moments of the restarts differ by case and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn number(name: &str) -> u32 {
    name.strip_prefix('s').unwrap().parse().unwrap()
}

/// How long nothing has to come until nothing more will, once the writer is done: soon when every line is there, else only
/// after what a busy machine may take to read on.
fn quiet(total: Option<u32>, lines: &[u32]) -> Duration {
    let all = total.is_some_and(|total| lines.iter().collect::<std::collections::HashSet<_>>().len() >= total as usize);
    if all { Duration::from_millis(600) } else { Duration::from_secs(5) }
}

/// Follows until the writer is done and nothing more comes, or until the dice say that the reader dies.
fn read_on(
    path: &Path,
    from: Option<Checkpoint>,
    dice: &mut Dice,
    case: &Case,
    writer: &mut Writer,
    seen: &mut Seen,
) -> (Option<Checkpoint>, bool) {
    let interval = Duration::from_millis(100);
    let (follower, mut updates) = follow(path, InputFormat::Auto, from.clone(), interval).unwrap();
    let (mut checkpoint, mut last, mut counts) = (from, Instant::now(), TailCounts::default());
    let dies_after = case.restarts.then(|| dice.roll(12) + 1);
    let mut finished = false;
    for n in 0.. {
        if dies_after == Some(n) && writer.total().is_none() {
            break;
        }
        let update = loop {
            match updates.try_recv() {
                Ok(update) => break Some(update),
                Err(_) if writer.total().is_some() && last.elapsed() > quiet(writer.total(), &seen.lines) => break None,
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
        };
        let Some(update) = update else {
            finished = true;
            break;
        };
        assert_eq!(update.trouble, None, "{}", case.kind);
        seen.lines.extend(update.told.iter().filter(|t| t.what == Change::Ready).map(|t| number(t.mcp_server.as_deref().unwrap())));
        (checkpoint, last, counts) = (Some(update.checkpoint), Instant::now(), update.counts);
    }
    seen.gaps += counts.gaps;
    drop((follower, updates));
    (checkpoint, finished)
}

fn run(case: &Case) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("log");
    fs::create_dir(&home).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/log/writer.py");
    let mut writer = Command::new("python3");
    writer.arg(script).args([case.kind, home.to_str().unwrap(), &ROUNDS.to_string(), &PER_ROUND.to_string()]);
    let (path, mut dice, mut seen) = (home.join("hangar.log"), Dice(case.kind.len() as u64), Seen::default());
    // The file does not exist yet when the reader starts.
    let mut checkpoint = Some(Tail::new(&path, None).checkpoint());
    let mut writer = Writer { process: writer.stdout(Stdio::piped()).spawn().unwrap(), total: None };
    loop {
        let finished;
        (checkpoint, finished) = read_on(&path, checkpoint, &mut dice, case, &mut writer, &mut seen);
        if finished {
            break;
        }
    }
    judge(case, &home, writer.total().unwrap(), seen)
}

struct Writer {
    process: Child,
    total: Option<u32>,
}

impl Writer {
    /// How many lines it wrote, once it is done.
    fn total(&mut self) -> Option<u32> {
        if self.total.is_none() && self.process.try_wait().unwrap().is_some() {
            let mut told = String::new();
            self.process.stdout.take().unwrap().read_to_string(&mut told).unwrap();
            self.total = Some(told.trim().parse().unwrap());
        }
        self.total
    }
}

fn judge(case: &Case, home: &Path, total: u32, mut seen: Seen) -> Result<(), String> {
    assert!(total >= 1_000);
    let all = seen.lines.len();
    seen.lines.sort_unstable();
    seen.lines.dedup();
    let doubled = all - seen.lines.len();
    let lost: Vec<u32> = (1..=total).filter(|n| seen.lines.binary_search(n).is_err()).collect();
    let on_disk = |n: &u32| {
        let needle = format!("started: s{n},");
        fs::read_dir(home)
            .unwrap()
            .any(|entry| fs::read(entry.unwrap().path()).is_ok_and(|bytes| memchr::memmem::find(&bytes, needle.as_bytes()).is_some()))
    };
    let readable = lost.iter().filter(|n| on_disk(n)).count();
    let what = format!(
        "{}{}: {total} lines, {} lost ({readable} of them still on disk; first {:?}), {doubled} doubled, {} gaps",
        case.kind,
        if case.restarts { " with restarts" } else { "" },
        lost.len(),
        lost.first(),
        seen.gaps
    );
    eprintln!("{what}");
    let fine = doubled == 0 && readable == 0 && (lost.is_empty() || case.may_lose) && case.truncates == (seen.gaps > 0);
    if fine { Ok(()) } else { Err(what) }
}

#[test]
fn no_kind_of_rotation_loses_a_line_or_tells_one_twice() {
    let failed: Vec<String> = thread::scope(|scope| {
        let running: Vec<_> = CASES.iter().map(|case| scope.spawn(move || run(case))).collect();
        running.into_iter().filter_map(|case| case.join().unwrap().err()).collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
