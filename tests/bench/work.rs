//! The parts whose cost is measured by themselves: `plan N`, `metrics FILE`, `classify FILE`, and `stub`, a bare server of the
//! webhook's type to compare with. Prints one JSON object. With `--once` it does its work a single time, for callgrind, which
//! counts what runs in the function `counted`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "a measurement stops at its first surprise"
)]

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use axum::routing::post;
use axum::{Json, Router};
use hangar_medic::attempt_log::{AttemptLog, Store};
use hangar_medic::hangar::AuthState;
use hangar_medic::observe::board::Board;
use hangar_medic::observe::log::{InputFormat, Reader, Splitter};
use hangar_medic::observe::metrics_text::Collector;
use hangar_medic::policy::{
    Auth, Body, DeadBlock, HangarReading, History, Policy, Reason, Record, RestReading, ServerReading, Snapshot, State, Step, plan,
};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

/// As a network hands a body over.
const CHUNK: usize = 16 * 1024;
/// Measured for at least this long.
const LONG: Duration = Duration::from_millis(500);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let once = args.iter().any(|a| a == "--once");
    let long = if once { Duration::ZERO } else { LONG };
    let words: Vec<&str> = args.iter().map(String::as_str).filter(|a| *a != "--once").collect();
    let told = match words.as_slice() {
        ["plan", servers] => plans(servers.parse().expect("a number of servers"), long),
        ["metrics", file] => bodies(&std::fs::read(file).unwrap(), long),
        ["classify", file] => lines(&std::fs::read(file).unwrap(), long),
        ["store", directory, records] => store(directory, records.parse().expect("a number of records")),
        ["stub", port_file] => stub(port_file),
        // `cargo test --benches` and `cargo clippy --all-targets` come here: nothing is measured.
        [] => json!({"usage": "work plan N | metrics FILE | classify FILE | store DIRECTORY RECORDS | stub PORT_FILE [--once]"}),
        other => panic!("unknown: {other:?}"),
    };
    println!("{told}");
}

/// Where callgrind counts.
#[inline(never)]
fn counted<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

/// What this thread had of a processor so far: other work on the machine does not count. As coarse as the kernel's tick.
fn on_cpu() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(told.split_whitespace().next().unwrap().parse().unwrap())
}

/// Seconds of a processor that one turn of `work` takes, as the mean over `long`; a single turn where that is zero.
fn measured<T>(long: Duration, mut work: impl FnMut() -> T) -> f64 {
    let (begun, mut turns) = (on_cpu(), 0);
    loop {
        black_box(counted(&mut work));
        turns += 1;
        let took = on_cpu().saturating_sub(begun);
        if took >= long {
            return took.as_secs_f64() / f64::from(turns);
        }
    }
}

fn now() -> Timestamp {
    "2026-11-30T12:00:00Z".parse().unwrap()
}

/// A Hangar of which 1 % is dead, each with an open incident.
fn plans(servers: usize, long: Duration) -> Value {
    let (policy, mut history, at) = (Policy::default(), History::default(), now());
    let mut snapshot = Snapshot {
        known: servers,
        hangar: HangarReading {
            read_at: Some(at),
            fresh: true,
            process_start: Some(at - SignedDuration::from_hours(9)),
            version: Some((2, 34, 4)),
            ..HangarReading::default()
        },
        ..Snapshot::default()
    };
    for n in (0..servers).step_by(100) {
        let block = DeadBlock { reason: Reason::Crashed, since: None, retry_allowed_at: None, revived_by_call: true };
        let rest = RestReading {
            at,
            took: SignedDuration::from_millis(3),
            state: State::Dead,
            alive: false,
            mode: "subprocess".to_owned(),
            dead: Some(block),
            consecutive_failures: Some(1),
            started_at: None,
            backoff_until: None,
        };
        let reading = ServerReading {
            gauge: Some(State::Dead),
            gauge_since: Some(at - SignedDuration::from_secs(2)),
            last_healthy: Some(at - SignedDuration::from_secs(40)),
            not_cold_since: Some(at - SignedDuration::from_hours(2)),
            rest: Some(rest),
            ..ServerReading::default()
        };
        snapshot.servers.insert(format!("server-{n:06}"), reading);
    }
    let mut seq = 0;
    loop {
        let records: Vec<_> = plan(&policy, &snapshot, &history, at).steps.into_iter().filter_map(recorded).collect();
        if records.is_empty() {
            break;
        }
        for body in records {
            seq += 1;
            let (instance, actor) = ("hangar".to_owned(), "medic".to_owned());
            history.apply(&Record { instance, seq, at, actor, body, prev_hash: (seq - 1).to_string(), hash: seq.to_string() });
        }
    }
    assert_eq!(history.open.len(), servers.div_ceil(100), "an incident for each dead server");
    let seconds = measured(long, || plan(&policy, &snapshot, &history, at));
    json!({"servers": servers, "seconds": seconds})
}

fn recorded(step: Step) -> Option<Body> {
    match step {
        Step::Record(body) => Some(body),
        Step::Read(_) | Step::Act(_) => None,
    }
}

/// A body of Hangar's metrics, read in pieces into a board that knows it already.
fn bodies(body: &[u8], long: Duration) -> Value {
    let auth = AuthState { auth: Auth::Ok, until: None, consecutive_401: 0, why: None };
    let (policy, mut board, mut at) = (Policy::default(), Board::new(SignedDuration::from_secs(15)), now());
    let mut read = || {
        let mut collector = Collector::default();
        body.chunks(CHUNK).for_each(|chunk| collector.feed(chunk).unwrap());
        at += SignedDuration::from_secs(5);
        board.metrics(&policy, at, collector.finish().unwrap());
        board.snapshot(&auth, &History::default(), at)
    };
    let known = read().known;
    let seconds = measured(long, read);
    json!({"bytes": body.len(), "servers": known, "seconds": seconds})
}

/// A log in memory, split and classified.
fn lines(text: &[u8], long: Duration) -> Value {
    let mut told = 0;
    let seconds = measured(long, || {
        let (mut reader, mut splitter) = (Reader::new(InputFormat::Auto), Splitter::default());
        told = 0;
        for chunk in text.chunks(256 * 1024) {
            splitter.feed(chunk, &mut |offset, line| reader.line(line, offset, &mut |_| told += 1));
        }
        splitter.finish(&mut |offset, line| reader.line(line, offset, &mut |_| told += 1));
    });
    json!({"bytes": text.len(), "told": told, "seconds": seconds})
}

/// A store as a year of work leaves it: incidents of many servers, each with its attempt, recovered and closed.
fn store(directory: &str, records: usize) -> Value {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(Path::new(directory), "hangar").await.unwrap();
        let (begun, spread) = (now() - SignedDuration::from_hours(24 * 365), 24 * 365 * 3600 / (records / 5 + 1));
        for batch in (0..records / 5).collect::<Vec<_>>().chunks(400) {
            let at = begun + SignedDuration::from_secs(i64::try_from(batch[0] * spread).unwrap());
            let bodies = batch.iter().flat_map(|n| incident(*n, at)).collect();
            store.append(at, "hangar-medic", bodies).await.unwrap();
        }
        store.close().await;
    });
    json!({"records": records})
}

/// The five records of one incident.
fn incident(n: usize, at: Timestamp) -> Vec<Body> {
    let server = format!("server-{:05}", n % 1000);
    let incident = format!("{server}.{}", at.as_millisecond() + i64::try_from(n).unwrap());
    let attempt = format!("{incident}.1");
    let all = [
        json!({"kind": "incident_opened", "incident_id": incident, "mcp_server": server, "symptom": "server_crashed", "reason": "crashed", "since": at, "stops": {}}),
        json!({"kind": "attempt_opened", "attempt_id": attempt, "incident_id": incident, "mcp_server": server,
            "action": "session_reconnect", "why": "crashed", "slow_retry": false}),
        json!({"kind": "attempt_receipt", "attempt_id": attempt, "receipt": "accepted", "detail": "200"}),
        json!({"kind": "attempt_settled", "attempt_id": attempt, "outcome": "recovered", "why": "ready"}),
        json!({"kind": "incident_closed", "incident_id": incident, "how": "recovered", "why": "ready"}),
    ];
    all.into_iter().map(|body| serde_json::from_value(body).unwrap()).collect()
}

#[derive(Deserialize)]
#[allow(dead_code, reason = "parsed, not used: that is the stub's whole work")]
struct Delivery {
    version: String,
    status: String,
    receiver: String,
    alerts: Vec<Alert>,
}

#[derive(Deserialize)]
#[allow(dead_code, reason = "parsed, not used: that is the stub's whole work")]
#[serde(rename_all = "camelCase")]
struct Alert {
    status: String,
    labels: std::collections::BTreeMap<String, String>,
    annotations: std::collections::BTreeMap<String, String>,
    starts_at: String,
    ends_at: String,
    fingerprint: String,
}

/// Takes deliveries on a free port, which it writes into `port_file`, until it is killed.
fn stub(port_file: &str) -> Value {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        std::fs::write(port_file, listener.local_addr().unwrap().port().to_string()).unwrap();
        let take = |Json(delivery): Json<Delivery>| async move { Json(json!({"status": "ok", "alerts": delivery.alerts.len()})) };
        axum::serve(listener, Router::new().route("/api/v1/alertmanager", post(take))).await.unwrap();
    });
    Value::Null
}
