//! A dead server comes back, and the log says how.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::support::hangar::gives_up;
use crate::support::medic::rungs;
use crate::support::process::free_port;
use crate::support::world::{Unwatched, World};
use crate::support::{Fault, Seen, V2_20, V2_34, poll, rest};

/// Authenticated reads that one recovery may cost Hangar; which groups there are is read once for each of its processes.
const READS_MAX: usize = 8;
const CRASH_CLIMB: [&str; 3] = ["client_reconnect insufficient", "capability_refresh insufficient", "session_reconnect recovered"];

fn killed_server_comes_back(version: &str) {
    let w = Unwatched::start(version, |h| h.server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let w = w.watch(&json!({}));
    w.must("nothing was recovered yet", w.medic.fraction().is_nan());
    let mark = w.proxy.mark();
    w.hangar.kill_child("api");

    w.wait_closed("api", "recovered", 40);
    w.climbed("api", &CRASH_CLIMB);
    let asked = w.proxy.since(mark);
    let read = |s: &&Seen| s.method == "GET" && s.path.starts_with("/api/") && s.path != "/api/groups/";
    assert!(asked.iter().filter(read).count() <= READS_MAX, "{asked:#?}");
    assert_eq!(w.medic.incident("api")["reason"], "crashed");
    assert_eq!((w.hangar.state("api").as_str(), w.hangar.gauge("api")), ("ready", Some(2.0)));
    assert_eq!((w.hangar.starts("api"), w.proxy.starts("api").len()), (2, 1), "starts by anybody, by the daemon");
    assert_eq!((w.medic.fraction().to_string().as_str(), w.medic.recoveries()), ("1", 1));
    assert!(w.hangar.call("api"));
}

#[test]
fn a_killed_server_comes_back_on_2_34() {
    killed_server_comes_back(V2_34);
}

#[test]
fn a_killed_server_comes_back_on_2_20_long_before_its_health_sweep() {
    killed_server_comes_back(V2_20);
}

/// Waits for the recovery and gives every (when, `retry_allowed_at` as Hangar said it then).
fn backoffs_until_recovered(w: &World, server: &str, seconds: u64) -> Vec<(Timestamp, Timestamp)> {
    let mut said = Vec::new();
    poll(std::time::Duration::from_secs(seconds), || {
        let now = hangar_medic::clock::now();
        said.extend(w.hangar.retry_allowed_at(server).map(|allowed| (now, allowed)));
        (w.medic.incident(server)["phase"] == "closed").then_some(())
    });
    w.wait_closed(server, "recovered", 1);
    said
}

fn assert_no_start_inside_the_backoff(w: &World, server: &str, said: &[(Timestamp, Timestamp)]) {
    for start in w.proxy.starts(server) {
        if let Some((_, allowed)) = said.iter().rev().find(|(at, _)| *at < start.at) {
            w.must(&format!("the start at {} is not before {allowed}", start.at), start.at >= *allowed);
        }
    }
}

fn failed_start_comes_back(version: &str) {
    let w = Unwatched::start(version, |h| h.server("api", "exit", &json!({}))).watch(&json!({}));
    assert_eq!(w.hangar.user_start("api").code(), "McpServerStartError");
    let died = hangar_medic::clock::now();
    let said = std::thread::scope(|scope| {
        scope.spawn(|| {
            rest(3.0);
            w.hangar.set_mode("api", "ok");
        });
        backoffs_until_recovered(&w, "api", 40)
    });

    let starts = w.proxy.starts("api");
    w.must("one or two starts of ours", (1..=2).contains(&starts.len()));
    // Hangar waits 2 s, give or take a tenth, after the first failure; 2.20 does not say so.
    w.must("no start inside the backoff", starts[0].at.duration_since(died) >= SignedDuration::from_millis(1_700));
    assert_no_start_inside_the_backoff(&w, "api", &said);
    assert_eq!(w.medic.incident("api")["reason"], "start_failed");
    assert_eq!(w.hangar.state("api"), "ready");
    assert_eq!(w.hangar.starts("api"), 1 + starts.len());
}

#[test]
fn a_server_whose_start_failed_comes_back_once_mended_on_2_34() {
    failed_start_comes_back(V2_34);
}

#[test]
fn a_server_whose_start_failed_comes_back_once_mended_on_2_20() {
    failed_start_comes_back(V2_20);
}

#[test]
fn a_given_up_server_that_is_mended_needs_one_start_after_its_backoff() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "exit", &gives_up())).watch(&json!({}));
    w.hangar.user_start("api");
    w.hangar.wait_gauge("api", 4.0, 70);
    w.must("nothing was sent while Hangar retried", w.proxy.acted_since(0).is_empty());
    let mended_at = w.hangar.starts("api");
    w.hangar.set_mode("api", "ok");

    let said = backoffs_until_recovered(&w, "api", 60);
    w.must("Hangar named a backoff", !said.is_empty());
    assert_no_start_inside_the_backoff(&w, "api", &said);
    w.climbed("api", &["capability_refresh insufficient", "session_reconnect recovered"]);
    assert_eq!((w.hangar.starts("api"), w.hangar.state("api").as_str()), (mended_at + 1, "ready"));
    assert_eq!(w.medic.incident("api")["reason"], "given_up");
}

#[test]
fn a_given_up_server_that_stays_broken_is_left_alone_and_brought_back_when_mended_much_later() {
    let settings = json!({"policy": {"exhausted_retry": "3s", "exhausted_retry_max": "6s"}});
    let w = Unwatched::start(V2_34, |h| h.server("api", "exit", &gives_up())).watch(&settings);
    w.hangar.user_start("api");
    w.hangar.wait_gauge("api", 4.0, 70);
    let given_up_after = w.hangar.starts("api");

    w.wait("the ladder is exhausted; until then the gauge stays at 4", 60, |w| {
        // A failing start makes Hangar itself pass through 3 for an instant; a stop of ours would leave 0.
        let gauge = w.hangar.gauge("api");
        w.must(&format!("the gauge never leaves 4 by our hand: {gauge:?}"), gauge == Some(4.0) || gauge == Some(3.0));
        w.medic.incident("api")["phase"] == "exhausted"
    });
    let climb =
        ["capability_refresh insufficient", "session_reconnect failed", "lease_recovery not_applicable", "worker_restart not_applicable"];
    w.climbed("api", &climb);
    for _ in 0..10 {
        rest(1.0);
        w.must("the gauge stays at 4", w.hangar.gauge("api") == Some(4.0));
    }
    w.must("no start inside the doubled backoff", w.hangar.starts("api") == given_up_after + 1);

    w.hangar.set_mode("api", "ok");
    w.wait_closed("api", "recovered", 60);
    w.climbed("api", &[&climb[..], &["session_reconnect recovered"]].concat());
    assert_eq!(w.hangar.starts("api"), given_up_after + 2, "one start on the ladder, one slow retry");
    w.must("nothing was ever stopped", w.proxy.stops("api").is_empty());
}

/// A `remote` server of 2.20 that stays ready though its upstream is gone, with the daemon on rung 2.
fn upstream_gone(settings: &serde_json::Value) -> (World, u16) {
    let port = free_port();
    let mut w = Unwatched::start(V2_20, |h| h.remote("far", port));
    w.hangar.start_upstream(port);
    w.hangar.bring_up(&["far"]);
    w.hangar.stop_upstream();
    let mut all = json!({"policy": {"not_seen_healthy_after": "5s", "rungs": rungs(&json!({"session_reconnect": {"pause": "4s"}}))}});
    crate::support::medic::merge(&mut all, settings);
    (w.watch(&all), port)
}

#[test]
fn a_ready_server_that_nobody_saw_healthy_is_restarted_by_rung_5() {
    let (mut w, port) = upstream_gone(&json!({}));
    w.wait("rung 2 did nothing", 40, |w| w.medic.climb("far").first().is_some_and(|a| a == "session_reconnect insufficient"));
    assert_eq!(w.proxy.starts("far")[0].status, 200);
    w.hangar.start_upstream(port);
    w.wait_closed("far", "recovered", 40);
    w.climbed("far", &["session_reconnect insufficient", "lease_recovery not_applicable", "worker_restart recovered"]);
    assert_eq!((w.proxy.stops("far").len(), w.proxy.starts("far").len()), (1, 2));
    assert_eq!(w.hangar.state("far"), "ready");
}

#[test]
fn a_crash_between_the_halves_of_a_worker_restart_leaves_the_start_to_the_next_process() {
    let (mut w, port) = upstream_gone(&json!({}));
    let stop = w.proxy.fault(|s| s.is("stop", "far"), Fault::HoldAnswer);
    w.wait("the stop was sent", 60, |w| w.proxy.stops("far").len() == 1);
    w.hangar.wait_state("far", "cold", 10);
    w.proxy.fault(|s| s.is("start", "far"), Fault::Hold);
    w.proxy.lift(stop);
    w.wait("the start is on its way", 10, |w| w.proxy.starts("far").len() == 2);
    w.medic.sigkill();
    w.proxy.lift_all();
    w.hangar.start_upstream(port);
    assert_eq!(w.hangar.state("far"), "cold");

    w.medic.start_again();
    w.wait_closed("far", "recovered", 40);
    w.climbed("far", &["session_reconnect insufficient", "lease_recovery not_applicable", "worker_restart recovered"]);
    assert_eq!((w.proxy.stops("far").len(), w.proxy.starts("far").len(), w.hangar.state("far").as_str()), (1, 3, "ready"));
}

#[test]
fn a_server_that_a_users_call_revived_first_is_no_recovery_of_ours() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let w = w.watch(&json!({}));
    let look = w.proxy.fault(|s| s.path.starts_with("/api/mcp_servers/api/logs"), Fault::HoldAnswer);
    w.hangar.kill_child("api");
    w.wait("rung 1 is looking", 20, |w| w.proxy.seen().iter().any(|s| s.path.contains("/logs")));
    assert!(w.hangar.call("api"));
    w.hangar.wait_gauge("api", 2.0, 5);
    w.proxy.lift(look);

    w.wait_closed("api", "healed_by_itself", 20);
    let climb = w.medic.climb("api");
    w.must("the last attempt is cancelled", climb.last().is_some_and(|a| a.ends_with(" cancelled")));
    w.must("no attempt recovered anything", !climb.iter().any(|a| a.ends_with(" recovered")));
    w.must("no recovery is counted", w.medic.recoveries() == 0 && w.medic.fraction().is_nan());
    w.nothing_sent_since(0);
}

#[test]
fn an_answer_of_200_is_no_recovery() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let w = w.watch(&json!({}));
    let body = json!({"mcp_server": "api", "state": "ready", "tools": ["echo"]}).to_string();
    w.proxy.fault(|s| s.is("start", "api"), Fault::Answer { status: 200, content_type: "application/json", body });
    w.hangar.kill_child("api");

    w.wait("a start was answered 200 and judged", 40, |w| {
        w.medic.climb("api").iter().any(|a| a.starts_with("session_reconnect ") && !a.ends_with('-'))
    });
    let climb = w.medic.climb("api");
    w.must("it was not enough", climb.contains(&"session_reconnect insufficient".to_owned()));
    w.must("nothing is recovered", w.medic.recoveries() == 0 && w.medic.incident("api")["phase"] != "closed");
    assert_eq!(w.hangar.starts("api"), 1);
}

#[test]
fn a_server_that_dies_again_soon_is_met_on_the_next_rung() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let w = w.watch(&json!({"policy": {"flap_window": "5m", "exhausted_retry": "2s"}}));
    w.hangar.kill_child("api");
    w.wait_closed("api", "recovered", 40);
    w.climbed("api", &CRASH_CLIMB);

    w.hangar.kill_child("api");
    w.wait("it climbs again", 40, |w| w.medic.attempts("api").len() > CRASH_CLIMB.len());
    let next = &w.medic.attempts("api")[CRASH_CLIMB.len()];
    w.must("not from the first rung, but above the one that did not last", next["rank"].as_u64() > Some(2));
    w.wait("and it is ready in the end", 40, |w| w.hangar.state("api") == "ready" && w.medic.incident("api")["phase"] == "closed");
}

#[test]
fn a_server_whose_start_keeps_failing_gets_two_starts_of_ours_each_after_its_backoff() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "exit", &json!({}))).watch(&json!({}));
    w.hangar.user_start("api");
    w.wait("two starts of ours, and no third", 40, |w| w.proxy.starts("api").len() >= 2 || w.hangar.state("api") == "degraded");
    rest(6.0);
    w.must("at most two starts of ours after a fresh death", w.proxy.starts("api").len() <= 2);
    let gaps: Vec<SignedDuration> = w.proxy.starts("api").windows(2).map(|p| p[1].at.duration_since(p[0].at)).collect();
    w.must("the second waited for its own backoff", gaps.iter().all(|g| *g >= SignedDuration::from_millis(3_500)));
}
