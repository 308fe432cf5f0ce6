//! A real Hangar under a real supervisor, restarted through the operator's hook.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use super::automation::Automation;
use crate::support::hangar::declares_echo;
use crate::support::process::Supervised;
use crate::support::world::{Unwatched, World};
use crate::support::{V2_34, poll, rest};

/// The ladder with the restart on it, permitted to the daemon itself.
fn settings(automation: &Automation) -> Value {
    let rung = |action: &str| json!({"action": action, "attempts_max": 1, "pause": "0s"});
    let rungs = ["client_reconnect", "capability_refresh", "session_reconnect", "full_mcp_restart"].map(rung);
    let permitted = ["client_reconnect", "capability_refresh", "session_reconnect", "full_mcp_restart"];
    json!({
        "policy": {"rungs": rungs, "settle": "1s"},
        "matrix": {"roles": [{"role": "sidecar", "permitted": permitted}]},
        "platform": {"restarts": [automation.entry(&json!({"action": "full_mcp_restart"}))], "restart_within": "90s"},
    })
}

/// Mends the server that starts failed on, as whatever was wrong with the machine is gone after a restart.
fn mend(dir: &Path, id: &str) {
    std::fs::write(dir.join(format!("{id}.new")), "ok\n").unwrap();
    std::fs::rename(dir.join(format!("{id}.new")), dir.join(format!("{id}.ctl"))).unwrap();
}

/// r1 and r2 are ready, blocked exposes what it did not declare, held was stopped by a person after it died.
fn before() -> (Unwatched, PathBuf) {
    let (w, service) = Unwatched::start_supervised(V2_34, |h| {
        let h = h.server("r1", "ok", &json!({})).server("r2", "ok", &json!({})).server("d1", "exit", &json!({}));
        h.server("blocked", "extra_tool", &declares_echo("block")).server("held", "exit", &json!({}))
    });
    w.hangar.bring_up(&["r1", "r2"]);
    w.hangar.user_start("blocked");
    (w, service)
}

/// The blocked and the held one first, so that all stands when d1 dies.
fn let_d1_die(w: &World) {
    w.wait_held("blocked", "approval_needed", 30);
    w.hangar.user_start("held");
    w.wait("held has an incident", 20, |w| w.medic.incident("held")["phase"] != Value::Null);
    w.hangar.operator_stop("held");
    w.wait("its stop is an order", 20, |w| w.medic.hold_orders().contains_key("held"));
    w.hangar.user_start("d1");
}

fn stands_as_it_should(w: &World) {
    w.wait_closed("d1", "recovered", 90);
    let climb = w.medic.climb("d1");
    assert_eq!(climb.last().map(String::as_str), Some("full_mcp_restart recovered"), "{climb:?}\n{}", w.medic.report());
    for id in ["r1", "r2", "d1"] {
        assert_eq!((id, w.hangar.state(id).as_str()), (id, "ready"));
    }
    // The blocked one and the held one read cold, as every server does after a restart: nobody started them.
    assert_eq!((w.hangar.state("blocked").as_str(), w.hangar.state("held").as_str()), ("cold", "cold"));
    w.must("the blocked one is still held", w.medic.incident("blocked")["hold"] == "approval_needed");
    w.must("the order stands", w.medic.hold_orders().contains_key("held"));
    w.must("nothing of ours went to either", w.proxy.starts("blocked").is_empty());
    assert_eq!((w.hangar.starts("r1"), w.hangar.starts("r2"), w.hangar.starts("blocked")), (2, 2, 1));
    assert_eq!(w.medic.fraction().to_string(), "0", "the only recovery was a full restart");
}

#[test]
fn what_was_ready_or_dead_before_a_restart_is_ready_after_it_and_nothing_else_is_touched() {
    let (w, service) = before();
    let dir = w.dir().to_owned();
    let (said, answers) = mpsc::channel();
    let automation = Automation::start(&dir.clone(), move |_| {
        mend(&dir, "d1");
        let restarted = Supervised::restart(&service);
        said.send(()).unwrap();
        json!({"result": if restarted { "done" } else { "failed" }})
    });
    let w = w.watch(&settings(&automation));
    let_d1_die(&w);
    answers.recv_timeout(Duration::from_secs(90)).unwrap_or_else(|_| panic!("no restart was ordered\n{}", w.medic.report()));
    // Right after it every series is gone: the alert would be, too, and it counts for nothing.
    w.must("nothing is recovered yet", w.medic.recoveries() == 0);
    stands_as_it_should(&w);
    let orders = automation.orders();
    assert_eq!((orders.len(), &orders[0]["action"], &orders[0]["mcp_server"]), (1, &json!("full_mcp_restart"), &json!("d1")));
    let attempt = w.medic.attempts("d1").pop().unwrap();
    assert_eq!(attempt["evidence"]["started"], json!(["d1", "r1", "r2"]), "{attempt}");
    assert_eq!(attempt["evidence"]["left_alone"], json!(["blocked", "held"]), "{attempt}");
    rest(2.0);
    assert_eq!(automation.requests(), 1);
}

#[test]
fn a_medic_that_dies_with_what_it_restarts_leaves_the_rest_to_the_next_one() {
    let (w, service) = before();
    let dir = w.dir().to_owned();
    let (ordered, orders) = mpsc::channel();
    let gone = Arc::new(AtomicBool::new(false));
    let medic_gone = Arc::clone(&gone);
    let automation = Automation::start(&dir.clone(), move |_| {
        ordered.send(()).unwrap();
        assert!(poll(Duration::from_secs(20), || medic_gone.load(Ordering::SeqCst).then_some(())).is_some());
        mend(&dir, "d1");
        json!({"result": if Supervised::restart(&service) { "done" } else { "failed" }})
    });
    let mut w = w.watch(&settings(&automation));
    let_d1_die(&w);
    orders.recv_timeout(Duration::from_secs(90)).unwrap_or_else(|_| panic!("no restart was ordered\n{}", w.medic.report()));
    w.medic.sigkill();
    gone.store(true, Ordering::SeqCst);
    // Hangar is down, up again and cold before anybody looks.
    w.wait("Hangar is up again", 40, |w| w.hangar.gauge("r1").is_none() && w.hangar.get("/health/live").ok());
    w.medic.start_again();
    stands_as_it_should(&w);
    assert_eq!((automation.orders().len(), automation.requests()), (1, 1), "restarted once, whoever finished it");
}
