use std::collections::BTreeMap;

use jiff::SignedDuration;

use super::*;
use crate::policy::{Body, History, Receipt, Record, Symptom};

fn at(minute: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minute)
}

/// An incident exhausted at minute 0, with slow retries that ended at these minutes.
fn exhausted(reason: Reason, inherited: u32, ended: &[i64]) -> History {
    let id = "api.0".to_owned();
    let opened = Body::IncidentOpened {
        incident_id: id.clone(),
        mcp_server: "api".to_owned(),
        symptom: Symptom::of_dead(reason),
        reason,
        provenance: None,
        since: at(0),
        reopens: None,
        floor_rank: 0,
        slow_retries: inherited,
        stops: BTreeMap::new(),
        process_start: None,
        group: None,
    };
    let mut bodies = vec![(0, opened), (0, Body::Exhausted { incident_id: id.clone() })];
    for (n, minute) in ended.iter().enumerate() {
        let attempt_id = format!("api.0.{}", n + 1);
        let (detail, evidence) = (String::new(), BTreeMap::new());
        bodies.extend([
            (
                *minute,
                Body::AttemptOpened {
                    attempt_id: attempt_id.clone(),
                    incident_id: id.clone(),
                    mcp_server: "api".to_owned(),
                    action: Rung::SessionReconnect,
                    why: String::new(),
                    slow_retry: true,
                    process_start: None,
                },
            ),
            (*minute, Body::AttemptReceipt { attempt_id: attempt_id.clone(), receipt: Receipt::Refused, outcome: None, detail, evidence }),
            (*minute, Body::AttemptSettled { attempt_id, outcome: Outcome::Failed, why: String::new() }),
        ]);
    }
    let mut history = History::default();
    for (seq, (minute, body)) in (1..).zip(bodies) {
        let instance = "hangar".to_owned();
        history.apply(&Record { instance, seq, at: at(minute), actor: String::new(), body, prev_hash: String::new(), hash: String::new() });
    }
    history
}

#[track_caller]
fn next(policy: &Policy, history: &History, expected: Option<i64>) {
    assert_eq!(next_slow_retry(policy, &history.open["api"]), expected.map(at));
}

#[test]
fn slow_retries_double_up_to_their_bound() {
    let policy = Policy::default();
    next(&policy, &exhausted(Reason::GivenUp, 0, &[]), Some(15));
    next(&policy, &exhausted(Reason::GivenUp, 0, &[15]), Some(45));
    next(&policy, &exhausted(Reason::GivenUp, 0, &[15, 45]), Some(105));
    next(&policy, &exhausted(Reason::GivenUp, 0, &[15, 45, 105]), Some(165));
    next(&policy, &exhausted(Reason::GivenUp, 1, &[]), Some(30));
    next(&policy, &exhausted(Reason::GivenUp, u32::MAX, &[15]), Some(75));
}

#[test]
fn a_bound_below_the_first_period_shortens_nothing() {
    let hours = Policy { exhausted_retry: SignedDuration::from_hours(3), ..Policy::default() };
    next(&hours, &exhausted(Reason::GivenUp, 5, &[]), Some(180));
    let for_ever = Policy { exhausted_retry: SignedDuration::MAX, ..Policy::default() };
    assert_eq!(next_slow_retry(&for_ever, &exhausted(Reason::GivenUp, 5, &[]).open["api"]), Some(Timestamp::MAX));
}

#[test]
fn neither_a_blocked_server_nor_a_zero_period_is_retried() {
    next(&Policy::default(), &exhausted(Reason::CapabilityBlocked, 0, &[]), None);
    let never = Policy { exhausted_retry: SignedDuration::ZERO, ..Policy::default() };
    next(&never, &exhausted(Reason::GivenUp, 0, &[]), None);
}
