//! One Hangar with real deaths, its daemon and a real Prometheus: what is drawn, alerted on and documented works there.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::{dashboards, docs, file, files};
use crate::support::hangar::declares_echo;
use crate::support::monitoring::Prometheus;
use crate::support::world::{Unwatched, World};
use crate::support::{V2_34, poll};

/// The servers of the demonstration, each with a story of its own.
const SERVERS: &[&str] = &["api", "odd", "halted"];

/// Crashed and recovered, blocked, and stopped by a person.
fn played() -> (World, Prometheus) {
    let quiet = json!({});
    let unwatched = Unwatched::start(V2_34, |hangar| {
        hangar.server("api", "ok", &quiet).server("odd", "extra_tool", &declares_echo("block")).server("halted", "ok", &quiet)
    });
    unwatched.hangar.bring_up(&["api", "halted"]);
    let owners = json!([{"servers": "od*", "owner": "ann"}]);
    let token = unwatched.dir().join("alice.token");
    std::fs::write(&token, docs::TOKEN).unwrap();
    let alice = json!([{"name": "alice", "role": "operator", "token_file": token}]);
    let world = unwatched.watch(&json!({"policy": {"owners": owners}, "web": {"principals": alice}}));
    let rules: Vec<PathBuf> = files("alerts", ".rules.yml").iter().map(|path| file(path)).collect();
    let jobs: [(&str, &[u16]); 2] = [("mcp-hangar", &[world.hangar.port]), ("hangar-medic", &[world.medic.port()])];
    let prometheus = Prometheus::with_rules(world.dir(), &jobs, &[], &rules);
    let seen = |promql: &str| prometheus.query(promql).is_ok_and(|series| !series.is_empty());
    world.wait("Prometheus has scraped both twice", 30, |_| seen("min(count_over_time(up[1m])) >= 2"));

    world.hangar.operator_stop("halted");
    world.hangar.user_start("odd");
    world.hangar.kill_child("api");
    world.wait_held("odd", "approval_needed", 40);
    world.wait_closed("api", "recovered", 40);
    world.wait("Prometheus has seen the recovery", 20, |_| seen("sum(increase(hangar_medic_recoveries_total[5m])) > 0"));
    (world, prometheus)
}

/// As Grafana would ask.
fn asked(expr: &str, server: &str) -> String {
    let variables = [("$__rate_interval", "1m"), ("$__range", "10m"), ("$instance", ".*"), ("$mcp_server", server)];
    variables.iter().fold(expr.to_owned(), |expr, (name, value)| expr.replace(name, value))
}

fn every_panel_finds_data(prometheus: &Prometheus) {
    let finds = |expr: &str| {
        let found = |server: &&str| prometheus.query(&asked(expr, server)).unwrap_or_else(|e| panic!("{expr}: {e}")).is_empty();
        !SERVERS.iter().all(found)
    };
    let mut empty = Vec::new();
    for board in dashboards::boards() {
        for panel in dashboards::panels(&board) {
            empty.extend(
                dashboards::queries(panel).into_iter().filter(|expr| !finds(expr)).map(|expr| format!("{}: {expr}", panel["title"])),
            );
        }
        let marks = board["annotations"]["list"].as_array().unwrap();
        for expr in marks.iter().map(|mark| mark["expr"].as_str().unwrap()) {
            prometheus.query(&asked(expr, "api")).unwrap_or_else(|e| panic!("{expr}: {e}"));
        }
    }
    assert!(empty.is_empty(), "no series:\n{}", empty.join("\n"));
}

#[test]
fn what_is_drawn_alerted_on_and_documented_works_on_a_running_daemon() {
    let (world, prometheus) = played();
    every_panel_finds_data(&prometheus);
    let attempts = prometheus.query("hangar_medic_server_attempt_timestamp_seconds{mcp_server=\"api\", outcome=\"recovered\"}").unwrap();
    assert_eq!(attempts.len(), 1, "one attempt brought api back: {attempts:?}");
    docs::commands_work(&world, &prometheus);
    let firing = "ALERTS{alertname=\"MCPHangarMedicApprovalNeeded\", alertstate=\"firing\", owner=\"ann\", mcp_server=\"odd\"}";
    let fires = poll(Duration::from_mins(1), || prometheus.query(firing).is_ok_and(|s| s.len() == 1).then_some(()));
    assert!(fires.is_some(), "the owner of odd is told: {:?}", prometheus.query("ALERTS"));
}
