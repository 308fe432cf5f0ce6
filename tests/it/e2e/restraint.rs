//! Where the daemon must keep its hands off.

use serde_json::{Value, json};

use crate::support::hangar::{declares_echo, gives_up};
use crate::support::world::{Unwatched, World};
use crate::support::{V2_20, V2_34, rest};

fn undeclared_tools(version: &str) -> Unwatched {
    Unwatched::start(version, |h| {
        ["block", "quarantine", "alert"].iter().fold(h, |h, mode| h.server(mode, "extra_tool", &declares_echo(mode)))
    })
}

/// Restarts Hangar, then the daemon; the blocked servers must stay blocked through both.
fn stay_blocked(mut w: World) -> Vec<Value> {
    for mode in ["block", "quarantine"] {
        assert_eq!(w.hangar.user_start(mode).code(), "CapabilityBlockedError");
    }
    assert!(w.hangar.user_start("alert").ok());
    let held = |w: &World| {
        for mode in ["block", "quarantine"] {
            w.wait_held(mode, "approval_needed", 20);
            w.climbed(mode, &["capability_refresh insufficient"]);
            assert_eq!(w.medic.incidents(Some(mode)).len(), 1);
            assert_eq!((w.medic.incident(mode)["reason"].as_str(), w.hangar.starts(mode)), (Some("capability_blocked"), 1));
        }
        w.must("a drift that only alerts opens nothing", w.medic.incidents(Some("alert")).is_empty());
        w.nothing_sent_since(0);
    };
    held(&w);
    w.hangar.stop();
    w.hangar.start();
    assert_eq!((w.hangar.state("block").as_str(), w.hangar.gauge("block")), ("cold", None));
    rest(3.0);
    held(&w);
    w.medic.restart();
    rest(3.0);
    held(&w);

    let evidence = |mode: &str| w.medic.attempts(mode)[0]["evidence"].clone();
    ["block", "quarantine"].map(evidence).into()
}

#[test]
fn a_server_with_undeclared_tools_is_never_started_and_both_lists_are_kept() {
    for evidence in stay_blocked(undeclared_tools(V2_34).watch(&json!({}))) {
        assert_eq!(evidence["exposed_tools"], json!(["echo", "exfiltrate"]));
        assert_eq!(evidence["undeclared_tools"], json!(["exfiltrate"]));
    }
}

#[test]
fn a_server_with_undeclared_tools_is_never_started_on_2_20_by_its_log_alone() {
    for evidence in stay_blocked(undeclared_tools(V2_20).watch(&json!({}))) {
        assert_eq!(evidence["exposed_tools"], json!(["echo", "exfiltrate"]));
        assert_eq!(evidence["undeclared_tools"], json!(["exfiltrate"]));
    }
}

#[test]
fn without_a_log_the_undeclared_tools_are_unknown_and_the_evidence_says_so() {
    for evidence in stay_blocked(undeclared_tools(V2_34).watch_without_log(&json!({}))) {
        assert_eq!(evidence["exposed_tools"], json!(["echo", "exfiltrate"]));
        assert_eq!(evidence["undeclared_tools"], Value::Null);
        assert!(evidence["undeclared_tools_note"].as_str().is_some_and(|n| n.contains("log")), "{evidence}");
    }
}

#[test]
fn while_hangar_retries_or_starts_a_server_nothing_is_sent() {
    let servers = |h: crate::support::Hangar| h.server("degraded", "exit", &gives_up()).server("starting", "ok", &json!({}));
    let w = Unwatched::start(V2_34, servers).watch(&json!({}));
    w.hangar.bring_up(&["starting"]);
    w.hangar.user_start("degraded");
    w.hangar.wait_gauge("degraded", 3.0, 5);
    w.hangar.set_mode("starting", "hang_init");
    w.hangar.operator_stop("starting");
    std::thread::scope(|scope| {
        scope.spawn(|| w.hangar.user_start("starting"));
        w.hangar.wait_state("starting", "initializing", 5);
        rest(10.0);
        assert_eq!(w.hangar.state("starting"), "initializing");
        w.nothing_sent_since(0);
    });
    rest(5.0);
    assert_eq!(w.hangar.state("degraded"), "degraded");
    w.must("nothing was sent for the degraded server", !w.proxy.acted_since(0).iter().any(|s| s.path.contains("degraded")));
}

#[test]
fn an_idle_server_stays_cold_and_one_reaped_right_after_its_recovery_counts() {
    let servers =
        |h: crate::support::Hangar| h.server("lazy", "ok", &json!({"idle_ttl_s": 3})).server("reaped", "ok", &json!({"idle_ttl_s": 8}));
    let w = Unwatched::start(V2_34, servers);
    w.hangar.bring_up(&["lazy", "reaped"]);
    let w = w.watch(&json!({"policy": {"settle": "50s"}}));
    w.hangar.kill_child("reaped");
    w.wait("it was started again", 30, |w| w.hangar.starts("reaped") == 2);
    // Hangar reaps the idle every 30 s.
    w.hangar.wait_state("reaped", "cold", 45);
    w.hangar.wait_state("lazy", "cold", 45);
    w.wait_closed("reaped", "recovered", 60);
    rest(3.0);
    assert_eq!((w.hangar.state("lazy").as_str(), w.hangar.starts("lazy")), ("cold", 1));
    assert_eq!((w.hangar.state("reaped").as_str(), w.hangar.starts("reaped")), ("cold", 2));
    w.must("idleness opens nothing", w.medic.incidents(Some("lazy")).is_empty() && w.medic.incidents(Some("reaped")).len() == 1);
    w.must("the recovery is counted once", w.medic.recoveries() == 1);
}

#[test]
fn a_reason_that_cannot_be_told_is_looked_at_and_then_held() {
    let w = Unwatched::start(V2_20, |h| h.server("api", "exit", &json!({}))).watch_without_log(&json!({}));
    w.hangar.user_start("api");
    w.wait_held("api", "undeterminable", 30);
    w.hangar.set_mode("api", "ok");
    rest(5.0);
    w.wait_held("api", "undeterminable", 1);
    w.climbed("api", &["client_reconnect insufficient", "capability_refresh insufficient"]);
    assert_eq!(w.medic.incident("api")["reason"], "unknown");
    assert_eq!(w.hangar.starts("api"), 1);
    w.nothing_sent_since(0);
}

#[test]
fn an_edited_spec_of_a_dead_server_is_read_once_and_opens_no_loop() {
    let mut w = Unwatched::start(V2_34, |h| h.server("api", "exit", &json!({}))).watch(&json!({}));
    // Two failures: Hangar waits 4 s, and so do we.
    w.hangar.user_start("api");
    w.hangar.user_start("api");
    w.wait("its incident is open", 4, |w| w.medic.incidents(Some("api")).len() == 1);
    w.hangar.edit("api", &json!({"idle_ttl_s": 601}));
    assert_eq!((w.hangar.state("api").as_str(), w.hangar.gauge("api")), ("cold", Some(4.0)));

    rest(3.0);
    let settled = w.proxy.mark();
    rest(6.0);
    assert_eq!((w.hangar.state("api").as_str(), w.hangar.gauge("api")), ("cold", Some(4.0)));
    let reads: Vec<_> = w.proxy.since(settled).into_iter().filter(|s| s.path.starts_with("/api/")).collect();
    w.must(&format!("it is not read again and again: {reads:?}"), reads.is_empty());
    assert_eq!(w.medic.incidents(Some("api")).len(), 1);
    w.nothing_sent_since(0);

    // A daemon that never knew it better reads once and opens nothing.
    let mark = w.proxy.mark();
    let fresh = crate::support::Medic::start(&w.dir().join("fresh"), &w.proxy.url(), &json!({}));
    w.medic.sigkill();
    rest(5.0);
    let of_api = |s: &crate::support::Seen| s.path == "/api/mcp_servers/api";
    w.must("one read", w.proxy.since(mark).iter().filter(|s| of_api(s)).count() <= 1);
    assert_eq!(fresh.incidents(Some("api")), Vec::<Value>::new());
}

#[test]
fn a_wrong_key_is_tried_twice_and_locks_nobody_out() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})).with_auth());
    w.hangar.bring_up(&["api"]);
    let key_file = w.dir().join("key");
    std::fs::write(&key_file, "mcp_this_key_was_never_made_by_hangar\n").unwrap();
    let mut w = w.watch(&json!({"hangar": {"api_key_file": key_file}}));
    w.hangar.kill_child("api");
    w.hangar.wait_gauge("api", 4.0, 15);

    let refused = |w: &World| w.proxy.seen().iter().filter(|s| s.status == 401).count();
    w.wait("the refusal is known", 20, |w| w.medic.status()["hangar"]["auth"] == "refused");
    w.wait_held("api", "auth_refused", 20);
    rest(4.0);
    w.must("at most two tries", refused(&w) <= 2);
    w.medic.restart();
    rest(4.0);
    w.must("at most two tries, also by the next process", refused(&w) <= 2);
    w.wait_held("api", "auth_refused", 5);
    w.must("the administrator is not locked out", w.hangar.get("/api/mcp_servers/").ok());
    w.must("nothing was started", w.hangar.starts("api") == 1);

    std::fs::write(&key_file, w.hangar.key.clone().unwrap()).unwrap();
    w.wait_closed("api", "recovered", 40);
}
