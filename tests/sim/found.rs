//! What the simulation once found, as small worlds of their own.

mod broad;

use hangar_medic::policy::{Policy, Reason, State, StopReason};

use super::hangar::Upstream;
use super::plan::{Blow, Plan};
use super::world::{End, live};

const MINUTE: i64 = 60_000;

/// Servers s0 to s`n`-1, all ready, with Hangar's log; nothing befalls them but this.
fn world(n: usize, blows: Vec<(i64, Blow)>) -> Plan {
    let servers = (0..n).map(|k| (format!("s{k}"), "subprocess", None, true)).collect();
    let mended = blows.iter().map(|(at, _)| *at).max().unwrap_or(0) + 1_000;
    let policy = Policy::default();
    let (version, poll) = ((2, 34, 4), 5_000);
    Plan {
        seed: 1,
        version,
        servers,
        policy,
        poll,
        reads_log: true,
        hears_events: false,
        asks_alertmanager: false,
        windows: Vec::new(),
        tended: false,
        broad: false,
        peer: None,
        blows,
        mended,
    }
}

fn id(n: usize) -> String {
    format!("s{n}")
}

fn well(plan: Plan) -> End {
    let end = live(plan, None);
    assert_eq!(end.violation, None, "{}", end.timeline.join("\n"));
    end
}

#[test]
fn after_a_full_disk_the_slow_retries_go_on() {
    let end = well(world(
        3,
        vec![
            (MINUTE, Blow::Upstream(id(1), Upstream::Broken)),
            (MINUTE + 1, Blow::Kill(id(1), Reason::GivenUp, 4)),
            (10 * MINUTE, Blow::DiskFull(true)),
            (25 * MINUTE, Blow::Upstream(id(1), Upstream::Works)),
            (40 * MINUTE, Blow::DiskFull(false)),
        ],
    ));
    assert!(end.healed_after_ms < 5 * MINUTE, "{} ms after the disk had room again", end.healed_after_ms);
}

#[test]
fn a_clock_that_steps_makes_nobody_ill() {
    for by in [900_000, 3_600_000, 40_000, -3_600_000, -900_000] {
        let end = well(world(4, vec![(5 * MINUTE, Blow::Step(by)), (30 * MINUTE, Blow::Noise)]));
        assert_eq!(end.incidents, 0, "{by} ms\n{}", end.timeline.join("\n"));
    }
}

#[test]
fn a_clock_that_steps_while_the_medic_is_down_makes_nobody_ill() {
    for by in [900_000, 3_600_000, -3_600_000] {
        let end = well(world(4, vec![(5 * MINUTE, Blow::MedicKill), (5 * MINUTE + 100, Blow::Step(by)), (30 * MINUTE, Blow::Noise)]));
        assert_eq!(end.incidents, 0, "{by} ms\n{}", end.timeline.join("\n"));
    }
}

#[test]
fn a_reason_is_still_told_by_the_log_after_the_clock_went_back() {
    let mut plan = world(3, vec![(MINUTE, Blow::Step(-3_600_000)), (2 * MINUTE, Blow::Kill(id(1), Reason::GivenUp, 4))]);
    plan.version = (2, 20, 0);
    assert_eq!(well(plan).acts, 1);
}

#[test]
fn a_death_at_any_edge_of_a_restart_is_no_stop_of_somebody_elses() {
    for edges in 1..40 {
        let end = well(world(
            2,
            vec![
                (MINUTE, Blow::Stick(id(1), State::Degraded)),
                // It is degraded for too long after five minutes.
                (6 * MINUTE, Blow::MedicCrash(edges)),
                (7 * MINUTE, Blow::Noise),
            ],
        ));
        assert!(end.acts >= 1, "{edges} edges\n{}", end.timeline.join("\n"));
    }
}

#[test]
fn a_death_at_any_edge_of_a_climb_loses_and_repeats_nothing() {
    for edges in 1..40 {
        well(world(
            2,
            vec![(MINUTE - 1, Blow::MedicCrash(edges)), (MINUTE, Blow::Kill(id(1), Reason::Crashed, 0)), (3 * MINUTE, Blow::Noise)],
        ));
    }
}

#[test]
fn a_canary_that_hangs_keeps_its_place() {
    let mut blows = Vec::new();
    for n in 1..10 {
        blows.push((MINUTE, Blow::Upstream(id(n), Upstream::Hangs)));
        blows.push((MINUTE + 5, Blow::Kill(id(n), Reason::Crashed, 0)));
        blows.push((4 * MINUTE, Blow::Upstream(id(n), Upstream::Works)));
    }
    well(world(10, blows));
}

#[test]
fn what_comes_up_between_two_reads_is_not_stopped() {
    for after in 0..60 {
        well(world(
            2,
            vec![
                (MINUTE, Blow::Upstream(id(1), Upstream::Broken)),
                (MINUTE + 1, Blow::Kill(id(1), Reason::GivenUp, 4)),
                (2 * MINUTE, Blow::Upstream(id(1), Upstream::Works)),
                // The slow retry is due 15 min after the exhaustion: a user's start comes just before or after.
                (16 * MINUTE + 15_000 + after * 97, Blow::Call(id(1))),
                (20 * MINUTE, Blow::Noise),
            ],
        ));
    }
}

#[test]
fn a_stop_is_respected_whenever_the_medic_dies_around_it() {
    for edges in 1..20 {
        let end = well(world(
            2,
            vec![
                (MINUTE, Blow::Upstream(id(1), Upstream::Broken)),
                (MINUTE + 1, Blow::Kill(id(1), Reason::GivenUp, 4)),
                (2 * MINUTE, Blow::MedicCrash(edges)),
                (2 * MINUTE + 10, Blow::Stop(id(1), StopReason::UserRequest)),
                (3 * MINUTE, Blow::Noise),
            ],
        ));
        assert!(end.acts <= 2, "{}", end.timeline.join("\n"));
    }
}

#[test]
fn a_stop_that_was_seen_right_before_hangar_went_down_is_respected() {
    for after in 0..40 {
        // Hangar shows the state at once and counts the stop a little later: what it was for is then lost with the process.
        let stop = 2 * MINUTE + after * 131;
        well(world(
            2,
            vec![
                (MINUTE, Blow::Upstream(id(1), Upstream::Broken)),
                (MINUTE + 1, Blow::Kill(id(1), Reason::GivenUp, 7)),
                (stop, Blow::Stop(id(1), StopReason::DetectionBlock)),
                (stop + 200, Blow::HangarDown(5_000)),
                (5 * MINUTE, Blow::Upstream(id(1), Upstream::Works)),
            ],
        ));
    }
}

#[test]
fn what_a_crash_left_unseen_of_a_blocked_server_is_looked_at_again_for_the_person_who_approves() {
    for edges in 1..16 {
        let mut plan = world(
            2,
            vec![
                (MINUTE, Blow::Upstream(id(1), Upstream::Drifts)),
                (MINUTE + 1, Blow::Crash(id(1))),
                (MINUTE + 100, Blow::MedicCrash(edges)),
                (MINUTE + 200, Blow::Call(id(1))),
                (2 * MINUTE, Blow::Upstream(id(1), Upstream::Works)),
            ],
        );
        (plan.reads_log, plan.hears_events, plan.tended) = (false, true, true);
        well(plan);
    }
}

#[test]
fn the_next_storm_has_a_canary_of_its_own_while_one_of_the_last_is_held() {
    let mut blows = vec![(MINUTE - 1, Blow::Hold(id(9)))];
    for at in [MINUTE, 30 * MINUTE] {
        for n in 1..10 {
            blows.push((at, Blow::Kill(id(n), Reason::Crashed, 0)));
        }
    }
    well(world(10, blows));
}

/// Seed 20188: after a restart each reads cold, and more than a few are read as one list.
#[test]
fn many_that_a_restart_lost_are_all_read_again() {
    let lost = |n: usize| {
        let at = 10 * MINUTE + i64::try_from(n).unwrap();
        let (broken, works) = (Blow::Upstream(id(n), Upstream::Broken), Blow::Upstream(id(n), Upstream::Works));
        [(at, broken), (at, Blow::Kill(id(n), Reason::GivenUp, 4)), (20 * MINUTE, works)]
    };
    let mut blows: Vec<_> = (0..20).flat_map(lost).collect();
    blows.push((10 * MINUTE + 20_000, Blow::HangarDown(40_000)));
    blows.sort_by_key(|(at, _)| *at);
    well(world(24, blows));
}
