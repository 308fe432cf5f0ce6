//! Holds and pauses as people ask for them, at a daemon whose Hangar is not there.

use std::time::Duration;

use serde_json::{Value, json};

use crate::playbook::api::{ADMIN, OPERATOR, VIEWER, World};
use crate::playbook::{command, finish};
use crate::support::poll;

fn pauses(w: &World) -> Vec<(Value, Value)> {
    let status = w.medic.status();
    let word = |p: &Value| (p["mcp_server"].clone(), p["principal"].clone());
    status["pauses"].as_array().into_iter().flatten().map(word).collect()
}

#[test]
fn a_pause_is_shown_survives_a_restart_and_ends_by_itself_or_by_a_person() {
    let mut w = World::start(false, &json!({}));
    let pause = |w: &World, who: &str, body: &Value| w.medic.post_as(who, "/api/v1/pause", body);
    let refused = pause(&w, VIEWER, &json!({"duration": "1h", "reason": "r"}));
    assert_eq!((refused.status, refused.code().as_str()), (403, "not_permitted"));
    let faulty = pause(&w, OPERATOR, &json!({"duration": "31d", "mcp_server": "", "why": 1}));
    assert_eq!((faulty.status, faulty.json()["error"]["faults"].as_array().unwrap().len()), (400, 4), "{faulty:?}");
    let unknown = pause(&w, OPERATOR, &json!({"duration": "1h", "reason": "r", "mcp_server": "no such id"}));
    assert_eq!((unknown.status, unknown.code().as_str()), (404, "not_found"));

    let all = pause(&w, OPERATOR, &json!({"duration": "1h", "reason": "migration"}));
    assert_eq!((all.status, &all.json()["paused"], &all.json()["mcp_server"]), (200, &json!(true), &Value::Null), "{all:?}");
    let one = pause(&w, ADMIN, &json!({"duration": 2, "reason": "a moment", "mcp_server": "api"}));
    assert_eq!((one.status, &one.json()["mcp_server"]), (200, &json!("api")));
    assert_eq!(pauses(&w), [(Value::Null, json!("otto")), (json!("api"), json!("ada"))]);
    assert_eq!((w.counted("hangar_medic_pauses{scope=\"all\"}"), w.counted("hangar_medic_pauses{scope=\"server\"}")), (1, 1));

    w.medic.restart();
    let ended = poll(Duration::from_secs(15), || (pauses(&w) == [(Value::Null, json!("otto"))]).then_some(()));
    assert!(ended.is_some(), "the short one ends by itself, the long one stays: {:?}\n{}", pauses(&w), w.medic.log());
    let resume = |w: &World| w.medic.post_as(OPERATOR, "/api/v1/resume", &json!({"reason": "done"}));
    assert_eq!(resume(&w).status, 200);
    let again = resume(&w);
    assert_eq!((again.status, again.code().as_str()), (409, "nothing_to_do"));
    assert_eq!(pauses(&w), []);
    assert_eq!(w.kinds(), ["paused", "paused", "unpaused", "unpaused"]);
}

#[test]
fn a_person_holds_a_server_until_a_person_resumes_it() {
    let mut w = World::start(false, &json!({}));
    let hold = |w: &World, who: &str| w.medic.post_as(who, "/api/v1/servers/api/hold", &json!({"reason": "looking at it"}));
    assert_eq!(hold(&w, VIEWER).status, 403);
    assert_eq!(hold(&w, OPERATOR).status, 200);
    assert_eq!(hold(&w, OPERATOR).code(), "nothing_to_do");
    w.medic.restart();
    let stands = poll(Duration::from_secs(15), || (w.medic.hold_orders().get("api").map(String::as_str) == Some("person")).then_some(()));
    assert!(stands.is_some(), "{:?}", w.medic.hold_orders());
    let both = w.medic.post_as(OPERATOR, "/api/v1/pause", &json!({"duration": "1h", "reason": "r", "mcp_server": "api"}));
    assert_eq!(both.status, 200);
    assert_eq!(w.medic.post_as(ADMIN, "/api/v1/resume", &json!({"mcp_server": "api", "reason": "done"})).status, 200);
    assert_eq!((w.medic.hold_orders().len(), pauses(&w)), (0, vec![]));
    assert_eq!(w.kinds(), ["hold_ordered", "paused", "hold_released", "unpaused"]);
    let incident = w.medic.post_as(OPERATOR, "/api/v1/incidents/api.1/hold", &json!({"reason": "r"}));
    assert_eq!((incident.status, incident.code().as_str()), (404, "not_found"));
}

#[test]
fn the_commands_say_what_they_did_and_refusals_are_exit_code_3() {
    let w = World::start(false, &json!({}));
    let run = |who: &str, args: &[&str]| {
        let (file, url) = (w.token_file(who), w.medic.url());
        let mut all = args.to_vec();
        all.extend(["--reason", "night work", "--token-file", file.to_str().unwrap(), "--medic.url", &url]);
        finish(&mut command(&all))
    };
    let (code, out, _) = run("otto", &["pause", "--for", "2h"]);
    assert!(code == 0 && out.starts_with("everything is paused until 20"), "{code} {out}");
    assert_eq!(run("otto", &["hold", "api"]), (0, "api is held until a person resumes it\n".to_owned(), String::new()));
    let (code, out, _) = run("otto", &["hold", "api"]);
    assert!(code == 3 && out.starts_with("refused  nothing_to_do: "), "{code} {out}");
    let (code, out, _) = run("vera", &["pause", "api", "--for", "1m"]);
    assert!(code == 3 && out.starts_with("refused  not_permitted: "), "{code} {out}");
    let (code, out, err) = run("otto", &["pause", "--for", "soon"]);
    assert!(code == 1 && out.is_empty() && err.contains("400"), "{code} {out} {err}");
    let (code, out, _) = run("otto", &["approve", "api.1", "--evidence-sha256", "00"]);
    assert!(code == 3 && out.starts_with("refused  nothing_to_approve: "), "{code} {out}");
    assert_eq!(run("otto", &["resume", "api"]), (0, "api is no longer held\n".to_owned(), String::new()));
    let (code, out, _) = run("otto", &["resume", "--format", "json"]);
    assert_eq!((code, serde_json::from_str::<Value>(&out).unwrap()), (0, json!({"resumed": true, "mcp_server": null})));
}
