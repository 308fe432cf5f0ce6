//! What a restart of Hangar is judged on: the servers that stood before, not Hangar being up.

use hangar_medic::policy::{Body, Hold, HoldCause, Outcome, Part, Plan, Receipt, Rung, Saved, State, Step, attempt_id, incident_id};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::refusals::{World, ago};

/// `api` was dead, `r1` and `r2` were ready; Hangar was restarted for `api`, which left a receipt `receipt_ago` seconds ago.
fn restarted(receipt_ago: Option<i64>) -> World {
    let mut w = World::new(Rung::FullMcpRestart);
    let id = the_attempt();
    let opened = json!({
        "kind": "attempt_opened", "attempt_id": id, "incident_id": incident_id("api", ago(60)), "mcp_server": "api",
        "action": "full_mcp_restart", "why": "w", "slow_retry": false, "process_start": ago(9000),
    });
    w.record(40, serde_json::from_value(opened).unwrap());
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
    let saved = Saved { ready: ids(&["r1", "r2"]), dead: ids(&["api"]), left: ids(&["blocked"]), ..Saved::default() };
    w.record(40, Body::AttemptSaved { attempt_id: id.clone(), saved });
    process(&mut w, ago(30));
    if let Some(seconds) = receipt_ago {
        w.record(30, Body::AttemptHalfDone { attempt_id: id.clone(), evidence: [].into() });
        w.record(29, Body::AttemptSecond { attempt_id: id.clone(), process_start: Some(ago(30)) });
        let (detail, evidence) = (String::new(), [].into());
        w.record(seconds, Body::AttemptReceipt { attempt_id: id, receipt: Receipt::Accepted, outcome: None, detail, evidence });
    }
    for id in ["api", "r1", "r2"] {
        stands(&mut w, id, Some(State::Ready), Some(ago(25)));
    }
    w
}

fn the_attempt() -> String {
    attempt_id(&incident_id("api", ago(60)), 4)
}

/// Hangar's process is this one, and that is known already.
fn process(w: &mut World, start: Timestamp) {
    w.snapshot.hangar.process_start = Some(start);
    w.record(25, Body::HangarRestarted { process_start: start });
}

fn stands(w: &mut World, id: &str, gauge: Option<State>, last_healthy: Option<Timestamp>) {
    let reading = w.snapshot.servers.entry(id.to_owned()).or_default();
    reading.gauge = gauge;
    reading.last_healthy = last_healthy;
    if let Some(rest) = reading.rest.as_mut() {
        rest.state = gauge.unwrap_or(State::Cold);
        rest.alive = gauge == Some(State::Ready);
    }
}

fn settled(plan: &Plan) -> Option<(Outcome, String)> {
    plan.steps.iter().find_map(|s| match s {
        Step::Record(Body::AttemptSettled { outcome, why, .. }) => Some((*outcome, why.clone())),
        Step::Record(_) | Step::Act(_) | Step::Read(_) => None,
    })
}

fn receipt(plan: &Plan) -> Option<(Receipt, Option<Outcome>)> {
    plan.steps.iter().find_map(|s| match s {
        Step::Record(Body::AttemptReceipt { receipt, outcome, .. }) => Some((*receipt, *outcome)),
        Step::Record(_) | Step::Act(_) | Step::Read(_) => None,
    })
}

fn second_half(plan: &Plan) -> bool {
    plan.steps.iter().any(|s| matches!(s, Step::Act(a) if a.part == Part::Second && a.rung == Rung::FullMcpRestart))
}

#[test]
fn it_recovered_only_when_every_saved_server_is_ready_and_was_healthy_since() {
    let (outcome, why) = settled(&restarted(Some(20)).plan()).unwrap();
    assert_eq!((outcome, why.as_str()), (Outcome::Recovered, "all 3 servers that were ready or dead before are ready and held for 10s"));
    assert_eq!(settled(&restarted(Some(5)).plan()), None, "the settle window is not over");
    let lost = |id: &str, gauge, last_healthy| {
        let mut w = restarted(Some(20));
        stands(&mut w, id, gauge, last_healthy);
        settled(&w.plan())
    };
    let missing = |id: &str| Some((Outcome::Insufficient, format!("1 of 3 servers are not back: {id}")));
    // No series at all is what a restart leaves of every server: the alert is gone, the server is not back.
    assert_eq!(lost("r2", None, None), missing("r2"));
    assert_eq!(lost("r2", Some(State::Cold), None), missing("r2"));
    assert_eq!(lost("api", Some(State::Dead), None), missing("api"));
    assert_eq!(lost("r1", Some(State::Ready), Some(ago(50))), missing("r1"), "healthy before it only");
    assert_eq!(lost("r1", Some(State::Initializing), None), None, "it is being started");
}

#[test]
fn what_is_held_or_blocked_meanwhile_is_not_asked_of_it() {
    let mut w = restarted(Some(20));
    stands(&mut w, "r2", Some(State::Cold), None);
    w.record(15, Body::HoldOrdered { mcp_server: "r2".to_owned(), cause: HoldCause::UserRequest, why: "w".to_owned() });
    assert_eq!(settled(&w.plan()).map(|(outcome, _)| outcome), Some(Outcome::Recovered));
}

#[test]
fn the_next_process_finishes_what_the_one_before_began() {
    let mut w = restarted(None);
    for id in ["api", "r1", "r2"] {
        stands(&mut w, id, None, None);
    }
    assert!(second_half(&w.plan()), "Hangar's process is another one: its servers are owed");
    // The same process: the restart is still to come, or never will.
    process(&mut w, ago(9000));
    let plan = w.plan();
    assert!(!second_half(&plan) && receipt(&plan).is_none(), "{plan:?}");
    w.policy.platform.restart_within = SignedDuration::from_secs(30);
    assert_eq!(receipt(&w.plan()), Some((Receipt::Unknown, Some(Outcome::Timeout))));
    // What was begun in one process and is found in the next took Hangar down.
    process(&mut w, ago(30));
    w.record(20, Body::AttemptSecond { attempt_id: the_attempt(), process_start: Some(ago(30)) });
    assert!(second_half(&w.plan()), "the medic alone ended: it reads, and starts what is down");
    process(&mut w, ago(10));
    assert_eq!(receipt(&w.plan()), Some((Receipt::Unknown, Some(Outcome::Failed))));
}

#[test]
fn a_restart_of_ours_is_nobodys_crash_and_its_shutdowns_are_nobodys_stops() {
    let mut w = restarted(None);
    w.snapshot.hangar.process_start = Some(ago(5));
    let plan = w.plan();
    let bodies: Vec<&Body> = plan.steps.iter().filter_map(|s| if let Step::Record(body) = s { Some(body) } else { None }).collect();
    let held = bodies.iter().any(|b| matches!(b, Body::HoldOrdered { .. }));
    assert!(!held && bodies.iter().any(|b| matches!(b, Body::HangarRestarted { .. })), "{bodies:?}");
    // Another server's incident waits while everything is brought back.
    let mut w = restarted(None);
    w.dies("db", 50);
    assert_eq!(w.settled_plan().standings["db"].hold, Some(Hold::LeaseHeld));
}

#[test]
fn a_server_that_came_back_with_the_restart_did_not_heal_by_itself() {
    let mut w = restarted(Some(20));
    w.dies("r1", 55);
    stands(&mut w, "r1", Some(State::Ready), Some(ago(25)));
    let how = |plan: &Plan| {
        plan.steps.iter().find_map(|s| match s {
            Step::Record(Body::IncidentClosed { incident_id, how, .. }) if incident_id.starts_with("r1.") => Some(how.to_string()),
            Step::Record(_) | Step::Act(_) | Step::Read(_) => None,
        })
    };
    assert_eq!(how(&w.plan()).as_deref(), Some("recovered"));
}
