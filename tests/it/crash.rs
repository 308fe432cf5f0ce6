//! The crash matrix: the real daemon dies at each fail point, before and after every durable step and every send, and the
//! next process goes on: no attempt is lost, no action is done twice, the chain holds, the incident comes to its end.

mod homes;
mod platform;

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hangar_medic::crash::POINTS;
use serde_json::{Value, json};

use crate::hangar::stub::{Reply, Stub, json as answer, text};
use crate::support::medic::{BINARY, merge, rungs};
use crate::support::process::free_port;
use crate::support::world::Unwatched;
use crate::support::{Medic, Proxy, V2_20, V2_34, poll};

const SIGKILL: i32 = 9;
const ENDS_WITHIN: Duration = Duration::from_mins(1);

/// Of a crashed server: the point, and how often it is passed before the daemon dies there.
const STARTS: &[(&str, u32)] = &[
    ("append.begin", 0),
    ("append.begin", 1),
    ("append.begin", 4),
    ("append.uncommitted", 0),
    ("append.uncommitted", 1),
    ("append.uncommitted", 5),
    ("append.uncommitted", 6),
    ("append.committed", 0),
    ("append.committed", 2),
    ("append.committed", 5),
    ("append.remembered", 1),
    ("append.remembered", 6),
    ("checkpoint.begin", 0),
    ("checkpoint.written", 0),
    ("act.begin", 0),
    ("act.done", 1),
    ("act.begin", 2),
    ("act.done", 2),
    ("start.unsent", 0),
    ("start.answered", 0),
];

/// Of a server that is up and does not work: its restart has two halves.
const RESTARTS: &[(&str, u32)] = &[("stop.unsent", 0), ("stop.answered", 0), ("start.unsent", 1), ("start.answered", 1)];

/// Of a group's member that stays out of rotation.
const REBALANCES: &[(&str, u32)] = &[("rebalance.unsent", 0), ("rebalance.answered", 0)];

#[test]
fn every_fail_point_is_in_the_matrix() {
    let dies_at = [STARTS, RESTARTS, REBALANCES, homes::CUTS, homes::ON_POSTGRES, platform::CASES].concat();
    let tried: BTreeSet<&str> = dies_at.iter().map(|(point, _)| *point).collect();
    assert_eq!(tried, POINTS.iter().copied().collect());
}

fn failpoints((point, passes): (&str, u32)) -> String {
    if passes == 0 { format!("{point}=return") } else { format!("{point}={passes}*off->return") }
}

fn verified(medic: &Medic, when: &str) {
    let done = Command::new(BINARY).args(["attempts", "verify", "--config.file"]).arg(medic.config_file()).output().unwrap();
    assert!(done.status.success(), "{when}: {}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
}

/// The daemon dies there, and another one takes over.
fn die_and_go_on(dir: &Path, url: &str, settings: &Value, case: (&str, u32)) -> Medic {
    let (mut medic, ended) = Medic::doomed(dir, url, settings, &failpoints(case));
    assert_eq!(ended.and_then(|s| s.signal()), Some(SIGKILL), "{case:?} was not reached: {ended:?}\n{}", medic.log());
    verified(&medic, &format!("after the death at {case:?}"));
    medic.start_again();
    medic
}

/// The incident is over, every attempt has its outcome, and nothing was sent that no attempt stands for.
fn ends_well(medic: &Medic, server: &str, case: (&str, u32), sent: usize) {
    let over = poll(ENDS_WITHIN, || {
        let incident = medic.incident(server);
        (incident["phase"] == "closed" && incident["how"] != "cancelled").then_some(())
    });
    assert!(over.is_some(), "{case:?}: {server} does not come back\n{}", medic.report());
    let attempts = medic.attempts(server);
    let open = attempts.iter().filter(|a| a["outcome"].is_null()).count();
    assert_eq!(open, 0, "{case:?}: an attempt was lost\n{}", medic.report());
    let acts = |a: &&Value| a["rank"].as_u64() >= Some(2) && a["outcome"] != "not_applicable";
    let acted = attempts.iter().filter(acts).count();
    assert!(sent <= acted, "{case:?}: {sent} starts were sent for {acted} attempts\n{}", medic.report());
    assert!(medic.hold_orders().is_empty(), "{case:?}: our own stop was taken for somebody's\n{}", medic.report());
    verified(medic, &format!("at the end of {case:?}"));
}

fn crashed_servers(cases: &[(&str, u32)]) {
    crashed_servers_of(cases, |_| json!({}));
}

/// `storage`: where the log of the n-th case is.
fn crashed_servers_of(cases: &[(&str, u32)], storage: impl Fn(usize) -> Value) {
    let ids: Vec<String> = (0..cases.len()).map(|n| format!("s{n}")).collect();
    let names: Vec<&str> = ids.iter().map(String::as_str).collect();
    let w = Unwatched::start(V2_34, |h| names.iter().fold(h, |h, id| h.server(id, "ok", &json!({}))));
    w.hangar.bring_up(&names);
    let proxy = Proxy::start(w.hangar.port);
    for (n, (id, case)) in names.iter().zip(cases).enumerate() {
        w.hangar.kill_child(id);
        let dir = w.dir().join(id);
        let mut settings = json!({"hangar": {"log_file": w.hangar.log_file()}, "policy": {"settle": "500ms"}});
        merge(&mut settings, &storage(n));
        let medic = die_and_go_on(&dir, &proxy.url(), &settings, *case);
        ends_well(&medic, id, *case, proxy.starts(id).len());
        assert_eq!(w.hangar.state(id), "ready", "{case:?}");
        let starts = w.hangar.starts(id);
        assert!(starts <= 3, "{case:?}: {id} was started {starts} times");
    }
}

#[test]
fn a_death_at_any_step_of_a_climb_loses_and_repeats_nothing_1() {
    crashed_servers(&STARTS[..7]);
}

#[test]
fn a_death_at_any_step_of_a_climb_loses_and_repeats_nothing_2() {
    crashed_servers(&STARTS[7..14]);
}

#[test]
fn a_death_at_any_step_of_a_climb_loses_and_repeats_nothing_3() {
    crashed_servers(&STARTS[14..]);
}

fn half_restarted(case: (&str, u32)) {
    let port = free_port();
    let mut w = Unwatched::start(V2_20, |h| h.remote("far", port));
    w.hangar.start_upstream(port);
    w.hangar.bring_up(&["far"]);
    w.hangar.stop_upstream();
    let proxy = Proxy::start(w.hangar.port);
    let settings = json!({
        "hangar": {"log_file": w.hangar.log_file()},
        "policy": {"settle": "500ms", "not_seen_healthy_after": "4s", "rungs": rungs(&json!({"session_reconnect": {"pause": "200ms"}}))},
    });
    w.hangar.start_upstream(port);
    let medic = die_and_go_on(&w.dir().join("medic"), &proxy.url(), &settings, case);
    ends_well(&medic, "far", case, proxy.starts("far").len());
    assert!(proxy.stops("far").len() <= 1, "{case:?}: stopped twice");
    assert_eq!(w.hangar.state("far"), "ready", "{case:?}");
}

#[test]
fn a_death_before_the_stop_of_a_restart_leaves_it_to_the_next_process() {
    half_restarted(RESTARTS[0]);
}

#[test]
fn a_death_after_the_stop_of_a_restart_leaves_the_start_to_the_next_process() {
    half_restarted(RESTARTS[1]);
}

#[test]
fn a_death_before_the_start_of_a_restart_leaves_it_to_the_next_process() {
    half_restarted(RESTARTS[2]);
}

#[test]
fn a_death_after_the_start_of_a_restart_starts_nothing_again() {
    half_restarted(RESTARTS[3]);
}

/// A group whose member comes back only when it is rebalanced.
#[derive(Default)]
struct Grouped {
    started: f64,
    rotates: bool,
    rebalances: u32,
    starts: usize,
}

fn seconds() -> f64 {
    hangar_medic::clock::now().duration_since(jiff::Timestamp::UNIX_EPOCH).as_secs_f64()
}

fn group_answers(grouped: &Mutex<Grouped>, began: f64, line: &str) -> Reply {
    let mut state = grouped.lock().unwrap();
    let ready = state.started > 0.0;
    let member = |ready: bool| {
        let dead = if ready {
            Value::Null
        } else {
            json!({"reason": "given_up", "since": null, "retry_allowed_at": null, "revived_by": "call_or_start"})
        };
        json!({"mcp_server_id": "m1", "state": if ready { "ready" } else { "dead" }, "mode": "subprocess", "alive": ready, "tools": [], "dead": dead,
            "health": {"consecutive_failures": 0, "can_retry": true, "last_failure_ago": null}, "meta": {"started_at": ready.then_some(state.started)}})
    };
    let group = json!({"group_id": "grp", "circuit_open": false, "members": [
        {"id": "m1", "state": if ready { "ready" } else { "dead" }, "in_rotation": ready && state.rotates},
        {"id": "m2", "state": "ready", "in_rotation": true}]});
    match line {
        "GET /metrics" => {
            let gauge = if ready { 2 } else { 4 };
            let healthy = if ready {
                format!("mcp_hangar_mcp_server_last_healthy_timestamp_seconds{{mcp_server=\"m1\"}} {}\n", seconds())
            } else {
                String::new()
            };
            text(
                200,
                &format!(
                    "mcp_hangar_process_start_time_seconds {began}\nmcp_hangar_build_info{{version=\"2.34.4\"}} 1\nmcp_hangar_mcp_server_state{{mcp_server=\"m1\"}} {gauge}\n{healthy}"
                ),
            )
        }
        "GET /health/live" => answer(200, &json!({"status": "healthy"})),
        "GET /api/mcp_servers/" => answer(200, &json!({"mcp_servers": [member(ready)]})),
        "GET /api/mcp_servers/m1" => answer(200, &member(ready)),
        "GET /api/mcp_servers/m1/tools" => answer(200, &json!({"tools": [{"name": "echo"}]})),
        "GET /api/system/me" => answer(200, &json!({"authenticated": false})),
        "GET /api/groups/" => answer(200, &json!({"groups": [group]})),
        "GET /api/groups/grp" => answer(200, &group),
        "POST /api/mcp_servers/m1/start" => {
            state.starts += 1;
            // The first start finds its upstream gone.
            if state.starts == 1 {
                return answer(500, &json!({"error": {"code": "McpServerStartError", "message": "gone", "details": {}}}));
            }
            state.started = seconds();
            answer(200, &json!({"mcp_server": "m1", "state": "ready", "tools": ["echo"]}))
        }
        "POST /api/groups/grp/rebalance" => {
            state.rebalances += 1;
            state.rotates = true;
            answer(200, &json!({"group_id": "grp"}))
        }
        _ => answer(200, &json!({"logs": []})),
    }
}

#[test]
fn a_death_around_a_rebalance_rebalances_at_most_once_more() {
    for case in REBALANCES {
        let grouped = Arc::new(Mutex::new(Grouped::default()));
        let (state, began) = (Arc::clone(&grouped), seconds() - 100.0);
        let stub = Stub::new(move |r| group_answers(&state, began, &r.line));
        let dir = tempfile::Builder::new().prefix("hangar-medic-").tempdir().unwrap();
        let settings =
            json!({"policy": {"settle": "500ms", "rejoin_after": "1s", "rungs": rungs(&json!({"session_reconnect": {"pause": "200ms"}}))}});
        let medic = die_and_go_on(dir.path(), &stub.url, &settings, *case);
        let starts = grouped.lock().unwrap().starts;
        ends_well(&medic, "m1", *case, starts);
        // Sending it again is harmless: it only puts ready members back.
        assert!(grouped.lock().unwrap().rebalances <= 2, "{case:?}");
    }
}
