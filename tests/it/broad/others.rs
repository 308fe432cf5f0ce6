//! What the medics of the other replicas did, as the log that all share tells it.

use hangar_medic::policy::{Body, Hold, OrderedRestart, Outcome, Receipt, Rung, Step, attempt_id, incident_id};
use jiff::SignedDuration;
use serde_json::json;

use super::refusals::{World, acts, ago};

fn restart(began: i64, over: Option<i64>) -> OrderedRestart {
    OrderedRestart {
        instance: "other".to_owned(),
        attempt_id: "far.1.4".to_owned(),
        action: Rung::RollingMcpRestart,
        at: ago(began),
        over_at: over.map(ago),
    }
}

/// We started `api` 46 s ago; Hangar's process is another one since 20 s.
fn restarted(orders: &[OrderedRestart]) -> Vec<Body> {
    let mut w = World::new(Rung::RollingMcpRestart);
    w.snapshot.others.restarts = orders.to_vec();
    w.snapshot.hangar.process_start = Some(ago(20));
    w.snapshot.hangar.lost_at = Some(ago(25));
    w.plan().steps.into_iter().filter_map(|s| if let Step::Record(body) = s { Some(body) } else { None }).collect()
}

#[test]
fn a_restart_that_another_medic_ordered_is_no_evidence_against_our_start() {
    let held = |orders: &[OrderedRestart]| restarted(orders).iter().any(|body| matches!(body, Body::HoldOrdered { .. }));
    assert!(held(&[]), "we started it, and Hangar went down");
    assert!(!held(&[restart(30, None)]), "under way");
    assert!(!held(&[restart(30, Some(10))]), "over since");
    assert!(!held(&[restart(300, Some(40))]), "over just before: clocks differ");
    assert!(held(&[restart(300, Some(200))]), "over long before");
    assert!(held(&[restart(7200, None)]), "its medic never came back: over when its lock would be");
}

/// The lock was found taken until five minutes from now.
fn waiting() -> World {
    let mut w = World::new(Rung::RollingMcpRestart);
    w.policy.platform.instances = std::num::NonZeroU32::new(2).unwrap();
    w.policy.platform.fleet_lock = true;
    let id = attempt_id(&incident_id("api", ago(60)), 4);
    let opened = json!({
        "kind": "attempt_opened", "attempt_id": id, "incident_id": incident_id("api", ago(60)), "mcp_server": "api",
        "action": "rolling_mcp_restart", "why": "w", "slow_retry": false, "process_start": ago(9000),
    });
    w.record(30, serde_json::from_value(opened).unwrap());
    let evidence = [("lease_held_until".to_owned(), json!(ago(-300)))].into();
    let (receipt, outcome, detail) = (Receipt::Refused, Some(Outcome::NotApplicable), String::new());
    w.record(30, Body::AttemptReceipt { attempt_id: id.clone(), receipt, outcome, detail, evidence });
    w.record(30, Body::AttemptSettled { attempt_id: id, outcome: Outcome::NotApplicable, why: "w".to_owned() });
    w
}

#[test]
fn whoever_waits_for_the_lock_goes_on_when_it_is_given_back_and_not_before() {
    let held = |w: &World| w.plan().standings["api"].hold;
    let mut w = waiting();
    assert_eq!((acts(&w.plan()), held(&w)), (vec![], Some(Hold::LeaseHeld)));
    w.snapshot.others.lock_free_at = Some(ago(31));
    assert_eq!(held(&w), Some(Hold::LeaseHeld), "it was free before we asked");
    w.snapshot.others.lock_free_at = Some(ago(3));
    assert_eq!(acts(&w.plan()), [Rung::RollingMcpRestart]);
}

#[test]
fn a_restart_of_ours_that_another_medic_ordered_is_not_ordered_again_within_the_budget() {
    let mut w = waiting();
    w.snapshot.others.lock_free_at = Some(ago(3));
    // Somebody else's replica, long before our process began.
    w.snapshot.others.restarts = vec![restart(20_000, Some(19_000))];
    assert_eq!(acts(&w.plan()), [Rung::RollingMcpRestart]);
    w.snapshot.others.restarts = vec![restart(29, Some(5))];
    assert_eq!(acts(&w.plan()), [Rung::RollingMcpRestart], "our process is older: it was not restarted");
    w.snapshot.hangar.process_start = Some(ago(20));
    w.record(20, Body::HangarRestarted { process_start: ago(20) });
    let plan = w.plan();
    assert_eq!((acts(&plan), plan.standings["api"].hold), (vec![], Some(Hold::BudgetSpent)));
    w.policy.budgets.rungs.retain(|r| r.action != Rung::RollingMcpRestart);
    w.policy.budgets.starts_window = SignedDuration::from_secs(1);
    assert_eq!(acts(&w.plan()), [Rung::RollingMcpRestart]);
}
