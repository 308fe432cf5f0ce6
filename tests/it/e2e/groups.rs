//! Many servers at once, and servers of one group.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::playbook::api::{OPERATOR, principals};
use crate::support::world::{Unwatched, World};
use crate::support::{V2_34, http, rest};

fn time(value: &serde_json::Value) -> Timestamp {
    value.as_str().and_then(|t| t.parse().ok()).unwrap_or_else(|| panic!("a time, not {value}"))
}

/// What Hangar itself says of its rate limiter: between when and when it was asked, commands let through, commands refused.
type Sample = (Instant, Instant, f64, f64);

/// Hangar's own count, taken four times a second.
struct Bucket {
    samples: Arc<Mutex<Vec<Sample>>>,
    done: Arc<AtomicBool>,
}

impl Bucket {
    fn watch(hangar: u16) -> Self {
        let (samples, done) = (Arc::<Mutex<Vec<Sample>>>::default(), Arc::<AtomicBool>::default());
        let (taken, end) = (Arc::clone(&samples), Arc::clone(&done));
        std::thread::spawn(move || {
            while !end.load(Ordering::SeqCst) {
                let asked = Instant::now();
                let metrics = http::get(hangar, "/metrics", None).body;
                let hits = |result| http::sample(&metrics, &format!("mcp_hangar_rate_limit_hits_total{{result=\"{result}\"}}"));
                if let Some(allowed) = hits("allowed") {
                    taken.lock().unwrap().push((asked, Instant::now(), allowed, hits("rejected").unwrap_or(0.0)));
                }
                rest(0.25);
            }
        });
        Self { samples, done }
    }

    fn samples(self) -> Vec<Sample> {
        self.done.store(true, Ordering::SeqCst);
        self.samples.lock().unwrap().clone()
    }
}

/// Nobody else sends commands here, so all that Hangar counts is ours. Its bucket gains 10 a second: 2 are a fifth. One more
/// where the window begins, and one that was late on its way.
fn a_fifth_at_most(w: &World, samples: &[Sample]) {
    let (first, last) = (samples.first().unwrap(), samples.last().unwrap());
    w.must("it counted our starts", samples.len() > 10 && last.2 - first.2 >= 20.0);
    w.must("nobody was refused", last.3 - first.3 == 0.0);
    for (i, from) in samples.iter().enumerate() {
        for to in &samples[i + 1..] {
            let (taken, seconds) = (to.2 - from.2, to.1.duration_since(from.0).as_secs_f64());
            w.must(&format!("{taken} commands in {seconds:.1} s are a fifth at most"), taken <= 2.0 * seconds + 2.0);
        }
    }
}

#[test]
fn of_twenty_servers_that_die_at_once_one_canary_goes_first() {
    let names: Vec<String> = (0..20).map(|n| format!("s{n:02}")).collect();
    let ids: Vec<&str> = names.iter().map(String::as_str).collect();
    let w = Unwatched::start(V2_34, |h| ids.iter().fold(h.with_its_own_rate_limit(), |h, id| h.server(id, "ok", &json!({}))));
    w.hangar.bring_up(&ids);
    let w = w.watch(&json!({"policy": {"neighbour_wait": "1s"}}));
    let bucket = Bucket::watch(w.hangar.port);
    for id in &ids {
        w.hangar.kill_child(id);
    }
    w.wait("all twenty are recovered", 150, |w| {
        let incidents = w.medic.incidents(None);
        incidents.len() >= 20 && incidents.iter().all(|i| i["phase"] == "closed")
    });

    a_fifth_at_most(&w, &bucket.samples());

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
    let tokens = principals(&w.dir().join("tokens"));
    let w = w.watch(&json!({"web": {"principals": tokens}}));
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

    // A person at work on the group pauses it; to hold it would hold nothing, and is refused.
    let held = w.medic.post_as(OPERATOR, "/api/v1/servers/grp/hold", &json!({"reason": "r"}));
    assert_eq!((held.status, held.code().as_str()), (409, "is_a_group"), "{held:?}");
    assert_eq!(w.medic.post_as(OPERATOR, "/api/v1/pause", &json!({"mcp_server": "grp", "duration": "1h", "reason": "r"})).status, 200);
    let mark = w.proxy.mark();
    w.hangar.kill_child("m3");
    w.wait_held("m3", "paused", 30);
    rest(1.0);
    w.nothing_sent_since(mark);
    assert_eq!(w.medic.post_as(OPERATOR, "/api/v1/resume", &json!({"mcp_server": "grp", "reason": "done"})).status, 200);
    w.wait_closed("m3", "recovered", 30);
}
