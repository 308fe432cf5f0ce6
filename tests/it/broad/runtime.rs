//! `role_runtime_restart`: the upstream of a remote server, or the dead members of a group, one by one.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use hangar_medic::execute::hangar::{Broad, Done, Executor, Job};
use hangar_medic::execute::platform::{Carried, CarryOut, Order};
use hangar_medic::policy::{Outcome, Part, Receipt, Rung, Saved};
use serde_json::{Value, json};

use crate::hangar::client;
use crate::hangar::stub::{Stub, json as reply, text};

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
