use std::num::NonZeroU32;

use super::*;
use crate::policy::limits::StormLimits;

fn at(second: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
}

fn opened(times: &[(i64, &str)]) -> History {
    let entry = |(n, (second, server)): (usize, &(i64, &str))| OpenedAt {
        at: at(*second),
        mcp_server: (*server).to_owned(),
        incident_id: format!("{server}.{n}"),
        recovered: false,
    };
    History { opened: times.iter().enumerate().map(entry).collect(), ..History::default() }
}

#[track_caller]
fn members(servers: u32, share: f64, known: usize, times: &[(i64, &str)], expected: &[&str]) {
    let storm = StormLimits { servers: NonZeroU32::new(servers).unwrap(), share, window: SignedDuration::from_secs(60) };
    let policy = Policy { storm, ..Policy::default() };
    let found = storms(&policy, &opened(times), known);
    assert_eq!(found.iter().flatten().map(String::as_str).collect::<Vec<_>>(), expected);
}

#[test]
fn what_came_after_a_storm_is_another_storm() {
    let storm = StormLimits { servers: NonZeroU32::new(2).unwrap(), share: 0.0, window: SignedDuration::from_secs(60) };
    let policy = Policy { storm, ..Policy::default() };
    let found = |times: &[(i64, &str)]| storms(&policy, &opened(times), 9).iter().map(BTreeSet::len).collect::<Vec<_>>();
    assert_eq!(found(&[(0, "a"), (10, "b"), (60, "c")]), [3]);
    assert_eq!(found(&[(0, "a"), (10, "b"), (200, "c"), (210, "d"), (211, "e")]), [2, 3]);
    // One that died in between belongs to none, and links none.
    assert_eq!(found(&[(0, "a"), (10, "b"), (100, "x"), (200, "c"), (210, "d")]), [2, 2]);
}

#[test]
fn a_storm_is_enough_servers_within_one_window() {
    members(3, 0.0, 10, &[], &[]);
    members(3, 0.0, 10, &[(0, "a"), (30, "b"), (60, "c")], &["a.0", "b.1", "c.2"]);
    members(3, 0.0, 10, &[(0, "a"), (30, "b"), (61, "c")], &[]);
    // The windows overlap: whoever is in any of them belongs to it.
    members(3, 0.0, 10, &[(0, "a"), (30, "b"), (60, "c"), (90, "d"), (200, "e")], &["a.0", "b.1", "c.2", "d.3"]);
    // What came before, out of every full window, does not.
    members(3, 0.0, 10, &[(0, "a"), (100, "b"), (110, "c"), (120, "d")], &["b.1", "c.2", "d.3"]);
}

#[test]
fn one_server_that_dies_again_and_again_is_no_storm() {
    members(3, 0.0, 10, &[(0, "a"), (1, "a"), (2, "a"), (3, "b")], &[]);
    members(3, 0.0, 10, &[(0, "a"), (1, "a"), (2, "b"), (3, "c")], &["a.0", "a.1", "b.2", "c.3"]);
    // The first death of `a` leaves the window, its second stays.
    members(3, 0.0, 10, &[(0, "a"), (50, "a"), (70, "b"), (80, "c")], &["a.1", "b.2", "c.3"]);
}

#[test]
fn a_storm_is_also_a_share_of_the_known_servers() {
    let three = [(0, "a"), (0, "b"), (0, "c")];
    members(3, 0.3, 10, &three, &["a.0", "b.1", "c.2"]);
    members(3, 0.3, 11, &three, &[]);
    members(3, 1.0, 3, &three, &["a.0", "b.1", "c.2"]);
    members(3, f64::NAN, 11, &three, &["a.0", "b.1", "c.2"]);
    members(3, 7.0, 4, &three, &[]);
}

#[test]
fn a_clock_that_steps_back_splits_no_storm() {
    members(3, 0.0, 10, &[(100, "a"), (40, "b"), (41, "c")], &["a.0", "b.1", "c.2"]);
}

fn acted(times: &[(i64, Option<i64>, &str)]) -> History {
    let entry = |&(begun, ended, server): &(i64, Option<i64>, &str)| crate::policy::Acted {
        action: Rung::SessionReconnect,
        at: at(begun),
        ended_at: ended.map(at),
        process_start: None,
        mcp_server: server.to_owned(),
        attempt_id: String::new(),
    };
    History { acted: times.iter().map(entry).collect(), ..History::default() }
}

#[track_caller]
fn budget(times: &[(i64, Option<i64>, &str)], now: i64, expected: Option<i64>) {
    let mut policy = Policy::default();
    policy.budgets.starts_per_server = NonZeroU32::new(2).unwrap();
    policy.budgets.actions = NonZeroU32::new(3).unwrap();
    let history = acted(times);
    let braked = Budgets::count(&policy, &Snapshot::default(), &history, at(now)).check(&policy, "a", Rung::SessionReconnect);
    let until = braked.map(|b| {
        assert_eq!(b.hold, Hold::BudgetSpent);
        b.until.unwrap()
    });
    assert_eq!(until, expected.map(at));
}

#[test]
fn a_start_counts_until_its_window_is_over() {
    let two = [(0, Some(1), "a"), (100, Some(101), "a")];
    budget(&two[..1], 200, None);
    budget(&two, 200, Some(3601));
    budget(&two, 3600, Some(3601));
    budget(&two, 3601, None);
    budget(&[(0, Some(1), "b"), (100, Some(101), "b")], 200, None);
}

#[test]
fn an_action_under_way_counts_as_of_now_and_so_does_one_from_the_future() {
    budget(&[(0, None, "a"), (0, None, "a")], 100_000, Some(103_600));
    budget(&[(500, Some(501), "a"), (500, Some(501), "a")], 100, Some(4101));
}

#[test]
fn all_servers_share_one_budget() {
    let three = [(0, Some(0), "b"), (10, Some(10), "c"), (20, Some(20), "d")];
    budget(&three, 30, Some(600));
    budget(&three, 600, None);
}

#[test]
fn what_one_plan_books_counts_at_once() {
    let mut policy = Policy::default();
    policy.budgets.in_flight = NonZeroU32::new(2).unwrap();
    policy.budgets.actions = NonZeroU32::new(1).unwrap();
    let history = History::default();
    let mut budgets = Budgets::count(&policy, &Snapshot::default(), &history, at(0));
    budgets.book("a", Rung::SessionReconnect, at(0));
    assert_eq!(budgets.check(&policy, "b", Rung::CapabilityRefresh), None);
    assert_eq!(budgets.check(&policy, "b", Rung::SessionReconnect).unwrap().until, Some(at(600)));
    budgets.book("b", Rung::CapabilityRefresh, at(0));
    assert_eq!(budgets.check(&policy, "c", Rung::CapabilityRefresh).unwrap().until, None);
}

/// What happened to one of five servers that died at once: each word is a record.
fn storm(stories: &[(&str, &str)]) -> (Policy, History) {
    let mut policy = Policy::default();
    policy.storm.servers = NonZeroU32::new(3).unwrap();
    let (mut history, mut seq) = (History::default(), 0);
    let mut apply = |history: &mut History, body: serde_json::Value| {
        seq += 1;
        let body = serde_json::from_value(body).unwrap();
        history.apply(&crate::policy::Record {
            instance: "h".to_owned(),
            seq,
            at: at(10),
            actor: "t".to_owned(),
            body,
            prev_hash: String::new(),
            hash: String::new(),
        });
    };
    for (id, _) in stories {
        apply(
            &mut history,
            serde_json::json!({"kind": "incident_opened", "incident_id": format!("{id}.1"), "mcp_server": id, "symptom": "server_crashed",
                "reason": "crashed", "since": at(9), "stops": {}, "process_start": null}),
        );
    }
    for (id, story) in stories {
        let mut n = 0;
        for word in story.split(' ').filter(|w| !w.is_empty()) {
            let attempt = |n: i32| format!("{id}.1.{n}");
            let begun = |n: i32, action: &str| {
                serde_json::json!({"kind": "attempt_opened", "attempt_id": attempt(n), "incident_id": format!("{id}.1"), "mcp_server": id,
                    "action": action, "why": "w", "slow_retry": false})
            };
            let body = match word {
                "look" => {
                    n += 1;
                    begun(n, "client_reconnect")
                }
                "start" => {
                    n += 1;
                    begun(n, "session_reconnect")
                }
                "exhausted" => serde_json::json!({"kind": "exhausted", "incident_id": format!("{id}.1")}),
                "closed" => {
                    serde_json::json!({"kind": "incident_closed", "incident_id": format!("{id}.1"), "how": "recovered", "why": "w"})
                }
                outcome => serde_json::json!({"kind": "attempt_settled", "attempt_id": attempt(n), "outcome": outcome, "why": "w"}),
            };
            apply(&mut history, body);
        }
    }
    (policy, history)
}

#[track_caller]
fn goes_first(stories: &[(&str, &str)], expected: &[&str], failed: bool) {
    let (policy, history) = storm(stories);
    let judged = Storm::judge(&policy, &history, stories.len(), &|_| true);
    assert_eq!(judged.allowed.iter().map(|id| id.trim_end_matches(".1")).collect::<Vec<_>>(), expected, "{stories:?}");
    assert_eq!(judged.canary_failed(), failed, "{stories:?}");
}

#[test]
fn the_canary_is_who_was_acted_on_and_looking_takes_its_place_from_nobody() {
    goes_first(&[("a", ""), ("b", ""), ("c", ""), ("d", "")], &["a"], false);
    goes_first(&[("a", ""), ("b", "look"), ("c", ""), ("d", "")], &["b"], false);
    goes_first(&[("a", "look insufficient"), ("b", "look insufficient start failed"), ("c", ""), ("d", "")], &["b"], false);
    goes_first(&[("a", "look"), ("b", "look insufficient start failed"), ("c", ""), ("d", "")], &["b"], false);
    goes_first(&[("a", "start failed"), ("b", "start"), ("c", ""), ("d", "")], &["b"], false);
    // What did not apply was no act.
    goes_first(&[("a", "look insufficient"), ("b", "start not_applicable"), ("c", ""), ("d", "")], &["a"], false);
    // Two were proved: two go on.
    let proved = "look insufficient start recovered closed";
    goes_first(&[("a", proved), ("b", proved), ("c", ""), ("d", ""), ("e", "")], &["c", "d"], false);
    goes_first(&[("a", proved), ("b", "start failed exhausted"), ("c", ""), ("d", "")], &["b", "c"], false);
    goes_first(&[("a", "start failed exhausted"), ("b", ""), ("c", ""), ("d", "")], &["a"], true);
    goes_first(&[("a", "look insufficient exhausted"), ("b", ""), ("c", ""), ("d", "")], &["a", "b"], false);
}
