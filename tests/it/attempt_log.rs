//! The attempt log on SQLite and on PostgreSQL: durable, chained, and refusing what it must not touch.

mod homes;
mod refusals;
mod retention;
mod server;
mod start;
mod tampering;
mod tls;

use std::path::Path;

use hangar_medic::attempt_log::{AttemptLog, Checkpoints, Counts, IncidentState, Store};
use hangar_medic::policy::{
    Body, Budgets, Closed, History, HoldCause, Outcome, Policy, Reason, Receipt, Record, Rung, Stops, StormLimits, Symptom, attempt_id,
    incident_id,
};
use homes::{Home, on_both};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

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
        process_start: None,
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

async fn all(store: &impl AttemptLog) -> Vec<Record> {
    let mut records = Vec::new();
    store.replay(&mut |record| records.push(record)).await.unwrap();
    records
}

fn fold(records: &[Record], policy: &Policy, now: Timestamp) -> History {
    let mut history = History::default();
    for record in records {
        history.apply(record);
    }
    history.prune(policy, now);
    history
}

async fn what_was_appended_is_read_back_as_it_was_returned<H: Home>() {
    let home = H::new();
    let store = home.open().await;
    let nanoseconds = at(0) + SignedDuration::from_nanos(1_234_567);
    let mut written = store.append(nanoseconds, "sidecar", whole("api", 0)).await.unwrap();
    written.extend(store.append(at(9), "o'brien \"\u{0}", vec![held("db")]).await.unwrap());
    assert_eq!(written.iter().map(|r| r.seq).collect::<Vec<_>>(), (1..=9).collect::<Vec<_>>());
    assert_eq!(all(&store).await, written);
    H::close(store).await;
    assert_eq!(all(&home.open().await).await, written);
}

async fn a_checkpoint_is_replaced_in_place_and_is_no_record<H: Home>() {
    let home = H::new();
    let store = home.open().await;
    assert_eq!(store.get("log_position").await.unwrap(), None);
    for offset in [1, 2] {
        store.put("log_position", serde_json::json!({ "offset": offset })).await.unwrap();
    }
    H::close(store).await;
    let store = home.open().await;
    assert_eq!(store.get("log_position").await.unwrap(), Some(serde_json::json!({ "offset": 2 })));
    assert_eq!(store.head().await.unwrap(), None);
}

async fn lists_hold_the_newest_and_show_the_oldest_of_them_first<H: Home>() {
    let home = H::new();
    let store = home.open().await;
    for (n, server) in ["a", "b", "c"].into_iter().enumerate() {
        let second = i64::try_from(n).unwrap() * 100;
        store.append(at(second), "sidecar", whole(server, second)).await.unwrap();
    }
    // Two open at once, their records interleaved.
    let bodies = vec![opened("d", 400, Reason::Crashed), opened("a", 401, Reason::GivenUp), attempt("d", 400, 1, Rung::ClientReconnect)];
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
}

async fn counters_start_from_the_latest_settlement_of_each_attempt<H: Home>() {
    let home = H::new();
    let store = home.open().await;
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
}

async fn a_recovery_that_did_not_last_proves_nothing_in_a_storm_after_a_restart_either<H: Home>() {
    let home = H::new();
    let store = home.open().await;
    // "held" stays open for a day; "api" was recovered beside it, died again outside of the storm's window, and is closed.
    let mut again = whole("api", 500);
    if let Body::IncidentOpened { reopens, .. } = &mut again[0] {
        *reopens = Some(incident_id("api", at(10)));
    }
    let mut records = store.append(at(0), "sidecar", vec![opened("held", 0, Reason::CapabilityBlocked)]).await.unwrap();
    records.extend(store.append(at(10), "sidecar", whole("api", 10)).await.unwrap());
    records.extend(store.append(at(500), "sidecar", again).await.unwrap());
    let (policy, now) = (Policy::default(), at(86_400));
    let history = store.history(&policy, now).await.unwrap();
    assert_eq!(history, fold(&records, &policy, now));
    let seen: Vec<_> = history.opened.iter().map(|o| (o.mcp_server.as_str(), o.recovered)).collect();
    assert_eq!(seen, [("held", false), ("api", false)]);
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
                let before = (word.is_multiple_of(3) && *since > 0).then_some(id);
                (*since, *open, *attempts, *acting) = (now, true, 0, false);
                let mut body = opened(name, now, Reason::ALL[word % Reason::ALL.len()]);
                if let Body::IncidentOpened { reopens, .. } = &mut body {
                    *reopens = before;
                }
                body
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
            3 if *acting => Body::AttemptHalfDone { attempt_id: attempt_id(&id, *attempts), evidence: [].into() },
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
            8 | 9 if word.is_multiple_of(2) => {
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
            let windows: Vec<_> = windows.into_iter().map(SignedDuration::from_secs).collect();
            let defaults = Policy::default();
            let policy = Policy {
                flap_window: windows[0],
                budgets: Budgets { starts_window: windows[1], actions_window: windows[2], ..defaults.budgets },
                storm: StormLimits { window: windows[3], ..defaults.storm },
                ..defaults
            };
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

on_both! {
    what_was_appended_is_read_back_as_it_was_returned,
    a_checkpoint_is_replaced_in_place_and_is_no_record,
    lists_hold_the_newest_and_show_the_oldest_of_them_first,
    counters_start_from_the_latest_settlement_of_each_attempt,
    a_recovery_that_did_not_last_proves_nothing_in_a_storm_after_a_restart_either,
}
