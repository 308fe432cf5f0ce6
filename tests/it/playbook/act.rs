//! What people ask for, at a real Hangar: a request that acts, and a hold that is ended.

use serde_json::json;

use super::api::principals;
use crate::support::world::Unwatched;
use crate::support::{V2_34, rest};

const OPERATOR: &str = "token-of-otto-the-operator";

#[test]
fn a_held_server_is_resumed_by_an_operator_and_then_cared_for_again() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "exit", &json!({})));
    let principals = principals(&w.dir().join("tokens"));
    let w = w.watch(&json!({"web": {"principals": principals}}));
    w.hangar.user_start("api");
    w.hangar.user_start("api");
    w.wait("its incident is open", 4, |w| w.medic.incidents(Some("api")).len() == 1);
    w.hangar.operator_stop("api");
    w.wait_closed("api", "cancelled", 10);
    w.must("the order stands", w.medic.hold_orders().contains_key("api"));
    let answer = w.medic.post_as(OPERATOR, "/api/v1/servers/api/resume", &json!({"reason": "fixed it"}));
    assert_eq!((answer.status, &answer.json()["mcp_server"]), (200, &json!("api")), "{answer:?}");
    w.wait("the order is gone", 5, |w| w.medic.hold_orders().is_empty());
    w.nothing_sent_since(0);
    w.hangar.set_mode("api", "ok");
    w.hangar.bring_up(&["api"]);
    w.hangar.kill_child("api");
    w.wait_closed("api", "recovered", 40);
    assert_eq!(w.medic.fraction().to_string(), "1");
}

#[test]
fn a_request_that_acts_is_an_attempt_by_whoever_asked() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let principals = principals(&w.dir().join("tokens"));
    // The daemon by itself only looks: it is not permitted more.
    let looks = json!([
        {"role": "sidecar", "permitted": ["client_reconnect", "capability_refresh"]},
        {"role": "operator", "permitted": ["session_reconnect"]},
    ]);
    let w = w.watch(&json!({"web": {"principals": principals}, "matrix": {"roles": looks}, "requests": {"act": true}}));
    w.hangar.kill_child("api");
    w.wait_held("api", "not_permitted", 40);
    rest(2.0);
    w.nothing_sent_since(0);
    let body = json!({"restart_class": "session_reconnect", "target": "api", "reason": "it is needed now"});
    let answer = w.medic.post_as(OPERATOR, "/api/v1/restart-requests", &body);
    assert_eq!((answer.status, &answer.json()["acts"]), (200, &json!(true)), "{answer:?}");
    w.wait_closed("api", "recovered", 40);
    let attempts = w.medic.attempts("api");
    let actors: Vec<&str> = attempts.iter().filter_map(|a| a["actor"].as_str()).collect();
    assert_eq!(actors, ["hangar-medic", "hangar-medic", "otto"]);
    assert_eq!(attempts[2]["action"], "session_reconnect");
    assert_eq!(w.proxy.starts("api").len(), 1);
}
