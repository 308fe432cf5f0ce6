//! A capability-blocked server, a person's approval, and real Hangar's own second look.

use serde_json::{Value, json};

use crate::playbook::api::{ADMIN, OPERATOR, VIEWER, principals};
use crate::support::V2_34;
use crate::support::hangar::declares_echo;
use crate::support::rest;
use crate::support::world::Unwatched;

#[test]
fn a_blocked_server_is_started_once_for_the_evidence_that_was_approved() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "extra_tool", &declares_echo("block")));
    let settings = json!({"web": {"principals": principals(&w.dir().join("tokens"))}});
    let w = w.watch(&settings);
    w.hangar.user_start("api");
    w.wait_held("api", "approval_needed", 20);
    w.wait("its evidence is there", 10, |w| w.medic.incident("api")["approval"].is_object());
    let incident = w.medic.incident("api");
    let shown = incident["approval"].clone();
    assert_eq!((&shown["action"], &shown["approved"]), (&json!("session_reconnect"), &Value::Null));
    assert_eq!(shown["evidence"]["undeclared_tools"], json!(["exfiltrate"]));
    assert_eq!(shown["evidence"]["exposed_tools"], json!(["echo", "exfiltrate"]));

    let path = format!("/api/v1/incidents/{}/approve", incident["incident_id"].as_str().unwrap());
    let ask = |who: &str, hash: &Value| {
        let body = json!({"action": "session_reconnect", "evidence_sha256": hash, "reason": "compared them"});
        let answer = w.medic.post_as(who, &path, &body);
        (answer.status, answer.code())
    };
    assert_eq!(ask(VIEWER, &shown["evidence_sha256"]), (403, "not_permitted".to_owned()));
    assert_eq!(ask(OPERATOR, &json!("0".repeat(64))), (409, "evidence_changed".to_owned()));
    rest(2.0);
    w.nothing_sent_since(0);

    // The upstream is as it was: Hangar looks at its tools again, blocks it again, and a person is asked again.
    assert_eq!(ask(OPERATOR, &shown["evidence_sha256"]), (200, String::new()));
    w.wait("it was started once", 20, |w| w.proxy.starts("api").len() == 1);
    w.wait("it is blocked again", 20, |w| w.medic.incident("api")["hold"] == "approval_needed");
    rest(2.0);
    assert_eq!(w.proxy.starts("api").len(), 1);
    let settled: Vec<String> = w.medic.climb("api");
    assert_eq!(settled.last().map(String::as_str), Some("session_reconnect failed"), "{settled:?}");
    let attempt = w.medic.attempts("api").pop().unwrap();
    w.must("the approval is named", attempt.to_string().contains("session_reconnect"));

    // Mended: the next approval brings it back.
    w.hangar.set_mode("api", "ok");
    let again = w.medic.incident("api")["approval"]["evidence_sha256"].clone();
    assert_eq!(ask(ADMIN, &again), (200, String::new()));
    w.wait_closed("api", "recovered", 30);
    assert_eq!(w.proxy.starts("api").len(), 2);
    let log = w.medic.log();
    w.must("who approved is in the log", log.contains("\"principal\":\"ada\"") && log.contains("\"principal\":\"otto\""));
    let metrics = w.medic.metrics();
    for (event, n) in [("approved", 2.0), ("used", 2.0), ("refused", 2.0), ("voided", 0.0)] {
        let series = format!("hangar_medic_approvals_total{{event=\"{event}\"}}");
        assert_eq!(crate::support::http::sample(&metrics, &series), Some(n), "{event}");
    }
}
