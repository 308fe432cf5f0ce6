//! Dashboards by Grafana's own types, and what each metric is for.

use std::collections::BTreeSet;

use hangar_medic::metrics::Metrics;
use prometheus::Registry;
use serde_json::Value;

use super::{alerts, files, run, text};
use crate::support::process::cache;

pub fn boards() -> Vec<Value> {
    files("deploy/grafana/dashboards", ".json").iter().map(|path| serde_json::from_str(&text(path)).unwrap()).collect()
}

/// Every panel that asks something.
pub fn panels(board: &Value) -> Vec<&Value> {
    board["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row").collect()
}

/// A panel's queries.
pub fn queries(panel: &Value) -> Vec<&str> {
    panel["targets"].as_array().unwrap().iter().map(|target| target["expr"].as_str().unwrap()).collect()
}

#[test]
fn the_dashboards_are_what_grafana_s_types_allow() {
    let modules = cache("npm-grafana");
    let mut arguments = vec!["tests/grafana/check.mjs", modules.to_str().unwrap()];
    let boards = files("deploy/grafana/dashboards", ".json");
    arguments.extend(boards.iter().map(String::as_str));
    run("node", &arguments);
}

#[test]
fn every_panel_says_what_it_shows_in_which_unit_and_fits_beside_hangar_s_own() {
    let mut seen = BTreeSet::new();
    for board in boards() {
        let uid = board["uid"].as_str().unwrap();
        assert!(uid.starts_with("mcp-hangar-") && uid.len() <= 40, "{uid}");
        assert_eq!(board["tags"][0], "mcp-hangar");
        assert!(seen.insert(uid.to_owned()), "{uid} twice");
        for panel in panels(&board) {
            let title = panel["title"].as_str().unwrap();
            assert!(panel["description"].as_str().unwrap().ends_with('.'), "{title}: a sentence says what it shows");
            assert!(!panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap().is_empty(), "{title}");
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
            for target in panel["targets"].as_array().unwrap() {
                assert!(!target["legendFormat"].as_str().unwrap().is_empty(), "{title}");
            }
            let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            assert!(place("x") + place("w") <= 24 && place("w") > 0 && place("h") > 0, "{title}");
        }
    }
}

#[test]
fn the_fraction_is_never_shown_without_what_stayed_dead_beside_it() {
    let board = boards().into_iter().find(|b| b["uid"] == "mcp-hangar-medic").unwrap();
    let line = |metric: &str| {
        let panels = panels(&board);
        let panel =
            panels.into_iter().find(|p| queries(p).iter().any(|q| q.contains(metric))).unwrap_or_else(|| panic!("{metric} is not shown"));
        panel["gridPos"]["y"].as_u64().unwrap()
    };
    let fraction = line("fraction_avoided_full_restart");
    assert_eq!([line("hangar_medic_incidents_exhausted"), line("hangar_medic_incidents_open")], [fraction; 2]);
}

/// Families that nobody draws or alerts on; README's table of metrics says what they are for.
const FOR_QUERIES: &[&str] = &[];

fn exported() -> Vec<(String, String)> {
    let registry = Registry::new();
    let metrics = Metrics::register(&registry).unwrap();
    // Families of single servers have no series, and so no name, until there is one.
    metrics.set_dead([("api", hangar_medic::policy::Reason::Crashed)]);
    metrics.set_owners([("api", "ann")]);
    metrics.set_server_incidents([("api", hangar_medic::policy::Phase::Held, None)]);
    metrics.set_server_attempts([hangar_medic::metrics::ServerAttempt {
        mcp_server: "api",
        action: hangar_medic::policy::Rung::SessionReconnect,
        outcome: None,
        started_at: jiff::Timestamp::UNIX_EPOCH,
    }]);
    registry.gather().iter().map(|family| (family.name().to_owned(), family.help().to_owned())).collect()
}

/// Whether a text names this family, and no longer name.
fn names(text: &str, family: &str) -> bool {
    let of_a_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.match_indices(family).any(|(at, _)| {
        let after = &text[at + family.len()..];
        let after = ["_bucket", "_sum", "_count"].iter().find_map(|s| after.strip_prefix(s)).unwrap_or(after);
        !text[..at].ends_with(of_a_name) && !after.starts_with(of_a_name)
    })
}

#[test]
fn every_metric_is_drawn_or_alerted_on_or_said_to_be_for_queries() {
    let mut used: Vec<String> =
        boards().iter().flat_map(|b| panels(b).into_iter().flat_map(queries).map(str::to_owned).collect::<Vec<_>>()).collect();
    used.extend(alerts::rules().iter().map(|rule| rule["expr"].as_str().unwrap().to_owned()));
    let drawn = |family: &str| used.iter().any(|expr| names(expr, family));
    let wrong: Vec<String> = exported().into_iter().map(|(f, _)| f).filter(|f| drawn(f) == FOR_QUERIES.contains(&f.as_str())).collect();
    assert!(wrong.is_empty(), "neither drawn nor alerted on, or listed and drawn all the same: {wrong:?}");
}

#[test]
fn rules_and_panels_ask_only_for_what_is_exported() {
    let mut asked: Vec<String> =
        boards().iter().flat_map(|b| panels(b).into_iter().flat_map(queries).map(str::to_owned).collect::<Vec<_>>()).collect();
    asked.extend(alerts::rules().iter().map(|rule| rule["expr"].as_str().unwrap().to_owned()));
    let known: Vec<String> = exported().into_iter().map(|(name, _)| name).collect();
    for expr in asked {
        for word in expr.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':')) {
            let bare = ["_bucket", "_sum", "_count"].iter().find_map(|s| word.strip_suffix(s)).unwrap_or(word);
            let ours = word.starts_with("hangar_medic_") || word.starts_with("fraction_");
            assert!(!ours || known.iter().any(|k| k == bare || k == word), "{word} is not exported: {expr}");
        }
    }
}

#[test]
fn every_metric_is_in_the_documentation_with_its_help() {
    let page = text("alerts/README.md");
    let row = |(family, help): (String, String)| format!("| `{family}` | {} |", help.replace('|', "\\|"));
    let missing: Vec<String> = exported().into_iter().map(row).filter(|row| !page.contains(row)).collect();
    assert!(missing.is_empty(), "alerts/README.md has no rows:\n{}", missing.join("\n"));
}
