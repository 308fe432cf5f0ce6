//! The alerts fire when they should, as Prometheus itself judges, and each one has a page for whoever is paged.

use std::collections::BTreeSet;

use hangar_medic::policy::Hold;
use hangar_medic::server::runbooks::PAGES;
use serde_json::Value;

use super::{files, run, text, yaml};

/// Every rule of every file.
pub fn rules() -> Vec<Value> {
    let of = |path: String| {
        yaml(&path)["groups"].as_array().unwrap().iter().flat_map(|g| g["rules"].as_array().unwrap().clone()).collect::<Vec<_>>()
    };
    files("alerts", ".rules.yml").into_iter().flat_map(of).collect()
}

fn alerts() -> Vec<(String, Value)> {
    rules().into_iter().filter_map(|rule| Some((rule["alert"].as_str()?.to_owned(), rule))).collect()
}

#[test]
fn prometheus_takes_every_rule_file() {
    for path in files("alerts", ".rules.yml") {
        run("promtool", &["check", "rules", &path]);
    }
}

#[test]
fn alerts_fire_stay_and_resolve_as_their_cases_say() {
    let cases = files("tests/alerts", "_test.yml");
    let mut arguments = vec!["test", "rules"];
    arguments.extend(cases.iter().map(String::as_str));
    run("promtool", &arguments);
}

#[test]
fn every_alert_is_in_a_case_that_fires() {
    let cases: String = files("tests/alerts", "_test.yml").iter().map(|path| text(path)).collect();
    for (name, _) in alerts() {
        let fires = cases.contains(&format!("alertname=\"{name}\"")) || cases.contains(&format!("alertname: {name}"));
        assert!(fires, "{name} has no case");
    }
}

#[test]
fn the_two_alerts_of_a_dead_server_are_as_their_runbook_names_them() {
    let of = |name: &str| alerts().into_iter().find(|(n, _)| n == name).unwrap().1;
    let dead = of("MCPHangarProviderDead");
    let expr =
        "mcp_hangar_mcp_server_state == 4 or (last_over_time(mcp_hangar_mcp_server_state[10m]) == 4 unless mcp_hangar_mcp_server_state)";
    assert_eq!([&dead["expr"], &dead["for"], &dead["labels"]["severity"]], [expr, "1m", "critical"]);
    let unseen = of("MCPHangarProviderNotSeenHealthy");
    assert!(unseen["expr"].as_str().unwrap().contains("> 900"), "15 minutes: {unseen}");
    assert_eq!(unseen["labels"]["severity"], "warning");
}

#[test]
fn every_alert_says_what_is_wrong_and_has_a_runbook_that_the_daemon_serves() {
    let index = text("alerts/runbooks/README.md");
    for (name, rule) in alerts() {
        let note = |key: &str| rule["annotations"][key].as_str().unwrap_or_else(|| panic!("{name} has no {key}"));
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
        assert!(note("summary").len() < 120 && note("description").len() > 60, "{name}");
        assert_eq!(note("runbook_url"), format!("http://127.0.0.1:9923/runbooks/{name}"));
        let (_, page) = PAGES.iter().find(|(page, _)| *page == name).unwrap_or_else(|| panic!("the daemon serves no page {name}"));
        assert!(page.starts_with(&format!("# {name} ({severity})\n")), "{name}: its page has another title");
        for part in ["**It means:**", "## Look", "## Do", "## Escalate"] {
            assert!(page.contains(part), "{name}: its page has no {part}");
        }
        assert!(index.contains(&format!("| [{name}]({name}.md) | {severity} |")), "{name} is not in the index with its severity");
    }
    let known: BTreeSet<String> = alerts().into_iter().map(|(name, _)| name).collect();
    let stale: Vec<_> = PAGES.iter().filter(|(name, _)| *name != "holds" && !known.contains(*name)).collect();
    assert!(stale.is_empty(), "pages of no alert: {stale:?}");
}

#[test]
fn every_hold_has_a_sentence_that_says_what_it_is_and_what_to_do() {
    let page = text("alerts/runbooks/holds.md");
    let rows: Vec<&str> = page.lines().filter(|l| l.starts_with("| `")).collect();
    let told = |hold: &Hold| format!("| `{hold}` | {} | {} |", hold.sentence(), hold.advice());
    assert_eq!(rows, Hold::ALL.iter().map(told).collect::<Vec<_>>(), "what the program says, in the order of the gate");
}
