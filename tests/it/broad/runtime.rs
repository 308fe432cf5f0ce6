//! `role_runtime_restart`: the upstream of a remote server, or the dead members of a group, one by one.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use hangar_medic::execute::hangar::{Broad, Done, Executor, Job};
use hangar_medic::execute::platform::{Carried, CarryOut, Order};
use hangar_medic::policy::{Outcome, Part, Receipt, Rung, Saved};
use serde_json::{Value, json};

use super::automation::Automation;
use crate::hangar::client;
use crate::hangar::stub::{Stub, json as reply, text};
use crate::support::process::{Supervised, free_port, venv};
use crate::support::world::Unwatched;
use crate::support::{V2_34, http, poll};

struct Says(Carried);

impl CarryOut for Says {
    fn carry_out<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Carried> {
        assert_eq!((order.attempt_id.as_str(), order.action), ("m1.1.1", Rung::RoleRuntimeRestart));
        Box::pin(async { self.0.clone() })
    }
}

fn job(part: Part, left: &[&str]) -> Job {
    let left = left.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
    Job {
        attempt_id: "m1.1.1".to_owned(),
        incident_id: "m1.1".to_owned(),
        mcp_server: "m1".to_owned(),
        action: Rung::RoleRuntimeRestart,
        part,
        group: Some("grp".to_owned()),
        saved: Some(Saved { left, ..Saved::default() }),
    }
}

/// A group of a dead m1, m2 (dead for `reason`), m3 that was stopped and m4 that is ready.
async fn members(reason: &str, left: &[&str]) -> (Done, Vec<String>) {
    let server = |id: &str, state: &str, reason: Option<&str>| {
        let dead = reason.map(|reason| json!({"reason": reason, "since": null, "retry_allowed_at": null, "revived_by": "start"}));
        json!({"mcp_server_id": id, "state": state, "mode": "subprocess", "alive": state == "ready", "dead": dead})
    };
    let states = [("m1", "dead"), ("m2", "dead"), ("m3", "cold"), ("m4", "ready")];
    let group: Vec<Value> = states.iter().map(|(id, state)| json!({"id": id, "state": state, "in_rotation": *state == "ready"})).collect();
    let list = vec![
        server("m1", "dead", Some("crashed")),
        server("m2", "dead", Some(reason)),
        server("m3", "cold", None),
        server("m4", "ready", None),
    ];
    let stub = Stub::new(move |r| match r.line.as_str() {
        "GET /api/groups/grp" => reply(200, &json!({"group_id": "grp", "members": group})),
        "GET /api/mcp_servers/" => reply(200, &json!({"mcp_servers": list})),
        "POST /api/mcp_servers/m2/start" => text(500, "Internal Server Error"),
        line if line.starts_with("POST ") && line.ends_with("/start") => {
            reply(200, &json!({"mcp_server": "m", "state": "ready", "tools": []}))
        }
        other => panic!("{other}"),
    });
    let executor = Executor::new(Arc::new(client(&stub)), NonZeroU32::new(1000).unwrap());
    let done = executor.run(&job(Part::First, left)).await;
    (done, stub.lines().into_iter().filter(|l| l.starts_with("POST")).collect())
}

#[tokio::test]
async fn of_a_group_the_dead_members_are_started_one_by_one_and_no_other() {
    let (done, sent) = members("given_up", &[]).await;
    assert_eq!(sent, ["POST /api/mcp_servers/m1/start", "POST /api/mcp_servers/m2/start"]);
    // Judged on the member whose incident it is.
    assert_eq!((done.receipt, done.outcome, &done.evidence["started"]), (Receipt::Accepted, None, &json!(["m1"])));
    let (done, sent) = members("given_up", &["m2"]).await;
    assert_eq!((done.receipt, sent), (Receipt::Accepted, vec!["POST /api/mcp_servers/m1/start".to_owned()]), "m2 is under a hold order");
    let (done, sent) = members("capability_blocked", &[]).await;
    assert_eq!((done.receipt, done.outcome, sent), (Receipt::Refused, Some(Outcome::Cancelled), vec![]));
}

#[tokio::test]
async fn an_upstream_is_restarted_by_its_executor_and_then_started_in_hangar() {
    let word = || "w".to_owned();
    for (carried, receipt, outcome, half) in [
        (Carried::Done(word()), Receipt::Accepted, None, true),
        (Carried::Unknown(word()), Receipt::Unknown, None, true),
        (Carried::Failed(word()), Receipt::Accepted, Some(Outcome::Failed), false),
        (Carried::Refused(word()), Receipt::Refused, Some(Outcome::Denied), false),
    ] {
        let stub = Stub::always(reply(200, &json!({"mcp_server": "m1", "state": "ready", "tools": []})));
        let upstreams = [("m1".to_owned(), Arc::new(Says(carried.clone())) as Arc<dyn CarryOut>)].into();
        let executor = Executor::new(Arc::new(client(&stub)), NonZeroU32::new(1000).unwrap());
        let executor = executor.with_broad(Broad { upstreams, ..Broad::default() });
        let done = executor.run(&job(Part::First, &[])).await;
        assert_eq!((done.receipt, done.outcome, done.half), (receipt, outcome, half), "{carried:?}");
        assert!(stub.lines().is_empty());
        let done = executor.run(&job(Part::Second, &[])).await;
        assert_eq!((done.receipt, stub.lines()), (Receipt::Accepted, vec!["POST /api/mcp_servers/m1/start".to_owned()]));
    }
}

/// An upstream under Debian's `runsv` that works from each start on; its service directory.
fn supervised_upstream(dir: &std::path::Path, id: &str, port: u16) -> (Supervised, std::path::PathBuf) {
    let service = dir.join("upstream-service");
    std::fs::create_dir_all(&service).unwrap();
    let run = format!(
        "#!/bin/sh\ncd {dir}\necho ok >{id}.ctl\nexec {python} -B -S {demo}/toy_http.py {port} --ctl {id}.ctl --starts {id}.starts </dev/null >>upstream.log 2>&1\n",
        dir = dir.display(),
        python = venv(V2_34).join("bin/python3").display(),
        demo = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/demo"),
    );
    let script = service.join("run");
    std::fs::write(&script, run).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let supervised = Supervised::start(&service, &dir.join("upstream-runsv.log"));
    let up = poll(std::time::Duration::from_secs(20), || (http::get(port, "/", None).status == 405).then_some(()));
    assert!(up.is_some(), "the upstream did not come up");
    (supervised, service)
}

#[test]
fn a_remote_server_whose_upstream_hangs_on_is_ready_again_once_the_hook_had_it_restarted() {
    let port = free_port();
    let w = Unwatched::start(V2_34, |h| h.remote("far", port));
    let (_upstream, service) = supervised_upstream(w.dir(), "far", port);
    // Its process answers 503 to everything: no start in Hangar helps, a new process does.
    w.hangar.set_mode("far", "exit");
    w.hangar.user_start("far");
    let automation = Automation::start(w.dir(), move |order| {
        assert_eq!((&order["action"], &order["mcp_server"]), (&json!("role_runtime_restart"), &json!("far")));
        json!({"result": if Supervised::restart(&service) { "done" } else { "failed" }})
    });
    let rungs = ["client_reconnect", "capability_refresh", "session_reconnect", "role_runtime_restart"];
    let w = w.watch(&json!({
        "policy": {"rungs": rungs.map(|action| json!({"action": action, "attempts_max": 1, "pause": "0s"})), "settle": "1s"},
        "matrix": {"roles": [{"role": "sidecar", "permitted": rungs}]},
        "platform": {"upstreams": [automation.entry(&json!({"mcp_server": "far"}))]},
    }));
    w.wait_closed("far", "recovered", 90);
    w.climbed("far", &["capability_refresh insufficient", "session_reconnect failed", "role_runtime_restart recovered"]);
    assert!(w.hangar.state("far") == "ready" && w.hangar.call("far"));
    assert_eq!((w.hangar.starts("far"), automation.orders().len()), (2, 1), "one new process, ordered once");
    assert_eq!(w.proxy.starts("far").len(), 2, "one start of each rung");
    assert_eq!(w.medic.fraction().to_string(), "1", "no full restart was needed");
}
