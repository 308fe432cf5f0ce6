//! Deaths around retention's cut, and with the log on a PostgreSQL server.

use hangar_medic::attempt_log::{AttemptLog, Store};
use hangar_medic::policy::{Body, Closed, HoldCause, Reason, Stops, Symptom, incident_id};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{crashed_servers_of, die_and_go_on, verified};
use crate::support::process::free_port;
use crate::support::{Postgres, poll};

/// Retention's cut, as every process begins with one.
pub const CUTS: &[(&str, u32)] = &[("cut.begin", 0), ("cut.uncommitted", 0), ("cut.committed", 0), ("cut.remembered", 0)];

/// The intent, the receipt and the settlement of a start, and a checkpoint.
pub const ON_POSTGRES: &[(&str, u32)] = &[
    ("append.uncommitted", 1),
    ("append.committed", 1),
    ("append.uncommitted", 5),
    ("append.committed", 5),
    ("append.uncommitted", 6),
    ("append.remembered", 6),
    ("checkpoint.begin", 0),
];

/// Incidents of long ago between two orders that still stand.
async fn fill(dir: &std::path::Path, old: Timestamp) {
    let store = Store::open(dir, "test").await.unwrap();
    let hold = |id: &str| Body::HoldOrdered { mcp_server: id.to_owned(), cause: HoldCause::Person, why: "r".to_owned() };
    for n in 0..50 {
        let at = old + SignedDuration::from_mins(n);
        let incident_id = incident_id("api", at);
        let opened = Body::IncidentOpened {
            incident_id: incident_id.clone(),
            mcp_server: "api".to_owned(),
            symptom: Symptom::ServerCrashed,
            reason: Reason::Crashed,
            provenance: None,
            since: at,
            reopens: None,
            floor_rank: 0,
            slow_retries: 0,
            stops: Stops::new(),
            process_start: None,
            group: None,
        };
        let closed = Body::IncidentClosed { incident_id, how: Closed::HealedByItself, why: "ready".to_owned() };
        store.append(at, "sidecar", vec![opened, closed]).await.unwrap();
    }
    store.append(old + SignedDuration::from_hours(1), "sidecar", vec![hold("kept")]).await.unwrap();
    store.append(hangar_medic::clock::now(), "sidecar", vec![hold("young")]).await.unwrap();
    store.close().await;
}

#[test]
fn a_death_around_retentions_cut_leaves_a_whole_chain_and_loses_nothing_that_stands() {
    let old = hangar_medic::clock::now() - SignedDuration::from_hours(24 * 500);
    for case in CUTS {
        let dir = tempfile::Builder::new().prefix("hangar-medic-").tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(fill(&dir.path().join("data"), old));
        let nobody = format!("http://127.0.0.1:{}", free_port());
        let medic = die_and_go_on(dir.path(), &nobody, &json!({}), *case);
        let cut = poll(std::time::Duration::from_secs(20), || {
            (medic.incidents(None).is_empty() && medic.status()["instance"] == "test").then_some(())
        });
        assert!(cut.is_some(), "{case:?}: what is too old is still there\n{}", medic.report());
        let held: Vec<String> = medic.hold_orders().into_keys().collect();
        assert_eq!(held, ["kept", "young"], "{case:?}");
        verified(&medic, &format!("at the end of {case:?}"));
    }
}

#[test]
fn a_death_at_any_step_loses_and_repeats_nothing_with_the_log_on_postgresql() {
    let postgres = Postgres::start();
    let url = postgres.url("fleet");
    crashed_servers_of(ON_POSTGRES, |n| json!({"hangar": {"instance": format!("case-{n}")}, "storage": {"postgres": {"url": url}}}));
}
