//! From SIGKILL to ready, with Hangar's health check at its default of 60 s. Run with nothing beside it (.config/nextest.toml).
//!
//! What else the machine does is measured along: a start that a user asks for himself, at the same moments, at a Hangar of
//! his own. On an idle machine that takes some 0.1 s, and the bound is the half second.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::medic::merge;
use crate::support::world::Unwatched;
use crate::support::{Medic, V2_34, rest};

const RUNS: usize = 20;
const SERVERS: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Hangar's list is read at most once a second; a death is measured on its own.
const APART: f64 = 1.1;

/// Hangar, and the daemon straight at it, without the proxy between.
struct Pair {
    medic: Medic,
    w: Unwatched,
}

fn pair(with_log: bool) -> Pair {
    let slow = json!({"health_check_interval_s": 60});
    let w = Unwatched::start(V2_34, |h| SERVERS.iter().fold(h, |h, id| h.server(id, "ok", &slow)));
    w.hangar.bring_up(&SERVERS);
    let settings = json!({
        "hangar": {"poll_interval": "5s"},
        "policy": {
            "settle": "200ms", "flap_window": "1s", "neighbour_wait": "0s",
            "budgets": {"starts_per_server": 100, "actions": 10_000, "starts_per_second": 10},
            "storm": {"servers": 1000},
        },
    });
    let mut settings = settings;
    if with_log {
        merge(&mut settings, &json!({"hangar": {"log_file": w.hangar.log_file()}}));
    }
    let medic = Medic::start(&w.dir().join("medic"), &format!("http://127.0.0.1:{}", w.hangar.port), &settings);
    Pair { medic, w }
}

/// SIGKILL to a new process that Hangar calls ready.
fn measure(Pair { medic, w }: &Pair, id: &str) -> Duration {
    let starts = w.hangar.starts(id);
    let begun = Instant::now();
    w.hangar.kill_child(id);
    loop {
        if w.hangar.starts(id) > starts {
            let detail: Value = w.hangar.detail(id);
            if detail["state"] == "ready" && detail["alive"] == true {
                let took = begun.elapsed();
                if took > Duration::from_secs(2) {
                    println!("{id} took {took:?}\n{}", medic.report());
                }
                return took;
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{id} does not come back\n{}", medic.report());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// SIGKILL to ready where a user asks for the start at once, and nobody watches.
fn by_hand(w: &Unwatched, id: &str) -> Duration {
    let begun = Instant::now();
    w.hangar.kill_child(id);
    let answer = w.hangar.user_start(id);
    assert!(answer.ok(), "{answer:?}");
    begun.elapsed()
}

fn summary(name: &str, mut took: Vec<Duration>) -> Duration {
    took.sort();
    let median = (took[took.len() / 2 - 1] + took[took.len() / 2]) / 2;
    println!("{name}: SIGKILL to ready over {} runs: median {median:?}, least {:?}, most {:?}", took.len(), took[0], took[took.len() - 1]);
    median
}

#[test]
fn a_killed_server_is_ready_within_half_a_second_by_the_log_and_by_events() {
    let worlds = [("log", pair(true)), ("events", pair(false))];
    let alone = Unwatched::start(V2_34, |h| h.server("f", "ok", &json!({"health_check_interval_s": 60})));
    alone.hangar.bring_up(&["f"]);
    rest(4.0);
    let mut floor = Vec::new();
    let mut took = [Vec::new(), Vec::new()];
    for run in 0..RUNS {
        for ((_, w), took) in worlds.iter().zip(&mut took) {
            took.push(measure(w, SERVERS[run % SERVERS.len()]));
            rest(APART / 2.0);
        }
        floor.push(by_hand(&alone, "f"));
    }
    let bound = Duration::from_millis(500).max(3 * summary("by hand", floor));
    let median = worlds.iter().zip(took).map(|((name, _), took)| (*name, summary(name, took))).collect::<Vec<_>>();
    for (name, median) in median {
        assert!(median < bound, "{name}: {median:?}, and the bound is {bound:?}");
    }
}
