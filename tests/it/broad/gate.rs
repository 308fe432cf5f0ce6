//! Each of ranks 3 to 10 with each thing that must stop it: held by its name, and nothing is sent. The Hangar and the
//! automation here are fakes that take down whatever reaches them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hangar_medic::clock;
use hangar_medic::policy::Rung;
use serde_json::{Value, json};

use super::automation::Automation;
use crate::hangar::stub::{Reply, Request, Stub, json as reply, text};
use crate::support::medic::merge;
use crate::support::{Medic, http, poll};

const RANKS: [Rung; 8] = [
    Rung::ConfigurationReload,
    Rung::LeaseRecovery,
    Rung::WorkerRestart,
    Rung::RoleRuntimeRestart,
    Rung::ConnectorRestart,
    Rung::RollingMcpRestart,
    Rung::FullMcpRestart,
    Rung::HostRestart,
];
/// What touches every server of a Hangar.
const WHOLE: [Rung; 4] = [Rung::ConfigurationReload, Rung::RollingMcpRestart, Rung::FullMcpRestart, Rung::HostRestart];
const BROAD: [Rung; 3] = [Rung::RollingMcpRestart, Rung::FullMcpRestart, Rung::HostRestart];
/// How long whatever the canary of a storm does takes.
const CANARY: Duration = Duration::from_secs(15);

/// What the servers of a fake Hangar are while they are ill.
#[derive(Clone, Copy, PartialEq)]
enum Illness {
    Dead,
    /// Dead, in a group.
    Member,
    /// Ready, and nothing healthy was seen of it for long.
    Idle,
}

/// Where there is something for the rung to do.
fn illness(rung: Rung) -> Illness {
    if rung == Rung::LeaseRecovery {
        return Illness::Member;
    }
    if rung == Rung::WorkerRestart { Illness::Idle } else { Illness::Dead }
}

struct Sick {
    stub: Stub,
    automation: Automation,
    ill: Arc<AtomicBool>,
    ids: Vec<String>,
}

fn detail(id: &str, illness: Option<Illness>) -> Value {
    let down = matches!(illness, Some(Illness::Dead | Illness::Member));
    let dead = json!({"reason": "crashed", "since": clock::now(), "retry_allowed_at": null, "revived_by": "call_or_start"});
    json!({"mcp_server_id": id, "state": if down { "dead" } else { "ready" }, "mode": "subprocess", "alive": !down, "tools": [],
           "dead": if down { dead } else { Value::Null },
           "health": {"consecutive_failures": u8::from(down), "can_retry": true, "last_failure_ago": null}, "meta": {}})
}

fn answer(ids: &[String], began: i64, hangs: bool, ill: Option<Illness>, request: &Request) -> Reply {
    let line = request.line.as_str();
    if !line.starts_with("GET ") {
        // Whoever goes first in a storm is waited for.
        let failed = json!({"error": {"code": "McpServerStartError", "message": "gone", "details": {}}});
        return if line.contains("/s0") && hangs { Reply::Hang(CANARY) } else { reply(500, &failed) };
    }
    let now = clock::now().duration_since(jiff::Timestamp::UNIX_EPOCH).as_secs_f64();
    if line == "GET /metrics" {
        let head = format!("mcp_hangar_process_start_time_seconds {began}\nmcp_hangar_build_info{{version=\"2.34.4\"}} 1\n");
        let healthy = if ill.is_some() { 1_000_000.0 } else { now };
        let gauge = if matches!(ill, Some(Illness::Dead | Illness::Member)) { 4 } else { 2 };
        let each = |id: &String| {
            format!(
                "mcp_hangar_mcp_server_state{{mcp_server=\"{id}\"}} {gauge}\nmcp_hangar_mcp_server_last_healthy_timestamp_seconds{{mcp_server=\"{id}\"}} {healthy}\n"
            )
        };
        return text(200, &(head + &ids.iter().map(each).collect::<String>()));
    }
    let group = || {
        let member = |id: &String| json!({"id": id, "state": "dead", "in_rotation": false, "weight": 1, "priority": 1});
        let other = json!({"id": "other", "state": "ready", "in_rotation": true, "weight": 1, "priority": 1});
        json!({"group_id": "grp", "circuit_open": false, "members": ids.iter().map(member).chain([other]).collect::<Vec<_>>()})
    };
    match line.strip_prefix("GET /api/").unwrap_or_default() {
        "mcp_servers/" => reply(200, &json!({"mcp_servers": ids.iter().map(|id| detail(id, ill)).collect::<Vec<_>>()})),
        "groups/" => reply(200, &json!({"groups": if ill == Some(Illness::Member) { vec![group()] } else { vec![] }})),
        "groups/grp" => reply(200, &group()),
        "system/" => reply(200, &json!({"system": {"version": "2.34.4", "instance": {"instance_id": "i"}}})),
        "system/me" => reply(200, &json!({"authenticated": false})),
        path if path.ends_with("/l7_policy") => reply(404, &json!({"error": "no_l7_policy"})),
        path if path.contains("/tools") => reply(200, &json!({"tools": []})),
        path if path.contains("/logs") => reply(200, &json!({"logs": []})),
        path => match path.strip_prefix("mcp_servers/").filter(|id| ids.iter().any(|i| i == id)) {
            Some(id) => reply(200, &detail(id, ill)),
            None => reply(200, &json!({"status": "healthy"})),
        },
    }
}

impl Sick {
    fn start(dir: &Path, servers: usize, hangs: bool, illness: Illness) -> Self {
        let ids: Vec<String> = (0..servers).map(|n| format!("s{n}")).collect();
        let ill = Arc::new(AtomicBool::new(true));
        let (of_stub, is_ill, began) = (ids.clone(), Arc::clone(&ill), clock::now().as_second() - 5000);
        let stub = Stub::new(move |request| answer(&of_stub, began, hangs, is_ill.load(Ordering::SeqCst).then_some(illness), request));
        let automation = Automation::start(dir, move |_| {
            if hangs {
                std::thread::sleep(CANARY);
            }
            json!({"result": "failed"})
        });
        Self { stub, automation, ill, ids }
    }

    /// Everything that the rung needs is there, and it is permitted.
    fn settings(&self, dir: &Path, rung: Rung) -> Value {
        let (definition, config) = (dir.join("definition.json"), dir.join("hangar.yaml"));
        std::fs::write(&definition, r#"{"mode": "subprocess", "command": ["python3"]}"#).unwrap();
        let servers: serde_json::Map<String, Value> = self.ids.iter().map(|id| (id.clone(), json!({"mode": "subprocess"}))).collect();
        std::fs::write(&config, json!({"mcp_servers": servers}).to_string()).unwrap();
        let each = |entry: &dyn Fn(&String) -> Value| self.ids.iter().map(entry).collect::<Value>();
        let rungs = [Rung::ClientReconnect, Rung::CapabilityRefresh, rung];
        let rungs = rungs.map(|action| json!({"action": action, "attempts_max": 1, "pause": "0s"}));
        let restarts = BROAD.map(|action| self.automation.entry(&json!({"action": action})));
        json!({
            "hangar": {"config_file": config},
            "policy": {"rungs": rungs, "not_seen_healthy_after": "1s"},
            "matrix": {"roles": [{"role": "sidecar", "permitted": Rung::ALL}]},
            "platform": {
                "restarts": restarts,
                "upstreams": each(&|id| self.automation.entry(&json!({"mcp_server": id}))),
                "definitions": each(&|id| json!({"mcp_server": id, "file": definition})),
            },
        })
    }

    /// Calls that change anything, and orders: `METHOD /path` and `order <server>`.
    fn sent(&self) -> Vec<String> {
        let calls = self.stub.lines().into_iter().filter(|line| !line.starts_with("GET "));
        let orders = self.automation.orders().into_iter().map(|order| format!("order {}", order["mcp_server"].as_str().unwrap()));
        calls.chain(orders).collect()
    }
}

/// One medic for each of these rungs, side by side; `case` tells what is wrong with what it gets.
fn each(rungs: &[Rung], case: impl Fn(Rung, &Path) + Sync) {
    std::thread::scope(|scope| {
        for rung in rungs {
            let case = &case;
            scope.spawn(move || case(*rung, tempfile::Builder::new().prefix("hangar-medic-").tempdir().unwrap().path()));
        }
    });
}

fn start(dir: &Path, sick: &Sick, rung: Rung, over: &Value) -> Medic {
    let mut settings = sick.settings(dir, rung);
    merge(&mut settings, over);
    Medic::start(&dir.join("medic"), &sick.stub.url, &settings)
}

#[track_caller]
fn wait(medic: &Medic, what: &str, holds: impl Fn() -> bool) {
    assert!(poll(Duration::from_mins(1), || holds().then_some(())).is_some(), "never: {what}\n{}", medic.report());
}

/// With `over` laid over it each of these rungs is held as `hold`, and nothing is sent.
fn held(rungs: &[Rung], hold: &str, over: &Value) {
    each(rungs, |rung, dir| {
        let sick = Sick::start(dir, 1, false, illness(rung));
        let medic = start(dir, &sick, rung, over);
        wait(&medic, &format!("{rung} is held: {hold}"), || medic.incident("s0")["hold"] == hold);
        assert_eq!(sick.sent(), [] as [&str; 0], "{rung} although {hold}\n{}", medic.report());
    });
}

/// What it sends for `s0`.
fn sends(rung: Rung) -> &'static str {
    let calls = [
        (Rung::ConfigurationReload, "POST /api/config/reload"),
        (Rung::LeaseRecovery, "POST /api/mcp_servers/s0/start"),
        (Rung::WorkerRestart, "POST /api/mcp_servers/s0/stop"),
        (Rung::ConnectorRestart, "DELETE /api/mcp_servers/s0"),
    ];
    calls.iter().find(|(of, _)| *of == rung).map_or("order s0", |(_, call)| call)
}

/// A start before it, which runs and fails: that unlocks a broad rung.
fn unlock(settings: &mut Value) {
    let start = json!({"action": "session_reconnect", "attempts_max": 1, "pause": "0s"});
    settings["policy"]["rungs"].as_array_mut().unwrap().insert(2, start);
}

#[test]
fn with_everything_in_place_and_permitted_each_is_sent() {
    each(&RANKS, |rung, dir| {
        let sick = Sick::start(dir, 1, false, illness(rung));
        let mut settings = sick.settings(dir, rung);
        if BROAD.contains(&rung) {
            unlock(&mut settings);
        }
        let medic = Medic::start(&dir.join("medic"), &sick.stub.url, &settings);
        let expected = sends(rung);
        wait(&medic, &format!("{rung} sends {expected}"), || sick.sent().iter().any(|sent| sent == expected));
    });
}

#[test]
fn not_permitted_to_the_daemon_each_is_held() {
    let looks = [Rung::ClientReconnect, Rung::CapabilityRefresh];
    held(&RANKS, "not_permitted", &json!({"matrix": {"roles": [{"role": "sidecar", "permitted": looks}]}}));
}

#[test]
fn in_a_maintenance_window_each_is_held() {
    // Open for an hour from every minute on.
    let window = json!([{"name": "patching", "schedule": "* * * * *", "duration": "1h"}]);
    held(&RANKS, "maintenance", &json!({"policy": {"maintenance": window}}));
}

#[test]
fn without_a_start_that_ran_in_the_attempt_log_no_broad_one_is_done() {
    held(&BROAD, "attempt_log_missing", &json!({}));
}

#[test]
fn without_a_lock_that_the_replicas_share_nothing_that_touches_a_whole_one_is_done() {
    each(&WHOLE, |rung, dir| {
        let sick = Sick::start(dir, 1, false, illness(rung));
        let mut settings = sick.settings(dir, rung);
        settings["hangar"]["instances"] = json!(2);
        let mut expected = Vec::new();
        if BROAD.contains(&rung) {
            unlock(&mut settings);
            expected.push("POST /api/mcp_servers/s0/start".to_owned());
        }
        let medic = Medic::start(&dir.join("medic"), &sick.stub.url, &settings);
        wait(&medic, &format!("{rung} is held: lease_held"), || medic.incident("s0")["hold"] == "lease_held");
        assert_eq!(sick.sent(), expected, "{rung} without a lock\n{}", medic.report());
    });
}

#[test]
fn without_an_executor_or_anything_to_act_on_each_is_passed() {
    each(&RANKS, |rung, dir| {
        // A server that is dead and in no group: nothing for ranks 4 and 5.
        let sick = Sick::start(dir, 1, false, Illness::Dead);
        let mut settings = sick.settings(dir, rung);
        settings["hangar"] = json!({});
        settings["platform"] = json!({});
        let medic = Medic::start(&dir.join("medic"), &sick.stub.url, &settings);
        wait(&medic, &format!("{rung} is passed"), || medic.incident("s0")["phase"] == "exhausted");
        assert_eq!(medic.climb("s0").last(), Some(&format!("{rung} not_applicable")), "{}", medic.report());
        assert_eq!(sick.sent(), [] as [&str; 0], "{rung} without an executor");
    });
}

/// An alert: it wakes, no more.
fn wakes() -> Value {
    let labels = json!({"alertname": "MCPHangarProviderDead", "mcp_server": "s0", "instance": "test"});
    let alert = json!({"status": "firing", "labels": labels, "annotations": {}, "startsAt": clock::now(), "endsAt": "0001-01-01T00:00:00Z",
                       "generatorURL": "", "fingerprint": "0123456789abcdef"});
    json!({"version": "4", "groupKey": "g", "truncatedAlerts": 0, "status": "firing", "receiver": "medic", "groupLabels": {},
           "commonLabels": {}, "commonAnnotations": {}, "externalURL": "", "alerts": [alert]})
}

#[test]
fn while_the_attempt_log_cannot_be_written_none_is_done() {
    each(&RANKS, |rung, dir| {
        let sick = Sick::start(dir, 1, false, illness(rung));
        sick.ill.store(false, Ordering::SeqCst);
        let medic = start(dir, &sick, rung, &json!({}));
        // What it knows of its key is in the log too: it must have been let in once, or it asks nothing more.
        let listed = |n: usize| {
            http::post(medic.port(), "/api/v1/alertmanager", None, Some(&wakes()));
            sick.stub.lines().iter().filter(|line| *line == "GET /api/mcp_servers/").count() >= n
        };
        wait(&medic, "it is let in", || medic.status()["ready"] == json!(true) && listed(2));
        medic.limit_file_size(Some(1));
        sick.ill.store(true, Ordering::SeqCst);
        wait(&medic, "it says why nothing happens", || medic.status()["holds"]["log_unwritable"].as_u64() > Some(0));
        assert_eq!(sick.sent(), [] as [&str; 0], "{rung} although it could not be written down");
    });
}

#[test]
fn in_a_storm_nothing_that_touches_a_whole_hangar_is_done_and_of_the_rest_the_canary_alone() {
    each(&RANKS, |rung, dir| {
        let whole = WHOLE.contains(&rung);
        // So many are read as one list: all are seen at one instant.
        let sick = Sick::start(dir, 20, !whole, illness(rung));
        let mut settings = sick.settings(dir, rung);
        if BROAD.contains(&rung) {
            unlock(&mut settings);
        }
        let medic = Medic::start(&dir.join("medic"), &sick.stub.url, &settings);
        // Of what acts on one server the canary goes first; where its start unlocks more, it is held like all.
        let waits: BTreeSet<&str> = sick.ids.iter().map(String::as_str).filter(|id| whole || *id != "s0").collect();
        wait(&medic, &format!("{rung} is held: storm"), || {
            let incidents = medic.incidents(None);
            let held = incidents.iter().filter(|i| i["hold"] == "storm").filter_map(|i| i["mcp_server"].as_str());
            held.collect::<BTreeSet<_>>() == waits
        });
        let mut expected = Vec::new();
        if BROAD.contains(&rung) {
            expected.push("POST /api/mcp_servers/s0/start".to_owned());
        } else if !whole {
            wait(&medic, "the canary goes first", || !sick.sent().is_empty());
            expected.push(sends(rung).to_owned());
        }
        assert_eq!(sick.sent(), expected, "{rung} in a storm\n{}", medic.report());
    });
}
