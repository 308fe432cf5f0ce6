//! A deliberate stop is an order.

use serde_json::json;

use crate::support::world::{Unwatched, World};
use crate::support::{Fault, V2_34, rest};

/// A server whose start failed twice, so that Hangar's backoff gives a person four seconds; its incident is open.
fn dead() -> World {
    let w = Unwatched::start(V2_34, |h| h.server("api", "exit", &json!({}))).watch(&json!({}));
    w.hangar.user_start("api");
    w.hangar.user_start("api");
    w.wait("its incident is open", 4, |w| w.medic.incidents(Some("api")).len() == 1);
    w
}

/// The order must outlive a restart of Hangar and of the daemon.
fn the_order_stands(w: &mut World, starts: usize) {
    w.hangar.set_mode("api", "ok");
    let holds = |w: &World| {
        w.must("the hold order stands", w.medic.hold_orders().contains_key("api"));
        assert_eq!(w.hangar.starts("api"), starts);
    };
    rest(4.0);
    holds(w);
    w.hangar.stop();
    w.hangar.start();
    rest(3.0);
    holds(w);
    w.medic.restart();
    rest(3.0);
    holds(w);
    assert_eq!(w.hangar.state("api"), "cold");
}

#[test]
fn a_dead_server_that_an_operator_stops_stays_stopped_until_somebody_starts_it() {
    let mut w = dead();
    w.hangar.operator_stop("api");
    w.wait_closed("api", "cancelled", 10);
    the_order_stands(&mut w, 2);
    w.nothing_sent_since(0);

    w.hangar.bring_up(&["api"]);
    w.wait("the order ends once it is ready without us", 10, |w| w.medic.hold_orders().is_empty());
    w.hangar.kill_child("api");
    w.wait_closed("api", "recovered", 40);
}

#[test]
fn a_dead_server_that_is_blocked_is_never_started_again() {
    let mut w = dead();
    w.hangar.block("api");
    w.wait_closed("api", "cancelled", 10);
    the_order_stands(&mut w, 2);
    w.nothing_sent_since(0);
}

#[test]
fn a_server_that_is_blocked_during_our_worker_restart_is_not_started_by_it() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({"health_check_interval_s": 60})));
    w.hangar.bring_up(&["api"]);
    let mut w = w.watch(&json!({"policy": {"not_seen_healthy_after": "4s"}}));
    let stop = w.proxy.fault(|s| s.is("stop", "api"), Fault::HoldAnswer);
    w.wait("our stop is under way", 40, |w| w.proxy.stops("api").len() == 1);
    w.hangar.wait_state("api", "cold", 10);
    w.hangar.block("api");
    let mark = w.proxy.mark();
    w.proxy.lift(stop);

    w.wait("the block is seen as an order", 10, |w| w.medic.hold_orders().contains_key("api"));
    the_order_stands(&mut w, 1);
    w.nothing_sent_since(mark);
}
