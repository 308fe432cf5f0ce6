//! The same, of what the platform does for the medic.

use hangar_medic::policy::{Reason, Rung, StopReason};

use super::super::fleet::Mood;
use super::super::hangar::Upstream;
use super::super::plan::{Blow, Plan};
use super::{MINUTE, id, well, world};

/// s1 is given up and needs another process of Hangar's: the medic has it restarted about half a minute later.
fn restarting(n: usize, more: Vec<(i64, Blow)>) -> Plan {
    let mut blows = vec![(MINUTE, Blow::Upstream(id(1), Upstream::NeedsHangar)), (MINUTE + 1, Blow::Kill(id(1), Reason::GivenUp, 4))];
    blows.extend(more);
    // Until then nothing else mends it.
    blows.push((20 * MINUTE, Blow::Noise));
    blows.sort_by_key(|(at, _)| *at);
    let mut plan = world(n, blows);
    plan.allow([Rung::FullMcpRestart].into());
    plan
}

#[test]
fn what_was_ready_before_a_restart_is_ready_after_it() {
    let end = well(restarting(8, vec![(5 * MINUTE, Blow::Noise)]));
    assert!(end.timeline.iter().any(|line| line.contains("the platform: full_mcp_restart")), "{}", end.timeline.join("\n"));
}

#[test]
fn who_is_stopped_or_held_while_the_fleet_is_brought_back_stays_down() {
    for second in 0..40 {
        let at = MINUTE + 20_000 + second * 700;
        well(restarting(12, vec![(at, Blow::Stop(id(9), StopReason::UserRequest)), (at, Blow::Hold(id(8)))]));
    }
}

#[test]
fn a_death_at_any_edge_of_a_restart_loses_and_repeats_nothing() {
    for edges in 1..70 {
        well(restarting(4, vec![(MINUTE + 20_000, Blow::MedicCrash(edges)), (5 * MINUTE, Blow::Noise)]));
    }
}

#[test]
fn a_medic_that_goes_down_with_what_it_restarts_brings_all_back() {
    for mood in [Mood::Works, Mood::Mute, Mood::FailsAfter, Mood::Late(30_000)] {
        well(restarting(6, vec![(1, Blow::Mood(mood, true)), (15 * MINUTE, Blow::Noise)]));
    }
}

#[test]
fn two_that_need_a_restart_at_once_get_one() {
    let more = vec![(MINUTE + 2, Blow::Upstream(id(2), Upstream::NeedsHangar)), (MINUTE + 3, Blow::Kill(id(2), Reason::GivenUp, 4))];
    let end = well(restarting(9, more));
    let orders = end.timeline.iter().filter(|line| line.contains("-> the platform")).count();
    assert_eq!(orders, 1, "{}", end.timeline.join("\n"));
}

#[test]
fn where_a_restart_is_not_permitted_or_needs_the_storms_end_the_slow_retries_go_on() {
    let broken = |n: usize, at| vec![(at, Blow::Upstream(id(n), Upstream::Broken)), (at + 1, Blow::Kill(id(n), Reason::GivenUp, 4))];
    let mended = |n: usize| (25 * MINUTE, Blow::Upstream(id(n), Upstream::Works));
    let one: Vec<_> = broken(1, MINUTE).into_iter().chain([mended(1)]).collect();
    let mut plan = world(3, one);
    plan.allow([Rung::FullMcpRestart].into());
    plan.policy.matrix = hangar_medic::policy::Matrix::default();
    well(plan);
    let mut many: Vec<_> = (1..9).flat_map(|n| broken(n, MINUTE)).collect();
    many.extend((1..9).map(mended));
    let mut plan = world(10, many);
    plan.allow([Rung::FullMcpRestart].into());
    well(plan);
}
