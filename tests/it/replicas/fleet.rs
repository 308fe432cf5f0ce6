//! A rolling restart of the replicas: one at a time, ordered once, whoever asks.

use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Fleet, Replicas};
use crate::broad::automation::Automation;
use crate::support::process::Supervised;
use crate::support::world::World;
use crate::support::{poll, rest};

/// The platform's side of an order: the test itself carries it out.
struct Platform {
    automation: Automation,
    orders: mpsc::Receiver<Value>,
    results: mpsc::Sender<Value>,
}

impl Platform {
    fn start(dir: &std::path::Path) -> Self {
        let (ordered, orders) = mpsc::channel();
        let (results, done) = mpsc::channel();
        let (ordered, done) = (Mutex::new(ordered), Mutex::new(done));
        let automation = Automation::start(dir, move |order| {
            let _ = ordered.lock().unwrap().send(order.clone());
            done.lock().unwrap().recv().unwrap_or_else(|_| json!({"result": "failed"}))
        });
        Self { automation, orders, results }
    }

    fn settings(&self) -> Value {
        let actions = ["client_reconnect", "capability_refresh", "session_reconnect", "rolling_mcp_restart"];
        json!({
            "policy": {"rungs": actions.map(|action| json!({"action": action, "attempts_max": 1, "pause": "0s"})), "settle": "1s"},
            "matrix": {"roles": [{"role": "sidecar", "permitted": actions}]},
            "platform": {
                "restarts": [self.automation.entry(&json!({"action": "rolling_mcp_restart", "timeout": "80s"}))],
                "restart_within": "90s",
            },
        })
    }

    fn order(&self, fleet: &Fleet) -> Value {
        let order = self.orders.recv_timeout(Duration::from_secs(90));
        order.unwrap_or_else(|_| panic!("no restart was ordered\n{}\n{}", fleet.a.medic.report(), fleet.b.medic.report()))
    }

    fn done(&self) {
        self.results.send(json!({"result": "done"})).unwrap();
    }
}

/// Restarts one replica, and asks the other meanwhile.
fn restart(service: &std::path::Path, other: &World) {
    let service = service.to_owned();
    let restarting = std::thread::spawn(move || Supervised::restart(&service));
    let mut calls = 0;
    while !restarting.is_finished() || calls == 0 {
        assert!(other.hangar.call("up"), "a call through the other replica failed");
        calls += 1;
    }
    assert!(restarting.join().unwrap(), "the replica is not up again");
}

/// Mends what is behind `far`, then restarts the replicas one after the other.
fn roll(fleet: &mut Fleet, services: &[std::path::PathBuf; 2], far: u16) {
    fleet.a.hangar.start_upstream(far);
    for (service, this, other) in [(&services[0], &fleet.a, &fleet.b), (&services[1], &fleet.b, &fleet.a)] {
        restart(service, other);
        let answers = poll(Duration::from_secs(30), || this.hangar.call("up").then_some(()));
        assert!(answers.is_some(), "calls through the restarted replica are not answered");
    }
}

fn the_other<'a>(fleet: &'a Fleet, order: &Value) -> &'a World {
    if order["instance"] == "a" { &fleet.b } else { &fleet.a }
}

fn starts_of_hangar(world: &World) -> usize {
    world.hangar.process_starts()
}

fn ends_well(fleet: &Fleet) {
    for world in [&fleet.a, &fleet.b] {
        world.wait("far is ready there, and its incident over", 90, |w| {
            w.hangar.state("far") == "ready" && w.medic.incident("far")["phase"] == "closed"
        });
    }
    rest(2.0);
    assert_eq!((starts_of_hangar(&fleet.a), starts_of_hangar(&fleet.b)), (2, 2), "each replica was restarted once");
}

fn let_far_die(world: &World) {
    world.hangar.user_start("far");
    world.wait("far is dead there", 20, |w| w.hangar.state("far") == "dead");
}

#[test]
fn a_rolling_restart_asked_on_both_at_once_runs_once_and_calls_go_on() {
    let replicas = Replicas::start();
    let (services, far, dir) = (replicas.services.clone(), replicas.far, tempfile::tempdir().unwrap());
    let platform = Platform::start(dir.path());
    let mut fleet = replicas.watch(&platform.settings());
    let_far_die(&fleet.a);
    let_far_die(&fleet.b);
    let order = platform.order(&fleet);
    the_other(&fleet, &order).wait_held("far", "lease_held", 60);
    roll(&mut fleet, &services, far);
    platform.done();
    ends_well(&fleet);
    assert_eq!(platform.automation.orders().len(), 1, "ordered once");
    // The one that waited sees the lock given back minutes before its deadline; its server was lost in the restart that the
    // other's medic had ordered, and has one start again.
    let other = the_other(&fleet, &order);
    let climb = other.medic.climb("far");
    assert_eq!(climb.last().map(String::as_str), Some("session_reconnect recovered"), "{climb:?}");
    // That restart came within a minute of its own start of far: no evidence against it.
    assert!(other.medic.hold_orders().is_empty(), "{:?}", other.medic.hold_orders());
}

#[test]
fn a_holder_that_is_killed_is_taken_over_after_its_deadline_and_nothing_is_restarted_twice() {
    let replicas = Replicas::start();
    let (services, far, dir) = (replicas.services.clone(), replicas.far, tempfile::tempdir().unwrap());
    let platform = Platform::start(dir.path());
    let mut fleet = replicas.watch(&platform.settings());
    let_far_die(&fleet.a);
    let first = platform.order(&fleet);
    assert_eq!(first["instance"], "a");
    fleet.a.medic.sigkill();
    // Nothing came of its order. Its deadline is minutes away; the test does not wait for that long.
    platform.results.send(json!({"result": "failed", "detail": "the platform was not able to"})).unwrap();
    let sooner = "UPDATE hangar_medic.fleet_lock SET deadline_us = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 12000000";
    fleet.postgres.execute("fleet", sooner);
    let killed = Instant::now();
    let_far_die(&fleet.b);
    fleet.b.wait_held("far", "lease_held", 11);
    let second = platform.order(&fleet);
    assert_eq!(second["instance"], "b");
    assert!(killed.elapsed() > Duration::from_secs(10), "taken over before the deadline: {:?}", killed.elapsed());
    assert_eq!(fleet.postgres.execute("fleet", "SELECT holder, epoch FROM hangar_medic.fleet_lock"), "b|2");
    roll(&mut fleet, &services, far);
    platform.done();
    fleet.a.medic.start_again();
    ends_well(&fleet);
    assert_eq!(platform.automation.orders().len(), 2);
}
