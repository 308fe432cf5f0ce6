//! Scenarios as data: a timeline in, a golden journal out (`scenarios/*.txt`).
//!
//! Above `---` is the timeline, `<seconds> <command> <words>`; below it what the medic did, `<seconds> <server> <what>`:
//! incidents, `>` actions, outcomes, holds when they begin; then how each server and incident ended.
//! `GOLDEN=write` writes what was seen below the line instead of comparing it.

use std::path::Path;

use hangar_medic::policy::{Body, HoldCause, Mode, Policy, Reason, Rung, State, StopReason};
use jiff::SignedDuration;

use super::engine::World;
use super::hangar::{Server, Upstream, secs};

fn seconds(word: &str) -> SignedDuration {
    SignedDuration::from_secs_f64(word.parse().unwrap_or_else(|_| panic!("seconds: {word}")))
}

fn upstream(word: &str) -> Option<Upstream> {
    Some(match word {
        "mend" => Upstream::Works,
        "break" => Upstream::Broken,
        "drift" => Upstream::Drifts,
        "lie" => Upstream::Lies,
        "hang" => Upstream::Hangs,
        "poison" => Upstream::KillsHangar,
        "limit" => Upstream::Limited,
        _ => return None,
    })
}

fn ids<'a>(words: &[&'a str]) -> Vec<&'a str> {
    words.iter().copied().filter(|w| !w.contains('=')).collect()
}

fn option<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().find_map(|w| w.split_once('=').filter(|(k, _)| *k == name)).map(|(_, v)| v)
}

/// Carries out one command of a timeline.
pub fn command(world: &mut World, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (name, rest) = words.split_first().unwrap();
    let now = world.now;
    if let Some(upstream) = upstream(name) {
        for id in ids(rest) {
            let server = world.hangar.servers.get_mut(id).unwrap();
            server.upstream = upstream;
            server.session_lost |= upstream == Upstream::Lies;
        }
        return;
    }
    match *name {
        "server" => add(world, rest),
        "die" => die(world, rest),
        "call" => {
            for id in ids(rest) {
                world.hangar.call(id, now);
            }
        }
        "crash" => {
            for id in ids(rest) {
                world.hangar.crash(id);
            }
        }
        "notice" => notice(world, rest),
        // What REST says of the process, and what the log says of its tools, by themselves.
        "lifeless" => world.hangar.servers.get_mut(rest[0]).unwrap().alive = false,
        "undeclared" => world.hangar.servers.get_mut(rest[0]).unwrap().blocked = true,
        "stick" => {
            let state: State = option(rest, "state").unwrap().parse().unwrap();
            for id in ids(rest) {
                world.hangar.stick(id, state);
            }
        }
        "count" => {
            let reason: StopReason = option(rest, "reason").unwrap().parse().unwrap();
            for id in ids(rest) {
                world.hangar.count_stop(id, reason);
            }
        }
        "revive" => {
            for id in ids(rest) {
                world.hangar.revive(id, now);
            }
        }
        "reads" => world.journal.push(format!("= {} reads so far", world.reads)),
        "edit" => {
            for id in ids(rest) {
                world.hangar.edit(id);
            }
        }
        "remove" => {
            for id in ids(rest) {
                drop(world.hangar.servers.remove(id));
            }
        }
        "evict" => {
            for id in ids(rest) {
                world.hangar.evict(id);
            }
        }
        "stop" => {
            let reason: StopReason = option(rest, "reason").unwrap_or("manual").parse().unwrap();
            for id in ids(rest) {
                world.hangar.stop_on_purpose(id, reason);
            }
        }
        "hangar" => match rest {
            ["down"] => world.hangar.down(now, None),
            ["up"] => world.hangar.back_at = Some(now),
            ["restart", takes] => world.hangar.down(now, Some(now + seconds(takes))),
            ["version", v] => {
                let parts: Vec<u32> = v.split('.').map(|p| p.parse().unwrap()).collect();
                world.hangar.version = (parts[0], parts[1], parts[2]);
            }
            _ => panic!("hangar {rest:?}"),
        },
        "medic" => medic(world, rest),
        "fault" => fault(world, rest),
        "set" => set(world, rest),
        "approve" => {
            for id in ids(rest) {
                world.approve(id, option(rest, "role").unwrap_or("operator"), option(rest, "evidence") == Some("old"));
            }
        }
        "drifts_to" => world.hangar.servers.get_mut(rest[0]).unwrap().undeclared = rest[1..].iter().map(|s| (*s).to_owned()).collect(),
        "pause" | "unpause" | "hold" | "resume" => brake(world, name, rest),
        "clock" => world.step_clock(seconds(rest[0])),
        _ => panic!("no such command: {line}"),
    }
}

/// `server a b [mode=remote] [state=cold] [group=g]`: ready and healthy unless told otherwise.
fn add(world: &mut World, words: &[&str]) {
    let state: State = option(words, "state").unwrap_or("ready").parse().unwrap();
    let mode = match option(words, "mode") {
        Some("remote") => "remote",
        _ => "subprocess",
    };
    for id in ids(words) {
        let mut server = Server::new(mode);
        server.state = state;
        server.group = option(words, "group").map(str::to_owned);
        if state == State::Ready {
            server.alive = true;
            server.gauge = Some(State::Ready);
            server.in_rotation = server.group.is_some();
            server.last_healthy = Some(world.now - secs(5));
            server.started_at = Some(world.now - secs(600));
        }
        world.hangar.servers.insert(id.to_owned(), server);
    }
}

/// `die a reason=given_up [failures=n]`: dead for that reason, with the backoff of so many failures in a row.
fn die(world: &mut World, words: &[&str]) {
    let reason: Reason = option(words, "reason").unwrap().parse().unwrap();
    for id in ids(words) {
        let failures = option(words, "failures").map_or(0, |n| n.parse().unwrap());
        world.hangar.kill(id, reason, failures, world.now);
    }
}

/// The log tells of an end of file: the medic reads these servers at once.
fn notice(world: &mut World, words: &[&str]) {
    for id in ids(words) {
        world.watch.read_server(&world.hangar, id, world.now);
    }
}

fn medic(world: &mut World, words: &[&str]) {
    match words {
        ["kill"] => world.kill_medic(),
        ["start"] => world.start_medic(),
        ["drain"] => world.draining = true,
        _ => panic!("medic {words:?}"),
    }
}

fn fault(world: &mut World, words: &[&str]) {
    let on = words[1] == "on";
    match words[0] {
        "metrics" => world.watch.faults.metrics = on,
        "rest" => world.watch.faults.rest = on,
        "log" => world.watch.faults.no_log = on,
        // What is to be sent is written down, and then nothing happens.
        "send" => world.sends = !on,
        "disk" => world.log_unwritable = on,
        "auth" => world.watch.faults.auth = on,
        "forbidden" => world.watch.faults.forbidden = on,
        other => panic!("fault {other}"),
    }
    // A changed key file is noticed; a permission that is given is not.
    if !on && words[0] != "forbidden" {
        world.watch.forget_refusals();
    }
}

/// `pause all for=60`, `unpause api`, `hold api`, `resume api`: what people ask for.
fn brake(world: &mut World, what: &str, words: &[&str]) {
    for id in ids(words) {
        let (mcp_server, why) = (Some(id.to_owned()).filter(|id| id != "all"), "by a person".to_owned());
        world.record(match what {
            "pause" => {
                let until = world.now + seconds(option(words, "for").unwrap());
                let (principal, role, reason) = ("otto".to_owned(), "operator".to_owned(), "hands off".to_owned());
                Body::Paused { mcp_server, until, principal, role, reason }
            }
            "unpause" => Body::Unpaused { mcp_server, why },
            "hold" => Body::HoldOrdered { mcp_server: id.to_owned(), cause: HoldCause::Person, why },
            _ => Body::HoldReleased { mcp_server: id.to_owned(), why },
        });
    }
}

fn set(world: &mut World, words: &[&str]) {
    let policy: &mut Policy = &mut world.policy;
    match words {
        ["mode", "observe"] => policy.mode = Mode::Observe,
        ["mode", "act"] => policy.mode = Mode::Act,
        ["exhausted_retry", s] => policy.exhausted_retry = seconds(s),
        ["not_seen_healthy_after", s] => policy.not_seen_healthy_after = seconds(s),
        ["starts_per_server", n] => policy.budgets.starts_per_server = n.parse().unwrap(),
        ["actions", n] => policy.budgets.actions = n.parse().unwrap(),
        ["in_flight", n] => policy.budgets.in_flight = n.parse().unwrap(),
        ["without", rung] => {
            let rung: Rung = rung.parse().unwrap();
            policy.rungs.retain(|r| r.action != rung);
        }
        _ => panic!("set {words:?}"),
    }
}

/// Runs a timeline and gives the journal.
pub fn run(timeline: &str) -> World {
    let mut world = World::new(Policy::default());
    let mut elapsed = SignedDuration::ZERO;
    for line in timeline.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let (at, what) = line.split_once(' ').unwrap();
        let at = seconds(at);
        assert!(at >= elapsed, "a timeline goes forwards: {line}");
        if at > elapsed {
            world.run_until(world.zero + at);
        }
        elapsed = at;
        if what.trim() != "end" {
            command(&mut world, what.trim());
        }
        if elapsed > SignedDuration::ZERO && world.medic_up && what.trim() != "end" {
            world.turn();
        }
    }
    finish(&mut world);
    world
}

fn finish(world: &mut World) {
    let servers: Vec<(String, State)> = world.hangar.servers.iter().map(|(id, s)| (id.clone(), s.state)).collect();
    for (id, state) in servers {
        let starts = world.starts.iter().filter(|(_, s)| *s == id).count();
        let mut line = format!("= {id} {state}, {starts} starts of ours");
        if let Some(standing) = world.standings.get(&id) {
            line = format!("{line}, {}", standing.phase);
            if let Some(hold) = standing.hold {
                line = format!("{line} {hold}");
            }
            if let Some(at) = standing.next_retry_at {
                line = format!("{line}, next retry {:.0}", at.duration_since(world.zero).as_secs_f64());
            }
        }
        if let Some(order) = world.history.orders.get(&id) {
            line = format!("{line}, hold order {}", order.cause);
        }
        world.journal.push(line);
    }
}

fn check(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/policy/scenarios").join(format!("{name}.txt"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (timeline, golden) = text.split_once("\n---\n").unwrap_or((text.trim_end(), ""));
    let seen = run(timeline).journal.join("\n");
    if std::env::var_os("GOLDEN").is_some_and(|v| v == "write") {
        std::fs::write(&path, format!("{timeline}\n---\n{seen}\n")).unwrap();
        return;
    }
    assert!(golden.trim() == seen.trim(), "{name}: expected\n{golden}\nseen\n{seen}\n");
}

macro_rules! scenarios {
    ($($name:ident)+) => { $(#[test] fn $name() { check(stringify!($name)); })+ };
}

scenarios! {
    a_blocked_server_is_started_once_when_approved
    an_approval_ends_with_its_time_and_with_its_evidence
    an_approved_start_waits_for_every_other_brake
    a_pause_of_everything_stops_everything_until_its_time
    a_pause_of_one_server_stops_that_one
    a_pause_never_leaves_down_what_we_stopped
    a_server_that_a_person_holds_waits_for_a_person
    a_block_between_stop_and_start_of_our_restart_is_respected
    a_block_told_between_stop_and_start_of_our_restart_forbids
    a_block_told_while_cold_after_a_restart_forbids
    a_blocked_or_held_server_is_no_canary
    a_blocked_server_is_never_started
    a_blocked_server_within_the_flap_window_still_gives_evidence
    a_blocking_rule_is_respected
    a_canary_that_dies_again_proves_nothing
    a_clock_that_steps_back_neither_repeats_nor_hangs
    a_clock_that_steps_back_over_a_cold_server_reads_no_more_than_usual
    a_crash_after_the_second_start_was_sent_never_repeats_it
    a_crash_before_the_stop_was_sent_spends_the_rung
    a_crash_before_the_stop_was_written_down_is_told_by_the_counter
    a_crash_that_only_hangar_notices_is_brought_back
    a_failed_canary_stops_everything
    a_failed_start_is_repaired_after_its_backoff
    a_given_up_counted_as_shutdown_is_no_stop
    a_given_up_server_gets_one_start_after_its_backoff
    a_given_up_server_that_stays_broken_is_exhausted_and_mended_later
    a_group_with_nothing_to_select_is_left_to_hangar_once
    a_hanging_upstream_is_waited_for
    a_killed_process_is_brought_back
    a_late_word_of_a_block_forbids
    a_permission_given_later_ends_the_hold
    a_medic_killed_during_a_failing_start_does_not_start_again_at_once
    a_medic_killed_during_a_start_settles_what_it_sees
    a_member_that_stays_out_is_rebalanced
    a_process_that_is_there_after_all_was_a_false_alarm
    a_ready_server_that_does_nothing_needs_a_worker_restart
    a_reason_that_nobody_tells_is_held
    a_removed_server_cancels
    a_second_failed_start_is_repaired_by_the_second_start
    a_second_half_waits_out_observe_mode
    a_server_last_seen_dead_long_before_a_restart_is_idle
    a_server_lost_in_a_restart_is_brought_back
    a_shutdown_between_stop_and_start_of_our_restart_is_respected
    a_spent_budget_holds
    a_spent_budget_of_all_servers_holds
    a_start_that_takes_hangar_down_is_made_once
    a_stop_after_a_restart_of_ours_that_never_was_is_respected
    a_stop_and_a_start_by_a_person_release_the_order
    a_stop_while_rest_cannot_be_read_is_respected
    a_stopped_server_that_dies_is_held
    a_third_failure_leaves_it_to_hangar
    a_user_who_comes_between_our_look_and_our_start_earns_the_credit
    a_user_who_comes_first_earns_the_credit
    a_users_call_in_the_pause_between_two_starts_heals
    a_wrong_key_is_tried_no_more
    an_answer_of_200_is_no_recovery
    an_edited_definition_is_read_once
    an_idle_server_that_goes_cold_is_left_alone
    an_operators_stop_is_respected_through_restarts
    an_unwritable_log_holds
    an_upstream_that_lies_for_long_needs_nobody_once_mended
    dead_again_after_a_restart_and_then_cold_is_no_loss
    dead_again_soon_climbs_from_the_next_rung
    degraded_and_initializing_within_their_bounds_open_nothing
    degraded_past_its_bound_needs_a_worker_restart
    draining_holds_paused
    draining_leaves_the_second_half_to_the_next_medic
    exhausted_once_given_up_again_gets_its_one_start
    hangar_down_for_half_a_minute_changes_nothing
    hangar_is_left_alone_while_it_retries
    initializing_past_its_bound_needs_a_worker_restart
    left_cold_by_us_is_started_after_all
    liveness_says_nothing_of_a_remote_server
    neighbours_wait_for_each_other
    never_retried_slowly_where_the_period_is_zero
    no_more_are_under_way_at_once_than_allowed
    no_permission_to_read_holds
    observe_mode_says_what_it_would_do
    one_failing_poll_changes_nothing
    only_the_dead_member_of_a_group_is_touched
    reaped_as_idle_within_the_settle_window_is_a_recovery
    rest_that_cannot_be_read_holds_still
    several_restarts_of_hangar_in_a_row
    the_next_medic_does_the_second_half
    took_hangar_down_is_released_by_nobody_but_a_person
    twenty_deaths_release_after_the_canary
    what_was_only_observed_is_done_once_acting_is_allowed
    without_its_rung_there_is_no_slow_retry
}
