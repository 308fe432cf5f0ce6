//! Hangar's event stream, and the ends of its processes where no log is read.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::hangar::declares_echo;
use crate::support::process::tail;
use crate::support::world::{Unwatched, World};
use crate::support::{Fault, Seen, V2_20, V2_34, poll, rest};

const STREAM: &str = "/api/ws/events";

/// So seldom that whatever happens soon was not seen by polling.
fn deaf_to_polls() -> Value {
    json!({"hangar": {"poll_interval": "60s"}})
}

fn streams(w: &World) -> Vec<Seen> {
    w.proxy.seen().into_iter().filter(|s| s.path == STREAM).collect()
}

fn connected(w: &World) {
    w.wait("the event stream is open", 20, |w| w.medic.log().contains("events_open"));
}

fn hangar_said(w: &World, what: &str) -> bool {
    tail(&w.hangar.log_file(), usize::MAX).contains(what)
}

#[test]
fn an_event_tells_the_reason_where_rest_does_not_and_no_log_is_read() {
    let servers = |h: crate::support::Hangar| h.server("api", "exit", &json!({})).server("drifts", "extra_tool", &declares_echo("block"));
    let w = Unwatched::start(V2_20, |h| servers(h).with_websockets()).watch_without_log(&deaf_to_polls());
    connected(&w);
    w.hangar.user_start("api");
    w.hangar.user_start("drifts");
    w.wait("both incidents are open", 10, |w| w.medic.incidents(None).len() == 2);
    let said = |id: &str| (w.medic.incident(id)["reason"].clone(), w.medic.incident(id)["provenance"]["source"].clone());
    assert_eq!(said("api"), (json!("start_failed"), json!("events")), "{}", w.medic.incident("api"));
    assert_eq!(said("drifts"), (json!("capability_blocked"), json!("events")));
    w.hangar.set_mode("api", "ok");
    w.wait_closed("api", "recovered", 40);
    w.wait_held("drifts", "approval_needed", 5);
}

#[test]
fn a_hangar_without_an_event_stream_is_told_once() {
    let w = Unwatched::start(V2_20, |h| h.server("api", "ok", &json!({}))).watch_without_log(&json!({}));
    w.wait("it is said", 10, |w| w.medic.log().contains("events_lost"));
    rest(3.0);
    assert_eq!((w.medic.log().matches("events_lost").count(), streams(&w).len()), (1, 1));
}

#[test]
fn rest_comes_before_events() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "exit", &json!({}))).watch_without_log(&deaf_to_polls());
    connected(&w);
    w.hangar.user_start("api");
    w.wait("the incident is open", 10, |w| w.medic.incident("api")["reason"] == "start_failed");
    assert_eq!(w.medic.incident("api")["provenance"]["source"], "rest");
}

#[test]
fn the_stream_is_opened_again_after_each_loss_and_everything_is_read_again() {
    let mut w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({}))).watch_without_log(&deaf_to_polls());
    connected(&w);
    w.hangar.bring_up(&["api"]);
    rest(1.2);
    // Nobody hears of this death: Hangar and the stream go down together, and the medic's polls are far apart.
    w.hangar.kill();
    w.hangar.start();
    let mark = w.proxy.mark();
    w.wait("it is open again", 30, |w| w.medic.log().matches("events_open").count() == 2);
    let read = |s: &Seen| s.path == "/api/mcp_servers/" || s.path == "/metrics";
    w.wait("the list and the metrics are read", 5, |w| w.proxy.since(mark).iter().filter(|s| read(s)).count() >= 2);
    w.must("the stream is not dialled in a loop", streams(&w).len() < 12);
    assert!(w.medic.is_alive());
}

#[test]
fn the_stream_is_closed_on_shutdown_and_hangar_lets_go_of_it_at_once() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})).with_auth());
    let file = w.dir().join("key");
    std::fs::write(&file, w.hangar.key.clone().unwrap()).unwrap();
    let mut w = w.watch_without_log(&json!({"hangar": {"api_key_file": file}}));
    connected(&w);
    w.wait("Hangar knows its listener", 5, |w| hangar_said(w, "ws_events_connected"));
    assert!(w.medic.sigterm().is_some_and(|s| s.success()), "{}", w.medic.log());
    let closed = poll(Duration::from_secs(2), || hangar_said(&w, "ws_events_cleanup_done").then_some(()));
    assert!(closed.is_some(), "Hangar still has its listener");
}

#[test]
fn by_default_the_stream_is_heard_only_where_no_log_is_read() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({}))).watch(&json!({}));
    rest(2.0);
    assert!(streams(&w).is_empty());
    drop(w);
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({}))).watch_without_log(&json!({"hangar": {"events": "off"}}));
    rest(2.0);
    assert!(streams(&w).is_empty());
    drop(w);
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({}))).watch(&json!({"hangar": {"events": "on"}}));
    connected(&w);
}

/// A key whose role may do everything that the daemon does, but read events.
fn key_without_audit_read(w: &Unwatched) -> String {
    let role = json!({"role_name": "medic", "name": "medic", "permissions": ["mcp_servers:read", "mcp_servers:lifecycle", "group:read"]});
    let made = w.hangar.post("/api/auth/roles", Some(&role));
    assert!((200..300).contains(&made.status), "{made:?}");
    let key = w.hangar.post("/api/auth/keys", Some(&json!({"principal_id": "service:medic", "name": "medic"})));
    let key =
        ["raw_key", "key", "api_key"].iter().find_map(|k| key.json()[*k].as_str().map(str::to_owned)).unwrap_or_else(|| panic!("{key:?}"));
    let assign = json!({"principal_id": "service:medic", "role_name": "medic", "scope": "global"});
    assert!(w.hangar.post("/api/auth/roles/assign", Some(&assign)).ok());
    key
}

#[test]
fn a_key_that_may_not_read_events_is_told_once_and_the_daemon_goes_on_without() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})).with_auth());
    let file = w.dir().join("key");
    std::fs::write(&file, key_without_audit_read(&w)).unwrap();
    w.hangar.bring_up(&["api"]);
    let w = w.watch_without_log(&json!({"hangar": {"api_key_file": file}}));
    w.wait("it is said", 10, |w| w.medic.log().contains("audit:read"));
    w.hangar.kill_child("api");
    w.wait_closed("api", "recovered", 30);
    assert_eq!((w.medic.log().lines().filter(|line| line.contains("audit:read")).count(), streams(&w).len()), (1, 1));
    assert_eq!(w.medic.status()["hangar"]["auth"], "ok");
}

#[test]
fn a_wrong_key_is_never_tried_on_the_stream() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})).with_auth());
    let file = w.dir().join("key");
    std::fs::write(&file, "mcp_this_key_was_never_made_by_hangar\n").unwrap();
    let w = w.watch_without_log(&json!({"hangar": {"api_key_file": file}}));
    w.wait("the refusal is known", 20, |w| w.medic.status()["hangar"]["auth"] == "refused");
    rest(4.0);
    let refused = w.proxy.seen().iter().filter(|s| s.status == 401).count();
    assert_eq!((refused, streams(&w).len()), (2, 0));
}

#[test]
fn an_upgrade_that_hangs_or_is_answered_with_a_page_stops_nothing_else() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let w = w.watch_without_log(&json!({"hangar": {"events": "off"}}));
    drop(w.medic);
    let page = Fault::Answer { status: 200, content_type: "text/html", body: "<html>".to_owned() };
    for fault in [Fault::Hold, Fault::Drop, page] {
        let rule = w.proxy.fault(|s| s.path == STREAM, fault);
        let starts = w.hangar.starts("api");
        let settings = json!({"policy": {"flap_window": "2s"}, "hangar": {"request_timeout": "1s"}});
        let dir = tempfile::tempdir().unwrap();
        let medic = crate::support::Medic::start(dir.path(), &w.proxy.url(), &settings);
        let lost = poll(Duration::from_secs(15), || medic.log().contains("events_lost").then_some(()));
        assert!(lost.is_some(), "{}", medic.log());
        w.hangar.kill_child("api");
        let back = poll(Duration::from_secs(20), || (w.hangar.starts("api") == starts + 1).then_some(()));
        assert!(back.is_some(), "{}", medic.report());
        w.proxy.lift(rule);
    }
}

#[test]
fn without_a_log_the_end_of_a_process_is_seen_long_before_hangars_own_look() {
    let slow = json!({"health_check_interval_s": 60});
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &slow));
    w.hangar.bring_up(&["api"]);
    let w = w.watch_without_log(&deaf_to_polls());
    w.proxy.fault(|s| s.path == STREAM, Fault::Drop);
    rest(3.0);
    w.hangar.kill_child("api");
    w.wait_closed("api", "recovered", 10);
    let incident = w.medic.incident("api");
    assert_eq!((&incident["symptoms"], &incident["reason"]), (&json!(["transport_eof"]), &json!("crashed")));
    w.climbed("api", &["client_reconnect insufficient", "capability_refresh insufficient", "session_reconnect recovered"]);
}
