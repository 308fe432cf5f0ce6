//! Many servers die of one cause, and the canary cannot be brought back: nobody else is touched, and a person is called.

use serde_json::json;

use crate::support::world::{Unwatched, World};
use crate::support::{V2_34, http, rest};

fn ids() -> Vec<String> {
    (1..=20).map(|n| format!("s{n}")).collect()
}

/// Servers that we ever asked Hangar to start.
fn started(w: &World) -> Vec<String> {
    ids().into_iter().filter(|id| !w.proxy.starts(id).is_empty()).collect()
}

/// Whatever changes anything at Hangar: at most a fifth of its bucket (10 a second for all callers).
pub fn at_most_a_fifth(w: &World) {
    let acted = w.proxy.acted_since(0);
    for (i, first) in acted.iter().enumerate() {
        let within = acted[i..].iter().take_while(|s| s.at.duration_since(first.at).as_secs_f64() < 0.95).count();
        w.must(&format!("at most 2 a second, not {within}"), within <= 2);
    }
}

#[test]
fn when_the_canary_cannot_be_recovered_nobody_else_is_touched_and_a_person_is_called() {
    let ids = ids();
    let some: Vec<&str> = ids.iter().map(String::as_str).collect();
    let servers = |h: crate::support::Hangar| some.iter().fold(h, |h, id| h.server(id, "ok", &json!({})));
    let w = Unwatched::start(V2_34, servers);
    w.hangar.bring_up(&some);
    let w = w
        .watch(&json!({"policy": {"exhausted_retry": "5s", "exhausted_retry_max": "5s", "neighbour_wait": "2s", "storm": {"servers": 5}}}));
    for id in &some {
        w.hangar.set_mode(id, "exit");
    }
    for id in &some {
        w.hangar.kill_child(id);
    }
    w.wait("it is a storm", 30, |w| http::sample(&w.medic.metrics(), "hangar_medic_storm_active") == Some(1.0));
    w.wait("the canary could not be recovered, and that is told", 60, |w| {
        http::sample(&w.medic.metrics(), "hangar_medic_storm_canary_failed") == Some(1.0)
    });
    rest(7.0);
    assert_eq!(started(&w).len(), 1, "the canary only: {:?}", started(&w));
    w.must("its log says so, loudly", w.medic.log().contains("canary_failed"));
    let held = http::sample(&w.medic.metrics(), "hangar_medic_holds{hold=\"storm\"}").unwrap();
    assert!(held >= 18.0, "{held} are held");

    // The cause is mended: the canary's slow retry shows it, and the others follow, slowly.
    for id in &some {
        w.hangar.set_mode(id, "ok");
    }
    w.wait("all are back", 120, |w| http::sum(&w.medic.metrics(), "hangar_medic_incidents_open", "") == 0.0);
    at_most_a_fifth(&w);
    let calm = http::sample(&w.medic.metrics(), "hangar_medic_storm_canary_failed");
    assert_eq!(calm, Some(0.0));
}
