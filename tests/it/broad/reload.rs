//! `configuration_reload` at a real Hangar that does not look at its file by itself.

use std::num::NonZeroU32;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;

use hangar_medic::execute::hangar::{Broad, Executor, Job};
use hangar_medic::policy::{Outcome, Part, Receipt, Rung};
use serde_json::{Value, json};

use crate::hangar::client;
use crate::hangar::stub::Stub;
use crate::support::world::{Unwatched, World};
use crate::support::{Medic, Proxy, V2_34, poll};

fn settings(w: &Unwatched) -> Value {
    let rungs = ["client_reconnect", "capability_refresh", "configuration_reload"].map(|action| json!({"action": action}));
    let permitted = ["client_reconnect", "capability_refresh", "configuration_reload"];
    json!({
        "hangar": {"config_file": w.dir().join("config.yaml")},
        "policy": {"rungs": rungs, "settle": "1s"},
        "matrix": {"roles": [{"role": "sidecar", "permitted": permitted}]},
    })
}

/// The newest attempt at a reload, once it is settled.
fn reload(w: &World, id: &str, outcome: &str) -> Value {
    let last = |w: &World| w.medic.attempts(id).pop().filter(|a| a["action"] == "configuration_reload" && a["outcome"] == outcome);
    w.wait(&format!("the reload for {id} is {outcome}"), 60, |w| last(w).is_some());
    last(w).unwrap()
}

fn reloads_sent(w: &World) -> usize {
    w.proxy.seen().iter().filter(|s| s.path == "/api/config/reload").count()
}

#[test]
fn only_a_changed_file_with_every_live_server_in_it_is_reloaded_and_then_what_was_dead_is_started() {
    let w = Unwatched::start(V2_34, |h| {
        let h = h.server("a", "exit", &json!({})).server("b", "exit", &json!({})).server("c", "exit", &json!({}));
        h.server("up", "ok", &json!({})).without_auto_reload()
    });
    w.hangar.bring_up(&["up"]);
    let settings = settings(&w);
    let mut w = w.watch(&settings);

    w.hangar.user_start("a");
    let refused = reload(&w, "a", "cancelled");
    w.must("unchanged", refused["evidence"]["only_live"] == json!([]));

    let extra = json!({"mcp_server_id": "extra", "mode": "subprocess", "command": ["python3", "-c", "pass"]});
    assert_eq!(w.hangar.post("/api/mcp_servers/", Some(&extra)).status, 201);
    w.hangar.rewrite("b", &json!({"idle_ttl_s": 601}));
    w.hangar.user_start("b");
    let refused = reload(&w, "b", "cancelled");
    assert_eq!(refused["evidence"]["only_live"], json!(["extra"]), "{refused}");
    assert_eq!(reloads_sent(&w), 0);

    assert!(crate::support::http::send(w.hangar.port, "DELETE", "/api/mcp_servers/extra", None, None).ok());
    for id in &["a", "b", "c"] {
        w.hangar.set_mode(id, "exit");
    }
    w.hangar.user_start("c");
    for id in &["a", "b", "c"] {
        w.hangar.set_mode(id, "ok");
    }
    let done = reload(&w, "c", "recovered");
    assert_eq!((&done["evidence"]["updated"], &done["evidence"]["removed"]), (&json!(["b"]), &json!([])), "{done}");
    assert_eq!((reloads_sent(&w), w.hangar.starts("up")), (1, 1));
    for id in ["a", "b", "c"] {
        w.wait_closed(id, "recovered", 20);
        assert_eq!(w.hangar.state(id), "ready", "{id}");
    }
    w.must("no stop of Hangar's own was taken for a person's", w.medic.hold_orders().is_empty());
}

/// SIGKILL, which a fail point dies of.
const DIES: Option<i32> = Some(9);

#[test]
fn which_servers_there_were_before_and_after_is_told_by_the_medic_that_finishes_it_too() {
    // Hangar has reloaded and nothing of it is written down; the first half is, and the second is about to begin.
    for failpoint in ["act.done=1*off->return", "act.begin=2*off->return"] {
        let w = Unwatched::start(V2_34, |h| {
            h.server("api", "exit", &json!({})).server("db", "ok", &json!({})).server("up", "ok", &json!({})).without_auto_reload()
        });
        w.hangar.bring_up(&["db", "up"]);
        let proxy = Proxy::start(w.hangar.port);
        let mut settings = settings(&w);
        settings["hangar"]["log_file"] = json!(w.hangar.log_file());
        w.hangar.user_start("api");
        let config = w.dir().join("config.yaml");
        let mut changed: Value = serde_json::from_str(&std::fs::read_to_string(&config).unwrap()).unwrap();
        changed["mcp_servers"]["new"] = changed["mcp_servers"]["db"].clone();
        std::fs::write(&config, changed.to_string()).unwrap();
        w.hangar.set_mode("api", "ok");
        let (mut medic, ended) = Medic::doomed(&w.dir().join("medic"), &proxy.url(), &settings, failpoint);
        assert_eq!(ended.and_then(|s| s.signal()), DIES, "{failpoint} was not reached\n{}", medic.log());
        medic.start_again();
        let settled = || medic.attempts("api").pop().filter(|a| a["action"] == "configuration_reload" && a["outcome"] == "recovered");
        let attempt = poll(std::time::Duration::from_mins(1), settled);
        let attempt = attempt.unwrap_or_else(|| panic!("{failpoint}: not recovered\n{}", medic.report()));
        let evidence = &attempt["evidence"];
        assert_eq!(evidence["servers_before"], json!(["api", "db", "up"]), "{failpoint}: {evidence}");
        assert_eq!(evidence["servers_after"], json!(["api", "db", "new", "up"]), "{failpoint}: {evidence}");
        assert_eq!(proxy.seen().iter().filter(|s| s.path == "/api/config/reload").count(), 1, "{failpoint}: reloaded once");
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_read_or_that_defines_nothing_is_never_reloaded() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.yaml");
    for (text, why) in [
        (None, "No such file"),
        (Some("mcp_servers: {api: {env: {TOKEN: 's3cret}}"), "is not valid YAML"),
        (Some(""), "defines no mcp_servers"),
        (Some("mcp_servers: {}"), "defines no mcp_servers"),
    ] {
        if let Some(text) = text {
            std::fs::write(&file, text).unwrap();
        }
        let stub = Stub::new(|r| panic!("{}", r.line));
        let executor = Executor::new(Arc::new(client(&stub)), NonZeroU32::new(1000).unwrap());
        let executor = executor.with_broad(Broad { config_file: Some(file.clone()), ..Broad::default() });
        let job = Job {
            attempt_id: "api.1.1".to_owned(),
            incident_id: "api.1".to_owned(),
            mcp_server: "api".to_owned(),
            action: Rung::ConfigurationReload,
            part: Part::First,
            group: None,
            saved: None,
        };
        let done = executor.run(&job).await;
        assert_eq!((done.receipt, done.outcome, done.half), (Receipt::Refused, Some(Outcome::Cancelled), false));
        assert!(done.detail.contains(why) && !done.detail.contains("s3cret"), "{}", done.detail);
        assert_eq!(stub.lines(), [] as [&str; 0]);
    }
}
