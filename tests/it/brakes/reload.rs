//! A changed configuration is taken over whole, or not at all.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::playbook::api::{ADMIN, OPERATOR, VIEWER, World, principals};
use crate::support::process::signal;
use crate::support::world::Unwatched;
use crate::support::{V2_34, http, poll};

/// Changes the file as an editor does: a new one in the place of the old one.
fn edit(file: &Path, change: &Value) {
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    crate::support::medic::merge(&mut config, change);
    let fresh = file.with_extension("new");
    std::fs::write(&fresh, config.to_string()).unwrap();
    std::fs::rename(fresh, file).unwrap();
}

fn unwatched() -> Value {
    json!({"reload": {"watch_interval": "0s"}})
}

fn mode(w: &World, mode: &str) -> bool {
    w.medic.status()["mode"] == mode && w.counted(&format!("hangar_medic_mode{{mode=\"{mode}\"}}")) == 1
}

fn ok(w: &World) -> usize {
    w.counted("hangar_medic_config_last_reload_successful")
}

fn hash(w: &World) -> f64 {
    http::sample(&w.medic.metrics(), "hangar_medic_config_hash").unwrap()
}

#[test]
fn on_request_all_of_it_is_taken_over_or_nothing_and_every_fault_is_named() {
    let w = World::start(false, &unwatched());
    let reload = |who: &str| w.medic.post_as(who, "/-/reload", &json!({}));
    let file = w.medic.config_file();
    assert_eq!(reload(VIEWER).code(), "not_permitted");
    assert_eq!(http::post(w.medic.port(), "/-/reload", None, None).status, 401);
    let before = hash(&w);

    edit(&file, &json!({"policy": {"mode": "observe", "settle": "-1s", "colour": "red"}}));
    let refused = reload(OPERATOR);
    let faults = refused.json()["error"]["faults"].to_string();
    assert_eq!((refused.status, refused.code().as_str()), (409, "configuration_refused"));
    assert!(faults.contains("policy.settle") && faults.contains("policy.colour"), "{faults}");
    assert_eq!((mode(&w, "act"), ok(&w), hash(&w).to_bits()), (true, 0, before.to_bits()), "nothing changed");

    edit(&file, &json!({"policy": {"settle": "2s"}}));
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    config["policy"].as_object_mut().unwrap().remove("colour");
    config["hangar"]["instance"] = json!("another");
    config["storage"]["path"] = json!("/nowhere");
    std::fs::write(&file, config.to_string()).unwrap();
    let fixed = reload(OPERATOR).json()["error"]["faults"].clone();
    let names: Vec<&str> = fixed.as_array().unwrap().iter().filter_map(Value::as_str).filter_map(|f| f.split(':').next()).collect();
    assert_eq!(names, ["hangar.instance", "storage.path"], "{fixed}");
    assert!(mode(&w, "act"), "nothing of it");

    config["hangar"]["instance"] = json!("test");
    config["storage"]["path"] = json!(w.medic.data());
    let only_ada: Vec<Value> = config["web"]["principals"].as_array().unwrap().iter().filter(|p| p["name"] == "ada").cloned().collect();
    config["web"]["principals"] = only_ada.into();
    std::fs::write(&file, config.to_string()).unwrap();
    let taken = reload(OPERATOR);
    assert_eq!((taken.status, &taken.json()["reloaded"]), (200, &json!(true)), "{taken:?}");
    assert_eq!((mode(&w, "observe"), ok(&w)), (true, 1));
    assert_ne!(hash(&w).to_bits(), before.to_bits());
    assert_eq!((reload(OPERATOR).status, reload(ADMIN).status), (401, 200), "otto is nobody now");
}

#[test]
fn a_hangup_and_the_swap_of_a_config_map_are_seen() {
    let mut w = World::start(false, &unwatched());
    let file = w.medic.config_file();
    edit(&file, &json!({"policy": {"mode": "observe"}}));
    signal("HUP", w.medic.pid());
    let seen = poll(Duration::from_secs(10), || mode(&w, "observe").then_some(()));
    assert!(seen.is_some(), "SIGHUP\n{}", w.medic.log());

    // A ConfigMap: the file is a link to ..data/file, and ..data a link that is swapped.
    w.medic.sigterm();
    let dir = file.parent().unwrap().to_owned();
    for (name, mode) in [("one", "act"), ("two", "observe")] {
        std::fs::create_dir(dir.join(name)).unwrap();
        let copy = dir.join(name).join("hangar-medic.yaml");
        std::fs::copy(&file, &copy).unwrap();
        edit(&copy, &json!({"policy": {"mode": mode}, "reload": {"watch_interval": "200ms"}}));
    }
    symlink("one", dir.join("..data")).unwrap();
    std::fs::remove_file(&file).unwrap();
    symlink("..data/hangar-medic.yaml", &file).unwrap();
    w.medic.start_again();
    let begun = poll(Duration::from_secs(10), || mode(&w, "act").then_some(()));
    assert!(begun.is_some());
    symlink("two", dir.join("..data_tmp")).unwrap();
    std::fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    let swapped = poll(Duration::from_secs(10), || mode(&w, "observe").then_some(()));
    assert!(swapped.is_some(), "the swap\n{}", w.medic.log());
    // A broken one is refused once, not again and again.
    std::fs::write(dir.join("two/hangar-medic.yaml"), "policy: {mode: ").unwrap();
    let refused = poll(Duration::from_secs(10), || (ok(&w) == 0).then_some(()));
    assert!(refused.is_some() && mode(&w, "observe"));
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(w.medic.log().matches("\"event\":\"config_refused\"").count(), 1, "{}", w.medic.log());
}

#[test]
fn a_changed_policy_applies_to_open_incidents_from_the_next_plan() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let tokens = principals(&w.dir().join("tokens"));
    let settings = json!({"web": {"principals": tokens}, "policy": {"servers": [{"match": "a*", "enabled": false}]},
                          "reload": {"watch_interval": "0s"}});
    let w = w.watch(&settings);
    w.hangar.kill_child("api");
    w.wait_held("api", "opted_out", 20);
    crate::support::rest(2.0);
    w.nothing_sent_since(0);
    edit(&w.medic.config_file(), &json!({"policy": {"servers": []}}));
    assert_eq!(w.medic.post_as(OPERATOR, "/-/reload", &json!({})).status, 200);
    w.wait_closed("api", "recovered", 30);
}
