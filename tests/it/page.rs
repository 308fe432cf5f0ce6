//! The status page of a running daemon, in a real browser.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::V2_34;
use crate::support::hangar::declares_echo;
use crate::support::medic::rungs;
use crate::support::world::{Unwatched, World};

/// Where `tests/run.sh` puts what drives the browser, and Grafana's types.
pub fn npm() -> PathBuf {
    std::env::var_os("HANGAR_MEDIC_TEST_NPM")
        .map_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache/hangar-medic/npm"), PathBuf::from)
}

/// Where pictures go: a directory that is kept if `HANGAR_MEDIC_TEST_PICTURES` names one.
fn pictures(w: &World) -> PathBuf {
    std::env::var_os("HANGAR_MEDIC_TEST_PICTURES").map_or_else(|| w.dir().to_owned(), PathBuf::from)
}

/// Takes the steps in Chromium and tells what was found in each.
fn browse(pictures: &Path, steps: &[Value]) -> Vec<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/browser/look.mjs");
    let mut command = Command::new("node");
    command.arg(script).arg(pictures).args(steps.iter().map(Value::to_string)).env("HANGAR_MEDIC_TEST_NPM", npm());
    let out = command.output().expect("node: run tests/run.sh once");
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text}{errors}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn people_with_any_screen_keyboard_or_colour_scheme_can_read_what_is_wrong() {
    let w = Unwatched::start(V2_34, |h| {
        let h = h.server("api", "ok", &json!({})).server("blocked", "extra_tool", &declares_echo("block"));
        h.server("lost", "exit", &json!({})).server("stopped", "exit", &json!({})).server("fine", "ok", &json!({}))
    });
    w.hangar.bring_up(&["api", "fine"]);
    let once = json!({"session_reconnect": {"attempts_max": 1}});
    let w = w.watch(&json!({"policy": {"rungs": rungs(&once), "storm": {"servers": 50}}}));
    w.hangar.kill_child("api");
    w.wait_closed("api", "recovered", 40);
    w.hangar.user_start("stopped");
    w.hangar.operator_stop("stopped");
    w.hangar.user_start("blocked");
    w.wait_held("blocked", "approval_needed", 20);
    w.hangar.user_start("lost");
    w.wait("its incident is open", 20, |w| w.medic.incident("lost")["phase"].is_string());

    let (home, id) = (w.medic.url(), w.medic.incident("blocked")["incident_id"].as_str().unwrap().to_owned());
    let over = w.medic.incident("api")["incident_id"].as_str().unwrap().to_owned();
    let steps = [
        json!({"name": "overview", "url": format!("{home}/")}),
        json!({"name": "incident", "url": format!("{home}/incidents/{id}")}),
        json!({"name": "recovered", "url": format!("{home}/incidents/{over}")}),
        json!({"name": "missing", "url": format!("{home}/incidents/none")}),
        json!({"name": "walk", "url": format!("{home}/"), "do": [{"click": "blocked"}]}),
        json!({"name": "still", "url": format!("{home}/"), "do": [{"click": "stop"}]}),
    ];
    let found = browse(&pictures(&w), &steps);
    for seen in &found[..4] {
        assert_eq!((&seen["serious"], &seen["problems"]), (&json!([]), &json!([])), "{seen}");
    }
    assert!(found[0]["titles"][0].as_str().unwrap().contains("servers are not working, and "), "{}", found[0]);
    let walked = &found[4];
    assert!(walked["url"].as_str().unwrap().ends_with(&id), "{walked}");
    for words in ["a security signal", "A person must decide", "approval_needed"] {
        assert!(walked["text"].as_str().unwrap().contains(words), "{words}: {walked}");
    }
    assert!(found[5]["url"].as_str().unwrap().ends_with("?refresh=off") && walked["cookies"] == 0, "{}", found[5]);
}

/// A principal with this role, whose token is its name made long.
fn principal(dir: &Path, name: &str, role: &str) -> Value {
    let file = dir.join(format!("{name}.token"));
    std::fs::write(&file, token(name)).unwrap();
    json!({"name": name, "role": role, "token_file": file})
}

fn token(name: &str) -> String {
    format!("the-long-token-of-{name}")
}

#[test]
fn a_click_approves_a_blocked_server_and_it_is_started() {
    let w = Unwatched::start(V2_34, |h| h.server("blocked", "extra_tool", &declares_echo("block")).server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let people = [principal(w.dir(), "otto", "operator"), principal(w.dir(), "vera", "viewer")];
    let w = w.watch(&json!({"web": {"principals": people}}));
    w.hangar.user_start("blocked");
    w.wait("it waits for an approval", 30, |w| w.medic.incident("blocked")["approval"].is_object());
    let id = w.medic.incident("blocked")["incident_id"].as_str().unwrap().to_owned();
    w.hangar.set_mode("blocked", "ok");

    let home = w.medic.url();
    let fill = |who: &str| json!({"fill": {"Why": "the new tool is ours", "Your token": token(who)}, "click": "Approve"});
    let approve = |name: &str, who: &str| json!({"name": name, "url": format!("{home}/"), "do": [{"click": "blocked"}, {"click": "Approve the next step"}, fill(who)]});
    let form = json!({"name": "form", "url": format!("{home}/incidents/{id}/approve")});
    let found = browse(&pictures(&w), &[form, approve("nobody", "nobody"), approve("viewer", "vera")]);
    assert_eq!((&found[0]["serious"], &found[0]["problems"]), (&json!([]), &json!([])), "{}", found[0]);
    for (seen, words) in [(&found[1], "of a configured principal is needed"), (&found[2], "viewer")] {
        let text = seen["text"].as_str().unwrap();
        assert!(text.contains("Not done.") && text.contains(words), "{seen}");
    }
    w.must("nothing was started", w.proxy.starts("blocked").is_empty());

    let found = browse(&pictures(&w), &[approve("approved", "otto")]);
    assert!(found[0]["url"].as_str().unwrap().ends_with(&format!("{id}?done=approved")), "{}", found[0]);
    assert!(found[0]["text"].as_str().unwrap().contains("Approved.") && found[0]["cookies"] == 0, "{}", found[0]);
    w.wait_closed("blocked", "recovered", 40);
    assert_eq!((w.hangar.state("blocked").as_str(), w.proxy.starts("blocked").len()), ("ready", 1));

    let stop = [
        json!({"name": "paused", "url": format!("{home}/"), "do": [{"click": "Pause it"},
            {"fill": {"Why": "moving house", "For how long": "30m", "Your token": token("otto")}, "click": "Pause"}]}),
        json!({"name": "resumed", "url": format!("{home}/"), "do": [{"click": "End the pause"},
            {"fill": {"Why": "done", "Your token": token("otto")}, "click": "Resume"}]}),
    ];
    let found = browse(&pictures(&w), &stop);
    let text = |n: usize| found[n]["text"].as_str().unwrap().to_owned();
    assert!(text(0).contains("Everything is paused by otto for") && text(0).contains("moving house"), "{}", found[0]);
    assert!(text(1).contains("It is not paused."), "{}", found[1]);
    assert!(!w.medic.log().contains("the-long-token"), "a token is in the log");
}
