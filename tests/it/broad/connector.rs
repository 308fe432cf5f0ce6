//! Definitions that are taken out of a Hangar and put back.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use hangar_medic::execute::hangar::{Broad, Executor, Job};
use hangar_medic::policy::{Membership, Outcome, Part, Receipt, Rung, Saved};
use serde_json::{Value, json};

use crate::hangar::client;
use crate::hangar::stub::{Reply, Request, Stub, json as reply, text};
use crate::support::world::{Unwatched, World};
use crate::support::{Fault, V2_34};

fn settings(definitions: &Value) -> Value {
    let rungs = ["client_reconnect", "capability_refresh", "connector_restart"].map(|action| json!({"action": action}));
    let permitted = ["client_reconnect", "capability_refresh", "connector_restart"];
    json!({
        "policy": {"rungs": rungs, "settle": "1s"},
        "matrix": {"roles": [{"role": "sidecar", "permitted": permitted}]},
        "platform": {"definitions": definitions},
    })
}

/// The definition that the operator keeps, of a toy like `like`.
fn definition(w: &Unwatched, like: &str, id: &str) -> Value {
    let config: Value = serde_json::from_str(&std::fs::read_to_string(w.dir().join("config.yaml")).unwrap()).unwrap();
    let text = config["mcp_servers"][like]["command"].to_string().replace(&format!("\"{like}\""), &format!("\"{id}\""));
    let command: Value = serde_json::from_str(&text.replace(&format!("/{like}."), &format!("/{id}."))).unwrap();
    json!({"mode": "subprocess", "command": command, "env": {"TOKEN": "s3cret"}, "health_check_interval_s": 5})
}

fn defined(w: &World, id: &str) -> bool {
    w.hangar.get(&format!("/api/mcp_servers/{id}")).ok()
}

fn member(w: &World, id: &str) -> Value {
    let group = w.hangar.get("/api/groups/grp").json();
    group["members"].as_array().and_then(|all| all.iter().find(|m| m["id"] == id)).cloned().unwrap_or_default()
}

#[test]
fn a_definition_or_a_membership_that_was_out_when_the_medic_was_killed_is_there_again() {
    let w = Unwatched::start(V2_34, |h| h.server("declared", "ok", &json!({})).group("grp", &["m1", "m2"]));
    let added = definition(&w, "declared", "added");
    w.hangar.set_mode("added", "ok");
    let mut body = added.clone();
    body["mcp_server_id"] = json!("added");
    assert_eq!(w.hangar.post("/api/mcp_servers/", Some(&body)).status, 201);
    w.hangar.bring_up(&["declared", "added", "m1", "m2"]);
    let (file, other) = (w.dir().join("added.json"), w.dir().join("declared.json"));
    std::fs::write(&file, added.to_string()).unwrap();
    std::fs::write(&other, definition(&w, "declared", "declared").to_string()).unwrap();
    let definitions = json!([{"mcp_server": "added", "file": file}, {"mcp_server": "declared", "file": other}]);
    let mut w = w.watch(&settings(&definitions));
    w.wait("groups are read", 10, |w| member(w, "m1")["in_rotation"] == true);
    let place = member(&w, "m1");

    // Hangar acts, and its answer never comes.
    let held = w.proxy.fault(|s| s.method == "DELETE", Fault::HoldAnswer);
    w.hangar.kill_child("added");
    w.wait("the definition is out", 60, |w| !defined(w, "added"));
    w.medic.sigkill();
    w.proxy.lift(held);
    w.medic.start_again();
    w.wait_closed("added", "recovered", 60);
    w.climbed("added", &["client_reconnect insufficient", "capability_refresh insufficient", "connector_restart recovered"]);
    assert_eq!(w.hangar.state("added"), "ready");

    let held = w.proxy.fault(|s| s.method == "DELETE", Fault::HoldAnswer);
    w.hangar.kill_child("m1");
    w.wait("the member is out", 60, |w| member(w, "m1").is_null());
    w.medic.sigkill();
    w.proxy.lift(held);
    w.medic.start_again();
    w.wait_closed("m1", "recovered", 60);
    let now = member(&w, "m1");
    assert_eq!((&now["weight"], &now["priority"], &now["in_rotation"]), (&place["weight"], &place["priority"], &json!(true)));

    // What Hangar's own file declares cannot be taken out, and is not.
    w.hangar.kill_child("declared");
    w.wait("nothing is left to do for it", 60, |w| w.medic.incident("declared")["phase"] == "exhausted");
    w.must("it says why", w.medic.attempts("declared").last().unwrap()["evidence"].is_object() || defined(&w, "declared"));
    assert_eq!(w.medic.climb("declared").last().map(String::as_str), Some("connector_restart cancelled"));
    w.must("it is there", defined(&w, "declared"));
    assert!(!w.medic.log().contains("s3cret"));
}

fn job(part: Part, member: Option<Membership>) -> Job {
    Job {
        attempt_id: "api.1.1".to_owned(),
        incident_id: "api.1".to_owned(),
        mcp_server: "api".to_owned(),
        action: Rung::ConnectorRestart,
        part,
        group: None,
        saved: Some(Saved { member, ..Saved::default() }),
    }
}

const NO_POLICY: &str = r#"{"error":"no_l7_policy","mcp_server_id":"api"}"#;

async fn taken_out(
    definition: &str,
    answer: impl Fn(&Request) -> Reply + Send + Sync + 'static,
) -> (Receipt, Option<Outcome>, bool, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("api.json");
    std::fs::write(&file, definition).unwrap();
    let stub = Stub::new(answer);
    let broad = Broad { definitions: [("api".to_owned(), file)].into(), ..Broad::default() };
    let executor = Executor::new(Arc::new(client(&stub)), NonZeroU32::new(1000).unwrap()).with_broad(broad);
    let done = executor.run(&job(Part::First, None)).await;
    (done.receipt, done.outcome, done.half, stub.lines())
}

#[tokio::test]
async fn what_could_not_be_put_back_as_it_was_is_not_taken_out() {
    let good = r#"{"mode": "remote", "endpoint": "https://x.example/mcp"}"#;
    let asked = "GET /api/mcp_servers/api/l7_policy";
    let no_policy = |r: &Request| if r.line.starts_with("GET") { text(404, NO_POLICY) } else { reply(200, &json!({"deleted": true})) };
    let out = taken_out(good, no_policy).await;
    assert_eq!(out, (Receipt::Accepted, None, true, vec![asked.to_owned(), "DELETE /api/mcp_servers/api".to_owned()]));
    let held = (Receipt::Refused, Some(Outcome::Cancelled), false, vec![asked.to_owned()]);
    for policy in [
        reply(200, &json!({"rules": []})),
        text(404, "Not Found"),
        text(500, "x"),
        reply(403, &json!({"error": {"code": "access_denied", "message": "m"}})),
    ] {
        let said = format!("{policy:?}");
        assert_eq!(taken_out(good, move |_| policy.clone()).await, held, "{said}");
    }
    for bad in ["", "[]", "{", r#"{"endpoint": "x"}"#, r#"{"mode": "remote", "mcp_server_id": "other"}"#] {
        assert_eq!(taken_out(bad, no_policy).await, held, "{bad}");
    }
    let declared = |r: &Request| {
        if r.line.starts_with("GET") { text(404, NO_POLICY) } else { reply(409, &json!({"error": "declared_in_config", "detail": "d"})) }
    };
    let (receipt, outcome, half, _) = taken_out(good, declared).await;
    assert_eq!((receipt, outcome, half), (Receipt::Refused, Some(Outcome::Cancelled), false));
}

#[tokio::test]
async fn a_member_is_put_back_with_its_weight_and_priority_as_often_as_it_takes() {
    let added = Arc::new(Mutex::new((0, Value::Null)));
    let seen = Arc::clone(&added);
    let stub = Stub::new(move |r| match r.line.as_str() {
        "GET /api/groups/grp" => reply(200, &json!({"group_id": "grp", "members": []})),
        "POST /api/groups/grp/members" => {
            let mut added = seen.lock().unwrap();
            added.0 += 1;
            added.1 = serde_json::from_str(&r.body).unwrap();
            if added.0 < 3 { text(500, "Internal Server Error") } else { reply(201, &json!({"added": true})) }
        }
        "POST /api/mcp_servers/api/start" => reply(200, &json!({"mcp_server": "api", "state": "ready", "tools": []})),
        other => panic!("{other}"),
    });
    let executor = Executor::new(Arc::new(client(&stub)), NonZeroU32::new(1000).unwrap());
    let member = Membership { group: "grp".to_owned(), weight: 7, priority: 2 };
    let done = executor.run(&job(Part::Second, Some(member))).await;
    assert_eq!((done.receipt, done.half), (Receipt::Accepted, false), "{done:?}");
    let added = added.lock().unwrap();
    assert_eq!((added.0, &added.1), (3, &json!({"member_id": "api", "weight": 7, "priority": 2})));
}
