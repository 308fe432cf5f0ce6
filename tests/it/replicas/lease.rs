//! `lease_recovery` where there are several replicas: who holds the management lease is asked of each, and a stale one is
//! waited out.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hangar_medic::execute::hangar::{Broad, Done, Executor, Job, Peer};
use hangar_medic::policy::{Outcome, Part, Receipt, Rung};
use serde_json::{Value, json};

use super::Replicas;
use crate::hangar::client;
use crate::hangar::stub::{Reply, Stub, json as reply, text};

/// What one replica says: its id, whether it manages, and the lease it sees (holder, generation, seconds left).
fn says(id: &str, manages: bool, lease: Option<(&str, u64, f64)>) -> Reply {
    let lease = lease
        .map(|(holder, generation, left)| json!({"holder": holder, "generation": generation, "expires_in_s": left, "my_lease_ttl_s": 3.0}));
    let instance = json!({"instance_id": id, "manages_fleet": manages, "management_lease": lease});
    reply(200, &json!({"system": {"version": "2.34.4", "instance": instance}}))
}

fn job(part: Part) -> Job {
    Job {
        attempt_id: "far.1.4".to_owned(),
        incident_id: "far.1".to_owned(),
        mcp_server: "far".to_owned(),
        action: Rung::LeaseRecovery,
        part,
        group: None,
        saved: None,
    }
}

/// What comes of asking `own` and `peers`, of `others` other replicas; and how long it took.
async fn asked(own: Stub, peers: Vec<Stub>, others: usize) -> (Done, Duration) {
    let peers: Vec<Peer> = peers.iter().enumerate().map(|(n, stub)| Peer { name: format!("peer{n}"), client: client(stub) }).collect();
    let executor = Executor::new(Arc::new(client(&own)), NonZeroU32::new(1000).unwrap());
    let executor = executor.with_broad(Broad { instance: "own".to_owned(), peers, others, ..Broad::default() });
    let begun = Instant::now();
    let done = executor.run(&job(Part::First)).await;
    assert_eq!(own.lines().iter().filter(|line| !line.starts_with("GET /api/system/")).count(), 0, "nothing but questions is sent");
    (done, begun.elapsed())
}

fn leases(done: &Done) -> Vec<&Value> {
    done.evidence["management_leases"].as_array().unwrap().iter().collect()
}

#[tokio::test]
async fn where_a_replica_manages_nothing_is_stale_and_nothing_is_sent() {
    for (own, peer) in [(true, false), (false, true)] {
        let lease = Some(("b", 4, 2.5));
        let (own, peer) = (Stub::always(says("a", own, lease)), Stub::always(says("b", peer, lease)));
        let (done, took) = asked(own, vec![peer], 1).await;
        assert_eq!((done.receipt, done.outcome, done.half), (Receipt::Refused, Some(Outcome::NotApplicable), false), "{}", done.detail);
        assert!(took < Duration::from_secs(2), "nothing to wait for: {took:?}");
        let told = leases(&done);
        assert_eq!((told[0]["replica"].as_str(), told[1]["replica"].as_str()), (Some("own"), Some("peer0")));
        assert_eq!((&told[1]["holder"], &told[1]["generation"], &told[1]["expires_in_s"]), (&json!("b"), &json!(4), &json!(2.5)));
    }
}

#[tokio::test]
async fn a_replica_that_cannot_be_asked_is_unknown_and_never_without_a_lease() {
    let down = || Stub::always(text(500, "Internal Server Error"));
    let idle = || Stub::always(says("a", false, None));
    for (own, peers, others) in [(idle(), vec![down()], 1), (down(), vec![idle()], 1), (idle(), vec![idle()], 2), (idle(), vec![], 1)] {
        let (done, _) = asked(own, peers, others).await;
        assert_eq!((done.receipt, done.outcome, done.half), (Receipt::Refused, Some(Outcome::Cancelled), false), "{}", done.detail);
        assert!(done.detail.contains("unknown"), "{}", done.detail);
        let unknown = leases(&done).iter().filter(|told| told.get("unknown").is_some()).count();
        assert_eq!(unknown + done.evidence.get("replicas_not_listed").map_or(0, |_| 1), 1, "{:?}", done.evidence);
    }
    // All of them were asked: there is none.
    let (done, _) = asked(idle(), vec![idle()], 1).await;
    assert_eq!((done.receipt, done.outcome, done.half), (Receipt::Accepted, None, true), "{}", done.detail);
}

/// Its lease runs out in `left` seconds; after `then` answers it says `later`.
fn changes(left: f64, then: usize, later: Reply) -> Stub {
    let (answers, begun) = (AtomicUsize::new(0), Instant::now());
    Stub::new(move |_| {
        if answers.fetch_add(1, Ordering::SeqCst) < then {
            return says("a", false, Some(("gone", 4, left - begun.elapsed().as_secs_f64())));
        }
        later.clone()
    })
}

#[tokio::test]
async fn a_stale_lease_is_waited_out_until_somebody_has_it_and_never_longer_than_its_ttl() {
    let dead = || Stub::always(text(502, "Bad Gateway"));
    // Taken over by us.
    let (done, took) = asked(changes(3.0, 1, says("a", true, Some(("a", 5, 3.0)))), vec![dead()], 1).await;
    assert_eq!((done.receipt, done.outcome, done.half), (Receipt::Accepted, None, true), "{}", done.detail);
    assert_eq!(done.detail, "the management lease of gone is over: own manages the fleet now");
    assert!(took < Duration::from_millis(2900), "{took:?}");
    assert_eq!(done.evidence["management_lease_before"], json!({"holder": "gone", "generation": 4}));
    // Nobody took it: it ran out all the same.
    let (done, took) = asked(changes(2.5, usize::MAX, says("a", false, None)), vec![dead()], 1).await;
    assert_eq!((done.half, done.detail.as_str()), (true, "the management lease of gone has run out"));
    assert!(took > Duration::from_millis(2900) && took < Duration::from_millis(4500), "the TTL is 3 s: {took:?}");
    // Renewed by a holder that cannot be asked: it lives.
    let (done, _) = asked(changes(2.5, 1, says("a", false, Some(("gone", 4, 3.0)))), vec![dead()], 1).await;
    assert_eq!((done.outcome, done.half), (Some(Outcome::NotApplicable), false), "{}", done.detail);
    // Longer than anybody waits.
    let (done, took) = asked(changes(3600.0, usize::MAX, says("a", false, None)), vec![dead()], 1).await;
    assert_eq!((done.outcome, done.half), (Some(Outcome::Cancelled), false), "{}", done.detail);
    assert!(took < Duration::from_secs(2));
}

#[tokio::test]
async fn once_the_lease_is_over_the_server_is_started() {
    let stub = Stub::always(reply(200, &json!({"mcp_server": "far", "state": "ready", "tools": []})));
    let done = Executor::new(Arc::new(client(&stub)), NonZeroU32::new(1000).unwrap()).run(&job(Part::Second)).await;
    assert_eq!((done.receipt, stub.lines()), (Receipt::Accepted, vec!["POST /api/mcp_servers/far/start".to_owned()]));
}

fn instance(world: &crate::support::world::Unwatched) -> Value {
    serde_json::from_str::<Value>(&world.hangar.get("/api/system/").body).unwrap_or_default()["system"]["instance"].clone()
}

#[test]
fn the_lease_of_a_replica_that_died_is_waited_out_and_then_the_server_is_started() {
    let rungs = [("client_reconnect", "0s"), ("capability_refresh", "0s"), ("session_reconnect", "4s"), ("lease_recovery", "0s")];
    let rungs = rungs.map(|(action, pause)| json!({"action": action, "attempts_max": 1, "pause": pause}));
    let replicas = Replicas::start_with(|h| h.with_lease(8));
    let far = replicas.far;
    let manages = |w: &_| instance(w)["manages_fleet"] == json!(true);
    let taken = crate::support::poll(Duration::from_secs(30), || (manages(&replicas.a) || manages(&replicas.b)).then_some(()));
    assert!(taken.is_some(), "nobody takes the lease");
    let (mut holder, survivor) = if manages(&replicas.a) { (replicas.a, replicas.b) } else { (replicas.b, replicas.a) };
    let (gone, peer) = (instance(&holder)["instance_id"].clone(), format!("http://127.0.0.1:{}", holder.hangar.port));
    survivor.hangar.bring_up(&["up"]);
    let settings = json!({
        "hangar": {"instance": "survivor", "instances": 2, "peers": [peer]},
        "policy": {"rungs": rungs, "settle": "1s"},
        "storage": {"postgres": {"url": replicas.postgres.url("fleet")}},
    });
    let mut w = survivor.watch(&settings);
    w.hangar.user_start("far");
    w.wait("the start is spent", 40, |w| w.medic.climb("far").iter().any(|a| a == "session_reconnect failed"));
    holder.hangar.end_supervised();
    w.hangar.start_upstream(far);
    w.wait_closed("far", "recovered", 40);
    let attempt = w.medic.attempts("far").pop().unwrap();
    assert_eq!((&attempt["action"], &attempt["outcome"]), (&json!("lease_recovery"), &json!("recovered")), "{attempt}");
    // What replicas say is shown to nobody without credentials.
    let receipt = "SELECT body FROM hangar_medic.records WHERE kind = 'attempt_receipt' ORDER BY seq DESC LIMIT 1";
    let receipt: Value = serde_json::from_str(&replicas.postgres.execute("fleet", receipt)).unwrap();
    let evidence = &receipt["evidence"];
    assert_eq!(evidence["management_lease_before"]["holder"], gone, "{evidence}");
    assert!(evidence["waited_s"].as_u64().is_some_and(|s| s <= 9), "no longer than the TTL of 8 s: {evidence}");
    let told = evidence["management_leases"].as_array().unwrap();
    assert!(told[1]["unknown"].is_string() && told[1]["replica"] == json!(peer), "{evidence}");
    assert_eq!(w.proxy.starts("far").len(), 2, "one start of each rung");
}
