//! The follower as the daemon uses it.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use hangar_medic::observe::log::{Change, Checkpoint, Follower, InputFormat, Update, follow};
use tokio::sync::mpsc::Receiver;

use super::corpus::scenario;

const SOON: Duration = Duration::from_secs(20);

fn begin(path: &Path, from: Option<Checkpoint>, interval: Duration) -> (Follower, Receiver<Update>) {
    follow(path, InputFormat::Auto, from, interval).unwrap()
}

fn next(updates: &mut Receiver<Update>) -> Update {
    let from = Instant::now();
    while from.elapsed() < SOON {
        if let Ok(update) = updates.try_recv() {
            return update;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("no update in {SOON:?}");
}

fn caught_up(updates: &mut Receiver<Update>) -> Update {
    loop {
        let update = next(updates);
        if update.caught_up {
            return update;
        }
    }
}

fn dead(update: &Update) -> Vec<String> {
    let mut dead: Vec<_> = update.servers.iter().filter_map(|s| Some(format!("{} {}", s.mcp_server, s.dead?))).collect();
    dead.sort();
    dead
}

fn append(path: &Path, bytes: &[u8]) {
    OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(bytes).unwrap();
}

const DIES: &[u8] = b"{\"event\": \"mcp_server_dead: api\", \"level\": \"warning\", \"logger\": \"mcp_hangar.domain.model.mcp_server\", \"timestamp\": \"2026-11-30T15:20:58.708768Z\", \"service\": \"mcp-hangar\"}\n";

#[test]
fn the_first_update_that_caught_up_says_how_the_servers_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hangar.log");
    fs::write(&path, &scenario("2.34.4/forge").json).unwrap();
    let (_follower, mut updates) = begin(&path, None, SOON);
    let first = caught_up(&mut updates);
    assert_eq!(dead(&first), ["liar2 start_failed", "liar3 start_failed", "liar5 capability_blocked"]);
    let blocked = first.servers.iter().find(|s| s.mcp_server == "liar5").unwrap();
    assert!(blocked.capability_blocked_since_start && !blocked.undeclared_tools.is_empty());
    assert!(blocked.file.inode > 0);
}

#[test]
fn a_path_that_is_not_there_yet_is_caught_up_with_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("later/hangar.log");
    let (_follower, mut updates) = begin(&path, None, Duration::from_millis(50));
    assert!(caught_up(&mut updates).servers.is_empty());
    fs::create_dir(path.parent().unwrap()).unwrap();
    append(&path, DIES);
    assert_eq!(dead(&next(&mut updates)), ["api crashed"]);
}

#[test]
fn what_cannot_be_read_is_said_and_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hangar.log");
    fs::create_dir(&path).unwrap();
    let (_follower, mut updates) = begin(&path, None, Duration::from_millis(20));
    let first = next(&mut updates);
    assert_eq!((first.trouble.as_deref(), first.caught_up), (Some("not a regular file"), false));
    fs::remove_dir(&path).unwrap();
    append(&path, DIES);
    let mut last = caught_up(&mut updates);
    // Between the two calls it may have been seen not to be there.
    while last.servers.is_empty() {
        last = next(&mut updates);
    }
    assert_eq!((last.trouble, last.servers.len()), (None, 1));
}

#[test]
fn inotify_brings_a_line_long_before_the_interval() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hangar.log");
    append(&path, b"");
    let (_follower, mut updates) = begin(&path, None, Duration::from_mins(10));
    caught_up(&mut updates);
    let from = Instant::now();
    append(&path, DIES);
    let update = next(&mut updates);
    assert_eq!(update.told.len(), 1);
    assert_eq!((update.told[0].mcp_server.as_deref(), update.told[0].offset), (Some("api"), 0));
    assert!(from.elapsed() < Duration::from_secs(5), "{:?}", from.elapsed());
}

#[test]
fn what_was_known_outlives_the_process_though_its_lines_are_rotated_away() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hangar.log");
    fs::write(&path, &scenario("2.34.4/forge").json).unwrap();
    let (follower, mut updates) = begin(&path, None, SOON);
    let before = caught_up(&mut updates);
    drop((follower, updates));
    let saved = serde_json::to_string(&before.checkpoint).unwrap();
    fs::remove_file(&path).unwrap();
    append(&path, DIES);
    let (_follower, mut updates) = begin(&path, Some(serde_json::from_str(&saved).unwrap()), SOON);
    let after = caught_up(&mut updates);
    assert_eq!(dead(&after), ["api crashed", "liar2 start_failed", "liar3 start_failed", "liar5 capability_blocked"]);
    assert_eq!(after.counts.gaps, 1, "the end of the old file is gone");
    assert_eq!(after.told.iter().filter(|t| matches!(t.what, Change::Dead { .. })).count(), 1);
}

fn starts(from: u32, to: u32) -> Vec<u8> {
    let line = |n| String::from_utf8_lossy(DIES).replace("dead: api", &format!("dead: s{n}")).replace("58.708768", &format!("58.{n:06}"));
    (from..to).map(line).collect::<String>().into_bytes()
}

#[test]
fn files_that_were_rotated_and_compressed_meanwhile_are_read_to_their_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    fs::write(&path, starts(0, 100)).unwrap();
    let (follower, mut updates) = begin(&path, None, SOON);
    let before = caught_up(&mut updates);
    drop((follower, updates));
    append(&path, &starts(100, 200));
    let gzip = |name: &str, bytes: &[u8]| {
        let mut gz = flate2::write::GzEncoder::new(fs::File::create(dir.path().join(name)).unwrap(), flate2::Compression::fast());
        gz.write_all(bytes).unwrap();
        gz.finish().unwrap();
    };
    fs::write(dir.path().join("0.log.20261130-152002"), starts(300, 400)).unwrap();
    gzip("0.log.20261130-152001.gz", &starts(200, 300));
    gzip("0.log.20261130-152000.gz", &fs::read(&path).unwrap());
    fs::remove_file(&path).unwrap();
    append(&path, &starts(400, 450));
    let (follower, mut updates) = begin(&path, Some(before.checkpoint), Duration::from_millis(20));
    let mut told = Vec::new();
    let last = loop {
        let update = next(&mut updates);
        told.extend(update.told.iter().map(|t| t.mcp_server.clone().unwrap()));
        if update.caught_up {
            break update;
        }
    };
    assert_eq!(told, (100..450).map(|n| format!("s{n}")).collect::<Vec<_>>());
    assert_eq!(last.counts.gaps, 0);
    drop((follower, updates));
    let (_follower, mut updates) = begin(&path, Some(last.checkpoint), Duration::from_millis(20));
    assert_eq!(caught_up(&mut updates).told, [], "none of it is read again");
}

#[test]
fn a_receiver_that_does_not_take_stops_the_reading_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hangar.log");
    append(&path, b"");
    let (_follower, mut updates) = begin(&path, None, Duration::from_millis(5));
    for _ in 0..60 {
        append(&path, DIES);
        thread::sleep(Duration::from_millis(10));
    }
    let mut told = 0;
    while told < 60 {
        told += next(&mut updates).told.len();
    }
    assert_eq!(told, 60);
}

/// CPU time of the thread that follows, from the kernel's own count.
fn cpu(thread: &str) -> Duration {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

fn followers() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_follower = |task: &String| fs::read_to_string(format!("/proc/self/task/{task}/comm")).is_ok_and(|comm| comm == "hangar-log\n");
    tasks.filter(is_follower).collect()
}

#[test]
fn a_follower_with_nothing_to_read_takes_less_than_a_hundredth_of_a_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<_> = ["still", "missing", "deleted", "rotated", "no/dir"].iter().map(|name| dir.path().join(name)).collect();
    for (i, path) in paths.iter().enumerate().filter(|(i, _)| [0, 2, 3].contains(i)) {
        fs::write(path, &scenario("2.34.4/group").json).unwrap();
        (1..=20).for_each(|n| fs::write(format!("{}.{n}", path.display()), format!("{i} {n}\n").repeat(500)).unwrap());
    }
    let before = followers();
    let mut running: Vec<_> = paths.iter().map(|path| begin(path, None, Duration::from_millis(250))).collect();
    for (_, updates) in &mut running {
        caught_up(updates);
    }
    fs::remove_file(&paths[2]).unwrap();
    fs::rename(&paths[3], dir.path().join("rotated.0")).unwrap();
    thread::sleep(Duration::from_millis(600));
    let ours: Vec<String> = followers().into_iter().filter(|task| !before.contains(task)).collect();
    assert!(ours.len() >= paths.len());
    let (from, used): (Instant, Vec<_>) = (Instant::now(), ours.iter().map(|task| cpu(task)).collect());
    thread::sleep(Duration::from_secs(3));
    for (task, used) in ours.iter().zip(used) {
        // A follower of another test may have ended meanwhile.
        let share = fs::metadata(format!("/proc/self/task/{task}"))
            .map_or(0.0, |_| cpu(task).saturating_sub(used).as_secs_f64() / from.elapsed().as_secs_f64());
        assert!(share < 0.01, "{share}");
    }
}
