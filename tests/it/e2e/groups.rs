//! Many servers at once, and servers of one group.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::support::V2_34;
use crate::support::world::Unwatched;

fn time(value: &serde_json::Value) -> Timestamp {
    value.as_str().and_then(|t| t.parse().ok()).unwrap_or_else(|| panic!("a time, not {value}"))
}

#[test]
fn of_twenty_servers_that_die_at_once_one_canary_goes_first() {
    let names: Vec<String> = (0..20).map(|n| format!("s{n:02}")).collect();
    let ids: Vec<&str> = names.iter().map(String::as_str).collect();
    let w = Unwatched::start(V2_34, |h| ids.iter().fold(h, |h, id| h.server(id, "ok", &json!({}))));
    w.hangar.bring_up(&ids);
    let w = w.watch(&json!({"policy": {"neighbour_wait": "1s"}}));
    for id in &ids {
        w.hangar.kill_child(id);
    }
    w.wait("all twenty are recovered", 150, |w| {
        let incidents = w.medic.incidents(None);
        incidents.len() >= 20 && incidents.iter().all(|i| i["phase"] == "closed")
    });

    let mut starts: Vec<_> = w.proxy.seen().into_iter().filter(|s| s.path.ends_with("/start")).collect();
    starts.sort_by_key(|s| s.at);
    let canary = starts[0].path.split('/').nth(3).unwrap().to_owned();
    let settled = time(&w.medic.attempts(&canary).last().unwrap()["settled_at"]);
    w.must("the second start comes after the canary is proved", starts[1].at >= settled);
    assert_eq!(w.medic.incident(&canary)["how"], "recovered");
    w.must("each is started once", starts.len() == 20 && ids.iter().all(|id| w.hangar.starts(id) == 2));
    let too_fast = starts.windows(4).any(|s| s[3].at.duration_since(s[0].at) < SignedDuration::from_millis(900));
    w.must("no more than two starts a second", !too_fast);
}

#[test]
fn of_a_group_only_the_dead_members_are_touched() {
    let w = Unwatched::start(V2_34, |h| h.group("grp", &["m1", "m2", "m3"]));
    w.hangar.bring_up(&["m1", "m2", "m3"]);
    let w = w.watch(&json!({}));
    w.hangar.kill_child("m1");
    w.hangar.kill_child("m2");
    for member in ["m1", "m2"] {
        w.wait(&format!("{member} is back"), 60, |w| w.medic.incident(member)["phase"] == "closed" && w.hangar.state(member) == "ready");
    }
    w.must("the group still answers", (0..3).all(|_| w.hangar.call("grp")));
    let acted = w.proxy.acted_since(0);
    w.must("only starts of the dead", acted.iter().all(|s| s.is("start", "m1") || s.is("start", "m2")));
    assert_eq!(["m1", "m2", "m3"].map(|m| w.hangar.starts(m)), [2, 2, 1]);
    assert_eq!(w.medic.incidents(Some("m3")).len(), 0);
    let group = w.hangar.get("/api/groups/grp").json();
    assert_eq!(group["healthy_count"], 3, "{group}");
}
