//! What a broken or hostile Hangar can send: said clearly, believed never.

use serde_json::{Value, json};

use crate::support::world::{Unwatched, World};
use crate::support::{Fault, Seen, V2_34, rest};

const HTML: &str = "<!doctype html><html><body><h1>502 Bad Gateway</h1></body></html>";

fn answer(status: u16, content_type: &'static str, body: &str) -> Fault {
    Fault::Answer { status, content_type, body: body.to_owned() }
}

/// Kills one server a fault while the fault lasts. Nothing may be sent, the log names the source, and once the fault is
/// over the server comes back.
fn nothing_is_done_while(path: &'static str, named: &[&str], faults: Vec<(&'static str, Fault)>) {
    let servers: Vec<&str> = faults.iter().map(|f| f.0).collect();
    let w = Unwatched::start(V2_34, |h| servers.iter().fold(h, |h, id| h.server(id, "ok", &json!({}))));
    w.hangar.bring_up(&servers);
    let w = w.watch_without_log(&json!({"hangar": {"max_body": "1MiB"}}));
    for (server, fault) in faults {
        let (mark, logged) = (w.proxy.mark(), w.medic.log().len());
        let rule = w.proxy.fault(move |s: &Seen| s.path.starts_with(path), fault);
        w.hangar.kill_child(server);
        w.hangar.wait_state(server, "dead", 15);
        rest(2.0);
        w.nothing_sent_since(mark);
        w.must(&format!("{server}: the daemon lives"), w.medic.is_alive());
        w.must(&format!("{server}: the log names the source"), complains(&w.medic.log()[logged..], named));
        w.proxy.lift(rule);
        w.wait_closed(server, "recovered", 40);
        w.must(&format!("{server}: started once by us"), w.proxy.starts(server).len() == 1);
    }
}

/// Whether a line of at least WARN names one of these.
fn complains(log: &str, named: &[&str]) -> bool {
    log.lines().any(|l| (l.contains("WARN") || l.contains("ERROR")) && named.iter().any(|n| l.contains(n)))
}

#[test]
fn a_metrics_body_that_cannot_be_believed_is_unknown_state() {
    let noise = "mcp_hangar_mcp_server_state{mcp_server=\"x\" 2\n\u{1}\u{2} not metrics at all {\n";
    let oversized = "# padding padding padding padding padding padding padding\n".repeat(40_000);
    nothing_is_done_while(
        "/metrics",
        &["metrics"],
        vec![
            ("noise", answer(200, "text/plain", noise)),
            ("html", answer(200, "text/html", HTML)),
            ("gateway", answer(502, "text/html", HTML)),
            ("oversized", answer(200, "text/plain", &oversized)),
            ("truncated", Fault::Truncate),
        ],
    );
}

#[test]
fn a_rest_answer_that_cannot_be_believed_is_unknown_state() {
    let oversized = format!("{{\"state\":\"dead\",\"pad\":\"{}\"}}", "x".repeat(2_000_000));
    nothing_is_done_while(
        "/api/mcp_servers",
        &["rest", "/api/mcp_servers"],
        vec![
            ("truncated", Fault::Truncate),
            ("half", answer(200, "application/json", "{\"mcp_server_id\": \"half\", \"state\": \"de")),
            ("html", answer(200, "text/html", HTML)),
            ("gateway", answer(502, "text/html", HTML)),
            ("oversized", answer(200, "application/json", &oversized)),
        ],
    );
}

#[test]
fn trouble_with_one_kind_of_read_is_not_called_over_by_another() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let w = w.watch_without_log(&json!({}));
    let rule = w.proxy.fault(|s: &Seen| s.path == "/api/mcp_servers/api", answer(503, "text/html", HTML));
    w.hangar.kill_child("api");
    let said = |words: &str| w.medic.log().lines().filter(|l| l.contains(words)).count();
    let asked = || w.proxy.seen().iter().filter(|s| s.status == 503).count();
    // Rungs 0 and 1 ask too; the reads that are complained of are made again after 5 s.
    w.wait("it is said once", 30, |_| said("Hangar cannot be read") == 1);
    let before = asked();
    w.wait("the server is asked for twice more", 30, |_| asked() >= before + 2);
    assert_eq!((said("Hangar cannot be read"), said("Hangar is read again")), (1, 0), "{}", w.medic.log());
    w.proxy.lift(rule);
    w.wait_closed("api", "recovered", 40);
    assert_eq!(said("Hangar is read again"), 1, "{}", w.medic.log());
}

#[test]
fn hostile_server_ids_neither_crash_the_daemon_nor_forge_its_log() {
    let long = "x".repeat(64);
    let w = Unwatched::start(V2_34, |h| h.server(&long, "ok", &json!({})).server("api", "ok", &json!({})));
    // Hangar lets this id in, and then answers 404 to its start for ever.
    let newline = json!({"mcp_server_id": "api\n", "mode": "subprocess", "command": ["python3", "-c", "raise SystemExit(3)"]});
    let created = w.hangar.post("/api/mcp_servers/", Some(&newline));
    assert!(created.status < 300, "{created:?}");
    w.hangar.bring_up(&[&long]);
    let w = w.watch(&json!({}));
    w.hangar.call("api\n");
    w.hangar.tool("hangar_warm", &json!({"mcp_servers": "api\n"}));
    w.hangar.kill_child(&long);
    w.wait_closed(&long, "recovered", 40);
    rest(3.0);
    w.must("the daemon lives", w.medic.is_alive());
    w.must("its metrics are whole", w.medic.metrics().lines().all(|l| l.starts_with(['#', 'h', 'f', 'p']) || l.is_empty()));
    let logged = w.medic.log();
    let forged: Vec<&str> = logged.lines().filter(|l| serde_json::from_str::<Value>(l).is_err()).collect();
    assert_eq!(forged, Vec::<&str>::new(), "every line of the log is one JSON object");
    w.must("the server without the newline was never touched", w.proxy.starts("api").is_empty());
}

#[test]
fn on_a_full_disk_nothing_is_done_and_nothing_is_lost() {
    let w = Unwatched::start(V2_34, |h| h.server("first", "ok", &json!({})).server("second", "ok", &json!({})));
    w.hangar.bring_up(&["first", "second"]);
    let w = w.watch(&json!({}));
    w.hangar.kill_child("first");
    w.wait_closed("first", "recovered", 40);
    let kept = w.medic.attempts("first");

    let (mark, logged) = (w.proxy.mark(), w.medic.log().len());
    w.medic.limit_file_size(Some(1));
    w.hangar.kill_child("second");
    w.hangar.wait_gauge("second", 4.0, 15);
    w.wait("it says that its log cannot be written", 20, held_log_unwritable);
    rest(3.0);
    w.nothing_sent_since(mark);
    w.must("it says that it is not ready", crate::support::http::get(w.medic.port(), "/-/ready", None).status == 503);
    w.must("the daemon lives", w.medic.is_alive());
    w.must(
        "the log names the store",
        complains(&w.medic.log()[logged..], &["store", "attempt log", "attempt_log", "medic.db", "log_unwritable"]),
    );

    w.medic.limit_file_size(None);
    w.wait_closed("second", "recovered", 40);
    assert_eq!(w.medic.attempts("first"), kept);
}

fn held_log_unwritable(w: &World) -> bool {
    let holds = &w.medic.status()["holds"]["log_unwritable"];
    holds.as_u64().is_some_and(|n| n > 0) || w.medic.incident("second")["hold"] == "log_unwritable"
}
