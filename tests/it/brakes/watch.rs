//! The daemon watches itself: `/-/ready` and why not, systemd's watchdog, the dead man's switch.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::playbook::api::World as Alone;
use crate::support::world::Unwatched;
use crate::support::{V2_34, http, poll};

fn ready(port: u16) -> (u16, String) {
    let answer = http::get(port, "/-/ready", None);
    (answer.status, answer.body)
}

#[test]
fn it_is_not_ready_and_says_why_while_hangar_cannot_be_read() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    let mut w = w.watch(&json!({"hangar": {"request_timeout": "1s"}}));
    w.wait("it is ready", 10, |w| ready(w.medic.port()).0 == 200);
    assert_eq!(http::sample(&w.medic.metrics(), "hangar_medic_ready"), Some(1.0));
    w.hangar.stop();
    w.wait("it says that it is blind", 20, |w| ready(w.medic.port()).1.contains("Hangar's metrics cannot be read"));
    assert_eq!((ready(w.medic.port()).0, http::sample(&w.medic.metrics(), "hangar_medic_ready")), (503, Some(0.0)));
    assert_eq!(http::get(w.medic.port(), "/-/healthy", None).status, 200, "a restart of ours would not help");
    let turned =
        |w: &crate::support::world::World| http::sample(&w.medic.metrics(), "hangar_medic_engine_last_turn_timestamp_seconds").unwrap();
    let before = turned(&w);
    w.wait("the engine turns all the same", 15, |w| turned(w) > before);
    w.hangar.start();
    w.wait("it is ready again", 20, |w| ready(w.medic.port()).0 == 200);
}

/// What systemd was told, and when.
type Heard = (Instant, String);

#[test]
fn systemd_hears_when_it_is_up_that_it_lives_why_it_is_of_no_use_and_that_it_stops() {
    let mut w = Alone::start(false, &json!({}));
    let path = w.dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    w.medic.sigkill();
    w.medic.env = vec![("NOTIFY_SOCKET".to_owned(), path.to_str().unwrap().to_owned()), ("WATCHDOG_USEC".to_owned(), "1500000".to_owned())];
    w.medic.start_again();
    let mut heard: Vec<Heard> = Vec::new();
    let mut hear = |until: &dyn Fn(&[Heard]) -> bool| {
        poll(Duration::from_secs(20), || {
            let mut buffer = [0; 4096];
            while let Ok(n) = socket.recv(&mut buffer) {
                heard.push((Instant::now(), String::from_utf8_lossy(&buffer[..n]).trim().to_owned()));
            }
            until(&heard).then(|| heard.clone())
        })
        .unwrap_or_else(|| panic!("heard only {heard:?}"))
    };
    let pings = |all: &[Heard]| all.iter().filter(|(_, s)| s == "WATCHDOG=1").count();
    let all = hear(&|all| pings(all) >= 5);
    let words: Vec<&str> = all.iter().map(|(_, s)| s.as_str()).collect();
    assert_eq!(words[0], "READY=1");
    assert!(words.iter().any(|s| s.starts_with("STATUS=Hangar's metrics")), "{words:?}");
    let at: Vec<Instant> = all.iter().filter(|(_, s)| s == "WATCHDOG=1").map(|(at, _)| *at).collect();
    assert!(at.windows(2).all(|p| p[1] - p[0] < Duration::from_millis(1500)), "each ping is in time");
    let status = w.medic.sigterm();
    assert!(status.is_some_and(|s| s.success()));
    let last = hear(&|all| all.iter().any(|(_, s)| s == "STOPPING=1"));
    assert!(last.len() >= all.len());
}
