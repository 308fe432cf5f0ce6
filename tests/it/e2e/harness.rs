//! The harness itself: that the toys break and mend real Hangar's servers as the other tests believe.

use serde_json::json;

use crate::support::hangar::{declares_echo, gives_up};
use crate::support::http::sum;
use crate::support::process::free_port;
use crate::support::world::Unwatched;
use crate::support::{Fault, Proxy, V2_20, V2_34, http, rest};

fn breaks_and_mends(version: &str) {
    let w = Unwatched::start(version, |h| {
        h.server("crashes", "ok", &json!({})).server("fails", "exit", &json!({})).server("drifts", "extra_tool", &declares_echo("block"))
    });
    let hangar = &w.hangar;
    hangar.bring_up(&["crashes"]);
    assert_eq!(hangar.gauge("crashes"), Some(2.0));
    assert!(hangar.call("crashes"));
    hangar.kill_child("crashes");

    assert_eq!(hangar.user_start("fails").code(), "McpServerStartError");
    hangar.wait_gauge("fails", 4.0, 5);
    assert_eq!(hangar.user_start("drifts").code(), "CapabilityBlockedError");
    hangar.wait_gauge("drifts", 4.0, 5);

    hangar.set_mode("fails", "ok");
    hangar.bring_up(&["fails"]);
    hangar.wait_gauge("fails", 2.0, 5);
    hangar.wait_gauge("crashes", 4.0, 70);
    assert_eq!((hangar.starts("crashes"), hangar.starts("fails"), hangar.starts("drifts")), (1, 2, 1));
}

#[test]
fn toys_break_and_mend_servers_of_2_34() {
    breaks_and_mends(V2_34);
}

#[test]
fn toys_break_and_mend_servers_of_2_20() {
    breaks_and_mends(V2_20);
}

#[test]
fn hangar_gives_up_on_a_toy_that_cannot_start() {
    let w = Unwatched::start(V2_34, |h| h.server("lost", "exit", &gives_up()));
    assert_eq!(w.hangar.user_start("lost").code(), "McpServerStartError");
    w.hangar.wait_state("lost", "degraded", 5);
    w.hangar.wait_gauge("lost", 4.0, 70);
    assert_eq!(w.hangar.detail("lost")["dead"]["reason"], "given_up");
    assert_eq!(w.hangar.starts("lost"), 4);
}

#[test]
fn a_toy_can_take_hangar_down_and_hangar_comes_back_cold() {
    let mut w = Unwatched::start(V2_34, |h| h.server("killer", "kill_parent", &json!({})));
    assert_eq!(w.hangar.user_start("killer").status, 0);
    assert!(w.hangar.is_gone());
    w.hangar.start();
    assert_eq!((w.hangar.state("killer").as_str(), w.hangar.gauge("killer"), w.hangar.starts("killer")), ("cold", None, 1));
}

#[test]
fn a_stop_and_a_block_are_counted_by_reason() {
    let w = Unwatched::start(V2_34, |h| h.server("a", "exit", &json!({})).server("b", "exit", &json!({})));
    w.hangar.user_start("a");
    w.hangar.user_start("b");
    w.hangar.operator_stop("a");
    w.hangar.block("b");
    rest(0.5);
    let metrics = w.hangar.metrics();
    let stops = |label: &str| sum(&metrics, "mcp_hangar_mcp_server_stops_total", label).to_string();
    assert_eq!([stops("user_request"), stops("detection_enforcement:block")], ["1", "1"]);
}

#[test]
fn a_remote_upstream_that_is_gone_leaves_a_2_20_server_ready() {
    let port = free_port();
    let mut w = Unwatched::start(V2_20, |h| h.remote("far", port));
    w.hangar.start_upstream(port);
    w.hangar.bring_up(&["far"]);
    w.hangar.stop_upstream();
    assert!(w.hangar.user_start("far").ok());
    assert_eq!(w.hangar.state("far"), "ready");
}

#[test]
fn an_edited_spec_leaves_the_gauge_at_4_and_rest_cold() {
    let mut w = Unwatched::start(V2_34, |h| h.server("edited", "exit", &json!({})));
    w.hangar.user_start("edited");
    w.hangar.wait_gauge("edited", 4.0, 5);
    w.hangar.edit("edited", &json!({"idle_ttl_s": 601}));
    assert_eq!((w.hangar.state("edited").as_str(), w.hangar.gauge("edited")), ("cold", Some(4.0)));
}

#[test]
fn a_group_call_is_answered_by_its_ready_members() {
    let w = Unwatched::start(V2_34, |h| h.group("grp", &["m1", "m2"]));
    w.hangar.bring_up(&["m1", "m2"]);
    assert!(w.hangar.call("grp"));
}

#[test]
fn with_authentication_only_the_key_is_let_in() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})).with_auth());
    assert_eq!(http::get(w.hangar.port, "/api/mcp_servers/", None).status, 401);
    assert!(w.hangar.get("/api/mcp_servers/").ok());
    w.hangar.bring_up(&["api"]);
}

#[test]
fn the_proxy_records_and_lies() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    let proxy = Proxy::start(w.hangar.port);
    let port: u16 = proxy.url().rsplit(':').next().unwrap().parse().unwrap();
    assert!(http::get(port, "/api/mcp_servers/", None).json()["mcp_servers"].is_array());

    let lie = proxy.fault(|s| s.is("start", "api"), Fault::Answer { status: 200, content_type: "application/json", body: "{}".into() });
    assert!(http::post(port, "/api/mcp_servers/api/start", None, None).ok());
    assert_eq!(w.hangar.state("api"), "cold");
    proxy.lift(lie);
    assert!(http::post(port, "/api/mcp_servers/api/start", None, None).ok());
    assert_eq!((w.hangar.state("api").as_str(), proxy.starts("api").len(), w.hangar.starts("api")), ("ready", 2, 1));

    let gone = proxy.fault(|s| s.path == "/metrics", Fault::Drop);
    assert_eq!(http::get(port, "/metrics", None).status, 0);
    proxy.lift(gone);
    proxy.fault(|s| s.path == "/metrics", Fault::Truncate);
    let whole = w.hangar.metrics().len();
    let half = http::get(port, "/metrics", None).body.len();
    assert!(half > 0 && half < whole, "{half} of {whole}");
}
