//! The attempt log on SQLite: durable, chained, and refusing what it must not touch.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hangar_medic::attempt_log::{AttemptLog, Checkpoints, Counts, FaultKind, IncidentState, LogError, Store, VerifyReport, verify_export};
use hangar_medic::policy::{
    Body, Closed, History, HoldCause, Outcome, Policy, Reason, Receipt, Record, Rung, Stops, Symptom, attempt_id, incident_id,
};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use sqlx::{ConnectOptions, Connection, SqliteConnection};

const INSTANCE: &str = "127.0.0.1:8000";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_770_000_000 + second).unwrap()
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

async fn open(dir: &Path) -> Store {
    Store::open(dir, INSTANCE).await.unwrap()
}

/// The database behind the store's back.
async fn tamper(dir: &Path, statements: &[&'static str]) {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(dir.join("medic.db"));
    let mut db: SqliteConnection = options.connect().await.unwrap();
    for statement in statements {
        sqlx::query(*statement).execute(&mut db).await.unwrap();
    }
    db.close().await.unwrap();
}

async fn verify(dir: &Path) -> VerifyReport {
    Store::open_to_verify(dir, Some(INSTANCE)).await.unwrap().verify(&mut |_| {}).await.unwrap()
}

fn opened(server: &str, second: i64, reason: Reason) -> Body {
    Body::IncidentOpened {
        incident_id: incident_id(server, at(second)),
        mcp_server: server.to_owned(),
        symptom: Symptom::of_dead(reason),
        reason,
        provenance: None,
        since: at(second),
        reopens: None,
        floor_rank: 0,
        slow_retries: 0,
        stops: Stops::new(),
        process_start: Some(at(0)),
        group: None,
    }
}

fn attempt(server: &str, second: i64, n: usize, action: Rung) -> Body {
    let incident_id = incident_id(server, at(second));
    Body::AttemptOpened {
        attempt_id: attempt_id(&incident_id, n),
        incident_id,
        mcp_server: server.to_owned(),
        action,
        why: "the narrowest that is left".to_owned(),
        slow_retry: false,
    }
}

fn receipt(server: &str, second: i64, n: usize) -> Body {
    let evidence = [("exposed_tools".to_owned(), serde_json::json!(["read", "wr\u{0}ite"]))].into();
    let attempt_id = attempt_id(&incident_id(server, at(second)), n);
    Body::AttemptReceipt { attempt_id, receipt: Receipt::Accepted, outcome: None, detail: "200".to_owned(), evidence }
}

fn settled(server: &str, second: i64, n: usize, outcome: Outcome) -> Body {
    Body::AttemptSettled { attempt_id: attempt_id(&incident_id(server, at(second)), n), outcome, why: "it was read".to_owned() }
}

fn closed(server: &str, second: i64, how: Closed) -> Body {
    Body::IncidentClosed { incident_id: incident_id(server, at(second)), how, why: "ready".to_owned() }
}

fn held(server: &str) -> Body {
    Body::HoldOrdered { mcp_server: server.to_owned(), cause: HoldCause::UserRequest, why: "stopped by a person".to_owned() }
}

/// A whole incident of eight records, opened at `second` and recovered by rung 2.
fn whole(server: &str, second: i64) -> Vec<Body> {
    vec![
        opened(server, second, Reason::Unknown),
        attempt(server, second, 1, Rung::CapabilityRefresh),
        settled(server, second, 1, Outcome::Insufficient),
        Body::IncidentUpdated {
            incident_id: incident_id(server, at(second)),
            symptom: Symptom::ServerCrashed,
            reason: Reason::Crashed,
            provenance: None,
        },
        attempt(server, second, 2, Rung::SessionReconnect),
        receipt(server, second, 2),
        settled(server, second, 2, Outcome::Recovered),
        closed(server, second, Closed::Recovered),
    ]
}

async fn all(store: &Store) -> Vec<Record> {
    let mut records = Vec::new();
    store.replay(&mut |record| records.push(record)).await.unwrap();
    records
}

fn fold(records: &[Record], policy: &Policy, now: Timestamp) -> History {
    let mut history = History::default();
    records.iter().for_each(|record| history.apply(record));
    history.prune(policy, now);
    history
}

#[test]
fn what_was_appended_is_read_back_as_it_was_returned() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        let nanoseconds = at(0) + SignedDuration::from_nanos(1_234_567);
        let mut written = store.append(nanoseconds, "sidecar", whole("api", 0)).await.unwrap();
        written.extend(store.append(at(9), "o'brien \"\u{0}", vec![held("db")]).await.unwrap());
        assert_eq!(written.iter().map(|r| r.seq).collect::<Vec<_>>(), (1..=9).collect::<Vec<_>>());
        assert_eq!(all(&store).await, written);
        drop(store);
        assert_eq!(all(&open(dir.path()).await).await, written);
    });
}

#[test]
fn a_checkpoint_is_replaced_in_place_and_is_no_record() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        assert_eq!(store.get("log_position").await.unwrap(), None);
        for offset in [1, 2] {
            store.put("log_position", serde_json::json!({ "offset": offset })).await.unwrap();
        }
        store.close().await;
        let store = open(dir.path()).await;
        assert_eq!(store.get("log_position").await.unwrap(), Some(serde_json::json!({ "offset": 2 })));
        assert_eq!(store.head().await.unwrap(), None);
    });
}

#[test]
fn lists_hold_the_newest_and_show_the_oldest_of_them_first() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        for (n, server) in ["a", "b", "c"].into_iter().enumerate() {
            let second = i64::try_from(n).unwrap() * 100;
            store.append(at(second), "sidecar", whole(server, second)).await.unwrap();
        }
        // Two open at once, their records interleaved.
        let bodies =
            vec![opened("d", 400, Reason::Crashed), opened("a", 401, Reason::GivenUp), attempt("d", 400, 1, Rung::ClientReconnect)];
        store.append(at(400), "sidecar", bodies).await.unwrap();
        let servers = |found: Vec<hangar_medic::policy::Incident>| found.iter().map(|i| i.mcp_server.clone()).collect::<String>();
        for (state, limit, expected) in [
            (IncidentState::All, 1000, "abcda"),
            (IncidentState::All, 2, "da"),
            (IncidentState::Open, 1000, "da"),
            (IncidentState::Closed, 2, "bc"),
            (IncidentState::Open, 1, "a"),
        ] {
            assert_eq!(servers(store.incidents(state, limit).await.unwrap()), expected, "{state:?} {limit}");
        }
        let attempts = store.attempts(None, 3).await.unwrap();
        assert_eq!(
            attempts.iter().map(|a| a.attempt_id.as_str()).collect::<Vec<_>>(),
            [
                &attempt_id(&incident_id("c", at(200)), 1),
                &attempt_id(&incident_id("c", at(200)), 2),
                &attempt_id(&incident_id("d", at(400)), 1),
            ]
        );
        let one = incident_id("b", at(100));
        assert_eq!(store.attempts(Some(&one), 1).await.unwrap()[0].outcome, Some(Outcome::Recovered));
        assert_eq!(store.attempts(Some("b.1"), 9).await.unwrap(), []);
        let incident = store.incident(&one).await.unwrap().unwrap();
        assert_eq!((incident.reason, incident.attempts.len()), (Reason::Crashed, 2));
        assert_eq!(incident.closed.unwrap().0, Closed::Recovered);
        assert_eq!(store.incident("b.1").await.unwrap(), None);
    });
}

#[test]
fn counters_start_from_the_latest_settlement_of_each_attempt() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        store.append(at(0), "sidecar", whole("a", 0)).await.unwrap();
        store.append(at(1), "sidecar", whole("b", 1)).await.unwrap();
        // The recovery of b did not last.
        let later = vec![settled("b", 1, 2, Outcome::Insufficient), opened("c", 2, Reason::GivenUp), closed("c", 2, Closed::Cancelled)];
        store.append(at(2), "sidecar", later).await.unwrap();
        let expected = Counts {
            settled: [
                ((Rung::CapabilityRefresh, Outcome::Insufficient), 2),
                ((Rung::SessionReconnect, Outcome::Recovered), 1),
                ((Rung::SessionReconnect, Outcome::Insufficient), 1),
            ]
            .into(),
            recoveries: [((Rung::SessionReconnect, Reason::Crashed), 1)].into(),
            closed: [(Closed::Recovered, 2), (Closed::Cancelled, 1)].into(),
            incidents: [(Reason::Crashed, 2), (Reason::GivenUp, 1)].into(),
        };
        assert_eq!(store.counts().await.unwrap(), expected);
    });
}

/// Turns arbitrary numbers into a sequence of records that the planner could have written.
#[derive(Default)]
struct Writer {
    /// Per server: the second in which its last incident opened, whether that is open, attempts so far, whether one is open.
    servers: [(i64, bool, usize, bool); 4],
    orders: [bool; 4],
}

impl Writer {
    fn write(&mut self, now: i64, server: usize, what: u8, word: usize) -> Option<Body> {
        let name = ["api", "db", "x-1", "Y_2"][server];
        let (since, open, attempts, acting) = &mut self.servers[server];
        let id = incident_id(name, at(*since));
        Some(match what {
            0 | 1 if !*open => {
                (*since, *open, *attempts, *acting) = (now, true, 0, false);
                opened(name, now, Reason::ALL[word % Reason::ALL.len()])
            }
            1 if *open => Body::IncidentUpdated {
                incident_id: id,
                symptom: Symptom::ALL[word % Symptom::ALL.len()],
                reason: Reason::ALL[word % Reason::ALL.len()],
                provenance: None,
            },
            2 | 3 if *open && !*acting => {
                (*attempts, *acting) = (*attempts + 1, true);
                attempt(name, *since, *attempts, Rung::ALL[word % 6])
            }
            3 if *acting => Body::AttemptHalfDone { attempt_id: attempt_id(&id, *attempts) },
            4 if *acting => receipt(name, *since, *attempts),
            // Also after the incident was closed, and more than once.
            5 | 6 if *attempts > 0 => {
                *acting = false;
                settled(name, *since, *attempts, Outcome::ALL[word % Outcome::ALL.len()])
            }
            7 if *open => {
                *open = false;
                closed(name, *since, Closed::ALL[word % Closed::ALL.len()])
            }
            8 if self.orders[server] => {
                self.orders[server] = false;
                Body::HoldReleased { mcp_server: name.to_owned(), why: "seen ready".to_owned() }
            }
            8 | 9 if word % 2 == 0 => {
                self.orders[server] = true;
                held(name)
            }
            9 => Body::HangarRestarted { process_start: at(now) },
            10 if *open => Body::WouldAct { incident_id: id, action: Rung::ALL[word % 6] },
            11 if *open => Body::Exhausted { incident_id: id },
            _ => return None,
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_fold_of_any_valid_log_survives_a_restart(
        steps in prop::collection::vec((1_i64..900, 0_usize..4, 0_u8..12, 0_usize..90), 1..80),
        after in 0_i64..9000,
        windows in prop::collection::vec(1_i64..7200, 4),
    ) {
        run(async {
            let dir = tempfile::tempdir().unwrap();
            let store = open(dir.path()).await;
            let (mut writer, mut now, mut records) = (Writer::default(), 0, Vec::new());
            for (pause, server, what, word) in steps {
                now += pause;
                let Some(body) = writer.write(now, server, what, word) else { continue };
                records.extend(store.append(at(now), "sidecar", vec![body]).await.unwrap());
            }
            let mut policy = Policy::default();
            policy.flap_window = SignedDuration::from_secs(windows[0]);
            policy.budgets.starts_window = SignedDuration::from_secs(windows[1]);
            policy.budgets.actions_window = SignedDuration::from_secs(windows[2]);
            policy.storm.window = SignedDuration::from_secs(windows[3]);
            let now = at(now + after);
            let expected = fold(&records, &policy, now);
            assert_eq!(store.history(&policy, now).await.unwrap(), expected);
            store.close().await;
            let store = open(dir.path()).await;
            assert_eq!(store.history(&policy, now).await.unwrap(), expected);
            let open = store.incidents(IncidentState::Open, 1000).await.unwrap();
            assert_eq!(open.into_iter().map(|i| (i.mcp_server.clone(), i)).collect::<std::collections::BTreeMap<_, _>>(), expected.open);
            let report = store.verify(&mut |_| {}).await.unwrap();
            assert_eq!((report.fault, report.index_fault), (None, None));
            // And the index is nothing but the chain's.
            let counts = store.counts().await.unwrap();
            store.rebuild_index().await.unwrap();
            assert_eq!(store.history(&policy, now).await.unwrap(), expected);
            assert_eq!(store.counts().await.unwrap(), counts);
        });
    }
}

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
        for second in 0..50 {
            let begun = Instant::now();
            store.append(now, "sidecar", vec![held("x")]).await.unwrap();
            slowest = slowest.max(begun.elapsed());
            let _ = second;
        }
        eprintln!("append: mean {:?}, slowest {slowest:?}", begun.elapsed() / 50);
        let begun = Instant::now();
        let report = store.verify(&mut |_| {}).await.unwrap();
        timed("verify", begun);
        assert_eq!((report.fault, report.index_fault), (None, None));
        let begun = Instant::now();
        store.check_pages().await.unwrap();
        timed("quick_check", begun);
        let _ = opening;
    });
}
