//! The first thing that a daemon says of a mistake: what is wrong, and what to do.

use serde_json::{Value, json};

use crate::playbook::{command, finish};
use crate::support::hangar::V2_19;
use crate::support::process::free_port;
use crate::support::world::Unwatched;
use crate::support::{Medic, V2_34, poll};

/// The first line of the log that is a warning or worse, but for the doubts about these tests' quick settings.
fn first_complaint(medic: &Medic) -> Value {
    let line = |l: &str| {
        serde_json::from_str::<Value>(l).ok().filter(|l| (l["level"] == "WARN" || l["level"] == "ERROR") && l["event"] != "config_warning")
    };
    let first = poll(std::time::Duration::from_secs(20), || medic.log().lines().find_map(line));
    first.unwrap_or_else(|| panic!("it complains of nothing:\n{}", medic.log()))
}

#[track_caller]
fn says(line: &Value, words: &[&str]) {
    let text = line.to_string();
    assert!(words.iter().all(|w| text.contains(w)), "{words:?}: {text}");
}

#[test]
fn of_a_file_that_is_no_yaml_or_has_a_wrong_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("medic.yaml");
    for (yaml, words) in [
        ("hangar:\n  url: [http://127.0.0.1:8000\npolicy:\n", &["medic.yaml: ", "line "][..]),
        ("hangar: {url: 'http://127.0.0.1:8000'}\npolicy: {setle: 10s}\n", &["medic.yaml: policy.setle: ", "settle"]),
        ("hangar: {url: 'ftp://127.0.0.1'}\n", &["medic.yaml: hangar.url: ", "http"]),
        ("hangar: {url: '127.0.0.1:8000'}\n", &["medic.yaml: hangar.url: ", "http"]),
    ] {
        std::fs::write(&file, yaml).unwrap();
        let (code, out, err) = finish(&mut command(&["run", "--config.file", file.to_str().unwrap()]));
        let first = err.lines().next().unwrap_or_default();
        assert!(code == 1 && out.is_empty() && words.iter().all(|w| first.contains(w)), "{yaml}: {code} {err}");
        assert!(
            err.lines().last().unwrap().contains("not started: correct what is said above; judge it with `hangar-medic check-config"),
            "{err}"
        );
    }
    let (code, _, err) = finish(&mut command(&["run"]));
    assert!(code == 1 && err.lines().next().unwrap().contains("hangar.url") && err.contains("--help"), "{code} {err}");
}

#[test]
fn of_an_address_where_nobody_or_somebody_else_answers() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = free_port();
    let medic = Medic::start(&dir.path().join("a"), &format!("http://127.0.0.1:{nobody}"), &json!({}));
    says(&first_complaint(&medic), &["never reached Hangar", "start Hangar with --http, or correct hangar.url"]);
    // The medic itself is an HTTP server that is no Hangar.
    let other = Medic::start(&dir.path().join("b"), &format!("{}/nowhere", medic.url()), &json!({}));
    says(&first_complaint(&other), &["what answers there is not Hangar"]);
}

#[test]
fn of_a_key_that_is_wrong_or_missing() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "exit", &json!({})).with_auth());
    w.hangar.user_start("api");
    let (url, key) = (format!("http://127.0.0.1:{}", w.hangar.port), w.dir().join("key"));
    std::fs::write(&key, "mcp_this_is_no_key_of_anybody_at_all_0123456789\n").unwrap();
    let medic = Medic::start(&w.dir().join("a"), &url, &json!({"hangar": {"api_key_file": key}}));
    says(&first_complaint(&medic), &["refused the credentials", "put a valid key, alone, into hangar.api_key_file"]);
    let medic = Medic::start(&w.dir().join("b"), &url, &json!({}));
    says(&first_complaint(&medic), &["refused the credentials", "set hangar.api_key_file (--hangar.api-key-file)"]);
}

#[test]
fn of_a_hangar_that_is_too_old() {
    let w = Unwatched::start(V2_19, |h| h.server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let medic = Medic::start(
        &w.dir().join("a"),
        &format!("http://127.0.0.1:{}", w.hangar.port),
        &json!({"hangar": {"log_file": w.hangar.log_file()}}),
    );
    says(&first_complaint(&medic), &["too old", "2.19.1", "upgrade Hangar to 2.20.0 or later"]);
    assert!(medic.is_alive());
}
