//! Hangar goes away, or the daemon does.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::hangar::declares_echo;
use crate::support::world::{Unwatched, World};
use crate::support::{Fault, Seen, V2_34, rest};

/// A server that the daemon saw dead when Hangar is killed; mended meanwhile. Hangar is down for `down` seconds.
fn dead_when_hangar_restarts(settings: &Value, down: f64) -> World {
    let mut w = Unwatched::start(V2_34, |h| h.server("api", "exit", &json!({}))).watch(settings);
    w.hangar.user_start("api");
    w.hangar.user_start("api");
    w.wait("its incident is open", 4, |w| w.medic.incidents(Some("api")).len() == 1);
    w.hangar.kill();
    w.hangar.set_mode("api", "ok");
    rest(down);
    w.hangar.start();
    assert_eq!((w.hangar.state("api").as_str(), w.hangar.gauge("api")), ("cold", None));
    w
}

#[test]
fn a_dead_server_that_a_restart_of_hangar_made_cold_is_still_brought_back() {
    let w = dead_when_hangar_restarts(&json!({}), 0.0);
    w.wait_closed("api", "recovered", 40);
    let incident = w.medic.incident("api");
    w.must("it says so", incident["symptoms"].as_array().is_some_and(|s| s.contains(&json!("server_lost_in_restart"))));
    assert_eq!((incident["reason"].as_str(), w.medic.incidents(None).len()), (Some("start_failed"), 1));
    assert_eq!((w.hangar.starts("api"), w.hangar.state("api").as_str()), (3, "ready"));
}

#[test]
fn a_server_last_seen_dead_too_long_before_the_restart_is_left_cold() {
    let w = dead_when_hangar_restarts(&json!({"policy": {"lost_in_restart_within": "1s"}}), 3.0);
    rest(8.0);
    assert_eq!((w.hangar.starts("api"), w.hangar.state("api").as_str()), (2, "cold"));
    w.nothing_sent_since(0);
}

#[test]
fn a_server_whose_start_takes_hangar_down_is_started_once() {
    let mut w = Unwatched::start(V2_34, |h| h.server("api", "exit", &json!({}))).watch(&json!({}));
    w.hangar.user_start("api");
    w.hangar.set_mode("api", "kill_parent");
    let gone = crate::support::poll(Duration::from_secs(20), || w.hangar.is_gone().then_some(()));
    assert!(gone.is_some(), "the daemon started it");
    w.hangar.set_mode("api", "ok");
    w.hangar.start();

    w.wait_held("api", "approval_needed", 30);
    w.must("a hold order says so", w.medic.hold_orders().contains_key("api"));
    w.must("the attempt is unresolved", w.medic.climb("api").last().is_some_and(|a| a == "session_reconnect unresolved"));
    w.medic.restart();
    rest(4.0);
    w.wait_held("api", "approval_needed", 5);
    assert_eq!((w.hangar.starts("api"), w.proxy.starts("api").len()), (2, 1));
}

#[test]
fn while_hangar_is_down_no_server_incident_moves_and_nothing_is_sent() {
    let servers = |h: crate::support::Hangar| h.server("api", "ok", &json!({})).server("blocked", "extra_tool", &declares_echo("block"));
    let w = Unwatched::start(V2_34, servers);
    w.hangar.bring_up(&["api"]);
    let mut w = w.watch(&json!({}));
    w.hangar.user_start("blocked");
    w.wait_held("blocked", "approval_needed", 20);

    let server_incidents = |w: &World| {
        let of = |i: &Value| (i["incident_id"].to_string(), i["closed_at"].to_string());
        let some: Vec<_> =
            w.medic.incidents(None).iter().filter(|i| i["mcp_server"].as_str().is_some_and(|s| !s.is_empty())).map(of).collect();
        some
    };
    let before = server_incidents(&w);
    let mark = w.proxy.mark();
    w.hangar.stop();
    for _ in 0..30 {
        rest(1.0);
        assert_eq!(server_incidents(&w), before);
    }
    w.nothing_sent_since(mark);
    assert_eq!(w.medic.status()["hangar"]["reachable"], false);
    w.hangar.start();
    w.wait("it sees Hangar again", 10, |w| w.medic.status()["hangar"]["reachable"] == json!(true));
    assert_eq!(server_incidents(&w), before);

    w.hangar.bring_up(&["api"]);
    w.hangar.kill_child("api");
    w.wait_closed("api", "recovered", 40);
}

/// A crashed server whose start of ours is under way, seen by the proxy.
fn start_under_way(mode: &str, fault: Option<Fault>, settings: &Value) -> World {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let w = w.watch(settings);
    if let Some(fault) = fault {
        w.proxy.fault(|s| s.is("start", "api"), fault);
    }
    w.hangar.set_mode("api", mode);
    w.hangar.kill_child("api");
    w.wait("our start is under way", 20, |w| w.proxy.starts("api").len() == 1);
    rest(1.0);
    w
}

#[test]
fn a_daemon_killed_during_a_start_does_not_repeat_it_and_settles_it_by_what_it_sees() {
    let mut w = start_under_way("slow_init:6", None, &json!({}));
    let before: Vec<Value> = w.medic.attempts("api").iter().map(|a| a["attempt_id"].clone()).collect();
    w.medic.restart();
    w.wait_closed("api", "recovered", 40);
    let after = w.medic.attempts("api");
    w.must("no attempt is lost", before.iter().all(|id| after.iter().any(|a| a["attempt_id"] == *id)));
    w.climbed("api", &["client_reconnect insufficient", "capability_refresh insufficient", "session_reconnect recovered"]);
    assert_eq!(after[2]["receipt"], "unknown");
    assert_eq!((w.proxy.starts("api").len(), w.hangar.starts("api")), (1, 2));
}

#[test]
fn a_start_that_never_reached_hangar_before_the_daemon_was_killed_is_unresolved() {
    let settings = json!({"hangar": {"start_timeout": "8s"}});
    let mut w = start_under_way("ok", Some(Fault::Hold), &settings);
    w.medic.sigkill();
    w.proxy.lift_all();
    w.medic.start_again();
    w.wait("the attempt is settled", 40, |w| w.medic.climb("api").get(2).is_some_and(|a| !a.ends_with('-')));
    assert_eq!(w.medic.climb("api")[2], "session_reconnect unresolved");
    w.wait_closed("api", "recovered", 40);
    w.must("another attempt brought it back", w.medic.climb("api")[3..].iter().any(|a| a.ends_with(" recovered")));
}

#[test]
fn on_sigterm_the_running_start_is_settled_or_left_unresolved_and_the_daemon_ends_in_time() {
    let mut w = start_under_way("slow_init:20", None, &json!({}));
    let status = w.medic.sigterm();
    assert!(status.is_some_and(|s| s.success()), "exit within 10 s with 0: {status:?}");
    w.medic.start_again();
    w.wait("the attempt is settled", 60, |w| w.medic.climb("api").get(2).is_some_and(|a| !a.ends_with('-')));
    let outcome = w.medic.climb("api")[2].clone();
    w.must("settled by what is seen", ["session_reconnect recovered", "session_reconnect unresolved"].contains(&outcome.as_str()));
    assert_eq!(w.proxy.starts("api").len(), 1);
}

#[test]
fn a_hangar_that_answers_slowly_is_still_acted_on() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let w = w.watch(&json!({}));
    w.proxy.fault(|s: &Seen| s.method == "GET" && s.path.starts_with("/api/"), Fault::Delay(Duration::from_millis(2200)));
    w.proxy.fault(|s: &Seen| s.path == "/metrics", Fault::Delay(Duration::from_millis(1300)));
    w.hangar.kill_child("api");
    w.wait_closed("api", "recovered", 60);
    w.must("started once", w.proxy.starts("api").len() == 1);
}
