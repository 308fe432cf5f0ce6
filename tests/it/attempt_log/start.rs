//! How long a start takes with a long log behind it, and what a killed process leaves.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use hangar_medic::attempt_log::LogError;

/// Records in the store that starts are timed on; `tests/soak.sh` asks for a million.
fn many() -> i64 {
    std::env::var("HANGAR_MEDIC_TEST_RECORDS").map_or(40_000, |n| n.parse().unwrap())
}

#[test]
fn a_start_reads_what_the_windows_need_and_not_the_whole_log() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        let records = many();
        store.append(at(0), "sidecar", vec![opened("old", 0, Reason::CapabilityBlocked), held("kept")]).await.unwrap();
        let servers: Vec<String> = (0..1000).map(|n| format!("server-{n}")).collect();
        let begun = Instant::now();
        // An incident a minute, in batches of a hundred.
        for batch in 0..records / 800 {
            let bodies = (0..100).flat_map(|n| whole(&servers[usize::try_from((batch * 100 + n) % 1000).unwrap()], (batch * 100 + n) * 60));
            store.append(at(batch * 6000), "sidecar", bodies.collect()).await.unwrap();
        }
        let filled = begun.elapsed();
        store.close().await;
        let now = at(records / 8 * 60);
        let timed = |what: &str, begun: Instant| eprintln!("{records} records: {what} {:?}", begun.elapsed());
        eprintln!("filled in {filled:?}, {} bytes", std::fs::metadata(dir.path().join("medic.db")).unwrap().len());

        let begun = Instant::now();
        let store = open(dir.path()).await;
        timed("open", begun);
        let history = store.history(&Policy::default(), now).await.unwrap();
        timed("open and history", begun);
        let (opening, begun) = (begun.elapsed(), Instant::now());
        assert_eq!(history.open.keys().collect::<Vec<_>>(), ["old"]);
        assert_eq!(history.orders.keys().collect::<Vec<_>>(), ["kept"]);
        let counts = store.counts().await.unwrap();
        timed("counts", begun);
        assert_eq!(counts.closed[&Closed::Recovered], u64::try_from(records / 800 * 100).unwrap());
        let begun = Instant::now();
        assert_eq!(store.incidents(IncidentState::All, 1000).await.unwrap().len(), 1000);
        timed("the newest 1000 incidents", begun);
        let begun = Instant::now();
        store.incidents(IncidentState::Open, 1000).await.unwrap();
        timed("open incidents", begun);
        let begun = Instant::now();
        assert_eq!(store.attempts(None, 1000).await.unwrap().len(), 1000);
        timed("the newest 1000 attempts", begun);
        let mut slowest = Duration::ZERO;
        let begun = Instant::now();
        for _ in 0..50 {
            let begun = Instant::now();
            store.append(now, "sidecar", vec![held("x")]).await.unwrap();
            slowest = slowest.max(begun.elapsed());
        }
        eprintln!("append: mean {:?}, slowest {slowest:?}", begun.elapsed() / 50);
        let begun = Instant::now();
        let report = store.verify(&mut |_| {}).await.unwrap();
        timed("verify", begun);
        assert_eq!((report.fault, report.index_fault), (None, None));
        let begun = Instant::now();
        store.check_pages().await.unwrap();
        timed("quick_check", begun);
        // Reading it all takes some seconds here; what is needed, some milliseconds.
        assert!(opening < Duration::from_secs(1), "{opening:?}");
    });
}

/// This very test in a process of its own, with the store to hold in its environment.
fn child(test: &str, dir: &Path) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("HANGAR_MEDIC_TEST_STORE", dir).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

#[test]
fn a_killed_process_loses_nothing_it_was_told_is_written_and_blocks_nobody() {
    if let Some(dir) = std::env::var_os("HANGAR_MEDIC_TEST_STORE") {
        // The child: appends until it is killed, and tells what was acknowledged.
        run(async {
            let store = open(Path::new(&dir)).await;
            for second in 0.. {
                let records = store.append(at(second), "sidecar", whole("api", second)).await.unwrap();
                println!("written {}", records.last().unwrap().seq);
            }
        });
    }
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let name = "attempt_log::start::a_killed_process_loses_nothing_it_was_told_is_written_and_blocks_nobody";
        let (mut child, mut lines) = child(name, dir.path());
        let (mut acknowledged, mut line) = (0, String::new());
        while acknowledged < 160 {
            line.clear();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the child ended");
            acknowledged = line.trim().rsplit_once("written ").map_or(acknowledged, |(_, n)| n.parse::<u64>().unwrap());
        }
        // Beside it: no second writer, any reader.
        let refused = Store::open(dir.path(), INSTANCE).await.unwrap_err();
        assert!(matches!(&refused, LogError::Held { by: Some(by), .. } if *by == format!("process {}", child.id())), "{refused}");
        let reader = Store::open_read_only(dir.path(), None).await.unwrap();
        assert_eq!(reader.instance(), INSTANCE);
        assert!(reader.head().await.unwrap().unwrap().seq >= acknowledged);
        let report = reader.verify(&mut |_| {}).await.unwrap();
        assert_eq!((report.fault, report.index_fault), (None, None));
        assert!(matches!(reader.append(at(0), "cli", vec![held("api")]).await, Err(LogError::ReadOnly { .. })));

        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.lines() {
            acknowledged = line.unwrap().rsplit_once("written ").map_or(acknowledged, |(_, n)| n.parse().unwrap_or(acknowledged));
        }
        let store = open(dir.path()).await;
        let head = store.head().await.unwrap().unwrap();
        assert!(head.seq >= acknowledged, "{head:?} {acknowledged}");
        assert_eq!(head.seq % 8, 0, "an append is there as a whole or not at all");
        assert_eq!(store.verify(&mut |_| {}).await.unwrap().fault, None);
        store.append(at(9), "sidecar", vec![held("db")]).await.unwrap();
    });
}

#[test]
fn an_append_that_is_given_up_halfway_is_there_as_a_whole_or_not_at_all() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        for second in 0..40 {
            let patience = Duration::from_micros(u64::try_from(second * 60).unwrap());
            let _ = tokio::time::timeout(patience, store.append(at(second), "sidecar", whole("api", second))).await;
            // Whether it was written, only the log can tell: nothing more is taken before it was asked.
            store.history(&Policy::default(), at(second)).await.unwrap();
        }
        // What came of the last one is read before anything is decided on it.
        store.history(&Policy::default(), at(99)).await.unwrap();
        let last = store.append(at(99), "sidecar", vec![held("db")]).await.unwrap();
        assert_eq!(last[0].seq % 8, 1);
        assert_eq!(store.verify(&mut |_| {}).await.unwrap().fault, None);
    });
}
