//! Hangar's log in systemd's journal: the real `journalctl` on a journal file, and a stand-in that fails as it may.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hangar_medic::jitter::Jitter;
use hangar_medic::observe::log::journal::{Settings, follow};
use hangar_medic::observe::log::{Change, Checkpoint, InputFormat, Reader, Splitter, Update};
use hangar_medic::supervise::Children;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, channel};
use tokio_util::sync::CancellationToken;

use super::corpus::{Dead, scenario};
use crate::support::poll;

struct Following {
    updates: Receiver<Update>,
    stop: CancellationToken,
    task: Children<(), ()>,
}

impl Following {
    fn begin(settings: &Settings, from: Option<Checkpoint>) -> Self {
        let ((tell, updates), stop, mut task) = (channel(64), CancellationToken::new(), Children::new());
        task.spawn((), follow(settings.clone(), from, Jitter::seeded(7), tell, stop.clone()));
        Self { updates, stop, task }
    }

    async fn next(&mut self) -> Update {
        tokio::time::timeout(Duration::from_secs(30), self.updates.recv()).await.expect("an update").unwrap()
    }

    /// Everything that is told until `holds`, and the update that does.
    async fn until(&mut self, mut holds: impl FnMut(&Update) -> bool) -> (Vec<String>, Update) {
        let mut ready = Vec::new();
        loop {
            let update = self.next().await;
            let told = update.told.iter().filter(|t| t.what == Change::Ready).filter_map(|t| t.mcp_server.clone());
            ready.extend(told);
            if holds(&update) {
                return (ready, update);
            }
        }
    }

    async fn end(mut self) {
        self.stop.cancel();
        self.task.next().await.1.unwrap();
    }
}

fn dead(update: &Update) -> Dead {
    let dead = |s: &hangar_medic::observe::log::ServerState| Some((s.mcp_server.clone(), Some(s.dead?.to_string())));
    update.servers.iter().filter_map(dead).collect::<BTreeMap<_, _>>()
}

/// What the same log says as a file.
fn of_the_file() -> Dead {
    let (mut reader, mut splitter) = (Reader::new(InputFormat::Console), Splitter::default());
    splitter.feed(&scenario("2.34.4/forge").console, &mut |offset, line| reader.line(line, offset, &mut |_| {}));
    super::corpus::dead(&reader)
}

/// The journal file that systemd made of a recorded console log, with another unit's forgeries between its entries.
fn real(dir: &Path) -> Settings {
    let packed: &[u8] = include_bytes!("../../fixtures/journal/forge.journal.gz");
    let mut journal = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut journal).unwrap();
    let path = dir.join("forge.journal");
    std::fs::write(&path, journal).unwrap();
    Settings { program: "journalctl".into(), select: vec![format!("--file={}", path.display()).into(), "--unit=mcp-hangar.service".into()] }
}

#[tokio::test]
async fn the_real_journalctl_gives_what_the_log_file_gives_and_goes_on_at_its_cursor() {
    let dir = tempfile::tempdir().unwrap();
    let settings = real(dir.path());
    let mut all = Following::begin(&settings, None);
    let (_, end) = all.until(|update| update.caught_up).await;
    let wanted: Dead = of_the_file();
    assert_eq!((dead(&end), end.counts.lines, end.counts.gaps, end.trouble), (wanted.clone(), 1227, 0, None));
    all.end().await;

    let mut again = Following::begin(&settings, Some(end.checkpoint.clone()));
    let (_, update) = again.until(|update| update.caught_up).await;
    assert_eq!((dead(&update), update.told.len(), update.counts.gaps), (wanted.clone(), 0, 0));
    again.end().await;

    // A cursor of a journal that is gone: the nearest entry is told, and a gap.
    let other = end.checkpoint.cursor.clone().map(|cursor| format!("s=00000000000000000000000000000001{}", &cursor[34..]));
    let mut rotated = Following::begin(&settings, Some(Checkpoint { cursor: other, ..end.checkpoint.clone() }));
    let (_, update) = rotated.until(|update| update.counts.gaps > 0).await;
    assert_eq!(dead(&update), wanted);
    rotated.end().await;

    // One that is no cursor: after some tries everything is read anew.
    let mut garbage = Following::begin(&settings, Some(Checkpoint { cursor: Some("no cursor".to_owned()), ..Checkpoint::default() }));
    let (_, update) = garbage.until(|update| update.trouble.as_ref().is_some_and(|why| why.contains("Failed to seek to cursor"))).await;
    assert_eq!((update.counts.lines, update.caught_up), (0, false));
    let (_, update) = garbage.until(|update| update.caught_up).await;
    assert_eq!((dead(&update), update.counts.gaps, update.trouble), (wanted, 1, None));
    garbage.end().await;
}

/// A directory with the stand-in, its settings and its log of `lines` starts.
struct Stand {
    dir: tempfile::TempDir,
}

impl Stand {
    fn new(lines: std::ops::Range<u32>, how: &Value) -> Self {
        let stand = Self { dir: tempfile::tempdir().unwrap() };
        install(stand.dir.path(), &stand.dir.path().join("log"), how);
        stand.write(lines);
        stand
    }

    fn write(&self, lines: std::ops::Range<u32>) {
        use std::io::Write as _;
        let mut log = std::fs::File::options().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        for n in lines {
            let line = format!(
                r#"{{"event": "mcp_server_started: s{n}, mode=subprocess, tools=1", "level": "info", "logger": "mcp_hangar.domain.model.mcp_server", "timestamp": "2026-11-30T15:20:00.{n:06}Z", "service": "mcp-hangar"}}"#
            );
            writeln!(log, "{line}").unwrap();
        }
    }

    fn settings(&self) -> Settings {
        Settings { program: self.dir.path().join("journalctl"), ..Settings::unit("mcp-hangar.service") }
    }

    fn calls(&self) -> Vec<Value> {
        calls(self.dir.path())
    }
}

/// Puts the stand-in into `dir`, over the lines of `log`.
pub fn install(dir: &Path, log: &Path, how: &Value) {
    let mut all = json!({"log": log});
    crate::support::medic::merge(&mut all, how);
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join("journalctl.json"), all.to_string()).unwrap();
    let program = dir.join("journalctl");
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/log/journalctl.py"), &program).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// How it was called, oldest first.
pub fn calls(dir: &Path) -> Vec<Value> {
    let calls = std::fs::read_to_string(dir.join("journalctl.calls")).unwrap_or_default();
    calls.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn names(lines: std::ops::Range<u32>) -> Vec<String> {
    lines.map(|n| format!("s{n}")).collect()
}

#[tokio::test]
async fn a_journalctl_that_fails_is_started_again_and_every_line_is_told_once() {
    let stand = Stand::new(0..25, &json!({"quits_after": 10}));
    let mut following = Following::begin(&stand.settings(), None);
    let (mut told, _) = following.until(|update| update.counts.lines >= 20).await;
    assert!(stand.calls()[1]["args"].as_array().unwrap().iter().any(|arg| arg.as_str().unwrap().starts_with("--cursor=")));
    stand.write(25..30);
    let (more, update) = following.until(|update| update.told.iter().any(|t| t.mcp_server.as_deref() == Some("s29"))).await;
    told.extend(more);
    assert_eq!((told, update.counts.gaps), (names(0..30), 0));
    following.end().await;
}

#[tokio::test]
async fn entries_that_were_vacuumed_away_are_a_gap() {
    let stand = Stand::new(0..10, &json!({}));
    let mut following = Following::begin(&stand.settings(), None);
    let (_, update) = following.until(|update| update.counts.lines == 10).await;
    following.end().await;
    stand.write(10..20);
    install(stand.dir.path(), &stand.dir.path().join("log"), &json!({"forgotten": 15}));
    let mut following = Following::begin(&stand.settings(), Some(update.checkpoint));
    let (told, update) = following.until(|update| update.told.iter().any(|t| t.mcp_server.as_deref() == Some("s19"))).await;
    assert_eq!((told, update.counts.gaps), (names(15..20), 1));
    following.end().await;
}

#[tokio::test]
async fn the_child_ends_with_the_follower_and_is_reaped_and_an_endless_line_fills_no_memory() {
    let stand = Stand::new(0..1, &json!({}));
    {
        use std::io::Write as _;
        let mut log = std::fs::File::options().append(true).open(stand.dir.path().join("log")).unwrap();
        log.write_all(&b"x".repeat(3 << 20)).unwrap();
        log.write_all(b"\n").unwrap();
    }
    stand.write(1..3);
    let mut following = Following::begin(&stand.settings(), None);
    let (told, update) = following.until(|update| update.told.iter().any(|t| t.mcp_server.as_deref() == Some("s2"))).await;
    assert_eq!((told, update.counts.too_long, update.counts.gaps), (names(0..3), 1, 0));
    following.end().await;
    let child = PathBuf::from(format!("/proc/{}", stand.calls()[0]["pid"]));
    // A zombie would still be there.
    let gone = async {
        while child.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("the child is gone");
}

#[tokio::test]
async fn without_journalctl_it_is_told_and_tried_again() {
    let settings = Settings { program: "/nowhere/journalctl".into(), ..Settings::unit("x.service") };
    let mut following = Following::begin(&settings, None);
    for _ in 0..2 {
        let update = following.next().await;
        assert!(update.trouble.as_ref().unwrap().contains("/nowhere/journalctl cannot be started: No such file"), "{:?}", update.trouble);
    }
    following.end().await;
}

#[test]
fn the_daemon_reads_the_journal_and_goes_on_where_it_was_after_a_restart() {
    let w =
        crate::support::world::Unwatched::start(crate::support::V2_34, |h| h.server("api", "ok", &json!({"health_check_interval_s": 60})));
    w.hangar.bring_up(&["api"]);
    let bin = w.dir().join("medic/bin");
    install(&bin, &w.hangar.log_file(), &json!({}));
    let mut w = w.watch_without_log(&json!({"hangar": {"log_journal": "mcp-hangar.service", "poll_interval": "20s"}}));
    w.hangar.kill_child("api");
    w.wait_closed("api", "recovered", 15);
    assert_eq!(w.medic.incident("api")["symptoms"], json!(["transport_eof"]), "seen long before Hangar's own check");
    assert!(w.medic.sigterm().is_some_and(|status| status.success()), "{}", w.medic.log());
    w.medic.start_again();
    let called = poll(Duration::from_secs(20), || calls(&bin).into_iter().nth(1)).expect("journalctl is started again");
    let arg = |call: &Value, what: &str| call["args"].as_array().unwrap().iter().any(|arg| arg.as_str().unwrap().starts_with(what));
    assert!(arg(&called, "--cursor=s=7b6e;") && arg(&called, "--unit=mcp-hangar.service"), "{called}");
    assert!(!arg(&calls(&bin)[0], "--cursor="));
    w.wait("it is ready", 20, |w| w.medic.status()["ready"] == json!(true));
    assert_eq!(w.medic.incidents(None).len(), 1);
}

#[test]
fn a_reason_that_the_journal_tells_names_the_entry_by_its_hash() {
    let w = crate::support::world::Unwatched::start(crate::support::V2_20, |h| h.server("api", "exit", &json!({})));
    let bin = w.dir().join("medic/bin");
    install(&bin, &w.hangar.log_file(), &json!({}));
    let w = w.watch_without_log(&json!({"hangar": {"log_journal": "mcp-hangar.service"}}));
    w.hangar.user_start("api");
    w.wait("the incident is open", 15, |w| w.medic.incident("api")["reason"] == "start_failed");
    let provenance = w.medic.incident("api")["provenance"].clone();
    assert_eq!(provenance["source"], "log", "{provenance}");
    assert_eq!(provenance["line_sha256"].as_str().map(str::len), Some(64), "{provenance}");
}
