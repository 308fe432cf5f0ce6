//! The status page of a running daemon, in a real browser.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::V2_34;
use crate::support::hangar::declares_echo;
use crate::support::medic::rungs;
use crate::support::world::{Unwatched, World};

/// Where `tests/run.sh` puts what drives the browser.
fn npm() -> PathBuf {
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
    assert!(found[0]["titles"][0].as_str().unwrap().contains("not working, and 1 needs a person"), "{}", found[0]);
    let walked = &found[4];
    assert!(walked["url"].as_str().unwrap().ends_with(&id), "{walked}");
    for words in ["a security signal", "A person must decide", "approval_needed"] {
        assert!(walked["text"].as_str().unwrap().contains(words), "{words}: {walked}");
    }
    assert!(found[5]["url"].as_str().unwrap().ends_with("?refresh=off") && walked["cookies"] == 0, "{}", found[5]);
}
