//! A flood: webhooks as fast as they go, 100,000 distinct alert labels, and every server of a large Hangar flapping.
//! Memory stays bounded, and Hangar is read and planned for in time. `tests/soak.sh` has the hour.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::hangar::stub::{Reply, Stub, json as answer, text};
use crate::support::{Medic, http};

/// Distinct label values that the flood goes through, over and over.
const LABELS: usize = 100_000;
const ALERTS_A_BODY: usize = 50;
const FLOODERS: usize = 2;
const POLL: Duration = Duration::from_secs(2);
/// Between two reads of the metrics: the period, what they take, and what a loaded machine adds.
const GAP_MAX: Duration = Duration::from_secs(8);

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().map_or(default, |n| n.parse().unwrap_or_else(|_| panic!("{name} is not a number: {n}")))
}

/// Memory that the daemon may have at most, in KiB: a base, and what one watched server with its incident costs.
const fn memory_max(servers: usize) -> usize {
    160 * 1024 + servers * 24
}

fn dead(id: usize, begun: Instant) -> bool {
    // Each has its own period of 20 to 40 s, half of it dead.
    let period = 20 + id % 21;
    usize::try_from(begun.elapsed().as_secs()).unwrap_or(0) % period >= period / 2
}

fn detail(id: usize, begun: Instant) -> Value {
    let dead = dead(id, begun);
    let block = json!({"reason": "crashed", "since": null, "retry_allowed_at": null, "revived_by": "call_or_start"});
    json!({"mcp_server_id": format!("s{id}"), "state": if dead { "dead" } else { "ready" }, "mode": "subprocess", "alive": !dead, "tools": [],
        "dead": if dead { block } else { Value::Null }, "health": {"consecutive_failures": 0, "can_retry": true, "last_failure_ago": null}})
}

fn metrics(servers: usize, begun: Instant) -> String {
    let now = hangar_medic::clock::now().as_second();
    let mut body = "mcp_hangar_process_start_time_seconds 1796040000\nmcp_hangar_build_info{version=\"2.34.4\"} 1\n".to_owned();
    for id in 0..servers {
        let dead = dead(id, begun);
        let _ = writeln!(body, "mcp_hangar_mcp_server_state{{mcp_server=\"s{id}\"}} {}", if dead { 4 } else { 2 });
        let healthy = if dead { now - 30 } else { now };
        let _ = writeln!(body, "mcp_hangar_mcp_server_last_healthy_timestamp_seconds{{mcp_server=\"s{id}\"}} {healthy}");
    }
    body
}

fn hangar(servers: usize, polls: Arc<Mutex<Vec<Instant>>>) -> Stub {
    let begun = Instant::now();
    Stub::new(move |request| -> Reply {
        let id = request.line.split('/').nth(3).and_then(|s| s.split(['/', '?']).next()?.strip_prefix('s')?.parse::<usize>().ok());
        match (request.line.as_str(), id) {
            ("GET /metrics", _) => {
                polls.lock().unwrap().push(Instant::now());
                text(200, &metrics(servers, begun))
            }
            ("GET /api/mcp_servers/", _) => {
                answer(200, &json!({"mcp_servers": (0..servers).map(|id| detail(id, begun)).collect::<Vec<_>>()}))
            }
            ("GET /api/groups/", _) => answer(200, &json!({"groups": []})),
            (line, _) if line.ends_with("/tools") => answer(200, &json!({"tools": []})),
            (line, _) if line.contains("/logs") => answer(200, &json!({"logs": []})),
            (line, Some(id)) if line.ends_with("/start") => {
                answer(200, &json!({"mcp_server": format!("s{id}"), "state": "ready", "tools": []}))
            }
            (_, Some(id)) => answer(200, &detail(id, begun)),
            _ => answer(200, &json!({"authenticated": false, "status": "healthy"})),
        }
    })
}

fn delivery(first: usize) -> Value {
    let alert = |n: usize| {
        let n = n % LABELS;
        json!({"status": if n.is_multiple_of(2) { "firing" } else { "resolved" }, "startsAt": "2026-11-30T15:21:00Z", "endsAt": "0001-01-01T00:00:00Z",
            "labels": {"alertname": "MCPHangarProviderDead", "mcp_server": format!("ghost{n}"), "instance": "test", "noise": format!("x{n}")},
            "annotations": {}, "generatorURL": "", "fingerprint": format!("{n:x}")})
    };
    json!({"version": "4", "groupKey": "{}", "status": "firing", "receiver": "medic", "groupLabels": {}, "commonLabels": {}, "commonAnnotations": {},
        "externalURL": "http://am", "alerts": (first..first + ALERTS_A_BODY).map(alert).collect::<Vec<_>>()})
}

#[test]
fn a_flood_of_alerts_and_flapping_servers_fills_no_memory_and_delays_no_read() {
    let seconds = number("HANGAR_MEDIC_FLOOD_SECONDS", 12);
    let servers = number("HANGAR_MEDIC_FLOOD_SERVERS", 300);
    let polls = Arc::new(Mutex::new(Vec::new()));
    let stub = hangar(servers, Arc::clone(&polls));
    let dir = tempfile::Builder::new().prefix("hangar-medic-").tempdir().unwrap();
    let settings = json!({"hangar": {"poll_interval": format!("{}s", POLL.as_secs())}, "log": {"level": "error"}});
    let medic = Medic::start(dir.path(), &stub.url, &settings);
    let (port, over, sent, taken) = (medic.port(), AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let (mut most, mut slowest) = (0, Duration::ZERO);
    std::thread::scope(|threads| {
        for flooder in 0..FLOODERS {
            let (over, sent, taken) = (&over, &sent, &taken);
            threads.spawn(move || {
                let mut first = flooder * LABELS / FLOODERS;
                while !over.load(Ordering::Relaxed) {
                    let answer = http::post(port, "/api/v1/alertmanager", None, Some(&delivery(first)));
                    sent.fetch_add(1, Ordering::Relaxed);
                    taken.fetch_add(usize::from(answer.ok()), Ordering::Relaxed);
                    first += ALERTS_A_BODY;
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(seconds as u64);
        while Instant::now() < end {
            let asked = Instant::now();
            assert!(http::get(port, "/-/healthy", None).ok(), "the daemon does not answer\n{}", medic.log());
            slowest = slowest.max(asked.elapsed());
            most = most.max(medic.memory_kib());
            std::thread::sleep(Duration::from_millis(200));
        }
        over.store(true, Ordering::Relaxed);
    });
    let polls = polls.lock().unwrap();
    let gap = polls.windows(2).map(|two| two[1] - two[0]).max().unwrap_or(Duration::MAX);
    eprintln!(
        "{seconds} s, {servers} servers flapping: {} deliveries of {ALERTS_A_BODY} alerts, {} taken; at most {} MiB; reads of the metrics at most {:.1} s apart; \
         health answered within {:.2} s",
        sent.load(Ordering::Relaxed),
        taken.load(Ordering::Relaxed),
        most / 1024,
        gap.as_secs_f64(),
        slowest.as_secs_f64()
    );
    assert!(taken.load(Ordering::Relaxed) > 0, "no delivery was taken");
    assert!(most > 0 && most < memory_max(servers), "{most} KiB, allowed {}", memory_max(servers));
    assert!(gap <= GAP_MAX, "{gap:?} between two reads of the metrics");
}
